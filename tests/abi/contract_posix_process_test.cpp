// The process of the library: children of fork(), the caller's floating-point environment, signals, small stacks, and descriptors after
// calls that fail.
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cfenv>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <thread>

#include "tests/abi/handles.h"
#include "tests/support/temp_dir.h"
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace orrery::testing::contract_posix_process_test {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

class Process : public ::testing::Test {
 protected:
  TempDir dir;
  std::string path = dir.write("tiny.gguf", TinyModel().build());
};

// fork() ---------------------------------------------------------------------------------------------------

// Runs `body` in a child, which has a bounded time for it; 0: it returned true.
template <class F>
int in_child(const F& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    std::signal(SIGALRM, SIG_DFL);
    ::alarm(kSanitized ? 120 : 30);
    ::_exit(body() ? 0 : 1);
  }
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return status;
}

// Everything that is alive when a process forks: threads of the pool, an I/O thread, an answer under way.
struct Everything {
  Runtime runtime;
  Model model;
  Session session, other;
  Generation generation;

  explicit Everything(const std::string& path) {
    orrery_runtime_options o = runtime_options();
    o.n_threads = 3;
    o.device_budget_bytes = uint64_t{256} << 20;
    o.link_latency_us = 1;  // a link that is simulated has an I/O thread
    Error error;
    orrery_runtime* h = nullptr;
    check(orrery_runtime_create(&o, &h, &error), error, "orrery_runtime_create");
    runtime.reset(h);
    model = open_model(runtime, path);
    orrery_session_options s = session_options();
    s.n_context = 512;
    s.policy = "freekv";
    s.kv_budget_share = 0.5f;
    session = open_session(model, s);
    other = open_session(model);
    ask(other, "another conversation", 4);
    say(session, std::string(300, 'q').c_str());
    generation = generate(session, generate_options(50));
    orrery_event e = options(&orrery_event_init);
    for (int i = 0; i < 12; ++i) check(orrery_next(generation.get(), &e, &error), error, "orrery_next");
  }

  void free(int which) {
    switch (which) {
      case 0: runtime.reset(); break;
      case 1: model.reset(); break;
      case 2: session.reset(); break;
      case 3: other.reset(); break;
      default: generation.reset();
    }
  }
};

TEST_F(Process, AChildOfForkFreesInAnyOrder) {
  Everything all(path);
  int order[] = {0, 1, 2, 3, 4};
  int n = 0;
  do {
    if (n++ % 6 != 0) continue;  // 20 of the 120 orders
    const int status = in_child([&] {
      for (const int which : order) all.free(which);
      return true;
    });
    ASSERT_EQ(status, 0) << "order " << order[0] << order[1] << order[2] << order[3] << order[4];
  } while (std::next_permutation(std::begin(order), std::end(order)));
  // The parent noticed nothing.
  pull(all.generation);
  EXPECT_FALSE(ask(all.other, "and on", 4).tokens.empty());
}

// While another thread of the parent is in the middle of a step, whose locks the child has for ever.
TEST_F(Process, AChildOfForkFreesWhatAnotherThreadWasUsing) {
  Everything all(path);
  std::atomic<bool> stop{false};
  std::thread worker([&] {
    while (!stop) ask(all.other, "more and more of it", 3), orrery_session_rewind_messages(all.other.get(), 2, nullptr);
  });
  for (int i = 0; i < 10; ++i) {
    const int status = in_child([&] {
      for (const int which : {3, 4, 2, 1, 0}) all.free(which);
      return true;
    });
    EXPECT_EQ(status, 0) << i;
  }
  stop = true;
  worker.join();
}

TEST_F(Process, AChildOfForkIsRefused) {
  Everything all(path);
  const std::string file = dir.file("saved");
  ASSERT_EQ(orrery_session_save(all.other.get(), file.c_str(), nullptr), ORRERY_OK);
  std::vector<float> logits(1000);
  const std::vector<std::pair<const char*, std::function<orrery_status(orrery_error*)>>> calls = {
      {"next",
       [&](orrery_error* e) {
         orrery_event event = options(&orrery_event_init);
         return orrery_next(all.generation.get(), &event, e);
       }},
      {"run",
       [&](orrery_error* e) {
         return orrery_run(
             all.generation.get(), [](void*, const orrery_event*) { return 0; }, nullptr, e);
       }},
      {"generate",
       [&](orrery_error* e) {
         orrery_generation* h = nullptr;
         return orrery_generate(all.other.get(), nullptr, &h, e);
       }},
      {"session_open",
       [&](orrery_error* e) {
         orrery_session* h = nullptr;
         return orrery_session_open(all.model.get(), nullptr, &h, e);
       }},
      {"fork",
       [&](orrery_error* e) {
         orrery_session* h = nullptr;
         return orrery_session_fork(all.other.get(), &h, e);
       }},
      {"model_open",
       [&](orrery_error* e) {
         orrery_model* h = nullptr;
         return orrery_model_open(all.runtime.get(), path_source(path), nullptr, &h, e);
       }},
      {"model_info",
       [&](orrery_error* e) {
         orrery_model_info i = options(&orrery_model_info_init);
         return orrery_model_get_info(all.model.get(), &i, e);
       }},
      {"runtime_info",
       [&](orrery_error* e) {
         orrery_runtime_info i = options(&orrery_runtime_info_init);
         return orrery_runtime_get_info(all.runtime.get(), &i, e);
       }},
      {"save", [&](orrery_error* e) { return orrery_session_save(all.other.get(), file.c_str(), e); }},
      {"load", [&](orrery_error* e) { return orrery_session_load(all.other.get(), file.c_str(), e); }},
      {"add_message", [&](orrery_error* e) { return orrery_session_add_message(all.other.get(), "user", "x", e); }},
      {"stats",
       [&](orrery_error* e) {
         orrery_stats s = options(&orrery_stats_init);
         return orrery_session_stats(all.other.get(), &s, e);
       }},
      {"residency",
       [&](orrery_error* e) {
         size_t n = 0;
         return orrery_session_residency(all.other.get(), nullptr, 0, &n, e);
       }},
      {"rewind", [&](orrery_error* e) { return orrery_session_rewind(all.other.get(), 0, e); }},
      {"evaluate",
       [&](orrery_error* e) {
         const int32_t t = 70;
         return orrery_session_evaluate(all.other.get(), &t, 1, logits.data(), e);
       }},
      {"calibrate", [&](orrery_error* e) {
         const std::vector<int32_t> t(20, 70);
         const size_t n = t.size();
         orrery_calibration* h = nullptr;
         return orrery_calibrate(all.model.get(), t.data(), &n, 1, nullptr, &h, e);
       }}};
  for (const auto& call : calls) {
    const int status = in_child([&] {
      Error error;
      const orrery_status s = call.second(&error);
      return s == ORRERY_INVALID_ARGUMENT && std::string(error.message).find("fork()") != std::string::npos;
    });
    EXPECT_EQ(status, 0) << call.first;
  }
  const int status = in_child([&] {
    orrery_cancel(all.generation.get());
    return orrery_session_n_messages(all.other.get()) == 0;
  });
  EXPECT_EQ(status, 0);
}

// What a child makes itself is its own.
TEST_F(Process, AChildOfForkHasItsOwnRuntime) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizer ends children that start threads";
#endif
  Everything all(path);
  const std::vector<int32_t> want = [&] {
    const Session s = open_session(all.model);
    return ask(s, "hello", 5).tokens;
  }();
  const int status = in_child([&] {
    const Runtime runtime = make_runtime(3);
    const Model model = open_model(runtime, path);
    const Session session = open_session(model);
    return ask(session, "hello", 5).tokens == want;
  });
  EXPECT_EQ(status, 0);
}

// The floating-point environment ----------------------------------------------------------------------------

// Everything that a model computes, as bits: logits of a prompt, and a sampled answer with its log probabilities.
std::vector<float> computed(const std::string& path, int32_t n_threads, const std::function<void()>& before_runtime,
                            const std::function<void()>& before_calls) {
  before_runtime();
  const Runtime runtime = make_runtime(n_threads);
  before_calls();
  const Model model = open_model(runtime, path);
  const Session session = open_session(model);
  std::vector<int32_t> prompt(60);
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<int32_t>(3 + i * 7 % 250);
  orrery_model_info info = options(&orrery_model_info_init);
  EXPECT_EQ(orrery_model_get_info(model.get(), &info, nullptr), ORRERY_OK);
  std::vector<float> all(prompt.size() * info.n_vocab);
  EXPECT_EQ(orrery_session_evaluate(session.get(), prompt.data(), prompt.size(), all.data(), nullptr), ORRERY_OK);
  orrery_generate_options o = generate_options(8);
  o.temperature = 0.9f;
  o.top_p = 0.95f;
  o.n_logprobs = 3;
  say(session, "hello");
  const Answer answer = pull(generate(session, o));
  for (const int32_t token : answer.tokens) all.push_back(static_cast<float>(token));
  all.insert(all.end(), answer.logprobs.begin(), answer.logprobs.end());
  return all;
}

TEST_F(Process, TheCallersRoundingChangesNothing) {
  std::fenv_t before;
  ASSERT_EQ(std::fegetenv(&before), 0);
  const auto usual = [] { std::fesetenv(FE_DFL_ENV); };
  for (const int32_t n_threads : {1, 3}) {
    const std::vector<float> want = computed(path, n_threads, usual, usual);
    const auto same = [&](const char* what, const std::function<void()>& runtime, const std::function<void()>& calls) {
      const std::vector<float> got = computed(path, n_threads, runtime, calls);
      const int rounding = std::fegetround();
      std::fesetenv(&before);
      EXPECT_EQ(got.size(), want.size());
      EXPECT_EQ(std::memcmp(got.data(), want.data(), want.size() * sizeof(float)), 0) << what << ", threads " << n_threads;
      return rounding;
    };
    for (const int mode : {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO}) {
      const auto changed = [mode] { std::fesetround(mode); };
      EXPECT_EQ(same("caller", usual, changed), mode) << "the caller's own mode is gone";
      EXPECT_EQ(same("runtime made under it", changed, usual), FE_TONEAREST);
      EXPECT_EQ(same("always", changed, changed), mode);
    }
#if defined(__x86_64__)
    const auto flush = [] { _mm_setcsr(_mm_getcsr() | 0x8040u); };  // subnormals are zero, in and out
    same("subnormals", flush, [] {});
    flush();
    Error error;
    EXPECT_EQ(orrery_plan(path_source("/nowhere"), nullptr, nullptr, nullptr, nullptr, &error), ORRERY_INVALID_ARGUMENT);
    EXPECT_EQ(_mm_getcsr() & 0x8040u, 0x8040u);
    std::fesetenv(&before);
#endif
  }
}

#if defined(__GLIBC__) && defined(__x86_64__)
// A caller who traps invalid operations: none of ours ends the process.
TEST_F(Process, TheCallersTrapsDoNotSpring) {
  if (kSanitized) GTEST_SKIP() << "sanitizers compute with numbers of their own";
  EXPECT_EQ(in_child([&] {
              const auto trap = [] { feenableexcept(FE_INVALID | FE_DIVBYZERO | FE_OVERFLOW | FE_UNDERFLOW | FE_INEXACT); };
              const Runtime runtime = [&] {
                trap();
                return make_runtime(1);
              }();
              const Model model = open_model(runtime, path);
              const Session session = open_session(model);
              std::vector<int32_t> prompt(60, 70);
              const bool ok = orrery_session_evaluate(session.get(), prompt.data(), prompt.size(), nullptr, nullptr) == ORRERY_OK;
              return ok && (fegetexcept() & FE_INVALID) != 0;
            }),
            0);
}
#endif

// Signals ----------------------------------------------------------------------------------------------------

std::atomic<int> n_signals{0};

TEST_F(Process, SignalsInterruptNothing) {
  struct sigaction action = {}, old = {};
  action.sa_handler = [](int) { ++n_signals; };  // without SA_RESTART: system calls return EINTR
  sigemptyset(&action.sa_mask);
  ASSERT_EQ(sigaction(SIGALRM, &action, &old), 0);
  struct itimerval often = {};
  often.it_interval.tv_usec = often.it_value.tv_usec = 500;
  ASSERT_EQ(setitimer(ITIMER_REAL, &often, nullptr), 0);
  const std::string file = dir.file("saved");
  {
    const Runtime runtime = make_runtime(2);
    orrery_model_options o = model_options();
    o.load = ORRERY_LOAD_READ;
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(1);
    for (int i = 0; i < 5 || (std::chrono::steady_clock::now() < end && n_signals < 200); ++i) {
      Error error;
      orrery_model* h = nullptr;
      ASSERT_EQ(orrery_model_open(runtime.get(), path_source(path), &o, &h, &error), ORRERY_OK) << error.message;
      const Model model(h);
      const Session session = open_session(model), loaded = open_session(model);
      ask(session, "hello", 4);
      ASSERT_EQ(orrery_session_save(session.get(), file.c_str(), &error), ORRERY_OK) << error.message;
      ASSERT_EQ(orrery_session_load(loaded.get(), file.c_str(), &error), ORRERY_OK) << error.message;
      EXPECT_EQ(tokens_of(loaded), tokens_of(session));
    }
  }
  const struct itimerval never = {};
  setitimer(ITIMER_REAL, &never, nullptr);
  sigaction(SIGALRM, &old, nullptr);
  EXPECT_GT(n_signals, 0);
}

// The process ends in the middle of a save: the file is there, whole, and what was left beside it goes with the next save.
TEST_F(Process, KilledWhileItSaves) {
  const Runtime runtime = make_runtime();
  const Model model = open_model(runtime, path);
  const Session session = open_session(model, 512);
  ask(session, std::string(200, 'q').c_str(), 4);
  const std::string file = dir.file("saved");
  ASSERT_EQ(orrery_session_save(session.get(), file.c_str(), nullptr), ORRERY_OK);
  const auto n_entries = [&] {
    return std::distance(std::filesystem::directory_iterator(dir.file("")), std::filesystem::directory_iterator());
  };
  for (int round = 0; round < 20; ++round) {
    int saving[2];
    ASSERT_EQ(pipe(saving), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      const Runtime own = make_runtime();  // of one thread: nothing is started
      const Model its = open_model(own, path);
      const Session s = open_session(its, 512);
      ask(s, "hello", 4);
      for (bool told = false;; told = true) {
        if (orrery_session_save(s.get(), file.c_str(), nullptr) != ORRERY_OK) ::_exit(1);
        if (!told && ::write(saving[1], "!", 1) != 1) ::_exit(2);
      }
    }
    ::close(saving[1]);
    char byte;
    EXPECT_EQ(::read(saving[0], &byte, 1), 1) << "the child could not save";
    ::close(saving[0]);
    std::this_thread::sleep_for(std::chrono::microseconds(100 * round));
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
    const Session loaded = open_session(model, 512);
    Error error;
    ASSERT_EQ(orrery_session_load(loaded.get(), file.c_str(), &error), ORRERY_OK) << error.message;
    EXPECT_LE(n_entries(), 3);  // the model, the file, a temporary
  }
  ASSERT_EQ(orrery_session_save(session.get(), file.c_str(), nullptr), ORRERY_OK);
  EXPECT_EQ(n_entries(), 2);
}

// Stacks -----------------------------------------------------------------------------------------------------

std::string repeated(const char* text, int n) {
  std::string out;
  for (int i = 0; i < n; ++i) out += text;
  return out;
}

// The deepest that the library goes: nested JSON, nested templates, a macro that calls itself.
void use_much_stack(const std::string& path, const std::string& file) {
  Error error;
  const Runtime runtime = make_runtime(2);
  const Model model = open_model(runtime, path);
  const Session session = open_session(model);
  ask(session, "hello", 4);
  orrery_session_save(session.get(), file.c_str(), &error);
  orrery_session_load(session.get(), file.c_str(), &error);
  orrery_session_add_message_json(session.get(),
                                  ("{\"role\": \"user\", \"content\": " + repeated("[", 190) + repeated("]", 190) + "}").c_str(), &error);
  std::string text(1 << 20, '\0');
  size_t n = 0;
  const Vocab vocab(orrery_model_vocab(model.get()));
  for (const std::string& source :
       {repeated("{% if true %}", 140) + repeated("{% endif %}", 140), "{{ " + repeated("(", 140) + "1" + repeated(")", 140) + " }}",
        std::string("{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}"),
        std::string(
            "{% set ns = namespace(x=[]) %}{% for i in range(500) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x | tojson }}{{ ns.x }}"),
        std::string("{% macro m(n) %}{% if 1 %}{% if 1 %}{{ [[[m(n + 1) | upper]]] }}{% endif %}{% endif %}{% endmacro %}{{ m(0) }}"),
        std::string("{{ messages | tojson }}")}) {
    orrery_template_options o = options(&orrery_template_options_init);
    o.template_source = source.c_str();
    const std::string messages = "[{\"role\": \"user\", \"content\": " + repeated("[", 190) + repeated("]", 190) + "}]";
    orrery_render_chat(vocab.get(), messages.c_str(), &o, text.data(), text.size(), &n, &error);
  }
  char json[100000];
  orrery_inspect(path_source(path), json, sizeof json, &n, &error);
}

// The header says how much stack a caller needs.
TEST_F(Process, OneMegabyteOfStackIsEnough) {
  if (kSanitized) GTEST_SKIP() << "sanitizers have frames of another size";
  constexpr size_t kBytes = size_t{1} << 20;
  void* stack = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(stack, MAP_FAILED);
  std::memset(stack, 0xA5, kBytes);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  ASSERT_EQ(pthread_attr_setstack(&attributes, stack, kBytes), 0);
  const auto work = [&] { use_much_stack(path, dir.file("saved")); };
  using Work = decltype(work);
  pthread_t thread;
  ASSERT_EQ(pthread_create(
                &thread, &attributes, [](void* f) -> void* { return (*static_cast<Work*>(f))(), nullptr; },
                const_cast<void*>(static_cast<const void*>(&work))),
            0);
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
  const auto* bytes = static_cast<const unsigned char*>(stack);
  const auto untouched = static_cast<size_t>(std::find_if(bytes, bytes + kBytes, [](unsigned char b) { return b != 0xA5; }) - bytes);
  RecordProperty("stack_bytes", static_cast<int>(kBytes - untouched));
  EXPECT_GT(untouched, kBytes / 8) << "the stack was nearly full, or more than that";
  munmap(stack, kBytes);
}

// Descriptors ------------------------------------------------------------------------------------------------

TEST_F(Process, FailedCallsLeaveNoDescriptors) {
  const Runtime runtime = make_runtime();
  const Model model = open_model(runtime, path);
  const Session session = open_session(model);
  ask(session, "hello", 4);
  const std::string pipe = dir.file("pipe"), bad = dir.write("bad", std::vector<std::byte>(5000)), ring = dir.file("ring");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  std::filesystem::create_symlink("ring", ring);
  const auto count = [] {
    size_t n = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) n += entry.is_symlink();
    return n;
  };
  const size_t before = count();
  for (const std::string& file : {pipe, bad, ring, dir.file(""), dir.file("none"), dir.file("no/such"), std::string("/dev/null"),
                                  std::string("/proc/orrery"), std::string(300, 'n'), std::string()}) {
    Error error;
    orrery_model* m = nullptr;
    orrery_vocab* v = nullptr;
    char json[10];
    size_t n = 0;
    orrery_plan_result plan = options(&orrery_plan_result_init);
    for (const uint32_t load : std::initializer_list<uint32_t>{ORRERY_LOAD_MAP, ORRERY_LOAD_READ}) {
      orrery_model_options o = model_options();
      o.load = load;
      EXPECT_NE(orrery_model_open(runtime.get(), path_source(file), &o, &m, &error), ORRERY_OK) << file;
    }
    EXPECT_NE(orrery_vocab_open(path_source(file), &v, &error), ORRERY_OK) << file;
    EXPECT_NE(orrery_inspect(path_source(file), json, sizeof json, &n, &error), ORRERY_OK) << file;
    EXPECT_NE(orrery_plan(path_source(file), nullptr, nullptr, nullptr, &plan, &error), ORRERY_OK) << file;
    EXPECT_NE(orrery_session_load(session.get(), file.c_str(), &error), ORRERY_OK) << file;
    if (file != bad && file != dir.file("none")) {
      EXPECT_NE(orrery_session_save(session.get(), file.c_str(), &error), ORRERY_OK) << file;
    }
    EXPECT_EQ(count(), before) << file;
  }
  EXPECT_TRUE(std::filesystem::is_fifo(pipe));
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
}

}  // namespace
}  // namespace orrery::testing::contract_posix_process_test
