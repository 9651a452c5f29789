// Runs the tool for the tests: once, with its output captured (run), or on a pseudo-terminal that a test
// types into (Terminal). Nothing waits for ever: whatever takes longer than its limit is killed and the test
// says so.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace orrery::testing {

struct Finished {
  int code = -1;  // exit code; 128 + signal where one killed it; -1: it took too long
  std::string out, err;
};

struct RunOptions {
  std::string input;  // standard input; it ends after these bytes
  bool close_stdin = false, close_stdout = false;
  bool leave_early = false;            // nobody reads its standard output from the start
  std::string stdout_path;             // standard output goes there instead
  double interrupt_after_output = -1;  // >= 0: so many seconds after its first output byte, send SIGINT
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  double seconds = 1200;
#else
  double seconds = 300;
#endif
};

// The tool under test with these arguments; HOME is a folder of the test's own, so that no history of the
// user's is touched.
Finished run(const std::vector<std::string>& arguments, const RunOptions& options = {});
Finished run_program(const std::string& program, const std::vector<std::string>& arguments, const RunOptions& options = {});

class Terminal {
 public:
  // `environment`: "NAME=VALUE", beside the test's own.
  explicit Terminal(const std::vector<std::string>& arguments, const std::string& program = "",
                    const std::vector<std::string>& environment = {});
  ~Terminal();
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  void type(const std::string& keys);                         // "\x03" is Ctrl-C, "\x04" Ctrl-D, "\n" Enter
  void resize(unsigned short columns, unsigned short lines);  // 100 x 24 at first
  void read_for(double seconds);
  void quiet();  // reads until nothing came for some tenths of a second, for at most half a minute
  // Reads until `text` appears behind what earlier expect() calls consumed, and consumes it. False: not in
  // time, or the program ended without it.
  bool expect(const std::string& text, double seconds = 120);
  // A prompt behind which the line editor is ready. Keys typed between the two would be the terminal's own to
  // interpret.
  bool expect_prompt();
  // Everything the program wrote so far.
  const std::string& screen() const { return screen_; }
  int finish(double seconds = 60);  // reads to the end; the exit code as in Finished

 private:
  bool read_some(double seconds);
  pid_t child_ = -1;
  int fd_ = -1;
  std::string screen_;
  size_t consumed_ = 0;
};

// The program that the environment names in `variable`, or else the one that was built with the tests. So the tests also run on a tool
// for another system, under its emulator.
std::string program_path(const char* variable, const char* built);
std::string tool_path();
std::string demo_model();                        // the bundled model
std::string demo_file(const std::string& name);  // samples/models/NAME
std::string scratch_path(const std::string& name);
void write_file(const std::string& path, const std::string& content);
std::string read_whole(const std::string& path);

}  // namespace orrery::testing
