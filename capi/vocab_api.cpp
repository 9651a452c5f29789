// Tokenizer and chat template, on their own.
#include "capi/handles.h"
#include "runtime/text/json/json.h"
#include "runtime/text/unicode/utf8.h"

namespace orrery::capi {

Result<engine::TemplateChoice> template_choice(const orrery_template_options* given) {
  orrery_template_options o;
  ORRERY_TRY(read_options(given, &orrery_template_options_init, "orrery_template_options", &o));
  engine::TemplateChoice choice;
  choice.add_generation_prompt = o.add_generation_prompt != 0;
  if (o.template_source) {
    ORRERY_TRY(about_option("template_source", check_utf8(o.template_source, "template_source")));
    choice.source = o.template_source;
  }
  if (o.template_name) {
    ORRERY_TRY(about_option("template_name", check_utf8(o.template_name, "template_name")));
    choice.name = o.template_name;
  }
  if (o.tools_json) {
    ORRERY_ASSIGN(choice.tools, about_option("tools_json", text::parse_json(o.tools_json)));
    if (!choice.tools.is_list()) return option_error(Code::invalid_argument, "tools_json", "tools_json is not a JSON array");
  }
  if (o.variables_json) {
    ORRERY_ASSIGN(choice.variables, about_option("variables_json", text::parse_json(o.variables_json)));
    if (!choice.variables.is_map()) return option_error(Code::invalid_argument, "variables_json", "variables_json is not a JSON object");
  }
  return choice;
}

}  // namespace orrery::capi

using namespace orrery;
using namespace orrery::capi;

extern "C" {

orrery_status orrery_vocab_open(const orrery_source* source, orrery_vocab** vocab, orrery_error* error) {
  if (vocab) *vocab = nullptr;
  return guarded(error, [&]() -> Status {
    ORRERY_ASSIGN(const engine::ModelSource from, model_source(source));
    ORRERY_REQUIRE(vocab);
    gguf::OpenOptions header;
    header.header_only = true;
    ORRERY_ASSIGN(const gguf::File file, from.open(header));
    return make_handle(vocab, [&](orrery_vocab* handle) -> Status {
      ORRERY_ASSIGN(handle->vocabulary, engine::Vocabulary::from_gguf(file));
      return ok_status();
    });
  });
}

void orrery_vocab_free(orrery_vocab* vocab) { delete vocab; }

orrery_status orrery_tokenize(const orrery_vocab* vocab, const char* text, size_t text_bytes, uint32_t flags, int32_t* tokens,
                              size_t capacity, size_t* n_tokens, orrery_error* error) {
  if (n_tokens) *n_tokens = 0;
  return guarded(error, [&]() -> Status {
    ORRERY_REQUIRE(vocab);
    ORRERY_REQUIRE(n_tokens);
    if (text_bytes > 0) ORRERY_REQUIRE(text);
    if (flags & ~(ORRERY_TOKENIZE_BOS | ORRERY_TOKENIZE_SPECIAL))
      return orrery::error(Code::unsupported, "flags are 0x%x: unknown bits", flags);
    const AccountScope scope(vocab->account);
    text::EncodeOptions options;
    options.add_bos = (flags & ORRERY_TOKENIZE_BOS) != 0;
    options.parse_special = (flags & ORRERY_TOKENIZE_SPECIAL) != 0;
    std::vector<int32_t> ids;
    ORRERY_TRY(vocab->vocabulary->tokenizer().encode({text_bytes ? text : "", text_bytes}, options, &ids));
    return copy_out(ids.data(), ids.size(), tokens, capacity, n_tokens);
  });
}

orrery_status orrery_detokenize(const orrery_vocab* vocab, const int32_t* tokens, size_t n_tokens, uint32_t flags, char* text,
                                size_t capacity, size_t* text_bytes, orrery_error* error) {
  if (text_bytes) *text_bytes = 0;
  return guarded(error, [&]() -> Status {
    ORRERY_REQUIRE(vocab);
    ORRERY_REQUIRE(text_bytes);
    if (n_tokens > 0) ORRERY_REQUIRE(tokens);
    if (flags & ~ORRERY_DETOKENIZE_SPECIAL) return orrery::error(Code::unsupported, "flags are 0x%x: unknown bits", flags);
    const AccountScope scope(vocab->account);
    const text::Tokenizer& tokenizer = vocab->vocabulary->tokenizer();
    for (size_t i = 0; i < n_tokens; ++i)
      if (tokens[i] < 0 || tokens[i] >= tokenizer.n_vocab())
        return orrery::error(Code::invalid_argument, "token %zu is %d, the vocabulary has %d", i, tokens[i], tokenizer.n_vocab());
    const std::string bytes = tokenizer.decode({tokens, n_tokens}, (flags & ORRERY_DETOKENIZE_SPECIAL) != 0);
    return copy_out(bytes.data(), bytes.size(), text, capacity, text_bytes);
  });
}

void orrery_vocab_info_init(orrery_vocab_info* info, size_t struct_size) { init_struct(info, struct_size); }

orrery_status orrery_vocab_get_info(const orrery_vocab* vocab, orrery_vocab_info* info, orrery_error* error) {
  return guarded(error, [&]() -> Status {
    ORRERY_REQUIRE(vocab);
    ORRERY_REQUIRE(info);
    const text::Tokenizer& t = vocab->vocabulary->tokenizer();
    orrery_vocab_info out;
    orrery_vocab_info_init(&out, sizeof out);
    out.n_tokens = t.n_vocab();
    out.bos = t.bos();
    out.eos = t.eos();
    out.eot = t.eot();
    out.eom = t.eom();
    out.unknown = t.unk();
    out.padding = t.pad();
    out.add_bos = t.add_bos();
    out.has_template = vocab->vocabulary->template_source("") != nullptr;
    return write_struct(out, info, "orrery_vocab_info");
  });
}

uint32_t orrery_token_flags(const orrery_vocab* vocab, int32_t token) {
  if (vocab == nullptr || token < 0) return 0;
  const text::Tokenizer& t = vocab->vocabulary->tokenizer();
  if (token >= t.n_vocab()) return 0;
  return (t.is_special(token) ? ORRERY_TOKEN_CONTROL : 0u) | (t.is_end_of_generation(token) ? ORRERY_TOKEN_END_OF_GENERATION : 0u);
}

void orrery_template_options_init(orrery_template_options* options, size_t struct_size) {
  orrery_template_options defaults = {};
  defaults.add_generation_prompt = 1;
  init_struct(options, struct_size, defaults);
}

orrery_status orrery_render_chat(const orrery_vocab* vocab, const char* messages_json, const orrery_template_options* options, char* text,
                                 size_t capacity, size_t* text_bytes, orrery_error* error) {
  if (text_bytes) *text_bytes = 0;
  return guarded(error, [&]() -> Status {
    ORRERY_REQUIRE(vocab);
    ORRERY_REQUIRE(messages_json);
    ORRERY_REQUIRE(text_bytes);
    const AccountScope scope(vocab->account);
    ORRERY_ASSIGN(engine::TemplateChoice choice, template_choice(options));
    ORRERY_ASSIGN(const text::Value messages, text::parse_json(messages_json));
    if (!messages.is_list()) return orrery::error(Code::invalid_argument, "messages_json is not a JSON array");
    ORRERY_ASSIGN(const auto renderer, engine::ChatRenderer::make(vocab->vocabulary, std::move(choice)));
    ORRERY_ASSIGN(const text::Text text_of_turns, renderer.render(messages));
    std::string rendered = text_of_turns.bytes();
    if (!text::utf8_valid(rendered)) {  // the text of a vocabulary's BOS or EOS may have any bytes
      std::string valid;
      text::utf8_append_valid(rendered, &valid);
      rendered = std::move(valid);
    }
    return copy_out(rendered.data(), rendered.size(), text, capacity, text_bytes);
  });
}

orrery_status orrery_chat_format(const orrery_vocab* vocab, const orrery_template_options* options, char* json, size_t capacity,
                                 size_t* json_bytes, orrery_error* error) {
  if (json_bytes) *json_bytes = 0;
  return guarded(error, [&]() -> Status {
    ORRERY_REQUIRE(vocab);
    ORRERY_REQUIRE(json_bytes);
    const AccountScope scope(vocab->account);
    ORRERY_ASSIGN(engine::TemplateChoice choice, template_choice(options));
    ORRERY_ASSIGN(const auto renderer, engine::ChatRenderer::make(vocab->vocabulary, std::move(choice)));
    ORRERY_ASSIGN(const text::format::ChatFormat* known, renderer.format());
    ORRERY_ASSIGN(const text::Value described, text::format::describe(*known));
    ORRERY_ASSIGN(const std::string out, text::dump_json(described));
    return copy_out(out.data(), out.size(), json, capacity, json_bytes);
  });
}

}  // extern "C"
