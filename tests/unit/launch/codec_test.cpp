#include "proto/codec.hpp"

#include <capnp/serialize.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include "launch/spawn.hpp"
#include "toy_run.hpp"

namespace wisp::proto {
namespace {

launch::SocketPair pair() {
  auto p = launch::make_socket_pair();
  EXPECT_TRUE(p.ok());
  return std::move(*p);
}

TEST(Codec, PlanSurvivesTheWire) {
  plan::RunPlan plan = launch::test::toy_plan();
  plan.options.model = "/models/m";
  plan.options.port = -1;
  plan.run_dir = "/run/x";
  plan.profile_reason = "why";
  plan.minimum_ram = 1ULL << 40;
  plan.kv_format = kernels::KvFormat::kBf16;
  plan.naive_prefill = true;
  plan.options.draft = "/models/d";
  plan.options.speculate = "3";
  plan.draft_bytes = 5ULL << 32;
  plan.options.logprobs = 6;
  const auto p = pair();
  capnp::MallocMessageBuilder message;
  write_plan(plan, message.initRoot<RunPlan>());
  ASSERT_TRUE(send_packet(p.theirs.get(), message).ok());
  auto packet = receive_packet(p.ours.get(), true);
  ASSERT_TRUE(packet.ok());
  capnp::FlatArrayMessageReader reader(packet->message(), reader_options());
  const plan::RunPlan back = read_plan(reader.getRoot<RunPlan>());
  EXPECT_EQ(back.options.model, plan.options.model);
  EXPECT_EQ(back.options.port, -1);
  EXPECT_EQ(back.run_dir, plan.run_dir);
  EXPECT_EQ(back.stride, plan.stride);
  EXPECT_EQ(back.profile_hash, plan.profile_hash);
  EXPECT_EQ(back.profile_reason, plan.profile_reason);
  EXPECT_EQ(back.minimum_ram, plan.minimum_ram);
  EXPECT_EQ(back.kv_format, plan.kv_format);
  EXPECT_EQ(back.options.kv, "bf16");
  EXPECT_TRUE(back.naive_prefill);
  EXPECT_EQ(back.options.prefill, "naive");
  EXPECT_EQ(back.options.draft, "/models/d");
  EXPECT_EQ(back.options.speculate, "3");
  EXPECT_EQ(back.draft_bytes, plan.draft_bytes);
  EXPECT_EQ(back.options.logprobs, 6u);
}

TEST(Codec, DescriptorsArriveCloseOnExec) {
  const auto p = pair();
  capnp::MallocMessageBuilder message;
  message.initRoot<LaunchRequest>().setStop();
  const int given[3] = {0, 1, 2};
  ASSERT_TRUE(send_packet(p.theirs.get(), message, given).ok());
  auto packet = receive_packet(p.ours.get(), true);
  ASSERT_TRUE(packet.ok());
  ASSERT_EQ(packet->descriptors.size(), 3u);
  for (int fd : packet->descriptors) {
    EXPECT_EQ(::fcntl(fd, F_GETFD), FD_CLOEXEC);
    ::close(fd);
  }
}

TEST(Codec, EmptySocketAndClosedPeer) {
  auto p = pair();
  auto empty = receive_packet(p.ours.get(), false);
  ASSERT_TRUE(empty.ok());
  EXPECT_TRUE(empty->words.empty());
  EXPECT_FALSE(empty->closed);
  p.theirs.reset();
  auto closed = receive_packet(p.ours.get(), true);
  ASSERT_TRUE(closed.ok());
  EXPECT_TRUE(closed->closed);
}

TEST(Codec, PacketsThatAreNoWordsAreRefusedAndTaken) {
  const auto p = pair();
  ASSERT_EQ(::send(p.theirs.get(), "abc", 3, 0), 3);
  EXPECT_FALSE(receive_packet(p.ours.get(), false).ok());
  auto next = receive_packet(p.ours.get(), false);
  ASSERT_TRUE(next.ok());
  EXPECT_TRUE(next->words.empty());
}

}  // namespace
}  // namespace wisp::proto
