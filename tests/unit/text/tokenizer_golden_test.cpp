// Every pre-tokenizer, special tokens and SentencePiece against the reference libraries, on ten thousand
// random strings each: see tests/golden/make_tokenizer_goldens.py, which also shows the strings of a group
// that fails.
#include <gtest/gtest.h>

#include <cstdio>

#include "runtime/text/tokenizer/pretokenize.h"
#include "tests/support/golden_vocab.h"
#include "tests/unit/text/pre_tokenizer_specs.h"

namespace orrery::text::tokenizer_golden_test {
namespace {

using testing::GoldenVocab;
using testing::RandomStrings;

constexpr size_t kGroup = 100, kTen = 10, kCount = 10000;

// Encodes the strings and compares with the ids and hashes of a set.
void check_set(const std::string& set, const Tokenizer& tokenizer, uint64_t seed, size_t pools, bool parse_special,
               bool without_blocks = false) {
  RandomStrings strings(seed, pools);
  ASSERT_TRUE(strings.ok());
  std::ifstream in(testing::source_path("tests/golden/tokenizer/" + set + "_ids.txt"));
  std::string line;
  ASSERT_TRUE(std::getline(in, line));
  ASSERT_EQ(line, "set " + set);
  EncodeOptions options;
  options.parse_special = parse_special;
  int failures = 0;
  for (size_t group = 0; group < kCount / kGroup && failures < 5; group++) {
    uint64_t of_group = 0xCBF29CE484222325, hash = of_group;
    for (size_t i = 0; i < kGroup; i++) {
      std::string text = strings.string();
      if (without_blocks)
        for (size_t at; (at = text.find("\u2581")) != text.npos;) text.replace(at, 3, "_");
      std::vector<int32_t> ids;
      ASSERT_TRUE(tokenizer.encode(text, options, &ids).ok());
      for (const int32_t id : ids) hash = (hash ^ static_cast<uint64_t>(id + 1)) * 0x100000001B3;
      hash *= 0x100000001B3;
      if (i % kTen == kTen - 1) of_group = (of_group ^ hash) * 0x100000001B3, hash = 0xCBF29CE484222325;
      if (in.peek() != 'i') continue;
      ASSERT_TRUE(std::getline(in, line));
      std::string found = "ids";
      for (const int32_t id : ids) found += " " + std::to_string(id);
      if (found == "ids") found += " ";
      EXPECT_EQ(found, line) << set << ", string " << group * kGroup + i << ": '" << text << "'";
    }
    ASSERT_TRUE(std::getline(in, line));
    char found[17];
    std::snprintf(found, sizeof found, "%016llx", static_cast<unsigned long long>(of_group));
    if (found != line) failures++;
    EXPECT_EQ(found, line) << set << ", group " << group;
  }
}

class BpeGolden : public ::testing::TestWithParam<PreTokenizerSpec> {};

TEST_P(BpeGolden, AgreesWithTheReference) {
  // By every name that files give it; ignore_merges has goldens of its own.
  size_t names = 0;
  for (const PreTokenizerAlias& alias : pre_tokenizer_aliases()) {
    if (alias.kind != GetParam().kind) continue;
    const GoldenVocab vocab = testing::golden_bpe_vocab(alias.name, false);
    Result<Tokenizer> tokenizer = Tokenizer::from_vocab(vocab.data);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
    EXPECT_EQ(tokenizer->add_bos(), alias.add_bos);
    const std::string set = std::string(GetParam().name) + (alias.ignore_merges ? "_ignore_merges" : "");
    check_set(set, *tokenizer, 3, RandomStrings::kPlainPools, false);
    names++;
    if (HasFatalFailure() || HasNonfatalFailure()) break;
  }
  EXPECT_GT(names, 0u);
}

INSTANTIATE_TEST_SUITE_P(All, BpeGolden, ::testing::ValuesIn(pre_tokenizer_specs().begin(), pre_tokenizer_specs().end()),
                         [](const auto& tested) { return std::string(tested.param.name); });

TEST(SpecialTokensGolden, ParsedAndAsText) {
  const GoldenVocab vocab = testing::golden_bpe_vocab("qwen2", true);
  Result<Tokenizer> tokenizer = Tokenizer::from_vocab(vocab.data);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  check_set("special_parsed", *tokenizer, 4, RandomStrings::kPoolsInAll, true);
  check_set("special_as_text", *tokenizer, 4, RandomStrings::kPoolsInAll, false);
}

struct SpmCase {
  const char *set, *vocab;
  int add_space_prefix, trim;  // -1: as the vocabulary says
};
class SpmGolden : public ::testing::TestWithParam<SpmCase> {};

TEST_P(SpmGolden, AgreesWithTheReference) {
  GoldenVocab vocab = testing::golden_spm_vocab(GetParam().vocab);
  if (GetParam().add_space_prefix >= 0) vocab.data.add_space_prefix = GetParam().add_space_prefix;
  if (GetParam().trim >= 0) vocab.data.remove_extra_whitespaces = GetParam().trim != 0;
  Result<Tokenizer> tokenizer = Tokenizer::from_vocab(vocab.data);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  check_set(GetParam().set, *tokenizer, 3, RandomStrings::kPlainPools, false, GetParam().set == std::string("spm_across"));
}

INSTANTIATE_TEST_SUITE_P(All, SpmGolden,
                         ::testing::Values(SpmCase{"spm_plain", "spm_plain", -1, -1}, SpmCase{"spm_no_prefix", "spm_plain", 0, -1},
                                           SpmCase{"spm_trimmed", "spm_plain", -1, 1}, SpmCase{"spm_unknown", "spm_unknown", -1, -1},
                                           SpmCase{"spm_across", "spm_across", -1, -1}),
                         [](const auto& tested) { return std::string(tested.param.set); });

}  // namespace
}  // namespace orrery::text::tokenizer_golden_test
