// Published vocabularies with published inputs and ids, where the third-party data is at hand: every id must
// agree.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "runtime/gguf/gguf.h"
#include "runtime/text/tokenizer/tokenizer.h"
#include "tests/support/shared.h"

namespace orrery::text::tokenizer_vectors_test {
namespace {

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

class PublishedVocabulary : public ::testing::TestWithParam<const char*> {};

TEST_P(PublishedVocabulary, GivesThePublishedIds) {
  const std::string path = testing::shared_path(std::string("tokenizers/ggml-vocab-") + GetParam() + ".gguf");
  if (path.empty()) GTEST_SKIP() << "no shared vectors";
  Result<gguf::File> file = gguf::File::open(path);
  ASSERT_TRUE(file.ok()) << file.status().message();
  Result<Tokenizer> tokenizer = Tokenizer::from_gguf(*file);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();

  const std::string inputs = read_file(path + ".inp");
  std::istringstream outputs(read_file(path + ".out"));
  const std::string separator = "\n__ggml_vocab_test__\n";
  size_t n = 0;
  for (size_t from = 0; from != inputs.npos; n++) {
    const size_t end = inputs.find(separator, from);
    const std::string input = inputs.substr(from, end == inputs.npos ? end : end - from);
    from = end == inputs.npos ? end : end + separator.size();
    std::string line;
    if (!std::getline(outputs, line)) {
      EXPECT_EQ(input, "") << "more inputs than outputs";
      break;
    }
    std::vector<int32_t> expected, ids;
    std::istringstream words(line);
    for (int32_t id; words >> id;) expected.push_back(id);
    ASSERT_TRUE(tokenizer->encode(input, {}, &ids).ok());
    EXPECT_EQ(ids, expected) << "input " << n << ": '" << input << "'";
    EXPECT_EQ(tokenizer->decode(ids), input) << "input " << n;
  }
  EXPECT_GE(n, 40u);
}

INSTANTIATE_TEST_SUITE_P(All, PublishedVocabulary,
                         ::testing::Values("deepseek-coder", "gemma-4", "gpt-2", "llama-bpe", "llama-spm", "phi-3", "qwen2"));

}  // namespace
}  // namespace orrery::text::tokenizer_vectors_test
