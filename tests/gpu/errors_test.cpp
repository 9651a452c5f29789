// Errors that do not end a runtime, and those that do: which is which, and what an application is told. Emulated alone: the driver fails on
// demand.
#ifdef ORRERY_EMULATED
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <set>

#include "cuda/cuda_backend.h"
#include "cuda/device/archive.h"
#include "cuda/device/owners.h"
#include "cuda/operations.h"
#include "tests/emulation/cuda/device.h"
#include "tests/emulation/cuda/memory.h"
#include "tests/gpu/device_fixture.h"
#include "tests/gpu/on_cuda.h"
#include "tests/support/policy_sessions.h"

namespace orrery::errors_test {
namespace {

using namespace testing;
using cuda::DriverError;
using engine::Session;

class GpuErrors : public ::testing::Test {
 protected:
  void TearDown() override {
    emulated::fault = nullptr;
    emulated::driver_version = emulated::kDriverVersion;
    emulated::pinned_most = emulated::most_graph_nodes = SIZE_MAX;
  }
  // The nth call that can fail from now on fails, alone.
  static void refuse(DriverError error, int64_t n) {
    calls() = 0;
    emulated::fault = [=] {
      // A context that the process holds and that cannot be made current is lost: no error that a call may give alone.
      if (std::strcmp(emulated::asking, "cuCtxPushCurrent_v2") == 0) return DriverError::none;
      return calls()++ == n ? error : DriverError::none;
    };
  }
  static int64_t& calls() {
    static int64_t n = 0;
    return n;
  }
};

TEST_F(GpuErrors, FewLeaveTheDeviceWell) {
  for (const int well : {1, 2, 500, 701, 800, 801, 900, 901, 907}) EXPECT_FALSE(cuda::loses_device(static_cast<DriverError>(well))) << well;
  // Illegal and misaligned addresses and instructions, traps, launch failures and time limits, ECC, NVLink, MPS, a destroyed context.
  for (const int lost : {-1, 3, 4, 201, 214, 220, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 805, 810, 911, 999})
    EXPECT_TRUE(cuda::loses_device(static_cast<DriverError>(lost))) << lost;
}

// A driver without memory for a call: each call of a token in turn. The step is refused, the session is as it was before the step, and so
// is a session beside it. All answer with the bits of a run without faults.
TEST_F(GpuErrors, ATokenThatIsRefusedIsComputedAgain) {
  const auto model = open_spec("qwen3", on_cuda());
  const std::vector<int32_t> prompt = random_tokens(*model, 70, 1);
  std::vector<float> expected;
  {
    const auto session = open_session(model, 128, KvType::f16);
    expected = answer(session.get(), prompt, 2);
  }
  const auto other = open_session(model, 128, KvType::f16);
  unwrap(other->prefill(prompt, nullptr, nullptr));
  int n_refused = 0;
  for (const auto error : {DriverError::out_of_memory, DriverError::launch_out_of_resources})
    for (int64_t at = 0;; ++at) {
      const auto fresh = open_spec("qwen3", on_cuda());  // its graphs are made in this token
      const auto session = open_session(fresh, 128, KvType::f16);
      unwrap(session->prefill(prompt, nullptr, nullptr));
      session->push_generated(argmax(session->logits()));
      refuse(error, at);
      const Status first = session->decode();
      emulated::fault = nullptr;
      if (!first.ok()) {
        ++n_refused;
        EXPECT_EQ(first.code(), error == DriverError::out_of_memory ? Code::out_of_device_memory : Code::internal) << first.message();
        unwrap(session->decode());
      }
      std::vector<float> logits = as_vector(session->logits());
      greedy(session.get(), 1, &logits);
      EXPECT_TRUE(same_bits(logits, expected)) << emulated::failed_call.load() << ", call " << at;
      if (calls() <= at) break;
    }
  EXPECT_GT(n_refused, 20);
  std::vector<float> logits;
  greedy(other.get(), 2, &logits);
  EXPECT_TRUE(same_bits(logits, expected));
}

// The same of a prompt, under a policy and without: the session is as it was before the chunk.
TEST_F(GpuErrors, APromptThatIsRefusedIsComputedAgain) {
  for (const char* policy : {"full", "quest", "synckv"}) {
    const auto model = open_spec("qwen3", on_cuda());
    const std::vector<int32_t> prompt = random_tokens(*model, 70, 1);
    const auto open = [&] {
      return unwrap(Session::open(model, with_mode({"", policy, {}, false}, policy == std::string("full") ? 1.0 : 0.6, 128)));
    };
    const std::vector<float> expected = answer(open().get(), prompt, 3);
    refuse(DriverError::out_of_memory, INT64_MAX);
    unwrap(open()->prefill(prompt, nullptr, nullptr));
    const int64_t n = calls();
    emulated::fault = nullptr;
    for (int64_t at = policy[0] % 5; at < n; at += 5) {  // each policy has calls of its own
      const auto session = open();
      refuse(DriverError::out_of_memory, at);
      const Status first = session->prefill(prompt, nullptr, nullptr);
      emulated::fault = nullptr;
      if (first.ok()) continue;
      EXPECT_EQ(session->tokens().size(), 0u);
      EXPECT_TRUE(same_bits(answer(session.get(), prompt, 3), expected))
          << policy << ": " << emulated::failed_call.load() << ", call " << at;
    }
    EXPECT_GT(n, 20);
  }
}

// A policy's session goes on behind a refused token, with a selection made anew.
TEST_F(GpuErrors, PoliciesGoOn) {
  for (const char* name : {"quest", "synckv_every_step", "freekv", "infinigen", "shadowkv", "keycodes", "omnikv"}) {
    const auto model = open_spec("qwen3", on_cuda());
    const std::vector<int32_t> prompt = random_tokens(*model, 72, 1);
    const auto open = [&] { return unwrap(Session::open(model, with_mode(mode_of(name), 0.6, 128))); };
    int n_refused = 0;
    for (int64_t at = 3; at < 200; at += 29) {
      const auto session = open();
      unwrap(session->prefill(prompt, nullptr, nullptr));
      greedy(session.get(), 1);
      session->push_generated(argmax(session->logits()));
      refuse(DriverError::out_of_memory, at);
      const Status refused = session->decode();
      emulated::fault = nullptr;
      if (refused.ok()) continue;
      ++n_refused;
      const auto twin = unwrap(session->fork());  // without that token's attempt in its slots
      std::vector<float> one, two;
      unwrap(session->decode()), unwrap(twin->decode());
      greedy(session.get(), 2, &one), greedy(twin.get(), 2, &two);
      EXPECT_TRUE(same_bits(one, two)) << name << ": " << emulated::failed_call.load() << ", call " << at;
    }
    EXPECT_GT(n_refused, 0) << name;
  }
}

// Pinned memory for larger steps is asked for when a session is opened. A refusal leaves the open sessions well.
TEST_F(GpuErrors, RefusedPinnedMemoryEndsNothing) {
  const auto model = open_spec("qwen3", on_cuda(256u << 20));
  const auto session = open_session(model, 128, KvType::f16);
  const std::vector<int32_t> prompt = random_tokens(*model, 9, 1);
  std::vector<float> expected = answer(session.get(), prompt, 2);
  unwrap(session->rewind(0));
  emulated::pinned_most = emulated::pinned_bytes();
  engine::SessionOptions larger;
  larger.n_context = 65536;
  const auto refused = Session::open(model, larger);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), Code::out_of_pinned_memory) << refused.status().message();
  EXPECT_TRUE(same_bits(answer(session.get(), prompt, 2), expected));
  emulated::pinned_most = SIZE_MAX;
  const auto opened = unwrap(Session::open(model, larger));
  const size_t pinned = emulated::pinned_bytes();
  emulated::pinned_most = pinned;  // no step of an open session takes more
  unwrap(opened->prefill(prompt, nullptr, nullptr));
  greedy(opened.get(), 2);
  EXPECT_EQ(emulated::pinned_bytes(), pinned);
}

// A driver with memory for no graph, or for few: lists run without graphs, or graphs come and go, with the same bits.
TEST_F(GpuErrors, GraphsThatDoNotFitAreDoneWithout) {
  for (const char* policy : {"full", "quest"}) {
    std::vector<float> expected;
    for (const size_t most : {SIZE_MAX, size_t{0}, size_t{40}, size_t{100}}) {
      emulated::most_graph_nodes = most;
      const auto model = open_spec("qwen3", on_cuda());
      const auto session = unwrap(Session::open(model, with_mode({"", policy, {}, false}, policy == std::string("full") ? 1.0 : 0.6, 128)));
      const std::vector<float> logits = answer(session.get(), random_tokens(*model, 70, 1), 3);
      if (most == SIZE_MAX) expected = logits;
      else EXPECT_TRUE(same_bits(logits, expected)) << policy << ", " << most << " nodes";
    }
  }
}

TEST_F(GpuErrors, ALostDeviceSaysWhatHelps) {
  const auto model = open_spec("llama-plain", on_cuda());
  const auto session = open_session(model, 64, KvType::f16);
  unwrap(session->prefill(random_tokens(*model, 9, 1), nullptr, nullptr));
  session->push_generated(1);
  refuse(DriverError::illegal_address, 3);
  const Status lost = session->decode();
  emulated::fault = nullptr;
  EXPECT_EQ(lost.code(), Code::device_lost);
  for (const char* part : {"create another one", "other libraries share", "released it"})
    EXPECT_NE(std::string(lost.message()).find(part), std::string::npos) << lost.message();
  EXPECT_EQ(session->decode().code(), Code::device_lost) << "for good";
}

// A failure that no caller was told before the turn ended may have spoilt what others read: it is final.
TEST_F(GpuErrors, AFailureThatNobodyWasToldIsFinal) {
  const auto backend = unwrap(cuda::make_backend({}));
  unwrap(backend->reserve_arena(1 << 20));
  const std::vector<std::byte> bytes(512);
  for (const bool told : {true, false}) {
    refuse(DriverError::out_of_memory, 0);
    backend->upload(backend->arena(), bytes.data(), bytes.size());
    emulated::fault = nullptr;
    if (told) {
      EXPECT_EQ(backend->synchronize().code(), Code::out_of_device_memory);
    }
    backend->end_turn();
    EXPECT_EQ(backend->synchronize().ok(), told);
    EXPECT_EQ(backend->synchronize().ok(), told);
  }
}

// A copy of the I/O thread that fails is that thread's error, also where the steps' thread has recovered meanwhile.
TEST_F(GpuErrors, ACopyOfTheOtherThreadIsToldItsFailure) {
  const auto backend = unwrap(cuda::make_backend({}));
  unwrap(backend->reserve_arena(1 << 20));
  const std::vector<std::byte> bytes(512);
  const HostPiece piece{bytes.data(), bytes.size()};
  bool recovered = false;
  emulated::fault = [&] {
    if (std::exchange(recovered, true)) return DriverError::none;
    return DriverError::out_of_memory;
  };
  // The failure is reported to the copy, and cleared by whoever waits behind it.
  EXPECT_EQ(backend->copy_in(backend->arena(), {&piece, 1}).code(), Code::out_of_device_memory);
  EXPECT_EQ(backend->synchronize().code(), Code::out_of_device_memory);
  unwrap(backend->synchronize());
  unwrap(backend->copy_in(backend->arena(), {&piece, 1}));
}

// Waits sleep until the device interrupts: by events that say so, and not by the stream, whose wait spins under the context's default
// flags.
namespace spy {
unsigned flags_missing = 0, stream_waits = 0, event_waits = 0, queries = 0;
cuda::Driver real;
DriverError create_event(cuda::Event* event, unsigned flags) {
  if (!(flags & cuda::kEventBlockingSync)) ++flags_missing;
  return real.create_event(event, flags);
}
DriverError wait_for_stream(cuda::Stream stream) {
  ++stream_waits;
  return real.wait_for_stream(stream);
}
DriverError query_event(cuda::Event) {
  ++queries;
  return DriverError::not_ready;
}
DriverError wait_for_event(cuda::Event event) {
  ++event_waits;
  return real.wait_for_event(event);
}
}  // namespace spy

TEST_F(GpuErrors, WaitsSleep) {
  spy::real = unwrap(cuda::Driver::open(cuda::archive_version()));
  cuda::Driver driver = spy::real;
  driver.create_event = spy::create_event, driver.wait_for_stream = spy::wait_for_stream;
  driver.query_event = spy::query_event, driver.wait_for_event = spy::wait_for_event;
  const auto gpu = unwrap(cuda::Gpu::open(driver, 0));
  cuda::StreamOwner stream;
  cuda::Pinned memory;
  unwrap(stream.create(*gpu));
  unwrap(memory.allocate(*gpu, 4096));
  const cuda::OnDevice here(*gpu);
  cuda::Queue queue = stream.queue(gpu.get());
  const auto began = std::chrono::steady_clock::now();
  queue.clear(memory.data(), 4096, "a test");
  queue.wait("a test");
  queue.clear(memory.data(), 4096, "a test");
  memory.mark(queue);
  memory.wait(queue);
  const auto took = std::chrono::steady_clock::now() - began;
  unwrap(gpu->status());
  EXPECT_EQ(spy::flags_missing, 0u);
  EXPECT_EQ(spy::stream_waits, 0u);
  EXPECT_EQ(spy::event_waits, 2u);
  EXPECT_GE(spy::queries, 2u) << "a short kernel is seen at once";
  EXPECT_GE(took, 2 * cuda::Queue::kSpin);
}

// A child of fork() gets sentences, from a backend of its parent and for a new one. Its destructors return. The parent's backend goes on.
TEST_F(GpuErrors, AChildOfForkIsRefused) {
  auto model = open_spec("llama-plain", on_cuda());
  auto backend = unwrap(cuda::make_backend({0, cuda::Options::Products::cublas}));
  unwrap(backend->reserve_arena(1 << 20));
  const size_t live = emulated::n_live();
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(60);  // a hang is a failure
    const auto has = [](const Status& s, Code code, const char* text) {
      return s.code() == code && std::string(s.message()).find(text) != std::string::npos;
    };
    int failed = 0;
    std::byte bytes[64] = {};
    backend->upload(backend->arena(), bytes, sizeof bytes);
    failed |= !has(backend->synchronize(), Code::device_lost, "child of fork()") << 0;
    failed |= !has(backend->share_host(bytes, sizeof bytes), Code::device_lost, "child of fork()") << 1;
    failed |= !has(cuda::make_backend({}).status(), Code::unsupported, "a child of fork() cannot use CUDA") << 2;
    failed |= (engine::Runtime::create(runtime_options(1)).value()->backend_info().name != std::string("cpu")) << 3;
    backend.reset();
    failed |= (emulated::n_live() != live) << 4;  // what is the parent's is left alone
    _exit(failed);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  const auto session = open_session(model, 64, KvType::f16);
  unwrap(session->prefill(random_tokens(*model, 9, 1), nullptr, nullptr));
  unwrap(backend->synchronize());
}

// Whether a driver is new enough shows when it takes the kernels or not. The message says what was found and what was needed; `auto`
// computes on the processor, and logs why.
TEST_F(GpuErrors, ADriverThatIsTooOldIsNamed) {
  static std::string logged;
  logged.clear();
  engine::RuntimeOptions options = runtime_options(1);
  options.log = [](void*, int32_t, const char* message) { logged += message; };
  for (const int version : {11080, 12000, 12020, 13000}) {
    emulated::driver_version = version;
    logged.clear();
    const bool fits = version / 1000 >= cuda::archive_version() / 1000;
    const auto on_gpu = engine::Runtime::create(on_cuda());
    EXPECT_EQ(on_gpu.ok(), fits) << version;
    const auto automatic = unwrap(engine::Runtime::create(options));
    EXPECT_STREQ(automatic->backend_info().name, fits ? "cuda" : "cpu");
    if (fits) continue;
    const std::string found = "Its driver is for CUDA " + cuda::version_text(version) + ", the kernels are compiled by CUDA " +
                              cuda::version_text(cuda::archive_version());
    for (const std::string& said : {std::string(on_gpu.status().message()), logged}) EXPECT_NE(said.find(found), std::string::npos) << said;
  }
}

// What the driver takes by itself is left to it, and something to others; the arena is the rest.
TEST_F(GpuErrors, TheBudgetLeavesWhatTheDriverTakes) {
  const auto backend = unwrap(cuda::make_backend({}));
  EXPECT_GE(backend->driver_bytes(), cuda::Graphs::kMostBytes);
  const uint64_t free_bytes = emulated::memory_bytes - emulated::device_bytes().total();  // beside the context and the kernels
  EXPECT_EQ(engine::budget_bytes({}, *backend), free_bytes - backend->driver_bytes() - engine::kLeftToOthers);
  engine::RuntimeOptions said;
  said.device_budget_bytes = 12345;
  EXPECT_EQ(engine::budget_bytes(said, *backend), 12345u);
}

// Names that another compiler gives the kernels (kernel_tags.sh): each finds a kernel, and each kernel is found.
TEST(GpuKernels, AnotherCompilersNamesFindThem) {
  const char* path = std::getenv("ORRERY_KERNEL_TAGS");
  if (!path) GTEST_SKIP() << "kernel_tags.sh runs this test";
  std::ifstream file(path);
  std::set<std::string> names;
  for (std::string tag; std::getline(file, tag);) {
    const std::string name = cuda::readable_name(tag.c_str());
    EXPECT_TRUE(names.insert(name).second) << name << ", twice";
    EXPECT_NE(emulated::find_kernel(name), nullptr) << name;
  }
  EXPECT_GT(names.size(), 250u);
  for (const cuda::Function kernel : emulated::kernels())
    if (kernel->name.find("_kernel") != std::string::npos) {
      EXPECT_EQ(names.count(kernel->name), 1u) << kernel->name;
    }
}

}  // namespace
}  // namespace orrery::errors_test
#endif
