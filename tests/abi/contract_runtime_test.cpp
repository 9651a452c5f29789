// Runtimes: which device, how many threads and of what priority, what the log tells, and which limits bound the defaults.
#include <gtest/gtest.h>
#ifndef _WIN32
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/abi/handles.h"
#include "tests/support/temp_dir.h"

namespace orrery::testing::contract_runtime_test {
namespace {

class Runtimes : public ::testing::Test {
 protected:
  TempDir dir;
  std::string path = dir.write("tiny.gguf", TinyModel().build());
};

int32_t n_threads(const Runtime& runtime) {
  orrery_runtime_info info = options(&orrery_runtime_info_init);
  Error error;
  check(orrery_runtime_get_info(runtime.get(), &info, &error), error, "orrery_runtime_get_info");
  return info.n_threads;
}

TEST_F(Runtimes, EveryDeviceIsDescribedAndNoOther) {
  const size_t n = orrery_devices();
  for (size_t i = 0; i < n; ++i) {
    orrery_device_info info = options(&orrery_device_info_init);
    Error error;
    ASSERT_EQ(orrery_device_get_info(i, &info, &error), ORRERY_OK) << error.message;
    EXPECT_TRUE(info.name[0] != '\0' || info.refused[0] != '\0');
  }
  for (const size_t none : {n, n + 7, SIZE_MAX}) {
    orrery_device_info info = options(&orrery_device_info_init);
    Error error;
    EXPECT_EQ(orrery_device_get_info(none, &info, &error), ORRERY_INVALID_ARGUMENT);
    EXPECT_NE(std::string(error.message).find(std::to_string(n) + " devices"), std::string::npos) << error.message;
  }
}

// A runtime on the processor says why no GPU computes, and "gpu" is refused for the same reason.
TEST_F(Runtimes, TheProcessorComputesForAReason) {
  orrery_runtime_options o = runtime_options();
  o.device_budget_bytes = o.reservoir_bytes = uint64_t{64} << 20;
  const auto info_of = [](const Runtime& runtime) {
    orrery_runtime_info info = options(&orrery_runtime_info_init);
    Error error;
    check(orrery_runtime_get_info(runtime.get(), &info, &error), error, "orrery_runtime_get_info");
    return info;
  };
  const auto created = [&o] {
    orrery_runtime* h = nullptr;
    Error error;
    check(orrery_runtime_create(&o, &h, &error), error, "orrery_runtime_create");
    return Runtime(h);
  };
  o.backend = "cpu";
  o.cpu_path = nullptr;
  {
    const Runtime runtime = created();
    EXPECT_EQ(info_of(runtime).gpu_use, static_cast<uint32_t>(ORRERY_GPU_NOT_WANTED));
    EXPECT_STREQ(info_of(runtime).gpu_reason, "the options name the processor");
  }
  o.backend = "auto";
  const Runtime runtime = created();
  const orrery_runtime_info info = info_of(runtime);
  o.backend = "gpu";
  Error error;
  orrery_runtime* h = nullptr;
  if (std::string(info.backend) == "cpu") {
    const bool built = std::string(orrery_build_info()).find("cuda") != std::string::npos;
    const uint32_t least = built ? ORRERY_GPU_NO_DRIVER : ORRERY_GPU_NOT_BUILT;
    EXPECT_GE(info.gpu_use, least) << orrery_gpu_use_name(info.gpu_use);
    EXPECT_LE(info.gpu_use, built ? ORRERY_GPU_REFUSED : least) << orrery_gpu_use_name(info.gpu_use);
    EXPECT_STRNE(info.gpu_reason, "");
    EXPECT_EQ(orrery_runtime_create(&o, &h, &error), ORRERY_UNSUPPORTED);
    EXPECT_EQ(h, nullptr);
    EXPECT_NE(std::string(error.message).find(info.gpu_reason), std::string::npos) << error.message << " / " << info.gpu_reason;
    EXPECT_GE(error.native_code, 0);
  } else {
    EXPECT_EQ(info.gpu_use, static_cast<uint32_t>(ORRERY_GPU_USED));
    EXPECT_STREQ(info.gpu_reason, "");
    o.device_budget_bytes = uint64_t{32} << 20;
    EXPECT_EQ(orrery_runtime_create(&o, &h, &error), ORRERY_OK) << error.message;
    orrery_runtime_free(h);
  }
}

TEST_F(Runtimes, ADeviceThatIsNotThereIsRefused) {
  orrery_runtime_options o = runtime_options();
  EXPECT_EQ(o.device, -1);
  o.device_budget_bytes = o.reservoir_bytes = uint64_t{64} << 20;
  Error error;
  orrery_runtime* h = nullptr;
  o.device = -2;
  EXPECT_EQ(orrery_runtime_create(&o, &h, &error), ORRERY_INVALID_ARGUMENT);
  EXPECT_NE(std::string(error.message).find("device is -2"), std::string::npos) << error.message;
  o.device = 1000;  // whoever names a device wants a GPU, unless an instruction set says otherwise
  o.cpu_path = nullptr;
  EXPECT_EQ(orrery_runtime_create(&o, &h, &error), ORRERY_UNSUPPORTED) << error.message;
  EXPECT_EQ(h, nullptr);
  o.backend = "cpu";
  ASSERT_EQ(orrery_runtime_create(&o, &h, &error), ORRERY_OK) << error.message;
  orrery_runtime_free(h);
}

TEST_F(Runtimes, TheNumberOfThreadsChangesBetweenStepsAndNoResultWithIt) {
  const Runtime runtime = make_runtime(2);
  const Model model = open_model(runtime, path);
  const std::string text(400, 'q');
  const auto numbers = [&](const Session& session) {
    orrery_model_info info = options(&orrery_model_info_init);
    Error error;
    check(orrery_model_get_info(model.get(), &info, &error), error, "orrery_model_get_info");
    std::vector<float> logits(info.n_vocab);
    check(orrery_session_logits(session.get(), logits.data(), logits.size(), &error), error, "orrery_session_logits");
    return logits;
  };
  const Session want_session = open_session(model, 1024);
  const Answer want = ask(want_session, text.c_str(), 12);
  const std::vector<float> want_logits = numbers(want_session);

  const Session session = open_session(model, 1024);
  say(session, text.c_str());
  const Generation generation = generate(session, generate_options(12));
  Answer got;
  for (int step = 0;; ++step) {
    Error error;
    ASSERT_EQ(orrery_runtime_set_threads(runtime.get(), 1 + step % 2, step % 2, &error), ORRERY_OK) << error.message;
    EXPECT_EQ(n_threads(runtime), 1 + step % 2);
    orrery_event e = options(&orrery_event_init);
    ASSERT_EQ(orrery_next(generation.get(), &e, &error), ORRERY_OK) << error.message;
    if (e.type == ORRERY_EVENT_TOKEN) got.tokens.push_back(e.token), got.logprobs.push_back(e.logprob);
    if (e.type == ORRERY_EVENT_DONE) break;
  }
  EXPECT_EQ(got.tokens, want.tokens);
  EXPECT_EQ(got.logprobs, want.logprobs);
  const std::vector<float> logits = numbers(session);
  EXPECT_EQ(std::memcmp(logits.data(), want_logits.data(), logits.size() * sizeof(float)), 0);
}

TEST_F(Runtimes, ThreadsChangeWhileOthersCompute) {
  const Runtime runtime = make_runtime(2);
  const Model model = open_model(runtime, path);
  const Answer want = ask(open_session(model), "hello", 20);
  std::atomic<bool> stop{false};
  std::thread changer([&] {
    for (int i = 0; !stop; ++i) EXPECT_EQ(orrery_runtime_set_threads(runtime.get(), 1 + i % 2, 0, nullptr), ORRERY_OK);
  });
  for (int i = 0; i < 10; ++i) EXPECT_EQ(ask(open_session(model), "hello", 20).tokens, want.tokens);
  stop = true;
  changer.join();
}

TEST_F(Runtimes, ThreadsOutOfRangeAreRefusedAndTheOldOnesStay) {
  const Runtime runtime = make_runtime(2);
  for (const auto& [n, priority] : {std::pair<int32_t, int32_t>{-1, 0}, {100000, 0}, {INT32_MAX, 0}, {1, 2}, {1, -1}}) {
    Error error;
    EXPECT_EQ(orrery_runtime_set_threads(runtime.get(), n, priority, &error), ORRERY_INVALID_ARGUMENT) << n << ", " << priority;
    EXPECT_NE(std::string(error.message).find(priority == 0 ? "n_threads is" : "priority is"), std::string::npos) << error.message;
    EXPECT_EQ(n_threads(runtime), 2);
  }
}

// A desktop keeps a processor; two stay two.
TEST_F(Runtimes, ByDefaultAProcessorIsLeftWhereThereAreFour) {
  const auto processors = static_cast<int32_t>(std::thread::hardware_concurrency());
  const Runtime runtime = make_runtime(0);
  const int32_t n = n_threads(runtime);
  EXPECT_GE(n, 1);
  EXPECT_LE(n, processors >= 4 ? processors - 1 : processors);  // an affinity mask may leave fewer
  ASSERT_EQ(orrery_runtime_set_threads(runtime.get(), 1, ORRERY_PRIORITY_LOW, nullptr), ORRERY_OK);
  ASSERT_EQ(orrery_runtime_set_threads(runtime.get(), 0, ORRERY_PRIORITY_NORMAL, nullptr), ORRERY_OK);
  EXPECT_EQ(n_threads(runtime), n);
}

// Log ------------------------------------------------------------------------------------------------------------

struct Log {
  std::vector<std::pair<int32_t, std::string>> lines;
  static void take(void* user, int32_t level, const char* message) { static_cast<Log*>(user)->lines.emplace_back(level, message); }
  bool has(int32_t level, const std::vector<std::string>& words) const {
    return std::any_of(lines.begin(), lines.end(), [&](const auto& line) {
      return line.first == level &&
             std::all_of(words.begin(), words.end(), [&](const std::string& word) { return line.second.find(word) != std::string::npos; });
    });
  }
};

Runtime logging(Log* log, uint64_t budget) {
  orrery_runtime_options o = runtime_options();
  o.n_threads = 1;
  o.backend = "cpu";
  o.device_budget_bytes = budget;
  o.log = &Log::take;
  o.log_user = log;
  o.log_level = ORRERY_LOG_INFO;
  Error error;
  orrery_runtime* h = nullptr;
  check(orrery_runtime_create(&o, &h, &error), error, "orrery_runtime_create");
  return Runtime(h);
}

TEST_F(Runtimes, TheLogTellsWhatAPersonWouldAsk) {
  Log log;
  const Runtime runtime = logging(&log, uint64_t{64} << 20);
  const Model model = open_model(runtime, path);
  const Session session = open_session(model, 512);
  orrery_runtime_info info = options(&orrery_runtime_info_init);
  ASSERT_EQ(orrery_runtime_get_info(runtime.get(), &info, nullptr), ORRERY_OK);
  EXPECT_TRUE(log.has(ORRERY_LOG_INFO, {"backend cpu", info.path, "1 threads"}));
  EXPECT_TRUE(log.has(ORRERY_LOG_INFO, {"arena of 67108864 bytes", "reservoir of"}));
  EXPECT_TRUE(log.has(ORRERY_LOG_INFO, {path, "llama", "bytes of weights mapped", "trained for 1024 tokens"}));
  EXPECT_TRUE(log.has(ORRERY_LOG_INFO, {"session of 512 tokens", "policy full", "full KV fits"}));
  // The regions of the plan, by the kind of memory, and their sums.
  orrery_runtime_options r = runtime_options();
  r.n_threads = 1;
  r.device_budget_bytes = uint64_t{64} << 20;
  orrery_session_options s = session_options();
  s.n_context = 512;
  orrery_plan_result plan = options(&orrery_plan_result_init);
  ASSERT_EQ(orrery_plan(path_source(path), &r, nullptr, &s, &plan, nullptr), ORRERY_OK);
  const std::string taken = "arena, for the session: " + std::to_string(plan.device_bytes - plan.weights_bytes) + " bytes: ";
  EXPECT_TRUE(log.has(ORRERY_LOG_INFO,
                      {taken, "KV pages " + std::to_string(plan.full_kv_bytes), "workspace " + std::to_string(plan.workspace_bytes)}));
  EXPECT_TRUE(log.has(ORRERY_LOG_INFO, {"other host memory, at most, for the session: " + std::to_string(plan.host_bytes) + " bytes",
                                        "tokens ", "page table "}));
  EXPECT_FALSE(log.has(ORRERY_LOG_WARNING, {}));
}

TEST_F(Runtimes, AContextBeyondTheTrainingIsAWarning) {
  Log log;
  const Runtime runtime = logging(&log, uint64_t{64} << 20);
  const Model model = open_model(runtime, path);
  open_session(model, 1024);
  EXPECT_FALSE(log.has(ORRERY_LOG_WARNING, {}));
  open_session(model, 2048);
  EXPECT_TRUE(log.has(ORRERY_LOG_WARNING, {"2048 tokens", "1024", "rope_scaling"}));
  // Scaling makes it as long.
  log.lines.clear();
  orrery_model_options o = model_options();
  o.rope_scaling = ORRERY_ROPE_YARN;
  o.rope_scale = 2;
  Error error;
  orrery_model* h = nullptr;
  ASSERT_EQ(orrery_model_open(runtime.get(), path_source(path), &o, &h, &error), ORRERY_OK) << error.message;
  const Model scaled(h);
  open_session(scaled, 2048);
  EXPECT_FALSE(log.has(ORRERY_LOG_WARNING, {}));
}

TEST_F(Runtimes, AContextThatTheArenaShrinksIsAWarningAndInThePlan) {
  orrery_session_options s = session_options();
  orrery_runtime_options r = runtime_options();
  r.backend = "cpu";
  r.n_threads = 1;
  orrery_plan_result plan = options(&orrery_plan_result_init);
  Error error;
  s.n_context = 512;
  r.device_budget_bytes = uint64_t{64} << 20;
  ASSERT_EQ(orrery_plan(path_source(path), &r, nullptr, &s, &plan, &error), ORRERY_OK) << error.message;
  EXPECT_EQ(plan.trained_context, 1024u);
  Log log;
  const Runtime runtime = logging(&log, plan.device_bytes);
  const Model model = open_model(runtime, path);
  const Session session = open_session(model, session_options());
  orrery_stats stats = options(&orrery_stats_init);
  ASSERT_EQ(orrery_session_stats(session.get(), &stats, nullptr), ORRERY_OK);
  ASSERT_LT(stats.n_context, 1024u);
  EXPECT_TRUE(log.has(ORRERY_LOG_WARNING, {std::to_string(stats.n_context) + " tokens", "1024", "device_budget_bytes"}));
}

// Limits -----------------------------------------------------------------------------------------------------------

TEST_F(Runtimes, ARefusalNamesTheOptionThatHelps) {
  orrery_runtime_options o = runtime_options();
  o.backend = "cpu";
  o.n_threads = 1;
  o.device_budget_bytes = uint64_t{1} << 60;
  Error error;
  orrery_runtime* h = nullptr;
  ASSERT_EQ(orrery_runtime_create(&o, &h, &error), ORRERY_OUT_OF_HOST_MEMORY);
  EXPECT_NE(std::string(error.message).find("device_budget_bytes"), std::string::npos) << error.message;
  o.device_budget_bytes = uint64_t{64} << 20;
  o.reservoir_bytes = uint64_t{1} << 60;
  ASSERT_EQ(orrery_runtime_create(&o, &h, &error), ORRERY_OUT_OF_HOST_MEMORY);
  EXPECT_NE(std::string(error.message).find("reservoir_bytes"), std::string::npos) << error.message;
  o.reservoir_bytes = 0;
  ASSERT_EQ(orrery_runtime_create(&o, &h, &error), ORRERY_OK) << error.message;
  const Runtime runtime(h);
  const Model model = open_model(runtime, path);
  orrery_session_options s = session_options();
  s.n_context = 1000000;
  s.policy = "full";
  orrery_session* session = nullptr;
  ASSERT_EQ(orrery_session_open(model.get(), &s, &session, &error), ORRERY_OUT_OF_DEVICE_MEMORY);
  for (const char* option : {"n_context", "kv_type", "device_budget_bytes"})
    EXPECT_NE(std::string(error.message).find(option), std::string::npos) << error.message;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kOwnAddressSpace = false;  // a sanitizer reserves terabytes
#else
constexpr bool kOwnAddressSpace = true;
#endif

#ifndef _WIN32
TEST_F(Runtimes, ALimitOfAddressSpaceBoundsTheDefaults) {
  if (!kOwnAddressSpace) GTEST_SKIP() << "a sanitizer reserves more than any limit";
  const pid_t child = ::fork();
  if (child == 0) {
    // Two gigabytes more than the tests before this one have reserved.
    unsigned long pages = 0;
    std::FILE* statm = std::fopen("/proc/self/statm", "r");
    if (statm == nullptr || std::fscanf(statm, "%lu", &pages) != 1) ::_exit(8);
    std::fclose(statm);
    const rlim_t bytes = (rlim_t{2} << 30) + pages * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE));
    const struct rlimit limit = {bytes, bytes};
    if (::setrlimit(RLIMIT_AS, &limit) != 0) ::_exit(2);
    orrery_runtime_options o = runtime_options();
    o.backend = "cpu";
    o.n_threads = 1;
    orrery_runtime* h = nullptr;
    if (orrery_runtime_create(&o, &h, nullptr) != ORRERY_OK) ::_exit(3);
    orrery_runtime_info info = options(&orrery_runtime_info_init);
    if (orrery_runtime_get_info(h, &info, nullptr) != ORRERY_OK) ::_exit(4);
    if (info.arena_bytes > (uint64_t{1} << 29) || info.arena_bytes < (uint64_t{1} << 26)) ::_exit(5);
    orrery_model* model = nullptr;
    if (orrery_model_open(h, path_source(path), nullptr, &model, nullptr) != ORRERY_OK) ::_exit(6);
    orrery_session* session = nullptr;
    ::_exit(orrery_session_open(model, nullptr, &session, nullptr) == ORRERY_OK ? 0 : 7);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}
#endif

}  // namespace
}  // namespace orrery::testing::contract_runtime_test
