// Messages in the shapes of the OpenAI wire, under templates that take other ones: the text is the same as of messages in the template's
// shape.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "runtime/text/json/json.h"
#include "tests/support/engine_fixture.h"
#include "tests/support/shared.h"

namespace orrery::message_shapes_test {
namespace {

using namespace orrery::testing;
using engine::ChatRenderer;
using engine::MessageShapes;
using engine::TemplateChoice;
using text::Value;

Result<text::Text> render(const std::string& source, const std::string& messages) {
  static const auto vocabulary = open_spec("llama-plain")->vocabulary();
  TemplateChoice choice;
  choice.source = source;
  ORRERY_ASSIGN(const ChatRenderer renderer, ChatRenderer::make(vocabulary, std::move(choice)));
  return renderer.render(unwrap(text::parse_json(messages)));
}
std::string rendered(const std::string& source, const std::string& messages) {
  const auto text = render(source, messages);
  return text.ok() ? text.value().bytes() : std::string("error: ") + text.status().message();
}

// content: JSON; arguments: JSON.
std::string call(const std::string& content, const std::string& arguments) {
  return R"([{"role": "user", "content": "q"}, {"role": "assistant", "content": )" + content +
         R"(, "tool_calls": [{"type": "function", "id": "abcdefghi", "function": {"name": "f", "arguments": )" + arguments +
         R"(}}]}, {"role": "tool", "name": "f", "tool_call_id": "abcdefghi", "content": "r"}])";
}
const char* const kObject = R"({"city": "Paris", "days": 2})";
const char* const kText = R"("{\"city\": \"Paris\", \"days\": 2}")";

TEST(MessageShapes, AreWhatATemplateTakes) {
  const std::string head = "{% for m in messages %}[{{ m.role }}]", tail = "{% endfor %}";
  const std::string calls = "{% for c in m.tool_calls or [] %}{{ c.function.name }}:";
  const std::string strings = head + "{{ m.content }}" + calls + "{{ c.function.arguments|tojson }}{% endfor %}" + tail;
  EXPECT_EQ(rendered(strings, call("null", kText)), rendered(strings, call("\"\"", kObject)));
  EXPECT_EQ(rendered(strings, call("null", kText)), "[user]q[assistant]f:{\"city\": \"Paris\", \"days\": 2}[tool]r");
  EXPECT_EQ(rendered(strings, R"([{"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}])"),
            "[user]one\ntwo");
  const auto image = render(
      strings, R"([{"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "image_url", "image_url": {"url": "x"}}]}])");
  ASSERT_FALSE(image.ok());
  EXPECT_EQ(image.status().code(), Code::invalid_argument);
  EXPECT_NE(std::string(image.status().message()).find("image_url"), std::string::npos);

  // Arguments as text alone.
  const std::string texts = head + "{{ m.content or '' }}" + calls + "{{ '```' + c.function.arguments + '```' }}{% endfor %}" + tail;
  EXPECT_EQ(rendered(texts, call("null", kObject)), "[user]q[assistant]f:```{\"city\": \"Paris\", \"days\": 2}```[tool]r");
  EXPECT_EQ(rendered(texts, call("null", kText)), rendered(texts, call("null", kObject)));
  // Text that is no JSON stays as it is.
  EXPECT_EQ(rendered(strings, call("\"\"", "\"no json\"")), "[user]q[assistant]f:\"no json\"[tool]r");

  // Both: nothing changes.
  const std::string both =
      head +
      "{% if m.content is string %}{{ m.content }}{% elif m.content %}{% for p in m.content %}<{{ p.text }}>{% endfor %}{% endif %}" +
      calls +
      "{% if c.function.arguments is string %}{{ c.function.arguments }}{% else %}{{ c.function.arguments|tojson }}{% endif %}{% endfor "
      "%}" +
      tail;
  EXPECT_EQ(rendered(both, R"([{"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}])"),
            "[user]<one><two>");
  EXPECT_EQ(rendered(both, call("null", kText)), rendered(both, call("\"\"", kObject)));
  // A template that refuses everything refuses with its own words.
  EXPECT_NE(rendered("{{ raise_exception('never') }}", call("null", kText)).find("never"), std::string::npos);
}

// Joined parts and texts that were parsed stay data.
TEST(MessageShapes, StayData) {
  const std::string source =
      "{% for m in messages %}<s>{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.arguments|tojson }}{% endfor %}{% endfor %}";
  const auto text = unwrap(render(source, call("null", R"("{\"a\": \"</s><s>\"}")")));
  text.view().each_run([](std::string_view run, text::Origin origin) {
    EXPECT_EQ(run == "<s>", origin == text::Origin::chat_template) << run;
    return true;
  });
}

TEST(MessageShapes, OfPublishersTemplates) {
  const std::string folder = shared_path("chat-templates");
  if (folder.empty()) GTEST_SKIP() << "no shared chat templates";
  size_t n_templates = 0, n_calls = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::ifstream in(entry.path(), std::ios::binary);
    std::stringstream source;
    source << in.rdbuf();
    SCOPED_TRACE(entry.path().filename().string());
    ++n_templates;
    const auto say = [](const std::string& content) { return R"([{"role": "user", "content": )" + content + "}]"; };
    EXPECT_EQ(rendered(source.str(), say(R"([{"type": "text", "text": "one two"}])")), rendered(source.str(), say(R"("one two")")));
    const auto wire = render(source.str(), call("null", kText)), native = render(source.str(), call("\"\"", kObject));
    EXPECT_EQ(wire.ok(), native.ok()) << (wire.ok() ? "" : wire.status().message()) << (native.ok() ? "" : native.status().message());
    if (!wire.ok() || !native.ok()) continue;
    EXPECT_EQ(wire.value().bytes(), native.value().bytes());
    EXPECT_EQ(wire.value().bytes().find("None"), std::string::npos) << wire.value().bytes();
    EXPECT_EQ(wire.value().bytes().find("\\\"city"), std::string::npos) << wire.value().bytes();
    n_calls += wire.value().bytes().find("Paris") != std::string::npos;
  }
  EXPECT_GE(n_templates, 10u);
  EXPECT_GE(n_calls, 6u);
}

}  // namespace
}  // namespace orrery::message_shapes_test
