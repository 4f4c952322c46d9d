#include "model/matrix_reader.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>

#include "model/float_check.hpp"
#include "wisp/kernels/number.hpp"

namespace wisp::model {

namespace {

using kernels::dwords_of;
using kernels::groups_of;
using kernels::row_bytes;
using kernels::WeightFormat;

/// Element `i` of a tensor of scales.
float scale_of(Dtype t, const std::uint8_t* data, std::size_t i) {
  if (t == Dtype::kF8E8M0) return kernels::e8m0_to_float(data[i]);
  const WeightFormat f = *plain_format(t);
  return kernels::plain_to_float(f, data + i * row_bytes(f, 1));
}

/// The first scale that is not finite, or that the largest code of its format takes beyond f32.
std::optional<std::size_t> first_bad_scale(Dtype t, std::span<const std::uint8_t> data, float largest_code) {
  const std::size_t n = t == Dtype::kF8E8M0 ? data.size() : data.size() / row_bytes(*plain_format(t), 1);
  for (std::size_t i = 0; i < n; ++i) {
    const bool nan = t == Dtype::kF8E8M0 && data[i] == 255;
    if (nan || !std::isfinite(scale_of(t, data.data(), i) * largest_code)) return i;
  }
  return std::nullopt;
}
constexpr float kLargestInt4 = 15.0f, kLargestE2m1 = 6.0f, kLargestE4m3 = 448.0f;

/// "... scale N is NaN, infinite or too large ..."
Error bad_scale(const Checkpoint& c, const Checkpoint::Entry& e, std::uint64_t element) {
  return invalid(where(c, e) + ": element " + std::to_string(element) +
                 " is NaN, infinite, or so large that weights are infinite; the checkpoint is damaged");
}

std::uint32_t word_at(const std::uint8_t* data, std::size_t i) {
  std::uint32_t word;
  std::memcpy(&word, data + i * 4, 4);
  return word;
}
std::uint32_t nibble_at(const std::uint8_t* data, std::size_t word, std::uint32_t nibble) {
  return word_at(data, word) >> (4 * nibble) & 15u;
}

/// Which nibble of a word is output m of its eight (spec 3.5).
constexpr std::uint32_t kAwqNibble[8] = {0, 4, 1, 5, 2, 6, 3, 7};

/// The dword of kInt4Zero, or nothing where the scale has more digits than it can hold.
std::optional<std::uint32_t> with_zero(float scale, std::uint32_t zero) {
  const auto bits = std::bit_cast<std::uint32_t>(scale);
  if ((bits & kernels::kZeroPointBits) != 0) return std::nullopt;
  return bits | zero;
}

}  // namespace

Error not_finite(const Checkpoint& c, const Checkpoint::Entry& e, std::uint64_t element) {
  return invalid(c.file_of(e) + ": tensor " + e.info->name + ": element " + std::to_string(element) +
                 " is NaN or infinite; the checkpoint is damaged");
}

Status MatrixReader::rows(const StoredMatrix& m, std::uint32_t first, std::uint32_t count,
                          std::span<std::uint8_t> codes_out, std::span<std::uint8_t> scales) {
  WISP_CHECK(first % kernels::kTileRows == 0);
  switch (m.storage) {
    case Storage::kPlain:
      return codes(m, first, count, codes_out);
    case Storage::kFp8:
      WISP_TRY(codes(m, first, count, codes_out));
      return fp8_scales(m, first, count, scales);
    case Storage::kPacked:
      return packed_rows(m, first, count, codes_out, scales);
    case Storage::kBlocks:
      return block_rows(m, first, count, codes_out, scales);
    case Storage::kGptq:
    case Storage::kAwq:
      break;
  }
  if (turned_ != m.data) WISP_TRY(turn(m));
  const std::size_t words = dwords_of(WeightFormat::kInt4Zero, m.cols), groups = groups_of(m.cols, m.group);
  std::memcpy(codes_out.data(), turned_codes_.data() + first * words, count * words * 4);
  std::memcpy(scales.data(), turned_scales_.data() + first * groups, count * groups * 4);
  return {};
}

Status MatrixReader::codes(const StoredMatrix& m, std::uint32_t first, std::uint32_t count,
                           std::span<std::uint8_t> out) {
  if (m.transposed) return transposed_codes(m, first, count, out);
  const WeightFormat f = m.native();
  const std::uint64_t row = row_bytes(f, m.cols), at = m.offset + first * row;
  WISP_TRY(c_.read(*m.data, at, out.first(count * row)));
  if (const auto bad = first_non_finite(f, out.first(count * row)))
    return not_finite(c_, *m.data, at / row_bytes(f, 1) + *bad);
  return {};
}

Status MatrixReader::transposed_codes(const StoredMatrix& m, std::uint32_t first, std::uint32_t count,
                                      std::span<std::uint8_t> out) {
  const WeightFormat f = m.native();
  const std::size_t size = row_bytes(f, 1), pitch = std::size_t{m.rows} * m.step;
  raw_.resize(m.cols * pitch * size);
  WISP_TRY(c_.read(*m.data, m.offset, raw_));
  if (const auto bad = first_non_finite(f, raw_)) return not_finite(c_, *m.data, m.offset / size + *bad);
  for (std::size_t c = 0; c < m.cols; ++c)
    for (std::size_t r = 0; r < count; ++r)
      std::memcpy(out.data() + (r * m.cols + c) * size,
                  raw_.data() + (c * pitch + m.first + (first + r) * m.step) * size, size);
  return {};
}

Status MatrixReader::packed_rows(const StoredMatrix& m, std::uint32_t first, std::uint32_t count,
                                 std::span<std::uint8_t> codes_out, std::span<std::uint8_t> scales) {
  const std::size_t words = dwords_of(WeightFormat::kInt4, m.cols), groups = groups_of(m.cols, m.group);
  WISP_TRY(c_.read(*m.data, first * words * 4, codes_out.first(count * words * 4)));
  const Dtype dtype = m.scale->info->dtype;
  const std::size_t size = row_bytes(*plain_format(dtype), 1), begin = first * groups, n = count * groups;
  raw_.resize(n * size);
  WISP_TRY(c_.read(*m.scale, begin * size, raw_));
  if (const auto bad = first_bad_scale(dtype, raw_, kLargestInt4))
    return bad_scale(c_, *m.scale, begin + *bad);
  const bool narrow = m.native() == WeightFormat::kInt4;
  if (m.zero != nullptr) {
    // Zero points are packed along the rows; `first` begins a word.
    zeros_.resize((count + 7) / 8 * groups * 4);
    WISP_TRY(c_.read(*m.zero, first / 8 * groups * 4, zeros_));
  }
  for (std::size_t i = 0; i < n; ++i) {
    const float scale = scale_of(dtype, raw_.data(), i);
    const auto bits = std::bit_cast<std::uint32_t>(scale);
    const std::size_t r = i / groups, g = i % groups;
    const std::uint32_t zero =
        m.zero == nullptr ? 8
                          : nibble_at(zeros_.data(), r / 8 * groups + g, static_cast<std::uint32_t>(r % 8));
    const auto dword = narrow && (bits & 0xffffu) == 0 ? std::optional(bits >> 16) : with_zero(scale, zero);
    if (!dword || (narrow && (bits & 0xffffu) != 0))
      return unsupported(where(c_, *m.scale) + ": element " + std::to_string(begin + i) +
                         " is not exact in " + (narrow ? "bf16" : "f16 or bf16") + "; " +
                         std::string(name_of(dtype)) + " scales are taken only where all of them are");
    std::memcpy(scales.data() + i * (narrow ? 2 : 4), &*dword, narrow ? 2 : 4);
  }
  return {};
}

Status MatrixReader::block_rows(const StoredMatrix& m, std::uint32_t first, std::uint32_t count,
                                std::span<std::uint8_t> codes_out, std::span<std::uint8_t> scales) {
  const std::size_t row = m.cols / 2, groups = m.cols / 32, step = m.step;
  const std::uint64_t stored_row = m.offset / row + first * step;  // of the tensor
  const auto pick = [&](std::size_t bytes, std::span<std::uint8_t> to) {
    for (std::size_t r = 0; r < count; ++r)
      std::memcpy(to.data() + r * bytes, raw_.data() + (m.first + r * step) * bytes, bytes);
  };
  raw_.resize(count * step * row);
  WISP_TRY(c_.read(*m.data, stored_row * row, raw_));
  pick(row, codes_out);
  raw_.resize(count * step * groups);
  WISP_TRY(c_.read(*m.scale, stored_row * groups, raw_));
  if (const auto bad = first_bad_scale(Dtype::kF8E8M0, raw_, kLargestE2m1))
    return bad_scale(c_, *m.scale, stored_row * groups + *bad);
  pick(groups, scales);
  return {};
}

Status MatrixReader::block_scales(const StoredMatrix& m, std::vector<float>& out) const {
  const TensorInfo& info = *m.scale->info;
  std::vector<std::uint8_t> raw(info.bytes);
  WISP_TRY(c_.read(*m.scale, 0, raw));
  if (const auto bad = first_bad_scale(info.dtype, raw, kLargestE4m3)) return bad_scale(c_, *m.scale, *bad);
  out.resize(info.shape[0] * info.shape[1]);
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = scale_of(info.dtype, raw.data(), i);
  return {};
}

Status MatrixReader::fp8_scales(const StoredMatrix& m, std::uint32_t first, std::uint32_t count,
                                std::span<std::uint8_t> scales) const {
  std::vector<float> blocks;
  WISP_TRY(block_scales(m, blocks));
  const std::size_t groups = groups_of(m.cols, m.group);
  for (std::uint32_t t = 0; t < kernels::tiles_of(count); ++t)
    std::memcpy(scales.data() + t * groups * 4,
                blocks.data() + (first + t * kernels::kTileRows) / m.group * groups, groups * 4);
  return {};
}

Status MatrixReader::order(const StoredMatrix& m, std::vector<std::uint32_t>& out) const {
  out.resize(m.cols);
  std::iota(out.begin(), out.end(), 0u);
  if (m.index == nullptr) return {};
  std::vector<std::uint8_t> raw(std::size_t{m.cols} * 4);
  WISP_TRY(c_.read(*m.index, 0, raw));
  const auto group = [&](std::uint32_t column) { return word_at(raw.data(), column); };
  if (m.act_order)
    std::stable_sort(out.begin(), out.end(),
                     [&](std::uint32_t a, std::uint32_t b) { return group(a) < group(b); });
  for (std::uint32_t i = 0; i < m.cols; ++i)
    if (group(out[i]) != i / m.group)
      return invalid(where(c_, *m.index) + ": column " + std::to_string(out[i]) + " is in group " +
                     std::to_string(group(out[i])) + ", but groups hold " + std::to_string(m.group) +
                     " columns each" + (m.act_order ? "" : " in their order, as desc_act is false"));
  return {};
}

Status MatrixReader::turn(const StoredMatrix& m) {
  turned_ = nullptr;
  const bool awq = m.storage == Storage::kAwq;
  const std::size_t rows = m.rows, words = dwords_of(WeightFormat::kInt4Zero, m.cols);
  const std::size_t groups = groups_of(m.cols, m.group), row_words = (rows + 7) / 8;
  std::vector<std::uint32_t> columns;
  WISP_TRY(order(m, columns));
  raw_.resize(m.data->info->bytes);
  WISP_TRY(c_.read(*m.data, 0, raw_));
  turned_codes_.assign(rows * words, 0);
  for (std::size_t i = 0; i < m.cols; ++i) {
    const std::size_t column = columns[i];
    for (std::size_t r = 0; r < rows; ++r) {
      const std::uint32_t code = awq ? nibble_at(raw_.data(), column * row_words + r / 8, kAwqNibble[r % 8])
                                     : nibble_at(raw_.data(), column / 8 * rows + r, column % 8);
      turned_codes_[r * words + i / 8] |= code << (4 * (i % 8));
    }
  }
  const Dtype dtype = m.scale->info->dtype;
  raw_.resize(m.scale->info->bytes);
  WISP_TRY(c_.read(*m.scale, 0, raw_));
  if (const auto bad = first_bad_scale(dtype, raw_, kLargestInt4)) return bad_scale(c_, *m.scale, *bad);
  if (m.zero != nullptr) {
    zeros_.resize(m.zero->info->bytes);
    WISP_TRY(c_.read(*m.zero, 0, zeros_));
  }
  turned_scales_.resize(rows * groups);
  for (std::size_t g = 0; g < groups; ++g) {
    for (std::size_t r = 0; r < rows; ++r) {
      const auto nibble = static_cast<std::uint32_t>(r % 8);
      std::uint32_t zero = 8;
      if (m.zero != nullptr)
        zero = nibble_at(zeros_.data(), g * row_words + r / 8, awq ? kAwqNibble[nibble] : nibble);
      // The first form of GPTQ stores one less, and 15 for 0.
      const auto dword = with_zero(scale_of(dtype, raw_.data(), g * rows + r), (zero + m.zero_offset) & 15u);
      if (!dword)
        return unsupported(where(c_, *m.scale) + ": element " + std::to_string(g * rows + r) +
                           " is not exact in f16 or bf16; F32 scales are taken only where all of them are");
      turned_scales_[r * groups + g] = *dword;
    }
  }
  turned_ = m.data;
  return {};
}

Status MatrixReader::floats(const StoredMatrix& m, std::uint32_t first, std::uint32_t count, float* out) {
  const WeightFormat f = m.native();
  const std::uint32_t of_tile = kernels::kTileRows;
  const std::uint32_t begin = first / of_tile * of_tile, n = first + count - begin;
  const std::size_t groups = groups_of(m.cols, m.group), scale_size = kernels::traits_of(f).scale_bytes;
  const std::size_t row = row_bytes(f, m.cols), per_dword = kernels::columns_per_dword(f);
  row_codes_.resize(n * row);
  row_scales_.resize(kernels::scale_rows(f, n) * groups * scale_size);
  WISP_TRY(rows(m, begin, n, row_codes_, row_scales_));
  std::vector<std::uint32_t> columns;
  if (m.act_order) WISP_TRY(order(m, columns));
  for (std::uint32_t r = first - begin; r < n; ++r, out += m.cols) {
    const std::size_t scale_row = kernels::traits_of(f).scale_rows == 1 ? r / of_tile : r;
    kernels::Scale scale;
    for (std::uint32_t c = 0; c < m.cols; ++c) {
      if (m.group != 0 && c % m.group == 0)
        scale = kernels::scale_at(f, row_scales_.data() + (scale_row * groups + c / m.group) * scale_size);
      std::uint32_t bits = 0;
      const std::size_t at = c / per_dword * 4;
      std::memcpy(&bits, row_codes_.data() + r * row + at, std::min<std::size_t>(4, row - at));
      out[columns.empty() ? c : columns[c]] =
          (kernels::code_to_float(f, bits, c) - scale.zero) * scale.factor;
    }
  }
  return {};
}

}  // namespace wisp::model
