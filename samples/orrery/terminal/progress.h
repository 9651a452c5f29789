// A progress bar on stderr for long work. The bar is drawn only on a terminal, appears after a fifth of a second, and
// is erased at the end.
#pragma once

#include <chrono>
#include <cstdint>

#include "system/terminal.h"

namespace orrery::tool {

class ProgressBar {
 public:
  enum class Unit { tokens, bytes };
  ProgressBar(const char* verb, Unit unit);
  ~ProgressBar() { erase(); }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void update(uint64_t done, uint64_t total);
  void erase();

 private:
  using Clock = std::chrono::steady_clock;
  const char* verb_;
  Unit unit_;
  bool terminal_, drawn_ = false;
  uint64_t first_done_ = 0;
  bool started_ = false;
  Clock::time_point start_ = Clock::now(), last_ = start_;
};

// Receives the progress of the library's long calls: step(), with this object as `user`, draws the bar and returns
// false once Ctrl-C was pressed.
struct InterruptibleProgress {
  const Interrupts& interrupts;
  ProgressBar bar;
  static int32_t step(void* user, uint64_t done, uint64_t total) {
    auto* progress = static_cast<InterruptibleProgress*>(user);
    progress->bar.update(done, total);
    return progress->interrupts.pending() ? 1 : 0;
  }
};

}  // namespace orrery::tool
