// A message while it is typed: text, cursor, history, and its picture as rows of a terminal. Pure: keys in, a frame out;
// line_reader.h connects it with the terminal. A message may have many lines.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "terminal/keys.h"

namespace orrery::tool {

// The message as a terminal of some width shows it. Every row is harmless text: control characters appear as ^X.
struct Frame {
  struct Row {
    std::string text;  // without the prompt's colour
    bool wraps;        // the next row continues this one, because the terminal's line is full
  };
  std::vector<Row> rows;
  size_t row = 0, column = 0;  // of the cursor
};

class LineEditor {
 public:
  enum class Did { edited, submitted, ended, interrupted, suspended, cleared };

  // `completions`: words that Tab completes at the beginning of a message.
  explicit LineEditor(std::vector<std::string> completions = {}) : completions_(std::move(completions)) {}

  void set_history(std::vector<std::string> oldest_first) { history_ = std::move(oldest_first); }
  void begin();  // an empty message
  // submitted: message() is whole. ended: Ctrl-D on an empty message. interrupted: Ctrl-C; the message is dropped at begin().
  Did press(const Key& key);
  // What was typed. A block in """ is without its quotes.
  std::string message() const;
  bool empty() const { return text_.empty(); }
  bool cut() const { return cut_; }  // a paste or a message was longer than the limit of KeyDecoder

  Frame frame(std::string_view prompt, std::string_view continuation, size_t columns) const;

 private:
  void insert(std::string_view text);
  void erase(size_t begin, size_t end);
  size_t before(size_t at) const;  // the character before a place, with what combines with it; the place itself at the beginning
  size_t behind(size_t at) const;
  size_t word_before(size_t at) const;
  size_t word_behind(size_t at) const;
  size_t line_begin(size_t at) const { return at == 0 ? 0 : text_.rfind('\n', at - 1) + 1; }
  size_t line_end(size_t at) const;
  void move_line(bool up);
  void recall(size_t entry);  // history_.size(): the draft
  void complete();
  Did enter();
  Did carry_out(const Key& key);

  std::vector<std::string> completions_, history_;
  std::string text_, draft_;
  size_t cursor_ = 0, entry_ = 0;
  bool block_ = false;    // typed after """
  bool literal_ = false;  // holds pasted or recalled text, whose quotes open no block
  bool typing_ = false;   // the last key was a character, so a backslash before Enter was meant
  bool cut_ = false;
};

// The bytes that bring a terminal from one frame to the next. It rewrites the frame whole, in one piece.
class FramePainter {
 public:
  // `lines`: the terminal's height; a longer message shows the part around the cursor. `style_begin` and `style_end` enclose the
  // prompt. `moved`: the terminal's width changed, and its lines were broken again.
  std::string paint(const Frame& frame, size_t prompt_bytes, size_t lines, std::string_view style_begin, std::string_view style_end,
                    bool moved);
  // Leaves the frame: the next output begins on a line of its own.
  std::string leave();
  void forget() { row_ = 0, last_row_ = 0, top_ = 0; }  // the cursor stands at the beginning of an empty line

 private:
  size_t row_ = 0, last_row_ = 0, top_ = 0;  // of the picture on the terminal: the cursor's row, its last; the first shown
};

}  // namespace orrery::tool
