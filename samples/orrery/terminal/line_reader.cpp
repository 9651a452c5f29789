// See line_reader.h. libedit's signal handler passes SIGINT on to the tool's handler. The tool's own character reader
// waits for keys and signals together. After a signal it reports the end of input, and readline() returns nothing.
// libedit's reader would miss a signal that arrives just before its read().
#include "terminal/line_reader.h"

#include <editline/readline.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cwchar>

#include "terminal/failure.h"
#include "terminal/output.h"

namespace orrery::tool {
namespace {

constexpr int kHistoryEntries = 1000;
constexpr const char* kFence = "\"\"\"";

// Makes the folders above `path`, private to the user.
void make_folders(const std::string& path) {
  for (size_t slash = path.find('/', 1); slash != std::string::npos; slash = path.find('/', slash + 1)) {
    mkdir(path.substr(0, slash).c_str(),
          0700);  // an existing folder is fine; other errors show when the file is written
  }
}

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

// An odd number of backslashes at the end: the last backslash is not itself escaped.
bool continues(const std::string& line) {
  const size_t last = line.find_last_not_of('\\');
  const size_t n = line.size() - (last == std::string::npos ? 0 : last + 1);
  return n % 2 == 1;
}

const Interrupts* typing_interrupts = nullptr;  // global, because libedit's character reader takes no context

// One character from standard input; -1 at its end or after Ctrl-C. Skips bytes that are not text in the user's
// locale.
int read_character(FILE*) {
  std::mbstate_t state{};
  for (;;) {
    char byte;
    if (!typing_interrupts->wait_for_input(STDIN_FILENO)) return -1;
    const ssize_t n = read(STDIN_FILENO, &byte, 1);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return -1;
    wchar_t character;
    const size_t used = std::mbrtowc(&character, &byte, 1, &state);
    if (used == static_cast<size_t>(-1)) {
      state = std::mbstate_t{};
    } else if (used != static_cast<size_t>(-2)) {
      return used == 0 ? 0 : static_cast<int>(character);
    }
  }
}

}  // namespace

std::string LineReader::default_history_path() {
  const char* state = std::getenv("XDG_STATE_HOME");
  if (state && state[0] == '/') return std::string(state) + "/orrery/history";
  const char* home = std::getenv("HOME");
  if (home && home[0] == '/') return std::string(home) + "/.local/state/orrery/history";
  return "";
}

LineReader::LineReader(bool interactive, const std::string& history_path, const Interrupts& interrupts)
    : interactive_(interactive), history_path_(interactive ? history_path : ""), interrupts_(interrupts) {
  if (!interactive_) return;
  if (!is_terminal(kStdout)) rl_outstream = stderr;  // prompts do not belong to standard output
  typing_interrupts = &interrupts;
  rl_getc_function = read_character;
  using_history();
  stifle_history(kHistoryEntries);
  if (history_path_.empty()) return;
  make_folders(history_path_);
  if (access(history_path_.c_str(), F_OK) == 0 && read_history(history_path_.c_str()) != 0) {
    note(history_path_ + ": cannot read the history; this session's lines are not added");
    history_path_.clear();
  }
}

LineReader::~LineReader() { std::free(buffer_); }

void LineReader::remember(const std::string& line) {
  if (!interactive_ || line.empty()) return;
  add_history(line.c_str());
  if (history_path_.empty()) return;
  if (write_history(history_path_.c_str()) != 0) {
    note(history_path_ + ": cannot write the history: " + std::strerror(errno));
    history_path_.clear();
  }
}

LineReader::Got LineReader::read_line(const char* prompt, std::string* line) {
  line->clear();
  if (interactive_) {
    char* typed = readline(prompt);
    if (!typed) {
      aside("\n");
      return interrupts_.pending() ? Got::interrupted : Got::end;
    }
    *line = typed;
    std::free(typed);
    remember(*line);
    return Got::message;
  }
  if (interrupts_.pending()) return Got::interrupted;  // Ctrl-C came after the last token of an answer
  const ssize_t n = getline(&buffer_, &buffer_bytes_, stdin);
  if (n < 0) {
    if (interrupts_.pending()) return Got::interrupted;
    if (std::ferror(stdin))
      throw Failure(kExitFailure, std::string("standard input: cannot read: ") + std::strerror(errno));
    return Got::end;
  }
  line->assign(buffer_, static_cast<size_t>(n));
  if (line->back() == '\n') line->pop_back();
  if (line->find('\0') != std::string::npos)
    throw Failure(kExitFailure, "standard input: is not text: a line holds a NUL byte");
  return Got::message;
}

LineReader::Got LineReader::read(std::string* message, bool* typed_something) {
  message->clear();
  *typed_something = false;
  std::string line;
  Got got = read_line("> ", &line);
  if (got != Got::message) {
    // libedit's buffer holds the line that Ctrl-C ended.
    *typed_something = interactive_ && rl_line_buffer && rl_line_buffer[0] != '\0' && rl_end > 0;
    return got;
  }
  if (line.compare(0, 3, kFence) == 0) {
    line.erase(0, 3);
    while (!ends_with(line, kFence)) {
      *message += line + "\n";
      got = read_line(". ", &line);
      if (got == Got::interrupted) *typed_something = true;
      if (got == Got::interrupted) return got;
      if (got == Got::end) break;  // the end of input closes an open block
    }
    if (ends_with(line, kFence)) line.erase(line.size() - 3);
    *message += line;
    while (!message->empty() && message->front() == '\n') message->erase(0, 1);
    while (!message->empty() && message->back() == '\n') message->pop_back();
    return Got::message;
  }
  while (continues(line)) {
    line.pop_back();
    *message += line + "\n";
    got = read_line(". ", &line);
    if (got == Got::interrupted) *typed_something = true;
    if (got == Got::interrupted) return got;
    if (got == Got::end) line.clear();
  }
  *message += line;
  return Got::message;
}

}  // namespace orrery::tool
