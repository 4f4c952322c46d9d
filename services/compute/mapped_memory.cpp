#include "services/compute/mapped_memory.hpp"

#include <algorithm>

namespace wisp::compute {

using Access = shm::Population::Access;

MappedMemory::MappedMemory(service::StageContext& ctx)
    : ctx_(ctx), loader_board_(shm::extra_of<shm::LoaderBoard>(ctx.peer(shm::StageId::kLoader))) {
  const shm::Kv* kv = ctx.at().kv;
  kv_ = shm::Population(
      {reinterpret_cast<const std::byte*>(kv) + kv->pages_offset, std::uint64_t{kv->pages} * kv->page_bytes},
      Access::kWrite);
  kv_page_there_.assign(kv->pages, false);
  dense_ = shm::Population({ctx.at().dense, ctx.plan().dense_bytes}, Access::kRead);
  slab_ = shm::Population({ctx.at().slab, ctx.plan().slab_bytes()}, Access::kRead);
}

bool MappedMemory::step() {
  if (!kv_.finished()) {
    check_kv(kv_.step());
    return true;
  }
  if (ctx_.at().slab_dir->dense_ready.load(std::memory_order_acquire) == 0) return false;
  // Huge pages have come under what was there: it is entered once more.
  if (const std::uint64_t huge = loader_board_->huge_bytes.load(std::memory_order_acquire); huge != huge_) {
    huge_ = huge;
    dense_ = shm::Population(dense_.memory(), Access::kRead);
    slab_ = shm::Population(slab_.memory(), Access::kRead);
  }
  // To ask for what the loader has not brought yet would be to race it for the memory.
  const std::uint64_t there = loader_board_->slab_in_memory.load(std::memory_order_acquire);
  shm::Population& next = dense_.finished() ? slab_ : dense_;
  if (&next == &slab_ && std::min(slab_.reached() + shm::Population::kPiece, slab_.size()) > there)
    return false;
  if (next.finished()) return false;
  // A refusal costs faults later, nothing else: the loader holds the memory.
  if (!next.step().ok()) next.cut();
  return true;
}

void MappedMemory::need_kv(std::span<const std::uint32_t> pages) {
  if (kv_.finished()) return;
  const std::uint64_t bytes = ctx_.plan().kv_page_bytes;
  for (const std::uint32_t page : pages) {
    if (kv_page_there_[page]) continue;
    check_kv(kv_.ensure(page * bytes, bytes));
    kv_page_there_[page] = true;
  }
}

void MappedMemory::check_kv(const Status& s) {
  if (!s.ok()) ctx_.give_up(Error(s.error()).within("KV cache (--ctx)"));
}

}  // namespace wisp::compute
