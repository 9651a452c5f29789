// Unpacks codes and scales of bands (formats/bands.h) for decode and for the panels of prefill. Both have weight rows in lanes, as
// bands do. A unit is 256 bits (eight rows), whatever the width of the instruction set's vector.
#pragma once

#include <immintrin.h>

#include "runtime/cpu/formats/bands.h"
#include "runtime/cpu/formats/blocks_x86.h"

namespace orrery::cpu {
namespace {

// unpack(w, n_columns, codes, scales) unpacks up to 256 columns of a band. It calls codes(quad, bytes) with four columns of each
// row, in the format's own code values, and scales(group, scale, minimum) with one float for each row.
template <class Format>
struct BandCodes {
  static constexpr bool kHas = false;
};

template <>
struct BandCodes<Q4_0> {
  static constexpr bool kHas = true;
  static constexpr int kBytes = kBandRows * 18;  // 32 columns: scales, then four vectors of codes

  template <class Codes, class Scales>
  static void unpack(const uint8_t* w, int n_columns, const Codes& codes, const Scales& scales) {
    for (int g = 0; g < n_columns / 32; ++g, w += kBytes) {
      for (int k = 0; k < 4; ++k) {
        const __m256i x = bytes32(w + 16 + 32 * k);
        codes(8 * g + k, low_nibbles(x));
        codes(8 * g + 4 + k, high_nibbles(x));
      }
      scales(g, _mm256_cvtph_ps(bytes16(w)), _mm256_setzero_ps());
    }
  }
};

template <>
struct BandCodes<Q4K> {
  static constexpr bool kHas = true;
  static constexpr int kBytes = kBandRows * 144;  // 256 columns: d and dmin, three vectors of scales, 32 vectors of codes

  // The header of 256 columns. Byte g % 4 of lane r of scales[g / 4] is the scale of group g of row r; `minima` has the same
  // layout.
  struct Header {
    __m256 d, dmin;
    __m256i scales[2], minima[2];

    explicit Header(const uint8_t* w) {
      const __m256i both = bytes32(w), low = _mm256_and_si256(both, _mm256_set1_epi32(0xFFFF));
      const __m256i halves = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, _mm256_srli_epi32(both, 16)), 0xD8);
      d = _mm256_cvtph_ps(_mm256_castsi256_si128(halves));
      dmin = _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1));
      // As scales_k4() in formats/blocks_x86.h, for eight rows at once.
      const __m256i a = bytes32(w + 32), b = bytes32(w + 64), c = bytes32(w + 96);
      const __m256i six = _mm256_set1_epi32(0x3F3F3F3F), upper = _mm256_set1_epi32(0x30303030);
      scales[0] = _mm256_and_si256(a, six);
      minima[0] = _mm256_and_si256(b, six);
      scales[1] = _mm256_or_si256(low_nibbles(c), _mm256_and_si256(_mm256_srli_epi32(a, 2), upper));
      minima[1] = _mm256_or_si256(high_nibbles(c), _mm256_and_si256(_mm256_srli_epi32(b, 2), upper));
    }
    // Group g's numbers: twice in each lane, as two 16-bit words; or as one float in each lane.
    static __m256i twice(const __m256i* bytes, int g) {
      const __m256i at = _mm256_set1_epi32(static_cast<int32_t>(0x80008000u) | (g % 4) << 16 | g % 4);
      return _mm256_shuffle_epi8(bytes[g / 4], _mm256_or_si256(at, lane_starts()));
    }
    static __m256 floats(const __m256i* bytes, int g) {
      return _mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srli_epi32(bytes[g / 4], 8 * (g % 4)), _mm256_set1_epi32(0xFF)));
    }
    static __m256i lane_starts() {  // where the words of each 128-bit half begin, for both copies of the byte
      return _mm256_setr_epi32(0, 0x00040004, 0x00080008, 0x000C000C, 0, 0x00040004, 0x00080008, 0x000C000C);
    }
  };

  template <class Codes, class Scales>
  static void unpack(const uint8_t* w, int, const Codes& codes, const Scales& scales) {
    const Header header(w);
    for (int i = 0; i < 4; ++i)
      for (int k = 0; k < 8; ++k) {
        const __m256i x = bytes32(w + 128 + 256 * i + 32 * k);
        codes(16 * i + k, low_nibbles(x));
        codes(16 * i + 8 + k, high_nibbles(x));
      }
    for (int g = 0; g < 8; ++g)
      scales(g, _mm256_mul_ps(Header::floats(header.scales, g), header.d),
             _mm256_mul_ps(Header::floats(header.minima, g), header.dmin));
  }
};

}  // namespace
}  // namespace orrery::cpu
