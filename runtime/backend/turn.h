// Whose turn it is on a backend that several threads share. A Turn is the right to use the backend, and the only way to a Backend&: code
// that would use it out of turn does not compile.
//
// Threads get their turns in the order in which they asked. So a thread that takes many short turns (loading a model, tensor by tensor)
// delays another thread's step by one of them. When a turn ends, everything that it gave the device is done: nothing is under way in
// memory that its owner may then give back, or that the I/O thread may then write.
//
// A thread may ask with work that others can do for it (SharedWork). The thread that has the turn gathers this work from the threads that
// wait, and does it with its own: so sessions compute a token in one step. Nobody waits for others to ask.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "runtime/backend/backend.h"
#include "runtime/base/cancel.h"
#include "runtime/base/span.h"
#include "runtime/base/status.h"

namespace orrery {

class Turn;

// Work that a thread wants done in a turn, by itself or by another thread with work of the same kind. It lives on the thread's stack until
// Turns::take() returns.
class SharedWork {
 public:
  explicit SharedWork(const void* kind) : kind_(kind) {}
  SharedWork(const SharedWork&) = delete;
  SharedWork& operator=(const SharedWork&) = delete;

 protected:
  ~SharedWork() = default;

 private:
  friend class Turns;
  const void* kind_;        // works with the same address here can be done together
  void* waiting_ = nullptr;   // Turns::Waiting, while its thread waits
};

// Owns a backend.
class Turns {
 public:
  explicit Turns(std::unique_ptr<Backend> backend) : backend_(std::move(backend)) {}
  Turns(const Turns&) = delete;
  Turns& operator=(const Turns&) = delete;

  // Threads that wait for a turn.
  size_t n_waiting() {
    const std::lock_guard<std::mutex> lock(mutex_);
    size_t n = 0;
    for (const Waiting* waiting = first_; waiting; waiting = waiting->next) ++n;
    return n;
  }
  // The operations that need no turn.
  Device& device() const { return *backend_; }
  // Waits for the turn. A thread holds one turn at a time.
  Turn take();
  // Waits for the turn until somebody cancels; then returns Code::cancelled.
  Result<Turn> take(const Cancel& cancel);
  // As take(cancel); and no Turn once another thread has done `work` in its own turn. From the moment that it begins, the wait heeds no
  // cancellation.
  Result<std::optional<Turn>> take(const Cancel& cancel, SharedWork* work);

 private:
  friend class Turn;
  enum class State : uint8_t { waits, gathered, called, done };
  // A thread that waits for a turn: a link of the list from first_ to last_, unless it is gathered.
  struct Waiting {
    Waiting *before = nullptr, *next = nullptr;
    SharedWork* work = nullptr;
    State state = State::waits;
    std::condition_variable changed;
  };
  // called: this thread has the turn. done: another one has done the work. waits: somebody cancelled.
  State wait(const Cancel& cancel, SharedWork* work);
  void unlink(Waiting* waiting);
  size_t gather(const void* kind, Span<SharedWork*> out);
  void finish(SharedWork* work, State state);
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

  // Takes work of this kind from threads that wait, in the order in which they asked, as much as `out` has room for. Returns the number.
  // Each work must get done() or hand_back() before the turn ends.
  size_t gather(const void* kind, Span<SharedWork*> out) const { return turns_->gather(kind, out); }
  // The work is done: its thread goes on, and its memory may be gone when the call returns.
  void done(SharedWork* work) const { turns_->finish(work, Turns::State::done); }
  // The work needs a turn of its own: its thread gets the next one.
  void hand_back(SharedWork* work) const { turns_->finish(work, Turns::State::waits); }

 private:
  friend class Turns;
  explicit Turn(Turns* turns) : turns_(turns) {}
  Turns* turns_;   // null after a move
};

inline Turn Turns::take() {
  wait({}, nullptr);
  return Turn(this);
}

inline Result<Turn> Turns::take(const Cancel& cancel) {
  if (wait(cancel, nullptr) == State::waits) return error(Code::cancelled, "cancelled while waiting for a turn on the device");
  return Turn(this);
}

inline Result<std::optional<Turn>> Turns::take(const Cancel& cancel, SharedWork* work) {
  const State state = wait(cancel, work);
  if (state == State::waits) return error(Code::cancelled, "cancelled while waiting for a turn on the device");
  return state == State::called ? std::optional<Turn>(Turn(this)) : std::nullopt;
}

inline Turns::State Turns::wait(const Cancel& cancel, SharedWork* work) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (!taken_) {
    taken_ = true;
    return State::called;
  }
  Waiting self;
  self.work = work;
  if (work) work->waiting_ = &self;
  self.before = last_;
  (last_ ? last_->next : first_) = &self;
  last_ = &self;
  const auto over = [&self] { return self.state >= State::called; };
  if (!cancel.possible()) {
    self.changed.wait(lock, over);
    return self.state;
  }
  while (!self.changed.wait_for(lock, kAskEvery, over)) {
    lock.unlock();   // the answer may take long
    const bool gives_up = cancel.asked();
    lock.lock();
    if (over()) break;   // the turn came meanwhile; its holder checks for a cancellation itself
    if (!gives_up || self.state == State::gathered) continue;
    unlink(&self);
    return State::waits;
  }
  return self.state;
}

inline void Turns::unlink(Waiting* waiting) {
  (waiting->before ? waiting->before->next : first_) = waiting->next;
  (waiting->next ? waiting->next->before : last_) = waiting->before;
  waiting->before = waiting->next = nullptr;
}

inline size_t Turns::gather(const void* kind, Span<SharedWork*> out) {
  const std::lock_guard<std::mutex> lock(mutex_);
  size_t n = 0;
  for (Waiting* waiting = first_; waiting && n < out.size();) {
    Waiting* const next = waiting->next;
    if (waiting->work && waiting->work->kind_ == kind) {
      unlink(waiting);
      waiting->state = State::gathered;
      out[n++] = waiting->work;
    }
    waiting = next;
  }
  return n;
}

// Under the lock, because the thread that wakes destroys its Waiting.
inline void Turns::finish(SharedWork* work, State state) {
  const std::lock_guard<std::mutex> lock(mutex_);
  auto* const waiting = static_cast<Waiting*>(work->waiting_);
  waiting->state = state;
  if (state == State::done) return waiting->changed.notify_one();
  waiting->work = nullptr;   // nobody gathers it again
  waiting->next = first_;
  (first_ ? first_->before : last_) = waiting;
  first_ = waiting;
}

inline void Turns::end() {
  (void)backend_->synchronize();   // a failure stays latched: the next caller of synchronize() gets it
  const std::lock_guard<std::mutex> lock(mutex_);
  Waiting* const next = first_;
  taken_ = next != nullptr;
  if (!next) return;
  unlink(next);
  next->state = State::called;
  next->changed.notify_one();   // under the lock: the thread that wakes destroys `next`
}

}  // namespace orrery
