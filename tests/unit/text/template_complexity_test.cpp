// No filter, method, test, function or operator of templates takes more than linear time (sorts: n log n), and what
// it takes is paid for in steps, so that max_steps bounds the time of any template.
//
// Each name of the engine's own tables has cases here; a name without one fails.  A case is a template over a text or
// a list of n items.  It runs at two sizes, and both the steps charged and the processor time of this thread may grow
// by the sizes' ratio only, with a factor for noise: the least of several runs counts. Large runs end with the first that is fast enough.
#include <gtest/gtest.h>
#include <time.h>

#include <algorithm>
#include <map>
#include <set>

#include "runtime/text/jinja/syntax/parser.h"
#include "runtime/text/jinja/interpreter/interpreter.h"
#include "runtime/text/unicode/python_characters.h"

namespace orrery::text::jinja::template_complexity_test {
namespace {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr size_t kSmall = 500;
constexpr double kSlow = 20;
#else
constexpr size_t kSmall = 2000;
constexpr double kSlow = 1;
#endif
constexpr size_t kRatio = 16;

double thread_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

// What templates see: texts of 16 n characters that are hard on naive algorithms, and n items of several kinds. No method of a list or map
// changes it, so all cases of a size share one.
Value make_context(size_t n) {
  const size_t m = 16 * n;  // characters cost less than items
  Map c;
  c.set("n", Value::integer(static_cast<int64_t>(n)));
  c.set("s", Value::string(std::string(m, 'a')));
  c.set("half", Value::string(std::string(m / 2, 'a')));
  c.set("miss", Value::string(std::string(m / 2, 'a') + "b"));
  c.set("front", Value::string("b" + std::string(m / 2, 'a')));
  c.set("blank", Value::string(std::string(m, ' ')));
  c.set("digits", Value::string(std::string(m, '7')));
  c.set("fraction", Value::string("0." + std::string(m, '1')));
  std::string words, accents, letters, braces, percents, sigmas;
  for (size_t i = 0; i < m / 4; ++i) {
    words += "aB1 ";
    accents += "\xC3\xA9\xC3\x89";
    unicode::append(static_cast<uint32_t>(0x4E00 + i % 20000), &letters);
    braces += "{0}";
    percents += "%%";
    sigmas += "\xCE\xA3.";
  }
  c.set("words", Value::string(words));
  c.set("accents", Value::string(accents));
  c.set("letters", Value::string(letters));
  c.set("braces", Value::string(braces));
  c.set("percents", Value::string(percents));
  c.set("sigmas", Value::string(sigmas));
  c.set("tabs", Value::string(std::string(m, '\t')));
  c.set("lines", Value::string(std::string(m, '\n')));
  std::vector<Value> xs, ts, pairs;
  Map d;
  for (size_t i = 0; i < n; ++i) {
    const Value number = Value::integer(static_cast<int64_t>(i * 7919 % n));
    const Value text = Value::string("key " + std::to_string(i * 7919 % n));
    xs.push_back(number);
    ts.push_back(text);
    pairs.push_back(Value::tuple({text, number}));
    d.set(text, number);
  }
  c.set("xs", Value::list(xs));
  c.set("ys", Value::list(xs));
  c.set("ts", Value::list(ts));
  c.set("tuple", Value::tuple(xs));
  c.set("pairs", Value::list(pairs));
  c.set("d", Value::map(d));
  c.set("e", Value::map(d));
  return Value::map(std::move(c));
}

const Value& context(size_t n) {
  static const Value small = make_context(kSmall), large = make_context(kSmall * kRatio);
  return n == kSmall ? small : large;
}

struct Cost {
  uint64_t steps = UINT64_MAX;
  double seconds = 1e9;
};

// n: kSmall or kSmall * kRatio. Runs `runs` times, fewer once a run is `enough`, and returns the least time.
template <class F>
Cost measure(const std::string& source, size_t n, int runs, const F& enough) {
  auto program = parse(source);
  EXPECT_TRUE(program.ok()) << source << "\n" << program.status().message();
  if (!program.ok()) return {};
  const Value& names = context(n);
  Cost cost;
  for (int i = 0; i < runs && !enough(cost); ++i) {
    TemplateLimits limits;
    const std::tm now{};
    Interp interp(*program.value(), names, limits, &now);
    const double start = thread_seconds();
    const Result<Text> text = interp.run();
    cost.seconds = std::min(cost.seconds, thread_seconds() - start);
    cost.steps = std::min(cost.steps, interp.steps());
    // A failure is a fine end, unless it is a limit's.
    if (!text.ok()) {
      EXPECT_EQ(std::string(text.status().message()).find("allowed"), std::string::npos) << source << "\n" << text.status().message();
    }
  }
  return cost;
}

void expect_linear(const std::string& source) {
  const Cost small = measure(source, kSmall, 3, [](const Cost&) { return false; });
  // Ten times the ratio: the small size fits the caches.  Quadratic work takes 256 times as long.
  const double allowed = 10 * kRatio * small.seconds + 0.004 * kSlow;
  // A step is worth a twentieth of a microsecond; ten times that would make a second of max_steps ten.
  const auto paid = [](const Cost& cost) { return kSlow * (0.5e-6 * static_cast<double>(cost.steps) + 0.002); };
  const Cost large = measure(source, kSmall * kRatio, 8,
                             [&](const Cost& cost) { return cost.steps != UINT64_MAX && cost.seconds <= std::min(allowed, paid(cost)); });
  // n log n grows by 16 * (15 / 11); a bit more is for the constant parts of charges that round down.
  EXPECT_LE(static_cast<double>(large.steps), kRatio * 1.6 * static_cast<double>(small.steps) + 3000) << source;
  EXPECT_LE(large.seconds, allowed) << source << "\n" << small.seconds << " s, " << large.seconds << " s";
  EXPECT_LE(large.seconds, paid(large)) << source << "\n" << large.seconds << " s for " << large.steps << " steps";
}

const std::map<std::string, std::vector<const char*>>& filter_cases() {
  static const std::map<std::string, std::vector<const char*>> cases = {
      {"trim", {"{{ s|trim(letters ~ 'a')|length }}", "{{ blank|trim|length }}", "{{ letters|trim(letters)|length }}"}},
      {"tojson",
       {"{{ xs|tojson|length }}", "{{ d|tojson(sort_keys=true)|length }}", "{{ accents|tojson(ensure_ascii=true)|length }}",
        "{{ xs|tojson(indent=2)|length }}"}},
      {"length", {"{{ s|length }}"}},
      {"count", {"{{ xs|count }}"}},
      {"join", {"{{ xs|join(', ')|length }}", "{{ ts|join|length }}"}},
      {"first", {"{{ s|first }}{{ xs|first }}"}},
      {"last", {"{{ accents|last }}{{ xs|last }}"}},
      {"default", {"{{ nothing|default(s)|length }}"}},
      {"d", {"{{ s|d(1)|length }}"}},
      {"list", {"{{ s|list|length }}", "{{ d|list|length }}"}},
      {"dictsort", {"{{ d|dictsort|length }}", "{{ d|dictsort(by='value', reverse=true)|length }}"}},
      {"items", {"{{ d|items|list|length }}"}},
      {"map", {"{{ xs|map('string')|list|length }}", "{{ pairs|map(attribute=0)|list|length }}"}},
      {"select", {"{{ xs|select('odd')|list|length }}"}},
      {"reject", {"{{ xs|reject('odd')|list|length }}"}},
      {"selectattr", {"{{ pairs|selectattr(1, 'odd')|list|length }}"}},
      {"rejectattr", {"{{ pairs|rejectattr(1, 'odd')|list|length }}"}},
      {"unique", {"{{ xs|unique|list|length }}", "{{ ts|unique|list|length }}"}},
      {"sort", {"{{ xs|sort|length }}", "{{ ts|sort(reverse=true)|length }}", "{{ pairs|sort(attribute='1,0')|length }}"}},
      {"reverse", {"{{ xs|reverse|list|length }}", "{{ accents|reverse|length }}"}},
      {"sum", {"{{ xs|sum }}"}},
      {"min", {"{{ ts|min }}"}},
      {"max", {"{{ xs|max }}"}},
      {"batch", {"{{ xs|batch(3, 0)|list|length }}"}},
      {"slice", {"{{ xs|slice(n, 0)|list|length }}"}},
      {"groupby", {"{{ pairs|groupby(1)|length }}"}},
      {"attr", {"{{ d|attr('get') is callable }}"}},
      {"upper", {"{{ accents|upper|length }}", "{{ s|upper|length }}"}},
      {"lower", {"{{ sigmas|lower|length }}"}},
      {"title", {"{{ words|title|length }}"}},
      {"capitalize", {"{{ words|capitalize|length }}"}},
      {"replace",
       {"{{ s|replace('a', 'b')|length }}", "{{ s|replace(miss, 'b')|length }}", "{{ s|replace(front, 'b')|length }}",
        "{{ s|replace('', 'b')|length }}"}},
      {"string", {"{{ xs|string|length }}", "{{ d|string|length }}"}},
      {"safe", {"{{ s|safe|length }}"}},
      {"escape", {"{{ s|escape|length }}"}},
      {"e", {"{{ words|e|length }}"}},
      {"format", {"{{ percents|format|length }}", "{{ (half ~ '%s')|format(s)|length }}"}},
      {"indent", {"{{ lines|indent(2, true, true)|length }}", "{{ s|indent|length }}"}},
      {"truncate", {"{{ s|truncate(n // 2)|length }}"}},
      {"center", {"{{ 'x'|center(n)|length }}"}},
      {"wordcount", {"{{ words|wordcount }}", "{{ letters|wordcount }}"}},
      {"int", {"{{ s|int }}", "{{ ('0' ~ digits)|int(base=1) }}", "{{ digits|int }}"}},
      {"float", {"{{ digits|float }}", "{{ fraction|float }}", "{{ (digits ~ 'e-' ~ digits)|float }}"}},
      {"abs", {"{{ -1|abs }}"}},
      {"round", {"{{ 1.5|round(3) }}"}},
  };
  return cases;
}

const std::map<std::string, std::vector<const char*>>& method_cases() {
  static const std::map<std::string, std::vector<const char*>> cases = {
      {"string.strip", {"{{ s.strip(letters ~ 'a')|length }}", "{{ letters.strip(letters)|length }}", "{{ blank.strip()|length }}"}},
      {"string.lstrip", {"{{ s.lstrip(miss)|length }}"}},
      {"string.rstrip", {"{{ s.rstrip(miss)|length }}", "{{ letters.rstrip(letters)|length }}"}},
      {"string.split",
       {"{{ s.split('a')|length }}", "{{ s.split(miss)|length }}", "{{ s.split(front)|length }}", "{{ words.split()|length }}"}},
      {"string.rsplit",
       {"{{ s.rsplit('a')|length }}", "{{ s.rsplit(miss)|length }}", "{{ s.rsplit(front)|length }}", "{{ words.rsplit()|length }}"}},
      {"string.splitlines", {"{{ lines.splitlines()|length }}", "{{ s.splitlines(true)|length }}"}},
      {"string.startswith", {"{{ s.startswith(half) }}", "{{ s.startswith((miss, front)) }}"}},
      {"string.endswith", {"{{ s.endswith(half) }}"}},
      {"string.replace", {"{{ s.replace('a', 'bb')|length }}", "{{ s.replace(miss, '')|length }}", "{{ s.replace(half, 'b')|length }}"}},
      {"string.join", {"{{ ','.join(ts)|length }}"}},
      {"string.upper", {"{{ accents.upper()|length }}"}},
      {"string.lower", {"{{ sigmas.lower()|length }}"}},
      {"string.title", {"{{ accents.title()|length }}"}},
      {"string.capitalize", {"{{ accents.capitalize()|length }}"}},
      {"string.swapcase", {"{{ accents.swapcase()|length }}"}},
      {"string.find", {"{{ s.find(miss) }}", "{{ s.find(front) }}", "{{ s.find(half, 3) }}"}},
      {"string.rfind", {"{{ s.rfind(miss) }}", "{{ s.rfind(front) }}"}},
      {"string.index", {"{{ s.index(half) }}"}},
      {"string.rindex", {"{{ s.rindex(half) }}"}},
      {"string.count", {"{{ s.count('a') }}", "{{ s.count(miss) }}", "{{ s.count(front) }}", "{{ s.count('') }}"}},
      {"string.partition", {"{{ s.partition(miss)|length }}", "{{ s.partition(front)|length }}"}},
      {"string.rpartition", {"{{ s.rpartition(miss)|length }}", "{{ s.rpartition(front)|length }}"}},
      {"string.removeprefix", {"{{ s.removeprefix(half)|length }}"}},
      {"string.removesuffix", {"{{ s.removesuffix(half)|length }}"}},
      {"string.center", {"{{ 'x'.center(n)|length }}"}},
      {"string.ljust", {"{{ 'x'.ljust(n)|length }}"}},
      {"string.rjust", {"{{ 'x'.rjust(n)|length }}"}},
      {"string.zfill", {"{{ '-1'.zfill(n)|length }}"}},
      {"string.expandtabs", {"{{ tabs.expandtabs()|length }}"}},
      {"string.isalpha", {"{{ letters.isalpha() }}"}},
      {"string.isdecimal", {"{{ digits.isdecimal() }}"}},
      {"string.isdigit", {"{{ digits.isdigit() }}"}},
      {"string.isnumeric", {"{{ digits.isnumeric() }}"}},
      {"string.isalnum", {"{{ letters.isalnum() }}"}},
      {"string.isspace", {"{{ blank.isspace() }}"}},
      {"string.isupper", {"{{ digits.isupper() }}"}},
      {"string.islower", {"{{ s.islower() }}"}},
      {"string.istitle", {"{{ digits.istitle() }}"}},
      {"string.isascii", {"{{ s.isascii() }}"}},
      {"string.isprintable", {"{{ letters.isprintable() }}"}},
      {"string.isidentifier", {"{{ letters.isidentifier() }}"}},
      {"string.format", {"{{ braces.format('x')|length }}", "{{ ('{' ~ s).format(1) }}"}},
      {"string.format_map", {"{{ '{x}'.format_map(dict(d, x=1)) }}"}},
      {"list.index", {"{{ xs.index(xs[-1]) }}"}},
      {"list.count", {"{{ xs.count(1) }}"}},
      {"list.copy", {"{{ xs.copy()|length }}"}},
      {"list.append", {"{% set x = [] %}{% for i in xs %}{% set _ = x.append(i) %}{% endfor %}{{ x|length }}"}},
      {"tuple.index", {"{{ tuple.index(tuple[-1]) }}"}},
      {"tuple.count", {"{{ tuple.count(1) }}"}},
      {"map.items", {"{{ d.items()|length }}", "{{ d.items() == e.items() }}"}},
      {"map.keys", {"{{ d.keys()|length }}", "{{ d.keys() == e.keys() }}"}},
      {"map.values", {"{{ d.values()|length }}"}},
      {"map.get", {"{% for t in ts %}{{ d.get(t) }}{% endfor %}", "{{ d.get(s) }}"}},
      {"map.copy", {"{{ d.copy()|length }}"}},
      {"map.fromkeys", {"{{ {}.fromkeys(ts)|length }}"}},
      {"float.is_integer", {"{{ 1.5.is_integer() }}"}},
      {"integer.bit_length", {"{{ n.bit_length() }}"}},
  };
  return cases;
}

const std::map<std::string, std::vector<const char*>>& global_cases() {
  static const std::map<std::string, std::vector<const char*>> cases = {
      {"range", {"{{ range(n)|length }}"}},
      {"dict", {"{{ dict(pairs)|length }}", "{{ dict(d)|length }}"}},
      {"namespace", {"{% set ns = namespace(d) %}{% set ns.x = 1 %}"}},
      {"joiner", {"{% set j = joiner(s) %}{{ j() }}{{ j()|length }}"}},
      {"cycler", {"{% set c = cycler(*xs) %}{% for x in xs %}{{ c.next() }}{% endfor %}{{ c.reset() }}{{ c.current }}"}},
      {"raise_exception", {"{{ raise_exception(s) }}"}},
      {"strftime_now", {"{{ strftime_now(percents)|length }}"}},
  };
  return cases;
}

// Tests take a value and, some, another.
std::vector<std::string> test_cases(const std::string& name) {
  static const std::set<std::string> comparisons = {"eq", "equalto", "==", "ne",          "!=", "lt", "lessthan", "<",
                                                    "le", "<=",      "gt", "greaterthan", ">",  "ge", ">=",       "sameas"};
  static const std::set<std::string> plain = {"defined", "undefined", "none",   "boolean", "true",     "false",    "integer",
                                              "float",   "number",    "string", "mapping", "sequence", "iterable", "callable",
                                              "escaped", "lower",     "upper",  "filter",  "test"};
  const std::string select = "{{ [s]|select('" + name + "'";
  if (comparisons.count(name) != 0)
    return {select + ", (half ~ half))|list|length }}", "{{ [xs]|select('" + name + "', ys)|list|length }}"};
  if (plain.count(name) != 0) return {select + ")|list|length }}", "{{ [letters]|select('" + name + "')|list|length }}"};
  if (name == "in") return {"{{ miss is in(s) }}", "{{ front is in s }}", "{{ -1 is in xs }}", "{{ s is in d }}"};
  if (name == "even" || name == "odd") return {"{{ n is " + name + " }}"};
  if (name == "divisibleby") return {"{{ n is divisibleby 3 }}"};
  return {};
}

void run_all(const std::vector<std::string>& names, const std::map<std::string, std::vector<const char*>>& cases) {
  std::set<std::string> known(names.begin(), names.end());
  for (const std::string& name : names) {
    const auto it = cases.find(name);
    if (it == cases.end() || it->second.empty()) {
      ADD_FAILURE() << "'" << name << "' has no case here";
      continue;
    }
    for (const char* source : it->second) expect_linear(source);
  }
  for (const auto& entry : cases) EXPECT_EQ(known.count(entry.first), 1u) << "'" << entry.first << "' does not exist";
}

TEST(TemplateComplexity, Filters) { run_all(filter_names(), filter_cases()); }
TEST(TemplateComplexity, Methods) { run_all(method_names(), method_cases()); }
TEST(TemplateComplexity, Functions) { run_all(global_names(), global_cases()); }
TEST(TemplateComplexity, Tests) {
  for (const std::string& name : test_names()) {
    const std::vector<std::string> cases = test_cases(name);
    EXPECT_FALSE(cases.empty()) << "'" << name << "' has no case here";
    for (const std::string& source : cases) expect_linear(source);
  }
}

TEST(TemplateComplexity, OperatorsAndStatements) {
  for (const char* source : {"{{ (s + s)|length }}",
                             "{{ (xs + ys)|length }}",
                             "{{ (s ~ xs ~ d)|length }}",
                             "{{ ('ab' * n)|length }}",
                             "{{ ([1] * n)|length }}",
                             "{{ s == half ~ half }}",
                             "{{ xs == ys }}",
                             "{{ d == e }}",
                             "{{ xs != ys }}",
                             "{{ xs < ys }}",
                             "{{ s <= half ~ half }}",
                             "{{ xs > ys }}",
                             "{{ s >= half }}",
                             "{{ miss in s }}",
                             "{{ front not in s }}",
                             "{{ half in s }}",
                             "{{ -1 in xs }}",
                             "{{ s in d }}",
                             "{{ 1 - 2 * 3 / 4 // 5 % 6 ** 7 }}",
                             "{{ (half ~ '%s%s') % (s, xs) }}",
                             "{{ s[::-1]|length }}",
                             "{{ s[1:n // 2]|length }}",
                             "{{ accents[::2]|length }}",
                             "{{ xs[::-1]|length }}",
                             "{{ s[n - 1] }}",
                             "{{ d[s] }}",
                             "{% for c in accents %}{{ c }}{% endfor %}",
                             "{% for x in xs if x is odd %}{{ loop.index }}{{ loop.last }}{{ loop.length }}{% endfor %}",
                             "{% for x in xs %}{{ loop.changed(x) }}{{ loop.cycle(1, 2) }}{{ loop.previtem }}{% endfor %}",
                             "{% for k, v in d.items() %}{{ k }}{{ d[k] }}{% endfor %}",
                             "{% set x %}{{ s }}{% endset %}{{ x|length }}",
                             "{% set ns = namespace(n=0) %}{% for x in xs %}{% set ns.n = ns.n + x %}{% endfor %}{{ ns.n }}",
                             "{% macro m(a) %}{{ a|length }}{{ varargs|length }}{% endmacro %}{{ m(*xs) }}",
                             "{% macro m() %}{{ kwargs|length }}{% endmacro %}{{ m(**{'a': s}) }}",
                             "{% filter upper %}{{ s }}{% endfilter %}",
                             "{% with a = s %}{{ a|length }}{% endwith %}",
                             "{% for x in [xs] recursive %}{{ x|length }}{% endfor %}",
                             "{{ dict(**{'a': xs})|length }}",
                             "{{ not s }}",
                             "{{ s if xs else d }}"})
    expect_linear(source);
}

// The worst that has been found: each would take minutes to days if it were not linear, or not paid for.
TEST(TemplateComplexity, HostileLoopsEndSoon) {
  for (const char* source :
       {"{% set t = 'a' * 600000 %}{% set p = 'a' * 300000 ~ 'b' %}{% for i in range(100000) %}{{ p in t }}{% endfor %}",
        "{% set t = 'a' * 600000 %}{% set p = 'b' ~ 'a' * 300000 %}{% for i in range(100000) %}{{ t.rfind(p) }}{% endfor %}",
        "{% set t = 'a' * 1000000 %}{% for i in range(100000) %}{{ t.strip('b' ~ t) }}{% endfor %}",
        "{% set t = '1' * 100000 %}{% for i in range(100000) %}{% set x = t|float %}{% endfor %}",
        "{% set t = ['a' * 1000000, 'a' * 1000000] %}{% for i in range(100000) %}{% set x = t|sort %}{% endfor %}",
        "{% set t = ['a' * 1000000, '{}'.format] %}{% for i in range(100000) %}{% set x = [t]|map('tojson') %}{% endfor %}",
        "{% set t = 'a' * 1000000 %}{% for i in range(100000) %}{% set x = [t ~ '%d']|map('format', 'x') %}{% endfor %}",
        "{% set d = dict(range(50000)|map('string')|map('list')|list) %}{% for i in range(100000) %}{{ d == d.copy() }}{% endfor %}"}) {
    auto program = parse(source);
    ASSERT_TRUE(program.ok()) << source << program.status().message();
    TemplateLimits limits;
    const double start = thread_seconds();
    Interp interp(*program.value(), Value::map({}), limits, nullptr);
    const Result<Text> text = interp.run();
    EXPECT_LT(thread_seconds() - start, 15 * kSlow) << source;
  }
  // As many names as a template can have, in one scope, one call, one signature.
  std::string sets, arguments, parameters;
  for (int i = 0; i < 20000; ++i) {
    const std::string name = "v" + std::to_string(i);
    sets += "{% set " + name + " = 1 %}";
    arguments += name + "=1, ";
    parameters += name + ", ";
  }
  for (const std::string& source :
       {sets + "{% for i in range(100000) %}{% for j in range(100) %}{{ v19999 }}{% endfor %}{% endfor %}",
        "{{ dict(" + arguments + ")|length }}", "{% macro m(" + parameters + ") %}{% endmacro %}{{ m(" + arguments + ") }}"}) {
    const double start = thread_seconds();
    auto program = parse(source);
    if (program.ok()) {
      TemplateLimits limits;
      Interp interp(*program.value(), Value::map({}), limits, nullptr);
      const Result<Text> text = interp.run();
    }
    EXPECT_LT(thread_seconds() - start, 15 * kSlow) << source.substr(source.size() - 100);
  }
}

}  // namespace
}  // namespace orrery::text::jinja::template_complexity_test
