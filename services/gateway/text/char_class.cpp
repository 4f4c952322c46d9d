#include "services/gateway/text/char_class.hpp"

#include <algorithm>
#include <iterator>
#include <map>

namespace wisp::text {
namespace {

constexpr std::uint32_t kRanges[] = {
#include "services/gateway/text/char_class_table.inc"
};

}  // namespace

CharTable::CharTable() {
  std::vector<std::uint8_t> all(0x110000);
  for (std::size_t i = 0; i < std::size(kRanges); ++i) {
    const std::size_t end = i + 1 < std::size(kRanges) ? kRanges[i + 1] >> 5 : all.size();
    std::fill(all.begin() + (kRanges[i] >> 5), all.begin() + static_cast<std::ptrdiff_t>(end),
              static_cast<std::uint8_t>(kRanges[i] & 31U));
  }
  std::map<std::vector<std::uint8_t>, std::uint32_t> known;
  for (std::size_t block = 0; block < kBlocks; ++block) {
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(block << kShift);
    const std::vector<std::uint8_t> cells(begin, begin + kMask + 1);
    const auto [at, is_new] = known.emplace(cells, static_cast<std::uint32_t>(cells_.size()));
    if (is_new) cells_.insert(cells_.end(), cells.begin(), cells.end());
    index_[block] = at->second;
  }
  for (char32_t c = 0; c < ascii_.size(); ++c) ascii_[c] = of(c);
}

const CharTable& CharTable::get() {
  static const CharTable table;
  return table;
}

}  // namespace wisp::text
