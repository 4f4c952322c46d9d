#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "model/convert_plan.hpp"

namespace wisp::model {

/// "... element N is NaN or infinite ..."
Error not_finite(const Checkpoint& c, const Checkpoint::Entry& e, std::uint64_t element);

/// Gives the rows of dense tensors as the model folder wants them, from a checkpoint's tensors. Holds at most
/// one head of a matrix that is taken apart.
class DenseReader {
 public:
  explicit DenseReader(const ConvertPlan& plan) : plan_(plan) {}

  /// Rows [first, first + count) of item `index`, row-major, into `out`. Errors: kIo, kInvalid (NaN or inf).
  Status read(std::size_t index, std::uint32_t first, std::uint32_t count, std::span<std::uint8_t> out);

 private:
  Status read_checked(const Checkpoint::Entry& e, std::uint64_t first_element, kernels::WeightFormat format,
                      std::span<std::uint8_t> out) const;
  Status key_up(std::size_t index, std::uint32_t first, std::uint32_t count, std::span<std::uint8_t> out);
  Status value_up(std::size_t index, std::uint32_t first, std::uint32_t count, std::span<std::uint8_t> out);

  const ConvertPlan& plan_;
  std::vector<std::uint8_t> head_;  ///< [nope, kv_rank] as stored
};

}  // namespace wisp::model
