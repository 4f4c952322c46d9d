#include "launch/regions.hpp"

#include <sys/eventfd.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "ring/doorbell.hpp"
#include "service/fds.hpp"
#include "shm/population.hpp"
#include "slab/slot_word.hpp"

namespace wisp::launch {

namespace fds = service::fds;
using shm::StageId;

namespace {

/// Maps a fresh region for its first words alone.
template <class Init>
Status initialise(int fd, Init init) {
  WISP_ASSIGN(auto mapping, shm::Mapping::map(fd, true));
  init(mapping.data());
  return {};
}

std::uint64_t bytes_behind(const Fd& fd) {
  struct stat st {};
  if (!fd.valid() || ::fstat(fd.get(), &st) != 0) return 0;
  return static_cast<std::uint64_t>(st.st_blocks) * 512;
}

bool has(const std::vector<StageId>& stages, StageId s) {
  return std::find(stages.begin(), stages.end(), s) != stages.end();
}

}  // namespace

Result<Regions> Regions::create(const plan::RunPlan& plan, std::uint64_t run_id) {
  Regions r;
  r.plan_ = plan;
  r.run_id_ = run_id;
  for (StageId s : shm::kRunningStages) {
    r.bell_[shm::index(s)].reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (r.bell(s) < 0) return io_error(std::string("eventfd: ") + std::strerror(errno));
  }
  constexpr std::uint64_t kLifeSize = (sizeof(shm::Life) + 4095) / 4096 * 4096;
  WISP_TRY(r.make(r.life_, "life", kLifeSize));
  WISP_ASSIGN(r.life_map_, shm::Mapping::map(r.life_.writable.get(), true));
  shm::begin_header(r.life_map_.data(), shm::RegionKind::kLife, kLifeSize, run_id, 1);
  r.life().gate.store(~0ULL, std::memory_order_relaxed);
  shm::seal_header(r.life_map_.data());
  WISP_TRY(r.make_journal());
  WISP_TRY(r.make_renewable());
  return r;
}

Status Regions::make(Region& region, const std::string& name, std::uint64_t size, Memory memory) {
  // A writer that cannot ask for memory politely would be killed where there is none.
  const bool now = memory == Memory::kNow || !shm::can_populate();
  WISP_ASSIGN(region.writable, shm::create_memfd(name, size, now));
  WISP_ASSIGN(region.read_only, shm::reopen_read_only(region.writable.get()));
  return {};
}

Status Regions::make_desk(StageId s) {
  const std::uint32_t i = shm::index(s);
  const shm::DeskPlan layout = plan::desk_plan(plan_, s);
  WISP_TRY(make(desk_[i], "desk." + std::string(shm::name_of(s)), shm::desk_size(s, layout)));
  WISP_TRY(initialise(desk_[i].writable.get(),
                      [&](void* base) { shm::init_desk(base, s, layout, run_id_, generation_); }));
  WISP_ASSIGN(desk_map_[i], shm::Mapping::map(desk_[i].read_only.get(), false));
  return {};
}

Status Regions::make_journal() {
  WISP_TRY(make(journal_, "journal", shm::journal_size(plan_.records, plan_.ctx, plan_.options.logprobs)));
  return initialise(journal_.writable.get(), [&](void* base) {
    shm::init_journal(base, plan_.records, plan_.ctx, plan_.profile_hash, run_id_, plan_.options.logprobs);
  });
}

Status Regions::make_renewable() {
  WISP_TRY(check_memory());
  for (StageId s : shm::kRunningStages) WISP_TRY(make_desk(s));
  WISP_TRY(
      make(slab_dir_, "slabdir", slab::slab_dir_size(plan_.slots, plan_.layers, plan_.experts_per_layer)));
  WISP_TRY(initialise(slab_dir_.writable.get(), [&](void* base) {
    slab::init_slab_dir(base, plan_.slots, plan_.layers, plan_.experts_per_layer, plan_.stride, run_id_,
                        generation_);
  }));
  WISP_TRY(make(kv_, "kv.0", shm::kv_size(plan_.kv_pages, plan_.kv_page_bytes), Memory::kFromItsWriter));
  WISP_TRY(initialise(kv_.writable.get(), [&](void* base) {
    shm::init_kv(base, plan_.kv_pages, static_cast<std::uint32_t>(plan_.kv_format), plan_.kv_page_bytes,
                 run_id_, generation_);
  }));
  WISP_TRY(make(dense_, "dense", plan_.dense_bytes, Memory::kFromItsWriter));
  return make(slab_, "slab", plan_.slab_bytes(), Memory::kFromItsWriter);
}

/// What is not taken at once must be there all the same.
Status Regions::check_memory() const {
  const std::uint64_t need = plan_.dense_bytes + plan_.slab_bytes() + plan_.kv_bytes();
  const std::uint64_t there = plan::available_memory();
  if (there == 0 || need <= there) return {};
  return exhausted("weights, experts and KV cache: " + std::to_string(need) +
                   " bytes of memory are not there (" + std::to_string(there) +
                   " are free); give a smaller --ram");
}

Status Regions::renew() {
  before_ = progress();
  // The old memory goes first: there is no room for two slabs.
  for (StageId s : shm::kRunningStages) {
    desk_map_[shm::index(s)] = shm::Mapping();
    desk_[shm::index(s)] = Region();
  }
  for (Region* r : {&slab_, &dense_, &slab_dir_, &kv_}) *r = Region();
  ++generation_;
  return make_renewable();
}

const shm::Desk* Regions::desk(StageId s) const {
  return static_cast<const shm::Desk*>(desk_map_[shm::index(s)].data());
}

std::vector<Grant> Regions::grants(const std::vector<StageId>& stages) const {
  const auto any = [&](const std::vector<StageId>& of) {
    return std::any_of(of.begin(), of.end(), [&](StageId s) { return has(stages, s); });
  };
  std::vector<Grant> out;
  const auto grant = [&](const Region& r, int number, StageId writer, const std::vector<StageId>& readers) {
    if (has(stages, writer))
      out.push_back({r.writable.get(), number});
    else if (any(readers))
      out.push_back({r.read_only.get(), number});
  };
  out.push_back({life_.read_only.get(), fds::kLife});
  for (StageId s : shm::kRunningStages) {
    const Region& r = desk_[shm::index(s)];
    out.push_back({has(stages, s) ? r.writable.get() : r.read_only.get(), fds::desk(s)});
    out.push_back({bell(s), fds::bell(s)});
  }
  grant(slab_, fds::kSlab, StageId::kLoader, {StageId::kCompute});
  // A draft head takes embedding and output matrix from where its model has them, and that one's rows from
  // the pages.
  std::vector<StageId> of_dense{StageId::kCompute}, of_kv;
  if (plan_.head_bytes != 0)
    for (auto* readers : {&of_dense, &of_kv}) readers->push_back(StageId::kSpeculator);
  grant(dense_, fds::kDense, StageId::kLoader, of_dense);
  grant(slab_dir_, fds::kSlabDir, StageId::kLoader, {StageId::kCompute, StageId::kRouter});
  grant(kv_, fds::kKv, StageId::kCompute, of_kv);
  grant(journal_, fds::kJournal, StageId::kRouter,
        {StageId::kGateway, StageId::kCompute, StageId::kSpeculator});
  return out;
}

std::vector<NamedFd> Regions::readable() const {
  std::vector<NamedFd> out{{"life", life_.read_only.get()}};
  for (StageId s : shm::kRunningStages)
    out.push_back({"desk." + std::string(shm::name_of(s)), desk_[shm::index(s)].read_only.get()});
  out.push_back({"slabdir", slab_dir_.read_only.get()});
  out.push_back({"journal", journal_.read_only.get()});
  return out;
}

void Regions::ring_all() const {
  for (StageId s : shm::kRunningStages) ring::Doorbell(bell(s)).ring();
}

std::uint64_t Regions::allocated() const {
  std::uint64_t sum = 0;
  for (const Region* r : {&life_, &slab_, &dense_, &slab_dir_, &kv_, &journal_})
    sum += bytes_behind(r->writable);
  for (const Region& r : desk_) sum += bytes_behind(r.writable);
  return sum;
}

Progress Regions::counters() const {
  const shm::Desk* router = desk(StageId::kRouter);
  const shm::Desk* loader = desk(StageId::kLoader);
  if (router == nullptr || loader == nullptr) return {};
  return {router->get(stats::Counter::kTokensCommitted) + router->get(stats::Counter::kPromptTokens),
          loader->get(stats::Counter::kReads)};
}

Progress Regions::progress() const {
  const Progress now = counters();
  return {before_.tokens + now.tokens, before_.reads + now.reads};
}

}  // namespace wisp::launch
