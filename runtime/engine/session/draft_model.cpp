// The session of a draft model (Speculate::draft): a smaller model of the same vocabulary drafts the likeliest tokens behind a session's
// own, and the session verifies them in one step (Session::decode_next).
//
// The draft session follows lazily. Before each draft it keeps the common prefix of its tokens and the session's, and computes the others.
// So prompts, rewinds, edits, loaded files and rejected drafts need no notice, and its KV never belongs to other tokens. A fork shares its
// pages. Its KV decides about the guesses alone, never about an answer.
//
// The session of a model's head (Speculate::mtp) is one, too: the head drafts tokens out of the model's hidden states
// (model/blocks/guessing_head.h), and the model verifies them in one step (Session::decode_next).
//
// Cell c of the head's session is that of position head_base_ + c. It reads the token behind that position, and the model's hidden state of
// it. Hidden states come with the session's steps and wait in HiddenRows until the head reads them: with the next chunk of a prompt, or
// before a draft. Cells of a draft's later tokens read the head's own hidden states, and are dropped with the draft.
//
// The head follows lazily, as a draft model does: it drops cells of other tokens when it reads on. Where hidden states are missing (a
// prefix that was not computed, a loaded file), the head starts again after the missing positions. The head's KV changes the guesses only,
// never the answer.
#include <algorithm>
#include <array>

#include "runtime/base/clock.h"
#include "runtime/engine/session/session.h"
#include "runtime/engine/session/session_step.h"

namespace orrery::engine {

namespace {

// Adds the time of a draft to that of decoding.
class Timed {
 public:
  explicit Timed(SessionStats* stats) : stats_(*stats) {}
  ~Timed() { stats_.decode_us += now_us() - start_us_; }
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;

 private:
  SessionStats& stats_;
  const uint64_t start_us_ = now_us();
};

}  // namespace

Status Session::open_draft() {
  ORRERY_ASSIGN(draft_, open(options_.draft_model, options_.of_draft(n_context_)));
  return ok_status();
}

Status Session::follow(Span<const int32_t> tokens, const std::atomic<bool>* cancel) {
  truncate(std::min(reuse_prefix(tokens), static_cast<uint32_t>(tokens.size()) - 1));
  const uint32_t held = n_computed(), missing = static_cast<uint32_t>(tokens.size()) - 1 - held;
  constexpr uint32_t kFewTokens = 2;  // by steps of one token: behind a draft that was right to its end, one is missing
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
  const Timed timed(&stats_);
  ORRERY_TRY(draft_->follow(tokens_, cancel));
  int32_t token = tokens_.back();
  for (size_t i = 1; i <= n; ++i) {
    draft_->push_generated(token);
    ORRERY_TRY(draft_->decode(nullptr, cancel));
    ORRERY_TRY(draft_->fetch_logits(cancel));
    token =
        likeliest_draft(draft_->logits().first(std::min(draft_->n_logits(), n_logits())), i - 1, drafter);  // without padding of its own
    if (token < 0) return i - 1;
    guesses_->tokens()[i] = token;
  }
  return n;
}

Status Session::feed_head(int32_t next, bool wants_logits, const std::atomic<bool>* cancel) {
  Session& head = *draft_;
  const uint32_t end = n_computed();
  if (end == 0 || !hidden_->has(end - 1) || head.parked()) return ok_status();
  const auto token = [&](uint32_t position) { return position < end ? tokens_[position] : next; };
  // The cells whose tokens are still the session's. The last position's is computed again for its logits.
  const uint32_t most = std::min(head.n_computed(), std::max(end, head_base_) - head_base_ - (wants_logits && end > head_base_ ? 1u : 0u));
  uint32_t kept = 0;
  while (kept < most && head.tokens_[kept] == token(head_base_ + kept + 1)) ++kept;
  head.truncate(kept);
  uint32_t at = head_base_ + kept;
  // Behind a rewind one hidden state is missing. The next one stands in for it, so that the cells before keep their places.
  const bool one_missing = kept > 0 && at + 1 == hidden_->first();
  if ((at < hidden_->first() && !one_missing) || at >= end) {
    head.truncate(0);
    at = head_base_ = hidden_->first();
  }
  std::array<int32_t, kHeadChunk> tokens;
  while (at < end) {
    const bool stands_in = at < hidden_->first();
    const uint32_t n = stands_in ? 1 : std::min(end - at, head.options_.chunk());
    for (uint32_t i = 0; i < n; ++i) tokens[i] = token(at + i + 1);
    SessionStep::Request request{
        {tokens.data(), n}, n > 1 ? Phase::prefill : Phase::decode, cancel, wants_logits && at + n == end ? 1 : 0, head.logits_.data()};
    request.hidden = hidden_->row(std::max(at, hidden_->first()));
    ORRERY_TRY(SessionStep(&head, request).run());
    head.tokens_.insert(head.tokens_.end(), tokens.begin(), tokens.begin() + n);
    head.made_.resize(head.tokens_.size(), 0);
    at += n;
  }
  hidden_->read();
  return ok_status();
}

Result<size_t> Session::draft_by_head(size_t n, const std::atomic<bool>* cancel, Drafter* drafter) {
  const Timed timed(&stats_);
  if (n_computed() == 0 || !hidden_->has(n_computed() - 1)) return size_t{0};
  ORRERY_TRY(feed_head(tokens_.back(), true, cancel));
  Session& head = *draft_;
  const uint32_t certain = head.n_computed();
  size_t n_drafted = 0;
  Status status = ok_status();
  for (;;) {
    const int32_t token = likeliest_draft(head.logits_, n_drafted, drafter);
    if (token < 0) break;
    guesses_->tokens()[++n_drafted] = token;
    if (n_drafted == n) break;
    SessionStep::Request request{{&token, 1}, Phase::decode, cancel, 1, head.logits_.data()};
    request.hidden = head.embedding_.data();
    status = SessionStep(&head, request).run();
    if (!status.ok()) break;
    head.push_generated(token);
  }
  head.truncate(certain);
  ORRERY_TRY(std::move(status));
  return n_drafted;
}

}  // namespace orrery::engine
