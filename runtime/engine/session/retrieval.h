// Which heads retrieve: attention on random tokens that are repeated (arXiv:2407.15891, section 3.2). Nothing but the
// repetition tells such tokens apart, so the attention that a head gives to an earlier occurrence is what it finds by content.
//
//   induction   a query's weight on the tokens that followed the earlier occurrences of its token
//   echo        a query's weight on the earlier occurrences themselves
//
// Both are means over the queries of the repetitions. A KV head has the largest score of its query heads: one that retrieves needs all of
// the KV. (The paper counts query heads.)
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/engine/sequence/repeated_tokens.h"
#include "runtime/engine/session/session.h"

namespace orrery::engine {

struct RetrievalScores {
  std::vector<double> induction, echo;  // (n_layers * n_kv_heads), 0 to 1
};

// Reads the tokens in `session`, which keeps its last queries (64 and more) and has room for them; its old tokens are gone.
// advance(n): n tokens have been read; an error ends it.
Result<RetrievalScores> measure_retrieval(Session* session, const RepeatedTokens& repeated,
                                          const std::function<Status(uint64_t n)>& advance);

}  // namespace orrery::engine
