// A smaller model that drafts (Speculate::draft): the same answers with a draft model that is mostly right, always right or mostly wrong;
// the draft session follows its session; its memory is planned; models that cannot draft are refused.
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <thread>

#include "runtime/engine/session/session_file.h"
#include "tests/support/engine_fixture.h"
#include "tests/support/random_blocks.h"
#include "tests/support/shared.h"

namespace orrery::draft_model_test {
namespace {

using namespace orrery::testing;
using engine::Event;
using engine::EventType;
using engine::GenerateOptions;
using engine::Generation;
using engine::Session;
using engine::SessionOptions;
using engine::Speculate;
using nlohmann::json;

constexpr const char* kSpec = "llama3-factors";

// The vocabulary of kSpec, after `change`.
std::vector<std::byte> changed_model(const std::function<void(json*)>& change) {
  json spec = load_model_spec(kSpec);
  change(&spec);
  return build_model_gguf(spec);
}
std::vector<std::byte> other_weights() {
  return changed_model([](json* spec) { (*spec)["seed"] = (*spec)["seed"].get<uint64_t>() + 1; });
}
std::vector<std::byte> rounded_weights() { return named_model_gguf(kSpec, {TensorType::f16, false}); }

SessionOptions wishes(uint32_t n_context, const std::string& draft_path, bool always = true) {
  SessionOptions options;
  options.n_context = n_context;
  options.chunk_tokens = 16;
  if (always) options.guess_costs.emplace().fill(0.01);
  if (draft_path.empty()) return options;
  options.speculate = Speculate::draft;
  options.draft_source = engine::ModelSource::of_path(draft_path);
  return options;
}

// Opens the session, and before it the model of options.draft_source, which the session keeps.
Result<std::unique_ptr<Session>> open_drafting(const std::shared_ptr<engine::LanguageModel>& model, SessionOptions options) {
  if (const auto source = std::move(options.draft_source)) {
    ORRERY_ASSIGN(options.draft_model, engine::LanguageModel::open(model->runtime_ptr(), *source, {}));
  }
  return Session::open(model, options);
}

class EngineDraftModel : public ::testing::Test {
 protected:
  std::unique_ptr<Session> open(const std::vector<std::byte>& draft, uint32_t n_context = 256) {
    return unwrap(open_drafting(model, wishes(n_context, dir.write("draft.gguf", draft))));
  }
  std::unique_ptr<Session> plain(uint32_t n_context = 256) { return unwrap(open_drafting(model, wishes(n_context, ""))); }
  std::string refusal(const std::vector<std::byte>& draft) {
    const auto session = open_drafting(model, wishes(256, dir.write("draft.gguf", draft)));
    EXPECT_FALSE(session.ok());
    EXPECT_EQ(session.ok() ? Code::ok : session.status().code(), Code::invalid_argument);
    return session.ok() ? "" : session.status().message();
  }

  const TempDir dir;
  const std::shared_ptr<engine::LanguageModel> model = open_spec(kSpec);
};

std::vector<int32_t> some_tokens(size_t n, uint64_t seed = 4) {
  Random random(seed);
  std::vector<int32_t> tokens(n);
  for (int32_t& token : tokens) token = 3 + static_cast<int32_t>(random.below(60));
  return tokens;
}

// Every token and log-probability of an answer.
std::vector<std::pair<int32_t, float>> answer(Session* session, const std::vector<int32_t>& tokens, const GenerateOptions& options) {
  const auto generation = unwrap(Generation::proceed(session, tokens, options));
  std::vector<std::pair<int32_t, float>> out;
  for (Event event; event.type != EventType::done;) {
    unwrap(generation->next(&event));
    if (event.type != EventType::token) continue;
    out.emplace_back(event.token, event.logprob);
    for (const engine::TokenLogprob& top : event.top) out.emplace_back(top.token, top.logprob);
  }
  return out;
}
GenerateOptions greedily(uint32_t max_tokens) {
  GenerateOptions options;
  options.max_tokens = max_tokens;
  options.ignore_end = true;
  return options;
}

// Whoever drafts, under every sampler.
TEST_F(EngineDraftModel, AnswersAreThoseWithoutADraft) {
  const std::function<void(GenerateOptions*)> changes[] = {
      [](GenerateOptions*) {},
      [](GenerateOptions* o) { o->sampling.temperature = 0.7f, o->sampling.top_p = 0.9f, o->sampling.n_logprobs = 3; },
      [](GenerateOptions* o) { o->sampling.temperature = 0.4f, o->sampling.repetition_penalty = 1.2f; },
      [](GenerateOptions* o) {
        o->sampling.bias = {{50, 4.0f}, {7, -INFINITY}}, o->sampling.presence_penalty = 0.4f;
      },
  };
  const std::vector<int32_t> prompt = some_tokens(40);
  for (const bool right : {true, false}) {
    uint64_t guessed = 0, accepted = 0;
    for (const auto& change : changes) {
      GenerateOptions options = greedily(60);
      options.sampling.seed = 3;
      change(&options);
      const auto off = plain(), draft = open(right ? rounded_weights() : other_weights());
      EXPECT_EQ(answer(off.get(), prompt, options), answer(draft.get(), prompt, options));
      EXPECT_TRUE(same_bits(as_vector(off->logits()), as_vector(draft->logits())));
      EXPECT_EQ(as_vector(off->tokens()), as_vector(draft->tokens()));
      EXPECT_EQ(draft->stats().generated_tokens, off->stats().generated_tokens);
      guessed += draft->stats().guessed_tokens, accepted += draft->stats().accepted_tokens;
    }
    EXPECT_GT(guessed, 40u);
    if (right) EXPECT_GT(accepted, 80u);
    else EXPECT_LT(accepted, guessed / 2);
  }
}

// A model with recurrent layers, for which one without them drafts. What follows is often what was drafted.
TEST_F(EngineDraftModel, DraftsForRecurrentLayers) {
  for (const char* spec : {"qwen35", "lfm2", "nemotron-h"}) {
    SCOPED_TRACE(spec);
    const auto hybrid = open_spec(spec);
    const auto off = unwrap(open_drafting(hybrid, wishes(256, ""))),
               draft = unwrap(open_drafting(hybrid, wishes(256, dir.write("draft.gguf", named_model_gguf("qwen3")))));
    for (Session* s : {off.get(), draft.get()}) unwrap(s->prefill(some_tokens(40), nullptr, nullptr));
    Random random(5);
    for (int i = 0; i < 120; ++i) {
      const Span<const int32_t> drafted = draft->decoder().draft()->tokens();
      const size_t at = draft->n_computed();
      const int32_t token = at < drafted.size() && random.below(5) > 0 ? drafted[at] : static_cast<int32_t>(3 + random.below(60));
      off->push_generated(token), draft->push_generated(token);
      unwrap(off->decode()), unwrap(draft->decode(nullptr, nullptr, 5));
      ASSERT_TRUE(same_bits(as_vector(off->logits()), as_vector(draft->logits()))) << i;
    }
    EXPECT_GT(draft->stats().accepted_tokens, 20u);
    EXPECT_GT(draft->stats().guessed_tokens, draft->stats().accepted_tokens + 20);
  }
}

// A draft model with the model's own weights is always right, so its KV is that of the session's tokens: also behind a rewind, a fork,
// other tokens, and a loaded file.
TEST_F(EngineDraftModel, TheDraftFollowsItsSession) {
  const std::vector<int32_t> prompt = some_tokens(50), other = some_tokens(30, 9);
  auto session = open(named_model_gguf(kSpec), 512), off = plain(512);
  const auto expect_all_right = [](Session* s, Session* without, const std::vector<int32_t>& tokens) {
    SCOPED_TRACE(tokens.size());
    const uint64_t guessed = s->stats().guessed_tokens, accepted = s->stats().accepted_tokens;
    EXPECT_EQ(answer(s, tokens, greedily(25)), answer(without, tokens, greedily(25)));
    EXPECT_EQ(s->stats().accepted_tokens - accepted, s->stats().guessed_tokens - guessed);
    EXPECT_GT(s->stats().accepted_tokens - accepted, 18u);
    const Span<const int32_t> drafts = s->decoder().draft()->tokens(), own = s->tokens();
    EXPECT_TRUE(std::equal(drafts.begin(), drafts.begin() + static_cast<ptrdiff_t>(std::min(drafts.size(), own.size())), own.begin()));
  };
  expect_all_right(session.get(), off.get(), prompt);
  unwrap(session->rewind(20)), unwrap(off->rewind(20));
  std::vector<int32_t> edited = prompt;
  edited[20] = 5, edited.resize(35);
  expect_all_right(session.get(), off.get(), edited);
  const auto fork = unwrap(session->fork()), off_fork = unwrap(off->fork());
  ASSERT_TRUE(fork->decoder().draft());
  EXPECT_GT(fork->decoder().draft()->n_computed(), 35u) << "a fork shares the draft's pages";
  expect_all_right(session.get(), off.get(), other);
  expect_all_right(fork.get(), off_fork.get(), as_vector(fork->tokens()));
  std::vector<std::byte> file;
  unwrap(engine::SessionFile::save(fork.get(), [&](Span<const std::byte> bytes) {
    file.insert(file.end(), bytes.begin(), bytes.end());
    return ok_status();
  }));
  unwrap(engine::SessionFile::load(session.get(), file, "memory")), unwrap(engine::SessionFile::load(off.get(), file, "memory"));
  expect_all_right(session.get(), off.get(), as_vector(session->tokens()));
}

// Rejected drafts leave the draft's session: it never guesses behind tokens that its session does not hold.
TEST_F(EngineDraftModel, RejectedTokensLeaveTheDraft) {
  SessionOptions options = wishes(256, dir.write("draft.gguf", other_weights()));
  for (size_t i = 0; i < options.guess_costs->size(); ++i) (*options.guess_costs)[i] = 0.3 * static_cast<double>(i + 1);
  const auto session = unwrap(open_drafting(model, options));
  const std::vector<int32_t> tokens = some_tokens(120);
  unwrap(session->prefill({tokens.data(), 40}, nullptr, nullptr));
  for (size_t i = 40; i < tokens.size(); ++i) {
    session->push_generated(tokens[i]);
    const uint64_t guessed = session->stats().guessed_tokens;
    unwrap(session->decode(nullptr, nullptr, 4));
    if (session->stats().guessed_tokens == guessed) continue;
    const Span<const int32_t> drafts = session->decoder().draft()->tokens();
    ASSERT_GE(drafts.size(), i + 1);
    ASSERT_TRUE(std::equal(tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(i + 1), drafts.begin())) << i;
    // The draft's guesses are its own greedy continuation of exactly these tokens.
    const auto alone = unwrap(open_drafting(session->options().draft_model, wishes(256, "")));
    unwrap(alone->prefill({tokens.data(), i}, nullptr, nullptr));
    feed(alone.get(), tokens[i]);
    ASSERT_EQ(drafts.size() > i + 1 ? drafts[i + 1] : -2, drafts.size() > i + 1 ? argmax(alone->logits()) : -2) << i;
  }
  EXPECT_GT(session->stats().guessed_tokens, 8u);
  EXPECT_LT(session->stats().guessed_tokens, 80u) << "drafts that are wrong end";
}

// By the bytes of the weights, a draft as large as its model never pays: it is tried once in a while.
TEST_F(EngineDraftModel, ADraftThatDoesNotPayRests) {
  const auto off = plain(512);
  const auto session = unwrap(open_drafting(model, wishes(512, dir.write("draft.gguf", named_model_gguf(kSpec)), false)));
  EXPECT_EQ(answer(session.get(), some_tokens(20), greedily(200)), answer(off.get(), some_tokens(20), greedily(200)));
  EXPECT_GT(session->stats().guessed_tokens, 0u);
  EXPECT_LE(session->stats().guessed_tokens, 4u);
}

TEST_F(EngineDraftModel, ACancelledDraftLeavesTheSessionAsItWas) {
  const auto off = plain(), session = open(rounded_weights());
  const std::vector<int32_t> prompt = some_tokens(30);
  for (Session* s : {off.get(), session.get()}) {
    unwrap(s->prefill(prompt, nullptr, nullptr));
    s->push_generated(9);
  }
  const std::atomic<bool> cancelled{true};
  EXPECT_EQ(session->decode(nullptr, &cancelled, 5).code(), Code::cancelled);
  EXPECT_EQ(session->n_computed(), 30u);
  for (int i = 0; i < 20; ++i) {
    unwrap(off->decode()), unwrap(session->decode(nullptr, nullptr, 5));
    ASSERT_TRUE(same_bits(as_vector(off->logits()), as_vector(session->logits()))) << i;
    for (Session* s : {off.get(), session.get()}) s->push_generated(argmax(off->logits()));
  }
  EXPECT_GT(session->stats().accepted_tokens, 5u);
}

// The plan has the draft model's weights, workspace and KV; an open session has taken exactly them.
TEST_F(EngineDraftModel, ThePlanIsExact) {
  const std::string own = dir.write("model.gguf", named_model_gguf(kSpec)), draft = dir.write("draft.gguf", other_weights());
  for (const uint32_t n_context : {64u, 300u}) {
    const kv::Plan plan = unwrap(engine::plan_file(own, runtime_options(), {}, wishes(n_context, draft)));
    const kv::Plan alone = unwrap(engine::plan_file(own, runtime_options(), {}, wishes(n_context, "")));
    EXPECT_GT(plan.full_kv_bytes, alone.full_kv_bytes);
    EXPECT_GT(plan.weights_mapped_bytes, alone.weights_mapped_bytes);
    auto opened = unwrap(engine::LanguageModel::open(unwrap(engine::Runtime::create(runtime_options())), own, {}));
    auto session = unwrap(open_drafting(opened, wishes(n_context, draft)));
    EXPECT_EQ(opened->runtime().arena().used(), plan.device_bytes);
    EXPECT_EQ(session->kv_bytes(), plan.full_kv_bytes);
    // The session holds the draft model, and gives everything back.
    session.reset();
    EXPECT_LT(opened->runtime().arena().used(), plan.device_bytes);
    const uint64_t before = opened->runtime().arena().used();
    session = unwrap(open_drafting(opened, wishes(n_context, draft)));
    session.reset();
    EXPECT_EQ(opened->runtime().arena().used(), before);
  }
}

TEST_F(EngineDraftModel, ADraftThatDoesNotFitIsRefused) {
  const std::string own = dir.write("model.gguf", named_model_gguf(kSpec)), draft = dir.write("draft.gguf", other_weights());
  const kv::Plan plan = unwrap(engine::plan_file(own, runtime_options(), {}, wishes(300, draft)));
  for (const uint64_t short_by : {uint64_t{0}, kv::kArenaAlignment}) {
    engine::RuntimeOptions runtime = runtime_options(2, test_cpu_path(), plan.device_bytes - short_by);
    runtime.max_sessions = 1;  // the draft's session takes no slot
    const auto opened = unwrap(engine::LanguageModel::open(unwrap(engine::Runtime::create(runtime)), own, {}));
    const uint64_t before = opened->runtime().arena().used();
    const auto session = open_drafting(opened, wishes(300, draft));
    ASSERT_EQ(session.ok(), short_by == 0) << session.status().message();
    if (short_by == 0) continue;
    EXPECT_EQ(session.status().code(), Code::out_of_device_memory);
    EXPECT_EQ(opened->runtime().arena().used(), before);
  }
}

// Without room for a second draft session, a fork waits in host memory with its draft, and answers once there is room.
TEST_F(EngineDraftModel, AForkWithoutRoomIsParkedWithItsDraft) {
  const std::string own = dir.write("model.gguf", named_model_gguf(kSpec)), draft = dir.write("draft.gguf", named_model_gguf(kSpec));
  const kv::Plan plan = unwrap(engine::plan_file(own, runtime_options(), {}, wishes(300, draft)));
  const auto opened =
      unwrap(engine::LanguageModel::open(unwrap(engine::Runtime::create(runtime_options(2, test_cpu_path(), plan.device_bytes))), own, {}));
  auto session = unwrap(open_drafting(opened, wishes(300, draft)));
  const auto off = plain(300);
  EXPECT_EQ(answer(session.get(), some_tokens(40), greedily(20)), answer(off.get(), some_tokens(40), greedily(20)));
  const auto fork = unwrap(session->fork());
  EXPECT_TRUE(fork->sequence().parked());
  EXPECT_TRUE(fork->decoder().draft()->parked());
  EXPECT_EQ(fork->resume().code(), Code::out_of_device_memory);
  session.reset();
  const std::vector<int32_t> tokens = as_vector(fork->tokens());
  EXPECT_EQ(answer(fork.get(), tokens, greedily(20)), answer(off.get(), tokens, greedily(20)));
  EXPECT_EQ(fork->stats().accepted_tokens, fork->stats().guessed_tokens);
  EXPECT_GT(fork->stats().accepted_tokens, 10u);
}

// The first difference of two vocabularies is named: the size, a token's text, its type, or a special token.
TEST_F(EngineDraftModel, AnotherVocabularyIsRefused) {
  const std::vector<std::byte> same = other_weights();
  // The file with `value` at `offset` behind the first place of `text`.
  const auto with = [&](const std::string& text, size_t offset, char value, std::vector<std::byte> file = {}) {
    if (file.empty()) file = same;
    const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
    const auto at = std::search(file.begin(), file.end(), bytes, bytes + text.size());
    EXPECT_NE(at, file.end()) << text;
    file[static_cast<size_t>(at - file.begin()) + text.size() + offset] = static_cast<std::byte>(value);
    return file;
  };
  const std::string prefix = "the draft model has another vocabulary: ";
  const auto larger = changed_model([](json* spec) {
    (*spec)["vocab"]["size"] = 161;
    for (json& tensor : (*spec)["tensors"])
      if (tensor["name"] == "token_embd.weight" || tensor["name"] == "output.weight") tensor["shape"][1] = 161;
  });
  EXPECT_EQ(refusal(larger), prefix + "161 tokens, where the model has 160, and they are not all padding");
  EXPECT_EQ(refusal(with(std::string("\2\0\0\0\0\0\0\0b", 9), 0, 'z')), prefix + "its token 150 is 'bz', the model's is 'ba'");
  EXPECT_EQ(refusal(with("tokenizer.ggml.token_type", 4 + 4 + 8 + 4 * 20, 4)), prefix + "the type of its token 20 is 4, the model's is 1");
  EXPECT_EQ(refusal(with("tokenizer.ggml.eos_token_id", 4, 5)), prefix + "its eos token is 5, the model's is 2");
}

// Rows that pad the tables, at the draft's end or at the model's: they are no other vocabulary.
TEST_F(EngineDraftModel, PaddingIsNoOtherVocabulary) {
  const auto padded = [](bool other) {
    auto file = changed_model([other](json* spec) {
      if (other) (*spec)["seed"] = (*spec)["seed"].get<uint64_t>() + 1;
      (*spec)["vocab"]["size"] = 161;
      for (json& tensor : (*spec)["tensors"])
        if (tensor["name"] == "token_embd.weight" || tensor["name"] == "output.weight") tensor["shape"][1] = 161;
    });
    const std::string key = "tokenizer.ggml.token_type";
    const auto* bytes = reinterpret_cast<const std::byte*>(key.data());
    const auto at = std::search(file.begin(), file.end(), bytes, bytes + key.size());
    file[static_cast<size_t>(at - file.begin()) + key.size() + 4 + 4 + 8 + 4 * 160] = std::byte{5};  // unused
    return file;
  };
  const std::vector<int32_t> prompt = some_tokens(40);
  EXPECT_EQ(answer(open(padded(true)).get(), prompt, greedily(40)), answer(plain().get(), prompt, greedily(40)));

  // The model's own padding row has no embedding in the draft: behind it nothing is drafted.
  const auto larger = open_bytes(padded(false));
  const auto off = unwrap(open_drafting(larger, wishes(256, "")));
  const auto drafting = unwrap(open_drafting(larger, wishes(256, dir.write("draft.gguf", other_weights()))));
  EXPECT_EQ(answer(drafting.get(), prompt, greedily(40)), answer(off.get(), prompt, greedily(40)));
  std::vector<int32_t> with_padding = prompt;
  with_padding[20] = 160;
  const uint64_t guessed = drafting->stats().guessed_tokens;
  EXPECT_GT(guessed, 0u);
  EXPECT_EQ(answer(drafting.get(), with_padding, greedily(20)), answer(off.get(), with_padding, greedily(20)));
  EXPECT_EQ(drafting->stats().guessed_tokens, guessed);
}

TEST_F(EngineDraftModel, ModelsThatCannotDraftAreRefused) {
  EXPECT_EQ(open_drafting(model, wishes(256, "/nowhere/draft.gguf")).status().code(), Code::io);
  const auto broken = open_drafting(model, wishes(256, dir.write("draft.gguf", std::vector<std::byte>(64))));
  EXPECT_FALSE(broken.ok());
  SessionOptions compressed = wishes(256, dir.write("draft.gguf", rounded_weights()));
  compressed.policy = "streaming", compressed.kv_share = 0.5;
  EXPECT_EQ(open_drafting(model, compressed).status().code(), Code::unsupported);
  // Each refusal says why, and names the option.
  const auto expect_refused = [&](const std::shared_ptr<engine::LanguageModel>& draft, Code code, const char* option, const char* words,
                                  const char* source = nullptr) {
    SCOPED_TRACE(words);
    SessionOptions options = wishes(256, "");
    options.speculate = Speculate::draft, options.draft_model = draft;
    if (source) options.draft_source = engine::ModelSource::of_path(source);
    const auto session = Session::open(model, options);
    ASSERT_FALSE(session.ok());
    EXPECT_EQ(session.status().code(), code);
    EXPECT_STREQ(session.status().detail().option, option);
    EXPECT_NE(session.status().detail().message.find(words), std::string::npos) << session.status().message();
  };
  const auto here = [&](const std::vector<std::byte>& bytes) {
    return unwrap(engine::LanguageModel::open(model->runtime_ptr(), dir.write("draft.gguf", bytes), {}));
  };
  expect_refused(model, Code::invalid_argument, "draft_model", "the session's own model");
  expect_refused(open_spec(kSpec), Code::invalid_argument, "draft_model", "another runtime");
  expect_refused(here(named_model_gguf("qwen35")), Code::unsupported, "draft_model", "recurrent layers");
  expect_refused(nullptr, Code::invalid_argument, "draft_source", "a plan takes it", "draft.gguf");
  expect_refused(here(rounded_weights()), Code::invalid_argument, "draft_source", "one of the two", "draft.gguf");
  // A plan takes a source alone, and refuses the same models.
  const std::string own = dir.write("model.gguf", named_model_gguf(kSpec));
  SessionOptions open = wishes(256, "");
  open.speculate = Speculate::draft, open.draft_model = here(rounded_weights());
  EXPECT_EQ(engine::plan_file(own, runtime_options(), {}, open).status().code(), Code::invalid_argument);
  const std::string recurrent = dir.write("other.gguf", named_model_gguf("qwen35"));
  EXPECT_EQ(engine::plan_file(own, runtime_options(), {}, wishes(256, recurrent)).status().code(), Code::unsupported);
}

// Sessions share an open draft model: its weights and its workspace are there once, and each session has its own KV of it. The model
// lives as long as one of them.
TEST_F(EngineDraftModel, SessionsShareADraft) {
  kv::Arena& arena = model->runtime().arena();
  const uint64_t empty = arena.used();
  const auto plain_session = plain();
  const uint64_t with_plain = arena.used();
  const auto another_plain = plain();
  const uint64_t own_kv = arena.used() - with_plain;  // the workspace is the model's
  const std::vector<std::byte> weights = rounded_weights();
  engine::ModelOptions load;
  load.load = gguf::Load::read;
  auto draft = unwrap(engine::LanguageModel::open(model->runtime_ptr(), dir.write("draft.gguf", weights), load));
  SessionOptions options = wishes(256, "");
  options.speculate = Speculate::draft, options.draft_model = draft;
  auto first = unwrap(Session::open(model, options));
  const uint64_t with_first = arena.used();
  auto second = unwrap(Session::open(model, options));
  uint64_t draft_kv = 0;
  for (const kv::Region& region : second->regions().regions())
    if (std::string(region.name) == "draft model's KV") draft_kv += region.device_bytes;
  EXPECT_GT(draft_kv, 0u);
  EXPECT_EQ(arena.used() - with_first, own_kv + draft_kv) << "no weights and no workspace of the draft a second time";
  EXPECT_EQ(&first->decoder().draft()->model(), &second->decoder().draft()->model());

  // By turns, with different texts: neither draft disturbs the other one.
  const std::weak_ptr<engine::LanguageModel> watched = draft;
  draft.reset(), options.draft_model.reset();
  const auto off = plain(), off_too = plain();
  for (const size_t n : {size_t{40}, size_t{60}}) {
    EXPECT_EQ(answer(first.get(), some_tokens(n), greedily(30)), answer(off.get(), some_tokens(n), greedily(30)));
    EXPECT_EQ(answer(second.get(), some_tokens(n, 9), greedily(30)), answer(off_too.get(), some_tokens(n, 9), greedily(30)));
  }
  for (const Session* s : {first.get(), second.get()}) EXPECT_GT(s->stats().accepted_tokens, 30u);
  first.reset();
  EXPECT_FALSE(watched.expired());
  EXPECT_EQ(answer(second.get(), some_tokens(30), greedily(20)), answer(off.get(), some_tokens(30), greedily(20)));
  second.reset();
  EXPECT_TRUE(watched.expired());
  EXPECT_GE(arena.used(), empty);
}

// Two threads draft by one model at the same time.
TEST_F(EngineDraftModel, ThreadsShareADraft) {
  SessionOptions options = wishes(256, "");
  options.speculate = Speculate::draft;
  options.draft_model = unwrap(engine::LanguageModel::open(model->runtime_ptr(), dir.write("draft.gguf", rounded_weights()), {}));
  const auto off = plain();
  std::vector<std::unique_ptr<Session>> sessions;
  std::vector<std::thread> threads;
  std::vector<std::vector<std::pair<int32_t, float>>> answers(3), expected;
  for (size_t i = 0; i < answers.size(); ++i) {
    expected.push_back(answer(off.get(), some_tokens(40, i), greedily(40)));
    sessions.push_back(unwrap(Session::open(model, options)));
  }
  for (size_t i = 0; i < answers.size(); ++i)
    threads.emplace_back([&, i] { answers[i] = answer(sessions[i].get(), some_tokens(40, i), greedily(40)); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(answers, expected);
  for (const auto& session : sessions) EXPECT_GT(session->stats().accepted_tokens, 10u);
}

}  // namespace
}  // namespace orrery::draft_model_test
