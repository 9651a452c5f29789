// The block behind a model's last layer as a head that guesses tokens (Speculate::mtp), on a model whose head
// tests/golden/train_mtp_head.py has trained. The drafts are those of the NumPy reference, whatever happened to the session before; the
// memory is planned; files without such a block are refused. (guesses_test.cpp has whole answers with them.)
#include <gtest/gtest.h>

#include <atomic>
#include <nlohmann/json.hpp>

#include "runtime/engine/session/session_file.h"
#include "tests/support/engine_fixture.h"
#include "tests/support/random_blocks.h"

namespace orrery::guessing_head_test {
namespace {

using namespace orrery::testing;
using engine::Session;
using engine::SessionOptions;
using engine::Speculate;
using nlohmann::json;

constexpr const char* kSpec = "qwen35-mtp";
constexpr uint32_t kDrafts = 3;

SessionOptions wishes(uint32_t n_context, Speculate speculate = Speculate::mtp, uint32_t chunk = 16) {
  SessionOptions options;
  options.n_context = n_context;
  options.chunk_tokens = chunk;
  options.speculate = speculate;
  options.speculate_tokens = speculate == Speculate::off ? 0 : kDrafts;
  if (speculate != Speculate::off) options.guess_costs.emplace().fill(1e-9);  // always as many drafts as may be
  return options;
}
std::unique_ptr<Session> open(const std::shared_ptr<engine::LanguageModel>& model, Speculate speculate = Speculate::mtp,
                              uint32_t chunk = 16) {
  return unwrap(Session::open(model, wishes(512, speculate, chunk)));
}

// Decodes n tokens greedily, beside a session without guesses: the same tokens and bits.
void expect_same_answer(Session* session, Session* off, uint32_t n, uint32_t most = kDrafts) {
  unwrap(session->sequence().refresh_logits()), unwrap(off->sequence().refresh_logits());
  for (uint32_t i = 0; i < n; ++i) {
    const int32_t token = argmax(off->logits());
    session->push_generated(token), off->push_generated(token);
    unwrap(session->decode(nullptr, nullptr, most)), unwrap(off->decode());
    ASSERT_TRUE(same_bits(as_vector(off->logits()), as_vector(session->logits()))) << i;
    ASSERT_TRUE(same_bits(as_vector(off->sequence().embedding()), as_vector(session->sequence().embedding()))) << i;
  }
}
struct Counts {
  explicit Counts(const Session& s) : guessed(s.stats().guessed_tokens), accepted(s.stats().accepted_tokens) {}
  uint64_t guessed, accepted;
};
// Of the answer since `before`, at least three of four guesses were right.
void expect_most_right(const Session& session, const Counts& before, uint64_t least) {
  const Counts now(session);
  EXPECT_GE(now.guessed - before.guessed, least);
  EXPECT_GE(4 * (now.accepted - before.accepted), 3 * (now.guessed - before.guessed))
      << now.accepted - before.accepted << " of " << now.guessed - before.guessed;
}

// The drafts of a whole answer, step by step.
TEST(EngineGuessingHead, DraftsAsTheReferenceDoes) {
  const json spec = load_model_spec(kSpec);
  const auto prompt = load_model_runs(kSpec).at(0).prompt;
  for (const json& run : spec.at("drafts"))
    for (const uint32_t chunk : {16u, 64u, 7u}) {
      const auto stumbles = run.at("stumbles").get<uint32_t>();
      const auto right = run.at("right").get<std::vector<uint64_t>>();
      uint64_t all_right = 0;
      for (const uint64_t n : right) all_right += n;
      if (stumbles == 0) EXPECT_GE(4 * all_right, 3 * kDrafts * right.size()) << "three of four";
      else EXPECT_LT(all_right, kDrafts * right.size() * 9 / 10) << "some are wrong";
      SCOPED_TRACE(std::to_string(stumbles) + ", chunks of " + std::to_string(chunk));
      const auto model = open_spec(kSpec);
      const auto session = open(model, Speculate::mtp, chunk), off = open(model, Speculate::off, chunk);
      unwrap(session->prefill(prompt, nullptr, nullptr)), unwrap(off->prefill(prompt, nullptr, nullptr));
      std::vector<uint64_t> steps;
      for (uint32_t i = 0; steps.size() < right.size() || session->stats().accepted_tokens < all_right; ++i) {
        const Counts before(*session);
        const int32_t best = argmax(off->logits()), token = stumbles && i % stumbles == stumbles - 1 ? 3 + (best + 40) % 100 : best;
        session->push_generated(token), off->push_generated(token);
        unwrap(session->decode(nullptr, nullptr, kDrafts)), unwrap(off->decode());
        ASSERT_TRUE(same_bits(as_vector(off->logits()), as_vector(session->logits()))) << i;
        const Counts now(*session);
        if (now.guessed > before.guessed) {
          steps.push_back(0);
          EXPECT_EQ(session->decoder().draft()->n_computed(), prompt.size() + i)
              << "cells of a draft, which read the head's own hidden states, are dropped";
        } else {
          ASSERT_FALSE(steps.empty());
          ++steps.back();
        }
        ASSERT_LE(session->n_computed(), 400u);
      }
      EXPECT_EQ(steps, right);
      EXPECT_EQ(session->stats().guessed_tokens, kDrafts * right.size());
    }
}

// After a rewind, an edit, a fork, a loaded file or tokens of the prefix tree the head goes on, or begins anew. Its guesses are soon right
// again.
TEST(EngineGuessingHead, FollowsItsSession) {
  const auto model = open_spec(kSpec);
  const auto prompt = load_model_runs(kSpec).at(0).prompt;
  auto session = open(model), off = open(model, Speculate::off);
  const auto both = [&](const auto& f) { f(session.get()), f(off.get()); };
  const auto expect_right = [&](Session* a, Session* b) {
    const Counts before(*a);
    ASSERT_NO_FATAL_FAILURE(expect_same_answer(a, b, 60));
    expect_most_right(*a, before, 15);
  };
  both([&](Session* s) { unwrap(s->prefill(prompt, nullptr, nullptr)); });
  ASSERT_NO_FATAL_FAILURE(expect_right(session.get(), off.get()));
  EXPECT_GE(session->decoder().draft()->n_computed() + 2 * kDrafts, session->n_computed())
      << "one cell for each token, but for the last ones";
  both([](Session* s) { unwrap(s->rewind(90)); });
  ASSERT_NO_FATAL_FAILURE(expect_right(session.get(), off.get()));
  EXPECT_GE(session->decoder().draft()->n_computed() + 2 * kDrafts, session->n_computed()) << "the cells before the rewind are still there";
  std::vector<int32_t> edited(session->tokens().begin(), session->tokens().begin() + 80);
  edited[50] = edited[50] == 9 ? 8 : 9;
  both([&](Session* s) {
    const uint32_t kept = s->sequence().reuse_prefix(edited);
    unwrap(s->prefill({edited.data() + kept, edited.size() - kept}, nullptr, nullptr));
  });
  ASSERT_NO_FATAL_FAILURE(expect_right(session.get(), off.get()));
  const auto fork = unwrap(session->fork()), off_fork = unwrap(off->fork());
  EXPECT_EQ(fork->decoder().draft()->n_computed(), session->decoder().draft()->n_computed());
  ASSERT_NO_FATAL_FAILURE(expect_right(fork.get(), off_fork.get()));
  ASSERT_NO_FATAL_FAILURE(expect_right(session.get(), off.get()));
  std::vector<std::byte> file;
  unwrap(engine::SessionFile::save(session.get(), [&](Span<const std::byte> bytes) {
    file.insert(file.end(), bytes.begin(), bytes.end());
    return ok_status();
  }));
  both([&](Session* s) { unwrap(engine::SessionFile::load(s, file, "memory")); });
  const Counts before(*session);
  ASSERT_NO_FATAL_FAILURE(expect_same_answer(session.get(), off.get(), 60));
  EXPECT_GT(session->stats().accepted_tokens, before.accepted + 20) << "without the hidden states of the file's tokens";
}

// Many tokens without a draft: the head reads the hidden states that wait before there is no room for more.
TEST(EngineGuessingHead, ReadsWhatWaitsInTime) {
  const auto model = open_spec(kSpec);
  const auto prompt = load_model_runs(kSpec).at(0).prompt;
  const auto session = open(model), off = open(model, Speculate::off);
  for (Session* s : {session.get(), off.get()}) unwrap(s->prefill(prompt, nullptr, nullptr));
  ASSERT_NO_FATAL_FAILURE(expect_same_answer(session.get(), off.get(), 150, 0));
  EXPECT_EQ(session->stats().guessed_tokens, 0u);
  EXPECT_GT(session->decoder().draft()->n_computed(), prompt.size() + 100);
  const Counts before(*session);
  ASSERT_NO_FATAL_FAILURE(expect_same_answer(session.get(), off.get(), 60));
  expect_most_right(*session, before, 15);
  EXPECT_GE(session->decoder().draft()->n_computed() + 2 * kDrafts, session->n_computed()) << "no cell is missing";
}

TEST(EngineGuessingHead, ACancelledDraftLeavesTheSessionAsItWas) {
  const auto model = open_spec(kSpec);
  const auto prompt = load_model_runs(kSpec).at(0).prompt;
  const auto session = open(model), off = open(model, Speculate::off);
  for (Session* s : {session.get(), off.get()}) unwrap(s->prefill(prompt, nullptr, nullptr)), s->push_generated(9);
  const std::atomic<bool> cancelled{true};
  EXPECT_EQ(session->decode(nullptr, &cancelled, kDrafts).code(), Code::cancelled);
  EXPECT_EQ(session->n_computed(), prompt.size());
  unwrap(session->decode(nullptr, nullptr, kDrafts)), unwrap(off->decode());
  ASSERT_TRUE(same_bits(as_vector(off->logits()), as_vector(session->logits())));
  ASSERT_NO_FATAL_FAILURE(expect_same_answer(session.get(), off.get(), 40));
}

// Several drafts in one step, as many as were right: where the head is wrong, drafts become short, then rest.
TEST(EngineGuessingHead, TheLengthFollowsWhatWasRight) {
  const auto model = open_spec(kSpec);
  const auto prompt = load_model_runs(kSpec).at(0).prompt;
  SessionOptions options = wishes(512);
  for (size_t i = 0; i < options.guess_costs->size(); ++i) (*options.guess_costs)[i] = 0.2 * static_cast<double>(i + 1);
  options.speculate_tokens = 0;
  const auto session = unwrap(Session::open(model, options)), off = open(model, Speculate::off);
  for (Session* s : {session.get(), off.get()}) unwrap(s->prefill(prompt, nullptr, nullptr));
  ASSERT_NO_FATAL_FAILURE(expect_same_answer(session.get(), off.get(), 100, engine::kMostGuesses));
  const Counts good(*session);
  EXPECT_GT(good.accepted, 50u);
  Random random(3);
  for (int i = 0; i < 150; ++i) {  // tokens that nobody would choose
    session->push_generated(static_cast<int32_t>(3 + random.below(90)));
    unwrap(session->decode(nullptr, nullptr, engine::kMostGuesses));
  }
  const Counts bad(*session);
  EXPECT_LT(bad.guessed - good.guessed, 60u);
}

// Tables of its own, as some files have: with the model's values, the same drafts.
TEST(EngineGuessingHead, MayHaveTablesOfItsOwn) {
  json spec = load_model_spec(kSpec);
  const json tensors = spec.at("tensors");
  for (const json& tensor : tensors) {
    const std::string name = tensor.at("name");
    const bool output = name == "output.weight";
    if (!output && name != "token_embd.weight") continue;
    json own = {{"name", output ? "blk.4.nextn.shared_head_head.weight" : "blk.4.nextn.embed_tokens.weight"},
                {"shape", tensor.at("shape")}};
    own["values"] = spec_tensor_values(spec, tensor);
    spec["tensors"].push_back(own);
  }
  const auto shared = open_spec(kSpec), own = open_bytes(build_model_gguf(spec));
  const auto prompt = load_model_runs(kSpec).at(0).prompt;
  const auto a = open(shared), b = open(own), off = open(own, Speculate::off);
  for (Session* s : {a.get(), b.get(), off.get()}) unwrap(s->prefill(prompt, nullptr, nullptr));
  ASSERT_NO_FATAL_FAILURE(expect_same_answer(b.get(), off.get(), 60));
  unwrap(off->rewind(static_cast<uint32_t>(prompt.size())));
  ASSERT_NO_FATAL_FAILURE(expect_same_answer(a.get(), off.get(), 60));
  EXPECT_EQ(a->stats().accepted_tokens, b->stats().accepted_tokens);
  EXPECT_EQ(a->stats().guessed_tokens, b->stats().guessed_tokens);
}

// The head's weights, workspace and KV are in the plan, and an open session has taken exactly them. Sessions of a model share the head.
TEST(EngineGuessingHead, ThePlanIsExact) {
  const TempDir dir;
  const std::string path = dir.write("model.gguf", named_model_gguf(kSpec));
  for (const uint32_t n_context : {64u, 300u}) {
    const kv::Plan plan = unwrap(engine::plan_file(path, runtime_options(), {}, wishes(n_context)));
    const kv::Plan alone = unwrap(engine::plan_file(path, runtime_options(), {}, wishes(n_context, Speculate::off)));
    EXPECT_GT(plan.device_bytes, alone.device_bytes);
    auto model = unwrap(engine::LanguageModel::open(unwrap(engine::Runtime::create(runtime_options())), path, {}));
    const uint64_t without = model->runtime().arena().used();
    auto session = unwrap(Session::open(model, wishes(n_context)));
    EXPECT_EQ(model->runtime().arena().used(), plan.device_bytes);
    EXPECT_EQ(session->kv_bytes(), plan.full_kv_bytes + plan.compressed_kv_bytes);
    const auto second = unwrap(Session::open(model, wishes(n_context)));
    EXPECT_EQ(&second->decoder().draft()->model(), &session->decoder().draft()->model());
    session.reset();
    session = unwrap(Session::open(model, wishes(n_context, Speculate::off)));
    session.reset();
    EXPECT_GT(model->runtime().arena().used(), without);
  }
}

TEST(EngineGuessingHead, IsRefusedWhereThereIsNone) {
  const auto refusal = [](const std::shared_ptr<engine::LanguageModel>& model, SessionOptions options, Code code) {
    const auto session = Session::open(model, options);
    EXPECT_FALSE(session.ok());
    EXPECT_EQ(session.ok() ? Code::ok : session.status().code(), code);
    return std::string(session.ok() ? "" : session.status().message());
  };
  const auto contains = [](const std::string& text, const char* words) { return text.find(words) != std::string::npos; };
  EXPECT_TRUE(contains(refusal(open_spec("qwen35-flags"), wishes(64), Code::unsupported), "key 'qwen35.nextn_predict_layers'"));
  EXPECT_TRUE(contains(refusal(open_spec("llama3-factors"), wishes(64), Code::unsupported), "this one has none"));
  EXPECT_TRUE(contains(refusal(open_spec("glm47"), wishes(64), Code::unsupported), "of architecture 'deepseek2' are not run"));
  EXPECT_TRUE(contains(refusal(open_spec("qwen35"), wishes(64), Code::bad_model), "blk.5.nextn.enorm.weight"));
  json spec = load_model_spec(kSpec);
  for (json& tensor : spec["tensors"])
    if (tensor["name"] == "blk.4.nextn.eh_proj.weight") tensor["shape"] = {32, 64};
  EXPECT_TRUE(contains(refusal(open_bytes(build_model_gguf(spec)), wishes(64), Code::bad_model), "blk.4.nextn.eh_proj.weight"));
  SessionOptions compressed = wishes(64);
  compressed.policy = "auto", compressed.kv_share = .5;
  EXPECT_TRUE(contains(refusal(open_spec(kSpec), compressed, Code::unsupported), "speculate mtp needs full KV on the device"));
  SessionOptions both = wishes(64);
  both.draft_source = engine::ModelSource::of_path("draft.gguf");
  EXPECT_TRUE(contains(refusal(open_spec(kSpec), both, Code::invalid_argument), "a draft model needs speculate draft"));
}

}  // namespace
}  // namespace orrery::guessing_head_test
