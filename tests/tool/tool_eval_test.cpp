// `orrery eval` on the bundled model. The oracle of its texts is a reader of its own here, which finds every answer in
// the text from the question alone; of its scores, the model's card and what a policy with the whole budget must do.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "program.h"
#include "tests/support/demo_adapter.h"
#include "tests/support/temp_dir.h"
#include "tests/tool/png_reader.h"

namespace orrery::testing {
namespace {

using Json = nlohmann::json;
using Words = std::vector<std::string>;

Finished eval(const Words& more, const RunOptions& options = {}) {
  Words words = {"eval", demo_model()};
  words.insert(words.end(), more.begin(), more.end());
  return run(words, options);
}

// What --json says, of a run that must succeed.
Json eval_json(Words more, const std::string& name) {
  const std::string path = scratch_path(name);
  more.insert(more.end(), {"--json", path});
  const Finished finished = eval(more);
  EXPECT_EQ(finished.code, 0) << finished.err;
  return Json::parse(read_whole(path), nullptr, false);
}

std::vector<Json> samples(Words more, const std::string& name) {
  const std::string path = scratch_path(name);
  more.insert(more.end(), {"--write-samples", path});
  const Finished finished = eval(more);
  EXPECT_EQ(finished.code, 0) << finished.err;
  std::vector<Json> found;
  std::istringstream lines(read_whole(path));
  for (std::string line; std::getline(lines, line);) found.push_back(Json::parse(line));
  return found;
}

Json row(const Json& json, const std::string& policy, const std::string& budget, const std::string& task = "") {
  for (const Json& r : json.at("rows")) {
    if (r.at("policy") == policy && (budget.empty() ? r.at("budget").is_null() : r.at("budget") == budget) &&
        (task.empty() ? r.at("task").is_null() : r.at("task") == task))
      return r;
  }
  ADD_FAILURE() << "no row " << policy << " " << budget << " " << task;
  return Json::object();
}

// ---- A reader of the texts ----

bool starts(const std::string& text, const std::string& begin) { return text.compare(0, begin.size(), begin) == 0; }

// What stands between two pieces that begin and end `text`; "" where they do not.
std::string between(const std::string& text, const std::string& begin, const std::string& end) {
  if (!starts(text, begin) || text.size() < begin.size() + end.size() || text.compare(text.size() - end.size(), end.size(), end) != 0)
    return "";
  return text.substr(begin.size(), text.size() - begin.size() - end.size());
}

std::vector<std::string> sentences(const std::string& text) {
  std::vector<std::string> found;
  for (size_t begin = 0; begin < text.size();) {
    size_t end = text.find_first_of(".?", begin);
    if (end == std::string::npos) end = text.size() - 1;
    found.push_back(text.substr(begin, end + 1 - begin));
    begin = end + 2;
  }
  return found;
}

std::string only(const std::vector<std::string>& found) { return found.size() == 1 ? found[0] : "found " + std::to_string(found.size()); }

// The answer to one question, read off the text.
std::string answer_of(const std::string& context, const std::string& question) {
  const std::vector<std::string> text = sentences(context);
  const auto all = [&](const std::string& begin, const std::string& end) {
    std::vector<std::string> found;
    for (const std::string& s : text) {
      const std::string inside = between(s, begin, end);
      if (!inside.empty()) found.push_back(inside);
    }
    return found;
  };
  const auto joined = [](const std::vector<std::string>& words) {
    std::string list;
    for (const std::string& word : words) list += (list.empty() ? "" : ", ") + word;
    return list + ".";
  };
  for (const std::string noun : {"special magic number", "access code"}) {
    std::string key = between(question, "What is the " + noun + " for ", "?");
    if (key.empty()) key = between(question, "Tell me the " + noun + " for ", ".");
    if (key.empty()) continue;
    const std::string begin = "The " + noun + " for " + key + " is ";
    return begin + only(all(begin, ".")) + ".";
  }
  std::string name = between(question, "What are all the special magic numbers for ", "?");
  if (!name.empty()) return joined(all("One of the special magic numbers for " + name + " is ", "."));
  if (!between(question, "Where does ", " live?").empty()) {
    name = between(question, "Where does ", " live?");
    return name + " lives in " + only(all(name + " lives in ", ".")) + ".";
  }
  if (starts(question, "Where does ") || starts(question, "What does ")) {
    name = question.substr(question.find("does ") + 5);
    name.resize(name.find(' '));
    return name + " keeps the " + only(all(name + " keeps the ", ".")) + ".";
  }
  name = between(question, "What is ", "'s job?");
  if (!name.empty()) {
    const std::string rest = only(all(name + " is a ", "."));
    return name + " is a " + rest.substr(0, rest.find(" from ")) + ".";
  }
  name = between(question, "Where is ", " from?");
  if (!name.empty()) {
    const std::string rest = only(all(name + " is a ", "."));
    return name + " is from " + rest.substr(rest.find(" from ") + 6) + ".";
  }
  name = between(question, "What animal does ", " own?");
  if (!name.empty()) return name + " owns a " + only(all(name + " owns a ", ".")) + ".";
  if (starts(question, "What color is the ")) {
    const std::string rest = between(question, "What color is the ", "?");
    const std::string owner = rest.substr(rest.find(" of ") + 4), owned = only(all(owner + " owns a ", "."));
    return "The " + rest + " is " + owned.substr(0, owned.find(' ')) + ".";
  }
  // Variables: "VAR A = 1." and "VAR B = VAR A."
  std::map<std::string, std::string> assigned;
  std::vector<std::string> order;
  for (const std::string& line : all("VAR ", ".")) {
    order.push_back(line.substr(0, 3));
    std::string right = line.substr(6);
    if (starts(right, "VAR ")) right = assigned.count(right.substr(4)) ? assigned[right.substr(4)] : "unknown";
    assigned[order.back()] = right;
  }
  name = between(question, "What is the value of VAR ", "?");
  if (!name.empty()) return "VAR " + name + " = " + assigned[name] + ".";
  const std::string value = between(question, "Which variables have the value ", "?");
  if (!value.empty()) {
    std::vector<std::string> names;
    for (const std::string& n : order) {
      if (assigned[n] == value) names.push_back(n);
    }
    return joined(names);
  }
  if (question == "Repeat every sentence about magic numbers, in order.") {
    std::string list;
    for (const std::string& s : text) {
      if (s.find("magic number") != std::string::npos) list += (list.empty() ? "" : " ") + s;
    }
    return list;
  }
  return "cannot read: " + question;
}

size_t count_tokens(const std::string& text) {
  RunOptions options;
  options.input = text;
  return Json::parse(run({"tokenize", demo_model(), "--json"}, options).out).at("n_tokens");
}

// ---- The texts ----

TEST(EvalSamples, EveryAnswerStandsInTheText) {
  const std::vector<Json> made = samples({"--lengths", "600,2000", "--samples", "5", "--seed", "3"}, "all.jsonl");
  std::map<std::string, size_t> asked;
  std::map<std::string, double> least, most;
  for (const Json& sample : made) {
    const std::string context = sample.at("context"), task = sample.at("task");
    ASSERT_EQ(sample.at("questions").size(), task == "listing" ? 1u : 4u);
    for (const Json& entry : sample.at("questions")) {
      const std::string question = entry.at("question");
      std::string expected;
      const std::vector<std::string> parts = task == "listing" ? std::vector<std::string>{question} : sentences(question);
      if (task == "multi-query") {
        EXPECT_GE(parts.size(), 2u);
        EXPECT_LE(parts.size(), 3u);
      } else {
        EXPECT_EQ(parts.size(), 1u) << question;
      }
      for (const std::string& part : parts) expected += (expected.empty() ? "" : " ") + answer_of(context, part);
      ASSERT_EQ(entry.at("answers").size(), 1u);
      EXPECT_EQ(entry.at("answers")[0], expected) << sample.at("id");
      ++asked[task];
      const double depth = entry.at("depth");
      if (task == "single") {
        // The needle's first byte.
        const size_t at = context.find(expected);
        ASSERT_NE(at, std::string::npos);
        EXPECT_NEAR(depth, static_cast<double>(at) / static_cast<double>(context.size()), 1e-12);
        least.emplace(task, depth);
        most.emplace(task, depth);
        least[task] = std::min(least[task], depth);
        most[task] = std::max(most[task], depth);
      }
      EXPECT_GE(depth, 0);
      EXPECT_LT(depth, 1);
    }
  }
  EXPECT_EQ(asked.size(), 7u);
  EXPECT_EQ(asked["single"], 40u);
  EXPECT_LT(least["single"], .1);  // needles at all depths
  EXPECT_GT(most["single"], .8);
}

TEST(EvalSamples, AreAsLongAsAskedFor) {
  for (const char* length : {"600", "4000"}) {
    for (const Json& sample : samples({"--lengths", length, "--samples", "1"}, "lengths.jsonl")) {
      const auto n = static_cast<double>(count_tokens(sample.at("context"))), wanted = std::stod(length);
      EXPECT_LE(n, wanted) << sample.at("id");
      EXPECT_GE(n, wanted * .95) << sample.at("id");
      EXPECT_EQ(sample.at("length"), std::stoi(length));
    }
  }
}

TEST(EvalSamples, TheSeedDecidesThem) {
  const Words words = {"--lengths", "600", "--samples", "3", "--questions", "2"};
  const std::vector<Json> once = samples(words, "a.jsonl");
  EXPECT_EQ(samples(words, "b.jsonl"), once);
  Words other = words;
  other.insert(other.end(), {"--seed", "1"});
  const std::vector<Json> seeded = samples(other, "c.jsonl");
  ASSERT_EQ(seeded.size(), once.size());
  for (size_t i = 0; i < once.size(); ++i) EXPECT_NE(seeded[i].at("context"), once[i].at("context"));
  // A task's texts do not depend on which others are asked for, nor on how many.
  const std::vector<Json> alone = samples({"--lengths", "600", "--samples", "1", "--questions", "2", "--tasks", "variables"}, "d.jsonl");
  ASSERT_EQ(alone.size(), 1u);
  EXPECT_EQ(std::count(once.begin(), once.end(), alone[0]), 1);
  // On every machine and in every version the same, or results could not be compared.
  EXPECT_EQ(once[0].at("questions")[0].at("answers")[0], "The special magic number for island is 420.");
  EXPECT_EQ(once[0].at("questions")[1].at("answers")[0], "The special magic number for tundra is 1427.");
}

// ---- Scores ----

TEST(Eval, TheWholeBudgetIsFullAttentionAndLessIsLess) {
  const Json json = eval_json(
      {"--policies", "streaming", "--budgets", "100%,30%", "--lengths", "700", "--samples", "2", "--tasks", "single,facts,multi-value"},
      "whole.json");
  // The card: single facts are found whatever the length.
  EXPECT_EQ(row(json, "full", "", "single").at("score"), 1);
  EXPECT_EQ(row(json, "full", "", "facts").at("score"), 1);
  EXPECT_EQ(row(json, "full", "").at("answers"), 24);
  const Json whole = row(json, "streaming", "100%"), third = row(json, "streaming", "30%");
  EXPECT_EQ(whole.at("score"), row(json, "full", "").at("score"));
  EXPECT_EQ(whole.at("kept"), 1);
  EXPECT_EQ(whole.at("top1"), 1);
  EXPECT_LT(whole.at("kl"), 1e-9);
  EXPECT_LT(third.at("score"), whole.at("score"));
  EXPECT_LT(third.at("kept"), 1);
  EXPECT_LT(third.at("top1"), 1);
  EXPECT_GT(third.at("kl"), .01);
  EXPECT_LT(third.at("device_kv_bytes").get<double>(), .4 * whole.at("device_kv_bytes").get<double>());
  EXPECT_GT(third.at("decode_tokens_per_second"), 0);
  // Rows are the means of their answers; kept counts what both have right.
  std::map<std::string, std::vector<double>> scores;
  for (const Json& answer : json.at("answers"))
    scores[answer.at("policy").get<std::string>() + (answer.at("budget").is_null() ? "" : answer.at("budget").get<std::string>())]
        .push_back(answer.at("score"));
  double both = 0, full = 0, sum = 0;
  ASSERT_EQ(scores["streaming30%"].size(), 24u);
  ASSERT_EQ(scores["full"].size(), 24u);
  for (size_t i = 0; i < 24; ++i) {
    full += scores["full"][i];
    sum += scores["streaming30%"][i];
    both += scores["full"][i] * scores["streaming30%"][i];
  }
  EXPECT_NEAR(third.at("score").get<double>(), sum / 24, 1e-12);
  EXPECT_NEAR(third.at("kept").get<double>(), both / full, 1e-12);
}

// The context is read once, by full attention: other rows load its KV and compute the last 64 tokens again. Answers and
// divergences are those of a session that reads everything itself, which H2O's is.
TEST(Eval, AContextIsReadOnce) {
  const Words words = {
      "--policies",  "h2o,snapkv,cake,full:kv-type=q8_0,full:kv-type=k8v4,full:kv-type=q4_0,snapkv:kv-type=q8_0,snapkv:device-kv-type=k8v4",
      "--budgets",   "40%",
      "--lengths",   "700",
      "--samples",   "1",
      "--tasks",     "facts",
      "--questions", "2",
      "--turns",     "single"};
  const Json json = eval_json(words, "once.json");
  const uint64_t full = row(json, "full", "").at("prompt_tokens");
  EXPECT_GT(full, 700u);
  EXPECT_EQ(row(json, "h2o", "40%").at("prompt_tokens"), full);
  EXPECT_EQ(row(json, "full:kv-type=q8_0", "").at("kv_type"), "q8_0");
  EXPECT_EQ(row(json, "snapkv:kv-type=q8_0", "40%").at("kv_type"), "q8_0");
  EXPECT_EQ(row(json, "snapkv", "40%").at("kv_type"), "f16");
  for (const char* policy : {"snapkv", "cake"}) {
    EXPECT_LE(row(json, policy, "40%").at("prompt_tokens").get<uint64_t>(), 2 * 64 + 40u) << policy;
    EXPECT_LT(row(json, policy, "40%").at("host_to_device_bytes").get<uint64_t>(),
              row(json, "full", "").at("device_kv_bytes").get<uint64_t>())
        << "what was loaded was not moved by the policy";
  }
  EXPECT_GT(row(json, "full:kv-type=q8_0", "").at("kl"), 0);
  EXPECT_LT(row(json, "full:kv-type=q8_0", "").at("kl"), .05);
  EXPECT_EQ(row(json, "full:kv-type=k8v4", "").at("kv_type"), "k8v4");
  EXPECT_EQ(row(json, "snapkv:device-kv-type=k8v4", "40%").at("device_kv_type"), "k8v4");
  EXPECT_GT(row(json, "full:kv-type=k8v4", "").at("kl"), row(json, "full:kv-type=q8_0", "").at("kl"));
  EXPECT_LT(row(json, "full:kv-type=k8v4", "").at("kl"), row(json, "full:kv-type=q4_0", "").at("kl"));
  EXPECT_EQ(row(json, "full:kv-type=k8v4", "").at("device_kv_bytes").get<uint64_t>() * 64,
            row(json, "full", "").at("device_kv_bytes").get<uint64_t>() * 26);
}

// One text of two tasks, with the question in the prompt and after it, and a summary without a right answer.
TEST(EvalFiles, SamplesDecideForThemselves) {
  const std::string path = scratch_path("mixed.jsonl");
  std::string text = "Bruno owns a teal fox.";
  for (int i = 0; i < 40; ++i) text += " On Sunday there was snow over the cellar. The grass is green.";
  text += " Ada lives in Oslo.";
  Json before = {{"id", "b"},
                 {"task", "before"},
                 {"length", 1024},
                 {"metric", "contains"},
                 {"context", text},
                 {"turns", "single"},
                 {"questions", {{{"question", "Where does Ada live?"}, {"answers", {"Oslo"}}}}}};
  Json after = before, summary = before;
  after["id"] = "a", after["task"] = "after", after["question_after"] = true;
  summary["id"] = "s", summary["task"] = "summary", summary["metric"] = "none";
  summary["questions"] = Json::array({{{"question", "Say what the text says."}}});
  write_file(path, before.dump() + "\n" + after.dump() + "\n" + summary.dump() + "\n");
  const Json json = eval_json({"--tasks", path, "--policies", "streaming", "--budgets", "60%", "--max-tokens", "8"}, "mixed.json");
  EXPECT_EQ(row(json, "full", "", "before").at("score"), 1);
  EXPECT_EQ(row(json, "full", "", "before").at("question"), "aware");
  EXPECT_EQ(row(json, "full", "", "after").at("question"), "agnostic");
  EXPECT_EQ(row(json, "full", "").at("question"), "both");
  const Json without = row(json, "streaming", "60%", "summary");
  EXPECT_TRUE(without.at("score").is_null() && without.at("kept").is_null());
  EXPECT_GT(without.at("kl"), 0);
  EXPECT_GT(without.at("decode_tokens_per_second"), 0);
  EXPECT_EQ(samples({"--tasks", path}, "mixed-again.jsonl").size(), 3u);
  EXPECT_EQ(samples({"--tasks", path}, "mixed-again.jsonl")[1].at("question_after"), true);
}

// Written in a layout of another benchmark and read again, the questions are the same.
TEST(EvalFiles, LayoutsAreWritten) {
  const Words made = {"--lengths", "400", "--samples", "2", "--questions", "2", "--tasks", "single"};
  const std::vector<Json> own = samples(made, "layout-own.jsonl");
  for (const char* layout : {"ruler", "longbench", "scbench"}) {
    Words words = made;
    words.insert(words.end(), {"--layout", layout});
    const std::vector<Json> lines = samples(words, std::string("layout-") + layout + ".jsonl");
    const bool scbench = std::string(layout) == "scbench";
    ASSERT_EQ(lines.size(), scbench ? 2u : 4u) << layout;
    const Json question = own[0].at("questions")[1];
    if (scbench) {
      EXPECT_EQ(lines[0].at("multi_turns")[1], (Json{{"input", question.at("question")}, {"answer", question.at("answers")[0]}}));
    } else if (std::string(layout) == "longbench") {
      EXPECT_EQ(lines[1].at("input"), question.at("question"));
      EXPECT_EQ(lines[1].at("answers"), question.at("answers"));
      EXPECT_EQ(lines[1].at("context"), own[0].at("context"));
    } else {
      EXPECT_EQ(lines[1].at("input"), own[0].at("context").get<std::string>() + "\n\n" + question.at("question").get<std::string>());
      EXPECT_EQ(lines[1].at("outputs"), question.at("answers"));
    }
    const std::vector<Json> again = samples({"--tasks", scratch_path(std::string("layout-") + layout + ".jsonl")}, "layout-again.jsonl");
    ASSERT_EQ(again.size(), lines.size()) << layout;
    EXPECT_EQ(again[0].at("metric"), std::string(layout) == "longbench" ? "f1" : "contains");
  }
  Words wrong = made;
  wrong.insert(wrong.end(), {"--write-samples", "-", "--layout", "helmet"});
  EXPECT_EQ(eval(wrong).code, 2);
}

// kvpress's evaluation: config.yaml, metrics.json in percent, a line of predictions.csv for each answer.
TEST(Eval, KvpressReadsTheResults) {
  const std::string folder = scratch_path("kvpress"), path = scratch_path("niah.jsonl");
  const std::string text = "Ada lives in Oslo. The grass is green. Bruno owns a teal fox.";
  write_file(path, Json({{"index", 0}, {"input", text + "\n\nWhere does Ada live?"}, {"outputs", {"Oslo", "\"x\""}}}).dump() + "\n");
  ASSERT_EQ(eval({"--tasks", path, "--policies", "streaming", "--budgets", "100%", "--kvpress", folder}).code, 0);
  std::vector<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) found.push_back(entry.path().filename());
  std::sort(found.begin(), found.end());
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].find("ruler__"), 0u) << found[0];
  EXPECT_NE(found[0].find("__no_press__0.00__query_aware"), std::string::npos) << found[0];
  EXPECT_NE(found[1].find("__streaming__0.00__query_aware"), std::string::npos) << found[1];
  EXPECT_EQ(Json::parse(read_whole(folder + "/" + found[1] + "/metrics.json")), (Json{{"niah", {{"string_match", 50.0}}}}));
  const std::string csv = read_whole(folder + "/" + found[1] + "/predictions.csv");
  EXPECT_NE(csv.find("\"[\"\"Oslo\"\",\"\"\\\"\"x\\\"\"\"\"]\""), std::string::npos) << csv;
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 2);
  const std::string config = read_whole(folder + "/" + found[1] + "/config.yaml");
  for (const char* line : {"dataset: \"ruler\"\n", "press_name: \"streaming\"\n", "compression_ratio: 0.0000\n", "query_aware: true\n"})
    EXPECT_NE(config.find(line), std::string::npos) << config;
}

TEST(Eval, RefillsHaveColumns) {
  const Json json = eval_json({"--policies", "streaming,heterocache:tau_sim=0.2:tau_drift=1,synckv", "--budgets", "60%", "--lengths", "700",
                               "--samples", "1", "--tasks", "facts,variables"},
                              "refills.json");
  const Json still = row(json, "streaming", "60%");
  EXPECT_TRUE(still.at("hits").is_null() && still.at("hidden").is_null());
  EXPECT_TRUE(still.at("triggers_per_100_tokens").is_null());
  EXPECT_EQ(still.at("transfer_us"), 0);
  const Json synckv = row(json, "synckv", "60%"), hetero = row(json, "heterocache:tau_sim=0.2:tau_drift=1", "60%");
  EXPECT_TRUE(synckv.at("triggers_per_100_tokens").is_null());  // it has none
  EXPECT_GT(hetero.at("triggers_per_100_tokens"), 0);
  for (const Json& r : {synckv, hetero}) {
    EXPECT_GT(r.at("hits"), 0);
    EXPECT_LT(r.at("hits"), 1);
    EXPECT_LE(r.at("hidden"), 1);
    EXPECT_GT(r.at("transfer_us"), 0);
    EXPECT_GT(r.at("host_to_device_bytes"), 0);
  }
}

TEST(Eval, EveryModeAgreesWhereNothingIsDropped) {
  const Words words = {"--budgets", "100%,30%", "--lengths", "600", "--samples", "1", "--tasks", "single", "--questions", "3"};
  std::map<std::string, Json> modes;
  for (const char* turns : {"multi", "single"}) {
    for (const char* question : {"--aware", "--agnostic"}) {
      Words more = words;
      more.insert(more.end(), {"--turns", turns, question});
      const Json json = eval_json(more, std::string(turns) + question + ".json");
      EXPECT_EQ(row(json, "full", "").at("score"), 1) << turns << question;
      EXPECT_EQ(row(json, "streaming", "100%").at("kept"), 1) << turns << question;
      EXPECT_LT(row(json, "streaming", "100%").at("kl"), 1e-9) << turns << question;
      EXPECT_LT(row(json, "streaming", "30%").at("kept"), 1) << turns << question;
      modes[std::string(turns) + question] = json;
    }
  }
  // Agnostic: the questions, and what the template writes behind them (six tokens), are decoded.
  const Json sample = modes["single--aware"].at("samples")[0];
  size_t question_tokens = 0;
  for (const Json& question : sample.at("questions")) question_tokens += count_tokens(question.at("question"));
  for (const char* turns : {"multi", "single"}) {
    const auto generated = [&](const char* question) {
      return row(modes[std::string(turns) + question], "full", "").at("generated_tokens").get<size_t>();
    };
    const size_t more = generated("--agnostic") - generated("--aware");
    EXPECT_GE(more, question_tokens);
    EXPECT_LE(more, question_tokens + 3 * 8);
  }
}

TEST(Eval, APolicyThatRefusesABudgetIsALine) {
  const std::string path = scratch_path("refused.json");
  const Finished finished = eval({"--policies", "streaming:sinks=8,full", "--budgets", "1KiB,100%", "--lengths", "300", "--samples", "1",
                                  "--tasks", "single", "--questions", "1", "--json", path});
  ASSERT_EQ(finished.code, 0) << finished.err;
  EXPECT_NE(finished.out.find("refused: "), std::string::npos) << finished.out;
  const Json json = Json::parse(read_whole(path));
  EXPECT_EQ(row(json, "streaming:sinks=8", "1KiB").at("answers"), 0);
  EXPECT_EQ(row(json, "streaming:sinks=8", "1KiB").at("error").get<std::string>().find("refused: "), 0u);
  EXPECT_EQ(row(json, "streaming:sinks=8", "100%").at("answers"), 1);
}

// JSON for a program that reads along: it alone is on standard output, the tables are not in its way.
// On a terminal the table fits, what it leaves out is said, and a bar tells which sample is read.
TEST(Eval, OnATerminal) {
  Terminal terminal({"eval", demo_model(), "--lengths", "3000", "--tasks", "single", "--policies", "streaming", "--budgets", "30%"});
  terminal.resize(80, 24);
  ASSERT_TRUE(terminal.expect("sample 1 of ")) << terminal.screen();
  EXPECT_EQ(terminal.finish(280), 0) << terminal.screen();
  EXPECT_NE(terminal.screen().find("the terminal has no room for: "), std::string::npos) << terminal.screen();
  std::istringstream lines(terminal.screen());
  for (std::string line; std::getline(lines, line);) {
    line.erase(0, line.find_last_of('\r', line.size() - 2) + 1);  // what the bar has written before
    const bool of_table = line.find("answers") != std::string::npos || line.find("streaming 30%") != std::string::npos;
    EXPECT_TRUE(!of_table || line.size() <= 85) << line;
  }
}

TEST(Eval, JsonOnStandardOutput) {
  const Words words = {"--policies", "full", "--lengths", "300", "--samples", "1", "--tasks", "single", "--questions", "1"};
  for (const char* name : {"-", "/dev/stdout"}) {
    Words more = words;
    more.insert(more.end(), {"--json", name});
    const Finished finished = eval(more);
    ASSERT_EQ(finished.code, 0) << finished.err;
    const Json json = Json::parse(finished.out, nullptr, false);
    ASSERT_FALSE(json.is_discarded()) << finished.out;
    EXPECT_EQ(row(json, "full", "").at("answers"), 1);
    EXPECT_NE(finished.err.find("full"), std::string::npos) << "no table";
  }
  Words more = words;
  more.insert(more.end(), {"--write-samples", "/dev/stdout"});
  const Finished samples = eval(more);
  EXPECT_EQ(samples.code, 0);
  EXPECT_TRUE(Json::parse(samples.out, nullptr, false).is_object()) << samples.out;
  for (const char* leftover : {"-.partial", "/dev/stdout.partial"}) EXPECT_NE(access(leftover, F_OK), 0) << leftover;
}

TEST(Eval, Pictures) {
  const std::string folder = scratch_path("pictures");
  const Words words = {"--budgets", "50%", "--lengths", "300", "--samples", "1", "--tasks", "single", "--questions", "1", "--png", folder};
  for (int twice = 0; twice < 2; ++twice) ASSERT_EQ(eval(words).code, 0);
  for (const char* file : {"accuracy-300.png", "kl-300.png", "depth-00-full.png", "depth-01-streaming-50.png"}) {
    EXPECT_GT(read_png(read_whole(folder + "/" + file)).width, 300) << file;
  }
  Words nowhere = words;
  nowhere.back() = scratch_path("no/such/folder");
  const Finished finished = eval(nowhere);
  EXPECT_EQ(finished.code, 1);
  EXPECT_EQ(finished.out, "");  // before anything is evaluated
  EXPECT_NE(finished.err.find("cannot make"), std::string::npos) << finished.err;
}

TEST(Eval, WrongWordsAreSaid) {
  const auto said = [](const Words& words, const std::string& part) {
    const Finished finished = eval(words);
    EXPECT_EQ(finished.code, 2) << finished.err;
    EXPECT_NE(finished.err.find(part), std::string::npos) << finished.err;
  };
  said({"--tasks", "singel"}, "did you mean 'single'");
  said({"--policies", "nobody"}, "no policy is called 'nobody'");
  said({"--policies", "duo"}, "did you mean 'duoattention'");
  said({"--policies", "full:kv-type=q9"}, "--policies: 'full:kv-type=q9': 'q9' is none of f16, f32, q8_0, q4_0 or k8v4");
  said({"--policies", "streaming:device-kv-type=q9"}, "'q9' is none of f16, f32, q8_0, q4_0 or k8v4");
  said({"--policies", "streaming:sinks"}, "'sinks' in 'streaming:sinks' is not NAME=VALUE");
  said({"--policies", "streaming:pinks=3"}, "pinks");
  said({"--policies", ":a=b"}, "does not begin with a name");
  said({"--budgets", "120%"}, "--budgets");
  said({"--budgets", ""}, "--budgets");
  said({"--lengths", "1000,x"}, "--lengths: 'x'");
  said({"--lengths", "100"}, "--lengths");
  said({"--lengths", "256", "--questions", "16"}, "cannot hold");
  said({"--aware", "--agnostic"}, "exclude each other");
  said({"--turns", "many"}, "--turns");
}

// ---- Files ----

constexpr const char* kText = "On Sunday there was snow over the cellar. Ada lives in Oslo. The grass is green. Bruno owns a teal fox.";

TEST(EvalFiles, LayoutsOfOthers) {
  const std::string path = scratch_path("others.jsonl");
  const Json ruler = {
      {"index", 7}, {"input", std::string(kText) + "\n\nWhere does Ada live?"}, {"outputs", {"Oslo", "Bergen"}}, {"length", 60}};
  const Json longbench = {{"input", "Where does Ada live?"}, {"context", kText}, {"answers", {"Rome", "Oslo"}}, {"length", 20},
                          {"dataset", "hotpotqa"},           {"language", "en"}, {"all_classes", nullptr},      {"_id", "abc"}};
  write_file(path, ruler.dump() + "\n\n" + longbench.dump());
  const Json json = eval_json({"--tasks", path, "--policies", "full"}, "others.json");
  ASSERT_EQ(json.at("answers").size(), 2u);
  for (const Json& answer : json.at("answers")) {
    EXPECT_EQ(answer.at("answer"), "Ada lives in Oslo.");
    // One of two outputs; one of four words said, all of one wanted: 2 * .25 * 1 / 1.25.
    EXPECT_NEAR(answer.at("score").get<double>(), answer.at("sample") == "abc" ? .4 : .5, 1e-12);
  }
  EXPECT_EQ(row(json, "full", "", "others").at("answers"), 1);
  EXPECT_EQ(row(json, "full", "", "hotpotqa").at("answers"), 1);
  const Json first = eval_json({"--tasks", path, "--policies", "full", "--samples", "1"}, "first.json");
  EXPECT_EQ(first.at("answers").size(), 1u);
  const Finished agnostic = eval({"--tasks", path, "--agnostic"});
  EXPECT_EQ(agnostic.code, 2);
  EXPECT_NE(agnostic.err.find("question inside the text"), std::string::npos) << agnostic.err;
}

TEST(EvalFiles, OurOwnGoRoundAndRound) {
  const Words words = {"--lengths", "400", "--samples", "1", "--questions", "2", "--tasks", "single,facts"};
  const std::vector<Json> made = samples(words, "own.jsonl");
  EXPECT_EQ(samples({"--tasks", scratch_path("own.jsonl")}, "again.jsonl"), made);
  Words more = words;
  more.insert(more.end(), {"--policies", "full"});
  EXPECT_EQ(eval_json({"--tasks", scratch_path("own.jsonl"), "--policies", "full"}, "own.json").at("answers"),
            eval_json(more, "made.json").at("answers"));
}

TEST(EvalFiles, WhatIsWrongNamesFileAndLine) {
  const std::string path = scratch_path("bad.jsonl");
  const std::string good = R"({"input": "a", "context": "b", "answers": ["c"]})";
  const auto said = [&](const std::string& line, const std::string& part) {
    write_file(path, good + "\n" + line + "\n" + good + "\n");
    const Finished finished = eval({"--tasks", path});
    EXPECT_EQ(finished.code, 1) << line << finished.err;
    EXPECT_NE(finished.err.find("bad.jsonl, line 2: "), std::string::npos) << finished.err;
    EXPECT_NE(finished.err.find(part), std::string::npos) << finished.err;
    EXPECT_EQ(std::count(finished.err.begin(), finished.err.end(), '\n'), 1) << finished.err;
  };
  said("{", "is not JSON");
  said("nonsense", "is not JSON");
  said(good + good, "is not JSON");
  said("{\"input\": \"\xff\"}", "is not JSON");
  said("[1]", "not a JSON object");
  said("{}", "neither \"questions\"");
  said(R"({"outputs": ["c"]})", "no \"input\"");
  said(R"({"input": 1, "outputs": ["c"]})", "\"input\" is not a string");
  said(R"({"input": "", "outputs": ["c"]})", "the text is empty");
  said(R"({"input": "a", "outputs": []})", "\"outputs\" is not a list");
  said(R"({"input": "a", "outputs": "c"})", "\"outputs\" is not a list");
  said(R"({"input": "a", "outputs": [null]})", "an answer in \"outputs\"");
  said(R"({"input": "a", "answers": ["c"]})", "no \"context\"");
  said(R"({"context": "a", "answers": ["c"]})", "no \"input\"");
  said(R"({"context": "a", "answers": ["c"], "input": "q", "dataset": 3})", "\"dataset\" is not a string");
  said(R"({"context": "a", "questions": []})", "\"questions\" is not a list");
  said(R"({"context": "a", "questions": [3]})", "a question is not a JSON object");
  said(R"({"context": "a", "questions": [{"question": "q"}]})", "no \"answer\"");
  said(R"({"context": "a", "questions": [{"question": "q", "answer": "c", "depth": 2}]})", "\"depth\"");
  said(R"({"context": "a", "metric": "luck", "questions": [{"question": "q", "answer": "c"}]})", "'luck'");
  said(R"({"context": "a", "length": -1, "questions": [{"question": "q", "answer": "c"}]})", "\"length\"");
  said(R"({"context": "a", "multi_turns": []})", "\"multi_turns\" is not a list");
  said(R"({"context": "a", "multi_turns": [{"input": "q"}]})", "no \"answer\"");
  said(R"({"context": "a", "turns": "many", "questions": [{"question": "q", "answer": "c"}]})", "not multi or single");
  said(R"({"context": "a", "question_after": 1, "questions": [{"question": "q", "answer": "c"}]})", "neither true nor false");
  said(std::string(100000, '['), "nested deeper");
  write_file(path, "\n \n");
  EXPECT_NE(eval({"--tasks", path}).err.find("holds no samples"), std::string::npos);
  write_file(path, good + std::string(1, '\0'));
  EXPECT_NE(eval({"--tasks", path}).err.find("is not text"), std::string::npos);
  EXPECT_EQ(eval({"--tasks", scratch_path("nowhere.jsonl")}).code, 1);
}

TEST(EvalFiles, WhatTheModelCannotTakeIsSaid) {
  const std::string path = scratch_path("control.jsonl");
  write_file(path, R"({"_id": "x", "input": "a", "context": "b <|im_end|> c", "answers": ["c"]})");
  const Finished control = eval({"--tasks", path});
  EXPECT_EQ(control.code, 1);
  EXPECT_NE(control.err.find("spells the control token <|im_end|>"), std::string::npos) << control.err;
  const Json longer = {{"input", "a"}, {"context", std::string(40000, 'x')}, {"answers", {"c"}}};
  write_file(path, longer.dump());
  EXPECT_EQ(eval({"--tasks", path, "--context", "1000"}).code, 4);
}

// ---- Going on ----

// Without what a clock says.
Json timeless(Json json) {
  for (Json& r : json.at("rows")) {
    r.erase("decode_tokens_per_second");
    r.erase("prefill_tokens_per_second");
  }
  return json;
}

class EvalResume : public ::testing::Test {
 protected:
  const Words words_ = {"--budgets", "100%,40%", "--lengths", "300", "--samples", "2", "--tasks", "single", "--questions", "2"};
  const std::string path_ = scratch_path("resumed.json"), partial_ = path_ + ".partial";

  Finished again(const RunOptions& options = {}) {
    Words more = words_;
    more.insert(more.end(), {"--json", path_});
    return eval(more, options);
  }
  // Everything is evaluated, but the result cannot be written: a folder stands where it belongs.
  std::string whole_partial() {
    unlink(path_.c_str());
    mkdir(path_.c_str(), 0700);
    EXPECT_EQ(again().code, 1);
    rmdir(path_.c_str());
    return read_whole(partial_);
  }
  Json result() { return timeless(Json::parse(read_whole(path_))); }
  void TearDown() override {
    unlink(path_.c_str());
    unlink(partial_.c_str());
  }
};

TEST_F(EvalResume, CutAnywhereItGoesOn) {
  const Json uninterrupted = timeless(eval_json(words_, "uninterrupted.json"));
  EXPECT_NE(access(scratch_path("uninterrupted.json.partial").c_str(), F_OK), 0);
  const std::string all = whole_partial();
  ASSERT_EQ(std::count(all.begin(), all.end(), '\n'), 2 * 3);
  for (const size_t cut : {all.size(), all.size() / 2, all.find('\n') + 1, size_t{10}}) {
    write_file(partial_, all.substr(0, cut));
    const Finished finished = again();
    ASSERT_EQ(finished.code, 0) << finished.err;
    EXPECT_EQ(result(), uninterrupted) << "cut at " << cut;
    EXPECT_NE(access(partial_.c_str(), F_OK), 0);
  }
}

TEST_F(EvalResume, WhatIsDoneIsNotDoneAgain) {
  std::string all = whole_partial();
  const Json uninterrupted = timeless(eval_json(words_, "untouched.json"));
  const std::string answer = uninterrupted.at("answers")[0].at("answer");
  const size_t at = all.find(answer);
  ASSERT_NE(at, std::string::npos);
  write_file(partial_, all.replace(at, answer.size(), "kept"));
  ASSERT_EQ(again().code, 0);
  EXPECT_EQ(result().at("answers")[0].at("answer"), "kept");
}

TEST_F(EvalResume, OtherSettingsAndNonsenseAreEvaluated) {
  std::string all = whole_partial();
  const Json expected = timeless(eval_json(words_, "expected.json"));
  for (size_t at = 0; (at = all.find("\"score\":", at)) != std::string::npos; ++at) all[at + 1] = 'x';
  write_file(partial_, "nonsense\n{}\n[]\n{\"key\": 3}\n" + all);
  ASSERT_EQ(again().code, 0);
  EXPECT_EQ(result(), expected);
  write_file(partial_, whole_partial());
  Words other = words_;
  other.insert(other.end(), {"--seed", "5", "--json", path_});
  ASSERT_EQ(eval(other).code, 0);
  EXPECT_NE(result().at("answers"), expected.at("answers"));
}

// Neither the answers of the model without an adapter nor those of another scale serve.
TEST_F(EvalResume, AdaptersAreEvaluated) {
  const TempDir dir;
  const std::string adapter = dir.write("tone.gguf", demo_adapter());
  const auto with = [&](const std::string& scale) {
    write_file(partial_, whole_partial());
    Words more = words_;
    more.insert(more.end(), {"--lora", adapter + scale, "--json", path_});
    const Finished finished = eval(more);
    EXPECT_EQ(finished.code, 0) << finished.err;
    return result();
  };
  const Json one = with(":1"), none = with(":0");
  EXPECT_EQ(one.at("settings").at("adapters")[0].at("scale"), 1.0);
  EXPECT_NE(one.at("answers"), none.at("answers"));
  EXPECT_EQ(none.at("answers"), timeless(eval_json(words_, "without.json")).at("answers"));
}

// --records outlives the run: another policy costs its own work alone, and another text none of the first one's.
TEST_F(EvalResume, RecordsServeLaterRuns) {
  const std::string records = scratch_path("records.jsonl");
  const auto with = [&](const char* policies, const char* n_samples) {
    return eval({"--policies", policies, "--budgets", "40%", "--lengths", "300", "--samples", n_samples, "--tasks", "single", "--questions",
                 "2", "--records", records, "--json", path_});
  };
  const auto lines = [&] {
    const std::string all = read_whole(records);
    return std::count(all.begin(), all.end(), '\n');
  };
  ASSERT_EQ(with("streaming", "1").code, 0);
  EXPECT_EQ(lines(), 2);
  ASSERT_EQ(with("streaming,snapkv", "2").code, 0);
  EXPECT_EQ(lines(), 2 + 1 + 3);
  ASSERT_EQ(with("streaming:kv-type=q8_0", "1").code, 0);
  EXPECT_EQ(lines(), 2 + 1 + 3 + 1) << "another KV type is another row";
  EXPECT_NE(access(partial_.c_str(), F_OK), 0);
  unlink(records.c_str());
}

// Two files whose texts need contexts of 256 and 768 tokens, under one length: the records of each, joined, serve both together.
TEST_F(EvalResume, RecordsOfFilesServeAllOfThem) {
  const auto file = [&](const char* name, size_t sentences) {
    std::string text = "Ada lives in Oslo.";
    for (size_t i = 0; i < sentences; ++i) text += " The grass is green. The sky is blue.";
    const Json sample = {{"id", name},
                         {"task", name},
                         {"length", 512},
                         {"context", text},
                         {"questions", {{{"question", "Where does Ada live?"}, {"answer", "Ada lives in Oslo."}}}}};
    write_file(scratch_path(name), sample.dump() + "\n");
    return scratch_path(name);
  };
  const std::string near = file("near.jsonl", 10), far = file("far.jsonl", 60), joined = scratch_path("joined.jsonl");
  const auto with = [&](const std::string& tasks, const std::string& records) {
    return eval(
        {"--policies", "streaming", "--budgets", "40%", "--tasks", tasks, "--max-tokens", "16", "--records", records, "--json", path_});
  };
  ASSERT_EQ(with(near, scratch_path("near-records.jsonl")).code, 0);
  ASSERT_EQ(with(far, scratch_path("far-records.jsonl")).code, 0);
  const std::string all = read_whole(scratch_path("near-records.jsonl")) + read_whole(scratch_path("far-records.jsonl"));
  write_file(joined, all);
  for (const std::string& both : {near + "," + far, far + "," + near}) {
    ASSERT_EQ(with(both, joined).code, 0);
    EXPECT_EQ(read_whole(joined), all) << "texts were evaluated again";
    EXPECT_EQ(row(result(), "streaming", "40%").at("answers"), 2);
  }
  const auto bytes = [&](const char* task) { return row(result(), "full", "", task).at("device_kv_bytes").get<uint64_t>(); };
  EXPECT_EQ(bytes("far.jsonl"), 3 * bytes("near.jsonl"));
  std::istringstream lines(all);  // full attention's and the policy's, of each text
  for (std::string line; std::getline(lines, line);) {
    const Json answer = Json::parse(line).at("record").at("answers")[0];
    const std::vector<double> kl = answer.at("kl"), margin = answer.at("margin");
    const bool full = std::all_of(kl.begin(), kl.end(), [](double x) { return x == 0; });
    EXPECT_EQ(margin.size(), full ? answer.at("tokens").size() : 0u) << line;
  }
  for (const char* name : {"near.jsonl", "far.jsonl", "near-records.jsonl", "far-records.jsonl", "joined.jsonl"})
    unlink(scratch_path(name).c_str());
}

TEST_F(EvalResume, InterruptedAndKilled) {
  const Json uninterrupted = timeless(eval_json(words_, "calm.json"));
  RunOptions interrupt, kill;
  interrupt.interrupt_after_output = 0;
  const Finished stopped = again(interrupt);
  if (stopped.code != 0) {  // unless it was faster than the signal
    EXPECT_EQ(stopped.code, 130) << stopped.err;
    EXPECT_EQ(stopped.err.find("orrery: "), 0u);
    EXPECT_NE(access(path_.c_str(), F_OK), 0);
  }
  kill.seconds = .3;
  again(kill);
  ASSERT_EQ(again().code, 0);
  EXPECT_EQ(result(), uninterrupted);
}

}  // namespace
}  // namespace orrery::testing
