// See program.h.
#include "program.h"

#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include "tests/support/shared.h"

namespace orrery::testing {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

[[noreturn]] void execute(const std::string& program, const std::vector<std::string>& arguments) {
  std::vector<char*> argv = {const_cast<char*>(program.c_str())};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  execv(program.c_str(), argv.data());
  _exit(127);
}

int exit_code(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status); }

void prepare_home() {
  const std::string home = scratch_path("home");
  mkdir(home.c_str(), 0700);
  setenv("HOME", home.c_str(), 1);
  unsetenv("XDG_STATE_HOME");
  setenv("TERM", "xterm", 1);
}

}  // namespace

std::string program_path(const char* variable, const char* built) {
  const char* other = std::getenv(variable);
  return other && *other ? other : built;
}

std::string tool_path() { return program_path("ORRERY_TOOL", ORRERY_TOOL); }
std::string demo_model() { return demo_file("demo-q8_0.gguf"); }
std::string demo_file(const std::string& name) { return source_path("samples/models/" + name); }

std::string scratch_path(const std::string& name) {
  static const std::string folder = [] {
    std::string made = "/tmp/orrery-tool-XXXXXX";
    const char* base = std::getenv("TMPDIR");
    if (base) made = std::string(base) + "/orrery-tool-XXXXXX";
    if (!mkdtemp(made.data())) throw std::runtime_error("mkdtemp");
    static std::string to_remove = made;
    atexit([] {
      const std::string command = "rm -rf '" + to_remove + "'";
      if (system(command.c_str()) != 0) return;
    });
    return made;
  }();
  return folder + "/" + name;
}

void write_file(const std::string& path, const std::string& content) { std::ofstream(path, std::ios::binary) << content; }

std::string read_whole(const std::string& path) {
  std::ostringstream content;
  content << std::ifstream(path, std::ios::binary).rdbuf();
  return content.str();
}

Finished run(const std::vector<std::string>& arguments, const RunOptions& options) { return run_program(tool_path(), arguments, options); }

Finished run_program(const std::string& program, const std::vector<std::string>& arguments, const RunOptions& options) {
  prepare_home();
  int in[2], out[2], err[2];
  if (pipe2(in, O_CLOEXEC) || pipe2(out, O_CLOEXEC) || pipe2(err, O_CLOEXEC)) throw std::runtime_error("pipe");
  if (options.leave_early) {  // before the program starts: a short output would otherwise be in the pipe before its reader is gone
    close(out[0]);
    out[0] = -1;
  }
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGPIPE, SIG_DFL);  // whatever the test program does, the tool starts as from a shell
    dup2(in[0], 0);
    if (options.stdout_path.empty()) {
      dup2(out[1], 1);
    } else {
      dup2(open(options.stdout_path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), 1);
    }
    dup2(err[1], 2);
    if (options.close_stdin) close(0);
    if (options.close_stdout) close(1);
    execute(program, arguments);
  }
  close(in[0]);
  close(out[1]);
  close(err[1]);
  signal(SIGPIPE, SIG_IGN);
  fcntl(in[1], F_SETFL, O_NONBLOCK);
  Finished finished;
  std::string input = options.input;
  int input_fd = in[1], out_fd = out[0], err_fd = err[0];
  const auto start = Clock::now();
  Clock::time_point first_output{};
  bool interrupted = false, killed = false;
  while (out_fd >= 0 || err_fd >= 0) {
    if (input_fd >= 0 && input.empty()) {
      close(input_fd);
      input_fd = -1;
    }
    struct pollfd waiting[3] = {{out_fd, POLLIN, 0}, {err_fd, POLLIN, 0}, {input_fd, POLLOUT, 0}};
    poll(waiting, 3, 20);
    char block[65536];
    const auto drain = [&](int& fd, std::string& into, short events) {
      if (fd < 0 || events == 0) return;
      const ssize_t n = read(fd, block, sizeof block);
      if (n > 0) {
        into.append(block, static_cast<size_t>(n));
      } else {
        close(fd);
        fd = -1;
      }
    };
    drain(out_fd, finished.out, waiting[0].revents);
    drain(err_fd, finished.err, waiting[1].revents);
    if (input_fd >= 0 && waiting[2].revents) {
      const ssize_t n = write(input_fd, input.data(), input.size());
      if (n > 0) {
        input.erase(0, static_cast<size_t>(n));
      } else if (errno != EAGAIN) {
        input.clear();
      }
    }
    if (first_output == Clock::time_point{} && !finished.out.empty()) first_output = Clock::now();
    if (options.interrupt_after_output >= 0 && !interrupted && first_output != Clock::time_point{} &&
        seconds_since(first_output) >= options.interrupt_after_output) {
      kill(child, SIGINT);
      interrupted = true;
    }
    if (!killed && seconds_since(start) > options.seconds) {
      kill(child, SIGKILL);
      killed = true;
    }
  }
  if (input_fd >= 0) close(input_fd);
  int status = 0;
  waitpid(child, &status, 0);
  finished.code = killed ? -1 : exit_code(status);
  return finished;
}

Terminal::Terminal(const std::vector<std::string>& arguments, const std::string& program, const std::vector<std::string>& environment) {
  prepare_home();
  struct winsize size = {24, 100, 0, 0};
  child_ = forkpty(&fd_, nullptr, nullptr, &size);
  if (child_ == 0) {
    unsetenv("NO_COLOR");
    for (const std::string& variable : environment) putenv(const_cast<char*>(variable.c_str()));
  }
  if (child_ == 0) execute(program.empty() ? tool_path() : program, arguments);
  if (child_ < 0) throw std::runtime_error("forkpty");
}

Terminal::~Terminal() {
  if (child_ > 0) {
    kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
  }
  close(fd_);
}

void Terminal::type(const std::string& keys) {
  size_t written = 0;
  while (written < keys.size()) {
    const ssize_t n = write(fd_, keys.data() + written, keys.size() - written);
    if (n <= 0) return;
    written += static_cast<size_t>(n);
  }
}

void Terminal::resize(unsigned short columns, unsigned short lines) {
  struct winsize size = {lines, columns, 0, 0};
  ioctl(fd_, TIOCSWINSZ, &size);  // the program gets SIGWINCH
}

void Terminal::read_for(double seconds) {
  const auto start = Clock::now();
  while (seconds_since(start) < seconds && read_some(0.05)) continue;
}

void Terminal::quiet() {
  const auto start = Clock::now();
  size_t before;
  do {
    before = screen_.size();
    read_some(0.3);
  } while (screen_.size() != before && seconds_since(start) < 30);
}

bool Terminal::read_some(double seconds) {
  struct pollfd waiting = {fd_, POLLIN, 0};
  if (poll(&waiting, 1, static_cast<int>(seconds * 1000)) != 1) return true;
  char block[4096];
  const ssize_t n = read(fd_, block, sizeof block);
  if (n <= 0) return false;  // EIO: the program closed its side
  screen_.append(block, static_cast<size_t>(n));
  return true;
}

bool Terminal::expect(const std::string& text, double seconds) {
  const auto start = Clock::now();
  for (;;) {
    const size_t found = screen_.find(text, consumed_);
    if (found != std::string::npos) {
      consumed_ = found + text.size();
      return true;
    }
    if (seconds_since(start) > seconds || !read_some(0.05)) return false;
  }
}

bool Terminal::expect_prompt() {
  if (!expect("> ")) return false;
  const auto start = Clock::now();
  for (;;) {
    struct termios mode;
    if (tcgetattr(fd_, &mode) != 0 || seconds_since(start) > 60) return false;
    if (!(mode.c_lflag & ICANON)) return true;
    read_some(0.01);
  }
}

int Terminal::finish(double seconds) {
  const auto start = Clock::now();
  while (read_some(0.05)) {
    if (seconds_since(start) > seconds) return -1;
  }
  int status = 0;
  waitpid(child_, &status, 0);
  child_ = -1;
  return exit_code(status);
}

}  // namespace orrery::testing
