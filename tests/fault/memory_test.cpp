// Out of memory, everywhere: each operation of the interface is repeated with its 1st, 2nd, 3rd, ... request
// for memory refused, until none is left to refuse.  Every refusal must come back as
// ORRERY_OUT_OF_HOST_MEMORY, give back all that the operation had taken, and leave every handle as it was:
// the same operation then succeeds and gives what it always gives.
#include <gtest/gtest.h>

#include <filesystem>

#include "runtime/base/allocation/account.h"
#include "tests/abi/handles.h"
#include "tests/fault/faults.h"
#include "tests/support/temp_dir.h"

namespace orrery::testing {
namespace {

using Operation = std::function<orrery_status(orrery_error*)>;

// Fails each request of `operation` in turn; `undo` takes back what it did when it succeeded, `after` looks
// at what is left after each failure. Gives the number of requests.
int64_t fail_each(
    const char* what, const Operation& operation, const std::function<void()>& undo, const std::function<void()>& after = [] {}) {
  // Once undisturbed: what is allocated once and kept (a workspace, a compiled template) is there.
  Error error;
  EXPECT_EQ(operation(&error), ORRERY_OK) << what << ": " << error.message;
  undo();
  if (::testing::Test::HasFailure()) return 0;
  for (int64_t n = 0;; ++n) {
    SCOPED_TRACE(std::string(what) + ", request " + std::to_string(n));
    const int64_t before = live_blocks();
    orrery_error_init(&error, sizeof error);
    arm(Fault::memory, n);
    const orrery_status status = operation(&error);
    const bool refused = disarm(Fault::memory);
    if (!refused) {
      EXPECT_EQ(status, ORRERY_OK) << error.message;
      undo();
      ::testing::Test::RecordProperty(what, static_cast<int>(n));
      return n;
    }
    if (status == ORRERY_OK) {  // it did without
      undo();
    } else {
      EXPECT_EQ(status, ORRERY_OUT_OF_HOST_MEMORY) << error.message;
      EXPECT_EQ(error.status, status);
      EXPECT_NE(error.message[0], '\0');
    }
    EXPECT_EQ(live_blocks(), before) << "something leaked";
    after();
    if (::testing::Test::HasFailure()) return n;
  }
}

class OutOfMemory : public ::testing::Test {
 protected:
  TempDir dir;
  std::string path = dir.write("tiny.gguf", TinyModel().build());
  const char* p = path.c_str();
};

TEST_F(OutOfMemory, Runtime) {
  orrery_runtime* h = nullptr;
  for (const int32_t threads : {1, 3}) {
    orrery_runtime_options o = runtime_options();
    o.n_threads = threads;
    const int64_t n = fail_each(
        "runtime", [&](orrery_error* e) { return orrery_runtime_create(&o, &h, e); }, [&] { orrery_runtime_free(h); },
        [&] { EXPECT_EQ(h, nullptr); });
    EXPECT_GT(n, 4);
  }
}

TEST_F(OutOfMemory, Opening) {
  const Runtime runtime = make_runtime();
  const uint64_t used = arena_used(runtime);
  const auto nothing_taken = [&] { EXPECT_EQ(arena_used(runtime), used); };
  orrery_vocab* vocab = nullptr;
  EXPECT_GT(
      fail_each(
          "vocabulary", [&](orrery_error* e) { return orrery_vocab_open(path_source(p), &vocab, e); }, [&] { orrery_vocab_free(vocab); }),
      30);
  orrery_model* model = nullptr;
  for (const uint32_t load : std::initializer_list<uint32_t>{ORRERY_LOAD_MAP, ORRERY_LOAD_READ}) {
    orrery_model_options o = model_options();
    o.load = load;
    EXPECT_GT(fail_each(
                  "model", [&](orrery_error* e) { return orrery_model_open(runtime.get(), path_source(p), &o, &model, e); },
                  [&] { orrery_model_free(model); }, nothing_taken),
              30);
  }
  orrery_plan_result plan = options(&orrery_plan_result_init);
  EXPECT_GT(fail_each(
                "plan", [&](orrery_error* e) { return orrery_plan(path_source(p), nullptr, nullptr, nullptr, &plan, e); }, [] {}),
            5);
  size_t n = 0;
  orrery_plan_region regions[32];
  orrery_plan_region_init(regions, sizeof regions[0]);
  EXPECT_GT(fail_each(
                "regions",
                [&](orrery_error* e) { return orrery_plan_regions(path_source(p), nullptr, nullptr, nullptr, regions, 32, &n, e); }, [] {}),
            5);
  std::string json(100000, '\0');
  EXPECT_GT(fail_each(
                "inspect", [&](orrery_error* e) { return orrery_inspect(path_source(p), json.data(), json.size(), &n, e); }, [] {}),
            100);
}

TEST_F(OutOfMemory, Text) {
  orrery_vocab* h = nullptr;
  ASSERT_EQ(orrery_vocab_open(path_source(p), &h, nullptr), ORRERY_OK);
  const Vocab vocab(h);
  int32_t ids[100];
  char text[1000];
  size_t n = 0;
  fail_each(
      "tokenize", [&](orrery_error* e) { return orrery_tokenize(h, "the text</s>", 12, 3, ids, 100, &n, e); }, [] {});
  fail_each(
      "detokenize", [&](orrery_error* e) { return orrery_detokenize(h, ids, n, 1, text, 1000, &n, e); }, [] {});
  orrery_template_options o = options(&orrery_template_options_init);
  o.template_source =
      "{%- macro m(x) %}<{{ x | upper }}>{% endmacro %}{% for t in tools %}{{ t.name ~ ': ' ~ t | tojson "
      "}}{% endfor %}"
      "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{{ m.role | capitalize "
      "}} {{ m['content'] "
      "| trim }} {{ loop.index }}{% endfor %}{{ m(name) }}{{ ns.n }}{{ [3, 1, 2] | sort | join(',') }}";
  o.tools_json = R"([{"name": "clock", "parameters": {"zone": ["a", "b", 1.5, null]}}])";
  o.variables_json = R"({"name": "somebody with a longer name than fits"})";
  const int64_t requests = fail_each(
      "template",
      [&](orrery_error* e) {
        return orrery_render_chat(h, R"([{"role": "user", "content": " hello "}, {"role": "tool", "content": "x"}])", &o, text, 1000, &n,
                                  e);
      },
      [] {}, [&] { EXPECT_EQ(n, 0u); });
  EXPECT_GT(requests, 100);
}

// Sessions: two with the same past, one of which lives through the faults.
class SessionOutOfMemory : public OutOfMemory {
 protected:
  Runtime runtime = make_runtime();
  Model model = open_model(runtime, path);
  Session live = begun(), twin = begun();
  std::string file = dir.file("saved");

  Session begun() const {
    Session s = open_session(model, 512);
    ask(s, "a past of more than one page of sixty-four tokens, that both of them have in common", 4);
    return s;
  }
  void expect_twins() {
    EXPECT_EQ(orrery_session_n_messages(live.get()), orrery_session_n_messages(twin.get()));
    EXPECT_EQ(ask(live, "what next", 6).tokens, ask(twin, "what next", 6).tokens);
    EXPECT_EQ(tokens_of(live), tokens_of(twin));
    for (const Session* s : {&live, &twin}) orrery_session_rewind_messages(s->get(), 2, nullptr);
  }
};

TEST_F(SessionOutOfMemory, Open) {
  const uint64_t used = arena_used(runtime);
  orrery_session* h = nullptr;
  orrery_session_options o = session_options();
  o.n_context = 300;
  EXPECT_GT(fail_each(
                "session", [&](orrery_error* e) { return orrery_session_open(model.get(), &o, &h, e); }, [&] { orrery_session_free(h); },
                [&] { EXPECT_EQ(arena_used(runtime), used); }),
            5);
  // Larger than any before, so that the workspace grows.
  for (uint32_t context = 600; context <= 640; ++context) {
    orrery_error error;
    orrery_error_init(&error, sizeof error);
    o.n_context = context;
    arm(Fault::memory, context - 600);
    const orrery_status status = orrery_session_open(model.get(), &o, &h, &error);
    disarm(Fault::memory);
    EXPECT_TRUE(status == ORRERY_OK || status == ORRERY_OUT_OF_HOST_MEMORY) << error.message;
    orrery_session_free(h);
    expect_twins();
  }
}

TEST_F(SessionOutOfMemory, Messages) {
  const auto two_left = [&] { EXPECT_EQ(orrery_session_n_messages(live.get()), 2u); };
  const auto rewind = [&] { orrery_session_rewind_messages(live.get(), 2, nullptr); };
  fail_each(
      "add_message",
      [&](orrery_error* e) { return orrery_session_add_message(live.get(), "user", "a message that is too long to be kept in place", e); },
      rewind, two_left);
  fail_each(
      "add_message_json",
      [&](orrery_error* e) {
        return orrery_session_add_message_json(live.get(), R"({"role": "user", "content": "x", "more": [1, 2, {"a": "b"}]})", e);
      },
      rewind, two_left);
  fail_each(
      "message",
      [&](orrery_error* e) {
        char json[1000];
        size_t n = 0;
        return orrery_session_message(live.get(), 1, json, sizeof json, &n, e);
      },
      [] {});
  orrery_template_options o = options(&orrery_template_options_init);
  o.template_source = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";
  fail_each(
      "set_template", [&](orrery_error* e) { return orrery_session_set_template(live.get(), &o, e); },
      [&] { orrery_session_set_template(live.get(), nullptr, nullptr); }, [&] { expect_twins(); });
  fail_each(
      "rewind_messages", [&](orrery_error* e) { return orrery_session_rewind_messages(live.get(), 2, e); }, [] {});
  expect_twins();
}

TEST_F(SessionOutOfMemory, Generate) {
  say(twin, "go");
  const std::vector<int32_t> want = pull(generate(twin, generate_options(4))).tokens;
  say(live, "go");
  const char* stops[] = {"a stop string that is never said"};
  const orrery_logit_bias bias = {9, -1.0f};
  orrery_generate_options o = generate_options(4);
  o.stop = stops;
  o.n_stop = 1;
  o.logit_bias = &bias;
  o.n_logit_bias = 1;
  o.n_logprobs = 5;
  orrery_generation* g = nullptr;
  fail_each(
      "generate", [&](orrery_error* e) { return orrery_generate(live.get(), &o, &g, e); }, [&] { orrery_generation_free(g); },
      [&] {
        EXPECT_EQ(g, nullptr);
        EXPECT_EQ(orrery_session_n_messages(live.get()), 3u);
      });
  const int32_t tokens[] = {70, 71, 72};
  const Session raw = open_session(model);
  fail_each(
      "generate_tokens", [&](orrery_error* e) { return orrery_generate_tokens(raw.get(), tokens, 3, &o, &g, e); },
      [&] { orrery_generation_free(g); });
  EXPECT_EQ(pull(generate(live, generate_options(4))).tokens, want);
  orrery_session_rewind_messages(twin.get(), 2, nullptr);
  orrery_session_rewind_messages(live.get(), 2, nullptr);
  expect_twins();
}

// The pulling itself. A refused request ends the generation; the conversation and the session go on.
TEST_F(SessionOutOfMemory, Next) {
  int64_t n = 0;
  for (bool refused = true; refused; ++n) {
    ASSERT_LT(n, 100000);
    SCOPED_TRACE(n);
    say(live, "go");
    orrery_generate_options o = generate_options(6);
    o.ignore_end = 1;
    Generation g = generate(live, o);
    const int64_t before = live_blocks();
    Error error;
    arm(Fault::memory, n);
    const orrery_status status = orrery_run(
        g.get(), [](void*, const orrery_event*) { return 0; }, nullptr, &error);
    refused = disarm(Fault::memory);
    if (status != ORRERY_OK) {
      EXPECT_TRUE(refused);
      EXPECT_EQ(status, ORRERY_OUT_OF_HOST_MEMORY) << error.message;
      // It is over, and says so.
      orrery_event e = options(&orrery_event_init);
      EXPECT_EQ(orrery_next(g.get(), &e, nullptr), ORRERY_OK);
      EXPECT_EQ(e.type, uint32_t{ORRERY_EVENT_DONE});
    }
    g.reset();
    EXPECT_LE(live_blocks(), before + 8);  // the answer, in the conversation
    ASSERT_EQ(orrery_session_rewind_messages(live.get(), 2, nullptr), ORRERY_OK);
    expect_twins();
    ASSERT_FALSE(HasFailure());
  }
}

TEST_F(SessionOutOfMemory, TokensAndFork) {
  const size_t n_tokens = orrery_session_n_tokens(live.get());
  const std::vector<int32_t> more = {70, 71, 72, 73};
  const auto back = [&] { ASSERT_EQ(orrery_session_rewind(live.get(), n_tokens, nullptr), ORRERY_OK); };
  std::vector<float> logits(4 * 400);
  fail_each(
      "evaluate", [&](orrery_error* e) { return orrery_session_evaluate(live.get(), more.data(), more.size(), logits.data(), e); }, back,
      [&] { EXPECT_EQ(orrery_session_n_tokens(live.get()), n_tokens); });
  fail_each(
      "rewind", [&](orrery_error* e) { return orrery_session_rewind(live.get(), n_tokens, e); }, [] {});
  orrery_session* child = nullptr;
  fail_each(
      "fork", [&](orrery_error* e) { return orrery_session_fork(live.get(), &child, e); }, [&] { orrery_session_free(child); },
      [&] { EXPECT_EQ(child, nullptr); });
  expect_twins();
}

TEST_F(SessionOutOfMemory, SaveAndLoad) {
  fail_each(
      "save", [&](orrery_error* e) { return orrery_session_save(live.get(), file.c_str(), e); }, [&] { std::filesystem::remove(file); },
      [&] {
        size_t entries = 0;
        for (const auto& entry : std::filesystem::directory_iterator(dir.file(""))) entries += entry.exists();
        EXPECT_EQ(entries, 1u) << "a temporary file stayed";  // the model
      });
  std::vector<unsigned char> bytes = save(live);
  fail_each(
      "save_buffer",
      [&](orrery_error* e) {
        size_t n = 0;
        return orrery_session_save_buffer(live.get(), bytes.data(), bytes.size(), &n, e);
      },
      [] {});

  const Session other = open_session(model, 512);
  ask(other, "another past", 3);
  const std::vector<unsigned char> others = save(other);
  ASSERT_EQ(orrery_session_save(other.get(), file.c_str(), nullptr), ORRERY_OK);
  const auto back = [&] { ASSERT_EQ(orrery_session_load_buffer(live.get(), bytes.data(), bytes.size(), nullptr), ORRERY_OK); };
  // A failed load leaves the live session with its past.
  fail_each(
      "load", [&](orrery_error* e) { return orrery_session_load(live.get(), file.c_str(), e); }, back, [&] { expect_twins(); });
  fail_each(
      "load_buffer", [&](orrery_error* e) { return orrery_session_load_buffer(live.get(), others.data(), others.size(), e); }, back,
      [&] { expect_twins(); });
}

// Whatever is freed first, no account stays open: all that a handle stood for has been given back.
TEST_F(OutOfMemory, AccountsEndWithTheirHandles) {
  const uint64_t before = n_accounts();
  const auto everything = [&](const char* policy) {
    Runtime runtime = make_runtime(2);
    Model model = open_model(runtime, path);
    Vocab vocab(orrery_model_vocab(model.get()));
    orrery_session_options o = session_options();
    o.n_context = 512;
    o.policy = policy;
    if (policy) o.kv_budget_share = .5f;
    Session session = open_session(model, o);
    ask(session, "a past of more than one page of sixty-four tokens, to have something to keep, and to fork", 6);
    Session child = fork_of(session);
    Generation generation = generate(session, generate_options(4));
    EXPECT_GE(n_accounts(), before + 4);
    runtime.reset();
    model.reset();
    session.reset();
    ask(child, "what next", 4);
    vocab.reset();
    child.reset();
    EXPECT_GE(n_accounts(), before + 3) << "the generation keeps the runtime, the model and the session";
    generation.reset();
    EXPECT_EQ(n_accounts(), before);
  };
  for (const char* policy : {static_cast<const char*>(nullptr), "auto", "freekv", "heterocache", "shadowkv"}) {
    SCOPED_TRACE(policy ? policy : "full");
    everything(policy);
  }
}

// What a session's calls allocate for the model or the runtime is not on the session's account: that ends with the session.
TEST_F(OutOfMemory, ASessionsAccountEndsBeforeTheModels) {
  orrery_runtime_options r = runtime_options();
  r.n_threads = 2;
  r.device_budget_bytes = uint64_t{256} << 20;
  r.link_latency_us = 1;  // a link that is simulated has an I/O thread
  orrery_runtime* h = nullptr;
  ASSERT_EQ(orrery_runtime_create(&r, &h, nullptr), ORRERY_OK);
  const Runtime runtime(h);
  const Model model = open_model(runtime, path);
  const uint64_t before = n_accounts();
  for (const char* policy : {static_cast<const char*>(nullptr), "auto", "freekv", "heterocache", "shadowkv", "quest"}) {
    SCOPED_TRACE(policy ? policy : "full");
    orrery_session_options o = session_options();
    o.n_context = 512;
    o.policy = policy;
    if (policy) o.kv_budget_share = .5f;
    Session session = open_session(model, o);
    ask(session, "a past of more than one page of sixty-four tokens, to have something to keep, and to fork", 6);
    std::vector<unsigned char> saved = save(session);
    ASSERT_EQ(orrery_session_load_buffer(session.get(), saved.data(), saved.size(), nullptr), ORRERY_OK);
    Session child = fork_of(session);
    session.reset();
    ask(child, "what next", 4);  // the fork shares the messages: until then the other session's account stays
    child.reset();
    EXPECT_EQ(n_accounts(), before);
  }
  // Pages that a fork shares are the model's.
  Session session = open_session(model, 512);
  ASSERT_EQ(orrery_session_evaluate(session.get(), std::vector<int32_t>(300, 70).data(), 300, nullptr, nullptr), ORRERY_OK);
  const Session child = fork_of(session);
  session.reset();
  EXPECT_EQ(n_accounts(), before + 1);
}

// A parked session that cannot come back stays parked, and comes back later.
TEST_F(OutOfMemory, Resuming) {
  orrery_runtime_options o = runtime_options();
  o.n_threads = 1;
  o.max_sessions = 1;
  orrery_runtime* h = nullptr;
  ASSERT_EQ(orrery_runtime_create(&o, &h, nullptr), ORRERY_OK);
  const Runtime runtime(h);
  const Model model = open_model(runtime, path);
  Session parent = open_session(model, 256);
  ask(parent, "something", 4);
  const auto park = [&] {
    Session child = fork_of(parent);
    parent = std::move(child);
  };
  const std::vector<int32_t> tokens = tokens_of(parent);
  orrery_session* child = nullptr;
  fail_each(
      "parked fork", [&](orrery_error* e) { return orrery_session_fork(parent.get(), &child, e); }, [&] { orrery_session_free(child); });
  fail_each(
      "resume", [&](orrery_error* e) { return orrery_session_rewind(parent.get(), tokens.size(), e); }, park,
      [&] { EXPECT_EQ(tokens_of(parent), tokens); });
  const Runtime other_runtime = make_runtime();
  const Model other_model = open_model(other_runtime, path);
  const Session other = open_session(other_model, 256);
  ask(other, "something", 4);
  EXPECT_EQ(ask(parent, "more", 4).tokens, ask(other, "more", 4).tokens);
}

TEST_F(OutOfMemory, CompressedSessions) {
  const Runtime runtime = make_runtime();
  const Model model = open_model(runtime, path);
  orrery_session_options o = session_options();
  o.n_context = 256;
  o.policy = "streaming";
  o.kv_budget_share = 0.5f;
  orrery_session* opened = nullptr;
  fail_each(
      "open under a policy", [&](orrery_error* e) { return orrery_session_open(model.get(), &o, &opened, e); },
      [&] { orrery_session_free(opened); });
  const Session session = open_session(model, o);
  const std::vector<int32_t> expected = ask(session, "something", 8).tokens;
  orrery_session* child = nullptr;
  fail_each(
      "fork under a policy", [&](orrery_error* e) { return orrery_session_fork(session.get(), &child, e); },
      [&] { orrery_session_free(child); });
  EXPECT_EQ(ask(open_session(model, o), "something", 8).tokens, expected);
}

TEST_F(OutOfMemory, NothingIsNeededToFree) {
  Runtime runtime = make_runtime(2);
  Model model = open_model(runtime, path);
  Session session = open_session(model);
  Session child = fork_of(session);
  say(session, "hello");
  Generation generation = generate(session, generate_options(9));
  for (int i = 0; i < 4; ++i) {
    orrery_event e = options(&orrery_event_init);
    ASSERT_EQ(orrery_next(generation.get(), &e, nullptr), ORRERY_OK);
  }
  arm(Fault::memory, 0, true);
  orrery_cancel(generation.get());
  generation.reset();
  session.reset();
  child.reset();
  model.reset();
  runtime.reset();
  disarm(Fault::memory);
}

}  // namespace
}  // namespace orrery::testing
