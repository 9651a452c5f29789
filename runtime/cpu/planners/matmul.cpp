#include "runtime/cpu/planners/matmul.h"

#include <algorithm>

#include "runtime/base/checked.h"
#include "runtime/cpu/formats/bands.h"

namespace orrery::cpu {

namespace {

// Decode: a few contiguous stretches of weight rows for each thread, so that other threads can help a slow one.
int64_t stretch_of(const ProductShape& p, int32_t n_threads) {
  constexpr int64_t kLeast = int64_t{16} << 10, kMost = int64_t{256} << 10;
  const int64_t share = std::clamp(p.n_out * p.row_bytes / (8 * n_threads), kLeast, kMost);
  const int64_t step = div_up(share, p.row_bytes);
  return p.in_bands ? div_up<int64_t>(step, kBandRows) * kBandRows : step;
}

}  // namespace

// Prefill: the kernel's tiles, with tiles of the same weights one after another. Tiles are halved where there are too few for the threads,
// or where all would wait for the last one.
MatmulPlan::MatmulPlan(Span<const ProductShape> products, int64_t n_rows, int64_t tile_out, int64_t tile_rows, int32_t n_threads)
    : n_rows_(n_rows) {
  const auto too_few = [&] {
    int64_t n = 0;
    for (const ProductShape& p : products) n += div_up(p.n_out, tile_out) * div_up(n_rows, tile_rows);
    return n < 8 * n_threads;
  };
  for (const int64_t least : {64, 32}) {
    while (tile_out > least && too_few()) tile_out /= 2;
    while (tile_rows > 256 && too_few()) tile_rows /= 2;
  }
  for (size_t i = 0; i < products.size(); ++i) {
    const ProductShape& p = products[i];
    Cut& cut = cuts_[i];
    cut.n_out = p.n_out;
    cut.out_step = p.decodes ? stretch_of(p, n_threads) : tile_out;
    cut.row_step = p.decodes ? n_rows : tile_rows;
    cut.row_tiles = div_up(n_rows, cut.row_step);
    cut.n_items = div_up(p.n_out, cut.out_step) * cut.row_tiles;
    n_items_ += cut.n_items;
  }
}

MatmulItem MatmulPlan::item(int64_t i) const {
  size_t product = 0;
  for (; i >= cuts_[product].n_items; ++product) i -= cuts_[product].n_items;
  const Cut& cut = cuts_[product];
  const int64_t first_out = i / cut.row_tiles * cut.out_step, first_row = i % cut.row_tiles * cut.row_step;
  return {product, first_out, std::min(cut.n_out, first_out + cut.out_step), first_row, std::min(n_rows_, first_row + cut.row_step)};
}

}  // namespace orrery::cpu
