// Random tokens, all different, four times in a row: text whose attention depends on nothing but the repetition. Heads that retrieve are
// found by it (session/retrieval.h), and the mean keys of a model are measured with it (key_means.h).
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/engine/shared/language_model.h"

namespace orrery::engine {

// The published measurement (arXiv:2407.15891) has 2,500 tokens, four times.
struct RepeatedTokens {
  static constexpr uint32_t kMostDistinct = 256, kTimes = 4;
  uint32_t n_distinct = 0;      // fewer than kMostDistinct where the vocabulary is small
  std::vector<int32_t> tokens;  // with BOS in front where the vocabulary wants one
  uint32_t first = 0;           // of the repeated tokens
  // The same model, the same tokens. Control tokens and those that the vocabulary does not name are not among them.
  static Result<RepeatedTokens> make(const LanguageModel& model);
};

}  // namespace orrery::engine
