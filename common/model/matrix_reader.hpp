#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "model/stored_matrix.hpp"

namespace wisp::model {

/// "... element N is NaN or infinite ..."
Error not_finite(const Checkpoint& c, const Checkpoint::Entry& e, std::uint64_t element);

/// Reads matrices of a checkpoint, in whichever way they are stored. Rows are given row-major in the native
/// format: codes as row_bytes() of it, scales [rows, groups] beside them (kFp8: [tiles, groups]). Holds what
/// it was asked for; of forms that lie transposed, one whole matrix.
/// Errors: kIo; kInvalid (NaN or infinite, or an index of groups that is none), kUnsupported (scales that the
/// native format cannot hold), each naming the tensor and the element.
class MatrixReader {
 public:
  explicit MatrixReader(const Checkpoint& c) : c_(c) {}

  /// Rows [first, first + count): `first` is a multiple of 16. Columns come in order() where there is one.
  Status rows(const StoredMatrix& m, std::uint32_t first, std::uint32_t count, std::span<std::uint8_t> codes,
              std::span<std::uint8_t> scales);
  /// Codes alone, from any row on, of forms that lie row by row (kPlain, kFp8).
  Status codes(const StoredMatrix& m, std::uint32_t first, std::uint32_t count, std::span<std::uint8_t> out);
  /// The scales of kFp8 as f32: [ceil(rows / 128), ceil(cols / 128)].
  Status block_scales(const StoredMatrix& m, std::vector<float>& out) const;
  /// The same rows as f32 [count, cols], every column in its place. `first` is any row.
  Status floats(const StoredMatrix& m, std::uint32_t first, std::uint32_t count, float* out);
  /// Which column of the weights stands at each place of rows(): [cols], a permutation that brings the
  /// columns of a group together. The identity where the matrix has no index.
  Status order(const StoredMatrix& m, std::vector<std::uint32_t>& out) const;

 private:
  Status transposed_codes(const StoredMatrix& m, std::uint32_t first, std::uint32_t count,
                          std::span<std::uint8_t> out);
  Status packed_rows(const StoredMatrix& m, std::uint32_t first, std::uint32_t count,
                     std::span<std::uint8_t> codes, std::span<std::uint8_t> scales);
  Status block_rows(const StoredMatrix& m, std::uint32_t first, std::uint32_t count,
                    std::span<std::uint8_t> codes, std::span<std::uint8_t> scales);
  Status fp8_scales(const StoredMatrix& m, std::uint32_t first, std::uint32_t count,
                    std::span<std::uint8_t> scales) const;
  /// Turns a GPTQ or AWQ matrix into rows, in turned_codes_ and turned_scales_.
  Status turn(const StoredMatrix& m);

  const Checkpoint& c_;
  std::vector<std::uint8_t> raw_, zeros_, row_codes_, row_scales_;
  const Checkpoint::Entry* turned_ = nullptr;  ///< whose rows the two below are
  std::vector<std::uint32_t> turned_codes_, turned_scales_;
};

}  // namespace wisp::model
