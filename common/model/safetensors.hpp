#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/fd.hpp"
#include "base/result.hpp"

namespace wisp::model {

/// A file that claims a header of terabytes would make the reader allocate them. The format's own limit.
inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
/// A header of nothing but tiny entries costs a multiple of its bytes in memory. The largest models have
/// 250,000.
inline constexpr std::size_t kMaxTensors = 1'000'000;
/// Names are copied into maps and errors; real ones have fewer than 100 bytes.
inline constexpr std::size_t kMaxTensorName = 512;
/// A shape of millions of ones has a small product and costs memory for nothing.
inline constexpr std::size_t kMaxRank = 8;

enum class Dtype : std::uint8_t {
  kBool,
  kU8,
  kI8,
  kF8E4M3,
  kF8E5M2,
  kF8E8M0,
  kF4,
  kU16,
  kI16,
  kF16,
  kBf16,
  kU32,
  kI32,
  kF32,
  kU64,
  kI64,
  kF64,
};
/// As the header spells it: "BF16".
std::string_view name_of(Dtype t);
std::uint64_t bits_of(Dtype t);

/// One entry of the header.
struct TensorInfo {
  std::string name;
  Dtype dtype = Dtype::kU8;
  std::vector<std::uint64_t> shape;
  std::uint64_t offset = 0;  ///< bytes from the start of the data section
  std::uint64_t bytes = 0;
};
/// "BF16 [128, 256]", for errors.
std::string describe(const TensorInfo& t);

struct SafetensorsHeader {
  std::uint64_t data_offset = 0;    ///< bytes from the start of the file to the data section
  std::vector<TensorInfo> tensors;  ///< by offset
};

/// Reads the length word and the header at the start of `head`; `file_bytes` is the size of the whole file.
/// Checks that every shape agrees with its range, that the ranges cover the data section without gap or
/// overlap, and that the file has exactly the promised size. Errors name `file`, the tensor and the cause.
Result<SafetensorsHeader> parse_safetensors(std::string_view head, std::uint64_t file_bytes,
                                            const std::string& file);

/// An open file. Only ranges that are asked for are read (pread); nothing is mapped.
class SafetensorsFile {
 public:
  static Result<SafetensorsFile> open(const std::string& path);

  const std::string& path() const { return path_; }
  const SafetensorsHeader& header() const { return header_; }
  /// Bytes [at, at + out.size()) of the tensor's data; must lie within the tensor.
  Status read(const TensorInfo& t, std::uint64_t at, std::span<std::uint8_t> out) const;
  /// Bytes [at, at + bytes) are read next: the drive may begin. A hint; what lies outside is left out.
  void will_read(const TensorInfo& t, std::uint64_t at, std::uint64_t bytes) const;

 private:
  std::string path_;
  Fd fd_;
  SafetensorsHeader header_;
};

/// Reads exactly out.size() bytes at `offset`, or says how many are there. `path` is for the error.
Status read_exactly(int fd, std::uint64_t offset, std::span<std::uint8_t> out, const std::string& path);

}  // namespace wisp::model
