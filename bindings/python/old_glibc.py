"""Links a shared library so that it runs on an older C library than this machine's: link(objects, out, version script).

A linker takes the newest version of each function that the C library has. Most functions have an older version, too: the linker
then gets a library of the same name whose functions have that version alone. old_glibc.c has the functions that are newer. The code is
this machine's either way; a program meets the older C library only where it is loaded.
"""

import os
import re
import subprocess

NEWEST = (2, 28)   # Debian 10, RHEL 8
HERE = os.path.dirname(os.path.abspath(__file__))
# Before 2.34 these were libraries of their own.
LIBRARIES = (("libpthread.so.0", r"pthread_(?!atfork|self|equal|attr_init|mutex_)\w+|sem_\w+"), ("libdl.so.2", r"dl(open|sym|close|error|addr)"))


def cc():
    return os.environ.get("CC", "cc")


def versions(path):
    """{function: {version: is the newest}} of a library, and [(function, version)] of what it needs."""
    symbols = subprocess.run(["objdump", "-T", path], check=True, capture_output=True, text=True).stdout
    has, needs = {}, []
    for line in symbols.splitlines():
        found = re.search(r"\(?GLIBC_(\d+)\.(\d+)(?:\.(\d+))?\)?\s+(\w+)$", line)
        if not found:
            continue
        version, name = tuple(int(v) for v in found.groups()[:3] if v), found[4]
        if "*UND*" in line:
            needs.append((name, version))
        else:
            has.setdefault(name, set()).add(version)
    return has, needs


def library_of_names(folder, soname, functions):
    """A library to link with, which has the names and versions of its functions and no code: {function: version}."""
    tag = lambda version: "GLIBC_" + ".".join(map(str, version))
    source, script = os.path.join(folder, soname + ".s"), os.path.join(folder, soname + ".map")
    with open(source, "w", encoding="ascii") as file:
        for name, version in sorted(functions.items()):
            file.write(f".globl name_{name}\n.type name_{name}, %function\nname_{name}:\n.symver name_{name}, {name}@@{tag(version)}\n")
        file.write('.section .note.GNU-stack,"",%progbits\n')
    with open(script, "w", encoding="ascii") as file:
        before = ""
        for version in sorted(set(functions.values())):
            file.write(f"{tag(version)} {{ global: {' '.join(n + ';' for n, v in functions.items() if v == version)} }}{before};\n")
            before = " " + tag(version)
    path = os.path.join(folder, soname)
    subprocess.run([cc(), "-shared", "-nostdlib", "-Wl,-soname," + soname, "-Wl,--version-script=" + script, source, "-o", path], check=True)
    return path


def link(objects, out, script, folder):
    """`objects`: options of the linker. `folder`: for what lies between."""
    compiled = os.path.join(folder, "old_glibc.o")
    subprocess.run([cc(), "-O2", "-fPIC", "-c", os.path.join(HERE, "old_glibc.c"), "-o", compiled], check=True)
    start = [os.environ.get("CXX", "c++"), "-shared", "-s", "-Wl,-soname," + os.path.basename(out), "-Wl,--no-undefined",
             "-Wl,--version-script=" + script, *objects, compiled]
    # Linked once as usual, the library tells which functions it needs.
    subprocess.run([*start, "-static-libstdc++", "-static-libgcc", "-lpthread", "-ldl", "-lm", "-o", out], check=True)
    needs = versions(out)[1]
    wanted, real = {}, {}
    for soname in ("libc.so.6", "libm.so.6"):
        for name, known in versions(subprocess.run([cc(), "-print-file-name=" + soname], check=True, capture_output=True, text=True).stdout.strip())[0].items():
            real.setdefault(name, (soname, known))
    for name, _ in needs:
        if name not in real:   # the loader's own
            continue
        soname, known = real[name]
        old = [version for version in known if version[:2] <= NEWEST]
        if not old:
            raise SystemExit(f"{name} is newer than glibc {NEWEST[0]}.{NEWEST[1]}: old_glibc.c must have it")
        for other, names in LIBRARIES:
            if re.fullmatch(names, name):
                soname = other
        wanted.setdefault(soname, {})[name] = max(old)
    loader = next(line.split()[0] for line in subprocess.run(["ldd", out], capture_output=True, text=True).stdout.splitlines() if "/ld-linux" in line)
    ours = [library_of_names(folder, soname, functions) for soname, functions in wanted.items()]
    nonshared = subprocess.run([cc(), "-print-file-name=libc_nonshared.a"], check=True, capture_output=True, text=True).stdout.strip()
    subprocess.run([*start, "-nodefaultlibs", "-Wl,-Bstatic", "-lstdc++", "-lgcc_eh", "-lgcc", "-Wl,-Bdynamic", *ours, nonshared, loader, "-o", out],
                   check=True)
