// The pages of a session's file, read behind its back: the session has its tokens, its resident KV and its last logits, and whoever needs
// its pages waits for the feed.
//
// A thread of the feed reads the file piece by piece, sums it up, and uploads the pages, each piece in a turn of its own. At the end it
// compares the checksum. Nobody attends to a page before the whole file is known to be right.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>

#include "runtime/base/cancel.h"
#include "runtime/base/status.h"

namespace orrery::engine {

class PageFeed {
 public:
  // Reads and uploads all pages, and checks them; ends soon after the flag is set, with any status.
  using Read = std::function<Status(const std::atomic<bool>* stop)>;
  // Starts the thread. Without one, `read` runs here.
  static std::unique_ptr<PageFeed> start(Read read);
  // Stops the thread. The caller has no turn.
  ~PageFeed();
  PageFeed(const PageFeed&) = delete;
  PageFeed& operator=(const PageFeed&) = delete;

  // Waits until all pages are there. The caller has no turn. cancelled: they still come. Any other error is that of reading.
  Status wait(const Cancel& cancel);

 private:
  explicit PageFeed(Read read) : read_(std::move(read)) {}
  void run();
  Read read_;
  std::atomic<bool> stop_{false};
  std::mutex mutex_;  // guards done_, result_
  std::condition_variable ended_;
  bool done_ = false;
  Status result_;
  std::thread thread_;
};

}  // namespace orrery::engine
