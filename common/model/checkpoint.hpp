#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "model/safetensors.hpp"

namespace wisp::model {

/// Every shard stays open; more than this is no checkpoint but an attack on the descriptor table.
inline constexpr std::size_t kMaxShards = 768;

/// The weights of a Hugging Face folder: one safetensors file, or shards with or without an index.
class Checkpoint {
 public:
  /// Where a tensor lies.
  struct Entry {
    const TensorInfo* info = nullptr;
    std::uint32_t file = 0;
  };

  /// Opens every file and reads its header. Errors: a missing or truncated shard, an index that disagrees
  /// with the files, a tensor stored twice, no weights at all; each with the names.
  static Result<Checkpoint> open(const std::string& folder);

  const std::string& folder() const { return folder_; }
  /// All tensors, file by file.
  const std::vector<Entry>& entries() const { return entries_; }
  /// The tensor, or nullptr.
  const Entry* find(std::string_view name) const;
  const std::string& file_of(const Entry& e) const { return files_[e.file].path(); }
  std::uint64_t bytes() const { return bytes_; }

  /// Bytes [at, at + out.size()) of a tensor.
  Status read(const Entry& e, std::uint64_t at, std::span<std::uint8_t> out) const {
    return files_[e.file].read(*e.info, at, out);
  }

  /// They are read next: the drive may begin.
  void will_read(const Entry& e, std::uint64_t at, std::uint64_t bytes) const {
    files_[e.file].will_read(*e.info, at, bytes);
  }

 private:
  Status add_file(const std::string& name);
  Status check_index(const std::unordered_map<std::string, std::string>& weight_map,
                     const std::vector<std::string>& names);

  std::string folder_;
  std::vector<SafetensorsFile> files_;
  std::vector<Entry> entries_;
  std::unordered_map<std::string_view, std::size_t> by_name_;
  std::uint64_t bytes_ = 0;
};

}  // namespace wisp::model
