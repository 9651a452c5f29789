#include "runtime/model/store/division.h"

#include <algorithm>

#include "runtime/model/store/expert_store.h"

namespace orrery::model {

int64_t divide_experts(const DivisionInput& in) {
  if (!in.units || in.in_place) return -1;
  const uint64_t left = in.arena_bytes - std::min(in.arena_bytes, in.sessions_bytes);
  if (in.all_bytes <= left) return -1;
  const uint64_t least = in.units.least_slots(), all = in.units.n_units();
  if (least >= all) return -1;
  const uint64_t beside = in.weights_bytes + ExpertStore::needs(in.units, 0, false).arena_bytes;
  const uint64_t fitting = (left - std::min(left, beside)) / in.units.slot_bytes();
  return static_cast<int64_t>(std::clamp(fitting, least, all));
}

}  // namespace orrery::model
