// Keys and queries for tests of what is asked between steps (top_keys, key_weights, key_moments), and the oracle of their softmax: the
// stored keys are read back with gguf's own dequantization and scored in double precision. Pages lie scattered, each before a guard page.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "runtime/base/checked.h"
#include "tests/support/doubles.h"
#include "tests/support/kv_tokens.h"
#include "tests/unit/cpu/fixture.h"
#include "tests/unit/cpu/tokens.h"

namespace orrery::testing {

using Pooling = KeyScoring::Pooling;

constexpr double kClose = 1e-5;

// Keys of every head in scattered pages, and the queries of the last positions in a ring.
class KeyStore {
 public:
  KeyStore(const KvFormat& format, int32_t n_heads, int32_t n_keys, int32_t n_ring, uint64_t seed)
      : format_(format), n_heads_(n_heads), n_ring_(n_ring),
        ring_(static_cast<size_t>(format.n_layers * n_ring * n_heads * format.head_dim)) {
    for (int32_t i = 0; i < div_up(n_keys, kPageTokens); ++i) {
      pages_.push_back(std::make_unique<Guarded<std::byte>>(format.page_span()));
      addresses_.push_back(pages_.back()->ptr().address);
    }
    Random random(seed);
    std::vector<float> key(static_cast<size_t>(format.head_dim));
    for (int32_t l = 0; l < format.n_layers; ++l)
      for (int32_t h = 0; h < format.n_kv_heads; ++h)
        for (int32_t t = 0; t < n_keys; ++t) {
          for (float& x : key) x = random.normal();
          put(l, h, t, key);
        }
    fill_normal(ring_, seed + 1);
  }

  void put(int32_t layer, int32_t head, int32_t token, const std::vector<float>& key) {
    write_key(format_.type, key.data(), key.size(), at(layer, head, token));
  }
  void put_value(int32_t layer, int32_t head, int32_t token, const std::vector<float>& value) {
    write_value(format_.type, value.data(), value.size(), at(layer, head, token) + format_.key_bytes());
  }
  std::vector<float> key(int32_t layer, int32_t head, int32_t token) const {
    return read_key(format_.type, at(layer, head, token), static_cast<uint64_t>(format_.head_dim));
  }
  std::vector<float> value(int32_t layer, int32_t head, int32_t token) const {
    return read_value(format_.type, at(layer, head, token) + format_.key_bytes(), static_cast<uint64_t>(format_.head_dim));
  }
  bool bounds = false;  // its tokens are digests
  float* query(int32_t layer, int32_t position) const {
    return ring_.data() + static_cast<size_t>((layer * n_ring_ + position % n_ring_) * n_heads_ * format_.head_dim);
  }

  TopKeysJob job(int32_t layer, int32_t head, int32_t n_keys, int32_t first, int32_t n, int32_t k, bool by_score) const {
    TopKeysJob j;
    j.layer = layer, j.kv_head = head, j.tiles = addresses_.data();
    j.offset = format_.head_offset(layer, head);
    j.n_keys = n_keys, j.first_position = first, j.n_positions = n, j.k = k, j.by_score = by_score;
    return j;
  }
  TopKeysShape shape(const KeyScoring& scoring) const {
    TopKeysShape shape;
    shape.kv = format_, shape.n_heads = n_heads_, shape.scale = scale(), shape.queries = {ring_.ptr(), n_ring_};
    shape.bounds = bounds, shape.scoring = scoring;
    return shape;
  }
  StepLimits limits(int32_t max_top_keys) const { return {1, 64, n_heads_, format_.n_kv_heads, format_.head_dim, 64, max_top_keys}; }
  const uint64_t* pages() const { return addresses_.data(); }
  int32_t n_pages() const { return static_cast<int32_t>(addresses_.size()); }
  float scale() const { return 1.7f / std::sqrt(static_cast<float>(format_.head_dim)); }

  // A head's first keys, read back: (n_keys, head_dim), or with `bounds` (n_keys, K and V).
  std::vector<float> keys_of(int32_t layer, int32_t kv_head, int32_t n_keys) const {
    const size_t width = key_width();
    std::vector<float> keys(static_cast<size_t>(n_keys) * width);
    for (int32_t t = 0; t < n_keys; ++t) {
      std::vector<float> one = key(layer, kv_head, t);
      if (bounds) one = read_tokens(format_.type, at(layer, kv_head, t), one.size());
      std::copy(one.begin(), one.end(), keys.data() + static_cast<size_t>(t) * width);
    }
    return keys;
  }
  // (n_keys) of one query head at a position with the first of these keys, scaled.
  std::vector<double> products(int32_t layer, int32_t n_keys, int32_t position, int32_t head, const std::vector<float>& keys) const {
    const float* q = query(layer, position) + head * format_.head_dim;
    const size_t dim = static_cast<size_t>(format_.head_dim), width = key_width();
    std::vector<double> row(static_cast<size_t>(n_keys));
    const float* k = keys.data();
    for (double& out : row) {
      double dot = 0;
      if (bounds)
        for (size_t i = 0; i < dim; ++i) dot += std::max(static_cast<double>(q[i]) * k[i], static_cast<double>(q[i]) * k[dim + i]);
      else dot = testing::dot(q, k, dim);
      out = dot * scale();
      k += width;
    }
    return row;
  }
  // And their softmax.
  std::vector<double> row(int32_t layer, int32_t n_keys, int32_t position, int32_t head, const std::vector<float>& keys) const {
    std::vector<double> row = products(layer, n_keys, position, head, keys);
    const double most = *std::max_element(row.begin(), row.end());
    double sum = 0;
    for (double& x : row) sum += x = std::exp(x - most);
    for (double& x : row) x /= sum;
    return row;
  }

  // (n_keys) of one query.
  std::vector<double> scores(const TopKeysJob& job, int32_t position, const KeyScoring& scoring) const {
    const int32_t group = n_heads_ / format_.n_kv_heads, half = scoring.pool_width / 2;
    const size_t n = static_cast<size_t>(job.n_keys);
    const std::vector<float> keys = keys_of(job.layer, job.kv_head, job.n_keys);
    std::vector<double> out(n, scoring.max_of_group ? -INFINITY : 0.0);
    for (int32_t g = 0; g < group; ++g) {
      const std::vector<double> row = this->row(job.layer, job.n_keys, position, job.kv_head * group + g, keys);
      for (int32_t i = 0; i < job.n_keys; ++i) {
        double x = scoring.pooling == Pooling::max ? -INFINITY : 0.0;
        const int32_t reach = scoring.pooling == Pooling::none ? 0 : half;
        for (int32_t j = std::max(0, i - reach); j <= std::min(job.n_keys - 1, i + reach); ++j)
          x = scoring.pooling == Pooling::max ? std::max(x, row[static_cast<size_t>(j)]) : x + row[static_cast<size_t>(j)];
        if (scoring.pooling == Pooling::avg) x /= scoring.pool_width;
        double& o = out[static_cast<size_t>(i)];
        o = scoring.max_of_group ? std::max(o, x) : o + x / group;
      }
    }
    return out;
  }

 private:
  std::byte* at(int32_t layer, int32_t head, int32_t token) const {
    return pages_[static_cast<size_t>(token / kPageTokens)]->data() + format_.head_offset(layer, head) +
           static_cast<size_t>(token % kPageTokens) * format_.token_bytes();
  }
  size_t key_width() const { return static_cast<size_t>(format_.head_dim) * (bounds ? 2 : 1); }

  KvFormat format_;
  int32_t n_heads_, n_ring_;
  Guarded<float> ring_;
  std::vector<std::unique_ptr<Guarded<std::byte>>> pages_;
  std::vector<uint64_t> addresses_;
};

}  // namespace orrery::testing
