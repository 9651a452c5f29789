// The second product of an adapter's pair (model/adapters/adapter.h): what goes through B is added to the base product.
#pragma once

#include <cstdint>

#include "runtime/backend/memory.h"
#include "runtime/base/span.h"

namespace orrery {

// B lies in tiles of this many outputs: (tiles, rank, kAdapterTile), zeros behind the last output.
inline constexpr int64_t kAdapterTile = 16;

struct AdapterProduct {
  Ptr<const float> b;
  int64_t n_out = 0, rank = 0;
  Ptr<const float> low;  // (n_rows, rank): A x
  Ptr<float> out;        // (n_rows, n_out), rows out_stride floats apart
  int64_t out_stride = 0;
};

class AdapterOperations {
 public:
  // out[r][o] += scale * (sum over k of low[r][k] * b[o][k]), in ascending k, for each product; rows of `low` are low_stride floats apart. A
  // row's result depends on no other row, nor on the phase. A NaN makes its row's outputs NaN.
  virtual void add_low_rank(Span<const AdapterProduct> products, int64_t low_stride, float scale, int32_t n_rows) = 0;

 protected:
  ~AdapterOperations() = default;
};

}  // namespace orrery
