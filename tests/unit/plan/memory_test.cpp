#include "plan/memory.hpp"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "plan/cpus.hpp"

namespace wisp::plan {
namespace {

namespace fs = std::filesystem;

/// A made-up /proc and /sys/fs/cgroup.
class MemoryTest : public testing::Test {
 protected:
  MemoryTest() {
    std::string name = (fs::temp_directory_path() / "wisp-memory-XXXXXX").string();
    root_ = ::mkdtemp(name.data());
    files_ = {(root_ / "proc").string(), (root_ / "cgroup").string()};
    write("proc/meminfo", "MemTotal: 8388608 kB\nMemAvailable:    4194304 kB\n");
  }
  ~MemoryTest() override { fs::remove_all(root_); }

  void write(const std::string& name, const std::string& text) {
    fs::create_directories((root_ / name).parent_path());
    std::ofstream(root_ / name) << text;
  }

  fs::path root_;
  KernelFiles files_;
};

constexpr std::uint64_t kMiB = 1024 * 1024;

TEST_F(MemoryTest, MachineAlone) {
  EXPECT_EQ(available_memory_in(files_), 4096 * kMiB);
  EXPECT_EQ(memory_in(files_).group_limit, MemoryHere::kNoLimit);
  EXPECT_EQ(memory_in(files_).group_room, MemoryHere::kNoLimit);
  EXPECT_EQ(cores_within_quota(files_, 8), 8u);
}

TEST_F(MemoryTest, NothingReadable) {
  EXPECT_EQ(available_memory_in({"/nonexistent", "/nonexistent"}), 0u);
}

TEST_F(MemoryTest, Version2TightestEnclosingGroup) {
  write("proc/self/cgroup", "0::/outer/inner\n");
  write("cgroup/outer/inner/memory.max", "max\n");
  write("cgroup/outer/inner/memory.current", "1048576\n");
  write("cgroup/outer/memory.max", "1073741824\n");
  write("cgroup/outer/memory.current", "536870912\n");
  write("cgroup/outer/memory.stat",
        "anon 1\ninactive_file 104857600\nactive_file 104857600\nslab_reclaimable 0\n");
  EXPECT_EQ(available_memory_in(files_), (1024 - 512 + 200) * kMiB);
  write("cgroup/outer/inner/memory.high", "104857600\n");
  EXPECT_EQ(available_memory_in(files_), 99 * kMiB);
  const MemoryHere here = memory_in(files_);
  EXPECT_EQ(here.group_limit, 100 * kMiB);
  EXPECT_EQ(here.group_room, 99 * kMiB);
}

TEST_F(MemoryTest, Version1) {
  write("proc/self/cgroup", "9:name=systemd:/\n4:memory,hugetlb:/job\n0::/\n");
  write("cgroup/memory/job/memory.limit_in_bytes", "314572800\n");
  write("cgroup/memory/job/memory.usage_in_bytes", "209715200\n");
  write("cgroup/memory/job/memory.stat", "cache 5\ntotal_inactive_file 52428800\ntotal_active_file 0\n");
  write("cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  write("cgroup/memory/memory.usage_in_bytes", "1\n");
  EXPECT_EQ(available_memory_in(files_), 150 * kMiB);
  EXPECT_EQ(memory_in(files_).group_limit, 300 * kMiB);
  EXPECT_EQ(memory_in(files_).group_room, 150 * kMiB);
}

TEST_F(MemoryTest, FullGroupHasNoRoom) {
  write("proc/self/cgroup", "0::/\n");
  write("cgroup/memory.max", "1000\n");
  write("cgroup/memory.current", "2000\n");
  EXPECT_EQ(available_memory_in(files_), 1u) << "0 would mean that nothing is known";
}

TEST_F(MemoryTest, QuotasRoundUpToWholeCores) {
  write("proc/self/cgroup", "0::/a\n");
  write("cgroup/a/cpu.max", "150000 100000\n");
  EXPECT_EQ(cores_within_quota(files_, 8), 2u);
  EXPECT_EQ(cores_within_quota(files_, 1), 1u);
  write("cgroup/a/cpu.max", "max 100000\n");
  EXPECT_EQ(cores_within_quota(files_, 8), 8u);
  write("proc/self/cgroup", "3:cpu,cpuacct:/a\n");
  write("cgroup/cpu/a/cpu.cfs_quota_us", "300000\n");
  write("cgroup/cpu/a/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cores_within_quota(files_, 8), 3u);
  write("cgroup/cpu/a/cpu.cfs_quota_us", "-1\n");
  EXPECT_EQ(cores_within_quota(files_, 8), 8u);
}

TEST(UsableCores, AtLeastOne) {
  EXPECT_GE(usable_cores(), 1u);
}

}  // namespace
}  // namespace wisp::plan
