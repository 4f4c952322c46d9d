#pragma once
#include <capnp/message.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "plan/run_plan.hpp"
#include "proto/control.capnp.h"

namespace wisp::proto {

/// Largest control packet, bytes.
inline constexpr std::size_t kMaxPacket = 256 * 1024;

void write_plan(const plan::RunPlan& from, RunPlan::Builder to);
plan::RunPlan read_plan(RunPlan::Reader from);

/// Sends one message as one packet with up to 16 descriptors. Errors: kIo.
Status send_packet(int socket, capnp::MessageBuilder& message, std::span<const int> descriptors = {});

/// One received packet: the words of a message, and the descriptors that came with it.
struct Packet {
  std::vector<std::uint64_t> words;
  std::vector<int> descriptors;  ///< owned by the caller; already close-on-exec
  bool closed = false;           ///< the peer is gone

  /// What a FlatArrayMessageReader reads; a view into `words`.
  kj::ArrayPtr<const capnp::word> message() const {
    return {reinterpret_cast<const capnp::word*>(words.data()), words.size()};
  }
};
/// Receives one packet. With `block` = false an empty socket gives a packet without words.
/// Errors: kIo, kInvalid (larger than kMaxPacket or not whole words).
Result<Packet> receive_packet(int socket, bool block);

/// Limits for reading a message from a peer: traversal and nesting that no honest one needs are refused.
capnp::ReaderOptions reader_options();

}  // namespace wisp::proto
