"""Writes the files that the script's steps open into a folder: prepare.py MODEL FOLDER.

model.gguf is the model, which archive has inside; the others are damaged in one way each, at the same bytes everywhere.
"""

import os
import struct
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


def ranks():
    """The model with a head that scores texts: a key, and a tensor behind the others."""
    sizes = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}

    def number(at, n):
        return int.from_bytes(data[at:at + n], "little")

    def behind_value(at, kind):
        if kind == 8:
            return at + 8 + number(at, 8)
        if kind != 9:
            return at + sizes[kind]
        element, n, at = number(at, 4), number(at + 4, 8), at + 12
        for _ in range(n if element == 8 else 0):
            at = behind_value(at, 8)
        return at if element == 8 else at + n * sizes[element]

    n_tensors, n_keys, at, n_embd = number(8, 8), number(16, 8), 24, 0
    for _ in range(n_keys):
        name, at = data[at + 8:at + 8 + number(at, 8)], at + 8 + number(at, 8)
        if name == b"llama.embedding_length":
            n_embd = number(at + 4, 4)
        at = behind_value(at + 4, number(at, 4))
    keys_end = at
    for _ in range(n_tensors):
        at += 8 + number(at, 8)
        at += 4 + 8 * number(at, 4) + 4 + 8
    begin = -(-at // 32) * 32
    offset = -(-(len(data) - begin) // 32) * 32

    def text(name):
        return len(name).to_bytes(8, "little") + name

    key = text(b"llama.pooling_type") + (4).to_bytes(4, "little") * 2
    info = text(b"cls.output.weight") + (2).to_bytes(4, "little") + n_embd.to_bytes(8, "little") + (1).to_bytes(8, "little")
    info += (0).to_bytes(4, "little") + offset.to_bytes(8, "little")
    head = data[:8] + (n_tensors + 1).to_bytes(8, "little") + (n_keys + 1).to_bytes(8, "little") + data[24:keys_end] + key
    head += data[keys_end:at] + info
    weights = struct.pack("<%df" % n_embd, *[((i * 37) % 19 - 9) / 64 for i in range(n_embd)])
    return head + bytes(-len(head) % 32) + data[begin:] + bytes(begin + offset - len(data)) + weights


os.makedirs(folder, exist_ok=True)
write("model.gguf", data)
write("rank.gguf", ranks())
write("archive", b"other file" * 400 + data + b"the end")  # the model begins at byte 4000
write("garbage.gguf", b"not a model" * 20)
write("truncated.gguf", data[:100000])
write("architecture.gguf", replaced(b"llama", b"lamma", b"general.architecture"))
q8_0, unknown = (8).to_bytes(4, "little"), (99).to_bytes(4, "little")
write("quantization.gguf", replaced(q8_0, unknown, b"blk.0.attn_q.weight"))
