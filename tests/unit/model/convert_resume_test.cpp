#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <map>

#include "model/convert.hpp"
#include "model/resume_log.hpp"
#include "tiny_checkpoint.hpp"

/// Conversions that are killed and started again.
namespace wisp::model {
namespace {

namespace fs = std::filesystem;

const std::string kPocket = std::string(WISP_TEST_DATA) + "/pocket-dictionary";

class ResumeTest : public testing::Test {
 protected:
  test::TempFolder temp_;
};

/// Every file of a folder with its bytes.
std::map<std::string, std::string> contents(const std::string& folder) {
  std::map<std::string, std::string> out;
  for (const auto& f : fs::directory_iterator(folder)) out[f.path().filename()] = test::read_file(f.path());
  return out;
}

/// Converts in a process of its own, which is killed at the `nth` word of progress. Returns whether it was.
bool killed_at(std::uint64_t nth, const std::string& destination) {
  const pid_t child = ::fork();
  if (child == 0) {
    std::uint64_t calls = 0;
    const auto report = convert({kPocket, destination, false, {}}, [&](std::uint64_t, std::uint64_t) {
      if (++calls == nth) ::kill(::getpid(), SIGKILL);
    });
    ::_exit(report.ok() ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFSIGNALED(status);
}

/// Killed anywhere, it goes on where it was, again and again, and the folder is the same to the byte.
TEST_F(ResumeTest, GoesOnWhereAKilledRunEnded) {
  ASSERT_TRUE(convert({kPocket, temp_.path("whole"), false, {}}, {}).ok());
  const auto whole = contents(temp_.path("whole"));
  std::uint64_t resumed = 0;
  for (const std::uint64_t nth : {1u, 5u, 40u, 80u, 100u, 150u, 250u, 300u, 340u}) {
    SCOPED_TRACE(nth);
    const std::string out = temp_.path("out");
    ASSERT_TRUE(killed_at(nth, out));
    EXPECT_FALSE(fs::exists(out));
    ASSERT_TRUE(killed_at(3, out));
    const auto report = convert({kPocket, out, false, {}}, {});
    ASSERT_TRUE(report.ok()) << report.error().text;
    resumed += !report->notes.empty() && report->notes.back().starts_with("went on") ? 1 : 0;
    EXPECT_EQ(contents(out), whole);
    EXPECT_EQ(std::distance(fs::directory_iterator(temp_.path()), fs::directory_iterator()), 2)
        << "something stayed";
    fs::remove_all(out);
  }
  EXPECT_GE(resumed, 5u);
}

/// A line of the log that was not written to its end, a file that is not as long as it was, another source:
/// none of it is trusted.
TEST_F(ResumeTest, TrustsNothingThatIsNotWhole) {
  ASSERT_TRUE(convert({kPocket, temp_.path("whole"), false, {}}, {}).ok());
  const auto whole = contents(temp_.path("whole"));
  const std::string out = temp_.path("out");
  for (const int how : {0, 1, 2}) {
    SCOPED_TRACE(how);
    ASSERT_TRUE(killed_at(300, out));
    fs::path partial;
    for (const auto& f : fs::directory_iterator(temp_.path()))
      if (f.path().filename().string().starts_with("out.partial-")) partial = f.path();
    const fs::path log = partial / ResumeLog::kFile;
    if (how == 0) fs::resize_file(log, fs::file_size(log) - 1);
    if (how == 1) fs::resize_file(partial / "dense.safetensors", 100);
    if (how == 2) test::write_file(log, "0000000000000000\n" + test::read_file(log).substr(17));
    const auto report = convert({kPocket, out, false, {}}, {});
    ASSERT_TRUE(report.ok()) << report.error().text;
    EXPECT_EQ(!report->notes.empty() && report->notes.back().starts_with("went on"), how != 2);
    EXPECT_EQ(contents(out), whole);
    fs::remove_all(out);
  }
}

}  // namespace
}  // namespace wisp::model
