#include "services/cli/run_state.hpp"

#include <capnp/message.h>
#include <capnp/serialize.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include "proto/codec.hpp"
#include "services/cli/http_client.hpp"

namespace wisp::cli {

namespace {

/// A launcher answers at once; one that is held by a debugger does not.
constexpr int kReplyMs = 3000;

Status ask_status(int socket) {
  capnp::MallocMessageBuilder message;
  message.initRoot<proto::LaunchRequest>().setStatus();
  return proto::send_packet(socket, message);
}

bool holds(const shm::Mapping& m, std::uint64_t offset, std::uint64_t bytes) {
  return offset <= m.size() && bytes <= m.size() - offset;
}

}  // namespace

Result<RunState> RunState::open(const std::string& run_dir) {
  auto socket = connect_unix(run_dir + "/control", SOCK_SEQPACKET);
  if (!socket.ok()) return unavailable("no pipeline runs in " + run_dir + " (" + socket.error().text + ")");
  WISP_TRY(ask_status(socket->get()));
  pollfd fd{socket->get(), POLLIN, 0};
  if (::poll(&fd, 1, kReplyMs) <= 0) return unavailable("the launcher of " + run_dir + " does not answer");
  WISP_ASSIGN(const proto::Packet packet, proto::receive_packet(socket->get(), true));
  std::vector<Fd> owned;
  for (int d : packet.descriptors) owned.emplace_back(d);
  if (packet.closed || packet.words.empty()) return unavailable("the launcher of " + run_dir + " is gone");

  RunState state;
  // KJ reports malformed messages by exceptions; they end here.
  try {
    capnp::FlatArrayMessageReader reader(packet.message(), proto::reader_options());
    const auto reply = reader.getRoot<proto::LaunchReply>();
    if (!reply.getOk()) return unavailable("the launcher says: " + std::string(reply.getText().cStr()));
    state.plan_ = proto::read_plan(reply.getPlan());
    state.port_ = reply.getPort();
    const auto pids = reply.getPids();
    for (unsigned i = 0; i < pids.size() && i < shm::kStages; ++i) state.pids_[i] = pids[i];
    const auto names = reply.getDescriptors();
    if (names.size() != owned.size())
      return corrupt("the launcher's status names other descriptors than it sent");
    for (unsigned i = 0; i < names.size(); ++i) WISP_TRY(state.take(names[i].cStr(), owned[i].get()));
  } catch (const kj::Exception& e) {
    return corrupt(std::string("the launcher's status: ") + e.getDescription().cStr());
  }
  WISP_TRY(state.check());
  return state;
}

Status RunState::take(const std::string& name, int fd) {
  const auto map_to = [&](shm::Mapping& to, shm::RegionKind kind) -> Status {
    WISP_ASSIGN(to, shm::Mapping::map(fd, false));
    auto checked = shm::check_header(to, kind);
    return checked.ok() ? Status{} : Status(std::move(checked).error().within(name));
  };
  if (name == "life") return map_to(life_, shm::RegionKind::kLife);
  if (name == "slabdir") return map_to(slab_dir_, shm::RegionKind::kSlabDir);
  if (name == "journal") return map_to(journal_, shm::RegionKind::kJournal);
  for (shm::StageId s : shm::kRunningStages)
    if (name == "desk." + std::string(shm::name_of(s)))
      return map_to(desks_[shm::index(s)], shm::RegionKind::kDesk);
  return {};  // a later launcher may send more
}

Status RunState::check() const {
  if (life_.size() < sizeof(shm::Life) || slab_dir_.size() < sizeof(slab::SlabDir) ||
      journal_.size() < sizeof(shm::Journal))
    return corrupt("the launcher's status lacks a region");
  for (shm::StageId s : shm::kRunningStages)
    if (desks_[shm::index(s)].size() < sizeof(shm::Desk))
      return corrupt("the launcher's status lacks desk." + std::string(shm::name_of(s)));
  const shm::Journal& j = journal();
  const slab::SlabDir& d = slab_dir();
  const std::uint64_t index_bytes = std::uint64_t{d.layers} * d.experts * sizeof(std::uint32_t);
  if (!holds(slab_dir_, d.entries_offset, std::uint64_t{d.slots} * sizeof(slab::SlotEntry)) ||
      !holds(slab_dir_, d.index_offset, index_bytes))
    return corrupt("slabdir does not hold the tables that it names");
  if (!holds(journal_, j.records_offset, 0) || j.stride < sizeof(shm::JournalRecord) ||
      j.records > (journal_.size() - j.records_offset) / j.stride)
    return corrupt("the journal does not hold the records that it names");
  return {};
}

bool RunState::touches_counted() const {
  const std::uint32_t edge = shm::index(shm::EdgeId::kComputeLoader);
  const std::uint64_t sent = desk(shm::StageId::kCompute).tx_tail[edge].value.load(std::memory_order_acquire);
  return desk(shm::StageId::kLoader).rx_head[edge].value.load(std::memory_order_seq_cst) >= sent;
}

bool RunState::loader_is_settled() const {
  const shm::Desk& loader = desk(shm::StageId::kLoader);
  // In this order: it is awake from before it takes a message until it has written down what came of it.
  return touches_counted() && loader.parked.load(std::memory_order_seq_cst) != 0 &&
         shm::extra_of<shm::LoaderBoard>(&loader)->reads_in_flight.load(std::memory_order_relaxed) == 0;
}

std::optional<std::string> RunState::given_up() const {
  for (shm::StageId s : shm::kRunningStages) {
    const auto state =
        static_cast<shm::StageState>(life().stage[shm::index(s)].state.load(std::memory_order_acquire));
    if (state != shm::StageState::kGivenUp || shm::is_optional(s)) continue;
    const char* reason = life().give_up_reason;
    return std::string(shm::name_of(s)) +
           " has been given up: " + std::string(reason, strnlen(reason, sizeof life().give_up_reason));
  }
  return std::nullopt;
}

}  // namespace wisp::cli
