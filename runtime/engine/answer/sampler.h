// The sampler: logits in, one token out. Order: bias, penalties, the mask of a grammar, the caller's hook. At temperature 0 it then takes
// the highest logit, of equal ones the lowest id; else temperature, top-k, top-p, min-p and one draw. The same seed and logits give the
// same tokens on every platform. It allocates nothing after construction.
//
// The sampler first asks for sampling candidates (shortlist.h): the best logits, and those of tokens with a bias or a penalty. All other
// tokens rank behind the last candidate, so the candidates usually give the same token as all logits, to the last bit. If every token may
// be drawn, it asks for sums of blocks, and then for the logits of one block. If top-p reaches beyond the best, it asks for sums of bands
// of the other logits, and then for the logits of two bands. If this does not decide the token, the sampler is open and takes all logits,
// one by one.
//
// If logits are on a device, so are the candidates, and the row stays there until the sampler is open. From a row on the host, the sampler
// makes its candidates itself (row_shortlist.h): a vocabulary has 150,000 to 260,000 tokens, and a few vector passes cost a tenth of all
// exponentials.
//
// A mask bans tokens. If it allows few, the sampler asks for their logits, and has all that it needs. If it allows many, the candidates are
// those of the allowed tokens, and the mask goes with the request. But log-probabilities of the likeliest tokens are the model's own, so
// that request has no mask: the best logits decide where a choice needs no sum over the others; else the choice takes all logits.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/span.h"
#include "runtime/base/status.h"
#include "runtime/engine/shared/row_shortlist.h"
#include "runtime/engine/shared/shortlist.h"

namespace orrery::engine {

struct LogitBias {
  int32_t token = 0;
  float bias = 0.0f;
};

// May change the logits (n_vocab). A return value other than 0 cancels.
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

  // Checks ranges and token ids. invalid_argument names the option.
  Status validate(int32_t n_vocab) const;
};

inline constexpr uint32_t kMaxLogprobs = 20;

struct TokenLogprob {
  int32_t token = -1;
  float logprob = 0.0f;
};

struct Choice {
  int32_t token = -1;
  float logprob = 0.0f;          // of the model's own distribution: before bias, penalties and temperature
  Span<const TokenLogprob> top;  // (n_logprobs), likeliest first; valid until the next call
};

class Sampler {
 public:
  enum class Outcome : uint8_t {
    chosen,
    wants_more,  // fetch what Shortlist::wanted() says, then call choose() again
    open,        // the shortlist does not decide the token, or has not arrived. The sampler has not changed
  };

  Sampler(SamplingOptions options, int32_t n_vocab);

  // logits: (n_vocab), not changed. tokens: the sequence so far. Errors: cancelled by the hook; bad_model if no logit is a number;
  // invalid_argument if bias, grammar and hook ban every token.
  Result<Choice> choose(Span<const float> logits, Span<const int32_t> tokens);
  // The same by the definition, with all logits.
  Result<Choice> choose_of_all(Span<const float> logits, Span<const int32_t> tokens);

  // Allows only the tokens whose bits are set, in the next choices: bit i of word w is token 32 w + i, and tokens behind the last word are
  // banned. The words stay the caller's. Empty: allows all.
  void set_mask(Span<const uint32_t> mask) { mask_ = mask; }

  // The request for the next choice after `tokens`. Null: the choice needs all logits.
  Shortlist* ask(Span<const int32_t> tokens);
  // The token that choose() would take from all logits, from the shortlist that ask() requested after the same tokens.
  Outcome choose(Span<const int32_t> tokens, Choice* choice);
  Shortlist* shortlist() { return &shortlist_; }

  // Drafts: the tokens that coming choices would take from such logits, with their random numbers and without the hook. end_draft() goes
  // back to the first of these random numbers.
  void begin_draft() { rng_before_draft_ = rng_; }
  int32_t draft(Span<const float> logits, Span<const int32_t> tokens);  // -1: the logits choose no token
  int32_t likeliest(Span<const float> logits) const;                    // of the allowed tokens; -1: none
  void end_draft() { rng_ = rng_before_draft_; }

 private:
  bool penalizes() const {
    return options_.repetition_penalty != 1.0f || options_.frequency_penalty != 0.0f || options_.presence_penalty != 0.0f;
  }
  bool takes_top_k() const { return options_.top_k > 0 && options_.top_k < logits_.size(); }
  bool allowed(int32_t token) const {
    const auto word = static_cast<size_t>(token) >> 5;
    return mask_.empty() || (word < mask_.size() && (mask_[word] >> (token & 31) & 1) != 0);
  }
  void apply_mask();
  Shortlist* ask_for(Span<const int32_t> tokens, size_t many);
  bool choose_by_row(Span<const float> logits, Span<const int32_t> tokens, Choice* choice);
  bool ask_allowed(std::vector<int32_t>* wanted) const;
  void merge_biases();
  bool better(int32_t a, int32_t b) const;
  Span<const int32_t> penalized(Span<const int32_t> tokens) const;
  void penalize(Span<const int32_t> tokens);
  void note_top(Span<const ShortlistEntry> best, double total);
  double inverse_temperature() const { return 1.0 / static_cast<double>(options_.temperature); }
  double weight(int32_t token, float most, double inverse) const;
  int32_t draw();
  int32_t draw_of(size_t n);
  int32_t draw_of_k(size_t n);
  int32_t draw_of_weights(size_t n, double sum, double heaviest);
  bool draws_of_all() const { return options_.temperature > 0.0f && !takes_top_k() && options_.top_p >= 1.0f && options_.min_p <= 0.0f; }
  bool move_tokens(Span<const int32_t> tokens);
  size_t rank_shortlist();
  size_t list_allowed(int32_t* best);
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
  Span<const uint32_t> mask_;
  bool asked_allowed_ = false;   // the shortlist has the logits of all allowed tokens
  std::vector<float> logits_;    // (n_vocab) working copy
  std::vector<int32_t> order_;   // (n_vocab) candidate ids
  std::vector<double> weight_;   // (n_vocab) of the candidates
  std::vector<uint32_t> count_;  // (n_vocab) occurrences, zero between calls
  std::vector<TokenLogprob> top_;
  Shortlist shortlist_;
  RowShortlist row_;
  // A draw among all tokens, after find_block(): the weights before the block, the drawn sum of weights, and the bound of their error.
  struct {
    double before, target, error;
    float most;  // the logit whose weight is 1
  } draw_ = {};
  // Top-p beyond the best n candidates, whose weights sum to `held`. `wanted`: top-p's sum. Then the weights before the bands of the cut
  // and of the draw.
  struct {
    size_t n;
    double held, wanted, size, error, before_cut, before;
    float most;
  } tail_ = {};
  std::array<uint64_t, 4> rng_, rng_before_draft_ = {};
};

}  // namespace orrery::engine
