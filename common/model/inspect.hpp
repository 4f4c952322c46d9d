#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "model/manifest.hpp"

namespace wisp::model {

/// What a checkpoint, or a folder made of one, is and costs. Numbers follow from the spec alone.
struct Inspection {
  Manifest manifest;        ///< of a checkpoint: as converting would write it, without checksums
  bool converted = false;   ///< the folder is a WISP folder already
  std::uint64_t bytes = 0;  ///< of the WISP folder
  std::vector<std::string> notes;

  std::uint64_t expert_bytes() const { return manifest.spec.expert.stride; }
  std::uint64_t all_expert_bytes() const { return expert_bytes() * manifest.spec.expert_count(); }
  /// Bytes that a token reads from the drive where no expert of it is in memory.
  std::uint64_t cold_bytes_per_token() const {
    return expert_bytes() * manifest.spec.moe_layers() * manifest.spec.router.top_k;
  }
  /// Bytes of KV cache that a position takes with numbers of `size` bytes.
  std::uint64_t kv_bytes_per_token(std::uint64_t size) const {
    return manifest.spec.kv_width_of_all() * size;
  }
};

/// Reads headers and configs only. Errors: those of plan_conversion and load_manifest; kNotFound where
/// `folder` is neither kind.
Result<Inspection> inspect(const std::string& folder);

}  // namespace wisp::model
