#include <capnp/message.h>
#include <capnp/serialize.h>
#include <fcntl.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include "launch/supervisor.hpp"
#include "service/crash_point.hpp"

namespace wisp::launch {

using shm::StageId;

namespace {
constexpr std::size_t kMaxClients = 64;

bool is_same_user(int socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == ::geteuid();
}
}  // namespace

void Supervisor::on_connect() {
  for (;;) {
    Fd socket(::accept4(control_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.valid()) return;
    if (!is_same_user(socket.get()) || clients_.size() >= kMaxClients) continue;
    const int fd = socket.get();
    clients_.push_back({std::move(socket)});
    poller_.add(fd, EPOLLIN, [this, fd](std::uint32_t) { on_request(fd); });
  }
}

void Supervisor::drop_client(int client) {
  poller_.remove(client);
  std::erase_if(clients_, [&](const Client& c) { return c.socket.get() == client; });
  for (auto& p : processes_)
    if (p->next.reply_to == client) p->next.reply_to = -1;
}

void Supervisor::on_request(int client) {
  auto packet = proto::receive_packet(client, false);
  if (!packet.ok() || packet->closed) return drop_client(client);
  if (!packet->words.empty()) answer(client, *packet);
}

void Supervisor::answer(int client, proto::Packet& packet) {
  std::vector<Fd> descriptors;
  for (int fd : packet.descriptors) descriptors.emplace_back(fd);
  try {
    capnp::FlatArrayMessageReader reader(packet.message(), proto::reader_options());
    const auto request = reader.getRoot<proto::LaunchRequest>();
    switch (request.which()) {
      case proto::LaunchRequest::STATUS: {
        capnp::MallocMessageBuilder message;
        auto reply = message.initRoot<proto::LaunchReply>();
        reply.setOk(true);
        measure_memory();  // a run shorter than the upkeep's second is asked for its peak as well
        fill_status(reply);
        std::vector<int> attached;
        for (const NamedFd& r : regions_.readable()) attached.push_back(r.fd);
        return send_reply(client, message, attached);
      }
      case proto::LaunchRequest::STOP:
        reply_text(client, true, "stopping");
        return stop();
      case proto::LaunchRequest::RESTART: {
        const Status done = restart_by_hand(request.getRestart().cStr());
        return reply_text(client, done.ok(), done.ok() ? "restarting" : Status(done).error().text);
      }
      case proto::LaunchRequest::GATE:
        set_gate(request.getGate());
        return reply_text(client, true, "gate set");
      case proto::LaunchRequest::ARM_CRASH: {
        const Status done = arm_crash(request.getArmCrash());
        return reply_text(client, done.ok(), done.ok() ? "armed" : Status(done).error().text);
      }
      case proto::LaunchRequest::DEBUG:
        return debug(client, request.getDebug(), std::move(descriptors));
    }
    reply_text(client, false, "this launcher does not know that request: it is of another version");
  } catch (const kj::Exception& e) {
    reply_text(client, false, std::string("the request was not understood: ") + e.getDescription().cStr());
  }
}

void Supervisor::fill_status(proto::LaunchReply::Builder reply) const {
  proto::write_plan(options_.plan, reply.initPlan());
  reply.setPort(tcp_.port);
  reply.setUnixSocket(dir_.http_socket());
  reply.setGdbScript(options_.gdb_script);
  const auto readable = regions_.readable();
  auto names = reply.initDescriptors(static_cast<unsigned>(readable.size()));
  for (unsigned i = 0; i < readable.size(); ++i) names.set(i, readable[i].name);
  auto pids = reply.initPids(shm::kStages);
  for (const auto& p : processes_)
    for (StageId s : p->spec.stages) pids.set(shm::index(s), static_cast<std::uint32_t>(p->child.pid));
}

void Supervisor::send_reply(int client, capnp::MessageBuilder& message, const std::vector<int>& descriptors) {
  if (client < 0) return;
  if (auto sent = proto::send_packet(client, message, descriptors); !sent.ok()) drop_client(client);
}

void Supervisor::reply_text(int client, bool ok, const std::string& text) {
  capnp::MallocMessageBuilder message;
  auto reply = message.initRoot<proto::LaunchReply>();
  reply.setOk(ok);
  reply.setText(text);
  send_reply(client, message);
}

Status Supervisor::restart_by_hand(const std::string& stage) {
  WISP_ASSIGN(const StageId s, stage_named(stage));
  Process* p = hosting(s);
  if (p == nullptr) return not_found("no process hosts " + stage);
  if (mode_ == Mode::kStopping || mode_ == Mode::kStopped) return unavailable("this run is stopping");
  if (mode_ == Mode::kResetting) {
    if (p->phase == Phase::kGivenUp) enter(*p, Phase::kDown);
    p->policy.forgive();
    return {};
  }
  if (p->child.alive()) {
    p->by_hand = true;
    p->child.signal(SIGKILL);
    return {};
  }
  p->policy.forgive();
  p->due_ns = 0;
  enter(*p, Phase::kWaiting);
  return {};
}

Status Supervisor::arm_crash(proto::LaunchRequest::ArmCrash::Reader request) {
  WISP_ASSIGN(const StageId s, stage_named(request.getStage().cStr()));
  const std::string point = request.getPoint().cStr();
  if (!service::crash_point_from(point)) {
    std::string list;
    for (std::string_view name : service::kCrashPointNames) list += " " + std::string(name);
    return invalid("there is no crash point '" + point + "'; there are:" + list);
  }
  if (request.getSignal() > static_cast<std::uint32_t>(SIGRTMAX)) return invalid("there is no such signal");
  Process* p = hosting(s);
  if (p == nullptr || !p->child.alive()) return unavailable(std::string(shm::name_of(s)) + " does not run");
  capnp::MallocMessageBuilder message;
  auto arm = message.initRoot<proto::ToStage>().initArmCrash();
  arm.setStage(shm::index(s));
  arm.setPoint(point);
  arm.setCountdown(request.getCountdown());
  arm.setSignal(request.getSignal());
  return proto::send_packet(p->control.get(), message);
}

/// Starts the stage anew as the request says. The answer is sent once the process exists.
void Supervisor::debug(int client, proto::LaunchRequest::Debug::Reader request, std::vector<Fd> descriptors) {
  const auto s = stage_named(request.getStage().cStr());
  Process* p = s.ok() ? hosting(*s) : nullptr;
  if (p == nullptr) return reply_text(client, false, s.ok() ? "no process hosts it" : s.error().text);
  p->next = StartMode();
  p->next.wait = request.getWait();
  p->next.replace = request.getReplace().cStr();
  for (std::size_t i = 0; i < descriptors.size() && i < 3; ++i)
    p->next.standard[i] = std::move(descriptors[i]);
  if (!p->next.wait && p->next.replace.empty()) return reply_text(client, true, "attach with gdb -p");
  p->next.reply_to = client;
  if (auto done = restart_by_hand(std::string(shm::name_of(*s))); !done.ok()) {
    p->next = StartMode();
    reply_text(client, false, done.error().text);
  }
}

void Supervisor::set_gate(std::uint64_t gate) {
  regions_.life().gate.store(gate, std::memory_order_release);
  regions_.ring_all();
}

}  // namespace wisp::launch
