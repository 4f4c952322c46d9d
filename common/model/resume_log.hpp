#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/result.hpp"

namespace wisp::model {

/// What of a folder in the making is whole: `.progress`, a line for each finished file with the checksums of
/// its parts. A line counts once its line feed is there, and is written after its file is durable; so a run
/// that dies at any point leaves only work that the next one can trust.
class ResumeLog {
 public:
  static constexpr const char* kFile = ".progress";

  /// Whether `folder` was begun for `key`: the same sources, the same layout.
  static bool belongs(const std::string& folder, std::uint64_t key);
  /// Begins the log of `folder`, or goes on with one that belongs to `key`. Errors: kIo, kExhausted.
  static Result<ResumeLog> open(const std::string& folder, std::uint64_t key);

  /// Checksums of a finished file's parts, or null.
  const std::vector<std::uint64_t>* find(const std::string& file) const;
  /// Notes a durable file, durably.
  Status add(const std::string& file, std::vector<std::uint64_t> checksums);
  const std::map<std::string, std::vector<std::uint64_t>>& files() const { return files_; }

 private:
  std::string path_;
  std::map<std::string, std::vector<std::uint64_t>> files_;
};

}  // namespace wisp::model
