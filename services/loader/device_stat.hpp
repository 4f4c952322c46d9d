#pragma once
#include <cstdint>
#include <optional>

namespace wisp::loader {

/// Bytes that the block device `device` (st_dev of a file on it) has read since the machine started, of all
/// who read: /sys/dev/block/<number>/stat. Nothing where the file system lies on no block device of its own.
std::optional<std::uint64_t> device_bytes_read(std::uint64_t device);

}  // namespace wisp::loader
