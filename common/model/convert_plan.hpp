#pragma once
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "model/checkpoint.hpp"
#include "model/config.hpp"
#include "model/convert.hpp"
#include "model/dense_plan.hpp"
#include "model/folder_writer.hpp"
#include "model/manifest.hpp"
#include "model/stored_matrix.hpp"

namespace wisp::model {

/// Where a dense tensor comes from.
struct DenseSource {
  StoredMatrix matrix;
  Derivation derivation = Derivation::kNone;
};

/// Gate, up, down.
using ExpertSource = std::array<StoredMatrix, 3>;

/// A conversion, checked through and through, before anything is written.
struct ConvertPlan {
  std::shared_ptr<const Checkpoint> checkpoint;
  Config config;
  TargetFormats target;
  Manifest manifest;                                       ///< all but the checksums
  std::vector<DenseItem> items;                            ///< dense tensors in file order
  std::vector<DenseSource> sources;                        ///< [items]
  std::vector<std::vector<ExpertSource>> experts;          ///< [layers][experts], empty for dense layers
  std::vector<std::pair<std::string, std::string>> texts;  ///< other files: name, contents
  FolderLayout layout;
  std::uint64_t bytes = 0;  ///< of the folder to be made
  std::vector<std::string> notes;
  /// Where there is one: its layout is that of manifest.draft_head, its bytes are in `bytes`.
  std::unique_ptr<ConvertPlan> draft_head;
};

/// Reads the headers and configs of a Hugging Face folder. Refuses by name whatever cannot be converted.
Result<ConvertPlan> plan_conversion(const std::string& folder, const TargetFormats& target = {},
                                    bool draft_head = true);

// The parts of the work beneath plan_conversion.

/// The tensors of a checkpoint, by what they are.
struct SortedTensors {
  std::map<std::string, ModuleParts> dense;                           ///< by canonical name; biases apart
  std::vector<std::vector<std::array<ModuleParts, 3>>> experts;       ///< [layers][experts]
  std::vector<std::array<const Checkpoint::Entry*, 2>> fused;         ///< [layers] gate and up, down
  std::vector<std::array<const Checkpoint::Entry*, 2>> fused_bias;    ///< same
  std::vector<std::array<const Checkpoint::Entry*, 2>> block_scales;  ///< same
  std::optional<Role> fused_role;                                     ///< how all of `fused` lie
  std::size_t predictions =
      0;  ///< left aside: of layers that predict further tokens, a draft head's own apart
};
/// Gives every tensor of the model its place, or of its draft head where `plan` is that one's. Errors: one
/// that the family does not know, or that is stored twice.
Result<SortedTensors> sort_tensors(const ConvertPlan& plan);
/// Holds the sorted tensors against the spec: fills `items`/`sources` and `experts`, spec.tied_head and
/// spec.expert.
Status fit_tensors(const SortedTensors& sorted, ConvertPlan& plan);
/// Tokenizer, template and configs.
Status collect_texts(ConvertPlan& plan);

}  // namespace wisp::model
