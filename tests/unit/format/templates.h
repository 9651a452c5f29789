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

// Gemma's way: strings between marks, keys bare and sorted, lists and objects alike.
inline constexpr const char* kBareMarksTemplate = R"({%- macro argument(v) -%}
{%- if v is string -%}{{- '<|"|>' + v + '<|"|>' -}}
{%- elif v is boolean -%}{{- 'true' if v else 'false' -}}
{%- elif v is mapping -%}{{- '{' -}}{%- for k, x in v | dictsort -%}{{- (',' if not loop.first else '') + k -}}:{{- argument(x) -}}{%- endfor -%}{{- '}' -}}
{%- elif v is sequence -%}{{- '[' -}}{%- for x in v -%}{{- ',' if not loop.first else '' -}}{{- argument(x) -}}{%- endfor -%}{{- ']' -}}
{%- else -%}{{- v -}}{%- endif -%}
{%- endmacro -%}
{%- for m in messages -%}
{{- '<|turn>' + m.role + '\n' + (m.content or '') -}}
{%- for c in m.tool_calls or [] -%}
{{- '<|tool_call>call:' + c.function.name + '{' -}}
{%- for k, v in c.function.arguments | dictsort -%}{{- (',' if not loop.first else '') + k -}}:{{- argument(v) -}}{%- endfor -%}
{{- '}<tool_call|>' -}}
{%- endfor -%}
{{- '<turn|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|turn>assistant\n' -}}{%- endif -%})";

// LFM's way: a Python list of calls. Objects are JSON, and Python's where they lie in a list.
inline constexpr const char* kPythonTemplate = R"({%- for m in messages -%}
{{- '<turn>' + m.role + '\n' + (m.content or '') -}}
{%- if m.tool_calls -%}{{- '<|calls_start|>[' -}}
{%- for c in m.tool_calls -%}
{{- (', ' if not loop.first else '') + c.function.name + '(' -}}
{%- for k, v in c.function.arguments.items() -%}
{{- (', ' if not loop.first else '') + k + '=' + ("'" + v + "'" if v is string else (v | tojson if v is mapping else v | string)) -}}
{%- endfor -%}
{{- ')' -}}
{%- endfor -%}
{{- ']<|calls_end|>' -}}{%- endif -%}
{{- '<stop>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<turn>assistant\n' -}}{%- endif -%})";

inline constexpr const char* kCountedTemplate =
    R"({% for m in messages %}<{{ m.role }}>{{ m.content }}{% if m.tool_calls %}<calls>{% for c in m.tool_calls %}{{ c.function.name }}:{{ loop.index0 }}={{ c.function.arguments | tojson }}{{ '' if loop.last else ';' }}{% endfor %}</calls>{% endif %}<end>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %})";

inline constexpr const char* kBareTemplate = R"({% for m in messages %}[{{ m.role }}]
{% if m.tool_calls %}{% if m.tool_calls | length > 1 %}{{ raise_exception('one call at a time') }}{% endif %}{"name": "{{ m.tool_calls[0].function.name }}", "parameters": {{ m.tool_calls[0].function.arguments | tojson }}}{% else %}{{ m.content }}{% endif %}<end>
{% endfor %}{% if add_generation_prompt %}[assistant]
{% endif %})";

// Harmony's way: each message names its channel; a turn is thought, then one call or the final message.
inline constexpr const char* kChannelsTemplate = R"({%- for m in messages -%}
{%- if m.role == 'assistant' -%}
{%- if m.thinking -%}{{- '<|start|>assistant<|channel|>analysis<|message|>' + m.thinking + '<|end|>' -}}{%- endif -%}
{%- if m.tool_calls -%}{%- set f = m.tool_calls[0].function -%}
{{- '<|start|>assistant to=functions.' + f.name + '<|channel|>commentary json<|message|>' + f.arguments | tojson + '<|call|>' -}}
{%- else -%}{{- '<|start|>assistant<|channel|>final<|message|>' + m.content + '<|return|>' -}}{%- endif -%}
{%- else -%}{{- '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' -}}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|start|>assistant' -}}{%- endif -%})";

}  // namespace orrery::text::format
