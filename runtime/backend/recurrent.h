// Layers that keep a state of fixed size in place of KV, and the gates of attention that stand beside them.
//
// A gated delta net (Yang et al., arXiv:2412.06464; as in Qwen3.5) has n_value_heads states S, (key_dim, value_dim). For each token:
//   c = silu(causal convolution of u, channel by channel); q, k, v = its parts
//   q = q / |q| / sqrt(key_dim), k = k / |k|, with eps beneath the root
//   beta = sigmoid(b), g = exp(decay * softplus(a + dt))
//   S = g S;  d = beta (v - S^T k);  S = S + k d^T;  o = S^T q
//   out = rms_norm(o) * norm * silu(z)
//
// Mamba2 (Dao and Gu, arXiv:2405.21060; as in Nemotron-H) has n_heads states S, (state_dim, head_dim). For each token, of which a row of
// one matrix gives [z | u | t]:
//   c = silu(causal convolution of u, channel by channel, + bias); x, B, C = its parts; a group of heads shares its B and C
//   t = softplus(t + dt)
//   S = exp(t decay) S + B (t x)^T;  y = S^T C + skip x
//   out = rms_norm(y * silu(z), within each group) * norm
//
// A short convolution (as in LFM2) has no state but the convolution's. For each token, of which a row of one matrix gives [B | C | X]:
//   out = C * (causal convolution of B * X, channel by channel)
//
// Tokens are taken in order, in both phases, so a row's bits depend neither on the chunk nor on the threads.
//
// A step may have rows whose tokens are guesses. Wrong ones must leave no trace in the state, and a copy of the state for each would be
// large. So a guessed row changes no state, and its inputs are kept: what the layer's recurrence takes of it. Once the guesses are judged,
// the sequence's next step replays the right ones, before its own rows: it computes the recurrence over their inputs again. The same
// operations on the same inputs give the state the bits that steps of their own would give.
#pragma once

#include <cstdint>

#include "runtime/backend/memory.h"
#include "runtime/base/span.h"

namespace orrery {

struct DeltaNetShape {
  int32_t n_key_heads = 0, n_value_heads = 0, key_dim = 0, value_dim = 0;
  int32_t n_taps = 0;  // of the convolution; the last one is the current token's
  float eps = 0.0f;    // of the norms
  // False: value head i has key head i % n_key_heads. True: the value heads of a key head are neighbours, and `a` and `b` are one table,
  // (n_rows, n_key_heads, 2, value heads of a key head), b first.
  bool grouped = false;

  int32_t group() const { return n_value_heads / n_key_heads; }
  int32_t key_head(int32_t value_head) const { return grouped ? value_head / group() : value_head % n_key_heads; }
  // Where the scalars of a value head stand in a row of `a` and of `b`, and how long these rows are.
  int32_t a_at(int32_t head) const { return grouped ? head / group() * 2 * group() + group() + head % group() : head; }
  int32_t b_at(int32_t head) const { return grouped ? head / group() * 2 * group() + head % group() : head; }
  int32_t gate_stride() const { return grouped ? 2 * n_value_heads : n_value_heads; }

  int32_t keys() const { return n_key_heads * key_dim; }
  int32_t values() const { return n_value_heads * value_dim; }
  int32_t channels() const { return 2 * keys() + values(); }  // q heads, k heads, v heads
  // The state of a sequence: S of each value head, then the convolution's last n_taps - 1 inputs, oldest first.
  uint64_t state_floats() const {
    return static_cast<uint64_t>(values()) * static_cast<uint64_t>(key_dim) +
           static_cast<uint64_t>(n_taps - 1) * static_cast<uint64_t>(channels());
  }
  // The kept inputs of a guessed row: u, then a and b, or their one table.
  int64_t guessed_floats() const { return int64_t{channels()} + 2 * n_value_heads; }
};

// All float32, in device memory.
struct DeltaNetWeights {
  Ptr<const float> conv;       // (channels, n_taps)
  Ptr<const float> dt, decay;  // (n_value_heads)
  Ptr<const float> norm;       // (value_dim)
};

// The rows of a step: each pointer is that of row 0.
struct DeltaNetRows {
  Ptr<float> u;           // (n_rows, channels)
  Ptr<float> c;           // (n_rows + replayed rows, channels), scratch memory
  Ptr<const float> z;     // (n_rows, values)
  Ptr<const float> a, b;  // (n_rows, n_value_heads); the same table if `grouped`
  Ptr<float> out;         // (n_rows, values)
};

struct Mamba2Shape {
  int32_t n_heads = 0, head_dim = 0, n_groups = 0, state_dim = 0;
  int32_t n_taps = 0;  // of the convolution; the last one is the current token's
  float eps = 0.0f;    // of the norm

  int32_t inner() const { return n_heads * head_dim; }
  int32_t group_width() const { return inner() / n_groups; }
  int32_t group_of(int32_t head) const { return head / (n_heads / n_groups); }
  int32_t channels() const { return inner() + 2 * n_groups * state_dim; }  // x of the heads, B of the groups, C of the groups
  int32_t projected() const { return inner() + channels() + n_heads; }     // z, u, t
  // The state of a sequence: S of each head, then the convolution's last n_taps - 1 inputs, oldest first.
  uint64_t state_floats() const {
    return static_cast<uint64_t>(inner()) * static_cast<uint64_t>(state_dim) +
           static_cast<uint64_t>(n_taps - 1) * static_cast<uint64_t>(channels());
  }
  // The kept inputs of a guessed row: u, then t.
  int64_t guessed_floats() const { return int64_t{channels()} + n_heads; }
};

// All float32, in device memory.
struct Mamba2Weights {
  Ptr<const float> conv, conv_bias;  // (channels, n_taps), (channels)
  Ptr<const float> dt, decay, skip;  // (n_heads)
  Ptr<const float> norm;             // (inner)
};

// The rows of a step: each pointer is that of row 0.
struct Mamba2Rows {
  Ptr<const float> projected;  // (n_rows, projected)
  Ptr<float> c;                // (n_rows + replayed rows, channels), scratch memory
  Ptr<float> out;              // (n_rows, inner)
};

struct ShortConvShape {
  int32_t n_channels = 0;
  int32_t n_taps = 0;  // the last one is the current token's
  // The state of a sequence: the last n_taps - 1 values of B * X, oldest first.
  uint64_t state_floats() const { return static_cast<uint64_t>(n_taps - 1) * static_cast<uint64_t>(n_channels); }
  // The kept inputs of a guessed row: B * X.
  int64_t guessed_floats() const { return n_channels; }
};

// The rows of a step: each pointer is that of row 0.
struct ShortConvRows {
  Ptr<const float> projected;  // (n_rows, 3 n_channels)
  Ptr<float> u;                // (n_rows, n_channels), scratch memory
  Ptr<float> out;              // (n_rows, n_channels)
};

// The most taps of a convolution.
inline constexpr int32_t kMostTaps = 8;
// The most guessed rows of a step.
inline constexpr int32_t kMostGuessedRows = 7;

// What a step does to the state of its sequence.
struct SequenceState {
  Ptr<float> data = {};     // 64-byte aligned
  Ptr<float> guessed = {};  // kept inputs of guessed rows, 64-byte aligned; or null: the step has neither guessed nor replayed rows
  int32_t n_replayed = 0;   // before its own rows the step replays the first n_replayed rows whose inputs are kept
  // The first n_final rows of the step change the state; 0: all rows do. The others are guessed, at most kMostGuessedRows. The inputs of
  // guessed rows replace the kept inputs. Steps of several sequences have neither guessed nor replayed rows.
  int32_t n_final = 0;

  int32_t final_rows(int64_t n_rows) const { return n_final > 0 ? n_final : static_cast<int32_t>(n_rows); }
};

// Where a layer's part begins in each sequence's state, and in its kept inputs, in floats; multiples of 16. The latter part has
// kMostGuessedRows rows of the shape's guessed_floats().
struct StatePlace {
  uint64_t state = 0, guessed = 0;
};

class RecurrentOperations {
 public:
  // The states of the steps that begin_steps() has taken, one for each. Called behind prepare_ropes(), before the layers.
  virtual void set_states(Span<const SequenceState> states) = 0;
  // Computes the rows and changes the states.
  virtual void delta_net(const DeltaNetShape& shape, const DeltaNetWeights& weights, const DeltaNetRows& rows, const StatePlace& at) = 0;
  virtual void mamba2(const Mamba2Shape& shape, const Mamba2Weights& weights, const Mamba2Rows& rows, const StatePlace& at) = 0;
  // conv: (n_channels, n_taps) float32.
  virtual void short_conv(const ShortConvShape& shape, Ptr<const float> conv, const ShortConvRows& rows, const StatePlace& at) = 0;
  // x: (n_rows, n_heads, 2, head_dim), queries and gates, head by head. q: (n_heads, head_dim) at rows q_stride floats apart; gates:
  // (n_rows, n_heads * head_dim).
  virtual void split_gates(Ptr<const float> x, int32_t n_heads, int32_t head_dim, Ptr<float> q, int64_t q_stride, Ptr<float> gates) = 0;
  // x[i] *= sigmoid(gates[i]), (n_rows, n) contiguous.
  virtual void apply_gates(Ptr<float> x, Ptr<const float> gates, int64_t n) = 0;

 protected:
  ~RecurrentOperations() = default;
};

}  // namespace orrery
