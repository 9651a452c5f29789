// Tiny models of published families, as their converter writes them, against logits of their published implementations. They are
// third-party files (../shared/tiny-models): where those are missing, these tests are skipped, and the goldens of our own models remain.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>

#include "runtime/cpu/cpu_backend.h"
#include "tests/support/engine_fixture.h"
#include "tests/support/shared.h"

namespace orrery::tiny_models_test {
namespace {

using namespace orrery::testing;

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

template <class T>
T number(const std::string& bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

// The values of NAME.npy in an archive of NumPy's, whose members are stored as they are.
template <class T>
std::vector<T> array_of(const std::string& archive, const std::string& name) {
  for (size_t at = 0; at + 30 < archive.size() && archive.compare(at, 4, "PK\3\4") == 0;) {
    const size_t name_bytes = number<uint16_t>(archive, at + 26), more = number<uint16_t>(archive, at + 28);
    const std::string member = archive.substr(at + 30, name_bytes);
    const size_t begin = at + 30 + name_bytes + more;
    // A size of 2^32 - 1 stands for the one in the ZIP64 field.
    size_t bytes = number<uint32_t>(archive, at + 18);
    if (bytes == UINT32_MAX) bytes = static_cast<size_t>(number<uint64_t>(archive, at + 30 + name_bytes + 4));
    if (member == name + ".npy") {
      const size_t header = 10 + size_t{number<uint16_t>(archive, begin + 8)};
      std::vector<T> values((bytes - header) / sizeof(T));
      std::memcpy(values.data(), archive.data() + begin + header, values.size() * sizeof(T));
      return values;
    }
    at = begin + bytes;
  }
  throw std::runtime_error("no array " + name);
}

// The bytes of a GGUF file with one more number among its keys. Another key follows, so that both take a multiple of 32 bytes and tensors
// stay aligned.
std::vector<std::byte> with_key(const std::string& file, const std::string& key, uint32_t value) {
  const auto bytes_of = [](auto n) { return std::string(reinterpret_cast<const char*>(&n), sizeof n); };
  const auto text = [&](const std::string& s) { return bytes_of(uint64_t{s.size()}) + s; };
  constexpr uint32_t kU32 = 4, kText = 8;
  std::string added = text(key) + bytes_of(kU32) + bytes_of(value) + text("general.description") + bytes_of(kText);
  const size_t whole = (added.size() + 8 + 31) / 32 * 32;
  added += text(std::string(whole - added.size() - 8, '.'));
  const std::string out = file.substr(0, 16) + bytes_of(number<uint64_t>(file, 16) + 2) + added + file.substr(24);
  const auto* const begin = reinterpret_cast<const std::byte*>(out.data());
  return {begin, begin + out.size()};
}

class TinyModels : public ::testing::TestWithParam<const char*> {};

TEST_P(TinyModels, GiveTheLogitsOfTheirFamily) {
  if (shared_path("tiny-models").empty()) GTEST_SKIP() << "no shared tiny models";
  std::string file = shared_path(std::string("tiny-models/") + GetParam() + ".gguf");
  const TempDir dir;
  if (GetParam() ==
      std::string("glm47flash"))  // its converter writes no gating function, and it is not as large as models whose gating is known
    file = dir.write("glm47flash.gguf", with_key(read_file(file), "deepseek2.expert_gating_func", 2));
  const std::string goldens = read_file(shared_path(std::string("tiny-models/") + GetParam() + ".npz"));
  const auto ids = array_of<int64_t>(goldens, "ids");
  const auto expected = array_of<float>(goldens, "full");
  const std::vector<int32_t> tokens(ids.begin(), ids.end());
  ASSERT_EQ(tokens.size(), 40u);
  const size_t n_vocab = expected.size() / tokens.size();
  engine::ModelOptions options;
  if (GetParam() == std::string("gptoss_trunc")) {  // YaRN as published, which the file cannot say
    options.weights.rope.set = true;
    options.weights.rope.scaling = model::RopeScaling::yarn;
    options.weights.rope.factor = 32.0f;
  }
  for (const char* cpu_path : cpu::available_paths()) {
    SCOPED_TRACE(cpu_path);
    const auto model = unwrap(engine::LanguageModel::open(unwrap(engine::Runtime::create(runtime_options(2, cpu_path))), file, options));
    ASSERT_EQ(static_cast<size_t>(model->description().n_vocab), n_vocab);
    const auto prefilled = open_session(model, 64), decoded = open_session(model, 64);
    std::vector<float> logits(expected.size());
    unwrap(prefilled->prefill(tokens, nullptr, logits.data()));
    Deviation of_prompt, of_steps;
    of_prompt.add(logits.data(), expected.data(), expected.size());
    for (size_t i = 0; i < tokens.size(); ++i) {
      feed(decoded.get(), tokens[i]);
      of_steps.add(decoded->logits().data(), expected.data() + i * n_vocab, n_vocab);
    }
    // Their own deviation from float64 is up to 1.5e-5 of the largest logit.
    EXPECT_LE(of_prompt.relative(), 5e-5);
    EXPECT_LE(of_steps.relative(), 5e-5);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, TinyModels,
                         ::testing::Values("qwen35", "qwen3moe", "qwen35moe", "qwen3next", "gemma3", "muse", "ministral3", "gptoss",
                                           "gptoss_hot", "gptoss_trunc", "lfm2", "nemotronh", "gemma4", "gemma4b", "gemma4moe",
                                           "glm47flash"),
                         [](const auto& tested) { return std::string(tested.param); });

}  // namespace
}  // namespace orrery::tiny_models_test
