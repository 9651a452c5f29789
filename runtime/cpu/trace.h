// Where the time of steps goes: by operation, by shape of the matrices, and by thread. The backend has a StepTrace only if its
// options ask for one; else an operation pays a test of a null pointer.
//
// A Scope measures one operation from its call to its end, a Busy one item on one thread. What an operation lasts beyond a thread's
// items is that thread's waiting: for the other threads, and for items that start. Threads write only to counters of their own.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/tensor_type.h"

namespace orrery::cpu {

enum class Operation : uint8_t {
  embed,
  norm,
  quantize,
  product,
  rope,
  append_kv,
  attend,
  swiglu,
  add,
  transform,
  delta_net,
  mamba2,
  short_conv,
  gates,
  route
};

class StepTrace {
 public:
  explicit StepTrace(int32_t max_threads) : n_threads_(static_cast<size_t>(max_threads)), totals_(n_threads_), before_(n_threads_) {
    rows_.reserve(kMostRows);
  }

  // Rows beyond the first kMostRows count with the last one.
  struct Row {
    Operation operation = Operation::embed;
    TensorType type = TensorType::f32;  // of a product's weights, with their shape
    int64_t n_out = 0, n_in = 0;
    uint64_t calls = 0, bytes = 0;
    std::vector<uint64_t> busy_ns, waiting_ns;  // (threads)
  };
  static constexpr size_t kMostRows = 64;

  // By the thread that computes the step.
  void begin_step(bool decode) { counts_ = decode, start_ = now(); }
  void end_step() {
    if (counts_) ++n_steps_, steps_ns_ += now() - start_;
    counts_ = false;
  }

  // The operation that runs on the calling thread; its items belong to `row`, unless they say otherwise.
  class Scope {
   public:
    Scope(StepTrace* trace, Operation operation, uint64_t bytes, TensorType type = TensorType::f32, int64_t n_out = 0, int64_t n_in = 0)
        : trace_(trace && trace->counts_ ? trace : nullptr) {
      if (trace_) outer_ = trace_->row_, trace_->row_ = trace_->find(operation, bytes, type, n_out, n_in), outermost_ = outer_ == kNone;
      if (trace_ && outermost_) trace_->begin_operation();
    }
    ~Scope() {
      if (trace_ && outermost_) trace_->end_operation();
      if (trace_) trace_->row_ = outer_;
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    StepTrace* const trace_;
    size_t outer_ = kNone;
    bool outermost_ = false;
  };

  // One item, on the thread that runs it.
  class Busy {
   public:
    Busy(StepTrace* trace, int32_t thread, size_t row = kNone)
        : trace_(trace && trace->counts_ ? trace : nullptr), thread_(static_cast<size_t>(thread)), row_(row) {
      if (trace_) start_ = now();
    }
    ~Busy() {
      if (trace_) trace_->add(row_ == kNone ? trace_->row_ : row_, thread_, now() - start_);
    }
    Busy(const Busy&) = delete;
    Busy& operator=(const Busy&) = delete;

   private:
    StepTrace* const trace_;
    const size_t thread_, row_;
    uint64_t start_ = 0;
  };

  static constexpr size_t kNone = SIZE_MAX;
  size_t current() const { return row_; }  // of the operation that runs
  // The row of an operation. Counts one more call, of `bytes` bytes; kNone outside steps that count.
  size_t find(Operation operation, uint64_t bytes, TensorType type, int64_t n_out, int64_t n_in);

  // What was measured since the last call: a line of JSON for the steps, then one for each row. Empty without steps.
  std::vector<std::string> take(int32_t n_threads);

 private:
  static uint64_t now() {
    return static_cast<uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count());
  }
  void begin_operation();
  void end_operation();
  void add(size_t row, size_t thread, uint64_t ns) {
    if (row == kNone) return;
    rows_[row].busy_ns[thread] += ns;
    totals_[thread].ns += ns;
  }

  const size_t n_threads_;
  struct alignas(64) Total {
    uint64_t ns = 0;
  };
  std::vector<Total> totals_;     // of each thread's items
  std::vector<uint64_t> before_;  // the same, when the operation began
  std::vector<Row> rows_;
  size_t row_ = kNone;  // of the operation that runs
  bool counts_ = false;
  uint64_t start_ = 0, operation_start_ = 0, n_steps_ = 0, steps_ns_ = 0, operations_ns_ = 0;
};

}  // namespace orrery::cpu
