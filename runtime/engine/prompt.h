// From a conversation to the tokens that the model reads: rendering, tokenizing, dropping the oldest turns where they
// no longer fit, and keeping the ids that were generated where their text is unchanged (a tokenizer would often split
// the same text otherwise, and the KV would be computed again for nothing).
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/engine/session.h"

namespace orrery::engine {

// The prompt of the session's conversation, from the first token on.  `room`: tokens that should stay free for the
// answer.  context_full where it does not fit and may not be shortened.
// Control tokens that a message spells out are text: they never act as control tokens.
Result<std::vector<int32_t>> conversation_prompt(Session* session, uint32_t room);

// Replaces stretches of `wanted` between control tokens by the ids in `held`, where both stand for the same bytes and
// everything before them is equal.
void keep_held_ids(const text::Tokenizer& tokenizer, Span<const int32_t> held, std::vector<int32_t>* wanted);

}  // namespace orrery::engine
