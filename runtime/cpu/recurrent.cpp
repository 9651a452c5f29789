#include "runtime/cpu/recurrent.h"

#include <algorithm>
#include <cmath>

#include "runtime/base/checked.h"
#include "runtime/cpu/items.h"

namespace orrery::cpu {

namespace {

static_assert(ConvolveTask::kMostTaps == kMostTaps);

// Items are stretches of channels where no head cuts them. Whole vectors for every instruction set.
constexpr int64_t kStretch = 256;

// Several steps have a row each.
struct Steps {
  Steps(const RecurrentWork& work, Span<const Ptr<float>> its, uint64_t at)
      : states(its), state_at(at), n(static_cast<int64_t>(its.size())), rows(n > 1 ? 1 : work.n_rows) {}
  float* state(int64_t step) const { return host(states[static_cast<size_t>(step)]) + state_at; }
  Span<const Ptr<float>> states;
  uint64_t state_at;
  int64_t n, rows;
};

// A causal convolution over time, channel by channel.
struct Convolution {
  const Steps& steps;
  int64_t channels;
  int32_t n_taps;
  const float* u;             // (n_rows, channels), rows `stride` floats apart
  int64_t stride;
  const float* weights;       // (channels, n_taps)
  int64_t kept_at;            // where the last n_taps - 1 inputs begin in the layer's state, oldest first

  // Of a row, for `dim` channels from `first` on. The caller sets what comes behind the sum.
  ConvolveTask task(int64_t row, int64_t first, int64_t dim) const {
    const int64_t step = row / steps.rows, in_step = row % steps.rows, n_kept = n_taps - 1;
    const float* kept = steps.state(step) + kept_at;
    ConvolveTask task{};
    for (int32_t tap = 0; tap < n_taps; ++tap) {
      const int64_t ago = n_kept - tap;
      task.inputs[tap] = (in_step >= ago ? u + (row - ago) * stride : kept + (n_kept - (ago - in_step)) * channels) + first;
    }
    task.weights = weights + first * n_taps;
    task.n_taps = n_taps;
    task.dim = static_cast<int32_t>(dim);
    return task;
  }
  // Keeps the last rows' inputs, once all rows are computed.
  void keep() const {
    const int64_t n_kept = n_taps - 1, stay = std::max<int64_t>(n_kept - steps.rows, 0);   // the kept rows that are still among the last ones
    for (int64_t step = 0; step < steps.n; ++step) {
      float* kept = steps.state(step) + kept_at;
      if (stay > 0) std::copy(kept + (n_kept - stay) * channels, kept + n_kept * channels, kept);
      for (int64_t i = stay; i < n_kept; ++i) {
        const float* from = u + ((step + 1) * steps.rows - n_kept + i) * stride;
        std::copy(from, from + channels, kept + i * channels);
      }
    }
  }
};

}  // namespace

void delta_net(const RecurrentWork& work, const DeltaNetShape& shape, const DeltaNetWeights& weights, const DeltaNetRows& rows,
               Span<const Ptr<float>> states, uint64_t state_at) {
  const Steps steps(work, states, state_at);
  const int64_t step_rows = steps.rows, channels = shape.channels(), n_heads = 2 * shape.n_key_heads + shape.n_value_heads;
  float* c = host(rows.c);
  const Convolution convolution{steps, channels, shape.n_taps, host(rows.u), channels, host(weights.conv), int64_t{shape.values()} * shape.key_dim};
  const float query_scale = 1.0f / std::sqrt(static_cast<float>(shape.key_dim));
  for_items(work, work.n_rows * n_heads, int64_t{shape.n_taps} * shape.key_dim, [&](int64_t item) {
    const int64_t row = item / n_heads, head = item % n_heads, n_keys = 2 * shape.n_key_heads;
    const int64_t first = head < n_keys ? head * shape.key_dim : int64_t{2} * shape.keys() + (head - n_keys) * shape.value_dim;
    ConvolveTask task = convolution.task(row, first, head < n_keys ? shape.key_dim : shape.value_dim);
    task.out = c + row * channels + first;
    task.scale = head < shape.n_key_heads ? query_scale : head < n_keys ? 1.0f : 0.0f;
    task.eps = shape.eps;
    work.kernels.convolve_head(task);
  });
  const int64_t n_values = shape.n_value_heads, state_floats = int64_t{shape.key_dim} * shape.value_dim;
  for_items(work, steps.n * n_values, 4 * state_floats * step_rows, [&](int64_t item) {
    const int64_t step = item / n_values, head = item % n_values, key_head = shape.key_head(static_cast<int32_t>(head)), row = step * step_rows;
    const float* at = c + row * channels;
    DeltaTask task{};
    task.n_rows = static_cast<int32_t>(step_rows), task.key_dim = shape.key_dim, task.value_dim = shape.value_dim;
    task.state = steps.state(step) + head * state_floats;
    task.q = at + key_head * shape.key_dim;
    task.k = at + shape.keys() + key_head * shape.key_dim;
    task.v = at + int64_t{2} * shape.keys() + head * shape.value_dim;
    task.stride = channels;
    task.gate_stride = shape.gate_stride();
    task.a = host(rows.a) + row * task.gate_stride + shape.a_at(static_cast<int32_t>(head));
    task.b = host(rows.b) + row * task.gate_stride + shape.b_at(static_cast<int32_t>(head));
    task.dt = host(weights.dt)[head], task.decay = host(weights.decay)[head];
    task.value_stride = shape.values();
    task.z = host(rows.z) + row * task.value_stride + head * shape.value_dim;
    task.norm = host(weights.norm);
    task.out = host(rows.out) + row * task.value_stride + head * shape.value_dim;
    task.eps = shape.eps;
    work.kernels.delta_head(task);
  });
  convolution.keep();
}

void mamba2(const RecurrentWork& work, const Mamba2Shape& shape, const Mamba2Weights& weights, const Mamba2Rows& rows,
            Span<const Ptr<float>> states, uint64_t state_at) {
  const Steps steps(work, states, state_at);
  const int64_t step_rows = steps.rows, inner = shape.inner(), channels = shape.channels(), stride = shape.projected();
  const int64_t head_floats = int64_t{shape.head_dim} * shape.state_dim;
  const float* projected = host(rows.projected);
  float *c = host(rows.c), *out = host(rows.out);
  const Convolution convolution{steps, channels, shape.n_taps, projected + inner, stride, host(weights.conv), inner * shape.state_dim};
  const int64_t stretches = div_up(channels, kStretch);
  for_items(work, work.n_rows * stretches, shape.n_taps * kStretch, [&](int64_t item) {
    const int64_t row = item / stretches, first = item % stretches * kStretch;
    ConvolveTask task = convolution.task(row, first, std::min(kStretch, channels - first));
    task.bias = host(weights.conv_bias) + first;
    task.out = c + row * channels + first;
    work.kernels.convolve_head(task);
  });
  for_items(work, steps.n * shape.n_heads, 2 * head_floats * step_rows, [&](int64_t item) {
    const int64_t step = item / shape.n_heads, head = item % shape.n_heads, row = step * step_rows;
    const int64_t group_at = inner + int64_t{shape.group_of(static_cast<int32_t>(head))} * shape.state_dim;
    Mamba2Task task{};
    task.n_rows = static_cast<int32_t>(step_rows), task.state_dim = shape.state_dim, task.head_dim = shape.head_dim;
    task.state = steps.state(step) + head * head_floats;
    task.x = c + row * channels + head * shape.head_dim;
    task.b = c + row * channels + group_at;
    task.c = task.b + int64_t{shape.n_groups} * shape.state_dim;
    task.stride = channels;
    task.t = projected + row * stride + inner + channels + head;
    task.t_stride = stride;
    task.dt = host(weights.dt)[head], task.decay = host(weights.decay)[head], task.skip = host(weights.skip)[head];
    task.out = out + row * inner + head * shape.head_dim;
    task.out_stride = inner;
    work.kernels.mamba2_head(task);
  });
  const int64_t width = shape.group_width();
  for_items(work, work.n_rows * shape.n_groups, 8 * width, [&](int64_t item) {
    const int64_t row = item / shape.n_groups, at = item % shape.n_groups * width;
    float* y = out + row * inner + at;
    work.kernels.swiglu(projected + row * stride + at, y, y, width);
    work.kernels.rms_norm(y, host(weights.norm) + at, y, width, shape.eps);
  });
  convolution.keep();
}

void short_conv(const RecurrentWork& work, const ShortConvShape& shape, const float* conv, const ShortConvRows& rows,
                Span<const Ptr<float>> states, uint64_t state_at) {
  const Steps steps(work, states, state_at);
  const int64_t n = shape.n_channels, stride = 3 * n, stretches = div_up(n, kStretch);
  const float* projected = host(rows.projected);
  float* u = host(rows.u);
  for_items(work, work.n_rows * stretches, kStretch, [&](int64_t item) {
    const int64_t row = item / stretches, first = item % stretches * kStretch, end = std::min(n, first + kStretch);
    const float *b = projected + row * stride, *x = b + 2 * n;
    for (int64_t i = first; i < end; ++i) u[row * n + i] = b[i] * x[i];
  });
  const Convolution convolution{steps, n, shape.n_taps, u, n, conv, 0};
  for_items(work, work.n_rows * stretches, (shape.n_taps + 1) * kStretch, [&](int64_t item) {
    const int64_t row = item / stretches, first = item % stretches * kStretch;
    ConvolveTask task = convolution.task(row, first, std::min(kStretch, n - first));
    task.gate = projected + row * stride + n + first;
    task.out = host(rows.out) + row * n + first;
    work.kernels.convolve_head(task);
  });
  convolution.keep();
}

void split_gates(const RecurrentWork& work, const float* x, int32_t n_heads, int32_t head_dim, float* q, int64_t q_stride, float* gates) {
  const int64_t dim = head_dim;
  for_items(work, work.n_rows, 4 * n_heads * dim, [&](int64_t row) {
    for (int64_t head = 0; head < n_heads; ++head) {
      const float* from = x + (row * n_heads + head) * 2 * dim;
      std::copy(from, from + dim, q + row * q_stride + head * dim);
      std::copy(from + dim, from + 2 * dim, gates + (row * n_heads + head) * dim);
    }
  });
}

void apply_gates(const RecurrentWork& work, float* x, const float* gates, int64_t n) {
  for_items(work, work.n_rows, 3 * n, [&](int64_t row) { work.kernels.apply_gates(x + row * n, gates + row * n, n); });
}

}  // namespace orrery::cpu
