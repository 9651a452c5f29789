// JSON: what is accepted and what it means, against nlohmann-json on mutated documents; how it is printed,
// against Python's json and repr (the printing of whole tools is covered by the template goldens).
#include "runtime/text/json/json.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "tests/support/shared.h"

namespace orrery::text::json_test {
namespace {

// The same value as the oracle reads it.
::testing::AssertionResult same(const Value& v, const nlohmann::json& j) {
  if (j.is_null() && v.is_none()) return ::testing::AssertionSuccess();
  if (j.is_boolean() && v.is_bool() && v.as_bool() == j.get<bool>()) return ::testing::AssertionSuccess();
  if (j.is_string() && v.is_string() && v.as_string() == j.get_ref<const std::string&>()) return ::testing::AssertionSuccess();
  if (j.is_number()) {
    if (v.kind() == Kind::big_integer) {
      const double d = std::stod(std::string(v.as_string()));
      if (d == j.get<double>()) return ::testing::AssertionSuccess();
    }
    if (v.is_int() && j.is_number_integer() && v.as_int() == j.get<int64_t>()) return ::testing::AssertionSuccess();
    if (v.is_float() && j.is_number_float() && v.as_float() == j.get<double>()) return ::testing::AssertionSuccess();
  }
  if (j.is_array() && v.is_list() && v.as_items().size() == j.size()) {
    for (size_t i = 0; i < j.size(); ++i)
      if (auto r = same(v.as_items()[i], j[i]); !r) return r;
    return ::testing::AssertionSuccess();
  }
  if (j.is_object() && v.is_map() && v.as_map().size() == j.size()) {
    for (const auto& [key, item] : j.items()) {
      const Value* found = v.find(key);
      if (found == nullptr) return ::testing::AssertionFailure() << "no key " << key;
      if (auto r = same(*found, item); !r) return r;
    }
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure() << "differs at " << j.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

const char* const kDocuments[] = {
    R"({"a": [1, -2, 3.5, 1e3, -0, 0.0, true, false, null], "b": {"c": "d"}, "e": {}, "f": []})",
    R"(["\u00e9\ud83d\ude42\n\t\"\\\/\b\f\r", "é🙂", "\u0000", ""])",
    R"( { "k" : 1 , "k" : 2 , "n": 18446744073709551616, "m": -9223372036854775808, "x": 1.7976931348623157e308 } )",
    R"([[[[[[]]]]], {"": {"": {"": 1E-5}}}, 123456789012345678, 0.1e+1])",
};

TEST(Json, AgreesWithTheOracleOnMutations) {
  std::mt19937 rng(11);
  size_t accepted = 0, refused = 0;
  const std::string alphabet = "{}[]\",:\\u0123456789eE+-.truefalsn \t\n\x01\xC3\xA9\xED\xA0\x80";
  for (int round = 0; round < 40000; ++round) {
    std::string text = kDocuments[rng() % 4];
    for (unsigned n = rng() % 4; n > 0; --n) {
      const size_t at = rng() % text.size();
      switch (rng() % 4) {
        case 0: text.erase(at, 1 + rng() % 3); break;
        case 1: text.insert(at, 1, alphabet[rng() % alphabet.size()]); break;
        case 2: text[at] = alphabet[rng() % alphabet.size()]; break;
        default: text.insert(at, text.substr(rng() % text.size(), rng() % 8));
      }
      if (text.empty()) text = "0";
    }
    const nlohmann::json oracle = nlohmann::json::parse(text, nullptr, false);
    Result<Value> got = parse_json(text);
    // The oracle skips a byte order mark and refuses infinite numbers, as we do.
    ASSERT_EQ(got.ok(), !oracle.is_discarded()) << text << "\n" << (got.ok() ? "" : got.status().message());
    if (got.ok()) {
      ASSERT_TRUE(same(*got, oracle)) << text;
      ++accepted;
      Result<std::string> printed = dump_json(*got);
      ASSERT_TRUE(printed.ok());
      Result<Value> again = parse_json(*printed);
      ASSERT_TRUE(again.ok() && again->equals(*got)) << *printed;
      JsonFormat ascii;
      ascii.ensure_ascii = ascii.pretty = true;
      ascii.indent = "  ";
      Result<Value> third = parse_json(dump_json(*got, ascii).value());
      ASSERT_TRUE(third.ok() && third->equals(*got));
    } else {
      ++refused;
      EXPECT_EQ(got.status().code(), Code::invalid_argument);
      EXPECT_GE(got.status().detail().line, 1u);
      EXPECT_GE(got.status().detail().column, 1u);
      EXPECT_LE(got.status().detail().offset, text.size());
    }
  }
  EXPECT_GT(accepted, 5000u);
  EXPECT_GT(refused, 5000u);
}

TEST(Json, ErrorsNameTheirPlace) {
  const auto fails = [](std::string_view text, uint32_t line, uint32_t column, uint64_t offset) {
    Result<Value> v = parse_json(text);
    ASSERT_FALSE(v.ok()) << text;
    EXPECT_EQ(v.status().detail().line, line) << text << v.status().message();
    EXPECT_EQ(v.status().detail().column, column) << text;
    EXPECT_EQ(v.status().detail().offset, offset) << text;
  };
  fails("", 1, 1, 0);
  fails("[1,\n 2,]", 2, 4, 7);
  fails("{\"a\" 1}", 1, 6, 5);
  fails("\"\\ud800\"", 1, 2, 1);
  fails("\"\\udc00\"", 1, 2, 1);
  fails("[01]", 1, 3, 2);
  fails("1e999", 1, 1, 0);
  fails("[1] x", 1, 5, 4);
  fails("\"a\nb\"", 1, 3, 2);
  fails("NaN", 1, 1, 0);
  fails("\"\xED\xA0\x80\"", 1, 2, 1);
}

TEST(Json, DepthAndSizeAreBounded) {
  const std::string deep(100000, '[');
  EXPECT_FALSE(parse_json(deep).ok());
  EXPECT_TRUE(parse_json(std::string(200, '[') + std::string(200, ']')).ok());
  EXPECT_FALSE(parse_json(std::string(201, '[') + std::string(201, ']')).ok());
  JsonLimits small;
  small.max_bytes = 3;
  EXPECT_FALSE(parse_json("[1, 2]", small).ok());
  Value v = Value::list({});
  for (int i = 0; i < 100000; ++i) v = Value::list({v});
  EXPECT_FALSE(dump_json(v).ok());
  Value wide = Value::string(std::string(1000, 'x'));
  for (int i = 0; i < 60; ++i) wide = Value::list({wide, wide});
  JsonFormat limited;
  limited.max_bytes = 1 << 20;
  EXPECT_FALSE(dump_json(wide, limited).ok());
  std::string many = "{";
  for (int i = 0; i < 200000; ++i) many += "\"k" + std::to_string(i) + "\":" + std::to_string(i) + ",";
  many.back() = '}';
  Result<Value> big = parse_json(many);
  ASSERT_TRUE(big.ok());
  EXPECT_EQ(big->find("k123456")->as_int(), 123456);
}

TEST(Json, PrintsAsPython) {
  Result<Value> v = parse_json(R"({"b": [1, 2.0, "é\u2028\u007f<&'\"\\\n", {}], "a": {"x": []}, "n": 123456789012345678901234567890})");
  ASSERT_TRUE(v.ok());
  EXPECT_EQ(dump_json(*v).value(),
            "{\"b\": [1, 2.0, \"é\u2028\x7f<&'\\\"\\\\\\n\", {}], \"a\": {\"x\": []}, "
            "\"n\": 123456789012345678901234567890}");
  JsonFormat f;
  f.ensure_ascii = f.sort_keys = f.pretty = true;
  f.indent = "  ";
  EXPECT_EQ(dump_json(*v, f).value(),
            "{\n  \"a\": {\n    \"x\": []\n  },\n  \"b\": [\n    1,\n    2.0,\n    "
            "\"\\u00e9\\u2028\\u007f<&'\\\"\\\\\\n\",\n    {}\n  ],\n  \"n\": 123456789012345678901234567890\n}");
  EXPECT_FALSE(dump_json(Value()).ok());
}

TEST(Json, FloatsAsPython) {
  std::ifstream in(testing::source_path("tests/golden/text_floats.json"), std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  Result<Value> rows = parse_json(text.str());
  ASSERT_TRUE(rows.ok());
  ASSERT_GE(rows.value().as_items().size(), 1500u);
  for (const Value& row : rows.value().as_items()) {
    const uint64_t bits = std::stoull(std::string(row.as_items()[0].as_string()), nullptr, 16);
    double d;
    std::memcpy(&d, &bits, 8);
    EXPECT_EQ(format_float(d), row.as_items()[1].as_string());
    Result<Value> back = parse_json(row.as_items()[1].as_string());
    ASSERT_TRUE(back.ok()) << row.as_items()[1].as_string();
    EXPECT_EQ(back.value().as_float(), d);
  }
}

}  // namespace
}  // namespace orrery::text::json_test
