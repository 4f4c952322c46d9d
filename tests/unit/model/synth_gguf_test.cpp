#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>

#include "expect_error.hpp"
#include "model/manifest.hpp"
#include "model/synth.hpp"
#include "model/verify.hpp"
#include "synth_folder.hpp"
#include "tiny_checkpoint.hpp"
#include "wisp/kernels/kernels.hpp"

/// The GGUF file of `wisp synth` is read here by a parser of its own and held against the folder beside it.
namespace wisp::model {
namespace {

namespace fs = std::filesystem;
using test::expect_error;
using test::Folder;

struct Table {
  struct Tensor {
    std::vector<std::uint64_t> shape;
    std::uint32_t type = 0;
    std::size_t at = 0;  ///< in the file
  };
  std::string bytes;
  std::uint32_t version = 0;
  std::map<std::string, std::string> texts;
  std::map<std::string, double> numbers;
  std::map<std::string, Tensor> tensors;

  template <class T>
  T take() {
    T v{};
    EXPECT_LE(pos_ + sizeof v, bytes.size());
    std::memcpy(&v, bytes.data() + pos_, sizeof v);
    pos_ += sizeof v;
    return v;
  }
  std::string take_text() {
    const auto n = take<std::uint64_t>();
    std::string s = bytes.substr(pos_, n);
    pos_ += n;
    return s;
  }

  explicit Table(std::string file) : bytes(std::move(file)) {
    EXPECT_EQ(bytes.substr(0, 4), "GGUF");
    pos_ = 4;
    version = take<std::uint32_t>();
    const auto n_tensors = take<std::uint64_t>(), n_values = take<std::uint64_t>();
    for (std::uint64_t i = 0; i < n_values; ++i) {
      const std::string key = take_text();
      switch (const auto type = take<std::uint32_t>()) {
        case 4:
          numbers[key] = take<std::uint32_t>();
          break;
        case 6:
          numbers[key] = static_cast<double>(take<float>());
          break;
        case 7:
          numbers[key] = take<std::uint8_t>();
          break;
        case 8:
          texts[key] = take_text();
          break;
        default:
          ADD_FAILURE() << key << " has type " << type;
      }
    }
    for (std::uint64_t i = 0; i < n_tensors; ++i) {
      const std::string name = take_text();
      Tensor t;
      t.shape.resize(take<std::uint32_t>());
      for (auto& n : t.shape) n = take<std::uint64_t>();
      t.type = take<std::uint32_t>();
      t.at = take<std::uint64_t>();
      EXPECT_EQ(t.at % 32, 0u) << name;
      EXPECT_TRUE(tensors.emplace(name, t).second) << name;
    }
    pos_ = (pos_ + 31) / 32 * 32;
    for (auto& [name, t] : tensors) t.at += pos_;
  }

  /// Element (row, col), rows of all further dimensions one behind the other.
  float value(const std::string& name, std::uint64_t row, std::uint64_t col) const {
    const Tensor& t = tensors.at(name);
    const std::uint64_t cols = t.shape[0];
    const auto* p = reinterpret_cast<const unsigned char*>(bytes.data()) + t.at;
    if (t.type == 0 || t.type == 30) {
      std::uint32_t bits = 0;
      const std::size_t size = t.type == 0 ? 4 : 2;
      std::memcpy(reinterpret_cast<char*>(&bits) + (4 - size), p + (row * cols + col) * size, size);
      float f = 0;
      std::memcpy(&f, &bits, 4);
      return f;
    }
    const std::size_t block = t.type == 2 ? 18 : 34;
    EXPECT_TRUE(t.type == 2 || t.type == 8) << name;
    const auto* b = p + (row * (cols / 32) + col / 32) * block;
    const unsigned half = b[0] | b[1] << 8;
    const int exponent = static_cast<int>(half >> 10 & 31), fraction = static_cast<int>(half & 1023);
    EXPECT_EQ(half >> 15, 0u);
    const double d = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
    const std::size_t j = col % 32;
    const int code =
        t.type == 8 ? static_cast<signed char>(b[2 + j]) : (j < 16 ? b[2 + j] & 15 : b[2 + j - 16] >> 4) - 8;
    return static_cast<float>(d * code);
  }

 private:
  std::size_t pos_ = 0;
};

void expect_row(const Table& gguf, const std::string& name, std::uint64_t row,
                const std::vector<float>& ours) {
  ASSERT_TRUE(gguf.tensors.contains(name)) << name;
  ASSERT_EQ(gguf.tensors.at(name).shape[0], ours.size()) << name;
  for (std::size_t k = 0; k < ours.size(); ++k)
    ASSERT_EQ(gguf.value(name, row, k), ours[k]) << name << " row " << row << " column " << k;
}

SynthOptions small(const test::TempFolder& temp, const std::string& like) {
  SynthOptions o;
  o.destination = temp.path("m");
  o.gguf = temp.path("m.gguf");
  o.like = like;
  o.layers = 2;
  o.hidden = 64;
  o.width = 96;
  o.experts = 6;
  o.top_k = 2;
  o.vocab = 100;
  o.heads = 4;
  o.dense_format = "int4";
  return o;
}

TEST(SynthGguf, QwenHasTheFoldersNumbers) {
  test::TempFolder temp;
  SynthOptions o = small(temp, "qwen3-30b");
  o.kv_heads = 2;
  o.head_dim = 32;
  const auto made = synth(o, {});
  ASSERT_TRUE(made.ok()) << made.error().text;
  Folder folder(o.destination);
  const Table gguf(test::read_file(o.gguf));
  EXPECT_EQ(gguf.bytes.size(), made->gguf_bytes);
  EXPECT_EQ(gguf.version, 3u);
  EXPECT_EQ(gguf.texts.at("general.architecture"), "qwen3moe");
  EXPECT_EQ(gguf.numbers.at("qwen3moe.block_count"), 2);
  EXPECT_EQ(gguf.numbers.at("qwen3moe.expert_used_count"), 2);
  EXPECT_EQ(gguf.numbers.at("qwen3moe.vocab_size"), 100);
  EXPECT_EQ(gguf.numbers.at("qwen3moe.rope.freq_base"), 1e6);
  // 3 beside the layers; in each 9 that are dense and 3 stacks of experts.
  EXPECT_EQ(gguf.tensors.size(), 3u + 2 * 12);
  EXPECT_EQ(gguf.tensors.at("blk.1.ffn_down_exps.weight").shape, (std::vector<std::uint64_t>{96, 64, 6}));
  for (const char* matrix : {"token_embd.weight", "output.weight", "blk.0.attn_q.weight",
                             "blk.1.attn_output.weight", "blk.0.ffn_up_exps.weight"})
    EXPECT_EQ(gguf.tensors.at(matrix).type, 2u) << matrix;
  EXPECT_EQ(gguf.tensors.at("blk.0.ffn_gate_inp.weight").type, 0u);

  for (const std::uint32_t row : {0u, 17u, 63u}) {
    expect_row(gguf, "token_embd.weight", row, folder.dense_row("embed", row));
    expect_row(gguf, "output.weight", row, folder.dense_row("head", row));
    expect_row(gguf, "blk.1.attn_q.weight", row, folder.dense_row("layers.1.attn.q", row));
    expect_row(gguf, "blk.1.attn_k.weight", row, folder.dense_row("layers.1.attn.k", row));
    expect_row(gguf, "blk.0.attn_output.weight", row, folder.dense_row("layers.0.attn.o", row));
  }
  expect_row(gguf, "output_norm.weight", 0, folder.dense_row("norm", 0));
  expect_row(gguf, "blk.1.attn_k_norm.weight", 0, folder.dense_row("layers.1.attn.k_norm", 0));
  expect_row(gguf, "blk.1.ffn_gate_inp.weight", 5, folder.dense_row("layers.1.router", 5));
  const ExpertShape& x = folder.manifest.spec.expert;
  for (const std::uint32_t e : {0u, 5u}) {
    expect_row(gguf, "blk.1.ffn_gate_exps.weight", e * 96 + 33, folder.expert_row(1, e, x.gate, 33));
    expect_row(gguf, "blk.0.ffn_up_exps.weight", e * 96 + 95, folder.expert_row(0, e, x.up, 95));
    expect_row(gguf, "blk.1.ffn_down_exps.weight", e * 64 + 2, folder.expert_row(1, e, x.down, 2));
  }
  // What was made is whole, and nothing is left beside it.
  const auto verified = verify(o.destination, {});
  ASSERT_TRUE(verified.ok());
  EXPECT_EQ(verified->bad_count, 0u);
  EXPECT_EQ(std::distance(fs::directory_iterator(temp.path()), fs::directory_iterator()), 2);
}

TEST(SynthGguf, MixtralsRotatedRowsAreNeighbours) {
  test::TempFolder temp;
  SynthOptions o = small(temp, "mixtral-8x7b");
  o.kv_heads = 2;
  o.head_dim = 32;
  o.dense_format = "int8";
  o.expert_format = "int8";
  ASSERT_TRUE(synth(o, {}).ok());
  Folder folder(o.destination);
  const Table gguf(test::read_file(o.gguf));
  EXPECT_EQ(gguf.texts.at("general.architecture"), "llama");
  EXPECT_EQ(gguf.numbers.at("llama.feed_forward_length"), 96);
  EXPECT_EQ(gguf.tensors.at("blk.0.attn_q.weight").type, 8u);
  for (std::uint32_t row = 0; row < 64; ++row) {
    // Rows 0 and 16 of a head of 32 turn together; there they are 0 and 1.
    const std::uint32_t head = row / 32, i = row % 32,
                        theirs = head * 32 + (i < 16 ? 2 * i : 2 * (i - 16) + 1);
    expect_row(gguf, "blk.0.attn_q.weight", theirs, folder.dense_row("layers.0.attn.q", row));
    expect_row(gguf, "blk.1.attn_k.weight", theirs, folder.dense_row("layers.1.attn.k", row));
    expect_row(gguf, "blk.1.attn_v.weight", row, folder.dense_row("layers.1.attn.v", row));
  }
  expect_row(gguf, "blk.1.ffn_down_exps.weight", 4 * 64 + 9,
             folder.expert_row(1, 4, folder.manifest.spec.expert.down, 9));
}

TEST(SynthGguf, DeepseekSplitsItsLatentByHeads) {
  test::TempFolder temp;
  SynthOptions o = small(temp, "deepseek-v3");
  expect_error(synth((o.dense_format = {}, o), {}), {"--gguf", "fp8", "int4"});
  EXPECT_TRUE(fs::is_empty(temp.path()));
  o.dense_format = "int4";
  ASSERT_TRUE(synth(o, {}).ok());
  Folder folder(o.destination);
  const Table gguf(test::read_file(o.gguf));
  EXPECT_EQ(gguf.texts.at("general.architecture"), "deepseek2");
  EXPECT_EQ(gguf.numbers.at("deepseek2.leading_dense_block_count"), 1);
  EXPECT_EQ(gguf.tensors.at("blk.1.attn_k_b.weight").shape, (std::vector<std::uint64_t>{128, 512, 4}));
  EXPECT_EQ(gguf.tensors.at("blk.1.attn_v_b.weight").shape, (std::vector<std::uint64_t>{512, 128, 4}));
  expect_row(gguf, "blk.0.attn_k_b.weight", 3 * 512 + 7, folder.dense_row("layers.0.attn.k_up", 3 * 512 + 7));
  expect_row(gguf, "blk.0.attn_v_b.weight", 2 * 128 + 9, folder.dense_row("layers.0.attn.v_up", 2 * 128 + 9));
  expect_row(gguf, "blk.0.ffn_up.weight", 70, folder.dense_row("layers.0.ffn.up", 70));
  expect_row(gguf, "blk.1.ffn_down_shexp.weight", 3, folder.dense_row("layers.1.shared.down", 3));
  expect_row(gguf, "blk.1.exp_probs_b.bias", 0, folder.dense_row("layers.1.router.selection", 0));
}

TEST(SynthGguf, EveryShapeIsItsFamilys) {
  const std::map<std::string, std::string> families{{"qwen3-30b", "qwen3_moe"},
                                                    {"mixtral-8x7b", "mixtral"},
                                                    {"deepseek-v3", "deepseek_v3"},
                                                    {"glm-5.2", "glm_moe_dsa"}};
  for (const auto& [like, family] : families) {
    SCOPED_TRACE(like);
    test::TempFolder temp;
    SynthOptions o = small(temp, like);
    o.gguf.clear();
    o.dense_format.clear();
    o.layers = 3;
    o.heads = 8;
    const auto made = synth(o, {});
    ASSERT_TRUE(made.ok()) << made.error().text;
    const auto m = load_manifest(o.destination);
    ASSERT_TRUE(m.ok()) << m.error().text;
    EXPECT_EQ(m->spec.family, family);
    EXPECT_EQ(m->spec.moe_layers(), m->spec.attention.is_latent() ? 1u : 3u);
    EXPECT_EQ(m->spec.expert.gate.format, kernels::WeightFormat::kInt4);
    EXPECT_EQ(m->dense.at("layers.2.attn.o").format,
              like == "deepseek-v3" ? kernels::WeightFormat::kFp8 : kernels::WeightFormat::kBf16);
    EXPECT_EQ(m->dense.at("embed").format, kernels::WeightFormat::kBf16);
    const auto verified = verify(o.destination, {});
    ASSERT_TRUE(verified.ok());
    EXPECT_EQ(verified->bad_count, 0u);
  }
}

TEST(SynthGguf, RefusalsComeBeforeAByteIsWritten) {
  test::TempFolder temp;
  SynthOptions o = small(temp, "glm-5.2");
  expect_error(synth(o, {}), {"--gguf is not available for glm_moe_dsa", "qwen3", "mixtral-8x7b"});
  o = small(temp, "qwen3-30b");
  o.hidden = 48;
  expect_error(synth(o, {}), {"--gguf", "48 columns"});
  o = small(temp, "deepseek-v3");
  o.head_dim = 64;
  expect_error(synth(o, {}), {"latent", "--head-dim"});
  EXPECT_TRUE(fs::is_empty(temp.path()));
  // A file that is there stays there, and no folder is made beside it.
  test::write_file(temp.path("m.gguf"), "mine");
  o = small(temp, "qwen3-30b");
  expect_error(synth(o, {}), {"m.gguf", "--force"});
  EXPECT_EQ(test::read_file(temp.path("m.gguf")), "mine");
  EXPECT_FALSE(fs::exists(o.destination));
  o.force = true;
  ASSERT_TRUE(synth(o, {}).ok());
  EXPECT_EQ(test::read_file(temp.path("m.gguf")).substr(0, 4), "GGUF");
}

}  // namespace
}  // namespace wisp::model
