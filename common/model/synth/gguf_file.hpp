#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/result.hpp"
#include "model/folder_writer.hpp"

namespace wisp::model {

/// Tensor types of GGUF that are written here; the values are the format's.
enum class GgufType : std::uint32_t { kF32 = 0, kQ4_0 = 2, kQ8_0 = 8, kBf16 = 30 };

/// Bytes of a row of `cols` numbers; of the two quantised types `cols` is a multiple of 32.
std::uint64_t gguf_row_bytes(GgufType t, std::uint64_t cols);

using GgufValue = std::variant<std::uint32_t, float, bool, std::string>;

struct GgufTensor {
  std::string name;
  GgufType type = GgufType::kF32;
  std::vector<std::uint64_t> shape;  ///< columns first, at most four

  std::uint64_t bytes() const;
};

/// A GGUF file, version 3, as ggml's documentation describes it: magic, version, counts, key-value pairs,
/// tensor table, data at multiples of 32 bytes. Little endian, as the machine is. Until close() the file has
/// another name, and the destructor removes it.
class GgufFile {
 public:
  /// Writes all but the data. Errors: kInvalid (`path` exists and not `replace`), kIo, kExhausted.
  static Result<GgufFile> create(const std::string& path, bool replace,
                                 const std::vector<std::pair<std::string, GgufValue>>& values,
                                 std::vector<GgufTensor> tensors);
  GgufFile(GgufFile&& other) noexcept;
  GgufFile& operator=(GgufFile&&) = delete;
  ~GgufFile();

  /// The next bytes of the tensors' data, in the order of the table.
  Status write(std::span<const std::uint8_t> bytes);
  /// Makes the file durable and gives it its name. All data must be there.
  Status close();

  std::uint64_t bytes() const { return bytes_; }  ///< of the whole file

 private:
  GgufFile(std::string path, OutputFile file, std::vector<GgufTensor> tensors)
      : path_(std::move(path)), file_(std::move(file)), tensors_(std::move(tensors)) {}

  std::string path_;  ///< empty when there is nothing to remove
  OutputFile file_;
  std::vector<GgufTensor> tensors_;
  std::size_t tensor_ = 0;     ///< whose data comes next
  std::uint64_t written_ = 0;  ///< bytes of it
  std::uint64_t bytes_ = 0;
};

}  // namespace wisp::model
