// Decode over bands (formats/bands.h), for the formats that the 256-bit kernels want in bands: those with blocks of 32, Q4_K, and IQ3.
//
// Memory gives a core about 18 bytes of weights in four cycles. In the file's layout, 256 weights of Q4_0 (144 bytes) take 72
// vector instructions, most of which sum across lanes and gather scales. In a band they take 35, and Q4_K takes 37: 12 for the
// nibbles, 8 products with four activations repeated in all lanes, 7 sums in 16 bits (15 * 127 * 2 * 8 = 30480 fits). Offsets of
// codes and minima become products with the sums of activations. A band has no remainder but whole blocks of 32 columns, and the
// end of a row is paid once for eight rows. README.md has measurements.
#pragma once

#include "runtime/cpu/vectors/avx2.h"
#include "runtime/cpu/formats/band_codes.h"
#include "runtime/cpu/products/weights.h"

namespace orrery::cpu {
namespace {

// Two 16-bit numbers, repeated in every lane.
inline V::I two_words(const int16_t* p) { return V::repeated(reinterpret_cast<const int8_t*>(p)); }

// Prefetches two bands that follow each other, and the pairs behind them: both bands at once, kFar bytes ahead to the second-level
// cache, kNear bytes ahead to the first-level cache. The pair before asks for the first bytes of a pair.
class BandsAhead {
 public:
  BandsAhead(const uint8_t* a, int64_t band_bytes) : band_bytes_(band_bytes) {
    const int64_t pairs = kFar / band_bytes;
    far_ = a + kFar + pairs * band_bytes, end_ = a + (2 * pairs + 1) * band_bytes;
  }
  template <int kBytes>
  [[gnu::always_inline]] void step(const uint8_t* a, const uint8_t* b) {
#pragma GCC unroll 64
    for (int i = 0; i < kBytes; i += 64) {
      if (V::kTwoStages) {
        __builtin_prefetch(far_ + i, 0, 2), __builtin_prefetch(far_ + band_bytes_ + i, 0, 2);
        __builtin_prefetch(a + kNear + i), __builtin_prefetch(b + kNear + i);
      } else {
        __builtin_prefetch(far_ + i), __builtin_prefetch(far_ + band_bytes_ + i);
      }
    }
    if ((far_ += kBytes) >= end_) far_ += band_bytes_, end_ += 2 * band_bytes_;
  }

 private:
  static constexpr int64_t kFar = V::kTwoStages ? 8192 : 2048, kNear = 512;
  int64_t band_bytes_;
  const uint8_t *far_, *end_;
};

// What eight rows of activations bring to a group of 32 columns: their scales, and (extra) the start of dots that corrects the codes'
// offset, or the factor of minima, or for Q4_K the two sums of 16 activations.
struct Factors {
  static constexpr int kRows = 8;
  float d[kRows];
  int32_t extra[kRows];
  float minimum(int r) const { return word<float>(reinterpret_cast<const uint8_t*>(extra + r)); }
};

// out (blocks of eight rows, groups of whole 256 columns): the factors of n <= kFewRows rows.
template <class Format>
void fill_factors(const QuantizedRow* x, int n, int64_t n_columns, Factors* out) {
  static_assert(sizeof(Factors) == 8 * Factors::kRows && kFewRows % Factors::kRows == 0);  // decode_scratch_bytes()
  constexpr int kOffset = V::kPanelOffset<Format>;
  const V::I factor = _mm256_set1_epi16(static_cast<int16_t>(kOffset ? -kOffset : 1));
  if (n > Factors::kRows) fill_factors<Format>(x + Factors::kRows, n - Factors::kRows, n_columns, out + padded_columns(n_columns) / 32);
  for (int64_t g = 0; g < n_columns / 32; g += 8, out += 8) {
    V::F d[Factors::kRows], extra[Factors::kRows];
    for (int r = 0; r < Factors::kRows; ++r) {
      d[r] = extra[r] = V::zero();
      if (r >= n) continue;
      d[r] = V::load(x[r].d + g);
      const V::I sums = V::load_i(x[r].sums + 2 * g), dots = _mm256_madd_epi16(sums, factor);
      if (Format::kBlock == 256) extra[r] = _mm256_castsi256_ps(sums);
      else extra[r] = kOffset ? _mm256_castsi256_ps(dots) : V::mul(d[r], V::to_float(dots));
    }
    V::transpose(d), V::transpose(extra);
    for (int i = 0; i < 8; ++i) V::store(out[i].d, d[i]), V::store_i(out[i].extra, _mm256_castps_si256(extra[i]));
  }
}

// The formats with blocks of 32 (BandCodes::kGroups). For each 32 columns: eight products with four activations each, summed in
// integers, then a scale, as in prefill (group_dots(), multiply_panel()). So decode and prefill give the same bits.
template <class Format>
struct GroupBands {
  static constexpr bool kHas = true, kAsPrefill = true;
  using RowFactors = Factors;
  static void fill(const QuantizedRow* x, int n, int64_t n_columns, Factors* out) { fill_factors<Format>(x, n, n_columns, out); }
  using Block = BandCodes<Format>;
  static constexpr int kOffset = V::kPanelOffset<Format>;
  // True: each product is added in 32 bits. False: kRun products are summed in 16 bits first.
  static constexpr bool kWhole = Format::kSigned || V::kWholeSums;
  // Rows that decode_bands() computes without an unpacking for all, measured with AVX2: the more, the less unpacking takes.
  static constexpr bool kUnpacksLong = kCodeBits<Format> == 5 || std::is_same<Format, Iq4Nl>::value;
  static constexpr int kAtOnce = V::kWholeSums ? 2 : 6;
  static constexpr int kDirect = V::kWholeSums || kUnpacksLong ? kAtOnce : Format::kHasMin ? 8 : kFewRows;
  static constexpr int kRun = kWhole || V::run(kCodeBits<Format>) > 8 ? 8 : V::run(kCodeBits<Format>);
  static_assert(8 % kRun == 0);

  static V::Codes prepared(V::I codes) {
    if constexpr (Format::kSigned) return V::signed_codes(codes);
    else return V::prepared(codes);
  }
  static V::I start(const int16_t* sums) {
    return kOffset ? _mm256_madd_epi16(two_words(sums), _mm256_set1_epi16(static_cast<int16_t>(-kOffset))) : V::zero_i();
  }
  // The dots of one row with four columns more, the i-th of eight. x: four activations in all lanes.
  [[gnu::always_inline]] static void add_quad(int i, const V::Codes& codes, V::I x, V::I& products, V::I& dots) {
    if constexpr (Format::kSigned) {
      dots = V::signed_dots(dots, codes, x);
    } else if constexpr (V::kWholeSums) {
      dots = V::products<false>(dots, codes, x);
    } else {
      products = V::products<false>(i % kRun == 0 ? V::zero_i() : products, codes, x);
      if (i % kRun == kRun - 1) dots = V::widened(dots, products);
    }
  }
  static V::F with_group(V::F sum, V::I dots, V::F scale, V::F minimum, const QuantizedRow& x, int64_t c) {
    const V::F d = V::set(x.d[c / 32]);
    sum = V::fma(V::to_float(dots), V::mul(scale, d), sum);
    if (!Format::kHasMin) return sum;
    const int16_t* s = x.sums + c / 16;
    return V::fnma(minimum, V::mul(d, V::set(static_cast<float>(s[0] + s[1]))), sum);
  }

  // sums (R, 8) = a band times R rows of activations.
  template <int R>
  static void dot(const uint8_t* w, const QuantizedRow* x, int64_t n_columns, V::F* sums) {
    for (int r = 0; r < R; ++r) sums[r] = V::zero();
    for (int64_t c = 0; c < n_columns; c += 32, w += Block::kBytes) {
      prefetch_stream<2048, !kUnpacksLong>(w, Block::kBytes);
      V::I products[R], dots[R];
      for (int r = 0; r < R; ++r) products[r] = V::zero_i(), dots[r] = start(x[r].sums + c / 16);
      Block::group(
          w, [&](int i, int quad, V::I bytes) __attribute__((always_inline)) {
            const V::Codes codes = prepared(bytes);
            for (int r = 0; r < R; ++r) add_quad(i, codes, V::repeated(x[r].q + c + 4 * quad), products[r], dots[r]);
          });
      V::F minimum = V::zero();
      const V::F scale = Block::scale(w, &minimum);
      for (int r = 0; r < R; ++r) sums[r] = with_group(sums[r], dots[r], scale, minimum, x[r], c);
    }
  }

  // The same for n <= kFewRows rows and B bands, band_bytes apart: sums (B, kFewRows, 8). The codes of 32 columns are unpacked once,
  // to the first-level cache. Two bands share the broadcasts of activations, of which there are as many as products.
  template <int B>
  static void dot_many(const uint8_t* w, int64_t band_bytes, const QuantizedRow* x, int n, const Factors* f, int64_t n_columns,
                       V::F (*sums)[kFewRows]) {
    const int64_t n_groups = padded_columns(n_columns) / 32;
    for (int b = 0; b < B; ++b)
      for (int r = 0; r < n; ++r) sums[b][r] = V::zero();
    BandsAhead ahead(w, band_bytes);
    for (int64_t c = 0; c < n_columns; c += 32, w += Block::kBytes, ++f) {
      Unpacked32<B> u;
      ahead.step<Block::kBytes>(w, w + (B - 1) * band_bytes);
      for (int b = 0; b < B; ++b) {
        const uint8_t* at = w + b * band_bytes;
        Block::group(
            at, [&](int, int quad, V::I bytes) __attribute__((always_inline)) { u.codes[b][quad] = bytes; });
        u.minimum[b] = V::zero();
        u.scale[b] = Block::scale(at, &u.minimum[b]);
      }
      int r = 0;
      const auto add = [&](auto rows) __attribute__((always_inline)) {
        constexpr int kRows = decltype(rows)::value;
        add_rows<B, kRows>(u, x + r, c, f[r / Factors::kRows * n_groups], r, sums);
        r += kRows;
      };
      while (r + kTogether <= n) add(std::integral_constant<int, kTogether>());
      if (r + 3 == n) add(std::integral_constant<int, 3>());
      if (r + 2 == n) add(std::integral_constant<int, 2>());
      if (r + 1 == n) add(std::integral_constant<int, 1>());
    }
  }

 private:
  static constexpr int kTogether = 4;  // rows whose dots are in registers
  template <int B>
  struct Unpacked32 {
    V::I codes[B][8];
    V::F scale[B], minimum[B];
  };
  // The sums of dot(), in the same order.
  template <int B, int R>
  static void add_rows(const Unpacked32<B>& u, const QuantizedRow* x, int64_t c, const Factors& f, int at, V::F (*sums)[kFewRows]) {
    const int first = at % Factors::kRows;
    V::I products[R][B], dots[R][B];
    for (int r = 0; r < R; ++r)
      for (int b = 0; b < B; ++b) products[r][b] = V::zero_i(), dots[r][b] = kOffset ? V::set_i(f.extra[first + r]) : V::zero_i();
#pragma GCC unroll 8
    for (int k = 0; k < 8; ++k) {
      V::Codes codes[B];
      for (int b = 0; b < B; ++b) codes[b] = prepared(u.codes[b][k]);
      for (int r = 0; r < R; ++r) {
        const V::I four = V::repeated(x[r].q + c + 4 * k);
        for (int b = 0; b < B; ++b) add_quad(k, codes[b], four, products[r][b], dots[r][b]);
      }
    }
    for (int r = 0; r < R; ++r)
      for (int b = 0; b < B; ++b) {
        V::F sum = V::fma(V::to_float(dots[r][b]), V::mul(u.scale[b], V::set(f.d[first + r])), sums[b][at + r]);
        if (Format::kHasMin) sum = V::fnma(u.minimum[b], V::set(f.minimum(first + r)), sum);
        sums[b][at + r] = sum;
      }
  }
};

template <>
struct Bands<Q8_0> : GroupBands<Q8_0> {};
template <>
struct Bands<Q4_0> : GroupBands<Q4_0> {};
template <>
struct Bands<Q4_1> : GroupBands<Q4_1> {};
template <>
struct Bands<Q5_0> : GroupBands<Q5_0> {};
template <>
struct Bands<Q5_1> : GroupBands<Q5_1> {};
template <>
struct Bands<Iq4Nl> : GroupBands<Iq4Nl> {};
template <>
struct Bands<Mxfp4> : GroupBands<Mxfp4> {};

// IQ3, whose bands hold indices of magnitudes: as GroupBands, with the same bits in decode and in prefill. More rows take several passes.
template <class Format>
struct IndexBands {
  using Group = GroupBands<Format>;
  using Block = BandCodes<Format>;
  static constexpr bool kHas = true, kAsPrefill = true;
  static constexpr int kAtOnce = V::kWholeSums ? 2 : 4, kDirect = kFewRows;

  // sums (R, 8) = a band times R rows of activations.
  template <int R>
  static void dot(const uint8_t* w, const QuantizedRow* x, int64_t n_columns, V::F* sums) {
    for (int r = 0; r < R; ++r) sums[r] = V::zero();
    for (int64_t c = 0; c < n_columns; w += Block::kBytes) {
      prefetch_stream<2048>(w, kIndexBandNibbles);
      const V::F d = Block::d(w);
      for (int g = 0; g < 8; ++g, c += 32) {
        prefetch_stream<2048>(w + kIndexBandNibbles + 16 * kBandRows * g, 16 * kBandRows);
        V::I products[R], dots[R];
        for (int r = 0; r < R; ++r) products[r] = V::zero_i(), dots[r] = Group::start(x[r].sums + c / 16);
        Block::group(
            w, g, [&](int i, int quad, V::I bytes) __attribute__((always_inline)) {
              const V::Codes codes = Group::prepared(bytes);
              for (int r = 0; r < R; ++r) Group::add_quad(i, codes, V::repeated(x[r].q + c + 4 * quad), products[r], dots[r]);
            });
        const V::F scale = Block::scale(w, d, g);
        for (int r = 0; r < R; ++r) sums[r] = Group::with_group(sums[r], dots[r], scale, V::zero(), x[r], c);
      }
    }
  }
};
template <>
struct Bands<Iq3Xxs> : IndexBands<Iq3Xxs> {};
template <>
struct Bands<Iq3S> : IndexBands<Iq3S> {};

template <>
struct Bands<Q4K> {
  static constexpr bool kHas = true, kAsPrefill = false;
  using RowFactors = Factors;
  static void fill(const QuantizedRow* x, int n, int64_t n_columns, Factors* out) { fill_factors<Q4K>(x, n, n_columns, out); }
  static constexpr int kBytes = BandCodes<Q4K>::kBytes;
  static constexpr int kAtOnce = V::kWholeSums ? 2 : 4, kDirect = kAtOnce;  // as in GroupBands

  using Header = BandCodes<Q4K>::Header;

  // sums (R, 8) = a band times R rows of activations.
  template <int R>
  static void dot(const uint8_t* w, const QuantizedRow* x, int64_t n_columns, V::F* sums) {
    for (int r = 0; r < R; ++r) sums[r] = V::zero();
    for (int64_t c = 0; c < n_columns; c += 256, w += kBytes) {
      prefetch_stream<2048>(w, 128);
      add_block<R>(
          Header(w), x, c, sums, [&](int i, int k) __attribute__((always_inline)) {
            const uint8_t* at = w + 128 + 256 * i + 32 * k;
            if (k % 2 == 0) prefetch_stream<2048>(at, 64);
            const V::I codes = bytes32(at);
            return Quads{low_nibbles(codes), high_nibbles(codes)};
          });
    }
  }

  // The same for n <= kFewRows rows and B bands, as GroupBands::dot_many(), 256 columns at a time.
  template <int B>
  static void dot_many(const uint8_t* w, int64_t band_bytes, const QuantizedRow* x, int n, const Factors* f, int64_t n_columns,
                       V::F (*sums)[kFewRows]) {
    const int64_t n_groups = n_columns / 32;
    for (int b = 0; b < B; ++b)
      for (int r = 0; r < n; ++r) sums[b][r] = V::zero();
    BandsAhead ahead(w, band_bytes);
    for (int64_t c = 0; c < n_columns; c += 256, w += kBytes, f += 8) {
      Unpacked256<B> u;
      ahead.step<kBytes>(w, w + (B - 1) * band_bytes);
      for (int b = 0; b < B; ++b) {
        const uint8_t* at = w + b * band_bytes;
        const Header header(at);
        u.d[b] = header.d, u.dmin[b] = header.dmin;
        for (int g = 0; g < 8; ++g) u.scale[b][g] = Header::twice(header.scales, g), u.minimum[b][g] = Header::twice(header.minima, g);
        for (int i = 0; i < 4; ++i)
          for (int k = 0; k < 8; ++k) {
            const V::I codes = bytes32(at + 128 + 256 * i + 32 * k);
            u.codes[b][2 * i][k] = low_nibbles(codes), u.codes[b][2 * i + 1][k] = high_nibbles(codes);
          }
      }
      int r = 0;
      const auto add = [&](auto rows) __attribute__((always_inline)) {
        constexpr int kRows = decltype(rows)::value;
        add_rows<B, kRows>(u, x + r, c, f + r / Factors::kRows * n_groups, r, sums);
        r += kRows;
      };
      while (r + kTogether <= n) add(std::integral_constant<int, kTogether>());
      if (r + 3 == n) add(std::integral_constant<int, 3>());
      if (r + 2 == n) add(std::integral_constant<int, 2>());
      if (r + 1 == n) add(std::integral_constant<int, 1>());
    }
  }

 private:
  static constexpr int kTogether = 4;  // rows whose products are in registers
  template <int B>
  struct Unpacked256 {
    V::I codes[B][8][8], scale[B][8], minimum[B][8];  // groups, quads
    V::F d[B], dmin[B];
  };
  // The sums of add_block(), in the same order.
  template <int B, int R>
  static void add_rows(const Unpacked256<B>& u, const QuantizedRow* x, int64_t c, const Factors* f, int at, V::F (*sums)[kFewRows]) {
    const int first = at % Factors::kRows;
    V::F dots[R][B], minima[R][B];
    for (int r = 0; r < R; ++r)
      for (int b = 0; b < B; ++b) dots[r][b] = minima[r][b] = V::zero();
    for (int g = 0; g < 8; ++g, ++f) {
      V::I products[R][B];
      for (auto& row : products)
        for (V::I& p : row) p = V::zero_i();
#pragma GCC unroll 8
      for (int k = 0; k < 8; ++k) {
        V::Codes codes[B];
        for (int b = 0; b < B; ++b) codes[b] = V::prepared(u.codes[b][g][k]);
        for (int r = 0; r < R; ++r) {
          const V::I four = V::repeated(x[r].q + c + 32 * g + 4 * k);
          for (int b = 0; b < B; ++b) products[r][b] = V::products<false>(products[r][b], codes[b], four);
        }
      }
      for (int r = 0; r < R; ++r) {
        const V::F d = V::set(f->d[first + r]);
        const V::I row_sums = V::set_i(f->extra[first + r]);
        for (int b = 0; b < B; ++b) {
          dots[r][b] = V::fma(V::to_float(V::scaled(products[r][b], u.scale[b][g])), d, dots[r][b]);
          minima[r][b] = V::fma(V::to_float(_mm256_madd_epi16(row_sums, u.minimum[b][g])), d, minima[r][b]);
        }
      }
    }
    for (int r = 0; r < R; ++r)
      for (int b = 0; b < B; ++b) sums[b][at + r] = V::fnma(minima[r][b], u.dmin[b], V::fma(dots[r][b], u.d[b], sums[b][at + r]));
  }

  struct Quads {
    V::I low, high;  // four columns of groups 2 i and 2 i + 1
  };

  // sums += the products of 256 columns. get(i, k) gives the codes of columns 64 i + 4 k and 64 i + 32 + 4 k.
  template <int R, class Get>
  [[gnu::always_inline]] static void add_block(const Header& header, const QuantizedRow* x, int64_t c, V::F* sums, const Get& get) {
    V::F dots[R], minima[R];
    for (int r = 0; r < R; ++r) dots[r] = minima[r] = V::zero();
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      V::I products[R][2];
      for (auto& p : products) p[0] = p[1] = V::zero_i();
#pragma GCC unroll 8
      for (int k = 0; k < 8; ++k) {
        const Quads quads = get(i, k);
        const V::Codes low = V::prepared(quads.low), high = V::prepared(quads.high);
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
    for (int r = 0; r < R; ++r) sums[r] = V::fnma(minima[r], header.dmin, V::fma(dots[r], header.d, sums[r]));
  }
};

}  // namespace
}  // namespace orrery::cpu
