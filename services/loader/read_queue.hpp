#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "base/result.hpp"
#include "services/loader/io_backend.hpp"
#include "services/loader/model_file.hpp"
#include "shm/desk.hpp"

namespace wisp::loader {

/// Something to be read as one: an expert's extent, or a part of the dense data. `file` outlives the read.
struct Extent {
  const ModelFile* file = nullptr;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  std::byte* destination = nullptr;
  std::uint64_t tag = 0;
};

/// The end of an extent: every byte is there, or why not. None of its reads is in flight any more, either
/// way.
struct ExtentDone {
  std::uint64_t tag = 0;
  std::uint64_t bytes = 0;
  std::optional<Error> error;
};

/// Cuts extents into reads, keeps few enough of them in flight that the drive's latency stays low, continues
/// short reads, and repeats a failed one once. Counts into the loader's desk: device bytes and retries. One
/// thread.
class ReadQueue {
 public:
  /// Both outlive the queue.
  ReadQueue(IoBackend& backend, shm::Desk& counters) : backend_(backend), counters_(counters) {}

  /// Whether another extent would be started at once, rather than only queued.
  bool has_room() const;
  void add(const Extent& e);
  /// Submits what fits. True if anything was submitted.
  bool pump();
  /// Takes completions in. True if there were any.
  bool reap();
  std::optional<ExtentDone> take_done();

  bool has_done() const { return !done_.empty(); }
  std::uint32_t in_flight() const { return in_flight_; }
  bool idle() const { return in_flight_ == 0 && pending_.empty() && done_.empty(); }

 private:
  struct Active {
    Extent extent;
    std::uint32_t pieces = 0;  // not yet at their end, in flight or pending
    std::optional<Error> error;
  };
  struct Piece {
    std::uint32_t active = 0;
    std::uint64_t offset = 0;
    std::uint32_t bytes = 0;
    std::byte* destination = nullptr;
    std::uint32_t failures = 0;  // EIO
    std::uint32_t refusals = 0;  // EAGAIN and the like
    std::uint32_t stalls = 0;    // short reads without a whole block
  };

  void complete(std::uint32_t piece, std::int64_t result);
  void end_piece(std::uint32_t piece);
  void fail(Piece& p, const std::string& cause);
  void retry(std::uint32_t piece);
  std::uint32_t new_piece(const Piece& p);

  IoBackend& backend_;
  shm::Desk& counters_;
  std::vector<Active> active_;
  std::vector<std::uint32_t> free_active_;
  std::vector<Piece> pieces_;
  std::vector<std::uint32_t> free_pieces_;
  std::deque<std::uint32_t> pending_;
  std::deque<ExtentDone> done_;
  std::uint32_t in_flight_ = 0;
  std::uint64_t bytes_in_flight_ = 0;
  std::uint64_t bytes_pending_ = 0;
};

}  // namespace wisp::loader
