// See reader.h.
#include "answers/reader.h"

#include <utility>

#include "wire/fields.h"

namespace orrery::server {

Refusal refusal_of(const ApiError& error) {
  switch (error.status) {
    case ORRERY_CONTEXT_FULL: return {400, error.what(), "messages", "context_length_exceeded"};
    case ORRERY_INVALID_ARGUMENT:
    case ORRERY_UNSUPPORTED:
    case ORRERY_UNSUPPORTED_TEMPLATE: return {400, error.what(), "", ""};
    case ORRERY_OUT_OF_DEVICE_MEMORY:
    case ORRERY_OUT_OF_PINNED_MEMORY:
    case ORRERY_OUT_OF_HOST_MEMORY: return {503, error.what(), "", "out_of_memory"};
    default: return {500, error.what(), "", orrery_status_name(error.status)};
  }
}

orrery_template_options template_options(const Request& request, const Options& options) {
  auto o = defaults(&orrery_template_options_init);
  if (!options.template_source.empty()) o.template_source = options.template_source.c_str();
  o.add_generation_prompt = !request.continue_last;
  if (!request.tools.empty()) o.tools_json = request.tools.c_str();
  if (!request.variables.empty()) o.variables_json = request.variables.c_str();
  return o;
}

Reader::Reader(const Options& options, const orrery_vocab* vocab, uint32_t context_tokens)
    : options_(options), vocab_(vocab), context_tokens_(context_tokens), info_(defaults(&orrery_vocab_info_init)) {
  call([&](orrery_error* error) { return orrery_vocab_get_info(vocab_, &info_, error); });
}

std::string Reader::render(const Request& request) const {
  std::string messages = "[";
  for (const std::string& message : request.messages) messages += (messages.size() > 1 ? "," : "") + message;
  messages += "]";
  const orrery_template_options o = template_options(request, options_);
  return sized<std::string>([&](char* text, size_t capacity, size_t* n, orrery_error* error) {
    return orrery_render_chat(vocab_, messages.c_str(), &o, text, capacity, n, error);
  });
}

void Reader::read(Job* job) const {
  Request request = [&] {
    const Json body = parse_body(job->body);
    return job->chat ? read_chat(body, options_) : read_completion(body, options_);
  }();
  job->body = std::string();
  if (request.chat) {
    job->prompt = tokenize(vocab_, render(request), ORRERY_TOKENIZE_SPECIAL);
  } else if (request.prompt_is_tokens) {
    job->prompt = std::move(request.prompt_tokens);
    for (const int32_t token : job->prompt)
      if (token >= info_.n_tokens) refuse_field("prompt", "the vocabulary has " + std::to_string(info_.n_tokens) + " tokens");
  } else {
    // A raw prompt is a program's own text: control tokens that it spells are control tokens.
    job->prompt = tokenize(vocab_, request.prompt, ORRERY_TOKENIZE_SPECIAL | (info_.add_bos ? ORRERY_TOKENIZE_BOS : 0));
    if (job->prompt.empty()) refuse_field("prompt", "it has no tokens");
  }
  if (job->prompt.size() > context_tokens_)
    throw Refusal{400,
                  "the prompt has " + std::to_string(job->prompt.size()) + " tokens, and the context " + std::to_string(context_tokens_),
                  request.chat ? "messages" : "prompt", "context_length_exceeded"};
  for (const orrery_logit_bias& bias : request.logit_bias)
    if (bias.token >= info_.n_tokens) refuse_field("logit_bias", "the vocabulary has " + std::to_string(info_.n_tokens) + " tokens");
  job->request = std::move(request);
}

}  // namespace orrery::server
