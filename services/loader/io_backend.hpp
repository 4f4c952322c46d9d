#pragma once
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/fd.hpp"
#include "base/result.hpp"
#include "slab/slot_word.hpp"

namespace wisp::loader {

/// One read. `fd` and `destination` stay valid until its completion is reaped; on a file opened with O_DIRECT
/// offset, bytes and destination are multiples of 4096.
struct Read {
  int fd = -1;
  std::uint64_t offset = 0;
  std::uint32_t bytes = 0;
  std::byte* destination = nullptr;
  std::uint64_t tag = 0;  ///< comes back with the completion
  /// Where the bytes go instead, one place after the other, if not empty. They stay until the completion.
  std::span<const iovec> places = {};
};

/// The end of one read: bytes that arrived (0 = end of file), or -errno. Nothing is retried below this
/// interface.
struct Completion {
  std::uint64_t tag = 0;
  std::int64_t result = 0;
};

/// As LoaderBoard::backend shows it.
enum class BackendKind : std::uint32_t { kUring = 1, kPread = 2, kGhost = 3 };

/// Where reads go. All calls come from the stage's thread. Every backend keeps the loader's tombstone (the
/// write end of a pipe) open until nothing that it was asked for can reach the slab any more, however the
/// process ends.
class IoBackend {
 public:
  virtual ~IoBackend() = default;
  virtual BackendKind kind() const = 0;
  /// Takes a read, or returns false where there is no room before the next completion.
  virtual bool submit(const Read& r) = 0;
  /// Hands the reads taken since the last flush to whoever performs them.
  virtual void flush() = 0;
  /// Fills `out` with completions that are there; returns how many. Never blocks.
  virtual std::size_t reap(std::span<Completion> out) = 0;
  /// Whether reap() or flush() would have something to do.
  virtual bool ready() const = 0;
  /// Readable when there are completions.
  virtual int poll_fd() const = 0;
  /// Pins the slab from its front for reads, at least up to `bytes`; 0 lets go of all of it (reads in
  /// flight keep theirs). Returns the bytes that are pinned; fewer than asked for where the kernel refuses,
  /// which is said in the log once. A piece of 64 MiB takes a few ms.
  virtual std::uint64_t pin(std::uint64_t bytes) {
    (void)bytes;
    return 0;
  }
};

inline constexpr std::uint32_t kMaxReads = 64;  ///< in flight, over all drives

/// What a backend needs to know of the loader. `tombstone` moves into the backend; -1 where nobody listens
/// (tests).
struct BackendSetup {
  std::string io = "auto";  ///< auto, uring, pread, ghost
  Fd tombstone;
  std::span<std::byte> slab;
  std::uint64_t stride = 0;
  const slab::SlabDir* slab_dir = nullptr;
  std::uint32_t epoch = 0;
  std::uint32_t drives = 1;
  bool pinned = false;  ///< the whole slab, at once
};

/// The backend that `setup.io` names; `auto` is io_uring, or the pread threads where the kernel refuses it
/// (said in the log). Errors: kUnavailable where io_uring was demanded and refused, kIo, kInvalid for an
/// unknown name.
Result<std::unique_ptr<IoBackend>> make_backend(BackendSetup setup);

/// On failure `setup.tombstone` is still there.
Result<std::unique_ptr<IoBackend>> make_uring_backend(BackendSetup& setup);
Result<std::unique_ptr<IoBackend>> make_pread_backend(BackendSetup& setup);
/// For tests: reads through the pread threads, and a child process plays what a drive may do. After the
/// loader's end it keeps the tombstone for 300 ms, overwrites every slot that was being filled, and only then
/// lets go.
Result<std::unique_ptr<IoBackend>> make_ghost_backend(BackendSetup& setup);

}  // namespace wisp::loader
