// Answers under a grammar: the mask in every way of choosing a token, ends, guesses and drafts, limits, and answers that go on.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "runtime/engine/answer/constraint.h"
#include "runtime/engine/shared/grammars.h"
#include "runtime/text/grammar/grammar.h"
#include "runtime/text/json/json.h"
#include "tests/support/engine_fixture.h"
#include "tests/support/policy_sessions.h"
#include "tests/support/random_blocks.h"
#include "tests/support/shared.h"
#include "tests/support/shortlist_reference.h"

namespace orrery::grammar_test {
namespace {

using namespace orrery::testing;
using engine::Event;
using engine::EventType;
using engine::Finish;
using engine::GenerateOptions;
using engine::Generation;
using engine::Sampler;
using engine::SamplingOptions;
using engine::Session;
using engine::Speculate;
using text::grammar::Grammar;
using text::grammar::GrammarOptions;
using text::grammar::Language;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// ---- The sampler ----

// The oracle of a mask: a hook that writes -infinity to what the mask bans.
struct Ban {
  std::vector<uint32_t> words;
  static int32_t hook(void* user, float* logits, size_t n, const int32_t*, size_t) {
    const Ban& ban = *static_cast<const Ban*>(user);
    for (size_t i = 0; i < n; ++i)
      if (i / 32 >= ban.words.size() || (ban.words[i / 32] >> (i % 32) & 1) == 0) logits[i] = -kInfinity;
    return 0;
  }
};

TEST(EngineGrammarSampler, MasksAreHooksThatBan) {
  Random random(11);
  int n_lists = 0, n_decided = 0, n_errors = 0;
  for (int trial = 0; trial < 400; ++trial) {
    SCOPED_TRACE(trial);
    const size_t sizes[] = {40, 300, 2500, 6000};
    const size_t n = sizes[random.below(4)];
    SamplingOptions o;
    if (random.below(4) > 0) o.temperature = 0.2f + 1.5f * random.uniform();
    if (random.below(2)) o.top_k = static_cast<uint32_t>(1 + random.below(random.below(3) ? 60 : 3000));
    if (random.below(2)) o.top_p = 0.2f + 0.8f * random.uniform();
    if (random.below(2)) o.min_p = 0.3f * random.uniform();
    if (random.below(2)) o.repetition_penalty = 0.5f + random.uniform();
    if (random.below(3) == 0) o.presence_penalty = 2 * random.normal();
    if (random.below(2)) o.n_logprobs = static_cast<uint32_t>(random.below(engine::kMaxLogprobs + 1));
    for (size_t i = random.below(3) ? 0 : random.below(40); i > 0; --i)
      o.bias.push_back({static_cast<int32_t>(random.below(n)), random.below(5) == 0 ? -kInfinity : 5 * random.normal()});
    o.seed = random.bits();
    Ban ban;
    SamplingOptions hooked = o;
    hooked.hook = &Ban::hook, hooked.hook_user = &ban;
    Sampler masked(o, static_cast<int32_t>(n)), banned(hooked, static_cast<int32_t>(n)), listed(o, static_cast<int32_t>(n));
    std::vector<int32_t> tokens;
    for (size_t i = random.below(100); i > 0; --i) tokens.push_back(static_cast<int32_t>(random.below(n)));
    for (int step = 0; step < 8; ++step) {
      std::vector<float> logits(n);
      for (float& x : logits) x = 2 * random.normal();
      if (random.below(4) == 0)
        for (float& x : logits) x = std::round(x);
      if (random.below(8) == 0) logits[random.below(n)] = std::nanf(""), logits[random.below(n)] = kInfinity;
      ban.words.assign((n + 31) / 32 - random.below(2), 0);
      const uint64_t share = random.below(3);  // few tokens, half of them, most of them
      for (size_t i = 0; i < 32 * ban.words.size(); ++i)
        if (share == 0 ? random.below(30) == 0 : share == 1 ? random.below(2) : random.below(20) > 0) ban.words[i / 32] |= 1u << (i % 32);
      masked.set_mask({ban.words.data(), ban.words.size()});
      listed.set_mask({ban.words.data(), ban.words.size()});
      auto expected = banned.choose(logits, tokens), given = masked.choose(logits, tokens);
      ASSERT_EQ(given.ok(), expected.ok());
      n_errors += !expected.ok();
      engine::Choice choice;
      bool decided = false;
      if (engine::Shortlist* list = listed.ask(tokens)) {
        ++n_lists;
        const ShortlistRequest request = list->request();
        ASSERT_LE(request.tokens.size(), size_t{ShortlistRequest::kMostTokens});
        write_shortlist(expected_shortlist(logits, request), request, list->result());
        list->arrived();
        decided = listed.choose(tokens, &choice) == Sampler::Outcome::chosen;
        n_decided += decided;
      }
      if (!decided) {
        auto all = listed.choose(logits, tokens);
        ASSERT_EQ(all.ok(), expected.ok());
        if (all.ok()) choice = *all;
      }
      if (!expected.ok()) continue;
      ASSERT_EQ(given->token, expected->token);
      ASSERT_EQ(choice.token, expected->token);
      ASSERT_EQ(given->logprob, expected->logprob);
      ASSERT_EQ(choice.logprob, expected->logprob);
      ASSERT_EQ(choice.top.size(), expected->top.size());
      for (size_t i = 0; i < choice.top.size(); ++i) ASSERT_EQ(choice.top[i].token, expected->top[i].token) << i;
      tokens.push_back(expected->token);
    }
  }
  EXPECT_GT(n_lists, 1000);
  EXPECT_GT(n_decided, 900);
  EXPECT_GT(n_errors, 0);
}

// ---- Answers ----

std::shared_ptr<engine::LanguageModel> demo() { return open_demo(); }

constexpr const char* kPerson =
    R"({"type": "object", "properties": {"name": {"type": "string", "minLength": 1, "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3}}, "required": ["name", "age", "tags"],
        "additionalProperties": false})";
constexpr const char* kTree =
    R"({"$defs": {"t": {"type": "object", "properties": {"v": {"type": "number"}, "sub": {"type": "array", "items": {"$ref": "#/$defs/t"}}},
        "required": ["v", "sub"], "additionalProperties": false}}, "$ref": "#/$defs/t"})";
constexpr const char* kForm =
    R"({"type": "object", "properties": {"first_long_key_name": {"type": "boolean"}, "second_long_key_name": {"type": "null"},
        "third": {"const": "a constant text that is long enough"}}, "required": ["first_long_key_name", "second_long_key_name", "third"],
        "additionalProperties": false})";

std::shared_ptr<Grammar> schema(const engine::LanguageModel& model, const char* source) {
  GrammarOptions options;
  options.language = Language::json_schema;
  options.schema.whitespace = text::grammar::SchemaOptions::Whitespace::compact;
  return unwrap(model.vocabulary()->grammar(source, options));
}
std::shared_ptr<Grammar> gbnf(const engine::LanguageModel& model, const char* source) {
  return unwrap(model.vocabulary()->grammar(source, {}));
}

GenerateOptions under(std::shared_ptr<Grammar> grammar, uint32_t max_tokens = 200, float temperature = 0.0f, uint64_t seed = 0) {
  GenerateOptions options;
  options.max_tokens = max_tokens;
  options.sampling.temperature = temperature, options.sampling.seed = seed;
  options.sampling.n_logprobs = 2;
  options.grammar = std::move(grammar);
  return options;
}

struct Story {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  std::string text;
  Event done;
};
Story tell(Generation* g) {
  Story story;
  Event event;
  do {
    unwrap(g->next(&event));
    if (event.type == EventType::token) {
      story.tokens.push_back(event.token);
      story.logprobs.push_back(event.logprob);
      for (const engine::TokenLogprob& t : event.top) story.logprobs.push_back(t.logprob);
    }
    if (event.type == EventType::text) story.text += event.text;
  } while (event.type != EventType::done);
  story.done = event;
  return story;
}
std::vector<int32_t> prompt_of(const engine::LanguageModel& model, const std::string& text) {
  std::vector<int32_t> tokens;
  unwrap(model.tokenizer().encode(text, {}, &tokens));
  return tokens;
}
Story proceed(Session* session, const std::vector<int32_t>& tokens, const GenerateOptions& options) {
  return tell(unwrap(Generation::proceed(session, tokens, options)).get());
}

std::unique_ptr<Session> session_of(const std::shared_ptr<engine::LanguageModel>& model, Speculate speculate = Speculate::off,
                                    uint32_t n_context = 512) {
  engine::SessionOptions options;
  options.n_context = n_context;
  options.chunk_tokens = 16;
  options.speculate = speculate;
  if (speculate != Speculate::off) options.guess_costs.emplace().fill(0.01);
  if (speculate == Speculate::draft)
    options.draft_model = unwrap(engine::LanguageModel::open(model->runtime_ptr(), source_path("samples/models/demo-q8_0.gguf"), {}));
  if (speculate == Speculate::policy)
    options.policy = "auto", options.policy_options = {{"by", "window"}}, options.kv_share = 0.3, options.speculate_tokens = 3;
  return unwrap(Session::open(model, options));
}

bool is_whole(const Grammar& grammar, const std::string& text) {
  bool complete = false;
  return grammar.match(text, &complete) == text.size() && complete;
}

TEST(EngineGrammar, CompleteAnswersAreWhole) {
  const auto model = demo();
  const auto prompt = prompt_of(*model, "the otter swims in the river. a table of animals:");
  int n_complete = 0, n_cut = 0;
  for (const char* source : {kPerson, kTree, kForm}) {
    const auto grammar = schema(*model, source);
    for (uint64_t seed = 0; seed < 6; ++seed) {
      const auto session = session_of(model);
      const Story story = proceed(session.get(), prompt, under(grammar, 120, seed == 0 ? 0.0f : 1.0f, seed));
      EXPECT_EQ(story.done.complete, is_whole(*grammar, story.text)) << story.text;
      EXPECT_TRUE(story.done.complete) << "there was room: " << story.text;
      EXPECT_TRUE(text::parse_json(story.text).ok()) << story.text;
      n_complete += story.done.complete, n_cut += story.done.finish == Finish::length;
    }
  }
  EXPECT_EQ(n_complete, 18);
}

// Guesses, drafts and forced text: the same tokens and log-probabilities, and tokens that were guessed.
TEST(EngineGrammar, GuessesChangeNothing) {
  const auto model = demo();
  const auto prompt = prompt_of(*model, "the otter swims in the river, and the otter swims in the river. a table:");
  for (const char* source : {kPerson, kTree, kForm}) {
    const auto grammar = schema(*model, source);
    for (const float temperature : {0.0f, 1.0f}) {
      const auto plain = session_of(model);
      const Story expected = proceed(plain.get(), prompt, under(grammar, 60, temperature, 5));
      for (const Speculate speculate : {Speculate::ngram, Speculate::draft, Speculate::policy}) {
        const auto session = session_of(model, speculate);
        const Story story = proceed(session.get(), prompt, under(grammar, 60, temperature, 5));
        EXPECT_EQ(story.tokens, expected.tokens) << static_cast<int>(speculate) << " " << story.text << "\n" << expected.text;
        EXPECT_EQ(story.logprobs, expected.logprobs);
        EXPECT_EQ(story.done.finish, expected.done.finish);
        EXPECT_EQ(story.done.complete, expected.done.complete);
        if (speculate != Speculate::policy && source == kForm) {
          EXPECT_GT(session->stats().accepted_tokens, story.tokens.size() / 3) << story.text << ": its text is forced";
        }
        if (speculate == Speculate::draft) {
          EXPECT_GT(session->stats().accepted_tokens, story.tokens.size() / 3);
        }
      }
    }
  }
}

// With few tokens left, only what can still be closed: whole from the least number of tokens on, cut below it.
TEST(EngineGrammar, AnswersAreClosedInTime) {
  const auto model = demo();
  const auto prompt = prompt_of(*model, "once upon a time");
  for (const char* source : {kPerson, kTree, kForm}) {
    const auto grammar = schema(*model, source);
    const uint32_t least = grammar->matcher().tokens_to_end();
    ASSERT_GT(least, 3u);
    for (const uint32_t more : {0u, 1u, 2u, 3u, 5u, 8u, 13u}) {
      for (const float temperature : {0.0f, 1.5f}) {
        const auto session = session_of(model);
        const Story story = proceed(session.get(), prompt, under(grammar, least + more, temperature, more));
        EXPECT_TRUE(story.done.complete && is_whole(*grammar, story.text)) << least << " + " << more << ": " << story.text;
      }
    }
    const auto session = session_of(model);
    const Story cut = proceed(session.get(), prompt, under(grammar, least / 2 - 1));
    EXPECT_FALSE(cut.done.complete);
    EXPECT_EQ(cut.done.finish, Finish::length);
    bool complete = true;
    EXPECT_EQ(grammar->match(cut.text, &complete), cut.text.size()) << cut.text;
    EXPECT_FALSE(complete);
  }
  // The context is a limit too.
  const auto grammar = schema(*model, kPerson);
  const auto session = session_of(model, Speculate::off, static_cast<uint32_t>(prompt.size()) + grammar->matcher().tokens_to_end() + 2);
  const Story story = proceed(session.get(), prompt, under(grammar, 0, 1.5f, 3));
  EXPECT_TRUE(story.done.complete) << story.text;
}

// Where no end fits, none is searched for as many bytes as tokens are missing. Then the search goes on.
TEST(EngineGrammar, AnEndThatCouldNotFitIsSearchedAgain) {
  const auto model = open_spec("llama-plain");
  const text::Tokenizer& tokenizer = model->tokenizer();
  engine::Constraint constraint(unwrap(model->vocabulary()->grammar("root ::= \"a\"{60} (\"b\" | \"c\"{200})", {})), false);
  const int32_t a = tokenizer.find("a"), b = tokenizer.find("b"), c = tokenizer.find("c");
  ASSERT_TRUE(a >= 0 && b >= 0 && c >= 0);
  const auto narrowed = [&](int32_t token, uint32_t left) {
    unwrap(constraint.prepare(nullptr));
    return unwrap(constraint.close_in_time(token, left, nullptr));
  };
  const auto allows = [&](int32_t token) { return (constraint.mask()[static_cast<size_t>(token) / 32] >> (token % 32) & 1) != 0; };
  for (int i = 0; i < 60; ++i) {
    EXPECT_FALSE(narrowed(a, i == 0 ? 5 : 100)) << i;
    unwrap(constraint.accept(a));
  }
  EXPECT_TRUE(narrowed(c, 1));  // 199 more tokens do not fit behind it
  EXPECT_TRUE(allows(b));
  EXPECT_FALSE(allows(c));
}

TEST(EngineGrammar, EndsStandWhereTheGrammarMayEnd) {
  const auto model = demo();
  const auto prompt = prompt_of(*model, "once upon a time");
  // An end that the model wants early does not come early; nothing behind the last byte is computed.
  GenerateOptions options = under(gbnf(*model, "root ::= \"ab\" [c]{2} \"d\""), 50);
  const int32_t end = model->tokenizer().end_of_generation()[0];
  options.sampling.bias = {{end, 100.0f}};
  const auto session = session_of(model);
  Story story = proceed(session.get(), prompt, options);
  EXPECT_EQ(story.text, "abccd");
  EXPECT_EQ(story.done.finish, Finish::end);
  EXPECT_TRUE(story.done.complete);
  EXPECT_EQ(session->tokens().size(), prompt.size() + story.tokens.size());
  // Where it may end, it may also go on.
  options = under(gbnf(*model, "root ::= \"ab\" \"c\"*"), 12);
  options.sampling.bias = {{end, 100.0f}};
  story = proceed(session_of(model).get(), prompt, options);
  EXPECT_EQ(story.text, "ab");
  EXPECT_EQ(story.done.finish, Finish::end);
  options.ignore_end = true;
  story = proceed(session_of(model).get(), prompt, options);
  EXPECT_EQ(story.text.substr(0, 3), "abc") << story.text;
  EXPECT_EQ(story.done.finish, Finish::length);
  EXPECT_TRUE(story.done.complete) << "the limit fell where it may end";
  options.grammar = gbnf(*model, "root ::= \"abc\"");
  story = proceed(session_of(model).get(), prompt, options);
  EXPECT_EQ(story.text, "abc");
  EXPECT_EQ(story.done.finish, Finish::end) << "nothing but the end was left";
  // A stop string cuts.
  options = under(gbnf(*model, "root ::= \"one, two, three\""), 50);
  options.stop = {"two"};
  story = proceed(session_of(model).get(), prompt, options);
  EXPECT_EQ(story.text, "one, ");
  EXPECT_EQ(story.done.finish, Finish::stop);
  EXPECT_FALSE(story.done.complete);
  // A bias that bans all that the grammar allows.
  options = under(gbnf(*model, "root ::= \"x\""), 50);
  for (int32_t id = 0; id < model->tokenizer().n_vocab(); ++id)
    if (model->tokenizer().token_bytes(id) == "x") options.sampling.bias.push_back({id, -kInfinity});
  const auto other = session_of(model);
  const auto g = unwrap(Generation::proceed(other.get(), prompt, options));
  Event event;
  Status status = ok_status();
  while (status.ok() && event.type != EventType::done) status = g->next(&event);
  EXPECT_EQ(status.code(), Code::invalid_argument);
  EXPECT_NE(std::string(status.message()).find("grammar"), std::string::npos) << status.message();
}

// A cut answer goes on under the same grammar, wherever it was cut, and gives the text that was not cut.
TEST(EngineGrammar, CutAnswersGoOn) {
  const auto model = demo();
  const auto prompt = prompt_of(*model, "once upon a time");
  const auto grammar = gbnf(*model, "root ::= (word \" \"){6,9} word \".\"\nword ::= [a-z]{2,9}");
  const Story whole = proceed(session_of(model).get(), prompt, under(grammar, 120));
  ASSERT_TRUE(whole.done.complete) << whole.text;
  for (size_t cut = 0; cut < whole.tokens.size(); cut += 3) {
    std::vector<int32_t> tokens = prompt;
    tokens.insert(tokens.end(), whole.tokens.begin(), whole.tokens.begin() + static_cast<ptrdiff_t>(cut));
    GenerateOptions options = under(grammar, 120);
    options.grammar_tokens = static_cast<uint32_t>(cut);
    const auto session = session_of(model);
    unwrap(session->prefill({prompt.data(), prompt.size()}, nullptr, nullptr));
    for (size_t i = 0; i < cut; ++i) feed(session.get(), whole.tokens[i]);
    const Story rest = proceed(session.get(), tokens, options);
    EXPECT_EQ(rest.tokens, std::vector<int32_t>(whole.tokens.begin() + static_cast<ptrdiff_t>(cut), whole.tokens.end())) << cut;
    EXPECT_TRUE(rest.done.complete);
  }
  GenerateOptions options = under(gbnf(*model, "root ::= [0-9]+"));
  options.grammar_tokens = 2;
  const auto session = session_of(model);
  auto refused = Generation::proceed(session.get(), prompt, options);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), Code::invalid_argument);
  options.grammar_tokens = 1000;
  EXPECT_FALSE(Generation::proceed(session.get(), prompt, options).ok());
  options.grammar = nullptr, options.grammar_tokens = 1;
  EXPECT_FALSE(Generation::proceed(session.get(), prompt, options).ok());
}

// Several sessions in a step: each has its own mask, and the tokens that it has alone.
TEST(EngineGrammar, SessionsTogether) {
  const auto model = demo();
  const std::vector<std::vector<int32_t>> prompts = {prompt_of(*model, "once upon a time"), prompt_of(*model, "the otter swims"),
                                                     prompt_of(*model, "a table of animals"), prompt_of(*model, "why")};
  const std::vector<std::shared_ptr<Grammar>> grammars = {schema(*model, kPerson), schema(*model, kTree), schema(*model, kForm), nullptr};
  std::vector<Story> alone;
  for (size_t i = 0; i < prompts.size(); ++i)
    alone.push_back(proceed(session_of(model).get(), prompts[i], under(grammars[i], 40, 0.9f, i)));
  std::vector<std::unique_ptr<Session>> sessions;
  std::vector<std::unique_ptr<Generation>> generations;
  for (size_t i = 0; i < prompts.size(); ++i) {
    sessions.push_back(session_of(model));
    generations.push_back(unwrap(Generation::proceed(sessions.back().get(), prompts[i], under(grammars[i], 40, 0.9f, i))));
  }
  std::vector<std::vector<int32_t>> tokens(prompts.size());
  for (bool any = true; any;) {
    std::vector<Generation*> steps;
    any = false;
    for (const auto& g : generations)
      if (!g->finished() && g->need() == Generation::Need::step) steps.push_back(g.get());
    if (steps.size() > 1) Generation::step_together({steps.data(), steps.size()});
    for (size_t i = 0; i < generations.size(); ++i) {
      if (generations[i]->finished()) continue;
      Event event;
      unwrap(generations[i]->next(&event));
      if (event.type == EventType::token) tokens[i].push_back(event.token);
      if (event.type == EventType::done) {
        EXPECT_EQ(event.complete, alone[i].done.complete);
      }
      any = true;
    }
  }
  for (size_t i = 0; i < prompts.size(); ++i) EXPECT_EQ(tokens[i], alone[i].tokens) << i;
}

// The oldest turns leave in the middle of an answer: the grammar goes on where it was.
TEST(EngineGrammar, OldTurnsLeaveInTheMiddle) {
  const auto model = demo();
  engine::SessionOptions options;
  options.n_context = 192;
  options.overflow = engine::Overflow::drop_oldest;
  const auto session = unwrap(Session::open(model, options));
  const auto say = [&](const char* role, const std::string& content) {
    text::Map message;
    message.set("role", text::Value::string(role));
    message.set("content", text::Value::string(content));
    session->conversation().messages.push_back(text::Value::map(std::move(message)));
  };
  for (int i = 0; i < 4; ++i)
    say("user", "where does the otter live, and what does it eat?"), say("assistant", "the otter lives in the river and eats fish.");
  say("user", "a list");
  const auto grammar = gbnf(*model, "root ::= \"[\" ([a-z]{3} \", \"){30,60} \"end]\"");
  const Story story = tell(unwrap(Generation::answer(session.get(), under(grammar, 170, 0.8f, 2))).get());
  EXPECT_GT(session->conversation().n_dropped, 0u);
  EXPECT_TRUE(story.done.complete && is_whole(*grammar, story.text)) << story.text;
}

// One compilation serves all answers, until others have taken its place.
TEST(EngineGrammar, GrammarsAreKept) {
  const auto model = demo();
  const auto first = gbnf(*model, "root ::= \"a\"");
  EXPECT_EQ(gbnf(*model, "root ::= \"a\""), first);
  GrammarOptions options;
  options.root = "other";
  EXPECT_FALSE(model->vocabulary()->grammar("root ::= \"a\"", options).ok()) << "another root is another grammar";
  for (size_t i = 0; i < engine::Grammars::kMostKept; ++i) gbnf(*model, ("root ::= \"b\"{" + std::to_string(i + 1) + "}").c_str());
  EXPECT_NE(gbnf(*model, "root ::= \"a\""), first);
}

}  // namespace
}  // namespace orrery::grammar_test
