// See thinking.h. Only a marker at the beginning of an answer opens thinking: later, an answer may talk about such tags.
#include "thinking.h"

#include <algorithm>

namespace orrery::tool {

const std::vector<const char*> kThinkingNames = {"show", "dim", "fold", "hide"};

namespace {

struct Markers {
  const char *open, *close;
};
constexpr Markers kMarkers[] = {{"<think>", "</think>"},
                                {"<thinking>", "</thinking>"},
                                {"<thought>", "</thought>"},
                                {"[THINK]", "[/THINK]"},
                                {"<|begin_of_thought|>", "<|end_of_thought|>"}};
constexpr std::string_view kBlank = " \t\r\n";
constexpr auto kBetween = std::chrono::milliseconds(200);

bool begins_with(std::string_view text, std::string_view start) { return text.substr(0, start.size()) == start; }

}  // namespace

bool opens_thinking(std::string_view prompt) {
  const size_t last = prompt.find_last_not_of(kBlank);
  if (last == std::string_view::npos) return false;
  prompt = prompt.substr(0, last + 1);
  for (const Markers& markers : kMarkers) {
    const std::string_view open = markers.open;
    if (prompt.size() >= open.size() && prompt.substr(prompt.size() - open.size()) == open) return true;
  }
  return false;
}

ThinkingSplitter::ThinkingSplitter(bool inside) : state_(inside ? State::inside : State::before) {}

std::vector<ThinkingSplitter::Piece> ThinkingSplitter::feed(std::string_view text) {
  std::vector<Piece> pieces;
  held_ += text;
  if (state_ == State::before) {
    const size_t first = held_.find_first_not_of(kBlank);
    const std::string_view rest = first == std::string::npos ? std::string_view() : std::string_view(held_).substr(first);
    bool undecided = rest.empty();
    for (const Markers& markers : kMarkers) {
      if (!begins_with(rest, markers.open)) {
        undecided = undecided || begins_with(markers.open, rest);
        continue;
      }
      closing_ = markers.close;
      pieces.push_back({Piece::opened, held_.substr(0, first + std::string_view(markers.open).size())});
      held_.erase(0, pieces.back().text.size());
      state_ = State::inside;
      undecided = false;
      break;
    }
    if (state_ == State::before && undecided) return pieces;
    if (state_ == State::before) state_ = State::after;
  }
  if (state_ == State::inside) {
    size_t found = std::string::npos, length = 0, keep = 0;
    for (const Markers& markers : kMarkers) {
      const std::string_view close = markers.close;
      if (!closing_.empty() && closing_ != close) continue;  // the prompt opened: any marker closes
      const size_t at = held_.find(close);
      if (at < found) found = at, length = close.size();
      for (size_t n = std::min(close.size() - 1, held_.size()); n > keep; --n) {
        if (std::string_view(held_).substr(held_.size() - n) == close.substr(0, n)) keep = n;
      }
    }
    const size_t n = found == std::string::npos ? held_.size() - keep : found;
    if (n > 0) pieces.push_back({Piece::thinking, held_.substr(0, n)});
    held_.erase(0, n);
    if (found == std::string::npos) return pieces;
    pieces.push_back({Piece::closed, held_.substr(0, length)});
    held_.erase(0, length);
    state_ = State::after;
  }
  if (!held_.empty()) pieces.push_back({Piece::answer, held_});
  held_.clear();
  return pieces;
}

std::vector<ThinkingSplitter::Piece> ThinkingSplitter::end() {
  std::vector<Piece> pieces;
  if (!held_.empty()) pieces.push_back({state_ == State::inside ? Piece::thinking : Piece::answer, held_});
  held_.clear();
  return pieces;
}

AnswerWriter::AnswerWriter(Output& out, Thinking thinking, Style style, bool inside, bool live)
    : out_(out), thinking_(thinking), style_(style), live_(live), splitter_(inside), wrap_(out.columns()) {
  if (inside) open();
}

void AnswerWriter::open() {
  thinking_now_ = true;
  begun_ = drawn_ = Clock::now();
  if (thinking_ == Thinking::dim) out_.write(style_.dim());
  if (thinking_ == Thinking::dim) skip_blank_ = true;
  if (thinking_ == Thinking::fold) draw_fold();
}

void AnswerWriter::draw_fold() {
  if (!live_) return;
  out_.write(std::string("\r") + style_.dim() + "(thinking, " + counted(words_, "word") + ")" + style_.plain() + "\x1b[K");
}

void AnswerWriter::close() {
  if (!thinking_now_) return;
  thinking_now_ = false;
  if (thinking_ != Thinking::show) out_.text(wrap_.end());
  if (thinking_ == Thinking::dim) {
    out_.write(style_.plain());
    if (any_thought_) out_.write("\n\n");
  } else if (thinking_ == Thinking::fold) {
    const double seconds = std::chrono::duration<double>(Clock::now() - begun_).count();
    if (words_ == 0) {
      if (live_) out_.write("\r\x1b[K");
      skip_blank_ = true;
      return;
    }
    out_.write(std::string(live_ ? "\r" : "") + style_.dim() + "(thought for " + format("%.1f s, ", seconds) + counted(words_, "word") +
               ")" + style_.plain() + (live_ ? "\x1b[K" : "") + "\n");
  }
  skip_blank_ = thinking_ != Thinking::show;  // the blank lines between thinking and answer
}

void AnswerWriter::write(const ThinkingSplitter::Piece& piece) {
  using Piece = ThinkingSplitter::Piece;
  std::string_view text = piece.text;
  if (piece.kind == Piece::opened) open();
  if (piece.kind == Piece::opened || piece.kind == Piece::closed) {
    if (thinking_ == Thinking::show) say(text);
    if (piece.kind == Piece::closed) close();
    return;
  }
  if (piece.kind == Piece::thinking && thinking_ != Thinking::show) {
    for (const char c : text) {
      const bool blank = kBlank.find(c) != std::string_view::npos;
      words_ += !blank && !in_word_;
      in_word_ = !blank;
    }
    if (thinking_ == Thinking::fold && Clock::now() - drawn_ >= kBetween) {
      drawn_ = Clock::now();
      draw_fold();
    }
    if (thinking_ != Thinking::dim) return;
  }
  if (skip_blank_) {
    text.remove_prefix(std::min(text.find_first_not_of(kBlank), text.size()));
    if (text.empty()) return;
    skip_blank_ = false;
  }
  if (piece.kind == Piece::thinking && thinking_ == Thinking::dim) {
    any_thought_ = true;
    const size_t last = text.find_last_not_of(kBlank) + 1;  // 0 if all is blank
    if (last > 0) say(held_blank_ + std::string(text.substr(0, last)));
    if (last > 0) held_blank_.clear();
    held_blank_ += text.substr(last);  // written if more thoughts follow
    return;
  }
  say(text);
}

void AnswerWriter::text(std::string_view text) {
  for (const ThinkingSplitter::Piece& piece : splitter_.feed(text)) write(piece);
  out_.flush();
}

void AnswerWriter::end() {
  for (const ThinkingSplitter::Piece& piece : splitter_.end()) write(piece);
  close();
  out_.text(wrap_.end());
  out_.flush();
}

}  // namespace orrery::tool
