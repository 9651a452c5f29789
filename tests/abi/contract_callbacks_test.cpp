// Callbacks that do what orrery.h forbids: free the handle that calls them, throw, or leave by longjmp(). Nothing hangs, and nothing is
// used after it is freed. Only longjmp() loses a session.
#include <gtest/gtest.h>
#include <setjmp.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <utility>

#include "tests/abi/handles.h"
#include "tests/support/temp_dir.h"

namespace orrery::testing::contract_callbacks_test {
namespace {

class Callbacks : public ::testing::Test {
 protected:
  TempDir dir;
  Runtime runtime = make_runtime();
  Model model = open_model(runtime, dir.write("tiny.gguf", TinyModel().build()));
  Session session = open_session(model, 512);
};

struct Handles {
  orrery_generation* generation = nullptr;
  int calls = 0;
};

TEST_F(Callbacks, AHookThatFreesItsGenerationCancelsIt) {
  Handles handles;
  orrery_generate_options o = generate_options(50);
  o.logits_user = &handles;
  o.logits_hook = [](void* user, float*, size_t, const int32_t*, size_t) -> int32_t {
    Handles& h = *static_cast<Handles*>(user);
    if (++h.calls == 3) orrery_generation_free(h.generation);
    return 0;
  };
  say(session, "hello");
  const Generation g = generate(session, o);
  handles.generation = g.get();
  const Answer a = pull(g);
  EXPECT_EQ(a.done.finish_reason, uint32_t{ORRERY_FINISH_CANCELLED});
  EXPECT_EQ(a.tokens.size(), 3u);
  EXPECT_EQ(ask(session, "go on", 3).tokens.size(), 3u);
}

TEST_F(Callbacks, AnEventFunctionThatFreesItsGenerationCancelsIt) {
  for (const uint32_t type : {uint32_t{ORRERY_EVENT_PROGRESS}, uint32_t{ORRERY_EVENT_TOKEN}, uint32_t{ORRERY_EVENT_DONE}}) {
    struct State : Handles {
      uint32_t type = 0, finish = 0;
    } state;
    state.type = type;
    say(session, "hello");
    const Generation g = generate(session, generate_options(4));
    state.generation = g.get();
    EXPECT_EQ(orrery_run(
                  g.get(),
                  [](void* user, const orrery_event* e) -> int32_t {
                    State& s = *static_cast<State*>(user);
                    if (e->type == ORRERY_EVENT_DONE) s.finish = e->finish_reason;
                    if (e->type == s.type) orrery_generation_free(s.generation);
                    return 0;
                  },
                  &state, nullptr),
              ORRERY_OK);
    const uint32_t expected = type == ORRERY_EVENT_DONE ? ORRERY_FINISH_LENGTH : ORRERY_FINISH_CANCELLED;
    EXPECT_EQ(state.finish, expected);
    ASSERT_EQ(orrery_session_rewind_messages(session.get(), 0, nullptr), ORRERY_OK);
  }
}

TEST_F(Callbacks, ASessionFreedInACallbackLivesUntilItsGenerationIsFreed) {
  orrery_session* handle = session.release();
  orrery_generate_options o = generate_options(3);
  o.logits_user = &handle;
  o.logits_hook = [](void* user, float*, size_t, const int32_t*, size_t) -> int32_t {
    orrery_session_free(std::exchange(*static_cast<orrery_session**>(user), nullptr));
    return 0;
  };
  Error error;
  ASSERT_EQ(orrery_session_add_message(handle, "user", "hello", &error), ORRERY_OK);
  orrery_generation* g = nullptr;
  ASSERT_EQ(orrery_generate(handle, &o, &g, &error), ORRERY_OK) << error.message;
  EXPECT_EQ(pull(Generation(g)).tokens.size(), 3u);
}

TEST_F(Callbacks, AnExceptionOfAHookIsAnErrorOfTheCall) {
  orrery_generate_options o = generate_options(3);
  o.logits_hook = [](void*, float*, size_t, const int32_t*, size_t) -> int32_t { throw std::runtime_error("thrown by the hook"); };
  say(session, "hello");
  const Generation g = generate(session, o);
  orrery_event e = options(&orrery_event_init);
  Error error;
  orrery_status status = ORRERY_OK;
  while (status == ORRERY_OK && e.type != ORRERY_EVENT_DONE) status = orrery_next(g.get(), &e, &error);
  EXPECT_EQ(status, ORRERY_INTERNAL);
  EXPECT_STREQ(error.message, "thrown by the hook");
  EXPECT_EQ(orrery_session_n_messages(session.get()), 1u);
  EXPECT_EQ(ask(session, "go on", 3).tokens.size(), 3u);
}

TEST_F(Callbacks, FreeingWaitsForACallOnAnotherThread) {
  std::atomic<bool> inside{false}, left{false};
  struct State {
    std::atomic<bool>&inside, &left;
  } state{inside, left};
  orrery_generate_options o = generate_options(5);
  o.logits_user = &state;
  o.logits_hook = [](void* user, float*, size_t, const int32_t*, size_t) -> int32_t {
    State& s = *static_cast<State*>(user);
    s.inside = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    s.left = true;
    return 0;
  };
  orrery_generation* g = generate_tokens(session, {70, 71}, o).release();
  orrery_event e = options(&orrery_event_init);
  for (int i = 0; i < 2; ++i) ASSERT_EQ(orrery_next(g, &e, nullptr), ORRERY_OK);
  ASSERT_EQ(e.type, uint32_t{ORRERY_EVENT_PROGRESS});
  std::thread caller([&] { orrery_next(g, &e, nullptr); });
  while (!inside) std::this_thread::yield();
  orrery_generation_free(g);
  EXPECT_TRUE(left);
  caller.join();
  EXPECT_EQ(ask(session, "go on", 3).tokens.size(), 3u);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they follow stacks, and report what is lost
// The handles are lost, as the header says: they are neither freed nor usable. But nobody waits for them.
jmp_buf leave;

TEST_F(Callbacks, LongjmpOutOfAHookLosesTheSessionAndHangsNothing) {
  orrery_generate_options o = generate_options(3);
  o.logits_hook = [](void*, float*, size_t, const int32_t*, size_t) -> int32_t { longjmp(leave, 1); };
  say(session, "hello");
  orrery_generation* g = generate(session, o).release();
  if (setjmp(leave) == 0) {
    orrery_event e;
    orrery_event_init(&e, sizeof e);
    while (orrery_next(g, &e, nullptr) == ORRERY_OK) continue;
    ADD_FAILURE() << "the hook was never called";
  }
  orrery_generation_free(g);
  orrery_generation_free(g);  // not freed: nothing is used after it
  size_t n = 0;
  EXPECT_EQ(orrery_session_tokens(session.get(), nullptr, 0, &n, nullptr), ORRERY_BUSY);
  EXPECT_EQ(orrery_session_rewind(session.get(), 0, nullptr), ORRERY_BUSY);
  // Others of the model go on.
  const Session other = open_session(model);
  EXPECT_EQ(ask(other, "hello", 3).tokens.size(), 3u);
}
#endif

}  // namespace
}  // namespace orrery::testing::contract_callbacks_test
