#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/fd.hpp"
#include "base/result.hpp"
#include "model/manifest.hpp"
#include "model/output_file.hpp"
#include "model/resume_log.hpp"

namespace wisp::model {

/// Called with (bytes done, bytes in all) as a long job goes on. May be empty.
using ProgressFn = std::function<void(std::uint64_t, std::uint64_t)>;

/// A dense tensor to be written.
struct DenseItem {
  std::string name;
  kernels::WeightFormat format = kernels::WeightFormat::kF32;
  std::uint32_t rows = 0, cols = 0;
  bool matrix = true;
  std::uint32_t group = 0;  ///< columns that share a scale
  bool ordered = false;     ///< columns come in an order of their own
};

/// Where the contents of dense tensors come from.
class DenseRows {
 public:
  virtual ~DenseRows() = default;
  /// Rows [first, first + count) of item `index`, row-major: codes as row_bytes() of its format, scales
  /// [scale_rows(), groups]. `first` is a multiple of 16.
  virtual Status rows(std::size_t index, std::uint32_t first, std::uint32_t count,
                      std::span<std::uint8_t> codes, std::span<std::uint8_t> scales) = 0;
  /// The order of its columns [cols], of items that have one.
  virtual Status order(std::size_t index, std::vector<std::uint32_t>& out);
};
/// Gives the payload of an expert in the tile layout; `out` holds ExpertShape::payload bytes, zeroed.
using FillExpert = std::function<Status(std::uint32_t expert, std::span<std::uint8_t> out)>;

/// Where everything of a folder will lie, before a byte of it is written.
struct FolderLayout {
  std::string dense_header;                 ///< length word and padded header of the dense file
  std::vector<std::string> expert_headers;  ///< [layers], empty for dense layers
  std::uint64_t weight_bytes = 0;           ///< of all weight files, headers included
  std::uint64_t total_bytes = 0;            ///< with the manifest
};
/// Fills the manifest's offsets, sizes and file names from its spec and the dense items; checksums stay zero.
FolderLayout lay_out_folder(Manifest& m, const std::vector<DenseItem>& items);

/// Builds a model folder under `<dst>.partial-<pid>` and puts it in place when it is whole. The folder is
/// locked (flock) while its writer lives, so that the kernel tells a dead run's leftovers from a live run's
/// work. Whatever is unfinished is removed by the destructor, unless it was told to stop; what a killed or
/// stopped run left whole is taken over by the next one of the same key.
class FolderWriter {
 public:
  /// Refuses where `dst` exists (unless `force`, and then only a WISP folder or an empty one is replaced),
  /// where another run is writing it, and where fewer than `need_bytes` are free. `free_bytes` stands in for
  /// the disk's figure (tests). `key` names what is written: sources and layout.
  static Result<FolderWriter> begin(const std::string& dst, bool force, std::uint64_t need_bytes,
                                    ProgressFn progress, std::optional<std::uint64_t> free_bytes,
                                    std::uint64_t key);
  FolderWriter(FolderWriter&&) noexcept;
  FolderWriter& operator=(FolderWriter&&) = delete;
  ~FolderWriter();

  /// `stop` is asked after each piece that is written; where it says so, the work ends with kInterrupted.
  void stop_when(std::function<bool()> stop) { stop_ = std::move(stop); }

  /// Writes the dense file, a group of rows at a time, and notes the checksums.
  Status write_dense(const FolderLayout& layout, const std::vector<DenseItem>& items, Manifest& m,
                     DenseRows& source);
  /// Writes a layer's experts, one at a time, and notes the checksums.
  Status write_experts(const FolderLayout& layout, std::uint32_t layer, Manifest& m, const FillExpert& fill);
  Status write_text(const std::string& name, std::string_view text);
  /// Writes the manifest (with its hash), makes all of it durable and renames the folder into place.
  Status finish(Manifest& m);
  /// Bytes of files that an earlier run had finished.
  std::uint64_t resumed_bytes() const { return resumed_; }

 private:
  FolderWriter() = default;
  /// The checksums of a file that an earlier run finished, and its bytes counted as done; else null.
  const std::vector<std::uint64_t>* take_over(const std::string& file, std::uint64_t bytes,
                                              std::size_t parts);
  Status write_dense_tensor(OutputFile& file, const DenseItem& item, std::size_t index, DenseTensor& t,
                            DenseRows& source);
  /// Counts bytes as done. Errors: kInterrupted where it is to stop.
  Status advance(std::uint64_t bytes);

  std::string dst_, partial_;
  Fd lock_;
  bool force_ = false, stopped_ = false;
  ProgressFn progress_;
  std::function<bool()> stop_;
  std::uint64_t done_ = 0, total_ = 0, resumed_ = 0;
  std::optional<ResumeLog> log_;
};

}  // namespace wisp::model
