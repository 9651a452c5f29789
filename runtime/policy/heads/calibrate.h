// How a session without a head profile calibrates itself when it settles: by the queries of the prompt's last positions.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/policy/given/budget.h"
#include "runtime/policy/heads/overlaps.h"
#include "runtime/policy/given/questions.h"
#include "runtime/policy/score/score.h"
#include "runtime/policy/select/rings.h"

namespace orrery::policy {

// Queries come newest first: the last one is the reference, step 0. The keys are those that all of these queries see.
struct Calibration {
  uint32_t n_queries = 16, top_k = 1024;  // top_k: at most a quarter of these keys
  ScoreRule rule;
};
struct Calibrated {
  std::vector<LayerOverlaps> layers;  // of layers without window, in order
  uint32_t top_k = 0;                 // keys in each set
};
// Upper bound on the host memory of calibrate().
uint64_t calibration_bytes(const Shape& shape, const Calibration& calibration);
// Where a single query is known, it is also its own second step.
Result<Calibrated> calibrate(Heads* heads, const WindowRings& rings, const Shape& shape, uint32_t n_tokens, const Calibration& calibration);

}  // namespace orrery::policy
