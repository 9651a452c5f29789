// What requests of both kinds share: the model's name, sampling, stop strings, limits, streaming. Defaults are OpenAI's: temperature and
// top_p are 1, and without a seed each answer has its own.
#include <cmath>
#include <random>

#include "wire/fields.h"
#include "wire/request.h"

namespace orrery::server {
namespace {

constexpr size_t kMostStops = 16;
constexpr size_t kMostBiases = 1024;

void read_stops(Fields& fields, Request* request) {
  const Json* value = fields.take("stop");
  if (!value) return;
  const Json list = value->is_string() ? Json::array({*value}) : *value;
  if (!list.is_array() || list.size() > kMostStops) refuse_field("stop", "expected a string, or an array of at most 16 strings");
  for (const Json& each : list) {
    if (!each.is_string()) refuse_field("stop", "expected a string, or an array of at most 16 strings");
    const std::string text = each.get<std::string>();
    if (text.empty() || text.find('\0') != std::string::npos) refuse_field("stop", "a stop string is empty, or has a NUL character");
    request->stop.push_back(text);
  }
}

void read_biases(Fields& fields, Request* request) {
  const Json* value = fields.take("logit_bias");
  if (!value) return;
  if (!value->is_object() || value->size() > kMostBiases) refuse_field("logit_bias", "expected an object of at most 1024 tokens");
  for (const auto& item : value->items()) {
    const std::string& key = item.key();
    const bool digits = !key.empty() && key.size() <= 9 && key.find_first_not_of("0123456789") == std::string::npos;
    if (!digits) refuse_field("logit_bias", "'" + key.substr(0, 40) + "' is not the number of a token");
    if (!item.value().is_number()) refuse_field("logit_bias", "expected numbers from -100 to 100");
    const double bias = item.value().get<double>();
    if (!(bias >= -100 && bias <= 100)) refuse_field("logit_bias", "expected numbers from -100 to 100");
    request->logit_bias.push_back({static_cast<int32_t>(std::stol(key)), bias <= -100 ? -INFINITY : static_cast<float>(bias)});
  }
}

void read_streaming(Fields& fields, Request* request) {
  request->stream = fields.boolean("stream").value_or(false);
  const Json* value = fields.take("stream_options");
  if (!value) return;
  if (!request->stream) refuse_field("stream_options", "it goes with stream: true alone");
  Fields inner(*value, "stream_options");
  request->include_usage = inner.boolean("include_usage").value_or(false);
  inner.accept({"include_obfuscation"});
  inner.finish();
}

}  // namespace

void check_model(Fields& fields, const Options& options) {
  if (const auto name = fields.text("model"); name && *name != options.name)
    throw Refusal{404, "model: '" + name->substr(0, 100) + "' is not here; this server has '" + options.name + "'", "model",
                  "model_not_found"};
}

void read_common(Fields& fields, const Options& options, Request* request) {
  check_model(fields, options);
  fields.accept(
      {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "prediction"});
  fields.only("n", 1, "this server gives one answer to a request");

  request->temperature = static_cast<float>(fields.number("temperature", 0, 2).value_or(1));
  request->top_p = static_cast<float>(fields.number("top_p", 0, 1).value_or(1));
  if (request->top_p <= 0) request->temperature = 0, request->top_p = 1;  // the likeliest token alone
  request->min_p = static_cast<float>(fields.number("min_p", 0, 1).value_or(0));
  request->top_k = static_cast<uint32_t>(fields.integer("top_k", 0, INT32_MAX).value_or(0));
  request->repetition_penalty = static_cast<float>(fields.number("repetition_penalty", 0.01, 100).value_or(1));
  request->frequency_penalty = static_cast<float>(fields.number("frequency_penalty", -2, 2).value_or(0));
  request->presence_penalty = static_cast<float>(fields.number("presence_penalty", -2, 2).value_or(0));
  if (const auto seed = fields.integer("seed", INT64_MIN, INT64_MAX)) {
    request->seed = static_cast<uint64_t>(*seed);
  } else {
    std::random_device random;
    request->seed = (static_cast<uint64_t>(random()) << 32) | random();
  }
  const int64_t older = fields.integer("max_tokens", 1, INT32_MAX).value_or(0);
  const int64_t newer = request->chat ? fields.integer("max_completion_tokens", 1, INT32_MAX).value_or(0) : 0;
  if (older && newer && older != newer) refuse_field("max_tokens", "max_completion_tokens is another number");
  request->max_tokens = static_cast<uint32_t>(newer ? newer : older);
  if (options.max_tokens && (request->max_tokens == 0 || request->max_tokens > options.max_tokens))
    request->max_tokens = options.max_tokens;

  read_stops(fields, request);
  read_biases(fields, request);
  read_streaming(fields, request);
}

orrery_generate_options Request::options(std::vector<const char*>* stops) const {
  auto o = defaults(&orrery_generate_options_init);
  o.max_tokens = max_tokens;
  o.temperature = temperature;
  o.top_p = top_p;
  o.min_p = min_p;
  o.top_k = top_k;
  o.seed = seed;
  o.repetition_penalty = repetition_penalty;
  o.frequency_penalty = frequency_penalty;
  o.presence_penalty = presence_penalty;
  stops->clear();
  for (const std::string& each : stop) stops->push_back(each.c_str());
  o.stop = stops->data();
  o.n_stop = stops->size();
  o.logit_bias = logit_bias.data();
  o.n_logit_bias = logit_bias.size();
  o.n_logprobs = n_logprobs;
  if (!grammar.empty()) o.grammar = grammar.c_str(), o.grammar_kind = grammar_kind;
  o.tools = tool_choice;
  if (!tool_name.empty()) o.tool_name = tool_name.c_str();
  o.one_call = one_call;
  o.continue_last = continue_last;
  o.split_reasoning = chat;
  return o;
}

}  // namespace orrery::server
