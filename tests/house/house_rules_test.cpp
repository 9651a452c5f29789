// The rules that this code lives by, as far as reading it can check them: who may include whom, what the
// library never calls, how long a file may grow, how it opens. Each rule is a function from a file to
// complaints, so that the tests can also show that it complains.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <map>
#include <set>

#include "tests/house/sources.h"

namespace orrery::house {
namespace {

const std::vector<std::string> kCode = {".h", ".c", ".cpp", ".cu", ".cuh"};

const std::vector<Source>& library() {
  static const std::vector<Source> sources = sources_below({"include", "capi", "runtime", "cuda"}, kCode);
  return sources;
}

const std::vector<Source>& everything() {
  static const std::vector<Source> sources = sources_below({"include", "capi", "runtime", "cuda", "samples", "tests", "bindings"}, kCode);
  return sources;
}

bool begins_with(const std::string& text, const std::string& begin) { return text.compare(0, begin.size(), begin) == 0; }

void expect_none(const std::vector<std::string>& complaints) {
  for (const std::string& complaint : complaints) ADD_FAILURE() << complaint;
}

template <class Rule>
void expect_all_keep(const std::vector<Source>& sources, Rule rule) {
  ASSERT_GT(sources.size(), 50u) << "these are not all sources";
  for (const Source& source : sources) expect_none(rule(source));
}

// ---- Who may include whom: include <- capi -> runtime <- {cpu, cuda} <- capi/backends ----

// A room's own folder is always open to it. What stands first is what its paths begin with.
const std::vector<std::pair<std::string, std::set<std::string>>> kRooms = {
    {"include/", {}},
    {"runtime/backend/", {"runtime/base/"}},
    {"runtime/base/", {}},
    {"runtime/os/", {"runtime/base/"}},
    {"runtime/gguf/", {"runtime/base/", "runtime/os/"}},
    {"runtime/text/", {"runtime/base/", "runtime/os/", "runtime/gguf/"}},
    {"runtime/cpu/", {"runtime/base/", "runtime/os/", "runtime/backend/"}},
    // By these names the emulated build finds what CUDA's words and instructions mean, and where kernels are registered.
    {"cuda/", {"runtime/base/", "runtime/os/", "runtime/backend/", "ptx_reference.h", "emulated_half.h", "emulated_kernels.h"}},
    {"runtime/kv/", {"runtime/base/", "runtime/os/", "runtime/backend/"}},
    {"runtime/model/", {"runtime/base/", "runtime/gguf/", "runtime/kv/", "runtime/backend/"}},
    {"runtime/policy/", {"runtime/base/", "runtime/text/", "runtime/kv/", "runtime/backend/"}},
    // The engine puts them together, and makes the backend that the options name out of the list that is filled above it.
    {"runtime/engine/",
     {"runtime/base/", "runtime/os/", "runtime/backend/", "runtime/gguf/", "runtime/text/", "runtime/kv/", "runtime/model/",
      "runtime/policy/"}},
    {"capi/backends/", {"runtime/base/", "runtime/backend/", "runtime/cpu/cpu_backend.h", "cuda/cuda_backend.h"}},
    {"capi/", {"include/", "runtime/"}},
    {"samples/", {}},
};

// Policies of papers include the other policies' folders, and no other folder includes them: table.h names them.
constexpr char kPublished[] = "runtime/policy/published/";

std::vector<std::string> wrong_includes(const Source& source) {
  std::vector<std::string> complaints;
  const auto room = std::find_if(kRooms.begin(), kRooms.end(), [&](const auto& r) { return begins_with(source.path, r.first); });
  if (room == kRooms.end()) return {source.path + ": in no room that the rules know"};
  for (const Include& include : includes_of(source)) {
    const std::string where = source.path + ":" + std::to_string(include.line) + ": includes " + include.name;
    if (!include.quoted) {
      const bool cuda = begins_with(include.name, "cuda") || begins_with(include.name, "cublas") || begins_with(include.name, "nv") ||
                        begins_with(include.name, "cooperative_groups");
      if (cuda && source.path != "cuda/device/ptx.h") complaints.push_back(where + ", the toolkit's, which nvcc alone may see");
      if (begins_with(source.path, "include/") && include.name != "stddef.h" && include.name != "stdint.h") {
        complaints.push_back(where + ": the public header needs stddef.h and stdint.h alone");
      }
      continue;
    }
    if (begins_with(source.path, "samples/")) {  // their folders are theirs; ours are closed to them
      const size_t folder = include.name.find('/');
      const std::set<std::string> theirs = {"answers", "base",   "charts", "commands", "eval", "measure",
                                            "net",     "shapes", "system", "terminal", "wire"};
      if (folder != std::string::npos && theirs.count(include.name.substr(0, folder)) == 0)
        complaints.push_back(where + ": more than the public headers");
      continue;
    }
    const std::string name = include.name == "orrery.h" || include.name == "orrery_lab.h" ? "include/" + include.name : include.name;
    const bool own = begins_with(name, room->first);
    const bool open =
        std::any_of(room->second.begin(), room->second.end(), [&](const std::string& allowed) { return begins_with(name, allowed); });
    if (begins_with(name, kPublished) && !begins_with(source.path, kPublished))
      complaints.push_back(where + ", which " + kPublished + " alone may");
    if (!own && !open) complaints.push_back(where + ", which " + room->first + " may not");
  }
  return complaints;
}

TEST(HouseRules, RoomsIncludeOnlyWhatStandsBelowThem) { expect_all_keep(library(), wrong_includes); }

TEST(HouseRules, SamplesKnowThePublicHeaderAlone) {
  const std::vector<Source> samples = sources_below({"samples"}, kCode);
  ASSERT_GT(samples.size(), 5u);
  for (const Source& source : samples) expect_none(wrong_includes(source));
}

TEST(HouseRules, WrongIncludesAreSeen) {
  const auto complaints = [](const char* path, const char* text) { return wrong_includes(make_source(path, text)).size(); };
  EXPECT_EQ(complaints("runtime/cpu/a.cpp", "#include \"runtime/gguf/gguf.h\"\n"), 1u);
  EXPECT_EQ(complaints("runtime/backend/backend.h", "#include \"runtime/model/model.h\"\n"), 1u);
  EXPECT_EQ(complaints("runtime/backend/turn.h", "#include \"runtime/engine/shared/runtime.h\"\n#include \"runtime/backend/backend.h\"\n"),
            1u);
  EXPECT_EQ(complaints("runtime/engine/a.cpp", "#include \"capi/handles.h\"\n#  include \"orrery.h\"\n"), 2u);
  EXPECT_EQ(complaints("runtime/engine/a.cpp", "#include <cuda_runtime.h>\n"), 1u);
  EXPECT_EQ(complaints("runtime/engine/a.cpp", "#include \"cuda/cuda_backend.h\"\n#include \"runtime/cpu/cpu_backend.h\"\n"), 2u);
  EXPECT_EQ(complaints("cuda/a.cpp", "#include <cuda.h>\n#include \"runtime/backend/backend.h\"\n"), 1u);
  EXPECT_EQ(complaints("cuda/device/ptx.h", "#include <cuda_runtime.h>\n#include \"ptx_reference.h\"\n"), 0u);
  EXPECT_EQ(complaints("include/orrery.h", "#include <string.h>\n"), 1u);
  EXPECT_EQ(complaints("samples/orrery/a.cpp", "#include \"runtime/base/span.h\"\n"), 1u);
  EXPECT_EQ(complaints("runtime/policy/table.cpp", "#include \"runtime/policy/published/engines/pages.h\"\n"), 1u);
  EXPECT_EQ(complaints("capi/a.cpp", "#include \"runtime/policy/published/engines/pages.h\"\n"), 1u);
  EXPECT_EQ(complaints("runtime/policy/published/quest.cpp",
                       "#include \"runtime/policy/published/engines/pages.h\"\n#include \"runtime/policy/policy.h\"\n"),
            0u);
  EXPECT_EQ(complaints("elsewhere/a.cpp", ""), 1u);
  EXPECT_EQ(complaints("capi/a.cpp", "#include \"orrery.h\"\n#include \"capi/handles.h\"\n// #include \"x/y.h\"\n"), 0u);
}

// ---- What the library never does ----

// What one file may say: the names of calls that it takes out of mimalloc, which tests/abi/symbols.sh then looks for in the objects; and
// the account that a thread works for, which operator new has no other way to learn.
const std::multimap<std::string, std::string> kAllowedWords = {
    {"runtime/base/allocation/blocks_mimalloc.c", "#define getenv("},
    {"runtime/base/allocation/blocks_mimalloc.c", "#define fputs("},
    {"runtime/base/allocation/blocks_mimalloc.c", "#define atexit("},
    {"runtime/base/allocation/blocks_mimalloc.c", "#define abort("},
    {"runtime/base/allocation/blocks_mimalloc.c", "#undef stderr"},
    {"runtime/base/allocation/blocks_mimalloc.c", "#undef stdout"},
    {"runtime/base/allocation/blocks_mimalloc.c", "#define stderr "},
    {"runtime/base/allocation/blocks_mimalloc.c", "#define stdout "},
    {"runtime/base/allocation/account.cpp", "thread_local Account* current_account"}};

std::vector<std::string> forbidden_words(Source source) {
  const auto [first, last] = kAllowedWords.equal_range(source.path);
  for (auto allowed = first; allowed != last; ++allowed)
    for (std::string& line : source.lines)
      if (begins_with(line, allowed->second)) line.erase(0, allowed->second.size());
  // An instruction that must stay where it stands is no variable.
  for (std::string& line : source.lines)
    if (const size_t at = line.find("asm volatile("); at != std::string::npos) line.replace(at, 12, "asm");
  return find_words(
      source,
      {// ends the process
       "abort(", "exit(", "_exit(", "_Exit(", "quick_exit(", "terminate(", "atexit(", "set_terminate(", "assert(", "kill(",
       // prints
       "printf(", "fprintf(", "vprintf(", "vfprintf(", "puts(", "fputs(", "putchar(", "perror(", "cout", "cerr", "clog", "stdout", "stderr",
       "iostream", "fstream",
       // depends on the process's surroundings
       "getenv(", "secure_getenv(", "setlocale(", "system(", "popen(", "sigaction(", "rand(", "srand(",
       // is undefined or unbounded on hostile input
       "regex", "gets(", "sprintf(", "strcpy(", "strcat(", "atoi(", "atol(", "atof(", "strtok(", "alloca(", "setjmp(", "longjmp(",
       // keeps state outside objects
       "thread_local", "volatile"});
}

TEST(HouseRules, TheLibraryNeitherEndsNorPrintsNorAsksAround) { expect_all_keep(library(), forbidden_words); }

TEST(HouseRules, ForbiddenWordsAreSeen) {
  const Source source = make_source("runtime/a.cpp",
                                    "int f() { abort(); }        // abort\n"
                                    "const char* s = \"exit \\\" \"; /* printf */ int n = 1'000; std::cout << 'c';\n"
                                    "auto raw = R\"x(getenv \" puts)x\"; my_exit(); exit_code();\n"
                                    "#include \"iostream\"\nformat(printf, 1, 2);"
                                    "char c = '\"'; getenv(\"A\");\n"
                                    "asm volatile(\"nop\"); volatile int v;\n");
  EXPECT_EQ(forbidden_words(source),
            (std::vector<std::string>{"runtime/a.cpp:1: abort(", "runtime/a.cpp:2: cout", "runtime/a.cpp:4: iostream",
                                      "runtime/a.cpp:5: getenv(", "runtime/a.cpp:6: volatile"}));
  // What a file may say is its exact words.
  EXPECT_EQ(
      forbidden_words(make_source("runtime/base/allocation/blocks_mimalloc.c", "#define getenv(name) 0\n#define exit(n)\ngetenv(1);\n")),
      (std::vector<std::string>{"runtime/base/allocation/blocks_mimalloc.c:2: exit(",
                                "runtime/base/allocation/blocks_mimalloc.c:3: getenv("}));
}

// ---- What stands above the backends ----

// It asks what a device can do and what a step costs there (BackendInfo, StepCost), and knows no device by its name.
std::vector<std::string> named_devices(const Source& source) {
  std::vector<std::string> complaints;
  const std::vector<std::string> names = {"\"cpu\"", "\"cuda\"", "\"avx", "\"amx", "\"neon", "\"sm_"};
  for (size_t i = 0; i < source.lines.size(); ++i)
    for (const std::string& name : names)
      if (source.lines[i].find(name) != std::string::npos)
        complaints.push_back(source.path + ":" + std::to_string(i + 1) + ": names the device " + name);
  return complaints;
}

TEST(HouseRules, WhatStandsAboveTheBackendsKnowsNoDeviceByName) {
  expect_all_keep(sources_below({"runtime/engine", "runtime/kv", "runtime/model", "runtime/policy"}, kCode), named_devices);
}

TEST(HouseRules, NamedDevicesAreSeen) {
  EXPECT_EQ(named_devices(make_source("runtime/engine/a.cpp",
                                      "const bool wide = set == \"avx512\" || set == \"amx\";\nif (info.name == \"cuda\") {}\n"))
                .size(),
            3u);
  EXPECT_EQ(named_devices(make_source("runtime/engine/a.cpp", "// a sixth of the time with AVX2\nlog(\"on %s\", info.name);\n")).size(),
            0u);
}

// ---- What stands below the policies ----

// It knows questions about keys and answers to them, and no policy of a paper by its name: neither its code nor its pages.
std::vector<std::string> named_policies(const Source& source) {
  static const std::set<std::string> kNames = {"adakv", "adapyramid",  "arkvale",        "cake",     "duoattention", "freekv",
                                               "h2o",   "heterocache", "infinigen",      "loki",     "omnikv",       "pyramidkv",
                                               "quest", "raas",        "razorattention", "shadowkv", "snapkv",       "synckv"};
  std::vector<std::string> complaints;
  for (size_t i = 0; i < source.lines.size(); ++i) {
    std::string word;
    for (const char c : source.lines[i] + " ") {
      if (std::isalnum(static_cast<unsigned char>(c))) {
        word += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
        continue;
      }
      if (kNames.count(word)) complaints.push_back(source.path + ":" + std::to_string(i + 1) + ": names the policy " + word);
      word.clear();
    }
  }
  return complaints;
}

TEST(HouseRules, WhatStandsBelowThePoliciesKnowsNoPolicyByName) {
  expect_all_keep(sources_below({"runtime/engine", "runtime/kv", "runtime/model", "runtime/backend", "runtime/cpu", "runtime/base",
                                 "runtime/os", "cuda"},
                                {".h", ".c", ".cpp", ".cu", ".cuh", ".md"}),
                  named_policies);
}

TEST(HouseRules, NamedPoliciesAreSeen) {
  EXPECT_EQ(named_policies(make_source("runtime/kv/a.h", "// as HeteroCache asks (Loki)\nconst bool x = policy == \"h2o\";\n")).size(), 3u);
  EXPECT_EQ(named_policies(make_source("runtime/kv/a.h", "// a question, a cakewalk\nint request = 1;\n")).size(), 0u);
}

// ---- How a file looks ----

bool opens_with_comment(const Source& source) {
  return !source.lines.empty() && (begins_with(source.lines[0], "//") || begins_with(source.lines[0], "/*"));
}

TEST(HouseRules, EveryFileSaysWhatLivesThere) {
  std::set<std::string> said;
  for (const Source& source : everything()) {
    if (opens_with_comment(source)) said.insert(source.path);
  }
  for (const Source& source : everything()) {
    // Of a pair, the header may speak for both.
    const std::string header = source.path.substr(0, source.path.rfind('.')) + ".h";
    EXPECT_TRUE(said.count(source.path) || said.count(header)) << source.path << " does not open with what lives there";
  }
}

TEST(HouseRules, FilesStayReadable) {
  for (const Source& source : everything()) EXPECT_LE(source.lines.size(), 900u) << source.path << " wants splitting";
}

TEST(HouseRules, NothingIsLeftForLater) {
  const std::vector<std::string> marks = {std::string("TO") + "DO", std::string("FIX") + "ME", std::string("HA") + "CK"};
  for (const Source& source : everything()) {
    for (size_t i = 0; i < source.lines.size(); ++i) {
      for (const std::string& mark : marks) {
        EXPECT_EQ(source.lines[i].find(mark), std::string::npos) << source.path << ":" << i + 1 << ": " << mark;
      }
    }
  }
}

TEST(HouseRules, HeadersGuardThemselves) {
  for (const Source& source : everything()) {
    if (source.path.size() < 2 || source.path.substr(source.path.size() - 2) != ".h") continue;
    const std::string text = source.text();
    EXPECT_TRUE(text.find("#pragma once") != std::string::npos || text.find("\n#ifndef ") != std::string::npos) << source.path;
  }
}

// ---- The tree ----

TEST(HouseRules, NothingElseStandsAtTheTop) {
  const std::set<std::string> known = {"Makefile", "CMakeLists.txt", "README.md", "LICENSE", "include", "runtime",
                                       "cuda",     "capi",           "bindings",  "samples", "tests"};
  for (const auto& entry : std::filesystem::directory_iterator(ORRERY_SOURCE_DIR)) {
    const std::string name = entry.path().filename().string();
    if (name[0] == '.' || (entry.is_directory() && begins_with(name, "build"))) continue;
    EXPECT_TRUE(known.count(name)) << name;
  }
}

}  // namespace
}  // namespace orrery::house
