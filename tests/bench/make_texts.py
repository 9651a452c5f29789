#!/usr/bin/env python3
"""Makes an evaluation set for real models out of text that every Debian and Python has: make_texts.py FOLDER [options].

    FOLDER/tune/TASK-LENGTH.jsonl      half of the texts, to choose settings by
    FOLDER/report/TASK-LENGTH.jsonl    the other half, for results that are published
    FOLDER/manifest.json               Python's version, the input files with their SHA-256, the number of texts

`orrery eval --tasks FOLDER/report/needles-1024.jsonl,...` reads the files. The inputs are the topics of Python's documentation
(pydoc_data), the sources of its standard library, and the manual pages of coreutils. A SHA-256 of a text's task, length and number says
which half it belongs to. One Python version and the same manual pages give the same files. Nothing else is read, nothing is fetched.

Tasks (each question of a text is asked alone, except in dialogues):
    needles     access codes hidden in prose; the answer contains the code
    functions   the docstring of a function in code, to quote whole
    lookup      the function that a docstring belongs to; the value of a parameter's default
    lists       the first functions of the code, in order
    summaries   a summary: the distributions are compared, no answer is right
    records     every record of an inventory as JSON, in order: the answer needs the whole text
    dialogues   four turns: what the text is about, two codes, and which code came first
Tasks with "-after" have the same texts, and the policy settles before it knows the question.

A text that spells a control token is left out for every model: `orrery eval` refuses it. The others keep their numbers.
"""
import argparse
import ast
import glob
import gzip
import hashlib
import json
import os
import platform
import pydoc_data.topics
import random
import re
import sysconfig

TASKS = ["needles", "functions", "lookup", "lists", "summaries", "dialogues", "records"]
AFTER = ["needles", "functions", "lookup", "dialogues"]
SKIPPED = {"test", "tests", "idlelib", "idle_test", "lib2to3", "site-packages", "dist-packages", "__pycache__", "turtledemo", "ensurepip",
           "pydoc_data", "encodings", "lib-dynload", "distutils", "tkinter"}
MANUALS = ["cp", "cut", "date", "dd", "df", "du", "ls", "mv", "od", "pr", "rm", "shred", "sort", "split", "stat", "tail", "tr", "uniq"]
# The control tokens of ChatML and of Qwen2.5, and those of SmolLM2 and StarCoder2.
CONTROL = re.compile(r"<\|[a-z_]+\|>|<(?:repo_?name|file_sep|filename|gh_stars|issue_(?:start|comment|closed)|"
                     r"jupyter_(?:start|text|code|output|script)|empty_output)>")
THINGS = ["amber", "anvil", "beacon", "canyon", "cedar", "comet", "copper", "ember", "falcon", "garnet", "harbor", "indigo", "juniper",
          "lantern", "maple", "meadow", "nectar", "onyx", "orchid", "pepper", "quartz", "raven", "saffron", "tundra", "violet", "walnut"]


def n_tokens(text):
    """About as many as tokens of a vocabulary of 50 to 150 thousand: long words are several, digits one each."""
    n = 0
    for word in re.findall(r"[A-Za-z]+|[0-9]|\s+|[^\sA-Za-z0-9]+", text):
        if word[0].isalpha():
            n += 1 + (len(word) > 7) * (len(word) - 3) // 6
        elif word.isspace():
            n += 1 if "\n" in word or len(word) > 1 else 0
        else:
            n += (len(word) + 1) // 2
    return n


class Inputs:
    """The files that texts are made from, and their hashes."""

    def __init__(self):
        self.hashes = {}
        self.prose = [text for _, text in sorted(pydoc_data.topics.topics.items())]
        self.note("pydoc_data/topics", "\n".join(self.prose))
        for name in MANUALS:
            path = "/usr/share/man/man1/%s.1.gz" % name
            if not os.path.exists(path):
                continue
            with gzip.open(path, "rt", encoding="utf-8") as file:
                page = file.read()
            self.note("man/" + name, page)
            self.prose.append(plain_manual(page))
        self.prose = [p for p in paragraphs_of(self.prose)]
        self.functions = []   # (module, name, source, docstring, node), in the order of files and lines
        library = sysconfig.get_path("stdlib")
        for path in sorted(glob.glob(os.path.join(library, "**", "*.py"), recursive=True)):
            name = os.path.relpath(path, library)
            if SKIPPED & set(name.split(os.sep)) or os.path.basename(name).startswith("_"):
                continue
            with open(path, encoding="utf-8", errors="replace") as file:
                source = file.read()
            found = list(functions_of(name, source))
            if found:
                self.note("stdlib/" + name, source)
                self.functions.append(found)

    def note(self, name, text):
        self.hashes[name] = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


def plain_manual(page):
    """A manual page's words without its requests and fonts."""
    lines = []
    for line in page.splitlines():
        if line.startswith((".\\\"", ".TH", ".hy", ".ad", ".nh")):
            continue
        line = re.sub(r"^\.SH ?", "\n", line)
        line = re.sub(r"^\.(PP|TP|IP|LP|P|br|nf|fi|RS|RE)\b.*", "\n", line)
        line = re.sub(r"^\.[A-Z]{1,2} ", "", line)
        line = re.sub(r"\\f[A-Z]|\\[,/&]|\\\([a-z]{2}", "", line).replace("\\-", "-").replace("\\e", "\\")
        if not line.startswith("."):
            lines.append(line)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines))


def paragraphs_of(texts):
    """Each text as its paragraphs."""
    return [[p for p in re.split(r"\n\s*\n", text) if len(p.strip()) > 1] for text in texts]


def functions_of(module, source):
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return
    lines = source.splitlines()
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef) or node.name.startswith("_") or len(node.name) < 4:
            continue
        text = "\n".join(lines[node.lineno - 1:node.end_lineno])
        if 30 <= n_tokens(text) <= 400:
            yield module, node.name, text, ast.get_docstring(node) or "", node


def prose(inputs, rng, length):
    """Paragraphs of neighbouring texts, about `length` tokens."""
    at = rng.randrange(len(inputs.prose))
    skip = rng.randrange(max(1, len(inputs.prose[at]) - 3))
    found, used = [], 0
    for i in range(at, at + len(inputs.prose)):
        for paragraph in inputs.prose[i % len(inputs.prose)][skip:]:
            if used + n_tokens(paragraph) + 1 > length:
                if used > .9 * length:
                    return found
                continue
            found.append(paragraph)
            used += n_tokens(paragraph) + 1
        skip = 0
    return found


def code(inputs, rng, length):
    """Whole functions, about `length` tokens: those of a module from a random one on, then the next module's."""
    at = rng.randrange(len(inputs.functions))
    found, names, used = [], set(), 0
    for i in range(at, at + len(inputs.functions)):
        module = inputs.functions[i % len(inputs.functions)]
        for function in module:
            if function[1] in names or used + n_tokens(function[2]) + 2 > length:
                continue
            found.append(function)
            names.add(function[1])
            used += n_tokens(function[2]) + 2
        if used > .9 * length:
            break
    return found


def with_needles(inputs, rng, length, n):
    """Prose with n sentences of codes; their things and codes, in the order of the text, with depths."""
    things = rng.sample(THINGS, n)
    codes = ["%06d" % rng.randrange(100000, 1000000) for _ in things]
    lines = ["The access code of the %s box is %s." % pair for pair in zip(things, codes)]
    body = prose(inputs, rng, length - sum(map(n_tokens, lines)))
    places = sorted(rng.randrange(len(body) + 1) for _ in lines)
    for line, place in reversed(list(zip(lines, places))):
        body.insert(place, line)
    text = "\n\n".join(body)
    return text, [(t, c, text.index("of the %s box is" % t) / len(text)) for t, c in zip(things, codes)]


def needles(inputs, rng, length):
    text, found = with_needles(inputs, rng, length, 6)
    return "contains", text, [{"question": "What is the access code of the %s box? Answer with the sentence of the text." % thing,
                               "answers": [code], "depth": depth} for thing, code, depth in rng.sample(found, 3)]


def docstring_line(docstring):
    """The first paragraph of a docstring, as one line."""
    return " ".join(docstring.split("\n\n")[0].split())


def functions(inputs, rng, length):
    for _ in range(100):
        found = code(inputs, rng, length)
        text = "\n\n\n".join(f[2] for f in found)
        good = [f for f in found if 40 <= len(docstring_line(f[3])) <= 200 and "\\" not in f[3]]
        if len(good) >= 2:
            return "quote", text, [{"question": "Quote the first sentence of the docstring of the function %s, word for word." % f[1],
                                    "answers": [first_sentence(docstring_line(f[3]))], "depth": text.index("def %s(" % f[1]) / len(text)}
                                   for f in rng.sample(good, 2)]
    raise SystemExit("no docstrings to quote")


def first_sentence(line):
    end = re.search(r"[.!?](?=\s|$)", line)
    return line[:end.start()] if end else line


def lookup(inputs, rng, length):
    for _ in range(100):
        found = code(inputs, rng, length)
        text = "\n\n\n".join(f[2] for f in found)
        described = [f for f in found if 25 <= len(docstring_line(f[3])) <= 120]
        defaults = []
        for f in found:
            arguments = f[4].args
            for argument, value in zip(arguments.args[len(arguments.args) - len(arguments.defaults):], arguments.defaults):
                if isinstance(value, ast.Constant) and len(str(value.value)) > 1 and not isinstance(value.value, bool):
                    defaults.append((f, argument.arg, str(value.value)))
        if not described or not defaults:
            continue
        f = rng.choice(described)
        g, parameter, value = rng.choice(defaults)
        return "contains", text, [
            {"question": "Which function has the docstring \"%s\"? Answer with its name." % docstring_line(f[3]),
             "answers": [f[1]], "depth": text.index("def %s(" % f[1]) / len(text)},
            {"question": "What is the default value of the parameter %s of the function %s?" % (parameter, g[1]),
             "answers": [value], "depth": text.index("def %s(" % g[1]) / len(text)}]
    raise SystemExit("nothing to look up")


def lists(inputs, rng, length):
    found = code(inputs, rng, length)
    while len(found) < 6:
        found = code(inputs, rng, length)
    text = "\n\n\n".join(f[2] for f in found)
    return "order", text, [{"question": "List the names of the first five functions of this code, in order, one on each line.",
                            "answers": [f[1] for f in found[:5]], "depth": 0}]


def summaries(inputs, rng, length):
    text = "\n\n".join(prose(inputs, rng, length))
    return "none", text, [{"question": "Summarize the text in three sentences.", "answers": None}]


def records(inputs, rng, length):
    """Sentences of three forms, each with the parts of one record; the answer names each record's number."""
    lines, answers, n = [], [], 0
    while n < length:
        thing, number, place, count = rng.choice(THINGS), str(rng.randint(1000, 9999)), rng.choice(THINGS), rng.randint(2, 99)
        if number in answers:
            continue
        line = rng.choice(["Shelf %(place)s holds %(count)d units of %(thing)s, item number %(number)s.",
                           "Item %(number)s is %(thing)s; there are %(count)d of it on shelf %(place)s.",
                           "There are %(count)d pieces of %(thing)s (number %(number)s) on the %(place)s shelf."]) % {
            "thing": thing, "number": number, "place": place, "count": count}
        lines.append(line)
        answers.append(number)
        n += n_tokens(line) + 1
    return "order", "\n".join(lines), [{"question": "List every record as a JSON object with the keys number, item, shelf and count, one on "
                                        "each line, in order.", "answers": answers[:8], "depth": 0}]


def dialogues(inputs, rng, length):
    text, found = with_needles(inputs, rng, length, 4)
    (a, code_a, depth_a), (b, code_b, depth_b) = rng.sample(found, 2)
    ask = "What is the access code of the %s box?"
    return "contains", text, [{"question": "What is the text about? Answer in one sentence.", "answers": None},
                              {"question": ask % a, "answers": [code_a], "depth": depth_a},
                              {"question": "Good. " + ask % b, "answers": [code_b], "depth": depth_b},
                              {"question": "Repeat the first of the two codes that I asked for.", "answers": [code_a], "depth": depth_a}]


def sample(inputs, task, length, number):
    name = "%s/%d/%d" % (task, length, number)
    metric, text, questions = globals()[task](inputs, random.Random(name), length)
    return {"id": name, "task": task, "length": length, "metric": metric, "system": "You answer questions about the text.",
            "turns": "multi" if task == "dialogues" else "single", "context": text, "questions": questions}


def spells_control_token(made):
    return any(CONTROL.search(text) for text in [made["context"]] + [entry["question"] for entry in made["questions"]])


def half_of(name):
    return "report" if hashlib.sha256(name.encode()).digest()[0] & 1 else "tune"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder")
    parser.add_argument("--lengths", default="1024,2048,4096", help="tokens of a text, about (default 1024,2048,4096)")
    parser.add_argument("--texts", type=int, default=80, help="texts of each task and length, both halves together (default 80)")
    args = parser.parse_args()
    inputs = Inputs()
    counts = {}
    for length in map(int, args.lengths.split(",")):
        for task in TASKS:
            for after in [False, True][:1 + (task in AFTER)]:
                files = {"tune": [], "report": []}
                for number in range(args.texts):
                    made = sample(inputs, task, length, number)
                    if spells_control_token(made):
                        continue
                    half = half_of(made["id"])
                    if after:
                        made["id"], made["task"], made["question_after"] = "after-" + made["id"], task + "-after", True
                    files[half].append(json.dumps(made))
                for half, lines in files.items():
                    os.makedirs(os.path.join(args.folder, half), exist_ok=True)
                    name = "%s/%s-%d.jsonl" % (half, task + "-after" * after, length)
                    with open(os.path.join(args.folder, name), "w", encoding="utf-8") as file:
                        file.write("\n".join(lines) + "\n")
                    counts[name] = len(lines)
    manifest = {"python": platform.python_version(), "texts": counts, "inputs": inputs.hashes}
    with open(os.path.join(args.folder, "manifest.json"), "w", encoding="utf-8") as file:
        json.dump(manifest, file, indent=1)
        file.write("\n")
    print("%d files, %d texts, made with Python %s" % (len(counts), sum(counts.values()), manifest["python"]))


if __name__ == "__main__":
    main()
