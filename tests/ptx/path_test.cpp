// The longest chain of a block's instructions, against sums by hand. Nothing but what a test names takes time.
#include "tests/ptx/executor/path.h"

#include "tests/ptx/rig.h"

namespace orrery::ptx {
namespace {

Latencies none() {
  Latencies l;
  l.arithmetic = l.convert = l.exchange = l.product = l.shared = l.global = l.link = l.branch = l.barrier = 0;
  return l;
}

// The chain of a kernel that has this body, with `threads` threads. p0: 256 words on the device; p1: as many of the host.
Path::Length length(const std::string& body, const Latencies& latencies, unsigned threads = 32) {
  Words<uint32_t> device(256), host(256);
  Rig rig;
  rig.executor.memory().add(device.at, 256 * sizeof(uint32_t), false);
  rig.executor.memory().add(host.at, 256 * sizeof(uint32_t), false, true);
  Module module("case.ptx", kernel_text(body, "  .shared .align 16 .b8 words[1024];\n"));
  const Kernel& kernel = module.kernel("k");
  Launch launch;
  launch.block = {threads, 1, 1};
  launch.parameters.resize(16);
  const uint64_t values[] = {reinterpret_cast<uint64_t>(device.at), reinterpret_cast<uint64_t>(host.at)};
  std::memcpy(launch.parameters.data(), values, 16);
  Path path(kernel);
  path.begin(latencies, (threads + 31) / 32);
  Counters counters;
  counters.path = &path;
  EXPECT_TRUE(rig.executor.run_block(kernel, launch, {0, 0, 0}, &counters));
  EXPECT_EQ(rig.faults, std::vector<std::string>());
  return path.length();
}
// How many times `unit` the chain takes. Turns of the instructions are a few cycles.
uint64_t times(const std::string& body, const Latencies& latencies, uint64_t unit, unsigned threads = 32) {
  return (length(body, latencies, threads).cycles + unit / 2) / unit;
}

const std::string kTwoLoads = "  ld.global.u32 %r3, [%rd3];\n  ld.global.u32 %r4, [%rd3];\n  add.s32 %r5, %r3, %r4;\n";

TEST(Path, InstructionsTakeTurns) {
  const std::string three = "  add.s32 %r3, %r1, 1;\n  add.s32 %r4, %r1, 2;\n  add.s32 %r5, %r1, 3;\n";
  EXPECT_EQ(length(three, none()).cycles - length("", none()).cycles, 3u);
  EXPECT_EQ(length(three, none(), 256).cycles - length("", none(), 256).cycles, 6u);  // eight warps: two for each of four schedulers
}
TEST(Path, CopiesOfRegistersAreNames) {
  EXPECT_EQ(length("  mov.u32 %r3, %r1;\n  mov.u32 %r4, %r3;\n", none()).cycles, length("", none()).cycles);
}
TEST(Path, WhoReadsWaits) {
  Latencies l = none();
  l.arithmetic = 100;
  EXPECT_EQ(times("  add.s32 %r3, %r1, 1;\n  add.s32 %r4, %r3, 1;\n  add.s32 %r5, %r4, 1;\n  add.s32 %r6, %r5, 1;\n", l, 100), 3u);
  // The body in front of it has two that follow one another.
  EXPECT_EQ(times("  add.s32 %r3, %r1, 1;\n  add.s32 %r4, %r1, 1;\n  add.s32 %r5, %r1, 1;\n  add.s32 %r6, %r1, 1;\n", l, 100), 1u);
}
TEST(Path, LoadsInFlightOverlap) {
  Latencies l = none();
  l.global = 1000;
  EXPECT_EQ(times(kTwoLoads, l, 1000), 1u);
  EXPECT_EQ(length(kTwoLoads, l).rounds, 1u);
  const std::string chase =
      "  ld.global.u32 %r3, [%rd3];\n  and.b32 %r3, %r3, 4;\n  cvt.u64.u32 %rd4, %r3;\n  add.s64 %rd4, %rd4, %rd1;\n"
      "  ld.global.u32 %r4, [%rd4];\n  add.s32 %r5, %r4, 1;\n";
  EXPECT_EQ(times(chase, l, 1000), 2u);
  EXPECT_EQ(length(chase, l).rounds, 2u);
  EXPECT_EQ(times("  ld.global.u32 %r3, [%rd3];\n", l, 1000), 0u);  // nobody waits for it
}
TEST(Path, HostMemoryIsFar) {
  Latencies l = none();
  l.link = 5000;
  EXPECT_EQ(times("  ld.global.u32 %r3, [%rd2];\n  add.s32 %r5, %r3, 1;\n", l, 5000), 1u);
  EXPECT_EQ(times("  ld.global.u32 %r3, [%rd1];\n  add.s32 %r5, %r3, 1;\n", l, 5000), 0u);
}
TEST(Path, NothingBeginsInFrontOfABranch) {
  Latencies l = none();
  l.global = 1000, l.branch = 10;
  // Each turn of the loop waits for its own load: the next one is behind the branch.
  const std::string loop =
      "  mov.u32 %r6, 0;\nagain:\n  ld.global.u32 %r3, [%rd3];\n  add.s32 %r5, %r3, 1;\n  add.s32 %r6, %r6, 1;\n"
      "  setp.lt.u32 %p1, %r6, 4;\n  @%p1 bra again;\n";
  EXPECT_EQ(times(loop, l, 1000), 4u);
  // A load whose value the next turn reads is on its way meanwhile.
  const std::string ahead =
      "  mov.u32 %r6, 0;\n  ld.global.u32 %r3, [%rd3];\nagain:\n  mov.u32 %r7, %r3;\n  ld.global.u32 %r3, [%rd3];\n"
      "  add.s32 %r6, %r6, 1;\n  setp.lt.u32 %p1, %r6, 4;\n  @%p1 bra again;\n  add.s32 %r5, %r3, 1;\n";
  EXPECT_EQ(times(ahead, l, 1000), 1u);
}
TEST(Path, WarpsMeetAtABarrier) {
  Latencies l = none();
  l.arithmetic = 100, l.barrier = 7;
  // The first warp alone has the chain, and the others wait for it.
  const std::string uneven =
      "  setp.lt.u32 %p1, %r1, 32;\n  @!%p1 bra out;\n  add.s32 %r3, %r1, 1;\n  add.s32 %r3, %r3, 1;\n  add.s32 %r3, %r3, 1;\nout:\n"
      "  bar.sync 0;\n";
  EXPECT_EQ(times(uneven, l, 100, 64), 3u);  // the predicate, and two of three
  EXPECT_EQ(times(uneven + "  add.s32 %r4, %r1, 1;\n  add.s32 %r4, %r4, 1;\n  add.s32 %r4, %r4, 1;\n", l, 100, 64), 5u);
}
TEST(Path, CopiesAreThereAtTheirWait) {
  Latencies l = none();
  l.global = 1000;
  const std::string copy =
      "  mov.u32 %r3, words;\n  mov.u32 %r4, 16;\n  and.b64 %rd4, %rd1, -16;\n  @%p1 bra out;\n"
      "  cp.async.cg.shared.global [%r3], [%rd4], 16, %r4;\n  cp.async.commit_group;\nout:\n";
  const std::string one = "  setp.ne.u32 %p1, %r1, 0;\n" + copy;
  EXPECT_EQ(times(one + "  cp.async.wait_group 0;\n", l, 1000), 1u);
  // Groups arrive one by one: the wait for all but the last does not wait for that one.
  l.link = 9000;
  const std::string other =
      "  @%p1 bra end;\n  and.b64 %rd5, %rd2, -16;\n  cp.async.cg.shared.global [%r3+16], [%rd5], 16, %r4;\n"
      "  cp.async.commit_group;\nend:\n";
  EXPECT_EQ(times(one + other + "  cp.async.wait_group 1;\n" + kTwoLoads + "  cp.async.wait_group 0;\n", l, 1000), 9u);
  EXPECT_EQ(times(one + other + "  cp.async.wait_group 0;\n" + kTwoLoads, l, 1000), 10u);
}

}  // namespace
}  // namespace orrery::ptx
