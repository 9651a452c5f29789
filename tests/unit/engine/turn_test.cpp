// Several threads on one runtime: calls that any thread may make at any time, and calls that wait for a turn.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/in_parallel.h"
#include "tests/unit/kv/fixture.h"

namespace orrery::turn_test {
namespace {

using namespace testing;

TEST(Turns, AnswersStayRightWhileModelsAreLoaded) { answer_beside_loading(runtime_options(2, test_cpu_path(), 256u << 20), "qwen3"); }

// Over a simulated link, for which sessions have a staging ring in the arena.
TEST(Turns, AnswersStayRightWhileOtherSessionsBeginAndEnd) {
  engine::RuntimeOptions options = runtime_options(2, test_cpu_path(), 256u << 20);
  options.link = {uint64_t{1} << 30, 5};
  answer_beside_sessions_that_end(options, {"synckv_every_step", "synckv", {{"steps", "1"}}, true}, "qwen3");
}

// What is only looked at is read while others change it. (It is the thread sanitizer that would find fault.)
TEST(Turns, FiguresAreReadAtAnyTime) {
  const auto runtime = unwrap(engine::Runtime::create(runtime_options(2, test_cpu_path(), 256u << 20)));
  const TempDir dir;
  const auto model = unwrap(engine::LanguageModel::open(runtime, dir.write("model.gguf", named_model_gguf("qwen3")), {}));
  const auto watched = open_session(model, 128);
  std::atomic<bool> stop{false};
  // One reader takes no lock, so that nothing but the figures themselves orders what it does.
  std::thread glancing([&] {
    for (uint64_t before = 0; !stop.load(std::memory_order_relaxed);) {
      const uint64_t bytes = model->workspace_bytes();
      EXPECT_GE(bytes, before) << "a workspace only grows";
      before = bytes;
      EXPECT_LE(watched->n_computed(), 128u);
    }
  });
  std::thread reader([&] {
    while (!stop) {
      EXPECT_LE(runtime->arena().used(), runtime->arena().bytes());
      EXPECT_LE(runtime->arena().largest_free(), runtime->arena().bytes());
      EXPECT_EQ(runtime->backend_info().n_threads, 2);
      engine::SessionOptions options;
      options.n_context = 128;
      EXPECT_TRUE(plan_session(*model, options).fits);
    }
  });
  std::thread growing([&] {
    for (uint32_t i = 1; i <= 8; ++i) open_session(model, 128 * i, KvType::f32, 16 * i);
  });
  unwrap(watched->prefill(random_tokens(*model, 60, 1), nullptr, nullptr));
  greedy(watched.get(), 20);
  growing.join();
  stop = true;
  reader.join();
  glancing.join();
}

class TurnTest : public ::testing::Test {
 protected:
  TurnTest() {
    auto backend = std::make_unique<kv::MemoryBackend>();
    backend_ = backend.get();
    turns_ = std::make_unique<Turns>(std::move(backend));
  }
  // A thread that takes a turn and notes its number, negative where it gave up. It waits for the turn when this returns: a thread is asked
  // for the first time when it does.
  std::thread waits(int number, const Cancel& cancel = {}) {
    const auto waits = std::make_shared<std::atomic<bool>>(false);
    std::thread thread([this, number, cancel, waits] {
      const auto asked = [&] {
        *waits = true;
        return cancel.asked();
      };
      const auto turn = turns_->take(Cancel::when(&asked));
      order_.push_back(turn.ok() ? number : -number);
    });
    while (!*waits) std::this_thread::yield();
    return thread;
  }

  kv::MemoryBackend* backend_;
  std::unique_ptr<Turns> turns_;
  std::vector<int> order_;  // for whoever has the turn
};

TEST_F(TurnTest, ComesInTheOrderOfAsking) {
  std::vector<std::thread> threads;
  {
    const Turn turn = turns_->take();
    for (int i = 1; i <= 5; ++i) threads.push_back(waits(i));
    EXPECT_TRUE(order_.empty());
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(order_, (std::vector<int>{1, 2, 3, 4, 5}));
  const Turn again = turns_->take();  // it is free
}

// The first, the last or one between them gives up; the others come as they would have.
TEST_F(TurnTest, WhoeverGivesUpIsLeftOut) {
  for (const int gives_up : {1, 2, 4}) {
    order_.clear();
    std::atomic<bool> cancel{false};
    std::vector<std::thread> threads;
    {
      const Turn turn = turns_->take();
      for (int i = 1; i <= 4; ++i) threads.push_back(waits(i, i == gives_up ? Cancel(&cancel) : Cancel()));
      cancel = true;
      threads[static_cast<size_t>(gives_up - 1)].join();
      EXPECT_EQ(order_, std::vector<int>{-gives_up});
    }
    std::vector<int> expected{-gives_up};
    for (int i = 1; i <= 4; ++i)
      if (i != gives_up) expected.push_back(i), threads[static_cast<size_t>(i - 1)].join();
    EXPECT_EQ(order_, expected);
  }
}

TEST_F(TurnTest, EndsWhenTheDeviceIsDone) {
  {
    Turn turn = turns_->take();
    const Turn moved = std::move(turn);
    moved.backend().upload({backend_->arena().address}, "", 0);
    EXPECT_EQ(backend_->n_synchronized, 0);
  }
  EXPECT_EQ(backend_->n_synchronized, 1);
}

// ---- Members of a step that ask again ----

class MemberTest : public ::testing::Test {
 protected:
  struct Work final : SharedWork {
    Work(const void* kind, Member* member) : SharedWork(kind, member) {}
  };
  MemberTest() : turns_(std::make_unique<kv::MemoryBackend>(), [this] { return time_.load(); }) {}
  // A step of these members at time 1, which awaits them until time 100.
  void step(const std::vector<Member*>& members) {
    std::vector<std::unique_ptr<Work>> works;
    std::vector<SharedWork*> all;
    for (Member* member : members) works.push_back(std::make_unique<Work>(&kind_, member)), all.push_back(works.back().get());
    time_ = 1;
    turns_.take().expect({all.data(), all.size()}, 100);
  }
  // Asks for a turn. `meanwhile` runs whenever a wait asks whether it is cancelled.
  struct Asked {
    bool waited = false, cancelled = false;
    size_t n_gathered = 0;
  };
  Asked ask(Member* member, const std::function<bool()>& meanwhile = {}, const void* kind = nullptr) {
    Asked asked;
    Work work(kind ? kind : &kind_, member);
    const auto waits = [&] {
      asked.waited = true;
      return meanwhile && meanwhile();
    };
    auto turn = turns_.take(Cancel::when(&waits), &work);
    asked.cancelled = !turn.ok();
    if (asked.cancelled || !*turn) return asked;
    std::vector<SharedWork*> gathered(4);
    asked.n_gathered = (*turn)->gather(&kind_, {gathered.data(), gathered.size()});
    for (size_t i = 0; i < asked.n_gathered; ++i) (*turn)->done(gathered[i]);
    return asked;
  }
  // A thread that asks for a turn; it has asked when this returns.
  std::thread asks(Member* member) {
    const size_t n = turns_.n_waiting();
    std::thread thread([=] { ask(member); });
    while (turns_.n_waiting() == n) std::this_thread::yield();
    return thread;
  }
  // Another step of the two, for which b asks behind a. Whether a waits for b.
  bool waits_for_b() {
    step({&a, &b});
    std::thread other;
    const Asked asked = ask(&a, [&] {
      other = asks(&b);
      return false;
    });
    if (!asked.waited) ask(&b);
    if (other.joinable()) other.join();
    EXPECT_EQ(asked.n_gathered, asked.waited ? 1u : 0u);
    return asked.waited;
  }

  const int kind_ = 0, other_kind_ = 0;
  std::atomic<uint64_t> time_{1};
  Turns turns_;
  Member a{&turns_}, b{&turns_}, c{&turns_};
};

TEST_F(MemberTest, WhoeverAsksFirstWaitsForTheOthersOfItsStep) {
  step({&a, &b, &c});
  std::vector<std::thread> threads;
  const Asked asked = ask(&a, [&] {
    threads.push_back(asks(&b));
    threads.push_back(asks(&c));
    return false;
  });
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(asked.waited);
  EXPECT_EQ(asked.n_gathered, 2u);
  EXPECT_FALSE(ask(&a).waited) << "nobody is expected behind a step of its own";
}

// So does a thread that has waited for the turn.
TEST_F(MemberTest, WhoeverGetsTheTurnWaitsForTheOthersOfItsStep) {
  step({&a, &b, &c});
  std::atomic<bool> c_waits{false}, ended{false};  // ended: the turn of this thread
  std::thread threads[3];
  Asked asked;
  {
    const Turn turn = turns_.take();
    threads[0] = std::thread([&] {
      asked = ask(&a, [&] {
        if (!threads[1].joinable()) threads[1] = asks(&c), c_waits = true;
        if (ended && !threads[2].joinable()) threads[2] = asks(&b);
        return false;
      });
    });
    while (!c_waits) std::this_thread::yield();
  }
  ended = true;
  for (std::thread& thread : threads)
    if (thread.joinable()) thread.join();
  EXPECT_EQ(asked.n_gathered, 2u);
}

// From the time on that the step has set, a member is late, and those who wait go on. Nobody waits for it behind its next step; when it has
// asked in time, they do again.
TEST_F(MemberTest, ALateMemberIsNotAwaitedTheNextTime) {
  EXPECT_TRUE(waits_for_b());
  step({&a, &b});
  const Asked asked = ask(&a, [&] {
    time_ = 101;
    return false;
  });
  EXPECT_TRUE(asked.waited && !asked.cancelled);
  EXPECT_EQ(asked.n_gathered, 0u);
  ask(&b);
  EXPECT_FALSE(waits_for_b()) << "late behind the last step";
  EXPECT_TRUE(waits_for_b()) << "in time behind the last step";
}

TEST_F(MemberTest, WhoeverLeavesIsNotAwaited) {
  const std::function<void(std::optional<Member>*)> ways[] = {[](auto* left) { (*left)->leave(); },
                                                              [](auto* left) { (*left)->stays_away(); }, [](auto* left) { left->reset(); }};
  for (const auto& way : ways)
    for (const bool before : {false, true}) {
      std::optional<Member> left(&turns_);
      step({&a, &*left, &b});
      if (before) way(&left);
      b.leave();
      const Asked asked = ask(&a, [&] {
        way(&left);
        return false;
      });
      EXPECT_EQ(asked.waited, !before);
      EXPECT_FALSE(asked.cancelled);
      EXPECT_EQ(asked.n_gathered, 0u);
      EXPECT_EQ(time_, 1u);
      if (!left) continue;
      // Whenever it asks after leave(), it is not late; and it is awaited again.
      time_ = &way == &ways[0] ? 200 : 2;
      ask(&*left);
      step({&*left, &a});
      EXPECT_TRUE(ask(&a, [] { return true; }).cancelled);
    }
}

// A cancelled wait for members passes the turn on.
TEST_F(MemberTest, AWaitForMembersIsCancelled) {
  step({&a, &b});
  std::thread next;
  std::atomic<bool> had_turn{false};
  const Asked asked = ask(&a, [&] {
    next = std::thread([&] {
      turns_.take();
      had_turn = true;
    });
    while (turns_.n_waiting() == 0) std::this_thread::yield();
    EXPECT_FALSE(had_turn) << "the turn is taken";
    return true;
  });
  next.join();
  EXPECT_TRUE(asked.cancelled && had_turn);
}

TEST_F(MemberTest, WhoeverIsOfNoStepTogetherWaitsForNobody) {
  ask(&a);
  EXPECT_FALSE(ask(&a).waited) << "a member alone";
  step({&a, &b});
  EXPECT_FALSE(ask(&c, {}, &other_kind_).waited) << "work of another kind";
  EXPECT_FALSE(ask(nullptr).waited) << "work without a member";
  turns_.take();  // without work
  EXPECT_TRUE(ask(&c, [] { return true; }).cancelled) << "of the kind, and not of the step";
}

// Work that was handed back gets its turn at once.
TEST_F(MemberTest, WorkThatWasHandedBackWaitsForNobody) {
  Asked asked;
  std::atomic<bool> ended{false};  // the turn of this thread
  std::thread thread;
  {
    const Turn turn = turns_.take();
    thread = std::thread([&] { asked = ask(&c, [&] { return ended.load(); }); });
    while (turns_.n_waiting() == 0) std::this_thread::yield();
    SharedWork* gathered = nullptr;
    while (turn.gather(&kind_, {&gathered, 1}) == 0) std::this_thread::yield();
    Work others[] = {{&kind_, &a}, {&kind_, &b}};
    SharedWork* const works[] = {&others[0], &others[1]};
    turn.expect({works, 2}, 100);
    turn.hand_back(gathered);
  }
  ended = true;
  thread.join();
  EXPECT_FALSE(asked.cancelled);
}

// A backend that lacks something: the policies that need it are refused when a session is opened, the others are not.
class Lacking final : public kv::MemoryBackend, public KeyCodeOperations {
 public:
  KvMoves* kv_moves() override { return lacks == 0 ? nullptr : MemoryBackend::kv_moves(); }
  KeyOperations* keys() override { return lacks == 1 ? nullptr : MemoryBackend::keys(); }
  KvSummaries* summaries() override { return lacks == 2 ? nullptr : MemoryBackend::summaries(); }
  LowRankOperations* low_rank() override { return lacks == 3 ? nullptr : MemoryBackend::low_rank(); }
  KeyCodeOperations* key_codes() override { return lacks == 4 ? nullptr : this; }
  void mean_keys(Span<const KeyCodesJob>, const KeyCodesShape&, int32_t, int32_t, int32_t) override {}
  void mean_values(Span<const MeanValueJob>, const KvFormat&) override {}
  void encode_keys(Span<const KeyCodesJob>, const KeyCodesShape&, int32_t, int32_t) override {}
  int lacks = -1;
};

TEST(Operations, PoliciesThatNeedWhatABackendLacksAreRefused) {
  const auto model = open_spec("qwen3", runtime_options(1));
  const char* words[] = {"moves resident KV", "key scoring", "digests", "low-rank keys", "key codes"};
  const std::vector<std::string> all = {"streaming", "snapkv", "quest", "razorattention", "loki", "shadowkv", "h2o", "keycodes"};
  const std::vector<std::string> refused[] = {all,
                                              {"snapkv", "quest", "razorattention", "loki", "shadowkv", "h2o", "keycodes"},
                                              {"quest", "razorattention", "shadowkv", "keycodes"},
                                              {"loki", "shadowkv"},
                                              {"keycodes"}};
  Lacking backend;
  for (int lacks = -1; lacks < 5; ++lacks)
    for (const std::string& policy : all) {
      backend.lacks = lacks;
      const PolicyMode mode{"", policy.c_str(), {}, false};
      const Status status = engine::Resident::check_operations(&backend, model->description(), with_mode(mode, 0.5), 320);
      const bool expected = lacks >= 0 && std::count(refused[lacks].begin(), refused[lacks].end(), policy) > 0;
      EXPECT_EQ(status.code(), expected ? Code::unsupported : Code::ok)
          << policy << " without operation " << lacks << ": " << status.message();
      if (!expected) continue;
      for (const std::string& word : {std::string(words[lacks]), policy, std::string("memory")})
        EXPECT_NE(std::string(status.message()).find(word), std::string::npos) << status.message();
    }
}

}  // namespace
}  // namespace orrery::turn_test
