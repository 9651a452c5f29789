// Each check of the executor on a kernel that is wrong in one place, and on its twin that is right there: the twin has `mend` where the
// wrong kernel has `wrong`.
#include "tests/ptx/rig.h"

namespace orrery::ptx {

namespace {

struct Case {
  const char* name;
  const char* declarations;
  const char* body;  // with @ where the kernels differ
  const char* wrong;
  const char* mend;
  const char* says;  // part of the message
  uint32_t blocks = 1, threads = 32;
  uint32_t shared = 512;  // dynamic
};
std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

const Case kCases[] = {
    {"GlobalBounds", "", "@ ld.global.u32 %r3, [%rd3];", "add.s64 %rd3, %rd3, 4;", "", "0 bytes behind an allocation of 256 bytes", 1, 64},
    {"GlobalOutside", "", "@ ld.global.u32 %r3, [%rd3];", "mov.u64 %rd3, 4096;", "", "outside every allocation"},
    {"GlobalAlignment", "", "ld.global.v2.u32 {%r3, %r4}, [%rd1@];", "+4", "+8", "not aligned"},
    {"SharedBounds", "", "mov.u32 %r3, dynamic; st.shared.u32 [%r3+@], %r1;", "512", "508", "of a shared memory of 512 bytes", 1, 1},
    {"SharedAlignment", ".shared .align @ .b8 words[64];", "mov.u32 %r3, words; st.shared.v4.u32 [%r3], {%r1, %r1, %r1, %r1};", "4", "16",
     "not aligned", 1, 1},
    {"LocalBounds", ".local .align 4 .b8 own[16];", "mov.u64 %rd4, own; st.local.u32 [%rd4+@], %r1;", "16", "12", "of a local memory of"},
    {"GlobalUnwritten", "", "@ ld.global.u32 %r3, [%rd2];", "", "st.global.u32 [%rd2], %r1;", "which nobody has written", 1, 1},
    {"SharedUnwritten", "", "mov.u32 %r3, dynamic; @ ld.shared.u32 %r4, [%r3];", "", "st.shared.u32 [%r3], %r1;",
     "which nobody has written", 1, 1},
    {"SharedPartlyUnwritten", "", "mov.u32 %r3, dynamic; st.shared.u32 [%r3], %r1; @ ld.shared.v2.u32 {%r4, %r5}, [%r3];", "",
     ".pragma \"used_bytes_mask 15\";", "which nobody has written", 1, 1},
    {"LocalUnwritten", ".local .align 4 .b8 own[16];", "mov.u64 %rd4, own; @ ld.local.u32 %r4, [%rd4];", "", "st.local.u32 [%rd4], %r1;",
     "which the thread has not written"},
    {"DivisionByZero", "", "add.s32 %r3, %r1, @; div.s32 %r4, 7, %r3;", "0", "1", "divides an integer by zero"},
    // Lanes 16 to 31 end before a shuffle that names them.
    {"ShuffleOfLanesThatEnded", "", "setp.ge.u32 %p1, %r1, 16; @%p1 ret; shfl.sync.bfly.b32 %r3|%p2, %r1, 1, 31, @;", "-1", "65535",
     "is named by a mask, and has ended"},
    {"ShuffleFromALaneOutside", "", "setp.ge.u32 %p1, %r1, 16; @%p1 ret; shfl.sync.bfly.b32 %r3|%p2, %r1, @, 31, 65535;", "16", "1",
     "which does not take part"},
    {"VoteInTwoBranches", "",
     "setp.ge.u32 %p1, %r1, 16; @ @%p1 bra ELSE; vote.sync.any.pred %p2, %p1, %r5; bra OVER;"
     "ELSE: vote.sync.any.pred %p3, %p1, %r5; OVER:",
     "mov.u32 %r5, -1;", "selp.b32 %r5, -65536, 65535, %p1;", "waits for lanes of the warp that never come here"},
    // Lanes 16 to 31 loop twice as often: the lanes meet behind the loop.
    {"VoteAfterALoop", "",
     "selp.b32 %r5, 10, 5, %p1; setp.ge.u32 %p1, %r1, 16; selp.b32 %r5, 10, 5, %p1; LOOP: sub.s32 %r5, %r5, 1; @"
     "setp.ne.u32 %p2, %r5, 0; @%p2 bra LOOP; vote.sync.any.pred %p3, %p1, -1;",
     "vote.sync.any.pred %p3, %p1, -1;", "", "never come here"},
    {"VoteNotNamed", "", "setp.ge.u32 %p1, %r1, 0; vote.sync.any.pred %p2, %p1, @;", "65535", "-1", "whose mask does not name it"},
    {"BarrierInABranch", "", "setp.ge.u32 %p1, %r1, @; @%p1 bra OVER; bar.sync 0; OVER:", "16", "32", "of which lanes have ended"},
    {"BarrierInALoop", "", "setp.ge.u32 %p1, %r1, @; LOOP: @%p1 bra LOOP2; bar.sync 0; bra OVER; LOOP2: bar.sync 0; OVER:", "16", "32",
     "that other lanes of the warp do not reach"},
    {"MatrixInABranch", "",
     "mov.u32 %r3, 0; setp.ge.u32 %p1, %r1, @; @%p1 bra OVER;"
     "mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%r4,%r5,%r6,%r7}, {%r3,%r3}, {%r3}, {%r3,%r3,%r3,%r3}; OVER:",
     "16", "32", "of which lanes have ended"},
    {"AsyncReadBeforeItsWait", "",
     "mov.u32 %r3, dynamic; cp.async.cg.shared.global [%r3], [%rd1], 16, 16; cp.async.commit_group; @"
     "ld.shared.u32 %r4, [%r3]; cp.async.wait_group 0;",
     "", "cp.async.wait_group 0;", "where cp.async is still to write", 1, 1},
    {"AsyncWaitForTheGroupBefore", "",
     "mov.u32 %r3, dynamic; cp.async.cg.shared.global [%r3], [%rd1], 16, 16; cp.async.commit_group;"
     "cp.async.cg.shared.global [%r3+16], [%rd1], 16, 16; cp.async.commit_group; cp.async.wait_group 1; ld.shared.u32 %r4, [%r3+@];"
     "cp.async.wait_group 0;",
     "16", "0", "where cp.async is still to write", 1, 1},
    {"AsyncNeverWaited", "", "mov.u32 %r3, dynamic; cp.async.cg.shared.global [%r3], [%rd1], 16, 16; cp.async.commit_group; @", "",
     "cp.async.wait_group 0;", "ends with a copy of cp.async under way", 1, 1},
    // What is copied before anybody has written it may not be read, and zeros may.
    {"AsyncOfUnwritten", "",
     "mov.u32 %r3, dynamic; cp.async.cg.shared.global [%r3], [%rd2], 16, @; cp.async.commit_group; cp.async.wait_group 0;"
     "ld.shared.u32 %r4, [%r3];",
     "8", "0", "which nobody has written", 1, 1},
    {"AsyncReadByAnotherWarp", "",
     "mov.u32 %r3, dynamic; setp.ne.u32 %p1, %r1, 0;"
     "@!%p1 cp.async.cg.shared.global [%r3], [%rd1], 16, 16; cp.async.commit_group; cp.async.wait_group 0; @ ld.shared.u32 %r4, [%r3];",
     "", "bar.sync 0;", "races with another", 1, 64},
    {"SharedRaceOfWarps", "",
     "shl.b32 %r3, %r1, 2; mov.u32 %r4, dynamic; add.s32 %r3, %r3, %r4; st.shared.u32 [%r3], %r1; bar.sync 0;"
     "st.shared.u32 [%r3], %r1; @ xor.b32 %r5, %r1, 32; shl.b32 %r5, %r5, 2; add.s32 %r5, %r5, %r4; ld.shared.u32 %r6, [%r5];",
     "bar.warp.sync -1;", "bar.sync 0;", "races with another warp", 1, 128},
    {"SharedRaceOfLanes", "",
     "shl.b32 %r3, %r1, 2; mov.u32 %r4, dynamic; add.s32 %r3, %r3, %r4; st.shared.u32 [%r3], %r1; @"
     "xor.b32 %r5, %r1, 1; shl.b32 %r5, %r5, 2; add.s32 %r5, %r5, %r4; ld.shared.u32 %r6, [%r5];",
     "", "bar.warp.sync -1;", "races with another lane", 1, 128},
    // Each lane's row is written by the lane itself; the other lanes receive its values all the same.
    {"MatrixLoadWithoutAWarpBarrier", "",
     "shl.b32 %r3, %r1, 4; mov.u32 %r4, dynamic; add.s32 %r3, %r3, %r4;"
     "st.shared.v4.u32 [%r3], {%r1, %r1, %r1, %r1}; @ ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r5, %r6, %r7, %r8}, [%r3];",
     "", "bar.warp.sync -1;", "races with another lane"},
    // A buffer that is written again while others may still read it.
    {"SharedWriteAfterRead", "",
     "mov.u32 %r4, dynamic; setp.ne.u32 %p1, %r1, 0; @!%p1 st.shared.u32 [%r4], %r1; bar.sync 0;"
     "ld.shared.u32 %r5, [%r4]; @ @!%p1 st.shared.u32 [%r4], %r5;",
     "", "bar.sync 0;", "races with another", 1, 64},
    {"SharedAddWithoutAtomic", "", "mov.u32 %r4, dynamic; setp.ne.u32 %p1, %r1, 0; @!%p1 st.shared.u32 [%r4], %r1; bar.sync 0; @",
     "st.shared.u32 [%r4], %r1;", "atom.shared.add.u32 %r5, [%r4], 1;", "races with another lane", 1, 64},
    // A thread's own atomic does not hide its store before from the other threads' atomics; nor does a store hide atomics from a load.
    {"SharedStoreBeforeAtomics", "",
     "mov.u32 %r4, dynamic; setp.ne.u32 %p1, %r1, 0; @!%p1 st.shared.u32 [%r4], %r1; @"
     "atom.shared.add.u32 %r5, [%r4], 1;",
     "", "bar.sync 0;", "races with another", 1, 64},
    {"SharedLoadAfterAtomics", "",
     "mov.u32 %r4, dynamic; setp.ne.u32 %p1, %r1, 0; @!%p1 st.shared.u32 [%r4], %r1; bar.sync 0;"
     "atom.shared.add.u32 %r5, [%r4], 1; @ @!%p1 ld.shared.u32 %r6, [%r4];",
     "", "bar.sync 0;", "races with another", 1, 64},
    {"GlobalRaceOfBlocks", "",
     "add.s32 %r3, %r2, @; mul.wide.u32 %rd4, %r3, 4; add.s64 %rd4, %rd1, %rd4; ld.global.u32 %r4, [%rd4];"
     "mul.wide.u32 %rd5, %r2, 4; add.s64 %rd5, %rd1, %rd5; st.global.u32 [%rd5], %r4;",
     "1", "0", "races with another block", 4, 1},
    {"GlobalWritesOfBlocks", "", "@", "st.global.u32 [%rd1], %r2;", "atom.global.add.u32 %r3, [%rd1], 1;", "races with another block", 4,
     1},
    {"ReadOnlyWritten", "", "@ ld.global.nc.u32 %r3, [%rd3];", "st.global.u32 [%rd3], %r1;", "", "read through ld.global.nc"},
};

class PtxChecks : public ::testing::TestWithParam<Case> {};

std::string with(const char* text, const char* here) {
  std::string out = text;
  // "@%p1" and "@!%p1" are guards of the language.
  for (size_t at = 0; (at = out.find('@', at)) != std::string::npos; ++at)
    if (at + 1 == out.size() || (out[at + 1] != '%' && out[at + 1] != '!')) return out.replace(at, 1, here);
  return out;
}

TEST_P(PtxChecks, WrongKernelIsCaughtAndItsTwinIsNot) {
  const Case& c = GetParam();
  for (const bool wrong : {true, false}) {
    Words<uint32_t> memory(64), unwritten(64);
    Rig rig;
    rig.executor.memory().add(memory.at, 256, false);
    rig.executor.memory().add(unwritten.at, 256, true);
    const char* here = wrong ? c.wrong : c.mend;
    const bool ended = rig.run(kernel_text(with(c.body, here), with(c.declarations, here)), memory.at, unwritten.at, {c.blocks, 1, 1},
                               {c.threads, 1, 1}, c.shared);
    if (wrong) {
      ASSERT_FALSE(rig.faults.empty());
      EXPECT_NE(rig.faults[0].find(c.says), std::string::npos) << rig.faults[0];
      EXPECT_NE(rig.faults[0].find("k: case.ptx:"), std::string::npos) << rig.faults[0];
    } else {
      EXPECT_TRUE(ended);
      for (const std::string& fault : rig.faults) ADD_FAILURE() << fault;
    }
  }
}
INSTANTIATE_TEST_SUITE_P(, PtxChecks, ::testing::ValuesIn(kCases), [](const auto& i) { return std::string(i.param.name); });

// Both orders of warps and blocks find a race: what orders two accesses is a barrier, and not who comes first.
TEST(PtxSchedule, ARaceIsFoundInEveryOrder) {
  for (uint64_t seed = 0; seed < 6; ++seed) {
    Words<uint32_t> memory(64);
    Rig rig;
    Settings settings = rig.settings();
    settings.seed = seed;
    Executor executor(settings);
    executor.memory().add(memory.at, 256, false);
    Module module("case.ptx", kernel_text("mov.u32 %r4, dynamic; setp.ne.u32 %p1, %r1, 0; setp.ne.u32 %p2, %r1, 32;"
                                          "@!%p1 st.shared.u32 [%r4], %r1; @!%p2 st.shared.u32 [%r4], %r1;"));
    Launch launch;
    launch.grid = {3, 1, 1}, launch.block = {64, 1, 1}, launch.dynamic_shared_bytes = 64;
    launch.parameters.resize(16);
    EXPECT_TRUE(executor.run(module.kernel("k"), launch, nullptr));
    EXPECT_FALSE(rig.faults.empty()) << seed;
  }
}

TEST(PtxRefuses, WhatItDoesNotKnow) {
  const auto refusal = [](const std::string& body) -> std::string {
    try {
      Module module("case.ptx", kernel_text(body));
      module.kernel("k");
    } catch (const Refused& refused) {
      return refused.what();
    }
    return "nothing";
  };
  const struct {
    const char *body, *says;
  } cases[] = {
      {"sin.approx.f32 %f1, %f2;", "the instruction sin.approx.f32"},
      {"add.ftz.f32 %f1, %f2, %f3;", "the instruction add.ftz.f32"},
      {"ld.global.lu.u32 %r3, [%rd1];", "the instruction ld.global.lu.u32"},
      {"bar.sync 1;", "the instruction bar.sync"},
      {"barrier.sync 0;", "the instruction barrier.sync"},
      {"cp.async.ca.shared.global [%r3], [%rd1], 16, 16;", "the instruction cp.async.ca.shared.global"},
      {"mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%f1,%f2,%f3,%f4}, {%r1,%r2}, {%r3}, {%f1,%f2,%f3,%f4};",
       "the instruction mma.sync"},
      {"add.s32 %r3, %r4, %rd1;", "a register of another width"},
      {"add.s32 %r3, %r99, 1;", "a register that is not declared: %r99"},
      {"bra NOWHERE;", "a label that is not there: NOWHERE"},
      {"st.param.u32 [p0], %r1;", "a store to a kernel's parameters"},
      {".reg .b128 %x<2>;", "registers of type .b128"},
      {"add.s32 %r3, %r4", "nothing"},
  };
  for (const auto& c : cases) {
    const std::string said = refusal(c.body);
    if (std::string(c.says) == "nothing") {
      EXPECT_NE(said, "nothing") << c.body;
      continue;
    }
    EXPECT_NE(said.find(c.says), std::string::npos) << said;
    EXPECT_EQ(said.find("case.ptx:"), 0u) << said;
    EXPECT_NE(said.find(", in k"), std::string::npos) << said;
  }
}

}  // namespace

}  // namespace orrery::ptx
