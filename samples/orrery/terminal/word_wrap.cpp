// See word_wrap.h.
#include "terminal/word_wrap.h"

#include <algorithm>

#include "terminal/characters.h"

namespace orrery::tool {

void WordWrap::flush(std::string* out) {
  if (held_.empty()) return;
  if (line_begins_ && held_.compare(0, 3, "```") == 0) fenced_ = !fenced_;
  if (!fenced_ && column_ > 0 && column_ + held_cells_ > columns_) {
    *out += '\n';
    column_ = 0;
  }
  *out += held_;
  column_ += held_cells_;
  held_.clear();
  held_cells_ = 0;
  line_begins_ = false;
}

std::string WordWrap::feed(std::string_view text) {
  if (columns_ == 0) return std::string(text);
  std::string out;
  while (!text.empty()) {
    const std::string_view character = text.substr(0, std::max<size_t>(character_bytes(text), 1));
    text.remove_prefix(character.size());
    if (character == "\n") {
      flush(&out);
      out += '\n';
      column_ = 0, line_begins_ = true;
    } else if (character == " " || character == "\t") {
      flush(&out);
      if (column_ < columns_ || fenced_) out += character;  // a blank at the edge would begin the next line
      column_ = std::min(character == " " ? column_ + 1 : (column_ / 8 + 1) * 8, fenced_ ? SIZE_MAX : columns_);
    } else {
      const bool control = static_cast<unsigned char>(character[0]) < ' ' || character[0] == 0x7f;
      const auto cells = static_cast<size_t>(control ? 1 : character_cells(character));
      if (cells == 2 || held_cells_ + cells > columns_) flush(&out);  // a line may break between wide characters, and must in a long word
      held_ += character;
      held_cells_ += cells;
      if (cells == 2) flush(&out);
    }
  }
  return out;
}

std::string WordWrap::end() {
  std::string out;
  if (columns_ > 0) flush(&out);
  column_ = begins_, line_begins_ = true, fenced_ = false;
  return out;
}

}  // namespace orrery::tool
