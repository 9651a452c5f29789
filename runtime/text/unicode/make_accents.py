#!/usr/bin/env python3
"""Writes accents.inc: what stripping accents makes of each character, that is, its canonical decomposition without nonspacing marks (Mn).
Hangul syllables are not in it: accents.cpp decomposes them by arithmetic. Python's unicodedata has the characters' data."""
import os
import sys
import unicodedata

HERE = os.path.dirname(os.path.abspath(__file__))
one, more, marks = [], [], []
for code in range(sys.maxunicode + 1):
    c = chr(code)
    if 0xD800 <= code < 0xE000 or 0xAC00 <= code <= 0xD7A3:
        continue
    rest = [ord(d) for d in unicodedata.normalize("NFD", c) if unicodedata.category(d) != "Mn"]
    if rest == [code]:
        continue
    if len(rest) == 1:
        one.append((code, rest[0]))
    elif rest:
        assert len(rest) <= 3
        more.append((code, rest + [0] * (3 - len(rest))))
    elif marks and marks[-1][1] == code - 1:
        marks[-1][1] = code
    else:
        marks.append([code, code])
# Neighbours that map to neighbours are one range.
ranges = []
for code, to in one:
    if ranges and code == ranges[-1][1] + 1 and to - code == ranges[-1][2]:
        ranges[-1][1] = code
    else:
        ranges.append([code, code, to - code])


def table(rows, form):
    lines, line = [], "   "
    for row in rows:
        text = " " + form(row) + ","
        if len(line + text) > 138:
            lines.append(line)
            line = "   "
        line += text
    return "\n".join(lines + [line])


with open(os.path.join(HERE, "accents.inc"), "w", encoding="utf-8") as out:
    out.write("// Made by make_accents.py: Unicode %s.\n" % unicodedata.unidata_version)
    out.write("constexpr Changed kChanged[] = {\n%s\n};\n" % table(ranges, lambda r: "{0x%X, 0x%X, %d}" % tuple(r)))
    out.write("constexpr Longer kLonger[] = {\n%s\n};\n" % table(more, lambda r: "{0x%X, {0x%X, 0x%X, 0x%X}}" % (r[0], *r[1])))
    out.write("constexpr Dropped kDropped[] = {\n%s\n};\n" % table(marks, lambda r: "{0x%X, 0x%X}" % tuple(r)))
