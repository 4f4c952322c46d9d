#pragma once
#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/result.hpp"
#include "services/loader/fifo.hpp"
#include "services/loader/io_backend.hpp"
#include "services/loader/model_file.hpp"
#include "shm/desk.hpp"

namespace wisp::loader {

/// Whether somebody waits for what is read.
enum class Urgency : std::uint8_t {
  kDemand,  ///< a step waits for it
  kIdle,    ///< wanted later, if at all: begun only while no demand waits for any drive, and half as much at a time
};

/// Something to be read as one: an expert's extent or a stripe of it, or a part of the dense data. `file`
/// outlives the read.
struct Extent {
  const ModelFile* file = nullptr;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  std::byte* destination = nullptr;
  std::uint64_t tag = 0;
  Urgency urgency = Urgency::kDemand;
};

/// The end of an extent: every byte is there, or why not. None of its reads is in flight any more, either
/// way.
struct ExtentDone {
  std::uint64_t tag = 0;
  std::uint64_t bytes = 0;
  std::uint64_t arrived = 0;  ///< of them; fewer where there is an error
  std::optional<Error> error;
};

/// Cuts extents into reads, keeps few enough of them in flight on each drive that its latency stays low,
/// reads neighbours on the drive as one, continues short reads, and repeats a failed one once. Counts into
/// the loader's desk: device bytes and retries. In steady state it allocates nothing. One thread.
class ReadQueue {
 public:
  /// Most bytes in flight on a drive: it is busy from 2 to 4 MiB on, and more only makes each read wait
  /// longer.
  static constexpr std::uint64_t kDepthBytes = std::uint64_t{4} << 20;

  /// Backend and counters outlive the queue. `drives`: one more than the largest ModelFile::drive.
  ReadQueue(IoBackend& backend, shm::Desk& counters, std::uint32_t drives = 1);

  void set_depth(std::uint64_t bytes) { depth_bytes_ = bytes; }

  /// Whether another extent would be started at once, rather than only queued.
  bool has_room() const;
  void add(const Extent& e) { add(std::span(&e, 1)); }
  /// Extents with one tag and urgency that are done together: the stripes of one expert.
  void add(std::span<const Extent> parts);
  /// An idle extent has become demand: what is left of it goes behind the demand there is. No-op where no
  /// extent with this tag is waiting.
  void promote(std::uint64_t tag);
  /// Ends every idle extent of which nothing is in flight, with error kUnavailable; the others end when what
  /// is in flight has arrived.
  void cancel_idle();

  /// Submits what fits. True if anything was submitted.
  bool pump();
  /// Takes completions in. True if there were any.
  bool reap();
  std::optional<ExtentDone> take_done();

  bool has_done() const { return !done_.empty(); }
  std::uint32_t in_flight() const { return in_flight_; }
  bool idle() const { return in_flight_ == 0 && actives_ == 0 && done_.empty(); }

 private:
  static constexpr std::uint32_t kMostNeighbours = 8;

  struct Active {
    std::uint64_t tag = 0;
    std::uint64_t bytes = 0;
    std::uint64_t arrived = 0;
    std::uint32_t pieces = 0;  // not yet at their end
    Urgency urgency = Urgency::kDemand;
    std::optional<Error> error;
  };
  struct Piece {
    const ModelFile* file = nullptr;
    std::uint32_t active = 0;
    std::uint64_t offset = 0;
    std::uint32_t bytes = 0;
    std::byte* destination = nullptr;
    std::uint32_t failures = 0;  // EIO
    std::uint32_t refusals = 0;  // EAGAIN and the like
    std::uint32_t stalls = 0;    // short reads without a whole block
    bool alone = false;          // a read of several failed: this one is asked for by itself
  };
  /// One read in flight: a piece, or several that lie behind one another on the drive.
  struct Flight {
    std::array<std::uint32_t, kMostNeighbours> pieces{};
    std::array<iovec, kMostNeighbours> places{};
    std::uint32_t count = 0;
    std::uint32_t bytes = 0;
    std::uint32_t drive = 0;
  };
  struct Drive {
    Fifo<std::uint32_t> demand, idle;
    std::uint64_t bytes_in_flight = 0;
    std::uint64_t demand_bytes = 0;  // waiting
    std::uint32_t in_flight = 0;
  };

  bool pump(std::uint32_t drive);
  void drop_failed(Drive& d, Fifo<std::uint32_t>& lane);
  Flight& gather(Drive& d, Fifo<std::uint32_t>& lane, std::uint32_t drive, std::uint64_t room);
  bool submit(Flight& f);
  bool any_demand() const;
  void complete(std::uint32_t flight, std::int64_t result);
  void complete_several(const Flight& f, std::int64_t result);
  void complete_one(std::uint32_t piece, std::int64_t result);
  void end_piece(std::uint32_t piece);
  void fail(const Piece& p, const std::string& cause);
  void retry(std::uint32_t piece);
  void enqueue(std::uint32_t piece, bool first);
  std::uint32_t new_piece(const Piece& p);

  IoBackend& backend_;
  shm::Desk& counters_;
  std::uint64_t depth_bytes_ = kDepthBytes;
  std::uint32_t reads_per_drive_;
  std::vector<Drive> drives_;
  std::vector<Active> active_;
  std::vector<std::uint32_t> free_active_;
  std::vector<Piece> pieces_;
  std::vector<std::uint32_t> free_pieces_;
  std::vector<Flight> flights_;
  std::vector<std::uint32_t> free_flights_;
  Fifo<ExtentDone> done_;
  std::uint32_t in_flight_ = 0;
  std::uint32_t actives_ = 0;
};

}  // namespace wisp::loader
