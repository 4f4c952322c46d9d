#include "services/loader/learned_counts.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>

namespace wisp::loader {
namespace {

constexpr std::uint64_t kModel = 0x1234;

/// 20 rows over 2 layers of 8: expert 3 of layer 1 most often, 5 of layer 0 next.
LearnedCounts some() {
  LearnedCounts c(2, 8);
  for (int row = 0; row < 20; ++row) {
    c.pass(0, 1);
    c.pass(1, 1);
    c.add(1, 3, 1);
    if (row % 2 == 0) c.add(0, 5, 1);
    if (row % 5 == 0) c.add(0, 6, 1);
  }
  return c;
}

Status add(const std::string& path, const LearnedCounts& counts) {
  return LearnedFile(path, kModel, counts.layers(), counts.experts()).add(counts);
}

Result<LearnedCounts> decode(std::string_view bytes, std::uint64_t model, std::uint32_t layers,
                             std::uint32_t experts) {
  LearnedCounts c(layers, experts);
  WISP_TRY(c.decode(bytes, model));
  return c;
}

class LearnedFileTest : public testing::Test {
 protected:
  LearnedFileTest() {
    std::string name = testing::TempDir() + "wisp-learned-XXXXXX";
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  ~LearnedFileTest() override {
    ::chmod(folder_.c_str(), 0700);
    std::filesystem::remove_all(folder_);
  }
  std::string folder_;
};

TEST(LearnedCounts, MostWantedFirst) {
  LearnedCounts c = some();
  EXPECT_EQ(c.most_wanted(), (std::vector<std::uint32_t>{1U << 16 | 3, 5, 6}));
  EXPECT_FLOAT_EQ(c.share(1, 3), 1.0f);
  EXPECT_FLOAT_EQ(c.share(0, 5), 0.5f);
  EXPECT_EQ(c.share(0, 0), 0.0f);
}

TEST(LearnedCounts, FadeWithUse) {
  LearnedCounts c = some();
  const float before = c.share(1, 3);
  for (int row = 0; row < 4096; ++row) {
    c.pass(1, 1);
    c.add(1, 4, 1);
  }
  EXPECT_LT(c.share(1, 3), before / 100);
  EXPECT_GT(c.share(1, 4), 0.9f);
  EXPECT_EQ(c.share(0, 5), 0.5f) << "what is not used does not fade";
  for (int row = 0; row < 400000; ++row) c.pass(1, 1);
  EXPECT_EQ(c.share(1, 3), 0.0f);
}

TEST_F(LearnedFileTest, IsReadAsItWasWritten) {
  const std::string path = folder_ + "/a/b/counts";
  EXPECT_EQ(LearnedCounts::load(path, kModel, 2, 8).error().code, ErrorCode::kNotFound);
  const LearnedCounts c = some();
  ASSERT_TRUE(add(path, c).ok());
  const auto again = LearnedCounts::load(path, kModel, 2, 8);
  ASSERT_TRUE(again.ok()) << again.error().text;
  EXPECT_EQ(again->encode(kModel), c.encode(kModel));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_ + "/a/b"), {}), 1) << "no leavings";
}

TEST_F(LearnedFileTest, WhatCannotBeWrittenIsAnErrorAndLeavesTheOldFile) {
  EXPECT_FALSE(add("/proc/none/counts", some()).ok());
  std::ofstream(folder_ + "/file") << "x";
  EXPECT_FALSE(add(folder_ + "/file/counts", some()).ok());
  // A full disk: a limit on files lets the first bytes through, and no more.
  const std::string path = folder_ + "/counts";
  ASSERT_TRUE(add(path, some()).ok());
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit few{16, before.rlim_max};
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &few), 0);
  const Status s = add(path, LearnedCounts(2, 8));
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  ASSERT_FALSE(s.ok());
  EXPECT_NE(s.error().text.find("File too large"), std::string::npos) << s.error().text;
  EXPECT_EQ(LearnedCounts::load(path, kModel, 2, 8)->encode(kModel), some().encode(kModel));
  EXPECT_FALSE(std::filesystem::exists(path + ".new"));
}

TEST_F(LearnedFileTest, WhatSeveralEnginesCountedAddsUp) {
  const std::string path = folder_ + "/counts";
  LearnedCounts a(1, 4), b(1, 4);
  for (int row = 0; row < 10; ++row) {
    a.pass(0, 1), a.add(0, 1, 1);
    b.pass(0, 1), b.add(0, 2, 1);
  }
  ASSERT_TRUE(add(path, a).ok());
  ASSERT_TRUE(add(path, b).ok());
  const auto both = LearnedCounts::load(path, kModel, 1, 4);
  ASSERT_TRUE(both.ok());
  EXPECT_NEAR(both->rows(0), 20, 0.1);
  EXPECT_NEAR(both->share(0, 1), 0.5, 0.01);
  EXPECT_NEAR(both->share(0, 2), 0.5, 0.01);
}

TEST_F(LearnedFileTest, OneEngineWritesAtATimeAndAKilledOneHoldsUpNobody) {
  const std::string path = folder_ + "/counts";
  std::ofstream(path + ".new") << "half a file";  // of an engine that was killed
  ASSERT_TRUE(add(path, some()).ok());
  EXPECT_EQ(LearnedCounts::load(path, kModel, 2, 8)->encode(kModel), some().encode(kModel));
  const int other = ::open((path + ".new").c_str(), O_WRONLY | O_CREAT, 0600);
  ASSERT_EQ(::flock(other, LOCK_EX), 0);
  EXPECT_EQ(add(path, some()).error().code, ErrorCode::kUnavailable);
  ::close(other);
  ASSERT_TRUE(add(path, some()).ok());
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1) << "no leavings";
}

/// Nobody reads the pipe: to wait for a reader would be for ever.
TEST_F(LearnedFileTest, WhatIsNoFileIsNotWrittenTo) {
  const std::string path = folder_ + "/counts", fresh = path + ".new", target = path + ".target";
  ASSERT_TRUE(add(path, some()).ok());
  std::ofstream(target) << "kept";
  const std::pair<const char*, std::function<void()>> kinds[] = {
      {"pipe", [&] { ASSERT_EQ(::mkfifo(fresh.c_str(), 0600), 0); }},
      {"link", [&] { std::filesystem::create_symlink(target, fresh); }},
      {"link to nothing", [&] { std::filesystem::create_symlink(path + ".none", fresh); }},
      {"folder", [&] { std::filesystem::create_directory(fresh); }}};
  for (const auto& [what, make] : kinds) {
    make();
    const Status refused = add(path, some());
    ASSERT_FALSE(refused.ok()) << what;
    EXPECT_NE(refused.error().code, ErrorCode::kUnavailable) << what << ": not tried again and again";
    EXPECT_NE(refused.error().text.find(fresh), std::string::npos) << refused.error().text;
    std::filesystem::remove_all(fresh);
  }
  EXPECT_EQ(std::filesystem::file_size(target), 4u);
  EXPECT_FALSE(std::filesystem::exists(path + ".none"));
  EXPECT_TRUE(LearnedCounts::load(path, kModel, 2, 8).ok());
}

TEST_F(LearnedFileTest, HostileContentsAreIgnored) {
  const std::string good = some().encode(kModel);
  ASSERT_TRUE(decode(good, kModel, 2, 8).ok());
  EXPECT_FALSE(decode(good, kModel + 1, 2, 8).ok());
  EXPECT_FALSE(decode(good, kModel, 3, 8).ok());
  EXPECT_FALSE(decode(good, kModel, 2, 9).ok());
  for (std::size_t n = 0; n < good.size(); ++n)
    EXPECT_FALSE(decode(std::string_view(good).substr(0, n), kModel, 2, 8).ok()) << n;
  for (std::size_t n = 0; n < good.size(); ++n) {
    std::string bad = good;
    bad[n] = static_cast<char>(bad[n] ^ 0x40);
    EXPECT_FALSE(decode(bad, kModel, 2, 8).ok()) << n;
  }
  // With a checksum that is right: numbers that are none.
  std::mt19937 random(11);
  for (int round = 0; round < 2000; ++round) {
    std::string bad = good.substr(0, good.size() - 8);
    for (int i = 0; i < 8; ++i)
      bad[24 + random() % (bad.size() - 24)] = static_cast<char>(random() % 3 == 0 ? 0xff : random());
    const std::uint64_t sum = XXH3_64bits(bad.data(), bad.size());
    bad.append(reinterpret_cast<const char*>(&sum), 8);
    const auto c = decode(bad, kModel, 2, 8);
    if (!c.ok()) continue;
    for (std::uint32_t l = 0; l < 2; ++l)
      for (std::uint32_t e = 0; e < 8; ++e) {
        EXPECT_GE(c->share(l, e), 0.0f);
        EXPECT_LE(c->share(l, e), 1.0f);
      }
  }
  EXPECT_FALSE(LearnedCounts::load(folder_, kModel, 2, 8).ok());  // a folder
  ASSERT_EQ(::mkfifo((folder_ + "/fifo").c_str(), 0600), 0);
  EXPECT_FALSE(LearnedCounts::load(folder_ + "/fifo", kModel, 2, 8).ok());  // does not wait for a writer
}

TEST(LearnedPath, FollowsTheStateFolder) {
  ::setenv("XDG_STATE_HOME", "/tmp/state", 1);
  EXPECT_EQ(learned_path(0xab), "/tmp/state/wisp/learned/00000000000000ab");
  ::setenv("XDG_STATE_HOME", "relative", 1);
  ::setenv("HOME", "/home/x", 1);
  EXPECT_EQ(learned_path(0xab), "/home/x/.local/state/wisp/learned/00000000000000ab");
  ::unsetenv("XDG_STATE_HOME");
  ::setenv("HOME", "", 1);
  EXPECT_EQ(learned_path(0xab), "");
}

}  // namespace
}  // namespace wisp::loader
