#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "model/folder_writer.hpp"
#include "model/model_spec.hpp"
#include "model/synth/route_code.hpp"

namespace wisp::model {

/// First number of the streams that draw routes; below it are those of weights.
inline constexpr std::uint64_t kRouteStream = 16;

/// SplitMix64: one addition and a mix for 64 bits.
class Random {
 public:
  explicit Random(std::uint64_t state) : state_(state) {}
  /// A stream of its own for each three numbers.
  Random of(std::uint64_t a, std::uint64_t b, std::uint64_t c) const;
  std::uint64_t next();
  /// Nearly normal, mean 0, deviation 1: the sum of four uniform 16-bit numbers. No libm, so the same
  /// everywhere.
  float normal();
  /// In [0.75, 1.25).
  float jitter();

 private:
  std::uint64_t state_;
};

/// A matrix of random numbers. Every row and every row of scales is drawn from a stream of its own, so they
/// can be had in any order, any number of times.
struct RandomMatrix {
  kernels::WeightFormat format = kernels::WeightFormat::kF32;
  std::uint32_t rows = 0, cols = 0, group = 0;
  float mean = 0.0f, deviation = 1.0f;  ///< coded formats have the mean 0
  Random stream{0};
  const RouteCode* route = nullptr;  ///< overwrites what is not random
  RouteCode::Role role = RouteCode::Role::kNone;
  std::uint32_t layer = 0;  ///< only with a role

  /// Row `row`, row_bytes() of it.
  void codes(std::uint32_t row, std::span<std::uint8_t> out) const;
  /// Row `row` of scale_rows(): the scales of all groups. At every width that limits.hpp allows, bf16 scales
  /// are numbers of f16 too: GGUF holds them exactly.
  void scales(std::uint32_t row, std::span<std::uint8_t> out) const;

  /// As a matrix in the tile layout: both planes.
  void tiles(std::uint8_t* code_plane, std::uint8_t* scale_plane) const;

 private:
  void draw_codes(std::uint32_t row, std::span<std::uint8_t> out) const;
  void draw_scales(std::uint32_t row, std::span<std::uint8_t> out) const;
};

/// Whether weights of this format can be drawn: f32, bf16, int4, int8, fp8, mxfp4.
bool can_draw(kernels::WeightFormat f);

/// All weights of a random model. The same seed and shape give the same numbers.
class RandomWeights {
 public:
  /// Borrows all; `route` may be null.
  RandomWeights(std::uint64_t seed, const ModelSpec& spec, const std::vector<DenseItem>& items,
                const RouteCode* route)
      : seed_(seed), spec_(spec), items_(items), route_(route) {}

  /// Item `index` of the dense part; a vector is a matrix of one row.
  RandomMatrix dense(std::size_t index) const;
  enum class Part : std::uint8_t { kGate, kUp, kDown };
  RandomMatrix expert(std::uint32_t layer, std::uint32_t expert, Part part) const;

 private:
  Random seed_;
  const ModelSpec& spec_;
  const std::vector<DenseItem>& items_;
  const RouteCode* route_;
};

}  // namespace wisp::model
