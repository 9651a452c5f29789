// Several threads on one runtime: what any of them may do at any time, and what waits for its turn.
#include <gtest/gtest.h>

#include "tests/gpu/on_cuda.h"
#include "tests/support/beside.h"

namespace orrery {
namespace {

using namespace testing;

TEST(Turns, AnswersStayRightWhileModelsAreLoaded) { answer_beside_loading(on_cuda(256u << 20), "qwen3"); }

TEST(Turns, AnswersStayRightWhileOtherSessionsBeginAndEnd) { answer_beside_sessions_that_end(on_cuda(256u << 20), {"streaming", "streaming", {}, false}, "qwen3"); }

}  // namespace
}  // namespace orrery
