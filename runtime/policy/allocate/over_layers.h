// How what compressed heads keep together is spread over layers, and a layer's part over its heads: PyramidKV's
// layers, CAKE's preferences, Ada-KV's adaptive heads.  Totals are exact everywhere, by largest remainders (ties: lowest
// index); the published codes round each share by itself and miss them.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/base/span.h"
#include "runtime/base/status.h"

namespace orrery::policy {

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

}  // namespace orrery::policy
