// A whole budget gives full attention, token for token, on every model. A smaller budget keeps its bytes, however long the answer is.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/support/kv_tokens.h"
#include "tests/support/policy_sessions.h"

namespace orrery::budget_test {
namespace {

using namespace orrery::testing;
using engine::Session;

std::string test_name(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

bool has_window(const model::Description& h) {
  return std::any_of(h.layers.begin(), h.layers.end(), [](const model::LayerShape& layer) { return layer.attention.window > 0; });
}

// Every architecture, and every way of the fixtures' to differ within one.
class WholeBudget : public ::testing::TestWithParam<std::string> {};

// Logits of each step, (n_steps, n_vocab), that differ by roundings alone: of sums, and of the codes that quantized KV is rounded to. Where
// two tokens weigh the same but for these, greedy answers part, and what follows is not compared: on which instruction set they do is
// chance.
void expect_alike_until_a_tie(const std::vector<float>& expected, const std::vector<float>& found, size_t n_vocab, float share) {
  ASSERT_EQ(expected.size(), found.size());
  for (size_t at = 0; at + n_vocab <= expected.size(); at += n_vocab) {
    float most = 0, largest = 0;
    for (size_t i = at; i < at + n_vocab; ++i)
      most = std::max(most, std::abs(expected[i] - found[i])), largest = std::max(largest, std::abs(expected[i]));
    ASSERT_LE(most, share * largest) << "step " << at / n_vocab;
    const auto best = [&](const std::vector<float>& logits) {
      const auto begin = logits.begin() + static_cast<ptrdiff_t>(at);
      return static_cast<size_t>(std::max_element(begin, begin + static_cast<ptrdiff_t>(n_vocab)) - begin);
    };
    const size_t a = best(expected), b = best(found);
    if (a == b) continue;
    EXPECT_LE(expected[at + a] - expected[at + b], 2 * most) << "step " << at / n_vocab;
    return;
  }
}

// Windowed layers' slots are a ring, whose order differs from the pages': there logits are alike, not the bits. Each model runs every
// policy and every KV type; each policy runs with every type, on models that take turns.
TEST_P(WholeBudget, GivesFullAttentionsTokens) {
  const auto model = open_spec(GetParam(), runtime_options(1));
  const auto prompt = random_tokens(*model, 150, 1);
  const std::vector<KvType>& types = kKvTypes;
  const size_t n_types = model->description().kv().head_dim % 32 == 0 ? std::size(types) : 2, n_modes = policy_modes().size();
  const std::vector<std::string> models = model_spec_names();
  const auto turn = static_cast<size_t>(std::find(models.begin(), models.end(), GetParam()) - models.begin());
  for (size_t type = 0; type < n_types; ++type) {
    const KvType kv = types[type];
    const auto full = open_session(model, 256, kv);
    const std::vector<float> expected = answer(full.get(), prompt, 80);
    for (size_t i = 0; i < n_modes; ++i) {
      if ((i + turn) % n_types != type) continue;
      const PolicyMode& mode = policy_modes()[i];
      const bool ahead = mode.policy == std::string("infinigen");  // a layer without queries of the policy's cannot be asked
      if (ahead && model->description().kv().n_layers() < model->description().n_layers) continue;
      SCOPED_TRACE(std::string(mode.name) + ", KV type " + std::to_string(static_cast<int>(kv)));
      const auto whole = unwrap(Session::open(model, with_mode(mode, 1.0, 256, kv)));
      const std::vector<float> found = answer(whole.get(), prompt, 80);
      if (has_window(model->description())) {
        // A code of four bits that falls to the other side shows in all that follows.
        const float share = kv == KvType::f32 || kv == KvType::f16 ? 1e-3f : kv == KvType::q8_0 ? 0.05f : 0.2f;
        expect_alike_until_a_tie(expected, found, static_cast<size_t>(model->description().n_vocab), share);
      } else {
        EXPECT_EQ(as_vector(full->tokens()), as_vector(whole->tokens()));
        EXPECT_TRUE(same_bits(expected, found));
      }
      EXPECT_EQ(whole->resident()->report().n_settled, 1u);
    }
  }
}

std::vector<std::string> specs_that_open() {
  std::vector<std::string> names = model_spec_names();
  // Refused, as they should be: under a policy models whose layers share KV, and those whose values are a part of keys, too.
  const auto refused = [](const std::string& n) {
    return n == "llama-layers-differ" || n == "gemma4" || n == "gemma4-alike" || n == "glm47" || n == "deepseek2-lite";
  };
  names.erase(std::remove_if(names.begin(), names.end(), refused), names.end());
  return names;
}
INSTANTIATE_TEST_SUITE_P(Specs, WholeBudget, ::testing::ValuesIn(specs_that_open()),
                         [](const auto& tested) { return test_name(tested.param); });

// Layers with a sliding window keep it whole: a budget in bytes that does not hold the windows is refused, and names the least that
// does.
TEST(WindowBudget, HoldsTheWindowsOrIsRefused) {
  const auto model = open_spec("phi3-window", runtime_options(1));
  const model::Description& h = model->description();
  const auto prompt = random_tokens(*model, 100, 1);
  const auto full = open_session(model, 128);
  answer(full.get(), prompt, 20);
  const auto slots = static_cast<uint64_t>(h.kv().window * h.kv().n_layers() * h.kv().n_kv_heads);
  ASSERT_GT(slots, 0u);
  const uint64_t least = align_up(slots * engine::kv_format(h, KvType::f16).token_bytes(), kv::kArenaAlignment);
  for (const PolicyMode& mode : policy_modes()) {
    SCOPED_TRACE(mode.name);
    engine::SessionOptions o = with_mode(mode, 1.0, 128);
    for (const uint64_t bytes : {uint64_t{256}, least / 2, least - 256}) {
      o.kv_budget_bytes = bytes;
      const auto refused = Session::open(model, o);
      ASSERT_FALSE(refused.ok()) << bytes;
      EXPECT_EQ(refused.status().code(), Code::invalid_argument);
      EXPECT_NE(refused.status().detail().message.find("it must be at least " + std::to_string(least) + " bytes"), std::string::npos)
          << refused.status().detail().message;
    }
    o.kv_budget_bytes = least;
    const auto enough = unwrap(Session::open(model, o));
    answer(enough.get(), prompt, 20);
    EXPECT_EQ(as_vector(full->tokens()), as_vector(enough->tokens()));
  }
}

class DemoPolicy : public ::testing::TestWithParam<PolicyMode> {};

// Full attention's answer, which is one for all policies: 70 tokens behind 460, beyond position 512, where attention is cut.
struct FullAnswer {
  std::vector<int32_t> prompt, tokens;
  std::vector<float> logits;
  uint64_t kv_bytes = 0;
};
const FullAnswer& full_answer() {
  static const FullAnswer full = [] {
    FullAnswer of;
    const auto model = open_demo();
    of.prompt = random_tokens(*model, 460, 6);
    const auto session = open_session(model, 1024, KvType::f16);
    of.logits = answer(session.get(), of.prompt, 70);
    of.tokens = as_vector(session->tokens());
    of.kv_bytes = session->kv_bytes();
    return of;
  }();
  return full;
}

TEST_P(DemoPolicy, AWholeBudgetGivesEqualTokens) {
  const FullAnswer& full = full_answer();
  const auto model = open_demo();
  for (const uint64_t bytes : {uint64_t{0}, full.kv_bytes}) {  // by share, and by bytes
    engine::SessionOptions o = with_mode(GetParam(), 1.0, 1024);
    o.kv_budget_bytes = bytes;
    const auto whole = unwrap(Session::open(model, o));
    const std::vector<float> found = answer(whole.get(), full.prompt, 70);
    EXPECT_EQ(full.tokens, as_vector(whole->tokens()));
    EXPECT_TRUE(same_bits(full.logits, found));
  }
}

// A full tail makes the session settle again, several times. Slots and bytes keep the share of the tokens, and the plan. The demo has 32
// heads, 6 of them full under policies with full heads: at share .5 neither the least number of slots nor the need of full heads decides.
TEST_P(DemoPolicy, ALongAnswerKeepsToItsBudget) {
  const auto model = open_demo();
  const kv::Arena& arena = model->runtime().arena();
  const uint64_t before = arena.used();
  const engine::SessionOptions o = with_mode(GetParam(), .5, 1024);
  const kv::Plan plan = plan_session(*model, o);
  const auto session = unwrap(Session::open(model, o));
  EXPECT_EQ(arena.used() - before, plan.device_bytes);
  unwrap(session->prefill(random_tokens(*model, 300, 7), nullptr, nullptr));
  const kv::HeadStore& store = session->resident()->store();
  const uint64_t token_bytes = engine::kv_format(model->description(), KvType::f16).token_bytes();
  const bool replaces = GetParam().replaces();
  const uint64_t digests = plan.digests_bytes / token_bytes;  // in slots
  uint64_t n_settled = 0;
  uint32_t horizon = 0;  // tokens that the last settling reaches to: those there, and a tail
  for (uint32_t n_tokens = 301; n_tokens <= 700; ++n_tokens) {
    greedy(session.get(), 1);
    if (session->resident()->settling()) continue;  // in parts: the slots are not in use
    uint64_t slots = 0, used = 0;
    uint32_t room = 0;  // of those heads that hold a tail
    for (uint32_t head = 0; head < store.n_heads(); ++head) {
      ASSERT_LE(store.length(head), store.capacity(head));
      slots += store.capacity(head);
      used += store.length(head);
      room = std::max(room, store.capacity(head) - store.length(head));
    }
    if (session->resident()->report().n_settled > n_settled) horizon = n_tokens + room;
    // Pages that come and go need no tail: their budget is that of the tokens when they settled, and whole heads' of the context.
    const uint64_t budget = replaces || digests > 0 ? store.n_heads() * 150 : store.n_heads() * uint64_t{horizon} / 2;
    if (digests > 0) {
      ASSERT_LE(used, store.n_heads() * (n_tokens / 2 + kPageTokens));
      ASSERT_GE(used + digests, budget / 2);
    } else {
      ASSERT_LE(slots, budget);
      ASSERT_GE(slots + store.n_heads() * 2, budget);  // and uses it, up to what a division leaves
    }
    ASSERT_LE(slots, store.n_slots());
    ASSERT_LE(store.n_slots() + digests, store.n_heads() * uint64_t{512});
    ASSERT_GE(session->kv_used_bytes(), used * token_bytes);
    ASSERT_LE(session->kv_used_bytes(), used * token_bytes + plan.digests_bytes);
    ASSERT_LE(slots * token_bytes, plan.full_kv_bytes + plan.compressed_kv_bytes);
    ASSERT_EQ(arena.used() - before, plan.device_bytes);
    // What is asked for is what is wanted, and not more than once.
    ASSERT_LE(session->resident()->report().missed_tokens, session->resident()->report().wanted_tokens);
    n_settled = session->resident()->report().n_settled;
  }
  EXPECT_GE(n_settled, replaces || digests > 0 ? 1u : 4u);
  EXPECT_EQ(GetParam().refills, session->resident()->refill_stats().tokens > 0);
}

// Every head holds a position at most once, and all that was generated since it settled; of pages that come and go, the last two, and
// of tokens that do; where slots are not left for them, the last ten.
TEST_P(DemoPolicy, SlotsHoldDifferentTokensAndTheLatest) {
  const auto model = open_demo();
  const auto session = unwrap(Session::open(model, with_mode(GetParam(), .5, 1024)));
  unwrap(session->prefill(random_tokens(*model, 300, 8), nullptr, nullptr));
  const uint32_t n_last = GetParam().pages() ? 8 : GetParam().tokens() ? 2 : 0;
  uint64_t n_settled = 0;
  uint32_t settled_at = 0;  // tokens
  for (uint32_t n = 301; n <= 400; ++n) {
    greedy(session.get(), 1);
    if (session->resident()->report().n_settled > n_settled) settled_at = n - 1, ++n_settled;
    if (session->resident()->settling()) continue;  // in parts: the slots are not in use
    const kv::HeadStore& store = session->resident()->store();
    for (uint32_t head = 0; head < store.n_heads(); ++head) {
      std::vector<uint32_t> held(store.positions(head).begin(), store.positions(head).end());
      std::sort(held.begin(), held.end());
      ASSERT_EQ(std::adjacent_find(held.begin(), held.end()), held.end()) << "head " << head << ", " << n << " tokens";
      ASSERT_EQ(held.back(), n - 1);
      if (n_last > 0) {
        ASSERT_EQ(held[held.size() - n_last], n - n_last);
        continue;
      }
      const uint32_t n_latest = GetParam().replaces() ? std::min(n - settled_at, 10u) : n - settled_at;
      ASSERT_GE(held.size(), n_latest);
      ASSERT_EQ(held[held.size() - n_latest], n - n_latest) << "head " << head << ", " << n << " tokens";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, DemoPolicy, ::testing::ValuesIn(policy_modes()),
                         [](const auto& tested) { return std::string(tested.param.name); });

}  // namespace
}  // namespace orrery::budget_test
