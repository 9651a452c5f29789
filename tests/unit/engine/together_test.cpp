// Sessions whose decode steps are computed at once. Each gives the bits that it gives alone, whatever the others are and do: their
// policies, their positions, their errors. A session that asks waits for the step under way, and then for its own.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <thread>
#include <vector>

#include "runtime/engine/answer/generation.h"
#include "tests/support/lone_session.h"
#include "tests/support/policy_sessions.h"

namespace orrery::together_test {
namespace {

using namespace testing;
using engine::LanguageModel;
using engine::Session;

LanguageModel::DecodeCounts counts_of(LanguageModel* model) {
  const Turn turn = model->runtime().take_turn();
  return model->decode_counts(turn);
}

void expect_same(const Lone& alone, const Lone& together, const std::string& what) {
  EXPECT_EQ(alone.tokens, together.tokens) << what;
  EXPECT_TRUE(same_bits(alone.trace, together.trace)) << what;
  EXPECT_TRUE(same_bits(alone.embeddings, together.embeddings)) << what;
  EXPECT_EQ(alone.generated, together.generated) << what;
  EXPECT_EQ(alone.kv_read, together.kv_read) << what;
  EXPECT_EQ(alone.settled, together.settled) << what;
}

Lone alone(const std::shared_ptr<LanguageModel>& model, const engine::SessionOptions& options, size_t n_prompt, uint64_t seed, size_t n) {
  Lone lone{options, random_tokens(*model, n_prompt, seed), {}, {}, {}, 0, 0, 0};
  const auto session = begun(model, lone);
  for (size_t i = 0; i < n; ++i) feed(session.get(), argmax(session->logits())), note(session.get(), &lone);
  return lone;
}

Lone emptied(const Lone& lone) { return {lone.options, lone.prompt, {}, {}, {}, 0, 0, 0}; }

// One step of all these sessions at once.
void step_together(Span<Session* const> sessions, Span<Lone> lones) {
  std::vector<engine::Decoder::Call> calls(sessions.size());
  for (size_t i = 0; i < sessions.size(); ++i) {
    sessions[i]->push_generated(argmax(sessions[i]->logits()));
    EXPECT_TRUE(sessions[i]->decoder().decodes_together());
    calls[i].decoder = &sessions[i]->decoder();
  }
  engine::Decoder::decode_together({calls.data(), calls.size()});
  for (size_t i = 0; i < sessions.size(); ++i) {
    EXPECT_TRUE(calls[i].status.ok() && !calls[i].thrown) << calls[i].status.message();
    note(sessions[i], &lones[i]);
  }
}

engine::SessionOptions full(uint32_t n_context, KvType kv) {
  engine::SessionOptions o;
  o.n_context = n_context;
  o.kv_type = kv;
  o.chunk_tokens = 32;
  return o;
}

// Nine sessions of every KV type and of policies of every kind, at positions on both sides of pages and of splits.
std::vector<Lone> mixed(const std::shared_ptr<LanguageModel>& model, size_t n) {
  const auto mode = [&](const char* name, KvType kv) {
    for (const PolicyMode& m : policy_modes())
      if (m.name == std::string(name)) return with_mode(m, 0.5, 640, kv);
    throw std::runtime_error(name);
  };
  std::vector<Lone> lones;
  lones.push_back(alone(model, full(640, KvType::f16), 63, 1, n));
  lones.push_back(alone(model, mode("quest", KvType::f16), 130, 2, n));
  lones.push_back(alone(model, full(640, KvType::q4_0), 520, 3, n));
  lones.push_back(alone(model, mode("infinigen", KvType::f16), 200, 4, n));
  lones.push_back(alone(model, full(128, KvType::f32), 5, 5, n));
  lones.push_back(alone(model, mode("duoattention_compensated", KvType::q8_0), 90, 6, n));
  lones.push_back(alone(model, mode("h2o", KvType::f16), 70, 7, n));
  lones.push_back(alone(model, mode("shadowkv", KvType::f16), 150, 8, n));
  lones.push_back(alone(model, full(640, KvType::k8v4), 515, 9, n));
  return lones;
}

class Together : public ::testing::TestWithParam<const char*> {};

// 2 to 8 of them, from one thread.
TEST_P(Together, MixedSessionsHaveTheBitsOfStepsAlone) {
  const auto model = open_spec(GetParam(), runtime_options(2, test_cpu_path(), 256u << 20));
  constexpr size_t kTokens = 12;
  const std::vector<Lone> expected = mixed(model, kTokens);
  for (size_t n = 2; n <= expected.size(); n += 3) {
    std::vector<std::unique_ptr<Session>> sessions;
    std::vector<Session*> all;
    std::vector<Lone> found;
    for (size_t i = 0; i < n; ++i) {
      const Lone& lone = expected[expected.size() - 1 - i];
      sessions.push_back(begun(model, lone));
      all.push_back(sessions.back().get());
      found.push_back(emptied(lone));
    }
    const LanguageModel::DecodeCounts before = counts_of(model.get());
    for (size_t i = 0; i < kTokens; ++i) step_together(all, {found.data(), n});
    const LanguageModel::DecodeCounts after = counts_of(model.get());
    EXPECT_EQ(after.passes - before.passes, kTokens);
    EXPECT_EQ(after.steps - before.steps, n * kTokens);
    for (size_t i = 0; i < n; ++i)
      expect_same(expected[expected.size() - 1 - i], found[i], std::to_string(n) + " sessions, " + std::to_string(i));
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Together, ::testing::Values("qwen3", "phi3-window", "llama-256"), [](const auto& tested) {
  std::string name = tested.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

// ---- Threads ----

// Threads that compute tokens of sessions, once the test lets them: they wait for the turn that it holds.
class InThreads {
 public:
  explicit InThreads(LanguageModel* model) : model_(*model), turn_(new Turn(model->runtime().take_turn())) {}
  ~InThreads() { release(); }
  void decode(Session* session, size_t n, Lone* lone, Status* status = nullptr, const std::atomic<bool>* cancel = nullptr) {
    const size_t waiting = model_.runtime().turns().n_waiting();
    threads_.emplace_back([=] {
      for (size_t i = 0; i < n; ++i) {
        session->push_generated(argmax(session->logits()));
        Status ended = session->decode(nullptr, cancel);
        if (!ended.ok() || status) {
          if (status) *status = std::move(ended);
          return;
        }
        note(session, lone);
      }
    });
    wait_for(waiting + 1);
  }
  void wait_for(size_t n_waiting) {
    while (model_.runtime().turns().n_waiting() != n_waiting) std::this_thread::yield();
  }
  void release() {
    turn_.reset();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

 private:
  LanguageModel& model_;
  std::unique_ptr<Turn> turn_;
  std::vector<std::thread> threads_;
};

// Those that wait for the turn are computed in one pass, however many they are; a pass takes kMostTogether, and the rest comes next.
TEST(TogetherInThreads, WhoeverWaitsIsComputedInTheNextStep) {
  const auto model = [] {
    engine::RuntimeOptions options = runtime_options(2, test_cpu_path(), 256u << 20);
    options.max_sessions = 64;
    return open_spec("qwen3", options);
  }();
  const Lone expected = alone(model, full(64, KvType::f16), 10, 1, 1);
  for (const size_t n : {size_t{1}, size_t{2}, size_t{7}, size_t{33}}) {
    std::vector<std::unique_ptr<Session>> sessions;
    for (size_t i = 0; i < n; ++i) sessions.push_back(begun(model, expected));
    std::vector<Lone> found(n, emptied(expected));
    const LanguageModel::DecodeCounts before = counts_of(model.get());
    {
      InThreads threads(model.get());
      for (size_t i = 0; i < n; ++i) threads.decode(sessions[i].get(), 1, &found[i]);
    }
    const LanguageModel::DecodeCounts after = counts_of(model.get());
    EXPECT_EQ(after.passes - before.passes, n <= 32 ? 1u : 2u);
    EXPECT_EQ(after.steps - before.steps, n);
    for (const Lone& lone : found) expect_same(expected, lone, std::to_string(n));
  }
}

// A prompt's chunk keeps its place in the order; those that asked behind it go with those before it.
TEST(TogetherInThreads, APromptWaitsForOneStep) {
  const auto model = open_spec("qwen3", runtime_options(2, test_cpu_path(), 256u << 20));
  const Lone expected = alone(model, full(64, KvType::f16), 10, 1, 1);
  std::vector<std::unique_ptr<Session>> sessions;
  for (size_t i = 0; i < 4; ++i) sessions.push_back(begun(model, expected));
  const auto prompted = unwrap(Session::open(model, expected.options));
  std::vector<Lone> found(4, emptied(expected));
  uint64_t passes_before_prompt = 0;
  const LanguageModel::DecodeCounts before = counts_of(model.get());
  std::thread prompt;
  {
    InThreads threads(model.get());
    threads.decode(sessions[0].get(), 1, &found[0]);
    prompt = std::thread([&] {
      unwrap(prompted->prefill(expected.prompt, nullptr, nullptr));
      passes_before_prompt = counts_of(model.get()).passes;
    });
    threads.wait_for(2);
    for (size_t i = 1; i < 4; ++i) threads.decode(sessions[i].get(), 1, &found[i]);
  }
  prompt.join();
  EXPECT_EQ(passes_before_prompt - before.passes, 1u);
  EXPECT_EQ(counts_of(model.get()).passes - before.passes, 1u);
  for (const Lone& lone : found) expect_same(expected, lone, "");
}

// ---- Whoever asks first waits for the others of the last step ----

// A clock that goes on only within steps, and once nothing has happened for long: then waits for members end.
struct StepClock {
  std::atomic<uint64_t> time{1};
  std::atomic<int> asked{0};
  std::atomic<bool> gave_up{false};
  std::atomic<uint64_t> step_us{1'000'000};
  uint64_t operator()() {
    if (++asked > 50) time += 1'000'000, gave_up = true;  // a wait asks every 20 ms
    return time;
  }
  // Each step of the session takes step_us.
  void follow(Session* session) {
    session->resident()->set_step_fault([this](uint64_t) {
      time += step_us, asked = 0;
      return ok_status();
    });
  }
};

class TogetherAgain : public ::testing::Test {
 protected:
  TogetherAgain() : model_(make()), expected_(alone(model_, with_mode(policy_modes()[0], 0.5), 60, 1, 8)) {}
  // A session that has settled.
  std::unique_ptr<Session> settled() {
    auto session = begun(model_, expected_);
    feed(session.get(), argmax(session->logits()));
    clock_.follow(session.get());
    return session;
  }
  std::unique_ptr<engine::Generation> answering(Session* session, uint32_t max_tokens) {
    engine::GenerateOptions options;
    options.max_tokens = max_tokens;
    options.ignore_end = true;
    const std::vector<int32_t> more = {3, 4, 5};
    std::vector<int32_t> prompt = as_vector(session->tokens());
    prompt.insert(prompt.end(), more.begin(), more.end());
    auto generation = unwrap(engine::Generation::proceed(session, prompt, options));
    pull(generation.get(), 1);
    pull(generation.get(), 1);  // the first step behind a prompt settles
    return generation;
  }
  // n tokens, or as many as come.
  static size_t pull(engine::Generation* generation, size_t n) {
    engine::Event event;
    size_t pulled = 0;
    while (pulled < n) {
      unwrap(generation->next(&event));
      if (event.type == engine::EventType::done) break;
      pulled += event.type == engine::EventType::token;
    }
    return pulled;
  }
  // A token of each of the two, in one step.
  void one_step(Session* a, Session* b) {
    const uint64_t passes = counts_of(model_.get()).passes;
    Lone found[2];
    {
      InThreads threads(model_.get());
      threads.decode(a, 1, &found[0]);
      threads.decode(b, 1, &found[1]);
    }
    EXPECT_EQ(counts_of(model_.get()).passes - passes, 1u);
  }
  std::shared_ptr<LanguageModel> make() {
    engine::RuntimeOptions options = runtime_options(2, test_cpu_path(), 256u << 20);
    options.turn_clock = [this] { return clock_(); };
    return open_spec("qwen3", options);
  }
  void TearDown() override { EXPECT_FALSE(clock_.gave_up) << "somebody has waited for a session that did not come"; }

  StepClock clock_;
  std::shared_ptr<LanguageModel> model_;
  Lone expected_;
};

// However the threads run: a step takes a second, so there is time to wait, and each step has all sessions.
TEST_F(TogetherAgain, EveryStepHasAllSessions) {
  constexpr size_t kSessions = 4, kTokens = 6;
  std::vector<std::unique_ptr<Session>> sessions;
  for (size_t i = 0; i < kSessions; ++i) sessions.push_back(settled());
  std::vector<Lone> found(kSessions);
  const LanguageModel::DecodeCounts before = counts_of(model_.get());
  {
    InThreads threads(model_.get());
    for (size_t i = 0; i < kSessions; ++i) threads.decode(sessions[i].get(), kTokens, &found[i]);
  }
  EXPECT_EQ(counts_of(model_.get()).passes - before.passes, kTokens);
  for (const Lone& lone : found)
    EXPECT_EQ(lone.tokens, std::vector<int32_t>(expected_.tokens.begin() + 1, expected_.tokens.begin() + 1 + kTokens));
}

// A session that settles in its own turn, and gathers the others for the step, is awaited behind it.
TEST_F(TogetherAgain, SoItIsWithASessionThatSettles) {
  const auto settles = begun(model_, expected_), other = settled();
  std::vector<Lone> found(2);
  const uint64_t before = counts_of(model_.get()).passes;
  {
    InThreads threads(model_.get());
    threads.decode(settles.get(), 4, &found[0]);
    threads.decode(other.get(), 4, &found[1]);
  }
  EXPECT_EQ(counts_of(model_.get()).passes - before, 4u);
}

TEST_F(TogetherAgain, ASessionIsAwaitedBehindTheStepInWhichItSettled) {
  const auto settles = begun(model_, expected_), other = settled();
  one_step(settles.get(), other.get());
  const uint64_t before = counts_of(model_.get()).passes;
  clock_.asked = 0;
  std::atomic<bool> over{false};
  std::thread thread([&] { feed(other.get(), 1), over = true; });
  while (!over && clock_.asked < 4) std::this_thread::yield();  // it waits
  feed(settles.get(), 1);
  thread.join();
  EXPECT_EQ(counts_of(model_.get()).passes - before, 1u);
}

TEST_F(TogetherAgain, NobodyWaitsForASessionThatHasEnded) {
  const auto a = settled(), b = settled(), c = settled();
  std::unique_ptr<engine::Generation> answers[] = {answering(a.get(), 4), answering(b.get(), 7), answering(c.get(), 20)};
  size_t pulled[3] = {};
  const uint64_t before = counts_of(model_.get()).passes;
  {
    std::vector<std::thread> threads;
    std::optional<Turn> turn(model_->runtime().take_turn());
    for (size_t i = 0; i < 3; ++i) threads.emplace_back([&, i] { pulled[i] = pull(answers[i].get(), 10); });
    while (model_->runtime().turns().n_waiting() != 3) std::this_thread::yield();
    turn.reset();
    for (std::thread& thread : threads) thread.join();
  }
  EXPECT_EQ(pulled[0], 2u);
  EXPECT_EQ(pulled[1], 5u);
  EXPECT_EQ(pulled[2], 10u);
  EXPECT_EQ(counts_of(model_.get()).passes - before, 10u);
}

TEST_F(TogetherAgain, NobodyWaitsForASessionThatIsDestroyedComputesAPromptOrIsPulledWithOthers) {
  const auto a = settled();
  for (const int way : {0, 1, 2}) {
    auto b = settled();
    one_step(a.get(), b.get());
    if (way == 0) b.reset();
    if (way == 1) unwrap(b->prefill({&expected_.prompt[0], 1}, nullptr, nullptr));
    if (way == 2) {  // by one thread with several sessions: it may look after them for long
      b->push_generated(1);
      engine::Decoder::Call call;
      call.decoder = &b->decoder();
      clock_.step_us = 0;  // else b is late
      engine::Decoder::decode_together({&call, 1});
      unwrap(std::move(call.status));
    }
    feed(a.get(), 1);
    EXPECT_FALSE(clock_.gave_up) << way;
  }
}

TEST_F(TogetherAgain, NobodyWaitsForASessionWhoseAnswerIsCancelledOrAbandoned) {
  for (const bool cancels : {true, false}) {
    const auto a = settled(), b = settled();
    const auto answer = answering(b.get(), 0);
    std::thread thread;
    Lone found;
    {
      InThreads threads(model_.get());
      threads.decode(a.get(), 1, &found);
      thread = std::thread([&] { pull(answer.get(), 1); });
      threads.wait_for(2);
    }
    thread.join();
    cancels ? answer->cancel() : answer->abandon();  // and nobody pulls it
    feed(a.get(), 1);
    EXPECT_FALSE(clock_.gave_up) << cancels;
  }
}

// One thread pulls two sessions by turns, another thread a third: a step of both threads is followed by one of the first thread's other
// session. Only the first time the wait is in vain.
TEST_F(TogetherAgain, OneThreadWithTwoSessionsIsAwaitedOnce) {
  const auto a = settled(), b = settled(), c = settled();
  one_step(a.get(), c.get());
  feed(b.get(), 1), feed(b.get(), 1);
  EXPECT_TRUE(clock_.gave_up) << "b has waited for a and c";
  clock_.gave_up = false, clock_.asked = 0;
  feed(c.get(), 1), feed(a.get(), 1);  // late
  one_step(a.get(), c.get());
  feed(b.get(), 1);
}

// Sessions of every policy, each in a thread, with a session of policy full beside each.
class TogetherUnder : public ::testing::TestWithParam<PolicyMode> {};

TEST_P(TogetherUnder, ThreadsHaveTheBitsOfStepsAlone) {
  const auto model = open_spec("qwen3", runtime_options(2, test_cpu_path(), 256u << 20));
  constexpr size_t kTokens = 40;  // tails fill, so some steps settle
  std::vector<Lone> expected;
  expected.push_back(alone(model, with_mode(GetParam(), 0.6, 320), 150, 1, kTokens));
  expected.push_back(alone(model, with_mode(GetParam(), 0.7, 320), 97, 2, kTokens));
  expected.push_back(alone(model, full(320, KvType::f16), 100, 3, kTokens));
  std::vector<std::unique_ptr<Session>> sessions;
  std::vector<Lone> found;
  for (const Lone& lone : expected) sessions.push_back(begun(model, lone)), found.push_back(emptied(lone));
  const LanguageModel::DecodeCounts before = counts_of(model.get());
  {
    InThreads threads(model.get());
    for (size_t i = 0; i < sessions.size(); ++i) threads.decode(sessions[i].get(), kTokens, &found[i]);
  }
  const LanguageModel::DecodeCounts after = counts_of(model.get());
  EXPECT_EQ(after.steps - before.steps, sessions.size() * kTokens);
  EXPECT_LT(after.passes - before.passes, after.steps - before.steps) << "some steps were computed at once";
  for (size_t i = 0; i < sessions.size(); ++i) expect_same(expected[i], found[i], std::to_string(i));
}

INSTANTIATE_TEST_SUITE_P(Policies, TogetherUnder, ::testing::ValuesIn(policy_modes()),
                         [](const auto& tested) { return std::string(tested.param.name); });

// A fork is made between the steps of others, and parent and fork then share steps with them: all have the bits that they have alone.
TEST(TogetherInThreads, AForkIsMadeWhileOthersDecode) {
  const auto model = open_spec("qwen3", runtime_options(2, test_cpu_path(), 256u << 20));
  constexpr size_t kTokens = 12;
  for (const char* name : {"full", "snapkv", "quest", "auto_in_parts"}) {
    engine::SessionOptions options = full(320, KvType::f16);
    for (const PolicyMode& mode : policy_modes())
      if (mode.name == std::string(name)) options = with_mode(mode, 0.5, 320);
    const Lone expected = alone(model, options, 100, 1, 2 * kTokens), other = alone(model, full(320, KvType::f16), 70, 2, 2 * kTokens);
    Lone of_parent = emptied(expected), of_fork = emptied(expected), of_other = emptied(other);
    const auto parent = begun(model, expected), beside = begun(model, other);
    for (size_t i = 0; i < kTokens; ++i) feed(parent.get(), argmax(parent->logits())), note(parent.get(), &of_parent);
    of_fork = of_parent;
    std::unique_ptr<Session> fork;
    std::thread forks;
    {
      InThreads threads(model.get());
      threads.decode(beside.get(), kTokens, &of_other);
      forks = std::thread([&] { fork = unwrap(parent->fork()); });  // takes no turn under policy full
    }
    forks.join();
    fork->stats() = parent->stats();
    const LanguageModel::DecodeCounts before = counts_of(model.get());
    {
      InThreads threads(model.get());
      threads.decode(parent.get(), kTokens, &of_parent);
      threads.decode(fork.get(), kTokens, &of_fork);
      threads.decode(beside.get(), kTokens, &of_other);
    }
    const LanguageModel::DecodeCounts after = counts_of(model.get());
    EXPECT_EQ(after.steps - before.steps, 3 * kTokens);
    EXPECT_LT(after.passes - before.passes, 3 * kTokens);
    for (const Lone* found : {&of_parent, &of_fork}) {
      EXPECT_EQ(found->tokens, expected.tokens) << name;
      EXPECT_TRUE(same_bits(found->trace, expected.trace)) << name;
    }
    expect_same(other, of_other, name);
  }
}

// ---- What belongs to one session stays with it ----

// A session that is cancelled while it waits leaves; the others go on.
TEST(TogetherInThreads, ACancelledSessionLeavesTheOthers) {
  const auto model = open_spec("qwen3", runtime_options(2, test_cpu_path(), 256u << 20));
  const Lone expected = alone(model, full(64, KvType::f16), 10, 1, 2);
  std::vector<std::unique_ptr<Session>> sessions;
  for (size_t i = 0; i < 3; ++i) sessions.push_back(begun(model, expected));
  std::vector<Lone> found(3, emptied(expected));
  std::atomic<bool> cancel{false};
  Status cancelled;
  const LanguageModel::DecodeCounts before = counts_of(model.get());
  {
    InThreads threads(model.get());
    threads.decode(sessions[0].get(), 2, &found[0]);
    threads.decode(sessions[1].get(), 2, &found[1], &cancelled, &cancel);
    threads.decode(sessions[2].get(), 2, &found[2]);
    cancel = true;
    threads.wait_for(2);
  }
  EXPECT_EQ(cancelled.code(), Code::cancelled);
  EXPECT_EQ(counts_of(model.get()).steps - before.steps, 4u);
  expect_same(expected, found[0], "first"), expect_same(expected, found[2], "last");
  unwrap(sessions[1]->decode());  // its token still waits
  note(sessions[1].get(), &found[1]);
  feed(sessions[1].get(), argmax(sessions[1]->logits()));
  note(sessions[1].get(), &found[1]);
  expect_same(expected, found[1], "the cancelled one");
}

// A policy fails, or throws, after a step that others share: the others do not notice, and its session settles again.
TEST(TogetherInThreads, AFailedSessionFailsAlone) {
  const auto model = open_spec("qwen3", runtime_options(2, test_cpu_path(), 256u << 20));
  constexpr size_t kTokens = 6;
  const PolicyMode& mode = policy_modes()[0];
  std::vector<Lone> expected;
  for (uint64_t i = 0; i < 3; ++i) expected.push_back(alone(model, with_mode(mode, 0.5), 100 + 10 * i, i, kTokens));
  for (const bool throws : {false, true})
    for (size_t failing = 0; failing < 3; ++failing) {
      std::vector<std::unique_ptr<Session>> sessions;
      std::vector<engine::Decoder::Call> calls(3);
      std::vector<Lone> found;
      for (size_t i = 0; i < 3; ++i) {
        sessions.push_back(begun(model, expected[i]));
        calls[i].decoder = &sessions[i]->decoder();
        found.push_back(emptied(expected[i]));
      }
      sessions[failing]->resident()->set_step_fault([&](uint64_t step) -> Status {
        if (step != 3) return ok_status();
        if (throws) throw std::bad_alloc();
        return error(Code::internal, "a fault of step %llu", static_cast<unsigned long long>(step));
      });
      for (size_t t = 0; t < kTokens; ++t) {
        for (const auto& session : sessions) session->push_generated(argmax(session->logits()));
        engine::Decoder::decode_together({calls.data(), calls.size()});
        for (size_t i = 0; i < 3; ++i) {
          const bool fails = i == failing && t == 2;
          EXPECT_EQ(calls[i].thrown != nullptr, fails && throws);
          EXPECT_EQ(calls[i].status.ok(), !fails || throws) << calls[i].status.message();
          calls[i].thrown = nullptr;
          if (i != failing) note(sessions[i].get(), &found[i]);
        }
      }
      for (size_t i = 0; i < 3; ++i)
        if (i != failing) expect_same(expected[i], found[i], std::to_string(failing) + " fails, " + std::to_string(i));
    }
}

// A hook that fails, or throws, at some layer. The other rows keep their bits, and a pass in which all have failed ends.
TEST(TogetherHooks, FailAlone) {
  struct Failing final : model::LayerHook {
    int at = 0, calls = 0;
    bool throws = false;
    Status before_attend(KvLayer layer, Ptr<const float>, int64_t) override {
      ++calls;
      if (layer.layer < at) return ok_status();
      if (throws) throw std::bad_alloc();
      return error(Code::internal, "layer %d", layer.layer);
    }
  };
  const auto model = open_spec("qwen3", runtime_options(2));
  // The last steps of two sessions once more: the same tokens at the same positions write the same KV.
  std::vector<std::unique_ptr<Session>> sessions;
  for (uint64_t i = 0; i < 2; ++i) {
    sessions.push_back(begun(model, {with_mode(policy_modes()[0], 0.5), random_tokens(*model, 40 + 30 * i, i), {}, {}, {}, 0, 0, 0}));
    feed(sessions[i].get(), argmax(sessions[i]->logits()));
  }
  const Turn turn = model->runtime().take_turn();
  const model::Workspace& work = model->workspace(turn);
  unwrap(turn.backend().set_scratch(work.scratch, model->limits(turn)));
  const model::RopeTable rope =
      model::make_rope_table(model->description().rope(), model->weights().rope_factors, sessions[0]->n_context());
  const std::vector<RopeSpec> ropes(2, rope.spec());
  std::vector<Row> rows;
  std::vector<KvView> views;
  std::vector<Step> steps(2);
  std::vector<std::vector<float>> logits(2, std::vector<float>(sessions[0]->sequence().n_logits()));
  for (const auto& session : sessions) {
    const auto position = static_cast<int32_t>(session->n_computed()) - 1;
    rows.push_back({session->tokens()[static_cast<size_t>(position)], position, 0});
    views.push_back(session->resident()->reservoir().view());
  }
  for (size_t i = 0; i < 2; ++i) {
    const engine::Resident& resident = *sessions[i]->resident();
    steps[i].phase = Phase::decode;
    steps[i].rows = {&rows[i], 1}, steps[i].sequences = {&views[i], 1};
    steps[i].kv = resident.reservoir().format(), steps[i].heads = resident.views(), steps[i].heads_kv = resident.format();
  }
  const int32_t n_layers = model->description().n_layers;
  for (const bool throws : {false, true})
    for (const int32_t other_at : {n_layers, 1}) {  // n_layers: the other hook does not fail
      Failing hooks[2];
      hooks[0].at = 0, hooks[1].at = other_at;
      hooks[0].throws = throws;
      std::vector<model::SessionPart> parts(2);
      for (size_t i = 0; i < 2; ++i) parts[i] = {{1, logits[i].data()}, &hooks[i], ok_status(), nullptr};
      unwrap(model::forward_together(&turn.backend(), model->weights(), work, steps, ropes, {parts.data(), 2}, {}));
      EXPECT_EQ(hooks[0].calls, 1) << "a hook that has failed is not called again";
      EXPECT_EQ(parts[0].thrown != nullptr, throws);
      EXPECT_EQ(parts[0].status.ok(), throws);
      EXPECT_EQ(parts[1].failed(), other_at < n_layers);
      EXPECT_EQ(hooks[1].calls, other_at < n_layers ? 2 : n_layers) << "the pass ends when all have failed";
      if (!parts[1].failed()) {
        EXPECT_TRUE(same_bits(logits[1], as_vector(sessions[1]->logits())));
      }
    }
}

}  // namespace
}  // namespace orrery::together_test
