#include "services/speculator/draft_head.hpp"

#include <gtest/gtest.h>
#include <malloc.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "draft_head_fixture.hpp"

/// The head beside an independent computation in float64 (tests/oracle/draft_heads.py).
namespace wisp::speculator {
namespace {

using namespace head_testing;

class DraftHeads : public ::testing::TestWithParam<const char*> {
 protected:
  DraftHeads() : model(LoadedModel::convert(kData + "/oracle/" + GetParam())), oracle(GetParam()) {}
  std::span<const float> logits_at(std::size_t row) const {
    return std::span(oracle.logits).subspan(row * vocab(), vocab());
  }
  std::span<const std::uint32_t> first(std::size_t n) const { return std::span(oracle.ids).first(n); }
  std::size_t vocab() const { return model->manifest.spec.vocab; }

  std::unique_ptr<LoadedModel> model;
  Oracle oracle;
};

/// Token by token, with rows that stand from call to call; and each prefix by a head that has seen nothing.
TEST_P(DraftHeads, LogitsAtEveryPosition) {
  const auto plan = plan_of(*model);
  const auto grown = open_head(plan);
  float worst = 0;
  for (std::size_t n = 2; n <= oracle.ids.size(); ++n) {
    ASSERT_EQ(proposed(*grown, 3, first(n), oracle.hidden, 1).size(), 1u) << n;
    worst = std::max(worst, difference(grown->logits(), logits_at(n - 2)));
    const auto fresh = open_head(plan);
    ASSERT_EQ(proposed(*fresh, 0, first(n), oracle.hidden, 1).size(), 1u) << n;
    EXPECT_EQ(last_logits(*grown), last_logits(*fresh)) << n;
  }
  EXPECT_LE(worst, 1e-4f);
  EXPECT_EQ(grown->rows(), oracle.ids.size() - 1);
  RecordProperty("worst", std::to_string(worst));
}

TEST_P(DraftHeads, ChainsFromEveryLength) {
  const auto head = open_head(plan_of(*model));
  for (std::size_t i = 0; i < oracle.lengths.size(); ++i) {
    const auto want = std::span(oracle.chain_ids).subspan(i * 7, 7);
    // The longest last: the rows of a chain are none of the sequence's.
    for (std::uint32_t k = 1; k <= 7; ++k) {
      const Ids got = proposed(*head, 0, first(oracle.lengths[i]), oracle.hidden, k);
      ASSERT_EQ(got, Ids(want.begin(), want.begin() + k)) << oracle.lengths[i];
      const auto logits = std::span(oracle.chain_logits).subspan((i * 7 + k - 1) * vocab(), vocab());
      EXPECT_LE(difference(head->logits(), logits), 1e-4f) << oracle.lengths[i] << ", token " << k;
    }
  }
}

TEST_P(DraftHeads, EmbeddingAndOutputMatrixMayBeTheModels) {
  const auto plan = plan_of(*model);
  const auto own = open_head(plan), shared = open_head(plan, model->dense.data());
  EXPECT_GT(own->sizes().table_bytes, 2u * vocab() * model->manifest.spec.hidden);
  EXPECT_EQ(own->sizes().total() - shared->sizes().total(), own->sizes().table_bytes);
  EXPECT_EQ(proposed(*own, 0, first(20), oracle.hidden), proposed(*shared, 0, first(20), oracle.hidden));
  EXPECT_EQ(last_logits(*own), last_logits(*shared));
}

/// What the planner sets aside beside weights and pages covers what is taken from the heap.
TEST_P(DraftHeads, StaysWithinItsWorkingMemory) {
  for (const auto& plan : {plan_of(*model), plan_of(*model, 4096), plan_of(*model, 200, "f32", "fast")}) {
    const std::size_t before = mallinfo2().uordblks + mallinfo2().hblkhd;
    const auto head = open_head(plan);
    const std::size_t after = mallinfo2().uordblks + mallinfo2().hblkhd;
    EXPECT_LE(after - before, head->sizes().scratch_bytes) << plan.ctx;
  }
}

/// KV rows in bf16, weights and inputs in bytes: near, not equal, since a choice falls otherwise here and
/// there. Rows that have nothing to do with these would be off by 1.4.
TEST_P(DraftHeads, FollowsTheRunsFormats) {
  const auto rounded = LoadedModel::convert(kData + "/oracle/" + GetParam(),
                                            {kernels::WeightFormat::kInt4, kernels::WeightFormat::kInt8});
  for (const auto& plan :
       {plan_of(*model, 0, "bf16"), plan_of(*rounded), plan_of(*rounded, 0, "f32", "fast")}) {
    const auto head = open_head(plan);
    double off = 0, all = 0;
    for (std::size_t n = 2; n <= oracle.ids.size(); ++n) {
      ASSERT_EQ(proposed(*head, 0, first(n), oracle.hidden, 1).size(), 1u);
      const auto got = head->logits(), want = logits_at(n - 2);
      for (std::size_t i = 0; i < want.size(); ++i) {
        off += std::pow(got[i] - want[i], 2);
        all += std::pow(want[i], 2);
      }
    }
    EXPECT_LT(std::sqrt(off / all), .3) << plan.profile << " " << plan.options.kv;
    EXPECT_GT(std::sqrt(off / all), 1e-4) << plan.profile << " " << plan.options.kv;
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, DraftHeads,
                         ::testing::Values("deepseek_v3_published", "glm4_moe_published",
                                           "glm4_moe_lite_published", "glm_moe_dsa_draft"),
                         [](const auto& i) { return std::string(i.param); });

const LoadedModel& small() {
  static const auto m = LoadedModel::convert(kData + "/oracle/glm4_moe_published");
  return *m;
}
const Oracle& rows() {
  static const Oracle o("glm4_moe_published");
  return o;
}

/// A sequence that goes on after `length` ids with others, and rows of the model that go with it: other ones
/// from there on.
struct Branch {
  Ids ids;
  Rows hidden;
};
Branch branch(std::size_t length, std::uint32_t with) {
  Branch b{rows().ids, rows().hidden};
  const std::size_t width = b.hidden.size() / b.ids.size();
  for (std::size_t i = length; i < b.ids.size(); ++i)
    b.ids[i] = (b.ids[i] + with) % small().manifest.spec.vocab;
  for (std::size_t i = length * width; i < b.hidden.size(); ++i)
    b.hidden[i] = -b.hidden[i] + static_cast<float>(with);
  return b;
}

TEST(DraftHead, WrongGuessesAndOtherRequestsLeaveNoTrace) {
  const auto plan = plan_of(small());
  const auto head = open_head(plan);
  std::uint32_t with = 1;
  // Back within a page, to its end, to the first id, and on again.
  for (const std::size_t from : {63u, 40u, 33u, 32u, 31u, 17u, 16u, 50u, 2u, 1u, 0u, 60u}) {
    const Branch b = branch(from, with++);
    for (const std::size_t n : {std::max<std::size_t>(from, 2), std::size_t{20}, std::size_t{64}}) {
      const auto ids = std::span(b.ids).first(n);
      const auto fresh = open_head(plan);
      ASSERT_EQ(proposed(*head, 0, ids, b.hidden), proposed(*fresh, 0, ids, b.hidden)) << from << ", " << n;
      ASSERT_EQ(last_logits(*head), last_logits(*fresh)) << from << ", " << n;
    }
  }
}

/// Every row depends on the first id, and none is kept beside it.
TEST(DraftHead, AnotherFirstIdIsAnotherSequence) {
  const auto head = open_head(plan_of(small()));
  Branch b = branch(64, 0);
  proposed(*head, 0, b.ids, b.hidden);
  b.ids[0] ^= 1;
  EXPECT_EQ(head->wants(0, b.ids), 0u);
  const Branch other = branch(0, 5);
  EXPECT_EQ(proposed(*head, 0, b.ids, other.hidden),
            proposed(*open_head(plan_of(small())), 0, b.ids, other.hidden));
}

TEST(DraftHead, ComputesOnlyWhatItHasNotSeen) {
  const auto head = open_head(plan_of(small()));
  Ids all(rows().ids.begin(), rows().ids.begin() + 30);
  const Ids guess = proposed(*head, 0, all, rows().hidden, 3);
  EXPECT_EQ(head->rows(), 29u + 2u);
  all.insert(all.end(), guess.begin(), guess.begin() + 2);
  const auto ids = std::span(std::as_const(all));
  // Two tokens stood: the rows of the chain are computed anew, from the model's.
  EXPECT_EQ(head->wants(0, ids.first(32)), 29u);
  proposed(*head, 0, ids.first(32), rows().hidden, 3);
  EXPECT_EQ(head->rows(), 31u + 2u + 2u);
  // The same once more: the last row gives the token.
  EXPECT_EQ(head->wants(0, ids.first(32)), 30u);
  proposed(*head, 0, ids.first(32), rows().hidden, 1);
  EXPECT_EQ(head->rows(), 35u + 1u);
  head->forget(0);
  EXPECT_EQ(head->wants(0, ids.first(32)), 0u);
}

TEST(DraftHead, TwoPlacesInTurns) {
  const auto plan = plan_of(small());
  const auto head = open_head(plan), alone_a = open_head(plan), alone_b = open_head(plan);
  const Branch a = branch(64, 0), b = branch(0, 3);
  for (std::size_t n = 2; n <= 64; ++n)
    for (const auto& [place, from, alone] : {std::tuple{0u, &a, alone_a.get()}, {9u, &b, alone_b.get()}}) {
      const auto ids = std::span(from->ids).first(n);
      ASSERT_EQ(proposed(*head, place, ids, from->hidden), proposed(*alone, 0, ids, from->hidden)) << n;
      ASSERT_EQ(last_logits(*head), last_logits(*alone)) << n;
    }
}

/// A pool that is too short for all: the place that was asked about least recently is computed anew.
TEST(DraftHead, TakesPagesFromThePlaceThatWasAskedAboutLeastRecently) {
  const auto plan = plan_of(small(), 64);
  const auto head = open_head(plan);
  ASSERT_EQ(head->sizes().kv_pages, 6u);
  const auto ids = std::span(rows().ids);
  for (const std::uint32_t place : {0u, 1u, 0u, 2u}) proposed(*head, place, ids.first(30), rows().hidden);
  EXPECT_EQ(head->wants(0, ids.first(30)), 28u);
  EXPECT_EQ(head->wants(2, ids.first(30)), 28u);
  EXPECT_EQ(head->wants(1, ids.first(30)), 0u);
}

TEST(DraftHead, TakesRowsAsTheyCome) {
  const auto plan = plan_of(small());
  const auto head = open_head(plan), whole = open_head(plan);
  const Ids& ids = rows().ids;
  const std::size_t width = small().manifest.spec.hidden;
  const auto given = [&](std::uint32_t begin, std::uint32_t end) {
    return std::span(rows().hidden).subspan(begin * width, (end - begin) * width);
  };
  Ids out(7);
  // The model is in the middle of the prompt: these rows are used, and nothing is proposed.
  EXPECT_EQ(head->propose(0, ids, 0, given(0, 20), out), 0u);
  EXPECT_FALSE(head->has_more(0));
  EXPECT_EQ(head->wants(0, ids), 20u);
  EXPECT_EQ(head->propose(0, ids, 22, given(22, 63), out), 0u) << "two rows are missing";
  EXPECT_EQ(head->wants(0, ids), 20u);
  EXPECT_EQ(head->propose(0, ids, 10, given(10, 15), out), 0u) << "nothing new";
  EXPECT_EQ(head->propose(0, ids, 15, given(15, 63), {}), 0u) << "no room for a proposal: caught up";
  EXPECT_EQ(head->rows(), 63u);
  EXPECT_EQ(head->propose(0, ids, 62, given(62, 64), out), 7u)
      << "a row behind the last one's is not looked at";
  EXPECT_EQ(out, proposed(*whole, 0, ids, rows().hidden));
  EXPECT_EQ(last_logits(*head), last_logits(*whole));
  EXPECT_EQ(head->propose(0, ids, 63, given(63, 64), out), 0u) << "the last row is needed again";
}

TEST(DraftHead, CatchesUpInPieces) {
  const auto head = open_head(plan_of(small(), 160)), other = open_head(plan_of(small(), 160));
  ASSERT_EQ(head->sizes().rows, 64u);
  Ids ids;
  Rows hidden;
  while (ids.size() < 150) {
    ids.insert(ids.end(), rows().ids.begin(), rows().ids.begin() + 50);
    hidden.insert(hidden.end(), rows().hidden.begin(),
                  rows().hidden.begin() + 50 * small().manifest.spec.hidden);
  }
  Ids out(7);
  for (const std::uint32_t done : {64u, 128u}) {
    EXPECT_EQ(head->propose(0, ids, head->wants(0, ids), feed(*head, 0, ids, hidden).rows, out), 0u);
    EXPECT_TRUE(head->has_more(0));
    EXPECT_EQ(head->rows(), done);
  }
  EXPECT_EQ(proposed(*head, 0, ids, hidden), [&] {
    for (std::size_t n = 2; n < ids.size(); ++n) proposed(*other, 0, std::span(ids).first(n), hidden, 1);
    return proposed(*other, 0, ids, hidden);
  }());
  EXPECT_EQ(last_logits(*head), last_logits(*other));
}

TEST(DraftHead, SaysNothingWhereThereIsNothingToSay) {
  const auto head = open_head(plan_of(small(), 40));
  const Rows& hidden = rows().hidden;
  Ids ids(rows().ids.begin(), rows().ids.begin() + 34), out(7);
  const Ids before = proposed(*head, 0, ids, hidden);
  EXPECT_EQ(before.size(), 7u) << "the last one stands at the end of the context";
  for (std::size_t n = 35; n <= 40; ++n) {
    ids.push_back(3);
    EXPECT_EQ(proposed(*head, 0, ids, hidden).size(), 41 - n);
  }
  ids.push_back(3);
  EXPECT_EQ(head->propose(0, ids, 0, std::span(hidden).first(40 * head->spec().hidden), out), 0u);
  ids.resize(34);
  EXPECT_EQ(proposed(*head, 0, ids, hidden), before);
  for (const std::size_t n : {0u, 1u}) {
    EXPECT_EQ(head->wants(1, std::span(ids).first(n)), 0u);
    EXPECT_EQ(head->propose(1, std::span(ids).first(n), 0, hidden, out), 0u);
  }
  for (const std::uint32_t bad : {head->spec().vocab, ~0u})
    for (const std::size_t at : {0u, 12u, 33u}) {
      Ids wrong = ids;
      wrong[at] = bad;
      EXPECT_EQ(proposed(*head, 0, wrong, hidden).size(), 0u) << at;
      EXPECT_EQ(proposed(*head, 0, ids, hidden), before) << at;
    }
}

TEST(DraftHead, FoldersThatDoNotDoAreRefusedByName) {
  compute::testing::TempFolder copy;
  plan::RunPlan plan = plan_of(small());
  plan.options.model = (copy.path() / "model").string();
  std::filesystem::copy(small().path, plan.options.model, std::filesystem::copy_options::recursive);
  const auto error = [&] {
    const auto head = DraftHead::open(plan);
    return head.ok() ? "" : head.error().text;
  };
  const auto flip = [&](const std::string& file, std::uint64_t at) {
    std::fstream f(plan.options.model + "/" + file, std::ios::in | std::ios::out | std::ios::binary);
    f.seekg(static_cast<std::streamoff>(at));
    const char byte = static_cast<char>(f.get() ^ 1);
    f.seekp(static_cast<std::streamoff>(at));
    f.put(byte);
  };
  EXPECT_EQ(error(), "");
  const model::Manifest &m = small().manifest, &head = m.draft_head.front();
  const auto expect_damage = [&](const std::string& file, std::uint64_t at, const std::string& part) {
    flip(file, at);
    EXPECT_NE(error().find(file + ": " + part + " does not match its checksum"), std::string::npos)
        << error();
    flip(file, at);
  };
  expect_damage(head.dense_file, head.dense_file_offset + head.dense.at("join").offset, "tensor join");
  expect_damage(head.experts[0].file, head.experts[0].extents[3].offset, "expert 3");
  expect_damage(m.dense_file, m.dense_file_offset + m.dense.at("head").offset, "tensor head");
  EXPECT_EQ(error(), "");
  const auto none = LoadedModel::convert(kData + "/oracle/glm4_moe_groups");
  plan.options.model = none->path;
  EXPECT_NE(error().find("it has none"), std::string::npos) << error();
}

}  // namespace
}  // namespace wisp::speculator
