// The processor's backend, as it computes beside the device's: who calls it, with which work memory.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/backend/backend.h"
#include "runtime/base/clock.h"

namespace orrery::model {

// Calls call(context, 0) and call(context, 1) on two threads, and returns when both are done.
class TwoSides {
 public:
  virtual void run(void (*call)(const void* context, int64_t side), const void* context) = 0;

 protected:
  ~TwoSides() = default;
};

class HostSide {
 public:
  // sides: null where the device's operations return before they are done; else one thread calls them while another one computes. Both
  // outlive the object.
  HostSide(Backend* host, TwoSides* sides) : host_(*host), sides_(sides) {}
  HostSide(const HostSide&) = delete;
  HostSide& operator=(const HostSide&) = delete;

  Backend& backend() const { return host_; }
  // Scratch memory of the processor's backend, for steps of a model's limits.
  static uint64_t scratch_bytes(const Device& host, const StepLimits& limits);
  void use(std::byte* scratch, const StepLimits& limits);
  // compute() on the processor's backend, in a step of n_rows, while device() has the device do its part. Returns the time of compute(), in
  // microseconds. For the thread that has the turn.
  template <class Device, class Host>
  uint64_t side_by_side(Phase phase, int32_t n_rows, const Device& device, const Host& compute) {
    uint64_t us = 0;
    const auto both = [&](int64_t side) { side == 0 ? device() : on_host(phase, n_rows, compute, &us); };
    using Both = decltype(both);
    if (sides_) sides_->run([](const void* call, int64_t side) { (*static_cast<const Both*>(call))(side); }, &both);
    else both(0), both(1);
    return us;
  }

 private:
  void begin_step(Phase phase, int32_t n_rows);
  template <class F>
  void on_host(Phase phase, int32_t n_rows, const F& compute, uint64_t* us) {
    const uint64_t began = now_us();
    begin_step(phase, n_rows);
    compute();
    host_.end_step();
    *us = now_us() - began;
  }

  Backend& host_;
  TwoSides* const sides_;
  StepLimits limits_;
  std::byte* scratch_ = nullptr;
  std::vector<Row> step_rows_;  // of its steps, which have no tokens of their own
};

}  // namespace orrery::model
