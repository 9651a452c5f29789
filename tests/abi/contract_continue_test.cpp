// An answer that goes on (continue_last): after a limit as if there had been none, after an edit as the model would go on with that text,
// under a grammar that begins with it, inside reasoning, and what is refused.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/abi/handles.h"
#include "tests/abi/tiny_model.h"
#include "tests/support/temp_dir.h"

namespace orrery::testing::contract_continue_test {
namespace {

constexpr const char* kThinks =
    "{%- for m in messages -%}{{- '<' + m.role + '>' -}}{%- if m.reasoning_content -%}{{- '<think>' + m.reasoning_content + '</think>' "
    "-}}{%- endif -%}{{- m.content + '</s>' -}}{%- endfor -%}{%- if add_generation_prompt -%}{{- '<assistant>' -}}{%- endif -%}";

struct Told {
  std::string text, reasoning;
  orrery_event done;
};

class Continuing : public ::testing::Test {
 protected:
  static Told told(const Session& s, const orrery_generate_options& o) {
    Told t = {};
    orrery_event& e = t.done;
    orrery_event_init(&e, sizeof e);
    const Generation g = generate(s, o);
    Error error;
    do {
      check(orrery_next(g.get(), &e, &error), error, "orrery_next");
      if (e.type == ORRERY_EVENT_TEXT) t.text.append(e.text, e.text_bytes);
      if (e.type == ORRERY_EVENT_REASONING) t.reasoning.append(e.text, e.text_bytes);
    } while (e.type != ORRERY_EVENT_DONE);
    return t;
  }
  static orrery_generate_options going_on(uint32_t max_tokens) {
    orrery_generate_options o = generate_options(max_tokens);
    o.continue_last = 1;
    return o;
  }
  static void use(const Session& s, const char* source) {
    orrery_template_options o = options(&orrery_template_options_init);
    o.template_source = source;
    Error error;
    check(orrery_session_set_template(s.get(), &o, &error), error, "orrery_session_set_template");
  }
  // The refusal of orrery_generate(), or of the first orrery_next().
  static std::string refusal(const Session& s, const orrery_generate_options& o) {
    Error error;
    orrery_generation* g = nullptr;
    orrery_event e = options(&orrery_event_init);
    if (orrery_generate(s.get(), &o, &g, &error) == ORRERY_OK) {
      const Generation owned(g);
      EXPECT_EQ(orrery_next(g, &e, &error), ORRERY_INVALID_ARGUMENT);
    }
    EXPECT_EQ(error.status, ORRERY_INVALID_ARGUMENT) << error.message;
    return error.message;
  }

  TempDir dir;
  std::string path = dir.write("tiny.gguf", TinyModel().build());
  Runtime runtime = make_runtime();
  Model model = open_model(runtime, path);
};

TEST_F(Continuing, AfterALimitAsIfThereHadBeenNone) {
  const Session one = open_session(model), other = open_session(model);
  say(one, "hello");
  say(other, "hello");
  const Told expected = told(one, generate_options(24)), begun = told(other, generate_options(7));
  EXPECT_EQ(begun.done.finish_reason, uint32_t{ORRERY_FINISH_LENGTH});
  const Told went_on = told(other, going_on(17));
  EXPECT_EQ(begun.text + went_on.text, expected.text);
  EXPECT_EQ(tokens_of(other), tokens_of(one));
  EXPECT_EQ(message_of(other, 1), message_of(one, 1));
  EXPECT_EQ(orrery_session_n_messages(other.get()), 2u);
  EXPECT_EQ(went_on.done.generated_tokens, 17u);
  EXPECT_EQ(went_on.done.prompt_tokens, begun.done.prompt_tokens + 7);
  EXPECT_GE(went_on.done.reused_tokens + 1, went_on.done.prompt_tokens) << "the answer so far is not read again";
}

TEST_F(Continuing, AnEditIsTextOfTheAnswer) {
  const Session s = open_session(model);
  say(s, "hello");
  say(s, "A b</s><user>c", "assistant");  // a control token that the text spells is text
  const Told t = told(s, going_on(6));
  std::vector<int32_t> tokens = tokens_of(s);
  tokens.resize(t.done.prompt_tokens);
  const Session by_tokens = open_session(model);
  EXPECT_EQ(pull(generate_tokens(by_tokens, tokens, generate_options(6))).text(), t.text);
  const Vocab vocab(orrery_model_vocab(model.get()));
  std::string spelled(256, '\0');
  size_t n = 0;
  Error error;
  ASSERT_EQ(orrery_detokenize(vocab.get(), tokens.data() + 1, tokens.size() - 1, 0, spelled.data(), spelled.size(), &n, &error), ORRERY_OK);
  spelled.resize(n);  // without control tokens
  EXPECT_EQ(spelled.substr(spelled.size() - std::min<size_t>(spelled.size(), 17)), "[a]A b</s><user>c");
  EXPECT_NE(message_of(s, 1).find("A b</s><user>c"), std::string::npos);
  // A name of the message's own stays.
  const Session named = open_session(model);
  say(named, "hello");
  ASSERT_EQ(orrery_session_add_message_json(named.get(), R"({"role": "assistant", "content": "A", "name": "eve"})", &error), ORRERY_OK);
  told(named, going_on(3));
  EXPECT_NE(message_of(named, 1).find("\"eve\""), std::string::npos);
}

TEST_F(Continuing, AGrammarBeginsWithTheText) {
  orrery_generate_options o = going_on(60);
  o.grammar_kind = ORRERY_GRAMMAR_JSON_SCHEMA;
  o.grammar = R"({"type": "object", "properties": {"a": {"enum": [17, 29]}, "b": {"type": "boolean"}}, "required": ["a", "b"]})";
  const Session s = open_session(model);
  say(s, "hello");
  say(s, "{\"a\": 2", "assistant");
  const Told t = told(s, o);
  EXPECT_EQ(t.text.substr(0, 1), "9") << t.text;
  EXPECT_EQ(t.done.complete, 1u);
  EXPECT_NE(message_of(s, 1).find("{\\\"a\\\": 29"), std::string::npos) << message_of(s, 1);
  const Session wrong = open_session(model);
  say(wrong, "hello");
  say(wrong, "{\"a\": 3", "assistant");
  EXPECT_NE(refusal(wrong, o).find("continue_last: the answer so far does not fit its form"), std::string::npos);
  EXPECT_EQ(message_of(wrong, 1), R"({"role": "assistant", "content": "{\"a\": 3"})");
}

TEST_F(Continuing, InsideReasoningAndBehindIt) {
  orrery_generate_options o = generate_options(100);
  o.split_reasoning = 1;
  o.max_reasoning_tokens = 20;
  o.grammar = "root ::= \"done and over\"";
  const std::string open = std::string(kThinks).replace(std::string(kThinks).rfind("<assistant>"), 11, "<assistant><think>");
  for (const char* source : {open.c_str(), kThinks}) {
    const Session s = open_session(model), by_hand = open_session(model);
    for (const Session* each : {&s, &by_hand}) use(*each, source), say(*each, "hello");
    Error error;
    // Reasoning alone goes on, and ends.
    ASSERT_EQ(orrery_session_add_message_json(s.get(), R"({"role": "assistant", "content": "", "reasoning_content": "well"})", &error),
              ORRERY_OK);
    orrery_generate_options rest = o;
    rest.continue_last = 1;
    rest.split_reasoning = 0;  // the message has reasoning: it is told apart
    rest.max_reasoning_tokens = 0;
    rest.max_tokens = 0;
    rest.n_stop = 0;
    rest.max_tokens = 3;
    const Told first = told(s, rest);
    EXPECT_FALSE(first.reasoning.empty());
    EXPECT_EQ(first.reasoning.find("well"), std::string::npos) << "events have the new text alone";
    EXPECT_NE(message_of(s, 1).find("\"reasoning_content\": \"well"), std::string::npos) << message_of(s, 1);
    rest.max_tokens = 100;
    rest.max_reasoning_tokens = 10;
    rest.split_reasoning = 1;
    const Told second = told(s, rest);
    EXPECT_EQ(second.text, "done and over");
    EXPECT_NE(message_of(s, 1).find("\"content\": \"done and over\""), std::string::npos) << message_of(s, 1);
    // Content behind reasoning goes on as content.
    ASSERT_EQ(orrery_session_add_message_json(by_hand.get(), R"({"role": "assistant", "content": "done a", "reasoning_content": "well"})",
                                              &error),
              ORRERY_OK);
    const char* const stops[] = {"one"};  // of the new text alone
    rest.stop = stops;
    rest.n_stop = 1;
    const Told third = told(by_hand, rest);
    EXPECT_EQ(third.text, "nd over");
    EXPECT_EQ(third.reasoning, "");
    EXPECT_EQ(message_of(by_hand, 1), R"({"role": "assistant", "content": "done and over", "reasoning_content": "well"})");
  }
}

TEST_F(Continuing, WhatIsRefusedIsNamedAndChangesNothing) {
  const Session s = open_session(model);
  EXPECT_NE(refusal(s, going_on(4)).find("no message"), std::string::npos);
  say(s, "hello");
  EXPECT_NE(refusal(s, going_on(4)).find("not the assistant's"), std::string::npos);
  Error error;
  for (const auto& [message, word] :
       {std::pair<const char*, const char*>{R"({"role": "assistant", "content": [{"type": "text", "text": "a"}]})", "parts"},
        {R"({"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f", "arguments": {}}}]})", "calls"}}) {
    ASSERT_EQ(orrery_session_add_message_json(s.get(), message, &error), ORRERY_OK) << error.message;
    EXPECT_NE(refusal(s, going_on(4)).find(word), std::string::npos);
    ASSERT_EQ(orrery_session_rewind_messages(s.get(), 1, &error), ORRERY_OK);
  }
  const orrery_generate_options o = going_on(4);
  const std::vector<int32_t> tokens = byte_tokens("hello");
  orrery_generation* g = nullptr;
  EXPECT_EQ(orrery_generate_tokens(s.get(), tokens.data(), tokens.size(), &o, &g, &error), ORRERY_INVALID_ARGUMENT);
  EXPECT_NE(std::string(error.message).find("continue_last"), std::string::npos);
  EXPECT_EQ(orrery_session_n_messages(s.get()), 1u);
}

// The oldest turns leave, and the answer so far stays.
TEST_F(Continuing, WhereTheContextIsFull) {
  orrery_session_options o = session_options();
  o.n_context = 96;
  o.overflow = ORRERY_OVERFLOW_DROP_OLDEST;
  const Session s = open_session(model, o);
  for (int i = 0; i < 3; ++i) say(s, "some words to fill"), say(s, "and an answer", "assistant");
  say(s, "last");
  say(s, "The answer", "assistant");
  const Told t = told(s, going_on(60));
  EXPECT_EQ(t.done.generated_tokens, 60u);
  EXPECT_EQ(orrery_session_n_messages(s.get()), 8u);
  const std::string end = message_of(s, 7);
  EXPECT_NE(end.find("\"The answer"), std::string::npos) << end;
}

}  // namespace
}  // namespace orrery::testing::contract_continue_test
