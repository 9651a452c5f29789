// Score: moments of the attention weights of a window of queries. CAKE scores keys by mean and variance, and layers by entropy and
// variance.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/base/span.h"
#include "runtime/base/status.h"
#include "runtime/policy/score/score.h"

namespace orrery::policy {

// Weights of a window of queries over the keys before the window: (n_rows, n_heads, n). Rows of heads lie `stride` floats apart.
struct WindowWeights {
  const float* rows = nullptr;
  uint64_t n_rows = 0, n_heads = 0, n = 0, stride = 0;
};

// Mean and unbiased variance over the rows, (n_heads, n) each; the variance of a single row is 0. And the sum of the entropies
// -a log(a + 1e-10).
struct Moments {
  std::vector<double> mean, variance;
  double entropy = 0;
  void measure(const WindowWeights& x) {
    const size_t n_parts = begin(x);
    for (size_t i = 0; i < n_parts; ++i) measure_part(x, i);
    finish();
  }
  // The same in parts, which may run in any order and in parallel: begin() returns their number.
  size_t begin(const WindowWeights& x);
  void measure_part(const WindowWeights& x, size_t part);
  void finish();
  // out (n_heads, n) = mean + gamma variance.
  void scores(double gamma, Span<float> out) const;

 private:
  std::vector<double> entropies_;  // of parts
};

// CAKE: how dispersed a layer's attention is, summed over KV heads, query heads and keys. Dispersed layers prefer a larger budget.
struct Dispersion {
  double entropy = 0, variance = 0;
  void add(const Moments& m);
  void add(const Dispersion& other) { entropy += other.entropy, variance += other.variance; }
  double preference(double tau_1, double tau_2) const;  // entropy^(1/tau_1) variance^(1/tau_2)
};

// CAKE: pools each query head's scores (n_heads, n), then takes the mean over the heads: out (n).
Status pool_then_mean(Span<const float> scores, uint64_t n_heads, Pooling pooling, uint32_t width, Span<float> out);

}  // namespace orrery::policy
