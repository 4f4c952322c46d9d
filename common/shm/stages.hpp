#pragma once
#include <array>
#include <cstdint>
#include <string_view>

namespace wisp::shm {

/// The stages of the pipeline. The value is an index into `life` and into every table of stages.
enum class StageId : std::uint32_t { kGateway = 0, kRouter, kLoader, kCompute, kSpeculator };
inline constexpr std::uint32_t kStages = 5;
/// Those that the pipeline has today; a stage may be planned for without being one of them.
inline constexpr std::array<StageId, 5> kRunningStages{StageId::kGateway, StageId::kRouter, StageId::kLoader,
                                                       StageId::kCompute, StageId::kSpeculator};

constexpr std::uint32_t index(StageId s) {
  return static_cast<std::uint32_t>(s);
}
/// Whether answers go on without this stage: its end costs speed alone.
constexpr bool is_optional(StageId s) {
  return s == StageId::kSpeculator;
}
constexpr std::string_view name_of(StageId s) {
  constexpr std::array<std::string_view, kStages> names{"gateway", "router", "loader", "compute",
                                                        "speculator"};
  return names[index(s)];
}

/// One direction of traffic between two stages. Numbers as in the design's table of edges.
enum class EdgeId : std::uint32_t {
  kGatewayRouter = 1,     ///< lossless: submit, cancel, finish at, acknowledge, adopt
  kRouterGateway = 2,     ///< notify: token, finish; on overflow the gateway reads the journal
  kRouterCompute = 3,     ///< lossless: steps
  kComputeRouter = 4,     ///< lossless: step results
  kComputeLoader = 5,     ///< lossless: touches and needs
  kLoaderCompute = 6,     ///< lossless: slot ready, slot failed
  kRouterSpeculator = 8,  ///< lossy: a sequence of the journal wants drafts
  kSpeculatorRouter = 9,  ///< lossy: drafts
};
inline constexpr std::uint32_t kEdges = 12;  ///< 7, 10 and 11: none yet
constexpr std::uint32_t index(EdgeId e) {
  return static_cast<std::uint32_t>(e);
}

/// Ends and ring size of an edge. A reply edge holds at least as many slots as its request edge.
struct EdgeEnds {
  StageId from;
  StageId to;
  std::uint32_t slots;  ///< 0: the edge does not exist; otherwise a power of two
};
constexpr EdgeEnds ends_of(EdgeId e) {
  switch (e) {
    case EdgeId::kGatewayRouter:
      return {StageId::kGateway, StageId::kRouter, 256};
    case EdgeId::kRouterGateway:
      return {StageId::kRouter, StageId::kGateway, 4096};
    case EdgeId::kRouterCompute:
      return {StageId::kRouter, StageId::kCompute, 64};
    case EdgeId::kComputeRouter:
      return {StageId::kCompute, StageId::kRouter, 64};
    case EdgeId::kComputeLoader:
      return {StageId::kCompute, StageId::kLoader, 1024};
    case EdgeId::kLoaderCompute:
      return {StageId::kLoader, StageId::kCompute, 1024};
    case EdgeId::kRouterSpeculator:
      return {StageId::kRouter, StageId::kSpeculator, 64};
    case EdgeId::kSpeculatorRouter:
      return {StageId::kSpeculator, StageId::kRouter, 64};
  }
  return {StageId::kGateway, StageId::kGateway, 0};
}
inline constexpr std::array<EdgeId, 8> kAllEdges{
    EdgeId::kGatewayRouter, EdgeId::kRouterGateway, EdgeId::kRouterCompute,    EdgeId::kComputeRouter,
    EdgeId::kComputeLoader, EdgeId::kLoaderCompute, EdgeId::kRouterSpeculator, EdgeId::kSpeculatorRouter};

}  // namespace wisp::shm
