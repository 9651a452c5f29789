"""Expected arrays in one file: the 8 bytes "ORGOLD1\\n", u64 header bytes, a JSON header, padding, raw little-endian data.

The header is {"arrays": {name: {"dtype": "f32", "shape": [..], "offset": bytes from the data's start}}}; the data starts
at the next multiple of 64 after the header.  tests/support/golden_file.h reads it.
"""

import json

import numpy as np

MAGIC = b"ORGOLD1\n"


def write(path, arrays: dict):
    entries, blob = {}, b""
    for name, array in arrays.items():
        array = np.ascontiguousarray(array, dtype="<f4")
        entries[name] = {"dtype": "f32", "shape": list(array.shape), "offset": len(blob)}
        blob += array.tobytes()
    header = json.dumps({"arrays": entries}, separators=(",", ":")).encode()
    data_start = -(-(16 + len(header)) // 64) * 64
    with open(path, "wb") as f:
        f.write(MAGIC + len(header).to_bytes(8, "little") + header)
        f.write(b"\0" * (data_start - 16 - len(header)) + blob)
