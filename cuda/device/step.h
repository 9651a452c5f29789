// The step's state in device memory: everything that changes from step to step. Kernels read this state, and their launch arguments stay
// the same. So a step is a CUDA graph that is captured once and never patched.
#pragma once

#include <cstdint>

#include "runtime/backend/backend.h"

namespace orrery::cuda {

// The resident KV of one KV head (runtime/backend/step.h: HeadView).
struct DeviceHead {
  const uint64_t* tiles;    // (n_keys / kPageTokens, rounded up) device addresses
  uint64_t append_at;       // device address
  const float* compensation_token;   // (2, head_dim), if compensation_weight > 0
  int32_t n_keys;
  float compensation_weight;
};

// The request for sampling candidates (runtime/backend/shortlist.h: ShortlistRequest).
struct DeviceShortlist {
  double inverse_temperature;
  int32_t n_best, n_tokens, n_sums;
  int32_t tokens[ShortlistRequest::kMostTokens];
};

// The addresses of the state, the same in every step of a session. Kernels take them by value.
struct StepView {
  const Row* rows;                  // (n_rows)
  const uint64_t* pages;            // (n_sequences, max_pages) device addresses
  const DeviceHead* heads;          // (n_layers, n_kv_heads), if the step has resident heads
  const float* inverse_frequency;   // (n_rot / 2)
  const DeviceShortlist* shortlist;
  float* rope;                      // (n_rows, 2, rope_floats / 2): cosines, then sines
  int32_t max_pages;
  int32_t rope_floats;
};

}  // namespace orrery::cuda
