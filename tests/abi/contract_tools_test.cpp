// Tools and reasoning through the ABI: calls as events and in the conversation, results and the KV that the next turn reuses, choices,
// limits of reasoning, grammars after reasoning, and faults.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/abi/handles.h"
#include "tests/support/temp_dir.h"

namespace orrery::testing::contract_tools_test {
namespace {

// Qwen's way, with other marks.
constexpr const char* kTemplate =
    "{%- for m in messages -%}{{- '<' + m.role + '>' -}}{%- if m.reasoning_content -%}{{- '<think>' + m.reasoning_content + '</think>' "
    "-}}{%- endif -%}"
    "{{- m.content -}}{%- for c in m.tool_calls or [] -%}"
    "{{- '<call>{\"name\": \"' + c.function.name + '\", \"arguments\": ' + (c.function.arguments | tojson) + '}</call>' -}}{%- endfor -%}"
    "{{- '</s>' -}}{%- endfor -%}{%- if add_generation_prompt -%}{{- '<assistant>' -}}{%- endif -%}";
constexpr const char* kTools =
    R"([{"type": "function", "function": {"name": "add", "description": "adds", "parameters": {"type": "object", "properties": {
       "a": {"type": "integer", "minimum": 0, "maximum": 99}, "b": {"enum": [1, 2, 3]}}, "required": ["a", "b"]}}},
       {"type": "function", "function": {"name": "now"}}])";

struct Call {
  std::string name, id, pieces, arguments;
};
struct Told {
  std::string text, reasoning, order;  // order: a letter for each kind of event
  std::vector<Call> calls;
  orrery_event done;
};

class Tools : public ::testing::Test {
 protected:
  Session session(const char* tools = kTools, const char* source = kTemplate, uint32_t n_context = 1024) {
    Session s = open_session(model, n_context);
    orrery_template_options o = options(&orrery_template_options_init);
    o.tools_json = tools;
    o.template_source = source;
    Error error;
    check(orrery_session_set_template(s.get(), &o, &error), error, "orrery_session_set_template");
    say(s, "hello");
    return s;
  }
  static orrery_generate_options with(uint32_t tools, uint32_t max_tokens = 120) {
    orrery_generate_options o = generate_options(max_tokens);
    o.tools = tools;
    return o;
  }
  static Told told(const Session& s, const orrery_generate_options& o) {
    Told t = {};
    orrery_event& e = t.done;
    orrery_event_init(&e, sizeof e);
    const Generation g = generate(s, o);
    Error error;
    do {
      check(orrery_next(g.get(), &e, &error), error, "orrery_next");
      const std::string text(e.text ? e.text : "", e.text_bytes);
      switch (e.type) {
        case ORRERY_EVENT_TEXT: t.text += text, t.order += 't'; break;
        case ORRERY_EVENT_REASONING: t.reasoning += text, t.order += 'r'; break;
        case ORRERY_EVENT_CALL:
          EXPECT_EQ(e.call, t.calls.size());
          t.calls.push_back({e.name, {}, {}, {}});
          t.order += 'c';
          break;
        case ORRERY_EVENT_ARGUMENTS:
          t.calls.at(e.call).pieces += text;
          EXPECT_EQ(t.calls.at(e.call).name, e.name);
          t.order += 'a';
          break;
        case ORRERY_EVENT_CALL_END: t.calls.at(e.call).arguments = text, t.calls.at(e.call).id = e.call_id, t.order += 'e'; break;
        default: break;
      }
    } while (e.type != ORRERY_EVENT_DONE);
    for (const Call& c : t.calls) EXPECT_EQ(c.pieces, c.arguments);
    return t;
  }
  static std::string without_reasoning() {
    const std::string all = kTemplate;
    const size_t at = all.find("{%- if m.reasoning_content"), end = all.find("{%- endif -%}") + 13;
    return all.substr(0, at) + all.substr(end);
  }
  static std::string message(const Session& s, size_t i) {
    Error error;
    size_t n = 0;
    check(orrery_session_message(s.get(), i, nullptr, 0, &n, &error), error, "orrery_session_message");
    std::string json(n, '\0');
    check(orrery_session_message(s.get(), i, json.data(), n, &n, &error), error, "orrery_session_message");
    return json;
  }
  static std::string fault(const Session& s, const orrery_generate_options& o, orrery_status status) {
    Error error;
    orrery_generation* g = nullptr;
    EXPECT_EQ(orrery_generate(s.get(), &o, &g, &error), status) << error.message;
    orrery_generation_free(g);
    return error.message;
  }
  TempDir dir;
  std::string path = dir.write("tiny.gguf", TinyModel().build());
  Runtime runtime = make_runtime();
  Model model = open_model(runtime, path);
};

TEST_F(Tools, CallsAreEventsAndTheNextTurnReusesThem) {
  const Session s = session();
  orrery_generate_options o = with(ORRERY_TOOLS_REQUIRED, 200);
  o.one_call = 1;
  const Told t = told(s, o);
  EXPECT_EQ(t.done.finish_reason, uint32_t{ORRERY_FINISH_CALLS});
  EXPECT_EQ(t.done.complete, 1u);
  ASSERT_EQ(t.calls.size(), 1u);
  EXPECT_TRUE(t.calls[0].name == "add" || t.calls[0].name == "now");
  EXPECT_EQ(t.calls[0].id.size(), 9u);
  const std::string kept = message(s, 1);
  EXPECT_NE(kept.find("\"tool_calls\": [{\"id\": \"" + t.calls[0].id), std::string::npos) << kept;
  EXPECT_NE(kept.find("\"arguments\": " + t.calls[0].arguments), std::string::npos) << kept;
  // The result goes in, and all tokens so far are there already.
  const size_t held = orrery_session_n_tokens(s.get());
  Error error;
  const std::string result = "{\"role\": \"tool\", \"tool_call_id\": \"" + t.calls[0].id + "\", \"content\": \"3\"}";
  check(orrery_session_add_message_json(s.get(), result.c_str(), &error), error, "add");
  const Told next = told(s, with(ORRERY_TOOLS_NONE, 5));
  EXPECT_EQ(next.done.reused_tokens, held);
  EXPECT_TRUE(next.calls.empty());
}

TEST_F(Tools, AConversationOfThreeCallsComputesNoTokenTwice) {
  const Session s = session();
  for (int turn = 0; turn < 3; ++turn) {
    const size_t held = orrery_session_n_tokens(s.get());
    orrery_generate_options o = with(ORRERY_TOOLS_REQUIRED, 150);
    o.seed = static_cast<uint64_t>(turn);
    o.temperature = 1;
    const Told t = told(s, o);
    ASSERT_FALSE(t.calls.empty());
    EXPECT_EQ(t.done.reused_tokens, held) << turn;
    for (const Call& c : t.calls) {
      Error error;
      const std::string result = "{\"role\": \"tool\", \"tool_call_id\": \"" + c.id + "\", \"content\": \"3\"}";
      check(orrery_session_add_message_json(s.get(), result.c_str(), &error), error, "add");
    }
  }
}

TEST_F(Tools, GuessesChangeNothing) {
  const auto answer = [&](uint32_t speculate) {
    orrery_session_options o = session_options();
    o.n_context = 1024;
    o.speculate = speculate;
    const Session s = open_session(model, o);
    orrery_template_options t = options(&orrery_template_options_init);
    t.tools_json = kTools, t.template_source = kTemplate;
    Error error;
    check(orrery_session_set_template(s.get(), &t, &error), error, "orrery_session_set_template");
    say(s, "hello <call>{\"name\": \"add\"");
    orrery_generate_options g = with(ORRERY_TOOLS_REQUIRED, 150);
    g.max_reasoning_tokens = 8;
    g.temperature = 0.8f;
    const Told told_now = told(s, g);
    return message(s, 1) + told_now.order;
  };
  EXPECT_EQ(answer(ORRERY_SPECULATE_OFF), answer(ORRERY_SPECULATE_NGRAM));
}

// With many tools, the grammar compiles a tool's arguments when an answer calls the tool. Answers are complete, guesses do not change them,
// and they end within max_tokens.
TEST_F(Tools, ManyToolsAreCompiledOnTheWay) {
  std::string tools = "[";
  for (int i = 0; i < 12; ++i)
    tools += (i ? "," : "") + std::string(R"({"type": "function", "function": {"name": "t)") + std::to_string(i) +
             R"(", "parameters": {"type": "object", "properties": {
      "a": {"type": "integer", "minimum": )" +
             std::to_string(i) + R"(, "maximum": 99}, "b": {"type": "string", "maxLength": 4}}, "required": ["a"]}}})";
  tools += "]";
  const std::string source = without_reasoning();
  const auto answer = [&](uint32_t speculate, uint64_t seed, uint32_t max_tokens) {
    orrery_session_options o = session_options();
    o.n_context = 1024;
    o.speculate = speculate;
    const Session s = open_session(model, o);
    orrery_template_options t = options(&orrery_template_options_init);
    t.tools_json = tools.c_str(), t.template_source = source.c_str();
    Error error;
    check(orrery_session_set_template(s.get(), &t, &error), error, "orrery_session_set_template");
    say(s, "hello");
    orrery_generate_options g = with(ORRERY_TOOLS_REQUIRED, max_tokens);
    g.temperature = 1;
    g.seed = seed;
    const Told told_now = told(s, g);
    EXPECT_EQ(told_now.done.complete, 1u) << seed << " " << max_tokens << " " << message(s, 1);
    EXPECT_FALSE(told_now.calls.empty());
    for (const Call& c : told_now.calls) EXPECT_EQ(c.arguments.substr(0, 6), "{\"a\": ");
    return message(s, 1) + told_now.order;
  };
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    EXPECT_EQ(answer(ORRERY_SPECULATE_OFF, seed, 150), answer(ORRERY_SPECULATE_NGRAM, seed, 150));
    for (const uint32_t most : {70u, 80u, 100u}) (void)answer(ORRERY_SPECULATE_OFF, seed, most);
  }
}

TEST_F(Tools, Choices) {
  orrery_generate_options o = with(ORRERY_TOOLS_REQUIRED);
  o.one_call = 1;
  o.tool_name = "now";
  Told t = told(session(), o);
  ASSERT_EQ(t.calls.size(), 1u);
  EXPECT_EQ(t.calls[0].name, "now");
  EXPECT_EQ(t.calls[0].arguments, "{}");
  EXPECT_EQ(t.text, "");
  t = told(session(), with(ORRERY_TOOLS_NONE, 40));
  EXPECT_TRUE(t.calls.empty());
  t = told(session(), with(ORRERY_TOOLS_AUTO, 40));
  EXPECT_EQ(t.done.generated_tokens, 40u);
  // With a grammar, the answer is a call or fits the grammar.
  o = with(ORRERY_TOOLS_AUTO, 60);
  o.grammar = "root ::= \"yes\" | \"no\"";
  t = told(session(), o);
  EXPECT_TRUE(t.text == "yes" || t.text == "no" || !t.calls.empty()) << t.text;
  EXPECT_EQ(t.done.complete, 1u);
}

TEST_F(Tools, ReasoningIsToldApartAndLimited) {
  orrery_generate_options o = generate_options(200);
  o.split_reasoning = 1;
  o.grammar = "root ::= \"done\"";
  // The prompt opens the reasoning.
  const std::string open = std::string(kTemplate).replace(std::string(kTemplate).rfind("<assistant>"), 11, "<assistant><think>");
  o.max_reasoning_tokens = 20;
  const Session s = session(kTools, open.c_str());
  const Told t = told(s, o);
  EXPECT_EQ(t.text, "done");
  EXPECT_GE(t.reasoning.size(), 10u);
  EXPECT_EQ(t.order.find_first_not_of('r'), t.order.find('t'));
  EXPECT_LE(t.done.generated_tokens, 20u + 8 + 4 + 3);  // reasoning, its end, the answer, a character that was under way
  EXPECT_EQ(t.done.finish_reason, uint32_t{ORRERY_FINISH_END});
  EXPECT_EQ(t.done.complete, 1u);
  EXPECT_NE(message(s, 1).find("\"reasoning_content\": "), std::string::npos);
  o.tools = ORRERY_TOOLS_REQUIRED;
  o.grammar = nullptr;
  o.one_call = 1;
  EXPECT_EQ(told(session(kTools, open.c_str()), o).calls.size(), 1u);
}

TEST_F(Tools, ACutCallIsNoCall) {
  const Session s = session(kTools, without_reasoning().c_str());
  orrery_generate_options o = with(ORRERY_TOOLS_REQUIRED);
  o.max_tokens = 12;  // fewer than any call has
  const Told t = told(s, o);
  EXPECT_EQ(t.done.finish_reason, uint32_t{ORRERY_FINISH_LENGTH});
  EXPECT_EQ(t.done.complete, 0u);
  EXPECT_TRUE(t.calls.empty());
  const std::string kept = message(s, 1);
  EXPECT_EQ(kept.find("tool_calls"), std::string::npos) << kept;
  EXPECT_NE(kept.find("<call>"), std::string::npos) << kept;
}

TEST_F(Tools, TokensGoOnWhereACallWasCut) {
  const Session s = session(kTools, without_reasoning().c_str()), cut = session(kTools, without_reasoning().c_str());
  const orrery_generate_options o = with(ORRERY_TOOLS_REQUIRED, 200);
  const Told whole = told(s, o);
  orrery_generate_options first = o;
  first.max_tokens = 0;
  std::vector<int32_t> tokens(orrery_session_n_tokens(s.get()));
  size_t n = 0;
  Error error;
  check(orrery_session_tokens(s.get(), tokens.data(), tokens.size(), &n, &error), error, "tokens");
  tokens.resize(whole.done.prompt_tokens + 15);
  first.grammar_tokens = 15;
  orrery_generation* g = nullptr;
  check(orrery_generate_tokens(cut.get(), tokens.data(), tokens.size(), &first, &g, &error), error, "generate_tokens");
  const Generation generation(g);
  orrery_event e;
  orrery_event_init(&e, sizeof e);
  std::string arguments;
  do {
    check(orrery_next(g, &e, &error), error, "next");
    if (e.type == ORRERY_EVENT_CALL_END && arguments.empty()) arguments.assign(e.text, e.text_bytes);
  } while (e.type != ORRERY_EVENT_DONE);
  EXPECT_EQ(e.finish_reason, uint32_t{ORRERY_FINISH_CALLS});
  EXPECT_EQ(arguments, whole.calls[0].arguments);
}

TEST_F(Tools, Faults) {
  orrery_generate_options o = with(9);
  EXPECT_NE(fault(session(), o, ORRERY_INVALID_ARGUMENT).find("tools is 9"), std::string::npos);
  o = with(ORRERY_TOOLS_AUTO);
  EXPECT_NE(fault(session(nullptr), o, ORRERY_INVALID_ARGUMENT).find("tools_json"), std::string::npos);
  EXPECT_NE(fault(session("[]"), o, ORRERY_INVALID_ARGUMENT).find("empty"), std::string::npos);
  EXPECT_NE(fault(session("[{\"name\": \"a\", \"parameters\": {\"type\": \"object\", \"properties\": {\"x\": {\"uniqueItems\": true}}}}]"),
                  o, ORRERY_UNSUPPORTED)
                .find("tool a: "),
            std::string::npos);
  EXPECT_NE(fault(session(kTools, "{% for m in messages %}{{ m.content }}{% endfor %}"), o, ORRERY_UNSUPPORTED).find("prints no calls"),
            std::string::npos);
  o.tool_name = "other";
  EXPECT_NE(fault(session(), o, ORRERY_INVALID_ARGUMENT).find("'other'"), std::string::npos);
  o.tools = ORRERY_TOOLS_NONE;
  EXPECT_NE(fault(session(), o, ORRERY_INVALID_ARGUMENT).find("tool_name"), std::string::npos);
  o = generate_options(10);
  o.max_reasoning_tokens = 5;
  EXPECT_NE(fault(session(), o, ORRERY_INVALID_ARGUMENT).find("split_reasoning"), std::string::npos);
}

TEST_F(Tools, OlderCallersSkipTheNewEvents) {
  const Session s = session();
  const orrery_generate_options o = with(ORRERY_TOOLS_REQUIRED);
  const Generation g = generate(s, o);
  struct {
    orrery_event e;
    char guard;
  } old = {};
  old.e.struct_size = offsetof(orrery_event, name);
  old.e.name = "mine";
  Error error;
  do {
    ASSERT_EQ(orrery_next(g.get(), &old.e, &error), ORRERY_OK) << error.message;
    EXPECT_STREQ(old.e.name, "mine");
  } while (old.e.type != ORRERY_EVENT_DONE);
}

}  // namespace
}  // namespace orrery::testing::contract_tools_test
