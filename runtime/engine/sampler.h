// Logits in, one token out.  Order: bias, penalties, the caller's hook; then, unless the temperature is 0 (the highest
// logit, lowest id among equals): temperature, top-k, top-p, min-p, one draw.  The same seed and logits give the same
// tokens on every platform.  Allocates nothing after construction.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/span.h"
#include "runtime/base/status.h"

namespace orrery::engine {

struct LogitBias {
  int32_t token = 0;
  float bias = 0.0f;
};

// May change the logits (n_vocab); non-zero cancels.
using LogitsHook = int32_t (*)(void* user, float* logits, size_t n_vocab, const int32_t* tokens, size_t n_tokens);

struct SamplingOptions {
  float temperature = 0.0f;
  float top_p = 1.0f, min_p = 0.0f;
  uint32_t top_k = 0;
  uint64_t seed = 0;
  float repetition_penalty = 1.0f, frequency_penalty = 0.0f, presence_penalty = 0.0f;
  uint32_t penalty_tokens = 64;
  std::vector<LogitBias> bias;
  LogitsHook hook = nullptr;
  void* hook_user = nullptr;
  uint32_t n_logprobs = 0;

  // Ranges and token ids; invalid_argument names the option.
  Status validate(int32_t n_vocab) const;
};

inline constexpr uint32_t kMaxLogprobs = 20;

struct TokenLogprob {
  int32_t token = -1;
  float logprob = 0.0f;
};

struct Choice {
  int32_t token = -1;
  float logprob = 0.0f;              // of the model's own distribution: before bias, penalties, temperature
  Span<const TokenLogprob> top;      // (n_logprobs), likeliest first; until the next call
};

class Sampler {
 public:
  Sampler(SamplingOptions options, int32_t n_vocab);

  // `logits` (n_vocab) is only read. `tokens`: the sequence so far. cancelled: the hook said so; bad_model: no logit is
  // a number.
  Result<Choice> choose(Span<const float> logits, Span<const int32_t> tokens);

 private:
  void penalize(Span<const int32_t> tokens);
  int32_t draw();
  double uniform();

  SamplingOptions options_;
  std::vector<float> logits_;        // (n_vocab) working copy
  std::vector<int32_t> order_;       // (n_vocab) candidate ids
  std::vector<double> weight_;       // (n_vocab) of the candidates
  std::vector<uint32_t> count_;      // (n_vocab) occurrences, zero between calls
  std::vector<TokenLogprob> top_;
  uint64_t rng_[4];
};

}  // namespace orrery::engine
