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

// Several steps have a row each. A row of a step has a number: from 0 on its own ones; below 0 those that are replayed before them.
struct Steps {
  Steps(const RecurrentWork& work, Span<const SequenceState> its, const StatePlace& place)
      : states(its), at(place), n(static_cast<int64_t>(its.size())), rows(n > 1 ? 1 : work.n_rows),
        n_replayed(n > 1 ? 0 : its[0].n_replayed), n_final(n > 1 ? 1 : its[0].final_rows(rows)), n_all(work.n_rows + n_replayed) {}
  float* state(int64_t step) const { return host(states[static_cast<size_t>(step)].data) + at.state; }
  float* guessed() const { return host(states[0].guessed) + at.guessed; }  // if there are replayed or guessed rows
  // Of a place among n_all: the steps' rows, then the replayed ones.
  int64_t step_of(int64_t place) const { return place < n * rows ? place / rows : 0; }
  int64_t row_of(int64_t place) const { return place < n * rows ? place % rows : place - n_all; }

  Span<const SequenceState> states;
  StatePlace at;
  int64_t n, rows, n_replayed, n_final, n_all;
};

// A causal convolution over time, channel by channel.
struct Convolution {
  const Steps& steps;
  int64_t channels;
  int32_t n_taps;
  const float* u;  // (n_rows, channels), rows `stride` floats apart
  int64_t stride;
  const float* weights;    // (channels, n_taps)
  int64_t kept_at;         // where the last n_taps - 1 inputs begin in the layer's state, oldest first
  int64_t guessed_stride;  // of the kept rows, which begin with their inputs here

  // The inputs of a row, or of one before the first row.
  const float* inputs(int64_t step, int64_t row) const {
    if (row >= 0) return u + (step * steps.rows + row) * stride;
    if (row >= -steps.n_replayed) return steps.guessed() + (steps.n_replayed + row) * guessed_stride;
    return steps.state(step) + kept_at + (n_taps - 1 + steps.n_replayed + row) * channels;
  }
  // Of a row, for `dim` channels from `first` on. The caller sets what comes behind the sum.
  ConvolveTask task(int64_t step, int64_t row, int64_t first, int64_t dim) const {
    ConvolveTask task{};
    for (int32_t tap = 0; tap < n_taps; ++tap) task.inputs[tap] = inputs(step, row - (n_taps - 1 - tap)) + first;
    task.weights = weights + first * n_taps;
    task.n_taps = n_taps;
    task.dim = static_cast<int32_t>(dim);
    return task;
  }
  // Keeps the inputs of the last final rows, then those of the guessed rows, once all rows are computed.
  void keep() const {
    const int64_t n_kept = n_taps - 1;
    for (int64_t step = 0; step < steps.n; ++step) {
      float* kept = steps.state(step) + kept_at;
      for (int64_t i = 0; i < n_kept; ++i) {  // ascending: what is read has not been overwritten
        const float* from = inputs(step, steps.n_final - n_kept + i);
        std::copy(from, from + channels, kept + i * channels);
      }
    }
    keep_guessed(u, stride, channels, 0);
  }
  // Of each guessed row, n floats of a table: to `at` in its kept inputs.
  void keep_guessed(const float* table, int64_t table_stride, int64_t n, int64_t at) const {
    for (int64_t row = steps.n_final; row < steps.rows; ++row)
      std::copy_n(table + row * table_stride, n, steps.guessed() + (row - steps.n_final) * guessed_stride + at);
  }
};

// Computes a head's rows by run(task of the replayed rows), run(task of rows). The replayed rows and the final ones change the state; the
// others a copy. task(row, n): of n rows from this one on. copy: room for the head's state.
template <class MakeTask, class Run>
void run_head(const Steps& steps, int64_t state_floats, float* copy, const MakeTask& task, const Run& run) {
  if (steps.n_replayed > 0) run(task(-steps.n_replayed, steps.n_replayed));
  auto own = task(0, steps.n_final);
  run(own);
  if (steps.n_final == steps.rows) return;
  auto guessed = task(steps.n_final, steps.rows - steps.n_final);
  std::copy_n(own.state, state_floats, copy);
  guessed.state = copy;
  run(guessed);
}

}  // namespace

void delta_net(const RecurrentWork& work, const DeltaNetShape& shape, const DeltaNetWeights& weights, const DeltaNetRows& rows,
               Span<const SequenceState> states, const StatePlace& at) {
  const Steps steps(work, states, at);
  const int64_t channels = shape.channels(), n_heads = 2 * shape.n_key_heads + shape.n_value_heads, n_gates = shape.gate_stride();
  float* c = host(rows.c);
  const Convolution convolution{steps,
                                channels,
                                shape.n_taps,
                                host(rows.u),
                                channels,
                                host(weights.conv),
                                int64_t{shape.values()} * shape.key_dim,
                                shape.guessed_floats()};
  const float query_scale = 1.0f / std::sqrt(static_cast<float>(shape.key_dim));
  for_items(work, steps.n_all * n_heads, int64_t{shape.n_taps} * shape.key_dim, [&](int64_t item) {
    const int64_t place = item / n_heads, head = item % n_heads, n_keys = 2 * shape.n_key_heads;
    const int64_t first = head < n_keys ? head * shape.key_dim : int64_t{2} * shape.keys() + (head - n_keys) * shape.value_dim;
    ConvolveTask task = convolution.task(steps.step_of(place), steps.row_of(place), first, head < n_keys ? shape.key_dim : shape.value_dim);
    task.out = c + place * channels + first;
    task.scale = head < shape.n_key_heads ? query_scale : head < n_keys ? 1.0f : 0.0f;
    task.eps = shape.eps;
    work.kernels.convolve_head(task);
  });
  const int64_t n_values = shape.n_value_heads, state_floats = int64_t{shape.key_dim} * shape.value_dim;
  for_items(work, steps.n * n_values, 4 * state_floats * (steps.rows + steps.n_replayed), [&](int64_t item, int32_t thread) {
    const int64_t step = item / n_values, head = item % n_values, key_head = shape.key_head(static_cast<int32_t>(head));
    const int64_t a_at = shape.a_at(static_cast<int32_t>(head)), b_at = shape.b_at(static_cast<int32_t>(head));
    const auto task_of = [&](int64_t first, int64_t n) {
      const bool replayed = first < 0;
      const int64_t row = step * steps.rows + first;
      const float* convolved = c + (replayed ? steps.n_all + first : row) * channels;
      DeltaTask task{};
      task.n_rows = static_cast<int32_t>(n), task.key_dim = shape.key_dim, task.value_dim = shape.value_dim;
      task.state = steps.state(step) + head * state_floats;
      task.q = convolved + key_head * shape.key_dim;
      task.k = convolved + shape.keys() + key_head * shape.key_dim;
      task.v = convolved + int64_t{2} * shape.keys() + head * shape.value_dim;
      task.stride = channels;
      task.dt = host(weights.dt)[head], task.decay = host(weights.decay)[head];
      if (replayed) {
        const float* gates = steps.guessed() + channels;
        task.a = gates + a_at, task.b = gates + (shape.grouped ? 0 : n_gates) + b_at;
        task.gate_stride = shape.guessed_floats();
        return task;
      }
      task.a = host(rows.a) + row * n_gates + a_at, task.b = host(rows.b) + row * n_gates + b_at;
      task.gate_stride = n_gates;
      task.value_stride = shape.values();
      task.z = host(rows.z) + row * task.value_stride + head * shape.value_dim;
      task.norm = host(weights.norm);
      task.out = host(rows.out) + row * task.value_stride + head * shape.value_dim;
      task.eps = shape.eps;
      return task;
    };
    run_head(steps, state_floats, work.scratch(thread), task_of, work.kernels.delta_head);
  });
  convolution.keep();
  convolution.keep_guessed(host(rows.a), n_gates, n_gates, channels);
  if (!shape.grouped) convolution.keep_guessed(host(rows.b), n_gates, n_gates, channels + n_gates);
}

void mamba2(const RecurrentWork& work, const Mamba2Shape& shape, const Mamba2Weights& weights, const Mamba2Rows& rows,
            Span<const SequenceState> states, const StatePlace& at) {
  const Steps steps(work, states, at);
  const int64_t inner = shape.inner(), channels = shape.channels(), stride = shape.projected();
  const int64_t head_floats = int64_t{shape.head_dim} * shape.state_dim;
  const float* projected = host(rows.projected);
  float *c = host(rows.c), *out = host(rows.out);
  const Convolution convolution{
      steps, channels, shape.n_taps, projected + inner, stride, host(weights.conv), inner * shape.state_dim, shape.guessed_floats()};
  const int64_t stretches = div_up(channels, kStretch);
  for_items(work, steps.n_all * stretches, shape.n_taps * kStretch, [&](int64_t item) {
    const int64_t place = item / stretches, first = item % stretches * kStretch;
    ConvolveTask task = convolution.task(steps.step_of(place), steps.row_of(place), first, std::min(kStretch, channels - first));
    task.bias = host(weights.conv_bias) + first;
    task.out = c + place * channels + first;
    work.kernels.convolve_head(task);
  });
  for_items(work, steps.n * shape.n_heads, 2 * head_floats * (steps.rows + steps.n_replayed), [&](int64_t item, int32_t thread) {
    const int64_t step = item / shape.n_heads, head = item % shape.n_heads;
    const int64_t group_at = inner + int64_t{shape.group_of(static_cast<int32_t>(head))} * shape.state_dim;
    const auto task_of = [&](int64_t first, int64_t n) {
      const bool replayed = first < 0;
      const int64_t row = step * steps.rows + first;
      const float* convolved = c + (replayed ? steps.n_all + first : row) * channels;
      Mamba2Task task{};
      task.n_rows = static_cast<int32_t>(n), task.state_dim = shape.state_dim, task.head_dim = shape.head_dim;
      task.state = steps.state(step) + head * head_floats;
      task.x = convolved + head * shape.head_dim;
      task.b = convolved + group_at;
      task.c = task.b + int64_t{shape.n_groups} * shape.state_dim;
      task.stride = channels;
      task.dt = host(weights.dt)[head], task.decay = host(weights.decay)[head], task.skip = host(weights.skip)[head];
      task.t = replayed ? steps.guessed() + channels + head : projected + row * stride + inner + channels + head;
      task.t_stride = replayed ? shape.guessed_floats() : stride;
      task.out = replayed ? nullptr : out + row * inner + head * shape.head_dim;
      task.out_stride = inner;
      return task;
    };
    run_head(steps, head_floats, work.scratch(thread), task_of, work.kernels.mamba2_head);
  });
  const int64_t width = shape.group_width();
  for_items(work, work.n_rows * shape.n_groups, 8 * width, [&](int64_t item) {
    const int64_t row = item / shape.n_groups, first = item % shape.n_groups * width;
    float* y = out + row * inner + first;
    work.kernels.swiglu(projected + row * stride + first, y, y, width);
    work.kernels.rms_norm(y, host(weights.norm) + first, y, width, shape.eps);
  });
  convolution.keep();
  convolution.keep_guessed(projected + inner + channels, stride, shape.n_heads, channels);
}

void short_conv(const RecurrentWork& work, const ShortConvShape& shape, const float* conv, const ShortConvRows& rows,
                Span<const SequenceState> states, const StatePlace& at) {
  const Steps steps(work, states, at);
  const int64_t n = shape.n_channels, stride = 3 * n, stretches = div_up(n, kStretch);
  const float* projected = host(rows.projected);
  float* u = host(rows.u);
  for_items(work, work.n_rows * stretches, kStretch, [&](int64_t item) {
    const int64_t row = item / stretches, first = item % stretches * kStretch, end = std::min(n, first + kStretch);
    const float *b = projected + row * stride, *x = b + 2 * n;
    for (int64_t i = first; i < end; ++i) u[row * n + i] = b[i] * x[i];
  });
  const Convolution convolution{steps, n, shape.n_taps, u, n, conv, 0, shape.guessed_floats()};
  for_items(work, work.n_rows * stretches, (shape.n_taps + 1) * kStretch, [&](int64_t item) {  // replayed rows have no output
    const int64_t row = item / stretches, first = item % stretches * kStretch;
    ConvolveTask task = convolution.task(steps.step_of(row), steps.row_of(row), first, std::min(kStretch, n - first));
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
