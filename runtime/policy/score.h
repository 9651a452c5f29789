// From attention logits to the set of tokens a KV head keeps: softmax over the candidate keys, smoothing
// along the keys, reduction over the query heads that share the KV head, top-k, and the overlap of two sets.
//
// Data comes in as plain rows and leaves as plain rows or index lists; nothing here knows of models or
// devices, so that these functions are also the oracle of every kernel that does the same on a device. Sums
// run in a fixed order (keys and query heads ascending). NaN never wins: it weighs nothing in a softmax and
// ranks below everything in a top-k, so that a damaged model gives poor sets and no undefined ones.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "runtime/base/span.h"
#include "runtime/base/status.h"

namespace orrery::policy {

// Token indices within the candidates, unique. Where the order is meant, best first ("score order").
using Tokens = std::vector<uint32_t>;

enum class GroupReduce : uint8_t { mean, max };
enum class Pooling : uint8_t { none, avg, max };

// How one KV head's logits become one score per key. HeteroCache: avg, 5; its code reduces by mean when it
// calibrates and by max when it runs. SyncKV: max, no pooling.
struct ScoreRule {
  GroupReduce reduce = GroupReduce::mean;
  Pooling pooling = Pooling::avg;
  uint32_t pool_width = 5;  // odd
  // Pooling and reduction commute for mean+avg and max+max only; everything else depends on this.
  bool pool_first = true;
  bool scaled = true;       // logits are divided by sqrt(head_dim)
};

// out = softmax(logits) over exactly these keys, both (n_keys); may be the same memory. Logits are scaled
// already; -inf masks a key. No key left: all zero. Several +inf share the weight.
void softmax(Span<const float> logits, Span<float> out);

// Weights, none of them negative, become shares of their sum, which is 1. As how many alike they are spread out, e^entropy: between 1 and
// their number. Weights that come to nothing, or to no number, become 0; 0.
double to_shares(Span<float> weights);

// out[j] = mean or max over h of rows[h][j]; rows: (n_query_heads, n_keys), out: (n_keys), distinct memory or the first row.
Status group_reduce(Span<const float> rows, uint32_t n_query_heads, GroupReduce reduce, Span<float> out);

// torch's avg_pool1d and max_pool1d with stride 1 and padding width / 2: in and out are (n), distinct memory.
// The average counts padding zeros in its divisor; the maximum pads with -inf. invalid_argument unless width
// is odd.
Status avg_pool1d(Span<const float> in, uint32_t width, Span<float> out);
Status max_pool1d(Span<const float> in, uint32_t width, Span<float> out);

// The one or the other; `none` copies.
Status pool1d(Span<const float> in, Pooling pooling, uint32_t width, Span<float> out);

// Memory that head_scores reuses from call to call.
struct ScoreScratch {
  std::vector<float> weights, pooled;
};

// All of the above: logits (n_query_heads, n_keys), scaled and masked -> out (n_keys).
Status head_scores(Span<const float> logits, uint32_t n_query_heads, const ScoreRule& rule,
                   ScoreScratch* scratch, Span<float> out);

// Numbers that order as scores do: NaN lowest, both zeros the same.
inline uint32_t order_of(float score) {
  const float x = score + 0.0f;
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  bits ^= bits >> 31 ? UINT32_MAX : uint32_t{1} << 31;
  return std::isnan(score) ? 0 : bits;
}

// The min(k, n) best of scores (n): by score descending, then index ascending; in that order. O(n + k log k).
// `out` is also the scratch: with a capacity of n nothing is allocated.
void top_k(Span<const float> scores, size_t k, Tokens* out);

// The same keys, ascending. O(n), without comparisons.
void top_k_ascending(Span<const float> scores, size_t k, Tokens* out);

// The same over the candidates that `excluded` (any order; indices outside scores do nothing) leaves.
void top_k_excluding(Span<const float> scores, size_t k, Span<const uint32_t> excluded, Tokens* out);

// |A n B| of two sets in any order.
size_t count_common(Span<const uint32_t> a, Span<const uint32_t> b);

// The overlap coefficient |A n B| / |A| (HeteroCache eq. 1 and 9; A and B of one size there). 1 for an empty
// A: it has lost nothing.
double overlap(Span<const uint32_t> a, Span<const uint32_t> b);

// The median; of an even number the mean of the middle two, as textbooks and NumPy have it (torch.median
// takes the lower one; with the published 99 steps and windows of 5 they agree). 0 for nothing.
double median(Span<const double> values);

// value >= threshold, for means of fractions: .1 and .7 have the mean .4, which doubles miss by a rounding.
inline bool reaches(double value, double threshold) { return value >= threshold - 1e-9; }

}  // namespace orrery::policy
