"""Halves the bounds of the kernels, one by one, for mutate.py --bounds.

A bound is the right side of a ` < `, ` <= ` or ` >= ` in the condition of a `for` or an `if` of device code. The comparison has spaces around
it, as the style asks, and templates have none. The bound ends before the next `&&`, `||`, `?` or `,` of its own depth, or with the condition.
`if constexpr` and `while` are no bounds. Names of skipped places stand in the list with the reason.

In emulation one program has all mutants of a file: a bound becomes orrery_half(K, bound), and ORRERY_MUTANT says which K is halved. On PTX
nvcc compiles one mutant at a time, with (bound) / 2 in its place.
"""
import collections
import os
import re
import shlex
import subprocess

Bound = collections.namedtuple("Bound", "function line begin end text")   # text[begin:end] of the line
KERNELS = "cuda/kernels"
HALF = """#include <cstdlib>
inline const int orrery_mutant = std::getenv("ORRERY_MUTANT") ? std::atoi(std::getenv("ORRERY_MUTANT")) : -1;
template <class T>
constexpr T orrery_half(int k, T bound) {
  if (__builtin_is_constant_evaluated()) return bound;
  return k == orrery_mutant ? static_cast<T>(bound / 2) : bound;
}
"""
NO_HALF = re.compile(r"[01]u?|0\.0f?|-?INFINITY")   # half of it is the same number, or no iteration


def closing(text, at):
    """The place of the parenthesis that closes the one before `at`, or -1."""
    depth = 1
    for i in range(at, len(text)):
        depth += (text[i] in "([{") - (text[i] in ")]}")
        if depth == 0:
            return i
    return -1


def cut(text, begin, end, ends):
    """The pieces of text[begin:end], as (begin, end), between places of depth 0 where ends(place) holds."""
    pieces, depth = [begin], 0
    for i in range(begin, end):
        depth += (text[i] in "([{") - (text[i] in ")]}")
        if depth < 0:
            return [*zip(pieces, [p - 1 for p in pieces[1:]] + [i])]
        if depth == 0 and ends(i):
            pieces.append(i + 1)
    return [*zip(pieces, [p - 1 for p in pieces[1:]] + [end])]


def bounds_of(path):
    """The bounds of a file's device code, and {place: reason} of what is skipped."""
    found, skipped = [], {}
    device, function = False, ""
    for number, line in enumerate(open(path).read().split("\n")):
        code = line.split("//")[0]
        named = re.search(r"(\w+)\([^()]*(\(|\)|$)", re.sub(r"__launch_bounds__\([^)]*(\([^)]*\))?[^)]*\)", "", code))
        if "__device__" in code or "__global__" in code or "ORRERY_HOST_DEVICE" in code:
            device, function = True, named.group(1) if named else ""
        elif re.match(r"[A-Za-z]", code) and not code.startswith("template"):
            device = False
        elif device and not function and named:   # the name stands in the line behind __launch_bounds__
            function = named.group(1)
        if not device:
            continue
        for match in re.finditer(r"\b(for|if) \(", code):
            end = closing(code, match.end())
            if end < 0:
                skipped[f"{function}: {code.strip()}"] = "the condition goes on in the next line"
                continue
            parts = cut(code, match.end(), end, lambda i: code[i] == ";")
            if match.group(1) == "for" and len(parts) < 3:
                continue   # over a range
            begin, end = parts[1] if match.group(1) == "for" else parts[-1]
            for comparison in re.compile(r" (<|<=|>=) ").finditer(code, begin, end):
                _, last = cut(code, comparison.end(), end, lambda i: code[i] in "?," or code[i:i + 2] in ("&&", "||"))[0]
                text = code[comparison.end():last].strip()
                if NO_HALF.fullmatch(text):
                    skipped[f"{function}: {code.strip()}"] = f"{text} has no half"
                else:
                    found.append(Bound(function, number, comparison.end(), comparison.end() + len(text), text))
    return found, skipped


def keys_of(family, found):
    """A name for each bound: it stays when lines are added elsewhere."""
    ordinal = collections.Counter()
    keys = []
    for bound in found:
        ordinal[bound.function] += 1
        keys.append(f"{family} {bound.function}: half of bound {ordinal[bound.function]}, {bound.text}")
    return keys


def includes(root, name, header):
    text = open(os.path.join(root, KERNELS, name)).read()
    direct = re.findall(r'#include "cuda/kernels/(\S+)"', text)
    return header in direct or any(includes(root, other, header) for other in direct)


def users_of(root, name):
    """The .cu files that this file is a part of."""
    return [name] if name.endswith(".cu") else sorted(
        other for other in os.listdir(os.path.join(root, KERNELS)) if other.endswith(".cu") and includes(root, other, name))


def commands(build, target):
    return subprocess.run(["ninja", "-C", build, "-t", "commands", target], capture_output=True, text=True, check=True).stdout.split("\n")


def write_changed(root, folder, name, replacements):
    """A copy of the file with these bounds replaced, where -I folder finds it. replacements: {Bound: text}."""
    lines = open(os.path.join(root, KERNELS, name)).read().split("\n")
    for bound in sorted(replacements, key=lambda b: -b.begin):
        line = lines[bound.line]
        lines[bound.line] = line[:bound.begin] + replacements[bound] + line[bound.end:]
    to = os.path.join(folder, KERNELS)
    os.makedirs(to, exist_ok=True)
    with open(os.path.join(to, name), "w") as out:
        out.write("\n".join(lines))


def compile_changed(words, root, folder, name, out):
    """Runs the compiler of these words for the changed copy, or for the file that includes it."""
    source = os.path.join(root, KERNELS, name)
    changed = os.path.join(folder, KERNELS, name)
    words = [changed if word == source and os.path.exists(changed) else word for word in words]
    words[words.index("-o") + 1] = out
    for flag in ("-MF", "-MT"):
        if flag in words:
            del words[words.index(flag):words.index(flag) + 2]
    words = [word for word in words if word not in ("-MD", "-Werror", "all-warnings", "-Werror=all-warnings")]
    done = subprocess.run(words[:1] + ["-I" + folder] + words[1:], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        print(done.stderr[:2000])
    return done.returncode == 0


def emulated_program(root, build, folder, name, found):
    """BUILD/tests/emulation/emulated_cuda with all mutants of the file."""
    write_changed(root, folder, name, {bound: f"orrery_half({k}, {bound.text})" for k, bound in enumerate(found)})
    half = os.path.join(folder, "half.h")
    with open(half, "w") as out:
        out.write(HALF)
    lines = commands(build, "emulated_cuda")
    link = shlex.split(next(line for line in reversed(lines) if " -o tests/emulation/emulated_cuda " in line).split(" && ")[1])
    for user in users_of(root, name):
        line = next(line for line in lines if line.endswith(os.path.join(root, KERNELS, user)) and "cuda_emulated.dir" in line)
        words = [word for word in shlex.split(line) if word != "ccache"]
        at = words.index("-o") + 1
        made = os.path.join(folder, user + ".o")
        link[link.index(words[at])] = made
        if not compile_changed(words[:1] + ["-w", "-include", half] + words[1:], root, folder, user, made):
            return None
    program = os.path.join(folder, "emulated_cuda")
    link[link.index("-o") + 1] = program
    subprocess.run(link, cwd=build, check=True)
    return program


def ptx_of(root, build, folder, name, bound, out):
    """Writes the PTX of the files with this bound halved to the folder `out`."""
    write_changed(root, folder, name, {bound: f"(({bound.text}) / 2)"})
    lines = commands(build, "cuda_texts")
    for user in users_of(root, name):
        line = next(line for line in lines if f" {os.path.join(root, KERNELS, user)} " in line + " " and " -ptx " in line)
        words = shlex.split(next(part for part in line.split(" && ") if " -ptx " in part))
        if not compile_changed(words, root, folder, user, os.path.join(out, user[:-3] + ".ptx")):
            return False
    return True
