#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "service/stage.hpp"
#include "shm/population.hpp"

namespace wisp::compute {

/// KV rows, dense weights and slab in the page table of compute's process, so that no step of decoding meets
/// a page for the first time. Brought there in idle time: the KV region in order of its pages, which is the
/// order of their use, then what the loader has brought of dense and slab.
class MappedMemory {
 public:
  /// `ctx` outlives it.
  explicit MappedMemory(service::StageContext& ctx);

  /// One more piece. False where there is nothing to do now. A KV region without memory ends the run.
  bool step();
  /// These KV pages are in memory before a row is written there. Ends the run where memory is not there.
  void need_kv(std::span<const std::uint32_t> pages);

 private:
  void check_kv(const Status& s);

  service::StageContext& ctx_;
  const shm::LoaderBoard* loader_board_;
  shm::Population kv_, dense_, slab_;
  std::uint64_t huge_ = 0;           ///< bytes in huge pages that were seen
  std::vector<bool> kv_page_there_;  ///< [pages], where asked for before its turn
};

}  // namespace wisp::compute
