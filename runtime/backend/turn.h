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

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "runtime/backend/backend.h"
#include "runtime/base/cancel.h"
#include "runtime/base/clock.h"
#include "runtime/base/span.h"
#include "runtime/base/status.h"

namespace orrery {

class Turn;
class Turns;

// One that asks again and again with work for others' turns: a session. Its owner's thread calls leave() and asks; others change the
// private members under the lock of the Turns.
class Member {
 public:
  explicit Member(Turns* turns) : turns_(*turns) {}
  ~Member() { leave(); }
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;
  // It does not ask again soon: whoever waits for it goes on.
  void leave();
  // The same from any thread or signal handler. Whoever waits for it already goes on within kAskEvery.
  void stays_away() { away_.store(true, std::memory_order_relaxed); }

 private:
  friend class Turns;
  Turns& turns_;
  Member *before_ = nullptr, *next_ = nullptr;  // in the list of expected members
  const void* kind_ = nullptr;                  // of its work, while it is in the list; else null
  uint64_t until_us_ = 0;                       // it is late from this time on; 0: it has shared no step, or has asked since
  bool late_ = false;                           // the last time
  std::atomic<bool> away_{false};
};

// Work that a thread wants done in a turn, by itself or by another thread with work of the same kind. It lives on the thread's stack until
// Turns::take() returns.
class SharedWork {
 public:
  // member: whose work it is; null: nobody waits for its next work.
  explicit SharedWork(const void* kind, Member* member = nullptr) : kind_(kind), member_(member) {}
  SharedWork(const SharedWork&) = delete;
  SharedWork& operator=(const SharedWork&) = delete;

 protected:
  ~SharedWork() = default;

 private:
  friend class Turns;
  const void* kind_;  // works with the same address here can be done together
  Member* member_;
  void* waiting_ = nullptr;  // Turns::Waiting, while its thread waits
};

// Owns a backend.
class Turns {
 public:
  // clock: microseconds; tests give their own.
  explicit Turns(std::unique_ptr<Backend> backend, std::function<uint64_t()> clock = now_us)
      : backend_(std::move(backend)), clock_(std::move(clock)) {}
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
  // cancellation. A Turn comes when the members that are expected with work of this kind have asked too, or are late.
  Result<std::optional<Turn>> take(const Cancel& cancel, SharedWork* work);

 private:
  friend class Turn;
  friend class Member;
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
  void expect(Span<SharedWork* const> works, uint64_t until_us);
  void end();
  // Under the lock:
  void pass_on();  // the turn, to whoever waits first
  void arrives(Member* member);
  void forget(Member* member);              // takes it from the list of expected members
  uint64_t longest_wait(const void* kind);  // for expected members that are neither late nor away, in microseconds
  State await_members(std::unique_lock<std::mutex>* lock, const Cancel& cancel, const SharedWork* work);

  std::unique_ptr<Backend> backend_;
  const std::function<uint64_t()> clock_;
  std::mutex mutex_;  // protects the members below and the lists of waiting threads and expected members
  bool taken_ = false;
  Waiting *first_ = nullptr, *last_ = nullptr;
  Member* expected_ = nullptr;       // the first
  std::condition_variable arrived_;  // for the thread that has the turn: the list has become shorter
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
  // These works, the turn's own among them, are done at once. Until this time of now_us() whoever asks first waits for the others' members
  // (take()). Before done().
  void expect(Span<SharedWork* const> works, uint64_t until_us) const { turns_->expect(works, until_us); }
  uint64_t now_us() const { return turns_->clock_(); }

 private:
  friend class Turns;
  explicit Turn(Turns* turns) : turns_(turns) {}
  Turns* turns_;  // null after a move
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
  if (work && work->member_) arrives(work->member_);
  if (!taken_) {
    taken_ = true;
    return await_members(&lock, cancel, work);
  }
  Waiting self;
  self.work = work;
  if (work) work->waiting_ = &self;
  self.before = last_;
  (last_ ? last_->next : first_) = &self;
  last_ = &self;
  const auto over = [&self] { return self.state >= State::called; };
  const auto ended = [&] { return self.state == State::called ? await_members(&lock, cancel, self.work) : self.state; };
  if (!cancel.possible()) {
    self.changed.wait(lock, over);
    return ended();
  }
  while (!self.changed.wait_for(lock, kAskEvery, over)) {
    lock.unlock();  // the answer may take long
    const bool gives_up = cancel.asked();
    lock.lock();
    if (over()) break;  // the turn came meanwhile; its holder checks for a cancellation itself
    if (!gives_up || self.state == State::gathered) continue;
    unlink(&self);
    return State::waits;
  }
  return ended();
}

// The thread has the turn. It keeps the turn while it waits, so that members which ask meanwhile are there to be gathered.
inline Turns::State Turns::await_members(std::unique_lock<std::mutex>* lock, const Cancel& cancel, const SharedWork* work) {
  if (!work || !work->member_) return State::called;
  while (const uint64_t wait_us = longest_wait(work->kind_)) {
    arrived_.wait_for(*lock, std::min<std::chrono::microseconds>(std::chrono::microseconds(wait_us), kAskEvery));
    if (!cancel.possible()) continue;
    lock->unlock();  // the answer may take long
    const bool gives_up = cancel.asked();
    lock->lock();
    if (!gives_up) continue;
    pass_on();
    return State::waits;
  }
  return State::called;
}

inline void Turns::arrives(Member* member) {
  if (member->until_us_ > 0) member->late_ = clock_() >= member->until_us_;
  member->until_us_ = 0;
  member->away_.store(false, std::memory_order_relaxed);
  forget(member);
}

inline void Turns::forget(Member* member) {
  if (!member->kind_) return;
  (member->before_ ? member->before_->next_ : expected_) = member->next_;
  if (member->next_) member->next_->before_ = member->before_;
  member->before_ = member->next_ = nullptr;
  member->kind_ = nullptr;
  arrived_.notify_one();  // one thread has the turn
}

inline uint64_t Turns::longest_wait(const void* kind) {
  const uint64_t now = expected_ ? clock_() : 0;
  uint64_t wait = 0;
  for (Member *member = expected_, *next; member; member = next) {
    next = member->next_;
    if (now >= member->until_us_ || member->away_.load(std::memory_order_relaxed)) forget(member);
    else if (member->kind_ == kind) wait = std::max(wait, member->until_us_ - now);
  }
  return wait;
}

inline void Turns::expect(Span<SharedWork* const> works, uint64_t until_us) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const SharedWork* work : works) {
    Member* const member = work->member_;
    if (!member) continue;
    forget(member);
    member->until_us_ = until_us;
    if (member->late_) continue;
    member->kind_ = work->kind_;
    member->next_ = expected_;
    if (expected_) expected_->before_ = member;
    expected_ = member;
  }
}

inline void Member::leave() {
  const std::lock_guard<std::mutex> lock(turns_.mutex_);
  until_us_ = 0;
  turns_.forget(this);
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
  waiting->work = nullptr;  // nobody gathers it again
  waiting->next = first_;
  (first_ ? first_->before : last_) = waiting;
  first_ = waiting;
}

inline void Turns::end() {
  backend_->end_turn();
  const std::lock_guard<std::mutex> lock(mutex_);
  pass_on();
}

inline void Turns::pass_on() {
  Waiting* const next = first_;
  taken_ = next != nullptr;
  if (!next) return;
  unlink(next);
  next->state = State::called;
  next->changed.notify_one();  // under the lock: the thread that wakes destroys `next`
}

}  // namespace orrery
