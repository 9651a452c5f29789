// Prefill's products: many rows of activations times weights of any format, written once over V. Include after vectors/avx2.h or
// vectors/avx512.h.
//
// Prefill converts a strip of weight rows, 256 columns at a time, to a panel whose lanes are weight rows:
//     codes [column / 4][row][4], scales [group][row]
// One instruction multiplies four activations, repeated in all lanes, with four columns of every row. Scales are applied once for
// each group of a whole strip. A panel serves up to kIntegerRows rows of activations. Products of small codes are first summed in
// 16 bits, as many as fit (V::run). README.md has the blocking and measurements.
//
// Every output is its own chain of sums in ascending columns, so its bits do not depend on the rows beside it.
#pragma once

#include "runtime/cpu/formats/band_codes.h"
#include "runtime/cpu/products/gemm.h"
#include "runtime/cpu/products/weights.h"

namespace orrery::cpu {
namespace {

constexpr int kStrip = 2 * V::kLanes;  // weight rows of a panel
constexpr int kTileOut = 64;           // outputs of an integer tile
constexpr int kStrips = kTileOut / kStrip;
constexpr int kPanel = 256;                    // columns of an integer tile's panel
constexpr int kFloatPanel = 2048 / V::kLanes;  // columns of a float tile's panel: 16 KB, half the first-level cache
// Best numbers of outputs and rows for one task. The sums of such a task lie in the second-level cache. For integers they stay
// there while tile after tile of weights meets the same columns of activations.
constexpr int kTaskOut = 512, kTileRows = 256;        // floats
constexpr int kIntegerOut = 256, kIntegerRows = 512;  // integers

struct Panel {
  alignas(64) uint8_t codes[kPanel / 4][kStrip][4];
  alignas(64) float scale[16][kStrip];
  union {  // signed codes have no minima
    alignas(64) float min[16][kStrip];
    alignas(64) int32_t lacking[16][kStrip];  // where V::kComplements: the part that sums of signed codes' products lack
  };
  // Where V::kComplements, signed codes are stored as magnitudes in `codes`, and `negative` is all ones for a negative code.
  alignas(64) uint8_t negative[V::kComplements ? kPanel / 4 : 1][kStrip][4];
};
// Corrections for the groups of an activation row. offset: where the dots start, which corrects the codes' offset. min: the factor of
// the minima, whose products are subtracted from the sums. No format needs both.
union RowParts {
  int32_t offset[16];
  float min[16];
};
struct IntegerTile {
  Panel panels[kStrips];  // all in the first-level cache, where a few rows of activations meet all of them
  alignas(64) RowParts parts[kIntegerRows];
};
// Copies of rows, side by side. In the caller's memory, activation rows are often a power of two apart and would evict each other
// from the caches. Rows of whole panels would do the same, so one more line keeps them apart.
struct FloatTile {
  alignas(64) float values[kFloatPanel][kStrip];
  alignas(64) float x[kTileRows][kFloatPanel + 16];
};
struct MatmulScratch {
  union {
    IntegerTile integers;
    FloatTile floats;
  };
  union {
    alignas(64) float integer_sums[kIntegerOut / kStrip][kIntegerRows][kStrip];
    alignas(64) float float_sums[kTaskOut / kStrip][kTileRows][kStrip];
  };
};

// Transposes kLanes rows of `n` dwords, `stride` bytes apart: dword c of every row goes to out + c * kStrip.
inline void transpose_rows(const void* rows, int64_t stride, int n, float* out) {
  for (int c = 0; c < n; c += V::kLanes) {
    V::F r[V::kLanes];
    for (int i = 0; i < V::kLanes; ++i)
      r[i] = V::load(reinterpret_cast<const float*>(static_cast<const std::byte*>(rows) + i * stride) + c);
    V::transpose(r);
    for (int i = 0; i < V::kLanes && c + i < n; ++i) V::store(out + (c + i) * kStrip, r[i]);
  }
}

// Splits signed codes into magnitudes and signs, and computes the part that sums of their products lack. W is V. (A template,
// because V may not have split().)
template <class Format, class W = V>
void take_signs(int groups, Panel* panel) {
  for (int g = 0; g < groups; ++g)
    for (int at = 0; at < kStrip; at += W::kLanes) {
      typename W::I lacking = W::zero_i();
      for (int k = g * Format::kGroup / 4; k < (g + 1) * Format::kGroup / 4; ++k) {
        const typename W::Codes codes = W::split(W::load_i(panel->codes[k][at]), lacking);
        W::store_i(panel->codes[k][at], codes.magnitudes);
        W::store_i(panel->negative[k][at], codes.negative);
      }
      W::store_i(&panel->lacking[g][at], lacking);
    }
}

// Prefetches the weights that are unpacked next: columns [c, c + n) of the rows [o, o + n_out), some at each step of the current
// products. Rows are pages apart, so processors do not prefetch them, and prefetches issued all at once wait for each other.
class Ahead {
 public:
  Ahead(const MatmulTask& t, int64_t o, int64_t n_out, int64_t c, int64_t n, int64_t steps) {
    const int64_t together = t.in_bands ? kBandRows : 1;  // rows whose columns are interleaved
    stride_ = together * t.row_bytes;
    weights_ = t.weight + o * t.row_bytes + stride_ * c / t.n_columns;
    bytes_ = stride_ * n / t.n_columns;
    n_rows_ = n_out / together;
    per_step_ = (n_rows_ * ((bytes_ + 63) / 64) + steps - 1) / steps;
  }
  void step() {
    for (int64_t i = 0; i < per_step_ && row_ < n_rows_; ++i) {
      __builtin_prefetch(weights_ + row_ * stride_ + at_, 0, 2);
      if ((at_ += 64) >= bytes_) at_ = 0, ++row_;
    }
  }

 private:
  const std::byte* weights_;  // (n_rows, bytes), stride apart
  int64_t stride_, bytes_, n_rows_, per_step_, row_ = 0, at_ = 0;
};

// Columns [c, c + 256) of weight rows, requested in order: in the file's layout, or unpacked from bands.
template <class Format>
class RowColumns {
 public:
  RowColumns(const MatmulTask& t, int64_t c) : t_(t), c_(c) {}

  void unpack(int64_t o, Unpacked& u) {
    if constexpr (kIndexBands<Format>)
      if (t_.in_bands) return unpack_indices(o, u);
    unpack_next<Format>(row(o), t_.n_columns - c_, u);
  }

 private:
  const uint8_t* row(int64_t o) {
    const uint8_t* begin = reinterpret_cast<const uint8_t*>(t_.weight) + o * t_.row_bytes;
    if (!t_.in_bands) return begin + c_ / 256 * Format::kBytes;
    if (o % kBandRows == 0) take_apart(begin + c_ / 256 * kBandRows * Format::kBytes);
    return rows_[o % kBandRows];
  }
  // A row of a band that holds indices: 16 bytes for each group, whose words lie a band apart.
  void unpack_indices(int64_t o, Unpacked& u) const {
    const int64_t in_band = o % kBandRows;
    const uint8_t* w = reinterpret_cast<const uint8_t*>(t_.weight) + (o - in_band) * t_.row_bytes + c_ / 256 * kIndexBandBytes;
    alignas(32) float odd[8];
    for (int g = 0; g < 8; ++g) {
      odd[g] = w[2 * kBandRows + kBandRows * g + in_band];
      const uint8_t* words = w + kIndexBandNibbles + 16 * kBandRows * g + 4 * in_band;
      const auto at = [&](int k) { return word<int32_t>(words + 4 * kBandRows * k); };
      const __m128i bytes = _mm_setr_epi32(at(0), at(1), at(2), at(3));
      u.q[g] = indexed_codes(Format::index_codes(), low_nibbles(_mm256_set_m128i(_mm_srli_epi16(bytes, 4), bytes)));
    }
    u.scale[0] = _mm256_mul_ps(_mm256_load_ps(odd), _mm256_set1_ps(half_value(w + 2 * in_band) * Format::kScaleUnit));
  }
  // Inverse of make_band() (formats/bands.h): first each block's head bytes, then four words of each row at a time, transposed.
  void take_apart(const uint8_t* band) {
    constexpr int kBlockBytes = Format::kBytes * Format::kBlock / 256, kHead = kBlockBytes % 4, kWords = kBlockBytes / 4;
    const int64_t left = t_.n_columns - c_;
    for (int b = 0; b < 256 / Format::kBlock && b * Format::kBlock < left; ++b, band += kBandRows * kBlockBytes) {
      const auto to = [&](int r) { return rows_[r] + b * kBlockBytes; };
      for (int r = 0; r < kBandRows; ++r) __builtin_memcpy(to(r), band + r * kHead, kHead);
      const uint8_t* words = band + kBandRows * kHead;
      for (int i = 0; i < kWords / 4 * 4; i += 4) {
        __m256i x[4], y[4];
        for (int k = 0; k < 4; ++k) x[k] = bytes32(words + (i + k) * 4 * kBandRows);
        for (int k = 0; k < 4; k += 2) {
          y[k] = _mm256_unpacklo_epi32(x[k], x[k + 1]);
          y[k + 1] = _mm256_unpackhi_epi32(x[k], x[k + 1]);
        }
        for (int k = 0; k < 4; ++k) {
          const __m256i rows = k % 2 ? _mm256_unpackhi_epi64(y[k / 2], y[k / 2 + 2]) : _mm256_unpacklo_epi64(y[k / 2], y[k / 2 + 2]);
          _mm_storeu_si128(reinterpret_cast<__m128i*>(to(k) + kHead + 4 * i), _mm256_castsi256_si128(rows));
          _mm_storeu_si128(reinterpret_cast<__m128i*>(to(k + 4) + kHead + 4 * i), _mm256_extracti128_si256(rows, 1));
        }
      }
      for (int i = kWords / 4 * 4; i < kWords; ++i)
        for (int r = 0; r < kBandRows; ++r) __builtin_memcpy(to(r) + kHead + 4 * i, words + (i * kBandRows + r) * 4, 4);
    }
  }

  const MatmulTask& t_;
  int64_t c_;
  uint8_t rows_[kBandRows][Format::kBytes];
};

// The codes of weight rows [at, at + kLanes) and four columns, in the form that products() takes.
template <class Format, class W = V>
typename W::Codes panel_codes(const Panel& panel, int quad, int at) {
  if constexpr (Format::kSigned && W::kComplements) return {W::load_i(panel.codes[quad][at]), W::load_i(panel.negative[quad][at])};
  else return W::prepared(W::load_i(panel.codes[quad][at]));
}

// Columns [c, c + 256), or as many as there are, of the weight rows [o, o + n), n <= kStrip; further rows are zeros. kOffset: the codes'
// offset in the panel.
template <class Format, int kOffset = V::kPanelOffset<Format>>
void fill_panel(const MatmulTask& t, int64_t o, int64_t n, int64_t c, Panel* panel) {
  struct Row {
    alignas(64) uint8_t codes[kPanel];
    float scale[16], min[16];
  };
  Row rows[V::kLanes];
  RowColumns<Format> columns(t, c);
  for (int half = 0; half < 2; ++half) {
    for (int i = 0; i < V::kLanes; ++i) {
      Row& row = rows[i];
      const int64_t out = half * V::kLanes + i;
      if (out >= n) {
        __builtin_memset(&row, 0, sizeof row);
        continue;
      }
      Unpacked u;
      columns.unpack(o + out, u);
      const __m256i shift = _mm256_set1_epi8(static_cast<int8_t>(kOffset - Format::kOffset));
      for (int j = 0; j < 8; ++j) _mm256_store_si256(reinterpret_cast<__m256i*>(row.codes) + j, _mm256_add_epi8(u.q[j], shift));
      for (int j = 0; j < (Format::kGroup == 16 ? 2 : 1); ++j) {
        _mm256_storeu_ps(row.scale + 8 * j, u.scale[j]);
        if (Format::kHasMin) _mm256_storeu_ps(row.min + 8 * j, u.min[j]);
      }
    }
    const int64_t at = half * V::kLanes;
    transpose_rows(rows[0].codes, sizeof(Row), kPanel / 4, reinterpret_cast<float*>(panel->codes[0][at]));
    transpose_rows(rows[0].scale, sizeof(Row), 256 / Format::kGroup, &panel->scale[0][at]);
    if (Format::kHasMin) transpose_rows(rows[0].min, sizeof(Row), 256 / Format::kGroup, &panel->min[0][at]);
  }
  if constexpr (Format::kSigned && V::kComplements) take_signs<Format>(n_groups<Format>(t.n_columns - c), panel);
}

// The same from bands, whose lanes are rows already. Columns beyond the last one stay as they are.
template <class Format, int kOffset = V::kPanelOffset<Format>>
void fill_panel_from_bands(const MatmulTask& t, int64_t o, int64_t n, int64_t c, Panel* panel) {
  static_assert(Format::kGroup == 32 && V::kLanes % kBandRows == 0);
  const int n_columns = static_cast<int>(t.n_columns - c < kPanel ? t.n_columns - c : kPanel);
  const __m256i shift = _mm256_set1_epi8(static_cast<int8_t>(kOffset - Format::kOffset));
  if (n < kStrip) __builtin_memset(panel, 0, sizeof *panel);
  for (int64_t at = 0; at < n; at += kBandRows) {
    const uint8_t* band = reinterpret_cast<const uint8_t*>(t.weight + (o + at) * t.row_bytes) + c * kBandBytes256<Format> / 256;
    BandCodes<Format>::unpack(
        band, n_columns,
        [&](int quad, __m256i codes) {
          const __m256i moved = kOffset == Format::kOffset ? codes : _mm256_add_epi8(codes, shift);
          _mm256_store_si256(reinterpret_cast<__m256i*>(panel->codes[quad][at]), moved);
        },
        [&](int g, __m256 scale, __m256 min) {
          _mm256_store_ps(&panel->scale[g][at], scale);
          if (Format::kHasMin) _mm256_store_ps(&panel->min[g][at], min);
        });
  }
  if constexpr (Format::kSigned && V::kComplements) take_signs<Format>(n_columns / 32, panel);
}

// Dots of group g of a panel with R rows of activations, summed in integers.
template <class Format, int R>
void group_dots(const Panel& panel, const int8_t* const* q, const RowParts* parts, int g, V::I (&dots)[R][2]) {
  constexpr int kQuads = Format::kGroup / 4;
  constexpr bool kOffset = V::kPanelOffset<Format> != 0, kLacks = Format::kSigned && V::kComplements;
  constexpr int kRun = V::run(kCodeBits<Format>) < kQuads ? V::run(kCodeBits<Format>) : kQuads;
  static_assert(kRun > 1 || !kOffset, "single products take nothing off");
  static_assert(kRun == 1 || !kLacks, "sums of several products lack nothing");
  const auto start = [&](int r, int j) {
    return kLacks ? V::load_i(&panel.lacking[g][j * V::kLanes]) : kOffset ? V::set_i(parts[r].offset[g]) : V::zero_i();
  };
  for (int r = 0; r < R; ++r)
    for (int j = 0; j < 2; ++j) dots[r][j] = start(r, j);
  V::I products[V::kWholeSums ? 1 : R][2];
#pragma GCC unroll 8
  for (int k = 0; k < kQuads; ++k) {
    const V::Codes low = panel_codes<Format>(panel, g * kQuads + k, 0), high = panel_codes<Format>(panel, g * kQuads + k, V::kLanes);
    for (int r = 0; r < R; ++r) {
      const V::I a = V::repeated(q[r] + g * Format::kGroup + 4 * k);
      for (int j = 0; j < 2; ++j) {
        V::I& sum = V::kWholeSums ? dots[r][j] : products[V::kWholeSums ? 0 : r][j];
        sum = V::products<Format::kSigned>(!V::kWholeSums && k % kRun == 0 ? V::zero_i() : sum, j ? high : low, a);
        if (!V::kWholeSums && k % kRun == kRun - 1) dots[r][j] = V::widened(dots[r][j], sum);
      }
    }
  }
}

// sums (R, kStrip) += the first `groups` groups of the panel times columns from c on of R rows of activations.
template <class Format, int R>
void multiply_panel(const Panel& panel, int groups, const QuantizedRow* x, const RowParts* parts, int64_t c, float (*sums)[kStrip]) {
  constexpr int kGroup = Format::kGroup;
  const int8_t* q[R];
  for (int r = 0; r < R; ++r) q[r] = x[r].q + c;
  for (int g = 0; g < groups; ++g) {
    V::I dots[R][2];
    group_dots<Format, R>(panel, q, parts, g, dots);
    for (int r = 0; r < R; ++r) {
      const V::F d = V::set(x[r].d[(c + g * kGroup) / 32]);
      for (int j = 0; j < 2; ++j) {
        float* sum = sums[r] + j * V::kLanes;
        V::F s = V::fma(V::to_float(dots[r][j]), V::mul(V::load(panel.scale[g] + j * V::kLanes), d), V::load(sum));
        if (Format::kHasMin) s = V::fnma(V::load(panel.min[g] + j * V::kLanes), V::set(parts[r].min[g]), s);
        V::store(sum, s);
      }
    }
    // Sums stay in memory from group to group. In registers they would displace the dots.
    asm("" ::: "memory");
  }
}

// The same for n <= kMost rows.
template <class Format, int kMost>
void multiply_rows(int n, const Panel& panel, int groups, const QuantizedRow* x, const RowParts* parts, int64_t c, float (*sums)[kStrip]) {
  if constexpr (kMost > 1)
    if (n < kMost) return multiply_rows<Format, kMost - 1>(n, panel, groups, x, parts, c, sums);
  multiply_panel<Format, kMost>(panel, groups, x, parts, c, sums);
}

// sums (n_panels, kIntegerRows, kStrip) += the panels times columns [c, c + 256) of the rows [first, last). The last three
// arguments name the weights that come next (Ahead).
template <class Format>
void multiply_panels(const IntegerTile& tile, int n_panels, const MatmulTask& t, int64_t first, int64_t last, int64_t c,
                     float (*sums)[kIntegerRows][kStrip], int64_t next_out, int64_t n_next, int64_t next_c) {
  constexpr int kRows = V::rows(kCodeBits<Format>);
  const int groups = n_groups<Format>(t.n_columns - c);
  Ahead ahead(t, next_out, n_next, next_c, kPanel, (last - first + kRows - 1) / kRows);
  for (int64_t r = first; r < last; r += kRows) {
    const int n = static_cast<int>(last - r < kRows ? last - r : kRows);
    QuantizedRow x[kRows];
    for (int i = 0; i < n; ++i) x[i] = quantized_row(t.quantized + (r + i) * t.quantized_stride, t.n_columns);
    // Prefetches the next rows: their columns are too far apart for the processor's own prefetcher.
    for (int64_t i = r + kRows; i < r + 2 * kRows && i < last; ++i)
      for (int line = 0; line < kPanel; line += 64) _mm_prefetch(t.quantized + i * t.quantized_stride + c + line, _MM_HINT_T0);
    for (int p = 0; p < n_panels; ++p) {
      multiply_rows<Format, kRows>(n, tile.panels[p], groups, x, tile.parts + (r - first), c, sums[p] + (r - first));
      if (p == 0) ahead.step();
    }
  }
}

// The corrections of rows [first, last) for columns [c, c + 256).
template <class Format, int kOffset = V::kPanelOffset<Format>>
void fill_parts(const MatmulTask& t, int64_t first, int64_t last, int64_t c, RowParts* parts) {
  if (!kOffset && !Format::kHasMin) return;
  const __m256i ones = _mm256_set1_epi16(1), taken = _mm256_set1_epi16(-kOffset);
  for (int64_t r = first; r < last; ++r, ++parts) {
    const QuantizedRow x = quantized_row(t.quantized + r * t.quantized_stride, t.n_columns);
    const __m256i sums = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x.sums + c / 16));  // of each 16 columns
    const __m256 d = _mm256_loadu_ps(x.d + c / 32);
    for (int half = 0; half < (Format::kGroup == 16 ? 2 : 1); ++half) {
      __m256i groups;  // eight sums, times -kOffset
      __m256 scales = d;
      if (Format::kGroup == 32) {
        groups = _mm256_madd_epi16(sums, kOffset ? taken : ones);
      } else {
        groups = _mm256_cvtepi16_epi32(half ? _mm256_extracti128_si256(sums, 1) : _mm256_castsi256_si128(sums));
        if (kOffset) groups = _mm256_mullo_epi32(groups, _mm256_set1_epi32(-kOffset));
        const int first_d = 4 * half;
        scales = _mm256_permutevar8x32_ps(d, _mm256_add_epi32(_mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3), _mm256_set1_epi32(first_d)));
      }
      if (kOffset) _mm256_store_si256(reinterpret_cast<__m256i*>(parts->offset + 8 * half), groups);
      else _mm256_store_ps(parts->min + 8 * half, _mm256_mul_ps(scales, _mm256_cvtepi32_ps(groups)));
    }
  }
}

// Cuts the task into tiles. For each one, panels(first_out, n_out <= kOut, first_row, last_row) adds to the tile's sums, which are
// then stored.
template <int kOut, int kRows, class F>
void for_tiles(const MatmulTask& t, float (*sums)[kRows][kStrip], const F& panels) {
  for (int64_t o = t.first_out; o < t.last_out; o += kOut) {
    const int64_t n = t.last_out - o < kOut ? t.last_out - o : kOut;
    for (int64_t first = t.first_row; first < t.last_row; first += kRows) {
      const int64_t last = t.last_row - first < kRows ? t.last_row : first + kRows;
      for (int64_t strip = 0; strip * kStrip < n; ++strip)
        __builtin_memset(sums[strip], 0, static_cast<size_t>(last - first) * sizeof sums[0][0]);
      panels(o, n, first, last);
      const uintptr_t first_line = reinterpret_cast<uintptr_t>(t.out + o), stride = static_cast<uintptr_t>(t.out_stride) * sizeof(float);
      if (n % kStrip == 0 && ((first_line | stride) & 63) == 0 && !t.accumulate && !t.bias) {
        for (int64_t r = first; r < last; ++r) {
          float* out = t.out + r * t.out_stride + o;
          for (int64_t at = 0; at < n; at += V::kLanes) V::store_past(out + at, V::load(sums[at / kStrip][r - first] + at % kStrip));
        }
        continue;
      }
      for (int64_t r = first; r < last; ++r)
        for (int64_t at = 0; at < n; at += kStrip)
          store_outputs(t, r, o + at, sums[at / kStrip][r - first], static_cast<int>(n - at < kStrip ? n - at : kStrip));
    }
  }
  V::finish_stores();
}

template <class Format>
void prefill_blocks(const MatmulTask& t) {
  MatmulScratch* scratch = reinterpret_cast<MatmulScratch*>(t.scratch);
  IntegerTile& tile = scratch->integers;
  for_tiles<kIntegerOut>(t, scratch->integer_sums, [&](int64_t begin, int64_t n_out, int64_t first, int64_t last) {
    for (int64_t c = 0; c < t.n_columns; c += kPanel) {
      fill_parts<Format>(t, first, last, c, tile.parts);
      for (int64_t o = begin, end = begin + n_out; o < end; o += kTileOut) {
        const int64_t n = end - o < kTileOut ? end - o : kTileOut;
        int n_panels = 0;
        for (int64_t at = 0; at < n; at += kStrip, ++n_panels) {
          const int64_t rows = n - at < kStrip ? n - at : kStrip;
          if constexpr (BandCodes<Format>::kHas)
            if (t.in_bands) {
              fill_panel_from_bands<Format>(t, o + at, rows, c, &tile.panels[n_panels]);
              continue;
            }
          fill_panel<Format>(t, o + at, rows, c, &tile.panels[n_panels]);
        }
        // Unpacked next: the next tile's columns, or the first tile's next columns, or other weight rows.
        const bool goes_on = o + n < end, turns = !goes_on && c + kPanel >= t.n_columns;
        const int64_t next_out = goes_on ? o + n : turns ? end : begin, next_end = turns ? t.last_out : end;
        multiply_panels<Format>(tile, n_panels, t, first, last, c, scratch->integer_sums + (o - begin) / kStrip, next_out,
                                next_end - next_out < kTileOut ? next_end - next_out : kTileOut,
                                goes_on ? c
                                : turns ? 0
                                        : c + kPanel);
      }
    }
  });
}

// Columns [c, c + width) of the weight rows [o, o + n), n <= kStrip, as floats; further rows are zeros. Rows are pages apart, so
// processors do not prefetch them: the loop prefetches the same columns `ahead` bytes on, where the next call reads.
template <TensorType kType>
void fill_values(const MatmulTask& t, int64_t o, int64_t n, int64_t c, int width, int64_t ahead, float (*values)[kStrip]) {
  constexpr int kLine = 64 / kFloatBytes<kType>;
  for (int half = 0; half < 2; ++half) {
    const int64_t at = half * V::kLanes;
    const std::byte* w = t.weight + (o + at) * t.row_bytes;
    for (int k = 0; k < width; k += V::kLanes) {
      V::F r[V::kLanes];
      const int left = width - k < V::kLanes ? width - k : V::kLanes;
      if (n == kStrip && left == V::kLanes) {
        for (int i = 0; i < V::kLanes; ++i) {
          if (k % kLine == 0) __builtin_prefetch(w + i * t.row_bytes + (c + k) * kFloatBytes<kType> + ahead);
          r[i] = load_weights<kType>(w + i * t.row_bytes, c + k);
        }
      } else {
        for (int i = 0; i < V::kLanes; ++i)
          r[i] = at + i >= n         ? V::zero()
                 : left == V::kLanes ? load_weights<kType>(w + i * t.row_bytes, c + k)
                                     : load_weights_part<kType>(w + i * t.row_bytes, c + k, left);
      }
      V::transpose(r);
      for (int i = 0; i < left; ++i) V::store(values[k + i] + at, r[i]);
    }
  }
}

// Copies columns [c, c + width) of the rows [first, last), side by side, and prefetches the row after next.
inline void copy_activations(const MatmulTask& t, int64_t first, int64_t last, int64_t c, int width, FloatTile* tile) {
  for (int64_t r = first; r < last; ++r) {
    const float* from = t.x + r * t.x_stride + c;
    float* to = tile->x[r - first];
    int k = 0;
    for (; k + V::kLanes <= width; k += V::kLanes) {
      if (k % 16 == 0) __builtin_prefetch(from + 2 * t.x_stride + k);
      V::store(to + k, V::load(from + k));
    }
    for (; k < width; ++k) to[k] = from[k];
  }
}

// For each panel: the activations' columns are copied to the second-level cache once for kTaskOut outputs. A strip's values, in the
// first-level cache, meet all rows, six rows by two vectors at a time.
template <TensorType kType>
void prefill_floats(const MatmulTask& t) {
  MatmulScratch* scratch = reinterpret_cast<MatmulScratch*>(t.scratch);
  FloatTile& tile = scratch->floats;
  for_tiles<kTaskOut>(t, scratch->float_sums, [&](int64_t o, int64_t n, int64_t first, int64_t last) {
    for (int64_t c = 0; c < t.n_columns; c += kFloatPanel) {
      const int width = static_cast<int>(t.n_columns - c < kFloatPanel ? t.n_columns - c : kFloatPanel);
      copy_activations(t, first, last, c, width, &tile);
      for (int64_t at = 0; at < n; at += kStrip) {
        const int64_t rows = n - at < kStrip ? n - at : kStrip;
        const int64_t ahead = at + kStrip < n ? kStrip * t.row_bytes : kFloatPanel * kFloatBytes<kType> - at * t.row_bytes;
        fill_values<kType>(t, o + at, rows, c, width, ahead, tile.values);
        const Gemm<Start::keep> gemm{
            tile.x[0], sizeof tile.x[0] / sizeof(float), tile.values[0], kStrip, scratch->float_sums[at / kStrip][0], kStrip, 0, width,
            nullptr};
        gemm.run(last - first, 2);
      }
    }
  });
}

inline void matmul_prefill(const MatmulTask& t) {
  by_type(
      t.type, [&](auto format) { prefill_blocks<decltype(format)>(t); }, [&](auto type) { prefill_floats<decltype(type)::value>(t); });
}

}  // namespace
}  // namespace orrery::cpu
