// Tests several threads on one runtime: calls that any thread may make at any time, and calls that wait for their turn.
#include <gtest/gtest.h>

#include <thread>

#if defined(ORRERY_EMULATED)
#include "tests/emulation/cuda/device.h"
#endif

#include "cuda/cuda_backend.h"
#include "runtime/base/checked.h"
#include "tests/gpu/on_cuda.h"
#include "tests/support/in_parallel.h"

namespace orrery::turn_test {
namespace {

using namespace testing;

TEST(Turns, AnswersStayRightWhileModelsAreLoaded) { answer_beside_loading(on_cuda(256u << 20), "qwen3"); }

TEST(Turns, AnswersStayRightWhileOtherSessionsBeginAndEnd) {
  answer_beside_sessions_that_end(on_cuda(256u << 20), {"streaming", "streaming", {}, false}, "qwen3");
}

#if defined(ORRERY_EMULATED)
// A process may have several devices, and each of its threads a current context: any thread uses the backend's device, and keeps its own
// context, or none.
TEST(Turns, EveryThreadUsesTheBackendsDevice) {
  emulated::n_devices = 2;
  std::unique_ptr<Backend> backend = unwrap(cuda::make_backend({1, cuda::Options::Products::own}));
  EXPECT_EQ(emulated::current_device(), -1) << "the thread that made the backend";
  unwrap(backend->reserve_arena(1 << 20));
  StepLimits limits;
  limits.max_rows = 1, limits.max_context = 64, limits.n_heads = limits.n_kv_heads = 1, limits.head_dim = 32, limits.max_in = 64;
  const uint64_t scratch = align_up(backend->scratch_bytes(limits), 256);
  Status status;
  std::vector<float> sum(64);
  std::thread([&] {
    ASSERT_LE(scratch + 512, uint64_t{1} << 20);
    unwrap(backend->set_scratch(backend->arena(), limits));
    const Ptr<float> x{backend->arena().address + scratch};
    const std::vector<float> ones(64, 1.0f);
    backend->upload({x.address}, ones.data(), 256);
    for (const Phase phase : {Phase::prefill, Phase::decode}) {  // kernel by kernel, and as a graph
      const Row row{0, 0, 0};
      Step step;
      step.phase = phase, step.rows = {&row, 1};
      backend->begin_step(step);
      backend->add(x, {x.address}, 64);
      backend->end_step();
    }
    backend->download(sum.data(), Ptr<const std::byte>{x.address}, 256);
    status = backend->synchronize();
    EXPECT_EQ(emulated::current_device(), -1) << "another thread";
  }).join();
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(sum, std::vector<float>(64, 4.0f));
  backend.reset();
  emulated::n_devices = 1;
}

// A session ends while another session captures a graph. No other thread may wait for the stream that captures.
TEST(Turns, ASessionEndsWhileAStepIsCaptured) {
  const auto model = open_spec("qwen3", on_cuda());
  const engine::SessionOptions options = with_mode({"streaming", "streaming", {}, false}, 0.6, 128);
  const std::vector<int32_t> prompt = random_tokens(*model, 40, 1);
  auto one = unwrap(engine::Session::open(model, options)), other = unwrap(engine::Session::open(model, options));
  unwrap(other->prefill(prompt, nullptr, nullptr));
  unwrap(one->prefill(prompt, nullptr, nullptr));
  bool ended = false;
  emulated::fault = [&] {
    if (!ended && emulated::capturing()) {
      ended = true;
      std::thread([&] { other.reset(); }).join();
    }
    return cuda::DriverError::none;
  };
  std::vector<float> trace;
  try {
    greedy(one.get(), 3, &trace);
  } catch (const std::exception& e) {
    ADD_FAILURE() << e.what();
  }
  emulated::fault = nullptr;
  ASSERT_TRUE(ended) << "the first step of a session in this place is captured";
  EXPECT_TRUE(same_bits(trace, answer(unwrap(engine::Session::open(model, options)).get(), prompt, 3)));
}
#endif

}  // namespace
}  // namespace orrery::turn_test
