// Who uses a session: one call at a time. While a generation is under way, calls only read (capi checks that).
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>

namespace orrery::engine {

class Calls {
 public:
  // A call enters, unless another one is inside.
  bool try_enter() {
    std::thread::id nobody;
    return caller_.compare_exchange_strong(nobody, std::this_thread::get_id(), std::memory_order_acquire, std::memory_order_relaxed);
  }
  void leave() { caller_.store(std::thread::id(), std::memory_order_release); }
  // Whether this thread is inside a call already: in a callback, or after a callback that never returned.
  bool entered_here() const { return caller_.load(std::memory_order_relaxed) == std::this_thread::get_id(); }
  bool generating() const { return running_ == Running::generation; }
  // A generation begins; it stops when its flag is set. null: it has ended.
  void set_generating(std::atomic<bool>* stop) { run(stop ? Running::generation : Running::nothing, stop); }
  // Sets the flag of the work that runs now: a generation, or a call within a Stoppable. Does nothing if nothing runs. From any thread.
  void stop_running() {
    const std::lock_guard<std::mutex> lock(stop_mutex_);
    if (stop_) stop_->store(true, std::memory_order_relaxed);
  }
  // A call that may take long, on a session without a generation under way.
  class Stoppable {
   public:
    explicit Stoppable(Calls* calls) : calls_(*calls) { calls_.run(Running::call, &calls_.call_stop_); }
    ~Stoppable() { calls_.run(Running::nothing, nullptr); }
    Stoppable(const Stoppable&) = delete;
    Stoppable& operator=(const Stoppable&) = delete;
    const std::atomic<bool>* flag() const { return &calls_.call_stop_; }

   private:
    Calls& calls_;
  };

 private:
  enum class Running : uint8_t { nothing, call, generation };
  void run(Running what, std::atomic<bool>* stop) {
    running_ = what;
    const std::lock_guard<std::mutex> lock(stop_mutex_);
    call_stop_.store(false, std::memory_order_relaxed);
    stop_ = stop;
  }

  std::atomic<std::thread::id> caller_{};  // nobody: no call is inside
  Running running_ = Running::nothing;     // changes inside a call
  std::mutex stop_mutex_;                  // guards stop_: the flag lives as long as stop_ points to it
  std::atomic<bool>* stop_ = nullptr;      // the flag of the work that runs now
  std::atomic<bool> call_stop_{false};     // of a Stoppable: here, because a callback may leave its stack by longjmp()
};

}  // namespace orrery::engine
