#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "model/folder_writer.hpp"
#include "model/synth/shapes.hpp"
#include "trace/token_routes.hpp"

namespace wisp::model {

/// A random model in the shape of a real one, for measuring speed and memory. It has no tokenizer.
struct SynthOptions {
  std::string destination;
  std::string like = "qwen3-30b";  ///< one of synth_shapes(); what is given below overrides it
  std::optional<std::uint32_t> layers, hidden, heads, kv_heads, head_dim, experts, top_k, width, vocab,
      max_positions;
  std::string expert_format = "int4";  ///< int4, int8, fp8, mxfp4, bf16 or f32
  std::string dense_format;            ///< the same, of what is always in memory; empty: as the family has it
  std::uint32_t group = 32;            ///< columns per scale of int4 and int8
  std::uint64_t seed = 1;
  /// "": routers are random and choose evenly. A routing trace, or "calibrated": the model's tokens follow it
  /// (route_plan.hpp, route_code.hpp).
  std::string routes;
  std::uint32_t route_tokens = 0;      ///< 0: all of the trace; 512 or as many as fit of calibrated ones
  std::optional<double> early_recall;  ///< share of its experts that a router chooses right a layer early
  std::string gguf;                    ///< also written: the same weights for llama.cpp; empty: not
  bool force = false;
  std::optional<std::uint64_t> free_bytes;  ///< stands in for the disk's figure (tests)
};

struct SynthReport {
  std::string name;
  std::uint64_t experts = 0, bytes = 0, stride = 0;
  std::uint64_t gguf_bytes = 0;
  double seconds = 0.0;
  std::uint32_t route_tokens = 0;  ///< 0: routers are random
  trace::RouteStatistics routes;   ///< of those tokens
};

/// Writes the folder directly, an expert at a time. The same options give the same bytes. Weights are drawn
/// with a standard deviation of 1/sqrt(fan-in), so that activations keep their size through the layers.
/// Routers, norms and what else chooses or shifts stay bf16 in every format.
Result<SynthReport> synth(const SynthOptions& options, const ProgressFn& progress);

}  // namespace wisp::model
