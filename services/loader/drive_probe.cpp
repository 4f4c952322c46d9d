#include "services/loader/drive_probe.hpp"

#include <algorithm>

#include "base/check.hpp"

namespace wisp::loader {

namespace {

constexpr double kGain = 1.03;
constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

double median(std::vector<double> v) {
  const auto middle = v.begin() + static_cast<std::ptrdiff_t>(v.size() / 2);
  std::nth_element(v.begin(), middle, v.end());
  return *middle;
}

/// Whether `rates` beat `others`, round against round: by more than the gain in the middle, and in three
/// quarters of the rounds at all. What a drive does of its own accord is larger than what is looked for.
bool gains(const std::vector<double>& rates, const std::vector<double>& others) {
  std::vector<double> ratios;
  std::size_t better = 0;
  for (std::size_t i = 0; i < rates.size(); ++i) {
    ratios.push_back(rates[i] / others[i]);
    better += ratios.back() > 1 ? 1 : 0;
  }
  return 4 * better >= 3 * ratios.size() && median(std::move(ratios)) > kGain;
}

}  // namespace

DriveProbe::DriveProbe(const Options& options) : options_(options), limit_ns_(options.most_ns) {
  std::vector<Setting> depths;
  for (const std::uint64_t depth : {kMiB, 2 * kMiB, 4 * kMiB, 8 * kMiB})
    if (depth <= options.most_depth || depths.empty()) depths.push_back({depth, false});
  begin(std::move(depths));
}

void DriveProbe::begin(std::vector<Setting> settings) {
  candidates_.clear();
  for (const Setting& s : settings) candidates_.push_back({s, {}});
  at_ = 0;
  round_ = 0;
  spent_ns_ = 0;
}

DriveProbe::Setting DriveProbe::setting() const {
  WISP_CHECK(!figure_);
  return candidates_[at_].setting;
}

void DriveProbe::burst(std::uint64_t bytes, std::uint64_t ns) {
  WISP_CHECK(!figure_);
  candidates_[at_].rates.push_back(static_cast<double>(bytes) * 1e9 /
                                   static_cast<double>(std::max<std::uint64_t>(1, ns)));
  spent_ns_ += ns;
  if (++at_ < candidates_.size()) return;
  at_ = 0;
  ++round_;
  if (round_ >= options_.rounds || (round_ >= options_.least_rounds && spent_ns_ >= limit_ns_)) next_stage();
}

void DriveProbe::no_pinning() {
  options_.can_pin = false;
  if (depths_done_ && !figure_) figure_ = DriveFigure{candidates_.front().setting.depth, false, rate_};
}

void DriveProbe::next_stage() {
  const Candidate* best = &candidates_.front();
  for (const Candidate& c : candidates_)
    if (gains(c.rates, best->rates)) best = &c;
  const double rate = median(best->rates);
  const Setting winner = best->setting;
  if (depths_done_ || !options_.can_pin) {
    figure_ = DriveFigure{winner.depth, winner.pinned, rate};
    return;
  }
  depths_done_ = true;
  rate_ = rate;
  limit_ns_ = options_.most_ns / 2;
  begin({{winner.depth, false}, {winner.depth, true}});
}

}  // namespace wisp::loader
