#include "runtime/cpu/digests.h"

#include <algorithm>
#include <cmath>

#include "runtime/base/checked.h"
#include "runtime/base/half.h"

namespace orrery::cpu {

namespace {

constexpr int64_t kPagesPerItem = 32;

// Writes the mean of one page. Returns the smallest cosine of a key with it.
float mean_of_page(const std::byte* keys, uint64_t stride, const DigestShape& shape, const Kernels& kernels, float* floats,
                   std::byte* out) {
  const int32_t dim = shape.kv.head_dim;
  float *key = floats, *mean = floats + dim;
  const auto load = [&](int32_t t) { kernels.load_kv(key_type(shape.kv.type), keys + static_cast<uint64_t>(t) * stride, dim, key); };
  std::fill(mean, mean + dim, 0.0f);
  for (int32_t t = 0; t < shape.page_tokens; ++t) {
    load(t);
    for (int32_t i = 0; i < dim; ++i) mean[i] += key[i];
  }
  for (int32_t i = 0; i < dim; ++i) mean[i] /= static_cast<float>(shape.page_tokens);
  double least = 1;
  for (int32_t t = 0; t < shape.page_tokens; ++t) {
    load(t);
    double product = 0, key_squares = 0, mean_squares = 0;
    for (int32_t i = 0; i < dim; ++i) {
      const double x = key[i], y = mean[i];
      product += x * y, key_squares += x * x, mean_squares += y * y;
    }
    const double both = std::sqrt(key_squares * mean_squares), cosine = product / both;
    least = std::min(least, both > 0 && std::isfinite(cosine) ? cosine : 0);
  }
  for (int32_t i = 0; i < dim; ++i) reinterpret_cast<uint16_t*>(out)[i] = float_to_half(mean[i]);
  return static_cast<float>(least);
}

// The digest of one page, whose keys lie `stride` bytes apart from `keys` on. floats: room for 3 keys.
void digest_page(const std::byte* keys, uint64_t stride, const DigestShape& shape, const Kernels& kernels, float* floats, std::byte* out) {
  const int32_t dim = shape.kv.head_dim;
  float *key = floats, *low = floats + dim, *high = low + dim;
  std::fill(low, low + dim, INFINITY);
  std::fill(high, high + dim, -INFINITY);
  for (int32_t t = 0; t < shape.page_tokens; ++t) {
    kernels.load_kv(key_type(shape.kv.type), keys + static_cast<uint64_t>(t) * stride, dim, key);
    kernels.widen(key, low, high, dim);
  }
  if (shape.kind == DigestKind::deviation) {
    for (int32_t i = 0; i < dim; ++i) high[i] = (low[i] + high[i]) / 2, low[i] = 0;
    for (int32_t t = 0; t < shape.page_tokens; ++t) {
      kernels.load_kv(key_type(shape.kv.type), keys + static_cast<uint64_t>(t) * stride, dim, key);
      for (int32_t i = 0; i < dim; ++i) low[i] += std::fabs(key[i] - high[i]);
    }
    for (int32_t i = 0; i < dim; ++i) {
      const float middle = high[i], deviation = low[i] / static_cast<float>(shape.page_tokens);
      high[i] = middle + deviation, low[i] = middle - deviation;
    }
  }
  auto* halves = reinterpret_cast<uint16_t*>(out);
  for (int32_t i = 0; i < dim; ++i) {
    halves[i] = float_to_half_up(high[i] + 0.0f);  // + 0.0f: -0 becomes +0
    halves[dim + i] = float_to_half_down(low[i] + 0.0f);
  }
}

}  // namespace

void digest(Span<const DigestJob> jobs, const DigestShape& shape, const Kernels& kernels, ThreadPool* pool, std::byte* thread_scratch,
            uint64_t thread_bytes) {
  const bool means = shape.kind == DigestKind::mean;
  const uint64_t digest_bytes = (means ? 2u : 4u) * static_cast<uint64_t>(shape.kv.head_dim);
  int64_t most_pages = 0;
  for (const DigestJob& job : jobs) most_pages = std::max<int64_t>(most_pages, job.n_pages);
  const int64_t stretches = div_up(most_pages, kPagesPerItem), n_jobs = static_cast<int64_t>(jobs.size());
  if (stretches == 0) return;
  pool->run(n_jobs * stretches, [&](int64_t item, int32_t thread) {
    const DigestJob& job = jobs[static_cast<size_t>(item / stretches)];
    const int64_t first = item % stretches * kPagesPerItem, last = std::min<int64_t>(first + kPagesPerItem, job.n_pages);
    auto* floats = reinterpret_cast<float*>(thread_scratch + static_cast<uint64_t>(thread) * thread_bytes);
    for (int64_t i = first; i < last; ++i) {
      const int64_t page = job.first_page + i, token = page * shape.page_tokens;
      const auto* keys = reinterpret_cast<const std::byte*>(job.tiles[token / kPageTokens] + job.offset) +
                         static_cast<uint64_t>(token % kPageTokens) * shape.kv.token_bytes();
      auto* out = reinterpret_cast<std::byte*>(job.digests[page / kPageTokens]) + static_cast<uint64_t>(page % kPageTokens) * digest_bytes;
      if (!means) {
        digest_page(keys, shape.kv.token_bytes(), shape, kernels, floats, out);
        continue;
      }
      const float cosine = mean_of_page(keys, shape.kv.token_bytes(), shape, kernels, floats, out);
      if (job.cosines) job.cosines[i] = cosine;
    }
  });
}

// A thread's scratch memory has room for a tile of keys and values. It holds a token's floats and the sums.
void add_to_compensation_tokens(Span<const CompensationJob> jobs, const KvFormat& kv, const Kernels& kernels, ThreadPool* pool,
                                std::byte* thread_scratch, uint64_t thread_bytes) {
  const auto n = static_cast<int32_t>(kv.token_values());
  pool->run(static_cast<int64_t>(jobs.size()), [&](int64_t item, int32_t thread) {
    const CompensationJob& job = jobs[static_cast<size_t>(item)];
    auto* sums = reinterpret_cast<double*>(thread_scratch + static_cast<uint64_t>(thread) * thread_bytes);
    auto *values = reinterpret_cast<float*>(sums + n), *merged = reinterpret_cast<float*>(job.compensation_token.address);
    for (int32_t i = 0; i < n; ++i) sums[i] = job.n_before > 0 ? job.n_before * static_cast<double>(merged[i]) : 0.0;
    for (int32_t t = job.first; t < job.end; ++t) {
      const double share = job.shares ? static_cast<double>(job.shares[t - job.first]) : 1.0;
      if (share == 0.0) continue;
      const auto* token = reinterpret_cast<const std::byte*>(job.tiles[t / kPageTokens] + job.offset) +
                          static_cast<uint64_t>(t % kPageTokens) * kv.token_bytes();
      kernels.load_kv(key_type(kv.type), token, kv.head_dim, values);
      kernels.load_kv(value_type(kv.type), token + kv.key_bytes(), kv.head_dim, values + kv.head_dim);
      for (int32_t i = 0; i < n; ++i) sums[i] += share * static_cast<double>(values[i]);
    }
    const int32_t parts = job.shares ? 1 : job.n_before + job.end - job.first;
    for (int32_t i = 0; i < n; ++i) merged[i] = static_cast<float>(sums[i] / parts);
  });
}

}  // namespace orrery::cpu
