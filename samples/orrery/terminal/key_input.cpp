// See key_input.h.
#include "terminal/key_input.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <string>

#include "terminal/failure.h"

namespace orrery::tool {
namespace {

constexpr int kEscapeMilliseconds = 100;    // the bytes of one key follow each other
constexpr int kPasteMilliseconds = 2000;    // a paste over a slow line pauses
constexpr size_t kMostKeys = size_t{1} << 20;   // ahead of a message; a forgotten book on the keyboard fills no memory

}  // namespace

bool KeyInput::read_some() {
  char bytes[4096];
  ssize_t n;
  do n = read(kStdin, bytes, sizeof bytes);
  while (n < 0 && errno == EINTR);
  if (n <= 0) return false;
  std::vector<Key> keys;
  decoder_.feed(std::string_view(bytes, static_cast<size_t>(n)), &keys);
  keys_.insert(keys_.end(), keys.begin(), keys.end());
  return true;
}

int KeyInput::patience() const {
  if (!decoder_.waiting()) return -1;
  return decoder_.pasting() ? kPasteMilliseconds : kEscapeMilliseconds;
}

KeyInput::Woke KeyInput::next(Key* key) {
  while (keys_.empty()) {
    if (closed_) return Woke::closed;
    switch (terminal_.wait(patience())) {
      case RawTerminal::Ready::input:
        closed_ = !read_some();
        break;
      case RawTerminal::Ready::nothing: {
        std::vector<Key> keys;
        decoder_.rest(&keys);
        keys_.insert(keys_.end(), keys.begin(), keys.end());
        break;
      }
      case RawTerminal::Ready::resize:
        return Woke::resized;
      case RawTerminal::Ready::interrupt:
        return Woke::interrupted;
    }
  }
  *key = std::move(keys_.front());
  keys_.pop_front();
  return Woke::key;
}

bool KeyInput::more() {
  struct pollfd input = {kStdin, POLLIN, 0};
  if (keys_.empty() && !closed_ && poll(&input, 1, 0) == 1) closed_ = !read_some();
  return !keys_.empty();
}

TypeAhead::TypeAhead(KeyInput* keys) : keys_(keys) {
  if (!keys_) return;
  if (pipe2(stop_, O_CLOEXEC) != 0) throw Failure(kExitFailure, std::string("cannot make a pipe: ") + std::strerror(errno));
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before);   // signals belong to the main thread
  thread_ = std::thread([this] { collect(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

TypeAhead::~TypeAhead() {
  if (!keys_) return;
  close(stop_[1]);   // the reading end wakes
  thread_.join();
  close(stop_[0]);
}

void TypeAhead::collect() {
  struct pollfd waiting[] = {{stop_[0], POLLIN, 0}, {kStdin, POLLIN, 0}};
  size_t seen = keys_->keys_.size();
  for (;;) {
    const int n = poll(waiting, 2, keys_->patience());
    if (n < 0 && errno == EINTR) continue;
    if (waiting[0].revents != 0 || n < 0) return;
    if (n == 0) {
      std::vector<Key> keys;
      keys_->decoder_.rest(&keys);
      keys_->keys_.insert(keys_->keys_.end(), keys.begin(), keys.end());
      continue;
    }
    if (!keys_->read_some()) {
      keys_->closed_ = true;
      return;
    }
    // Keys that act at once are taken out.
    for (size_t i = seen; i < keys_->keys_.size();) {
      const Key::Kind kind = keys_->keys_[i].kind;
      if (kind != Key::interrupt && kind != Key::suspend) {
        ++i;
        continue;
      }
      keys_->keys_.erase(keys_->keys_.begin() + static_cast<std::ptrdiff_t>(i));
      if (kind == Key::interrupt) {
        kill(getpid(), SIGINT);
      } else {
        keys_->suspend();
      }
    }
    if (keys_->keys_.size() > kMostKeys) keys_->keys_.resize(kMostKeys);
    seen = keys_->keys_.size();
  }
}

}  // namespace orrery::tool
