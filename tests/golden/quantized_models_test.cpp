// A whole model in each weight format against the same model with its blocks dequantized to F32 (whose path
// the other goldens prove), on every instruction set.
#include <gtest/gtest.h>

#include "runtime/cpu/cpu_backend.h"
#include "tests/support/bf16.h"
#include "tests/support/engine_fixture.h"

namespace orrery::quantized_models_test {
namespace {

using namespace orrery::testing;

// Logits of the prompt, all tokens, and of 16 given steps.
std::vector<float> logits_of(const MatrixStorage& matrices, const std::string& path, const ModelRun& run) {
  const auto session = open_session(open_spec("llama-256", runtime_options(2, path), matrices), run.n_ctx);
  std::vector<float> all(run.prompt.size() * session->logits().size());
  unwrap(session->prefill(run.prompt, nullptr, all.data()));
  for (const int32_t token : run.answer) {
    feed(session.get(), token);
    all.insert(all.end(), session->logits().begin(), session->logits().end());
  }
  return all;
}

double deviation(const std::vector<float>& found, const std::vector<float>& expected) {
  EXPECT_EQ(found.size(), expected.size());
  Deviation d;
  d.add(found.data(), expected.data(), found.size());
  return d.rms();
}

class QuantizedModels : public ::testing::TestWithParam<TypeTraits> {};

// Floats of 16 bits are multiplied as they are: only the order of sums differs (measured: 1.2e-6).  With
// blocks, the activations are rounded to 8 bits, by up to 1/254 of the largest of their block.  Of 32 values
// that look normal the largest is 2.1 standard deviations on average, so a product's relative error is
// about 2.1 / 127 / sqrt(12) = .005; of the 256 of a K-quant's block it is 2.8, .0065.  Nine products follow
// one another here (two layers of QKV, output, gate and up, down; then the logits): sqrt(9) * .0065 = .02
// where errors only add up.  Measured: .011 to .024, the bound is twice the estimate.  A sub-scale or offset
// read wrong in one block of eight moves the logits by .2 or more.
//
// A prompt on AMX's tiles, and one that meets F16 and BF16 on "avx512bf16", has activations and weights rounded to bf16 (products/bf16.h):
// by 2^-9 at most, .0008 of themselves on average, so .0011 of a product, and sqrt(9) * .0011 = .0035 of the logits where errors only add
// up. Measured of F16 .0085, of BF16, whose weights are left as they are, .0061. The bound is twice what was measured, and with blocks,
// where answers' activations have 8 bits, theirs.
TEST_P(QuantizedModels, OnlyTheRoundingOfActivationsSetsThemApart) {
  const TensorType type = GetParam().type;
  const ModelRun run = load_model_runs("llama-256")[0];
  const std::vector<float> expected = logits_of({type, true}, "plain", run);
  const bool exact = type == TensorType::f32 || type == TensorType::f16 || type == TensorType::bf16;
  std::vector<float> plain = logits_of({type, false}, "plain", run);
  EXPECT_LE(deviation(plain, expected), exact ? 1e-5 : 0.04);
  for (const char* path : cpu::available_paths()) {
    SCOPED_TRACE(path);
    const std::vector<float> found = logits_of({type, false}, path, run);
    const bool rounds = rounds_weights(path, type);
    EXPECT_LE(deviation(found, expected), !exact ? 0.04 : rounds ? 0.017 : 1e-5);
    // Sums in another order move an activation by 1e-7, and some of them over the edge between two of the 256
    // steps; from there on the two paths round differently (measured: up to .009).
    // What rounds otherwise is as far off as both are (measured on AMX: .023).
    EXPECT_LE(deviation(found, plain), !exact ? (rounds ? 0.04 : 0.02) : rounds ? 0.017 : 1e-5);
  }
}

std::string test_name(const ::testing::TestParamInfo<TypeTraits>& type) { return type.param.name; }
INSTANTIATE_TEST_SUITE_P(Types, QuantizedModels, ::testing::ValuesIn(std::begin(kTypeTraits), std::end(kTypeTraits)), test_name);

}  // namespace
}  // namespace orrery::quantized_models_test
