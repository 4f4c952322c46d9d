#include "shm/region.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace wisp::shm {

namespace bip = boost::interprocess;

namespace {
/// What Boost asks of a thing that can be mapped.
class MappableFd {
 public:
  MappableFd(int fd, bool writable) : fd_(fd), mode_(writable ? bip::read_write : bip::read_only) {}
  bip::mapping_handle_t get_mapping_handle() const {
    return bip::ipcdetail::mapping_handle_from_file_handle(fd_);
  }
  bip::mode_t get_mode() const { return mode_; }

 private:
  int fd_;
  bip::mode_t mode_;
};

/// Where a mapping could have huge pages; null where it is too small for one.
void* place_for(std::size_t size) {
  constexpr std::size_t kHuge = std::size_t{2} << 20;
  if (size < kHuge) return nullptr;
  void* const free =
      ::mmap(nullptr, size + kHuge, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (free == MAP_FAILED) return nullptr;
  ::munmap(free, size + kHuge);
  const auto at = (reinterpret_cast<std::uintptr_t>(free) + kHuge - 1) / kHuge * kHuge;
  return reinterpret_cast<void*>(at);
}

std::string errno_text() {
  return std::strerror(errno);
}
}  // namespace

Result<Fd> create_memfd(const std::string& name, std::uint64_t size, bool populate) {
  Fd fd(memfd_create(("wisp." + name).c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return io_error("memfd_create " + name + ": " + errno_text());
  // Born with mode 0777: another user holding a read-only descriptor could re-open it for writing.
  if (fchmod(fd.get(), 0600) != 0) return io_error("fchmod " + name + ": " + errno_text());
  if (ftruncate(fd.get(), static_cast<off_t>(size)) != 0)
    return exhausted("region " + name + " of " + std::to_string(size) + " bytes: " + errno_text());
  if (populate && size > 0) {
    int rc;
    do rc = fallocate(fd.get(), 0, 0, static_cast<off_t>(size));
    while (rc != 0 && errno == EINTR);
    if (rc != 0)
      return exhausted("region " + name + ": " + std::to_string(size) + " bytes of memory are not there (" +
                       errno_text() + "); give a smaller --ram");
  }
  if (fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    return io_error("sealing region " + name + ": " + errno_text());
  return fd;
}

Result<Fd> reopen_read_only(int fd) {
  Fd ro(::open(("/proc/self/fd/" + std::to_string(fd)).c_str(), O_RDONLY | O_CLOEXEC));
  if (!ro.valid()) return io_error("re-opening a region read-only: " + errno_text());
  return ro;
}

Result<Mapping> Mapping::map(int fd, bool writable) {
  struct stat st {};
  if (fstat(fd, &st) != 0)
    return io_error("fstat of region descriptor " + std::to_string(fd) + ": " + errno_text());
  Mapping m;
  if (st.st_size == 0) return m;
  try {
    const MappableFd mappable(fd, writable);
    const bip::mode_t mode = writable ? bip::read_write : bip::read_only;
    const auto size = static_cast<std::size_t>(st.st_size);
    try {
      m.region_ = bip::mapped_region(mappable, mode, 0, size, place_for(size));
    } catch (const bip::interprocess_exception&) {
      m.region_ = bip::mapped_region(mappable, mode, 0, size);  // another thread was faster at that place
    }
  } catch (const bip::interprocess_exception& e) {
    return io_error("mapping " + std::to_string(st.st_size) + " bytes: " + e.what());
  }
  return m;
}

void enter_in_page_table(const void* begin, std::uint64_t bytes, bool writable) {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto from = reinterpret_cast<std::uintptr_t>(begin) / page * page;
  const auto to = (reinterpret_cast<std::uintptr_t>(begin) + bytes + page - 1) / page * page;
  if (to == from) return;
  [[maybe_unused]] const int rc = ::madvise(reinterpret_cast<void*>(from), to - from,
                                            writable ? MADV_POPULATE_WRITE : MADV_POPULATE_READ);
}

Status check_header(const Mapping& m, RegionKind kind) {
  const std::string where = "region of kind " + std::to_string(static_cast<std::uint32_t>(kind));
  if (m.size() < sizeof(RegionHeader)) return corrupt(where + " is too small for its header");
  const auto* h = static_cast<const RegionHeader*>(m.data());
  if (h->magic.load(std::memory_order_acquire) != kRegionMagic) return corrupt(where + " is not initialised");
  if (h->kind != static_cast<std::uint32_t>(kind))
    return corrupt(where + " holds kind " + std::to_string(h->kind));
  if (h->layout_version != kLayoutVersion || h->layout_hash != layout_hash())
    return corrupt(where + " was laid out by another build of WISP: start all stages from one installation");
  if (h->size != m.size()) return corrupt(where + " has another size than its header says");
  return {};
}

void begin_header(void* base, RegionKind kind, std::uint64_t size, std::uint64_t run_id,
                  std::uint64_t generation) {
  auto* h = static_cast<RegionHeader*>(base);
  h->layout_version = kLayoutVersion;
  h->kind = static_cast<std::uint32_t>(kind);
  h->layout_hash = layout_hash();
  h->size = size;
  h->run_id = run_id;
  h->generation = generation;
}

void seal_header(void* base) {
  static_cast<RegionHeader*>(base)->magic.store(kRegionMagic, std::memory_order_release);
}

}  // namespace wisp::shm
