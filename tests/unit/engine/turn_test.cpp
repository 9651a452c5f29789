// Several threads on one runtime: calls that any thread may make at any time, and calls that wait for a turn.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "tests/support/in_parallel.h"
#include "tests/unit/kv/fixture.h"

namespace orrery {
namespace {

using namespace testing;

TEST(Turns, AnswersStayRightWhileModelsAreLoaded) { answer_beside_loading(runtime_options(2, "auto", 256u << 20), "qwen3"); }

// Over a simulated link, for which sessions have a staging ring in the arena.
TEST(Turns, AnswersStayRightWhileOtherSessionsBeginAndEnd) {
  engine::RuntimeOptions options = runtime_options(2, "auto", 256u << 20);
  options.link = {uint64_t{1} << 30, 5};
  answer_beside_sessions_that_end(options, {"synckv_every_step", "synckv", {{"steps", "1"}}, true}, "qwen3");
}

// What is only looked at is read while others change it. (It is the thread sanitizer that would find fault.)
TEST(Turns, FiguresAreReadAtAnyTime) {
  const auto runtime = unwrap(engine::Runtime::create(runtime_options(2, "auto", 256u << 20)));
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
  std::vector<int> order_;   // for whoever has the turn
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
  const Turn again = turns_->take();   // it is free
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

// A backend that lacks something: the policies that need it are refused when a session is opened, the others are not.
class Lacking final : public kv::MemoryBackend, public KeyCodeOperations {
 public:
  KvMoves* kv_moves() override { return lacks == 0 ? nullptr : MemoryBackend::kv_moves(); }
  KeyOperations* keys() override { return lacks == 1 ? nullptr : MemoryBackend::keys(); }
  KvSummaries* summaries() override { return lacks == 2 ? nullptr : MemoryBackend::summaries(); }
  LowRankOperations* low_rank() override { return lacks == 3 ? nullptr : MemoryBackend::low_rank(); }
  KeyCodeOperations* key_codes() override { return lacks == 4 ? nullptr : this; }
  void mean_keys(Span<const KeyCodesJob>, const KeyCodesShape&, int32_t, int32_t) override {}
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
      const Status status = engine::Resident::check_operations(&backend, model->hyper(), with_mode(mode, 0.5), 320);
      const bool expected = lacks >= 0 && std::count(refused[lacks].begin(), refused[lacks].end(), policy) > 0;
      EXPECT_EQ(status.code(), expected ? Code::unsupported : Code::ok) << policy << " without operation " << lacks << ": " << status.message();
      if (!expected) continue;
      for (const std::string& word : {std::string(words[lacks]), policy, std::string("memory")})
        EXPECT_NE(std::string(status.message()).find(word), std::string::npos) << status.message();
    }
}

}  // namespace
}  // namespace orrery
