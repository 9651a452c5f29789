#!/usr/bin/env python3
"""Writes what every binding mirrors of the headers in include/: `bindings/generate.py`, or `bindings/generate.py --check`.

emit/header.py describes the header, emit/LANGUAGE.py writes the files of a language. --check writes nothing: it fails and
names the files that differ from what the header now gives, the functions that a language's hand-written part never calls,
constants without a name, and functions that were stable (stable.txt) and are declared otherwise. Standard library only.
"""

import os
import re
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
sys.dont_write_bytecode = True

from emit import c, csharp, go, header as header_file, node, python, rust  # noqa: E402

FILES = {  # path below bindings/: what writes it
    "c/layouts.h": c.layouts,
    "c/layout_check.c": c.layout_check,
    "python/orrery/_abi.py": python.abi,
    "node/functions.h": node.functions,
    "node/abi.js": node.constants,
    "node/abi.d.ts": node.types,
    "csharp/Native.cs": csharp.native,
    "go/types.go": go.types,
    "rust/orrery-sys/src/lib.rs": rust.sys,
    "rust/orrery/src/types.rs": rust.types,
}
NO_CONSTANTS = ["c/layouts.h", "node/functions.h"]  # files that a new constant need not change
NO_FIELDS = ["node/abi.js", "node/functions.h"]  # files that a new field need not change
NO_DOCS = ["c/layouts.h", "c/layout_check.c", "node/functions.h", "node/abi.js"]  # files without the header's comments
HAND_WRITTEN = {  # language: the files that must call every function
    "csharp": ["csharp/Interop.cs", "csharp/Orrery.cs", "csharp/Session.cs", "csharp/Tools.cs"],
    "go": ["go/orrery.go", "go/session.go", "go/tools.go", "go/native.go"],
    "c": ["c/conformance.c", "c/conformance_steps.h"],
    "python": ["python/orrery/__init__.py", "python/orrery/_native.py"],
    "node": ["node/index.js"],
    "rust": ["rust/orrery/src/lib.rs", "rust/orrery/src/raw.rs", "rust/orrery/src/session.rs", "rust/orrery/src/functions.rs"],
}

# Functions for one thread with several generations. These languages pull each generation on a thread, and the threads share steps.
ON_THREADS = {"orrery_next_any": ["csharp", "go", "node", "rust"]}
FREED_BY_GENERATED = ["csharp"]  # whose generated handles call the functions that free


def to_call(header):
    """Functions that each language must offer: all but those that generated code calls, which fill structs and name constants."""
    generated = {s.init for s in header.structs.values()} | set(header.names().values())
    return [f for f in header.functions if f not in generated]


def pulled_on_threads(function, language):
    return language in ON_THREADS.get(function, [])


def missing_functions(header, folder=HERE):
    missing = []
    for language, files in HAND_WRITTEN.items():
        text = ""
        for name in files:
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                text += file.read()
        missing += ["%s: nothing calls %s" % (language, f) for f in to_call(header)
                    if not pulled_on_threads(f, language) and not re.search(r"\b%s\b" % f, text) and not (language in FREED_BY_GENERATED and f.endswith("_free"))]
    return missing


def missing_names(header, folder=HERE):
    """Constants of a kind that has a name function, of which the library does not know the name."""
    with open(os.path.join(folder, "..", "capi", "names.cpp"), encoding="utf-8") as file:
        text = file.read()
    return ["capi/names.cpp: nothing names ORRERY_" + name for name in header.named()
            if not re.search(r"\bORRERY_NAME\(ORRERY_%s\)" % name, text)]


def stable_functions(header, check, path=os.path.join(HERE, "stable.txt")):
    """stable.txt has the declarations that do not change any more. A function whose ORRERY_UNSTABLE goes joins them; what has joined
    can only be taken out by hand, with a new ORRERY_ABI_VERSION."""
    with open(path, encoding="utf-8") as file:
        lines = file.read().splitlines()
    known = [line for line in lines if line and not line.startswith("#")]
    complaints = ["stable.txt: the header does not declare '%s' any more" % d for d in known if d not in header.stable]
    added = [d for d in header.stable if d not in known]
    if check:
        return complaints + ["stable.txt lacks '%s': run bindings/generate.py" % d for d in added]
    if added:
        with open(path, "w", encoding="utf-8") as file:
            file.write("\n".join(lines + added) + "\n")
        print("wrote stable.txt")
    return complaints


def main(arguments):
    header = header_file.read(*(os.path.join(HERE, "..", "include", name) for name in ("orrery.h", "orrery_lab.h")))
    check = arguments == ["--check"]
    if arguments and not check:
        print("usage: generate.py [--check]", file=sys.stderr)
        return 2
    complaints = []
    for name, emit in FILES.items():
        path = os.path.join(HERE, name)
        text = emit(header)
        old = None
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                old = file.read()
        if old == text:
            continue
        if check:
            complaints.append("%s is not what the header gives: run bindings/generate.py" % name)
        else:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            print("wrote", name)
    if check:
        complaints += missing_functions(header) + missing_names(header)
    complaints += stable_functions(header, check)
    for complaint in complaints:
        print(complaint)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
