// See screen.h.
#include "screen.h"

#include <algorithm>
#include <cstdlib>

#include "samples/orrery/terminal/characters.h"

namespace orrery::testing {

void Screen::next_row() {
  if (++row_ == rows_.size()) rows_.emplace_back();
}

void Screen::put(const std::string& character, size_t width) {
  if (width == 0) {  // combines with the character before
    auto& cells = rows_[row_].cells;
    size_t at = std::min(column_, cells.size());
    while (at > 0 && cells[at - 1].empty()) --at;
    if (at > 0) cells[at - 1] += character;
    return;
  }
  if (column_ + width > columns_) {
    rows_[row_].wraps = true;
    next_row();
    column_ = 0;
  }
  auto& cells = rows_[row_].cells;
  if (cells.size() < column_ + width) cells.resize(column_ + width, " ");
  cells[column_] = character;
  if (width == 2) cells[column_ + 1] = "";
  column_ += width;
  if (faint_) faint_text_ += character;
}

void Screen::escape(const std::string& parameters, char final) {
  const size_t n = parameters.empty() ? 1 : static_cast<size_t>(std::atoi(parameters.c_str()));
  if (final == 'A') {
    row_ = std::max(row_ < n ? 0 : row_ - n, top());
  } else if (final == 'B') {
    row_ = std::min(row_ + n, rows_.size() - 1);
  } else if (final == 'C') {
    column_ = std::min(column_ + n, columns_ - 1);
  } else if (final == 'J' && parameters.empty()) {
    rows_[row_].cells.resize(std::min(rows_[row_].cells.size(), column_));
    rows_[row_].wraps = false;
    rows_.resize(row_ + 1);
  } else if (final == 'K' && parameters.empty()) {
    rows_[row_].cells.resize(std::min(rows_[row_].cells.size(), column_));
    rows_[row_].wraps = false;
  } else if (final == 'J' && parameters == "2") {
    for (size_t i = top(); i < rows_.size(); ++i) rows_[i] = {};
  } else if (final == 'H' && parameters.empty()) {
    row_ = top();
    column_ = 0;
  } else if (final == 'm') {
    if (n == 2) faint_ = true;
    if (parameters == "0") faint_ = false;
  } else if (parameters == "?2004") {
    brackets_ = final == 'h';
  } else {
    unknown_ = true;
  }
}

void Screen::feed(const std::string& bytes) {
  for (size_t at = 0; at < bytes.size();) {
    const char c = bytes[at];
    if (c == '\r') {
      column_ = 0;
    } else if (c == '\n') {
      next_row();
    } else if (c == '\x1b') {
      if (at + 1 >= bytes.size() || bytes[at + 1] != '[') {
        unknown_ = true;
        ++at;
        continue;
      }
      size_t end = at + 2;
      while (end < bytes.size() && bytes[end] < '@') ++end;
      if (end >= bytes.size()) return;
      escape(bytes.substr(at + 2, end - at - 2), bytes[end]);
      at = end + 1;
      continue;
    } else if (static_cast<unsigned char>(c) < 0x20 || c == '\x7f') {
      unknown_ = true;
    } else {
      const size_t n = std::max<size_t>(tool::character_bytes(std::string_view(bytes).substr(at)), 1);
      const std::string character = bytes.substr(at, n);
      put(character, static_cast<size_t>(tool::character_cells(character)));
      at += n;
      continue;
    }
    ++at;
  }
}

void Screen::resize(size_t columns, size_t lines) {
  // The place of the cursor as a row that ends by itself, and a number of cells before it.
  std::vector<Row> old;
  old.swap(rows_);
  const size_t cursor_row = row_, cursor_column = column_;
  columns_ = columns, lines_ = lines;
  rows_.emplace_back();
  row_ = column_ = 0;
  size_t new_row = 0, new_column = 0;
  for (size_t i = 0; i < old.size(); ++i) {
    const size_t n = std::max(old[i].cells.size(), i == cursor_row ? cursor_column : 0);
    for (size_t c = 0; c <= n; ++c) {
      if (i == cursor_row && c == cursor_column) new_row = row_, new_column = column_;
      if (c >= old[i].cells.size() || old[i].cells[c].empty()) continue;
      const size_t width = c + 1 < old[i].cells.size() && old[i].cells[c + 1].empty() ? 2 : 1;
      if (column_ + width > columns_) {
        rows_[row_].wraps = true;
        next_row();
        column_ = 0;
        if (i == cursor_row && c == cursor_column) new_row = row_, new_column = 0;
      }
      put(old[i].cells[c], width);
    }
    if (!old[i].wraps && i + 1 < old.size()) {
      next_row();
      column_ = 0;
    }
  }
  row_ = new_row, column_ = std::min(new_column, columns_);
}

std::vector<std::string> Screen::rows() const {
  std::vector<std::string> texts;
  for (size_t i = top(); i < rows_.size(); ++i) {
    std::string text;
    for (const std::string& cell : rows_[i].cells) text += cell;
    text.resize(text.find_last_not_of(' ') + 1);
    texts.push_back(text);
  }
  while (!texts.empty() && texts.back().empty()) texts.pop_back();
  return texts;
}

}  // namespace orrery::testing
