"""Writes the seeds of fuzz_adapter to corpus/adapter: adapters of the tiny model (tests/abi/tiny_model.h), good and bad."""
import pathlib
import struct

KEYS = [("general.type", "adapter"), ("adapter.type", "lora"), ("general.architecture", "llama"), ("adapter.lora.alpha", 4.0)]
F32, F16, Q8_0 = (0, 4, 1), (1, 2, 1), (8, 34, 32)  # number, bytes and values of a block


def text(s):
    return struct.pack("<Q", len(s)) + s.encode()


def seed(tensors, keys=KEYS):
    out = b"".join(text(k) + (struct.pack("<I", 8) + text(v) if isinstance(v, str) else struct.pack("<If", 6, v)) for k, v in keys)
    infos, data = b"", b""
    for name, dims, (number, size, values) in tensors:
        infos += text(name) + struct.pack("<I", len(dims)) + b"".join(struct.pack("<Q", d) for d in dims) + struct.pack("<IQ", number, len(data))
        n = dims[0] * dims[1] // values * size
        data += bytes(i % 61 for i in range(n)) + bytes(-n % 32)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys)) + out + infos
    return head + bytes(-len(head) % 32) + data


def pair(name, n_in, n_out, rank, kind=F32):
    return [(name + ".lora_a", (n_in, rank), kind), (name + ".lora_b", (rank, n_out), kind)]


Q, DOWN = "blk.0.attn_q.weight", "blk.0.ffn_down.weight"
SEEDS = {
    "one": seed(pair(Q, 64, 64, 1)),
    "two-types": seed(pair(Q, 64, 64, 2, F16) + pair(DOWN, 96, 64, 32, Q8_0)),
    "output": seed(pair("output.weight", 64, 363, 2)),
    "embedding": seed(pair("token_embd.weight", 64, 363, 2)),
    "norm": seed(pair("blk.0.attn_norm.weight", 64, 1, 1)),
    "half": seed(pair(Q, 64, 64, 1)[:1]),
    "shape": seed(pair(Q, 64, 63, 1)),
    "ranks": seed([pair(Q, 64, 64, 1)[0], pair(Q, 64, 64, 2)[1]]),
    "no-alpha": seed(pair(Q, 64, 64, 1), KEYS[:3]),
    "nan-alpha": seed(pair(Q, 64, 64, 1), KEYS[:3] + [("adapter.lora.alpha", float("nan"))]),
    "empty": seed([]),
}
folder = pathlib.Path(__file__).parent / "corpus" / "adapter"
for name, data in SEEDS.items():
    (folder / name).write_bytes(data)
