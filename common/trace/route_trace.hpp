#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"

/// Routing traces: which experts a model chose, in the form of the public traces of Helldez/BigMoeOnEdge
/// (`route_trace v1`). Lines beginning with `#` describe the model; then a header line and one line per
/// chosen expert: turn, phase (0 prompt, 1 decode), step (token), layer, slot (rank of the choice), expert,
/// weight, residency (1: in the cache at the touch), expert_bytes.
///
/// A touch is a run of consecutive lines with the same layer; its accesses are the distinct experts in order
/// of first appearance. A line `# touch` ends a run where the next touch has the same layer: the engine
/// writes it, other readers take it for a remark. A line `# restart: ...` says that a process of the engine
/// began anew there: what its cache held from then on is not what the lines alone say.
namespace wisp::trace {

/// Largest layers * experts of a trace: what a replay needs tables for.
inline constexpr std::uint32_t kMaxLayers = 4096;
inline constexpr std::uint32_t kMaxExperts = 65536;
inline constexpr std::uint64_t kMaxKeys = std::uint64_t{1} << 24;

inline constexpr std::string_view kFirstLine = "# route_trace v1";
inline constexpr std::string_view kColumns =
    "turn,phase,step,layer,slot,expert,weight,residency,expert_bytes";
inline constexpr std::string_view kTouchLine = "# touch";
inline constexpr std::string_view kRestartLine = "# restart: ";

/// Says which model a trace is of. 0 or empty = not said.
struct TraceModel {
  std::string name;
  std::uint32_t layers = 0;
  std::uint32_t experts = 0;  ///< per layer
  std::uint32_t top_k = 0;
};

/// One line: a row's choice of an expert.
struct RouteLine {
  std::uint32_t turn = 0;
  bool decode = false;
  std::uint32_t step = 0;  ///< the row's token
  std::uint32_t layer = 0;
  std::uint32_t rank = 0;  ///< of the choice, 0 = the largest score (the weight's, where no bias chooses)
  std::uint32_t expert = 0;
  float weight = 0;
  bool resident = false;
  std::uint64_t expert_bytes = 0;
};

/// A distinct expert of a touch.
struct Access {
  std::uint32_t expert = 0;
  std::uint32_t rows = 0;  ///< lines of the touch that name it
};
struct Touch {
  std::uint32_t layer = 0;
  bool decode = false;      ///< as its first line says
  std::uint64_t first = 0;  ///< of its accesses
  std::uint32_t count = 0;
};

/// A trace as touches, in file order. Shape: what the model's lines say, or what occurs where they do not.
struct Trace {
  TraceModel model;
  std::vector<Touch> touches;
  std::vector<Access> accesses;
  std::uint64_t restarts = 0;  ///< a replay counts the engine's own hits up to the first
  bool cut = false;            ///< a file whose last line has no end: what is missing is not known

  std::span<const Access> of(const Touch& t) const { return {accesses.data() + t.first, t.count}; }
};

/// Gives out a text's lines one by one: true and the line without its end, or false at the end of the text.
using NextLine = std::function<Result<bool>(std::string_view& line)>;

/// Is told each line that names an expert, in file order.
using LineSeen = std::function<void(const RouteLine& line)>;

/// Reads a file (or "-", standard input) without holding it in memory. Errors: kInvalid names the file and
/// the number of the line, which is none or contradicts what the model's lines say; kIo.
Result<Trace> read_trace(const std::string& path, const LineSeen& seen = {});
/// The same for lines from anywhere; errors name the line alone.
Result<Trace> read_trace(const NextLine& next, const LineSeen& seen = {});

/// One line, without its end. Errors: kInvalid says what is wrong with it.
Result<RouteLine> parse_line(std::string_view line);

/// What stands before a recording's choices: the model and the bytes of each layer's experts (0: a layer
/// without any).
std::string describe_model(const TraceModel& model, std::span<const std::uint64_t> expert_bytes);
/// Appends the line and its end.
void append_line(std::string& out, const RouteLine& line);

}  // namespace wisp::trace
