#include "model/dense_reader.hpp"

#include <algorithm>
#include <cstring>

namespace wisp::model {

using kernels::kTileRows;
using kernels::row_bytes;

Status DenseReader::rows(std::size_t index, std::uint32_t first, std::uint32_t count,
                         std::span<std::uint8_t> codes, std::span<std::uint8_t> scales) {
  const DenseItem& item = plan_.items[index];
  const DenseSource& source = plan_.sources[index];
  const StoredMatrix& m = source.matrix;
  const bool derived = source.derivation != Derivation::kNone;
  if (item.format == m.native()) {
    if (!derived) return reader_.rows(m, first, count, codes, scales);
    WISP_TRY(derived_codes(index, first, count, codes));
    return item.group == 0 ? Status{} : derived_scales(index, first, count, scales);
  }
  floats_.resize(std::size_t{count} * item.cols);
  WISP_TRY(derived ? derived_floats(index, first, count, floats_.data())
                   : reader_.floats(m, first, count, floats_.data()));
  encode_rows(item.format, floats_.data(), count, item.cols, codes, scales, cost_);
  return {};
}

Status DenseReader::order(std::size_t index, std::vector<std::uint32_t>& out) {
  return reader_.order(plan_.sources[index].matrix, out);
}

std::uint32_t DenseReader::stored_row(Derivation d, std::uint32_t head) const {
  const LatentSpec& l = plan_.manifest.spec.attention.latent;
  return head * (l.nope + l.value) + (d == Derivation::kValueUp ? l.nope : 0);
}

template <class Use>
Status DenseReader::for_each_head(std::uint32_t padded, std::uint32_t live, std::uint32_t first,
                                  std::uint32_t count, const Use& use) const {
  for (std::uint32_t r = first; r < first + count;) {
    // Up to the end of the head's own rows, then over its padding.
    const std::uint32_t head = r / padded, begin = r % padded;
    const std::uint32_t n = std::min(first + count - r, begin < live ? live - begin : padded - begin);
    if (begin < live) WISP_TRY(use(head, begin, r - first, n));
    r += n;
  }
  return {};
}

Status DenseReader::derived_codes(std::size_t index, std::uint32_t first, std::uint32_t count,
                                  std::span<std::uint8_t> out) {
  const AttentionSpec& a = plan_.manifest.spec.attention;
  const DenseItem& item = plan_.items[index];
  const DenseSource& source = plan_.sources[index];
  const std::uint32_t rank = a.latent.kv_rank, nope = a.latent.nope;
  const std::size_t size = row_bytes(item.format, 1), row = row_bytes(item.format, item.cols);
  std::fill_n(out.begin(), count * row, std::uint8_t{0});
  if (source.derivation == Derivation::kValueUp)
    return for_each_head(a.value_up_rows(), a.latent.value, first, count,
                         [&](std::uint32_t head, std::uint32_t begin, std::uint32_t at, std::uint32_t n) {
                           return reader_.codes(source.matrix, stored_row(source.derivation, head) + begin, n,
                                                out.subspan(at * row, n * row));
                         });
  head_codes_.resize(std::size_t{nope} * rank * size);
  return for_each_head(
      a.key_up_rows(), rank, first, count,
      [&](std::uint32_t head, std::uint32_t begin, std::uint32_t at, std::uint32_t n) -> Status {
        WISP_TRY(reader_.codes(source.matrix, stored_row(source.derivation, head), nope, head_codes_));
        for (std::uint32_t r = 0; r < n; ++r)
          for (std::uint32_t i = 0; i < nope; ++i)
            std::memcpy(out.data() + (at + r) * row + i * size,
                        head_codes_.data() + (std::size_t{i} * rank + begin + r) * size, size);
        return {};
      });
}

/// Scales of fp8, whose blocks of 128 x 128 meet neither a tile nor a group of the derived matrix halfway
/// (fit_tensors.cpp sees to it).
Status DenseReader::derived_scales(std::size_t index, std::uint32_t first, std::uint32_t count,
                                   std::span<std::uint8_t> out) const {
  const AttentionSpec& a = plan_.manifest.spec.attention;
  const DenseItem& item = plan_.items[index];
  const DenseSource& source = plan_.sources[index];
  std::vector<float> blocks;
  WISP_TRY(reader_.block_scales(source.matrix, blocks));
  const std::uint32_t block = source.matrix.group, wide = kernels::groups_of(source.matrix.cols, block);
  const std::uint32_t groups = kernels::groups_of(item.cols, item.group);
  const bool turned = source.derivation == Derivation::kKeyUp;
  const std::uint32_t padded = turned ? a.key_up_rows() : a.value_up_rows();
  for (std::uint32_t t = 0; t < kernels::tiles_of(count); ++t) {
    const std::uint32_t r = first + t * kTileRows, head_row = stored_row(source.derivation, r / padded);
    for (std::uint32_t g = 0; g < groups; ++g) {
      const std::uint32_t column = g * item.group, row = r % padded;
      const std::uint32_t stored_at = head_row + (turned ? column : row), across = turned ? row : column;
      std::memcpy(out.data() + (t * groups + g) * 4,
                  &blocks[std::size_t{stored_at / block} * wide + across / block], 4);
    }
  }
  return {};
}

Status DenseReader::derived_floats(std::size_t index, std::uint32_t first, std::uint32_t count, float* out) {
  const AttentionSpec& a = plan_.manifest.spec.attention;
  const DenseItem& item = plan_.items[index];
  const DenseSource& source = plan_.sources[index];
  const std::uint32_t rank = a.latent.kv_rank, nope = a.latent.nope;
  std::fill_n(out, std::size_t{count} * item.cols, 0.0f);
  if (source.derivation == Derivation::kValueUp)
    return for_each_head(a.value_up_rows(), a.latent.value, first, count,
                         [&](std::uint32_t head, std::uint32_t begin, std::uint32_t at, std::uint32_t n) {
                           return reader_.floats(source.matrix, stored_row(source.derivation, head) + begin,
                                                 n, out + std::size_t{at} * rank);
                         });
  head_.resize(std::size_t{nope} * rank);
  return for_each_head(
      a.key_up_rows(), rank, first, count,
      [&](std::uint32_t head, std::uint32_t begin, std::uint32_t at, std::uint32_t n) -> Status {
        WISP_TRY(reader_.floats(source.matrix, stored_row(source.derivation, head), nope, head_.data()));
        for (std::uint32_t r = 0; r < n; ++r)
          for (std::uint32_t i = 0; i < nope; ++i)
            out[std::size_t{at + r} * nope + i] = head_[std::size_t{i} * rank + begin + r];
        return {};
      });
}

}  // namespace wisp::model
