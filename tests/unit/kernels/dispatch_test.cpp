#include <algorithm>
#include <set>

#include "support.hpp"
#include "wisp/kernels/canon.hpp"

namespace wisp::kernels::test {
namespace {

TEST(Dispatch, TablesAreWhatTheyAreAskedFor) {
  EXPECT_EQ(all_kernels().front(), &ref_kernels());
  EXPECT_NE(std::ranges::find(all_kernels(), &best_kernels()), all_kernels().end());
  std::set<std::string_view> names;
  for (const Kernels* k : all_kernels()) names.insert(name_of(k->isa));
  EXPECT_EQ(names.size(), all_kernels().size());
}

TEST(Dispatch, ATableCanBeAskedForByEnvironment) {
  // The choice is made once in a process, so a process of its own makes it here.
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (const Kernels* k : all_kernels())
    EXPECT_EXIT(
        {
          setenv("WISP_ISA", std::string(name_of(k->isa)).c_str(), 1);
          std::exit(&best_kernels() == k ? 0 : 1);
        },
        ::testing::ExitedWithCode(0), "");
}

TEST(Dispatch, AnUnknownNameIsRefusedWithThoseThatRun) {
  const char* const before = std::getenv("WISP_ISA");
  const std::string kept = before != nullptr ? before : "";
  setenv("WISP_ISA", "nonsense", 1);
  const std::string refusal = isa_refusal();
  EXPECT_NE(refusal.find("nonsense"), std::string::npos);
  for (const Kernels* k : all_kernels()) {
    EXPECT_NE(refusal.find(name_of(k->isa)), std::string::npos) << refusal;
    setenv("WISP_ISA", std::string(name_of(k->isa)).c_str(), 1);
    EXPECT_EQ(isa_refusal(), "");
  }
  unsetenv("WISP_ISA");
  EXPECT_EQ(isa_refusal(), "");
  if (before != nullptr) setenv("WISP_ISA", kept.c_str(), 1);
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
