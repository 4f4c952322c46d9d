#pragma once
#include <array>
#include <cstdint>

#include "base/result.hpp"
#include "model/checkpoint.hpp"
#include "model/config.hpp"
#include "model/family.hpp"
#include "wisp/kernels/weight.hpp"

namespace wisp::model {

/// How the numbers of a matrix lie in a checkpoint (spec 3).
enum class Storage : std::uint8_t {
  kPlain,   ///< F32, BF16 or F16 as they are
  kPacked,  ///< compressed-tensors int4: words [rows, cols / 8], scales [rows, groups], zero points
  kBlocks,  ///< MXFP4: blocks [rows, cols / 32, 16], scales [rows, cols / 32]
  kFp8,     ///< E4M3 [rows, cols], a scale for each block of 128 x 128
  kGptq,    ///< words [cols / 8, rows], zero points [groups, rows / 8], scales [groups, rows], g_idx [cols]
  kAwq,     ///< words [cols, rows / 8] in an order of their own, zero points and scales likewise
};

/// The tensors of one module, by what their names end in.
struct ModuleParts {
  std::array<const Checkpoint::Entry*, TensorName::kKinds> of{};

  const Checkpoint::Entry*& operator[](TensorName::Kind k) { return of[static_cast<std::size_t>(k)]; }
  const Checkpoint::Entry* operator[](TensorName::Kind k) const { return of[static_cast<std::size_t>(k)]; }
  bool empty() const;
};

/// Where one matrix [rows, cols] is stored, checked against its tensors' shapes and dtypes.
struct StoredMatrix {
  Storage storage = Storage::kPlain;
  std::uint32_t rows = 0, cols = 0;
  std::uint32_t group = 0;  ///< columns that share a scale; 0 for plain numbers
  const Checkpoint::Entry* data = nullptr;
  const Checkpoint::Entry* scale = nullptr;
  const Checkpoint::Entry* zero = nullptr;   ///< zero points, or null: 8
  const Checkpoint::Entry* index = nullptr;  ///< GPTQ: which group each column belongs to
  bool act_order = false;                    ///< GPTQ: the groups are not in the order of the columns
  const Checkpoint::Entry* bias = nullptr;   ///< of an expert
  std::uint32_t zero_offset = 0;             ///< what a stored zero point is short of
  std::uint64_t offset = 0;                  ///< bytes into `data`: not 0 only in tensors of all experts
  std::uint64_t bias_offset = 0;             ///< elements into `bias`
  bool transposed = false;  ///< `data` at `offset` is [cols, rows * step] instead of [rows * step, cols]
  /// Row r of the matrix is row `first + r * step` there, and of scales and biases.
  std::uint32_t first = 0, step = 1;

  /// The format that holds these numbers without changing one.
  kernels::WeightFormat native() const;
};

/// "FILE: tensor NAME"
std::string where(const Checkpoint& c, const Checkpoint::Entry& e);
/// "[A, B]"
std::string dims(std::initializer_list<std::uint64_t> shape);
bool has_shape(const Checkpoint::Entry& e, std::initializer_list<std::uint64_t> shape);
/// The tensor is not what the config needs; `need` says what that is.
Error wrong_shape(const Checkpoint& c, const Checkpoint::Entry& e, const std::string& need);

/// Finds out how a module's weights [rows, cols] are stored. Errors name the tensor: kInvalid (another shape
/// than the config needs, stored twice, parts missing), kUnsupported (dtype, or parts that belong to no known
/// form).
Result<StoredMatrix> match_storage(const Checkpoint& c, const QuantConfig& quant, const ModuleParts& parts,
                                   std::uint32_t rows, std::uint32_t cols);

}  // namespace wisp::model
