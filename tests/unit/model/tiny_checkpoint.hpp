#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "model/json.hpp"

namespace wisp::model::test {

/// A folder that is removed with its owner. Its name holds a blank: paths with blanks must work everywhere.
class TempFolder {
 public:
  TempFolder();
  ~TempFolder();
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  std::string path(const std::string& name = "") const { return name.empty() ? root_ : root_ + "/" + name; }

 private:
  std::string root_;
};

/// A copy of an oracle's checkpoint (tests/data/oracle) without the answers that lie beside it; its path.
std::string oracle_checkpoint(const TempFolder& temp, const std::string& name);

struct TinyTensor {
  std::string dtype;
  std::vector<std::uint64_t> shape;
  std::vector<std::uint8_t> data;
};

/// A small Qwen3-MoE checkpoint in memory: 2 layers, hidden 64, 2 heads of 16, 4 experts of width 32, 40
/// tokens. Tests change it before they write it.
class TinyCheckpoint {
 public:
  enum class Experts { kBf16, kF16, kF32, kInt4, kFused };
  explicit TinyCheckpoint(Experts experts = Experts::kBf16);

  Json config;
  Json generation;
  std::map<std::string, TinyTensor> tensors;

  TinyTensor& at(const std::string& name) { return tensors.at(name); }
  /// Adds a tensor with small random numbers of a plain dtype.
  void add(const std::string& name, const std::string& dtype, const std::vector<std::uint64_t>& shape);
  void add_packed(const std::string& module, std::uint64_t rows, std::uint64_t cols, std::uint64_t group);
  /// Writes config and one model.safetensors.
  void write(const std::string& folder) const;
  /// Writes the tensors in `shards` files, with an index if asked.
  void write_sharded(const std::string& folder, std::uint32_t shards, bool index) const;

 private:
  void write_texts(const std::string& folder) const;
  std::uint64_t state_ = 7;
  std::uint32_t next();
};

/// The tensors of a safetensors file.
std::map<std::string, TinyTensor> read_tensors(const std::string& path);
/// The bytes of a safetensors file.
std::string safetensors_bytes(const std::map<std::string, TinyTensor>& tensors);
/// Length word + header + `data` bytes of zeros: for headers written by hand.
std::string raw_safetensors(const std::string& header, std::size_t data);
void write_file(const std::string& path, std::string_view text);
std::string read_file(const std::string& path);

}  // namespace wisp::model::test
