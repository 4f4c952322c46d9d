#include "services/cli/stat_view.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "ring/descriptor.hpp"
#include "services/cli/draft_figures.hpp"
#include "shm/journal_reader.hpp"

namespace wisp::cli {

namespace {

using Json = nlohmann::ordered_json;
using std::memory_order_acquire;
using std::memory_order_relaxed;

std::string edge_text(std::uint32_t edge) {
  for (shm::EdgeId e : shm::kAllEdges)
    if (shm::index(e) == edge)
      return std::string(shm::name_of(shm::ends_of(e).from)) + " -> " +
             std::string(shm::name_of(shm::ends_of(e).to));
  return "edge " + std::to_string(edge);
}

std::string state_text(shm::StageState s) {
  switch (s) {
    case shm::StageState::kDown:
      return "down";
    case shm::StageState::kStarting:
      return "starting";
    case shm::StageState::kReady:
      return "ready";
    case shm::StageState::kBackingOff:
      return "dead, restarts soon";
    case shm::StageState::kGivenUp:
      return "given up";
    case shm::StageState::kStopping:
      return "stopping";
  }
  return "?";
}

const char* finish_text(shm::Finish f) {
  switch (f) {
    case shm::Finish::kNone:
      return "running";
    case shm::Finish::kStop:
      return "stop";
    case shm::Finish::kLength:
      return "length";
    case shm::Finish::kStopString:
      return "stop string";
    case shm::Finish::kCancelled:
      return "cancelled";
    case shm::Finish::kError:
      return "error";
  }
  return "?";
}

double seconds(std::uint64_t from_ns, std::uint64_t to_ns) {
  return to_ns > from_ns ? static_cast<double>(to_ns - from_ns) / 1e9 : 0.0;
}

Json counters_json(const shm::Desk& desk) {
  Json j = Json::object();
  for (std::size_t i = 0; i < stats::kCounterTable.size(); ++i) {
    const std::uint64_t n = desk.counter[i].load(memory_order_relaxed);
    // A stage has its own few of the common table; the rest are 0 for ever.
    if (n != 0) j[std::string(stats::kCounterTable[i].name)] = n;
  }
  return j;
}

Json stage_json(const RunState& state, shm::StageId s) {
  const shm::StageLife& life = state.life().stage[shm::index(s)];
  const shm::Desk& desk = state.desk(s);
  const std::uint32_t epoch = life.epoch.load(memory_order_acquire);
  const bool alive = epoch != 0 && life.dead_through.load(memory_order_acquire) < epoch;
  Json j;
  j["stage"] = std::string(shm::name_of(s));
  j["alive"] = alive;
  j["pid"] = alive ? life.pid.load(memory_order_relaxed) : 0;
  j["epoch"] = epoch;
  j["attached_epoch"] = desk.attached_epoch.load(memory_order_acquire);
  j["state"] = state_text(static_cast<shm::StageState>(life.state.load(memory_order_acquire)));
  j["stopped"] = life.stopped.load(memory_order_relaxed) != 0;
  j["traced_by"] = life.traced_by.load(memory_order_relaxed);
  j["restarts"] = life.restarts.load(memory_order_relaxed);
  j["last_status"] = life.last_status.load(memory_order_relaxed);
  const auto what = static_cast<shm::WaitFor>(desk.waits_for.load(memory_order_relaxed));
  const bool waits = alive && what != shm::WaitFor::kNothing;
  j["waits_for"] = waits ? wait_text(what, desk.waits_detail.load(memory_order_relaxed)) : "";
  j["waits_s"] = waits ? seconds(desk.waits_since_ns.load(memory_order_relaxed), shm::monotonic_now()) : 0.0;
  j["counters"] = counters_json(desk);
  return j;
}

Json slots_json(const RunState& state) {
  std::uint64_t free = 0, filling = 0, draining = 0, ready = 0, evicting = 0;
  const slab::SlabDir& dir = state.slab_dir();
  const std::uint32_t now =
      state.life().stage[shm::index(shm::StageId::kLoader)].epoch.load(memory_order_acquire);
  for (std::uint32_t i = 0; i < dir.slots; ++i) {
    const slab::SlotEntry& e = dir.entries()[i];
    switch (slab::SlotWord::unpack(e.word.load(memory_order_acquire)).state) {
      case slab::SlotState::kFree:
        ++free;
        break;
      case slab::SlotState::kReady:
        ++ready;
        break;
      case slab::SlotState::kEvicting:
        ++evicting;
        break;
      case slab::SlotState::kFilling:
        ++(e.fill_epoch.load(memory_order_relaxed) == now ? filling : draining);
        break;
    }
  }
  // Their word says FILLING, so that no reader finds them; nothing is being read into them.
  const auto& board = *shm::extra_of<shm::LoaderBoard>(&state.desk(shm::StageId::kLoader));
  const std::uint64_t ahead = std::min<std::uint64_t>(filling, board.read_ahead.load(memory_order_relaxed));
  return {{"total", dir.slots},
          {"ready", ready},
          {"read_ahead", ahead},
          {"filling", filling - ahead},
          {"evicting", evicting},
          {"draining", draining},
          {"free", free},
          {"bytes_each", dir.stride},
          {"dense_ready", dir.dense_ready.load(memory_order_acquire) != 0}};
}

/// One record, or null where it is free or was rewritten meanwhile.
Json request_json(const shm::JournalReader& journal, std::uint32_t record) {
  const std::uint64_t request = journal.request(record);
  const auto s = request != 0 ? journal.state(record, request) : std::nullopt;
  if (!s) return nullptr;
  const bool queued = s->commit.finish == shm::Finish::kNone && !s->admitted;
  return {{"request", request},
          {"state", queued ? "queued" : finish_text(s->commit.finish)},
          {"prompt_tokens", s->prompt_tokens},
          {"tokens", s->commit.length},
          {"max_tokens", s->max_tokens},
          {"kv_len", s->kv_len}};
}

Json hops_json(const RunState& state) {
  Json hops = Json::array();
  for (shm::EdgeId e : shm::kAllEdges) {
    const stats::Histogram& h = state.desk(shm::ends_of(e).to).hop[shm::index(e)];
    std::uint64_t count = 0;
    for (const auto& b : h.bucket) count += b.load(memory_order_relaxed);
    hops.push_back({{"edge", edge_text(shm::index(e))},
                    {"messages", count},
                    {"p50_us", quantile_ns(h, 0.5) / 1000.0},
                    {"p99_us", quantile_ns(h, 0.99) / 1000.0}});
  }
  return hops;
}

}  // namespace

std::string wait_text(shm::WaitFor what, std::uint64_t detail) {
  const std::string n = std::to_string(detail);
  switch (what) {
    case shm::WaitFor::kNothing:
      return "";
    case shm::WaitFor::kWork:
      return "work";
    case shm::WaitFor::kRingSpace:
      return "space in the ring " + edge_text(static_cast<std::uint32_t>(detail));
    case shm::WaitFor::kExpert: {
      const auto key = static_cast<std::uint32_t>(detail);
      return "expert " + std::to_string(ring::expert_of(key)) + " of layer " +
             std::to_string(ring::layer_of(key));
    }
    case shm::WaitFor::kDense:
      return "the weights beside the experts";
    case shm::WaitFor::kStepGate:
      return "the step gate";
    case shm::WaitFor::kStepResult:
      return "the result of step " + n;
    case shm::WaitFor::kTombstone:
      return "the end of loader epoch " + n;
    case shm::WaitFor::kLease:
      return "the lease of slot " + n;
    case shm::WaitFor::kDrive:
      return "the drive, " + n + " reads in flight";
    case shm::WaitFor::kKvPages:
      return "KV pages or a place in the batch";
    case shm::WaitFor::kDrafts:
      return "drafts";
  }
  return "something unknown (" + std::to_string(static_cast<std::uint32_t>(what)) + ")";
}

double quantile_ns(const stats::Histogram& h, double q) {
  constexpr std::size_t kBuckets = sizeof h.bucket / sizeof h.bucket[0];
  std::uint64_t counts[kBuckets];
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < kBuckets; ++i) total += counts[i] = h.bucket[i].load(memory_order_relaxed);
  if (total == 0) return 0.0;
  const double wanted = q * static_cast<double>(total);
  std::uint64_t seen = 0;
  for (std::size_t i = 0; i < kBuckets; ++i) {
    seen += counts[i];
    if (static_cast<double>(seen) >= wanted && counts[i] != 0)
      return 1.5 * std::ldexp(1.0, static_cast<int>(i));
  }
  return 0.0;
}

Json stat_json(const RunState& state) {
  const plan::RunPlan& plan = state.plan();
  const shm::Life& life = state.life();
  Json j;
  j["run_dir"] = plan.run_dir;
  j["model"] = plan.model_name;
  j["topology"] = plan.options.topology;
  j["port"] = state.port();
  j["engine_clock_paused"] = life.paused_since_ns.load(memory_order_relaxed) != 0;
  j["resets"] = life.resets.load(memory_order_relaxed);
  j["given_up"] = state.given_up().value_or("");
  j["stages"] = Json::array();
  for (shm::StageId s : shm::kRunningStages) j["stages"].push_back(stage_json(state, s));
  j["slots"] = slots_json(state);
  j["experts"] = plan.expert_extents;
  const auto& board = *shm::extra_of<shm::LoaderBoard>(&state.desk(shm::StageId::kLoader));
  j["memory"] = {{"now_bytes", life.ram_now_bytes.load(memory_order_relaxed)},
                 {"peak_bytes", life.ram_peak_bytes.load(memory_order_relaxed)},
                 {"budget_bytes", plan.ram_budget},
                 {"slab_bytes", plan.slab_bytes()},
                 {"slab_in_memory", board.slab_in_memory.load(memory_order_relaxed)},
                 {"huge_page_bytes", board.huge_bytes.load(memory_order_relaxed)},
                 {"locked", board.locked.load(memory_order_relaxed) != 0}};
  j["kv"] = {{"tokens", plan.ctx},
             {"format", name_of(plan.kv_format)},
             {"bytes", plan.kv_bytes() - plan.hidden_bytes()}};
  j["speculation"] = to_json(draft_figures_of(state));
  j["requests"] = Json::array();
  const shm::JournalReader journal(&state.journal());
  for (std::uint32_t i = 0; i < journal.records(); ++i)
    if (Json r = request_json(journal, i); !r.is_null()) j["requests"].push_back(std::move(r));
  j["hops"] = hops_json(state);
  return j;
}

}  // namespace wisp::cli
