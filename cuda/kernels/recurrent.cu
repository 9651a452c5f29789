// Recurrent layers (runtime/backend/recurrent.h): gated delta nets, Mamba2, short convolutions; and the gates of attention beside them.
//
// Delta nets: a thread block has one value head of one step, two neighbouring threads a column of the head's state: key_dim / 2 floats each
// in registers, from the first row to the last. A warp loads 16 consecutive floats of two rows of the state. At decode the state is read
// and written once, 128 KB for a head of 128 by 128, all loads under way at once: the memory's rate is the limit, as far as n_value_heads
// blocks reach it. At prefill a row takes 2 key_dim multiplications a thread, with q and k broadcast from shared memory, and four barriers.
//
// Mamba2: the same with one pass over the state and two barriers; the groups' norms are a kernel of their own, because a group has several
// heads.
//
// Convolutions of Mamba2 and of short convolutions: a thread has a channel of kConvolveRows rows. The thread of a step's first rows is the
// only one that reads the inputs of earlier steps, so it may write the new ones, and no kernel follows.
//
// A row has a number in its step: from 0 on the step's own rows; below 0 those that are replayed, whose inputs are kept. How many there are
// stands in device memory, so that a step's list of operations does not depend on them. A delta net and Mamba2 write the state behind the
// last row that changes it, and go on with it in registers.
#include "cuda/device/launch.h"
#include "cuda/kernels/kernels.h"
#include "cuda/kernels/kv.cuh"
#include "cuda/device/ptx.h"

namespace orrery::cuda {

namespace recurrent_cu {

constexpr int kConvolveThreads = 128, kGateThreads = 256, kMostThreads = 2 * kMostValueDim;
constexpr int kConvolveRows = 8;
static_assert(kConvolveRows >= kMostTaps - 1, "only a step's first rows meet inputs of earlier steps");

// The sum of x over a thread block of at most kMostThreads threads, the same bits in each. sums: (kMostThreads / 32), shared.
__device__ __forceinline__ float block_sum(float x, float* sums) {
  x = warp_sum(x);
  const int thread = static_cast<int>(threadIdx.x), n_warps = static_cast<int>(blockDim.x) / 32;
  __syncthreads();  // of an earlier sum
  if (thread % 32 == 0) sums[thread / 32] = x;
  __syncthreads();
  float sum = 0.0f;
  for (int i = 0; i < n_warps; ++i) sum += sums[i];
  return sum;
}
__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// The inputs of a convolution's channel. own(row): of a row of the step, from 0 on.
template <class Own>
struct ChannelInputs {
  const Own& own;
  float* kept;  // of earlier steps, `channels` floats apart, oldest first
  int64_t channels;
  float* guessed;  // of the replayed rows; then of the guessed rows, `stride` floats apart
  int64_t stride;
  int n_kept, n_replayed;

  __device__ __forceinline__ float operator[](int row) const {
    if (row >= 0) return own(row);
    return row >= -n_replayed ? guessed[(n_replayed + row) * stride] : kept[(n_kept + n_replayed + row) * channels];
  }
  // Once all rows are computed: the inputs of the last rows that change the state, then those of the guessed rows.
  __device__ __forceinline__ void keep(const RecurrentRows& rows) const {
    for (int i = 0; i < n_kept; ++i)
      kept[i * channels] = (*this)[i + rows.n_final - n_kept];  // ascending: what is read has not been overwritten
    for (int row = rows.n_final; row < rows.step_rows; ++row) guessed[(row - rows.n_final) * stride] = own(row);
  }
};
// Of the sequence that a row of the step belongs to.
__device__ __forceinline__ int n_replayed_of(const DeviceSequence& sequence, const RecurrentRows& rows) {
  return rows.most_replayed > 0 ? sequence.n_replayed : 0;
}

// A thread block has one head's channels of one row: query heads, key heads, value heads. Behind the n_rows rows come the replayed ones.
__global__ void __launch_bounds__(kConvolveThreads, 4) convolve_kernel(StepView step, DeltaNet net, int n_rows) {
  const DeltaNetShape& s = net.shape;
  const int n_heads = 2 * s.n_key_heads + s.n_value_heads;
  const int place = static_cast<int>(blockIdx.x) / n_heads, head = static_cast<int>(blockIdx.x) % n_heads;
  const bool replayed = place >= n_rows;
  const DeviceSequence& sequence = *of_sequence(step, step.sequence, step.rows[replayed ? 0 : place].sequence);
  const int n_replayed = n_replayed_of(sequence, net.rows);
  if (replayed && place - n_rows >= n_replayed) return;
  const int row = replayed ? place - n_rows - n_replayed : place % net.rows.step_rows;
  const int first_row = replayed ? 0 : place - row;
  const int n_keys = 2 * s.n_key_heads, keys = s.n_key_heads * s.key_dim, channels = 2 * keys + s.n_value_heads * s.value_dim;
  const int dim = head < n_keys ? s.key_dim : s.value_dim;
  const int first = head < n_keys ? head * s.key_dim : 2 * keys + (head - n_keys) * s.value_dim;
  const int n_kept = s.n_taps - 1;
  float* const kept = sequence.state + net.at.state + static_cast<int64_t>(s.n_value_heads * s.value_dim) * s.key_dim;
  float* out = net.c + static_cast<int64_t>(place) * channels + first;
  __shared__ float sums[kConvolveThreads / 32];
  float squares = 0.0f;
  for (int i = static_cast<int>(threadIdx.x); i < dim; i += kConvolveThreads) {
    const int channel = first + i;
    const float* weights = net.conv + static_cast<int64_t>(channel) * s.n_taps;
    const auto own = [&](int its) { return net.u[static_cast<int64_t>(first_row + its) * channels + channel]; };
    const ChannelInputs<decltype(own)> inputs = {
        own, kept + channel, channels, sequence.guessed + net.at.guessed + channel, channels + 2 * s.n_value_heads, n_kept, n_replayed};
    float sum = 0.0f;
    for (int tap = 0; tap < s.n_taps; ++tap) sum = fmaf(inputs[row - (n_kept - tap)], weights[tap], sum);
    const float value = sum * sigmoid(sum);
    squares = fmaf(value, value, squares);
    out[i] = value;
  }
  if (head >= n_keys) return;
  const float scale =
      1.0f / (sqrtf(block_sum(squares, sums) + s.eps) * (head < s.n_key_heads ? sqrtf(static_cast<float>(s.key_dim)) : 1.0f));
  for (int i = static_cast<int>(threadIdx.x); i < dim; i += kConvolveThreads) out[i] *= scale;
}

// Blocks from n_value_heads on keep the convolution's inputs, a channel a thread.
__global__ void __launch_bounds__(kMostThreads) delta_net_kernel(StepView step, DeltaNet net, int n_rows) {
  const DeltaNetShape& s = net.shape;
  const int step_rows = net.rows.step_rows, n_final = net.rows.n_final;
  const int thread = static_cast<int>(threadIdx.x), head = static_cast<int>(blockIdx.x),
            first_row = static_cast<int>(blockIdx.y) * step_rows;
  const int keys = s.n_key_heads * s.key_dim, values = s.n_value_heads * s.value_dim, channels = 2 * keys + values;
  const DeviceSequence& sequence = *of_sequence(step, step.sequence, step.rows[first_row].sequence);
  const int n_replayed = n_replayed_of(sequence, net.rows), guessed_stride = channels + 2 * s.n_value_heads;
  float *const all = sequence.state + net.at.state, *const guessed = sequence.guessed + net.at.guessed;
  if (head >= s.n_value_heads) {
    const int channel = (head - s.n_value_heads) * static_cast<int>(blockDim.x) + thread;
    if (channel >= channels) return;
    const auto own = [&](int row) { return net.u[static_cast<int64_t>(first_row + row) * channels + channel]; };
    const ChannelInputs<decltype(own)> inputs = {
        own,       all + static_cast<int64_t>(values) * s.key_dim + channel, channels, guessed + channel, guessed_stride, s.n_taps - 1,
        n_replayed};
    inputs.keep(net.rows);
    return;
  }
  constexpr int kKeys = kMostKeyDim, kRows = kKeys / 2,
                kPitch = kRows + 1;  // of a thread; its keys lie in other banks than its neighbour's
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
  const int n_gates = s.grouped ? 2 * s.n_value_heads : s.n_value_heads, kept_b_at = s.grouped ? b_at : s.n_value_heads + b_at;
  const float *own_query = query + half * kPitch, *own_key = key + half * kPitch;
  for (int row = -n_replayed; row < step_rows; ++row) {
    const bool replayed = row < 0;
    const float* c = net.c + static_cast<int64_t>(replayed ? n_rows + n_replayed + row : first_row + row) * channels;
    __syncthreads();  // the last row has been computed
    for (int i = thread; i < kKeys; i += static_cast<int>(blockDim.x)) {
      const int at = i / kRows * kPitch + i % kRows;
      query[at] = i < s.key_dim ? c[key_head * s.key_dim + i] : 0.0f;
      key[at] = i < s.key_dim ? c[keys + key_head * s.key_dim + i] : 0.0f;
    }
    const int64_t gates = static_cast<int64_t>(first_row + row) * n_gates;
    const float* const kept = guessed + static_cast<int64_t>(n_replayed + row) * guessed_stride + channels;  // of a replayed row
    const float x = (replayed ? kept[a_at] : net.a[gates + a_at]) + dt, softplus = fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x)));
    const float decay = expf(rate * softplus), beta = sigmoid(replayed ? kept[kept_b_at] : net.b[gates + b_at]);
    const float value = active ? c[2 * keys + head * s.value_dim + j] : 0.0f;
    __syncthreads();
    float read[2] = {0.0f, 0.0f}, got[2] = {0.0f, 0.0f};  // two sums, so that additions do not wait for one another
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      column[i] *= decay;
      read[i % 2] = fmaf(column[i], own_key[i], read[i % 2]);
    }
    float own = read[0] + read[1];
    const float lack = beta * (value - (own + __shfl_xor_sync(0xFFFFFFFFu, own, 1)));
    __syncwarp();  // so that the compiler reads keys again, and does not hold them in registers
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      column[i] = fmaf(own_key[i], lack, column[i]);
      got[i % 2] = fmaf(column[i], own_query[i], got[i % 2]);
    }
    if (row + 1 == n_final) {
#pragma unroll
      for (int i = 0; i < kRows; ++i)
        if (active && half * kRows + i < s.key_dim) state[static_cast<int64_t>(i) * s.value_dim] = column[i];
    }
    if (replayed) continue;
    own = got[0] + got[1];
    const float out = own + __shfl_xor_sync(0xFFFFFFFFu, own, 1);
    const bool counts = active && half == 0;
    const float scale = norm_scale(block_sum(counts ? out * out : 0.0f, sums), s.value_dim, s.eps);
    const int64_t to = static_cast<int64_t>(first_row + row) * values + head * s.value_dim + j;
    if (counts) {
      const float z = net.z[to];
      net.out[to] = out * scale * weight * (z * sigmoid(z));
    }
  }
  // All threads have read what was kept: each row of the step has waited for them.
  for (int row = n_final + thread; row < step_rows; row += static_cast<int>(blockDim.x)) {
    const int64_t gates = static_cast<int64_t>(first_row + row) * n_gates;
    float* const kept = guessed + static_cast<int64_t>(row - n_final) * guessed_stride + channels;
    kept[a_at] = net.a[gates + a_at];
    kept[kept_b_at] = net.b[gates + b_at];
  }
}

// The first of the step's rows that a thread block of a convolution has, by blockIdx.y.
struct ConvolvedRows {
  int first_row, chunk, end;  // the step's first row; the chunk's rows are [chunk * kConvolveRows, end) of the step
};
__device__ __forceinline__ ConvolvedRows convolved_rows(int step_rows) {
  const int chunks = (step_rows + kConvolveRows - 1) / kConvolveRows, chunk = static_cast<int>(blockIdx.y) % chunks;
  const int end = step_rows < (chunk + 1) * kConvolveRows ? step_rows : (chunk + 1) * kConvolveRows;
  return {static_cast<int>(blockIdx.y) / chunks * step_rows, chunk, end};
}
// A convolution's channel over the rows of a thread. output(row, sum).
template <class Own, class Output>
__device__ __forceinline__ void convolve_rows(const float* weights, int n_taps, const ChannelInputs<Own>& inputs, const ConvolvedRows& rows,
                                              int first, const Output& output) {
  for (int row = first; row < rows.end; ++row) {
    float sum = 0.0f;
    for (int tap = 0; tap < n_taps; ++tap) sum = fmaf(inputs[row - (n_taps - 1 - tap)], weights[tap], sum);
    output(row, sum);
  }
}

__global__ void __launch_bounds__(kConvolveThreads, 4) short_conv_kernel(StepView step, ShortConv net) {
  const int64_t n = net.shape.n_channels, channel = static_cast<int64_t>(blockIdx.x) * kConvolveThreads + threadIdx.x;
  if (channel >= n) return;
  const ConvolvedRows rows = convolved_rows(net.rows.step_rows);
  const DeviceSequence& sequence = *of_sequence(step, step.sequence, step.rows[rows.first_row].sequence);
  const auto part = [&](int row, int which) {
    return net.projected[(static_cast<int64_t>(rows.first_row + row) * 3 + which) * n + channel];
  };
  const auto own = [&](int row) { return part(row, 0) * part(row, 2); };
  const ChannelInputs<decltype(own)> inputs = {own,
                                               sequence.state + net.at.state + channel,
                                               n,
                                               sequence.guessed + net.at.guessed + channel,
                                               n,
                                               net.shape.n_taps - 1,
                                               n_replayed_of(sequence, net.rows)};
  convolve_rows(net.conv + channel * net.shape.n_taps, net.shape.n_taps, inputs, rows,
                rows.chunk * kConvolveRows,  // replayed rows have no output
                [&](int row, float sum) { net.out[static_cast<int64_t>(rows.first_row + row) * n + channel] = part(row, 1) * sum; });
  if (rows.chunk == 0) inputs.keep(net.rows);
}

__global__ void __launch_bounds__(kConvolveThreads, 4) mamba2_convolve_kernel(StepView step, Mamba2 net, int n_rows) {
  const Mamba2Shape& s = net.shape;
  const int64_t inner = static_cast<int64_t>(s.n_heads) * s.head_dim, channels = inner + 2 * static_cast<int64_t>(s.n_groups) * s.state_dim;
  const int64_t channel = static_cast<int64_t>(blockIdx.x) * kConvolveThreads + threadIdx.x, stride = inner + channels + s.n_heads;
  if (channel >= channels) return;
  const ConvolvedRows rows = convolved_rows(net.rows.step_rows);
  const DeviceSequence& sequence = *of_sequence(step, step.sequence, step.rows[rows.first_row].sequence);
  const int n_replayed = n_replayed_of(sequence, net.rows);
  const float bias = net.conv_bias[channel];
  const auto own = [&](int row) { return net.projected[(rows.first_row + row) * stride + inner + channel]; };
  const ChannelInputs<decltype(own)> inputs = {own,
                                               sequence.state + net.at.state + inner * s.state_dim + channel,
                                               channels,
                                               sequence.guessed + net.at.guessed + channel,
                                               channels + s.n_heads,
                                               s.n_taps - 1,
                                               n_replayed};
  const int first = rows.chunk == 0 ? -n_replayed : rows.chunk * kConvolveRows;
  convolve_rows(net.conv + channel * s.n_taps, s.n_taps, inputs, rows, first, [&](int row, float sum) {
    const int64_t place = row < 0 ? n_rows + n_replayed + row : rows.first_row + row;
    net.c[place * channels + channel] = (sum + bias) * sigmoid(sum + bias);
  });
  if (rows.chunk == 0) inputs.keep(net.rows);
}

__global__ void __launch_bounds__(kMostThreads) mamba2_kernel(StepView step, Mamba2 net, int n_rows) {
  const Mamba2Shape& s = net.shape;
  const int step_rows = net.rows.step_rows, n_final = net.rows.n_final;
  const int thread = static_cast<int>(threadIdx.x), head = static_cast<int>(blockIdx.x),
            first_row = static_cast<int>(blockIdx.y) * step_rows;
  const int inner = s.n_heads * s.head_dim, all_groups = s.n_groups * s.state_dim, channels = inner + 2 * all_groups;
  const int64_t stride = static_cast<int64_t>(inner) + channels + s.n_heads, guessed_stride = static_cast<int64_t>(channels) + s.n_heads;
  constexpr int kRows = kMostKeyDim / 2, kPitch = kRows + 1;  // of a thread; its rows lie in other banks than its neighbour's
  __shared__ float written[2 * kPitch], read[2 * kPitch];
  const int j = thread / 2, half = thread % 2;
  const bool active = j < s.head_dim;
  const DeviceSequence& sequence = *of_sequence(step, step.sequence, step.rows[first_row].sequence);
  const int n_replayed = n_replayed_of(sequence, net.rows);
  float* const guessed = sequence.guessed + net.at.guessed + channels + head;
  float* const state = sequence.state + net.at.state + static_cast<int64_t>(head * s.state_dim + half * kRows) * s.head_dim + j;
  float column[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) column[i] = active && half * kRows + i < s.state_dim ? state[static_cast<int64_t>(i) * s.head_dim] : 0.0f;
  const float dt = net.dt[head], rate = net.decay[head], skip = net.skip[head];
  const int group_at = inner + head / (s.n_heads / s.n_groups) * s.state_dim;
  const float *own_written = written + half * kPitch, *own_read = read + half * kPitch;
  for (int row = -n_replayed; row < step_rows; ++row) {
    const bool replayed = row < 0;
    const float* c = net.c + static_cast<int64_t>(replayed ? n_rows + n_replayed + row : first_row + row) * channels;
    __syncthreads();  // the last row has been computed
    for (int i = thread; i < 2 * kRows; i += static_cast<int>(blockDim.x)) {
      const int at = i / kRows * kPitch + i % kRows;
      written[at] = i < s.state_dim ? c[group_at + i] : 0.0f;
      read[at] = i < s.state_dim ? c[group_at + all_groups + i] : 0.0f;
    }
    const float t =
        (replayed ? guessed[(n_replayed + row) * guessed_stride] : net.projected[(first_row + row) * stride + inner + channels + head]) +
        dt;
    const float softplus = fmaxf(t, 0.0f) + log1pf(expf(-fabsf(t)));
    const float decay = expf(rate * softplus), x = active ? c[head * s.head_dim + j] : 0.0f, stepped = softplus * x;
    __syncthreads();
    float got[2] = {0.0f, 0.0f};  // two sums, so that additions do not wait for one another
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      column[i] = fmaf(own_written[i], stepped, column[i] * decay);
      got[i % 2] = fmaf(column[i], own_read[i], got[i % 2]);
    }
    if (row + 1 == n_final) {
#pragma unroll
      for (int i = 0; i < kRows; ++i)
        if (active && half * kRows + i < s.state_dim) state[static_cast<int64_t>(i) * s.head_dim] = column[i];
    }
    const float own = got[0] + got[1], sum = own + __shfl_xor_sync(0xFFFFFFFFu, own, 1);
    if (active && half == 0 && !replayed)
      net.out[static_cast<int64_t>(first_row + row) * inner + head * s.head_dim + j] = fmaf(skip, x, sum);
  }
  // All threads have read what was kept: each row of the step has waited for them.
  for (int row = n_final + thread; row < step_rows; row += static_cast<int>(blockDim.x))
    guessed[(row - n_final) * guessed_stride] = net.projected[(first_row + row) * stride + inner + channels + head];
}

// A thread block has a group of a row.
__global__ void __launch_bounds__(kGateThreads) mamba2_norm_kernel(Mamba2 net) {
  const Mamba2Shape& s = net.shape;
  const int inner = s.n_heads * s.head_dim, width = inner / s.n_groups, at = static_cast<int>(blockIdx.x) * width;
  const int64_t row = blockIdx.y, stride = 2 * static_cast<int64_t>(inner) + 2 * s.n_groups * s.state_dim + s.n_heads;
  const float *z = net.projected + row * stride + at, *norm = net.norm + at;
  float* y = net.out + row * inner + at;
  __shared__ float sums[kGateThreads / 32];
  float squares = 0.0f;
  for (int i = static_cast<int>(threadIdx.x); i < width; i += kGateThreads) {
    const float value = y[i] * (z[i] * sigmoid(z[i]));
    squares = fmaf(value, value, squares);
    y[i] = value;
  }
  const float scale = norm_scale(block_sum(squares, sums), width, s.eps);
  for (int i = static_cast<int>(threadIdx.x); i < width; i += kGateThreads) y[i] = y[i] * scale * norm[i];
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

// Of convolved_rows().
Geometry convolution(int64_t channels, int32_t n_rows, int32_t step_rows) {
  return {Dim3(blocks(channels, kConvolveThreads), static_cast<unsigned>(n_rows / step_rows) * blocks(step_rows, kConvolveRows)),
          Dim3(kConvolveThreads)};
}

}  // namespace recurrent_cu
using namespace recurrent_cu;

void delta_net(Queue& queue, const StepView& step, const DeltaNet& net, int32_t n_rows) {
  const DeltaNetShape& s = net.shape;
  const int n_heads = 2 * s.n_key_heads + s.n_value_heads, threads = (2 * s.value_dim + 31) / 32 * 32;
  launch<convolve_kernel>(queue, {Dim3(static_cast<unsigned>((n_rows + net.rows.most_replayed) * n_heads)), Dim3(kConvolveThreads)}, step,
                          net, n_rows);
  const Geometry geometry = {
      Dim3(static_cast<unsigned>(s.n_value_heads) + blocks(s.channels(), threads), static_cast<unsigned>(n_rows / net.rows.step_rows)),
      Dim3(static_cast<unsigned>(threads))};
  launch<delta_net_kernel>(queue, geometry, step, net, n_rows);
}

void mamba2(Queue& queue, const StepView& step, const Mamba2& net, int32_t n_rows) {
  const Mamba2Shape& s = net.shape;
  const unsigned rows = static_cast<unsigned>(n_rows), steps = static_cast<unsigned>(n_rows / net.rows.step_rows);
  launch<mamba2_convolve_kernel>(queue, convolution(s.channels(), n_rows, net.rows.step_rows), step, net, n_rows);
  launch<mamba2_kernel>(queue,
                        {Dim3(static_cast<unsigned>(s.n_heads), steps), Dim3(static_cast<unsigned>((2 * s.head_dim + 31) / 32 * 32))}, step,
                        net, n_rows);
  launch<mamba2_norm_kernel>(queue, {Dim3(static_cast<unsigned>(s.n_groups), rows), Dim3(kGateThreads)}, net);
}

void short_conv(Queue& queue, const StepView& step, const ShortConv& net, int32_t n_rows) {
  launch<short_conv_kernel>(queue, convolution(net.shape.n_channels, n_rows, net.rows.step_rows), step, net);
}

void split_gates(Queue& queue, ConstRows x, Rows q, float* gates, int32_t n_rows, int32_t n_heads, int32_t head_dim) {
  const int n = n_heads * head_dim;
  launch<split_gates_kernel>(queue, {Dim3(recurrent_cu::blocks(n, kGateThreads), static_cast<unsigned>(n_rows)), Dim3(kGateThreads)}, x, q,
                             gates, n, head_dim);
}

void apply_gates(Queue& queue, float* x, const float* gates, int64_t n) {
  launch<apply_gates_kernel>(queue, {Dim3(recurrent_cu::blocks(n, kGateThreads)), Dim3(kGateThreads)}, x, gates, n);
}

}  // namespace orrery::cuda
