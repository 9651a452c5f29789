// The KV of earlier prompts, used again: by a session that goes back to a branch, and by another session. The tokens and bits are those of
// a session that computes everything, or of a fork. The pages lie in the reservoir, and leave when a session needs the room.
#include <gtest/gtest.h>

#include "runtime/engine/session/session_file.h"
#include "tests/support/asked_prompts.h"
#include "tests/support/policy_sessions.h"

namespace orrery::prefixes_test {
namespace {

using namespace testing;
using engine::Session;

constexpr uint32_t kContext = 640;

engine::SessionOptions options_of(const std::string& policy, KvType kv = KvType::f16, bool reuse = true) {
  const PolicyMode mode = {policy.c_str(), policy.c_str(), {}, false};
  engine::SessionOptions o = with_mode(mode, policy == "full" ? 1 : 0.4, kContext, kv);
  o.reuse_prompts = reuse;
  return o;
}
class Prefixes : public ::testing::TestWithParam<const char*> {};

TEST_P(Prefixes, TheSameRequestGivesTheSameTokensWithAndWithoutReuse) {
  const auto model = open_demo();
  const bool sums = GetParam() == std::string("h2o");
  for (const KvType kv : {KvType::f16, KvType::q4_0, KvType::k8v4}) {
    const auto options = options_of(GetParam(), kv);
    const std::vector<int32_t> document = tokens_of(300, 1);
    const std::vector<int32_t> first = tokens_of(330, 2, document), second = tokens_of(350, 3, document);
    const auto without = unwrap(Session::open(model, options_of(GetParam(), kv, false)));
    const Asked expected = ask(without.get(), second);
    const Asked of_first = ask(unwrap(Session::open(model, options_of(GetParam(), kv, false))).get(), first);
    EXPECT_EQ(expected.computed, 350u);
    EXPECT_EQ(model->runtime().prefixes().bytes(), 0u) << "it is off";

    const auto one = unwrap(Session::open(model, options)), two = unwrap(Session::open(model, options));
    expect_same(ask(one.get(), first), of_first);
    const Asked found = ask(two.get(), second);
    expect_same(found, expected);
    EXPECT_EQ(found.restored, sums ? 0u : 256u) << "the document's whole pages";
    EXPECT_EQ(found.reused, found.restored);
    EXPECT_EQ(found.computed, 350 - found.restored);
    // The whole prompt again, on a third session: it computes the rest of a page.
    const Asked again = ask(unwrap(Session::open(model, options)).get(), second);
    expect_same(again, expected);
    EXPECT_EQ(again.restored, sums ? 0u : 320u);
    model->runtime().prefixes().forget(model->id());
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, Prefixes, ::testing::Values("full", "snapkv", "auto", "quest", "shadowkv", "h2o"),
                         [](const auto& each) { return std::string(each.param); });

// A state cannot be computed from KV: the pages of a model with recurrent layers are worth something up to a checkpoint.
class RecurrentPrefixes : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Kinds, RecurrentPrefixes, ::testing::Values("qwen35", "lfm2", "nemotron-h"),
                         [](const auto& each) { return std::string(each.param, 4); });

TEST_P(RecurrentPrefixes, AStateIsKeptWithItsPage) {
  engine::RuntimeOptions runtime = runtime_options(2);
  const auto model = open_spec(GetParam(), runtime);
  kv::PrefixTree& tree = model->runtime().prefixes();
  const auto prompt_of = [](size_t n, uint64_t seed, std::vector<int32_t> head = {}) {
    Random random(seed);
    while (head.size() < n) head.push_back(static_cast<int32_t>(3 + random.below(90)));
    return head;
  };
  const auto options = options_of("full");
  const std::vector<int32_t> document = prompt_of(300, 1), first = prompt_of(330, 2, document), second = prompt_of(390, 3, first);
  const Asked expected = ask(unwrap(Session::open(model, options_of("full", KvType::f16, false))).get(), second, 90);
  const auto one = unwrap(Session::open(model, options));
  ask(one.get(), first);
  EXPECT_GT(tree.bytes(), model->description().state_bytes());
  const auto two = unwrap(Session::open(model, options));
  const Asked found = ask(two.get(), second, 90);
  expect_same(found, expected);
  EXPECT_EQ(found.restored, 256u) << "to the checkpoint, at least kTail tokens before the end of the first prompt";
  EXPECT_EQ(found.computed, second.size() - 256);
  EXPECT_EQ(two->stats().recomputed_tokens, 0u);
  // A prompt that parts from both before the checkpoint has no use of it.
  const std::vector<int32_t> other = prompt_of(300, 4, {document.begin(), document.begin() + 200});
  const Asked parted = ask(unwrap(Session::open(model, options)).get(), other);
  EXPECT_EQ(parted.restored, 0u);
  expect_same(parted, ask(unwrap(Session::open(model, options_of("full", KvType::f16, false))).get(), other));
  // What a session generated is its own.
  std::vector<int32_t> longer = second;
  longer.insert(longer.end(), found.tokens.begin(), found.tokens.end());
  longer = prompt_of(longer.size() + 40, 5, longer);
  const Asked of_another = ask(unwrap(Session::open(model, options)).get(), longer);
  EXPECT_EQ(of_another.restored, 320u);
  expect_same(of_another, ask(unwrap(Session::open(model, options_of("full", KvType::f16, false))).get(), longer));
}

// An edited turn, and back: the session is then as a fork that was made by hand. Generated tokens keep their KV.
TEST(EnginePrefixes, AnEarlierBranchCostsItsNewTokensAlone) {
  const auto model = open_demo();
  const auto session = unwrap(Session::open(model, options_of("full")));
  std::vector<int32_t> turns = tokens_of(100, 1);
  for (int turn = 0; turn < 3; ++turn) {
    const Asked a = ask(session.get(), turns, 70);
    EXPECT_EQ(a.restored, 0u);
    turns.insert(turns.end(), a.tokens.begin(), a.tokens.end());
    turns = tokens_of(turns.size() + 30, 10 + static_cast<uint64_t>(turn), turns);
  }
  ask(session.get(), turns, 40);  // 400 tokens of four turns
  const std::vector<int32_t> held(session->tokens().begin(), session->tokens().begin() + session->n_computed());
  const auto fork = unwrap(session->fork());
  const std::vector<int32_t> edited = tokens_of(90, 20, {turns.begin(), turns.begin() + 70});
  const Asked other = ask(session.get(), edited, 8);
  EXPECT_EQ(other.reused, 70u);
  EXPECT_EQ(other.restored, 0u);

  const std::vector<int32_t> back = tokens_of(held.size() + 20, 30, held);
  const Asked found = ask(session.get(), back);
  EXPECT_EQ(found.reused, held.size() / 64 * 64);
  EXPECT_EQ(found.restored, found.reused - 70);
  EXPECT_EQ(found.computed, back.size() - found.reused);
  // The generated tokens of the last page were computed again, as prompt tokens. The fork does the same.
  model->runtime().prefixes().forget(model->id());
  unwrap(fork->rewind(static_cast<uint32_t>(found.reused)));
  const Asked expected = ask(fork.get(), back);
  EXPECT_EQ(expected.restored, 0u);
  expect_same(found, expected);
}

TEST(EnginePrefixes, GeneratedAndForeignTokensStayTheSessions) {
  const auto model = open_demo();
  const auto options = options_of("full"), off = options_of("full", KvType::f16, false);
  const auto one = unwrap(Session::open(model, options)), two = unwrap(Session::open(model, options));
  const auto none = unwrap(Session::open(model, off));
  std::vector<int32_t> prompt = tokens_of(100, 1);
  const Asked a = ask(one.get(), prompt, 100);
  prompt.insert(prompt.end(), a.tokens.begin(), a.tokens.end());
  const Asked found = ask(two.get(), prompt);
  EXPECT_EQ(found.restored, 64u) << "not the generated ones";
  expect_same(found, ask(none.get(), prompt));
  // Tokens of a file are not computed here: nobody else gets them.
  const TempDir dir;
  const std::vector<int32_t> other = tokens_of(200, 2);
  ask(none.get(), other);
  unwrap(engine::SessionFile::save_to_file(none.get(), dir.file("saved")));
  unwrap(engine::SessionFile::load_from_file(one.get(), dir.file("saved")));
  std::vector<int32_t> longer = tokens_of(260, 3, other);
  EXPECT_EQ(ask(one.get(), longer).reused, 200u);
  EXPECT_EQ(ask(two.get(), longer).restored, 0u);
  EXPECT_EQ(ask(one.get(), tokens_of(10, 4)).reused, 0u);
  EXPECT_EQ(ask(one.get(), longer).restored, 256u) << "two has computed them now, and one has its own";
}

// A file's KV is anybody's invention. A session that takes it back from its own kept pages, and keeps it again after they have left, hands
// none of it to a session that never saw the file.
TEST(EnginePrefixes, KvOfAFileStaysTheSessionsHoweverOftenItIsKept) {
  const auto model = open_demo();
  const auto options = options_of("full"), off = options_of("full", KvType::f16, false);
  const TempDir dir;
  const std::vector<int32_t> head = tokens_of(200, 2), longer = tokens_of(260, 3, head), longest = tokens_of(330, 5, longer);
  const auto forger = unwrap(Session::open(model, off));
  unwrap(forger->sequence().assume_prompt(head, [](uint32_t page, Span<std::byte> bytes) {
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i % 2 == 0 ? page * 7 + i : 0x34);  // halves around .3
  }));
  unwrap(engine::SessionFile::save_to_file(forger.get(), dir.file("forged")));
  const Asked honest = ask(unwrap(Session::open(model, off)).get(), longest);
  for (const bool invented : {false, true}) {
    SCOPED_TRACE(invented);
    auto one = unwrap(Session::open(model, options));
    if (invented) {
      unwrap(one->sequence().assume_prompt(
          head, [](uint32_t, Span<std::byte> bytes) { std::fill(bytes.begin(), bytes.end(), std::byte{0x34}); }));
    } else {
      unwrap(engine::SessionFile::load_from_file(one.get(), dir.file("forged")));
    }
    EXPECT_EQ(ask(one.get(), longer).reused, 200u);
    EXPECT_EQ(ask(one.get(), tokens_of(10, 4)).reused, 0u);  // its tokens leave
    EXPECT_EQ(ask(one.get(), longer).restored, 256u);        // and come back
    model->runtime().prefixes().forget(model->id());         // other prompts push the kept pages out
    EXPECT_EQ(ask(one.get(), longest).reused, 260u);         // it keeps them again
    EXPECT_EQ(ask(unwrap(one->fork()).get(), longest).reused, 330u);
    one.reset();
    const auto two = unwrap(Session::open(model, options));
    const Asked found = ask(two.get(), longest);
    EXPECT_EQ(found.restored, 0u);
    expect_same(found, honest);
    model->runtime().prefixes().forget(model->id());
  }
}

// Pages that were computed here stay everybody's, also where a session holds a file's pages behind them.
TEST(EnginePrefixes, ComputedPagesBeforeThoseOfAFileStayEverybodys) {
  const auto model = open_demo();
  const auto options = options_of("full"), off = options_of("full", KvType::f16, false);
  const TempDir dir;
  const std::vector<int32_t> head = tokens_of(130, 2), longer = tokens_of(260, 3, head);
  ask(unwrap(Session::open(model, options)).get(), head);  // two pages of everybody
  const auto none = unwrap(Session::open(model, off));
  ask(none.get(), longer);
  unwrap(engine::SessionFile::save_to_file(none.get(), dir.file("saved")));
  const auto one = unwrap(Session::open(model, options));
  unwrap(engine::SessionFile::load_from_file(one.get(), dir.file("saved")));
  ask(one.get(), longer);  // keeps the file's pages as its own
  const auto two = unwrap(Session::open(model, options));
  EXPECT_EQ(ask(two.get(), longer).restored, 128u);
}

// What was generated stays so when the session takes it from the tree and keeps it again.
TEST(EnginePrefixes, RestoredTokensAreKeptAsTheyWere) {
  const auto model = open_demo();
  const auto one = unwrap(Session::open(model, options_of("full"))), two = unwrap(Session::open(model, options_of("full")));
  std::vector<int32_t> turns = tokens_of(100, 1);
  const Asked a = ask(one.get(), turns, 160);
  turns.insert(turns.end(), a.tokens.begin(), a.tokens.end());
  ask(one.get(), tokens_of(90, 20, {turns.begin(), turns.begin() + 70}), 3);
  const std::vector<int32_t> back = tokens_of(330, 21, turns);
  EXPECT_EQ(ask(one.get(), back).reused, 256u);
  EXPECT_EQ(ask(two.get(), back).restored, 64u) << "not the generated ones";
}

TEST(EnginePrefixes, APageOfAnotherTypeIsAnotherPage) {
  const auto model = open_demo();
  const std::vector<int32_t> prompt = tokens_of(200, 1);
  for (const KvType type : {KvType::f16, KvType::f32, KvType::q8_0, KvType::q4_0, KvType::k8v4}) {
    const auto session = unwrap(Session::open(model, options_of("full", type)));
    const Asked found = ask(session.get(), prompt);
    EXPECT_EQ(found.restored, 0u);
    expect_same(found, ask(unwrap(Session::open(model, options_of("full", type, false))).get(), prompt));
  }
}

// Rotated pages are shared by all sessions with slots of four bits, plain pages by the others.
TEST(EnginePrefixes, SlotsOfFourBitsHavePagesOfTheirOwn) {
  const auto model = open_demo();
  const std::vector<int32_t> prompt = tokens_of(200, 1);
  const auto restored = [&](const char* policy, std::optional<KvType> device) {
    auto options = options_of(policy);
    options.device_kv_type = device;
    return ask(unwrap(Session::open(model, options)).get(), prompt).restored;
  };
  EXPECT_EQ(restored("full", {}), 0u);
  EXPECT_EQ(restored("snapkv", KvType::k8v4), 0u) << "V has four bits";
  EXPECT_EQ(restored("adakv", KvType::q4_0), 192u);
  EXPECT_EQ(restored("snapkv", KvType::q8_0), 192u);
}

// A file brings its mean keys, here those of another instruction set. Pages of keys without these means are other pages.
TEST(EnginePrefixes, PagesOfOtherMeanKeysAreOtherPages) {
  const auto options = options_of("full", KvType::q8_0);
  const std::vector<int32_t> other = tokens_of(200, 2), longer = tokens_of(260, 3, other);
  const TempDir dir;
  // Any instruction set but the tests' own.
  const auto set_of = [](const engine::RuntimeOptions& of) {
    return std::string(open_demo(of)->runtime().device().info().instruction_set);
  };
  const std::string here = set_of(runtime_options());
  if (here == "plain" && set_of(runtime_options(2, "auto")) == here) GTEST_SKIP() << "this machine has one instruction set";
  {
    const auto elsewhere = open_demo(runtime_options(2, here == "plain" ? "auto" : "plain"));
    const auto session = unwrap(Session::open(elsewhere, options));
    unwrap(session->prefill(other, nullptr, nullptr));
    unwrap(engine::SessionFile::save_to_file(session.get(), dir.file("saved")));
  }
  const auto model = open_demo();
  const auto session = unwrap(Session::open(model, options)), none = unwrap(Session::open(model, options_of("full", KvType::q8_0, false)));
  unwrap(engine::SessionFile::load_from_file(session.get(), dir.file("saved")));
  EXPECT_EQ(ask(session.get(), longer).reused, 200u);
  EXPECT_EQ(ask(session.get(), tokens_of(10, 4)).reused, 0u);  // from here on the means are the model's
  const Asked found = ask(session.get(), longer);
  EXPECT_EQ(found.restored, 0u);
  expect_same(found, ask(none.get(), longer));
}

// A session takes what its fork has computed further on. Its heads lack these tokens, so they are chosen again.
TEST(EnginePrefixes, RestoringDropsWhatHeadsHold) {
  const auto model = open_demo();
  for (const char* policy : {"snapkv", "quest", "auto"}) {
    const auto session = unwrap(Session::open(model, options_of(policy)));
    ask(session.get(), tokens_of(150, 1), 20);
    const auto fork = unwrap(session->fork());
    const std::vector<int32_t> held(session->tokens().begin(), session->tokens().begin() + session->n_computed());
    const std::vector<int32_t> further = tokens_of(340, 2, held);
    ask(fork.get(), further);
    unwrap(fork->rewind(320));
    session->sequence().truncate(session->n_computed());
    EXPECT_TRUE(session->resident()->settled()) << policy;
    unwrap(session->find_prefix(further, nullptr));
    EXPECT_EQ(session->n_computed(), 320u);
    EXPECT_FALSE(session->resident()->settled()) << policy;
    feed(session.get(), 3), feed(fork.get(), 3);
    EXPECT_TRUE(same_bits(as_vector(session->logits()), as_vector(fork->logits()))) << policy;
    model->runtime().prefixes().forget(model->id());
  }
}

// 16K tokens of a prompt, counted: those of the pages are copied, and the rest is computed.
TEST(EnginePrefixes, ARestoredPrefixOf16KTokensIsNotComputed) {
  const auto model = open_spec("llama3-factors");
  engine::SessionOptions options;
  options.n_context = 16500;
  options.reuse_prompts = true;
  const auto n_vocab = static_cast<int32_t>(model->description().n_vocab);
  std::vector<int32_t> document(16400);
  for (size_t i = 0; i < document.size(); ++i) document[i] = static_cast<int32_t>(i * i % static_cast<size_t>(n_vocab));
  const auto one = unwrap(Session::open(model, options));
  ask(one.get(), document, 1);
  std::vector<int32_t> question = document;
  question.insert(question.end(), {5, 6, 7});
  const auto two = unwrap(Session::open(model, options));
  const Asked found = ask(two.get(), question, 2);
  EXPECT_EQ(found.restored, 16384u);
  EXPECT_EQ(found.computed, 19u);
  expect_same(found, ask(one.get(), question, 2));
}

// A reservoir of two sessions under a policy. Kept pages fill it, and leave for the second session, which takes what its plan says.
TEST(EnginePrefixes, PagesLeaveWhenASessionNeedsTheirRoom) {
  engine::RuntimeOptions runtime = runtime_options();
  const auto options = options_of("snapkv");
  uint64_t bytes = 0;
  {
    const auto model = open_demo();
    bytes = engine::plan_session(*model, options).reservoir_bytes;
  }
  runtime.reservoir_bytes = 2 * bytes;
  runtime.prefix_share = 1;
  const auto model = open_demo(runtime);
  const kv::Arena& reservoir = model->runtime().reservoir();
  const auto one = unwrap(Session::open(model, options));
  EXPECT_EQ(reservoir.used(), bytes);
  for (uint64_t seed = 1; seed <= 4; ++seed) ask(one.get(), tokens_of(500, seed));
  const uint64_t page = engine::kv_format(model->description(), options.kv_type).page_bytes();
  EXPECT_GT(model->runtime().prefixes().bytes() + page, bytes) << "they fill the rest";
  EXPECT_EQ(reservoir.used(), bytes + model->runtime().prefixes().bytes());
  EXPECT_EQ(ask(one.get(), tokens_of(500, 3)).restored, (bytes / page - 7) * 64) << "behind the seven pages of the newest prompt";
  EXPECT_EQ(ask(one.get(), tokens_of(500, 1)).restored, 0u) << "the oldest has left";

  const auto two = unwrap(Session::open(model, options));
  EXPECT_EQ(model->runtime().prefixes().bytes(), 0u);
  EXPECT_EQ(reservoir.used(), 2 * bytes);
  EXPECT_EQ(one->reservoir_bytes() + two->reservoir_bytes(), 2 * bytes);
  const Asked a = ask(two.get(), tokens_of(500, 1));
  EXPECT_EQ(a.restored, 0u);
  EXPECT_EQ(reservoir.used(), 2 * bytes);
}

TEST(EnginePrefixes, TheirRoomIsBoundedWhereNobodySaysTheReservoirsSize) {
  constexpr uint64_t kMiB = uint64_t{1} << 20;
  const auto most = [](uint64_t reservoir_bytes) {
    engine::RuntimeOptions o = runtime_options(1);
    o.reservoir_bytes = reservoir_bytes;
    return unwrap(engine::Runtime::create(o))->prefixes().most_bytes();
  };
  EXPECT_EQ(most(256 * kMiB), 64 * kMiB);
  EXPECT_EQ(most(4096 * kMiB), 1024 * kMiB);
  EXPECT_LE(most(0), 512 * kMiB);
  EXPECT_GT(most(0), 0u);
}

}  // namespace
}  // namespace orrery::prefixes_test
