// Sessions with refills while they answer: the same answer for any timing, also in forks and after a rewind; and the answer when transfers
// are late, fail or never end.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <functional>
#include <map>
#include <thread>

#include "runtime/base/clock.h"
#include "runtime/engine/session/session_file.h"
#include "tests/support/kv_tokens.h"
#include "tests/support/policy_sessions.h"

namespace orrery::refill_test {
namespace {

using namespace orrery::testing;
using engine::Session;
using kv::IoThread;
using Fault = IoThread::Fault;
using Kind = IoThread::Fault::Kind;

// For transfers that never end. Those that do must not take so long on a loaded machine either.
constexpr uint64_t kShortWaitUs = 500'000;

// What happens to transfers, changed while they run.
struct Faults {
  std::atomic<Kind> kind{Kind::none};
  std::atomic<int> skip{0};        // requests that it does not happen to yet
  std::atomic<int> left{1 << 30};  // then those that it happens to
  std::atomic<uint64_t> late_us{0};
  std::atomic<uint64_t> asked{0};

  engine::RuntimeOptions options(uint64_t wait_limit_us = 30'000'000) {
    engine::RuntimeOptions o = runtime_options(1);
    o.io_wait_limit_us = wait_limit_us;
    o.io_fault = [this](const kv::IoRequest&) {
      ++asked;
      const Kind now = kind;
      if (now == Kind::none || skip.fetch_sub(1) > 0 || left.fetch_sub(1) <= 0) return Fault{};
      return Fault{now, late_us, now == Kind::fail ? error(Code::io, "the link broke") : ok_status()};
    };
    return o;
  }
  // Returns when nothing is on its way any more.
  void wait_until_quiet() const {
    for (uint64_t before = UINT64_MAX; before != asked;) {
      before = asked;
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  }
};

double seconds(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// A decode that may fail, and go on at the next try.
Status next_token(Session* session) {
  if (session->tokens().size() == session->n_computed()) session->push_generated(argmax(session->logits()));
  return session->decode();
}
// Generates until a step asks for a refill; how many tokens that took, 0: none did.
uint32_t until_asked(Session* session) {
  const uint64_t before = session->resident()->report().missed_tokens;
  for (uint32_t n = 1; n <= 60; ++n) {
    greedy(session, 1);
    if (session->resident()->report().missed_tokens > before) return n;
  }
  return 0;
}

class Refilled : public ::testing::TestWithParam<PolicyMode> {
 protected:
  engine::SessionOptions options(uint32_t chunk = 0) const { return with_mode(GetParam(), .5, 640, KvType::f16, chunk); }
};
class EveryMode : public Refilled {};
class Watching : public Refilled {};
class BetweenSteps : public Refilled {};  // transfers are asked for
class WithinSteps : public Refilled {};

TEST_P(EveryMode, ThreadsChunksAndTheLinkDoNotShow) {
  struct Case {
    int32_t n_threads;
    uint32_t chunk;
    kv::Link link;
  };
  std::vector<float> first;
  for (const Case& c : {Case{1, 0, {}}, Case{2, 7, {20'000'000, 0}}, Case{4, 64, {50'000'000, 300}}}) {
    engine::RuntimeOptions o = runtime_options(c.n_threads);
    o.link = c.link;
    const auto model = open_demo(o);
    const auto session = unwrap(Session::open(model, options(c.chunk)));
    const std::vector<float> trace = answer(session.get(), random_tokens(*model, 200, 2), 40);
    if (first.empty()) first = trace;
    EXPECT_TRUE(same_bits(trace, first)) << c.n_threads << " threads";
    EXPECT_EQ(GetParam().refills, session->resident()->refill_stats().tokens > 0);
    if (GetParam().refills && (c.link.bytes_per_second || c.link.latency_us)) {
      EXPECT_GT(session->resident()->refill_stats().transfer_us, 0u);
    }
  }
}

TEST_P(EveryMode, ASlowLinkDoesNotShowOnSmallModels) {
  for (const char* spec : {"qwen3", "phi3-window", "glm4"}) {
    std::vector<float> first;
    for (const kv::Link& link : {kv::Link{}, kv::Link{1'000'000, 300}}) {
      engine::RuntimeOptions o = runtime_options(1);
      o.link = link;
      const auto model = open_spec(spec, o);
      const auto session = unwrap(Session::open(model, with_mode(GetParam(), .6, 320)));
      const std::vector<float> trace = answer(session.get(), random_tokens(*model, 120, 3), 25);
      if (first.empty()) first = trace;
      EXPECT_TRUE(same_bits(trace, first)) << spec;
    }
  }
}

// The prompt's KV has the same bits, and the session settles again.
TEST_P(EveryMode, RewoundItIsAFreshSession) {
  const auto model = open_demo();
  std::vector<int32_t> prompt = random_tokens(*model, 250, 4);
  const std::vector<int32_t> other = random_tokens(*model, 70, 5);
  const auto rewound = unwrap(Session::open(model, options())), fresh = unwrap(Session::open(model, options()));
  answer(rewound.get(), prompt, 33);
  unwrap(rewound->rewind(180));
  const std::vector<float> found = answer(rewound.get(), other, 40);
  prompt.resize(180);
  prompt.insert(prompt.end(), other.begin(), other.end());
  EXPECT_TRUE(same_bits(found, answer(fresh.get(), prompt, 40)));
}

TEST_P(EveryMode, ASavedSessionGoesOn) {
  const auto model = open_demo();
  const auto save = [](Session* session) {
    std::vector<std::byte> bytes;
    unwrap(engine::SessionFile::save(session, [&](Span<const std::byte> piece) {
      bytes.insert(bytes.end(), piece.begin(), piece.end());
      return ok_status();
    }));
    return bytes;
  };
  const auto session = unwrap(Session::open(model, options())), loaded = unwrap(Session::open(model, options()));
  unwrap(session->prefill(random_tokens(*model, 300, 9), nullptr, nullptr));
  unwrap(engine::SessionFile::load(loaded.get(), save(session.get()), "test"));
  unwrap(loaded->sequence().refresh_logits());
  EXPECT_EQ(greedy(session.get(), 40), greedy(loaded.get(), 40));
  // In the middle of an answer, with a refill on its way; into a session that is in the middle of another.
  const std::vector<std::byte> bytes = save(session.get());
  unwrap(engine::SessionFile::load(loaded.get(), bytes, "test"));
  EXPECT_EQ(save(loaded.get()), bytes);
  EXPECT_EQ(as_vector(loaded->tokens()), as_vector(session->tokens()));
  unwrap(loaded->sequence().refresh_logits());
  greedy(loaded.get(), 40);
  EXPECT_EQ(loaded->n_computed(), 380u);
}

TEST_P(EveryMode, AParkedForkGoesOn) {
  const auto probe = open_demo();
  engine::RuntimeOptions o = runtime_options(1);
  o.device_budget_bytes = probe->runtime().arena().used() + plan_session(*probe, options()).device_bytes;
  const auto model = open_demo(o);
  auto session = unwrap(Session::open(model, options()));
  const auto prompt = random_tokens(*model, 250, 10);
  unwrap(session->prefill(prompt, nullptr, nullptr));
  auto fork = unwrap(session->fork());
  ASSERT_TRUE(fork->sequence().parked());
  const std::vector<int32_t> expected = greedy(session.get(), 40);
  EXPECT_EQ(fork->resume().code(), Code::out_of_device_memory);
  EXPECT_TRUE(fork->sequence().parked());
  const auto second = unwrap(session->fork());  // in the middle of an answer
  ASSERT_TRUE(second->sequence().parked());
  std::vector<float> of_session, of_second;
  greedy(session.get(), 40, &of_session);
  session.reset();
  unwrap(fork->resume());
  EXPECT_EQ(greedy(fork.get(), 40), expected);
  fork.reset();
  unwrap(second->resume());
  EXPECT_FALSE(second->sequence().selects_again());
  greedy(second.get(), 40, &of_second);
  EXPECT_TRUE(same_bits(of_second, of_session));
}

TEST_P(Refilled, AForkWithARefillOnItsWayGoesOnAlike) {
  for (const kv::Link& link : {kv::Link{}, kv::Link{20'000'000, 300}}) {
    engine::RuntimeOptions o = runtime_options(2);
    o.link = link;
    const auto model = open_demo(o);
    const auto session = unwrap(Session::open(model, options())), alone = unwrap(Session::open(model, options()));
    const auto prompt = random_tokens(*model, 200, 11);
    unwrap(session->prefill(prompt, nullptr, nullptr));
    const uint32_t n = until_asked(session.get());
    ASSERT_GT(n, 0u);
    auto fork = unwrap(session->fork());
    std::vector<float> a, b, c;
    for (int i = 0; i < 30; ++i) greedy(session.get(), 1, &a), greedy(fork.get(), 1, &b);  // by turns
    EXPECT_TRUE(same_bits(a, b));
    unwrap(alone->prefill(prompt, nullptr, nullptr));
    greedy(alone.get(), n);
    greedy(alone.get(), 30, &c);
    EXPECT_TRUE(same_bits(a, c));  // having been forked does not show
    // Whoever stays does not mind the other's going, whatever was on its way.
    const auto last = unwrap(fork->fork());
    fork.reset();
    std::vector<float> d, e;
    greedy(session.get(), 20, &d);
    greedy(last.get(), 20, &e);
    EXPECT_TRUE(same_bits(d, e));
  }
}

// What waits on a slow link for tokens of a page that was shared, and is by then somebody else's.
TEST_P(Refilled, AForkThatGoesTakesNoPagesFromUnderARefill) {
  const auto prompt = [](const engine::LanguageModel& model, uint64_t seed) { return random_tokens(model, 250, seed); };
  std::vector<float> expected;
  uint32_t n = 0;
  {
    const auto model = open_demo();
    const auto alone = unwrap(Session::open(model, options()));
    unwrap(alone->prefill(prompt(*model, 22), nullptr, nullptr));
    n = until_asked(alone.get());
    greedy(alone.get(), 20, &expected);
  }
  ASSERT_GT(n, 0u);
  engine::RuntimeOptions o = runtime_options();
  o.link = {0, 2000};
  const auto model = open_demo(o);
  const auto session = unwrap(Session::open(model, options())), other = unwrap(Session::open(model, options()));
  unwrap(session->prefill(prompt(*model, 22), nullptr, nullptr));
  ASSERT_EQ(until_asked(session.get()), n);
  auto fork = unwrap(session->fork());
  std::vector<float> found;
  greedy(session.get(), 1, &found);                              // its last page becomes a copy,
  fork.reset();                                                  // the one before free,
  unwrap(other->prefill(prompt(*model, 23), nullptr, nullptr));  // and another session's
  greedy(session.get(), 19, &found);
  EXPECT_TRUE(same_bits(found, expected));
}

TEST_P(Refilled, NothingIsTakenOfTheDeviceOnceItIsOpen) {
  const auto model = open_demo();
  const kv::Arena& arena = model->runtime().arena();
  const uint64_t before = arena.used();
  const kv::Plan plan = plan_session(*model, options());
  const auto session = unwrap(Session::open(model, options()));
  const uint64_t used = arena.used();
  EXPECT_EQ(used - before, plan.device_bytes);
  unwrap(session->prefill(random_tokens(*model, 200, 12), nullptr, nullptr));
  EXPECT_EQ(arena.used(), used);
  for (int i = 0; i < 150; ++i) {
    greedy(session.get(), 1);
    ASSERT_EQ(arena.used(), used);
  }
  EXPECT_GT(session->resident()->refill_stats().tokens, 0u);
  unwrap(session->rewind(150));
  EXPECT_EQ(arena.used(), used);
  unwrap(session->prefill(random_tokens(*model, 100, 13), nullptr, nullptr));
  greedy(session.get(), 50);
  EXPECT_EQ(arena.used(), used);
}

// All that is visible a block later: the ring has room for it at contexts that are beyond its least size. What is never
// asked for takes no ring.
TEST(Refilling, WhatABlockAsksForIsOnItsWayAtOnce) {
  std::atomic<uint64_t> bytes{0};
  engine::RuntimeOptions o = runtime_options(2);
  o.io_fault = [&](const kv::IoRequest& request) {
    bytes += request.bytes();
    return Fault{};
  };
  const auto model = open_demo(o);
  const uint64_t token_bytes = engine::kv_format(model->description(), KvType::f16).token_bytes();
  engine::SessionOptions options;
  options.n_context = 2560;
  options.policy = "synckv";
  options.policy_options = {{"visible", "5"}};
  options.kv_share = .5;
  const auto session = unwrap(Session::open(model, options));
  unwrap(session->prefill(random_tokens(*model, 2500, 24), nullptr, nullptr));
  ASSERT_GT(until_asked(session.get()), 0u);
  EXPECT_GT(pending_tokens(*session), 4096u);
  const auto begin = std::chrono::steady_clock::now();
  while (bytes < pending_tokens(*session) * token_bytes && std::chrono::steady_clock::now() - begin < std::chrono::seconds(10))
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(bytes, pending_tokens(*session) * token_bytes);  // while not a step was made
  const uint64_t with_ring = plan_session(*model, options).staging_bytes;
  options.policy_options = {{"visible", "1"}};
  const uint64_t next_step = plan_session(*model, options).staging_bytes;
  options.policy_options = {{"refresh", "0"}};
  const uint64_t frozen = plan_session(*model, options).staging_bytes;
  EXPECT_GT(with_ring, next_step);
  EXPECT_GE(next_step - frozen, 4096 * token_bytes);
}

// The last layer's pages never arrive. The policy is asked about all earlier layers, each after its own pages have arrived. After a step
// the policy chooses the pages of the next step, so none of them is there when that step begins. The failed step leaves nothing: the
// session settles again by the query of the step before.
TEST(Refilling, LayersWaitForTheirOwnPages) {
  std::atomic<bool> hangs{false}, hanging{false};
  engine::RuntimeOptions o = runtime_options(1);
  o.io_wait_limit_us = kShortWaitUs;
  o.io_fault = [&](const kv::IoRequest& request) {
    if (!hangs || request.head < 24) return Fault{};
    hanging = true;
    return Fault{Kind::never, 0, ok_status()};
  };
  const auto model = open_demo(o);
  ASSERT_EQ(model->description().n_layers * model->description().kv().n_kv_heads, 32);
  engine::SessionOptions options;
  options.n_context = 640;
  options.policy = "freekv";
  options.policy_options = {{"page", "8"}, {"first_layers", "0"}, {"tau", "0.0001"}};
  options.kv_share = .4;
  const auto session = unwrap(Session::open(model, options));
  unwrap(session->prefill(random_tokens(*model, 400, 25), nullptr, nullptr));
  const engine::Resident& resident = *session->resident();
  greedy(session.get(), 1);
  hangs = true;
  uint64_t checks = 0;
  Status status;
  for (int i = 0; i < 60 && status.ok(); ++i) {
    checks = resident.report().n_checks;
    status = next_token(session.get());
  }
  ASSERT_TRUE(hanging);
  ASSERT_EQ(status.code(), Code::io);
  EXPECT_EQ(resident.report().n_checks - checks, 24u);
  hangs = false;
  const uint32_t n = session->n_computed();
  const auto whole = unwrap(Session::open(model, options));
  unwrap(whole->prefill(random_tokens(*model, 400, 25), nullptr, nullptr));
  greedy(whole.get(), n - 400);
  whole->resident()->invalidate();
  std::vector<float> trace, expected;
  unwrap(session->decode());  // the token that failed
  greedy(session.get(), 9, &trace);
  greedy(whole.get(), 1);
  greedy(whole.get(), 9, &expected);
  EXPECT_TRUE(same_bits(trace, expected));
}

// Faults ---------------------------------------------------------------------------------------------------------

TEST_P(Refilled, LateTransfersStallAndChangeNothing) {
  Faults faults;
  const auto model = open_demo(faults.options());
  const auto prompt = random_tokens(*model, 200, 14);
  const auto on_time = unwrap(Session::open(model, options())), late = unwrap(Session::open(model, options()));
  const uint64_t start = now_us();
  const std::vector<float> expected = answer(on_time.get(), prompt, 30);
  const uint64_t step = (now_us() - start) / 30;
  faults.kind = Kind::late;
  // A refill's transfers, one after the other, take longer than a block of steps on a loaded machine. Where a step waits for its own
  // transfers, one takes longer than a step, however slow the machine.
  faults.late_us = GetParam().within_steps ? std::clamp<uint64_t>(step, 1'000, 50'000) : 5'000;
  EXPECT_TRUE(same_bits(answer(late.get(), prompt, 30), expected));
  EXPECT_GT(late->resident()->refill_stats().stall_us, 500u);
  EXPECT_GE(late->resident()->refill_stats().transfer_us, faults.late_us * late->resident()->refill_stats().requests);
  EXPECT_EQ(late->resident()->refill_stats().bytes, on_time->resident()->refill_stats().bytes);
}

TEST_P(Refilled, OneFailedTransferEndsOneDecode) {
  // What comes after is no accident. Where a layer's urgent transfers overtake other layers' it is one which step has the one that fails.
  std::map<uint32_t, std::vector<int32_t>> by_step;
  for (int again = 0; again < 3; ++again) {
    Faults faults;
    const auto model = open_demo(faults.options());
    const auto session = unwrap(Session::open(model, options()));
    unwrap(session->prefill(random_tokens(*model, 200, 15), nullptr, nullptr));
    faults.skip = 30;
    faults.left = 1;
    faults.kind = Kind::fail;
    Status failed;
    while (failed.ok() && session->n_computed() < 260) failed = next_token(session.get());
    ASSERT_EQ(failed.code(), Code::io);
    EXPECT_NE(std::string(failed.message()).find("the link broke"), std::string::npos) << failed.message();
    const uint32_t n = session->n_computed();
    EXPECT_EQ(session->tokens().size(), n + 1u);  // the token waits for the next try
    EXPECT_FALSE(session->resident()->settled());
    EXPECT_GT(pending_tokens(*session), 0u);  // asked for, and given up
    EXPECT_GE(session->resident()->refill_stats().requests, 20u);
    const uint64_t settled = session->resident()->report().n_settled;
    unwrap(next_token(session.get()));
    EXPECT_EQ(session->n_computed(), n + 1);
    EXPECT_EQ(session->resident()->report().n_settled, settled + 1);
    greedy(session.get(), 20);
    unwrap(session->prefill(random_tokens(*model, 40, 16), nullptr, nullptr));
    greedy(session.get(), 20);
    EXPECT_EQ(by_step.emplace(n, as_vector(session->tokens())).first->second, as_vector(session->tokens())) << n;
  }
  if (!GetParam().within_steps) {
    EXPECT_EQ(by_step.size(), 1u);
  }
}

TEST_P(BetweenSteps, WhereEveryTransferFailsAnswersStillEnd) {
  Faults faults;
  const auto model = open_demo(faults.options());
  const auto session = unwrap(Session::open(model, options()));
  unwrap(session->prefill(random_tokens(*model, 200, 17), nullptr, nullptr));
  faults.kind = Kind::fail;
  int n_failed = 0;
  while (session->n_computed() < 230) {
    const Status status = next_token(session.get());
    if (status.ok()) continue;
    ASSERT_EQ(status.code(), Code::io);
    ASSERT_LE(++n_failed, 30);  // the next try settles, and needs no transfer
    unwrap(next_token(session.get()));
  }
  EXPECT_GT(n_failed, 0);
  EXPECT_EQ(session->resident()->refill_stats().tokens, 0u);
  faults.kind = Kind::none;
  const Status last = next_token(session.get());  // it may need what has failed before
  EXPECT_TRUE(last.ok() || last.code() == Code::io);
  for (int i = 0; i < 20; ++i) unwrap(next_token(session.get()));
  EXPECT_GT(session->resident()->refill_stats().tokens, 0u);
}

// A step that cannot have what it wants now fails, as often as it is tried; nothing is computed, and nothing is lost.
TEST_P(WithinSteps, AFailedTransferEndsTheStepThatWaitsForIt) {
  Faults faults;
  const auto model = open_demo(faults.options());
  const auto session = unwrap(Session::open(model, options()));
  unwrap(session->prefill(random_tokens(*model, 200, 17), nullptr, nullptr));
  faults.kind = Kind::fail;
  Status failed;
  for (int i = 0; i < 30 && failed.ok(); ++i) failed = next_token(session.get());
  ASSERT_EQ(failed.code(), Code::io);
  EXPECT_NE(std::string(failed.message()).find("the link broke"), std::string::npos) << failed.message();
  const uint32_t n = session->n_computed();
  for (int i = 0; i < 3; ++i) {
    const Status again = next_token(session.get());
    if (again.ok()) break;
    EXPECT_EQ(again.code(), Code::io);
    EXPECT_EQ(session->n_computed(), n);
  }
  EXPECT_EQ(session->resident()->refill_stats().tokens, 0u);
  faults.kind = Kind::none;
  for (int i = 0; i < 20; ++i) unwrap(next_token(session.get()));
  EXPECT_GE(session->n_computed(), n + 20);
  EXPECT_GT(session->resident()->refill_stats().tokens, 0u);
}

TEST_P(Refilled, ATransferThatNeverEndsIsGivenUp) {
  Faults faults;
  auto model = open_demo(faults.options(kShortWaitUs));
  auto session = unwrap(Session::open(model, options()));
  const auto other = unwrap(Session::open(model, options()));
  const auto prompt = random_tokens(*model, 200, 18);
  unwrap(session->prefill(prompt, nullptr, nullptr));
  faults.kind = Kind::never;
  Status failed;
  while (failed.ok() && session->n_computed() < 260) failed = next_token(session.get());
  ASSERT_EQ(failed.code(), Code::io);
  const std::string message = failed.message();
  EXPECT_NE(message.find("head"), std::string::npos) << message;
  EXPECT_NE(message.find("bytes"), std::string::npos) << message;
  EXPECT_GE(session->resident()->refill_stats().stall_us, kShortWaitUs);
  // It goes on, and so does another session of the runtime, before and after this one is closed.
  faults.kind = Kind::none;
  greedy(session.get(), 10);
  const std::vector<float> a = answer(other.get(), prompt, 30);
  session.reset();
  unwrap(other->rewind(0));
  EXPECT_TRUE(same_bits(answer(other.get(), prompt, 30), a));
}

// What a generation has told stays; the next one goes on from there.
TEST_P(Refilled, AGenerationEndsWithItsTransfer) {
  for (const Kind kind : {Kind::fail, Kind::never}) {
    Faults faults;
    const auto model = open_demo(faults.options(kShortWaitUs));
    const auto session = unwrap(Session::open(model, options()));
    engine::GenerateOptions o;
    o.max_tokens = 100;
    o.ignore_end = true;
    const auto generation = unwrap(engine::Generation::proceed(session.get(), random_tokens(*model, 200, 24), o));
    faults.skip = 20;
    faults.left = 1;
    faults.kind = kind;
    std::vector<int32_t> told;
    engine::Event event;
    Status status;
    while ((status = generation->next(&event)).ok() && event.type != engine::EventType::done)
      if (event.type == engine::EventType::token) told.push_back(event.token);
    ASSERT_EQ(status.code(), Code::io);
    EXPECT_TRUE(generation->finished());
    unwrap(generation->next(&event));
    EXPECT_EQ(event.finish, engine::Finish::cancelled);
    ASSERT_GT(told.size(), 0u);
    // The last token told is the one that could not be computed.
    EXPECT_EQ(session->n_computed(), 200 + told.size() - 1);
    std::vector<int32_t> all = random_tokens(*model, 200, 24);
    all.insert(all.end(), told.begin(), told.end());
    EXPECT_EQ(as_vector(session->tokens()), all);
    all.push_back(7);
    o.max_tokens = 30;
    const auto next = unwrap(engine::Generation::proceed(session.get(), all, o));
    do unwrap(next->next(&event));
    while (event.type != engine::EventType::done);
    EXPECT_EQ(event.generated_tokens, 30u);
    EXPECT_EQ(event.reused_tokens, all.size() - 2);
  }
}

// Checks the exported attention weights of scored heads against their queries and keys. Returns the number of scored heads.
int check_exported_weights(const engine::LanguageModel& model, const engine::Resident& resident, uint32_t position) {
  const auto& h = model.description();
  const int32_t group = h.kv().n_heads / h.kv().n_kv_heads, dim = h.kv().head_dim;
  const KvFormat& format = resident.format();
  std::vector<float> key(static_cast<size_t>(dim));
  int n_scored = 0;
  for (size_t head = 0; head < resident.views().size(); ++head) {
    const HeadView& view = resident.views()[head];
    if (!view.exported.data) continue;
    ++n_scored;
    const int32_t layer = static_cast<int32_t>(head) / h.kv().n_kv_heads, kv_head = static_cast<int32_t>(head) % h.kv().n_kv_heads;
    const QueryRing ring = resident.queries();
    const float* q =
        reinterpret_cast<const float*>(ring.data.address) +
        ((int64_t{layer} * ring.n_rows + static_cast<int32_t>(position) % ring.n_rows) * h.kv().n_heads + kv_head * group) * dim;
    for (int32_t t = 0; t < view.n_keys; ++t) {
      const uint64_t at = view.tiles[t / kPageTokens] + static_cast<uint64_t>(t % kPageTokens) * format.token_bytes();
      key = read_key(format.type, reinterpret_cast<const std::byte*>(at), key.size());
      for (int32_t g = 0; g < group; ++g) {
        double dot = 0;
        for (int32_t i = 0; i < dim; ++i) dot += static_cast<double>(q[g * dim + i]) * key[static_cast<size_t>(i)];
        const float* weights = reinterpret_cast<const float*>(view.exported.data.address);
        const float* units = weights + group * view.exported.stride;
        const double unit = units[g * view.exported.n_tiles() + t / kPageTokens];
        EXPECT_NEAR(std::log2(weights[g * view.exported.stride + t]) + unit, dot / std::sqrt(dim) * 1.4426950408889634, 1e-3)
            << "head " << head << ", key " << t;
      }
    }
  }
  return n_scored;
}

// Policies choose by exported attention weights: if forged weights always name the first keys, nothing changes once these keys are there.
TEST_P(Watching, ChecksGoByExportedWeights) {
  for (const bool forged : {false, true}) {
    const auto model = open_demo();
    engine::SessionOptions o = options();
    o.policy_options.emplace_back("tail", "40");
    const auto session = unwrap(Session::open(model, o));
    unwrap(session->prefill(random_tokens(*model, 300, 41), nullptr, nullptr));
    engine::Resident* resident = session->resident();
    int n_scored = 0;
    resident->set_step_fault([&](uint64_t step) {
      n_scored += check_exported_weights(*model, *resident, 300 + static_cast<uint32_t>(step) - 1);
      for (const HeadView& view : resident->views()) {
        float* weights = reinterpret_cast<float*>(view.exported.data.address);
        const int64_t group = model->description().kv().n_heads / model->description().kv().n_kv_heads, n_tiles = view.exported.n_tiles();
        float *units = weights + group * view.exported.stride, *sums = units + group * n_tiles;
        for (int64_t i = 0; forged && weights != nullptr && i < group * n_tiles; ++i) units[i] = sums[i] = 1;
        for (int64_t i = 0; forged && weights != nullptr && i < view.n_keys * group; ++i)
          weights[i / view.n_keys * view.exported.stride + i % view.n_keys] = 1 / (1 + 0.01f * static_cast<float>(i % view.n_keys));
      }
      return ok_status();
    });
    greedy(session.get(), 14);
    const uint64_t missed = resident->report().missed_tokens;
    EXPECT_GT(missed, 0u);
    greedy(session.get(), 20);
    EXPECT_GT(n_scored, 0);
    if (forged) EXPECT_EQ(resident->report().missed_tokens, missed);
    else EXPECT_GT(resident->report().missed_tokens, missed);
    EXPECT_EQ(resident->report().n_settled, 1u);
  }
}

// An error behind a step: the token has been computed, but its logits were told to nobody.
TEST_P(EveryMode, AFailedLookBehindAStepEndsOneDecode) {
  std::vector<float> first;
  for (int again = 0; again < 2; ++again) {  // what comes after is no accident
    const auto model = open_demo();
    const auto session = unwrap(Session::open(model, options()));
    unwrap(session->prefill(random_tokens(*model, 200, 25), nullptr, nullptr));
    session->resident()->set_step_fault([](uint64_t step) { return step == 12 ? error(Code::io, "nobody looks") : ok_status(); });
    Status failed;
    while (failed.ok() && session->n_computed() < 260) failed = next_token(session.get());
    ASSERT_EQ(failed.code(), Code::io);
    EXPECT_EQ(session->n_computed(), 212u);
    EXPECT_EQ(session->tokens().size(), 212u);
    EXPECT_FALSE(session->sequence().has_logits());
    EXPECT_FALSE(session->resident()->settled());  // what would have been asked for is unknown
    const uint64_t settled = session->resident()->report().n_settled;
    unwrap(session->sequence().refresh_logits());
    EXPECT_EQ(session->n_computed(), 212u);
    EXPECT_EQ(session->resident()->report().n_settled, settled + 1);
    std::vector<float> trace;
    greedy(session.get(), 30, &trace);
    EXPECT_EQ(session->n_computed(), 242u);
    if (again == 0) first = trace;
    EXPECT_TRUE(same_bits(trace, first));
  }
}

// With a wait limit of half a minute, everything that does not need the tokens is at once.
TEST_P(BetweenSteps, WhatNeverArrivesHoldsUpNothingElse) {
  Faults faults;
  auto model = open_demo(faults.options());
  auto session = unwrap(Session::open(model, options()));
  const auto prompt = random_tokens(*model, 200, 19), more = random_tokens(*model, 50, 20);
  unwrap(session->prefill(prompt, nullptr, nullptr));
  // Leaves the session, at its prompt's end so far, with a transfer under way that never ends.
  const auto hang = [&] {
    faults.kind = Kind::none;
    unwrap(session->rewind(200));
    unwrap(session->sequence().refresh_logits());
    const uint64_t before = faults.asked;
    faults.kind = Kind::never;
    ASSERT_GT(until_asked(session.get()), 0u);
    ASSERT_LT(seconds([&] {
                while (faults.asked == before) std::this_thread::yield();
              }),
              10);
  };
  const double limit = 5;
  hang();
  EXPECT_LT(seconds([&] { unwrap(session->fork()).reset(); }), limit);
  hang();
  EXPECT_LT(seconds([&] { unwrap(session->rewind(150)); }), limit);
  faults.kind = Kind::none;
  unwrap(session->prefill({prompt.data() + 150, 50}, nullptr, nullptr));
  hang();
  EXPECT_LT(seconds([&] { unwrap(session->prefill(more, nullptr, nullptr)); }), limit);
  // What remains is a session like any other.
  faults.kind = Kind::none;
  unwrap(session->rewind(200));
  const std::vector<float> found = answer(session.get(), more, 20);
  const auto fresh = unwrap(Session::open(model, options()));
  std::vector<int32_t> both = prompt;
  both.insert(both.end(), more.begin(), more.end());
  EXPECT_TRUE(same_bits(found, answer(fresh.get(), both, 20)));
  hang();
  EXPECT_LT(seconds([&] { session.reset(); }), limit);
}

// A fork of a session whose transfers fail or hang fails by itself, and neither minds the other.
TEST_P(Refilled, AForksFaultsAreItsOwn) {
  Faults faults;
  const auto model = open_demo(faults.options(kShortWaitUs));
  const auto prompt = random_tokens(*model, 200, 21);
  for (const Kind kind : {Kind::fail, Kind::never}) {
    faults.kind = Kind::none;
    const auto session = unwrap(Session::open(model, options())), alone = unwrap(Session::open(model, options()));
    unwrap(session->prefill(prompt, nullptr, nullptr));
    const uint32_t n = until_asked(session.get());
    ASSERT_GT(n, 0u);
    const auto fork = unwrap(session->fork());
    std::vector<float> a, b;
    greedy(session.get(), 20, &a);
    faults.wait_until_quiet();  // its own transfers have been made, and the fork's first ones
    faults.kind = kind;
    Status failed;
    while (failed.ok() && fork->n_computed() < 270) failed = next_token(fork.get());
    EXPECT_EQ(failed.code(), Code::io);
    faults.kind = Kind::none;
    unwrap(next_token(fork.get()));
    greedy(fork.get(), 10);
    greedy(session.get(), 20, &a);
    unwrap(alone->prefill(prompt, nullptr, nullptr));
    greedy(alone.get(), n);
    greedy(alone.get(), 40, &b);
    EXPECT_TRUE(same_bits(a, b));
  }
}

const auto mode_name = [](const auto& tested) { return std::string(tested.param.name); };
INSTANTIATE_TEST_SUITE_P(Modes, EveryMode, ::testing::ValuesIn(policy_modes()), mode_name);
INSTANTIATE_TEST_SUITE_P(Modes, Watching, ::testing::ValuesIn(watching_modes()), mode_name);
INSTANTIATE_TEST_SUITE_P(Modes, BetweenSteps, ::testing::ValuesIn(refilling_modes(false)), mode_name);
INSTANTIATE_TEST_SUITE_P(Modes, WithinSteps, ::testing::ValuesIn(refilling_modes(true)), mode_name);
INSTANTIATE_TEST_SUITE_P(Modes, Refilled, ::testing::ValuesIn(refilling_modes()), mode_name);

}  // namespace
}  // namespace orrery::refill_test
