#include "services/bench/pairs.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "base/check.hpp"

namespace wisp::bench {

Quartiles quartiles_of(std::vector<double> numbers) {
  if (numbers.empty()) return {};
  std::sort(numbers.begin(), numbers.end());
  const auto at = [&](double share) {
    const double place = share * static_cast<double>(numbers.size() - 1), below = std::floor(place);
    const auto i = static_cast<std::size_t>(below), j = std::min(i + 1, numbers.size() - 1);
    return numbers[i] + (numbers[j] - numbers[i]) * (place - below);
  };
  return {at(0.25), at(0.5), at(0.75)};
}

Quartiles Pairs::ratio() const {
  WISP_CHECK(kernel.size() == roof.size());
  std::vector<double> ratios;
  for (std::size_t i = 0; i < kernel.size(); ++i) ratios.push_back(kernel[i] / roof[i]);
  return quartiles_of(std::move(ratios));
}

}  // namespace wisp::bench
