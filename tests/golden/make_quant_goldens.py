#!/usr/bin/env python3
"""Writes quants.txt: what the reference implementation of the block formats makes of given blocks and given floats.

Needs gguf 0.19.0 and numpy 2 from PyPI.  Run from anywhere: python3 make_quant_goldens.py
Lines: `dequantize TYPE HEX(blocks) HEX(float32 values)` and `quantize TYPE HEX(float32 values) HEX(blocks)`; numbers are
little-endian.  Every block holds random bits, except its half-precision scales: those go through normal, negative,
denormal, zero and largest values, but never infinities or NaNs, which no file holds and which compare badly.
"""
import pathlib

import gguf
import numpy as np
from gguf.constants import GGML_QUANT_SIZES

Type = gguf.GGMLQuantizationType
# Where the halves stand in a block.
HALVES = {
    "F16": [0], "Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q2_K": [80, 82], "Q3_K": [108],
    "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0], "F32": [], "BF16": [],
}
# Types with a codebook: the entries of their codebook, and of a block. The half stands first.
CODEBOOKS = {"IQ3_XXS": (256, 64), "IQ3_S": (512, 64), "IQ2_XXS": (256, 32), "IQ2_XS": (512, 32), "IQ2_S": (1024, 32)}
# Positive and negative normals, both zeros, smallest and largest denormals, smallest normal, largest.
SPECIAL = [0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x83FF, 0x0400, 0x7BFF, 0xFBFF, 0x3C00, 0xBC00]


def halves(rng, n):
    normal = (rng.standard_normal(n) * 0.02).astype(np.float16).view(np.uint16)
    special = np.array(SPECIAL, np.uint16)[rng.integers(len(SPECIAL), size=n)]
    return np.where(rng.random(n) < 0.6, normal, special)


def blocks_of(name, rng):
    elements, size = GGML_QUANT_SIZES[Type[name]]
    n = max(4, 768 // elements)
    blocks = rng.integers(256, size=(n, size), dtype=np.uint8)
    for at in HALVES[name]:
        blocks[:, at:at + 2] = halves(rng, n).astype("<u2").view(np.uint8).reshape(n, 2)
    if name == "F32":
        blocks = (rng.standard_normal(n) * 3).astype("<f4").view(np.uint8).reshape(n, 4)
    if name == "BF16":  # any bits but those of infinities and NaNs
        values = blocks.view("<u2")
        values[(values & 0x7F80) == 0x7F80] &= 0xBFFF
    return blocks


def blocks_of_codebook(name, rng):
    """Blocks in which every entry of the codebook occurs once."""
    n_entries, in_block = CODEBOOKS[name]
    n = n_entries // in_block
    blocks = rng.integers(256, size=(n, GGML_QUANT_SIZES[Type[name]][1]), dtype=np.uint8)
    blocks[:, 0:2] = halves(rng, n).astype("<u2").view(np.uint8).reshape(n, 2)
    entries = rng.permutation(n_entries).reshape(n, in_block)
    low, high = (entries & 255).astype(np.uint8), (entries >> 8).astype(np.uint8)
    if name == "IQ2_XS":    # words of an entry and signs
        blocks[:, 2:66:2] = low
        blocks[:, 3:66:2] = blocks[:, 3:66:2] & 0xFE | high
    elif name == "IQ2_XXS":  # four entries, then a word
        for g in range(8):
            blocks[:, 2 + 8 * g:6 + 8 * g] = low[:, 4 * g:4 * g + 4]
    else:                   # low bytes, and upper bits in bytes of their own
        blocks[:, 2:2 + in_block] = low
        if n_entries > 256:
            each = in_block // 8   # entries of a byte: eight of one bit, or four of two
            parts = high.reshape(n, 8, each) << (np.arange(each, dtype=np.uint8) * (8 // each))
            blocks[:, 66:74] = np.bitwise_or.reduce(parts, axis=-1)
    return blocks


def rows_to_quantize(rng):
    """Blocks of 32 floats: random ones of many magnitudes, and the corners of the rounding rules."""
    rows = [rng.standard_normal(32) * 10.0**p for p in (-4, -2, -1, 0, 0, 0, 1, 3)]
    rows.append(np.zeros(32))
    rows.append(np.full(32, 1.5))
    rows.append(np.full(32, -0.75))
    rows.append(np.where(np.arange(32) % 2, 2.0, -2.0))   # equal magnitudes: the first one counts
    rows.append(np.where(np.arange(32) % 2, -2.0, 2.0))
    ties = (np.arange(32) - 16) + 0.5                      # d is exactly 1: every value lies halfway
    ties[0] = 127.0
    rows.append(ties)
    rows.append(-ties)
    ties = (np.arange(32) % 16) / 2.0 - 4.0                # the same for the 4-bit formats: d = 1
    ties[5] = -8.0
    rows.append(ties)
    ties = (np.arange(32) % 31) / 2.0
    ties[31] = 15.0
    rows.append(ties)
    rows.append(np.linspace(-1, 1, 32) * 1e-6)             # the scale becomes a denormal half
    rows.append(np.linspace(0, 1, 32) * 60000.0)
    rows.append(np.concatenate([[-0.0], np.full(31, 3e-9)]))  # and here it rounds to zero
    return np.array(rows, np.float32)


def main():
    rng = np.random.default_rng(20260101)
    out = pathlib.Path(__file__).parent / "quants.txt"
    with out.open("w") as f:
        for name in HALVES:
            blocks = blocks_of(name, rng)
            values = gguf.quants.dequantize(blocks, Type[name]).astype("<f4")
            f.write(f"dequantize {name} {blocks.tobytes().hex()} {values.tobytes().hex()}\n")
        rows = rows_to_quantize(rng)
        for name in ("F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"):
            blocks = gguf.quants.quantize(rows.copy(), Type[name])
            f.write(f"quantize {name} {rows.astype('<f4').tobytes().hex()} {blocks.tobytes().hex()}\n")
        rng = np.random.default_rng(20261126)
        for name in CODEBOOKS:
            blocks = blocks_of_codebook(name, rng)
            values = gguf.quants.dequantize(blocks, Type[name]).astype("<f4")
            f.write(f"dequantize {name} {blocks.tobytes().hex()} {values.tobytes().hex()}\n")
        blocks = rng.integers(256, size=(64, 36), dtype=np.uint8)
        blocks[:, 0:4] = rng.permutation(256).astype(np.uint8).reshape(64, 4)   # every scale
        values = gguf.quants.dequantize(blocks, Type.NVFP4).astype("<f4")
        f.write(f"dequantize NVFP4 {blocks.tobytes().hex()} {values.tobytes().hex()}\n")
        blocks = rng.integers(256, size=(64, 17), dtype=np.uint8)
        blocks[:, 0] = np.append(np.arange(3), np.linspace(3, 251, 61)).astype(np.uint8)   # exponents: the first two are of denormal numbers
        values = gguf.quants.dequantize(blocks, Type.MXFP4).astype("<f4")
        f.write(f"dequantize MXFP4 {blocks.tobytes().hex()} {values.tobytes().hex()}\n")


main()
