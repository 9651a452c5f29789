// The executor's instructions against the manual's definitions, written again and plainly: layouts of mma and ldmatrix, shuffles,
// roundings, carries, bytes and fields; and its counters against numbers that a hand can count.
#include <array>
#include <cfenv>
#include <cmath>
#include <limits>
#include <random>

#include "tests/ptx/executor/half.h"
#include "tests/ptx/rig.h"

namespace orrery::ptx {

namespace {

// Runs `instruction`, whose result is %r9 (or `result`), for each pair of 32 words: %r3 and %r4 hold a lane's words of a and b.
std::vector<uint32_t> on_lanes(const std::string& instruction, const std::vector<uint32_t>& a, const std::vector<uint32_t>& b,
                               const std::string& result = "%r9") {
  Words<uint32_t> in(64), out(32);
  for (size_t l = 0; l < 32; ++l) in[l] = a[l % a.size()], in[32 + l] = b[l % b.size()];
  Rig rig;
  rig.executor.memory().add(in.at, 256, false);
  rig.executor.memory().add(out.at, 128, false);
  EXPECT_TRUE(
      rig.run(kernel_text("ld.global.u32 %r3, [%rd3]; ld.global.u32 %r4, [%rd3+128]; mov.b32 %f3, %r3; mov.b32 %f4, %r4;" + instruction +
                          "mul.wide.u32 %rd4, %r1, 4; add.s64 %rd4, %rd2, %rd4; st.global.b32 [%rd4], " + result + ";"),
              in.at, out.at));
  for (const std::string& fault : rig.faults) ADD_FAILURE() << fault;
  return {out.at, out.at + 32};
}
uint32_t once(const std::string& instruction, uint32_t a, uint32_t b = 0, const std::string& result = "%r9") {
  return on_lanes(instruction, {a}, {b}, result)[0];
}
uint32_t bits(float x) { return bits_of<uint32_t>(x); }

TEST(PtxIntegers, BytesFieldsAndShifts) {
  EXPECT_EQ(once("prmt.b32 %r9, %r3, %r4, 0x7531;", 0x33221100, 0x77665544), 0x77553311u);
  EXPECT_EQ(once("prmt.b32 %r9, %r3, %r4, 0x89AB;", 0x80FF0001, 0), 0x000000FFu | 0xFF00u);  // signs of bytes 1, 0 (low), 2, 3
  EXPECT_EQ(once("bfi.b32 %r9, %r3, %r4, 4, 8;", 0xFFFFFFAB, 0x12345678), 0x12345AB8u);
  EXPECT_EQ(once("bfi.b32 %r9, %r3, %r4, 32, 8;", 0xFF, 0x12345678), 0x12345678u);
  EXPECT_EQ(once("bfe.s32 %r9, %r3, 4, 4;", 0x80), 0xFFFFFFF8u);
  EXPECT_EQ(once("bfe.u32 %r9, %r3, 4, 4;", 0x80), 8u);
  EXPECT_EQ(once("shl.b32 %r9, %r3, %r4;", 1, 32), 0u);
  EXPECT_EQ(once("shr.s32 %r9, %r3, %r4;", 0x80000000, 40), 0xFFFFFFFFu);
  EXPECT_EQ(once("shr.u32 %r9, %r3, %r4;", 0x80000000, 31), 1u);
  EXPECT_EQ(once("cvt.u16.u32 %rs1, %r3; cvt.u16.u32 %rs2, %r4; mul.wide.u16 %r9, %rs1, %rs2;", 0xABCDFFFF, 0x1234FFFE), 0xFFFFu * 0xFFFEu);
  EXPECT_EQ(once("brev.b32 %r9, %r3;", 0x80000001), 0x80000001u);
  EXPECT_EQ(once("brev.b32 %r9, %r3;", 2), 0x40000000u);
  EXPECT_EQ(once("bfind.shiftamt.u32 %r9, %r3;", 0x00800000), 8u);
  EXPECT_EQ(once("bfind.shiftamt.u32 %r9, %r3;", 0), 0xFFFFFFFFu);
  EXPECT_EQ(once("dp4a.s32.s32 %r9, %r3, %r4, 100;", 0xFF02FE01, 0x0A0B0C80), 100u - 10 + 22 - 24 - 128);
  EXPECT_EQ(once("dp4a.u32.s32 %r9, %r3, %r4, 100;", 0xFF02FE01, 0x0A0B0C80), 100u + 2550 + 22 + 3048 - 128);
  EXPECT_EQ(once("dp2a.lo.s32.s32 %r9, %r3, %r4, 100;", 0xFFFE0003, 0x7F7F8005), 100u + 15 + 256);
  EXPECT_EQ(once("mul.hi.s32 %r9, %r3, %r4;", 0x80000000, 0x80000000), 0x40000000u);
  EXPECT_EQ(once("div.s32 %r9, %r3, %r4;", static_cast<uint32_t>(-7), 2), static_cast<uint32_t>(-3));
  EXPECT_EQ(once("rem.s32 %r9, %r3, %r4;", static_cast<uint32_t>(-7), 2), static_cast<uint32_t>(-1));
  EXPECT_EQ(once("lop3.b32 %r9, %r3, %r4, 0x0F0F0F0F, 0x96;", 0xFF00FF00, 0xF0F0F0F0), 0xFF00FF00u ^ 0xF0F0F0F0u ^ 0x0F0F0F0Fu);
  EXPECT_EQ(once("shf.l.wrap.b32 %r9, %r3, %r4, 8;", 0xAA000000, 0x00BBCCDD), 0xBBCCDDAAu);
}

// (a, b) as 64 bits, times itself: the carries of four products.
TEST(PtxIntegers, CarriesPassFromWordToWord) {
  const std::string square =
      "mul.lo.u32 %r5, %r3, %r3; mul.hi.u32 %r6, %r3, %r3;"
      "mad.lo.cc.u32 %r6, %r3, %r4, %r6; madc.hi.u32 %r7, %r3, %r4, 0; mad.lo.cc.u32 %r6, %r4, %r3, %r6; madc.hi.cc.u32 %r7, %r4, %r3, %r7;"
      "addc.u32 %r8, 0, 0; mad.lo.cc.u32 %r7, %r4, %r4, %r7; madc.hi.u32 %r8, %r4, %r4, %r8;";
  for (const auto& [low, high] : {std::pair{0xFFFFFFFFu, 0xFFFFFFFFu}, std::pair{0xDEADBEEFu, 0x89ABCDEFu}}) {
    const unsigned __int128 x = uint64_t{high} << 32 | low, product = x * x;
    for (int k = 0; k < 4; ++k)
      EXPECT_EQ(once(square, low, high, "%r" + std::to_string(5 + k)), static_cast<uint32_t>(product >> 32 * k)) << k;
  }
  const std::string minus = "sub.cc.u32 %r9, %r3, %r4; subc.u32 %r9, 5, 3;";
  EXPECT_EQ(once(minus, 1, 2), 1u);
  EXPECT_EQ(once(minus, 2, 1), 2u);
}

TEST(PtxFloats, DirectedRoundingIsTheProcessors) {
  std::mt19937 random(1);
  std::vector<uint32_t> a(32), b(32);
  for (int round = 0; round < 200; ++round) {
    for (size_t l = 0; l < 32; ++l) {
      const auto any = [&] { return std::ldexp(static_cast<float>(static_cast<int32_t>(random())), static_cast<int>(random() % 80) - 70); };
      a[l] = bits(any()), b[l] = bits(l % 4 == 0 ? -bits_of<float>(a[l]) : any());
    }
    const std::vector<uint32_t> down = on_lanes("fma.rm.f32 %f9, %f3, 0f3FC00001, %f4;", a, b, "%f9");
    const std::vector<uint32_t> zero = on_lanes("add.rz.f32 %f9, %f3, %f4;", a, b, "%f9");
    for (size_t l = 0; l < 32; ++l) {
      volatile float x = bits_of<float>(a[l]), y = bits_of<float>(b[l]), m = bits_of<float>(0x3FC00001u);
      const int before = std::fegetround();
      std::fesetround(FE_DOWNWARD);
      volatile float f = std::fma(float(x), float(m), float(y));
      std::fesetround(FE_TOWARDZERO);
      volatile float s = x + y;
      std::fesetround(before);
      EXPECT_EQ(down[l], bits(f)) << x << " " << y;
      EXPECT_EQ(zero[l], bits(s)) << x << " " << y;
    }
  }
}

// So a value that a kernel forgets to set does not pass for a zero.
TEST(PtxFloats, ARegisterThatNothingHasWrittenIsNoNumber) {
  EXPECT_TRUE(std::isnan(bits_of<float>(once("mul.f32 %f9, %f39, 0f00000000;", 0, 0, "%f9"))));
}

TEST(PtxFloats, MinimumAndMaximumPassOverNaN) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(once("min.f32 %f9, %f3, %f4;", bits(nan), bits(2.0f), "%f9"), bits(2.0f));
  EXPECT_EQ(once("max.f32 %f9, %f3, %f4;", bits(2.0f), bits(nan), "%f9"), bits(2.0f));
  EXPECT_EQ(once("max.f32 %f9, %f3, %f4;", bits(-0.0f), bits(0.0f), "%f9"), bits(0.0f));
  EXPECT_EQ(once("min.f32 %f9, %f3, %f4;", bits(0.0f), bits(-0.0f), "%f9"), bits(-0.0f));
  const std::string one = "selp.u32 %r9, 1, 0, %p1;";
  EXPECT_EQ(once("setp.eq.f32 %p1, %f3, %f4;" + one, bits(nan), bits(nan)), 0u);
  EXPECT_EQ(once("setp.ne.f32 %p1, %f3, %f4;" + one, bits(nan), bits(1.0f)), 0u);
  EXPECT_EQ(once("setp.neu.f32 %p1, %f3, %f4;" + one, bits(nan), bits(1.0f)), 1u);
  EXPECT_EQ(once("setp.leu.f32 %p1, %f3, %f4;" + one, bits(nan), bits(1.0f)), 1u);
  EXPECT_EQ(once("setp.nan.f32 %p1, %f3, %f4;" + one, bits(nan), bits(1.0f)), 1u);
}

TEST(PtxFloats, ExponentialIsOffByWhatTheManualAllowsAndNoMore) {
  std::vector<uint32_t> x(32);
  double most = 0;
  for (int round = 0; round < 50; ++round) {
    for (size_t l = 0; l < 32; ++l) x[l] = bits(-20.0f + 0.7f * static_cast<float>(l) + 0.013f * static_cast<float>(round));
    const std::vector<uint32_t> y = on_lanes("ex2.approx.ftz.f32 %f9, %f3;", x, {0}, "%f9");
    for (size_t l = 0; l < 32; ++l) {
      const double exact = std::exp2(static_cast<double>(bits_of<float>(x[l])));
      most = std::max(most, std::abs(static_cast<double>(bits_of<float>(y[l])) - exact) / exact);
    }
  }
  EXPECT_LE(most, std::ldexp(1.0, -22));
  EXPECT_GT(most, std::ldexp(1.0, -24));  // it is an approximation
  EXPECT_EQ(once("ex2.approx.ftz.f32 %f9, %f3;", bits(0.0f), 0, "%f9"), bits(1.0f));
  EXPECT_EQ(once("ex2.approx.ftz.f32 %f9, %f3;", bits(-140.0f), 0, "%f9"), 0u);  // subnormal: flushed
}

TEST(PtxFloats, TheReciprocalIsOffByWhatTheManualAllowsAndNoMore) {
  std::vector<uint32_t> x(32);
  double most = 0;
  for (int round = 0; round < 50; ++round) {
    for (size_t l = 0; l < 32; ++l)
      x[l] = bits(std::ldexp(1.0f + 0.031f * static_cast<float>(l) + 0.0003f * static_cast<float>(round), round - 25));
    const std::vector<uint32_t> y = on_lanes("rcp.approx.ftz.f32 %f9, %f3;", x, {0}, "%f9");
    for (size_t l = 0; l < 32; ++l)
      most = std::max(most, std::abs(static_cast<double>(bits_of<float>(y[l])) * static_cast<double>(bits_of<float>(x[l])) - 1));
  }
  EXPECT_LE(most, std::ldexp(1.0, -23));
  EXPECT_GT(most, std::ldexp(1.0, -24));  // it is an approximation
  EXPECT_EQ(once("rcp.approx.ftz.f32 %f9, %f3;", bits(-0.0f), 0, "%f9"), bits(-std::numeric_limits<float>::infinity()));
  EXPECT_EQ(once("rcp.approx.ftz.f32 %f9, %f3;", bits(0x1.8p127f), 0, "%f9"), 0u);  // the result would be denormal
}

// The upper word of 1 / a, from the upper word of a.
TEST(PtxFloats, TheGrossReciprocalHasTwentyBits) {
  const auto upper = [](double x, uint32_t lower) {
    const uint64_t in = bits_of<uint64_t>(x);
    return once("mov.b64 %fd1, {%r3, %r4}; rcp.approx.ftz.f64 %fd2, %fd1; mov.b64 {%r5, %r9}, %fd2; add.u32 %r9, %r9, %r5;",
                static_cast<uint32_t>(in) | lower,
                static_cast<uint32_t>(in >> 32));  // the lower word is 0
  };
  for (const double x : {1.0, -3.0, 0.7, 1e200, 1e-200, 6.02e23}) {
    const double y = bits_of<double>(uint64_t{upper(x, 0)} << 32);
    EXPECT_LE(std::fabs(y * x - 1), 0x1p-18) << x;
    EXPECT_EQ(upper(x, 0xFFu), upper(x, 0)) << x;
  }
  EXPECT_EQ(upper(0.0, 0), 0x7FF00000u);
  EXPECT_EQ(upper(-0x1p-1060, 0), 0xFFF00000u);  // denormal
  EXPECT_EQ(upper(0x1.8p1023, 0), 0u);           // the result would be
  EXPECT_EQ(upper(-std::numeric_limits<double>::infinity(), 0), 0x80000000u);
}

TEST(PtxConversions, HalvesRoundAsAsked) {
  for (uint32_t h = 0; h < 0x7C00; h += 7) {
    const float at = half_value(static_cast<uint16_t>(h)), next = half_value(static_cast<uint16_t>(h + 1));
    EXPECT_EQ(half_of(at, Rounding::nearest), h);
    if (h + 1 == 0x7C00) continue;
    const float above = std::nextafter(at, 1e9f), middle = (at + next) / 2;
    EXPECT_EQ(half_of(above, Rounding::up), h + 1) << h;
    EXPECT_EQ(half_of(above, Rounding::down), h) << h;
    EXPECT_EQ(half_of(-above, Rounding::down), 0x8000 | (h + 1)) << h;
    EXPECT_EQ(half_of(-above, Rounding::up), 0x8000 | h) << h;
    EXPECT_EQ(half_of(middle, Rounding::nearest), h + (h & 1)) << h;
    EXPECT_EQ(once("cvt.rn.f16.f32 %rs1, %f3; cvt.u32.u16 %r9, %rs1;", bits(middle)), h + (h & 1));
    if (h > 200) h += 91;
  }
  EXPECT_EQ(once("cvt.rn.f16x2.f32 %r9, %f3, %f4;", bits(1.0f), bits(-2.0f)), 0x3C00C000u);  // the first operand is the upper half
  EXPECT_EQ(once("cvt.rzi.s32.f32 %r9, %f3;", bits(-1.9f)), static_cast<uint32_t>(-1));
  EXPECT_EQ(once("cvt.rni.s32.f32 %r9, %f3;", bits(2.5f)), 2u);
  EXPECT_EQ(once("cvt.rni.s32.f32 %r9, %f3;", bits(1e20f)), 0x7FFFFFFFu);
  EXPECT_EQ(once("cvt.rzi.s32.f32 %r9, %f3;", 0x7FC00000), 0u);
  EXPECT_EQ(once("cvt.sat.f32.f32 %f9, %f3;", bits(-3.0f), 0, "%f9"), 0u);
  EXPECT_EQ(once("cvt.u16.u32 %rs1, %r3; cvt.s16.s8 %rs2, %rs1; cvt.s32.s16 %r9, %rs2;", 0x1280), static_cast<uint32_t>(-128));
  EXPECT_EQ(once("sub.f16x2 %r9, %r3, %r4;", 0x3C004000, 0x40003C00), 0xBC003C00u);  // (1, 2) - (2, 1)
}

TEST(PtxExchanges, ShufflesVotesAndReductions) {
  std::vector<uint32_t> x(32), four(32, 4);
  for (uint32_t l = 0; l < 32; ++l) x[l] = l * l + 1;
  const auto expect = [&](const std::string& instruction, auto from) {
    const std::vector<uint32_t> y = on_lanes(instruction, x, four);
    for (uint32_t l = 0; l < 32; ++l) EXPECT_EQ(y[l], x[from(l)]) << instruction << " lane " << l;
  };
  expect("shfl.sync.bfly.b32 %r9|%p1, %r3, 4, 31, -1;", [](uint32_t l) { return l ^ 4; });
  expect("shfl.sync.down.b32 %r9|%p1, %r3, 4, 31, -1;", [](uint32_t l) { return l + 4 < 32 ? l + 4 : l; });
  expect("shfl.sync.up.b32 %r9|%p1, %r3, 4, 0, -1;", [](uint32_t l) { return l >= 4 ? l - 4 : l; });
  expect("shfl.sync.idx.b32 %r9|%p1, %r3, 4, 31, -1;", [](uint32_t) { return 4u; });
  // Segments of 8 lanes: mask 0x18 in bits 8 to 12.
  expect("shfl.sync.idx.b32 %r9|%p1, %r3, 2, 0x181F, -1;", [](uint32_t l) { return l / 8 * 8 + 2; });
  expect("shfl.sync.down.b32 %r9|%p1, %r3, 6, 0x181F, -1;", [](uint32_t l) { return l % 8 + 6 < 8 ? l + 6 : l; });
  expect("shfl.sync.up.b32 %r9|%p1, %r3, 6, 0x1800, -1;", [](uint32_t l) { return l % 8 >= 6 ? l - 6 : l; });
  EXPECT_EQ(once("setp.lt.u32 %p1, %r1, 5; vote.sync.ballot.b32 %r9, %p1, -1;", 0), 31u);
  EXPECT_EQ(once("redux.sync.add.u32 %r9, %r1, -1;", 0), 496u);
  EXPECT_EQ(once("redux.sync.max.u32 %r9, %r1, -1;", 0), 31u);
}

// Products by definition: the manual's tables say of each element in which register of which lane it is. Column c of a 16-row fragment a:
// lane 4 (row % 8) + c % 8 / 2, and so on.
TEST(PtxProducts, LayoutsOfEveryShape) {
  std::mt19937 random(2);
  const auto run = [](const std::string& shape, const std::string& types, const std::vector<std::array<uint32_t, 32>>& registers,
                      size_t n_a, size_t n_b) {
    Words<uint32_t> in(32 * registers.size()), out(128);
    for (size_t r = 0; r < registers.size(); ++r)
      for (size_t l = 0; l < 32; ++l) in[32 * r + l] = registers[r][l];
    std::string body, a, b, c;
    for (size_t r = 0; r < registers.size(); ++r) {
      const std::string name = "%r" + std::to_string(10 + r);
      body += "ld.global.b32 " + name + ", [%rd3+" + std::to_string(128 * r) + "];";
      std::string& list = r < n_a ? a : r < n_a + n_b ? b : c;
      list += (list.empty() ? "" : ",") + name;
    }
    body += "mma.sync.aligned." + shape + ".row.col." + types + " {%r3,%r4,%r5,%r6}, {" + a + "}, {" + b + "}, {" + c + "};";
    body += "mul.wide.u32 %rd4, %r1, 4; add.s64 %rd4, %rd2, %rd4;";
    for (int i = 0; i < 4; ++i) body += "st.global.b32 [%rd4+" + std::to_string(128 * i) + "], %r" + std::to_string(3 + i) + ";";
    Rig rig;
    rig.executor.memory().add(in.at, in.count * 4, false);
    rig.executor.memory().add(out.at, 512, false);
    EXPECT_TRUE(rig.run(kernel_text(body), in.at, out.at));
    for (const std::string& fault : rig.faults) ADD_FAILURE() << fault;
    return std::vector<uint32_t>(out.at, out.at + 128);
  };
  for (const bool bf : {false, true}) {
    std::vector<std::array<uint32_t, 32>> registers(10);
    float A[16][16], B[16][8], C[16][8];
    for (int row = 0; row < 16; ++row)
      for (int k = 0; k < 16; ++k) A[row][k] = static_cast<float>(static_cast<int>(random() % 17) - 8);
    for (auto& row : B)
      for (float& x : row) x = static_cast<float>(static_cast<int>(random() % 17) - 8);
    for (auto& row : C)
      for (float& x : row) x = static_cast<float>(static_cast<int>(random() % 17) - 8);
    const auto half = [&](float x) { return bf ? bits(x) >> 16 : uint32_t{half_of(x, Rounding::nearest)}; };
    for (size_t l = 0; l < 32; ++l) {
      const size_t g = l / 4, t = l % 4;
      for (size_t i = 0; i < 4; ++i) {
        const size_t row = g + (i % 2 ? 8 : 0), k = 2 * t + (i >= 2 ? 8 : 0);
        registers[i][l] = half(A[row][k]) | half(A[row][k + 1]) << 16;
      }
      for (size_t i = 0; i < 2; ++i) registers[4 + i][l] = half(B[2 * t + 8 * i][g]) | half(B[2 * t + 8 * i + 1][g]) << 16;
      for (size_t i = 0; i < 4; ++i) registers[6 + i][l] = bits(C[g + (i >= 2 ? 8 : 0)][2 * t + i % 2]);
    }
    const std::vector<uint32_t> out = run("m16n8k16", bf ? "f32.bf16.bf16.f32" : "f32.f16.f16.f32", registers, 4, 2);
    for (size_t l = 0; l < 32; ++l)
      for (size_t i = 0; i < 4; ++i) {
        const size_t row = l / 4 + (i >= 2 ? 8 : 0), n = 2 * (l % 4) + i % 2;
        float sum = C[row][n];
        for (size_t k = 0; k < 16; ++k) sum += A[row][k] * B[k][n];
        EXPECT_EQ(out[32 * i + l], bits(sum)) << row << " " << n;
      }
  }
  for (const size_t K : {size_t{16}, size_t{32}}) {
    int A[16][32], B[32][8];
    for (auto& row : A)
      for (int& x : row) x = static_cast<int8_t>(random());
    for (auto& row : B)
      for (int& x : row) x = static_cast<int8_t>(random());
    const size_t n_a = K / 8, n_b = K / 16;
    std::vector<std::array<uint32_t, 32>> registers(n_a + n_b + 4);
    for (size_t l = 0; l < 32; ++l) {
      const size_t g = l / 4, t = l % 4;
      for (size_t i = 0; i < 4; ++i) {
        for (size_t r = 0; r < n_a; ++r)
          registers[r][l] |= uint32_t{static_cast<uint8_t>(A[g + (r % 2 ? 8 : 0)][4 * t + i + (r >= 2 ? 16 : 0)])} << 8 * i;
        for (size_t r = 0; r < n_b; ++r) registers[n_a + r][l] |= uint32_t{static_cast<uint8_t>(B[4 * t + i + 16 * r][g])} << 8 * i;
        registers[n_a + n_b + i][l] = static_cast<uint32_t>(1000 * i);
      }
    }
    const std::vector<uint32_t> out = run("m16n8k" + std::to_string(K), "s32.s8.s8.s32", registers, n_a, n_b);
    for (size_t l = 0; l < 32; ++l)
      for (size_t i = 0; i < 4; ++i) {
        int sum = static_cast<int>(1000 * i);
        for (size_t k = 0; k < K; ++k) sum += A[l / 4 + (i >= 2 ? 8 : 0)][k] * B[k][2 * (l % 4) + i % 2];
        EXPECT_EQ(static_cast<int>(out[32 * i + l]), sum);
      }
  }
}

TEST(PtxMemory, MatricesWindowsAndCopies) {
  Words<uint32_t> in(128), out(128);
  Rig rig;
  rig.executor.memory().add(in.at, 512, false);
  rig.executor.memory().add(out.at, 512, false);
  // 512 bytes through cp.async, generic addresses of shared memory, and ldmatrix with and without .trans.
  const std::string body =
      "shl.b32 %r3, %r1, 4; cvt.u64.u32 %rd5, %r3; add.s64 %rd6, %rd1, %rd5; mov.u32 %r4, dynamic; add.s32 %r3, %r3, %r4;"
      "cp.async.cg.shared.global [%r3], [%rd6], 16, 16; cp.async.commit_group; cp.async.wait_group 0; bar.warp.sync -1;"
      "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r10,%r11,%r12,%r13}, [%r3];"
      "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%r14,%r15,%r16,%r17}, [%r3];"
      "mov.u64 %rd7, dynamic; cvta.shared.u64 %rd8, %rd7; add.s64 %rd8, %rd8, %rd5; ld.u32 %r18, [%rd8+4];"
      "mul.wide.u32 %rd4, %r1, 4; add.s64 %rd4, %rd2, %rd4;"
      "st.global.b32 [%rd4], %r11; st.global.b32 [%rd4+128], %r17; st.global.b32 [%rd4+256], %r18;";
  EXPECT_TRUE(rig.run(kernel_text(body), in.at, out.at, {}, {32, 1, 1}, 512));
  for (const std::string& fault : rig.faults) ADD_FAILURE() << fault;
  const uint16_t* halves = reinterpret_cast<const uint16_t*>(in.at);
  for (size_t l = 0; l < 32; ++l) {
    const size_t row = l / 4, column = 2 * (l % 4);
    EXPECT_EQ(out[l], in[32 + 4 * row + column / 2]);                                                               // matrix 1
    EXPECT_EQ(out[32 + l], halves[192 + 8 * column + row] | uint32_t{halves[192 + 8 * (column + 1) + row]} << 16);  // matrix 3, transposed
    EXPECT_EQ(out[64 + l], in[4 * l + 1]);
  }
}

TEST(PtxFlow, LanesThatABranchPartsMeetAgain) {
  // Collatz steps of the lane's index + 1; then a shuffle that needs all lanes.
  const std::vector<uint32_t> y = on_lanes(
      "add.s32 %r5, %r1, 1; mov.u32 %r9, 0; LOOP: setp.le.u32 %p1, %r5, 1; @%p1 bra DONE; and.b32 %r6, %r5, 1; setp.eq.s32 %p2, %r6, 0;"
      "@%p2 bra EVEN; mad.lo.s32 %r5, %r5, 3, 1; bra NEXT; EVEN: shr.u32 %r5, %r5, 1; NEXT: add.s32 %r9, %r9, 1; bra LOOP;"
      "DONE: shfl.sync.bfly.b32 %r9|%p3, %r9, 0, 31, -1;",
      {0}, {0});
  for (uint32_t l = 0; l < 32; ++l) {
    uint32_t n = l + 1, steps = 0;
    for (; n > 1; ++steps) n = n % 2 ? 3 * n + 1 : n / 2;
    EXPECT_EQ(y[l], steps);
  }
}

TEST(PtxCounters, SectorsConflictsAndInstructions) {
  Words<uint32_t> memory(1024);
  Rig rig;
  rig.executor.memory().add(memory.at, 4096, false);
  rig.run(kernel_text("ld.global.u32 %r3, [%rd3];"), memory.at);
  EXPECT_EQ(rig.counters.read_bytes, 128u);
  EXPECT_EQ(rig.counters.read_sectors, 4u);
  rig.run(kernel_text("mul.wide.u32 %rd4, %r1, 64; add.s64 %rd4, %rd1, %rd4; st.global.u32 [%rd4], %r1;"), memory.at);
  EXPECT_EQ(rig.counters.written_bytes, 128u);
  EXPECT_EQ(rig.counters.written_sectors, 32u);
  // Rows of 8 words: eight lanes to a bank, so seven passes too many. With 16 bytes a lane, a quarter of the warp fills the banks.
  rig.run(kernel_text("shl.b32 %r3, %r1, 5; mov.u32 %r4, dynamic; add.s32 %r3, %r3, %r4; st.shared.u32 [%r3], %r1;"), memory.at, nullptr,
          {}, {32, 1, 1}, 1024);
  EXPECT_EQ(rig.counters.bank_conflicts, 7u);
  EXPECT_EQ(rig.counters.shared_passes, 8u);
  rig.run(kernel_text("shl.b32 %r3, %r1, 4; mov.u32 %r4, dynamic; add.s32 %r3, %r3, %r4; st.shared.v4.u32 [%r3], {%r1,%r1,%r1,%r1};"),
          memory.at, nullptr, {}, {32, 1, 1}, 512);
  EXPECT_EQ(rig.counters.bank_conflicts, 0u);
  EXPECT_EQ(rig.counters.shared_requests, 1u);
  EXPECT_EQ(rig.counters.shared_passes, 4u);
  rig.run(kernel_text("bar.sync 0;"), memory.at, nullptr, {3, 2, 1}, {64, 1, 1});
  EXPECT_EQ(rig.counters.blocks, 6u);
  EXPECT_EQ(rig.counters.barriers, 6u);
  EXPECT_EQ(rig.counters.instructions[static_cast<int>(Class::exchange)], 12u);
  EXPECT_EQ(rig.counters.instructions[static_cast<int>(Class::control)], 12u);  // ret
}

}  // namespace

}  // namespace orrery::ptx
