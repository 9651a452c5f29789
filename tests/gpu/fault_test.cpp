// Faults of a GPU or its driver: each call in turn fails, once or from then on. Only the emulated build has these tests, because its
// runtime fails on demand.
//
// The process does not end, hang or leak. An error is a status that says what happened. All handles can be freed, and the next runtime
// works.
#ifdef ORRERY_EMULATED
#include <gtest/gtest.h>

#include "cuda/cuda_backend.h"
#include "cuda/device/archive.h"
#include "tests/emulation/cuda/device.h"
#include "tests/emulation/cuda/dlfcn.h"
#include "tests/gpu/on_cuda.h"
#include "tests/support/policy_sessions.h"

namespace orrery::fault_test {
namespace {

using namespace testing;
using engine::Session;

class GpuFaults : public ::testing::Test {
 protected:
  void TearDown() override {
    emulated::fault = nullptr;
    emulated::driver_version = emulated::kDriverVersion;
    emulated::missing_function = nullptr;
    emulated::has_cublas = true;
  }
  // Counts the calls that can fail. The nth call fails, alone or with all later calls.
  static void refuse(cuda::DriverError error, int64_t n, bool and_after) {
    calls() = 0;
    emulated::fault = [=] {
      const int64_t i = calls()++;
      return i == n || (and_after && i > n) ? error : cuda::DriverError::none;
    };
  }
  static int64_t& calls() {
    static int64_t n = 0;
    return n;
  }

  // Creates a runtime, decodes tokens, forks, reads another prompt and answers, compressed or not. Returns the first status that is not ok.
  static Status use(const std::string& path, const char* policy, std::vector<float>* logits) {
    ORRERY_ASSIGN(auto runtime, engine::Runtime::create(on_cuda()));
    ORRERY_ASSIGN(auto model, engine::LanguageModel::open(runtime, path, {}));
    engine::SessionOptions options;
    options.n_context = 128;
    options.policy = policy;
    options.kv_share = policy == std::string("full") ? 1.0 : 0.6;
    ORRERY_ASSIGN(auto session, Session::open(model, options));
    ORRERY_TRY(session->prefill(random_tokens(*model, 70, 1), nullptr, nullptr));
    for (int i = 0; i < 2; ++i) {
      session->push_generated(argmax(session->logits()));
      const Status s = session->decode();
      if (s.ok()) continue;
      if (s.code() == Code::device_lost) {  // later calls fail too, and the session still accepts any call
        EXPECT_EQ(session->decode().code(), s.code());
        EXPECT_FALSE(session->fork().ok() && session->prefill(random_tokens(*model, 3, 2), nullptr, nullptr).ok());
      } else {  // the device is well: the token is computed again (errors_test.cpp), unless that is refused, too
        EXPECT_NE(session->decode().code(), Code::device_lost);
      }
      return Status(s.detail());
    }
    ORRERY_ASSIGN(auto fork, session->fork());
    ORRERY_TRY(fork->prefill(random_tokens(*model, 5, 3), nullptr, nullptr));
    *logits = as_vector(fork->logits());
    return answer(session.get(), logits);
  }
  // Decodes tokens whose logits stay on the device, then fetches the last token's logits.
  static Status answer(Session* session, std::vector<float>* logits) {
    engine::GenerateOptions options;
    options.max_tokens = 2, options.ignore_end = true;
    ORRERY_ASSIGN(auto generation, engine::Generation::proceed(session, as_vector(session->tokens()), options));
    for (engine::Event event; event.type != engine::EventType::done;) ORRERY_TRY(generation->next(&event));
    ORRERY_TRY(session->sequence().fetch_logits());
    logits->insert(logits->end(), session->logits().begin(), session->logits().end());
    return ok_status();
  }

  static void every_call_in_turn(const char* policy, int64_t n_tries) {
    const TempDir dir;
    MatrixStorage halves;
    halves.type = TensorType::f16;  // so that cuBLAS takes part
    const std::string path = dir.write("model.gguf", named_model_gguf("qwen3", halves));
    const size_t before = emulated::n_live();
    std::vector<float> expected, logits;
    refuse(cuda::DriverError::none, -1, false);
    unwrap(use(path, policy, &expected));
    const int64_t n = calls();
    ASSERT_GT(n, n_tries);
    int64_t refused = 0;
    std::string harmless;
    // Each call sees both errors: one that stays, and one that passes.
    for (const bool and_after : {true, false})
      for (int64_t i = 0; i < n_tries; ++i) {
        const cuda::DriverError error = (i % 2 == 0) == and_after ? cuda::DriverError::illegal_address : cuda::DriverError::out_of_memory;
        // Each call while objects are made; fewer calls in steps, which repeat.
        const int64_t at = i < n_tries / 2 ? i : n_tries / 2 + (i - n_tries / 2) * (n - n_tries / 2) / (n_tries - n_tries / 2);
        refuse(error, at, and_after);
        const Status s = use(path, policy, &logits);
        emulated::fault = nullptr;
        EXPECT_EQ(emulated::n_live(), before) << emulated::failed_call.load() << ", call " << at << " of " << n;
        if (s.ok()) {  // the failure of some calls changes nothing, for example of asking for the free memory
          EXPECT_FALSE(and_after) << emulated::failed_call.load() << ", call " << at << " of " << n;
          harmless += std::string(" ") + emulated::failed_call.load();
          continue;
        }
        ++refused;
        const Code code = s.code();
        EXPECT_TRUE(code == Code::device_lost || code == Code::out_of_device_memory || code == Code::out_of_pinned_memory ||
                    code == Code::unsupported)
            << "call " << at << " of " << n << ": " << s.message();
      }
    EXPECT_GT(refused, n_tries * 7 / 4) << "of " << 2 * n_tries << "; harmless:" << harmless;
    unwrap(use(path, policy, &logits));
    EXPECT_EQ(logits, expected) << "the next runtime";
  }
};

TEST_F(GpuFaults, EveryCallInTurn) { every_call_in_turn("full", 24); }
TEST_F(GpuFaults, EveryCallInTurnUnderAPolicy) { every_call_in_turn("synckv", 16); }

TEST_F(GpuFaults, ALostDeviceIsNamed) {
  const auto model = open_spec("llama-plain", on_cuda());
  const auto session = open_session(model, 64, KvType::f16);
  unwrap(session->prefill(random_tokens(*model, 9, 1), nullptr, nullptr));
  refuse(cuda::DriverError::illegal_address, 0, true);
  session->push_generated(1);
  const Status s = session->decode();
  EXPECT_EQ(s.code(), Code::device_lost);
  EXPECT_EQ(s.detail().native_code, 700);
  EXPECT_EQ(open_bytes(named_model_gguf("llama-plain"))->runtime().backend_info().name, std::string("cpu"))
      << "auto, where the GPU does not answer";
}

TEST_F(GpuFaults, TooLittleMemoryIsSaidInBytes) {
  const auto backend = unwrap(cuda::make_backend({}));
  refuse(cuda::DriverError::out_of_memory, 0, false);
  const Status s = backend->reserve_arena(12345 * 256);
  EXPECT_EQ(s.code(), Code::out_of_device_memory);
  EXPECT_EQ(s.detail().bytes_requested, 12345u * 256);
  EXPECT_TRUE(backend->reserve_arena(12345 * 256).ok());
}

TEST_F(GpuFaults, WhatIsMissingIsNamed) {
  const auto said = [] { return std::string(engine::Runtime::create(on_cuda()).take_status().message()); };
  const auto use = [] { return unwrap(engine::Runtime::create(runtime_options(1)))->gpu_use(); };
  EXPECT_EQ(use().use, DeviceUse::used);
  emulated::driver_version = 0;
  EXPECT_EQ(use().use, DeviceUse::no_driver);
  EXPECT_NE(use().why.find("no NVIDIA driver"), std::string::npos) << use().why;
  EXPECT_NE(said().find("no NVIDIA driver"), std::string::npos) << said();
  EXPECT_STREQ(unwrap(engine::Runtime::create(runtime_options(1)))->backend_info().name, "cpu");
  emulated::driver_version = 11080;
  EXPECT_EQ(use().use, DeviceUse::driver_too_old);
  EXPECT_NE(use().why.find("for CUDA 11.8"), std::string::npos) << use().why;
  EXPECT_NE(said().find("driver is for CUDA 11.8, the kernels are compiled by CUDA "), std::string::npos) << said();
  emulated::driver_version = emulated::kDriverVersion;
  emulated::missing_function = "cuGraphInstantiateWithFlags";
  EXPECT_EQ(use().use, DeviceUse::driver_too_old);
  EXPECT_NE(said().find("has no cuGraphInstantiateWithFlags"), std::string::npos) << said();
  emulated::missing_function = nullptr;
  refuse(cuda::DriverError::no_device, 0, true);
  EXPECT_EQ(use().use, DeviceUse::none);
  EXPECT_NE(said().find("no CUDA device can be used: an injected fault"), std::string::npos) << said();
}

// Two runtimes are independent: the lost device of one does not stop the other.
TEST_F(GpuFaults, AnotherRuntimeGoesOn) {
  const auto one = open_spec("llama-plain", on_cuda()), other = open_spec("llama-plain", on_cuda());
  const auto a = open_session(one, 64, KvType::f16), b = open_session(other, 64, KvType::f16);
  const std::vector<int32_t> prompt = random_tokens(*one, 9, 1);
  unwrap(a->prefill(prompt, nullptr, nullptr));
  refuse(cuda::DriverError::illegal_address, 0, false);
  EXPECT_FALSE(b->prefill(prompt, nullptr, nullptr).ok());
  emulated::fault = nullptr;
  EXPECT_FALSE(b->prefill(prompt, nullptr, nullptr).ok());
  EXPECT_EQ(greedy(a.get(), 3).size(), 3u);
}

}  // namespace
}  // namespace orrery::fault_test
#endif
