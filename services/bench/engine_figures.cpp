#include "services/bench/engine_figures.hpp"

#include <algorithm>

namespace wisp::bench {

namespace {

std::optional<double> over(double seconds, std::uint64_t bytes, double rate) {
  if (bytes == 0 || rate <= 0.0) return std::nullopt;
  return seconds / (static_cast<double>(bytes) / rate);
}

}  // namespace

std::optional<double> EngineTurn::hit_rate() const {
  if (accesses == 0) return std::nullopt;
  return static_cast<double>(hits) / static_cast<double>(accesses);
}

std::optional<double> EngineTurn::drive_share() const {
  if (missed_bytes() == 0 || plain_rate <= 0.0) return std::nullopt;
  return missed_rate() / plain_rate;
}

double EngineTurn::overlap() const {
  const double io = static_cast<double>(missed_bytes()) / plain_rate;
  return decode_s / std::max(io, decode_s - expert_wait_s);
}

std::optional<double> EngineTurn::read_amplification() const {
  if (unique == 0) return std::nullopt;
  return static_cast<double>(expert_bytes) / static_cast<double>(unique * stride);
}

std::optional<double> EngineTurn::first_from_request() const {
  return over(first_s, dense_left + prompt_bound(), plain_rate);
}

std::optional<double> EngineTurn::first_from_start() const {
  if (!cold) return std::nullopt;
  return over(started_s, dense_bytes + prompt_bound(), plain_rate);
}

Status check_counters(const std::vector<EngineTurn>& turns) {
  const auto same = [](std::size_t turn, const char* what, std::uint64_t n, std::uint64_t wanted) -> Status {
    if (n == wanted) return {};
    return corrupt("turn " + std::to_string(turn + 1) + ": " + what + " " + std::to_string(n) +
                   ", and should be " + std::to_string(wanted) +
                   ": the turns are not comparable (another reader of this engine, or a fault of it)");
  };
  const EngineTurn* first_cold = nullptr;
  for (std::size_t i = 0; i < turns.size(); ++i) {
    const EngineTurn &t = turns[i], &first = turns.front();
    WISP_TRY(same(i, "tokens written", t.tokens, first.tokens));
    WISP_TRY(same(i, "experts that decode asked for", t.accesses, first.accesses));
    WISP_TRY(same(i, "bytes of experts read", t.expert_bytes, t.missed_bytes() + t.prompt_bytes()));
    if (!t.cold) continue;
    if (first_cold == nullptr) first_cold = &t;
    WISP_TRY(same(i, "experts that decode found", t.hits, first_cold->hits));
    WISP_TRY(same(i, "experts that the prompt asked for", t.prompt_accesses, first_cold->prompt_accesses));
    WISP_TRY(same(i, "experts that the prompt found", t.prompt_hits, first_cold->prompt_hits));
    WISP_TRY(same(i, "different experts of the prompt", t.unique, first_cold->unique));
  }
  return {};
}

}  // namespace wisp::bench
