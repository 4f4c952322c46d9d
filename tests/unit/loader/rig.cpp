#include "rig.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <xxhash.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "model/synth.hpp"
#include "shm/region.hpp"

namespace wisp::loader {

using shm::StageId;

namespace {
constexpr std::uint64_t kPatienceNs = 20'000'000'000ULL;
}

ScratchDir::ScratchDir() {
  std::string name = std::filesystem::temp_directory_path() / "wisp-loader-XXXXXX";
  WISP_CHECK(::mkdtemp(name.data()) != nullptr);
  path = name;
}
ScratchDir::~ScratchDir() {
  std::error_code ignored;
  std::filesystem::remove_all(path, ignored);
}

TinyModel::TinyModel(std::uint32_t width) : folder_(dir_.path + "/tiny") {
  model::SynthOptions o;
  o.destination = folder_;
  o.like = "pocket";
  o.layers = 3;
  o.hidden = 64;
  o.heads = 2;
  o.kv_heads = 1;
  o.head_dim = 32;
  o.experts = 16;
  o.top_k = 4;
  o.width = width;
  o.vocab = 64;
  o.max_positions = 64;
  o.expert_format = "bf16";
  const auto made = model::synth(o, {});
  EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().text);
  auto manifest = model::load_manifest(folder_);
  EXPECT_TRUE(manifest.ok()) << (manifest.ok() ? "" : manifest.error().text);
  manifest_ = std::move(manifest.value());
}

void* Rig::region(const std::string& name, std::uint64_t size) {
  auto fd = shm::create_memfd(name, size, true);
  WISP_CHECK(fd.ok());
  auto mapping = shm::Mapping::map(fd->get(), true);
  WISP_CHECK(mapping.ok());
  shm::enter_in_page_table(mapping->data(), size, true);
  at_.mappings.push_back(std::make_shared<shm::Mapping>(std::move(*mapping)));
  return at_.mappings.back()->data();
}

Rig::Rig(const TinyModel& model, std::uint32_t slots, std::string io) : model_(model) {
  const model::ModelSpec& spec = model.manifest().spec;
  at_.plan.options.model = model.folder();
  at_.plan.options.io = std::move(io);
  at_.plan.layers = static_cast<std::uint32_t>(spec.layers.size());
  at_.plan.experts_per_layer = spec.router.experts;
  at_.plan.slots = slots;
  at_.plan.stride = spec.expert.stride;
  at_.plan.dense_bytes = model.manifest().dense_bytes;

  life_ = static_cast<shm::Life*>(region("life", sizeof(shm::Life)));
  at_.life = life_;
  for (StageId s : shm::kRunningStages) {
    shm::DeskPlan plan;
    for (auto& b : plan.arena_bytes) b = 65536;
    plan.extra_bytes = std::max<std::uint64_t>(4096, slots * sizeof(std::uint64_t));
    auto* d = static_cast<shm::Desk*>(region("desk", shm::desk_size(s, plan)));
    shm::init_desk(d, s, plan, 1, 1);
    at_.desk[shm::index(s)] = d;
    fds_.emplace_back(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    at_.bell[shm::index(s)] = ring::Doorbell(fds_.back().get());
  }
  at_.slab_dir = static_cast<slab::SlabDir*>(
      region("slabdir", slab::slab_dir_size(slots, at_.plan.layers, at_.plan.experts_per_layer)));
  slab::init_slab_dir(at_.slab_dir, slots, at_.plan.layers, at_.plan.experts_per_layer, at_.plan.stride, 1,
                      1);
  at_.slab = static_cast<std::byte*>(region("slab", at_.plan.slab_bytes()));
  at_.dense = static_cast<std::byte*>(region("dense", at_.plan.dense_bytes));
  start_compute();
}

Rig::~Rig() = default;

void Rig::start_compute() {
  auto& stage = life_->stage[shm::index(StageId::kCompute)];
  stage.dead_through.store(compute_epoch_);
  ++compute_epoch_;
  compute_context_ = std::make_unique<service::StageContext>(at_, StageId::kCompute, compute_epoch_);
  row_ = shm::extra_of<slab::LeaseRow>(desk(StageId::kCompute));
  for (std::uint32_t s = 0; s < slots(); ++s) row_->generation[s].store(0);
  to_loader_ = compute_context_->producer(shm::EdgeId::kComputeLoader);
  from_loader_ = compute_context_->consumer(shm::EdgeId::kLoaderCompute);
  desk(StageId::kCompute)->attached_epoch.store(compute_epoch_);
  at_.bell[shm::index(StageId::kLoader)].ring();
}

LoaderParts Rig::with_tombstone(LoaderParts parts) {
  int ends[2];
  WISP_CHECK(::pipe2(ends, O_CLOEXEC) == 0);
  tombstone_.reset(ends[0]);
  parts.tombstone.reset(ends[1]);
  return parts;
}

Status Rig::start(LoaderParts parts) {
  kill();
  ++epoch_;
  context_ = std::make_unique<service::StageContext>(at_, StageId::kLoader, epoch_);
  if (!parts.backend) parts = with_tombstone(std::move(parts));
  WISP_ASSIGN(loader_, LoaderStage::make(*context_, std::move(parts)));
  desk(StageId::kLoader)->attached_epoch.store(epoch_);
  return {};
}

FaultBackend* Rig::start_with_faults() {
  BackendSetup setup;
  auto inner = make_pread_backend(setup);
  WISP_CHECK(inner.ok());
  auto faults = std::make_unique<FaultBackend>(std::move(*inner));
  FaultBackend* raw = faults.get();
  LoaderParts parts;
  parts.backend = std::move(faults);
  const Status s = start(std::move(parts));
  EXPECT_TRUE(s.ok());
  return raw;
}

void Rig::kill() {
  loader_.reset();
  context_.reset();
  life_->stage[shm::index(StageId::kLoader)].dead_through.store(epoch_);
}

void Rig::drained(std::uint32_t epoch) {
  life_->stage[shm::index(StageId::kLoader)].drained[epoch % shm::kDrainWindow].store(epoch);
}

bool Rig::until(const std::function<bool()>& done) {
  const std::uint64_t end = shm::monotonic_now() + kPatienceNs;
  while (!done()) {
    if (shm::monotonic_now() > end) return false;
    if (!loader_->poll()) std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  return true;
}

bool Rig::idle(int turns) {
  int quiet = 0;
  return until([&] {
    quiet = loader_->has_work() || board()->reads_in_flight.load() > 0 ? 0 : quiet + 1;
    return quiet > turns;
  });
}

bool Rig::load_dense() {
  return until([this] { return dir()->dense_ready.load() == 1; });
}

void Rig::touch(std::uint32_t layer, const std::vector<std::uint32_t>& experts, std::uint8_t flags,
                const std::vector<std::uint32_t>& leased) {
  std::vector<ring::TouchMember> members;
  for (const std::uint32_t e : experts) {
    const bool held = std::find(leased.begin(), leased.end(), e) != leased.end();
    members.push_back({static_cast<std::uint16_t>(e), static_cast<std::uint16_t>(held ? 0 : 1), 1});
  }
  ring::Message m;
  m.kind = ring::Kind::kTouch;
  m.flags = flags;
  m.key = layer << 16;
  m.aux = step_++;
  m.payload = std::as_bytes(std::span(members));
  ASSERT_TRUE(to_loader_.publish(m));
}

void Rig::guess(std::uint32_t layer, const std::vector<std::uint32_t>& experts) {
  std::vector<ring::TouchMember> members;
  for (const std::uint32_t e : experts) members.push_back({static_cast<std::uint16_t>(e), 0, 1});
  ring::Message m;
  m.kind = ring::Kind::kGuess;
  m.key = layer << 16;
  m.payload = std::as_bytes(std::span(members));
  ASSERT_TRUE(to_loader_.publish(m));
}

void Rig::need(std::uint32_t key) {
  ring::Message m;
  m.kind = ring::Kind::kNeed;
  m.key = key;
  ASSERT_TRUE(to_loader_.publish(m));
}

std::uint32_t Rig::lease(std::uint32_t key) {
  const std::uint32_t hint = dir()->index()[ring::layer_of(key) * dir()->experts + ring::expert_of(key)].load(
      std::memory_order_acquire);
  if (hint == 0 || slab::try_lease(row_, dir(), hint - 1, key) == 0) return 0;
  return hint;
}

void Rig::release(std::uint32_t slot) {
  slab::release_lease(row_, slot);
  if (board()->waits_for_lease.load() == std::uint64_t{slot} + 1)
    at_.bell[shm::index(StageId::kLoader)].ring();
}

std::vector<Seen> Rig::take(bool hold, std::size_t most) {
  std::vector<Seen> seen;
  while (seen.size() < most) {
    const ring::Descriptor* d = from_loader_.front();
    if (d == nullptr) break;
    const auto text = from_loader_.payload(*d);
    seen.push_back({d->kind, d->key, d->slot, d->gen,
                    std::string(reinterpret_cast<const char*>(text.data()), text.size())});
    if (d->kind == ring::Kind::kSlotReady && hold) {
      EXPECT_NE(slab::try_lease(row_, dir(), d->slot, d->key), 0u) << "a slot that was answered went away";
    }
    from_loader_.pop();
  }
  return seen;
}

slab::SlotWord Rig::word(std::uint32_t slot) const {
  return slab::SlotWord::unpack(at_.slab_dir->entries()[slot].word.load());
}

std::uint32_t Rig::slot_of(std::uint32_t key) const {
  for (std::uint32_t s = 0; s < at_.plan.slots; ++s)
    if (word(s).state == slab::SlotState::kReady && word(s).key == key) return s + 1;
  return 0;
}

std::uint32_t Rig::in_state(slab::SlotState state) const {
  std::uint32_t n = 0;
  for (std::uint32_t s = 0; s < at_.plan.slots; ++s) n += word(s).state == state ? 1 : 0;
  return n;
}

bool Rig::intact(std::uint32_t slot) const {
  const std::uint32_t key = word(slot).key;
  const auto& m = model_.manifest();
  return XXH3_64bits(at_.slab + slot * at_.plan.stride, m.spec.expert.payload) ==
         m.experts[ring::layer_of(key)].extents[ring::expert_of(key)].checksum;
}

}  // namespace wisp::loader
