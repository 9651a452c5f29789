// The I/O thread copies KV and weights from the reservoir (host memory) to memory on the device, in parallel with the steps.
//
// A request gathers pieces of host memory, one behind the other, at one device address. The submitter owns the request. Requests wait in a
// bounded queue; the thread serves one at a time, in their order, those that somebody waits for (Urgency::now) before the others. wait()
// returns when the bytes are there, at a time limit, or when the wait is cancelled, and tells for how long it waited. After cancel() nobody
// touches the request's memory, so a session can always be closed. Nothing here allocates after make(), except the text of an error.
//
// A simulated link measures overlap where host and device share one memory. A request takes its latency and its bytes' time on the link,
// counted from the end of the previous request, or from its own submission if that is later. Ends are absolute times: a thread that wakes
// late delays a request by some microseconds, and the link loses no bandwidth.
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
  uint64_t bytes_per_second = 0;  // 0: no limit
  uint32_t latency_us = 0;        // of each request
};

// The submitter owns a request. From submit() to the end of wait() or cancel(), the request, its pieces and the memory that they point to
// stay where they are.
class IoRequest {
 public:
  Ptr<std::byte> to;
  Span<const HostPiece> pieces;
  const char* of = "KV";  // errors name it, of static storage, with its part:
  const char* part = "head";
  uint32_t head = 0;

  uint64_t bytes() const { return bytes_; }      // valid after submit()
  uint64_t link_ns() const { return link_ns_; }  // time on the link; valid after wait()

 private:
  friend class IoThread;
  using Clock = std::chrono::steady_clock;
  enum class State : uint8_t { idle, queued, under_way, done };
  State state_ = State::idle;
  bool cancelled_ = false;
  Status status_;  // of a request that is done
  uint64_t bytes_ = 0, link_ns_ = 0;
  Clock::time_point queued_at_;
};

class IoThread {
 public:
  enum class Urgency : uint8_t { later, now };
  // For tests: a fault of one request.
  struct Fault {
    enum class Kind : uint8_t { none, late, fail, never };
    Kind kind = Kind::none;
    uint64_t late_us = 0;  // late
    Status status;         // fail
  };
  struct Options {
    Link link;
    uint32_t queue_requests = 1024;
    uint64_t wait_limit_us = 30'000'000;
    std::function<Fault(const IoRequest&)> fault;  // the thread asks it before each request
  };
  struct Waited {
    Status status;
    uint64_t stall_ns = 0;  // the time that the caller waited
  };

  // Starts the thread, with all signals blocked. The device outlives it.
  static Result<std::unique_ptr<IoThread>> make(Device* device, Options options);
  // Before, every request has ended by wait() or cancel().
  ~IoThread();
  IoThread(const IoThread&) = delete;
  IoThread& operator=(const IoThread&) = delete;

  const Link& link() const { return options_.link; }

  // Thread-safe. One thread at a time works with one request.

  // False if the queue is full: the request is unchanged.
  bool submit(IoRequest* request, Urgency urgency = Urgency::later);
  // Requests of Urgency::later that have not begun.
  size_t n_waiting();
  // Returns when the queue has room, with Code::io after the limit, or with Code::cancelled. Another thread may take the room first.
  Waited wait_for_room(const Cancel& cancel = {});
  // Whether the request is done, so that wait() returns at once.
  bool arrived(const IoRequest& request);
  // Gives a request that is in the queue Urgency::now. Returns when the request is done, with the Status of its copy (Device::copy_in()). A
  // request that takes longer than the limit is given up: Code::io, with head, bytes and time. A cancelled wait gives it up too:
  // Code::cancelled.
  Waited wait(IoRequest* request, const Cancel& cancel = {});
  // Returns when the thread does not use the request any more, in any state: at once, unless its copy is under way.
  void cancel(IoRequest* request);

 private:
  using Clock = IoRequest::Clock;
  IoThread(Device* device, Options options);
  void serve();
  size_t n_queued() const { return later_.n + now_.n; }
  Status serve_one(std::unique_lock<std::mutex>* lock, IoRequest* request);
  std::chrono::nanoseconds link_time(uint64_t bytes) const;
  // Waits until done(), the limit or a cancellation. Returns the time in nanoseconds.
  template <class F>
  uint64_t stall(std::unique_lock<std::mutex>* lock, const Cancel& cancel, const F& done);

  Device* device_;
  const Options options_;
  std::mutex mutex_;                     // guards all members below, and the private part of requests
  std::condition_variable for_thread_;   // signals a request, a cancellation, the end
  std::condition_variable for_callers_;  // signals a request that the thread has left, and room in the queue
  // (queue_requests) a ring: n requests from `first` on.
  struct Queue {
    std::vector<IoRequest*> ring;
    size_t first = 0, n = 0;
    void push(IoRequest* request) { ring[(first + n++) % ring.size()] = request; }
    IoRequest* pop();
    bool remove(const IoRequest* request);  // false: it was not there
  };
  Queue later_, now_;
  Clock::time_point link_free_;  // the end of the last request on the simulated link
  bool stop_ = false;
  std::thread thread_;  // last: it uses the members above
};

}  // namespace orrery::kv
