#include "runtime/policy/policy.h"

#include <algorithm>
#include <cmath>

#include "runtime/policy/parts.h"

namespace orrery::policy {

Status Heads::key_moments(Span<const MomentsQuery> queries, std::vector<float>* rows) {
  Moments moments;
  for (const MomentsQuery& query : queries) {
    rows->resize(size_t{query.n_positions} * group() * query.n_keys);
    const WeightsQuery asked{query.head, query.first_position, query.n_positions, query.n_keys, false, rows->data()};
    ORRERY_TRY(key_weights({&asked, 1}));
    const WindowRows window{rows->data(), query.n_positions, group(), query.n_measured, query.n_keys};
    each(moments.begin(window), [&](size_t part) { moments.measure_part(window, part); });
    moments.finish();
    moments.scores(query.gamma, {query.out, moments.mean.size()});
    *query.dispersion = {};
    query.dispersion->add(moments);
  }
  return ok_status();
}

uint64_t tokens_of_share(double share, uint32_t n) {
  return static_cast<uint64_t>(std::ceil(share * n * (1 - 1e-7)));
}

uint64_t slots_for_share(const Shape& shape, double share) {
  uint64_t slots = 0;
  for (uint32_t l = 0; l < shape.n_layers; ++l) {
    const uint64_t window = static_cast<uint64_t>(shape.window[l]);
    const uint64_t wanted = window > 0 ? window
                                       : std::max<uint64_t>(tokens_of_share(share, shape.n_context), kLeastSlots);
    slots += std::min<uint64_t>(wanted, shape.n_context) * shape.n_kv_heads;
  }
  return slots;
}

}  // namespace orrery::policy
