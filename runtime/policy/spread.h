// How what compressed heads keep together is spread over layers, and a layer's part over its heads: PyramidKV's
// layers, CAKE's preferences, Ada-KV's adaptive heads.  Totals are exact everywhere, by largest remainders (ties: lowest
// index); the published codes round each share by itself and miss them.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/base/span.h"
#include "runtime/base/status.h"
#include "runtime/policy/allocate.h"
#include "runtime/policy/score.h"

namespace orrery::policy {

// The whole numbers next to `shares`, which add up to `total`: floors, and one more for the largest remainders. A share may be a
// whole number but for a rounding.
std::vector<uint64_t> round_to_total(Span<const double> shares, uint64_t total);

// PyramidKV: layers (n_layers) get less and less, on a straight line around the mean b = total / n_layers, down to
// floor(b_head / beta) tokens a head, where b_head = b / n_heads. No head of a layer's n_heads can use more than `highest` tokens:
// a steeper line becomes one that ends there. Contexts below 2 b_head tokens (n_tokens) are dealt evenly.
// total <= n_layers * n_heads * highest.
Result<std::vector<uint64_t>> pyramid(uint64_t n_layers, uint64_t n_heads, uint64_t total, uint64_t highest, uint64_t n_tokens,
                                      uint32_t beta);

// CAKE: in proportion to `preference` (not negative; all 0: evenly), each at most `highest`; what is beyond that is spread over the
// others in equal parts. total <= n * highest.
Result<std::vector<uint64_t>> by_preference(Span<const double> preference, uint64_t total, uint64_t highest);

// Ada-KV's flat selection over layers: how many of the best `total` of all layers' scores, each times its layer's weight, are each
// layer's.  scores (n_layers, n); weights (n_layers) not negative (all 0: layers are dealt evenly); total <= n_layers * n. Ties: lower
// layer; NaN ranks lowest. The least of the best is found digit by digit of a number that orders as scores do; in each round every layer
// counts its own scores, beside the others where there are threads, and nothing is copied or sorted.
class BestOfLayers {
 public:
  static Result<BestOfLayers> make(Span<const float> scores, Span<const double> weights, uint64_t total);
  static constexpr uint32_t kRounds = 3;
  void count(size_t layer);   // of this round; layers in any order, each for itself
  void end_round();           // behind the last layer
  std::vector<uint64_t> counts() const;   // behind the last round
  static uint64_t host_bytes(uint64_t n_layers);

 private:
  struct Digit {
    uint32_t shift, n_bits;
  };
  static constexpr Digit kDigits[kRounds] = {{21, 11}, {10, 11}, {0, 10}};
  static constexpr size_t kMostValues = 2048;
  BestOfLayers(Span<const float> scores, uint64_t total) : scores_(scores), n_wanted_(total) {}
  Span<const float> scores_;
  std::vector<float> weights_;    // (n_layers) of the largest
  std::vector<uint32_t> values_;  // (n_layers, kMostValues) how many have this round's digit, and those before it
  std::vector<uint64_t> above_;   // (n_layers) scores that are among the best for certain
  uint64_t n_wanted_;             // of those with the digits so far
  uint64_t least_ = 0;            // the digits so far
  uint32_t round_ = 0;
};

// Ada-KV: how many of the best `total` scores of all heads are each head's, where the best n_protected of each head come
// first. scores (n_heads, n); n_heads * n_protected <= total <= n_heads * n. Ties: lower head, then lower key.
Result<std::vector<uint64_t>> count_best(Span<const float> scores, uint64_t n_heads, uint64_t total, uint64_t n_protected);

// Ada-KV's safeguard: (1 - alpha) of its own count and alpha of the mean, for each head. (Algorithm 2, line 8 prints them
// the other way round.)
std::vector<uint64_t> with_floor(Span<const uint64_t> counts, Ratio alpha);

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
