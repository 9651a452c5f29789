// Streamed text for a terminal, whose lines break between words. A terminal would break them at its edge. Text comes in whole characters,
// in any pieces; a word is held until its end is known. Lines of code between fences are left as they are.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace orrery::tool {

class WordWrap {
 public:
  // `columns` 0: text stays as it is. `begins`: the column in which a text begins.
  explicit WordWrap(size_t columns, size_t begins = 0) : columns_(columns), begins_(begins), column_(begins) {}
  std::string feed(std::string_view text);  // what can be written now
  std::string end();                        // the held word; then another text may begin

 private:
  void flush(std::string* out);

  const size_t columns_, begins_;
  size_t column_, held_cells_ = 0;
  std::string held_;
  bool fenced_ = false, line_begins_ = true;
};

}  // namespace orrery::tool
