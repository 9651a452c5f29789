// Everything that depends on the terminal and the process around us: descriptors, width, signals. The one
// file to rewrite for another system. Ctrl-C becomes an event: while an Interrupts lives, SIGINT sets a flag
// and wakes the watcher thread of a CancelOnInterrupt, which calls orrery_cancel() - a handler itself may
// call almost nothing safely. A second Ctrl-C, while the first one is still pending, ends the process.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <thread>

namespace orrery::tool {

constexpr int kStdin = 0, kStdout = 1, kStderr = 2;

// Call first. A closed stdin, stdout or stderr is occupied by an end that fails (or reads as empty), so that
// no file opened later is taken for it; writing to a closed pipe is an error instead of a signal.
void prepare_process();

bool is_terminal(int fd);
int terminal_columns(int fd);  // 80 where it cannot be told

// Text of a model or a file may hold escape sequences that would drive the terminal: every control character
// but newline and tab becomes U+FFFD. Invalid UTF-8 too. Whole characters in, whole characters out.
std::string printable(std::string_view text);

// Handles SIGINT while it lives. At most one at a time. The first Ctrl-C asks whatever runs to stop. A second one before
// clear() ends the process at once, with exit code 130 and the terminal as it was: some work cannot be asked.
class Interrupts {
 public:
  Interrupts();
  ~Interrupts();
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

  bool pending() const;  // Ctrl-C was pressed since clear()
  void clear();
  // Waits until `fd` can be read: true; or until Ctrl-C is pressed, or has been since clear(): false. A signal
  // that comes between a look at pending() and a blocking read would be missed; here none is.
  bool wait_for_input(int fd) const;
};

// The same without an Interrupts at hand; where none lives, it waits for input alone.
bool wait_for_input(int fd);
// Ctrl-C was pressed, and is being carried out: false where no Interrupts lives.
bool interrupt_pending();

// While it lives, Ctrl-C calls `cancel`, once, on a thread of its own; at once if one is pending already.
class CancelOnInterrupt {
 public:
  explicit CancelOnInterrupt(std::function<void()> cancel);
  ~CancelOnInterrupt();
  CancelOnInterrupt(const CancelOnInterrupt&) = delete;
  CancelOnInterrupt& operator=(const CancelOnInterrupt&) = delete;

 private:
  std::thread watcher_;
};

// Resident memory of this process, now and at its peak, in bytes; 0 where the system does not tell.
struct ResidentMemory {
  unsigned long long now = 0, peak = 0;
};
ResidentMemory resident_memory();

// The folder of the running program, without a final slash; "" where it cannot be told.
std::string program_folder();

}  // namespace orrery::tool
