// Guessed tokens that a sequence has computed ahead, with their rows of logits, and the index that guesses them (ngrams.h).
//
// A decode step computes the session's next token and guesses behind it. Row 0 of the logits is the one that the step of the token alone
// gives. When the sampler chooses the first guess, row 1 is the one that this guess's own step would give, and so on. When it chooses
// another token, the remaining rows are of no use: the session forgets them, and their KV lies behind its last token.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "runtime/base/span.h"
#include "runtime/engine/decoder/ngrams.h"
#include "runtime/engine/sequence/sequence.h"
#include "runtime/kv/memory/layout.h"
#include "runtime/model/forward/forward.h"

namespace orrery::engine {

class Guesses {
 public:
  static kv::Region layout(const model::Description& h, uint32_t n_context) {
    const uint64_t row = (static_cast<uint64_t>(h.n_vocab) + static_cast<uint64_t>(h.n_embd)) * sizeof(float);
    return {"guessed tokens", kv::Holds::tables, 0, 0, sizeof(Guesses) + kRows * row + Ngrams::bytes(n_context), 0};
  }
  Guesses(const model::Description& h, uint32_t n_context)
      : ngrams(n_context), logits_(kRows * static_cast<size_t>(h.n_vocab)), embeddings_(kRows * static_cast<size_t>(h.n_embd)) {}

  Ngrams ngrams;

  // The length of a draft, of at most `most` tokens: as many as pay, by the share of drafted tokens that were right. may_try: sometimes one
  // token is drafted that would not pay, to find out.
  size_t draft_length(size_t most, const GuessCosts& costs, bool may_try) {
    constexpr double kLeastGain = 1.04;
    constexpr uint32_t kTryAfter = 64;  // tokens
    double all_right = 1.0, expected = 1.0, best = kLeastGain;
    size_t n = 0;
    for (size_t i = 0; i < most; ++i) {
      all_right *= drafts_right_;
      expected += all_right;
      const double gain = expected / (1.0 + costs[i]);
      if (gain >= best) best = gain, n = i + 1;
    }
    if (n == 0 && ++since_draft_ >= kTryAfter && may_try) n = std::min<size_t>(most, 1);
    if (n > 0) since_draft_ = 0;
    return n;
  }
  // The length of n guesses that are as good as certain: as many as pay.
  size_t n_that_pay(size_t n, const GuessCosts& costs) const {
    double best = 1.0;
    size_t length = 0;
    for (size_t i = 0; i < n; ++i) {
      const double gain = static_cast<double>(i + 2) / (1.0 + costs[i]);
      if (gain > best) best = gain, length = i + 1;
    }
    return length;
  }
  void judge_draft(bool right) { drafts_right_ += ((right ? 1.0 : 0.0) - drafts_right_) / 16; }
  // The tokens of a step, (kRows), to be filled in: the sequence's next token, then its guesses.
  int32_t* tokens() { return tokens_.data(); }
  // Where the step's rows go: (kRows, n_vocab) and (kRows, n_embd).
  Sequence::OutRows rows() { return {logits_.data(), embeddings_.data()}; }
  // The step computes n guesses behind its first token.
  void computes(size_t n) { end_ = n + 1; }
  // The next guess, and the rows behind it, of the last n_ahead ones.
  int32_t next(size_t n_ahead) const { return tokens_[end_ - n_ahead]; }
  Sequence::OutRows next_row(size_t n_ahead) {
    const size_t row = end_ - n_ahead;
    return {logits_.data() + row * logits_.size() / kRows, embeddings_.data() + row * embeddings_.size() / kRows};
  }

 private:
  static constexpr size_t kRows = kMostGuesses + 1;
  static_assert(kRows <= model::kLogitRows);

  std::array<int32_t, kRows> tokens_ = {};
  double drafts_right_ = 0.85;
  uint32_t since_draft_ = 0;       // tokens since the last draft
  size_t end_ = 1;                 // tokens_[1, end_) are the guesses of the last step
  std::vector<float> logits_;      // (kRows, n_vocab)
  std::vector<float> embeddings_;  // (kRows, n_embd)
};

}  // namespace orrery::engine
