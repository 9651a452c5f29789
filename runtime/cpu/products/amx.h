// Prefill's products on AMX's tiles of bf16, for weights of all types but F32. Include after vectors/avx512.h.
//
// A weight strip is unpacked to bf16 once for up to kTileRows rows of activations. Weights are the first factor, as their rows lie.
// Activations are the second factor, packed once for all products (pack_rows()). README.md has the cost of each part, and why bytes
// are not multiplied here.
//
// Subnormal numbers count as zero. Every output is its own chain of sums in ascending columns, so its bits do not depend on the
// rows beside it. Tiles are configured when a task begins and released when it ends, so that threads keep no tile state.
#pragma once

#include "runtime/cpu/products/bf16.h"

namespace orrery::cpu {
namespace {

constexpr int kTileHeight = kPackedRows;  // rows of a tile, for weights and for activations
constexpr int kBlocks = kPanel / kBlock;  // blocks in a panel
constexpr int kPairRows = 2 * kTileHeight;
constexpr int64_t kWide = 8 * kPanel;  // columns at once: their activations, for kTileRows rows, fill half the second-level cache
using SumTiles = float[2][kTileHeight][kTileHeight];                 // [half][weight row][row], for kPairRows weight rows
using WeightTiles = std::byte[kBlocks][2][kTileHeight][2 * kBlock];  // [block][half][weight row], in bf16

// The operand of ldtilecfg: tiles of 16 rows of 64 bytes.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);
inline constexpr TileConfig kTileConfig;

class ConfiguredTiles {
 public:
  explicit ConfiguredTiles(const TileConfig& config = kTileConfig) { _tile_loadconfig(&config); }
  ConfiguredTiles(const ConfiguredTiles&) = delete;
  ConfiguredTiles& operator=(const ConfiguredTiles&) = delete;
  ~ConfiguredTiles() { _tile_release(); }
};

// Stands between writes to memory and tile loads from it, because GCC's intrinsics do not say that they read memory.
inline void written() { asm("" ::: "memory"); }

struct TileScratch {
  alignas(64) WeightTiles weights;
  alignas(64) SumTiles sums[kTaskOut / kPairRows][kTileRows / kTileHeight];
};
static_assert(sizeof(TileScratch) <= sizeof(MatmulScratch), "it takes the place of one");

// ---- Columns [c, c + n), n <= kPanel, of the weight rows [o, o + n_out) as tiles; zeros up to a whole block ----

// weight = scale * (code - kOffset) - min, rounded as dequantize() rounds it: the products are exact in a float. Loads spread codes
// and scales over the lanes, because only one of the two ports that compute can shuffle.
template <class Format>
void unpack_row(RowColumns<Format>& columns, int64_t o, int64_t n, int i, WeightTiles& tiles) {
  static_assert(kPanel == 256);
  constexpr bool kPlain = !Format::kHasMin && !Format::kOffset;
  alignas(64) Unpacked u;
  columns.unpack(o, u);
  if (!kPlain)
    for (int k = 0; k < (Format::kGroup == 16 ? 2 : 1); ++k) {
      const __m256 min = Format::kHasMin ? u.min[k] : _mm256_setzero_ps();
      u.min[k] = _mm256_fnmsub_ps(u.scale[k], _mm256_set1_ps(Format::kOffset), min);
    }
  asm("" : "+m"(u));  // forces u to memory, so that loads read it
  const __m128i* codes = reinterpret_cast<const __m128i*>(u.q);
  const float *scales = reinterpret_cast<const float*>(u.scale), *less = reinterpret_cast<const float*>(u.min);
  const auto block = [&](int j) {
    V::F halves[2];
    for (int h = 0; h < 2; ++h) {
      const int group = Format::kGroup == 16 ? 2 * j + h : j;
      const V::F code = V::to_float(_mm512_cvtepi8_epi32(_mm_load_si128(codes + 2 * j + h)));
      const V::F scale = V::set(scales[group]);
      halves[h] = kPlain ? V::mul(code, scale) : V::fma(code, scale, V::set(less[group]));
    }
    V::store_i(tiles[j][i / kTileHeight][i % kTileHeight], rounded(halves[0], halves[1]));
  };
  if (n == kPanel) {
#pragma GCC unroll 8
    for (int j = 0; j < kBlocks; ++j) block(j);
  } else {
    for (int j = 0; j * kBlock < n; ++j) block(j);
  }
}
template <class Format>
void unpack_blocks(const MatmulTask& t, int64_t o, int n_out, int64_t c, int64_t n, WeightTiles& tiles) {
  RowColumns<Format> columns(t, c);
  for (int i = 0; i < n_out; ++i) unpack_row<Format>(columns, o + i, n, i, tiles);
}

template <TensorType kType>
void unpack_floats(const MatmulTask& t, int64_t o, int n_out, int64_t c, int64_t n, WeightTiles& tiles) {
  round_weights<kType>(t, o, n_out, c, n, [&](int i, int64_t at) { return tiles[at / kBlock][i / kTileHeight][i % kTileHeight]; });
}

// ---- Products ----

// sums (2, if kTwo) += the products of a panel with two strips of packed rows, strip_bytes apart. `begins`: the sums start at zero.
template <bool kTwo>
void multiply_panel(const WeightTiles& weights, int n_blocks, const std::byte* packed, int64_t strip_bytes, bool begins, SumTiles* sums,
                    Ahead& ahead) {
  written();
  if (begins) {
    _tile_zero(0);
    _tile_zero(1);
    if (kTwo) _tile_zero(2);
    if (kTwo) _tile_zero(3);
  } else {
    _tile_loadd(0, sums[0][0], 64);
    _tile_loadd(1, sums[0][1], 64);
    if (kTwo) _tile_loadd(2, sums[1][0], 64);
    if (kTwo) _tile_loadd(3, sums[1][1], 64);
  }
  for (int block = 0; block < n_blocks; ++block, packed += kPackedTileBytes) {
    ahead.step();
    _tile_loadd(4, weights[block][0], 64);
    _tile_loadd(6, packed, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(5, weights[block][1], 64);
    _tile_dpbf16ps(1, 5, 6);
    if (kTwo) {
      _tile_loadd(7, packed + strip_bytes, 64);
      _tile_dpbf16ps(2, 4, 7);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, sums[0][0], 64);
  _tile_stored(1, sums[0][1], 64);
  if (kTwo) _tile_stored(2, sums[1][0], 64);
  if (kTwo) _tile_stored(3, sums[1][1], 64);
  written();
}

// unpack(t, o, n_out, c, n, tiles) is unpack_blocks() or unpack_floats() for the weights' type.
template <class Unpack>
void multiply_tiles(const MatmulTask& t, const Unpack& unpack) {
  TileScratch* scratch = reinterpret_cast<TileScratch*>(t.scratch);
  const int64_t strip_bytes = packed_strip_bytes(t.n_columns);
  const auto up_to = [](int64_t from, int64_t most, int64_t end) { return end - from < most ? end : from + most; };
  const ConfiguredTiles tiles;
  for (int64_t first = t.first_row; first < t.last_row; first += kTileRows) {
    const int64_t last = up_to(first, kTileRows, t.last_row), n_pairs = (last - first + kPairRows - 1) / kPairRows;
    for (int64_t begin = t.first_out; begin < t.last_out; begin += kTaskOut) {
      const int64_t end = up_to(begin, kTaskOut, t.last_out);
      // First the columns whose activations are in the second-level cache, then the next columns.
      for (int64_t wide = 0; wide < t.n_columns; wide += kWide)
        for (int64_t o = begin; o < end; o += kPairRows) {
          const int n_out = static_cast<int>(up_to(o, kPairRows, end) - o);
          const int64_t wide_end = up_to(wide, kWide, t.n_columns);
          for (int64_t c = wide; c < wide_end; c += kPanel) {
            const int64_t n = up_to(c, kPanel, wide_end) - c;
            unpack(t, o, n_out, c, n, scratch->weights);
            const int n_blocks = static_cast<int>((n + kBlock - 1) / kBlock);
            const bool ends = c + n == t.n_columns;
            const bool turns = c + n == wide_end;  // then come the next weight rows
            Ahead ahead(t, turns ? o + kPairRows : o, n_out, turns ? wide : c + n, n, n_pairs * n_blocks);
            for (int64_t r = first; r < last; r += kPairRows) {
              const std::byte* packed = t.packed + r / kTileHeight * strip_bytes + c / kBlock * kPackedTileBytes;
              SumTiles* sums = scratch->sums[(o - begin) / kPairRows] + (r - first) / kTileHeight;
              const bool two = last - r > kTileHeight;
              (two ? multiply_panel<true> : multiply_panel<false>)(scratch->weights, n_blocks, packed, strip_bytes, c == 0, sums, ahead);
              if (!ends) continue;
              store_strip(t, o, n_out, r, up_to(r, kTileHeight, last) - r, sums[0][0][0]);
              if (two)
                store_strip(t, o, n_out, r + kTileHeight, up_to(r + kTileHeight, kTileHeight, last) - r - kTileHeight, sums[1][0][0]);
            }
          }
        }
    }
  }
  V::finish_stores();
}

}  // namespace
}  // namespace orrery::cpu
