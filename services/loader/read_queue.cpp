#include "services/loader/read_queue.hpp"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace wisp::loader {

namespace {
constexpr std::uint32_t kPieceBytes = 2u << 20;
constexpr std::uint32_t kIdlePieceBytes = 1u << 20;
/// Neighbours are read as one up to here: a read of this size is as good as a longer one, and the first of
/// them waits for the last.
constexpr std::uint32_t kMergedBytes = 1u << 20;
constexpr std::uint32_t kBlock = 4096;
constexpr std::uint32_t kMaxFailures = 1;
constexpr std::uint32_t kMaxRefusals = 64;
constexpr std::uint32_t kMaxStalls = 2;

/// Buffered reads leave nothing in the page cache.
void forget(const ModelFile& file, std::uint64_t offset, std::uint32_t bytes) {
  if (!file.direct)
    ::posix_fadvise(file.fd.get(), static_cast<off_t>(offset), static_cast<off_t>(bytes),
                    POSIX_FADV_DONTNEED);
}

bool is_refusal(std::int64_t result) {
  return result == -EAGAIN || result == -EINTR || result == -EBUSY;
}
}  // namespace

ReadQueue::ReadQueue(IoBackend& backend, shm::Desk& counters, std::uint32_t drives)
    : backend_(backend),
      counters_(counters),
      reads_per_drive_(std::max(1u, kMaxReads / std::max(1u, drives))),
      drives_(std::max(1u, drives)),
      flights_(kMaxReads) {
  for (std::uint32_t i = kMaxReads; i-- > 0;) free_flights_.push_back(i);
  done_.reserve(kMaxReads * kMostNeighbours);
}

/// A drive that is behind the others may have as much again waiting; beyond that the slots are better used by
/// whoever still has readers.
bool ReadQueue::has_room() const {
  bool room = false;
  for (const Drive& d : drives_) {
    const std::uint64_t bytes = d.bytes_in_flight + d.demand_bytes;
    const std::size_t reads = d.in_flight + d.demand.size();
    if (bytes >= 2 * depth_bytes_ || reads >= 2 * reads_per_drive_) return false;
    room |= bytes < depth_bytes_ && reads < reads_per_drive_;
  }
  return room;
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

void ReadQueue::enqueue(std::uint32_t piece, bool first) {
  const Piece& p = pieces_[piece];
  Drive& d = drives_[p.file->drive];
  const bool demand = active_[p.active].urgency == Urgency::kDemand;
  Fifo<std::uint32_t>& lane = demand ? d.demand : d.idle;
  if (first)
    lane.push_front(piece);
  else
    lane.push_back(piece);
  if (demand) d.demand_bytes += p.bytes;
}

void ReadQueue::add(std::span<const Extent> parts) {
  std::uint32_t a;
  if (free_active_.empty()) {
    a = static_cast<std::uint32_t>(active_.size());
    active_.emplace_back();
  } else {
    a = free_active_.back();
    free_active_.pop_back();
  }
  ++actives_;
  const std::uint32_t most = parts.front().urgency == Urgency::kDemand ? kPieceBytes : kIdlePieceBytes;
  active_[a] = {parts.front().tag, 0, 0, 0, parts.front().urgency, std::nullopt};
  for (const Extent& e : parts) {
    WISP_CHECK(e.file->drive < drives_.size());
    for (std::uint64_t at = 0; at < e.bytes; at += most) {
      Piece p;
      p.file = e.file;
      p.active = a;
      p.offset = e.offset + at;
      p.bytes = static_cast<std::uint32_t>(std::min<std::uint64_t>(most, e.bytes - at));
      p.destination = e.destination + at;
      ++active_[a].pieces;
      enqueue(new_piece(p), false);
    }
    active_[a].bytes += e.bytes;
  }
  WISP_CHECK(active_[a].pieces > 0);
}

void ReadQueue::promote(std::uint64_t tag) {
  for (Active& a : active_)
    if (a.pieces > 0 && a.tag == tag) a.urgency = Urgency::kDemand;
  for (Drive& d : drives_) {
    for (std::size_t i = 0; i < d.idle.size();) {
      const std::uint32_t piece = d.idle[i];
      if (active_[pieces_[piece].active].urgency != Urgency::kDemand) {
        ++i;
        continue;
      }
      d.idle.erase(i);
      enqueue(piece, false);
    }
  }
}

void ReadQueue::cancel_idle() {
  for (Drive& d : drives_) {
    while (!d.idle.empty()) {
      const std::uint32_t piece = d.idle.front();
      d.idle.pop_front();
      Active& a = active_[pieces_[piece].active];
      if (!a.error) a.error = unavailable("not read: given up for what was needed");
      end_piece(piece);
    }
  }
}

bool ReadQueue::any_demand() const {
  return std::any_of(drives_.begin(), drives_.end(), [](const Drive& d) { return !d.demand.empty(); });
}

bool ReadQueue::pump() {
  bool submitted = false;
  for (std::uint32_t d = 0; d < drives_.size(); ++d) submitted |= pump(d);
  backend_.flush();
  return submitted;
}

bool ReadQueue::pump(std::uint32_t drive) {
  Drive& d = drives_[drive];
  bool submitted = false;
  for (;;) {
    drop_failed(d, d.demand);
    drop_failed(d, d.idle);
    const bool demand = !d.demand.empty();
    Fifo<std::uint32_t>& lane = demand ? d.demand : d.idle;
    if (lane.empty() || free_flights_.empty() || d.in_flight >= reads_per_drive_) break;
    // What is on its way for nobody is what demand waits for when it comes.
    const std::uint64_t most = demand ? depth_bytes_ : depth_bytes_ / 2;
    if (d.in_flight > 0 && d.bytes_in_flight + pieces_[lane.front()].bytes > most) break;
    if (!demand && any_demand()) break;
    const std::uint64_t room = most > d.bytes_in_flight ? most - d.bytes_in_flight : 0;
    if (!submit(gather(d, lane, drive, room))) break;
    submitted = true;
  }
  return submitted;
}

/// Of an extent that has failed already, what was not asked for yet never is.
void ReadQueue::drop_failed(Drive& d, Fifo<std::uint32_t>& lane) {
  while (!lane.empty() && active_[pieces_[lane.front()].active].error) {
    const std::uint32_t piece = lane.front();
    lane.pop_front();
    if (&lane == &d.demand) d.demand_bytes -= pieces_[piece].bytes;
    end_piece(piece);
  }
}

/// The front of a lane, and those waiting that lie right behind it on the drive and fit into `room` bytes.
ReadQueue::Flight& ReadQueue::gather(Drive& d, Fifo<std::uint32_t>& lane, std::uint32_t drive,
                                     std::uint64_t room) {
  Flight& f = flights_[free_flights_.back()];
  f.count = 0;
  f.bytes = 0;
  f.drive = drive;
  for (std::size_t at = 0; at < lane.size();) {
    const Piece& p = pieces_[lane[at]];
    if (f.count > 0) {
      const Piece& before = pieces_[f.pieces[f.count - 1]];
      const bool follows = p.file == before.file && p.offset == before.offset + before.bytes && !p.alone &&
                           !before.alone && !active_[p.active].error;
      if (!follows || f.bytes + p.bytes > std::min<std::uint64_t>(kMergedBytes, room)) {
        ++at;
        continue;
      }
    }
    f.pieces[f.count] = lane[at];
    f.places[f.count] = {p.destination, p.bytes};
    f.bytes += p.bytes;
    lane.erase(at);
    at = 0;  // the next neighbour may stand anywhere
    if (++f.count == kMostNeighbours || f.bytes >= kMergedBytes || p.alone) break;
  }
  if (&lane == &d.demand) d.demand_bytes -= f.bytes;
  return f;
}

bool ReadQueue::submit(Flight& f) {
  const Piece& first = pieces_[f.pieces[0]];
  Read r{first.file->fd.get(), first.offset, f.bytes, first.destination, free_flights_.back(), {}};
  if (f.count > 1) r.places = std::span(f.places).first(f.count);
  if (!backend_.submit(r)) {
    for (std::uint32_t i = f.count; i-- > 0;) enqueue(f.pieces[i], true);
    return false;
  }
  free_flights_.pop_back();
  Drive& d = drives_[f.drive];
  d.bytes_in_flight += f.bytes;
  ++d.in_flight;
  ++in_flight_;
  counters_.add(stats::Counter::kDeviceBytesRead, f.bytes);
  return true;
}

bool ReadQueue::reap() {
  std::array<Completion, kMaxReads> batch;
  const std::size_t n = backend_.reap(batch);
  for (std::size_t i = 0; i < n; ++i) complete(static_cast<std::uint32_t>(batch[i].tag), batch[i].result);
  return n > 0;
}

void ReadQueue::complete(std::uint32_t flight, std::int64_t result) {
  WISP_CHECK(flight < flights_.size() && in_flight_ > 0);
  const Flight f = flights_[flight];
  free_flights_.push_back(flight);
  --in_flight_;
  Drive& d = drives_[f.drive];
  --d.in_flight;
  d.bytes_in_flight -= f.bytes;
  if (f.count == 1) return complete_one(f.pieces[0], result);
  complete_several(f, result);
}

/// What arrived is done. Of the rest each is asked for by itself, so that a bad block is the fault of its own
/// extent alone.
void ReadQueue::complete_several(const Flight& f, std::int64_t result) {
  std::int64_t left = std::clamp<std::int64_t>(result, 0, f.bytes);
  for (std::uint32_t i = 0; i < f.count; ++i) {
    Piece& p = pieces_[f.pieces[i]];
    if (left >= static_cast<std::int64_t>(p.bytes)) {
      left -= static_cast<std::int64_t>(p.bytes);
      active_[p.active].arrived += p.bytes;
      end_piece(f.pieces[i]);
      continue;
    }
    left = 0;
    if (is_refusal(result)) {
      complete_one(f.pieces[i], result);
      continue;
    }
    p.alone = true;
    retry(f.pieces[i]);
  }
}

void ReadQueue::complete_one(std::uint32_t piece, std::int64_t result) {
  Piece& p = pieces_[piece];
  if (result == static_cast<std::int64_t>(p.bytes)) {
    active_[p.active].arrived += p.bytes;
    return end_piece(piece);
  }
  if (result == -EIO && p.failures++ < kMaxFailures) return retry(piece);
  if (is_refusal(result) && p.refusals++ < kMaxRefusals) return retry(piece);
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
  if (p.file->direct) whole = whole / kBlock * kBlock;
  if (whole == 0 && ++p.stalls > kMaxStalls) {
    fail(p, "the read makes no progress (" + std::to_string(result) + " bytes again and again)");
    return end_piece(piece);
  }
  forget(*p.file, p.offset, whole);
  active_[p.active].arrived += whole;
  p.offset += whole;
  p.destination += whole;
  p.bytes -= whole;
  retry(piece);
}

void ReadQueue::retry(std::uint32_t piece) {
  counters_.add(stats::Counter::kReadRetries);
  enqueue(piece, true);
}

void ReadQueue::fail(const Piece& p, const std::string& cause) {
  Active& a = active_[p.active];
  if (!a.error)
    a.error = io_error(p.file->path + ", offset " + std::to_string(p.offset) + ", " +
                       std::to_string(p.bytes) + " bytes: " + cause);
}

void ReadQueue::end_piece(std::uint32_t piece) {
  const Piece& p = pieces_[piece];
  const std::uint32_t i = p.active;
  forget(*p.file, p.offset, p.bytes);
  free_pieces_.push_back(piece);
  Active& a = active_[i];
  if (--a.pieces > 0) return;
  done_.push_back({a.tag, a.bytes, a.arrived, std::move(a.error)});
  a.error.reset();
  free_active_.push_back(i);
  --actives_;
}

std::optional<ExtentDone> ReadQueue::take_done() {
  if (done_.empty()) return std::nullopt;
  ExtentDone d = std::move(done_.front());
  done_.pop_front();
  return d;
}

}  // namespace wisp::loader
