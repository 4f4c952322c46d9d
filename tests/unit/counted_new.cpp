#include "counted_new.hpp"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace {

std::atomic<std::uint64_t> taken{0};

void* counted(std::size_t n, std::size_t alignment) {
  taken.fetch_add(1, std::memory_order_relaxed);
  void* p = nullptr;
  if (::posix_memalign(&p, std::max(alignment, sizeof(void*)), n == 0 ? 1 : n) != 0) throw std::bad_alloc();
  return p;
}

}  // namespace

// The other forms call these.
void* operator new(std::size_t n) {
  return counted(n, alignof(std::max_align_t));
}
void* operator new(std::size_t n, std::align_val_t a) {
  return counted(n, static_cast<std::size_t>(a));
}
void operator delete(void* p) noexcept {
  std::free(p);
}
void operator delete(void* p, std::size_t) noexcept {
  std::free(p);
}
void operator delete(void* p, std::align_val_t) noexcept {
  std::free(p);
}
void operator delete(void* p, std::size_t, std::align_val_t) noexcept {
  std::free(p);
}

namespace wisp::testing {

std::uint64_t allocations() {
  return taken.load(std::memory_order_relaxed);
}

}  // namespace wisp::testing
