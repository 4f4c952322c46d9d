#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <map>
#include <numeric>

#include "model/stripes.hpp"
#include "rig.hpp"

namespace wisp::loader {
namespace {

using ring::expert_key;
using ring::Kind;

/// The tiny model, divided over three folders.
class StripedStage : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const Status made =
        model::make_stripes(model_.folder(), model_.manifest(), {at("b"), at("c")}, {2, 1, 1}, {});
    ASSERT_TRUE(made.ok()) << made.error().text;
    auto loaded = model::load_stripes(model_.folder(), model_.manifest());
    ASSERT_TRUE(loaded.ok()) << loaded.error().text;
    stripes_ = std::move(*loaded);
  }
  std::string at(const std::string& name) const { return dir_.path + "/" + name; }
  static void flip(const std::string& path, std::uint64_t offset) {
    const Fd file(::open(path.c_str(), O_RDWR));
    char byte = 0;
    ASSERT_EQ(::pread(file.get(), &byte, 1, static_cast<off_t>(offset)), 1);
    byte = static_cast<char>(byte ^ 0x10);
    ASSERT_EQ(::pwrite(file.get(), &byte, 1, static_cast<off_t>(offset)), 1);
    ASSERT_EQ(::fsync(file.get()), 0);
  }

  TinyModel model_;
  ScratchDir dir_;
  std::vector<model::Stripe> stripes_;
};

TEST_P(StripedStage, EveryExpertIsPutTogether) {
  // What the stripes hold is read from them: here it is damaged in the model folder.
  for (std::uint32_t l = 0; l < 3; ++l)
    for (const auto& x : model_.manifest().experts[l].extents)
      flip(model_.expert_file(l), x.offset + stripes_.front().begin);
  std::vector<std::uint32_t> all(16);
  std::iota(all.begin(), all.end(), 0u);
  Rig rig(model_, 8, GetParam());
  ASSERT_TRUE(rig.start().ok());
  for (std::uint32_t layer = 0; layer < 3; ++layer) {
    std::map<std::uint32_t, int> answers;
    rig.touch(layer, all);
    ASSERT_TRUE(rig.until([&] {
      for (const Seen& s : rig.take(true)) {
        EXPECT_EQ(s.kind, Kind::kSlotReady) << s.text;
        EXPECT_TRUE(rig.intact(s.slot));
        ++answers[s.key];
        rig.release(s.slot);
      }
      return answers.size() == 16;
    }));
  }
  EXPECT_EQ(rig.count(stats::Counter::kReads), 48u);
  EXPECT_EQ(rig.count(stats::Counter::kExpertBytesRead), 48 * rig.at().plan.stride);
}

TEST_P(StripedStage, ADamagedStripeFailsItsExpertAndIsNamed) {
  flip(stripes_[1].folder + "/" + stripes_[1].files[1], stripes_[1].offset_of(4) + 7);
  Rig rig(model_, 4, GetParam());
  ASSERT_TRUE(rig.start().ok());
  rig.touch(1, {3, 4, 5});
  std::map<std::uint32_t, Seen> seen;
  ASSERT_TRUE(rig.until([&] {
    for (const Seen& s : rig.take()) seen[s.key] = s;
    return seen.size() == 3;
  }));
  EXPECT_EQ(seen[expert_key(1, 3)].kind, Kind::kSlotReady);
  EXPECT_EQ(seen[expert_key(1, 5)].kind, Kind::kSlotReady);
  EXPECT_EQ(seen[expert_key(1, 4)].kind, Kind::kSlotFailed);
  for (const std::string& part :
       {model_.manifest().experts[1].file, at("b"), at("c"), std::string("checksum")})
    EXPECT_NE(seen[expert_key(1, 4)].text.find(part), std::string::npos) << seen[expert_key(1, 4)].text;
}

TEST_P(StripedStage, WithoutAStripeTheLoaderDoesNotStart) {
  ASSERT_EQ(::rename(at("c").c_str(), at("gone").c_str()), 0);
  Rig rig(model_, 4, GetParam());
  const Status started = rig.start();
  ASSERT_FALSE(started.ok());
  EXPECT_NE(started.error().text.find(at("c")), std::string::npos) << started.error().text;
}

INSTANTIATE_TEST_SUITE_P(Backends, StripedStage, testing::Values("auto", "pread"),
                         [](const auto& instance) { return instance.param; });

}  // namespace
}  // namespace wisp::loader
