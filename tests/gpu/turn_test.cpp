// Tests several threads on one runtime: calls that any thread may make at any time, and calls that wait for their turn.
#include <gtest/gtest.h>

#include <thread>

#if defined(ORRERY_EMULATED)
#include "tests/emulation/cuda/cuda_runtime.h"
#endif

#include "tests/gpu/on_cuda.h"
#include "tests/support/in_parallel.h"

namespace orrery {
namespace {

using namespace testing;

TEST(Turns, AnswersStayRightWhileModelsAreLoaded) { answer_beside_loading(on_cuda(256u << 20), "qwen3"); }

TEST(Turns, AnswersStayRightWhileOtherSessionsBeginAndEnd) { answer_beside_sessions_that_end(on_cuda(256u << 20), {"streaming", "streaming", {}, false}, "qwen3"); }

#if defined(ORRERY_EMULATED)
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
    return cudaSuccess;
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
}  // namespace orrery
