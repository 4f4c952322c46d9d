#include "services/loader/drive_probe.hpp"

#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>

#include "rig.hpp"
#include "services/loader/loader_stage.hpp"

namespace wisp::loader {
namespace {

namespace fs = std::filesystem;
constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

/// Runs a probe over a drive whose rate is `rate`(setting, burst number).
DriveFigure probed(const std::function<double(DriveProbe::Setting, int)>& rate, DriveProbe::Options o = {}) {
  DriveProbe probe(o);
  for (int i = 0; !probe.figure(); ++i) {
    EXPECT_LT(i, 1000);
    const double r = rate(probe.setting(), i);
    probe.burst(o.burst_bytes, static_cast<std::uint64_t>(static_cast<double>(o.burst_bytes) / r * 1e9));
  }
  return *probe.figure();
}

TEST(DriveProbe, TheMostModestWinsATie) {
  const auto f = probed([](auto, int) { return 2e9; });
  EXPECT_EQ(f.depth, kMiB);
  EXPECT_FALSE(f.pinned);
  EXPECT_NEAR(f.bytes_per_s, 2e9, 1e6);
  EXPECT_EQ(probed([](auto s, int) { return s.depth == 8 * kMiB || s.pinned ? 2.05e9 : 2e9; }).depth, kMiB);
}

TEST(DriveProbe, DepthAndBuffersThatGainAreTaken) {
  const auto f = probed([](auto s, int) {
    const double r = s.depth == kMiB ? 1e9 : s.depth == 2 * kMiB ? 1.5e9 : 2e9;
    return s.pinned ? 1.1 * r : r;
  });
  EXPECT_EQ(f.depth, 4 * kMiB);
  EXPECT_TRUE(f.pinned);
}

/// A drive that swings by 2x from burst to burst, whatever is asked: a deeper queue must not win often.
TEST(DriveProbe, ASwingingDriveIsNotRead) {
  const unsigned seed = std::random_device{}();
  std::mt19937 rng(seed);
  std::uniform_real_distribution<double> swing(1e9, 2e9);
  int modest = 0;
  constexpr int kDrives = 400;
  for (int i = 0; i < kDrives; ++i)
    modest += probed([&](auto, int) { return swing(rng); }).depth == kMiB ? 1 : 0;
  EXPECT_GT(modest, kDrives / 2) << "seed " << seed;
  // What gains more than it swings by is always seen.
  int shallow = 0;
  for (int i = 0; i < kDrives; ++i) {
    const auto depth = probed([&](auto s, int) { return swing(rng) * (s.depth > kMiB ? 4 : 1); }).depth;
    EXPECT_GT(depth, kMiB) << "seed " << seed;
    shallow += depth == 2 * kMiB ? 1 : 0;
  }
  EXPECT_GT(shallow, kDrives / 2) << "seed " << seed;
}

TEST(DriveProbe, IsShortOnASlowDrive) {
  DriveProbe::Options o;
  std::uint64_t bytes = 0;
  probed(
      [&](auto, int) {
        bytes += o.burst_bytes;
        return 1e8;
      },
      o);
  EXPECT_EQ(bytes, (4 + 2) * o.least_rounds * o.burst_bytes);
}

TEST(DriveProbe, WithoutRegisteredBuffersItEndsWithTheDepth) {
  DriveProbe::Options o;
  o.can_pin = false;
  EXPECT_EQ(probed([](auto s, int) { return s.depth > kMiB ? 2e9 : 1e9; }, o).depth, 2 * kMiB);
  DriveProbe probe({});
  while (!probe.setting().pinned) probe.burst(kMiB, 1000);
  probe.no_pinning();
  ASSERT_TRUE(probe.figure());
  EXPECT_EQ(probe.figure()->depth, kMiB);
}

struct FakeSys : ScratchDir {
  void file(const std::string& name, const std::string& text) {
    fs::create_directories((fs::path(path) / name).parent_path());
    std::ofstream(fs::path(path) / name) << text << "\n";
  }
  void device(int major, int minor, const std::string& folder) {
    fs::create_directories(path + "/dev/block");
    fs::create_directory_symlink(path + "/" + folder,
                                 path + "/dev/block/" + std::to_string(major) + ":" + std::to_string(minor));
  }
};

TEST(DriveIdentity, IsThatOfTheWholeDiskWhateverItsNumber) {
  FakeSys sys;
  sys.file("disk/size", "1000");
  sys.file("disk/wwid", "eui.01  ");
  sys.file("disk/device/model", "  Fast 9  ");
  sys.file("disk/part1/partition", "1");
  sys.file("disk/part1/size", "500");
  sys.device(259, 1, "disk");
  sys.device(259, 2, "disk/part1");
  sys.device(8, 17, "disk/part1");
  EXPECT_EQ(drive_identity(makedev(259, 1), sys.path), "model Fast 9, wwid eui.01, size 1000");
  EXPECT_EQ(drive_identity(makedev(259, 2), sys.path), drive_identity(makedev(259, 1), sys.path));
  EXPECT_EQ(drive_identity(makedev(8, 17), sys.path), drive_identity(makedev(259, 1), sys.path));
  EXPECT_EQ(drive_identity(makedev(0, 33), sys.path), "") << "no disk behind it";
  sys.file("other/size", "7");
  sys.device(7, 1, "other");
  const std::vector<std::uint64_t> ab{makedev(7, 1), makedev(8, 17)}, ba{makedev(8, 17), makedev(7, 1)};
  EXPECT_EQ(drive_identity(ab, sys.path), drive_identity(ba, sys.path));
  EXPECT_EQ(drive_identity({makedev(7, 1), makedev(0, 33)}, sys.path), "");
}

TEST(DriveFigures, AreKeptByDriveAndSize) {
  ScratchDir dir;
  const std::string file = dir.path + "/state/drives.json";
  EXPECT_EQ(load_drive_figure(file, "a", 1).error().code, ErrorCode::kNotFound);
  ASSERT_TRUE(save_drive_figure(file, "a", 1, {kMiB, true, 1e9}).ok());
  ASSERT_TRUE(save_drive_figure(file, "a", 2, {2 * kMiB, false, 2e9}).ok());
  ASSERT_TRUE(save_drive_figure(file, "b\xff", 1, {4 * kMiB, false, 3e9}).ok()) << "sysfs promises no UTF-8";
  const auto f = load_drive_figure(file, "a", 1);
  ASSERT_TRUE(f.ok()) << f.error().text;
  EXPECT_EQ(f->depth, kMiB);
  EXPECT_TRUE(f->pinned);
  EXPECT_EQ(load_drive_figure(file, "a", 2)->depth, 2 * kMiB);
  EXPECT_EQ(load_drive_figure(file, "a", 3).error().code, ErrorCode::kNotFound);
  for (const char* bad : {"", "{", "[]", "{\"a\": 3}", "{\"a\": {\"1\": {\"depth_bytes\": -1}}}",
                          "{\"a\": {\"1\": {\"depth_bytes\": 9e99, \"registered_buffers\": true}}}"}) {
    std::ofstream(file) << bad;
    const auto broken = load_drive_figure(file, "a", 1);
    EXPECT_FALSE(broken.ok()) << bad;
    EXPECT_TRUE(save_drive_figure(file, "a", 1, {kMiB, true, 1e9}).ok()) << bad;
    EXPECT_TRUE(load_drive_figure(file, "a", 1).ok()) << bad;
  }
}

TEST(DriveFigures, AFullFileSystemLeavesTheOldFile) {
  ScratchDir dir;
  if (::mount("tmpfs", dir.path.c_str(), "tmpfs", 0, "size=8k") != 0)
    GTEST_SKIP() << "no file system can be mounted here: " << std::strerror(errno);
  const std::string file = dir.path + "/drives.json";
  EXPECT_TRUE(save_drive_figure(file, "a", 1, {kMiB, true, 1e9}).ok());
  std::ofstream(dir.path + "/fill") << std::string(65536, 'x');
  const Status s = save_drive_figure(file, "b", 1, {kMiB, true, 1e9});
  ASSERT_FALSE(s.ok());
  EXPECT_NE(s.error().text.find("drives.json"), std::string::npos) << s.error().text;
  EXPECT_TRUE(load_drive_figure(file, "a", 1).ok());
  EXPECT_EQ(std::distance(fs::directory_iterator(dir.path), fs::directory_iterator{}), 2)
      << "no rest is left";
  ::umount(dir.path.c_str());
}

/// A loader whose drive is to be probed, in a run where compute sleeps until work comes.
class ProbeStage : public ::testing::Test {
 protected:
  void SetUp() override {
    file_ = state_.path + "/drives.json";
    ::setenv(kDrivesVariable, file_.c_str(), 1);
    struct stat st {};
    ASSERT_EQ(::stat(model_.expert_file(0).c_str(), &st), 0);
    identity_ = drive_identity(st.st_dev);
    if (identity_.empty()) GTEST_SKIP() << "the temporary folder lies on no disk that the kernel names";
  }
  void TearDown() override { ::unsetenv(kDrivesVariable); }
  LoaderParts parts() {
    LoaderParts p;
    p.probe.burst_bytes = 16 * model_.manifest().spec.expert.stride;
    p.probe.rounds = p.probe.least_rounds = 3;
    return p;
  }
  static void compute_sleeps(Rig& rig, bool sleeps) {
    rig.desk(shm::StageId::kCompute)->waits_since_ns.store(1);
    rig.desk(shm::StageId::kCompute)
        ->waits_for.store(static_cast<std::uint32_t>(sleeps ? shm::WaitFor::kWork : shm::WaitFor::kNothing));
  }
  bool known() { return load_drive_figure(file_, identity_, model_.manifest().spec.expert.stride).ok(); }

  TinyModel model_;
  ScratchDir state_;
  std::string file_, identity_;
};

TEST_F(ProbeStage, MeasuresOnceAndLeavesNothingBehind) {
  Rig rig(model_, 12);
  ASSERT_TRUE(rig.start(parts()).ok());
  ASSERT_TRUE(rig.load_dense());
  compute_sleeps(rig, true);
  ASSERT_TRUE(rig.until([&] { return known(); }));
  ASSERT_TRUE(rig.idle());
  EXPECT_EQ(rig.in_state(slab::SlotState::kFree), 12u);
  EXPECT_EQ(rig.count(stats::Counter::kReads), 0u) << "what the probe reads is no expert that was asked for";
  const std::uint64_t bytes = rig.count(stats::Counter::kDeviceBytesRead);
  ASSERT_TRUE(rig.start(parts()).ok());
  ASSERT_TRUE(rig.idle(200));
  EXPECT_EQ(rig.count(stats::Counter::kDeviceBytesRead), bytes) << "the next life knows it";
}

TEST_F(ProbeStage, GivesWayToDemandAndGoesOn) {
  Rig rig(model_, 12);
  ASSERT_TRUE(rig.start(parts()).ok());
  ASSERT_TRUE(rig.load_dense());
  for (int i = 0; i < 4; ++i) {
    compute_sleeps(rig, true);
    const std::uint64_t before = rig.count(stats::Counter::kDeviceBytesRead);
    ASSERT_TRUE(rig.until([&] { return known() || rig.count(stats::Counter::kDeviceBytesRead) > before; }));
    const auto e = static_cast<std::uint32_t>(i);
    rig.touch(0, {e, e + 4, e + 8});
    compute_sleeps(rig, false);
    std::size_t answers = 0;
    ASSERT_TRUE(rig.until([&] {
      for (const Seen& s : rig.take()) {
        EXPECT_EQ(s.kind, ring::Kind::kSlotReady);
        ++answers;
      }
      return answers == 3;
    }));
    ASSERT_TRUE(rig.idle());
    EXPECT_EQ(rig.in_state(slab::SlotState::kFilling), 0u);
    for (std::uint32_t s = 0; s < 12; ++s)
      EXPECT_TRUE(rig.word(s).state != slab::SlotState::kReady || rig.intact(s));
  }
}

TEST_F(ProbeStage, ACacheThatIsFullIsNotDisturbed) {
  Rig rig(model_, 4);
  ASSERT_TRUE(rig.start(parts()).ok());
  ASSERT_TRUE(rig.load_dense());
  rig.touch(0, {0, 1, 2, 3});
  std::size_t answers = 0;
  ASSERT_TRUE(rig.until([&] { return (answers += rig.take().size()) == 4; }));
  compute_sleeps(rig, true);
  ASSERT_TRUE(rig.idle(200));
  EXPECT_EQ(rig.in_state(slab::SlotState::kReady), 4u);
  EXPECT_FALSE(known());
}

TEST_F(ProbeStage, WithoutAFileItDoesNotHappen) {
  ::unsetenv(kDrivesVariable);
  Rig rig(model_, 12);
  ASSERT_TRUE(rig.start(parts()).ok());
  ASSERT_TRUE(rig.load_dense());
  compute_sleeps(rig, true);
  const std::uint64_t bytes = rig.count(stats::Counter::kDeviceBytesRead);
  ASSERT_TRUE(rig.idle(200));
  EXPECT_EQ(rig.count(stats::Counter::kDeviceBytesRead), bytes);
  EXPECT_TRUE(fs::is_empty(state_.path));
}

}  // namespace
}  // namespace wisp::loader
