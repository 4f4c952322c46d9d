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
  /// `rows` rows of `cols` columns.
  kernels::Int8Rows rows(std::uint32_t rows, std::uint32_t cols) {
    return {(cols + kernels::kGroupColumns - 1) / kernels::kGroupColumns, rows, codes_.data(), scales_.data(),
            offsets_.data()};
  }

 private:
  std::vector<std::int8_t> codes_;
  std::vector<float> scales_;
  std::vector<std::int32_t> offsets_;
};

}  // namespace wisp::compute
