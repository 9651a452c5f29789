// What one answer sends, between the thread that computes it and the thread that writes it to the connection. The computing thread never
// waits for a reader: it appends, and goes on. The writing thread never waits for the answer: it lays the connection aside (MHD suspends
// it) until there is something to send.
//
// The computing side calls begin(), append() and end(), each at any time and from any thread; end() comes once, always. The writing side
// calls park() and take(), and leave() when the connection is over.
#pragma once

#include <microhttpd.h>
#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <mutex>
#include <string>
#include <string_view>

namespace orrery::server {

class Outbox {
 public:
  explicit Outbox(MHD_Connection* connection) : connection_(connection) {}

  // A status is known. `stream`: text is sent as it comes; else when it has ended. Later calls change nothing.
  void begin(int status, bool stream);
  void append(std::string_view text);
  void end();
  size_t waiting_bytes() const;
  // The client has left, or its time is over: nothing that is appended is sent.
  bool gone() const { return gone_; }
  void mark_gone() { gone_ = true; }

  int status() const { return status_; }
  bool streams() const { return stream_; }
  std::string whole_text();
  // Lays the connection aside, unless its response can begin. Returns whether it has laid it aside.
  bool park();
  // Copies text to `to`. 0: nothing yet, and the connection is laid aside. -1: all has been sent.
  ssize_t take(char* to, size_t capacity);
  void leave();

 private:
  bool ready() const { return ended_ || (stream_ && status_ != 0); }
  void resume();  // with the lock held

  mutable std::mutex mutex_;
  MHD_Connection* connection_;
  std::string text_;
  size_t sent_ = 0;  // bytes at the front of text_ that are sent
  std::atomic<int> status_{0};
  std::atomic<bool> stream_{false}, gone_{false};
  bool ended_ = false, parked_ = false;
};

}  // namespace orrery::server
