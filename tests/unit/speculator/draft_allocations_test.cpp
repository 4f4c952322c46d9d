#include <gtest/gtest.h>
#include <sys/resource.h>

#include "../counted_new.hpp"
#include "draft_fixture.hpp"
#include "services/speculator/draft_head.hpp"

/// What a draft costs beside arithmetic: nothing. No allocation, and no page touched for the first time.

namespace wisp::speculator {
namespace {

using testing::kData;
using wisp::testing::allocations;

std::uint64_t faults() {
  rusage u{};
  ::getrusage(RUSAGE_SELF, &u);
  return static_cast<std::uint64_t>(u.ru_minflt + u.ru_majflt);
}

class DraftAllocations : public ::testing::TestWithParam<const char*> {};

TEST_P(DraftAllocations, NoneAfterItIsOpen) {
  const auto m = testing::LoadedModel::convert(kData + GetParam());
  // The pool is short for two sequences and a place that nobody forgot: pages change hands as well.
  const auto draft = testing::open_draft(testing::plan_of(*m, 192));
  const auto a = testing::some_ids(150, m->manifest.spec.vocab),
             b = testing::some_ids(60, m->manifest.spec.vocab, 3);
  std::vector<std::uint32_t> out(ring::kMostDrafted);
  std::uint32_t proposals = 0;
  const auto round = [&] {
    for (std::uint32_t place = 0; place < 3; ++place)
      for (std::uint32_t length = 40; length <= 60; ++length) {
        proposals += draft->propose(place, 1, std::span(b).first(length), out);
        static_cast<void>(
            draft->propose(place, 1, std::span(a).first(2 * length), std::span(out).first(length % 3)));
      }
    draft->forget(1);
  };
  const std::uint64_t allocated = allocations();
  round();
  EXPECT_EQ(allocations() - allocated, 0u);
  // The heap's own pages are touched by the first use of each buffer.
  const std::uint64_t faulted = faults();
  round();
  EXPECT_EQ(allocations() - allocated, 0u);
  EXPECT_EQ(faults() - faulted, 0u);
  EXPECT_GT(proposals, 100u);
}

/// The same of a model's own head, whatever rows it is fed with.
TEST(DraftHeadAllocations, NoneAfterItIsOpen) {
  for (const std::string name : {"deepseek_v3_published", "glm4_moe_published", "glm_moe_dsa_draft"}) {
    const auto m = testing::LoadedModel::convert(kData + "/oracle/" + name);
    auto opened = DraftHead::open(testing::plan_of(*m, 192));
    ASSERT_TRUE(opened.ok()) << opened.error().text;
    DraftHead& head = **opened;
    const auto a = testing::some_ids(150, m->manifest.spec.vocab),
               b = testing::some_ids(60, m->manifest.spec.vocab, 3);
    const std::size_t width = m->manifest.spec.hidden;
    std::vector<float> hidden(150 * width);
    for (std::size_t i = 0; i < hidden.size(); ++i) hidden[i] = static_cast<float>(i % 7) - 3.5f;
    std::vector<std::uint32_t> out(ring::kMostDrafted);
    std::uint32_t proposals = 0;
    const auto ask = [&](std::uint32_t place, std::span<const std::uint32_t> ids, std::size_t k) {
      const std::uint32_t first = head.wants(place, ids);
      const auto rows = std::span(hidden).subspan(first * width, (ids.size() - 1 - first) * width);
      return head.propose(place, ids, first, rows, std::span(out).first(k));
    };
    const auto round = [&] {
      for (std::uint32_t place = 0; place < 3; ++place)
        for (std::uint32_t length = 40; length <= 60; ++length) {
          proposals += ask(place, std::span(b).first(length), out.size());
          static_cast<void>(ask(place, std::span(a).first(2 * length), length % 3));
        }
      head.forget(1);
    };
    const std::uint64_t allocated = allocations();
    round();
    EXPECT_EQ(allocations() - allocated, 0u) << name;
    const std::uint64_t faulted = faults();
    round();
    EXPECT_EQ(allocations() - allocated, 0u) << name;
    EXPECT_EQ(faults() - faulted, 0u) << name;
    EXPECT_GT(proposals, 100u) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, DraftAllocations,
                         ::testing::Values("/pocket-dictionary", "/oracle/dense_layers",
                                           "/oracle/deepseek_v3_published"),
                         [](const auto& i) {
                           const std::string name = i.param;
                           return name.ends_with("dictionary") ? "pocket" : name.substr(name.rfind('/') + 1);
                         });

}  // namespace
}  // namespace wisp::speculator
