// A prompt in parts: the pace by given times; and chunks that pause behind every layer, and other sessions' steps in the pauses. Bits are
// those of a prompt that nobody interrupts, under every policy. A chunk that is cancelled in a pause leaves nothing behind.
#include <gtest/gtest.h>

#include <array>
#include <thread>

#include "tests/support/policy_sessions.h"

namespace orrery::prompt_pace_test {
namespace {

using namespace testing;
using engine::Event;
using engine::EventType;
using engine::Generation;
using engine::PromptPace;
using engine::Session;

constexpr uint64_t kPartUs = 100'000;

model::Description shape(int32_t n_layers) {
  model::Description h;
  h.n_layers = n_layers, h.n_embd = 8;
  return h;
}

TEST(PromptPace, APartTakesTheTimeThatWasAskedFor) {
  PromptPace pace(shape(24), 256, kPartUs, 10.0);
  ASSERT_EQ(pace.rows(256), 256u);
  ASSERT_EQ(pace.end_of_part(256), 24) << "61 ms by the expected time";
  const int32_t half = 12;
  pace.computed(256, half, 12 * 256 * 100);  // 100 us a row and layer: 25.6 ms a layer
  EXPECT_TRUE(pace.under_way());
  EXPECT_EQ(pace.done(), 128u);
  EXPECT_EQ(pace.end_of_part(256), half + 3);
  pace.computed(256, half + 3, 3 * 256 * 100);
  pace.computed(256, 24, 9 * 256 * 100);
  EXPECT_FALSE(pace.under_way());
  EXPECT_EQ(pace.done(), 0u);
  EXPECT_EQ(pace.layer(), 0);
}

TEST(PromptPace, WhereALayerTakesLongerTheChunkHasFewerRows) {
  PromptPace pace(shape(4), 256, kPartUs, 1000.0);
  EXPECT_EQ(pace.rows(256), 100u);
  EXPECT_EQ(pace.rows(60), 60u);
  EXPECT_EQ(pace.end_of_part(100), 1);
  EXPECT_EQ(pace.rows(256, 4), 25u) << "the logits of all rows are work, too";
  EXPECT_EQ(pace.rows(256, 0.1), 100u);
  pace.computed(100, 4, 4 * 100 * 100'000ull);
  EXPECT_EQ(pace.rows(256), PromptPace::kFewestRows);
  EXPECT_EQ(pace.end_of_part(16), 1) << "a part has a layer, however long it takes";
}

TEST(PromptPace, ASlowPartIsNotTheRule) {
  PromptPace pace(shape(4), 256, kPartUs, 1.0);
  pace.computed(256, 4, 4 * 256 * 10);
  pace.computed(256, 4, 4 * 256 * 1000);  // another program had the processor
  EXPECT_EQ(pace.end_of_part(256), 4);
  EXPECT_EQ(pace.rows(256), 256u);
  for (int i = 0; i < 10; ++i) pace.computed(256, 4, 4 * 256 * 1000);
  EXPECT_EQ(pace.rows(256), 100u) << "it is now";
}

engine::RuntimeOptions layer_by_layer() {
  engine::RuntimeOptions o = runtime_options();
  o.prompt_part_us = 0;
  return o;
}
std::vector<int32_t> tokens_of(size_t n, uint64_t seed) {
  Random random(seed);
  std::vector<int32_t> tokens(n);
  for (int32_t& t : tokens) t = static_cast<int32_t>(random.below(2000));
  return tokens;
}

class PromptInParts : public ::testing::TestWithParam<const char*> {
 protected:
  std::unique_ptr<Session> open(const std::shared_ptr<engine::LanguageModel>& model) const {
    PolicyMode mode = {GetParam(), GetParam(), {}, false};
    if (GetParam() != std::string("full")) return unwrap(Session::open(model, with_mode(mode, 0.4, 320, KvType::q8_0, 100)));
    return open_session(model, 320, KvType::q8_0, 100);
  }
};

// The other session computes in the pauses: a prompt, and tokens. Both write over the workspace.
TEST_P(PromptInParts, OtherSessionsComputeInTheirPauses) {
  const auto whole = open_demo(), cut = open_demo(layer_by_layer());
  const std::vector<int32_t> prompt = tokens_of(230, 1), other = tokens_of(40, 2);
  std::vector<float> expected, expected_other, found, found_other;
  std::vector<int32_t> tokens;
  {
    const auto a = open(whole), b = open(whole);
    unwrap(a->prefill(prompt, nullptr, nullptr));
    expected = as_vector(a->logits());
    tokens = greedy(a.get(), 6, &expected);
    unwrap(b->prefill(other, nullptr, nullptr));
    greedy(b.get(), 20, &expected_other);
  }
  const auto a = open(cut), b = open(cut);
  unwrap(b->prefill(other, nullptr, nullptr));
  size_t n_parts = 0, n_steps = 0;
  while (a->n_computed() < prompt.size()) {
    const uint32_t from = a->n_computed(), n = a->sequence().next_chunk(prompt.size() - from);
    EXPECT_EQ(n, std::min<size_t>(PromptPace::kFewestRows, prompt.size() - from));
    const bool last = from + n == prompt.size();
    const bool complete = unwrap(a->sequence().prefill_part({prompt.data() + from, n}, nullptr, last, nullptr));
    ++n_parts;
    EXPECT_EQ(complete, a->sequence().part_done() == 0 && a->n_computed() == from + n);
    if (n_steps++ < 20) greedy(b.get(), 1, &found_other);
  }
  const auto n_layers = static_cast<size_t>(cut->description().n_layers);
  EXPECT_EQ(n_parts, n_layers * ((prompt.size() + 15) / 16));
  found = as_vector(a->logits());
  EXPECT_EQ(greedy(a.get(), 6, &found), tokens);
  EXPECT_TRUE(same_bits(found, expected));
  EXPECT_TRUE(same_bits(found_other, expected_other));
}

INSTANTIATE_TEST_SUITE_P(Policies, PromptInParts, ::testing::Values("full", "h2o", "snapkv", "auto"),
                         [](const auto& each) { return std::string(each.param); });

TEST(EnginePromptInParts, TheEventsCountAPartOfAChunk) {
  const auto model = open_demo(layer_by_layer());
  const auto session = open_session(model, 320, KvType::f16);
  const std::vector<int32_t> prompt = tokens_of(64, 3);
  engine::GenerateOptions options;
  options.max_tokens = 1;
  const auto g = unwrap(Generation::proceed(session.get(), prompt, options));
  const auto n_layers = static_cast<uint64_t>(model->description().n_layers);
  Event event;
  for (uint64_t part = 0; part <= 4 * n_layers; ++part) {
    unwrap(g->next(&event));
    ASSERT_EQ(event.type, EventType::progress);
    EXPECT_EQ(event.done, part / n_layers * 16 + part % n_layers * 16 / n_layers);
    EXPECT_EQ(event.total, 64u);
  }
  unwrap(g->next(&event));
  EXPECT_EQ(event.type, EventType::token);
}

// Cancelled, or freed, in a pause: the session keeps whole chunks, and the bits are right afterwards.
TEST(EnginePromptInParts, NothingStaysOfAChunkThatIsGivenUp) {
  const auto model = open_demo(layer_by_layer());
  const std::vector<int32_t> prompt = tokens_of(100, 4);
  for (const char* policy : {"full", "snapkv", "h2o"}) {
    const PolicyMode mode = {policy, policy, {}, false};
    engine::SessionOptions options = with_mode(mode, 0.5);
    if (policy == std::string("full")) options.kv_share = 1;
    const auto session = unwrap(Session::open(model, options)), reference = unwrap(Session::open(model, options));
    engine::GenerateOptions generate;
    generate.max_tokens = 5;
    std::vector<float> expected, found;
    unwrap(reference->prefill(prompt, nullptr, nullptr));
    const std::vector<int32_t> tokens = greedy(reference.get(), 5, &expected);
    for (const bool cancels : {true, false}) {
      auto g = unwrap(Generation::proceed(session.get(), prompt, generate));
      Event event;
      do unwrap(g->next(&event));
      while (session->n_computed() < 16 || session->sequence().part_done() < 8);  // in the middle of the second chunk
      EXPECT_EQ(session->n_computed(), 16u);
      if (cancels) {
        g->cancel();
        unwrap(g->next(&event));
        EXPECT_EQ(event.finish, engine::Finish::cancelled);
      } else {
        g->abandon();
      }
      EXPECT_EQ(session->sequence().part_done(), 0u);
      EXPECT_EQ(session->n_computed(), 16u);
      EXPECT_EQ(as_vector(session->tokens()), std::vector<int32_t>(prompt.begin(), prompt.begin() + 16));
      if (!options.compressed()) {
        EXPECT_EQ(session->kv_used_bytes(), engine::kv_format(model->description(), options.kv_type).page_bytes()) << "one page";
      }
      unwrap(session->rewind(cancels ? 16 : 3));
    }
    unwrap(session->prefill({prompt.data() + 3, prompt.size() - 3}, nullptr, nullptr));
    EXPECT_EQ(greedy(session.get(), 5, &found), tokens) << policy;
    EXPECT_TRUE(same_bits(found, expected)) << policy;
  }
}

// The layers of a chunk that is given up have written their queries over earlier ones, and their weights to the sums. Decoding goes on
// behind the prompt before it as if the chunk had never begun.
TEST(EnginePromptInParts, DecodingGoesOnBehindAChunkThatIsGivenUp) {
  const auto model = open_demo(layer_by_layer());
  const std::vector<int32_t> prompt = tokens_of(100, 4), more = tokens_of(40, 5);
  for (const char* policy : {"snapkv", "auto", "h2o", "quest"}) {
    const PolicyMode mode = {policy, policy, {}, false};
    const engine::SessionOptions options = with_mode(mode, 0.3);
    const auto session = unwrap(Session::open(model, options)), reference = unwrap(Session::open(model, options));
    for (Session* s : {session.get(), reference.get()}) unwrap(s->prefill(prompt, nullptr, nullptr));
    for (int part = 0; part < model->description().n_layers / 2; ++part)
      EXPECT_FALSE(
          unwrap(session->sequence().prefill_part({more.data(), session->sequence().next_chunk(more.size())}, nullptr, false, nullptr)));
    EXPECT_GT(session->sequence().part_done(), 0u);
    EXPECT_EQ(session->sequence().stage(), engine::Sequence::Stage::chunk);
    EXPECT_EQ(session->sequence().read_behind({}).code(), Code::internal) << "it does one thing at a time";
    EXPECT_EQ(session->sequence().stage(), engine::Sequence::Stage::chunk);
    session->sequence().drop_part();
    EXPECT_EQ(session->sequence().part_done(), 0u);
    EXPECT_EQ(session->sequence().stage(), engine::Sequence::Stage::ready);
    std::vector<float> expected, found;
    for (int32_t token : {5, 6, 7, 8}) {
      feed(session.get(), token), feed(reference.get(), token);
      const std::vector<float> a = as_vector(session->logits()), b = as_vector(reference->logits());
      found.insert(found.end(), a.begin(), a.end()), expected.insert(expected.end(), b.begin(), b.end());
    }
    EXPECT_TRUE(same_bits(found, expected)) << policy;
  }
}

TEST(EnginePromptInParts, ACancelledChunkGivesItsPagesBack) {
  const auto model = open_demo(layer_by_layer());
  const auto session = open_session(model, 320, KvType::f16, 64);
  const auto g = unwrap(Generation::proceed(session.get(), tokens_of(200, 7), {}));
  Event event;
  do unwrap(g->next(&event));
  while (session->n_computed() < 64 ||
         session->sequence().part_done() == 0);  // in the middle of the second chunk, which has a page of its own
  const uint64_t page = engine::kv_format(model->description(), KvType::f16).page_bytes();
  EXPECT_EQ(session->kv_used_bytes(), 2 * page);
  g->cancel();
  unwrap(g->next(&event));
  EXPECT_EQ(session->kv_used_bytes(), page);
}

// One call computes a long chunk on a thread. Another session's step that is asked for meanwhile does not wait for the chunk's end: the
// thread that asks after it sees the step's token, and the chunk between two layers.
TEST(EnginePromptInParts, AnotherThreadsTokenComesBetweenTwoLayers) {
  const auto model = open_demo(layer_by_layer());
  const auto a = open_session(model, 320, KvType::f16, 16), b = open_session(model, 320, KvType::f16, 16);
  unwrap(b->prefill(tokens_of(16, 5), nullptr, nullptr));
  b->push_generated(7);
  engine::Runtime& runtime = model->runtime();
  std::array<std::thread, 3> threads;
  const auto asks = [&](size_t i, auto work) {
    threads[i] = std::thread(work);
    while (runtime.turns().n_waiting() <= i) std::this_thread::yield();
  };
  uint32_t done = 99, part = 0, with_token = 0;
  {
    const Turn turn = runtime.take_turn();
    asks(0, [&] { unwrap(a->prefill(tokens_of(16, 6), nullptr, nullptr)); });
    asks(1, [&] { unwrap(b->decode()); });
    asks(2, [&] {
      const Turn last = runtime.take_turn();
      done = a->n_computed(), part = a->sequence().part_done(), with_token = b->n_computed();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(with_token, 17u);
  EXPECT_EQ(done, 0u) << "the token came in the middle of the first chunk";
  EXPECT_GT(part, 0u);
  EXPECT_EQ(a->n_computed(), 16u);
}

// Layers that keep nothing of a token compute a prompt's wanted rows alone: the last three of gemma4-alike, and an FFN at the end of
// nemotron-h. The logits of all rows need all of them.
TEST(PromptTail, TheLastRowIsThatOfAllRows) {
  for (const char* spec : {"gemma4", "gemma4-alike", "nemotron-h", "qwen3moe"})
    for (const KvType kv : {KvType::f16, KvType::f32}) {
      const auto model = open_spec(spec), cut = open_spec(spec, layer_by_layer());
      const std::vector<int32_t> prompt = random_tokens(*model, 130, 4);
      const auto n_vocab = static_cast<size_t>(model->description().n_vocab);
      const auto of_all = open_session(model, 320, kv, 64);
      std::vector<float> logits(prompt.size() * n_vocab), expected;
      unwrap(of_all->prefill(prompt, nullptr, logits.data()));
      const std::vector<float> last(logits.end() - static_cast<ptrdiff_t>(n_vocab), logits.end());
      const std::vector<float> embedding = as_vector(of_all->sequence().embedding());
      greedy(of_all.get(), 6, &expected);
      for (const uint32_t chunk : {1u, 7u, 64u, 200u})
        for (const auto& from : {model, cut}) {
          const auto session = open_session(from, 320, kv, chunk);
          unwrap(session->prefill(prompt, nullptr, nullptr));
          EXPECT_TRUE(same_bits(as_vector(session->logits()), last)) << spec << ' ' << chunk;
          EXPECT_TRUE(same_bits(as_vector(session->sequence().embedding()), embedding)) << spec << ' ' << chunk;
          std::vector<float> found;
          greedy(session.get(), 6, &found);
          EXPECT_TRUE(same_bits(found, expected)) << spec << ' ' << chunk;
        }
    }
}

}  // namespace
}  // namespace orrery::prompt_pace_test
