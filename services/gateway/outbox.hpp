#pragma once
#include <cstdint>
#include <deque>
#include <vector>

#include "ring/spsc_ring.hpp"
#include "shm/journal.hpp"

namespace wisp::gateway {

/// Messages to the router, in order. A full edge 1 keeps them here; nothing is dropped and nobody blocks.
class Outbox {
 public:
  Outbox(ring::Producer edge, std::uint64_t arena_bytes) : edge_(edge), arena_bytes_(arena_bytes) {}

  /// Whether the edge could carry a prompt of this length at all.
  bool can_carry(std::size_t prompt_tokens) const;
  void submit(std::uint64_t request, const shm::RequestParams& params,
              const std::vector<std::uint32_t>& prompt);
  void tell(ring::Kind kind, std::uint64_t request, std::uint32_t pos = 0, std::uint32_t gen = 0);

  /// Publishes what fits. True if anything was published.
  bool flush();
  bool empty() const { return waiting_.empty(); }
  /// Whether flush() would publish something.
  bool can_flush() const { return !waiting_.empty() && edge_.has_space(waiting_.front().payload.size()); }

  /// Takes back a submission that was not published yet, and whatever else waits for that request.
  bool withdraw(std::uint64_t request);
  /// Whether a submission is published.
  bool submitted(std::uint64_t request) const { return !waits(request, ring::Kind::kSubmit); }
  /// Whether the router has yet to read a message of this request; kNone = of any kind.
  bool carries(std::uint64_t request, ring::Kind kind = ring::Kind::kNone) const;
  /// Requests whose submission the router has not consumed, an earlier gateway's included.
  std::vector<std::uint64_t> unread_submissions() const;

 private:
  struct Waiting {
    ring::Kind kind;
    std::uint64_t request;
    std::uint32_t pos;
    std::uint32_t gen;
    std::vector<std::byte> payload;
  };
  bool waits(std::uint64_t request, ring::Kind kind) const;
  ring::Producer edge_;
  std::uint64_t arena_bytes_;
  std::deque<Waiting> waiting_;
};

}  // namespace wisp::gateway
