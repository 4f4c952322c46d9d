#include "trace/route_trace.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

namespace wisp::trace {
namespace {

Result<Trace> read(const std::string& text) {
  std::size_t at = 0;
  return read_trace([&](std::string_view& line) -> Result<bool> {
    if (at >= text.size()) return false;
    const std::size_t end = std::min(text.find('\n', at), text.size());
    line = std::string_view(text).substr(at, end - at);
    at = end + 1;
    return true;
  });
}

/// A line of `layer` and `expert`; the rest does not matter here.
std::string line(std::uint32_t layer, std::uint32_t expert, int phase = 1) {
  return "0," + std::to_string(phase) + ",7," + std::to_string(layer) + ",0," + std::to_string(expert) +
         ",0.5,1,4096\n";
}

std::vector<std::uint32_t> experts_of(const Trace& t, std::size_t touch) {
  std::vector<std::uint32_t> out;
  for (const Access& a : t.of(t.touches[touch])) out.push_back(a.expert);
  return out;
}

TEST(RouteTrace, ConsecutiveLinesOfALayerAreOneTouchOfDistinctExperts) {
  const auto t = read(line(0, 5, 0) + line(0, 3, 0) + line(0, 5, 0) + line(1, 9) + line(0, 3));
  ASSERT_TRUE(t.ok()) << t.error().text;
  ASSERT_EQ(t->touches.size(), 3u);
  EXPECT_EQ(experts_of(*t, 0), (std::vector<std::uint32_t>{5, 3}));
  EXPECT_EQ(t->of(t->touches[0])[0].rows, 2u);
  EXPECT_EQ(t->of(t->touches[0])[1].rows, 1u);
  EXPECT_FALSE(t->touches[0].decode);
  EXPECT_TRUE(t->touches[1].decode);
  EXPECT_EQ(experts_of(*t, 2), std::vector<std::uint32_t>{3});
  EXPECT_EQ(t->model.layers, 2u);
  EXPECT_EQ(t->model.experts, 10u);
  EXPECT_EQ(t->model.top_k, 1u);
}

TEST(RouteTrace, ATouchLineSeparatesTouchesOfOneLayer) {
  const auto t = read(line(0, 1) + "# touch\n" + line(0, 1) + line(0, 2));
  ASSERT_TRUE(t.ok());
  ASSERT_EQ(t->touches.size(), 2u);
  EXPECT_EQ(experts_of(*t, 1), (std::vector<std::uint32_t>{1, 2}));
}

TEST(RouteTrace, TheModelIsWhatItsLinesSay) {
  const auto t = read(
      "# route_trace v1\n# model=Qwen3-30B arch=qwen3moe n_layer=48 n_expert=128 n_expert_used=6\n"
      "# layer=0 expert_bytes=3059712 dense_bytes=11953152\n" +
      std::string(kColumns) + "\r\n" + line(0, 1));
  ASSERT_TRUE(t.ok()) << t.error().text;
  EXPECT_EQ(t->model.name, "Qwen3-30B");
  EXPECT_EQ(t->model.layers, 48u);
  EXPECT_EQ(t->model.experts, 128u);
  EXPECT_EQ(t->model.top_k, 6u);
}

TEST(RouteTrace, WhatIsWrittenIsRead) {
  const RouteLine in{3, true, 120, 47, 5, 127, 0.013671875f, true, 3059712};
  std::string text;
  append_line(text, in);
  ASSERT_EQ(text.back(), '\n');
  const auto out = parse_line(std::string_view(text).substr(0, text.size() - 1));
  ASSERT_TRUE(out.ok()) << out.error().text;
  EXPECT_EQ(out->turn, in.turn);
  EXPECT_EQ(out->decode, in.decode);
  EXPECT_EQ(out->step, in.step);
  EXPECT_EQ(out->layer, in.layer);
  EXPECT_EQ(out->rank, in.rank);
  EXPECT_EQ(out->expert, in.expert);
  EXPECT_NEAR(out->weight, in.weight, 1e-6);
  EXPECT_EQ(out->resident, in.resident);
  EXPECT_EQ(out->expert_bytes, in.expert_bytes);
  const std::uint64_t bytes[] = {0, 77, 99};
  const auto described = read(describe_model({"a b", 48, 128, 4}, bytes) + text);
  ASSERT_TRUE(described.ok());
  EXPECT_EQ(described->model.name, "a_b");
  EXPECT_EQ(described->model.top_k, 4u);
}

TEST(RouteTrace, ARestartEndsATouchAndIsCounted) {
  const auto t =
      read(line(0, 1) + std::string(kRestartLine) + "why\n" + line(0, 2) + "# restart\n" + line(0, 3));
  ASSERT_TRUE(t.ok()) << t.error().text;
  EXPECT_EQ(t->restarts, 1u);
  ASSERT_EQ(t->touches.size(), 2u);
  EXPECT_EQ(t->touches[1].count, 2u);
}

TEST(RouteTrace, MalformedLinesAreNamedByTheirNumber) {
  const std::string good = line(0, 1);
  for (const char* bad :
       {"0,1,7,0,0,5,0.5,1", "0,1,7,0,0,5,0.5,1,4096,9", "0,2,7,0,0,5,0.5,1,4096", "x,1,7,0,0,5,0.5,1,4096",
        "0,1,7,0,0,-5,0.5,1,4096", "0,1,7,0,0,5,half,1,4096", "0,1,7,0,0,5,0.5,1,", "0,1,7,0,0,70000,0.5,1,1",
        "0,1,7,5000,0,5,0.5,1,4096", "0, 1,7,0,0,5,0.5,1,4096", "nonsense", ",,,,,,,,",
        "99999999999999999999,1,7,0,0,5,0.5,1,4096", "# n_layer=4294967295",
        "# n_expert=65536 n_layer=4096"}) {
    const auto t = read(good + bad + "\n" + good);
    ASSERT_FALSE(t.ok()) << bad;
    EXPECT_EQ(t.error().code, ErrorCode::kInvalid);
    EXPECT_TRUE(t.error().text.starts_with("line 2: ")) << t.error().text;
  }
  EXPECT_FALSE(read("").ok());
  EXPECT_FALSE(read("# route_trace v1\n").ok());
}

TEST(RouteTrace, LinesThatContradictTheHeaderAreNamed) {
  const std::string head = "# model=m n_layer=4 n_expert=16 n_expert_used=2\n";
  EXPECT_TRUE(read(head + line(3, 15)).ok());
  for (const auto& [layer, expert, says] :
       {std::tuple{4u, 0u, "layer 4 contradicts the header, which says n_layer=4"},
        {0u, 16u, "expert 16 contradicts the header, which says n_expert=16"}}) {
    const auto t = read(head + line(3, 15) + line(layer, expert));
    ASSERT_FALSE(t.ok());
    EXPECT_EQ(t.error().text, std::string("line 3: ") + says);
  }
}

class TraceFile : public testing::Test {
 protected:
  TraceFile() {
    const int fd = ::mkstemp(path_.data());
    EXPECT_GE(fd, 0);
    ::close(fd);
  }
  ~TraceFile() override { ::unlink(path_.c_str()); }
  void write(const std::string& text) { std::ofstream(path_, std::ios::binary) << text; }

  std::string path_ = testing::TempDir() + "wisp-trace-XXXXXX";
};

TEST_F(TraceFile, IsReadByBlocks) {
  std::string text;
  const std::uint32_t lines = 40000;  // several blocks, lines across their borders
  for (std::uint32_t i = 0; i < lines; ++i) text += line(i % 3, i % 100);
  text.pop_back();  // the last line needs no end
  write(text);
  const auto t = read_trace(path_);
  ASSERT_TRUE(t.ok()) << t.error().text;
  EXPECT_EQ(t->touches.size(), lines);
  EXPECT_EQ(t->accesses.size(), lines);
  EXPECT_TRUE(t->cut) << "but says so";
  write(text + "\n");
  EXPECT_FALSE(read_trace(path_)->cut);
}

TEST_F(TraceFile, ErrorsNameFileAndLine) {
  write(line(0, 1) + "0,1\n");
  auto t = read_trace(path_);
  ASSERT_FALSE(t.ok());
  EXPECT_NE(t.error().text.find(path_ + ": line 2: "), std::string::npos) << t.error().text;
  write(line(0, 1) + "0,1");
  t = read_trace(path_);
  ASSERT_FALSE(t.ok());
  EXPECT_TRUE(t.error().text.ends_with("the file ends in the middle of this line")) << t.error().text;
  write(line(0, 1) + std::string(1 << 20, 'x'));
  t = read_trace(path_);
  ASSERT_FALSE(t.ok());
  EXPECT_NE(t.error().text.find("line 2: "), std::string::npos) << t.error().text;
  EXPECT_FALSE(read_trace(path_ + ".none").ok());
  EXPECT_FALSE(read_trace("/").ok());
}

}  // namespace
}  // namespace wisp::trace
