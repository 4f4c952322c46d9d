#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "services/bench/pairs.hpp"
#include "services/loader/io_backend.hpp"
#include "services/loader/read_queue.hpp"

namespace wisp::bench {

struct StreamOptions {
  std::string model;                            ///< a model folder, read with its stripes; or empty:
  std::uint64_t size = 0;                       ///< bytes of an expert, of a file made for the purpose
  std::string folder = ".";                     ///< where that file is made, without a name
  std::uint64_t bank = std::uint64_t{1} << 30;  ///< its bytes
  std::string io = "auto";
  bool registered = true;
  std::uint64_t depth = loader::ReadQueue::kDepthBytes;  ///< bytes in flight on each drive
  std::uint32_t pairs = 7;
  std::uint64_t turn_bytes = std::uint64_t{256} << 20;  ///< read in each half of a pair
  /// Asked before each read, by any thread: true ends the measuring. May be empty.
  std::function<bool()> stop;
};

/// GB/s of experts, the loader's own reading beside a plain one.
struct StreamFigures {
  Pairs rates;                    ///< kernel: the loader; roof: plain reads
  std::vector<double> loader_ms;  ///< from asking for an expert to having it
  std::vector<double> plain_ms;
  std::uint64_t expert_bytes = 0;             ///< read by the loader's half, in whole extents
  std::optional<std::uint64_t> device_bytes;  ///< that the drives read meanwhile, for whomever
};

/// Reads random experts through the loader's queue and backend at the engine's block size and depth, in turns
/// with threads that pread() whole parts with O_DIRECT, as many at a time. Nothing is cached between: each
/// turn goes on through one shuffled order of all experts.
class StreamBench {
 public:
  /// Errors: those of load_manifest and load_stripes; kInvalid names the option; kIo, kExhausted.
  static Result<std::unique_ptr<StreamBench>> create(const StreamOptions& options);
  ~StreamBench();

  /// Errors: kIo; kInterrupted once `stop` says so.
  Result<StreamFigures> measure();
  /// One turn of the plain reads alone. Errors: those of measure().
  Result<double> plain_gb_s();
  std::uint64_t extent_bytes() const { return stride_; }
  std::uint64_t extents() const { return order_.size(); }
  std::uint32_t drives() const { return static_cast<std::uint32_t>(devices_.size()); }
  /// What reads: "io_uring", "pread".
  std::string backend() const;

 private:
  /// One expert's parts; destinations are relative to a slot.
  using Parts = std::vector<loader::Extent>;

  explicit StreamBench(const StreamOptions& options) : options_(options) {}
  Status open_model();
  Status make_file();
  Status open(const std::string& path, std::uint32_t& index);
  Status allocate();
  bool stopped() const { return options_.stop && options_.stop(); }
  const Parts& next();
  Result<double> loader_turn(StreamFigures& f);
  Result<double> plain_turn(StreamFigures& f);
  std::optional<std::uint64_t> device_bytes() const;

  StreamOptions options_;
  std::vector<loader::ModelFile> files_;
  std::vector<std::uint64_t> devices_;
  std::vector<Parts> parts_;
  std::vector<std::uint32_t> order_;
  std::size_t at_ = 0;
  std::uint64_t stride_ = 0;
  std::byte* slab_ = nullptr;
  std::uint64_t slab_bytes_ = 0;
  std::uint32_t slots_ = 0;
  std::unique_ptr<shm::Desk> counters_;
  std::unique_ptr<loader::IoBackend> backend_;
  std::optional<loader::ReadQueue> queue_;
};

}  // namespace wisp::bench
