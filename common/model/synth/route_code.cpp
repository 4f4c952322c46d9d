#include "model/synth/route_code.hpp"

#include <algorithm>
#include <cstring>

#include "base/check.hpp"
#include "wisp/kernels/number.hpp"

namespace wisp::model {

namespace {

using kernels::WeightFormat;

/// Numbers of bf16 in [2, 4): a router's weights are told apart by them.
constexpr std::uint32_t kLevels = 128;
constexpr float kEmbedded = 1.0f;  ///< where the format has no largest code
/// Above every logit of random weights: those are below sqrt(hidden) times the deviation of a row's norm,
/// some hundred, and what comes of the code is a twentieth of this in the deepest model.
constexpr float kSaid = 1024.0f;

/// Columns [begin, end) become 0. Of nibbles both ends are even.
void clear(WeightFormat f, std::span<std::uint8_t> row, std::uint32_t begin, std::uint32_t end) {
  const std::uint8_t zero = f == WeightFormat::kInt4 ? 0x88 : 0;
  const auto at = [&](std::uint32_t col) { return row.data() + kernels::row_bytes(f, col); };
  std::fill(at(begin), at(end), zero);
}

void put_nibble(std::span<std::uint8_t> row, std::uint32_t col, std::uint8_t code) {
  const unsigned shift = 4 * (col % 2);
  std::uint8_t& byte = row[col / 2];
  byte = static_cast<std::uint8_t>((byte & (0xf0u >> shift)) | unsigned{code} << shift);
}

/// The largest code, or `value` where numbers are not coded.
void put(WeightFormat f, std::span<std::uint8_t> row, std::uint32_t col, float value) {
  switch (f) {
    case WeightFormat::kInt4:
      return put_nibble(row, col, 15);
    case WeightFormat::kMxfp4:
      return put_nibble(row, col, 7);
    case WeightFormat::kInt8:
      row[col] = 127;
      return;
    case WeightFormat::kBf16: {
      const std::uint16_t bits = kernels::float_to_bf16(value);
      std::memcpy(row.data() + std::size_t{col} * 2, &bits, 2);
      return;
    }
    default:
      WISP_CHECK(f == WeightFormat::kF32);  // fp8 is of matrices inside of layers alone
      std::memcpy(row.data() + std::size_t{col} * 4, &value, 4);
  }
}

float weight_of(std::uint32_t rank, std::uint32_t top_k) {
  const std::uint32_t step = std::max(1u, (kLevels - 1) / top_k);
  return 4.0f - static_cast<float>(1 + rank * step) * (2.0f / kLevels);
}

}  // namespace

std::uint32_t RouteCode::capacity(const ModelSpec& spec, std::uint32_t align) {
  const std::uint32_t first = (spec.hidden / 4 + align - 1) / align * align;
  return spec.hidden > first ? spec.hidden - first : 0;
}

Status RouteCode::check(const ModelSpec& s) {
  const auto no = [](const std::string& why) {
    return unsupported("--routes is for models like qwen3-30b: " + why);
  };
  if (s.router.kind != RouterKind::kSoftmaxTopK) return no("this one's router is no plain softmax");
  if (s.attention.is_latent()) return no("this one has latent attention");
  if (s.tied_head) return no("this one's head is its embedding");
  if (s.shared.width != 0) return no("this one has shared experts");
  if (s.expert_bias || s.attention.output_bias) return no("this one's blocks have biases");
  if (s.moe_layers() != s.layers.size()) return no("this one has dense layers");
  if (s.router.top_k >= kLevels)
    return no("a token has " + std::to_string(s.router.top_k) + " experts, more than a router in bf16 ranks");
  return {};
}

RouteCode::RouteCode(const ModelSpec& spec, std::uint32_t align, trace::TokenRoutes routes,
                     std::optional<trace::TokenRoutes> forecast)
    : routes_(std::move(routes)), forecast_(std::move(forecast)), hidden_(spec.hidden) {
  const std::uint32_t columns = routes_.tokens * (forecast_ ? 2 : 1);
  WISP_CHECK(columns > 0 && columns <= capacity(spec, align) && align % 2 == 0);
  WISP_CHECK(routes_.layers == spec.layers.size() && routes_.tokens <= spec.vocab);
  first_ = (hidden_ - columns) / align * align;
}

std::uint32_t RouteCode::column(std::uint32_t lane, std::uint32_t token) const {
  return first_ + lane * routes_.tokens + token;
}

void RouteCode::router_row(std::uint32_t layer, std::uint32_t expert, WeightFormat f,
                           std::span<std::uint8_t> out) const {
  clear(f, out, 0, hidden_);
  const std::uint32_t lane = lane_of(layer);
  const auto put_lane = [&](const trace::TokenRoutes& routes, std::uint32_t where) {
    for (std::uint32_t t = 0; t < routes.tokens; ++t) {
      const auto& set = routes.of(t, layer);
      const auto at = std::ranges::find(set, expert);
      if (at == set.end()) continue;
      const auto rank = static_cast<std::uint32_t>(at - set.begin());
      put(f, out, column(where, t), weight_of(rank, routes.top_k));
    }
  };
  put_lane(routes_, lane);
  if (forecast_) put_lane(*forecast_, 1 - lane);
}

void RouteCode::codes(Role role, std::uint32_t layer, std::uint32_t row, WeightFormat f,
                      std::span<std::uint8_t> out) const {
  const std::uint32_t tokens = routes_.tokens;
  switch (role) {
    case Role::kNone:
      return;
    case Role::kWriter:
      if (row >= first_) std::fill(out.begin(), out.end(), f == WeightFormat::kInt4 ? 0x88 : 0);
      return;
    case Role::kEmbed:
      clear(f, out, first_, hidden_);
      for (std::uint32_t lane = 0; lane < (forecast_ ? 2 : 1); ++lane)
        put(f, out, column(lane, row % tokens), kEmbedded);
      return;
    case Role::kHead:
      clear(f, out, first_, hidden_);
      if (row < tokens) put(f, out, column(0, (row + tokens - 1) % tokens), kSaid);
      return;
    case Role::kRouter:
      return router_row(layer, row, f, out);
    case Role::kNorm:
      if (forecast_) clear(f, out, column(1 - lane_of(layer), 0), column(1 - lane_of(layer), tokens));
      return;
  }
}

void RouteCode::scales(Role role, std::uint32_t row, WeightFormat f, std::uint32_t group,
                       std::span<std::uint8_t> out) const {
  const std::uint32_t tokens = routes_.tokens;
  if (role != Role::kHead || row >= tokens) return;
  const std::size_t at = column(0, (row + tokens - 1) % tokens) / group;
  if (f == WeightFormat::kMxfp4) {
    out[at] = 127 + 7;  // 6 times 2^7
    return;
  }
  const std::uint16_t scale = kernels::float_to_bf16(f == WeightFormat::kInt4 ? kSaid / 8 : kSaid / 128);
  std::memcpy(out.data() + 2 * at, &scale, 2);
}

}  // namespace wisp::model
