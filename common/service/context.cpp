#include <capnp/message.h>
#include <capnp/serialize.h>
#include <sched.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <ctime>
#include <span>

#include "base/pause.hpp"
#include "proto/codec.hpp"
#include "service/log.hpp"
#include "service/stage.hpp"

namespace wisp::service {

namespace {

constexpr int kGiveUpStatus = 125;

/// Waits for any of `fds` until `deadline` of CLOCK_MONOTONIC (~0 = none). Signals, also a debugger's, wake
/// nobody.
void poll_until(std::span<pollfd> fds, std::uint64_t deadline) {
  for (;;) {
    timespec left{};
    timespec* timeout = nullptr;
    if (deadline != ~0ULL) {
      const std::uint64_t now = shm::monotonic_now();
      const std::uint64_t ns = deadline > now ? deadline - now : 0;
      left.tv_sec = static_cast<time_t>(ns / 1000000000ULL);
      left.tv_nsec = static_cast<long>(ns % 1000000000ULL);
      timeout = &left;
    }
    if (::ppoll(fds.data(), fds.size(), timeout, nullptr) >= 0 || errno != EINTR) return;
  }
}

void arm(const Attachment& at, proto::ToStage::ArmCrash::Reader request) {
  const std::uint32_t stage = request.getStage();
  const auto point = crash_point_from(request.getPoint().cStr());
  if (stage >= shm::kStages || !point) return;
  detail::Armed* armed = at.process->armed[stage].load(std::memory_order_acquire);
  if (armed == nullptr) return;
  armed->countdown.store(std::max(1u, request.getCountdown()), std::memory_order_relaxed);
  armed->signal.store(request.getSignal() == 0 ? 9 : request.getSignal(), std::memory_order_relaxed);
  armed->point.store(static_cast<std::uint32_t>(*point), std::memory_order_release);
  // Another thread than the stage's own may have taken the packet: the stage passes its points once more.
  at.bell[stage].ring();
}

void handle_packet(const Attachment& at, proto::Packet& packet) {
  for (int fd : packet.descriptors) ::close(fd);
  try {
    capnp::FlatArrayMessageReader reader(packet.message(), proto::reader_options());
    const auto message = reader.getRoot<proto::ToStage>();
    if (message.isArmCrash()) arm(at, message.getArmCrash());
    if (message.isLogLevel()) set_log_level(message.getLogLevel().cStr());
  } catch (const kj::Exception& e) {
    spdlog::warn("a control message was not understood: {}", e.getDescription().cStr());
  }
}

bool hung_up(int fd) {
  if (fd < 0) return false;
  pollfd p{fd, POLLIN, 0};
  return ::poll(&p, 1, 0) > 0 && (p.revents & (POLLHUP | POLLERR)) != 0;
}

}  // namespace

StageContext::StageContext(const Attachment& at, shm::StageId id, std::uint32_t epoch)
    : at_(at), id_(id), epoch_(epoch) {
  if (at_.process) at_.process->armed[shm::index(id_)].store(&armed_, std::memory_order_release);
}

StageContext::~StageContext() {
  if (at_.process) at_.process->armed[shm::index(id_)].store(nullptr, std::memory_order_release);
  if (detail::armed == &armed_) detail::armed = nullptr;
}

void StageContext::bind_thread() {
  detail::armed = &armed_;
}

ring::Producer StageContext::producer(shm::EdgeId e) {
  const shm::EdgeEnds ends = shm::ends_of(e);
  WISP_CHECK(ends.from == id_);
  return {desk(), peer(ends.to), e, bell(ends.to)};
}

ring::Consumer StageContext::consumer(shm::EdgeId e) {
  const shm::EdgeEnds ends = shm::ends_of(e);
  WISP_CHECK(ends.to == id_);
  return {desk(), peer(ends.from), e, bell(ends.from)};
}

void StageContext::begin_park(shm::WaitFor why, std::uint64_t detail) {
  shm::Desk* d = desk();
  d->waits_detail.store(detail, std::memory_order_relaxed);
  d->waits_since_ns.store(shm::monotonic_now(), std::memory_order_relaxed);
  d->waits_for.store(static_cast<std::uint32_t>(why), std::memory_order_relaxed);
  d->add(stats::Counter::kParks);
  // Pairs with the producer's store of `seq` and load of `parked`: one of the two sees the other.
  d->parked.store(1, std::memory_order_seq_cst);
}

void StageContext::end_park() {
  shm::Desk* d = desk();
  d->parked.store(0, std::memory_order_seq_cst);
  // What rang before this is found by the caller's next look; what comes after it sees parked = 0.
  bell(id_).silence();
  d->waits_for.store(static_cast<std::uint32_t>(shm::WaitFor::kNothing), std::memory_order_relaxed);
}

std::array<int, 3> StageContext::wake_fds() const {
  const ProcessPart* p = at_.process.get();
  return {bell(id_).fd(), p != nullptr ? p->control : -1, p != nullptr ? p->lifeline : -1};
}

void StageContext::sleep(shm::WaitFor why, std::uint64_t detail, FunctionRef<bool()> ready,
                         std::vector<pollfd>* extra, std::uint64_t timeout_ns) {
  const std::uint64_t deadline = timeout_ns == ~0ULL ? ~0ULL : shm::monotonic_now() + timeout_ns;
  // On the stack: a stage sleeps many times a token.
  constexpr std::size_t kOwn = 3, kMostExtra = 13;
  std::array<pollfd, kOwn + kMostExtra> fds{};
  std::size_t count = 0;
  for (int fd : wake_fds()) fds[count++] = {fd, POLLIN, 0};
  WISP_CHECK(count == kOwn && (extra == nullptr || extra->size() <= kMostExtra));
  if (extra != nullptr)
    for (const pollfd& p : *extra) fds[count++] = {p.fd, p.events, 0};
  begin_park(why, detail);
  if (!ready()) poll_until(std::span(fds).first(count), deadline);
  end_park();
  if (extra != nullptr) std::copy_n(fds.begin() + kOwn, extra->size(), extra->begin());
  if (fds[1].revents != 0 || fds[2].revents != 0) poll_control();
}

bool StageContext::spin(std::uint64_t ns, FunctionRef<bool()> ready) {
  constexpr int kLooks = 16;
  const std::uint64_t end = shm::monotonic_now() + ns;
  do {
    for (int i = 0; i < kLooks; ++i) {
      if (ready()) return true;
      pause();
    }
    ::sched_yield();
  } while (shm::monotonic_now() < end);
  return false;
}

void StageContext::wait(shm::WaitFor why, std::uint64_t detail, FunctionRef<bool()> ready) {
  while (!ready()) sleep(why, detail, ready);
}

void StageContext::poll_control() {
  ProcessPart* p = at_.process.get();
  if (p == nullptr) return;
  if (hung_up(p->lifeline)) ::_exit(0);
  const std::unique_lock lock(p->control_mutex, std::try_to_lock);
  if (!lock.owns_lock() || p->control < 0) return;
  for (;;) {
    auto packet = proto::receive_packet(p->control, false);
    if (!packet.ok()) {
      spdlog::warn("control socket: {}", packet.error().text);
      return;
    }
    if (packet->closed) ::_exit(0);
    if (packet->words.empty()) return;
    handle_packet(at_, *packet);
  }
}

void StageContext::announce_ready() {
  if (!at_.process || at_.process->ready < 0) return;
  const auto byte = static_cast<unsigned char>(shm::index(id_));
  ssize_t n;
  do n = ::write(at_.process->ready, &byte, 1);
  while (n < 0 && errno == EINTR);
}

void StageContext::give_up(const Error& why) {
  spdlog::critical("{} gives up: {}", shm::name_of(id_), why.text);
  // Not shutdown(): in a folded process the other stages still log.
  spdlog::default_logger_raw()->flush();
  if (at_.process && at_.process->control >= 0) send_failure(at_.process->control, id_, why.text);
  ::_exit(kGiveUpStatus);
}

void Stage::sleep(StageContext& ctx) {
  ctx.sleep(shm::WaitFor::kWork, 0, [this] { return has_work(); });
}

}  // namespace wisp::service
