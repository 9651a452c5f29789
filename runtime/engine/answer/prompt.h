// From a conversation to the tokens that the model reads: renders and tokenizes it, drops the oldest turns that do not fit, and keeps
// generated ids whose text has not changed. (A tokenizer often splits the same text in another way; then the KV would be computed again for
// nothing.)
//
// Conversations come from strangers and may have any length. So the work is a few passes over the text, a rendered text is no longer than
// the context can hold, and a flag ends the work within milliseconds.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/engine/session/session.h"

namespace orrery::engine {

struct Prompt {
  std::vector<int32_t> tokens;  // the whole sequence
  size_t n_dropped = 0;         // the new Conversation::n_dropped, if the prompt is used
  uint32_t n_renderings = 0;    // how often the template ran
};

// The prompt of the session's conversation.
//   room     tokens that should stay free for the answer, if old turns may be dropped
//   cancel   another thread sets it to end the call with Code::cancelled; may be null
//
// Overflow::drop_oldest. A turn begins at a user message and ends before the next one. Messages before the first user message belong to the
// first turn. Leading system and developer messages and the last turn always stay. If the prompt and `room` do not fit the context, the
// fewest oldest turns are dropped that leave a quarter of the context free, or `room` if that is more; all turns but the last if no number
// is enough. A bisection finds the number. It relies on prompts that get no longer when more turns are dropped: this holds for every
// template that prints messages one by one. Turns dropped for an earlier prompt stay dropped, unless the conversation has been cut back to
// them.
//
// Control tokens that a message spells out are text: they never act as control tokens.
//
// The call changes nothing of the session but its compiled template. context_full: the messages that must stay are longer than the context
// (bytes_requested: their tokens, or a lower bound if they have more than twice the context).
Result<Prompt> conversation_prompt(Session* session, uint32_t room, const std::atomic<bool>* cancel = nullptr);

// Replaces tokens of `wanted` by tokens of `held` that spell the same bytes, as long as all earlier bytes and special tokens are equal.
// Takes linear time.
void keep_held_ids(const text::Tokenizer& tokenizer, Span<const int32_t> held, std::vector<int32_t>* wanted);

}  // namespace orrery::engine
