// The vector V of the shared kernels, for 64-bit ARM: two registers of 128 bits side by side, because the shared kernels expect
// eight lanes. Only files that are compiled for these instructions include it.
#pragma once

#include <arm_neon.h>

#include <cstddef>
#include <cstdint>

namespace orrery::cpu {
namespace {

inline float half_value(const uint8_t* p) {
  uint16_t bits;
  __builtin_memcpy(&bits, p, sizeof bits);
  return vgetq_lane_f32(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(bits))), 0);
}

struct V {
  struct F {
    float32x4_t a, b;
  };
  struct I {
    int32x4_t a, b;
  };
  static constexpr int kLanes = 8;
  static constexpr int kGemmVectors = 2;                                // width of a float tile, in vectors
  static constexpr bool kTwoStages = false, kLightInTwoStages = false;  // how weights are prefetched (prefetch_stream())
  static constexpr bool kAttendsInIntegers = false;                     // decode attention over blocks
  static constexpr int kAccumulators = 8;

  static F zero() { return set(0.0f); }
  static F set(float x) { return {vdupq_n_f32(x), vdupq_n_f32(x)}; }
  static F load(const float* p) { return {vld1q_f32(p), vld1q_f32(p + 4)}; }
  static void hold(F& x) { asm("" : "+w"(x.a), "+w"(x.b)); }  // keeps x in a register, so that the compiler does not load it again
  // ask(): prefetches a cache line into the second-level cache. ask_behind(): the same, ordered after the instruction that made x,
  // so that compilers do not move it.
  static void ask(const void* p) { __builtin_prefetch(p, 0, 2); }
  static void ask_behind(F& x, const void* p) {
    asm volatile("prfm pldl2keep, %2" : "+w"(x.a), "+w"(x.b) : "Q"(*static_cast<const char*>(p)));
  }
  static void store(float* p, F x) {
    vst1q_f32(p, x.a);
    vst1q_f32(p + 4, x.b);
  }
  static void store_past(float* p, F x) { store(p, x); }
  static void finish_stores() {}
  static F load_fours(const float* p, int step) { return {vld1q_f32(p), vld1q_f32(p + step)}; }  // lanes 4 i + j: p[step * i + j]
  static F load_part(const float* p, int n) {                                                    // n < 8, then zeros
    float lanes[8] = {};
    __builtin_memcpy(lanes, p, static_cast<size_t>(n) * 4);
    return load(lanes);
  }
  static void store_part(float* p, F x, int n) {
    float lanes[8];
    store(lanes, x);
    __builtin_memcpy(p, lanes, static_cast<size_t>(n) * 4);
  }
  static F add(F x, F y) { return {vaddq_f32(x.a, y.a), vaddq_f32(x.b, y.b)}; }
  static F sub(F x, F y) { return {vsubq_f32(x.a, y.a), vsubq_f32(x.b, y.b)}; }
  static F mul(F x, F y) { return {vmulq_f32(x.a, y.a), vmulq_f32(x.b, y.b)}; }
  static F div(F x, F y) { return {vdivq_f32(x.a, y.a), vdivq_f32(x.b, y.b)}; }
  static F fma(F x, F y, F z) { return {vfmaq_f32(z.a, x.a, y.a), vfmaq_f32(z.b, x.b, y.b)}; }   // x y + z
  static F fnma(F x, F y, F z) { return {vfmsq_f32(z.a, x.a, y.a), vfmsq_f32(z.b, x.b, y.b)}; }  // z - x y
  static F max(F x, F y) { return {max4(x.a, y.a), max4(x.b, y.b)}; }                            // y where either is NaN
  static F min(F x, F y) { return {min4(x.a, y.a), min4(x.b, y.b)}; }
  static F nearest(F x) { return {vrndnq_f32(x.a), vrndnq_f32(x.b)}; }
  // x * 2^n for integral n in [-150, 128], in two steps so that neither factor leaves the normal range.
  static F scale_by_power(F x, F n) { return {scale4(x.a, n.a), scale4(x.b, n.b)}; }
  // The last bits of x as an exponent: 2^(bits - 127).
  static F exponent(F x) { return {exponent4(x.a), exponent4(x.b)}; }
  // x; 0 where `at` is below `least`.
  static F zero_below(F x, F at, float least) { return {zero_below4(x.a, at.a, least), zero_below4(x.b, at.b, least)}; }
  // Lanes [from, to) of x; -infinity in the other lanes.
  static F keep(F x, int from, int to) { return {keep4(x.a, from, to), keep4(x.b, from - 4, to - 4)}; }
  static float sum(F x) { return vaddvq_f32(vaddq_f32(x.a, x.b)); }
  static float largest(F x) { return vmaxvq_f32(vmaxq_f32(x.a, x.b)); }
  // Every lane becomes the maximum (the sum) of the lanes whose numbers differ from its own by multiples of `period`.
  static F fold_max(F x, int period) {
    for (int step = period; step < 8; step *= 2) x = max(x, across(x, step));
    return x;
  }
  static F partners(F x, int step) { return across(x, step); }  // each lane gets lane ^ step; step: 1, 2, 4, ...
  static F fold_sum(F x, int period) {
    for (int step = period; step < 8; step *= 2) x = add(x, across(x, step));
    return x;
  }
  // apart(): two vectors of pairs become a vector of first numbers and a vector of second numbers. beside() is the inverse.
  static void apart(F& x, F& y) {
    const F first = {vuzp1q_f32(x.a, x.b), vuzp1q_f32(y.a, y.b)};
    y = {vuzp2q_f32(x.a, x.b), vuzp2q_f32(y.a, y.b)};
    x = first;
  }
  static void beside(F& x, F& y) {
    const F first = {vzip1q_f32(x.a, y.a), vzip2q_f32(x.a, y.a)};
    y = {vzip1q_f32(x.b, y.b), vzip2q_f32(x.b, y.b)};
    x = first;
  }
  // Repeats p[0 .. period); period divides 8.
  static F repeat(const float* p, int period) {
    float lanes[8];
    for (int i = 0; i < 8; ++i) lanes[i] = p[i % period];
    return load(lanes);
  }
  // Writes first + i for each lane i that is at least `low`, and returns how many.
  static int list_reaching(F x, float low, uint32_t first, uint32_t* out) {
    alignas(16) float lanes[kLanes];
    store(lanes, x);
    int n = 0;
    for (uint32_t i = 0; i < kLanes; ++i) {  // every store stays within a vector's length
      out[n] = first + i;
      n += lanes[i] >= low;
    }
    return n;
  }
  static int count_above(F x, float high) {
    alignas(16) float lanes[kLanes];
    store(lanes, x);
    int n = 0;
    for (int i = 0; i < kLanes; ++i) n += lanes[i] > high;
    return n;
  }
  static F equal_select(F x, float y, F if_equal, F otherwise) {
    const float32x4_t all = vdupq_n_f32(y);
    return {vbslq_f32(vceqq_f32(x.a, all), if_equal.a, otherwise.a), vbslq_f32(vceqq_f32(x.b, all), if_equal.b, otherwise.b)};
  }
  // The sums of eight vectors.
  static F sum_eight(const F* x) {
    float32x4_t s[8];
    for (int i = 0; i < 8; ++i) s[i] = vaddq_f32(x[i].a, x[i].b);
    return {vpaddq_f32(vpaddq_f32(s[0], s[1]), vpaddq_f32(s[2], s[3])), vpaddq_f32(vpaddq_f32(s[4], s[5]), vpaddq_f32(s[6], s[7]))};
  }
  static void store_eight(float* p, F x) { store(p, x); }

  // sums (64) = for each key the sum of its entries in n tables of 16 bytes. Byte i of a row of 32: key i in the low half, key i + 32 in
  // the high half. Words are summed as fast as bytes, so kOfByte does not matter.
  template <int kQueries, int kOfByte>
  static void add_entries(const uint8_t* const* tables, const uint8_t* rows, int n, uint16_t (*sums)[64]) {
    for (int q = 0; q < kQueries; ++q) add_entries(tables[q], rows, n, sums[q]);
  }
  static void add_entries(const uint8_t* tables, const uint8_t* rows, int n, uint16_t* sums) {
    uint16x8_t all[8];
    for (uint16x8_t& x : all) x = vdupq_n_u16(0);
    for (int i = 0; i < n; ++i) {
      const uint8x16_t table = vld1q_u8(tables + 16 * i);
      for (int part = 0; part < 2; ++part) {
        const uint8x16_t row = vld1q_u8(rows + 32 * i + 16 * part);
        const uint8x16_t low = vqtbl1q_u8(table, vandq_u8(row, vdupq_n_u8(15))), high = vqtbl1q_u8(table, vshrq_n_u8(row, 4));
        uint16x8_t *of_low = all + 2 * part, *of_high = all + 4 + 2 * part;
        of_low[0] = vaddw_u8(of_low[0], vget_low_u8(low)), of_low[1] = vaddw_u8(of_low[1], vget_high_u8(low));
        of_high[0] = vaddw_u8(of_high[0], vget_low_u8(high)), of_high[1] = vaddw_u8(of_high[1], vget_high_u8(high));
      }
    }
    for (int i = 0; i < 8; ++i) vst1q_u16(sums + 8 * i, all[i]);
  }
  static F from_words(const uint16_t* p) {
    const uint16x8_t x = vld1q_u16(p);
    return {vcvtq_f32_u32(vmovl_u16(vget_low_u16(x))), vcvtq_f32_u32(vmovl_u16(vget_high_u16(x)))};
  }
  // Whole numbers from -128 to 127.
  static void store_bytes(void* p, F x) {
    const int16x8_t words = vcombine_s16(vmovn_s32(vcvtnq_s32_f32(x.a)), vmovn_s32(vcvtnq_s32_f32(x.b)));
    vst1_s8(static_cast<int8_t*>(p), vmovn_s16(words));
  }
  static F load_half(const void* p) { return halves(vld1q_u16(static_cast<const uint16_t*>(p))); }
  static F load_half_part(const void* p, int n) { return halves(load_words(p, n)); }
  static void store_half(void* p, F x) {
    vst1_u16(static_cast<uint16_t*>(p), vreinterpret_u16_f16(vcvt_f16_f32(x.a)));
    vst1_u16(static_cast<uint16_t*>(p) + 4, vreinterpret_u16_f16(vcvt_f16_f32(x.b)));
  }
  static F load_bfloat(const void* p) { return bfloats(vld1q_u16(static_cast<const uint16_t*>(p))); }
  static F load_bfloat_part(const void* p, int n) { return bfloats(load_words(p, n)); }
  // Chunk `i` (8 values) of a Q8_0 vector, and of a Q4_0 vector.
  static F load_q8(const uint8_t* vector, int i) {
    const uint8_t* block = vector + i / 4 * 34;
    return scaled_bytes(vreinterpret_s8_u8(vld1_u8(block + 2 + i % 4 * 8)), half_value(block));
  }
  static F load_q4(const uint8_t* vector, int i) {
    const uint8_t* block = vector + i / 4 * 18;
    return scaled_bytes(nibbles_q4(block, i % 4), half_value(block));
  }

  // Chunk `i` of a block's 32 values as integers: the values at places 8 i .. 8 i + 7. Q4_0's values are in units of q4_unit(i),
  // and the value at place j belongs to dimension q4_dim(j).
  static F integers_q8(const uint8_t* block, int i) { return scaled_bytes(vreinterpret_s8_u8(vld1_u8(block + 2 + i * 8)), 1.0f); }
  static F integers_q4(const uint8_t* block, int i) { return scaled_bytes(nibbles_q4(block, i), 1.0f); }
  static constexpr float q4_unit(int) { return 1.0f; }
  static constexpr int q4_dim(int i) { return i; }
  static F set_half(const uint8_t* p) { return set(half_value(p)); }

  static double sum_squares(const float* x, int64_t n) {
    float64x2_t s[4] = {vdupq_n_f64(0), vdupq_n_f64(0), vdupq_n_f64(0), vdupq_n_f64(0)};
    for (int64_t i = 0; i < n; i += 8) {
      const F v = n - i >= 8 ? load(x + i) : load_part(x + i, static_cast<int>(n - i));
      const float64x2_t d[4] = {vcvt_f64_f32(vget_low_f32(v.a)), vcvt_high_f64_f32(v.a), vcvt_f64_f32(vget_low_f32(v.b)),
                                vcvt_high_f64_f32(v.b)};
      for (int j = 0; j < 4; ++j) s[j] = vfmaq_f64(s[j], d[j], d[j]);
    }
    return vaddvq_f64(vaddq_f64(vaddq_f64(s[0], s[1]), vaddq_f64(s[2], s[3])));
  }

  // Transposes eight vectors of eight lanes.
  static void transpose(F* r) {
    float32x4_t left[8], right[8];
    for (int i = 0; i < 8; ++i) {
      left[i] = r[i].a;
      right[i] = r[i].b;
    }
    for (int i = 0; i < 8; i += 4) {
      transpose4(left + i);
      transpose4(right + i);
    }
    for (int i = 0; i < 4; ++i) {
      r[i] = {left[i], left[4 + i]};
      r[4 + i] = {right[i], right[4 + i]};
    }
  }

  // 32 floats: the bits of the largest magnitude; conversion to int8, with the sums of each 16.
  struct Block32 {
    float32x4_t v[8];
  };
  static Block32 load32(const float* p) {
    Block32 x;
    for (int i = 0; i < 8; ++i) x.v[i] = vld1q_f32(p + 4 * i);
    return x;
  }
  static uint32_t largest_bits(const Block32& x) {
    uint32x4_t m = vdupq_n_u32(0);
    for (const float32x4_t& v : x.v) m = vmaxq_u32(m, vandq_u32(vreinterpretq_u32_f32(v), vdupq_n_u32(0x7FFFFFFF)));
    return vmaxvq_u32(m);
  }
  static void quantize32(const Block32& x, float inverse, int8_t* q, int16_t* sums) {
    for (int half = 0; half < 2; ++half) {
      int16x4_t words[4];
      for (int i = 0; i < 4; ++i) words[i] = vqmovn_s32(vcvtnq_s32_f32(vmulq_n_f32(x.v[4 * half + i], inverse)));
      const int8x16_t bytes = vcombine_s8(vqmovn_s16(vcombine_s16(words[0], words[1])), vqmovn_s16(vcombine_s16(words[2], words[3])));
      vst1q_s8(q + 16 * half, bytes);
      sums[half] = vaddlvq_s8(bytes);
    }
  }

 private:
  static float32x4_t max4(float32x4_t x, float32x4_t y) { return vbslq_f32(vcgtq_f32(x, y), x, y); }
  static float32x4_t min4(float32x4_t x, float32x4_t y) { return vbslq_f32(vcltq_f32(x, y), x, y); }
  static float32x4_t power(int32x4_t n) { return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(n, vdupq_n_s32(127)), 23)); }
  static float32x4_t scale4(float32x4_t x, float32x4_t n) {
    const int32x4_t whole = vcvtnq_s32_f32(n), half = vshrq_n_s32(whole, 1);
    return vmulq_f32(vmulq_f32(x, power(half)), power(vsubq_s32(whole, half)));
  }
  static float32x4_t exponent4(float32x4_t x) { return vreinterpretq_f32_s32(vshlq_n_s32(vreinterpretq_s32_f32(x), 23)); }
  static float32x4_t zero_below4(float32x4_t x, float32x4_t at, float least) {
    return vbslq_f32(vcltq_f32(at, vdupq_n_f32(least)), vdupq_n_f32(0.0f), x);
  }
  static float32x4_t keep4(float32x4_t x, int from, int to) {
    const int32_t numbers[4] = {0, 1, 2, 3};
    const int32x4_t lane = vld1q_s32(numbers);
    const uint32x4_t in = vandq_u32(vcltq_s32(lane, vdupq_n_s32(to)), vcgeq_s32(lane, vdupq_n_s32(from)));
    return vbslq_f32(in, x, vdupq_n_f32(-__builtin_inff()));
  }
  static F across(F x, int step) {  // step is 1, 2 or 4
    if (step == 4) return {x.b, x.a};
    if (step == 2) return {vextq_f32(x.a, x.a, 2), vextq_f32(x.b, x.b, 2)};
    return {vrev64q_f32(x.a), vrev64q_f32(x.b)};
  }
  static int8x8_t nibbles_q4(const uint8_t* block, int i) {
    uint8x8_t q = vld1_u8(block + 2 + i % 2 * 8);
    q = i >= 2 ? vshr_n_u8(q, 4) : vand_u8(q, vdup_n_u8(15));
    return vsub_s8(vreinterpret_s8_u8(q), vdup_n_s8(8));
  }
  static uint16x8_t load_words(const void* p, int n) {  // n < 8 16-bit values, then zeros
    uint16_t words[8] = {};
    __builtin_memcpy(words, p, static_cast<size_t>(n) * 2);
    return vld1q_u16(words);
  }
  static F halves(uint16x8_t x) {
    const float16x8_t h = vreinterpretq_f16_u16(x);
    return {vcvt_f32_f16(vget_low_f16(h)), vcvt_high_f32_f16(h)};
  }
  static F bfloats(uint16x8_t x) {
    return {vreinterpretq_f32_u32(vshlq_n_u32(vmovl_u16(vget_low_u16(x)), 16)), vreinterpretq_f32_u32(vshlq_n_u32(vmovl_high_u16(x), 16))};
  }
  static F scaled_bytes(int8x8_t q, float d) {
    const int16x8_t words = vmovl_s8(q);
    return {vmulq_n_f32(vcvtq_f32_s32(vmovl_s16(vget_low_s16(words))), d), vmulq_n_f32(vcvtq_f32_s32(vmovl_high_s16(words)), d)};
  }
  static void transpose4(float32x4_t* r) {
    const float32x4_t a = vtrn1q_f32(r[0], r[1]), b = vtrn2q_f32(r[0], r[1]);
    const float32x4_t c = vtrn1q_f32(r[2], r[3]), d = vtrn2q_f32(r[2], r[3]);
    const auto low = [](float32x4_t x, float32x4_t y) {
      return vreinterpretq_f32_f64(vtrn1q_f64(vreinterpretq_f64_f32(x), vreinterpretq_f64_f32(y)));
    };
    const auto high = [](float32x4_t x, float32x4_t y) {
      return vreinterpretq_f32_f64(vtrn2q_f64(vreinterpretq_f64_f32(x), vreinterpretq_f64_f32(y)));
    };
    r[0] = low(a, c);
    r[1] = low(b, d);
    r[2] = high(a, c);
    r[3] = high(b, d);
  }
};

}  // namespace
}  // namespace orrery::cpu
