// Templates that mean harm: each must fail cleanly, soon, and without taking memory or stack beyond its
// limits.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "runtime/text/jinja/chat_template.h"

namespace orrery::text::template_hostile_test {
namespace {

std::string repeat(const std::string& s, size_t n) {
  std::string out;
  for (size_t i = 0; i < n; ++i) out += s;
  return out;
}

Status run(const std::string& source, const TemplateLimits& limits = {}) {
  Result<ChatTemplate> t = ChatTemplate::compile(source);
  if (!t.ok()) return t.take_status();
  Map context;
  context.set("xs", Value::list({Value::integer(1), Value::integer(2), Value::integer(3)}));
  context.set("s", Value::string("text"));
  return t->render(Value::map(std::move(context)), limits).take_status();
}

// With room for slow machines; under sanitizers every access costs several times as much, under ThreadSanitizer ten times.
#if defined(__SANITIZE_THREAD__)
constexpr double kSeconds = 300;
#elif defined(__SANITIZE_ADDRESS__)
constexpr double kSeconds = 120;
#else
constexpr double kSeconds = 30;
#endif

// Fails with the template's code, a place, and within seconds.
void refused(const std::string& source, const char* says = "") {
  const auto start = std::chrono::steady_clock::now();
  const Status status = run(source);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  ASSERT_FALSE(status.ok()) << source.substr(0, 200);
  EXPECT_EQ(status.code(), Code::unsupported_template) << status.message();
  EXPECT_GE(status.detail().line, 1u);
  EXPECT_GE(status.detail().column, 1u);
  EXPECT_NE(std::string(status.message()).find(says), std::string::npos) << source.substr(0, 200) << "\n" << status.message();
  EXPECT_LT(seconds, kSeconds) << source.substr(0, 200);
}

TEST(HostileTemplate, DeepSyntax) {
  constexpr size_t n = 5500;
  refused("{{ " + repeat("(", n) + "1" + repeat(")", n) + " }}", "deep");
  refused("{{ " + repeat("[", n) + repeat("]", n) + " }}", "deep");
  refused("{{ " + repeat("{1:", n) + "1" + repeat("}", n) + " }}", "deep");
  refused("{{ s" + repeat(".a", n) + " }}", "deep");
  refused("{{ s" + repeat("[0]", n) + " }}", "deep");
  refused("{{ s" + repeat("()", n) + " }}", "deep");
  refused("{{ s" + repeat("|upper", n) + " }}", "deep");
  refused("{{ " + repeat("not ", n) + "1 }}", "deep");
  refused("{{ " + repeat("-", n) + "1 }}", "deep");
  refused("{{ " + repeat("1 if 1 else ", n) + "1 }}", "deep");
  refused("{{ 1" + repeat(" if 1", n) + " }}", "deep");
  refused("{{ s" + repeat(" is string is string", 1) + repeat(" is string", n) + " }}");
  refused(repeat("{% if 1 %}", n) + repeat("{% endif %}", n), "deep");
  refused(repeat("{% for x in xs %}", n) + repeat("{% endfor %}", n), "deep");
  refused(repeat("{% macro m() %}", n) + repeat("{% endmacro %}", n), "deep");
  refused(repeat("{% set x %}", n) + repeat("{% endset %}", n), "deep");
  refused("{% set " + repeat("(", n) + "a" + repeat(")", n) + " = 1 %}", "deep");
  refused("{{ " + repeat("a[", n) + "1" + repeat("]", n) + " }}", "deep");
  refused("{{ " + repeat("f(", n) + "1" + repeat(")", n) + " }}", "deep");
}

TEST(HostileTemplate, LongChainsAreFine) {
  constexpr size_t n = 5500;
  for (const char* link : {" + 1", " * 1", " ~ 1", " and 1", " or 0", " == 1", " ** 1"})
    EXPECT_TRUE(run("{{ 1" + repeat(link, n) + " }}").ok()) << link;
  EXPECT_TRUE(run("{% if 0 %}" + repeat("{% elif 0 %}", n) + "{% endif %}").ok());
  EXPECT_TRUE(run("{{ [" + repeat("1,", n) + "] }}").ok());
}

TEST(HostileTemplate, TooMuchMemory) {
  refused("{{ 'x' * 1000000000 }}", "bytes");
  refused("{{ 'x' * 9223372036854775807 }}", "bytes");
  refused("{{ ([1] * 1000000000) | length }}", "bytes");
  refused("{{ 9223372036854775807 * [1, 2] }}", "bytes");
  refused("{{ range(1000000000) }}", "range");
  refused("{{ range(-9223372036854775807, 9223372036854775807) }}", "range");
  refused("{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}", "bytes");
  refused("{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}", "bytes");
  refused("{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}", "bytes");
  refused(
      "{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = ns.x.replace('a', ns.x) %}{% "
      "endfor %}");
  refused(
      "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ "
      "ns.x }}");
  refused(
      "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ "
      "ns.x | tojson }}");
  refused(
      "{% set ns = namespace(x='a') %}{% for i in range(30) %}{% set ns.x = ns.x | replace('a', 'aa') %}{% "
      "endfor %}",
      "bytes");
  refused("{{ 'x'.center(1000000000) }}", "bytes");
  refused("{{ 'x'.ljust(9223372036854775807) }}", "bytes");
  refused("{{ 'x'.zfill(1000000000) }}", "bytes");
  refused("{{ '\\t'.expandtabs(1000000000) }}", "bytes");
  refused("{{ '%1000000000d' % 1 }}", "width");
  refused("{{ '%.1000000000f' % 1 }}", "precision");
  refused("{{ '%*d' % (9223372036854775807, 1) }}");
  refused("{{ '{:1000000000}'.format(1) }}", "width");
  refused("{{ 'x' | indent(1000000000) }}", "bytes");
  refused("{{ 'x' | center(1000000000) }}", "bytes");
  refused("{{ xs | slice(1000000000) | list }}");
  refused("{{ xs | batch(1000000000, 1) | list }}");
  refused("{{ xs | tojson(indent=1000000000) }}", "indent");
  refused("{% for i in range(100000) %}{% for j in range(100000) %}0123456789{% endfor %}{% endfor %}");
  refused(
      "{% set x %}{% for i in range(100000) %}{% for j in range(100000) %}0123456789{% endfor %}{% endfor "
      "%}{% endset %}");
  refused("{{ xs | join('x' * 100000000) ~ ('y' * 100000000) }}", "bytes");
}

TEST(HostileTemplate, TooMuchTime) {
  refused("{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}");
  refused("{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}", "deeper");
  refused("{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}");
  refused("{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}", "deeper");
  refused(
      "{% macro m() %}{{ caller() }}{% endmacro %}{% macro r() %}{% call m() %}{{ r() }}{% endcall %}{% "
      "endmacro %}{{ r() }}",
      "deeper");
  refused("{% for x in [xs] recursive %}{{ loop([x]) }}{% endfor %}", "deeper");
  refused(
      "{% set ns = namespace(a=[1], b=[1]) %}{% for i in range(70) %}{% set ns.a = [ns.a, ns.a] %}"
      "{% set ns.b = [ns.b, ns.b] %}{% endfor %}{{ ns.a == ns.b }}",
      "steps");
  refused(
      "{% set ns = namespace(a=[1], b=[1]) %}{% for i in range(70) %}{% set ns.a = [ns.a, ns.a] %}"
      "{% set ns.b = [ns.b, ns.b] %}{% endfor %}{{ ns.a < ns.b }}",
      "steps");
  refused(
      "{% set ns = namespace(a=(1,)) %}{% for i in range(70) %}{% set ns.a = (ns.a, ns.a) %}{% endfor %}{{ "
      "{ns.a: 1} }}",
      "key");
  refused("{% set t = 'ab' * 1000000 %}{% for i in range(100000) %}{{ 'zz' in t }}{% endfor %}", "steps");
  refused(
      "{% set t = 'é' * 1000000 %}{% for i in range(100000) %}{{ t.find('zz') }}{{ t.upper() | length }}{% "
      "endfor %}");
  refused("{% set t = range(100000) | list %}{% for i in t %}{{ -1 in t }}{% endfor %}", "steps");
  refused("{% for i in range(100000) %}{{ range(100000) | sort | length }}{% endfor %}");
}

TEST(HostileTemplate, NestedValuesAndCircles) {
  refused(
      "{% set ns = namespace(x=[]) %}{% for i in range(100000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x "
      "}}",
      "deep");
  EXPECT_TRUE(run("{% set ns = namespace(x=[]) %}{% for i in range(100000) %}{% set ns.x = [ns.x] %}{% endfor %}").ok());
  EXPECT_TRUE(run("{% set ns = namespace(x=1) %}{% for i in range(50000) %}{% set ns.x = joiner(ns.x) %}{% endfor %}").ok());
  EXPECT_TRUE(run("{% set ns = namespace(x='a') %}{% for i in range(50000) %}{% set ns.x = namespace(y=ns.x) "
                  "%}{% endfor %}")
                  .ok());
  EXPECT_TRUE(run("{% set ns = namespace() %}{% set ns.me = ns %}{% set ns.list = [ns, {'k': ns}] %}{{ "
                  "ns.me.me.list | length }}")
                  .ok());
  EXPECT_TRUE(run("{% set ns = namespace() %}{% for i in range(1000) %}{% macro m() %}{{ i }}{% endmacro %}"
                  "{% set ns.f = m %}{% endfor %}{{ ns.f is callable }}")
                  .ok());
  refused("{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}", "deep");
  refused("{% set ns = namespace() %}{% for i in xs recursive %}{% set ns.l = loop %}{% endfor %}{{ ns.l([1]) }}", "after its end");
}

TEST(HostileTemplate, Arithmetic) {
  refused("{{ 9223372036854775807 + 1 }}", "large");
  refused("{{ -9223372036854775807 - 2 }}", "large");
  refused("{{ 9223372036854775807 * 2 }}", "large");
  refused("{{ 10 ** 400 }}", "large");
  refused("{{ 3 ** 9223372036854775807 }}", "large");
  EXPECT_TRUE(run("{{ 1 ** 9223372036854775807 }}").ok());
  refused("{{ (-9223372036854775807 - 1) // -1 }}", "large");
  EXPECT_TRUE(run("{{ (-9223372036854775807 - 1) % -1 }}").ok());
  refused("{{ (-9223372036854775807 - 1) | abs }}", "large");
  refused("{{ -(-9223372036854775807 - 1) }}", "large");
  EXPECT_TRUE(run("{{ 123456789012345678901234567890 }}").ok());
  refused("{{ 123456789012345678901234567890 + 1 }}", "64 bits");
  refused("{{ '123456789012345678901234567890' | int }}", "large");
  refused("{{ 1e300 | int }}", "large");
  refused("{{ 1 / 0 }}", "zero");
  refused("{{ 1 // 0 }}", "zero");
  refused("{{ 1.0 % 0 }}", "zero");
  refused("{{ 1e999 }}", "range");
  for (const char* slice : {"[::9223372036854775807]", "[::-9223372036854775807]", "[9223372036854775807:]",
                            "[-9223372036854775807:9223372036854775807]", "[1::-9223372036854775807]"})
    EXPECT_TRUE(run(std::string("{{ xs") + slice + " }}{{ s" + slice + " }}").ok()) << slice;
  EXPECT_TRUE(run("{{ range(9223372036854775806, 9223372036854775807) }}{{ range(0, 9223372036854775807, "
                  "9223372036854775806) | list }}")
                  .ok());
  EXPECT_TRUE(run("{{ 5 | round(400) }}{{ 5.5 | round(-400) }}{{ 1e308 | round(-308) }}{{ 1.5 | round(300) }}").ok());
}

TEST(HostileTemplate, BytesThatAreNoText) {
  EXPECT_FALSE(run("\xFF").ok());
  EXPECT_FALSE(run("{{ '\xC3' }}").ok());
  Map context;
  context.set("s", Value::string("a\xFF\xC3(\xE2\x82"));
  Result<ChatTemplate> t = ChatTemplate::compile(
      "{{ s }}{{ s | length }}{{ s[::-1] | length }}{{ s | upper }}{{ [s] }}{{ s | tojson }}{{ s.strip() "
      "}}{{ s.split() }}"
      "{{ s.title() }}{{ s.rsplit() }}{% for c in s %}{{ c }}{% endfor %}{{ s | wordcount }}{{ s.center(9) "
      "}}");
  ASSERT_TRUE(t.ok());
  EXPECT_TRUE(t->render(Value::map(std::move(context))).ok());
}

TEST(HostileTemplate, LimitsAreTheCallers) {
  TemplateLimits limits;
  limits.max_output_bytes = 10;
  EXPECT_TRUE(run("0123456789", limits).ok());
  EXPECT_FALSE(run("0123456789a", limits).ok());
  limits = {};
  limits.max_steps = 100;
  EXPECT_FALSE(run("{% for i in range(1000) %}{% endfor %}", limits).ok());
  limits = {};
  limits.max_work_bytes = 1000;
  const Status status = run("{{ 'x' * 2000 }}", limits);
  ASSERT_FALSE(status.ok());
  EXPECT_GT(status.detail().bytes_requested, status.detail().bytes_available);
  limits = {};
  limits.max_depth = 5;
  EXPECT_FALSE(run("{{ [[[[[[1]]]]]] }}", limits).ok());
  // A lazy filter's failure may wait, a limit's may not.
  limits = {};
  limits.max_steps = 2000;
  EXPECT_FALSE(run("{% set x = range(90000) | map('string') %}", limits).ok());
}

TEST(HostileTemplate, SmallStacksSuffice) {
  // A thread of 1 MiB (a quarter under sanitizers would not do) runs the deepest recursion there is.
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
#if defined(__SANITIZE_ADDRESS__)
  pthread_attr_setstacksize(&attributes, 8 << 20);
#else
  pthread_attr_setstacksize(&attributes, 1 << 20);
#endif
  pthread_t thread;
  const auto body = [](void*) -> void* {
    EXPECT_FALSE(run("{% macro m(n) %}{% if 1 %}{% if 1 %}{{ [[[m(n + 1) | upper]]] }}{% endif %}{% endif "
                     "%}{% endmacro %}{{ m(0) }}")
                     .ok());
    EXPECT_FALSE(run("{{ " + repeat("(", 5000)).ok());
    EXPECT_FALSE(run("{{ " + repeat("[", 149) + "1" + repeat("]", 149) + repeat("(", 200)).ok());
    EXPECT_TRUE(run("{{ " + repeat("[", 70) + "1" + repeat("]", 70) + " }}").ok());
    return nullptr;
  };
  ASSERT_EQ(pthread_create(&thread, &attributes, body, nullptr), 0);
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
}

TEST(HostileTemplate, OneTemplateManyThreads) {
  Result<ChatTemplate> t = ChatTemplate::compile(
      "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + m.content | length %}{{ "
      "m.content | upper }}{% endfor %}{{ ns.n }}");
  ASSERT_TRUE(t.ok());
  std::vector<Value> list;
  for (int i = 0; i < 50; ++i) {
    Map m;
    m.set("content", Value::string("é" + std::to_string(i)));
    list.push_back(Value::map(std::move(m)));
  }
  const Value messages = Value::list(std::move(list));
  const Result<Text> expected = render_chat(*t, messages, {});
  ASSERT_TRUE(expected.ok());
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      for (int k = 0; k < 200; ++k) {
        const Result<Text> text = render_chat(*t, messages, {});
        ASSERT_TRUE(text.ok() && text.value().bytes() == expected.value().bytes());
      }
    });
  for (std::thread& thread : threads) thread.join();
}

TEST(RenderChat, ContextAndRefusals) {
  Result<ChatTemplate> t = ChatTemplate::compile(
      "{{ bos_token }}{{ messages[0].content }}{{ tools is none }}{{ documents is none }}{{ "
      "add_generation_prompt }}"
      "{{ eos_token }}{{ extra_name }}{{ strftime_now('%Y') }}");
  ASSERT_TRUE(t.ok());
  Map message, extra;
  message.set("content", Value::string("hi"));
  extra.set("extra_name", Value::string("!"));
  extra.set("bos_token", Value::string("B"));
  const Value further = Value::map(std::move(extra));
  std::tm now{};
  now.tm_year = 99;
  ChatOptions options;
  options.bos_token = "b";
  options.eos_token = "e";
  options.add_generation_prompt = true;
  options.extra = &further;
  options.now = &now;
  const Value messages = Value::list({Value::map(std::move(message))});
  const Result<Text> text = render_chat(*t, messages, options);
  ASSERT_TRUE(text.ok());
  EXPECT_EQ(text.value().bytes(), "BhiTrueTrueTruee!1999");
  EXPECT_EQ(render_chat(*t, Value::none(), options).status().code(), Code::invalid_argument);
  options.extra = &messages;
  EXPECT_EQ(render_chat(*t, messages, options).status().code(), Code::invalid_argument);
  Result<ChatTemplate> raising = ChatTemplate::compile("line\n  {{ raise_exception('no ' ~ 1) }}");
  ASSERT_TRUE(raising.ok());
  const Result<Text> raised = render_chat(*raising, messages, {});
  ASSERT_FALSE(raised.ok());
  EXPECT_EQ(raised.status().code(), Code::invalid_argument);
  EXPECT_STREQ(raised.status().message(), "no 1");
  EXPECT_EQ(raised.status().detail().line, 2u);
  EXPECT_EQ(raised.status().detail().column, 21u);
}

TEST(TemplateErrors, NameTheirPlace) {
  const auto at = [](const std::string& source, uint32_t line, uint32_t column) {
    const Status status = run(source);
    ASSERT_FALSE(status.ok()) << source;
    EXPECT_EQ(status.detail().line, line) << source << "\n" << status.message();
    EXPECT_EQ(status.detail().column, column) << source << "\n" << status.message();
  };
  at("{{ é + }}", 1, 8);
  at("a\nb {{ 1 / 0 }}", 2, 6);
  at("a\r\nb\r{{ xs.foo.bar }}", 3, 10);
  at("{% if 1 %}\nx", 2, 2);
  at("{% include 'x' %}", 1, 4);
  at("x\n{{ 'é' | nosuch }}", 2, 10);
  at("\n\n {% endif %}", 3, 5);
  at("{{ 'abc }}", 1, 4);
  at("é {# open", 1, 3);
}

}  // namespace
}  // namespace orrery::text::template_hostile_test
