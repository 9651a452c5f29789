// JSON schemas: which values each keyword lets through, alone and beside others; what is refused, by name; and sources that would bring a
// naive compiler down. A case is a schema, the values that it must take and those that it must not, as JSON texts.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <string>

#include "runtime/text/grammar/grammar.h"
#include "runtime/text/grammar/json_schema/decimal.h"
#include "runtime/text/json/json.h"

namespace orrery::text::grammar::schema_test {
namespace {

std::shared_ptr<const TokenTrie> byte_trie() {
  static const auto trie = [] {
    static std::vector<std::string> bytes;
    for (int b = 0; b < 256; ++b) bytes.push_back(std::string(1, char(b)));
    bytes.push_back("");
    return TokenTrie::make(std::vector<std::string_view>(bytes.begin(), bytes.end()), {256}).value();
  }();
  return trie;
}

Result<std::shared_ptr<Grammar>> compiled(const std::string& schema, SchemaOptions::Whitespace whitespace = SchemaOptions::Whitespace::free,
                                          bool any_order = false) {
  GrammarOptions options;
  options.schema.any_order = any_order;
  options.language = Language::json_schema;
  options.schema.whitespace = whitespace;
  return Grammar::compile(schema, options, byte_trie());
}

bool takes(const Grammar& grammar, const std::string& text) {
  bool complete;
  return grammar.match(text, &complete) == text.size() && complete;
}

struct Case {
  const char* schema;
  std::vector<const char*> right, wrong;
};

void expect_cases(const std::vector<Case>& cases) {
  for (const Case& c : cases) {
    auto grammar = compiled(c.schema);
    if (!grammar.ok()) {
      EXPECT_TRUE(c.right.empty()) << c.schema << ": " << grammar.status().message();
      EXPECT_EQ(grammar.status().code(), Code::invalid_argument) << c.schema << ": " << grammar.status().message();
      continue;
    }
    for (const char* text : c.right) EXPECT_TRUE(takes(**grammar, text)) << c.schema << " must take " << text;
    for (const char* text : c.wrong) EXPECT_FALSE(takes(**grammar, text)) << c.schema << " must not take " << text;
  }
}

TEST(GrammarSchema, TypesAndValues) {
  expect_cases({
      {"true",
       {"1", "null", "{}", "[[]]", "\"\"", "-1.5e3", "{\"a\": [true, {\"b\": null}]}"},
       {"", "nul", "[1,]", "{\"a\"}", "01", "1.", "+1", "\"\n\"", " 1", "1 ", "'a'"}},
      {"false", {}, {"1"}},
      {"{}", {"1", "{\"a\":1}"}, {"tru"}},
      {R"({"type": "null"})", {"null"}, {"0", "false"}},
      {R"({"type": "boolean"})", {"true", "false"}, {"1", "null"}},
      {R"({"type": "integer"})", {"0", "-7", "123456789"}, {"1.5", "-0", "01", "\"1\"", "1e3"}},
      {R"({"type": "number"})",
       {"0", "-7", "1.25", "1e-9", "0.5E+10", "1e289", "1e-999", "2e099"},
       {"1e290", "1e+300", "01", ".5", "1.", "1e", "--1"}},
      {R"({"type": ["string", "null"]})", {"\"a\"", "null"}, {"1", "[]"}},
      {R"({"type": ["integer", "number"]})", {"1.5", "2"}, {"\"\""}},
      {R"({"enum": [1, "a", null, [1, 2], {"a": true}]})",
       {"1", "\"a\"", "null", "[1, 2]", "{\"a\": true}"},
       {"2", "\"b\"", "[2, 1]", "{}"}},
      {R"({"enum": [1, "a", 3], "type": "integer", "minimum": 2})", {"3"}, {"1", "\"a\""}},
      {R"({"const": {"a": [1, "é\n\"\\"]}})", {R"({"a": [1, "é\n\"\\"]})"}, {"{\"a\": [1]}"}},
      {R"({"enum": [1, 2], "const": 2})", {"2"}, {"1"}},
      {R"({"enum": []})", {}, {"1"}},
      {R"({"const": 1, "type": "string"})", {}, {"1"}},
  });
}

TEST(GrammarSchema, Strings) {
  expect_cases({
      {R"({"type": "string"})",
       {"\"\"", "\"é\xF0\x9F\x98\x80\"", R"("\"\\\/\b\f\n\r\t")"},
       {"\"\t\"", R"("\x")", R"("\u0041")", "\"", "\"\xFF\""}},
      {R"({"type": "string", "minLength": 2, "maxLength": 3})",
       {"\"ab\"", "\"éé\xF0\x9F\x98\x80\"", R"("\n\"\\")"},
       {"\"a\"", "\"abcd\"", "\"\"", R"("\n\n\n\n")"}},
      {R"({"type": "string", "maxLength": 10000})", {"\"abc\""}, {"\"\n\""}},
      {R"({"type": "string", "maxLength": 0})", {"\"\""}, {"\"a\""}},
      {R"({"minLength": 3})", {"1", "\"abc\""}, {"\"ab\""}},
      {R"({"type": "string", "minLength": 3, "maxLength": 2})", {}, {"\"ab\""}},
      {R"({"type": "string", "pattern": "^a+$"})", {"\"a\"", "\"aaa\""}, {"\"\"", "\"ab\""}},
      {R"({"type": "string", "pattern": "b"})", {"\"abc\"", "\"b\""}, {"\"ac\""}},
      {R"({"type": "string", "pattern": "\\n"})", {R"("a\nb")"}, {"\"anb\"", "\"a\nb\""}},
      {R"({"type": "string", "pattern": "^[a-z]{2,4}$", "minLength": 3})", {"\"abc\"", "\"abcd\""}, {"\"ab\"", "\"abcde\""}},
      {R"({"type": "string", "pattern": "^[^x]*$", "maxLength": 3, "allOf": [{"pattern": "a"}, {"pattern": "b"}]})",
       {"\"ab\"", "\"bca\""},
       {"\"aa\"", "\"abcc\"", "\"abx\""}},
      {R"({"type": "string", "format": "date"})",
       {"\"2024-02-29\"", "\"2000-02-29\"", "\"1999-12-31\""},
       {"\"2023-02-29\"", "\"1900-02-29\"", "\"2024-13-01\"", "\"2024-04-31\"", "\"24-01-01\""}},
      {R"({"type": "string", "format": "date-time"})",
       {"\"2024-02-29T23:59:59Z\"", "\"2024-02-29t00:00:00.25+01:30\""},
       {"\"2024-02-29\"", "\"2024-02-29T24:00:00Z\"", "\"2024-02-29T00:00:00\""}},
      {R"({"format": "uuid"})", {"\"2eb8aa08-aa98-11ea-b4aa-73b441d16380\"", "1"}, {"\"2eb8aa08-aa98-11ea-b4aa-73b441d1638\""}},
      {R"({"format": "ipv4"})", {"\"0.0.0.0\"", "\"255.255.255.255\""}, {"\"256.0.0.1\"", "\"1.2.3\"", "\"01.2.3.4\""}},
      {R"({"format": "ipv6"})",
       {"\"::\"", "\"::1\"", "\"fe80::1\"", "\"1:2:3:4:5:6:7:8\"", "\"::ffff:1.2.3.4\""},
       {"\"1:2:3:4:5:6:7\"", "\"1::2::3\"", "\":1\"", "\"12345::\""}},
      {R"({"format": "email"})", {"\"a.b@c.de\""}, {"\"a@\"", "\"@b\"", "\"a..b@c\""}},
      {R"({"format": "duration"})", {"\"P1Y2M3DT4H5M6S\"", "\"PT1S\"", "\"P2W\""}, {"\"P\"", "\"PT\"", "\"P1D2W\"", "\"P1S\""}},
      {R"({"format": "uri"})",
       {"\"http://a.b/c?d=%20#e\"", "\"urn:isbn:0\"", "\"file:///a/b\""},
       {"\"://\"", "\"file://\"", "\"/a\"", "\"a b:c\"", "\"http://é.x\""}},
      {R"({"format": "uri-reference"})",
       {"\"\"", "\"Web\"", "\"/a/b\"", "\"//a.b/c\"", "\"../a?b#c\"", "\"x:y\"", "\"#a\""},
       {"\"://\"", "\"a b\"", "\"1a:b\"", "\"%1\"", R"("\\a")"}},
      {R"({"format": "iri"})", {"\"http://é.x/😀\"", "\"http://a.b\""}, {"\"not-an-iri\"", "\"/é\"", "\"http://\xEE\x80\x80\""}},
      {R"({"format": "iri-reference"})", {"\"é\"", "\"#é\""}, {"\"://\"", R"("\\a")"}},
      {R"({"format": "uri-template"})",
       {"\"http://a.b/{c}/{?d,e*}\"", "\"\"", "\"{+a.b:3}\""},
       {"\"http://a.b/{\"", "\"{}\"", "\"}\"", "\"{a b}\"", "\"%x\""}},
      {R"({"format": "json-pointer"})", {"\"\"", "\"/a/~0~1/\""}, {"\"a\"", "\"/~2\"", "\"/~\""}},
      {R"({"format": "relative-json-pointer"})", {"\"0\"", "\"1/a\"", "\"0#\""}, {"\"/a\"", "\"01\"", "\"0##\"", "\"-1\""}},
      {R"({"format": "regex"})",
       {"\"\"", "\"^a(b|(?:c+)?)[^0-9a-f-]{2,}$\"", "\"a{3,16}b{2,3}\"", R"("\\d{1,3}\\.(?=x)|\\bc*?")"},
       {"\"*\"", "\"a**\"", "\"(a\"", "\"a)\"", "\"[a\"", "\"a{2,1}\"", "\"[z-a]\"", "\"{1}\"", "\"^*\"", "\"(?=a)*\"", "\"(*)\"",
        "\"a|*\"", R"("\\")", R"("\\1")"}},
      {R"({"format": "no-such-format"})", {"\"x\""}, {}},
  });
}

TEST(GrammarSchema, Numbers) {
  expect_cases({
      {R"({"type": "integer", "minimum": -12, "maximum": 105})", {"-12", "-1", "0", "9", "99", "105"}, {"-13", "106", "1000", "-0", "00"}},
      {R"({"type": "number", "minimum": 0.25, "exclusiveMaximum": 1})", {"0.25", "0.3", "0.999"}, {"0.2", "1", "1.0", "0.249", "2"}},
      {R"({"type": "number", "exclusiveMinimum": 0})", {"1", "0.001"}, {"0", "0.0", "-1"}},
      {R"({"$schema": "http://json-schema.org/draft-04/schema#", "minimum": 3, "exclusiveMinimum": true})", {"4", "3.5"}, {"3", "3.0"}},
      {R"({"type": "integer", "multipleOf": 7, "minimum": 10})", {"14", "21", "700"}, {"7", "15", "10"}},
      {R"({"type": "number", "multipleOf": 0.25})", {"0.25", "1", "1.5", "-2.75"}, {"0.1", "1.3"}},
      {R"({"type": "integer", "multipleOf": 0.5})", {"1", "2"}, {"0.5"}},
      {R"({"type": "integer", "allOf": [{"multipleOf": 4}, {"multipleOf": 6}]})", {"12", "0", "-24"}, {"4", "6", "18"}},
      {R"({"minimum": 10, "maximum": 9, "type": "number"})", {}, {"10"}},
      {R"({"type": "integer", "minimum": 99999999999999999999999})",
       {"99999999999999999999999", "100000000000000000000000"},
       {"99999999999999999999998"}},
  });
}

// Every interval with ends in steps of a quarter, open and closed, against arithmetic.
TEST(GrammarSchema, IntervalsAgreeWithArithmetic) {
  std::vector<std::string> texts;
  for (int n = -520; n <= 520; n += 5) {
    if (n == 0) continue;
    std::string text = std::to_string(std::abs(n) / 100) + "." + std::to_string(std::abs(n) % 100 / 10) + std::to_string(std::abs(n) % 10);
    texts.push_back((n < 0 ? "-" : "") + text);
  }
  for (int n = -12; n <= 12; ++n) texts.push_back(std::to_string(n));
  for (int low = -9; low <= 9; low += 3) {
    for (int high = low; high <= 10; high += 3) {
      for (int open = 0; open < 4; ++open) {
        for (const char* type : {"number", "integer"}) {
          const double least = low / 2.0, most = high / 2.0;
          const std::string schema = std::string("{\"type\": \"") + type + "\", \"" + (open & 1 ? "exclusiveMinimum" : "minimum") +
                                     "\": " + std::to_string(least) + ", \"" + (open & 2 ? "exclusiveMaximum" : "maximum") +
                                     "\": " + std::to_string(most) + "}";
          auto grammar = compiled(schema);
          for (const std::string& text : texts) {
            const double v = std::strtod(text.c_str(), nullptr);
            const bool whole = text.find('.') == std::string::npos;
            const bool want = (open & 1 ? v > least : v >= least) && (open & 2 ? v < most : v <= most) && (whole || type[0] == 'n');
            ASSERT_EQ(grammar.ok() && takes(**grammar, text), want) << schema << " on " << text;
          }
        }
      }
    }
  }
}

TEST(GrammarSchema, Arrays) {
  expect_cases({
      {R"({"type": "array", "items": {"type": "integer"}})",
       {"[]", "[1]", "[1, 2, 3]", "[1,2]", "[\n  1,\n  2\n]"},
       {"[1.5]", "[1,]", "[,1]", "1"}},
      {R"({"type": "array", "minItems": 1, "maxItems": 3})", {"[1]", "[1, 2, 3]"}, {"[]", "[1, 2, 3, 4]"}},
      {R"({"type": "array", "minItems": 100, "items": {"const": 1}})", {}, {"[1, 1]"}},
      {R"({"prefixItems": [{"type": "integer"}, {"type": "string"}], "items": false})",
       {"[]", "[1]", "[1, \"a\"]", "7"},
       {"[\"a\"]", "[1, \"a\", 1]"}},
      {R"({"type": "array", "prefixItems": [{"const": 1}], "items": {"const": 2}, "minItems": 2})",
       {"[1, 2]", "[1, 2, 2]"},
       {"[1]", "[2, 2]", "[1, 1]"}},
      {R"({"$schema": "http://json-schema.org/draft-07/schema#", "type": "array", "items": [{"const": 1}], "additionalItems": false})",
       {"[]", "[1]"},
       {"[1, 1]"}},
      {R"({"type": "array", "items": {"type": "integer"}, "contains": {"minimum": 5}})", {"[5]", "[1, 7, 2]"}, {"[]", "[1, 2]"}},
      {R"({"type": "array", "contains": {"const": 1}, "minContains": 2, "maxItems": 3})",
       {"[1, 1]", "[1, 2, 1]"},
       {"[1]", "[1, 2, 2]", "[1, 1, 1, 1]"}},
      {R"({"type": "array", "items": false})", {"[]"}, {"[1]"}},
      {R"({"type": "array", "items": {"$ref": "#"}})", {"[[], [[]]]"}, {"[1]"}},
  });
  auto many = compiled(R"({"type": "array", "items": {"const": 1}, "minItems": 100, "maxItems": 300})").value();
  const auto list = [](int n) {
    std::string out = "[1";
    for (int i = 1; i < n; ++i) out += ", 1";
    return out + "]";
  };
  for (const int n : {1, 99, 100, 101, 299, 300, 301}) EXPECT_EQ(takes(*many, list(n)), n >= 100 && n <= 300) << n;
}

TEST(GrammarSchema, Objects) {
  expect_cases({
      {R"({"type": "object", "properties": {"a": {"type": "integer"}, "b": {}}, "required": ["a"], "additionalProperties": false})",
       {"{\"a\": 1}", "{\"a\": 1, \"b\": []}", "{\"a\":1,\"b\":2}", "{\n  \"a\": 1\n}"},
       {"{}", "{\"b\": 1}", "{\"a\": \"x\"}", "{\"a\": 1, \"c\": 1}", "{\"a\": 1, \"a\": 2}", "{\"a\": 1,}"}},
      {R"({"properties": {"a": {"type": "integer"}}})",
       {"{}", "{\"a\": 1, \"c\": 1}", "{\"b\": 1}", "{\"ab\": \"x\"}", "{\"\": 1}"},
       {"{\"a\": \"x\"}", "{\"b\": 1, \"a\": \"x\"}"}},
      {R"({"type": "object", "required": ["z", "a"]})", {"{\"z\": 1, \"a\": 2}", "{\"z\": 1, \"a\": 2, \"b\": 3}"}, {"{\"z\": 1}", "{}"}},
      {R"({"type": "object", "additionalProperties": {"type": "integer"}})", {"{}", "{\"x\": 1, \"y\": 2}"}, {"{\"x\": \"1\"}"}},
      {R"({"type": "object", "patternProperties": {"^a": {"type": "integer"}, "b$": {"minimum": 5}}, "additionalProperties": false})",
       {"{\"ax\": 1}", "{\"ab\": 6}", "{\"xb\": 7}", "{\"xb\": \"t\"}"},
       {"{\"ab\": 4}", "{\"ab\": \"t\"}", "{\"c\": 1}", "{\"xb\": 4}"}},
      {R"({"properties": {"ab": {"maximum": 9}}, "patternProperties": {"^a": {"minimum": 5, "type": "integer"}}})",
       {"{\"ab\": 7}", "{\"ac\": 70}"},
       {"{\"ab\": 10}", "{\"ab\": 4}", "{\"ac\": 4}"}},
      {R"({"type": "object", "propertyNames": {"maxLength": 2}})", {"{\"ab\": 1}"}, {"{\"abc\": 1}"}},
      {R"({"type": "object", "properties": {"a": {}, "abc": {}}, "propertyNames": {"enum": ["a", "b"]}})",
       {"{\"a\": 1, \"b\": 2}"},
       {"{\"abc\": 1}", "{\"c\": 1}"}},
      {R"({"type": "object", "minProperties": 1, "maxProperties": 2})",
       {"{\"a\": 1}", "{\"a\": 1, \"b\": 2}"},
       {"{}", "{\"a\": 1, \"b\": 2, \"c\": 3}"}},
      {R"({"type": "object", "properties": {"a": {}, "b": {}, "c": {}}, "minProperties": 2, "additionalProperties": false})",
       {"{\"a\": 1, \"c\": 1}", "{\"b\": 1, \"c\": 1}"},
       {"{\"b\": 1}", "{}"}},
      {R"({"type": "object", "properties": {"a": false}})", {"{\"b\": 1}"}, {"{\"a\": 1}"}},
      {R"({"type": "object", "properties": {"a": false}, "required": ["a"]})", {}, {"{}"}},
      {R"({"type": "object", "properties": {"a": {}, "b": {}}, "dependentRequired": {"a": ["b"]}})",
       {"{}", "{\"b\": 1}", "{\"a\": 1, \"b\": 1}"},
       {"{\"a\": 1}"}},
      {R"({"properties": {"a": {}, "b": {}}, "dependentSchemas": {"a": {"properties": {"b": {"type": "integer"}}}}})",
       {"{\"b\": \"x\"}", "{\"a\": 1, \"b\": 1}"},
       {"{\"a\": 1, \"b\": \"x\"}"}},
      {R"({"properties": {"a\"/~é": {"const": 1}}, "required": ["a\"/~é"]})", {R"({"a\"/~é": 1})"}, {"{}"}},
      {R"({"properties": {"default": {"type": "integer"}, "enum": {"const": 2}}})",
       {"{\"default\": 1, \"enum\": 2}"},
       {"{\"default\": \"x\"}", "{\"enum\": 1}"}},
      // A recursion without an end has no value.
      {R"({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]})", {}, {"{}"}},
  });
}

// contains looks at the items that satisfy it; the others are unevaluated. Only where all items are looked at anyway is that known.
TEST(GrammarSchema, ContainsEvaluatesSomeItems) {
  expect_cases({
      {R"({"contains": {"type": "string"}, "items": {"type": ["string", "integer"]}, "unevaluatedItems": false})",
       {"[\"a\", 1]", "[1, \"a\"]"},
       {"[1]", "[\"a\", null]"}},
      {R"({"contains": {"type": "string"}, "minContains": 0, "items": {"type": ["string", "integer"]}, "unevaluatedItems": false})",
       {"[\"a\", 1]", "[1]", "[]"},
       {"[null]"}},
  });
  for (const char* least : {"", "\"minContains\": 0, "}) {
    for (const char* where : {R"("contains": {"type": "string"}, )", R"("allOf": [{"contains": {"type": "string"}, "minContains": 0}], )",
                              R"("anyOf": [{"contains": {"type": "string"}, "minContains": 0}, {"type": "array"}], )"}) {
      auto grammar = compiled(std::string("{") + least + where + R"("unevaluatedItems": false})");
      ASSERT_FALSE(grammar.ok()) << least << where;
      EXPECT_EQ(grammar.status().code(), Code::unsupported);
      EXPECT_NE(std::string(grammar.status().message()).find("unevaluatedItems"), std::string::npos) << grammar.status().message();
    }
  }
}

TEST(GrammarSchema, CombinationsAndReferences) {
  expect_cases({
      {R"({"anyOf": [{"type": "integer"}, {"type": "string", "maxLength": 1}], "minimum": 3})", {"3", "\"a\""}, {"2", "\"ab\"", "null"}},
      {R"({"allOf": [{"properties": {"a": {"type": "integer"}}, "required": ["a"]}, {"properties": {"a": {"minimum": 3}, "b": {}}, "required": ["b"]}]})",
       {"{\"a\": 3, \"b\": 1}", "1"},
       {"{\"a\": 2, \"b\": 1}", "{\"a\": 3}", "{\"b\": 3}"}},
      {R"({"allOf": [{"properties": {"a": {}}, "additionalProperties": false}, {"properties": {"b": {}}}]})",
       {"{\"a\": 1}"},
       {"{\"b\": 1}"}},
      {R"({"oneOf": [{"maximum": 5}, {"minimum": 3}], "type": "number"})", {"2", "7", "5.5"}, {"3", "4"}},
      {R"({"oneOf": [{"properties": {"k": {"const": "a"}}, "required": ["k"]}, {"properties": {"k": {"const": "b"}}, "required": ["k"]}], "type": "object"})",
       {"{\"k\": \"a\"}", "{\"k\": \"b\", \"x\": 1}"},
       {"{\"k\": \"c\"}", "{}"}},
      {R"({"oneOf": [{"required": ["a"]}, {"required": ["b"]}], "properties": {"a": {}, "b": {}}, "type": "object"})",
       {"{\"a\": 1}", "{\"b\": 1}"},
       {"{}", "{\"a\": 1, \"b\": 1}"}},
      {R"({"not": {"type": "string"}})", {"1", "null", "[]"}, {"\"a\""}},
      {R"({"type": "string", "not": {"enum": ["a", "b"]}})", {"\"c\"", "\"\"", "\"aa\""}, {"\"a\"", "\"b\""}},
      {R"({"type": "string", "not": {"pattern": "x"}})", {"\"abc\""}, {"\"axc\""}},
      {R"({"type": "number", "not": {"minimum": 3}})", {"2.9", "-1"}, {"3", "4"}},
      {R"({"type": "integer", "not": {"const": 3}})", {"2", "4", "33"}, {"3"}},
      {R"({"properties": {"a": {}, "b": {}}, "type": "object", "not": {"required": ["a", "b"]}})",
       {"{}", "{\"a\": 1}", "{\"b\": 1}"},
       {"{\"a\": 1, \"b\": 1}"}},
      {R"({"type": "object", "properties": {"k": {"enum": ["x", "y"]}, "v": {}}, "required": ["k", "v"], "if": {"properties": {"k": {"const": "x"}}}, "then": {"properties": {"v": {"type": "integer"}}}, "else": {"properties": {"v": {"type": "string"}}}})",
       {"{\"k\": \"x\", \"v\": 1}", "{\"k\": \"y\", \"v\": \"s\"}"},
       {"{\"k\": \"x\", \"v\": \"s\"}", "{\"k\": \"y\", \"v\": 1}"}},
      {R"({"$ref": "#/$defs/n", "maximum": 5, "$defs": {"n": {"type": "integer"}}})", {"5"}, {"6", "\"x\""}},
      {R"({"$schema": "http://json-schema.org/draft-07/schema#", "$ref": "#/definitions/n", "maximum": 5, "definitions": {"n": {"type": "integer"}}})",
       {"6"},
       {"\"x\""}},
      {R"({"$defs": {"a/b~c d": {"const": 1}}, "$ref": "#/$defs/a~1b~0c%20d"})", {"1"}, {"2"}},
      {R"({"$id": "http://x.y/root.json", "$defs": {"i": {"$id": "item.json", "$anchor": "A", "type": "integer"}}, "prefixItems": [{"$ref": "item.json"}, {"$ref": "http://x.y/item.json#A"}], "type": "array"})",
       {"[1, 2]"},
       {"[1, \"x\"]", "[\"x\"]"}},
      {R"({"$defs": {"t": {"type": "object", "properties": {"v": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#/$defs/t"}, {"type": "null"}]}}, "required": ["v"], "additionalProperties": false}}, "$ref": "#/$defs/t"})",
       {"{\"v\": 1, \"next\": {\"v\": 2, \"next\": null}}"},
       {"{\"v\": 1, \"next\": {\"next\": null}}"}},
      {R"({"allOf": [{"$ref": "#/$defs/t"}], "properties": {"v": {"maximum": 3}}, "$defs": {"t": {"type": "object", "properties": {"v": {"type": "integer"}, "n": {"$ref": "#"}}}}})",
       {"{\"v\": 3, \"n\": {\"v\": 2}}"},
       {"{\"v\": 4}", "{\"n\": {\"v\": 4}}", "{\"n\": {\"n\": {\"v\": \"x\"}}}"}},
  });
}

TEST(GrammarSchema, WhiteSpaceIsBounded) {
  const char* schema =
      R"({"properties": {"a": {"type": "array", "items": {"type": "integer"}}}, "type": "object", "additionalProperties": false})";
  auto free = compiled(schema).value(), compact = compiled(schema, SchemaOptions::Whitespace::compact).value(),
       spaced = compiled(schema, SchemaOptions::Whitespace::spaced).value();
  EXPECT_TRUE(takes(*free, "{\n    \"a\": [\n\t1, 2 ] }"));
  EXPECT_FALSE(takes(*free, "{  \"a\": [1]}"));
  EXPECT_FALSE(takes(*free, "{\n\n\"a\": [1]}"));
  EXPECT_TRUE(takes(*free, "{\n" + std::string(32, ' ') + "}"));
  EXPECT_FALSE(takes(*free, "{\n" + std::string(33, ' ') + "}"));
  EXPECT_TRUE(takes(*compact, "{\"a\":[1,2]}"));
  EXPECT_FALSE(takes(*compact, "{\"a\": [1]}"));
  EXPECT_TRUE(takes(*spaced, "{\"a\": [1, 2]}"));
  EXPECT_FALSE(takes(*spaced, "{\"a\":[1, 2]}"));
}

TEST(GrammarSchema, UniqueItems) {
  expect_cases({
      {R"({"type": "array", "items": {"enum": ["a", 2, 2.0, null]}, "uniqueItems": true})",
       {"[]", "[\"a\"]", "[2, \"a\"]", "[null, \"a\", 2]"},
       {"[2, 2]", "[\"a\", null, \"a\"]", "[\"b\"]", "[2, \"a\", null, 2]"}},
      {R"({"type": "array", "items": {"type": "boolean"}, "uniqueItems": true, "minItems": 1})",
       {"[true]", "[false, true]"},
       {"[]", "[true, true]", "[true, false, true]"}},
      {R"({"type": "array", "items": {"type": "integer", "minimum": -1, "exclusiveMaximum": 3}, "uniqueItems": true, "maxItems": 2})",
       {"[]", "[-1]", "[2, 0]"},
       {"[3]", "[1, 1]", "[0, 1, 2]"}},
      {R"({"type": "array", "prefixItems": [{"const": "x"}, {"enum": ["x", "y"]}], "items": {"enum": ["x", "z"]}, "uniqueItems": true})",
       {"[\"x\"]", "[\"x\", \"y\"]", "[\"x\", \"y\", \"z\"]"},
       {"[\"x\", \"x\"]", "[\"x\", \"y\", \"x\"]", "[\"y\"]"}},
      {R"({"type": "array", "items": {"enum": [[1], {"k": true}, [1.0]]}, "uniqueItems": true, "contains": {"type": "object"}})",
       {"[{\"k\": true}]", "[[1], {\"k\": true}]"},
       {"[]", "[[1]]", "[{\"k\": true}, {\"k\": true}]"}},
      {R"({"type": "array", "items": {"type": "string", "pattern": "^[ab]$"}, "uniqueItems": true})",
       {"[\"b\", \"a\"]"},
       {"[\"a\", \"a\"]"}},
      {R"({"type": "array", "uniqueItems": true, "maxItems": 1})", {"[]", "[[1, 1]]"}, {"[1, 2]"}},
      {R"({"type": "array", "uniqueItems": false})", {"[1, 1]"}, {}},
      {R"({"type": "string", "uniqueItems": true})", {"\"a\""}, {"[]"}},
      {R"({"enum": [[1, 1], [1, 2]], "uniqueItems": true})", {"[1, 2]"}, {"[1, 1]"}},
      {R"({"type": "array", "items": {"type": "boolean"}, "uniqueItems": true, "minItems": 3})", {}, {"[true, false]", "[]"}},
  });
}

TEST(GrammarSchema, Unevaluated) {
  expect_cases({
      {R"({"unevaluatedProperties": false})", {"{}", "1"}, {"{\"a\": 1}"}},
      {R"({"type": "object", "properties": {"a": {"type": "integer"}}, "allOf": [{"properties": {"b": {"type": "null"}}}], "unevaluatedProperties": false})",
       {"{}", "{\"a\": 1, \"b\": null}", "{\"b\": null}"},
       {"{\"c\": 1}", "{\"b\": 1}"}},
      {R"({"$ref": "#/$defs/x", "properties": {"a": {}}, "unevaluatedProperties": {"type": "boolean"}, "$defs": {"x": {"type": "object", "patternProperties": {"^p": {}}}}})",
       {"{\"a\": 1, \"p1\": 2}", "{\"p\": 1, \"q\": true}"},
       {"{\"q\": 1}", "1"}},
      {R"({"oneOf": [{"properties": {"k": {"const": 1}, "a": {}}, "required": ["k"]}, {"properties": {"k": {"const": 2}, "b": {}}, "required": ["k"]}], "unevaluatedProperties": false})",
       {"{\"k\": 1, \"a\": 0}", "{\"k\": 2, \"b\": 0}"},
       {"{\"k\": 1, \"b\": 0}", "{\"k\": 2, \"c\": 0}"}},
      {R"({"type": "object", "if": {"properties": {"k": {"const": 1}}, "required": ["k"]}, "then": {"properties": {"a": {}}}, "else": {"properties": {"b": {}}}, "unevaluatedProperties": false})",
       {"{\"k\": 1, \"a\": 0}", "{\"b\": 0}"},
       {"{\"k\": 1, \"b\": 0}", "{\"k\": 2}", "{\"a\": 0}"}},
      {R"({"type": "object", "properties": {"a": {}}, "dependentSchemas": {"a": {"properties": {"b": {}}}}, "unevaluatedProperties": false})",
       {"{\"a\": 1, \"b\": 2}", "{}"},
       {"{\"b\": 2}"}},
      {R"({"type": "object", "properties": {"a": {}}, "not": {"required": ["b"]}, "unevaluatedProperties": false})",
       {"{\"a\": 1}"},
       {"{\"b\": 1}", "{\"c\": 1}"}},
      {R"({"type": "object", "additionalProperties": {"type": "integer"}, "unevaluatedProperties": false})",
       {"{\"x\": 1}"},
       {"{\"x\": null}"}},
      {R"({"type": "object", "allOf": [{"unevaluatedProperties": {"type": "integer"}}], "unevaluatedProperties": false})",
       {"{\"x\": 1}"},
       {"{\"x\": null}"}},
      {R"({"type": "object", "properties": {"a": {"properties": {"deep": {}}}}, "required": ["z"], "unevaluatedProperties": false})",
       {},
       {"{\"deep\": 1}", "{\"z\": 1}"}},
      {R"({"type": "array", "prefixItems": [{"type": "integer"}], "allOf": [{"prefixItems": [true, {"type": "string"}]}], "unevaluatedItems": false})",
       {"[]", "[1]", "[1, \"a\"]"},
       {"[1, \"a\", 2]", "[1, 2]"}},
      {R"({"type": "array", "items": {"type": "integer"}, "unevaluatedItems": false})", {"[1, 2]"}, {"[\"a\"]"}},
      {R"({"type": "array", "unevaluatedItems": {"type": "integer"}})", {"[1, 2]"}, {"[\"a\"]"}},
      {R"({"anyOf": [{"minProperties": 1}, {"type": "null"}], "properties": {"a": {}}, "unevaluatedProperties": false})",
       {"{\"a\": 1}", "null"},
       {"{}", "{\"b\": 1}"}},
      {R"({"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "unevaluatedProperties": false})", {"{\"a\": 1}"}, {}},
  });
}

TEST(GrammarSchema, RefusalsNameTheKeyword) {
  struct Refusal {
    const char *schema, *part;
    Code code;
  };
  const Refusal refusals[] = {
      {R"({"properties": {"a": {"uniqueItems": true}}})", "#/properties/a/uniqueItems", Code::unsupported},
      {R"({"items": {"type": "integer", "minimum": 1, "maximum": 20}, "uniqueItems": true})",
       "#/uniqueItems: it needs more than 4096 sets of 20 values", Code::unsupported},
      {R"({"uniqueItems": 1})", "#/uniqueItems", Code::invalid_argument},
      {R"({"type": "array", "not": {"uniqueItems": true}})", "the negation of uniqueItems", Code::unsupported},
      {R"({"anyOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}], "unevaluatedProperties": false})", "#/unevaluatedProperties",
       Code::unsupported},
      {R"({"if": {"required": ["a"], "properties": {"a": {}}}, "unevaluatedProperties": false})", "#/unevaluatedProperties",
       Code::unsupported},
      {R"({"contains": {"const": 1}, "unevaluatedItems": false})", "#/unevaluatedItems", Code::unsupported},
      {R"({"$dynamicRef": "#x"})", "#/$dynamicRef", Code::unsupported},
      {R"({"contains": {}, "maxContains": 2})", "#/maxContains", Code::unsupported},
      {R"({"type": "array", "contains": {"const": 1}, "minContains": 100})", "in 10100 states; at most 4096", Code::unsupported},
      {R"({"oneOf": [{"type": "integer"}, {"minimum": 2}]})", "#/oneOf: two choices overlap", Code::unsupported},
      {R"({"not": {"type": "integer"}})", "the negation of integer", Code::unsupported},
      {R"x({"pattern": "(?=a)"})x", "#/pattern: expression, column 1: look-ahead", Code::unsupported},
      {R"({"$ref": "http://other/x.json"})", "outside the document", Code::unsupported},
      {R"({"$ref": "#/nowhere"})", "has nothing at", Code::invalid_argument},
      {R"({"$ref": "#"})", "refers to itself without an end", Code::invalid_argument},
      {R"({"allOf": [{"$ref": "#"}]})", "refers to itself without an end", Code::invalid_argument},
      {R"({"type": "text"})", "there is no type", Code::invalid_argument},
      {R"({"type": 3})", "#/type", Code::invalid_argument},
      {R"({"properties": []})", "#/properties", Code::invalid_argument},
      {R"({"minLength": -1})", "#/minLength", Code::invalid_argument},
      {R"({"multipleOf": 0})", "#/multipleOf", Code::invalid_argument},
      {R"({"multipleOf": 30001, "type": "integer"})", "multipleOf is too large", Code::unsupported},
      {R"({"required": "a"})", "#/required", Code::invalid_argument},
      {R"({"items": 3})", "#/items", Code::invalid_argument},
      {R"([])", "an object, true or false", Code::invalid_argument},
      {R"({"a")", "", Code::invalid_argument},
  };
  for (const Refusal& r : refusals) {
    auto grammar = compiled(r.schema);
    ASSERT_FALSE(grammar.ok()) << r.schema;
    EXPECT_EQ(grammar.status().code(), r.code) << r.schema << ": " << grammar.status().message();
    EXPECT_NE(std::string(grammar.status().message()).find(r.part), std::string::npos) << r.schema << ": " << grammar.status().message();
  }
}

TEST(GrammarSchema, WhatDoesNotConstrainIsNoted) {
  auto grammar = compiled(R"({"type": "string", "format": "color", "x-order": 3, "title": "t", "default": 1, "format2": 1})").value();
  ASSERT_EQ(grammar->notices().size(), 3u);
  EXPECT_NE(grammar->notices()[0].find("x-order"), std::string::npos);
  EXPECT_NE(grammar->notices()[1].find("format2"), std::string::npos);
  EXPECT_NE(grammar->notices()[2].find("format color"), std::string::npos);
}

TEST(GrammarSchema, HostileSchemas) {
  const auto repeat = [](const std::string& s, size_t n) {
    std::string out;
    for (size_t i = 0; i < n; ++i) out += s;
    return out;
  };
  std::string properties = "{\"type\": \"object\", \"properties\": {", values = "{\"enum\": [",
              one_of = "{\"type\": \"integer\", \"minimum\": 1}", chain = "{\"$ref\": \"#/$defs/d0\", \"$defs\": {";
  for (int i = 0; i < 50000; ++i) properties += (i ? ",\"p" : "\"p") + std::to_string(i) + "\": {\"type\": \"integer\"}";
  for (int i = 0; i < 100000; ++i) values += (i ? ",\"v" : "\"v") + std::to_string(i) + "\"";
  for (int i = 0; i < 12; ++i)
    one_of = "{\"oneOf\": [" + one_of + ", {\"type\": \"string\", \"minLength\": " + std::to_string(i) +
             "}, {\"minimum\": " + std::to_string(i) + "}]}";
  for (int i = 0; i < 5000; ++i) chain += "\"d" + std::to_string(i) + "\": {\"$ref\": \"#/$defs/d" + std::to_string(i + 1) + "\"},";
  chain += "\"d5000\": {}}}";
  std::string objects = "{\"enum\": [";
  for (int i = 0; i < 4000; ++i)
    objects += (i ? ",{\"a" : "{\"a") + std::to_string(i) + "\": 1, \"b\": {\"c\": 2, \"d" + std::to_string(i) + "\": 3}}";
  const std::pair<const char*, std::string> sources[] = {
      {"50,000 properties", properties + "}}"},
      {"4,000 objects", objects + "]}"},
      {"50,000 required", properties + "}, \"minProperties\": 49999}"},
      {"100,000 values", values + "]}"},
      {"brackets", repeat("[", 4u << 20)},
      {"nested schemas", repeat("{\"items\":", 5000) + "{}" + repeat("}", 5000)},
      {"nested oneOf", one_of},
      {"chain of references", chain},
      {"all of all",
       "{\"allOf\": [" + repeat("{\"anyOf\": [{\"minLength\": 1}, {\"type\": \"integer\"}, {\"maxLength\": 7}]},", 40) + "{}]}"},
      {"patterns", "{\"pattern\": \"(a|b)*a(a|b){20}\"}"},
      {"overlapping patterns",
       "{\"patternProperties\": {\"a.*b\": {}, \"b.*c\": {}, \"c.*d\": {}, \"d.*e\": {}, \"e.*f\": {}, \"f.*g\": {}, \"g.*h\": {}}}"},
      {"long text", "{\"type\": \"string\", \"minLength\": 1000000, \"maxLength\": 1000000000}"},
      {"dependencies",
       "{\"dependentRequired\": "
       "{\"a\":[\"b\"],\"b\":[\"c\"],\"c\":[\"d\"],\"d\":[\"e\"],\"e\":[\"f\"],\"f\":[\"g\"],\"g\":[\"h\"],\"h\":[\"i\"],\"i\":[\"j\"],"
       "\"j\":[\"k\"],\"k\":[\"l\"],\"l\":[\"m\"],\"m\":[\"n\"]}}"},
      {"numbers", "{\"minimum\": 1e308, \"maximum\": 1.7e308, \"multipleOf\": 1e-300}"},
  };
  for (size_t i = 0; i < 2 * std::size(sources); ++i) {
    const auto& [name, source] = sources[i / 2];
    const auto start = std::chrono::steady_clock::now();
    auto grammar = compiled(source, SchemaOptions::Whitespace::free, i % 2 != 0);
    const double s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    const std::string outcome =
        grammar.ok() ? "compiled, " + std::to_string((*grammar)->memory_bytes()) + " bytes" : grammar.status().message();
    EXPECT_LT(outcome.size(), 700u) << name;
    EXPECT_LT(s, 20.0) << name << ": " << outcome;  // a second on an idle machine
    if (std::getenv("ORRERY_VERBOSE") != nullptr) printf("%-20s %.3f s %s\n", name, s, outcome.substr(0, 150).c_str());
  }
}

}  // namespace
}  // namespace orrery::text::grammar::schema_test
