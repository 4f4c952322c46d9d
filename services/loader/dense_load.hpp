#pragma once
#include <cstdint>
#include <map>

#include "model/manifest.hpp"
#include "services/loader/model_file.hpp"
#include "services/loader/read_queue.hpp"

namespace wisp::loader {

/// Tags of dense reads; those of fills are slot numbers.
inline constexpr std::uint64_t kDenseTag = std::uint64_t{1} << 63;

/// Brings the data section of dense.safetensors into region `dense` and checks every tensor, in small steps.
/// A read that a dead loader left behind may land while this one works: it brings the same bytes to the same
/// place.
class DenseLoad {
 public:
  DenseLoad(const model::Manifest& manifest, ModelFile file, std::byte* dense)
      : manifest_(manifest), file_(std::move(file)), dense_(dense), next_tensor_(manifest.dense.begin()) {}

  /// Starts reads while the queue has room, or checks one tensor once all have arrived. True if it did
  /// something. Errors: kCorrupt names the tensor whose checksum is wrong.
  Result<bool> step(ReadQueue& queue);
  /// Takes the end of one of its reads. Errors: kIo.
  Status on_done(ExtentDone done);
  bool finished() const { return arrived() && next_tensor_ == manifest_.dense.end(); }
  /// Whether step() has something to do that no completion announces.
  bool has_work(const ReadQueue& queue) const;

 private:
  bool arrived() const { return arrived_ == manifest_.dense_bytes; }
  Status check(const std::string& name, const model::DenseTensor& t) const;

  const model::Manifest& manifest_;
  ModelFile file_;
  std::byte* dense_;
  std::uint64_t requested_ = 0;
  std::uint64_t arrived_ = 0;
  std::map<std::string, model::DenseTensor>::const_iterator next_tensor_;
};

}  // namespace wisp::loader
