// "Same result, always": the logits of a sequence have the same bits, whatever threads, chunks, reuse, rewinding, forking, parking or
// saving came before. On random models of three families and several weight formats, and on the demo model, with every type of KV cache.
#include <gtest/gtest.h>

#include <fstream>
#include <optional>

#include "runtime/cpu/cpu_backend.h"
#include "runtime/engine/session/session_file.h"
#include "tests/support/engine_fixture.h"
#include "tests/support/random_blocks.h"
#include "tests/support/shared.h"

namespace orrery::session_test {
namespace {

using namespace orrery::testing;
using engine::Session;

struct Case {
  const char* name;
  const char* spec;  // null: the demo model
  TensorType type;
  KvType kv;
};

class EngineSession : public ::testing::TestWithParam<Case> {
 protected:
  std::shared_ptr<engine::LanguageModel> open(const engine::RuntimeOptions& options = runtime_options()) {
    if (GetParam().spec) return open_spec(GetParam().spec, options, {GetParam().type, false});
    return unwrap(engine::LanguageModel::open(unwrap(engine::Runtime::create(options)), source_path("samples/models/demo-q8_0.gguf"), {}));
  }
  std::unique_ptr<Session> session(const std::shared_ptr<engine::LanguageModel>& model, uint32_t chunk = 0) {
    return open_session(model, kContext, GetParam().kv, chunk);
  }
  // 150 tokens: two whole pages and a part.
  std::vector<int32_t> prompt(const std::shared_ptr<engine::LanguageModel>& model, uint64_t seed = 1, size_t n = 150) {
    Random random(seed);
    std::vector<int32_t> tokens(n);
    for (int32_t& t : tokens) t = static_cast<int32_t>(random.below(static_cast<uint64_t>(model->description().n_vocab)));
    return tokens;
  }
  static constexpr uint32_t kContext = 320;
};

// A sequence's logits after a prompt (all rows) and some greedy steps.
struct Trace {
  std::vector<float> prompt, steps;
  std::vector<int32_t> answer;
};
Trace run(Session* session, const std::vector<int32_t>& prompt, size_t n_steps) {
  Trace t;
  t.prompt.resize(prompt.size() * session->logits().size());
  unwrap(session->prefill(prompt, nullptr, t.prompt.data()));
  EXPECT_TRUE(session->sequence().has_logits());
  t.answer = greedy(session, n_steps, &t.steps);
  return t;
}
bool same(const Trace& a, const Trace& b) { return same_bits(a.prompt, b.prompt) && same_bits(a.steps, b.steps) && a.answer == b.answer; }
std::vector<float> row(const std::vector<float>& rows, size_t i, size_t n_vocab) {
  return {rows.begin() + static_cast<ptrdiff_t>(i * n_vocab), rows.begin() + static_cast<ptrdiff_t>((i + 1) * n_vocab)};
}

TEST_P(EngineSession, ThreadsAndChunksDoNotShow) {
  for (const char* path : cpu::available_paths()) {
    std::optional<Trace> first;
    for (const int32_t n_threads : {1, 2, 3, 4}) {
      const auto model = open(runtime_options(n_threads, path));
      for (const uint32_t chunk : {1u, 7u, 64u, 256u}) {
        // All chunks with one thread and with four, one chunk for each number between.
        if ((n_threads == 2 && chunk != 7) || (n_threads == 3 && chunk != 64)) continue;
        const Trace t = run(session(model, chunk).get(), prompt(model), 12);
        if (!first) first = t;
        EXPECT_TRUE(same(t, *first)) << path << ", " << n_threads << " threads, chunks of " << chunk;
      }
    }
  }
}

TEST_P(EngineSession, AReusedPrefixGivesWhatAFreshSessionGives) {
  const auto model = open();
  const std::vector<int32_t> first = prompt(model), more = prompt(model, 2, 90);
  const auto reused = session(model), fresh = session(model);
  const Trace t = run(reused.get(), first, 20);

  // The prompt, five of the generated tokens, then others.
  std::vector<int32_t> wanted = first;
  wanted.insert(wanted.end(), t.answer.begin(), t.answer.begin() + 5);
  wanted.insert(wanted.end(), more.begin(), more.end());
  if (wanted[155] == t.answer[5]) wanted[155] ^= 1;
  ASSERT_EQ(reused->sequence().reuse_prefix(wanted), 155u);
  EXPECT_EQ(reused->tokens().size(), 155u);
  const std::vector<int32_t> rest(wanted.begin() + 155, wanted.end());
  const Trace found = run(reused.get(), rest, 8);

  unwrap(fresh->prefill(first, nullptr, nullptr));
  for (size_t i = 0; i < 5; ++i) feed(fresh.get(), t.answer[i]);
  EXPECT_TRUE(same(found, run(fresh.get(), rest, 8)));
}

TEST_P(EngineSession, RewindingAndReplayingGivesTheSame) {
  const auto model = open();
  const size_t n_vocab = static_cast<size_t>(model->description().n_vocab);
  const std::vector<int32_t> tokens = prompt(model);
  const auto s = session(model);
  const Trace t = run(s.get(), tokens, 40);
  // Logits of a token that stayed, computed again by the phase that computed it before.
  for (const size_t n : {187u, 151u, 150u, 149u, 128u, 101u}) {
    unwrap(s->rewind(static_cast<uint32_t>(n)));
    EXPECT_FALSE(s->sequence().has_logits());
    unwrap(s->sequence().refresh_logits());
    ASSERT_TRUE(s->sequence().has_logits());
    const std::vector<float> expected = n > 150 ? row(t.steps, n - 151, n_vocab) : row(t.prompt, n - 1, n_vocab);
    EXPECT_TRUE(same_bits(as_vector(s->logits()), expected)) << n;
  }
  for (const uint32_t n : {100u, 64u, 0u}) {
    unwrap(s->rewind(n));
    EXPECT_EQ(s->tokens().size(), n);
    Trace again = run(s.get(), std::vector<int32_t>(tokens.begin() + n, tokens.end()), 40);
    again.prompt.insert(again.prompt.begin(), t.prompt.begin(), t.prompt.begin() + static_cast<ptrdiff_t>(n * n_vocab));
    EXPECT_TRUE(same(again, t)) << n;
  }
  EXPECT_EQ(s->rewind(s->n_computed() + 1).code(), Code::invalid_argument);
  EXPECT_EQ(s->n_computed(), 190u);
}

TEST_P(EngineSession, ForksContinueIdenticallyAndNeverTouchEachOther) {
  const auto model = open();
  const std::vector<int32_t> tokens = prompt(model);
  const auto reference = session(model);
  const Trace expected = run(reference.get(), tokens, 24);

  const auto parent = session(model);
  Trace t;
  t.prompt = expected.prompt;
  unwrap(parent->prefill(tokens, nullptr, nullptr));
  std::unique_ptr<Session> child = unwrap(parent->fork());
  EXPECT_TRUE(child->sequence().has_logits());
  EXPECT_EQ(child->sequence().shared_bytes(), child->kv_used_bytes());
  // Step by step in turns, into what was one shared page.
  for (int i = 0; i < 12; ++i) {
    for (Session* s : {parent.get(), child.get()}) feed(s, argmax(s->logits()));
    EXPECT_TRUE(same_bits(as_vector(parent->logits()), as_vector(child->logits())));
  }
  EXPECT_TRUE(same_bits(as_vector(parent->logits()), row(expected.steps, 11, parent->logits().size())));
  // The child goes elsewhere, and rewinds into the shared pages; the parent does not notice.
  unwrap(child->rewind(70));
  unwrap(child->prefill(prompt(model, 3, 100), nullptr, nullptr));
  const std::vector<int32_t> answer = greedy(parent.get(), 12, &t.steps);
  EXPECT_TRUE(same_bits(as_vector(parent->logits()), row(expected.steps, 23, parent->logits().size())));
  EXPECT_TRUE(std::equal(answer.begin(), answer.end(), expected.answer.begin() + 12));
  // Nor does the child notice that the parent goes.
  const std::vector<float> before = as_vector(child->logits());
  unwrap(parent->rewind(0));
  unwrap(parent->prefill(prompt(model, 4, 200), nullptr, nullptr));
  unwrap(child->rewind(child->n_computed()));
  child->sequence().truncate(child->n_computed() - 1);
  unwrap(child->prefill({&prompt(model, 3, 100)[99], 1}, nullptr, nullptr));
  EXPECT_TRUE(same_bits(as_vector(child->logits()), before));
}

TEST_P(EngineSession, ForksOfForksFreedInAnyOrder) {
  const auto model = open();
  Random random(7);
  struct Branch {
    std::unique_ptr<Session> session;
    std::vector<int32_t> tokens;  // prompt ids, then generated
  };
  const std::vector<int32_t> tokens = prompt(model, 5, 70);
  std::vector<Branch> branches(1);
  branches[0] = {session(model), tokens};
  unwrap(branches[0].session->prefill(tokens, nullptr, nullptr));
  while (branches.size() < 9) {
    Branch& from = branches[random.below(branches.size())];
    branches.push_back({unwrap(from.session->fork()), from.tokens});
    for (Branch& b : branches)
      if (random.below(2) == 0) {
        const int32_t token = static_cast<int32_t>(random.below(static_cast<uint64_t>(model->description().n_vocab)));
        feed(b.session.get(), token);
        b.tokens.push_back(token);
      }
  }
  const uint64_t used = model->runtime().arena().used();
  while (!branches.empty()) {
    const size_t i = random.below(branches.size());
    Branch b = std::move(branches[i]);
    branches.erase(branches.begin() + static_cast<ptrdiff_t>(i));
    EXPECT_EQ(as_vector(b.session->tokens()), b.tokens);
    feed(b.session.get(), 3);
    const auto fresh = session(model);
    unwrap(fresh->prefill(tokens, nullptr, nullptr));
    for (size_t k = tokens.size(); k < b.tokens.size(); ++k) feed(fresh.get(), b.tokens[k]);
    feed(fresh.get(), 3);
    EXPECT_TRUE(same_bits(as_vector(b.session->logits()), as_vector(fresh->logits())));
  }
  EXPECT_LT(model->runtime().arena().used(), used);
  EXPECT_EQ(unwrap(model->page_pool(GetParam().kv))->spare(), 0u);
}

// With no place for another session a fork is parked: host memory only, until there is room.
TEST_P(EngineSession, ParkedForksComeBackAsTheyWere) {
  for (const bool by_slots : {true, false}) {
    engine::RuntimeOptions options = runtime_options();
    if (by_slots) {
      options.max_sessions = 2;
    } else {
      // Exactly the model and two sessions.
      const auto probe = open(options);
      const auto one = session(probe), two = session(probe);
      options.device_budget_bytes = probe->runtime().arena().used();
    }
    SCOPED_TRACE(by_slots ? "no slot" : "no memory");
    const auto model = open(options);
    const std::vector<int32_t> tokens = prompt(model);
    auto parent = session(model);
    const Trace head = run(parent.get(), tokens, 6);
    auto second = unwrap(parent->fork()), third = unwrap(parent->fork());
    EXPECT_FALSE(second->sequence().parked());
    ASSERT_TRUE(third->sequence().parked());
    EXPECT_EQ(third->kv_used_bytes(), 0u);
    EXPECT_EQ(as_vector(third->tokens()), as_vector(parent->tokens()));

    const Status full = third->resume();
    EXPECT_EQ(full.code(), Code::out_of_device_memory) << full.message();
    EXPECT_GT(full.detail().bytes_requested, full.detail().bytes_available);
    EXPECT_TRUE(third->sequence().parked());
    EXPECT_EQ(third->fork().status().code(), Code::out_of_device_memory);

    std::vector<float> expected;
    const std::vector<int32_t> answer = greedy(parent.get(), 30, &expected);
    parent.reset();  // pages of the parent that `second` shares stay
    unwrap(third->resume());
    EXPECT_EQ(third->sequence().stage(), engine::Sequence::Stage::ready);
    std::vector<float> found;
    EXPECT_EQ(greedy(third.get(), 30, &found), answer);
    EXPECT_TRUE(same_bits(found, expected));
    found.clear();
    EXPECT_EQ(greedy(second.get(), 30, &found), answer);
    EXPECT_TRUE(same_bits(found, expected));
  }
}

std::vector<std::byte> saved(Session* session) {
  std::vector<std::byte> bytes;
  unwrap(engine::SessionFile::save(session, [&](Span<const std::byte> part) {
    bytes.insert(bytes.end(), part.begin(), part.end());
    return ok_status();
  }));
  EXPECT_EQ(unwrap(engine::SessionFile::size(session)), bytes.size());
  return bytes;
}

TEST_P(EngineSession, SavedAndLoadedItContinuesIdentically) {
  const auto model = open();
  const TempDir dir;
  const std::vector<int32_t> tokens = prompt(model);
  const auto original = session(model);
  run(original.get(), tokens, 10);
  text::Map message;
  message.set("role", text::Value::string("user"));
  message.set("content", text::Value::string("a \"quoted\" line\n\xE2\x82\xAC"));
  original->conversation().messages.push_back(text::Value::map(std::move(message)));
  const std::vector<std::byte> bytes = saved(original.get());
  unwrap(engine::SessionFile::save_to_file(original.get(), dir.file("s.orrery")));
  std::ifstream in(dir.file("s.orrery"), std::ios::binary);
  const std::string on_disk{std::istreambuf_iterator<char>(in), {}};
  ASSERT_EQ(on_disk.size(), bytes.size());
  EXPECT_EQ(std::memcmp(on_disk.data(), bytes.data(), bytes.size()), 0);

  std::vector<float> expected;
  const std::vector<int32_t> answer = greedy(original.get(), 20, &expected);
  for (const bool from_file : {false, true}) {
    const auto loaded = session(model);
    run(loaded.get(), prompt(model, 9, 80), 3);  // something to be replaced
    unwrap(from_file ? engine::SessionFile::load_from_file(loaded.get(), dir.file("s.orrery"))
                     : engine::SessionFile::load(loaded.get(), bytes, "buffer"));
    EXPECT_EQ(loaded->n_computed(), 160u);
    EXPECT_TRUE(loaded->sequence().has_logits()) << "a file has them";
    if (from_file) unwrap(loaded->sequence().refresh_logits());  // the same, computed again
    std::vector<float> found;
    EXPECT_EQ(greedy(loaded.get(), 20, &found), answer);
    EXPECT_TRUE(same_bits(found, expected));
    ASSERT_EQ(loaded->conversation().messages.size(), 1u);
    EXPECT_TRUE(loaded->conversation().messages[0].equals(original->conversation().messages[0]));
  }
  const auto empty = session(model);
  const std::vector<std::byte> nothing = saved(empty.get());
  unwrap(engine::SessionFile::load(original.get(), nothing, "buffer"));
  EXPECT_EQ(original->n_computed(), 0u);
}

constexpr Case kCases[] = {
    {"llama_f32", "llama-nemo", TensorType::f32, KvType::f32},
    {"llama_f16kv", "llama-nemo", TensorType::f16, KvType::f16},
    {"qwen3_q8_0", "qwen3", TensorType::q8_0, KvType::q8_0},
    {"qwen3_k8v4", "qwen3", TensorType::f16, KvType::k8v4},
    {"glm4_q4_0", "glm4-nobias", TensorType::q4_0, KvType::q4_0},
    {"llama_q4_k", "llama-256", TensorType::q4_k, KvType::f16},
    {"qwen35", "qwen35", TensorType::f32, KvType::f16},
    {"qwen35_flags", "qwen35-flags", TensorType::f32, KvType::q8_0},
    {"lfm2", "lfm2", TensorType::f32, KvType::f16},
    {"lfm2_taps", "lfm2-taps", TensorType::f32, KvType::q8_0},
    {"lfm2moe", "lfm2moe", TensorType::bf16, KvType::f16},
    {"nemotron", "nemotron-h", TensorType::f32, KvType::f16},
    {"nemotron_odd", "nemotron-h-odd", TensorType::f16, KvType::q8_0},
    {"gemma3", "gemma3", TensorType::f32, KvType::f16},
    {"gemma4", "gemma4", TensorType::f32, KvType::f16},
    {"gemma4_k8v4", "gemma4", TensorType::f32, KvType::k8v4},
    {"gemma4_moe", "gemma4-moe", TensorType::bf16, KvType::q8_0},
    {"glm47", "glm47", TensorType::f32, KvType::f16},
    {"glm47_f32", "glm47", TensorType::bf16, KvType::f32},
    {"deepseek2_q4_0", "deepseek2-lite", TensorType::bf16, KvType::q4_0},
    {"deepseek2_q8_0", "deepseek2-lite", TensorType::f16, KvType::q8_0},
    {"demo", nullptr, TensorType::q8_0, KvType::f16},
};
std::string test_name(const ::testing::TestParamInfo<Case>& c) { return c.param.name; }
INSTANTIATE_TEST_SUITE_P(Models, EngineSession, ::testing::ValuesIn(kCases), test_name);

// Logits belong to a length and to the tokens up to it.
TEST(EngineSessionLogits, AreForgottenWithTheTokensTheyCameFrom) {
  const auto model = open_spec("llama-plain");
  const auto s = open_session(model, 128), fresh = open_session(model, 128);
  const std::vector<int32_t> one = {1, 5, 9, 13}, other = {1, 6, 10, 14};
  unwrap(s->prefill(one, nullptr, nullptr));
  ASSERT_TRUE(s->sequence().has_logits());
  s->sequence().reuse_prefix(other);
  EXPECT_FALSE(s->sequence().has_logits());
  unwrap(s->sequence().prefill_chunk({other.data() + 1, 3}, nullptr, false, nullptr));  // a middle chunk wants none
  EXPECT_FALSE(s->sequence().has_logits());
  unwrap(s->sequence().refresh_logits());
  unwrap(fresh->prefill(other, nullptr, nullptr));
  EXPECT_TRUE(same_bits(as_vector(s->logits()), as_vector(fresh->logits())));
}

TEST(EngineSessionLimits, AStepNeedsAToken) {
  const auto model = open_spec("llama-plain");
  const auto session = open_session(model, 320, KvType::f16);
  unwrap(session->prefill(std::vector<int32_t>{1, 2, 3}, nullptr, nullptr));
  EXPECT_EQ(session->decode().code(), Code::internal);
  session->push_generated(4);
  unwrap(session->decode());
  EXPECT_EQ(session->n_computed(), 4u);
}

TEST(EngineSessionLimits, TheContextEndsWhereItSays) {
  const auto model = open_spec("llama-plain");
  const auto s = open_session(model, 100);
  const std::vector<int32_t> tokens(101, 5);
  const Status full = s->prefill(tokens, nullptr, nullptr);
  EXPECT_EQ(full.code(), Code::context_full);
  EXPECT_EQ(full.detail().bytes_requested, 101u);
  EXPECT_EQ(full.detail().bytes_available, 100u);
  EXPECT_EQ(s->n_computed(), 0u);
  unwrap(s->prefill({tokens.data(), 99}, nullptr, nullptr));
  feed(s.get(), 7);
  EXPECT_EQ(s->n_computed(), 100u);
  EXPECT_EQ(s->prefill({tokens.data(), 1}, nullptr, nullptr).code(), Code::context_full);
}

// Files from strangers -----------------------------------------------------------------------------------

TEST(EngineSessionFile, DamageIsFoundAndTheSessionStaysAsItWas) {
  const auto model = open_spec("llama-nemo");
  const auto original = open_session(model, 128, KvType::f16), victim = open_session(model, 128, KvType::f16);
  unwrap(original->prefill(std::vector<int32_t>(70, 4), nullptr, nullptr));
  unwrap(victim->prefill(std::vector<int32_t>{1, 2, 3}, nullptr, nullptr));
  const std::vector<int32_t> held = as_vector(victim->tokens());
  const std::vector<float> logits = as_vector(victim->logits());
  const std::vector<std::byte> bytes = saved(original.get());
  Random random(11);
  for (int i = 0; i < 300; ++i) {
    std::vector<std::byte> bad = bytes;
    // The header and its neighbours byte by byte, then anywhere.
    const size_t at = i < 100 ? static_cast<size_t>(i) : random.below(bad.size());
    bad[at] ^= static_cast<std::byte>(1 + random.below(255));
    const Status status = engine::SessionFile::load(victim.get(), bad, "bad.orrery");
    ASSERT_TRUE(status.code() == Code::bad_session || status.code() == Code::context_full) << "byte " << at;
    EXPECT_EQ(std::string(status.message()).rfind("bad.orrery: ", 0), 0u) << status.message();
  }
  for (size_t n = 0; n < bytes.size(); n += n < 600 ? 1 : 997)
    ASSERT_EQ(engine::SessionFile::load(victim.get(), {bytes.data(), n}, "short").code(), Code::bad_session) << n;
  std::vector<std::byte> longer = bytes;
  longer.push_back(std::byte{0});
  EXPECT_EQ(engine::SessionFile::load(victim.get(), longer, "long").code(), Code::bad_session);
  EXPECT_EQ(as_vector(victim->tokens()), held);
  EXPECT_TRUE(victim->sequence().has_logits());
  EXPECT_TRUE(same_bits(as_vector(victim->logits()), logits));
}

TEST(EngineSessionFile, BelongsToItsModelItsKvTypeAndAContextThatHoldsIt) {
  const auto model = open_spec("llama-nemo");
  const auto s = open_session(model, 256, KvType::f16);
  unwrap(s->prefill(std::vector<int32_t>(200, 4), nullptr, nullptr));
  const std::vector<std::byte> bytes = saved(s.get());
  const auto expect = [&](Session* other, Code code, const char* words) {
    const Status status = engine::SessionFile::load(other, bytes, "s");
    EXPECT_EQ(status.code(), code);
    EXPECT_NE(std::string(status.message()).find(words), std::string::npos) << status.message();
  };
  expect(open_session(open_spec("llama-plain"), 256, KvType::f16).get(), Code::bad_session, "another model");
  expect(open_session(open_spec("llama-nemo", runtime_options(), {TensorType::f16}), 256, KvType::f16).get(), Code::bad_session,
         "another model");
  expect(open_session(model, 256, KvType::q8_0).get(), Code::bad_session, "another type of KV cache");
  expect(open_session(model, 199, KvType::f16).get(), Code::context_full, "200 tokens");
  unwrap(engine::SessionFile::load(open_session(model, 200, KvType::f16).get(), bytes, "s"));
  // The number of the type, not its bytes, is what a file is refused by.
  const auto mixed = open_session(model, 256, KvType::k8v4);
  unwrap(mixed->prefill(std::vector<int32_t>(200, 4), nullptr, nullptr));
  const std::vector<std::byte> of_mixed = saved(mixed.get());
  for (const KvType other : {KvType::f32, KvType::f16, KvType::q8_0, KvType::q4_0}) {
    EXPECT_EQ(engine::SessionFile::load(open_session(model, 256, other).get(), of_mixed, "s").code(), Code::bad_session)
        << kv_type_name(other);
    const auto of_other = open_session(model, 256, other);
    unwrap(of_other->prefill(std::vector<int32_t>(200, 4), nullptr, nullptr));
    EXPECT_EQ(engine::SessionFile::load(mixed.get(), saved(of_other.get()), "s").code(), Code::bad_session) << kv_type_name(other);
  }
  EXPECT_EQ(saved(mixed.get()), of_mixed);
}

TEST(EngineSessionFile, LongropesFactorsDependOnTheContext) {
  const auto model = open_spec("phi3-longrope");
  const auto small = open_session(model, 128), large = open_session(model, 512);
  unwrap(small->prefill(std::vector<int32_t>(20, 4), nullptr, nullptr));
  const Status status = engine::SessionFile::load(large.get(), saved(small.get()), "s");
  EXPECT_EQ(status.code(), Code::bad_session);
  EXPECT_NE(std::string(status.message()).find("rotary scaling or context size"), std::string::npos);
}

}  // namespace
}  // namespace orrery::session_test
