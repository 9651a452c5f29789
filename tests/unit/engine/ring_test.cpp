// Layers with a window keep their KV in a ring of pages: the window, and some tokens more that rewinds may ask for. What a session answers
// is what it would answer with a ring that holds the whole context, to the bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>

#include "runtime/engine/session/session_file.h"
#include "tests/support/policy_sessions.h"

namespace orrery::ring_test {
namespace {

using namespace orrery::testing;
using engine::Session;
using engine::SessionFile;
using engine::SessionOptions;

constexpr uint32_t kContext = 2048, kWhole = 1u << 20;

// A ring of 256 tokens, if slack is 1 and a chunk has at most 100 rows; of the whole context, if it is kWhole.
SessionOptions options_with(uint32_t slack, uint32_t chunk = 64, KvType kv = KvType::f16) {
  SessionOptions options;
  options.n_context = kContext;
  options.kv_type = kv;
  options.chunk_tokens = chunk;
  options.window_slack = slack;
  return options;
}

std::vector<int32_t> first(const std::vector<int32_t>& tokens, size_t n) {
  return {tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(n)};
}
std::vector<int32_t> from(const std::vector<int32_t>& tokens, size_t n) {
  return {tokens.begin() + static_cast<ptrdiff_t>(n), tokens.end()};
}

std::vector<float> continued(Session* session, const std::vector<int32_t>& rest, size_t n) {
  std::vector<float> trace;
  if (!rest.empty()) unwrap(session->prefill(rest, nullptr, nullptr));
  unwrap(session->sequence().refresh_logits());
  greedy(session, n, &trace);
  return trace;
}

std::vector<std::byte> saved(Session* session) {
  std::vector<std::byte> bytes;
  unwrap(SessionFile::save(session, [&](Span<const std::byte> piece) {
    bytes.insert(bytes.end(), piece.begin(), piece.end());
    return ok_status();
  }));
  return bytes;
}

class Rings : public ::testing::TestWithParam<const char*> {
 protected:
  std::unique_ptr<Session> open(uint32_t slack, uint32_t chunk = 64, KvType kv = KvType::f16) {
    return unwrap(Session::open(model_, options_with(slack, chunk, kv)));
  }
  std::shared_ptr<engine::LanguageModel> model_ = open_spec(GetParam(), runtime_options(2));
  std::vector<int32_t> prompt_ = random_tokens(*model_, 900, 1);
};
INSTANTIATE_TEST_SUITE_P(Models, Rings, ::testing::Values("gemma3", "gemma3-flags", "gpt-oss", "muse", "gemma4-moe", "gemma4-alike"),
                         [](const auto& tested) {
                           std::string name = tested.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST_P(Rings, AnswerAsWithAllTokens) {
  for (const KvType kv : {KvType::f16, KvType::q8_0}) {
    const auto whole = open(kWhole, 64, kv);
    const std::vector<float> expected = continued(whole.get(), prompt_, 300);
    for (const uint32_t chunk : {7u, 100u, 600u}) {
      const auto ring = open(1, chunk, kv);
      EXPECT_TRUE(same_bits(continued(ring.get(), prompt_, 300), expected)) << chunk;
      EXPECT_EQ(ring->stats().recomputed_tokens, 0u);
      EXPECT_LT(ring->kv_bytes(), whole->kv_bytes());
      EXPECT_LT(ring->kv_used_bytes(), whole->kv_used_bytes());
    }
  }
}

// By the shapes alone: a ring has at most window + 1,024 tokens where a chunk needs no more.
TEST_P(Rings, TakeThePlannedBytes) {
  for (const uint32_t slack : {0u, 1u, kWhole}) {
    SessionOptions options = options_with(slack);
    const kv::Plan plan = engine::plan_session(*model_, &options);
    const uint64_t before = model_->runtime().arena().used();
    const auto session = unwrap(Session::open(model_, options));
    EXPECT_EQ(model_->runtime().arena().used() - before, plan.device_bytes) << slack;
    uint64_t whole = 0, rings = 0, most = 0;
    const model::Description& h = model_->description();
    for (size_t g = 0; g < h.groups.size(); ++g) {
      const uint64_t token = engine::kv_format(h, KvType::f16, g).page_bytes() / kPageTokens;
      const auto window = static_cast<uint64_t>(h.groups[g].window);
      g == 0 ? whole += kContext* token : rings += (slack == kWhole ? kContext : slack == 0 ? 1024 : 256) * token;
      most += g == 0 || slack == kWhole ? kContext * token : (window + 1024) * token;
    }
    uint64_t planned = 0;
    for (const kv::Region& region : plan.layout.regions())
      if (std::string(region.name) == "window KV pages") planned += region.device_bytes;
    EXPECT_EQ(planned, rings) << slack;
    EXPECT_LE(planned + whole, most);
    EXPECT_EQ(plan.layout.device_bytes(kv::Holds::kv), whole + rings) << slack;
  }
}

// Rewinds as far as the ring reaches compute nothing again. Others go back to a checkpoint, or to the start.
TEST_P(Rings, GoBack) {
  const auto session = open(1);
  const std::vector<float> expected = continued(session.get(), prompt_, 60);
  const std::vector<int32_t> tokens = as_vector(session->tokens());
  const auto whole = open(kWhole);
  continued(whole.get(), prompt_, 60);
  for (const uint32_t n : {959u, 930u, 901u, 900u, 899u, 896u, 850u, 640u, 450u, 64u, 1u}) {
    // Generated tokens that stay were computed one by one.
    const auto fresh = open(kWhole);
    unwrap(fresh->prefill(first(tokens, std::min(n, 900u)), nullptr, nullptr));
    for (uint32_t i = 900; i < n; ++i) feed(fresh.get(), tokens[i]);
    const uint64_t before = session->stats().recomputed_tokens;
    unwrap(session->rewind(n));
    unwrap(whole->rewind(n));
    const std::vector<float> found = continued(session.get(), {}, 5);
    EXPECT_TRUE(same_bits(found, continued(fresh.get(), {}, 5))) << n;
    EXPECT_TRUE(same_bits(found, continued(whole.get(), {}, 5))) << n;
    const uint64_t computed = session->stats().recomputed_tokens - before;
    if (n > 800) {
      EXPECT_EQ(computed, 0u) << n << ": the ring reaches back";
    }
    if (n == 640) {
      EXPECT_EQ(computed, 639u) << "no checkpoint lies before it; the last token is computed for its logits";
    }
    EXPECT_LE(computed, n) << n;
    // Forward again, over tokens of another kind.
    unwrap(session->rewind(n)), unwrap(whole->rewind(n));
    unwrap(session->prefill(from(first(tokens, 960), n), nullptr, nullptr));
    unwrap(whole->prefill(from(first(tokens, 960), n), nullptr, nullptr));
  }
  EXPECT_EQ(whole->stats().recomputed_tokens, 0u);
  unwrap(session->rewind(0));
  EXPECT_TRUE(same_bits(continued(session.get(), prompt_, 60), expected));
}

TEST_P(Rings, AreSharedByForks) {
  const auto session = open(1), whole = open(kWhole);
  continued(session.get(), prompt_, 20), continued(whole.get(), prompt_, 20);
  for (const uint32_t back : {0u, 30u, 700u}) {
    const auto fork = unwrap(session->fork()), fork_of_whole = unwrap(whole->fork());
    unwrap(fork->rewind(920 - back)), unwrap(fork_of_whole->rewind(920 - back));
    const std::vector<int32_t> more = random_tokens(*model_, 330, 7 + back);
    EXPECT_TRUE(same_bits(continued(fork.get(), more, 10), continued(fork_of_whole.get(), more, 10))) << back;
  }
  EXPECT_TRUE(same_bits(continued(session.get(), {}, 300), continued(whole.get(), {}, 300))) << "a fork has written to shared pages";
}

// A fork without room is parked: its windows are a checkpoint.
TEST_P(Rings, AreParkedWithACheckpoint) {
  SessionOptions options = options_with(1);
  const kv::Plan plan = engine::plan_session(*model_, &options);
  const auto tight =
      open_spec(GetParam(), runtime_options(2, test_cpu_path(), model_->runtime().arena().used() + plan.device_bytes + 4096));
  auto session = unwrap(Session::open(tight, options_with(1)));
  const auto whole = open(kWhole);
  continued(session.get(), prompt_, 20), continued(whole.get(), prompt_, 20);
  auto fork = unwrap(session->fork());
  ASSERT_TRUE(fork->sequence().parked());
  session.reset();
  unwrap(fork->resume());
  EXPECT_TRUE(same_bits(continued(fork.get(), {}, 40), continued(whole.get(), {}, 40)));
  EXPECT_EQ(fork->stats().recomputed_tokens, 0u);
}

// Files hold the windows alone, so sessions with rings of any length exchange them.
TEST_P(Rings, AreSavedAsTheirWindows) {
  for (const KvType kv : {KvType::f16, KvType::q4_0}) {
    const auto ring = open(1, 64, kv), whole = open(kWhole, 64, kv);
    continued(ring.get(), prompt_, 30), continued(whole.get(), prompt_, 30);
    const std::vector<std::byte> of_ring = saved(ring.get()), of_whole = saved(whole.get());
    EXPECT_TRUE(of_ring == of_whole);
    const std::vector<float> expected = continued(whole.get(), {7, 8, 9}, 20);
    for (const uint32_t slack : {1u, kWhole}) {
      const auto loaded = open(slack, 64, kv);
      unwrap(SessionFile::load(loaded.get(), of_ring, "a session"));
      EXPECT_TRUE(same_bits(continued(loaded.get(), {7, 8, 9}, 20), expected)) << slack;
      EXPECT_EQ(loaded->stats().recomputed_tokens, 0u);
    }
  }
}

TEST_P(Rings, GoOnAfterACancelledChunk) {
  const auto whole = open(kWhole);
  const std::vector<float> expected = continued(whole.get(), prompt_, 10);
  const auto session = open(1);
  unwrap(session->prefill(first(prompt_, 600), nullptr, nullptr));
  for (uint32_t i = 0; i < 4; ++i) {
    std::atomic<bool> cancel{true};
    EXPECT_EQ(session->prefill(from(prompt_, 600), &cancel, nullptr).code(), Code::cancelled);
  }
  EXPECT_TRUE(same_bits(continued(session.get(), from(prompt_, 600), 10), expected));
  EXPECT_EQ(session->stats().recomputed_tokens, 0u);
}

TEST_P(Rings, HoldGuesses) {
  std::vector<int32_t> repeated;  // n-grams guess it
  for (int i = 0; i < 40; ++i) repeated.insert(repeated.end(), prompt_.begin(), prompt_.begin() + 10);
  SessionOptions options = options_with(1);
  options.speculate = engine::Speculate::ngram;
  options.guess_costs.emplace();  // guesses cost nothing
  const auto guessing = unwrap(Session::open(model_, options)), off = open(kWhole);
  unwrap(guessing->prefill(repeated, nullptr, nullptr)), unwrap(off->prefill(repeated, nullptr, nullptr));
  std::vector<int32_t> tokens = repeated;
  for (size_t i = 0; i < 600; ++i) tokens.push_back(i % 50 < 30 ? repeated[i % 10] : prompt_[i]);
  expect_same_rows(off.get(), guessing.get(), tokens, repeated.size());
  EXPECT_GT(guessing->stats().accepted_tokens, 100u);
  EXPECT_EQ(guessing->stats().recomputed_tokens, 0u);
}

// Prompts are kept up to a checkpoint, with its windows.
TEST_P(Rings, AreKeptWithPrompts) {
  const auto run = [&](uint32_t slack, bool reuse, const std::vector<int32_t>& prompt) {
    SessionOptions options = options_with(slack);
    options.reuse_prompts = reuse;
    auto session = unwrap(Session::open(model_, options));
    unwrap(session->find_prefix(prompt, nullptr));
    const uint64_t restored = session->stats().restored_tokens;
    std::vector<float> trace = continued(session.get(), from(prompt, session->n_computed()), 10);
    session->keep_prefix();
    EXPECT_EQ(session->stats().recomputed_tokens, 0u);
    return std::make_pair(restored, trace);
  };
  const std::vector<int32_t> other = random_tokens(*model_, 100, 3);
  std::vector<int32_t> longer = prompt_;
  longer.insert(longer.end(), other.begin(), other.end());
  const auto expected = run(kWhole, false, longer);
  EXPECT_EQ(run(1, true, prompt_).first, 0u);
  for (const uint32_t slack : {1u, kWhole}) {
    const auto found = run(slack, true, longer);
    EXPECT_EQ(found.first, slack == 1 ? 832u : 960u) << "to a page's end, at least kTail tokens before the end of the earlier prompt";
    EXPECT_TRUE(same_bits(found.second, expected.second));
  }
}

// Policies divide the other layers: what they choose does not depend on the ring.
TEST(RingPolicies, ChooseAsWithAllTokens) {
  for (const char* spec : {"gemma3", "gpt-oss", "gemma4-moe"})
    for (const PolicyMode& mode : policy_modes()) {
      const auto model = open_spec(spec, runtime_options(2));
      const auto open = [&](uint32_t slack) {
        SessionOptions options = with_mode(mode, .8, 1024, KvType::f16, 64);
        options.window_slack = slack;
        return Session::open(model, options);
      };
      auto opened = open(1);
      if (!opened.ok()) {
        EXPECT_TRUE(opened.status().code() == Code::unsupported || opened.status().code() == Code::invalid_argument) << mode.name;
        continue;
      }
      const auto ring = std::move(opened).value();
      const auto whole = unwrap(open(kWhole));
      const std::vector<int32_t> prompt = random_tokens(*model, 500, 5);
      EXPECT_TRUE(same_bits(continued(ring.get(), prompt, 40), continued(whole.get(), prompt, 40))) << spec << ' ' << mode.name;
      // h2o sums the queries of all tokens, and computes them again. Generated tokens in reach of a ring are then others than they were.
      const bool sums = std::string(mode.policy) == "h2o";
      for (const uint32_t n : {sums ? 500u : 530u, 500u, 480u}) {
        unwrap(ring->rewind(n)), unwrap(whole->rewind(n));
        EXPECT_TRUE(same_bits(continued(ring.get(), {}, 10), continued(whole.get(), {}, 10))) << spec << ' ' << mode.name << ' ' << n;
      }
    }
}

}  // namespace
}  // namespace orrery::ring_test
