// Products of bytes with AVX-VNNI, or with AVX-512's VNNI in files that are compiled for it. The V of vectors/avx2.h inherits them.
//
// vpdpbusd multiplies 32 unsigned by 32 signed bytes and adds each four products to a 32-bit sum. AVX2 takes three instructions for
// this. Decode gives the signs of signed codes to the activations, as on AVX2. Prefill multiplies a panel with up to 256 rows and
// stores codes with an offset of 128, which sums of activations correct: one instruction for 32 products, twelve chains of sums for
// six rows by two vectors, and eight loads for them. Nothing is summed in 16 bits.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "runtime/cpu/formats/blocks_x86.h"
#include "runtime/cpu/vectors/block_words_avx2.h"

namespace orrery::cpu {
namespace {

struct ByteProducts : BlockWords {
  // How weights are prefetched (prefetch_stream()). Steps of the 1.1B model in Q8_0 read 26 GB/s with two stages. With a single
  // stage 768 to 4096 bytes ahead they read 20 to 24 GB/s. The same threads read 31 GB/s when they do nothing else.
  static constexpr bool kTwoStages = true, kLightInTwoStages = true;

  static I add_dots(I sums, I codes, I activations) {
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
    return _mm256_dpbusd_epi32(sums, codes, activations);
#else
    return _mm256_dpbusd_avx_epi32(sums, codes, activations);
#endif
  }

  // acc + sums of four products each.
  template <bool kSigned>
  static I dot(I acc, I codes, I activations) {
    return kSigned ? add_dots(acc, _mm256_abs_epi8(codes), _mm256_sign_epi8(activations, codes)) : add_dots(acc, codes, activations);
  }

  // The offset of codes in the panels of prefill.
  template <class Format>
  static constexpr int kPanelOffset = Format::kSigned ? 128 : Format::kOffset;
  // Sums have 32 bits from the start.
  static constexpr int run(int) { return 8; }
  static constexpr bool kWholeSums = true;
  static constexpr int rows(int) { return 6; }  // activation rows in registers
  static constexpr bool kComplements = false;
  using Codes = I;
  static I prepared(I codes) { return codes; }
  template <bool kSigned>
  static I products(I sums, I codes, I activations) {
    return add_dots(sums, codes, activations);
  }
  static I widened(I dots, I sums) { return _mm256_add_epi32(dots, sums); }
  // Signed codes of a band, for few rows: with an offset of 128, as in the panels of prefill.
  static Codes signed_codes(I codes) { return _mm256_xor_si256(codes, _mm256_set1_epi8(-128)); }
  static I signed_dots(I dots, I codes, I activations) { return add_dots(dots, codes, activations); }

  // Decode attention over quantized blocks (attention/attend_blocks.h). vectors/avx512.h has the same functions, 512 bits wide, and
  // says what each one does.
  static constexpr bool kAttendsInIntegers = true;
  static constexpr bool kKeysAsBytes = true;
  static constexpr int kLaneQueries = 2;
  template <int P>
  static I key_bytes(const uint8_t* codes, int i) {
    return _mm256_xor_si256(in_both_lanes(codes + 16 * i), _mm256_set1_epi8(-128));
  }
  template <int P>
  static I key_nibbles(const uint8_t* codes, int i) {
    const I x = in_both_lanes(codes);
    return _mm256_and_si256(i == 1 ? _mm256_srli_epi16(x, 4) : x, _mm256_set1_epi8(15));
  }
  static I dot_bytes(I sums, I codes, I signed_bytes) { return add_dots(sums, codes, signed_bytes); }
  static I dot_words(I sums, I a, I b) {
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
    return _mm256_dpwssd_epi32(sums, a, b);
#else
    return _mm256_dpwssd_avx_epi32(sums, a, b);
#endif
  }
  static I times_256(I x) { return _mm256_slli_epi32(x, 8); }
  static I sum_fours(I a, I b, I c, I d) {
    const I ab = widened(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
    const I cd = widened(_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
    return widened(_mm256_unpacklo_epi64(ab, cd), _mm256_unpackhi_epi64(ab, cd));
  }
  static F four_halves(const uint8_t* a, const uint8_t* b, const uint8_t* c, const uint8_t* d) {
    const auto load_four = [](const uint8_t* p) { return _mm_castps_si128(_mm_set_ss(word<float>(p))); };
    const __m128i ab = _mm_unpacklo_epi16(load_four(a), load_four(b)), cd = _mm_unpacklo_epi16(load_four(c), load_four(d));
    const __m128 x = _mm_cvtph_ps(_mm_unpacklo_epi32(ab, cd));
    return _mm256_insertf128_ps(_mm256_castps128_ps256(x), x, 1);
  }
  template <int G>
  static void store_keys(float* out, const F* sums) {
    const I pairs = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);  // order of lanes: two queries of each key
    F x[G / 2];
    for (int i = 0; i < G / 2; ++i) x[i] = _mm256_permutevar8x32_ps(sums[i], pairs);
    if (G == 2) {
      _mm256_storeu_ps(out, x[0]);
      return;
    }
    F fours[G / 2];  // four queries: of keys 0 and 1, and of keys 2 and 3
    for (int i = 0; i < G / 4; ++i) {
      const F even = unpacked(x[2 * i], x[2 * i + 1], 0),
              odd = unpacked(x[2 * i], x[2 * i + 1], 1);  // even: keys 0 and 2; odd: keys 1 and 3
      fours[2 * i] = _mm256_permute2f128_ps(even, odd, 0x20);
      fours[2 * i + 1] = _mm256_permute2f128_ps(even, odd, 0x31);
    }
    for (int i = 0; i < 2; ++i) {
      if (G == 4) {
        _mm256_storeu_ps(out + 8 * i, fours[i]);
      } else {
        _mm256_storeu_ps(out + 16 * i, _mm256_permute2f128_ps(fours[i], fours[G / 4 + i], 0x20));
        _mm256_storeu_ps(out + 16 * i + 8, _mm256_permute2f128_ps(fours[i], fours[G / 4 + i], 0x31));
      }
    }
  }
  // Sums times a small number that both words of a lane hold.
  static I scaled(I sums, I twice) { return _mm256_mullo_epi32(sums, _mm256_srli_epi32(twice, 16)); }

 private:
  static I in_both_lanes(const uint8_t* p) { return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
  static F unpacked(F a, F b, int high) {  // interleaves pairs of lanes
    const __m256d x = _mm256_castps_pd(a), y = _mm256_castps_pd(b);
    return _mm256_castpd_ps(high ? _mm256_unpackhi_pd(x, y) : _mm256_unpacklo_pd(x, y));
  }
};

}  // namespace
}  // namespace orrery::cpu
