#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <filesystem>

#include "expect_error.hpp"
#include "model/convert.hpp"
#include "tiny_checkpoint.hpp"

/// Where a conversion writes, and what it leaves alone.
namespace wisp::model {
namespace {

namespace fs = std::filesystem;
using test::expect_error;
using test::TinyCheckpoint;

const std::string kPocket = std::string(WISP_TEST_DATA) + "/pocket-dictionary";

class Destination : public testing::Test {
 protected:
  static void convert_ok(const std::string& from, const std::string& to) {
    const auto r = convert({from, to, false, {}}, {});
    EXPECT_TRUE(r.ok()) << r.error().text;
  }
  test::TempFolder temp_;
};

TEST_F(Destination, NobodyElsesFolderIsRemoved) {
  TinyCheckpoint().write(temp_.path("src"));
  std::filesystem::create_directory(temp_.path("dst.partial-notes"));
  std::filesystem::create_directory(temp_.path("dst.partial-77"));
  test::write_file(temp_.path("dst.partial-notes/a"), "precious");
  test::write_file(temp_.path("dst.partial-77/a"), "no log of ours");
  convert_ok(temp_.path("src"), temp_.path("dst"));
  EXPECT_EQ(test::read_file(temp_.path("dst.partial-notes/a")), "precious");
  EXPECT_EQ(test::read_file(temp_.path("dst.partial-77/a")), "no log of ours");
  // What lies in a model folder and is no part of one is not replaced with it, a source least of all.
  std::filesystem::create_directory(temp_.path("dst/hf"));
  expect_error(convert({temp_.path("src"), temp_.path("dst"), true, {}}, {}),
               {"dst/hf", "no part of a model"});
  std::filesystem::remove(temp_.path("dst/hf"));
  test::write_file(temp_.path("dst/notes.txt"), "x");
  expect_error(convert({temp_.path("src"), temp_.path("dst"), true, {}}, {}), {"notes.txt", "move it away"});
  std::filesystem::remove(temp_.path("dst/notes.txt"));
  const auto again = convert({temp_.path("src"), temp_.path("dst"), true, {}}, {});
  EXPECT_TRUE(again.ok()) << again.error().text;
}

TEST_F(Destination, DestinationIsReplacedOnlyByForceAndOnlyIfItIsAModel) {
  convert_ok(kPocket, temp_.path("out/").substr(0));
  expect_error(convert({kPocket, temp_.path("out"), false, {}}, {}), {"exists", "--force"});
  test::write_file(temp_.path("out/stale.json"), "x");
  ASSERT_TRUE(convert({kPocket, temp_.path("out") + "/", true, {}}, {}).ok());
  EXPECT_FALSE(fs::exists(temp_.path("out/stale.json")));
  fs::create_directories(temp_.path("precious"));
  test::write_file(temp_.path("precious/letter"), "x");
  expect_error(convert({kPocket, temp_.path("precious"), true, {}}, {}), {"not a WISP model folder"});
  EXPECT_TRUE(fs::exists(temp_.path("precious/letter")));
  expect_error(convert({kPocket, temp_.path("no/such/place"), false, {}}, {}), {"no such folder"});
}

TEST_F(Destination, LeftoversOfADeadRunGoAndALiveRunIsLeftAlone) {
  fs::create_directories(temp_.path("out.partial-1"));
  test::write_file(temp_.path("out.partial-1/half"), "x");
  test::write_file(temp_.path("out.partial-1/.progress"), "");
  const int live = ::open(temp_.path("out.partial-1").c_str(), O_RDONLY | O_DIRECTORY);
  ASSERT_EQ(::flock(live, LOCK_EX), 0);
  expect_error(convert({kPocket, temp_.path("out"), false, {}}, {}), {"out.partial-1", "another run"});
  EXPECT_TRUE(fs::exists(temp_.path("out.partial-1/half")));
  ::close(live);
  convert_ok(kPocket, temp_.path("out"));
  EXPECT_FALSE(fs::exists(temp_.path("out.partial-1")));
}

TEST_F(Destination, FullDiskIsRefusedWithNumbersBeforeAnythingIsWritten) {
  const auto e = estimate(kPocket);
  ASSERT_TRUE(e.ok());
  const auto r = convert({kPocket, temp_.path("out"), false, e->bytes - 1}, {});
  expect_error(r,
               {"needs " + std::to_string(e->bytes), std::to_string(e->bytes - 1) + " are free", "1 more"});
  EXPECT_EQ(r.error().code, ErrorCode::kExhausted);
  EXPECT_TRUE(fs::is_empty(temp_.path()));
}

}  // namespace
}  // namespace wisp::model
