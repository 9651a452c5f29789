// The terminal: its size, its keys, Ctrl-C. posix_terminal.cpp and windows_terminal.cpp implement it. Ctrl-C becomes an event: while an
// Interrupts lives, SIGINT (on Windows a call on a thread of the system's) sets a flag and wakes the watcher thread of a CancelOnInterrupt,
// which calls orrery_cancel(). (A signal handler itself may call almost nothing safely.) A second Ctrl-C while the first is still pending
// ends the process.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <thread>

namespace orrery::tool {

constexpr int kStdin = 0, kStdout = 1, kStderr = 2;

bool is_terminal(int fd);
int terminal_columns(int fd);  // 80 if unknown
int terminal_lines(int fd);    // 24 if unknown
bool obeys_escapes(int fd);    // a terminal that is not TERM=dumb
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

// As if Ctrl-C had been pressed.
void press_interrupt();

// A thread that receives no signals.
std::thread start_helper(std::function<void()> work);

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

  void suspend();  // stops the process group, as Ctrl-Z does. Returns when it goes on. Windows has no Ctrl-Z: it does nothing there.
  enum class Ready { input, interrupt, resize, nothing, stopped };
  // Waits for input, a Ctrl-C that came as a signal, a new size of the window, or the time (milliseconds, -1: no limit).
  Ready wait(int milliseconds) const;

  // Ends the wait_beside() of another thread.
  class Stop {
   public:
    Stop();
    ~Stop();
    Stop(const Stop&) = delete;
    Stop& operator=(const Stop&) = delete;
    void set();

   private:
    friend class RawTerminal;
    intptr_t ends_[2] = {-1, -1};  // of a pipe; on Windows, an event
  };
  // For a thread beside the main thread: input, stopped, or nothing.
  Ready wait_beside(int milliseconds, const Stop& stop) const;

  // The bytes of the pressed keys, as xterm sends them. "": the terminal is gone. Blocks without has_keys().
  std::string read_keys();
  bool has_keys() const;

 private:
  void enter();
  void leave();
  int screen_;
};

}  // namespace orrery::tool
