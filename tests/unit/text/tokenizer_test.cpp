// What holds for every text, and what is said about bad vocabularies: round trips, special tokens, ends of
// generation, time, threads, and files that contradict themselves.
#include "runtime/text/tokenizer/tokenizer.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <functional>
#include <limits>
#include <thread>

#include "runtime/gguf/gguf.h"
#include "runtime/text/tokenizer/pretokenize.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/golden_vocab.h"
#include "tests/support/temp_dir.h"
#include "tests/support/thread_time.h"

namespace orrery::text::tokenizer_test {
namespace {

using testing::GoldenVocab;
using testing::RandomStrings;

Tokenizer make(const GoldenVocab& vocab) {
  Result<Tokenizer> tokenizer = Tokenizer::from_vocab(vocab.data);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  return std::move(tokenizer).value();
}

std::vector<int32_t> encode(const Tokenizer& tokenizer, std::string_view text, EncodeOptions options = {}) {
  std::vector<int32_t> ids;
  EXPECT_TRUE(tokenizer.encode(text, options, &ids).ok());
  return ids;
}

std::string random_text(RandomStrings* strings, bool raw_bytes) {
  std::string text = strings->string();
  if (raw_bytes)
    for (size_t n = strings->next(6); n > 0; n--) text.insert(strings->next(text.size() + 1), 1, static_cast<char>(strings->next(256)));
  return text;
}

TEST(TokenizerRoundTrip, EveryPreTokenizerAnyBytes) {
  for (const PreTokenizerAlias& alias : pre_tokenizer_aliases()) {
    const Tokenizer tokenizer = make(testing::golden_bpe_vocab(alias.name, true));
    RandomStrings strings(41, RandomStrings::kPoolsInAll);
    for (int i = 0; i < 1000; i++) {
      const std::string text = random_text(&strings, i % 2 == 1);
      EncodeOptions options;
      options.parse_special = i % 3 == 0;
      const std::vector<int32_t> ids = encode(tokenizer, text, options);
      ASSERT_EQ(tokenizer.decode(ids, true), text) << alias.name;
      std::string pieces;
      for (const int32_t id : ids) pieces += tokenizer.token_bytes(id);
      ASSERT_EQ(pieces, text);
      for (const int32_t id : ids) ASSERT_TRUE(options.parse_special || !tokenizer.is_special(id)) << text;
    }
  }
}

TEST(TokenizerRoundTrip, SentencePieceAnyBytes) {
  for (const char* name : {"spm_plain", "spm_across"}) {
    const Tokenizer tokenizer = make(testing::golden_spm_vocab(name));
    RandomStrings strings(42, RandomStrings::kPoolsInAll);
    for (int i = 0; i < 5000; i++) {
      std::string text = random_text(&strings, i % 2 == 1);
      for (size_t at; (at = text.find("\u2581")) != text.npos;) text.replace(at, 3, " ");
      ASSERT_EQ(tokenizer.decode(encode(tokenizer, text)), text);
    }
  }
}

// A vocabulary of a few tokens, for the rest.
GoldenVocab small_bpe() {
  GoldenVocab v;
  v.data.model = "gpt2";
  v.data.pre = "qwen2";
  for (std::string& token : testing::byte_alphabet()) v.add(std::move(token), TokenType::normal);
  v.add("ab", TokenType::normal);               // 256
  v.add("abab", TokenType::normal);             // 257
  v.add("<|im_start|>", TokenType::control);    // 258
  v.add("<|im_end|>", TokenType::control);      // 259
  v.add("<|endoftext|>", TokenType::control);   // 260
  v.add("<tool>", TokenType::user_defined);     // 261
  v.add("<tool><b>", TokenType::user_defined);  // 262
  v.add("[PAD263]", TokenType::unused);         // 263
  v.add("ab", TokenType::normal);               // 264: again
  v.data.merges = {"a b", "ab ab"};
  v.data.special.bos = 260;
  v.data.special.eos = 259;
  return v;
}

TEST(Tokenizer, SpecialTokens) {
  const Tokenizer t = make(small_bpe());
  EncodeOptions parse;
  parse.parse_special = true;
  EXPECT_EQ(t.n_vocab(), 265);
  EXPECT_EQ(t.find("ab"), 256);  // of duplicates the lowest
  EXPECT_EQ(t.find("<|im_end|>"), 259);
  EXPECT_EQ(t.find("<tool>"), 261);
  EXPECT_EQ(t.find("nothing"), -1);
  EXPECT_EQ(t.find(""), -1);
  const std::vector<int32_t> a = encode(t, "a");
  EXPECT_EQ(encode(t, "ababab", parse), (std::vector<int32_t>{257, 256}));
  EXPECT_EQ(encode(t, "<|im_start|>ab<|im_end|>", parse), (std::vector<int32_t>{258, 256, 259}));
  EXPECT_EQ(encode(t, "<|im_start|>").size(), 12u);  // as text
  EXPECT_EQ(encode(t, "<tool>ab<tool><b>"), (std::vector<int32_t>{261, 256, 262}));
  EXPECT_EQ(encode(t, "<tool><").size(), 2u);
  EXPECT_EQ(encode(t, "[PAD263]").size(), 8u);

  EXPECT_TRUE(t.is_special(258));
  EXPECT_FALSE(t.is_special(261));
  EXPECT_FALSE(t.is_special(-1));
  EXPECT_FALSE(t.is_special(265));
  EXPECT_EQ(t.token_type(263), TokenType::unused);
  EXPECT_EQ(t.token_type(1000), TokenType::unused);
  EXPECT_EQ(t.token_bytes(257), "abab");
  EXPECT_EQ(t.token_bytes(-5), "");
  EXPECT_EQ(t.decode(std::vector<int32_t>{258, 256, 259}), "ab");
  EXPECT_EQ(t.decode(std::vector<int32_t>{258, 256, 259}, true), "<|im_start|>ab<|im_end|>");
  EXPECT_EQ(t.decode(std::vector<int32_t>{-1, 256, 100000}), "ab");
}

TEST(Tokenizer, BeginAndEnd) {
  const Tokenizer t = make(small_bpe());
  EncodeOptions options;
  options.add_bos = options.add_eos = options.parse_special = true;
  EXPECT_EQ(encode(t, "", options), (std::vector<int32_t>{260, 259}));
  EXPECT_EQ(encode(t, "ab", options), (std::vector<int32_t>{260, 256, 259}));
  EXPECT_EQ(encode(t, "<|endoftext|>ab", options), (std::vector<int32_t>{260, 256, 259}));  // not twice
  std::vector<int32_t> ids{7};
  EXPECT_TRUE(t.encode("ab", options, &ids).ok());  // appends
  EXPECT_EQ(ids, (std::vector<int32_t>{7, 260, 256, 259}));
  EXPECT_FALSE(t.add_bos());
  EXPECT_FALSE(t.add_eos());

  GoldenVocab v = small_bpe();
  v.data.special.bos = -1;
  v.data.add_bos = 1;
  const Tokenizer without = make(v);
  EXPECT_TRUE(without.add_bos());
  EXPECT_EQ(encode(without, "ab", options), (std::vector<int32_t>{256, 259}));  // there is none to add
}

TEST(Tokenizer, EndOfGenerationIsASet) {
  GoldenVocab v = small_bpe();
  v.add("<|eot_id|>", TokenType::user_defined);  // 265: files get this wrong
  v.add("<|eom_id|>", TokenType::control);       // 266
  v.data.special.eos = 258;
  const Tokenizer t = make(v);
  const std::vector<int32_t> set(t.end_of_generation().begin(), t.end_of_generation().end());
  EXPECT_EQ(set, (std::vector<int32_t>{258, 259, 260, 265, 266}));
  EXPECT_TRUE(t.is_end_of_generation(265));
  EXPECT_FALSE(t.is_end_of_generation(256));
  EXPECT_FALSE(t.is_end_of_generation(-1));
  EXPECT_EQ(t.eot(), 259);
  EXPECT_EQ(t.eom(), 266);
  EXPECT_TRUE(t.is_special(265));

  // Where <|return|> and <|call|> end a turn, <|end|> does not.
  v.add("<|end|>", TokenType::control);  // 267
  EXPECT_TRUE(make(v).is_end_of_generation(267));
  v.add("<|return|>", TokenType::control);
  v.add("<|call|>", TokenType::control);
  EXPECT_FALSE(make(v).is_end_of_generation(267));
  EXPECT_TRUE(make(v).is_end_of_generation(268));
}

TEST(Tokenizer, BytesThatAVocabularyLacks) {
  GoldenVocab v;
  v.data.model = "gpt2";
  v.data.pre = "gpt-2";
  v.add("a", TokenType::normal);
  v.add("b", TokenType::normal);
  v.add("ab", TokenType::normal);
  v.add("<unk>", TokenType::unknown);
  v.data.merges = {"a b"};
  EXPECT_EQ(encode(make(v), "abcab"), (std::vector<int32_t>{2, 2}));
  v.data.special.unk = 3;
  EXPECT_EQ(encode(make(v), "abcab"), (std::vector<int32_t>{2, 3, 2}));
  EXPECT_EQ(encode(make(v), "c"), (std::vector<int32_t>{3}));
}

// Rules that would make control tokens out of text are left out.
TEST(Tokenizer, TextNeverBecomesAControlToken) {
  GoldenVocab v = small_bpe();
  v.data.types[257] = static_cast<int32_t>(TokenType::control);  // "abab"
  EXPECT_EQ(encode(make(v), "abab"), (std::vector<int32_t>{256, 256}));

  GoldenVocab spm;
  spm.data.model = "llama";
  spm.data.add_space_prefix = 0;
  spm.add("<unk>", TokenType::unknown);
  spm.add("<s", TokenType::normal);
  spm.add("<s>", TokenType::control);
  spm.add(">", TokenType::normal);
  spm.add("<", TokenType::normal);
  spm.add("s", TokenType::normal);
  const Tokenizer t = make(spm);
  EXPECT_EQ(encode(t, "<s>"), (std::vector<int32_t>{1, 3}));
  EncodeOptions parse;
  parse.parse_special = true;
  EXPECT_EQ(encode(t, "<s>", parse), (std::vector<int32_t>{2}));
}

TEST(Tokenizer, Phi3TokensSwallowWhiteSpace) {
  GoldenVocab v = testing::golden_spm_vocab("spm_plain");
  v.add("<|user|>", TokenType::control);
  v.add("<|endoftext|>", TokenType::control);
  v.data.scores.resize(v.data.tokens.size(), 0.0f);
  EncodeOptions parse;
  parse.parse_special = true;
  const Tokenizer plain = make(v);
  v.data.strip_after_special = true;
  const Tokenizer stripping = make(v);
  EXPECT_EQ(encode(stripping, "<|user|> \n the", parse), encode(plain, "<|user|>the", parse));
  EXPECT_NE(encode(plain, "<|user|> \n the", parse), encode(plain, "<|user|>the", parse));
  EXPECT_EQ(encode(stripping, "<|endoftext|>\nthe", parse), encode(plain, "<|endoftext|>\nthe", parse));
  EXPECT_EQ(encode(stripping, "<|user|>\n", parse), encode(plain, "<|user|>", parse));
}

TEST(Tokenizer, ManyThreadsAtOnce) {
  const Tokenizer t = make(testing::golden_bpe_vocab("llama-bpe", true));
  std::vector<std::string> texts;
  std::vector<std::vector<int32_t>> expected;
  RandomStrings strings(43, RandomStrings::kPoolsInAll);
  for (int i = 0; i < 300; i++) {
    texts.push_back(strings.string());
    expected.push_back(encode(t, texts.back()));
  }
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (size_t k = 0; k < wrong.size(); k++)
    threads.emplace_back([&, k] {
      for (size_t i = 0; i < texts.size(); i++) {
        std::vector<int32_t> ids;
        if (!t.encode(texts[i], {}, &ids).ok() || ids != expected[i]) wrong[k]++;
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const int n : wrong) EXPECT_EQ(n, 0);
}

TEST(Tokenizer, AMegabyteOfOneCharacter) {
  std::vector<Tokenizer> tokenizers;
  tokenizers.push_back(make(testing::golden_bpe_vocab("llama-bpe", true)));
  tokenizers.push_back(make(testing::golden_spm_vocab("spm_plain")));
  // Of one encoding. Many are timed together, since a clock of processor time may tick only every 16 ms.
  const auto seconds = [](const Tokenizer& t, const std::string& text) {
    EXPECT_EQ(t.decode(encode(t, text)), text);
    const double start = testing::thread_seconds();
    int runs = 0;
    do encode(t, text);
    while (++runs < 100 && testing::thread_seconds() - start < .04);
    return (testing::thread_seconds() - start) / runs;
  };
  for (const Tokenizer& t : tokenizers) {
    for (const char* unit : {"a", "the", " ", "7", "\n", "!", "\u4E00", "\U0001F999", "\u0301", "\xFF", "<", "<a", "<|im_"}) {
      std::string small, large;
      while (small.size() < (1u << 14)) small += unit;
      while (large.size() < (1u << 18)) large += unit;
      // Sixteen times the text: n log n is 20 times the time, quadratic 256.
      const double t_small = seconds(t, small), t_large = seconds(t, large);
      EXPECT_LT(t_large, 100 * std::max(t_small, 1e-4)) << "'" << unit << "'";
    }
    seconds(t, std::string(1 << 20, 'a'));
  }
}

// ---- vocabularies that contradict themselves

struct BadCase {
  const char* what;
  std::function<void(GoldenVocab*)> spoil;
  Code code;
  const char* says;  // part of the message
};

TEST(BadVocabulary, IsRefusedByName) {
  const std::vector<BadCase> cases = {
      {"no tokens", [](GoldenVocab* v) { v->data.tokens.clear(), v->data.types.clear(); }, Code::bad_model, "tokenizer.ggml.tokens"},
      {"types too short", [](GoldenVocab* v) { v->data.types.pop_back(); }, Code::bad_model, "tokenizer.ggml.token_type"},
      {"types too long", [](GoldenVocab* v) { v->data.types.push_back(1); }, Code::bad_model, "tokenizer.ggml.token_type"},
      {"type 7", [](GoldenVocab* v) { v->data.types[3] = 7; }, Code::bad_model, "tokenizer.ggml.token_type[3]"},
      {"type -1", [](GoldenVocab* v) { v->data.types[3] = -1; }, Code::bad_model, "tokenizer.ggml.token_type[3]"},
      {"scores too short", [](GoldenVocab* v) { v->data.scores = {1.0f}; }, Code::bad_model, "tokenizer.ggml.scores"},
      {"bos outside", [](GoldenVocab* v) { v->data.special.bos = 265; }, Code::bad_model, "tokenizer.ggml.bos_token_id"},
      {"eos negative", [](GoldenVocab* v) { v->data.special.eos = -2; }, Code::bad_model, "tokenizer.ggml.eos_token_id"},
      {"eot outside", [](GoldenVocab* v) { v->data.special.eot = INT32_MAX; }, Code::bad_model, "tokenizer.ggml.eot_token_id"},
      {"eom outside", [](GoldenVocab* v) { v->data.special.eom = 500; }, Code::bad_model, "tokenizer.ggml.eom_token_id"},
      {"unk outside", [](GoldenVocab* v) { v->data.special.unk = 500; }, Code::bad_model, "tokenizer.ggml.unknown_token_id"},
      {"pad outside", [](GoldenVocab* v) { v->data.special.pad = 500; }, Code::bad_model, "tokenizer.ggml.padding_token_id"},
      {"sep outside", [](GoldenVocab* v) { v->data.special.sep = 500; }, Code::bad_model, "tokenizer.ggml.seperator_token_id"},
      {"token not UTF-8", [](GoldenVocab* v) { v->data.tokens[9] = "a\xFF"; }, Code::bad_model, "tokenizer.ggml.tokens[9]"},
      {"merge without space", [](GoldenVocab* v) { v->data.merges[1] = "abab"; }, Code::bad_model, "tokenizer.ggml.merges[1]"},
      {"empty merge", [](GoldenVocab* v) { v->data.merges[1] = ""; }, Code::bad_model, "tokenizer.ggml.merges[1]"},
      {"merge of nothing", [](GoldenVocab* v) { v->data.merges[1] = " b"; }, Code::bad_model, "tokenizer.ggml.merges[1]"},
      {"merge with nothing", [](GoldenVocab* v) { v->data.merges[1] = "b "; }, Code::bad_model, "tokenizer.ggml.merges[1]"},
      {"merge not UTF-8", [](GoldenVocab* v) { v->data.merges[1] = "a \xC3"; }, Code::bad_model, "tokenizer.ggml.merges[1]"},
      {"merge of no token", [](GoldenVocab* v) { v->data.merges[1] = "abc b"; }, Code::bad_model, "'abc'"},
      {"merge with no token", [](GoldenVocab* v) { v->data.merges[1] = "b abc"; }, Code::bad_model, "'abc'"},
      {"merge to no token", [](GoldenVocab* v) { v->data.merges[1] = "b a"; }, Code::bad_model, "'ba'"},
      {"unknown family", [](GoldenVocab* v) { v->data.model = "t5"; }, Code::unsupported, "'t5'"},
      {"unknown pre-tokenizer", [](GoldenVocab* v) { v->data.pre = "qwen99"; }, Code::unsupported, "'qwen99'"},
  };
  for (const BadCase& c : cases) {
    GoldenVocab v = small_bpe();
    c.spoil(&v);
    const Result<Tokenizer> t = Tokenizer::from_vocab(v.data);
    ASSERT_FALSE(t.ok()) << c.what;
    EXPECT_EQ(t.status().code(), c.code) << c.what;
    EXPECT_NE(std::string(t.status().message()).find(c.says), std::string::npos) << c.what << ": " << t.status().message();
  }
}

TEST(BadVocabulary, SentencePiece) {
  GoldenVocab v = testing::golden_spm_vocab("spm_plain");
  v.data.scores[5] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_NE(std::string(Tokenizer::from_vocab(v.data).status().message()).find("tokenizer.ggml.scores[5]"), std::string::npos);
  v = testing::golden_spm_vocab("spm_plain");
  v.data.types[300] = static_cast<int32_t>(TokenType::byte);
  EXPECT_NE(std::string(Tokenizer::from_vocab(v.data).status().message()).find("tokenizer.ggml.tokens[300]"), std::string::npos);
  // Infinite scores are an order like any other; equal tokens and empty ones are allowed.
  v = testing::golden_spm_vocab("spm_plain");
  for (size_t i = 0; i < v.data.scores.size(); i += 3) v.data.scores[i] = i % 2 ? -INFINITY : INFINITY;
  v.data.tokens[400] = v.data.tokens[401];
  v.data.tokens[402] = "";
  const Tokenizer t = make(v);
  EXPECT_EQ(t.decode(encode(t, "the man and the sea")), "the man and the sea");
}

// A file could list tens of millions of empty tokens in a few hundred MB: they are refused before anything is built of them.
TEST(TokenizerVocab, TooManyTokensAreRefused) {
  GoldenVocab v = testing::golden_spm_vocab("spm_plain");
  v.data.tokens.resize(kMostVocabTokens + 1);
  const auto from = std::chrono::steady_clock::now();
  const Result<Tokenizer> t = Tokenizer::from_vocab(v.data);
  ASSERT_FALSE(t.ok());
  EXPECT_EQ(t.status().code(), Code::bad_model);
  EXPECT_NE(std::string(t.status().message()).find("4194305 tokens are too many"), std::string::npos) << t.status().message();
  testing::ByteWriter empty;
  empty.put(gguf::ValueType::string).put(uint64_t{30'000'000});
  empty.bytes.resize(empty.bytes.size() + 30'000'000 * sizeof(uint64_t));
  const testing::TempDir dir;
  const std::string path =
      dir.write("empty.gguf", testing::GgufBuilder()
                                  .key("general.architecture", "llama")
                                  .key("tokenizer.ggml.model", "gpt2")
                                  .raw_key("tokenizer.ggml.tokens", static_cast<uint32_t>(gguf::ValueType::array), empty.bytes)
                                  .build());
  auto file = gguf::File::open(path, {});
  ASSERT_TRUE(file.ok()) << file.status().message();
  const Result<Tokenizer> of_file = Tokenizer::from_gguf(*file);
  ASSERT_FALSE(of_file.ok());
  EXPECT_NE(std::string(of_file.status().message()).find("30000000 strings are too many"), std::string::npos) << of_file.status().message();
  EXPECT_LT(std::chrono::steady_clock::now() - from, std::chrono::seconds(10));
}

// ---- the same from files

testing::GgufBuilder vocab_file(const GoldenVocab& v, const char* leave_out = "") {
  testing::GgufBuilder b;
  const auto wanted = [&](const char* key) { return std::string(key) != leave_out; };
  std::vector<std::string> tokens(v.data.tokens.begin(), v.data.tokens.end()), merges(v.data.merges.begin(), v.data.merges.end());
  b.key("general.architecture", "llama");
  if (wanted("model")) b.key("tokenizer.ggml.model", v.data.model);
  if (wanted("pre") && !v.data.pre.empty()) b.key("tokenizer.ggml.pre", v.data.pre);
  if (wanted("tokens")) b.array("tokenizer.ggml.tokens", tokens);
  if (wanted("types")) b.array("tokenizer.ggml.token_type", v.data.types);
  if (wanted("merges") && !merges.empty()) b.array("tokenizer.ggml.merges", merges);
  if (wanted("scores") && !v.data.scores.empty()) b.array("tokenizer.ggml.scores", v.data.scores);
  return b;
}

Result<Tokenizer> from_file(const testing::GgufBuilder& builder) {
  const testing::Bytes bytes = builder.build();
  Result<gguf::File> file = gguf::File::parse({bytes.data(), bytes.size()}, "test.gguf");
  EXPECT_TRUE(file.ok()) << file.status().message();
  return Tokenizer::from_gguf(*file);
}

// What would change a text's tokens and is not run is refused, unless it says nothing.
TEST(TokenizerFile, WhatIsNotRunIsRefused) {
  const auto file = [] { return vocab_file(small_bpe()); };
  const auto expect = [](testing::GgufBuilder b, const char* key, bool accepted) {
    const Result<Tokenizer> t = from_file(b);
    EXPECT_EQ(t.ok(), accepted) << key;
    if (accepted || t.ok()) return;
    EXPECT_EQ(t.status().code(), Code::unsupported);
    EXPECT_NE(std::string(t.status().message()).find("key 'tokenizer.ggml." + std::string(key) + "'"), std::string::npos)
        << t.status().message();
  };
  for (const char* key : {"normalizer.lowercase", "normalizer.strip_accents", "add_sep_token"})
    for (const bool set : {false, true}) expect(file().key("tokenizer.ggml." + std::string(key), set), key, !set);
  for (const char* key : {"precompiled_charsmap", "suppress_tokens"})
    for (const size_t n : {size_t{0}, size_t{3}})
      expect(file().array("tokenizer.ggml." + std::string(key), std::vector<uint8_t>(n, 1)), key, n == 0);
  expect(file().key("tokenizer.ggml.fim_pre_token_id", uint32_t{1}).key("tokenizer.huggingface.json", "{}"), "", true);
}

TEST(TokenizerFile, SaysTheSameAsItsParts) {
  GoldenVocab v = small_bpe();
  testing::GgufBuilder b = vocab_file(v);
  b.key("tokenizer.ggml.bos_token_id", uint32_t{260}).key("tokenizer.ggml.eos_token_id", uint32_t{259});
  b.key("tokenizer.ggml.padding_token_id", uint32_t{263}).key("tokenizer.ggml.seperator_token_id", uint32_t{1});
  b.key("tokenizer.ggml.eot_token_id", uint32_t{258}).key("tokenizer.ggml.eom_token_id", uint32_t{2});
  b.key("tokenizer.ggml.unknown_token_id", uint32_t{3});
  b.key("tokenizer.ggml.add_bos_token", true).key("tokenizer.ggml.add_eos_token", true);
  Result<Tokenizer> t = from_file(b);  // the file's bytes are gone: a Tokenizer owns what it needs
  ASSERT_TRUE(t.ok()) << t.status().message();
  EXPECT_EQ(encode(*t, "abab<tool>"), (std::vector<int32_t>{257, 261}));
  EXPECT_EQ(t->bos(), 260);
  EXPECT_EQ(t->eos(), 259);
  EXPECT_EQ(t->eot(), 258);
  EXPECT_EQ(t->eom(), 2);
  EXPECT_EQ(t->unk(), 3);
  EXPECT_EQ(t->pad(), 263);
  EXPECT_EQ(t->sep(), 1);
  EXPECT_TRUE(t->add_bos());
  EXPECT_TRUE(t->add_eos());

  GoldenVocab spm = testing::golden_spm_vocab("spm_plain");
  t = from_file(vocab_file(spm));
  ASSERT_TRUE(t.ok()) << t.status().message();
  EXPECT_EQ(encode(*t, "the man"), encode(make(spm), "the man"));
  EXPECT_EQ(t->decode(encode(*t, " the man")), " the man");
  EXPECT_EQ(t->unk(), 0);  // what SentencePiece models mean without saying so
  EXPECT_EQ(t->bos(), 1);
  EXPECT_EQ(t->eos(), 2);
  EXPECT_TRUE(t->add_bos());
  t = from_file(vocab_file(spm).key("tokenizer.ggml.add_space_prefix", false).key("tokenizer.ggml.add_bos_token", false));
  ASSERT_TRUE(t.ok());
  EXPECT_NE(encode(*t, "the man"), encode(make(spm), "the man"));
  EXPECT_FALSE(t->add_bos());

  // A BPE file that names no pre-tokenizer means the oldest one.
  t = from_file(vocab_file(v, "pre"));
  ASSERT_TRUE(t.ok());
  v.data.pre = "default";
  EXPECT_EQ(encode(*t, "a  b\n\n123"), encode(make(v), "a  b\n\n123"));
}

TEST(TokenizerFile, BadKeysAreNamed) {
  const GoldenVocab v = small_bpe(), spm = testing::golden_spm_vocab("spm_plain");
  const struct {
    testing::GgufBuilder builder;
    const char* says;
  } cases[] = {
      {vocab_file(v, "model"), "tokenizer.ggml.model"},
      {vocab_file(v, "tokens"), "tokenizer.ggml.tokens"},
      {vocab_file(v, "merges"), "tokenizer.ggml.merges"},
      {vocab_file(spm, "scores"), "tokenizer.ggml.scores"},
      {vocab_file(v, "tokens").array("tokenizer.ggml.tokens", std::vector<int32_t>{1, 2}), "tokenizer.ggml.tokens"},
      {vocab_file(v, "tokens").key("tokenizer.ggml.tokens", "a"), "tokenizer.ggml.tokens"},
      {vocab_file(v, "merges").key("tokenizer.ggml.merges", uint32_t{1}), "tokenizer.ggml.merges"},
      {vocab_file(v, "types").array("tokenizer.ggml.token_type", std::vector<float>(265, 1.0f)), "tokenizer.ggml.token_type"},
      {vocab_file(v, "types").array("tokenizer.ggml.token_type", std::vector<int32_t>{}), "tokenizer.ggml.token_type"},
      {vocab_file(v, "types").array("tokenizer.ggml.token_type", std::vector<uint32_t>(265, 0x80000001u)), "tokenizer.ggml.token_type[0]"},
      {vocab_file(v).array("tokenizer.ggml.scores", std::vector<std::string>{"1"}), "tokenizer.ggml.scores"},
      {vocab_file(v).key("tokenizer.ggml.bos_token_id", int32_t{-7}), "tokenizer.ggml.bos_token_id"},
      {vocab_file(v).key("tokenizer.ggml.bos_token_id", uint64_t{1} << 40), "tokenizer.ggml.bos_token_id"},
      {vocab_file(v).key("tokenizer.ggml.eos_token_id", "x"), "tokenizer.ggml.eos_token_id"},
      {vocab_file(v).key("tokenizer.ggml.add_bos_token", "yes"), "tokenizer.ggml.add_bos_token"},
      {vocab_file(v, "pre").key("tokenizer.ggml.pre", uint32_t{1}), "tokenizer.ggml.pre"},
  };
  for (const auto& c : cases) {
    const Result<Tokenizer> t = from_file(c.builder);
    ASSERT_FALSE(t.ok()) << c.says;
    const std::string message = t.status().message();
    EXPECT_NE(message.find(c.says), std::string::npos) << message;
    EXPECT_NE(message.find("test.gguf"), std::string::npos) << message;
    EXPECT_EQ(t.status().code(), Code::bad_model) << message;
  }
}

TEST(TokenizerFile, TheDemoModel) {
  Result<gguf::File> file = gguf::File::open(testing::source_path("samples/models/demo-q8_0.gguf"));
  ASSERT_TRUE(file.ok()) << file.status().message();
  Result<Tokenizer> t = Tokenizer::from_gguf(*file);
  ASSERT_TRUE(t.ok()) << t.status().message();
  EXPECT_EQ(t->n_vocab(), 2048);
  EXPECT_GE(t->find("<|im_end|>"), 0);
  EXPECT_TRUE(t->is_end_of_generation(t->find("<|im_end|>")));
  const std::string text = "What is the magic number for Ada?\n\u4E2D\u6587 \U0001F999\n";
  EXPECT_EQ(t->decode(encode(*t, text)), text);
}

}  // namespace
}  // namespace orrery::text::tokenizer_test
