// The definition of a command: the text of its help page and the function that runs it. Each command has one file,
// which defines its Command; help.cpp lists all commands. main.cpp finds the command, parses its options, and turns
// its exceptions into an exit code.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "args.h"
#include "terminal/output.h"

namespace orrery::tool {

struct OptionGroup {
  const char* title;
  OptionList options;
};

struct Command {
  const char* name;
  const char* usage;        // the words after the name: "MODEL.gguf [TEXT] [options]"
  const char* summary;      // one line for the list of commands
  const char* description;  // paragraphs; lines are printed unchanged
  std::vector<OptionGroup> groups;
  const char* examples;            // lines, printed unchanged
  size_t least_words, most_words;  // number of words that are not options
  int (*run)(const Args& args, Output& out);
};

const Command& chat_command();
const Command& run_command();
const Command& inspect_command();
const Command& plan_command();
const Command& bench_command();
const Command& tokenize_command();
const Command& template_command();
const Command& eval_command();
const Command& profile_command();
const Command& policies_command();
const Command& grammar_command();
const Command& embed_command();
const Command& demo_command();

const std::vector<const Command*>& all_commands();

// Appends words to the last line of `page`, breaking it before `columns`; a new line begins with `indent` blanks.
void append_wrapped(std::string_view words, size_t indent, size_t columns, std::string* page);

// Help pages.
std::string overview();
std::string help_page(const Command& command);
std::string exit_codes_page();

}  // namespace orrery::tool
