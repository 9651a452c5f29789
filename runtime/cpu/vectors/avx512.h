// The vector V of the shared kernels, 512 bits wide: AVX-512 F, BW, VL, DQ and VNNI. Only files that are compiled for these
// instructions include it.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "runtime/cpu/formats/blocks_x86.h"
#include "runtime/cpu/formats/grids_x86.h"
#include "runtime/cpu/vectors/table_sums_avx2.h"

namespace orrery::cpu {
namespace {

struct V : TableSums {
  using F = __m512;
  using I = __m512i;
  static constexpr int kLanes = 16;
  static constexpr int kGemmVectors = 4;  // width of a float tile, in vectors
  static constexpr int kAccumulators = 16;

  static F zero() { return _mm512_setzero_ps(); }
  static F set(float x) { return _mm512_set1_ps(x); }
  static F load(const float* p) { return _mm512_loadu_ps(p); }
  static void hold(F& x) {  // keeps x in a register, so that the compiler does not load it again
#ifdef __AVX512F__          // not in emulation
    asm("" : "+v"(x));
#else
    (void)x;
#endif
  }
  // ask(): prefetches a cache line into the second-level cache. ask_behind(): the same, ordered after the instruction that made x,
  // so that compilers do not move it.
  static void ask(const void* p) { __builtin_prefetch(p, 0, 2); }
  template <class X>
  static void ask_behind(X& x, const void* p) {
#ifdef __AVX512F__
    asm volatile("prefetcht1 %1" : "+v"(x) : "m"(*static_cast<const char*>(p)));
#else
    (void)x, ask(p);
#endif
  }
  // As ask_behind(), into the first-level cache.
  template <class X>
  static void ask_near_behind(X& x, const void* p) {
#ifdef __AVX512F__
    asm volatile("prefetcht0 %1" : "+v"(x) : "m"(*static_cast<const char*>(p)));
#else
    (void)x, __builtin_prefetch(p, 0, 3);
#endif
  }
  // TableSums::add_entries(), two rows at once.
  template <int kQueries, int kOfByte>
  static void add_entries(const uint8_t* const* tables, const uint8_t* rows, int n, uint16_t (*sums)[64]) {
    I both[kQueries][2], odd[kQueries][2];
    _Pragma("GCC unroll 4") for (int q = 0; q < kQueries; ++q) _Pragma("GCC unroll 4") for (int half = 0; half < 2; ++half) both[q][half] =
        odd[q][half] = _mm512_setzero_si512();
    int i = 0;
    for (; i + 2 * kOfByte <= n; i += 2 * kOfByte) add_row_pairs<kQueries, kOfByte>(tables, rows, i, n, both, odd);
    for (; i < n; i += 2) add_row_pairs<kQueries, 1>(tables, rows, i, n, both, odd);
    const auto halves = [](I x) { return _mm256_add_epi16(_mm512_castsi512_si256(x), _mm512_extracti64x4_epi64(x, 1)); };
    _Pragma("GCC unroll 4") for (int q = 0; q < kQueries; ++q) _Pragma("GCC unroll 4") for (int half = 0; half < 2; ++half)
        store_words(halves(both[q][half]), halves(odd[q][half]), sums[q] + 32 * half);
  }
  // Adds the entries of kPairs pairs of rows from row i on; row n and those behind it have none.
  template <int kQueries, int kPairs>
  static void add_row_pairs(const uint8_t* const* tables, const uint8_t* rows, int i, int n, I (*both)[2], I (*odd)[2]) {
    const I low = _mm512_set1_epi8(15), twice = _mm512_setr_epi64(0, 1, 0, 1, 2, 3, 2, 3);
    I keys[kPairs][2];
    const auto is_whole = [&](int pair) { return kPairs > 1 || i + 2 * pair + 1 < n; };  // else one row is left
    _Pragma("GCC unroll 4") for (int pair = 0; pair < kPairs; ++pair) {
      const I row = _mm512_maskz_loadu_epi64(is_whole(pair) ? 0xFF : 0x0F, rows + 32 * (i + 2 * pair));
      keys[pair][0] = _mm512_and_si512(row, low), keys[pair][1] = _mm512_and_si512(_mm512_srli_epi16(row, 4), low);
    }
    _Pragma("GCC unroll 4") for (int q = 0; q < kQueries; ++q) {
      I entries[2];
      _Pragma("GCC unroll 4") for (int pair = 0; pair < kPairs; ++pair) {
        const I table = _mm512_permutexvar_epi64(
            twice, _mm512_castsi256_si512(_mm256_maskz_loadu_epi64(is_whole(pair) ? 0xF : 0x3, tables[q] + 16 * (i + 2 * pair))));
        _Pragma("GCC unroll 4") for (int half = 0; half < 2; ++half) {
          const I of_pair = _mm512_shuffle_epi8(table, keys[pair][half]);
          entries[half] = pair == 0 ? of_pair : _mm512_add_epi8(entries[half], of_pair);
        }
      }
      _Pragma("GCC unroll 4") for (int half = 0; half < 2; ++half) {
        both[q][half] = _mm512_add_epi16(both[q][half], entries[half]);
        odd[q][half] = _mm512_add_epi16(odd[q][half], _mm512_srli_epi16(entries[half], 8));
      }
    }
  }
  static void store(float* p, F x) { _mm512_storeu_ps(p, x); }
  static F from_words(const uint16_t* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))));
  }
  // Whole numbers from -128 to 127.
  static void store_bytes(void* p, F x) { _mm_storeu_si128(static_cast<__m128i*>(p), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(x))); }
  // Non-temporal store, past the caches, to an aligned address. Nobody reads it before finish_stores().
  static void store_past(float* p, F x) {
    _mm256_stream_ps(p, _mm512_castps512_ps256(x));
    _mm256_stream_ps(p + 8, _mm512_extractf32x8_ps(x, 1));
  }
  static void finish_stores() { _mm_sfence(); }
  static F load_fours(const float* p, int step) {  // lanes 4 i + j: p[step * i + j]
    F x = _mm512_castps128_ps512(_mm_loadu_ps(p));
    x = _mm512_insertf32x4(x, _mm_loadu_ps(p + step), 1);
    x = _mm512_insertf32x4(x, _mm_loadu_ps(p + 2 * step), 2);
    return _mm512_insertf32x4(x, _mm_loadu_ps(p + 3 * step), 3);
  }
  static __mmask16 first(int n) { return static_cast<__mmask16>((1u << n) - 1); }  // n < 16
  static F load_part(const float* p, int n) { return _mm512_maskz_loadu_ps(first(n), p); }
  static void store_part(float* p, F x, int n) { _mm512_mask_storeu_ps(p, first(n), x); }
  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F div(F a, F b) { return _mm512_div_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }    // a b + c
  static F fnma(F a, F b, F c) { return _mm512_fnmadd_ps(a, b, c); }  // c - a b
  static F max(F a, F b) { return _mm512_max_ps(a, b); }              // b where either is NaN
  static F min(F a, F b) { return _mm512_min_ps(a, b); }
  static F nearest(F x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static F scale_by_power(F x, F n) { return _mm512_scalef_ps(x, n); }  // x * 2^n, n whole
  // The last bits of x as an exponent: 2^(bits - 127).
  static F exponent(F x) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(x), 23)); }
  // x; 0 where `at` is below `least`.
  static F zero_below(F x, F at, float least) { return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(at, set(least), _CMP_NLT_UQ), x); }
  // Lanes [from, to) of x; -infinity in the other lanes.
  static F keep(F x, int from, int to) {
    const uint32_t low = (1u << to) - 1, under = (1u << from) - 1;
    return _mm512_mask_blend_ps(static_cast<__mmask16>(low & ~under), set(-__builtin_inff()), x);
  }
  static float sum(F x) {
    const __m256 a = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    return sum256(a);
  }
  static float largest(F x) { return max256(_mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1))); }
  // Every lane becomes the maximum (the sum) of the lanes whose numbers differ from its own by multiples of `period`.
  static F fold_max(F x, int period) {
    for (int step = period; step < 16; step *= 2) x = max(x, across(x, step));
    return x;
  }
  static F partners(F x, int step) { return across(x, step); }  // each lane gets lane ^ step; step: 1, 2, 4, ...
  static F fold_sum(F x, int period) {
    for (int step = period; step < 16; step *= 2) x = add(x, across(x, step));
    return x;
  }
  // apart(): two vectors of pairs become a vector of first numbers and a vector of second numbers. beside() is the inverse.
  static void apart(F& a, F& b) {
    const I firsts = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const F first = _mm512_permutex2var_ps(a, firsts, b);
    b = _mm512_permutex2var_ps(a, _mm512_add_epi32(firsts, set_i(1)), b);
    a = first;
  }
  static void beside(F& a, F& b) {
    const I firsts = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const F first = _mm512_permutex2var_ps(a, firsts, b);
    b = _mm512_permutex2var_ps(a, _mm512_add_epi32(firsts, set_i(8)), b);
    a = first;
  }
  // Repeats p[0 .. period); period divides 8.
  static F repeat(const float* p, int period) {
    return _mm512_permutexvar_ps(_mm512_and_si512(lane_numbers(), _mm512_set1_epi32(period - 1)), load_part(p, period));
  }
  static F equal_select(F a, float b, F if_equal, F otherwise) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, set(b), _CMP_EQ_OQ), otherwise, if_equal);
  }
  // Writes first + i for each lane i that is at least `low`, and returns how many; writes a whole vector.
  static int list_reaching(F x, float low, uint32_t first, uint32_t* out) {
    const __mmask16 marks = _mm512_cmp_ps_mask(x, set(low), _CMP_GE_OQ);
    const I numbers = _mm512_add_epi32(lane_numbers(), _mm512_set1_epi32(static_cast<int>(first)));
    _mm512_storeu_si512(out, _mm512_maskz_compress_epi32(marks, numbers));
    return __builtin_popcount(marks);
  }
  static int count_above(F x, float high) { return __builtin_popcount(_mm512_cmp_ps_mask(x, set(high), _CMP_GT_OQ)); }
  static void store_eight(float* p, __m256 x) { _mm256_storeu_ps(p, x); }
  // The sums of eight vectors.
  static __m256 sum_eight(const F* a) {
    F b[4], c[2];
    for (int i = 0; i < 4; ++i)
      b[i] = add(_mm512_shuffle_f32x4(a[2 * i], a[2 * i + 1], 0x88), _mm512_shuffle_f32x4(a[2 * i], a[2 * i + 1], 0xDD));
    for (int i = 0; i < 2; ++i)
      c[i] = add(_mm512_shuffle_f32x4(b[2 * i], b[2 * i + 1], 0x88), _mm512_shuffle_f32x4(b[2 * i], b[2 * i + 1], 0xDD));
    // 128-bit lane i of c[0] holds four partial sums of a[i], of c[1] four partial sums of a[i + 4].
    const F d = add(_mm512_unpacklo_ps(c[0], c[1]), _mm512_unpackhi_ps(c[0], c[1]));
    const F e = add(d, _mm512_permute_ps(d, 0x4E));
    const I order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 0, 0, 0, 0, 0, 0, 0, 0);
    return _mm512_castps512_ps256(_mm512_permutexvar_ps(order, e));
  }

  static F load_half(const void* p) { return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p))); }
  static F load_half_part(const void* p, int n) { return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first(n), p)); }
  static void store_half(void* p, F x) { _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT)); }
  static F bfloat(__m256i x) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16)); }
  static F load_bfloat(const void* p) { return bfloat(_mm256_loadu_si256(static_cast<const __m256i*>(p))); }
  static F load_bfloat_part(const void* p, int n) { return bfloat(_mm256_maskz_loadu_epi16(first(n), p)); }
  // Chunk `i` (16 values) of a Q8_0 vector, and of a Q4_0 vector.
  static F load_q8(const uint8_t* vector, int i) {
    const uint8_t* block = vector + i / 2 * 34;
    const __m128i q = _mm_loadu_si128(reinterpret_cast<const __m128i*>(block + 2 + i % 2 * 16));
    return mul(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(q)), set(half_value(block)));
  }
  static F load_q4(const uint8_t* vector, int i) {
    const uint8_t* block = vector + i / 2 * 18;
    __m128i q = _mm_loadu_si128(reinterpret_cast<const __m128i*>(block + 2));
    if (i % 2) q = _mm_srli_epi16(q, 4);
    q = _mm_sub_epi8(_mm_and_si128(q, _mm_set1_epi8(15)), _mm_set1_epi8(8));
    return mul(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(q)), set(half_value(block)));
  }
  // Chunk `i` of a block's 32 values, without the scale. Q4_0 values are in units of q4_unit(i).
  static F integers_q8(const uint8_t* block, int i) {
    const __m128i q = _mm_loadu_si128(reinterpret_cast<const __m128i*>(block + 2 + i * 16));
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(q));
  }
  static F integers_q4(const uint8_t* block, int i) {
    const I nibbles = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(block + 2)));
    return _mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_and_si512(nibbles, set_i(15 << 4 * i)), set_i(8 << 4 * i)));
  }
  static constexpr float q4_unit(int i) { return 1.0f / static_cast<float>(1 << 4 * i); }
  static constexpr int q4_dim(int i) { return i; }  // the dimension at place i of the block
  static F set_half(const uint8_t* p) { return _mm512_cvtph_ps(_mm256_set1_epi16(word<int16_t>(p))); }

  static double sum_squares(const float* x, int64_t n) {
    __m512d a = _mm512_setzero_pd(), b = a;
    for (int64_t i = 0; i < n; i += 16) {
      const F v = n - i >= 16 ? load(x + i) : load_part(x + i, static_cast<int>(n - i));
      const __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(v));
      const __m512d high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(v, 1));
      a = _mm512_fmadd_pd(low, low, a);
      b = _mm512_fmadd_pd(high, high, b);
    }
    const __m512d c = _mm512_add_pd(a, b);
    return sum256(_mm256_add_pd(_mm512_castpd512_pd256(c), _mm512_extractf64x4_pd(c, 1)));
  }

  // Integers.
  static I zero_i() { return _mm512_setzero_si512(); }
  static I set_i(int32_t x) { return _mm512_set1_epi32(x); }
  static I load_i(const void* p) { return _mm512_loadu_si512(p); }
  static void store_i(void* p, I x) { _mm512_storeu_si512(p, x); }
  static F to_float(I x) { return _mm512_cvtepi32_ps(x); }
  static I nearest_i(F x) { return _mm512_cvtps_epi32(x); }

  // Products of bytes for prefill. VNNI multiplies unsigned by signed bytes, so all codes carry an offset. Sums of activations
  // correct it. Sums have 32 bits from the start.
  template <class Format>
  static constexpr int kPanelOffset = Format::kSigned ? 128 : Format::kOffset;
  static constexpr int run(int) { return 8; }
  static constexpr bool kWholeSums = true;
  static constexpr int rows(int) { return 6; }  // activation rows in registers
  static constexpr bool kComplements = false;
  using Codes = I;
  static I prepared(I codes) { return codes; }
  template <bool kSigned>
  static I products(I sums, I codes, I activations) {
    return _mm512_dpbusd_epi32(sums, codes, activations);
  }
  static I widened(I dots, I sums) { return _mm512_add_epi32(dots, sums); }
  static I repeated(const int8_t* four) { return set_i(word<int32_t>(reinterpret_cast<const uint8_t*>(four))); }

  // Decode attention over quantized blocks (attention/attend_blocks.h).
  static constexpr bool kAttendsInIntegers = true;
  static constexpr bool kKeysAsBytes = true;  // keys meet two bytes of a query; false: one word
  static constexpr int kLaneQueries = 4;      // maximum number of queries side by side: one in each 128 bits
  // Vector `i` of 2 P / kLaneQueries for a block's 32 codes, with P queries side by side: each half of the codes, P times. Bytes
  // carry an offset of 128. Nibbles keep their values 0 to 15, which is an offset of 8.
  template <int P>
  static I key_bytes(const uint8_t* codes, int i) {
    if (P == 4) return _mm512_xor_si512(in_all_lanes(codes + 16 * i), _mm512_set1_epi8(-128));
    const F halves = _mm512_castsi512_ps(_mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes))));
    return _mm512_xor_si512(_mm512_castps_si512(_mm512_shuffle_f32x4(halves, halves, 0x50)), _mm512_set1_epi8(-128));
  }
  template <int P>
  static I key_nibbles(const uint8_t* codes, int i) {
    I x = in_all_lanes(codes);
    if (P == 2) x = _mm512_srlv_epi32(x, _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 4, 4, 4, 4, 4, 4, 4, 4));
    if (P == 4 && i == 1) x = _mm512_srli_epi32(x, 4);
    return _mm512_and_si512(x, _mm512_set1_epi8(15));
  }
  static I dot_bytes(I sums, I codes, I signed_bytes) { return _mm512_dpbusd_epi32(sums, codes, signed_bytes); }
  static I dot_words(I sums, I a, I b) { return _mm512_dpwssd_epi32(sums, a, b); }
  static I times_256(I x) { return _mm512_slli_epi32(x, 8); }
  // Each 128 bits of the result: the sums of a's, of b's, of c's and of d's four lanes there.
  static I sum_fours(I a, I b, I c, I d) {
    const I ab = widened(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    const I cd = widened(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
    return widened(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
  }
  static F four_halves(const uint8_t* a, const uint8_t* b, const uint8_t* c, const uint8_t* d) {  // in each 128 bits
    const auto load_four = [](const uint8_t* p) { return _mm_castps_si128(_mm_set_ss(word<float>(p))); };
    const __m128i ab = _mm_unpacklo_epi16(load_four(a), load_four(b)), cd = _mm_unpacklo_epi16(load_four(c), load_four(d));
    return _mm512_broadcast_f32x4(_mm_cvtph_ps(_mm_unpacklo_epi32(ab, cd)));
  }
  // out[k][q]: the sums of four keys for G queries. Each vector of `sums` has P queries side by side, and holds all 32 codes of a
  // key once, or in two halves.
  template <int G>
  static void store_keys(float* out, const F* sums) {
    const I rows = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    if (G == 2) {
      const F both = add(sums[0], _mm512_shuffle_f32x4(sums[0], sums[0], 0x4E));
      const I pairs = _mm512_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7, 0, 0, 0, 0, 0, 0, 0, 0);
      _mm256_storeu_ps(out, _mm512_castps512_ps256(_mm512_permutexvar_ps(pairs, both)));
    } else if (G == 4) {
      store(out, _mm512_permutexvar_ps(rows, sums[0]));
    } else {
      const F a = _mm512_permutexvar_ps(rows, sums[0]), b = _mm512_permutexvar_ps(rows, sums[1]);
      const F low = _mm512_shuffle_f32x4(a, b, 0x44), high = _mm512_shuffle_f32x4(a, b, 0xEE);  // keys 0 and 1 of a and b; keys 2 and 3
      store(out, _mm512_shuffle_f32x4(low, low, 0xD8));
      store(out + 16, _mm512_shuffle_f32x4(high, high, 0xD8));
    }
  }
  // words_of_*(): 2 kLanes codes of part `part` of a block, as 16-bit words. low_in_turns() and high_in_turns() interleave the
  // words of two tokens: lane i holds dimension 8 (i / 4) + i % 4 of both tokens, or the dimension 4 higher.
  static I words_of_bytes(const uint8_t* codes, int) {
    return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes)));
  }
  static I words_of_nibbles(const uint8_t* codes, int) {
    const __m256i twice = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
    const __m256i nibbles = _mm256_and_si256(_mm256_srlv_epi32(twice, _mm256_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4)), _mm256_set1_epi8(15));
    return _mm512_cvtepi8_epi16(_mm256_sub_epi8(nibbles, _mm256_set1_epi8(8)));
  }
  static I low_in_turns(I a, I b) { return _mm512_unpacklo_epi16(a, b); }
  static I high_in_turns(I a, I b) { return _mm512_unpackhi_epi16(a, b); }
  template <int G>
  static F each(const float* p) {                            // lane i: p[i / G]
    const F x = _mm512_castps256_ps512(_mm256_loadu_ps(p));  // may read past the wanted values, but within their row
    if (G == 2) return _mm512_permutexvar_ps(_mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7), x);
    if (G == 4) return _mm512_permutexvar_ps(_mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3), x);
    return _mm512_permutexvar_ps(_mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1), x);
  }
  // The larger magnitude; a NaN counts as the largest.
  static F larger(F a, F b) {
    const I mask = set_i(0x7FFFFFFF);
    return _mm512_castsi512_ps(
        _mm512_max_epi32(_mm512_and_si512(_mm512_castps_si512(a), mask), _mm512_and_si512(_mm512_castps_si512(b), mask)));
  }
  static F fold_larger(F x, int period) {
    for (int step = period; step < 16; step *= 2) x = larger(x, across(x, step));
    return x;
  }
  // Rounds to whole numbers: `low` to the low word and `high` to the high word of each dword. A NaN, or a number far out of range,
  // gives 0.
  static I word_pairs(F low, F high) {
    const I mask = set_i(0xFFFF);
    return _mm512_ternarylogic_epi32(_mm512_cvtps_epi32(low), mask, _mm512_slli_epi32(_mm512_cvtps_epi32(high), 16), 0xEA);
  }

  // Transposes sixteen vectors of sixteen dwords.
  static void transpose(F* r) {
    F a[16], b[16];
    for (int i = 0; i < 16; i += 2) {
      a[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
      a[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
      b[i] = _mm512_shuffle_ps(a[i], a[i + 2], 0x44);
      b[i + 1] = _mm512_shuffle_ps(a[i], a[i + 2], 0xEE);
      b[i + 2] = _mm512_shuffle_ps(a[i + 1], a[i + 3], 0x44);
      b[i + 3] = _mm512_shuffle_ps(a[i + 1], a[i + 3], 0xEE);
    }
    // b[4 g + c]: its 128-bit lane k holds column 4 k + c of rows 4 g .. 4 g + 3.
    for (int c = 0; c < 4; ++c) {
      const F low01 = _mm512_shuffle_f32x4(b[c], b[4 + c], 0x44), high01 = _mm512_shuffle_f32x4(b[c], b[4 + c], 0xEE);
      const F low23 = _mm512_shuffle_f32x4(b[8 + c], b[12 + c], 0x44), high23 = _mm512_shuffle_f32x4(b[8 + c], b[12 + c], 0xEE);
      r[c] = _mm512_shuffle_f32x4(low01, low23, 0x88);
      r[4 + c] = _mm512_shuffle_f32x4(low01, low23, 0xDD);
      r[8 + c] = _mm512_shuffle_f32x4(high01, high23, 0x88);
      r[12 + c] = _mm512_shuffle_f32x4(high01, high23, 0xDD);
    }
  }

  // 32 floats: the bits of the largest magnitude; conversion to int8, with the sums of each 16.
  struct Block32 {
    F a, b;
  };
  static Block32 load32(const float* p) { return {load(p), load(p + 16)}; }
  static uint32_t largest_bits(const Block32& x) {
    const I mask = set_i(0x7FFFFFFF);
    return static_cast<uint32_t>(_mm512_reduce_max_epi32(
        _mm512_max_epi32(_mm512_and_si512(_mm512_castps_si512(x.a), mask), _mm512_and_si512(_mm512_castps_si512(x.b), mask))));
  }
  static void quantize32(const Block32& x, float inverse, int8_t* q, int16_t* sums) {
    const I a = _mm512_cvtps_epi32(mul(x.a, set(inverse))), b = _mm512_cvtps_epi32(mul(x.b, set(inverse)));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(q), _mm512_cvtepi32_epi8(a));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(q + 16), _mm512_cvtepi32_epi8(b));
    sums[0] = static_cast<int16_t>(_mm512_reduce_add_epi32(a));
    sums[1] = static_cast<int16_t>(_mm512_reduce_add_epi32(b));
  }

 private:
  static I in_all_lanes(const uint8_t* p) { return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
  static I lane_numbers() { return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15); }
  static F across(F x, int step) { return _mm512_permutexvar_ps(_mm512_xor_si512(lane_numbers(), _mm512_set1_epi32(step)), x); }
};

}  // namespace
}  // namespace orrery::cpu
