// The step's state in device memory: everything that changes from step to step. Kernels read this state, and their launch arguments stay
// the same. So a step is a CUDA graph that is captured once and never patched.
#pragma once

#include <cstdint>

#include "runtime/backend/backend.h"

namespace orrery::cuda {

// The resident KV of one KV head (runtime/backend/step.h: HeadView).
struct DeviceHead {
  const uint64_t* tiles;             // (n_keys / kPageTokens, rounded up) device addresses
  uint64_t append_at;                // device address
  const float* compensation_token;   // (2, head_dim), if compensation_weight > 0 or compensation_logs is given
  const float* compensation_logs;    // (group), or null
  const float* compensation_values;  // (group, head_dim) of compensation_logs, or null
  int32_t n_keys;
  float compensation_weight;
};

// The request for sampling candidates (runtime/backend/shortlist.h: ShortlistRequest). Its mask lies in the shortlist's work space.
struct DeviceShortlist {
  double inverse_temperature;
  int32_t n_best, n_tokens, n_sums;
  int32_t n_allowed;  // tokens that may be chosen
  uint32_t masked;    // whether there is a mask
  int32_t tokens[ShortlistRequest::kMostTokens];
};

// Beside its pages, heads and frequencies: the part of a sequence's session that its rows need (runtime/backend/step.h: Step, RopeSpec).
struct DeviceSequence {
  float* queries;          // the query ring, (n_layers, n_queries, n_heads * head_dim), or null
  const float* key_means;  // KvTransform
  float* state;            // of recurrent layers, or null
  float* guessed;          // SequenceState (runtime/backend/recurrent.h)
  int32_t n_replayed;
  int32_t n_queries;
  uint32_t rotated;
  float rope_magnitude[kMostRopes];
  int32_t rope_period[kMostRopes];
};

// The addresses of the state, the same in every step. Kernels take them by value. Each sequence has a block of sequence_bytes. The
// addresses are those in the first block: of_sequence() finds another one's (kernels/kv.cuh).
struct StepView {
  const Row* rows;  // (n_rows)
  const DeviceSequence* sequence;
  const float* inverse_frequency;    // of each table of RoPE, (n_rot / 2)
  const DeviceHead* heads;           // (n_layers, n_kv_heads), if the sequence has resident heads
  const uint64_t* pages;             // (n_pages) device addresses
  const DeviceShortlist* shortlist;  // the request of this number in the step, which need not be the sequence's own
  float* rope;                       // (n_rows, rope_floats): of each table, its cosines, then its sines
  int64_t sequence_bytes;
  int32_t rope_floats;
  int32_t reserved;
};

}  // namespace orrery::cuda
