// The list of commands, and the pages of `orrery help`. Every page has one form: name, usage, what the command does, options with
// their defaults, examples. Pages are as wide as the terminal, within bounds, and 80 columns elsewhere.
#include <algorithm>
#include <string>
#include <string_view>

#include "command.h"
#include "system/terminal.h"

namespace orrery::tool {
namespace {

constexpr size_t kIndent = 2, kHelpColumn = 26, kNarrowest = 60, kWidest = 100, kElsewhere = 80;

size_t page_columns() {
  if (!is_terminal(kStdout)) return kElsewhere;
  return std::clamp(static_cast<size_t>(terminal_columns(kStdout)), kNarrowest, kWidest);
}

// "  --name VALUE          help, wrapped and indented"
std::string option_lines(const Option& option, size_t columns) {
  std::string page(kIndent, ' ');
  page += option.name;
  if (option.value) page += std::string(" ") + option.value;
  if (page.size() + 2 > kHelpColumn) page += "\n" + std::string(kHelpColumn, ' ');
  const size_t begin = page.rfind('\n') + 1;
  page.resize(std::max(page.size(), begin + kHelpColumn), ' ');
  append_wrapped(option.help, kHelpColumn, columns, &page);
  return page + "\n";
}

// Paragraphs are wrapped. A line that begins with a blank is a row of a table: its last column is wrapped below itself.
std::string description_lines(std::string_view text, size_t columns) {
  std::string page, paragraph;
  const auto end_paragraph = [&] {
    append_wrapped(paragraph, 0, columns, &page);
    if (!paragraph.empty()) page += "\n";
    paragraph.clear();
  };
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (!line.empty() && line[0] != ' ') {
      paragraph += (paragraph.empty() ? "" : " ") + std::string(line);
      continue;
    }
    end_paragraph();
    if (line.empty()) {
      page += "\n";
      continue;
    }
    const size_t label = line.find_first_not_of(' ');
    const size_t gap = line.find("  ", label);
    const size_t last = gap == std::string_view::npos ? label : std::min(line.find_first_not_of(' ', gap), line.size());
    page += line.substr(0, last);
    append_wrapped(line.substr(last), last, columns, &page);
    page += "\n";
  }
  end_paragraph();
  return page;
}

}  // namespace

void append_wrapped(std::string_view words, size_t indent, size_t columns, std::string* page) {
  size_t column = page->size() - (page->rfind('\n') + 1);
  bool first = true;
  while (!words.empty()) {
    const size_t space = words.find(' ');
    const std::string_view word = words.substr(0, space);
    words.remove_prefix(space == std::string_view::npos ? words.size() : space + 1);
    if (word.empty()) continue;
    if (!first && column + 1 + word.size() > columns) {
      *page += "\n" + std::string(indent, ' ');
      column = indent;
      first = true;
    }
    *page += (first ? "" : " ") + std::string(word);
    column += (first ? 0 : 1) + word.size();
    first = false;
  }
}

const std::vector<const Command*>& all_commands() {
  static const std::vector<const Command*> commands = {
      &chat_command(),     &run_command(),     &inspect_command(),  &plan_command(),  &bench_command(),
      &eval_command(),     &profile_command(), &policies_command(), &embed_command(), &tokenize_command(),
      &template_command(), &grammar_command(), &demo_command(),
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
      "  orrery man [COMMAND]    the page for man(1): orrery man chat | man -l -\n"
      "  orrery completions SHELL  what bash, zsh or fish reads to complete a command line\n"
      "  orrery --version        version, ABI and build\n"
      "\n"
      "First steps:\n"
      "  orrery demo                                  the bundled model answers questions about a long text\n"
      "  orrery plan model.gguf --context 32768       will it fit?\n"
      "  orrery chat model.gguf --file report.txt     talk about a document\n";
  return page;
}

std::string help_page(const Command& command) {
  const size_t columns = page_columns();
  std::string page = std::string("orrery ") + command.name + " - ";
  append_wrapped(command.summary, 4, columns, &page);
  page += std::string("\n\nUsage: orrery ") + command.name + " ";
  append_wrapped(command.usage, 4, columns, &page);
  page += "\n\n" + description_lines(command.description, columns);
  bool sizes = false;
  for (const OptionGroup& group : command.groups) {
    page += std::string("\n") + group.title + ":\n";
    for (const Option& option : group.options) page += option_lines(option, columns);
    sizes = sizes || group.title == std::string_view("Running");
  }
  page += std::string("\nExamples:\n") + command.examples + "\n";
  if (sizes) page += "Sizes: 1500000, 512MiB, 4G (= 4GiB) or 1.5GB (= 1,500,000,000 bytes).\nTokens: 8192 or 32k (= 32768).\n";
  page += "Exit codes: see `orrery help exit-codes`.\n";
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
