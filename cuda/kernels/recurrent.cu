// Recurrent layers: gated delta nets (runtime/backend/recurrent.h), and the gates of attention beside them.
//
// A thread block has one value head of one step, two neighbouring threads a column of the head's state: key_dim / 2 floats each in registers,
// from the first row to the last. A warp loads 16 consecutive floats of two rows of the state. At decode the state is read and written once,
// 128 KB for a head of 128 by 128, all loads under way at once: the memory's rate is the limit, as far as n_value_heads blocks reach it. At
// prefill a row takes 2 key_dim multiplications a thread, with q and k broadcast from shared memory, and four barriers.
#include "cuda/device/launch.h"
#include "cuda/kernels/kernels.h"
#include "cuda/kernels/kv.cuh"
#include "cuda/device/ptx.h"

namespace orrery::cuda {

namespace recurrent_cu {

constexpr int kConvolveThreads = 128, kGateThreads = 256, kMostThreads = 2 * kMostValueDim;

// The sum of x over a thread block of at most kMostThreads threads, the same bits in each. sums: (kMostThreads / 32), shared.
__device__ __forceinline__ float block_sum(float x, float* sums) {
  x = warp_sum(x);
  const int thread = static_cast<int>(threadIdx.x), n_warps = static_cast<int>(blockDim.x) / 32;
  __syncthreads();   // of an earlier sum
  if (thread % 32 == 0) sums[thread / 32] = x;
  __syncthreads();
  float sum = 0.0f;
  for (int i = 0; i < n_warps; ++i) sum += sums[i];
  return sum;
}
__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// A thread block has one head's channels of one row: query heads, key heads, value heads.
__global__ void __launch_bounds__(kConvolveThreads) convolve_kernel(StepView step, DeltaNet net, int step_rows) {
  const DeltaNetShape& s = net.shape;
  const int n_heads = 2 * s.n_key_heads + s.n_value_heads;
  const int row = static_cast<int>(blockIdx.x) / n_heads, head = static_cast<int>(blockIdx.x) % n_heads;
  const int n_keys = 2 * s.n_key_heads, keys = s.n_key_heads * s.key_dim, channels = 2 * keys + s.n_value_heads * s.value_dim;
  const int dim = head < n_keys ? s.key_dim : s.value_dim;
  const int first = head < n_keys ? head * s.key_dim : 2 * keys + (head - n_keys) * s.value_dim;
  const int in_step = row % step_rows, n_kept = s.n_taps - 1;
  const float* kept = of_sequence(step, step.sequence, step.rows[row].sequence)->state + net.state_at +
                      static_cast<int64_t>(s.n_value_heads * s.value_dim) * s.key_dim;
  float* out = net.c + static_cast<int64_t>(row) * channels + first;
  __shared__ float sums[kConvolveThreads / 32];
  float squares = 0.0f;
  for (int i = static_cast<int>(threadIdx.x); i < dim; i += kConvolveThreads) {
    const int channel = first + i;
    const float* weights = net.conv + static_cast<int64_t>(channel) * s.n_taps;
    float sum = 0.0f;
    for (int tap = 0; tap < s.n_taps; ++tap) {
      const int ago = n_kept - tap;
      const float input = in_step >= ago ? net.u[static_cast<int64_t>(row - ago) * channels + channel]
                                         : kept[static_cast<int64_t>(n_kept - (ago - in_step)) * channels + channel];
      sum = fmaf(input, weights[tap], sum);
    }
    const float value = sum * sigmoid(sum);
    squares = fmaf(value, value, squares);
    out[i] = value;
  }
  if (head >= n_keys) return;
  const float scale = 1.0f / (sqrtf(block_sum(squares, sums) + s.eps) * (head < s.n_key_heads ? sqrtf(static_cast<float>(s.key_dim)) : 1.0f));
  for (int i = static_cast<int>(threadIdx.x); i < dim; i += kConvolveThreads) out[i] *= scale;
}

// Blocks from n_value_heads on keep the convolution's last inputs, a channel a thread.
__global__ void __launch_bounds__(kMostThreads) delta_net_kernel(StepView step, DeltaNet net, int step_rows) {
  const DeltaNetShape& s = net.shape;
  const int thread = static_cast<int>(threadIdx.x), head = static_cast<int>(blockIdx.x), first_row = static_cast<int>(blockIdx.y) * step_rows;
  const int keys = s.n_key_heads * s.key_dim, values = s.n_value_heads * s.value_dim, channels = 2 * keys + values;
  float* const all = of_sequence(step, step.sequence, step.rows[first_row].sequence)->state + net.state_at;
  if (head >= s.n_value_heads) {
    const int channel = (head - s.n_value_heads) * static_cast<int>(blockDim.x) + thread, n_kept = s.n_taps - 1;
    if (channel >= channels) return;
    float* const kept = all + static_cast<int64_t>(values) * s.key_dim + channel;
    for (int i = 0; i < n_kept; ++i) {   // ascending: what is read has not been overwritten
      const int from = i + step_rows - n_kept;
      kept[static_cast<int64_t>(i) * channels] = from >= 0 ? net.u[static_cast<int64_t>(first_row + from) * channels + channel]
                                                           : kept[static_cast<int64_t>(i + step_rows) * channels];
    }
    return;
  }
  constexpr int kKeys = kMostKeyDim, kRows = kKeys / 2, kPitch = kRows + 1;   // of a thread; its keys lie in other banks than its neighbour's
  __shared__ float query[2 * kPitch], key[2 * kPitch], sums[kMostThreads / 32];
  const int j = thread / 2, half = thread % 2;
  const bool active = j < s.value_dim;
  float* const state = all + static_cast<int64_t>(head * s.key_dim + half * kRows) * s.value_dim + j;
  float column[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) column[i] = active && half * kRows + i < s.key_dim ? state[static_cast<int64_t>(i) * s.value_dim] : 0.0f;
  const float dt = net.dt[head], rate = net.decay[head], weight = active ? net.norm[j] : 0.0f;
  const int group = s.n_value_heads / s.n_key_heads, key_head = s.grouped ? head / group : head % s.n_key_heads;
  const int b_at = s.grouped ? key_head * 2 * group + head % group : head, a_at = s.grouped ? b_at + group : head;
  const float *own_query = query + half * kPitch, *own_key = key + half * kPitch;
  for (int row = first_row; row < first_row + step_rows; ++row) {
    const float* c = net.c + static_cast<int64_t>(row) * channels;
    __syncthreads();   // the last row has been computed
    for (int i = thread; i < kKeys; i += static_cast<int>(blockDim.x)) {
      const int at = i / kRows * kPitch + i % kRows;
      query[at] = i < s.key_dim ? c[key_head * s.key_dim + i] : 0.0f;
      key[at] = i < s.key_dim ? c[keys + key_head * s.key_dim + i] : 0.0f;
    }
    const int64_t gates = static_cast<int64_t>(row) * (s.grouped ? 2 * s.n_value_heads : s.n_value_heads);
    const float x = net.a[gates + a_at] + dt, softplus = fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x)));
    const float decay = expf(rate * softplus), beta = sigmoid(net.b[gates + b_at]);
    const float value = active ? c[2 * keys + head * s.value_dim + j] : 0.0f;
    __syncthreads();
    float read[2] = {0.0f, 0.0f}, got[2] = {0.0f, 0.0f};   // two sums, so that additions do not wait for one another
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      column[i] *= decay;
      read[i % 2] = fmaf(column[i], own_key[i], read[i % 2]);
    }
    float own = read[0] + read[1];
    const float lack = beta * (value - (own + __shfl_xor_sync(0xFFFFFFFFu, own, 1)));
    __syncwarp();   // so that the compiler reads keys again, and does not hold them in registers
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      column[i] = fmaf(own_key[i], lack, column[i]);
      got[i % 2] = fmaf(column[i], own_query[i], got[i % 2]);
    }
    own = got[0] + got[1];
    const float out = own + __shfl_xor_sync(0xFFFFFFFFu, own, 1);
    const bool counts = active && half == 0;
    const float scale = norm_scale(block_sum(counts ? out * out : 0.0f, sums), s.value_dim, s.eps);
    const int64_t to = static_cast<int64_t>(row) * values + head * s.value_dim + j;
    if (counts) {
      const float z = net.z[to];
      net.out[to] = out * scale * weight * (z * sigmoid(z));
    }
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i)
    if (active && half * kRows + i < s.key_dim) state[static_cast<int64_t>(i) * s.value_dim] = column[i];
}

__global__ void __launch_bounds__(kGateThreads) split_gates_kernel(ConstRows x, Rows q, float* gates, int n, int head_dim) {
  const int64_t row = blockIdx.y;
  const int i = static_cast<int>(blockIdx.x) * kGateThreads + static_cast<int>(threadIdx.x);
  if (i >= n) return;
  const float* from = x.data + row * x.stride + static_cast<int64_t>(i / head_dim) * 2 * head_dim + i % head_dim;
  q.data[row * q.stride + i] = from[0];
  gates[row * n + i] = from[head_dim];
}

__global__ void __launch_bounds__(kGateThreads) apply_gates_kernel(float* x, const float* gates, int64_t n) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kGateThreads + threadIdx.x;
  if (i < n) x[i] *= sigmoid(gates[i]);
}

unsigned blocks(int64_t n, int threads) { return static_cast<unsigned>((n + threads - 1) / threads); }

}  // namespace recurrent_cu
using namespace recurrent_cu;

void delta_net(Queue& queue, const StepView& step, const DeltaNet& net, int32_t n_rows, int32_t step_rows) {
  const DeltaNetShape& s = net.shape;
  const int n_heads = 2 * s.n_key_heads + s.n_value_heads, threads = (2 * s.value_dim + 31) / 32 * 32;
  launch<convolve_kernel>(queue, {Dim3(static_cast<unsigned>(n_rows * n_heads)), Dim3(kConvolveThreads)}, step, net, step_rows);
  const Geometry geometry = {Dim3(static_cast<unsigned>(s.n_value_heads) + blocks(s.channels(), threads), static_cast<unsigned>(n_rows / step_rows)),
                             Dim3(static_cast<unsigned>(threads))};
  launch<delta_net_kernel>(queue, geometry, step, net, step_rows);
}

void split_gates(Queue& queue, ConstRows x, Rows q, float* gates, int32_t n_rows, int32_t n_heads, int32_t head_dim) {
  const int n = n_heads * head_dim;
  launch<split_gates_kernel>(queue, {Dim3(recurrent_cu::blocks(n, kGateThreads), static_cast<unsigned>(n_rows)), Dim3(kGateThreads)}, x, q, gates, n,
                             head_dim);
}

void apply_gates(Queue& queue, float* x, const float* gates, int64_t n) {
  launch<apply_gates_kernel>(queue, {Dim3(recurrent_cu::blocks(n, kGateThreads)), Dim3(kGateThreads)}, x, gates, n);
}

}  // namespace orrery::cuda
