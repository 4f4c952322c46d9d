#pragma once
#include <cstddef>
#include <string>
#include <vector>

#include "base/fd.hpp"
#include "base/result.hpp"
#include "model/manifest.hpp"
#include "services/compute/forward.hpp"

namespace wisp::eval {

/// Experts straight from a model folder's files, a few at a time, with no cache of its own: for tools that
/// look at every row and take no part in a pipeline.
class FileExperts final : public compute::ExpertSource {
 public:
  /// Errors: kIo where a file cannot be opened. `m` outlives this object.
  static Result<FileExperts> open(const std::string& folder, const model::Manifest& m);

  bool visit(std::uint32_t layer, std::span<const ring::TouchMember> set, bool decode, Use use, Fail fail,
             Cancelled cancelled) override;

 private:
  explicit FileExperts(const model::Manifest& m) : m_(&m) {}

  const model::Manifest* m_;
  std::vector<Fd> files_;  ///< [layers], none for dense ones
  std::vector<std::vector<std::byte>> extents_;
};

}  // namespace wisp::eval
