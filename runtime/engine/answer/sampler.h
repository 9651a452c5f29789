// Logits in, one token out.  Order: bias, penalties, the caller's hook; then, unless the temperature is 0 (the highest
// logit, lowest id among equals): temperature, top-k, top-p, min-p, one draw.  The same seed and logits give the same
// tokens on every platform.  Allocates nothing after construction.
//
// Where logits lie on a device it asks for a shortlist (shortlist.h) first: the best of them, and those of the tokens that it favours or
// penalises. All others rank behind the last one of the best, whatever they are, so that most often this decides what all logits
// would, to the last bit. Where every token may be drawn it asks for sums of blocks in place of the best, and then for the logits of one
// block; where top-p reaches beyond the best, for sums of bands of the rest, and then for what is in two of these. Where that does not
// decide it, it says so, and is given all of them.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/span.h"
#include "runtime/base/status.h"
#include "runtime/engine/shared/shortlist.h"

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
  enum class Outcome : uint8_t {
    chosen,
    wants_more,   // what the shortlist says: then choose() again
    open,         // what is there does not decide it, or nothing has arrived: nothing has happened then
  };

  Sampler(SamplingOptions options, int32_t n_vocab);

  // `logits` (n_vocab) is only read. `tokens`: the sequence so far. cancelled: the hook said so; bad_model: no logit is
  // a number.
  Result<Choice> choose(Span<const float> logits, Span<const int32_t> tokens);

  // What the next choice behind `tokens` needs at most; null: all logits.
  Shortlist* ask(Span<const int32_t> tokens);
  // What choose() gives of all logits, of the shortlist that ask() asked for behind the same tokens.
  Outcome choose(Span<const int32_t> tokens, Choice* choice);
  Shortlist* shortlist() { return &shortlist_; }

 private:
  bool penalizes() const {
    return options_.repetition_penalty != 1.0f || options_.frequency_penalty != 0.0f || options_.presence_penalty != 0.0f;
  }
  bool takes_top_k() const { return options_.top_k > 0 && options_.top_k < logits_.size(); }
  void merge_biases();
  bool better(int32_t a, int32_t b) const;
  Span<const int32_t> penalized(Span<const int32_t> tokens) const;
  void penalize(Span<const int32_t> tokens);
  void note_top(Span<const ShortlistEntry> best, double total);
  double inverse_temperature() const { return 1.0 / static_cast<double>(options_.temperature); }
  double weight(int32_t token, float most, double inverse) const;
  int32_t draw();
  int32_t draw_of_k(size_t n);
  int32_t draw_of_weights(size_t n, double sum, double heaviest);
  bool draws_of_all() const { return options_.temperature > 0.0f && !takes_top_k() && options_.top_p >= 1.0f && options_.min_p <= 0.0f; }
  bool move_tokens(Span<const int32_t> tokens);
  size_t rank_shortlist();
  Outcome draw_of_shortlist(size_t n, int32_t* token);
  Outcome keep_top_p(size_t n, size_t* n_kept, double* held);
  bool find_bands();
  size_t order_band(int32_t band);
  bool draw_of_tail(int32_t* token);
  bool in_tail(float x, int32_t token) const;
  double peek_uniform();
  float logit_of(int32_t token);
  double error_of(double size) const;
  bool find_block();
  bool draw_of_block(int32_t* token);
  double uniform();

  SamplingOptions options_;
  std::vector<float> logits_;        // (n_vocab) working copy
  std::vector<int32_t> order_;       // (n_vocab) candidate ids
  std::vector<double> weight_;       // (n_vocab) of the candidates
  std::vector<uint32_t> count_;      // (n_vocab) occurrences, zero between calls
  std::vector<TokenLogprob> top_;
  Shortlist shortlist_;
  // The draw among all, once its block is known: what stands before that, what the draw comes to, and how far both may be off.
  struct {
    double before, target, error;
    float most;                      // weights are 1 there
  } draw_ = {};
  // Top-p beyond the best n, which hold `held`; then what stands before the bands of the cut and of the draw.
  struct {
    size_t n;
    double held, wanted, size, error, before_cut, before;
    float most;
  } tail_ = {};
  std::array<uint64_t, 4> rng_;
};

}  // namespace orrery::engine
