#include <gtest/gtest.h>
#include <poll.h>

#include <cstdlib>
#include <fstream>
#include <new>

#include "rig.hpp"
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

}  // namespace
}  // namespace wisp::loader
