#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "model/convert_plan.hpp"
#include "model/encode.hpp"
#include "model/matrix_reader.hpp"

namespace wisp::model {

/// Brings one expert at a time into the tile layout. Its buffers hold one matrix.
class ExpertReader {
 public:
  explicit ExpertReader(const ConvertPlan& plan) : plan_(plan), reader_(*plan.checkpoint) {}

  /// `out`: ExpertShape::payload bytes, zeroed. Errors: those of MatrixReader.
  Status fill(const ExpertSource& source, std::span<std::uint8_t> out);
  /// This expert comes next.
  void will_fill(const ExpertSource& source) const;
  /// What rounding since the last call cost.
  RoundingError take_cost() { return std::exchange(cost_, {}); }

 private:
  Status fill_part(const StoredMatrix& m, const ExpertMatrix& to, std::span<std::uint8_t> out);
  Status fill_bias(const StoredMatrix& m, std::uint8_t* out);

  const ConvertPlan& plan_;
  MatrixReader reader_;
  RoundingError cost_;
  std::vector<std::uint8_t> codes_, scales_;
  std::vector<std::uint32_t> order_;
  std::vector<float> floats_;
};

}  // namespace wisp::model
