// StreamingLLM's sets, uniform budgets, and how unknown names are refused.
#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "runtime/policy/policy.h"
#include "runtime/policy/select/rings.h"

namespace orrery::policy::streaming_test {
namespace {

using Positions = Tokens;

const int32_t kNoWindow[] = {0, 0, 0};
Shape shape(Span<const int32_t> window = {kNoWindow, 3}, uint32_t n_context = 1000) {
  return {static_cast<uint32_t>(window.size()), 2, n_context, window};
}
std::unique_ptr<Policy> streaming(const Shape& s, double share, const Options& options = {}) {
  auto made = make_policy("streaming", s, {share, slots_for_share(s, share)}, options);
  EXPECT_TRUE(made.ok()) << made.status().message();
  return std::move(made).value();
}

TEST(Streaming, KeepsSinksAndTheLastTokensOfAnyLength) {
  const Shape s = shape();
  const auto policy = streaming(s, 0.3);
  std::vector<uint32_t> capacity(6);
  ASSERT_TRUE(policy->settle(nullptr, 500, capacity).ok());
  for (const uint32_t c : capacity) EXPECT_EQ(c, 150u);
  Positions slots;
  policy->select(3, 500, 150, &slots);
  ASSERT_EQ(slots.size(), 150u);
  // Then every generated token replaces the oldest recent token, never a sink.
  for (uint32_t position = 500; position < 900; ++position) {
    const uint32_t slot = policy->slot_for(3, 150, 150);
    ASSERT_GE(slot, 4u);
    slots[slot] = position;
    Positions expected;
    sinks_and_recent(position + 1, 4, 146, &expected);
    EXPECT_EQ(std::set<uint32_t>(slots.begin(), slots.end()), std::set<uint32_t>(expected.begin(), expected.end()));
  }
}

// Shares come as floats over the C ABI, and .55f is a little more than .55.
TEST(Streaming, ARoundingOfTheShareIsNoToken) {
  const Shape s = shape();
  for (const auto& [share, tokens] : {std::pair{.55f, 550u}, {.7f, 700u}, {.29f, 290u}, {.5501f, 551u}}) {
    EXPECT_EQ(slots_for_share(s, static_cast<double>(share)), 6u * tokens) << share;
    std::vector<uint32_t> capacity(6);
    ASSERT_TRUE(streaming(s, static_cast<double>(share))->settle(nullptr, 1000, capacity).ok());
    EXPECT_EQ(capacity[0], tokens) << share;
  }
}

TEST(Streaming, FillsItsSlotsBeforeItReplacesAny) {
  const auto policy = streaming(shape(), 0.3);
  std::vector<uint32_t> capacity(6);
  ASSERT_TRUE(policy->settle(nullptr, 20, capacity).ok());
  EXPECT_EQ(capacity[0], kMinSlots);  // 30% of 20 tokens would leave no room for an answer
  EXPECT_EQ(policy->slot_for(0, 20, capacity[0]), 20u);
  EXPECT_EQ(policy->slot_for(0, 63, capacity[0]), 63u);
  EXPECT_EQ(policy->slot_for(0, 64, capacity[0]), 4u);
  EXPECT_EQ(policy->slot_for(0, 64, capacity[0]), 5u);
}

TEST(Streaming, AWholeShareReplacesNothing) {
  const Shape s = shape();
  const auto policy = streaming(s, 1.0);
  std::vector<uint32_t> capacity(6);
  ASSERT_TRUE(policy->settle(nullptr, 10, capacity).ok());
  for (const uint32_t c : capacity) EXPECT_EQ(c, s.n_context);
}

TEST(Streaming, WindowedLayersKeepTheirWindowAndNoSinks) {
  const int32_t window[] = {0, 32, 0};
  const Shape s = shape({window, 3});
  EXPECT_EQ(slots_for_share(s, 0.5), 2u * (500 + 32 + 500));
  const auto policy = streaming(s, 0.5);
  std::vector<uint32_t> capacity(6);
  ASSERT_TRUE(policy->settle(nullptr, 800, capacity).ok());
  EXPECT_EQ(capacity, (std::vector<uint32_t>{400, 400, 32, 32, 400, 400}));
  Positions p;
  policy->select(2, 800, 32, &p);
  EXPECT_EQ(p.front(), 768u);
  EXPECT_EQ(policy->slot_for(2, 32, 32), 0u);
}

TEST(Streaming, ABudgetInSlotsIsNeverExceeded) {
  for (const uint64_t max_slots : {30u, 31u, 100u, 1000u, 5999u}) {
    auto made = make_policy("streaming", shape(), {1.0, max_slots}, {});
    ASSERT_TRUE(made.ok()) << made.status().message();
    std::vector<uint32_t> capacity(6);
    ASSERT_TRUE(made.value()->settle(nullptr, 700, capacity).ok());
    EXPECT_LE(std::accumulate(capacity.begin(), capacity.end(), uint64_t{0}), max_slots);
    EXPECT_EQ(capacity[0], max_slots / 6);
  }
  const auto refused = make_policy("streaming", shape(), {1.0, 29}, {});
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(std::string(refused.status().message()).find("at least 30 slots"), std::string::npos) << refused.status().message();
}

TEST(Streaming, OptionsAreCheckedByNameAndRange) {
  EXPECT_EQ(streaming(shape(), 0.3, {{"sinks", "0"}})->slot_for(0, 64, 64), 0u);
  const auto message = [](const std::string& name, const Options& options) {
    const auto made = make_policy(name, shape(), {0.3, 600}, options);
    return made.ok() ? std::string() : std::string(made.status().message());
  };
  EXPECT_NE(message("streaming", {{"sink", "4"}}).find("did you mean 'sinks'"), std::string::npos);
  for (const char* bad : {"", "x", "4x", "-1", "99999", "99999999999999999999"})
    EXPECT_NE(message("streaming", {{"sinks", bad}}).find("expected a whole number"), std::string::npos) << bad;
  EXPECT_NE(message("steaming", {}).find("did you mean 'streaming'"), std::string::npos);
  std::string names;
  for (const PolicyRow& row : policy_rows()) names += (names.empty() ? "" : ", ") + std::string(row.name);
  EXPECT_NE(message("h3o", {}).find("; the policies are: " + names), std::string::npos);
}

}  // namespace
}  // namespace orrery::policy::streaming_test
