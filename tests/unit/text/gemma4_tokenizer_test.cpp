// Gemma 4's tokenizer: by hand on a small vocabulary, beside a naive oracle on random ones, and on vocabularies that contradict
// themselves. tokenizer_vectors_test.cpp has the published ids.
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <set>

#include "runtime/gguf/gguf.h"
#include "runtime/text/tokenizer/tokenizer.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/golden_vocab.h"
#include "tests/support/thread_time.h"

namespace orrery::text::gemma4_tokenizer_test {
namespace {

using testing::GoldenVocab;
using Ids = std::vector<int32_t>;

constexpr char kBlock[] = "\u2581";

Tokenizer make(const GoldenVocab& vocab) {
  Result<Tokenizer> tokenizer = Tokenizer::from_vocab(vocab.data);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  return std::move(tokenizer).value();
}

Ids encode(const Tokenizer& tokenizer, std::string_view text, EncodeOptions options = {}) {
  Ids ids;
  EXPECT_TRUE(tokenizer.encode(text, options, &ids).ok());
  return ids;
}

std::string byte_token(int byte) {
  constexpr char kDigits[] = "0123456789ABCDEF";
  return std::string("<0x") + kDigits[byte / 16] + kDigits[byte % 16] + ">";
}

void add_merge(GoldenVocab* v, const std::string& left, const std::string& right) {
  v->strings.push_back(left + " " + right);
  v->data.merges.push_back(v->strings.back());
}

std::string with_blocks(std::string_view text) {
  std::string out;
  for (const char c : text) c == ' ' ? out.append(kBlock) : out.append(1, c);
  return out;
}

// ids 0 to 255: bytes. 256: <bos>, ...
GoldenVocab small() {
  GoldenVocab v;
  v.data.model = "gemma4";
  for (int b = 0; b < 256; b++) v.add(byte_token(b), TokenType::byte);
  v.add("<bos>", TokenType::control);                  // 256
  v.add("<eos>", TokenType::control);                  // 257
  v.add("<|turn>", TokenType::control);                // 258
  v.add("<turn|>", TokenType::control);                // 259
  v.add("<|channel>", TokenType::user_defined);        // 260
  v.add("<|tool_response>", TokenType::user_defined);  // 261
  v.add("<table>", TokenType::user_defined);           // 262
  for (const char* token : {"a", "b", kBlock, "\n", "ab", "\u2581a", "\u2581ab", "\n\n", "\u2581\u2581", "\u00E9", "b\u2581a"})
    v.add(token, TokenType::normal);  // 263 ..
  v.data.special.bos = 256, v.data.special.eos = 257;
  add_merge(&v, kBlock, kBlock);
  add_merge(&v, "a", "b");
  add_merge(&v, kBlock, "a");
  add_merge(&v, kBlock, "ab");
  return v;
}
constexpr int32_t kA = 263, kB = 264, kSpace = 265, kNewline = 266, kAb = 267, kSpaceA = 268, kSpaceAb = 269, kNewlines = 270,
                  kSpaces = 271, kE = 272;

TEST(Gemma4Tokenizer, ByHand) {
  const Tokenizer t = make(small());
  EXPECT_EQ(encode(t, ""), Ids());
  EXPECT_EQ(encode(t, "ab ab"), (Ids{kAb, kSpaceAb}));  // no space is put in front
  EXPECT_EQ(encode(t, " ab"), (Ids{kSpaceAb}));
  EXPECT_EQ(encode(t, "\u2581ab"), (Ids{kSpaceAb}));
  EXPECT_EQ(encode(t, "   a"), (Ids{kSpaces, kSpaceA}));  // the best rule, from the left
  EXPECT_EQ(encode(t, "b a"), (Ids{kB, kSpaceA}));        // a token that no rule makes
  EXPECT_EQ(encode(t, "\u00E9"), (Ids{kE}));
  EXPECT_EQ(encode(t, "z"), (Ids{'z'}));
  EXPECT_EQ(encode(t, "\u4E2Da\xFF"), (Ids{0xE4, 0xB8, 0xAD, kA, 0xFF}));
  EXPECT_EQ(encode(t, "a\nb"), (Ids{kA, kNewline, kB}));
  EXPECT_EQ(encode(t, "a\n\nb"), (Ids{kA, kNewlines, kB}));             // no rule makes it: the run is a token
  EXPECT_EQ(encode(t, "\n\n\n"), (Ids{kNewline, kNewline, kNewline}));  // this run is none
  EXPECT_EQ(encode(t, "\r\n"), (Ids{'\r', kNewline}));

  EXPECT_EQ(t.decode(Ids{kAb, kSpaceAb, kSpaces, kE}), "ab ab  \u00E9");
  EXPECT_EQ(t.decode(Ids{kSpaceAb}), " ab");
  EXPECT_EQ(t.decode(Ids{0xE4, 0xB8, 0xAD, kSpace, 0xFF}), "\u4E2D \xFF");
  EXPECT_EQ(t.token_bytes(0x0A), "\n");
  EXPECT_EQ(t.find(" ab"), kSpaceAb);
  EXPECT_EQ(t.find("\u2581ab"), -1);  // tokens are spelled with spaces
}

TEST(Gemma4Tokenizer, BosStandsWhateverTheFileSays) {
  GoldenVocab v = small();
  for (const int key : {-1, 0, 1}) {
    v.data.add_bos = key;
    EXPECT_TRUE(make(v).add_bos()) << key;
  }
  v.data.add_space_prefix = 1;
  const Tokenizer t = make(v);
  EncodeOptions options;
  options.add_bos = true;
  EXPECT_EQ(encode(t, "ab", options), (Ids{256, kAb}));
  EXPECT_EQ(t.decode(Ids{kSpaceAb}), " ab");
  EXPECT_FALSE(t.add_eos());
}

TEST(Gemma4Tokenizer, MarksAreTheTemplatesAlone) {
  const Tokenizer t = make(small());
  EncodeOptions parse;
  parse.parse_special = true;
  EXPECT_EQ(encode(t, "<|turn>ab<turn|>", parse), (Ids{258, kAb, 259}));
  EXPECT_EQ(encode(t, "<|channel>ab", parse), (Ids{260, kAb}));
  for (const std::string mark : {"<|turn>", "<turn|>", "<|channel>", "<|tool_response>", "<bos>"}) {
    for (const int32_t id : encode(t, mark)) ASSERT_TRUE(id < 256 || id >= kA) << mark;
    EXPECT_EQ(t.decode(encode(t, mark)), mark);
  }
  EXPECT_EQ(encode(t, "<table>a"), (Ids{262, kA}));  // user-defined, and no mark
  EXPECT_TRUE(t.is_special(260));
  EXPECT_EQ(Ids(t.end_of_generation().begin(), t.end_of_generation().end()), (Ids{257, 259, 261}));
  EXPECT_EQ(t.eot(), 259);
}

// ---- beside an oracle

// An oracle that applies the published rules to strings. It searches all pairs of a run again after every merge.
class Oracle {
 public:
  explicit Oracle(const GoldenVocab& v) : unknown_(v.data.special.unk) {
    for (size_t i = 0; i < v.data.tokens.size(); i++) {
      const std::string token(v.data.tokens[i]);
      const auto type = static_cast<TokenType>(v.data.types[i]);
      if (type == TokenType::normal) tokens_.emplace(token, static_cast<int32_t>(i));
      if (type == TokenType::byte) bytes_.emplace(token, static_cast<int32_t>(i));
    }
    for (size_t i = 0; i < v.data.merges.size(); i++) {
      const std::string merge(v.data.merges[i]);
      const size_t space = merge.find(' ');
      const std::string left = merge.substr(0, space), right = merge.substr(space + 1);
      if (tokens_.count(left + right)) ranks_.emplace(std::make_pair(left, right), i);
    }
  }
  Ids encode(std::string_view text) const {
    Ids out;
    const std::string all = with_blocks(text);
    for (size_t from = 0, at = 0; from < all.size(); from = at) {
      for (at = from; at < all.size() && (all[at] == '\n') == (all[from] == '\n');) at++;
      add_run(all.substr(from, at - from), &out);
    }
    return out;
  }

 private:
  void add_run(const std::string& run, Ids* out) const {
    if (run[0] == '\n' && tokens_.count(run)) return out->push_back(tokens_.at(run));
    std::vector<std::string> row;
    for (const char *p = run.data(), *end = p + run.size(); p < end; p += row.back().size())
      row.emplace_back(p, utf8_decode(p, end).length);
    for (;;) {
      size_t best = SIZE_MAX, place = 0;
      for (size_t i = 0; i + 1 < row.size(); i++)
        if (const auto rank = ranks_.find({row[i], row[i + 1]}); rank != ranks_.end() && rank->second < best)
          best = rank->second, place = i;
      if (best == SIZE_MAX) break;
      row[place] += row[place + 1];
      row.erase(row.begin() + static_cast<ptrdiff_t>(place) + 1);
    }
    for (const std::string& token : row) {
      if (tokens_.count(token)) {
        out->push_back(tokens_.at(token));
        continue;
      }
      for (const char c : token == kBlock ? " " : token) {  // a space without a token is its byte, so that texts come back
        const auto byte = bytes_.find(byte_token(static_cast<uint8_t>(c)));
        if (const int32_t id = byte != bytes_.end() ? byte->second : unknown_; id >= 0) out->push_back(id);
      }
    }
  }
  std::map<std::string, int32_t> tokens_, bytes_;
  std::map<std::pair<std::string, std::string>, size_t> ranks_;
  int32_t unknown_;
};

constexpr const char* kCharacters[] = {"a", "b", "c", kBlock, "\n", "\u00E9", "\u4E2D", "\U0001F999", "<"};

// Tokens grow by random merges. Some results are no tokens, some bytes and characters have none, and ranks are in no order.
GoldenVocab random_vocab(testing::RandomStrings* random, bool across_words) {
  GoldenVocab v;
  v.data.model = "gemma4";
  const bool has_bytes = random->next(4) != 0;
  for (int b = 0; b < 256; b++)
    if (has_bytes || random->next(2) == 0) v.add(byte_token(b), TokenType::byte);
  if (random->next(2) == 0) {
    v.data.special.unk = static_cast<int32_t>(v.data.tokens.size());
    v.add("<unk>", TokenType::control);
  }
  std::vector<std::string> tokens;
  std::vector<std::pair<std::string, std::string>> merges;
  for (const char* c : kCharacters)
    if (random->next(8) != 0) tokens.push_back(c);
  if (tokens.size() < 2) tokens = {"a", "b"};
  std::set<std::string> known(tokens.begin(), tokens.end());
  const auto crosses = [&](const std::string& token) {  // a block after another character
    for (size_t at = token.find(kBlock, 1); at != token.npos; at = token.find(kBlock, at + 1))
      if (at < 3 || token.compare(at - 3, 3, kBlock) != 0) return true;
    return false;
  };
  for (int i = 0; i < 80; i++) {
    const std::string left = tokens[random->next(tokens.size())], right = tokens[random->next(tokens.size())];
    const std::string both = left + right;
    if (!across_words && crosses(both)) continue;
    merges.emplace_back(left, right);
    if (both.size() < 40 && random->next(6) != 0 && known.insert(both).second) tokens.push_back(both);
  }
  for (size_t i = merges.size(); i > 1; i--) std::swap(merges[i - 1], merges[random->next(i)]);
  for (const std::string& token : tokens) v.add(token, TokenType::normal);
  for (const auto& [left, right] : merges) add_merge(&v, left, right);
  return v;
}

std::string random_text(testing::RandomStrings* random, size_t n) {
  std::string text;
  const size_t kinds = 1 + random->next(std::size(kCharacters));
  for (size_t i = 0; i < n; i++) switch (random->next(40)) {
      case 0: text.push_back(static_cast<char>(random->next(256))); break;
      case 1: text.append(1 + random->next(5), '\n'); break;
      case 2: text.append(1 + random->next(5), ' '); break;
      default: text.append(random->next(4) == 0 ? " " : kCharacters[random->next(kinds)]);
    }
  return text;
}

TEST(Gemma4Tokenizer, IsTheOracles) {
  testing::RandomStrings random(44, testing::RandomStrings::kPoolsInAll);
  for (int i = 0; i < 300; i++) {
    const GoldenVocab v = random_vocab(&random, i % 2 == 1);
    const Oracle oracle(v);
    const Tokenizer t = make(v);
    for (int j = 0; j < 20; j++) {
      const std::string text = random_text(&random, random.next(j < 15 ? 40 : 300));
      ASSERT_EQ(encode(t, text), oracle.encode(text)) << "vocabulary " << i << ": '" << text << "'";
    }
  }
}

TEST(Gemma4Tokenizer, RoundTripOfAnyBytes) {
  const Tokenizer t = make(small());
  testing::RandomStrings strings(45, testing::RandomStrings::kPoolsInAll);
  for (int i = 0; i < 3000; i++) {
    std::string text = strings.string();
    for (size_t n = i % 2 == 0 ? 0 : strings.next(6); n > 0; n--)
      text.insert(strings.next(text.size() + 1), 1, static_cast<char>(strings.next(256)));
    for (size_t at; (at = text.find(kBlock)) != text.npos;) text.replace(at, 3, " ");
    ASSERT_EQ(t.decode(encode(t, text)), text);
    ASSERT_LE(text.size(), t.max_text_bytes(encode(t, text).size()));
  }
}

// Sixteen times the text: n log n is 20 times the time, quadratic 256. Texts are cut before spaces, unless the vocabulary has a token
// with a space after a "b".
TEST(Gemma4Tokenizer, ALongTextTakesItsTime) {
  for (const bool cut : {true, false}) {
    GoldenVocab v = small();
    if (cut) v.data.tokens[273] = "bb";
    std::string token = "a";
    for (int i = 0; i < 6; i++) {
      add_merge(&v, token, token);
      v.add(token += token, TokenType::normal);
    }
    const Tokenizer t = make(v);
    const auto seconds = [&](const std::string& text) {
      const double start = testing::thread_seconds();
      int runs = 0;
      do encode(t, text);
      while (++runs < 100 && testing::thread_seconds() - start < .04);
      return (testing::thread_seconds() - start) / runs;
    };
    for (const char* unit : {"a", "ab", " ", "b ", "\n", "\u4E2D", "\xFF", "<", "<|tu"}) {
      std::string shorter, longer;
      while (shorter.size() < (1u << 14)) shorter += unit;
      while (longer.size() < (1u << 18)) longer += unit;
      EXPECT_EQ(t.decode(encode(t, longer)), longer);
      const double first = seconds(shorter), second = seconds(longer);
      EXPECT_LT(second, 100 * std::max(first, 1e-4)) << "'" << unit << "'";
    }
  }
}

TEST(Gemma4Tokenizer, ALimitEndsALongText) {
  const Tokenizer t = make(small());
  EncodeOptions options;
  options.max_tokens = 10;
  for (const char* unit : {"a", " a", "\n", "z"}) {
    std::string text;
    for (int i = 0; i < 5000; i++) text += unit;
    Ids ids{7};
    EXPECT_EQ(t.encode(text, options, &ids).code(), Code::context_full) << unit;
    EXPECT_EQ(ids, Ids{7});
  }
  std::atomic<bool> cancel{true};
  options.max_tokens = 0, options.cancel = &cancel;
  Ids ids;
  EXPECT_EQ(t.encode("ab ab", options, &ids).code(), Code::cancelled);
}

// ---- vocabularies that contradict themselves

TEST(Gemma4Tokenizer, ARuleWhoseResultIsNoTokenIsLeftOut) {
  GoldenVocab v = small();
  v.data.merges.insert(v.data.merges.begin(), "b a");  // the best rule of all
  EXPECT_EQ(encode(make(v), "bab"), (Ids{kB, kAb}));
  v.data.types[kAb] = static_cast<int32_t>(TokenType::control);  // a result that text must not become
  EXPECT_EQ(encode(make(v), "ab"), (Ids{kA, kB}));
}

TEST(Gemma4Tokenizer, ATokenWithASpaceIsNoText) {
  GoldenVocab v = small();
  v.data.tokens[200] = " a", v.data.types[200] = static_cast<int32_t>(TokenType::normal);  // before U+2581 and "a"
  const Tokenizer t = make(v);
  EXPECT_EQ(encode(t, " a"), (Ids{kSpaceA}));
  EXPECT_EQ(t.find(" a"), kSpaceA);
  EXPECT_EQ(t.token_type(200), TokenType::unused);
}

TEST(Gemma4Tokenizer, AByteWithoutATokenIsUnknown) {
  GoldenVocab v = small();
  v.data.tokens['z'] = "zz", v.data.types['z'] = static_cast<int32_t>(TokenType::normal);
  EXPECT_EQ(encode(make(v), "azb"), (Ids{kA, kB}));
  EXPECT_EQ(make(v).max_text_bytes(1), SIZE_MAX);
  v.data.special.unk = 258;
  EXPECT_EQ(encode(make(v), "azzb"), (Ids{kA, 258, 258, kB}));
  EXPECT_LT(make(v).max_text_bytes(1), SIZE_MAX);
}

TEST(Gemma4Tokenizer, BadVocabulariesAreRefusedByName) {
  const struct {
    const char* what;
    void (*spoil)(GoldenVocab*);
    Code code;
    const char* says;
  } cases[] = {
      {"merge of no token", [](GoldenVocab* v) { v->data.merges[1] = "a\u00E9\u00E9 b", v->data.tokens[kAb] = "a\u00E9\u00E9b"; },
       Code::bad_model, "tokenizer.ggml.merges[1]"},
      {"merge without space", [](GoldenVocab* v) { v->data.merges[1] = "ab"; }, Code::bad_model, "tokenizer.ggml.merges[1]"},
      {"merge not UTF-8", [](GoldenVocab* v) { v->data.merges[2] = "a \xC3"; }, Code::bad_model, "tokenizer.ggml.merges[2]"},
      {"token not UTF-8", [](GoldenVocab* v) { v->data.tokens[kA] = "a\xFF"; }, Code::bad_model, "tokenizer.ggml.tokens[263]"},
      {"no byte", [](GoldenVocab* v) { v->data.tokens[9] = "<0x0G>"; }, Code::bad_model, "tokenizer.ggml.tokens[9]"},
      {"scores too short", [](GoldenVocab* v) { v->data.scores = {1.0f}; }, Code::bad_model, "tokenizer.ggml.scores"},
      {"pre-tokenizer", [](GoldenVocab* v) { v->data.pre = "qwen2"; }, Code::unsupported, "tokenizer.ggml.pre"},
      {"extra spaces", [](GoldenVocab* v) { v->data.remove_extra_whitespaces = true; }, Code::unsupported,
       "tokenizer.ggml.remove_extra_whitespaces"},
  };
  for (const auto& c : cases) {
    GoldenVocab v = small();
    c.spoil(&v);
    const Result<Tokenizer> t = Tokenizer::from_vocab(v.data);
    ASSERT_FALSE(t.ok()) << c.what;
    EXPECT_EQ(t.status().code(), c.code) << c.what;
    EXPECT_NE(std::string(t.status().message()).find(c.says), std::string::npos) << c.what << ": " << t.status().message();
  }
}

TEST(Gemma4Tokenizer, AFileNeedsMerges) {
  const GoldenVocab v = small();
  for (const bool merges : {true, false}) {
    testing::GgufBuilder b;
    b.key("general.architecture", "gemma4").key("tokenizer.ggml.model", "gemma4").key("tokenizer.ggml.add_bos_token", false);
    b.array("tokenizer.ggml.tokens", std::vector<std::string>(v.data.tokens.begin(), v.data.tokens.end()));
    b.array("tokenizer.ggml.token_type", v.data.types);
    if (merges) b.array("tokenizer.ggml.merges", std::vector<std::string>(v.data.merges.begin(), v.data.merges.end()));
    const testing::Bytes bytes = b.build();
    Result<gguf::File> file = gguf::File::parse({bytes.data(), bytes.size()}, "test.gguf");
    ASSERT_TRUE(file.ok()) << file.status().message();
    Result<Tokenizer> t = Tokenizer::from_gguf(*file);
    ASSERT_EQ(t.ok(), merges);
    if (!merges) {
      EXPECT_NE(std::string(t.status().message()).find("tokenizer.ggml.merges"), std::string::npos) << t.status().message();
      continue;
    }
    EXPECT_TRUE(t->add_bos());
    EXPECT_EQ(encode(*t, "ab ab"), (Ids{kAb, kSpaceAb}));
  }
}

}  // namespace
}  // namespace orrery::text::gemma4_tokenizer_test
