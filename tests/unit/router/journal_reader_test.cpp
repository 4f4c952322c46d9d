#include "shm/journal_reader.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "journal_memory.hpp"

namespace wisp::router {
namespace {

using shm::Finish;
using shm::JournalReader;
using Ids = std::vector<std::uint32_t>;

constexpr std::uint32_t kRecords = 2, kCapacity = 96, kRecord = 1;
constexpr std::uint64_t kRequest = 42;

class JournalReaderTest : public ::testing::Test {
 protected:
  JournalReaderTest() { writer_.attach(memory_.get(), 64, 7); }
  shm::JournalRecord& record() { return *memory_.get()->record(kRecord); }
  std::optional<Ids> ids(std::uint64_t from, std::size_t n, std::uint64_t request = kRequest) const {
    Ids out(n);
    return reader_.ids(kRecord, request, from, out) ? std::optional(out) : std::nullopt;
  }
  std::optional<Ids> pages(std::size_t n, std::uint64_t request = kRequest) const {
    Ids out(n);
    return reader_.pages(kRecord, request, out) ? std::optional(out) : std::nullopt;
  }

  testing::JournalMemory memory_{kRecords, kCapacity};
  JournalWriter writer_;
  JournalReader reader_{memory_.get()};
};

TEST_F(JournalReaderTest, SaysWhatWasWritten) {
  EXPECT_FALSE(reader_.find(kRequest));
  testing::open(writer_, kRecord, kRequest, 5, 8);
  EXPECT_EQ(reader_.find(kRequest), kRecord);
  EXPECT_EQ(reader_.requests(), (std::vector<std::uint64_t>{0, kRequest}));
  EXPECT_FALSE(reader_.state(kRecord, kRequest)->admitted);
  EXPECT_FALSE(pages(0)) << "of a request that has none yet";
  writer_.admit(kRecord, Ids{9, 4});
  writer_.commit_tokens(kRecord, Ids{100, 101}, Finish::kNone, 1);
  writer_.set_kv_len(kRecord, 6);
  const auto s = reader_.state(kRecord, kRequest);
  ASSERT_TRUE(s);
  EXPECT_EQ(s->commit.length, 2u);
  EXPECT_EQ(s->prompt_tokens, 5u);
  EXPECT_EQ(s->max_tokens, 8u);
  EXPECT_EQ(s->kv_len, 6u);
  EXPECT_EQ(s->kv_generation, 7u);
  EXPECT_TRUE(s->admitted);
  EXPECT_EQ(s->length(), 7u);
  EXPECT_EQ(ids(0, 7), (Ids{10, 11, 12, 13, 14, 100, 101}));
  EXPECT_EQ(ids(6, 1), (Ids{101}));
  EXPECT_EQ(pages(1), (Ids{9}));
  EXPECT_EQ(pages(2), (Ids{9, 4}));
  EXPECT_FALSE(pages(3)) << "it has two";
  EXPECT_EQ(reader_.params(kRecord, kRequest)->max_tokens, 8u);
  writer_.fail(kRecord, std::string(300, 'e'), 2);
  EXPECT_EQ(reader_.error(kRecord, kRequest), std::string(255, 'e'));
  EXPECT_EQ(reader_.state(kRecord, kRequest)->commit.finish, Finish::kError);
}

TEST_F(JournalReaderTest, SaysNothingOfAnother) {
  testing::open(writer_, kRecord, kRequest, 5, 8);
  writer_.admit(kRecord, Ids{9});
  const auto nothing = [&](std::uint64_t request) {
    return !reader_.state(kRecord, request) && !reader_.params(kRecord, request) &&
           !reader_.error(kRecord, request) && !ids(0, 5, request) && !pages(1, request);
  };
  EXPECT_FALSE(nothing(kRequest));
  EXPECT_TRUE(nothing(kRequest + 1));
  record().generation.fetch_add(1);
  EXPECT_TRUE(nothing(kRequest)) << "it is being opened";
  EXPECT_FALSE(reader_.find(kRequest));
  record().generation.fetch_add(1);
  EXPECT_FALSE(nothing(kRequest));
  writer_.recycle(kRecord);
  EXPECT_TRUE(nothing(kRequest));
}

TEST_F(JournalReaderTest, BelievesNoNumberThatCannotBe) {
  testing::open(writer_, kRecord, kRequest, 5, 8);
  writer_.admit(kRecord, Ids{9});
  EXPECT_FALSE(ids(kCapacity - 4, 5));
  EXPECT_FALSE(ids(~std::uint64_t{0} - 2, 5));
  record().page_count = memory_.get()->pages_per_record + 1;
  EXPECT_FALSE(pages(1));
  record().page_count = 1;
  record().params.eos_count = shm::kMaxEos + 1;
  EXPECT_FALSE(reader_.params(kRecord, kRequest));
  record().params.prompt_tokens = kCapacity + 1;
  EXPECT_FALSE(reader_.state(kRecord, kRequest));
  record().params.prompt_tokens = ~0u;
  EXPECT_FALSE(reader_.state(kRecord, kRequest));
}

/// A record that is opened, written, ended and opened anew without a pause: whatever is believed of a
/// request is of that request alone.
TEST_F(JournalReaderTest, BelievesNothingThatWasTorn) {
  constexpr std::uint32_t kBelieved = 500'000, kPrompt = 60, kAnswer = 30, kPagesOfIt = 6;
  constexpr std::uint64_t kMostLooks = 100'000'000;
  std::atomic<bool> over{false};
  std::thread router([&] {
    for (std::uint32_t id = 1; !over.load(); ++id) {
      shm::RequestParams p;
      p.prompt_tokens = kPrompt;
      p.max_tokens = kAnswer;
      p.seed = id;
      p.created_s = id;
      writer_.open(kRecord, id, p, Ids(kPrompt, id), 1);
      writer_.admit(kRecord, Ids(kPagesOfIt, id));
      writer_.commit_tokens(kRecord, Ids(kAnswer, id), Finish::kNone, 1);
      writer_.fail(kRecord, std::string(200, static_cast<char>('a' + id % 26)), 1);
      writer_.recycle(kRecord);
    }
  });
  std::uint32_t believed = 0;
  const auto all_are = [&](const auto& range, std::uint64_t value) {
    ++believed;
    for (const auto v : range) EXPECT_EQ(static_cast<std::uint64_t>(v), value);
  };
  std::uint64_t looks = 0;
  for (; looks < kMostLooks && believed < kBelieved && !HasFailure(); ++looks) {
    const auto id = static_cast<std::uint32_t>(reader_.request(kRecord));
    if (id == 0) continue;
    if (const auto p = reader_.params(kRecord, id)) all_are(std::initializer_list{p->seed, p->created_s}, id);
    const auto s = reader_.state(kRecord, id);
    if (!s) continue;
    EXPECT_EQ(s->prompt_tokens, kPrompt);
    if (const auto i = ids(0, s->length(), id)) all_are(*i, id);
    if (const auto i = s->admitted ? pages(kPagesOfIt, id) : std::nullopt) all_are(*i, id);
    const auto e = s->commit.finish == Finish::kError ? reader_.error(kRecord, id) : std::nullopt;
    if (e) all_are(*e, 'a' + id % 26);
  }
  over = true;
  router.join();
  EXPECT_GE(believed, kBelieved) << looks << " looks";
}

}  // namespace
}  // namespace wisp::router
