// Products of bytes with AVX2 alone: what vectors/avx2.h's V takes from here, for decode and prefill.
//
// vpmaddubsw adds two products of unsigned and signed bytes in 16 bits and saturates: with codes below 64, or
// magnitudes up to 128, times activations up to 127 it cannot (2 * 128 * 127 = 32512).  So codes below 2^bits
// keep their offset, and signed ones (8 bits) give their signs to the activations.
//
// Prefill's do so by complements: vpsignb takes the multiplier's ports, of which there are two, an exclusive or any of
// four.  ~a is -a - 1, so every negative code's magnitude is missing in the sum, whatever the activations: a sum of
// the panel's own (kComplements).  Nothing saturates: 2 * 128 * -128 still fits.  Four instructions for 32 products are all
// that four ports can take while the multiplier's two are busy, so magnitudes and signs lie in the panel: taking codes apart
// for every few rows was 8% of the time.  Codes and activations widened to 16 bits take as many instructions, and more loads:
// no faster than that.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace orrery::cpu {
namespace {

struct ByteProducts {
  using I = __m256i;
  static constexpr bool kTwoStages = false;  // how weights are asked for (prefetch_stream())
  static constexpr bool kAttendsInIntegers = false;  // decode attention over blocks: as many instructions as by floats

  // acc + sums of four products.
  template <bool kSigned>
  static I dot(I acc, I codes, I activations) {
    return _mm256_add_epi32(acc, _mm256_madd_epi16(pairs<kSigned>(codes, activations), _mm256_set1_epi16(1)));
  }

  // The offset with which codes lie in prefill's panels.
  template <class Format>
  static constexpr int kPanelOffset = Format::kOffset;
  // How many pairs of products with activations up to 127 fit into 16 bits one upon another.
  static constexpr int run(int bits) { return bits == 8 ? 1 : 32767 / (2 * 127 * ((1 << bits) - 1)); }
  static constexpr bool kWholeSums = false;  // products are summed in as many bits as dots
  // Activation rows in registers: signs take room, and so do dots beside sums of few products.
  static constexpr int rows(int bits) { return run(bits) == 8 ? 6 : 4; }
  // Codes as products take them: of signed ones their magnitudes, and which are negative.
  static constexpr bool kComplements = true;
  struct Codes {
    I magnitudes, negative;
  };
  static Codes prepared(I codes) { return {codes, codes}; }  // unsigned ones
  // Signed ones; `lacking` grows for each weight row by the magnitudes of those of its four codes that are negative.
  static Codes split(I codes, I& lacking) {
    const Codes c = {_mm256_abs_epi8(codes), _mm256_cmpgt_epi8(_mm256_setzero_si256(), codes)};
    lacking = dot<false>(lacking, _mm256_and_si256(c.magnitudes, c.negative), _mm256_set1_epi8(1));
    return c;
  }
  // sums + products, in 16 bits by pairs; and dots + such sums, in 32 by fours.
  template <bool kSigned>
  static I products(I sums, const Codes& codes, I activations) {
    const I signs_given = kSigned ? _mm256_xor_si256(activations, codes.negative) : activations;
    return in_order(_mm256_add_epi16(sums, _mm256_maddubs_epi16(codes.magnitudes, signs_given)));
  }
  static I widened(I dots, I sums) {
    return in_order(_mm256_add_epi32(dots, _mm256_madd_epi16(sums, _mm256_set1_epi16(1))));
  }
  // Such sums by fours, each lane's times a small number that it holds twice, in both of its words.
  static I scaled(I sums, I twice) { return _mm256_madd_epi16(sums, twice); }

 private:
  template <bool kSigned>
  static I pairs(I codes, I activations) {
    return kSigned ? _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(activations, codes))
                   : _mm256_maddubs_epi16(codes, activations);
  }
  // GCC would take sums of many products apart, do the multiplications first and run out of registers.
  static I in_order(I x) {
    asm("" : "+x"(x));
    return x;
  }
};

}  // namespace
}  // namespace orrery::cpu
