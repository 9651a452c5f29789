// Lets a caller stop long work on text from another thread. A loop asks its Pace at every iteration. The Pace reads
// the caller's flag only once in kTurns iterations, so asking costs a counter.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace orrery::text {

// `flag` may be null; the work then cannot be stopped.
inline bool is_cancelled(const std::atomic<bool>* flag) { return flag != nullptr && flag->load(std::memory_order_relaxed); }

class Pace {
 public:
  // Fewer than a millisecond's iterations of the slowest loops here (a merge of a long piece, a character of a
  // string).
  static constexpr uint32_t kTurns = 1024;

  explicit Pace(const std::atomic<bool>* flag) : flag_(flag) {}
  // True once the work must end, and at every later call.
  bool stop() { return ++turns_ < kTurns ? stopped_ : look(); }
  // As stop(), after work that took as long as kTurns iterations.
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
