// Pages for other programs, made of the list of commands: man pages, and completions for shells. Packages install them; `orrery man`
// and `orrery completions` print them.
#pragma once

#include <string>

#include "command.h"

namespace orrery::tool {

// A man page (roff): of the tool with `command` NULL, else of that command.
std::string man_page(const Command* command);

// "bash", "zsh" or "fish". The script completes commands, their options, and file names. UsageError: another shell.
std::string completions(const std::string& shell);

}  // namespace orrery::tool
