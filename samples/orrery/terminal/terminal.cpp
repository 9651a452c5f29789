// POSIX implementation of terminal.h. The self-pipe carries one byte per event: 'i' from the signal handler, 'q' from
// the end of a CancelOnInterrupt. Both ends stay open until the process ends, because a handler can run at any
// moment.
#include "terminal/terminal.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/auxv.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <clocale>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cwchar>
#include <utility>

#include "terminal/failure.h"

namespace orrery::tool {
namespace {

// Global, because a signal handler reaches only global data.
volatile sig_atomic_t interrupt_flag = 0;
int wake_pipe[2] = {-1, -1};
struct sigaction previous_action;
struct termios terminal_before;     // the state at the start, if stdin is a terminal
bool has_terminal_before = false, stderr_is_terminal = false;
volatile sig_atomic_t bracketing_screen = -1;   // the descriptor whose terminal sends pastes in brackets
int resize_pipe[2] = {-1, -1};

constexpr std::string_view kBrackets = "\x1b[?2004h", kNoBrackets = "\x1b[?2004l";
constexpr int kEndings[] = {SIGHUP, SIGTERM, SIGQUIT};   // signals that end the process, beside Ctrl-C

// Makes only calls that are allowed in a signal handler.
void restore_terminal() {
  if (bracketing_screen >= 0) {
    struct pollfd room = {bracketing_screen, POLLOUT, 0};
    if (poll(&room, 1, 0) == 1) {   // a blocked terminal must not block the tool
      const ssize_t written = write(bracketing_screen, kNoBrackets.data(), kNoBrackets.size());
      (void)written;
    }
    bracketing_screen = -1;
  }
  if (has_terminal_before) {
    signal(SIGTTOU, SIG_IGN);  // a process in the background would be stopped
    tcsetattr(kStdin, TCSANOW, &terminal_before);
  }
}

extern "C" void on_ending(int number) {
  restore_terminal();
  signal(number, SIG_DFL);
  raise(number);   // pending until the handler returns
}

extern "C" void on_resize(int) {
  const int saved = errno;
  const ssize_t written = write(resize_pipe[1], "r", 1);   // a full pipe says the same
  (void)written;
  errno = saved;
}

// Makes only calls that are allowed in a signal handler.
[[noreturn]] void end_interrupted() {
  restore_terminal();
  struct pollfd room = {kStderr, POLLOUT, 0};
  if (stderr_is_terminal && poll(&room, 1, 0) == 1) {  // a blocked terminal must not block the tool
    const ssize_t written = write(kStderr, "\n", 1);
    (void)written;
  }
  _exit(kExitInterrupted);
}

extern "C" void on_interrupt(int) {
  if (interrupt_flag) end_interrupted();
  const int saved = errno;
  interrupt_flag = 1;
  const ssize_t written = write(wake_pipe[1], "i", 1);  // a full pipe is fine: the flag and an earlier byte carry the same
                                                        // information
  (void)written;
  errno = saved;
}

}  // namespace

void prepare_process() {
  for (int fd = kStdin; fd <= kStderr; ++fd) {
    struct stat st;
    if (fstat(fd, &st) == 0 || errno != EBADF) continue;
    // open() takes the lowest free number, which is fd. Read-only, so writing fails as on a closed descriptor.
    if (open("/dev/null", O_RDONLY) < 0) return;
  }
  signal(SIGPIPE, SIG_IGN);
}

bool is_terminal(int fd) { return isatty(fd) == 1; }

int terminal_lines(int fd) {
  struct winsize size;
  if (ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_row > 0) return size.ws_row;
  return 24;
}

bool obeys_escapes(int fd) {
  const char* kind = std::getenv("TERM");
  return is_terminal(fd) && kind && std::strcmp(kind, "dumb") != 0;
}

int terminal_columns(int fd) {
  struct winsize size;
  if (ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 80;
}

size_t character_bytes(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return 1;
  const size_t n = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < n) return 0;
  for (size_t i = 1; i < n; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  if (lead == 0xE0 && byte(1) < 0xA0) return 0;
  if (lead == 0xED && byte(1) > 0x9F) return 0;
  if (lead == 0xF0 && byte(1) < 0x90) return 0;
  if (lead == 0xF4 && byte(1) > 0x8F) return 0;
  return n;
}

bool character_may_follow(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0xC2 || lead > 0xF4) return false;
  const size_t n = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  std::string whole(text);
  // The smallest and the largest continuation: one of them completes the text if any does.
  for (const char filler : {'\x80', '\xBF'}) {
    whole.resize(text.size());
    whole.resize(n, filler);
    if (text.size() < n && character_bytes(whole) == n) return true;
  }
  return false;
}

std::string well_formed(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const size_t n = character_bytes(text);
    if (n == 0) {
      out += "\xEF\xBF\xBD";
    } else {
      out += text.substr(0, n);
    }
    text.remove_prefix(std::max<size_t>(n, 1));
  }
  return out;
}

int character_cells(std::string_view character) {
  if (character.size() == 1) return 1;
  // The widths of the system's own UTF-8 locale, whatever the user's is: the tool writes UTF-8 in every locale.
  static const locale_t utf8 = newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr);
  if (utf8 == nullptr) return 1;
  const auto byte = [&](size_t i) { return static_cast<wchar_t>(static_cast<unsigned char>(character[i])); };
  wchar_t code = byte(0) & (character.size() == 2 ? 0x1F : character.size() == 3 ? 0x0F : 0x07);
  for (size_t i = 1; i < character.size(); ++i) code = code << 6 | (byte(i) & 0x3F);
  const locale_t before = uselocale(utf8);
  const int cells = wcwidth(code);
  uselocale(before);
  return cells < 0 ? 1 : cells;
}

std::string printable(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const size_t n = character_bytes(text);
    const auto lead = static_cast<unsigned char>(text[0]);
    const bool control = (lead < 0x20 && lead != '\n' && lead != '\t') || lead == 0x7F ||
                         (n == 2 && lead == 0xC2 && static_cast<unsigned char>(text[1]) < 0xA0);
    if (n == 0 || control) {
      out += "\xEF\xBF\xBD";
    } else {
      out.append(text.substr(0, n));
    }
    text.remove_prefix(n == 0 ? 1 : n);
  }
  return out;
}

Interrupts::Interrupts() {
  if (wake_pipe[0] < 0) {
    if (pipe2(wake_pipe, O_CLOEXEC) != 0) {
      throw Failure(kExitFailure, std::string("cannot make a pipe: ") + std::strerror(errno));
    }
    fcntl(wake_pipe[1], F_SETFL, O_NONBLOCK);
  }
  clear();
  has_terminal_before = is_terminal(kStdin) && tcgetattr(kStdin, &terminal_before) == 0;
  stderr_is_terminal = is_terminal(kStderr);
  struct sigaction action;
  std::memset(&action, 0, sizeof action);
  action.sa_handler = on_interrupt;  // without SA_RESTART, so a read that waits for input returns
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, &previous_action);
}

Interrupts::~Interrupts() {
  sigaction(SIGINT, &previous_action, nullptr);
  clear();
}

bool Interrupts::pending() const { return interrupt_flag != 0; }

void Interrupts::clear() {
  interrupt_flag = 0;
  struct pollfd waiting = {wake_pipe[0], POLLIN, 0};
  char byte;
  while (poll(&waiting, 1, 0) == 1 && read(wake_pipe[0], &byte, 1) == 1) {
  }
}

bool Interrupts::wait_for_input(int fd) const { return tool::wait_for_input(fd); }

bool interrupt_pending() { return interrupt_flag != 0; }

bool wait_for_input(int fd) {
  struct pollfd waiting[] = {{wake_pipe[0], POLLIN, 0}, {fd, POLLIN, 0}};
  while (!interrupt_pending()) {
    if (poll(waiting, 2, -1) < 0 && errno != EINTR) return true;  // the read reports the error
    if (waiting[0].revents != 0) return false;
    if (waiting[1].revents != 0) return true;
  }
  return false;
}

CancelOnInterrupt::CancelOnInterrupt(std::function<void()> cancel) {
  // The thread starts with SIGINT blocked, so the main thread receives the signals, and a signal ends its waiting
  // read.
  sigset_t interrupt, before;
  sigemptyset(&interrupt);
  sigaddset(&interrupt, SIGINT);
  pthread_sigmask(SIG_BLOCK, &interrupt, &before);
  watcher_ = std::thread([cancel = std::move(cancel)] {
    bool cancelled = false;
    char byte = 0;
    for (;;) {
      const ssize_t n = read(wake_pipe[0], &byte, 1);
      if (n < 0 && errno == EINTR) continue;
      if (n != 1 || byte == 'q') return;
      if (!cancelled) cancel();
      cancelled = true;
    }
  });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

CancelOnInterrupt::~CancelOnInterrupt() {
  // The pipe may be full of interrupts; the watcher empties it.
  while (write(wake_pipe[1], "q", 1) != 1 && (errno == EAGAIN || errno == EINTR)) std::this_thread::yield();
  watcher_.join();
}

void echo_keys(bool echo) {
  struct termios now;
  if (tcgetattr(kStdin, &now) != 0) return;
  now.c_lflag = echo ? now.c_lflag | ECHO : now.c_lflag & ~static_cast<tcflag_t>(ECHO);
  tcsetattr(kStdin, TCSANOW, &now);
}

RawTerminal::RawTerminal(int screen) : screen_(screen) {
  if (resize_pipe[0] < 0) {
    if (pipe2(resize_pipe, O_CLOEXEC | O_NONBLOCK) != 0)
      throw Failure(kExitFailure, std::string("cannot make a pipe: ") + std::strerror(errno));
  }
  struct sigaction action;
  std::memset(&action, 0, sizeof action);
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  action.sa_handler = on_resize;
  sigaction(SIGWINCH, &action, nullptr);
  action.sa_handler = on_ending;
  for (const int number : kEndings) {
    struct sigaction before;
    if (sigaction(number, nullptr, &before) == 0 && before.sa_handler == SIG_DFL) sigaction(number, &action, nullptr);
  }
  enter();
}

RawTerminal::~RawTerminal() {
  leave();
  signal(SIGWINCH, SIG_DFL);
  for (const int number : kEndings) {
    struct sigaction now;
    if (sigaction(number, nullptr, &now) == 0 && now.sa_handler == on_ending) signal(number, SIG_DFL);
  }
}

void RawTerminal::enter() {
  struct termios raw = terminal_before;
  raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO | ISIG | IEXTEN);
  raw.c_iflag &= ~static_cast<tcflag_t>(ICRNL | INLCR | IGNCR | IXON | ISTRIP);   // Enter is CR, and every byte passes
  raw.c_cc[VMIN] = 1;
  raw.c_cc[VTIME] = 0;
  tcsetattr(kStdin, TCSADRAIN, &raw);
  bracketing_screen = screen_;
  const ssize_t written = write(screen_, kBrackets.data(), kBrackets.size());
  (void)written;
}

void RawTerminal::leave() {
  bracketing_screen = -1;
  const ssize_t written = write(screen_, kNoBrackets.data(), kNoBrackets.size());
  (void)written;
  tcsetattr(kStdin, TCSADRAIN, &terminal_before);
}

void RawTerminal::suspend() {
  leave();
  kill(0, SIGTSTP);
  poll(nullptr, 0, 50);   // another thread may receive the signal, a moment later
  enter();
}

RawTerminal::Ready RawTerminal::wait(int milliseconds) const {
  struct pollfd waiting[] = {{wake_pipe[0], POLLIN, 0}, {resize_pipe[0], POLLIN, 0}, {kStdin, POLLIN, 0}};
  for (;;) {
    if (interrupt_flag) return Ready::interrupt;
    const int n = poll(waiting, 3, milliseconds);
    if (n == 0) return Ready::nothing;
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Ready::input;   // the read reports the error
    if (waiting[0].revents != 0) return Ready::interrupt;
    if (waiting[1].revents != 0) {
      char bytes[64];
      while (read(resize_pipe[0], bytes, sizeof bytes) > 0) {
      }
      return Ready::resize;
    }
    return Ready::input;
  }
}

ResidentMemory resident_memory() {
  ResidentMemory memory;
  if (FILE* status = std::fopen("/proc/self/status", "re")) {
    char line[256];
    while (std::fgets(line, sizeof line, status)) {
      unsigned long long kib = 0;
      if (std::sscanf(line, "VmRSS: %llu kB", &kib) == 1) memory.now = kib * 1024;
      if (std::sscanf(line, "VmHWM: %llu kB", &kib) == 1) memory.peak = kib * 1024;
    }
    std::fclose(status);
  }
  return memory;
}

std::string program_folder() {
  char path[4096];
  const ssize_t n = readlink("/proc/self/exe", path, sizeof path);
  if (n == static_cast<ssize_t>(sizeof path)) return "";
  std::string whole(path, n > 0 ? static_cast<size_t>(n) : 0);
  if (n <= 0) {   // without /proc: the path that the program was started by, if it is one
    const auto* started = reinterpret_cast<const char*>(getauxval(AT_EXECFN));
    if (started && started[0] == '/') whole = started;
  }
  if (whole.empty()) return "";
  return whole.substr(0, whole.rfind('/'));
}

}  // namespace orrery::tool
