#include "proto/codec.hpp"

#include <capnp/serialize.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

namespace wisp::proto {

namespace {

constexpr std::size_t kMaxDescriptors = 16;
static_assert(sizeof(capnp::word) == sizeof(std::uint64_t) && alignof(capnp::word) <= alignof(std::uint64_t));

std::string errno_text() {
  return std::strerror(errno);
}

/// Room for the descriptors of one packet, aligned as the kernel wants it.
struct ControlBuffer {
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * kMaxDescriptors)> bytes{};
};

/// Waits until the socket can be read or written; only for sockets that somebody made non-blocking.
void wait_for(int socket, short events) {
  pollfd p{socket, events, 0};
  while (::poll(&p, 1, -1) < 0 && errno == EINTR) {
  }
}

/// Takes the descriptors out of a received message, whatever else is wrong with it: nobody else will close
/// them.
std::vector<int> take_descriptors(msghdr& msg) {
  std::vector<int> out;
  for (cmsghdr* c = CMSG_FIRSTHDR(&msg); c != nullptr; c = CMSG_NXTHDR(&msg, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof fd);
      out.push_back(fd);
    }
  }
  return out;
}

void close_all(const std::vector<int>& descriptors) {
  for (int fd : descriptors) ::close(fd);
}

/// Length of the next packet without taking it. -1 with errno where there is none.
ssize_t peek_length(int socket, bool block) {
  for (;;) {
    char nothing = 0;
    const ssize_t n = ::recv(socket, &nothing, 0, MSG_PEEK | MSG_TRUNC | (block ? 0 : MSG_DONTWAIT));
    if (n >= 0 || (errno != EINTR && errno != EAGAIN)) return n;
    if (errno == EAGAIN) {
      if (!block) return n;
      wait_for(socket, POLLIN);
    }
  }
}

}  // namespace

void write_plan(const plan::RunPlan& from, RunPlan::Builder to) {
  const plan::RunOptions& o = from.options;
  to.setModel(o.model);
  to.setModelName(from.model_name);
  to.setRunDir(from.run_dir);
  to.setProfile(from.profile);
  to.setProfileReason(from.profile_reason);
  to.setProfileHash(from.profile_hash);
  to.setTopology(o.topology);
  to.setHost(o.host);
  to.setPort(o.port);
  to.setIo(o.io);
  to.setCheckExperts(o.check_experts);
  to.setLogitsDir(o.logits_dir);
  to.setLogprobs(o.logprobs);
  to.setTrace(o.trace);
  to.setDraft(o.draft);
  to.setSpeculate(o.speculate);
  to.setDraftLog(o.draft_log);
  to.setLogLevel(o.log_level);
  to.setLayers(from.layers);
  to.setExpertsPerLayer(from.experts_per_layer);
  to.setExpertExtents(from.expert_extents);
  to.setTopK(from.top_k);
  to.setSlots(from.slots);
  to.setPrefetchSlots(from.prefetch_slots);
  to.setStride(from.stride);
  to.setDenseBytes(from.dense_bytes);
  to.setCtx(from.ctx);
  to.setKvPages(from.kv_pages);
  to.setKvPageBytes(from.kv_page_bytes);
  to.setKvFormat(static_cast<std::uint32_t>(from.kv_format));
  to.setNaivePrefill(from.naive_prefill);
  to.setRecords(from.records);
  to.setParallel(from.parallel);
  to.setPromptChunk(from.prompt_chunk);
  to.setThreads(from.threads);
  to.setRamBudget(from.ram_budget);
  to.setScratchBytes(from.scratch_bytes);
  to.setJournalBytes(from.journal_bytes);
  to.setDesksBytes(from.desks_bytes);
  to.setPageTableBytes(from.page_table_bytes);
  to.setProcessBytes(from.process_bytes);
  to.setReserveBytes(from.reserve_bytes);
  to.setDraftBytes(from.draft_bytes);
  to.setHeadBytes(from.head_bytes);
  to.setHiddenPageBytes(from.hidden_page_bytes);
  to.setVocab(from.vocab);
  to.setMinimumRam(from.minimum_ram);
}

plan::RunPlan read_plan(RunPlan::Reader from) {
  plan::RunPlan p;
  plan::RunOptions& o = p.options;
  o.model = from.getModel().cStr();
  p.model_name = from.getModelName().cStr();
  p.run_dir = from.getRunDir().cStr();
  p.profile = from.getProfile().cStr();
  p.profile_reason = from.getProfileReason().cStr();
  p.profile_hash = from.getProfileHash();
  o.topology = from.getTopology().cStr();
  o.host = from.getHost().cStr();
  o.port = from.getPort();
  o.io = from.getIo().cStr();
  o.check_experts = from.getCheckExperts();
  o.logits_dir = from.getLogitsDir().cStr();
  o.logprobs = from.getLogprobs();
  o.trace = from.getTrace().cStr();
  o.draft = from.getDraft().cStr();
  o.speculate = from.getSpeculate().cStr();
  o.draft_log = from.getDraftLog().cStr();
  o.log_level = from.getLogLevel().cStr();
  p.layers = from.getLayers();
  p.experts_per_layer = from.getExpertsPerLayer();
  p.expert_extents = from.getExpertExtents();
  p.top_k = from.getTopK();
  p.slots = from.getSlots();
  p.prefetch_slots = from.getPrefetchSlots();
  p.stride = from.getStride();
  p.dense_bytes = from.getDenseBytes();
  p.ctx = from.getCtx();
  p.kv_pages = from.getKvPages();
  p.kv_page_bytes = from.getKvPageBytes();
  p.kv_format = static_cast<kernels::KvFormat>(from.getKvFormat());
  p.naive_prefill = from.getNaivePrefill();
  p.records = from.getRecords();
  p.parallel = from.getParallel();
  p.prompt_chunk = from.getPromptChunk();
  p.threads = from.getThreads();
  p.ram_budget = from.getRamBudget();
  p.scratch_bytes = from.getScratchBytes();
  p.journal_bytes = from.getJournalBytes();
  p.desks_bytes = from.getDesksBytes();
  p.page_table_bytes = from.getPageTableBytes();
  p.process_bytes = from.getProcessBytes();
  p.reserve_bytes = from.getReserveBytes();
  p.draft_bytes = from.getDraftBytes();
  p.head_bytes = from.getHeadBytes();
  p.hidden_page_bytes = from.getHiddenPageBytes();
  p.vocab = from.getVocab();
  p.minimum_ram = from.getMinimumRam();
  // What the options asked for has become these numbers: a reader of either finds the same.
  o.ram = p.ram_budget;
  o.profile = p.profile;
  o.kv = name_of(p.kv_format);
  o.prefill = p.naive_prefill ? "naive" : "absorbed";
  o.threads = p.threads;
  o.ctx = p.ctx;
  o.parallel = p.parallel;
  o.prompt_chunk = p.prompt_chunk;
  return p;
}

Status send_packet(int socket, capnp::MessageBuilder& message, std::span<const int> descriptors) {
  if (descriptors.size() > kMaxDescriptors) return invalid("a control packet carries at most 16 descriptors");
  auto words = capnp::messageToFlatArray(message);
  auto bytes = words.asBytes();
  if (bytes.size() > kMaxPacket)
    return invalid("control packet of " + std::to_string(bytes.size()) + " bytes is larger than " +
                   std::to_string(kMaxPacket));
  iovec iov{bytes.begin(), bytes.size()};
  msghdr msg{};
  msg.msg_iov = &iov;
  msg.msg_iovlen = 1;
  ControlBuffer control;
  if (!descriptors.empty()) {
    msg.msg_control = control.bytes.data();
    msg.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* c = CMSG_FIRSTHDR(&msg);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(c), descriptors.data(), descriptors.size_bytes());
  }
  ssize_t n;
  do n = ::sendmsg(socket, &msg, MSG_NOSIGNAL);
  while (n < 0 && errno == EINTR);
  if (n < 0) return io_error("sending a control packet: " + errno_text());
  return {};
}

Result<Packet> receive_packet(int socket, bool block) {
  Packet packet;
  const ssize_t length = peek_length(socket, block);
  if (length < 0) {
    if (errno == EAGAIN) return packet;
    if (errno == ECONNRESET) {
      packet.closed = true;
      return packet;
    }
    return io_error("receiving a control packet: " + errno_text());
  }
  const auto size = static_cast<std::size_t>(length);
  const bool bad = size > kMaxPacket || size % sizeof(capnp::word) != 0;
  packet.words.resize(bad ? 1 : size / sizeof(capnp::word));
  iovec iov{packet.words.data(), packet.words.size() * sizeof(capnp::word)};
  msghdr msg{};
  ControlBuffer control;
  msg.msg_iov = &iov;
  msg.msg_iovlen = 1;
  msg.msg_control = control.bytes.data();
  msg.msg_controllen = control.bytes.size();
  ssize_t n;
  do n = ::recvmsg(socket, &msg, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  while (n < 0 && errno == EINTR);
  if (n < 0) return io_error("receiving a control packet: " + errno_text());
  packet.descriptors = take_descriptors(msg);
  if (bad || (msg.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) {
    close_all(packet.descriptors);
    return invalid("control packet of " + std::to_string(size) +
                   " bytes: larger than allowed, not whole words, or with too many descriptors");
  }
  packet.words.resize(static_cast<std::size_t>(n) / sizeof(capnp::word));
  packet.closed = n == 0;
  return packet;
}

capnp::ReaderOptions reader_options() {
  capnp::ReaderOptions options;
  // A packet holds kMaxPacket bytes; reading one several times over is honest, amplifying it is an attack.
  options.traversalLimitInWords = 4 * kMaxPacket / sizeof(capnp::word);
  options.nestingLimit = 8;
  return options;
}

}  // namespace wisp::proto
