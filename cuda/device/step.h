// What changes from step to step, on the device: kernels read it, and what they are launched with stays the same, so that a
// step is a graph that is captured once and patched never.
#pragma once

#include <cstdint>

#include "runtime/backend/backend.h"

namespace orrery::cuda {

// The resident keys of one KV head (runtime/backend/backend.h: HeadView).
struct DeviceHead {
  const uint64_t* tiles;    // (n_keys / kPageTokens, rounded up) device addresses
  uint64_t append_at;       // device address
  const float* mean;        // (2, head_dim) where compensation_weight > 0
  int32_t n_keys;
  float compensation_weight;
};

// What is asked of a step's logits (runtime/backend/backend.h: ShortlistRequest).
struct DeviceShortlist {
  double inverse_temperature;
  int32_t n_best, n_tokens, n_sums;
  int32_t tokens[ShortlistRequest::kMostTokens];
};

// Where all of it lies: the same addresses in every step of a session. By value to kernels.
struct StepView {
  const Row* rows;                  // (n_rows)
  const uint64_t* pages;            // (n_sequences, max_pages) device addresses
  const DeviceHead* heads;          // (n_layers, n_kv_heads), where the step has such
  const float* inverse_frequency;   // (n_rot / 2)
  const DeviceShortlist* shortlist;
  float* rope;                      // (n_rows, 2, rope_floats / 2): cosines, then sines
  int32_t max_pages;
  int32_t rope_floats;
};

}  // namespace orrery::cuda
