// Sessions under KV policies: they take exactly what the plan foretells, part by part; a budget binds; and the statistics add up.
#include <gtest/gtest.h>

#include <cstring>

#include "tests/abi/handles.h"
#include "tests/support/shared.h"
#include "tests/support/temp_dir.h"

namespace orrery::testing::contract_policy_test {
namespace {

// The demo's KV: 4 layers, 8 KV heads of 32, in F16.
constexpr uint64_t kHeads = 32, kTokenBytes = 2 * 32 * 2;

struct Policy {
  const char* name;
  std::vector<orrery_option> parameters;
  bool refills, full_heads;
};
// As runs of one prompt differ: who refills, and when.
const std::vector<Policy>& policies() {
  static const std::vector<Policy> all = {{"streaming", {}, false, false},
                                          {"heterocache", {{"tau_sim", "0.2"}, {"tau_drift", "1"}}, true, true},
                                          {"synckv", {}, true, true},
                                          {"adakv", {}, false, false},
                                          {"duoattention", {{"rank", "attention"}}, false, true}};
  return all;
}

class Policies : public ::testing::Test {
 protected:
  static orrery_session_options options_of(const Policy& policy, float share, uint32_t n_context = 640) {
    orrery_session_options o = session_options();
    o.n_context = n_context;
    o.policy = policy.name;
    o.policy_options = policy.parameters.data();
    o.n_policy_options = static_cast<uint32_t>(policy.parameters.size());
    o.kv_budget_share = share;
    o.reuse_prompts = 0;  // policies get the same prompts, and compute them
    return o;
  }
  static orrery_runtime_options runtime_with(uint64_t budget) {
    orrery_runtime_options o = runtime_options();
    o.n_threads = 1;
    o.device_budget_bytes = budget;
    return o;
  }
  orrery_plan_result plan(const orrery_runtime_options& r, const orrery_session_options& s) const {
    orrery_plan_result result = options(&orrery_plan_result_init);
    Error error;
    check(orrery_plan(path_source(demo), &r, nullptr, &s, &result, &error), error, "orrery_plan");
    return result;
  }
  static Runtime make(const orrery_runtime_options& o) {
    orrery_runtime* h = nullptr;
    Error error;
    check(orrery_runtime_create(&o, &h, &error), error, "orrery_runtime_create");
    return Runtime(h);
  }
  static orrery_stats stats_of(const Session& session) {
    orrery_stats stats = options(&orrery_stats_init);
    Error error;
    check(orrery_session_stats(session.get(), &stats, &error), error, "orrery_session_stats");
    return stats;
  }
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

  std::string demo = source_path("samples/models/demo-q8_0.gguf");
};

TEST_F(Policies, ThePlansPartsAreWhatOpeningTakes) {
  for (const Policy& policy : policies()) {
    for (const float share : {.35f, .6f, 1.0f}) {
      for (const uint32_t type :
           std::initializer_list<uint32_t>{ORRERY_KV_F16, ORRERY_KV_F32, ORRERY_KV_Q8_0, ORRERY_KV_Q4_0, ORRERY_KV_K8V4}) {
        for (const uint32_t context : {100u, 500u, 4096u}) {
          SCOPED_TRACE(std::string(policy.name) + ", share " + std::to_string(share) + ", KV type " + std::to_string(type) + ", context " +
                       std::to_string(context));
          orrery_session_options s = options_of(policy, share, context);
          s.kv_type = type;
          s.chunk_tokens = 32;
          uint64_t budget = uint64_t{1} << 30;
          const orrery_plan_result p = exact_plan(&budget, [&] { return plan(runtime_with(budget), s); });
          EXPECT_EQ(p.fits, 1u);
          EXPECT_EQ(p.device_bytes,
                    p.weights_bytes + p.full_kv_bytes + p.compressed_kv_bytes + p.digests_bytes + p.staging_bytes + p.workspace_bytes);
          const bool quantized = type == ORRERY_KV_Q8_0 || type == ORRERY_KV_Q4_0 || type == ORRERY_KV_K8V4;  // its keys are centred
          EXPECT_EQ(p.staging_bytes > 0, policy.name != std::string("streaming") || quantized);               // or a ring of queries
          EXPECT_EQ(p.full_kv_bytes > 0, policy.full_heads);
          {
            const Runtime runtime = make(runtime_with(p.device_bytes));
            const Model model = open_model(runtime, demo);
            EXPECT_EQ(arena_used(runtime), p.weights_bytes);
            const Session session = open_session(model, s);
            EXPECT_EQ(arena_used(runtime), p.device_bytes);
            const orrery_stats stats = stats_of(session);
            EXPECT_EQ(stats.device_kv_bytes, p.full_kv_bytes + p.compressed_kv_bytes);
            EXPECT_EQ(stats.workspace_bytes, p.workspace_bytes);
            EXPECT_EQ(stats.reservoir_bytes, p.reservoir_bytes);
            pull(generate_tokens(session, prompt(70), exactly(24)));
            EXPECT_EQ(arena_used(runtime), p.device_bytes);  // working takes no more
            EXPECT_LE(stats_of(session).device_kv_used_bytes, stats.device_kv_bytes);
          }
          const orrery_plan_result less = plan(runtime_with(p.device_bytes - 256), s);
          EXPECT_EQ(less.fits, 0u);
          EXPECT_LT(less.largest_context, context);
          const Runtime runtime = make(runtime_with(p.device_bytes - 256));
          const Model model = open_model(runtime, demo);
          orrery_session* h = nullptr;
          Error error;
          ASSERT_EQ(orrery_session_open(model.get(), &s, &h, &error), ORRERY_OUT_OF_DEVICE_MEMORY);
          EXPECT_EQ(error.bytes_requested - error.bytes_available, 256u) << error.message;
          EXPECT_NE(std::string(error.message).find("256 short"), std::string::npos) << error.message;
          EXPECT_EQ(arena_used(runtime), p.weights_bytes);
          if (HasFailure()) return;
        }
      }
    }
  }
}

// Device KV is what was asked for, to within a hundredth, and never more.
TEST_F(Policies, ABudgetInBytesBinds) {
  const orrery_runtime_options r = runtime_with(uint64_t{1} << 30);
  const Runtime runtime = make(r);
  const Model model = open_model(runtime, demo);
  for (const Policy& policy : policies()) {
    for (const uint64_t bytes : {uint64_t{3} << 19, uint64_t{3'000'001}, (uint64_t{5} << 20) - 77}) {
      SCOPED_TRACE(std::string(policy.name) + ", " + std::to_string(bytes) + " bytes");
      orrery_session_options s = options_of(policy, 1.0f, 2048);
      s.kv_budget_bytes = bytes;
      const orrery_plan_result p = plan(r, s);
      const Session session = open_session(model, s);
      const uint64_t kv = stats_of(session).device_kv_bytes;
      EXPECT_EQ(kv, p.full_kv_bytes + p.compressed_kv_bytes);
      EXPECT_LE(kv, bytes);
      EXPECT_GE(kv, bytes - bytes / 100);
      pull(generate_tokens(session, prompt(900), exactly(64)));
      EXPECT_LE(stats_of(session).device_kv_used_bytes, kv);
    }
  }
}

// What is locked is said, and does not show in the answer. The demo's 192 tokens are 768 KiB, which any system locks.
TEST_F(Policies, APinnedReservoirChangesNothing) {
  for (const Policy& policy : policies()) {
    std::vector<int32_t> expected;
    for (const uint32_t mode : {uint32_t{ORRERY_RESERVOIR_PAGEABLE}, uint32_t{ORRERY_RESERVOIR_PINNED}}) {
      SCOPED_TRACE(policy.name + std::string(", ") + std::to_string(mode));
      orrery_runtime_options r = runtime_with(uint64_t{1} << 30);
      r.reservoir_mode = mode;
      const orrery_session_options s = options_of(policy, .6f, 192);
      const orrery_plan_result p = plan(r, s);
      const Runtime runtime = make(r);
      const Model model = open_model(runtime, demo);
      const Session session = open_session(model, s);
      EXPECT_EQ(stats_of(session).reservoir_mode, mode);
      EXPECT_EQ(stats_of(session).reservoir_bytes, p.reservoir_bytes);
      EXPECT_EQ(arena_used(runtime), p.device_bytes);
      pull(generate_tokens(session, prompt(120), exactly(40)));
      if (mode == ORRERY_RESERVOIR_PAGEABLE) expected = tokens_of(session);
      EXPECT_EQ(tokens_of(session), expected);
      EXPECT_EQ(stats_of(open_session(model, 64)).reservoir_mode, uint32_t{ORRERY_RESERVOIR_PAGEABLE});  // full has none
    }
  }
}

// 14 steps (the last token is not computed) are less than the shortest tail: it settles once.
TEST_F(Policies, StatisticsAddUp) {
  const Runtime runtime = make_runtime();
  const Model model = open_model(runtime, demo);
  for (const Policy& policy : policies()) {
    SCOPED_TRACE(policy.name);
    const std::string name = policy.name;
    const Session session = open_session(model, options_of(policy, .5f));
    orrery_stats s = stats_of(session);
    EXPECT_EQ(s.n_settled + s.settle_us + s.refill_bytes + s.transfer_us + s.stall_us + s.n_checks + s.n_triggers + s.wanted_tokens +
                  s.missed_tokens + s.host_to_device_bytes,
              0u);
    pull(generate_tokens(session, prompt(300), exactly(15)));
    s = stats_of(session);
    ASSERT_EQ(s.generated_tokens, 14u);
    ASSERT_EQ(s.n_tokens, 314u);
    EXPECT_EQ(s.n_settled, 1u);
    EXPECT_GT(s.settle_us, 0u);
    EXPECT_LE(s.settle_us, s.decode_us);
    EXPECT_LE(s.stall_us, s.decode_us);
    EXPECT_LE(s.missed_tokens, s.wanted_tokens);
    EXPECT_LE(s.n_triggers, s.n_checks);
    // What was chosen at first, and what was fetched since; generated tokens are computed where they stay.
    const uint64_t replaced = name == "streaming" ? s.generated_tokens : 0;
    const uint64_t settled_bytes = s.device_kv_used_bytes - kHeads * (s.generated_tokens - replaced) * kTokenBytes;
    if (name != "duoattention") {  // which replaces in its streaming heads alone
      EXPECT_EQ(s.host_to_device_bytes, settled_bytes + s.refill_bytes);
    }
    const orrery_head_roles h = roles_of(session);
    const uint64_t roles = uint64_t{h.n_anchor_heads} + h.n_volatile_heads + h.n_pivot_heads + h.n_satellite_heads;
    if (name == "streaming") {
      EXPECT_EQ(s.host_to_device_bytes, kHeads * 150 * kTokenBytes);
    }
    if (!policy.refills) {
      EXPECT_EQ(s.refill_bytes + s.transfer_us + s.wanted_tokens + s.n_checks + roles + h.n_demoted_heads, 0u);
    } else {
      EXPECT_GT(s.refill_bytes, 0u);
      EXPECT_LE(s.refill_bytes, s.missed_tokens * kTokenBytes);
    }
    if (name == "heterocache") {
      EXPECT_EQ(roles, kHeads);
      EXPECT_LE(h.n_pivot_heads + h.n_volatile_heads, kHeads / 5);  // full heads, where no profile names them
      EXPECT_EQ(s.n_checks, h.n_pivot_heads * (s.generated_tokens / 5));
      EXPECT_GT(s.n_triggers, 0u);
    }
    if (name == "synckv") {
      EXPECT_EQ(s.refill_bytes, s.missed_tokens * kTokenBytes);  // anticipated in steps 5 and 10: all has arrived
      EXPECT_EQ(s.n_checks + roles, 0u);
    }

    // More of it counts on; a fork counts for itself, a policy of its own state included.
    const Session fork = fork_of(session);
    orrery_stats f = stats_of(fork);
    EXPECT_EQ(f.n_settled + f.settle_us + f.refill_bytes + f.transfer_us + f.stall_us + f.n_checks + f.n_triggers + f.wanted_tokens +
                  f.missed_tokens + f.host_to_device_bytes,
              0u);
    const orrery_head_roles of_fork = roles_of(fork);
    EXPECT_EQ(std::memcmp(&of_fork, &h, sizeof h), 0);
    std::vector<int32_t> all = tokens_of(session);
    pull(generate_tokens(session, all, exactly(60)));
    const orrery_stats later = stats_of(session);
    EXPECT_GT(later.n_settled, name == "streaming" ? 0u : 2u);
    EXPECT_GE(later.settle_us, s.settle_us);
    EXPECT_GE(later.wanted_tokens, s.wanted_tokens);
    EXPECT_GE(later.host_to_device_bytes, s.host_to_device_bytes);
    EXPECT_EQ(later.refill_bytes % kTokenBytes, 0u);
  }
}

// Tokens that attention reads in host memory count as fetched. Nothing of them is on the device.
TEST_F(Policies, TokensReadInPlaceCountAsFetched) {
  const Runtime runtime = make_runtime();
  const Model model = open_model(runtime, demo);
  orrery_session_options o = session_options();
  o.n_context = 640;
  o.policy = "keycodes", o.kv_budget_share = .2f;
  const Session session = open_session(model, o);
  pull(generate_tokens(session, prompt(300), exactly(15)));
  const orrery_stats s = stats_of(session);
  EXPECT_GT(s.missed_tokens, 14u * kHeads);
  EXPECT_EQ(s.wanted_tokens, s.missed_tokens);
  // Of each head and step: the found tokens, the first 4, the last 7 and the step's own.
  EXPECT_EQ(s.refill_bytes, (s.missed_tokens + uint64_t{14} * kHeads * 12) * kTokenBytes);
  EXPECT_EQ(s.host_to_device_bytes, s.refill_bytes);
  EXPECT_EQ(s.device_kv_type, uint32_t{ORRERY_KV_F16});
  EXPECT_LT(s.device_kv_bytes, s.reservoir_bytes / 5);
  const Session fork = fork_of(session);
  EXPECT_EQ(stats_of(fork).host_to_device_bytes, 0u);
}

TEST_F(Policies, FullAttentionHasNoneOfTheStatistics) {
  const Runtime runtime = make_runtime();
  const Model model = open_model(runtime, demo);
  const Session session = open_session(model, 640);
  pull(generate_tokens(session, prompt(100), exactly(16)));
  const orrery_stats s = stats_of(session);
  EXPECT_EQ(s.n_settled + s.settle_us + s.refill_bytes + s.transfer_us + s.stall_us + s.n_checks + s.n_triggers + s.wanted_tokens +
                s.missed_tokens + s.host_to_device_bytes + s.reservoir_bytes,
            0u);
  const orrery_head_roles h = roles_of(session), none = options(&orrery_head_roles_init);
  EXPECT_EQ(std::memcmp(&h, &none, sizeof h), 0);
}

}  // namespace
}  // namespace orrery::testing::contract_policy_test
