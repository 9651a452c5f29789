// See line_reader.h. The picture of a message is drawn on standard error, or on standard output if only that is the terminal.
#include "terminal/line_reader.h"

#include <cerrno>
#include <cstring>

#include "system/failure.h"
#include "system/files.h"

namespace orrery::tool {
namespace {

constexpr const char* kFence = "\"\"\"";
constexpr const char *kPrompt = "> ", *kContinuation = ". ";

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

// An odd number of backslashes at the end: the last backslash is not itself escaped.
bool continues(const std::string& line) {
  const size_t last = line.find_last_not_of('\\');
  const size_t n = line.size() - (last == std::string::npos ? 0 : last + 1);
  return n % 2 == 1;
}

void draw(int screen, const std::string& bytes) {
  write_all(screen, bytes);  // a terminal that is gone shows itself when keys are read
}

}  // namespace

LineReader::LineReader(bool interactive, const Wishes& wishes, const Interrupts& interrupts)
    : interactive_(interactive), interrupts_(interrupts), screen_(is_terminal(kStderr) ? kStderr : kStdout),
      style_(style_of(screen_, wishes.color)), history_(interactive ? wishes.history_path : ""), editor_(wishes.completions) {
  if (interactive_ && obeys_escapes(screen_)) keys_.emplace(screen_);
}

LineReader::Away::Away(LineReader& reader)
    : hidden_(reader.interactive_ && !reader.keys_), ahead_(reader.keys_ ? &*reader.keys_ : nullptr) {
  if (hidden_) echo_keys(false);
}

LineReader::Away::~Away() {
  if (hidden_) echo_keys(true);
}

LineReader::Got LineReader::edit(std::string* message, bool* typed_something) {
  FramePainter painter;
  bool moved = false;
  const auto paint = [&] {
    const auto columns = static_cast<size_t>(terminal_columns(screen_)), lines = static_cast<size_t>(terminal_lines(screen_));
    draw(screen_,
         painter.paint(editor_.frame(kPrompt, kContinuation, columns), std::strlen(kPrompt), lines, style_.bold(), style_.plain(), moved));
    moved = false;
  };
  const auto leave = [&](Got got) {
    paint();
    draw(screen_, painter.leave());
    *typed_something = !editor_.empty();
    return got;
  };
  editor_.set_history(history_.messages());
  editor_.begin();
  for (;;) {
    if (!keys_->more()) paint();
    Key key;
    switch (keys_->next(&key)) {
      case KeyInput::Woke::resized: moved = true; continue;
      case KeyInput::Woke::interrupted: return leave(Got::interrupted);
      case KeyInput::Woke::closed: return leave(Got::end);
      case KeyInput::Woke::key: break;
    }
    switch (editor_.press(key)) {
      case LineEditor::Did::edited: break;
      case LineEditor::Did::cleared:
        draw(screen_, "\x1b[H\x1b[2J");
        painter.forget();
        break;
      case LineEditor::Did::suspended:
        paint();
        draw(screen_, painter.leave());
        keys_->suspend();
        break;
      case LineEditor::Did::interrupted: return leave(Got::interrupted);
      case LineEditor::Did::ended: return leave(Got::end);
      case LineEditor::Did::submitted:
        leave(Got::message);
        if (editor_.cut()) note("the message was cut at " + human_bytes(KeyDecoder::kLargestPaste));
        *message = editor_.message();
        history_.add(*message);
        return Got::message;
    }
  }
}

LineReader::Got LineReader::read_line(const char* prompt, std::string* line) {
  line->clear();
  if (interrupts_.pending()) return Got::interrupted;  // Ctrl-C came after the last token of an answer
  if (interactive_) draw(screen_, prompt);
  size_t end;
  while ((end = unread_.find('\n')) == std::string::npos) {
    char block[1 << 16];
    const ptrdiff_t n = wait_for_input(kStdin) ? read_some(kStdin, block, sizeof block) : -1;
    if (n > 0) {
      unread_.append(block, static_cast<size_t>(n));
      continue;
    }
    if (n < 0 && errno == EINTR && !interrupts_.pending()) continue;
    if (n == 0 && !unread_.empty()) break;  // the last line has no end
    if (interactive_) draw(screen_, "\n");
    if (interrupts_.pending()) return Got::interrupted;
    if (n < 0) throw Failure(kExitFailure, std::string("standard input: cannot read: ") + std::strerror(errno));
    return Got::end;
  }
  *line = unread_.substr(0, end);
  unread_.erase(0, end == std::string::npos ? end : end + 1);
  if (line->find('\0') != std::string::npos) throw Failure(kExitFailure, "standard input: is not text: a line holds a NUL byte");
  return Got::message;
}

LineReader::Got LineReader::read(std::string* message, bool* typed_something) {
  message->clear();
  *typed_something = false;
  if (keys_) return edit(message, typed_something);
  std::string line;
  Got got = read_line(kPrompt, &line);
  if (got != Got::message) return got;
  if (line.compare(0, 3, kFence) == 0) {
    line.erase(0, 3);
    while (!ends_with(line, kFence)) {
      *message += line + "\n";
      got = read_line(kContinuation, &line);
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
    got = read_line(kContinuation, &line);
    if (got == Got::interrupted) *typed_something = true;
    if (got == Got::interrupted) return got;
    if (got == Got::end) line.clear();
  }
  *message += line;
  return Got::message;
}

}  // namespace orrery::tool
