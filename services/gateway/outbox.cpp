#include "services/gateway/outbox.hpp"

#include <algorithm>
#include <cstring>

namespace wisp::gateway {

using ring::Kind;

namespace {
std::size_t payload_size(std::size_t prompt_tokens) {
  return sizeof(shm::SubmitMessage) + prompt_tokens * sizeof(std::uint32_t);
}
}  // namespace

bool Outbox::can_carry(std::size_t prompt_tokens) const {
  return payload_size(prompt_tokens) <= arena_bytes_;
}

void Outbox::submit(std::uint64_t request, const shm::RequestParams& params,
                    const std::vector<std::uint32_t>& prompt) {
  Waiting w{Kind::kSubmit, request, 0, 0, std::vector<std::byte>(payload_size(prompt.size()))};
  const shm::SubmitMessage m{params};
  std::memcpy(w.payload.data(), &m, sizeof m);
  std::memcpy(w.payload.data() + sizeof m, prompt.data(), prompt.size() * sizeof(std::uint32_t));
  waiting_.push_back(std::move(w));
}

void Outbox::tell(Kind kind, std::uint64_t request, std::uint32_t pos, std::uint32_t gen) {
  waiting_.push_back({kind, request, pos, gen, {}});
}

bool Outbox::flush() {
  bool any = false;
  while (!waiting_.empty()) {
    const Waiting& w = waiting_.front();
    ring::Message m;
    m.kind = w.kind;
    m.request = w.request;
    m.pos = w.pos;
    m.gen = w.gen;
    m.payload = w.payload;
    if (!edge_.publish(m)) break;
    waiting_.pop_front();
    any = true;
  }
  return any;
}

bool Outbox::withdraw(std::uint64_t request) {
  if (!waits(request, Kind::kSubmit)) return false;
  std::erase_if(waiting_, [&](const Waiting& w) { return w.request == request; });
  return true;
}

bool Outbox::waits(std::uint64_t request, Kind kind) const {
  return std::any_of(waiting_.begin(), waiting_.end(), [&](const Waiting& w) {
    return w.request == request && (kind == Kind::kNone || w.kind == kind);
  });
}

bool Outbox::carries(std::uint64_t request, Kind kind) const {
  if (waits(request, kind)) return true;
  const std::uint64_t tail = edge_.tail();
  for (std::uint64_t n = edge_.peer_head(); n < tail; ++n) {
    const ring::Descriptor& d = edge_.at(n);
    if (d.request == request && (kind == Kind::kNone || d.kind == kind)) return true;
  }
  return false;
}

std::vector<std::uint64_t> Outbox::unread_submissions() const {
  std::vector<std::uint64_t> ids;
  const std::uint64_t tail = edge_.tail();
  for (std::uint64_t n = edge_.peer_head(); n < tail; ++n)
    if (edge_.at(n).kind == Kind::kSubmit) ids.push_back(edge_.at(n).request);
  for (const Waiting& w : waiting_)
    if (w.kind == Kind::kSubmit) ids.push_back(w.request);
  return ids;
}

}  // namespace wisp::gateway
