"""Templates made at random from a grammar: mostly meaningful ones, some that must fail."""
import random

ATOMS = ["n", "neg", "f", "zero", "yes", "no", "nothing", "s", "empty", "uni", "lines", "xs", "words", "none_list", "mixed",
         "nested", "d", "users", "deep", "html", "missing", "0", "1", "2", "-1", "3.5", "true", "none", "''", "'ab'", "'Äb c'",
         "[]", "[1, 'x']", "{}", "{'k': 'v', 'b': 2}", "()", "(1, 'y')", "range(4)", "users[0]", "deep.k", "tool.function"]
TEXT = ["s", "empty", "uni", "lines", "spaced", "'abc'", "'a,b,c'", "'Hello'", "users[0].name", "html", "'ß ǆ'"]
NUMBERS = ["n", "neg", "f", "zero", "1", "2", "3", "10", "2.5", "-4", "xs[0]", "(s | length)"]
LISTS = ["xs", "words", "none_list", "nested", "range(5)", "[1, 2, 2]", "users", "d.keys()", "d.items()", "'abc'", "(3, 4)", "mixed", "s.split()"]
NAMES = ["name", "age", "tags", "k", "b", "items", "zz", "upper", "role", "function"]
TEXT_METHODS = ["upper()", "lower()", "strip()", "lstrip('H a')", "rstrip('d\\n')", "split()", "split(',')", "split(' ', 1)", "rsplit(' ', 1)",
                "title()", "capitalize()", "replace('l', 'é')", "replace('a', '', 1)", "startswith('H')", "endswith(('d', 'c'))", "find('l')",
                "rfind('é')", "count('e')", "splitlines()", "isdigit()", "isalpha()", "islower()", "partition(',')", "zfill(6)", "center(9)",
                "join(['x', 'y'])", "swapcase()", "format(1)", "index('e')", "isupper()", "removeprefix('He')"]
FILTERS = ["upper", "lower", "trim", "length", "string", "list", "first", "last", "join('-')", "reverse", "sort", "unique", "sum", "max", "min",
           "int", "float", "abs", "round", "round(1)", "tojson", "tojson(indent=1)", "default('D')", "default('D', true)", "title", "capitalize",
           "replace('a', 'o')", "map('string') | list", "map('upper') | join", "select | list", "reject('none') | list", "batch(2) | list",
           "slice(2) | list", "items | list", "dictsort", "e", "indent(1)", "wordcount", "truncate(7)", "select('string') | list",
           "map(attribute='name') | list", "selectattr('age') | list", "sort(reverse=true)", "join(', ') | upper", "groupby(0) | list | length",
           "string | length", "count", "center(12)", "safe", "rejectattr('tags') | list | length"]
TESTS = ["defined", "undefined", "none", "string", "number", "integer", "float", "boolean", "true", "false", "mapping", "iterable", "sequence",
         "even", "odd", "divisibleby 2", "divisibleby(3)", "eq 1", "ne 'a'", "gt 1", "lt 2.5", "in [1, 'a']", "sameas none", "callable", "upper", "lower",
         "not none", "not string", "not defined"]


class Maker:
    def __init__(self, rng):
        self.r = rng
        self.names = []

    def atom(self):
        if self.names and self.r.random() < 0.3:
            return self.r.choice(self.names)
        return self.r.choice(ATOMS)

    def expression(self, depth):
        r = self.r
        if depth <= 0:
            return self.atom()
        sub = lambda: self.expression(depth - 1)
        kind = r.randrange(22)
        if kind < 2:
            return self.atom()
        if kind < 4:
            return f"{r.choice(NUMBERS)} {r.choice(['+', '-', '*', '/', '//', '%', '+', '-'])} {r.choice(NUMBERS)}"
        if kind == 4:
            return f"({sub()}) {r.choice(['+', '-', '*', '%', '~', '~', '+', '/', '//'])} ({sub()})"
        if kind < 7:
            return f"{r.choice(TEXT)}.{r.choice(TEXT_METHODS)}"
        if kind < 10:
            return f"{r.choice(TEXT + LISTS + NUMBERS)} | {r.choice(FILTERS)}"
        if kind == 10:
            return f"({sub()}) | {r.choice(FILTERS)}"
        if kind == 11:
            return f"{sub()} is {r.choice(TESTS)}" if r.random() < 0.3 else f"({sub()}) is {r.choice(TESTS)}"
        if kind == 12:
            return f"{sub()} {r.choice(['and', 'or'])} {sub()}"
        if kind == 13:
            return f"not {sub()}"
        if kind == 14:
            return f"({sub()}) {r.choice(['==', '!=', '<', '<=', '>', '>='])} ({sub()})"
        if kind == 15:
            return f"({sub()}) {r.choice(['in', 'not in'])} {r.choice(LISTS + TEXT + ['d', 'missing'])}"
        if kind == 16:
            return f"{sub()} if {sub()} else {sub()}" if r.random() < 0.8 else f"{sub()} if {sub()}"
        if kind == 17:
            bound = lambda: r.choice(["", "", "0", "1", "2", "-1", "-2", "9"])
            text = f"{r.choice(LISTS + TEXT)}[{bound()}:{bound()}"
            return text + (f":{r.choice(['1', '2', '-1', '-2', ''])}]" if r.random() < 0.5 else "]")
        if kind == 18:
            return f"{self.atom()}[{r.choice(['0', '-1', '1', repr(r.choice(NAMES)), '5'])}]"
        if kind == 19:
            return f"{self.atom()}.{r.choice(NAMES)}"
        if kind == 20:
            return "[" + ", ".join(sub() for _ in range(r.randrange(3))) + "]"
        return "{" + ", ".join(f"{r.choice(TEXT + ['1', 'n', 'none'])}: {sub()}" for _ in range(r.randrange(3))) + "}"

    def tag(self, text, output=False):
        left, right = self.r.choices(["", "-", "+"], [6, 3, 1])[0], self.r.choices(["", "-", "+"], [6, 3, 1])[0]
        if output:
            return "{{" + left.replace("+", "") + " " + text + " " + right.replace("+", "") + "}}"
        return "{%" + left + " " + text + " " + right + "%}"

    def space(self):
        return self.r.choice(["", "", "", " ", "\n", "  \n", "\n  ", "x", " y ", "\n\n", "z\n"])

    def body(self, depth):
        return "".join(self.space() + self.statement(depth) for _ in range(self.r.randrange(1, 3))) + self.space()

    def statement(self, depth):
        r = self.r
        kind = r.randrange(14) if depth > 0 else r.randrange(4)
        if kind < 4:
            return self.tag(self.expression(2), output=True)
        if kind < 6:
            text = self.tag(f"if {self.expression(1)}") + self.body(depth - 1)
            if r.random() < 0.3:
                text += self.tag(f"elif {self.expression(1)}") + self.body(depth - 1)
            if r.random() < 0.5:
                text += self.tag("else") + self.body(depth - 1)
            return text + self.tag("endif")
        if kind < 9:
            name = r.choice(["i", "j", "x"])
            over = r.choice(LISTS) if r.random() < 0.9 else self.expression(1)
            head = f"for {name} in {over}"
            known = list(self.names)
            self.names = known + [name]
            if r.random() < 0.25:
                head += f" if {self.expression(1)}"
            self.names += ["loop.index", "loop.first", "loop.last", "loop.revindex0", "loop.previtem", "loop.length"]
            inner = self.body(depth - 1)
            if r.random() < 0.2:
                inner += self.tag(f"if {self.expression(1)}") + self.tag(r.choice(["break", "continue"])) + self.tag("endif")
            self.names = known
            text = self.tag(head) + inner
            if r.random() < 0.2:
                text += self.tag("else") + self.space() + "E"
            return text + self.tag("endfor")
        if kind < 11:
            name = r.choice(["a", "b", "n", "s"])
            text = self.tag(f"set {name} = {self.expression(2)}")
            self.names.append(name)
            return text
        if kind == 11:
            name = r.choice(["m1", "m2"])
            known = list(self.names)
            self.names = known + ["p", "q"]
            text = self.tag(f"macro {name}(p, q={self.r.choice(ATOMS)})") + self.body(depth - 1) + self.tag("endmacro")
            self.names = known + [f"{name}({self.r.choice(ATOMS)})", f"{name}(q={self.r.choice(ATOMS)})"]
            return text
        if kind == 12:
            return self.tag(f"set ns = namespace(c={self.r.choice(NUMBERS)})") + self.tag("for i in xs") + self.tag(
                f"set ns.c = ns.c + {self.r.choice(NUMBERS + ['i'])}") + self.tag("endfor") + self.tag("ns.c", output=True)
        return self.tag("set blk") + self.body(depth - 1) + self.tag("endset") + self.tag("blk | " + r.choice(["upper", "length", "trim"]), output=True)


def random_templates(count, seed):
    rng = random.Random(seed)
    out = []
    for i in range(count):
        maker = Maker(rng)
        if i % 2 == 0:
            out.append("{{ " + maker.expression(3) + " }}")
        else:
            out.append(maker.body(2))
    return out
