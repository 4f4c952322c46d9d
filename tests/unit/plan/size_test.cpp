#include <gtest/gtest.h>

#include "plan/run_plan.hpp"

namespace wisp::plan {
namespace {

TEST(Size, ParsesUnits) {
  EXPECT_EQ(*parse_size("4096"), 4096u);
  EXPECT_EQ(*parse_size("256M"), 256u << 20);
  EXPECT_EQ(*parse_size("8G"), std::uint64_t{8} << 30);
  EXPECT_EQ(*parse_size("8gb"), std::uint64_t{8} << 30);
  EXPECT_EQ(*parse_size("1.5GiB"), std::uint64_t{3} << 29);
  EXPECT_EQ(*parse_size("61.3 MiB"), 64277709u) << "rounded up";
  EXPECT_EQ(*parse_size("2T"), std::uint64_t{2} << 40);
  EXPECT_EQ(*parse_size("17B"), 17u);
}

TEST(Size, RefusesWhatIsNone) {
  for (const char* text : {"", "M", "-1", "1.5", "1.5B", "1..5M", ".5G", "5.M", "1X", "1Mx", "1e3", "0x10",
                           "12 34", "99999999999999999999", "17179869184G", "9999999999.5G", "nan", "inf"})
    EXPECT_FALSE(parse_size(text).ok()) << text;
}

TEST(Size, FormatsForPeople) {
  EXPECT_EQ(format_size(0), "0 B");
  EXPECT_EQ(format_size(512), "512 B");
  EXPECT_EQ(format_size(536870912), "512 MiB");
  EXPECT_EQ(format_size(64277709), "61.3 MiB");
  EXPECT_EQ(format_size(std::uint64_t{3} << 40), "3 TiB");
}

}  // namespace
}  // namespace wisp::plan
