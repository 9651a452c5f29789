// Shares of full KV's bytes, as tokens of a device type that may be coarser than the reservoir's: worked numbers, and never a byte more.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "runtime/policy/policy.h"
#include "tests/unit/policy/made_up.h"

namespace orrery::policy::share_test {
namespace {

// A token of one head of 64: K and V, in blocks of 32.
constexpr uint64_t kF32 = 512, kF16 = 256, kQ8 = 136, kQ4 = 72;

TEST(Share, OfTokensAsTheyAreKeptIsOneOfTokens) {
  EXPECT_EQ(KvShare(.3).tokens(1000), 300u);
  EXPECT_EQ(KvShare(.1).tokens(1055), 106u);  // 105.5
  EXPECT_EQ(KvShare(1).tokens(1u << 27), 1u << 27);
  EXPECT_EQ(KvShare(.3, kQ8, kQ8).tokens(1000), 300u);
  EXPECT_EQ(KvShare(.3, kQ8, kQ8).of_tokens(), .3);
}

TEST(Share, HoldsTheMoreTokensTheCoarserTheyAre) {
  const struct {
    double share;
    uint64_t kept, device;
    uint32_t n;
    uint64_t tokens;
  } cases[] = {
      {.2, kF16, kQ8, 1000, 376},                                   // 200 in 51,200 bytes: 376 take 51,136
      {.2, kF16, kQ4, 1000, 711},                                   // 51,192
      {.2, kF32, kF16, 1000, 400},     {.2, kF32, kQ8, 1000, 752},  // 102,272 of 102,400
      {.2, kQ8, kQ4, 1000, 377},                                    // 27,144 of 27,200
      {.1, kF16, kQ8, 1055, 199},                                   // 106, rounded up, in 27,136: 27,064
      {.0001, kF16, kQ8, 100, 1},                                   // one token
      {.5, kF16, kQ8, 1000, 941},                                   // 127,976 of 128,000
      {.531, kF16, kQ8, 1000, 999},    {.53125, kF16, kQ8, 1000, 1000}, {.6, kF16, kQ8, 1000, 1000},  // all tokens
      {.28125, kF16, kQ4, 4096, 4096},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(std::to_string(c.share) + " of " + std::to_string(c.n) + ", " + std::to_string(c.kept) + " to " +
                 std::to_string(c.device));
    EXPECT_EQ(KvShare(c.share, c.kept, c.device).tokens(c.n), c.tokens);
    EXPECT_EQ(KvShare(c.share, c.kept, c.device).of_tokens() < 1, c.tokens < c.n);
    EXPECT_EQ(KvShare(c.share, c.kept, c.device).of_bytes(), c.share);
  }
  EXPECT_NEAR(KvShare(.2, kF16, kQ8).of_tokens(), .2 * 32 / 17, 1e-12);
}

TEST(Share, NeverTakesMoreBytesThanItsTokensAsTheyAreKept) {
  for (const auto& [kept, device] : {std::pair{kF16, kQ8}, {kF16, kQ4}, {kF32, kQ8}, {kF32, kF16}, {kQ8, kQ4}, {kF16, kF16}}) {
    for (uint32_t n = 1; n <= 1200; n += 7) {
      for (const float share : {.0003f, .1f, .29f, .3f, .5f, .55f, .7f, .999f}) {
        const KvShare s(static_cast<double>(share), kept, device);
        const uint64_t bytes = KvShare(static_cast<double>(share)).tokens(n) * kept, tokens = s.tokens(n);
        ASSERT_LE(tokens, n);
        ASSERT_LE(tokens * device, bytes) << share << " of " << n;
        if (tokens < n) {
          ASSERT_GT((tokens + 1) * device, bytes) << share << " of " << n;
        }
      }
    }
  }
}

// The smallest share that an error prints is enough; a thousandth less is not.
TEST(Share, TheLeastThatHoldsSoMany) {
  for (const uint64_t device : {kF16, kQ8, kQ4}) {
    for (const uint32_t n : {100u, 1000u, 4097u}) {
      for (uint64_t tokens = 1; tokens <= n; tokens += 13) {
        const double least = KvShare(.5, kF16, device).least(tokens, n);
        ASSERT_GE(KvShare(least, kF16, device).tokens(n), tokens) << least << " of " << n;
        if (least > .001) {
          ASSERT_LT(KvShare(least - .001, kF16, device).tokens(n), tokens) << least << " of " << n;
        }
      }
    }
  }
}

TEST(Share, WindowsAndAFewTokensStayWhateverItIs) {
  const int32_t windows[] = {0, 32, 0};
  const Shape shape{3, 2, 1000, {windows, 3}};
  EXPECT_EQ(slots_for_share(shape, .5), 2u * (500 + 32 + 500));
  EXPECT_EQ(slots_for_share(shape, {.5, kF16, kQ8}), 2u * (941 + 32 + 941));
  EXPECT_EQ(slots_for_share(shape, {.04, kF16, kQ8}), 2u * (75 + 32 + 75));
  EXPECT_EQ(slots_for_share(shape, {.03, kF16, kQ8}), 2u * (kMinSlots + 32 + kMinSlots));
  EXPECT_EQ(slots_for_share(shape, {.6, kF16, kQ8}), 2u * (1000 + 32 + 1000));
}

// Policies that refuse a session without a head profile rank heads by the prompt.
Options ranked(const std::string& name) {
  return name == "duoattention" || name == "razorattention" ? Options{{"rank", "attention"}} : Options{};
}

// After a prompt far from the end of the context too, with everything that a policy takes besides its slots.
TEST(Share, PoliciesKeepToItsBytes) {
  const Model m{"long", 4, {0, 0, 0}, 600};
  Shape shape = m.shape();
  const uint64_t heads = m.n_heads(), dim = shape.head_dim = 64;
  shape.digest_bytes = 4 * dim, shape.compensation_token_bytes = 8 * dim;
  constexpr uint32_t kTokens = 400;
  for (const char* name :
       {"streaming", "h2o", "heterocache", "synckv", "duoattention", "razorattention", "snapkv", "cake", "auto", "quest", "shadowkv"}) {
    std::vector<uint64_t> taken;
    for (const uint64_t device : {kF16, kQ8}) {
      SCOPED_TRACE(name + std::string(", ") + std::to_string(device));
      const KvShare share(.4, kF16, device);
      shape.slot_bytes = device;
      FakeSession s(must(make_policy(name, shape, {share, slots_for_share(shape, share)}, ranked(name))), m.n_heads(), kGroup, m.n_context,
                    restless);
      s.settle(kTokens);
      const PageDigests digests = s.policy().digests();
      const uint64_t n_pages = digests.page_tokens > 0 ? kTokens / digests.page_tokens : 0;
      const uint64_t beside =
          digests.heads.size() * n_pages * shape.digest_bytes + s.policy().max_compensation_tokens() * shape.compensation_token_bytes;
      taken.push_back(s.total_capacity() * device + beside);
      // The share counts the tokens that the tail will hold.
      EXPECT_LE(static_cast<double>(taken.back()), static_cast<double>(heads * kF16) * (.4 * (kTokens + 256) + 1));
    }
    EXPECT_LE(static_cast<double>(taken[1]), 1.02 * static_cast<double>(taken[0])) << name;
    EXPECT_GE(static_cast<double>(taken[1]), .9 * static_cast<double>(taken[0])) << name;
  }
}

// A share that holds every token needs no selection, and no digests or queries for one.
TEST(Share, ThatHoldsAllTokensIsAWholeOne) {
  const Model m{"long", 4, {0, 0, 0}, 600};
  Shape shape = m.shape();
  shape.head_dim = 64, shape.slot_bytes = kQ8, shape.digest_bytes = 256, shape.compensation_token_bytes = 512;
  for (const char* name : {"streaming", "heterocache", "snapkv", "auto", "quest"}) {
    SCOPED_TRACE(name);
    const KvShare share(.54, kF16, kQ8);
    FakeSession s(must(make_policy(name, shape, {share, slots_for_share(shape, share)}, {})), m.n_heads(), kGroup, m.n_context, restless);
    s.settle(400);
    for (uint32_t head = 0; head < m.n_heads(); ++head) EXPECT_EQ(s.capacity(head), m.n_context) << head;
    EXPECT_EQ(s.policy().max_compensation_tokens(), 0u);
    EXPECT_TRUE(s.policy().digests().heads.empty());
    if (std::string(name) == "auto") {
      EXPECT_EQ(s.policy().queries_wanted(), 0u);
    }
  }
  const KvShare less(.53, kF16, kQ8);
  EXPECT_GT(must(make_policy("auto", shape, {less, slots_for_share(shape, less)}, {}))->queries_wanted(), 0u);
}

TEST(Share, OnlyOurOwnMethodsHaveATypeOfTheirOwn) {
  for (const PolicyRow& row : policy_rows()) {
    const auto type = policy_needs(row.name, {}).device_type;
    if (row.name == std::string("auto") || row.name == std::string("keycodes")) EXPECT_EQ(type, KvType::q8_0);
    else EXPECT_FALSE(type.has_value()) << row.name;
  }
  EXPECT_EQ(policy_needs("auto", {{"compensation", "0"}}).device_type, KvType::q8_0);
  using List = std::vector<std::pair<double, KvType>>;
  const auto list = [](Span<const TypeBelow> types) {
    List out;
    for (const TypeBelow& below : types) out.emplace_back(below.share, below.type);
    return out;
  };
  const List of_window = {{.28, KvType::q4_0}, {.5, KvType::k8v4}}, of_codes = {{.125, KvType::k8v4}};
  for (const PolicyRow& row : policy_rows())
    EXPECT_EQ(list(policy_needs(row.name, {}).coarser), row.name == std::string("auto")       ? of_window
                                                        : row.name == std::string("keycodes") ? of_codes
                                                                                              : List())
        << row.name;
  EXPECT_EQ(list(policy_needs("auto", {{"by", "window"}}).coarser), of_window);
  EXPECT_EQ(list(policy_needs("auto", {}).coarser_by_codes), of_codes);
  EXPECT_EQ(policy_needs("auto", {}).codes_share, .094);
  const auto from = [](const char* name, const Options& options) { return policy_needs(name, options).in_place_share; };
  EXPECT_EQ(from("auto", {}), .05);
  EXPECT_EQ(from("auto", {{"by", "codes"}}), 0) << "as keycodes has it";
  EXPECT_EQ(from("keycodes", {}), 0);
  EXPECT_EQ(from("keycodes", {{"bits", "1"}, {"copy", "0"}}), 0);
  for (const Options& copies : {Options{{"copy", "1"}}, Options{{"stay", "1"}}}) EXPECT_EQ(from("keycodes", copies), Needs::kNever);
  for (const Options& windows : {Options{{"by", "window"}}, Options{{"tail", "8"}}, Options{{"by", "codes"}, {"copy", "1"}}})
    EXPECT_EQ(from("auto", windows), Needs::kNever);
  for (const PolicyRow& row : policy_rows())
    EXPECT_EQ(from(row.name, {}) < Needs::kNever, row.name == std::string("auto") || row.name == std::string("keycodes")) << row.name;
  EXPECT_EQ(policy_needs("auto", {{"tail", "8"}}).codes_share, 1) << "one of the window's";
  EXPECT_EQ(list(policy_needs("auto", {{"by", "codes"}}).coarser), of_codes);
  EXPECT_FALSE(policy_needs("full", {}).device_type.has_value());
}

}  // namespace
}  // namespace orrery::policy::share_test
