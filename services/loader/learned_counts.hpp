#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "services/loader/state_file.hpp"

namespace wisp::loader {

/// How often each expert of one model was chosen, over many runs: what the cache has learned. Decays with
/// use, never with time. A hint: what a file says changes speed, no byte of an answer.
class LearnedCounts {
 public:
  LearnedCounts(std::uint32_t layers, std::uint32_t experts);

  /// `rows` rows passed `layer`; add() says what they chose.
  void pass(std::uint32_t layer, double rows);
  void add(std::uint32_t layer, std::uint32_t expert, std::uint32_t rows);

  /// Decayed rows that passed the layer.
  double rows(std::uint32_t layer) const { return rows_[layer]; }
  /// Part of them that chose the expert; 0 where none passed.
  float share(std::uint32_t layer, std::uint32_t expert) const;
  /// Keys (layer << 16 | expert) that were ever chosen, most wanted first.
  std::vector<std::uint32_t> most_wanted() const;

  std::uint32_t layers() const { return layers_; }
  std::uint32_t experts() const { return experts_; }

  /// The file as bytes: magic, version, model hash, shape, rows, counts, checksum over all before it.
  std::string encode(std::uint64_t model_hash) const;
  void encode(std::uint64_t model_hash, std::string& out) const;
  /// Errors: kCorrupt or kInvalid says what is wrong; whatever the bytes are, nothing worse happens.
  static Result<LearnedCounts> decode(std::string_view bytes, std::uint64_t model_hash, std::uint32_t layers,
                                      std::uint32_t experts);

  /// Errors: kNotFound where there is no file; else as decode(), with the file's name.
  static Result<LearnedCounts> load(const std::string& path, std::uint64_t model_hash, std::uint32_t layers,
                                    std::uint32_t experts);
  /// Replaces the file; a torn one is found by its checksum. Allocates nothing after the first time.
  /// Errors: as StateFile::replace().
  Status save(const StateFile& file, std::uint64_t model_hash);

 private:
  std::uint32_t layers_, experts_;
  std::vector<float> counts_;  // [layers, experts]
  std::vector<double> rows_;   // [layers]
  std::vector<double> since_;  // [layers] rows since the last decay
  std::string bytes_;          // the file, as it is saved
};

/// Where what is learned of a model is kept: learned/<hash> in the state folder, empty where there is none.
std::string learned_path(std::uint64_t model_hash);

}  // namespace wisp::loader
