// Products of heads: each head of a row meets a matrix of its own. Latent attention has two: one takes a query to the space of the stored
// rows, the other takes attention's output back.
#pragma once

#include <cstdint>

#include "runtime/backend/memory.h"
#include "runtime/backend/step.h"

namespace orrery {

class HeadProducts {
 public:
  // x: (n_rows, n_heads, x_dim); out: (n_rows, n_heads, out_dim). weight: (n_heads * n_out, n_in), the heads' matrices one after another;
  // n_in <= x_dim, n_out <= out_dim. A head's first n_out outputs are the product of its matrix and its first n_in inputs. Its further
  // inputs follow them as they are: as many as both have, min(x_dim - n_in, out_dim - n_out). A row's result does not depend on the other
  // rows. x and out do not overlap.
  virtual void multiply_heads(const Weight& weight, int32_t n_heads, Ptr<const float> x, int64_t x_dim, Ptr<float> out,
                              int64_t out_dim) = 0;

 protected:
  ~HeadProducts() = default;
};

}  // namespace orrery
