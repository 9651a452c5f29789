// Chat templates, conversations, tools and variables from strangers, as orrery_render_chat() takes them.
//
// Input: a byte of flags, then fields separated by 0x1E: template, messages, tools, variables, template name;
// a field that is absent is NULL, and so is an empty one but for the messages. Flags: 1 the generation
// prompt, 2 the file's own template instead of the field, 4 a message of the session's API for each of the
// messages.
//
// A first rendering, with small limits, finds templates that would only take long; what stays inside them
// must give the same text through the public header.
#include "runtime/text/jinja/chat_template.h"
#include "runtime/text/json/json.h"
#include "tests/fuzz/checks.h"
#include "tests/support/temp_dir.h"

namespace {

using namespace orrery;
using namespace orrery::fuzz;
using namespace orrery::testing;

struct World {
  TempDir dir;
  Vocab vocab;

  World() {
    TinyModel spec;
    spec.tensors = false;
    spec.more_template = "{{ bos_token }}{% for m in messages %}{{ m | tojson }}\n{% endfor %}{{ tools }}";
    CheckedError error;
    orrery_vocab* h = nullptr;
    require(orrery_vocab_open(path_source(dir.write("vocab.gguf", spec.build())), &h, error.get()) == ORRERY_OK, "the vocabulary opens");
    vocab.reset(h);
  }
};

// Whether rendering stays inside small limits: the text, or an error that is not a limit's.
bool is_quick(const std::string& source, const std::string& messages, const std::string* tools, const std::string* variables) {
  Result<text::ChatTemplate> compiled = text::ChatTemplate::compile(source);
  Result<text::Value> list = text::parse_json(messages);
  if (!compiled.ok() || !list.ok() || !list->is_list()) return true;
  text::ChatOptions options;
  options.add_generation_prompt = true;
  options.limits.max_steps = 20'000;
  options.limits.max_work_bytes = 4 << 20;
  options.limits.max_output_bytes = 1 << 20;
  text::Value tool_list, extra;
  if (tools) {
    Result<text::Value> v = text::parse_json(*tools);
    if (!v.ok() || !v->is_list()) return true;
    tool_list = *v;
    options.tools = &tool_list;
  }
  if (variables) {
    Result<text::Value> v = text::parse_json(*variables);
    if (!v.ok() || !v->is_map()) return true;
    extra = *v;
    options.extra = &extra;
  }
  Result<text::Text> text = text::render_chat(*compiled, *list, options);
  if (text.ok()) return true;
  return text.status().detail().message.find("allowed") == std::string::npos;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1) return 0;
  static World world;
  const uint8_t flags = data[0];
  // C strings: what stands behind a NUL is not there.
  std::vector<std::string> fields = split({reinterpret_cast<const char*>(data) + 1, size - 1}, '\x1E');
  for (std::string& field : fields) field.resize(std::strlen(field.c_str()));
  const auto given = [&](size_t i) { return i < fields.size() && !fields[i].empty() ? &fields[i] : nullptr; };
  const std::string* source = (flags & 2) ? nullptr : given(0);
  const std::string messages = fields.size() > 1 ? fields[1] : "[]";
  const std::string *tools = given(2), *variables = given(3), *name = given(4);
  if (source && !is_quick(*source, messages, tools, variables)) return 0;

  orrery_template_options o = options(&orrery_template_options_init);
  o.add_generation_prompt = flags & 1;
  const auto text_of = [](const std::string* s) { return s ? s->c_str() : nullptr; };
  o.template_source = text_of(source);
  o.template_name = text_of(name);
  o.tools_json = text_of(tools);
  o.variables_json = text_of(variables);
  std::vector<char> text;
  // A clock that moves between two calls is no fault of theirs.
  const auto tells_time = [](const std::string* s) { return s && s->find("now") != s->npos; };
  if (tells_time(source) || tells_time(variables)) return 0;
  const orrery_status status = sized_out<char>(
      [&](char* out, size_t capacity, size_t* n, orrery_error* error) {
        return orrery_render_chat(world.vocab.get(), messages.c_str(), &o, out, capacity, n, error);
      },
      &text);
  require(status == ORRERY_OK || status == ORRERY_INVALID_ARGUMENT || status == ORRERY_UNSUPPORTED_TEMPLATE,
          "rendering gives text, or names the argument or the template");
  return 0;
}
