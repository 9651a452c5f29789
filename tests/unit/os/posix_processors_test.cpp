// How many threads can compute at once, read from made-up /proc and /sys: quotas of both versions, groups above the process's own, cores of
// two threads.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "runtime/os/os.h"
#include "runtime/os/processors.h"
#include "tests/support/temp_dir.h"

namespace orrery::os::posix_processors_test {
namespace {

struct FakeProcessors : ::testing::Test {
  testing::TempDir dir;
  void put(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = dir.file("root" + path);
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  Processors of(std::vector<int> allowed) const { return processors(dir.file("root"), std::move(allowed)); }
  double quota() const { return of({0, 1, 2, 3, 4, 5, 6, 7}).quota; }
};

TEST_F(FakeProcessors, Version2) {
  EXPECT_GT(quota(), 1e6) << "no files, no quota";
  put("/proc/self/cgroup", "0::/user.slice/app.service\n");
  put("/sys/fs/cgroup/user.slice/app.service/cpu.max", "max 100000\n");
  EXPECT_GT(quota(), 1e6);
  put("/sys/fs/cgroup/user.slice/app.service/cpu.max", "250000 100000\n");
  EXPECT_EQ(quota(), 2.5);
  EXPECT_EQ(of({0, 1, 2, 3, 4, 5, 6, 7}).usable(), 2);
  EXPECT_EQ(of({0}).usable(), 1);
  put("/sys/fs/cgroup/user.slice/cpu.max", "50000 100000\n");
  EXPECT_EQ(quota(), .5) << "a group above binds too";
  EXPECT_EQ(of({0, 1, 2, 3}).usable(), 1) << "at least one";
  for (const char* nonsense : {"", "x", "0 100000", "100000", "100000 0", "100000 x", "-1 5", "99999999999999999999999 1"}) {
    put("/sys/fs/cgroup/user.slice/cpu.max", nonsense);
    EXPECT_EQ(quota(), 2.5) << nonsense;
  }
  // A container's own group is the mount's root.
  put("/proc/self/cgroup", "0::/../../elsewhere\n");
  put("/sys/fs/cgroup/cpu.max", "300000 100000\n");
  EXPECT_EQ(quota(), 3);
}

TEST_F(FakeProcessors, Version1) {
  put("/proc/self/cgroup", "5:memory:/m\n4:cpu,cpuacct:/docker/abc\n");
  put("/sys/fs/cgroup/cpu/docker/abc/cpu.cfs_quota_us", "-1\n");
  put("/sys/fs/cgroup/cpu/docker/abc/cpu.cfs_period_us", "100000\n");
  EXPECT_GT(quota(), 1e6);
  put("/sys/fs/cgroup/cpu/docker/abc/cpu.cfs_quota_us", "400000\n");
  EXPECT_EQ(quota(), 4);
  put("/sys/fs/cgroup/cpu/docker/cpu.cfs_quota_us", "150000\n");
  put("/sys/fs/cgroup/cpu/docker/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(quota(), 1.5);
}

TEST_F(FakeProcessors, ThreadsOfACoreCountOnce) {
  for (int i = 0; i < 8; ++i)
    put("/sys/devices/system/cpu/cpu" + std::to_string(i) + "/topology/thread_siblings_list",
        std::to_string(i % 4) + "," + std::to_string(i % 4 + 4) + "\n");
  EXPECT_EQ(of({0, 1, 2, 3, 4, 5, 6, 7}).cores, 4);
  EXPECT_EQ(of({0, 1, 2, 3, 4, 5, 6, 7}).allowed, 8);
  EXPECT_EQ(of({0, 4}).cores, 1);
  EXPECT_EQ(of({0, 1}).cores, 2);
  EXPECT_EQ(of({0, 4, 100}).cores, 2) << "a processor that nothing is known of is a core";
}

TEST(Processors, OfThisMachine) {
  const Processors p = processors();
  EXPECT_EQ(p.allowed, available_processors());
  EXPECT_GE(p.cores, 1);
  EXPECT_LE(p.cores, p.allowed);
  EXPECT_GE(p.usable(), 1);
  EXPECT_LE(p.usable(), p.cores);
}

}  // namespace
}  // namespace orrery::os::posix_processors_test
