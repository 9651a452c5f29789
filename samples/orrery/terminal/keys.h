// Bytes that a terminal sends, as keys. Pure: no terminal is touched here. A paste in brackets (ESC [200~ ... ESC [201~) is one
// key, whatever it holds, so pasted lines are never Enter and pasted control characters are never commands. Bytes may arrive in
// any pieces; invalid UTF-8 becomes U+FFFD.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace orrery::tool {

struct Key {
  enum Kind {
    text,     // one or more typed characters
    paste,    // pasted text with "\n" between lines; a long paste may come as several keys
    enter,    // Enter, or Ctrl-J
    newline,  // Alt-Enter
    tab,
    backspace,
    erase,  // the character behind the cursor; Ctrl-D is `end_or_erase`
    end_or_erase,
    left,
    right,
    up,
    down,
    word_left,
    word_right,
    line_start,
    line_end,
    history_back,
    history_forward,
    erase_word,
    erase_next_word,
    erase_to_start,
    erase_to_end,
    clear_screen,
    interrupt,  // Ctrl-C
    suspend,    // Ctrl-Z
    unknown     // a key without a meaning here
  };
  Kind kind;
  std::string content;  // of text and paste
};

class KeyDecoder {
 public:
  static constexpr size_t kLargestPaste = size_t{8} << 20;  // bytes; the rest of a longer paste is dropped

  void feed(std::string_view bytes, std::vector<Key>* keys);
  // No byte came for a while: a lone ESC is a key of its own, and a paste shows what it holds so far. The next Ctrl-C
  // that comes alone ends a paste whose end never came.
  void rest(std::vector<Key>* keys);
  // More bytes are needed to know the last key.
  bool waiting() const { return !pending_.empty() || pasting_; }
  bool pasting() const { return pasting_; }

 private:
  size_t one_key(std::string_view bytes, std::vector<Key>* keys);  // bytes used; 0: more are needed
  size_t escape(std::string_view bytes, std::vector<Key>* keys);
  void paste_bytes(std::vector<Key>* keys);
  void end_paste_piece(std::vector<Key>* keys);

  std::string pending_;
  bool pasting_ = false, rested_ = false, carriage_ = false;
  std::string piece_;  // of the paste, not yet a key
  size_t pasted_bytes_ = 0;
};

}  // namespace orrery::tool
