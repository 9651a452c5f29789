// Decode over bands (formats/bands.h), for the formats that the 256-bit kernels want in bands: Q4_0 and Q4_K.
//
// Memory gives a core about 18 bytes of weights in four cycles. In the file's layout, 256 weights of Q4_0 (144 bytes) take 72
// vector instructions, most of which sum across lanes and gather scales. In a band they take 35, and Q4_K takes 37: 12 for the
// nibbles, 8 products with four activations repeated in all lanes, 7 sums in 16 bits (15 * 127 * 2 * 8 = 30480 fits). Offsets of
// codes and minima become products with the sums of activations. README.md has measurements.
#pragma once

#include "runtime/cpu/vectors/avx2.h"
#include "runtime/cpu/formats/band_codes.h"
#include "runtime/cpu/products/weights.h"

namespace orrery::cpu {
namespace {

// Two 16-bit numbers, repeated in every lane.
inline V::I two_words(const int16_t* p) { return V::repeated(reinterpret_cast<const int8_t*>(p)); }

template <>
struct Bands<Q4_0> {
  static constexpr bool kHas = true;
  static constexpr int kBytes = BandCodes<Q4_0>::kBytes;

  // sums (R, 8) = a band times R rows of activations.
  template <int R>
  static void dot(const uint8_t* w, const QuantizedRow* x, int64_t n_columns, V::F* sums) {
    for (int r = 0; r < R; ++r) sums[r] = V::zero();
    for (int64_t c = 0; c < n_columns; c += 32, w += kBytes) {
      prefetch_stream<2048>(w, kBytes);
      V::I products[R];
      for (int r = 0; r < R; ++r) products[r] = V::zero_i();
#pragma GCC unroll 4
      for (int k = 0; k < 4; ++k) {
        const V::I codes = bytes32(w + 16 + 32 * k);
        const V::Codes low = V::prepared(low_nibbles(codes)), high = V::prepared(high_nibbles(codes));
        for (int r = 0; r < R; ++r) {
          products[r] = V::products<false>(products[r], low, V::repeated(x[r].q + c + 4 * k));
          products[r] = V::products<false>(products[r], high, V::repeated(x[r].q + c + 16 + 4 * k));
        }
      }
      const V::F scale = _mm256_cvtph_ps(bytes16(w));
      for (int r = 0; r < R; ++r) {
        const V::I offset = _mm256_madd_epi16(two_words(x[r].sums + c / 16), _mm256_set1_epi16(-8));
        const V::F dots = V::to_float(V::widened(offset, products[r]));
        sums[r] = V::fma(dots, V::mul(scale, V::set(x[r].d[c / 32])), sums[r]);
      }
    }
  }
};

template <>
struct Bands<Q4K> {
  static constexpr bool kHas = true;
  static constexpr int kBytes = BandCodes<Q4K>::kBytes;

  using Header = BandCodes<Q4K>::Header;

  template <int R>
  static void dot(const uint8_t* w, const QuantizedRow* x, int64_t n_columns, V::F* sums) {
    for (int r = 0; r < R; ++r) sums[r] = V::zero();
    for (int64_t c = 0; c < n_columns; c += 256, w += kBytes) {
      prefetch_stream<2048>(w, 128);
      const Header header(w);
      V::F dots[R], minima[R];
      for (int r = 0; r < R; ++r) dots[r] = minima[r] = V::zero();
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        const uint8_t* at = w + 128 + 256 * i;
        V::I products[R][2];
        for (auto& p : products) p[0] = p[1] = V::zero_i();
#pragma GCC unroll 8
        for (int k = 0; k < 8; ++k) {
          if (k % 2 == 0) prefetch_stream<2048>(at + 32 * k, 64);
          const V::I codes = bytes32(at + 32 * k);
          const V::Codes low = V::prepared(low_nibbles(codes)), high = V::prepared(high_nibbles(codes));
          for (int r = 0; r < R; ++r) {
            const int8_t* q = x[r].q + c + 64 * i + 4 * k;
            products[r][0] = V::products<false>(products[r][0], low, V::repeated(q));
            products[r][1] = V::products<false>(products[r][1], high, V::repeated(q + 32));
          }
        }
        for (int j = 0; j < 2; ++j) {
          const int g = 2 * i + j;
          const V::I scale = Header::twice(header.scales, g), minimum = Header::twice(header.minima, g);
          for (int r = 0; r < R; ++r) {
            const V::F d = V::set(x[r].d[c / 32 + g]);
            dots[r] = V::fma(V::to_float(V::scaled(products[r][j], scale)), d, dots[r]);
            const V::I taken = _mm256_madd_epi16(two_words(x[r].sums + c / 16 + 2 * g), minimum);
            minima[r] = V::fma(V::to_float(taken), d, minima[r]);
          }
        }
      }
      for (int r = 0; r < R; ++r)
        sums[r] = V::fnma(minima[r], header.dmin, V::fma(dots[r], header.d, sums[r]));
    }
  }
};

}  // namespace
}  // namespace orrery::cpu
