// The seam between the backend and its kernels: one host function for each kernel, with device pointers as arguments. A function launches
// and returns; errors are latched in the queue. The .cu files define the functions. operations.cpp calls those of a step and decides about
// fusion; jobs.cpp, low_rank.cpp and shortlist.cpp call the others.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/device/host_device.h"
#include "cuda/device/queue.h"
#include "cuda/device/step.h"
#include "runtime/backend/backend.h"

namespace orrery::cuda {

// The properties of the GPU that decide the size of grids and tiles.
struct DeviceShape {
  int32_t n_sms = 1;                 // streaming multiprocessors
  int32_t architecture = 80;         // 86: compute capability 8.6
  uint64_t shared_bytes = 48 << 10;  // shared memory that a thread block may have
  uint64_t cache_bytes = 0;          // second-level cache
};

// Rows of floats, `stride` floats apart.
struct Rows {
  float* data;
  int64_t stride;
};
struct ConstRows {
  const float* data;
  int64_t stride;
};

// Rows of activations, quantized as the CPU backend quantizes them (runtime/cpu/kernels/kernels.h): for every 32 values
// d = max|x| / 127 and 32 int8 q; for every 16 values the sum of their q.
inline constexpr float kSmallestBlockMax = 1e-35f;  // as in the CPU backend: 32 values below this count as zero
struct QuantizedRows {
  int8_t* q;         // (n_rows, n_padded)
  float* d;          // (n_rows, n_padded / 32)
  int16_t* sums;     // (n_rows, n_padded / 16)
  float* scales;     // (n_rows): room for the rows' powers of two, which prefill with F16 weights needs
  int64_t n_padded;  // columns, a multiple of 256; columns behind the row's end are zero
};
inline int64_t padded_columns(int64_t n) { return (n + 255) / 256 * 256; }
inline uint64_t quantized_bytes(int64_t n_rows, int64_t n_columns) {
  const int64_t p = padded_columns(n_columns);
  return static_cast<uint64_t>(n_rows * (p + p / 32 * 4 + p / 16 * 2 + 4));
}
inline QuantizedRows quantized_rows(std::byte* at, int64_t n_rows, int64_t n_columns) {
  const int64_t p = padded_columns(n_columns);
  std::byte *d = at + n_rows * p, *sums = d + n_rows * (p / 32 * 4), *scales = sums + n_rows * (p / 16 * 2);
  return {reinterpret_cast<int8_t*>(at), reinterpret_cast<float*>(d), reinterpret_cast<int16_t*>(sums), reinterpret_cast<float*>(scales),
          p};
}

// ---- rows.cu
// out = x / sqrt(mean(x^2) + eps) * weight (or without: null), for each of the n_vectors vectors of `dim` floats in a row.
void rms_norm(Queue& queue, ConstRows x, const float* weight, Rows out, int32_t n_rows, int32_t n_vectors, int64_t dim, float eps);
// rms_norm() of one vector in each row. Also writes what quantize_rows() would make of the result.
void rms_norm_quantized(Queue& queue, ConstRows x, const float* weight, Rows out, const QuantizedRows& quantized, int32_t n_rows,
                        int64_t dim, float eps);
// Writes the cosines and sines of the step's positions to StepView::rope, of the table with this number, at rope_at in each row.
void prepare_rope(Queue& queue, const StepView& step, int32_t n_rows, int32_t n_rot, int32_t rope_at, int32_t table, float temperature);
void rope(Queue& queue, const StepView& step, Rows x, int32_t n_rows, int32_t n_heads, int32_t head_dim, int32_t n_rot, int32_t rope_at,
          bool interleaved);
void activate(Queue& queue, Activation activation, ConstRows gate, ConstRows up, Rows out, int32_t n_rows, int64_t n);
// activate(). Also writes what quantize_rows() would make of the result.
void activate_quantized(Queue& queue, Activation activation, ConstRows gate, ConstRows up, Rows out, const QuantizedRows& quantized,
                        int32_t n_rows, int64_t n);
void soft_cap(Queue& queue, float* x, int64_t n, float scale, float cap);
// StepOperations::transform_rows(): all rows alike; or each as its DeviceSequence says, less its means from `mean_at` on (-1: no means).
void transform_heads(Queue& queue, Rows x, const float* shift, int32_t n_rows, int32_t n_heads, int32_t head_dim, bool rotate);
void transform_heads(Queue& queue, const StepView& step, Rows x, int64_t mean_at, int32_t n_rows, int32_t n_heads, int32_t head_dim);
void add(Queue& queue, float* x, const float* y, int64_t n);  // x += y

// ---- recurrent.cu: RecurrentOperations (runtime/backend/recurrent.h). Each sequence's state stands in its DeviceSequence.
// All bytes of these structs are set, padding too: lists of operations are compared as bytes.
struct RecurrentRows {
  int32_t step_rows;      // of each step, one after another
  int32_t n_final;        // of them, from the first on: those that change the state; the others are guessed
  int32_t most_replayed;  // bounds DeviceSequence::n_replayed
  int32_t reserved;
};
struct DeltaNet {
  float *u, *c;
  const float *z, *a, *b;
  float* out;
  const float *conv, *dt, *decay, *norm;
  StatePlace at;
  RecurrentRows rows;
  DeltaNetShape shape;
};
inline constexpr int32_t kMostKeyDim = 128, kMostValueDim = 128;
struct Mamba2 {
  const float* projected;
  float *c, *out;
  const float *conv, *conv_bias, *dt, *decay, *skip, *norm;
  StatePlace at;
  RecurrentRows rows;
  Mamba2Shape shape;  // state_dim at most kMostKeyDim, head_dim at most kMostValueDim
};
struct ShortConv {
  const float* projected;
  float* out;
  const float* conv;
  StatePlace at;
  RecurrentRows rows;
  ShortConvShape shape;
};
void delta_net(Queue& queue, const StepView& step, const DeltaNet& net, int32_t n_rows);
void mamba2(Queue& queue, const StepView& step, const Mamba2& net, int32_t n_rows);
void short_conv(Queue& queue, const StepView& step, const ShortConv& net, int32_t n_rows);
void split_gates(Queue& queue, ConstRows x, Rows q, float* gates, int32_t n_rows, int32_t n_heads, int32_t head_dim);
void apply_gates(Queue& queue, float* x, const float* gates, int64_t n);  // x *= sigmoid(gates)

// ---- matmul_decode.cu, matmul_prefill.cu, weights.cu: weights lie as device/formats.h says.
void quantize_rows(Queue& queue, ConstRows x, int64_t n_columns, int32_t n_rows, const QuantizedRows& out);

// One product (runtime/backend/step.h: Product). Products of the same input and the same type share a launch.
struct DeviceProduct {
  Weight weight;
  const float* bias;
  float* out;
  int64_t out_stride;
  const float* low;              // of adapters alone: what goes through the matrix, rows of all products low_stride floats apart
  uint64_t expert_stride;        // of experts' matrices: bytes from one to the next
  const uint64_t* expert_units;  // null, or the experts' addresses (ExpertWeights::units); then expert_stride is the matrix's offset
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
// out = activation(gate) * up of the two products, as activate() computes it. Both products have one type and one shape; `accumulate` is
// not set.
void matmul_gated(Queue& queue, Activation activation, const DeviceProduct& gate, const DeviceProduct& up, ConstRows x,
                  const QuantizedRows& quantized, Rows out, int32_t n_rows);
// The same of a prompt's rows; false, and nothing is launched, where other tiles than large ones are better, or the type has none.
bool matmul_prefill_gated(Queue& queue, const DeviceShape& device, Activation activation, const DeviceProduct& gate,
                          const DeviceProduct& up, const QuantizedRows& quantized, Rows out, int32_t n_rows);
void embed(Queue& queue, const StepView& step, const Weight& table, float scale, float* out, int32_t n_rows);
// AdapterOperations (runtime/backend/adapters.h): out += scale * b low. weight: b, in tiles; n_cols is the rank.
void add_low_rank(Queue& queue, const Products& products, int64_t low_stride, float scale, int32_t n_rows);
// A matrix as in the file, `from`, becomes one as device/formats.h says.
void repack_rows(Queue& queue, TensorType type, int64_t n_rows, int64_t n_cols, const std::byte* from, std::byte* to);

// ---- experts.cu: ExpertOperations (runtime/backend/experts.h)
inline constexpr int32_t kMostExperts = 1024;
// RouterShape and RoutedRows. The host sets all bytes of a DeviceRouter: lists of operations are compared as bytes.
struct DeviceRouter {
  static constexpr int32_t kSoftmax = 0, kSigmoid = 1, kOfChosen = 2;
  const float *bias, *scales;  // (n_experts) or null
  float* weights;
  int32_t *experts, *slots, *rows, *owners, *first_slots;
  int32_t n_experts, n_used, gating, normalised;
  float scale;
  int32_t of_rows;              // of products: x has a row for each row of the step, not for each slot
  int32_t first_slot, n_slots;  // of products: RoutedRows's
};
void route(Queue& queue, const DeviceRouter& router, const float* logits, int32_t n_rows);
// Products with outputs of slots, side by side. quantized: x, if a product takes blocks.
void expert_products(Queue& queue, const Products& products, const DeviceRouter& router, ConstRows x, bool of_rows,
                     const QuantizedRows& quantized, int32_t n_rows);
void add_experts(Queue& queue, const DeviceRouter& router, float* x, const float* y, int64_t n, int32_t n_rows, bool accumulate);
void clamped_swiglu(Queue& queue, const float* gate, const float* up, float* out, int64_t n);  // of n values in all
void squared_relu(Queue& queue, float* x, int64_t n);                                          // of n values in all
void gate_rows(Queue& queue, float* x, const float* gates, int64_t n, int32_t n_rows);

// HeadProducts (runtime/backend/head_products.h). quantized: of x, n_rows * n_heads rows, if the weight has blocks.
void multiply_heads(Queue& queue, const Weight& weight, int32_t n_heads, ConstRows x, Rows out, const QuantizedRows& quantized,
                    int32_t n_rows);

// ---- matmul_cublas.cu: a prompt's products through cuBLAS.
class Cublas;
// Offsets in the scratch memory of these products, in bytes.
struct CublasPlan {
  uint64_t workspace = 0, workspace_bytes = 0;  // the workspace of cuBLAS itself
  uint64_t scales = 0, halves = 0;              // of activations: (max_rows), (max_rows, max_in)
  uint64_t stripe = 0, stripe_bytes = 0;        // quantized weights as halves; none without quantized weights in cuBLAS
  uint64_t bytes = 0;
  CublasPlan() = default;
  CublasPlan(int32_t architecture, bool of_blocks, const StepLimits& limits);
};
// As matmul_prefill(), for weights of every type but F32. Needs no quantized rows.
void matmul_cublas(Queue& queue, Cublas& cublas, const CublasPlan& plan, std::byte* scratch, const Products& products, ConstRows x,
                   int32_t n_rows);

// ---- kv.cu: appends rows to pages and slots, and moves KV between places and types. Pointers are those of the step's row 0.
struct Attention;
void append_kv(Queue& queue, const StepView& step, const Attention& to, KvType heads_type, bool to_heads, ConstRows k, ConstRows v,
               int32_t first_row, int32_t n_rows);
// A step's heads. rotate_and_append_kv() norms queries and keys if it has weights for the norm, rotates them in place, and appends keys and
// values. The results have the bits of rms_norm(), rope() and append_kv().
struct HeadRows {
  Rows q, k;
  ConstRows v;
  const float *q_norm, *k_norm;  // (head_dim) or null
  float eps;
  int32_t n_heads, n_rot, rope_at, k_rope_at;
  bool interleaved;
};
void rotate_and_append_kv(Queue& queue, const StepView& step, const HeadRows& rows, const Attention& to, KvType heads_type, bool to_heads,
                          int32_t first_row, int32_t n_rows);
// longest: the most tokens of a move.
void move_kv(Queue& queue, const KvMove* moves, int32_t n_moves, uint32_t longest, KvType to_type, KvType from_type, int32_t token_values);
// Writes the rows' queries of a layer, `width` floats each, to the rings of their sequences, where those have one.
void keep_queries(Queue& queue, const StepView& step, int32_t layer, ConstRows q, int64_t width, int32_t first_row, int32_t n_rows);

// ---- attend_decode.cu, attend_prefill.cu
// Whether attention has kernels for heads of this size: 32, 64, 96, 128, 256; 512 unless the KV type is F32; 16 and 80 if it is F32 or F16.
// Of rows whose first shared_values values are V: 576 with 512 in F16; 48 with 32 and 96 with 64 in F32 and F16.
constexpr bool attends(KvType type, int32_t head_dim, int32_t shared_values) {
  if (shared_values > 0)
    return (head_dim == 576 && shared_values == 512 && type == KvType::f16) ||
           (((head_dim == 48 && shared_values == 32) || (head_dim == 96 && shared_values == 64)) &&
            (type == KvType::f32 || type == KvType::f16));
  return head_dim == 32 || head_dim == 64 || head_dim == 96 || head_dim == 128 || head_dim == 256 ||
         (head_dim == 512 && type != KvType::f32) || ((head_dim == 16 || head_dim == 80) && (type == KvType::f32 || type == KvType::f16));
}
// The first key that a query at this position sees. window 0: a query sees all keys before it.
ORRERY_HOST_DEVICE constexpr int32_t first_visible(int32_t position, int32_t window) {
  return window > 0 && position >= window ? position - window + 1 : 0;
}
struct Attention {
  KvFormat kv;    // of the pages, or if `resident` of the slots
  bool resident;  // attends to StepView::heads, not to the pages
  int32_t layer, n_heads;
  float scale;
  int32_t window;      // sliding window; 0: none
  int32_t first_page;  // where the KV group's pages begin in StepView::pages
  const float* sinks;  // (n_heads) or null
};
uint64_t attend_scratch_bytes(const DeviceShape& device, const StepLimits& limits);
// quantized: null, or receives what quantize_rows() would make of the result. Then head_dim is a multiple of 32 and a row's width is a
// multiple of 256. q and out are the step's row 0.
void attend_decode(Queue& queue, const DeviceShape& device, const StepView& step, const Attention& shape, ConstRows q, Rows out,
                   const QuantizedRows* quantized, int32_t first_row, int32_t n_rows, int32_t max_context, std::byte* scratch);
// A segment of the keys that prompt rows see. Launches take segment after segment. Between two launches `out` holds the rows' sums, not yet
// divided by l, and `m_and_l` holds both. The default is one segment with all keys.
struct KeySegment {
  int32_t first = 0, end = INT32_MAX;  // whole tiles
  // One layer of these pages, page after page (KvFormat::layer_bytes() each). null: the step's own pages.
  const std::byte* staged = nullptr;
  float* m_and_l = nullptr;  // m and l of four lanes for each query: (n_rows, n_heads, kFloats)
  bool goes_on = false, is_last = true;
  static constexpr int32_t kFloats = 8;
};
void attend_prefill(Queue& queue, const DeviceShape& device, const StepView& step, const Attention& shape, ConstRows q, Rows out,
                    int32_t n_rows, const KeySegment& keys);

// ---- top_keys.cu
// The queries of one job within a batch. A batch's parts lie at the start of the scratch memory, in order.
struct TopKeysPart {
  // Of tiles that lie side by side: `tiles` is null, and these are the address of the first one and the bytes from tile to tile.
  uint64_t first_tile, tile_bytes;
  const uint64_t* tiles;  // on the device
  uint64_t offset;        // of the layer and the KV head in a tile
  const float* queries;   // row 0 of this layer's ring, at the KV head's group
  int32_t n_keys, k;
  int32_t first_position, n_positions;
  int32_t first_entry;  // index of the first query in the batch
  uint32_t by_score;
  int32_t first_out;      // of top_keys(): index of the part's first result, (n_positions, k), among the results
  const uint32_t* among;  // a list of keys, on the device, ascending. The result is the number of best keys in it. null: the best keys
  int32_t n_among;
  // With codes, of one query (TopKeysJob). held: (n_held) keys whose scores count `stay` times. finds_number: keys with a smaller score
  // than `least` are left out, and the start of the entry's pairs gets the number of the others. log_evicted: the result, (group).
  int32_t n_held, first_key;
  const uint32_t* held;
  float stay, least;
  uint32_t finds_number;
  float* log_evicted;
  float* value_evicted;  // with codes of values: the means of the values of the same keys, (group, head_dim); or null
  const KeyTurn* turns;  // of codes with turns: the head's; or null
  // Of key_weights(). mean: the result is the mean. add: the result is the sum, added to what the row of the results holds. slot: this row.
  // n_before: the job's positions in earlier batches. n_all: all of the job's positions.
  uint32_t mean, add;
  int32_t slot, n_before, n_all;
};
// Offsets of a batch in the scratch memory, in bytes; strides count keys and tiles:
// - parts, from 0 on; the parts' tables of tiles, one behind the other (at most n_queries, tile_stride);
// - out (n_queries, stride): keys, part by part; or their number; or a row's mean of weights;
// - entries, one for each query, with room for at least n_keys pairs at `pairs`, for selections by score or a list `among`. Entries over more
//   than kManyKeys keys have the working memory of many thread blocks at `selection` (slices.cuh), and behind half of the pairs, at `flags`,
//   four bytes for each key, which a part's misses leave free;
// - moments: three sums, doubles, and moments_scores: floats, (group, stride) each; moments_totals: two doubles for each query head.
struct TopKeysPlan {
  static constexpr int32_t kBatch = 10;         // queries over as many keys as a session may have
  static constexpr int32_t kMostQueries = 512;  // of a batch over fewer keys
  static constexpr int32_t kManyKeys = 4096;    // one thread block selects among as many keys, and many thread blocks among more
  uint64_t tiles = 0, out = 0, entries = 0, pairs = 0, flags = 0, selection = 0, entry_bytes = 0, moments = 0, moments_scores = 0,
           moments_totals = 0, bytes = 0;
  int64_t stride = 0, tile_stride = 0;
  int32_t group = 0, n_queries = kBatch;
  TopKeysPlan() = default;
  explicit TopKeysPlan(const StepLimits& limits);
  // The same memory for batches of at most n queries over at most `keys` keys: more than kBatch queries, if they fit.
  TopKeysPlan fitted(int64_t keys, int64_t n) const;
  // Whether many thread blocks select for a query.
  bool by_many_blocks(int32_t n_keys) const { return selection > 0 && n_keys > kManyKeys; }

 private:
  void lay_out(int64_t keys, int32_t n);
};
// The digests of one job. The tables of the keys' tiles and of the digests' tiles lie on the device.
struct DigestPart {
  const uint64_t* tiles;
  uint64_t offset;
  const uint64_t* digests;
  int32_t first_page, n_pages;
  float* cosines;  // (n_pages), if the digests are means
};
void digest(Queue& queue, const DigestPart* parts, const DigestShape& shape, int32_t n_parts, int32_t most_pages);
// Tokens that join one compensation token (runtime/backend/summaries.h: CompensationJob).
struct CompensationPart {
  const uint64_t* tiles;  // from the first token's tile on; null: all tokens lie in one tile, whose address is `offset`
  uint64_t offset;
  int32_t first, n;           // index of the first token in the first tile; number of tokens
  int32_t n_before;           // tokens that the compensation token stands for already
  float* compensation_token;  // (2, head_dim)
  const float* shares;        // (n), or null: each token counts as one
};
// `parts` lie in device memory.
void add_to_compensation_tokens(Queue& queue, const CompensationPart* parts, const KvFormat& kv, int32_t n_parts);
// The caller has uploaded the batch's parts and tiles; so it has for the next two functions. What a batch has besides the best keys:
struct FetchPart;
struct TopKeysBatch {
  bool ends = false;      // parts by score, or with `among`
  int32_t most_held = 0;  // keys whose scores count `stay` times, the most of a part
  bool values = false;    // parts with value_evicted
  // Of plan_fetch(): for each part, of one query, where its misses are found. excludes: keys that get the lowest score.
  const FetchPart* fetch = nullptr;
  bool excludes = false;
};
void top_keys(Queue& queue, const TopKeysPlan& plan, std::byte* scratch, const TopKeysShape& shape, int32_t n_parts, int32_t n_entries,
              int32_t most_keys, const TopKeysBatch& batch);
// What top_keys() selects by: each query's scores, as numbers of order.
void key_scores(Queue& queue, const TopKeysPlan& plan, std::byte* scratch, const TopKeysShape& shape, int32_t n_parts, int32_t n_entries,
                int32_t most_keys);
// FetchShape::one_set, batch by batch; shape.products is set. The batches before had n_before queries, of n_all. Adds the products to
// `sums` (n_keys). Behind the last batch `sums` has the order of the mean scores, as whole numbers (policy::order_of()).
void add_scores(Queue& queue, const TopKeysPlan& plan, std::byte* scratch, const KeysShape& shape, int32_t n_parts, int32_t n_entries,
                int32_t n_keys, int32_t n_before, int32_t n_all, float* sums);
// Writes each part's best keys by these numbers. null: by its scores().
void select_by_order(Queue& queue, const TopKeysPlan& plan, const FetchPart* parts, const uint32_t* order, int32_t n_parts,
                     int32_t most_keys);
// FetchOperations::fetch_near_best(), batch by batch; shape.products is set. counts: of the batch's heads; products near the best. The
// start of each entry gets the scores of its keys.
void near_best(Queue& queue, const TopKeysPlan& plan, std::byte* scratch, const KeysShape& shape, int32_t n_parts, int32_t n_entries,
               int32_t most_keys, float alpha, uint32_t* counts);
// Writes each part's best keys by its scores, and their number behind its table. counts: (n_heads) of all batches.
void select_near_best(Queue& queue, const TopKeysPlan& plan, const FetchPart* parts, const uint32_t* counts, int32_t n_heads, int32_t group,
                      int32_t n_parts, int32_t most_keys);
// Writes each query's weights, or products, to the start of its entry, (group, stride); or a job's mean or sum to its slot of the results.
void key_weights(Queue& queue, const TopKeysPlan& plan, std::byte* scratch, const KeysShape& shape, int32_t n_parts, int32_t n_entries,
                 int32_t most_keys);

// Adds the moments of a batch with one part. With the job's last positions it writes the scores (group, stride) to moments_scores, and each
// query head's entropy and variance (2, group) to moments_totals.
void key_moments(Queue& queue, const TopKeysPlan& plan, std::byte* scratch, const KeysShape& shape, int32_t n_entries, int32_t n_keys,
                 int32_t n_measured, float gamma);

// ---- key_codes.cu. A job of KeyCodeOperations, with its memory on the device.
struct CodesPart {
  const uint64_t* pages;  // from the page of the first token on; of mean_values() from page 0 on
  uint64_t offset;
  float* mean;  // (head_dim), and turns behind it (KeyCodeFormat::turns_offset()): the result of mean_keys(); of mean_values() the value
  std::byte* tiles;
  const float* shares;  // (n_shares) of mean_values()
  float* sums;          // (pages, head_dim) working memory of mean_values()
  int32_t n_shares;
};
void mean_keys(Queue& queue, const CodesPart* parts, const KeyCodesShape& shape, int32_t n_parts, int32_t first, int32_t end, int32_t step);
void mean_values(Queue& queue, const CodesPart* parts, const KvFormat& kv, int32_t n_parts, int32_t most_pages);
// first < end.
void encode_keys(Queue& queue, const CodesPart* parts, const KeyCodesShape& shape, int32_t n_parts, int32_t first, int32_t end);
// Parts of top_keys() and key_weights() with codes: weights by codes; scores of held keys; and behind the selection log_evicted, which
// holds the largest unit of a query head's tiles before.
namespace top_keys_cu {
struct TopKeysWork;
}
void code_weights(Queue& queue, const top_keys_cu::TopKeysWork& work, const KeysShape& shape, int32_t n_parts, int32_t most_keys);
void weigh_held(Queue& queue, const top_keys_cu::TopKeysWork& work, int32_t n_parts, int32_t most_held);
void evicted_logs(Queue& queue, const top_keys_cu::TopKeysWork& work, const KeyCodeFormat& codes, int32_t n_parts);
// Behind evicted_logs(), which leaves the weights of evicted keys alone in parts with value_evicted: these parts' value_evicted.
void evicted_values(Queue& queue, const top_keys_cu::TopKeysWork& work, const KeysShape& shape, int32_t n_parts, int32_t most_keys);

// ---- fetch.cu
struct FetchMiss {
  uint32_t place, page;
};
// A job of FetchOperations, behind top_keys(). All memory is the device's.
struct FetchPart {
  uint32_t* best;     // (k) ascending
  uint32_t* held;     // (n_held), and one more entry for the other plans than plan_fetch()
  uint32_t* before;   // (n_held) of plan_changed() and plan_lowest(): differs from `held` where pages are to come, and only there
  FetchMiss* misses;  // (n_held): the results, *n_misses() of them; and behind them 4 (n_held + 1) bytes
  // (n_held) working memory of plan_replacing(); it may overlap the memory behind `misses`. Of select_by_order() and plan_lowest():
  // scores().
  unsigned long long* order;
  uint64_t slots, from;      // FetchJob
  const uint32_t* excluded;  // (n_excluded)
  // Of entries over more than kManyKeys keys: working memory. flags: (n_keys + n_first and the pages behind the last key) 1: wanted, 2:
  // held, too.
  uint32_t* selection;
  uint8_t* flags;
  FetchTold* told;
  int32_t n_held, n_wanted, n_keys, k, first_page, n_first, kv_head, n_excluded;
  ORRERY_HOST_DEVICE uint32_t* resident() const { return reinterpret_cast<uint32_t*>(misses + n_held); }  // (n_wanted) working memory
  ORRERY_HOST_DEVICE const uint32_t* scores() const { return reinterpret_cast<const uint32_t*>(order); }  // (n_keys) numbers of order
  ORRERY_HOST_DEVICE int32_t* n_misses() const { return reinterpret_cast<int32_t*>(resident() + n_held); }
};
// Lists each part's misses. by_many_blocks: of as many places at most, if top_keys() has selected by many thread blocks.
void plan_fetch(Queue& queue, const FetchPart* parts, int32_t n_parts, int32_t most_held, bool by_many_blocks);
// The same with FetchShape::lowest_first. scores: of the keys, as add_scores() leaves them.
void plan_replacing(Queue& queue, const FetchPart* parts, const uint32_t* scores, int32_t n_parts);
// changed: (n_kv_heads) 1 where a head's query has changed (QueryChange).
void query_changes(Queue& queue, const float* now, const float* before, int32_t n_kv_heads, int32_t group, int32_t head_dim, double tau,
                   uint32_t* changed);
// FetchOperations::fetch_changed() and fetch_followers(). The misses are those of heads whose query has changed; fill_changed() reads the
// others.
enum class Candidates : uint32_t { of_both, of_this_step, of_next_step };  // of_both: the step completes no page
void plan_changed(Queue& queue, const FetchPart* parts, const uint32_t* changed, int32_t n_kv_heads, Candidates candidates,
                  int32_t n_parts);
void fill_changed(Queue& queue, const FetchPart* parts, const uint64_t* pages, const FetchShape& shape, int32_t n_parts, int32_t most_held);
// Behind select_near_best(). fill_changed() reads the misses. Not written: n_misses().
void plan_lowest(Queue& queue, const FetchPart* parts, int32_t n_parts);
// Reads the tokens of the misses.
void fill_pages(Queue& queue, const FetchPart* parts, const uint64_t* pages, const FetchShape& shape, int32_t n_parts, int32_t most_held);
// Writes misses first .. first + n - 1 of each part to `runs`, (n_parts, n), for rebuild_keys(). Runs behind the last miss are empty.
void list_runs(Queue& queue, const FetchPart* parts, const uint64_t* pages, const FetchShape& shape, int32_t n_parts, int32_t first,
               int32_t n, RebuiltRun* runs);

// ---- shortlist.cu: ShortlistOperations. shortlist() answers the step's request of this number. The others write kBands sums, and the
// entries of two bands, to `out`. All read the mask of a masked request at its place in `out`.
uint64_t shortlist_bytes(int64_t n);
uint64_t shortlist_mask_at(int64_t n);
void shortlist(Queue& queue, const StepView& step, int32_t number, const float* logits, int64_t n, std::byte* out);
void shortlist_bands(Queue& queue, const float* logits, int64_t n, const ShortlistTail& tail, std::byte* out);
void shortlist_entries(Queue& queue, const float* logits, int64_t n, const ShortlistTail& tail, int32_t band, int32_t other_band,
                       std::byte* out);

// ---- low_rank.cu: a layer's keys as products of coefficients and a basis. The members of LowRankKeys, with its memory by parts.
struct LowRankWork {
  KvFormat kv;
  uint64_t offset;  // from a page's address to the first head's tokens
  int32_t n_heads;  // heads whose keys stand side by side in a row
  int32_t rank, n_rot;
  bool interleaved;
  float magnitude;
  std::byte *rows, *basis;
  float* batch;                             // (kBatch, width) keys, or RebuiltRuns
  float* products;                          // (width, width)
  float* sums;                              // (width) or null
  const float* frequencies;                 // (n_rot / 2); of rebuild_keys() only without the tables of turns
  const float *page_rotations, *rotations;  // LowRankKeys; or null
};
// Fills the batch with the keys of positions [first, first + n), rotated back to position 0. pages: addresses, in host memory.
void load_keys(Queue& queue, const LowRankWork& work, const uint64_t* pages, int32_t first, int32_t n);
// The upper half of products += batch^T batch; sums += the batch's sums. first_batch: = instead of +=.
void add_products(Queue& queue, const LowRankWork& work, int32_t n, bool first_batch);
// The coefficients of positions [first, first + n) = batch basis^T.
void project_keys(Queue& queue, const LowRankWork& work, int32_t first, int32_t n);
void rebuild_keys(Queue& queue, const LowRankWork& work, KvType slot_type, int32_t n_runs, int32_t longest);
// LowRankOperations::low_rank_queries().
struct QueryProjection {
  const std::byte* basis;  // of the first KV head
  uint64_t next_basis;     // bytes
  const float* q;          // (n_heads, head_dim)
  float* out;              // (n_heads, rank)
  int32_t rank, head_dim, n_heads, group;
};
void project_queries(Queue& queue, const QueryProjection& work);

}  // namespace orrery::cuda
