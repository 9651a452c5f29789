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


def parsed():
    """The places behind the model's keys and behind its tensors' table; n_embd; the shapes of tensors, by name."""
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
    keys_end, shapes = at, {}
    for _ in range(n_tensors):
        name, at = data[at + 8:at + 8 + number(at, 8)], at + 8 + number(at, 8)
        shapes[name] = [number(at + 4 + 8 * i, 8) for i in range(number(at, 4))]
        at += 4 + 8 * number(at, 4) + 4 + 8
    return keys_end, at, n_embd, shapes


def text(name):
    return len(name).to_bytes(8, "little") + name


def ranks():
    """The model with a head that scores texts: a key, and a tensor behind the others."""
    keys_end, at, n_embd, shapes = parsed()
    n_tensors, n_keys = len(shapes), int.from_bytes(data[16:24], "little")
    begin = -(-at // 32) * 32
    offset = -(-(len(data) - begin) // 32) * 32

    key = text(b"llama.pooling_type") + (4).to_bytes(4, "little") * 2
    info = text(b"cls.output.weight") + (2).to_bytes(4, "little") + n_embd.to_bytes(8, "little") + (1).to_bytes(8, "little")
    info += (0).to_bytes(4, "little") + offset.to_bytes(8, "little")
    head = data[:8] + (n_tensors + 1).to_bytes(8, "little") + (n_keys + 1).to_bytes(8, "little") + data[24:keys_end] + key
    head += data[keys_end:at] + info
    weights = struct.pack("<%df" % n_embd, *[((i * 37) % 19 - 9) / 64 for i in range(n_embd)])
    return head + bytes(-len(head) % 32) + data[begin:] + bytes(begin + offset - len(data)) + weights


def adapter():
    """A LoRA adapter of the model's attention, of rank 2, too small to change an answer."""
    shapes = {name: shape for name, shape in parsed()[3].items() if b"attn_q.weight" in name or b"attn_output.weight" in name}
    keys = b"".join(text(key) + (8).to_bytes(4, "little") + text(value) for key, value in (
        (b"general.type", b"adapter"), (b"general.architecture", b"llama"), (b"adapter.type", b"lora")))
    keys += text(b"adapter.lora.alpha") + (6).to_bytes(4, "little") + struct.pack("<f", 4)
    infos, weights = b"", b""
    for name, (n_in, n_out) in sorted(shapes.items()):
        for end, shape in ((b".lora_a", (n_in, 2)), (b".lora_b", (2, n_out))):
            infos += text(name + end) + (2).to_bytes(4, "little") + struct.pack("<QQ", *shape) + (0).to_bytes(4, "little")
            infos += len(weights).to_bytes(8, "little")
            n = shape[0] * shape[1]
            values = struct.pack("<%df" % n, *[((i * 37) % 19 - 9) / 4096 for i in range(n)])
            weights += values + bytes(-len(values) % 32)
    head = b"GGUF" + struct.pack("<IQQ", 3, 2 * len(shapes), 4) + keys + infos
    return head + bytes(-len(head) % 32) + weights


os.makedirs(folder, exist_ok=True)
write("model.gguf", data)
write("rank.gguf", ranks())
write("adapter.gguf", adapter())
write("archive", b"other file" * 400 + data + b"the end")  # the model begins at byte 4000
write("garbage.gguf", b"not a model" * 20)
write("truncated.gguf", data[:100000])
write("architecture.gguf", replaced(b"llama", b"lamma", b"general.architecture"))
q8_0, unknown = (8).to_bytes(4, "little"), (99).to_bytes(4, "little")
write("quantization.gguf", replaced(q8_0, unknown, b"blk.0.attn_q.weight"))
