#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "model/convert.hpp"
#include "model/encode.hpp"
#include "model/manifest.hpp"
#include "model/matrix_reader.hpp"
#include "model/verify.hpp"
#include "tiny_checkpoint.hpp"
#include "wisp/kernels/kernels.hpp"
#include "wisp/kernels/number.hpp"
#include "wisp/kernels/relayout.hpp"

namespace wisp::model {
namespace {

namespace fs = std::filesystem;
using kernels::WeightFormat;

const std::string kForms = std::string(WISP_TEST_DATA) + "/stored_formats";

std::vector<std::string> form_names() {
  std::vector<std::string> out;
  for (const auto& f : fs::directory_iterator(kForms)) out.push_back(f.path().filename().string());
  std::sort(out.begin(), out.end());
  return out;
}

/// The module `m` of a folder, as tests/oracle/stored_formats.py wrote it, and what its decoder made of it.
class StoredForm : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const std::string folder = kForms + "/" + GetParam();
    auto opened = Checkpoint::open(folder);
    ASSERT_TRUE(opened.ok()) << opened.error().text;
    checkpoint_ = *std::move(opened);
    auto config = parse_json_object(test::read_file(folder + "/config.json"), "config.json");
    ASSERT_TRUE(config.ok());
    auto quant = read_quant(Fields(*config, "config.json"));
    ASSERT_TRUE(quant.ok()) << quant.error().text;
    quant_ = *quant;
    const auto* expected = checkpoint_.find("expected");
    ASSERT_NE(expected, nullptr);
    rows_ = static_cast<std::uint32_t>(expected->info->shape[0]);
    cols_ = static_cast<std::uint32_t>(expected->info->shape[1]);
    expected_.resize(std::size_t{rows_} * cols_);
    ASSERT_TRUE(
        checkpoint_
            .read(*expected, 0, {reinterpret_cast<std::uint8_t*>(expected_.data()), expected_.size() * 4})
            .ok());
    for (const auto& e : checkpoint_.entries())
      if (e.info->name != "expected") parts_[split_name(e.info->name).kind] = &e;
    auto matched = match_storage(checkpoint_, quant_, parts_, rows_, cols_);
    ASSERT_TRUE(matched.ok()) << matched.error().text;
    matrix_ = *matched;
  }

  float expected(std::uint32_t r, std::uint32_t c) const { return expected_[std::size_t{r} * cols_ + c]; }

  Checkpoint checkpoint_;
  QuantConfig quant_;
  ModuleParts parts_;
  StoredMatrix matrix_;
  std::uint32_t rows_ = 0, cols_ = 0;
  std::vector<float> expected_;
};

TEST_P(StoredForm, DecodesToTheExactNumbers) {
  MatrixReader reader(checkpoint_);
  for (const std::uint32_t first : {0u, 3u, 16u}) {
    std::vector<float> out(std::size_t{rows_ - first} * cols_);
    const auto read = reader.floats(matrix_, first, rows_ - first, out.data());
    ASSERT_TRUE(read.ok()) << read.error().text;
    for (std::size_t i = 0; i < out.size(); ++i)
      ASSERT_EQ(out[i], expected_[std::size_t{first} * cols_ + i]) << first << " " << i;
  }
}

TEST_P(StoredForm, KeepsEveryNumberInTheTileLayout) {
  MatrixReader reader(checkpoint_);
  kernels::WeightView w;
  w.format = matrix_.native();
  w.rows = rows_;
  w.cols = cols_;
  w.group = matrix_.group;
  const std::uint32_t groups = kernels::groups_of(cols_, w.group);
  std::vector<std::uint8_t> codes(rows_ * kernels::row_bytes(w.format, cols_));
  std::vector<std::uint8_t> scales(std::size_t{kernels::scale_rows(w.format, rows_)} * groups *
                                   kernels::traits_of(w.format).scale_bytes);
  const auto read = reader.rows(matrix_, 0, rows_, codes, scales);
  ASSERT_TRUE(read.ok()) << read.error().text;
  std::vector<std::uint8_t> code_plane(kernels::codes_bytes(w.format, rows_, cols_));
  std::vector<std::uint8_t> scale_plane(kernels::scales_bytes(w.format, rows_, cols_, w.group));
  kernels::tile_codes(w.format, rows_, cols_, codes.data(), code_plane.data());
  kernels::tile_scales(w.format, rows_, groups, scales.data(), scale_plane.data());
  w.codes = code_plane.data();
  w.scales = scale_plane.data();
  std::vector<std::uint32_t> order;
  ASSERT_TRUE(reader.order(matrix_, order).ok());
  std::vector<float> row(cols_);
  for (std::uint32_t r = 0; r < rows_; ++r) {
    kernels::gather_row(w, r, row.data());
    for (std::uint32_t c = 0; c < cols_; ++c) ASSERT_EQ(row[c], expected(r, order[c])) << r << " " << c;
  }
}

TEST_P(StoredForm, LacksNoPart) {
  // Without any one of its tensors, the matrix is not what it was; the error names one.
  for (std::size_t k = 0; k < parts_.of.size(); ++k) {
    const auto kind = static_cast<TensorName::Kind>(k);
    if (parts_[kind] == nullptr || kind == TensorName::Kind::kShape) continue;
    if (kind == TensorName::Kind::kGroupIndex && !quant_.act_order) continue;
    ModuleParts fewer = parts_;
    fewer[kind] = nullptr;
    const auto matched = match_storage(checkpoint_, quant_, fewer, rows_, cols_);
    ASSERT_FALSE(matched.ok()) << k;
    EXPECT_FALSE(matched.error().text.empty());
  }
  EXPECT_FALSE(match_storage(checkpoint_, quant_, parts_, rows_ + 8, cols_).ok());
  EXPECT_FALSE(match_storage(checkpoint_, quant_, parts_, rows_, cols_ + 256).ok());
  EXPECT_FALSE(match_storage(checkpoint_, QuantConfig{}, parts_, rows_, cols_).ok());
}

INSTANTIATE_TEST_SUITE_P(Forms, StoredForm, testing::ValuesIn(form_names()),
                         [](const auto& form) { return form.param; });

TEST(StoredForms, DamageIsNamed) {
  test::TempFolder temp;
  const auto copy = [&](const std::string& form, const std::string& tensor, std::size_t at,
                        std::uint8_t byte) {
    const std::string to = temp.path(form);
    fs::remove_all(to);
    fs::copy(kForms + "/" + form, to);
    const auto c = Checkpoint::open(to);
    const auto file = SafetensorsFile::open(to + "/model.safetensors");
    std::string bytes = test::read_file(to + "/model.safetensors");
    bytes[file->header().data_offset + c->find(tensor)->info->offset + at] = static_cast<char>(byte);
    test::write_file(to + "/model.safetensors", bytes);
    auto damaged = Checkpoint::open(to);
    EXPECT_TRUE(damaged.ok());
    QuantConfig quant;
    ModuleParts parts;
    auto config = parse_json_object(test::read_file(to + "/config.json"), "config.json");
    quant = *read_quant(Fields(*config, "config.json"));
    for (const auto& e : damaged->entries())
      if (e.info->name != "expected") parts[split_name(e.info->name).kind] = &e;
    const auto& shape = damaged->find("expected")->info->shape;
    const auto rows = static_cast<std::uint32_t>(shape[0]), cols = static_cast<std::uint32_t>(shape[1]);
    const auto m = match_storage(*damaged, quant, parts, rows, cols);
    EXPECT_TRUE(m.ok());
    std::vector<float> out(std::size_t{rows} * cols);
    const auto read = MatrixReader(*damaged).floats(*m, 0, rows, out.data());
    return read.ok() ? std::string() : read.error().text;
  };
  EXPECT_NE(copy("fp8", "m.weight", 137, 0x7f).find("m.weight: element 137 is NaN"), std::string::npos);
  EXPECT_NE(copy("fp8", "m.weight", 0, 0xff).find("m.weight: element 0 is NaN"), std::string::npos);
  EXPECT_NE(copy("fp8_e8m0_scales", "m.weight_scale_inv", 1, 0xff).find("element 1 is NaN, infinite"),
            std::string::npos);
  EXPECT_NE(copy("gptq_act_order", "m.g_idx", 0, 99).find("m.g_idx: column"), std::string::npos);
  EXPECT_NE(copy("fp8_e8m0_scales", "m.weight_scale_inv", 0, 254).find("so large that weights are infinite"),
            std::string::npos);
  EXPECT_NE(copy("gptq", "m.g_idx", 4, 1).find("desc_act is false"), std::string::npos);
  EXPECT_NE(copy("awq", "m.scales", 5, 0x7e).find("m.scales: element 2 is NaN, infinite"), std::string::npos);
  EXPECT_EQ(copy("awq", "m.scales", 5, 0x30), "");
}

TEST(Rounding, NumbersThatAFormatHoldsStay) {
  // Every finite f16 and bf16, through f32 and back.
  for (const WeightFormat f : {WeightFormat::kF16, WeightFormat::kBf16}) {
    const std::uint16_t exponent = f == WeightFormat::kF16 ? 0x7c00 : 0x7f80;
    RoundingError cost;
    for (std::uint32_t bits = 0; bits < 65536; ++bits) {
      const auto half = static_cast<std::uint16_t>(bits);
      if ((half & exponent) == exponent) continue;
      std::uint8_t raw[4] = {}, out[4] = {};
      std::memcpy(raw, &half, 2);
      const float value = kernels::plain_to_float(f, raw);
      encode_rows(f, &value, 1, 1, out, {}, cost);
      ASSERT_EQ(std::memcmp(raw, out, 2), 0) << bits;
    }
    EXPECT_EQ(cost.share(), 0.0);
  }
}

TEST(Rounding, ToTheNearestWithTiesToEven) {
  const auto to = [](WeightFormat f, float x) {
    std::uint8_t out[4] = {};
    RoundingError cost;
    encode_rows(f, &x, 1, 1, out, {}, cost);
    return kernels::plain_to_float(f, out);
  };
  EXPECT_EQ(to(WeightFormat::kF16, 1.0f + 0x1p-11f), 1.0f);
  EXPECT_EQ(to(WeightFormat::kF16, 1.0f + 0x1.8p-10f), 1.0f + 0x1p-9f);
  EXPECT_EQ(to(WeightFormat::kF16, 0x1.8p-24f), 0x1p-23f);
  EXPECT_EQ(to(WeightFormat::kF16, -70000.0f), -65504.0f);
  EXPECT_EQ(to(WeightFormat::kBf16, 1.0f + 0x1p-8f), 1.0f);
  EXPECT_EQ(to(WeightFormat::kBf16, 1.0f + 0x1.8p-7f), 1.0f + 0x1p-6f);
}

TEST(Rounding, BytesAreWithinHalfAStep) {
  std::vector<float> weights(std::size_t{3} * 45);
  std::uint32_t state = 9;
  for (float& w : weights) {
    state = state * 1664525u + 1013904223u;
    w = static_cast<float>(static_cast<std::int32_t>(state)) * 0x1p-33f;
  }
  std::vector<std::uint8_t> codes(weights.size()), scales(std::size_t{3} * 2 * 2);
  RoundingError cost;
  encode_rows(WeightFormat::kInt8, weights.data(), 3, 45, codes, scales, cost);
  double error = 0.0;
  for (std::size_t r = 0; r < 3; ++r)
    for (std::size_t c = 0; c < 45; ++c) {
      const float scale = kernels::plain_to_float(WeightFormat::kBf16, scales.data() + (r * 2 + c / 32) * 2);
      const float value = static_cast<float>(static_cast<std::int8_t>(codes[r * 45 + c])) * scale;
      const float off = std::abs(value - weights[r * 45 + c]);
      EXPECT_LE(off, scale * 0.75f);  // the largest may lie past the end by what bf16 took from the scale
      error += static_cast<double>(off) * static_cast<double>(off);
    }
  EXPECT_NEAR(cost.squared_error, error, error * 1e-3);
  EXPECT_LT(cost.share(), 0.01);
}

TEST(Targets, EveryFormBecomesEveryOther) {
  test::TempFolder temp;
  std::size_t made = 0;
  for (const std::string name :
       {"untied_bf16", "deepseek_v3_fp8", "deepseek_v32_fp8", "mixtral_gptq_act_order"}) {
    const std::string source = test::oracle_checkpoint(temp, name);
    for (const auto experts : {WeightFormat::kBf16, WeightFormat::kInt8, WeightFormat::kInt4}) {
      if (experts == WeightFormat::kInt4 && name == "mixtral_gptq_act_order") continue;
      for (const auto dense : {WeightFormat::kBf16, WeightFormat::kInt8}) {
        const std::string to = temp.path("out" + std::to_string(made++));
        const auto estimated = estimate(source, {experts, dense});
        ASSERT_TRUE(estimated.ok()) << estimated.error().text;
        const auto report = convert({source, to, false, {}, {experts, dense}}, {});
        ASSERT_TRUE(report.ok()) << report.error().text;
        EXPECT_EQ(report->bytes, estimated->bytes);
        const auto m = load_manifest(to);
        ASSERT_TRUE(m.ok()) << m.error().text;
        EXPECT_EQ(m->spec.expert.gate.format, experts);
        EXPECT_EQ(m->dense.at("embed").format, dense);
        EXPECT_FALSE(kernels::is_coded(m->dense.at("layers.1.router").format));
        EXPECT_FALSE(kernels::is_coded(m->dense.at("layers.1.attn_norm").format));
        EXPECT_EQ(m->spec.ordered_width, 0u);
        const auto sound = verify(to, {});
        ASSERT_TRUE(sound.ok());
        EXPECT_EQ(sound->bad_count, 0u);
      }
    }
  }
  EXPECT_EQ(made, 22u);
}

}  // namespace
}  // namespace wisp::model
