#include "launch/run_dir.hpp"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>

#include "service/live_runs.hpp"
#include "toy_run.hpp"

namespace wisp::launch::test {
namespace {

namespace fs = std::filesystem;

TEST(RunDir, IsPrivateLockedAndRemoved) {
  const PrivateRuntimeDir runtime;
  {
    auto dir = RunDir::create(1);
    ASSERT_TRUE(dir.ok()) << dir.error().text;
    struct stat st {};
    ASSERT_EQ(::stat(dir->path().c_str(), &st), 0);
    EXPECT_EQ(st.st_mode & 0777, 0700u);
    EXPECT_EQ(wisp::service::live_runs(wisp::service::run_base()), std::vector<std::string>{dir->path()});
    auto found = wisp::service::find_run("");
    ASSERT_TRUE(found.ok());
    EXPECT_EQ(*found, dir->path());
  }
  EXPECT_TRUE(runtime.entries().empty());
  // To be changed: to be looked at, one of another base would do.
  EXPECT_FALSE(wisp::service::find_run("", wisp::service::Purpose::kChange).ok());
}

TEST(RunDir, SweepsTheDeadAndLeavesTheLiving) {
  const PrivateRuntimeDir runtime;
  auto living = RunDir::create(1);
  ASSERT_TRUE(living.ok());
  const fs::path dead = fs::path(wisp::service::run_base()) / "dead";
  fs::create_directories(dead / "log");
  auto second = RunDir::create(2);
  ASSERT_TRUE(second.ok());
  EXPECT_FALSE(fs::exists(dead));
  EXPECT_TRUE(fs::exists(living->path()));
  auto found = wisp::service::find_run("");
  ASSERT_FALSE(found.ok());
  EXPECT_NE(found.error().text.find("--run"), std::string::npos);
}

TEST(RunDir, ARunOfAnotherBaseIsChangedOnlyByItsName) {
  // Begun where there is no runtime folder: in /tmp/wisp-<uid>.
  const char* before = std::getenv("XDG_RUNTIME_DIR");
  const std::string kept = before == nullptr ? "" : before;
  ::unsetenv("XDG_RUNTIME_DIR");
  auto elsewhere = RunDir::create(1);
  if (before != nullptr) ::setenv("XDG_RUNTIME_DIR", kept.c_str(), 1);
  ASSERT_TRUE(elsewhere.ok()) << elsewhere.error().text;
  const PrivateRuntimeDir runtime;
  using wisp::service::find_run, wisp::service::Purpose;
  const auto changed = find_run("", Purpose::kChange);
  ASSERT_FALSE(changed.ok());
  EXPECT_NE(changed.error().text.find("--run"), std::string::npos);
  EXPECT_NE(changed.error().text.find(elsewhere->path()), std::string::npos);
  EXPECT_EQ(find_run(elsewhere->path(), Purpose::kChange).value(), elsewhere->path());
  auto own = RunDir::create(2);
  ASSERT_TRUE(own.ok());
  EXPECT_EQ(find_run("", Purpose::kChange).value(), own->path());
}

TEST(RunDir, RefusesABaseThatOthersCanEnter) {
  const PrivateRuntimeDir runtime;
  fs::create_directory(wisp::service::run_base());
  fs::permissions(wisp::service::run_base(), fs::perms::all);
  auto dir = RunDir::create(1);
  ASSERT_FALSE(dir.ok());
  EXPECT_EQ(dir.error().code, ErrorCode::kInvalid);
}

TEST(Listen, ABusyPortSaysHowToChooseAnother) {
  auto first = listen_tcp("127.0.0.1", 0);
  ASSERT_TRUE(first.ok()) << first.error().text;
  EXPECT_NE(first->port, 0);
  auto second = listen_tcp("127.0.0.1", first->port);
  ASSERT_FALSE(second.ok());
  EXPECT_NE(second.error().text.find("--port"), std::string::npos);
  EXPECT_NE(second.error().text.find(std::to_string(first->port)), std::string::npos);
}

TEST(Listen, BadArgumentsAreErrors) {
  EXPECT_FALSE(listen_tcp("127.0.0.1", 70000).ok());
  EXPECT_FALSE(listen_tcp("no such host.invalid", 0).ok());
  EXPECT_FALSE(listen_unix("/" + std::string(200, 'x'), SOCK_STREAM).ok());
}

}  // namespace
}  // namespace wisp::launch::test
