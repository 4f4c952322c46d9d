#pragma once
#include <cstdint>
#include <optional>
#include <span>

#include "model/model_spec.hpp"
#include "trace/token_routes.hpp"

namespace wisp::model {

/// Makes a random model choose given experts for given tokens, exactly and in every layer, and say the tokens
/// one after the other when it decodes greedily.
///
/// The last columns of the hidden state are reserved, one for each token of the route. The embedding of id v
/// has a number in the column of token v mod T and zeros in the others; nothing in the model writes there
/// (those rows of attention's output and of the experts' down are zero), so it is there in every layer,
/// whatever the random rest computes. A router has weights in these columns alone: for its token's experts
/// from 2 to 4, falling by rank, for all others 0. A logit is one product then, in any numerics, and the
/// order of the logits that of the weights. Row t + 1 of the head has a large weight in the column of token
/// t.
///
/// With a forecast there are two lanes of columns, and a layer sees that of its own parity: its norm's gain
/// is 0 in the other. There a router has the forecast's experts, which is what it chooses from the row that
/// the layer before it has normed for its own router.
class RouteCode {
 public:
  /// What a matrix has to do with it.
  enum class Role : std::uint8_t {
    kNone,
    kEmbed,
    kHead,
    kRouter,
    kNorm,    ///< the one before a router
    kWriter,  ///< adds its outputs to the hidden state
  };

  /// Most tokens that a model can hold; with a forecast half of them.
  static std::uint32_t capacity(const ModelSpec& spec, std::uint32_t align);
  /// kUnsupported, with the reason, for a model in which this does not hold.
  static Status check(const ModelSpec& spec);

  /// `routes` are of the model's layers, experts and top_k; at most capacity() tokens and as many as the
  /// vocabulary. `align`: columns that share a scale. `forecast`: as many tokens, of layers above the first.
  RouteCode(const ModelSpec& spec, std::uint32_t align, trace::TokenRoutes routes,
            std::optional<trace::TokenRoutes> forecast);

  /// Overwrites what is not random of row `row`.
  void codes(Role role, std::uint32_t layer, std::uint32_t row, kernels::WeightFormat format,
             std::span<std::uint8_t> out) const;
  /// The same of a row of scales, one for `group` columns each.
  void scales(Role role, std::uint32_t row, kernels::WeightFormat format, std::uint32_t group,
              std::span<std::uint8_t> out) const;
  const trace::TokenRoutes& routes() const { return routes_; }
  const std::optional<trace::TokenRoutes>& forecast() const { return forecast_; }

 private:
  /// The column of a token in the lane.
  std::uint32_t column(std::uint32_t lane, std::uint32_t token) const;
  std::uint32_t lane_of(std::uint32_t layer) const { return forecast_ ? layer % 2 : 0; }
  void router_row(std::uint32_t layer, std::uint32_t expert, kernels::WeightFormat format,
                  std::span<std::uint8_t> out) const;

  trace::TokenRoutes routes_;
  std::optional<trace::TokenRoutes> forecast_;
  std::uint32_t hidden_ = 0;
  std::uint32_t first_ = 0;  ///< reserved column
};

}  // namespace wisp::model
