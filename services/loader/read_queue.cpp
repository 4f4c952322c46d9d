#include "services/loader/read_queue.hpp"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace wisp::loader {

namespace {
// More in flight only makes each read wait longer: the drive is busy from 2 to 4 MiB on.
constexpr std::uint64_t kMaxBytesInFlight = std::uint64_t{4} << 20;
constexpr std::uint32_t kPieceBytes = 2u << 20;
constexpr std::uint32_t kBlock = 4096;
constexpr std::uint32_t kMaxFailures = 1;
constexpr std::uint32_t kMaxRefusals = 64;
constexpr std::uint32_t kMaxStalls = 2;
}  // namespace

bool ReadQueue::has_room() const {
  return in_flight_ + pending_.size() < kMaxReads && bytes_in_flight_ + bytes_pending_ < kMaxBytesInFlight;
}

std::uint32_t ReadQueue::new_piece(const Piece& p) {
  if (free_pieces_.empty()) {
    pieces_.push_back(p);
    return static_cast<std::uint32_t>(pieces_.size() - 1);
  }
  const std::uint32_t i = free_pieces_.back();
  free_pieces_.pop_back();
  pieces_[i] = p;
  return i;
}

void ReadQueue::add(const Extent& e) {
  std::uint32_t a;
  if (free_active_.empty()) {
    a = static_cast<std::uint32_t>(active_.size());
    active_.emplace_back();
  } else {
    a = free_active_.back();
    free_active_.pop_back();
  }
  active_[a] = {e, 0, std::nullopt};
  for (std::uint64_t at = 0; at < e.bytes; at += kPieceBytes) {
    Piece p;
    p.active = a;
    p.offset = e.offset + at;
    p.bytes = static_cast<std::uint32_t>(std::min<std::uint64_t>(kPieceBytes, e.bytes - at));
    p.destination = e.destination + at;
    pending_.push_back(new_piece(p));
    bytes_pending_ += p.bytes;
    ++active_[a].pieces;
  }
  WISP_CHECK(active_[a].pieces > 0);
}

bool ReadQueue::pump() {
  bool submitted = false;
  while (!pending_.empty() && in_flight_ < kMaxReads) {
    const std::uint32_t i = pending_.front();
    const Piece& p = pieces_[i];
    const Active& a = active_[p.active];
    if (a.error) {  // the extent has failed already: what was not asked for yet never is
      pending_.pop_front();
      bytes_pending_ -= p.bytes;
      end_piece(i);
      continue;
    }
    if (in_flight_ > 0 && bytes_in_flight_ + p.bytes > kMaxBytesInFlight) break;
    if (!backend_.submit({a.extent.file->fd.get(), p.offset, p.bytes, p.destination, i})) break;
    pending_.pop_front();
    bytes_pending_ -= p.bytes;
    bytes_in_flight_ += p.bytes;
    ++in_flight_;
    counters_.add(stats::Counter::kDeviceBytesRead, p.bytes);
    submitted = true;
  }
  backend_.flush();
  return submitted;
}

bool ReadQueue::reap() {
  std::array<Completion, kMaxReads> batch;
  const std::size_t n = backend_.reap(batch);
  for (std::size_t i = 0; i < n; ++i) complete(static_cast<std::uint32_t>(batch[i].tag), batch[i].result);
  return n > 0;
}

void ReadQueue::complete(std::uint32_t piece, std::int64_t result) {
  WISP_CHECK(piece < pieces_.size() && in_flight_ > 0);
  Piece& p = pieces_[piece];
  --in_flight_;
  bytes_in_flight_ -= p.bytes;
  if (result == static_cast<std::int64_t>(p.bytes)) return end_piece(piece);
  if (result == -EIO && p.failures++ < kMaxFailures) return retry(piece);
  if ((result == -EAGAIN || result == -EINTR || result == -EBUSY) && p.refusals++ < kMaxRefusals)
    return retry(piece);
  if (result < 0) {
    fail(p, std::strerror(static_cast<int>(-result)));
    return end_piece(piece);
  }
  if (result == 0 || result > static_cast<std::int64_t>(p.bytes)) {
    fail(p, "the file ends there: it was cut or replaced");
    return end_piece(piece);
  }
  // Short. A direct read goes on at a whole block; the block that came in part is read again.
  auto whole = static_cast<std::uint32_t>(result);
  if (active_[p.active].extent.file->direct) whole = whole / kBlock * kBlock;
  if (whole == 0 && ++p.stalls > kMaxStalls) {
    fail(p, "the read makes no progress (" + std::to_string(result) + " bytes again and again)");
    return end_piece(piece);
  }
  p.offset += whole;
  p.destination += whole;
  p.bytes -= whole;
  retry(piece);
}

void ReadQueue::retry(std::uint32_t piece) {
  counters_.add(stats::Counter::kReadRetries);
  pending_.push_front(piece);
  bytes_pending_ += pieces_[piece].bytes;
}

void ReadQueue::fail(Piece& p, const std::string& cause) {
  Active& a = active_[p.active];
  if (!a.error)
    a.error = io_error(a.extent.file->path + ", offset " + std::to_string(p.offset) + ", " +
                       std::to_string(p.bytes) + " bytes: " + cause);
}

void ReadQueue::end_piece(std::uint32_t piece) {
  const std::uint32_t i = pieces_[piece].active;
  free_pieces_.push_back(piece);
  Active& a = active_[i];
  if (--a.pieces > 0) return;
  const Extent& e = a.extent;
  if (!e.file->direct)
    ::posix_fadvise(e.file->fd.get(), static_cast<off_t>(e.offset), static_cast<off_t>(e.bytes),
                    POSIX_FADV_DONTNEED);
  done_.push_back({e.tag, e.bytes, std::move(a.error)});
  free_active_.push_back(i);
}

std::optional<ExtentDone> ReadQueue::take_done() {
  if (done_.empty()) return std::nullopt;
  ExtentDone d = std::move(done_.front());
  done_.pop_front();
  return d;
}

}  // namespace wisp::loader
