#include "runtime/engine/session/retrieval.h"

#include <algorithm>

#include "runtime/policy/given/questions.h"

namespace orrery::engine {

namespace {

constexpr uint32_t kQueries = 64;  // of a chunk: their weights are asked for before the next chunk takes their place

}  // namespace

Result<RetrievalScores> measure_retrieval(Session* session, const RepeatedTokens& repeated,
                                          const std::function<Status(uint64_t n)>& advance) {
  const uint32_t n = repeated.n_distinct;
  const model::Description& h = session->model().description();
  const auto n_heads = static_cast<uint32_t>(h.kv().n_layers() * h.kv().n_kv_heads),
             group = static_cast<uint32_t>(h.kv().n_heads / h.kv().n_kv_heads);
  const auto n_tokens = static_cast<uint32_t>(repeated.tokens.size()), first_asked = repeated.first + n;
  const Span<const int32_t> tokens = repeated.tokens;
  std::vector<double> induction(size_t{n_heads} * group), echo(induction.size());
  std::vector<float> weights(size_t{kQueries} * group * n_tokens);
  ORRERY_TRY(session->rewind(0));
  for (uint32_t from = 0; from < n_tokens;) {
    // Up to the first repetition nothing is asked; then chunk by chunk.
    const uint32_t end = from < first_asked ? first_asked : n_tokens;
    const uint32_t m = std::min({from < first_asked ? session->options().chunk() : kQueries, session->options().chunk(), end - from});
    ORRERY_TRY(session->sequence().prefill_chunk(tokens.subspan(from, m), nullptr, false, nullptr));
    ORRERY_TRY(advance(m));
    const uint32_t n_keys = from + m;
    for (uint32_t head = 0; from >= first_asked && head < n_heads; ++head) {
      const policy::WeightsQuery query{head, from, m, n_keys, false, weights.data()};
      ORRERY_TRY(session->sequence().key_weights({&query, 1}));
      for (uint32_t i = 0; i < m; ++i)
        for (uint32_t g = 0; g < group; ++g) {
          const float* row = &weights[(size_t{i} * group + g) * n_keys];
          for (uint32_t earlier = (from + i - repeated.first) % n + repeated.first; earlier + n <= from + i; earlier += n) {
            echo[size_t{head} * group + g] += static_cast<double>(row[earlier]);
            induction[size_t{head} * group + g] += static_cast<double>(row[earlier + 1]);
          }
        }
    }
    from += m;
  }
  const double n_asked = n_tokens - first_asked;
  const auto of_heads = [&](const std::vector<double>& sums) {
    std::vector<double> scores(n_heads);
    for (uint32_t head = 0; head < n_heads; ++head) {
      const auto begin = sums.begin() + static_cast<ptrdiff_t>(size_t{head} * group);
      // Rounding may pass 1.
      scores[head] = std::clamp(*std::max_element(begin, begin + static_cast<ptrdiff_t>(group)) / n_asked, 0.0, 1.0);
    }
    return scores;
  };
  return RetrievalScores{of_heads(induction), of_heads(echo)};
}

}  // namespace orrery::engine
