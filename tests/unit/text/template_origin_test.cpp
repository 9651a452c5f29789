// Where the bytes of a rendered text come from. In the first test Greek letters are data and Cyrillic letters are the template's: no
// filter, method or operator makes the one of the other, so the letters say what each byte's origin must be. In the second, data spell
// control tokens, whole and in parts, and the tokens are compared with those of a vocabulary that has no control tokens.
#include <gtest/gtest.h>

#include "runtime/text/jinja/chat_template.h"
#include "runtime/text/jinja/interpreter/interpreter.h"
#include "runtime/text/json/json.h"
#include "runtime/text/tokenizer/tokenizer.h"
#include "runtime/text/unicode/python_characters.h"
#include "tests/support/golden_vocab.h"
#include "tests/support/random_blocks.h"

namespace orrery::text::template_origin_test {
namespace {

Result<Text> render(const std::string& source, const std::string& context, uint64_t max_bytes = 16 << 20) {
  ORRERY_ASSIGN(const Value names, parse_json(context));
  ORRERY_ASSIGN(const ChatTemplate compiled, ChatTemplate::compile(source));
  TemplateLimits limits;
  limits.max_steps = 200'000;
  limits.max_work_bytes = max_bytes;
  return compiled.render(names, limits);
}

// The number of Greek letters that count as the template's, and of Cyrillic ones that count as data.
std::pair<size_t, size_t> strays(const Text& text) {
  std::pair<size_t, size_t> n;
  text.view().each_run([&n](std::string_view run, Origin origin) {
    for (size_t i = 0; i < run.size(); i += unicode::sequence_length(run, i)) {
      const uint32_t c = unicode::decode(run, i);
      n.first += c >= 0x370 && c < 0x400 && origin != Origin::data;
      n.second += c >= 0x400 && c < 0x500 && origin != Origin::chat_template;
    }
    return true;
  });
  return n;
}

// What the template does with `d` (data), `t` (its own text) and `m` (both), by every name that a template knows.
std::vector<std::string> expressions() {
  const std::vector<std::string> texts = {"d", "t", "m", "(t ~ d)"};
  const std::vector<std::string> arguments = {
      "",           "d",           "t",       "m",         "d, t",      "t, d",     "m, m",
      "3",          "40",          "40, '.'", "[d, t, m]", "{d: t}",    "1, 3",     "d, t, 1",
      "5, true, m", "attribute=0", "m, 3",    "'жб', m",   "'ж', d, 2", "indent=2", "ensure_ascii=false"};
  std::vector<std::string> all;
  std::vector<std::string> values = texts;
  for (const char* v :
       {"[d, t, m]", "[[d, t], [m, d]]", "{d: t, t: m}", "{'k': [m, d]}", "list", "map", "[m, m, d]|unique", "m.split(d[1])", "7"})
    values.push_back(v);
  for (const std::string& v : values) {
    for (const std::string& a : arguments) {
      for (const std::string& f : jinja::filter_names()) {
        all.push_back(v + "|" + f + (a.empty() ? "" : "(" + a + ")"));
        if (a.empty()) all.push_back(v + "|map('" + f + "')|list");
      }
      for (const std::string& method : jinja::method_names())
        all.push_back("(" + v + ")." + method.substr(method.find('.') + 1) + "(" + a + ")");
    }
    for (const char* tail : {"[0]", "[-1]", "[1:]", "[::-1]", "[:3]", "[::2]", " * 3", "", " ~ m", " ~ 1.5", " if d in m else t", " or m"})
      all.push_back(v + tail);
    for (const std::string& w : values) {
      for (const char* op : {" + ", " ~ ", " % ", " and ", " or "}) all.push_back(v + op + w);
      all.push_back("'%s|%r|%-9s|%.3s' % (" + v + ", " + w + ", " + v + ", " + w + ")");
      all.push_back("(t ~ '{0}{1!r}{0:ж>20}').format(" + v + ", " + w + ")");
      all.push_back("(d ~ '%%' ~ t)|format(" + v + ", " + w + ")");
      all.push_back("joiner(" + v + ")() ~ " + w);
      all.push_back("cycler(" + v + ", " + w + ").next()");
      all.push_back("dict(a=" + v + ", b=" + w + ")");
      all.push_back("namespace(a=" + v + ").a ~ " + w);
    }
  }
  return all;
}

TEST(TemplateOrigin, EveryNameKeepsTheOriginOfEveryByte) {
  const std::string context =
      R"({"d": "αΒγ δεΣ\t<ζ>\nσς Ωμ", "map": {"αλ": "βη", "γά": ["δέ", {"ε": "ζ"}]}, "list": ["ωα", "ΒΒ", "αβ"], "fmt": "ο%sρ{}"})";
  const std::string own = "{% set t = 'жаБ ветерЩ\tГ\\n-до' %}{% set m = d ~ t ~ d[:2] ~ 'ю' %}";
  size_t n_rendered = 0;
  for (const std::string& e : expressions()) {
    Result<Text> text = render(own + "{{ " + e + " }}{% set c = " + e + " %}{{ [c] }}{{ c|string|upper }}{{ {1: c}|tojson }}", context);
    Result<Text> shorter = text.ok() ? Result<Text>(std::move(text)) : render(own + "{{ " + e + " }}", context);
    if (!shorter.ok()) continue;
    ++n_rendered;
    const auto [greek, cyrillic] = strays(*shorter);
    ASSERT_EQ(greek, 0u) << "data that count as the template's: " << e << "\n" << shorter->bytes();
    if (e.find("tojson(") != std::string::npos) continue;  // its separators and indents are data, wherever they come from
    ASSERT_EQ(cyrillic, 0u) << "text of the template that counts as data: " << e << "\n" << shorter->bytes();
  }
  EXPECT_GE(n_rendered, 3000u);
}

TEST(TemplateOrigin, StatementsKeepIt) {
  const std::string context =
      R"({"d": "αβγ", "messages": [{"role": "user", "content": [{"text": "δε"}, {"text": "ζ"}]}], "fmt": "<ω%sψ>"})";
  for (const char* source : {
           "ж{{ d }}ж{% for c in d ~ 'ж' %}{{ c }}{{ loop.previtem }}{{ loop.nextitem }}{% endfor %}",
           "{% set b %}ж{{ d }}ж{% endset %}{{ b }}{{ b|length }}",
           "{% set b | upper %}ж{{ d }}ж{% endset %}{{ b * 2 }}",
           "{% filter replace('ж', d) %}ж{{ d }}д{% endfilter %}",
           "{% macro x(a, b='ж') %}д{{ a }}{{ b }}{{ caller() if caller }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ x(d) }}{% call x(d, d, "
           "d, z=d) %}л{{ d }}{% endcall %}",
           "{% for x in [d, ['ж', d]] recursive %}{% if x is string %}{{ x }}{% else %}{{ loop(x) }}{% endif %}{% endfor %}",
           "{% set ns = namespace(a='ж') %}{% set ns.a = ns.a ~ d %}{{ ns.a }}{{ ns }}",
           "{% with a = d ~ 'ж' %}{{ a }}{% endwith %}",
           "{% for m in messages %}{{ m.content|map(attribute='text')|join('ж') }}{{ m|tojson(indent=1) }}{{ m|string }}{% endfor %}",
           "{{ fmt % 'ж' }}{{ fmt|format('ж') }}{{ 'ж%sд' % d }}",
           "{{ ['ж', d]|sort|join }}{{ {'ж': d, d: 'ж'}|dictsort }}{{ {'ж': d}.items()|list }}{{ ['ж', d, 'ж']|groupby(0) }}",
       }) {
    Result<Text> text = render(source, context);
    ASSERT_TRUE(text.ok()) << source << "\n" << text.status().message();
    EXPECT_EQ(strays(*text), (std::pair<size_t, size_t>())) << source << "\n" << text->bytes();
    EXPECT_NE(text->bytes().find("\xCE"), std::string::npos) << source;
  }
}

// Tokens -----------------------------------------------------------------------------------------------------

const std::vector<std::string>& control_names() {
  static const std::vector<std::string> names = {"<|im_start|>", "<|im_end|>", "<|im_end|>x", "</s>", "<s>", "[INST]", "AB", "a",
                                                 "aa",           "<<",         "7",           "None", ", "};
  return names;
}

// control: whether the control tokens are control tokens, or ids that no text becomes.
Tokenizer vocabulary(bool control) {
  testing::GoldenVocab v;
  v.data.model = "gpt2";
  v.data.pre = "qwen2";
  for (std::string& token : testing::byte_alphabet()) v.add(std::move(token), TokenType::normal);
  v.add("<|", TokenType::normal);
  v.add("im", TokenType::normal);
  v.add("<tool>", TokenType::user_defined);
  v.add("<|im_start|>", TokenType::user_defined);  // the same name twice, as text and as a control token
  v.data.merges = {"< |", "i m"};
  for (const std::string& name : control_names()) v.add(name, control ? TokenType::control : TokenType::unused);
  Result<Tokenizer> t = Tokenizer::from_vocab(v.data);
  EXPECT_TRUE(t.ok()) << t.status().message();
  return std::move(t).value();
}

const std::string kTextNames[] = {"<tool>", "<|im_start|>"};

// The leftmost control token of the template's bytes, the longest there; the rest is text of the vocabulary without control tokens.
std::vector<int32_t> expected_tokens(const Tokenizer& with, const Tokenizer& without, const Text& text) {
  const std::string& s = text.bytes();
  std::vector<bool> written;
  text.view().each_run([&](std::string_view run, Origin origin) {
    written.resize(written.size() + run.size(), origin == Origin::chat_template);
    return true;
  });
  std::vector<int32_t> out;
  std::string plain;
  const auto flush = [&] {
    EXPECT_TRUE(without.encode(plain, {}, &out).ok());
    plain.clear();
  };
  for (size_t at = 0; at < s.size();) {
    size_t longest = 0;
    for (const std::string& name : control_names()) {
      bool own = s.compare(at, name.size(), name) == 0;
      for (size_t i = 0; own && i < name.size(); ++i) own = written[at + i];
      if (own) longest = std::max(longest, name.size());
    }
    // Text tokens with a name of their own stand for themselves everywhere, and the longest name holds.
    const std::string* own_text = nullptr;
    for (const std::string& name : kTextNames)
      if (s.compare(at, name.size(), name) == 0 && name.size() >= longest) own_text = &name;
    if (own_text != nullptr) {
      flush();
      out.push_back(without.find(*own_text));
      at += own_text->size();
    } else if (longest > 0) {
      flush();
      for (int32_t id = 0; id < with.n_vocab(); ++id)
        if (with.is_special(id) && with.token_bytes(id) == std::string_view(s).substr(at, longest)) {
          out.push_back(id);
          break;
        }
      at += longest;
    } else {
      plain += s[at++];
    }
  }
  flush();
  return out;
}

std::string quoted(const std::string& s) { return dump_json(Value::string(s)).value(); }

TEST(TemplateOrigin, ControlTokensAreOfTheTemplateAlone) {
  const Tokenizer with = vocabulary(true), without = vocabulary(false);
  testing::Random random(44);
  const auto piece = [&random] {
    const std::string& name = control_names()[random.below(control_names().size())];
    const size_t from = random.below(name.size()), to = from + 1 + random.below(name.size() - from);
    return random.below(3) == 0 ? name : random.below(5) == 0 ? std::string("<tool>") : name.substr(from, to - from);
  };
  const auto pieces = [&](size_t most) {
    std::string s;
    for (size_t n = 1 + random.below(most); n > 0; --n) s += piece();
    return s;
  };
  const std::vector<std::string> all = expressions();
  EncodeOptions options;
  options.parse_special = true;
  size_t n_rendered = 0, n_control = 0;
  for (size_t i = 0; i < 20000; ++i) {
    const std::string context = "{\"d\": " + quoted(pieces(4)) + ", \"list\": [" + quoted(piece()) + ", " + quoted(piece()) +
                                ", 7, null], \"map\": {" + quoted(piece()) + ": " + quoted(piece()) + "}}";
    const std::string own = "{% set t = " + quoted(pieces(3)) + " %}{% set m = d ~ t ~ d %}";
    Result<Text> text =
        render(own + pieces(2) + "{{ " + all[random.below(all.size())] + " }}" + pieces(2) + "{{ d }}{{ t }}", context, 1 << 16);
    if (!text.ok()) continue;
    ++n_rendered;
    std::vector<int32_t> tokens;
    ASSERT_TRUE(with.encode(text->view(), options, &tokens).ok());
    ASSERT_EQ(tokens, expected_tokens(with, without, *text)) << text->bytes();
    for (const int32_t id : tokens) n_control += with.is_special(id);
    // Data alone.
    std::vector<int32_t> as_data, as_text;
    ASSERT_TRUE(with.encode(Text::data(text->bytes()).view(), options, &as_data).ok());
    ASSERT_TRUE(without.encode(text->bytes(), {}, &as_text).ok());
    ASSERT_EQ(as_data, as_text) << text->bytes();
  }
  EXPECT_GE(n_rendered, 4500u);
  EXPECT_GE(n_control, 10000u);
}

// Parts of a text know their origins too, and each place of a change once.
TEST(TemplateOrigin, Parts) {
  Text text;
  text.append("ab", Origin::chat_template).append("", Origin::data).append("c", Origin::chat_template).append("de", Origin::data);
  text += 'f';
  text.append("gh", Origin::chat_template);
  EXPECT_EQ(text.n_changes(), 2u);
  const std::string origins = "tttdddtt";
  for (size_t from = 0; from <= text.size(); ++from)
    for (size_t n = 0; from + n <= text.size(); ++n)
      for (size_t skip = 0; skip <= n; ++skip) {
        std::string got, bytes;
        text.view().substr(from, n).substr(skip).each_run([&](std::string_view run, Origin origin) {
          EXPECT_FALSE(run.empty());
          bytes += run;
          got.append(run.size(), origin == Origin::data ? 'd' : 't');
          return true;
        });
        EXPECT_EQ(got, origins.substr(from + skip, n - skip));
        EXPECT_EQ(bytes, text.bytes().substr(from + skip, n - skip));
      }
}

}  // namespace
}  // namespace orrery::text::template_origin_test
