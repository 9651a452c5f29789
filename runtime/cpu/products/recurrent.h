// Kernels of recurrent layers, written over V: the convolution of channels, the delta rule, Mamba2's recurrence, and gates of attention.
// Include after products/rows.h.
//
// The state of a value head is 64 KB for 128 by 128 floats. A pass takes a few vectors of its columns with their sums in registers, and
// kRowsAtOnce rows of the step one after another: so these columns stay in the first-level cache. A row of the delta rule passes over them
// once: it writes, reads for its query, and reads for the next row's key; only the first row's key needs a pass before. In Mamba2 each row
// passes over them once, too. Each sum goes over the rows of the state in order, so its bits do not depend on V's width.
#pragma once

#include "runtime/cpu/products/rows.h"

namespace orrery::cpu {
namespace {

template <int kTaps>
inline void convolve(const ConvolveTask& t) {
  const float* inputs[kTaps];
  for (int tap = 0; tap < kTaps; ++tap) inputs[tap] = t.inputs[tap];
  for (int32_t i = 0; i < t.dim; ++i) {
    float sum = 0;
    for (int tap = 0; tap < kTaps; ++tap) sum += inputs[tap][i] * t.weights[i * kTaps + tap];
    t.out[i] = sum;
  }
}
inline void convolve_head(const ConvolveTask& t) {
  switch (t.n_taps) {  // a number that the compiler knows, so that it makes vectors
    case 4: convolve<4>(t); break;
    case 3: convolve<3>(t); break;
    default:
      for (int32_t i = 0; i < t.dim; ++i) {
        float sum = 0;
        for (int32_t tap = 0; tap < t.n_taps; ++tap) sum += t.inputs[tap][i] * t.weights[i * t.n_taps + tap];
        t.out[i] = sum;
      }
  }
  if (t.bias)
    for (int32_t i = 0; i < t.dim; ++i) t.out[i] += t.bias[i];
  if (t.gate) {
    for (int32_t i = 0; i < t.dim; ++i) t.out[i] *= t.gate[i];
    return;
  }
  const auto silu = [](V::F x) { return swiglu_vector(x, V::set(1.0f)); };
  int32_t i = 0;
  for (; i + V::kLanes <= t.dim; i += V::kLanes) V::store(t.out + i, silu(V::load(t.out + i)));
  if (i < t.dim) V::store_part(t.out + i, silu(V::load_part(t.out + i, t.dim - i)), t.dim - i);
  if (t.scale <= 0) return;
  const float scale =
      static_cast<float>(static_cast<double>(t.scale) / __builtin_sqrt(V::sum_squares(t.out, t.dim) + static_cast<double>(t.eps)));
  for (i = 0; i < t.dim; ++i) t.out[i] *= scale;
}

constexpr int32_t kRowsAtOnce = 16;

// What a row brings to the delta rule: keys and queries (key_dim), values and outputs from the pass's first column on.
struct DeltaRow {
  DeltaGates gates;
  const float *q, *k, *v;
  float* out;
};

// Columns [j, j + kAtOnce vectors) of the state, or `left` columns of one vector, through n rows. kReads: else there is neither a query nor
// an output.
template <int kAtOnce, bool kPart, bool kReads>
class DeltaColumns {
 public:
  DeltaColumns(const DeltaTask& t, int32_t j, int left) : state_(t.state + j), stride_(t.value_dim), key_dim_(t.key_dim), left_(left) {}

  void run(const DeltaRow* rows, int32_t n) {
    V::F sums[kAtOnce];
    read(rows[0], sums);
    for (int32_t row = 0; row + 1 < n; ++row) write<true>(rows[row], rows[row + 1], sums);
    write<false>(rows[n - 1], rows[n - 1], sums);
  }

 private:
  V::F load(const float* p) const { return kPart ? V::load_part(p, left_) : V::load(p); }
  void store(float* p, V::F x) const { kPart ? V::store_part(p, x, left_) : V::store(p, x); }

  // sums = the decayed state read by the row's key.
  void read(const DeltaRow& row, V::F* sums) const {
    const V::F decay = V::set(row.gates.decay);
    for (int n = 0; n < kAtOnce; ++n) sums[n] = V::zero();
    const float* state = state_;
    for (int32_t i = 0; i < key_dim_; ++i, state += stride_) {
      const V::F key = V::set(row.k[i]);
      for (int n = 0; n < kAtOnce; ++n) sums[n] = V::fma(V::mul(load(state + n * V::kLanes), decay), key, sums[n]);
    }
  }
  // The row's decay and what it writes, the read for its query, and with kNext the next row's read(), to sums.
  template <bool kNext>
  void write(const DeltaRow& row, const DeltaRow& next, V::F* sums) const {
    const V::F decay = V::set(row.gates.decay), next_decay = V::set(next.gates.decay);
    V::F d[kAtOnce], out[kAtOnce];
    for (int n = 0; n < kAtOnce; ++n) {
      d[n] = V::mul(V::set(row.gates.beta), V::sub(load(row.v + n * V::kLanes), sums[n]));
      sums[n] = out[n] = V::zero();
    }
    float* state = state_;
    for (int32_t i = 0; i < key_dim_; ++i, state += stride_) {
      const V::F key = V::set(row.k[i]), query = kReads ? V::set(row.q[i]) : key, next_key = kNext ? V::set(next.k[i]) : key;
      for (int n = 0; n < kAtOnce; ++n) {
        const V::F s = V::fma(key, d[n], V::mul(load(state + n * V::kLanes), decay));
        store(state + n * V::kLanes, s);
        if (kReads) out[n] = V::fma(s, query, out[n]);
        if (kNext) sums[n] = V::fma(V::mul(s, next_decay), next_key, sums[n]);
      }
    }
    for (int n = 0; n < kAtOnce && kReads; ++n) store(row.out + n * V::kLanes, out[n]);
  }

  float* const state_;
  const int64_t stride_;
  const int32_t key_dim_;
  const int left_;
};

template <bool kReads>
inline void delta_rows(const DeltaTask& t, int32_t first, int32_t end) {
  DeltaRow rows[kRowsAtOnce];
  const int32_t n = end - first;
  for (int32_t i = 0; i < n; ++i) {
    const int64_t row = first + i;
    rows[i] = {delta_gates(t, row), kReads ? t.q + row * t.stride : nullptr, t.k + row * t.stride, t.v + row * t.stride,
               kReads ? t.out + row * t.value_stride : nullptr};
  }
  const auto advance = [&](int32_t columns) {
    for (int32_t i = 0; i < n; ++i) rows[i].v += columns, rows[i].out = kReads ? rows[i].out + columns : nullptr;
  };
  // One row alone waits for memory, and takes more of a line's neighbours at once. Several rows have three sums for each vector in
  // registers.
  constexpr int kAlone = 4, kTogether = 2;
  int32_t j = 0;
  for (; n == 1 && j + kAlone * V::kLanes <= t.value_dim; j += kAlone * V::kLanes, advance(kAlone * V::kLanes))
    DeltaColumns<kAlone, false, kReads>(t, j, 0).run(rows, n);
  for (; j + kTogether * V::kLanes <= t.value_dim; j += kTogether * V::kLanes, advance(kTogether * V::kLanes))
    DeltaColumns<kTogether, false, kReads>(t, j, 0).run(rows, n);
  for (; j + V::kLanes <= t.value_dim; j += V::kLanes, advance(V::kLanes)) DeltaColumns<1, false, kReads>(t, j, 0).run(rows, n);
  if (j < t.value_dim) DeltaColumns<1, true, kReads>(t, j, t.value_dim - j).run(rows, n);
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
inline void mamba2_columns(const Mamba2Task& t, int32_t j, int left, const Mamba2Gates& gates, const float* x, const float* b,
                           const float* c, float* out) {
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
    each([&](const Mamba2Gates& g, const float* x, const float* b, const float* c, float* out) {
      mamba2_columns<kAtOnce, false, kReads>(t, j, 0, g, x, b, c, out);
    });
  for (; j + V::kLanes <= t.head_dim; j += V::kLanes)
    each([&](const Mamba2Gates& g, const float* x, const float* b, const float* c, float* out) {
      mamba2_columns<1, false, kReads>(t, j, 0, g, x, b, c, out);
    });
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
  const auto gated = [](V::F value, V::F gate) { return V::div(value, V::add(V::set(1.0f), exponential(V::sub(V::zero(), gate)))); };
  int64_t i = 0;
  for (; i + V::kLanes <= n; i += V::kLanes) V::store(x + i, gated(V::load(x + i), V::load(gates + i)));
  if (i < n) {
    const int left = static_cast<int>(n - i);
    V::store_part(x + i, gated(V::load_part(x + i, left), V::load_part(gates + i, left)), left);
  }
}

}  // namespace
}  // namespace orrery::cpu
