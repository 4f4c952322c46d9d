#pragma once
#include <cstdint>
#include <string>

#include "base/fd.hpp"
#include "base/result.hpp"

namespace wisp::loader {

/// An open file of the model. `direct`: opened with O_DIRECT, so that reads go from the drive into our memory
/// and leave nothing in the page cache. Otherwise what was read is dropped from the cache afterwards.
struct ModelFile {
  std::string path;
  Fd fd;
  bool direct = false;
  std::uint32_t drive = 0;  ///< which of the run's drives it lies on: each has a queue of its own
};

/// Opens `path`, with O_DIRECT where the file system takes it; says in the log where it does not. Errors:
/// kNotFound, kIo.
Result<ModelFile> open_model_file(const std::string& path);

}  // namespace wisp::loader
