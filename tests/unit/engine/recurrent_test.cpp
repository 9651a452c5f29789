// Models with recurrent layers, and models with layers whose KV is a ring. A session cannot take a recurrent state back, and a ring as far
// as its pages reach. So a session whose tokens are cut restores an earlier state and computes the missing tokens. Its bits are a fresh
// session's, and checkpoints bound the number of tokens that it computes again. (session_test.cpp runs these models through rewinds, forks,
// parking and files, too; ring_test.cpp has what is of rings alone.)
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <nlohmann/json.hpp>
#include <thread>

#include "runtime/engine/session/session_file.h"
#include "tests/support/engine_fixture.h"
#include "tests/support/random_blocks.h"

namespace orrery::recurrent_test {
namespace {

using namespace orrery::testing;
using engine::CheckpointedState;
using engine::Session;

constexpr uint32_t kContext = 8192;

std::vector<int32_t> random_prompt(size_t n, uint64_t seed) {
  Random random(seed);
  std::vector<int32_t> tokens(n);
  for (int32_t& t : tokens) t = static_cast<int32_t>(3 + random.below(90));
  return tokens;
}

struct Answer {
  std::vector<int32_t> tokens;
  std::vector<float> logits;
};
Answer answer(Session* session, const std::vector<int32_t>& rest, size_t n = 6) {
  Answer a;
  if (!rest.empty()) unwrap(session->prefill(rest, nullptr, nullptr));
  unwrap(session->sequence().refresh_logits());
  a.tokens = greedy(session, n, &a.logits);
  return a;
}
void expect_same(const Answer& a, const Answer& b) {
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_TRUE(same_bits(a.logits, b.logits));
}
std::vector<int32_t> from(const std::vector<int32_t>& tokens, size_t first) {
  return {tokens.begin() + static_cast<ptrdiff_t>(first), tokens.end()};
}

// Every kind of recurrent layer: gated delta nets, short convolutions (also with experts, and next to windows), Mamba2.
class EngineRecurrent : public ::testing::TestWithParam<const char*> {};
// These, and rings: of windows of 5 to 20 tokens, which take 1,024.
class EngineState : public ::testing::TestWithParam<const char*> {};

TEST_P(EngineRecurrent, TheNextPromptComputesAFewTokensAgain) {
  const auto model = open_spec(GetParam(), runtime_options(2));
  const auto session = open_session(model, kContext, KvType::f16, 128);
  const std::vector<int32_t> prompt = random_prompt(500, 1);
  answer(session.get(), prompt, 20);
  EXPECT_EQ(session->stats().recomputed_tokens, 0u);
  ASSERT_EQ(session->sequence().state()->checkpoints().size(), 1u);
  EXPECT_EQ(session->sequence().state()->checkpoints()[0].n_tokens, 448u) << "a page's end, at least kTail tokens before the end";

  // It parts from this one where the answer began, and three tokens before.
  std::vector<int32_t> next(prompt.begin(), prompt.end() - 3);
  const std::vector<int32_t> more = random_prompt(40, 2);
  next.insert(next.end(), more.begin(), more.end());
  ASSERT_EQ(session->sequence().reuse_prefix(next), 448u) << "the tokens behind it join the new prompt's chunk";
  const Answer found = answer(session.get(), from(next, 448));
  EXPECT_EQ(session->stats().recomputed_tokens, 0u);
  const auto fresh = open_session(model, kContext, KvType::f16, 128);
  expect_same(found, answer(fresh.get(), next));
}

TEST_P(EngineState, LongPromptsHaveCheckpoints) {
  const auto model = open_spec(GetParam(), runtime_options(2));
  const auto session = open_session(model, kContext, KvType::f16, 512);
  const std::vector<int32_t> prompt = random_prompt(6500, 3);
  answer(session.get(), prompt);
  EXPECT_GE(session->sequence().state()->checkpoints().size(), 4u);
  for (const uint32_t n : {6000u, 4200u, 2100u}) {
    const uint64_t before = session->stats().recomputed_tokens;
    unwrap(session->rewind(n));
    answer(session.get(), {}, 1);
    EXPECT_LE(session->stats().recomputed_tokens - before, uint64_t{CheckpointedState::kEvery}) << n;
  }
  unwrap(session->rewind(2100));
  const auto fresh = open_session(model, kContext, KvType::f16, 512);
  const std::vector<int32_t> first(prompt.begin(), prompt.begin() + 2100);
  expect_same(answer(session.get(), {}), answer(fresh.get(), first));
}

TEST(EngineCheckpointedState, NoMoreCheckpointsThanAreKept) {
  CheckpointedState state(open_spec("qwen35")->description(), KvType::f16);
  for (uint32_t i = 1; i <= 40; ++i) {
    state.add_checkpoint(100 * i, std::make_shared<std::vector<std::byte>>());
    EXPECT_LE(state.checkpoints().size(), CheckpointedState::kMostCheckpoints);
  }
}

// The template of this chat drops an answer's reasoning when the next question comes. So the next turn cannot reuse the answer's KV, nor a
// state after the question. A turn computes the new tokens, the answer without its reasoning, and at most one page and kTail tokens of the
// old prompt.
TEST_P(EngineState, ATurnComputesWhatIsNewAndLittleElse) {
  const auto model = open_spec(GetParam(), runtime_options(2));
  const auto session = open_session(model, kContext, KvType::f16, 128);
  std::vector<int32_t> chat = random_prompt(300, 20);
  for (uint64_t turn = 0; turn < 10; ++turn) {
    const uint64_t before = session->stats().recomputed_tokens + session->stats().prompt_tokens;
    const size_t old = turn ? chat.size() - 90 : 0;  // what the turn before has computed as its prompt
    const uint32_t reused = session->sequence().reuse_prefix(chat);
    const Answer found = answer(session.get(), from(chat, reused), 60);  // 40 tokens of reasoning, and 20 that stay
    const uint64_t computed = session->stats().recomputed_tokens + session->stats().prompt_tokens - before;
    EXPECT_LE(computed, chat.size() - old + 64 + CheckpointedState::kTail) << turn;
    if (turn % 3 == 2) expect_same(found, answer(open_session(model, kContext, KvType::f16, 64).get(), chat, 60));
    chat.insert(chat.end(), found.tokens.begin() + 40, found.tokens.end());
    const std::vector<int32_t> question = random_prompt(70, 30 + turn);
    chat.insert(chat.end(), question.begin(), question.end());
  }
}

// A cancelled step, at any layer, leaves a state of no known number of tokens.
TEST_P(EngineState, ACancelledPromptContinuesAsAFreshOne) {
  const auto model = open_spec(GetParam(), runtime_options(1));
  const std::vector<int32_t> prompt = random_prompt(3000, 4);
  const auto fresh = open_session(model, kContext, KvType::f16, 64);
  const Answer expected = answer(fresh.get(), prompt);
  uint32_t n_cancelled = 0;
  for (int i = 0; i < 12; ++i) {
    const auto session = open_session(model, kContext, KvType::f16, 64);
    std::atomic<bool> cancel{false};
    std::thread stopper([&] {
      std::this_thread::sleep_for(std::chrono::microseconds(400 * i));
      cancel = true;
    });
    const Status status = session->prefill(prompt, &cancel, nullptr);
    stopper.join();
    if (!status.ok()) {
      EXPECT_EQ(status.code(), Code::cancelled);
      ++n_cancelled;
    }
    expect_same(answer(session.get(), from(prompt, session->n_computed())), expected);
  }
  EXPECT_GT(n_cancelled, 0u);
}

TEST_P(EngineState, ASavedStateIsNotComputedAgain) {
  const auto model = open_spec(GetParam(), runtime_options(2));
  const auto session = open_session(model, 1024, KvType::f16);
  answer(session.get(), random_prompt(300, 5), 5);
  std::vector<std::byte> file;
  unwrap(engine::SessionFile::save(session.get(), [&](Span<const std::byte> bytes) {
    file.insert(file.end(), bytes.begin(), bytes.end());
    return ok_status();
  }));
  EXPECT_EQ(file.size(), unwrap(engine::SessionFile::size(session.get())));
  const Answer expected = answer(session.get(), {7, 8, 9});
  const auto loaded = open_session(model, 1024, KvType::f16);
  unwrap(engine::SessionFile::load(loaded.get(), file, "buffer"));
  expect_same(answer(loaded.get(), {7, 8, 9}), expected);
  EXPECT_EQ(loaded->stats().recomputed_tokens, 0u);
  // Without its state, the session computes its tokens.
  const auto rewound = open_session(model, 1024, KvType::f16);
  unwrap(engine::SessionFile::load(rewound.get(), file, "buffer"));
  unwrap(rewound->rewind(200));
  const auto fresh = open_session(model, 1024, KvType::f16);
  const std::vector<int32_t> first(rewound->tokens().begin(), rewound->tokens().end());
  expect_same(answer(rewound.get(), {}), answer(fresh.get(), first));
  // A file that ends inside its state.
  file.resize(file.size() - 40);
  EXPECT_EQ(engine::SessionFile::load(fresh.get(), file, "buffer").code(), Code::bad_session);
}

TEST_P(EngineState, SessionsThatDecodeTogetherHaveTheirOwnStates) {
  std::vector<std::vector<int32_t>> prompts;
  for (uint64_t i = 0; i < 3; ++i) prompts.push_back(random_prompt(40 + 30 * i, 10 + i));
  expect_together_as_alone(open_spec(GetParam(), runtime_options(2)), prompts, 10);
}

TEST_P(EngineRecurrent, ThePlanHasTheStateAndOpeningTakesIt) {
  const auto model = open_spec(GetParam());
  engine::SessionOptions options;
  options.n_context = 256;
  const kv::Plan plan = engine::plan_session(*model, &options);
  uint64_t planned = 0;
  for (const kv::Region& region : plan.layout.regions())
    if (std::string(region.name) == "recurrent state") planned = region.device_bytes;
  EXPECT_EQ(planned, align_up(model->description().state_bytes(), kv::kArenaAlignment));
  const auto session = open_session(model, 256);
  for (const kv::Arena::Taken& taken : model->runtime().arena().taken())
    if (std::string(taken.what) == "recurrent state") planned -= std::min(planned, taken.bytes);
  EXPECT_EQ(planned, 0u);
}

// ---- Guessed tokens (guesses_test.cpp has whole answers with them) ----

std::unique_ptr<Session> guessing(const std::shared_ptr<engine::LanguageModel>& model, uint32_t n_context = kContext) {
  engine::SessionOptions options;
  options.n_context = n_context;
  options.chunk_tokens = 512;
  options.speculate = engine::Speculate::ngram;
  options.guess_costs.emplace().fill(0.01);
  return unwrap(Session::open(model, options));
}

// A grammar that demands what comes next; where it lies, the answer says something else.
class Demands final : public engine::Drafter {
 public:
  Demands(const std::vector<int32_t>& tokens, size_t* at) : tokens_(tokens), at_(*at) {}
  int32_t draft(Span<const float>, Span<const int32_t>) override { return -1; }
  int32_t likeliest(Span<const float>, Span<const int32_t>) override { return -1; }
  size_t n_allowed(Span<const int32_t> guesses) override { return guesses.size(); }
  size_t forced(int32_t* tokens, size_t most) override {
    size_t n = 0;
    for (; n < most && at_ + 1 + n < tokens_.size(); ++n) tokens[n] = n == at_ % 9 ? tokens_[at_ + 1 + n] + 1 : tokens_[at_ + 1 + n];
    return n;
  }

 private:
  const std::vector<int32_t>& tokens_;
  size_t& at_;
};

// Steps of every number of guesses, of which every number is right. Then whatever needs the state itself: forks and files have it, and
// compute one token again for it.
TEST_P(EngineRecurrent, ForcedTokensLeaveTheStateOfSteps) {
  const auto model = open_spec(GetParam(), runtime_options(2));
  const auto off = open_session(model, kContext, KvType::f16, 512), session = guessing(model);
  const std::vector<int32_t> prompt = random_prompt(70, 1), said = random_prompt(230, 2);
  unwrap(off->prefill(prompt, nullptr, nullptr)), unwrap(session->prefill(prompt, nullptr, nullptr));
  size_t at = 0;
  Demands demands(said, &at);
  for (; at < said.size(); ++at) {
    feed(off.get(), said[at]);
    session->push_generated(said[at]);
    unwrap(session->decode(nullptr, nullptr, static_cast<uint32_t>(1 + at % 7), &demands));
    ASSERT_TRUE(same_bits(as_vector(off->logits()), as_vector(session->logits()))) << at;
    if (at % 40 != 30) continue;
    const uint64_t before = session->stats().recomputed_tokens;
    const auto fork = unwrap(session->fork());
    EXPECT_LE(session->stats().recomputed_tokens - before, 1u);
    EXPECT_EQ(fork->sequence().state()->position(), fork->n_computed());
    EXPECT_EQ(session->sequence().state()->position(), session->n_computed());
    feed(fork.get(), 7);
    const auto off_fork = unwrap(off->fork());
    feed(off_fork.get(), 7);
    ASSERT_TRUE(same_bits(as_vector(off_fork->logits()), as_vector(fork->logits()))) << at;
    std::vector<std::byte> files[2];
    for (const bool guesses : {false, true})
      unwrap(engine::SessionFile::save(guesses ? session.get() : off.get(), [&](Span<const std::byte> bytes) {
        files[guesses].insert(files[guesses].end(), bytes.begin(), bytes.end());
        return ok_status();
      }));
    EXPECT_EQ(files[0], files[1]) << "with its state";
  }
  EXPECT_GT(session->stats().accepted_tokens, 60u);
  EXPECT_GT(session->stats().guessed_tokens, session->stats().accepted_tokens + 40);
  EXPECT_EQ(off->stats().recomputed_tokens, 0u);
}

// A long answer has its checkpoints, although a page's end may lie among right guesses.
TEST_P(EngineRecurrent, ALongAnswerOfGuessesHasCheckpoints) {
  const auto model = open_spec(GetParam(), runtime_options(2));
  const auto off = open_session(model, kContext, KvType::f16, 512), session = guessing(model);
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < 2 * CheckpointedState::kEvery + 400; ++i) tokens.push_back(static_cast<int32_t>(i % 61 == 60 ? 3 : 10 + i % 12));
  for (Session* s : {off.get(), session.get()}) unwrap(s->prefill({tokens.data(), 61}, nullptr, nullptr));
  for (size_t i = 61; i < tokens.size(); ++i) {
    off->push_generated(tokens[i]), session->push_generated(tokens[i]);
    unwrap(off->decode()), unwrap(session->decode(nullptr, nullptr, 7));
  }
  EXPECT_GT(session->stats().accepted_tokens, 2000u);
  EXPECT_LE(session->stats().recomputed_tokens, 14u);
  for (const auto& s : {off.get(), session.get()}) {
    std::vector<uint32_t> at;
    for (const CheckpointedState::Checkpoint& c : s->sequence().state()->checkpoints()) at.push_back(c.n_tokens);
    ASSERT_EQ(at, (std::vector<uint32_t>{2048, 4096}));
  }
  for (size_t i = 0; i < 2; ++i)
    EXPECT_EQ(*off->sequence().state()->checkpoints()[i].bytes, *session->sequence().state()->checkpoints()[i].bytes);
  unwrap(off->rewind(4100)), unwrap(session->rewind(4100));
  expect_same(answer(session.get(), {}), answer(off.get(), {}));
}

TEST_P(EngineRecurrent, ThePlanHasTheInputsOfGuesses) {
  const auto model = open_spec(GetParam());
  engine::SessionOptions options;
  options.n_context = 256;
  options.speculate = engine::Speculate::ngram;
  const auto bytes = [&] {
    uint64_t its = 0;
    const kv::Plan plan = engine::plan_session(*model, &options);
    for (const kv::Region& region : plan.layout.regions())
      if (std::string(region.name) == "inputs of guessed tokens") its += region.device_bytes;
    return its;
  };
  const uint64_t planned = bytes();
  EXPECT_EQ(planned, align_up(model->description().guessed_floats * sizeof(float), kv::kArenaAlignment));
  const auto session = unwrap(Session::open(model, options));
  uint64_t taken = 0;
  for (const kv::Arena::Taken& part : model->runtime().arena().taken())
    if (std::string(part.what) == "inputs of guessed tokens") taken += part.bytes;
  EXPECT_EQ(taken, planned);
  options.speculate = engine::Speculate::off;
  EXPECT_EQ(bytes(), 0u);
}

TEST_P(EngineRecurrent, WhatCannotBeTakenBackIsRefused) {
  const auto model = open_spec(GetParam());
  const auto refused = [&](const engine::SessionOptions& options, const char* words) {
    const Status status = Session::open(model, options).take_status();
    EXPECT_EQ(status.code(), Code::unsupported) << words;
    EXPECT_NE(std::string(status.message()).find(words), std::string::npos) << status.message();
  };
  engine::SessionOptions options;
  options.n_context = 256;
  options.speculate = engine::Speculate::policy;
  options.policy = "auto";
  options.kv_share = .5;
  refused(options, "speculate policy drafts with steps of the model itself");
  // The layer before has no queries, or those of a layer with attention come two layers later.
  options = {};
  options.n_context = 256;
  options.policy = "infinigen";
  options.kv_share = .5;
  refused(options, "asks for a layer's queries one layer ahead");
}

std::string name_of(const ::testing::TestParamInfo<const char*>& tested) {
  std::string name = tested.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}
INSTANTIATE_TEST_SUITE_P(Kinds, EngineRecurrent,
                         ::testing::Values("qwen35", "qwen35-flags", "lfm2", "lfm2-taps", "lfm2moe", "nemotron-h", "nemotron-h-odd"),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Kinds, EngineState,
                         ::testing::Values("qwen35", "qwen35-flags", "lfm2", "lfm2-taps", "lfm2moe", "nemotron-h", "nemotron-h-odd",
                                           "gemma3", "gemma3-flags", "gpt-oss", "muse", "gemma4-moe-alike"),
                         name_of);

// What a sequence keeps of seven guessed rows, counted by hand.
TEST(EngineCheckpointedState, HasTheBytesOfItsGuesses) {
  const auto floats = [](const char* spec) { return open_spec(spec)->description().guessed_floats; };
  EXPECT_EQ(floats("qwen35"), uint64_t{4} * 7 * (128 + 2 * 4) + 4 * 8);  // 952 floats, at a multiple of 16
  EXPECT_EQ(floats("lfm2"), uint64_t{3} * 7 * 64);
  EXPECT_EQ(floats("nemotron-h"), uint64_t{2} * (7 * (192 + 8) + 8));  // 1,400
}

// What a sequence keeps, counted by hand.
TEST(EngineCheckpointedState, HasTheBytesOfItsLayers) {
  const auto floats = [](const char* spec) { return open_spec(spec)->description().state_floats; };
  EXPECT_EQ(floats("qwen35"),
            uint64_t{4} * (4 * 16 * 16 + 3 * 128));  // four layers: 4 value heads of 16 x 16, and three rows of 128 channels
  EXPECT_EQ(floats("lfm2"), uint64_t{3} * 2 * 64);   // three layers of two rows
  EXPECT_EQ(floats("lfm2-taps"), uint64_t{2} * 80);  // two layers of 72, each at a multiple of 16
  EXPECT_EQ(floats("nemotron-h"), uint64_t{2} * (8 * 16 * 16 + 3 * 192));
  EXPECT_EQ(floats("nemotron-h-odd"), uint64_t{2} * (3 * 24 * 20 + 2 * 108 + 8));  // 108 = 60 + 2 * 24; 1,656 floats, at a multiple of 16
}

}  // namespace
}  // namespace orrery::recurrent_test
