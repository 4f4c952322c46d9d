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

std::optional<double> DecodeTimes::overhead() const {
  if (step == 0) return std::nullopt;
  const auto wall = static_cast<double>(step + gap);
  const auto work =
      static_cast<double>(attention + router + experts + head) - static_cast<double>(thread_wait);
  return (wall - static_cast<double>(expert_wait) - work) / wall;
}

RunFigures RunFigures::since(const RunFigures& before) const {
  RunFigures f = *this;
  // Counters live in desks, which a reset of the run makes anew: then the new ones stand alone.
  const auto less = [](std::uint64_t& n, std::uint64_t old) { n = n >= old ? n - old : n; };
  less(f.accesses, before.accesses);
  less(f.hits, before.hits);
  less(f.prompt_accesses, before.prompt_accesses);
  less(f.prompt_hits, before.prompt_hits);
  less(f.expert_bytes_read, before.expert_bytes_read);
  less(f.device_bytes_read, before.device_bytes_read);
  less(f.prefetch_useful_bytes, before.prefetch_useful_bytes);
  less(f.prefetch_late_bytes, before.prefetch_late_bytes);
  less(f.prefetch_wasted_bytes, before.prefetch_wasted_bytes);
  for (const auto part : {&DecodeTimes::steps, &DecodeTimes::step, &DecodeTimes::gap, &DecodeTimes::attention,
                          &DecodeTimes::router, &DecodeTimes::experts, &DecodeTimes::head,
                          &DecodeTimes::expert_wait, &DecodeTimes::thread_wait})
    less(f.decode.*part, before.decode.*part);
  f.drafts = drafts.since(before.drafts);
  return f;
}

RunFigures figures_of(const RunState& state) {
  using stats::Counter;
  const auto loader = [&](Counter c) { return state.counter(shm::StageId::kLoader, c); };
  RunFigures f;
  f.slots = state.plan().cache_slots();
  f.prefetch_slots = state.plan().prefetch_slots;
  f.experts = state.plan().expert_extents;
  f.accesses = loader(Counter::kDecodeAccesses);
  f.hits = loader(Counter::kDecodeHits);
  f.prompt_accesses = loader(Counter::kPrefillAccesses);
  f.prompt_hits = loader(Counter::kPrefillHits);
  f.expert_bytes_read = loader(Counter::kExpertBytesRead);
  f.device_bytes_read = loader(Counter::kDeviceBytesRead);
  f.prefetch_useful_bytes = loader(Counter::kPrefetchUsefulBytes);
  f.prefetch_late_bytes = loader(Counter::kPrefetchLateBytes);
  f.prefetch_wasted_bytes = loader(Counter::kPrefetchWastedBytes);
  f.traces_lost = loader(Counter::kTracesLost);
  f.ram_budget_bytes = state.plan().ram_budget;
  f.ram_peak_bytes = state.life().ram_peak_bytes.load(std::memory_order_relaxed);
  f.profile = state.plan().profile;
  f.profile_reason = state.plan().profile_reason;
  const auto compute = [&](Counter c) { return state.counter(shm::StageId::kCompute, c); };
  f.drafts = draft_figures_of(state);
  f.decode = {compute(Counter::kDecodeSteps),       compute(Counter::kDecodeStepNs),
              compute(Counter::kDecodeGapNs),       compute(Counter::kDecodeAttentionNs),
              compute(Counter::kDecodeRouterNs),    compute(Counter::kDecodeExpertsNs),
              compute(Counter::kDecodeHeadNs),      compute(Counter::kDecodeExpertWaitNs),
              compute(Counter::kDecodeThreadWaitNs)};
  return f;
}

std::string table(const Answer& a, const RunFigures& f) {
  std::string text;
  if (a.ttft_s > 0)
    text += row("time to first token", print("%.2f s", a.ttft_s),
                a.prompt_tokens != 0 ? count(a.prompt_tokens, "prompt token") : "");
  text += row("speed", a.decode_tok_s > 0 ? print("%.1f tokens per second", a.decode_tok_s) : "-",
              count(a.completion_tokens, "token") + " written");
  if (const DraftFigures& d = f.drafts; d.steps != 0) {
    text += row("guessed ahead",
                count(d.all_drafted(), "token") + ", " + std::to_string(d.all_accepted()) + " stood",
                "by place " + d.by_place());
    text += row("with guesses", print("%.1f tokens per second", d.tok_s()),
                print("%.2f tokens a pass; plain steps %.1f tokens per second", d.tokens_per_pass(),
                      d.plain_tok_s()));
  }
  if (f.experts != 0) {
    const auto found = f.hit_rate();
    text += row("experts found in RAM", found ? print("%.1f %%", 100.0 * *found) : "-",
                print("room for %u of %u", f.slots, f.experts));
  }
  text +=
      row("read from the drive", plan::format_size(f.device_bytes_read),
          f.experts == 0 ? ""
                         : "experts: " + plan::format_size(f.expert_bytes_read) +
                               (f.prefetch_wasted_bytes == 0
                                    ? ""
                                    : ", guessed in vain: " + plan::format_size(f.prefetch_wasted_bytes)));
  text += row("peak memory", plan::format_size(f.ram_peak_bytes),
              "of " + plan::format_size(f.ram_budget_bytes) + " allowed");
  if (!f.profile.empty()) text += row("numerics", f.profile, f.profile_reason);
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
  j["prefetch"] = {{"slots", f.prefetch_slots},
                   {"useful_bytes", f.prefetch_useful_bytes},
                   {"late_bytes", f.prefetch_late_bytes},
                   {"wasted_bytes", f.prefetch_wasted_bytes}};
  j["speculation"] = to_json(f.drafts);
  j["ram_budget_bytes"] = f.ram_budget_bytes;
  j["ram_peak_bytes"] = f.ram_peak_bytes;
  j["profile"] = f.profile;
  j["profile_reason"] = f.profile_reason;
  const DecodeTimes& d = f.decode;
  const auto overhead = d.overhead();
  const auto ms = [](std::uint64_t ns) { return static_cast<double>(ns) / 1e6; };
  j["decode"] = {
      {"steps", d.steps},
      {"step_ms", ms(d.step)},
      {"gap_ms", ms(d.gap)},
      {"attention_ms", ms(d.attention)},
      {"router_ms", ms(d.router)},
      {"experts_ms", ms(d.experts)},
      {"head_ms", ms(d.head)},
      {"expert_wait_ms", ms(d.expert_wait)},
      {"thread_wait_ms", ms(d.thread_wait)},
      {"overhead", overhead ? nlohmann::ordered_json(*overhead) : nlohmann::ordered_json(nullptr)}};
  return j.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace wisp::cli
