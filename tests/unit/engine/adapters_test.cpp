// LoRA adapters of sessions. An F32 model with an adapter gives the logits of the model whose matrices have it merged; the bits depend on no
// thread, chunk, guess or session beside it; KV made with other adapters is never used.
#include <gtest/gtest.h>

#include "runtime/engine/session/session_file.h"
#include "runtime/gguf/dequantize.h"
#include "runtime/gguf/quantize.h"
#include "tests/support/adapters.h"

namespace orrery::adapters_test {
namespace {

using namespace testing;
using engine::Adapters;
using engine::LanguageModel;
using engine::Session;
using engine::SessionOptions;
using Model = std::shared_ptr<LanguageModel>;

constexpr const char* kDense = "llama-plain";

SessionOptions wishes(const Adapters& adapters, uint32_t chunk = 0) {
  SessionOptions options;
  options.n_context = 256;
  options.kv_type = KvType::f32;
  options.chunk_tokens = chunk;
  options.adapters = adapters;
  return options;
}
std::unique_ptr<Session> open(const Model& model, const Adapters& adapters, uint32_t chunk = 0) {
  return unwrap(Session::open(model, wishes(adapters, chunk)));
}

std::vector<int32_t> prompt_of(const Model& model, size_t n, uint64_t seed = 5) {
  Random random(seed);
  std::vector<int32_t> tokens(n);
  for (int32_t& t : tokens) t = static_cast<int32_t>(random.below(static_cast<uint64_t>(model->description().n_vocab)));
  return tokens;
}

// The logits of all prompt tokens, and after each of these tokens as generated ones.
std::vector<float> logits_of(Session* session, const std::vector<int32_t>& prompt, const std::vector<int32_t>& answer) {
  const auto n_vocab = static_cast<size_t>(session->model().description().n_vocab);
  std::vector<float> out(prompt.size() * n_vocab);
  unwrap(session->prefill(prompt, nullptr, out.data()));
  for (const int32_t token : answer) {
    feed(session, token);
    out.insert(out.end(), session->logits().begin(), session->logits().end());
  }
  return out;
}

// Merged by a definition in double.
void expect_as_merged(const std::string& spec_name, float scale, const std::vector<AdapterSpec>& specs) {
  SCOPED_TRACE(spec_name);
  const std::vector<std::byte> bytes = named_model_gguf(spec_name);
  std::vector<std::byte> merged = bytes;
  const Model model = open_bytes(bytes);
  std::vector<std::pair<std::shared_ptr<const engine::LoadedAdapter>, float>> list;
  for (const AdapterSpec& spec : specs) {
    ASSERT_FALSE(adapted_matrices(bytes, spec).empty());
    merge_adapter(&merged, spec, scale);
    list.emplace_back(open_adapter(model, adapter_gguf(bytes, spec)), scale);
  }
  const auto prompt = prompt_of(model, 40), answer = prompt_of(model, 6, 9);
  const Model whole = open_bytes(merged);
  const auto expected = logits_of(open(whole, nullptr).get(), prompt, answer);
  const auto found = logits_of(open(model, adapters_of(list), 16).get(), prompt, answer);
  const auto base = logits_of(open(model, nullptr).get(), prompt, answer);
  Deviation exact, without;
  exact.add(found.data(), expected.data(), expected.size());
  without.add(base.data(), expected.data(), expected.size());
  EXPECT_LT(exact.rms(), 2e-5) << "without it " << without.rms();
  EXPECT_GT(without.rms(), 0.02);
}

TEST(EngineAdapters, AsTheMergedModel) {
  for (const char* name : {kDense, "llama-bias", "qwen3moe", "qwen35", "lfm2", "phi3", "gemma3", "nemotron-h"})
    expect_as_merged(name, 0.5f, {AdapterSpec()});
}
// Latent attention, layers' own embeddings, shared experts, dense next to experts, fused matrices.
TEST(EngineAdapters, AsTheMergedModelInEveryBlock) {
  for (const char* name : {"deepseek2-lite", "glm47", "gemma4", "gemma4-moe", "qwen35moe", "qwen3next", "gpt-oss", "lfm2moe"})
    expect_as_merged(name, 1.0f, {AdapterSpec()});
}
TEST(EngineAdapters, SeveralAtOnceAndRanksOfAllSizes) {
  AdapterSpec first, second, third;
  second.seed = 2, second.rank = 1, second.alpha = 1.0f;
  second.takes = [](const std::string& name) { return name.find("attn") != std::string::npos; };
  third.seed = 3, third.rank = 37, third.alpha = 5.0f;
  third.takes = [](const std::string& name) { return name.find("ffn_down") != std::string::npos || name == "output.weight"; };
  expect_as_merged(kDense, 0.7f, {first, second, third});
}

// A file's values count, whatever they are stored as: the same bits as those values in F32.
TEST(EngineAdapters, AdaptersOfEveryType) {
  const std::vector<std::byte> f32 = named_model_gguf(kDense);
  const Model model = open_spec(kDense, runtime_options(), {TensorType::q8_0, false});
  const auto prompt = prompt_of(model, 20);
  AdapterSpec spec;
  spec.rank = 32;  // a block of Q8_0
  const auto of = [&](TensorType type, bool dequantized) {
    GgufBuilder out = adapter_keys(f32, spec.alpha);
    for (const AdaptedMatrix& m : adapted_matrices(f32, spec))
      for (const bool b : {false, true}) {
        const uint64_t n = (b ? m.n_out : m.n_in) * 32;
        std::vector<float> values = adapter_values(spec, m.name, b, n);
        Bytes bytes(row_bytes(type, n));
        gguf::quantize_row(type, values.data(), bytes.data(), n);
        gguf::dequantize_row(type, bytes.data(), values.data(), n);
        const std::vector<uint64_t> dims = b ? std::vector<uint64_t>{32, m.n_out} : std::vector<uint64_t>{m.n_in, 32};
        out.tensor(m.name + (b ? ".lora_b" : ".lora_a"), dequantized ? TensorType::f32 : type, dims,
                   dequantized ? as_bytes(values) : bytes);
      }
    return logits_of(open(model, adapters_of({{open_adapter(model, out.build()), 1.0f}})).get(), prompt, {3, 4});
  };
  for (const TensorType type : {TensorType::f16, TensorType::bf16, TensorType::q8_0})
    EXPECT_TRUE(same_bits(of(type, false), of(type, true))) << type_traits(type)->name;
}

// A model with repacked matrices, whose arena holds adapters next to them.
struct Dense {
  const std::vector<std::byte> bytes = named_model_gguf(kDense);
  const Model model = open_spec(kDense, runtime_options(), {TensorType::q8_0, false});
  const std::shared_ptr<const engine::LoadedAdapter> one = open_adapter(model, adapter_gguf(bytes));
  const std::shared_ptr<const engine::LoadedAdapter> other = open_adapter(model, adapter_gguf(bytes, second()));
  const std::vector<int32_t> prompt = prompt_of(model, 90), answer = prompt_of(model, 12, 3);
  static AdapterSpec second() {
    AdapterSpec spec;
    spec.seed = 2, spec.rank = 7;
    return spec;
  }
};

TEST(EngineAdapters, BitsDoNotDependOnThreadsAndChunks) {
  const Dense d;
  const auto expected = logits_of(open(d.model, adapters_of({{d.one, 0.5f}, {d.other, -1.0f}})).get(), d.prompt, d.answer);
  for (const int32_t n_threads : {1, 3})
    for (const uint32_t chunk : {1u, 7u, 64u}) {
      const Model model = open_spec(kDense, runtime_options(n_threads), {TensorType::q8_0, false});
      const auto one = open_adapter(model, adapter_gguf(d.bytes)), other = open_adapter(model, adapter_gguf(d.bytes, Dense::second()));
      const auto found = logits_of(open(model, adapters_of({{one, 0.5f}, {other, -1.0f}}), chunk).get(), d.prompt, d.answer);
      EXPECT_TRUE(same_bits(found, expected)) << n_threads << " threads, chunks of " << chunk;
    }
}

// A scale of 0 is no adapter, and sessions without adapters do not notice those of others.
TEST(EngineAdapters, NoneChangesNothing) {
  const Dense d;
  const Model bare = open_spec(kDense, runtime_options(), {TensorType::q8_0, false});
  const auto expected = logits_of(open(bare, nullptr).get(), d.prompt, d.answer);
  EXPECT_FALSE(adapters_of({{d.one, 0.0f}}));
  EXPECT_TRUE(same_bits(logits_of(open(d.model, nullptr).get(), d.prompt, d.answer), expected));
  EXPECT_FALSE(same_bits(logits_of(open(d.model, adapters_of({{d.one, 1.0f}})).get(), d.prompt, d.answer), expected));
}

TEST(EngineAdapters, SessionsWithDifferentOnesShareAStep) {
  const Dense d;
  const Adapters one = adapters_of({{d.one, 1.0f}}), doubled = adapters_of({{d.one, 2.0f}}), other = adapters_of({{d.other, 1.0f}});
  const Adapters both = adapters_of({{d.one, 2.0f}, {d.other, 1.0f}}), again = adapters_of({{d.one, 1.0f}});
  for (const std::vector<Adapters>& sets :
       {std::vector<Adapters>{nullptr, one, other, again, both, nullptr}, {one, other}, {one, doubled}, {doubled, both}, {one, nullptr}}) {
    std::vector<std::unique_ptr<Session>> together, alone;
    for (size_t i = 0; i < sets.size(); ++i)
      for (auto* sessions : {&together, &alone}) {
        sessions->push_back(open(d.model, sets[i]));
        unwrap(sessions->back()->prefill(prompt_of(d.model, 30 + i, i), nullptr, nullptr));
      }
    const auto passes = [&] {
      const Turn turn = d.model->runtime().take_turn();
      return d.model->decode_counts(turn).passes;
    };
    for (int step = 0; step < 5; ++step) {
      std::vector<engine::Decoder::Call> calls(sets.size());
      for (size_t i = 0; i < sets.size(); ++i) {
        const int32_t token = argmax(alone[i]->logits());
        together[i]->push_generated(token);
        calls[i].decoder = &together[i]->decoder();
        ASSERT_TRUE(together[i]->decoder().decodes_together());
        feed(alone[i].get(), token);
      }
      const uint64_t before = passes();
      engine::Decoder::decode_together(calls);
      EXPECT_EQ(passes(), before + 1);  // the base products are those of all
      for (size_t i = 0; i < sets.size(); ++i) {
        ASSERT_TRUE(calls[i].status.ok()) << calls[i].status.message();
        EXPECT_TRUE(same_bits(as_vector(together[i]->logits()), as_vector(alone[i]->logits()))) << step << ", " << i;
      }
    }
  }
}

TEST(EngineAdapters, GuessesAreExact) {
  const Dense d;
  SessionOptions options = wishes(adapters_of({{d.one, 1.0f}, {d.other, 0.3f}}));
  const auto off = unwrap(Session::open(d.model, options));
  options.speculate = engine::Speculate::ngram;
  options.guess_costs.emplace().fill(0.01);
  const auto guessing = unwrap(Session::open(d.model, options));
  std::vector<int32_t> tokens;  // a text that repeats itself
  for (int i = 0; i < 9; ++i) tokens.insert(tokens.end(), d.answer.begin(), d.answer.end());
  for (auto* session : {off.get(), guessing.get()}) unwrap(session->prefill({tokens.data(), 40}, nullptr, nullptr));
  expect_same_rows(off.get(), guessing.get(), tokens, 40);
  EXPECT_GT(guessing->stats().accepted_tokens, 20u);
}

// Under a policy the resident KV is selected by queries of the adapted model.
TEST(EngineAdapters, ForksRewindsAndPolicies) {
  const Dense d;
  for (const char* policy : {"full", "snapkv"}) {
    SessionOptions options = wishes(adapters_of({{d.one, 1.0f}}), 16);
    options.policy = policy;
    if (options.compressed()) options.kv_share = 0.8;
    const auto session = unwrap(Session::open(d.model, options));
    const auto whole = logits_of(session.get(), d.prompt, d.answer);
    const auto fork = unwrap(session->fork());
    EXPECT_EQ(fork->options().adapters, session->options().adapters);
    feed(session.get(), 5), feed(fork.get(), 5);
    EXPECT_TRUE(same_bits(as_vector(session->logits()), as_vector(fork->logits()))) << policy;
    unwrap(fork->rewind(30));
    const auto n_vocab = static_cast<size_t>(d.model->description().n_vocab);
    unwrap(fork->prefill({d.prompt.data() + 30, d.prompt.size() - 30}, nullptr, nullptr));
    EXPECT_TRUE(same_bits(as_vector(fork->logits()), {whole.begin() + static_cast<ptrdiff_t>((d.prompt.size() - 1) * n_vocab),
                                                      whole.begin() + static_cast<ptrdiff_t>(d.prompt.size() * n_vocab)}))
        << policy;
  }
}

// A state of recurrent layers is computed again with the adapters, too.
TEST(EngineAdapters, RecurrentStatesAreComputedAgain) {
  const std::vector<std::byte> bytes = named_model_gguf("qwen35");
  const Model model = open_bytes(bytes);
  const Adapters set = adapters_of({{open_adapter(model, adapter_gguf(bytes)), 1.0f}});
  const auto prompt = prompt_of(model, 70), answer = prompt_of(model, 9, 3);
  const auto session = open(model, set), again = open(model, set);
  const auto expected = logits_of(session.get(), prompt, answer);
  unwrap(again->prefill(prompt, nullptr, nullptr));
  for (size_t i = 0; i < 4; ++i) feed(again.get(), answer[i]);
  unwrap(again->rewind(static_cast<uint32_t>(prompt.size()) + 2));
  for (size_t i = 2; i < answer.size(); ++i) feed(again.get(), answer[i]);
  EXPECT_TRUE(same_bits(as_vector(session->logits()), as_vector(again->logits())));
}

TEST(EngineAdapters, ASwapDropsTheTokens) {
  const Dense d;
  const Adapters one = adapters_of({{d.one, 1.0f}}), other = adapters_of({{d.other, 1.0f}});
  const auto expected = logits_of(open(d.model, other).get(), d.prompt, d.answer);
  const auto session = open(d.model, one);
  unwrap(session->prefill(d.prompt, nullptr, nullptr));
  unwrap(session->set_adapters(adapters_of({{d.one, 1.0f}, {d.other, 0.0f}})));  // the same
  EXPECT_EQ(session->n_computed(), d.prompt.size());
  for (const Adapters& next : {adapters_of({{d.one, 0.5f}}), adapters_of({{d.one, 0.5f}, {d.other, 1.0f}}),
                               adapters_of({{d.other, 1.0f}, {d.one, 0.5f}}), Adapters(), other}) {
    unwrap(session->set_adapters(next));
    EXPECT_EQ(session->n_computed(), 0u);
    EXPECT_EQ(session->tokens().size(), 0u);
    EXPECT_FALSE(session->sequence().has_logits());
    if (next != other) unwrap(session->prefill({d.prompt.data(), 70}, nullptr, nullptr));
  }
  EXPECT_TRUE(same_bits(logits_of(session.get(), d.prompt, d.answer), expected));
}

TEST(EngineAdapters, KeptPromptsBelongToTheirAdapters) {
  const Dense d;
  const auto options = [&](const Adapters& set) {
    SessionOptions o = wishes(set);
    o.reuse_prompts = true;
    return o;
  };
  const auto restored = [&](const Adapters& set) {
    const auto session = unwrap(Session::open(d.model, options(set)));
    unwrap(session->find_prefix(d.prompt, nullptr));
    return session->n_computed();
  };
  const auto keep = [&](const Adapters& set) {
    const auto session = unwrap(Session::open(d.model, options(set)));
    unwrap(session->prefill(d.prompt, nullptr, nullptr));
    session->keep_prefix();
  };
  keep(nullptr);
  EXPECT_EQ(restored(nullptr), 64u);
  EXPECT_EQ(restored(adapters_of({{d.one, 1.0f}})), 0u);
  keep(adapters_of({{d.one, 1.0f}}));
  EXPECT_EQ(restored(adapters_of({{d.one, 1.0f}})), 64u);
  EXPECT_EQ(restored(adapters_of({{d.one, 0.5f}})), 0u);
  EXPECT_EQ(restored(adapters_of({{d.other, 1.0f}})), 0u);
  EXPECT_EQ(restored(nullptr), 64u);
}

TEST(EngineAdapters, SavedFilesBelongToTheirAdapters) {
  const Dense d;
  const TempDir dir;
  const auto save = [&](const Adapters& set, const std::string& name, size_t n) {
    const auto session = open(d.model, set);
    if (n > 0) unwrap(session->prefill({d.prompt.data(), n}, nullptr, nullptr));
    unwrap(engine::SessionFile::save_to_file(session.get(), dir.file(name), nullptr));
  };
  save(nullptr, "bare", 50), save(adapters_of({{d.one, 1.0f}}), "one", 50), save(nullptr, "empty", 0);
  const auto load = [&](const Adapters& set, const std::string& name) {
    const auto session = open(d.model, set);
    const Status status = engine::SessionFile::load_from_file(session.get(), dir.file(name), 64u << 20, nullptr);
    if (status.ok()) return std::string();
    EXPECT_EQ(status.code(), Code::bad_session);
    return std::string(status.message());
  };
  const auto has = [](const std::string& text, const char* part) { return text.find(part) != std::string::npos; };
  // The adapter is known by its content: another handle serves as well.
  EXPECT_EQ(load(adapters_of({{open_adapter(d.model, adapter_gguf(d.bytes)), 1.0f}}), "one"), "");
  EXPECT_EQ(load(nullptr, "bare"), "");
  EXPECT_EQ(load(adapters_of({{d.one, 1.0f}}), "empty"), "");
  EXPECT_TRUE(has(load(nullptr, "one"), "saved with adapters, and this session has none"));
  EXPECT_TRUE(has(load(adapters_of({{d.one, 1.0f}}), "bare"), "saved without adapters"));
  EXPECT_TRUE(has(load(adapters_of({{d.one, 1.5f}}), "one"), "other scales"));
  EXPECT_TRUE(has(load(adapters_of({{d.other, 1.0f}}), "one"), "other adapters"));
}

TEST(EngineAdapters, PlansHaveTheirMemory) {
  const std::vector<std::byte> bytes = named_model_gguf(kDense);
  const TempDir dir;
  const std::string path = dir.write("model.gguf", bytes), lora = dir.write("lora.gguf", adapter_gguf(bytes));
  const engine::RuntimeOptions runtime_wishes = runtime_options();
  const Model model = unwrap(LanguageModel::open(unwrap(engine::Runtime::create(runtime_wishes)), path, {}));
  kv::Arena& arena = model->runtime().arena();
  const uint64_t before = arena.used();
  const auto adapter = unwrap(engine::LoadedAdapter::open(model, *engine::ModelSource::of_path(lora)));
  const uint64_t taken = arena.used() - before;
  EXPECT_GT(taken, 0u);
  const auto planned = [&](const Adapters& set) { return unwrap(engine::plan_file(path, runtime_wishes, {}, wishes(set))).device_bytes; };
  const uint64_t without = planned(nullptr);
  EXPECT_EQ(planned(adapters_of({{adapter, 1.0f}})), without + taken);
  EXPECT_EQ(planned(adapters_of({{adapter, 1.0f}, {adapter, 2.0f}})), without + taken);  // open once
  const Adapters source =
      unwrap(engine::AdapterSet::make(std::vector<engine::AdapterChoice>{{nullptr, engine::ModelSource::of_path(lora), 1.0f}}));
  EXPECT_EQ(planned(source), without + taken);
  // Sessions and swaps take nothing more than without adapters, and the whole is what the plan says.
  const auto session = open(model, nullptr);
  EXPECT_EQ(arena.used(), without + taken);
  unwrap(session->set_adapters(adapters_of({{adapter, 1.0f}})));
  unwrap(session->prefill(prompt_of(model, 40), nullptr, nullptr));
  EXPECT_EQ(arena.used(), without + taken);
  const auto refused = Session::open(model, wishes(source));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(std::string(refused.status().detail().option), "adapters");
}

TEST(EngineAdapters, OfAnotherModelOrTooMany) {
  const Dense d;
  const Model model = open_bytes(d.bytes);
  const auto expect_refused = [&](const Status& status) {
    EXPECT_EQ(status.code(), Code::invalid_argument) << status.message();
    EXPECT_EQ(std::string(status.detail().option), "adapters");
  };
  const auto session = open(model, nullptr);
  unwrap(session->prefill(d.prompt, nullptr, nullptr));
  expect_refused(session->set_adapters(adapters_of({{d.one, 1.0f}})));
  EXPECT_EQ(session->n_computed(), d.prompt.size());
  expect_refused(Session::open(model, wishes(adapters_of({{d.one, 1.0f}}))).take_status());
  expect_refused(engine::AdapterSet::make(std::vector<engine::AdapterChoice>(65, {d.one, nullptr, 1.0f})).take_status());
  for (const float scale : {INFINITY, NAN})
    expect_refused(engine::AdapterSet::make(std::vector<engine::AdapterChoice>{{d.one, nullptr, scale}}).take_status());
}

TEST(EngineAdapters, ArenaWithoutRoom) {
  const std::vector<std::byte> bytes = named_model_gguf(kDense);
  const Model model = open_bytes(bytes, runtime_options(2, test_cpu_path(), 1u << 20));
  AdapterSpec spec;
  spec.rank = 96;
  const std::vector<std::byte> file = adapter_gguf(bytes, spec);
  engine::ModelSource source;
  source.memory = file, source.from_memory = true;
  const auto adapter = engine::LoadedAdapter::open(model, source);
  ASSERT_FALSE(adapter.ok());
  EXPECT_EQ(adapter.status().code(), Code::out_of_device_memory);
}

// Hostile files ------------------------------------------------------------------------------------------

// The keys of an adapter, one of them with another value or without any.
GgufBuilder keys_but(const std::string& key, const char* value) {
  GgufBuilder b;
  for (const auto& [name, text] :
       {std::pair{"general.type", "adapter"}, std::pair{"adapter.type", "lora"}, std::pair{"general.architecture", "llama"}})
    if (name != key) b.key(name, text);
    else if (value) b.key(name, value);
  return b;
}
Bytes pair_file(GgufBuilder b, const std::string& name, std::vector<uint64_t> a, std::vector<uint64_t> of_b,
                TensorType type = TensorType::f32) {
  b.tensor(name + ".lora_a", type, std::move(a));
  b.tensor(name + ".lora_b", type, std::move(of_b));
  return b.build();
}

TEST(EngineAdapters, BadFiles) {
  const std::vector<std::byte> model_bytes = named_model_gguf(kDense);
  const Model model = open_bytes(model_bytes);
  const gguf::File file = unwrap(gguf::File::parse(model_bytes, "m"));
  const gguf::Tensor& q = *file.find_tensor("blk.0.attn_q.weight");
  const uint64_t in = q.dims[0], out = q.dims[1];
  const std::string name = "blk.0.attn_q.weight";
  const auto plain = [&] { return keys_but("", nullptr); };
  struct Row {
    const char* what;
    Bytes bytes;
    Code code;
    std::vector<std::string> parts;
  };
  const std::vector<uint64_t> a = {in, 4}, b = {4, out};
  const std::vector<Row> rows = {
      {"a model", model_bytes, Code::bad_model, {"general.type", "expected 'adapter'"}},
      {"no type", pair_file(keys_but("general.type", nullptr), name, a, b), Code::bad_model, {"general.type"}},
      {"a control vector", pair_file(keys_but("adapter.type", "cvec"), name, a, b), Code::unsupported, {"adapter.type", "'cvec'"}},
      {"another architecture", pair_file(keys_but("general.architecture", "qwen2"), name, a, b), Code::bad_model, {"'qwen2'", "'llama'"}},
      {"alpha is a text", pair_file(plain().key("adapter.lora.alpha", "x"), name, a, b), Code::bad_model, {"adapter.lora.alpha"}},
      {"alpha is infinite", pair_file(plain().key("adapter.lora.alpha", INFINITY), name, a, b), Code::bad_model, {"adapter.lora.alpha"}},
      {"invocation tokens",
       pair_file(plain().array("adapter.alora.invocation_tokens", std::vector<uint32_t>{1}), name, a, b),
       Code::unsupported,
       {"adapter.alora.invocation_tokens"}},
      {"no tensors", plain().build(), Code::bad_model, {"no tensors"}},
      {"a norm",
       plain().tensor("blk.0.attn_norm.weight", TensorType::f32, {in}).build(),
       Code::unsupported,
       {"'blk.0.attn_norm.weight'", ".lora_a"}},
      {"no name", plain().tensor(".lora_a", TensorType::f32, {in}).build(), Code::unsupported, {"'.lora_a'"}},
      {"a half", plain().tensor(name + ".lora_a", TensorType::f32, a).build(), Code::bad_model, {name + ".lora_b' is missing"}},
      {"the other half", plain().tensor(name + ".lora_b", TensorType::f32, b).build(), Code::bad_model, {name + ".lora_a' is missing"}},
      {"unknown", pair_file(plain(), "blk.99.attn_q.weight", a, b), Code::bad_model, {"'blk.99.attn_q.weight'", "has not"}},
      {"embedding", pair_file(plain(), "token_embd.weight", a, b), Code::unsupported, {"'token_embd.weight'"}},
      {"pair of a norm", pair_file(plain(), "output_norm.weight", {in, 4}, {4, 1}), Code::unsupported, {"'output_norm.weight'"}},
      {"input", pair_file(plain(), name, {in + 32, 4}, b), Code::bad_model, {name + ".lora_a' has shape (4, " + std::to_string(in + 32)}},
      {"output", pair_file(plain(), name, a, {4, out + 1}), Code::bad_model, {name + ".lora_b' has shape"}},
      {"ranks differ", pair_file(plain(), name, a, {5, out}), Code::bad_model, {name + ".lora_b' has shape"}},
      {"not transposed", pair_file(plain(), name, {4, in}, {out, 4}), Code::bad_model, {name + ".lora_a' has shape"}},
      {"rank", pair_file(plain(), name, {in, 4096}, {4096, out}), Code::bad_model, {"rank of 4096"}},
      {"three dimensions", pair_file(plain(), name, {in, 4, 2}, b), Code::bad_model, {"3 dimensions"}},
      {"type", pair_file(plain(), name, {in, 32}, {32, out}, TensorType::q4_0), Code::unsupported_quantization, {"Q4_0", name}},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.what);
    const std::vector<std::byte> bytes(row.bytes.begin(), row.bytes.end());
    engine::ModelSource source;
    source.memory = bytes, source.from_memory = true;
    const auto found = engine::LoadedAdapter::open(model, source);
    ASSERT_FALSE(found.ok());
    const std::string message = found.status().message();
    EXPECT_EQ(found.status().code(), row.code) << message;
    EXPECT_EQ(message.find("memory: "), 0u) << message;
    for (const std::string& part : row.parts) EXPECT_NE(message.find(part), std::string::npos) << message << "\nlacks: " << part;
    // The plan refuses the same.
    const gguf::File header = unwrap(gguf::File::parse(bytes, "memory"));
    const auto planned = model::adapter_bytes(header, file, model->description());
    ASSERT_FALSE(planned.ok());
    EXPECT_EQ(std::string(planned.status().message()), message);
  }
  engine::ModelSource source;
  const std::vector<std::byte> good = pair_file(plain(), name, a, b);
  source.memory = good, source.from_memory = true;
  EXPECT_TRUE(engine::LoadedAdapter::open(model, source).ok());  // without alpha the factor is 1
}

// Matrices of experts and of heads are refused by name.
TEST(EngineAdapters, MatricesInOneTensor) {
  for (const auto& [spec, name] : {std::pair{"qwen3moe", "blk.0.ffn_up_exps.weight"}, std::pair{"deepseek2-lite", "blk.0.attn_k_b.weight"},
                                   std::pair{"llama3-factors", "rope_freqs.weight"}, std::pair{"gemma4", "per_layer_token_embd.weight"}}) {
    SCOPED_TRACE(name);
    const std::vector<std::byte> bytes = named_model_gguf(spec);
    const Model model = open_bytes(bytes);
    GgufBuilder b = adapter_keys(bytes, 1.0f);
    const std::vector<std::byte> file = pair_file(std::move(b), name, {8, 4}, {4, 8});
    engine::ModelSource source;
    source.memory = file, source.from_memory = true;
    const auto found = engine::LoadedAdapter::open(model, source);
    ASSERT_FALSE(found.ok());
    EXPECT_EQ(found.status().code(), Code::unsupported);
    EXPECT_NE(std::string(found.status().message()).find(name), std::string::npos) << found.status().message();
  }
}

}  // namespace
}  // namespace orrery::adapters_test
