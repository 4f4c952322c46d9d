#include "shm/population.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>

namespace wisp::shm {

namespace {
#ifdef MADV_POPULATE_WRITE
constexpr int kPopulateRead = MADV_POPULATE_READ, kPopulateWrite = MADV_POPULATE_WRITE;
#else
constexpr int kPopulateRead = 22, kPopulateWrite = 23;
#endif

#ifdef MADV_COLLAPSE
constexpr int kCollapse = MADV_COLLAPSE;
#else
constexpr int kCollapse = 25;
#endif

std::uintptr_t page_size() {
  static const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  return page;
}
}  // namespace

bool can_populate() {
  static const bool can = ::madvise(nullptr, 0, kPopulateWrite) == 0;
  return can;
}

Collapse collapse(const std::byte* at) {
  int rc;
  do rc = ::madvise(const_cast<std::byte*>(at), kHugePage, kCollapse);
  while (rc != 0 && errno == EINTR);
  if (rc == 0) return Collapse::kDone;
  return errno == EAGAIN || errno == EBUSY ? Collapse::kBusy : Collapse::kRefused;
}

std::uint64_t huge_page_bytes(std::span<const std::byte> mapped) {
  const auto begin = reinterpret_cast<std::uintptr_t>(mapped.data());
  const auto end = begin + mapped.size();
  std::ifstream in("/proc/self/smaps");
  bool inside = false;
  std::uint64_t kib = 0;
  for (std::string line; std::getline(in, line);) {
    unsigned long long from = 0, to = 0, n = 0;
    if (std::sscanf(line.c_str(), "%llx-%llx ", &from, &to) == 2) {
      inside = from < end && begin < to;
    } else if (inside && (std::sscanf(line.c_str(), "ShmemPmdMapped: %llu kB", &n) == 1 ||
                          std::sscanf(line.c_str(), "FilePmdMapped: %llu kB", &n) == 1 ||
                          std::sscanf(line.c_str(), "AnonHugePages: %llu kB", &n) == 1)) {
      kib += n;
    }
  }
  return kib * 1024;
}

Status Population::reach(std::uint64_t bytes) {
  bytes = std::min<std::uint64_t>(bytes, memory_.size());
  while (reached_ < bytes) {
    // Ends of pieces are multiples of a huge page as addresses, so that none is asked for twice.
    const auto at = reinterpret_cast<std::uintptr_t>(memory_.data()) + reached_;
    const std::uint64_t next = std::min<std::uint64_t>(memory_.size(), reached_ + kPiece - at % kPiece);
    if (!populate(reached_, next).ok()) {
      reach_what_is_there(next);
      return populate(reached_, next);
    }
    reached_ = next;
  }
  return {};
}

/// Of a piece that memory does not suffice for, its front.
void Population::reach_what_is_there(std::uint64_t end) {
  for (std::uint64_t part = kPiece / 2; part >= page_size(); part /= 2)
    if (reached_ + part < end && populate(reached_, reached_ + part).ok()) reached_ += part;
}

Status Population::ensure(std::uint64_t from, std::uint64_t bytes) {
  const std::uint64_t to = std::min<std::uint64_t>(from + bytes, memory_.size());
  if (to <= reached_) return {};
  return populate(from, to);
}

Status Population::populate(std::uint64_t from, std::uint64_t to) const {
  if (!can_populate()) return {};
  const auto base = reinterpret_cast<std::uintptr_t>(memory_.data());
  const std::uintptr_t first = (base + from) / page_size() * page_size();
  int rc;
  do
    rc = ::madvise(reinterpret_cast<void*>(first), base + to - first,
                   access_ == Access::kWrite ? kPopulateWrite : kPopulateRead);
  while (rc != 0 && (errno == EINTR || errno == EAGAIN));
  if (rc == 0) return {};
  // EFAULT: touching it would have ended in SIGBUS.
  return exhausted("only " + std::to_string(from) + " of " + std::to_string(memory_.size()) +
                   " bytes of memory are there (" + std::strerror(errno == EFAULT ? ENOMEM : errno) +
                   "); give a smaller --ram");
}

}  // namespace wisp::shm
