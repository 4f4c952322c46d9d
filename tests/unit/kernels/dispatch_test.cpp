#include "support.hpp"
#include "wisp/kernels/canon.hpp"

namespace wisp::kernels::test {
namespace {

TEST(Dispatch, TablesAreWhatTheyAreAskedFor) {
  EXPECT_EQ(kernels_for(Isa::kRef), &ref_kernels());
  EXPECT_EQ(ref_kernels().isa, Isa::kRef);
  EXPECT_EQ(name_of(Isa::kRef), "ref");
  EXPECT_EQ(name_of(Isa::kAvx2), "avx2");
  for (const Kernels* k : other_tables()) EXPECT_NE(k->isa, Isa::kRef);
  EXPECT_EQ(&best_kernels(), kernels_for(best_kernels().isa));
}

TEST(Dispatch, RefCanBeAskedForByEnvironment) {
  // The choice is made once in a process, so a process of its own makes it here.
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        setenv("WISP_ISA", "ref", 1);
        std::exit(best_kernels().isa == Isa::kRef ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST(Canon, NothingIsContracted) {
  // fl(fl(a c) - fl(b s)) is 0 here, while either fused form is not.
  const float a = 1.0f + 0x1p-12f;
  const float cosine[1] = {a};
  float x[2] = {a, a};
  const RopeTable table{.width = 2, .cos = cosine, .sin = cosine};
  apply_rope(x, table, 0, false);
  EXPECT_EQ(x[0], 0.0f);
  EXPECT_EQ(kCanonVersion, 1u);
}

}  // namespace
}  // namespace wisp::kernels::test
