#include <gtest/gtest.h>
#include <sys/resource.h>

#include "../counted_new.hpp"
#include "draft_fixture.hpp"

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

INSTANTIATE_TEST_SUITE_P(Models, DraftAllocations,
                         ::testing::Values("/pocket-dictionary", "/oracle/dense_layers",
                                           "/oracle/deepseek_v3_published"),
                         [](const auto& i) {
                           const std::string name = i.param;
                           return name.ends_with("dictionary") ? "pocket" : name.substr(name.rfind('/') + 1);
                         });

}  // namespace
}  // namespace wisp::speculator
