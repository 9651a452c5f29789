// Precedes the compiler's own header when kernels_amx.cpp is compiled for machines without AMX: tiles in software (tiles.h). Vectors come
// from avx512bf16/immintrin.h, which this header includes.
#pragma once

#include_next <immintrin.h>

#include "tests/emulation/tiles.h"

namespace emulated {
namespace {

// A task that configures tiles must also release them: no task may find the tiles of another.
inline void configure(const void* config) {
  demand(!tiles().configured(), "the tiles were not released");
  tiles().load_config(config);
}

}  // namespace
}  // namespace emulated

#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#undef _tile_dpbssd
#define _tile_loadconfig emulated::configure
#define _tile_release() emulated::tiles().release()
#define _tile_loadd(tile, from, stride) emulated::tiles().load(tile, from, stride)
#define _tile_stored(tile, to, stride) emulated::tiles().store(tile, to, stride)
#define _tile_zero(tile) emulated::tiles().zero(tile)
#define _tile_dpbf16ps(c, a, b) emulated::tiles().dot_halves(c, a, b)
#define _tile_dpbssd(c, a, b) emulated::tiles().dot_bytes(c, a, b)
