// Values: sharing, equality, keys, positions in strings, freeing deep nests; characters against Python's str
// methods.
#include "runtime/text/json/value.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <thread>

#include "runtime/text/jinja/interpreter/strings.h"
#include "runtime/text/unicode/python_characters.h"
#include "runtime/text/json/json.h"
#include "tests/support/shared.h"

namespace orrery::text::value_test {
namespace {

Value golden(const std::string& name) {
  std::ifstream in(testing::source_path("tests/golden/" + name), std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  Result<Value> v = parse_json(text.str());
  EXPECT_TRUE(v.ok()) << name;
  return v.ok() ? *v : Value::list({});
}

std::string fnv1a(const std::string& text) {
  uint64_t h = 0xCBF29CE484222325;
  for (char c : text) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001B3;
  char out[20];
  std::snprintf(out, sizeof out, "%016llx", static_cast<unsigned long long>(h));
  return out;
}

TEST(Value, DeepNestsAreFreedWithoutRecursion) {
  Value list = Value::list({}), map = Value::none(), key = Value::none();
  for (int i = 0; i < 1'000'000; ++i) {
    list = Value::list({std::move(list)});
    Map m;
    m.set("k", std::move(map));
    map = Value::map(std::move(m));
  }
  list = map = Value();
  EXPECT_TRUE(list.is_undefined());
}

TEST(Value, CopiesShareAcrossThreads) {
  const Value shared = Value::list({Value::string("text"), Value::integer(1)});
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&shared] {
      for (int i = 0; i < 20000; ++i) {
        Value copy = shared;
        ASSERT_EQ(copy.as_items()[0].as_string(), "text");
      }
    });
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(shared.as_items().size(), 2u);
}

TEST(Value, MapsKeepOrderAndCompareKeysAsPython) {
  for (int extra : {0, 100}) {  // small maps search, large ones have an index
    Map m;
    m.set("z", Value::integer(1));
    m.set(Value::integer(1), Value::integer(2));
    for (int i = 0; i < extra; ++i) m.set("k" + std::to_string(i), Value::integer(i));
    m.set(Value::floating(1.0), Value::integer(3));
    m.set(Value::boolean(true), Value::integer(4));
    m.set(Value::none(), Value::integer(5));
    m.set("z", Value::integer(6));
    EXPECT_EQ(m.size(), 3u + static_cast<size_t>(extra));
    EXPECT_EQ(m.find(Value::integer(1))->as_int(), 4);
    EXPECT_EQ(m.find("z")->as_int(), 6);
    EXPECT_EQ(m.find("nope"), nullptr);
    EXPECT_EQ(m.find(Value::integer(0)), nullptr);
    EXPECT_EQ(m.entries()[0].first.as_string(), "z");
    EXPECT_TRUE(m.entries()[1].first.is_int());
    const Map copy(m);
    EXPECT_TRUE(Value::map(copy).equals(Value::map(m)));
  }
}

TEST(Value, NumbersCompareExactly) {
  const auto cmp = [](int64_t i, double d) { return compare_numbers(Value::integer(i), Value::floating(d)); };
  EXPECT_EQ(cmp(9007199254740993, 9007199254740992.0), 1);
  EXPECT_EQ(cmp(INT64_MAX, 9223372036854775808.0), -1);
  EXPECT_EQ(cmp(INT64_MIN, -9223372036854775808.0), 0);
  EXPECT_EQ(cmp(2, 2.5), -1);
  EXPECT_EQ(cmp(-2, -2.5), 1);
  EXPECT_EQ(cmp(0, std::numeric_limits<double>::quiet_NaN()), 2);
  EXPECT_TRUE(Value::boolean(true).equals(Value::floating(1)));
  EXPECT_FALSE(Value::list({}).equals(Value::tuple({})));
}

TEST(Value, EqualityOfSharedNestsIsBounded) {
  Value a = Value::list({Value::integer(1)}), b = a;
  for (int i = 0; i < 60; ++i) {
    a = Value::list({a, a});
    b = Value::list({b, Value::list({b})}).as_items()[0];
    b = Value::list({b, b});
  }
  uint64_t work = 100000;
  EXPECT_FALSE(a.equals(b, &work));
  EXPECT_EQ(work, 0u);
}

TEST(Value, PositionsInLongText) {
  std::string text;
  std::vector<size_t> offsets;
  const char* pieces[] = {"a", "é", "日", "🙂", "\xFF", "\xE3\x81"};
  for (size_t i = 0; i < 5000; ++i) {
    const char* piece = pieces[(i * 7 + i / 3) % 6];
    for (size_t at = 0; at < std::string(piece).size();) {  // stray bytes count one each
      offsets.push_back(text.size() + at);
      at += unicode::sequence_length(piece, at);
    }
    text += piece;
  }
  const Value v = Value::string(text);
  // A stray lead byte may join with what follows, so the oracle is a walk over the whole text.
  offsets.clear();
  for (size_t i = 0; i < text.size(); i += unicode::sequence_length(text, i)) offsets.push_back(i);
  ASSERT_EQ(v.string_length(), offsets.size());
  for (size_t i = 0; i < offsets.size(); ++i) ASSERT_EQ(v.string_offset(i), offsets[i]);
  EXPECT_EQ(v.string_offset(offsets.size()), text.size());
}

TEST(Unicode, EveryCodePointAsPython) {
  using Convert = std::string (*)(std::string_view, const std::atomic<bool>*, OriginMap*);
  const auto each = [](auto&& visit) {
    for (uint32_t c = 0; c < 0x110000; ++c) {
      if (c >= 0xD800 && c < 0xE000) continue;
      std::string s;
      unicode::append(c, &s);
      visit(c, s);
    }
  };
  const std::map<std::string, Convert> conversions = {{"upper", unicode::upper}, {"lower", unicode::lower}, {"title", unicode::title}};
  const std::map<std::string, uint32_t> classes = {{"isalpha", unicode::kAlpha},     {"isdecimal", unicode::kDecimal},
                                                   {"isdigit", unicode::kDigit},     {"isnumeric", unicode::kNumeric},
                                                   {"isupper", unicode::kUpperCase}, {"islower", unicode::kLowerCase},
                                                   {"isspace", unicode::kSpace},     {"isprintable", unicode::kUnprintable}};
  size_t checked = 0;
  const Value rows = golden("text_unicode.json");
  for (const Value& row : rows.as_items()) {
    const std::string name(row.as_items()[0].as_string());
    std::string all;
    if (conversions.count(name) != 0) {
      bool first = true;
      each([&](uint32_t, const std::string& s) {
        if (!first) all += '\n';
        first = false;
        all += conversions.at(name)(s, nullptr, nullptr);
      });
    } else {
      const bool inverse = name == "isprintable";
      each([&](uint32_t c, const std::string&) { all += unicode::is(c, classes.at(name)) != inverse ? '1' : '0'; });
    }
    EXPECT_EQ(fnv1a(all), row.as_items()[1].as_string()) << name;
    ++checked;
  }
  EXPECT_EQ(checked, 11u);
}

TEST(Unicode, WordsAsPython) {
  const Value words = golden("text_words.json");
  ASSERT_GE(words.as_items().size(), 400u);
  for (const Value& row : words.as_items()) {
    const std::vector<Value>& r = row.as_items();
    const std::string w(r[0].as_string());
    EXPECT_EQ(unicode::upper(w), r[1].as_string()) << w;
    EXPECT_EQ(unicode::lower(w), r[2].as_string()) << w;
    EXPECT_EQ(unicode::title(w), r[3].as_string()) << w;
    EXPECT_EQ(unicode::capitalize(w), r[4].as_string()) << w;
    EXPECT_EQ(unicode::swapcase(w), r[5].as_string()) << w;
    EXPECT_EQ(jinja::is_title_text(w), r[6].as_bool()) << w;
    EXPECT_EQ(jinja::is_upper_text(w), r[7].as_bool()) << w;
    EXPECT_EQ(jinja::is_lower_text(w), r[8].as_bool()) << w;
  }
}

}  // namespace
}  // namespace orrery::text::value_test
