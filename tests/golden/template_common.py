"""The Jinja environment that publishers' chat templates are written for, and how goldens are stored.

PyPI: Jinja2 3.1.6.  The environment is set up as the transformers library sets it up for chat templates.
"""
import copy
import datetime
import json

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

NOW = datetime.datetime(2025, 3, 9, 14, 5, 7)  # what strftime_now sees; the C++ test sets the same


class TemplateRaised(jinja2.exceptions.TemplateError):
    pass


class Generation(Extension):
    tags = {"generation"}

    def parse(self, parser):
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(lineno)

    @jinja2.pass_eval_context
    def _body(self, context, caller):
        return caller()


def make_environment():
    def raise_exception(message):
        raise TemplateRaised(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = NOW.strftime
    return env


ENV = make_environment()


def render(source, context):
    """("ok", text), ("raised", message) or ("error", kind)."""
    try:
        return "ok", ENV.from_string(source).render(**copy.deepcopy(context))  # indent adds to a list in place
    except TemplateRaised as e:
        return "raised", str(e)
    except RecursionError:
        return "error", "RecursionError"
    except Exception as e:
        return "error", type(e).__name__


def fnv1a(text):
    h = 0xCBF29CE484222325
    for b in text.encode("utf-8"):
        h = (h ^ b) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return f"{h:016x}"


def save(path, value):
    with open(path, "w", encoding="utf-8") as f:
        if isinstance(value, list):
            f.write("[\n" + ",\n".join(json.dumps(v, ensure_ascii=False) for v in value) + "\n]\n")
        else:
            f.write("{\n" + ",\n".join(json.dumps(k) + ": " + json.dumps(v, ensure_ascii=False) for k, v in value.items()) + "\n}\n")
