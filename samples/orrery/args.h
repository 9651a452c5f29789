// The command line, declared: a command lists its options. Parsing, strict values, help and "did you mean" follow
// from the list. `--name value` and `--name=value` are equal; `--` ends the options; `-` is an ordinary word. Every
// error is a UsageError that names the option, the value found and the value expected.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "numbers.h"

namespace orrery::tool {

struct Option {
  const char* name;   // "--temperature"
  const char* value;  // "T"; nullptr: a switch
  const char* help;   // one sentence, with the default
  bool repeatable = false;
};
using OptionList = std::vector<Option>;

// Joins the lists of several groups.
OptionList join(std::initializer_list<OptionList> groups);

class Args {
 public:
  Args(const OptionList& options, const std::vector<std::string>& command_line);

  const std::vector<std::string>& words() const { return words_; }  // the words that are not options
  bool has(const char* name) const { return find(name) != nullptr; }
  const std::string* find(const char* name) const;  // nullptr: the option is absent
  std::vector<std::string> all(const char* name) const;
  std::string text(const char* name, const std::string& fallback) const;

  uint64_t integer(const char* name, uint64_t least, uint64_t most, uint64_t fallback) const;
  double real(const char* name, double least, double most, double fallback) const;
  uint64_t bytes(const char* name, uint64_t fallback) const;                                  // "2GiB", "4GB", "1000000"
  uint64_t tokens(const char* name, uint64_t least, uint64_t most, uint64_t fallback) const;  // "8192", "32k"
  // Index into `choices`.
  size_t choice(const char* name, const std::vector<const char*>& choices, size_t fallback) const;
  // Refuses every given option except `leader` and `allowed`: beside `leader`, the others would be ignored.
  void only_with(const char* leader, const std::vector<const char*>& allowed) const;

 private:
  struct Given {
    const char* name;
    std::string value;
  };
  std::vector<Given> given_;
  std::vector<std::string> words_;
};

// Index into `choices`. Errors use `what` as the value's name.
size_t parse_choice(std::string_view text, const std::string& what, const std::vector<const char*>& choices);

// The nearest candidate to a misspelt word, or "" if none is near.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace orrery::tool
