// A lexer of C++ just good enough to tell code from comments and literals: line and block comments, strings,
// raw strings, characters, digit separators.
#include "tests/house/sources.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace orrery::house {
namespace fs = std::filesystem;

namespace {

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

void blank(std::string& text, size_t begin, size_t end) {
  for (size_t i = begin; i < std::min(end, text.size()); ++i) {
    if (text[i] != '\n') text[i] = ' ';
  }
}

// Where the literal that opens at `i` ends: after its closing quote.
size_t end_of_literal(const std::string& text, size_t i) {
  const char quote = text[i];
  if (quote == '"' && i > 0 && text[i - 1] == 'R' && (i < 2 || !is_word(text[i - 2]) || text[i - 2] == '8')) {
    const size_t open = text.find('(', i);
    if (open == std::string::npos) return text.size();
    const std::string close = ")" + text.substr(i + 1, open - i - 1) + "\"";
    const size_t end = text.find(close, open);
    return end == std::string::npos ? text.size() : end + close.size();
  }
  for (size_t j = i + 1; j < text.size(); ++j) {
    if (text[j] == '\\') {
      ++j;
    } else if (text[j] == quote || text[j] == '\n') {
      return j + 1;
    }
  }
  return text.size();
}

bool begins_include(const std::string& text, size_t quote) {
  const size_t line = text.rfind('\n', quote) + 1;  // npos + 1 is 0
  return text.compare(line, 8, "#include") == 0;
}

}  // namespace

std::string Source::text() const {
  std::string all;
  for (const std::string& line : lines) all += line + "\n";
  return all;
}

Source make_source(std::string path, const std::string& text) {
  Source source{std::move(path), {}};
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) source.lines.push_back(line);
  return source;
}

std::vector<Source> sources_below(const std::vector<std::string>& folders, const std::vector<std::string>& extensions) {
  const fs::path root(ORRERY_SOURCE_DIR);
  std::vector<Source> found;
  for (const std::string& folder : folders) {
    if (!fs::is_directory(root / folder)) continue;
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root / folder)) {
      const std::string extension = entry.path().extension().string();
      if (!entry.is_regular_file() || std::find(extensions.begin(), extensions.end(), extension) == extensions.end()) {
        continue;
      }
      std::ifstream file(entry.path(), std::ios::binary);
      std::ostringstream text;
      text << file.rdbuf();
      found.push_back(make_source(fs::relative(entry.path(), root).generic_string(), text.str()));
    }
  }
  std::sort(found.begin(), found.end(), [](const Source& a, const Source& b) { return a.path < b.path; });
  return found;
}

std::vector<std::string> code_of(const Source& source) {
  std::string text = source.text();
  size_t i = 0;
  while (i < text.size()) {
    size_t end = i + 1;
    if (text.compare(i, 2, "//") == 0) {
      end = std::min(text.find('\n', i), text.size());
      blank(text, i, end);
    } else if (text.compare(i, 2, "/*") == 0) {
      end = text.find("*/", i + 2);
      end = end == std::string::npos ? text.size() : end + 2;
      blank(text, i, end);
    } else if (text[i] == '"' || (text[i] == '\'' && (i == 0 || !is_word(text[i - 1])))) {
      end = end_of_literal(text, i);
      if (!begins_include(text, i)) blank(text, i + 1, end - 1);
    }
    i = end;
  }
  return make_source(source.path, text).lines;
}

std::vector<Include> includes_of(const Source& source) {
  std::vector<Include> includes;
  const std::vector<std::string> code = code_of(source);
  for (size_t i = 0; i < code.size(); ++i) {
    const size_t hash = code[i].find_first_not_of(" \t");
    if (hash == std::string::npos || code[i][hash] != '#') continue;
    const size_t word = code[i].find_first_not_of(" \t", hash + 1);
    if (word == std::string::npos || code[i].compare(word, 7, "include") != 0) continue;
    const size_t open = code[i].find_first_of("\"<", word);
    if (open == std::string::npos) continue;
    const bool quoted = code[i][open] == '"';
    const size_t close = code[i].find(quoted ? '"' : '>', open + 1);
    if (close == std::string::npos) continue;
    includes.push_back({i + 1, code[i].substr(open + 1, close - open - 1), quoted});
  }
  return includes;
}

std::vector<std::string> find_words(const Source& source, const std::vector<std::string>& words) {
  std::vector<std::string> found;
  const std::vector<std::string> code = code_of(source);
  for (size_t i = 0; i < code.size(); ++i) {
    for (const std::string& word : words) {
      for (size_t at = code[i].find(word); at != std::string::npos; at = code[i].find(word, at + 1)) {
        const size_t end = at + word.size();
        const bool continues = end < code[i].size() && is_word(word.back()) && is_word(code[i][end]);
        if ((at > 0 && is_word(code[i][at - 1])) || continues) continue;
        found.push_back(source.path + ":" + std::to_string(i + 1) + ": " + word);
      }
    }
  }
  return found;
}

}  // namespace orrery::house
