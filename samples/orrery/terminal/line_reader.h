// Reads one message at a time. On a terminal: line editing over many lines, pastes, keys typed ahead, and a history. From a
// pipe: plain lines without prompts, where a line that ends in a backslash continues on the next line, and """ opens and closes
// a block of lines. A terminal that obeys no escape codes (TERM=dumb) edits its lines itself, and gets prompts.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "system/terminal.h"
#include "terminal/history.h"
#include "terminal/key_input.h"
#include "terminal/line_editor.h"
#include "terminal/output.h"

namespace orrery::tool {

class LineReader {
 public:
  struct Wishes {
    std::string history_path;              // "": keeps no history
    std::vector<std::string> completions;  // words that Tab completes
    Color color = Color::automatic;        // of the prompt
  };
  LineReader(bool interactive, const Wishes& wishes, const Interrupts& interrupts);
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;

  enum class Got { message, end, interrupted };
  // interrupted: Ctrl-C dropped the typed line. *typed_something tells whether the line held any text.
  Got read(std::string* message, bool* typed_something);

  // While no message is read: keys that are pressed wait for the next message, unseen.
  class Away {
   public:
    explicit Away(LineReader& reader);
    ~Away();
    Away(const Away&) = delete;
    Away& operator=(const Away&) = delete;

   private:
    const bool hidden_;  // a terminal that edits its lines itself
    TypeAhead ahead_;
  };

 private:
  Got edit(std::string* message, bool* typed_something);
  Got read_line(const char* prompt, std::string* line);

  const bool interactive_;
  const Interrupts& interrupts_;
  int screen_;
  Style style_;
  History history_;
  std::optional<KeyInput> keys_;
  LineEditor editor_;
  std::string unread_;  // of a pipe, or of a terminal that edits its lines itself
};

}  // namespace orrery::tool
