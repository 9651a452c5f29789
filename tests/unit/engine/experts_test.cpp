// Sessions of models with experts: the bits depend neither on chunks nor on threads nor on the sessions that decode beside.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/engine_fixture.h"
#include "tests/support/random_blocks.h"

namespace orrery::experts_test {
namespace {

using namespace orrery::testing;
using engine::Session;

constexpr const char* kSpecs[] = {"qwen3moe",   "qwen3moe-fused", "qwen35moe", "qwen3next",     "lfm2moe",
                                  "nemotron-h", "gemma4-moe",     "glm47",     "deepseek2-lite"};

std::vector<int32_t> random_prompt(size_t n, uint64_t seed) {
  Random random(seed);
  std::vector<int32_t> tokens(n);
  for (int32_t& t : tokens) t = static_cast<int32_t>(3 + random.below(90));
  return tokens;
}

std::vector<float> logits_of(const std::string& spec, const MatrixStorage& matrices, int32_t n_threads, uint32_t chunk,
                             const std::vector<int32_t>& prompt) {
  const auto session = open_session(open_spec(spec, runtime_options(n_threads), matrices), 256, KvType::f16, chunk);
  std::vector<float> all(prompt.size() * session->logits().size());
  unwrap(session->prefill(prompt, nullptr, all.data()));
  (void)greedy(session.get(), 5, &all);
  return all;
}

TEST(EngineExperts, ThreadsAndChunksChangeNothing) {
  const std::vector<int32_t> prompt = random_prompt(100, 1);
  for (const char* spec : kSpecs)
    for (const TensorType type : {TensorType::f32, TensorType::bf16}) {
      SCOPED_TRACE(spec);
      const std::vector<float> expected = logits_of(spec, {type}, 1, 128, prompt);
      EXPECT_TRUE(same_bits(logits_of(spec, {type}, 3, 128, prompt), expected)) << "three threads";
      for (const uint32_t chunk : {1u, 16u, 33u}) EXPECT_TRUE(same_bits(logits_of(spec, {type}, 2, chunk, prompt), expected)) << chunk;
    }
}
TEST(EngineExperts, ThreadsAndChunksChangeNothingInBands) {
  const std::vector<int32_t> prompt = random_prompt(100, 1);
  const MatrixStorage matrices{TensorType::q8_0};
  const std::vector<float> expected = logits_of("qwen3moe", matrices, 1, 128, prompt);
  EXPECT_TRUE(same_bits(logits_of("qwen3moe", matrices, 3, 128, prompt), expected)) << "three threads";
  for (const uint32_t chunk : {1u, 16u, 33u}) EXPECT_TRUE(same_bits(logits_of("qwen3moe", matrices, 2, chunk, prompt), expected)) << chunk;
}

TEST(EngineExperts, SessionsThatDecodeTogetherHaveTheirOwnExperts) {
  for (const char* spec : {"qwen3moe", "qwen35moe", "lfm2moe", "nemotron-h", "gemma4-moe", "gemma4", "glm47", "deepseek2-lite"}) {
    SCOPED_TRACE(spec);
    std::vector<std::vector<int32_t>> prompts;
    for (uint64_t i = 0; i < 5; ++i) prompts.push_back(random_prompt(20 + 7 * i, 10 + i));
    expect_together_as_alone(open_spec(spec, runtime_options(2)), prompts, 6);
  }
}

// Guessed tokens are rows of one step, too.
TEST(EngineExperts, GuessesChangeNothing) {
  const auto model = open_spec("qwen3moe", runtime_options(2));
  std::vector<int32_t> tokens = random_prompt(12, 5);
  for (int i = 0; i < 4; ++i) tokens.insert(tokens.end(), tokens.begin(), tokens.begin() + 12);
  const auto off = open_session(model, 128), guessing = open_session(model, 128);
  for (Session* session : {off.get(), guessing.get()}) unwrap(session->prefill({tokens.data(), 24}, nullptr, nullptr));
  expect_same_rows(off.get(), guessing.get(), tokens, 24);
}

// A width in blocks, against the same blocks as floats: of a product's input, 1/254 of its block's largest is lost
// (quantized_models_test.cpp).
TEST(EngineExperts, BlocksComputeWhatTheirFloatsDo) {
  const std::vector<int32_t> prompt = random_prompt(100, 2);
  for (const TensorType type : {TensorType::q8_0, TensorType::q4_0, TensorType::q5_1, TensorType::iq4_nl}) {
    const std::vector<float> expected = logits_of("qwen3moe", {type, true}, 2, 128, prompt),
                             found = logits_of("qwen3moe", {type, false}, 2, 128, prompt);
    // Steps follow their own greedy tokens: the prompt alone is compared. A row whose last expert another one takes moves by more: so most
    // rows.
    const size_t n_vocab = expected.size() / (prompt.size() + 5);
    std::vector<double> of_rows;
    for (size_t row = 0; row < prompt.size(); ++row) {
      Deviation d;
      d.add(&found[row * n_vocab], &expected[row * n_vocab], n_vocab);
      of_rows.push_back(d.rms());
    }
    std::sort(of_rows.begin(), of_rows.end());
    EXPECT_LE(of_rows[of_rows.size() * 3 / 4], 0.05) << type_traits(type)->name;
    EXPECT_GT(of_rows[0], 0.0);
  }
}

}  // namespace
}  // namespace orrery::experts_test
