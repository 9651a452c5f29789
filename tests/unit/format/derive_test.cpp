// Formats that probes derive from chat templates: of our own, and of published ones where they are there.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "runtime/text/format/format.h"
#include "runtime/text/json/json.h"
#include "tests/support/shared.h"
#include "tests/unit/format/templates.h"

namespace orrery::text::format {
namespace {

std::string read(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

Call call(const char* name, const char* arguments) { return {name, "probe0001", parse_json(arguments).value()}; }

std::string printed(const CallFormat& format, const std::vector<Call>& calls, std::string_view content) {
  Result<std::string> text = print(format, calls, content);
  return text.ok() ? *text : text.status().message();
}

TEST(DeriveFormat, JsonCallsBetweenTags) {
  const auto f = derived(read(testing::source_path("tests/golden/templates/turns_with_thoughts.jinja")));
  ASSERT_TRUE(f.call) << f.why_none;
  EXPECT_EQ(f.reasoning.open, "<think>");
  EXPECT_EQ(f.reasoning.close, "</think>");
  EXPECT_EQ(f.call->trigger(), "<call>");
  EXPECT_TRUE(f.call->many);
  EXPECT_TRUE(f.call->with_content);
  EXPECT_EQ(
      printed(*f.call, {call("a", R"({"k": [1, "x"]})"), call("b", "{}")}, "So:"),
      "So:\n<call>\n{\"name\": \"a\", \"arguments\": {\"k\": [1, \"x\"]}}\n</call>\n<call>\n{\"name\": \"b\", \"arguments\": {}}\n</call>");
}

TEST(DeriveFormat, IdsOfNineLettersBehindTheArguments) {
  const auto f = derived(read(testing::source_path("tests/golden/templates/bracketed.jinja")));
  ASSERT_TRUE(f.call) << f.why_none;
  EXPECT_EQ(f.call->fields, (std::vector<Field>{Field::name, Field::arguments, Field::id}));
  EXPECT_EQ(f.call->id_length, 9u);
  EXPECT_EQ(printed(*f.call, {call("a", "{}")}, ""), R"([CALLS][{"name": "a", "arguments": {}, "id": "probe0001"}])");
}

TEST(DeriveFormat, TaggedArguments) {
  const auto f = derived(kTaggedTemplate);
  ASSERT_TRUE(f.call && f.call->tagged) << f.why_none;
  EXPECT_EQ(f.call->tagged->lists, Notation::json);
  EXPECT_EQ(f.call->tagged->words[0], "True");
  EXPECT_EQ(
      printed(*f.call, {call("f", R"({"a": "x <y>", "b": true, "c": [1]})"), call("g", "{}")}, ""),
      "<tool>\n<function=f>\n<parameter=a>\nx <y>\n</parameter>\n<parameter=b>\nTrue\n</parameter>\n<parameter=c>\n[1]\n</parameter>\n"
      "</function>\n</tool>\n<tool>\n<function=g>\n</function>\n</tool>");
}

TEST(DeriveFormat, ListsBetweenMarks) {
  const auto f = derived(kBareMarksTemplate);
  ASSERT_TRUE(f.call && f.call->tagged) << f.why_none;
  EXPECT_EQ(f.source, kFromProbes);
  EXPECT_EQ(f.call->tagged->lists, Notation::bare);
  EXPECT_EQ(f.call->tagged->objects, Notation::bare);
  EXPECT_EQ(f.call->tagged->order, KeyOrder::letters);
  EXPECT_EQ(printed(*f.call,
                    {call("f", R"({"b": [1, "x \"y\"\n", true, []], "A": {"z": null, "C": {"d": "e"}}, "c": "t"})"), call("g", "{}")}, ""),
            "<|tool_call>call:f{A:{C:{d:<|\"|>e<|\"|>},z:None},b:[1,<|\"|>x "
            "\"y\"\n<|\"|>,true,[]],c:<|\"|>t<|\"|>}<tool_call|><|tool_call>call:g{}<tool_call|>");
}

TEST(DeriveFormat, ListsAsPythonHasThem) {
  const auto f = derived(kPythonTemplate);
  ASSERT_TRUE(f.call && f.call->tagged) << f.why_none;
  EXPECT_EQ(f.source, kFromProbes);
  EXPECT_EQ(f.call->tagged->lists, Notation::python);
  EXPECT_EQ(f.call->tagged->objects, Notation::json);
  EXPECT_EQ(
      printed(*f.call, {call("f", R"({"b": [1, "it's", "x \"y\"\n\\", true, {"k": null}], "A": {"z": null, "C": ["d"]}, "c": "t"})")}, ""),
      "<|calls_start|>[f(b=[1, \"it's\", 'x \"y\"\\n\\\\', True, {'k': None}], A={\"z\": null, \"C\": [\"d\"]}, c='t')]<|calls_end|>");
}

TEST(DeriveFormat, CallsThatAreCounted) {
  const auto f = derived(kCountedTemplate);
  ASSERT_TRUE(f.call) << f.why_none;
  EXPECT_TRUE(f.call->many);
  EXPECT_EQ(printed(*f.call, {call("a", "{}"), call("b", "{}"), call("c", "{}")}, ""), "<calls>a:0={};b:1={};c:2={}</calls>");
}

TEST(DeriveFormat, OneCallWithoutAMark) {
  const auto f = derived(kBareTemplate);
  ASSERT_TRUE(f.call) << f.why_none;
  EXPECT_FALSE(f.call->many);  // two are refused by the template
  EXPECT_EQ(f.call->trigger(), "");
  EXPECT_EQ(printed(*f.call, {call("a", R"({"k": 1})")}, ""), R"({"name": "a", "parameters": {"k": 1}})");
}

TEST(DeriveFormat, ArgumentsAsText) {
  const auto f = derived(
      R"({% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}<t>{{ c.function.name + '=' + c.function.arguments }}</t>{% endfor %}<end>
{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %})");
  ASSERT_TRUE(f.call) << f.why_none;
  EXPECT_TRUE(f.call->text_arguments);
}

TEST(DeriveFormat, ListsThatTheTemplateAppendsTo) {
  const auto f = derived(
      R"({% set all = [] %}{% for m in messages %}{% set _ = all.append(m) %}{% endfor %}{% for m in all %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}<t>{{ c.function | tojson }}</t>{% endfor %}<end>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %})");
  EXPECT_TRUE(f.call) << f.why_none;
}

TEST(DeriveFormat, RefusedByName) {
  EXPECT_EQ(
      derived("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}")
          .why_none,
      "the chat template prints no calls of tools");
  EXPECT_NE(derived("{% for m in messages %}{{ m.role }}: {{ m.content }}{% for c in m.tool_calls or [] %}<{{ c.function.name }}>{{ "
                    "c.function.arguments | tojson }}"
                    "</{{ c.function.name }}>{% endfor %}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}")
                .why_none.find("does not print the template's text"),
            std::string::npos);
}

TEST(DeriveFormat, TheTable) {
  const auto f = derived(
      "{% for m in messages %}<|start_of_role|>{{ m.role }}<|end_of_role|>{{ m.content }}{# <|tool_call|> #}\n{% endfor %}"
      "{% if add_generation_prompt %}<|start_of_role|>assistant<|end_of_role|>{% endif %}");
  ASSERT_TRUE(f.call);
  EXPECT_EQ(f.source, "Granite 3");
  EXPECT_EQ(printed(*f.call, {call("a", "{}"), call("b", R"({"k": 1})")}, ""),
            R"(<|tool_call|>[{"name": "a", "arguments": {}}, {"name": "b", "arguments": {"k": 1}}])");
}

TEST(DeriveFormat, PublishedTemplates) {
  const std::string folder = testing::shared_path("chat-templates");
  if (folder.empty()) GTEST_SKIP() << "no shared chat templates";
  size_t n = 0, probed = 0, known = 0;
  std::string refused;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".jinja") continue;
    ++n;
    const auto f = derived(read(entry.path()));
    if (f.call) {
      ++(f.source == "probes" ? probed : known);
    } else {
      EXPECT_NE(f.why_none, "") << entry.path();
      refused += "\n  " + entry.path().stem().string() + ": " + f.why_none.substr(0, 100);
    }
  }
  printf("%zu templates: %zu by probes, %zu by the table, %zu refused:%s\n", n, probed, known, n - probed - known, refused.c_str());
  EXPECT_GE(8 * (probed + known), 5 * n);
}

}  // namespace
}  // namespace orrery::text::format
