// The token path of a compressed session takes no host memory from one settling to the next: neither in the step nor in
// the I/O thread, with refills asked for, under way and placed; and no more in a fork.
#include <gtest/gtest.h>

#include "tests/support/count_allocations.h"
#include "tests/support/policy_sessions.h"

namespace orrery {
namespace {

using namespace orrery::testing;
using engine::Session;

// Steps of n that settle nothing, none of which takes memory.
int n_quiet_steps(Session* session, int n) {
  int n_quiet = 0;
  for (int i = 0; i < n; ++i) {
    const uint64_t n_settled = session->resident()->report().n_settled;
    const int64_t before = n_allocations;
    session->push_generated(argmax(session->logits()));
    const Status status = session->decode();
    const int64_t taken = n_allocations - before;
    unwrap(status);
    if (session->resident()->report().n_settled != n_settled) continue;
    EXPECT_EQ(taken, 0) << "token " << i;
    ++n_quiet;
  }
  return n_quiet;
}

class Allocations : public ::testing::TestWithParam<PolicyMode> {};

TEST_P(Allocations, NoneBetweenSettlings) {
  engine::RuntimeOptions o = runtime_options(2);
  o.link = {100'000'000, 20};
  const auto model = open_demo(o);
  const auto session = unwrap(Session::open(model, with_mode(GetParam(), .5, 640)));
  unwrap(session->prefill(random_tokens(*model, 300, 1), nullptr, nullptr));
  EXPECT_GT(n_quiet_steps(session.get(), 200), 180);
  EXPECT_EQ(session->resident()->refill_stats().tokens > 0, GetParam().refills);
}

// What the policy has reserved when it settled its copy has as well.
TEST_P(Allocations, NoneInAFork) {
  const auto model = open_demo(runtime_options(2));
  const auto session = unwrap(Session::open(model, with_mode(GetParam(), .5, 640)));
  unwrap(session->prefill(random_tokens(*model, 300, 2), nullptr, nullptr));
  greedy(session.get(), 2);
  for (const int n_before : {0, 9}) {   // from different places of its turns
    greedy(session.get(), static_cast<size_t>(n_before));
    const auto fork = unwrap(session->fork());
    EXPECT_GT(n_quiet_steps(fork.get(), 40), 30);
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, Allocations, ::testing::ValuesIn(policy_modes()),
                         [](const auto& tested) { return std::string(tested.param.name); });

}  // namespace
}  // namespace orrery
