// terminal.h for POSIX systems. The self-pipe carries one byte per event: 'i' from the signal handler, 'q' from
// the end of a CancelOnInterrupt. Both ends stay open until the process ends, because a handler can run at any
// moment.
#include "system/terminal.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "system/failure.h"

namespace orrery::tool {
namespace {

// Global, because a signal handler reaches only global data.
volatile sig_atomic_t interrupt_flag = 0;
int wake_pipe[2] = {-1, -1};
struct sigaction previous_action;
struct termios terminal_before;  // the state at the start, if stdin is a terminal
bool has_terminal_before = false, stderr_is_terminal = false;
volatile sig_atomic_t bracketing_screen = -1;  // the descriptor whose terminal sends pastes in brackets
int resize_pipe[2] = {-1, -1};

constexpr std::string_view kBrackets = "\x1b[?2004h", kNoBrackets = "\x1b[?2004l";
constexpr int kEndings[] = {SIGHUP, SIGTERM, SIGQUIT};  // signals that end the process, beside Ctrl-C

// Makes only calls that are allowed in a signal handler.
void restore_terminal() {
  if (bracketing_screen >= 0) {
    struct pollfd room = {bracketing_screen, POLLOUT, 0};
    if (poll(&room, 1, 0) == 1) {  // a blocked terminal must not block the tool
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
  raise(number);  // pending until the handler returns
}

extern "C" void on_resize(int) {
  const int saved = errno;
  const ssize_t written = write(resize_pipe[1], "r", 1);  // a full pipe says the same
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

std::thread start_helper(std::function<void()> work) {
  // The thread starts with all signals blocked, so the main thread receives them, and a signal ends its waiting read.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before);
  std::thread helper(std::move(work));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return helper;
}

void press_interrupt() { kill(getpid(), SIGINT); }

CancelOnInterrupt::CancelOnInterrupt(std::function<void()> cancel) {
  watcher_ = start_helper([cancel = std::move(cancel)] {
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
  raw.c_iflag &= ~static_cast<tcflag_t>(ICRNL | INLCR | IGNCR | IXON | ISTRIP);  // Enter is CR, and every byte passes
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
  poll(nullptr, 0, 50);  // another thread may receive the signal, a moment later
  enter();
}

RawTerminal::Ready RawTerminal::wait(int milliseconds) const {
  struct pollfd waiting[] = {{wake_pipe[0], POLLIN, 0}, {resize_pipe[0], POLLIN, 0}, {kStdin, POLLIN, 0}};
  for (;;) {
    if (interrupt_flag) return Ready::interrupt;
    const int n = poll(waiting, 3, milliseconds);
    if (n == 0) return Ready::nothing;
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Ready::input;  // the read reports the error
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

RawTerminal::Ready RawTerminal::wait_beside(int milliseconds, const Stop& stop) const {
  struct pollfd waiting[] = {{static_cast<int>(stop.ends_[0]), POLLIN, 0}, {kStdin, POLLIN, 0}};
  for (;;) {
    const int n = poll(waiting, 2, milliseconds);
    if (n == 0) return Ready::nothing;
    if (n < 0 && errno == EINTR) continue;
    return n < 0 || waiting[0].revents != 0 ? Ready::stopped : Ready::input;
  }
}

std::string RawTerminal::read_keys() {
  char bytes[4096];
  ssize_t n;
  do n = read(kStdin, bytes, sizeof bytes);
  while (n < 0 && errno == EINTR);
  return std::string(bytes, n > 0 ? static_cast<size_t>(n) : 0);
}

bool RawTerminal::has_keys() const {
  struct pollfd input = {kStdin, POLLIN, 0};
  return poll(&input, 1, 0) == 1;
}

RawTerminal::Stop::Stop() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw Failure(kExitFailure, std::string("cannot make a pipe: ") + std::strerror(errno));
  ends_[0] = ends[0], ends_[1] = ends[1];
}

RawTerminal::Stop::~Stop() {
  set();
  close(static_cast<int>(ends_[0]));
}

void RawTerminal::Stop::set() {
  if (ends_[1] >= 0) close(static_cast<int>(ends_[1]));  // the reading end wakes
  ends_[1] = -1;
}

}  // namespace orrery::tool
