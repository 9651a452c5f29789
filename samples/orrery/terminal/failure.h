// How the tool fails: an exception that carries the line for stderr and the exit code. Thrown anywhere,
// caught once, in main(). The exit codes are part of the interface (`orrery help exit-codes` prints them), so
// they stand here, together.
#pragma once

#include <stdexcept>
#include <string>

namespace orrery::tool {

enum ExitCode : int {
  kExitOk = 0,
  kExitFailure = 1,       // something went wrong while running: a file, the disk, a wrong answer
  kExitUsage = 2,         // the command line, or a value on it
  kExitBadModel = 3,      // the model is damaged, or needs what this build cannot do
  kExitDoesNotFit = 4,    // memory, budget or context
  kExitInterrupted = 130  // Ctrl-C
};

class Failure : public std::runtime_error {
 public:
  Failure(ExitCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

// Ctrl-C ended what was under way.
class Interrupted : public Failure {
 public:
  Interrupted() : Failure(kExitInterrupted, "interrupted") {}
};

// What is wrong with the command line; main() adds where to read more.
class UsageError : public Failure {
 public:
  explicit UsageError(const std::string& message) : Failure(kExitUsage, message) {}
};

}  // namespace orrery::tool
