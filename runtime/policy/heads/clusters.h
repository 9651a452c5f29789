// SyncKV's clusters: heads of a layer that attend to the same tokens, and the head that represents them (section 4.1, B.1).
//
// K-means runs on exact integers: similarities are taken to 2^-24, and distances to centroids are compared as fractions. So a tie is a tie
// on every machine, whatever the compiler rounds (the two heads of a cluster of two are always equally far from its centre), and it goes to
// the lowest index.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/base/span.h"
#include "runtime/base/status.h"

namespace orrery::policy {

struct LayerClusters {
  std::vector<uint32_t> cluster_of;       // (n_heads), below the number of clusters
  std::vector<uint32_t> representatives;  // (n_clusters) the head nearest to the centroid; kNoHead: the cluster is empty
  uint32_t n_representatives() const;     // clusters that have heads
};

// K-means on the rows of D = max(S) - S, squared Euclidean. S: (n_heads, n_heads), 0 to 1, symmetric (mean_similarity()). The first centre
// is head 0; each next one is the head farthest from its nearest centre. At most 100 Lloyd steps; an empty cluster keeps its centre; every
// tie goes to the lowest index. n_clusters: 1 to n_heads.
Result<LayerClusters> cluster_heads(Span<const double> similarity, uint32_t n_heads, uint32_t n_clusters);

}  // namespace orrery::policy
