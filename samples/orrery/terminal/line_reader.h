// Reads one message at a time. On a terminal: line editing (libedit) and a history file. From a pipe: plain lines
// without prompts. In both, a line that ends in a backslash continues on the next line, and """ opens and closes a
// block of lines.
#pragma once

#include <string>

#include "terminal/terminal.h"

namespace orrery::tool {

class LineReader {
 public:
  // `history_path` "": keeps no history. A history that cannot be read or written is reported once, then ignored.
  LineReader(bool interactive, const std::string& history_path, const Interrupts& interrupts);
  ~LineReader();
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;

  enum class Got { message, end, interrupted };
  // interrupted: Ctrl-C dropped the typed line. *typed_something tells whether the line held any text.
  Got read(std::string* message, bool* typed_something);

  // $XDG_STATE_HOME/orrery/history or ~/.local/state/orrery/history; "" if there is no home folder.
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
