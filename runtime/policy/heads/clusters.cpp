#include "runtime/policy/heads/clusters.h"

#include <algorithm>
#include <cmath>

#include "runtime/policy/heads/roles.h"

namespace orrery::policy {

namespace {

using Wide = unsigned __int128;
constexpr int kMaxLloydSteps = 100;

// A centre is the sum of `count` rows.
struct Centre {
  std::vector<int64_t> sum;  // (n)
  int64_t count = 1;
};

// count^2 times the squared distance. At most 2^(2 * (24 + 10)) * 2^10, as there are at most 2^10 heads.
Wide scaled_distance(const int64_t* row, const Centre& centre) {
  Wide total = 0;
  for (size_t j = 0; j < centre.sum.size(); ++j) {
    const int64_t d = row[j] * centre.count - centre.sum[j];
    const auto magnitude = static_cast<uint64_t>(d < 0 ? -d : d);
    total += Wide{magnitude} * magnitude;
  }
  return total;
}

struct Distance {
  Wide value = 0;  // the distance is value / scale^2
  uint64_t scale = 1;
  bool operator<(const Distance& o) const { return value * o.scale * o.scale < o.value * scale * scale; }
};

class KMeans {
 public:
  KMeans(Span<const double> similarity, uint32_t n_heads, uint32_t n_clusters) : n_(n_heads), rows_(similarity.size()) {
    const double largest = *std::max_element(similarity.begin(), similarity.end());
    for (size_t i = 0; i < rows_.size(); ++i) rows_[i] = std::llround((largest - similarity[i]) * 16777216.0);
    start(n_clusters);
  }

  LayerClusters run() {
    std::vector<uint32_t> assignment = assign();
    for (int step = 0; step < kMaxLloydSteps; ++step) {
      move_centres(assignment);
      std::vector<uint32_t> next = assign();
      if (next == assignment) break;
      assignment = std::move(next);
    }
    LayerClusters out;
    out.representatives.assign(centres_.size(), kNoHead);
    for (uint32_t h = 0; h < n_; ++h) {
      uint32_t& representative = out.representatives[assignment[h]];
      const uint32_t c = assignment[h];
      if (representative == kNoHead || distance(h, c) < distance(representative, c)) representative = h;
    }
    out.cluster_of = std::move(assignment);
    return out;
  }

 private:
  const int64_t* row(uint32_t h) const { return rows_.data() + size_t{h} * n_; }
  Distance distance(uint32_t h, uint32_t c) const {
    return {scaled_distance(row(h), centres_[c]), static_cast<uint64_t>(centres_[c].count)};
  }

  void start(uint32_t n_clusters) {
    std::vector<Distance> nearest(n_);
    uint32_t next = 0;
    while (centres_.size() < n_clusters) {
      centres_.push_back({std::vector<int64_t>(row(next), row(next) + n_), 1});
      const auto newest = static_cast<uint32_t>(centres_.size() - 1);
      for (uint32_t h = 0; h < n_; ++h) {
        const Distance d = distance(h, newest);
        if (newest == 0 || d < nearest[h]) nearest[h] = d;
      }
      next = 0;
      for (uint32_t h = 1; h < n_; ++h) {
        if (nearest[next] < nearest[h]) next = h;
      }
    }
  }

  std::vector<uint32_t> assign() const {
    std::vector<uint32_t> out(n_, 0);
    for (uint32_t h = 0; h < n_; ++h) {
      Distance best = distance(h, 0);
      for (uint32_t c = 1; c < centres_.size(); ++c) {
        const Distance d = distance(h, c);
        if (!(d < best)) continue;
        best = d;
        out[h] = c;
      }
    }
    return out;
  }

  void move_centres(const std::vector<uint32_t>& assignment) {
    for (uint32_t c = 0; c < centres_.size(); ++c) {
      Centre moved{std::vector<int64_t>(n_, 0), 0};
      for (uint32_t h = 0; h < n_; ++h) {
        if (assignment[h] != c) continue;
        ++moved.count;
        for (uint32_t j = 0; j < n_; ++j) moved.sum[j] += row(h)[j];
      }
      if (moved.count > 0) centres_[c] = std::move(moved);
    }
  }

  uint32_t n_;
  std::vector<int64_t> rows_;  // (n, n) D in units of 2^-24
  std::vector<Centre> centres_;
};

}  // namespace

uint32_t LayerClusters::n_representatives() const {
  return static_cast<uint32_t>(
      std::count_if(representatives.begin(), representatives.end(), [](uint32_t head) { return head != kNoHead; }));
}

Result<LayerClusters> cluster_heads(Span<const double> similarity, uint32_t n_heads, uint32_t n_clusters) {
  if (n_heads == 0 || n_heads > kMaxKvHeads || n_clusters == 0 || n_clusters > n_heads) {
    return error(Code::invalid_argument, "%u clusters of %u heads: expected 1 to %u heads, and clusters to as many", n_clusters, n_heads,
                 kMaxKvHeads);
  }
  if (similarity.size() != size_t{n_heads} * n_heads) {
    return error(Code::invalid_argument, "similarity has %zu values: expected %u x %u", similarity.size(), n_heads, n_heads);
  }
  for (size_t i = 0; i < similarity.size(); ++i) {
    const double mirrored = similarity[i % n_heads * n_heads + i / n_heads];
    if (!(similarity[i] >= 0 && similarity[i] <= 1) || similarity[i] != mirrored) {
      return error(Code::invalid_argument,
                   "similarity of heads %zu and %zu is %g one way and %g the other: expected "
                   "one value of 0 to 1",
                   i / n_heads, i % n_heads, similarity[i], mirrored);
    }
  }
  return KMeans(similarity, n_heads, n_clusters).run();
}

}  // namespace orrery::policy
