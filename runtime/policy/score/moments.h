// Moments of the weights of a window of queries: mean, variance, entropy; CAKE's preference and scores.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/base/span.h"
#include "runtime/base/status.h"
#include "runtime/policy/score/score.h"

namespace orrery::policy {

// Weights of a window of queries over the keys before it: (n_rows, n_heads, n), n_heads rows `stride` floats apart.
struct WindowRows {
  const float* rows = nullptr;
  uint64_t n_rows = 0, n_heads = 0, n = 0, stride = 0;
};
// Mean and unbiased variance over the rows, (n_heads, n) each; of a single row the variance is 0. The sum of the entropies
// -a log(a + 1e-10) besides.
struct Moments {
  std::vector<double> mean, variance;
  double entropy = 0;
  void measure(const WindowRows& x) {
    const size_t n_parts = begin(x);
    for (size_t i = 0; i < n_parts; ++i) measure_part(x, i);
    finish();
  }
  // The same in parts, so many as begin() says, each in any order and beside the others.
  size_t begin(const WindowRows& x);
  void measure_part(const WindowRows& x, size_t part);
  void finish();
  // out (n_heads, n) = mean + gamma variance.
  void scores(double gamma, Span<float> out) const;

 private:
  std::vector<double> entropies_;   // of parts
};

// CAKE: how much a layer wants of the budget: summed over its KV heads, query heads and keys.
struct Dispersion {
  double entropy = 0, variance = 0;
  void add(const Moments& m);
  void add(const Dispersion& other) { entropy += other.entropy, variance += other.variance; }
  double preference(double tau_1, double tau_2) const;   // entropy^(1/tau_1) variance^(1/tau_2)
};

// CAKE: scores (n): those of each of n_heads query heads, `scores` (n_heads, n), pooled, then the mean over heads.
Status steady_scores(Span<const float> scores, uint64_t n_heads, Pooling pooling, uint32_t width, Span<float> out);

}  // namespace orrery::policy
