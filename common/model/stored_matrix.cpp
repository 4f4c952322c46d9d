#include "model/stored_matrix.hpp"

#include <algorithm>
#include <cstring>
#include <span>

#include "model/float_check.hpp"

namespace wisp::model {

namespace {

using Entry = Checkpoint::Entry;
using Kind = TensorName::Kind;
using kernels::groups_of;
using kernels::WeightFormat;

constexpr std::uint64_t up(std::uint64_t n, std::uint64_t unit) {
  return (n + unit - 1) / unit;
}

/// Takes the parts of a module one after the other; what is left over belongs to no known form.
class Matcher {
 public:
  Matcher(const Checkpoint& c, const QuantConfig& quant, const ModuleParts& parts, std::uint32_t rows,
          std::uint32_t cols)
      : c_(c), quant_(quant), left_(parts) {
    m_.rows = rows;
    m_.cols = cols;
  }

  Result<StoredMatrix> match() {
    const Entry* const weight = take(Kind::kWeight);
    const Entry* const packed = take(Kind::kPacked);
    const Entry* const words = take(Kind::kQWeight);
    if ((weight != nullptr) + (packed != nullptr) + (words != nullptr) > 1)
      return invalid(where(c_, weight != nullptr ? *weight : *packed) +
                     ": the same weights are stored a second time, in packed form");
    if (weight != nullptr) {
      if (weight->info->dtype == Dtype::kF8E4M3)
        WISP_TRY(fp8(*weight));
      else
        WISP_TRY(plain(*weight));
    } else if (packed != nullptr) {
      WISP_TRY(compressed(*packed));
    } else if (words != nullptr) {
      WISP_TRY(quant_.method == QuantMethod::kAwq ? awq(*words) : gptq(*words));
    }
    for (const Entry* e : left_.of)
      if (e != nullptr)
        return unsupported(where(c_, *e) + ": does not belong to weights that are stored in this form");
    if (m_.data == nullptr) return not_found("the weights are missing");
    return m_;
  }

 private:
  const Entry* take(Kind k) {
    const Entry* const e = left_[k];
    left_[k] = nullptr;
    return e;
  }

  Status need(const Entry* e, const char* what) const {
    if (e != nullptr) return {};
    return not_found(where(c_, *m_.data) + ": its " + what + " is missing");
  }

  Status plain(const Entry& e) {
    m_.data = &e;
    if (!has_shape(e, {m_.rows, m_.cols})) return wrong_shape(c_, e, dims({m_.rows, m_.cols}));
    if (plain_format(e.info->dtype)) return {};
    return unsupported(where(c_, e) + ": dtype " + std::string(name_of(e.info->dtype)) +
                       " is not supported; supported: F32, BF16, F16, F8_E4M3 with block scales, int4 "
                       "(compressed-tensors, GPTQ, AWQ) and MXFP4");
  }

  Status fp8(const Entry& e) {
    m_.storage = Storage::kFp8;
    m_.data = &e;
    m_.group = 128;
    if (quant_.method != QuantMethod::kFp8)
      return unsupported(where(c_, e) +
                         ": is F8_E4M3, but config.json names no fp8 quantisation in blocks of 128 x 128");
    if (!has_shape(e, {m_.rows, m_.cols})) return wrong_shape(c_, e, dims({m_.rows, m_.cols}));
    m_.scale = take(Kind::kScaleInv);
    WISP_TRY(need(m_.scale, "weight_scale_inv"));
    const std::uint64_t tall = up(m_.rows, 128), wide = up(m_.cols, 128);
    if (!has_shape(*m_.scale, {tall, wide})) return wrong_shape(c_, *m_.scale, dims({tall, wide}));
    if (plain_format(m_.scale->info->dtype) || m_.scale->info->dtype == Dtype::kF8E8M0) return {};
    return unsupported(where(c_, *m_.scale) + ": scales of dtype " +
                       std::string(name_of(m_.scale->info->dtype)) +
                       " are not supported; supported: F32, BF16, F16, F8_E8M0");
  }

  Status compressed(const Entry& e) {
    m_.storage = Storage::kPacked;
    m_.data = &e;
    m_.group = quant_.group;
    if (quant_.method != QuantMethod::kCompressed)
      return invalid(where(c_, e) + ": packed weights, but config.json has no quantization_config for them");
    if (e.info->dtype != Dtype::kI32 || !has_shape(e, {m_.rows, up(m_.cols, 8)}))
      return wrong_shape(c_, e, "I32 " + dims({m_.rows, up(m_.cols, 8)}));
    const std::uint64_t groups = groups_of(m_.cols, m_.group);
    m_.scale = take(Kind::kScale);
    WISP_TRY(need(m_.scale, "weight_scale"));
    WISP_TRY(check_scale(m_.rows, groups));
    if (!quant_.symmetric) {
      m_.zero = take(Kind::kZeroPoint);
      WISP_TRY(need(m_.zero, "weight_zero_point"));
      WISP_TRY(check_words(*m_.zero, up(m_.rows, 8), groups));
    }
    const Entry* const shape = take(Kind::kShape);
    return shape == nullptr ? Status{} : check_stored_shape(*shape);
  }

  Status gptq(const Entry& e) {
    m_.storage = Storage::kGptq;
    m_.data = &e;
    if (quant_.method != QuantMethod::kGptq)
      return invalid(where(c_, e) + ": packed weights, but config.json names neither GPTQ nor AWQ");
    WISP_TRY(check_transposed_groups());
    WISP_TRY(check_words(e, up(m_.cols, 8), m_.rows));
    const std::uint64_t groups = groups_of(m_.cols, m_.group);
    m_.scale = take(Kind::kQScales);
    WISP_TRY(need(m_.scale, "scales"));
    WISP_TRY(check_scale(groups, m_.rows));
    m_.zero = take(Kind::kQZeros);
    WISP_TRY(need(m_.zero, "qzeros"));
    WISP_TRY(check_words(*m_.zero, groups, up(m_.rows, 8)));
    m_.zero_offset = quant_.zero_offset;
    const Entry* const index = take(Kind::kGroupIndex);
    if (index != nullptr && (index->info->dtype != Dtype::kI32 || !has_shape(*index, {m_.cols})))
      return wrong_shape(c_, *index, "I32 " + dims({m_.cols}));
    m_.index = index;
    m_.act_order = quant_.act_order;
    return m_.act_order ? need(index, "g_idx") : Status{};
  }

  Status awq(const Entry& e) {
    m_.storage = Storage::kAwq;
    m_.data = &e;
    WISP_TRY(check_transposed_groups());
    WISP_TRY(check_words(e, m_.cols, up(m_.rows, 8)));
    const std::uint64_t groups = groups_of(m_.cols, m_.group);
    m_.scale = take(Kind::kQScales);
    WISP_TRY(need(m_.scale, "scales"));
    WISP_TRY(check_scale(groups, m_.rows));
    if (!quant_.symmetric) {
      m_.zero = take(Kind::kQZeros);
      WISP_TRY(need(m_.zero, "qzeros"));
      WISP_TRY(check_words(*m_.zero, groups, up(m_.rows, 8)));
    }
    return {};
  }

  /// One group for all columns, as GPTQ and AWQ may have it, is a group that all of them fit into.
  Status check_transposed_groups() {
    m_.group = quant_.group != 0 ? quant_.group : static_cast<std::uint32_t>(up(m_.cols, 32) * 32);
    if (m_.rows % 8 == 0 && m_.cols % 8 == 0) return {};
    return unsupported(where(c_, *m_.data) + ": " + dims({m_.rows, m_.cols}) +
                       " are not multiples of 8, as this form packs them");
  }

  Status check_words(const Entry& e, std::uint64_t a, std::uint64_t b) const {
    if (e.info->dtype == Dtype::kI32 && has_shape(e, {a, b})) return {};
    return wrong_shape(c_, e, "I32 " + dims({a, b}));
  }

  Status check_scale(std::uint64_t a, std::uint64_t b) const {
    if (!has_shape(*m_.scale, {a, b})) return wrong_shape(c_, *m_.scale, dims({a, b}));
    if (plain_format(m_.scale->info->dtype)) return {};
    return unsupported(where(c_, *m_.scale) + ": scales of dtype " +
                       std::string(name_of(m_.scale->info->dtype)) +
                       " are not supported; supported: BF16, F16, and F32 where they are exact in BF16");
  }

  /// The tensor beside packed weights that repeats their shape.
  Status check_stored_shape(const Entry& e) const {
    const bool narrow = e.info->dtype == Dtype::kI32;  // as some publishers have it
    if ((!narrow && e.info->dtype != Dtype::kI64) || !has_shape(e, {2}))
      return wrong_shape(c_, e, "I64 [2] or I32 [2]");
    std::uint64_t stored[2] = {};
    std::uint8_t raw[16];
    const std::size_t size = narrow ? 4 : 8;
    WISP_TRY(c_.read(e, 0, std::span(raw).first(2 * size)));
    for (std::size_t i = 0; i < 2; ++i) std::memcpy(&stored[i], raw + i * size, size);
    if (stored[0] == m_.rows && stored[1] == m_.cols) return {};
    return invalid(where(c_, e) + ": says " + dims({stored[0], stored[1]}) + ", the config needs " +
                   dims({m_.rows, m_.cols}));
  }

  const Checkpoint& c_;
  const QuantConfig& quant_;
  ModuleParts left_;
  StoredMatrix m_;
};

}  // namespace

bool ModuleParts::empty() const {
  return std::all_of(of.begin(), of.end(), [](const Entry* e) { return e == nullptr; });
}

kernels::WeightFormat StoredMatrix::native() const {
  switch (storage) {
    case Storage::kPlain:
      return *plain_format(data->info->dtype);
    case Storage::kPacked:
      // An F16 scale has more digits than bf16 holds.
      return zero == nullptr && scale->info->dtype != Dtype::kF16 ? WeightFormat::kInt4
                                                                  : WeightFormat::kInt4Zero;
    case Storage::kBlocks:
      return WeightFormat::kMxfp4;
    case Storage::kFp8:
      return WeightFormat::kFp8;
    case Storage::kGptq:
    case Storage::kAwq:
      return WeightFormat::kInt4Zero;
  }
  return WeightFormat::kF32;
}

std::string where(const Checkpoint& c, const Entry& e) {
  return c.file_of(e) + ": tensor " + printable(e.info->name);
}

std::string dims(std::initializer_list<std::uint64_t> shape) {
  std::string s = "[";
  for (const auto d : shape) s += (s.size() > 1 ? ", " : "") + std::to_string(d);
  return s + "]";
}

bool has_shape(const Entry& e, std::initializer_list<std::uint64_t> shape) {
  return std::equal(e.info->shape.begin(), e.info->shape.end(), shape.begin(), shape.end());
}

Error wrong_shape(const Checkpoint& c, const Entry& e, const std::string& need) {
  return invalid(where(c, e) + ": is " + describe(*e.info) + ", the config needs " + need);
}

Result<StoredMatrix> match_storage(const Checkpoint& c, const QuantConfig& quant, const ModuleParts& parts,
                                   std::uint32_t rows, std::uint32_t cols) {
  return Matcher(c, quant, parts, rows, cols).match();
}

}  // namespace wisp::model
