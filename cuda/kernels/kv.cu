// Appends rows of keys and values to pages and slots, and moves KV between places and types.
//
// A warp has 32 values, a lane one of them. So a warp has one block of Q8_0 or Q4_0, and the block's scale is a maximum across lanes. Every
// load and store of a warp is one contiguous stretch: 128 bytes of floats, 64 of halves, 32 or 16 of codes.
//
// rotate_and_append_kv() also norms and rotates a step's heads. A warp has a vector, in blocks of 32 values, and a lane has one value of
// each block. The partner of a rotated pair comes through shared memory. This saves up to four launches a layer, and passes over q and k.
//
// move_kv() moves runs of tokens (moves.cuh).
//
// Stored bits are those of runtime/cpu/formats/blocks.h: the same divisions and roundings, no product fused into a sum. Cost: README.md.
#include <algorithm>

#include "cuda/device/launch.h"
#include "cuda/kernels/moves.cuh"

namespace orrery::cuda {

namespace kv_cu {

constexpr int kThreads = 256, kWarps = kThreads / 32;

struct AppendWork {
  StepView step;
  ConstRows k, v;
  uint64_t layer_offset;
  int32_t layer, n_kv_heads, head_dim, n_blocks;  // blocks of 32 values; the last one may be half full
  int32_t first_row, first_page;
  int64_t n_warps;
  KvType type, heads_type;
  bool to_heads;
  int32_t n_parts;  // of a token: 2, K and V; or 1, K alone (KvFormat::shared_values)
};

// Stores a lane's value of a block of K or V in its page, and in its slot if w.to_heads. With F32 and F16 some lanes may be absent.
__device__ __forceinline__ void store_in_cache(const AppendWork& w, int row, int head, int is_value, int block, int lane, float x) {
  const Row r = w.step.rows[row];
  const KvType type = part_type(w.type, is_value), slot_type = part_type(w.heads_type, is_value);
  std::byte* page = reinterpret_cast<std::byte*>(of_sequence(w.step, w.step.pages, r.sequence)[w.first_page + r.position / kPageTokens]);
  const uint64_t token = static_cast<uint64_t>(head) * kPageTokens + static_cast<uint64_t>(r.position % kPageTokens);
  std::byte* to = page + w.layer_offset + token * static_cast<uint64_t>(kv_bytes(w.type, w.n_parts * w.head_dim));
  const float stored = store_value(type, x, to + is_value * value_at(w.type, w.head_dim), block, lane);
  if (!w.to_heads) return;  // the slot gets the stored value: a copy, or a conversion to the slot's type
  std::byte* slot = reinterpret_cast<std::byte*>(of_sequence(w.step, w.step.heads, r.sequence)[w.layer * w.n_kv_heads + head].append_at);
  store_value(slot_type, slot_type == type ? x : stored, slot + is_value * value_at(w.heads_type, w.head_dim), block, lane);
}

__global__ void __launch_bounds__(kThreads) append_kv_kernel(AppendWork w) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int64_t i = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (i >= w.n_warps) return;
  const int block = static_cast<int>(i % w.n_blocks);
  i /= w.n_blocks;
  const int is_value = static_cast<int>(i % w.n_parts);
  i /= w.n_parts;
  const int head = static_cast<int>(i % w.n_kv_heads), row = w.first_row + static_cast<int>(i / w.n_kv_heads);
  if (block * 32 + lane >= w.head_dim) return;  // happens with F32 and F16 only, where no other lane waits
  const ConstRows from = is_value ? w.v : w.k;
  const float x = from.data[row * from.stride + static_cast<int64_t>(head) * w.head_dim + block * 32 + lane];
  store_in_cache(w, row, head, is_value, block, lane, x);
}

constexpr int kMostDim = 256;  // larger heads are normed, rotated and appended by kernels of their own: heads_to_cache()

// A warp has one vector of a row: a query, a key or a value.
__global__ void __launch_bounds__(kThreads) rotate_and_append_kernel(AppendWork w, HeadRows h) {
  start_early();
  constexpr int kMostBlocks = kMostDim / 32;
  __shared__ float vectors[kWarps][kMostDim];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int row = w.first_row + static_cast<int>(blockIdx.y), vector = static_cast<int>(blockIdx.x) * kWarps + warp;
  if (vector >= h.n_heads + 2 * w.n_kv_heads) return;
  const bool is_query = vector < h.n_heads, is_value = vector >= h.n_heads + w.n_kv_heads;
  const int head = is_query ? vector : (vector - h.n_heads) % w.n_kv_heads;
  const Rows rows = is_query ? h.q : h.k;
  const int64_t at = static_cast<int64_t>(head) * w.head_dim;
  const float* from = is_value ? h.v.data + row * h.v.stride + at : rows.data + row * rows.stride + at;
  float x[kMostBlocks];
#pragma unroll
  for (int b = 0; b < kMostBlocks; ++b) x[b] = 32 * b + lane < w.head_dim ? from[32 * b + lane] : 0.0f;
  if (!is_value) {
    if (const float* norm = is_query ? h.q_norm : h.k_norm) {  // sums in rms_norm()'s order: 32 values, then these sums
      float sum = 0.0f;
#pragma unroll
      for (int b = 0; b < kMostBlocks; ++b) sum += warp_sum(fmaf(x[b], x[b], 0.0f));
      const float scale = norm_scale(sum, w.head_dim, h.eps);
#pragma unroll
      for (int b = 0; b < kMostBlocks; ++b)
        if (32 * b + lane < w.head_dim) x[b] = x[b] * scale * norm[32 * b + lane];
    }
    float* shared = vectors[warp];
#pragma unroll
    for (int b = 0; b < kMostBlocks; ++b) shared[32 * b + lane] = x[b];
    __syncwarp();
    const int half = h.n_rot / 2;
    const float* table = w.step.rope + static_cast<int64_t>(row) * w.step.rope_floats + (is_query ? h.rope_at : h.k_rope_at);
    float* to = rows.data + row * rows.stride + at;
#pragma unroll
    for (int b = 0; b < kMostBlocks; ++b) {
      const int i = 32 * b + lane;
      if (i >= w.head_dim) continue;
      if (i < h.n_rot) {
        const int pair = h.interleaved ? i / 2 : i % half;
        const bool second = h.interleaved ? i % 2 != 0 : i >= half;
        const int first_at = h.interleaved ? 2 * pair : pair, second_at = h.interleaved ? first_at + 1 : pair + half;
        const float2 both = rotated(shared[first_at], shared[second_at], table[pair], table[half + pair]);
        x[b] = second ? both.y : both.x;
      }
      to[i] = x[b];
    }
  }
  if (is_query) return;
#pragma unroll
  for (int b = 0; b < kMostBlocks; ++b)
    if (32 * b + lane < w.head_dim) store_in_cache(w, row, head, is_value, b, lane, x[b]);
}

struct MoveWork {
  const KvMove* moves;
  int32_t n_moves;
  KvType to_type, from_type;
  int32_t token_values;
};

constexpr int kMostPieces = 256;  // warps that share a move

__global__ void __launch_bounds__(kThreads, 4) move_kv_kernel(MoveWork w) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int i = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32;
  if (i >= w.n_moves) return;
  const KvMove move = w.moves[i];
  move_tokens(w.to_type, w.from_type, move.to, move.from, move.n_tokens, w.token_values, lane);
}

__global__ void __launch_bounds__(kThreads) keep_queries_kernel(StepView step, int layer, ConstRows q, int64_t width, int first_row) {
  const int row = first_row + static_cast<int>(blockIdx.y);
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * 4;
  const Row r = step.rows[row];
  const DeviceSequence& sequence = *of_sequence(step, step.sequence, r.sequence);
  if (i >= width || sequence.n_queries == 0) return;
  const int64_t to = static_cast<int64_t>(layer) * sequence.n_queries + r.position % sequence.n_queries;
  *reinterpret_cast<float4*>(sequence.queries + to * width + i) = *reinterpret_cast<const float4*>(q.data + row * q.stride + i);
}

unsigned blocks(int64_t n, int64_t per_block) { return static_cast<unsigned>((n + per_block - 1) / per_block); }

}  // namespace kv_cu
using namespace kv_cu;

namespace kv_cu {

AppendWork append_work(const StepView& step, const Attention& to, KvType heads_type, bool to_heads, ConstRows k, ConstRows v,
                       int32_t first_row) {
  const KvFormat& kv = to.kv;
  return {step,
          k,
          v,
          kv.head_offset(to.layer, 0),
          to.layer,
          kv.n_kv_heads,
          kv.head_dim,
          (kv.head_dim + 31) / 32,
          first_row,
          to.first_page,
          0,
          kv.type,
          heads_type,
          to_heads,
          kv.shared_values > 0 ? 1 : 2};
}

}  // namespace kv_cu
using namespace kv_cu;

void rotate_and_append_kv(Queue& queue, const StepView& step, const HeadRows& rows, const Attention& to, KvType heads_type, bool to_heads,
                          int32_t first_row, int32_t n_rows) {
  const AppendWork w = append_work(step, to, heads_type, to_heads, {rows.k.data, rows.k.stride}, rows.v, first_row);
  const int32_t n_vectors = rows.n_heads + 2 * to.kv.n_kv_heads;
  launch<rotate_and_append_kernel>(queue, {Dim3(blocks(n_vectors, kWarps), static_cast<unsigned>(n_rows)), Dim3(kThreads), 0, true}, w,
                                   rows);
}

void append_kv(Queue& queue, const StepView& step, const Attention& to, KvType heads_type, bool to_heads, ConstRows k, ConstRows v,
               int32_t first_row, int32_t n_rows) {
  AppendWork w = append_work(step, to, heads_type, to_heads, k, v, first_row);
  w.n_warps = int64_t{w.n_parts} * n_rows * to.kv.n_kv_heads * w.n_blocks;
  launch<append_kv_kernel>(queue, {Dim3(blocks(w.n_warps, kWarps)), Dim3(kThreads)}, w);
}

void move_kv(Queue& queue, const KvMove* moves, int32_t n_moves, uint32_t longest, KvType to_type, KvType from_type, int32_t token_values) {
  const MoveWork w{moves, n_moves, to_type, from_type, token_values};
  const int64_t n_pieces = (static_cast<int64_t>(longest) * token_values + kPieceValues - 1) / kPieceValues;
  launch<move_kv_kernel>(
      queue, {Dim3(blocks(n_moves, kWarps), static_cast<unsigned>(std::clamp<int64_t>(n_pieces, 1, kMostPieces))), Dim3(kThreads)}, w);
}

void keep_queries(Queue& queue, const StepView& step, int32_t layer, ConstRows q, int64_t width, int32_t first_row, int32_t n_rows) {
  launch<keep_queries_kernel>(queue, {Dim3(blocks(width, 4 * kThreads), static_cast<unsigned>(n_rows)), Dim3(kThreads)}, step, layer, q,
                              width, first_row);
}

}  // namespace orrery::cuda
