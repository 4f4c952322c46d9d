#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "services/speculator/source.hpp"

namespace wisp::speculator {

/// Names a file of Script: drafts of a given worth, for tests and measurements.
inline constexpr const char* kScriptVariable = "WISP_DRAFT_SCRIPT";

/// Drafts as a file says. Its first line: `accept P seed S`, or `nonsense S`; each further line the ids of a
/// whole sequence, prompt and answer. Drafts are what follows in the line that begins with the sequence at
/// hand, each wrong with a chance of 1 - P that depends on S and its position alone.
class Script final : public Source {
 public:
  /// Errors: kNotFound, kInvalid with the line.
  static Result<Script> load(const std::string& path, std::uint32_t vocab);

  std::uint32_t propose(std::uint32_t place, std::uint64_t request, std::span<const std::uint32_t> ids,
                        std::span<std::uint32_t> out) override;
  void forget(std::uint32_t) override {}
  /// Whether what is sent is to be without sense: then propose() gives arbitrary ids.
  bool nonsense() const { return nonsense_; }
  /// The next arbitrary number, for whoever makes messages of them.
  std::uint64_t arbitrary();

 private:
  double accept_ = 1.0;
  std::uint64_t seed_ = 1;
  bool nonsense_ = false;
  std::uint32_t vocab_ = 0;
  std::vector<std::vector<std::uint32_t>> lines_;
};

}  // namespace wisp::speculator
