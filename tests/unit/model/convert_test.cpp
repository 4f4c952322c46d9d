#include "model/convert.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <bit>
#include <cstring>
#include <filesystem>

#include "expect_error.hpp"
#include "model/checkpoint.hpp"
#include "model/manifest.hpp"
#include "tiny_checkpoint.hpp"

namespace wisp::model {
namespace {

namespace fs = std::filesystem;
using kernels::WeightFormat;
using test::expect_error;
using test::TinyCheckpoint;

/// Element [row, col] of a plane in the tile layout, as the header of the kernels describes it.
std::uint32_t tiled_bits(WeightFormat f, std::uint32_t cols, const std::uint8_t* plane, std::uint32_t row,
                         std::uint32_t col) {
  const std::uint32_t per = kernels::columns_per_dword(f);
  const std::size_t dword = (std::size_t{row / 16} * kernels::dwords_of(f, cols) + col / per) * 16 + row % 16;
  std::uint32_t bits = 0;
  std::memcpy(&bits, plane + dword * 4, 4);
  const std::uint32_t width = 32 / per;
  return width == 32 ? bits : bits >> (width * (col % per)) & ((1u << width) - 1);
}

float bf16(std::uint32_t bits) {
  return std::bit_cast<float>(bits << 16);
}

std::vector<std::uint8_t> source(const Checkpoint& c, const std::string& name) {
  const auto* e = c.find(name);
  EXPECT_NE(e, nullptr) << name;
  if (!e) return {};
  std::vector<std::uint8_t> out(e->info->bytes);
  EXPECT_TRUE(c.read(*e, 0, out).ok());
  return out;
}

std::uint32_t element(const std::vector<std::uint8_t>& data, std::size_t size, std::size_t i) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, data.data() + i * size, size);
  return bits;
}

class ConvertTest : public testing::Test {
 protected:
  ConvertReport convert_ok(const std::string& from, const std::string& to) {
    auto r = convert({.source = from, .destination = to, .force = false, .free_bytes = {}}, {});
    EXPECT_TRUE(r.ok()) << (r.ok() ? "" : r.error().text);
    return r.ok() ? *r : ConvertReport{};
  }
  Manifest load_ok(const std::string& folder) {
    auto m = load_manifest(folder);
    EXPECT_TRUE(m.ok()) << (m.ok() ? "" : m.error().text);
    return m.ok() ? *std::move(m) : Manifest{};
  }

  /// Every expert matrix of the folder holds the numbers of the source. Gives how many were compared.
  std::size_t compare_experts(const std::string& from, const std::string& folder) {
    const Manifest m = load_ok(folder);
    const auto c = Checkpoint::open(from);
    EXPECT_TRUE(c.ok());
    std::size_t compared = 0;
    for (std::uint32_t layer = 0; layer < m.experts.size(); ++layer) {
      const std::string file = test::read_file(folder + "/" + m.experts[layer].file);
      for (std::uint32_t e = 0; e < m.experts[layer].extents.size(); ++e) {
        const auto* extent =
            reinterpret_cast<const std::uint8_t*>(file.data()) + m.experts[layer].extents[e].offset;
        const std::string module =
            "model.layers." + std::to_string(layer) + ".mlp.experts." + std::to_string(e) + ".";
        compare_matrix(*c, module + "gate_proj", m.spec.expert.gate, extent);
        compare_matrix(*c, module + "up_proj", m.spec.expert.up, extent);
        compare_matrix(*c, module + "down_proj", m.spec.expert.down, extent);
        compared += 3;
        if (HasFailure()) return compared;
      }
    }
    return compared;
  }

  void compare_matrix(const Checkpoint& c, const std::string& module, const ExpertMatrix& m,
                      const std::uint8_t* extent) {
    const std::uint8_t* codes = extent + m.codes_offset;
    if (m.format != WeightFormat::kInt4) {
      const auto want = source(c, module + ".weight");
      const std::size_t size = 4 / kernels::columns_per_dword(m.format);
      ASSERT_EQ(want.size(), std::size_t{m.rows} * m.cols * size);
      for (std::uint32_t r = 0; r < m.rows; ++r) {
        for (std::uint32_t k = 0; k < m.cols; ++k) {
          ASSERT_EQ(tiled_bits(m.format, m.cols, codes, r, k),
                    element(want, size, std::size_t{r} * m.cols + k))
              << module;
        }
      }
      return;
    }
    const auto words = source(c, module + ".weight_packed"), scales = source(c, module + ".weight_scale");
    const auto scale_size = scales.size() / (std::size_t{m.rows} * m.cols / m.group);
    for (std::uint32_t r = 0; r < m.rows; ++r) {
      for (std::uint32_t k = 0; k < m.cols; ++k) {
        const auto code = element(words, 4, (std::size_t{r} * m.cols + k) / 8) >> (4 * (k % 8)) & 15;
        const auto scale_bits = element(scales, scale_size, (std::size_t{r} * m.cols + k) / m.group);
        const float scale = scale_size == 4 ? std::bit_cast<float>(scale_bits) : bf16(scale_bits);
        const float want = static_cast<float>(static_cast<int>(code) - 8) * scale;

        const std::size_t group = (std::size_t{r / 16} * (m.cols / m.group) + k / m.group) * 16 + r % 16;
        std::uint16_t s = 0;
        std::memcpy(&s, extent + m.scales_offset + group * 2, 2);
        const auto got_code = tiled_bits(m.format, m.cols, codes, r, k);
        const float got = static_cast<float>(static_cast<int>(got_code) - 8) * bf16(s);
        ASSERT_EQ(std::bit_cast<std::uint32_t>(got), std::bit_cast<std::uint32_t>(want))
            << module << " " << r << " " << k;
      }
    }
  }

  test::TempFolder temp_;
};

const std::string kPocket = std::string(WISP_TEST_DATA) + "/pocket-dictionary";

TEST_F(ConvertTest, PocketDictionaryKeepsEveryNumber) {
  const auto report = convert_ok(kPocket, temp_.path("pocket"));
  EXPECT_EQ(report.experts, 256u);
  EXPECT_EQ(report.name, "pocket-dictionary");
  EXPECT_TRUE(report.notes.empty());
  const Manifest m = load_ok(temp_.path("pocket"));
  EXPECT_EQ(m.name, "pocket-dictionary");
  EXPECT_EQ(m.spec.expert.payload, 55296u);
  EXPECT_EQ(m.spec.expert.stride, 57344u);
  EXPECT_TRUE(m.spec.tied_head);
  EXPECT_EQ(m.generation.eos, (std::vector<std::uint32_t>{4095, 4093}));
  EXPECT_EQ(compare_experts(kPocket, temp_.path("pocket")), 768u);
}

TEST_F(ConvertTest, PocketDictionaryDenseTensors) {
  convert_ok(kPocket, temp_.path("pocket"));
  const Manifest m = load_ok(temp_.path("pocket"));
  const auto c = Checkpoint::open(kPocket);
  ASSERT_TRUE(c.ok());
  const std::string file = test::read_file(temp_.path("pocket/dense.safetensors"));
  const auto plane = [&](const std::string& name) {
    return reinterpret_cast<const std::uint8_t*>(file.data()) + m.dense_file_offset + m.dense.at(name).offset;
  };
  for (const auto& [canonical, stored] :
       std::map<std::string, std::string>{{"embed", "model.embed_tokens"},
                                          {"layers.3.attn.q", "model.layers.3.self_attn.q_proj"},
                                          {"layers.7.router", "model.layers.7.mlp.gate"},
                                          {"layers.0.attn.o", "model.layers.0.self_attn.o_proj"}}) {
    const auto want = source(*c, stored + ".weight");
    const auto& t = m.dense.at(canonical);
    for (std::uint32_t r = 0; r < t.rows; ++r) {
      for (std::uint32_t k = 0; k < t.cols; ++k) {
        ASSERT_EQ(tiled_bits(t.format, t.cols, plane(canonical), r, k),
                  element(want, 2, std::size_t{r} * t.cols + k));
      }
    }
  }
  const auto norm = source(*c, "model.layers.2.self_attn.k_norm.weight");
  EXPECT_EQ(std::memcmp(norm.data(), plane("layers.2.attn.k_norm"), norm.size()), 0);
  EXPECT_EQ(m.dense.size(), 74u);
}

TEST_F(ConvertTest, AnyReaderOfTheFormatOpensTheFiles) {
  convert_ok(kPocket, temp_.path("pocket"));
  const Manifest m = load_ok(temp_.path("pocket"));
  const auto dense = SafetensorsFile::open(temp_.path("pocket/dense.safetensors"));
  ASSERT_TRUE(dense.ok()) << dense.error().text;
  EXPECT_EQ(dense->header().data_offset, m.dense_file_offset);
  EXPECT_EQ(m.dense_file_offset % 4096, 0u);
  for (const auto& t : dense->header().tensors) {
    if (t.name.starts_with("padding.")) continue;
    ASSERT_TRUE(m.dense.contains(t.name)) << t.name;
    EXPECT_EQ(m.dense.at(t.name).offset, t.offset);
    EXPECT_EQ(t.offset % 64, 0u);
  }
  const auto experts = SafetensorsFile::open(temp_.path("pocket/experts-00005.safetensors"));
  ASSERT_TRUE(experts.ok()) << experts.error().text;
  ASSERT_EQ(experts->header().tensors.size(), 32u);
  for (std::size_t e = 0; e < 32; ++e) {
    const auto& t = experts->header().tensors[e];
    EXPECT_EQ(t.name, "layers.5.experts." + std::to_string(e));
    EXPECT_EQ(experts->header().data_offset + t.offset, m.experts[5].extents[e].offset);
    EXPECT_EQ(t.bytes, 57344u);
  }
}

TEST_F(ConvertTest, AVocabularyInKimisFormComesAlongWhereThereIsNoOther) {
  TinyCheckpoint tiny;
  tiny.write(temp_.path("kimi"));
  test::write_file(temp_.path("kimi/tiktoken.model"), "QQ== 0\n");
  test::write_file(temp_.path("kimi/tokenizer_config.json"), R"({"chat_template": "A"})");
  EXPECT_TRUE(convert_ok(temp_.path("kimi"), temp_.path("one")).notes.empty());
  EXPECT_EQ(test::read_file(temp_.path("one/tiktoken.model")), "QQ== 0\n");
  EXPECT_EQ(test::read_file(temp_.path("one/tokenizer_config.json")), R"({"chat_template": "A"})");
  test::write_file(temp_.path("kimi/tokenizer.json"), "{}");
  convert_ok(temp_.path("kimi"), temp_.path("two"));
  EXPECT_FALSE(std::filesystem::exists(temp_.path("two/tiktoken.model")));
}

TEST_F(ConvertTest, TextsComeAlong) {
  convert_ok(kPocket, temp_.path("pocket"));
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "generation_config.json"}) {
    EXPECT_EQ(test::read_file(temp_.path("pocket/") + name), test::read_file(kPocket + "/" + name)) << name;
  }
  EXPECT_EQ(test::read_file(temp_.path("pocket/source_config.json")),
            test::read_file(kPocket + "/config.json"));
  EXPECT_TRUE(
      test::read_file(temp_.path("pocket/chat_template.jinja")).starts_with("{% for message in messages %}"));

  TinyCheckpoint tiny;
  tiny.write(temp_.path("tiny"));
  test::write_file(
      temp_.path("tiny/tokenizer_config.json"),
      R"({"chat_template": [{"name": "tool_use", "template": "A"}, {"name": "default", "template": "B"}]})");
  const auto report = convert_ok(temp_.path("tiny"), temp_.path("list"));
  EXPECT_EQ(test::read_file(temp_.path("list/chat_template.jinja")), "B");
  ASSERT_EQ(report.notes.size(), 1u);
  EXPECT_NE(report.notes[0].find("tokenizer.json"), std::string::npos);
  test::write_file(temp_.path("tiny/chat_template.jinja"), "C");
  convert_ok(temp_.path("tiny"), temp_.path("file"));
  EXPECT_EQ(test::read_file(temp_.path("file/chat_template.jinja")), "C");
}

TEST_F(ConvertTest, EveryExpertFormat) {
  for (const auto kind : {TinyCheckpoint::Experts::kBf16, TinyCheckpoint::Experts::kF16,
                          TinyCheckpoint::Experts::kF32, TinyCheckpoint::Experts::kInt4}) {
    const std::string n = std::to_string(static_cast<int>(kind));
    TinyCheckpoint(kind).write(temp_.path("src" + n));
    convert_ok(temp_.path("src" + n), temp_.path("dst" + n));
    EXPECT_EQ(compare_experts(temp_.path("src" + n), temp_.path("dst" + n)), 24u);
  }
}

TEST_F(ConvertTest, ShardsGiveTheSameWeights) {
  TinyCheckpoint tiny(TinyCheckpoint::Experts::kInt4);
  tiny.write(temp_.path("one"));
  tiny.write_sharded(temp_.path("index"), 4, true);
  tiny.write_sharded(temp_.path("shards"), 4, false);
  for (const char* name : {"one", "index", "shards"})
    convert_ok(temp_.path(name), temp_.path(std::string(name) + " out"));
  const auto hash = load_ok(temp_.path("one out")).model_hash;
  EXPECT_EQ(load_ok(temp_.path("index out")).model_hash, hash);
  EXPECT_EQ(load_ok(temp_.path("shards out")).model_hash, hash);
}

TEST_F(ConvertTest, NamesUnderAWrapperOrWithoutAPrefixGiveTheSameWeights) {
  TinyCheckpoint tiny;
  tiny.write(temp_.path("plain"));
  convert_ok(temp_.path("plain"), temp_.path("plain out"));
  const auto hash = load_ok(temp_.path("plain out")).model_hash;
  const std::map<std::string, std::string> kinds{
      {"bare", ""}, {"wrapped", "language_model.model."}, {"inner", "model.language_model."}};
  for (const auto& [kind, prefix] : kinds) {
    TinyCheckpoint other;
    other.tensors.clear();
    for (const auto& [name, t] : tiny.tensors) {
      const bool inner = name.starts_with("model.");
      const std::string head = kind == "wrapped" ? "language_model." : "";
      other.tensors[inner ? prefix + name.substr(6) : head + name] = t;
    }
    other.write(temp_.path(kind));
    convert_ok(temp_.path(kind), temp_.path(kind + " out"));
    EXPECT_EQ(load_ok(temp_.path(kind + " out")).model_hash, hash) << kind;
  }
  // Two names for one place.
  tiny.tensors["norm.weight"] = tiny.at("model.norm.weight");
  tiny.write(temp_.path("twice"));
  expect_error(convert({temp_.path("twice"), temp_.path("no"), false, {}}, {}),
               {"norm.weight", "stored twice, also as"});
}

TEST_F(ConvertTest, FusedExpertsGiveTheSameWeightsAsSplitOnes) {
  TinyCheckpoint fused(TinyCheckpoint::Experts::kFused);
  fused.write(temp_.path("fused"));
  TinyCheckpoint split = fused;
  for (const std::string layer : {"model.layers.0.", "model.layers.1."}) {
    const auto gate_up = split.at(layer + "mlp.experts.gate_up_proj").data;
    const auto down = split.at(layer + "mlp.experts.down_proj").data;
    split.tensors.erase(layer + "mlp.experts.gate_up_proj");
    split.tensors.erase(layer + "mlp.experts.down_proj");
    const std::size_t n = gate_up.size() / 8;  // bytes of one matrix
    for (std::size_t e = 0; e < 4; ++e) {
      const auto cut = [](const std::vector<std::uint8_t>& v, std::size_t from, std::size_t bytes) {
        const auto at = v.begin() + static_cast<std::ptrdiff_t>(from);
        return std::vector<std::uint8_t>(at, at + static_cast<std::ptrdiff_t>(bytes));
      };
      const std::string expert = layer + "mlp.experts." + std::to_string(e) + ".";
      split.tensors[expert + "gate_proj.weight"] = {"BF16", {32, 64}, cut(gate_up, 2 * e * n, n)};
      split.tensors[expert + "up_proj.weight"] = {"BF16", {32, 64}, cut(gate_up, (2 * e + 1) * n, n)};
      split.tensors[expert + "down_proj.weight"] = {"BF16", {64, 32}, cut(down, e * n, n)};
    }
  }
  split.write(temp_.path("split"));
  convert_ok(temp_.path("fused"), temp_.path("fused out"));
  convert_ok(temp_.path("split"), temp_.path("split out"));
  EXPECT_EQ(load_ok(temp_.path("fused out")).model_hash, load_ok(temp_.path("split out")).model_hash);
}

TEST_F(ConvertTest, WiderScalesAreTakenWhereTheyAreExact) {
  TinyCheckpoint tiny(TinyCheckpoint::Experts::kInt4);
  tiny.write(temp_.path("bf16"));
  for (auto& [name, t] : tiny.tensors) {
    if (!name.ends_with(".weight_scale")) continue;
    std::vector<std::uint8_t> wide(t.data.size() * 2);
    for (std::size_t i = 0; i < t.data.size() / 2; ++i)
      std::memcpy(wide.data() + 4 * i + 2, t.data.data() + 2 * i, 2);
    t = {"F32", t.shape, wide};
  }
  tiny.write(temp_.path("f32"));
  convert_ok(temp_.path("bf16"), temp_.path("bf16 out"));
  convert_ok(temp_.path("f32"), temp_.path("f32 out"));
  EXPECT_EQ(load_ok(temp_.path("f32 out")).model_hash, load_ok(temp_.path("bf16 out")).model_hash);

  tiny.at("model.layers.1.mlp.experts.2.up_proj.weight_scale").data[8] |= 1;
  tiny.write(temp_.path("inexact"));
  expect_error(convert({temp_.path("inexact"), temp_.path("no"), false, {}}, {}),
               {"model.layers.1.mlp.experts.2.up_proj.weight_scale", "element 2", "not exact in bf16"});
}

TEST_F(ConvertTest, HeadBiasesAndDenseLayers) {
  TinyCheckpoint tiny;
  tiny.config["attention_bias"] = true;
  tiny.config["mlp_only_layers"] = {0};
  for (const std::string layer : {"model.layers.0.self_attn.", "model.layers.1.self_attn."}) {
    tiny.add(layer + "q_proj.bias", "BF16", {32});
    tiny.add(layer + "k_proj.bias", "BF16", {16});
    tiny.add(layer + "v_proj.bias", "BF16", {16});
    tiny.add(layer + "o_proj.bias", "F32", {64});
  }
  std::erase_if(tiny.tensors, [](const auto& t) { return t.first.starts_with("model.layers.0.mlp"); });
  tiny.add("model.layers.0.mlp.gate_proj.weight", "BF16", {48, 64});
  tiny.add("model.layers.0.mlp.up_proj.weight", "BF16", {48, 64});
  tiny.add("model.layers.0.mlp.down_proj.weight", "BF16", {64, 48});
  tiny.add("model.layers.0.self_attn.rotary_emb.inv_freq", "F32", {8});
  tiny.tensors.erase("lm_head.weight");
  tiny.write(temp_.path("src"));
  const auto report = convert_ok(temp_.path("src"), temp_.path("dst"));
  const Manifest m = load_ok(temp_.path("dst"));
  EXPECT_TRUE(m.spec.attention.qkv_bias);
  EXPECT_TRUE(m.spec.tied_head);
  EXPECT_FALSE(m.spec.layers[0].moe);
  EXPECT_EQ(m.spec.layers[0].dense_width, 48u);
  EXPECT_TRUE(m.experts[0].file.empty());
  EXPECT_EQ(m.dense.at("layers.1.attn.o.bias").format, WeightFormat::kF32);
  EXPECT_EQ(m.spec.expert_count(), 4u);
  EXPECT_NE(report.notes[0].find("lm_head.weight is not stored"), std::string::npos);
}

TEST_F(ConvertTest, EstimateIsExactAndProgressReachesTheEnd) {
  const auto e = estimate(kPocket);
  ASSERT_TRUE(e.ok());
  EXPECT_EQ(e->experts, 256u);
  std::uint64_t done = 0, total = 0;
  const auto r = convert({kPocket, temp_.path("out"), false, {}}, [&](std::uint64_t d, std::uint64_t t) {
    EXPECT_GE(d, done);
    done = d;
    total = t;
  });
  ASSERT_TRUE(r.ok());
  std::uint64_t on_disk = 0;
  for (const auto& f : fs::directory_iterator(temp_.path("out"))) on_disk += fs::file_size(f);
  EXPECT_EQ(e->bytes, on_disk);
  EXPECT_EQ(r->bytes, on_disk);
  EXPECT_EQ(done, total);
  EXPECT_EQ(total, on_disk);
}

TEST_F(ConvertTest, KindsOfFolders) {
  convert_ok(kPocket, temp_.path("out"));
  EXPECT_TRUE(is_hf_folder(kPocket));
  EXPECT_FALSE(is_wisp_folder(kPocket));
  EXPECT_TRUE(is_wisp_folder(temp_.path("out")));
  EXPECT_FALSE(is_hf_folder(temp_.path("out")));
  EXPECT_FALSE(is_hf_folder(temp_.path("none")));
  expect_error(convert({temp_.path("out"), temp_.path("again"), false, {}}, {}), {"converted already"});
}

}  // namespace
}  // namespace wisp::model
