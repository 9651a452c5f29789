// Pages stay true as far as reading can check them: links lead to files, recipes and the life of a token name files that exist, each name
// beside a file stands in it, and each recipe has a test that follows it. Each rule is a function to complaints, so that a test can show
// that it complains.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>

#include "tests/house/sources.h"

namespace orrery::house {
namespace {

namespace fs = std::filesystem;

// The text of a file from the root, empty if there is none; folders are there, and have no text.
struct Tree {
  std::function<bool(const std::string& path)> has;
  std::function<std::string(const std::string& path)> text;
};

Tree real_tree() {
  return {[](const std::string& path) { return fs::exists(fs::path(ORRERY_SOURCE_DIR) / path); },
          [](const std::string& path) {
            std::ifstream file(fs::path(ORRERY_SOURCE_DIR) / path, std::ios::binary);
            std::ostringstream text;
            text << file.rdbuf();
            return text.str();
          }};
}

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}
std::string name_of(const std::string& path) { return path.substr(path.rfind('/') + 1); }
bool is_recipe(const std::string& path) { return name_of(path).rfind("add_a", 0) == 0; }
bool is_page(const std::string& path) { return is_recipe(path) || name_of(path) == "life_of_a_token.md"; }

// What stands between backquotes in a line, in order, each with its place.
struct Quoted {
  size_t begin, end;  // of the quotes
  std::string text;
};
std::vector<Quoted> quoted_in(const std::string& line) {
  std::vector<Quoted> found;
  for (size_t open = line.find('`'); open != std::string::npos;) {
    const size_t close = line.find('`', open + 1);
    if (close == std::string::npos) break;
    found.push_back({open, close + 1, line.substr(open + 1, close - open - 1)});
    open = line.find('`', close + 1);
  }
  return found;
}

// The path that a quotation is, from the root; empty if it is none, or stands for many (NAME).
std::string path_in(const std::string& quoted) {
  const std::string first = quoted.substr(0, quoted.find(' '));
  if (first.find("NAME") != std::string::npos || first.find('/') == std::string::npos ||
      first.find_first_of("()*<>:,") != std::string::npos)
    return "";
  return first;
}

// The last word of a name: `run` of `attention::run()`.
std::string word_in(const std::string& quoted) {
  std::string name = quoted.substr(0, quoted.find('('));
  if (const size_t colons = name.rfind("::"); colons != std::string::npos) name = name.substr(colons + 2);
  const bool word = !name.empty() &&
                    std::all_of(name.begin(), name.end(), [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; });
  return word ? name : "";
}

bool has_word(const std::string& text, const std::string& word) {
  const auto is_word = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; };
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) {
    const size_t end = at + word.size();
    if ((at == 0 || !is_word(text[at - 1])) && (end == text.size() || !is_word(text[end]))) return true;
  }
  return false;
}

// Files that a page names and the tree lacks.
std::vector<std::string> missing_files(const Source& page, const Tree& tree) {
  std::vector<std::string> complaints;
  for (size_t i = 0; i < page.lines.size(); ++i)
    for (const Quoted& quoted : quoted_in(page.lines[i])) {
      const std::string path = path_in(quoted.text);
      if (!path.empty() && !tree.has(path)) complaints.push_back(page.path + ":" + std::to_string(i + 1) + ": there is no " + path);
    }
  return complaints;
}

// A name stands beside a file as `name` (`file`, as `name` in `file`, or in the first cell of a row whose second cell is the file. Counts
// the pairs.
std::vector<std::string> strayed_names(const Source& page, const Tree& tree, size_t* n_pairs) {
  std::vector<std::string> complaints;
  for (size_t i = 0; i < page.lines.size(); ++i) {
    const std::string& line = page.lines[i];
    const std::vector<Quoted> all = quoted_in(line);
    const bool row = line.rfind("| `", 0) == 0;
    const size_t first_cell = row ? line.find(" | `", 3) : std::string::npos;
    for (size_t q = 0; q < all.size(); ++q) {
      const std::string word = path_in(all[q].text).empty() ? word_in(all[q].text) : "";
      if (word.empty()) continue;
      std::string path;
      if (row && first_cell != std::string::npos && all[q].end <= first_cell) {
        for (const Quoted& other : all)
          if (path.empty() && other.begin > first_cell) path = path_in(other.text);
      } else if (q + 1 < all.size()) {
        const std::string between = line.substr(all[q].end, all[q + 1].begin - all[q].end);
        if (between == " (" || between == " in ") path = path_in(all[q + 1].text);
      }
      if (path.empty()) continue;
      ++*n_pairs;
      if (!has_word(tree.text(path), word)) complaints.push_back(page.path + ":" + std::to_string(i + 1) + ": " + path + " has no " + word);
    }
  }
  return complaints;
}

// Links of a page to files, from its own folder, that are not there.
std::vector<std::string> broken_links(const Source& page, const Tree& tree) {
  std::vector<std::string> complaints;
  for (size_t i = 0; i < page.lines.size(); ++i)
    for (size_t at = page.lines[i].find("]("); at != std::string::npos; at = page.lines[i].find("](", at + 1)) {
      const size_t end = page.lines[i].find(')', at);
      std::string link = page.lines[i].substr(at + 2, end == std::string::npos ? end : end - at - 2);
      link = link.substr(0, link.find('#'));
      if (link.empty() || link.find(':') != std::string::npos || link.find(' ') != std::string::npos) continue;
      const std::string path = (fs::path(page.path).parent_path() / link).lexically_normal().generic_string();
      if (!tree.has(path)) complaints.push_back(page.path + ":" + std::to_string(i + 1) + ": its link leads nowhere: " + link);
    }
  return complaints;
}

// A recipe names the test that follows it, and the test names the recipe.
std::vector<std::string> unfollowed(const Source& page, const Tree& tree) {
  for (const std::string& line : page.lines)
    for (const Quoted& quoted : quoted_in(line))
      if (const std::string path = path_in(quoted.text); name_of(path).rfind("toy_", 0) == 0 && ends_with(path, "_test.cpp"))
        return tree.text(path).find(page.path) != std::string::npos ? std::vector<std::string>()
                                                                    : std::vector<std::string>{path + " does not name " + page.path};
  return {page.path + ": no test follows it"};
}

std::vector<Source> pages() {
  std::vector<Source> all = sources_below({"runtime", "cuda"}, {".md"});
  all.erase(std::remove_if(all.begin(), all.end(), [](const Source& page) { return !is_page(page.path); }), all.end());
  return all;
}

void expect_none(const std::vector<std::string>& complaints) {
  for (const std::string& complaint : complaints) ADD_FAILURE() << complaint;
}

TEST(HousePages, RecipesAndTheLifeOfATokenNameFilesThatExist) {
  const std::vector<Source> all = pages();
  ASSERT_EQ(std::count_if(all.begin(), all.end(), [](const Source& page) { return is_recipe(page.path); }), 4);
  ASSERT_EQ(all.size(), 5u);
  for (const Source& page : all) expect_none(missing_files(page, real_tree()));
}

TEST(HousePages, NamesStandInTheFilesBesideThem) {
  size_t n_pairs = 0;
  for (const Source& page : pages()) expect_none(strayed_names(page, real_tree(), &n_pairs));
  EXPECT_GE(n_pairs, 40u);
}

TEST(HousePages, ATestFollowsEachRecipe) {
  for (const Source& page : pages())
    if (is_recipe(page.path)) expect_none(unfollowed(page, real_tree()));
}

TEST(HousePages, LinksLeadToFiles) {
  const std::vector<Source> all = sources_below({"include", "capi", "runtime", "cuda", "samples", "tests", "bindings"}, {".md"});
  ASSERT_GT(all.size(), 30u);
  for (const Source& page : all) expect_none(broken_links(page, real_tree()));
}

TEST(HousePages, WhatIsWrongIsSeen) {
  const Tree tree = {[](const std::string& path) { return path == "a/b.h" || path == "a" || path == "t/toy_x_test.cpp"; },
                     [](const std::string& path) {
                       return std::string(path == "a/b.h" ? "int there(); int thereabouts();" : "// follows a/add_a_thing.md");
                     }};
  const auto page = [](const std::string& text, const char* path = "a/page.md") { return make_source(path, text); };
  EXPECT_EQ(missing_files(page("`a/b.h` and `a/`x, `a/NAME.cpp`, `word`, `f(a/c)`"), tree).size(), 1u) << "a/ with its slash";
  EXPECT_EQ(missing_files(page("`a/b.h`\n`a/c.h --all` `a/d.h`"), tree),
            (std::vector<std::string>{"a/page.md:2: there is no a/c.h", "a/page.md:2: there is no a/d.h"}));
  size_t n = 0;
  EXPECT_TRUE(
      strayed_names(
          page("`X::there()` (`a/b.h`), `there` in `a/b.h`, `gone` and `a/b.h`\n| `X::there`, `thereabouts` | `a/b.h` | as `gone` does |"),
          tree, &n)
          .empty());
  EXPECT_EQ(n, 4u);
  EXPECT_EQ(strayed_names(page("`X::about()` (`a/b.h`), `gone` in `a/b.h`\n| `there`, `her` | `a/b.h` |"), tree, &n).size(), 3u);
  EXPECT_TRUE(broken_links(page("[b](b.h) [up](../a/b.h#part) [web](https://x.org/y) [here](#there)"), tree).empty());
  EXPECT_EQ(broken_links(page("[c](c.h)\n[up](../b.h)"), tree).size(), 2u);
  EXPECT_TRUE(unfollowed(page("`t/toy_x_test.cpp`", "a/add_a_thing.md"), tree).empty());
  EXPECT_EQ(unfollowed(page("`t/toy_x_test.cpp`", "a/add_a_word.md"), tree).size(), 1u);
  EXPECT_EQ(unfollowed(page("`t/x_test.cpp`", "a/add_a_thing.md"), tree).size(), 1u);
}

}  // namespace
}  // namespace orrery::house
