#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <thread>

#include "ring_fixture.hpp"

namespace wisp::ring {
namespace {

using service::CrashPoint;
using testing::payload_of;
using testing::TestEdge;

constexpr std::uint32_t kEdge = shm::index(shm::EdgeId::kComputeLoader);

Message numbered(std::uint64_t n, const std::vector<std::byte>& payload) {
  Message m;
  m.kind = Kind::kTouch;
  m.aux = n;
  m.request = n * 3 + 1;
  m.payload = payload;
  return m;
}

/// Whether the front is message n with the bytes that belong to it.
void expect_message(Consumer& in, std::uint64_t n) {
  const Descriptor* d = in.front();
  ASSERT_NE(d, nullptr);
  ASSERT_EQ(d->aux, n);
  ASSERT_EQ(d->request, n * 3 + 1);
  const auto want = payload_of(n);
  const auto got = in.payload(*d);
  ASSERT_TRUE(std::equal(got.begin(), got.end(), want.begin(), want.end())) << "payload of message " << n;
}

TEST(SpscRing, CarriesMessagesInOrderThroughManyLaps) {
  TestEdge edge;
  Producer out = edge.producer();
  Consumer in = edge.consumer();
  std::uint64_t sent = 0, taken = 0;
  while (taken < 20000) {
    while (sent < 20000 && out.publish(numbered(sent, payload_of(sent)))) ++sent;
    // Leaves a few behind, so that the arena wraps at every fill level.
    const std::uint64_t leave = sent == 20000 ? 0 : sent % 5;
    while (taken + leave < sent) {
      expect_message(in, taken++);
      in.pop();
    }
    ASSERT_FALSE(::testing::Test::HasFailure());
  }
  EXPECT_TRUE(in.empty());
}

TEST(SpscRing, FullRingRefusesAndKeepsWhatItHolds) {
  TestEdge edge;
  Producer out = edge.producer();
  const std::uint32_t slots = shm::ends_of(shm::EdgeId::kComputeLoader).slots;
  for (std::uint64_t n = 0; n < slots; ++n) ASSERT_TRUE(out.publish(numbered(n, {})));
  EXPECT_FALSE(out.publish(numbered(slots, {})));
  Consumer in = edge.consumer();
  EXPECT_EQ(in.front()->aux, 0u);
  in.pop();
  EXPECT_TRUE(out.publish(numbered(slots, {})));
}

TEST(SpscRing, ArenaIsNotReusedBeforeTheHeadHasPassed) {
  TestEdge edge;
  Producer out = edge.producer();
  const std::vector<std::byte> big(3000, std::byte{7});
  ASSERT_TRUE(out.publish(numbered(0, big)));
  EXPECT_FALSE(out.publish(numbered(1, big)));
  const std::vector<std::byte> small(900, std::byte{9});
  ASSERT_TRUE(out.publish(numbered(1, small)));
  Consumer in = edge.consumer();
  EXPECT_TRUE(std::ranges::all_of(in.payload(*in.front()), [](std::byte b) { return b == std::byte{7}; }));
  in.pop();
  EXPECT_TRUE(out.publish(numbered(2, std::vector<std::byte>(2900, std::byte{1}))));
  EXPECT_TRUE(std::ranges::all_of(in.payload(*in.front()), [](std::byte b) { return b == std::byte{9}; }));
}

TEST(SpscRing, LyingDescriptorReadsNothingOutsideTheArena) {
  TestEdge edge;
  Producer out = edge.producer();
  ASSERT_TRUE(out.publish(numbered(0, payload_of(5))));
  auto* d = reinterpret_cast<Descriptor*>(reinterpret_cast<char*>(edge.compute.get()) +
                                          edge.compute.get()->edges[kEdge].ring_offset);
  d->arena_off = 0xfffffff0u;
  Consumer in = edge.consumer();
  EXPECT_TRUE(in.payload(*in.front()).empty());
  d->arena_off = 64;
  d->arena_len = 0xffffffffu;
  EXPECT_TRUE(in.payload(*in.front()).empty());
}

/// Two threads on one mapping: what ThreadSanitizer can see of the ordering.
TEST(SpscRing, TwoThreads) {
  TestEdge edge;
  constexpr std::uint64_t kMessages = 50000;
  std::thread producer([&] {
    Producer out = edge.producer();
    for (std::uint64_t n = 0; n < kMessages; ++n) {
      const auto payload = payload_of(n);
      while (!out.publish(numbered(n, payload))) std::this_thread::yield();
    }
  });
  Consumer in = edge.consumer();
  for (std::uint64_t n = 0; n < kMessages; ++n) {
    while (in.empty()) std::this_thread::yield();
    expect_message(in, n);
    in.pop();
    if (::testing::Test::HasFailure()) break;
  }
  producer.join();
}

/// A sleeper that publishes `parked`, looks once more and then blocks misses no message, whatever the
/// interleaving.
TEST(SpscRing, ParkedConsumerIsAlwaysWoken) {
  TestEdge edge;
  constexpr std::uint64_t kMessages = 20000;
  std::thread producer([&] {
    Producer out = edge.producer();
    for (std::uint64_t n = 0; n < kMessages; ++n)
      while (!out.publish(numbered(n, {}))) std::this_thread::yield();
  });
  Consumer in = edge.consumer();
  shm::Desk* desk = edge.loader.get();
  for (std::uint64_t n = 0; n < kMessages;) {
    if (in.front() != nullptr) {
      ASSERT_EQ(in.front()->aux, n++);
      in.pop();
      continue;
    }
    desk->parked.store(1, std::memory_order_seq_cst);
    if (in.empty()) {
      pollfd p{edge.loader_bell.fd(), POLLIN, 0};
      ASSERT_EQ(::poll(&p, 1, 60000), 1) << "asleep although message " << n << " is there";
    }
    edge.loader_bell.silence();
    desk->parked.store(0, std::memory_order_seq_cst);
  }
  producer.join();
}

/// Runs `body` in a child armed to die at `point`; returns whether it died there.
template <class Body>
bool dies_at(CrashPoint point, std::uint32_t countdown, Body body) {
  const pid_t child = ::fork();
  if (child == 0) {
    service::detail::Armed armed;
    armed.point = static_cast<std::uint32_t>(point);
    armed.countdown = countdown;
    service::detail::armed = &armed;
    body();
    ::_exit(0);
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0) {
  }
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
}

class ProducerDeath : public ::testing::TestWithParam<CrashPoint> {};

/// A producer dies around the commit of each of 200 messages; its next life continues and nothing is lost,
/// doubled or torn.
TEST_P(ProducerDeath, LosesNothing) {
  TestEdge edge;
  std::uint64_t taken = 0;
  const auto produce = [&] {
    Producer out = edge.producer();
    // What a stage does: the next message follows from what is committed.
    for (std::uint64_t n = out.tail(); n < 200; ++n)
      if (!out.publish(numbered(n, payload_of(n)))) return;
  };
  std::uint32_t deaths = 0;
  for (std::uint32_t life = 0; taken < 200; ++life) {
    deaths += dies_at(GetParam(), 1 + life % 4, produce) ? 1 : 0;
    Consumer in = edge.consumer();
    while (in.front() != nullptr) {
      expect_message(in, taken++);
      in.pop();
    }
    ASSERT_FALSE(::testing::Test::HasFailure());
    ASSERT_LT(life, 2000u);
  }
  EXPECT_EQ(taken, 200u);
  EXPECT_GE(deaths, 20u);
}
INSTANTIATE_TEST_SUITE_P(CrashPoints, ProducerDeath,
                         ::testing::Values(CrashPoint::kAfterFill, CrashPoint::kAfterSeq,
                                           CrashPoint::kBeforeRing));

/// A consumer that dies between effect and head sees the message again: at least once.
TEST(ConsumerDeath, SeesTheMessageAgain) {
  TestEdge edge;
  Producer out = edge.producer();
  for (std::uint64_t n = 0; n < 10; ++n) ASSERT_TRUE(out.publish(numbered(n, payload_of(n))));
  EXPECT_TRUE(dies_at(CrashPoint::kAfterEffectBeforeHead, 4, [&] {
    Consumer in = edge.consumer();
    while (in.front() != nullptr) in.pop();
  }));
  Consumer in = edge.consumer();
  EXPECT_EQ(in.head(), 3u);
  expect_message(in, 3);
}

/// Published, not rung: the sleeper stays asleep until somebody rings; a ring after the restart brings the
/// message.
TEST(ProducerDeath, BetweenPublishingAndRingingNeedsAReRing) {
  TestEdge edge;
  edge.loader.get()->parked.store(1);
  EXPECT_TRUE(dies_at(CrashPoint::kBeforeRing, 1, [&] {
    Producer out = edge.producer();
    out.publish(numbered(0, {}));
  }));
  pollfd p{edge.loader_bell.fd(), POLLIN, 0};
  EXPECT_EQ(::poll(&p, 1, 0), 0);
  EXPECT_NE(edge.consumer().front(), nullptr);
}

}  // namespace
}  // namespace wisp::ring
