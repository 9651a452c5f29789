// Decode over bands, 512 bits wide: two bands of eight weight rows side by side. Needs AVX-512 F, BW, VL, DQ and VNNI. Include it after
// products/bands_avx2.h, whose sums it repeats, lane by lane, in the same order.
//
// A group of 32 columns is unpacked once, to eight registers, and meets all rows of activations there. A row then takes eight products
// of 64 bytes, a conversion, and two or three float instructions. The products and the floats share two ports, each half as wide as a
// register: ten or eleven cycles for 512 products, and nothing else takes as long. Memory gives the activations, repeated in all lanes,
// and what a row adds to a group besides: Factors, computed once for all bands of a task. README.md has the limit and measurements.
#pragma once

#include "runtime/cpu/products/bands_avx2.h"

namespace orrery::cpu {
namespace {

struct Wide {
  using I = __m512i;
  using F = __m512;
  // 32 bytes of each band.
  static I both(const uint8_t* a, const uint8_t* b, int at) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(bytes32(a + at)), bytes32(b + at), 1);
  }
  static I low_nibbles(I x) { return _mm512_and_si512(x, _mm512_set1_epi8(15)); }
  static I high_nibbles(I x) { return low_nibbles(_mm512_srli_epi16(x, 4)); }
  static F negated(F x) { return _mm512_xor_ps(x, _mm512_set1_ps(-0.0f)); }
  // The low halves of 32-bit words, as floats.
  static F low_halves(I x) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(x)); }
  static I repeated(const int8_t* four) { return _mm512_set1_epi32(word<int32_t>(reinterpret_cast<const uint8_t*>(four))); }
};

// The codes, scales and minima of 32 columns of two bands, as GroupBands has them.
template <class Format>
struct WideGroup {
  static constexpr int kBytes = BandCodes<Format>::kBytes;
  Wide::I codes[8];
  Wide::F scale, minimum;

  [[gnu::always_inline]] WideGroup(const uint8_t* a, const uint8_t* b) {
    if constexpr (Format::kSigned && Format::kBytes == Q8_0::kBytes) {
#pragma GCC unroll 8
      for (int k = 0; k < 8; ++k) codes[k] = _mm512_xor_si512(Wide::both(a, b, 16 + 32 * k), _mm512_set1_epi8(-128));
    } else {
      constexpr int kNibbles = kBytes - 4 * 32;  // the last four words of each block
#pragma GCC unroll 4
      for (int k = 0; k < 4; ++k) {
        const Wide::I x = Wide::both(a, b, kNibbles + 32 * k);
        codes[k] = Wide::low_nibbles(x), codes[4 + k] = Wide::high_nibbles(x);
      }
    }
    if constexpr (Format::kSigned && Format::kBytes != Q8_0::kBytes) {  // IQ4_NL, with the offset of signed codes
      const Wide::I values = _mm512_xor_si512(_mm512_broadcast_i32x4(codebook_values()), _mm512_set1_epi8(-128));
#pragma GCC unroll 8
      for (Wide::I& x : codes) x = _mm512_shuffle_epi8(values, x);
    }
    if constexpr (std::is_same<Format, Mxfp4>::value) {
#pragma GCC unroll 8
      for (Wide::I& x : codes) x = _mm512_shuffle_epi8(_mm512_broadcast_i32x4(Mxfp4::table()), x);
    } else if constexpr (kCodeBits<Format> == 5) {  // bit i of the word before the nibbles belongs to column i
      const Wide::I bits = Wide::both(a, b, kBytes - 5 * 32);
      const Wide::I starts = _mm512_broadcast_i32x4(_mm_setr_epi32(0, 0x04040404, 0x08080808, 0x0C0C0C0C));
#pragma GCC unroll 8
      for (int k = 0; k < 8; ++k) {
        const Wide::I byte = _mm512_shuffle_epi8(bits, _mm512_add_epi8(starts, _mm512_set1_epi8(static_cast<char>(k / 2))));
        const __mmask64 set = _mm512_test_epi8_mask(byte, _mm512_set1_epi32(static_cast<int32_t>(k % 2 ? 0x80402010u : 0x08040201u)));
        codes[k] = _mm512_mask_add_epi8(codes[k], set, codes[k], _mm512_set1_epi8(16));
      }
    }
    if constexpr (std::is_same<Format, Mxfp4>::value) {
      scale = _mm512_insertf32x8(_mm512_castps256_ps512(BandCodes<Mxfp4>::scale(a, nullptr)), BandCodes<Mxfp4>::scale(b, nullptr), 1);
    } else if constexpr (Format::kHasMin) {
      const Wide::I halves = Wide::both(a, b, 0);
      scale = Wide::low_halves(halves), minimum = Wide::negated(Wide::low_halves(_mm512_srli_epi32(halves, 16)));
    } else {
      scale = _mm512_cvtph_ps(_mm256_inserti128_si256(_mm256_castsi128_si256(bytes16(a)), bytes16(b), 1));
    }
  }

  // sums (R) += these columns, from c on, of R rows, whose factors are f's from row `at` on.
  template <int R>
  [[gnu::always_inline]] void add(const int8_t* const* q, int64_t c, const Factors& f, int at, Wide::F* sums) const {
    constexpr int kTogether = 4;  // chains of sums under way
    if constexpr (R > kTogether) {
      add<kTogether>(q, c, f, at, sums);
      add<R - kTogether>(q + kTogether, c, f, at + kTogether, sums + kTogether);
    } else {
      Wide::I dots[R];
      for (int r = 0; r < R; ++r) dots[r] = V::kPanelOffset<Format> ? _mm512_set1_epi32(f.extra[at + r]) : _mm512_setzero_si512();
#pragma GCC unroll 8
      for (int k = 0; k < 8; ++k)
        for (int r = 0; r < R; ++r) dots[r] = _mm512_dpbusd_epi32(dots[r], codes[k], Wide::repeated(q[r] + c + 4 * k));
      for (int r = 0; r < R; ++r) {
        sums[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[r]), _mm512_mul_ps(scale, _mm512_set1_ps(f.d[at + r])), sums[r]);
        if (Format::kHasMin) sums[r] = _mm512_fnmadd_ps(minimum, _mm512_set1_ps(f.minimum(at + r)), sums[r]);
      }
    }
  }
};

// multiply(): sums (n) = two bands, `a` and `b`, times n <= kFewRows rows.
template <class Format>
struct WideBands {
  using Group = WideGroup<Format>;

  // sums (R) = two bands times R <= 8 rows, in registers.
  template <int R>
  static void few(const uint8_t* a, const uint8_t* b, const int8_t* const* q, const Factors* f, int64_t n_columns, Wide::F* out) {
    Wide::F sums[R];
    const int8_t* rows[R];
    for (int r = 0; r < R; ++r) sums[r] = _mm512_setzero_ps(), rows[r] = q[r];
    BandsAhead ahead(a, n_columns / 32 * Group::kBytes);
    for (int64_t c = 0; c < n_columns; c += 32, a += Group::kBytes, b += Group::kBytes, ++f) {
      ahead.step<Group::kBytes>(a, b);
      Group(a, b).template add<R>(rows, c, *f, 0, sums);
    }
    for (int r = 0; r < R; ++r) out[r] = sums[r];
  }
  // The same for more rows, up to eight at a time, with sums in the first-level cache.
  static void many(const uint8_t* a, const uint8_t* b, const int8_t* const* q, int n, const Factors* f, int64_t n_groups, int64_t n_columns,
                   Wide::F* sums) {
    for (int r = 0; r < n; ++r) sums[r] = _mm512_setzero_ps();
    BandsAhead ahead(a, n_columns / 32 * Group::kBytes);
    for (int64_t c = 0; c < n_columns; c += 32, a += Group::kBytes, b += Group::kBytes, ++f) {
      ahead.step<Group::kBytes>(a, b);
      const Group group(a, b);
      int r = 0;
      const auto add = [&](auto rows) __attribute__((always_inline)) {
        constexpr int kRows = decltype(rows)::value;
        group.template add<kRows>(q + r, c, f[r / Factors::kRows * n_groups], r % Factors::kRows, sums + r);
        r += kRows;
      };
      while (r + 8 <= n) add(std::integral_constant<int, 8>());
      if (r + 4 <= n) add(std::integral_constant<int, 4>());
      while (r < n) add(std::integral_constant<int, 1>());
    }
  }
  static void multiply(const uint8_t* a, const uint8_t* b, const int8_t* const* q, int n, const Factors* f, int64_t n_groups,
                       int64_t n_columns, Wide::F* sums) {
    switch (n) {
      case 1: return few<1>(a, b, q, f, n_columns, sums);
      case 2: return few<2>(a, b, q, f, n_columns, sums);
      case 3: return few<3>(a, b, q, f, n_columns, sums);
      case 4: return few<4>(a, b, q, f, n_columns, sums);
      case 5: return few<5>(a, b, q, f, n_columns, sums);
      case 6: return few<6>(a, b, q, f, n_columns, sums);
      case 7: return few<7>(a, b, q, f, n_columns, sums);
      case 8: return few<8>(a, b, q, f, n_columns, sums);
      default: return many(a, b, q, n, f, n_groups, n_columns, sums);
    }
  }
};

// Q4_K: 256 columns are unpacked to the first-level cache, then meet four rows at a time. The sums of Bands<Q4K>, in the same order.
template <>
struct WideBands<Q4K> {
  using Header = BandCodes<Q4K>::Header;
  static constexpr int kBytes = BandCodes<Q4K>::kBytes, kTogether = 4;

  struct Block {
    Wide::I codes[8][8], scale[8], minimum[8];  // groups, quads; a scale in each lane, a minimum in both words of each lane
    Wide::F d, dmin;

    [[gnu::always_inline]] Block(const uint8_t* a, const uint8_t* b) {
      const Wide::I halves = Wide::both(a, b, 0);
      d = Wide::low_halves(halves), dmin = Wide::low_halves(_mm512_srli_epi32(halves, 16));
      const Header of_a(a), of_b(b);
      for (int g = 0; g < 8; ++g) {
        const auto wide = [&](const __m256i* first, const __m256i* second) {
          return _mm512_inserti64x4(_mm512_castsi256_si512(Header::twice(first, g)), Header::twice(second, g), 1);
        };
        scale[g] = _mm512_srli_epi32(wide(of_a.scales, of_b.scales), 16);
        minimum[g] = wide(of_a.minima, of_b.minima);
      }
      for (int i = 0; i < 4; ++i)
        for (int k = 0; k < 8; ++k) {
          const Wide::I x = Wide::both(a, b, 128 + 256 * i + 32 * k);
          codes[2 * i][k] = Wide::low_nibbles(x), codes[2 * i + 1][k] = Wide::high_nibbles(x);
        }
    }
    template <int R>
    void add(const int8_t* const* q, int64_t c, const Factors* f, int at, Wide::F* sums) const {
      Wide::F dots[R], minima[R];
      for (int r = 0; r < R; ++r) dots[r] = minima[r] = _mm512_setzero_ps();
      for (int g = 0; g < 8; ++g, ++f, c += 32) {
        Wide::I products[R];
        for (Wide::I& x : products) x = _mm512_setzero_si512();
#pragma GCC unroll 8
        for (int k = 0; k < 8; ++k)
          for (int r = 0; r < R; ++r) products[r] = _mm512_dpbusd_epi32(products[r], codes[g][k], Wide::repeated(q[r] + c + 4 * k));
        for (int r = 0; r < R; ++r) {
          const Wide::F of_row = _mm512_set1_ps(f->d[at + r]);
          dots[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_mullo_epi32(products[r], scale[g])), of_row, dots[r]);
          const Wide::I taken = _mm512_madd_epi16(_mm512_set1_epi32(f->extra[at + r]), minimum[g]);
          minima[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(taken), of_row, minima[r]);
        }
      }
      for (int r = 0; r < R; ++r) sums[r] = _mm512_fnmadd_ps(minima[r], dmin, _mm512_fmadd_ps(dots[r], d, sums[r]));
    }
  };

  static void multiply(const uint8_t* a, const uint8_t* b, const int8_t* const* q, int n, const Factors* f, int64_t n_groups,
                       int64_t n_columns, Wide::F* sums) {
    for (int r = 0; r < n; ++r) sums[r] = _mm512_setzero_ps();
    BandsAhead ahead(a, n_columns / 256 * kBytes);
    for (int64_t c = 0; c < n_columns; c += 256, a += kBytes, b += kBytes, f += 8) {
      ahead.step<kBytes>(a, b);
      const Block block(a, b);
      for (int r = 0; r < n; r += kTogether) {
        const Factors* of_rows = f + r / Factors::kRows * n_groups;
        const int at = r % Factors::kRows, left = n - r;
        left >= 4   ? block.add<4>(q + r, c, of_rows, at, sums + r)
        : left == 3 ? block.add<3>(q + r, c, of_rows, at, sums + r)
        : left == 2 ? block.add<2>(q + r, c, of_rows, at, sums + r)
                    : block.add<1>(q + r, c, of_rows, at, sums + r);
      }
    }
  }
};

// WideRows (products/weights.h): two bands at a time; a last one alone is its own neighbour.
template <class Format, int kFewestRows>
struct Rows512 {
  static constexpr int kFewest = kFewestRows;

  static void multiply(const MatmulTask& t) {
    const int64_t n_groups = padded_columns(t.n_columns) / 32;
    auto* factors = reinterpret_cast<Factors*>(t.scratch);  // (blocks of eight rows, n_groups)
    for (int64_t first = t.first_row; first < t.last_row; first += kFewRows) {
      const int n = static_cast<int>(t.last_row - first < kFewRows ? t.last_row - first : kFewRows);
      QuantizedRow x[kFewRows];
      const int8_t* q[kFewRows];
      for (int i = 0; i < n; ++i) x[i] = quantized_row(t.quantized + (first + i) * t.quantized_stride, t.n_columns), q[i] = x[i].q;
      fill_factors<Format>(x, n, t.n_columns, factors);
      for (int64_t o = t.first_out; o < t.last_out; o += 2 * kBandRows) {
        const bool two = o + kBandRows < t.last_out;
        const auto* band = reinterpret_cast<const uint8_t*>(t.weight + o * t.row_bytes);
        Wide::F sums[kFewRows];
        WideBands<Format>::multiply(band, two ? band + kBandRows * t.row_bytes : band, q, n, factors, n_groups, t.n_columns, sums);
        for (int i = 0; i < n; ++i) {
          float values[2 * kBandRows];
          _mm512_storeu_ps(values, sums[i]);
          store_outputs(t, first + i, o, values, two ? 2 * kBandRows : kBandRows);
        }
      }
    }
  }
};
template <>
struct WideRows<Q8_0> : Rows512<Q8_0, 1> {};
template <>
struct WideRows<Q4_0> : Rows512<Q4_0, 1> {};
template <>
struct WideRows<Q4_1> : Rows512<Q4_1, 1> {};
template <>
struct WideRows<Q5_0> : Rows512<Q5_0, 1> {};
template <>
struct WideRows<Q5_1> : Rows512<Q5_1, 1> {};
template <>
struct WideRows<Iq4Nl> : Rows512<Iq4Nl, 1> {};
template <>
struct WideRows<Mxfp4> : Rows512<Mxfp4, 1> {};
template <>
struct WideRows<Q4K> : Rows512<Q4K, 3> {};

}  // namespace
}  // namespace orrery::cpu
