// From a conversation to the tokens that the model reads: renders and tokenizes it, drops the oldest turns that do not fit, and keeps
// generated ids whose text has not changed. (A tokenizer often splits the same text in another way; then the KV would be computed again for
// nothing.)
//
// Conversations come from strangers and may have any length. So the work is a few passes over the text, a rendered text is no longer than
// the context can hold, and a flag ends the work within milliseconds.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/engine/session/session.h"

namespace orrery::engine {

// An answer that goes on, as the model writes it: behind the prompt for an answer, its reasoning and its content, with marks around them.
struct AnswerPart {
  std::string text;
  bool is_mark = false;  // the template's own text, which may be control tokens
};

struct Prompt {
  std::vector<int32_t> tokens;     // the whole sequence
  size_t n_dropped = 0;            // the new Conversation::n_dropped, if the prompt is used
  uint32_t n_renderings = 0;       // how often the template ran
  std::string end;                 // the last bytes of the rendering, for text::format::opening()
  std::vector<AnswerPart> answer;  // what stands behind the rendering, if an answer goes on
};

// Whether the conversation's last message is an answer that can go on: an assistant's, text alone. invalid_argument: why not.
Status check_can_continue(const Conversation& conversation);
// Its content, and its reasoning if the template knows of reasoning.
std::string content_of_last(const Conversation& conversation);
std::string reasoning_of_last(const Conversation& conversation);

// The prompt of the session's conversation.
//   room     tokens that should stay free for the answer, if old turns may be dropped
//   cancel   another thread sets it to end the call with Code::cancelled; may be null
//   continues  the last message is an answer that goes on (check_can_continue()): the prompt is that of the messages before it, and the
//              answer's text stands behind it, as if the model had just written it. No template sees the message: some rewrite it
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
Result<Prompt> conversation_prompt(Session* session, uint32_t room, const std::atomic<bool>* cancel = nullptr, bool continues = false);

// Replaces tokens of `wanted` by tokens of `held` that spell the same bytes, as long as all earlier bytes and special tokens are equal.
// Takes linear time.
void keep_held_ids(const text::Tokenizer& tokenizer, Span<const int32_t> held, std::vector<int32_t>* wanted);

}  // namespace orrery::engine
