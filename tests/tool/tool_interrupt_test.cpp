// Ctrl-C as the tool's code sees it: the first one asks, the second one ends the process, with the terminal as it was.
// Each case is a process of its own, because signals belong to a process.
#include <gtest/gtest.h>
#include <pty.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <string>
#include <thread>

#include "samples/orrery/system/failure.h"
#include "samples/orrery/terminal/output.h"
#include "samples/orrery/system/terminal.h"

namespace orrery::testing {
namespace {

// The exit code of a process that runs `body`, which ends it; 128 + signal where one killed it.
template <class Body>
int exit_code_of(Body body) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);  // whoever hangs is killed
    body();
    _exit(99);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

TEST(Interrupts, TheFirstAsksAndTheSecondEnds) {
  EXPECT_EQ(exit_code_of([] {
              const tool::Interrupts interrupts;
              if (interrupts.pending()) _exit(1);
              raise(SIGINT);
              _exit(interrupts.pending() && tool::interrupt_pending() ? 7 : 1);
            }),
            7);
  EXPECT_EQ(exit_code_of([] {
              const tool::Interrupts interrupts;
              raise(SIGINT);
              raise(SIGINT);
              _exit(1);
            }),
            130);
}

TEST(Interrupts, WhatWasStoppedCountsNoMore) {
  EXPECT_EQ(exit_code_of([] {
              tool::Interrupts interrupts;
              for (int i = 0; i < 5; ++i) {
                raise(SIGINT);
                interrupts.clear();
              }
              raise(SIGINT);
              _exit(interrupts.pending() ? 7 : 1);
            }),
            7);
  EXPECT_EQ(exit_code_of([] {
              { const tool::Interrupts interrupts; }
              raise(SIGINT);  // as without us
              _exit(1);
            }),
            128 + SIGINT);
}

// Also where the cancelling is under way and never ends.
TEST(Interrupts, TheSecondEndsWhateverTheProcessDoes) {
  EXPECT_EQ(exit_code_of([] {
              const tool::Interrupts interrupts;
              const tool::CancelOnInterrupt watcher([] { pause(); });
              raise(SIGINT);
              usleep(20000);
              raise(SIGINT);
              _exit(1);
            }),
            130);
}

TEST(Interrupts, TheTerminalIsAsItWas) {
  int ours = -1, theirs = -1;
  ASSERT_EQ(openpty(&ours, &theirs, nullptr, nullptr, nullptr), 0);
  struct termios before;
  ASSERT_EQ(tcgetattr(theirs, &before), 0);
  EXPECT_EQ(exit_code_of([&] {
              dup2(theirs, 0);
              const tool::Interrupts interrupts;
              struct termios raw = before;
              cfmakeraw(&raw);  // as a line editor does
              tcsetattr(0, TCSANOW, &raw);
              raise(SIGINT);
              raise(SIGINT);
            }),
            130);
  struct termios after;
  ASSERT_EQ(tcgetattr(theirs, &after), 0);
  EXPECT_EQ(after.c_lflag, before.c_lflag);
  EXPECT_EQ(after.c_iflag, before.c_iflag);
  EXPECT_EQ(after.c_oflag, before.c_oflag);
  close(ours);
  close(theirs);
}

// A pipe that nobody writes to, and one whose writer is silent.
TEST(Interrupts, ReadingAFileEndsWhileAPipeIsSilent) {
  std::string folder = "/tmp/orrery-interrupt-XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const std::string path = folder + "/pipe";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  for (const bool written : {false, true}) {
    EXPECT_EQ(exit_code_of([&] {
                const tool::Interrupts interrupts;
                const pid_t reader = getpid();
                const pid_t other = fork();
                if (other == 0) {
                  if (written) {
                    FILE* pipe = std::fopen(path.c_str(), "w");
                    std::fputs("some", pipe);
                    std::fflush(pipe);
                  }
                  usleep(50000);
                  kill(reader, SIGINT);
                  sleep(5);
                  _exit(0);
                }
                int code = 1;
                try {
                  tool::read_file(path);
                } catch (const tool::Interrupted&) {
                  code = 7;
                }
                kill(other, SIGKILL);
                waitpid(other, nullptr, 0);
                _exit(code);
              }),
              7)
        << written;
  }
  unlink(path.c_str());
  rmdir(folder.c_str());
}

}  // namespace
}  // namespace orrery::testing
