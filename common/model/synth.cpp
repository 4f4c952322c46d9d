#include "model/synth.hpp"

#include <xxhash.h>

#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "model/convert.hpp"
#include "model/dense_plan.hpp"
#include "model/limits.hpp"
#include "wisp/kernels/number.hpp"
#include "wisp/kernels/relayout.hpp"

namespace wisp::model {
namespace {

using kernels::WeightFormat;

struct Shape {
  const char* name;
  std::uint32_t layers, hidden, heads, kv_heads, head_dim, experts, top_k, width, vocab, max_positions;
  bool tied;
};
constexpr std::array<Shape, 4> kShapes{{
    {"qwen3-30b", 48, 2048, 32, 4, 128, 128, 8, 768, 151936, 40960, false},
    {"qwen3-235b", 94, 4096, 64, 4, 128, 128, 8, 1536, 151936, 40960, false},
    {"qwen3-480b", 62, 6144, 96, 8, 128, 160, 8, 2560, 151936, 262144, false},
    {"pocket", 8, 256, 6, 2, 64, 32, 4, 128, 4096, 2048, true},
}};

/// SplitMix64: one addition and a mix for 64 bits; every tensor and expert has a stream of its own.
class Random {
 public:
  Random(std::uint64_t seed, std::uint64_t a, std::uint64_t b, std::uint64_t c) : state_(seed) {
    for (const std::uint64_t n : {a, b, c}) state_ = next() ^ (n * 0x9e3779b97f4a7c15u);
  }
  std::uint64_t next() {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
  }
  /// Nearly normal, mean 0, deviation 1: the sum of four uniform 16-bit numbers. No libm, so the same
  /// everywhere.
  float normal() {
    const std::uint64_t r = next();
    const auto sum =
        static_cast<std::int32_t>((r & 0xffff) + (r >> 16 & 0xffff) + (r >> 32 & 0xffff) + (r >> 48));
    return static_cast<float>(sum - 131070) * (1.0f / 37837.0f);
  }
  /// In [0.75, 1.25).
  float jitter() { return 0.75f + static_cast<float>(next() >> 41) * (0.5f / 8388608.0f); }

 private:
  std::uint64_t state_;
};

void draw_plain(Random& random, WeightFormat f, float mean, float deviation, std::span<std::uint8_t> out) {
  if (f == WeightFormat::kBf16) {
    for (std::size_t i = 0; i + 2 <= out.size(); i += 2) {
      const std::uint16_t v = kernels::float_to_bf16(mean + deviation * random.normal());
      std::memcpy(out.data() + i, &v, 2);
    }
    return;
  }
  for (std::size_t i = 0; i + 4 <= out.size(); i += 4) {
    const float v = mean + deviation * random.normal();
    std::memcpy(out.data() + i, &v, 4);
  }
}

float fan_in_deviation(std::uint32_t cols) {
  return 1.0f / std::sqrt(static_cast<float>(cols));
}

class ExpertDrawer {
 public:
  explicit ExpertDrawer(std::uint64_t seed) : seed_(seed) {}

  void draw(const ExpertShape& shape, std::uint32_t layer, std::uint32_t expert,
            std::span<std::uint8_t> out) {
    std::uint64_t part = 0;
    for (const ExpertMatrix* m : {&shape.gate, &shape.up, &shape.down}) {
      Random random(seed_, 1000 + layer, expert, part++);
      draw_matrix(random, *m, out);
    }
  }

 private:
  void draw_matrix(Random& random, const ExpertMatrix& m, std::span<std::uint8_t> out) {
    const float deviation = fan_in_deviation(m.cols);
    if (m.format != WeightFormat::kInt4) {
      plain_.resize(m.rows * kernels::row_bytes(m.format, m.cols));
      draw_plain(random, m.format, 0.0f, deviation, plain_);
      kernels::tile_codes(m.format, m.rows, m.cols, plain_.data(), out.data() + m.codes_offset);
      return;
    }
    // Eight sums of two 3-bit numbers at once: codes 1 to 15, symmetric about 8, deviation sqrt(10.5).
    words_.resize(std::uint64_t{m.rows} * kernels::dwords_of(m.format, m.cols));
    for (std::size_t i = 0; i < words_.size(); ++i) {
      const std::uint64_t r = random.next();
      words_[i] = static_cast<std::uint32_t>((r & 0x77777777u) + (r >> 32 & 0x77777777u) + 0x11111111u);
    }
    kernels::tile_codes(m.format, m.rows, m.cols, words_.data(), out.data() + m.codes_offset);
    const std::uint32_t groups = kernels::groups_of(m.cols, m.group);
    scales_.resize(std::uint64_t{m.rows} * groups);
    for (auto& s : scales_) s = kernels::float_to_bf16(deviation / 3.2403703f * random.jitter());
    kernels::tile_scales(m.format, m.rows, groups, scales_.data(), out.data() + m.scales_offset);
  }

  std::uint64_t seed_;
  std::vector<std::uint8_t> plain_;
  std::vector<std::uint32_t> words_;
  std::vector<std::uint16_t> scales_;
};

/// A stream per group of rows: the groups depend on the shape alone.
class DenseDrawer final : public DenseRows {
 public:
  DenseDrawer(std::uint64_t seed, const std::vector<DenseItem>& items) : seed_(seed), items_(items) {}

  Status rows(std::size_t index, std::uint32_t first, std::uint32_t /*count*/, std::span<std::uint8_t> codes,
              std::span<std::uint8_t> /*scales*/) override {
    Random random(seed_, 1, index, first);
    const DenseItem& item = items_[index];
    if (!item.matrix)
      draw_plain(random, item.format, 1.0f, 0.05f, codes);
    else if (item.name == "embed")
      draw_plain(random, item.format, 0.0f, 0.5f, codes);
    else if (item.name == "head")
      draw_plain(random, item.format, 0.0f, 3.0f * fan_in_deviation(item.cols), codes);
    else
      draw_plain(random, item.format, 0.0f, fan_in_deviation(item.cols), codes);
    return {};
  }

 private:
  std::uint64_t seed_;
  const std::vector<DenseItem>& items_;
};

Result<ModelSpec> spec_of(const SynthOptions& o) {
  const Shape* shape = nullptr;
  for (const auto& s : kShapes) {
    if (o.like == s.name) shape = &s;
  }
  if (!shape) {
    std::string names;
    for (const auto& n : synth_shapes()) names += (names.empty() ? "" : ", ") + n;
    return unsupported("shape " + o.like + " is not known; known: " + names);
  }
  ModelSpec m;
  m.family = "qwen3_moe";
  m.hidden = o.hidden.value_or(shape->hidden);
  m.vocab = o.vocab.value_or(shape->vocab);
  m.max_positions = o.max_positions.value_or(shape->max_positions);
  m.tied_head = shape->tied;
  m.moe_width = o.width.value_or(shape->width);
  m.attention.heads = o.heads.value_or(shape->heads);
  m.attention.kv_heads = o.kv_heads.value_or(shape->kv_heads);
  m.attention.head_dim = o.head_dim.value_or(shape->head_dim);
  m.attention.qk_norm = QkNorm::kHead;
  m.attention.rope.theta = 1e6;
  m.attention.rope.width = m.attention.head_dim;
  m.router.experts = o.experts.value_or(shape->experts);
  m.router.top_k = o.top_k.value_or(std::min(shape->top_k, m.router.experts));
  const std::uint32_t layers = o.layers.value_or(shape->layers);
  if (layers == 0 || layers > kMaxLayers) return invalid("layers is " + std::to_string(layers));
  if (m.hidden > kMaxWidth || m.moe_width > kMaxWidth) return invalid("hidden or width is too large");
  m.layers.resize(layers);

  const bool int4 = o.expert_format == "int4";
  WeightFormat format = WeightFormat::kInt4;
  if (o.expert_format == "bf16")
    format = WeightFormat::kBf16;
  else if (o.expert_format == "f32")
    format = WeightFormat::kF32;
  else if (!int4)
    return unsupported("expert format " + o.expert_format + " is not supported; supported: int4, bf16, f32");
  if (int4 && o.group == 0) return invalid("group is 0");
  const std::uint32_t group = int4 ? o.group : 0;
  m.expert = lay_out_expert(m.hidden, m.moe_width, {format, format, group, group, false, false});
  WISP_TRY(check_spec(m));
  return m;
}

}  // namespace

std::vector<std::string> synth_shapes() {
  std::vector<std::string> names;
  for (const auto& s : kShapes) names.emplace_back(s.name);
  return names;
}

Result<SynthReport> synth(const SynthOptions& options, const ProgressFn& progress) {
  const auto start = std::chrono::steady_clock::now();
  Manifest m;
  auto spec = spec_of(options);
  if (!spec.ok()) return std::move(spec).error().within("synth");
  m.spec = *std::move(spec);
  m.name = folder_name(options.destination);

  std::vector<DenseItem> items;
  for (const auto& s : dense_shapes(m.spec))
    items.push_back({s.name, WeightFormat::kBf16, s.rows, s.cols, s.matrix, 0, false});
  const FolderLayout layout = lay_out_folder(m, items);
  const std::string what = write_manifest(m) + std::to_string(options.seed);
  const std::uint64_t key = XXH3_64bits(what.data(), what.size());
  WISP_ASSIGN(FolderWriter writer, FolderWriter::begin(options.destination, options.force, layout.total_bytes,
                                                       progress, options.free_bytes, key));

  DenseDrawer dense(options.seed, items);
  WISP_TRY(writer.write_dense(layout, items, m, dense));
  ExpertDrawer drawer(options.seed);
  for (std::uint32_t layer = 0; layer < m.spec.layers.size(); ++layer) {
    const auto fill = [&](std::uint32_t e, std::span<std::uint8_t> out) -> Status {
      drawer.draw(m.spec.expert, layer, e, out);
      return {};
    };
    WISP_TRY(writer.write_experts(layout, layer, m, fill));
  }
  WISP_TRY(writer.finish(m));
  SynthReport report{m.name, m.spec.expert_count(), layout.total_bytes, m.spec.expert.stride, 0.0};
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

}  // namespace wisp::model
