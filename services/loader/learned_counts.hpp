#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
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
  /// Counts of the same shape that follow these ones in time.
  void absorb(const LearnedCounts& later);

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
  /// Takes the counts of such bytes; none where they are wrong. Errors: kCorrupt or kInvalid says what is
  /// wrong; whatever the bytes are, nothing worse happens.
  Status decode(std::string_view bytes, std::uint64_t model_hash);
  /// As if nothing had been counted.
  void clear();

  /// Errors: kNotFound where there is no file; else as decode(), with the file's name.
  static Result<LearnedCounts> load(const std::string& path, std::uint64_t model_hash, std::uint32_t layers,
                                    std::uint32_t experts);

 private:
  friend class LearnedFile;
  Status load(const std::string& path, std::uint64_t model_hash, std::string& bytes);

  std::uint32_t layers_, experts_;
  std::vector<float> counts_;  // [layers, experts]
  std::vector<double> rows_;   // [layers]
  std::vector<double> since_;  // [layers] rows since the last decay
};

/// The file of one model's counts, to which several engines may add.
class LearnedFile {
 public:
  LearnedFile(std::string path, std::uint64_t model_hash, std::uint32_t layers, std::uint32_t experts)
      : file_(std::move(path)), model_hash_(model_hash), all_(layers, experts) {}
  const std::string& path() const { return file_.path(); }

  /// Adds `later` to what the file says by then; a file that cannot be used is replaced. A torn one is found
  /// by its checksum. Allocates nothing after the first time. Errors: as StateFile::update().
  Status add(const LearnedCounts& later);

 private:
  StateFile file_;
  std::uint64_t model_hash_;
  LearnedCounts all_;
  std::string bytes_;
};

/// Where what is learned of a model is kept: learned/<hash> in the state folder, empty where there is none.
std::string learned_path(std::uint64_t model_hash);

}  // namespace wisp::loader
