// Tests whole models on the CUDA backend against the CPU backend's plain kernels.
//
// The two backends sum floats in different orders. Both round activations to int8 in the same way, but from values that differ in their
// last bits. The bounds allow for both. If the best token leads by more than the bound, both backends must choose it.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "runtime/engine/session/session_file.h"
#include "tests/gpu/on_cuda.h"
#include "tests/support/adapters.h"
#include "tests/support/shared.h"
#include "tests/support/engine_fixture.h"
#include "tests/support/random_blocks.h"
#ifdef ORRERY_EMULATED
#include "tests/emulation/cuda/device.h"
#include "tests/emulation/cuda/dlfcn.h"
#endif

namespace orrery::model_test {
namespace {

using namespace testing;
using engine::Session;

engine::RuntimeOptions on_cpu() { return runtime_options(2, "plain"); }

std::vector<int32_t> prompt_of(const engine::LanguageModel& model, size_t n, uint64_t seed) {
  Random random(seed);
  std::vector<int32_t> tokens(n);
  for (int32_t& t : tokens) t = static_cast<int32_t>(random.below(static_cast<uint64_t>(model.description().n_vocab)));
  return tokens;
}

// Logits after a prompt, and after each token of `forced` or each greedy token of the session.
std::vector<float> trace_of(Session* session, const std::vector<int32_t>& prompt, size_t n, std::vector<int32_t>* tokens) {
  unwrap(session->prefill(prompt, nullptr, nullptr));
  std::vector<float> trace = as_vector(session->logits());
  const bool forced = !tokens->empty();
  for (size_t i = 0; i < n; ++i) {
    if (!forced) tokens->push_back(argmax(session->logits()));
    feed(session, (*tokens)[i]);
    trace.insert(trace.end(), session->logits().begin(), session->logits().end());
  }
  return trace;
}

void expect_alike(const std::vector<float>& got, const std::vector<float>& expected, size_t n_vocab, double bound) {
  ASSERT_EQ(got.size(), expected.size());
  Deviation deviation;
  deviation.add(got.data(), expected.data(), got.size());
  EXPECT_LE(deviation.relative(), bound);
  for (size_t at = 0; at < got.size(); at += n_vocab) {
    std::vector<float> sorted(expected.begin() + static_cast<ptrdiff_t>(at), expected.begin() + static_cast<ptrdiff_t>(at + n_vocab));
    std::partial_sort(sorted.begin(), sorted.begin() + 2, sorted.end(), std::greater<>());
    if (static_cast<double>(sorted[0] - sorted[1]) <= 2 * bound * deviation.most_expected) continue;
    EXPECT_EQ(argmax({got.data() + at, n_vocab}), argmax({expected.data() + at, n_vocab})) << "row " << at / n_vocab;
  }
}

class GpuModel : public ::testing::TestWithParam<std::string> {};

TEST_P(GpuModel, GivesTheCpuBackendsLogits) {
  const auto reference = open_spec(GetParam(), on_cpu());
  const auto model = open_spec(GetParam(), on_cuda());
  const std::vector<int32_t> prompt = prompt_of(*reference, 70, 1);
  std::vector<int32_t> tokens;
  const auto a = open_session(reference, 96, KvType::f16), b = open_session(model, 96, KvType::f16);
  const std::vector<float> expected = trace_of(a.get(), prompt, 8, &tokens), got = trace_of(b.get(), prompt, 8, &tokens);
  expect_alike(got, expected, static_cast<size_t>(reference->description().n_vocab), 4e-3);
}

// Models that both backends open. No backend has numbers of KV heads that differ between layers; the CUDA backend has no heads of 40.
std::vector<std::string> specs() {
  std::vector<std::string> names = model_spec_names();
  const auto refused = [](const std::string& n) { return n == "llama-layers-differ" || n == "llama-hd40"; };
  names.erase(std::remove_if(names.begin(), names.end(), refused), names.end());
  return names;
}

INSTANTIATE_TEST_SUITE_P(Specs, GpuModel, ::testing::ValuesIn(specs()), [](const auto& tested) {
  std::string name = tested.param;
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  return name;
});

TEST(GpuModel, HeadsWithoutAKernelAreRefusedWhenLoading) {
  const TempDir dir;
  const std::string path = dir.write("model.gguf", named_model_gguf("llama-hd40"));
  const auto opened = engine::LanguageModel::open(unwrap(engine::Runtime::create(on_cuda())), path, {});
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.status().code(), Code::unsupported);
  EXPECT_NE(std::string(opened.status().message()).find("heads of 40"), std::string::npos) << opened.status().message();
  EXPECT_EQ(engine::plan_file(path, on_cuda(), {}, {}).status().code(), Code::unsupported);
}

// Decode has no registers for F32 products with heads of 512 (cuda/kernels/README.md).
TEST(GpuModel, HeadsOf512TakeKvOfAtMostTwoBytes) {
  const auto runtime = unwrap(engine::Runtime::create(on_cuda()));
  for (const KvType type : {KvType::f16, KvType::q8_0, KvType::k8v4, KvType::q4_0})
    EXPECT_TRUE(runtime->device().check_heads(512, type).ok());
  const Status refused = runtime->device().check_heads(512, KvType::f32);
  EXPECT_EQ(refused.code(), Code::unsupported);
  EXPECT_NE(std::string(refused.message()).find("heads of 512 dimensions with KV in F32"), std::string::npos) << refused.message();
}

// Of latent attention, the tests' small rows take F32, too.
TEST(GpuModel, LatentRowsTakeKvInF16) {
  const auto runtime = unwrap(engine::Runtime::create(on_cuda()));
  EXPECT_TRUE(runtime->device().check_heads(576, KvType::f16, 512).ok());
  for (const KvType type : {KvType::f32, KvType::q8_0, KvType::q4_0}) {
    const Status refused = runtime->device().check_heads(576, type, 512);
    EXPECT_EQ(refused.code(), Code::unsupported);
    EXPECT_NE(
        std::string(refused.message()).find("keys and values at once with KV in " + std::string(kv_type_name(type)) + "; expected F16"),
        std::string::npos)
        << refused.message();
  }
  EXPECT_NE(std::string(runtime->device().check_heads(320, KvType::f16, 256).message())
                .find("rows of 320 values of which the first 256 are the value: 576 with 512"),
            std::string::npos);
}

// The recurrent state on the device: cut tokens continue as in a fresh session, forks and files as the session itself.
class GpuRecurrentModel : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Kinds, GpuRecurrentModel, ::testing::Values("qwen35", "lfm2", "nemotron-h"),
                         [](const auto& each) { return std::string(each.param, 4); });

TEST_P(GpuRecurrentModel, SessionsThatDecodeTogetherHaveTheirOwnStates) {
  const auto model = open_spec(GetParam(), on_cuda());
  std::vector<std::vector<int32_t>> prompts;
  for (uint64_t i = 0; i < 3; ++i) prompts.push_back(prompt_of(*model, static_cast<size_t>(20 + 15 * i), 5 + i));
  expect_together_as_alone(model, prompts, 5);
}

TEST_P(GpuRecurrentModel, StatesAreRestored) {
  const auto model = open_spec(GetParam(), on_cuda());
  const std::vector<int32_t> prompt = prompt_of(*model, 90, 3), more = prompt_of(*model, 20, 4);
  const auto session = open_session(model, 256, KvType::f16), fresh = open_session(model, 256, KvType::f16);
  std::vector<int32_t> tokens;
  trace_of(session.get(), prompt, 8, &tokens);
  unwrap(session->rewind(80));
  const std::vector<int32_t> first(prompt.begin(), prompt.begin() + 80);
  unwrap(fresh->prefill(first, nullptr, nullptr));
  const std::vector<float> expected = trace_of(fresh.get(), more, 6, &tokens), got = trace_of(session.get(), more, 6, &tokens);
  expect_alike(got, expected, static_cast<size_t>(model->description().n_vocab), 1e-4);  // chunks differ, and with them products of cuBLAS
  EXPECT_GT(session->stats().recomputed_tokens, 0u);

  std::vector<std::byte> file;
  unwrap(engine::SessionFile::save(session.get(), [&](Span<const std::byte> bytes) {
    file.insert(file.end(), bytes.begin(), bytes.end());
    return ok_status();
  }));
  const auto fork = unwrap(session->fork()), loaded = open_session(model, 256, KvType::f16);
  unwrap(engine::SessionFile::load(loaded.get(), file, "buffer"));
  const std::vector<float> own = trace_of(session.get(), more, 4, &tokens);
  EXPECT_TRUE(same_bits(trace_of(fork.get(), more, 4, &tokens), own));
  EXPECT_TRUE(same_bits(trace_of(loaded.get(), more, 4, &tokens), own));
  EXPECT_EQ(loaded->stats().recomputed_tokens, 0u);
}

TEST(GpuModel, EveryTypeOfWeights) {
  for (const TypeTraits& type : kTypeTraits) {
    SCOPED_TRACE(type.name);
    MatrixStorage storage;
    storage.type = type.type;
    const auto reference = open_spec("llama-256", on_cpu(), storage), model = open_spec("llama-256", on_cuda(), storage);
    const std::vector<int32_t> prompt = prompt_of(*reference, 20, 2);
    std::vector<int32_t> tokens;
    const auto a = open_session(reference, 64, KvType::f16), b = open_session(model, 64, KvType::f16);
    const std::vector<float> expected = trace_of(a.get(), prompt, 3, &tokens), got = trace_of(b.get(), prompt, 3, &tokens);
    // Both round activations, each in its own way. One logit of a row may lie far out: .031 of IQ2_S, where the rows' mean is .016.
    expect_alike(got, expected, static_cast<size_t>(reference->description().n_vocab), 4e-2);
    Deviation deviation;
    deviation.add(got.data(), expected.data(), got.size());
    EXPECT_LE(deviation.rms(), 2e-2);
  }
}

class GpuModelKinds : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Kinds, GpuModelKinds, ::testing::Values("llama-plain", "glm47"),
                         [](const auto& tested) { return std::string(tested.param, 5); });

TEST_P(GpuModelKinds, ChunksForksAndSavedSessionsDoNotShow) {
  const auto model = open_spec(GetParam(), on_cuda());
  const std::vector<int32_t> prompt = prompt_of(*model, 100, 3);
  std::vector<int32_t> tokens;
  const auto whole = open_session(model, 160, KvType::f16);
  const std::vector<float> expected = trace_of(whole.get(), prompt, 6, &tokens);
  for (const uint32_t chunk : {1u, 7u, 64u}) {
    const auto cut = open_session(model, 160, KvType::f16, chunk);
    EXPECT_TRUE(same_bits(trace_of(cut.get(), prompt, 6, &tokens), expected)) << "chunks of " << chunk;
  }
  const auto again = open_session(model, 160, KvType::f16);  // launches graphs that other sessions made
  EXPECT_TRUE(same_bits(trace_of(again.get(), prompt, 6, &tokens), expected));

  const auto fork = unwrap(whole->fork());
  std::vector<float> a, b;
  greedy(whole.get(), 5, &a);
  greedy(fork.get(), 5, &b);
  EXPECT_TRUE(same_bits(a, b));
}

// A turn for each layer of a prompt: the residual stream passes through host memory.
TEST_P(GpuModelKinds, PartsOfAPromptDoNotShow) {
  engine::RuntimeOptions by_layers = on_cuda();
  by_layers.prompt_part_us = 0;
  const auto whole = open_spec(GetParam(), on_cuda()), cut = open_spec(GetParam(), by_layers);
  const std::vector<int32_t> prompt = prompt_of(*whole, 40, 3);
  std::vector<int32_t> tokens, tokens_of_parts;
  const auto a = open_session(whole, 80, KvType::f16, 16), b = open_session(cut, 80, KvType::f16, 16);
  const std::vector<float> expected = trace_of(a.get(), prompt, 4, &tokens);
  EXPECT_TRUE(same_bits(trace_of(b.get(), prompt, 4, &tokens_of_parts), expected));
  EXPECT_EQ(tokens, tokens_of_parts);
}

#ifdef ORRERY_EMULATED
// The first token makes a graph, and every later token launches it.
TEST(GpuModel, TokensShareOneGraph) {
  const auto model = open_spec("llama-plain", on_cuda());
  const auto session = open_session(model, 160, KvType::f16);
  unwrap(session->prefill(prompt_of(*model, 60, 8), nullptr, nullptr));
  const size_t before = emulated::graphs_made();
  greedy(session.get(), 1);
  const size_t first = emulated::graphs_made();
  EXPECT_GT(first, before);
  greedy(session.get(), 12);  // the tokens cross the end of a page
  EXPECT_EQ(emulated::graphs_made(), first);
}
#endif

// Where the caller has no wish, prompts go in the largest chunks that cost no context.
TEST(GpuModel, ChunksAreLargeWhereTheyFit) {
  const auto model = open_spec("llama-plain", on_cuda(192u << 20));
  const auto chunk_of = [&](uint32_t n_context, uint32_t wished) {
    return open_session(model, n_context, KvType::f16, wished)->options().chunk();
  };
  EXPECT_EQ(chunk_of(1000, 0), 256u) << "no chunk is longer than the context";
  EXPECT_EQ(chunk_of(1500, 0), 1024u);
  EXPECT_EQ(chunk_of(4096, 300), 300u);
  EXPECT_EQ(chunk_of(4096, 0), 2048u);
  // The longest context that fits with chunks of 256 leaves no room for larger ones.
  const auto tight = open_spec("llama-plain", on_cuda(24u << 20));
  engine::SessionOptions options;
  options.n_context = 4096, options.kv_type = KvType::f16, options.chunk_tokens = 256;
  const uint32_t longest = engine::plan_session(*tight, options).largest_context;
  EXPECT_GT(longest, 4096u);
  EXPECT_EQ(open_session(tight, longest, KvType::f16)->options().chunk(), 256u);
}

// Under a KV policy: resident heads on the device, the full KV in host memory that the device reaches.
TEST(GpuModel, PoliciesKeepTheirInvariants) {
  const auto model = open_spec("qwen3", on_cuda());
  const std::vector<int32_t> prompt = prompt_of(*model, 150, 4);
  const auto open = [&](const char* policy, double share, uint32_t chunk) {
    engine::SessionOptions o;
    o.n_context = 224;
    o.kv_type = KvType::f16;
    o.policy = policy;
    o.kv_share = share;
    o.chunk_tokens = chunk;
    return unwrap(Session::open(model, o));
  };
  const auto full = open_session(model, 224, KvType::f16);
  unwrap(full->prefill(prompt, nullptr, nullptr));
  const std::vector<int32_t> expected = greedy(full.get(), 12);
  for (const char* policy : {"streaming", "heterocache", "synckv"}) {
    SCOPED_TRACE(policy);
    const auto whole = open(policy, 1.0, 0);
    unwrap(whole->prefill(prompt, nullptr, nullptr));
    EXPECT_EQ(greedy(whole.get(), 12), expected) << "a budget of 1 gives full attention's tokens";

    std::vector<float> first, again;
    const auto one = open(policy, 0.7, 0), two = open(policy, 0.7, 17);
    unwrap(one->prefill(prompt, nullptr, nullptr));
    unwrap(two->prefill(prompt, nullptr, nullptr));
    greedy(one.get(), 12, &first);
    greedy(two.get(), 12, &again);
    EXPECT_TRUE(same_bits(first, again)) << "chunks";

    // The next prompt attends to all tokens, not only to resident ones.
    const std::vector<int32_t> next = prompt_of(*model, 20, 5);
    const size_t n_vocab = static_cast<size_t>(model->description().n_vocab);
    std::vector<float> a(next.size() * n_vocab), b(a.size());
    unwrap(one->rewind(150));
    unwrap(one->prefill(next, nullptr, a.data()));
    unwrap(full->rewind(150));
    unwrap(full->prefill(next, nullptr, b.data()));
    EXPECT_TRUE(same_bits(a, b)) << "prefill";
  }
}

#ifdef ORRERY_EMULATED
constexpr size_t kForced = 16;  // a token takes seconds
#else
constexpr size_t kForced = 500;
#endif

// The trained model on the CPU backend's greedy tokens: the CUDA backend chooses the same token wherever it leads by more than the bound.
TEST(GpuModel, TheDemoModelSaysTheSame) {
  const std::string path = source_path("samples/models/demo-q8_0.gguf");
  const auto open = [&](engine::RuntimeOptions options) {
    options.device_budget_bytes = uint64_t{256} << 20;
    return unwrap(engine::LanguageModel::open(unwrap(engine::Runtime::create(options)), path, {}));
  };
  const auto reference = open(on_cpu()), model = open(on_cuda());
  const std::vector<int32_t> prompt = prompt_of(*reference, 48, 6);
  std::vector<int32_t> tokens;
  const auto a = open_session(reference, 640, KvType::f16), b = open_session(model, 640, KvType::f16);
  const std::vector<float> expected = trace_of(a.get(), prompt, kForced, &tokens), got = trace_of(b.get(), prompt, kForced, &tokens);
  expect_alike(got, expected, static_cast<size_t>(reference->description().n_vocab), 2e-2);
}

#ifdef ORRERY_EMULATED
// Models whose prompts use cuBLAS by the tuning table: F16 models on any GPU, quantized models on sm_90.
TEST(GpuModel, PromptsThroughCublasGiveTheCpuBackendsLogits) {
  struct Case {
    TensorType type;
    int architecture;
    bool there;
  };
  for (const Case c : {Case{TensorType::f16, 86, true},
                       {TensorType::bf16, 89, true},
                       {TensorType::q4_k, 86, false},
                       {TensorType::q4_k, 90, true},
                       {TensorType::q6_k, 90, true},
                       {TensorType::q8_0, 120, false}}) {
    MatrixStorage storage;
    storage.type = c.type;
    emulated::architecture = c.architecture;
    const auto reference = open_spec("llama-256", on_cpu(), storage), model = open_spec("llama-256", on_cuda(256u << 20), storage);
    emulated::architecture = 86;
    const std::vector<int32_t> prompt = prompt_of(*reference, 70, 2);
    std::vector<int32_t> tokens;
    const auto a = open_session(reference, 96, KvType::f16), b = open_session(model, 96, KvType::f16);
    const size_t before = emulated::cublas_products();
    const std::vector<float> expected = trace_of(a.get(), prompt, 3, &tokens), got = trace_of(b.get(), prompt, 3, &tokens);
    SCOPED_TRACE(std::string(type_traits(c.type)->name) + " on sm_" + std::to_string(c.architecture));
    EXPECT_EQ(emulated::cublas_products() > before, c.there);
    expect_alike(got, expected, static_cast<size_t>(reference->description().n_vocab), 2e-2);
  }
}
#endif

// An encoder's rows see each other, for which there are no kernels: the model is refused when it is opened, with a sentence.
TEST(GpuModel, EncodersAreRefused) {
  std::ifstream file(source_path("tests/golden/encoders/bert.json"));
  const TempDir dir;
  auto model = engine::LanguageModel::open(unwrap(engine::Runtime::create(on_cuda())),
                                           dir.write("model.gguf", build_model_gguf(nlohmann::json::parse(file))), {});
  ASSERT_FALSE(model.ok());
  EXPECT_EQ(model.status().code(), Code::unsupported);
  EXPECT_NE(std::string(model.status().message()).find("'bert': backend cuda computes no encoders"), std::string::npos)
      << model.status().message();
}

}  // namespace
}  // namespace orrery::model_test
