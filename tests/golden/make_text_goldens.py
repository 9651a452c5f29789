#!/usr/bin/env python3
"""Python's own idea of characters and floats, for tests/unit/text/value_test.cpp and text_json_test.cpp.

Writes text_unicode.json (a hash per str method over every code point), text_words.json (methods on whole strings) and
text_floats.json (bits and repr of doubles).  Python 3.11 (Unicode 14), no packages.
"""
import json
import pathlib
import random
import struct

HERE = pathlib.Path(__file__).parent
POINTS = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def fnv1a(data):
    h = 0xCBF29CE484222325
    for b in data:
        h = (h ^ b) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return f"{h:016x}"


def save(name, rows):
    rows = [json.dumps(r, ensure_ascii=False) for r in rows]
    (HERE / name).write_text("[\n" + ",\n".join(rows) + "\n]\n", encoding="utf-8")


def main():
    rows = []
    for name in ("upper", "lower", "title"):
        rows.append([name, fnv1a("\n".join(getattr(c, name)() for c in POINTS).encode())])
    for name in ("isalpha", "isdecimal", "isdigit", "isnumeric", "isupper", "islower", "isspace", "isprintable"):
        rows.append([name, fnv1a(bytes(48 + getattr(c, name)() for c in POINTS))])
    save("text_unicode.json", rows)

    rng = random.Random(7)
    alphabet = "aZ .'-1ßǅΣσςİı\u0301éǆﬁЖж日 \u00ad\u02b0\n"
    words = ["".join(rng.choice(alphabet) for _ in range(rng.randrange(1, 9))) for _ in range(400)]
    save("text_words.json", [[w, w.upper(), w.lower(), w.title(), w.capitalize(), w.swapcase(), w.istitle(), w.isupper(), w.islower()] for w in words])

    bits = [rng.getrandbits(64) for _ in range(1500)]
    floats = [struct.unpack("<d", struct.pack("<Q", b))[0] for b in bits]
    floats = [f for f in floats if f == f]
    floats += [s * d * 10.0**e for s in (1, -1) for d in (1, 1.5, 9.999999, 123456789) for e in range(-8, 24)]
    floats += [0.0, -0.0, 5e-324, 1.7976931348623157e308, 0.1, 1e15, 1e16, 1e17, 123456789012345680.0]
    save("text_floats.json", [[f"{struct.unpack('<Q', struct.pack('<d', f))[0]:016x}", repr(f)] for f in floats])


if __name__ == "__main__":
    main()
