#include "services/bench/kernel_cases.hpp"

#include <algorithm>
#include <array>
#include <regex>
#include <utility>

#include "wisp/kernels/int8_rows.hpp"

namespace wisp::bench {
namespace {

using kernels::WeightFormat;

constexpr std::array<std::pair<std::uint32_t, std::uint32_t>, 7> kShapes{
    {{2048, 7168}, {7168, 2048}, {14336, 4096}, {4096, 14336}, {768, 2048}, {2048, 768}, {1536, 4096}}};
constexpr std::array<std::pair<WeightFormat, std::uint32_t>, 7> kStored{{{WeightFormat::kInt4, 32},
                                                                         {WeightFormat::kInt4, 64},
                                                                         {WeightFormat::kInt4, 128},
                                                                         {WeightFormat::kInt8, 32},
                                                                         {WeightFormat::kMxfp4, 32},
                                                                         {WeightFormat::kFp8, 128},
                                                                         {WeightFormat::kBf16, 0}}};
constexpr std::array<std::uint32_t, 5> kTokens{1, 4, 8, 32, 128};

}  // namespace

std::string KernelCase::name() const {
  std::string s = streams() ? "gemv/" : "gemm/";
  s += kernels::name_of(format);
  if (group != 0) s += "-" + std::to_string(group);
  s += fast ? "/fast/" : "/exact/";
  s += std::to_string(rows) + "x" + std::to_string(cols);
  if (!streams()) s += "/" + std::to_string(tokens) + "rows";
  return s + "/" + std::to_string(threads) + "t";
}

Result<std::vector<KernelCase>> kernel_cases(const std::string& filter,
                                             const std::vector<std::uint32_t>& threads) {
  if (std::ranges::count(threads, 0u) != 0) return invalid("--threads 0: a case takes one thread at least");
  std::vector<KernelCase> cases;
  try {
    const std::regex wanted(filter);
    for (const std::uint32_t tokens : kTokens)
      for (const auto& [format, group] : kStored)
        for (const auto& [rows, cols] : kShapes)
          for (const bool fast : {true, false})
            for (const std::uint32_t n : threads) {
              if (fast && !kernels::takes_int8(format)) continue;
              const KernelCase c{format, group, fast, rows, cols, tokens, n};
              if (std::regex_search(c.name(), wanted)) cases.push_back(c);
            }
  } catch (const std::regex_error& e) {
    return invalid("--filter " + filter + " is not a regular expression: " + e.what());
  }
  if (cases.empty())
    return invalid("--filter " + filter + " matches no case; a name looks like " +
                   KernelCase{WeightFormat::kInt4, 32, true, 2048, 7168, 32, 1}.name());
  return cases;
}

}  // namespace wisp::bench
