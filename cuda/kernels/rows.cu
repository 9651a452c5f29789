// Operations on single rows: norms, RoPE, the gate, and sums. Each reads and writes a row once. At decode a row is a few kilobytes, so the
// launch is all the cost.
#include <cmath>

#include "cuda/device/launch.h"
#include "cuda/kernels/kernels.h"
#include "cuda/kernels/kv.cuh"
#include "cuda/kernels/products.cuh"
#include "cuda/device/ptx.h"

namespace orrery::cuda {

namespace rows_cu {

constexpr int kThreads = 256;
constexpr int kTransformThreads = 64;

// A thread block has one vector. Its sum has a fixed order: thread t adds x[t], x[t + 256], ..., then lanes are added, then warps. A warp
// writes 32 columns at a time: one group of the quantized row, if kQuantize.
//
// At decode a single block runs, and latency is all that it costs. So a thread holds its first kHeld values and weights in registers: all
// loads are under way at once, those of the weights before the kernels ahead have ended.
constexpr int kHeld = 16;
template <bool kQuantize>
__global__ void __launch_bounds__(kThreads)
    rms_norm_kernel(ConstRows x, const float* weight, Rows out, QuantizedRows quantized, int n_vectors, int dim, float eps) {
  let_next_kernel_start();
  const int row = static_cast<int>(blockIdx.x) / n_vectors, vector = static_cast<int>(blockIdx.x) % n_vectors;
  const float* in = x.data + row * x.stride + static_cast<int64_t>(vector) * dim;
  float* to = out.data + row * out.stride + static_cast<int64_t>(vector) * dim;
  const int thread = static_cast<int>(threadIdx.x);
  float held[kHeld], weights[kHeld];
#pragma unroll
  for (int k = 0; k < kHeld; ++k) weights[k] = thread + k * kThreads >= dim ? 0.0f : weight ? weight[thread + k * kThreads] : 1.0f;
  wait_for_earlier_kernels();
#pragma unroll
  for (int k = 0; k < kHeld; ++k) held[k] = thread + k * kThreads < dim ? in[thread + k * kThreads] : 0.0f;
  float sum = 0.0f;
#pragma unroll
  for (int k = 0; k < kHeld; ++k) sum = fmaf(held[k], held[k], sum);
  for (int i = thread + kHeld * kThreads; i < dim; i += kThreads) sum = fmaf(in[i], in[i], sum);
  sum = warp_sum(sum);
  __shared__ float sums[kThreads / 32];
  if (thread % 32 == 0) sums[thread / 32] = sum;
  __syncthreads();
  sum = 0.0f;
  for (int i = 0; i < kThreads / 32; ++i) sum += sums[i];
  const float scale = norm_scale(sum, dim, eps);
  const int n = kQuantize ? static_cast<int>(quantized.n_padded) : dim;
  const auto finish = [&](int i, float x_i, float weight_i) {
    const float value = i < dim ? x_i * scale * weight_i : 0.0f;
    if (i < dim) to[i] = value;
    if constexpr (kQuantize) quantize_group(value, quantized, row, i / 32);
  };
#pragma unroll
  for (int k = 0; k < kHeld; ++k)  // whole warps pass or stay: n is a multiple of 32 if rows are quantized
    if (thread + k * kThreads < n) finish(thread + k * kThreads, held[k], weights[k]);
  for (int i = thread + kHeld * kThreads; i < n; i += kThreads)
    finish(i, i < dim ? in[i] : 0.0f, i >= dim ? 0.0f : weight ? weight[i] : 1.0f);
}

// Angles are doubles: position * frequency reaches 1e5 radians, where the last bit of a float is a hundredth of a turn.
__global__ void prepare_rope_kernel(StepView step, int half, int rope_at, int table, float temperature) {
  const int row = static_cast<int>(blockIdx.x), sequence = step.rows[row].sequence;
  const DeviceSequence& own = *of_sequence(step, step.sequence, sequence);
  float magnitude = own.rope_magnitude[table];
  if (temperature != 0.0f)
    magnitude *= static_cast<float>(1.0 + static_cast<double>(temperature) *
                                              log1p(static_cast<double>(step.rows[row].position / own.rope_period[table])));
  const float* inverse_frequency = of_sequence(step, step.inverse_frequency, sequence) + rope_at / 2;
  float* cosines = step.rope + static_cast<int64_t>(row) * step.rope_floats + rope_at;
  for (int i = static_cast<int>(threadIdx.x); i < half; i += static_cast<int>(blockDim.x)) {
    const double angle = static_cast<double>(step.rows[row].position) * static_cast<double>(inverse_frequency[i]);
    double sine, cosine;
    sincos(angle, &sine, &cosine);
    cosines[i] = static_cast<float>(cosine) * magnitude;
    cosines[half + i] = static_cast<float>(sine) * magnitude;
  }
}

__global__ void __launch_bounds__(kThreads)
    rope_kernel(StepView step, Rows x, int n_heads, int head_dim, int half, int rope_at, bool interleaved) {
  const int row = static_cast<int>(blockIdx.y);
  const int i = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (i >= n_heads * half) return;
  const int head = i / half, pair = i % half;
  const float* table = step.rope + static_cast<int64_t>(row) * step.rope_floats + rope_at;
  const float cosine = table[pair], sine = table[half + pair];
  float* vector = x.data + row * x.stride + static_cast<int64_t>(head) * head_dim;
  float* a = vector + (interleaved ? 2 * pair : pair);
  float* b = interleaved ? a + 1 : a + half;
  const float2 rotated_pair = rotated(*a, *b, cosine, sine);
  *a = rotated_pair.x;
  *b = rotated_pair.y;
}

// A thread block has one head's vector in shared memory, `dim` floats; a thread has pairs of values `h` apart, for h = 1, 2, ... below
// `block`. The sums are those of the CPU's kernels, in their order: the same bits.
__device__ __forceinline__ void transform_head(Rows x, int row, int head, const float* shift, int dim, int block, float scale) {
  float* values = dynamic_shared<float>();
  float* vector = x.data + row * x.stride + static_cast<int64_t>(head) * dim;
  const int thread = static_cast<int>(threadIdx.x);
  const float* of_head = shift ? shift + static_cast<int64_t>(head) * dim : nullptr;
  for (int i = thread; i < dim; i += kTransformThreads) values[i] = of_head ? vector[i] - of_head[i] : vector[i];
  for (int h = 1; h < block; h *= 2) {
    __syncthreads();
    for (int pair = thread; pair < dim / 2; pair += kTransformThreads) {
      const int i = pair / h * 2 * h + pair % h;
      const float a = values[i], b = values[i + h];
      values[i] = a + b;
      values[i + h] = a - b;
    }
  }
  __syncthreads();
  for (int i = thread; i < dim; i += kTransformThreads) vector[i] = block > 1 ? values[i] * scale : values[i];
}
__global__ void __launch_bounds__(kTransformThreads)
    transform_heads_kernel(Rows x, const float* shift, int n_heads, int dim, int block, float scale) {
  start_early();
  transform_head(x, static_cast<int>(blockIdx.x) / n_heads, static_cast<int>(blockIdx.x) % n_heads, shift, dim, block, scale);
}
// Each row as its sequence says. block, scale: of sequences that are rotated.
__global__ void __launch_bounds__(kTransformThreads)
    transform_rows_kernel(StepView step, Rows x, int64_t mean_at, int n_heads, int dim, int block, float scale) {
  start_early();
  const int row = static_cast<int>(blockIdx.x) / n_heads;
  const DeviceSequence& sequence = *of_sequence(step, step.sequence, step.rows[row].sequence);
  const float* shift = mean_at >= 0 && sequence.key_means ? sequence.key_means + mean_at : nullptr;
  transform_head(x, row, static_cast<int>(blockIdx.x) % n_heads, shift, dim, sequence.rotated ? block : 1, scale);
}

// A warp has 32 columns: one group of the quantized row, if kQuantize.
template <bool kQuantize>
__global__ void __launch_bounds__(kThreads)
    activate_kernel(Activation activation, ConstRows gate, ConstRows up, Rows out, QuantizedRows quantized, int64_t n) {
  const int64_t row = blockIdx.y, i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (!kQuantize && i >= n) return;
  float value = 0.0f;
  if (i < n) {
    value = gated(activation, gate.data[row * gate.stride + i], up.data[row * up.stride + i]);
    out.data[row * out.stride + i] = value;
  }
  if constexpr (kQuantize) quantize_group(value, quantized, row, static_cast<int>(i / 32));
}

__global__ void __launch_bounds__(kThreads) add_kernel(float* x, const float* y, int64_t n) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < n) x[i] += y[i];
}

__global__ void __launch_bounds__(kThreads) soft_cap_kernel(float* x, int64_t n, float scale, float cap) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= n) return;
  const float scaled = x[i] * scale;
  x[i] = cap > 0.0f ? cap * tanhf(scaled / cap) : scaled;
}

// A thread has an output of a row, and the threads of a tile read its 64 bytes of B for each k.
__global__ void __launch_bounds__(kThreads)
    add_low_rank_kernel(const __grid_constant__ Products products, int64_t low_stride, float scale) {
  const DeviceProduct& product = products.list[blockIdx.z];
  const int64_t row = blockIdx.y, i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x, rank = product.weight.n_cols;
  if (i >= product.weight.n_rows) return;
  const float* const low = product.low + row * low_stride;
  const float* b = reinterpret_cast<const float*>(product.weight.data.address) + i / kAdapterTile * rank * kAdapterTile + i % kAdapterTile;
  float sum = 0.0f;
  for (int64_t k = 0; k < rank; ++k, b += kAdapterTile) sum = __fadd_rn(sum, __fmul_rn(low[k], *b));
  float* const out = product.out + row * product.out_stride + i;
  *out = __fadd_rn(*out, __fmul_rn(scale, sum));
}

unsigned blocks(int64_t n) { return static_cast<unsigned>((n + kThreads - 1) / kThreads); }

}  // namespace rows_cu
using namespace rows_cu;

void rms_norm(Queue& queue, ConstRows x, const float* weight, Rows out, int32_t n_rows, int32_t n_vectors, int64_t dim, float eps) {
  launch<rms_norm_kernel<false>>(queue, {Dim3(static_cast<unsigned>(n_rows * n_vectors)), Dim3(kThreads), 0, true}, x, weight, out,
                                 QuantizedRows{}, n_vectors, static_cast<int>(dim), eps);
}

void rms_norm_quantized(Queue& queue, ConstRows x, const float* weight, Rows out, const QuantizedRows& quantized, int32_t n_rows,
                        int64_t dim, float eps) {
  launch<rms_norm_kernel<true>>(queue, {Dim3(static_cast<unsigned>(n_rows)), Dim3(kThreads), 0, true}, x, weight, out, quantized, 1,
                                static_cast<int>(dim), eps);
}

void prepare_rope(Queue& queue, const StepView& step, int32_t n_rows, int32_t n_rot, int32_t rope_at, int32_t table, float temperature) {
  launch<prepare_rope_kernel>(queue, {Dim3(static_cast<unsigned>(n_rows)), Dim3(64)}, step, n_rot / 2, rope_at, table, temperature);
}

void rope(Queue& queue, const StepView& step, Rows x, int32_t n_rows, int32_t n_heads, int32_t head_dim, int32_t n_rot, int32_t rope_at,
          bool interleaved) {
  const int32_t half = n_rot / 2;
  launch<rope_kernel>(queue, {Dim3(blocks(int64_t{n_heads} * half), static_cast<unsigned>(n_rows)), Dim3(kThreads)}, step, x, n_heads,
                      head_dim, half, rope_at, interleaved);
}

void transform_heads(Queue& queue, Rows x, const float* shift, int32_t n_rows, int32_t n_heads, int32_t head_dim, bool rotate) {
  const int32_t block = rotate ? hadamard_block(head_dim) : 1;
  launch<transform_heads_kernel>(
      queue, {Dim3(static_cast<unsigned>(n_rows * n_heads)), Dim3(kTransformThreads), static_cast<size_t>(head_dim) * sizeof(float), true},
      x, shift, n_heads, head_dim, block, 1.0f / std::sqrt(static_cast<float>(block)));
}

void transform_heads(Queue& queue, const StepView& step, Rows x, int64_t mean_at, int32_t n_rows, int32_t n_heads, int32_t head_dim) {
  const int32_t block = hadamard_block(head_dim);
  const Geometry geometry = {Dim3(static_cast<unsigned>(n_rows * n_heads)), Dim3(kTransformThreads),
                             static_cast<size_t>(head_dim) * sizeof(float), true};
  launch<transform_rows_kernel>(queue, geometry, step, x, mean_at, n_heads, head_dim, block, 1.0f / std::sqrt(static_cast<float>(block)));
}

void activate(Queue& queue, Activation activation, ConstRows gate, ConstRows up, Rows out, int32_t n_rows, int64_t n) {
  launch<activate_kernel<false>>(queue, {Dim3(blocks(n), static_cast<unsigned>(n_rows)), Dim3(kThreads)}, activation, gate, up, out,
                                 QuantizedRows{}, n);
}

void activate_quantized(Queue& queue, Activation activation, ConstRows gate, ConstRows up, Rows out, const QuantizedRows& quantized,
                        int32_t n_rows, int64_t n) {
  launch<activate_kernel<true>>(queue, {Dim3(blocks(quantized.n_padded), static_cast<unsigned>(n_rows)), Dim3(kThreads)}, activation, gate,
                                up, out, quantized, n);
}

void soft_cap(Queue& queue, float* x, int64_t n, float scale, float cap) {
  launch<soft_cap_kernel>(queue, {Dim3(blocks(n)), Dim3(kThreads)}, x, n, scale, cap);
}

void add_low_rank(Queue& queue, const Products& products, int64_t low_stride, float scale, int32_t n_rows) {
  int64_t most = 0;
  for (int32_t i = 0; i < products.n; ++i) most = most < products.list[i].weight.n_rows ? products.list[i].weight.n_rows : most;
  launch<add_low_rank_kernel>(queue, {Dim3(blocks(most), static_cast<unsigned>(n_rows), static_cast<unsigned>(products.n)), Dim3(kThreads)},
                              products, low_stride, scale);
}

void add(Queue& queue, float* x, const float* y, int64_t n) { launch<add_kernel>(queue, {Dim3(blocks(n)), Dim3(kThreads)}, x, y, n); }

}  // namespace orrery::cuda
