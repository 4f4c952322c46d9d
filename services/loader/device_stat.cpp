#include "services/loader/device_stat.hpp"

#include <sys/sysmacros.h>

#include <fstream>
#include <string>

namespace wisp::loader {

std::optional<std::uint64_t> device_bytes_read(std::uint64_t device) {
  constexpr std::uint64_t kSector = 512;  // of these files, whatever the device's own is
  std::ifstream in("/sys/dev/block/" + std::to_string(major(device)) + ":" + std::to_string(minor(device)) +
                   "/stat");
  std::uint64_t reads = 0, merged = 0, sectors = 0;
  if (!(in >> reads >> merged >> sectors)) return std::nullopt;
  return sectors * kSector;
}

}  // namespace wisp::loader
