// Reads one message at a time. On a terminal: line editing (libedit) and a history that lasts; from a pipe:
// plain lines, no prompts. In both, a line that ends in a backslash goes on in the next one, and """ opens a
// block that """ closes.
#pragma once

#include <string>

#include "terminal/terminal.h"

namespace orrery::tool {

class LineReader {
 public:
  // `history_path` "": no history is kept. Unreadable or unwritable history is told once and otherwise
  // ignored.
  LineReader(bool interactive, const std::string& history_path, const Interrupts& interrupts);
  ~LineReader();
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;

  enum class Got { message, end, interrupted };
  // interrupted: Ctrl-C; what was typed is dropped, and *typed_something says whether there was any.
  Got read(std::string* message, bool* typed_something);

  // $XDG_STATE_HOME/orrery/history or ~/.local/state/orrery/history; "" where there is no home.
  static std::string default_history_path();

 private:
  Got read_line(const char* prompt, std::string* line);
  void remember(const std::string& line);

  const bool interactive_;
  std::string history_path_;
  const Interrupts& interrupts_;
  char* buffer_ = nullptr;
  size_t buffer_bytes_ = 0;
};

}  // namespace orrery::tool
