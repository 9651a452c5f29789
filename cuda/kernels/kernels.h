// The seam between the backend and its kernels: one function for each, on device pointers. Defined in the .cu files, each with
// the reason of its shape; called by operations.cpp, which decides what is fused.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/device/queue.h"
#include "cuda/device/step.h"
#include "runtime/backend/backend.h"

namespace orrery::cuda {

// What kernels are sized by.
struct DeviceShape {
  int32_t n_processors = 1;       // streaming multiprocessors
  int32_t architecture = 80;      // 86: compute capability 8.6
  uint64_t shared_bytes = 48 << 10;   // that a block may have
  uint64_t cache_bytes = 0;       // second level
};

// Vectors that lie `stride` floats apart from row to row.
struct Rows {
  float* data;
  int64_t stride;
};
struct ConstRows {
  const float* data;
  int64_t stride;
};

// A row of activations, quantized as the CPU backend does it (runtime/cpu/kernels/kernels.h): per 32 values d = max|x| / 127 and
// int8 q, and sums of 16 q's.
inline constexpr float kSmallestBlockMax = 1e-35f;   // as there: smaller blocks count as zero
struct QuantizedRows {
  int8_t* q;        // (n_rows, n_padded)
  float* d;         // (n_rows, n_padded / 32)
  int16_t* sums;    // (n_rows, n_padded / 16)
  float* scales;    // (n_rows): room for what prefill with F16 weights needs to know of a row
  int64_t n_padded; // columns, a multiple of 256, padded with zeros
};
inline int64_t padded_columns(int64_t n) { return (n + 255) / 256 * 256; }
inline uint64_t quantized_bytes(int64_t n_rows, int64_t n_columns) {
  const int64_t p = padded_columns(n_columns);
  return static_cast<uint64_t>(n_rows * (p + p / 32 * 4 + p / 16 * 2 + 4));
}
inline QuantizedRows quantized_rows(std::byte* at, int64_t n_rows, int64_t n_columns) {
  const int64_t p = padded_columns(n_columns);
  std::byte *d = at + n_rows * p, *sums = d + n_rows * (p / 32 * 4), *scales = sums + n_rows * (p / 16 * 2);
  return {reinterpret_cast<int8_t*>(at), reinterpret_cast<float*>(d), reinterpret_cast<int16_t*>(sums),
          reinterpret_cast<float*>(scales), p};
}

// ---- rows.cu
// out = x / sqrt(mean(x^2) + eps) * weight, for n_vectors vectors of `dim` in each row.
void rms_norm(Queue& queue, ConstRows x, const float* weight, Rows out, int32_t n_rows, int32_t n_vectors, int64_t dim, float eps);
// The same of one vector a row, and what quantize_rows() makes of it.
void rms_norm_quantized(Queue& queue, ConstRows x, const float* weight, Rows out, const QuantizedRows& quantized, int32_t n_rows,
                        int64_t dim, float eps);
// The step's cosines and sines.
void prepare_rope(Queue& queue, const StepView& step, int32_t n_rows, int32_t n_rot, float magnitude);
void rope(Queue& queue, const StepView& step, Rows x, int32_t n_rows, int32_t n_heads, int32_t head_dim, int32_t n_rot,
          bool interleaved);
void swiglu(Queue& queue, ConstRows gate, ConstRows up, Rows out, int32_t n_rows, int64_t n);
// The same, and what quantize_rows() makes of it.
void swiglu_quantized(Queue& queue, ConstRows gate, ConstRows up, Rows out, const QuantizedRows& quantized, int32_t n_rows, int64_t n);
void add(Queue& queue, float* x, const float* y, int64_t n);   // x += y

// ---- matmul_decode.cu, matmul_prefill.cu, embed.cu: of weights as formats.h lays them out.
void quantize_rows(Queue& queue, ConstRows x, int64_t n_columns, int32_t n_rows, const QuantizedRows& out);

// One product (runtime/backend/backend.h: Product). Several of the same input go to one launch.
struct DeviceProduct {
  Weight weight;
  const float* bias;
  float* out;
  int64_t out_stride;
  bool accumulate;
};
inline constexpr int32_t kMostProducts = 3;
struct Products {
  DeviceProduct list[kMostProducts];
  int32_t n;
};
void matmul_decode(Queue& queue, const DeviceShape& device, const Products& products, ConstRows x, const QuantizedRows& quantized,
                   int32_t n_rows);
void matmul_prefill(Queue& queue, const DeviceShape& device, const Products& products, ConstRows x, const QuantizedRows& quantized,
                    int32_t n_rows);
// out = silu(gate) * up of the two products, as swiglu() computes it; both of one type and shape, `accumulate` not set.
void matmul_gated(Queue& queue, const DeviceProduct& gate, const DeviceProduct& up, ConstRows x, const QuantizedRows& quantized, Rows out,
                  int32_t n_rows);
void embed(Queue& queue, const StepView& step, const Weight& table, float* out, int32_t n_rows);

// ---- matmul_cublas.cu: prompts' products through cuBLAS.
class Cublas;
// Where things lie in its scratch memory, in bytes.
struct CublasPlan {
  uint64_t workspace = 0, workspace_bytes = 0;   // cuBLAS' own
  uint64_t scales = 0, halves = 0;               // of rows: (max_rows), (max_rows, max_in)
  uint64_t stripe = 0, stripe_bytes = 0;         // of weights that were blocks, where there are such
  uint64_t bytes = 0;
  CublasPlan() = default;
  CublasPlan(int32_t architecture, bool of_blocks, const StepLimits& limits);
};
// As matmul_prefill(), of halves and blocks; it needs no quantized rows.
void matmul_cublas(Queue& queue, Cublas& cublas, const CublasPlan& plan, std::byte* scratch, const Products& products, ConstRows x, int32_t n_rows);

// ---- kv.cu: rows to pages and slots, and between KV types.
void append_kv(Queue& queue, const StepView& step, const KvFormat& kv, KvType heads_type, bool to_heads, int32_t layer, ConstRows k,
               ConstRows v, int32_t n_rows);
// The step's heads on their way to attention: queries and keys normed, where there are weights for it, and turned in place, then keys
// and values as append_kv() stores them. The bits are those of rms_norm(), rope() and append_kv().
struct HeadRows {
  Rows q, k;
  ConstRows v;
  const float *q_norm, *k_norm;   // (head_dim) or null
  float eps;
  int32_t n_heads, n_rot;
  bool interleaved;
};
void turn_and_append_kv(Queue& queue, const StepView& step, const HeadRows& rows, const KvFormat& kv, KvType heads_type, bool to_heads,
                        int32_t layer, int32_t n_rows);
void move_kv(Queue& queue, const KvMove* moves, int32_t n_moves, KvType to_type, KvType from_type, int32_t token_values);
void keep_queries(Queue& queue, const StepView& step, float* ring, int32_t n_ring, ConstRows q, int64_t width, int32_t n_rows);

// ---- attend_decode.cu, attend_prefill.cu
// Whether they have kernels for such heads: of 32, 64, 96, 128, 256, and 16 and 80 where they are not in blocks.
constexpr bool attends(KvType type, int32_t head_dim) {
  return head_dim == 32 || head_dim == 64 || head_dim == 96 || head_dim == 128 || head_dim == 256 ||
         ((head_dim == 16 || head_dim == 80) && (type == KvType::f32 || type == KvType::f16));
}
// The first key that a position sees; window 0: all.
constexpr __host__ __device__ int32_t first_visible(int32_t position, int32_t window) {
  return window > 0 && position >= window ? position - window + 1 : 0;
}
struct Attention {
  KvFormat kv;               // of the pages; of the slots where `resident`
  bool resident;             // over StepView::heads instead of the pages
  int32_t layer, n_heads;
  float scale;
  int32_t window;            // 0: all
};
uint64_t attend_scratch_bytes(const DeviceShape& device, const StepLimits& limits);
// quantized: null, or where to put what quantize_rows() makes of the result; heads of whole groups of 32, rows of whole padded columns.
void attend_decode(Queue& queue, const DeviceShape& device, const StepView& step, const Attention& shape, ConstRows q, Rows out,
                   const QuantizedRows* quantized, int32_t n_rows, int32_t max_context, std::byte* scratch);
// Some of the keys that prompt rows see, of launches that follow each other: what a row has made of those before lies in `out`, not yet
// divided, and in `left`. As they stand: all keys at once.
struct KeySegment {
  int32_t first = 0, end = INT32_MAX;   // of whole tiles
  const std::byte* staged = nullptr;    // the layer's keys of these pages, one behind the other (KvFormat::layer_bytes()); null: where the step has them
  float* left = nullptr;                // (n_rows, n_heads, kFloats)
  bool goes_on = false, is_last = true;
  static constexpr int32_t kFloats = 8;
};
void attend_prefill(Queue& queue, const DeviceShape& device, const StepView& step, const Attention& shape, ConstRows q, Rows out,
                    int32_t n_rows, const KeySegment& keys);

// ---- top_keys.cu
// Some of a job's queries within a batch. They lie at the start of the scratch memory, in order.
struct TopKeysPart {
  const uint64_t* tiles;   // on the device
  uint64_t offset;
  const float* queries;    // the ring's first position of this layer and KV head's group
  int32_t n_keys, k;
  int32_t first_position, n_positions;
  int32_t first_entry;     // of the batch's queries
  uint32_t by_score;
  const uint32_t* among;   // on the device, ascending: how many of these were found is the part's result; null: the keys are
  int32_t n_among;
  // Of weights: whether their mean is asked for, or their sum with what stands in the row; the row of the results that it is summed in, how
  // many of the job's positions have been, and how many there are.
  uint32_t mean, add;
  int32_t slot, n_before, n_all;
};
// Where a batch's things lie in the scratch memory, in bytes: parts, tiles (kBatch, tile_stride), results (kBatch, stride; keys
// that were found, of a part one behind the other, k each; or their number; or a mean of weights a row), entries. An entry has room
// for at least n_keys pairs at `pairs`, which selections in ascending order do not use. Strides count keys and tiles. Moments of a job add
// up at `moments`, three sums, as doubles, and at moments_scores, a float, (group, stride) of each; moments_totals: two for each query head.
struct TopKeysPlan {
  static constexpr int32_t kBatch = 10;   // queries
  uint64_t tiles = 0, out = 0, entries = 0, pairs = 0, entry_bytes = 0, moments = 0, moments_scores = 0, moments_totals = 0, bytes = 0;
  int64_t stride = 0, tile_stride = 0;
  int32_t group = 0;
  TopKeysPlan() = default;
  explicit TopKeysPlan(const StepLimits& limits);
};
// Some digests to write, likewise: tiles of the keys and of the digests are on the device.
struct DigestPart {
  const uint64_t* tiles;
  uint64_t offset;
  const uint64_t* digests;
  int32_t first_page, n_pages;
  float* cosines;          // (n_pages) of means
};
void digest(Queue& queue, const DigestPart* parts, const DigestShape& shape, int32_t n_parts, int32_t most_pages);
// Tokens to take into a mean; parts are wherever `parts` says.
struct MeanPart {
  const uint64_t* tiles;   // from the first token's on; null: they lie in one, at `offset`
  uint64_t offset;
  int32_t first, n;        // the first one, in the first tile
  int32_t n_before;
  float* mean;
  const float* shares;     // (n) or null: all alike
};
void add_to_compensation_tokens(Queue& queue, const MeanPart* parts, const KvFormat& kv, int32_t n_parts);
// The batch's parts and tiles are there.
void top_keys(Queue& queue, const TopKeysPlan& plan, std::byte* scratch, const TopKeysShape& shape, int32_t n_parts, int32_t n_entries,
              int32_t most_keys);
// Rows of weights, or products, to where entries have them, (group, stride) from the start of each.
void key_weights(Queue& queue, const TopKeysPlan& plan, std::byte* scratch, const KeysShape& shape, int32_t n_parts, int32_t n_entries,
                 int32_t most_keys);

// Of a batch's only part, whose job's first positions have been: its moments, where it is the last one (group, stride) to moments_scores,
// entropies and variances of each query head (2, group) to moments_totals.
void key_moments(Queue& queue, const TopKeysPlan& plan, std::byte* scratch, const KeysShape& shape, int32_t n_entries, int32_t n_keys,
                 int32_t n_measured, float gamma);

// ---- shortlist.cu: Device::shortlist_bytes() and shortlist(), of what the step asks for; bands (kBands) and entries to `out`.
uint64_t shortlist_bytes(int64_t n);
void shortlist(Queue& queue, const StepView& step, const float* logits, int64_t n, std::byte* out);
void shortlist_bands(Queue& queue, const float* logits, int64_t n, const ShortlistTail& tail, std::byte* out);
void shortlist_entries(Queue& queue, const float* logits, int64_t n, const ShortlistTail& tail, int32_t band, int32_t other_band, std::byte* out);

// ---- low_rank.cu: keys of a layer as products of rows and a basis (LowRankKeys), its memory by parts.
struct LowRankWork {
  KvFormat kv;
  uint64_t offset;               // from a page's address to the first head's tokens
  int32_t n_heads;               // whose keys stand side by side
  int32_t rank, n_rot;
  bool interleaved;
  float magnitude;
  std::byte *rows, *basis;
  float* batch;               // (kBatch, width) keys, or RebuiltRuns
  float* products;            // (width, width)
  float* sums;                // (width) or null
  const float* frequencies;   // (n_rot / 2)
};
// The batch becomes the keys of these positions, turned back; pages: addresses, host memory.
void load_keys(Queue& queue, const LowRankWork& work, const uint64_t* pages, int32_t first, int32_t n);
// products (+)= batch^T batch, its upper half; sums (+)= the batch's.
void add_products(Queue& queue, const LowRankWork& work, int32_t n, bool anew);
// Rows of positions first, ... = batch basis^T.
void project_keys(Queue& queue, const LowRankWork& work, int32_t first, int32_t n);
void rebuild_keys(Queue& queue, const LowRankWork& work, KvType slot_type, int32_t n_runs, int32_t longest);
// LowRankOperations::low_rank_queries().
struct QueryProjection {
  const std::byte* basis;     // of the first KV head
  uint64_t next_basis;        // bytes
  const float* q;             // (n_heads, head_dim)
  float* out;                 // (n_heads, rank)
  int32_t rank, head_dim, n_heads, group;
};
void project_queries(Queue& queue, const QueryProjection& work);

}  // namespace orrery::cuda
