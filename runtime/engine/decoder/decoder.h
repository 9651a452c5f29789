// Decodes the tokens of a sequence: it guesses tokens that may follow, computes them in one step with the next token, and takes the right
// ones. Guesses change no token, no logit and no KV of the sequence.
//
// Guesses come from the sequence's own tokens (ngrams.h), from its resident KV, from a draft model, or from the model's head
// (draft_model.cpp). Sequences of one model without guesses may compute their tokens in one step.
#pragma once

#include <atomic>
#include <exception>
#include <memory>

#include "runtime/base/span.h"
#include "runtime/base/status.h"
#include "runtime/engine/decoder/guesses.h"
#include "runtime/engine/sequence/sequence.h"

namespace orrery::engine {

// What an answer knows about its next tokens: chooses tokens of a draft as the sampler would, and checks guesses.
class Drafter {
 public:
  // The token that would follow `tokens`; -1: none.
  virtual int32_t draft(Span<const float> logits, Span<const int32_t> tokens) = 0;
  // The likeliest token that may follow `guesses`, by a draft model's logits; -1: none.
  virtual int32_t likeliest(Span<const float> logits, Span<const int32_t> guesses) = 0;
  // The number of first `guesses` that the answer may hold.
  virtual size_t n_allowed(Span<const int32_t> guesses) = 0;
  // Tokens that the answer's form demands, most of them at most. Returns their number.
  virtual size_t forced(int32_t* tokens, size_t most) = 0;

 protected:
  ~Drafter() = default;
};

class Decoder final : SequenceFollower {
 public:
  // draft: the sequence of options().draft_model, or null. The decoder follows `sequence`, which outlives it.
  Decoder(Sequence* sequence, std::unique_ptr<Sequence> draft);
  ~Decoder() { sequence_.set_follower(nullptr); }
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  // As Sequence::decode(). With options().speculate, the step also computes up to `most_guesses` tokens that may follow. When
  // push_generated() adds the guessed token, the next decode() has its logits already. drafter: chooses the drafted tokens of
  // Speculate::policy; null: the likeliest. Speculate::draft and mtp take the likeliest.
  Status decode(Shortlist* shortlist, const std::atomic<bool>* cancel, uint32_t most_guesses, Drafter* drafter);
  // The calls of decode() for several sequences of one model, at most kMostTogether. Their steps are computed at once; none makes guesses.
  // Sets each call's status and exception. A call changes its sequence as decode() does.
  struct Call {
    Decoder* decoder = nullptr;
    Shortlist* shortlist = nullptr;
    const std::atomic<bool>* cancel = nullptr;
    Status status;
    std::exception_ptr thrown;
  };
  static void decode_together(Span<Call> calls);
  // Whether decode_together() may take the sequence, which has a token to compute.
  bool decodes_together() const;

  Sequence* draft() const { return draft_.get(); }  // the sequence of the draft model or the head; null without one
  // A decoder of a fork of the sequence: its draft is a fork, too.
  Result<std::unique_ptr<Decoder>> fork(Sequence* fork_of_sequence);

 private:
  Status before_chunk(int32_t first, const std::atomic<bool>* cancel) override { return feed_head(first, false, cancel); }
  void before_cut(uint32_t n_tokens) override {
    if (guesses_) guesses_->ngrams.truncate(sequence_.tokens(), n_tokens);
  }
  // Fills guesses_->tokens() with at most `most` tokens that pay, behind the sequence's. Returns their number.
  Result<size_t> guess(uint32_t most, const std::atomic<bool>* cancel, Drafter* drafter);
  // By the resident KV, by the draft model, by the head: of at most n tokens.
  Result<size_t> draft_by_policy(size_t n, const std::atomic<bool>* cancel, Drafter* drafter);
  Result<size_t> draft_by_model(size_t n, const std::atomic<bool>* cancel, Drafter* drafter);
  Result<size_t> draft_by_head(size_t n, const std::atomic<bool>* cancel, Drafter* drafter);
  // The token that a draft model or a head chooses behind n_drafted tokens of a draft; -1: none.
  int32_t likeliest_draft(Span<const float> logits, size_t n_drafted, Drafter* drafter) const;
  // The draft sequence computes all of the sequence's tokens but the last.
  Status follow(const std::atomic<bool>* cancel);
  // Lets the head read the hidden states that wait. next: the token behind the computed ones. wants_logits: the head's sequence then has the
  // logits behind it, and its own hidden state.
  Status feed_head(int32_t next, bool wants_logits, const std::atomic<bool>* cancel);
  GuessCosts guess_costs() const;

  Sequence& sequence_;
  std::unique_ptr<Guesses> guesses_;  // null: options().speculate is off
  std::unique_ptr<Sequence> draft_;   // its tokens follow before each draft (follow(), feed_head())
  uint32_t head_base_ = 0;            // position of the head's first cell
};

}  // namespace orrery::engine
