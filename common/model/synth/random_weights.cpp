#include "model/synth/random_weights.hpp"

#include <charconv>
#include <cmath>
#include <cstring>
#include <string_view>

#include "wisp/kernels/number.hpp"
#include "wisp/kernels/relayout.hpp"

namespace wisp::model {
namespace {

using kernels::WeightFormat;

// Deviations of the codes as they are drawn below.
constexpr float kInt4Deviation = 3.2403703f;   ///< sqrt(10.5)
constexpr float kInt8Deviation = 52.2542661f;  ///< sqrt((128^2 - 1) / 6)
constexpr float kMxfp4Deviation = 2.9261750f;  ///< sqrt(68.5 / 8)
constexpr float kFp8Deviation = 9.5740607f;    ///< sqrt of the mean of 4^(e - 7) times that of (1 + m / 8)^2

float fan_in_deviation(std::uint32_t cols) {
  return 1.0f / std::sqrt(static_cast<float>(cols));
}

template <class Word, class Next>
void fill(std::span<std::uint8_t> out, const Next& next) {
  std::size_t i = 0;
  for (; i + sizeof(Word) <= out.size(); i += sizeof(Word)) {
    const Word w = next();
    std::memcpy(out.data() + i, &w, sizeof w);
  }
  if (i == out.size()) return;
  const Word w = next();
  std::memcpy(out.data() + i, &w, out.size() - i);
}

RouteCode::Role role_of(std::string_view name) {
  using Role = RouteCode::Role;
  if (name == "embed") return Role::kEmbed;
  if (name == "head") return Role::kHead;
  if (name.ends_with(".router")) return Role::kRouter;
  if (name.ends_with(".ffn_norm")) return Role::kNorm;
  return name.ends_with(".attn.o") ? Role::kWriter : Role::kNone;
}

/// 3 of "layers.3.router"; 0 where there is none.
std::uint32_t layer_of(std::string_view name) {
  constexpr std::string_view kLayers = "layers.";
  std::uint32_t layer = 0;
  if (name.starts_with(kLayers))
    std::from_chars(name.data() + kLayers.size(), name.data() + name.size(), layer);
  return layer;
}

}  // namespace

Random Random::of(std::uint64_t a, std::uint64_t b, std::uint64_t c) const {
  Random r = *this;
  for (const std::uint64_t n : {a, b, c}) r.state_ = r.next() ^ (n * 0x9e3779b97f4a7c15u);
  return r;
}

std::uint64_t Random::next() {
  std::uint64_t z = state_ += 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}

float Random::normal() {
  const std::uint64_t r = next();
  const auto sum =
      static_cast<std::int32_t>((r & 0xffff) + (r >> 16 & 0xffff) + (r >> 32 & 0xffff) + (r >> 48));
  return static_cast<float>(sum - 131070) * (1.0f / 37837.0f);
}

float Random::jitter() {
  return 0.75f + static_cast<float>(next() >> 41) * (0.5f / 8388608.0f);
}

bool can_draw(WeightFormat f) {
  return f == WeightFormat::kF32 || f == WeightFormat::kBf16 || f == WeightFormat::kInt4 ||
         f == WeightFormat::kInt8 || f == WeightFormat::kFp8 || f == WeightFormat::kMxfp4;
}

void RandomMatrix::codes(std::uint32_t row, std::span<std::uint8_t> out) const {
  draw_codes(row, out);
  if (route != nullptr) route->codes(role, layer, row, format, out);
}

void RandomMatrix::scales(std::uint32_t row, std::span<std::uint8_t> out) const {
  draw_scales(row, out);
  if (route != nullptr) route->scales(role, row, format, group, out);
}

void RandomMatrix::draw_codes(std::uint32_t row, std::span<std::uint8_t> out) const {
  Random random = stream.of(0, row, 0);
  switch (format) {
    case WeightFormat::kBf16:
      return fill<std::uint16_t>(out,
                                 [&] { return kernels::float_to_bf16(mean + deviation * random.normal()); });
    case WeightFormat::kInt4:
      // Eight sums of two 3-bit numbers at once: codes 1 to 15, symmetric about 8.
      return fill<std::uint32_t>(out, [&] {
        const std::uint64_t r = random.next();
        return static_cast<std::uint32_t>((r & 0x77777777u) + (r >> 32 & 0x77777777u) + 0x11111111u);
      });
    case WeightFormat::kMxfp4:
      return fill<std::uint32_t>(out, [&] { return static_cast<std::uint32_t>(random.next()); });
    case WeightFormat::kInt8:
      // Eight sums of two 7-bit numbers: 1 to 255, moved to -127 to 127.
      return fill<std::uint64_t>(out, [&] {
        constexpr std::uint64_t kSeven = 0x7f7f7f7f7f7f7f7fu;
        const std::uint64_t a = random.next() & kSeven, b = random.next() & kSeven;
        return (a + b + 0x0101010101010101u) ^ ~kSeven;
      });
    case WeightFormat::kFp8:
      // A sign, exponents 4 to 11 and any fraction: 1/8 to 30.
      return fill<std::uint64_t>(out, [&] {
        const std::uint64_t r = random.next();
        return ((r & 0x3f3f3f3f3f3f3f3fu) + 0x2020202020202020u) | (r & 0x8080808080808080u);
      });
    default:
      return fill<float>(out, [&] { return mean + deviation * random.normal(); });
  }
}

void RandomMatrix::draw_scales(std::uint32_t row, std::span<std::uint8_t> out) const {
  Random random = stream.of(1, row, 0);
  if (format == WeightFormat::kFp8)
    return fill<float>(out, [&] { return deviation / kFp8Deviation * random.jitter(); });
  if (format == WeightFormat::kMxfp4) {
    // The nearest power of two, by ratio.
    const int exponent = std::ilogb(deviation / kMxfp4Deviation * 1.41421356f);
    return fill<std::uint8_t>(out, [&] { return static_cast<std::uint8_t>(exponent + 127); });
  }
  const float scale = deviation / (format == WeightFormat::kInt4 ? kInt4Deviation : kInt8Deviation);
  fill<std::uint16_t>(out, [&] { return kernels::float_to_bf16(scale * random.jitter()); });
}

void RandomMatrix::tiles(std::uint8_t* code_plane, std::uint8_t* scale_plane) const {
  const std::size_t row = kernels::row_bytes(format, cols);
  std::vector<std::uint8_t> plain(rows * row);
  for (std::uint32_t r = 0; r < rows; ++r) codes(r, std::span(plain).subspan(r * row, row));
  kernels::tile_codes(format, rows, cols, plain.data(), code_plane);
  if (!kernels::is_coded(format)) return;
  const std::uint32_t groups = kernels::groups_of(cols, group);
  const std::size_t scale_row = std::size_t{groups} * kernels::traits_of(format).scale_bytes;
  plain.resize(kernels::scale_rows(format, rows) * scale_row);
  for (std::uint32_t r = 0; r < kernels::scale_rows(format, rows); ++r)
    scales(r, std::span(plain).subspan(r * scale_row, scale_row));
  kernels::tile_scales(format, rows, groups, plain.data(), scale_plane);
}

RandomMatrix RandomWeights::dense(std::size_t index) const {
  const DenseItem& item = items_[index];
  RandomMatrix m{item.format,
                 item.rows,
                 item.cols,
                 item.group,
                 0.0f,
                 fan_in_deviation(item.cols),
                 seed_.of(1, index, 0),
                 route_,
                 role_of(item.name),
                 layer_of(item.name)};
  if (!item.matrix) {
    const bool offset = item.name.ends_with(".bias") || item.name.ends_with("router.selection");
    m.mean = offset ? 0.0f : 1.0f;
    m.deviation = 0.05f;
  } else if (item.name == "embed") {
    m.deviation = 0.5f;
  } else if (item.name == "head") {
    m.deviation *= 3.0f;
  }
  return m;
}

RandomMatrix RandomWeights::expert(std::uint32_t layer, std::uint32_t expert, Part part) const {
  const ExpertShape& shape = spec_.expert;
  const ExpertMatrix& m = part == Part::kGate ? shape.gate : part == Part::kUp ? shape.up : shape.down;
  return {m.format,
          m.rows,
          m.cols,
          m.group,
          0.0f,
          fan_in_deviation(m.cols),
          seed_.of(2 + static_cast<std::uint64_t>(part), layer, expert),
          route_,
          part == Part::kDown ? RouteCode::Role::kWriter : RouteCode::Role::kNone,
          layer};
}

}  // namespace wisp::model
