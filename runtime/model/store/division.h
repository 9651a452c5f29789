// How much of a model lies on the device.
//
// Device memory is worth most where each token reads it: the weights that all tokens use, then the KV and work memory of sessions, then
// experts, of which a token reads a small share. So all other weights and what sessions need come first, and experts take the rest. Where
// the processor computes beside the device, columns of dense feed-forward blocks leave like experts. Where even the fewest experts or columns
// do not fit, layers leave as well: each of them crosses the link in every step.
#pragma once

#include <cstdint>
#include <functional>

#include "runtime/base/span.h"
#include "runtime/model/store/expert_units.h"

namespace orrery::model {

struct DivisionInput {
  const ExpertUnits& units;
  bool in_place = false;        // the host's memory is as near as the device's
  uint64_t arena_bytes = 0;     // of the arena
  uint64_t weights_bytes = 0;   // in the arena, of all weights but experts
  uint64_t all_bytes = 0;       // in the arena, with all experts
  uint64_t sessions_bytes = 0;  // in the arena, left to sessions
  bool by_host = false;         // the host computes the units that are not on the device, and any number may be there
  uint64_t tables_bytes = 0;    // then in the arena, beside units
};

// Units on the device; -1: all of them, because they fit. Else at least ExpertUnits::least_slots(), even if these do not fit.
int64_t divide_experts(const DivisionInput& input);

// The most columns of dense feed-forward blocks on the device with which `fits(share)` holds, in parts of HostColumns::kWhole; 0 if no number
// does.
int64_t divide_columns(const std::function<bool(int64_t)>& fits);

// The most layers on the device that leave sessions their bytes; -1: all of them. 0 if no number does.
struct LayersInput {
  Span<const uint64_t> away, there;  // (n_layers) bytes of each layer's matrices in the reservoir, and in the arena if it is there
  uint64_t arena_bytes = 0;          // of the arena
  uint64_t all_bytes = 0;            // in the arena, with all layers
  uint64_t sessions_bytes = 0;       // in the arena, left to sessions
};
int64_t divide_layers(const LayersInput& input);

}  // namespace orrery::model
