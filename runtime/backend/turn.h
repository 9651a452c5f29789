// Whose turn it is on a backend that several threads share. A Turn is the right to use the backend, and the only way to a Backend&: code
// that would use it out of turn does not compile.
//
// Threads get their turns in the order in which they asked. So a thread that takes many short turns (loading a model, tensor by tensor)
// delays another thread's step by one of them. When a turn ends, everything that it gave the device is done: nothing is under way in
// memory that its owner may then give back, or that the I/O thread may then write.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <utility>

#include "runtime/backend/backend.h"
#include "runtime/base/cancel.h"
#include "runtime/base/status.h"

namespace orrery {

class Turn;

// Owns a backend.
class Turns {
 public:
  explicit Turns(std::unique_ptr<Backend> backend) : backend_(std::move(backend)) {}
  Turns(const Turns&) = delete;
  Turns& operator=(const Turns&) = delete;

  // The operations that need no turn.
  Device& device() const { return *backend_; }
  // Waits for the turn. A thread holds one turn at a time.
  Turn take();
  // Waits for the turn until somebody cancels; then returns Code::cancelled.
  Result<Turn> take(const Cancel& cancel);

 private:
  friend class Turn;
  // A thread that waits for a turn: a link of the list from first_ to last_.
  struct Waiting {
    Waiting *before = nullptr, *next = nullptr;
    bool called = false;
    std::condition_variable turn_has_come;
  };
  bool wait(const Cancel& cancel);
  void end();

  std::unique_ptr<Backend> backend_;
  std::mutex mutex_;                       // protects the members below and the list of waiting threads
  bool taken_ = false;
  Waiting *first_ = nullptr, *last_ = nullptr;
};

class Turn {
 public:
  Turn(Turn&& other) noexcept : turns_(std::exchange(other.turns_, nullptr)) {}
  Turn& operator=(Turn&&) = delete;
  ~Turn() {
    if (turns_) turns_->end();
  }
  Backend& backend() const { return *turns_->backend_; }

 private:
  friend class Turns;
  explicit Turn(Turns* turns) : turns_(turns) {}
  Turns* turns_;   // null after a move
};

inline Turn Turns::take() {
  wait({});
  return Turn(this);
}

inline Result<Turn> Turns::take(const Cancel& cancel) {
  if (!wait(cancel)) return error(Code::cancelled, "cancelled while waiting for a turn on the device");
  return Turn(this);
}

// True: this thread has the turn. False: somebody cancelled.
inline bool Turns::wait(const Cancel& cancel) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (!taken_) return taken_ = true;
  Waiting self;
  self.before = last_;
  (last_ ? last_->next : first_) = &self;
  last_ = &self;
  const auto called = [&self] { return self.called; };
  if (!cancel.possible()) {
    self.turn_has_come.wait(lock, called);
    return true;
  }
  while (!self.turn_has_come.wait_for(lock, kAskEvery, called)) {
    lock.unlock();   // the answer may take long
    const bool gives_up = cancel.asked();
    lock.lock();
    if (self.called) break;   // the turn came meanwhile; its holder checks for a cancellation itself
    if (!gives_up) continue;
    (self.before ? self.before->next : first_) = self.next;
    (self.next ? self.next->before : last_) = self.before;
    return false;
  }
  return true;
}

inline void Turns::end() {
  (void)backend_->synchronize();   // a failure stays latched: the next caller of synchronize() gets it
  const std::lock_guard<std::mutex> lock(mutex_);
  Waiting* next = first_;
  taken_ = next != nullptr;
  if (!next) return;
  first_ = next->next;
  (first_ ? first_->before : last_) = nullptr;
  next->called = true;
  next->turn_has_come.notify_one();   // under the lock: the thread that wakes destroys `next`
}

}  // namespace orrery
