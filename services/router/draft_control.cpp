#include "services/router/draft_control.hpp"

#include <algorithm>

namespace wisp::router {

namespace {
// What a draft does before anything is known, by source, and how many drafts that belief weighs: a long match
// mostly goes on, a short one is as often chance.
constexpr std::array<double, kDraftSources> kFirstChance{0.6, 0.4, 0.8, 0.7};
constexpr double kFirstWeight = 1.0;
// What is left of a request's counts, and of those of all, behind each draft.
constexpr double kFade = 0.9, kFadeAll = 0.98;
constexpr double kLearn = 0.125;  // of a new figure in a moving one
// A row more, in plain steps, until it has been measured: about the union of experts of two neighbours that
// come from memory.
constexpr double kFirstRow = 0.3;
// How much better than plain it must look.
constexpr double kMargin = 1.03;
// Shares of the time of decoding that trying, and asking on trial, may cost; plain steps that a purse holds
// by saving alone, with what was won, and at first.
constexpr double kTrying = 0.01, kAsking = 0.005, kSavings = 3.0, kFullPurse = 10.0, kFirstPurse = 2.0;
// Plain steps that must be in the purse before what did not pay is tried once more, in case times have
// changed.
constexpr double kTrialPurse = 1.5;
// Steps after which a figure is old: half of a new one counts then.
constexpr std::uint64_t kOld = 64;
// Plain steps before anything is tried, and steps with drafts after which a plain one is measured again.
constexpr std::uint32_t kFirstPlain = 3, kLongestRun = 64;
// Tokens between two looks at a source that is not in use, at the least.
constexpr std::uint32_t kLookEvery = 4;
constexpr double kWakeNs = 20'000;  // of a process, both ends
// Where a number of drafts is demanded, they are waited for as long as their maker runs.
constexpr std::uint64_t kFixedPatienceNs = 1'000'000'000;

void move(double& figure, double to, double weight = kLearn) {
  figure = figure == 0 ? to : figure + weight * (to - figure);
}
}  // namespace

DraftControl::DraftControl(std::uint32_t records, std::uint32_t fixed)
    : fixed_(std::min(fixed, ring::kMostDrafted)), rates_(records), asked_(records) {
  chosen_.reserve(records);
}

void DraftControl::begin(std::uint32_t record) {
  rates_[record] = {};
  asked_[record] = {};
}

void DraftControl::judge(std::uint32_t record, DraftSource source, std::uint32_t at, bool stood) {
  if (at >= ring::kLongestDraft) return;
  const auto s = static_cast<std::size_t>(source);
  const auto count = [stood](Rate& r, double fade) {
    r.stood = r.stood * fade + (stood ? 1.0 : 0.0);
    r.tried = r.tried * fade + 1.0;
  };
  count(rates_[record][s][at], kFade);
  count(all_[s][at], kFadeAll);
}

double DraftControl::chance(std::uint32_t record, DraftSource source, std::uint32_t at) const {
  const auto s = static_cast<std::size_t>(source);
  // Each place begins with what the place before it does, and a request with what others did.
  double p = kFirstChance[s];
  for (std::uint32_t i = 0; i <= std::min(at, ring::kLongestDraft - 1); ++i) {
    const Rate& all = all_[s][i];
    p = (all.stood + kFirstWeight * p) / (all.tried + kFirstWeight);
    const Rate& own = rates_[record][s][i];
    p = (own.stood + kFirstWeight * p) / (own.tried + kFirstWeight);
  }
  return p;
}

void DraftControl::answered(DraftSource source, std::uint64_t ns, std::uint64_t cpu_ns, std::uint32_t count) {
  Source& s = sources_[asked_of(source)];
  const bool each = source == DraftSource::kModel || source == DraftSource::kHead;
  if (ns != 0 && count != 0) move(s.latency_ns, static_cast<double>(ns) / (each ? count : 1));
  s.any += kLearn * ((count != 0 ? 1.0 : 0.0) - s.any);
  s.spent_ns += static_cast<double>(cpu_ns) + kWakeNs;
}

double DraftControl::latency(DraftSource source, std::uint32_t count) const {
  const bool each = source == DraftSource::kModel || source == DraftSource::kHead;
  return sources_[asked_of(source)].latency_ns * (each ? count : 1);
}

double DraftControl::ratio(std::uint32_t sequences, std::uint32_t drafts) const {
  if (drafts == 0) return 1.0;
  const double more = kFirstRow / std::max(1u, sequences);
  // Between two counts that were seen: the line; beyond the last: on with its slope from none.
  std::uint32_t low = 0, high = 0;
  for (std::uint32_t d = 1; d <= kMostRows; ++d) {
    if (ratio_[d] == 0) continue;
    if (d <= drafts) low = d;
    if (d >= drafts && high == 0) high = d;
  }
  const double at_low = low == 0 ? 1.0 : ratio_[low];
  if (high != 0 && high != low) return at_low + (ratio_[high] - at_low) * (drafts - low) / (high - low);
  if (low == drafts) return at_low;
  const double slope = low == 0 ? more : std::max(0.02, (at_low - 1.0) / low);
  return at_low + slope * (drafts - low);
}

double DraftControl::gain(const Offer& o, std::uint32_t count, std::uint32_t sequences,
                          double waited_ns) const {
  const double plain = plain_ns(sequences);
  double tokens = sequences, stands = 1.0;
  for (std::uint32_t i = 0; i < count; ++i) tokens += stands *= chance(o.record, o.source, o.at + i);
  return tokens / sequences / (ratio(sequences, count) + (plain > 0 ? waited_ns / plain : 0.0));
}

/// Of whatever kind the answer of a source may be.
double DraftControl::best_gain(std::uint32_t record, DraftSource asked, std::uint32_t count,
                               double waited_ns) const {
  const double first = gain({record, asked, 0, count}, count, 1, waited_ns);
  if (asked != DraftSource::kShortMatch) return first;
  return std::max(first, gain({record, DraftSource::kLongMatch, 0, count}, count, 1, waited_ns));
}

void DraftControl::step(std::uint32_t sequences, std::uint32_t drafts, std::uint64_t ns,
                        std::uint64_t waited_ns, std::uint32_t tokens) {
  const auto took = static_cast<double>(ns);
  Plain& p = plain_[std::min(sequences, kMostRows)];
  decode_ns_ += took;
  ++steps_;
  if (drafts == 0) {
    // One step that another process held up is not what a step takes.
    move(p.ns, p.ns > 0 ? std::min(took, 2 * p.ns) : took);
    if (p.count++ == 0 && purse_ == 0) purse_ = kFirstPurse * p.ns;
    in_a_row_ = 0;
  } else if (p.ns > 0) {
    ++in_a_row_;
    // Rows cost no more than as many plain steps: what is beyond that was something else, an expert's first
    // reading or another process.
    const double bound = p.ns * (1.0 + static_cast<double>(drafts) / sequences);
    if (drafts <= kMostRows) {
      const bool old = ratio_seen_[drafts] == 0 || steps_ > ratio_seen_[drafts] + kOld;
      move(ratio_[drafts], std::min(took, bound) / p.ns, old ? 0.5 : kLearn);
      ratio_seen_[drafts] = steps_;
    }
    const double worth = p.ns * tokens / sequences;
    const double lost = std::min(took, bound) + static_cast<double>(waited_ns) - worth;
    purse_ = std::min(purse_ - (lost > 0 ? lost : lost / 2), kFullPurse * p.ns);
  }
  if (purse_ < kSavings * p.ns) purse_ += kTrying * took;
}

std::span<const std::uint32_t> DraftControl::choose(std::uint32_t sequences, std::span<const Offer> offers,
                                                    std::uint32_t room) {
  chosen_.assign(offers.size(), 0);
  if (fixed_ > 0) {
    for (std::size_t i = 0; i < offers.size(); ++i) {
      chosen_[i] = std::min({fixed_, offers[i].count, room});
      room -= chosen_[i];
    }
    return chosen_;
  }
  const Plain& p = plain_[std::min(sequences, kMostRows)];
  if (p.count < kFirstPlain || purse_ <= 0 || in_a_row_ >= kLongestRun) return chosen_;
  // The likeliest draft of all offers first; of all counts of them the best is kept.
  std::vector<std::uint32_t>& best = chosen_;
  std::array<std::uint32_t, kMostRows> tried{};
  std::array<double, kMostRows> stands{};
  const std::size_t n = std::min<std::size_t>(offers.size(), kMostRows);
  std::fill_n(stands.begin(), n, 1.0);
  double tokens = sequences, best_rate = kMargin;
  for (std::uint32_t total = 1; total <= room; ++total) {
    std::size_t next = n;
    double chance_next = 0;
    for (std::size_t i = 0; i < n; ++i) {
      if (tried[i] >= std::min(offers[i].count, ring::kMostDrafted)) continue;
      const double c = stands[i] * chance(offers[i].record, offers[i].source, offers[i].at + tried[i]);
      if (c <= chance_next) continue;
      next = i;
      chance_next = c;
    }
    if (next == n) break;
    ++tried[next];
    stands[next] = chance_next;
    tokens += chance_next;
    const double rate = tokens / sequences / ratio(sequences, total);
    if (rate <= best_rate) continue;
    best_rate = rate;
    std::copy_n(tried.begin(), n, best.begin());
  }
  if (best_rate > kMargin || n == 0) return best;
  // One draft, by the first guess of what a row costs, where there is money to see whether that holds.
  const bool trial = purse_ >= kTrialPurse * p.ns && steps_ > last_trial_ + kOld;
  if (!trial || room == 0 || offers[0].count == 0) return best;
  const double hoped = 1 + chance(offers[0].record, offers[0].source, offers[0].at) / sequences;
  if (hoped / (1 + kFirstRow / sequences) <= kMargin) return best;
  last_trial_ = steps_;
  best[0] = 1;
  return best;
}

DraftControl::Wish DraftControl::wish(std::uint32_t record, DraftSource source) const {
  if (fixed_ > 0) return {fixed_, kFixedPatienceNs};
  const Source& s = sources_[asked_of(source)];
  const double plain = plain_ns();
  if (plain_[1].count < kFirstPlain || purse_ <= 0 || s.latency_ns == 0 || in_a_row_ >= kLongestRun)
    return {};
  Wish best;
  double most = kMargin;
  for (std::uint32_t k = 1; k <= ring::kMostDrafted; ++k) {
    const double wait = latency(source, k);
    // Where no draft comes, the wait was for nothing.
    const double in_vain = 1 / (1 + wait / plain);
    const double expected = s.any * best_gain(record, source, k, wait) + (1 - s.any) * in_vain;
    if (expected <= most) continue;
    most = expected;
    best = {k, static_cast<std::uint64_t>(2 * wait + kWakeNs)};
  }
  return best;
}

bool DraftControl::worth_asking(std::uint32_t record, DraftSource source, std::uint32_t now_token,
                                bool beside) {
  Asked& a = asked_[record][asked_of(source)];
  const Source& s = sources_[asked_of(source)];
  const auto ask = [&] {
    a.token = now_token;
    a.ever = true;
    return true;
  };
  if (beside && fixed_ > 0) return ask();
  if (fixed_ > 0) return false;  // it is waited for
  double best = 0;
  for (std::uint32_t k = 1; k <= ring::kMostDrafted; ++k)
    best = std::max(best, best_gain(record, source, k, 0));
  if (beside && a.ever && purse_ > 0 && s.any * (best - 1) > kMargin - 1) return ask();
  const bool affordable = s.spent_ns <= kAsking * decode_ns_;
  return affordable && (!a.ever || now_token >= a.token + kLookEvery) ? ask() : false;
}

}  // namespace wisp::router
