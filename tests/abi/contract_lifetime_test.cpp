// Lifetimes: handles freed in any order, several runtimes in one process, models shared between threads; and a process that is as it was
// before: no output, no descriptors, no threads, no handlers.
#include <gtest/gtest.h>
#ifndef _WIN32
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>
#endif
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cfenv>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <thread>

#include "tests/abi/handles.h"
#include "tests/support/shared.h"
#include "tests/support/temp_dir.h"
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace orrery::testing::contract_lifetime_test {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;  // which keep threads and descriptors of their own
#else
constexpr bool kSanitized = false;
#endif

class Lives : public ::testing::Test {
 protected:
  TempDir dir;
  std::string path = dir.write("tiny.gguf", TinyModel().build());
};

// Freeing --------------------------------------------------------------------------------------------------

TEST_F(Lives, HandlesMayGoInAnyOrder) {
  int order[] = {0, 1, 2, 3, 4, 5};  // runtime, model, vocabulary, session, fork, generation
  do {
    Runtime runtime = make_runtime();
    Model model = open_model(runtime, path);
    Vocab vocab(orrery_model_vocab(model.get()));
    Session session = open_session(model, 64);
    say(session, "hi");
    Session child = fork_of(session);
    Generation generation = generate(session, generate_options(2));
    bool begun = false;
    for (const int which : order) {
      switch (which) {
        case 0: runtime.reset(); break;
        case 1: model.reset(); break;
        case 2: vocab.reset(); break;
        case 3: session.reset(); break;
        case 4: child.reset(); break;
        default: generation.reset();
      }
      // What is left works.
      if (generation && !begun) {
        begun = true;
        EXPECT_EQ(pull(generation).tokens.size(), 2u);
      }
      size_t n = 0;
      if (vocab) {
        EXPECT_EQ(orrery_tokenize(vocab.get(), "a", 1, 0, nullptr, 0, &n, nullptr), ORRERY_OK);
      }
      if (child) {
        EXPECT_EQ(orrery_session_n_messages(child.get()), 1u);
      }
      if (model) {
        EXPECT_EQ(orrery_session_n_tokens(open_session(model, 64).get()), 0u);
      }
    }
    if (HasFailure()) return;
  } while (std::next_permutation(std::begin(order), std::end(order)));
}

TEST_F(Lives, UnfinishedGenerationOutlivesEverything) {
  Runtime runtime = make_runtime();
  Model model = open_model(runtime, path);
  Session session = open_session(model, 64);
  say(session, "hi");
  const Generation generation = generate(session, generate_options(6));
  orrery_event e = options(&orrery_event_init);
  while (e.type != ORRERY_EVENT_TOKEN) ASSERT_EQ(orrery_next(generation.get(), &e, nullptr), ORRERY_OK);
  runtime.reset();
  model.reset();
  session.reset();
  EXPECT_EQ(pull(generation).tokens.size(), 5u);
}

// Several --------------------------------------------------------------------------------------------------

TEST_F(Lives, TwoRuntimesKnowNothingOfEachOther) {
  struct Log {
    std::vector<std::string> lines;
    static void sink(void* user, int32_t, const char* message) { static_cast<Log*>(user)->lines.emplace_back(message); }
  } log;
  orrery_runtime_options o = runtime_options();
  o.n_threads = 2;
  o.cpu_path = "plain";
  o.device_budget_bytes = uint64_t{32} << 20;
  o.max_sessions = 1;
  o.log = &Log::sink;
  o.log_user = &log;
  o.log_level = ORRERY_LOG_DEBUG;
  orrery_runtime* h = nullptr;
  ASSERT_EQ(orrery_runtime_create(&o, &h, nullptr), ORRERY_OK);
  Runtime loud(h);
  const Runtime quiet = make_runtime(1);
  EXPECT_FALSE(log.lines.empty());
  const size_t lines = log.lines.size();
  const Model a = open_model(quiet, path);
  EXPECT_EQ(log.lines.size(), lines);
  const Model b = open_model(loud, path);
  EXPECT_GT(log.lines.size(), lines);
  for (const std::string& line : log.lines) EXPECT_EQ(line.find('\n'), std::string::npos);

  orrery_runtime_info info = options(&orrery_runtime_info_init);
  ASSERT_EQ(orrery_runtime_get_info(loud.get(), &info, nullptr), ORRERY_OK);
  EXPECT_STREQ(info.path, "plain");
  EXPECT_EQ(info.n_threads, 2);
  EXPECT_EQ(info.arena_bytes, uint64_t{32} << 20);
  ASSERT_EQ(orrery_runtime_get_info(quiet.get(), &info, nullptr), ORRERY_OK);
  EXPECT_EQ(info.n_threads, 1);
  EXPECT_EQ(info.arena_bytes, uint64_t{256} << 20);

  const Session sa = open_session(a), sb = open_session(b), sa2 = open_session(a);
  orrery_session* second = nullptr;
  EXPECT_EQ(orrery_session_open(b.get(), nullptr, &second, nullptr),
            ORRERY_OUT_OF_DEVICE_MEMORY);  // only there
  loud.reset();
  EXPECT_EQ(ask(sa, "hello", 4).tokens.size(), ask(sb, "hello", 4).tokens.size());
}

TEST_F(Lives, ThreadsDoNotChangeTokens) {
  const std::string demo = source_path("samples/models/demo-q8_0.gguf");
  std::vector<int32_t> want;
  for (int32_t threads = 1; threads <= 4; ++threads) {
    const Runtime runtime = make_runtime(threads);
    const Model model = open_model(runtime, demo);
    const Session session = open_session(model, 1024);
    std::vector<int32_t> prompt(300);
    for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<int32_t>(100 + i * 13 % 1800);
    orrery_generate_options o = generate_options(24);
    o.temperature = 1.0f;
    o.seed = 7;
    o.ignore_end = 1;
    const std::vector<int32_t> got = pull(generate_tokens(session, prompt, o)).tokens;
    if (threads == 1) want = got;
    EXPECT_EQ(got, want) << threads;
    EXPECT_EQ(got.size(), 24u);
  }
}

// Threads --------------------------------------------------------------------------------------------------

TEST_F(Lives, ModelIsSharedByThreads) {
  const Runtime runtime = make_runtime(2);
  const Model model = open_model(runtime, path);
  const auto converse = [&](int who) {
    std::vector<int32_t> all;
    for (int round = 0; round < 3; ++round) {
      const Session session = open_session(model, 512);
      for (int turn = 0; turn < 3; ++turn) {
        const Answer a = ask(session, ("I am number " + std::to_string(who) + ", turn " + std::to_string(turn)).c_str(), 6);
        all.insert(all.end(), a.tokens.begin(), a.tokens.end());
      }
      Session child = fork_of(session);
      const Answer a = ask(child, "and so on", 6);
      all.insert(all.end(), a.tokens.begin(), a.tokens.end());
    }
    return all;
  };
  std::vector<std::vector<int32_t>> alone, together(4);
  for (int who = 0; who < 4; ++who) alone.push_back(converse(who));
  std::vector<std::thread> threads;
  for (int who = 0; who < 4; ++who)
    threads.emplace_back([&, who] {
      together[static_cast<size_t>(who)] = converse(who);
      // Vocabularies and descriptions, too.
      const Vocab vocab(orrery_model_vocab(model.get()));
      orrery_model_info info = options(&orrery_model_info_init);
      size_t n = 0;
      EXPECT_EQ(orrery_model_get_info(model.get(), &info, nullptr), ORRERY_OK);
      EXPECT_EQ(orrery_tokenize(vocab.get(), "text", 4, 0, nullptr, 0, &n, nullptr), ORRERY_OK);
    });
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(together, alone);
}

// Forks share pages; each thread changes its own.
TEST_F(Lives, ForksLiveOnOtherThreads) {
  const Runtime runtime = make_runtime(1);
  const Model model = open_model(runtime, path);
  const Session parent = open_session(model, 512);
  ask(parent, "a past that is longer than one page, so that there are whole and half pages to share", 4);
  std::vector<Session> children;
  for (int i = 0; i < 4; ++i) children.push_back(fork_of(parent));
  const std::vector<int32_t> want = ask(fork_of(parent), "next", 8).tokens;
  std::vector<std::vector<int32_t>> got(4);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < 4; ++i)
    threads.emplace_back([&, i] {
      for (int round = 0; round < 4; ++round) {
        got[i] = ask(children[i], "next", 8).tokens;
        EXPECT_EQ(orrery_session_rewind(children[i].get(), 30 + static_cast<size_t>(round), nullptr), ORRERY_OK);
        EXPECT_EQ(orrery_session_rewind_messages(children[i].get(), 2, nullptr), ORRERY_OK);
      }
      children[i].reset();
    });
  for (std::thread& t : threads) t.join();
  for (const auto& tokens : got) EXPECT_EQ(tokens, want);
}

// A thread that watches, one that works, and one whose sessions make what all of them share grow: BUSY now and then, never anything else.
TEST_F(Lives, WatchingIsSafe) {
  const Runtime runtime = make_runtime(1);
  const Model model = open_model(runtime, path);
  const Session session = open_session(model, 1024);
  std::atomic<bool> stop{false};
  std::thread watcher([&] {
    while (!stop) {
      orrery_stats stats = options(&orrery_stats_init);
      const orrery_status s = orrery_session_stats(session.get(), &stats, nullptr);
      EXPECT_TRUE(s == ORRERY_OK || s == ORRERY_BUSY);
      orrery_session_n_tokens(session.get());
      orrery_runtime_info info = options(&orrery_runtime_info_init);
      EXPECT_EQ(orrery_runtime_get_info(runtime.get(), &info, nullptr), ORRERY_OK);
      EXPECT_LE(info.arena_used_bytes, info.arena_bytes);
      std::this_thread::yield();
    }
  });
  std::thread grower([&] {
    for (uint32_t i = 1; i <= 8; ++i) {
      orrery_session_options larger = session_options();
      larger.n_context = 1024;
      larger.chunk_tokens = 256 + 8 * i;
      open_session(model, larger);
    }
  });
  const std::vector<int32_t> prompt(500, 70);
  orrery_generate_options o = generate_options(20);
  o.ignore_end = 1;
  orrery_generation* h = nullptr;
  while (orrery_generate_tokens(session.get(), prompt.data(), prompt.size(), &o, &h, nullptr) == ORRERY_BUSY) {
  }
  const Generation g(h);
  orrery_event e = options(&orrery_event_init);
  size_t n_tokens = 0;
  while (e.type != ORRERY_EVENT_DONE) {
    const orrery_status s = orrery_next(g.get(), &e, nullptr);
    ASSERT_TRUE(s == ORRERY_OK || s == ORRERY_BUSY);
    n_tokens += s == ORRERY_OK && e.type == ORRERY_EVENT_TOKEN;
  }
  grower.join();
  stop = true;
  watcher.join();
  EXPECT_EQ(n_tokens, 20u);
}

#ifndef _WIN32  // descriptors, signals and threads as POSIX has them
// The process ----------------------------------------------------------------------------------------------

size_t entries(const char* folder) {
  size_t n = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) n += !entry.path().empty();
  return n;
}

// A joined thread may stay listed for a moment.
size_t threads_left(size_t expected) {
  size_t n = entries("/proc/self/task");
  for (int i = 0; n != expected && i < 1000; ++i, n = entries("/proc/self/task")) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return n;
}

// A conversation with everything in it, mistakes included.
void live_a_life(const std::string& path, const std::string& scratch) {
  const Runtime runtime = make_runtime(3);
  const Model model = open_model(runtime, path);
  const Session session = open_session(model);
  Error error;
  orrery_model* none = nullptr;
  orrery_model_open(runtime.get(), path_source("/nowhere"), nullptr, &none, &error);
  orrery_session_rewind(session.get(), 99999, &error);
  orrery_session_load_buffer(session.get(), "junk", 4, &error);
  ask(session, "one", 4);
  orrery_template_options o = options(&orrery_template_options_init);
  o.template_source = "{% bad";
  orrery_session_set_template(session.get(), &o, &error);
  ask(session, std::string(2, 'x').c_str(), 4);
  Session child = fork_of(session);
  orrery_session_save(session.get(), scratch.c_str(), &error);
  orrery_session_load(child.get(), scratch.c_str(), &error);
  const std::vector<int32_t> many(100000, 70);
  orrery_session_evaluate(session.get(), many.data(), many.size(), nullptr, &error);
  say(session, "unfinished");
  const Generation g = generate(session, generate_options(9));
  orrery_event e = options(&orrery_event_init);
  orrery_next(g.get(), &e, &error);
  orrery_cancel(g.get());
}

TEST_F(Lives, NothingIsPrinted) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  std::fflush(nullptr);
  const int out = dup(1), err = dup(2);
  dup2(ends[1], 1);
  dup2(ends[1], 2);
  close(ends[1]);
  live_a_life(path, dir.file("saved"));
  std::fflush(nullptr);
  dup2(out, 1);  // closes the pipe's last writing end with the next one
  dup2(err, 2);
  close(out);
  close(err);
  std::string said;
  char buffer[256];
  for (ssize_t n; (n = read(ends[0], buffer, sizeof buffer)) > 0;) said.append(buffer, static_cast<size_t>(n));
  close(ends[0]);
  EXPECT_EQ(said, "");
}

TEST_F(Lives, TheProcessIsAsBefore) {
  live_a_life(path, dir.file("saved"));  // what the C library opens once and keeps
  const size_t descriptors = entries("/proc/self/fd"), threads = threads_left(1);
  struct sigaction actions[65] = {};
  sigset_t mask;
  for (int s = 1; s <= 64; ++s) sigaction(s, nullptr, &actions[s]);
  pthread_sigmask(SIG_BLOCK, nullptr, &mask);
  const int rounding = std::fegetround();
#if defined(__x86_64__)
  const unsigned control = _mm_getcsr() & ~0x3Fu;  // without the sticky flags
#endif
  char name[32] = "", name_after[32] = "";
  pthread_getname_np(pthread_self(), name, sizeof name);
  cpu_set_t affinity, affinity_after;
  sched_getaffinity(0, sizeof affinity, &affinity);
  char folder[4096], folder_after[4096];
  ASSERT_NE(getcwd(folder, sizeof folder), nullptr);

  live_a_life(path, dir.file("saved"));

  EXPECT_EQ(entries("/proc/self/fd"), descriptors);
  if (!kSanitized) {
    EXPECT_EQ(threads_left(threads), threads);
  }
  for (int s = 1; s <= 64; ++s) {
    struct sigaction now = {};
    sigaction(s, nullptr, &now);
    EXPECT_EQ(now.sa_handler, actions[s].sa_handler) << s;
  }
  sigset_t mask_after;
  pthread_sigmask(SIG_BLOCK, nullptr, &mask_after);
  for (int s = 1; s <= 64; ++s) EXPECT_EQ(sigismember(&mask, s), sigismember(&mask_after, s)) << s;
  EXPECT_EQ(std::fegetround(), rounding);
#if defined(__x86_64__)
  EXPECT_EQ(_mm_getcsr() & ~0x3Fu, control);
#endif
  pthread_getname_np(pthread_self(), name_after, sizeof name_after);
  EXPECT_STREQ(name_after, name);
  sched_getaffinity(0, sizeof affinity_after, &affinity_after);
  EXPECT_TRUE(CPU_EQUAL(&affinity, &affinity_after));
  ASSERT_NE(getcwd(folder_after, sizeof folder_after), nullptr);
  EXPECT_STREQ(folder_after, folder);
}

TEST_F(Lives, IdleCostsNothing) {
  const Runtime runtime = make_runtime(4);
  const Model model = open_model(runtime, path);
  const Session session = open_session(model);
  ask(session, "hello", 8);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // workers that wait awake give up
  timespec before = {}, after = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
  const double ms = static_cast<double>(after.tv_sec - before.tv_sec) * 1e3 + static_cast<double>(after.tv_nsec - before.tv_nsec) / 1e6;
  EXPECT_LT(ms, kSanitized ? 100.0 : 3.0);
}
#endif

}  // namespace
}  // namespace orrery::testing::contract_lifetime_test
