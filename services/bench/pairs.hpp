#pragma once
#include <vector>

namespace wisp::bench {

/// The quarters of a list of numbers.
struct Quartiles {
  double low = 0.0, median = 0.0, high = 0.0;
};
/// By linear interpolation between neighbours; all 0 of an empty list.
Quartiles quartiles_of(std::vector<double> numbers);

/// What was measured in turns: a kernel, and the machine's roof beside it.
struct Pairs {
  std::vector<double> kernel, roof;  ///< one of each for a pair, in the same unit
  Quartiles ratio() const;           ///< of kernel / roof, pair by pair
};

}  // namespace wisp::bench
