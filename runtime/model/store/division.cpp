#include "runtime/model/store/division.h"

#include <algorithm>

#include "runtime/model/store/expert_store.h"
#include "runtime/model/store/host_columns.h"
#include "runtime/model/store/layer_store.h"

namespace orrery::model {

int64_t divide_experts(const DivisionInput& in) {
  if (!in.units || in.in_place) return -1;
  const uint64_t left = in.arena_bytes - std::min(in.arena_bytes, in.sessions_bytes);
  if (in.all_bytes <= left) return -1;
  if (in.by_host) {
    uint64_t used = in.weights_bytes + in.tables_bytes;
    int64_t n = 0;
    bool fits = true;
    in.units.for_first(in.units.n_units(), [&](size_t l, int32_t) {
      used += in.units.layers[l].bytes;
      if ((fits = fits && used <= left)) ++n;
    });
    return n;
  }
  const uint64_t least = in.units.least_slots(), all = in.units.n_units();
  if (least >= all) return -1;
  const uint64_t beside = in.weights_bytes + ExpertStore::needs(in.units, 0, false).arena_bytes;
  const uint64_t fitting = (left - std::min(left, beside)) / in.units.slot_bytes();
  return static_cast<int64_t>(std::clamp(fitting, least, all));
}

int64_t divide_columns(const std::function<bool(int64_t)>& fits) {
  int64_t low = 0, high = HostColumns::kWhole;  // more columns take more of the arena
  while (low + 1 < high) {
    const int64_t middle = low + (high - low) / 2;
    (fits(middle) ? low : high) = middle;
  }
  return low;
}

int64_t divide_layers(const LayersInput& in) {
  const auto n = static_cast<int32_t>(in.away.size());
  const uint64_t left = in.arena_bytes - std::min(in.arena_bytes, in.sessions_bytes);
  for (int32_t n_away = 0; n_away < n; ++n_away) {
    const LayerUnits away = LayerUnits::spread(in.away, n_away);
    uint64_t gone = 0;
    for (const LayerUnits::Layer& layer : away.layers) gone += in.there[static_cast<size_t>(layer.layer)];
    if (in.all_bytes - gone + LayerStore::needs(away, false).arena_bytes <= left) return n_away == 0 ? -1 : n - n_away;
  }
  return 0;
}

}  // namespace orrery::model
