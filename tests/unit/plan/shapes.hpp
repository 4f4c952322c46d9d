#pragma once
#include <cstdint>

#include "model/draft_head.hpp"
#include "model/manifest.hpp"
#include "plan/run_plan.hpp"

/// The models that plans are made for in tests.
namespace wisp::plan {

inline constexpr std::uint64_t kMiB = 1024 * 1024;
inline constexpr std::uint64_t kGiB = 1024 * kMiB;

/// What of a model a plan depends on: counts, and bytes.
struct Shape {
  const char* name;
  std::uint32_t layers, dense_layers, hidden, heads, kv_heads, head_dim, experts, top_k, moe_width, vocab,
      positions;
  std::uint64_t stride, dense_bytes;
};
inline constexpr Shape kPocket{"pocket", 8, 0, 256, 6, 2, 64, 32, 4, 128, 4096, 2048, 57344, 6 * kMiB};
inline constexpr Shape kQwen30B{"qwen3-30b", 48, 0,   2048,   32,    4,       128,
                                128,         8,  768, 151936, 40960, 2506752, 3 * kGiB};
// More than 2^32 bytes of experts in a layer, and more than 2^39 in all.
inline constexpr Shape kDeepSeekV3{"deepseek-v3", 61, 3,    7168,   128,    128,      128,
                                   256,           8,  2048, 129280, 163840, 46153728, 18 * kGiB};
inline constexpr Shape kDense{"dense", 4, 4, 512, 8, 8, 64, 0, 0, 0, 32000, 4096, 0, 100 * kMiB};

/// The manifest of a model of that shape, weights in f32 where nothing else is said.
inline model::Manifest make_manifest(const Shape& s) {
  model::Manifest m;
  m.name = s.name;
  m.dense_bytes = s.dense_bytes;
  m.model_hash = 42;
  m.spec.hidden = s.hidden;
  m.spec.vocab = s.vocab;
  m.spec.max_positions = s.positions;
  m.spec.moe_width = s.moe_width;
  m.spec.attention.heads = s.heads;
  m.spec.attention.kv_heads = s.kv_heads;
  m.spec.attention.head_dim = s.head_dim;
  m.spec.attention.rope.width = s.head_dim;
  m.spec.router.experts = s.experts;
  m.spec.router.top_k = s.top_k;
  m.spec.expert.stride = s.stride;
  m.spec.layers.resize(s.layers);
  for (std::uint32_t i = 0; i < s.dense_layers; ++i) m.spec.layers[i] = {false, 4 * s.hidden};
  return m;
}

/// Gives `m` bf16 tables and a draft head with a dense part and experts of so many bytes each.
inline void add_head(model::Manifest& m, std::uint64_t dense_bytes, std::uint64_t stride) {
  model::DenseTensor table;
  table.tiled = true;
  table.format = kernels::WeightFormat::kBf16;
  table.rows = m.spec.vocab;
  table.cols = m.spec.hidden;
  table.bytes = model::planes_of(table).bytes;
  m.dense["embed"] = m.dense["head"] = table;
  model::Manifest head;
  head.spec = model::draft_head_spec(m.spec);
  head.spec.expert.stride = stride;
  head.dense_bytes = dense_bytes;
  m.draft_head.push_back(head);
}

/// Two threads and so many bytes; 0 = as without --ram.
inline RunOptions with_ram(std::uint64_t ram) {
  RunOptions o;
  o.ram = ram;
  o.threads = 2;
  return o;
}

/// Memory that no plan here fills: bytes.
inline constexpr std::uint64_t kPlenty = std::uint64_t{1} << 44;

}  // namespace wisp::plan
