#include "services/cli/draft_cache.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <thread>

#include "model/verify.hpp"

/// Drafts that are converted on the way: found again, made again, and nobody's else.
namespace wisp::cli {
namespace {

namespace fs = std::filesystem;

std::string read_all(const fs::path& path) {
  std::ostringstream out;
  out << std::ifstream(path, std::ios::binary).rdbuf();
  return out.str();
}

void write_all(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

/// Every file of a folder with its bytes.
std::map<std::string, std::string> contents(const fs::path& folder) {
  std::map<std::string, std::string> out;
  for (const auto& f : fs::directory_iterator(folder)) out[f.path().filename()] = read_all(f.path());
  return out;
}

class DraftCache : public testing::Test {
 protected:
  DraftCache() {
    std::string name = (fs::temp_directory_path() / "wisp drafts-XXXXXX").string();
    temp_ = ::mkdtemp(name.data());
    root_ = temp_ / "state" / "drafts";
    source_ = temp_ / "small";
    fs::copy(WISP_TEST_DATA "/pocket-dictionary-draft", source_);
    events_.converting = [this](const std::string& folder, const model::ConvertEstimate&,
                                const std::string& why) -> Status {
      ++conversions_;
      folder_ = folder;
      why_ = why;
      return {};
    };
  }
  ~DraftCache() override { fs::remove_all(temp_); }

  /// A look-up that must succeed.
  HeldDraft look_up(const fs::path& source) {
    auto held = cached_draft(source.string(), root_.string(), events_);
    EXPECT_TRUE(held.ok()) << held.error().text;
    return held.ok() ? std::move(*held) : HeldDraft{};
  }
  HeldDraft look_up() { return look_up(source_); }

  /// All that lies in the folders of checkpoints.
  std::vector<fs::path> kept() const {
    std::vector<fs::path> out;
    for (const auto& checkpoint : fs::directory_iterator(root_))
      for (const auto& f : fs::directory_iterator(checkpoint)) out.push_back(f.path());
    return out;
  }

  fs::path temp_, root_, source_;
  DraftCacheEvents events_;
  int conversions_ = 0;
  std::string folder_, why_;  ///< of the last conversion
};

TEST_F(DraftCache, ConvertsOnceAndFindsItByAnyName) {
  const HeldDraft first = look_up();
  EXPECT_EQ(conversions_, 1);
  EXPECT_EQ(first.folder, folder_);
  EXPECT_EQ(why_, "");
  EXPECT_TRUE(fs::path(first.folder).filename().string().starts_with("small-")) << first.folder;
  const auto verified = model::verify(first.folder, {});
  ASSERT_TRUE(verified.ok()) << verified.error().text;
  EXPECT_EQ(verified->bad_count, 0u);
  const auto by_hand = model::convert({source_.string(), (temp_ / "hand").string(), false, {}}, {});
  ASSERT_TRUE(by_hand.ok()) << by_hand.error().text;
  EXPECT_EQ(contents(first.folder), contents(temp_ / "hand"));

  fs::create_directory_symlink(source_, temp_ / "link");
  for (const fs::path& name : {source_, source_ / "", temp_ / "." / "small", temp_ / "link"})
    EXPECT_EQ(look_up(name).folder, first.folder) << name;
  EXPECT_EQ(conversions_, 1);
  EXPECT_EQ(kept().size(), 1u) << "nothing beside it";
}

TEST_F(DraftCache, AnotherStateIsConvertedAndTheFormerRemoved) {
  const fs::path weights = source_ / "model.safetensors";
  const auto same_time = [&](const fs::path& path, auto change) {
    const auto time = fs::last_write_time(path);
    change();
    fs::last_write_time(path, time);
  };
  const std::vector<std::pair<std::string, std::function<void()>>> changes{
      {"a nanosecond",
       [&] { fs::last_write_time(weights, fs::last_write_time(weights) + std::chrono::nanoseconds(1)); }},
      {"another file of the same size and time",
       [&] {
         same_time(weights, [&] {
           fs::copy_file(weights, temp_ / "new");
           fs::rename(temp_ / "new", weights);
         });
       }},
      {"config", [&] { write_all(source_ / "config.json", read_all(source_ / "config.json") + "\n"); }},
      {"tokenizer",
       [&] {
         const fs::path path = source_ / "tokenizer.json";
         same_time(path, [&] {  // a byte that changes neither size nor time
           std::string text = read_all(path);
           text.at(text.find('\n')) = ' ';
           write_all(path, text);
         });
       }},
      {"a file that was not there", [&] { write_all(source_ / "chat_template.jinja", "{{ messages }}"); }}};
  std::string before = look_up().folder;
  int conversions = 1;
  for (const auto& [what, change] : changes) {
    SCOPED_TRACE(what);
    change();
    const std::string after = look_up().folder;
    EXPECT_EQ(conversions_, ++conversions);
    EXPECT_EQ(why_, "") << "a new one, not a damaged one";
    EXPECT_NE(after, before);
    ASSERT_EQ(kept().size(), 1u);
    EXPECT_EQ(kept().front(), after);
    EXPECT_EQ(look_up().folder, after);
    EXPECT_EQ(conversions_, conversions);
    before = after;
  }
  // The same files elsewhere are another checkpoint, which leaves this one's conversion alone.
  fs::copy(source_, temp_ / "other");
  look_up(temp_ / "other");
  EXPECT_EQ(conversions_, conversions + 1);
  EXPECT_EQ(kept().size(), 2u);
}

TEST_F(DraftCache, ADamagedOneIsMadeAgain) {
  const fs::path folder = look_up().folder;
  const auto whole = contents(folder);
  const auto edit = [&](const char* file, const std::string& from, const std::string& to) {
    std::string text = read_all(folder / file);
    const auto at = text.find(from);
    ASSERT_NE(at, text.npos) << from;
    write_all(folder / file, text.replace(at, from.size(), to));
  };
  const std::vector<std::pair<std::string, std::function<void()>>> faults{
      {"manifest.json", [&] { fs::remove(folder / "manifest.json"); }},
      {"manifest.json", [&] { fs::resize_file(folder / "manifest.json", 100); }},
      {"layout_version", [&] { edit("manifest.json", "\"layout_version\": 2", "\"layout_version\": 1"); }},
      {"dense.safetensors",
       [&] {
         fs::resize_file(folder / "dense.safetensors", fs::file_size(folder / "dense.safetensors") - 4096);
       }},
      {"tokenizer.json", [&] { fs::remove(folder / "tokenizer.json"); }},
      {"tokenizer.json", [&] { edit("tokenizer.json", "\"model\"", "\"modem\""); }},
      {"manifest.json",
       [&] {
         fs::remove_all(folder);
         write_all(folder, "a file");
       }},
  };
  int conversions = 1;
  for (const auto& [names, break_it] : faults) {
    SCOPED_TRACE(names);
    break_it();
    EXPECT_EQ(look_up().folder, folder);
    EXPECT_EQ(conversions_, ++conversions);
    EXPECT_NE(why_.find(names), std::string::npos) << why_;
    EXPECT_EQ(contents(folder), whole);
    look_up();
    EXPECT_EQ(conversions_, conversions);
  }
}

TEST_F(DraftCache, WhatIsHeldOrNotOursStays) {
  HeldDraft former = look_up();
  const fs::path place = fs::path(former.folder).parent_path();
  write_all(place / "notes", "precious");
  fs::create_directory(place / "small-notes");
  fs::last_write_time(source_ / "model.safetensors", fs::file_time_type::clock::now());
  look_up();
  EXPECT_TRUE(fs::exists(fs::path(former.folder) / "manifest.json")) << "in use";
  former.hold.reset();
  look_up();
  EXPECT_EQ(conversions_, 2);
  EXPECT_FALSE(fs::exists(former.folder));
  EXPECT_EQ(read_all(place / "notes"), "precious");
  EXPECT_TRUE(fs::exists(place / "small-notes"));
}

/// Stopped or killed anywhere, the next look-up gives the same folder to the byte, and nothing stays behind.
TEST_F(DraftCache, WhatWasInterruptedIsEndedByTheNext) {
  int asked = 0, went_on = 0;
  events_.stop = [&](int) { return ++asked, false; };
  const auto whole = contents(look_up().folder);
  fs::remove_all(root_);
  const int all = asked;
  ASSERT_GT(all, 10);
  for (const int nth : {1, 2, all / 3, all / 2, all - 1, all}) {
    SCOPED_TRACE(nth);
    asked = 0;
    events_.stop = [&](int) { return ++asked >= nth; };
    events_.converted = {};
    const auto stopped = cached_draft(source_.string(), root_.string(), events_);
    ASSERT_FALSE(stopped.ok());
    ASSERT_EQ(stopped.error().code, ErrorCode::kInterrupted) << stopped.error().text;
    EXPECT_FALSE(fs::exists(folder_));
    EXPECT_EQ(kept().size(), 1u) << "what is done of it";
    events_.stop = {};
    const pid_t child = ::fork();
    if (child == 0) {
      events_.progress = [n = 0](std::uint64_t, std::uint64_t) mutable {
        if (++n == 3) ::kill(::getpid(), SIGKILL);
      };
      const auto killed = cached_draft(source_.string(), root_.string(), events_);
      ::_exit(killed.ok() ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status));
    EXPECT_EQ(kept().size(), 1u);
    events_.converted = [&](const model::ConvertReport& report) {
      went_on += !report.notes.empty() && report.notes.back().starts_with("went on") ? 1 : 0;
    };
    EXPECT_EQ(contents(look_up().folder), whole);
    EXPECT_EQ(kept().size(), 1u) << "something stayed";
    fs::remove_all(root_);
  }
  EXPECT_GT(went_on, 0) << "files that were whole are taken over";
}

TEST_F(DraftCache, ManyAtOnceConvertOnce) {
  std::atomic<int> conversions{0};
  events_.converting = [&](const std::string&, const model::ConvertEstimate&, const std::string&) -> Status {
    ++conversions;
    return {};
  };
  std::vector<std::string> folders(6);
  std::vector<std::thread> threads;
  for (std::string& folder : folders)
    threads.emplace_back([&] {
      const auto held = cached_draft(source_.string(), root_.string(), events_);
      folder = held.ok() ? held->folder : held.error().text;
    });
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(conversions, 1);
  for (const std::string& folder : folders) EXPECT_EQ(folder, folders.front());
  EXPECT_TRUE(fs::exists(fs::path(folders.front()) / "manifest.json")) << folders.front();
}

TEST_F(DraftCache, OneThatWaitsSaysSoAndCanBeStopped) {
  const fs::path place = fs::path(look_up().folder).parent_path();
  const Fd other(::open(place.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  ASSERT_EQ(::flock(other.get(), LOCK_EX), 0);
  int told = 0, asked = 0;
  events_.waiting = [&] { ++told; };
  events_.stop = [&](int) { return ++asked == 3; };
  const auto stopped = cached_draft(source_.string(), root_.string(), events_);
  ASSERT_FALSE(stopped.ok());
  EXPECT_EQ(stopped.error().code, ErrorCode::kInterrupted);
  EXPECT_EQ(told, 1);
  EXPECT_EQ(asked, 3);
  events_.stop = [&](int) {
    ::flock(other.get(), LOCK_UN);
    return false;
  };
  look_up();
  EXPECT_EQ(told, 2);
  EXPECT_EQ(conversions_, 1);
}

TEST_F(DraftCache, RefusalsWriteNothing) {
  events_.converting = [](const std::string&, const model::ConvertEstimate& what, const std::string&) {
    EXPECT_EQ(what.vocab, 4096u);
    return Status(invalid("not that one"));
  };
  const auto refused = cached_draft(source_.string(), root_.string(), events_);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().text, "not that one");
  EXPECT_TRUE(kept().empty());

  write_all(temp_ / "file", "");
  const auto no_root = cached_draft(source_.string(), (temp_ / "file" / "drafts").string(), events_);
  ASSERT_FALSE(no_root.ok());
  EXPECT_EQ(no_root.error().code, ErrorCode::kIo);
  EXPECT_NE(no_root.error().text.find("file/drafts"), std::string::npos) << no_root.error().text;

  write_all(source_ / "config.json", "{}");
  const auto broken = cached_draft(source_.string(), root_.string(), events_);
  ASSERT_FALSE(broken.ok());
  EXPECT_NE(broken.error().text.find("config.json"), std::string::npos) << broken.error().text;
  EXPECT_FALSE(cached_draft((temp_ / "none").string(), root_.string(), events_).ok());
}

TEST_F(DraftCache, ADamagedConversionThatIsInUseIsLeftAlone) {
  HeldDraft held = look_up();
  const fs::path manifest = fs::path(held.folder) / "manifest.json";
  const std::string whole = read_all(manifest);
  write_all(manifest, "{");
  const auto refused = cached_draft(source_.string(), root_.string(), events_);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kUnavailable);
  EXPECT_NE(refused.error().text.find(held.folder), std::string::npos);
  EXPECT_EQ(read_all(manifest), "{") << "nothing was touched";
  held = {};
  EXPECT_EQ(read_all(fs::path(look_up().folder) / "manifest.json"), whole);
}

}  // namespace
}  // namespace wisp::cli
