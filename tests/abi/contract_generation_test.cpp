// Generations: the order and content of events, how an answer ends, who may call what meanwhile, and
// cancelling.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "tests/abi/handles.h"
#include "tests/support/shared.h"
#include "tests/support/temp_dir.h"

namespace orrery::testing::contract_generation_test {
namespace {

class Generations : public ::testing::Test {
 protected:
  TempDir dir;
  std::string path = dir.write("tiny.gguf", TinyModel().build());
  Runtime runtime = make_runtime();
  Model model = open_model(runtime, path);
  Session session = open_session(model, 512);
};

// Events ---------------------------------------------------------------------------------------------------

TEST_F(Generations, EventsComeInOrder) {
  orrery_session_options o = session_options();
  o.n_context = 256;
  o.chunk_tokens = 16;
  session = open_session(model, o);
  say(session, "a prompt of several chunks, since a chunk is sixteen tokens");
  const Generation g = generate(session, generate_options(5));
  int stage = 0;
  int32_t last_token = -1;
  const Answer a = pull(g.get(), [&](const orrery_event& e) {
    switch (e.type) {
      case ORRERY_EVENT_PROGRESS:
        EXPECT_EQ(stage, 0);
        EXPECT_LE(e.done, e.total);
        break;
      case ORRERY_EVENT_TOKEN:
        stage = 1;
        last_token = e.token;
        EXPECT_GT(e.text_bytes, 0u);
        EXPECT_LE(e.logprob, 0.0f);
        break;
      case ORRERY_EVENT_TEXT:
        EXPECT_EQ(stage, 1);
        EXPECT_GE(last_token, 0);
        break;
      default: EXPECT_EQ(e.type, uint32_t{ORRERY_EVENT_DONE});
    }
  });
  EXPECT_GT(a.progress.size(), 3u);
  EXPECT_TRUE(std::is_sorted(a.progress.begin(), a.progress.end()));
  EXPECT_EQ(a.progress.back(), a.done.prompt_tokens - a.done.reused_tokens);
  EXPECT_EQ(a.done.finish_reason, uint32_t{ORRERY_FINISH_LENGTH});
  EXPECT_EQ(a.done.generated_tokens, 5u);
  EXPECT_GT(a.done.first_token_us, 0u);
  EXPECT_GE(a.done.first_token_us, a.done.prefill_us);
  // DONE repeats, the same each time.
  for (int i = 0; i < 3; ++i) {
    orrery_event e = options(&orrery_event_init);
    ASSERT_EQ(orrery_next(g.get(), &e, nullptr), ORRERY_OK);
    EXPECT_EQ(e.type, uint32_t{ORRERY_EVENT_DONE});
    EXPECT_EQ(e.finish_reason, a.done.finish_reason);
    EXPECT_EQ(e.generated_tokens, a.done.generated_tokens);
  }
}

TEST_F(Generations, RunIsNextInALoop) {
  const Answer want = ask(session, "hello", 6);
  const Session other = open_session(model);
  say(other, "hello");
  const Generation g = generate(other, generate_options(6));
  Answer got;
  ASSERT_EQ(orrery_run(
                g.get(),
                [](void* user, const orrery_event* e) {
                  Answer& answer = *static_cast<Answer*>(user);
                  EXPECT_EQ(e->struct_size, sizeof *e);
                  if (e->type == ORRERY_EVENT_TOKEN) answer.tokens.push_back(e->token);
                  if (e->type == ORRERY_EVENT_TEXT) answer.texts.emplace_back(e->text, e->text_bytes);
                  if (e->type == ORRERY_EVENT_DONE) answer.done = *e;
                  return 0;
                },
                &got, nullptr),
            ORRERY_OK);
  EXPECT_EQ(got.tokens, want.tokens);
  EXPECT_EQ(got.text(), want.text());
  EXPECT_EQ(got.done.finish_reason, want.done.finish_reason);
}

// Text -----------------------------------------------------------------------------------------------------

TEST_F(Generations, TextIsWholeCharacters) {
  // Four characters of one to four bytes, given byte by byte.
  const std::string text = "a\xC3\xA9\xE6\xBC\xA2\xF0\x9F\x98\x80z";
  Script script{byte_tokens(text)};
  say(session, "hello");
  const Answer a = pull(generate(session, scripted(&script)));
  EXPECT_EQ(a.tokens, byte_tokens(text));
  EXPECT_EQ(a.bytes, text);
  EXPECT_EQ(a.texts, (std::vector<std::string>{"a", "\xC3\xA9", "\xE6\xBC\xA2", "\xF0\x9F\x98\x80", "z"}));
  EXPECT_EQ(a.done.finish_reason, uint32_t{ORRERY_FINISH_END});
  EXPECT_EQ(message_of(session, 1), R"({"role": "assistant", "content": ")" + text + "\"}");
  // A character that is never completed becomes U+FFFD at the end.
  Script broken{byte_tokens("x\xE6\xBC")};
  say(session, "again");
  EXPECT_EQ(pull(generate(session, scripted(&broken))).text(), "x\xEF\xBF\xBD");
}

TEST_F(Generations, StopStrings) {
  const char* stops[] = {"never", "STOP", "TO"};
  const struct {
    const char* said;
    const char* shown;
    uint32_t finish, index;
  } cases[] = {
      {"go onSTOP and on", "go on", ORRERY_FINISH_STOP, 1},  // it begins before TO does
      {"a TOad", "a ", ORRERY_FINISH_STOP, 2},
      {"it STO", "it S", ORRERY_FINISH_STOP, 2},               // STOP was not completed
      {"unharmed nev", "unharmed nev", ORRERY_FINISH_END, 0},  // withheld, told at the end
      {"never", "", ORRERY_FINISH_STOP, 0},
  };
  for (const auto& c : cases) {
    Script script{byte_tokens(c.said)};
    orrery_generate_options o = scripted(&script);
    o.stop = stops;
    o.n_stop = 3;
    ASSERT_EQ(orrery_session_rewind_messages(session.get(), 0, nullptr), ORRERY_OK);
    say(session, "hello");
    const Answer a = pull(generate(session, o));
    EXPECT_EQ(a.text(), c.shown) << c.said;
    EXPECT_EQ(a.done.finish_reason, c.finish) << c.said;
    EXPECT_EQ(a.done.stop_index, c.index) << c.said;
    EXPECT_EQ(message_of(session, 1), std::string(R"({"role": "assistant", "content": ")") + c.shown + "\"}");
  }
}

TEST_F(Generations, OptionsAreCopied) {
  std::string stop = "b";
  const char* stops[] = {stop.c_str()};
  orrery_logit_bias bias = {kByte0 + 'c', 1000.0f};
  orrery_generate_options o = generate_options(4);
  o.stop = stops;
  o.n_stop = 1;
  o.logit_bias = &bias;
  o.n_logit_bias = 1;
  say(session, "hello");
  const Generation g = generate(session, o);
  stop = "c";
  stops[0] = nullptr;
  bias = {kByte0 + 'b', 1000.0f};
  EXPECT_EQ(pull(g).text(), "cccc");
}

// Sampling -------------------------------------------------------------------------------------------------

TEST_F(Generations, LogprobsAreOfTheModelItself) {
  const std::vector<int32_t> prompt = byte_tokens("some prompt");
  std::vector<float> logits(363);
  orrery_vocab_info info = options(&orrery_vocab_info_init);
  const Vocab vocab(orrery_model_vocab(model.get()));
  ASSERT_EQ(orrery_vocab_get_info(vocab.get(), &info, nullptr), ORRERY_OK);
  logits.resize(static_cast<size_t>(info.n_tokens));
  const Session s = open_session(model);
  ASSERT_EQ(orrery_session_evaluate(s.get(), prompt.data(), prompt.size(), nullptr, nullptr), ORRERY_OK);
  ASSERT_EQ(orrery_session_logits(s.get(), logits.data(), logits.size(), nullptr), ORRERY_OK);
  double sum = 0.0;
  for (const float l : logits) sum += std::exp(static_cast<double>(l));

  const int32_t worst = static_cast<int32_t>(std::min_element(logits.begin(), logits.end()) - logits.begin());
  const orrery_logit_bias force = {worst, 1000.0f};
  for (const uint32_t n : {0u, 1u, 5u, 20u}) {
    orrery_generate_options o = generate_options(1);
    o.n_logprobs = n;
    o.logit_bias = &force;
    o.n_logit_bias = 1;
    o.ignore_end = 1;
    bool seen = false;
    pull(generate_tokens(s, prompt, o).get(), [&](const orrery_event& e) {
      if (e.type != ORRERY_EVENT_TOKEN) return;
      seen = true;
      EXPECT_EQ(e.token, worst);
      EXPECT_NEAR(e.logprob, static_cast<double>(logits[static_cast<size_t>(worst)]) - std::log(sum), 1e-4);
      ASSERT_EQ(e.n_top, n);
      for (uint32_t i = 0; i < n; ++i) {
        EXPECT_NEAR(e.top[i].logprob, static_cast<double>(logits[static_cast<size_t>(e.top[i].token)]) - std::log(sum), 1e-4);
        if (i > 0) {
          EXPECT_GE(e.top[i - 1].logprob, e.top[i].logprob);
        }
      }
      if (n > 0) {
        EXPECT_EQ(e.top[0].token, std::max_element(logits.begin(), logits.end()) - logits.begin());
      }
    });
    EXPECT_TRUE(seen);
  }
}

// Guessed tokens change nothing but the number of steps, which the statistics tell.
TEST_F(Generations, GuessesAreCountedAndChangeNoToken) {
  orrery_session_options o = session_options();
  o.n_context = 512;
  o.speculate = ORRERY_SPECULATE_NGRAM;
  const Session guessing = open_session(model, o);
  for (const float temperature : {0.0f, 0.4f}) {
    orrery_generate_options wishes = generate_options(60);
    wishes.temperature = temperature;
    wishes.ignore_end = 1;
    Answer answers[2];
    const Session* const both[] = {&session, &guessing};
    for (const Session* s : both) {
      say(*s, "again and again and again and again");
      answers[s == &guessing] = pull(generate(*s, wishes));
    }
    EXPECT_EQ(answers[0].tokens, answers[1].tokens);
    EXPECT_EQ(answers[0].logprobs, answers[1].logprobs);
    EXPECT_EQ(answers[0].texts, answers[1].texts);
  }
  orrery_stats off = options(&orrery_stats_init), on = off;
  Error error;
  check(orrery_session_stats(session.get(), &off, &error), error, "orrery_session_stats");
  check(orrery_session_stats(guessing.get(), &on, &error), error, "orrery_session_stats");
  EXPECT_EQ(off.guessed_tokens, 0u);
  EXPECT_EQ(off.accepted_tokens, 0u);
  EXPECT_EQ(on.generated_tokens, off.generated_tokens);
  EXPECT_GT(on.accepted_tokens, 0u);
  EXPECT_GE(on.guessed_tokens, on.accepted_tokens);
  EXPECT_LT(on.accepted_tokens, on.generated_tokens);
}

TEST_F(Generations, GuessesNeedFullKv) {
  orrery_session_options o = session_options();
  o.n_context = 256;
  o.speculate = ORRERY_SPECULATE_NGRAM;
  o.policy = "streaming";
  o.kv_budget_share = 0.5f;
  Error error;
  orrery_session* h = nullptr;
  EXPECT_EQ(orrery_session_open(model.get(), &o, &h, &error), ORRERY_UNSUPPORTED);
  EXPECT_NE(std::string(error.message).find("streaming"), std::string::npos) << error.message;
  orrery_plan_result plan = options(&orrery_plan_result_init);
  EXPECT_EQ(orrery_plan(path_source(path), nullptr, nullptr, &o, &plan, &error), ORRERY_UNSUPPORTED);
  o.speculate = ORRERY_SPECULATE_POLICY;  // streaming replaces tokens
  EXPECT_EQ(orrery_session_open(model.get(), &o, &h, &error), ORRERY_UNSUPPORTED);
  EXPECT_EQ(orrery_plan(path_source(path), nullptr, nullptr, &o, &plan, &error), ORRERY_UNSUPPORTED);
}

// A draft model is open, and drafts for any number of sessions, which keep it.
TEST_F(Generations, AModelDrafts) {
  orrery_session_options o = session_options();
  o.n_context = 512;
  o.speculate = ORRERY_SPECULATE_DRAFT;
  const std::string file = dir.write("draft.gguf", TinyModel().build());
  Model draft = open_model(runtime, file);
  o.draft_model = draft.get();
  const auto used = [&] {
    Error error;
    orrery_runtime_info info = options(&orrery_runtime_info_init);
    check(orrery_runtime_get_info(runtime.get(), &info, &error), error, "orrery_runtime_get_info");
    return info.arena_used_bytes;
  };
  const Session drafting = open_session(model, o);
  const uint64_t with_one = used();
  const Session another = open_session(model, o);
  Error error;
  orrery_stats stats = options(&orrery_stats_init);
  check(orrery_session_stats(another.get(), &stats, &error), error, "orrery_session_stats");
  EXPECT_EQ(used() - with_one, stats.device_kv_bytes) << "KV of both models alone: weights and workspaces are there";
  draft.reset();
  Answer answers[3];
  const Session* const all[] = {&session, &drafting, &another};
  for (size_t i = 0; i < 3; ++i) {
    say(*all[i], "again and again and again and again");
    answers[i] = pull(generate(*all[i], generate_options(60)));
    EXPECT_EQ(answers[0].tokens, answers[i].tokens);
    EXPECT_EQ(answers[0].logprobs, answers[i].logprobs);
  }
}

// A plan takes a draft model that is not open, of each kind of source; a session refuses one.
TEST_F(Generations, APlanTakesTheSourceOfADraft) {
  orrery_session_options o = session_options();
  o.n_context = 512;
  Error error;
  orrery_plan_result with = options(&orrery_plan_result_init), without = with;
  check(orrery_plan(path_source(path), nullptr, nullptr, &o, &without, &error), error, "orrery_plan");
  o.speculate = ORRERY_SPECULATE_DRAFT;
  const std::vector<std::byte> bytes = TinyModel().build();
  const std::string file = dir.write("draft.gguf", bytes);
  const int fd = ::open(file.c_str(), O_RDONLY);
  const Source of_path = path_source(file), open_file = fd_source(fd), memory = memory_source(bytes.data(), bytes.size());
  orrery_session* h = nullptr;
  for (const Source* source : {&of_path, &open_file, &memory}) {
    o.draft_source = *source;
    check(orrery_plan(path_source(path), nullptr, nullptr, &o, &with, &error), error, "orrery_plan");
    EXPECT_GT(with.full_kv_bytes, without.full_kv_bytes);
    EXPECT_GT(with.weights_mapped_bytes, without.weights_mapped_bytes);
    EXPECT_EQ(orrery_session_open(model.get(), &o, &h, &error), ORRERY_INVALID_ARGUMENT);
    EXPECT_STREQ(error.option, "draft_source") << error.message;
  }
  ::close(fd);
  const Source absent = path_source("/nowhere/draft.gguf"), nothing = fd_source(-1);
  o.draft_source = absent;
  EXPECT_EQ(orrery_plan(path_source(path), nullptr, nullptr, &o, &with, &error), ORRERY_IO);
  o.draft_source = nothing;
  EXPECT_EQ(orrery_plan(path_source(path), nullptr, nullptr, &o, &with, &error), ORRERY_INVALID_ARGUMENT);
  EXPECT_STREQ(error.option, "fd") << error.message;
}

// Each model that cannot draft is refused, and the message says why. A plan refuses what it can see.
TEST_F(Generations, AModelThatCannotDraftIsRefused) {
  orrery_session_options o = session_options();
  o.n_context = 512;
  o.speculate = ORRERY_SPECULATE_DRAFT;
  const std::string demo = source_path("samples/models/demo-q8_0.gguf");
  TinyModel tiny;
  tiny.encoder = true, tiny.context = 64;
  const std::string vectors = dir.write("encoder.gguf", tiny.build());
  const Runtime elsewhere = make_runtime();
  const Model other = open_model(runtime, demo), encoder = open_model(runtime, vectors), away = open_model(elsewhere, path);
  const struct {
    orrery_model* draft;
    orrery_status status;
    const char *words, *file;
  } refusals[] = {{other.get(), ORRERY_INVALID_ARGUMENT, "the draft model has another vocabulary: ", demo.c_str()},
                  {encoder.get(), ORRERY_UNSUPPORTED, "the draft model is an encoder", vectors.c_str()},
                  {away.get(), ORRERY_INVALID_ARGUMENT, "belongs to another runtime", nullptr},
                  {model.get(), ORRERY_INVALID_ARGUMENT, "is the session's own model", nullptr}};
  for (const auto& refused : refusals) {
    SCOPED_TRACE(refused.words);
    Error error;
    orrery_session* h = nullptr;
    o.draft_model = refused.draft, o.draft_source = nullptr;
    EXPECT_EQ(orrery_session_open(model.get(), &o, &h, &error), refused.status);
    EXPECT_NE(std::string(error.message).find(refused.words), std::string::npos) << error.message;
    EXPECT_STREQ(error.option, "draft_model");
    orrery_plan_result plan = options(&orrery_plan_result_init);
    EXPECT_EQ(orrery_plan(path_source(path), nullptr, nullptr, &o, &plan, &error), ORRERY_INVALID_ARGUMENT) << "an open model";
    EXPECT_STREQ(error.option, "draft_model");
    if (!refused.file) continue;
    const Source source = path_source(refused.file);
    o.draft_model = nullptr, o.draft_source = source;
    EXPECT_EQ(orrery_plan(path_source(path), nullptr, nullptr, &o, &plan, &error), refused.status);
    EXPECT_NE(std::string(error.message).find(refused.words), std::string::npos) << error.message;
  }
}

// The resident KV may draft; the answer is full attention's.
TEST_F(Generations, APolicysDraftsAreVerifiedByFullKv) {
  orrery_session_options o = session_options();
  o.n_context = 512;
  o.speculate = ORRERY_SPECULATE_POLICY;
  o.policy = "auto";
  o.kv_budget_share = 0.3f;
  const Session drafting = open_session(model, o);
  const std::string text(150, 'x');
  Answer answers[2];
  const Session* const both[] = {&session, &drafting};
  for (const Session* s : both) {
    say(*s, text.c_str());
    answers[s == &drafting] = pull(generate(*s, generate_options(40)));
  }
  EXPECT_EQ(answers[0].tokens, answers[1].tokens);
  EXPECT_EQ(answers[0].logprobs, answers[1].logprobs);
}

TEST_F(Generations, BiasBansAndForces) {
  const std::vector<int32_t> prompt = byte_tokens("prompt");
  const Answer plain = pull(generate_tokens(session, prompt, generate_options(1)));
  const orrery_logit_bias ban = {plain.tokens.at(0), -INFINITY}, force = {70, 1000.0f};
  orrery_generate_options o = generate_options(1);
  o.logit_bias = &ban;
  o.n_logit_bias = 1;
  EXPECT_NE(pull(generate_tokens(session, prompt, o)).tokens.at(0), plain.tokens[0]);
  o.logit_bias = &force;
  EXPECT_EQ(pull(generate_tokens(session, prompt, o)).tokens.at(0), 70);
}

TEST_F(Generations, SeedsDecide) {
  const std::vector<int32_t> prompt = byte_tokens("prompt");
  const auto with_seed = [&](uint64_t seed) {
    orrery_generate_options o = generate_options(16);
    o.temperature = 1.5f;
    o.top_p = 0.95f;
    o.seed = seed;
    o.ignore_end = 1;
    return pull(generate_tokens(session, prompt, o)).tokens;
  };
  const std::vector<int32_t> one = with_seed(1);
  EXPECT_EQ(with_seed(1), one);
  EXPECT_NE(with_seed(2), one);
  EXPECT_EQ(with_seed(1), one);
}

// Ending early ---------------------------------------------------------------------------------------------

TEST_F(Generations, CancelBeforeTheFirstNext) {
  say(session, "hello");
  Generation g = generate(session, generate_options(5));
  orrery_cancel(g.get());
  const Answer a = pull(g);
  EXPECT_EQ(a.done.finish_reason, uint32_t{ORRERY_FINISH_CANCELLED});
  EXPECT_TRUE(a.tokens.empty());
  EXPECT_EQ(orrery_session_n_messages(session.get()), 1u);  // nothing was said
  const Session fresh = open_session(model);
  say(fresh, "hello");
  EXPECT_EQ(pull(generate(session, generate_options(5))).tokens, pull(generate(fresh, generate_options(5))).tokens);
}

TEST_F(Generations, HookCancels) {
  say(session, "hello");
  orrery_generate_options o = generate_options(50);
  int calls = 0;
  o.logits_user = &calls;
  o.logits_hook = [](void* user, float*, size_t, const int32_t*, size_t) -> int32_t { return ++*static_cast<int*>(user) == 4; };
  const Answer a = pull(generate(session, o));
  EXPECT_EQ(a.done.finish_reason, uint32_t{ORRERY_FINISH_CANCELLED});
  EXPECT_EQ(a.tokens.size(), 3u);
  EXPECT_EQ(orrery_session_n_messages(session.get()), 2u);  // what was said stays
}

TEST_F(Generations, HookSeesTokensAndIsAlone) {
  struct Seen {
    orrery_session* session;
    std::vector<size_t> n_tokens;
  } seen = {session.get(), {}};
  orrery_generate_options o = generate_options(3);
  o.logits_user = &seen;
  o.logits_hook = [](void* user, float*, size_t, const int32_t* tokens, size_t n) -> int32_t {
    Seen& s = *static_cast<Seen*>(user);
    s.n_tokens.push_back(n);
    EXPECT_EQ(tokens[0], 70);
    // The session is in use by the call that this hook is in; nothing deadlocks.
    size_t out = 0;
    EXPECT_EQ(orrery_session_tokens(s.session, nullptr, 0, &out, nullptr), ORRERY_BUSY);
    EXPECT_EQ(orrery_session_rewind(s.session, 0, nullptr), ORRERY_BUSY);
    return 0;
  };
  pull(generate_tokens(session, {70, 71, 72}, o));
  EXPECT_EQ(seen.n_tokens, (std::vector<size_t>{3, 4, 5}));
}

TEST_F(Generations, CallbackCancels) {
  say(session, "hello");
  const Generation g = generate(session, generate_options(50));
  struct State {
    int tokens = 0;
    uint32_t finish = 0;
  } state;
  EXPECT_EQ(orrery_run(
                g.get(),
                [](void* user, const orrery_event* e) -> int32_t {
                  State& s = *static_cast<State*>(user);
                  if (e->type == ORRERY_EVENT_DONE) s.finish = e->finish_reason;
                  return e->type == ORRERY_EVENT_TOKEN && ++s.tokens == 3;
                },
                &state, nullptr),
            ORRERY_OK);
  EXPECT_EQ(state.finish, uint32_t{ORRERY_FINISH_CANCELLED});
  EXPECT_EQ(state.tokens, 3);
  EXPECT_EQ(ask(session, "go on", 3).tokens.size(), 3u);
}

TEST_F(Generations, ContextEndsTheAnswer) {
  session = open_session(model, 64);
  const std::vector<int32_t> prompt(60, 70);
  orrery_generate_options o = generate_options(0);
  o.ignore_end = 1;
  const Answer a = pull(generate_tokens(session, prompt, o));
  EXPECT_EQ(a.done.finish_reason, uint32_t{ORRERY_FINISH_CONTEXT});
  EXPECT_EQ(orrery_session_n_tokens(session.get()), 64u);
  EXPECT_EQ(a.tokens.size(), 5u);  // the last one was chosen, and needs no place
}

TEST_F(Generations, FreedUnfinishedItStopsWhereItIs) {
  say(session, "hello");
  Generation g = generate(session, generate_options(50));
  for (int tokens = 0; tokens < 3;) {
    orrery_event e = options(&orrery_event_init);
    ASSERT_EQ(orrery_next(g.get(), &e, nullptr), ORRERY_OK);
    tokens += e.type == ORRERY_EVENT_TOKEN;
  }
  EXPECT_EQ(orrery_session_n_messages(session.get()), 1u);
  g.reset();
  EXPECT_EQ(orrery_session_n_messages(session.get()), 2u);
  EXPECT_EQ(ask(session, "go on", 3).tokens.size(), 3u);
}

// Busy -----------------------------------------------------------------------------------------------------

TEST_F(Generations, UnfinishedGenerationLocksChangesOut) {
  say(session, "hello");
  const Generation g = generate(session, generate_options(3));
  Error e;
  orrery_generation* second = nullptr;
  orrery_session* child = nullptr;
  const int32_t token = 70;
  const std::string file = dir.file("saved");
  const auto all_changes_are_busy = [&] {
    EXPECT_EQ(orrery_session_add_message(session.get(), "user", "x", &e), ORRERY_BUSY);
    EXPECT_EQ(orrery_session_add_message_json(session.get(), R"({"role": "user"})", &e), ORRERY_BUSY);
    EXPECT_EQ(orrery_session_set_template(session.get(), nullptr, &e), ORRERY_BUSY);
    EXPECT_EQ(orrery_session_rewind_messages(session.get(), 0, &e), ORRERY_BUSY);
    EXPECT_EQ(orrery_session_rewind(session.get(), 0, &e), ORRERY_BUSY);
    EXPECT_EQ(orrery_session_fork(session.get(), &child, &e), ORRERY_BUSY);
    EXPECT_EQ(orrery_session_save(session.get(), file.c_str(), &e), ORRERY_BUSY);
    EXPECT_EQ(orrery_session_load(session.get(), file.c_str(), &e), ORRERY_BUSY);
    EXPECT_EQ(orrery_session_load_buffer(session.get(), "x", 1, &e), ORRERY_BUSY);
    size_t n = 0;
    EXPECT_EQ(orrery_session_save_buffer(session.get(), nullptr, 0, &n, &e), ORRERY_BUSY);
    EXPECT_EQ(orrery_session_evaluate(session.get(), &token, 1, nullptr, &e), ORRERY_BUSY);
    EXPECT_EQ(orrery_generate(session.get(), nullptr, &second, &e), ORRERY_BUSY);
    EXPECT_EQ(orrery_generate_tokens(session.get(), &token, 1, nullptr, &second, &e), ORRERY_BUSY);
    // Reading is allowed.
    orrery_stats stats = options(&orrery_stats_init);
    EXPECT_EQ(orrery_session_stats(session.get(), &stats, &e), ORRERY_OK);
    EXPECT_EQ(orrery_session_n_messages(session.get()), 1u);
    EXPECT_EQ(orrery_session_n_tokens(session.get()), tokens_of(session).size());
    EXPECT_FALSE(message_of(session, 0).empty());
  };
  all_changes_are_busy();
  orrery_event event = options(&orrery_event_init);
  while (event.type != ORRERY_EVENT_TOKEN) ASSERT_EQ(orrery_next(g.get(), &event, &e), ORRERY_OK);
  all_changes_are_busy();
  const std::vector<int32_t> got = pull(g).tokens;
  const Session other = open_session(model);
  const Answer want = ask(other, "hello", 3);
  EXPECT_EQ(std::vector<int32_t>(want.tokens.begin() + 1, want.tokens.end()), got);
  EXPECT_EQ(orrery_session_rewind(session.get(), 0, &e), ORRERY_OK);  // finished, though not freed
}

// A place where one thread waits until another has arrived.
class Meeting {
 public:
  void arrive() {
    std::unique_lock<std::mutex> lock(mutex_);
    arrived_ = true;
    changed_.notify_all();
    changed_.wait(lock, [&] { return released_; });
  }
  void wait_for_arrival() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return arrived_; });
  }
  void release() {
    const std::lock_guard<std::mutex> lock(mutex_);
    released_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool arrived_ = false, released_ = false;
};

TEST_F(Generations, SecondThreadFindsItBusyWhileACallRuns) {
  Meeting meeting;
  orrery_generate_options o = generate_options(2);
  o.logits_user = &meeting;
  o.logits_hook = [](void* user, float*, size_t, const int32_t*, size_t) -> int32_t {
    static_cast<Meeting*>(user)->arrive();
    return 0;
  };
  const Generation g = generate_tokens(session, {70, 71}, o);
  std::vector<int32_t> tokens;
  std::thread worker([&] { tokens = pull(g).tokens; });
  meeting.wait_for_arrival();
  Error e;
  size_t n = 0;
  orrery_event event = options(&orrery_event_init);
  orrery_stats stats = options(&orrery_stats_init);
  EXPECT_EQ(orrery_next(g.get(), &event, &e), ORRERY_BUSY);
  EXPECT_EQ(orrery_session_stats(session.get(), &stats, &e), ORRERY_BUSY);
  EXPECT_EQ(orrery_session_residency(session.get(), nullptr, 0, &n, &e), ORRERY_BUSY);
  EXPECT_EQ(orrery_session_tokens(session.get(), nullptr, 0, &n, &e), ORRERY_BUSY);
  EXPECT_EQ(orrery_session_rewind(session.get(), 0, &e), ORRERY_BUSY);
  EXPECT_EQ(orrery_session_n_tokens(session.get()), 2u);  // this one needs no hold
  meeting.release();
  worker.join();
  EXPECT_EQ(tokens.size(), 2u);
  EXPECT_EQ(orrery_session_stats(session.get(), &stats, &e), ORRERY_OK);
}

// Cancelling from another thread ---------------------------------------------------------------------------

// The demo model takes some tenths of a second for this prompt and more, so that there is a prefill to stop.
TEST(Cancelling, StopsPrefillAndDecode) {
  const Runtime runtime = make_runtime();
  const Model model = open_model(runtime, source_path("samples/models/demo-q8_0.gguf"));
  orrery_session_options so = session_options();
  so.n_context = 8192;
  so.chunk_tokens = 4096;
  so.reuse_prompts = 0;  // the same prompt again is computed again
  const Session session = open_session(model, so);
  std::vector<int32_t> prompt(4096);
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<int32_t>(300 + i * 7 % 1500);
  using Clock = std::chrono::steady_clock;

  const Clock::time_point start = Clock::now();
  Answer a = pull(generate_tokens(session, prompt, generate_options(1)));
  const auto whole = Clock::now() - start;
  EXPECT_EQ(a.tokens.size(), 1u);
  Error error;
  ASSERT_EQ(orrery_session_rewind(session.get(), 0, &error), ORRERY_OK);

  Generation g = generate_tokens(session, prompt, generate_options(1));
  const Clock::time_point again = Clock::now();
  std::thread canceller([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    orrery_cancel(g.get());
  });
  a = pull(g);
  EXPECT_LT(Clock::now() - again, whole * 3 / 4);
  canceller.join();
  EXPECT_EQ(a.done.finish_reason, uint32_t{ORRERY_FINISH_CANCELLED});
  // The session holds the chunks that were complete. Progress also counts the part of the chunk under way.
  ASSERT_FALSE(a.progress.empty());
  EXPECT_EQ(a.progress.front(), 0u);
  EXPECT_LT(a.progress.back(), prompt.size());
  EXPECT_LE(orrery_session_n_tokens(session.get()), a.progress.back());
  g.reset();

  std::atomic<int> n_tokens{0};
  orrery_generate_options o = generate_options(0);
  o.ignore_end = 1;
  prompt.resize(64);
  g = generate_tokens(session, prompt, o);
  std::thread second([&] {
    while (n_tokens < 5) std::this_thread::yield();
    orrery_cancel(g.get());
  });
  a = pull(g.get(), [&](const orrery_event& e) { n_tokens += e.type == ORRERY_EVENT_TOKEN; });
  second.join();
  EXPECT_EQ(a.done.finish_reason, uint32_t{ORRERY_FINISH_CANCELLED});
  EXPECT_GE(a.tokens.size(), 5u);
  EXPECT_LT(a.tokens.size(), 4096u);
}

// A link on which a transfer takes an hour: the library would wait for it half a minute, and then fail.
TEST(Cancelling, EndsAWaitForTheLink) {
  orrery_runtime_options ro = runtime_options();
  ro.n_threads = 1;
  ro.device_budget_bytes = uint64_t{256} << 20;
  ro.link_latency_us = 3'600'000'000u;
  Error error;
  orrery_runtime* h = nullptr;
  ASSERT_EQ(orrery_runtime_create(&ro, &h, &error), ORRERY_OK);
  const Runtime runtime(h);
  const Model model = open_model(runtime, source_path("samples/models/demo-q8_0.gguf"));
  orrery_session_options so = session_options();
  so.n_context = 512;
  so.policy = "quest";
  so.kv_budget_share = 0.5;
  const Session session = open_session(model, so), other = open_session(model, so);
  std::vector<int32_t> prompt(256);
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<int32_t>(300 + i * 7 % 1500);

  // Both wait: one for the link, the other for its turn, or the link too.
  for (const bool both : {false, true}) {
    Generation g = generate_tokens(session, prompt, generate_options(100)), g2 = generate_tokens(other, prompt, generate_options(100));
    const auto begin = std::chrono::steady_clock::now();
    std::thread canceller([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
      orrery_cancel(g.get());
      orrery_cancel(g2.get());
    });
    uint32_t finish = 0;
    std::thread second([&] {
      if (both) finish = pull(g2).done.finish_reason;
    });
    EXPECT_EQ(pull(g).done.finish_reason, uint32_t{ORRERY_FINISH_CANCELLED});
    second.join();
    canceller.join();
    EXPECT_EQ(finish, both ? uint32_t{ORRERY_FINISH_CANCELLED} : 0u);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(25));
  }
}

}  // namespace
}  // namespace orrery::testing::contract_generation_test
