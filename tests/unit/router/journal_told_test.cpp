#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "journal_memory.hpp"
#include "rig.hpp"
#include "shm/journal_reader.hpp"

/// Log-probabilities in the journal: their room, and that they are true with the commit word and not before.
namespace wisp::router {
namespace {

using shm::Finish;
using shm::Journal;
using testing::Rig;
using Words = std::vector<std::uint32_t>;

constexpr std::uint32_t kRecords = 3, kCapacity = 100, kRoom = 21;

shm::RequestParams params(std::uint32_t prompt, std::uint32_t max_tokens, std::uint32_t logprobs) {
  shm::RequestParams p;
  p.prompt_tokens = prompt;
  p.max_tokens = max_tokens;
  p.logprobs = logprobs;
  return p;
}

/// Words that name request, token and place.
Words words(std::uint32_t request, std::uint32_t first, std::uint32_t tokens, std::uint32_t asked) {
  Words out;
  for (std::uint32_t t = 0; t < tokens; ++t)
    for (std::uint32_t w = 0; w < shm::logprob_words(asked); ++w)
      out.push_back(request << 20 | (first + t) << 8 | w);
  return out;
}

TEST(JournalTold, TakesNoByteWhereNoneAreAskedFor) {
  const std::uint64_t ids = sizeof(shm::JournalRecord) + (kCapacity + kCapacity / 16 + 1) * 4;
  EXPECT_EQ(shm::journal_size(kRecords, kCapacity), 4096 + kRecords * ((ids + 4095) / 4096 * 4096));
  EXPECT_EQ(shm::journal_size(kRecords, kCapacity, 0), shm::journal_size(kRecords, kCapacity));
  const std::uint64_t most = ids + kCapacity * 41 * 4;
  EXPECT_EQ(shm::journal_size(kRecords, kCapacity, 21), 4096 + kRecords * ((most + 4095) / 4096 * 4096));
  EXPECT_EQ(shm::logprob_words(0), 0u);
  EXPECT_EQ(shm::logprob_words(1), 1u);
}

/// Every record filled to its last position: nothing lies on anything else, and a new life finds all of it.
TEST(JournalTold, FillsItsRoomAndNoOther) {
  testing::JournalMemory memory(kRecords, kCapacity, kRoom);
  Journal* journal = memory.get();
  EXPECT_EQ(journal->stride * kRecords + 4096, memory.size());
  JournalWriter writer;
  writer.attach(journal, 64, 1);
  const std::uint32_t asked[kRecords] = {21, 1, 6};
  Words prompt{3}, pages{1, 2, 3, 4, 5, 6, 7};
  for (std::uint32_t i = 0; i < kRecords; ++i) {
    writer.open(i, i + 1, params(1, kCapacity - 1, asked[i]), prompt, 1);
    writer.admit(i, pages);
  }
  for (std::uint32_t n = 0; n < kCapacity - 1; n += 3)
    for (std::uint32_t i = 0; i < kRecords; ++i)
      writer.commit_tokens(i, Words{n, n, n}, n + 3 < kCapacity - 1 ? Finish::kNone : Finish::kLength, 1,
                           words(i + 1, n, 3, asked[i]));
  EXPECT_LE(reinterpret_cast<std::byte*>(journal->told(journal->record(kRecords - 1), kCapacity)),
            reinterpret_cast<std::byte*>(journal) + memory.size());
  JournalWriter next;
  EXPECT_TRUE(next.attach(journal, 64, 1).empty());
  shm::JournalReader reader(journal);
  for (std::uint32_t i = 0; i < kRecords; ++i) {
    const auto state = reader.state(i, i + 1);
    ASSERT_TRUE(state && state->commit.length == kCapacity - 1);
    const std::uint32_t each = shm::logprob_words(asked[i]);
    Words got(std::size_t{kCapacity - 1} * each);
    ASSERT_TRUE(reader.told(i, i + 1, asked[i], 0, got));
    EXPECT_EQ(got, words(i + 1, 0, kCapacity - 1, asked[i]));
    Words some(5 * std::size_t{each});
    ASSERT_TRUE(reader.told(i, i + 1, asked[i], 40, some));
    EXPECT_EQ(some, words(i + 1, 40, 5, asked[i]));
    EXPECT_TRUE(std::equal(pages.begin(), pages.end(), next.pages(i).begin())) << "pages lie before them";
    EXPECT_EQ(next.ids(i)[kCapacity - 1], kCapacity - 4);
  }
}

TEST(JournalTold, SaysNothingThatCannotBe) {
  testing::JournalMemory memory(kRecords, kCapacity, 3), none(kRecords, kCapacity);
  JournalWriter writer;
  writer.attach(memory.get(), 64, 1);
  writer.open(1, 42, params(5, 8, 3), Words{1, 2, 3, 4, 5}, 1);
  shm::JournalReader reader(memory.get());
  Words two(2 * shm::logprob_words(3)), odd(7);
  EXPECT_TRUE(reader.told(1, 42, 3, 0, two));
  EXPECT_FALSE(reader.told(1, 43, 3, 0, two)) << "another request";
  EXPECT_FALSE(reader.told(1, 42, 0, 0, {})) << "nothing is told";
  EXPECT_FALSE(reader.told(1, 42, 4, 0, odd)) << "more than there is room for";
  EXPECT_FALSE(reader.told(1, 42, 3, 0, odd)) << "no whole tokens";
  EXPECT_FALSE(reader.told(1, 42, 3, kCapacity - 1, two)) << "past the end";
  EXPECT_FALSE(reader.told(1, 42, 3, ~0u, two));
  memory.get()->record(1)->generation.fetch_add(1);
  EXPECT_FALSE(reader.told(1, 42, 3, 0, two)) << "it is being opened";
  JournalWriter other;
  other.attach(none.get(), 64, 1);
  other.open(0, 7, params(5, 8, 0), Words{1, 2, 3, 4, 5}, 1);
  EXPECT_FALSE(shm::JournalReader(none.get()).told(0, 7, 1, 0, std::span(two).first(1)));
  // A record that asks for more than its journal holds is damaged.
  none.get()->record(0)->params.logprobs = 1;
  shm::JournalRecord* r = none.get()->record(0);
  r->commit.store(shm::CommitWord{0, Finish::kNone, shm::journal_crc(r, 0)}.pack());
  EXPECT_FALSE(shm::journal_record_valid(none.get(), r, 64));
}

/// As BelievesNothingThatWasTorn: what is believed of a request's tokens is that request's. Much is told, so
/// that a look mostly has the next request under its hands.
TEST(JournalTold, IsBelievedOnlyOfItsRequest) {
  constexpr std::uint32_t kBelieved = 10'000, kTokens = 90;
  constexpr std::size_t kEach = shm::logprob_words(kRoom);
  testing::JournalMemory memory(kRecords, kCapacity, kRoom);
  JournalWriter writer;
  writer.attach(memory.get(), 64, 1);
  std::atomic<bool> over{false};
  std::thread router([&] {
    const Words prompt{1, 2};
    for (std::uint32_t id = 1; !over.load(); ++id) {
      writer.open(1, id, params(2, kTokens, kRoom), prompt, 1);
      const Words ids(kTokens / 9, id), told(ids.size() * kEach, id);
      for (int n = 0; n < 9; ++n) writer.commit_tokens(1, ids, Finish::kNone, 1, told);
      writer.recycle(1);
    }
  });
  shm::JournalReader reader(memory.get());
  std::uint32_t believed = 0;
  for (std::uint64_t looks = 0; looks < 100'000'000 && believed < kBelieved && !HasFailure(); ++looks) {
    const std::uint64_t id = reader.request(1);
    const auto state = id != 0 ? reader.state(1, id) : std::nullopt;
    if (!state || state->commit.length == 0) continue;
    Words got(state->commit.length * kEach);
    if (!reader.told(1, id, kRoom, 0, got)) continue;
    ++believed;
    EXPECT_EQ(std::count(got.begin(), got.end(), static_cast<std::uint32_t>(id)),
              static_cast<std::ptrdiff_t>(got.size()));
  }
  over = true;
  router.join();
  EXPECT_GE(believed, kBelieved);
}

// --- from compute's message into the journal ---

Words told_of(Rig& rig, std::uint64_t request) {
  const shm::JournalRecord* r = rig.record(request);
  const std::uint32_t asked = r->params.logprobs;
  Words out;
  for (std::uint32_t n = 0; n < rig.committed(request).length; ++n) {
    const std::uint32_t* first = rig.journal().told(r, n);
    out.insert(out.end(), first, first + shm::logprob_words(asked));
  }
  return out;
}

/// With the scripted compute's words: of the token and its place.
Words expected(const std::vector<std::uint32_t>& answer, std::uint32_t asked) {
  Words out;
  for (std::uint32_t n = 0; n < answer.size(); ++n)
    for (std::uint32_t w = 0; w < shm::logprob_words(asked); ++w) out.push_back(Rig::told_word(answer[n], w));
  return out;
}

/// Requests that ask for much, little and nothing in the same steps, with drafts that stand or do not, and
/// lives of the router cut short: each has its own.
TEST(RouterTold, EveryTokenHasItsOwn) {
  for (const char* speculate : {"off", "3", "7"}) {
    Rig rig({.parallel = 4, .chunk = 16, .speculate = speculate, .logprobs = kRoom});
    const std::uint32_t asked[] = {21, 0, 1, 3};
    std::vector<std::uint64_t> requests;
    std::vector<Words> prompts;
    for (std::uint32_t i = 0; i < 4; ++i) {
      prompts.push_back(Words(5 + 9 * i, i));
      requests.push_back(rig.submit(prompts.back(), 30 + 7 * i, asked[i]));
    }
    for (int turn = 0; turn < 3000; ++turn) {
      if (turn % 40 == 39) rig.start();
      rig.router().poll();
      rig.hear();
      for (const Rig::Question& q : rig.questions()) rig.answer(q, DraftSource::kLongMatch, 15, 2);
      rig.compute();
    }
    for (std::uint32_t i = 0; i < 4; ++i) {
      const Words want = Rig::expected(prompts[i], 30 + 7 * i);
      ASSERT_EQ(rig.answer(requests[i]), want);
      EXPECT_EQ(told_of(rig, requests[i]), expected(want, asked[i])) << speculate << ", request " << i;
    }
  }
}

TEST(RouterTold, AMessageThatLacksThemCommitsNothing) {
  Rig rig({.parallel = 1, .logprobs = 6});
  const auto request = rig.submit({1, 2, 3}, 20, 6);
  for (const Rig::Told damage : {Rig::Told::kCut, Rig::Told::kTooMany, Rig::Told::kOthers}) {
    rig.told = damage;
    rig.router().poll();
    ASSERT_TRUE(rig.compute());
    rig.router().poll();
    EXPECT_EQ(rig.committed(request).length, 0u) << static_cast<int>(damage);
  }
  rig.told = Rig::Told::kRight;
  ASSERT_TRUE(rig.compute());  // the step was made again
  rig.router().poll();
  EXPECT_EQ(rig.committed(request).length, 1u);
  EXPECT_EQ(told_of(rig, request), expected(Rig::expected({1, 2, 3}, 1), 6));
}

TEST(RouterTold, ARequestForMoreThanThereIsRoomForIsNotTakenUp) {
  Rig rig({.logprobs = 3});
  const auto request = rig.submit({1, 2, 3}, 20, 4);
  rig.router().poll();
  EXPECT_EQ(rig.record(request), nullptr);
  EXPECT_FALSE(rig.compute());
}

}  // namespace
}  // namespace wisp::router
