#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "wisp/kernels/int8_rows.hpp"

namespace wisp::compute {

/// Memory for activations in bytes (the `fast` profile), for matrices of up to `cols` columns.
class Int8Buffer {
 public:
  void resize(std::size_t rows, std::uint32_t cols) {
    const std::size_t groups = (std::size_t{cols} + kernels::kGroupColumns - 1) / kernels::kGroupColumns;
    codes_.resize(rows * groups * kernels::kGroupColumns);
    scales_.resize(rows * groups);
    offsets_.resize(rows * groups);
  }
  /// `rows` rows of `cols` columns, a matrix of their own; `at` rows of others lie before them.
  kernels::Int8Rows rows(std::uint32_t at, std::uint32_t rows, std::uint32_t cols) {
    const std::uint32_t groups = (cols + kernels::kGroupColumns - 1) / kernels::kGroupColumns;
    const std::size_t first = std::size_t{at} * groups;
    return {groups, rows, codes_.data() + first * kernels::kGroupColumns, scales_.data() + first,
            offsets_.data() + first};
  }

 private:
  std::vector<std::int8_t> codes_;
  std::vector<float> scales_;
  std::vector<std::int32_t> offsets_;
};

}  // namespace wisp::compute
