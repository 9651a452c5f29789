// Work on text that its caller stops, or bounds: rendering, encoding, reading and writing JSON.
#include <gtest/gtest.h>

#include <atomic>

#include "runtime/text/jinja/chat_template.h"
#include "runtime/text/json/json.h"
#include "runtime/text/tokenizer/pretokenize.h"
#include "runtime/text/tokenizer/tokenizer.h"
#include "runtime/text/tokenizer/tokenizer_special.h"
#include "runtime/text/unicode/utf8.h"
#include "tests/unit/text/pre_tokenizer_specs.h"

namespace orrery::text::cancel_test {
namespace {

const std::atomic<bool> kCancelled{true};

std::string repeat(const std::string& s, size_t n) {
  std::string out;
  for (size_t i = 0; i < n; ++i) out += s;
  return out;
}

// All bytes, and "ab", "abab", ...: BPE by merges, SentencePiece by scores.
Result<Tokenizer> make_tokenizer(bool bpe) {
  std::vector<std::string> tokens;
  VocabData vocab;
  for (uint32_t b = 0, next = 0x100; b < 256; b++) {
    std::string token;
    if (bpe) {
      const bool printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
      utf8_append(printable ? b : next++, &token);
    } else {
      const char* digits = "0123456789ABCDEF";
      token = {'<', '0', 'x', digits[b / 16], digits[b % 16], '>'};
    }
    tokens.push_back(token);
    vocab.types.push_back(bpe ? 1 : 6);
  }
  for (const char* token : {"ab", "abab", "abababab"}) {
    tokens.push_back(token);
    vocab.types.push_back(1);
  }
  if (!bpe) {
    for (const char* token : {"a", "b"}) {
      tokens.push_back(token);
      vocab.types.push_back(1);
    }
  }
  tokens.push_back("<|end|>");
  vocab.types.push_back(3);
  vocab.tokens.assign(tokens.begin(), tokens.end());
  vocab.model = bpe ? "gpt2" : "llama";
  vocab.pre = bpe ? "qwen2" : "";
  vocab.add_space_prefix = 0;
  if (bpe) vocab.merges = {"a b", "ab ab", "abab abab"};
  vocab.special.bos = static_cast<int32_t>(tokens.size()) - 1;
  return Tokenizer::from_vocab(vocab);
}

TEST(CancelledText, Rendering) {
  TemplateLimits limits;
  limits.cancel = &kCancelled;
  const Value context = Value::map({});
  for (const char* source : {"x", "{{ 1 }}", "{% set x = range(9) | map('string') %}", "{% for i in [1] %}{% endfor %}"}) {
    Result<ChatTemplate> t = ChatTemplate::compile(source);
    ASSERT_TRUE(t.ok());
    const Result<Text> text = t->render(context, limits);
    ASSERT_FALSE(text.ok()) << source;
    EXPECT_EQ(text.status().code(), Code::cancelled);
    EXPECT_EQ(text.status().detail().line, 1u);
    EXPECT_TRUE(t->render(context).ok());
  }
}

TEST(CancelledText, OutputBound) {
  TemplateLimits limits;
  limits.max_output_bytes = 10;
  const Value context = Value::map({});
  const auto code = [&](const char* source) {
    Result<ChatTemplate> t = ChatTemplate::compile(source);
    EXPECT_TRUE(t.ok());
    const Status status = t->render(context, limits).take_status();
    if (status.ok()) return Code::ok;
    EXPECT_EQ(status.detail().bytes_available, 10u);
    EXPECT_EQ(status.detail().bytes_requested, 11u);
    return status.code();
  };
  EXPECT_EQ(code("0123456789"), Code::ok);
  EXPECT_EQ(code("0123456789a"), Code::context_full);
  EXPECT_EQ(code("{{ '0123456789a' }}"), Code::context_full);
  // Only what is given out counts.
  EXPECT_EQ(code("{% set x %}0123456789abcdef{% endset %}{{ x[:10] }}"), Code::ok);
}

TEST(CancelledText, Encoding) {
  for (const bool bpe : {true, false}) {
    Result<Tokenizer> t = make_tokenizer(bpe);
    ASSERT_TRUE(t.ok()) << t.status().message();
    EncodeOptions options;
    options.parse_special = true;
    std::vector<int32_t> ids = {7};
    for (const std::string& text : {repeat("ab", 5000), repeat("ab ", 5000), repeat("<|end|>", 5000), repeat("1", 5000)}) {
      options.cancel = nullptr;
      EXPECT_TRUE(t->encode(text, options, &ids).ok());
      ids.resize(1);
      options.cancel = &kCancelled;
      EXPECT_EQ(t->encode(text, options, &ids).code(), Code::cancelled);
      EXPECT_EQ(ids, std::vector<int32_t>{7});  // as it was
    }
  }
}

// Names that a text agrees with for long and none of which is in it: each byte costs as many comparisons as a name has bytes.
TEST(CancelledText, SpecialTokens) {
  std::vector<std::string> names;
  for (size_t n = 1; n < SpecialMatcher::kMaxBytes; ++n) names.push_back(repeat("a", n) + "!");
  std::vector<SpecialMatcher::Entry> entries;
  for (const std::string& name : names) entries.push_back({name, static_cast<int32_t>(entries.size()), false});
  SpecialMatcher matcher;
  matcher.reset(std::move(entries));
  const std::string text = repeat("a", 20000) + "aa!";
  EXPECT_EQ(matcher.find(text, 0, {}).id, 254);
  EXPECT_EQ(matcher.find(text, 0, {}, &kCancelled).id, -1) << "the search did not end early";
  EXPECT_EQ(matcher.find("aa!", 0, {}, &kCancelled).id, 1) << "what is short is not interrupted";
}

TEST(CancelledText, TokenBound) {
  for (const bool bpe : {true, false}) {
    Result<Tokenizer> t = make_tokenizer(bpe);
    ASSERT_TRUE(t.ok());
    for (const std::string& text : {repeat("ab ", 100), repeat("ab", 100), repeat("<|end|>", 100)}) {
      EncodeOptions options;
      options.parse_special = options.add_bos = true;
      std::vector<int32_t> all, ids = {7};
      ASSERT_TRUE(t->encode(text, options, &all).ok());
      options.max_tokens = all.size();
      EXPECT_TRUE(t->encode(text, options, &ids).ok());
      EXPECT_EQ(ids.size(), all.size() + 1);
      ids.resize(1);
      for (const size_t limit : {all.size() - 1, all.size() / 2, size_t{1}}) {
        options.max_tokens = limit;
        const Status status = t->encode(text, options, &ids);
        EXPECT_EQ(status.code(), Code::context_full);
        EXPECT_EQ(status.detail().bytes_available, limit);
        EXPECT_GT(status.detail().bytes_requested, limit);
        EXPECT_LE(status.detail().bytes_requested, all.size());
        EXPECT_EQ(ids, std::vector<int32_t>{7});
      }
    }
    // It is early: what follows costs nothing, and the number reached says so.
    EncodeOptions options;
    options.max_tokens = 10;
    std::vector<int32_t> ids;
    const Status status = t->encode(repeat("ab ", 1000000), options, &ids);
    EXPECT_LT(status.detail().bytes_requested, 100u);
  }
}

TEST(CancelledText, BytesOfTokens) {
  Result<Tokenizer> bpe = make_tokenizer(true), spm = make_tokenizer(false);
  ASSERT_TRUE(bpe.ok() && spm.ok());
  EXPECT_EQ(bpe->longest_token_bytes(), 8u);
  EXPECT_EQ(spm->longest_token_bytes(), 8u);
  EXPECT_EQ(bpe->max_text_bytes(5), 40u);
  EXPECT_EQ(spm->max_text_bytes(5), 120u);
  EXPECT_EQ(bpe->max_text_bytes(SIZE_MAX / 2), SIZE_MAX);
  VocabData few;
  few.model = "gpt2";
  few.tokens = {"a", "b"};
  Result<Tokenizer> drops = Tokenizer::from_vocab(few);
  ASSERT_TRUE(drops.ok());
  EXPECT_EQ(drops->max_text_bytes(5), SIZE_MAX);
}

TEST(CancelledText, PreTokenizing) {
  const std::string texts[] = {std::string(300000, 'a'), std::string(300000, ' '),  std::string(300000, '!'),
                               std::string(300000, '7'), std::string(300000, '\n'), repeat("a b\n", 75000)};
  for (const PreTokenizerSpec& spec : pre_tokenizer_specs()) {
    for (const std::string& text : texts) {
      std::vector<uint32_t> ends;
      EXPECT_FALSE(pre_tokenize(spec.kind, text, &ends, &kCancelled)) << spec.name;
      ends.clear();
      EXPECT_TRUE(pre_tokenize(spec.kind, text, &ends)) << spec.name;
      EXPECT_EQ(ends.back(), text.size());
    }
  }
}

TEST(CancelledText, Json) {
  JsonLimits limits;
  limits.cancel = &kCancelled;
  JsonFormat format;
  format.cancel = &kCancelled;
  for (const std::string& text : {"[" + repeat("1,", 5000) + "1]", "\"" + repeat("é", 5000) + "\"", "\"" + repeat("\\n", 5000) + "\"",
                                  "{\"a\":" + repeat("[[1],2,", 100) + "3" + repeat("]", 100) + "}"}) {
    const Result<Value> v = parse_json(text);
    ASSERT_TRUE(v.ok()) << v.status().message();
    if (text.size() < 5000) continue;
    EXPECT_EQ(parse_json(text, limits).status().code(), Code::cancelled);
    EXPECT_EQ(dump_json(v.value(), format).status().code(), Code::cancelled);
  }
}

}  // namespace
}  // namespace orrery::text::cancel_test
