// See outbox.h.
#include "answers/outbox.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace orrery::server {

void Outbox::resume() {
  if (!parked_) return;
  parked_ = false;
  MHD_resume_connection(connection_);
}

void Outbox::begin(int status, bool stream) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (status_ != 0) return;
  stream_ = stream;
  status_ = status;
  if (ready()) resume();
}

void Outbox::append(std::string_view text) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (gone_) return;
  text_.append(text);
  if (ready()) resume();
}

void Outbox::end() {
  std::lock_guard<std::mutex> lock(mutex_);
  ended_ = true;
  resume();
}

size_t Outbox::waiting_bytes() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return text_.size() - sent_;
}

std::string Outbox::whole_text() {
  std::lock_guard<std::mutex> lock(mutex_);
  return std::move(text_);
}

bool Outbox::park() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (ready()) return false;
  parked_ = true;
  MHD_suspend_connection(connection_);
  return true;
}

ssize_t Outbox::take(char* to, size_t capacity) {
  std::lock_guard<std::mutex> lock(mutex_);
  const size_t n = std::min(capacity, text_.size() - sent_);
  if (n == 0 && ended_) return -1;
  if (n == 0) {
    parked_ = true;
    MHD_suspend_connection(connection_);
    return 0;
  }
  std::memcpy(to, text_.data() + sent_, n);
  sent_ += n;
  if (sent_ == text_.size()) text_.clear(), sent_ = 0;
  if (sent_ > text_.size() / 2) text_.erase(0, sent_), sent_ = 0;
  return static_cast<ssize_t>(n);
}

void Outbox::leave() {
  std::lock_guard<std::mutex> lock(mutex_);
  gone_ = true;
  parked_ = false;  // the connection is no longer there to be resumed
  text_.clear();
  sent_ = 0;
}

}  // namespace orrery::server
