#pragma once
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "model/checkpoint.hpp"
#include "model/config.hpp"
#include "model/dense_plan.hpp"
#include "model/folder_writer.hpp"
#include "model/manifest.hpp"

namespace wisp::model {

/// Where one matrix of one expert is stored.
struct PartSource {
  const Checkpoint::Entry* data = nullptr;   ///< plain weights, int4 words, or blocks
  const Checkpoint::Entry* scale = nullptr;  ///< coded formats only
  const Checkpoint::Entry* shape = nullptr;  ///< int4 only, may be absent
  const Checkpoint::Entry* bias = nullptr;   ///< where experts have biases
  bool packed = false;
  std::uint64_t offset = 0;       ///< bytes into `data`: not 0 only in tensors that hold all experts
  std::uint64_t bias_offset = 0;  ///< elements into `bias`
  bool transposed = false;  ///< `data` at `offset` is [cols, rows * step] instead of [rows * step, cols]
  /// Row r of the matrix is row `first + r * step` there, and of scales and biases.
  std::uint32_t first = 0, step = 1;
};
/// Where a dense tensor comes from.
struct DenseSource {
  const Checkpoint::Entry* entry = nullptr;
  Derivation derivation = Derivation::kNone;
};

/// Gate, up, down.
using ExpertSource = std::array<PartSource, 3>;

/// A conversion, checked through and through, before anything is written.
struct ConvertPlan {
  Checkpoint checkpoint;
  Config config;
  bool experts_int4 = false;                               ///< plain experts are rounded to int4
  Manifest manifest;                                       ///< all but the checksums
  std::vector<DenseItem> items;                            ///< dense tensors in file order
  std::vector<DenseSource> sources;                        ///< [items]
  std::vector<std::vector<ExpertSource>> experts;          ///< [layers][experts], empty for dense layers
  std::vector<std::pair<std::string, std::string>> texts;  ///< other files: name, contents
  FolderLayout layout;
  std::uint64_t bytes = 0;  ///< of the folder to be made
  std::vector<std::string> notes;
};

/// Reads the headers and configs of a Hugging Face folder. Refuses by name whatever cannot be converted.
/// `experts_int4`: plain experts become int4.
Result<ConvertPlan> plan_conversion(const std::string& folder, bool experts_int4 = false);

// The two halves of the work beneath plan_conversion.

/// Sorts every tensor of the checkpoint into `items`/`sources` and `experts`; fixes spec.tied_head and
/// spec.expert.
Status assign_tensors(ConvertPlan& plan);
/// Tokenizer, template and configs.
Status collect_texts(ConvertPlan& plan);

}  // namespace wisp::model
