// embed: JSON lines of vectors and scores, in the order of the texts, from words, files and standard input.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "program.h"

namespace orrery::testing {
namespace {

using Json = nlohmann::json;
using Words = std::vector<std::string>;

std::vector<Json> lines(const Words& words, const std::string& input = "") {
  RunOptions options;
  options.input = input;
  const Finished finished = run(words, options);
  EXPECT_EQ(finished.code, 0) << finished.err;
  EXPECT_EQ(finished.err, "");
  std::vector<Json> out;
  for (size_t at = 0; at < finished.out.size();) {
    const size_t end = finished.out.find('\n', at);
    out.push_back(Json::parse(finished.out.substr(at, end - at)));
    at = end + 1;
  }
  return out;
}

TEST(Embed, OneLineForEachText) {
  const std::vector<Json> all = lines({"embed", demo_model(), "A wolf.", "A white fox.", "A wolf.", "--text"});
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[1].at("index"), 1);
  EXPECT_EQ(all[1].at("text"), "A white fox.");
  EXPECT_EQ(all[0].at("embedding"), all[2].at("embedding"));
  EXPECT_NE(all[0].at("embedding"), all[1].at("embedding"));
  EXPECT_GT(all[1].at("n_tokens"), all[0].at("n_tokens"));
  double squares = 0;
  for (const Json& x : all[0].at("embedding")) squares += x.get<double>() * x.get<double>();
  EXPECT_NEAR(squares, 1, 1e-5);
  EXPECT_EQ(all[0].at("embedding").size(), 256u);
}

TEST(Embed, FilesAndPipesHaveALineForEachText) {
  const std::vector<Json> words = lines({"embed", demo_model(), "A wolf.", "A fox."});
  EXPECT_EQ(lines({"embed", demo_model(), "-"}, "A wolf.\n\nA fox."), words);
  EXPECT_EQ(lines({"embed", demo_model()}, "A wolf.\r\nA fox.\n"), words);
  EXPECT_TRUE(lines({"embed", demo_model(), "-"}, "\n\n").empty());
}

TEST(Embed, OptionsChangeTheVectors) {
  const Json rows = lines({"embed", demo_model(), "A wolf.", "--pooling", "none", "--raw"})[0];
  const Json last = lines({"embed", demo_model(), "A wolf.", "--pooling", "last", "--raw", "--dimensions", "8"})[0];
  ASSERT_EQ(rows.at("embeddings").size(), rows.at("n_tokens"));
  ASSERT_EQ(last.at("embedding").size(), 8u);
  for (size_t i = 0; i < 8; ++i) EXPECT_EQ(rows.at("embeddings").back()[i], last.at("embedding")[i]);
  EXPECT_EQ(lines({"embed", demo_model(), "A wolf and a fox.", "--max-tokens", "2", "--truncate"})[0].at("n_tokens"), 2);
}

TEST(Embed, WhatCannotBeIsRefusedInTheToolsWords) {
  const auto refused = [](const Words& words, int code, const char* part) {
    const Finished finished = run(words);
    EXPECT_EQ(finished.code, code) << finished.err;
    EXPECT_NE(finished.err.find(part), std::string::npos) << finished.err;
  };
  refused({"embed", demo_model(), "A wolf and a fox.", "--max-tokens", "2"}, 4, "--truncate");
  refused({"embed", demo_model(), "A wolf.", "--dimensions", "257"}, 2, "--dimensions is 257");
  refused({"embed", demo_model(), "A wolf.", "--pooling", "most"}, 2, "--pooling");
  refused({"embed", demo_model(), "A wolf.", "--query", "q", "--pooling", "mean"}, 2, "--pooling is of vectors");
  refused({"embed", demo_model(), "A wolf.", "--query", "q"}, 3, "has no head");
  refused({"embed", demo_model(), "A wolf.", "--file", "x"}, 2, "not both");
}

}  // namespace
}  // namespace orrery::testing
