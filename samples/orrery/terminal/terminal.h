// All code that depends on the terminal and the process: descriptors, width, signals. Only this file changes for
// another system. Ctrl-C becomes an event: while an Interrupts lives, SIGINT sets a flag and wakes the watcher thread
// of a CancelOnInterrupt, which calls orrery_cancel(). (A signal handler itself may call almost nothing safely.) A
// second Ctrl-C while the first is still pending ends the process.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <thread>

namespace orrery::tool {

constexpr int kStdin = 0, kStdout = 1, kStderr = 2;

// Call this first. It opens a substitute for a closed stdin, stdout or stderr, so that no later file takes its
// number. Reading the substitute gives an empty input, and writing to it fails. Writing to a closed pipe becomes an
// error instead of a signal.
void prepare_process();

bool is_terminal(int fd);
int terminal_columns(int fd);  // 80 if unknown
int terminal_lines(int fd);    // 24 if unknown
bool obeys_escapes(int fd);    // a terminal that is not TERM=dumb

// Text that is safe to print. Text of a model or a file may hold escape sequences that control the terminal. Every
// control character except newline and tab becomes U+FFFD, and so does invalid UTF-8. Pass whole characters.
std::string printable(std::string_view text);

// Bytes of the UTF-8 character at the front of `text` (shortest form, no surrogates, <= U+10FFFF); 0 if no character stands there. `text` is
// not empty.
size_t character_bytes(std::string_view text);
// Whether `text` is the beginning of a character that more bytes could complete.
bool character_may_follow(std::string_view text);
// Valid UTF-8: every byte that belongs to no character becomes U+FFFD.
std::string well_formed(std::string_view text);
// Columns that the character takes on a terminal: 0 (it combines with the one before), 1 or 2. Not for control characters.
int character_cells(std::string_view character);

// Handles SIGINT during its lifetime. At most one may exist. The first Ctrl-C asks the running work to stop. A second
// Ctrl-C before clear() ends the process at once, with exit code 130 and the terminal restored, because some work
// cannot be stopped.
class Interrupts {
 public:
  Interrupts();
  ~Interrupts();
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

  bool pending() const;  // Ctrl-C was pressed since clear()
  void clear();
  // Waits until `fd` can be read (true), or until Ctrl-C is pressed (false). A Ctrl-C since clear() counts too, so no
  // signal between pending() and a blocking read is missed.
  bool wait_for_input(int fd) const;
};

// As Interrupts::wait_for_input(), on the Interrupts that exists. If none exists, waits for input alone.
bool wait_for_input(int fd);
// Whether Ctrl-C was pressed since clear(). False if no Interrupts exists.
bool interrupt_pending();

// During its lifetime, Ctrl-C calls `cancel` once, on its own thread. A pending Ctrl-C calls it at once.
class CancelOnInterrupt {
 public:
  explicit CancelOnInterrupt(std::function<void()> cancel);
  ~CancelOnInterrupt();
  CancelOnInterrupt(const CancelOnInterrupt&) = delete;
  CancelOnInterrupt& operator=(const CancelOnInterrupt&) = delete;

 private:
  std::thread watcher_;
};

// Whether a terminal on standard input shows what is typed. For terminals without a RawTerminal.
void echo_keys(bool echo);

// During its lifetime, standard input gives each key as it is pressed, unseen: no echo, Ctrl-C and Ctrl-Z are bytes, and a paste
// comes in brackets (keys.h reads them). Every way out of the process restores the terminal, signals included. An Interrupts
// must be alive; at most one RawTerminal may exist. `screen` is the descriptor that the terminal shows.
class RawTerminal {
 public:
  explicit RawTerminal(int screen);
  ~RawTerminal();
  RawTerminal(const RawTerminal&) = delete;
  RawTerminal& operator=(const RawTerminal&) = delete;

  void suspend();   // stops the process group, as Ctrl-Z does. Returns when it goes on.
  enum class Ready { input, interrupt, resize, nothing };
  // Waits for input, a Ctrl-C that came as a signal, a new size of the window, or the time (milliseconds, -1: no limit).
  Ready wait(int milliseconds) const;

 private:
  void enter();
  void leave();
  int screen_;
};

// Resident memory of this process, now and at its peak, in bytes. 0 if the system does not report it.
struct ResidentMemory {
  unsigned long long now = 0, peak = 0;
};
ResidentMemory resident_memory();

// The folder of the running program, without a final slash; "" if unknown.
std::string program_folder();

}  // namespace orrery::tool
