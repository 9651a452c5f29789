// Chat templates against Jinja2 itself: snippets, templates made at random, our own templates in each
// family's style, third-party templates by hash.  Goldens are made by tests/golden/make_template_goldens.py.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "runtime/text/jinja/chat_template.h"
#include "runtime/text/json/json.h"
#include "tests/support/shared.h"

namespace orrery::text::template_test {
namespace {

std::string read_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

Value read_json(const std::string& path) {
  Result<Value> v = parse_json(read_text(path));
  EXPECT_TRUE(v.ok()) << path << ": " << (v.ok() ? "" : v.status().message());
  return v.ok() ? *v : Value::none();
}

Value golden(const std::string& name) { return read_json(testing::source_path("tests/golden/" + name)); }

std::tm fixed_now() {  // as in template_common.py
  std::tm t{};
  t.tm_year = 125;
  t.tm_mon = 2;
  t.tm_mday = 9;
  t.tm_hour = 14;
  t.tm_min = 5;
  t.tm_sec = 7;
  t.tm_wday = 0;
  t.tm_yday = 67;
  return t;
}

// ("ok", text), ("raised", message) or ("error", where and why).
std::pair<std::string, std::string> render(const std::string& source, const Value& context) {
  const std::tm now = fixed_now();
  Result<ChatTemplate> compiled = ChatTemplate::compile(source);
  Result<Text> text = compiled.ok() ? compiled->render(context, {}, &now) : Result<Text>(compiled.take_status());
  if (text.ok()) return {"ok", text->bytes()};
  const Status& status = text.status();
  if (status.code() == Code::invalid_argument) return {"raised", status.message()};
  EXPECT_EQ(status.code(), Code::unsupported_template);
  EXPECT_GT(status.detail().line, 0u) << status.message();
  return {"error", status.message()};
}

std::string fnv1a(const std::string& text) {
  uint64_t h = 0xCBF29CE484222325;
  for (char c : text) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001B3;
  char out[20];
  std::snprintf(out, sizeof out, "%016llx", static_cast<unsigned long long>(h));
  return out;
}

void check_rows(const char* file, size_t at_least) {
  const Value context = golden("template_context.json");
  const Value rows = golden(file);
  ASSERT_TRUE(rows.is_list());
  ASSERT_GE(rows.as_items().size(), at_least);
  for (const Value& row : rows.as_items()) {
    const std::string source(row.as_items()[0].as_string()), kind(row.as_items()[1].as_string());
    const auto [got, text] = render(source, context);
    if (kind == "succeeds") {
      EXPECT_EQ(got, "ok") << source << "\n" << text;
      continue;
    }
    EXPECT_EQ(got, kind) << source << "\n" << text << "\nexpected: " << row.as_items()[2].as_string();
    if (got != kind || kind == "error") continue;
    EXPECT_EQ(text, row.as_items()[2].as_string()) << source;
  }
}

TEST(Template, Snippets) { check_rows("template_snippets.json", 600); }
TEST(Template, RandomTemplates) { check_rows("template_random.json", 2500); }

// Jinja2's sandbox refuses append(), and publishers' templates use it: it works on lists that the template has made, and on no other.
TEST(Template, AppendToListsOfTheTemplate) {
  const Value context = parse_json(R"({"given": [1, 2], "messages": [{"role": "user", "parts": ["a"]}]})").value();
  const std::pair<const char*, const char*> cases[] = {
      {"{% set x = [] %}{% set _ = x.append(1) %}{% set y = x %}{% set _ = y.append('b') %}{{ x }}{{ y|length }}", "[1, 'b']2"},
      {"{% set ns = namespace(x=[]) %}{% for i in range(3) %}{% set _ = ns.x.append(i) %}{% endfor %}{{ ns.x|join(',') }}", "0,1,2"},
      {"{% set x = given[:] %}{% set _ = x.append(3) %}{{ given }}{{ x }}", "[1, 2][1, 2, 3]"},
      {"{% set x = given + [] %}{% set _ = x.append(3) %}{{ given|length }}{{ x|length }}", "23"},
      {"{% set x = given|list %}{% set _ = x.append(3) %}{{ given|length }}{{ x|length }}", "23"},
      {"{% set x = [1] %}{% set y = x.copy() %}{% set _ = y.append(2) %}{{ x|length }}{{ y|length }}", "12"},
      {"{% set x = [1] %}{% for i in x %}{% if x|length < 5 %}{% set _ = x.append(i) %}{% endif %}{% endfor %}{{ x }}", "[1, 1]"},
      {"{% macro add(x) %}{% set _ = x.append('m') %}{% endmacro %}{% set x = [] %}{{ add(x) }}{{ x }}", "['m']"},
      {"{% set x = [] %}{{ x.append(1) }}", "None"},
      {"{% set x = [] %}{% set _ = x.append(x) %}{{ x|length }}{{ x[0][0]|length }}", "11"},
      {"{{ given.append }}{{ messages[0].parts.append }}{{ given.copy().append is defined }}", "True"},
  };
  for (const auto& [source, expected] : cases) {
    const auto [kind, text] = render(source, context);
    EXPECT_EQ(kind, "ok") << source << "\n" << text;
    EXPECT_EQ(text, expected) << source;
  }
  for (const char* source : {"{{ given.append(1) }}", "{{ messages[0].parts.append(1) }}", "{{ messages.append(1) }}", "{{ [].append() }}",
                             "{{ [].append(1, 2) }}", "{% set x = [] %}{% set _ = x.append(x) %}{{ x }}",
                             "{% set x = [] %}{% set _ = x.append(x) %}{{ x|tojson }}",
                             "{% set x = [] %}{% set _ = x.append(x) %}{% set _ = x.append(x) %}{{ x }}", "{{ (1, 2).append(3) }}"})
    EXPECT_EQ(render(source, context).first, "error") << source;
}

TEST(Template, Families) {
  const Value conversations = golden("template_conversations.json"), families = golden("template_families.json");
  size_t checked = 0;
  for (const Map::Entry& family : families.as_map().entries()) {
    const std::string name(family.first.as_string());
    const std::string source = read_text(testing::source_path("tests/golden/templates/" + name));
    ASSERT_FALSE(source.empty()) << name;
    for (const Map::Entry& c : conversations.as_map().entries()) {
      const Value* expected = family.second.find(c.first.as_string());
      ASSERT_NE(expected, nullptr);
      const auto [kind, text] = render(source, c.second);
      EXPECT_EQ(kind, expected->as_items()[0].as_string()) << name << " " << c.first.as_string() << "\n" << text;
      ++checked;
      if (kind == "error") continue;
      EXPECT_EQ(text, expected->as_items()[1].as_string()) << name << " " << c.first.as_string();
    }
  }
  EXPECT_GE(checked, 100u);
}

TEST(Template, ThirdParty) {
  if (testing::shared_path("chat-templates").empty()) GTEST_SKIP() << "no shared chat templates";
  const Value conversations = golden("template_conversations.json"), shared = golden("template_shared.json");
  size_t checked = 0;
  for (const Map::Entry& entry : shared.as_map().entries()) {
    const std::string name(entry.first.as_string());
    const std::string path = testing::shared_path("chat-templates/" + name);
    if (path.empty()) continue;
    const std::string source = read_text(path);
    for (const Map::Entry& c : conversations.as_map().entries()) {
      const std::vector<Value>& expected = entry.second.find(c.first.as_string())->as_items();
      const auto [kind, text] = render(source, c.second);
      EXPECT_EQ(kind, expected[0].as_string()) << name << " " << c.first.as_string() << "\n" << text;
      if (kind == "error") continue;
      EXPECT_EQ(static_cast<int64_t>(text.size()), expected[1].as_int()) << name << " " << c.first.as_string();
      EXPECT_EQ(fnv1a(text), expected[2].as_string()) << name << " " << c.first.as_string() << "\n" << text;
      ++checked;
    }
  }
  EXPECT_GE(checked, 100u);
}

}  // namespace
}  // namespace orrery::text::template_test
