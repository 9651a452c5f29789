// See watch.h.
#include "net/watch.h"

#include <poll.h>
#include <sys/socket.h>

#include <utility>
#include <vector>

#ifndef POLLRDHUP
#define POLLRDHUP 0  // where the system has none, POLLHUP alone tells
#endif

namespace orrery::server {

Watch::Watch(Metrics* metrics, std::function<void()> on_leave)
    : metrics_(metrics), on_leave_(std::move(on_leave)), thread_([this] { run(); }) {}

Watch::~Watch() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Watch::opened(MHD_Connection* connection, Clock::time_point deadline) {
  const MHD_ConnectionInfo* info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
  std::lock_guard<std::mutex> lock(mutex_);
  entries_[connection] = {info ? info->connect_fd : -1, deadline, nullptr};
  ++metrics_->connections;
}

void Watch::closed(MHD_Connection* connection) {
  std::lock_guard<std::mutex> lock(mutex_);
  metrics_->connections -= static_cast<int64_t>(entries_.erase(connection));
}

void Watch::answering(MHD_Connection* connection, std::shared_ptr<Job> job, Clock::time_point deadline) {
  std::lock_guard<std::mutex> lock(mutex_);
  Entry& entry = entries_[connection];
  entry.job = std::move(job);
  entry.deadline = deadline;
}

void Watch::idle(MHD_Connection* connection, Clock::time_point deadline) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto at = entries_.find(connection);
  if (at == entries_.end()) return;
  at->second.job.reset();
  at->second.deadline = deadline;
}

void Watch::run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stopping_) {
    changed_.wait_for(lock, std::chrono::milliseconds(50));
    look();
  }
}

// With the lock held: libmicrohttpd closes a socket only after closed(), which waits for the lock.
void Watch::look() {
  const auto now = Clock::now();
  std::vector<pollfd> sockets;
  std::vector<Job*> jobs;
  for (auto& [connection, entry] : entries_) {
    if (entry.socket < 0) continue;
    if (now >= entry.deadline) {
      shutdown(entry.socket, SHUT_RDWR);
      entry.deadline = Clock::time_point::max();
      ++metrics_->closed_late;
    }
    if (!entry.job || entry.job->outbox.gone()) continue;
    sockets.push_back({entry.socket, POLLRDHUP, 0});
    jobs.push_back(entry.job.get());
  }
  if (sockets.empty() || poll(sockets.data(), static_cast<nfds_t>(sockets.size()), 0) <= 0) return;
  bool left = false;
  for (size_t i = 0; i < sockets.size(); ++i) {
    if (!(sockets[i].revents & (POLLRDHUP | POLLHUP | POLLERR))) continue;
    jobs[i]->outbox.mark_gone();
    left = true;
  }
  if (left) on_leave_();
}

}  // namespace orrery::server
