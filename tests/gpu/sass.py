#!/usr/bin/env python3
"""What machine code must show: sass.py BUILD ARCHITECTURE checks the cubins of BUILD/ptx; sass.py --tool BUILD prints where nvdisasm is.

For some kernels: the most bytes of global memory that a lane has under way in straight code, loads and stores of 16 bytes, and
instructions of a loop for each 16 bytes of weights (a group of 32 columns; of Q8_0 half of one); for moves also the loads of 16 bytes before the first store; issue
slots of a loop for 16 cycles of the tensor cores; numbers of some instructions. The bounds are what the code has: a change that makes one
worse fails.
`target` is what is wanted. Without nvdisasm the check is skipped, and says so.
"""
import os
import re
import subprocess
import sys

WIDTH = {"128": 16, "64": 8, "U16": 2, "S16": 2, "U8": 1, "S8": 1}
# module, kernel's symbol as a pattern: what is measured, bound, target. "at least" of bytes, "at most" of instructions.
CHECKS = [
    ("matmul_decode", r"matmul_decode_kernel.*TensorTypeE12E.*Li1ELb0E", "bytes", 288, 64),
    ("matmul_decode", r"matmul_decode_kernel.*TensorTypeE12E.*Li1ELb0E", "per_load", 44, 45),
    ("matmul_decode", r"matmul_decode_kernel.*TensorTypeE8E.*Li1ELb0E", "bytes", 280, 64),
    ("matmul_decode", r"matmul_decode_kernel.*TensorTypeE8E.*Li1ELb0E", "per_load", 12, 22.5),
    ("matmul_decode", r"matmul_decode_kernel.*TensorTypeE14E.*Li1ELb0E", "bytes", 272, 64),
    ("matmul_decode", r"matmul_decode_kernel.*TensorTypeE14E.*Li1ELb0E", "per_load", 59.5, 45),
    ("matmul_decode", r"matmul_decode_kernel.*TensorTypeE6E.*Li1ELb0E", "bytes", 248, 64),
    ("matmul_decode", r"matmul_decode_kernel.*TensorTypeE6E.*Li1ELb0E", "per_load", 49.5, 45),
    ("matmul_decode", r"matmul_decode_kernel.*TensorTypeE2E.*Li1ELb0E", "bytes", 232, 64),
    ("matmul_decode", r"matmul_decode_kernel.*TensorTypeE2E.*Li1ELb0E", "per_load", 32, 45),
    ("matmul_decode", r"matmul_decode_kernel.*TensorTypeE13E.*Li1ELb0E", "per_load", 61.5, 45),
    ("matmul_decode", r"matmul_decode_kernel.*TensorTypeE12E.*Li1ELb1E", "per_load", 42.5, 45),
    ("matmul_prefill", r"matmul_blocks_kernel.*4TileILi128E.*TensorTypeE12E", "slots", 20, 22.8),
    ("matmul_prefill", r"matmul_blocks_kernel.*4TileILi128E.*TensorTypeE8E", "slots", 14.5, 22.8),
    ("matmul_prefill", r"matmul_blocks_kernel.*4TileILi128E.*TensorTypeE6E", "slots", 15.5, 22.8),
    ("matmul_prefill", r"matmul_blocks_kernel.*4TileILi128E.*TensorTypeE2E", "slots", 15, 22.8),
    ("matmul_prefill", r"matmul_blocks_kernel.*4TileILi128E.*TensorTypeE14E", "slots", 22, 22.8),
    ("kv", r"move_kv_kernel", "bytes", 64, 64),
    ("kv", r"move_kv_kernel", "wide_loads", 4, 4),
    ("kv", r"move_kv_kernel", "wide_stores", 4, 4),
    ("kv", r"move_kv_kernel", "loads_before_store", 4, 4),
    ("low_rank", r"rebuild_keys_kernelILb1E", "doubles", 0, 0),
    ("low_rank", r"rebuild_keys_kernelILb1E", "products", 12, 4),
    ("low_rank", r"rebuild_keys_kernelILb1E", "async_copies", 3, 1),
    ("top_keys", r"key_weights_kernel", "generic_loads", 0, 0),
]


# Instructions of the whole kernel: double precision, tensor products of halves, copies from global to shared memory past the registers,
# loads whose place the compiler does not know.
COUNTED = {"doubles": ("DADD", "DMUL", "DFMA"), "products": ("HMMA",), "async_copies": ("LDGSTS",), "generic_loads": ("LD",)}
AT_MOST = ("per_load", "slots", "doubles", "generic_loads")


def find_tool(name, build):
    for folder in os.environ["PATH"].split(":") + ["/usr/local/cuda/bin", os.path.join(build, "tools/nvidia/cu13/bin")]:
        if os.access(os.path.join(folder, name), os.X_OK):
            return os.path.join(folder, name)
    return None


class Code(list):
    """Instructions, and the places of labels among them."""

    def __init__(self):
        super().__init__()
        self.labels = {}

    def loops(self):
        """(first, last) of each loop: from a label to a branch back to it, the shortest first."""
        found = []
        for last, instruction in enumerate(self):
            match = re.search(r"\bBRA\b.*`\((\.L_x_\d+)\)", instruction)
            if match and self.labels.get(match.group(1), last + 1) <= last:
                found.append((self.labels[match.group(1)], last))
        return sorted(found, key=lambda loop: loop[1] - loop[0])


def kernels(tool, cubin):
    """{symbol: its Code} of a cubin."""
    found, code = {}, None
    for line in subprocess.run([tool, "-c", cubin], capture_output=True, text=True, check=True).stdout.split("\n"):
        if line.startswith("\t.section\t"):
            match = re.match(r"\t\.section\t\.text\.(\w+)", line)
            code = found.setdefault(match.group(1), Code()) if match else None
        elif code is not None and (match := re.match(r"(\.L_x_\d+):", line)):
            code.labels[match.group(1)] = len(code)
        elif code is not None and (match := re.match(r"\s*/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;", line)):
            if match.group(1) != "NOP":
                code.append(match.group(1))
    return found


def operation(instruction):
    return re.sub(r"^@!?U?P\w+\s+", "", instruction)


def width(mnemonic):
    return next((WIDTH[part] for part in mnemonic.split(".") if part in WIDTH), 4)


def bytes_under_way(code):
    """The most bytes a lane has loaded, or is loading, of which it has read none: in the order of the code."""
    pending, most = {}, 0   # the first register of a load: (registers, bytes)
    for instruction in code:
        text = operation(instruction)
        mnemonic, _, operands = text.partition(" ")
        registers = [int(r) for r in re.findall(r"\bR(\d+)\b", operands)]
        if mnemonic.startswith("LDG"):
            read = registers[1:]
        else:
            read = registers if mnemonic.startswith(("ST", "BRA", "RED")) else registers[1:]
        for first in [f for f, (n, _) in pending.items() if any(f <= r < f + n for r in read)]:
            del pending[first]
        if mnemonic.startswith("LDG") and registers:
            pending[registers[0]] = (max(1, width(mnemonic) // 4), width(mnemonic))
            most = max(most, sum(b for _, b in pending.values()))
        elif mnemonic.startswith(("BRA", "EXIT")):
            pending = {}
    return most


def wide_loads_before_store(names):
    """The most loads of 16 bytes in straight code before a store to global memory."""
    loads = most = 0
    for name in names:
        if name.startswith("LDG") and width(name) == 16:
            loads += 1
        elif name.startswith("STG"):
            most, loads = max(most, loads), 0
        elif name.startswith(("BRA", "EXIT")):
            loads = 0
    return most


def slots_per_product(code):
    """Issue slots of matmul_blocks for each m16n8k32 of int8, of a warp that does all of a step's work: two rounds of the innermost loop with
    products, if it stands within the loop of steps, and the rest of that loop once."""
    def products(loop):
        # an m16n8k16 is half of one
        return sum({"IMMA.16832.S8.S8": 2, "IMMA.16816.S8.S8": 1}.get(operation(i).split()[0], 0) for i in code[loop[0]:loop[1] + 1]) / 2
    with_products = [loop for loop in code.loops() if products(loop)]
    if not with_products:
        return float("inf")
    inner, outer = with_products[0], with_products[-1]
    length = [last - first + 1 for first, last in (inner, outer)]
    if inner == outer:
        return length[0] / products(inner)
    return (length[1] + length[0]) / (2 * products(inner))


def measure(what, code):
    names = [operation(i).split()[0] for i in code]
    if what in COUNTED:
        return sum(n.split(".")[0] in COUNTED[what] for n in names)
    if what == "loads_before_store":
        return wide_loads_before_store(names)
    if what == "bytes":
        return bytes_under_way(code)
    if what == "slots":
        return slots_per_product(code)
    if what == "per_load":
        loops = [names[first:last + 1] for first, last in code.loops()]
        return min(len(loop) / n for loop in loops if (n := sum(name.startswith("LDG.E.NA.128") for name in loop)))
    kind = "LDG" if what == "wide_loads" else "STG"
    return sum(n.startswith(kind) and width(n) == 16 for n in names)


def main():
    if len(sys.argv) == 3 and sys.argv[1] == "--tool":
        tool = find_tool("nvdisasm", sys.argv[2])
        print(tool or "no nvdisasm")
        return 0 if tool else 1
    build, architecture = sys.argv[1], sys.argv[2]
    tool = find_tool("nvdisasm", build)
    if not tool:
        print("skipped: machine code is not looked at without nvdisasm")
        return 0
    failed = False
    for module, pattern, what, bound, target in CHECKS:
        code = kernels(tool, os.path.join(build, "ptx", f"{module}.sm_{architecture}.cubin"))
        for symbol in (s for s in code if re.search(pattern, s)):
            found = measure(what, code[symbol])
            bad = bound is not None and (found > bound if what in AT_MOST else found < bound)
            failed |= bad
            print(f"sm_{architecture} {symbol[:90]} {what}: {found:.4g}, bound {bound}, target {target}{'  WORSE' if bad else ''}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
