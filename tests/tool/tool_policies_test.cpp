// `orrery policies`: the table, a policy's page, and names that there are not.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "program.h"

namespace orrery::testing {
namespace {

using Json = nlohmann::json;

TEST(Policies, TheTableHasEveryPolicyThatSessionsTake) {
  const Json rows = Json::parse(run({"policies", "--json"}).out);
  const Finished table = run({"policies"});
  EXPECT_EQ(table.code, 0);
  EXPECT_EQ(table.err, "");
  ASSERT_GE(rows.size(), 10u);
  for (const Json& row : rows) {
    const std::string name = row.at("name");
    EXPECT_NE(table.out.find("\n" + name + " "), std::string::npos) << name;
    for (const Json& option : row.at("options")) {
      const std::string words = option.at("name").get<std::string>() + " " + option.at("default").get<std::string>();
      EXPECT_NE(table.out.find(words.substr(0, words.find(' '))), std::string::npos) << name << " " << words;
    }
    // A session takes it, and refuses what it does not.
    const Finished plan = run({"plan", demo_model(), "--context", "1024", "--policy", name});
    EXPECT_EQ(plan.code, 0) << plan.err;
    if (name == "full") continue;
    const Finished refused = run({"plan", demo_model(), "--context", "1024", "--policy", name, "--policy-option", "no-such-thing=1"});
    EXPECT_EQ(refused.code, 2) << name;
    EXPECT_NE(refused.err.find("policy " + name + " has no option 'no-such-thing'"), std::string::npos) << refused.err;
  }
  for (size_t at = 0; at < table.out.size();) {
    const size_t end = table.out.find('\n', at);
    ASSERT_NE(end, std::string::npos);
    EXPECT_LE(end - at, 142u) << table.out.substr(at, end - at);
    at = end + 1;
  }
}

TEST(Policies, APageExplains) {
  const Finished page = run({"policies", "--explain", "pyramidkv"});
  EXPECT_EQ(page.code, 0);
  for (const char* part : {"pyramidkv - PyramidKV (arXiv:2406.02069)", "\n  allocate ", "132 of 128", "\n  beta "})
    EXPECT_NE(page.out.find(part), std::string::npos) << part << "\n" << page.out;
}

TEST(Policies, UnknownNamesAreRefusedWithTheNearest) {
  const Finished finished = run({"policies", "--explain", "snapvk"});
  EXPECT_EQ(finished.code, 2);
  EXPECT_EQ(finished.out, "");
  EXPECT_NE(finished.err.find("did you mean 'snapkv'?"), std::string::npos) << finished.err;
  EXPECT_NE(finished.err.find("?); the policies are: adakv, "), std::string::npos) << finished.err;
  const Finished strange = run({"policies", "--explain", "nope"});
  EXPECT_NE(strange.err.find("there is no policy 'nope'; the policies are: "), std::string::npos) << strange.err;
  // With --json, --explain still chooses the policy.
  const Finished one = run({"policies", "--explain", "adakv", "--json"});
  EXPECT_EQ(one.code, 0);
  EXPECT_EQ(one.out.compare(0, 20, "{\n  \"name\": \"adakv\""), 0) << one.out;
  const Finished session = run({"plan", demo_model(), "--policy", "adakvv"});
  EXPECT_EQ(session.code, 2);
  EXPECT_NE(session.err.find("did you mean 'adakv'?"), std::string::npos) << session.err;
}

}  // namespace
}  // namespace orrery::testing
