// A saved session of a policy holds its resident KV and its policy's state: the loaded one, in a fresh session and in a fresh runtime, goes
// on as the live one, to the bit.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <thread>

#include "runtime/engine/session/session_file.h"
#include "tests/support/policy_sessions.h"
#include "tests/support/random_blocks.h"
#include "tests/support/session_bytes.h"
#include "tests/support/temp_dir.h"

namespace orrery::restore_test {
namespace {

using namespace orrery::testing;
using engine::Session;
using engine::SessionFile;
using Bytes = SessionBytes;

class EngineRestore : public ::testing::TestWithParam<PolicyMode> {};

// A conversation: the logits of each step.
constexpr size_t kAnswer = 36, kAgain = 20;
std::vector<float> next_turn(Session* session, const std::vector<int32_t>& question) {
  std::vector<float> trace;
  greedy(session, kAgain, &trace);
  const std::vector<float> second = answer(session, question, 12);
  trace.insert(trace.end(), second.begin(), second.end());
  return trace;
}

TEST_P(EngineRestore, TheLoadedSessionAnswersAsTheLiveOne) {
  engine::RuntimeOptions linked = runtime_options(1);
  if (GetParam().refills && !GetParam().codes()) linked.link = {100'000'000, 100};  // codes read in place, which a link forbids
  const auto model = open_deep(), other = open_deep(linked);
  const auto options = with_mode(GetParam(), 0.55), coarse = with_mode(GetParam(), 0.55, 320, KvType::f16, 48);
  const std::vector<int32_t> prompt = random_tokens(*model, 180, 1), question = random_tokens(*model, 9, 2);
  for (const size_t at : {size_t{0}, size_t{2}, kAnswer}) {
    const auto live = unwrap(Session::open(model, options));
    answer(live.get(), prompt, at);
    const Bytes bytes = save_bytes(live.get());
    EXPECT_EQ(unwrap(SessionFile::size(live.get())), bytes.size());
    const bool selects = live->sequence().selects_again();
    const std::vector<float> expected = next_turn(live.get(), question);
    const auto fresh = unwrap(Session::open(model, options)), elsewhere = unwrap(Session::open(other, coarse));
    for (Session* loaded : {fresh.get(), elsewhere.get()}) {
      unwrap(SessionFile::load(loaded, bytes, "a session"));
      EXPECT_EQ(loaded->sequence().selects_again(), selects);
      EXPECT_TRUE(save_bytes(loaded) == bytes) << at;
      ASSERT_TRUE(loaded->sequence().has_logits());
      EXPECT_TRUE(same_bits(expected, next_turn(loaded, question))) << at << (loaded == fresh.get() ? "" : ", elsewhere");
    }
    if (at != 2) continue;  // into a session that is in the middle of another answer
    unwrap(SessionFile::load(fresh.get(), bytes, "a session"));
    EXPECT_TRUE(same_bits(expected, next_turn(fresh.get(), question)));
  }
}

// Bytes of the state that somebody has written, under a right checksum: an error that leaves the session as it was, or a session that goes
// on somehow.
TEST_P(EngineRestore, AnyStateIsRefusedOrTaken) {
  const auto model = open_deep();
  const auto live = unwrap(Session::open(model, with_mode(GetParam(), 0.55))),
             victim = unwrap(Session::open(model, with_mode(GetParam(), 0.55)));
  answer(live.get(), random_tokens(*model, 150, 1), 11);
  answer(victim.get(), random_tokens(*model, 40, 3), 3);
  const Bytes file = save_bytes(live.get()), before = save_bytes(victim.get());
  const SessionLayout layout(file);
  ASSERT_TRUE(layout.has_resident);
  Random random(7);
  int n_refused = 0;
  const char* const wanted = std::getenv("ORRERY_TEST_STATES");
  const int n_tries = wanted ? std::atoi(wanted) : 16;
  for (int i = 0; i < n_tries; ++i) {
    Bytes bad = file;
    if (i % 8 == 7) {  // too short
      const uint64_t cut = 1 + random.below(layout.state - 1), left = layout.state - cut;
      bad.erase(bad.begin() + static_cast<ptrdiff_t>(layout.state_at + left),
                bad.begin() + static_cast<ptrdiff_t>(layout.state_at + layout.state));
      std::memcpy(bad.data() + SessionLayout::kHeader + 32, &left, sizeof left);
    } else {
      for (uint64_t n = 1 + random.below(3); n > 0; --n) {
        // The tables of the host are at the beginning and at the end.
        const uint64_t near = std::min<uint64_t>(layout.state, 600), place = random.below(3);
        const uint64_t at = place == 0   ? random.below(near)
                            : place == 1 ? layout.state - 1 - random.below(near)
                                         : random.below(layout.state);
        bad[layout.state_at + at] = static_cast<std::byte>(random.below(4) == 0 ? 0xFF : random.below(256));
      }
    }
    put_checksum(&bad);
    const Status status = SessionFile::load(victim.get(), bad, "bad.orrery");
    if (!status.ok()) {
      ++n_refused;
      EXPECT_EQ(status.code(), Code::bad_session) << status.message();
      EXPECT_EQ(std::string(status.message()).rfind("bad.orrery: ", 0), 0u) << status.message();
      ASSERT_TRUE(save_bytes(victim.get()) == before) << i;
      continue;
    }
    for (int step = 0; step < 9; ++step) {  // steps may fail, with an error
      victim->push_generated(step);
      if (!victim->decode().ok()) break;
    }
    unwrap(SessionFile::load(victim.get(), before, "before"));
    ASSERT_TRUE(save_bytes(victim.get()) == before) << i;
  }
  EXPECT_GT(n_refused, 0);
}

// A version without the state has written a file of the same form, but for the state.
TEST(EngineRestoreFile, FilesWithoutAStateAreReadAndNewerOnesAreRefused) {
  const auto model = open_demo();
  const auto live = unwrap(Session::open(model, with_mode(mode_of("snapkv"), 0.4))), full = open_session(model, 320, KvType::f16);
  answer(live.get(), random_tokens(*model, 180, 1), 11);
  const Bytes file = save_bytes(live.get()), old = without_resident(file);
  const auto loaded = unwrap(Session::open(model, with_mode(mode_of("snapkv"), 0.4)));
  unwrap(SessionFile::load(loaded.get(), old, "old"));
  EXPECT_TRUE(loaded->sequence().selects_again());
  EXPECT_FALSE(loaded->sequence().has_logits());
  unwrap(SessionFile::load(full.get(), file, "of a policy"));  // policy full passes over the state
  EXPECT_TRUE(save_bytes(full.get()) == old);
  for (const size_t at : {SessionLayout::kForm, SessionLayout::kHeader, SessionLayout::kHeader + 4}) {
    Bytes newer = file;
    newer[at] |= std::byte{0x40};
    put_checksum(&newer);
    const Status status = SessionFile::load(loaded.get(), newer, "newer");
    EXPECT_EQ(status.code(), Code::bad_session);
    EXPECT_NE(std::string(status.message()).find("was written by a newer version"), std::string::npos) << status.message();
  }
}

// ---- pages that are read behind the session

constexpr auto kBehind = SessionFile::Pages::behind;

class EngineRestoreBehind : public ::testing::TestWithParam<const char*> {
 protected:
  std::unique_ptr<Session> open() const {
    return unwrap(Session::open(model_, with_mode(mode_of(GetParam()), GetParam() == std::string("full") ? 1 : 0.4)));
  }
  std::string write(const char* name, const Bytes& bytes) const { return dir_.write(name, bytes); }
  Status load(Session* session, const std::string& path) const {
    return SessionFile::load_from_file(session, path, SessionFile::kWholeBytes, nullptr, kBehind);
  }
  const std::shared_ptr<engine::LanguageModel> model_ = open_demo();
  const TempDir dir_;
};

TEST_P(EngineRestoreBehind, TheLogitsAreThereAndTheAnswerIsTheSame) {
  const auto live = open();
  answer(live.get(), random_tokens(*model_, 200, 1), 9);
  const Bytes bytes = save_bytes(live.get());
  const std::string path = write("session", bytes);
  const std::vector<float> logits = as_vector(live->logits());
  const auto fork = unwrap(live->fork());
  std::vector<float> expected;
  greedy(live.get(), 20, &expected);
  const auto loaded = open(), saved_again = open(), forked = open(), cut = open(), dropped = open();
  for (Session* s : {loaded.get(), saved_again.get(), forked.get(), cut.get(), dropped.get()}) {
    unwrap(load(s, path));
    EXPECT_TRUE(same_bits(as_vector(s->logits()), logits));
    EXPECT_EQ(s->n_computed(), 209u);
  }
  std::vector<float> found, of_fork, of_cut, expected_cut;
  greedy(loaded.get(), 20, &found);
  EXPECT_TRUE(same_bits(found, expected));
  EXPECT_TRUE(save_bytes(saved_again.get()) == bytes);
  greedy(unwrap(forked->fork()).get(), 20, &of_fork);
  EXPECT_TRUE(same_bits(of_fork, expected));
  for (Session* s : {cut.get(), fork.get()}) {
    s->sequence().truncate(150);
    const std::vector<float> trace = answer(s, random_tokens(*model_, 20, 3), 5);
    (s == cut.get() ? of_cut : expected_cut) = trace;
  }
  EXPECT_TRUE(same_bits(of_cut, expected_cut));
}

// Before the pages: at once, and the session stays as it was. In the pages: the next call that needs them says so, with the file's name.
TEST_P(EngineRestoreBehind, DamageIsFoundAndSaid) {
  const auto live = open();
  answer(live.get(), random_tokens(*model_, 200, 1), 9);
  const Bytes bytes = save_bytes(live.get());
  const SessionLayout layout(bytes);
  for (const size_t at : {SessionLayout::kHeader + 8, SessionLayout::kHeader + SessionLayout::kResident + 3, layout.state_at - 5}) {
    Bytes bad = bytes;
    bad[at] ^= std::byte{1};
    const auto session = open();
    EXPECT_EQ(load(session.get(), write("head", bad)).code(), Code::bad_session) << at;
    EXPECT_EQ(session->n_computed(), 0u);
  }
  for (const size_t from_end : {size_t{3}, size_t{1000}, bytes.size() - layout.state_at - layout.state - 5}) {
    Bytes bad = bytes;
    bad[bad.size() - from_end] ^= std::byte{1};
    const std::string path = write("pages", bad);
    const std::vector<std::function<Status(Session*)>> calls = {
        [](Session* s) {
          s->push_generated(5);
          return s->decode();
        },
        [&](Session* s) { return s->prefill(random_tokens(*model_, 20, 3), nullptr, nullptr); },
        [](Session* s) { return s->fork().take_status(); },
        [](Session* s) { return s->rewind(50); },
        [](Session* s) {
          s->sequence().truncate(50);  // cannot say it
          return s->sequence().finish_pages();
        },
        [](Session* s) { return SessionFile::size(s).take_status(); },
    };
    for (size_t i = 0; i < calls.size(); ++i) {
      const auto session = open();
      unwrap(load(session.get(), path));
      EXPECT_TRUE(session->sequence().has_logits());
      EXPECT_EQ(session->sequence().stage(), engine::Sequence::Stage::arriving);
      const Status status = calls[i](session.get());
      EXPECT_EQ(session->sequence().stage(), engine::Sequence::Stage::ready);
      EXPECT_EQ(status.code(), Code::bad_session) << i;
      EXPECT_EQ(std::string(status.message()).rfind(path, 0), 0u) << status.message();
      EXPECT_EQ(session->n_computed(), 0u) << i;
      EXPECT_EQ(session->tokens().size(), 0u) << i;
      unwrap(session->sequence().finish_pages());  // once
      answer(session.get(), random_tokens(*model_, 20, 3), 3);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, EngineRestoreBehind, ::testing::Values("full", "snapkv", "auto_by_codes", "quest"),
                         [](const auto& each) { return std::string(each.param); });

// The call is cancelled while the pages are read, and the session is as before. A thread may read all pages before the call begins, once.
TEST(EngineRestoreCancel, EveryWaitForPagesEnds) {
  constexpr uint32_t kTokens = 1500;
  const auto model = open_demo();
  engine::SessionOptions options;
  options.n_context = 2048, options.kv_type = KvType::f32;
  const auto live = unwrap(Session::open(model, options));
  unwrap(live->sequence().assume_prompt(random_tokens(*model, kTokens - 1, 1),
                                        [](uint32_t, Span<std::byte> page) { std::fill(page.begin(), page.end(), std::byte{0x3c}); }));
  feed(live.get(), 5);
  const TempDir dir;
  const std::string path = dir.file("session");
  unwrap(SessionFile::save_to_file(live.get(), path));
  const Bytes bytes = save_bytes(live.get());
  const std::vector<float> logits = as_vector(live->logits());
  const std::atomic<bool> cancel{true};
  const auto ignore = [](Span<const std::byte>) { return ok_status(); };
  const std::vector<int32_t> other = random_tokens(*model, 100, 2);
  int tries = 0;
  const std::vector<std::function<Status(Session*)>> calls = {
      [&](Session* s) { return s->rewind(50, &cancel); },
      [&](Session* s) { return s->fork(&cancel).take_status(); },
      [&](Session* s) { return SessionFile::size(s, &cancel).take_status(); },
      [&](Session* s) { return SessionFile::save(s, ignore, &cancel); },
      [&](Session* s) -> Status {  // the prompt cuts the tokens
        ORRERY_ASSIGN(const auto generation, engine::Generation::proceed(s, other, {}));
        std::thread soon([&] {
          std::this_thread::sleep_for(std::chrono::microseconds(tries % 20 * 10));  // while next() waits, at one try or another
          generation->cancel();
        });
        engine::Event event;
        Status status = generation->next(&event);
        soon.join();
        ORRERY_TRY(std::move(status));
        return event.type == engine::EventType::done && s->n_computed() == kTokens ? error(Code::cancelled, "by its event") : ok_status();
      },
  };
  for (size_t i = 0; i < calls.size(); ++i) {
    bool cancelled = false;
    for (tries = 0; tries < 3000 && !cancelled; ++tries) {  // where the machine has much to do, the pages are often there at once
      const auto session = unwrap(Session::open(model, options));
      unwrap(SessionFile::load_from_file(session.get(), path, SessionFile::kWholeBytes, nullptr, kBehind));
      const Status status = calls[i](session.get());
      cancelled = status.code() == Code::cancelled;
      if (!cancelled) continue;
      EXPECT_EQ(session->n_computed(), kTokens) << i;
      EXPECT_TRUE(same_bits(as_vector(session->logits()), logits)) << i;
      EXPECT_TRUE(save_bytes(session.get()) == bytes) << i;
    }
    EXPECT_TRUE(cancelled) << i;
  }
  // A session that drops its tokens waits for nothing: a damaged file is no error of it.
  Bytes bad = bytes;
  bad[bad.size() - 1000] ^= std::byte{1};
  const std::string damaged = dir.write("damaged", bad);
  const auto session = unwrap(Session::open(model, options));
  unwrap(SessionFile::load_from_file(session.get(), damaged, SessionFile::kWholeBytes, nullptr, kBehind));
  unwrap(session->rewind(0));
  unwrap(session->sequence().finish_pages());
  EXPECT_EQ(session->tokens().size(), 0u);
  answer(session.get(), other, 2);
}

TEST(EnginePageFeed, AWaitCanBeCancelledAndAnEndStopsReading) {
  std::atomic<bool> goes_on{false}, cancel{true};
  const auto feed = engine::PageFeed::start([&](const std::atomic<bool>*) -> Status {
    while (!goes_on) std::this_thread::yield();
    return error(Code::io, "at last");
  });
  EXPECT_EQ(feed->wait(&cancel).code(), Code::cancelled);
  goes_on = true;
  EXPECT_EQ(feed->wait({}).code(), Code::io);
  EXPECT_EQ(feed->wait({}).code(), Code::io);
  engine::PageFeed::start([](const std::atomic<bool>* stop) {
    while (!*stop) std::this_thread::yield();
    return ok_status();
  });
}

INSTANTIATE_TEST_SUITE_P(Modes, EngineRestore, ::testing::ValuesIn(policy_modes()),
                         [](const auto& each) { return std::string(each.param.name); });

}  // namespace
}  // namespace orrery::restore_test
