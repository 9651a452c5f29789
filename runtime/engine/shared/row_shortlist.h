// Makes the shortlist of a row of logits in host memory (backend/shortlist.h defines a shortlist). A choice then takes a few vector passes
// over the row, and examines few tokens one by one.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "runtime/backend/shortlist.h"
#include "runtime/base/span.h"

namespace orrery::engine {

// A NaN, from damaged weights, is never chosen. +inf becomes the largest number, so that other tokens keep a weight.
inline float as_number(float x) {
  return x == x ? std::min(x, std::numeric_limits<float>::max()) : -std::numeric_limits<float>::infinity();
}
// Whether a token ranks behind another, whose logit is a number.
inline bool ranks_behind(const ShortlistEntry& other, float logit, int32_t token) {
  return logit < other.logit || (logit == other.logit && token > other.token);
}

class RowShortlist {
 public:
  static constexpr size_t kGroup = 32;  // logits with one maximum
  static size_t n_groups(size_t n_vocab) { return (n_vocab + kGroup - 1) / kGroup; }
  static uint64_t host_bytes(uint64_t n_vocab) { return 2 * n_groups(n_vocab) * sizeof(float); }

  explicit RowShortlist(size_t n_vocab) : maxima_(n_groups(n_vocab)), ranked_(n_groups(n_vocab)) {}

  // As ShortlistOperations, over logits (n_vocab). candidates: (n_vocab), work space. out: shortlist_result_bytes(request).
  void make(Span<const float> logits, const ShortlistRequest& request, Span<int32_t> candidates, std::byte* out);
  static void bands(Span<const float> logits, const ShortlistTail& tail, uint64_t* sums);
  static void entries(Span<const float> logits, const ShortlistTail& tail, int32_t band, int32_t other_band, ShortlistTailEntries* out);

 private:
  float find_maxima(Span<const float> logits, Span<const uint32_t> mask);
  size_t select(Span<const float> logits, Span<const uint32_t> mask, size_t n_best, Span<int32_t> candidates);
  std::vector<float> maxima_, ranked_;  // of the groups' allowed logits
};

}  // namespace orrery::engine
