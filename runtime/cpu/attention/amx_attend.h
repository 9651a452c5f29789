// Prefill attention on AMX's tiles (attention/bf16_attend.h). Include after vectors/avx512.h.
//
// A product of tiles takes 16 cycles (20 with numbers that are not zeros). Port 5 does no float arithmetic meanwhile, and a float
// exponential would take five such instructions. So the softmax is computed in integers. Sums of scores begin with the number that
// makes them fixed point. The sum of the weights is a tile of one row.
//
// Measured on an Intel Xeon with AMX, 2 cores: tests/bench/results/cpu-amx.md.
#pragma once

#include "runtime/cpu/products/amx.h"
#include "runtime/cpu/attention/bf16_attend.h"

namespace orrery::cpu {
namespace {

// Tiles 0 to 3: scores; or two tiles of outputs (0, 1) and two of values (2, 3). Tiles 4 and 5: keys and queries, or weights. Tile
// 6: the sums of the weights. Tile 7: ones.
constexpr TileConfig attend_config() {
  TileConfig config;
  config.rows[6] = config.rows[7] = 1;
  return config;
}
constexpr TileConfig kAttendConfig = attend_config();

// Tile instructions name their registers, so these functions list every register that they may meet.

template <int i>
void load_tile(const void* from, int64_t stride) {
  static_assert(i >= 0 && i < 4);
  if constexpr (i == 0) _tile_loadd(0, from, stride);
  if constexpr (i == 1) _tile_loadd(1, from, stride);
  if constexpr (i == 2) _tile_loadd(2, from, stride);
  if constexpr (i == 3) _tile_loadd(3, from, stride);
}
template <int i>
void store_tile(void* to) {
  static_assert(i >= 0 && i < 4);
  if constexpr (i == 0) _tile_stored(0, to, 64);
  if constexpr (i == 1) _tile_stored(1, to, 64);
  if constexpr (i == 2) _tile_stored(2, to, 64);
  if constexpr (i == 3) _tile_stored(3, to, 64);
}

// Adds kStepDims dimensions to sums i of a block's scores (16 keys). Sums 0 and 2 load the query's part, which sums 1 and 3 use
// again.
template <int i>
void add_scores(const std::byte* q, const std::byte* keys, const float* start, bool first) {
  if constexpr (i % 2 == 0) _tile_loadd(5, q, 64);
  if (first) load_tile<i>(start, 0);
  _tile_loadd(4, keys + i * kTileBytes, 64);
  if constexpr (i == 0) _tile_dpbf16ps(0, 4, 5);
  if constexpr (i == 1) _tile_dpbf16ps(1, 4, 5);
  if constexpr (i == 2) _tile_dpbf16ps(2, 4, 5);
  if constexpr (i == 3) _tile_dpbf16ps(3, 4, 5);
}

// Before a block's values: loads its weights and adds their sum.
inline void begin_values(const std::byte* weights, float* sum) {
  _tile_loadd(4, weights, 64);
  _tile_loadd(5, weights + kTileBytes, 64);
  _tile_loadd(6, sum, 64);
  _tile_dpbf16ps(6, 7, 4);
  _tile_dpbf16ps(6, 7, 5);
}
// Part i of four of o += V * weights, for kStepDims dimensions: both halves of the dimensions over 32 keys, then over the other 32.
template <int i>
void add_value_tiles(const std::byte* values, const float* o) {
  if constexpr (i < 2) load_tile<i>(o + i * kQueries * kQueries, 64);
  load_tile<2 + i % 2>(values + (i % 2 * 2 + i / 2) * kTileBytes, 64);
  if constexpr (i == 0) _tile_dpbf16ps(0, 2, 4);
  if constexpr (i == 1) _tile_dpbf16ps(1, 3, 4);
  if constexpr (i == 2) _tile_dpbf16ps(0, 2, 5);
  if constexpr (i == 3) _tile_dpbf16ps(1, 3, 5);
}
inline void end_values(float* sum) { _tile_stored(6, sum, 64); }

template <int kSteps>
class TiledAttention : public BlockAttention<kSteps, TiledAttention<kSteps>> {
  using Base = BlockAttention<kSteps, TiledAttention<kSteps>>;
  friend Base;

 public:
  explicit TiledAttention(const PrefillTask& t) : Base(t) {}
  void run() {
    alignas(64) uint16_t ones[32];
    for (uint16_t& one : ones) one = 0x3F80;
    const ConfiguredTiles tiles(kAttendConfig);
    written();
    _tile_loadd(7, ones, 64);
    Base::run();
  }

 private:
  using Base::keys;
  using Base::kValueSteps;
  using Base::lanes;
  using Base::o;
  using Base::q;
  using Base::values;
  using Base::weights;

  // Alternates a few tile instructions with some vector instructions. Tiles are stored a while after their products were issued.
  template <bool kSoften, bool kNext, bool kLast>
  __m512i work(int64_t b) {
    constexpr int kSlots = kNext ? 4 * (kSteps + (kLast ? kValueSteps : 0)) : 4 * kValueSteps;
    __m512i seen = V::zero_i();
    int slot = 0;
    const auto soften = [&] {
      if (kSoften)
        seen = soften_pairs<false>(this->scores(b), kPairs * slot / kSlots, kPairs * (slot + 1) / kSlots, V::zero(), weights(b), seen);
      ++slot;
    };
    float* scores = this->scores(b + 1);
    const float* from = lanes(b + 1).start;
    written();
    if (kSoften && !kNext && !kLast) seen = soften_pairs<false>(this->scores(b), 0, kPairs, V::zero(), weights(b), seen);
    if (kNext) {
#pragma GCC unroll 8
      for (int step = 0; step < kSteps; ++step) {
        add_scores<0>(q(b + 1, step), keys(step), from, step == 0);
        soften();
        add_scores<1>(q(b + 1, step), keys(step), from, step == 0);
        soften();
      }
#pragma GCC unroll 8
      for (int step = 0; step < kSteps; ++step) {
        add_scores<2>(q(b + 1, step), keys(step), from, step == 0);
        if (step == 0) store_tile<0>(scores);
        soften();
        add_scores<3>(q(b + 1, step), keys(step), from, step == 0);
        if (step == 0) store_tile<1>(scores + kQueries * kQueries);
        soften();
      }
    }
    if (kLast) begin_values(weights(b - 1), lanes(b - 1).sum);
    if (kNext) {
      store_tile<2>(scores + 2 * kQueries * kQueries);
      store_tile<3>(scores + 3 * kQueries * kQueries);
    }
    if (kLast) {
#pragma GCC unroll 8
      for (int step = 0; step < kValueSteps; ++step) {
        add_value_tiles<0>(values(step), o(b - 1, step));
        if (step == 0) end_values(lanes(b - 1).sum);
        if (step > 0) store_tile<1>(o(b - 1, step - 1) + kQueries * kQueries);
        soften();
        add_value_tiles<1>(values(step), o(b - 1, step));
        soften();
        add_value_tiles<2>(values(step), o(b - 1, step));
        soften();
        add_value_tiles<3>(values(step), o(b - 1, step));
        store_tile<0>(o(b - 1, step));
        soften();
      }
      store_tile<1>(o(b - 1, kValueSteps - 1) + kQueries * kQueries);
    }
    written();
    return seen;
  }

  void add_weights(int64_t b) {
    written();
    begin_values(weights(b), lanes(b).sum);
    end_values(lanes(b).sum);
  }
  void add_values(int64_t b, int step, const std::byte* rows, float* out) {
    written();
    _tile_loadd(4, weights(b), 64);
    _tile_loadd(5, weights(b) + kTileBytes, 64);
    add_value_tiles<0>(rows, o(b, step));
    add_value_tiles<1>(rows, o(b, step));
    add_value_tiles<2>(rows, o(b, step));
    add_value_tiles<3>(rows, o(b, step));
    store_tile<0>(out);
    store_tile<1>(out + kQueries * kQueries);
    written();
  }
};

}  // namespace
}  // namespace orrery::cpu
