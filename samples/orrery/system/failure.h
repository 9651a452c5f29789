// The tool's failures: an exception carries the line for stderr and the exit code. Any code may throw it; main()
// catches it. The exit codes are part of the interface (`orrery help exit-codes` prints them).
#pragma once

#include <stdexcept>
#include <string>

namespace orrery::tool {

enum ExitCode : int {
  kExitOk = 0,
  kExitFailure = 1,       // a failure while running: a file, the disk, a wrong answer
  kExitUsage = 2,         // the command line, or one of its values
  kExitBadModel = 3,      // the model is damaged, or needs a feature that this build lacks
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

// Ctrl-C ended the operation.
class Interrupted : public Failure {
 public:
  Interrupted() : Failure(kExitInterrupted, "interrupted") {}
};

// The reader of standard output has closed it. main() returns exit code 1 without a message.
struct ClosedPipe {};

// An error on the command line. main() adds the help page to read.
class UsageError : public Failure {
 public:
  explicit UsageError(const std::string& message) : Failure(kExitUsage, message) {}
};

}  // namespace orrery::tool
