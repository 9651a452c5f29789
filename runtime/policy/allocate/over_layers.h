// Allocate: the budget of all compressed heads over the layers. PyramidKV's falling line, CAKE's preferences, and layers that compete by
// their best scores. Totals are exact.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/base/span.h"
#include "runtime/base/status.h"

namespace orrery::policy {

// PyramidKV: a straight line, falling from layer to layer, around the mean b = total / n_layers. The last layer has floor(b_head / beta)
// tokens a head, with b_head = b / n_heads. A head uses at most `highest` tokens: a line that would start above it starts at it, and falls
// less. Contexts of n_tokens < 2 b_head are divided evenly. total <= n_layers * n_heads * highest.
Result<std::vector<uint64_t>> pyramid(uint64_t n_layers, uint64_t n_heads, uint64_t total, uint64_t highest, uint64_t n_tokens,
                                      uint32_t beta);

// CAKE: in proportion to `preference`, which is not negative (all 0: evenly), at most `highest` each. The excess is divided over the other
// layers in equal parts. total <= n * highest.
Result<std::vector<uint64_t>> by_preference(Span<const double> preference, uint64_t total, uint64_t highest);

// Ada-KV's flat selection, over layers: of the best `total` of all layers' scores, each times its layer's weight, how many belong to each
// layer? scores (n_layers, n); weights (n_layers), not negative (all 0: evenly); total <= n_layers * n. Ties: the lower layer. NaN ranks
// lowest.
// The lowest of the best scores is found digit by digit of order_of(). In a round every layer counts its own scores, in parallel where
// there are threads. Nothing is copied or sorted.
class BestOfLayers {
 public:
  static Result<BestOfLayers> make(Span<const float> scores, Span<const double> weights, uint64_t total);
  static constexpr uint32_t kRounds = 3;
  void count(size_t layer);              // in this round; layers in any order, in parallel
  void end_round();                      // after all layers
  std::vector<uint64_t> counts() const;  // after the last round: (n_layers)
  static uint64_t host_bytes(uint64_t n_layers);

 private:
  struct Digit {
    uint32_t shift, n_bits;
  };
  static constexpr Digit kDigits[kRounds] = {{21, 11}, {10, 11}, {0, 10}};
  static constexpr size_t kMostValues = 2048;
  BestOfLayers(Span<const float> scores, uint64_t total) : scores_(scores), n_wanted_(total) {}
  Span<const float> scores_;
  std::vector<float> weights_;    // (n_layers) divided by the largest
  std::vector<uint32_t> values_;  // (n_layers, kMostValues) scores with the digits so far, by this round's digit
  std::vector<uint64_t> above_;   // (n_layers) scores that are certainly among the best
  uint64_t n_wanted_;             // of the scores with the digits so far
  uint64_t least_ = 0;            // the digits so far
  uint32_t round_ = 0;
};

}  // namespace orrery::policy
