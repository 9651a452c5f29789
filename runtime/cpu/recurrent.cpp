#include "runtime/cpu/recurrent.h"

#include <algorithm>
#include <cmath>

#include "runtime/base/checked.h"
#include "runtime/cpu/items.h"

namespace orrery::cpu {

namespace {

// Where row r of a step finds the convolution's inputs: of row r - 1, r - 2, ..., behind the first of which stand the state's.
class Inputs {
 public:
  Inputs(const DeltaNetShape& shape, const float* u, float* state, int64_t first_row)
      : channels_(shape.channels()), n_kept_(shape.n_taps - 1), u_(u + first_row * channels_),
        kept_(state + int64_t{shape.values()} * shape.key_dim) {}
  // ago: 0: the row's own.
  const float* of(int64_t row, int64_t ago) const {
    return row >= ago ? u_ + (row - ago) * channels_ : kept_ + (n_kept_ - (ago - row)) * channels_;
  }
  // Keeps the last rows' inputs.
  void keep(int64_t n_rows) {
    const int64_t stay = std::max<int64_t>(n_kept_ - n_rows, 0);   // the kept rows that are still among the last ones
    if (stay > 0) std::copy(kept_ + (n_kept_ - stay) * channels_, kept_ + n_kept_ * channels_, kept_);
    const int64_t fresh = n_kept_ - stay;
    std::copy(u_ + (n_rows - fresh) * channels_, u_ + n_rows * channels_, kept_ + stay * channels_);
  }

 private:
  int64_t channels_, n_kept_;
  const float* u_;
  float* kept_;
};

}  // namespace

void delta_net(const RecurrentWork& work, const DeltaNetShape& shape, const DeltaNetWeights& weights, const DeltaNetRows& rows,
               Span<const Ptr<float>> states, uint64_t state_at) {
  // Several steps have a row each.
  const auto n_steps = static_cast<int64_t>(states.size()), step_rows = n_steps > 1 ? 1 : work.n_rows;
  const int64_t channels = shape.channels(), n_heads = 2 * shape.n_key_heads + shape.n_value_heads;
  const auto state = [&](int64_t step) { return host(states[static_cast<size_t>(step)]) + state_at; };
  const float* u = host(rows.u);
  float* c = host(rows.c);
  const float query_scale = 1.0f / std::sqrt(static_cast<float>(shape.key_dim));
  for_items(work, work.n_rows * n_heads, int64_t{shape.n_taps} * shape.key_dim, [&](int64_t item) {
    const int64_t row = item / n_heads, head = item % n_heads, step = row / step_rows, in_step = row % step_rows;
    const int64_t n_keys = 2 * shape.n_key_heads;
    const int64_t first = head < n_keys ? head * shape.key_dim : int64_t{2} * shape.keys() + (head - n_keys) * shape.value_dim;
    const Inputs inputs(shape, u, state(step), step * step_rows);
    ConvolveTask task{};
    for (int32_t tap = 0; tap < shape.n_taps; ++tap) task.inputs[tap] = inputs.of(in_step, shape.n_taps - 1 - tap) + first;
    task.weights = host(weights.conv) + first * shape.n_taps;
    task.n_taps = shape.n_taps;
    task.dim = head < n_keys ? shape.key_dim : shape.value_dim;
    task.out = c + row * channels + first;
    task.scale = head < shape.n_key_heads ? query_scale : head < n_keys ? 1.0f : 0.0f;
    task.eps = shape.eps;
    work.kernels.convolve_head(task);
  });
  const int64_t n_values = shape.n_value_heads, state_floats = int64_t{shape.key_dim} * shape.value_dim;
  for_items(work, n_steps * n_values, 4 * state_floats * step_rows, [&](int64_t item) {
    const int64_t step = item / n_values, head = item % n_values, key_head = shape.key_head(static_cast<int32_t>(head)), row = step * step_rows;
    const float* at = c + row * channels;
    DeltaTask task{};
    task.n_rows = static_cast<int32_t>(step_rows), task.key_dim = shape.key_dim, task.value_dim = shape.value_dim;
    task.state = state(step) + head * state_floats;
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
  for (int64_t step = 0; step < n_steps; ++step) Inputs(shape, u, state(step), step * step_rows).keep(step_rows);
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
