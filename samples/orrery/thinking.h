// A model's thinking: text between <think> and </think> (or their kin) at the beginning of an answer. The markers are text to the
// library; the tool tells thinking and answer apart while both are streamed, and shows the thinking as the user wishes.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "terminal/output.h"
#include "terminal/word_wrap.h"

namespace orrery::tool {

enum class Thinking {
  show,  // with its markers, as the model writes it
  dim,   // in faint letters, without the markers
  fold,  // one line that counts, then one line that tells how long it took
  hide   // nothing
};
extern const std::vector<const char*> kThinkingNames;  // in the order above

// Splits streamed text. Text comes in whole characters, in any pieces.
class ThinkingSplitter {
 public:
  // `inside`: the prompt ends with an opening marker, so the answer begins as thinking.
  explicit ThinkingSplitter(bool inside);
  struct Piece {
    enum Kind { answer, thinking, opened, closed } kind;
    std::string text;  // opened and closed: the marker
  };
  std::vector<Piece> feed(std::string_view text);
  std::vector<Piece> end();  // what was held back because a marker might have begun

 private:
  enum class State { before, inside, after } state_;
  std::string held_, closing_;
};

// Whether a rendered prompt ends with an opening marker.
bool opens_thinking(std::string_view prompt);

// Writes an answer with its thinking.
class AnswerWriter {
 public:
  // `live`: the output obeys escape codes, so that the folded line can count.
  AnswerWriter(Output& out, Thinking thinking, Style style, bool inside, bool live);
  void text(std::string_view text);
  void end();  // the answer is over, at whatever point

 private:
  void write(const ThinkingSplitter::Piece& piece);
  void open();
  void close();
  void draw_fold();
  void say(std::string_view text) { out_.text(wrap_.feed(text)); }

  Output& out_;
  const Thinking thinking_;
  const Style style_;
  const bool live_;
  ThinkingSplitter splitter_;
  WordWrap wrap_;
  using Clock = std::chrono::steady_clock;
  Clock::time_point begun_{}, drawn_{};
  uint64_t words_ = 0;
  std::string held_blank_;  // behind the thoughts so far
  bool thinking_now_ = false, any_thought_ = false, skip_blank_ = false, in_word_ = false;
};

}  // namespace orrery::tool
