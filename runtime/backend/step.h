// A step: some rows, each with its sequence and its position, all prompt tokens (Phase::prefill) or all generated ones (Phase::decode);
// and the operations that compute it. A backend with BackendInfo::decodes_together computes the steps of several sessions at once:
// products take the rows of all steps, the other operations take each row as its own step says.
//
// The phases may use different kernels. Within a phase a row's result depends neither on the other rows nor on the number of threads.
// Activations are float32 throughout; matrices are quantized as they lie in the file.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/backend/kv.h"
#include "runtime/backend/memory.h"
#include "runtime/base/span.h"
#include "runtime/base/tensor_type.h"

namespace orrery {

enum class Phase : uint8_t { prefill, decode };

// The most steps that are computed at once.
inline constexpr int32_t kMostTogether = 32;

// Attention weights that a step exports for one KV head, as parts of each query head's softmax. With y = log2(e) * scale * q k, the
// weight of a key is 2^(y - unit). Each tile of kPageTokens keys has its own unit, a whole number. A NaN gives the weight 0.
struct ExportedWeights {
  // First the weights: (group, stride), one row for each query head of the group, in the order of slots. Then the tiles' units,
  // (group, n_tiles()). Then the sums of the tiles' weights, (group, n_tiles()). 64-byte aligned.
  Ptr<float> data;
  int64_t stride = 0;  // whole tiles; after the head's last slot, weights are 0 up to the end of its tile
  int64_t n_tiles() const { return stride / kPageTokens; }
  static uint64_t bytes(int32_t group, int64_t stride) {
    return static_cast<uint64_t>(group) * static_cast<uint64_t>(stride + 2 * (stride / kPageTokens)) * sizeof(float);
  }
};

// The resident KV of one KV head under a KV policy. Slot s lies in tiles[s / kPageTokens]; a tile holds kPageTokens tokens. Slots
// are in any order, because cached keys are already rotated by RoPE.
struct HeadView {
  const uint64_t* tiles = nullptr;  // device addresses, host memory; valid during the step
  int32_t n_keys = 0;               // slots that queries attend to, the step's own token included
  uint64_t append_at = 0;           // device address of the slot for the step's token
  ExportedWeights exported = {};    // if given, attend() exports the weights (BackendInfo::exports_weights)
  // The compensation token: K and V, (2, head_dim), and the number of tokens that it stands for (not always whole; 0: the head has none).
  Ptr<const float> compensation_token = {};
  float compensation_weight = 0.0f;
  // If given, the weight of each query head, as log2: (group), device address. It takes the place of compensation_weight. It may be written
  // until the layer attends.
  Ptr<const float> compensation_logs = {};
  // If given, with compensation_logs: the compensation token's V for each query head, (group, head_dim). It takes the place of the token's V,
  // and may be written until the layer attends.
  Ptr<const float> compensation_values = {};
  // If given, the slots hold no KV: slot s stands for the token at positions[s], in the sequence's pages, and slot own_slot for the step's
  // own token. (n_keys), host memory; it may be written until the layer attends. Then there are no tiles, no append_at and no exported
  // weights, and Step::heads_kv equals Step::kv. CPU only.
  const uint32_t* positions = nullptr;
  int32_t own_slot = 0;
  Ptr<const uint64_t> tiles_there = {};  // `tiles` in device memory, or null
};

// One token to compute.
struct Row {
  int32_t token = 0;
  int32_t position = 0;
  int32_t sequence = 0;  // index into Step::sequences
};

// A ring of queries on the device, after RoPE: layer l's query of position p lies at data + (l * n_rows + (p - first) % n_rows) *
// stride.
struct QueryRing {
  Ptr<float> data;
  int32_t n_rows = 0;
  int32_t first = 0;   // 0 in the ring that steps write
  int64_t stride = 0;  // floats; 0: n_heads * head_dim
};

// The pages of one KV group.
struct KvPages {
  KvFormat kv;
  Span<const KvView> sequences;
};

struct Step {
  Phase phase = Phase::prefill;
  Span<const Row> rows;          // positions of one sequence are consecutive and ascending
  Span<const KvView> sequences;  // of KV group 0, and the form of its pages
  KvFormat kv;
  // Of group 0: (n_layers * n_kv_heads), or empty. A decode step of one row attends to these slots, not to the sequence's pages. It writes
  // its token to the page, and to the slot in the slot's type, as KvMoves::move_kv() converts it.
  Span<const HeadView> heads = {};
  KvFormat heads_kv = {};                 // format of the slots: as kv, except for the type
  QueryRing queries = {};                 // if given, attend() keeps the queries of group 0 there; only for steps of one sequence
  KvTransform transform = {};             // of the sequences' KV: the model's forward pass applies it by transform_heads()
  int32_t second_from = INT32_MAX;        // rows from this position on are of a pair's second text
  Span<const KvPages> other_groups = {};  // groups 1 and on; their type is that of group 0

  KvPages pages(int32_t group) const { return group == 0 ? KvPages{kv, sequences} : other_groups[static_cast<size_t>(group - 1)]; }
};

// A matrix (n_rows outputs, n_cols inputs) or a vector (n_rows = 1), placed where the backend wants it.
struct Weight {
  TensorType type = TensorType::f32;
  int64_t n_rows = 0, n_cols = 0;
  Ptr<const std::byte> data;
  bool repacked = false;  // `data` is as the backend stores the matrix, not as the file has it
  explicit operator bool() const { return static_cast<bool>(data); }
};

// The most tables of RoPE that a step has: layers may differ in theirs.
inline constexpr int32_t kMostRopes = 4;

// Rotary position embedding. Pair i of a head is rotated by position * inverse_frequency[i]. cos and sin are multiplied by
// `magnitude` (the attention factor of yarn and longrope), and by 1 + temperature * ln(1 + floor(position / period)).
struct RopeSpec {
  bool interleaved = false;                  // pairs (2i, 2i+1) [NORM], else (i, i + n_rot/2) [NEOX]
  int32_t n_rot = 0;                         // rotated dimensions of each head, from its start; even
  const float* inverse_frequency = nullptr;  // (n_rot / 2), host memory
  float magnitude = 1.0f;
  float temperature = 0.0f;
  int32_t period = 0;  // at least 1 if there is a temperature
};

// How the heads of a step's rows are changed: x = T(x - shift). T: the normalised Hadamard transform (Sylvester's order) of blocks of
// hadamard_block(head_dim) values if `rotate`, else the identity.
struct HeadTransform {
  Ptr<const float> shift;  // (n_heads, head_dim), or null
  bool rotate = false;
};

// One product of a call to matmul(): out = x * w^T (+ bias), or added to what `out` holds.
struct Product {
  const Weight* weight = nullptr;  // (n_out, n_in)
  Ptr<const float> bias;           // (n_out) or null
  Ptr<float> out;                  // (n_rows, n_out), rows `out_stride` floats apart
  int64_t out_stride = 0;
  bool accumulate = false;  // out += instead of out =
};

// What the gate of a feed-forward block goes through. gelu: x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))). gelu_erf is
// not for activate(): EncoderOperations::gelu_erf() computes it.
enum class Activation : uint8_t { silu, gelu, gelu_erf };

struct AttendShape {
  int32_t n_heads = 0;                   // query heads; a multiple of n_kv_heads
  int64_t q_stride = 0, out_stride = 0;  // floats between rows
  float scale = 0.0f;                    // usually 1 / sqrt(head_dim)
  int32_t window = 0;                    // sliding window: keys with position > row position - window; 0: all
  // Keys after the row's own position that it sees, too, of its sequence, all of whose rows are in the step. 0: causal. Needs
  // EncoderOperations, and a prefill step of one sequence.
  int32_t ahead = 0;
  Ptr<const float> sinks = {};  // (n_heads) or null: a logit of each query head, which takes part in the softmax and has no value
};

// Writes the floats of one token.
using RowReader = void (*)(const void* context, int32_t token, float* row);

// The operations of a decoder's layers. All but begin_steps() are called between begin_steps() and end_step().
class StepOperations {
 public:
  // The number of these steps, from the first on, that one call of begin_steps() takes: all, or at least one.
  virtual size_t most_steps(Span<const Step> steps) const { return steps.size(); }
  // Begins one step; or, on a backend with decodes_together, up to kMostTogether decode steps of one row each. These may differ in all but
  // the shape of their KV: the rows of the operations below are theirs, in order. The steps' arguments stay valid until end_step().
  virtual void begin_steps(Span<const Step> steps) = 0;
  void begin_step(const Step& step) { begin_steps({&step, 1}); }
  virtual void end_step() = 0;

  // out (n_rows, n_cols) = scale * the rows of `table` (vocabulary, n_cols) that the step's tokens name.
  virtual void embed(const Weight& table, float scale, Ptr<float> out) = 0;
  // out (n_rows, n_cols): of each row of the step, what read(context, token, row) writes on the host, on several threads perhaps. For
  // tables that are too large for the arena. The operations that the step has called so far do not touch `out`.
  virtual void read_rows(RowReader read, const void* context, int64_t n_cols, Ptr<float> out) = 0;

  // For each of the step's rows: `n_vectors` vectors of `dim` floats lie one after another from x + row * stride on.
  // out = x / sqrt(mean(x^2) + eps) * weight (dim), or without weights where `weight` is null. May run in place.
  virtual void rms_norm(Ptr<const float> x, int64_t x_stride, Ptr<const float> weight, Ptr<float> out, int64_t out_stride,
                        int32_t n_vectors, int64_t dim, float eps) = 0;

  // All products of the same input x (n_rows, n_in), which is quantized once. n_rows may be smaller than the step's number of rows
  // (logits of the last rows). A row's result does not depend on the other rows, except for the last bits where cuBLAS multiplies.
  virtual void matmul(Span<const Product> products, Ptr<const float> x, int64_t x_stride, int32_t n_rows) = 0;

  // Prepares cos and sin of the steps' positions. specs: the tables of the first step, at most kMostRopes, then as many of the second, and
  // so on; steps differ in frequencies, magnitudes and periods alone. rope() rotates n_heads vectors of head_dim at x + row * stride by the
  // step's table of this number.
  virtual void prepare_ropes(Span<const RopeSpec> specs) = 0;
  void prepare_rope(const RopeSpec& spec) { prepare_ropes({&spec, 1}); }
  virtual void rope(Ptr<float> x, int64_t stride, int32_t n_heads, int32_t head_dim, int32_t table) = 0;
  void rope(Ptr<float> x, int64_t stride, int32_t n_heads, int32_t head_dim) { rope(x, stride, n_heads, head_dim, 0); }

  // Transforms n_heads vectors of head_dim at x + row * stride. transforms: one for each step. Of several steps, each shift is null or
  // begins at the same place of its step's KvTransform::key_means, and `rotate` is its KvTransform::rotated.
  virtual void transform_rows(Ptr<float> x, int64_t stride, int32_t n_heads, int32_t head_dim, Span<const HeadTransform> transforms) = 0;
  void transform_heads(Ptr<float> x, int64_t stride, int32_t n_heads, int32_t head_dim, Ptr<const float> shift, bool rotate) {
    const HeadTransform transform{shift, rotate};
    transform_rows(x, stride, n_heads, head_dim, {&transform, 1});
  }

  // Writes the rows' keys and values, (n_kv_heads, head_dim) at k and v + row * stride, to their KV pages of `layer` (and to the slots
  // of Step::heads). v: null where values are a part of the keys (KvFormat::shared_values).
  virtual void append_kv(KvLayer layer, Ptr<const float> k, Ptr<const float> v, int64_t stride) = 0;

  // Causal attention of the rows' queries over their sequences' pages of `layer`, up to and including each row's own position, which
  // append_kv() has written; or over Step::heads. out: (n_rows, n_heads * KvFormat::value_dim()).
  virtual void attend(KvLayer layer, Ptr<const float> q, Ptr<float> out, const AttendShape& shape) = 0;

  // out[i] = activation(gate[i]) * up[i], (n_rows, n) each, rows `stride` floats apart in the inputs.
  virtual void activate(Activation activation, Ptr<const float> gate, Ptr<const float> up, int64_t stride, Ptr<float> out,
                        int64_t out_stride, int64_t n) = 0;
  void swiglu(Ptr<const float> gate, Ptr<const float> up, int64_t stride, Ptr<float> out, int64_t out_stride, int64_t n) {
    activate(Activation::silu, gate, up, stride, out, out_stride, n);
  }

  // x += y, (n_rows, n) contiguous.
  virtual void add(Ptr<float> x, Ptr<const float> y, int64_t n) = 0;

  // x *= scale; then x = cap * tanh(x / cap), if cap > 0. n values of `n_rows` rows, contiguous. For logits.
  virtual void soft_cap(Ptr<float> x, int32_t n_rows, int64_t n, float scale, float cap) = 0;

 protected:
  ~StepOperations() = default;
};

}  // namespace orrery
