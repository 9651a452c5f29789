// What the system says of memory, read from made-up /proc and /sys: version 2 and 1 of control groups, groups above the
// process's own, containers, files that say nothing or nonsense.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

#include "runtime/os/os.h"
#include "tests/support/temp_dir.h"

namespace orrery::os::posix_memory_test {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

// A machine of 8 GiB with 6 GiB available and 1 GiB of swap.
struct FakeRoot : ::testing::Test {
  testing::TempDir dir;

  void put(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = dir.file("root" + path);
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  MemoryLimits limits() const { return memory_limits(dir.file("root")); }
  void expect(uint64_t total_mib, uint64_t available_mib, const char* bound_by) const {
    const MemoryLimits l = limits();
    EXPECT_EQ(l.total_bytes, total_mib * kMiB);
    EXPECT_EQ(l.available_bytes, available_mib * kMiB);
    EXPECT_STREQ(l.bound_by, bound_by);
  }
  void SetUp() override {
    put("/proc/meminfo",
        "MemTotal:        8388608 kB\nMemFree:          100 kB\nMemAvailable:    6291456 kB\nSwapTotal: 2097152 kB\n"
        "SwapFree:        1048576 kB\n");
  }
};

constexpr const char* kMachine = "the machine's memory";
constexpr const char* kGroup = "the control group's memory limit";

TEST_F(FakeRoot, TheMachineAlone) { expect(8192, 7168, kMachine); }

TEST_F(FakeRoot, Version2) {
  put("/proc/self/cgroup", "0::/user.slice/app.service\n");
  const std::string group = "/sys/fs/cgroup/user.slice/app.service/";
  put(group + "memory.max", "max\n");
  put(group + "memory.current", "1048576\n");
  expect(8192, 7168, kMachine);
  put(group + "memory.max", "536870912\n");
  put(group + "memory.current", "209715200\n");
  expect(512, 312, kGroup);
  // Pages of files are given back before anything fails.
  put(group + "memory.stat", "anon 100\nfile 83886080\ninactive_file 73400320\nactive_file 31457280\n");
  expect(512, 412, kGroup);
  // A group above binds too, where less is left there.
  put("/sys/fs/cgroup/user.slice/memory.max", "1073741824\n");
  expect(512, 412, kGroup);
  put("/sys/fs/cgroup/user.slice/memory.current", "943718400\n");
  expect(512, 124, kGroup);
  // More in use than is allowed leaves nothing.
  put("/sys/fs/cgroup/user.slice/memory.current", "2147483648\n");
  expect(512, 0, kGroup);
}

TEST_F(FakeRoot, Version1) {
  put("/proc/self/cgroup", "12:cpu,cpuacct:/x\n4:hugetlb:/y\n3:devices,memory:/docker/abc\n1:name=systemd:/z\n");
  const std::string group = "/sys/fs/cgroup/memory/docker/abc/";
  put(group + "memory.limit_in_bytes", "9223372036854771712\n");  // how that version says none
  expect(8192, 7168, kMachine);
  put(group + "memory.limit_in_bytes", "268435456\n");
  put(group + "memory.usage_in_bytes", "104857600\n");
  put(group + "memory.stat", "inactive_file 1\ntotal_inactive_file 10485760\ntotal_active_file 20971520\n");
  expect(256, 186, kGroup);
}

// In a container the group's path is that of the host, and the container's own files lie at the mount.
TEST_F(FakeRoot, Container) {
  put("/proc/self/cgroup", "0::/system.slice/docker-0123.scope\n");
  put("/sys/fs/cgroup/memory.max", "1073741824");
  put("/sys/fs/cgroup/memory.current", "0");
  expect(1024, 1024, kGroup);
  put("/proc/self/cgroup", "0::/../../elsewhere\n");
  expect(1024, 1024, kGroup);
}

TEST_F(FakeRoot, NonsenseIsNoLimit) {
  for (const char* groups : {"", "\n\n", "0", "0:", ":::::", "0::", "memory", "0::/a\n"}) {
    put("/proc/self/cgroup", groups);
    for (const char* text : {"", "max", "-1", "x12", "99999999999999999999999999", "\n5"}) {
      put("/sys/fs/cgroup/memory.max", text);
      put("/sys/fs/cgroup/a/memory.max", text);
      expect(8192, 7168, kMachine);
    }
  }
}

TEST(MemoryLimits, OfThisMachine) {
  const MemoryLimits l = memory_limits();
  EXPECT_GT(l.available_bytes, 16 * kMiB);
  EXPECT_LE(l.total_bytes, physical_memory_bytes());
  EXPECT_EQ(memory_limits("/nowhere/at/all").total_bytes <= physical_memory_bytes(), true);
}

TEST_F(FakeRoot, DefaultsAreBoundByWhatCountsReservations) {
  MemoryLimits l;
  EXPECT_EQ(default_reservation_bytes(l), physical_memory_bytes() / 2) << "no limit but the machine";
  l.memory_bytes = 1000 * kMiB;
  EXPECT_EQ(default_reservation_bytes(l), std::min(1000 * kMiB, physical_memory_bytes()) / 2) << "a container";
  l.available_bytes = 10;  // lazily committed memory may be reserved while others use theirs
  EXPECT_EQ(default_reservation_bytes(l), std::min(1000 * kMiB, physical_memory_bytes()) / 2);
  l.reservable_bytes = 400 * kMiB;
  EXPECT_EQ(default_reservation_bytes(l), 100 * kMiB) << "an address space";
}

// The default follows a container's limit of either version, at whatever level it stands.
TEST_F(FakeRoot, AContainersLimitIsWhatDefaultsHalve) {
  put("/proc/self/cgroup", "0::/a/b\n");
  put("/sys/fs/cgroup/a/memory.max", "4194304\n");
  put("/sys/fs/cgroup/a/memory.current", "4000000\n");
  EXPECT_EQ(limits().memory_bytes, 4194304u);
  EXPECT_EQ(default_reservation_bytes(limits()), 2097152u);
}

// In a child, whose address space is limited to what it has and 100 MiB more.
TEST(MemoryLimits, OfTheAddressSpace) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers reserve more than a limit can allow";
#endif
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const auto pages = [] {
      uint64_t n = 0;
      std::ifstream("/proc/self/statm") >> n;
      return n;
    };
    struct rlimit limit = {};
    limit.rlim_cur = limit.rlim_max = pages() * page_bytes() + 100 * kMiB;
    if (::setrlimit(RLIMIT_AS, &limit) != 0) ::_exit(2);
    const MemoryLimits l = memory_limits();
    const bool right = l.total_bytes <= limit.rlim_cur && l.available_bytes <= 100 * kMiB && l.available_bytes > 80 * kMiB &&
                       std::string(l.bound_by) == "RLIMIT_AS";
    ::_exit(right ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace orrery::os::posix_memory_test
