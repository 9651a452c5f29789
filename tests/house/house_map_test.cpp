// The map of the house stays true by itself: folders are small, folders include each other one way, and each file has its line in the
// README that is nearest to it.  As with the other rules, each is a function to complaints, so that a test can show that it complains.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <sstream>

#include "tests/house/sources.h"

namespace orrery::house {
namespace {

namespace fs = std::filesystem;

const std::vector<std::string> kCode = {".h", ".c", ".cpp", ".cu", ".cuh"};
const std::vector<std::string> kHouse = {"include", "capi", "runtime", "cuda", "samples"};

// "About twenty": what a person takes in at a glance.
constexpr size_t kMostFiles = 22;

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash);
}

std::vector<std::string> crowded_folders(const std::vector<Source>& sources) {
  std::map<std::string, size_t> files;
  for (const Source& source : sources) ++files[folder_of(source.path)];
  std::vector<std::string> complaints;
  for (const auto& [folder, n] : files)
    if (n > kMostFiles) complaints.push_back(folder + ": " + std::to_string(n) + " source files, at most " + std::to_string(kMostFiles));
  return complaints;
}

TEST(HouseMap, FoldersAreTakenInAtAGlance) {
  const std::vector<Source> sources = sources_below(kHouse, kCode);
  ASSERT_GT(sources.size(), 300u);
  for (const std::string& complaint : crowded_folders(sources)) ADD_FAILURE() << complaint;
}

TEST(HouseMap, CrowdedFoldersAreSeen) {
  std::vector<Source> sources;
  for (size_t i = 0; i <= kMostFiles; ++i) sources.push_back(make_source("runtime/x/f" + std::to_string(i) + ".h", ""));
  EXPECT_EQ(crowded_folders(sources).size(), 1u);
  sources.pop_back();
  EXPECT_EQ(crowded_folders(sources).size(), 0u);
}

// Folder -> folders that its files include, each with one include as an example.
using Arrows = std::map<std::string, std::map<std::string, std::string>>;

// The path that an include of `source` names: from the root, from its program's own folder, or from the file's.
std::string target_of(const Source& source, const std::string& name, const std::set<std::string>& paths) {
  const size_t program = source.path.find('/', source.path.find('/') + 1) + 1;  // "samples/orrery/": 0 without a second folder
  for (const std::string& from : {std::string(), source.path.substr(0, program), folder_of(source.path) + "/"})
    if (paths.count(from + name)) return from + name;
  return "";
}

Arrows arrows_of(const std::vector<Source>& sources) {
  std::set<std::string> paths;
  for (const Source& source : sources) paths.insert(source.path);
  Arrows arrows;
  for (const Source& source : sources) {
    for (const Include& include : includes_of(source)) {
      const std::string target = target_of(source, include.name, paths);
      if (include.quoted && !target.empty() && folder_of(target) != folder_of(source.path))
        arrows[folder_of(source.path)].emplace(folder_of(target), source.path + " includes " + target);
    }
  }
  return arrows;
}

// Every way from a folder back to itself, once for each folder on it.
std::vector<std::string> circles(const Arrows& arrows) {
  std::vector<std::string> complaints;
  for (const auto& from : arrows) {
    const std::string& start = from.first;
    std::set<std::string> seen;
    std::vector<std::string> trail;
    const std::function<bool(const std::string&)> walk = [&](const std::string& folder) {
      const auto at = arrows.find(folder);
      if (at == arrows.end()) return false;
      for (const auto& [next, example] : at->second) {
        if (next != start && !seen.insert(next).second) continue;
        trail.push_back(example);
        if (next == start || walk(next)) return true;
        trail.pop_back();
      }
      return false;
    };
    if (!walk(start)) continue;
    std::string complaint = start + ": its includes lead back to it:";
    for (const std::string& step : trail) complaint += "\n  " + step;
    complaints.push_back(complaint);
  }
  return complaints;
}

TEST(HouseMap, FoldersIncludeEachOtherOneWay) {
  const Arrows arrows = arrows_of(sources_below(kHouse, kCode));
  ASSERT_GT(arrows.size(), 25u);
  for (const std::string& complaint : circles(arrows)) ADD_FAILURE() << complaint;
}

TEST(HouseMap, CirclesAreSeen) {
  const auto found = [](std::vector<Source> sources) { return circles(arrows_of(sources)).size(); };
  const Source low = make_source("runtime/a/low.h", ""), high = make_source("runtime/b/high.h", "#include \"runtime/a/low.h\"\n");
  EXPECT_EQ(found({low, high}), 0u);
  const Source back = make_source("runtime/a/back.h", "#include \"runtime/b/high.h\"\n");
  EXPECT_EQ(found({low, high, back}), 2u) << "both folders are on the circle";
  const Source tool = make_source("samples/orrery/t/t.h", "#include \"u/u.h\"\n"),
               other = make_source("samples/orrery/u/u.h", "#include \"t/t.h\"\n");
  EXPECT_EQ(found({tool, other}), 2u);
}

// The words of a text, as file names are made of: letters, digits and underscores.
std::set<std::string> words_of(const std::string& text) {
  std::set<std::string> words;
  std::string word;
  for (const char c : text + " ") {
    if (std::isalnum(static_cast<unsigned char>(c)) || c == '_') {
      word += c;
    } else if (!word.empty()) {
      words.insert(word);
      word.clear();
    }
  }
  return words;
}

std::string stem_of(const std::string& path) {
  const std::string name = path.substr(path.rfind('/') + 1);
  return name.substr(0, name.find('.'));
}

// Files without a word of their own in the README of their folder, or of the nearest folder above that has one.
std::vector<std::string> unmapped(const std::vector<Source>& sources, const std::function<std::string(const std::string& folder)>& readme) {
  std::map<std::string, std::set<std::string>> words;
  std::vector<std::string> complaints;
  for (const Source& source : sources) {
    std::string folder = folder_of(source.path);
    while (!folder.empty() && readme(folder).empty()) folder = folder_of(folder);
    if (words.count(folder) == 0) words[folder] = words_of(readme(folder));
    if (words[folder].count(stem_of(source.path)) == 0) complaints.push_back(folder + "/README.md has no word of " + source.path);
  }
  return complaints;
}

TEST(HouseMap, EachFileHasItsLineInTheNearestReadme) {
  const auto readme = [](const std::string& folder) {
    std::ifstream file(fs::path(ORRERY_SOURCE_DIR) / folder / "README.md", std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  };
  for (const std::string& complaint : unmapped(sources_below({"capi", "runtime", "cuda", "samples"}, kCode), readme))
    ADD_FAILURE() << complaint;
}

TEST(HouseMap, FilesWithoutALineAreSeen) {
  const std::vector<Source> sources = {make_source("runtime/a/one.h", ""), make_source("runtime/a/b/two_parts.cpp", "")};
  const auto found = [&](const std::string& a) {
    return unmapped(sources, [&](const std::string& folder) { return folder == "runtime/a" ? a : ""; }).size();
  };
  EXPECT_EQ(found("`one` and `b/two_parts`"), 0u);
  EXPECT_EQ(found("`one` and `two`"), 1u);
  EXPECT_EQ(found("none of them"), 2u);
}

}  // namespace
}  // namespace orrery::house
