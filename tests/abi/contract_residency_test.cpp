// orrery_session_residency(): how many tokens each KV head holds on the device, under every family of policies, from an empty session to
// a parked one. The cells add up to the statistics.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "tests/abi/handles.h"
#include "tests/support/shared.h"

namespace orrery::testing::contract_residency_test {
namespace {

// The demo's KV: 4 layers, 8 KV heads of 32, in F16.
constexpr size_t kHeads = 32;
constexpr uint64_t kTokenBytes = 2 * 32 * 2;

enum class Heads {
  all,     // every head holds every token
  even,    // every head holds as many as the others, and fewer than there are
  uneven,  // heads differ; a head may hold every token
  whole,   // some heads hold every token, the others fewer
};
struct Family {
  const char* policy;
  Heads heads;
  std::vector<orrery_option> parameters;
};
const std::vector<Family>& families() {
  static const std::vector<Family> all = {{"full", Heads::all, {}},
                                          {"streaming", Heads::even, {}},
                                          {"adakv", Heads::uneven, {}},
                                          {"auto", Heads::uneven, {}},
                                          {"heterocache", Heads::whole, {{"tau_sim", "0.2"}, {"tau_drift", "1"}}},
                                          {"duoattention", Heads::whole, {{"rank", "attention"}}},
                                          {"quest", Heads::even, {}},
                                          {"shadowkv", Heads::even, {}},
                                          {"omnikv", Heads::uneven, {}}};
  return all;
}

class Residency : public ::testing::Test {
 protected:
  Session open(const Family& family) const { return open_session(model, options_of(family)); }
  static orrery_session_options options_of(const Family& family) {
    orrery_session_options o = session_options();
    o.n_context = 640;
    o.policy = family.policy;
    o.policy_options = family.parameters.data();
    o.n_policy_options = static_cast<uint32_t>(family.parameters.size());
    if (family.heads != Heads::all) o.kv_budget_share = .5f;
    o.device_kv_type = family.heads == Heads::all ? 0 : 1 + ORRERY_KV_F16;
    return o;
  }
  static std::vector<uint32_t> held(const Session& session) {
    std::vector<uint32_t> tokens(kHeads);
    size_t n = 0;
    Error error;
    check(orrery_session_residency(session.get(), tokens.data(), tokens.size(), &n, &error), error, "orrery_session_residency");
    EXPECT_EQ(n, kHeads);
    return tokens;
  }
  static orrery_stats stats_of(const Session& session) {
    orrery_stats stats = options(&orrery_stats_init);
    Error error;
    check(orrery_session_stats(session.get(), &stats, &error), error, "orrery_session_stats");
    return stats;
  }
  static uint64_t sum(const std::vector<uint32_t>& tokens) { return std::accumulate(tokens.begin(), tokens.end(), uint64_t{0}); }
  static std::vector<int32_t> prompt(size_t n) {
    std::vector<int32_t> tokens;
    for (size_t i = 0; i < n; ++i) tokens.push_back(static_cast<int32_t>(300 + (i * i * 7 + i * 13) % 1500));
    return tokens;
  }
  static orrery_generate_options exactly(uint32_t n) {
    orrery_generate_options o = generate_options(n);
    o.ignore_end = 1;
    return o;
  }

  const Runtime runtime = make_runtime();
  const Model model = open_model(runtime, source_path("samples/models/demo-q8_0.gguf"));
  const std::vector<uint32_t> none = std::vector<uint32_t>(kHeads, 0);
};

TEST_F(Residency, EveryFamilyOfPolicies) {
  for (const Family& family : families()) {
    SCOPED_TRACE(family.policy);
    const bool full = family.heads == Heads::all;
    const Session session = open(family);
    EXPECT_EQ(held(session), none);
    // The first generated token is chosen by the prompt's logits: no step of an answer has been computed.
    pull(generate_tokens(session, prompt(300), exactly(1)));
    EXPECT_EQ(held(session), std::vector<uint32_t>(kHeads, full ? 300u : 0u));

    pull(generate_tokens(session, tokens_of(session), exactly(15)));
    const orrery_stats s = stats_of(session);
    const std::vector<uint32_t> tokens = held(session);
    const auto [least, most] = std::minmax_element(tokens.begin(), tokens.end());
    const auto n_whole = static_cast<uint32_t>(std::count(tokens.begin(), tokens.end(), s.n_tokens));
    EXPECT_EQ(s.n_tokens, 314u);
    EXPECT_GT(*least, 0u);
    EXPECT_LE(*most, s.n_tokens);
    EXPECT_EQ(n_whole == kHeads, full);
    if (family.heads == Heads::even) {
      EXPECT_EQ(*least, *most);
    } else if (!full) {
      EXPECT_LT(*least, *most);
    }
    if (family.heads == Heads::whole) {
      EXPECT_GT(n_whole, 0u);
    }
    if (family.policy == std::string("heterocache")) {
      // Heads of these roles are whole. A satellite may happen to hold all tokens: which keys it asks for, last bits decide.
      const orrery_head_roles h = roles_of(session);
      EXPECT_GE(n_whole, h.n_pivot_heads + h.n_volatile_heads);
      EXPECT_LE(n_whole, h.n_pivot_heads + h.n_volatile_heads + h.n_satellite_heads);
    }
    // Pages are used whole; page digests and other summaries come beside the tokens.
    const uint64_t bytes = sum(tokens) * kTokenBytes, page_bytes = full ? kHeads * 64 * kTokenBytes : 0;
    orrery_plan_result plan = options(&orrery_plan_result_init);
    const orrery_session_options o = options_of(family);
    ASSERT_EQ(orrery_plan(path_source(source_path("samples/models/demo-q8_0.gguf")), nullptr, nullptr, &o, &plan, nullptr), ORRERY_OK);
    EXPECT_LE(bytes, s.device_kv_used_bytes);
    EXPECT_LE(s.device_kv_used_bytes, bytes + page_bytes + plan.digests_bytes);
    EXPECT_EQ(plan.digests_bytes > 0, s.device_kv_used_bytes > bytes && !full);

    ASSERT_EQ(orrery_session_rewind(session.get(), 100, nullptr), ORRERY_OK);
    EXPECT_EQ(held(session), std::vector<uint32_t>(kHeads, full ? 100u : 0u));
  }
}

// The cells lie layer by layer: a profile keeps one head whole, and its cell says so.
TEST_F(Residency, ACellIsTheHeadThatAProfileNames) {
  std::string gates;
  for (int layer = 0; layer < 4; ++layer)
    for (int head = 0; head < 8; ++head) gates += (layer == 2 && head == 5 ? "1" : "0") + std::string(head < 7 ? " " : "\n");
  std::string profile(65536, '\0');
  size_t n = 0;
  ASSERT_EQ(orrery_head_profile_import_gates(gates.c_str(), .99, profile.data(), profile.size(), &n, nullptr), ORRERY_OK);
  profile.resize(n);
  orrery_session_options o = options_of(families()[5]);
  o.n_policy_options = 0;
  o.head_profile = profile.c_str();
  const Session session = open_session(model, o);
  pull(generate_tokens(session, prompt(300), exactly(4)));
  std::vector<uint32_t> tokens = held(session);
  EXPECT_EQ(tokens[2 * 8 + 5], 303u);
  tokens.erase(tokens.begin() + 2 * 8 + 5);
  EXPECT_LT(*std::max_element(tokens.begin(), tokens.end()), 303u);
}

// While an answer is under way, between two events: the cells follow its tokens.
TEST_F(Residency, FollowsAnUnfinishedAnswer) {
  for (const Family& family : {families()[0], families()[2]}) {
    SCOPED_TRACE(family.policy);
    const Session session = open(family);
    const Generation answer = generate_tokens(session, prompt(300), exactly(8));
    std::vector<uint64_t> sums;
    pull(answer.get(), [&](const orrery_event& e) {
      if (e.type == ORRERY_EVENT_TOKEN) sums.push_back(sum(held(session)));
    });
    ASSERT_EQ(sums.size(), 8u);
    for (size_t i = 2; i < sums.size(); ++i) EXPECT_EQ(sums[i], sums[i - 1] + kHeads) << i;  // each head adds the token
  }
}

TEST_F(Residency, AForkHasItsOwnAndAParkedSessionNone) {
  orrery_runtime_options o = runtime_options();
  o.n_threads = 1;
  o.max_sessions = 2;
  orrery_runtime* h = nullptr;
  ASSERT_EQ(orrery_runtime_create(&o, &h, nullptr), ORRERY_OK);
  const Runtime small(h);
  const Model again = open_model(small, source_path("samples/models/demo-q8_0.gguf"));
  for (const Family& family : {families()[0], families()[2], families()[4], families()[6]}) {
    SCOPED_TRACE(family.policy);
    const Session session = open_session(again, options_of(family));
    pull(generate_tokens(session, prompt(200), exactly(4)));
    const std::vector<uint32_t> tokens = held(session);
    const Session fork = fork_of(session), parked = fork_of(session);
    EXPECT_EQ(held(fork), tokens);
    ASSERT_EQ(stats_of(parked).parked, 1u);
    EXPECT_EQ(held(parked), none);
    pull(generate_tokens(fork, tokens_of(fork), exactly(3)));
    EXPECT_GT(sum(held(fork)), sum(tokens));
    EXPECT_EQ(held(session), tokens);
  }
}

}  // namespace
}  // namespace orrery::testing::contract_residency_test
