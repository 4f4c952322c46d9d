#pragma once
#include <cstdint>
#include <map>
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
  std::string refusal;  ///< why a checkpoint cannot be converted; then experts and sizes are unknown

  /// Bytes of dense tensors by the name of their format.
  std::map<std::string, std::uint64_t> dense_formats() const {
    std::map<std::string, std::uint64_t> out;
    for (const auto& [name, t] : manifest.dense) out[std::string(kernels::name_of(t.format))] += t.bytes;
    return out;
  }
  std::uint64_t expert_bytes() const { return manifest.spec.expert.stride; }
  /// Weights of the draft head, 0 without one.
  std::uint64_t draft_head_bytes() const {
    std::uint64_t n = 0;
    for (const Manifest& h : manifest.draft_head)
      n += h.dense_bytes + h.spec.expert.stride * h.spec.expert_count();
    return n;
  }
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

/// Reads headers and configs only. A checkpoint whose weights cannot be converted is described as far as its
/// config goes. Errors: those of load_config and load_manifest; kNotFound where `folder` is neither kind.
Result<Inspection> inspect(const std::string& folder);

}  // namespace wisp::model
