#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "model/model_spec.hpp"

namespace wisp::model {

/// The layout that the kernels stream; a folder with another one is refused with the command that re-lays it.
inline constexpr std::uint32_t kLayoutVersion = 2;

/// A tensor of dense.safetensors. Matrices are in the tile layout, vectors plain.
struct DenseTensor {
  kernels::WeightFormat format = kernels::WeightFormat::kF32;
  std::uint32_t rows = 0;  ///< 1 for a vector
  std::uint32_t cols = 0;
  std::uint32_t group = 0;  ///< columns that share a scale; 0 for plain numbers
  bool tiled = false;
  bool ordered = false;      ///< its columns come in an order of their own, which lies beside them
  std::uint64_t offset = 0;  ///< bytes from the start of the dense region (= of the file's data), 64-aligned
  std::uint64_t bytes = 0;   ///< of all its planes
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

/// Repetition penalties that are taken: a logit is divided by one.
inline constexpr double kLeastRepetitionPenalty = 0.01, kMostRepetitionPenalty = 100.0;

/// Sampling defaults of generation_config.json (greedy where it does not ask to sample).
struct GenerationDefaults {
  bool sample = false;
  float temperature = 1.0f;
  std::uint32_t top_k = 0;  ///< 0 = off
  float top_p = 1.0f;
  float min_p = 0.0f;
  float repetition_penalty = 1.0f;  ///< 1 = off
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
  std::string fast_measured_on;   ///< the model that `fast` was measured on for this family, "" = none
  std::uint64_t model_hash = 0;   ///< over spec and checksums: names the model
  /// None, or one: the layer that drafts for this model, as a model of its own whose spec is
  /// draft_head_spec()'s. Only spec, dense part, experts and hash count; model_hash does not cover it, since
  /// it changes no answer.
  std::vector<Manifest> draft_head;
};

/// Reads and checks `folder/manifest.json`: every offset, size and shape is held against the file sizes on
/// disk. Errors: kNotFound (no manifest), kInvalid (malformed, lying), kUnsupported (another layout version).
Result<Manifest> load_manifest(const std::string& folder);
/// The parser beneath (fuzzed): text only, no file access. `folder` is named where it must be made anew.
Result<Manifest> parse_manifest(std::string_view json, std::string_view folder = "FOLDER");
std::string write_manifest(const Manifest& m);
/// Whether any product of this model takes bytes in the `fast` profile; else both profiles are one.
bool multiplies_bytes(const Manifest& m);
/// Why `m.profile` is what it is, in a few words.
std::string profile_reason(const Manifest& m);

/// Canonical names of dense tensors: "embed", "head", "norm", "layers.N.attn.{q,k,v,o}",
/// ".attn.{q,k,v,o}.bias",
/// ".attn.{q_norm,k_norm}", "layers.N.{attn_norm,ffn_norm}", "layers.N.router",
/// "layers.N.ffn.{gate,up,down}".
std::string layer_tensor(std::uint32_t layer, std::string_view rest);

/// The hash that names the model: xxh3-64 over its spec, and the names and checksums of all dense tensors and
/// all experts.
std::uint64_t hash_of_weights(const Manifest& m);
/// Holds a spec against the bounds of limits.hpp and its own logic; names the field.
Status check_spec(const ModelSpec& m);

/// Where the planes of a tensor begin, from its own start; aligned to 64.
struct Planes {
  std::uint64_t scales = 0;  ///< 0 where there are none
  std::uint64_t order = 0;   ///< u32 [cols]: the column of the activations at each place; 0 where in order
  std::uint64_t bytes = 0;
};
Planes planes_of(const DenseTensor& t);

/// Whether weights of this format can have scales that so many columns share.
bool group_fits(kernels::WeightFormat f, std::uint32_t group);

/// How the experts of a model are stored.
struct ExpertForm {
  kernels::WeightFormat gate_up = kernels::WeightFormat::kF32, down = kernels::WeightFormat::kF32;
  std::uint32_t gate_up_group = 0, down_group = 0;  ///< columns that share a scale; 0 for plain numbers
  bool bias = false;
  bool ordered = false;  ///< columns come in an order of their own
};
/// Lays out an expert: fills offsets, payload and stride.
ExpertShape lay_out_expert(std::uint32_t hidden, std::uint32_t width, const ExpertForm& form);
/// The form that such a shape was laid out from.
ExpertForm form_of(const ExpertShape& e);

}  // namespace wisp::model
