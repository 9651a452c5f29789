// The I/O thread: moves KV from the reservoir (host memory) to staging memory on the device, beside the steps.
//
// A request gathers stretches of host memory, one behind the other, to one device address.  Requests belong to
// who submits them, wait in a bounded queue, and are served one at a time, in their order.  Whoever needs the
// bytes waits for the request, with a limit or until the wait is cancelled, and is told for how long; whoever needs them no more cancels it, and
// knows then that nobody touches its memory: a session can always be closed.  Nothing here allocates after
// make(), except an error's text.
//
// A link can be simulated, to measure overlap where host and device share one memory.  Each request takes its
// latency and its bytes' time on the link, from when the one before ended, or else from its submission: the
// times are kept as absolute ones, so that waking late costs a request some microseconds, but the link no
// bandwidth.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "runtime/backend/device.h"
#include "runtime/base/cancel.h"
#include "runtime/base/span.h"
#include "runtime/base/status.h"

namespace orrery::kv {

struct Link {
  uint64_t bytes_per_second = 0;   // 0: as fast as it goes
  uint32_t latency_us = 0;         // of each request
};

// A request's memory is its submitter's. From submit() until it was waited for, or cancelled, it stays where it
// is, and so do its pieces and what they point to.
class IoRequest {
 public:
  Ptr<std::byte> to;
  Span<const HostPiece> pieces;
  uint32_t head = 0;               // named in errors

  uint64_t bytes() const { return bytes_; }       // once submitted
  uint64_t link_ns() const { return link_ns_; }   // time on the link, once waited for

 private:
  friend class IoThread;
  using Clock = std::chrono::steady_clock;
  enum class State : uint8_t { idle, queued, under_way, done };
  State state_ = State::idle;
  bool cancelled_ = false;
  Status status_;                  // of what is done
  uint64_t bytes_ = 0, link_ns_ = 0;
  Clock::time_point queued_at_;
};

class IoThread {
 public:
  // What happens to a request instead: for tests.
  struct Fault {
    enum class Kind : uint8_t { none, late, fail, never };
    Kind kind = Kind::none;
    uint64_t late_us = 0;          // late
    Status status;                 // fail
  };
  struct Options {
    Link link;
    uint32_t queue_requests = 1024;
    uint64_t wait_limit_us = 30'000'000;
    std::function<Fault(const IoRequest&)> fault;   // asked by the thread before each request
  };
  struct Waited {
    Status status;
    uint64_t stall_ns = 0;         // for how long the caller stood still
  };

  // Starts the thread, all signals blocked. Must not outlive the device.
  static Result<std::unique_ptr<IoThread>> make(Device* device, Options options);
  // Every request was waited for or cancelled.
  ~IoThread();
  IoThread(const IoThread&) = delete;
  IoThread& operator=(const IoThread&) = delete;

  const Link& link() const { return options_.link; }

  // All of these on any thread; one request's by one thread at a time.

  // False where the queue is full: the request is as before.
  bool submit(IoRequest* request);
  // Returns when a request would find room; Code::io after the limit, Code::cancelled when somebody cancels. Another may be faster.
  Waited wait_for_room(const Cancel& cancel = {});
  // Whether wait() would return at once: it is done.
  bool arrived(const IoRequest& request);
  // Returns when the request is done, with its own Status (whatever copy_in said). A request that takes longer than the limit is given up:
  // Code::io, with head, bytes and time. So is one whose wait somebody cancels: Code::cancelled.
  Waited wait(IoRequest* request, const Cancel& cancel = {});
  // Returns when the thread has nothing to do with the request any more, whatever state it is in: at once, but for
  // a copy under way.
  void cancel(IoRequest* request);

 private:
  using Clock = IoRequest::Clock;
  IoThread(Device* device, Options options);
  void serve();
  Status serve_one(std::unique_lock<std::mutex>* lock, IoRequest* request);
  std::chrono::nanoseconds link_time(uint64_t bytes) const;
  // Waits until done(), the limit or a cancellation; returns the time it took.
  template <class F>
  uint64_t stall(std::unique_lock<std::mutex>* lock, const Cancel& cancel, const F& done);

  Device* device_;
  const Options options_;
  std::mutex mutex_;                      // over all that follows, and the private part of requests
  std::condition_variable for_thread_;    // a request, a cancellation, the end
  std::condition_variable for_callers_;   // a request done or out of the thread's hands, room in the queue
  std::vector<IoRequest*> queue_;         // (n_queued_ of queue_requests), a ring from first_
  size_t first_ = 0, n_queued_ = 0;
  Clock::time_point link_free_;           // when the link has served what it was given
  bool stop_ = false;
  std::thread thread_;                    // last: it uses what stands above
};

}  // namespace orrery::kv
