// The session of a draft model (Speculate::draft): a smaller model of the same vocabulary drafts the likeliest tokens behind a session's
// own, and the session verifies them in one step (Session::decode_next).
//
// The draft session follows lazily. Before each draft it keeps the common prefix of its tokens and the session's, and computes the others.
// So prompts, rewinds, edits, loaded files and rejected drafts need no notice, and its KV never belongs to other tokens. A fork shares its
// pages. Its KV decides about the guesses alone, never about an answer.
#include <algorithm>

#include "runtime/base/clock.h"
#include "runtime/engine/session/session.h"

namespace orrery::engine {

Status Session::open_draft() {
  ORRERY_ASSIGN(draft_, open(options_.draft_model, options_.of_draft(n_context_)));
  return ok_status();
}

Status Session::follow(Span<const int32_t> tokens, const std::atomic<bool>* cancel) {
  truncate(std::min(reuse_prefix(tokens), static_cast<uint32_t>(tokens.size()) - 1));
  const uint32_t held = n_computed(), missing = static_cast<uint32_t>(tokens.size()) - 1 - held;
  constexpr uint32_t kFewTokens = 2;   // by steps of one token: behind a draft that was right to its end, one is missing
  if (missing > kFewTokens) return prefill(tokens.subspan(held, missing), cancel, nullptr);
  for (uint32_t i = 0; i < missing; ++i) {
    push_generated(tokens[held + i]);
    ORRERY_TRY(decode(nullptr, cancel));
  }
  return ok_status();
}

int32_t Session::likeliest_draft(Span<const float> logits, size_t n_drafted, Drafter* drafter) const {
  if (drafter) return drafter->likeliest(logits, {guesses_->tokens() + 1, n_drafted});
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

Result<size_t> Session::draft_by_model(size_t n, const std::atomic<bool>* cancel, Drafter* drafter) {
  struct Timed {
    SessionStats& stats;
    const uint64_t start_us = now_us();
    ~Timed() { stats.decode_us += now_us() - start_us; }
  } timed{stats_};
  ORRERY_TRY(draft_->follow(tokens_, cancel));
  int32_t token = tokens_.back();
  for (size_t i = 1; i <= n; ++i) {
    draft_->push_generated(token);
    ORRERY_TRY(draft_->decode(nullptr, cancel));
    ORRERY_TRY(draft_->fetch_logits(cancel));
    token = likeliest_draft(draft_->logits().first(std::min(draft_->n_logits(), n_logits())), i - 1, drafter);   // without padding of its own
    if (token < 0) return i - 1;
    guesses_->tokens()[i] = token;
  }
  return n;
}

}  // namespace orrery::engine
