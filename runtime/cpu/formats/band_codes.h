// Unpacks codes and scales of bands (formats/bands.h) for decode and for the panels of prefill: the formats with blocks of 32, Q4_K, and
// IQ3. All have weight rows in lanes, as bands do. A unit is 256 bits (eight rows), whatever the width of the instruction set's vector.
#pragma once

#include <immintrin.h>

#include <type_traits>

#include "runtime/cpu/formats/bands.h"
#include "runtime/cpu/formats/blocks_x86.h"
#include "runtime/cpu/formats/grids_x86.h"

namespace orrery::cpu {
namespace {

// unpack(w, n_columns, codes, scales) unpacks up to 256 columns of a band. It calls codes(quad, bytes) with four columns of each
// row, in the format's own code values, and scales(group, scale, minimum) with one float for each row.
template <class Format>
struct BandCodes {
  static constexpr bool kHas = false, kGroups = false;
};

// The formats with blocks of 32, whose bands are read a block at a time (kGroups): each has
//   kBytes                     bytes of 32 columns of a band
//   group(w, codes)            calls codes(i, quad, bytes) for i = 0 .. 7, four columns at a time
//   scale(w, minimum)          one scale for each row; also the minima, if the format has them
template <class Format, class Block>
struct BandGroups {
  static constexpr bool kHas = true, kGroups = true;
  static constexpr int kBytes = kBandRows * Format::kBytes / 8;

  template <class Codes, class Scales>
  static void unpack(const uint8_t* w, int n_columns, const Codes& codes, const Scales& scales) {
    for (int g = 0; g < n_columns / 32; ++g, w += kBytes) {
      Block::group(w, [&](int, int quad, __m256i bytes) { codes(8 * g + quad, bytes); });
      __m256 minimum = _mm256_setzero_ps();
      const __m256 scale = Block::scale(w, &minimum);
      scales(g, scale, minimum);
    }
  }

 protected:
  // A block that begins with its scale: a half, in the band's head.
  static __m256 head_scale(const uint8_t* w) { return _mm256_cvtph_ps(bytes16(w)); }
  // A block whose first word is its scale and the value of code 0, two halves. The minimum is that value, negated.
  static __m256 word_scale(const uint8_t* w, __m256* minimum) {
    const __m256i both = bytes32(w), low = _mm256_and_si256(both, _mm256_set1_epi32(0xFFFF));
    const __m256i halves = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, _mm256_srli_epi32(both, 16)), 0xD8);
    *minimum = negated(_mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1)));
    return _mm256_cvtph_ps(_mm256_castsi256_si128(halves));
  }
  // Four words of nibbles: columns 4 k in the low ones, 16 + 4 k in the high ones. turn(quad, nibbles) makes codes.
  template <class Codes, class Turn>
  [[gnu::always_inline]] static void nibbles(const uint8_t* words, const Codes& codes, const Turn& turn) {
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) {
      const __m256i x = bytes32(words + 32 * k);
      codes(2 * k, k, turn(k, low_nibbles(x)));
      codes(2 * k + 1, 4 + k, turn(4 + k, high_nibbles(x)));
    }
  }
  // The same, with the fifth bits of all columns in a word of their own, `bits`: bit i belongs to column i.
  template <class Codes>
  [[gnu::always_inline]] static void five_bits(const uint8_t* words, __m256i bits, const Codes& codes) {
    nibbles(
        words, codes, [&](int quad, __m256i low) __attribute__((always_inline)) {
          const __m256i starts = _mm256_setr_epi32(0, 0x04040404, 0x08080808, 0x0C0C0C0C, 0, 0x04040404, 0x08080808, 0x0C0C0C0C);
          const __m256i byte = _mm256_shuffle_epi8(bits, _mm256_add_epi8(starts, _mm256_set1_epi8(static_cast<char>(quad / 2))));
          const __m256i each = _mm256_set1_epi32(static_cast<int32_t>(quad % 2 ? 0x80402010u : 0x08040201u));
          const __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(byte, each), each);
          return _mm256_or_si256(low, _mm256_and_si256(set, _mm256_set1_epi8(16)));
        });
  }
  static __m256i as_it_is(int, __m256i x) { return x; }
};

template <>
struct BandCodes<Q8_0> : BandGroups<Q8_0, BandCodes<Q8_0>> {
  template <class Codes>
  [[gnu::always_inline]] static void group(const uint8_t* w, const Codes& codes) {
#pragma GCC unroll 8
    for (int k = 0; k < 8; ++k) codes(k, k, bytes32(w + 16 + 32 * k));
  }
  static __m256 scale(const uint8_t* w, __m256*) { return head_scale(w); }
};

template <>
struct BandCodes<Q4_0> : BandGroups<Q4_0, BandCodes<Q4_0>> {
  template <class Codes>
  [[gnu::always_inline]] static void group(const uint8_t* w, const Codes& codes) {
    nibbles(w + 16, codes, as_it_is);
  }
  static __m256 scale(const uint8_t* w, __m256*) { return head_scale(w); }
};

template <>
struct BandCodes<Q4_1> : BandGroups<Q4_1, BandCodes<Q4_1>> {
  template <class Codes>
  [[gnu::always_inline]] static void group(const uint8_t* w, const Codes& codes) {
    nibbles(w + 32, codes, as_it_is);
  }
  static __m256 scale(const uint8_t* w, __m256* minimum) { return word_scale(w, minimum); }
};

template <>
struct BandCodes<Q5_0> : BandGroups<Q5_0, BandCodes<Q5_0>> {
  template <class Codes>
  [[gnu::always_inline]] static void group(const uint8_t* w, const Codes& codes) {
    five_bits(w + 48, bytes32(w + 16), codes);
  }
  static __m256 scale(const uint8_t* w, __m256*) { return head_scale(w); }
};

template <>
struct BandCodes<Q5_1> : BandGroups<Q5_1, BandCodes<Q5_1>> {
  template <class Codes>
  [[gnu::always_inline]] static void group(const uint8_t* w, const Codes& codes) {
    five_bits(w + 64, bytes32(w + 32), codes);
  }
  static __m256 scale(const uint8_t* w, __m256* minimum) { return word_scale(w, minimum); }
};

template <>
struct BandCodes<Iq4Nl> : BandGroups<Iq4Nl, BandCodes<Iq4Nl>> {
  template <class Codes>
  [[gnu::always_inline]] static void group(const uint8_t* w, const Codes& codes) {
    nibbles(w + 16, codes, [](int, __m256i x) { return codebook(x); });
  }
  static __m256 scale(const uint8_t* w, __m256*) { return head_scale(w); }
};

template <>
struct BandCodes<Mxfp4> : BandGroups<Mxfp4, BandCodes<Mxfp4>> {
  template <class Codes>
  [[gnu::always_inline]] static void group(const uint8_t* w, const Codes& codes) {
    nibbles(w + 8, codes, [](int, __m256i x) { return Mxfp4::values(x); });
  }
  static __m256 scale(const uint8_t* w, __m256*) {
    return halved_powers(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(w))));
  }
};

template <>
struct BandCodes<Q4K> {
  static constexpr bool kHas = true, kGroups = false;
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
      scales(g, _mm256_mul_ps(Header::floats(header.scales, g), header.d), _mm256_mul_ps(Header::floats(header.minima, g), header.dmin));
  }
};

// IQ3, whose bands hold indices of magnitudes.
template <class Format>
struct IndexBandCodes {
  static constexpr bool kHas = true, kGroups = false;
  static constexpr int kBytes = kIndexBandBytes;

  // The scale of d of eight rows; and that of group g: d times an odd number, exact.
  static __m256 d(const uint8_t* w) { return _mm256_mul_ps(_mm256_cvtph_ps(bytes16(w)), _mm256_set1_ps(Format::kScaleUnit)); }
  static __m256 scale(const uint8_t* w, __m256 d, int g) {
    const __m128i odd = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(w + 2 * kBandRows + kBandRows * g));
    return _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(odd)), d);
  }
  // Calls codes(i, quad, bytes) for i = 0 .. 7: four columns of group g at a time.
  template <class Codes>
  [[gnu::always_inline]] static void group(const uint8_t* w, int g, const Codes& codes) {
    const uint8_t* words = w + kIndexBandNibbles + 16 * kBandRows * g;
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) {
      const __m256i x = bytes32(words + 32 * k);
      codes(2 * k, k, indexed_codes(Format::index_codes(), low_nibbles(x)));
      codes(2 * k + 1, 4 + k, indexed_codes(Format::index_codes(), high_nibbles(x)));
    }
  }

  template <class Codes, class Scales>
  static void unpack(const uint8_t* w, int, const Codes& codes, const Scales& scales) {
    const __m256 of_rows = d(w);
    for (int g = 0; g < 8; ++g) {
      group(w, g, [&](int, int quad, __m256i bytes) { codes(8 * g + quad, bytes); });
      scales(g, scale(w, of_rows, g), _mm256_setzero_ps());
    }
  }
};
template <>
struct BandCodes<Iq3Xxs> : IndexBandCodes<Iq3Xxs> {};
template <>
struct BandCodes<Iq3S> : IndexBandCodes<Iq3S> {};

// Whether the bands of a format hold indices; and the bytes of a band of 256 columns.
template <class Format>
constexpr bool kIndexBands = std::is_base_of<IndexBandCodes<Format>, BandCodes<Format>>::value;
template <class Format>
constexpr int kBandBytes256 = kIndexBands<Format> ? kIndexBandBytes : kBandRows* Format::kBytes;

}  // namespace
}  // namespace orrery::cpu
