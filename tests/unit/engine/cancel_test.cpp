// Cancelled waits: for a stalled link, for another session's turn, and while a session settles. Each wait ends soon, and the session then
// gives the bits of a session that was not disturbed.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "runtime/engine/session/session_file.h"
#include "tests/support/policy_sessions.h"
#include "tests/support/temp_dir.h"

namespace orrery::cancel_test {
namespace {

using namespace testing;
using engine::Generation;
using engine::Resident;
using engine::Session;
using Fault = kv::IoThread::Fault;
using Kind = kv::IoThread::Fault::Kind;

// A stalled link is waited for ten minutes here, and nothing takes this long unless it hangs.
constexpr uint64_t kWaitLimitUs = 600'000'000;
constexpr double kHang = 60;

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// A link that stalls on demand: transfers that begin then do not end until they are given up.
struct Stalling {
  std::atomic<bool> stalls{false};
  std::atomic<int> stalled{0};  // transfers
  engine::RuntimeOptions options() {
    engine::RuntimeOptions o = runtime_options(1);
    o.io_wait_limit_us = kWaitLimitUs;
    o.io_fault = [this](const kv::IoRequest&) {
      if (!stalls) return Fault{};
      ++stalled;
      return Fault{Kind::never, 0, ok_status()};
    };
    return o;
  }
};

// Sets the flag once a transfer has stalled, and a while later than that: so that somebody waits for it.
class Canceller {
 public:
  Canceller(const Stalling& link, std::atomic<bool>* flag)
      : thread_([this, &link, flag] {
          while (link.stalled == 0 && !over_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
          std::this_thread::sleep_for(std::chrono::milliseconds(30));
          at_ = std::chrono::steady_clock::now();
          *flag = true;
        }) {}
  ~Canceller() { end(); }
  // Seconds from the cancellation on. The caller's wait has ended.
  double seconds() {
    end();
    return seconds_since(at_);
  }

 private:
  void end() {
    over_ = true;
    if (thread_.joinable()) thread_.join();
  }
  std::chrono::steady_clock::time_point at_;
  std::atomic<bool> over_{false};
  std::thread thread_;
};

class CancelledOnTheLink : public ::testing::TestWithParam<PolicyMode> {};

TEST_P(CancelledOnTheLink, ADecodeStepEndsAndItsSessionGoesOn) {
  constexpr size_t kLater = 5;
  Stalling link;
  const auto model = open_demo(link.options());
  const std::vector<int32_t> prompt = random_tokens(*model, 150, 1), next = random_tokens(*model, 20, 2);
  const auto session = unwrap(Session::open(model, with_mode(GetParam(), 0.5)));
  unwrap(session->prefill(prompt, nullptr, nullptr));
  link.stalls = true;
  std::atomic<bool> cancel{false};
  Canceller canceller(link, &cancel);
  size_t n = 0;
  Status status;
  for (; n < 60 && status.ok(); ++n) {
    session->push_generated(argmax(session->logits()));
    status = session->decode(nullptr, &cancel);
  }
  ASSERT_EQ(status.code(), Code::cancelled) << "no step has waited for a transfer: " << status.message();
  EXPECT_LT(canceller.seconds(), kHang);
  EXPECT_EQ(session->n_computed() + 1, session->tokens().size()) << "the token waits to be computed still";

  link.stalls = false;
  std::vector<float> trace;
  unwrap(session->decode());
  greedy(session.get(), kLater, &trace);
  unwrap(session->prefill(next, nullptr, nullptr));
  greedy(session.get(), kLater, &trace);

  // Undisturbed, but it settles again at the same place.
  const auto other = unwrap(Session::open(model, with_mode(GetParam(), 0.5)));
  unwrap(other->prefill(prompt, nullptr, nullptr));
  greedy(other.get(), n - 1);
  other->push_generated(argmax(other->logits()));
  other->resident()->invalidate();
  unwrap(other->decode());
  std::vector<float> expected;
  greedy(other.get(), kLater, &expected);
  unwrap(other->prefill(next, nullptr, nullptr));
  greedy(other.get(), kLater, &expected);
  EXPECT_TRUE(same_bits(trace, expected));
}

INSTANTIATE_TEST_SUITE_P(All, CancelledOnTheLink, ::testing::ValuesIn(refilling_modes()),
                         [](const auto& mode) { return std::string(mode.param.name); });

// What an application sees: an answer that ends as cancelled, and one behind it that is right.
TEST(Cancelled, AnAnswerEndsWhileTheLinkStalls) {
  Stalling link;
  const auto model = open_demo(link.options());
  const PolicyMode mode{"quest", "quest", {{"page", "8"}, {"first_layers", "0"}}, true, true};
  const auto session = unwrap(Session::open(model, with_mode(mode, 0.5)));
  const std::vector<int32_t> prompt = random_tokens(*model, 150, 1);
  engine::GenerateOptions greedily;
  greedily.ignore_end = true;
  greedily.max_tokens = 40;
  const auto answer_of = [&](Session* of) {
    const auto generation = unwrap(Generation::proceed(of, prompt, greedily));
    std::vector<int32_t> tokens;
    for (engine::Event event; event.type != engine::EventType::done;) {
      unwrap(generation->next(&event));
      if (event.type == engine::EventType::token) tokens.push_back(event.token);
    }
    return tokens;
  };
  link.stalls = true;
  {
    const auto generation = unwrap(Generation::proceed(session.get(), prompt, greedily));
    std::thread canceller([&] {
      while (link.stalled == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      generation->cancel();
    });
    const auto begin = std::chrono::steady_clock::now();
    engine::Event event;
    while (event.type != engine::EventType::done) unwrap(generation->next(&event));
    canceller.join();
    EXPECT_EQ(event.finish, engine::Finish::cancelled);
    EXPECT_LT(event.generated_tokens, 40u);
    EXPECT_LT(seconds_since(begin), kHang);
  }
  link.stalls = false;
  const auto other = unwrap(Session::open(model, with_mode(mode, 0.5)));
  unwrap(session->rewind(0));
  EXPECT_EQ(answer_of(session.get()), answer_of(other.get()));
}

// One session's link stalls within its turn. The others can give up waiting for theirs: a prompt, a token, a row of logits.
TEST(Cancelled, WaitingForAnotherSessionsTurn) {
  Stalling link;
  const auto model = open_spec("qwen3", link.options());
  const PolicyMode mode{"quest", "quest", {{"page", "8"}, {"first_layers", "0"}}, true, true};
  const auto stalled = unwrap(Session::open(model, with_mode(mode, 0.5)));
  const auto waiting = open_session(model, 320), undisturbed = open_session(model, 320);
  const std::vector<int32_t> prompt = random_tokens(*model, 150, 1);
  unwrap(stalled->prefill(prompt, nullptr, nullptr));
  unwrap(waiting->prefill(prompt, nullptr, nullptr));
  unwrap(undisturbed->prefill(prompt, nullptr, nullptr));

  link.stalls = true;
  std::atomic<bool> cancel_stalled{false}, cancel{false};
  Status ended;
  std::thread stalling([&] {
    for (int i = 0; i < 60 && ended.ok(); ++i) {
      stalled->push_generated(argmax(stalled->logits()));
      ended = stalled->decode(nullptr, &cancel_stalled);
    }
  });
  while (link.stalled == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const auto begin = std::chrono::steady_clock::now();
  Canceller canceller(link, &cancel);
  EXPECT_EQ(waiting->prefill(random_tokens(*model, 7, 3), &cancel, nullptr).code(), Code::cancelled);
  canceller.seconds();
  waiting->push_generated(argmax(waiting->logits()));
  EXPECT_EQ(waiting->decode(nullptr, &cancel).code(), Code::cancelled);
  bool opened = false;  // what needs no turn goes on: a session that the workspace serves as it is
  std::thread opening([&] { opened = Session::open(model, waiting->options()).ok(); });
  opening.join();
  EXPECT_TRUE(opened);
  EXPECT_EQ(waiting->n_computed(), 150u);
  EXPECT_LT(seconds_since(begin), kHang);
  cancel_stalled = true;
  stalling.join();
  EXPECT_EQ(ended.code(), Code::cancelled) << ended.message();

  link.stalls = false;
  unwrap(waiting->decode());
  feed(undisturbed.get(), argmax(undisturbed->logits()));
  std::vector<float> trace, expected;
  greedy(waiting.get(), 5, &trace);
  greedy(undisturbed.get(), 5, &expected);
  EXPECT_TRUE(same_bits(trace, expected));
}

// Settling asks again and again whether it is cancelled. Wherever it ends, settling once more gives the same result.
class CancelledSettling : public ::testing::TestWithParam<PolicyMode> {};

TEST_P(CancelledSettling, BeginsAnewWithTheSameResult) {
  const auto model = open_spec("qwen3", runtime_options(1));
  const std::vector<int32_t> prompt = random_tokens(*model, 150, 1);
  const auto made = [&] {
    auto session = unwrap(Session::open(model, with_mode(GetParam(), 0.6)));
    unwrap(session->prefill(prompt, nullptr, nullptr));
    return session;
  };
  // Gives up when it is asked for the (n + 1)th time.
  const auto prepare = [&](Session* session, int n, int* asked) {
    *asked = 0;
    const auto gives_up = [&] { return ++*asked > n; };
    const Turn turn = model->runtime().take_turn();
    unwrap(turn.backend().set_scratch(model->workspace(turn).scratch, model->limits(turn)));
    const Resident::Use use(session->resident(), turn, Cancel::when(&gives_up));
    return session->resident()->prepare(150);
  };
  int in_all = 0, asked = 0;
  unwrap(prepare(made().get(), 1 << 30, &in_all));
  ASSERT_GE(in_all, GetParam().in_parts()
                        ? 1
                        : model->description().n_layers * model->description().kv().n_kv_heads);  // a part: one layer is scored
  const auto session = made(), undisturbed = made();
  for (const int n : {0, std::min(1, in_all - 1), in_all / 2, in_all - 1}) {
    EXPECT_EQ(prepare(session.get(), n, &asked).code(), Code::cancelled) << n << " of " << in_all;
    EXPECT_EQ(asked, n + 1);
    EXPECT_FALSE(session->resident()->settled());
  }
  std::vector<float> trace, expected;
  greedy(session.get(), 5, &trace);
  greedy(undisturbed.get(), 5, &expected);
  EXPECT_TRUE(same_bits(trace, expected));
}

INSTANTIATE_TEST_SUITE_P(All, CancelledSettling, ::testing::ValuesIn(policy_modes()),
                         [](const auto& mode) { return std::string(mode.param.name); });

// Queries that are computed once more, behind a rewind, overwrite others in the ring. Cancelled in the middle, neither are known.
TEST(Cancelled, RecoveringQueriesBeginsAnew) {
  const auto model = open_spec("qwen3", runtime_options(1));
  const std::vector<int32_t> prompt = random_tokens(*model, 150, 1);
  for (const char* policy : {"snapkv", "h2o"}) {
    const PolicyMode mode{policy, policy, {}, false};
    const auto session = unwrap(Session::open(model, with_mode(mode, 0.5))),
               undisturbed = unwrap(Session::open(model, with_mode(mode, 0.5)));
    for (Session* s : {session.get(), undisturbed.get()}) {
      unwrap(s->prefill(prompt, nullptr, nullptr));
      unwrap(s->rewind(130));
      s->push_generated(7);
    }
    const std::atomic<bool> cancelled{true};
    EXPECT_EQ(session->decode(nullptr, &cancelled).code(), Code::cancelled) << policy;
    unwrap(session->decode());
    unwrap(undisturbed->decode());
    std::vector<float> trace, expected;
    greedy(session.get(), 5, &trace);
    greedy(undisturbed.get(), 5, &expected);
    EXPECT_TRUE(same_bits(trace, expected)) << policy;
  }
}

// A session's stop_running() ends a call that saves or loads between two pieces, and nothing changes.
TEST(Cancelled, SavingAndLoadingStopBetweenTwoPieces) {
  const auto model = open_demo();
  engine::SessionOptions o;
  o.n_context = 512;
  const auto session = unwrap(Session::open(model, o)), other = unwrap(Session::open(model, o));
  unwrap(session->prefill(random_tokens(*model, 300, 9), nullptr, nullptr));
  unwrap(other->prefill(random_tokens(*model, 100, 3), nullptr, nullptr));
  const auto save = [&](Session* from, const std::atomic<bool>* cancel, int stop_at, std::vector<std::byte>* bytes) {
    int pieces = 0;
    return engine::SessionFile::save(
        from,
        [&](Span<const std::byte> piece) {
          bytes->insert(bytes->end(), piece.begin(), piece.end());
          if (++pieces == stop_at) from->calls().stop_running();
          return ok_status();
        },
        cancel);
  };
  std::vector<std::byte> whole, others;
  session->calls().stop_running();  // nothing runs
  unwrap(save(session.get(), nullptr, 0, &whole));
  unwrap(save(other.get(), nullptr, 0, &others));
  for (const int stop_at : {1, 4, 5}) {  // header, conversation, the pages
    const engine::Calls::Stoppable call(&session->calls());
    std::vector<std::byte> part;
    EXPECT_EQ(save(session.get(), call.flag(), stop_at, &part).code(), Code::cancelled) << stop_at;
    EXPECT_LT(part.size(), whole.size());
  }
  TempDir dir;
  const std::string path = dir.write("session", whole);
  for (const uint64_t whole_bytes : {engine::SessionFile::kWholeBytes, uint64_t{0}}) {  // a long file is read piece by piece
    const engine::Calls::Stoppable call(&other->calls());
    other->calls().stop_running();
    EXPECT_EQ(engine::SessionFile::load_from_file(other.get(), path, whole_bytes, call.flag()).code(), Code::cancelled);
  }
  {
    const engine::Calls::Stoppable call(&other->calls());
    other->calls().stop_running();
    EXPECT_EQ(engine::SessionFile::load(other.get(), whole, "test", call.flag()).code(), Code::cancelled);
  }
  std::vector<std::byte> now;
  unwrap(save(other.get(), nullptr, 0, &now));
  EXPECT_EQ(now, others);
  const engine::Calls::Stoppable call(&other->calls());  // the cancellation of an earlier call
  unwrap(engine::SessionFile::load(other.get(), whole, "test", call.flag()));
  EXPECT_EQ(other->n_computed(), 300u);
}

}  // namespace
}  // namespace orrery::cancel_test
