"""Hand-written snippets: every feature of the template language once or more, and what must fail."""

EXPRESSIONS = r"""
1 + 2 * 3
(1 + 2) * 3
2 ** 3 ** 2
-2 ** 2
2 ** -1
7 / 2
7 // 2
-7 // 2
7 // -2
-7 % 3
7 % -3
7.5 // 2
-7.5 % 2
7.5 % -2
1e3
1_000 + 0x1F + 0b101 + 0o17
1.5e-7
0.1 + 0.2
1e16
123456789012345680.0
1e22
-0.0
5.0
10 / 5
1 / 3
True + True
true and false
1 and 2
0 or "x"
none or false
not 1
not not ""
1 < 2 < 3
1 < 3 < 2
1 == 1.0 == True
"a" < "b"
[1, 2] < [1, 3]
(1, 2) == (1, 2)
[1] == (1,)
"a" ~ 1 ~ none ~ 2.0
"a" "b" 'c'
1 + 2 ~ 3 + 4
"x" * 3
3 * "ab"
[1] * 2
[1] + [2, 3]
(1,) + (2,)
"%s is %d" % ("a", 3)
"%5.2f|%-5s|%05d|%x|%%" % (3.14159, "ab", 42, 255)
"%(a)s" % {"a": 1}
"%s" % "x"
"%r" % "x'y"
"%+d %e %g" % (5, 12345.678, 0.0001)
"%c%c" % (65, "b")
"%s %s" % (1,)
"%d" % "x"
"%s" % (1, 2)
"%i" % 3.99
"%#x %#o %X" % (255, 8, 255)
"%3d|%-3d|%+.1e" % (1, 2, 12345.678)
1 in [1, 2]
3 not in [1, 2]
"ell" in s
"b" in d
"z" not in d
1 in "abc"
undefined_name in "abc"
"a" in undefined_name
x if false
"a" if 1 else "b"
"a" if 0 else "b" if 0 else "c"
xs[0]
xs[-1]
xs[9]
xs[9].foo
xs["0"]
xs.0
d.b
d["b"]
d.zzz
d.zzz.y
d["zzz"]["y"]
d.items
d.items()
d.keys()
d.values()
d.keys() | list
d.get("b")
d.get("zz")
d.get("zz", 5)
d.copy()
deep.k.items
deep.k["items"]
deep.k.keys
deep.k["keys"]
xs[1:]
xs[:-1]
xs[::-1]
xs[::2]
xs[5:]
xs[-2:]
s[1:4]
s[::-1]
s[-3:]
s[10:2:-2]
uni[0:5]
uni[::-1]
uni[-1]
uni[7]
uni | length
uni[3:12:3]
nested[1][1][0]
xs[:0]
xs[::0]
xs["a":]
none[0]
none.foo
none.foo.bar
n.foo
f[0]
{}["a"]
undefined_name
undefined_name.foo
undefined_name["foo"]
undefined_name()
undefined_name + 1
1 + undefined_name
-undefined_name
undefined_name | length
undefined_name == undefined_name
undefined_name == 1
undefined_name ~ "x"
undefined_name < 1
[undefined_name]
not undefined_name
undefined_name | list
undefined_name | default("d")
undefined_name.a | default("d")
d.zz | default("d")
none | default("d")
none | default("d", true)
"" | default("d", boolean=true)
s.upper()
s.lower()
s.title()
s.capitalize()
s.swapcase()
"they're bill's friends".title()
"they're bill's-friends (x)" | title
"ǆ straße ΑΣ ΑΣΑ İ".title()
"ǆ straße ΑΣ ΑΣΑ İ".upper()
"ǅ STRASSE ΑΣ ΑΣΑ İ".lower()
"ß" | upper
"ﬁx" | capitalize
spaced.strip()
spaced.lstrip()
spaced.rstrip() ~ "|"
"xxaxx".strip("x")
"xyaxy".lstrip("yx")
"xyaxy".rstrip("yx")
"éaé".strip("é")
"  a  b c ".split()
"a,b,,c".split(",")
"a,b,,c".split(",", 1)
"a,b,,c".split(",", maxsplit=2)
"a b  c d".split(none, 1)
"a b  c d".rsplit(none, 1)
"a,b,,c".rsplit(",", 1)
"a,b".split("")
"abc".split("b")[-1]
lines.splitlines()
lines.splitlines(true)
"".splitlines()
"".split()
"".split(",")
s.startswith("Hello")
s.startswith(("x", "He"))
s.endswith("World")
s.endswith(("a", "b"))
s.startswith("W", 7)
s.startswith(1)
s.replace("l", "L")
s.replace("l", "L", 1)
s.replace("", "-")
"aaa".replace("a", "b", 2)
s.find("o")
s.find("o", 5)
s.find("zz")
s.rfind("o")
s.index("W")
s.index("zz")
uni.find("日")
uni.rfind("é")
s.count("l")
"aaaa".count("aa")
"abc".count("")
",".join(["a", "b"])
",".join(words)
",".join([1])
"-".join("abc")
"{} and {}".format(1, "b")
"{1}{0}{1}".format("a", "b")
"{x}-{y:>5}|{z:.2f}".format(x=1, y="r", z=2.345)
"{:,}".format(1234567)
"{:08.3f}".format(3.14159)
"{:<6}|{:^6}|{:>6}|{:*^7}".format("a", "b", "c", "d")
"{:d} {:x} {:#b} {:+d} {:e} {:%}".format(5, 255, 5, 3, 12345.678, 0.25)
"{0[a]} {0[b][1]}".format({"a": 1, "b": [1, 2]})
"{!r}".format("x")
"{{}}{}".format(1)
"{} {1}".format(1, 2)
"{}".format()
"{:5}|{:<5}|{:05}".format(42, 42, -42)
"{:.3}".format("abcdef")
"{:g} {:g} {:.3g}".format(0.00001, 123456789.0, 3.14159)
"{}".format(none)
"{:>{w}}".format("a", w=5)
"abc".isalpha()
"ab1".isalnum()
"123".isdigit()
"12.3".isdigit()
"²".isdigit()
"²".isdecimal()
"½".isnumeric()
"  ".isspace()
"".isspace()
"Ab".isupper()
"AB1".isupper()
"ab1".islower()
"Hello World".istitle()
"日本".isalpha()
"abc".isascii()
"a_1".isidentifier()
"abc".partition("b")
"abcbd".rpartition("b")
"abc".partition("z")
"prefix-x".removeprefix("prefix-")
"x.txt".removesuffix(".txt")
"7".zfill(3)
"-7".zfill(4)
"a".center(6, "*")
"ab".ljust(4) ~ "|"
"ab".rjust(4)
"a\tb".expandtabs(4)
xs.index(1)
xs.index(9)
xs.count(3)
xs.copy()
xs.append(1)
xs.pop()
xs.sort()
xs.reverse()
xs.append
d.update({"x": 1})
d.pop("b")
d.setdefault("z", 1)
d.clear
s.__class__
s.__class__.mro
(1).bit_length()
(2.0).is_integer()
[1, "a", none, true, 2.5]
("a",)
()
[]
{}
{"a": [1, (2,)], 1: none, true: "x"}
{"b": 1, "a": 2, "b": 3}
["it's", 'say "hi"', 'both \' and "', "tab\t", "nl\n", "\\", "\x00\x7f", "é", "\u200b", "🙂"]
uni
[uni]
html
html | e
html | escape | length
(html | e) + "<"
"<b>" | safe
("<b>" | safe) + "<i>"
tool | tojson
tool | tojson(indent=2)
tool | tojson(indent=4)
tool | tojson(ensure_ascii=true)
tool | tojson(ensure_ascii=False, indent=1)
tool | tojson(separators=(",", ":"))
d | tojson(sort_keys=true)
tool | tojson(true)
mixed | tojson
[] | tojson(indent=2)
{"a": {}, "b": [], "c": [[]]} | tojson(indent=2)
(1, "x") | tojson
1e20 | tojson
uni | tojson
"\u2028\x7f</script>&" | tojson
undefined_name | tojson
xs | map("string") | tojson
{1: 2, none: 3, true: 4, 1.5: 5} | tojson
{(1, 2): 3} | tojson
d.items() | tojson
"x" | tojson(indent="\t")
[1, [2]] | tojson(indent="--")
xs | length
s | count
n | length
none | length
xs | join(", ")
xs | join
xs | join(1)
users | join(", ", attribute="name")
[1, none, "a"] | join("-")
undefined_name | join
xs | first
xs | last
[] | first
"" | first
"abc" | last
d | first
d | last
none | first
xs | list
"abc" | list
d | list
none | list
5 | list
d | dictsort
d | dictsort(true)
d | dictsort(by="value")
d | dictsort(false, "value", true)
d | dictsort(by="x")
d | items | list
undefined_name | items | list
xs | items | list
xs | map("string") | join("+")
words | map("upper") | list
words | map("length") | sum
users | map(attribute="name") | list
users | map(attribute="tags", default="none") | list
users | map(attribute="tags.0", default="-") | list
users | map(attribute="zzz") | list
users | map("attr", "name") | list
words | map("replace", "p", "P") | list
xs | map
xs | map("nofilter") | list
none | map("upper") | list
mixed | select | list
mixed | reject | list
xs | select("odd") | list
xs | reject("odd") | list
xs | select("gt", 1) | list
xs | select(">", 1) | list
xs | select("in", [1, 3]) | list
xs | select("nosuch") | list
users | selectattr("tags") | map(attribute="name") | list
users | selectattr("age", "gt", 30) | map(attribute="name") | list
users | selectattr("name", "equalto", "bob") | list | length
users | rejectattr("tags", "defined") | map(attribute="name") | list
users | selectattr("tags", "defined") | list | length
words | unique | list
words | unique(true) | list
users | unique(attribute="age") | map(attribute="name") | list
words | sort
words | sort(case_sensitive=true)
words | sort(reverse=true)
xs | sort
xs | sort(true)
users | sort(attribute="age") | map(attribute="name") | list
users | sort(attribute="age,name", reverse=true) | map(attribute="name") | list
mixed | sort
xs | reverse | list
"abc" | reverse
uni | reverse
d | reverse | list
words | upper
s | upper
s | lower
n | upper
s | replace("l", "L")
s | replace("l", "L", 1)
n | replace(7, 8)
"42" | int
"42.9" | int
" 42 " | int
"x" | int
"x" | int(5)
"ff" | int(base=16)
"0x1f" | int(0, 16)
"0b11" | int(base=0)
"1_000" | int
2.9 | int
-2.9 | int
none | int
true | int
"1e3" | int
"2.5" | float
"x" | float
"x" | float(1.5)
"inf" | float
"nan" | float
7 | float
none | float
"1e400" | float
-3 | abs
-2.5 | abs
"x" | abs
2.5 | round
3.5 | round
2.567 | round(2)
2.567 | round(2, "ceil")
2.567 | round(1, "floor")
7 | round
1234 | round(-2)
2.675 | round(2)
0.5 | round
-2.5 | round
2.5 | round(method="ceil")
2.5 | round(1, "up")
xs | sum
users | sum(attribute="age")
xs | sum(start=10)
words | sum
[[1], [2]] | sum(start=[])
xs | min
xs | max
words | min
words | max
[] | min
users | max(attribute="age")
mixed | max
xs | batch(2) | list
xs | batch(2, "-") | list
range(7) | slice(3) | list
range(7) | slice(3, "x") | list
lines | indent
lines | indent(2, true)
lines | indent("> ", first=true, blank=true)
"a\n\nb" | indent(2)
users | groupby("age") | map("first") | list
users | groupby("age") | map(attribute="grouper") | list
users | groupby("name") | map(attribute="list") | map("length") | list
words | groupby(0) | list
users | groupby("age")
d | attr("items")
d | attr("b")
s | attr("upper")
"one two-three_four 5" | wordcount
"hello big wide world" | truncate(12)
"hello big wide world" | truncate(12, true)
"hello big wide world" | truncate(12, false, "…", 0)
"hello" | truncate(3)
xs | truncate(3)
xs | truncate(3, leeway=0)
range(50) | truncate(10)
undefined_name | truncate(9)
undefined_name | last
undefined_name | first
"%s-%s" | format(1, "b")
"%(a)s" | format(a=3)
s | center(20)
s | trim
spaced | trim
"xxaxx" | trim("x")
n | string
n | string | length
[1, 2] | string
s | title
s | capitalize
5 | nosuchfilter
5 is nosuchtest
s is string
n is string
n is number
f is number
true is number
n is integer
true is integer
f is float
true is boolean
none is none
none is not none
n is none
undefined_name is defined
n is defined
d.zz is defined
undefined_name is undefined
d is mapping
xs is mapping
xs is sequence
s is sequence
d is sequence
n is sequence
xs is iterable
n is iterable
undefined_name is iterable
s is callable
range is callable
n is even
n is odd
n is divisibleby 7
n is divisibleby(3)
n is eq 7
n is equalto(7)
n is ne 7
n is gt 6
n is lt(6)
n is ge 7
n is le 6
n is in [7]
n is not in [7]
"a" is in "abc"
none is sameas none
true is sameas true
1 is sameas true
"AB" is upper
"ab" is lower
5 is upper
true is true
1 is true
false is false
"upper" is filter
"nope" is filter
"odd" is test
s is not string and true
not s is string
n is odd and n is number
n is divisibleby 7 and true
n is odd is number
s is escaped
(s | e) is escaped
none is mapping
-1 is number
-3 | abs
-xs | length
- 3 | string ~ "x"
range(5)
range(5) | list
range(2, 8, 3) | list
range(5, 0, -2) | list
range(1, 2, 0)
range("a")
range(3)[1]
range(10)[2:8:2]
range(3) == range(0, 3)
range(1000000000)
range(100001) | length
range(100000) | length
dict(a=1, b=2)
dict([("a", 1)], b=2)
dict({"a": 1})
namespace(a=1).a
namespace(a=1)["a"]
namespace().zz
namespace({"x": 5}).x
namespace(a=1)
joiner("|")() ~ "x"
cycler("a", "b").next()
cycler()
strftime_now("%Y-%m-%d")
strftime_now("%d %b %Y")
strftime_now("%A, %B %e, %H:%M:%S %p %I %j %y %%")
raise_exception("boom")
raise_exception("it's " ~ n)
raise_exception()
1 / 0
1 // 0
1 % 0
1.0 / 0
0 ** -1
"a" + 1
1 + "a"
[1] + (1,)
none + 1
1 < "a"
none < 1
{} < {}
"a" * "b"
"a" - "b"
{[1]: 2}
d[[1]]
[1] in d
s()
s.nosuch()
n.upper()
xs.items()
none()
dict(1)
s.upper(1)
s.split(1)
s.replace("a")
1e308 * 10
1e308 * 10 - 1e308 * 10
"é" == "e\u0301"
"\u00e9\x41\101\n\t\\\'\"\q"
'single "inside"'
"new
line"
[1, 2, 3,]
{"a": 1,}
(1, 2,)
1, 2
(1)
((1, 2), 3)
"a" if undefined_name else "b"
undefined_name.x is defined
d.zz.y is defined
(1, 2)[0]
"abc"[1]
"abc"[-4]
"abc"["x"]
[[1, 2], [3, 4]][1][0]
"a.b.c".split(".")[-1].upper() | lower ~ "!"
s | replace("o", "0") | upper | length
xs | map("string") | join(",") | replace("1", "one")
messages is defined and messages
"x" in ["x"] and "y" not in ["x"]
1 if 0 else 2 + 3
[x for x in xs]
xs[
(1
1 +
foo bar
"unclosed
1 ; 2
a = 1
{{ 1 }}
1 }}
lambda: 1
not
is string
d.
d.1
.5
5.
1__0
0777
007
1 not in [1]
1 in [1] in [[1]]
(1 in [1]) in [true]
1 == 1 in [true]
true is sameas(1 == 1)
5 is gt 3 and 2 is lt 3
[1,2,3][true]
{"a": 1}.a
{"items": 1}.items
{"items": 1}["items"]
[1, 2] is eq [1, 2]
"a" is eq "a" if true else 1
xs | sort | first
(xs | sort)[0]
xs | sort [0]
(xs)[0] | string
s | upper()
s | upper(1)
none | string
none | upper
[none, true] | join
"a" ~ [1, "b"] ~ {"c": none}
1.0 | string
1e100 | string
1e-10 | string
100000000000000000.0 | string
123456.789e3
10 ** 15
2 ** 62
7 | format
"%s" | format
s | default
n | d(3)
users[0].name ~ users[-1]["name"]
users[0].tags[0]
users[2].tags
users[2].tags[0]
users[2].tags is undefined
users | length > 2
users | map(attribute="name") | map("lower") | sort | join(" ")
users | selectattr("age", ">=", 31) | map(attribute="name") | join
loop
loop.index
caller()
varargs
"\x4"
"""

TEMPLATES = [
    "", "plain", "plain\n", "plain\n\n", "a\r\nb\rc\n", "  {{ 1 }}  ", "{{ 1 }}\n{{ 2 }}\n", "{# comment #}x", "a{#- c -#} b",
    "a\n{# c #}\nb", "a\n  {# c #}  \nb", "{{- 1 }}", "a {{- 1 -}} b", "a\n\n{{- 1 -}}\n\nb", "a {%- if 1 %} b {% endif -%} c",
    "{% if 1 %}\nx\n{% endif %}\ny", "  {% if 1 %}\n  x\n  {% endif %}\n  y", "  {%+ if 1 %}x{% endif %}", "{% if 1 +%}\nx{% endif %}",
    "{% if 1 -%}\n  x\n{%- endif %}", "x  {% if 1 %}y{% endif %}", "\t{% set x = 1 %}\n{{ x }}", "{{ 1 }}\n  {% if 1 %}a{% endif %}\n",
    "{% raw %}{{ x }}{% endraw %}", "{% raw -%}  {{ x }}  {%- endraw %}", "a\n  {% raw %}\n  b{% x %}\n  {% endraw %}\nc", "{%- raw %} {# x #} {% endraw -%}  z",
    "{% raw %}x", "{# x", "{{ x", "{% if", "{{ '}}' }}", "{{ {'a': {'b': 1}}['a']['b'] }}", "{{ {'a': 1}}}", "{% set x = {'a': '%}'} %}{{ x.a }}", "{{ '{{' }}{{ '{%' }}", "}} %} #} { % {", "{ { x } }", "{{{}}}",
    "{% if 0 %}a{% elif 1 %}b{% else %}c{% endif %}", "{% if 0 %}a{% elif 0 %}b{% else %}c{% endif %}", "{% if xs %}y{% endif %}{% if none_list %}n{% endif %}",
    "{% if 1 %}", "{% endif %}", "{% if 1 %}{% endfor %}", "{% else %}", "{% foo %}", "{% if %}x{% endif %}", "{% if 1 %}{% else %}{% elif 1 %}{% endif %}",
    "{% for x in xs %}{{ x }},{% endfor %}", "{% for x in [] %}a{% else %}empty{% endfor %}", "{% for x in xs if x > 1 %}{{ loop.index }}:{{ x }} {% endfor %}",
    "{% for x in xs if x > 5 %}a{% else %}none{% endfor %}", "{% for x in xs %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }} {% endfor %}",
    "{% for x in xs %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }} {% endfor %}", "{% for x in xs %}{{ loop.cycle('a', 'b') }}{% endfor %}", "{% for x in [1,1,2,2,1] %}{{ loop.changed(x) }} {% endfor %}",
    "{% for x in xs %}{% for y in xs %}{{ loop.index }}{{ loop.depth }}{% endfor %}{{ loop.index }};{% endfor %}", "{% for k, v in d.items() %}{{ k }}={{ v }} {% endfor %}", "{% for k in d %}{{ k }}{% endfor %}",
    "{% for k, v in d | dictsort %}{{ k }}={{ v }} {% endfor %}", "{% for (a, b), c in [((1, 2), 3)] %}{{ a }}{{ b }}{{ c }}{% endfor %}", "{% for a, b in [(1, 2, 3)] %}{% endfor %}", "{% for a, b in [1] %}{% endfor %}",
    "{% for c in 'héé' %}[{{ c }}]{% endfor %}", "{% for x in 5 %}{% endfor %}", "{% for x in none %}{% endfor %}", "{% for x in undefined_name %}a{% else %}b{% endfor %}",
    "{% for x in xs %}{% if x == 1 %}{% break %}{% endif %}{{ x }}{% endfor %}", "{% for x in xs %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}", "{% break %}", "{% if 1 %}{% continue %}{% endif %}",
    "{% for x in xs %}{% for y in xs %}{% if y == 1 %}{% break %}{% endif %}{{ x }}{{ y }} {% endfor %}{% endfor %}", "{% for x in xs %}{% break %}{% else %}e{% endfor %}",
    "{% set x = 1 %}{% for i in xs %}{% set x = i %}{{ x }}{% endfor %}{{ x }}", "{% for i in xs %}{% set y = i %}{% endfor %}{{ y }}", "{% for i in xs %}{{ y }}{% set y = i %}{% endfor %}", "{% for i in xs %}{{ n }}{% set n = i %}{{ n }} {% endfor %}{{ n }}",
    "{% if 1 %}{% set z = 5 %}{% endif %}{{ z }}", "{% if 0 %}{% set n = 5 %}{% endif %}{{ n }}", "{% for i in [1, 2] %}{% if i == 2 %}{% set q = 1 %}{% endif %}[{{ q }}]{% endfor %}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}", "{% set a, b = [1, 2, 3] %}", "{% set x = 1, 2 %}{{ x }}", "{% set (a, b) = (b, 1) %}{{ a }}|{{ b }}", "{% set x %}a{{ 1 }}b{% endset %}[{{ x }}]", "{% set x | upper %}a{{ 1 }}b{% endset %}[{{ x }}]",
    "{% set x | replace('a', 'b') | upper %}aa{% endset %}{{ x }}", "{% set x %}{% set y = 3 %}{% endset %}[{{ y }}]", "{% set ns = namespace(c=0) %}{% for x in xs %}{% set ns.c = ns.c + x %}{% endfor %}{{ ns.c }}",
    "{% set ns = namespace() %}{% set ns.a = 1 %}{{ ns.a }}{{ ns.b }}", "{% set d.x = 1 %}", "{% set undefined_name.x = 1 %}", "{% set ns = namespace(x=1) %}{% set ns.x = ns %}{{ ns.x.x.x is defined }}", "{% set true = 1 %}", "{% set 1 = 2 %}", "{% set x %}",
    "{% set x = xs %}{{ x is sameas xs }}", "{% set loop = 1 %}{{ loop }}", "{% for loop in xs %}{{ loop }}{% endfor %}",
    "{% macro m(a, b=2, c='x') %}[{{ a }}{{ b }}{{ c }}]{% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ m(1, c='y') }}{{ m(b=5, a=6) }}{{ m() }}", "{% macro m(a) %}{{ a is undefined }}{% endmacro %}{{ m() }}", "{% macro m() %}{% endmacro %}{{ m(1) }}", "{% macro m(a) %}{% endmacro %}{{ m(b=1) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, a=2) }}",
    "{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, x=3) }}", "{% macro m(a) %}{{ a }}{{ varargs }}{% endmacro %}{{ m(1, 2) }}", "{% macro m(a, b=a) %}{{ b }}{% endmacro %}[{{ m(4) }}]", "{% macro m(a=1, b) %}{% endmacro %}", "{% macro m(a, a) %}{{ a }}{% endmacro %}",
    "{% macro m() %}{{ caller() }}!{% endmacro %}{% call m() %}hi{% endcall %}", "{% macro m() %}{{ caller(1, 2) }}{% endmacro %}{% call(a, b) m() %}{{ a }}-{{ b }}{% endcall %}", "{% macro m() %}x{% endmacro %}{% call m() %}hi{% endcall %}", "{% macro m() %}{{ caller() }}{% endmacro %}{{ m() }}", "{% call 5 %}{% endcall %}",
    "{% macro f(n) %}{% if n > 0 %}{{ n }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }}", "{% macro m() %}{{ q }}{% endmacro %}{% set q = 5 %}{{ m() }}", "{% set q = 1 %}{% macro m() %}{% set q = 2 %}{{ q }}{% endmacro %}{{ m() }}{{ q }}", "{% for i in xs %}{% macro m() %}{{ i }}{% endmacro %}{{ m() }}{% endfor %}",
    "{% for i in xs %}{{ m(i) }}{% endfor %}{% macro m(i) %}{{ i }}{% endmacro %}", "{% macro m(x) %}{{ x }}{% endmacro %}{{ m }}", "{% macro m(x, y) %}{% endmacro %}{{ m.name }}{{ m.arguments }}{{ m.catch_kwargs }}{{ m.catch_varargs }}{{ m.caller }}", "{% macro m() %}{% for i in xs %}{{ i }}{% endfor %}{% endmacro %}{{ m() | length }}{{ m() ~ '!' }}{{ m() | upper }}",
    "{% macro m() %}{% break %}{% endmacro %}", "{% for x in xs %}{% macro m() %}{% break %}{% endmacro %}{% endfor %}", "{% macro outer() %}{% macro inner() %}in{% endmacro %}{{ inner() }}{% endmacro %}{{ outer() }}{{ inner is defined }}", "{% macro m(a, *b) %}{% endmacro %}",
    "{% macro m(a, b) %}{{ a }}{{ b }}{% endmacro %}{{ m(*[1, 2]) }}{{ m(**{'a': 3, 'b': 4}) }}{{ m(1, **{'b': 2}) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(**{'a': 1}, **{'b': 2}) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(a=1, 2) }}",
    "{% filter upper %}ab{{ 'c' }}{% endfilter %}", "{% filter replace('a', 'b') | upper %}aa{% endfilter %}", "{% filter upper %}{% set w = 1 %}{% endfilter %}[{{ w }}]", "{% filter nosuch %}x{% endfilter %}",
    "{% with a=1, b=2 %}{{ a }}{{ b }}{% endwith %}[{{ a }}]", "{% with %}{% set a = 1 %}{{ a }}{% endwith %}[{{ a }}]", "{% set a = 1 %}{% with a=2, b=a %}{{ a }}{{ b }}{% endwith %}{{ a }}",
    "{% generation %}gen{{ 1 }}{% endgeneration %}", "{% for m in xs %}{% generation %}{{ m }}{% set w = m %}{% endgeneration %}[{{ w }}]{% endfor %}", "{% for m in xs %}{% generation %}{% break %}{% endgeneration %}{% endfor %}",
    "{% print 1, 'a' %}", "{% include 'x' %}", "{% import 'x' as y %}", "{% do 1 %}", "{% extends 'x' %}",
    "{% if 0 %}{{ 1 | nosuch }}{% endif %}ok", "{% if 1 %}{{ 1 | nosuch }}{% endif %}", "{{ 1 | nosuch if 0 else 2 }}", "{% if 0 %}{% for x in xs %}{{ x | nosuch }}{% endfor %}{% endif %}ok", "{% if 'nosuch' is filter %}{{ 1 | nosuch }}{% else %}no{% endif %}", "{% if 1 is nosuch %}{% endif %}",
    "{% for x in nested recursive %}{% if x is sequence %}({{ loop(x) }}){% else %}{{ x }}@{{ loop.depth }}{% endif %}{% endfor %}", "{% for x in xs %}{{ loop(xs) }}{% endfor %}",
    "{% set it = xs | map('string') %}{{ it | list }}{{ it | list }}", "{% set it = xs | select %}{{ it | first }}{{ it | list }}", "{% for x in xs | reverse %}{{ x }}{{ loop.last }}{% endfor %}", "{% for g, l in users | groupby('age') %}{{ g }}:{{ l | length }} {% endfor %}", "{% for g in users | groupby('age') %}{{ g.grouper }}:{{ g.list | map(attribute='name') | join(',') }} {% endfor %}",
    "{% set ns = namespace(seen=0) %}{% for x in xs if ns.seen < 2 %}{% set ns.seen = ns.seen + 1 %}{{ x }}{% endfor %}", "{% for x in xs if loop.index %}{{ x }}{% endfor %}", "{% for x in xs if x > 1 %}{{ loop.length }}{{ loop.last }}{{ loop.revindex }}{{ loop.nextitem }} {% endfor %}",
    "{% set j = joiner(', ') %}{% for x in xs %}{{ j() }}{{ x }}{% endfor %}", "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.current }}{{ c.next() }}{{ c.reset() }}{{ c.next() }}", "{% set messages = [{'role': 'user'}] + xs %}{{ messages[1:] }}",
    "{% for x in xs -%}\n  {{ x }}\n{%- endfor %}", "{%- for x in xs %}\n{{ x }}\n{%- endfor -%}\n end", "{% for x in xs %}\n  {{ x }}\n{% endfor %}\n", "{%- set x = 1 -%}\n\n{{ x }}", "a\n\n\n{%- if 1 %}\n\n b{% endif %}\n", " {%- if 1 -%} x {%- endif -%} ", "\n{% if 1 %}\n\n{% endif %}\n", "{{ 'a\nb' }}\n\n", "{{ 1 }}{% if 1 %}\n{% endif %}\n{{ 2 }}", "a {# c #}\n b", "  {#- c #}\n b", "{% if 1 %} {% endif %}|", "\u00a0{% if 1 %}x{% endif %}", "x\u3000{{- 1 }}", "\x0b{%- if 1 %}y{% endif %}",
    "{% if a.b is defined %}x{% endif %}", "{% if a is defined and a.b %}x{% else %}y{% endif %}", "{{ a.b.c if a is defined else 'n' }}", "{{ raise_exception('x') if 0 }}", "{% if raise_exception('no') %}{% endif %}", "{{ (raise_exception) is callable }}", "{{ raise_exception(message='kw') }}", "{% set s = 5 %}{{ s }}", "{{ s }}{% set s = 5 %}{{ s }}", "{% set é = 1 %}{{ é }}", "{{ a-b }}", "{{ 5-3 }}{{ 5 -3 }}", "{{ n-1 }}", "{{ -n }}{{ +n }}{{ --n }}{{ - -n }}", "{{ xs|length-1 }}", "{{ (xs|length)-1 }}", "{{ not n in xs }}", "{{ n not in xs }}", "{{ 'a' ~ 'b' in 'ab' }}", "{{ n if n is odd else 'e' }}", "{{ 1 if true }}{{ 1 if false }}|", "{% if not x is defined %}u{% endif %}", "{% if (x is not defined) %}u{% endif %}", "{% for m in users[::-1] %}{{ (users | length - 1) - loop.index0 }}{% endfor %}", "{{ users[-1:][0].name }}", "{% if xs[0] == 3 and xs[-1] == 2 or x.y.z %}k{% endif %}", "{% for i in range(3) %}{{ i }}{% endfor %}", "{{ range(3) | list | length }}", "{% set x = {'a': 1} %}{{ x.a }}{{ x['a'] }}{{ x }}", "{{ {'a': 1, 'b': [1, 2]}.b[1] }}", "{% if 'tool_calls' in users[0] %}t{% else %}f{% endif %}", "{{ d | length }}{{ d.items() | length }}{{ d.items() | list }}", "{{ dict(d, z=1) }}", "{{ dict(d, **{'z': 1}) }}", "{% set x = dict(a=1) %}{{ x.update({'b': 2}) }}", "{% set _ = xs.append(4) %}", "{{ xs.extend }}",
]

SNIPPETS = ["{{ " + e + " }}" for e in EXPRESSIONS.replace("new\nline", "new\x00line").strip("\n").split("\n")]
SNIPPETS = [s.replace("\x00", "\n") for s in SNIPPETS] + TEMPLATES
