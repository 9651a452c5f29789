// Summaries of several tokens (KvSummaries): digests of pages, and compensation tokens. A page's digest is the bounds of its keys,
// dimension by dimension, or their mean. A compensation token is the mean, or the weighted sum, of tokens that a head has evicted.
//
// Digests: a thread block has a page, and a thread a dimension. A warp reads 32 neighbouring values of a token at once. Every key is read
// once (DigestKind::deviation: twice, the second time from a cache).
//
// Compensation tokens: a thread block has a head's K or V, and a thread one of its values. A thread adds token by token, in double, with
// eight loads under way. Cost of both: README.md.
#include "cuda/device/launch.h"
#include "cuda/kernels/kv.cuh"

namespace orrery::cuda {

namespace digests_cu {

constexpr int kMostDims = 16;  // of a lane: head_dim / 32

struct DigestWork {
  const DigestPart* parts;
  KvType type;  // of K
  int32_t token_bytes, head_dim, page_tokens;
  DigestKind kind;
};

__global__ void __launch_bounds__(32 * kMostDims) digest_kernel(DigestWork w) {
  const DigestPart part = w.parts[blockIdx.y];
  const int at = static_cast<int>(threadIdx.x), index = static_cast<int>(blockIdx.x);
  if (at >= w.head_dim || index >= part.n_pages) return;
  const int page = part.first_page + index, token = page * w.page_tokens;
  const std::byte* keys =
      reinterpret_cast<const std::byte*>(part.tiles[token / kPageTokens] + part.offset) + token % kPageTokens * w.token_bytes;
  const auto value = [&](int t) { return load_value(w.type, keys + t * w.token_bytes, at / 32, at % 32); };
  if (w.kind == DigestKind::mean) {
    float sum = 0.0f;
    for (int t = 0; t < w.page_tokens; ++t) sum += value(t);
    const float mean = sum / static_cast<float>(w.page_tokens);
    store_half(reinterpret_cast<std::byte*>(part.digests[page / kPageTokens]) + 2 * (page % kPageTokens * w.head_dim + at),
               half_bits(mean));
    return;
  }
  float low = INFINITY, high = -INFINITY;
  for (int t = 0; t < w.page_tokens; ++t) {
    const float x = value(t);
    low = fminf(low, x), high = fmaxf(high, x);
  }
  if (w.kind == DigestKind::deviation) {
    const float middle = (low + high) / 2.0f;
    float sum = 0.0f;
    for (int t = 0; t < w.page_tokens; ++t) sum += fabsf(value(t) - middle);
    const float mean = sum / static_cast<float>(w.page_tokens);
    low = middle - mean, high = middle + mean;
  }
  auto* out = reinterpret_cast<unsigned short*>(part.digests[page / kPageTokens]) + page % kPageTokens * 2 * w.head_dim;
  out[at] = __half_as_ushort(__float2half_ru(__fadd_rn(high, 0.0f)));
  out[w.head_dim + at] = __half_as_ushort(__float2half_rd(__fadd_rn(low, 0.0f)));
}

// The least cosine between a page's keys and their mean. A warp has a page. Sums are doubles, because the compared cosines differ little.
__global__ void __launch_bounds__(256) cosines_kernel(DigestWork w) {
  const DigestPart part = w.parts[blockIdx.y];
  const int index = static_cast<int>(blockIdx.x * 8 + threadIdx.x / 32), lane = static_cast<int>(threadIdx.x) % 32;
  if (index >= part.n_pages) return;
  const int token = (part.first_page + index) * w.page_tokens;
  const std::byte* keys =
      reinterpret_cast<const std::byte*>(part.tiles[token / kPageTokens] + part.offset) + token % kPageTokens * w.token_bytes;
  const auto over_lanes = [](double x) {
    for (int i = 16; i > 0; i /= 2) x += __shfl_xor_sync(kAllLanes, x, i);
    return x;
  };
  __shared__ float means[8][32 * kMostDims];  // each lane reads what it has written
  float* mean = means[threadIdx.x / 32] + lane;
  for (int i = 0; 32 * i + lane < w.head_dim; ++i) {
    float sum = 0.0f;
    for (int t = 0; t < w.page_tokens; ++t) sum += load_value(w.type, keys + t * w.token_bytes, i, lane);
    mean[32 * i] = sum / static_cast<float>(w.page_tokens);
  }
  double least = 1.0;
  for (int t = 0; t < w.page_tokens; ++t) {
    double product = 0.0, key_squares = 0.0, mean_squares = 0.0;
    for (int i = 0; 32 * i + lane < w.head_dim; ++i) {
      const double x = static_cast<double>(load_value(w.type, keys + t * w.token_bytes, i, lane)), y = static_cast<double>(mean[32 * i]);
      product += x * y, key_squares += x * x, mean_squares += y * y;
    }
    product = over_lanes(product);
    const double both = sqrt(over_lanes(key_squares) * over_lanes(mean_squares)), cosine = product / both;
    least = fmin(least, both > 0.0 && fabs(cosine) <= 2.0 ? cosine : 0.0);
  }
  if (lane == 0) part.cosines[index] = static_cast<float>(least);
}

constexpr int kCompensationBatch = 8;
__global__ void __launch_bounds__(32 * kMostDims)
    add_to_compensation_tokens_kernel(const CompensationPart* parts, KvType token_type, int head_dim) {
  const CompensationPart part = parts[blockIdx.x];
  const int value = static_cast<int>(threadIdx.x), is_value = static_cast<int>(blockIdx.y);
  if (value >= head_dim) return;
  const KvType type = part_type(token_type, is_value);
  const int token_bytes = kv_bytes(token_type, 2 * head_dim), place = is_value * value_at(token_type, head_dim);
  const auto token = [&](int i) {
    const int at = part.first + i;
    const uint64_t tile = part.tiles ? part.tiles[at / kPageTokens] + part.offset : part.offset;
    return reinterpret_cast<const std::byte*>(tile) + at % kPageTokens * token_bytes + place;
  };
  float* mean = part.compensation_token + is_value * head_dim + value;
  double sum = part.n_before > 0 ? part.n_before * static_cast<double>(*mean) : 0.0;
  for (int first = 0; first < part.n; first += kCompensationBatch) {
    float x[kCompensationBatch];
    double share[kCompensationBatch];
    ORRERY_UNROLL for (int i = 0; i < kCompensationBatch; ++i) share[i] = first + i >= part.n ? 0.0
                                                                          : part.shares       ? static_cast<double>(part.shares[first + i])
                                                                                              : 1.0;
    ORRERY_UNROLL for (int i = 0; i < kCompensationBatch; ++i) x[i] =
        share[i] != 0.0 ? load_value(type, token(first + i), value / 32, value % 32) : 0.0f;
    ORRERY_UNROLL for (int i = 0; i < kCompensationBatch; ++i) sum += share[i] * static_cast<double>(x[i]);
  }
  *mean = static_cast<float>(part.shares ? sum : sum / (part.n_before + part.n));
}

}  // namespace digests_cu
using namespace digests_cu;

void add_to_compensation_tokens(Queue& queue, const CompensationPart* parts, const KvFormat& kv, int32_t n_parts) {
  const auto threads = static_cast<unsigned>((kv.head_dim + 31) / 32 * 32);
  launch<add_to_compensation_tokens_kernel>(queue, {Dim3(static_cast<unsigned>(n_parts), 2), Dim3(threads)}, parts, kv.type, kv.head_dim);
}

void digest(Queue& queue, const DigestPart* parts, const DigestShape& shape, int32_t n_parts, int32_t most_pages) {
  const DigestWork w{parts,     key_type(shape.kv.type), static_cast<int32_t>(shape.kv.token_bytes()), shape.kv.head_dim, shape.page_tokens,
                     shape.kind};
  launch<digest_kernel>(
      queue, {Dim3(static_cast<unsigned>(most_pages), static_cast<unsigned>(n_parts)), Dim3(shape.kv.head_dim > 256 ? 512 : 256)}, w);
  const Geometry geometry{Dim3(static_cast<unsigned>((most_pages + 7) / 8), static_cast<unsigned>(n_parts)), Dim3(256)};
  if (shape.kind == DigestKind::mean) launch<cosines_kernel>(queue, geometry, w);
}

}  // namespace orrery::cuda
