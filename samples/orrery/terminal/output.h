// Standard output, standard error, and reading whole files. The requested result goes to Output. A write that fails
// ends the command with exit code 1; a closed pipe does so without a message. Notes, progress and errors go to stderr
// through note(). The formats of sizes and counts live here too.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "system/failure.h"

namespace orrery::tool {

class Output {
 public:
  explicit Output(int fd);
  bool terminal() const { return terminal_; }
  size_t columns() const;  // of the terminal; 0: it is none
  // Writes these bytes unchanged: the tool's own words, numbers, token ids.
  void write(std::string_view bytes);
  // Writes words of a model or a file, alone or in JSON. On a terminal, control characters are replaced.
  void text(std::string_view words);
  // Passes all bytes to the system. Throws Failure or ClosedPipe.
  void flush();

 private:
  int fd_;
  bool terminal_;
  std::string buffer_;
};

// Colour, where it is wanted: on a terminal that is not TERM=dumb and without NO_COLOR, or as --color says.
enum class Color { automatic, always, never };
struct Style {
  bool on = false;
  const char* dim() const { return on ? "\x1b[2m" : ""; }
  const char* bold() const { return on ? "\x1b[1m" : ""; }
  const char* plain() const { return on ? "\x1b[0m" : ""; }
};
Style style_of(int fd, Color color);

// One line on stderr, "orrery: MESSAGE". Errors of stderr are ignored.
void note(std::string_view message);
// Writes to stderr unchanged: progress, lists of an interactive conversation.
void aside(std::string_view text);

// printf into a string. Plain "printf" means the patterns of Microsoft to GCC for Windows.
#if defined(__clang__)
#define ORRERY_TOOL_PRINTF printf
#else
#define ORRERY_TOOL_PRINTF gnu_printf
#endif
std::string format(const char* pattern, ...) __attribute__((format(ORRERY_TOOL_PRINTF, 1, 2)));

std::string human_bytes(uint64_t bytes);                 // "1.50 GiB"
std::string grouped(uint64_t number);                    // "1,234,567"
std::string human_count(uint64_t number);                // "4.3 M"
std::string counted(uint64_t number, const char* noun);  // "1 token", "1,234 tokens"

// The file's bytes, or standard input's bytes for "-". Ctrl-C throws Interrupted, also while a pipe is silent.
std::string read_file(const std::string& path);
// As read_file(), for text that passes the C ABI as a string. A NUL byte is an error that names its place.
std::string read_text(const std::string& path);

}  // namespace orrery::tool
