// Answers of a given form, through the ABI: each kind of grammar, whole and cut answers, errors that name their place, and older callers.
#include <gtest/gtest.h>

#include <string>

#include "tests/abi/handles.h"
#include "tests/support/shared.h"
#include "tests/support/temp_dir.h"

namespace orrery::testing::contract_grammar_test {
namespace {

class Grammars : public ::testing::Test {
 protected:
  orrery_generate_options under(uint32_t kind, const char* grammar, uint32_t max_tokens = 80) {
    orrery_generate_options o = generate_options(max_tokens);
    o.grammar = grammar;
    o.grammar_kind = kind;
    return o;
  }
  Answer answer(const orrery_generate_options& o) {
    Session session = open_session(model, 512);
    say(session, "hello");
    const Generation g = generate(session, o);
    return pull(g.get(), [](const orrery_event&) {});
  }
  orrery_status refusal(const orrery_generate_options& o, orrery_error* error) {
    Session session = open_session(model, 512);
    say(session, "hello");
    orrery_error_init(error, sizeof *error);
    orrery_generation* g = nullptr;
    const orrery_status status = orrery_generate(session.get(), &o, &g, error);
    EXPECT_EQ(g, nullptr);
    orrery_generation_free(g);
    return status;
  }
  TempDir dir;
  std::string path = dir.write("tiny.gguf", TinyModel().build());
  Runtime runtime = make_runtime();
  Model model = open_model(runtime, path);
};

TEST_F(Grammars, EachKindGivesItsAnswers) {
  Answer a = answer(under(ORRERY_GRAMMAR_GBNF, "root ::= \"yes, \" [a-c]{3}"));
  EXPECT_EQ(a.text().substr(0, 5), "yes, ");
  EXPECT_EQ(a.text().size(), 8u);
  EXPECT_EQ(a.done.finish_reason, uint32_t{ORRERY_FINISH_END});
  EXPECT_EQ(a.done.complete, 1u);
  orrery_generate_options o = under(ORRERY_GRAMMAR_GBNF, "root ::= \"x\"\nother ::= \"y\" \"z\"");
  o.grammar_root = "other";
  EXPECT_EQ(answer(o).text(), "yz");
  a = answer(under(ORRERY_GRAMMAR_REGEX, "(ab|ba){2}\\d"));
  EXPECT_EQ(a.text().size(), 5u);
  o = under(ORRERY_GRAMMAR_JSON_SCHEMA,
            R"({"type": "object", "properties": {"n": {"const": 12}, "b": {"const": true}}, "required": ["n", "b"],
                                          "additionalProperties": false})");
  o.grammar_whitespace = ORRERY_WHITESPACE_COMPACT;
  EXPECT_EQ(answer(o).text(), "{\"n\":12,\"b\":true}");
  o.grammar_whitespace = ORRERY_WHITESPACE_SPACED;
  EXPECT_EQ(answer(o).text(), "{\"n\": 12, \"b\": true}");
}

TEST_F(Grammars, CutAnswersSaySo) {
  const Answer cut = answer(under(ORRERY_GRAMMAR_GBNF, "root ::= \"a text of many letters\"", 5));
  EXPECT_EQ(cut.done.finish_reason, uint32_t{ORRERY_FINISH_LENGTH});
  EXPECT_EQ(cut.done.complete, 0u);
  const Answer closed = answer(under(ORRERY_GRAMMAR_GBNF, "root ::= \"(\" [a-z]+ \")\"", 9));
  EXPECT_EQ(closed.text().back(), ')') << closed.text();
  EXPECT_EQ(closed.done.complete, 1u);
  EXPECT_EQ(answer(generate_options(4)).done.complete, 0u) << "without a grammar";
}

TEST_F(Grammars, ErrorsNameTheirPlace) {
  orrery_error error;
  EXPECT_EQ(refusal(under(ORRERY_GRAMMAR_GBNF, "root ::= \"a\"\nb ::= missing"), &error), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(error.line, 2u) << error.message;
  EXPECT_EQ(error.column, 7u) << error.message;
  EXPECT_NE(std::string(error.message).find("missing"), std::string::npos) << error.message;
  EXPECT_EQ(refusal(under(ORRERY_GRAMMAR_JSON_SCHEMA, "{\"type\": "), &error), ORRERY_INVALID_ARGUMENT);
  EXPECT_GT(error.column, 0u) << error.message;
  EXPECT_EQ(refusal(under(ORRERY_GRAMMAR_JSON_SCHEMA, R"({"type": "array", "uniqueItems": true})"), &error), ORRERY_UNSUPPORTED);
  EXPECT_NE(std::string(error.message).find("uniqueItems"), std::string::npos) << error.message;
  EXPECT_EQ(refusal(under(ORRERY_GRAMMAR_REGEX, "a(?=b)"), &error), ORRERY_UNSUPPORTED);
  EXPECT_EQ(refusal(under(ORRERY_GRAMMAR_REGEX, "a["), &error), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(refusal(under(ORRERY_GRAMMAR_REGEX, "a\xff"), &error), ORRERY_INVALID_ARGUMENT);
  EXPECT_NE(std::string(error.message).find("grammar"), std::string::npos) << error.message;
  EXPECT_EQ(refusal(under(7, "a"), &error), ORRERY_INVALID_ARGUMENT);
  EXPECT_NE(std::string(error.message).find("grammar_kind"), std::string::npos);
  orrery_generate_options o = under(ORRERY_GRAMMAR_JSON_SCHEMA, "{}");
  o.grammar_whitespace = 9;
  EXPECT_EQ(refusal(o, &error), ORRERY_INVALID_ARGUMENT);
  EXPECT_NE(std::string(error.message).find("grammar_whitespace"), std::string::npos);
  o = under(ORRERY_GRAMMAR_GBNF, "root ::= \"a\"");
  o.grammar_root = "absent";
  EXPECT_EQ(refusal(o, &error), ORRERY_INVALID_ARGUMENT);
  o = under(ORRERY_GRAMMAR_GBNF, "root ::= \"a\"");
  o.grammar_tokens = 1;
  EXPECT_EQ(refusal(o, &error), ORRERY_INVALID_ARGUMENT) << "the answer to a conversation has no earlier tokens";
  const std::string large(5u << 20, ' ');
  EXPECT_EQ(refusal(under(ORRERY_GRAMMAR_GBNF, large.c_str()), &error), ORRERY_UNSUPPORTED);
  EXPECT_EQ(error.bytes_requested, large.size());
  EXPECT_EQ(error.bytes_available, 4u << 20);
  // A caller of the version before grammars.
  o = generate_options(3);
  o.struct_size = 104;
  o.grammar = reinterpret_cast<const char*>(1);
  EXPECT_EQ(answer(o).done.generated_tokens, 3u);
}

// Matchers ---------------------------------------------------------------------------------------------------

struct FreeMatcher {
  void operator()(orrery_matcher* h) const { orrery_matcher_free(h); }
};
using MatcherHandle = std::unique_ptr<orrery_matcher, FreeMatcher>;

class Matchers : public Grammars {
 protected:
  MatcherHandle make(uint32_t kind, const char* grammar) { return make(under(kind, grammar)); }
  MatcherHandle make(const orrery_generate_options& o) {
    orrery_vocab* vocab = orrery_model_vocab(model.get());
    orrery_matcher* h = nullptr;
    Error e;
    check(orrery_matcher_create(vocab, &o, &h, &e), e, "orrery_matcher_create");
    orrery_vocab_free(vocab);  // the matcher keeps what it needs
    return MatcherHandle(h);
  }
  std::vector<uint32_t> mask(const MatcherHandle& m) {
    Error e;
    size_t n = 0;
    check(orrery_matcher_mask(m.get(), nullptr, 0, &n, &e), e, "orrery_matcher_mask");
    std::vector<uint32_t> words(n);
    check(orrery_matcher_mask(m.get(), words.data(), n, &n, &e), e, "orrery_matcher_mask");
    return words;
  }
  static bool allows(const std::vector<uint32_t>& words, int32_t token) {
    return words.at(static_cast<size_t>(token) / 32) >> (token % 32) & 1;
  }
  size_t accept(const MatcherHandle& m, const std::vector<int32_t>& tokens) {
    Error e;
    size_t n = 0;
    check(orrery_matcher_accept(m.get(), tokens.data(), tokens.size(), &n, &e), e, "orrery_matcher_accept");
    return n;
  }
  Error error;
};

TEST_F(Matchers, KeysComeInAnyOrderWhereTheyMay) {
  orrery_generate_options o = under(ORRERY_GRAMMAR_JSON_SCHEMA, R"({"type": "object", "properties": {"n": {"const": 1}, "b": {"const": 2}},
                                                                     "required": ["n", "b"], "additionalProperties": false})");
  const auto fits = [&](const std::string& text) {
    const MatcherHandle matcher = make(o);
    size_t n = 0;
    uint32_t complete = 0;
    EXPECT_EQ(orrery_matcher_match(matcher.get(), text.data(), text.size(), &n, &complete, nullptr), ORRERY_OK);
    return complete == 1;
  };
  EXPECT_TRUE(fits(R"({"n": 1, "b": 2})"));
  EXPECT_FALSE(fits(R"({"b": 2, "n": 1})"));
  o.grammar_any_order = 1;  // the schema was compiled before: the two are told apart
  EXPECT_TRUE(fits(R"({"n": 1, "b": 2})"));
  EXPECT_TRUE(fits(R"({"b": 2, "n": 1})"));
  EXPECT_FALSE(fits(R"({"b": 2, "b": 2, "n": 1})"));
  EXPECT_FALSE(fits(R"({"b": 2})"));
  const std::string text = answer(o).text();
  EXPECT_TRUE(fits(text)) << text;
}

TEST_F(Matchers, MasksFollowTheText) {
  const MatcherHandle m = make(ORRERY_GRAMMAR_GBNF, "root ::= \"ab\" [0-9]? ");
  EXPECT_TRUE(allows(mask(m), kByte0 + 'a'));
  EXPECT_FALSE(allows(mask(m), kByte0 + 'b'));
  EXPECT_FALSE(allows(mask(m), 2)) << "an end";
  EXPECT_EQ(accept(m, byte_tokens("ax")), 1u) << "as far as they are allowed";
  EXPECT_TRUE(allows(mask(m), kByte0 + 'b'));
  EXPECT_EQ(accept(m, byte_tokens("b")), 1u);
  EXPECT_TRUE(allows(mask(m), 2));
  EXPECT_TRUE(allows(mask(m), kByte0 + '7'));
  EXPECT_EQ(accept(m, byte_tokens("7")), 1u);
  EXPECT_FALSE(allows(mask(m), kByte0 + '7'));
  ASSERT_EQ(orrery_matcher_rewind(m.get(), 1, &error), ORRERY_OK);
  EXPECT_TRUE(allows(mask(m), kByte0 + 'b'));
  EXPECT_EQ(orrery_matcher_rewind(m.get(), 2, &error), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(accept(m, {-1}), 0u);
  EXPECT_EQ(accept(m, {1 << 30}), 0u);
}

TEST_F(Matchers, ForcedTokensAndWholeTexts) {
  const MatcherHandle m = make(ORRERY_GRAMMAR_JSON_SCHEMA, R"({"enum": ["north", "nowhere"]})");
  size_t n = 0;
  ASSERT_EQ(orrery_matcher_forced(m.get(), nullptr, 0, &n, &error), ORRERY_OK);
  std::vector<int32_t> tokens(n);
  ASSERT_EQ(orrery_matcher_forced(m.get(), tokens.data(), n, &n, &error), ORRERY_OK);
  EXPECT_EQ(accept(m, tokens), n);
  EXPECT_TRUE(allows(mask(m), kByte0 + 'r')) << "behind \"no";
  EXPECT_TRUE(allows(mask(m), kByte0 + 'w'));
  ASSERT_EQ(orrery_matcher_forced(m.get(), nullptr, 0, &n, &error), ORRERY_OK);
  EXPECT_EQ(n, 0u);
  const auto match = [&](const std::string& text, size_t matched, uint32_t whole) {
    size_t bytes = 99;
    uint32_t complete = 99;
    EXPECT_EQ(orrery_matcher_match(m.get(), text.data(), text.size(), &bytes, &complete, &error), ORRERY_OK);
    EXPECT_EQ(bytes, matched) << text;
    EXPECT_EQ(complete, whole) << text;
  };
  match("\"north\"", 7, 1);
  match("\"nort", 5, 0);
  match("\"nowhat\"", 5, 0);
  match("", 0, 0);
}

TEST_F(Matchers, DescribeAndRefusals) {
  const MatcherHandle m = make(ORRERY_GRAMMAR_JSON_SCHEMA, R"({"type": "string", "format": "no-such-\"format"})");
  size_t n = 0;
  ASSERT_EQ(orrery_matcher_describe(m.get(), nullptr, 0, &n, &error), ORRERY_OK);
  std::string json(n, ' ');
  ASSERT_EQ(orrery_matcher_describe(m.get(), json.data(), n, &n, &error), ORRERY_OK);
  EXPECT_NE(json.find("no-such-\\\"format"), std::string::npos) << json;
  EXPECT_NE(json.find("\"states\": "), std::string::npos) << json;

  orrery_vocab* vocab = orrery_model_vocab(model.get());
  orrery_matcher* h = reinterpret_cast<orrery_matcher*>(uintptr_t{0x10});
  EXPECT_EQ(orrery_matcher_create(vocab, nullptr, &h, &error), ORRERY_INVALID_ARGUMENT) << "no grammar";
  EXPECT_EQ(h, nullptr);
  orrery_generate_options o = under(ORRERY_GRAMMAR_GBNF, "root ::= ");
  EXPECT_EQ(orrery_matcher_create(nullptr, &o, &h, &error), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(orrery_matcher_create(vocab, &o, nullptr, &error), ORRERY_INVALID_ARGUMENT);
  o.grammar = "root = 1";
  EXPECT_EQ(orrery_matcher_create(vocab, &o, &h, &error), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(error.line, 1u);
  orrery_vocab_free(vocab);
  size_t bytes = 0;
  uint32_t whole = 0;
  EXPECT_EQ(orrery_matcher_mask(nullptr, nullptr, 0, &n, &error), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(orrery_matcher_accept(m.get(), nullptr, 3, &n, &error), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(orrery_matcher_accept(m.get(), nullptr, 0, &n, &error), ORRERY_OK);
  EXPECT_EQ(orrery_matcher_rewind(nullptr, 0, &error), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(orrery_matcher_forced(m.get(), nullptr, 0, nullptr, &error), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(orrery_matcher_match(m.get(), nullptr, 1, &bytes, &whole, &error), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(orrery_matcher_describe(nullptr, nullptr, 0, &n, &error), ORRERY_INVALID_ARGUMENT);
  uint32_t word = 0;
  EXPECT_EQ(orrery_matcher_mask(m.get(), &word, 1, &n, &error), ORRERY_INVALID_ARGUMENT) << "too small";
  EXPECT_GT(n, 1u);
  orrery_matcher_free(nullptr);
}

}  // namespace
}  // namespace orrery::testing::contract_grammar_test
