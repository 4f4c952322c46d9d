#pragma once
#include <bit>
#include <cstddef>
#include <utility>
#include <vector>

#include "base/check.hpp"

namespace wisp::loader {

/// A queue that keeps its memory: once it has been as long as it gets, nothing is allocated any more.
template <class T>
class Fifo {
 public:
  bool empty() const { return size_ == 0; }
  std::size_t size() const { return size_; }
  T& operator[](std::size_t i) { return ring_[(first_ + i) & (ring_.size() - 1)]; }
  const T& operator[](std::size_t i) const { return ring_[(first_ + i) & (ring_.size() - 1)]; }
  T& front() { return (*this)[0]; }
  const T& front() const { return (*this)[0]; }

  /// Room for `n` elements without another allocation.
  void reserve(std::size_t n) {
    if (n > ring_.size()) widen(std::bit_ceil(n));
  }
  void push_back(T value) {
    grow();
    (*this)[size_++] = std::move(value);
  }
  void push_front(T value) {
    grow();
    first_ = (first_ + ring_.size() - 1) & (ring_.size() - 1);
    ++size_;
    front() = std::move(value);
  }
  void pop_front() {
    WISP_CHECK(size_ > 0);
    front() = T();  // what it held goes now
    first_ = (first_ + 1) & (ring_.size() - 1);
    --size_;
  }
  void clear() {
    while (!empty()) pop_front();
  }
  /// Removes element `i`; those behind it move up.
  void erase(std::size_t i) {
    WISP_CHECK(i < size_);
    for (; i + 1 < size_; ++i) (*this)[i] = std::move((*this)[i + 1]);
    --size_;
  }

 private:
  void grow() {
    if (size_ == ring_.size()) widen(ring_.empty() ? 16 : 2 * ring_.size());
  }
  void widen(std::size_t places) {
    std::vector<T> wider(places);
    for (std::size_t i = 0; i < size_; ++i) wider[i] = std::move((*this)[i]);
    ring_ = std::move(wider);
    first_ = 0;
  }

  std::vector<T> ring_;  // a power of two long
  std::size_t first_ = 0;
  std::size_t size_ = 0;
};

}  // namespace wisp::loader
