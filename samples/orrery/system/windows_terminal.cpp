// terminal.h for Windows: the console. The system calls on_control() on a thread of its own. A manual event carries "Ctrl-C was pressed"
// until clear().
#include "system/windows_terminal.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "system/failure.h"
#include "system/terminal.h"

namespace orrery::tool {
namespace {

// Global, because the system's call carries no data.
std::atomic<bool> interrupt_flag{false};
HANDLE interrupted = nullptr;  // the event
HANDLE watch_ended = nullptr;  // of the CancelOnInterrupt, one at most
struct ConsoleMode {
  HANDLE console;
  DWORD mode;
};
std::vector<ConsoleMode> modes_before;  // by prepare_consoles() and Interrupts

// Of the RawTerminal, one at most. The main thread and a TypeAhead's thread use them in turns.
std::string pressed;  // bytes that read_keys() has not returned
wchar_t half_pair = 0;
bool resized = false;

constexpr std::string_view kBrackets = "\x1b[?2004h", kNoBrackets = "\x1b[?2004l";
constexpr DWORD kPollMilliseconds = 10;  // pipes have no event to wait for

void remember(HANDLE console) {
  DWORD mode;
  if (!::GetConsoleMode(console, &mode)) return;
  for (const ConsoleMode& before : modes_before) {
    if (before.console == console) return;
  }
  modes_before.push_back({console, mode});
}

DWORD mode_before(HANDLE console) {
  for (const ConsoleMode& before : modes_before) {
    if (before.console == console) return before.mode;
  }
  return 0;
}

void restore_consoles() {
  for (const ConsoleMode& before : modes_before) ::SetConsoleMode(before.console, before.mode);
}

void send(int fd, std::string_view bytes) {
  const std::wstring text = wide(bytes);
  DWORD written;
  ::WriteConsoleW(handle_of(fd), text.data(), static_cast<DWORD>(text.size()), &written, nullptr);
}

BOOL WINAPI on_control(DWORD event) {
  if (event != CTRL_C_EVENT && event != CTRL_BREAK_EVENT) {  // the window closes, the user leaves
    restore_consoles();
    return FALSE;
  }
  if (interrupt_flag.exchange(true)) {
    restore_consoles();
    if (is_console(handle_of(kStderr))) send(kStderr, "\n");
    ::TerminateProcess(::GetCurrentProcess(), kExitInterrupted);
  }
  ::SetEvent(interrupted);
  return TRUE;
}

HANDLE make_event() {
  const HANDLE event = ::CreateEventW(nullptr, TRUE, FALSE, nullptr);
  if (!event) throw Failure(kExitFailure, "cannot make an event: system error " + std::to_string(::GetLastError()));
  return event;
}

// Moves all that the console has into `pressed` and `resized`. False: the console is gone.
bool take_events() {
  const HANDLE console = handle_of(kStdin);
  DWORD n = 0;
  while (::GetNumberOfConsoleInputEvents(console, &n)) {
    if (n == 0) return true;
    INPUT_RECORD records[256];
    if (!::ReadConsoleInputW(console, records, sizeof records / sizeof *records, &n)) return false;
    for (DWORD i = 0; i < n; ++i) {
      if (records[i].EventType == WINDOW_BUFFER_SIZE_EVENT) resized = true;
      if (records[i].EventType == KEY_EVENT) pressed += bytes_of_key(records[i].Event.KeyEvent, &half_pair);
    }
  }
  return false;
}

}  // namespace

std::string bytes_of_key(const KEY_EVENT_RECORD& key, wchar_t* high) {
  const wchar_t unit = key.uChar.UnicodeChar;
  // A character that is composed with Alt and the keypad comes as Alt goes up.
  if (!key.bKeyDown && !(key.wVirtualKeyCode == VK_MENU && unit != 0)) return "";
  const DWORD state = key.dwControlKeyState;
  const bool ctrl = state & (LEFT_CTRL_PRESSED | RIGHT_CTRL_PRESSED), alt = state & (LEFT_ALT_PRESSED | RIGHT_ALT_PRESSED);
  std::string bytes;
  if (unit == 0) {
    static constexpr struct {
      WORD key;
      char final;
      const char* number;  // before "~", or nullptr
    } kKeys[] = {{VK_UP, 'A', nullptr},   {VK_DOWN, 'B', nullptr}, {VK_RIGHT, 'C', nullptr}, {VK_LEFT, 'D', nullptr},
                 {VK_HOME, 'H', nullptr}, {VK_END, 'F', nullptr},  {VK_INSERT, '~', "2"},    {VK_DELETE, '~', "3"},
                 {VK_PRIOR, '~', "5"},    {VK_NEXT, '~', "6"}};
    for (const auto& known : kKeys) {
      if (known.key != key.wVirtualKeyCode) continue;
      bytes = std::string("\x1b[") + (known.number ? known.number : "");
      const int modifiers = 1 + (state & SHIFT_PRESSED ? 1 : 0) + (alt ? 2 : 0) + (ctrl ? 4 : 0);
      if (modifiers > 1) bytes += (known.number ? ";" : "1;") + std::to_string(modifiers);
      bytes += known.final;
    }
  } else if ((unit & 0xFC00) == 0xD800) {
    *high = unit;
    return "";
  } else {
    std::wstring text;
    if ((unit & 0xFC00) == 0xDC00 && *high) text += *high;
    text += unit;
    *high = 0;
    const bool composed = ctrl && alt && unit >= 0x20;  // AltGr
    bytes = (alt && !composed && key.bKeyDown ? "\x1b" : "") + utf8(text);
  }
  std::string all;
  for (int i = 0; i < std::max<int>(key.wRepeatCount, 1); ++i) all += bytes;
  return all;
}

void prepare_consoles() {
  for (const int fd : {kStdout, kStderr}) {
    const HANDLE console = handle_of(fd);
    if (!is_console(console)) continue;
    remember(console);
    ::SetConsoleMode(console, mode_before(console) | ENABLE_PROCESSED_OUTPUT | ENABLE_VIRTUAL_TERMINAL_PROCESSING);
  }
  std::atexit(restore_consoles);
}

bool is_terminal(int fd) { return is_console(handle_of(fd)); }

int terminal_columns(int fd) {
  CONSOLE_SCREEN_BUFFER_INFO screen;
  if (!::GetConsoleScreenBufferInfo(handle_of(fd), &screen)) return 80;
  const int columns = screen.srWindow.Right - screen.srWindow.Left + 1;
  return columns > 0 ? columns : 80;
}

int terminal_lines(int fd) {
  CONSOLE_SCREEN_BUFFER_INFO screen;
  if (!::GetConsoleScreenBufferInfo(handle_of(fd), &screen)) return 24;
  const int lines = screen.srWindow.Bottom - screen.srWindow.Top + 1;
  return lines > 0 ? lines : 24;
}

bool obeys_escapes(int fd) {
  DWORD mode;
  const char* kind = std::getenv("TERM");
  if (!::GetConsoleMode(handle_of(fd), &mode) || !(mode & ENABLE_VIRTUAL_TERMINAL_PROCESSING)) return false;
  return !kind || std::strcmp(kind, "dumb") != 0;
}

Interrupts::Interrupts() {
  if (!interrupted) interrupted = make_event();
  clear();
  remember(handle_of(kStdin));
  ::SetConsoleCtrlHandler(on_control, TRUE);
}

Interrupts::~Interrupts() {
  ::SetConsoleCtrlHandler(on_control, FALSE);
  clear();
}

bool Interrupts::pending() const { return interrupt_flag; }

void Interrupts::clear() {
  ::ResetEvent(interrupted);
  interrupt_flag = false;
}

bool Interrupts::wait_for_input(int fd) const { return tool::wait_for_input(fd); }

bool interrupt_pending() { return interrupt_flag; }

bool wait_for_input(int fd) {
  const HANDLE file = handle_of(fd);
  const DWORD type = ::GetFileType(file);
  if (interrupt_pending()) return false;
  if (type == FILE_TYPE_PIPE) {
    DWORD bytes = 0;
    while (::PeekNamedPipe(file, nullptr, 0, nullptr, &bytes, nullptr) && bytes == 0) {  // fails at the pipe's end, too
      if (interrupt_pending()) return false;
      ::Sleep(kPollMilliseconds);
    }
    return true;
  }
  return true;  // a console's read ends with Ctrl-C, and a file never waits
}

std::thread start_helper(std::function<void()> work) { return std::thread(std::move(work)); }

void press_interrupt() { on_control(CTRL_C_EVENT); }

CancelOnInterrupt::CancelOnInterrupt(std::function<void()> cancel) {
  if (!watch_ended) watch_ended = make_event();
  ::ResetEvent(watch_ended);
  watcher_ = start_helper([cancel = std::move(cancel)] {
    const HANDLE events[] = {watch_ended, interrupted};
    if (::WaitForMultipleObjects(2, events, FALSE, INFINITE) == WAIT_OBJECT_0 + 1) cancel();
  });
}

CancelOnInterrupt::~CancelOnInterrupt() {
  ::SetEvent(watch_ended);
  watcher_.join();
}

void echo_keys(bool echo) {
  const HANDLE console = handle_of(kStdin);
  DWORD mode;
  if (!::GetConsoleMode(console, &mode)) return;
  ::SetConsoleMode(console, echo ? mode | ENABLE_ECHO_INPUT : mode & ~static_cast<DWORD>(ENABLE_ECHO_INPUT));
}

RawTerminal::RawTerminal(int screen) : screen_(screen) { enter(); }

RawTerminal::~RawTerminal() { leave(); }

void RawTerminal::enter() {
  const HANDLE console = handle_of(kStdin);
  remember(console);
  // The user's choice of marking text with the mouse stays.
  const DWORD kept = mode_before(console) & (ENABLE_QUICK_EDIT_MODE | ENABLE_INSERT_MODE | ENABLE_EXTENDED_FLAGS);
  const DWORD raw = kept | ENABLE_WINDOW_INPUT;
  if (!::SetConsoleMode(console, raw | ENABLE_VIRTUAL_TERMINAL_INPUT)) ::SetConsoleMode(console, raw);
  send(screen_, kBrackets);
}

void RawTerminal::leave() {
  send(screen_, kNoBrackets);
  ::SetConsoleMode(handle_of(kStdin), mode_before(handle_of(kStdin)));
}

void RawTerminal::suspend() {}

RawTerminal::Ready RawTerminal::wait(int milliseconds) const {
  const HANDLE events[] = {interrupted, handle_of(kStdin)};
  for (;;) {
    if (interrupt_flag) return Ready::interrupt;
    if (!pressed.empty()) return Ready::input;
    if (std::exchange(resized, false)) return Ready::resize;
    const DWORD woke = ::WaitForMultipleObjects(2, events, FALSE, milliseconds < 0 ? INFINITE : static_cast<DWORD>(milliseconds));
    if (woke == WAIT_TIMEOUT) return Ready::nothing;
    if (woke != WAIT_OBJECT_0 && !take_events()) return Ready::input;  // reading reports that the console is gone
  }
}

RawTerminal::Ready RawTerminal::wait_beside(int milliseconds, const Stop& stop) const {
  const HANDLE events[] = {reinterpret_cast<HANDLE>(stop.ends_[0]), handle_of(kStdin)};
  for (;;) {
    if (!pressed.empty()) return Ready::input;
    const DWORD woke = ::WaitForMultipleObjects(2, events, FALSE, milliseconds < 0 ? INFINITE : static_cast<DWORD>(milliseconds));
    if (woke == WAIT_TIMEOUT) return Ready::nothing;
    if (woke == WAIT_OBJECT_0) return Ready::stopped;
    if (!take_events()) return Ready::input;
  }
}

std::string RawTerminal::read_keys() {
  while (pressed.empty()) {
    if (!take_events()) return "";
    if (pressed.empty() && ::WaitForSingleObject(handle_of(kStdin), INFINITE) != WAIT_OBJECT_0) return "";
  }
  return std::exchange(pressed, std::string());
}

bool RawTerminal::has_keys() const { return !pressed.empty() || (take_events() && !pressed.empty()); }

RawTerminal::Stop::Stop() { ends_[0] = reinterpret_cast<intptr_t>(make_event()); }
RawTerminal::Stop::~Stop() { ::CloseHandle(reinterpret_cast<HANDLE>(ends_[0])); }
void RawTerminal::Stop::set() { ::SetEvent(reinterpret_cast<HANDLE>(ends_[0])); }

}  // namespace orrery::tool
