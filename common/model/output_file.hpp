#pragma once
#include <cerrno>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/fd.hpp"
#include "base/result.hpp"

namespace wisp::model {

/// An output file: sequential writes, errors with the path, durable at close.
class OutputFile {
 public:
  static Result<OutputFile> create(const std::string& path);
  /// Others can tell the file from a dead run's, by its lock (flock), while this object lives.
  Status lock();
  Status write(std::span<const std::uint8_t> bytes);
  Status write(std::string_view text);
  Status close_durably();

 private:
  std::string path_;
  Fd fd_;
  std::uint64_t written_ = 0, started_ = 0;  ///< bytes, and those that the drive was told to begin with
};

/// The errno `e` of a call `what` on `path`: kExhausted where it is room that lacks, else kIo.
Error os_error(const std::string& path, const char* what, int e = errno);

}  // namespace wisp::model
