#include "services/cli/draft_figures.hpp"

#include <numeric>

namespace wisp::cli {

namespace {
double rate(std::uint64_t tokens, std::uint64_t ns) {
  return ns == 0 ? 0.0 : static_cast<double>(tokens) / (static_cast<double>(ns) / 1e9);
}
}  // namespace

std::uint64_t DraftFigures::all_drafted() const {
  return std::accumulate(drafted.begin(), drafted.end(), std::uint64_t{0});
}

std::uint64_t DraftFigures::all_accepted() const {
  return std::accumulate(accepted.begin(), accepted.end(), std::uint64_t{0});
}

double DraftFigures::tokens_per_pass() const {
  return steps == 0 ? 0.0 : static_cast<double>(tokens) / static_cast<double>(steps);
}

double DraftFigures::tok_s() const {
  return rate(tokens, ns);
}

double DraftFigures::plain_tok_s() const {
  return rate(plain_tokens, plain_ns);
}

std::string DraftFigures::by_place() const {
  std::string text;
  for (std::size_t n = 0; n < ring::kMostDrafted && drafted[n] != 0; ++n)
    text += (n == 0 ? "" : " ") + std::to_string((100 * accepted[n] + drafted[n] / 2) / drafted[n]) + " %";
  return text;
}

DraftFigures DraftFigures::since(const DraftFigures& before) const {
  DraftFigures f = *this;
  // Counters live in desks, which a reset of the run makes anew: then the new ones stand alone.
  const auto less = [](std::uint64_t& n, std::uint64_t old) { n = n >= old ? n - old : n; };
  for (const auto part : {&DraftFigures::plain_steps, &DraftFigures::plain_ns, &DraftFigures::plain_tokens,
                          &DraftFigures::steps, &DraftFigures::ns, &DraftFigures::tokens,
                          &DraftFigures::drafting_ns, &DraftFigures::wait_ns})
    less(f.*part, before.*part);
  for (std::size_t n = 0; n < ring::kMostDrafted; ++n) {
    less(f.drafted[n], before.drafted[n]);
    less(f.accepted[n], before.accepted[n]);
  }
  return f;
}

DraftFigures draft_figures_of(const RunState& state) {
  using stats::Counter;
  const auto router = [&](Counter c) { return state.counter(shm::StageId::kRouter, c); };
  const auto nth = [](Counter first, std::size_t n) {
    return static_cast<Counter>(static_cast<std::size_t>(first) + n);
  };
  DraftFigures f;
  f.plain_steps = router(Counter::kPlainSteps);
  f.plain_ns = router(Counter::kPlainStepNs);
  f.plain_tokens = router(Counter::kPlainTokens);
  f.steps = router(Counter::kDraftSteps);
  f.ns = router(Counter::kDraftStepNs);
  f.tokens = router(Counter::kDraftTokens);
  f.wait_ns = router(Counter::kDraftWaitNs);
  f.drafting_ns = state.counter(shm::StageId::kSpeculator, Counter::kDraftingNs);
  for (std::size_t n = 0; n < ring::kMostDrafted; ++n) {
    f.drafted[n] = router(nth(Counter::kDrafted1, n));
    f.accepted[n] = router(nth(Counter::kAccepted1, n));
  }
  return f;
}

nlohmann::ordered_json to_json(const DraftFigures& f) {
  return {{"drafted", f.all_drafted()},
          {"accepted", f.all_accepted()},
          {"drafted_by_place", f.drafted},
          {"accepted_by_place", f.accepted},
          {"steps", f.steps},
          {"tokens", f.tokens},
          {"step_ms", static_cast<double>(f.ns) / 1e6},
          {"plain_steps", f.plain_steps},
          {"plain_tokens", f.plain_tokens},
          {"plain_step_ms", static_cast<double>(f.plain_ns) / 1e6},
          {"drafting_ms", static_cast<double>(f.drafting_ns) / 1e6},
          {"wait_ms", static_cast<double>(f.wait_ns) / 1e6}};
}

}  // namespace wisp::cli
