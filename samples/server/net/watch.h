// The clock of the connections. libmicrohttpd's own limit counts from a connection's last byte, so a client that sends a byte now and then
// could stay for ever. Here each connection has one deadline for the whole of what it does now: send a request, or read an answer. The
// watch also sees clients that leave while their answer is computed, which libmicrohttpd does not look for.
#pragma once

#include <microhttpd.h>

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "answers/job.h"
#include "base/metrics.h"

namespace orrery::server {

class Watch {
 public:
  // `on_leave`: some client has left.
  Watch(Metrics* metrics, std::function<void()> on_leave);
  ~Watch();
  void opened(MHD_Connection* connection, Clock::time_point deadline);
  void closed(MHD_Connection* connection);
  // A request has arrived whole: its answer has until `deadline`.
  void answering(MHD_Connection* connection, std::shared_ptr<Job> job, Clock::time_point deadline);
  // The answer is over: the next request has until `deadline`.
  void idle(MHD_Connection* connection, Clock::time_point deadline);

 private:
  struct Entry {
    int socket = -1;
    Clock::time_point deadline;
    std::shared_ptr<Job> job;
  };
  void run();
  void look();

  Metrics* metrics_;
  std::function<void()> on_leave_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<MHD_Connection*, Entry> entries_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace orrery::server
