#include "model/dense_reader.hpp"

#include <algorithm>
#include <cstring>

#include "model/float_check.hpp"

namespace wisp::model {

namespace {
std::size_t element_bytes(const DenseItem& item) {
  return 4 / kernels::columns_per_dword(item.format);
}
}  // namespace

Error not_finite(const Checkpoint& c, const Checkpoint::Entry& e, std::uint64_t element) {
  return invalid(c.file_of(e) + ": tensor " + e.info->name + ": element " + std::to_string(element) +
                 " is NaN or infinite; the checkpoint is damaged");
}

Status DenseReader::read(std::size_t index, std::uint32_t first, std::uint32_t count,
                         std::span<std::uint8_t> out) {
  const DenseSource& source = plan_.sources[index];
  switch (source.derivation) {
    case Derivation::kKeyUp:
      return key_up(index, first, count, out);
    case Derivation::kValueUp:
      return value_up(index, first, count, out);
    case Derivation::kNone:
      break;
  }
  const DenseItem& item = plan_.items[index];
  return read_checked(*source.entry, std::uint64_t{first} * item.cols, item.format, out);
}

Status DenseReader::read_checked(const Checkpoint::Entry& e, std::uint64_t first_element,
                                 kernels::WeightFormat format, std::span<std::uint8_t> out) const {
  WISP_TRY(plan_.checkpoint.read(e, first_element * (4 / kernels::columns_per_dword(format)), out));
  const auto bad = first_non_finite(format, out);
  if (!bad) return {};
  return not_finite(plan_.checkpoint, e, first_element + *bad);
}

Status DenseReader::key_up(std::size_t index, std::uint32_t first, std::uint32_t count,
                           std::span<std::uint8_t> out) {
  const AttentionSpec& a = plan_.manifest.spec.attention;
  const DenseItem& item = plan_.items[index];
  const std::uint32_t rank = a.latent.kv_rank, nope = a.latent.nope, padded = a.key_up_rows();
  const std::size_t size = element_bytes(item);
  head_.resize(std::size_t{nope} * rank * size);
  std::uint32_t held = ~0u;
  std::fill(out.begin(), out.end(), std::uint8_t{0});
  for (std::uint32_t r = first; r < first + count; ++r) {
    const std::uint32_t head = r / padded, column = r % padded;
    if (column >= rank) continue;
    if (head != held) {
      const std::uint64_t at = std::uint64_t{head} * (nope + a.latent.value) * rank;
      WISP_TRY(read_checked(*plan_.sources[index].entry, at, item.format, head_));
      held = head;
    }
    std::uint8_t* to = out.data() + std::size_t{r - first} * nope * size;
    for (std::uint32_t i = 0; i < nope; ++i)
      std::memcpy(to + i * size, head_.data() + (std::size_t{i} * rank + column) * size, size);
  }
  return {};
}

Status DenseReader::value_up(std::size_t index, std::uint32_t first, std::uint32_t count,
                             std::span<std::uint8_t> out) {
  const AttentionSpec& a = plan_.manifest.spec.attention;
  const DenseItem& item = plan_.items[index];
  const std::uint32_t rank = a.latent.kv_rank, value = a.latent.value, padded = a.value_up_rows();
  const std::size_t row = rank * element_bytes(item);
  std::fill(out.begin(), out.end(), std::uint8_t{0});
  for (std::uint32_t r = first; r < first + count;) {
    // Up to the end of the head's own rows, then over its padding.
    const std::uint32_t head = r / padded, begin = r % padded;
    const std::uint32_t n = std::min(first + count - r, begin < value ? value - begin : padded - begin);
    if (begin < value) {
      const std::uint64_t stored = std::uint64_t{head} * (a.latent.nope + value) + a.latent.nope + begin;
      WISP_TRY(read_checked(*plan_.sources[index].entry, stored * rank, item.format,
                            out.subspan((r - first) * row, n * row)));
    }
    r += n;
  }
  return {};
}

}  // namespace wisp::model
