// Chat templates of our own, each with calls in a form that published ones have.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "runtime/text/format/format.h"

namespace orrery::text::format {

inline ChatFormat derived(const std::string& source) {
  auto compiled = ChatTemplate::compile(source);
  EXPECT_TRUE(compiled.ok());
  if (!compiled.ok()) return {};
  ChatOptions options;
  options.bos_token = "<s>";
  options.eos_token = "</s>";
  auto f = derive(*compiled, source, options);
  EXPECT_TRUE(f.ok());
  return f.ok() ? *f : ChatFormat();
}

inline constexpr const char* kTaggedTemplate = R"({%- for m in messages -%}
{{- '<turn>' + m.role + '\n' + (m.content or '') -}}
{%- for c in m.tool_calls or [] -%}
{{- ('\n' if m.content or not loop.first else '') + '<tool>\n<function=' + c.function.name + '>\n' -}}
{%- for k, v in c.function.arguments.items() -%}
{{- '<parameter=' + k + '>\n' + ((v | tojson) if v is mapping or (v is iterable and v is not string) else (v | string)) + '\n</parameter>\n' -}}
{%- endfor -%}
{{- '</function>\n</tool>' -}}
{%- endfor -%}
{{- '<stop>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<turn>assistant\n' -}}{%- endif -%})";

inline constexpr const char* kCountedTemplate = R"({% for m in messages %}<{{ m.role }}>{{ m.content }}{% if m.tool_calls %}<calls>{% for c in m.tool_calls %}{{ c.function.name }}:{{ loop.index0 }}={{ c.function.arguments | tojson }}{{ '' if loop.last else ';' }}{% endfor %}</calls>{% endif %}<end>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %})";

inline constexpr const char* kBareTemplate = R"({% for m in messages %}[{{ m.role }}]
{% if m.tool_calls %}{% if m.tool_calls | length > 1 %}{{ raise_exception('one call at a time') }}{% endif %}{"name": "{{ m.tool_calls[0].function.name }}", "parameters": {{ m.tool_calls[0].function.arguments | tojson }}}{% else %}{{ m.content }}{% endif %}<end>
{% endfor %}{% if add_generation_prompt %}[assistant]
{% endif %})";

}  // namespace orrery::text::format
