#include "runtime/engine/decoder/decoder.h"

#include <algorithm>
#include <array>
#include <optional>

#include "runtime/engine/sequence/sequence_step.h"

namespace orrery::engine {

Decoder::Decoder(Sequence* sequence, std::unique_ptr<Sequence> draft) : sequence_(*sequence), draft_(std::move(draft)) {
  if (sequence->options().speculate != Speculate::off)
    guesses_ = std::make_unique<Guesses>(sequence->model().description(), sequence->n_context());
  sequence->set_follower(this);
}

Result<std::unique_ptr<Decoder>> Decoder::fork(Sequence* fork_of_sequence) {
  std::unique_ptr<Sequence> draft;
  if (draft_) {
    ORRERY_ASSIGN(draft, draft_->fork());
  }
  auto child = std::make_unique<Decoder>(fork_of_sequence, std::move(draft));
  child->head_base_ = head_base_;
  return child;
}

Status Decoder::decode(Shortlist* shortlist, const std::atomic<bool>* cancel, uint32_t most_guesses, Drafter* drafter) {
  ORRERY_TRY(sequence_.finish_pages(cancel));
  const Span<const int32_t> tokens = sequence_.tokens();
  const uint32_t from = sequence_.n_computed();
  if (!guesses_ || from >= tokens.size()) return sequence_.decode(shortlist, cancel);
  const int32_t token = tokens[from];
  const uint32_t n_ahead = sequence_.n_ahead();
  const bool by_ngrams = sequence_.options().speculate == Speculate::ngram, right = n_ahead > 0 && guesses_->next(n_ahead) == token;
  if (n_ahead > 0 && !by_ngrams) guesses_->judge_draft(right);
  if (by_ngrams) guesses_->ngrams.read(tokens, sequence_.made());
  if (right) {
    const Sequence::OutRows row = guesses_->next_row(n_ahead);
    sequence_.take_ahead(row.logits, row.embeddings);
    return ok_status();
  }
  sequence_.drop_ahead();
  const SessionOptions& options = sequence_.options();
  const uint32_t asked = tokens.size() == from + 1 ? most_guesses : 0;
  const uint32_t most =
      std::min({options.speculate_tokens ? options.speculate_tokens : kMostGuesses, asked, sequence_.n_context() - from - 1});
  guesses_->tokens()[0] = token;
  ORRERY_ASSIGN(const size_t n, guess(most, cancel, drafter));
  if (n == 0) return sequence_.decode(shortlist, cancel);
  guesses_->computes(n);
  return sequence_.decode_ahead({guesses_->tokens(), 1 + n}, guesses_->rows(), cancel);
}

Result<size_t> Decoder::guess(uint32_t most, const std::atomic<bool>* cancel, Drafter* drafter) {
  const SessionOptions& options = sequence_.options();
  if (drafter && options.speculate != Speculate::policy)
    if (const size_t n = drafter->forced(guesses_->tokens() + 1, most); n > 0) return guesses_->n_that_pay(n, guess_costs());
  switch (options.speculate) {
    case Speculate::policy: {
      const size_t n = guesses_->draft_length(most, guess_costs(), sequence_.resident()->can_draft(sequence_.n_computed()));
      return n > 0 ? draft_by_policy(n, cancel, drafter) : Result<size_t>(n);
    }
    case Speculate::mtp: {
      const size_t n = draft_->parked() ? 0 : guesses_->draft_length(most, guess_costs(), true);
      if (n > 0) return draft_by_head(n, cancel, drafter);
      if (sequence_.hidden()->full()) ORRERY_TRY(feed_head(guesses_->tokens()[0], false, cancel));
      return n;
    }
    case Speculate::draft: {
      // The draft model has no embedding of a padding row that only this model has.
      const auto n_known = static_cast<int32_t>(draft_->n_logits());
      const Span<const int32_t> tokens = sequence_.tokens();
      const bool known = std::all_of(tokens.begin(), tokens.end(), [n_known](int32_t t) { return t < n_known; });
      const size_t n = draft_->parked() || !known ? 0 : guesses_->draft_length(most, guess_costs(), true);
      return n > 0 ? draft_by_model(n, cancel, drafter) : Result<size_t>(n);
    }
    default: {
      const Span<const int32_t> guess = guesses_->ngrams.guess(sequence_.tokens(), most, guess_costs());
      std::copy(guess.begin(), guess.end(), guesses_->tokens() + 1);
      return drafter ? drafter->n_allowed(guess) : guess.size();
    }
  }
}

GuessCosts Decoder::guess_costs() const {
  const SessionOptions& options = sequence_.options();
  if (options.guess_costs) return *options.guess_costs;
  const StepCost step = sequence_.model().runtime().device().step_cost();
  const uint32_t n_tokens = sequence_.n_computed();
  const auto weights = static_cast<double>(sequence_.model().weights().weights_bytes);
  const auto kv = static_cast<double>(sequence_.pages().read_bytes(n_tokens));
  // A drafted token also takes a step of its own, over the resident KV or of the draft model.
  double draft = options.speculate == Speculate::policy ? weights + static_cast<double>(sequence_.used_bytes()) : 0.0;
  if (draft_) {  // a head reads the model's output, too
    const model::Model& drafts = draft_->model().weights();
    draft = static_cast<double>(drafts.weights_bytes + (sequence_.hidden() ? drafts.output_bytes : 0)) +
            static_cast<double>(draft_->pages().read_bytes(n_tokens));
  }
  GuessCosts costs;
  for (size_t i = 0; i < costs.size(); ++i)
    costs[i] = (step.products[i] * weights + static_cast<double>(i + 1) * (step.attention * kv + draft)) / (weights + kv);
  return costs;
}

bool Decoder::decodes_together() const {
  if (guesses_ || sequence_.n_computed() + size_t{1} != sequence_.tokens().size()) return false;
  return SequenceStep(&sequence_, SequenceStep::of_next_token(sequence_)).shares();
}

void Decoder::decode_together(Span<Call> calls) {
  std::array<std::optional<SequenceStep>, static_cast<size_t>(kMostTogether)> steps;
  std::array<SequenceStep*, static_cast<size_t>(kMostTogether)> all;
  for (size_t i = 0; i < calls.size(); ++i) {
    Sequence& sequence = calls[i].decoder->sequence_;
    all[i] = &steps[i].emplace(&sequence, SequenceStep::of_next_token(sequence, calls[i].shortlist, calls[i].cancel));
  }
  SequenceStep::run_together({all.data(), calls.size()});
  for (size_t i = 0; i < calls.size(); ++i) {
    try {
      calls[i].status = steps[i]->take_status();
    } catch (...) {
      calls[i].thrown = std::current_exception();
    }
  }
}

}  // namespace orrery::engine
