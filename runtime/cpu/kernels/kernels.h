// The seam between the CPU backend and its instruction sets: one table of functions (Kernels) for each set, on plain pointers. The
// backend cuts an operation into items and gives them to threads. A kernel computes one item and knows nothing of threads.
//
// "plain" is portable C++, and the reference for the others: every instruction set computes the same integers, and differs from
// "plain" only in the rounding of floats. Files of an instruction set are compiled for instructions that the machine may lack. So
// they must not emit functions that the linker could share with other files: they include this header and intrinsics, and keep
// everything else in unnamed namespaces. This header's functions are `static` for the same reason.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/backend/adapters.h"
#include "runtime/backend/keys.h"
#include "runtime/backend/low_rank.h"
#include "runtime/base/tensor_type.h"

namespace orrery::cpu {

// Activation::gelu.
constexpr float kGeluScale = 0.79788456080286536f, kGeluCube = 0.044715f;  // sqrt(2 / pi)

// A row of activations, quantized for products with quantized weights. Each 32 values have a float scale d = max|x| / 127 and int8
// values q = x / d rounded to nearest, so that |x - d q| <= d / 2. An output differs from the product with the float row by at most
// the sum over blocks of (max|x| / 254) * sum|w|. Sums of 16 q's serve the formats with minima and offsets. Rows are padded with
// zeros to a multiple of 256. Layout:
//  int8 q[n_padded], float d[n_padded / 32], int16 sums[n_padded / 16]
constexpr float kSmallestBlockMax = 1e-35f;  // blocks of smaller values count as zero: 127 / max would overflow
static inline int64_t padded_columns(int64_t n) { return (n + 255) / 256 * 256; }
static inline int64_t quantized_row_bytes(int64_t n) {  // a multiple of 64
  const int64_t p = padded_columns(n);
  return p + p / 32 * 4 + p / 16 * 2;
}
struct QuantizedRow {
  const int8_t* q;
  const float* d;
  const int16_t* sums;
};
static inline QuantizedRow quantized_row(const std::byte* row, int64_t n) {
  const int64_t p = padded_columns(n);
  return {reinterpret_cast<const int8_t*>(row), reinterpret_cast<const float*>(row + p),
          reinterpret_cast<const int16_t*>(row + p + p / 32 * 4)};
}

// Activations rounded to bf16, for products of bf16 (Kernels::pack_rows). Rows are in strips of 16. In a strip, each 32 columns are
// 16 pairs of columns, a pair for each of the 16 rows side by side; zeros beyond the last row and column.
constexpr int64_t kPackedRows = 16, kPackedColumns = 32, kPackedTileBytes = 1024;
static inline int64_t packed_strip_bytes(int64_t n) { return (n + kPackedColumns - 1) / kPackedColumns * kPackedTileBytes; }

// The convolution of neighbouring channels for one row (backend/recurrent.h): out = silu(sum over taps of inputs[tap] * weights + bias), or
// with a gate out = gate * that sum.
struct ConvolveTask {
  static constexpr int32_t kMostTaps = 8;
  const float* inputs[kMostTaps];  // (dim) each, the oldest row first
  const float* weights;            // (dim, n_taps)
  int32_t n_taps, dim;
  const float *bias, *gate;  // (dim) or null
  float* out;                // (dim)
  float scale, eps;          // scale > 0: then out = out / sqrt(|out|^2 + eps) * scale
};

// The delta rule of one value head over a step's rows, which lie `stride` floats apart unless said otherwise.
struct DeltaTask {
  int32_t n_rows, key_dim, value_dim;
  float* state;            // (key_dim, value_dim)
  const float *q, *k, *v;  // convolved: (key_dim), (key_dim), (value_dim)
  int64_t stride;
  const float *a, *b;  // the head's values, gate_stride floats apart
  int64_t gate_stride;
  float dt, decay;
  const float* z;     // (value_dim), rows value_stride floats apart, as those of out
  const float* norm;  // (value_dim)
  float* out;         // (value_dim); null: the rows change the state alone, and q, z and norm do not count
  int64_t value_stride;
  float eps;
};

// A row's scalars: how much of the state stays, and how much of what it lacks is written.
struct DeltaGates {
  float decay, beta;
};
static inline DeltaGates delta_gates(const DeltaTask& t, int64_t row) {
  const double x = static_cast<double>(t.a[row * t.gate_stride] + t.dt), b = static_cast<double>(t.b[row * t.gate_stride]);
  const double softplus = (x > 0 ? x : 0.0) + __builtin_log1p(__builtin_exp(x > 0 ? -x : x));
  return {static_cast<float>(__builtin_exp(static_cast<double>(t.decay) * softplus)), static_cast<float>(1.0 / (1.0 + __builtin_exp(-b)))};
}

// The recurrence of one head of Mamba2 over a step's rows.
struct Mamba2Task {
  int32_t n_rows, state_dim, head_dim;
  float* state;            // (state_dim, head_dim)
  const float *x, *b, *c;  // convolved: (head_dim), (state_dim), (state_dim); rows `stride` floats apart
  int64_t stride;
  const float* t;  // the head's values, t_stride floats apart
  int64_t t_stride;
  float dt, decay, skip;
  float* out;  // (head_dim), rows out_stride floats apart; null: the rows change the state alone
  int64_t out_stride;
};

// A row's scalars: how much of the state stays, and the weight of its x.
struct Mamba2Gates {
  float decay, step;
};
static inline Mamba2Gates mamba2_gates(const Mamba2Task& t, int64_t row) {
  const double x = static_cast<double>(t.t[row * t.t_stride] + t.dt);
  const double softplus = (x > 0 ? x : 0.0) + __builtin_log1p(__builtin_exp(x > 0 ? -x : x));
  return {static_cast<float>(__builtin_exp(static_cast<double>(t.decay) * softplus)), static_cast<float>(softplus)};
}

// out[r][o] (+)= sum over c of x[r][c] * weight[o][c] (+ bias[o]), for o in [first_out, last_out) and r in [first_row, last_row).
struct MatmulTask {
  TensorType type;
  const std::byte* weight;  // (n_out, n_columns) in `type`, rows row_bytes apart
  bool in_bands;            // rows are in bands of kBandRows (formats/bands.h); then outputs are cut between bands
  int64_t row_bytes, n_columns;
  int64_t first_out, last_out;
  const float* x;  // (n_rows, n_columns), for float weights
  int64_t x_stride;
  const std::byte* quantized;  // (n_rows) quantized rows, for quantized weights
  int64_t quantized_stride;    // bytes
  const std::byte* packed;     // packed rows, from row 0 on, for weights of Kernels::packs' types; else null
  int64_t first_row, last_row;
  const float* bias;  // (n_out) or null
  float* out;         // (n_rows, n_out)
  int64_t out_stride;
  bool accumulate;
  std::byte* scratch;  // Kernels::matmul_scratch_bytes and decode_scratch_bytes(n_columns), 64-byte aligned, for this thread alone
};

// out[r][o] += scale * (sum over k of low[r][k] * b[o][k]), for o in [first_out, last_out) and r < n_rows. first_out is at a tile's start.
struct AdapterTask {
  const float* b;  // (tiles, rank, kAdapterTile)
  int64_t rank;
  const float* low;
  int64_t low_stride;
  float scale;
  float* out;
  int64_t out_stride;
  int64_t first_out, last_out, n_rows;
};

// The place of one layer's tokens of one KV head.
struct KvHead {
  KvType type;
  int32_t head_dim, value_dim;
  const uint64_t* pages;  // page addresses of the sequence
  uint64_t offset;        // of this layer and head within a page
  uint64_t key_bytes,
      value_bytes;  // of one K, and of one V behind it; value_bytes 0: V is the first value_dim values of K, or none (KeyWeightsTask)
};
// shared_values: KvFormat's.
static inline KvHead kv_head(KvType type, int32_t head_dim, int32_t shared_values, const uint64_t* pages, uint64_t offset) {
  const uint64_t dim = static_cast<uint64_t>(head_dim);
  const bool shares = shared_values > 0;
  return {type, head_dim, shares ? shared_values : head_dim, pages, offset, key_bytes(type, dim), shares ? 0 : value_bytes(type, dim)};
}
static inline uint64_t token_bytes(const KvHead& kv) { return kv.key_bytes + kv.value_bytes; }
static inline uint64_t value_at(const KvHead& kv) { return kv.value_bytes > 0 ? kv.key_bytes : 0; }  // from a token's K to its V
static inline const std::byte* kv_tile(const KvHead& kv, int64_t tile) {                             // tile = page: kPageTokens tokens
  return reinterpret_cast<const std::byte*>(kv.pages[tile] + kv.offset);
}

// The partial result of attention of one query over some keys: m, l = sum of exp(s - m), o = sum of exp(s - m) v; some kernels use
// 2^(s - m). Layout in floats: m, l, 14 unused, o[value_dim], padded to whole 64 bytes.
static inline int64_t partial_floats(int64_t value_dim) { return 16 + (value_dim + 15) / 16 * 16; }

// The attention weights of some queries that a decode step exports, tile by tile (ExportedWeights, KeyWeightsTask).
struct WeightRows {
  float* weights;       // (queries, stride), aligned for whole vectors; null: no export
  float *units, *sums;  // (queries, tile_stride)
  int64_t stride, tile_stride;
};
static inline WeightRows weight_rows(const ExportedWeights& exported, int32_t n_queries) {
  if (!exported.data) return {};
  float* weights = reinterpret_cast<float*>(exported.data.address);
  float* units = weights + n_queries * exported.stride;
  return {weights, units, units + n_queries * exported.n_tiles(), exported.stride, exported.n_tiles()};
}

// Copies tokens of token_bytes each. No token overlaps another.
struct MoveTask {
  const KvMove* moves;  // (n)
  int64_t n;
  uint64_t token_bytes;
  bool past;  // the tokens exceed the caches, so stores go past them
};

// A generated token's queries over the keys at positions [first_key, last_key), all visible.
constexpr int32_t kDecodeHeads = 8;
struct DecodeTask {
  KvHead kv;          // the first of the KV heads
  int32_t n_heads;    // KV heads, side by side in pages; at most kDecodeHeads
  const float* q;     // (n_heads, n_queries, head_dim)
  int32_t n_queries;  // queries for each KV head
  int64_t first_key, last_key;
  const std::byte* next;  // hint for prefetching: the tile that this thread probably reads next; or null
  float scale;
  float* partials;  // (n_heads, n_queries) partials, partial_stride floats apart
  int64_t partial_stride;
  WeightRows exported;  // optional, for a single head; first_key is at a tile's start; rows are indexed by key and by tile
  std::byte* scratch;   // Kernels::attend_scratch_bytes
};

// Queries of consecutive positions over all keys that each may see.
constexpr int32_t kQueryTile = 64;  // queries (rows * heads) of a task that every instruction set takes
struct PrefillTask {
  KvHead kv;
  const float* q;  // (n_rows, n_heads of the group, head_dim), rows q_stride floats apart
  int64_t q_stride;
  float* out;  // (n_rows, n_heads, value_dim), rows out_stride floats apart
  int64_t out_stride;
  int32_t n_rows, n_heads;  // n_rows * n_heads <= Kernels::prefill_queries
  int64_t first_position;   // position of the first row; a row sees keys [max(0, position - window + 1), end_of(row))
  int32_t window;           // 0: all
  int32_t ahead;            // AttendShape::ahead
  int64_t n_keys;           // of the sequence, where rows see keys ahead
  float scale;
  const float* sinks;  // AttendShape::sinks of these heads, or null
  std::byte* scratch;  // Kernels::attend_scratch_bytes

  int64_t end_of(int64_t row) const {
    const int64_t end = first_position + row + 1 + ahead;
    return ahead > 0 && end > n_keys ? n_keys : end;
  }
};

// Softmax weights of some queries over the keys [first_key, last_key), in each tile's own unit, a power of two. With y = scale *
// log2(e) * q k: out = 2^(y - unit), unit = the tile's largest y, rounded (0 if all are -infinity). So K is read once, and no pass
// over the logits follows. Equal logits give equal bits at the end, in every tile: the tile's share restores exactly what its unit
// removed. A NaN gets the weight 0.
struct KeyWeightsTask {
  KvHead kv;
  const float* q[kQueryTile];   // (head_dim) each
  float* out[kQueryTile];       // (last_key - first_key) each, then zeros to the end of the last tile (none with `products`)
  float* units[kQueryTile];     // (tiles) each
  float* sums[kQueryTile];      // (tiles) each: sums of out
  float* logs[kQueryTile];      // (tiles) each: sums of out log2(out)
  int64_t ends[kQueryTile];     // keys from here on get the weight 0
  int32_t n_queries;            // at most kQueryTile
  int64_t first_key, last_key;  // first_key at the start of a tile
  float scale;
  bool bounds;             // q k is the sum of max(q K, q V) over the dimensions (KeysShape)
  bool with_logs = false;  // compute logs
  bool products;           // out = scale * q k, -infinity for a NaN; units, sums and ends are unused
  std::byte* scratch;      // Kernels::attend_scratch_bytes
};

// A query over key codes: y = factor * (base + step * the sum of the key's table entries), in integers up to the sum. Groups of four bits
// index the table; its entries are the query's products with the levels, in units of `step` above each group's least, times log2(e). The
// sum fits in 16 bits.
constexpr int32_t kMostGroups = 257;
// The largest entry. Of codes of 1 or 2 bits four entries fit in a byte together, so bytes are summed before words. Such an entry's
// rounding is small beside the code's error; beside that of 4 bits it would not be.
constexpr int32_t kEntriesOfByte = 4;
constexpr int32_t most_entry(int32_t bits) { return bits == 4 ? 255 : 255 / kEntriesOfByte; }
struct KeyCodeTable {
  uint8_t entries[kMostGroups * 16];  // (n_groups, 16)
  float base, step;
  // With turns: the query's product with turn i's mean at angle a is cosines[i] cos(a) + sines[i] sin(a).
  float cosines[kMostTurns], sines[kMostTurns];
};
// The turns of a head, and where their cosines and sines lie (KeyTurnTables): of tile t (2) at of_tiles[i] + t * tile_stride, within a tile
// (2, kPageTokens) at within[i].
struct TurnsOfHead {
  int32_t n = 0;
  const float *of_tiles[kMostTurns], *within[kMostTurns];
  int64_t tile_stride = 0;
};
// Writes the codes of a rotated key as those of key `at` of its tile. *factor = the factor with the least squared error for these codes, at
// most the largest half; NaN for a key that is not finite.
struct EncodeTask {
  KeyCodeFormat codes;
  const float* key;  // (head_dim)
  int32_t at;
  uint8_t* tile;
  float* factor;
};
// Weights of some queries over the codes [first_key, last_key), as KeyWeightsTask defines them. Keys before first_seen get the weight 0.
constexpr int kCodeQueries = 4;  // codes are read and split once for all queries of a task
struct CodeWeightsTask {
  KeyCodeFormat codes;
  const uint64_t* tiles;                    // addresses of all tiles of codes
  int64_t first_key, last_key, first_seen;  // first_key at the start of a tile
  TurnsOfHead turns;
  int32_t n_queries;
  // For each query:
  const KeyCodeTable* tables[kCodeQueries];
  float* out[kCodeQueries];                         // (last_key - first_key), then zeros to the end of the last tile
  float *units[kCodeQueries], *sums[kCodeQueries];  // (tiles) each
};

// Adds to out the sum over the tokens [first_key, last_key) of weight * share of the tile * V by its codes, rotated as they are. A tile's
// weights times the factors of V are first rounded: the sum of a group's 4 / value_bits tokens to 1 / 127 of the largest group's sum.
struct CodeValuesTask {
  KeyCodeFormat codes;
  const uint64_t* tiles;
  int64_t first_key, last_key;  // first_key at the start of a tile
  int32_t n_queries;            // at most kCodeQueries
  // For each query:
  const float* weights[kCodeQueries];  // (last_key - first_key), then zeros to the end of the last tile
  const float* shares[kCodeQueries];   // (tiles)
  const float* sums[kCodeQueries];     // (tiles): of the weights, or more
  float least[kCodeQueries];           // tiles whose sum times their share is not more are left out
  float* out[kCodeQueries];            // (head_dim rounded up to whole blocks of kValueBlock)
};
constexpr int kMostValueTable = kPageTokens * 2 / 4 * 16;  // entries of a tile with 2 bits

// Combines the weights of a group's query heads (KeyWeightsTask) to one score per key (KeyScoring).
constexpr int kMostPooled = 127;
struct ScoresTask {
  const float* rows;  // (n_rows, n), rows `stride` apart, whole tiles; from n on they belong to other keys
  int64_t stride;
  const float *units, *sums;  // (n_rows, tiles), rows `tile_stride` apart
  int64_t tile_stride;
  int32_t n_rows;
  int64_t n;
  KeyScoring scoring;  // pool_width at most kMostPooled
  float* shares;       // (n_rows, tiles), rows `tile_stride` apart: scratch
  float* out;          // (n)
};

// Adds to each key's sum the mean over a group's query heads, for each position in order.
struct MeansTask {
  const float* rows;  // (n_positions, n_heads, n), rows `stride` apart, whole tiles; the first key is at the start of a tile
  int64_t stride;
  const float* shares;  // (n_positions, n_heads, tiles), rows `tile_stride` apart: the share of each tile's weights in the softmax
  int64_t tile_stride;
  int32_t n_positions, n_heads;
  int64_t n;
  float* out;  // (n)
};

// For one query head over some positions: out = each key's mean weight plus gamma times its unbiased variance (0 for one position).
struct MomentsTask {
  const float* rows;  // (n_rows, n), rows `stride` apart, whole tiles; the first key is at the start of a tile
  int64_t stride;
  const float* shares;  // (n_rows, tiles), rows `tile_stride` apart: the share of each tile's weights in the softmax
  int64_t tile_stride;
  int32_t n_rows;  // at most kQueryTile
  int64_t n;
  float gamma;
  float* out;        // (n)
  float* variances;  // (tiles): sums of the variances
};

// Low-rank keys (LowRankKeys). Rows of floats are zeros from `width` up to whole vectors.
constexpr int kGramRows = 24;
struct GramTask {         // out[i][j] += sum over t of keys[t][i] keys[t][j], for i in [first, last) and j from at most `first` to width
  const float* keys;      // (n_keys, width)
  int64_t stride, width;  // a multiple of 16
  int32_t n_keys;         // at most LowRankKeys::kBatch
  int64_t first, last;    // at most kGramRows
  float* out;             // (width, width), rows `stride` apart
};
struct ProjectTask {  // out[t][j] = keys[t] * basis[j]
  const float* keys;  // (n_keys, width)
  int64_t stride, width;
  int32_t n_keys, rank;
  const std::byte* basis;  // (rank, width) halves
  float* out;              // (n_keys, rank)
};
struct BasisTask {        // converts a part of a basis for RebuildTask
  const std::byte* rows;  // (rank, dim) halves, row_bytes apart
  int64_t row_bytes;
  int32_t rank, dim;
  KvType type;    // type of the RebuildTask
  int64_t width;  // dim rounded up to whole vectors of 16
  float* out;     // room for (rank, width), and for 32 rows at least; zeros from dim on
};
constexpr int kRebuilt = 48;     // most keys of one task
struct RebuildTask {             // out[t] (+)= sum over j of rows[t][j] basis[j]
  const std::byte* const* rows;  // (n_keys) of (rank) halves
  int32_t n_keys, rank;          // at most kRebuilt keys
  KvType type;                   // type in which the keys are stored afterwards; unless it is F32, factors may be rounded to bf16
  float* scratch;                // (kRebuilt, rank rounded up to whole vectors of 16)
  const float* basis;            // (rank, width), from pack_basis
  int64_t width;                 // a multiple of 16
  float* out;                    // (kRebuilt, width); rows from n_keys on are undefined
  bool add;
};
struct RotateTask {  // to[t] = keys[t] rotated by RoPE and stored as K, then values[t] as V
  float* keys;       // (n_keys, width); undefined afterwards
  int64_t width;     // a multiple of 16
  int32_t n_keys, head_dim;
  const int32_t* positions;                 // (n_keys)
  const float *page_rotations, *rotations;  // as in LowRankKeys
  int32_t n_rot;
  bool interleaved;
  float* table;  // (n_rot) scratch
  KvType type;
  std::byte* const* to;            // (n_keys)
  const std::byte* const* values;  // (n_keys) V as stored; a null pointer, or a null entry: V in the slot stays
};

// Rows of activations that meet a weight of decode while it is unpacked. decode_scratch_bytes(): room for two numbers for each 32 columns
// of each of them.
constexpr int kFewRows = 32;
static inline int64_t decode_scratch_bytes(int64_t n_columns) { return padded_columns(n_columns) / 32 * kFewRows * 8; }

struct Kernels {
  const char* name;

  // x (n) -> one quantized row.
  void (*quantize_row)(const float* x, int64_t n, std::byte* out);

  // Decode reads weights once for a few rows, and unpacks them once for up to kFewRows. Prefill unpacks tiles of tile_out weight rows
  // and multiplies up to tile_rows rows with each. Any ranges are valid; tasks of these shapes are the fastest.
  void (*matmul_decode)(const MatmulTask& task);
  void (*matmul_prefill)(const MatmulTask& task);
  // May be null. packs(): whether matmul_prefill takes packed rows for weights of this type. pack_rows(): n_rows rows of x (n), at
  // most kPackedRows, as one strip.
  bool (*packs)(TensorType type);
  void (*pack_rows)(const float* x, int64_t x_stride, int64_t n_rows, int64_t n, std::byte* out);
  int32_t tile_out, tile_rows;
  int64_t matmul_scratch_bytes;
  // Whether both products want weights of this type in bands. They also take weights without bands.
  bool (*in_bands)(TensorType type);
  // Whether matmul_decode gives the bits of matmul_prefill for weights of this type in bands, so that it may take the few rows of a
  // short prompt.
  bool (*bands_as_prefill)(TensorType type);

  void (*rms_norm)(const float* x, const float* weight, float* out, int64_t dim, float eps);  // weight: or null
  // Rotates n_heads vectors; cosines and sines (n_rot / 2).
  void (*rope)(float* x, const float* cosines, const float* sines, int32_t n_rot, bool interleaved, int32_t n_heads, int32_t head_dim);
  // x = T(x - shift) for n_heads vectors of head_dim; shift (n_heads, head_dim) or null. T: the normalised Hadamard transform of blocks of
  // `block` values, a power of two: h = 1, 2, 4, ...: (a, b) = (a + b, a - b) for values h apart, then all times 1 / sqrt(block). 1: the
  // identity. Every instruction set gives the same bits.
  void (*transform_heads)(float* x, const float* shift, int32_t n_heads, int32_t head_dim, int32_t block);
  void (*swiglu)(const float* gate, const float* up, float* out, int64_t n);
  void (*geglu)(const float* gate, const float* up, float* out, int64_t n);  // Activation::gelu
  void (*soft_cap)(float* x, int64_t n, float cap);                          // x = cap * tanh(x / cap)
  void (*add)(float* x, const float* y, int64_t n);
  void (*convolve_head)(const ConvolveTask& task);
  void (*delta_head)(const DeltaTask& task);
  void (*mamba2_head)(const Mamba2Task& task);
  void (*apply_gates)(float* x, const float* gates, int64_t n);  // x *= sigmoid(gates)
  void (*add_low_rank)(const AdapterTask& task);

  // K or V to floats, and floats to K or V. n is a multiple of 32 for the quantized types. `type` has K and V alike (key_type(),
  // value_type()).
  void (*load_kv)(KvType type, const std::byte* x, int32_t n, float* out);
  void (*store_kv)(KvType type, const float* x, int32_t n, std::byte* out);
  void (*move_tokens)(const MoveTask& task);
  void (*attend_decode)(const DecodeTask& task);
  // out (value_dim) = the softmax-weighted mean of n partial results, merged in order. sink: null, or the logit of a further one without a
  // value.
  void (*merge_partials)(const float* partials, int64_t n, int64_t partial_stride, int32_t value_dim, const float* sink, float* out);
  float log_of_two;  // in the units of a partial result's m
  void (*attend_prefill)(const PrefillTask& task);
  int32_t (*prefill_queries)(KvType type, int32_t head_dim);  // queries of the fastest tasks; at least kQueryTile
  int64_t (*attend_scratch_bytes)(int32_t head_dim);          // a multiple of 64
  // Widens [low, high] (n each) to hold x.
  void (*widen)(const float* x, float* low, float* high, int32_t n);
  void (*key_weights)(const KeyWeightsTask& task);
  void (*encode_key)(const EncodeTask& task);
  void (*code_weights)(const CodeWeightsTask& task);
  void (*code_values)(const CodeValuesTask& task);
  void (*key_scores)(const ScoresTask& task);
  // Writes i for each scores[i] >= low to `out`, ascending, and returns how many. *n_high = how many are above `high`. NaN is neither.
  int64_t (*list_reaching)(const float* scores, int64_t n, float low, float high, uint32_t* out, int64_t* n_high);
  // The share of each tile's weights in the softmax of a row, from the row's n_tiles units and sums.
  void (*tile_shares)(const float* units, const float* sums, int64_t n_tiles, float* shares);
  void (*add_means)(const MeansTask& task);
  void (*key_moments)(const MomentsTask& task);
  void (*add_gram)(const GramTask& task);
  void (*project_keys)(const ProjectTask& task);
  void (*pack_basis)(const BasisTask& task);
  void (*rebuild_keys)(const RebuildTask& task);
  int32_t rebuild_tokens;  // keys of the fastest tasks
  void (*rotate_keys)(const RotateTask& task);
};

extern const Kernels kPlainKernels;
extern const Kernels kAvx2Kernels;        // AVX2, FMA, F16C
extern const Kernels kAvx2VnniKernels;    // and AVX-VNNI
extern const Kernels kAvx512Kernels;      // AVX-512 F, BW, VL, DQ, VNNI
extern const Kernels kAvx512Bf16Kernels;  // AVX-512 as above, with BF16 and VBMI
extern const Kernels kAmxKernels;         // AVX-512 with BF16 as above, with AMX: tiles of int8 and bf16
extern const Kernels kNeonKernels;        // 64-bit ARM's vectors and dot products

}  // namespace orrery::cpu
