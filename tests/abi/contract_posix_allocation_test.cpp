// The library's own allocations: bytes by handle, and that closing gives them back.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <thread>

#include "tests/abi/handles.h"
#include "tests/support/temp_dir.h"

namespace orrery::testing::contract_posix_allocation_test {
namespace {

// Sanitizers keep the program's operator new; so do systems other than Linux.
#if defined(__linux__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
constexpr bool kCounted = true;
#else
constexpr bool kCounted = false;
#endif

struct Usage {
  uint64_t bytes, peak;
};
Usage usage(const Runtime& h) {
  orrery_runtime_info info = options(&orrery_runtime_info_init);
  EXPECT_EQ(orrery_runtime_get_info(h.get(), &info, nullptr), ORRERY_OK);
  return {info.host_bytes, info.host_peak_bytes};
}
Usage usage(const Model& h) {
  orrery_model_info info = options(&orrery_model_info_init);
  EXPECT_EQ(orrery_model_get_info(h.get(), &info, nullptr), ORRERY_OK);
  return {info.host_bytes, info.host_peak_bytes};
}
Usage usage(const Session& h) {
  orrery_stats stats = options(&orrery_stats_init);
  EXPECT_EQ(orrery_session_stats(h.get(), &stats, nullptr), ORRERY_OK);
  return {stats.host_bytes, stats.host_peak_bytes};
}

class Allocation : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!kCounted) GTEST_SKIP() << "this build has no allocator of its own";
  }
  TempDir dir;
  std::string path = dir.write("tiny.gguf", TinyModel().build());
};

TEST(AllocationWithoutOperators, CountsNothing) {
  if (kCounted) GTEST_SKIP() << "this build counts";
  TempDir dir;
  const Runtime runtime = make_runtime();
  EXPECT_EQ(usage(runtime).bytes, 0u);
}

TEST_F(Allocation, EachHandleHasItsOwn) {
  const Runtime runtime = make_runtime();
  const uint64_t of_runtime = usage(runtime).bytes;
  EXPECT_GT(of_runtime, 0u);
  const Model model = open_model(runtime, path);
  EXPECT_GT(usage(model).bytes, 10000u);  // a vocabulary of 400 tokens
  const Session session = open_session(model);
  const uint64_t of_model = usage(model).bytes;  // with the pages that sessions share
  const uint64_t of_session = usage(session).bytes;
  EXPECT_GT(of_session, 0u);

  // What a conversation takes is the session's, and comes back with it.
  const std::string text(200000, 'x');
  say(session, text.c_str());
  EXPECT_GE(usage(session).bytes, of_session + text.size());
  EXPECT_EQ(orrery_session_rewind_messages(session.get(), 0, nullptr), ORRERY_OK);
  EXPECT_LT(usage(session).bytes, of_session + text.size() / 10);
  EXPECT_GE(usage(session).peak, of_session + text.size());
  EXPECT_EQ(usage(model).bytes, of_model);

  // What tokenizing takes is the vocabulary's while it lasts.
  const Vocab vocab(orrery_model_vocab(model.get()));
  size_t n = 0;
  EXPECT_EQ(orrery_tokenize(vocab.get(), text.data(), text.size(), 0, nullptr, 0, &n, nullptr), ORRERY_OK);
  EXPECT_GE(usage(model).peak, of_model + n * sizeof(int32_t));
  EXPECT_LT(usage(model).bytes, of_model + 1000);  // the handle of the vocabulary

  const uint64_t before = usage(runtime).bytes;
  EXPECT_LT(before, of_runtime + 10000);
}

// Sessions that come and go leave nothing behind, in the model or in the runtime.
TEST_F(Allocation, ClosedSessionsLeaveNothing) {
  const Runtime runtime = make_runtime(2);
  const Model model = open_model(runtime, path);
  const auto one = [&](const char* policy) {
    orrery_session_options o = session_options();
    o.n_context = 512;
    o.policy = policy;
    if (policy) o.kv_budget_share = .5f;
    const Session session = open_session(model, o);
    ask(session, "a question of some length, so that there is more than one page to keep of it all", 8);
    const Session child = fork_of(session);
    ask(child, "and another", 4);
  };
  for (const char* policy : {static_cast<const char*>(nullptr), "auto", "freekv"}) one(policy);
  const Usage of_runtime = usage(runtime), of_model = usage(model);
  for (int i = 0; i < 5; ++i)
    for (const char* policy : {static_cast<const char*>(nullptr), "auto", "freekv"}) one(policy);
  EXPECT_EQ(usage(runtime).bytes, of_runtime.bytes);
  EXPECT_EQ(usage(model).bytes, of_model.bytes);
}

uint64_t resident_bytes() {
  unsigned long long pages = 0, resident = 0;
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  if (file) {
    EXPECT_EQ(std::fscanf(file, "%llu %llu", &pages, &resident), 2);
    std::fclose(file);
  }
  return resident * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

// Megabytes of small blocks, on threads that end before the session does: memory stays level however often that happens.
TEST_F(Allocation, MemoryStaysLevel) {
  const Runtime runtime = make_runtime();
  const Model model = open_model(runtime, path);
  const auto round = [&] {
    Session session;
    std::thread([&] {
      session = open_session(model);
      for (int i = 0; i < 20000; ++i) say(session, "a message that is longer than fits a string itself");
    }).join();
    EXPECT_GT(usage(session).bytes, uint64_t{3} << 20);
    std::thread([&] { session.reset(); }).join();
  };
  for (int i = 0; i < 3; ++i) round();
  const uint64_t before = resident_bytes();
  for (int i = 0; i < 12; ++i) round();
  EXPECT_LT(resident_bytes(), before + (uint64_t{24} << 20)) << "each round takes more than 3 MiB";
}

// A child of fork() uses a vocabulary while threads of the parent were in the middle of an allocation.
TEST_F(Allocation, AForkedChildAllocates) {
  orrery_vocab* h = nullptr;
  ASSERT_EQ(orrery_vocab_open(path_source(path), &h, nullptr), ORRERY_OK);
  const Vocab vocab(h);
  std::atomic<bool> stop{false};
  const auto tokenize = [&] {
    size_t n = 0;
    return orrery_tokenize(vocab.get(), "some text to cut into tokens", 28, 0, nullptr, 0, &n, nullptr) == ORRERY_OK && n > 0;
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t)
    threads.emplace_back([&] {
      while (!stop) tokenize();
    });
  for (int i = 0; i < 20; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(60);
      bool good = true;
      for (int k = 0; k < 100; ++k) good = tokenize() && good;
      ::_exit(good ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace orrery::testing::contract_posix_allocation_test
