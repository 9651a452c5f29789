// How a session without a head profile calibrates itself.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/policy/budget.h"
#include "runtime/policy/heads/overlaps.h"
#include "runtime/policy/questions.h"
#include "runtime/policy/score/score.h"
#include "runtime/policy/select/rings.h"

namespace orrery::policy {

// How a session without a head profile calibrates itself when it settles: with the queries of the prompt's last
// positions, newest first (the last one is the reference, step 0), over the keys that all of them see.
struct Calibration {
  uint32_t n_queries = 16, top_k = 1024;   // top_k: at most a quarter of those keys
  ScoreRule rule;
};
struct Calibrated {
  std::vector<LayerOverlaps> layers;   // those without window, in order
  uint32_t top_k = 0;                  // keys in each set
};
uint64_t calibration_bytes(const Shape& shape, const Calibration& calibration);   // of host memory
// With a single known query, that one is its own second step.
Result<Calibrated> calibrate(Heads* heads, const WindowRings& rings, const Shape& shape,
                             uint32_t n_tokens, const Calibration& calibration);

}  // namespace orrery::policy
