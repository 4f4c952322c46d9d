#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "model/model_spec.hpp"

namespace wisp::model {

/// The layout that the kernels stream; a folder with another one is refused with the command that re-lays it.
inline constexpr std::uint32_t kLayoutVersion = 1;

/// A tensor of dense.safetensors. Matrices are in the tile layout, vectors plain.
struct DenseTensor {
  kernels::WeightFormat format = kernels::WeightFormat::kF32;
  std::uint32_t rows = 0;  ///< 1 for a vector
  std::uint32_t cols = 0;
  bool tiled = false;
  std::uint64_t offset =
      0;  ///< bytes from the start of the dense region (= of the file's data section), 64-aligned
  std::uint64_t bytes = 0;
  std::uint64_t checksum = 0;  ///< xxh3-64
};

/// One expert extent on disk.
struct ExpertExtent {
  std::uint64_t offset = 0;    ///< bytes from the start of its layer's file, multiple of 4096
  std::uint64_t checksum = 0;  ///< xxh3-64 of the payload
};

struct LayerExperts {
  std::string file;                   ///< relative to the folder; empty for a dense layer
  std::vector<ExpertExtent> extents;  ///< [experts]
};

/// A file beside the weights: tokenizer, template, the publisher's configs.
struct TextFile {
  std::uint64_t bytes = 0;
  std::uint64_t checksum = 0;  ///< xxh3-64
};

/// Sampling defaults of generation_config.json (greedy where it does not ask to sample).
struct GenerationDefaults {
  bool sample = false;
  float temperature = 1.0f;
  std::uint32_t top_k = 0;  ///< 0 = off
  float top_p = 1.0f;
  float min_p = 0.0f;
  std::vector<std::uint32_t> eos;
};

/// manifest.json: what a converted folder holds. Read-only after conversion.
struct Manifest {
  std::uint32_t layout_version = kLayoutVersion;
  std::string name;  ///< last component of the source folder: the model id the API shows
  ModelSpec spec;
  std::string dense_file = "dense.safetensors";
  std::uint64_t dense_file_offset = 0;  ///< of the data section within the file, multiple of 4096
  std::uint64_t dense_bytes = 0;        ///< of the data section, multiple of 4096
  std::map<std::string, DenseTensor> dense;
  std::vector<LayerExperts> experts;      ///< [layers]
  std::map<std::string, TextFile> texts;  ///< by name; what `wisp verify` holds them against
  GenerationDefaults generation;
  std::string profile = "exact";  ///< the profile this model runs in where none is asked for
  std::uint64_t model_hash = 0;   ///< over all checksums: names the weights
};

/// Reads and checks `folder/manifest.json`: every offset, size and shape is held against the file sizes on
/// disk. Errors: kNotFound (no manifest), kInvalid (malformed, lying), kUnsupported (another layout version).
Result<Manifest> load_manifest(const std::string& folder);
/// The parser beneath (fuzzed): text only, no file access.
Result<Manifest> parse_manifest(std::string_view json);
std::string write_manifest(const Manifest& m);

/// Canonical names of dense tensors: "embed", "head", "norm", "layers.N.attn.{q,k,v,o}",
/// ".attn.{q,k,v,o}.bias",
/// ".attn.{q_norm,k_norm}", "layers.N.{attn_norm,ffn_norm}", "layers.N.router",
/// "layers.N.ffn.{gate,up,down}".
std::string layer_tensor(std::uint32_t layer, std::string_view rest);

/// The hash that names the weights: xxh3-64 over the names and checksums of all dense tensors and all
/// experts.
std::uint64_t hash_of_weights(const Manifest& m);
/// Holds a spec against the bounds of limits.hpp and its own logic; names the field.
Status check_spec(const ModelSpec& m);

/// Lays out an expert of the given formats: fills offsets, payload and stride.
ExpertShape lay_out_expert(std::uint32_t hidden, std::uint32_t width, kernels::WeightFormat gate_up,
                           kernels::WeightFormat down, std::uint32_t group, bool bias);

}  // namespace wisp::model
