#include <unistd.h>

#include <algorithm>

#include "launch/supervisor.hpp"

namespace wisp::launch {

using shm::StageId;

namespace {
constexpr std::uint64_t kMs = 1'000'000;
constexpr std::uint64_t kLookEveryNs = 200 * kMs;
constexpr std::uint64_t kMeasureEveryNs = 1000 * kMs;
}  // namespace

void Supervisor::upkeep() {
  const std::uint64_t now = shm::monotonic_now();
  if (now >= look_due_ns_) {
    look_at_processes();
    look_due_ns_ = now + kLookEveryNs;
  }
  if (now >= memory_due_ns_) {
    measure_memory();
    memory_due_ns_ = now + kMeasureEveryNs;
  }
}

void Supervisor::look_at_processes() {
  bool held = false;
  bool changed = false;
  for (auto& p : processes_) {
    if (!p->child.alive()) continue;
    ProcessLook look = look_at(p->child.pid);
    if (p->replaced) {
      // The stage runs under somebody's debugger, which is not stopped itself.
      for (pid_t pid : descendants(p->child.pid)) {
        const ProcessLook below = look_at(pid);
        look.stopped |= below.stopped;
        look.traced_by = std::max(look.traced_by, below.traced_by);
      }
    }
    held |= look.stopped || look.traced_by != 0;
    for (StageId s : p->spec.stages) {
      shm::StageLife& life = regions_.life().stage[shm::index(s)];
      changed |=
          life.stopped.exchange(look.stopped ? 1 : 0, std::memory_order_relaxed) != (look.stopped ? 1u : 0u);
      changed |= life.traced_by.exchange(look.traced_by, std::memory_order_relaxed) != look.traced_by;
    }
  }
  shm::Life& life = regions_.life();
  if (held != (life.paused_since_ns.load(std::memory_order_relaxed) != 0)) {
    hold_clock(held);
    changed = true;
  }
  if (changed) regions_.ring_all();
}

/// Stops the engine clock, or lets it go on from where it stood. The offset is stored before the pause ends:
/// who reads the pause first and then the offset sees a time that is late for one read, never early.
void Supervisor::hold_clock(bool held) {
  shm::Life& life = regions_.life();
  const std::uint64_t now = shm::monotonic_now();
  if (held) {
    life.paused_since_ns.store(now, std::memory_order_release);
    return;
  }
  const std::uint64_t since = life.paused_since_ns.load(std::memory_order_relaxed);
  life.pause_offset_ns.fetch_add(now - since, std::memory_order_release);
  life.paused_since_ns.store(0, std::memory_order_release);
}

void Supervisor::measure_memory() {
  std::uint64_t sum = regions_.allocated() + look_at(::getpid()).private_bytes;
  for (const auto& p : processes_)
    if (p->child.alive()) sum += private_bytes_of_tree(p->child.pid);
  shm::Life& life = regions_.life();
  life.ram_now_bytes.store(sum, std::memory_order_relaxed);
  if (sum > life.ram_peak_bytes.load(std::memory_order_relaxed))
    life.ram_peak_bytes.store(sum, std::memory_order_relaxed);
}

}  // namespace wisp::launch
