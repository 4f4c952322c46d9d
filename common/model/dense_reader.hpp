#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "model/convert_plan.hpp"
#include "model/encode.hpp"
#include "model/matrix_reader.hpp"

namespace wisp::model {

/// Gives the rows of dense tensors as the model folder wants them, from a checkpoint's tensors. Holds at most
/// one group of rows, one head of a matrix that is taken apart, or one matrix that lies transposed.
class DenseReader final : public DenseRows {
 public:
  explicit DenseReader(const ConvertPlan& plan) : plan_(plan), reader_(*plan.checkpoint) {}

  /// Errors: those of MatrixReader.
  Status rows(std::size_t index, std::uint32_t first, std::uint32_t count, std::span<std::uint8_t> codes,
              std::span<std::uint8_t> scales) override;
  Status order(std::size_t index, std::vector<std::uint32_t>& out) override;
  /// What rounding cost, over all tensors.
  const RoundingError& cost() const { return cost_; }

 private:
  /// Where rows of a derived tensor come from: for each run of rows that one head has, `use(head, row of the
  /// head, first row of `out`, rows)`; rows of padding are left out.
  template <class Use>
  Status for_each_head(std::uint32_t padded, std::uint32_t live, std::uint32_t first, std::uint32_t count,
                       const Use& use) const;
  Status derived_codes(std::size_t index, std::uint32_t first, std::uint32_t count,
                       std::span<std::uint8_t> out);
  Status derived_scales(std::size_t index, std::uint32_t first, std::uint32_t count,
                        std::span<std::uint8_t> out) const;
  Status derived_floats(std::size_t index, std::uint32_t first, std::uint32_t count, float* out);
  /// The first stored row of a head's part.
  std::uint32_t stored_row(Derivation d, std::uint32_t head) const;

  const ConvertPlan& plan_;
  MatrixReader reader_;
  RoundingError cost_;
  std::vector<std::uint8_t> head_codes_;
  std::vector<float> head_, floats_;
};

}  // namespace wisp::model
