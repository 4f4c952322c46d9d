#include "model/synth.hpp"

#include <xxhash.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "model/convert.hpp"
#include "model/dense_plan.hpp"
#include "model/synth/gguf_model.hpp"
#include "model/synth/random_weights.hpp"
#include "model/synth/route_plan.hpp"

namespace wisp::model {
namespace {

using kernels::WeightFormat;

constexpr std::uint32_t kFp8Group = 128;     ///< as fp8 is published
constexpr std::uint32_t kRouteAlign = 32;    ///< columns that activations in bytes share a scale of
constexpr std::uint32_t kRouteTokens = 512;  ///< of calibrated routes

class DenseDrawer final : public DenseRows {
 public:
  DenseDrawer(const RandomWeights& weights, const std::vector<DenseItem>& items)
      : weights_(weights), items_(items) {}

  Status rows(std::size_t index, std::uint32_t first, std::uint32_t count, std::span<std::uint8_t> codes,
              std::span<std::uint8_t> scales) override {
    const RandomMatrix m = weights_.dense(index);
    const std::size_t row = codes.size() / count;
    for (std::uint32_t r = 0; r < count; ++r) m.codes(first + r, codes.subspan(r * row, row));
    if (scales.empty()) return {};
    const WeightFormat f = items_[index].format;
    const std::uint32_t n = kernels::scale_rows(f, count), begin = kernels::scale_rows(f, first);
    const std::size_t scale_row = scales.size() / n;
    for (std::uint32_t r = 0; r < n; ++r) m.scales(begin + r, scales.subspan(r * scale_row, scale_row));
    return {};
  }

 private:
  const RandomWeights& weights_;
  const std::vector<DenseItem>& items_;
};

Result<WeightFormat> format_of(const std::string& name, const char* what) {
  const auto f = kernels::format_named(name);
  if (f && can_draw(*f)) return *f;
  return unsupported(std::string(what) + " format " + name +
                     " is not supported; supported: int4, int8, fp8, mxfp4, bf16, f32");
}

std::uint32_t group_of(WeightFormat f, const SynthOptions& o) {
  if (!kernels::is_coded(f)) return 0;
  return f == WeightFormat::kFp8 ? kFp8Group : o.group;
}

Result<ModelSpec> spec_of(const SynthOptions& o, SynthShape shape) {
  ModelSpec m = std::move(shape.spec);
  WISP_ASSIGN(const WeightFormat format, format_of(o.expert_format, "expert"));
  const std::uint32_t group = group_of(format, o);
  if (kernels::is_coded(format) && group == 0) return invalid("group is 0");
  m.expert = lay_out_expert(m.hidden, m.moe_width, {format, format, group, group, false, false});
  WISP_TRY(check_spec(m));
  return m;
}

Result<std::vector<DenseItem>> items_of(const SynthOptions& o, const ModelSpec& spec,
                                        WeightFormat published) {
  WeightFormat format = published;
  if (!o.dense_format.empty()) {
    WISP_ASSIGN(format, format_of(o.dense_format, "dense"));
  }
  if (!group_fits(format, group_of(format, o)))
    return invalid("a group of the dense weights does not go with their format");
  std::vector<DenseItem> items;
  for (const DenseShape& s : dense_shapes(spec)) {
    // fp8 is published of the layers' matrices alone.
    const bool outside = s.name == "embed" || s.name == "head";
    const bool plain = !s.matrix || s.chooses || (outside && format == WeightFormat::kFp8);
    const WeightFormat f = plain ? WeightFormat::kBf16 : format;
    items.push_back({s.name, f, s.rows, s.cols, s.matrix, group_of(f, o), false});
  }
  return items;
}

/// Null where routers are to be random.
Result<std::unique_ptr<RouteCode>> route_code(const SynthOptions& o, const ModelSpec& spec,
                                              const std::vector<DenseItem>& items) {
  if (o.routes.empty()) {
    if (o.route_tokens != 0 || o.early_recall)
      return invalid("--route-tokens and --early-recall go with --routes");
    return std::unique_ptr<RouteCode>();
  }
  WISP_TRY(RouteCode::check(spec));
  std::uint32_t align = kRouteAlign;
  for (const DenseItem& item : items) align = std::max(align, item.group);
  const std::uint32_t most =
      std::min(RouteCode::capacity(spec, align) / (o.early_recall ? 2 : 1), spec.vocab);
  const RouteShape shape{static_cast<std::uint32_t>(spec.layers.size()), spec.router.experts,
                         spec.router.top_k};
  const bool calibrated = o.routes == kCalibrated;
  const auto too_many = [&](std::uint32_t tokens) {
    return invalid("the model holds the routes of at most " + std::to_string(most) + " tokens, not " +
                   std::to_string(tokens) + ": they take columns of its hidden size and ids of its " +
                   "vocabulary; --route-tokens takes fewer");
  };
  if (most == 0) return too_many(1);
  trace::TokenRoutes routes;
  if (calibrated) {
    const std::uint32_t tokens = o.route_tokens == 0 ? std::min(kRouteTokens, most) : o.route_tokens;
    if (tokens > most) return too_many(tokens);
    routes = calibrated_routes(shape, tokens, o.seed);
  } else {
    WISP_ASSIGN(routes, routes_of_trace(o.routes, shape, o.route_tokens, o.seed));
    if (routes.tokens > most) return too_many(routes.tokens);
  }
  std::optional<trace::TokenRoutes> forecast;
  if (o.early_recall) forecast = forecast_of(routes, *o.early_recall, o.seed);
  return std::make_unique<RouteCode>(spec, align, std::move(routes), std::move(forecast));
}

/// What of the contents is not said by the manifest and the seed.
std::string key_of(const RouteCode* code) {
  if (code == nullptr) return {};
  std::uint64_t hash = 0;
  const auto add = [&](const trace::TokenRoutes& routes) {
    for (const auto& set : routes.chosen)
      hash = XXH3_64bits_withSeed(set.data(), set.size() * sizeof set[0], hash);
  };
  add(code->routes());
  if (code->forecast()) add(*code->forecast());
  return "routes" + std::to_string(hash);
}

}  // namespace

Result<SynthReport> synth(const SynthOptions& options, const ProgressFn& progress) {
  const auto start = std::chrono::steady_clock::now();
  auto shape = synth_shape(options);
  if (!shape.ok()) return std::move(shape).error().within("synth");
  const WeightFormat published = shape->dense;
  Manifest m;
  auto spec = spec_of(options, *std::move(shape));
  if (!spec.ok()) return std::move(spec).error().within("synth");
  m.spec = *std::move(spec);
  m.name = folder_name(options.destination);
  auto items = items_of(options, m.spec, published);
  if (!items.ok()) return std::move(items).error().within("synth");
  if (!options.gguf.empty()) WISP_TRY(check_gguf(m.spec, *items));

  auto code = route_code(options, m.spec, *items);
  if (!code.ok()) return std::move(code).error().within("synth");

  const FolderLayout layout = lay_out_folder(m, *items);
  const std::string what = write_manifest(m) + std::to_string(options.seed) + key_of(code->get());
  const std::uint64_t key = XXH3_64bits(what.data(), what.size());
  WISP_ASSIGN(FolderWriter writer, FolderWriter::begin(options.destination, options.force, layout.total_bytes,
                                                       progress, options.free_bytes, key));

  const RandomWeights weights(options.seed, m.spec, *items, code->get());
  std::uint64_t gguf_bytes = 0;
  if (!options.gguf.empty()) {
    WISP_ASSIGN(gguf_bytes,
                write_gguf(options.gguf, options.force, m.name, m.spec, *items, weights, progress));
  }
  DenseDrawer dense(weights, *items);
  WISP_TRY(writer.write_dense(layout, *items, m, dense));
  for (std::uint32_t layer = 0; layer < m.spec.layers.size(); ++layer) {
    if (!m.spec.layers[layer].moe) continue;
    const auto fill = [&](std::uint32_t e, std::span<std::uint8_t> out) -> Status {
      using Part = RandomWeights::Part;
      const ExpertShape& x = m.spec.expert;
      for (const auto& [part, at] :
           {std::pair{Part::kGate, &x.gate}, std::pair{Part::kUp, &x.up}, std::pair{Part::kDown, &x.down}})
        weights.expert(layer, e, part).tiles(out.data() + at->codes_offset, out.data() + at->scales_offset);
      return {};
    };
    WISP_TRY(writer.write_experts(layout, layer, m, fill));
  }
  SynthReport report{
      m.name, m.spec.expert_count(), layout.total_bytes, m.spec.expert.stride, gguf_bytes, 0.0, 0, {}};
  if (*code != nullptr) {
    report.route_tokens = (*code)->routes().tokens;
    report.routes = trace::statistics_of((*code)->routes());
  }
  WISP_TRY(writer.finish(m));
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

}  // namespace wisp::model
