#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <new>
#include <numeric>
#include <random>

#include "../page_faults.hpp"
#include "rig.hpp"
#include "services/loader/loader_stage.hpp"
#include "services/loader/read_queue.hpp"

namespace {
thread_local std::uint64_t allocations = 0;
}

void* operator new(std::size_t n) {
  ++allocations;
  if (void* p = std::malloc(n == 0 ? 1 : n)) return p;
  throw std::bad_alloc();
}
void operator delete(void* p) noexcept {
  std::free(p);
}
void operator delete(void* p, std::size_t) noexcept {
  std::free(p);
}

namespace wisp::loader {
namespace {

using testing::fewest_faults;
using testing::page_faults;

TEST(ReadQueueMemory, NothingIsAllocatedInSteadyState) {
  constexpr std::uint64_t kExtent = 65536, kExtents = 64;
  const ScratchDir dir;
  std::ofstream(dir.path + "/file") << std::string(kExtent * kExtents, 'x');
  auto file = open_model_file(dir.path + "/file");
  ASSERT_TRUE(file.ok());
  BackendSetup setup;
  setup.io = "auto";
  auto backend = make_backend(std::move(setup));
  ASSERT_TRUE(backend.ok());
  const auto desk = std::make_unique<shm::Desk>();
  ReadQueue queue(**backend, *desk);
  auto* const memory = static_cast<std::byte*>(std::aligned_alloc(4096, kExtent * kExtents));
  const auto round = [&](std::uint64_t seed) {
    std::uint64_t done = 0;
    for (std::uint64_t i = 0; i < kExtents; ++i) {
      const std::uint64_t at = i * (2 * seed + 1) % kExtents;  // another order each time
      queue.add({&*file, at * kExtent, kExtent, memory + at * kExtent, at});
    }
    while (done < kExtents) {
      queue.pump();
      pollfd p{(*backend)->poll_fd(), POLLIN, 0};
      if (!(*backend)->ready() && !queue.has_done()) ::poll(&p, 1, 1000);
      queue.reap();
      while (auto d = queue.take_done()) {
        EXPECT_FALSE(d->error);
        ++done;
      }
    }
  };
  for (std::uint64_t i = 0; i < 4; ++i) round(i);
  const std::uint64_t before = allocations;
  for (std::uint64_t i = 4; i < 40; ++i) round(i);
  EXPECT_EQ(allocations - before, 0u);
  std::free(memory);
}

// Fewer touches than a ring has room for: its pages are there before anybody has written them. The shadow
// that ThreadSanitizer keeps of them is not.
#ifdef __SANITIZE_THREAD__
constexpr int kWarm = 1200;
#else
constexpr int kWarm = 600;
#endif

/// What the loader's thread took in steady state.
struct Taken {
  std::uint64_t allocations = 0, faults = 0;
};

/// The whole stage over touches with hits, misses and evictions, answers and sleeps, and saves of what it
/// learned.
Taken steady_state(unsigned seed) {
  const ScratchDir state;
  ::setenv(kLearnedVariable, (state.path + "/learned").c_str(), 1);
  TinyModel model;
  Rig rig(model, 12);
  const bool started = rig.start().ok() && rig.load_dense();
  ::unsetenv(kLearnedVariable);
  rig.desk(shm::StageId::kCompute)->waits_for.store(static_cast<std::uint32_t>(shm::WaitFor::kExpert));
  EXPECT_TRUE(started && rig.until([&] { return rig.loader().memory_settled(); }));
  if (::testing::Test::HasFailure()) return {};
  std::mt19937 rng(seed);
  Taken taken;
  std::uint64_t touches = 0;
  std::vector<std::uint32_t> experts(16);
  std::iota(experts.begin(), experts.end(), 0);
  const auto one = [&] {
    std::shuffle(experts.begin(), experts.end(), rng);
    rig.touch(static_cast<std::uint32_t>(touches++ % 3), {experts.begin(), experts.begin() + 4});
    std::size_t answers = 0;
    while (answers < 4) {
      const std::uint64_t allocated = allocations, faulted = page_faults(RUSAGE_THREAD);
      if (!rig.loader().poll()) rig.loader().sleep(rig.context());
      taken.allocations += allocations - allocated;
      taken.faults += page_faults(RUSAGE_THREAD) - faulted;
      answers += rig.take().size();
    }
  };
  for (int i = 0; i < kWarm; ++i) one();
  taken = {};
  const std::uint64_t reads = rig.count(stats::Counter::kReads);
  for (int i = 0; i < 1200; ++i) one();
  EXPECT_GT(rig.count(stats::Counter::kReads), reads + 1200) << "it misses";
  return taken;
}

TEST(LoaderMemory, NothingIsAllocatedAndNoPageIsNewInSteadyState) {
  const unsigned seed = std::random_device{}();
  EXPECT_EQ(fewest_faults([&] {
              const Taken taken = steady_state(seed);
              EXPECT_EQ(taken.allocations, 0u) << "seed " << seed;
              return taken.faults;
            }),
            0u)
      << "seed " << seed;
}

}  // namespace
}  // namespace wisp::loader
