#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "model/folder_writer.hpp"
#include "model/manifest.hpp"

namespace wisp::model {

/// Something whose bytes do not give the checksum of the manifest, or cannot be read.
struct BadPart {
  std::string what;                     ///< "layer 3 expert 17", "dense tensor layers.0.attn.q", "text"
  std::string file;                     ///< in the model folder, or the whole path
  std::uint64_t offset = 0, bytes = 0;  ///< where in the file it lies
  std::string why;
};

struct VerifyReport {
  std::uint64_t experts = 0, dense_tensors = 0, texts = 0;  ///< those of a draft head included
  std::uint64_t stripes = 0;                                ///< folders of them
  std::uint64_t bytes = 0;                                  ///< read
  std::uint64_t bad_count = 0;                              ///< all of them
  std::vector<BadPart> bad;                                 ///< the first ones
  double seconds = 0.0;
};

/// Reads every expert, dense tensor and text of a model folder again, from the device where the kernel lets
/// it, and its stripes, and compares the checksums. An Error only where the manifest itself cannot be used,
/// or a stripe is not the model's.
Result<VerifyReport> verify(const std::string& folder, const ProgressFn& progress);

/// The texts alone of a folder whose manifest is `m`. Errors: kCorrupt names the first that is not as it was.
Status verify_texts(const std::string& folder, const Manifest& m);

}  // namespace wisp::model
