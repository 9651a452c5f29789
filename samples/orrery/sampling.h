// How an answer is sampled and where it ends. One table describes every sampling setting: its option on the command line, its
// name in the chat's /set, its range and its help. Values come from the command line, then from the model file's own
// recommendation (general.sampling.*), then from the command's defaults.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "command.h"
#include "orrery_lab.h"

namespace orrery::tool {

// What a command samples with if neither the command line nor the model says otherwise.
struct SamplingDefaults {
  double temperature = 0, top_p = 1;
  uint32_t max_tokens = 0;
  bool of_the_model = false;  // whether the model file's recommendation comes before these values
};
constexpr SamplingDefaults kGreedy{};                         // scripts: the same prompt gives the likeliest answer
constexpr SamplingDefaults kChatting{0.7, 0.95, 1024, true};  // as samples/chat.c

OptionGroup sampling_group(const SamplingDefaults& defaults);  // --max-tokens --temperature ...
OptionGroup grammar_group();                                   // --schema --grammar --regex --whitespace --any-order
OptionGroup calls_group();                                     // --tool-choice --one-call --split-thinking --max-thinking

// What an answer may be: a source, and options for orrery_generate_options.
struct Grammar {
  std::string source;
  uint32_t kind = ORRERY_GRAMMAR_GBNF, whitespace = ORRERY_WHITESPACE_FREE;
  bool given = false, any_order = false;
  Grammar() = default;
  explicit Grammar(const Args& args);
  static Grammar of_schema(const std::string& file_or_json);
  void put(orrery_generate_options* options) const;  // which points to `source` then
};

// Calls of tools, and thinking that is told apart.
struct Calls {
  uint32_t tools = ORRERY_TOOLS_IGNORED, max_thinking = 0;
  bool one_call = false, split_thinking = false;
  std::string name;  // of the one tool; empty: any
  Calls() = default;
  explicit Calls(const Args& args);                  // with --tools, the model may call them
  void put(orrery_generate_options* options) const;  // which points to `name` then
};

// Owns the data that orrery_generate_options points to.
class Sampling {
 public:
  Sampling(const Args& args, const SamplingDefaults& defaults);
  orrery_generate_options options() const;  // valid during the lifetime of this object
  void set_seed(uint64_t seed) { base_.seed = seed; }
  uint64_t seed() const { return base_.seed; }
  bool greedy() const { return base_.temperature <= 0; }
  uint32_t max_tokens() const { return base_.max_tokens; }
  void set_grammar(Grammar grammar) { grammar_ = std::move(grammar); }
  Calls& calls() { return calls_; }

  // Takes the model file's recommendation for every setting that the command line leaves open. `json` is the file's description
  // by orrery_inspect(). A value out of its range is left out. Returns what was taken: "temperature 0.6, top-k 20", or "".
  std::string take_from_model(const std::string& json);

  struct Setting {
    std::string name, value, help;
  };
  std::vector<Setting> settings() const;  // in the order of the help page
  // Sets what the command line calls --`name`. A text that begins with "-" alone empties a list (stop, bias).
  // Throws UsageError that names the setting and the values allowed. Returns false if there is no such setting.
  bool set(const std::string& name, const std::string& value);

 private:
  orrery_generate_options base_;
  std::vector<std::string> given_;  // names that the command line or set() decided
  std::vector<std::string> stop_;
  mutable std::vector<const char*> stop_pointers_;
  std::vector<orrery_logit_bias> bias_;
  Grammar grammar_;
  Calls calls_;
};

}  // namespace orrery::tool
