// The emulated driver's own tests, and what the backend makes of a strict driver: the host's hands off device memory, registered memory at
// another address, calls during a capture, caps of pinned and of device memory.
#include <gtest/gtest.h>

#include <csignal>
#include <cstring>
#include <map>
#include <set>
#include <thread>

#include "cuda/cuda_backend.h"
#include "cuda/device/archive.h"
#include "cuda/device/gpu.h"
#include "runtime/os/os.h"
#include "tests/emulation/cuda/device.h"
#include "tests/emulation/cuda/dlfcn.h"
#include "tests/emulation/cuda/memory.h"
#include "tests/gpu/on_cuda.h"
#include "tests/support/policy_sessions.h"
#include "tests/support/session_bytes.h"

namespace orrery::cuda::strict_test {
namespace {

using namespace testing;

void read_word(void* parameters) {
  const uint64_t* const* p = static_cast<uint64_t**>(parameters);
  uint64_t from, to;
  std::memcpy(&from, p[0], sizeof from), std::memcpy(&to, p[1], sizeof to);
  *reinterpret_cast<int*>(to) = *reinterpret_cast<const int*>(from);
}
const bool registered = emulated::add_kernel("read_word", {sizeof(uint64_t), sizeof(uint64_t)}, read_word);

// A device that is open, and the driver's table.
class GpuStrict : public ::testing::Test {
 protected:
  void TearDown() override {
    emulated::registered_elsewhere = false;
    emulated::pinned_most = SIZE_MAX;
    emulated::memory_bytes = size_t{8} << 30;
    emulated::fault = nullptr;
  }
  // A kernel copies the word.
  DriverError read(uint64_t from, uint64_t to) {
    void* parameters[] = {&from, &to};
    return driver_.launch(emulated::find_kernel("read_word"), 1, 1, 1, 32, 1, 1, 0, stream_, parameters, nullptr);
  }
  DeviceAddress device_pointer(void* host) {
    auto* ask =
        reinterpret_cast<DriverError (*)(DeviceAddress*, void*, unsigned)>(emulated::driver_function("cuMemHostGetDevicePointer_v2"));
    DeviceAddress at = 0;
    EXPECT_EQ(ask(&at, host, 0), DriverError::none);
    return at;
  }
  int word(uint64_t from) {
    int out = 0;
    EXPECT_EQ(driver_.copy(device_address(&out), from, sizeof out, stream_), DriverError::none);
    EXPECT_EQ(driver_.wait_for_stream(stream_), DriverError::none);
    return out;
  }

  const Driver driver_ = unwrap(Driver::open(archive_version()));
  const std::unique_ptr<Gpu> gpu_ = unwrap(Gpu::open(driver_, 0));
  const OnDevice here_{*gpu_};
  struct OwnStream {
    explicit OwnStream(const Driver& d) : driver(d) { EXPECT_EQ(d.create_stream(&stream, kStreamNonBlocking), DriverError::none); }
    ~OwnStream() { driver.destroy_stream(stream); }
    operator Stream() const { return stream; }
    const Driver& driver;
    Stream stream = nullptr;
  } stream_{driver_};
};

// A child that fork() has made cannot use the driver: it begins the test anew.
class GpuStrictDeathTest : public GpuStrict {
 protected:
  void SetUp() override { ::testing::FLAGS_gtest_death_test_style = "threadsafe"; }
};

TEST_F(GpuStrictDeathTest, TheHostCannotTouchDeviceMemory) {
  DeviceAddress at = 0;
  ASSERT_EQ(driver_.allocate(&at, 64), DriverError::none);
  volatile int* there = reinterpret_cast<volatile int*>(static_cast<uintptr_t>(at));
  EXPECT_EXIT((void)*there, ::testing::KilledBySignal(SIGSEGV), emulated::hides_by_keys() ? "the host touched device memory" : "");
  EXPECT_EXIT(*there = 1, ::testing::KilledBySignal(SIGSEGV), "");
  EXPECT_EXIT(std::thread([&] { (void)*there; }).join(), ::testing::KilledBySignal(SIGSEGV), "") << "on another thread";
  int seven = 7;
  EXPECT_EQ(driver_.copy(at, device_address(&seven), sizeof seven, stream_), DriverError::none);
  EXPECT_EQ(word(at), 7);
  EXPECT_EXIT((void)*there, ::testing::KilledBySignal(SIGSEGV), "") << "after a copy";
  driver_.free(at);
  void* pinned = nullptr;
  ASSERT_EQ(driver_.allocate_host(&pinned, 64, 0), DriverError::none);
  std::memset(pinned, 1, 64);
  EXPECT_EQ(driver_.free_host(pinned), DriverError::none);
}

// The device's address is another one. Content passes through, in both directions, and stays when the memory is the host's alone again.
TEST_F(GpuStrictDeathTest, RegisteredMemoryMayBeElsewhere) {
  const size_t bytes = 3 * os::page_bytes();
  auto region = unwrap(os::Region::allocate(bytes));
  auto* host = reinterpret_cast<int*>(region.data());
  host[0] = 11, host[1024] = 12;
  EXPECT_EQ(driver_.register_host(host, bytes, 0), DriverError::none);
  EXPECT_EQ(device_pointer(host + 5), device_address(host + 5));
  EXPECT_NE(driver_.register_host(host + 1024, 64, 0), DriverError::none) << "a page is registered once";
  EXPECT_EQ(driver_.unregister_host(host), DriverError::none);
  EXPECT_NE(driver_.unregister_host(host), DriverError::none);

  emulated::registered_elsewhere = true;
  const size_t before = emulated::n_live();
  EXPECT_EQ(driver_.register_host(host, bytes, 0), DriverError::none);
  EXPECT_EQ(emulated::n_live(), before + 1);
  const DeviceAddress there = device_pointer(host);
  EXPECT_NE(there, device_address(host));
  EXPECT_EQ(device_pointer(host + 1024), there + 4096);
  EXPECT_EQ(host[0], 11);
  EXPECT_EQ(word(there + 4096), 12);
  EXPECT_EQ(word(device_address(host)), 11) << "a copy takes the host's address";
  host[0] = 13;
  EXPECT_EQ(word(there), 13);
  EXPECT_EXIT((void)*reinterpret_cast<volatile int*>(static_cast<uintptr_t>(there)), ::testing::KilledBySignal(SIGSEGV), "");
  if (!emulated::device) {  // this kernel has no PTX
    EXPECT_EQ(read(there, there + 4), DriverError::none);
    EXPECT_EQ(driver_.wait_for_stream(stream_), DriverError::none);
    EXPECT_EQ(host[1], 13);
    if (emulated::hides_by_keys()) {
      EXPECT_EXIT(read(device_address(host), there), ::testing::KilledBySignal(SIGSEGV), "");
    }
  }
  EXPECT_EQ(driver_.unregister_host(host), DriverError::none);
  EXPECT_EQ(host[1024], 12);
}

// Whole sessions, whose reservoir the device reads and writes. In a child, so that a fault is this test's.
TEST_F(GpuStrictDeathTest, SessionsReachTheirReservoirElsewhere) {
  for (const char* policy : {"streaming", "quest", "shadowkv", "freekv"}) {
    const auto run = [&] {
      const auto model = open_spec("qwen3", on_cuda());
      engine::SessionOptions options;
      options.n_context = 256, options.policy = policy, options.kv_share = 0.6;
      const auto session = unwrap(engine::Session::open(model, options));
      return answer(session.get(), random_tokens(*model, 150, 1), 4);
    };
    const std::vector<float> expected = run();
    emulated::registered_elsewhere = true;
    EXPECT_EXIT(std::_Exit(same_bits(run(), expected) ? 0 : 1), ::testing::ExitedWithCode(0), "") << policy;
    emulated::registered_elsewhere = false;
  }
}

TEST_F(GpuStrict, WhatACaptureForbids) {
  DeviceAddress at = 0, other = 0;
  void *pinned = nullptr, *taken = nullptr;
  Module module = nullptr;
  Function function = nullptr;
  Event event = nullptr, outside = nullptr;
  std::vector<std::byte> memory(8192);
  ASSERT_EQ(driver_.allocate(&at, 4096), DriverError::none);
  ASSERT_EQ(driver_.allocate_host(&pinned, 4096, 0), DriverError::none);
  ASSERT_EQ(driver_.create_event(&event, kEventDisableTiming), DriverError::none);
  ASSERT_EQ(driver_.create_event(&outside, kEventDisableTiming), DriverError::none);
  ASSERT_EQ(driver_.load_module(&module, archive()[0].data), DriverError::none);
  const OwnStream second(driver_);
  ASSERT_EQ(driver_.record_event(outside, second), DriverError::none);
  const auto legacy = [&] { return driver_.fill(at, 0, 16, nullptr); };
  struct Call {
    const char* name;
    std::function<DriverError()> call;
  };
  const Call forbidden[] = {
      {"allocate", [&] { return driver_.allocate(&other, 16); }},
      {"free", [&] { return driver_.free(at); }},
      {"allocate_host", [&] { return driver_.allocate_host(&taken, 16, 0); }},
      {"free_host", [&] { return driver_.free_host(pinned); }},
      {"register_host", [&] { return driver_.register_host(memory.data(), 16, 0); }},
      {"unregister_host", [&] { return driver_.unregister_host(memory.data()); }},
      {"load_module", [&] { return driver_.load_module(&module, archive()[0].data); }},
      {"unload_module", [&] { return driver_.unload_module(module); }},
      {"get_function", [&] { return driver_.get_function(&function, module, archive()[0].kernels[0]); }},
      {"wait_for_stream", [&] { return driver_.wait_for_stream(stream_); }},
      {"wait_for_stream, another", [&] { return driver_.wait_for_stream(second); }},
      {"wait_for_event", [&] { return driver_.wait_for_event(outside); }},
      {"the legacy stream", legacy},
  };
  const auto capture = [&](int mode) { return driver_.begin_capture(stream_, mode); };
  const auto end = [&] {
    Graph graph = nullptr;
    const DriverError e = driver_.end_capture(stream_, &graph);
    if (graph) driver_.destroy_graph(graph);
    return e;
  };
  constexpr int kGlobal = 0, kThreadLocal = kCaptureThreadLocal, kRelaxed = 2;
  for (const Call& c : forbidden) {
    ASSERT_EQ(capture(kThreadLocal), DriverError::none);
    EXPECT_EQ(driver_.fill(at, 0, 16, stream_), DriverError::none);
    EXPECT_EQ(c.call(), DriverError::capture_unsupported) << c.name;
    EXPECT_EQ(end(), DriverError::capture_invalidated) << c.name;
    EXPECT_EQ(driver_.wait_for_stream(stream_), DriverError::none) << "the stream goes on";
  }
  // Another thread may do all that, unless the capture is global; nobody waits for the stream itself.
  const auto elsewhere = [&](const std::function<DriverError()>& call) {
    DriverError e = DriverError::none;
    std::thread([&] {
      const OnDevice here(*gpu_);
      e = call();
    }).join();
    return e;
  };
  const auto take_and_give = [&] {
    DeviceAddress mine = 0;
    const DriverError e = driver_.allocate(&mine, 16);
    return e == DriverError::none ? driver_.free(mine) : e;
  };
  for (const int mode : {kGlobal, kThreadLocal, kRelaxed}) {
    ASSERT_EQ(capture(mode), DriverError::none);
    EXPECT_EQ(elsewhere(take_and_give), mode == kGlobal ? DriverError::capture_unsupported : DriverError::none) << mode;
    EXPECT_EQ(end(), mode == kGlobal ? DriverError::capture_invalidated : DriverError::none) << mode;
  }
  ASSERT_EQ(capture(kRelaxed), DriverError::none);
  EXPECT_EQ(take_and_give(), DriverError::none);
  EXPECT_EQ(end(), DriverError::none);
  ASSERT_EQ(capture(kThreadLocal), DriverError::none);
  EXPECT_EQ(elsewhere([&] { return driver_.wait_for_stream(stream_); }), DriverError::capture_unsupported);
  EXPECT_EQ(end(), DriverError::capture_invalidated);
  // Events: of the capture, they order nothing outside; from outside, they order nothing in it.
  ASSERT_EQ(capture(kThreadLocal), DriverError::none);
  EXPECT_NE(driver_.order_stream(stream_, outside, 0), DriverError::none);
  EXPECT_EQ(end(), DriverError::capture_invalidated);
  ASSERT_EQ(capture(kThreadLocal), DriverError::none);
  EXPECT_EQ(driver_.record_event(event, stream_), DriverError::none);
  EXPECT_EQ(driver_.order_stream(stream_, event, 0), DriverError::none);
  EXPECT_EQ(end(), DriverError::none);
  EXPECT_NE(driver_.wait_for_event(event), DriverError::none);
  // A stream that the legacy stream waits for.
  Stream blocking = nullptr;
  ASSERT_EQ(driver_.create_stream(&blocking, 0), DriverError::none);
  ASSERT_EQ(driver_.begin_capture(blocking, kRelaxed), DriverError::none);
  EXPECT_NE(elsewhere(legacy), DriverError::none);
  Graph graph = nullptr;
  EXPECT_EQ(driver_.end_capture(blocking, &graph), DriverError::capture_invalidated);
  driver_.destroy_stream(blocking);
  driver_.destroy_event(event), driver_.destroy_event(outside);
  driver_.unload_module(module);
  driver_.free(at), driver_.free_host(pinned);
}

// A context ends with its last user. Handles of an earlier context of the device, and of unloaded modules, are refused.
TEST_F(GpuStrict, ContextsAndModulesAreCounted) {
  const Function kernel = emulated::find_kernel("read_word");
  const emulated::DeviceBytes one = emulated::device_bytes();
  auto second = unwrap(Gpu::open(driver_, 0));
  EXPECT_EQ(second->context(), gpu_->context());
  EXPECT_EQ(emulated::device_bytes().contexts, one.contexts);
  EXPECT_EQ(emulated::device_bytes().modules, one.modules) << "both share one copy of the kernels";
  second.reset();
  EXPECT_EQ(emulated::device_bytes().total(), one.total());
  if (!emulated::device) {
    EXPECT_EQ(emulated::n_modules_with(kernel), 1);
  }
  emulated::n_devices = 2;
  Context context = nullptr;
  ASSERT_EQ(driver_.retain_context(&context, 1), DriverError::none);
  ASSERT_EQ(driver_.push_context(context), DriverError::none);
  Stream stale = nullptr;
  ASSERT_EQ(driver_.create_stream(&stale, kStreamNonBlocking), DriverError::none);
  EXPECT_EQ(driver_.wait_for_stream(stale), DriverError::none);
  EXPECT_EQ(driver_.release_context(1), DriverError::none);
  ASSERT_EQ(driver_.retain_context(&context, 1), DriverError::none);
  EXPECT_EQ(driver_.wait_for_stream(stale), DriverError::invalid_handle);
  driver_.destroy_stream(stale);
  Context popped = nullptr;
  EXPECT_EQ(driver_.pop_context(&popped), DriverError::none);
  EXPECT_EQ(driver_.release_context(1), DriverError::none);
  EXPECT_NE(driver_.release_context(1), DriverError::none);
  emulated::n_devices = 1;
}

// Device memory is what allocations and the driver take together.
TEST_F(GpuStrict, DeviceMemoryHasAnEnd) {
  const size_t before = emulated::device_bytes().total();
  size_t free_bytes = 0, total_bytes = 0;
  ASSERT_EQ(driver_.get_memory(&free_bytes, &total_bytes), DriverError::none);
  EXPECT_EQ(free_bytes, total_bytes - before);
  emulated::memory_bytes = before + (1 << 20);
  DeviceAddress at = 0, more = 0;
  EXPECT_EQ(driver_.allocate(&at, (1 << 20) + 1), DriverError::out_of_memory);
  ASSERT_EQ(driver_.allocate(&at, (1 << 20) - (40 << 10)), DriverError::none);
  EXPECT_EQ(driver_.allocate(&more, 41 << 10), DriverError::out_of_memory);
  Graph graph = nullptr;
  GraphExec exec = nullptr;
  ASSERT_EQ(driver_.begin_capture(stream_, kCaptureThreadLocal), DriverError::none);
  for (int i = 0; i < 8; ++i) ASSERT_EQ(driver_.fill(at, 0, 16, stream_), DriverError::none);
  ASSERT_EQ(driver_.end_capture(stream_, &graph), DriverError::none);
  EXPECT_EQ(driver_.instantiate(&exec, graph, 0), DriverError::out_of_memory);
  emulated::memory_bytes += 64 << 10;
  emulated::most_outside(true);
  ASSERT_EQ(driver_.instantiate(&exec, graph, 0), DriverError::none);
  EXPECT_EQ(emulated::device_bytes().graphs, emulated::graph_bytes + 8 * emulated::node_bytes);
  driver_.destroy_exec(exec);
  EXPECT_EQ(emulated::device_bytes().graphs, 0u);
  EXPECT_EQ(emulated::most_outside(), emulated::device_bytes().outside() + emulated::graph_bytes + 8 * emulated::node_bytes);
  driver_.destroy_graph(graph);
  driver_.free(at);
  EXPECT_EQ(emulated::device_bytes().total(), before);
}

TEST_F(GpuStrict, PinnedMemoryHasAnEnd) {
  const size_t before = emulated::pinned_bytes();
  emulated::pinned_most = before + (1 << 20);
  void *at = nullptr, *more = nullptr;
  EXPECT_EQ(driver_.allocate_host(&at, (1 << 20) + 1, 0), DriverError::out_of_memory);
  ASSERT_EQ(driver_.allocate_host(&at, 1 << 19, 0), DriverError::none);
  EXPECT_EQ(driver_.allocate_host(&more, (1 << 19) + 1, 0), DriverError::out_of_memory);
  auto region = unwrap(os::Region::allocate(1 << 20));
  EXPECT_EQ(driver_.register_host(region.data(), (1 << 19) + 4096, 0), DriverError::out_of_memory);
  EXPECT_EQ(driver_.register_host(region.data(), 1 << 19, 0), DriverError::none);
  EXPECT_EQ(driver_.unregister_host(region.data()), DriverError::none);
  EXPECT_EQ(driver_.free_host(at), DriverError::none);
  EXPECT_EQ(emulated::pinned_bytes(), before);
}

// At every cap, a runtime opens and answers as without one, or a status says which memory there was too little of. Then the next one opens.
TEST_F(GpuStrict, EveryCapOfPinnedMemory) {
  const TempDir dir;
  const std::string path = dir.write("model.gguf", named_model_gguf("qwen3"));
  const auto use = [&](std::vector<float>* logits) -> Status {
    ORRERY_ASSIGN(auto runtime, engine::Runtime::create(on_cuda()));
    ORRERY_ASSIGN(auto model, engine::LanguageModel::open(runtime, path, {}));
    engine::SessionOptions options;
    options.n_context = 128, options.policy = "quest", options.kv_share = 0.6;
    ORRERY_ASSIGN(auto session, engine::Session::open(model, options));
    ORRERY_TRY(session->prefill(random_tokens(*model, 70, 1), nullptr, nullptr));
    *logits = as_vector(session->logits());
    return ok_status();
  };
  std::vector<float> expected, logits;
  unwrap(use(&expected));
  const size_t before = emulated::n_live(), pinned = emulated::pinned_bytes();
  int refused = 0, good = 0;
  for (size_t mib = 0; mib <= 64 && good < 2; ++mib) {
    emulated::pinned_most = pinned + (mib << 20);
    const Status s = use(&logits);
    if (s.ok()) {
      EXPECT_EQ(logits, expected) << mib;
      ++good;
    } else {
      EXPECT_EQ(s.code(), Code::out_of_pinned_memory) << mib << ": " << s.message();
      ++refused;
    }
    EXPECT_EQ(emulated::n_live(), before) << mib;
  }
  EXPECT_EQ(good, 2);
  EXPECT_GT(refused, 10);
}

// Opens a runtime, reads a prompt and decodes, on the file of a model of halves, so that cuBLAS takes part. Returns the first status that
// is not ok.
Status use(const std::string& path, const char* policy, std::vector<float>* logits) {
  ORRERY_ASSIGN(auto runtime, engine::Runtime::create(on_cuda()));
  ORRERY_ASSIGN(auto model, engine::LanguageModel::open(runtime, path, {}));
  engine::SessionOptions options;
  options.n_context = 128, options.policy = policy;
  options.kv_share = policy == std::string("full") ? 1.0 : 0.6;
  ORRERY_ASSIGN(auto session, engine::Session::open(model, options));
  ORRERY_TRY(session->prefill(random_tokens(*model, 70, 1), nullptr, nullptr));
  for (int i = 0; i < 2; ++i) {
    session->push_generated(argmax(session->logits()));
    ORRERY_TRY(session->decode());
  }
  *logits = as_vector(session->logits());
  return ok_status();
}
std::vector<std::byte> model_of_halves() {
  MatrixStorage halves;
  halves.type = TensorType::f16;
  return named_model_gguf("qwen3", halves);
}

// Of each function of the driver and of cuBLAS: all calls, the first one, one in the middle or the last one get no memory. A driver may
// take memory in any of them. A status says so, or the answer is right; nothing leaks; the next runtime works.
TEST_F(GpuStrict, NoMemoryInAnyFunction) {
  const TempDir dir;
  const std::string path = dir.write("model.gguf", model_of_halves());
  const size_t before = emulated::n_live();
  std::vector<float> expected, logits;
  std::map<std::string, int64_t> n_calls;
  emulated::fault = [&] {
    ++n_calls[emulated::asking];
    return DriverError::none;
  };
  unwrap(use(path, "shadowkv", &expected));
  emulated::fault = nullptr;
  // Not cuModuleLoadData: this test's GPU has the kernels (GpuKernels).
  for (const char* function : {"cuGraphInstantiateWithFlags", "cublasCreate_v2", "cublasSetWorkspace_v2", "cublasGemmEx",
                               "cuMemHostRegister_v2", "cuMemHostAlloc", "cuMemAlloc_v2", "cuLaunchKernel", "cuGraphLaunch"})
    EXPECT_GT(n_calls[function], 0) << function;
  n_calls.erase("cuMemHostUnregister"), n_calls.erase("cuMemGetInfo_v2");  // nobody asks for their memory
  std::map<std::string, std::set<std::string>> said;
  for (const auto& [function, n] : n_calls)
    for (const int64_t at : std::set<int64_t>{0, n / 2, n - 1})
      for (const bool and_after : {false, true}) {
        if (and_after && at > 0) continue;
        int64_t i = 0;
        emulated::fault = [&, name = function, first = at] {
          if (name != emulated::asking) return DriverError::none;
          const int64_t now = i++;
          return now == first || (and_after && now > first) ? DriverError::out_of_memory : DriverError::none;
        };
        const Status s = use(path, "shadowkv", &logits);
        emulated::fault = nullptr;
        EXPECT_EQ(emulated::n_live(), before) << function << ", call " << at << " of " << n;
        said[function].insert(s.ok() ? "ok" : std::string(s.message()));
        const bool another_way = function.compare(0, 6, "cublas") == 0;  // our own kernels compute what cuBLAS cannot: other bits
        EXPECT_TRUE(!s.ok() || another_way || logits == expected) << function << ", call " << at << " of " << n;
        const Code code = s.code();
        EXPECT_TRUE(s.ok() || code == Code::out_of_device_memory || code == Code::out_of_pinned_memory || code == Code::unsupported ||
                    code == Code::device_lost)
            << function << ", call " << at << " of " << n << ": " << s.message();
      }
  for (const auto& [function, messages] : said)
    for (const std::string& message : messages) RecordProperty(function, message);
  unwrap(use(path, "shadowkv", &logits));
  EXPECT_EQ(logits, expected) << "the next runtime";
}

// Once a session is open, nothing but the driver itself takes device memory, for the graphs of its steps. All that the driver takes fits
// what a budget by default leaves.
TEST_F(GpuStrict, AnOpenSessionTakesNoDeviceMemory) {
  const auto model = open_spec("qwen3", on_cuda());
  for (const PolicyMode& mode : policy_modes()) {
    const auto session = unwrap(engine::Session::open(model, with_mode(mode, 0.6, 128)));
    const emulated::DeviceBytes opened = emulated::device_bytes();
    const size_t graphs = emulated::graphs_made();
    answer(session.get(), random_tokens(*model, 80, 1), 3);
    const emulated::DeviceBytes now = emulated::device_bytes();
    EXPECT_EQ(now.allocated, opened.allocated) << mode.name;
    EXPECT_EQ(now.contexts + now.modules + now.libraries, opened.contexts + opened.modules + opened.libraries) << mode.name;
    EXPECT_EQ(emulated::graphs_made() > graphs, now.graphs > opened.graphs) << mode.name;  // sessions share graphs of equal lists
  }
  EXPECT_GT(emulated::device_bytes().graphs, 0u);
  EXPECT_LT(emulated::most_outside(), size_t{512} << 20);
}

// Whole sessions under schedules: streams run in any order that events allow, far apart or close together. The bits stay.
class GpuSchedules : public ::testing::TestWithParam<const char*> {};

TEST_P(GpuSchedules, ChangeNothing) {
  const auto run = [&](uint64_t schedule) {
    const auto model = open_spec("qwen3", on_cuda());
    const PolicyMode mode{"", GetParam(), {}, false};
    const auto session = GetParam() == std::string("full")
                             ? open_session(model, 160, KvType::f16, 40)
                             : unwrap(engine::Session::open(model, with_mode(mode, 0.6, 160, KvType::f16, 40)));
    emulated::set_schedule(schedule);
    std::vector<float> out = answer(session.get(), random_tokens(*model, 100, 1), 3);
    const auto fork = unwrap(session->fork());
    if (schedule == 0 && session->resident()) {  // so does a saved session, in which device memory starts with other bytes
      const auto options = with_mode(mode, 0.6, 160, KvType::f16, 40);
      const auto loaded = unwrap(engine::Session::open(model, options)), second = unwrap(unwrap(session->fork())->fork());
      unwrap(engine::SessionFile::load(loaded.get(), save_bytes(session.get()), "a session"));
      std::vector<float> of_loaded, of_second;
      greedy(loaded.get(), 3, &of_loaded), greedy(second.get(), 3, &of_second);
      EXPECT_TRUE(same_bits(of_loaded, of_second));
    }
    greedy(session.get(), 2, &out), greedy(fork.get(), 2, &out);
    emulated::set_schedule(0);
    return out;
  };
  const std::vector<float> expected = run(0);
  for (const uint64_t schedule : emulated::schedules())
    EXPECT_TRUE(same_bits(run(schedule), expected)) << "ORRERY_SCHEDULE_SEED=" << schedule;
}

INSTANTIATE_TEST_SUITE_P(All, GpuSchedules, ::testing::ValuesIn([] {
                           std::vector<const char*> all = compressing_policies();
                           all.push_back("full");
                           return all;
                         }()),
                         [](const auto& tested) {
                           std::string name = tested.param;
                           std::replace(name.begin(), name.end(), '+', 'p');
                           return name;
                         });

}  // namespace
}  // namespace orrery::cuda::strict_test
