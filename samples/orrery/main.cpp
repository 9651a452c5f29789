// The program `orrery`: finds the command and runs it. main() is the only place that turns a failure into a line on
// stderr and an exit code. No other code calls exit(), so every library handle is freed before the program ends.
#include <exception>
#include <new>
#include <string>
#include <vector>

#include "api.h"
#include "command.h"
#include "pages.h"
#include "system/failure.h"
#include "system/process.h"
#include "system/terminal.h"
#include "terminal/output.h"

namespace orrery::tool {
namespace {

const Command& find_command(const std::string& name) {
  std::vector<std::string> names;
  for (const Command* command : all_commands()) {
    if (name == command->name) return *command;
    names.push_back(command->name);
  }
  names.insert(names.end(), {"help", "man", "completions", "--help", "--version"});
  const std::string near = nearest(name, names);
  throw UsageError("unknown command '" + name + "'" + (near.empty() ? "" : "; did you mean '" + near + "'?"));
}

int help(const std::vector<std::string>& words, Output& out) {
  if (words.empty()) {
    out.write(overview());
  } else if (words.size() > 1) {
    throw UsageError("help takes one command, not " + std::to_string(words.size()));
  } else if (words[0] == "exit-codes") {
    out.write(exit_codes_page());
  } else {
    out.write(help_page(find_command(words[0])));
  }
  return kExitOk;
}

// `orrery man [COMMAND]` and `orrery completions SHELL`.
int pages(const std::string& name, const std::vector<std::string>& words, Output& out) {
  const bool man = name == "man";
  if (words.size() > 1 || (words.empty() && !man)) {
    throw UsageError(man ? "man takes one command at most" : "completions takes one shell: bash, zsh or fish");
  }
  out.write(man ? man_page(words.empty() ? nullptr : &find_command(words[0])) : completions(words[0]));
  return kExitOk;
}

bool asks_for_help(const std::vector<std::string>& words) {
  for (const std::string& word : words) {
    if (word == "--") return false;
    if (word == "--help" || word == "-h") return true;
  }
  return false;
}

int dispatch(std::vector<std::string> words, Output& out) {
  if (orrery_abi_version() != ORRERY_ABI_VERSION) {
    throw Failure(kExitFailure, format("this program was built for ABI %u, but liborrery %s has ABI %u", ORRERY_ABI_VERSION,
                                       orrery_version(), orrery_abi_version()));
  }
  if (words.empty()) {
    out.write(overview());
    return kExitUsage;
  }
  const std::string name = words[0];
  words.erase(words.begin());
  if (name == "help") return help(words, out);
  if (name == "man" || name == "completions") return pages(name, words, out);
  if (name == "--help" || name == "-h") return help({}, out);
  if (name == "--version" || name == "-V") {
    out.write(format("orrery %s (ABI %u)\n%s\n", orrery_version(), orrery_abi_version(), orrery_build_info()));
    return kExitOk;
  }
  const Command& command = find_command(name);
  if (asks_for_help(words)) return help({name}, out);
  OptionList options;
  for (const OptionGroup& group : command.groups) options = join({options, group.options});
  try {
    const Args args(options, words);
    const size_t n_words = args.words().size();
    if (n_words < command.least_words || n_words > command.most_words) {
      throw UsageError(
          format("%s words, expected: orrery %s %s", n_words < command.least_words ? "too few" : "too many", command.name, command.usage));
    }
    return command.run(args, out);
  } catch (const UsageError& error) {
    throw UsageError(std::string(command.name) + ": " + error.what() + " (see orrery help " + command.name + ")");
  }
}

}  // namespace
}  // namespace orrery::tool

int main(int argc, char** argv) {
  using namespace orrery::tool;
  prepare_process();
  Output out(kStdout);
  int code = kExitFailure;
  try {
    code = dispatch(command_line(argc, argv), out);
  } catch (const ClosedPipe&) {
    return kExitFailure;
  } catch (const Failure& failure) {
    note(failure.what());
    code = failure.code();
  } catch (const std::bad_alloc&) {
    note("out of host memory");
    code = kExitDoesNotFit;
  } catch (const std::exception& error) {
    note(std::string("internal error: ") + error.what());
  }
  // The output written before a failure is still flushed.
  try {
    out.flush();
  } catch (const ClosedPipe&) {
    return kExitFailure;
  } catch (const Failure& failure) {
    note(failure.what());
    return kExitFailure;
  }
  return code;
}
