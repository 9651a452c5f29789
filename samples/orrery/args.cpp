// See args.h. numbers.h reads the values.
#include "args.h"

#include <algorithm>

#include "system/failure.h"

namespace orrery::tool {
namespace {

// Options of llama.cpp and Ollama, and ours of the same meaning. They are suggested, not taken: values may be written otherwise.
constexpr const char* kForeignOptions[][2] = {{"--ctx-size", "--context"},
                                              {"--ctx", "--context"},
                                              {"--n-ctx", "--context"},
                                              {"--num-ctx", "--context"},
                                              {"-c", "--context"},
                                              {"--n-predict", "--max-tokens"},
                                              {"--predict", "--max-tokens"},
                                              {"-n", "--max-tokens"},
                                              {"--num-predict", "--max-tokens"},
                                              {"--temp", "--temperature"},
                                              {"--repeat-last-n", "--penalty-tokens"},
                                              {"--cache-type-k", "--kv-type"},
                                              {"--cache-type-v", "--kv-type"},
                                              {"-ctk", "--kv-type"},
                                              {"-ctv", "--kv-type"},
                                              {"--gpu", "--device"},
                                              {"--main-gpu", "--device"},
                                              {"-mg", "--device"},
                                              {"-t", "--threads"},
                                              {"--n-gpu-layers", "--backend"},
                                              {"-ngl", "--backend"},
                                              {"--logit-bias", "--bias"},
                                              {"--ignore-eos", "--ignore-end"},
                                              {"-p", "--prompt"},
                                              {"-f", "--file"},
                                              {"-sys", "--system"},
                                              {"--system-prompt", "--system"},
                                              {"--model-draft", "--draft-model"},
                                              {"-md", "--draft-model"},
                                              {"-s", "--seed"},
                                              {"--lora-scaled", "--lora"},
                                              {"--chat-template-file", "--template"}};

// The number of edits (insert, delete, replace, swap of neighbours) that change one word into the other.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> cost(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) cost[i][0] = i;
  for (size_t j = 0; j <= b.size(); ++j) cost[0][j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replace = cost[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
      cost[i][j] = std::min({replace, cost[i - 1][j] + 1, cost[i][j - 1] + 1});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
      }
    }
  }
  return cost[a.size()][b.size()];
}

}  // namespace

OptionList join(std::initializer_list<OptionList> groups) {
  OptionList all;
  for (const OptionList& group : groups) all.insert(all.end(), group.begin(), group.end());
  return all;
}

Args::Args(const OptionList& options, const std::vector<std::string>& command_line) {
  const auto known = [&](std::string_view name) -> const Option* {
    for (const Option& option : options) {
      if (name == option.name) return &option;
    }
    return nullptr;
  };
  for (size_t i = 0; i < command_line.size(); ++i) {
    const std::string& word = command_line[i];
    if (word == "--") {
      words_.insert(words_.end(), command_line.begin() + static_cast<std::ptrdiff_t>(i) + 1, command_line.end());
      return;
    }
    if (word.size() < 2 || word[0] != '-') {
      words_.push_back(word);
      continue;
    }
    const size_t equals = word.find('=');
    const std::string name = word.substr(0, equals);
    const Option* option = known(name);
    if (!option) {
      std::vector<std::string> names;
      for (const Option& other : options) names.push_back(other.name);
      std::string near = nearest(name, names);
      for (const auto& [foreign, ours] : kForeignOptions)
        if (name == foreign && known(ours)) near = ours;
      throw UsageError("unknown option " + name + (near.empty() ? "" : "; did you mean " + near + "?"));
    }
    std::string value;
    if (!option->value) {
      if (equals != std::string::npos) throw UsageError(name + " takes no value");
    } else if (equals != std::string::npos) {
      value = word.substr(equals + 1);
    } else if (i + 1 < command_line.size() && !known(command_line[i + 1])) {
      value = command_line[++i];
    } else {
      throw UsageError(name + " needs a value: " + name + " " + option->value);
    }
    if (!option->repeatable && has(option->name)) throw UsageError(name + " is given twice");
    given_.push_back({option->name, value});
  }
}

const std::string* Args::find(const char* name) const {
  for (const Given& given : given_) {
    if (std::string_view(given.name) == name) return &given.value;
  }
  return nullptr;
}

std::vector<std::string> Args::all(const char* name) const {
  std::vector<std::string> values;
  for (const Given& given : given_) {
    if (std::string_view(given.name) == name) values.push_back(given.value);
  }
  return values;
}

std::string Args::text(const char* name, const std::string& fallback) const {
  const std::string* value = find(name);
  return value ? *value : fallback;
}

uint64_t Args::integer(const char* name, uint64_t least, uint64_t most, uint64_t fallback) const {
  const std::string* value = find(name);
  return value ? parse_integer(*value, name, least, most) : fallback;
}

double Args::real(const char* name, double least, double most, double fallback) const {
  const std::string* value = find(name);
  return value ? parse_real(*value, name, least, most) : fallback;
}

uint64_t Args::bytes(const char* name, uint64_t fallback) const {
  const std::string* value = find(name);
  return value ? parse_bytes(*value, name) : fallback;
}

uint64_t Args::tokens(const char* name, uint64_t least, uint64_t most, uint64_t fallback) const {
  const std::string* value = find(name);
  return value ? parse_tokens(*value, name, least, most) : fallback;
}

size_t Args::choice(const char* name, const std::vector<const char*>& choices, size_t fallback) const {
  const std::string* value = find(name);
  return value ? parse_choice(*value, name, choices) : fallback;
}

size_t parse_choice(std::string_view text, const std::string& what, const std::vector<const char*>& choices) {
  std::string expected;
  for (size_t i = 0; i < choices.size(); ++i) {
    if (text == choices[i]) return i;
    expected += (i == 0 ? "" : i + 1 < choices.size() ? ", " : " or ") + std::string(choices[i]);
  }
  throw UsageError(what + ": '" + std::string(text) + "' is none of " + expected);
}

void Args::only_with(const char* leader, const std::vector<const char*>& allowed) const {
  for (const Given& given : given_) {
    bool fits = std::string_view(given.name) == leader;
    for (const char* name : allowed) fits = fits || std::string_view(given.name) == name;
    if (!fits) throw UsageError(std::string(given.name) + " has no effect with " + leader);
  }
}

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
  std::string best;
  size_t best_distance = std::max<size_t>(1, word.size() / 4) + 1;  // what is farther is another word, not a slip
  for (const std::string& candidate : candidates) {
    const bool begins = word.size() >= 3 && candidate.compare(0, word.size(), word) == 0;
    const size_t distance = begins ? 1 : edit_distance(word, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

}  // namespace orrery::tool
