// What the library declares, it uses: a function that a header of the library declares and that only tests call belongs to the tests. The
// rule reads words: a word before a parenthesis behind a type is a declaration or a definition, each other place of the word is a use.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <set>

#include "tests/house/sources.h"

namespace orrery::house {
namespace {

// What tests ask of the library for a reason: faults and memory that they put in, states that no caller sees, and tables that they walk
// over so that no row goes untested. And one variable that a macro declares.
const std::set<std::string> kForTests = {
    "set_step_fault",  "assume_prompt", "share_in_parts_of",                  // put in
    "n_accounts",      "page_span",     "of_path",                            // seen
    "withheld_bytes",                                                         // seen
    "available_paths", "filter_names",  "test_names",        "global_names",  // tables
    "method_names",                                                           // tables
    "scope",
};

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// Whether what ends before `end` is a type, so that a word behind it is declared.
bool ends_with_type(const std::string& text, size_t end) {
  static const std::set<std::string> kNoTypes = {"return", "else", "case", "throw",     "new",      "delete",   "do",     "and",
                                                 "or",     "not",  "goto", "constexpr", "typename", "operator", "inline", "asm"};
  const size_t behind = end;
  while (end > 0 && std::isspace(static_cast<unsigned char>(text[end - 1]))) --end;
  if (end == behind || end == 0) return false;
  if (is_word(text[end - 1])) {
    size_t begin = end;
    while (begin > 0 && is_word(text[begin - 1])) --begin;
    return !std::isdigit(static_cast<unsigned char>(text[begin])) && kNoTypes.count(text.substr(begin, end - begin)) == 0;
  }
  // In one format a reference, a pointer or a list of template arguments touches the type, and an operator does not.
  return end > 1 && (text[end - 1] == '>' || text[end - 1] == '*' || text[end - 1] == '&') &&
         (is_word(text[end - 2]) || text[end - 2] == '>' || text[end - 2] == '*');
}

// Names that headers declare as functions, and no code of the sources uses.
std::vector<std::string> unused_functions(const std::vector<Source>& sources) {
  std::map<std::string, std::string> declared;  // where
  std::set<std::string> used;
  for (const Source& source : sources) {
    const bool header = source.path.substr(source.path.rfind('.')).find('h') != std::string::npos;
    std::string text;
    for (const std::string& line : code_of(source)) text += (line.compare(0, 8, "#include") == 0 ? "" : line) + "\n";
    for (size_t at = 0; at < text.size(); ++at) {
      if (!is_word(text[at])) continue;
      size_t end = at;
      while (end < text.size() && is_word(text[end])) ++end;
      const std::string word = text.substr(at, end - at);
      size_t begin = at;  // of the name with its scopes
      while (begin > 2 && text[begin - 1] == ':' && text[begin - 2] == ':' && is_word(text[begin - 3])) {
        begin -= 2;
        while (begin > 0 && is_word(text[begin - 1])) --begin;
      }
      if (end < text.size() && text[end] == '(' && ends_with_type(text, begin)) {
        if (header)
          declared.emplace(
              word, source.path + ":" + std::to_string(std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n') + 1));
      } else {
        used.insert(word);
      }
      at = end;
    }
  }
  std::vector<std::string> complaints;
  for (const auto& [name, where] : declared)
    if (used.count(name) == 0) complaints.push_back(where + ": nothing in the library uses " + name);
  return complaints;
}

TEST(HouseCalls, OnlyWhatTheLibraryUsesStandsInIt) {
  std::vector<Source> sources = sources_below({"capi", "runtime", "cuda"}, {".h", ".c", ".cpp", ".cu", ".cuh"});
  // These declare words of CUDA and of PTX.
  sources.erase(std::remove_if(sources.begin(), sources.end(),
                               [](const Source& s) { return s.path == "cuda/device/words.h" || s.path == "cuda/device/ptx.h"; }),
                sources.end());
  ASSERT_GT(sources.size(), 400u);
  std::set<std::string> for_tests = kForTests;
  for (const std::string& complaint : unused_functions(sources))
    if (for_tests.erase(complaint.substr(complaint.rfind(' ') + 1)) == 0) ADD_FAILURE() << complaint;
  for (const std::string& name : for_tests) ADD_FAILURE() << name << " is used or gone: it needs no exception";
}

TEST(HouseCalls, UnusedFunctionsAreSeen) {
  const auto found = [](const std::string& header, const std::string& code) {
    return unused_functions({make_source("runtime/a.h", header), make_source("runtime/a.cpp", "#include \"runtime/f.h\"\n" + code)}).size();
  };
  EXPECT_EQ(found("int f(int x);\n", "int f(int x) { return x; }  // f(1)\n"), 1u);
  EXPECT_EQ(found("Result<Tokens> f(int x);\nconst char* g();\nT& h();", "Result<Tokens> Class::f(int x) {}\nconst char* n::g() {}\n"), 3u);
  EXPECT_EQ(found("int f(int x);\n", "int y = f(1);\n"), 0u);
  EXPECT_EQ(found("int f(int x);\n", "return f(1);\n"), 0u);
  EXPECT_EQ(found("int f(int x);\n", "a * f(1) > b && f(2);\n"), 0u);
  EXPECT_EQ(found("int f(int x);\n", "{\n  n::f(1);\n}\n"), 0u);
  EXPECT_EQ(found("int f(int x);\n", "call(&f);\n"), 0u);
  EXPECT_EQ(found("struct A { int f() const { return 1; } };\n", "a.f();\n"), 0u);
  EXPECT_EQ(found("struct A { int f() const { return 1; } };\n", "int g() { return \"f()\"; }\n"), 1u);
}

}  // namespace
}  // namespace orrery::house
