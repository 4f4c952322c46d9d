#pragma once
#include <atomic>
#include <boost/interprocess/mapped_region.hpp>
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/fd.hpp"
#include "base/result.hpp"

namespace wisp::shm {

/// Padding between words of different writers. Our own constant: the standard's differs by flag and compiler.
inline constexpr std::size_t kLine = 128;

enum class RegionKind : std::uint32_t { kLife = 1, kDesk, kSlabDir, kKv, kJournal };

/// Opens every region but `slab` and `dense` (those hold payload alone). The launcher writes it before it
/// starts the first stage and never again; `magic` is stored last with release.
struct RegionHeader {
  std::atomic<std::uint64_t> magic;
  std::uint32_t layout_version;
  std::uint32_t kind;  ///< RegionKind
  std::uint64_t
      layout_hash;     ///< over offsets and sizes of the structs inside: two builds that disagree never talk
  std::uint64_t size;  ///< bytes of the whole region
  std::uint64_t run_id;      ///< random; the same in all regions of a run
  std::uint64_t generation;  ///< counts resets: contents of another generation are not to be mixed
};
inline constexpr std::uint64_t kRegionMagic = 0x31504e4f49474552ULL;
inline constexpr std::uint32_t kLayoutVersion = 1;

/// A memfd of a fixed size: sealed against resizing, mode 0600, every byte backed by memory.
/// Errors: kExhausted with the numbers where memory does not suffice.
Result<Fd> create_memfd(const std::string& name, std::uint64_t size, bool populate);
/// A read-only descriptor of the same memory: cannot be mapped writable.
Result<Fd> reopen_read_only(int fd);

/// One mapping of a memfd. Owns the mapping, not the descriptor.
class Mapping {
 public:
  Mapping() = default;
  static Result<Mapping> map(int fd, bool writable);
  void* data() const { return region_.get_address(); }
  std::uint64_t size() const { return region_.get_size(); }

 private:
  boost::interprocess::mapped_region region_;
};

/// Enters mapped pages in this process's page table now, so that using them first costs no fault; writable
/// ones as `writable`. A kernel that cannot (before 5.14) does it page by page later.
void enter_in_page_table(const void* begin, std::uint64_t bytes, bool writable);

/// Checks a mapped header against kind, size and this build's layout. The region must be ready: a stage is
/// started only after the launcher has finished it.
Status check_header(const Mapping& m, RegionKind kind);
/// Writes everything but the magic; `seal_header` stores the magic once the rest of the region is
/// initialised.
void begin_header(void* base, RegionKind kind, std::uint64_t size, std::uint64_t run_id,
                  std::uint64_t generation);
void seal_header(void* base);
/// Hash over every shared struct of this build (layout.cpp lists them).
std::uint64_t layout_hash();

}  // namespace wisp::shm
