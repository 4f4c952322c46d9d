#pragma once
#include <cstdint>
#include <cstring>
#include <span>

#include "base/check.hpp"
#include "ring/doorbell.hpp"
#include "service/crash_point.hpp"
#include "shm/desk.hpp"
#include "shm/life.hpp"

namespace wisp::ring {

/// What a producer says; the payload is copied into the edge's arena.
struct Message {
  Kind kind = Kind::kNone;
  std::uint8_t flags = 0;
  std::uint64_t request = 0;
  std::uint32_t pos = 0;
  std::uint32_t slot = 0;
  std::uint32_t key = 0;
  std::uint32_t gen = 0;
  std::uint64_t aux = 0;
  std::span<const std::byte> payload = {};
};

/// The producing end of an edge. Its ring and arena lie in the producer's own desk; no other process writes
/// there. Not thread-safe: one stage, one thread.
class Producer {
 public:
  Producer() = default;
  Producer(shm::Desk* mine, const shm::Desk* peer, shm::EdgeId edge, Doorbell peer_bell)
      : mine_(mine), peer_(peer), bell_(peer_bell), e_(shm::index(edge)) {
    const shm::EdgePlace& p = mine->edges[e_];
    slots_ = p.slots;
    ring_ = reinterpret_cast<Descriptor*>(reinterpret_cast<char*>(mine) + p.ring_offset);
    arena_ = reinterpret_cast<std::byte*>(mine) + p.arena_offset;
    arena_size_ = static_cast<std::uint32_t>(p.arena_size);
    WISP_CHECK(slots_ != 0 && (slots_ & (slots_ - 1)) == 0);
    catch_up();
  }

  /// Takes over what earlier lives committed: a slot that carries its number is published, whatever `tail`
  /// says.
  void catch_up() {
    std::uint64_t t = tail();
    while (ring_[t & (slots_ - 1)].seq.load(std::memory_order_acquire) == t + 1) ++t;
    mine_->tx_tail[e_].value.store(t, std::memory_order_release);
  }

  std::uint64_t tail() const { return mine_->tx_tail[e_].value.load(std::memory_order_relaxed); }
  std::uint64_t peer_head() const { return peer_->rx_head[e_].value.load(std::memory_order_acquire); }
  std::uint64_t in_ring() const { return tail() - peer_head(); }
  /// The descriptor with number `n`, which must be below tail and not yet overwritten.
  const Descriptor& at(std::uint64_t n) const { return ring_[n & (slots_ - 1)]; }

  /// Whether a message with `bytes` of payload could be published now.
  bool has_space(std::size_t bytes) const {
    std::uint32_t off;
    return in_ring() < slots_ && place(bytes, off);
  }

  /// Publishes, or returns false where ring or arena are full (the consumer has then been rung).
  /// `wake` = false leaves a parked consumer asleep until a later message, unless the ring is half full.
  bool publish(const Message& m, bool wake = true) {
    std::uint32_t off = 0;
    if (in_ring() >= slots_ || !place(m.payload.size(), off)) {
      ring_peer();
      return false;
    }
    const std::uint64_t t = tail();
    Descriptor& d = ring_[t & (slots_ - 1)];
    if (!m.payload.empty()) std::memcpy(arena_ + off, m.payload.data(), m.payload.size());
    d.kind = m.kind;
    d.flags = m.flags;
    d.len = 0;
    d.credit = 0;
    d.request = m.request;
    d.pos = m.pos;
    d.slot = m.slot;
    d.key = m.key;
    d.gen = m.gen;
    d.arena_off = off;
    d.arena_len = static_cast<std::uint32_t>(m.payload.size());
    d.t_pub = shm::monotonic_now();
    d.aux = m.aux;
    service::crash_point(service::CrashPoint::kAfterFill);
    d.seq.store(t + 1, std::memory_order_seq_cst);
    service::crash_point(service::CrashPoint::kAfterSeq);
    mine_->tx_tail[e_].value.store(t + 1, std::memory_order_release);
    service::crash_point(service::CrashPoint::kBeforeRing);
    if (wake || in_ring() >= slots_ / 2) ring_peer();
    return true;
  }

  /// Rings the consumer if it sleeps. seq_cst pairs with the sleeper's store of `parked` and its last look.
  void ring_peer() const {
    if (peer_->parked.load(std::memory_order_seq_cst) == 0) return;
    bell_.ring();
    mine_->add(stats::Counter::kRingsSent);
  }

 private:
  static constexpr std::uint32_t kAlign = 64;

  /// Finds room for `bytes` in the arena. Cursors are derived from the descriptors in [peer head, tail):
  /// nothing is stored, so nothing can disagree after a death.
  bool place(std::size_t bytes, std::uint32_t& off) const {
    const std::uint64_t h = peer_head();
    const std::uint64_t t = tail();
    if (bytes > arena_size_) return false;
    const auto need = static_cast<std::uint32_t>((bytes + kAlign - 1) / kAlign * kAlign);
    if (h == t) {
      off = 0;
      return need <= arena_size_;
    }
    const std::uint32_t start = at(h).arena_off;
    const Descriptor& last = at(t - 1);
    const std::uint32_t cur = last.arena_off + (last.arena_len + kAlign - 1) / kAlign * kAlign;
    if (need == 0) {
      off = cur;
      return true;
    }
    if (cur >= start) {
      if (arena_size_ - cur >= need) {
        off = cur;
        return true;
      }
      off = 0;
      return need < start;
    }
    off = cur;
    return cur + need < start;
  }

  shm::Desk* mine_ = nullptr;
  const shm::Desk* peer_ = nullptr;
  Doorbell bell_;
  std::uint32_t e_ = 0;
  std::uint32_t slots_ = 0;
  Descriptor* ring_ = nullptr;
  std::byte* arena_ = nullptr;
  std::uint32_t arena_size_ = 0;
};

/// The consuming end of an edge. The cursor lies in the consumer's own desk and advances after the effect.
class Consumer {
 public:
  Consumer() = default;
  Consumer(shm::Desk* mine, const shm::Desk* peer, shm::EdgeId edge, Doorbell peer_bell)
      : mine_(mine), peer_(peer), bell_(peer_bell), e_(shm::index(edge)) {
    const shm::EdgePlace& p = peer->edges[e_];
    slots_ = p.slots;
    ring_ = reinterpret_cast<const Descriptor*>(reinterpret_cast<const char*>(peer) + p.ring_offset);
    arena_ = reinterpret_cast<const std::byte*>(peer) + p.arena_offset;
    arena_size_ = p.arena_size;
  }

  std::uint64_t head() const { return mine_->rx_head[e_].value.load(std::memory_order_relaxed); }

  /// The next message, or nullptr. Valid until pop(). The first look at a message counts its hop time.
  const Descriptor* front() const {
    const Descriptor* d = peek(0);
    if (d != nullptr && head() >= seen_) {
      seen_ = head() + 1;
      const std::uint64_t now = shm::monotonic_now();
      mine_->hop[e_].add(now > d->t_pub ? now - d->t_pub : 0);
    }
    return d;
  }
  /// The message `ahead` places behind the front, or nullptr.
  const Descriptor* peek(std::uint64_t ahead) const {
    const std::uint64_t h = head() + ahead;
    const Descriptor& d = ring_[h & (slots_ - 1)];
    return d.seq.load(std::memory_order_seq_cst) == h + 1 ? &d : nullptr;
  }
  bool empty() const { return front() == nullptr; }

  /// The payload, bounded by the arena whatever the descriptor says: a peer is not trusted with our memory.
  std::span<const std::byte> payload(const Descriptor& d) const {
    if (d.arena_len > arena_size_ || d.arena_off > arena_size_ - d.arena_len) return {};
    return {arena_ + d.arena_off, d.arena_len};
  }

  /// Advances past the front once its effect is recorded; wakes a producer that waits for space.
  void pop() {
    const std::uint64_t h = head();
    note_flight(ring_[h & (slots_ - 1)], shm::monotonic_now());
    service::crash_point(service::CrashPoint::kAfterEffectBeforeHead);
    mine_->rx_head[e_].value.store(h + 1, std::memory_order_seq_cst);
    if (peer_->parked.load(std::memory_order_seq_cst) != 0 &&
        peer_->waits_for.load(std::memory_order_relaxed) ==
            static_cast<std::uint32_t>(shm::WaitFor::kRingSpace))
      bell_.ring();
  }

 private:
  void note_flight(const Descriptor& d, std::uint64_t now) {
    const std::uint64_t n = mine_->flight_next.load(std::memory_order_relaxed);
    mine_->flight[n % stats::kFlightEvents] = {now, static_cast<std::uint32_t>(d.kind), e_, d.request, d.aux};
    mine_->flight_next.store(n + 1, std::memory_order_release);
  }

  shm::Desk* mine_ = nullptr;
  const shm::Desk* peer_ = nullptr;
  Doorbell bell_;
  std::uint32_t e_ = 0;
  std::uint32_t slots_ = 0;
  const Descriptor* ring_ = nullptr;
  const std::byte* arena_ = nullptr;
  std::uint64_t arena_size_ = 0;
  mutable std::uint64_t seen_ = 0;  ///< messages whose hop this life has counted
};

}  // namespace wisp::ring
