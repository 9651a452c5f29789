// See sampling.h.
#include "sampling.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <memory>
#include <string_view>

#include "json_file.h"
#include "system/failure.h"
#include "terminal/output.h"

namespace orrery::tool {
namespace {

constexpr uint64_t kMost = std::numeric_limits<uint32_t>::max();

// One setting that holds a number. `model_key` is its name behind "general.sampling." in a GGUF file, nullptr if files have none.
struct Number {
  const char *name, *value, *help, *greedy_default, *chat_default, *model_key;
  double least, most;
  float orrery_generate_options::*real;  // one of the two is set
  uint32_t orrery_generate_options::*count;
};
using Options = orrery_generate_options;

constexpr Number kNumbers[] = {
    {"max-tokens", "N", "End the answer after N tokens, as in 200 or 2k; 0: no limit", "0", "1024", nullptr, 0, kMost, nullptr,
     &Options::max_tokens},
    {"temperature", "T", "Sampling temperature; 0: always the likeliest token", "0", "the model's, else 0.7", "temp", 0, 100,
     &Options::temperature, nullptr},
    {"top-k", "N", "Only the N likeliest tokens; 0: off", "0", "the model's, else 0", "top_k", 0, kMost, nullptr, &Options::top_k},
    {"top-p", "P", "Only the likeliest tokens whose probabilities add up to P; 1: off", "1", "the model's, else 0.95", "top_p", 0, 1,
     &Options::top_p, nullptr},
    {"min-p", "P", "Only tokens at least P times as likely as the likeliest; 0: off", "0", "the model's, else 0", "min_p", 0, 1,
     &Options::min_p, nullptr},
    {"repeat-penalty", "X", "Make recent tokens less likely; 1: off", "1", "the model's, else 1", "penalty_repeat", 0.01, 100,
     &Options::repetition_penalty, nullptr},
    {"frequency-penalty", "X", "Make a token less likely by the number of its occurrences", "0", "0", nullptr, -100, 100,
     &Options::frequency_penalty, nullptr},
    {"presence-penalty", "X", "Make a token less likely if it occurred at all", "0", "0", nullptr, -100, 100, &Options::presence_penalty,
     nullptr},
    {"penalty-tokens", "N", "Number of last tokens that the penalties count", "64", "the model's, else 64", "penalty_last_n", 0, kMost,
     nullptr, &Options::penalty_tokens},
};
constexpr const char* kSeedHelp = "The same seed gives the same answer";
constexpr const char* kStopHelp = "End the answer before TEXT";
constexpr const char* kBiasHelp = "Add VALUE to the logit of token ID, -inf bans it";
constexpr const char* kIgnoreEndHelp = "Continue after the model would end its answer";

// Throws UsageError, with `what` as the name.
void assign(const Number& number, const std::string& text, const std::string& what, Options* options) {
  if (number.real) {
    options->*number.real = static_cast<float>(parse_real(text, what, number.least, number.most));
  } else {
    options->*number.count =
        static_cast<uint32_t>(parse_tokens(text, what, static_cast<uint64_t>(number.least), static_cast<uint64_t>(number.most)));
  }
}

orrery_logit_bias parse_bias(const std::string& text, const std::string& what) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos) throw UsageError(what + ": '" + text + "' is not ID=VALUE");
  orrery_logit_bias bias;
  bias.token = static_cast<int32_t>(parse_integer(text.substr(0, equals), what, 0, std::numeric_limits<int32_t>::max()));
  const std::string value = text.substr(equals + 1);
  bias.bias = value == "-inf" ? -INFINITY : static_cast<float>(parse_real(value, what, -1e6, 1e6));
  return bias;
}

// The shortest digits that give the float again: 0.7, not 0.699999988.
std::string shown(float value) {
  char digits[32];
  const auto [end, problem] = std::to_chars(digits, digits + sizeof digits, value);
  return problem == std::errc() ? std::string(digits, end) : std::string();
}

std::string shown(const Number& number, const Options& options) {
  return number.real ? shown(options.*number.real) : std::to_string(options.*number.count);
}

// Help pages hold pointers, so the sentences live as long as the program.
const char* sentence(const std::string& text) {
  static std::vector<std::unique_ptr<std::string>> sentences;
  sentences.push_back(std::make_unique<std::string>(text));
  return sentences.back()->c_str();
}

}  // namespace

OptionGroup sampling_group(const SamplingDefaults& defaults) {
  OptionGroup group{"Sampling", {}};
  for (const Number& number : kNumbers) {
    const char* fallback = defaults.of_the_model ? number.chat_default : number.greedy_default;
    group.options.push_back(
        {sentence(std::string("--") + number.name), number.value, sentence(std::string(number.help) + " (default " + fallback + ").")});
  }
  group.options.push_back({"--seed", "S", sentence(std::string(kSeedHelp) + " (default 0).")});
  group.options.push_back({"--stop", "TEXT", sentence(std::string(kStopHelp) + "; may be given several times."), true});
  group.options.push_back({"--bias", "ID=VALUE", sentence(std::string(kBiasHelp) + "; may be given several times."), true});
  group.options.push_back({"--ignore-end", nullptr, sentence(std::string(kIgnoreEndHelp) + ".")});
  return group;
}

OptionGroup grammar_group() {
  return {"Form of the answer",
          {{"--schema", "FILE", "The answer is JSON that fits the JSON schema in FILE; a text that begins with { is the schema itself."},
           {"--grammar", "FILE", "The answer follows the GBNF grammar in FILE; a text with ::= is the grammar itself."},
           {"--regex", "EXPR", "The whole answer matches the regular expression (ECMA-262)."},
           {"--whitespace", "HOW", "With --schema, white space between the parts: free (default), compact or spaced."},
           {"--any-order", nullptr, "With --schema, the keys of an object may come in any order (default: the schema's)."}}};
}

OptionGroup calls_group() {
  return {"Calls of tools",
          {{"--tool-choice", "CHOICE",
            "With --tools: auto (default), none, required, ignored (calls are text), or the name of the tool to call."},
           {"--one-call", nullptr, "At most one call in an answer."},
           {"--split-thinking", nullptr,
            "Thinking is no part of the answer's text, and --schema and its kin begin after it. So with --tools, too."},
           {"--max-thinking", "N", "With --split-thinking or --tools: the thinking ends after N tokens (default 0: no limit)."}}};
}

Calls::Calls(const Args& args) {
  one_call = args.has("--one-call");
  split_thinking = args.has("--split-thinking");
  max_thinking = static_cast<uint32_t>(args.integer("--max-thinking", 0, UINT32_MAX, 0));
  const std::string* choice = args.find("--tool-choice");
  const bool given = args.has("--tools");
  if ((choice || one_call) && !given) throw UsageError(std::string(choice ? "--tool-choice" : "--one-call") + " needs --tools");
  if (max_thinking > 0 && !split_thinking && !given) throw UsageError("--max-thinking needs --split-thinking or --tools");
  if (!given) return;
  tools = ORRERY_TOOLS_AUTO;
  if (!choice) return;
  constexpr const char* kChoices[] = {"ignored", "auto", "none", "required"};  // by ORRERY_TOOLS_
  const auto* const known = std::find(std::begin(kChoices), std::end(kChoices), *choice);
  const bool is_name = known == std::end(kChoices);
  tools = is_name ? ORRERY_TOOLS_REQUIRED : static_cast<uint32_t>(known - kChoices);
  if (is_name) name = *choice;
}

void Calls::put(orrery_generate_options* options) const {
  options->tools = tools;
  options->tool_name = name.empty() ? nullptr : name.c_str();
  options->one_call = one_call;
  options->split_reasoning = split_thinking;
  options->max_reasoning_tokens = max_thinking;
}

Grammar Grammar::of_schema(const std::string& file_or_json) {
  Grammar grammar;
  const size_t first = file_or_json.find_first_not_of(" \t\r\n");
  grammar.source = first != std::string::npos && file_or_json[first] == '{' ? file_or_json : read_text(file_or_json);
  grammar.kind = ORRERY_GRAMMAR_JSON_SCHEMA;
  grammar.given = true;
  return grammar;
}

Grammar::Grammar(const Args& args) {
  const std::string *schema = args.find("--schema"), *gbnf = args.find("--grammar"), *regex = args.find("--regex");
  if ((schema != nullptr) + (gbnf != nullptr) + (regex != nullptr) > 1) throw UsageError("give one of --schema, --grammar and --regex");
  const std::string* spaces = args.find("--whitespace");
  if (spaces && !schema) throw UsageError("--whitespace needs --schema");
  if (args.has("--any-order") && !schema) throw UsageError("--any-order needs --schema");
  if (schema) *this = of_schema(*schema);
  if (gbnf) source = gbnf->find("::=") != std::string::npos ? *gbnf : read_text(*gbnf), given = true;
  if (regex) source = *regex, kind = ORRERY_GRAMMAR_REGEX, given = true;
  if (spaces) whitespace = static_cast<uint32_t>(parse_choice(*spaces, "--whitespace", {"free", "compact", "spaced"}));
  any_order = args.has("--any-order");
}

void Grammar::put(orrery_generate_options* options) const {
  if (!given) return;
  options->grammar = source.c_str();
  options->grammar_kind = kind;
  options->grammar_whitespace = whitespace;
  options->grammar_any_order = any_order;
}

Sampling::Sampling(const Args& args, const SamplingDefaults& defaults) : grammar_(args), calls_(args) {
  orrery_generate_options_init(&base_, sizeof base_);
  base_.temperature = static_cast<float>(defaults.temperature);
  base_.top_p = static_cast<float>(defaults.top_p);
  base_.max_tokens = defaults.max_tokens;
  for (const Number& number : kNumbers) {
    const std::string option = std::string("--") + number.name;
    const std::string* text = args.find(option.c_str());
    if (!text) continue;
    assign(number, *text, option, &base_);
    given_.emplace_back(number.name);
  }
  base_.seed = args.integer("--seed", 0, std::numeric_limits<uint64_t>::max(), base_.seed);
  base_.ignore_end = args.has("--ignore-end") ? 1 : 0;
  stop_ = args.all("--stop");
  for (const std::string& stop : stop_) {
    if (stop.empty()) throw UsageError("--stop: the empty text would end every answer");
  }
  for (const std::string& text : args.all("--bias")) bias_.push_back(parse_bias(text, "--bias"));
}

orrery_generate_options Sampling::options() const {
  orrery_generate_options options = base_;
  stop_pointers_.clear();
  for (const std::string& stop : stop_) stop_pointers_.push_back(stop.c_str());
  options.stop = stop_pointers_.data();
  options.n_stop = stop_pointers_.size();
  options.logit_bias = bias_.data();
  options.n_logit_bias = bias_.size();
  grammar_.put(&options);
  calls_.put(&options);
  return options;
}

std::string Sampling::take_from_model(const std::string& json) {
  std::string taken;
  walk_json(json, [&](std::string_view part, const std::string& key, const Json& value) {
    if (part != "metadata" || key.compare(0, 17, "general.sampling.") != 0 || !value.is_number()) return;
    for (const Number& number : kNumbers) {
      if (!number.model_key || key.compare(17, std::string::npos, number.model_key) != 0) continue;
      if (std::find(given_.begin(), given_.end(), number.name) != given_.end()) continue;
      const double wish = value.get<double>();
      if (!(wish >= number.least && wish <= number.most)) continue;
      if (number.real) {
        base_.*number.real = static_cast<float>(wish);
      } else if (wish == std::floor(wish)) {
        base_.*number.count = static_cast<uint32_t>(wish);
      } else {
        continue;
      }
      taken += (taken.empty() ? "" : ", ") + std::string(number.name) + " " + shown(number, base_);
    }
  });
  return taken;
}

std::vector<Sampling::Setting> Sampling::settings() const {
  std::vector<Setting> all;
  for (const Number& number : kNumbers) all.push_back({number.name, shown(number, base_), number.help});
  all.push_back({"seed", std::to_string(base_.seed), kSeedHelp});
  const auto joined = [](const std::vector<std::string>& texts) {
    std::string line;
    for (const std::string& text : texts) line += (line.empty() ? "" : ", ") + text;
    return line.empty() ? "none" : line;
  };
  std::vector<std::string> stops, biases;
  for (const std::string& stop : stop_) stops.push_back(dump_json(Json(stop), -1));
  for (const orrery_logit_bias& bias : bias_) biases.push_back(std::to_string(bias.token) + "=" + shown(bias.bias));
  all.push_back({"stop", joined(stops), std::string(kStopHelp) + "; - removes all"});
  all.push_back({"bias", joined(biases), std::string(kBiasHelp) + "; - removes all"});
  all.push_back({"ignore-end", base_.ignore_end ? "on" : "off", kIgnoreEndHelp});
  return all;
}

bool Sampling::set(const std::string& name, const std::string& value) {
  for (const Number& number : kNumbers) {
    if (name != number.name) continue;
    assign(number, value, name, &base_);
    given_.push_back(name);
    return true;
  }
  if (name == "seed") {
    base_.seed = parse_integer(value, name, 0, std::numeric_limits<uint64_t>::max());
  } else if (name == "ignore-end") {
    base_.ignore_end = parse_choice(value, name, {"off", "on"}) == 1 ? 1 : 0;
  } else if (name == "stop") {
    if (value == "-") {
      stop_.clear();
    } else {
      stop_.push_back(value);
    }
  } else if (name == "bias") {
    if (value == "-") {
      bias_.clear();
    } else {
      bias_.push_back(parse_bias(value, name));
    }
  } else {
    return false;
  }
  return true;
}

}  // namespace orrery::tool
