// RazorAttention on the demo model: the evicted tokens of streaming heads become compensation tokens, in double precision from the
// reservoir. Where the evicted keys are equal, the answer is full attention's. And auto's compensation tokens, made by shares.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "runtime/policy/policy.h"
#include "runtime/policy/select/rings.h"
#include "tests/support/policy_sessions.h"
#include "tests/support/resident_oracle.h"

namespace orrery::razor_test {
namespace {

using namespace testing;
using engine::Resident;
using engine::Session;

struct Case {
  const char* name;
  KvType type, device_type;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }
class EngineRazor : public ::testing::TestWithParam<Case> {};

TEST_P(EngineRazor, HeadsHoldFirstAndLastTokensAndTheMeanOfTheRest) {
  const auto model = open_demo();
  const auto& h = model->description();
  engine::SessionOptions o;
  o.n_context = 1024;
  o.policy = "razorattention";
  o.policy_options = {{"rank", "attention"}};
  o.kv_share = share_of_tokens(.4, GetParam().type, GetParam().device_type);
  o.kv_type = GetParam().type;
  o.device_kv_type = GetParam().device_type;
  const auto session = unwrap(Session::open(model, o));
  unwrap(session->prefill(random_tokens(*model, 400, 51), nullptr, nullptr));
  Resident* resident = session->resident();
  const auto dim = static_cast<size_t>(h.kv().head_dim);
  int n_checked = 0, n_whole = 0;
  resident->set_step_fault([&](uint64_t) {
    const uint32_t n_tokens = session->n_computed();
    for (uint32_t head = 0; head < resident->store().n_heads(); ++head) {
      const Span<const uint32_t> held = resident->store().positions(head);
      const HeadView& view = resident->views()[head];
      if (held.size() == n_tokens) {
        EXPECT_EQ(view.compensation_weight, 0.0f);
        ++n_whole;
        continue;
      }
      policy::Tokens expected;
      policy::sinks_and_recent(n_tokens, 4, static_cast<uint32_t>(held.size()) - 4, &expected);
      EXPECT_EQ(std::set<uint32_t>(held.begin(), held.end()), std::set<uint32_t>(expected.begin(), expected.end())) << "head " << head;
      // It has attended to all tokens, each once.
      EXPECT_EQ(view.compensation_weight, static_cast<float>(n_tokens - held.size())) << "head " << head;
      std::vector<double> sums(2 * dim);
      for (uint32_t p = 4; p < 4 + n_tokens - held.size(); ++p) {
        const std::vector<float> k = reservoir_key(resident->reservoir(), head, p), v = reservoir_value(resident->reservoir(), head, p);
        for (size_t d = 0; d < dim; ++d) sums[d] += static_cast<double>(k[d]), sums[dim + d] += static_cast<double>(v[d]);
      }
      const auto* mean = reinterpret_cast<const float*>(view.compensation_token.address);
      for (size_t d = 0; d < 2 * dim; ++d)
        EXPECT_NEAR(mean[d], sums[d] / static_cast<double>(view.compensation_weight), 1e-5) << "head " << head << ", value " << d;
      ++n_checked;
    }
    return ::testing::Test::HasFailure() ? error(Code::internal, "see above") : ok_status();
  });
  greedy(session.get(), 30);
  EXPECT_EQ(n_whole, 30 * 4);  // of 32 heads
  EXPECT_EQ(n_checked, 30 * 28);
  EXPECT_GE(resident->report().n_settled, 2u);  // whole heads' tails
}

// The policy gives the shares (policy/invariants_test.cpp tests them in double). The head has the compensation token beside its slots until
// the session settles again.
TEST_P(EngineRazor, AutosHeadsHoldTheRestByShares) {
  const auto model = open_demo();
  engine::SessionOptions o;
  o.n_context = 1024;
  o.policy = "auto";
  o.policy_options = {{"tail", "16"}, {"steps", "0"}};
  o.kv_share = share_of_tokens(.3, GetParam().type, GetParam().device_type);
  o.kv_type = GetParam().type;
  o.device_kv_type = GetParam().device_type;
  const auto session = unwrap(Session::open(model, o));
  unwrap(session->prefill(random_tokens(*model, 400, 51), nullptr, nullptr));
  Resident* resident = session->resident();
  const auto dim = static_cast<size_t>(model->description().kv().head_dim);
  std::set<std::vector<float>> weights;
  int n_checked = 0;
  resident->set_step_fault([&](uint64_t) {
    std::vector<float> of_step;
    for (uint32_t head = 0; head < resident->store().n_heads(); ++head) {
      const HeadView& view = resident->views()[head];
      of_step.push_back(view.compensation_weight);
      if (!resident->policy().has_compensation_token(head)) {
        EXPECT_EQ(view.compensation_weight, 0.0f);
        continue;
      }
      const policy::CompensationShares shares = resident->policy().compensation_shares(head);
      EXPECT_EQ(view.compensation_weight, shares.weight);
      EXPECT_GT(shares.weight, 0.0f);
      std::vector<double> sums(2 * dim);
      double sum = 0;
      for (uint32_t p = 0; p < shares.of_tokens.size(); ++p) {
        const auto share = static_cast<double>(shares.of_tokens[p]);
        sum += share;
        const std::vector<float> k = reservoir_key(resident->reservoir(), head, p), v = reservoir_value(resident->reservoir(), head, p);
        for (size_t d = 0; d < dim; ++d) sums[d] += share * static_cast<double>(k[d]), sums[dim + d] += share * static_cast<double>(v[d]);
      }
      EXPECT_NEAR(sum, 1, 1e-5);
      for (const uint32_t p : resident->store().positions(head)) {
        if (p < shares.of_tokens.size()) {
          EXPECT_EQ(shares.of_tokens[p], 0.0f) << "head " << head << " holds token " << p;
        }
      }
      const auto* mean = reinterpret_cast<const float*>(view.compensation_token.address);
      for (size_t d = 0; d < 2 * dim; ++d) EXPECT_NEAR(mean[d], sums[d], 1e-5) << "head " << head << ", value " << d;
      ++n_checked;
    }
    weights.insert(of_step);
    return ::testing::Test::HasFailure() ? error(Code::internal, "see above") : ok_status();
  });
  greedy(session.get(), 40);
  EXPECT_GT(n_checked, 40 * 24);  // of 32 heads
  EXPECT_EQ(weights.size(), resident->report().n_settled);
  EXPECT_EQ(resident->report().n_settled, 3u);
}

INSTANTIATE_TEST_SUITE_P(Types, EngineRazor,
                         ::testing::Values(Case{"f16", KvType::f16, KvType::f16}, Case{"q8_0", KvType::q8_0, KvType::q8_0},
                                           Case{"coarser_on_the_device", KvType::f32, KvType::q4_0},
                                           Case{"mixed", KvType::k8v4, KvType::k8v4}),
                         [](const auto& tested) { return std::string(tested.param.name); });

// Keys that are alike, each with its own value: so many as one token weigh what they weighed, and come to the same mean. Without
// the token the answer is another. (A model of floats: quantized activations make more of a last bit.)
TEST(EngineRazorAlike, DroppedKeysThatAreAlikeChangeNothing) {
  const auto model = open_spec("qwen3");
  const auto tokens = random_tokens(*model, 600, 52), answer = random_tokens(*model, 40, 53);
  const KvFormat kv = engine::kv_format(model->description(), KvType::f32);
  const auto run = [&](const char* policy, const policy::Options& options, bool values_alike = false) {
    engine::SessionOptions o;
    o.n_context = 1024;
    o.kv_type = KvType::f32;
    o.device_kv_type = KvType::f32;
    o.policy = policy;
    o.policy_options = without_profile(policy, options);
    if (o.compressed()) o.kv_share = .3;
    const auto session = unwrap(Session::open(model, o));
    unwrap(session->sequence().assume_prompt(tokens, [&](uint32_t page, Span<std::byte> bytes) {
      auto* values = reinterpret_cast<float*>(bytes.data());
      for (int32_t head = 0; head < kv.n_layers * kv.n_kv_heads; ++head)
        for (int32_t t = 0; t < kPageTokens; ++t) {
          Random keys(static_cast<uint64_t>(head)), own(static_cast<uint64_t>(head) << 32 | page << 8 | static_cast<uint32_t>(t));
          const uint32_t p = page * kPageTokens + static_cast<uint32_t>(t);
          if (values_alike && p >= 4) own = Random(static_cast<uint64_t>(head) << 32);
          for (int32_t d = 0; d < kv.head_dim; ++d) *values++ = keys.normal();
          for (int32_t d = 0; d < kv.head_dim; ++d) *values++ = own.normal();
        }
    }));
    unwrap(session->sequence().refresh_logits());
    std::vector<float> trace;
    for (const int32_t token : answer) {
      feed(session.get(), token);
      trace.insert(trace.end(), session->logits().begin(), session->logits().end());
    }
    return trace;
  };
  const std::vector<float> full = run("full", {});
  const auto far = [&](const policy::Options& options) {
    Deviation deviation;
    const std::vector<float> found = run("razorattention", options);
    deviation.add(found.data(), full.data(), full.size());
    return deviation.relative();
  };
  EXPECT_LT(far({}), 2e-4);
  EXPECT_GT(far({{"compensation", "0"}}), 2e-2);
  // By codes: all products are nearly 0 (the last token has a key of its own, which moves the mean key), so the weight is the number of
  // evicted tokens, but for the codes' errors. The tokens of the prompt have one value, but for the first four; the first 20 tokens of the
  // answer stay in the window.
  const std::vector<float> middle_alike = run("full", {}, true);
  const auto far_by_codes = [&](const char* compensation) {
    Deviation deviation;
    const std::vector<float> found = run("keycodes", {{"bits", "4"}, {"window", "64"}, {"compensation", compensation}}, true);
    deviation.add(found.data(), middle_alike.data(), middle_alike.size() / 2);
    return deviation.relative();
  };
  EXPECT_LT(far_by_codes("1"), 2e-4);
  EXPECT_GT(far_by_codes("0"), 2e-2);
}

}  // namespace
}  // namespace orrery::razor_test
