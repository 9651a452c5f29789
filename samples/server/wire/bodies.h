// The JSON of answers, in OpenAI's shapes. An answer is made of pieces; a piece is a chunk of a stream, or all pieces together are one
// body.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "orrery.h"
#include "base/refusal.h"

namespace orrery::server {

// What every object of one answer begins with.
struct Heading {
  bool chat = false;
  std::string id, model;
  int64_t created = 0;  // seconds since 1970
};

struct Call {
  std::string id, name, arguments;
};

// A part of an answer, or all of it.
struct Piece {
  std::string content, reasoning;
  std::vector<Call> calls;
  std::vector<Json> logprobs;  // of the content's tokens, as chat completions have them
};

struct Usage {
  uint64_t prompt_tokens = 0, reused_tokens = 0, generated_tokens = 0, reasoning_tokens = 0;
};

// One token: {"token", "logprob", "bytes", "top_logprobs"}.
Json token_json(const orrery_vocab* vocab, const orrery_event& event);
const char* finish_name(uint32_t finish_reason);  // "stop", "length", "tool_calls"
Json usage_json(const Usage& usage, bool chat);

// A chunk. `delta`: of chat answers. `finish`: nullptr, or the last chunk's reason.
Json chat_chunk(const Heading& heading, Json delta, const std::vector<Json>* logprobs, const char* finish);
Json completion_chunk(const Heading& heading, const std::string& text, const std::vector<Json>* logprobs, uint64_t offset,
                      const char* finish);
Json usage_chunk(const Heading& heading, const Usage& usage);
Json call_delta(uint32_t index, const Call& call, bool begins);
// The whole answer.
Json whole_body(const Heading& heading, const Piece& piece, bool logprobs, const char* finish, const Usage& usage);
std::string server_sent(const Json& json);  // "data: {...}\n\n"
uint64_t characters(const std::string& text);

}  // namespace orrery::server
