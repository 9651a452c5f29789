// The list of commands, and the pages of `orrery help`. Option help is wrapped to 96 columns.
#include <string>
#include <string_view>

#include "command.h"

namespace orrery::tool {
namespace {

constexpr size_t kColumns = 96, kIndent = 2, kHelpColumn = 30;

// "  --name VALUE          help, wrapped and indented"
std::string option_lines(const Option& option) {
  std::string line(kIndent, ' ');
  line += option.name;
  if (option.value) line += std::string(" ") + option.value;
  std::string page;
  if (line.size() + 2 > kHelpColumn) {
    page = line + "\n";
    line.clear();
  }
  line.resize(kHelpColumn, ' ');
  std::string_view rest = option.help;
  bool first = true;
  while (!rest.empty()) {
    const size_t space = rest.find(' ');
    const std::string_view word = rest.substr(0, space);
    if (!first && line.size() + 1 + word.size() > kColumns) {
      page += line + "\n";
      line.assign(kHelpColumn, ' ');
      first = true;
    }
    if (!first) line += ' ';
    line += word;
    first = false;
    rest.remove_prefix(space == std::string_view::npos ? rest.size() : space + 1);
  }
  return page + line + "\n";
}

}  // namespace

const std::vector<const Command*>& all_commands() {
  static const std::vector<const Command*> commands = {
      &chat_command(),  &run_command(),      &inspect_command(),  &plan_command(),
      &bench_command(), &eval_command(),     &profile_command(),  &policies_command(),
      &tokenize_command(), &template_command(), &demo_command(),
  };
  return commands;
}

std::string overview() {
  std::string page =
      "orrery - run language models with long contexts, from one GGUF file, inside a memory budget\n"
      "\n"
      "Usage: orrery COMMAND [options]\n"
      "\n"
      "Commands:\n";
  for (const Command* command : all_commands()) {
    std::string line = std::string("  ") + command->name;
    line.resize(14, ' ');
    page += line + command->summary + "\n";
  }
  page +=
      "\n"
      "  orrery help COMMAND     options and examples of one command (also: orrery COMMAND --help)\n"
      "  orrery help exit-codes  the meaning of the exit codes\n"
      "  orrery --version        version, ABI and build\n"
      "\n"
      "First steps:\n"
      "  orrery demo                                  the bundled model answers questions about a long text\n"
      "  orrery plan model.gguf --context 32768       will it fit?\n"
      "  orrery chat model.gguf --file report.txt     talk about a document\n";
  return page;
}

std::string help_page(const Command& command) {
  std::string page = std::string("orrery ") + command.name + " - " + command.summary + "\n\nUsage: orrery " +
                     command.name + " " + command.usage + "\n\n" + command.description;
  for (const OptionGroup& group : command.groups) {
    page += std::string("\n") + group.title + ":\n";
    for (const Option& option : group.options) page += option_lines(option);
  }
  page += std::string("\nExamples:\n") + command.examples + "\nExit codes: see `orrery help exit-codes`.\n";
  return page;
}

std::string exit_codes_page() {
  return "Exit codes of orrery:\n"
         "  0    success; for `plan`: it fits; for `demo`: every answer was right\n"
         "  1    failed while running: a file cannot be read or written, or standard output was closed\n"
         "  2    the command line is wrong: an unknown option, a number out of range, an unknown name\n"
         "  3    the model cannot be used: the file is damaged, or needs a feature that this build lacks\n"
         "  4    out of memory: the model, the session or the prompt does not fit\n"
         "  130  interrupted by Ctrl-C\n"
         "Every failure is one line on standard error that begins with `orrery: `.\n";
}

}  // namespace orrery::tool
