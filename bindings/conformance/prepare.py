"""Writes the files that the script's steps open into a folder: prepare.py MODEL FOLDER.

model.gguf is the model, which archive has inside; the others are damaged in one way each, at the same bytes everywhere.
"""

import os
import sys

model, folder = sys.argv[1:]
with open(model, "rb") as file:
    data = file.read()


def write(name, content):
    with open(os.path.join(folder, name), "wb") as out:
        out.write(content)


def replaced(old, new, begin):
    """The model with the first `old` behind `begin` replaced by as many bytes."""
    at = data.index(old, data.index(begin))
    assert len(old) == len(new)
    return data[:at] + new + data[at + len(old):]


os.makedirs(folder, exist_ok=True)
write("model.gguf", data)
write("archive", b"other file" * 400 + data + b"the end")  # the model begins at byte 4000
write("garbage.gguf", b"not a model" * 20)
write("truncated.gguf", data[:100000])
write("architecture.gguf", replaced(b"llama", b"lamma", b"general.architecture"))
q8_0, unknown = (8).to_bytes(4, "little"), (99).to_bytes(4, "little")
write("quantization.gguf", replaced(q8_0, unknown, b"blk.0.attn_q.weight"))
