"""The header's comments, for doc comments in every language.

A comment belongs to what stands on its line, or else to what stands below it. read() gives texts by name: "KV_K8V4" of a constant, "orrery_stats"
of a struct, "orrery_stats.kv_bytes" of a field, "orrery_tokenize" of a function. Fields that one line declares share its comment, and so
do functions that one comment stands above and whose names differ in the last word (one function for a token, one for a text).
"""

import re
import textwrap

FIELD = re.compile(r"^\s+(?:const )?\w+[ *](?:[*]|const )*(?P<names>[\w, \[\]]+);\s*$")


def words(comment):
    """A comment's paragraphs, a line each: an indented item of a list is one of its own."""
    lines = comment.rstrip().split("\n")
    paragraphs, base, listed = [lines[0].strip()], None, False
    for line in lines[1:]:
        indent = len(line) - len(line.lstrip())
        base = indent if base is None and indent < 8 else base
        item = base is not None and base < indent < base + 4
        back = listed and indent == base
        if item or back or (base == 5 and len(paragraphs) == 1 and indent == 5):
            paragraphs.append("")
            listed = not back
        paragraphs[-1] += " " + line.strip()
    return "\n".join(" ".join(p.split()) for p in paragraphs)


def read(text):
    docs, above, struct, last = {}, None, None, None   # above: the comment that stands above the next line of code
    lines = text[text.index("#define ORRERY_H\n"):].split("\n")
    i = 0
    shared = {}   # a function's name without its last word: the comment above it
    statement = ""
    while i < len(lines):
        line = lines[i]
        i += 1
        # A comment that goes on in the next lines is joined with them.
        while line.count("/*") > line.count("*/") and i < len(lines):
            line += "\n" + lines[i]
            i += 1
        comments = [words(c) for c in re.findall(r"/\*(.*?)\*/", line, flags=re.S)]
        code = re.sub(r"/\*.*?\*/", "", line, flags=re.S).rstrip()
        if not code.strip():
            if comments and not comments[0].startswith("----"):
                above = comments[0]
            elif not line.strip():
                above = None
                shared = {}
            continue
        here = comments[0] if comments else None
        constant = re.match(r"#define\s+ORRERY_(\w+)\s+\S", code)
        if constant:
            docs[constant[1]] = here or above or ""
            above = None
            continue
        if code.startswith("#"):
            above = None
            continue
        opened = re.match(r"(?:typedef )?struct (\w+) \{", code)
        if opened:
            struct = opened[1]
            docs[struct] = here or above or ""
            above = None
            continue
        if struct:
            if code.startswith("}"):
                struct = None
            field = FIELD.match(code)
            if field:
                for name in field["names"].split(","):
                    docs["%s.%s" % (struct, name.strip().partition("[")[0])] = here or above or ""
            above = None
            continue
        statement += " " + code.strip()
        if not code.endswith(";"):
            continue
        function = re.search(r"ORRERY_API .*?(orrery_\w+)\(", statement)
        if function:
            name = function[1]
            stem = name.rpartition("_")[0]
            if above:
                shared = {stem: above}
            docs[name] = " ".join(filter(None, [above or shared.get(stem), here]))
        statement, above = "", None
    return docs


def wrap(text, prefix, width=120):
    """The text in lines that begin with `prefix`; none where there is no text."""
    lines = []
    for paragraph in text.split("\n") if text else []:
        lines += textwrap.wrap(paragraph, width - len(prefix.expandtabs(4)), break_long_words=False, break_on_hyphens=False)
    return [(prefix + line).rstrip() for line in lines]


def quoted(text, indent, width=120):
    """The text as a docstring."""
    lines = wrap(text.replace("\\", "\\\\").replace('"""', "\'\'\'"), indent, width)
    if not lines:
        return []
    lines[0] = indent + '"""' + lines[0][len(indent):]
    if len(lines) > 1:
        return lines + [indent + '"""']
    return [lines[0] + (" " if lines[0].endswith('"') else "") + '"""']


def summary(text, indent, width=120):
    """The text as C#'s XML comment."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return wrap("<summary>%s</summary>" % text, indent + "/// ", width) if text else []


def block(text, indent, width=120):
    """The text as a comment of JavaScript and TypeScript."""
    lines = wrap(text.replace("*/", "* /"), indent + " * ", width)
    if len(lines) == 1 and len(lines[0]) < width - 6:
        return [indent + "/** " + lines[0].strip()[2:] + " */"]
    return [indent + "/**"] + lines + [indent + " */"] if lines else []
