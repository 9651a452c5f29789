// One answer, from orrery_generate() to its last event. The text is streamed to an Output as it is generated. Prefill
// progress goes to stderr. Ctrl-C stops the answer at any point. chat, run, bench and demo use it; each begins its
// own generation.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "api.h"
#include "system/terminal.h"
#include "terminal/output.h"

namespace orrery::tool {

struct TokenRecord {
  int32_t id;
  float logprob;
  std::string bytes;
  std::vector<orrery_token_logprob> top;
};

struct Answer {
  std::string text;
  std::vector<TokenRecord> tokens;  // empty unless AnswerWishes::tokens
  uint32_t finish_reason = 0, stop_index = 0;
  bool complete = false;  // whole by its grammar
  std::string thinking;   // where it is told apart
  struct Call {
    std::string name, id, arguments;  // arguments: a JSON object
  };
  std::vector<Call> calls;
  uint64_t prompt_tokens = 0, reused_tokens = 0, generated_tokens = 0;
  uint64_t first_token_us = 0, prefill_us = 0, decode_us = 0;  // from orrery_event
  uint64_t read_tokens = 0;                                    // of the prompt, reused tokens among them, when the last PROGRESS came
  double decode_seconds = 0;                                   // from the first token to the last, measured by the tool's clock
  // Tokens per second. Prefill gives the first token, so N tokens are N-1 decode steps.
  double prefill_rate() const;
  double decode_rate() const;
  bool interrupted() const { return finish_reason == ORRERY_FINISH_CANCELLED; }
};

struct AnswerWishes {
  // Receives the text as it is generated, in whole characters, and an empty text at its end. Without it the text goes only
  // into Answer::text.
  std::function<void(std::string_view)> stream;
  std::function<void(std::string_view)> thinking;  // the same of thinking that is told apart
  bool tokens = false;
};

// A stream to an Output, flushed after each piece. Lines of a terminal break between words; `column`: where the answer begins.
std::function<void(std::string_view)> stream_to(Output& out, size_t column = 0);

// An Interrupts must be alive. Throws ApiError on every failure, also for errors in the conversation or its template.
// The generation is over after a failure.
Answer take_answer(orrery_generation* generation, const AnswerWishes& wishes);

double per_second(uint64_t count, uint64_t microseconds);  // 0 if no time passed

const char* finish_name(uint32_t finish_reason);  // "end", "stop", "length", "context", "cancelled", "calls"

Generation begin_answer(orrery_session* session, const orrery_generate_options& options);
Generation begin_continuation(orrery_session* session, const std::vector<int32_t>& tokens, const orrery_generate_options& options);

void add_message(orrery_session* session, const char* role, const std::string& content);

// "4,021 prompt tokens (0 reused) at 2100/s, first token after 1.91 s, 12 tokens at 41.2/s". A rate that was not measured is
// left out: "31 prompt tokens (all reused), first token after 0.02 s, 1 token".
std::string speed_line(const Answer& answer);

}  // namespace orrery::tool
