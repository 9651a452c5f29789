// Attention of prompt tokens: tensor cores multiply, with a running softmax between the two products. Scores are never written to memory.
//
// A thread block has one KV head and up to 128 queries (64 for heads of 256): consecutive rows times the group's query heads, 16 for each
// warp. Heads of 512 have 32 queries; two warps share 16 of these: both compute all scores, and each has half of the output's dimensions.
// A block walks the keys that its rows see in steps of 64 keys (fewer for heads from 256 on) at fixed absolute positions. While a step is
// computed, cp.async fetches the next one. F16 is used as it is stored; other types are unpacked to halves when their step begins. A row
// takes its steps in ascending order, and keys that it may not see have weight 0. So a row's bits depend neither on other rows nor on the
// chunk (README.md names one exception). Rows of several sequences are computed sequence by sequence. Blocks with the longest rows begin
// first. Segments of keys (KeySegment) take a launch each; a row's state between launches is kept to the bit. Error and cost: README.md.
#include <algorithm>

#include "cuda/device/launch.h"
#include "cuda/kernels/kv.cuh"

namespace orrery::cuda {

namespace attend_prefill_cu {

template <KvType kType, int kDim, int kShared>
struct Prefill : KvLayout<kType, kDim, kShared> {
  using L = KvLayout<kType, kDim, kShared>;
  static constexpr int kWarps = kDim > 128 ? 4 : 8, kThreads = 32 * kWarps;
  static constexpr int kParts = kDim > 256 ? 2 : 1;       // warps that share 16 queries, each with a part of the output
  static constexpr int kOutDims = L::kValueDim / kParts;  // of such a part
  static constexpr int kQueries = 16 * kWarps / kParts, kQueryLanes = 2 * kQueries;
  static constexpr int kKeys = kDim <= 128 ? kPageTokens : kDim > 256 || kType == KvType::f32 ? 16 : 32;  // of a step
  static constexpr bool kUnpacks = kType != KvType::f16;                                                  // a step is unpacked to halves
  static constexpr bool kRaw =
      kUnpacks && !(kDim > 256 && kType == KvType::f32);  // it is copied to shared memory before; otherwise read in place
  static constexpr bool kQueriesInRegisters = kDim <= 128;
  static constexpr int kBlocks = kDim <= 32 ? 2 : 1;  // thread blocks that an SM has registers for, at least
  static constexpr int kSteps = kDim / 16;
  static constexpr int kPitch = 2 * kDim + 16;          // of a K or V; + 16 bytes: eight rows meet different banks
  static constexpr int kVectors = kShared > 0 ? 1 : 2;  // of a token: K, then V, or K alone
  static constexpr int kStageBytes = kVectors * kKeys * kPitch;
  static constexpr int kRawBytes = kRaw ? kKeys * L::kTokenBytes : 0;
  static constexpr int kQueryBytes = kQueriesInRegisters ? 0 : kSteps * kQueryLanes * 16;
  static constexpr int kSharedBytes = kQueryBytes + kRawBytes + (kUnpacks ? 1 : 2) * kStageBytes;
  static_assert(kSharedBytes <= kMostSharedBytes, "no GPU of the list has so much shared memory");
};

struct PrefillWork {
  StepView step;
  KvPlace place;
  ConstRows q;
  Rows out;
  int32_t n_rows, group, part_heads, n_parts, tile_rows;
  float scale;  // times log2(e): weights are powers of two
  KeySegment keys;
  uint64_t page_bytes;  // of one layer of a page
  int32_t n_kv_heads;
  const float* sinks;  // (n_heads) or null
};
// The address of a KV head's keys in a tile.
__device__ __forceinline__ const std::byte* tile_of(const PrefillWork& w, const KeySpan& span, int kv_head, int tile) {
  if (!w.keys.staged) return reinterpret_cast<const std::byte*>(span.tiles[tile] + span.offset);
  return w.keys.staged + static_cast<uint64_t>(tile - w.keys.first / kPageTokens) * w.page_bytes +
         static_cast<uint64_t>(kv_head) * w.place.head_bytes;
}

// Begins to copy a step's keys and values to shared memory. F16: tokens outside of the span become zeros.
template <KvType kType, int kDim, int kShared>
__device__ __forceinline__ void fetch_step(std::byte* to, const std::byte* tile, const KeySpan& span, int first) {
  using P = Prefill<kType, kDim, kShared>;
  if constexpr (P::kUnpacks && !P::kRaw) return;  // unpack_step() reads the tokens where they lie
  const std::byte* from = tile + first % kPageTokens * P::kTokenBytes;
  const int thread = static_cast<int>(threadIdx.x), begin = max(span.first - first, 0), end = min(span.last - first, P::kKeys);
  if constexpr (P::kRaw) {
    for (int i = begin * P::kTokenBytes / 16 + thread; i * 16 < end * P::kTokenBytes; i += P::kThreads)
      copy_async_16(to + i * 16, from + i * 16);
  } else {
    constexpr int kPerToken = P::kTokenBytes / 16, kPerVector = kPerToken / P::kVectors;
    for (int i = thread; i < P::kKeys * kPerToken; i += P::kThreads) {
      const int token = i / kPerToken, at = i % kPerToken, is_value = at / kPerVector;
      copy_async_16(to + (is_value * P::kKeys + token) * P::kPitch + at % kPerVector * 16, from + i * 16,
                    token >= begin && token < end ? 16 : 0);
    }
  }
  copy_async_commit();
}

// Eight values, from index `at` on, as halves.
template <KvType kType>
__device__ __forceinline__ uint4 unpack_eight(const std::byte* vector, int at) {
  if constexpr (kType == KvType::f32) {
    const float4 x = *reinterpret_cast<const float4*>(vector + at * 4), y = *reinterpret_cast<const float4*>(vector + at * 4 + 16);
    return make_uint4(pack_halves(x.x, x.y), pack_halves(x.z, x.w), pack_halves(y.x, y.y), pack_halves(y.z, y.w));
  } else {
    const std::byte* block = vector + at / 32 * kv_bytes(kType, 32);
    const uint32_t d = load_16(block);
    const __half2 scale = half2_of(d | d << 16);
    uint32_t codes[2];
    for (int i = 0; i < 2; ++i) {
      if constexpr (kType == KvType::q8_0) codes[i] = load_2x16(block + 2 + at % 32 + 4 * i) ^ 0x80808080u;
      else codes[i] = load_2x16(block + 2 + at % 16 + 4 * i) >> at % 32 / 16 * 4 & 0x0F0F0F0Fu;
    }
    const auto half_of = [&](int i, uint32_t selector) {
      return bits_of(__hmul2(half2_of(codes_to_halves<kType>(codes[i], selector)), scale));
    };
    return make_uint4(half_of(0, 0x4140), half_of(0, 0x4342), half_of(1, 0x4140), half_of(1, 0x4342));
  }
}
// Unpacks the step's K (kPart 0), its V (1), or both (2), which have one type.
template <KvType kType, int kDim, int kShared, int kPart>
__device__ __forceinline__ void unpack_part(std::byte* to, const std::byte* raw, int first, int last) {
  using P = Prefill<kType, kDim, kShared>;
  constexpr KvType kOne = kPart == 1 ? P::kValueType : P::kKeyType;
  constexpr int kParts = kPart == 2 ? 2 : 1;
  ORRERY_UNROLL_TWICE for (int i = static_cast<int>(threadIdx.x); i < P::kKeys * kParts * (kDim / 8); i += P::kThreads) {
    const int token = i / (kParts * (kDim / 8)), is_value = kPart == 2 ? i / (kDim / 8) % 2 : kPart, at = i % (kDim / 8) * 8;
    uint4 halves = make_uint4(0, 0, 0, 0);
    if (token >= first && token < last) halves = unpack_eight<kOne>(raw + token * P::kTokenBytes + is_value * P::kKeyBytes, at);
    *reinterpret_cast<uint4*>(to + (is_value * P::kKeys + token) * P::kPitch + at * 2) = halves;
  }
}
template <KvType kType, int kDim, int kShared>
__device__ __forceinline__ void unpack_step(std::byte* to, const std::byte* raw, int first, int last) {
  if constexpr (kShared > 0) {
    unpack_part<kType, kDim, kShared, 0>(to, raw, first, last);
  } else if constexpr (part_type(kType, 0) == part_type(kType, 1)) {
    unpack_part<kType, kDim, kShared, 2>(to, raw, first, last);
  } else {  // one after the other: a warp's lanes take the same way
    unpack_part<kType, kDim, kShared, 0>(to, raw, first, last);
    unpack_part<kType, kDim, kShared, 1>(to, raw, first, last);
  }
}

// A warp's 16 queries. A lane holds parts of queries lane / 4 (index 0) and lane / 4 + 8 (index 1).
template <KvType kType, int kDim, int kShared>
struct Tile {
  using P = Prefill<kType, kDim, kShared>;
  uint4 queries[P::kQueriesInRegisters ? P::kSteps : 1];
  float o[P::kOutDims / 8][4];
  float m[2], l[2];
  int position[2];  // -1: the query sees nothing, because no such row exists, or because its row belongs to another sequence
};

// Moves a lane's state to memory at a segment's end, or back at the next one's start: o to `out` from dimension `first_dim` on, and m and l
// of the query's four lanes to KeySegment::m_and_l. Every part of a query's output has the same m and l.
template <KvType kType, int kDim, int kShared, class Move>
__device__ __forceinline__ void carry(const PrefillWork& w, const int* row, const int* head, int first_dim, bool with_m_and_l,
                                      const Move& move, Tile<kType, kDim, kShared>* tile) {
  const int t = static_cast<int>(threadIdx.x) % 4, n_heads = w.group * w.n_kv_heads;
  ORRERY_UNROLL for (int r = 0; r < 2; ++r) {
    if (row[r] < 0) continue;
    float* m_and_l = w.keys.m_and_l + (static_cast<int64_t>(row[r]) * n_heads + head[r]) * KeySegment::kFloats + 2 * t;
    if (with_m_and_l) move(m_and_l, &tile->m[r]), move(m_and_l + 1, &tile->l[r]);
    float* out =
        w.out.data + row[r] * w.out.stride + static_cast<int64_t>(head[r]) * Prefill<kType, kDim, kShared>::kValueDim + first_dim + 2 * t;
    ORRERY_UNROLL for (int i = 0; i < Prefill<kType, kDim, kShared>::kOutDims / 8; ++i) move(out + 8 * i, &tile->o[i][2 * r]),
        move(out + 8 * i + 1, &tile->o[i][2 * r + 1]);
  }
}

template <KvType kType, int kDim, int kShared>
__device__ __forceinline__ void attend_step(const std::byte* stage, const uint4* shared_queries, int first, int window, bool all_seen,
                                            Tile<kType, kDim, kShared>* tile) {
  using P = Prefill<kType, kDim, kShared>;
  const int lane = static_cast<int>(threadIdx.x) % 32, part = static_cast<int>(threadIdx.x) / 32 % P::kParts;
  float s[P::kKeys / 8][4];
  ORRERY_UNROLL for (int i = 0; i < P::kKeys / 8; ++i) { ORRERY_UNROLL for (int j = 0; j < 4; ++j) s[i][j] = 0.0f; }
  const std::byte* keys = stage + (lane % 8 + lane / 16 * 8) * P::kPitch + lane / 8 % 2 * 16;
  ORRERY_UNROLL for (int k = 0; k < P::kSteps; ++k) {
    const uint4 query = P::kQueriesInRegisters
                            ? tile->queries[P::kQueriesInRegisters ? k : 0]
                            : shared_queries[k * P::kQueryLanes + static_cast<int>(threadIdx.x) / 32 / P::kParts * 32 + lane];
    const uint32_t a[4] = {query.x, query.y, query.z, query.w};
    ORRERY_UNROLL for (int i = 0; i < P::kKeys / 16; ++i) {
      uint32_t b[4];
      load_matrices_4(b, keys + i * 16 * P::kPitch + k * 32);
      mma_f16(s[2 * i], a, b);
      mma_f16(s[2 * i + 1], a, b + 2);
    }
  }

  if (!all_seen) {
    ORRERY_UNROLL for (int i = 0; i < P::kKeys / 8; ++i) {
      ORRERY_UNROLL for (int j = 0; j < 4; ++j) {
        const int key = first + 8 * i + lane % 4 * 2 + j % 2, position = tile->position[j / 2];
        if (key > position || key < first_visible(position, window)) s[i][j] = -INFINITY;
      }
    }
  }
  ORRERY_UNROLL for (int r = 0; r < 2; ++r) {
    float largest = -INFINITY;
    ORRERY_UNROLL for (int i = 0; i < P::kKeys / 8; ++i) largest = fmaxf(largest, fmaxf(s[i][2 * r], s[i][2 * r + 1]));
    largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 2));
    const float m = fmaxf(tile->m[r], largest), base = m == -INFINITY ? 0.0f : m;
    const float decay = exp2_approx(tile->m[r] - base);
    float sum = 0.0f;
    ORRERY_UNROLL for (int i = 0; i < P::kKeys / 8; ++i) {
      ORRERY_UNROLL for (int e = 0; e < 2; ++e) {
        s[i][2 * r + e] = exp2_approx(s[i][2 * r + e] - base);
        sum += s[i][2 * r + e];
      }
    }
    tile->m[r] = m;
    tile->l[r] = fmaf(tile->l[r], decay, sum);
    ORRERY_UNROLL for (int i = 0; i < P::kOutDims / 8; ++i) tile->o[i][2 * r] *= decay, tile->o[i][2 * r + 1] *= decay;
  }

  const std::byte* values = stage + ((P::kVectors - 1) * P::kKeys + lane % 16) * P::kPitch + lane / 16 * 16 + part * P::kOutDims * 2;
  ORRERY_UNROLL for (int i = 0; i < P::kKeys / 16; ++i) {
    const uint32_t a[4] = {pack_halves(s[2 * i][0], s[2 * i][1]), pack_halves(s[2 * i][2], s[2 * i][3]),
                           pack_halves(s[2 * i + 1][0], s[2 * i + 1][1]), pack_halves(s[2 * i + 1][2], s[2 * i + 1][3])};
    ORRERY_UNROLL for (int k = 0; k < P::kOutDims / 16; ++k) {
      uint32_t b[4];
      load_matrices_4_transposed(b, values + i * 16 * P::kPitch + k * 32);
      mma_f16(tile->o[2 * k], a, b);
      mma_f16(tile->o[2 * k + 1], a, b + 2);
    }
  }
}

template <KvType kType, int kDim, int kShared>
__global__ void __launch_bounds__(Prefill<kType, kDim, kShared>::kThreads, Prefill<kType, kDim, kShared>::kBlocks)
    attend_prefill_kernel(PrefillWork w) {
  using P = Prefill<kType, kDim, kShared>;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32 / P::kParts, lane = thread % 32, t = lane % 4;
  const int out_part = thread / 32 % P::kParts, first_dim = out_part * P::kOutDims;  // the warp's part of the output
  const int first_row = static_cast<int>(gridDim.x - 1 - blockIdx.x) * w.tile_rows, end_row = min(first_row + w.tile_rows, w.n_rows);
  const int kv_head = static_cast<int>(blockIdx.y) / w.n_parts, part = static_cast<int>(blockIdx.y) % w.n_parts;
  const int first_head = kv_head * w.group + part * w.part_heads, n_heads = min(w.part_heads, w.group - part * w.part_heads);
  uint4* shared_queries = dynamic_shared<uint4>();
  std::byte* raw = dynamic_shared<std::byte>() + P::kQueryBytes;
  std::byte* stages = raw + P::kRawBytes;

  Tile<kType, kDim, kShared> tile;
  int row[2], head[2];
  ORRERY_UNROLL for (int r = 0; r < 2; ++r) {
    const int query = warp * 16 + r * 8 + lane / 4;
    row[r] = first_row + query / n_heads, head[r] = first_head + query % n_heads;
    if (row[r] >= end_row) row[r] = -1;
    tile.m[r] = -INFINITY, tile.l[r] = 0.0f;
  }
  ORRERY_UNROLL for (int k = 0; k < P::kSteps; ++k) {
    uint32_t a[4] = {};
    ORRERY_UNROLL for (int r = 0; r < 2; ++r) {
      if (row[r] < 0) continue;
      const float* q = w.q.data + row[r] * w.q.stride + static_cast<int64_t>(head[r]) * kDim + 16 * k + 2 * t;
      const float2 x = *reinterpret_cast<const float2*>(q), y = *reinterpret_cast<const float2*>(q + 8);
      a[r] = pack_halves(x.x * w.scale, x.y * w.scale);
      a[r + 2] = pack_halves(y.x * w.scale, y.y * w.scale);
    }
    const uint4 query = make_uint4(a[0], a[1], a[2], a[3]);
    if constexpr (P::kQueriesInRegisters) tile.queries[k] = query;
    else if (out_part == 0) shared_queries[k * P::kQueryLanes + warp * 32 + lane] = query;  // read behind a barrier
  }
  ORRERY_UNROLL for (int i = 0; i < P::kOutDims / 8; ++i) { ORRERY_UNROLL for (int j = 0; j < 4; ++j) tile.o[i][j] = 0.0f; }
  if (w.keys.goes_on)
    carry<kType, kDim, kShared>(
        w, row, head, first_dim, true, [](float* there, float* here) { *here = *there; }, &tile);

  for (int run = first_row; run < end_row;) {  // a run: rows of one sequence with consecutive positions
    const Row start = w.step.rows[run];
    int run_end = end_row;
    while (w.step.rows[run_end - 1].sequence != start.sequence || w.step.rows[run_end - 1].position - start.position != run_end - 1 - run)
      --run_end;
    KeySpan span = key_span(w.step, w.place, run, kv_head);
    span.last = start.position + run_end - run;

    int least = INT32_MAX, most = -1;  // positions of the warp's queries
    ORRERY_UNROLL for (int r = 0; r < 2; ++r) {
      tile.position[r] = row[r] >= run && row[r] < run_end ? start.position + row[r] - run : -1;
      least = min(least, tile.position[r]), most = max(most, tile.position[r]);
    }
    ORRERY_UNROLL for (int i = 16; i > 0; i /= 2) {
      least = min(least, __shfl_xor_sync(kAllLanes, least, i)), most = max(most, __shfl_xor_sync(kAllLanes, most, i));
    }

    const int begin = max(span.first / P::kKeys * P::kKeys, w.keys.first), end = min(span.last, w.keys.end);
    if (begin < end) fetch_step<kType, kDim, kShared>(P::kRaw ? raw : stages, tile_of(w, span, kv_head, begin / kPageTokens), span, begin);
    for (int first = begin, turn = 0; first < end; first += P::kKeys, turn ^= 1) {
      const int next = first + P::kKeys;
      std::byte* stage = stages + (P::kUnpacks ? 0 : turn * P::kStageBytes);
      copy_async_wait<0>();
      __syncthreads();  // the step has arrived, and no warp reads the step before any more
      if constexpr (P::kUnpacks) {
        const std::byte* from = P::kRaw ? raw : tile_of(w, span, kv_head, first / kPageTokens) + first % kPageTokens * P::kTokenBytes;
        unpack_step<kType, kDim, kShared>(stage, from, span.first - first, span.last - first);
        __syncthreads();
      }
      if (next < end)
        fetch_step<kType, kDim, kShared>(P::kRaw ? raw : stages + (turn ^ 1) * P::kStageBytes,
                                         tile_of(w, span, kv_head, next / kPageTokens), span, next);
      if (first > most || (least >= 0 && next <= first_visible(least, w.place.window)))
        continue;  // the warp's queries see none of the keys
      const bool all_seen = next - 1 <= least && first >= first_visible(most, w.place.window);
      attend_step<kType, kDim, kShared>(stage, shared_queries, first, w.place.window, all_seen, &tile);
    }
    __syncthreads();  // before the next run's keys are copied
    run = run_end;
  }

  if (!w.keys.is_last)
    return carry<kType, kDim, kShared>(
        w, row, head, first_dim, out_part == 0, [](float* there, float* here) { *there = *here; }, &tile);
  ORRERY_UNROLL for (int r = 0; r < 2; ++r) {
    float l = tile.l[r];
    l += __shfl_xor_sync(kAllLanes, l, 1);
    l += __shfl_xor_sync(kAllLanes, l, 2);
    if (row[r] < 0) continue;
    float kept = 1.0f;  // in units of the larger of m and the sink
    if (w.sinks) {
      const float sink = w.sinks[head[r]] * 1.44269504088896f, most = fmaxf(tile.m[r], sink);
      kept = exp2_approx(tile.m[r] - most);
      l = fmaf(l, kept, exp2_approx(sink - most));
    }
    const float inverse = l == 0.0f ? 0.0f : kept / l;
    float* out = w.out.data + row[r] * w.out.stride + static_cast<int64_t>(head[r]) * P::kValueDim + first_dim + 2 * t;
    ORRERY_UNROLL for (int i = 0; i < P::kOutDims / 8; ++i) out[8 * i] = tile.o[i][2 * r] * inverse,
                                                                    out[8 * i + 1] = tile.o[i][2 * r + 1] * inverse;
  }
}

}  // namespace attend_prefill_cu
using namespace attend_prefill_cu;

void attend_prefill(Queue& queue, const DeviceShape&, const StepView& step, const Attention& shape, ConstRows q, Rows out, int32_t n_rows,
                    const KeySegment& keys) {
  if (!attends(shape.kv.type, shape.kv.head_dim, shape.kv.shared_values)) return void(queue.check(DriverError::invalid_value, kNoSuchHead));
  with_kv_type(shape.kv.type, shape.kv.head_dim, shape.kv.shared_values, [&](auto type, auto head_dim, auto shared) {
    constexpr KvType kType = decltype(type)::value;
    constexpr int kDim = decltype(head_dim)::value, kShared = decltype(shared)::value;
    using P = Prefill<kType, kDim, kShared>;
    PrefillWork w = {};
    w.step = step, w.place = kv_place(shape), w.q = q, w.out = out;
    w.n_rows = n_rows;
    w.keys = keys, w.page_bytes = shape.kv.layer_bytes(), w.n_kv_heads = shape.kv.n_kv_heads;
    w.group = shape.n_heads / shape.kv.n_kv_heads;
    w.part_heads = std::min<int32_t>(w.group, P::kQueries);
    w.n_parts = (w.group + w.part_heads - 1) / w.part_heads;
    w.tile_rows = P::kQueries / w.part_heads;
    w.scale = shape.scale * 1.44269504088896f;
    w.sinks = shape.sinks;
    const unsigned n_tiles = static_cast<unsigned>((n_rows + w.tile_rows - 1) / w.tile_rows);
    const Dim3 grid(n_tiles, static_cast<unsigned>(shape.kv.n_kv_heads * w.n_parts));
    launch<attend_prefill_kernel<kType, kDim, kShared>>(queue, {grid, Dim3(P::kThreads), P::kSharedBytes}, w);
  });
}

}  // namespace orrery::cuda
