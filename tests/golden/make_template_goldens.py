#!/usr/bin/env python3
"""Renders chat templates and snippets with Jinja2 itself, as the oracle of tests/unit/text_template_test.cpp.

Writes, beside this file:
  template_snippets.json  [source, outcome, text] of hand-written snippets over one context (template_context.json);
                          outcome "succeeds": the text holds an address and is not compared
  template_random.json    the same for templates made at random from a grammar (fixed seed)
  template_families.json  our own templates in the style of each model family, on the conversations, in full
  template_shared.json    third-party templates on the conversations: only length and hash of each rendering
PyPI: Jinja2 3.1.6, Python 3.11.  Usage: make_template_goldens.py [folder of third-party templates]
"""
import json
import pathlib
import re
import sys

from template_common import fnv1a, render, save
from template_random import random_templates
from template_snippets import SNIPPETS

HERE = pathlib.Path(__file__).parent


def outcome(source, context):
    kind, text = render(source, context)
    return [source, kind, text if kind != "error" else ""]


def has_address(text):
    return re.search(r" at 0x|object at|<bound method|<built-in|<function|<class|generator object|dict_\w+iterator", text, re.IGNORECASE)


def reproducible(row):
    # Addresses differ from run to run, and integers have no bound there.
    return not has_address(row[2]) and not re.search(r"\d{18,}", row[2])


def main():
    context = json.loads((HERE / "template_context.json").read_text())
    conversations = json.loads((HERE / "template_conversations.json").read_text())

    rows = [outcome(s, context) for s in SNIPPETS]
    for row in rows:
        if has_address(row[2]):
            row[1:] = ["succeeds", ""]
    save(HERE / "template_snippets.json", rows)

    rows = []
    for source in random_templates(3000, seed=20250309):
        row = outcome(source, context)
        if reproducible(row) and len(row[2]) < 400:
            rows.append(row)
    save(HERE / "template_random.json", rows)

    families = {}
    for path in sorted((HERE / "templates").glob("*.jinja")):
        source = path.read_text()
        families[path.name] = {name: list(render(source, c)) for name, c in conversations.items()}
    save(HERE / "template_families.json", families)

    if len(sys.argv) > 1:
        shared = {}
        for path in sorted(pathlib.Path(sys.argv[1]).glob("*.jinja")):
            source = path.read_text()
            shared[path.name] = {}
            for name, c in conversations.items():
                kind, text = render(source, c)
                if kind == "error":
                    text = ""
                shared[path.name][name] = [kind, len(text.encode("utf-8")), fnv1a(text)]
        save(HERE / "template_shared.json", shared)

    for name in ("snippets", "random", "families", "shared"):
        path = HERE / f"template_{name}.json"
        print(path.name, path.stat().st_size)
    for name in ("snippets", "random"):
        kinds = [r[1] for r in json.loads((HERE / f"template_{name}.json").read_text())]
        print(name, {k: kinds.count(k) for k in set(kinds)})


if __name__ == "__main__":
    main()
