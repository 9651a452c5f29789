// See key_input.h.
#include "terminal/key_input.h"

#include <string>

namespace orrery::tool {
namespace {

constexpr int kEscapeMilliseconds = 100;       // the bytes of one key follow each other
constexpr int kPasteMilliseconds = 2000;       // a paste over a slow line pauses
constexpr size_t kMostKeys = size_t{1} << 20;  // ahead of a message; a forgotten book on the keyboard fills no memory

}  // namespace

bool KeyInput::read_some() {
  const std::string bytes = terminal_.read_keys();
  if (bytes.empty()) return false;
  std::vector<Key> keys;
  decoder_.feed(bytes, &keys);
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
      case RawTerminal::Ready::input: closed_ = !read_some(); break;
      case RawTerminal::Ready::nothing:
      case RawTerminal::Ready::stopped: {
        std::vector<Key> keys;
        decoder_.rest(&keys);
        keys_.insert(keys_.end(), keys.begin(), keys.end());
        break;
      }
      case RawTerminal::Ready::resize: return Woke::resized;
      case RawTerminal::Ready::interrupt: return Woke::interrupted;
    }
  }
  *key = std::move(keys_.front());
  keys_.pop_front();
  return Woke::key;
}

bool KeyInput::more() {
  if (keys_.empty() && !closed_ && terminal_.has_keys()) closed_ = !read_some();
  return !keys_.empty();
}

TypeAhead::TypeAhead(KeyInput* keys) : keys_(keys) {
  if (!keys_) return;
  stop_.emplace();
  thread_ = start_helper([this] { collect(); });
}

TypeAhead::~TypeAhead() {
  if (!keys_) return;
  stop_->set();
  thread_.join();
}

void TypeAhead::collect() {
  size_t seen = keys_->keys_.size();
  for (;;) {
    const RawTerminal::Ready ready = keys_->terminal_.wait_beside(keys_->patience(), *stop_);
    if (ready == RawTerminal::Ready::stopped) return;
    if (ready == RawTerminal::Ready::nothing) {
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
        press_interrupt();
      } else {
        keys_->suspend();
      }
    }
    if (keys_->keys_.size() > kMostKeys) keys_->keys_.resize(kMostKeys);
    seen = keys_->keys_.size();
  }
}

}  // namespace orrery::tool
