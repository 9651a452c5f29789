// Kernels of recurrent layers, written over V: the convolution of channels, the delta rule, Mamba2's recurrence, and gates of attention. Include
// after products/rows.h.
//
// The state of a value head is 64 KB for 128 by 128 floats. A pass takes kAtOnce vectors of its columns with their sums in registers, and kRowsAtOnce
// rows of the step one after another: so these columns stay in the first-level cache. Each row passes over them twice: decay and read, write and
// read; in Mamba2 once. Each sum goes over the rows of the state in order, so its bits do not depend on V's width.
#pragma once

#include "runtime/cpu/products/rows.h"

namespace orrery::cpu {
namespace {

inline void convolve_head(const ConvolveTask& t) {
  for (int32_t i = 0; i < t.dim; ++i) {
    float sum = 0;
    for (int32_t tap = 0; tap < t.n_taps; ++tap) sum += t.inputs[tap][i] * t.weights[i * t.n_taps + tap];
    t.out[i] = t.bias ? sum + t.bias[i] : sum;
  }
  if (t.gate) {
    for (int32_t i = 0; i < t.dim; ++i) t.out[i] *= t.gate[i];
    return;
  }
  const auto silu = [](V::F x) { return swiglu_vector(x, V::set(1.0f)); };
  int32_t i = 0;
  for (; i + V::kLanes <= t.dim; i += V::kLanes) V::store(t.out + i, silu(V::load(t.out + i)));
  if (i < t.dim) V::store_part(t.out + i, silu(V::load_part(t.out + i, t.dim - i)), t.dim - i);
  if (t.scale <= 0) return;
  const float scale = static_cast<float>(static_cast<double>(t.scale) / __builtin_sqrt(V::sum_squares(t.out, t.dim) + static_cast<double>(t.eps)));
  for (i = 0; i < t.dim; ++i) t.out[i] *= scale;
}

constexpr int32_t kRowsAtOnce = 16;

// Columns [j, j + kAtOnce vectors) of the state, or `left` columns of one vector. kReads: else there is neither a query nor an output.
template <int kAtOnce, bool kPart, bool kReads>
inline void delta_columns(const DeltaTask& t, int32_t j, int left, const DeltaGates& gates, const float* q, const float* k, const float* v,
                          float* out) {
  const auto load = [left](const float* p) { return kPart ? V::load_part(p, left) : V::load(p); };
  const auto store = [left](float* p, V::F x) { kPart ? V::store_part(p, x, left) : V::store(p, x); };
  const V::F decay = V::set(gates.decay);
  V::F sums[kAtOnce];
  for (int n = 0; n < kAtOnce; ++n) sums[n] = V::zero();
  for (int32_t i = 0; i < t.key_dim; ++i) {
    float* row = t.state + int64_t{i} * t.value_dim + j;
    const V::F key = V::set(k[i]);
    for (int n = 0; n < kAtOnce; ++n) {
      const V::F s = V::mul(load(row + n * V::kLanes), decay);
      store(row + n * V::kLanes, s);
      sums[n] = V::fma(s, key, sums[n]);
    }
  }
  V::F d[kAtOnce];
  for (int n = 0; n < kAtOnce; ++n) {
    d[n] = V::mul(V::set(gates.beta), V::sub(load(v + j + n * V::kLanes), sums[n]));
    sums[n] = V::zero();
  }
  for (int32_t i = 0; i < t.key_dim; ++i) {
    float* row = t.state + int64_t{i} * t.value_dim + j;
    const V::F key = V::set(k[i]), query = kReads ? V::set(q[i]) : key;
    for (int n = 0; n < kAtOnce; ++n) {
      const V::F s = V::fma(key, d[n], load(row + n * V::kLanes));
      store(row + n * V::kLanes, s);
      if (kReads) sums[n] = V::fma(s, query, sums[n]);
    }
  }
  if (!kReads) return;
  for (int n = 0; n < kAtOnce; ++n) store(out + j + n * V::kLanes, sums[n]);
}

template <bool kReads>
inline void delta_rows(const DeltaTask& t, int32_t first, int32_t end) {
  constexpr int kAtOnce = 4;
  DeltaGates gates[kRowsAtOnce];
  for (int32_t row = first; row < end; ++row) gates[row - first] = delta_gates(t, row);
  // f(its gates, q, k, v, out), one row after another.
  const auto each = [&](const auto& f) {
    for (int32_t row = first; row < end; ++row)
      f(gates[row - first], kReads ? t.q + row * t.stride : nullptr, t.k + row * t.stride, t.v + row * t.stride,
        kReads ? t.out + row * t.value_stride : nullptr);
  };
  int32_t j = 0;
  for (; j + kAtOnce * V::kLanes <= t.value_dim; j += kAtOnce * V::kLanes)
    each([&](const DeltaGates& g, const float* q, const float* k, const float* v, float* out) { delta_columns<kAtOnce, false, kReads>(t, j, 0, g, q, k, v, out); });
  for (; j + V::kLanes <= t.value_dim; j += V::kLanes)
    each([&](const DeltaGates& g, const float* q, const float* k, const float* v, float* out) { delta_columns<1, false, kReads>(t, j, 0, g, q, k, v, out); });
  if (j < t.value_dim)
    each([&](const DeltaGates& g, const float* q, const float* k, const float* v, float* out) {
      delta_columns<1, true, kReads>(t, j, t.value_dim - j, g, q, k, v, out);
    });
  for (int32_t row = first; row < end && kReads; ++row) {
    float* out = t.out + row * t.value_stride;
    rms_norm(out, t.norm, out, t.value_dim, t.eps);
    swiglu(t.z + row * t.value_stride, out, out, t.value_dim);
  }
}

inline void delta_head(const DeltaTask& t) {
  for (int32_t first = 0; first < t.n_rows; first += kRowsAtOnce) {
    const int32_t end = first + kRowsAtOnce < t.n_rows ? first + kRowsAtOnce : t.n_rows;
    t.out ? delta_rows<true>(t, first, end) : delta_rows<false>(t, first, end);
  }
}

// As delta_columns().
template <int kAtOnce, bool kPart, bool kReads>
inline void mamba2_columns(const Mamba2Task& t, int32_t j, int left, const Mamba2Gates& gates, const float* x, const float* b, const float* c,
                           float* out) {
  const auto load = [left](const float* p) { return kPart ? V::load_part(p, left) : V::load(p); };
  const auto store = [left](float* p, V::F v) { kPart ? V::store_part(p, v, left) : V::store(p, v); };
  const V::F decay = V::set(gates.decay);
  V::F own[kAtOnce], stepped[kAtOnce], sums[kAtOnce];
  for (int n = 0; n < kAtOnce; ++n) {
    own[n] = load(x + j + n * V::kLanes);
    stepped[n] = V::mul(own[n], V::set(gates.step));
    sums[n] = V::zero();
  }
  for (int32_t i = 0; i < t.state_dim; ++i) {
    float* row = t.state + int64_t{i} * t.head_dim + j;
    const V::F written = V::set(b[i]), read = kReads ? V::set(c[i]) : written;
    for (int n = 0; n < kAtOnce; ++n) {
      const V::F s = V::fma(written, stepped[n], V::mul(load(row + n * V::kLanes), decay));
      store(row + n * V::kLanes, s);
      if (kReads) sums[n] = V::fma(s, read, sums[n]);
    }
  }
  if (!kReads) return;
  for (int n = 0; n < kAtOnce; ++n) store(out + j + n * V::kLanes, V::fma(V::set(t.skip), own[n], sums[n]));
}

template <bool kReads>
inline void mamba2_rows(const Mamba2Task& t, int32_t first, int32_t end) {
  constexpr int kAtOnce = 4;
  Mamba2Gates gates[kRowsAtOnce];
  for (int32_t row = first; row < end; ++row) gates[row - first] = mamba2_gates(t, row);
  // f(its gates, x, b, c, out), one row after another.
  const auto each = [&](const auto& f) {
    for (int32_t row = first; row < end; ++row)
      f(gates[row - first], t.x + row * t.stride, t.b + row * t.stride, kReads ? t.c + row * t.stride : nullptr,
        kReads ? t.out + row * t.out_stride : nullptr);
  };
  int32_t j = 0;
  for (; j + kAtOnce * V::kLanes <= t.head_dim; j += kAtOnce * V::kLanes)
    each([&](const Mamba2Gates& g, const float* x, const float* b, const float* c, float* out) { mamba2_columns<kAtOnce, false, kReads>(t, j, 0, g, x, b, c, out); });
  for (; j + V::kLanes <= t.head_dim; j += V::kLanes)
    each([&](const Mamba2Gates& g, const float* x, const float* b, const float* c, float* out) { mamba2_columns<1, false, kReads>(t, j, 0, g, x, b, c, out); });
  if (j < t.head_dim)
    each([&](const Mamba2Gates& g, const float* x, const float* b, const float* c, float* out) {
      mamba2_columns<1, true, kReads>(t, j, t.head_dim - j, g, x, b, c, out);
    });
}

inline void mamba2_head(const Mamba2Task& t) {
  for (int32_t first = 0; first < t.n_rows; first += kRowsAtOnce) {
    const int32_t end = first + kRowsAtOnce < t.n_rows ? first + kRowsAtOnce : t.n_rows;
    t.out ? mamba2_rows<true>(t, first, end) : mamba2_rows<false>(t, first, end);
  }
}

inline void apply_gates(float* x, const float* gates, int64_t n) {
  const auto gated = [](V::F value, V::F gate) {
    return V::div(value, V::add(V::set(1.0f), exponential(V::sub(V::zero(), gate))));
  };
  int64_t i = 0;
  for (; i + V::kLanes <= n; i += V::kLanes) V::store(x + i, gated(V::load(x + i), V::load(gates + i)));
  if (i < n) {
    const int left = static_cast<int>(n - i);
    V::store_part(x + i, gated(V::load_part(x + i, left), V::load_part(gates + i, left)), left);
  }
}

}  // namespace
}  // namespace orrery::cpu
