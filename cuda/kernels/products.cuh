// Parts that matmul_decode.cu and matmul_prefill.cu share: which products of a list go to one launch, how a sum is stored, and the gate.
#pragma once

#include "cuda/kernels/kernels.h"

namespace orrery::cuda {

constexpr float kGeluScale = 0.79788456080286536f, kGeluCube = 0.044715f;   // sqrt(2 / pi)

// Products of one weight type. The grid's thread blocks serve the products in order.
struct Batch {
  DeviceProduct list[kMostProducts];
  int32_t first_block[kMostProducts];
  int32_t n;

  // blocks_of(product) is the number of thread blocks that a product needs. Returns the sum.
  template <class F>
  int32_t deal(const F& blocks_of) {
    int32_t sum = 0;
    for (int i = 0; i < n; ++i) {
      first_block[i] = sum;
      sum += static_cast<int32_t>(blocks_of(list[i]));
    }
    return sum;
  }
  __device__ __forceinline__ int product_of(int block) const {
    int p = 0;
    while (p + 1 < n && block >= first_block[p + 1]) ++p;
    return p;
  }
};

template <class F>
void for_each_type(const Products& products, const F& f) {
  bool done[kMostProducts] = {};
  for (int i = 0; i < products.n; ++i) {
    if (done[i]) continue;
    Batch batch = {};
    for (int j = i; j < products.n; ++j) {
      if (products.list[j].weight.type != products.list[i].weight.type) continue;
      batch.list[batch.n++] = products.list[j];
      done[j] = true;
    }
    f(batch);
  }
}

__device__ __forceinline__ const std::byte* weights_of(const DeviceProduct& p) {
  return reinterpret_cast<const std::byte*>(p.weight.data.address);
}
__device__ __forceinline__ float with_bias(const DeviceProduct& p, int64_t o, float sum) {
  return p.bias ? __fadd_rn(sum, p.bias[o]) : sum;
}
// activate() of one value. x / 2 * (1 + tanh(u)) = x * sigmoid(2 u).
__device__ __forceinline__ float gated(Activation activation, float gate, float up) {
  const float inner = activation == Activation::gelu ? 2.0f * kGeluScale * fmaf(kGeluCube * gate * gate, gate, gate) : gate;
  return gate / (1.0f + expf(-inner)) * up;
}
__device__ __forceinline__ void store(const DeviceProduct& p, int64_t row, int64_t o, float sum) {
  float* out = p.out + row * p.out_stride + o;
  sum = with_bias(p, o, sum);
  *out = p.accumulate ? __fadd_rn(*out, sum) : sum;
}

}  // namespace orrery::cuda
