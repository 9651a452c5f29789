// The vector V of the shared kernels, 256 bits wide: AVX2, FMA and F16C. Only files that are compiled for these instructions
// include it. Include it after vectors/bytes_avx2.h or vectors/bytes_avx2vnni.h, which define how V multiplies bytes.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "runtime/cpu/formats/blocks_x86.h"
#include "runtime/cpu/formats/grids_x86.h"
#include "runtime/cpu/vectors/table_sums_avx2.h"

namespace orrery::cpu {
namespace {

// For each byte of eight marks: the numbers of the marked lanes, ascending.
struct MarkedLanes {
  uint32_t numbers[256][8] = {};
  constexpr MarkedLanes() {
    for (uint32_t marks = 0; marks < 256; ++marks) {
      int n = 0;
      for (uint32_t lane = 0; lane < 8; ++lane)
        if (marks >> lane & 1) numbers[marks][n++] = lane;
    }
  }
};
constexpr MarkedLanes kMarkedLanes;

struct V : ByteProducts, TableSums {
  using F = __m256;
  using I = __m256i;
  static constexpr int kLanes = 8;
  static constexpr int kGemmVectors = 2;  // width of a float tile, in vectors
  static constexpr int kAccumulators = 8;

  static F zero() { return _mm256_setzero_ps(); }
  static F set(float x) { return _mm256_set1_ps(x); }
  static F load(const float* p) { return _mm256_loadu_ps(p); }
  static void hold(F& x) { asm("" : "+x"(x)); }  // keeps x in a register, so that the compiler does not load it again
  // ask(): prefetches a cache line into the second-level cache. ask_behind(): the same, ordered after the instruction that made x,
  // so that compilers do not move it.
  static void ask(const void* p) { __builtin_prefetch(p, 0, 2); }
  static void ask_behind(F& x, const void* p) { asm volatile("prefetcht1 %1" : "+x"(x) : "m"(*static_cast<const char*>(p))); }
  static void ask_behind(I& x, const void* p) { asm volatile("prefetcht1 %1" : "+x"(x) : "m"(*static_cast<const char*>(p))); }
  static void store(float* p, F x) { _mm256_storeu_ps(p, x); }
  // Non-temporal store, past the caches, to an aligned address. Nobody reads it before finish_stores().
  static void store_past(float* p, F x) { _mm256_stream_ps(p, x); }
  static void finish_stores() { _mm_sfence(); }
  static F load_fours(const float* p, int step) {  // lanes 4 i + j: p[step * i + j]
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(p)), _mm_loadu_ps(p + step), 1);
  }
  static I first(int n) {  // n < 8
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), lane_numbers());
  }
  static F load_part(const float* p, int n) { return _mm256_maskload_ps(p, first(n)); }
  static void store_part(float* p, F x, int n) { _mm256_maskstore_ps(p, first(n), x); }
  static F add(F a, F b) { return _mm256_add_ps(a, b); }
  static F sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F div(F a, F b) { return _mm256_div_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }    // a b + c
  static F fnma(F a, F b, F c) { return _mm256_fnmadd_ps(a, b, c); }  // c - a b
  static F max(F a, F b) { return _mm256_max_ps(a, b); }              // b where either is NaN
  static F min(F a, F b) { return _mm256_min_ps(a, b); }
  static F nearest(F x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  // x * 2^n for integral n in [-150, 128], in two steps so that neither factor leaves the normal range.
  static F scale_by_power(F x, F n) {
    const I whole = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(whole, 1);
    return mul(mul(x, power(half)), power(_mm256_sub_epi32(whole, half)));
  }
  // The last bits of x as an exponent: 2^(bits - 127).
  static F exponent(F x) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(x), 23)); }
  // x; 0 where `at` is below `least`.
  static F zero_below(F x, F at, float least) { return _mm256_and_ps(x, _mm256_cmp_ps(at, set(least), _CMP_NLT_UQ)); }
  // Lanes [from, to) of x; -infinity in the other lanes.
  static F keep(F x, int from, int to) {
    const I in = _mm256_and_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(to), lane_numbers()),
                                  _mm256_cmpgt_epi32(lane_numbers(), _mm256_set1_epi32(from - 1)));
    return _mm256_blendv_ps(set(-__builtin_inff()), x, _mm256_castsi256_ps(in));
  }
  static float sum(F x) { return sum256(x); }
  static float largest(F x) { return max256(x); }
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
  static void apart(F& a, F& b) {
    const F first = _mm256_shuffle_ps(a, b, 0x88), second = _mm256_shuffle_ps(a, b, 0xDD);
    a = _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(first), 0xD8));
    b = _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(second), 0xD8));
  }
  static void beside(F& a, F& b) {
    const F low = _mm256_unpacklo_ps(a, b), high = _mm256_unpackhi_ps(a, b);
    a = _mm256_permute2f128_ps(low, high, 0x20);
    b = _mm256_permute2f128_ps(low, high, 0x31);
  }
  // Repeats p[0 .. period); period divides 8.
  static F repeat(const float* p, int period) {
    const I index = _mm256_and_si256(lane_numbers(), _mm256_set1_epi32(period - 1));
    return _mm256_permutevar8x32_ps(period < 8 ? load_part(p, period) : load(p), index);
  }
  // Writes first + i for each lane i that is at least `low`, and returns how many; writes a whole vector.
  static int list_reaching(F x, float low, uint32_t first, uint32_t* out) {
    const auto marks = static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(x, set(low), _CMP_GE_OQ)));
    const __m256i numbers = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(kMarkedLanes.numbers[marks]));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm256_add_epi32(numbers, _mm256_set1_epi32(static_cast<int>(first))));
    return __builtin_popcount(marks);
  }
  static int count_above(F x, float high) {
    return __builtin_popcount(static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(x, set(high), _CMP_GT_OQ))));
  }
  static F equal_select(F a, float b, F if_equal, F otherwise) {
    return _mm256_blendv_ps(otherwise, if_equal, _mm256_cmp_ps(a, set(b), _CMP_EQ_OQ));
  }
  static void store_eight(float* p, __m256 x) { _mm256_storeu_ps(p, x); }
  // The sums of eight vectors. At each level two vectors become one, by a blend and a single shuffle, because few ports shuffle.
  static __m256 sum_eight(const F* a) {
    F b[4], c[2];
    for (int i = 0; i < 4; ++i) b[i] = add(_mm256_blend_ps(a[i], a[i + 4], 0xF0), _mm256_permute2f128_ps(a[i], a[i + 4], 0x21));
    for (int i = 0; i < 2; ++i) c[i] = add(_mm256_blend_ps(b[2 * i], b[2 * i + 1], 0xCC), _mm256_shuffle_ps(b[2 * i], b[2 * i + 1], 0x4E));
    return add(_mm256_shuffle_ps(c[0], c[1], 0x88), _mm256_shuffle_ps(c[0], c[1], 0xDD));
  }

  static F from_words(const uint16_t* p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  }
  // Whole numbers from -128 to 127.
  static void store_bytes(void* p, F x) {
    const I numbers = _mm256_cvtps_epi32(x);
    const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(numbers), _mm256_extracti128_si256(numbers, 1));
    _mm_storel_epi64(static_cast<__m128i*>(p), _mm_packs_epi16(words, words));
  }
  static F load_half(const void* p) { return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(p))); }
  static F load_half_part(const void* p, int n) { return _mm256_cvtph_ps(load_words(p, n)); }
  static void store_half(void* p, F x) { _mm_storeu_si128(static_cast<__m128i*>(p), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT)); }
  static F bfloat(__m128i x) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16)); }
  static F load_bfloat(const void* p) { return bfloat(_mm_loadu_si128(static_cast<const __m128i*>(p))); }
  static F load_bfloat_part(const void* p, int n) { return bfloat(load_words(p, n)); }
  // Chunk `i` (8 values) of a Q8_0 vector, and of a Q4_0 vector.
  static F load_q8(const uint8_t* vector, int i) {
    const uint8_t* block = vector + i / 4 * 34;
    const __m128i q = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(block + 2 + i % 4 * 8));
    return mul(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(q)), set(half_value(block)));
  }
  static F load_q4(const uint8_t* vector, int i) {
    const uint8_t* block = vector + i / 4 * 18;
    __m128i q = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(block + 2 + i % 2 * 8));
    if (i % 4 >= 2) q = _mm_srli_epi16(q, 4);
    q = _mm_sub_epi8(_mm_and_si128(q, _mm_set1_epi8(15)), _mm_set1_epi8(8));
    return mul(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(q)), set(half_value(block)));
  }
  // Chunk `i` of a block's 32 values, without the scale. Q4_0: dword j holds the nibbles of dimensions 2 j, 2 j + 16, 2 j + 1 and 2
  // j + 17. A chunk takes one of the four nibbles without shifting it, so its values are in units of q4_unit(i).
  static F integers_q8(const uint8_t* block, int i) {
    const __m128i q = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(block + 2 + i * 8));
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(q));
  }
  static F integers_q4(const uint8_t* block, int i) {
    const I nibbles = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(block + 2)));
    return _mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_and_si256(nibbles, set_i(15 << 4 * i)), set_i(8 << 4 * i)));
  }
  static constexpr float q4_unit(int i) { return 1.0f / static_cast<float>(1 << 4 * i); }
  static constexpr int q4_dim(int i) { return i % 8 * 2 + i / 8 % 2 * 16 + i / 16; }  // the dimension at place i of the block
  static F set_half(const uint8_t* p) { return _mm256_cvtph_ps(_mm_set1_epi16(word<int16_t>(p))); }

  static double sum_squares(const float* x, int64_t n) {
    __m256d a = _mm256_setzero_pd(), b = a;
    for (int64_t i = 0; i < n; i += 8) {
      const F v = n - i >= 8 ? load(x + i) : load_part(x + i, static_cast<int>(n - i));
      const __m256d low = _mm256_cvtps_pd(_mm256_castps256_ps128(v));
      const __m256d high = _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1));
      a = _mm256_fmadd_pd(low, low, a);
      b = _mm256_fmadd_pd(high, high, b);
    }
    return sum256(_mm256_add_pd(a, b));
  }

  // Integers. ByteProducts has the products of bytes for decode and prefill.
  static I zero_i() { return _mm256_setzero_si256(); }
  static I set_i(int32_t x) { return _mm256_set1_epi32(x); }
  static I load_i(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
  static void store_i(void* p, I x) { _mm256_storeu_si256(static_cast<__m256i*>(p), x); }
  static F to_float(I x) { return _mm256_cvtepi32_ps(x); }

  static I repeated(const int8_t* four) {  // loads as a float: a float broadcast needs no arithmetic port
    return _mm256_castps_si256(set(word<float>(reinterpret_cast<const uint8_t*>(four))));
  }

  // Transposes eight vectors of eight dwords.
  static void transpose(F* r) {
    F a[8], b[8];
    for (int i = 0; i < 8; i += 2) {
      a[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
      a[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
      b[i] = _mm256_shuffle_ps(a[i], a[i + 2], 0x44);
      b[i + 1] = _mm256_shuffle_ps(a[i], a[i + 2], 0xEE);
      b[i + 2] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0x44);
      b[i + 3] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0xEE);
    }
    for (int c = 0; c < 4; ++c) {
      r[c] = _mm256_permute2f128_ps(b[c], b[4 + c], 0x20);
      r[4 + c] = _mm256_permute2f128_ps(b[c], b[4 + c], 0x31);
    }
  }

  // 32 floats: the bits of the largest magnitude; conversion to int8, with the sums of each 16.
  struct Block32 {
    F v[4];
  };
  static Block32 load32(const float* p) { return {{load(p), load(p + 8), load(p + 16), load(p + 24)}}; }
  static uint32_t largest_bits(const Block32& x) {
    I m = zero_i();
    for (const F& v : x.v) m = _mm256_max_epi32(m, _mm256_and_si256(_mm256_castps_si256(v), set_i(0x7FFFFFFF)));
    __m128i n = _mm_max_epi32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
    n = _mm_max_epi32(n, _mm_shuffle_epi32(n, 0x4E));
    n = _mm_max_epi32(n, _mm_shuffle_epi32(n, 0xB1));
    return static_cast<uint32_t>(_mm_cvtsi128_si32(n));
  }
  static void quantize32(const Block32& x, float inverse, int8_t* q, int16_t* sums) {
    I n[4];
    for (int i = 0; i < 4; ++i) n[i] = _mm256_cvtps_epi32(mul(x.v[i], set(inverse)));
    const I words01 = _mm256_packs_epi32(n[0], n[1]), words23 = _mm256_packs_epi32(n[2], n[3]);
    // Packing works within 128-bit lanes, so dwords arrive in the order 0 2 4 6 1 3 5 7.
    const I bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(words01, words23), _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    store_i(q, bytes);
    sums[0] = static_cast<int16_t>(sum_i(_mm256_add_epi32(n[0], n[1])));
    sums[1] = static_cast<int16_t>(sum_i(_mm256_add_epi32(n[2], n[3])));
  }

 private:
  static I lane_numbers() { return _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7); }
  static F across(F x, int step) { return _mm256_permutevar8x32_ps(x, _mm256_xor_si256(lane_numbers(), _mm256_set1_epi32(step))); }
  static F power(I n) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, set_i(127)), 23)); }
  static int32_t sum_i(I x) {
    __m128i n = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    n = _mm_add_epi32(n, _mm_shuffle_epi32(n, 0x4E));
    n = _mm_add_epi32(n, _mm_shuffle_epi32(n, 0xB1));
    return _mm_cvtsi128_si32(n);
  }
  static __m128i load_words(const void* p, int n) {                      // n < 8 16-bit values, then zeros
    if (n == 4) return _mm_loadl_epi64(static_cast<const __m128i*>(p));  // low-rank keys have 4; a copy would wait for its own stores
    uint16_t words[8] = {};
    __builtin_memcpy(words, p, static_cast<size_t>(n) * 2);
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(words));
  }
};

}  // namespace
}  // namespace orrery::cpu
