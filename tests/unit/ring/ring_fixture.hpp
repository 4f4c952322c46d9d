#pragma once
#include <sys/mman.h>

#include <memory>

#include "ring/spsc_ring.hpp"
#include "shm/desk.hpp"

namespace wisp::testing {

/// A desk in anonymous shared memory: children made by fork write the same bytes.
class TestDesk {
 public:
  explicit TestDesk(shm::StageId id, std::uint64_t arena_bytes = 4096, std::uint64_t extra = 4096) {
    shm::DeskPlan plan;
    for (auto& a : plan.arena_bytes) a = arena_bytes;
    plan.extra_bytes = extra;
    size_ = shm::desk_size(id, plan);
    base_ = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    shm::init_desk(base_, id, plan, 1, 1);
  }
  ~TestDesk() { ::munmap(base_, size_); }
  TestDesk(const TestDesk&) = delete;
  TestDesk& operator=(const TestDesk&) = delete;
  shm::Desk* get() const { return static_cast<shm::Desk*>(base_); }

 private:
  void* base_;
  std::uint64_t size_;
};

/// The two desks and bells of edge 5 (compute -> loader): the busiest one.
struct TestEdge {
  TestDesk compute{shm::StageId::kCompute};
  TestDesk loader{shm::StageId::kLoader};
  ring::Doorbell compute_bell{::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)};
  ring::Doorbell loader_bell{::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)};
  ~TestEdge() {
    ::close(compute_bell.fd());
    ::close(loader_bell.fd());
  }
  ring::Producer producer() {
    return {compute.get(), loader.get(), shm::EdgeId::kComputeLoader, loader_bell};
  }
  ring::Consumer consumer() {
    return {loader.get(), compute.get(), shm::EdgeId::kComputeLoader, compute_bell};
  }
};

/// A payload whose bytes follow from its number.
inline std::vector<std::byte> payload_of(std::uint64_t n) {
  std::vector<std::byte> p(n * 37 % 300);
  for (std::size_t i = 0; i < p.size(); ++i) p[i] = static_cast<std::byte>(n + i);
  return p;
}

}  // namespace wisp::testing
