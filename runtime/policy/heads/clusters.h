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

}  // namespace orrery::policy
