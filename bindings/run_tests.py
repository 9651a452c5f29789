#!/usr/bin/env python3
"""Tests every binding: run_tests.py BUILD [LANGUAGE...], where BUILD holds capi/liborrery.so.
run_tests.py BUILD --write-expected writes conformance/expected.txt as C's runner prints it: read the difference.

Generated files are what the header gives, and no function of the header is missing; then, for each language whose toolchain
is there: its conformance runner prints conformance/expected.txt, its own tests pass, its chat sample answers, and so does its program
in the root's README. What needs a toolchain that is not there is skipped, by name. The last line counts. Nothing is written beside the
sources.
"""

import os
import re
import shutil
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
BUILD = os.path.abspath(sys.argv[1])
OUT = os.path.join(BUILD, "bindings")
CAPI = os.path.join(BUILD, "capi")
WORK = os.path.join(OUT, "work")  # the folder that runners run in
SCRIPT = os.path.join(HERE, "conformance", "script.txt")
EXPECTED = os.path.join(HERE, "conformance", "expected.txt")
MODEL = os.path.join(WORK, "model.gguf")
QUESTIONS = "Nobody in the mill noticed the orange owl. Bruno lives in Salem. Orla is a printer from Tunis. Where does Bruno live?\n"
sys.dont_write_bytecode = True
sys.path.insert(0, HERE)

import build_packages  # noqa: E402


class Failure(Exception):
    pass


class Skip(Exception):
    pass


def tool(*names):
    """The first of these programs that there is; else the test is skipped."""
    for name in names:
        if shutil.which(name):
            return name
    raise Skip("no " + " or ".join(names))


def run(command, cwd=WORK, stdin="", timeout=240, **environment):
    """Output of a command that must succeed."""
    env = dict({**os.environ, "LD_LIBRARY_PATH": CAPI, "PYTHONDONTWRITEBYTECODE": "1"}, **environment)
    try:
        done = subprocess.run(command, cwd=cwd, env=env, input=stdin.encode(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              timeout=timeout)
    except subprocess.TimeoutExpired:
        raise Failure("%s: longer than %d s" % (command[0], timeout))
    if done.returncode != 0:
        raise Failure("%s: exit %d\n%s%s" % (" ".join(command), done.returncode, done.stdout.decode(errors="replace")[-3000:],
                                             done.stderr.decode(errors="replace")[-5000:]))
    return done.stdout.decode(errors="replace")


def folder(name):
    path = os.path.join(OUT, name)
    os.makedirs(path, exist_ok=True)
    return path


def conformance(command, different=None, **environment):
    """The runner prints the expected lines, but for steps that print something `different` on its system."""
    shutil.rmtree(os.path.join(WORK, "sessions"), ignore_errors=True)  # another runner's entries
    printed = run(command + [SCRIPT], **environment).splitlines()
    with open(EXPECTED, encoding="utf-8") as file:
        expected = file.read().splitlines()
    for i, line in enumerate(expected[:-1]):
        expected[i + 1] = (different or {}).get(line, expected[i + 1])
    for i, (a, b) in enumerate(zip(printed + ["(the end)"], expected + ["(the end)"])):
        if a != b:
            step = next((line for line in reversed(expected[:i + 1]) if line.startswith(">")), "")
            raise Failure("line %d, step '%s'\n  printed  %s\n  expected %s" % (i + 1, step, a, b))


def chat(command, **environment):
    said = run(command + [MODEL], stdin=QUESTIONS, **environment)
    if "Bruno lives in Salem." not in said:
        raise Failure("the sample said: " + said)


# ---- The generator ------------------------------------------------------------------------------------------------

def generator_output():
    run([sys.executable, os.path.join(HERE, "generate.py"), "--check"])


def generator_offsets():
    run([os.environ.get("CC", "cc"), "-std=c11", "-fsyntax-only", "-I", os.path.join(ROOT, "include"),
         os.path.join(HERE, "c", "layout_check.c")])


def generator_notices():
    """A header with one function, field or constant more changes what is generated, and misses in every language."""
    import generate
    from emit import header as header_file
    with open(os.path.join(ROOT, "include", "orrery.h"), encoding="utf-8") as file:
        text = file.read()
    before = header_file.Header(text)
    function = text.replace("ORRERY_API void orrery_cancel(",
                            "ORRERY_API void orrery_session_dream(orrery_session *session);\nORRERY_API void orrery_cancel(")
    missing = generate.missing_functions(header_file.Header(function))
    if len(missing) != len(generate.HAND_WRITTEN) or not all("orrery_session_dream" in m for m in missing):
        raise Failure("a new function: %s" % missing)
    field = text.replace("} orrery_generate_options;", "  uint64_t dreams;\n} orrery_generate_options;")
    constant = text.replace("#define ORRERY_LOAD_READ 1", "#define ORRERY_LOAD_DREAM 2\n#define ORRERY_LOAD_READ 1")
    for what, changed in (("field", field), ("constant", constant)):
        after = header_file.Header(changed)
        same = [name for name, emit in generate.FILES.items() if emit(before) == emit(after)
                and not (what == "constant" and name in generate.NO_CONSTANTS) and name not in generate.NO_FIELDS]
        if changed == text or same:
            raise Failure("a new %s: %s stay as they were" % (what, same))
    for what, old, new in (("an option's comment", "end where the assistant's answer begins", "begin to dream"),
                           ("a result's comment", "-1 where the vocabulary has none", "a dream"),
                           ("a constant's comment", "K in Q8_0, V in Q4_0", "K and V in dreams")):
        after = header_file.Header(text.replace(old, new))
        same = [name for name, emit in generate.FILES.items() if emit(before) == emit(after) and name not in generate.NO_DOCS]
        if text.count(old) != 1 or same:
            raise Failure("%s: %s stay as they were" % (what, same))
    named = [n for n in generate.missing_names(header_file.Header(constant)) if "ORRERY_LOAD_DREAM" in n]
    if len(named) != 1 or generate.missing_names(before):
        raise Failure("a constant without a name: %s" % named)
    for what, old, new in (("changed", "orrery_cancel(orrery_generation *generation)", "orrery_cancel(orrery_generation *generation, int32_t how)"),
                           ("unstable", "ORRERY_API void orrery_cancel(", "ORRERY_UNSTABLE\nORRERY_API void orrery_cancel(")):
        changed = header_file.Header(text.replace(old, new))
        if not any("orrery_cancel" in c for c in generate.stable_functions(changed, True)):
            raise Failure("a stable function that is %s" % what)
    for what, old, new in (("padding", "} orrery_generate_options;", "  uint8_t dreams;\n} orrery_generate_options;"),
                           ("a renaming macro", "#define ORRERY_LOAD_READ 1", "#define orrery_run orrery_run_2\n#define ORRERY_LOAD_READ 1"),
                           ("an _init without a size", "orrery_stats_init(orrery_stats *stats, size_t struct_size)",
                            "orrery_stats_init(orrery_stats *stats)")):
        try:
            header_file.Header(text.replace(old, new))
        except header_file.ParseError:
            continue
        raise Failure(what + " is not noticed")


# ---- C ------------------------------------------------------------------------------------------------------------

def c_runner():
    program = os.path.join(folder("c"), "conformance")
    run([os.environ.get("CC", "cc"), "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-Wno-unused-function", "-I",
         os.path.join(ROOT, "include"), os.path.join(HERE, "c", "conformance.c"), "-L", CAPI, "-lorrery", "-lm", "-lpthread",
         "-o", program])
    return [program]


def c_conformance():
    conformance(c_runner())


# Errors have the system's own numbers, and the library counts allocations where it has an allocator of its own.
ON_WINDOWS = {
    "> model bad r .": "error IO 0 0 0 0 no yes -",
    "> save f missing/folder.bin": "error IO 0 0 0 3 no yes -",
    "> folder bad 0 missing/folder": "error IO 0 0 0 3 no yes -",
    "> compare r host_bytes 0": "=",
    "> compare m host_bytes 0": "=",
    "> compare m host_bytes host_peak_bytes": "=",
}


def windows_conformance():
    """The same runner and orrery.dll, under Wine: `make test-windows` names this language and a BUILD that holds the DLL."""
    if not os.path.exists(os.path.join(CAPI, "orrery.dll")):
        raise Skip("no " + os.path.join(CAPI, "orrery.dll"))
    program = os.path.join(folder("windows"), "conformance.exe")
    run([tool("x86_64-w64-mingw32-gcc-posix"), "-std=gnu11", "-D__USE_MINGW_ANSI_STDIO=1", "-Wall", "-Wextra", "-Werror", "-Wno-unused-function",
         "-I", os.path.join(ROOT, "include"), os.path.join(HERE, "c", "conformance.c"), os.path.join(CAPI, "liborrery.dll.a"), "-lm", "-static", "-lpthread",
         "-o", program])
    shutil.copy(os.path.join(CAPI, "orrery.dll"), folder("windows"))
    conformance([os.path.join(ROOT, "tests", "emulation", "wine.sh"), program], ON_WINDOWS)


def write_expected():
    shutil.rmtree(os.path.join(WORK, "sessions"), ignore_errors=True)
    printed = run(c_runner() + [SCRIPT])
    with open(EXPECTED, "w", encoding="utf-8") as file:
        file.write(printed)


# ---- Python -------------------------------------------------------------------------------------------------------

PYTHON = {"PYTHONPATH": os.path.join(HERE, "python"), "ORRERY_LIBRARY": os.path.join(CAPI, "liborrery.so.0")}


def python_conformance():
    conformance([sys.executable, os.path.join(HERE, "python", "tests", "conformance.py")], **PYTHON)


def python_idioms():
    run([sys.executable, os.path.join(HERE, "python", "tests", "test_orrery.py"), MODEL], **PYTHON)
    run([sys.executable, os.path.join(HERE, "python", "tests", "test_forms.py")], **PYTHON)


def python_chat():
    chat([sys.executable, os.path.join(HERE, "python", "samples", "chat.py")], **PYTHON)


def python_wheel():
    """The wheel, unpacked as pip would, answers with the library inside; its name tells what it needs."""
    import zipfile
    if not os.path.exists(os.path.join(CAPI, "liborrery.a")):
        raise Skip("no static library in " + BUILD)
    tool("objdump")
    out = folder("wheel")
    shutil.rmtree(out)
    wheel = run([sys.executable, os.path.join(HERE, "python", "build_wheel.py"), BUILD, out]).strip()
    match = re.search(r"-py3-none-manylinux_(\d+)_(\d+)_\w+\.whl$", wheel)
    if not match:
        raise Failure("named " + wheel)
    zipfile.ZipFile(wheel).extractall(os.path.join(out, "site"))
    needs = run(["objdump", "-T", os.path.join(out, "site", "orrery", "liborrery.so.0")])
    versions = {tuple(map(int, v)) for v in re.findall(r"GLIBC_(\d+)\.(\d+)", needs)}
    if max(versions) != (int(match[1]), int(match[2])) or "GLIBCXX" in needs:
        raise Failure("%s needs %s" % (wheel, sorted(versions)))
    chat([sys.executable, os.path.join(HERE, "python", "samples", "chat.py")], PYTHONPATH=os.path.join(out, "site"),
         ORRERY_LIBRARY="", LD_LIBRARY_PATH="")


# ---- Node ---------------------------------------------------------------------------------------------------------

def node_environment():
    """Builds the addon against the headers of the node that there is."""
    tool("node")
    addon = os.path.join(folder("node"), "orrery.node")
    if not build_packages.node_include():
        raise Skip("no node_api.h")
    sources = [os.path.join(HERE, "node", f) for f in ("addon.c", "addon_calls.h", "functions.h")]
    sources.append(os.path.join(HERE, "c", "layouts.h"))
    if not os.path.exists(addon) or os.path.getmtime(addon) < max(map(os.path.getmtime, sources)):
        build_packages.build_addon(CAPI, addon)
    return {"ORRERY_ADDON": addon}


def node_conformance():
    environment = node_environment()
    conformance(["node", os.path.join(HERE, "node", "conformance.js")], **environment)


def node_idioms():
    environment = node_environment()
    run(["node", "--expose-gc", os.path.join(HERE, "node", "test.js"), MODEL], **environment)


def node_chat():
    environment = node_environment()
    chat(["node", os.path.join(HERE, "node", "chat.js")], **environment)


def node_package():
    """What `npm pack` makes installs without a network, and answers with the library inside."""
    tool("npm")
    node_environment()
    out = folder("npm")
    shutil.rmtree(out)
    os.makedirs(os.path.join(out, "program"))
    package = build_packages.npm(BUILD, out)
    program = os.path.join(out, "program")
    with open(os.path.join(program, "package.json"), "w", encoding="utf-8") as file:
        file.write("{}")
    run(["npm", "install", "--offline", "--no-audit", "--no-fund", "--cache", os.path.join(out, "cache"), package], cwd=program)
    if os.path.islink(os.path.join(program, "node_modules", "orrery")):
        raise Failure("the package is a link to its sources")
    line = ("const {Runtime} = require('orrery'); (async () => { const chat = await (await new Runtime({backend: 'cpu'}).open(process.argv[1]))"
            ".session(); console.log(await chat.ask(process.argv[2])); })();")
    said = run(["node", "-e", line, MODEL, QUESTIONS], cwd=program, LD_LIBRARY_PATH="")
    if "Bruno lives in Salem." not in said:
        raise Failure("the line said: " + said)


# ---- Rust ---------------------------------------------------------------------------------------------------------

RUST = {"ORRERY_LIB_DIR": CAPI, "CARGO_NET_OFFLINE": "true", "ORRERY_MODEL": MODEL, "CARGO_TERM_COLOR": "never"}


def cargo(what, *arguments, target="rust", **environment):
    """Runs cargo on the workspace; all that it writes lies in the build folder."""
    tool("rustc")
    run([tool("cargo"), what, "--offline", "--locked", "--target-dir", folder(target), *arguments],
        cwd=os.path.join(HERE, "rust"), timeout=1800, **dict(RUST, **environment))


def rust_conformance():
    cargo("build", "--examples")
    conformance([os.path.join(folder("rust"), "debug", "examples", "conformance")])


def rust_idioms():
    cargo("test", "--test", "idioms")


def rust_chat():
    cargo("build", "--examples")
    chat([os.path.join(folder("rust"), "debug", "examples", "chat")])


def rust_vendored():
    """The feature builds orrery_static by CMake and links it into the program, which answers without liborrery.so. The sources' place is taken by
    a project that hands out BUILD's library: to compile it again takes minutes."""
    tool("cmake")
    library = os.path.join(CAPI, "liborrery.a")
    if not os.path.exists(library):
        raise Skip("no static library in " + BUILD)
    sources = folder("rust-vendored/sources")
    for name in ("include", "runtime", "capi"):
        folder("rust-vendored/sources/" + name)
    with open(os.path.join(sources, "CMakeLists.txt"), "w", encoding="utf-8") as file:
        file.write("cmake_minimum_required(VERSION 3.25)\nproject(handed NONE)\nadd_custom_target(orrery_static "
                   "COMMAND ${CMAKE_COMMAND} -E make_directory capi COMMAND ${CMAKE_COMMAND} -E copy %s capi)\n" % library)
    cargo("build", "--package", "orrery", "--features", "vendored", "--example", "chat", target="rust-vendored/target", ORRERY_LIB_DIR="/nowhere",
          ORRERY_SOURCE_DIR=sources)
    program = os.path.join(folder("rust-vendored/target"), "debug", "examples", "chat")
    if "liborrery" in run([tool("objdump"), "-p", program]):
        raise Failure("the program needs liborrery.so")
    chat([program], LD_LIBRARY_PATH="")


# ---- Go -----------------------------------------------------------------------------------------------------------

def go(*arguments, cwd=os.path.join(HERE, "go")):
    """Runs go on the package, or on a module that uses it; all that it writes lies in the build folder."""
    run([tool("go"), *arguments], cwd=cwd, CGO_LDFLAGS="-L" + CAPI, GOCACHE=folder("go/cache"), GOPROXY="off",
        GOFLAGS="-mod=mod", GO111MODULE="on", GOTOOLCHAIN="local", CGO_ENABLED="1", ORRERY_MODEL=MODEL)


def go_conformance():
    go("build", "-o", folder("go/bin") + "/", "./...")
    conformance([os.path.join(folder("go/bin"), "conformance")])


def go_idioms():
    go("vet", "./...")
    go("test", "-count=1", ".")


def go_chat():
    go("build", "-o", folder("go/bin") + "/", "./...")
    chat([os.path.join(folder("go/bin"), "chat")])


# ---- C# -----------------------------------------------------------------------------------------------------------

def mono(program, out="csharp", assembly=None, defines=()):
    """Builds the assembly, unless one is given, and a program that uses it; the command that runs the program."""
    compiler, out = tool("mcs"), folder(out)
    tool("mono")
    own, program_exe = os.path.join(out, "Orrery.dll"), os.path.join(out, os.path.basename(program)[:-3] + ".exe")
    options = ["-define:" + name for name in defines]
    if assembly:
        shutil.copy(assembly, own)
    else:
        build_packages.build_assembly(own, *options)
    run([compiler, "-langversion:7", "-warnaserror", *options, "-r:" + own, "-out:" + program_exe, os.path.join(HERE, "csharp", program)])
    return ["mono", program_exe]


def csharp_conformance():
    conformance(mono("tests/Conformance.cs"))


def csharp_idioms():
    run(mono("tests/Idioms.cs") + [MODEL])


def csharp_newer():
    """The same where the framework has IAsyncEnumerable, as Mono's has."""
    run(mono("tests/Idioms.cs", "csharp/newer", defines=["NETSTANDARD2_1_OR_GREATER"]) + [MODEL])


def csharp_chat():
    chat(mono("samples/Chat.cs"))


def csharp_package():
    """The package has what its relations name; its assembly answers with its library, found where a host of .NET puts it."""
    import xml.etree.ElementTree as xml
    import zipfile
    tool("mcs")
    out, unpacked = folder("nuget"), folder("nuget/unpacked")
    shutil.rmtree(out)
    package = build_packages.nuget(BUILD, out)
    zipfile.ZipFile(package).extractall(unpacked)
    names = zipfile.ZipFile(package).namelist()
    typed = {e.get("Extension") for e in xml.parse(os.path.join(unpacked, "[Content_Types].xml")).getroot()}
    manifest = xml.parse(os.path.join(unpacked, "_rels", ".rels")).getroot()[0].get("Target").lstrip("/")
    version = xml.parse(os.path.join(unpacked, manifest)).getroot()[0].find("{*}version").text
    if not package.endswith("Orrery.%s.nupkg" % version) or {n.rpartition(".")[2] for n in names} != typed:
        raise Failure("%s has %s, of types %s" % (package, names, typed))
    native = next(n for n in names if re.fullmatch(r"runtimes/linux-\w+/native/liborrery\.so", n))
    chat(mono("samples/Chat.cs", "nuget/program", os.path.join(unpacked, "lib", "netstandard2.0", "Orrery.dll")),
         LD_LIBRARY_PATH=os.path.join(unpacked, os.path.dirname(native)))


# ---- The programs of the root's README ----------------------------------------------------------------------------

def readme_program(language, name):
    """Writes the README's program in this language to a file of that name; its path."""
    with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as file:
        programs = re.findall(r"^```%s\n(.*?)^```" % language, file.read(), re.M | re.S)
    if len(programs) != 1:
        raise Failure("README.md has %d programs in %s" % (len(programs), language))
    path = os.path.join(folder("readme"), name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(programs[0])
    return path


def answers(command, **environment):
    """It runs beside model.gguf, and what it prints begins with a word."""
    said = run(command, **environment)
    if not re.match(r"\w+", said):
        raise Failure("the program said: " + repr(said))


def readme_c():
    source, program = readme_program("c", "ask.c"), os.path.join(folder("readme"), "ask")
    run([os.environ.get("CC", "cc"), "-Wall", "-Wextra", "-Werror", "-I", os.path.join(ROOT, "include"), source, "-L", CAPI, "-lorrery",
         "-o", program])
    answers([program])


def readme_python():
    answers([sys.executable, readme_program("python", "ask.py")], **PYTHON)


def readme_rust():
    source, program = readme_program("rust", "ask.rs"), os.path.join(folder("readme"), "ask_rust")
    cargo("build")
    debug = os.path.join(folder("rust"), "debug")
    run([tool("rustc"), "--edition", "2021", "-L", "dependency=" + os.path.join(debug, "deps"), "-L", "native=" + CAPI,
         "--extern", "orrery=" + os.path.join(debug, "liborrery.rlib"), "-o", program, source])
    answers([program])


def readme_go():
    source = readme_program("go", os.path.join("go", "ask.go"))
    with open(os.path.join(os.path.dirname(source), "go.mod"), "w", encoding="utf-8") as file:
        file.write("module ask\n\ngo 1.19\n\nrequire orrery.invalid/orrery v0.0.0\n\nreplace orrery.invalid/orrery => %s\n" % os.path.join(HERE, "go"))
    go("build", "-o", os.path.join(folder("readme"), "ask_go"), ".", cwd=os.path.dirname(source))
    answers([os.path.join(folder("readme"), "ask_go")])


def readme_csharp():
    answers(mono(readme_program("csharp", "Ask.cs")))


def readme_node():
    environment = node_environment()
    source = readme_program("js", "ask.js")
    modules = os.path.join(folder("readme"), "node_modules")
    os.makedirs(modules, exist_ok=True)
    if not os.path.islink(os.path.join(modules, "orrery")):
        os.symlink(os.path.join(HERE, "node"), os.path.join(modules, "orrery"))
    answers(["node", source], **environment)


TESTS = [
    ("generator", "generated files are the header's, every function is called", generator_output),
    ("generator", "a C compiler agrees with every offset and constant", generator_offsets),
    ("generator", "a changed header is noticed", generator_notices),
    ("c", "conformance", c_conformance),
    ("windows", "conformance", windows_conformance),
    ("python", "conformance", python_conformance),
    ("python", "idioms", python_idioms),
    ("python", "chat", python_chat),
    ("python", "wheel", python_wheel),
    ("node", "conformance", node_conformance),
    ("node", "idioms", node_idioms),
    ("node", "chat", node_chat),
    ("node", "package", node_package),
    ("rust", "conformance", rust_conformance),
    ("rust", "idioms", rust_idioms),
    ("rust", "chat", rust_chat),
    ("rust", "vendored", rust_vendored),
    ("go", "conformance", go_conformance),
    ("go", "idioms", go_idioms),
    ("go", "chat", go_chat),
    ("csharp", "conformance", csharp_conformance),
    ("csharp", "idioms", csharp_idioms),
    ("csharp", "idioms, newer framework", csharp_newer),
    ("csharp", "chat", csharp_chat),
    ("csharp", "package", csharp_package),
    ("c", "README", readme_c),
    ("python", "README", readme_python),
    ("node", "README", readme_node),
    ("rust", "README", readme_rust),
    ("go", "README", readme_go),
    ("csharp", "README", readme_csharp),
]


def main(languages):
    os.makedirs(WORK, exist_ok=True)
    run([sys.executable, os.path.join(HERE, "conformance", "prepare.py"),
         os.path.join(ROOT, "samples", "models", "demo-q8_0.gguf"), WORK])
    if languages == ["--write-expected"]:
        write_expected()
        return 0
    all_but_windows = {language for language, _, _ in TESTS} - {"windows"}
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    for language, what, test in TESTS:
        if language not in (languages or all_but_windows):
            continue
        began, said = time.monotonic(), ""
        try:
            test()
            outcome = "passed"
        except Skip as e:
            outcome, said = "skipped", ": " + str(e)
        except Failure as e:
            outcome, said = "failed", "\n" + str(e)
        counts[outcome] += 1
        print("%-8s %s, %s (%.1f s)%s" % (outcome, language, what, time.monotonic() - began, said), flush=True)
    print("%(passed)d passed, %(failed)d failed, %(skipped)d skipped" % counts)
    return 1 if counts["failed"] or not counts["passed"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[2:]))
