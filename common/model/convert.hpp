#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "model/folder_writer.hpp"

namespace wisp::model {

/// What weights become; nothing = the format that holds the publisher's numbers without changing one.
struct TargetFormats {
  std::optional<kernels::WeightFormat> experts;  ///< kBf16, kInt8 or kInt4
  std::optional<kernels::WeightFormat> dense;  ///< kBf16 or kInt8: matrices but those of routers and the like
};

struct ConvertOptions {
  std::string source;                       ///< a Hugging Face folder
  std::string destination;                  ///< the folder to be made
  bool force = false;                       ///< replace a WISP folder of that name
  std::optional<std::uint64_t> free_bytes;  ///< stands in for the disk's figure (tests)
  TargetFormats target = {};
  bool draft_head = true;           ///< keep the layer that predicts further tokens, where there is one
  std::function<bool()> stop = {};  ///< asked as the work goes on: whether to end it, kInterrupted
};

struct ConvertReport {
  std::string name;                              ///< the model's id
  std::uint64_t experts = 0, dense_tensors = 0;  ///< those of a draft head included
  std::uint64_t bytes = 0;                       ///< of the folder
  std::uint64_t draft_head_bytes = 0;            ///< of those, its weights; 0 without one
  double seconds = 0.0;
  std::vector<std::string> notes;  ///< what the user should know, a line each
};

/// Lays a checkpoint out for streaming. Weights are re-laid, and re-rounded only where `target` asks
/// for it. Everything that can be refused is refused before a byte is written, by name; so are a full disk
/// and an existing destination. Holds at most two experts and 256 MiB: one expert, a
/// group of rows and their scales, and of GPTQ and AWQ one matrix as it lies and turned. A run that
/// was killed or stopped is taken up again by the next one, file by file.
Result<ConvertReport> convert(const ConvertOptions& options, const ProgressFn& progress);

/// What converting a folder would give.
struct ConvertEstimate {
  std::uint64_t bytes = 0;  ///< exact, of the folder to be made
  std::uint64_t experts = 0;
  std::uint32_t vocab = 0;  ///< rows of embedding and head
  std::string name;
  /// Names that folder: what would be written, in which layout, and from which state of which files. Another
  /// checkpoint, or the same one changed or elsewhere, has another key.
  std::uint64_t key = 0;
};
/// Reads headers and configs only. The Errors are those of `convert`.
Result<ConvertEstimate> estimate(const std::string& folder, const TargetFormats& target = {});

/// The last component of a folder's path: the model's id. `.` and a trailing slash stand for the folder.
std::string folder_name(const std::string& folder);
/// A folder with a config.json and safetensors, but no manifest.
bool is_hf_folder(const std::string& folder);
/// A folder with a manifest.json.
bool is_wisp_folder(const std::string& folder);

}  // namespace wisp::model
