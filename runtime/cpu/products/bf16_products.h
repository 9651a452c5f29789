// Prefill's products on vectors of bf16 pairs, for weights of F16 and BF16. Include after vectors/avx512.h.
//
// One instruction adds the products of two columns to each of 16 sums, twice the work of a float multiply-add in the same time.
// Lanes are rows of activations, packed once for all products (pack_strip()). A pair of weight columns is repeated in all lanes,
// straight from its row; only F16 is rounded first. README.md has the blocking.
//
// Every output is its own chain of sums in ascending columns, so its bits do not depend on the rows beside it.
#pragma once

#include "runtime/cpu/products/bf16.h"

namespace orrery::cpu {
namespace {

// c + a b, where each lane sums the products of its pair.
inline V::F add_pairs(V::F c, V::I a, V::I b) {
  return _mm512_dpbf16_ps(c, __builtin_bit_cast(__m512bh, a), __builtin_bit_cast(__m512bh, b));
}
// A pair of bf16, repeated in all lanes.
inline V::I repeated_pair(const std::byte* at) { return V::repeated(reinterpret_cast<const int8_t*>(at)); }

constexpr int kRoundedRows = 12;                                                 // weight rows that are multiplied at once
constexpr int64_t kRoundedColumns = 512, kRoundedOut = 192, kRoundedTile = 256;  // columns of a panel; outputs and rows of a tile
static_assert(kRoundedOut % kRoundedRows == 0 && kRoundedOut % kStoredOut == 0);

struct RoundedScratch {
  alignas(64) std::byte weights[kRoundedRows][2 * kRoundedColumns + 64];  // one more line keeps rows apart in the cache
  alignas(64) float sums[kRoundedTile / kPackedRows][kRoundedOut][kPackedRows];
};
static_assert(sizeof(RoundedScratch) <= sizeof(MatmulScratch), "it takes the place of one");

// sums (kRoundedRows, kPackedRows) of kStrips strips += the products of a panel. Strips are strip_bytes of packed rows, and
// kRoundedOut outputs, apart.
template <int kStrips>
void multiply_rounded(const RoundedScratch& s, int64_t n_pairs, const std::byte* packed, int64_t strip_bytes, bool begins, float* sums) {
  constexpr int64_t kNext = kRoundedOut * kPackedRows;
  V::F c[kRoundedRows][kStrips];
  for (int i = 0; i < kRoundedRows; ++i)
    for (int j = 0; j < kStrips; ++j) c[i][j] = begins ? V::zero() : V::load(sums + j * kNext + i * kPackedRows);
  for (int64_t k = 0; k < n_pairs; ++k) {
    V::I x[kStrips];
    for (int j = 0; j < kStrips; ++j) x[j] = V::load_i(packed + j * strip_bytes + k * 64);
#pragma GCC unroll 16
    for (int i = 0; i < kRoundedRows; ++i) {
      const V::I w = repeated_pair(s.weights[i] + k * 4);
      for (int j = 0; j < kStrips; ++j) c[i][j] = add_pairs(c[i][j], x[j], w);
    }
  }
  for (int i = 0; i < kRoundedRows; ++i)
    for (int j = 0; j < kStrips; ++j) V::store(sums + j * kNext + i * kPackedRows, c[i][j]);
}

template <TensorType kType>
void multiply_floats(const MatmulTask& t) {
  RoundedScratch& s = *reinterpret_cast<RoundedScratch*>(t.scratch);
  const int64_t strip_bytes = packed_strip_bytes(t.n_columns);
  const auto up_to = [](int64_t n, int64_t most) { return n < most ? n : most; };
  for (int64_t first = t.first_row; first < t.last_row; first += kRoundedTile) {
    const int64_t n_rows = up_to(t.last_row - first, kRoundedTile), n_strips = (n_rows + kPackedRows - 1) / kPackedRows;
    for (int64_t begin = t.first_out; begin < t.last_out; begin += kRoundedOut) {
      const int64_t n_out = up_to(t.last_out - begin, kRoundedOut);
      for (int64_t c = 0; c < t.n_columns; c += kRoundedColumns) {
        const int64_t n = up_to(t.n_columns - c, kRoundedColumns), n_pairs = (n + kBlock - 1) / kBlock * (kBlock / 2);
        const std::byte* packed = t.packed + first / kPackedRows * strip_bytes + c / kBlock * kPackedTileBytes;
        for (int64_t o = 0; o < n_out; o += kRoundedRows) {
          const int n_here = static_cast<int>(up_to(n_out - o, kRoundedRows));
          round_weights<kType>(t, begin + o, n_here, c, n, [&](int i, int64_t at) { return s.weights[i] + 2 * at; });
          // Rounded next: the next weight rows, or the first rows' next columns, or the first rows of the next outputs.
          const bool goes_on = o + kRoundedRows < n_out, turns = !goes_on && c + n == t.n_columns;
          Ahead ahead(t,
                      goes_on ? begin + o + kRoundedRows
                      : turns ? begin + n_out
                              : begin,
                      n_here,
                      goes_on ? c
                      : turns ? 0
                              : c + n,
                      n, (n_strips + 1) / 2);
          for (int64_t strip = 0; strip < n_strips; strip += 2) {
            ahead.step();
            (n_strips - strip > 1 ? multiply_rounded<2> : multiply_rounded<1>)(s, n_pairs, packed + strip * strip_bytes, strip_bytes,
                                                                               c == 0, s.sums[strip][o]);
          }
        }
      }
      for (int64_t o = 0; o < n_out; o += kStoredOut)
        for (int64_t strip = 0; strip < n_strips; ++strip)
          store_strip(t, begin + o, up_to(n_out - o, kStoredOut), first + strip * kPackedRows,
                      up_to(n_rows - strip * kPackedRows, kPackedRows), s.sums[strip][o]);
    }
  }
  V::finish_stores();
}

}  // namespace
}  // namespace orrery::cpu
