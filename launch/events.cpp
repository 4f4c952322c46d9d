#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "launch/supervisor.hpp"
#include "ring/descriptor.hpp"
#include "service/crash_point.hpp"

namespace wisp::launch {

namespace {

constexpr std::uint64_t kShownEvents = 8;

const char* name_of_wait(std::uint32_t w) {
  constexpr std::array<const char*, 11> names{"nothing", "work",      "ring space",  "expert",
                                              "dense",   "step gate", "step result", "tombstone",
                                              "lease",   "drive",     "KV pages"};
  return w < names.size() ? names[w] : "something unknown";
}

std::string name_of_event(std::uint32_t what) {
  constexpr std::array<const char*, 13> names{
      "none", "submit",      "cancel", "finish_at", "acknowledge", "adopt",      "token",
      "step", "step_result", "touch",  "need",      "slot_ready",  "slot_failed"};
  if (what < names.size()) return names[what];
  const std::uint32_t point = what - 0x100;
  if (what >= 0x100 && point < service::kCrashPointNames.size())
    return "crash point " + std::string(service::kCrashPointNames[point]);
  return fmt::format("event {}", what);
}

/// The line for people.
std::string text_of(const Event& e) {
  switch (e.kind) {
    case Event::Kind::kAllReady:
      return {};
    case Event::Kind::kStageDied:
      return fmt::format("{} {}{}", e.stage,
                         e.signal != 0 ? fmt::format("was killed by signal {}", e.signal)
                                       : fmt::format("ended with status {}", e.status),
                         e.restarting ? "; starting it again" : "");
    case Event::Kind::kStageReady:
      return e.stage + " is ready again";
    case Event::Kind::kGivenUp:
      return "given up: " + e.why;
    case Event::Kind::kReset:
      return "all stages start again on fresh memory: " + e.why;
  }
  return {};
}

}  // namespace

std::string to_json(const Event& e) {
  nlohmann::ordered_json j;
  switch (e.kind) {
    case Event::Kind::kAllReady:
      j["run_dir"] = e.run_dir;
      j["port"] = e.port;
      j["unix_socket"] = e.unix_socket;
      break;
    case Event::Kind::kStageDied:
      j["event"] = "stage_died";
      j["stage"] = e.stage;
      j["signal"] = e.signal;
      j["status"] = e.status;
      j["restarting"] = e.restarting;
      break;
    case Event::Kind::kStageReady:
      j["event"] = "stage_ready";
      j["stage"] = e.stage;
      break;
    case Event::Kind::kGivenUp:
      j["event"] = "given_up";
      j["stage"] = e.stage;
      j["why"] = e.why;
      break;
    case Event::Kind::kReset:
      j["event"] = "reset";
      j["stage"] = e.stage;
      j["signal"] = e.signal;
      j["why"] = e.why;
      break;
  }
  if (const std::string text = text_of(e); !text.empty()) j["text"] = text;
  // A stage may have said why in bytes that are no UTF-8.
  return j.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

std::vector<std::string> post_mortem(const shm::Desk& desk) {
  std::vector<std::string> lines;
  lines.push_back(fmt::format("attached epoch {}, {}, waited for {} (detail {})",
                              desk.attached_epoch.load(std::memory_order_acquire),
                              desk.parked.load(std::memory_order_relaxed) != 0 ? "asleep" : "awake",
                              name_of_wait(desk.waits_for.load(std::memory_order_relaxed)),
                              desk.waits_detail.load(std::memory_order_relaxed)));
  for (shm::EdgeId e : shm::kAllEdges) {
    const std::uint64_t head = desk.rx_head[shm::index(e)].value.load(std::memory_order_relaxed);
    const std::uint64_t tail = desk.tx_tail[shm::index(e)].value.load(std::memory_order_relaxed);
    if (head + tail != 0)
      lines.push_back(fmt::format("edge {}: consumed {}, published {}", shm::index(e), head, tail));
  }
  const std::uint64_t next = desk.flight_next.load(std::memory_order_acquire);
  const std::uint64_t first = next > kShownEvents ? next - kShownEvents : 0;
  const std::uint64_t now = shm::monotonic_now();
  for (std::uint64_t n = first; n < next; ++n) {
    const stats::FlightEvent& f = desk.flight[n % stats::kFlightEvents];
    const std::uint64_t ago_us = now > f.t_ns ? (now - f.t_ns) / 1000 : 0;
    lines.push_back(fmt::format("{} us ago: {} on edge {}, {:#x}, {:#x}", ago_us, name_of_event(f.what),
                                f.edge, f.a, f.b));
  }
  return lines;
}

}  // namespace wisp::launch
