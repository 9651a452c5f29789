// `orrery policies`: the table, a policy's page, and names that do not exist. `orrery plan`: the memory of each, region by region.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <sstream>

#include <nlohmann/json.hpp>

#include "program.h"

namespace orrery::testing {
namespace {

using Json = nlohmann::json;
using Words = std::vector<std::string>;

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

// The plan's list: each row names a region, and every column adds up to the summary above it.
TEST(Plan, IsToldRegionByRegion) {
  for (const char* policy : {"full", "auto", "heterocache", "shadowkv"}) {
    SCOPED_TRACE(policy);
    const Words words = {"plan", demo_model(), "--context", "4096", "--policy", policy};
    Words as_json = words;
    as_json.push_back("--json");
    const Json plan = Json::parse(run(as_json).out);
    const std::string text = run(words).out;
    const size_t list = text.find("\nRegion by region, in bytes");
    ASSERT_NE(list, std::string::npos) << text;
    EXPECT_LT(text.find("It fits.\n"), list);  // the summary stands on top
    std::istringstream rows(text.substr(text.find('\n', list + 1) + 1));
    std::map<std::string, std::array<uint64_t, 3>> shown;
    for (std::string row; std::getline(rows, row);) {
      ASSERT_GT(row.size(), 31u) << row;
      EXPECT_LE(row.size(), 80u) << row;
      std::istringstream cells(row.substr(31));
      const std::string name = row.substr(2, row.find_last_not_of(' ', 30) - 1);
      for (uint64_t& bytes : shown[name]) {
        std::string cell;
        cells >> cell;
        cell.erase(std::remove(cell.begin(), cell.end(), ','), cell.end());
        bytes = cell == "-" ? 0 : std::stoull(cell);
      }
    }
    const std::array<uint64_t, 3> together = shown.at("together");
    EXPECT_EQ(together[0], plan.at("device_bytes").get<uint64_t>());
    EXPECT_EQ(together[1], plan.at("reservoir_bytes").get<uint64_t>());
    EXPECT_EQ(together[2], plan.at("host_bytes").get<uint64_t>() + plan.at("weights_mapped_bytes").get<uint64_t>());
    shown.erase("together");
    std::array<uint64_t, 3> sums = {};
    for (const Json& region : plan.at("regions")) {
      const std::array<uint64_t, 3> bytes = {region.at("device_bytes"), region.at("reservoir_bytes"), region.at("host_bytes")};
      EXPECT_EQ(shown.at(region.at("name")), bytes) << region;
      for (size_t i = 0; i < 3; ++i) sums[i] += bytes[i];
    }
    EXPECT_EQ(sums, together);
    EXPECT_EQ(shown.size(), plan.at("regions").size());
    EXPECT_EQ(plan.at("regions").at(0).at("kind"), "weights");
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
  EXPECT_EQ(one.out.compare(0, 19, "{\n  \"name\": \"adakv\""), 0) << one.out;
  const Finished session = run({"plan", demo_model(), "--policy", "adakvv"});
  EXPECT_EQ(session.code, 2);
  EXPECT_NE(session.err.find("did you mean 'adakv'?"), std::string::npos) << session.err;
}

// The loss to expect: known where a policy was measured, between two shares by a line of logarithms. The demo model's architecture was
// measured.
TEST(Plan, SaysWhatLossToExpect) {
  const auto plan = [](const Words& more) {
    Words words = {"plan", demo_model(), "--context", "4096", "--json"};
    words.insert(words.end(), more.begin(), more.end());
    return Json::parse(run(words).out);
  };
  const auto kl = [&](const char* share, const Words& more = {}) {
    Words words = {"--kv-budget", share};
    words.insert(words.end(), more.begin(), more.end());
    return plan(words).value("expected_kl", -1.0);
  };
  EXPECT_GT(kl("20%"), 0);
  EXPECT_LT(kl("20%"), kl("10%"));
  EXPECT_NEAR(kl("14.14%"), std::sqrt(kl("20%") * kl("10%")), .03 * kl("20%"));
  EXPECT_NEAR(kl("20%", {"--policy", "quest"}), .3748, .01);
  EXPECT_NEAR(kl("31.6%", {"--policy", "quest"}), std::sqrt(.0348 * .3748), .01);
  EXPECT_EQ(kl("10%", {"--policy", "quest"}), -1) << "refused where it was measured";
  EXPECT_EQ(kl("20%", {"--policy", "streaming"}), -1) << "not measured";
  EXPECT_EQ(kl("20%", {"--policy-option", "by=window"}), -1) << "measured with default options";
  EXPECT_EQ(kl("20%", {"--device-kv-type", "f16"}), -1);
  EXPECT_EQ(plan({}).count("expected_kl"), 0u) << "all KV is kept";
  EXPECT_EQ(plan({"--kv-budget", "20%"})["expected_kl_measured_on"], "SmolLM2-135M-Instruct");
  EXPECT_TRUE(plan({"--kv-budget", "4%"})["expected_kl_at_least"]);
  const auto text = [&](const char* share) { return run({"plan", demo_model(), "--context", "4096", "--kv-budget", share}).out; };
  EXPECT_NE(text("20%").find("nats of KL from full attention, as on SmolLM2-135M-Instruct"), std::string::npos);
  EXPECT_EQ(text("20%").find("nine tenths"), std::string::npos);
  EXPECT_NE(text("9%").find("Warning: nine tenths of the KV are gone."), std::string::npos);
}

}  // namespace
}  // namespace orrery::testing
