// The metrics of `orrery eval` against worked examples: RULER's string match, LongBench's F1, whole answers, and the
// Kullback-Leibler divergence.
#include <gtest/gtest.h>

#include <cmath>

#include "samples/orrery/eval/sample.h"

namespace orrery::tool {
namespace {

TEST(EvalScore, WholeAnswersWithoutCaseAndPunctuation) {
  const auto score = [](const char* right, const char* said) { return score_answer(Metric::exact, {right}, said); };
  EXPECT_EQ(score("Ada lives in Oslo.", "Ada lives in Oslo."), 1);
  EXPECT_EQ(score("Ada lives in Oslo.", "  ada lives\nin oslo"), 1);
  EXPECT_EQ(score("12, 34.", "12,34"), 1);    // a comma parts words
  EXPECT_EQ(score("12, 34.", "34, 12."), 0);  // and their order counts
  EXPECT_EQ(score("12, 34.", "1234"), 0);
  EXPECT_EQ(score("Ada lives in Oslo.", "Ada lives in Oslo. Ada"), 0);
  EXPECT_EQ(score("Ada lives in Oslo.", ""), 0);
  EXPECT_EQ(score_answer(Metric::exact, {"no", "yes"}, "Yes!"), 1);
}

TEST(EvalScore, ShareOfTheOutputsThatStandInTheAnswer) {
  const auto score = [](const char* said) { return score_answer(Metric::contains, {"Red", "blue", "7"}, said); };
  EXPECT_EQ(score("red, BLUE and 7"), 1);
  EXPECT_DOUBLE_EQ(score("the red one"), 1.0 / 3);
  EXPECT_DOUBLE_EQ(score("17 blueberries"), 2.0 / 3);  // as RULER: substrings
  EXPECT_EQ(score(""), 0);
}

TEST(EvalScore, F1OfWords) {
  const auto score = [](std::vector<std::string> right, const char* said) { return score_answer(Metric::f1, right, said); };
  EXPECT_EQ(score({"The Eiffel Tower"}, "eiffel tower."), 1);
  // 2 of 4 words said, 2 of 2 wanted: 2 * .5 * 1 / 1.5
  EXPECT_NEAR(score({"Eiffel Tower"}, "the tower of Eiffel Paris"), 2.0 / 3, 1e-12);
  // A word said twice and wanted once counts once: precision 1/2, recall 1.
  EXPECT_NEAR(score({"tower"}, "tower tower"), 2.0 / 3, 1e-12);
  EXPECT_EQ(score({"no", "Eiffel"}, "Eiffel"), 1);  // the nearest of several
  EXPECT_EQ(score({"Eiffel"}, "Louvre"), 0);
  EXPECT_EQ(score({"the"}, "a"), 0);  // nothing is left of either
}

TEST(EvalScore, QuotesAreWholeAndWhiteSpaceIsOneSpace) {
  const auto score = [](const char* said) { return score_answer(Metric::quote, {"Return the\n    length of the list"}, said); };
  EXPECT_EQ(score("The docstring is: \"Return the length of  the list.\""), 1);
  EXPECT_EQ(score("Return the length of the"), 0);  // cut off
  EXPECT_EQ(score("return the length of the list"), 0);
  EXPECT_EQ(score_answer(Metric::quote, {"no", "one two"}, "one\ttwo"), 1);
}

TEST(EvalScore, AnswersInOrder) {
  const auto score = [](const char* said) { return score_answer(Metric::order, {"open", "read", "seek", "close"}, said); };
  EXPECT_EQ(score("1. open\n2. read\n3. seek\n4. close"), 1);
  EXPECT_EQ(score("read, open, close"), .5);  // open or read, then close
  EXPECT_EQ(score("close seek read open"), .25);
  EXPECT_EQ(score("open and close"), .5);
  EXPECT_EQ(score("nothing"), 0);
  EXPECT_EQ(score_answer(Metric::none, {"open"}, "open"), 0);
}

TEST(EvalScore, PairsThatSayNothingOfWhatIsKept) {
  EXPECT_TRUE(counts_as_kept(Metric::exact, {"12"}, 1, false));
  EXPECT_FALSE(counts_as_kept(Metric::exact, {"12"}, 0, false));    // full attention has nothing to keep
  EXPECT_FALSE(counts_as_kept(Metric::exact, {" 2\n"}, 1, false));  // one character
  EXPECT_FALSE(counts_as_kept(Metric::contains, {"123", "7"}, 1, false));
  EXPECT_FALSE(counts_as_kept(Metric::f1, {"a long quote"}, .5, true));
  EXPECT_TRUE(counts_as_kept(Metric::quote, {"a long quote"}, 1, true));  // it stands in the answer whole
  EXPECT_FALSE(counts_as_kept(Metric::none, {}, 1, false));
}

TEST(EvalScore, Divergence) {
  // p = (1/2, 1/2), q = (1/4, 3/4): (1/2) ln 2 + (1/2) ln (2/3) = (1/2) ln (4/3).
  const float p[] = {7.0f, 7.0f}, q[] = {0.0f, std::log(3.0f)};
  EXPECT_NEAR(kl_divergence(p, q, 2), 0.5 * std::log(4.0 / 3), 1e-7);
  // The other way: (1/4) ln (1/2) + (3/4) ln (3/2).
  EXPECT_NEAR(kl_divergence(q, p, 2), 0.25 * std::log(0.5) + 0.75 * std::log(1.5), 1e-7);
  EXPECT_EQ(kl_divergence(p, p, 2), 0);
  // A shift of all logits changes nothing, and what p gives no weight counts nothing.
  const float shifted[] = {-93.0f, -93.0f}, sure[] = {0.0f, -INFINITY}, large[] = {1000.0f, 0.0f};
  EXPECT_NEAR(kl_divergence(p, shifted, 2), 0, 1e-12);
  EXPECT_NEAR(kl_divergence(sure, p, 2), std::log(2.0), 1e-12);
  EXPECT_NEAR(kl_divergence(large, p, 2), std::log(2.0), 1e-12);
}

TEST(EvalScore, MarginOfTheLikeliest) {
  for (const auto& logits : {std::vector<float>{1, -3, 5, 2.5f}, {5, 2.5f, 1}, {2.5f, 1, 5}, {-7, -9.5f}})
    EXPECT_EQ(top_margin(logits.data(), logits.size()), 2.5f);
  const float equal[] = {4, 1, 4};
  EXPECT_EQ(top_margin(equal, 3), 0);
}

}  // namespace
}  // namespace orrery::tool
