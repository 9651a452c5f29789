// Products of many rows of activations with quantized weights, F16 and BF16, on AMX's tiles; include after
// simd_avx512.h.
//
// A tile holds 16 rows of up to 64 bytes.  One instruction adds to 16 x 16 sums the product of 16 rows of
// activations, 4 k bytes each, with k rows of weights: row i has columns 4 i .. 4 i + 3 of 16 weight rows (or
// two columns, of bf16), which is how prefill's panels lie (simd_prefill.h).  It takes 16 cycles for up to
// 16 x 16 x 64 products of bytes, or half as many of bf16: 1024 or 512 per cycle.
//
// Quantized weights: a product for each group of 32 (16) columns, exact in 32 bits, whose sums go through
// memory to become floats, times the scales of weights and activations.  That is what counts: a vector of 16
// sums takes a conversion, a multiplication and an addition on two ports, so that 16 x 16 x 32 products take 24
// cycles or more, not 16: 67% of what bf16 could do, 50% where there are minima too, at the very best; half of
// it in groups of 16.  Sums of eight groups stay in registers.
//
// F16 and BF16: activations are cut into three bf16 (8 + 8 + 8 bits: all of a float), F16 into two, and all
// parts meet but the last ones, whose product is below 2^-22 of theirs: results are as good as those of fused
// float multiply-adds.  It costs three instructions for BF16 and five for F16 where rounding activations and
// weights to bf16 would do with one, but to 2^-8 only: 33% and 20% of bf16's peak at best, five and three times
// what AVX-512 does with floats.  (AVX-512's own vdpbf16ps has twice the products of a fused multiply-add: three or
// five of them would be slower than floats, so no path uses it.)  Cutting 16 rows of activations, some 300
// instructions for 32 columns, is paid for 64 weight rows, and overlaps the tiles' work.  Sums stay in tiles for
// 128 columns.  Subnormal parts count as zero, infinities come out as NaN.
//
// Not timed on hardware yet: tested in emulation (tests/emulation), and by unit_cpu where a machine has it.
//
// Every output is its own chain of sums in ascending columns: which rows stand beside it changes nothing.
// Tiles are configured when a task begins and released when it ends: the threads carry none of it around.
#pragma once

#include "runtime/cpu/simd_prefill.h"

namespace orrery::cpu {
namespace {

constexpr int kTileHeight = 16;                 // rows of activations, and weight rows, of a tile of sums
constexpr int64_t kPanelRowBytes = kStrip * 4;  // four codes, or one float, of each weight row of a panel

// What ldtilecfg reads.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfig) == 64);

// Tiles 0 to 3 are sums; 4 and 6 activations of `bytes` a row; 5 and 7 the weights to multiply them with.
constexpr TileConfig tile_config(int bytes) {
  TileConfig config;
  for (int i = 0; i < 8; ++i) {
    const bool activations = i == 4 || i == 6, weights = i == 5 || i == 7;
    config.row_bytes[i] = static_cast<uint16_t>(activations ? bytes : 64);
    config.rows[i] = static_cast<uint8_t>(weights ? bytes / 4 : kTileHeight);
  }
  return config;
}
template <int kBytes>
constexpr TileConfig kTileConfig = tile_config(kBytes);

class ConfiguredTiles {
 public:
  explicit ConfiguredTiles(const TileConfig& config) { _tile_loadconfig(&config); }
  ConfiguredTiles(const ConfiguredTiles&) = delete;
  ConfiguredTiles& operator=(const ConfiguredTiles&) = delete;
  ~ConfiguredTiles() { _tile_release(); }
};

// Between writing memory and loading tiles from it: GCC's intrinsics do not say that they read it.
inline void written() { asm("" ::: "memory"); }

// Rows of sums up to whole tiles, beyond those that for_tiles() has cleared.
inline void clear_beyond(MatmulScratch* scratch, int64_t n_out, int64_t n_rows) {
  const int64_t end = (n_rows + kTileHeight - 1) / kTileHeight * kTileHeight;
  for (int64_t strip = 0; strip * kStrip < n_out; ++strip)
    __builtin_memset(scratch->sums[strip][n_rows], 0, static_cast<size_t>(end - n_rows) * kPanelRowBytes);
}

// ---- Quantized weights ----

// Columns [c, c + 256) of up to 16 rows of activations: their codes, `stride` bytes apart, and scales.
struct TileRows {
  const int8_t* q;
  int64_t stride;
  alignas(64) float d[kTileHeight][kPanel / 32];
  alignas(64) int8_t copied[kTileHeight][kPanel];  // where there are fewer: zeros beyond

  TileRows(const MatmulTask& t, int64_t first, int64_t n, int64_t c) {
    q = quantized_row(t.quantized + first * t.quantized_stride, t.n_columns).q + c;
    stride = t.quantized_stride;
    if (n < kTileHeight) {
      __builtin_memset(d, 0, sizeof d);
      __builtin_memset(copied, 0, sizeof copied);
    }
    for (int64_t i = 0; i < n; ++i) {
      const QuantizedRow row = quantized_row(t.quantized + (first + i) * t.quantized_stride, t.n_columns);
      __builtin_memcpy(d[i], row.d + c / 32, sizeof d[i]);
      if (n < kTileHeight) __builtin_memcpy(copied[i], row.q + c, sizeof copied[i]);
    }
    if (n < kTileHeight) q = copied[0], stride = kPanel;
    written();
  }
};

// dots[j] = the products of four groups of columns from x and codes on.
template <int kGroup>
void multiply_groups(const int8_t* x, int64_t x_stride, const uint8_t* codes, int32_t (*dots)[kTileHeight][16]) {
  constexpr int64_t kStep = kGroup / 4 * kPanelRowBytes;
  _tile_zero(0);
  _tile_loadd(4, x, x_stride);
  _tile_loadd(5, codes, kPanelRowBytes);
  _tile_dpbssd(0, 4, 5);
  _tile_zero(1);
  _tile_loadd(6, x + kGroup, x_stride);
  _tile_loadd(7, codes + kStep, kPanelRowBytes);
  _tile_dpbssd(1, 6, 7);
  _tile_zero(2);
  _tile_loadd(4, x + 2 * kGroup, x_stride);
  _tile_loadd(5, codes + 2 * kStep, kPanelRowBytes);
  _tile_dpbssd(2, 4, 5);
  _tile_zero(3);
  _tile_loadd(6, x + 3 * kGroup, x_stride);
  _tile_loadd(7, codes + 3 * kStep, kPanelRowBytes);
  _tile_dpbssd(3, 6, 7);
  _tile_stored(0, dots[0], 64);
  _tile_stored(1, dots[1], 64);
  _tile_stored(2, dots[2], 64);
  _tile_stored(3, dots[3], 64);
}

// sums (16 rows, kStrip), weight rows from `at` on += 16 rows of activations times those of the panel.
template <class Format>
void multiply_strip(const Panel& panel, int at, const TileRows& x, const RowParts* parts, float (*sums)[kStrip]) {
  constexpr int kGroup = Format::kGroup;
  V::F s[kTileHeight];
#pragma GCC unroll 16
  for (int i = 0; i < kTileHeight; ++i) s[i] = V::load(sums[i] + at);
  for (int g = 0; g < kPanel / kGroup; g += 4) {
    alignas(64) int32_t dots[4][kTileHeight][16];
    multiply_groups<kGroup>(x.q + g * kGroup, x.stride, panel.codes[g * kGroup / 4][at], dots);
    for (int j = g; j < g + 4; ++j) {
      const V::F scale = V::load(panel.scale[j] + at);
#pragma GCC unroll 16
      for (int i = 0; i < kTileHeight; ++i) {
        const V::F dot = V::to_float(V::load_i(dots[j - g][i]));
        s[i] = V::fma(dot, V::mul(scale, V::set(x.d[i][j * kGroup / 32])), s[i]);
        if (Format::kHasMin) s[i] = V::fnma(V::load(panel.min[j] + at), V::set(parts[i].min[j]), s[i]);
      }
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kTileHeight; ++i) V::store(sums[i] + at, s[i]);
}

// sums (panels, kTileRows, kStrip) += the panels' first n_out weight rows times columns [c, c + 256) of the rows
// [first, last).
template <class Format>
void multiply_strips(const IntegerTile& tile, int64_t n_out, const MatmulTask& t, int64_t first, int64_t last,
                     int64_t c, float (*sums)[kTileRows][kStrip]) {
  for (int64_t r = first; r < last; r += kTileHeight) {
    const TileRows x(t, r, last - r < kTileHeight ? last - r : kTileHeight, c);
    // The next rows, whose columns lie too far apart for the processor to foresee them.
    for (int64_t i = r + kTileHeight; i < r + 2 * kTileHeight && i < last; ++i)
      for (int line = 0; line < kPanel; line += 64)
        _mm_prefetch(t.quantized + i * t.quantized_stride + c + line, _MM_HINT_T0);
    for (int64_t o = 0; o < n_out; o += 16)
      multiply_strip<Format>(tile.panels[o / kStrip], static_cast<int>(o % kStrip), x, tile.parts + (r - first),
                             sums[o / kStrip] + (r - first));
  }
}

template <class Format>
void tile_blocks(const MatmulTask& t) {
  MatmulScratch* scratch = reinterpret_cast<MatmulScratch*>(t.scratch);
  IntegerTile& tile = scratch->integers;
  const ConfiguredTiles tiles(kTileConfig<Format::kGroup>);
  for_tiles(t, scratch, [&](int64_t o, int64_t n, int64_t first, int64_t last) {
    clear_beyond(scratch, n, last - first);
    __builtin_memset(tile.parts + (last - first), 0,
                     static_cast<size_t>((first - last) & (kTileHeight - 1)) * sizeof tile.parts[0]);
    for (int64_t c = 0; c < t.n_columns; c += kPanel) {
      fill_parts<Format, 0>(t, first, last, c, tile.parts);
      for (int64_t at = 0; at < n; at += kStrip)
        fill_panel<Format, 0>(t, o + at, n - at < kStrip ? n - at : kStrip, c, &tile.panels[at / kStrip]);
      multiply_strips<Format>(tile, n, t, first, last, c, scratch->sums);
    }
  });
}

// ---- F16 and BF16 ----

constexpr int kHalfColumns = 32;  // of a tile of bf16
constexpr int kHalfBlocks = kFloatPanel / kHalfColumns;
constexpr int kActivationParts = 3;
template <TensorType kType>
constexpr int kWeightParts = kType == TensorType::f16 ? 2 : 1;

// As tiles are loaded: pairs of columns in 16 rows of activations, and of 16 weight rows at a time.
struct HalfTile {
  alignas(64) float weights[2][kHalfBlocks][kTileOut / 16][16][16];  // [part][block][strip][pair][weight row]
  alignas(64) float x[kActivationParts][kHalfBlocks][kTileHeight][16];
};
static_assert(sizeof(HalfTile) <= sizeof(FloatTile), "it takes the place of one");

// The next eight bits of 32 floats, as bf16 in order; what is left of them stays.  Cut, not rounded: the parts
// of a float add up to it, and no finite one becomes infinite.
inline V::F next_part(V::F& a, V::F& b) {
  alignas(64) static constexpr int16_t kUpper[32] = {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31,
                                                     33, 35, 37, 39, 41, 43, 45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
  const V::I x = _mm512_castps_si512(a), y = _mm512_castps_si512(b), mask = V::set_i(static_cast<int32_t>(0xFFFF0000));
  a = V::sub(a, _mm512_castsi512_ps(_mm512_and_si512(x, mask)));
  b = V::sub(b, _mm512_castsi512_ps(_mm512_and_si512(y, mask)));
  return _mm512_castsi512_ps(_mm512_permutex2var_epi16(x, V::load_i(kUpper), y));
}

// Sixteen floats of a row of which `left` are left; zeros after them.
template <TensorType kType>
V::F load_left(const std::byte* row, int64_t at, int64_t left) {
  return left >= 16  ? load_weights<kType>(row, at)
         : left <= 0 ? V::zero()
                     : load_weights_part<kType>(row, at, static_cast<int>(left));
}

// Columns [c, c + width) of the weight rows [o, o + n), up to whole tiles; zeros beyond.
template <TensorType kType>
void fill_half_weights(const MatmulTask& t, int64_t o, int64_t n, int64_t c, int width, HalfTile* tile) {
  for (int block = 0; block * kHalfColumns < width; ++block)
    for (int64_t strip = 0; strip * 16 < n; ++strip) {
      V::F parts[2][16];
      for (int64_t i = 0; i < 16; ++i) {
        V::F a = V::zero(), b = V::zero();
        if (strip * 16 + i < n) {
          const std::byte* w = t.weight + (o + strip * 16 + i) * t.row_bytes;
          const int64_t at = block * kHalfColumns;
          a = load_left<kType>(w, c + at, width - at);
          b = load_left<kType>(w, c + at + 16, width - at - 16);
        }
        for (int part = 0; part < kWeightParts<kType>; ++part) parts[part][i] = next_part(a, b);
      }
      for (int part = 0; part < kWeightParts<kType>; ++part) {
        V::transpose(parts[part]);
        for (int i = 0; i < 16; ++i) V::store(tile->weights[part][block][strip][i], parts[part][i]);
      }
    }
}

// The same columns of n rows of activations from `first` on; zeros up to a whole tile.
inline void fill_half_rows(const MatmulTask& t, int64_t first, int64_t n, int64_t c, int width, HalfTile* tile) {
  for (int block = 0; block * kHalfColumns < width; ++block)
    for (int64_t i = 0; i < kTileHeight; ++i) {
      V::F a = V::zero(), b = V::zero();
      if (i < n) {
        const std::byte* x = reinterpret_cast<const std::byte*>(t.x + (first + i) * t.x_stride);
        const int64_t at = block * kHalfColumns;
        a = load_left<TensorType::f32>(x, c + at, width - at);
        b = load_left<TensorType::f32>(x, c + at + 16, width - at - 16);
      }
      for (auto& part : tile->x) V::store(part[block][i], next_part(a, b));
    }
}

// sums (panels, kTileRows, kStrip), 16 rows from `row` on += the tile's activations times its weights.  Four
// tiles of sums take turns, so that none waits for its last product.
template <TensorType kType>
void multiply_halves(const HalfTile& tile, int64_t n_out, int width, int64_t row, float (*sums)[kTileRows][kStrip]) {
  const int64_t n = (n_out + 15) / 16;
  const auto at = [&](int strip) { return sums[strip * 16 / kStrip][row] + strip * 16 % kStrip; };
  written();
  _tile_loadd(0, at(0), kPanelRowBytes);
  if (n > 1) _tile_loadd(1, at(1), kPanelRowBytes);
  if (n > 2) _tile_loadd(2, at(2), kPanelRowBytes);
  if (n > 3) _tile_loadd(3, at(3), kPanelRowBytes);
  for (int block = 0; block * kHalfColumns < width; ++block)
    for (int part = 0; part < kActivationParts; ++part) {
      _tile_loadd(4, tile.x[part][block], 64);
      for (int of_weights = 0; of_weights < kWeightParts<kType> && part + of_weights < kActivationParts; ++of_weights) {
        const auto* weights = tile.weights[of_weights][block];
        _tile_loadd(5, weights[0], 64);
        _tile_dpbf16ps(0, 4, 5);
        if (n > 1) {
          _tile_loadd(6, weights[1], 64);
          _tile_dpbf16ps(1, 4, 6);
        }
        if (n > 2) {
          _tile_loadd(7, weights[2], 64);
          _tile_dpbf16ps(2, 4, 7);
        }
        if (n > 3) {
          _tile_loadd(5, weights[3], 64);
          _tile_dpbf16ps(3, 4, 5);
        }
      }
    }
  _tile_stored(0, at(0), kPanelRowBytes);
  if (n > 1) _tile_stored(1, at(1), kPanelRowBytes);
  if (n > 2) _tile_stored(2, at(2), kPanelRowBytes);
  if (n > 3) _tile_stored(3, at(3), kPanelRowBytes);
}

template <TensorType kType>
void tile_halves(const MatmulTask& t) {
  static_assert(kTileOut == 64, "four tiles of sums");
  MatmulScratch* scratch = reinterpret_cast<MatmulScratch*>(t.scratch);
  HalfTile* tile = reinterpret_cast<HalfTile*>(&scratch->floats);
  const ConfiguredTiles tiles(kTileConfig<64>);
  for_tiles(t, scratch, [&](int64_t o, int64_t n, int64_t first, int64_t last) {
    clear_beyond(scratch, n, last - first);
    for (int64_t c = 0; c < t.n_columns; c += kFloatPanel) {
      const int width = static_cast<int>(t.n_columns - c < kFloatPanel ? t.n_columns - c : kFloatPanel);
      fill_half_weights<kType>(t, o, n, c, width, tile);
      for (int64_t r = first; r < last; r += kTileHeight) {
        fill_half_rows(t, r, last - r < kTileHeight ? last - r : kTileHeight, c, width, tile);
        multiply_halves<kType>(*tile, n, width, r - first, scratch->sums);
      }
    }
  });
}

}  // namespace
}  // namespace orrery::cpu
