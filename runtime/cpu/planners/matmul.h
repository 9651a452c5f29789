// The items of the products of one input.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "runtime/base/span.h"

namespace orrery::cpu {

// Rows of a prompt up to which decode's kernel is faster than prefill's, where both give the same bits.
inline constexpr int32_t kShortPrompt = 16;

// A product, as its planner sees it.
struct ProductShape {
  int64_t n_out = 0;      // rows of the weight
  int64_t row_bytes = 0;  // of one of them, as it is stored
  bool in_bands = false;  // cut between bands
  bool decodes = false;   // it takes decode's kernel, else prefill's
};

// Outputs [first_out, last_out) of rows [first_row, last_row), of one product.
struct MatmulItem {
  size_t product = 0;
  int64_t first_out = 0, last_out = 0, first_row = 0, last_row = 0;
};

class MatmulPlan {
 public:
  static constexpr size_t kMostProducts = 8;
  // At most kMostProducts products of n_rows rows each. tile_out, tile_rows: the shape of prefill's fastest tasks (Kernels).
  MatmulPlan(Span<const ProductShape> products, int64_t n_rows, int64_t tile_out, int64_t tile_rows, int32_t n_threads);

  int64_t n_items() const { return n_items_; }
  MatmulItem item(int64_t i) const;

 private:
  struct Cut {
    int64_t n_out = 0, out_step = 0, row_step = 0, row_tiles = 0, n_items = 0;
  };
  std::array<Cut, kMostProducts> cuts_;
  int64_t n_rows_, n_items_ = 0;
};

}  // namespace orrery::cpu
