// What `orrery eval` makes of answers, on a made-up evaluation that is worked out by hand: rows, and what its pictures
// show.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "samples/orrery/eval/charts.h"

namespace orrery::tool {
namespace {

EvalAnswer answer(double score, uint64_t compared, uint64_t agreed, double kl_sum) {
  EvalAnswer a;
  a.score = score;
  a.kl.assign(compared, compared ? static_cast<float>(kl_sum / static_cast<double>(compared)) : 0.0f);
  a.agreed = agreed;
  return a;
}

EvalRecord record(std::vector<EvalAnswer> answers, uint64_t generated, uint64_t device, uint64_t moved) {
  EvalRecord r;
  r.answers = std::move(answers);
  r.generated_tokens = generated;
  r.decode_us = 500000;
  r.prompt_tokens = 300;
  r.prefill_us = 100000;
  r.device_kv_bytes = device;
  r.host_to_device_bytes = moved;
  return r;
}

EvalSample sample(const char* task, uint64_t length, std::vector<double> depths) {
  EvalSample s;
  s.id = std::string(task) + std::to_string(length);
  s.task = task;
  s.length = length;
  for (const double depth : depths) s.questions.push_back({"q", {"answer"}, depth});
  return s;
}

// Full attention; a policy at 25%, and at 60 of full's 100 bytes; one that refuses.
EvalResults made_up() {
  EvalResults results;
  results.configs.resize(4);
  results.configs[0].policy = "full";
  results.configs[1] = {"keeps", "25%", "keeps", {}, .25f, 0};
  results.configs[2] = {"keeps", "60B", "keeps", {}, 1, 60};
  results.configs[3] = {"refuses", "1%", "refuses", {}, .01f, 0};
  results.samples = {sample("one", 1000, {.05, .99}), sample("two", 1000, {1.0}), sample("one", 2000, {-1})};
  const auto add = [&](size_t s, size_t c, EvalRecord r) { results.entries.push_back({s, c, std::move(r)}); };
  EvalRecord refused;
  refused.error = "refused: too little";
  add(0, 0, record({answer(1, 4, 4, 0), answer(1, 4, 4, 0)}, 10, 100, 0));
  add(0, 1, record({answer(1, 4, 3, 2), answer(0, 4, 1, 6)}, 20, 25, 40));
  add(0, 2, record({answer(1, 4, 4, 1), answer(1, 4, 4, 1)}, 20, 60, 40));
  add(0, 3, refused);
  add(1, 0, record({answer(.5, 2, 2, 0)}, 10, 90, 0));
  add(1, 1, record({answer(1, 2, 2, 0)}, 20, 24, 40));
  add(1, 2, record({answer(.25, 2, 2, 0)}, 20, 50, 40));
  add(1, 3, refused);
  add(2, 0, record({answer(0, 0, 0, 0)}, 5, 200, 0));
  add(2, 1, record({answer(1, 0, 0, 0)}, 5, 50, 7));
  add(2, 2, record({answer(0, 0, 0, 0)}, 5, 60, 7));
  add(2, 3, refused);
  return results;
}

TEST(EvalResults, RowsSumUp) {
  const EvalResults results = made_up();
  const EvalRow row = results.row(1, 1000, "");
  EXPECT_EQ(row.answers, 3u);
  EXPECT_DOUBLE_EQ(row.score, 2.0 / 3);
  EXPECT_DOUBLE_EQ(row.kept.value(), 1.5 / 2.5);  // 1 and 0 of 1 and 1; of the third, no more than full's .5
  EXPECT_NEAR(row.kl.value(), 8.0 / 10, 1e-6);    // over tokens, not answers
  EXPECT_DOUBLE_EQ(row.top1.value(), 6.0 / 10);
  EXPECT_DOUBLE_EQ(row.decode_tokens_per_second, 40);
  EXPECT_DOUBLE_EQ(row.prefill_tokens_per_second, 3000);
  EXPECT_EQ(row.device_kv_bytes, 25u);
  EXPECT_EQ(row.host_to_device_bytes, 80u);
  EXPECT_EQ(results.row(1, 1000, "two").answers, 1u);
  EXPECT_DOUBLE_EQ(results.row(1, 1000, "two").kept.value(), 1);
  // Full attention had nothing right there, and nothing was compared.
  EXPECT_FALSE(results.row(1, 2000, "").kept.has_value());
  EXPECT_FALSE(results.row(1, 2000, "").kl.has_value());
  const EvalRow refused = results.row(3, 1000, "");
  EXPECT_EQ(refused.answers, 0u);
  EXPECT_EQ(refused.error, "refused: too little");
  EXPECT_NE(EvalTable(results, 0).line(refused).find("refused: too little"), std::string::npos);
  // 2 lengths x 4 policies and budgets, and for those that answered 2 tasks and 1.
  EXPECT_EQ(results.rows().size(), 8u + 3 * 2 + 3);
  EXPECT_EQ(results.points().size(), 12u);
}

// Every line of the table, a head and rows alike, has one width: at most the terminal's, by fewer columns.
TEST(EvalResults, TablesFitTheTerminal) {
  const EvalResults results = made_up();
  size_t before = 0;
  for (const size_t columns : std::initializer_list<size_t>{70, 80, 100, 120, 160, 200, 400}) {
    SCOPED_TRACE(columns);
    const EvalTable table(results, columns);
    const std::string head = table.head();
    EXPECT_LE(head.size() - 1, columns);
    EXPECT_GE(head.size(), before);
    before = head.size();
    EXPECT_EQ(table.line(results.row(1, 1000, "")).size(), head.size());
    for (const char* always : {"answers", "score", "kept"}) EXPECT_NE(head.find(always), std::string::npos);
    for (const char* title : {"KL p99", "triggers", "tokens/s", "moved/token"})
      EXPECT_NE(head.find(title) == std::string::npos, table.left_out().find(title) == std::string::npos) << title;
    EXPECT_EQ(table.left_out().empty(), columns == 400 || columns == 200) << table.left_out();
    const std::string tasks = task_table(results, columns);
    for (size_t at = 0, end; at < tasks.size(); at = end + 1) {
      end = tasks.find('\n', at);
      EXPECT_LE(end - at, columns) << tasks;
    }
    for (const std::string& task : results.tasks()) EXPECT_NE(tasks.find(task), std::string::npos);
  }
}

// Two samples of one length under one policy: sums first, then ratios.
TEST(EvalResults, RefillsAreSummedBeforeTheyAreDivided) {
  EvalResults results = made_up();
  const auto refills = [](EvalRecord* r, uint64_t transfer, uint64_t stall, uint64_t checks, uint64_t triggers, uint64_t wanted,
                          uint64_t missed) {
    r->transfer_us = transfer, r->stall_us = stall, r->n_checks = checks, r->n_triggers = triggers;
    r->wanted_tokens = wanted, r->missed_tokens = missed;
  };
  refills(&results.entries[1].record, 300, 60, 8, 3, 90, 30);
  refills(&results.entries[5].record, 100, 20, 4, 1, 10, 10);
  const EvalRow row = results.row(1, 1000, "");
  EXPECT_EQ(row.transfer_us, 400u);
  EXPECT_EQ(row.stall_us, 80u);
  EXPECT_DOUBLE_EQ(row.hidden.value(), .8);
  EXPECT_DOUBLE_EQ(row.exposed_us.value(), 2);  // 80 in 40 tokens
  EXPECT_DOUBLE_EQ(row.hits.value(), .6);
  EXPECT_DOUBLE_EQ(row.triggers.value(), 10);  // 4 in 40 tokens
  const std::string line = EvalTable(results, 0).line(row);
  EXPECT_NE(line.find(" 0.600   0.800   2.0 us     10.0\n"), std::string::npos) << line;
  EXPECT_EQ(EvalTable(results, 0).head().size(), line.size());
  // Where nothing was asked for there is nothing to divide.
  const EvalRow none = results.row(2, 1000, "");
  EXPECT_FALSE(none.hits || none.hidden || none.exposed_us || none.triggers);
  EXPECT_NE(EvalTable(results, 0).line(none).find("      -       -        -        -\n"), std::string::npos);
  const Json rows = results_json(results).at("rows");
  const auto found = std::find_if(
      rows.begin(), rows.end(), [](const Json& r) { return r.at("budget") == "25%" && r.at("length") == 1000 && r.at("task").is_null(); });
  ASSERT_NE(found, rows.end());
  EXPECT_DOUBLE_EQ(found->at("hits").get<double>(), .6);
  EXPECT_DOUBLE_EQ(found->at("hidden").get<double>(), .8);
  EXPECT_DOUBLE_EQ(found->at("exposed_us_per_token").get<double>(), 2);
  EXPECT_DOUBLE_EQ(found->at("triggers_per_100_tokens").get<double>(), 10);
  EXPECT_EQ(found->at("stall_us"), 80u);
}

TEST(EvalResults, JsonHoldsEveryAnswerAndEveryError) {
  const Json json = results_json(made_up());
  size_t errors = 0;
  for (const Json& answer : json.at("answers")) errors += answer.contains("error");
  EXPECT_EQ(errors, 4u);  // a refused sample has one for each question
  EXPECT_EQ(json.at("answers").size(), 12u + 4);
  for (const Json& answer : json.at("answers"))
    EXPECT_TRUE(answer.at("question").is_number_unsigned() && answer.at("asked") == "aware") << answer;
  EXPECT_EQ(json.at("rows").size(), made_up().rows().size());
  EXPECT_EQ(json.at("samples").size(), 3u);
}

// Full attention's margin at the first token that differs tells a near tie from a loss.
TEST(EvalResults, MarginWhereTokensPart) {
  EvalResults results = made_up();
  const auto say = [&](size_t entry, size_t i, std::vector<int32_t> tokens, std::vector<float> margin) {
    results.entries[entry].record.answers[i].tokens = std::move(tokens);
    results.entries[entry].record.answers[i].margin = std::move(margin);
  };
  say(0, 0, {7, 8, 9}, {3, .25f, 1});
  say(0, 1, {5, 6}, {4, 2});
  say(1, 0, {7, 4, 3, 9}, {});  // parts at the second token; the fourth is behind full attention's end
  say(1, 1, {5, 6}, {});
  say(2, 0, {7, 8, 9}, {});
  say(2, 1, {5, 7}, {});
  const auto margin = [&](size_t entry, size_t question) { return results.margin_at_difference(results.entries[entry], question); };
  EXPECT_EQ(margin(1, 0), .25f);
  EXPECT_EQ(margin(2, 0), std::nullopt);
  EXPECT_EQ(margin(2, 1), 2.0f);
  EXPECT_EQ(margin(0, 1), std::nullopt) << "full attention agrees with itself";
  EXPECT_EQ(margin(1, 1), .25f) << "the conversation has parted before";
  results.samples[0].multi_turn = false;
  EXPECT_EQ(margin(1, 1), std::nullopt) << "asked alone, its tokens are equal";
  results.samples[0].multi_turn = {};
  results.multi_turn = false;
  EXPECT_EQ(margin(1, 1), std::nullopt);
  say(1, 1, {5, 6, 9}, {});
  EXPECT_EQ(margin(1, 1), std::nullopt) << "behind full attention's end there is no margin";
  say(1, 1, {}, {});
  EXPECT_EQ(margin(1, 1), std::nullopt) << "the question was not asked";
  say(4, 0, {7, 2}, {6, 5});
  say(5, 0, {7, 8}, {});
  EXPECT_EQ(margin(5, 0), 5.0f) << "another sample";
  // Entry 1 has lost its second answer, whose conversation parts at .25; the policy at 60 bytes has lost a quarter at 5.
  results.multi_turn = true;
  const auto lost = [&](size_t config) { return results.row(config, 1000, "").lost_at_ties; };
  EXPECT_EQ(lost(1), 1);
  EXPECT_EQ(lost(2), 0);
  say(6, 0, {7, 8}, {});
  EXPECT_EQ(lost(2), 0) << "the margin is 5";
  say(4, 0, {7, 2}, {6, kNearTie});
  EXPECT_EQ(lost(2), 0);
  say(4, 0, {7, 2}, {6, kNearTie - .01f});
  EXPECT_EQ(lost(2), .25);
  say(0, 0, {7, 8, 9}, {3, 1, 1});
  EXPECT_EQ(lost(1), 0);
  say(0, 0, {7, 8, 9}, {3, .25f, 1});
  const auto rows = results_json(results).at("rows");
  EXPECT_TRUE(std::any_of(rows.begin(), rows.end(), [](const Json& r) {
    return r.at("budget") == "25%" && r.at("length") == 1000 && r.at("task").is_null() && r.at("lost_at_ties") == 1;
  }));
  results.multi_turn = false;
  const Json answers = results_json(results).at("answers");  // two of entry 0, two of entry 1
  EXPECT_TRUE(answers[0].at("margin").is_null());
  EXPECT_EQ(answers[2].at("margin"), .25);
  EXPECT_TRUE(answers[3].at("margin").is_null());
}

// 20 tokens of which two are far off: the 99th percentile is the larger one, and the mean is of all.
TEST(EvalResults, PercentileOfKl) {
  EvalResults results = made_up();
  results.entries[1].record.answers[0].kl.assign(19, .01f);
  results.entries[1].record.answers[0].kl.push_back(3.0f);
  results.entries[1].record.answers[1].kl.assign(80, .02f);
  results.entries[5].record.answers[0].kl.clear();
  const EvalRow row = results.row(1, 1000, "");
  EXPECT_NEAR(row.kl.value(), (19 * .01 + 3 + 80 * .02) / 100, 1e-6);
  EXPECT_NEAR(row.kl_p99.value(), .02, 1e-6);  // of 100 tokens, 99 have at most this
  results.entries[1].record.answers[0].kl[0] = 4.0f;
  EXPECT_NEAR(results.row(1, 1000, "").kl_p99.value(), 3, 1e-6);
}

// Agresti and Coull (1998), and the closed form at the ends: 0 of n reaches z^2 / (n + z^2).
TEST(EvalResults, KeptHasWilsonsInterval) {
  const Interval half = wilson(.5, 10), none = wilson(0, 10), all = wilson(1, 16);
  EXPECT_NEAR(half.low, .2366, 5e-5);
  EXPECT_NEAR(half.high, .7634, 5e-5);
  EXPECT_DOUBLE_EQ(none.low, 0);
  EXPECT_NEAR(none.high, 3.841459 / 13.841459, 1e-6);
  EXPECT_NEAR(all.low, 16 / 19.841459, 1e-6);
  EXPECT_DOUBLE_EQ(all.high, 1);
  const EvalRow row = made_up().row(1, 1000, "");
  EXPECT_DOUBLE_EQ(row.kept_of, 2.5);
  EXPECT_DOUBLE_EQ(row.kept_low, wilson(.6, 2.5).low);
  EXPECT_DOUBLE_EQ(row.kept_high, wilson(.6, 2.5).high);
}

TEST(EvalResults, WhatDoesNotCountAsKept) {
  EvalResults results = made_up();
  const auto kept_of = [&] { return results.row(1, 1000, "").kept_of; };
  results.samples[0].questions[0].answers = {"7"};  // one character is found by chance
  EXPECT_DOUBLE_EQ(kept_of(), 1.5);
  results.entries[0].record.answers[1].cut = true;  // full attention's answer, compared as a whole, has no end
  EXPECT_DOUBLE_EQ(kept_of(), .5);
  results.samples[0].metric = Metric::contains;  // where the answer is found in it, the end does not matter
  EXPECT_DOUBLE_EQ(kept_of(), 1.5);
  results.samples[0].metric = Metric::none;
  EXPECT_DOUBLE_EQ(kept_of(), .5);
  EXPECT_EQ(results.row(1, 1000, "").scored, 1u);
  EXPECT_EQ(results.row(1, 1000, "").answers, 3u);
  EXPECT_NE(EvalTable(results, 0).line(results.row(1, 1000, "one")).find("      2      -      -           - "), std::string::npos)
      << EvalTable(results, 0).line(results.row(1, 1000, "one"));
}

TEST(EvalResults, RowsSayWhenPoliciesSettle) {
  EvalResults results = made_up();
  EXPECT_STREQ(results.row(1, 1000, "").question, "aware");
  results.samples[1].question_after = true;
  EXPECT_STREQ(results.row(1, 1000, "").question, "both");
  EXPECT_STREQ(results.row(1, 1000, "two").question, "agnostic");
  EXPECT_STREQ(results.row(1, 1000, "one").question, "aware");
  results.aware = false;
  EXPECT_STREQ(results.row(1, 1000, "one").question, "agnostic");
}

TEST(EvalResults, KlAgainstBudget) {
  const LineChart chart = kl_chart(made_up(), 1000);
  ASSERT_EQ(chart.series.size(), 1u);
  EXPECT_TRUE(chart.y.log2);
  EXPECT_NEAR(chart.series[0].y[0], .8, 1e-6);
  EXPECT_NEAR(chart.series[0].y[1], .2, 1e-6);
  EXPECT_TRUE(chart.references.empty());
}

TEST(EvalResults, AccuracyAgainstBudget) {
  const LineChart chart = accuracy_chart(made_up(), 1000);
  ASSERT_EQ(chart.series.size(), 1u);  // who refused everything has no line
  EXPECT_EQ(chart.series[0].name, "keeps");
  EXPECT_EQ(chart.series[0].x, (std::vector<double>{.25, .6}));  // 60 bytes are 60% of full's 100
  EXPECT_DOUBLE_EQ(chart.series[0].y[0], 2.0 / 3);
  EXPECT_DOUBLE_EQ(chart.series[0].y[1], .75);
  ASSERT_EQ(chart.references.size(), 1u);
  EXPECT_DOUBLE_EQ(chart.references[0].y, 2.5 / 3);
}

TEST(EvalResults, DepthByLength) {
  const HeatMap map = depth_map(made_up(), 1);
  ASSERT_EQ(map.grid.rows, 10u);
  ASSERT_EQ(map.grid.columns, 2u);
  EXPECT_EQ(map.column_names, (std::vector<std::string>{"1,000", "2,000"}));
  EXPECT_EQ(map.row_names[9], "90-100%");
  for (size_t r = 0; r < 10; ++r) {
    EXPECT_TRUE(std::isnan(map.grid.values[r * 2 + 1])) << r;  // a depth that is not known is nowhere
    if (r == 0) {
      EXPECT_EQ(map.grid.values[0], 1);
    } else if (r == 9) {
      EXPECT_EQ(map.grid.values[18], .5);  // .99, and 1.0 in the same row
    } else {
      EXPECT_TRUE(std::isnan(map.grid.values[r * 2])) << r;
    }
  }
}

}  // namespace
}  // namespace orrery::tool
