#include "services/cli/table.hpp"

#include <cstdarg>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "plan/run_plan.hpp"

namespace wisp::cli {

namespace {

__attribute__((format(printf, 1, 2))) std::string print(const char* format, ...) {
  char text[256];
  va_list args;
  va_start(args, format);
  std::vsnprintf(text, sizeof text, format, args);
  va_end(args);
  return text;
}

std::string row(const std::string& name, const std::string& value, const std::string& remark = "") {
  std::string line = print("  %-22s  %s", name.c_str(), value.c_str());
  if (!remark.empty()) line += "   (" + remark + ")";
  return line + "\n";
}

std::string count(std::uint64_t n, const char* what) {
  return std::to_string(n) + " " + what + (n == 1 ? "" : "s");
}

}  // namespace

std::optional<double> RunFigures::hit_rate() const {
  if (accesses == 0) return std::nullopt;
  return static_cast<double>(hits) / static_cast<double>(accesses);
}

RunFigures RunFigures::since(const RunFigures& before) const {
  RunFigures f = *this;
  // Counters live in desks, which a reset of the run makes anew: then the new ones stand alone.
  const auto less = [](std::uint64_t& n, std::uint64_t old) { n = n >= old ? n - old : n; };
  less(f.accesses, before.accesses);
  less(f.hits, before.hits);
  less(f.expert_bytes_read, before.expert_bytes_read);
  less(f.device_bytes_read, before.device_bytes_read);
  return f;
}

RunFigures figures_of(const RunState& state) {
  using stats::Counter;
  const auto loader = [&](Counter c) { return state.counter(shm::StageId::kLoader, c); };
  RunFigures f;
  f.slots = state.plan().slots;
  f.experts = state.plan().expert_extents;
  f.accesses = loader(Counter::kDecodeAccesses);
  f.hits = loader(Counter::kDecodeHits);
  f.expert_bytes_read = loader(Counter::kExpertBytesRead);
  f.device_bytes_read = loader(Counter::kDeviceBytesRead);
  f.ram_budget_bytes = state.plan().ram_budget;
  f.ram_peak_bytes = state.life().ram_peak_bytes.load(std::memory_order_relaxed);
  f.profile = state.plan().profile;
  return f;
}

std::string table(const Answer& a, const RunFigures& f) {
  std::string text;
  if (a.ttft_s > 0)
    text += row("time to first token", print("%.2f s", a.ttft_s),
                a.prompt_tokens != 0 ? count(a.prompt_tokens, "prompt token") : "");
  text += row("speed", a.decode_tok_s > 0 ? print("%.1f tokens per second", a.decode_tok_s) : "-",
              count(a.completion_tokens, "token") + " written");
  if (f.experts != 0) {
    const auto rate = f.hit_rate();
    text += row("experts found in RAM", rate ? print("%.1f %%", 100.0 * *rate) : "-",
                print("room for %u of %u", f.slots, f.experts));
  }
  text += row("read from the drive", plan::format_size(f.device_bytes_read),
              "experts: " + plan::format_size(f.expert_bytes_read));
  text += row("peak memory", plan::format_size(f.ram_peak_bytes),
              "of " + plan::format_size(f.ram_budget_bytes) + " allowed");
  if (a.seed && *a.seed != 0)
    text +=
        row("seed", std::to_string(*a.seed), "--seed " + std::to_string(*a.seed) + " repeats this answer");
  if (a.resumes != 0) text += row("connection resumed", count(a.resumes, "time"));
  return text;
}

std::string json_line(const Answer& a, const RunFigures& f) {
  nlohmann::ordered_json j;
  j["text"] = a.text;
  j["token_ids"] = a.token_ids;
  j["prompt_tokens"] = a.prompt_tokens;
  j["completion_tokens"] = a.completion_tokens;
  j["finish_reason"] = a.finish_reason;
  j["seed"] = a.seed ? nlohmann::ordered_json(*a.seed) : nlohmann::ordered_json(nullptr);
  j["ttft_s"] = a.ttft_s;
  j["decode_tok_s"] = a.decode_tok_s;
  const auto rate = f.hit_rate();
  j["hit_rate"] = rate ? nlohmann::ordered_json(*rate) : nlohmann::ordered_json(nullptr);
  j["decode_accesses"] = f.accesses;
  j["decode_hits"] = f.hits;
  j["slots"] = f.slots;
  j["experts"] = f.experts;
  j["expert_bytes_read"] = f.expert_bytes_read;
  j["device_bytes_read"] = f.device_bytes_read;
  j["ram_budget_bytes"] = f.ram_budget_bytes;
  j["ram_peak_bytes"] = f.ram_peak_bytes;
  j["profile"] = f.profile;
  return j.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace wisp::cli
