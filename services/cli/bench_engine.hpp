#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "services/bench/engine_figures.hpp"
#include "services/bench/stream_bench.hpp"
#include "services/cli/pipeline.hpp"

namespace wisp::cli {

/// What `bench decode` and `bench prefill` share.
struct EngineBenchFlags {
  PipelineFlags pipeline;
  std::uint32_t prompt = 32;       ///< tokens
  std::vector<std::uint32_t> ids;  ///< a prompt of one's own, the same in every turn
  std::uint32_t tokens = 32;       ///< written
  std::uint32_t pairs = 7;
  std::string plain_bytes = "256M";  ///< of each stretch of plain reads
  bool cold = false;                 ///< a new engine for each turn
  bool record = false;               ///< count a prompt's different experts, from a trace; only with `cold`
  bool json = false;
};
/// The flags but `tokens`, `cold` and `record`.
void add_engine_bench_flags(CLI::App& command, EngineBenchFlags& flags);

/// Requests to an engine that is started as `wisp run` starts one, in turns with plain direct reads of the
/// same files at the engine's block size and depth: reads, request, reads, request, .., reads.
class EngineBench {
 public:
  /// Errors: those of open_model and of the plain reads; kInvalid for a prompt that is no prompt, and for
  /// more plain bytes than the model has.
  static Result<std::unique_ptr<EngineBench>> create(const EngineBenchFlags& flags);

  /// All turns. An engine that is kept is asked for other ids in each turn: prompt and answer of the one
  /// before are passed over (ids go round the vocabulary). Errors: kInterrupted after Ctrl-C; check_counters.
  Result<std::vector<bench::EngineTurn>> measure();
  /// One line: model, memory, threads, numerics, and how the drive was read. After measure().
  std::string machine() const;
  nlohmann::ordered_json machine_json() const;

 private:
  EngineBench(const EngineBenchFlags& flags, Interrupts interrupts)
      : flags_(flags), interrupts_(std::move(interrupts)) {}
  Status start();
  Result<bench::EngineTurn> turn(std::uint32_t number);
  Question question(std::uint32_t number) const;
  Status count_unique(bench::EngineTurn& turn) const;
  Status note_engine();

  EngineBenchFlags flags_;
  OpenModel model_;
  Console console_;
  Interrupts interrupts_;
  std::unique_ptr<bench::StreamBench> plain_;
  std::unique_ptr<Pipeline> pipeline_;
  std::string trace_;  ///< "" or a file of our own
  plan::RunPlan plan_;
  bool direct_ = true;
};

/// One of them as "name: median unit (low to high)", or nothing where no turn has the figure.
std::string spread_line(const char* name, const std::vector<bench::EngineTurn>& turns,
                        const std::function<std::optional<double>(const bench::EngineTurn&)>& figure,
                        const char* unit);
/// The same as an object, or null.
nlohmann::ordered_json spread_json(
    const std::vector<bench::EngineTurn>& turns,
    const std::function<std::optional<double>(const bench::EngineTurn&)>& figure);

}  // namespace wisp::cli
