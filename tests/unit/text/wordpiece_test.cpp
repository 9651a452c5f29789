// WordPiece: the ids of PyPI's `tokenizers` (tests/golden/tokenizer/bert.json, by make_wordpiece_goldens.py), the tokens around a text, decoding,
// limits, and files that contradict themselves.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "runtime/gguf/gguf.h"
#include "runtime/text/tokenizer/tokenizer.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/golden_vocab.h"
#include "tests/support/random_blocks.h"
#include "tests/support/shared.h"

namespace orrery::text::wordpiece_test {
namespace {

using nlohmann::json;
using testing::GgufBuilder;
using Ids = std::vector<int32_t>;

const json& golden() {
  static const json all = [] {
    std::ifstream file(testing::source_path("tests/golden/tokenizer/bert.json"));
    return json::parse(file);
  }();
  return all;
}

GgufBuilder builder() {
  GgufBuilder b;
  b.key("general.architecture", "bert").key("tokenizer.ggml.model", "bert");
  b.array("tokenizer.ggml.tokens", golden().at("tokens").get<std::vector<std::string>>());
  return b;
}

Result<Tokenizer> open(const GgufBuilder& b) {
  gguf::OpenOptions options;
  options.header_only = true;
  const std::vector<std::byte> bytes = b.build();
  ORRERY_ASSIGN(const gguf::File file, gguf::File::open_memory({bytes.data(), bytes.size()}, "memory", options));
  return Tokenizer::from_gguf(file);
}
Tokenizer made(const GgufBuilder& b = builder()) {
  Result<Tokenizer> t = open(b);
  EXPECT_TRUE(t.ok()) << t.status().message();
  return std::move(t).value();
}

Ids encode(const Tokenizer& t, std::string_view text, const EncodeOptions& options = {}) {
  Ids ids;
  const Status status = t.encode(text, options, &ids);
  EXPECT_TRUE(status.ok()) << status.message();
  return ids;
}

TEST(WordPiece, HasThePublishedIds) {
  size_t n_texts = 0;
  for (const json& set : golden().at("sets")) {
    const Tokenizer t = made(builder()
                                 .key("tokenizer.ggml.normalizer.lowercase", set.at("lowercase").get<bool>())
                                 .key("tokenizer.ggml.normalizer.strip_accents", set.at("strip_accents").get<bool>()));
    for (const json& each : set.at("texts")) {
      const std::string text = each[0];
      ASSERT_EQ(encode(t, text), each[1].get<Ids>()) << set.at("lowercase") << set.at("strip_accents") << " " << each[0];
      ++n_texts;
    }
  }
  EXPECT_GT(n_texts, 1000u);
}

TEST(WordPiece, LowerCaseWithoutAccentsIsTheDefault) {
  const Tokenizer plain = made();
  EXPECT_EQ(encode(plain, "CAF\xC3\x89"), encode(plain, "cafe"));
  const Tokenizer cased = made(builder().key("tokenizer.ggml.normalizer.lowercase", false));
  EXPECT_NE(encode(cased, "CAF\xC3\x89"), encode(cased, "cafe"));
}

TEST(WordPiece, ATextStandsBetweenClsAndSep) {
  const Tokenizer t = made();
  EXPECT_EQ(t.bos(), 2);
  EXPECT_EQ(t.eos(), 3);
  EXPECT_EQ(t.sep(), 3);
  EXPECT_EQ(t.unk(), 1);
  EXPECT_TRUE(t.add_bos());
  EXPECT_TRUE(t.add_eos());
  EncodeOptions around;
  around.add_bos = around.add_eos = true;
  Ids expected = encode(t, "the wolf");
  expected.insert(expected.begin(), 2), expected.push_back(3);
  EXPECT_EQ(encode(t, "the wolf", around), expected);
  EXPECT_EQ(encode(t, "", around), (Ids{2, 3}));
  for (const char* text : {"[CLS]", "[SEP] the", "[UNK]"}) {  // a text cannot make them
    const Ids ids = encode(t, text);
    EXPECT_EQ(std::count(ids.begin(), ids.end(), 2) + std::count(ids.begin(), ids.end(), 3), 0) << text;
  }
  const Tokenizer named =
      made(builder().key("tokenizer.ggml.cls_token_id", uint32_t{5}).key("tokenizer.ggml.seperator_token_id", uint32_t{6}));
  EXPECT_EQ(named.bos(), 5);
  EXPECT_EQ(named.eos(), 6);
}

TEST(WordPiece, DecodesToWords) {
  const Tokenizer t = made();
  EXPECT_EQ(t.decode(encode(t, "  The unable\n wolf!")), "the unable wolf !");
}

TEST(WordPiece, LimitsEndTheEncoding) {
  const Tokenizer t = made();
  std::string text;
  for (int i = 0; i < 100; ++i) text += "the ";
  EncodeOptions options;
  options.max_tokens = 50;
  Ids ids;
  EXPECT_EQ(t.encode(text, options, &ids).code(), Code::context_full);
  EXPECT_TRUE(ids.empty());
  options.max_tokens = 100;
  EXPECT_EQ(encode(t, text, options).size(), 100u);
  const std::atomic<bool> cancel{true};
  options.cancel = &cancel;
  EXPECT_EQ(t.encode(text, options, &ids).code(), Code::cancelled);
  // A word of any length is one token, in time that grows with its length alone.
  EXPECT_EQ(encode(t, std::string(1 << 22, 'q')), Ids{t.unk()});
  EXPECT_EQ(t.max_text_bytes(4), SIZE_MAX);
}

TEST(WordPiece, BytesThatAreNotUtf8AreDropped) {
  const Tokenizer t = made();
  EXPECT_EQ(encode(t, "wo\xFFlf"), encode(t, "wolf"));
  EXPECT_EQ(encode(t, "\xC3"), Ids{});
  EXPECT_EQ(encode(t, "\xED\xA0\x80wolf"), encode(t, "wolf"));
}

TEST(WordPiece, AnyBytesGiveTokensOfTheVocabulary) {
  const Tokenizer t = made();
  testing::Random random(3);
  for (int i = 0; i < 2000; ++i) {
    std::string text;
    for (uint64_t n = random.below(60); n > 0; --n) text += static_cast<char>(random.below(3) ? random.below(256) : 'a' + random.below(26));
    for (const int32_t id : encode(t, text)) {
      ASSERT_GE(id, 0);
      ASSERT_LT(id, t.n_vocab());
    }
  }
}

TEST(WordPiece, FilesThatContradictThemselvesAreRefusedByName) {
  const auto refused = [](const GgufBuilder& b, const char* part) {
    const Result<Tokenizer> t = open(b);
    ASSERT_FALSE(t.ok()) << part;
    EXPECT_NE(std::string(t.status().message()).find(part), std::string::npos) << t.status().message();
  };
  refused(builder().key("tokenizer.ggml.cls_token_id", uint32_t{100000}), "bos_token_id");
  refused(builder().key("tokenizer.ggml.normalizer.lowercase", "yes"), "tokenizer.ggml.normalizer.lowercase");
  refused(builder().array("tokenizer.ggml.token_type", std::vector<int32_t>{1}), "tokenizer.ggml.token_type");
  GgufBuilder llama;  // other tokenizers are not run with these keys
  llama.key("tokenizer.ggml.model", "gpt2").key("tokenizer.ggml.normalizer.lowercase", true);
  refused(llama, "tokenizer.ggml.normalizer.lowercase");
}

}  // namespace
}  // namespace orrery::text::wordpiece_test
