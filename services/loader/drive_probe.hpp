#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "services/loader/drive_figures.hpp"

namespace wisp::loader {

/// Tags of its reads, with the slot below.
inline constexpr std::uint64_t kProbeTag = std::uint64_t{1} << 62;

/// Finds out how a drive is best read: bursts of reads in rounds, so that a drive whose rate swings treats
/// all candidates alike; then, at the depth that won, with registered buffers and without. A candidate wins
/// over a more modest one only by more than 3 % and in three quarters of the rounds: depth costs latency, and
/// pinning memory. Pure: whoever reads tells what a burst took.
class DriveProbe {
 public:
  struct Options {
    std::uint64_t burst_bytes = std::uint64_t{32} << 20;
    std::uint32_t rounds = 7;
    std::uint32_t least_rounds = 3;
    std::uint64_t most_ns = 1'500'000'000;  ///< of reading, for the depths; half of it for the buffers
    std::uint64_t most_depth = std::uint64_t{8} << 20;
    bool can_pin = true;
  };
  struct Setting {
    std::uint64_t depth = 0;
    bool pinned = false;
  };

  explicit DriveProbe(const Options& options);

  /// How the next burst is to be read.
  Setting setting() const;
  std::uint64_t burst_bytes() const { return options_.burst_bytes; }
  /// The burst at hand brought `bytes` in `ns`. One that was disturbed is not told of, and comes again.
  void burst(std::uint64_t bytes, std::uint64_t ns);
  /// There are no registered buffers here.
  void no_pinning();

  /// Nothing before the end.
  const std::optional<DriveFigure>& figure() const { return figure_; }

 private:
  struct Candidate {
    Setting setting;
    std::vector<double> rates;
  };
  void next_stage();
  void begin(std::vector<Setting> settings);

  Options options_;
  std::vector<Candidate> candidates_;  // most modest first
  std::size_t at_ = 0;
  std::uint32_t round_ = 0;
  std::uint64_t spent_ns_ = 0;
  std::uint64_t limit_ns_;
  bool depths_done_ = false;
  double rate_ = 0;  // of the depth that won
  std::optional<DriveFigure> figure_;
};

}  // namespace wisp::loader
