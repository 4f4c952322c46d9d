#include "services/loader/loader.hpp"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>

#include <algorithm>

#include "services/loader/loader_stage.hpp"

namespace wisp::loader {

using service::StageContext;
using shm::StageId;

namespace {
// Nobody waits for one of the dense reads: as many as bridge the time in which this process does not run.
constexpr std::uint64_t kDenseDepth = std::uint64_t{16} << 20;
// A lease that is waited for ends with a ring, unless its reader dropped the answer without leasing; then
// time does.
constexpr std::uint64_t kLookAgainNs = 10'000'000;
constexpr std::uint64_t kLookForIdleNs = 100'000'000;

bool asks_for_lru() {
  const char* const policy = std::getenv(kPolicyVariable);
  return policy != nullptr && std::string_view(policy) == "lru";
}

std::string folder_path(const plan::RunPlan& plan, const std::string& file) {
  return plan.options.model + "/" + file;
}
}  // namespace

Result<std::unique_ptr<service::Stage>> make_loader(StageContext& ctx) {
  LoaderParts parts;
  if (::fcntl(service::fds::kTombstone, F_GETFD) >= 0) parts.tombstone.reset(service::fds::kTombstone);
  WISP_ASSIGN(auto stage, LoaderStage::make(ctx, std::move(parts)));
  return std::unique_ptr<service::Stage>(std::move(stage));
}

Result<std::unique_ptr<LoaderStage>> LoaderStage::make(StageContext& ctx, LoaderParts parts) {
  auto manifest = model::load_manifest(ctx.plan().options.model);
  if (!manifest.ok()) return std::move(manifest).error();
  WISP_ASSIGN(auto stripes, model::load_stripes(ctx.plan().options.model, *manifest));
  std::unique_ptr<LoaderStage> stage(new LoaderStage(ctx, std::move(*manifest), std::move(stripes)));
  WISP_TRY(stage->check_plan());
  WISP_TRY(stage->open_files());
  WISP_TRY(stage->open_trace());
  WISP_TRY(stage->start(std::move(parts)));
  return stage;
}

LoaderStage::LoaderStage(StageContext& ctx, model::Manifest manifest, std::vector<model::Stripe> stripes)
    : ctx_(ctx),
      manifest_(std::move(manifest)),
      stripes_(std::move(stripes)),
      dir_(ctx.at().slab_dir),
      slab_(ctx.at().slab),
      policy_({dir_->slots, dir_->layers, dir_->experts, std::max(1u, manifest_.spec.router.top_k),
               asks_for_lru()}),
      input_(ctx.consumer(shm::EdgeId::kComputeLoader)),
      output_(ctx.producer(shm::EdgeId::kLoaderCompute)),
      slots_(dir_->slots),
      unread_generation_(dir_->slots, 0) {}

Status LoaderStage::check_plan() const {
  const auto differs = [&](const char* what, std::uint64_t model, std::uint64_t region) -> Status {
    if (model == region) return {};
    return invalid(ctx_.plan().options.model + ": the model has " + what + " " + std::to_string(model) +
                   ", this run was laid out for " + std::to_string(region) +
                   "; the folder was replaced under a running engine: start it again");
  };
  const model::ModelSpec& spec = manifest_.spec;
  WISP_TRY(differs("layers", spec.layers.size(), dir_->layers));
  WISP_TRY(differs("dense bytes", manifest_.dense_bytes, ctx_.plan().dense_bytes));
  if (spec.expert_count() == 0) return {};
  WISP_TRY(differs("experts per layer", spec.router.experts, dir_->experts));
  WISP_TRY(differs("an expert stride of", spec.expert.stride, dir_->stride));
  if (dir_->slots <
      std::min<std::uint32_t>(2, spec.expert_count()))  // one alone cannot be evicted while leased
    return exhausted("the plan has fewer than 2 expert slots; give more --ram");
  return {};
}

/// Opens a file of the model and finds out on which drive it lies. Returns its index in files_.
Result<std::uint32_t> LoaderStage::open_file(const std::string& path) {
  WISP_ASSIGN(ModelFile file, open_model_file(path));
  struct stat st {};
  const std::uint64_t device = ::fstat(file.fd.get(), &st) == 0 ? st.st_dev : 0;
  const auto known = std::find(drives_.begin(), drives_.end(), device);
  file.drive = static_cast<std::uint32_t>(known - drives_.begin());
  if (known == drives_.end()) drives_.push_back(device);
  files_.push_back(std::move(file));
  return static_cast<std::uint32_t>(files_.size() - 1);
}

Status LoaderStage::open_files() {
  const std::string& folder = ctx_.plan().options.model;
  layer_file_.assign(manifest_.experts.size(), 0);
  stripe_file_.assign(manifest_.experts.size() * stripes_.size(), 0);
  for (std::size_t l = 0; l < manifest_.experts.size(); ++l) {
    if (manifest_.experts[l].file.empty()) continue;
    WISP_ASSIGN(layer_file_[l], open_file(folder + "/" + manifest_.experts[l].file));
    for (std::size_t s = 0; s < stripes_.size(); ++s) {
      WISP_ASSIGN(stripe_file_[l * stripes_.size() + s],
                  open_file(stripes_[s].folder + "/" + stripes_[s].files[l]));
    }
  }
  if (stripes_.empty()) return {};
  spdlog::info("experts are read from {} folders on {} drives", stripes_.size() + 1, drives_.size());
  if (drives_.size() == 1)
    spdlog::warn("all stripes of {} lie on one drive: nothing is gained; wisp stripe {} --drop", folder,
                 folder);
  return {};
}

Status LoaderStage::open_trace() {
  const std::string& path = ctx_.plan().options.trace;
  if (path.empty()) return {};
  std::vector<std::uint64_t> bytes(dir_->layers, 0);
  for (std::size_t l = 0; l < manifest_.experts.size(); ++l)
    if (!manifest_.experts[l].file.empty()) bytes[l] = manifest_.spec.expert.payload;
  const trace::TraceModel model{manifest_.name, dir_->layers, dir_->experts, policy_.shape().top_k};
  auto trace = TraceRecorder::open(path, model, bytes, ctx_.epoch() == 1);
  if (trace.ok()) {
    trace_ = std::move(*trace);
    return {};
  }
  if (ctx_.epoch() == 1) return std::move(trace).error();
  // No reason to end a run that answers.
  spdlog::warn("the recording ends here: {}", trace.error().text);
  lose_trace();
  return {};
}

void LoaderStage::lose_trace() {
  trace_.reset();
  ctx_.desk()->add(stats::Counter::kTracesLost);
}

Status LoaderStage::start(LoaderParts parts) {
  const std::span<std::byte> slab(slab_, ctx_.plan().slab_bytes());
  const std::span<std::byte> dense(ctx_.at().dense, manifest_.dense_bytes);
  const bool dense_missing = dir_->dense_ready.load(std::memory_order_acquire) == 0;
  bool direct = std::all_of(files_.begin(), files_.end(), [](const ModelFile& f) { return f.direct; });
  if (dense_missing) {
    WISP_ASSIGN(ModelFile file, open_model_file(folder_path(ctx_.plan(), manifest_.dense_file)));
    direct = direct && file.direct;
    dense_.emplace(manifest_, std::move(file), dense.data());
  }
  backend_ = std::move(parts.backend);
  if (!backend_) {
    BackendSetup setup{ctx_.plan().options.io,
                       std::move(parts.tombstone),
                       slab,
                       dir_->stride,
                       dir_,
                       ctx_.epoch(),
                       drives(),
                       false};
    WISP_ASSIGN(backend_, make_backend(std::move(setup)));
  }
  queue_.emplace(*backend_, *ctx_.desk(), drives());
  rebuild();
  begin_learning();
  begin_drive(parts);
  if (dense_) queue_->set_depth(kDenseDepth);
  memory_.emplace(dense, slab);
  board()->waits_for_lease.store(0, std::memory_order_seq_cst);
  board()->backend.store(static_cast<std::uint32_t>(backend_->kind()), std::memory_order_relaxed);
  board()->direct.store(direct ? 1 : 0, std::memory_order_relaxed);
  board()->locked.store(0, std::memory_order_relaxed);
  board()->reads_in_flight.store(0, std::memory_order_relaxed);
  board()->read_ahead.store(0, std::memory_order_relaxed);
  board()->slab_in_memory.store(0, std::memory_order_release);
  board()->huge_bytes.store(0, std::memory_order_relaxed);
  spdlog::info("loader epoch {}: {} slots of {} bytes, {} experts resident, {} slots draining, {} reads",
               ctx_.epoch(), dir_->slots, dir_->stride, policy_.residents(), draining_.size(),
               direct ? "direct" : "buffered");
  memory_->begin(board()->slab_in_memory, [bell = ctx_.bell(StageId::kLoader)]() mutable { bell.ring(); });
  return {};
}

void LoaderStage::store_word(std::uint32_t slot, slab::SlotState state) {
  const Slot& s = slots_[slot];
  const std::uint32_t key = state == slab::SlotState::kFree ? 0 : s.key;
  entry(slot).word.store(slab::SlotWord{state, s.generation, key}.pack(), std::memory_order_seq_cst);
}

bool LoaderStage::poll() {
  bool worked = follow_compute();
  worked |= free_drained();
  worked |= take_messages();
  worked |= queue_->reap();
  worked |= flush_answers();
  worked |= probe();  // gives its slots back before they are missed
  worked |= place_wants();
  worked |= prefetch();
  worked |= step_dense();
  worked |= warm_up();
  // Before any checksum is computed: the drive has work while we do.
  worked |= queue_->pump();
  worked |= step_done();
  worked |= step_memory();
  if (!worked) worked = pin_slab();
  board()->reads_in_flight.store(queue_->in_flight(), std::memory_order_relaxed);
  board()->read_ahead.store(read_ahead(), std::memory_order_relaxed);
  return worked;
}

bool LoaderStage::step_dense() {
  if (!dense_) return false;
  auto worked = dense_->step(*queue_);
  if (!worked.ok()) ctx_.give_up(worked.error());
  if (!dense_->finished()) return *worked;
  dense_.reset();
  queue_->set_depth(drive_.depth);
  dir_->dense_ready.store(1, std::memory_order_seq_cst);
  spdlog::info("dense weights are in memory and checked, {} bytes", manifest_.dense_bytes);
  ctx_.bell(StageId::kCompute).ring();
  return true;
}

/// Looks at what the thread that brings memory has come to, once each.
bool LoaderStage::step_memory() {
  if (!memory_ended_) {
    if (!memory_->ended()) return false;
    memory_ended_ = true;
    if (const auto& why = memory_->failure()) {
      if (!memory_->dense_there()) ctx_.give_up(Error(*why).within("dense weights"));
      lose_slots(memory_->slab_reached(), *why);
      drive_.pin = false;  // registering would ask for the pages that are not there
      probe_.reset();
    }
    board()->locked.store(memory_->all_locked() ? 1 : 0, std::memory_order_relaxed);
    spdlog::info("dense weights and slab are in memory: {} bytes, {} of them locked",
                 manifest_.dense_bytes + memory_->slab_reached(), memory_->locked());
    ctx_.bell(StageId::kCompute).ring();  // it enters them in its page table
    return true;
  }
  if (memory_settled_ || !memory_->settled()) return false;
  memory_settled_ = true;
  const std::uint64_t huge = memory_->huge();
  board()->huge_bytes.store(huge, std::memory_order_release);
  spdlog::info("{} bytes of dense weights and slab lie in huge pages", huge);
  ctx_.bell(StageId::kCompute).ring();
  return true;
}

bool LoaderStage::step_done() {
  auto done = queue_->take_done();
  if (!done) return false;
  if ((done->tag & kDenseTag) != 0) {
    if (!dense_) return true;
    if (Status s = dense_->on_done(std::move(*done)); !s.ok()) ctx_.give_up(s.error());
    return true;
  }
  if ((done->tag & kProbeTag) != 0) {
    on_probe_read(*done);
    return true;
  }
  const auto slot = static_cast<std::uint32_t>(done->tag);
  if (slots_[slot].staging) {
    finish_staging(slot, std::move(done->error), done->arrived);
    return true;
  }
  if (!done->error) {
    ctx_.desk()->add(stats::Counter::kReads);
    ctx_.desk()->add(stats::Counter::kExpertBytesRead, done->bytes);
  }
  finish_fill(slot, std::move(done->error));
  return true;
}

bool LoaderStage::has_work() {
  if (accepts_input() && !input_.empty()) return true;
  if (queue_->has_done() || backend_->ready()) return true;
  if ((!memory_ended_ && memory_->ended()) || (!memory_settled_ && memory_->settled())) return true;
  if (may_probe() || (!bursts_.slots.empty() && queue_->idle())) return true;
  if (drive_.pin && memory_settled_ && queue_->idle()) return true;
  if (dense_ && dense_->has_work(*queue_)) return true;
  if (!answers_.empty() && output_.has_space(answers_.front().text.size())) return true;
  if (ctx_.peer(StageId::kCompute)->attached_epoch.load(std::memory_order_acquire) != compute_epoch_)
    return true;
  if (any_drained()) return true;
  if (wants_.empty() || (!queue_->has_room() && !staged(wants_.front().key))) return false;
  if (!lease_wait_) return blocked_ == Blocked::kNo;
  look_at_answers();
  return reader_of(*lease_wait_) != Reader::kCompute;
}

void LoaderStage::sleep(StageContext& ctx) {
  using shm::WaitFor;
  if (trace_) {
    trace_->flush();
    if (trace_->lost()) lose_trace();
  }
  save_learned();
  WaitFor why = WaitFor::kWork;
  std::uint64_t detail = 0;
  std::uint64_t timeout = ~0ULL;
  if (!answers_.empty()) {
    why = WaitFor::kRingSpace;
    detail = shm::index(shm::EdgeId::kLoaderCompute);
  } else if (lease_wait_) {
    why = WaitFor::kLease;
    detail = *lease_wait_;
  } else if (queue_->in_flight() > 0) {
    why = WaitFor::kDrive;
    detail = queue_->in_flight();
  } else if (!draining_.empty()) {
    why = WaitFor::kTombstone;
    detail = entry(draining_.front()).fill_epoch.load(std::memory_order_relaxed);
  }
  if (lease_wait_ || blocked_ == Blocked::kByOthers) timeout = kLookAgainNs;
  if (probe_) timeout = std::min(timeout, kLookForIdleNs);
  wakers_.assign(1, {backend_->poll_fd(), POLLIN, 0});
  ctx.sleep(
      why, detail, [this] { return has_work(); }, &wakers_, timeout);
}

}  // namespace wisp::loader
