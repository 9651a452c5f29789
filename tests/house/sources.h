// Source files as the house's rules look at them: their path, their lines, and their code without comments
// and literals.
#pragma once

#include <string>
#include <vector>

namespace orrery::house {

struct Source {
  std::string path;  // from the root, "runtime/base/status.h"
  std::vector<std::string> lines;
  std::string text() const;
};

// Splits text into a Source; what tests of the rules themselves are made of.
Source make_source(std::string path, const std::string& text);

// Every file below the folders (relative to the root) that has one of the extensions, sorted by path.
std::vector<Source> sources_below(const std::vector<std::string>& folders, const std::vector<std::string>& extensions);

// The lines with comments, string and character literals blanked; includes keep their names.
std::vector<std::string> code_of(const Source& source);

struct Include {
  size_t line;  // from 1
  std::string name;
  bool quoted;
};
std::vector<Include> includes_of(const Source& source);

// Which of the words occur whole in the code: "path:line: word".  A word may end in "(", as a call does.
std::vector<std::string> find_words(const Source& source, const std::vector<std::string>& words);

}  // namespace orrery::house
