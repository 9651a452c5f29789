// SyncKV: which heads of a layer go together and who represents them (section 4.1, B.1), and which tokens the
// others hold (eq. 3 to 6).
//
// K-means runs on exact integers: similarities are taken to 2^-24, and distances to centroids are compared as
// fractions. So a tie is a tie (the two heads of a cluster of two are equally far from its centre, always)
// and goes to the lowest index, on every machine; nothing is left to how a compiler rounds.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/base/span.h"
#include "runtime/base/status.h"
#include "runtime/policy/allocate.h"
#include "runtime/policy/roles.h"
#include "runtime/policy/score.h"

namespace orrery::policy {

struct LayerClusters {
  std::vector<uint32_t> cluster_of;  // (n_heads), below the number of clusters
  std::vector<uint32_t>
      representatives;  // (n_clusters) the head nearest to the centroid; kNoHead: no head is in it
  uint32_t n_representatives() const;  // clusters that have heads
};

// K-means on the rows of D = max(S) - S, squared Euclidean, S: (n_heads, n_heads), 0 to 1, symmetric
// (mean_similarity). Centres start at head 0 and then, again and again, at the head farthest from its nearest
// centre; at most 100 Lloyd steps; an empty cluster keeps its centre; every tie goes to the lowest index.
// n_clusters: 1 to n_heads.
Result<LayerClusters> cluster_heads(Span<const double> similarity, uint32_t n_heads, uint32_t n_clusters);

struct SyncSplit {
  uint64_t n_static = 0, n_dynamic = 0;
};
// k_dyn = floor((1 - rho) * k), the rest static.
Result<SyncSplit> sync_split(uint64_t k, Ratio rho);

// What every head of a cluster but its representative holds.
struct SyncSets {
  Tokens fixed;    // I_S: stays for good
  Tokens dynamic;  // I_D: exchanged at every anticipation; never a token of `fixed`
};

// After the prompt (eq. 3, 4): the best n_static + n_dynamic by the representative's scores (n_tokens); the
// best of those are static. Both in score order.
SyncSets sync_initial(Span<const float> scores, const SyncSplit& split);

// At an anticipation (eq. 6): the best n_dynamic that are not static, in score order. (The paper's top-k may
// name static tokens again and so hold fewer than it pays for.)
Tokens sync_dynamic(Span<const float> scores, Span<const uint32_t> fixed, uint64_t n_dynamic);

// Decode steps count from 1. Anticipation happens in steps m, 2m, ...; what it chose serves the steps t_A + 1
// to t_A + m, and the prompt's choice (t_A = 0) steps 1 to m. m = 0 is taken as never.
inline bool is_anticipation(uint64_t step, uint32_t m) { return m > 0 && step > 0 && step % m == 0; }
inline uint64_t anticipation_serving(uint64_t step, uint32_t m) {
  return m > 0 && step > 0 ? (step - 1) / m * m : 0;
}

}  // namespace orrery::policy
