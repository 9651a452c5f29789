// Guessed tokens: the index that guesses them, and answers that are the same with guesses and without. Every event, log-probability and
// logit, whatever ends the answer, and everything that a session does afterwards.
#include <gtest/gtest.h>

#include <functional>
#include <optional>

#include "runtime/cpu/cpu_backend.h"
#include "runtime/engine/session/session_file.h"
#include "tests/support/engine_fixture.h"
#include "tests/support/policy_sessions.h"
#include "tests/support/random_blocks.h"
#include "tests/support/shared.h"

namespace orrery::guesses_test {
namespace {

using namespace orrery::testing;
using engine::Event;
using engine::EventType;
using engine::Finish;
using engine::GenerateOptions;
using engine::Generation;
using engine::Ngrams;
using engine::Session;
using engine::Speculate;

// ---- The index ----

// Each guessed token adds this share of a step.
engine::GuessCosts each(double cost) {
  engine::GuessCosts costs;
  for (size_t i = 0; i < costs.size(); ++i) costs[i] = cost * static_cast<double>(i + 1);
  return costs;
}
std::vector<int32_t> guess_of(Ngrams* ngrams, const std::vector<int32_t>& tokens, uint32_t most = 7, double cost = 0.0) {
  ngrams->read(tokens, std::vector<uint8_t>(tokens.size(), 0));
  return as_vector(ngrams->guess(tokens, most, each(cost)));
}
std::vector<int32_t> fresh_guess(const std::vector<int32_t>& tokens, uint32_t most = 7) {
  Ngrams ngrams(64);
  return guess_of(&ngrams, tokens, most);
}

TEST(EngineNgrams, TheLongestMatchIsContinuedAndAmongEqualOnesTheNewest) {
  EXPECT_EQ(fresh_guess({1, 2, 3, 4, 5, 1, 2, 3}, 2), (std::vector<int32_t>{4, 5}));
  EXPECT_EQ(fresh_guess({1, 2, 3, 4, 5, 1, 2, 3}), (std::vector<int32_t>{4, 5, 1, 2, 3, 4, 5})) << "behind the end it repeats itself";
  EXPECT_EQ(fresh_guess({7, 1, 2, 9, 8, 1, 2, 5, 7, 1, 2}, 1), (std::vector<int32_t>{9})) << "three tokens match, not two";
  EXPECT_EQ(fresh_guess({7, 1, 2, 9, 8, 1, 2, 5, 6, 1, 2}, 1), (std::vector<int32_t>{5})) << "the newest of equal matches";
  EXPECT_EQ(fresh_guess({4, 4, 4}, 3), (std::vector<int32_t>{4, 4, 4}));
  for (const std::vector<int32_t>& none : {std::vector<int32_t>{}, {1}, {1, 2}, {1, 2, 3, 4}, {1, 9, 2, 9, 3}})
    EXPECT_TRUE(fresh_guess(none).empty());
  EXPECT_TRUE(fresh_guess({1, 2, 1, 2}, 0).empty());
}

// A guess always continues an earlier place of the last two tokens, also after parts of the sequence were forgotten and replaced.
TEST(EngineNgrams, ForgottenTokensAreNeverFoundAgain) {
  Random random(3);
  Ngrams ngrams(300);
  std::vector<int32_t> tokens;
  int n_guesses = 0;
  for (int round = 0; round < 400; ++round) {
    const size_t keep = random.below(4) == 0 ? random.below(tokens.size() + 1) : tokens.size();
    ngrams.truncate(tokens, static_cast<uint32_t>(keep));
    tokens.resize(keep);
    for (uint64_t n = random.below(12); n > 0 && tokens.size() < 300; --n) tokens.push_back(static_cast<int32_t>(random.below(5)));
    const std::vector<int32_t> guess = guess_of(&ngrams, tokens, 3);
    if (guess.empty()) continue;
    ++n_guesses;
    std::vector<int32_t> all = tokens;
    all.insert(all.end(), guess.begin(), guess.end());
    const size_t end = tokens.size();
    bool found = false;
    for (size_t at = 2; at < end && !found; ++at)
      found = all[at - 2] == all[end - 2] && all[at - 1] == all[end - 1] &&
              std::equal(guess.begin(), guess.end(), all.begin() + static_cast<ptrdiff_t>(at));
    ASSERT_TRUE(found) << "round " << round;
  }
  EXPECT_GT(n_guesses, 200);
}

// A match that is wrong again and again guesses nothing; it is still judged, and guesses again when it has become right.
TEST(EngineNgrams, GuessesRestWhereTheyDoNotPay) {
  constexpr double kCost = 0.2;
  Ngrams ngrams(4096);
  std::vector<int32_t> tokens;
  std::vector<uint8_t> generated;
  const auto add = [&](int32_t token) {
    tokens.push_back(token), generated.push_back(1);
    ngrams.read(tokens, generated);
    return ngrams.guess(tokens, 7, each(kCost)).size();
  };
  for (int32_t i = 0; i < 60; ++i) add(1), add(2), add(100 + i);  // behind 1, 2 there is always another token
  add(1);
  EXPECT_EQ(add(2), 0u);
  size_t most = 0;
  for (int32_t i = 0; i < 60; ++i) add(3), most = std::max(most, add(4));
  EXPECT_EQ(most, 7u);
  // A guessed token that costs as much as a step never pays.
  EXPECT_TRUE(ngrams.guess(tokens, 7, each(1.0)).empty());
}

// ---- Sessions ----

std::unique_ptr<Session> session_of(const std::shared_ptr<engine::LanguageModel>& model, Speculate speculate, uint32_t n_context = 256,
                                    KvType kv = KvType::f16, uint32_t most = 0) {
  engine::SessionOptions options;
  options.n_context = n_context;
  options.chunk_tokens = 16;
  options.kv_type = kv;
  options.speculate = speculate;
  options.speculate_tokens = most;
  options.overflow = engine::Overflow::drop_oldest;
  return unwrap(Session::open(model, options));
}

std::shared_ptr<engine::LanguageModel> demo_model() {
  return unwrap(
      engine::LanguageModel::open(unwrap(engine::Runtime::create(runtime_options())), source_path("samples/models/demo-q8_0.gguf"), {}));
}

// A session whose resident KV drafts, although it would not pay for such small models.
std::unique_ptr<Session> drafting_session(const std::shared_ptr<engine::LanguageModel>& model, uint32_t n_context,
                                          const char* policy = "auto", uint32_t most = 3, KvType kv = KvType::f16,
                                          std::optional<KvType> device = {}) {
  engine::SessionOptions options;
  options.n_context = n_context;
  options.chunk_tokens = 16;
  options.speculate = Speculate::policy;
  options.speculate_tokens = most;
  options.guess_costs = each(0.01);
  options.overflow = engine::Overflow::drop_oldest;
  options.policy = policy;
  options.kv_share = 0.3;
  options.kv_type = kv, options.device_kv_type = device;
  return unwrap(Session::open(model, options));
}

// A session for which a model of rounded weights drafts: most of its guesses are right.
std::unique_ptr<Session> model_drafting_session(const std::shared_ptr<engine::LanguageModel>& model, uint32_t n_context) {
  const TempDir dir;
  engine::SessionOptions options;
  options.n_context = n_context;
  options.chunk_tokens = 16;
  options.speculate = Speculate::draft;
  const std::string draft = dir.write("draft.gguf", named_model_gguf("llama3-factors", {TensorType::f16, false}));
  options.draft_model = unwrap(engine::LanguageModel::open(model->runtime_ptr(), draft, {}));
  options.guess_costs = each(0.01);
  options.overflow = engine::Overflow::drop_oldest;
  return unwrap(Session::open(model, options));
}

// A session whose model has a trained head.
std::unique_ptr<Session> head_session(const std::shared_ptr<engine::LanguageModel>& model, uint32_t n_context) {
  engine::SessionOptions options;
  options.n_context = n_context;
  options.chunk_tokens = 16;
  options.speculate = Speculate::mtp;
  options.guess_costs = each(0.01);
  options.overflow = engine::Overflow::drop_oldest;
  return unwrap(Session::open(model, options));
}

// A session that guesses by the kind.
std::unique_ptr<Session> guessing_session(const std::shared_ptr<engine::LanguageModel>& model, uint32_t n_context, Speculate speculate) {
  if (speculate == Speculate::policy) return drafting_session(model, n_context);
  if (speculate == Speculate::mtp) return head_session(model, n_context);
  return speculate == Speculate::draft ? model_drafting_session(model, n_context) : session_of(model, speculate, n_context);
}

void expect_same_state(Session* a, Session* b) {
  EXPECT_EQ(as_vector(a->tokens()), as_vector(b->tokens()));
  EXPECT_EQ(a->n_computed(), b->n_computed());
  if (!b->resident()) {
    EXPECT_EQ(a->kv_used_bytes(), b->kv_used_bytes() - (b->decoder().draft() ? b->decoder().draft()->used_bytes() : 0));
  }
  ASSERT_EQ(a->sequence().has_logits(), b->sequence().has_logits());
  if (!a->sequence().has_logits()) return;
  EXPECT_TRUE(same_bits(as_vector(a->logits()), as_vector(b->logits())));
  EXPECT_TRUE(same_bits(as_vector(a->sequence().embedding()), as_vector(b->sequence().embedding())));
}

// Tokens that repeat themselves, with a wrong one now and then: the guesses before it are right, the others are not.
std::vector<int32_t> stumbling(int32_t n_vocab, size_t n) {
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < n; ++i) tokens.push_back(static_cast<int32_t>(i % 23 == 17 ? 3 + i % 40 : 5 + i % 11) % n_vocab);
  return tokens;
}

struct Case {
  const char* name;
  const char* spec;  // null: the demo model
  TensorType type;
  KvType kv;
};
class EngineGuessedRows : public ::testing::TestWithParam<Case> {};

// Every row of a step with guesses has the bits of a step of its own: across the ends of pages, on every instruction set (the demo model:
// on the machine's own).
TEST_P(EngineGuessedRows, HaveTheBitsOfStepsOfTheirOwn) {
  std::vector<const char*> paths = {"auto"};
  if (GetParam().spec) paths.assign(cpu::available_paths().begin(), cpu::available_paths().end());
  for (const char* path : paths) {
    SCOPED_TRACE(path);
    const engine::RuntimeOptions runtime = runtime_options(2, path);
    const auto model = GetParam().spec ? open_spec(GetParam().spec, runtime, {GetParam().type, false})
                                       : unwrap(engine::LanguageModel::open(unwrap(engine::Runtime::create(runtime)),
                                                                            source_path("samples/models/demo-q8_0.gguf"), {}));
    const std::vector<int32_t> tokens = stumbling(model->description().n_vocab, 150);
    const auto off = session_of(model, Speculate::off, 256, GetParam().kv), ngram = session_of(model, Speculate::ngram, 256, GetParam().kv);
    for (const auto& session : {off.get(), ngram.get()}) unwrap(session->prefill({tokens.data(), 40}, nullptr, nullptr));
    ASSERT_NO_FATAL_FAILURE(expect_same_rows(off.get(), ngram.get(), tokens, 40));
    EXPECT_GT(ngram->stats().accepted_tokens, 20u);
    EXPECT_GT(ngram->stats().guessed_tokens, ngram->stats().accepted_tokens) << "some guesses were wrong";
    EXPECT_EQ(ngram->stats().generated_tokens, 110u);
    ngram->sequence().drop_ahead();
    expect_same_state(off.get(), ngram.get());
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, EngineGuessedRows,
    ::testing::Values(
        Case{"demo_f16", nullptr, TensorType::q8_0, KvType::f16}, Case{"demo_q8", nullptr, TensorType::q8_0, KvType::q8_0},
        Case{"demo_k8v4", nullptr, TensorType::q8_0, KvType::k8v4}, Case{"q4_k_f32", "llama-256", TensorType::q4_k, KvType::f32},
        Case{"f16_f16", "qwen3", TensorType::f16, KvType::f16}, Case{"window", "phi3-window", TensorType::q8_0, KvType::f16},
        Case{"delta_net", "qwen35", TensorType::f16, KvType::f16}, Case{"delta_net_grouped", "qwen3next", TensorType::f16, KvType::f16},
        Case{"delta_net_experts", "qwen35moe", TensorType::f16, KvType::f16},
        Case{"delta_net_flags", "qwen35-flags", TensorType::f32, KvType::f32}, Case{"short_conv", "lfm2", TensorType::f16, KvType::f16},
        Case{"short_conv_experts", "lfm2moe", TensorType::f16, KvType::f16}, Case{"mamba2", "nemotron-h", TensorType::f16, KvType::f16},
        Case{"mamba2_odd", "nemotron-h-odd", TensorType::f32, KvType::f16}),
    [](const auto& tested) { return std::string(tested.param.name); });

// ---- Answers ----

// Everything that an answer tells but progress, in order, as text; log-probabilities by their bits.
struct Told {
  std::vector<std::string> events;
  Finish finish = Finish::none;
};
std::string bits_of(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return std::to_string(bits);
}
Told tell(Generation* g, int cancel_after = -1) {
  Told told;
  Event event;
  int n_tokens = 0;
  do {
    unwrap(g->next(&event));
    std::string line = std::to_string(static_cast<uint32_t>(event.type)) + " " + std::string(event.text);
    if (event.type == EventType::progress) continue;  // how often a prompt tells goes by the clock
    if (event.type == EventType::token) {
      line += " " + std::to_string(event.token) + " " + bits_of(event.logprob);
      for (const engine::TokenLogprob& top : event.top) line += " " + std::to_string(top.token) + ":" + bits_of(top.logprob);
      if (++n_tokens == cancel_after) g->cancel();
    }
    if (event.type == EventType::done)
      line += std::to_string(static_cast<uint32_t>(event.finish)) + " " + std::to_string(event.stop_index) + " " +
              std::to_string(event.prompt_tokens) + " " + std::to_string(event.reused_tokens) + " " +
              std::to_string(event.generated_tokens);
    told.events.push_back(std::move(line));
  } while (event.type != EventType::done);
  told.finish = event.finish;
  return told;
}

constexpr const char* kTemplate =
    "{% for m in messages %}<s>{{ m.role }}:{{ m.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant:{% endif %}";

// One session without guesses and one with them, which are asked the same.
class Pair {
 public:
  explicit Pair(const std::shared_ptr<engine::LanguageModel>& model, uint32_t n_context = 256, Speculate speculate = Speculate::ngram)
      : off(session_of(model, Speculate::off, n_context)), ngram(guessing_session(model, n_context, speculate)) {}

  void say(const std::string& content) {
    for (Session* session : {off.get(), ngram.get()}) {
      text::Map message;
      message.set("role", text::Value::string("user"));
      message.set("content", text::Value::string(content));
      session->conversation().messages.push_back(text::Value::map(std::move(message)));
    }
  }
  // Both answer; their events and their sessions' states are the same. Returns the reason for the end.
  Finish answer(const GenerateOptions& options, int cancel_after = -1) {
    const Told a = tell(unwrap(Generation::answer(off.get(), options)).get(), cancel_after);
    const Told b = tell(unwrap(Generation::answer(ngram.get(), options)).get(), cancel_after);
    EXPECT_EQ(a.events, b.events);
    expect_same_state(off.get(), ngram.get());
    return a.finish;
  }
  void proceed(const std::vector<int32_t>& tokens, const GenerateOptions& options) {
    const Told a = tell(unwrap(Generation::proceed(off.get(), tokens, options)).get());
    const Told b = tell(unwrap(Generation::proceed(ngram.get(), tokens, options)).get());
    EXPECT_EQ(a.events, b.events);
    expect_same_state(off.get(), ngram.get());
  }
  uint64_t guessed() const { return ngram->stats().guessed_tokens; }
  uint64_t accepted() const { return ngram->stats().accepted_tokens; }

  std::unique_ptr<Session> off, ngram;
};

std::shared_ptr<engine::LanguageModel> chat_model(const char* spec = "llama3-factors") {
  return open_bytes(chat_model_gguf(spec, kTemplate));
}

// Greedy, without the tokens that are no text. Random models then soon repeat themselves.
GenerateOptions plain(uint32_t max_tokens) {
  GenerateOptions options;
  options.max_tokens = max_tokens;
  options.sampling.bias = {{0, -INFINITY}, {1, -INFINITY}, {2, -INFINITY}};
  return options;
}

// A hook that makes the answer repeat itself, six tokens after six, and stumble at every thirteenth token.
int32_t lean(void*, float* logits, size_t, const int32_t* tokens, size_t n) {
  const int32_t token = n % 13 == 12 || n < 6 ? static_cast<int32_t>(60 + n % 7) : tokens[n - 6];
  logits[static_cast<size_t>(token)] += 20.0f;
  return 0;
}
GenerateOptions repeating(uint32_t max_tokens) {
  GenerateOptions options = plain(max_tokens);
  options.sampling.hook = &lean;
  return options;
}

// A hook that counts its calls and adds up all that it sees.
struct Hook {
  uint64_t calls = 0, seen = 0;
  static int32_t call(void* user, float* logits, size_t n_vocab, const int32_t* tokens, size_t n_tokens) {
    auto* self = static_cast<Hook*>(user);
    ++self->calls;
    for (size_t i = 0; i < n_tokens; ++i) self->seen = self->seen * 31 + static_cast<uint64_t>(tokens[i]);
    logits[static_cast<size_t>(tokens[n_tokens - std::min<size_t>(n_tokens, 5)]) % n_vocab] += 30.0f;
    return 0;
  }
};

constexpr const char* kLong =
    "go on go on go on go on and tell of all the towers and lamps of the town by the sea, one after another, until the last is told";

struct GuessKind {
  const char* name;
  Speculate speculate;
  const char* spec;
};
class EngineGuessKinds : public ::testing::TestWithParam<GuessKind> {
 protected:
  // Drafts do not know the hook that makes an answer repeat itself.
  static GenerateOptions options(uint32_t max_tokens) { return kind() == Speculate::ngram ? repeating(max_tokens) : plain(max_tokens); }
  static Speculate kind() { return GetParam().speculate; }
};

TEST(EngineGuesses, AnswersAreTheSameForEverySampler) {
  const auto model = chat_model();
  const std::function<void(GenerateOptions*)> changes[] = {
      [](GenerateOptions*) {},
      [](GenerateOptions* o) { o->sampling.temperature = 0.3f, o->sampling.n_logprobs = 3; },
      [](GenerateOptions* o) { o->sampling.temperature = 1.0f, o->sampling.top_k = 2; },
      [](GenerateOptions* o) { o->sampling.temperature = 0.7f, o->sampling.top_p = 0.5f; },
      [](GenerateOptions* o) { o->sampling.temperature = 1.5f, o->sampling.min_p = 0.3f; },
      [](GenerateOptions* o) { o->sampling.repetition_penalty = 1.05f, o->sampling.frequency_penalty = 0.05f; },
      [](GenerateOptions* o) { o->sampling.presence_penalty = 0.5f, o->sampling.penalty_tokens = 4; },
      [](GenerateOptions* o) {
        o->sampling.bias.push_back({50, 8.0f}), o->sampling.temperature = 1.0f;
      },
  };
  uint64_t accepted = 0, rejected = 0;
  for (const auto& change : changes)
    for (const uint64_t seed : {1u, 2u}) {
      Pair pair(model);
      pair.say("one two three one two three one two");
      GenerateOptions options = plain(60);
      options.sampling.seed = seed;
      change(&options);
      EXPECT_EQ(pair.answer(options), Finish::length);
      accepted += pair.accepted(), rejected += pair.guessed() - pair.accepted();
    }
  EXPECT_GT(accepted, 40u);
  EXPECT_GT(rejected, 20u);
}

TEST(EngineGuesses, TheDemoModelAnswersTheSame) {
  Pair pair(demo_model(), 512);
  std::vector<int32_t> tokens;
  unwrap(pair.off->model().tokenizer().encode("The lamp of the tower is red. The lamp of the tower is red. The lamp", {}, &tokens));
  for (const float temperature : {0.0f, 0.6f}) {
    GenerateOptions options;
    options.max_tokens = 80;
    options.ignore_end = true;
    options.sampling.temperature = temperature;
    options.sampling.n_logprobs = 2;
    pair.proceed(tokens, options);
  }
  EXPECT_GT(pair.accepted(), 10u);
}

TEST_P(EngineGuessKinds, AHookSeesTheSameCalls) {
  const auto model = chat_model(GetParam().spec);
  Pair pair(model, 512, kind());
  pair.say(kLong);
  Hook hooks[2];
  std::vector<std::string> events[2];
  for (size_t i = 0; i < 2; ++i) {
    GenerateOptions options = plain(70);
    options.sampling.temperature = 0.5f;
    options.sampling.hook = &Hook::call;
    options.sampling.hook_user = &hooks[i];
    events[i] = tell(unwrap(Generation::answer(i ? pair.ngram.get() : pair.off.get(), options)).get()).events;
  }
  EXPECT_EQ(events[0], events[1]);
  EXPECT_EQ(hooks[0].calls, hooks[1].calls);
  EXPECT_EQ(hooks[0].seen, hooks[1].seen);
  EXPECT_GT(pair.guessed(), 20u);
}

// Wherever an answer ends, also in the middle of a step's guesses, the session is in the same state, and answers the next turn alike.
TEST_P(EngineGuessKinds, AnAnswerMayEndAnywhere) {
  const auto model = chat_model(GetParam().spec);
  uint64_t accepted = 0;
  for (uint32_t n = 1; n <= 24; ++n)
    for (const bool cancels : {false, true}) {
      SCOPED_TRACE(std::to_string(n) + (cancels ? " cancelled" : ""));
      Pair pair(model, 512, kind());
      pair.say(kLong);
      EXPECT_EQ(pair.answer(options(cancels ? 0 : n), cancels ? static_cast<int>(n) : -1), cancels ? Finish::cancelled : Finish::length);
      pair.say("and on");
      pair.answer(options(6));
      accepted += pair.accepted();
    }
  EXPECT_GT(accepted, 100u);
}

TEST(EngineGuesses, AStopStringMayLieInsideAGuess) {
  const auto model = chat_model();
  Pair free(model);
  free.say("go on go on go on go on");
  free.answer(repeating(40));
  const text::Tokenizer& tokenizer = model->tokenizer();
  const std::vector<int32_t> tokens = as_vector(free.off->tokens().last(40));
  int stopped = 0;
  for (size_t first = 4; first + 3 < tokens.size(); first += 3) {
    GenerateOptions options = repeating(40);
    options.stop = {tokenizer.decode({tokens.data() + first, 3}, true)};
    Pair pair(model);
    pair.say("go on go on go on go on");
    stopped += pair.answer(options) == Finish::stop;
  }
  EXPECT_GT(stopped, 5);
}

TEST_P(EngineGuessKinds, TheContextIsFilledToItsLastTokenAndOldTurnsMakeRoom) {
  const auto model = chat_model(GetParam().spec);
  for (uint32_t n_context = 256; n_context < 264; ++n_context) {
    Pair pair(model, n_context, kind());
    pair.say(kLong);
    EXPECT_EQ(pair.answer(options(0)), Finish::context);
    EXPECT_EQ(pair.ngram->n_computed(), n_context);
    EXPECT_GT(pair.accepted(), 5u);
  }
  Pair pair(model, 160, kind());
  for (int turn = 0; turn < 6; ++turn) {
    pair.say("turn " + std::to_string(turn) + " of a long talk of many turns");
    pair.answer(options(50));
  }
  EXPECT_GT(pair.ngram->conversation().n_dropped, 0u);
}

// Rewinding, forking, evaluating, saving and loading behind an answer that ended among guesses.
TEST_P(EngineGuessKinds, WhatASessionDoesAfterwardsIsTheSame) {
  const auto model = chat_model(GetParam().spec);
  Random random(5);
  for (int round = 0; round < 12; ++round) {
    SCOPED_TRACE(round);
    Pair pair(model, 512, kind());
    pair.say(kLong);
    pair.answer(options(0), 3 + static_cast<int>(random.below(30)));
    const auto n = static_cast<uint32_t>(random.below(pair.off->n_computed()) + 1);
    switch (round % 4) {
      case 0: unwrap(pair.off->rewind(n)), unwrap(pair.ngram->rewind(n)); break;
      case 1: {
        auto off = unwrap(pair.off->fork()), ngram = unwrap(pair.ngram->fork());
        pair.say("the session goes on");
        pair.answer(options(20));  // its pages are copied, the forks' stay
        pair.off = std::move(off), pair.ngram = std::move(ngram);
        break;
      }
      case 2: {
        const std::vector<int32_t> more = {60, 61, 62, 60, 61};
        unwrap(pair.off->prefill(more, nullptr, nullptr)), unwrap(pair.ngram->prefill(more, nullptr, nullptr));
        break;
      }
      default:
        for (std::unique_ptr<Session>* session : {&pair.off, &pair.ngram}) {
          std::vector<std::byte> file;
          unwrap(engine::SessionFile::save(session->get(), [&](Span<const std::byte> bytes) {
            file.insert(file.end(), bytes.begin(), bytes.end());
            return ok_status();
          }));
          EXPECT_EQ(file.size(), unwrap(engine::SessionFile::size(session->get())));
          auto loaded = guessing_session(model, 512, (*session)->options().speculate);
          unwrap(loaded->prefill(std::vector<int32_t>{60, 61, 60, 61}, nullptr, nullptr));  // other tokens before
          unwrap(engine::SessionFile::load(loaded.get(), file, "memory"));
          *session = std::move(loaded);
        }
    }
    unwrap(pair.off->sequence().refresh_logits()), unwrap(pair.ngram->sequence().refresh_logits());
    expect_same_state(pair.off.get(), pair.ngram.get());
    pair.proceed(as_vector(pair.off->tokens()), options(30));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, EngineGuessKinds,
    ::testing::Values(GuessKind{"ngram", Speculate::ngram, "llama3-factors"}, GuessKind{"policy", Speculate::policy, "llama3-factors"},
                      GuessKind{"draft", Speculate::draft, "llama3-factors"}, GuessKind{"delta_net", Speculate::ngram, "qwen35"},
                      GuessKind{"short_conv", Speculate::ngram, "lfm2"}, GuessKind{"mamba2", Speculate::ngram, "nemotron-h"},
                      GuessKind{"head", Speculate::mtp, "qwen35-mtp"}),
    [](const auto& tested) { return std::string(tested.param.name); });

// The resident KV drafts, and the answer is full attention's, for every sampler; under each policy that may draft.
TEST(EngineDrafts, AnswersAreThoseOfFullAttention) {
  const auto model = chat_model();
  Random random(9);
  std::vector<int32_t> prompt(170);
  for (int32_t& token : prompt) token = static_cast<int32_t>(60 + random.below(30));
  for (const char* policy : {"auto", "snapkv", "pyramidkv", "adakv", "adapyramid", "cake"}) {
    SCOPED_TRACE(policy);
    uint64_t accepted = 0, guessed = 0;
    for (int i = 0; i < 4; ++i) {
      GenerateOptions options = plain(90);
      options.sampling.n_logprobs = 2;
      options.sampling.seed = static_cast<uint64_t>(i);
      options.sampling.temperature = 0.4f * static_cast<float>(i);
      if (i == 1) options.sampling.frequency_penalty = 0.2f;
      if (i == 2) options.sampling.top_p = 0.6f;
      const auto full = session_of(model, Speculate::off, 300);
      const auto drafts = drafting_session(model, 300, policy, static_cast<uint32_t>(1 + 2 * i));
      const Told expected = tell(unwrap(Generation::proceed(full.get(), prompt, options)).get());
      EXPECT_EQ(tell(unwrap(Generation::proceed(drafts.get(), prompt, options)).get()).events, expected.events);
      expect_same_state(full.get(), drafts.get());
      EXPECT_GT(drafts->resident()->report().n_settled, 0u);
      accepted += drafts->stats().accepted_tokens, guessed += drafts->stats().guessed_tokens;
    }
    EXPECT_GT(accepted, 30u);
    EXPECT_GT(guessed, accepted);
  }
}

// Whatever type the drafts read: pages verify the tokens, in their own type and form.
TEST(EngineDrafts, AnswersAreThoseOfFullAttentionInEveryType) {
  const auto model = open_spec("qwen3");
  ASSERT_EQ(model->description().kv().head_dim % 32, 0);
  const auto prompt = random_tokens(*model, 170, 9);
  for (const auto& [kv, device] :
       {std::pair(KvType::f16, KvType::q4_0), std::pair(KvType::f16, KvType::k8v4), std::pair(KvType::q8_0, KvType::k8v4),
        std::pair(KvType::k8v4, KvType::k8v4), std::pair(KvType::k8v4, KvType::q4_0)}) {
    SCOPED_TRACE(std::string(kv_type_name(kv)) + ", drafts of " + kv_type_name(device));
    const auto full = session_of(model, Speculate::off, 300, kv), drafts = drafting_session(model, 300, "auto", 3, kv, device);
    EXPECT_EQ(tell(unwrap(Generation::proceed(drafts.get(), prompt, plain(90))).get()).events,
              tell(unwrap(Generation::proceed(full.get(), prompt, plain(90))).get()).events);
    expect_same_state(full.get(), drafts.get());
    EXPECT_EQ(drafts->resident()->format().type, device);
    EXPECT_GT(drafts->stats().accepted_tokens, 10u);
  }
}

// Full KV drafts what full attention gives: every draft is right. 24 decoded tokens are six steps with three guesses each.
TEST(EngineDrafts, AreCounted) {
  const auto model = chat_model();
  engine::SessionOptions options;
  options.n_context = 256;
  options.policy = "auto";
  options.speculate = Speculate::policy;
  options.speculate_tokens = 3;
  options.guess_costs = each(0.01);
  options.device_kv_type = KvType::f16;
  const auto session = unwrap(Session::open(model, options));
  tell(unwrap(Generation::proceed(session.get(), std::vector<int32_t>{1, 50, 60, 70}, plain(25))).get());
  EXPECT_EQ(session->stats().generated_tokens, 24u);
  EXPECT_EQ(session->stats().guessed_tokens, 18u);
  EXPECT_EQ(session->stats().accepted_tokens, 18u);
}

// Drafts attend to the slots, so a session that drafts settles at once where another one settles in parts.
TEST(EngineDrafts, SettleAtOnce) {
  const auto model = chat_model();
  for (const Speculate speculate : {Speculate::off, Speculate::policy}) {
    engine::SessionOptions options;
    options.n_context = 300;
    options.policy = "auto";
    options.policy_options = {{"steps", "4"}, {"tail", "40"}};
    options.kv_share = 0.5;
    options.speculate = speculate;
    options.speculate_tokens = 3;
    options.guess_costs = each(0.01);
    const auto session = unwrap(Session::open(model, options));
    std::vector<int32_t> prompt(170);
    for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<int32_t>(60 + i * i % 30);
    unwrap(session->prefill(prompt, nullptr, nullptr));
    session->push_generated(61);
    unwrap(session->decode(nullptr, nullptr, 3));
    EXPECT_EQ(session->stats().guessed_tokens, speculate == Speculate::off ? 0u : 3u);
    EXPECT_EQ(session->resident()->settling(), speculate == Speculate::off);
    EXPECT_EQ(session->resident()->settled(), speculate == Speculate::policy);
    EXPECT_EQ(session->sequence().stage(), speculate == Speculate::off ? engine::Sequence::Stage::ready : engine::Sequence::Stage::ahead);
    EXPECT_EQ(session->tokens().size(), prompt.size() + 1) << "the drafted tokens are not the session's";
  }
}

std::vector<int32_t> cycle(size_t n) {
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < n; ++i) tokens.push_back(static_cast<int32_t>(60 + i % 8));
  return tokens;
}

// The next guess would be right, but for a token of another place.
TEST(EngineGuesses, ARewoundSessionHasNone) {
  const auto model = chat_model();
  const auto session = session_of(model, Speculate::ngram), fresh = session_of(model, Speculate::off);
  unwrap(session->prefill(cycle(40), nullptr, nullptr));
  session->push_generated(60);
  unwrap(session->decode(nullptr, nullptr, 7));
  ASSERT_GT(session->stats().guessed_tokens, 0u);  // 61, ...
  EXPECT_EQ(session->sequence().stage(), engine::Sequence::Stage::ahead);
  EXPECT_EQ(session->sequence().n_ahead(), session->stats().guessed_tokens);
  unwrap(session->rewind(33));
  EXPECT_EQ(session->sequence().stage(), engine::Sequence::Stage::ready);
  EXPECT_EQ(session->sequence().n_ahead(), 0u);
  unwrap(fresh->prefill(cycle(33), nullptr, nullptr));
  for (Session* s : {session.get(), fresh.get()}) s->push_generated(61), unwrap(s->decode());
  EXPECT_EQ(session->stats().accepted_tokens, 0u);
  expect_same_state(session.get(), fresh.get());

  // The index reads the new text where the cut tokens stood.
  std::vector<int32_t> other;
  for (int32_t i = 0; i < 50; ++i) other.push_back(70 + i % 20);
  unwrap(session->rewind(8));
  unwrap(session->prefill(other, nullptr, nullptr));
  session->push_generated(80);
  unwrap(session->decode(nullptr, nullptr, 7));
  EXPECT_GT(session->sequence().n_ahead(), 0u);
  // The last right guess leaves nothing ahead.
  for (int32_t token = 81; session->sequence().stage() == engine::Sequence::Stage::ahead; ++token) {
    ASSERT_LE(token, 88);
    session->push_generated(token);
    unwrap(session->decode());
    EXPECT_EQ(session->sequence().stage() == engine::Sequence::Stage::ahead, session->sequence().n_ahead() > 0);
  }
}

TEST(EngineGuesses, AnAnswerThatEndsGivesTheirPagesBack) {
  Pair pair(chat_model());
  for (const size_t n : {59u, 61u, 63u}) {  // guesses cross the end of a page
    GenerateOptions options = plain(0);
    options.sampling.hook = [](void*, float* logits, size_t, const int32_t* seen, size_t n_seen) -> int32_t {
      logits[60 + (seen[n_seen - 1] - 59) % 8] += 100.0f;
      return 0;
    };
    for (Session* session : {pair.off.get(), pair.ngram.get()}) tell(unwrap(Generation::proceed(session, cycle(n), options)).get(), 2);
    expect_same_state(pair.off.get(), pair.ngram.get());
  }
  EXPECT_GT(pair.guessed(), 6u);
}

// 40 tokens of a cycle of eight, and 16 more. The first comes from the prompt. Every match has more than 16 tokens and is right, so three
// steps guess three tokens each. The last step guesses two, because the answer ends behind them.
TEST(EngineGuesses, AreCounted) {
  const auto model = chat_model();
  const auto session = session_of(model, Speculate::ngram, 256, KvType::f16, 3);
  const std::vector<int32_t> tokens = cycle(40);
  GenerateOptions options = plain(16);
  options.sampling.hook = [](void*, float* logits, size_t n_vocab, const int32_t* seen, size_t n) -> int32_t {
    std::fill_n(logits, n_vocab, -1e30f);
    logits[60 + (seen[n - 1] - 59) % 8] = 0.0f;
    return 0;
  };
  tell(unwrap(Generation::proceed(session.get(), tokens, options)).get());
  EXPECT_EQ(session->stats().generated_tokens, 15u);
  EXPECT_EQ(session->stats().guessed_tokens, 11u);
  EXPECT_EQ(session->stats().accepted_tokens, 11u);
}

TEST(EngineGuesses, AreRefusedWhereSeveralRowsWouldNotBeExact) {
  const auto model = chat_model();
  engine::SessionOptions options;
  options.n_context = 128;
  options.speculate = Speculate::ngram;
  options.speculate_tokens = 8;
  EXPECT_EQ(Session::open(model, options).status().code(), Code::invalid_argument);
  options.speculate_tokens = 0;
  options.policy = "snapkv";
  options.kv_share = 0.5;
  const auto refused = Session::open(model, options);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), Code::unsupported);
  EXPECT_NE(std::string(refused.status().message()).find("snapkv"), std::string::npos);
  options.speculate = Speculate::policy;
  unwrap(Session::open(model, options));
  for (const char* replaces : {"streaming", "h2o"}) {
    options.policy = replaces;
    const auto session = Session::open(model, options);
    ASSERT_FALSE(session.ok()) << replaces;
    EXPECT_EQ(session.status().code(), Code::unsupported);
    EXPECT_NE(std::string(session.status().message()).find(replaces), std::string::npos);
  }
  options.policy = "full";
  options.kv_share = 1.0;
  EXPECT_EQ(Session::open(model, options).status().code(), Code::unsupported);
}

}  // namespace
}  // namespace orrery::guesses_test
