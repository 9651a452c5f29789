// Products of bytes with AVX2 alone, for decode and prefill. The V of vectors/avx2.h inherits them.
//
// vpmaddubsw adds two products of unsigned and signed bytes in 16 bits, and saturates. It cannot saturate here: codes are below 64,
// or magnitudes up to 128, and activations are at most 127 (2 * 128 * 127 = 32512). Codes below 2^bits keep their offset. Signed
// codes (8 bits) are split into magnitudes and signs, and the signs go to the activations. vectors/README.md says how prefill does
// this.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "runtime/cpu/formats/blocks_x86.h"
#include "runtime/cpu/vectors/block_words_avx2.h"

namespace orrery::cpu {
namespace {

struct ByteProducts : BlockWords {
  // How weights are prefetched (prefetch_stream()): formats that unpack slowly have no time for a second prefetch of each line. With it,
  // Q4_K reads 73% of what memory gives instead of 91%, F16 95% instead of 80%.
  static constexpr bool kTwoStages = false, kLightInTwoStages = true;
  // Decode attention over quantized blocks: keys and queries are words, which one instruction multiplies and adds in pairs. With
  // bytes, a query's two would take twice as many products, and a third instruction each, because pairs of them need 32 bits.
  static constexpr bool kAttendsInIntegers = true;
  static constexpr bool kKeysAsBytes = false;
  static constexpr int kLaneQueries = 1;  // queries side by side in a vector
  static I times_words(I a, I b) { return _mm256_madd_epi16(a, b); }
  static I dot_words(I sums, I a, I b) { return in_order(_mm256_add_epi32(sums, times_words(a, b))); }
  // The sums of eight vectors, added as V::sum_eight() adds floats.
  static I sums_of_eight(const I* a) {
    I b[4], c[2];
    for (int i = 0; i < 4; ++i)
      b[i] = _mm256_add_epi32(_mm256_blend_epi32(a[i], a[i + 4], 0xF0), _mm256_permute2x128_si256(a[i], a[i + 4], 0x21));
    for (int i = 0; i < 2; ++i)
      c[i] = _mm256_add_epi32(_mm256_blend_epi32(b[2 * i], b[2 * i + 1], 0xCC), shuffled<0x4E>(b[2 * i], b[2 * i + 1]));
    return _mm256_add_epi32(shuffled<0x88>(c[0], c[1]), shuffled<0xDD>(c[0], c[1]));
  }
  // The scales of 8 / G blocks. Lane i: that of block i / G.
  template <int G>
  static F key_scales(const uint8_t* const* blocks) {
    const auto repeated_scale = [&](int i) { return _mm_set1_epi16(word<int16_t>(blocks[i])); };
    if (G == 8) return _mm256_cvtph_ps(repeated_scale(0));
    if (G == 4) return _mm256_cvtph_ps(_mm_unpacklo_epi64(repeated_scale(0), repeated_scale(8 / G - 1)));
    const auto pair = [&](int i) {
      return _mm_unpacklo_epi32(repeated_scale(i < 8 / G ? i : 0), repeated_scale(i + 1 < 8 / G ? i + 1 : 0));
    };
    return _mm256_cvtph_ps(_mm_unpacklo_epi64(pair(0), pair(2)));
  }

  // acc + sums of four products each.
  template <bool kSigned>
  static I dot(I acc, I codes, I activations) {
    return _mm256_add_epi32(acc, _mm256_madd_epi16(pairs<kSigned>(codes, activations), _mm256_set1_epi16(1)));
  }

  // The offset of codes in the panels of prefill.
  template <class Format>
  static constexpr int kPanelOffset = Format::kOffset;
  // Number of pairs of products, with activations up to 127, whose sum fits in 16 bits.
  static constexpr int run(int bits) { return bits == 8 ? 1 : 32767 / (2 * 127 * ((1 << bits) - 1)); }
  static constexpr bool kWholeSums = false;  // false: products are summed in 16 bits, dots in 32
  // Activation rows in registers. Signs take registers too, and so do dots beside short sums of products.
  static constexpr int rows(int bits) { return run(bits) == 8 ? 6 : 4; }
  // Codes in the form that products() takes. Signed codes: their magnitudes, and a mask of the negative codes.
  static constexpr bool kComplements = true;
  struct Codes {
    I magnitudes, negative;
  };
  static Codes prepared(I codes) { return {codes, codes}; }  // unsigned codes
  // Signed codes. `lacking` grows, for each weight row, by the magnitudes of the negative ones among its four codes.
  static Codes split(I codes, I& lacking) {
    const Codes c = {_mm256_abs_epi8(codes), _mm256_cmpgt_epi8(_mm256_setzero_si256(), codes)};
    lacking = dot<false>(lacking, _mm256_and_si256(c.magnitudes, c.negative), _mm256_set1_epi8(1));
    return c;
  }
  // products(): sums + products, as 16-bit sums of pairs. widened(): dots + these sums, as 32-bit sums of fours.
  template <bool kSigned>
  static I products(I sums, const Codes& codes, I activations) {
    const I signs_given = kSigned ? _mm256_xor_si256(activations, codes.negative) : activations;
    return in_order(_mm256_add_epi16(sums, _mm256_maddubs_epi16(codes.magnitudes, signs_given)));
  }
  // Signed codes of a band, for few rows: dots + sums of four products. The codes' signs go to the activations, as in dot().
  static Codes signed_codes(I codes) { return {_mm256_abs_epi8(codes), codes}; }
  static I signed_dots(I dots, const Codes& codes, I activations) {
    const I pairs = _mm256_maddubs_epi16(codes.magnitudes, _mm256_sign_epi8(activations, codes.negative));
    return in_order(_mm256_add_epi32(dots, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1))));
  }
  static I widened(I dots, I sums) { return in_order(_mm256_add_epi32(dots, _mm256_madd_epi16(sums, _mm256_set1_epi16(1)))); }
  // Sums of fours from such 16-bit sums, each lane multiplied by a small number that both of its words hold.
  static I scaled(I sums, I twice) { return _mm256_madd_epi16(sums, twice); }

 private:
  template <int kOrder>
  static I shuffled(I a, I b) {
    return _mm256_castps_si256(_mm256_shuffle_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b), kOrder));
  }
  template <bool kSigned>
  static I pairs(I codes, I activations) {
    return kSigned ? _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(activations, codes))
                   : _mm256_maddubs_epi16(codes, activations);
  }
  // Without this barrier GCC splits sums of many products, does the multiplications first and runs out of registers.
  static I in_order(I x) {
    asm("" : "+x"(x));
    return x;
  }
};

}  // namespace
}  // namespace orrery::cpu
