#pragma once
#include <algorithm>
#include <cerrno>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "services/loader/io_backend.hpp"

namespace wisp::loader {

/// A backend between the loader and a real one that lets a test spoil completions or keep reads back.
class FaultBackend : public IoBackend {
 public:
  /// Sees every read and its true result; returns what the loader shall see. May change the bytes.
  using Spoil = std::function<std::int64_t(const Read&, std::int64_t)>;

  explicit FaultBackend(std::unique_ptr<IoBackend> inner) : inner_(std::move(inner)), reads_(kMaxReads * 2) {}

  Spoil spoil;
  bool hold = false;  ///< reads are taken and never begun
  std::uint64_t submitted = 0;
  std::uint64_t bytes_in_flight = 0, most_bytes_in_flight = 0;
  std::vector<Read> held;

  BackendKind kind() const override { return inner_->kind(); }
  bool submit(const Read& r) override {
    ++submitted;
    if (hold) {
      held.push_back(r);
      return true;
    }
    const std::size_t at = free_place();
    reads_[at] = {r, true};
    Read mine = r;
    mine.tag = at;
    if (!inner_->submit(mine)) {
      reads_[at].used = false;
      --submitted;
      return false;
    }
    bytes_in_flight += r.bytes;
    most_bytes_in_flight = std::max(most_bytes_in_flight, bytes_in_flight);
    return true;
  }
  void flush() override { inner_->flush(); }
  std::size_t reap(std::span<Completion> out) override {
    const std::size_t n = inner_->reap(out);
    for (std::size_t i = 0; i < n; ++i) {
      Place& p = reads_[out[i].tag];
      p.used = false;
      bytes_in_flight -= p.read.bytes;
      out[i].tag = p.read.tag;
      if (spoil) out[i].result = spoil(p.read, out[i].result);
    }
    return n;
  }
  bool ready() const override { return inner_->ready(); }
  int poll_fd() const override { return inner_->poll_fd(); }
  /// Begins what was kept back.
  void release() {
    hold = false;
    for (const Read& r : held) {
      --submitted;
      submit(r);
    }
    held.clear();
    flush();
  }

 private:
  struct Place {
    Read read;
    bool used = false;
  };
  std::size_t free_place() const {
    for (std::size_t i = 0; i < reads_.size(); ++i)
      if (!reads_[i].used) return i;
    std::abort();
  }

  std::unique_ptr<IoBackend> inner_;
  std::vector<Place> reads_;
};

}  // namespace wisp::loader
