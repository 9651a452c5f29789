// See line_editor.h. A frame's rows follow the terminal's own way to break lines: a row is full when its columns are, and a wide
// character that does not fit begins the next row. So a terminal that breaks its lines again on a resize arrives at the same
// rows as a new frame.
#include "terminal/line_editor.h"

#include <algorithm>

#include "terminal/characters.h"

namespace orrery::tool {
namespace {

constexpr std::string_view kFence = "\"\"\"";
constexpr size_t kTab = 4;

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

bool is_word(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return byte >= 0x80 || (byte >= '0' && byte <= '9') || (byte >= 'A' && byte <= 'Z') || (byte >= 'a' && byte <= 'z') || byte == '_';
}

// The character at a place; text_ is well-formed.
std::string_view character_at(std::string_view text, size_t at) {
  return text.substr(at, std::max<size_t>(character_bytes(text.substr(at)), 1));
}

constexpr std::string_view kJoiner = "\xE2\x80\x8D";  // joins two characters to one picture

bool combines(std::string_view character) { return character.size() > 1 && character_cells(character) == 0; }

// A control character as the terminal shows it, or the character itself.
std::string visible(std::string_view character) {
  const auto lead = static_cast<unsigned char>(character[0]);
  if (lead < 0x20) return {'^', static_cast<char>(lead + 0x40)};
  if (lead == 0x7f) return "^?";
  return printable(character);
}

// Builds the rows of a frame.
class Layout {
 public:
  Layout(size_t columns, Frame* frame) : columns_(columns), frame_(*frame) { frame_.rows.push_back({"", false}); }
  void put(std::string_view shown, size_t cells) {
    if (column_ + cells > columns_) next(true);
    frame_.rows.back().text += shown;
    column_ += cells;
  }
  void next(bool wraps) {
    frame_.rows.back().wraps = wraps;
    frame_.rows.push_back({"", false});
    column_ = 0;
  }
  void mark_cursor(size_t cells_of_next) {
    if (column_ + std::max<size_t>(cells_of_next, 1) > columns_) next(true);  // behind a full row: on the next one
    frame_.row = frame_.rows.size() - 1;
    frame_.column = column_;
  }
  size_t column() const { return column_; }

 private:
  size_t columns_, column_ = 0;
  Frame& frame_;
};

}  // namespace

void LineEditor::begin() {
  text_.clear();
  draft_.clear();
  cursor_ = 0;
  entry_ = history_.size();
  block_ = literal_ = typing_ = cut_ = false;
}

std::string LineEditor::message() const {
  if (!block_) return text_;
  std::string_view inside = std::string_view(text_).substr(kFence.size());
  if (ends_with(inside, kFence)) inside.remove_suffix(kFence.size());
  while (!inside.empty() && inside.front() == '\n') inside.remove_prefix(1);
  while (!inside.empty() && inside.back() == '\n') inside.remove_suffix(1);
  return std::string(inside);
}

void LineEditor::insert(std::string_view text) {
  const size_t room = KeyDecoder::kLargestPaste - std::min(KeyDecoder::kLargestPaste, text_.size());
  if (text.size() > room) {
    cut_ = true;
    size_t n = 0;
    while (n < text.size() && n + character_at(text, n).size() <= room) n += character_at(text, n).size();
    text = text.substr(0, n);
  }
  text_.insert(cursor_, text);
  cursor_ += text.size();
}

void LineEditor::erase(size_t begin, size_t end) {
  text_.erase(begin, end - begin);
  cursor_ = begin;
}

size_t LineEditor::line_end(size_t at) const { return std::min(text_.find('\n', at), text_.size()); }

size_t LineEditor::behind(size_t at) const {
  if (at >= text_.size()) return text_.size();
  size_t next = at + character_at(text_, at).size();
  bool joined = false;
  while (next < text_.size()) {
    const std::string_view character = character_at(text_, next);
    if (!joined && !combines(character)) break;
    joined = character == kJoiner;
    next += character.size();
  }
  return next;
}

size_t LineEditor::before(size_t at) const {
  while (at > 0) {
    do --at;
    while (at > 0 && (static_cast<unsigned char>(text_[at]) & 0xC0) == 0x80);
    const bool joined = at >= kJoiner.size() && text_.compare(at - kJoiner.size(), kJoiner.size(), kJoiner) == 0;
    if (!joined && !combines(character_at(text_, at))) break;
  }
  return at;
}

size_t LineEditor::word_before(size_t at) const {
  while (at > 0 && !is_word(text_[at - 1])) --at;
  while (at > 0 && is_word(text_[at - 1])) --at;
  return at;
}

size_t LineEditor::word_behind(size_t at) const {
  while (at < text_.size() && !is_word(text_[at])) ++at;
  while (at < text_.size() && is_word(text_[at])) ++at;
  return at;
}

void LineEditor::recall(size_t entry) {
  if (entry > history_.size() || entry == entry_) return;
  if (entry_ == history_.size()) draft_ = text_;
  entry_ = entry;
  text_ = entry == history_.size() ? draft_ : history_[entry];
  cursor_ = text_.size();
  literal_ = entry < history_.size();
  block_ = false;
}

// Up and down: within the message by its lines, beyond it by the history.
void LineEditor::move_line(bool up) {
  const size_t begin = line_begin(cursor_), end = line_end(cursor_);
  size_t column = 0;  // in characters
  for (size_t at = begin; at < cursor_; at = behind(at)) ++column;
  if (up ? begin == 0 : end == text_.size()) {
    if (up && entry_ > 0) recall(entry_ - 1);
    if (!up) recall(entry_ + 1);
    return;
  }
  size_t at = up ? line_begin(begin - 1) : end + 1;
  const size_t last = up ? begin - 1 : line_end(at);
  while (at < last && column-- > 0) at = behind(at);
  cursor_ = at;
}

void LineEditor::complete() {
  const std::string_view typed = std::string_view(text_).substr(0, cursor_);
  std::string common;
  size_t n = 0;
  for (const std::string& word : completions_) {
    if (word.compare(0, typed.size(), typed) != 0) continue;
    if (n++ == 0) {
      common = word;
    } else {
      size_t same = 0;
      while (same < common.size() && same < word.size() && common[same] == word[same]) ++same;
      common.resize(same);
    }
  }
  if (n == 0 || typed.empty() || typed[0] != '/') return insert("\t");
  insert(std::string_view(common).substr(typed.size()));
  if (n == 1 && cursor_ == text_.size()) insert(" ");
}

LineEditor::Did LineEditor::enter() {
  if (!literal_ && !block_ && text_.compare(0, kFence.size(), kFence) == 0) block_ = true;
  if (block_) {
    const bool closed = text_.size() >= 2 * kFence.size() && ends_with(text_, kFence);
    if (closed) return Did::submitted;
    insert("\n");
    return Did::edited;
  }
  // An odd number of backslashes: the last one is not itself escaped.
  size_t slashes = 0;
  while (slashes < cursor_ && text_[cursor_ - 1 - slashes] == '\\') ++slashes;
  if (typing_ && slashes % 2 == 1 && cursor_ == text_.size()) {
    erase(cursor_ - 1, cursor_);
    insert("\n");
    return Did::edited;
  }
  cursor_ = text_.size();
  return Did::submitted;
}

LineEditor::Did LineEditor::press(const Key& key) {
  const Did did = carry_out(key);
  typing_ = key.kind == Key::text;
  return did;
}

LineEditor::Did LineEditor::carry_out(const Key& key) {
  switch (key.kind) {
    case Key::text: insert(key.content); break;
    case Key::paste: {
      // The newline behind the last pasted line would only add an empty line.
      std::string_view pasted = key.content;
      while (!pasted.empty() && pasted.back() == '\n' && cursor_ == text_.size() && pasted.size() < KeyDecoder::kLargestPaste / 2)
        pasted.remove_suffix(1);
      if (!literal_ && text_.compare(0, kFence.size(), kFence) == 0) block_ = true;  // typed, and not closed
      insert(pasted);
      literal_ = literal_ || !block_;
      break;
    }
    case Key::enter: return enter();
    case Key::newline: insert("\n"); break;
    case Key::tab: complete(); break;
    case Key::backspace: erase(before(cursor_), cursor_); break;
    case Key::end_or_erase:
      if (text_.empty()) return Did::ended;
      [[fallthrough]];
    case Key::erase: erase(cursor_, behind(cursor_)); break;
    case Key::left: cursor_ = before(cursor_); break;
    case Key::right: cursor_ = behind(cursor_); break;
    case Key::up:
    case Key::down: move_line(key.kind == Key::up); break;
    case Key::history_back:
      if (entry_ > 0) recall(entry_ - 1);
      break;
    case Key::history_forward: recall(entry_ + 1); break;
    case Key::word_left: cursor_ = word_before(cursor_); break;
    case Key::word_right: cursor_ = word_behind(cursor_); break;
    case Key::line_start: cursor_ = line_begin(cursor_); break;
    case Key::line_end: cursor_ = line_end(cursor_); break;
    case Key::erase_word: erase(word_before(cursor_), cursor_); break;
    case Key::erase_next_word: erase(cursor_, word_behind(cursor_)); break;
    case Key::erase_to_start: erase(line_begin(cursor_), cursor_); break;
    case Key::erase_to_end: erase(cursor_, line_end(cursor_)); break;
    case Key::clear_screen: return Did::cleared;
    case Key::interrupt: return Did::interrupted;
    case Key::suspend: return Did::suspended;
    case Key::unknown: break;
  }
  if (text_.empty()) literal_ = block_ = false;
  return Did::edited;
}

Frame LineEditor::frame(std::string_view prompt, std::string_view continuation, size_t columns) const {
  Frame frame;
  Layout layout(std::max<size_t>(columns, 4), &frame);
  const auto put_prompt = [&](std::string_view words) { layout.put(words, words.size()); };
  put_prompt(prompt);
  const std::string_view text = text_;
  for (size_t at = 0;;) {
    if (at == text.size()) {
      if (at == cursor_) layout.mark_cursor(1);
      return frame;
    }
    const std::string_view character = character_at(text, at);
    const bool wide = character.size() > 1;
    const std::string shown = character == "\t" ? std::string(kTab - layout.column() % kTab, ' ') : visible(character);
    const size_t cells = wide ? static_cast<size_t>(character_cells(character)) : character == "\n" ? 1 : shown.size();
    if (at == cursor_) layout.mark_cursor(wide ? cells : 1);  // ^X and tabs may break between their cells
    if (character == "\n") {
      layout.next(false);
      put_prompt(continuation);
    } else if (wide || cells == 1) {
      layout.put(shown, cells);
    } else {
      for (const char c : shown) layout.put(std::string_view(&c, 1), 1);
    }
    at += character.size();
  }
}

std::string FramePainter::paint(const Frame& frame, size_t prompt_bytes, size_t lines, std::string_view style_begin,
                                std::string_view style_end, bool moved) {
  const size_t height = std::max<size_t>(lines, 1), n = frame.rows.size();
  if (moved) row_ = std::min(frame.row - std::min(frame.row, top_), height - 1);
  std::string bytes;
  if (row_ > 0) bytes += "\x1b[" + std::to_string(row_) + "A";
  bytes += "\r\x1b[J";
  top_ = std::min(top_, n - std::min(n, height));
  if (frame.row < top_) top_ = frame.row;
  if (frame.row >= top_ + height) top_ = frame.row - height + 1;
  const size_t end = std::min(n, top_ + height);
  for (size_t i = top_; i < end; ++i) {
    const std::string& text = frame.rows[i].text;
    if (i == 0 && text.size() >= prompt_bytes) {
      bytes += style_begin;
      bytes += text.substr(0, prompt_bytes);
      bytes += style_end;
      bytes += text.substr(prompt_bytes);
    } else {
      bytes += text;
    }
    if (i + 1 == end) continue;
    if (!frame.rows[i].wraps) {
      bytes += "\r\n";
    } else if (frame.rows[i + 1].text.empty()) {
      bytes += " \r";  // a full line goes on when the next character comes
    }
  }
  last_row_ = end - 1 - top_;
  row_ = frame.row - top_;
  if (last_row_ > row_) bytes += "\x1b[" + std::to_string(last_row_ - row_) + "A";
  bytes += "\r";
  if (frame.column > 0) bytes += "\x1b[" + std::to_string(frame.column) + "C";
  return bytes;
}

std::string FramePainter::leave() {
  std::string bytes;
  if (last_row_ > row_) bytes = "\x1b[" + std::to_string(last_row_ - row_) + "B";
  forget();
  return bytes + "\r\n";
}

}  // namespace orrery::tool
