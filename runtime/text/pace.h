// Long work on text that its caller can stop from another thread.  A loop asks a Pace every turn; the Pace looks at
// the caller's flag once in a while, so that asking costs a counter.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace orrery::text {

// `flag` may be null: the work cannot be stopped.
inline bool is_cancelled(const std::atomic<bool>* flag) {
  return flag != nullptr && flag->load(std::memory_order_relaxed);
}

class Pace {
 public:
  // A millisecond of the slowest loops here (a merge of a long piece, a character of a string) takes more turns.
  static constexpr uint32_t kTurns = 1024;

  explicit Pace(const std::atomic<bool>* flag) : flag_(flag) {}
  // True as soon as the work is to end; from then on every turn says so.
  bool stop() { return ++turns_ < kTurns ? stopped_ : look(); }
  // The same behind work that took as long as many turns.
  bool look() {
    turns_ = 0;
    return stopped_ = stopped_ || is_cancelled(flag_);
  }
  bool stopped() const { return stopped_; }

 private:
  const std::atomic<bool>* flag_;
  uint32_t turns_ = 0;
  bool stopped_ = false;
};

}  // namespace orrery::text
