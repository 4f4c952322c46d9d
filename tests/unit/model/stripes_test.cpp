#include "model/stripes.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "base/fd.hpp"
#include "expect_error.hpp"
#include "model/stripe_files.hpp"
#include "model/synth.hpp"
#include "model/verify.hpp"
#include "tiny_checkpoint.hpp"

namespace wisp::model {
namespace {

namespace fs = std::filesystem;
using test::expect_error;

/// A small random model: 2 layers of 4 experts.
class StripesTest : public testing::Test {
 protected:
  void SetUp() override { manifest_ = make(folder_, 1); }

  Manifest make(const std::string& folder, std::uint64_t seed) {
    SynthOptions o;
    o.destination = folder;
    o.like = "pocket";
    o.layers = 2;
    o.hidden = 64;
    o.heads = 2;
    o.kv_heads = 1;
    o.head_dim = 32;
    o.experts = 4;
    o.top_k = 2;
    o.width = 96;
    o.vocab = 64;
    o.max_positions = 64;
    o.expert_format = "bf16";
    o.seed = seed;
    const auto made = synth(o, {});
    EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().text);
    auto m = load_manifest(folder);
    EXPECT_TRUE(m.ok());
    return std::move(m.value());
  }
  std::string bytes_of(const std::string& path, std::uint64_t at, std::uint64_t n) const {
    return test::read_file(path).substr(at, n);
  }
  Status divide(const std::vector<std::string>& to, const std::vector<double>& shares = {}) {
    return make_stripes(folder_, manifest_, to, shares, {});
  }

  test::TempFolder temp_;
  std::string folder_ = temp_.path("model"), b_ = temp_.path("b"), c_ = temp_.path("c");
  Manifest manifest_;
};

TEST_F(StripesTest, PartsPutTogetherAreTheExpert) {
  ASSERT_TRUE(divide({b_, c_}, {1, 1, 2}).ok());
  const auto stripes = load_stripes(folder_, manifest_);
  ASSERT_TRUE(stripes.ok()) << stripes.error().text;
  ASSERT_EQ(stripes->size(), 2u);
  const std::uint64_t stride = manifest_.spec.expert.stride;
  EXPECT_EQ((*stripes)[1].end, stride);
  for (std::uint32_t l = 0; l < 2; ++l)
    for (std::uint32_t e = 0; e < 4; ++e) {
      const std::string main = folder_ + "/" + manifest_.experts[l].file;
      const std::uint64_t at = manifest_.experts[l].extents[e].offset;
      std::string all = bytes_of(main, at, stripes->front().begin);
      for (const Stripe& s : *stripes)
        all += bytes_of(s.folder + "/" + s.files[l], s.offset_of(e), s.bytes());
      EXPECT_EQ(all, bytes_of(main, at, stride)) << "layer " << l << " expert " << e;
    }
}

TEST_F(StripesTest, VerifyReadsThem) {
  ASSERT_TRUE(divide({b_}).ok());
  auto report = verify(folder_, {});
  ASSERT_TRUE(report.ok()) << report.error().text;
  EXPECT_EQ(report->stripes, 1u);
  EXPECT_EQ(report->bad_count, 0u);
  const auto stripes = load_stripes(folder_, manifest_);
  ASSERT_TRUE(stripes.ok());
  const std::string file = b_ + "/" + stripes->front().files[1];
  std::fstream f(file, std::ios::in | std::ios::out | std::ios::binary);
  f.seekp(static_cast<std::streamoff>(stripes->front().offset_of(2) + 5));
  const char old = bytes_of(file, stripes->front().offset_of(2) + 5, 1)[0];
  f.put(static_cast<char>(old ^ 1));
  f.close();
  report = verify(folder_, {});
  ASSERT_TRUE(report.ok());
  ASSERT_EQ(report->bad_count, 1u);
  EXPECT_EQ(report->bad[0].what, "stripe of layer 1 expert 2");
  EXPECT_EQ(report->bad[0].file, file);
}

TEST_F(StripesTest, MissingOnesAreRefusedByName) {
  ASSERT_TRUE(divide({b_, c_}).ok());
  fs::rename(c_, c_ + "-away");
  expect_error(load_stripes(folder_, manifest_), {c_, "wisp stripe", "--at", "--drop"});
  expect_error(move_stripes(folder_, manifest_, {b_}), {"stripe 3 of 3", "is not among the folders"});
  expect_error(move_stripes(folder_, manifest_, {b_, b_}), {b_, "both stripe 2 of 3"});
  const Status moved = move_stripes(folder_, manifest_, {c_ + "-away", b_});
  ASSERT_TRUE(moved.ok()) << moved.error().text;
  EXPECT_TRUE(load_stripes(folder_, manifest_).ok()) << "in any order";
  ASSERT_TRUE(drop_stripes(folder_).ok());
  EXPECT_TRUE(load_stripes(folder_, manifest_)->empty());
}

TEST_F(StripesTest, MixedUpOnesAreRefusedByName) {
  const std::string other = temp_.path("other");
  const Manifest m2 = make(other, 2);
  ASSERT_TRUE(make_stripes(other, m2, {c_}, {}, {}).ok());
  ASSERT_TRUE(divide({b_}).ok());
  expect_error(move_stripes(folder_, manifest_, {c_}), {c_, "another model"});
  const std::string d = temp_.path("d"), e = temp_.path("e"), g = temp_.path("g");
  ASSERT_TRUE(divide({d, e}).ok());
  ASSERT_TRUE(divide({temp_.path("f"), g}).ok());
  expect_error(move_stripes(folder_, manifest_, {d, g}), {"two divisions"});
  const auto stripes = load_stripes(folder_, manifest_);
  ASSERT_TRUE(stripes.ok());
  const std::string file = (*stripes)[1].folder + "/" + (*stripes)[1].files[0];
  fs::resize_file(file, fs::file_size(file) - 1);
  expect_error(load_stripes(folder_, manifest_), {file, "needs"});
  fs::remove(file);
  expect_error(load_stripes(folder_, manifest_), {file, "not whole"});
}

TEST_F(StripesTest, DestinationsAndSharesAreChecked) {
  fs::create_directory(b_);
  expect_error(divide({b_}), {b_, "exists"});
  expect_error(divide({folder_ + "/stripe"}), {folder_ + "/stripe", "inside the model folder"});
  expect_error(divide({c_, c_}), {"twice"});
  expect_error(divide({c_}, {1}), {"--shares needs 2"});
  expect_error(divide({c_}, {1, 0}), {"above 0"});
  expect_error(divide({}), {"--to"});
  EXPECT_FALSE(fs::exists(c_)) << "nothing stays";
  EXPECT_TRUE(load_stripes(folder_, manifest_)->empty());
}

TEST_F(StripesTest, ABadExpertIsNotDivided) {
  const std::string file = folder_ + "/" + manifest_.experts[0].file;
  std::fstream f(file, std::ios::in | std::ios::out | std::ios::binary);
  f.seekp(static_cast<std::streamoff>(manifest_.experts[0].extents[3].offset));
  f.put('\x55').put('\x33');
  f.close();
  expect_error(divide({b_}), {file, "checksum", "wisp verify"});
  EXPECT_FALSE(fs::exists(b_));
  for (const auto& entry : fs::directory_iterator(temp_.path("")))
    EXPECT_EQ(entry.path().string().find("partial"), std::string::npos) << entry.path();
}

TEST_F(StripesTest, WhatAKilledRunLeftIsRemovedAndNothingElse) {
  const auto make = [&](const std::string& number, const std::string& file) {
    fs::create_directory(b_ + ".partial-" + number);
    std::ofstream(b_ + ".partial-" + number + "/" + file) << "x";
  };
  make("1", "experts-00000.stripe-2");
  make("2", "experts-00000.stripe-2");  // its writer lives
  make("3", "thesis.tex");
  make("3x", "experts-00000.stripe-2");
  const Fd lock(::open((b_ + ".partial-2").c_str(), O_RDONLY | O_DIRECTORY));
  ASSERT_EQ(::flock(lock.get(), LOCK_EX | LOCK_NB), 0);
  ASSERT_TRUE(divide({b_}).ok());
  EXPECT_FALSE(fs::exists(b_ + ".partial-1"));
  for (const char* kept : {"2", "3", "3x"}) EXPECT_TRUE(fs::exists(b_ + ".partial-" + kept)) << kept;
}

TEST_F(StripesTest, HostileFilesAreRefused) {
  ASSERT_TRUE(divide({b_}).ok());
  const std::string text = test::read_file(b_ + "/" + kStripeFile);
  ASSERT_TRUE(parse_stripe(text, b_).ok());
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    const auto at = changed.find(from);
    EXPECT_NE(at, changed.npos);
    return changed.replace(at, from.size(), to);
  };
  expect_error(parse_stripe(with("experts-", "../experts-"), b_), {"not a file name"});
  expect_error(parse_stripe(with("\"parts\": 2", "\"parts\": 99"), b_), {"parts"});
  expect_error(parse_stripe(with("\"part\": 1", "\"part\": 2"), b_), {"part"});
  expect_error(parse_stripe(with("\"begin\": ", "\"begin\": 1"), b_), {b_});
  expect_error(parse_stripe(with("\"stripe_version\": 1", "\"stripe_version\": 2"), b_),
               {"stripe_version 2"});
  expect_error(parse_stripe(with("\"checksums\": \"", "\"checksums\": \"z"), b_), {"checksums"});
}

TEST(CutExtent, CoversEveryBlockOnce) {
  std::mt19937 rng(11);
  for (int i = 0; i < 2000; ++i) {
    const std::uint64_t blocks = 1 + rng() % 300;
    std::vector<double> shares(1 + rng() % 8);
    for (double& s : shares) s = 0.01 + static_cast<double>(rng() % 1000);
    const auto cuts = cut_extent(blocks * 4096, shares);
    ASSERT_EQ(cuts.ok(), shares.size() <= blocks);
    if (!cuts.ok()) continue;
    ASSERT_EQ(cuts->size(), shares.size() + 1);
    ASSERT_EQ(cuts->front(), 0u);
    ASSERT_EQ(cuts->back(), blocks * 4096);
    for (std::size_t k = 1; k < cuts->size(); ++k) {
      ASSERT_GT((*cuts)[k], (*cuts)[k - 1]);
      ASSERT_EQ((*cuts)[k] % 4096, 0u);
    }
  }
  const auto half = cut_extent(10 * 4096, {1, 1});
  ASSERT_TRUE(half.ok());
  EXPECT_EQ((*half)[1], 5u * 4096);
}

}  // namespace
}  // namespace wisp::model
