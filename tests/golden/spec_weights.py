"""Weights that need no file: every tensor of a model spec is a pure function of (spec seed, tensor name, index).

splitmix64 gives 24 bits per weight, so that v in [-1, 1) is exact in float32 and `offset + scale * v` is one float32
multiply and one float32 add: tests/support/model_spec.cpp does the same arithmetic and gets the same bits.
A tensor of the spec is {"name", "shape" (GGUF order, contiguous dimension first), "scale", "offset"}, or has "values", or "bytes": hexadecimal int8,
which the scale multiplies.
"""

import numpy as np

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def fnv1a64(text: str) -> int:
    h = 0xCBF29CE484222325
    for byte in text.encode():
        h = ((h ^ byte) * 0x100000001B3) & _MASK
    return h


def mix64(z):
    """splitmix64's finalizer, on a uint64 array."""
    z = np.asarray(z, dtype=np.uint64)
    with np.errstate(over="ignore"):
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def random_u64(seed: int, name: str, count: int) -> np.ndarray:
    key = mix64(np.uint64((fnv1a64(name) + seed) & _MASK))
    with np.errstate(over="ignore"):
        return mix64(key + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(_GOLDEN))


def uniform(seed: int, name: str, count: int) -> np.ndarray:
    """float32 in [-1, 1), 24 bits each."""
    top = (random_u64(seed, name, count) >> np.uint64(40)).astype(np.int64)
    return ((top - (1 << 23)).astype(np.float32)) * np.float32(2.0**-23)


def tensor_values(spec: dict, tensor: dict) -> np.ndarray:
    """float32, shape reversed to NumPy order: a matrix is (rows, columns)."""
    shape = tensor["shape"][::-1]
    if "values" in tensor:
        return np.array(tensor["values"], dtype=np.float32).reshape(shape)
    if "bytes" in tensor:
        return (np.float32(tensor["scale"]) * np.frombuffer(bytes.fromhex(tensor["bytes"]), np.int8).astype(np.float32)).reshape(shape)
    v = uniform(spec["seed"], tensor["name"], int(np.prod(shape)))
    return (np.float32(tensor["offset"]) + np.float32(tensor["scale"]) * v).reshape(shape)


def all_tensors(spec: dict) -> dict:
    return {t["name"]: tensor_values(spec, t) for t in spec["tensors"]}


def weights_hash(tensors) -> str:
    """Of every bit of every weight in spec order, so that the C++ builder can prove that it makes the same ones."""
    total = np.uint64(0)
    with np.errstate(over="ignore"):
        for values in tensors.values():
            bits = np.ascontiguousarray(values).reshape(-1).view(np.uint32).astype(np.uint64)
            place = np.arange(1, bits.size + 1, dtype=np.uint64) * np.uint64(_GOLDEN)
            total = mix64(total + np.sum(mix64(bits ^ place), dtype=np.uint64))
    return f"{int(total):016x}"
