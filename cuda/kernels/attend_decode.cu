// Attention of generated tokens. A row reads each key and value that it sees once, and this is nearly all its cost (README.md).
//
// An item is one row, one KV head, up to 8 of its query heads, and one split of its keys: pages from a fixed position on. Thread blocks of
// 4 warps find their items from the rows' positions or the heads' lengths, so one graph serves every step. Items of one split of several
// rows follow each other: rows of one sequence then find its keys in the second-level cache. Warp w takes tokens 16 w .. 16 w + 15 of every
// page. It copies K and V of this strip to shared memory as they are stored, and multiplies with m16n8k16. Where both do not fit (F32 heads
// of 256, F16 heads of 512), V takes K's place when the scores are known. A lane has 128
// registers for its part of the outputs: heads of 512 add both halves of the weights there at once. Warps share only the queries. At an
// item's end the warps' (o, m, l) merge in order;
// a second kernel merges the splits in order. A compensation token is an item of its own: its (o, l) is multiplied by the number of tokens
// that it stands for. Precision of the products: README.md.
#include <algorithm>

#include "cuda/device/launch.h"
#include "cuda/kernels/kv.cuh"
#include "cuda/kernels/products.cuh"

namespace orrery::cuda {

namespace attend_decode_cu {

struct DecodeGeometry {
  static constexpr int kWarps = 4, kThreads = 32 * kWarps;
  static constexpr int kStrip = kPageTokens / kWarps;  // a warp's tokens in each page
  static constexpr int kQueries = 8;                   // query heads of an item
  static constexpr int kBlocksPerSm = 4;
};
using G = DecodeGeometry;
static_assert(G::kStrip == 16, "one step of the products with V");

constexpr uint64_t kPartialBytes = uint64_t{8} << 20;  // rows run in waves whose partial results fit this

// Tokens of a split. They depend only on the number of keys that a row sees, so that other rows and the device do not change its sums.
ORRERY_HOST_DEVICE constexpr int split_tokens(int n_keys) {
  return n_keys <= 2048 ? 64 : n_keys <= 8192 ? 128 : n_keys <= 32768 ? 256 : 512;
}
int most_splits(int max_context) {
  int most = 0;
  for (const int n : {2048, 8192, 32768, max_context}) {
    const int keys = std::min(n, max_context);
    most = std::max(
        most, (keys + split_tokens(keys) - 1) / split_tokens(keys) + 1);  // + 1: a window begins within a split; or a compensation token
  }
  return most;
}
uint64_t row_partial_bytes(int n_heads, int max_splits, int head_dim) {
  return static_cast<uint64_t>(n_heads) * static_cast<uint64_t>(max_splits) * static_cast<uint64_t>(head_dim + 2) * sizeof(float);
}
int wave_rows(int n_rows, uint64_t row_bytes) {  // at most a warp's lanes: find_item()
  return static_cast<int>(
      std::clamp<uint64_t>(kPartialBytes / std::max<uint64_t>(row_bytes, 1), 1, static_cast<uint64_t>(std::clamp(n_rows, 1, 32))));
}

struct DecodeWork {
  StepView step;
  KvPlace place;
  ConstRows q;
  Rows out;
  float* partial_o;                                                     // (n_rows, n_heads, max_splits, value_dim)
  float2* partial_ml;                                                   // (n_rows, n_heads, max_splits)
  int32_t first_row, n_rows, rows_log2, n_kv_heads, group, max_splits;  // rows_log2: of n_rows, rounded up to a power of two
  float scale;                                                          // times log2(e): weights are powers of two
  const float* sinks;                                                   // (n_heads) or null
};

struct Splits {
  int tokens, first, count;  // `first` counts from position 0; `count` includes the compensation token's split, which is the last
};
__device__ __forceinline__ bool has_compensation_token(const KeySpan& span) {
  return span.compensation_weight > 0.0f || span.compensation_logs;
}
__device__ __forceinline__ Splits splits_of(const KeySpan& span) {
  const int tokens = split_tokens(span.last - span.first), first = span.first / tokens;
  const int n_compensation_tokens = has_compensation_token(span) ? 1 : 0;
  return {tokens, first, (span.last > span.first ? (span.last + tokens - 1) / tokens - first : 0) + n_compensation_tokens};
}

// Finds a thread block's item. All warps search, and find the same one. Items are numbered by KV head, split, tile of queries, row, so that
// tiles of queries find their keys in the second-level cache. Each row has the splits of the longest one. `split` is -1 where the item's
// row has fewer.
struct Item {
  int row, kv_head, first_query, split;  // row: within the wave; first_query: query head within the group
};
__device__ bool find_item(const DecodeWork& w, int item, Item* found) {
  const int lane = static_cast<int>(threadIdx.x) % 32, team = 1 << w.rows_log2, row = lane & (team - 1);  // a team of lanes has a KV head
  const int n_query_tiles = (w.group + G::kQueries - 1) / G::kQueries;
  for (int base = 0; base < w.n_kv_heads; base += 32 >> w.rows_log2) {
    const int kv_head = base + (lane >> w.rows_log2);
    const int n_splits =
        row < w.n_rows && kv_head < w.n_kv_heads ? splits_of(key_span(w.step, w.place, w.first_row + row, kv_head)).count : 0;
    int most = n_splits;
    for (int d = 1; d < team; d *= 2) most = max(most, __shfl_xor_sync(kAllLanes, most, d));
    const int count = most * n_query_tiles * w.n_rows;
    int sum = count;  // of this team and those before
    for (int d = team; d < 32; d *= 2) {
      const int below = __shfl_up_sync(kAllLanes, sum, static_cast<unsigned>(d));
      if (lane >= d) sum += below;
    }
    const int total = __shfl_sync(kAllLanes, sum, 31);
    if (item < total) {
      const int owner = __popc(__ballot_sync(kAllLanes, sum <= item));  // the first lane of a team
      const int rest = item - __shfl_sync(kAllLanes, sum - count, owner);
      const int of_row = rest % w.n_rows, tile = rest / w.n_rows % n_query_tiles, split = rest / w.n_rows / n_query_tiles;
      const bool has = split < __shfl_sync(kAllLanes, n_splits, owner + of_row);
      *found = {of_row, base + (owner >> w.rows_log2), tile * G::kQueries, has ? split : -1};
      return true;
    }
    item -= total;
  }
  return false;
}

// A strip in shared memory, and the fragments of its keys and values. A head's dimensions may come in any order, as long as both factors of
// a product agree on it. In all types but F16, a lane takes values that lie side by side.
template <KvType kType, int kDim, int kShared>
struct Strip : KvLayout<kType, kDim, kShared> {
  using L = KvLayout<kType, kDim, kShared>;
  static constexpr bool kBlocks = in_blocks(kType);
  static constexpr int kSteps = kDim / 16, kValueSteps = L::kValueDim / 16;
  static constexpr int kParts = kType == KvType::f32 ? 2 : 1;  // halves that represent a value

  // A thread block's queries as fragments, (kSteps, 32 lanes).
  static constexpr int kQueryBytes = kSteps * 32 * 16;
  static constexpr int kMergeBytes = G::kWarps * G::kQueries * L::kValueDim * 4;
  static constexpr int kFixedBytes = G::kWarps * G::kQueries * 8;  // ml
  // The pieces of a strip that take turns in shared memory: 1: all; 2: K, then V.
  static constexpr int kMostOfToken = (kMostSharedBytes - kQueryBytes - kFixedBytes) / (G::kWarps * G::kStrip) - 16;
  static constexpr int kPieces = L::kTokenBytes <= kMostOfToken ? 1 : 2;
  static constexpr int kPartBytes = L::kTokenBytes / kPieces, kValueAt = kPieces == 1 ? L::kValueFrom : 0;
  static constexpr int kPitch = kPartBytes + (kBlocks ? 0 : 16);  // + 16 bytes: eight rows meet different banks
  static constexpr int kBytes = G::kStrip * kPitch + (kBlocks ? 16 : 0);
  static constexpr int kSharedBytes = kQueryBytes + (G::kWarps * kBytes > kMergeBytes ? G::kWarps * kBytes : kMergeBytes);
  static_assert(kSharedBytes + kFixedBytes <= kMostSharedBytes && (kPieces == 1 || (!kBlocks && kShared == 0)),
                "no GPU of the list has so much shared memory");

  // Copies tokens [first, last) of the strip at `from`, and zeros for the other tokens, because their V is multiplied by 0. Returns the
  // strip's start in shared memory. Slots of quantized types lie at any address: the first 16-byte piece may begin before them.
  static __device__ __forceinline__ const std::byte* copy(std::byte* to, const std::byte* from, int first, int last, int lane) {
    if constexpr (kBlocks) {
      const int before = static_cast<int>(reinterpret_cast<uintptr_t>(from) % 16);
      const int begin = before + max(first, 0) * L::kTokenBytes, end = before + min(last, G::kStrip) * L::kTokenBytes;
      for (int i = lane; i * 16 < before + G::kStrip * L::kTokenBytes; i += 32)
        copy_async_16(to + i * 16, from - before + i * 16, i * 16 + 16 <= begin ? 0 : min(max(end - i * 16, 0), 16));
      return to + before;
    } else {
      constexpr int kChunks = kPartBytes, kPerToken = kPartBytes / 16;  // chunks of 16 tokens, of 16 bytes each
      for (int i = lane; i < kChunks; i += 32) {
        const int token = i / kPerToken;
        const std::byte* chunk = from + (kPieces > 1 ? token * L::kTokenBytes + i % kPerToken * 16 : i * 16);
        copy_async_16(to + token * kPitch + i % kPerToken * 16, chunk, token >= first && token < last ? 16 : 0);
      }
      return to;
    }
  }

  // In step `k` of the products with K a lane has two pairs of dimensions: the first at query_dim(), the second kPairStep further.
  static constexpr int kPairStep = kType == KvType::f16 ? 8 : 2;
  static __device__ __forceinline__ int query_dim(int k, int t) { return 16 * k + (kType == KvType::f16 ? 2 : 4) * t; }

  // b[2 n] and b[2 n + 1]: 16 dimensions of keys 8 n .. 8 n + 7.
  static __device__ __forceinline__ void keys(const std::byte* strip, int k, int part, int lane, uint32_t (&b)[4]) {
    const int t = lane % 4;
    if constexpr (kType == KvType::f16) {
      load_matrices_4(b, strip + (lane % 8 + lane / 16 * 8) * kPitch + (2 * k + lane / 8 % 2) * 16);
    } else {
      ORRERY_UNROLL for (int n = 0; n < 2; ++n) {
        const std::byte* key = strip + (8 * n + lane / 4) * kPitch;
        if constexpr (kType == KvType::f32) {
          const float4 x = *reinterpret_cast<const float4*>(key + (16 * k + 4 * t) * 4);
          uint32_t low[2], high[2];
          split_halves(x.x, x.y, &high[0], &low[0]);
          split_halves(x.z, x.w, &high[1], &low[1]);
          b[2 * n] = part ? low[0] : high[0], b[2 * n + 1] = part ? low[1] : high[1];
        } else {
          const std::byte* block = key + k / 2 * L::kKeyBlockBytes + 2;
          uint32_t codes;
          if constexpr (L::kKeyType == KvType::q8_0) codes = load_2x16(block + k % 2 * 16 + 4 * t) ^ 0x80808080u;
          else codes = load_2x16(block + 4 * t) >> k % 2 * 4 & 0x0F0F0F0Fu;
          b[2 * n] = codes_to_halves<L::kKeyType>(codes, 0x4140), b[2 * n + 1] = codes_to_halves<L::kKeyType>(codes, 0x4342);
        }
      }
    }
  }

  // b[2 n] and b[2 n + 1]: 8 dimensions of all 16 keys. Column c of these is dimension value_dim(k, n, c).
  static __device__ __forceinline__ int value_dim(int k, int n, int c) { return 16 * k + (kType == KvType::f16 ? 8 * n + c : 2 * c + n); }
  static __device__ __forceinline__ void values(const std::byte* strip, int k, int part, int lane, uint32_t (&b)[4]) {
    const int t = lane % 4, c = lane / 4;
    if constexpr (kType == KvType::f16) {
      load_matrices_4_transposed(b, strip + (lane % 16) * kPitch + kValueAt + (2 * k + lane / 16) * 16);
    } else {
      ORRERY_UNROLL for (int half = 0; half < 2; ++half) {
        const std::byte* value = strip + (8 * half + 2 * t) * kPitch + kValueAt;  // the next key's V lies kPitch further
        if constexpr (kType == KvType::f32) {
          const float2 x = *reinterpret_cast<const float2*>(value + (16 * k + 2 * c) * 4);
          const float2 y = *reinterpret_cast<const float2*>(value + kPitch + (16 * k + 2 * c) * 4);
          uint32_t low[2], high[2];
          split_halves(x.x, y.x, &high[0], &low[0]);
          split_halves(x.y, y.y, &high[1], &low[1]);
          b[half] = part ? low[0] : high[0], b[2 + half] = part ? low[1] : high[1];
        } else {
          constexpr bool kWhole = L::kValueType == KvType::q8_0;
          const std::byte* block = value + k / 2 * L::kValueBlockBytes + 2 + 2 * c + (kWhole ? k % 2 * 16 : 0);
          const uint32_t pair = load_16(block) | load_16(block + kPitch) << 16;
          const uint32_t codes = kWhole ? pair ^ 0x80808080u : pair >> k % 2 * 4 & 0x0F0F0F0Fu;
          b[half] = codes_to_halves<L::kValueType>(codes, 0x4240), b[2 + half] = codes_to_halves<L::kValueType>(codes, 0x4341);
        }
      }
    }
  }

  static __device__ __forceinline__ float scale(const std::byte* strip, int key, int is_value, int block) {
    return half_at(strip + key * kPitch + (is_value ? L::kValueFrom + block * L::kValueBlockBytes : block * L::kKeyBlockBytes));
  }
};

// A lane's share of a warp's results for values of kDim dimensions: query lane / 4, columns 2 (lane % 4) and 2 (lane % 4) + 1 of each 8
// dimensions.
template <int kDim>
struct Partial {
  static constexpr bool kSummed = kDim > 256;
  static constexpr int kEach = kSummed ? 2 : 4;
  float o[kDim / 8]
         [kEach];  // [2 step + n]; elements 0 and 1: by the upper halves of the weights; 2 and 3: by the lower halves, unless summed
  float m, l;      // l: the sum over this lane's keys alone
};
constexpr float kWeightScale = 16.0f;  // keeps weights times V's small scales within the range of halves

// fetch() is called before the first product with V, where V takes K's place.
template <class S, class F>
__device__ __forceinline__ void attend_strip(const std::byte* strip, const uint4* queries, int first, int last, int lane,
                                             Partial<S::kValueDim>* to, const F& fetch) {
  constexpr int kDim = S::kValueDim;
  const int t = lane % 4;
  float s[2][2] = {};  // scores; [n][e]: key 8 n + 2 t + e
  float c[2][4] = {};
  ORRERY_UNROLL for (int k = 0; k < S::kSteps; ++k) {
    const uint4 query = queries[k * 32 + lane];
    const uint32_t a[4] = {query.x, query.y, query.z, query.w};
    ORRERY_UNROLL for (int part = 0; part < S::kParts; ++part) {
      uint32_t b[4];
      S::keys(strip, k, part, lane, b);
      mma_f16(c[0], a, b);
      mma_f16(c[1], a, b + 2);
    }
    if (S::kBlocks && k % 2 == 0) continue;
    if (!S::kBlocks && k + 1 < S::kSteps) continue;
    ORRERY_UNROLL for (int i = 0; i < 4; ++i) {  // a block of 32 dimensions is complete; in F32 and F16 all dimensions are
      const int n = i / 2, e = i % 2;
      const float dot = c[n][e] + c[n][e + 2];
      s[n][e] = S::kBlocks ? fmaf(dot, S::scale(strip, 8 * n + 2 * t + e, 0, k / 2), s[n][e]) : dot;
      c[n][e] = c[n][e + 2] = 0.0f;
    }
  }

  bool seen[4];
  float largest = -INFINITY;
  ORRERY_UNROLL for (int i = 0; i < 4; ++i) {
    const int key = 8 * (i / 2) + 2 * t + i % 2;
    seen[i] = key >= first && key < last;
    if (!seen[i]) s[i / 2][i % 2] = -INFINITY;
    largest = fmaxf(largest, s[i / 2][i % 2]);
  }
  largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 1));
  largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 2));
  const float m = fmaxf(to->m, largest);
  const float base = m == -INFINITY ? 0.0f : m;  // keys with a score of -infinity have weight 0, even if all keys have that score
  if (__any_sync(kAllLanes, m != to->m)) {       // otherwise the factor is 1
    const float decay = exp2_approx(to->m - base);
    ORRERY_UNROLL for (int i = 0; i < kDim / 8; ++i) { ORRERY_UNROLL for (int j = 0; j < Partial<kDim>::kEach; ++j) to->o[i][j] *= decay; }
    to->l *= decay;
    to->m = m;
  }
  float p[4];
  ORRERY_UNROLL for (int i = 0; i < 4; ++i) p[i] = exp2_approx(s[i / 2][i % 2] - base);
  to->l += (p[0] + p[1]) + (p[2] + p[3]);

  uint32_t a[4];
  if constexpr (!S::kBlocks) {
    split_halves(p[0], p[1], &a[0], &a[1]);
    split_halves(p[2], p[3], &a[2], &a[3]);
  }
  ORRERY_UNROLL for (int k = 0; k < S::kValueSteps; ++k) {
    if (S::kPieces > 1 && k == 0) fetch();
    if (S::kBlocks && k % 2 == 0) {
      float weight[4];
      ORRERY_UNROLL for (int i = 0; i < 4; ++i) weight[i] =
          seen[i] ? p[i] * (kWeightScale * S::scale(strip, 8 * (i / 2) + 2 * t + i % 2, 1, k / 2)) : 0.0f;
      split_halves(weight[0], weight[1], &a[0], &a[1]);
      split_halves(weight[2], weight[3], &a[2], &a[3]);
    }
    if constexpr (Partial<kDim>::kSummed) {
      float sums[2][4] = {};
      ORRERY_UNROLL for (int part = 0; part < S::kParts; ++part) {
        uint32_t b[4];
        S::values(strip, k, part, lane, b);
        mma_f16(sums[0], a, b);
        mma_f16(sums[1], a, b + 2);
      }
      ORRERY_UNROLL for (int n = 0; n < 2; ++n) {
        ORRERY_UNROLL for (int e = 0; e < 2; ++e) to->o[2 * k + n][e] += sums[n][e] + sums[n][e + 2];
      }
    } else {
      ORRERY_UNROLL for (int part = 0; part < S::kParts; ++part) {
        uint32_t b[4];
        S::values(strip, k, part, lane, b);
        mma_f16(to->o[2 * k], a, b);
        mma_f16(to->o[2 * k + 1], a, b + 2);
      }
    }
  }
}

// Writes an item's queries as fragments: rows 0-7 are the queries as halves, rows 8-15 the rounding errors as halves.
template <class S, int kDim>
__device__ __forceinline__ void load_queries(const float* q, int n_queries, float scale, uint4* queries) {
  for (int i = static_cast<int>(threadIdx.x); i < S::kSteps * 32; i += G::kThreads) {
    const int k = i / 32, query = i % 32 / 4, at = query * kDim + S::query_dim(k, i % 4);
    uint4 a = make_uint4(0, 0, 0, 0);
    if (query < n_queries) {
      const float2 x = *reinterpret_cast<const float2*>(q + at), y = *reinterpret_cast<const float2*>(q + at + S::kPairStep);
      split_halves(x.x * scale, x.y * scale, &a.x, &a.y);
      split_halves(y.x * scale, y.y * scale, &a.z, &a.w);
    }
    queries[i] = a;
  }
}

// Attends to a head's compensation token. A warp has one query. Of a weight that is a logarithm m takes the weight, so none is too large.
// logs: of the item's first query; values: the token's V for each query from there on, or null.
template <int kDim>
__device__ __forceinline__ void attend_compensation_token(const KeySpan& span, const float* logs, const float* values, const float* q,
                                                          int n_queries, float scale, float* partial_o, float2* partial_ml,
                                                          int64_t stride) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const float alike = logs ? 1.0f : span.compensation_weight;
  for (int g = warp; g < n_queries; g += G::kWarps) {
    float dot = 0.0f;
    for (int i = lane; i < kDim; i += 32) dot = fmaf(q[g * kDim + i], span.compensation_token[i], dot);
    dot = warp_sum(dot) * scale;
    if (logs) dot += logs[g];
    const bool seen = dot != -INFINITY;  // a score of -infinity means weight 0, even if no other key exists
    const float* value = values ? values + g * kDim : span.compensation_token + kDim;
    for (int i = lane; i < kDim; i += 32) partial_o[g * stride * kDim + i] = seen ? alike * value[i] : 0.0f;
    if (lane == 0) partial_ml[g * stride] = make_float2(dot, seen ? alike : 0.0f);
  }
}

// The least number of thread blocks on an SM, for the compiler; 0: its own choice, which for this one instance spills on sm_120.
template <KvType kType, int kDim>
[[maybe_unused]] inline constexpr int kLeastBlocks = (kType == KvType::f32 && kDim == 32) ? 4 : 0;

template <KvType kType, int kDim, int kShared>
__global__ void __launch_bounds__(G::kThreads, kLeastBlocks<kType, kDim>) attend_decode_kernel(DecodeWork w) {
  start_early();
  using S = Strip<kType, kDim, kShared>;
  constexpr int kOut = S::kValueDim;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  uint4* queries = dynamic_shared<uint4>();
  std::byte* strips = dynamic_shared<std::byte>() + S::kQueryBytes;
  std::byte* strip = strips + warp * S::kBytes;
  __shared__ float2 ml[G::kWarps][G::kQueries];
  constexpr bool kKeeps = Partial<kOut>::kSummed && kShared == 0;  // what the end of an item wants: these heads leave no registers for it
  __shared__ int64_t kept_to;
  __shared__ int kept_queries;

  Item item;
  for (int index = static_cast<int>(blockIdx.x); find_item(w, index, &item); index += static_cast<int>(gridDim.x)) {
    if (item.split < 0) continue;
    const KeySpan span = key_span(w.step, w.place, w.first_row + item.row, item.kv_head);
    const Splits splits = splits_of(span);
    const int split_first = (splits.first + item.split) * splits.tokens;
    const int first = max(span.first, split_first), last = min(span.last, split_first + splits.tokens);
    const int head = item.kv_head * w.group + item.first_query, n_queries = min(w.group - item.first_query, G::kQueries);
    const float* q = w.q.data + (w.first_row + item.row) * w.q.stride + static_cast<int64_t>(head) * kDim;
    const int64_t to = (static_cast<int64_t>(item.row) * (w.n_kv_heads * w.group) + head) * w.max_splits + item.split;  // the first query's
    if constexpr (kShared == 0) {  // others have no compensation tokens
      if (has_compensation_token(span) && item.split + 1 == splits.count) {
        const float* logs = span.compensation_logs ? span.compensation_logs + item.first_query : nullptr;
        const float* values = span.compensation_values ? span.compensation_values + item.first_query * kDim : nullptr;
        attend_compensation_token<kDim>(span, logs, values, q, n_queries, w.scale, w.partial_o + to * kDim, w.partial_ml + to,
                                        w.max_splits);
        continue;
      }
    }
    load_queries<S, kDim>(q, n_queries, w.scale, queries);
    __syncthreads();
    if (kKeeps && thread == 0) kept_to = to, kept_queries = n_queries;

    Partial<kOut> part;
    ORRERY_UNROLL for (int i = 0; i < kOut / 8; ++i) { ORRERY_UNROLL for (int j = 0; j < Partial<kOut>::kEach; ++j) part.o[i][j] = 0.0f; }
    part.m = -INFINITY, part.l = 0.0f;
    for (int page = first / kPageTokens; page * kPageTokens < last; ++page) {
      const int at = page * kPageTokens + warp * G::kStrip;
      if (at >= last || at + G::kStrip <= first) continue;
      const std::byte* from = reinterpret_cast<const std::byte*>(span.tiles[page] + span.offset) + warp * G::kStrip * S::kTokenBytes;
      const std::byte* tokens = S::copy(strip, from, first - at, last - at, lane);
      copy_async_commit();
      copy_async_wait<0>();
      __syncwarp();
      attend_strip<S>(tokens, queries, first - at, last - at, lane, &part, [&] {
        if constexpr (S::kPieces == 1) return;
        __syncwarp();  // every lane has read K
        S::copy(strip, from + S::kPartBytes, first - at, last - at, lane);
        copy_async_commit();
        copy_async_wait<0>();
        __syncwarp();
      });
      __syncwarp();  // before the next strip comes
    }
    part.l += __shfl_xor_sync(kAllLanes, part.l, 1);
    part.l += __shfl_xor_sync(kAllLanes, part.l, 2);

    // Merges the warps' results, in order.
    __syncthreads();
    float* all = reinterpret_cast<float*>(strips);  // (kWarps, kQueries, kOut)
    const int query = lane / 4, t = lane % 4;
    if (t == 0) ml[warp][query] = make_float2(part.m, part.l);
    constexpr float kUnscale = S::kBlocks ? 1.0f / kWeightScale : 1.0f;
    ORRERY_UNROLL for (int i = 0; i < kOut / 8; ++i) {
      ORRERY_UNROLL for (int e = 0; e < 2; ++e) {
        float sum = part.o[i][e];
        if constexpr (!Partial<kOut>::kSummed) sum += part.o[i][e + 2];
        all[(warp * G::kQueries + query) * kOut + S::value_dim(i / 2, i % 2, 2 * t + e)] = sum * kUnscale;
      }
    }
    __syncthreads();
    for (int i = thread; i < (kKeeps ? kept_queries : n_queries) * (kOut / 4); i += G::kThreads) {
      const int g = i / (kOut / 4), dim = i % (kOut / 4) * 4;
      float m = -INFINITY, l = 0.0f;
      for (int v = 0; v < G::kWarps; ++v) m = fmaxf(m, ml[v][g].x);
      float4 o = make_float4(0, 0, 0, 0);
      for (int v = 0; v < G::kWarps; ++v) {
        if (ml[v][g].y == 0.0f) continue;
        const float weight = exp2_approx(ml[v][g].x - m);
        const float4 x = *reinterpret_cast<const float4*>(all + (v * G::kQueries + g) * kOut + dim);
        o.x = fmaf(weight, x.x, o.x), o.y = fmaf(weight, x.y, o.y), o.z = fmaf(weight, x.z, o.z), o.w = fmaf(weight, x.w, o.w);
        l = fmaf(weight, ml[v][g].y, l);
      }
      const int64_t at = (kKeeps ? kept_to : to) + int64_t{g} * w.max_splits;
      *reinterpret_cast<float4*>(w.partial_o + at * kOut + dim) = o;
      if (dim == 0) w.partial_ml[at] = make_float2(m, l);
    }  // no barrier here: the next item's queries lie elsewhere, and its strips are copied behind a barrier
  }
}

// Merges the splits of a row's query head of up to kMost dimensions. Warp w adds splits w, w + 8, ...; then the warps' sums are added in
// order. A warp writes 32 dimensions at a time: one group of the quantized row, if kQuantize.
constexpr int kMergeWarps = 8;
template <bool kQuantize, int kMost>
__global__ void __launch_bounds__(32 * kMergeWarps) merge_splits_kernel(DecodeWork w, int value_dim, QuantizedRows quantized) {
  start_early();
  const int n_heads = w.n_kv_heads * w.group, head = static_cast<int>(blockIdx.x) % n_heads, row = static_cast<int>(blockIdx.x) / n_heads;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int n = splits_of(key_span(w.step, w.place, w.first_row + row, head / w.group)).count;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * w.max_splits;
  const float2* ml = w.partial_ml + first;
  const float sink = w.sinks ? w.sinks[head] * 1.44269504088896f : -INFINITY;  // a split more, without a value
  float m = sink;
  for (int i = lane; i < n; i += 32) m = fmaxf(m, ml[i].x);
  m = warp_max(m);

  __shared__ __align__(16) float sums[kMergeWarps][kMost];  // written four at a time
  __shared__ float totals[kMergeWarps];
  constexpr int kParts = kMost / 128;
  float4 o[kParts];  // dimensions 4 lane .., 128 + 4 lane .., ...
  ORRERY_UNROLL for (int j = 0; j < kParts; ++j) o[j] = make_float4(0, 0, 0, 0);
  float l = 0.0f;
  ORRERY_UNROLL_TWICE for (int i = warp; i < n; i += kMergeWarps) {
    const float2 part = ml[i];
    if (part.y == 0.0f) continue;
    const float weight = exp2_approx(part.x - m);
    l = fmaf(weight, part.y, l);
    ORRERY_UNROLL for (int j = 0; j < kParts; ++j) {
      const int dim = 128 * j + 4 * lane;
      if (dim >= value_dim) continue;
      const float4 x = *reinterpret_cast<const float4*>(w.partial_o + (first + i) * value_dim + dim);
      o[j].x = fmaf(weight, x.x, o[j].x), o[j].y = fmaf(weight, x.y, o[j].y);
      o[j].z = fmaf(weight, x.z, o[j].z), o[j].w = fmaf(weight, x.w, o[j].w);
    }
  }
  ORRERY_UNROLL for (int j = 0; j < kParts; ++j) {
    if (128 * j + 4 * lane < value_dim) *reinterpret_cast<float4*>(&sums[warp][128 * j + 4 * lane]) = o[j];
  }
  if (lane == 0) totals[warp] = l;
  __syncthreads();
  ORRERY_UNROLL for (int at = 0; at < kMost; at += 32 * kMergeWarps) {
    const int dim = at + static_cast<int>(threadIdx.x);
    if (dim >= value_dim) return;
    float total = w.sinks ? exp2_approx(sink - m) : 0.0f, sum = 0.0f;
    for (int v = 0; v < kMergeWarps; ++v) total += totals[v], sum += sums[v][dim];
    const float value = total == 0.0f ? 0.0f : sum / total;
    w.out.data[(w.first_row + row) * w.out.stride + static_cast<int64_t>(head) * value_dim + dim] = value;
    if constexpr (kQuantize) quantize_group(value, quantized, w.first_row + row, (head * value_dim + dim) / 32);
  }
}

}  // namespace attend_decode_cu
using namespace attend_decode_cu;

// Waves of layers whose heads are smaller, or fewer, have more rows: up to kPartialBytes in all.
uint64_t attend_scratch_bytes(const DeviceShape&, const StepLimits& limits) {
  const uint64_t row_bytes = row_partial_bytes(limits.n_heads, most_splits(std::max(limits.max_context, 1)), limits.head_dim);
  return std::max(row_bytes, std::min(kPartialBytes, static_cast<uint64_t>(wave_rows(limits.max_rows, 0)) * row_bytes));
}

void attend_decode(Queue& queue, const DeviceShape& device, const StepView& step, const Attention& shape, ConstRows q, Rows out,
                   const QuantizedRows* quantized, int32_t first_row, int32_t n_rows, int32_t max_context, std::byte* scratch) {
  const int32_t dim = shape.kv.head_dim, value_dim = shape.kv.value_dim();
  DecodeWork w = {};
  w.step = step, w.place = kv_place(shape), w.q = q, w.out = out;
  w.n_kv_heads = shape.kv.n_kv_heads;
  w.group = shape.n_heads / w.n_kv_heads;
  w.max_splits = most_splits(max_context);
  w.scale = shape.scale * 1.44269504088896f;
  w.sinks = shape.sinks;
  const int32_t wave = wave_rows(n_rows, row_partial_bytes(shape.n_heads, w.max_splits, value_dim));
  w.partial_o = reinterpret_cast<float*>(scratch);
  w.partial_ml = reinterpret_cast<float2*>(w.partial_o + int64_t{wave} * shape.n_heads * w.max_splits * value_dim);
  if (!attends(shape.kv.type, dim, shape.kv.shared_values)) return void(queue.check(DriverError::invalid_value, kNoSuchHead));
  const int32_t end_row = first_row + n_rows;
  for (w.first_row = first_row; w.first_row < end_row; w.first_row += wave) {
    w.n_rows = std::min(wave, end_row - w.first_row);
    for (w.rows_log2 = 0; 1 << w.rows_log2 < w.n_rows;) ++w.rows_log2;
    const int64_t most_items = int64_t{w.n_rows} * w.n_kv_heads * ((w.group + G::kQueries - 1) / G::kQueries) * w.max_splits;
    const unsigned grid = static_cast<unsigned>(std::min<int64_t>(most_items, int64_t{device.n_sms} * G::kBlocksPerSm));
    with_kv_type(shape.kv.type, dim, shape.kv.shared_values, [&](auto type, auto head_dim, auto shared) {
      constexpr KvType kType = decltype(type)::value;
      constexpr int kDim = decltype(head_dim)::value, kShared = decltype(shared)::value;
      launch<attend_decode_kernel<kType, kDim, kShared>>(
          queue, {Dim3(grid), Dim3(G::kThreads), Strip<kType, kDim, kShared>::kSharedBytes, true}, w);
    });
    const Geometry merging = {Dim3(static_cast<unsigned>(w.n_rows * shape.n_heads)), Dim3(32 * kMergeWarps), 0, true};
    const QuantizedRows rows = quantized ? *quantized : QuantizedRows{};
    if (value_dim > 256)
      quantized ? launch<merge_splits_kernel<true, 512>>(queue, merging, w, value_dim, rows)
                : launch<merge_splits_kernel<false, 512>>(queue, merging, w, value_dim, rows);
    else
      quantized ? launch<merge_splits_kernel<true, 256>>(queue, merging, w, value_dim, rows)
                : launch<merge_splits_kernel<false, 256>>(queue, merging, w, value_dim, rows);
  }
}

}  // namespace orrery::cuda
