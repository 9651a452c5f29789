// Bands (bands.h) of the formats that the 256-bit paths want in them: Q4_0 and Q4_K.
//
// Memory gives a core some 18 bytes of weights in four cycles.  As they lie 256 weights of Q4_0 (144 bytes) take 72
// vector instructions, most of which sum across lanes and gather scales; in a band 35, and Q4_K 37: 12 for the
// nibbles, 8 products that meet four activations in all lanes, 7 sums in 16 bits (15 * 127 * 2 * 8 = 30480 fits).
// What codes are offset by, and minima, are products with the sums of activations.
//
// Measured on an AMD EPYC with AVX2: a core computes 31 GB/s of either from its caches, where the file's layout gives 16.
// Steps of the 1.1B model in turns with that layout, one thread: 1.39 times as fast (Q4_0) and 1.16 (Q4_K); two threads,
// which memory holds up: 1.2 and 1.0, or where both threads had to share a core 1.3 and 1.0.
#pragma once

#include "runtime/cpu/simd_avx2.h"
#include "runtime/cpu/simd_weights.h"

namespace orrery::cpu {
namespace {

// Two 16-bit numbers in every lane.
inline V::I two_words(const int16_t* p) { return V::repeated(reinterpret_cast<const int8_t*>(p)); }

template <>
struct Bands<Q4_0> {
  static constexpr bool kHas = true;
  static constexpr int kBytes = 8 * 18;  // of 32 columns: scales, four vectors of codes

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

  // Up to 256 columns of a band, for prefill: codes and scales as they are.
  template <class Codes, class Scales>
  static void unpack(const uint8_t* w, int n_columns, const Codes& codes, const Scales& scales) {
    for (int g = 0; g < n_columns / 32; ++g, w += kBytes) {
      for (int k = 0; k < 4; ++k) {
        const V::I x = bytes32(w + 16 + 32 * k);
        codes(8 * g + k, low_nibbles(x));
        codes(8 * g + 4 + k, high_nibbles(x));
      }
      scales(g, _mm256_cvtph_ps(bytes16(w)), V::zero());
    }
  }
};

template <>
struct Bands<Q4K> {
  static constexpr bool kHas = true;
  static constexpr int kBytes = 8 * 144;  // of 256 columns: d and dmin, three vectors of scales, 32 of codes

  // Of 256 columns: byte g % 4 of lane r of scales[g / 4] is the scale of group g of row r.
  struct Header {
    V::F d, dmin;
    V::I scales[2], minima[2];

    explicit Header(const uint8_t* w) {
      const V::I both = bytes32(w), low = _mm256_and_si256(both, V::set_i(0xFFFF));
      const V::I halves =
          _mm256_permute4x64_epi64(_mm256_packus_epi32(low, _mm256_srli_epi32(both, 16)), 0xD8);
      d = _mm256_cvtph_ps(_mm256_castsi256_si128(halves));
      dmin = _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1));
      // As scales_k4() in simd_blocks.h, of eight rows at once.
      const V::I a = bytes32(w + 32), b = bytes32(w + 64), c = bytes32(w + 96);
      const V::I six = V::set_i(0x3F3F3F3F), upper = V::set_i(0x30303030);
      scales[0] = _mm256_and_si256(a, six);
      minima[0] = _mm256_and_si256(b, six);
      scales[1] = _mm256_or_si256(low_nibbles(c), _mm256_and_si256(_mm256_srli_epi32(a, 2), upper));
      minima[1] = _mm256_or_si256(high_nibbles(c), _mm256_and_si256(_mm256_srli_epi32(b, 2), upper));
    }
    // Group g's, as a word twice in each lane, or as a lane's one number.
    static V::I twice(const V::I* bytes, int g) {
      const V::I at = V::set_i(static_cast<int32_t>(0x80008000u) | (g % 4) << 16 | g % 4);
      return _mm256_shuffle_epi8(bytes[g / 4], _mm256_or_si256(at, lane_starts()));
    }
    static V::F floats(const V::I* bytes, int g) {
      return V::to_float(_mm256_and_si256(_mm256_srli_epi32(bytes[g / 4], 8 * (g % 4)), V::set_i(0xFF)));
    }
    static V::I lane_starts() {  // of the words in each half, for both bytes that are taken
      return _mm256_setr_epi32(0, 0x00040004, 0x00080008, 0x000C000C, 0, 0x00040004, 0x00080008, 0x000C000C);
    }
  };

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

  template <class Codes, class Scales>
  static void unpack(const uint8_t* w, int, const Codes& codes, const Scales& scales) {
    const Header header(w);
    for (int i = 0; i < 4; ++i)
      for (int k = 0; k < 8; ++k) {
        const V::I x = bytes32(w + 128 + 256 * i + 32 * k);
        codes(16 * i + k, low_nibbles(x));
        codes(16 * i + 8 + k, high_nibbles(x));
      }
    for (int g = 0; g < 8; ++g)
      scales(g, V::mul(Header::floats(header.scales, g), header.d),
             V::mul(Header::floats(header.minima, g), header.dmin));
  }
};

}  // namespace
}  // namespace orrery::cpu
