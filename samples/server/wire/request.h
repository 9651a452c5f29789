// One request as the engine takes it. read_chat() and read_completion() make it of a body: every field is checked here, and everything
// that this server cannot do is refused by the field's name.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/api.h"
#include "base/options.h"
#include "base/refusal.h"

namespace orrery::server {

class Fields;

struct Request {
  bool chat = false;
  bool stream = false, include_usage = false;

  // chat
  std::vector<std::string> messages;  // each a JSON object
  std::string tools, variables;       // JSON for the template; empty: none
  uint32_t tool_choice = ORRERY_TOOLS_IGNORED;
  std::string tool_name;
  bool one_call = false;
  bool continue_last = false;  // the last message is an answer that goes on

  // completions: text, or tokens
  std::string prompt;
  std::vector<int32_t> prompt_tokens;
  bool prompt_is_tokens = false;

  // The answer's form. The schema stays as the client wrote it.
  std::string grammar;
  uint32_t grammar_kind = ORRERY_GRAMMAR_JSON_SCHEMA;

  float temperature = 1, top_p = 1, min_p = 0, repetition_penalty = 1, frequency_penalty = 0, presence_penalty = 0;
  uint32_t top_k = 0, max_tokens = 0;
  uint64_t seed = 0;
  std::vector<std::string> stop;
  std::vector<orrery_logit_bias> logit_bias;
  bool logprobs = false;
  uint32_t n_logprobs = 0;

  // Points into this request, which must live as long as the call.
  orrery_generate_options options(std::vector<const char*>* stops) const;
};

Request read_chat(const Json& body, const Options& options);
Request read_completion(const Json& body, const Options& options);

// The field "model", which may have this server's name alone.
void check_model(Fields& fields, const Options& options);
// What both kinds have in common: the model's name, sampling, stops, limits, streaming.
void read_common(Fields& fields, const Options& options, Request* request);

}  // namespace orrery::server
