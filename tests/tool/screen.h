// A small terminal for the tests: it obeys the escape codes that the tool writes, breaks lines as terminals do (a full line waits
// for the next character; a wide character that does not fit begins the next line), and breaks them again when it is resized.
#pragma once

#include <string>
#include <vector>

namespace orrery::testing {

class Screen {
 public:
  Screen(size_t columns, size_t lines) : columns_(columns), lines_(lines), rows_(1) {}
  void feed(const std::string& bytes);
  void resize(size_t columns, size_t lines);
  // The visible rows without the blanks at their ends, and without empty rows at the bottom.
  std::vector<std::string> rows() const;
  size_t row() const { return row_ - top(); }  // of the cursor, in rows()
  size_t column() const { return column_; }
  std::string faint() const { return faint_text_; }  // everything written in faint letters
  bool brackets() const { return brackets_; }        // pastes come in brackets
  bool unknown() const { return unknown_; }          // a code came that this terminal does not know

 private:
  struct Row {
    std::vector<std::string> cells;  // "" behind a wide character
    bool wraps = false;
  };
  size_t top() const { return rows_.size() > lines_ ? rows_.size() - lines_ : 0; }
  void put(const std::string& character, size_t width);
  void next_row();
  void escape(const std::string& parameters, char final);

  size_t columns_, lines_;
  std::vector<Row> rows_;
  size_t row_ = 0, column_ = 0;
  bool faint_ = false, brackets_ = false, unknown_ = false;
  std::string faint_text_;
};

}  // namespace orrery::testing
