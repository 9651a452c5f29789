// Head profiles: a written profile reads back, a wrong one is refused by name, published files give their known numbers.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "runtime/policy/heads/profile.h"
#include "tests/support/random_blocks.h"
#include "tests/support/shared.h"
#include "tests/unit/policy/fixture.h"
#include "tests/unit/policy/papers.h"

namespace orrery::policy::profile_test {
namespace {

using nlohmann::json;
using orrery::testing::Random;

// Two layers: pivots 0 and 3 with satellites {1, 2}, {4}, volatile 5; an anchor, a pivot and its satellite.
HeadProfile sample() {
  HeadProfile p;
  p.has_model = true;
  p.model = {0x01, 0x23, 0xab, 0xff};
  p.note = "eight short stories, 2\u00a0000 tokens each";
  p.thresholds = {.4, .55};
  p.tau_drift = .45;
  p.top_k = 128;
  Random random(3);
  const auto fractions = [&](size_t n) {
    std::vector<double> out(n);
    for (double& x : out) x = static_cast<double>(random.bits() >> 11) * 0x1p-53;
    return out;
  };
  const auto matrix = [&](size_t n) {
    std::vector<double> out = fractions(n * n);
    for (size_t i = 0; i < n; ++i) {
      out[i * n + i] = 1;
      for (size_t j = 0; j < i; ++j) out[i * n + j] = out[j * n + i];
    }
    return out;
  };
  constexpr Role A = Role::anchor, V = Role::volatile_head, P = Role::pivot, S = Role::satellite;
  constexpr uint32_t no = kNoHead;
  p.layers.resize(2);
  p.layers[0].roles = {{P, S, S, P, S, V}, {no, 0, 0, no, 3, no}};
  p.layers[1].roles = {{A, S, P}, {no, 2, no}};
  for (ProfileLayer& layer : p.layers) {
    layer.stability = fractions(layer.n_kv_heads());
    layer.induction = fractions(layer.n_kv_heads()), layer.echo = fractions(layer.n_kv_heads());
  }
  p.layers[0].similarity = matrix(6);
  p.layers[0].mean_similarity = matrix(6);
  p.layers[0].clusters = {{0, 0, 1, 0, 1, 1}, {3, 2, no}};
  return p;
}

json as_json(const HeadProfile& p) { return json::parse(must(write_profile(p))); }

TEST(PolicyProfile, WhatIsWrittenReadsBackNumberForNumber) {
  const HeadProfile p = sample();
  const std::string text = must(write_profile(p));
  const HeadProfile q = must(read_profile(text));
  EXPECT_TRUE(q.has_model);
  EXPECT_EQ(q.model, p.model);
  EXPECT_EQ(q.note, p.note);
  EXPECT_EQ(q.thresholds.tau_sim, .4);
  EXPECT_EQ(q.thresholds.tau_stable, .55);
  EXPECT_EQ(q.tau_drift, .45);
  EXPECT_EQ(q.top_k, 128u);
  ASSERT_EQ(q.layers.size(), 2u);
  for (size_t l = 0; l < 2; ++l) {
    EXPECT_EQ(q.layers[l].roles.roles, p.layers[l].roles.roles);
    EXPECT_EQ(q.layers[l].roles.pivot_of, p.layers[l].roles.pivot_of);
    EXPECT_EQ(q.layers[l].stability, p.layers[l].stability);
    EXPECT_EQ(q.layers[l].allocation, p.layers[l].allocation);
    EXPECT_EQ(q.layers[l].similarity, p.layers[l].similarity);
    EXPECT_EQ(q.layers[l].mean_similarity, p.layers[l].mean_similarity);
    EXPECT_EQ(q.layers[l].clusters.cluster_of, p.layers[l].clusters.cluster_of);
    EXPECT_EQ(q.layers[l].clusters.representatives, p.layers[l].clusters.representatives);
  }
  EXPECT_EQ(must(write_profile(q)), text);
  EXPECT_EQ(as_json(p)["model"], "0123abff000000000000000000000000");
  EXPECT_EQ(as_json(p)["layers"][0]["pivot_of"], json::parse("[null, 0, 0, null, 3, null]"));
  EXPECT_EQ(p.counts().full(), 4u);
  const std::vector<double> w = p.weights();
  ASSERT_EQ(w.size(), 5u);
  EXPECT_EQ(w[0], stability_weight(p.layers[0].stability[1], 128));
  EXPECT_EQ(w[4], stability_weight(p.layers[1].stability[1], 128));
}

TEST(PolicyProfile, OneServesTheModelItWasMadeFor) {
  HeadProfile p = sample();
  const std::vector<uint32_t> shape = {6, 3};
  const auto says = [&](const Fingerprint& model, const std::vector<uint32_t>& heads) {
    return std::string(check_profile_fits(p, model, heads).message());
  };
  EXPECT_EQ(says(p.model, shape), "");
  EXPECT_NE(says({}, shape).find("0123abff"), std::string::npos);
  EXPECT_NE(says(p.model, {6}).find("2 layers, the model has 1"), std::string::npos);
  EXPECT_NE(says(p.model, {6, 4}).find("layer 1: 3 KV heads, the model's has 4"), std::string::npos);
  p.has_model = false;
  EXPECT_EQ(says({}, shape), "");
}

void expect_refused(const Status& status, const std::string& part) {
  EXPECT_FALSE(status.ok()) << "expected: " << part;
  EXPECT_NE(std::string(status.message()).find(part), std::string::npos) << status.message() << "\nexpected: " << part;
}

TEST(PolicyProfile, ContradictionsInMemoryAreRefused) {
  const auto refused = [](auto change, const char* part) {
    HeadProfile p = sample();
    change(p);
    expect_refused(check_profile(p), part);
    expect_refused(write_profile(p).take_status(), part);
  };
  const double nan = std::nan("");
  refused([](HeadProfile& p) { p.layers.clear(); }, "0 layers");
  refused([](HeadProfile& p) { p.layers.resize(kMaxLayers + 1); }, "4097 layers");
  refused([](HeadProfile& p) { p.note = "\xff"; }, "UTF-8");
  refused([](HeadProfile& p) { p.note.assign(5000, 'a'); }, "note");
  refused([&](HeadProfile& p) { p.thresholds.tau_sim = nan; }, "tau_sim");
  refused([](HeadProfile& p) { p.tau_drift = -1; }, "tau_drift");
  refused([](HeadProfile& p) { p.top_k = 0; }, "top_k");
  refused([](HeadProfile& p) { p.layers[1].roles = {}; }, "layer 1: 0 heads");
  refused([](HeadProfile& p) { p.layers[1].roles.pivot_of.pop_back(); }, "layer 1: pivot_of");
  refused([](HeadProfile& p) { p.layers[0].roles.roles[2] = static_cast<Role>(9); }, "layer 0: head 2 has no role");
  refused([](HeadProfile& p) { p.layers[0].roles.pivot_of[4] = kNoHead; }, "satellite 4 has no pivot");
  refused([](HeadProfile& p) { p.layers[0].roles.pivot_of[4] = 5; }, "satellite 4 has no pivot");
  refused([](HeadProfile& p) { p.layers[0].roles.pivot_of[4] = 0; }, "pivot 3 has no satellite");
  refused([](HeadProfile& p) { p.layers[0].roles.pivot_of[5] = 0; }, "head 5 has a pivot");
  refused([](HeadProfile& p) { p.layers[0].stability.pop_back(); }, "stability has 5");
  refused([](HeadProfile& p) { p.layers[0].echo.clear(); }, "layer 0: echo has 0 entries for 6 heads");
  refused([](HeadProfile& p) { p.layers[1].induction.pop_back(); }, "layer 1: induction has 2 entries for 3 heads");
  refused([](HeadProfile& p) { p.layers[0].induction.clear(); }, "layer 0: echo has 6 entries");
  refused([&](HeadProfile& p) { p.layers[1].echo[2] = nan; }, "layer 1: echo of head 2");
  refused([](HeadProfile& p) { p.layers[0].induction[5] = 1.5; }, "induction of head 5 is 1.5");
  refused([&](HeadProfile& p) { p.layers[0].stability[3] = nan; }, "stability of head 3");
  refused([](HeadProfile& p) { p.layers[0].stability[3] = 1.1; }, "stability of head 3");
  refused([](HeadProfile& p) { p.layers[0].stability.clear(); }, "either stability or allocation");
  refused([](HeadProfile& p) { p.layers[1].allocation = {1, 1, 0}; }, "either stability or allocation");
  const auto allocated = [](HeadProfile& p) {
    p.layers[1].stability.clear();
    p.layers[1].allocation = {1, 1, 0};
  };
  refused([&](HeadProfile& p) { allocated(p); }, "another kind of weight");
  refused([&](HeadProfile& p) { allocated(p), p.layers[1].allocation[2] = 1; }, "allocation of head 2");
  refused([&](HeadProfile& p) { allocated(p), p.layers[1].allocation[0] = 0; }, "allocation of head 0");
  refused([&](HeadProfile& p) { allocated(p), p.layers[1].allocation[0] = nan; }, "allocation of head 0");
  refused([](HeadProfile& p) { p.layers[0].similarity.pop_back(); }, "similarity has 35");
  refused([&](HeadProfile& p) { p.layers[0].similarity[1] = nan; }, "similarity of heads 0 and 1");
  refused([](HeadProfile& p) { p.layers[0].similarity[1] /= 2; }, "similarity of heads 0 and 1");
  refused([](HeadProfile& p) { p.layers[0].mean_similarity[7] = .9; }, "mean_similarity of heads 1 and 1");
  refused([](HeadProfile& p) { p.layers[0].clusters.cluster_of[2] = 3; }, "head 2 is in no cluster");
  refused([](HeadProfile& p) { p.layers[0].clusters.cluster_of.pop_back(); }, "5 heads in 3 clusters");
  refused([](HeadProfile& p) { p.layers[0].clusters.representatives.clear(); }, "6 heads in 0 clusters");
  refused([](HeadProfile& p) { p.layers[0].clusters.representatives[0] = 2; }, "cluster 0 is not represented");
  refused([](HeadProfile& p) { p.layers[0].clusters.representatives[0] = kNoHead; }, "cluster 0 is not represented");
  refused([](HeadProfile& p) { p.layers[0].clusters.representatives[2] = 1; }, "cluster 2 is not represented");
}

TEST(PolicyProfile, HostileJsonIsRefusedByName) {
  const auto refused = [](auto change, const char* part) {
    json j = as_json(sample());
    change(j);
    expect_refused(read_profile(j.dump()).take_status(), part);
  };
  const auto dropped = [&](const char* key) {
    json j = as_json(sample());
    j.erase(key);
    expect_refused(read_profile(j.dump()).take_status(), format("no \"%s\"", key));
  };
  for (const char* key : {"format", "version", "model", "note", "top_k", "tau_sim", "tau_stable", "tau_drift", "layers"}) {
    dropped(key);
  }
  expect_refused(read_profile("").take_status(), "head profile: JSON");
  expect_refused(read_profile("[]").take_status(), "not an object");
  expect_refused(read_profile(std::string(100, '[')).take_status(), "JSON");
  refused([](json& j) { j["format"] = "other"; }, "orrery-head-profile");
  refused([](json& j) { j["version"] = 2; }, "version 2");
  refused([](json& j) { j["version"] = -1; }, "document.version");
  refused([](json& j) { j["extra"] = 2; }, "unknown member \"extra\"");
  refused([](json& j) { j["model"] = "0123"; }, "hex");
  refused([](json& j) { j["model"] = std::string(32, 'G'); }, "hex");
  refused([](json& j) { j["model"] = 3; }, "model is not a string");
  refused([](json& j) { j["top_k"] = 1.5; }, "top_k is not an integer");
  refused([](json& j) { j["top_k"] = 1ull << 40; }, "top_k is not an integer");
  refused([](json& j) { j["tau_sim"] = "x"; }, "tau_sim is not a number");
  refused([](json& j) { j["tau_sim"] = true; }, "tau_sim is not a number");
  refused([](json& j) { j["tau_sim"] = 7; }, "tau_sim 7");
  refused([](json& j) { j["layers"] = 7; }, "layers is not a list");
  refused([](json& j) { j["layers"] = json::array(); }, "0 layers");
  refused([](json& j) { j["layers"][1] = 7; }, "layers[1] is not an object");
  refused([](json& j) { j["layers"][1]["more"] = 7; }, "layers[1] has an unknown member \"more\"");
  refused([](json& j) { j["layers"][1].erase("roles"); }, "no \"roles\"");
  refused([](json& j) { j["layers"][1]["roles"][2] = "king"; }, "layers[1].roles[2] is not a role");
  refused([](json& j) { j["layers"][1]["roles"][2] = 3; }, "layers[1].roles[2] is not a string");
  refused([](json& j) { j["layers"][1]["roles"] = json::array(); }, "layers[1].roles");
  refused([](json& j) { j["layers"][1]["roles"] = json(1025, "anchor"); }, "layers[1].roles");
  refused([](json& j) { j["layers"][1]["pivot_of"][1] = -1; }, "layers[1].pivot_of[1]");
  refused([](json& j) { j["layers"][1]["pivot_of"][1] = 9; }, "satellite 1 has no pivot");
  refused([](json& j) { j["layers"][1]["pivot_of"][1] = 4294967295u; }, "layers[1].pivot_of[1]");
  refused([](json& j) { j["layers"][1]["stability"][1] = nullptr; }, "layers[1].stability[1]");
  refused([](json& j) { j["layers"][0]["similarity"].erase(0); }, "15 numbers, one for each pair of 6");
  refused([](json& j) { j["layers"][0].erase("representatives"); }, "no \"representatives\"");
  refused([](json& j) { j["layers"][0].erase("cluster_of"); }, "no \"cluster_of\"");
  refused([](json& j) { j["layers"][0]["cluster_of"][0] = nullptr; }, "cluster_of[0]");
  refused([](json& j) { j["layers"][0]["cluster_of"] = j["layers"][0]["representatives"] = json::array(); },
          "cluster_of is not a list of every head");
}

// A profile that is cut, or has a byte changed, is read or refused.
TEST(PolicyProfile, DamagedTextIsReadOrRefused) {
  const std::string text = must(write_profile(sample()));
  Random random(5);
  int refused = 0;
  for (size_t n = 0; n < text.size(); n += 7) EXPECT_FALSE(read_profile(std::string_view(text).substr(0, n)).ok());
  for (int round = 0; round < 2000; ++round) {
    std::string damaged = text;
    damaged[random.below(text.size())] = static_cast<char>(random.below(256));
    const Result<HeadProfile> p = read_profile(damaged);
    if (p.ok()) {
      EXPECT_TRUE(check_profile(p.value()).ok());
    } else {
      EXPECT_STRNE(p.status().message(), "");
      ++refused;
    }
  }
  EXPECT_GT(refused, 500);
}

// ---- The published format ----

json published() {
  return json::parse(R"({
    "meta": {"type_map": {"Steady": 1, "Shifting": 2, "Leader": 3, "Follower": 4},
             "counts": {"Steady": 1, "Shifting": 1, "Leader": 3, "Follower": 4}},
    "classification_matrix": [[3, 4, 4, 3, 4, 2], [1, 4, 3]],
    "leader_member_relations": [{"0": [1, 2], "3": [4]}, {"2": [1]}],
    "allocation_matrix": [[-1, 0.5, 1.5, -1.0, 1.25, -1], [0.75, 1.0, -1]]})");
}

TEST(PolicyProfile, APublishedFileIsImportedByItsIds) {
  const HeadProfile p = must(import_published_profile(published().dump()));
  EXPECT_FALSE(p.has_model);
  ASSERT_EQ(p.layers.size(), 2u);
  EXPECT_EQ(p.layers[0].roles.pivot_of, (std::vector<uint32_t>{kNoHead, 0, 0, kNoHead, 3, kNoHead}));
  EXPECT_EQ(p.layers[0].roles.roles[5], Role::volatile_head);
  EXPECT_EQ(p.layers[1].roles.roles[0], Role::anchor);
  EXPECT_EQ(p.weights(), (std::vector<double>{.5, 1.5, 1.25, .75, 1}));
  // l_i = L_base * allocation.
  const HeteroBudget b = must(hetero_budget(must(Ratio::from(.6)), p.counts().full(), p.weights(), 900));
  EXPECT_EQ(b.l_base, 252u);  // (.6 * 9 - 4) * 900 / 5
  EXPECT_EQ(b.lengths, (std::vector<uint64_t>{126, 378, 315, 189, 252}));
  // An imported profile can be written in our format.
  const HeadProfile q = must(read_profile(must(write_profile(p))));
  EXPECT_FALSE(q.has_model);
  EXPECT_EQ(q.weights(), p.weights());
  EXPECT_EQ(q.layers[0].roles.roles, p.layers[0].roles.roles);
}

TEST(PolicyProfile, HostilePublishedFilesAreRefusedByName) {
  const auto refused = [](auto change, const char* part) {
    json j = published();
    change(j);
    expect_refused(import_published_profile(j.dump()).take_status(), part);
  };
  for (const char* key : {"meta", "classification_matrix", "leader_member_relations", "allocation_matrix"}) {
    json j = published();
    j.erase(key);
    expect_refused(import_published_profile(j.dump()).take_status(), format("no \"%s\"", key));
  }
  refused([](json& j) { j["meta"].erase("counts"); }, "no \"counts\"");
  refused([](json& j) { j["meta"]["type_map"]["Steady"] = 2; }, "id of 1 to 4 of its own");
  refused([](json& j) { j["meta"]["type_map"]["Steady"] = 5; }, "type_map.Steady");
  refused([](json& j) { j["meta"]["type_map"]["Steady"] = 0; }, "type_map.Steady");
  refused([](json& j) { j["meta"]["type_map"].erase("Steady"); }, "a map to the ids 1 to 4");
  refused([](json& j) { j["meta"]["counts"]["Steady"] = 2; }, "counts.Steady is not 1");
  refused([](json& j) { j["meta"]["counts"].erase("Leader"); }, "no \"Leader\"");
  refused([](json& j) { j["classification_matrix"][1][0] = 5; }, "classification_matrix[1][0]");
  refused([](json& j) { j["classification_matrix"][1][0] = 0; }, "classification_matrix[1][0]");
  refused([](json& j) { j["classification_matrix"][1] = json::array(); }, "classification_matrix[1]");
  refused([](json& j) { j["classification_matrix"] = json::array(); }, "classification_matrix");
  refused([](json& j) { j["classification_matrix"].push_back({1}); }, "leader_member_relations is not a list of 3");
  refused([](json& j) { j["allocation_matrix"].erase(1); }, "allocation_matrix is not a list of 2");
  refused([](json& j) { j["leader_member_relations"][1] = 3; }, "leader_member_relations[1] is not an object");
  refused([](json& j) { j["leader_member_relations"][1] = json::object(); }, "layer 1: satellite 1 has no pivot");
  refused([](json& j) { j["leader_member_relations"][1]["2"] = 1; }, "leader_member_relations[1].2 is not a list");
  refused([](json& j) { j["leader_member_relations"][1]["2"][0] = 3; }, "leader_member_relations[1].2[0]");
  refused([](json& j) { j["leader_member_relations"][1]["2"][0] = 0; }, "a satellite that has no pivot yet");
  refused([](json& j) { j["leader_member_relations"][0]["3"] = {4, 4}; }, "a satellite that has no pivot yet");
  refused([](json& j) { j["leader_member_relations"][0]["3"] = {4, 1}; }, "a satellite that has no pivot yet");
  refused([](json& j) { j["leader_member_relations"][0]["3"] = json::array(); }, "layer 0: satellite 4 has no pivot");
  for (const char* key : {"5", "6", "03", "-1", "", "3 ", "99999999999999999999"}) {
    refused([&](json& j) { j["leader_member_relations"][0][key] = json::array(); }, "a pivot of this layer");
  }
  refused([](json& j) { j["allocation_matrix"][0].push_back(1); }, "allocation_matrix[0] is not 6 numbers");
  refused([](json& j) { j["allocation_matrix"][0][0] = .5; }, "allocation_matrix[0][0] is not -1");
  refused([](json& j) { j["allocation_matrix"][0][1] = -1; }, "layer 0: allocation of head 1 is -1");
  refused([](json& j) { j["allocation_matrix"][0][1] = 0; }, "allocation of head 1 is 0");
  refused([](json& j) { j["allocation_matrix"][0][1] = nullptr; }, "allocation_matrix[0][1] is not a number");
  refused([](json& j) { j["allocation_matrix"][0][1] = .7; }, "adds up to 5.2");
}

struct Known {
  const char* file;
  RoleCounts counts;
  double minimum, dropped;  // of the compressed budget at .8
};

TEST(PolicyProfile, ThePublishedProfilesGiveTheirNumbers) {
  const Known all[] = {{"llama-3.1-8b-instruct", {10, 17, 33, 196}, .195, .021},
                       {"qwen2.5-14b-instruct", {37, 25, 55, 267}, .208, .009},
                       {"deepseek-r1-distill-llama-8b", {0, 5, 32, 219}, .145, .018}};
  for (const Known& known : all) {
    const std::string path = testing::shared_path(std::string("head-profiles/") + known.file + ".json");
    if (path.empty()) GTEST_SKIP() << "no shared head profiles";
    std::ifstream in(path, std::ios::binary);
    const HeadProfile p = must(import_published_profile(std::string(std::istreambuf_iterator<char>(in), {})));
    const RoleCounts c = p.counts();
    EXPECT_EQ(c.anchor, known.counts.anchor);
    EXPECT_EQ(c.volatile_heads, known.counts.volatile_heads);
    EXPECT_EQ(c.pivot, known.counts.pivot);
    EXPECT_EQ(c.satellite, known.counts.satellite);
    EXPECT_NEAR(full_share(c.full(), c.all()).value(), known.minimum, .0005);
    EXPECT_TRUE(check_profile_fits(p, {}, std::vector<uint32_t>(p.layers.size(), 8)).ok());

    constexpr uint64_t kTokens = 10000;
    EXPECT_FALSE(hetero_budget(must(Ratio::from(known.minimum - .001)), c.full(), p.weights(), kTokens).ok());
    EXPECT_TRUE(hetero_budget(must(Ratio::from(known.minimum + .001)), c.full(), p.weights(), kTokens).ok());
    const HeteroBudget b = must(hetero_budget(must(Ratio::from(.8)), c.full(), p.weights(), kTokens));
    // Tokens that the published code drops and ours divides over the other heads.
    double dropped = 0;
    uint64_t total = 0;
    const std::vector<double> w = p.weights();
    for (size_t i = 0; i < w.size(); ++i) {
      dropped += std::max(0.0, w[i] * static_cast<double>(b.l_base) - kTokens);
      total += b.lengths[i];
      EXPECT_LE(b.lengths[i], kTokens);
    }
    EXPECT_NEAR(dropped / static_cast<double>(b.l_base * w.size()), known.dropped, .0005) << known.file;
    EXPECT_EQ(total, b.l_base * w.size());
  }
}

}  // namespace
}  // namespace orrery::policy::profile_test
