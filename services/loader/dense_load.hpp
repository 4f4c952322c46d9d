#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "model/manifest.hpp"
#include "services/loader/model_file.hpp"
#include "services/loader/read_queue.hpp"

struct XXH3_state_s;

namespace wisp::loader {

/// Tags of dense reads, with the number of the part below; those of fills are slot numbers.
inline constexpr std::uint64_t kDenseTag = std::uint64_t{1} << 63;

/// Brings the data section of dense.safetensors into region `dense` and checks every tensor, in small steps:
/// what has arrived is summed while the drive brings the next.
/// A read that a dead loader left behind may land while this one works: it brings the same bytes to the same
/// place.
class DenseLoad {
 public:
  DenseLoad(const model::Manifest& manifest, ModelFile file, std::byte* dense);

  /// Starts reads while the queue has room, or sums up to 2 MiB of what has arrived. True if it did
  /// something. Errors: kCorrupt names the tensor whose checksum is wrong.
  Result<bool> step(ReadQueue& queue);
  /// Takes the end of one of its reads. Errors: kIo.
  Status on_done(ExtentDone done);
  bool finished() const { return front_ == manifest_.dense_bytes && next_ == tensors_.size(); }
  /// Whether step() has something to do that no completion announces.
  bool has_work(const ReadQueue& queue) const;

 private:
  struct FreeState {
    void operator()(XXH3_state_s* s) const;
  };
  bool can_sum() const;
  Status sum();
  std::string where() const { return file_.path + ": tensor " + tensors_[next_].first; }

  const model::Manifest& manifest_;
  ModelFile file_;
  std::byte* dense_;
  std::vector<std::pair<std::string, model::DenseTensor>> tensors_;  // as they lie in the file
  std::vector<bool> arrived_;                                        // [parts]
  std::uint64_t requested_ = 0;
  std::uint64_t front_ = 0;   // all below it has arrived
  std::size_t next_ = 0;      // tensor being summed
  std::uint64_t summed_ = 0;  // bytes of it
  std::unique_ptr<XXH3_state_s, FreeState> state_;
};

}  // namespace wisp::loader
