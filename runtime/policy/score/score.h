// Score: from attention logits to one score per key of a KV head. Softmax over the candidate keys, pooling along the keys, reduction over
// the query heads that share the KV head.
//
// The functions take and return plain rows, and know nothing of models or devices: they are also the oracle of every kernel that does the
// same on a device. Sums run in a fixed order: keys ascending, query heads ascending. NaN never wins: its weight in a softmax is 0, and
// top_k() ranks it lowest. A damaged model gives poor sets, never undefined ones.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/base/span.h"
#include "runtime/base/status.h"

namespace orrery::policy {

enum class GroupReduce : uint8_t { mean, max };
enum class Pooling : uint8_t { none, avg, max };

// How the logits of one KV head become one score per key. HeteroCache: avg, 5; its code reduces by mean in calibration and by max at run
// time. SyncKV: max, no pooling.
struct ScoreRule {
  GroupReduce reduce = GroupReduce::mean;
  Pooling pooling = Pooling::avg;
  uint32_t pool_width = 5;  // odd
  // Pool each query head before the reduction. The order matters except for mean+avg and max+max.
  bool pool_first = true;
  bool scaled = true;  // logits are scaled as attention scales them
};

// out = softmax(logits) over exactly these keys, both (n_keys); they may be the same memory. Logits are scaled already. -inf masks a key;
// all keys masked: all weights 0. Several +inf share the weight.
void softmax(Span<const float> logits, Span<float> out);

// Divides weights by their sum; no weight is negative. Returns their perplexity e^entropy, 1 to n: the number of equal weights that would
// be spread out as far. A sum of 0, or one that is not finite, makes all weights 0 and returns 0.
double normalize(Span<float> weights);

// out[j] = mean or max over h of rows[h][j]. rows: (n_query_heads, n_keys); out: (n_keys), distinct memory or the first row.
Status group_reduce(Span<const float> rows, uint32_t n_query_heads, GroupReduce reduce, Span<float> out);

}  // namespace orrery::policy
