#include "runtime/policy/given/questions.h"

namespace orrery::policy {

Status Heads::key_moments(Span<const MomentsQuery> queries, std::vector<float>* rows) {
  Moments moments;
  for (const MomentsQuery& query : queries) {
    rows->resize(size_t{query.n_positions} * group() * query.n_keys);
    const WeightsQuery asked{query.head, query.first_position, query.n_positions, query.n_keys, false, rows->data()};
    ORRERY_TRY(key_weights({&asked, 1}));
    const WindowWeights window{rows->data(), query.n_positions, group(), query.n_scored, query.n_keys};
    each(moments.begin(window), [&](size_t part) { moments.measure_part(window, part); });
    moments.finish();
    moments.scores(query.gamma, {query.out, moments.mean.size()});
    *query.dispersion = {};
    query.dispersion->add(moments);
  }
  return ok_status();
}

}  // namespace orrery::policy
