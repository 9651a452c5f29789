// Rebuilds low-rank keys on AMX's tiles (attention/bf16_low_rank.h). Include after vectors/avx512.h.
//
// One product multiplies sixteen tokens by kBlock of the rank with kBlock rows of the basis by sixteen dimensions. 64 dimensions
// and a rank of 160 take twenty products, 320 cycles; floats take 640 multiply-adds for each token. The rest of the time reads the
// rows, rounds them and rotates the keys. Tiles are configured once for a task.
#pragma once

#include "runtime/cpu/products/amx.h"
#include "runtime/cpu/attention/bf16_low_rank.h"

namespace orrery::cpu {
namespace {

// Tiles 0 to 3: keys. 4 and 5: rows. 6 and 7: the basis. After the last token, rows hold whatever the scratch holds, and nobody
// reads the resulting keys.
template <int N>
void rebuild_tile(const RebuildTask& t, int64_t token, int64_t vector) {
  const int64_t stride = 2 * whole_rank(t.rank), width_bytes = t.width * static_cast<int64_t>(sizeof(float));
  const std::byte* rows = reinterpret_cast<const std::byte*>(t.scratch) + token * stride;
  const float* basis = t.basis + vector * V::kLanes;
  float* out = t.out + token * t.width + vector * V::kLanes;
  if (t.add) {
    _tile_loadd(0, out, width_bytes);
    if (N > 1) _tile_loadd(1, out + V::kLanes, width_bytes);
    if (N > 2) _tile_loadd(2, out + 2 * V::kLanes, width_bytes);
    if (N > 3) _tile_loadd(3, out + 3 * V::kLanes, width_bytes);
  } else {
    _tile_zero(0);
    if (N > 1) _tile_zero(1);
    if (N > 2) _tile_zero(2);
    if (N > 3) _tile_zero(3);
  }
  for (int64_t r = 0; r < t.rank; r += kBlock, basis += kBlock / 2 * t.width) {
    _tile_loadd(4, rows + 2 * r, stride);
    _tile_loadd(6, basis, width_bytes);
    _tile_dpbf16ps(0, 4, 6);
    if (N > 1) {
      _tile_loadd(7, basis + V::kLanes, width_bytes);
      _tile_dpbf16ps(1, 4, 7);
    }
    if (N > 2) {
      _tile_loadd(6, basis + 2 * V::kLanes, width_bytes);
      _tile_dpbf16ps(2, 4, 6);
    }
    if (N > 3) {
      _tile_loadd(7, basis + 3 * V::kLanes, width_bytes);
      _tile_dpbf16ps(3, 4, 7);
    }
  }
  _tile_stored(0, out, width_bytes);
  if (N > 1) _tile_stored(1, out + V::kLanes, width_bytes);
  if (N > 2) _tile_stored(2, out + 2 * V::kLanes, width_bytes);
  if (N > 3) _tile_stored(3, out + 3 * V::kLanes, width_bytes);
}

inline void rebuild_by_tiles(const RebuildTask& t) {
  static_assert(kRebuilt % kTileHeight == 0, "a task has room for whole tiles");
  round_rows(t);
  const int64_t n_vectors = t.width / V::kLanes;
  const ConfiguredTiles tiles;
  written();
  for (int64_t token = 0; token < t.n_keys; token += kTileHeight) {
    int64_t v = 0;
    for (; v + 4 <= n_vectors; v += 4) rebuild_tile<4>(t, token, v);
    if (n_vectors - v == 3) rebuild_tile<3>(t, token, v);
    if (n_vectors - v == 2) rebuild_tile<2>(t, token, v);
    if (n_vectors - v == 1) rebuild_tile<1>(t, token, v);
  }
  written();
}

}  // namespace
}  // namespace orrery::cpu
