// Engine of ShadowKV and ShadowKV+: chunks of a few tokens that change with every step's own query. Landmarks, the chunks' mean keys, find
// them. V alone is fetched: K is rebuilt from the low-rank keys on the device.
//   score     the query's products with the landmarks, divided by sqrt(head_dim); softmax over the candidates, maximum over the group
//   allocate  evenly
//   select    exact: outliers (chunks whose keys differ most from their mean), and the window, the last chunks. Rebuilt: the best of the other
//             chunks. The reservoir keeps all chunks
//   refresh   every step, before each layer attends; misses alone are fetched
// `ages` (ShadowKV+): a chunk that leaves the window becomes a candidate by the existing basis. Or it becomes an outlier, if it is more
// outlying than the least outlying one, which becomes a candidate. Else generated tokens stay exact, and a full tail settles again with a
// new basis.
#pragma once

#include <cstdint>
#include <memory>

#include "runtime/base/status.h"
#include "runtime/policy/policy.h"

namespace orrery::policy {

struct ChunkSettings {
  uint32_t chunk = 8;                   // tokens
  uint32_t rank = 0;                    // of low-rank keys; 0: 160, or less
  uint32_t outliers = 48, window = 32;  // chunks; tokens (the option `local`)
  uint32_t tail = 0;                    // slots for generated tokens; 0: by the prompt's length
  bool ages = false;
};

Result<std::unique_ptr<Policy>> make_chunks(const char* name, bool ages, const Shape& shape, const Budget& budget, const Options& options);

}  // namespace orrery::policy
