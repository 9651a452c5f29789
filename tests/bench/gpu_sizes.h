// What bench_gpu.cpp measures on: sizes, weights, and how a time is taken.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <vector>

#include "runtime/base/tensor_type.h"
#include "tests/bench/shapes.h"

namespace orrery::bench {

// Everything that has a size, as it is measured and as it is tried.
struct Sizes {
  bool tiny = false, late = false;
  int32_t n_embd = 4096, n_layers = 32, n_heads = 32, n_kv_heads = 8, head_dim = 128, n_ff = 14336, n_vocab = 128256;
  int32_t rows = 2048, short_context = 8, long_context = 32768, longest_context = 131072, prefill_long = 8192;
  uint64_t copied_bytes = uint64_t{1} << 30, least_weights = uint64_t{256} << 20, arena = uint64_t{40} << 30;
  uint64_t link_bytes = uint64_t{64} << 20, gathered_from = uint64_t{2} << 30, gathered_near = uint64_t{256} << 20,
           gathered_bytes = uint64_t{256} << 20;
  int32_t nodes = 1000, turns = 1 << 12, attend_layers = 8;
  double sample_seconds = 0.02;
  int samples = 5;
};
inline Sizes tiny_sizes() {
  Sizes s;
  s.tiny = true;
  s.n_embd = 256, s.n_layers = 2, s.n_heads = 8, s.n_kv_heads = 2, s.head_dim = 32, s.n_ff = 256, s.n_vocab = 40;
  s.rows = 16, s.short_context = 8, s.long_context = 128, s.longest_context = 256, s.prefill_long = 32;
  s.copied_bytes = 1 << 16, s.least_weights = 1, s.arena = uint64_t{96} << 20;
  s.link_bytes = 1 << 16, s.gathered_from = 1 << 18, s.gathered_near = 1 << 16, s.gathered_bytes = 1 << 16;
  s.nodes = 4, s.turns = 2, s.attend_layers = 2;
  s.sample_seconds = 0, s.samples = 1;
  return s;
}

// Seconds of one of run(n)'s n times, which returns when they are done.
template <class F>
double seconds(const Sizes& s, const F& run) {
  const auto time = [&](int n) {
    const auto begin = std::chrono::steady_clock::now();
    run(n);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  run(1);
  const int n = static_cast<int>(std::clamp(std::ceil(s.sample_seconds / std::max(time(1), 1e-9)), 1.0, 1000.0));
  std::vector<double> samples;
  for (int i = 0; i < s.samples; ++i) samples.push_back(time(n) / n);
  std::sort(samples.begin(), samples.end());
  return samples[samples.size() / 2];
}

// Weights of a model: all of one type, or Q4_K with more bits for some (shapes.h).
struct Kind {
  const char* name;
  const char* key;  // of predictions
  TensorType type;
  bool more_bits;
  TensorType output() const { return more_bits ? TensorType::q6_k : type; }
  TensorType value_and_down(int32_t layer, int32_t n_layers) const {
    return more_bits && q4_k_m_has_more_bits(layer, n_layers) ? TensorType::q6_k : type;
  }
};
constexpr Kind kKinds[] = {
    {"Q4_K_M", "8b", TensorType::q4_k, true}, {"Q8_0", "8b-q8_0", TensorType::q8_0, false}, {"F16", "8b-f16", TensorType::f16, false}};

}  // namespace orrery::bench
