// Products of many rows through cuBLAS. Activations become halves first; quantized weights become halves, a stripe of outputs at a time.
//
// Activations are rounded once: to F16, an error of 2^-12 of each value (our own kernel keeps 2^-22), or to BF16 beside BF16 weights. A row
// whose largest value is not in [2^-8, 2^15) is scaled by a power of two, because F16 holds it badly. Then the start of the row's sums is
// scaled, too, and the sums are scaled back, in a launch each. These two launches find nothing to do for other rows.
//
// Quantized weights: four lanes have a group of 32 columns. Each lane unpacks the whole group, from the same addresses, and writes eight
// columns, so that a warp stores 512 bytes together. A stripe has 32 MB, which the second-level cache holds; or 4,096 outputs, in at most
// 128 MB: with fewer outputs a product has too few tiles for the SMs of the GPUs that device/tuning.h sends here.
// Cost: README.md.
#include <algorithm>

#include "cuda/device/launch.h"
#include "cuda/kernels/blocks.cuh"
#include "cuda/device/cublas.h"
#include "cuda/kernels/kernels.h"
#include "cuda/device/tuning.h"

namespace orrery::cuda {

namespace matmul_cublas_cu {

constexpr int kThreads = 256;
constexpr uint64_t kStripeBytes = uint64_t{32} << 20, kMostStripeBytes = uint64_t{128} << 20;
constexpr uint64_t kStripeOutputs = 4096;

struct HalvesArgs {
  ConstRows x;
  int n_cols, stride;  // stride: values from row to row of `out`
  uint16_t* out;
  float* scales;  // written if the type is F16
};

// The scale of a row with this largest value (its bits): 1 if F16 holds the row well; else the power of two, within [2^-113, 2^60], that
// brings the value to [2^14, 2^15).
__device__ __forceinline__ float row_scale(uint32_t largest) {
  const uint32_t exponent = largest >> 23;
  if (largest == 0 || exponent == 255 || (exponent >= 119 && exponent < 142)) return 1.0f;
  return __uint_as_float((268u - max(exponent, 81u)) << 23);
}

__device__ __forceinline__ uint32_t bfloat_bits(float x) {
  const uint32_t bits = __float_as_uint(x);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return 0x7FC0u;
  return (bits + 0x7FFFu + (bits >> 16 & 1)) >> 16;
}

// A thread block has a row.
template <TensorType kType>
__global__ void __launch_bounds__(kThreads) halves_kernel(HalvesArgs a) {
  const int64_t row = blockIdx.x;
  const float* x = a.x.data + row * a.x.stride;
  float scale = 1.0f;
  if constexpr (kType == TensorType::f16) {
    uint32_t largest = 0;
    for (int i = static_cast<int>(threadIdx.x); i < a.n_cols; i += kThreads) largest = max(largest, __float_as_uint(x[i]) & 0x7FFFFFFFu);
    for (int i = 16; i > 0; i /= 2) largest = max(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, i));
    __shared__ uint32_t of_warps[kThreads / 32];
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = largest;
    __syncthreads();
    for (const uint32_t other : of_warps) largest = max(largest, other);
    scale = row_scale(largest);
    if (threadIdx.x == 0) a.scales[row] = scale;
  }
  for (int i = static_cast<int>(threadIdx.x); i < a.stride; i += kThreads) {
    const float value = i < a.n_cols ? x[i] * scale : 0.0f;
    uint32_t bits;
    if constexpr (kType == TensorType::f16) bits = __half_as_ushort(__float2half_rn(value));
    else bits = bfloat_bits(value);
    a.out[row * a.stride + i] = static_cast<uint16_t>(bits);
  }
}

struct BlocksArgs {
  const std::byte* weights;  // the row of the stripe's first output
  RowPlanes planes;
  uint16_t* out;  // (n_outs, n_cols)
  int n_cols;
};

template <TensorType kType>
__global__ void __launch_bounds__(kThreads) blocks_to_halves_kernel(BlocksArgs a) {
  const int64_t row = blockIdx.y;
  const int at = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x), g = at / 4, part = at % 4;
  if (g >= a.n_cols / 32) return;
  const UnpackedGroup group = unpack_group<kType>(load_group<kType>(a.weights + row * a.planes.bytes, a.planes, g), g);
  uint32_t words[2] = {};
#pragma unroll
  for (int j = 0; j < 8; ++j)
    if (j / 2 == part) words[j % 2] = signed_codes<kType>(group.code[j]);
  const bool second = Format<kType>::kHalves && part >= 2;
  const float scale = second ? group.scale[1] : group.scale[0];
  uint32_t halves[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    uint32_t pair = 0;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int column = 2 * i + j;
      float value = __fmul_rn(scale, static_cast<float>(static_cast<int8_t>(words[column / 4] >> (8 * (column % 4)) & 0xFFu)));
      if constexpr (Format<kType>::kMin) value = __fadd_rn(value, -(second ? group.min[1] : group.min[0]));
      pair |= static_cast<uint32_t>(__half_as_ushort(__float2half_rn(value))) << (16 * j);
    }
    halves[i] = pair;
  }
  *reinterpret_cast<uint4*>(a.out + row * a.n_cols + 32 * g + 8 * part) = uint4{halves[0], halves[1], halves[2], halves[3]};
}

// Writes the start of a row's sums: the bias, the present output, or both, times the row's scale. A thread block has a row.
__global__ void __launch_bounds__(kThreads) begin_sums_kernel(DeviceProduct p, const float* scales) {
  const int64_t row = blockIdx.x;
  const float scale = scales ? scales[row] : 1.0f;
  if (!p.bias && scale == 1.0f) return;
  float* out = p.out + row * p.out_stride;
  for (int64_t i = threadIdx.x; i < p.weight.n_rows; i += kThreads) {
    float value = p.accumulate ? out[i] : 0.0f;
    if (p.bias) value += p.bias[i];
    out[i] = value * scale;
  }
}
// Divides a row's sums by the row's scale.
__global__ void __launch_bounds__(kThreads) end_sums_kernel(DeviceProduct p, const float* scales) {
  const int64_t row = blockIdx.x;
  const float scale = scales[row];
  if (scale == 1.0f) return;
  float* out = p.out + row * p.out_stride;
  for (int64_t i = threadIdx.x; i < p.weight.n_rows; i += kThreads) out[i] /= scale;
}

int64_t halves_stride(int64_t n_cols) { return (n_cols + 7) / 8 * 8; }
Geometry a_block_a_row(int32_t n_rows) { return {Dim3(static_cast<unsigned>(n_rows)), Dim3(kThreads)}; }

// Converts the weights of outputs [first, first + n) to halves.
void to_halves(Queue& queue, const Weight& w, int64_t first, int64_t n, std::byte* out) {
  BlocksArgs args = {};
  args.planes = row_planes(w.type, w.n_cols);
  args.weights = reinterpret_cast<const std::byte*>(w.data.address) + first * args.planes.bytes;
  args.out = reinterpret_cast<uint16_t*>(out);
  args.n_cols = static_cast<int>(w.n_cols);
  const Geometry geometry = {Dim3(static_cast<unsigned>((w.n_cols / 8 + kThreads - 1) / kThreads), static_cast<unsigned>(n)),
                             Dim3(kThreads)};
  with_block_type(w.type, [&](auto type) { launch<blocks_to_halves_kernel<type()>>(queue, geometry, args); });
}

}  // namespace matmul_cublas_cu
using namespace matmul_cublas_cu;

CublasPlan::CublasPlan(int32_t architecture, bool of_blocks, const StepLimits& limits) {
  const auto take = [this](uint64_t n) {
    const uint64_t at = bytes;
    bytes += (n + 255) / 256 * 256;
    return at;
  };
  const uint64_t rows = static_cast<uint64_t>(std::max(limits.max_rows, 1));
  workspace = take(Cublas::workspace_bytes(architecture));
  workspace_bytes = bytes;
  scales = take(rows * sizeof(float));
  halves = take(rows * static_cast<uint64_t>(halves_stride(limits.max_in)) * 2);
  const uint64_t output_bytes = static_cast<uint64_t>(halves_stride(limits.max_in)) * 2;
  stripe_bytes = of_blocks ? std::max({kStripeBytes, output_bytes, std::min(kStripeOutputs * output_bytes, kMostStripeBytes)}) : 0;
  stripe = take(stripe_bytes);
}

void matmul_cublas(Queue& queue, Cublas& cublas, const CublasPlan& plan, std::byte* scratch, const Products& products, ConstRows x,
                   int32_t n_rows) {
  std::byte* halves = scratch + plan.halves;
  float* scales = reinterpret_cast<float*>(scratch + plan.scales);
  cublas.set_workspace(queue, scratch + plan.workspace, plan.workspace_bytes);
  for (const TensorType type : {TensorType::f16, TensorType::bf16}) {
    bool there = false;  // the input has been converted to this type
    for (int i = 0; i < products.n; ++i) {
      const DeviceProduct& p = products.list[i];
      const Weight& w = p.weight;
      if ((w.type == TensorType::bf16) != (type == TensorType::bf16)) continue;
      const int64_t stride = halves_stride(w.n_cols);
      const float* row_scales = type == TensorType::f16 ? scales : nullptr;
      if (!there) {
        const HalvesArgs args = {x, static_cast<int>(w.n_cols), static_cast<int>(stride), reinterpret_cast<uint16_t*>(halves), scales};
        if (type == TensorType::f16) launch<halves_kernel<TensorType::f16>>(queue, a_block_a_row(n_rows), args);
        else launch<halves_kernel<TensorType::bf16>>(queue, a_block_a_row(n_rows), args);
        there = true;
      }
      if (p.bias || (p.accumulate && row_scales)) launch<begin_sums_kernel>(queue, a_block_a_row(n_rows), p, row_scales);
      HalfProduct product = {
          type, halves, nullptr, p.out, stride, w.n_cols, p.out_stride, n_rows, 0, static_cast<int32_t>(w.n_cols), p.accumulate || p.bias};
      if (is_float(w.type)) {
        product.w = reinterpret_cast<const std::byte*>(w.data.address);
        product.w_stride = row_planes(w.type, w.n_cols).bytes / 2;
        product.n_out = static_cast<int32_t>(w.n_rows);
        cublas.multiply(queue, product);
      } else {
        const auto outputs = [&](uint64_t bytes) { return static_cast<int64_t>(bytes / 2) / w.n_cols; };
        const int64_t fitting = std::min(
            {outputs(plan.stripe_bytes), std::max(outputs(kStripeBytes), static_cast<int64_t>(kStripeOutputs)), int64_t{kMostGridYZ}});
        product.w = scratch + plan.stripe;
        for (int64_t first = 0; first < w.n_rows; first += fitting) {
          const int64_t n = std::min(fitting, w.n_rows - first);
          to_halves(queue, w, first, n, scratch + plan.stripe);
          product.n_out = static_cast<int32_t>(n);
          product.out = p.out + first;
          cublas.multiply(queue, product);
        }
      }
      if (row_scales) launch<end_sums_kernel>(queue, a_block_a_row(n_rows), p, row_scales);
    }
  }
}

}  // namespace orrery::cuda
