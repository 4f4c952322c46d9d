#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <random>
#include <set>

#include "expect_error.hpp"
#include "model/synth.hpp"
#include "model/synth/route_plan.hpp"
#include "model/verify.hpp"
#include "synth_folder.hpp"
#include "tiny_checkpoint.hpp"

namespace wisp::model {
namespace {

namespace fs = std::filesystem;
using test::expect_error;
using test::Folder;
using trace::TokenRoutes;

const std::string kTrace = WISP_TEST_DATA "/traces/qwen-every-4th-layer.route.csv";

SynthOptions small(const std::string& to) {
  SynthOptions o;
  o.destination = to;
  o.layers = 3;
  o.hidden = 256;
  o.width = 64;
  o.top_k = 8;
  o.vocab = 150;
  o.heads = 4;
  o.kv_heads = 2;
  o.head_dim = 16;
  o.dense_format = "int4";
  o.routes = kTrace;
  o.route_tokens = 90;
  return o;
}

std::vector<std::uint32_t> best(const std::vector<double>& x, std::size_t n) {
  std::vector<std::uint32_t> order(x.size());
  for (std::uint32_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::stable_sort(order, [&](std::uint32_t a, std::uint32_t b) { return x[a] > x[b]; });
  order.resize(n);
  return order;
}

/// Columns in which a matrix's rows may leave something behind: those of attention and experts.
std::set<std::uint32_t> written(Folder& f, std::uint32_t layer) {
  std::set<std::uint32_t> out;
  const ModelSpec& spec = f.manifest.spec;
  const auto is_zero = [](const std::vector<float>& row) {
    return std::ranges::all_of(row, [](float x) { return x == 0.0f; });
  };
  for (std::uint32_t row = 0; row < spec.hidden; ++row)
    if (!is_zero(f.dense_row("layers." + std::to_string(layer) + ".attn.o", row)) ||
        !is_zero(f.expert_row(layer, 1, spec.expert.down, row)) ||
        !is_zero(f.expert_row(layer, spec.router.experts - 1, spec.expert.down, row)))
      out.insert(row);
  return out;
}

/// A row of the hidden state as it may be when it comes to a layer's router: the embedding, and anything at
/// all where blocks have written.
std::vector<double> state(Folder& f, std::uint32_t id, const std::set<std::uint32_t>& noisy,
                          std::mt19937& random) {
  std::normal_distribution<double> normal(0.0, 3.0);
  std::vector<double> x;
  for (const float v : f.dense_row("embed", id)) x.push_back(static_cast<double>(v));
  for (const std::uint32_t c : noisy) x[c] += normal(random);
  return x;
}

std::vector<double> normed(std::vector<double> x, const std::vector<float>& gain) {
  double sum = 0.0;
  for (const double v : x) sum += v * v;
  const double rms = std::sqrt(sum / static_cast<double>(x.size()));
  for (std::size_t i = 0; i < x.size(); ++i) x[i] *= static_cast<double>(gain[i]) / rms;
  return x;
}

std::vector<double> product(Folder& f, const std::string& matrix, const std::vector<double>& x) {
  std::vector<double> y;
  for (std::uint32_t row = 0; row < f.manifest.dense.at(matrix).rows; ++row) {
    double sum = 0.0;
    const auto w = f.dense_row(matrix, row);
    for (std::size_t i = 0; i < x.size(); ++i) sum += static_cast<double>(w[i]) * x[i];
    y.push_back(sum);
  }
  return y;
}

std::string in_layer(std::uint32_t layer, const char* name) {
  return "layers." + std::to_string(layer) + "." + name;
}

/// What the trace's own lines say of a token, by a reader that knows this file's form alone.
std::vector<std::uint32_t> given(std::uint32_t token, std::uint32_t layer) {
  static const std::string text = test::read_file(kTrace);
  std::vector<std::uint32_t> out;
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t end = text.find('\n', at);
    unsigned phase = 0, step = 0, l = 0, rank = 0, expert = 0;
    const std::string line = text.substr(at, end - at);
    at = end + 1;
    if (std::sscanf(line.c_str(), "0,%u,%u,%u,%u,%u,", &phase, &step, &l, &rank, &expert) == 5 &&
        step == token && l == layer)
      out.push_back(expert);
  }
  return out;
}

TEST(SynthRoutes, EveryFormatChoosesTheTracesExperts) {
  const std::uint32_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const std::array<std::pair<const char*, const char*>, 6> formats{{{"int4", "int4"},
                                                                    {"int8", "int8"},
                                                                    {"mxfp4", "mxfp4"},
                                                                    {"fp8", "fp8"},
                                                                    {"bf16", "bf16"},
                                                                    {"f32", "f32"}}};
  for (const auto& [experts, dense] : formats) {
    SCOPED_TRACE(experts);
    test::TempFolder temp;
    SynthOptions o = small(temp.path("m"));
    o.expert_format = experts;
    o.dense_format = dense;
    const auto made = synth(o, {});
    ASSERT_TRUE(made.ok()) << made.error().text;
    EXPECT_EQ(made->route_tokens, 90u);
    Folder f(o.destination);
    const std::array<std::set<std::uint32_t>, 3> by_layer{written(f, 0), written(f, 1), written(f, 2)};
    for (const std::uint32_t id : {0u, 1u, 40u, 89u, 90u, 149u}) {
      const std::uint32_t token = id % 90;
      std::set<std::uint32_t> noisy;
      std::vector<double> x;
      // Model layers 0, 1, 2 are 0, 6, 11 of the trace's 12.
      const std::array<std::uint32_t, 3> source{0, 6, 11};
      for (std::uint32_t layer = 0; layer < 3; ++layer) {
        ASSERT_FALSE(by_layer[layer].empty());
        noisy.insert(by_layer[layer].begin(), by_layer[layer].end());
        x = state(f, id, noisy, random);
        const auto logits =
            product(f, in_layer(layer, "router"), normed(x, f.dense_row(in_layer(layer, "ffn_norm"), 0)));
        auto chosen = best(logits, 8);
        const auto wanted = given(token, source[layer]);
        ASSERT_EQ(wanted.size(), 6u);
        // Nothing near: the last chosen one is far above the first that is not.
        const auto order = best(logits, 9);
        EXPECT_GT(logits[order[7]], 1.5 * std::abs(logits[order[8]]) + 0.01);
        EXPECT_EQ(std::set(chosen.begin(), chosen.end()).size(), 8u);
        chosen.resize(6);
        EXPECT_EQ(chosen, wanted) << "id " << id << " layer " << layer;
      }
      const auto said = product(f, "head", normed(x, f.dense_row("norm", 0)));
      EXPECT_EQ(best(said, 1)[0], (token + 1) % 90);
    }
    const auto verified = verify(o.destination, {});
    ASSERT_TRUE(verified.ok());
    EXPECT_EQ(verified->bad_count, 0u);
  }
}

TEST(SynthRoutes, TheSameOptionsGiveTheSameBytes) {
  test::TempFolder temp;
  std::set<std::uint64_t> hashes;
  int n = 0;
  const auto hash = [&](const auto& change) {
    SynthOptions o = small(temp.path(std::to_string(n++)));
    o.routes = kCalibrated;
    change(o);
    const auto made = synth(o, {});
    EXPECT_TRUE(made.ok()) << made.error().text;
    return load_manifest(o.destination)->model_hash;
  };
  EXPECT_EQ(hash([](auto&) {}), hash([](auto&) {}));
  hashes.insert(hash([](auto&) {}));
  hashes.insert(hash([](auto& o) { o.seed = 2; }));
  hashes.insert(hash([](auto& o) { o.route_tokens = 64; }));
  hashes.insert(hash([](auto& o) { o.routes = kTrace; }));
  hashes.insert(hash([](auto& o) { o.early_recall = 0.5; }));
  hashes.insert(hash([](auto& o) { o.routes.clear(), o.route_tokens = 0; }));
  EXPECT_EQ(hashes.size(), 6u);
}

TEST(SynthRoutes, ARouterIsRightOfAShareALayerEarly) {
  const std::uint32_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  test::TempFolder temp;
  SynthOptions o = small(temp.path("m"));
  o.early_recall = 0.75;
  ASSERT_TRUE(synth(o, {}).ok());
  Folder f(o.destination);
  std::set<std::uint32_t> noisy;
  for (const std::uint32_t layer : {0u, 1u, 2u}) noisy.merge(written(f, layer));
  int right = 0, all = 0;
  for (std::uint32_t id = 0; id < 60; ++id)
    for (const std::uint32_t layer : {0u, 1u}) {
      const auto x = state(f, id, noisy, random);
      const auto early = best(
          product(f, in_layer(layer + 1, "router"), normed(x, f.dense_row(in_layer(layer, "ffn_norm"), 0))),
          8);
      auto later = best(product(f, in_layer(layer + 1, "router"),
                                normed(x, f.dense_row(in_layer(layer + 1, "ffn_norm"), 0))),
                        8);
      for (const std::uint32_t e : early) right += std::ranges::count(later, e) > 0 ? 1 : 0;
      all += 8;
      later.resize(6);
      EXPECT_EQ(later, given(id, layer == 0 ? 6 : 11));
    }
  // 960 draws of 0.75: six deviations are 0.084.
  EXPECT_NEAR(static_cast<double>(right) / all, 0.75, 0.085);
}

/// Means over layers, by sets.
struct Repeats {
  double overlap(const TokenRoutes& r, std::uint32_t lag) const {
    double sum = 0;
    for (std::uint32_t l = 0; l < r.layers; ++l)
      for (std::uint32_t t = lag; t < r.tokens; ++t)
        for (const std::uint32_t e : r.of(t, l)) sum += std::ranges::count(r.of(t - lag, l), e) > 0 ? 1 : 0;
    return sum / (r.layers * (r.tokens - lag) * r.top_k);
  }
  double growth(const TokenRoutes& r, std::uint32_t run) const {
    double sum = 0;
    for (std::uint32_t l = 0; l < r.layers; ++l)
      for (std::uint32_t t = 0; t + run <= r.tokens; ++t) sum += distinct(r, l, t, run);
    return sum / (r.layers * (r.tokens - run + 1) * r.top_k);
  }
  double distinct(const TokenRoutes& r, std::uint32_t layer, std::uint32_t first, std::uint32_t run) const {
    std::set<std::uint32_t> seen;
    for (std::uint32_t t = first; t < first + run; ++t)
      seen.insert(r.of(t, layer).begin(), r.of(t, layer).end());
    return static_cast<double>(seen.size());
  }
};

TEST(SynthRoutes, CalibratedOnesRepeatAsRealOnes) {
  const std::uint32_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  const Repeats by_sets;
  for (const std::uint32_t top_k : {6u, 8u}) {
    SCOPED_TRACE("top " + std::to_string(top_k));
    const TokenRoutes r = calibrated_routes({48, 128, top_k}, 160, seed);
    const std::array<double, 4> overlap{0.38, 0.29, 0.28, 0.27};
    for (std::size_t i = 0; i < 4; ++i)
      EXPECT_NEAR(by_sets.overlap(r, 1u << i), overlap[i], 0.04) << "lag " << (1 << i);
    const std::array<double, 5> growth{1.62, 2.59, 3.93, 5.6, 7.1};
    for (std::size_t i = 0; i < 5; ++i)
      EXPECT_NEAR(by_sets.growth(r, 2u << i) / growth[i], 1.0, 0.09) << "run " << (2 << i);
    double touched = 0;
    for (std::uint32_t l = 0; l < 48; ++l) touched += by_sets.distinct(r, l, 0, 128) / 128 / 48;
    EXPECT_NEAR(touched, top_k == 6 ? 0.53 : 0.62, 0.06);
    // The first layer almost evenly, the last ones not.
    EXPECT_GT(by_sets.distinct(r, 0, 0, 128), 100);
    EXPECT_LT(by_sets.distinct(r, 47, 0, 128), 90);

    const trace::RouteStatistics s = trace::statistics_of(r);
    for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR(s.overlap[i], by_sets.overlap(r, s.kLags[i]), 1e-9);
    for (std::size_t i = 0; i < 5; ++i) EXPECT_NEAR(s.growth[i], by_sets.growth(r, s.kRuns[i]), 1e-9);
    EXPECT_NEAR(s.touched, touched, 1e-9);
    for (const auto& set : r.chosen) ASSERT_EQ(std::set(set.begin(), set.end()).size(), top_k);
  }
}

TEST(SynthRoutes, AnyShapeGetsItsSets) {
  for (const auto& [experts, top_k] : {std::pair{1u, 1u}, {8u, 8u}, {16u, 2u}, {300u, 127u}}) {
    const TokenRoutes r = calibrated_routes({2, experts, top_k}, 20, 7);
    for (const auto& set : r.chosen) {
      ASSERT_EQ(std::set(set.begin(), set.end()).size(), top_k);
      for (const std::uint32_t e : set) ASSERT_LT(e, experts);
    }
    for (const auto& set : forecast_of(r, 0.0, 1).chosen)
      ASSERT_EQ(std::set(set.begin(), set.end()).size(), top_k);
  }
}

TEST(SynthRoutes, WhatCannotFollowIsRefused) {
  test::TempFolder temp;
  const auto refused = [&](const auto& change, std::initializer_list<std::string> words) {
    SynthOptions o = small(temp.path("m"));
    change(o);
    expect_error(synth(o, {}), words);
  };
  const auto other = [](const char* like) {
    return [like](SynthOptions& o) {
      o = {};
      o.destination = "unused";
      o.like = like;
      o.routes = kCalibrated;
    };
  };
  refused(other("deepseek-v3"), {"--routes", "qwen3-30b", "softmax"});
  refused(other("glm-5.2"), {"--routes", "softmax"});
  refused(other("pocket"), {"--routes", "head is its embedding"});
  refused([](auto& o) { o.routes = "/nowhere"; }, {"/nowhere", "No such file"});
  refused([](auto& o) { o.experts = 64; }, {"128 experts", "has 64", "--experts 128"});
  refused([](auto& o) { o.layers = 13; }, {"12 layers", "13", "--layers 12"});
  refused([](auto& o) { o.route_tokens = 157; }, {"156 tokens", "157"});
  refused([](auto& o) { o.hidden = 96; }, {"at most 64 tokens, not 90", "--route-tokens"});
  refused([](auto& o) { o.early_recall = 0.5, o.route_tokens = 97; }, {"at most 96 tokens, not 97"});
  refused([](auto& o) { o.vocab = 80; }, {"at most 80 tokens, not 90"});
  refused([](auto& o) { o.routes.clear(); }, {"--route-tokens", "--routes"});
  EXPECT_TRUE(fs::is_empty(temp.path()));
}

}  // namespace
}  // namespace wisp::model
