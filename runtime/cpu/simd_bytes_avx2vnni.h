// Products of bytes with AVX-VNNI, or with AVX-512's VNNI where that is compiled for: what simd_avx2.h's V takes from here.
//
// vpdpbusd multiplies 32 unsigned by 32 signed bytes and adds each four products to 32 bits, where AVX2 takes
// three instructions.  Decode's codes that are signed give their signs to the activations, as on AVX2.  In
// prefill, where each panel is multiplied with up to 256 rows, they lie with an offset of 128, which sums of
// activations take back: one instruction for 32 products, twelve chains of sums for six rows by two vectors,
// and eight loads for them; nothing is added up in 16 bits.
//
// Measured on an Intel Xeon with both (bench_cpu avx2vnni 2 decode, Q8_0, Q4_0, Q4_K, Q6_K): 96 to 107% of what the same threads read
// from memory, 42 to 67 GB/s from the caches.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace orrery::cpu {
namespace {

struct ByteProducts {
  using I = __m256i;
  // How weights are asked for (prefetch_stream()): steps of the 1.1B model in Q8_0 read 26 GB/s so, where a single stage 768 to 4096 bytes
  // ahead gave 20 to 24, and the same threads merely read 31.
  static constexpr bool kTwoStages = true;

  static I add_dots(I sums, I codes, I activations) {
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
    return _mm256_dpbusd_epi32(sums, codes, activations);
#else
    return _mm256_dpbusd_avx_epi32(sums, codes, activations);
#endif
  }

  // acc + sums of four products.
  template <bool kSigned>
  static I dot(I acc, I codes, I activations) {
    return kSigned ? add_dots(acc, _mm256_abs_epi8(codes), _mm256_sign_epi8(activations, codes))
                   : add_dots(acc, codes, activations);
  }

  // The offset with which codes lie in prefill's panels.
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
  // Sums times a small number that each lane holds twice, in both of its words.
  static I scaled(I sums, I twice) { return _mm256_mullo_epi32(sums, _mm256_srli_epi32(twice, 16)); }
};

}  // namespace
}  // namespace orrery::cpu
