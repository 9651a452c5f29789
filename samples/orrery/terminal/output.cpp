// See output.h.
#include "terminal/output.h"

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "system/files.h"
#include "system/terminal.h"
#include "terminal/characters.h"

namespace orrery::tool {
namespace {

constexpr size_t kBufferBytes = 1 << 16;
constexpr uint64_t kLargestText = uint64_t{1} << 30;  // a larger input is no prompt or document

}  // namespace

Output::Output(int fd) : fd_(fd), terminal_(is_terminal(fd)) {}

void Output::write(std::string_view bytes) {
  buffer_ += bytes;
  if (buffer_.size() >= kBufferBytes) flush();
}

void Output::text(std::string_view words) {
  if (terminal_) {
    write(printable(words));
  } else {
    write(words);
  }
}

void Output::flush() {
  std::string pending;
  pending.swap(buffer_);  // bytes that could not be written are not tried again
  if (write_all(fd_, pending)) return;
  if (errno == EPIPE) throw ClosedPipe{};
  throw Failure(kExitFailure, std::string("cannot write to standard output: ") + std::strerror(errno));
}

size_t Output::columns() const { return terminal_ ? static_cast<size_t>(std::max(terminal_columns(fd_), 2)) : 0; }

Style style_of(int fd, Color color) {
  if (color != Color::automatic) return {color == Color::always};
  const char* unwanted = std::getenv("NO_COLOR");
  return {obeys_escapes(fd) && (unwanted == nullptr || *unwanted == '\0')};
}

void note(std::string_view message) {
  std::string line = "orrery: ";
  line += is_terminal(kStderr) ? printable(message) : std::string(message);
  line += '\n';
  aside(line);
}

void aside(std::string_view text) { write_all(kStderr, text); }

std::string format(const char* pattern, ...) {
  va_list arguments, again;
  va_start(arguments, pattern);
  va_copy(again, arguments);
  const int n = std::vsnprintf(nullptr, 0, pattern, arguments);
  va_end(arguments);
  std::string text(n > 0 ? static_cast<size_t>(n) : 0, '\0');
  if (n > 0) std::vsnprintf(text.data(), text.size() + 1, pattern, again);
  va_end(again);
  return text;
}

std::string human_bytes(uint64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < 1024) return format("%llu B", static_cast<unsigned long long>(bytes));
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1023.995 && unit + 1 < sizeof kUnits / sizeof *kUnits) {
    value /= 1024;
    ++unit;
  }
  return format("%.2f %s", value, kUnits[unit]);
}

std::string human_count(uint64_t number) {
  const double value = static_cast<double>(number);
  if (value >= 999.95e6) return format("%.2f B", value / 1e9);
  if (value >= 999.95e3) return format("%.1f M", value / 1e6);
  return grouped(number);
}

std::string counted(uint64_t number, const char* noun) { return grouped(number) + " " + noun + (number == 1 ? "" : "s"); }

std::string grouped(uint64_t number) {
  std::string digits = std::to_string(number);
  for (size_t i = digits.size(); i > 3; i -= 3) digits.insert(i - 3, ",");
  return digits;
}

std::string read_file(const std::string& path) {
  const bool standard = path == "-";
  const std::string name = standard ? "standard input" : path;  // an error reads "NAME: WHAT: WHY", as the library's errors do
  const auto fail = [&](const char* verb) { return Failure(kExitFailure, name + ": cannot " + verb + ": " + std::strerror(errno)); };
  int fd = kStdin;
  if (!standard && (fd = open_file(path, Access::read)) < 0) {
    if (errno == EINTR) throw Interrupted();  // a pipe without a writer
    throw fail("open");
  }
  struct Closer {
    int fd;
    ~Closer() {
      if (fd > kStderr) close_file(fd);
    }
  } closer{fd};
  std::string content;
  char block[1 << 16];
  for (;;) {
    if (!wait_for_input(fd)) throw Interrupted();
    const ptrdiff_t n = read_some(fd, block, sizeof block);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw fail("read");
    if (n == 0) return content;
    content.append(block, static_cast<size_t>(n));
    if (content.size() > kLargestText) throw Failure(kExitFailure, name + ": larger than 1 GiB");
  }
}

std::string read_text(const std::string& path) {
  std::string content = read_file(path);
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";  // editors of Windows write it; it is no part of the text
  if (content.compare(0, kByteOrderMark.size(), kByteOrderMark) == 0) content.erase(0, kByteOrderMark.size());
  const size_t nul = content.find('\0');
  if (nul != std::string::npos) {
    throw Failure(kExitFailure, format("%s: is not text: byte %zu is NUL", path.c_str(), nul));
  }
  return content;
}

}  // namespace orrery::tool
