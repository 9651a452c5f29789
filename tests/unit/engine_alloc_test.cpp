// The token path of a compressed session takes no host memory from one settling to the next: neither in the step nor in
// the I/O thread, with refills asked for, under way and placed.
#include <gtest/gtest.h>

#include "tests/support/count_allocations.h"
#include "tests/support/policy_sessions.h"

namespace orrery {
namespace {

using namespace orrery::testing;
using engine::Session;

class Allocations : public ::testing::TestWithParam<PolicyMode> {};

TEST_P(Allocations, NoneBetweenSettlings) {
  engine::RuntimeOptions o = runtime_options(2);
  o.link = {100'000'000, 20};
  const auto model = open_demo(o);
  const auto session = unwrap(Session::open(model, with_mode(GetParam(), .5, 640)));
  unwrap(session->prefill(random_tokens(*model, 300, 1), nullptr, nullptr));
  const engine::Resident& resident = *session->resident();
  int n_quiet = 0;
  for (int i = 0; i < 200; ++i) {
    const uint64_t n_settled = resident.report().n_settled;
    const int64_t before = n_allocations;
    session->push_generated(argmax(session->logits()));
    const Status status = session->decode();
    const int64_t taken = n_allocations - before;
    unwrap(status);
    if (resident.report().n_settled != n_settled) continue;
    EXPECT_EQ(taken, 0) << "token " << i;
    ++n_quiet;
  }
  EXPECT_GT(n_quiet, 180);
  EXPECT_EQ(resident.refill_stats().tokens > 0, GetParam().refills);
}

INSTANTIATE_TEST_SUITE_P(Modes, Allocations, ::testing::ValuesIn(policy_modes()),
                         [](const auto& tested) { return std::string(tested.param.name); });

}  // namespace
}  // namespace orrery
