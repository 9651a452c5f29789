#include "runtime/engine/sequence/page_feed.h"

#include <system_error>

#include "runtime/os/os.h"

namespace orrery::engine {

std::unique_ptr<PageFeed> PageFeed::start(Read read) {
  std::unique_ptr<PageFeed> feed(new PageFeed(std::move(read)));
  bool started = true;
  {
    const os::SignalsBlocked blocked;
    try {
      feed->thread_ = std::thread([f = feed.get()] { f->run(); });
    } catch (const std::system_error&) {
      started = false;
    }
  }
  if (!started) feed->run();
  return feed;
}

PageFeed::~PageFeed() {
  stop_.store(true, std::memory_order_relaxed);
  if (thread_.joinable()) thread_.join();
}

void PageFeed::run() {
  Status result;
  try {
    result = read_(&stop_);
  } catch (const std::exception&) {
    result = error(Code::out_of_host_memory, "the system has no memory to read the session's pages");
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    result_ = std::move(result), done_ = true;
  }
  ended_.notify_all();
}

Status PageFeed::wait(const Cancel& cancel) {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!done_) {
    if (cancel.asked()) return error(Code::cancelled, "cancelled while the session's pages are read");
    if (cancel.possible()) ended_.wait_for(lock, kAskEvery);
    else ended_.wait(lock);
  }
  return result_.ok() ? ok_status() : Status(result_.detail());
}

}  // namespace orrery::engine
