// dot_rows() of products/decode.h, 256 bits wide: a row of quantized weights times rows of activations.
//
// Memory gives a core about 18 bytes of weights (32 weights of Q4_0) in four cycles, so the number of instructions for 32 weights
// is the limit. vpmaddubsw adds two products of unsigned and signed bytes in 16 bits. Unsigned codes: sums stay in 16 bits as long
// as they fit, until a vector's eight lanes hold the sixteen products of each of eight groups of 16. Then one conversion and one
// multiplication by scales serve 128 weights. Offsets of codes are subtracted as minima are, by the sums of activations. Signed
// codes: 32-bit sums at once, and floats for every 32 weights.
#pragma once

#include "runtime/cpu/vectors/avx2.h"
#include "runtime/cpu/products/weights.h"

namespace orrery::cpu {
namespace {

template <class Format>
constexpr bool kUnsigned = !Format::kSigned;
// True for codes below 64: sums of four products fit in 16 bits (63 * 127 * 4 = 32004). For codes below 32, sums of eight fit.
template <class Format>
constexpr bool kWide = kCodeBits<Format> == 6;

// Sums of four neighbouring products of codes and activations, in 32 bits.
template <bool kSigned>
__m256i fours(__m256i codes, const int8_t* x) {
  return V::dot<kSigned>(V::zero_i(), codes, V::load_i(x));
}
inline __m256i sum_pairs(__m256i words) { return _mm256_madd_epi16(words, _mm256_set1_epi16(1)); }

// Sums of neighbouring dwords of a and of b, in each 128-bit half. kFit: through 16 bits, which saves an instruction.
template <bool kFit>
__m256i sum_neighbours(__m256i a, __m256i b) {
  if (kFit) return sum_pairs(_mm256_packs_epi32(a, b));
  const __m256 x = _mm256_castsi256_ps(a), y = _mm256_castsi256_ps(b);
  return _mm256_add_epi32(_mm256_castps_si256(_mm256_shuffle_ps(x, y, 0x88)), _mm256_castps_si256(_mm256_shuffle_ps(x, y, 0xDD)));
}

// Sums of four chunks' products over groups of 16. Lane c has the first half of chunk c, lane 4 + c its second half.
template <class Format>
[[gnu::always_inline]] inline __m256i sixteens(const __m256i* codes, const int8_t* x) {
  const auto eights = [&](int i) {
    return sum_neighbours<true>(fours<false>(codes[i], x + 32 * i), fours<false>(codes[i + 1], x + 32 * (i + 1)));
  };
  return sum_neighbours<!kWide<Format>>(eights(0), eights(2));
}

// per_chunk(): a value for each chunk, in the lanes of sixteens() for chunks 4 half .. 4 half + 3.
template <int kHalf>
__m256 per_chunk(__m256 eight) {
  return _mm256_permute2f128_ps(eight, eight, kHalf ? 0x11 : 0);
}
// per_sixteen(): a value for each group of 16, in the same lanes.
template <int kHalf>
__m256 per_sixteen(__m128i bytes) {
  const __m128i order = _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15);
  const __m128i ordered = _mm_shuffle_epi8(bytes, order);
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(kHalf ? _mm_srli_si128(ordered, 8) : ordered));
}
// For each 32 columns: the sum of activations.
inline __m256 sums32(const int16_t* sums) { return V::to_float(sum_pairs(V::load_i(sums))); }
// For each 32 columns: sums of groups of 16, times small integers.
inline __m256 sums32(const int16_t* sums, __m128i factors) {
  return V::to_float(_mm256_madd_epi16(_mm256_cvtepi8_epi16(factors), V::load_i(sums)));
}

// sum[0] + sum[1] grows by 256 products. Inlining is forced; otherwise the codes go through memory.
template <class Format>
[[gnu::always_inline]] inline void dot_unsigned(const Unpacked& u, const int8_t* q, __m256 d, const int16_t* sums, V::F* sum) {
  const V::F low = V::to_float(sixteens<Format>(u.q, q)), high = V::to_float(sixteens<Format>(u.q + 4, q + 128));
  const V::F offset = V::set(Format::kOffset);
  if constexpr (Format::kGroup == 32) {
    const __m256 scale = V::mul(u.scale[0], d);
    sum[0] = V::fma(low, per_chunk<0>(scale), sum[0]);
    sum[1] = V::fma(high, per_chunk<1>(scale), sum[1]);
    if (Format::kHasMin) sum[0] = V::fnma(V::mul(u.min[0], d), sums32(sums), sum[0]);
    if (Format::kOffset) sum[0] = V::fnma(V::mul(scale, offset), sums32(sums), sum[0]);
  } else {
    const __m256 scale = V::mul(V::set(u.d), d);
    sum[0] = V::fma(low, V::mul(per_sixteen<0>(u.scale8), per_chunk<0>(scale)), sum[0]);
    sum[1] = V::fma(high, V::mul(per_sixteen<1>(u.scale8), per_chunk<1>(scale)), sum[1]);
    if (Format::kHasMin) sum[0] = V::fnma(V::mul(V::set(u.dmin), d), sums32(sums, u.min8), sum[0]);
    if (Format::kOffset) sum[0] = V::fnma(V::mul(scale, offset), sums32(sums, u.scale8), sum[0]);
  }
}

template <class Format>
[[gnu::always_inline]] inline void dot_bytes(const Unpacked& u, const int8_t* q, __m256 d, V::F* sum) {
  alignas(32) float scale[16];  // through memory: a broadcast from memory costs no more than a load
  if constexpr (Format::kGroup == 32) {
    _mm256_store_ps(scale, V::mul(u.scale[0], d));
    for (int i = 0; i < 8; ++i)
      sum[i % 2] = V::fma(V::to_float(fours<true>(u.q[i], q + 32 * i)), _mm256_broadcast_ss(scale + i), sum[i % 2]);
  } else {
    // Each d serves two scales. The first half of the lanes are columns of the first scale.
    _mm256_store_ps(scale, V::mul(u.scale[0], _mm256_permutevar8x32_ps(d, _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3))));
    _mm256_store_ps(scale + 8, V::mul(u.scale[1], _mm256_permutevar8x32_ps(d, _mm256_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7))));
    for (int i = 0; i < 8; ++i) {
      const __m256 two = _mm256_castpd_ps(_mm256_broadcast_sd(reinterpret_cast<const double*>(scale + 2 * i)));
      const __m256 each = _mm256_permutevar_ps(two, _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1));
      sum[i % 2] = V::fma(V::to_float(fours<true>(u.q[i], q + 32 * i)), each, sum[i % 2]);
    }
  }
}

// sums += 256 unpacked columns times those from column c on of one row of activations.
template <class Format>
[[gnu::always_inline]] inline void add_columns(const Unpacked& u, const QuantizedRow& x, int64_t c, V::F* sums) {
  const __m256 d = _mm256_loadu_ps(x.d + c / 32);
  if constexpr (kUnsigned<Format>) dot_unsigned<Format>(u, x.q + c, d, x.sums + c / 16, sums);
  else dot_bytes<Format>(u, x.q + c, d, sums);
}

// out (n) = a weight row times n <= kFewRows rows of activations. One row's codes stay in registers.
template <class Format>
void dot_rows(const uint8_t* w, const QuantizedRow* x, int n, int64_t n_columns, float* out) {
  const auto columns = [&](auto&& rows) {
    for (int64_t c = 0; c < n_columns; c += 256, w += Format::kBytes) {
      prefetch_stream<2048>(w, Format::kBytes);
      Unpacked u;
      unpack_next<Format>(w, n_columns - c, u);
      rows(u, c);
    }
  };
  if (n == 1) {
    V::F one[2] = {V::zero(), V::zero()};
    columns([&](const Unpacked& u, int64_t c) { add_columns<Format>(u, x[0], c, one); });
    out[0] = V::sum(V::add(one[0], one[1]));
    return;
  }
  V::F sums[kFewRows][2];
  for (int r = 0; r < n; ++r) sums[r][0] = sums[r][1] = V::zero();
  columns([&](const Unpacked& u, int64_t c) {
    for (int r = 0; r < n; ++r) add_columns<Format>(u, x[r], c, sums[r]);
  });
  for (int r = 0; r < n; ++r) out[r] = V::sum(V::add(sums[r][0], sums[r][1]));
}

}  // namespace
}  // namespace orrery::cpu
