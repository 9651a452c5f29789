// What a backend must do.  Everything above this file is written once; runtime/cpu and cuda implement it.
//
// A backend owns a device arena and executes operations on buffers inside it, in the order they are called,
// asynchronously if it likes: results are on the host after download() or synchronize().  Operations do not return
// errors: the first failure is latched and synchronize() reports it (a lost device, never a caller's mistake: shapes
// are validated when the model is loaded).  Operations allocate nothing.
//
// A step is what runs between begin_step() and end_step(): some rows, each naming its sequence and position, all
// prompt tokens (Phase::prefill) or all generated ones (Phase::decode).  The phases may use different kernels, but
// within one phase a row's result never depends on how many rows stand beside it, nor on the number of threads.
//
// Activations are float32 throughout; matrices are quantized as they lie in the file.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/base/span.h"
#include "runtime/base/status.h"
#include "runtime/base/tensor_type.h"

namespace orrery {

// An address in a backend's memory, which only the backend dereferences.
template <class T>
struct Ptr {
  uint64_t address = 0;
  explicit operator bool() const { return address != 0; }
  Ptr operator+(uint64_t n) const { return {address + n * sizeof(T)}; }
  operator Ptr<const T>() const { return {address}; }  // NOLINT: as for pointers
};

enum class Phase : uint8_t { prefill, decode };

enum class KvType : uint8_t { f32, f16, q8_0, q4_0 };
constexpr TensorType kv_tensor_type(KvType type) {
  return type == KvType::f32   ? TensorType::f32
         : type == KvType::f16 ? TensorType::f16
         : type == KvType::q8_0 ? TensorType::q8_0
                                : TensorType::q4_0;
}
// Whether values of the one type keep more of a number than those of the other. The types stand in that order.
constexpr bool finer(KvType a, KvType b) { return a < b; }

// Tokens per KV page.  Attention is cut into tiles of this many keys at fixed absolute positions, so it is also the
// unit of the (o, m, l) merge; a page is what a fork shares and what a copy moves.
inline constexpr int32_t kPageTokens = 64;

// Pages that lie side by side in memory, layer by layer: a layer's KV heads of all of them are one stretch, which attention reads in
// order. Memory gives longer stretches faster (Intel Xeon with AMX, 8 KV heads of 64 in F16, one core: 128 KB at 79% of the rate of
// megabytes, 512 KB at 98%). Memory is reserved in this unit.
inline constexpr int32_t kPagesTogether = 4;

// How one model's KV lies in pages: [layer][page, of kPagesTogether][kv head][token][K (head_dim), V (head_dim)].  One layer of a
// page, one head of that, and one token of one head, are each contiguous. A page's address is that of its first layer.
struct KvFormat {
  KvType type = KvType::f16;
  int32_t n_layers = 0, n_kv_heads = 0, head_dim = 0;

  uint64_t vector_bytes() const { return row_bytes(kv_tensor_type(type), static_cast<uint64_t>(head_dim)); }
  uint64_t token_bytes() const { return 2 * vector_bytes(); }                       // K and V of one head
  uint64_t token_values() const { return 2 * static_cast<uint64_t>(head_dim); }
  uint64_t head_bytes() const { return kPageTokens * token_bytes(); }               // one page of one head
  uint64_t layer_bytes() const { return static_cast<uint64_t>(n_kv_heads) * head_bytes(); }   // of a page
  uint64_t layer_stride() const { return kPagesTogether * layer_bytes(); }                   // from one layer of a page to the next
  uint64_t page_bytes() const { return static_cast<uint64_t>(n_layers) * layer_bytes(); }
  // From a page's address to behind its last layer; layers of other pages lie between.
  uint64_t page_span() const { return n_layers > 0 ? static_cast<uint64_t>(n_layers - 1) * layer_stride() + layer_bytes() : 0; }
  // Where page i lies in memory that pages begin with, whole kPagesTogether of them.
  uint64_t page_offset(uint64_t i) const {
    constexpr uint64_t kTogether = kPagesTogether;
    return i / kTogether * kTogether * page_bytes() + i % kTogether * layer_bytes();
  }
  // From a page's address to where the head's tokens begin.
  uint64_t head_offset(int32_t layer, int32_t kv_head) const {
    return static_cast<uint64_t>(layer) * layer_stride() + static_cast<uint64_t>(kv_head) * head_bytes();
  }
  uint64_t head_offset(uint32_t head) const {   // layer * n_kv_heads + KV head
    const auto heads = static_cast<uint32_t>(n_kv_heads);
    return head_offset(static_cast<int32_t>(head / heads), static_cast<int32_t>(head % heads));
  }
};

// One sequence's KV: token p lies in page pages[p / kPageTokens], slot p % kPageTokens.
struct KvView {
  const uint64_t* pages = nullptr;   // (n_pages) device addresses, host memory; valid during the step
  int32_t n_pages = 0;
};

// What a step's queries make of a KV head's keys, as attention leaves it: the parts of each query head's softmax. With
// y = log2(e) * scale * q k a key weighs 2^(y - unit), in units of its tile of kPageTokens, which are whole numbers; a NaN
// weighs nothing.
struct LeftWeights {
  // A row of weights for each query head of the group, the head's slots in order, (group, stride); then their tiles' units,
  // and the sums of their tiles' weights, (group, n_tiles()) each. 64-byte aligned.
  Ptr<float> data;
  int64_t stride = 0;                // whole tiles: up to the last one's end weights are 0
  int64_t n_tiles() const { return stride / kPageTokens; }
  static uint64_t bytes(int32_t group, int64_t stride) {
    return static_cast<uint64_t>(group) * static_cast<uint64_t>(stride + 2 * (stride / kPageTokens)) * sizeof(float);
  }
};

// The device-resident keys and values of one KV head where they are not all of the sequence's: slots in any order,
// since keys are cached behind RoPE.  Slot s lies in tiles[s / kPageTokens], each kPageTokens tokens long.
struct HeadView {
  const uint64_t* tiles = nullptr;   // device addresses, host memory; valid during the step
  int32_t n_keys = 0;                // slots attended to, the appended one included
  uint64_t append_at = 0;            // device address of the slot that the step's token is written to
  LeftWeights left = {};             // where given: attend() leaves them there (BackendInfo::leaves_weights)
  // One more token beside the slots, which weighs as much as mean_weight alike (not always whole): K and V (2, head_dim). 0: there is none.
  Ptr<const float> mean = {};
  float mean_weight = 0.0f;
};

// One token to compute.
struct Row {
  int32_t token = 0;
  int32_t position = 0;
  int32_t sequence = 0;              // index into Step::sequences
};

// The queries of a sequence's last positions, behind RoPE, on the device: that of position p in layer l lies at
// data + (l * n_rows + (p - first) % n_rows) * stride.
struct QueryRing {
  Ptr<float> data;
  int32_t n_rows = 0;
  int32_t first = 0;                 // 0 where steps keep their queries
  int64_t stride = 0;                // floats; 0: n_heads * head_dim
};

struct Step {
  Phase phase = Phase::prefill;
  Span<const Row> rows;              // positions of one sequence are consecutive and ascending
  Span<const KvView> sequences;
  KvFormat kv;
  // (n_layers * n_kv_heads), or empty. A decode step of one row attends to these instead of the sequence's pages, and
  // writes its token to both: to the page, and what move_kv() makes of that to the slot.
  Span<const HeadView> heads = {};
  KvFormat heads_kv = {};            // of these: as kv, but for the type
  QueryRing queries = {};            // where given (steps of one sequence): attend() keeps its queries there
};

// A matrix (n_rows outputs, n_cols inputs), or a vector (n_rows = 1), where the backend wants it.
struct Weight {
  TensorType type = TensorType::f32;
  int64_t n_rows = 0, n_cols = 0;
  Ptr<const std::byte> data;
  explicit operator bool() const { return static_cast<bool>(data); }
};

// Rotary position embedding.  Pair i of a head turns by position * inverse_frequency[i]; cos and sin are then
// multiplied by `magnitude` (yarn's and longrope's attention factor).
struct RopeSpec {
  bool interleaved = false;               // pairs (2i, 2i+1) [NORM], else (i, i + n_rot/2) [NEOX]
  int32_t n_rot = 0;                      // rotated dimensions of each head, from its start; even
  const float* inverse_frequency = nullptr;  // (n_rot / 2), host memory
  float magnitude = 1.0f;
};

// One product of a call to matmul: out = x * w^T (+ bias), or added to what `out` holds.
struct Product {
  const Weight* weight = nullptr;         // (n_out, n_in)
  Ptr<const float> bias;                  // (n_out) or null
  Ptr<float> out;                         // (n_rows, n_out), rows `out_stride` floats apart
  int64_t out_stride = 0;
  bool accumulate = false;                // out += instead of out =
};

struct AttendShape {
  int32_t n_heads = 0;                    // query heads; a multiple of n_kv_heads
  int64_t q_stride = 0, out_stride = 0;   // floats between rows
  float scale = 0.0f;                     // usually 1 / sqrt(head_dim)
  int32_t window = 0;                     // sliding window: keys with position > row position - window; 0: all
};

// How the attention of the query heads that share a KV head becomes one score per key: each head's softmax over
// exactly these keys, smoothed along them (torch's avg_pool1d or max_pool1d, stride 1, padding width / 2), then the mean
// or the maximum over the heads.
struct KeyScoring {
  enum class Pooling : uint8_t { none, avg, max };
  bool max_of_group = false;
  Pooling pooling = Pooling::none;
  int32_t pool_width = 1;            // odd
};

// A KV head's keys, and the queries of some positions.
struct KeysJob {
  int32_t layer = 0, kv_head = 0;
  const uint64_t* tiles = nullptr;   // key s lies in the tile at tiles[s / kPageTokens] + offset
  uint64_t offset = 0;
  int32_t n_keys = 0;
  int32_t first_position = 0, n_positions = 0;   // in the ring
  // Of a single position, by attention over these keys and maybe more behind them: its query is not looked at then.
  LeftWeights left = {};
};
struct KeysShape {
  KvFormat kv;
  int32_t n_heads = 0;               // query heads
  float scale = 0.0f;
  QueryRing queries;
  bool bounds = false;               // keys are digests, in F16: q's score is scale * sum of max(q K, q V) over the dimensions
  bool keys_alone = false;           // one key behind the other, without V: digests that are means, rows of low-rank keys
  bool products = false;             // of key_weights(): scale * q k of every key in place of weights, without means; a NaN is -infinity
};

// What stands for the keys of a page of a KV head, wherever its tokens lie.
enum class DigestKind : uint8_t {
  range,      // a token in F16, its K dimension by dimension their largest value and its V their smallest one, rounded outwards, so
              // that no key's product with a query exceeds the bound of KeysShape
  deviation,  // around the middle of the two what the keys are off it on average (ArkVale; no bound)
  mean,       // a key in F16, without V
};
struct DigestJob {
  const uint64_t* tiles = nullptr;   // of the keys, as a KeysJob's
  uint64_t offset = 0;
  int32_t first_page = 0, n_pages = 0;   // page i: tokens i * page_tokens ..; its digest is written to slot i
  const uint64_t* digests = nullptr; // of the digests, as a HeadView's tiles
  float* cosines = nullptr;          // of means, or null: (n_pages), host memory: the least of a page's keys with their mean; 0 where
                                     // one of the two is
};
struct DigestShape {
  KvFormat kv;                       // of the keys
  int32_t page_tokens = 0;           // a divisor of kPageTokens
  DigestKind kind = DigestKind::range;
};

// Tokens of a KV head that become one: with those that have already, as the mean of all; or each by its share.
struct MeanJob {
  const uint64_t* tiles = nullptr;   // as a KeysJob's
  uint64_t offset = 0;
  int32_t first = 0, end = 0;        // tokens of these tiles
  int32_t n_before = 0;              // that it is the mean of; 0: it is made anew
  Ptr<float> mean;                   // (2, head_dim) K and V
  const float* shares = nullptr;     // (end - first) host memory, of a mean that is made anew: what is 0 is not read. Null: all alike
};

// Keys as products of a row of each token's own and a basis that they share: the key of position p is row p times the basis. Those of
// a layer's KV heads side by side, before RoPE (ShadowKV); or those of a single head (Loki), as they are where `rope` turns nothing.
struct LowRankKeys {
  KvFormat kv;                       // of the pages
  RopeSpec rope;                     // what the keys in them went through, and these have not
  int32_t layer = 0, rank = 0;       // rank <= width(): as many rows as orthonormal ones can be
  int32_t kv_head = -1;              // this one alone; -1: all of the layer
  Ptr<std::byte> rows, basis;        // (positions, rank), (rank, width()) in F16
  Ptr<std::byte> work;               // work_bytes(), 64-byte aligned, of which nothing needs to be kept
  const uint64_t* pages = nullptr;   // as a KvView's
  // Or null: how keys are turned at the first position of each page, then at each position of the first one, rope.n_rot floats each:
  // cosines (n_rot / 2) and sines, the pages' times rope.magnitude. What a position is turned by is then made of the two.
  Ptr<const float> page_turns, turns;

  int32_t n_heads() const { return kv_head < 0 ? kv.n_kv_heads : 1; }
  int64_t width() const { return int64_t{n_heads()} * kv.head_dim; }
  // What is computed at once: so many tokens' keys, as floats in rows of whole vectors.
  static constexpr int32_t kBatch = 256;
  int64_t padded_width() const { return (width() + 15) / 16 * 16; }
  // Keys of a batch; their products with each other's dimensions, or with the basis; sums of the dimensions; an inverse frequency for
  // each pair.
  uint64_t work_bytes() const {
    const int64_t w = padded_width();
    return static_cast<uint64_t>(kBatch * w + (w > kBatch ? w : kBatch) * w + w + (kv.head_dim + 15) / 16 * 16) * sizeof(float);
  }
};
// Tokens of one of the layer's heads, neighbours, whose keys are rebuilt.
struct RebuiltRun {
  int32_t position = 0, count = 0;
  Ptr<std::byte> to;                 // the first one's slot; the others' behind it
  Ptr<const std::byte> values;       // (count) V in the pages' type; null: V stays as it is
  int32_t kv_head = 0;
  int32_t values_gap = 0;            // bytes between one V and the next
};

// Asks for the k best of the keys, by each of the queries.
struct TopKeysJob : KeysJob {
  int32_t k = 0;                     // at most n_keys
  bool by_score = false;             // in the order of scores (ties: lower key first), else ascending keys
  uint32_t* out = nullptr;           // (n_positions, k) keys, host memory
  // In place of `out`, of a single position: how many of these keys, which ascend, are among the k best.
  Span<const uint32_t> among = {};
  uint32_t* n_common = nullptr;
};
struct TopKeysShape : KeysShape {
  KeyScoring scoring;
};

// Asks for attention itself: each query head's softmax over those of the keys that stand no later than its position (0 for
// the others).
struct KeyWeightsJob : KeysJob {
  bool mean = false;                 // of all rows, in place of the rows
  bool add = false;                  // of a mean: each position's, in order, is added to what stands in `out`, and no mean over them made
  float* out = nullptr;              // (n_positions, n_heads / n_kv_heads, n_keys), or (n_keys): host memory
};

// Asks for what key_weights() would give, query head by query head as the mean of the positions plus gamma times the unbiased variance
// (of a single one: 0), of the first n_measured of the keys. What these come to, summed over query heads and keys: the entropies
// -a log(a) of all weights, and the variances.
struct KeyMomentsJob : KeysJob {
  int32_t n_measured = 0;            // at most n_keys
  double gamma = 0;
  float* out = nullptr;              // (n_heads / n_kv_heads, n_measured), host memory
  double *entropy = nullptr, *variance = nullptr;   // one number each, likewise
};

// What a sampler asks of a row of logits in place of the row itself, which stays where it is. NaN counts as -infinity, and +infinity
// as the largest float; but entries and tokens get their logits as they are.
struct ShortlistRequest {
  static constexpr int32_t kMostBest = 1024, kMostTokens = 2048;
  static constexpr int32_t kSumLogits = 256, kMostSums = 2048;   // of a block; blocks
  int32_t n_best = 0;                // so many of the largest logits; at most kMostBest
  Span<const int32_t> tokens = {};   // whose logits are wanted besides; at most kMostTokens
  double inverse_temperature = 0.0;  // of tempered_sum; 0: that is not wanted
  int32_t n_sums = 0;                // likewise of each block of kSumLogits: as many as the row has, or 0
};
// What it gets: this; behind it the n_sums doubles, first block first; room for n_best entries, largest logit first (equals: lower token
// first); a float for each of `tokens`.
struct ShortlistHead {
  double sum = 0;                    // SumExp::sum() of the row
  double tempered_sum = 0;           // of exp((x - most) / temperature), to 1e-12 of it, as are the blocks'; any order
  float most = 0;                    // the largest logit; -infinity: none is a number, and the sums mean nothing
  int32_t n_best = 0;                // entries: as many as were asked for, or as there are logits
};
struct ShortlistEntry {
  float logit = 0;
  int32_t token = -1;
};
inline uint64_t shortlist_result_bytes(const ShortlistRequest& request) {
  return sizeof(ShortlistHead) + static_cast<uint64_t>(request.n_sums) * sizeof(double) +
         static_cast<uint64_t>(request.n_best) * sizeof(ShortlistEntry) + request.tokens.size() * sizeof(float);
}

// What of such a row ranks behind one of its shortlist's entries, by how far it is below: in bands, as the row falls.
struct ShortlistTail {
  static constexpr int32_t kBands = 2048, kMostEntries = 4096;
  static constexpr double kUnit = 0x1.0p43;   // sums are whole, so that their order does not matter
  ShortlistEntry last;               // a number
  float bands_per_logit = 0.0f;
  double inverse_temperature = 0.0;
  // In single roundings.
  int32_t band_of(float x) const {
    const float at = (last.logit - x) * bands_per_logit;
    return at < static_cast<float>(kBands - 1) ? static_cast<int32_t>(at) : kBands - 1;
  }
};
struct ShortlistTailEntries {
  int32_t n = 0, reserved = 0;       // above kMostEntries: there are more than are here
  ShortlistEntry entries[ShortlistTail::kMostEntries];   // in any order
};

// The most that any step will ask for: sizes the scratch memory once.
struct StepLimits {
  int32_t max_rows = 0, max_context = 0;
  int32_t n_heads = 0, n_kv_heads = 0, head_dim = 0;
  int64_t max_in = 0;                     // widest matmul input
  int32_t max_top_keys = 0;               // keys of a job of top_keys; 0: there will be none
  int32_t n_layers = 0;                   // of Step::heads; 0: there will be none
  uint64_t staging_bytes = 0;             // about, through which prompts' pages come that lie outside of the arena; 0: there will be none
};

// Tokens of one KV head that go somewhere else, contiguous on both sides.
struct KvMove {
  uint64_t to = 0, from = 0;         // addresses
  uint32_t n_tokens = 1;
};

// A stretch of host memory.
struct HostPiece {
  const std::byte* data = nullptr;
  uint64_t bytes = 0;
};

// Stretches that move between host memory and a backend's.
struct Upload {
  Ptr<std::byte> to;
  const void* from = nullptr;
  uint64_t bytes = 0;
};
struct Download {
  void* to = nullptr;
  Ptr<const std::byte> from;
  uint64_t bytes = 0;
};

struct BackendInfo {
  const char* name = "";                  // "cpu", "cuda"
  const char* path = "";                  // instruction path or architecture: "avx512-vnni", "sm_89"
  int32_t n_threads = 0;                  // host threads that take part
  bool unified_memory = false;            // device addresses are host addresses
  uint64_t device_bytes = 0;              // that an arena may take now; 0: the device's memory is the host's
  bool leaves_weights = false;            // HeadView::left and KeysJob::left are used; else they are passed over
  bool makes_moments = false;             // key_moments() is there
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual BackendInfo info() const = 0;

  // Memory.  The arena is one allocation, made once.
  virtual Status reserve_arena(uint64_t bytes) = 0;
  virtual Ptr<std::byte> arena() const = 0;
  virtual void upload(Ptr<std::byte> to, const void* from, uint64_t bytes) = 0;
  virtual void download(void* to, Ptr<const std::byte> from, uint64_t bytes) = 0;   // returns when it is there
  // Many of them, in order, with fewer waits than one by one: those of a few megabytes go together.
  virtual void upload_all(Span<const Upload> uploads) {
    for (const Upload& u : uploads) upload(u.to, u.from, u.bytes);
  }
  virtual void download_all(Span<const Download> downloads) {
    for (const Download& d : downloads) download(d.to, d.from, d.bytes);
  }
  virtual void copy(Ptr<std::byte> to, Ptr<const std::byte> from, uint64_t bytes) = 0;
  // Tokens of token_values values each (K and V), from where they are to where they shall be, in another type if need be:
  // read as floats, and stored as append_kv() stores floats; copied where the types are equal. A multiple of 64 where one of
  // them is quantized. No target overlaps anything else. The list is the caller's again on return.
  virtual void move_kv(Span<const KvMove> moves, KvType to_type, KvType from_type, uint64_t token_values) = 0;
  virtual Status synchronize() = 0;
  // Between operations, host work: call(context, i) for each i in [0, n), in any order, on the threads that the backend has of its own,
  // if any. It does not call the backend.
  virtual void for_each(int64_t n, void (*call)(const void* context, int64_t i), const void* context) {
    for (int64_t i = 0; i < n; ++i) call(context, i);
  }
  // Gathers the pieces, one behind the other, to `to`, and returns when the bytes are there. Beside everything else: on
  // any thread, during steps too, and not in their order; nobody else touches either side meanwhile.
  virtual Status copy_in(Ptr<std::byte> to, Span<const HostPiece> pieces) = 0;
  // [at, at + bytes) will be written, its content is not needed: where device memory is the system's, it is taken from it now
  // and not in the middle of a step.
  virtual void commit(Ptr<std::byte> at, uint64_t bytes) { (void)at, (void)bytes; }
  // The content of [at, at + bytes) is not needed any more: where device memory is the system's, it may go back to it.
  virtual void discard(Ptr<std::byte> at, uint64_t bytes) { (void)at, (void)bytes; }

  // Host memory, page-aligned, whose addresses operations may then be given like the arena's, as those of the reservoir's pages;
  // locked until unshare_host(). out_of_pinned_memory where that is refused. With unified memory all of it is shared.
  virtual Status share_host(std::byte* at, uint64_t bytes) {
    (void)at, (void)bytes;
    return ok_status();
  }
  virtual void unshare_host(std::byte* at) { (void)at; }

  // Whether there is attention for heads of this size: unsupported, or ok. Asked when a model is planned or loaded.
  virtual Status check_heads(int32_t head_dim) const {
    (void)head_dim;
    return ok_status();
  }

  // Weights.  weight_bytes: what place_weight will take of the arena for this matrix (0: used where the file lies).
  // place_weight(source, at): makes `weight` ready for matmul and embed; `at` is weight_bytes() long, 64-byte aligned.
  virtual uint64_t weight_bytes(TensorType type, int64_t n_rows, int64_t n_cols) const = 0;
  virtual Status place_weight(TensorType type, int64_t n_rows, int64_t n_cols, const std::byte* source,
                              Ptr<std::byte> at, Weight* weight) = 0;

  // Scratch for partial results and quantized activations, part of the plan.
  virtual uint64_t scratch_bytes(const StepLimits& limits) const = 0;
  virtual void set_scratch(Ptr<std::byte> scratch, const StepLimits& limits) = 0;

  // A step.  Its arguments stay valid until end_step().
  virtual void begin_step(const Step& step) = 0;
  virtual void end_step() = 0;

  // out (n_rows, n_cols) = the rows' tokens' rows of `table` (vocabulary, n_cols).
  virtual void embed(const Weight& table, Ptr<float> out) = 0;

  // For each of the step's rows, `n_vectors` vectors of `dim` floats that lie one after another from
  // x + row * stride: out = x / sqrt(mean(x^2) + eps) * weight (dim).  May run in place.
  virtual void rms_norm(Ptr<const float> x, int64_t x_stride, Ptr<const float> weight, Ptr<float> out,
                        int64_t out_stride, int32_t n_vectors, int64_t dim, float eps) = 0;

  // Every product of the same input x (n_rows, n_in): the input is quantized once.  n_rows may be less than the
  // step's (the last rows' logits).  What else is in a step does not show in a row, but for last bits where cuBLAS multiplies.
  virtual void matmul(Span<const Product> products, Ptr<const float> x, int64_t x_stride, int32_t n_rows) = 0;

  // Prepares cos and sin of the step's positions; rope() turns n_heads vectors of head_dim at x + row * stride.
  virtual void prepare_rope(const RopeSpec& spec) = 0;
  virtual void rope(Ptr<float> x, int64_t stride, int32_t n_heads, int32_t head_dim) = 0;

  // Writes the rows' keys and values, (n_kv_heads, head_dim) at k and v + row * stride, to their KV pages of `layer`
  // (and to Step::heads' slots).
  virtual void append_kv(int32_t layer, Ptr<const float> k, Ptr<const float> v, int64_t stride) = 0;

  // Causal attention of the rows' queries over their sequences' pages of `layer`, up to and including each row's own
  // position (already appended), or over Step::heads: out (n_rows, n_heads * head_dim).
  virtual void attend(int32_t layer, Ptr<const float> q, Ptr<float> out, const AttendShape& shape) = 0;

  // Between steps: digests of pages. Page and slot numbers are the same, so that a job can go on where one ended.
  virtual void digest(Span<const DigestJob> jobs, const DigestShape& shape) = 0;
  // Between steps: means take in these tokens, in order, summed in double. No two jobs are of the same mean.
  virtual void add_to_means(Span<const MeanJob> jobs, const KvFormat& kv) = 0;
  // Between steps: the best keys of each job. A NaN ranks lowest. The work is as if each job stood alone.
  virtual void top_keys(Span<const TopKeysJob> jobs, const TopKeysShape& shape) = 0;
  // Between steps: the weights of each job's queries. The work is as if each job stood alone.
  virtual void key_weights(Span<const KeyWeightsJob> jobs, const KeysShape& shape) = 0;
  // Between steps, where BackendInfo::makes_moments says so: weights that nobody sees. At most 64 positions.
  virtual void key_moments(Span<const KeyMomentsJob> jobs, const KeysShape& shape) { (void)jobs, (void)shape; }

  // Between steps: out (width, width), host memory, = what the first n_tokens' keys' dimensions come to with each other, summed over
  // the tokens. Both halves are there. sums (width), or null: the dimensions alone. `rows` and `basis` are not looked at.
  virtual void key_products(const LowRankKeys& keys, int32_t n_tokens, float* out, float* sums) = 0;
  // Between steps: rows of positions [first, end), the keys' products with the basis' rows.
  virtual void low_rank_rows(const LowRankKeys& keys, int32_t first, int32_t end) = 0;
  // What rows are of keys, of a layer's queries q (n_heads, head_dim): out (n_heads, rank) = their products with the rows of their KV
  // head's own basis. `keys` is the first KV head's; each next one's basis lies next_basis bytes further. Between steps, and within a
  // decode step before it attends.
  virtual void low_rank_queries(const LowRankKeys& keys, uint64_t next_basis, int32_t n_heads, Ptr<const float> q, Ptr<float> out) = 0;
  // K of these tokens, from rows and basis and behind RoPE, and V to their slots; also within a decode step, before it attends to them.
  // Runs do not overlap; those of a head best stand together.
  virtual void rebuild_keys(const LowRankKeys& keys, KvType slot_type, Span<const RebuiltRun> runs) = 0;

  // out[i] = silu(gate[i]) * up[i], (n_rows, n) each, rows `stride` floats apart in the inputs.
  virtual void swiglu(Ptr<const float> gate, Ptr<const float> up, int64_t stride, Ptr<float> out, int64_t out_stride,
                      int64_t n) = 0;

  // x += y, (n_rows, n) contiguous.
  virtual void add(Ptr<float> x, Ptr<const float> y, int64_t n) = 0;

  // Memory that shortlist() takes for rows of n logits: results, then its own. 0: there is no shortlist() of such; where a row need not
  // be fetched, nothing is gained by one.
  virtual uint64_t shortlist_bytes(int64_t n) const {
    (void)n;
    return 0;
  }
  // Once in a step: what is asked of a row of n logits, to the start of `out` (shortlist_bytes(n), 16-byte aligned; so is the row).
  virtual void shortlist(Ptr<const float> logits, int64_t n, const ShortlistRequest& request, Ptr<std::byte> out) {
    (void)logits, (void)n, (void)request, (void)out;
  }
  // Between steps, of a row that a shortlist was made of, whose `out` is worked in: the sum of each band's weights
  // exp((x - last.logit) / temperature), to 1e-12 and rounded one by one, times kUnit; and what is in one of two bands. Host memory.
  virtual void shortlist_bands(Ptr<const float> logits, int64_t n, const ShortlistTail& tail, Ptr<std::byte> out, uint64_t* sums) {
    (void)logits, (void)n, (void)tail, (void)out, (void)sums;
  }
  virtual void shortlist_entries(Ptr<const float> logits, int64_t n, const ShortlistTail& tail, int32_t band, int32_t other_band,
                                 Ptr<std::byte> out, ShortlistTailEntries* entries) {
    (void)logits, (void)n, (void)tail, (void)band, (void)other_band, (void)out, (void)entries;
  }
};

}  // namespace orrery
