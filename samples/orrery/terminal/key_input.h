// The keys of a terminal, in the order in which they were pressed. While nobody reads a message - the model loads, an answer is
// under way - a TypeAhead collects the keys: nothing is echoed, and the next message begins with them. Only Ctrl-C and Ctrl-Z act at
// once.
#pragma once

#include <deque>
#include <optional>
#include <thread>

#include "system/terminal.h"
#include "terminal/keys.h"

namespace orrery::tool {

class KeyInput {
 public:
  explicit KeyInput(int screen) : terminal_(screen) {}

  enum class Woke { key, resized, interrupted, closed };
  // Waits for the next key. interrupted: SIGINT came from outside. closed: the terminal is gone.
  Woke next(Key* key);
  bool more();  // another key can be read at once
  void suspend() { terminal_.suspend(); }

 private:
  friend class TypeAhead;
  bool read_some();      // false: the terminal is gone
  int patience() const;  // milliseconds until an unfinished key is given up

  RawTerminal terminal_;
  KeyDecoder decoder_;
  std::deque<Key> keys_;
  bool closed_ = false;
};

// Collects keys on a thread of its own during its lifetime. KeyInput's functions must not be called meanwhile.
class TypeAhead {
 public:
  explicit TypeAhead(KeyInput* keys);  // nullptr: does nothing
  ~TypeAhead();
  TypeAhead(const TypeAhead&) = delete;
  TypeAhead& operator=(const TypeAhead&) = delete;

 private:
  void collect();
  KeyInput* keys_;
  std::optional<RawTerminal::Stop> stop_;
  std::thread thread_;
};

}  // namespace orrery::tool
