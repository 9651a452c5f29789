#!/usr/bin/env python3
"""Writes unicode/python_characters.inc: character classes and case mappings of Python's str methods.

Run it with a Python of the wanted Unicode version (3.11: Unicode 14). It needs no packages.
"""
import pathlib
import sys
import unicodedata

ALPHA, DECIMAL, DIGIT, NUMERIC, UPPER, LOWER, TITLE, SPACE, UNPRINTABLE, IGNORABLE, WORD = (1 << i for i in range(11))
CASE_IGNORABLE_WORDS = "'.:\u00b7\u0387\u055f\u05f4\u2018\u2019\u2024\u2027\ufe13\ufe52\ufe55\uff07\uff0e\uff1a"


def flags(c):
    category = unicodedata.category(c)
    f = 0
    f |= ALPHA * c.isalpha() | DECIMAL * c.isdecimal() | DIGIT * c.isdigit() | NUMERIC * c.isnumeric()
    f |= UPPER * c.isupper() | LOWER * c.islower() | TITLE * (category == "Lt")
    f |= SPACE * c.isspace() | UNPRINTABLE * (not c.isprintable())
    f |= IGNORABLE * (category in ("Mn", "Me", "Cf", "Lm", "Sk") or c in CASE_IGNORABLE_WORDS)
    f |= WORD * (c.isalnum() or c == "_")
    return f


def class_ranges():
    out, start, current = [], 0, flags(chr(0))
    for code in range(1, 0x110000):
        f = flags(chr(code))
        if f != current:
            if current:
                out.append((start, code - 1, current))
            start, current = code, f
    if current:
        out.append((start, 0x10FFFF, current))
    return out


def case_ranges(convert, skip):
    """(first, last, stride, delta) for one-to-one mappings, and the longer ones apart."""
    single, long = {}, []
    for code in range(0x110000):
        c = chr(code)
        mapped = convert(c)
        if skip(c, mapped):
            continue
        if len(mapped) == 1:
            single[code] = ord(mapped) - code
        else:
            long.append((code, [ord(x) for x in mapped] + [0] * (3 - len(mapped))))
    out, codes, i = [], sorted(single), 0
    while i < len(codes):
        best = (0, 1)
        for stride in (1, 2):
            j = i
            while j + 1 < len(codes) and codes[j + 1] == codes[j] + stride and single[codes[j + 1]] == single[codes[i]]:
                j += 1
            best = max(best, (j - i, stride), key=lambda x: x[0])
        length, stride = best
        out.append((codes[i], codes[i + length], stride, single[codes[i]]))
        i += length + 1
    return out, long


def emit(name, type_name, rows, per_line, f):
    f.write(f"inline constexpr {type_name} {name}[] = {{\n")
    for i in range(0, len(rows), per_line):
        f.write("    " + " ".join("{" + ", ".join(rows_text(r)) + "}," for r in rows[i : i + per_line]) + "\n")
    f.write("};\n\n")


def rows_text(row):
    for v in row:
        if isinstance(v, list):
            yield "{" + ", ".join(hex(x) for x in v) + "}"
        else:
            yield hex(v) if v > 9 else str(v)


def main():
    path = pathlib.Path(__file__).with_name("unicode/python_characters.inc")
    with path.open("w") as f:
        f.write("// Made by unicode/make_python_characters.py from Unicode " + unicodedata.unidata_version + "; not to be edited.\n")
        f.write("// Sorted by first code point. A code point that is not listed has no class, or maps to itself.\n\n")
        emit("kClasses", "ClassRange", class_ranges(), 6, f)
        upper, upper_long = case_ranges(str.upper, lambda c, m: c == m)
        lower, lower_long = case_ranges(str.lower, lambda c, m: c == m)
        title, title_long = case_ranges(str.title, lambda c, m: m == c.upper())
        emit("kUpper", "CaseRange", upper, 5, f)
        emit("kLower", "CaseRange", lower, 5, f)
        emit("kTitle", "CaseRange", title, 5, f)  # only where it differs from upper case
        emit("kUpperLong", "LongCase", upper_long, 4, f)
        emit("kLowerLong", "LongCase", lower_long, 4, f)
        emit("kTitleLong", "LongCase", title_long, 4, f)


if __name__ == "__main__":
    sys.exit(main())
