// DuoAttention's gates as head profiles: the heads of its rule, bad text, and the policies' use of gates.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "runtime/policy/heads/gates.h"
#include "tests/support/random_blocks.h"
#include "tests/unit/policy/fake_session.h"
#include "tests/unit/policy/fixture.h"

namespace orrery::policy::gates_test {
namespace {

using testing::Random;

// numpy.quantile, linear.
double quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  const double at = q * static_cast<double>(values.size() - 1);
  const auto below = static_cast<size_t>(at);
  const double next = values[std::min(below + 1, values.size() - 1)];
  return values[below] + (at - static_cast<double>(below)) * (next - values[below]);
}

TEST(PolicyGates, AsManyAsStandAboveTheQuantile) {
  for (const uint32_t n : {1u, 2u, 7u, 32u, 33u, 256u, 1024u}) {
    std::vector<double> gates(n);
    for (uint32_t i = 0; i < n; ++i) gates[i] = i;  // differences of one survive any rounding of the quantile
    for (int percent = 1; percent < 100; ++percent) {
      const double threshold = quantile(gates, percent / 100.0);
      const auto above = std::count_if(gates.begin(), gates.end(), [&](double gate) { return gate >= threshold - 1e-6; });
      EXPECT_EQ(heads_above_quantile(n, percent / 100.0), above) << n << " heads, " << percent << "%";
    }
    EXPECT_EQ(heads_above_quantile(n, 0), n);
    EXPECT_EQ(heads_above_quantile(n, 1), 0u);
  }
  EXPECT_EQ(heads_above_quantile(256, .5), 128u);
  EXPECT_EQ(heads_above_quantile(32, .6), 13u);  // 40% of 32 are 12.8
}

const char kText[] =
    "1.000000000000000000e+00\t2.500000000000000000e-01\t0.000000000000000000e+00\r\n"
    "\n"
    "  0.5 1  .75 \n"
    "0.75\t0.125\t1e-3";

TEST(PolicyGates, HeadsWithTheLargestAreVolatile) {
  const HeadProfile p = must(import_gates(kText, .5));  // 9 gates: the fifth from above is the quantile
  ASSERT_EQ(p.layers.size(), 3u);
  EXPECT_FALSE(p.has_model);
  EXPECT_TRUE(p.has_gates());
  EXPECT_EQ(p.layers[0].gates, (std::vector<double>{1, .25, 0}));
  EXPECT_EQ(p.layers[1].gates, (std::vector<double>{.5, 1, .75}));
  EXPECT_EQ(p.layers[2].gates, (std::vector<double>{.75, .125, .001}));
  constexpr Role A = Role::anchor, V = Role::volatile_head;
  EXPECT_EQ(p.layers[0].roles.roles, (std::vector<Role>{V, A, A}));
  EXPECT_EQ(p.layers[1].roles.roles, (std::vector<Role>{V, V, V}));
  EXPECT_EQ(p.layers[2].roles.roles, (std::vector<Role>{V, A, A}));
  // Of equal gates the first.
  const HeadProfile q = must(import_gates(kText, .7));
  EXPECT_EQ(q.layers[1].roles.roles, (std::vector<Role>{A, V, V}));
  EXPECT_EQ(q.layers[2].roles.roles, (std::vector<Role>{A, A, A}));
  EXPECT_EQ(must(import_gates(kText, 0)).counts().full(), 9u);
  EXPECT_EQ(must(import_gates(kText, 1)).counts().full(), 0u);

  const std::string json = must(write_profile(p));
  const HeadProfile back = must(read_any_profile(json));
  EXPECT_EQ(must(write_profile(back)), json);
  for (size_t l = 0; l < 3; ++l) {
    EXPECT_EQ(back.layers[l].gates, p.layers[l].gates);
    EXPECT_EQ(back.layers[l].roles.roles, p.layers[l].roles.roles);
  }
}

void expect_refused(const Status& status, const std::string& part) {
  EXPECT_EQ(status.code(), Code::invalid_argument) << "expected: " << part;
  EXPECT_NE(std::string(status.message()).find(part), std::string::npos) << status.message() << "\nexpected: " << part;
}

TEST(PolicyGates, WhatIsNoneIsRefusedByLineAndColumn) {
  const auto refused = [](const std::string& text, const char* part) { expect_refused(import_gates(text, .5).take_status(), part); };
  refused("", "gates: line 1, column 1: expected a number of 0 to 1");
  refused("\n \t\r\n", "line 1, column 1");
  refused("{\"format\": \"orrery-head-profile\"}", "line 1, column 1");
  refused("0.5\t0.5\n0.5\tx", "line 2, column 5: expected a number of 0 to 1");
  refused("0.5 0.5\n\n0.5  0.25,", "line 3, column 10");
  refused("0.5,0.25\n", "line 1, column 4");
  refused("1.5\n", "line 1, column 1");
  refused("0\t-0.25\n", "line 1, column 3");
  refused("0 nan", "line 1, column 3");
  refused("0 inf", "line 1, column 3");
  refused("0 1e-999", "line 1, column 3");
  refused("0x1", "line 1, column 2");
  refused("+1", "line 1, column 1");
  refused(std::string("1 1\0 1", 6), "line 1, column 4");
  refused("1 \xC2\xA0", "line 1, column 3");
  refused("1 1 1\n1 1\n", "line 2, column 4: 2 heads, the first layer has 3");
  refused("1\n1 1\n", "line 2, column 4: 2 heads, the first layer has 1");
  std::string wide;
  for (uint32_t i = 0; i <= kMaxKvHeads; ++i) wide += "1 ";
  refused(wide, "line 1, column 2049: more than 1024 heads");
  std::string high;
  for (uint32_t i = 0; i <= kMaxLayers; ++i) high += "1\n";
  refused(high, "line 4097, column 1: more than 4096 layers");
  for (const double sparsity : {-.1, 1.1, std::nan("")}) expect_refused(import_gates("1", sparsity).take_status(), "sparsity");
  // Any text becomes a profile or an error.
  Random random(7);
  for (uint32_t i = 0; i < 20000; ++i) {
    std::string text = kText;
    for (uint32_t n = 1 + i % 3; n > 0; --n) text[random.bits() % text.size()] = static_cast<char>(random.bits() & 0xFF);
    const Result<HeadProfile> read = import_gates(text.substr(0, i % 5 ? text.size() : random.bits() % text.size()), .5);
    if (read.ok()) {
      EXPECT_TRUE(check_profile(read.value()).ok());
    }
  }
}

TEST(PolicyGates, ContradictionsAreRefused) {
  const auto refused = [](auto change, const char* part) {
    HeadProfile p = must(import_gates(kText, .5));
    change(&p);
    expect_refused(check_profile(p), part);
  };
  refused([](HeadProfile* p) { p->layers[0].gates[1] = .6; }, "a gate of 0.5 is volatile, and one with 0.6 is not");
  refused([](HeadProfile* p) { p->layers[0].gates[1] = std::nan(""); }, "layer 0: the gate of head 1");
  refused([](HeadProfile* p) { p->layers[0].gates[1] = -1; }, "layer 0: the gate of head 1 is -1");
  refused([](HeadProfile* p) { p->layers[1].gates.pop_back(); }, "layer 1: gates has 2 entries for 3 heads");
  refused([](HeadProfile* p) { p->layers[1].gates.clear(); }, "layer 1: expected either");
  refused([](HeadProfile* p) { p->layers[1].stability = {1, 1, 1}; }, "layer 1: expected either");
  refused([](HeadProfile* p) { p->layers[1].gates.clear(), p->layers[1].allocation = {0, 0, 0}; }, "layer 1: has another kind");
  refused([](HeadProfile* p) { p->layers[0].gates.clear(), p->layers[0].allocation = {0, 1, 1}; }, "layer 1: has another kind");
  refused(
      [](HeadProfile* p) {
        p->layers[2].roles.roles[1] = Role::pivot, p->layers[2].roles.roles[2] = Role::satellite;
        p->layers[2].roles.pivot_of[2] = 1;
      },
      "layer 2: head 1 is a pivot");
}

constexpr uint32_t kLayers = 4, kHeads = 8, kContext = 1000;
const int32_t kNoWindow[kLayers] = {}, kWindowed[kLayers] = {0, 256, 0, 256};

// Gates as they are trained, in BF16: several are equal.
std::vector<double> some_gates() {
  Random random(11);
  std::vector<double> gates(kLayers * kHeads);
  for (double& gate : gates) gate = std::min(1.0, static_cast<double>(random.bits() % 40) / 32);
  return gates;
}
std::string text_of(const std::vector<double>& gates) {
  std::string text;
  for (size_t i = 0; i < gates.size(); ++i) text += std::to_string(gates[i]) + (i % kHeads == kHeads - 1 ? "\n" : "\t");
  return text;
}

std::vector<float> alike(uint32_t, uint32_t, uint32_t n_keys) { return std::vector<float>(n_keys, 1.0f); }

// The heads that keep the whole prompt.
std::set<uint32_t> whole(const char* policy, double share, double sparsity, const Options& options, const int32_t* windows = kNoWindow) {
  const Shape shape{kLayers, kHeads, kContext, {windows, kLayers}};
  const auto profile = std::make_shared<const HeadProfile>(must(import_gates(text_of(some_gates()), sparsity)));
  FakeSession s(must(make_policy(policy, shape, {share, slots_for_share(shape, share)}, options, profile)), kLayers * kHeads, 1, kContext,
                alike);
  s.settle(900);
  std::set<uint32_t> heads;
  for (uint32_t head = 0; head < kLayers * kHeads; ++head)
    if (windows[head / kHeads] == 0 && s.n_selected(head) == 900) heads.insert(head);
  EXPECT_EQ(s.policy().queries_wanted(), 0u);
  return heads;
}
// Heads whose gate is at least the quantile, as in the code: its noise makes the first of equal gates the largest.
std::set<uint32_t> by_rule(double sparsity) {
  std::vector<double> gates = some_gates();
  for (size_t i = 0; i < gates.size(); ++i) gates[i] += 1e-6 * static_cast<double>(gates.size() - i) / static_cast<double>(gates.size());
  const double threshold = sparsity <= 0 ? -1 : sparsity >= 1 ? 2 : quantile(gates, sparsity);
  std::set<uint32_t> heads;
  for (uint32_t head = 0; head < gates.size(); ++head)
    if (gates[head] >= threshold) heads.insert(head);
  return heads;
}

TEST(PolicyGates, DuoAttentionKeepsTheHeadsOfItsRule) {
  EXPECT_EQ(by_rule(.5).size(), 16u);
  for (const double sparsity : {.25, .3, .5, .6, .75, .9})
    EXPECT_EQ(whole("duoattention", .85, sparsity, {}), by_rule(sparsity)) << sparsity;
  EXPECT_TRUE(whole("duoattention", .85, 1, {}).empty());
  EXPECT_EQ(whole("duoattention", 1, .5, {}).size(), kLayers * kHeads);  // a whole budget holds everything
}

TEST(PolicyGates, ABudgetThatHoldsFewerKeepsTheLargest) {
  const std::set<uint32_t> few = whole("duoattention", .3, .5, {});
  const std::vector<double> gates = some_gates();
  const std::set<uint32_t> all = by_rule(.5);
  ASSERT_GT(few.size(), 3u);
  ASSERT_LT(few.size(), all.size());
  EXPECT_TRUE(std::includes(all.begin(), all.end(), few.begin(), few.end()));
  double least = 1, most = 0;
  for (uint32_t head = 0; head < gates.size(); ++head) {
    if (few.count(head)) least = std::min(least, gates[head]);
    if (!few.count(head)) most = std::max(most, gates[head]);
  }
  EXPECT_GE(least, most);
  // full_share gives exactly this number.
  EXPECT_EQ(whole("duoattention", .85, .5, {{"full_share", "0.25"}}).size(), 8u);
  EXPECT_EQ(whole("duoattention", .85, .75, {{"full_share", "0.5"}}), by_rule(.5));
  // 15% of the heads retrieve: those with the largest gates.
  EXPECT_EQ(whole("razorattention", .6, .5, {}), by_rule(1 - 3.5 / 31));
}

TEST(PolicyGates, LayersWithAWindowDoNotCount) {
  const std::set<uint32_t> heads = whole("duoattention", .85, .5, {}, kWindowed);
  std::set<uint32_t> expected;
  for (const uint32_t head : by_rule(.5))
    if (kWindowed[head / kHeads] == 0) expected.insert(head);
  EXPECT_EQ(heads, expected);
}

TEST(PolicyGates, OtherMethodsWantMore) {
  const Shape shape{kLayers, kHeads, kContext, {kNoWindow, kLayers}};
  const auto profile = std::make_shared<const HeadProfile>(must(import_gates(text_of(some_gates()), .5)));
  EXPECT_TRUE(profile->weights().empty());
  const auto says = [&](const char* policy) {
    return std::string(make_policy(policy, shape, {1, slots_for_share(shape, 1)}, {}, profile).take_status().message());
  };
  EXPECT_NE(says("heterocache").find("gates"), std::string::npos) << says("heterocache");
  EXPECT_NE(says("synckv").find("no clusters"), std::string::npos) << says("synckv");
  EXPECT_EQ(says("snapkv"), "");
}

}  // namespace
}  // namespace orrery::policy::gates_test
