#include "services/cli/session.hpp"

#include <gtest/gtest.h>
#include <poll.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

namespace wisp::cli {
namespace {

namespace fs = std::filesystem;

TEST(ReadyLine, ParsesAndRefuses) {
  const auto ready = parse_ready_line(R"({"run_dir":"/tmp/r","port":8080,"unix_socket":"/tmp/r/http.sock"})");
  ASSERT_TRUE(ready.ok());
  EXPECT_EQ(ready->run_dir, "/tmp/r");
  EXPECT_EQ(ready->port, 8080u);
  EXPECT_EQ(ready->unix_socket, "/tmp/r/http.sock");
  for (const char* none : {"", "ready", "{}", "[1]", R"({"run_dir":"/tmp/r"})"})
    EXPECT_FALSE(parse_ready_line(none).ok());
}

/// Sessions with a shell script in the launcher's place.
class SessionTest : public testing::Test {
 protected:
  SessionTest() {
    std::string name = (fs::temp_directory_path() / "wisp-session-XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
  }
  ~SessionTest() override { fs::remove_all(folder_); }

  std::string launcher(const std::string& body) {
    const fs::path path = folder_ / "wisp-launch";
    std::ofstream(path) << "#!/bin/sh\n" << body;
    fs::permissions(path, fs::perms::owner_all);
    return path.string();
  }
  Result<std::unique_ptr<Session>> start(const std::string& body) {
    return Session::start(
        {}, interrupts_, [this](const std::string& line) { notices_.push_back(line); }, launcher(body));
  }

  fs::path folder_;
  Interrupts interrupts_ = Interrupts::install().value();
  std::vector<std::string> notices_;
};

const std::string kReady = R"(echo '{"run_dir":"/r","port":0,"unix_socket":"/r/s"}' >&4; )";

TEST_F(SessionTest, StartsRelaysAndEnds) {
  auto session = start(
      kReady +
      "echo '{\"event\":\"stage_died\",\"stage\":\"compute\",\"signal\":9,\"status\":0,\"restarting\":true}' "
      ">&4; read _ <&5; echo end > " +
      (folder_ / "ended").string() + "\n");
  ASSERT_TRUE(session.ok()) << session.error().text;
  EXPECT_EQ((*session)->ready().run_dir, "/r");
  const Watch events = (*session)->events();
  for (int i = 0; i < 500 && notices_.empty(); ++i) {
    pollfd fd{events.fd(), POLLIN, 0};
    if (::poll(&fd, 1, 20) > 0) events.readable();
  }
  ASSERT_EQ(notices_.size(), 1u);
  EXPECT_EQ(notices_[0], "compute stopped (signal 9), restarting");
  EXPECT_TRUE((*session)->check().ok());
  (*session)->end();
  EXPECT_TRUE(fs::exists(folder_ / "ended")) << "the lifeline's end ends the launcher";
  EXPECT_FALSE((*session)->check().ok());
}

TEST_F(SessionTest, PassesThePlan) {
  auto session =
      start("head -c 8 <&3 | wc -c > " + (folder_ / "size").string() + "; " + kReady + "read _ <&5\n");
  ASSERT_TRUE(session.ok()) << session.error().text;
  std::ifstream in(folder_ / "size");
  int size = 0;
  in >> size;
  EXPECT_EQ(size, 8);
}

TEST_F(SessionTest, FailedStartSaysWhy) {
  const auto worded = start("echo '{\"error\":\"port 8080 is taken\"}' >&4; exit 3\n");
  ASSERT_FALSE(worded.ok());
  EXPECT_NE(worded.error().text.find("port 8080 is taken"), std::string::npos) << worded.error().text;
  const auto silent = start("exit 3\n");
  ASSERT_FALSE(silent.ok());
  EXPECT_NE(silent.error().text.find("status 3"), std::string::npos) << silent.error().text;
  const auto missing = Session::start({}, interrupts_, nullptr, "/nonexistent/wisp-launch");
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code, ErrorCode::kNotFound);
}

TEST_F(SessionTest, CtrlCWhileTheModelLoadsIsNoFailure) {
  const auto session = start("kill -INT $PPID; read _ <&5\n");
  interrupts_.rearm();
  ASSERT_FALSE(session.ok());
  EXPECT_EQ(session.error().code, ErrorCode::kInterrupted) << session.error().text;
}

TEST_F(SessionTest, NoticesItsDeath) {
  auto session = start(kReady + "exit 0\n");
  ASSERT_TRUE(session.ok()) << session.error().text;
  Status status;
  for (int i = 0; i < 500 && status.ok(); ++i) {
    status = (*session)->check();
    ::poll(nullptr, 0, 10);
  }
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kUnavailable);
}

}  // namespace
}  // namespace wisp::cli
