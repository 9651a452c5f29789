// Standard output and standard error, and reading whole files. What a command was asked for goes to Output,
// which remembers nothing silently: a write that fails ends the command with exit code 1 (a closed pipe
// without a word). Notes, progress and errors go to note(), on stderr. Sizes and times are spelled here too,
// once.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace orrery::tool {

// Nothing to say: whoever read our output went away. main() turns it into exit code 1.
struct ClosedPipe {};

class Output {
 public:
  explicit Output(int fd);
  bool terminal() const { return terminal_; }
  // Exactly these bytes: our own words, JSON, rendered templates, token ids.
  void write(std::string_view bytes);
  // Words of a model or a file: on a terminal, control characters are replaced.
  void text(std::string_view words);
  // Everything written so far is with the system. Throws Failure or ClosedPipe.
  void flush();

 private:
  int fd_;
  bool terminal_;
  std::string buffer_;
};

// One line on stderr, "orrery: MESSAGE". A stderr that cannot be written to is nobody's loss.
void note(std::string_view message);
// On stderr as it is: progress, listings of an interactive conversation.
void aside(std::string_view text);

// printf into a string.
std::string format(const char* pattern, ...) __attribute__((format(printf, 1, 2)));

std::string human_bytes(uint64_t bytes);   // "1.50 GiB"
std::string grouped(uint64_t number);      // "1,234,567"
std::string human_count(uint64_t number);  // "4.3 M"
std::string counted(uint64_t number, const char* noun);  // "1 token", "1,234 tokens"

// The file's bytes, or those of standard input for "-". Ctrl-C ends it with Interrupted, also while a pipe is silent.
std::string read_file(const std::string& path);
// The same for text that goes through the C ABI as a string: a NUL byte is an error that says where.
std::string read_text(const std::string& path);

}  // namespace orrery::tool
