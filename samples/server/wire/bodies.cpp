// See bodies.h.
#include "wire/bodies.h"

#include <utility>

#include "base/api.h"

namespace orrery::server {
namespace {

Json heading_json(const Heading& heading, bool chunk) {
  const char* object = !heading.chat ? "text_completion" : chunk ? "chat.completion.chunk" : "chat.completion";
  return {{"id", heading.id}, {"object", object}, {"created", heading.created}, {"model", heading.model}};
}

Json bytes_json(const std::string& text) {
  Json bytes = Json::array();
  for (const char c : text) bytes.push_back(static_cast<unsigned char>(c));
  return bytes;
}

Json chat_logprobs(const std::vector<Json>& tokens) { return {{"content", tokens}, {"refusal", nullptr}}; }

// The older shape: four lists. Offsets count characters of the answer.
Json completion_logprobs(const std::vector<Json>& tokens, uint64_t offset) {
  Json texts = Json::array(), logprobs = Json::array(), tops = Json::array(), offsets = Json::array();
  for (const Json& token : tokens) {
    Json top = Json::object();
    for (const Json& each : token["top_logprobs"]) top[each["token"].get<std::string>()] = each["logprob"];
    texts.push_back(token["token"]);
    logprobs.push_back(token["logprob"]);
    tops.push_back(std::move(top));
    offsets.push_back(offset);
    offset += characters(token["token"].get<std::string>());
  }
  return {{"tokens", texts}, {"token_logprobs", logprobs}, {"top_logprobs", tops}, {"text_offset", offsets}};
}

}  // namespace

uint64_t characters(const std::string& text) {
  uint64_t n = 0;
  for (const char c : text) n += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return n;
}

Json token_json(const orrery_vocab* vocab, const orrery_event& event) {
  const std::string text(event.text ? event.text : "", event.text_bytes);
  Json top = Json::array();
  for (uint32_t i = 0; i < event.n_top; ++i) {
    const std::string other = detokenize(vocab, event.top[i].token);
    top.push_back({{"token", other}, {"logprob", event.top[i].logprob}, {"bytes", bytes_json(other)}});
  }
  return {{"token", text}, {"logprob", event.logprob}, {"bytes", bytes_json(text)}, {"top_logprobs", std::move(top)}};
}

const char* finish_name(uint32_t finish_reason) {
  switch (finish_reason) {
    case ORRERY_FINISH_LENGTH:
    case ORRERY_FINISH_CONTEXT: return "length";
    case ORRERY_FINISH_CALLS: return "tool_calls";
    default: return "stop";
  }
}

Json usage_json(const Usage& usage, bool chat) {
  Json json = {{"prompt_tokens", usage.prompt_tokens},
               {"completion_tokens", usage.generated_tokens},
               {"total_tokens", usage.prompt_tokens + usage.generated_tokens},
               {"prompt_tokens_details", {{"cached_tokens", usage.reused_tokens}}}};
  if (chat) json["completion_tokens_details"] = {{"reasoning_tokens", usage.reasoning_tokens}};
  return json;
}

Json chat_chunk(const Heading& heading, Json delta, const std::vector<Json>* logprobs, const char* finish) {
  Json json = heading_json(heading, true);
  json["choices"] = Json::array({{{"index", 0},
                                  {"delta", std::move(delta)},
                                  {"logprobs", logprobs ? chat_logprobs(*logprobs) : Json(nullptr)},
                                  {"finish_reason", finish ? Json(finish) : Json(nullptr)}}});
  return json;
}

Json completion_chunk(const Heading& heading, const std::string& text, const std::vector<Json>* logprobs, uint64_t offset,
                      const char* finish) {
  Json json = heading_json(heading, true);
  json["choices"] = Json::array({{{"index", 0},
                                  {"text", text},
                                  {"logprobs", logprobs ? completion_logprobs(*logprobs, offset) : Json(nullptr)},
                                  {"finish_reason", finish ? Json(finish) : Json(nullptr)}}});
  return json;
}

Json usage_chunk(const Heading& heading, const Usage& usage) {
  Json json = heading_json(heading, true);
  json["choices"] = Json::array();
  json["usage"] = usage_json(usage, heading.chat);
  return json;
}

Json call_delta(uint32_t index, const Call& call, bool begins) {
  Json json = {{"index", index}};
  if (begins) json["id"] = call.id, json["type"] = "function", json["function"]["name"] = call.name;
  json["function"]["arguments"] = call.arguments;
  return {{"tool_calls", Json::array({std::move(json)})}};
}

Json whole_body(const Heading& heading, const Piece& piece, bool logprobs, const char* finish, const Usage& usage) {
  Json json = heading_json(heading, false);
  Json choice = {{"index", 0}};
  if (heading.chat) {
    Json message = {{"role", "assistant"}, {"content", piece.content}, {"refusal", nullptr}};
    if (piece.content.empty() && !piece.calls.empty()) message["content"] = nullptr;
    if (!piece.reasoning.empty()) message["reasoning_content"] = piece.reasoning;
    for (const Call& call : piece.calls)
      message["tool_calls"].push_back(
          {{"id", call.id}, {"type", "function"}, {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
    choice["message"] = std::move(message);
    choice["logprobs"] = logprobs ? chat_logprobs(piece.logprobs) : Json(nullptr);
  } else {
    choice["text"] = piece.content;
    choice["logprobs"] = logprobs ? completion_logprobs(piece.logprobs, 0) : Json(nullptr);
  }
  choice["finish_reason"] = finish;
  json["choices"] = Json::array({std::move(choice)});
  json["usage"] = usage_json(usage, heading.chat);
  return json;
}

std::string server_sent(const Json& json) { return "data: " + text_of(json) + "\n\n"; }

}  // namespace orrery::server
