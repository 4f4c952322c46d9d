#include "counted_new.hpp"

#include <cstdlib>
#include <new>

namespace {
thread_local bool counting = false;
thread_local std::uint64_t taken = 0;
}  // namespace

void* operator new(std::size_t n) {
  if (counting) ++taken;
  void* p = std::malloc(n == 0 ? 1 : n);
  if (p == nullptr) throw std::bad_alloc();
  return p;
}
void operator delete(void* p) noexcept {
  std::free(p);
}
void operator delete(void* p, std::size_t) noexcept {
  std::free(p);
}

namespace wisp::testing {

CountedNew::CountedNew() {
  taken = 0;
  counting = true;
}
CountedNew::~CountedNew() {
  counting = false;
}
std::uint64_t CountedNew::so_far() const {
  return taken;
}

}  // namespace wisp::testing
