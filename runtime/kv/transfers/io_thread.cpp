#include "runtime/kv/transfers/io_thread.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "runtime/os/os.h"

namespace orrery::kv {

namespace {

using std::chrono::microseconds;
using std::chrono::nanoseconds;

// Waits are at most this long (twelve days), so that no sum of times overflows.
constexpr uint64_t kLongestUs = 1'000'000'000'000;

microseconds bounded_us(uint64_t us) { return microseconds(std::min(us, kLongestUs)); }

template <class T>
uint64_t nanoseconds_in(T duration) {
  return static_cast<uint64_t>(std::max<int64_t>(0, std::chrono::duration_cast<nanoseconds>(duration).count()));
}

}  // namespace

IoThread::IoThread(Device* device, Options options) : device_(device), options_(std::move(options)), link_free_(Clock::now()) {
  later_.ring.resize(options_.queue_requests), now_.ring.resize(options_.queue_requests);
}

Result<std::unique_ptr<IoThread>> IoThread::make(Device* device, Options options) {
  if (options.queue_requests == 0) return error(Code::invalid_argument, "an I/O thread with a queue of 0 requests");
  std::unique_ptr<IoThread> io(new IoThread(device, std::move(options)));
  const os::SignalsBlocked blocked;
  try {
    io->thread_ = std::thread([p = io.get()] { p->serve(); });
  } catch (const std::system_error& e) {
    Status failed = error(Code::out_of_host_memory, "cannot start the I/O thread: %s", e.what());
    failed.detail().native_code = e.code().value();
    return failed;
  }
  return io;
}

IoThread::~IoThread() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  for_thread_.notify_one();
  if (thread_.joinable()) thread_.join();
}

IoRequest* IoThread::Queue::pop() {
  IoRequest* const request = ring[first];
  first = (first + 1) % ring.size(), --n;
  return request;
}

bool IoThread::Queue::remove(const IoRequest* request) {
  const size_t before = n;
  size_t kept = 0;
  for (size_t i = 0; i < n; ++i) {
    IoRequest* const other = ring[(first + i) % ring.size()];
    if (other != request) ring[(first + kept++) % ring.size()] = other;
  }
  n = kept;
  return n < before;
}

size_t IoThread::n_waiting() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return later_.n;
}

bool IoThread::submit(IoRequest* request, Urgency urgency) {
  uint64_t bytes = 0;
  for (const HostPiece& piece : request->pieces) bytes += piece.bytes;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (n_queued() == options_.queue_requests) return false;
    (urgency == Urgency::now ? now_ : later_).push(request);
    request->state_ = IoRequest::State::queued;
    request->cancelled_ = false;
    request->bytes_ = bytes;
    request->link_ns_ = 0;
    request->queued_at_ = Clock::now();
  }
  for_thread_.notify_one();
  return true;
}

template <class F>
uint64_t IoThread::stall(std::unique_lock<std::mutex>* lock, const Cancel& cancel, const F& done) {
  if (done()) return 0;
  const Clock::time_point begin = Clock::now(), end = begin + bounded_us(options_.wait_limit_us);
  if (!cancel.possible()) {
    for_callers_.wait_until(*lock, end, done);
  } else {
    while (!cancel.asked() && Clock::now() < end)
      if (for_callers_.wait_until(*lock, std::min(end, Clock::now() + kAskEvery), done)) break;
  }
  return nanoseconds_in(Clock::now() - begin);
}

IoThread::Waited IoThread::wait_for_room(const Cancel& cancel) {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto room = [this] { return n_queued() < options_.queue_requests; };
  Waited waited;
  waited.stall_ns = stall(&lock, cancel, room);
  if (!room() && cancel.asked()) waited.status = error(Code::cancelled, "cancelled while the I/O thread's queue was full");
  else if (!room())
    waited.status = error(Code::io, "the I/O thread's queue of %u requests was full for %.3f s", options_.queue_requests,
                          static_cast<double>(waited.stall_ns) * 1e-9);
  return waited;
}

bool IoThread::arrived(const IoRequest& request) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return request.state_ == IoRequest::State::done;
}

IoThread::Waited IoThread::wait(IoRequest* request, const Cancel& given_up) {
  Waited waited;
  std::unique_lock<std::mutex> lock(mutex_);
  if (request->state_ == IoRequest::State::idle) {
    waited.status = error(Code::internal, "waited for a transfer that was not submitted (%s %u)", request->part, request->head);
    return waited;
  }
  // From now on somebody waits for it.
  if (request->state_ == IoRequest::State::queued && later_.remove(request)) now_.push(request);
  waited.stall_ns = stall(&lock, given_up, [request] { return request->state_ == IoRequest::State::done; });
  if (request->state_ == IoRequest::State::done) {
    waited.status = std::move(request->status_);
    request->state_ = IoRequest::State::idle;
    return waited;
  }
  lock.unlock();
  cancel(request);
  if (given_up.asked()) {
    waited.status = error(Code::cancelled, "cancelled while waiting for a transfer of %s to the device (%s %u)", request->of, request->part,
                          request->head);
    return waited;
  }
  waited.status =
      error(Code::io, "a transfer of %s to the device (%s %u, %llu bytes) was not there after %.3f s", request->of, request->part,
            request->head, static_cast<unsigned long long>(request->bytes_), static_cast<double>(waited.stall_ns) * 1e-9);
  return waited;
}

void IoThread::cancel(IoRequest* request) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (request->state_ == IoRequest::State::queued) {
    later_.remove(request), now_.remove(request);
    for_callers_.notify_all();
  } else if (request->state_ == IoRequest::State::under_way) {
    request->cancelled_ = true;
    for_thread_.notify_one();
    for_callers_.wait(lock, [request] { return request->state_ != IoRequest::State::under_way; });
  }
  request->state_ = IoRequest::State::idle;
  request->status_ = Status();
}

void IoThread::serve() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    for_thread_.wait(lock, [this] { return stop_ || n_queued() > 0; });
    if (stop_) return;
    IoRequest* request = (now_.n > 0 ? now_ : later_).pop();
    request->state_ = IoRequest::State::under_way;
    for_callers_.notify_all();  // room in the queue
    request->status_ = serve_one(&lock, request);
    request->state_ = IoRequest::State::done;
    for_callers_.notify_all();
  }
}

nanoseconds IoThread::link_time(uint64_t bytes) const {
  const uint64_t rate = options_.link.bytes_per_second;
  const double ns = options_.link.latency_us * 1e3 + (rate ? static_cast<double>(bytes) * 1e9 / static_cast<double>(rate) : 0.0);
  return nanoseconds(static_cast<int64_t>(std::min(ns, static_cast<double>(kLongestUs) * 1e3)));
}

// Called with the lock held; the copy runs without it.
Status IoThread::serve_one(std::unique_lock<std::mutex>* lock, IoRequest* request) {
  lock->unlock();
  Fault fault;
  if (options_.fault) fault = options_.fault(*request);
  const Clock::time_point begin = Clock::now();
  Status status;
  if (fault.kind == Fault::Kind::fail) {
    status = std::move(fault.status);
  } else if (fault.kind != Fault::Kind::never) {
    status = device_->copy_in(request->to, request->pieces);
  }
  const uint64_t copied_ns = nanoseconds_in(Clock::now() - begin);
  lock->lock();

  const auto stopped = [this, request] { return stop_ || request->cancelled_; };
  if (fault.kind == Fault::Kind::never) {
    for_thread_.wait(*lock, stopped);
  } else {
    nanoseconds taken = link_time(request->bytes_);
    if (fault.kind == Fault::Kind::late) taken += bounded_us(fault.late_us);
    link_free_ = std::max(link_free_, request->queued_at_) + taken;
    request->link_ns_ = std::max(copied_ns, nanoseconds_in(taken));
    if (link_free_ > Clock::now()) for_thread_.wait_until(*lock, link_free_, stopped);
  }
  // A request that was given up frees the link.
  if (stopped()) link_free_ = std::min(link_free_, Clock::now());
  if (stop_ && !request->cancelled_)  // nobody asks for the status of a cancelled request
    return error(Code::cancelled, "the I/O thread ended during a transfer of %s (%s %u)", request->of, request->part, request->head);
  return status;
}

}  // namespace orrery::kv
