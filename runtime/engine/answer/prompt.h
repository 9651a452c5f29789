// From a conversation to the tokens that the model reads: rendering, tokenizing, dropping the oldest turns where they
// no longer fit, and keeping the ids that were generated where their text is unchanged (a tokenizer would often split
// the same text otherwise, and the KV would be computed again for nothing).
//
// Conversations come from strangers and may be of any length. So nothing here takes more than a few passes over their
// text, a rendered text is no longer than the context can hold, and a flag ends all of it within milliseconds.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/engine/session/session.h"

namespace orrery::engine {

struct Prompt {
  std::vector<int32_t> tokens;   // from the first token of the sequence on
  size_t n_dropped = 0;          // for Conversation::n_dropped, once the prompt is used
  uint32_t n_renderings = 0;     // how often the template ran
};

// The prompt of the session's conversation.  `room`: tokens that should stay free for the answer, where old turns may
// be dropped for them.  `cancel` (may be null): set by another thread to end it, as Code::cancelled.
//
// Overflow::drop_oldest.  A turn begins at a user message and ends before the next one.  What stands before the first
// user message goes with the first turn; leading system and developer messages, and the last turn, stay.  Where the
// prompt and `room` do not fit the context, the fewest oldest turns are dropped that leave a quarter of the context, or
// `room` if that is more, free; all but the last if no number does.  A bisection finds that number.  It relies on
// prompts that get no longer by dropping more, which is so for every template that prints messages one by one.  Turns
// that were dropped for an earlier prompt stay dropped, unless the conversation has been cut back to them.
//
// Control tokens that a message spells out are text: they never act as control tokens.
//
// Changes nothing of the session but its compiled template. context_full: what may not be dropped is longer than the
// context (bytes_requested: its tokens, or a lower bound of them if it is more than twice too long).
Result<Prompt> conversation_prompt(Session* session, uint32_t room, const std::atomic<bool>* cancel = nullptr);

// Replaces tokens of `wanted` by those of `held` where both sequences are equal before them and spell the same bytes,
// special token by special token. Linear.
void keep_held_ids(const text::Tokenizer& tokenizer, Span<const int32_t> held, std::vector<int32_t>* wanted);

}  // namespace orrery::engine
