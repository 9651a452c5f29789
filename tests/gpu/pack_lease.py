#!/usr/bin/env python3
"""pack_lease.py FOLDER IMAGE...: programs of FOLDER that hold the same compiled kernels (files IMAGE) hold them once.

A program becomes its parts between the images; join.sh, which it writes, puts the programs together again with nothing but cat. Prints what
that saves.
"""
import os
import stat
import sys


def main(folder, images):
    texts = {os.path.basename(path): open(path, "rb").read() for path in images}
    texts = {name: text for name, text in texts.items() if len(text) >= 1 << 16}
    lines, used, saved = ["set -e", 'cd "$(dirname "$0")"'], set(), 0
    for program in sorted(os.listdir(folder)):
        path = os.path.join(folder, program)
        if not os.path.isfile(path) or open(path, "rb").read(4) != b"\x7fELF":
            continue
        data = open(path, "rb").read()
        places = sorted((data.find(text), name) for name, text in texts.items() if text in data)
        if not places:
            continue
        parts, at = [], 0
        for place, name in places:
            part = "%s.%d" % (program, len(parts) // 2)
            with open(os.path.join(folder, part), "wb") as out:
                out.write(data[at:place])
            parts += [part, name]
            at = place + len(texts[name])
            saved += len(texts[name]) if name in used else 0
            used.add(name)
        part = program + ".end"
        with open(os.path.join(folder, part), "wb") as out:
            out.write(data[at:])
        os.remove(path)
        lines += ["cat %s >%s" % (" ".join(parts + [part]), program), "chmod +x " + program]
    for name in used:
        with open(os.path.join(folder, name), "wb") as out:
            out.write(texts[name])
    script = os.path.join(folder, "join.sh")
    with open(script, "w") as out:
        out.write("\n".join(lines) + "\n")
    os.chmod(script, os.stat(script).st_mode | stat.S_IXUSR)
    print("%d images once instead of several times: %d MiB less" % (len(used), saved >> 20))


main(sys.argv[1], sys.argv[2:])
