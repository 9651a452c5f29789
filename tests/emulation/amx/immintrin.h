// Stands before the compiler's own header where kernels_amx.cpp is compiled for machines without AMX: vectors as in
// avx512/immintrin.h, which stands behind it, and tiles in software.
#pragma once

#include_next <immintrin.h>

#include "tests/emulation/tiles.h"

namespace emulated {
namespace {

// Whoever uses tiles also gives them back: no task may find another's.
inline void configure(const void* config) {
  demand(!tiles().configured(), "the tiles were not released");
  tiles().load_config(config);
}

// Sixteen floats of each as bf16, b's below a's: to nearest, ties to even; subnormal numbers count as zero.
inline __m512i halves_of(__m512 a, __m512 b) {
  const Lanes<uint32_t, __m512> upper(a), lower(b);
  Lanes<uint16_t, __m512i> out;
  for (int i = 0; i < 32; ++i) {
    const uint32_t x = i < 16 ? lower.x[i] : upper.x[i - 16], magnitude = x & 0x7FFFFFFF;
    const bool nan = magnitude > 0x7F800000, tiny = magnitude < 0x00800000;
    out.x[i] = static_cast<uint16_t>(nan ? x >> 16 | 0x40 : tiny ? x >> 31 << 15 : (x + 0x7FFF + (x >> 16 & 1)) >> 16);
  }
  return out.vector();
}

}  // namespace
}  // namespace emulated

#undef _mm512_cvtne2ps_pbh
#define _mm512_cvtne2ps_pbh(a, b) emulated::halves_of(a, b)
#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#define _tile_loadconfig emulated::configure
#define _tile_release() emulated::tiles().release()
#define _tile_loadd(tile, from, stride) emulated::tiles().load(tile, from, stride)
#define _tile_stored(tile, to, stride) emulated::tiles().store(tile, to, stride)
#define _tile_zero(tile) emulated::tiles().zero(tile)
#define _tile_dpbf16ps(c, a, b) emulated::tiles().dot_halves(c, a, b)

