// Grammars: the options of an answer's grammar; matchers.
#include "capi/handles.h"
#include "runtime/text/json/json.h"

namespace orrery::capi {

namespace {

namespace grammar = text::grammar;

Result<grammar::GrammarOptions> grammar_options(const orrery_generate_options& o) {
  ORRERY_TRY(about_option("grammar", check_utf8(o.grammar, "grammar")));
  grammar::GrammarOptions options;
  if (o.grammar_kind > ORRERY_GRAMMAR_REGEX)
    return option_error(Code::invalid_argument, "grammar_kind", "grammar_kind is %u, expected an ORRERY_GRAMMAR_ value", o.grammar_kind);
  if (o.grammar_whitespace > ORRERY_WHITESPACE_SPACED)
    return option_error(Code::invalid_argument, "grammar_whitespace", "grammar_whitespace is %u, expected an ORRERY_WHITESPACE_ value",
                        o.grammar_whitespace);
  constexpr grammar::Language kLanguages[] = {grammar::Language::gbnf, grammar::Language::json_schema, grammar::Language::expression};
  using Whitespace = grammar::SchemaOptions::Whitespace;
  constexpr Whitespace kWhitespace[] = {Whitespace::free, Whitespace::compact, Whitespace::spaced};
  options.language = kLanguages[o.grammar_kind];
  options.schema.whitespace = kWhitespace[o.grammar_whitespace];
  options.schema.any_order = o.grammar_any_order != 0;
  if (o.grammar_root) {
    ORRERY_TRY(about_option("grammar_root", check_utf8(o.grammar_root, "grammar_root")));
    options.root = o.grammar_root;
  }
  return options;
}

}  // namespace

Result<std::shared_ptr<text::grammar::Grammar>> grammar_of(const orrery_generate_options& o, const engine::Vocabulary& vocabulary) {
  if (o.grammar == nullptr) return std::shared_ptr<grammar::Grammar>();
  ORRERY_ASSIGN(const grammar::GrammarOptions options, grammar_options(o));
  return about_option("grammar", vocabulary.grammar(o.grammar, options));
}

Status form_of(const orrery_generate_options& o, engine::FormRequest* form) {
  using text::format::ToolChoice;
  static_assert(static_cast<uint32_t>(ToolChoice::automatic) == ORRERY_TOOLS_AUTO &&
                    static_cast<uint32_t>(ToolChoice::none) == ORRERY_TOOLS_NONE &&
                    static_cast<uint32_t>(ToolChoice::required) == ORRERY_TOOLS_REQUIRED,
                "choices are numbered alike");
  if (o.tools > ORRERY_TOOLS_REQUIRED)
    return option_error(Code::invalid_argument, "tools", "tools is %u, expected an ORRERY_TOOLS_ value", o.tools);
  form->tools = static_cast<ToolChoice>(o.tools);
  form->one_call = o.one_call != 0;
  form->split_reasoning = o.split_reasoning != 0;
  form->max_reasoning_tokens = o.max_reasoning_tokens;
  if (o.tool_name != nullptr) {
    ORRERY_TRY(about_option("tool_name", check_utf8(o.tool_name, "tool_name")));
    if (o.tools != ORRERY_TOOLS_AUTO && o.tools != ORRERY_TOOLS_REQUIRED)
      return option_error(Code::invalid_argument, "tool_name",
                          "tool_name is given, but the answer calls no tools: expected tools AUTO or REQUIRED");
    form->tool = o.tool_name;
  }
  if (o.max_reasoning_tokens > 0 && !form->any())
    return option_error(Code::invalid_argument, "max_reasoning_tokens",
                        "max_reasoning_tokens is %u, but reasoning is not told apart: expected split_reasoning or tools",
                        o.max_reasoning_tokens);
  if (o.grammar == nullptr || !form->any()) return ok_status();
  ORRERY_ASSIGN(form->content_options, grammar_options(o));
  form->content = o.grammar;
  return ok_status();
}

}  // namespace orrery::capi

using namespace orrery;
using namespace orrery::capi;

namespace {

// A call's hold on a matcher.
class MatcherUse {
 public:
  explicit MatcherUse(orrery_matcher* matcher) : matcher_(matcher), entered_(!matcher->busy.exchange(true, std::memory_order_acquire)) {}
  ~MatcherUse() {
    if (entered_) matcher_->busy.store(false, std::memory_order_release);
  }
  MatcherUse(const MatcherUse&) = delete;
  MatcherUse& operator=(const MatcherUse&) = delete;
  Status status() const { return entered_ ? ok_status() : error(Code::busy, "the matcher is in use by another call"); }

 private:
  orrery_matcher* matcher_;
  bool entered_;
};

// Runs f() with the matcher held, charged to its account.
template <class F>
orrery_status with_matcher(orrery_matcher* matcher, orrery_error* error, F f) noexcept {
  return guarded(error, [&]() -> Status {
    ORRERY_REQUIRE(matcher);
    const MatcherUse use(matcher);
    ORRERY_TRY(use.status());
    const AccountScope scope(matcher->account);
    return f();
  });
}

}  // namespace

extern "C" {

orrery_status orrery_matcher_create(const orrery_vocab* vocab, const orrery_generate_options* options, orrery_matcher** matcher,
                                    orrery_error* error) {
  if (matcher) *matcher = nullptr;
  return guarded(error, [&]() -> Status {
    ORRERY_REQUIRE(vocab);
    ORRERY_REQUIRE(matcher);
    orrery_generate_options o;
    ORRERY_TRY(read_options(options, &orrery_generate_options_init, "orrery_generate_options", &o));
    if (o.grammar == nullptr) return null_argument("grammar");
    return make_handle(matcher, [&](orrery_matcher* handle) -> Status {
      handle->vocabulary = vocab->vocabulary;
      ORRERY_ASSIGN(handle->grammar, grammar_of(o, *vocab->vocabulary));
      handle->matcher.emplace(handle->grammar->matcher());
      return ok_status();
    });
  });
}

orrery_status orrery_matcher_mask(orrery_matcher* matcher, uint32_t* words, size_t capacity, size_t* n_words, orrery_error* error) {
  if (n_words) *n_words = 0;
  return with_matcher(matcher, error, [&]() -> Status {
    ORRERY_REQUIRE(n_words);
    *n_words = matcher->matcher->n_words();
    if (words == nullptr) return ok_status();
    ORRERY_ASSIGN(const uint32_t* const mask, matcher->matcher->mask());
    return copy_out(mask, matcher->matcher->n_words(), words, capacity, n_words);
  });
}

orrery_status orrery_matcher_accept(orrery_matcher* matcher, const int32_t* tokens, size_t n_tokens, size_t* n_accepted,
                                    orrery_error* error) {
  if (n_accepted) *n_accepted = 0;
  return with_matcher(matcher, error, [&]() -> Status {
    if (n_tokens > 0) ORRERY_REQUIRE(tokens);
    ORRERY_REQUIRE(n_accepted);
    for (size_t i = 0; i < n_tokens; ++i) {
      ORRERY_ASSIGN(const bool accepted, matcher->matcher->accept(tokens[i]));
      if (!accepted) break;
      ++*n_accepted;
    }
    return ok_status();
  });
}

orrery_status orrery_matcher_rewind(orrery_matcher* matcher, size_t n_tokens, orrery_error* error) {
  return with_matcher(matcher, error, [&]() -> Status {
    if (n_tokens > matcher->matcher->n_tokens())
      return orrery::error(Code::invalid_argument, "the matcher has accepted %zu tokens, %zu cannot stay", matcher->matcher->n_tokens(),
                           n_tokens);
    matcher->matcher->rewind(n_tokens);
    return ok_status();
  });
}

orrery_status orrery_matcher_forced(orrery_matcher* matcher, int32_t* tokens, size_t capacity, size_t* n_tokens, orrery_error* error) {
  if (n_tokens) *n_tokens = 0;
  return with_matcher(matcher, error, [&]() -> Status {
    ORRERY_REQUIRE(n_tokens);
    constexpr size_t kMostBytes = 1u << 16;
    const std::vector<int32_t> forced = matcher->grammar->trie().cut(matcher->matcher->forced(kMostBytes), SIZE_MAX);
    return copy_out(forced.data(), forced.size(), tokens, capacity, n_tokens);
  });
}

orrery_status orrery_matcher_match(orrery_matcher* matcher, const char* text, size_t text_bytes, size_t* matched_bytes, uint32_t* complete,
                                   orrery_error* error) {
  if (matched_bytes) *matched_bytes = 0;
  if (complete) *complete = 0;
  return with_matcher(matcher, error, [&]() -> Status {
    if (text_bytes > 0) ORRERY_REQUIRE(text);
    ORRERY_REQUIRE(matched_bytes);
    ORRERY_REQUIRE(complete);
    bool whole = false;
    *matched_bytes = matcher->grammar->match({text, text_bytes}, &whole);
    *complete = whole ? 1 : 0;
    return ok_status();
  });
}

orrery_status orrery_matcher_describe(orrery_matcher* matcher, char* json, size_t capacity, size_t* json_bytes, orrery_error* error) {
  if (json_bytes) *json_bytes = 0;
  return with_matcher(matcher, error, [&]() -> Status {
    ORRERY_REQUIRE(json_bytes);
    const text::grammar::Grammar& grammar = *matcher->grammar;
    const auto number = [](uint64_t n) { return text::Value::integer(static_cast<int64_t>(n)); };
    std::vector<text::Value> notices;
    for (const std::string& notice : grammar.notices()) notices.push_back(text::Value::string(notice));
    text::Map map;
    map.set("rules", number(grammar.network().rules.size()));
    map.set("states", number(grammar.network().n_states()));
    map.set("bytes", number(grammar.network().memory_bytes()));
    map.set("notices", text::Value::list(std::move(notices)));
    ORRERY_ASSIGN(const std::string out, text::dump_json(text::Value::map(std::move(map))));
    return copy_out(out.data(), out.size(), json, capacity, json_bytes);
  });
}

void orrery_matcher_free(orrery_matcher* matcher) { delete matcher; }

}  // extern "C"
