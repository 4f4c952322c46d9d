#include <gtest/gtest.h>

#include "../counted_new.hpp"
#include "../page_faults.hpp"
#include "draft_fixture.hpp"
#include "services/speculator/draft_head.hpp"

/// What a draft costs beside arithmetic: nothing. No allocation, and no page touched for the first time.

namespace wisp::speculator {
namespace {

using testing::kData;
using wisp::testing::allocations;
using wisp::testing::fewest_faults;
using wisp::testing::page_faults;

/// Two rounds, neither of which allocates; the faults of the second. The heap's own pages are touched by the
/// first use of each buffer.
std::uint64_t faults_of(FunctionRef<std::uint32_t()> round) {
  const std::uint64_t allocated = allocations();
  EXPECT_GT(round(), 50u);
  EXPECT_EQ(allocations() - allocated, 0u);
  const std::uint64_t faulted = page_faults();
  EXPECT_GT(round(), 50u);
  EXPECT_EQ(allocations() - allocated, 0u);
  return page_faults() - faulted;
}

class DraftAllocations : public ::testing::TestWithParam<const char*> {};

TEST_P(DraftAllocations, NoneAfterItIsOpen) {
  const auto m = testing::LoadedModel::convert(kData + GetParam());
  const auto a = testing::some_ids(150, m->manifest.spec.vocab),
             b = testing::some_ids(60, m->manifest.spec.vocab, 3);
  std::vector<std::uint32_t> out(ring::kMostDrafted);
  EXPECT_EQ(fewest_faults([&] {
              // The pool is short for two sequences and a place that nobody forgot: pages change hands.
              const auto draft = testing::open_draft(testing::plan_of(*m, 192));
              return faults_of([&] {
                std::uint32_t proposals = 0;
                for (std::uint32_t place = 0; place < 3; ++place)
                  for (std::uint32_t length = 40; length <= 60; ++length) {
                    proposals += draft->propose(place, 1, std::span(b).first(length), out);
                    static_cast<void>(draft->propose(place, 1, std::span(a).first(2 * length),
                                                     std::span(out).first(length % 3)));
                  }
                draft->forget(1);
                return proposals;
              });
            }),
            0u);
}

/// The same of a model's own head, whatever rows it is fed with.
TEST(DraftHeadAllocations, NoneAfterItIsOpen) {
  for (const std::string name : {"deepseek_v3_published", "glm4_moe_published", "glm_moe_dsa_draft"}) {
    SCOPED_TRACE(name);
    const auto m = testing::LoadedModel::convert(kData + "/oracle/" + name);
    const auto a = testing::some_ids(150, m->manifest.spec.vocab),
               b = testing::some_ids(60, m->manifest.spec.vocab, 3);
    const std::size_t width = m->manifest.spec.hidden;
    std::vector<float> hidden(150 * width);
    for (std::size_t i = 0; i < hidden.size(); ++i) hidden[i] = static_cast<float>(i % 7) - 3.5f;
    std::vector<std::uint32_t> out(ring::kMostDrafted);
    EXPECT_EQ(fewest_faults([&] {
                auto opened = DraftHead::open(testing::plan_of(*m, 192));
                if (!opened.ok()) ADD_FAILURE() << opened.error().text;
                if (!opened.ok()) return ~std::uint64_t{0};
                DraftHead& head = **opened;
                const auto ask = [&](std::uint32_t place, std::span<const std::uint32_t> ids, std::size_t k) {
                  const std::uint32_t first = head.wants(place, ids);
                  const auto rows =
                      std::span(hidden).subspan(first * width, (ids.size() - 1 - first) * width);
                  return head.propose(place, ids, first, rows, std::span(out).first(k));
                };
                return faults_of([&] {
                  std::uint32_t proposals = 0;
                  for (std::uint32_t place = 0; place < 3; ++place)
                    for (std::uint32_t length = 40; length <= 60; ++length) {
                      proposals += ask(place, std::span(b).first(length), out.size());
                      static_cast<void>(ask(place, std::span(a).first(2 * length), length % 3));
                    }
                  head.forget(1);
                  return proposals;
                });
              }),
              0u);
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
