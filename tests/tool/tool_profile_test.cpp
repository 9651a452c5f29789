// `orrery profile` on the bundled model, and what --head-profile does to a session. Roles, counts and budgets are worked
// out here from the numbers in the file, by the definitions (HeteroCache, section 4.1).
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "program.h"
#include "tests/support/shared.h"

namespace orrery::testing {
namespace {

using Json = nlohmann::json;
using Words = std::vector<std::string>;

Finished profile(const Words& more) {
  Words words = {"profile"};
  words.insert(words.end(), more.begin(), more.end());
  return run(words);
}

// The bundled document's beginning: a few hundred tokens.
std::string short_text() {
  const std::string path = scratch_path("short.txt");
  write_file(path, read_whole(demo_file("demo-document.txt")).substr(0, 1500));
  return path;
}

Words quick(const Words& more) {
  Words words = {demo_model(), short_text(), "--steps", "8", "--top-k", "64"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

bool contains(const std::string& text, const std::string& piece) { return text.find(piece) != std::string::npos; }

bool is_png(const std::string& path) {
  struct stat s {};
  return stat(path.c_str(), &s) == 0 && s.st_size > 1000 && read_whole(path).compare(0, 4, "\x89PNG") == 0;
}

// Greedy stars over the pairs whose similarity reaches tau_sim, straight from the definition.
std::vector<std::string> roles_of(const Json& layer, double tau_sim, double tau_stable) {
  const size_t n = layer.at("stability").size();
  std::vector<std::vector<double>> similar(n, std::vector<double>(n, 0.0));
  size_t at = 0;
  for (size_t i = 0; i < n; ++i)
    for (size_t j = i + 1; j < n; ++j) similar[i][j] = similar[j][i] = layer.at("similarity")[at++];
  std::vector<std::string> roles(n);
  for (;;) {
    size_t best = 0, degree = 0;
    for (size_t i = 0; i < n; ++i) {
      size_t d = 0;
      for (size_t j = 0; j < n; ++j) d += roles[i].empty() && roles[j].empty() && i != j && similar[i][j] >= tau_sim - 1e-9;
      if (d > degree) degree = d, best = i;
    }
    if (degree == 0) break;
    roles[best] = "pivot";
    for (size_t j = 0; j < n; ++j)
      if (roles[j].empty() && similar[best][j] >= tau_sim - 1e-9) roles[j] = "satellite";
  }
  for (size_t i = 0; i < n; ++i)
    if (roles[i].empty()) roles[i] = layer.at("stability")[i] >= tau_stable - 1e-9 ? "anchor" : "volatile";
  return roles;
}

TEST(ToolProfile, WritesWhatItCounts) {
  const std::string path = scratch_path("p.json"), again = scratch_path("again.json");
  const Finished made = profile(quick({"--tau-sim", "0.4", "--tau-stable", "0.45", "--out", path, "--threads", "1"}));
  ASSERT_EQ(made.code, 0) << made.err;
  ASSERT_EQ(profile(quick({"--tau-sim", "0.4", "--tau-stable", "0.45", "--out", again, "--threads", "2"})).code, 0);
  EXPECT_EQ(read_whole(path), read_whole(again));
  const Json json = Json::parse(read_whole(path));
  size_t full = 0, all = 0, representatives = 0;
  for (const Json& layer : json.at("layers")) {
    EXPECT_EQ(layer.at("roles"), Json(roles_of(layer, .4, .45)));
    for (const Json& role : layer.at("roles")) full += role == "volatile" || role == "pivot", ++all;
    representatives += layer.at("representatives").size();
  }
  char line[100];
  std::snprintf(line, sizeof line, "Full        %zu of %zu heads: heterocache needs a KV budget of more than %.3f\n", full, all,
                static_cast<double>(full) / static_cast<double>(all));
  EXPECT_TRUE(contains(made.out, line)) << made.out;
  std::snprintf(line, sizeof line, "Represented by %zu of %zu heads", representatives, all);
  EXPECT_TRUE(contains(made.out, line)) << made.out;
  EXPECT_TRUE(contains(json.at("note"), "short.txt")) << json.at("note");
  EXPECT_FALSE(contains(json.at("note"), "/"));

  // What it says comes back from an import, and the least budget is where the plan begins.
  const Finished imported = profile({"--import", path});
  EXPECT_EQ(imported.code, 0) << imported.err;
  EXPECT_EQ(imported.out.substr(imported.out.find("Heads")),
            made.out.substr(made.out.find("Heads"), made.out.find("Written") - made.out.find("Heads")));
  const double least = 100.0 * static_cast<double>(full) / static_cast<double>(all);
  const auto plan = [&](double percent, const Words& more = {}) {
    char budget[32];
    std::snprintf(budget, sizeof budget, "%.2f%%", percent);
    Words words = {"plan", demo_model(), "--context", "4096", "--policy", "heterocache", "--kv-budget", budget, "--head-profile", path};
    words.insert(words.end(), more.begin(), more.end());
    return run(words);
  };
  EXPECT_EQ(plan(std::min(100.0, least + 1)).code, 0) << plan(least + 1).err;
  EXPECT_EQ(plan(least - 1).code, 2);
  const Json planned = Json::parse(plan(std::min(100.0, least + 5), {"--json"}).out);
  const Json whole = Json::parse(run({"plan", demo_model(), "--context", "4096", "--json"}).out);
  EXPECT_EQ(planned.at("full_kv_bytes").get<uint64_t>() * all, whole.at("full_kv_bytes").get<uint64_t>() * full);
}

TEST(ToolProfile, AShareIsMet) {
  const std::string path = scratch_path("share.json");
  const Finished made = profile(quick({"--full-share", "20%", "--representatives", "3", "--tau-drift", "0.125", "--out", path}));
  ASSERT_EQ(made.code, 0) << made.err;
  const Json json = Json::parse(read_whole(path));
  size_t full = 0, all = 0;
  for (const Json& layer : json.at("layers")) {
    for (const Json& role : layer.at("roles")) full += role == "volatile" || role == "pivot", ++all;
    EXPECT_EQ(layer.at("representatives").size(), 3u);
  }
  EXPECT_LE(full * 5, all);
  EXPECT_EQ(json.at("tau_drift"), .125);
  EXPECT_TRUE(contains(made.out, "(for at most 20% full heads)")) << made.out;
}

TEST(ToolProfile, DrawsPictures) {
  const std::string folder = scratch_path("pictures");
  const Finished made = profile(quick({"--png", folder}));
  ASSERT_EQ(made.code, 0) << made.err;
  for (const char* name : {"roles", "stability", "similarity", "layers", "drift", "drift-layers"}) {
    const std::string path = folder + "/" + name + ".png";
    EXPECT_TRUE(is_png(path)) << path;
    EXPECT_TRUE(contains(made.out, "Picture     " + path + "\n"));
  }
}

TEST(ToolProfile, SessionsTakeIt) {
  const std::string path = scratch_path("used.json");
  ASSERT_EQ(profile(quick({"--full-share", "25%", "--out", path})).code, 0);
  const Words ask = {"run", demo_model(), "Where does Emma live?", "--max-tokens", "12"};
  const auto answer = [&](const Words& more) {
    Words words = ask;
    words.insert(words.end(), more.begin(), more.end());
    const Finished finished = run(words);
    EXPECT_EQ(finished.code, 0) << finished.err;
    return finished.out;
  };
  const std::string full = answer({});
  for (const char* policy : {"heterocache", "synckv", "full"})
    EXPECT_EQ(answer({"--policy", policy, "--head-profile", path}), full) << policy;

  std::string damaged = read_whole(path);
  const size_t at = damaged.find("\"model\": \"") + 10;
  damaged[at] = damaged[at] == '0' ? '1' : '0';
  const std::string other = scratch_path("other.json"), empty = scratch_path("empty.json");
  write_file(other, damaged);
  write_file(empty, "");
  for (const std::string& wrong : {other, empty, short_text()}) {
    Words words = ask;
    words.insert(words.end(), {"--policy", "heterocache", "--head-profile", wrong});
    const Finished refused = run(words);
    EXPECT_EQ(refused.code, 2) << wrong;
    EXPECT_TRUE(contains(refused.err, wrong == other ? "fingerprint" : "orrery: ")) << refused.err;
  }
  EXPECT_EQ(run({"plan", demo_model(), "--head-profile", scratch_path("none.json")}).code, 1);
}

TEST(ToolProfile, WrongCommandLinesSaySo) {
  const auto code = [](const Words& words) { return profile(words).code; };
  EXPECT_EQ(code({}), 2);
  EXPECT_EQ(code({demo_model()}), 2);
  EXPECT_EQ(code({demo_model(), short_text(), "--import", short_text()}), 2);
  EXPECT_EQ(code(quick({"--full-share", "0.2"})), 2);
  EXPECT_EQ(code(quick({"--steps", "0"})), 2);
  EXPECT_EQ(code(quick({"--representatives", "9"})), 2);
  EXPECT_EQ(code(quick({"--context", "20"})), 2);  // 12 tokens are left
  EXPECT_EQ(code({demo_model(), scratch_path("none.txt")}), 1);
  EXPECT_EQ(code({"--import", short_text()}), 2);
  EXPECT_EQ(code({"--import-gates", short_text()}), 2);
  EXPECT_EQ(code({"--import-gates", short_text(), "--sparsity", "1.5"}), 2);
  EXPECT_EQ(code({"--import-gates", short_text(), "--import", short_text()}), 2);
  EXPECT_EQ(code({demo_model(), short_text(), "--import-gates", short_text()}), 2);
  EXPECT_EQ(code(quick({"--sparsity", "0.5"})), 2);
  // A rendered chat has control tokens where its text spells them.
  const std::string chat = scratch_path("chat.txt");
  RunOptions messages;
  messages.input = R"([{"role": "user", "content": "Magnus owns a gray wolf. What animal does Magnus own?"}])";
  write_file(chat, run({"template", demo_model(), "--messages", "-"}, messages).out);
  const Finished as_text = profile({demo_model(), chat, "--steps", "4"});
  const Finished as_chat = profile({demo_model(), chat, "--steps", "4", "--special"});
  EXPECT_EQ(as_chat.code, 0) << as_chat.err;
  const auto n_tokens = [](const Finished& f) { return std::stoi(f.out.substr(f.out.find("1 with ") + 7)); };
  const auto ids = Json::parse(run({"tokenize", demo_model(), "--file", chat, "--special", "--json"}).out);
  EXPECT_EQ(n_tokens(as_chat), ids.at("n_tokens").get<int>());
  EXPECT_GT(n_tokens(as_text), n_tokens(as_chat));
  const std::string nowhere = scratch_path("no/such/folder/p.json");
  EXPECT_EQ(code(quick({"--out", nowhere})), 1);
  const Finished cut = profile(quick({"--context", "108"}));
  EXPECT_EQ(cut.code, 0) << cut.err;
  EXPECT_TRUE(contains(cut.err, "the first 100 are read")) << cut.err;
  EXPECT_TRUE(contains(cut.out, "1 with 100 tokens")) << cut.out;
}

TEST(ToolProfile, ImportsThePublishedFormat) {
  const std::string path = scratch_path("published.json"), ours = scratch_path("ours.json");
  write_file(path,
             R"({"meta": {"type_map": {"anchor": 1, "volatile": 2, "pivot": 3, "satellite": 4},
                 "counts": {"anchor": 1, "volatile": 1, "pivot": 1, "satellite": 3}},
                 "classification_matrix": [[3, 4, 4], [1, 2, 4]],
                 "leader_member_relations": [{"0": [1, 2]}, {}], "allocation_matrix": [[-1, 1, 1], [1, -1, 1]]})");
  EXPECT_EQ(profile({"--import", path}).code, 2);  // a satellite of nobody
  write_file(path,
             R"({"meta": {"type_map": {"anchor": 1, "volatile": 2, "pivot": 3, "satellite": 4},
                 "counts": {"anchor": 2, "volatile": 1, "pivot": 1, "satellite": 2}},
                 "classification_matrix": [[3, 4, 4], [1, 2, 1]],
                 "leader_member_relations": [{"0": [1, 2]}, {}], "allocation_matrix": [[-1, 1, 1], [1, -1, 1]]})");
  const std::string folder = scratch_path("imported");
  const Finished finished = profile({"--import", path, "--out", ours, "--png", folder});
  ASSERT_EQ(finished.code, 0) << finished.err;
  EXPECT_TRUE(contains(finished.out, "Heads       6: 2 anchor, 1 volatile, 1 pivot, 2 satellite\n")) << finished.out;
  EXPECT_TRUE(contains(finished.out, "more than 0.333\n")) << finished.out;
  EXPECT_FALSE(contains(finished.out, "synckv"));
  EXPECT_TRUE(is_png(folder + "/roles.png"));
  EXPECT_EQ(Json::parse(read_whole(ours)).at("layers")[0].at("pivot_of"), Json({nullptr, 0, 0}));
  EXPECT_EQ(profile({"--import", ours}).out.substr(5), finished.out.substr(10, finished.out.find("Written") - 10));
}

// The bundled model has 4 layers of 8 KV heads. Head h of layer l has gate (4 (7 - h) + l) / 32: above the quantile .75 are heads 0 and 1.
TEST(ToolProfile, ImportsDuoAttentionsGates) {
  const std::string path = scratch_path("full_attention_heads.tsv"), ours = scratch_path("duo.json");
  std::string text;
  for (size_t l = 0; l < 4; ++l)
    for (size_t h = 0; h < 8; ++h) text += std::to_string(static_cast<double>(4 * (7 - h) + l) / 32) + (h < 7 ? "\t" : "\n");
  write_file(path, text);
  const Finished finished = profile({"--import-gates", path, "--sparsity", "0.75", "--out", ours, "--png", scratch_path("duo")});
  ASSERT_EQ(finished.code, 0) << finished.err;
  EXPECT_TRUE(contains(finished.out, "of 32 heads: duoattention keeps 8 whole")) << finished.out;
  EXPECT_TRUE(is_png(scratch_path("duo") + "/roles.png"));
  const Json made = Json::parse(read_whole(ours));
  for (size_t l = 0; l < 4; ++l)
    for (size_t h = 0; h < 8; ++h) {
      EXPECT_EQ(made.at("layers")[l].at("gates")[h], static_cast<double>(4 * (7 - h) + l) / 32);
      EXPECT_EQ(made.at("layers")[l].at("roles")[h], h < 2 ? "volatile" : "anchor") << l << ", " << h;
    }
  EXPECT_TRUE(contains(profile({"--import", ours}).out, "duoattention keeps 8 whole"));
  EXPECT_TRUE(contains(profile({"--import-gates", path}).out, "duoattention keeps 16 whole"));  // half of them

  // Standard output by its names, alone; words go to standard error. A device is written through.
  for (const char* name : {"-", "/dev/stdout"}) {
    const Finished there = profile({"--import-gates", path, "--sparsity", "0.75", "--out", name});
    EXPECT_EQ(there.code, 0) << there.err;
    EXPECT_EQ(there.out, read_whole(ours)) << name;
    EXPECT_TRUE(contains(there.err, "of 32 heads: duoattention keeps 8 whole")) << there.err;
  }
  const Finished nowhere = profile({"--import-gates", path, "--out", "/dev/null"});
  EXPECT_EQ(nowhere.code, 0) << nowhere.err;
  EXPECT_TRUE(contains(nowhere.out, "Written     /dev/null"));
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));

  // Eight of 32 heads hold everything, or what the budget has room for.
  const auto full_bytes = [&](const Words& more) {
    Words words = {"plan", demo_model(), "--context", "4096", "--json"};
    words.insert(words.end(), more.begin(), more.end());
    const Finished planned = run(words);
    EXPECT_EQ(planned.code, 0) << planned.err;
    return Json::parse(planned.out).at("full_kv_bytes").get<uint64_t>();
  };
  const auto duo = [&](const char* budget) {
    return full_bytes({"--policy", "duoattention", "--kv-budget", budget, "--head-profile", ours});
  };
  const uint64_t all = full_bytes({});
  EXPECT_EQ(duo("60%"), all / 4);
  EXPECT_EQ(duo("90%"), all / 4);
  EXPECT_EQ(duo("20%"), all / 32 * 4);  // where the others take a quarter of it
  EXPECT_EQ(run({"run", demo_model(), "Where does Emma live?", "--max-tokens", "8", "--policy", "duoattention", "--kv-budget", "60%",
                 "--head-profile", ours})
                .code,
            0);
  EXPECT_EQ(
      run({"run", demo_model(), "Where does Emma live?", "--max-tokens", "8", "--policy", "heterocache", "--head-profile", ours}).code, 2);

  const auto refused = [&](const std::string& wrong, const char* part) {
    write_file(path, wrong);
    const Finished f = profile({"--import-gates", path});
    EXPECT_EQ(f.code, 2) << part;
    EXPECT_TRUE(contains(f.err, part)) << f.err;
  };
  refused(text.substr(0, text.size() - 4) + "?\n", "line 4, column 69: expected a number of 0 to 1");
  refused(text + "0.5\n", "line 5, column 4: 1 heads, the first layer has 8");
  refused("", "line 1, column 1");
  write_file(path, std::string("1\0", 2));
  EXPECT_EQ(profile({"--import-gates", path}).code, 1);
  EXPECT_EQ(profile({"--import-gates", scratch_path("none.tsv")}).code, 1);
}

TEST(ToolProfile, ImportsThePublishedProfiles) {
  struct Known {
    const char *file, *heads, *least;
  };
  for (const Known& known : {Known{"llama-3.1-8b-instruct", "256: 10 anchor, 17 volatile, 33 pivot, 196 satellite", "0.195"},
                             Known{"qwen2.5-14b-instruct", "384: 37 anchor, 25 volatile, 55 pivot, 267 satellite", "0.208"},
                             Known{"deepseek-r1-distill-llama-8b", "256: 0 anchor, 5 volatile, 32 pivot, 219 satellite", "0.145"}}) {
    const std::string path = shared_path(std::string("head-profiles/") + known.file + ".json");
    if (path.empty()) GTEST_SKIP() << "no shared head profiles";
    const Finished finished = profile({"--import", path});
    EXPECT_EQ(finished.code, 0) << finished.err;
    EXPECT_TRUE(contains(finished.out, known.heads)) << finished.out;
    EXPECT_TRUE(contains(finished.out, std::string("more than ") + known.least + "\n")) << finished.out;
  }
}

}  // namespace
}  // namespace orrery::testing
