// Between two settlings, the token path of a compressed session takes no host memory: neither in the step nor in the I/O thread, with
// refills asked for, under way and placed, nor in a fork. And the plan foretells a session's host memory.
#include <gtest/gtest.h>

#include "runtime/engine/answer/generation.h"
#include "tests/support/replaced_operators.h"
#include "tests/support/policy_sessions.h"

namespace orrery::alloc_test {
namespace {

using namespace orrery::testing;
using engine::Session;

// Steps of n that settle nothing, none of which takes memory.
int n_quiet_steps(Session* session, int n) {
  int n_quiet = 0;
  for (int i = 0; i < n; ++i) {
    const uint64_t n_settled = session->resident()->report().n_settled;
    const bool settling = session->resident()->settling();  // the step computes a part
    const int64_t before = n_allocations;
    session->push_generated(argmax(session->logits()));
    const Status status = session->decode();
    const int64_t taken = n_allocations - before;
    unwrap(status);
    if (settling || session->resident()->report().n_settled != n_settled) continue;
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

// Guesses out of earlier text, and drafts: neither they nor their steps take memory, and the plan has the memory that they were given.
TEST(AllocationsOfGuesses, AreThePlansAndNoneLater) {
  const auto model = open_demo(runtime_options(2));
  for (const engine::Speculate speculate : {engine::Speculate::ngram, engine::Speculate::policy}) {
    engine::SessionOptions options;
    options.n_context = 640;
    options.speculate = speculate;
    options.guess_costs = engine::GuessCosts{};
    if (speculate == engine::Speculate::policy) options.policy = "auto", options.policy_options = {{"by", "window"}}, options.kv_share = .5;
    engine::SessionOptions off = options;
    off.speculate = engine::Speculate::off;
    const uint64_t planned = plan_session(*model, &options).host_bytes, planned_off = plan_session(*model, &off).host_bytes;
    unwrap(Session::open(model, off));  // the model's workspace
    int64_t held[2];
    for (const engine::SessionOptions* o : {&off, &options}) {
      const int64_t before = n_bytes_held;
      const auto opened = unwrap(Session::open(model, *o));
      held[o == &options] = n_bytes_held - before;
    }
    EXPECT_GT(planned, planned_off);
    EXPECT_NEAR(static_cast<double>(held[1] - held[0]), static_cast<double>(planned - planned_off), 4096);

    const auto session = unwrap(Session::open(model, options));
    std::vector<int32_t> prompt;
    for (int32_t i = 0; i < 300; ++i) prompt.push_back(60 + i % 20);
    unwrap(session->prefill(prompt, nullptr, nullptr));
    int n_quiet = 0;
    for (int32_t i = 0; i < 60; ++i) {
      const uint64_t n_settled = session->resident() ? session->resident()->report().n_settled : 0;
      const int64_t before = n_allocations;
      session->push_generated(i % 9 == 8 ? 70 + i : 60 + i % 20);
      const Status status = session->decode(nullptr, nullptr, 7);
      const int64_t taken = n_allocations - before;
      unwrap(status);
      if (session->resident() && session->resident()->report().n_settled != n_settled) continue;
      EXPECT_EQ(taken, 0) << i;
      ++n_quiet;
    }
    EXPECT_GT(n_quiet, 50);
    EXPECT_GT(session->stats().guessed_tokens, 10u);
  }
}

// What the policy has reserved when it settled its copy has as well.
TEST_P(Allocations, NoneInAFork) {
  const auto model = open_deep(runtime_options(2));
  const auto session = unwrap(Session::open(model, with_mode(GetParam(), .55, 640)));
  unwrap(session->prefill(random_tokens(*model, 300, 2), nullptr, nullptr));
  greedy(session.get(), 2);
  for (const int n_before : {0, 9}) {  // from different places of its turns
    greedy(session.get(), static_cast<size_t>(n_before));
    const auto fork = unwrap(session->fork());
    EXPECT_GT(n_quiet_steps(fork.get(), 40), 30);
  }
}

// Opening, settling, stepping and settling again never hold more than the plan has, beside small things; nor is the plan much too large.
TEST_P(Allocations, HostMemoryIsThePlans) {
  constexpr uint32_t kContext = 4096;
  constexpr int64_t kSmall = 96 << 10;  // options, handles, tables of layers and heads
  // Pages differ by where in these random halves they begin.
  Random random(7);
  std::vector<uint16_t> halves(1 << 19);
  for (uint16_t& half : halves) half = static_cast<uint16_t>(random.below(0x3C00) | random.below(2) << 15);
  for (const double share : {.3, .6}) {
    engine::RuntimeOptions o = runtime_options(2, test_cpu_path(), uint64_t{1} << 30);
    if (share > .5) o.link = {uint64_t{1} << 34, 0};  // with a ring to it
    const auto model = open_demo(o);
    const auto tokens = random_tokens(*model, kContext - 192, 8);
    engine::SessionOptions options = with_mode(GetParam(), share, kContext);
    const auto planned = static_cast<int64_t>(plan_session(*model, &options).host_bytes);
    const int64_t before = n_bytes_held;
    most_bytes_from_here();
    const auto session = unwrap(Session::open(model, options));
    int64_t most = n_bytes_most;
    unwrap(session->sequence().assume_prompt(tokens, [&](uint32_t, Span<std::byte> page) {
      ASSERT_LE(page.size(), halves.size());
      std::memcpy(page.data(), halves.data() + random.below(halves.size() / 2), page.size());
    }));
    most_bytes_from_here();
    for (int i = 0; i < 3; ++i) {
      for (int32_t step = 0; step < 12; ++step) feed(session.get(), 60 + step);
      session->resident()->invalidate();
    }
    most = std::max<int64_t>(most, n_bytes_most) - before;
    EXPECT_LE(most, planned + kSmall) << share;
    EXPECT_LE(planned, most + most / 2 + kSmall) << share;
  }
}

// A generation has tokens of its own, and its sampler's buffers: they are in the plan, too.
TEST(AllocationsOfAnswers, AreThePlans) {
  constexpr uint32_t kContext = 131072;
  const auto model = open_demo(runtime_options(1, test_cpu_path(), uint64_t{1} << 30));
  engine::SessionOptions options;
  options.n_context = kContext;
  const auto planned = static_cast<int64_t>(plan_session(*model, &options).host_bytes);
  const std::vector<int32_t> prompt(kContext - 1, 60);
  const int64_t before = n_bytes_held;
  most_bytes_from_here();
  const auto session = unwrap(Session::open(model, options));
  const int64_t opened = n_bytes_most - before;
  engine::GenerateOptions wishes;
  const auto generation = unwrap(engine::Generation::proceed(session.get(), prompt, wishes));
  engine::Event event;
  unwrap(generation->next(&event));
  const int64_t with_answer = n_bytes_most - before;
  EXPECT_GT(with_answer, opened + 2 * static_cast<int64_t>(kContext * sizeof(int32_t)));  // the prompt, and room for the answer
  EXPECT_LE(with_answer, planned + (32 << 10));
  generation->cancel();
}

// A plan tries contexts of millions of tokens, and takes memory for none of them.
TEST_P(Allocations, PlanningTakesNothingByTheContext) {
  const auto model = open_deep(runtime_options(2, test_cpu_path(), uint64_t{1} << 30));
  engine::SessionOptions options = with_mode(GetParam(), .55, 640);
  const int64_t before = n_bytes_held;
  most_bytes_from_here();
  EXPECT_TRUE(plan_session(*model, &options).fits);
  EXPECT_LE(n_bytes_most - before, 64 << 10);
}

INSTANTIATE_TEST_SUITE_P(Modes, Allocations, ::testing::ValuesIn(policy_modes()),
                         [](const auto& tested) { return std::string(tested.param.name); });

}  // namespace
}  // namespace orrery::alloc_test
