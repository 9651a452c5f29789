// Settling in parts (Policy::settle_steps): its steps attend to everything, its parts add up to a settlement at once, and whatever comes
// between two parts finds the session as behind any other step.
#include <gtest/gtest.h>

#include "runtime/engine/session/session_file.h"
#include "tests/support/policy_sessions.h"
#include "tests/support/session_bytes.h"
#include "tests/support/temp_dir.h"

namespace orrery::settling_test {
namespace {

using namespace orrery::testing;
using engine::Session;

constexpr uint32_t kPrompt = 300, kSteps = 5, kContext = 640;

engine::SessionOptions in_parts(uint32_t steps = kSteps) {
  const PolicyMode mode{"", "auto", {{"steps", std::to_string(steps)}, {"tail", "40"}}, false};
  return with_mode(mode, .5, kContext);
}

class SettlingInParts : public ::testing::Test {
 protected:
  std::unique_ptr<Session> prompted(const engine::SessionOptions& options, size_t n_tokens = kPrompt) {
    auto session = unwrap(Session::open(model_, options));
    unwrap(session->prefill(random_tokens(*model_, n_tokens, 1), nullptr, nullptr));
    return session;
  }
  engine::SessionOptions full() const {
    engine::SessionOptions options;
    options.n_context = kContext;
    options.kv_type = KvType::f16;
    return options;
  }
  static std::vector<float> trace(Session* session, size_t n) {
    std::vector<float> out;
    greedy(session, n, &out);
    return out;
  }
  const std::shared_ptr<engine::LanguageModel> model_ = open_demo(runtime_options(2));
};

// The steps have full attention's bits, and the heads then hold what a settlement at once holds.
TEST_F(SettlingInParts, AttendsToEverythingAndAddsUp) {
  for (const uint32_t steps : {1u, 2u, kSteps, 20u}) {
    const auto session = prompted(in_parts(steps)), at_once = prompted(in_parts(0)), everything = prompted(full());
    for (uint32_t i = 0; i < steps; ++i) {
      EXPECT_EQ(session->resident()->settling(), i > 0) << i;
      const int32_t token = argmax(everything->logits());
      for (Session* s : {session.get(), at_once.get(), everything.get()}) feed(s, token);
      EXPECT_TRUE(same_bits(as_vector(session->logits()), as_vector(everything->logits()))) << i;
      EXPECT_EQ(session->kv_used_bytes() > 0, i + 1 == steps) << i;
    }
    EXPECT_FALSE(same_bits(as_vector(at_once->logits()), as_vector(everything->logits()))) << "the budget decides";
    ASSERT_TRUE(session->resident()->settled());
    const kv::HeadStore &a = session->resident()->store(), &b = at_once->resident()->store();
    for (uint32_t head = 0; head < a.n_heads(); ++head) {
      EXPECT_EQ(a.capacity(head), b.capacity(head)) << head;
      EXPECT_EQ(std::vector<uint32_t>(a.positions(head).begin(), a.positions(head).end()),
                std::vector<uint32_t>(b.positions(head).begin(), b.positions(head).end()))
          << head;
    }
    EXPECT_EQ(session->resident()->report().n_settled, 1u);
    // From here on a step attends to the slots.
    feed(session.get(), 5), feed(everything.get(), 5);
    EXPECT_FALSE(same_bits(as_vector(session->logits()), as_vector(everything->logits())));
  }
}

// The slots hold the bits that the pages hold for the same tokens, also for the tokens of the steps beside the parts.
TEST_F(SettlingInParts, SlotsAreFilledFromThePages) {
  const auto session = prompted(in_parts());
  greedy(session.get(), kSteps);
  const engine::Resident& resident = *session->resident();
  for (uint32_t head = 0; head < resident.store().n_heads(); ++head)
    for (uint32_t slot = 0; slot < resident.store().length(head); ++slot) {
      const uint64_t bytes = resident.format().token_bytes();
      const uint64_t at = resident.store().tiles(head)[slot / kPageTokens] + slot % kPageTokens * bytes;
      const uint64_t page_at = resident.reservoir().tokens_of(head).address(resident.store().positions(head)[slot]);
      ASSERT_EQ(std::memcmp(reinterpret_cast<const void*>(at), reinterpret_cast<const void*>(page_at), bytes), 0) << head << ", " << slot;
    }
}

TEST_F(SettlingInParts, ThreadsChunksAndLinksDoNotShow) {
  const std::vector<float> expected = trace(prompted(in_parts()).get(), 60);  // a full tail settles again
  for (const int32_t n_threads : {1, 3}) {
    engine::RuntimeOptions o = runtime_options(n_threads);
    if (n_threads == 3) o.link = {100'000'000, 20};
    const auto model = open_demo(o);
    engine::SessionOptions options = in_parts();
    options.chunk_tokens = 40;
    const auto session = unwrap(Session::open(model, options));
    EXPECT_TRUE(same_bits(expected, answer(session.get(), random_tokens(*model, kPrompt, 1), 60))) << n_threads;
    EXPECT_EQ(session->resident()->report().n_settled, 2u);
  }
}

// Between any two parts: a fork and a file's session go on alike. A rewind begins with the first part, and so does a session of a file
// without a resident state: they attend to everything.
TEST_F(SettlingInParts, ForksRewindsAndFiles) {
  const TempDir folder;
  const std::vector<float> fresh = trace(prompted(in_parts()).get(), 20);
  for (uint32_t n = 1; n <= kSteps; ++n) {
    const auto session = prompted(in_parts());
    greedy(session.get(), n);
    const auto fork = unwrap(session->fork());
    const std::string path = folder.file(std::to_string(n));
    unwrap(engine::SessionFile::save_to_file(session.get(), path));
    const auto loaded = unwrap(Session::open(model_, in_parts())), everything = unwrap(Session::open(model_, full())),
               restored = unwrap(Session::open(model_, in_parts()));
    unwrap(engine::SessionFile::load_from_file(restored.get(), path));
    unwrap(engine::SessionFile::load(loaded.get(), without_resident(save_bytes(session.get())), "a session"));
    const std::vector<float> expected = trace(session.get(), 20);
    EXPECT_TRUE(same_bits(expected, trace(fork.get(), 20))) << n;
    EXPECT_TRUE(same_bits(expected, trace(restored.get(), 20))) << n;
    for (Session* s : {loaded.get(), everything.get()}) {
      if (s == everything.get()) unwrap(s->prefill(random_tokens(*model_, kPrompt, 1), nullptr, nullptr));
      for (size_t i = s->tokens().size(); i < kPrompt + n + kSteps; ++i) feed(s, session->tokens()[i]);
    }
    EXPECT_TRUE(same_bits(as_vector(loaded->logits()), as_vector(everything->logits()))) << n;
    unwrap(session->rewind(kPrompt));
    unwrap(session->sequence().refresh_logits());
    EXPECT_TRUE(same_bits(fresh, trace(session.get(), 20))) << n;
  }
}

// A full tail renews scores: every other settlement scores by the window alone.
TEST_F(SettlingInParts, OnlyAFullTailRenewsScores) {
  const auto options = [](const char* renew, const char* steps) {
    return with_mode({"", "auto", {{"steps", steps}, {"tail", "10"}, {"renew", renew}}, false}, .3, kContext);
  };
  for (const char* steps : {"0", "5"}) {
    const auto renews = prompted(options("3", steps)), alone = prompted(options("0", steps));
    const std::vector<float> a = trace(renews.get(), 40), b = trace(alone.get(), 40);
    const size_t n_vocab = a.size() / 40;
    EXPECT_TRUE(std::equal(a.begin(), a.begin() + static_cast<ptrdiff_t>(10 * n_vocab), b.begin())) << "the window scores a prompt";
    EXPECT_FALSE(same_bits(a, b)) << steps;
    const auto fork = unwrap(renews->fork());
    EXPECT_TRUE(same_bits(trace(renews.get(), 30), trace(fork.get(), 30))) << steps;
  }
  const auto used = prompted(options("3", "0")), fresh = prompted(options("3", "0"));
  greedy(used.get(), 1);  // settles
  for (Session* s : {used.get(), fresh.get()}) {
    unwrap(s->rewind(kPrompt - 5));
    unwrap(s->prefill(random_tokens(*model_, 10, 2), nullptr, nullptr));
  }
  EXPECT_TRUE(same_bits(trace(used.get(), 30), trace(fresh.get(), 30))) << "other tokens than those of the last scores";
}

// A prompt between two parts is full attention's, and so are the steps behind it.
TEST_F(SettlingInParts, ASecondPromptBeginsAnew) {
  for (uint32_t n = 1; n < kSteps; ++n) {
    const auto session = prompted(in_parts()), everything = prompted(full());
    for (Session* s : {session.get(), everything.get()}) {
      for (uint32_t i = 0; i < n; ++i) feed(s, static_cast<int32_t>(60 + i));
      unwrap(s->prefill(random_tokens(*model_, 50, 2), nullptr, nullptr));
      greedy(s, kSteps);
    }
    EXPECT_TRUE(same_bits(as_vector(session->logits()), as_vector(everything->logits()))) << n;
    EXPECT_EQ(session->resident()->report().n_settled, 2u);
    EXPECT_TRUE(session->resident()->settled());
  }
}

// A step that fails, or is cancelled within its part, gives the parts up: the next step begins with the first.
TEST_F(SettlingInParts, AStepThatFailsBeginsAnew) {
  for (const bool cancelled : {false, true})
    for (uint32_t n = 1; n < kSteps; ++n) {
      const auto session = prompted(in_parts()), expected = prompted(in_parts());
      greedy(session.get(), n), greedy(expected.get(), n);
      if (cancelled) {
        const Turn turn = model_->runtime().take_turn();
        unwrap(turn.backend().set_scratch(model_->workspace(turn).scratch, model_->limits(turn)));
        const auto always = [] { return true; };
        const engine::Resident::Use use(session->resident(), turn, Cancel::when(&always));
        EXPECT_EQ(session->resident()->prepare(kPrompt + n).code(), Code::cancelled) << n;
      } else {
        session->resident()->set_step_fault([](uint64_t) { return error(Code::internal, "a fault"); });
        const int32_t token = argmax(session->logits());
        session->push_generated(token);
        EXPECT_EQ(session->decode().code(), Code::internal);
        session->resident()->set_step_fault(nullptr);
        feed(expected.get(), token);
      }
      EXPECT_FALSE(session->resident()->settling());
      expected->resident()->invalidate();
      EXPECT_TRUE(same_bits(trace(session.get(), 20), trace(expected.get(), 20))) << n;
      EXPECT_EQ(session->resident()->report().n_settled, 2u);
    }
}

// Nothing is spread where nothing is evicted, and where a tail is shorter than two tokens a step.
TEST_F(SettlingInParts, OnlyWhereItPays) {
  engine::SessionOptions whole = in_parts();
  whole.kv_share = 1;
  engine::SessionOptions short_tail = in_parts(kSteps);
  short_tail.policy_options.back().second = std::to_string(2 * kSteps - 1);
  engine::SessionOptions many_queries = in_parts();
  many_queries.policy_options.emplace_back("window", "60");
  for (const engine::SessionOptions& options : {whole, short_tail, many_queries}) {
    const auto session = prompted(options);
    greedy(session.get(), 1);
    EXPECT_TRUE(session->resident()->settled());
  }
  const auto parted = prompted(in_parts());
  greedy(parted.get(), 1);
  EXPECT_FALSE(parted->resident()->settled());
}

}  // namespace
}  // namespace orrery::settling_test
