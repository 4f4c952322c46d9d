#pragma once
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "model/manifest.hpp"

namespace wisp::model {

/// A manifest's text without its lists of extents. They are nearly all of it, and a general parser makes
/// three allocations for each of what may be 80,000 experts.
struct ExtentLists {
  std::string rest;  ///< each list replaced by its number
  std::vector<std::vector<ExpertExtent>> lists;
};

/// Takes out every list in the form that write_manifest() gives it: `"extents":[[0,"0123456789abcdef"],...]`.
/// A list in any other form stays where it is. The numbers are not held against anything.
ExtentLists cut_extent_lists(std::string_view text);

}  // namespace wisp::model
