// Drafts: guesses that cost steps of their own.
//
// Of a draft model (Speculate::draft): a smaller model of the same vocabulary drafts the likeliest tokens behind the sequence's own, and the
// sequence verifies them in one step. The draft's sequence follows lazily. Before each draft it keeps the common prefix of its tokens and
// the sequence's, and computes the others. So prompts, rewinds, edits, loaded files and rejected drafts need no notice, and its KV never
// belongs to other tokens. A fork shares its pages. Its KV decides about the guesses alone, never about an answer.
//
// Of the model's head (Speculate::mtp): the head drafts tokens out of the model's hidden states (model/blocks/guessing_head.h). Cell c of
// the head's sequence is that of position head_base_ + c. It reads the token behind that position, and the model's hidden state of it.
// Hidden states come with the sequence's steps and wait in HiddenRows until the head reads them: with the next chunk of a prompt, or before
// a draft. Cells of a draft's later tokens read the head's own hidden states, and are dropped with the draft.
//
// The head follows lazily, as a draft model does: it drops cells of other tokens when it reads on. Where hidden states are missing (a
// prefix that was not computed, a loaded file), the head starts again after the missing positions. The head's KV changes the guesses only,
// never the answer.
#include <algorithm>
#include <array>

#include "runtime/base/clock.h"
#include "runtime/engine/decoder/decoder.h"

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

int32_t likeliest(Span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

}  // namespace

Result<size_t> Decoder::draft_by_policy(size_t n, const std::atomic<bool>* cancel, Drafter* drafter) {
  struct Ends {  // also behind an exception
    Sequence* sequence;
    ~Ends() { sequence->end_draft(); }
  } const ends{&sequence_};
  const Sequence::OutRows row = guesses_->rows();
  const Span<const float> logits(row.logits, sequence_.n_logits());
  for (size_t n_drafted = 0; n_drafted < n; ++n_drafted) {
    // Settling in the middle of a draft would choose by its tokens.
    if (n_drafted > 0 && !sequence_.resident()->has_room()) return n_drafted;
    ORRERY_TRY(sequence_.decode_draft(row, cancel));
    const int32_t token = drafter ? drafter->draft(logits, sequence_.tokens()) : likeliest(logits);
    if (token < 0) return n_drafted;
    guesses_->tokens()[1 + n_drafted] = token;
    sequence_.push_generated(token);
  }
  return n;
}

int32_t Decoder::likeliest_draft(Span<const float> logits, size_t n_drafted, Drafter* drafter) const {
  return drafter ? drafter->likeliest(logits, {guesses_->tokens() + 1, n_drafted}) : likeliest(logits);
}

Status Decoder::follow(const std::atomic<bool>* cancel) {
  const Span<const int32_t> tokens = sequence_.tokens();
  draft_->truncate(std::min(draft_->reuse_prefix(tokens), static_cast<uint32_t>(tokens.size()) - 1));
  const uint32_t held = draft_->n_computed(), missing = static_cast<uint32_t>(tokens.size()) - 1 - held;
  constexpr uint32_t kFewTokens = 2;  // by steps of one token: behind a draft that was right to its end, one is missing
  if (missing > kFewTokens) return draft_->prefill(tokens.subspan(held, missing), cancel, nullptr);
  for (uint32_t i = 0; i < missing; ++i) {
    draft_->push_generated(tokens[held + i]);
    ORRERY_TRY(draft_->decode(nullptr, cancel));
  }
  return ok_status();
}

Result<size_t> Decoder::draft_by_model(size_t n, const std::atomic<bool>* cancel, Drafter* drafter) {
  const Timed timed(&sequence_.stats());
  ORRERY_TRY(follow(cancel));
  int32_t token = guesses_->tokens()[0];
  for (size_t i = 1; i <= n; ++i) {
    draft_->push_generated(token);
    ORRERY_TRY(draft_->decode(nullptr, cancel));
    ORRERY_TRY(draft_->fetch_logits(cancel));
    const size_t n_known = std::min(draft_->n_logits(), sequence_.n_logits());  // without padding of its own
    token = likeliest_draft(draft_->logits().first(n_known), i - 1, drafter);
    if (token < 0) return i - 1;
    guesses_->tokens()[i] = token;
  }
  return n;
}

Status Decoder::feed_head(int32_t next, bool wants_logits, const std::atomic<bool>* cancel) {
  HiddenRows* const hidden = sequence_.hidden();
  const uint32_t end = sequence_.n_computed();
  if (!hidden || end == 0 || !hidden->has(end - 1) || draft_->parked()) return ok_status();
  Sequence& head = *draft_;
  const auto token = [&](uint32_t position) { return position < end ? sequence_.tokens()[position] : next; };
  // The cells whose tokens are still the sequence's. The last position's is computed again for its logits.
  const uint32_t most = std::min(head.n_computed(), std::max(end, head_base_) - head_base_ - (wants_logits && end > head_base_ ? 1u : 0u));
  uint32_t kept = 0;
  while (kept < most && head.tokens()[kept] == token(head_base_ + kept + 1)) ++kept;
  head.truncate(kept);
  uint32_t at = head_base_ + kept;
  // Behind a rewind one hidden state is missing. The next one stands in for it, so that the cells before keep their places.
  const bool one_missing = kept > 0 && at + 1 == hidden->first();
  if ((at < hidden->first() && !one_missing) || at >= end) {
    head.truncate(0);
    at = head_base_ = hidden->first();
  }
  std::array<int32_t, kHeadChunk> tokens;
  while (at < end) {
    const bool stands_in = at < hidden->first();
    const uint32_t n = stands_in ? 1 : std::min(end - at, head.options().chunk());
    for (uint32_t i = 0; i < n; ++i) tokens[i] = token(at + i + 1);
    ORRERY_TRY(head.read_hidden({tokens.data(), n}, hidden->row(std::max(at, hidden->first())), wants_logits && at + n == end, cancel));
    at += n;
  }
  hidden->read();
  return ok_status();
}

Result<size_t> Decoder::draft_by_head(size_t n, const std::atomic<bool>* cancel, Drafter* drafter) {
  const Timed timed(&sequence_.stats());
  const uint32_t end = sequence_.n_computed();
  if (end == 0 || !sequence_.hidden()->has(end - 1)) return size_t{0};
  ORRERY_TRY(feed_head(guesses_->tokens()[0], true, cancel));
  Sequence& head = *draft_;
  const uint32_t certain = head.n_computed();
  size_t n_drafted = 0;
  Status status = ok_status();
  for (;;) {
    const int32_t token = likeliest_draft(head.logits(), n_drafted, drafter);
    if (token < 0) break;
    guesses_->tokens()[++n_drafted] = token;
    if (n_drafted == n) break;
    status = head.read_hidden({&token, 1}, head.embedding().data(), true, cancel);
    if (!status.ok()) break;
  }
  head.truncate(certain);
  ORRERY_TRY(std::move(status));
  return n_drafted;
}

}  // namespace orrery::engine
