// From attention logits to the set of tokens a KV head keeps: softmax over the candidate keys, smoothing
// along the keys, reduction over the query heads that share the KV head, top-k, and the overlap of two sets.
//
// Data comes in as plain rows and leaves as plain rows or index lists; nothing here knows of models or
// devices, so that these functions are also the oracle of every kernel that does the same on a device. Sums
// run in a fixed order (keys and query heads ascending). NaN never wins: it weighs nothing in a softmax and
// ranks below everything in a top-k, so that a damaged model gives poor sets and no undefined ones.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/base/span.h"
#include "runtime/base/status.h"

namespace orrery::policy {

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

// Memory that head_scores reuses from call to call.
struct ScoreScratch {
  std::vector<float> weights, pooled;
};

// All of the above: logits (n_query_heads, n_keys), scaled and masked -> out (n_keys).
Status head_scores(Span<const float> logits, uint32_t n_query_heads, const ScoreRule& rule,
                   ScoreScratch* scratch, Span<float> out);

}  // namespace orrery::policy
