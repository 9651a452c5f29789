// See pages.h.
#include "pages.h"

#include <string_view>

#include "orrery.h"
#include "system/failure.h"

namespace orrery::tool {
namespace {

// Text of a man page: a backslash and a minus mean something there, and so does a point or an apostrophe that begins a line.
std::string roff(std::string_view text) {
  std::string out;
  bool begins = true;
  for (const char c : text) {
    if (begins && (c == '.' || c == '\'')) out += "\\&";
    if (c == '\\') out += "\\e";
    else if (c == '-') out += "\\-";
    else out += c;
    begins = c == '\n';
  }
  return out;
}

std::string title(const std::string& name) {
  std::string upper;
  for (const char c : name) upper += c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  return ".TH " + roff(upper) + " 1 \"\" \"orrery " + orrery_version() + "\" \"User Commands\"\n";
}

// Paragraphs, and tables (lines that begin with a blank) as they stand.
std::string paragraphs(std::string_view text) {
  std::string page;
  bool table = false;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (line.empty()) {
      if (!table) page += ".PP\n";
      continue;
    }
    if ((line[0] == ' ') != table) page += table ? ".fi\n" : ".nf\n";
    table = line[0] == ' ';
    page += roff(line) + "\n";
  }
  return page + (table ? ".fi\n" : "");
}

std::string option_names(const Command& command, const char* between) {
  std::string names;
  for (const OptionGroup& group : command.groups)
    for (const Option& option : group.options) names += (names.empty() ? "" : between) + std::string(option.name);
  return names + (names.empty() ? "" : between) + "--help";
}

// Text inside single quotes of a shell.
std::string in_quotes(std::string_view text) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'') out += "'\\''";
    else out += c;
  }
  return out + "'";
}

std::string command_names() {
  std::string names;
  for (const Command* command : all_commands()) names += std::string(command->name) + " ";
  return names + "help man completions";
}

std::string bash() {
  std::string script =
      "# Completion of orrery for bash: commands, options of the command, file names.\n"
      "_orrery() {\n"
      "  local word=${COMP_WORDS[COMP_CWORD]} options=\n"
      "  if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
      "    COMPREPLY=($(compgen -W '" +
      command_names() +
      " --help --version' -- \"$word\"))\n"
      "    return\n"
      "  fi\n"
      "  case ${COMP_WORDS[1]} in\n";
  for (const Command* command : all_commands())
    script += std::string("    ") + command->name + ") options='" + option_names(*command, " ") + "' ;;\n";
  script += "    help | man) COMPREPLY=($(compgen -W '" + command_names() +
            " exit-codes' -- \"$word\")); return ;;\n"
            "    completions) COMPREPLY=($(compgen -W 'bash zsh fish' -- \"$word\")); return ;;\n"
            "  esac\n"
            "  case $word in\n"
            "    -*) COMPREPLY=($(compgen -W \"$options\" -- \"$word\")) ;;\n"
            "    *) COMPREPLY=($(compgen -f -- \"$word\")) ;;\n"
            "  esac\n"
            "}\n"
            "complete -o filenames -F _orrery orrery\n";
  return script;
}

std::string zsh() {
  std::string script =
      "#compdef orrery\n"
      "# Completion of orrery for zsh: commands, options of the command with their meaning, file names.\n"
      "local -a commands options\n"
      "commands=(\n";
  const auto escaped = [](std::string_view text, const char* special) {
    std::string out;
    for (const char c : text) {
      if (std::string_view(special).find(c) != std::string_view::npos) out += '\\';
      out += c;
    }
    return out;
  };
  for (const Command* command : all_commands())
    script += "  " + in_quotes(std::string(command->name) + ":" + escaped(command->summary, ":")) + "\n";
  script +=
      "  'help:the page of a command'\n  'man:a man page'\n  'completions:a script for a shell'\n)\n"
      "if (( CURRENT == 2 )); then\n  _describe command commands\n  return\nfi\n"
      "case $words[2] in\n";
  for (const Command* command : all_commands()) {
    script += std::string("  ") + command->name + ")\n    options=(\n";
    for (const OptionGroup& group : command->groups)
      for (const Option& option : group.options)
        script += "      " +
                  in_quotes(std::string(option.repeatable ? "*" : "") + option.name + "[" + escaped(option.help, "[]:\\") + "]" +
                            (option.value ? std::string(":") + escaped(option.value, ":\\") + ":_files" : std::string())) +
                  "\n";
    script += "    ) ;;\n";
  }
  script +=
      "  help | man) _describe command commands; return ;;\n"
      "  completions) _values shell bash zsh fish; return ;;\n"
      "esac\n"
      "shift words\n(( CURRENT-- ))\n"
      "_arguments -s $options '*:file:_files'\n";
  return script;
}

std::string fish() {
  std::string script =
      "# Completion of orrery for fish: commands, options of the command with their meaning, file names.\n"
      "complete -c orrery -n __fish_use_subcommand -f\n";
  for (const Command* command : all_commands()) {
    script += std::string("complete -c orrery -n __fish_use_subcommand -a ") + command->name + " -d " + in_quotes(command->summary) + "\n";
    for (const OptionGroup& group : command->groups)
      for (const Option& option : group.options)
        script += std::string("complete -c orrery -n '__fish_seen_subcommand_from ") + command->name + "' -l " + (option.name + 2) +
                  (option.value ? " -r" : "") + " -d " + in_quotes(option.help) + "\n";
  }
  return script +
         "complete -c orrery -n __fish_use_subcommand -a 'help man completions'\n"
         "complete -c orrery -n '__fish_seen_subcommand_from completions' -f -a 'bash zsh fish'\n";
}

}  // namespace

std::string man_page(const Command* command) {
  const std::string name = command ? std::string("orrery-") + command->name : "orrery";
  std::string page = title(name) + ".SH NAME\n" + roff(name) + " \\- " +
                     roff(command ? command->summary : "run language models with long contexts inside a memory budget") +
                     "\n.SH SYNOPSIS\n.B ";
  if (!command) {
    page +=
        "orrery\n.I COMMAND\n[options]\n.SH DESCRIPTION\n"
        "Orrery runs a language model from one GGUF file, offline. Contexts may be longer than the device's memory: what a\n"
        "policy of the KV cache does not keep on the device lies in host memory.\n.SH COMMANDS\n";
    for (const Command* each : all_commands()) page += ".TP\n.B orrery " + roff(each->name) + "\n" + roff(each->summary) + "\n";
    page += ".SH EXIT STATUS\n.nf\n" + roff(exit_codes_page()) + ".fi\n.SH SEE ALSO\n";
    for (const Command* each : all_commands())
      page += ".BR " + roff(std::string("orrery-") + each->name) + " (1)" + (each == all_commands().back() ? "\n" : ",\n");
    return page;
  }
  page +=
      roff(std::string("orrery ") + command->name) + "\n" + roff(command->usage) + "\n.SH DESCRIPTION\n" + paragraphs(command->description);
  for (const OptionGroup& group : command->groups) {
    page += ".SH " + roff(group.title) + "\n";
    for (const Option& option : group.options)
      page += ".TP\n.B " + roff(option.name) + (option.value ? "\\fR \\fI" + roff(option.value) + "\\fR" : std::string()) + "\n" +
              roff(option.help) + "\n";
  }
  return page + ".SH EXAMPLES\n.nf\n" + roff(command->examples) + ".fi\n.SH SEE ALSO\n.BR orrery (1)\n";
}

std::string completions(const std::string& shell) {
  if (shell == "bash") return bash();
  if (shell == "zsh") return zsh();
  if (shell == "fish") return fish();
  throw UsageError("completions for '" + shell + "': expected bash, zsh or fish");
}

}  // namespace orrery::tool
