// A model's sizes and constants, read from its metadata and checked against each other. After read_hyperparameters(),
// every product of two sizes fits an int64, and every value is in the range that the kernels support.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/gguf/gguf.h"
#include "runtime/model/architecture.h"

namespace orrery::model {

enum class RopeScaling : uint8_t { none, linear, yarn, llama3, longrope };

struct RopeParameters {
  RopeScaling scaling = RopeScaling::none;
  float base = 10000.0f;
  float factor = 1.0f;              // ratio of the extended context to the trained context
  float attention_factor = 1.0f;    // multiplies cos and sin, in addition to yarn's own magnitude
  uint32_t original_context = 0;    // tokens of the original training; 0: the model's context
  float beta_fast = 32.0f, beta_slow = 1.0f;          // yarn
  float low_frequency = 1.0f, high_frequency = 4.0f;  // llama3, if set by an override
};

// A caller's replacement for the file's RoPE scaling.
struct RopeOverride {
  bool set = false;                 // `scaling` and `factor` replace the file's
  RopeScaling scaling = RopeScaling::none;
  float factor = 0.0f;
  float base = 0.0f;                // > 0: replaces the file's, with or without `set`
  uint32_t original_context = 0;    // > 0: replaces the file's
};

struct Hyperparameters {
  const Architecture* architecture = nullptr;
  std::string name;                 // general.name, shown to people
  int32_t n_layers = 0, n_embd = 0, n_vocab = 0;
  int32_t n_heads = 0, n_kv_heads = 0, head_dim = 0;
  std::vector<int32_t> n_ff;        // (n_layers)
  int32_t n_rot = 0;                // rotated dimensions of a head
  int32_t trained_context = 0;
  float norm_eps = 1e-5f;
  std::vector<int32_t> window;      // (n_layers), sliding window in tokens, 0: none
  RopeParameters rope;

  int32_t q_dim() const { return n_heads * head_dim; }
  int32_t kv_dim() const { return n_kv_heads * head_dim; }
  int32_t max_ff() const;
};

// Tokens up to which the rotary positions mean something: the trained context, or what its scaling makes of that.
uint32_t reach_of_context(const Hyperparameters& h);

// Refuses with unsupported_architecture what we do not run (naming it), also a key that nobody here understands, and with
// bad_model what contradicts itself.
Result<Hyperparameters> read_hyperparameters(const gguf::File& file, const RopeOverride& rope);

}  // namespace orrery::model
