#!/usr/bin/env python3
"""Predicts what the CUDA backend's steps take on a card.

gpu_model.py BUILD [--models 8b,1b] [--cards "H100,RTX 4090"] [--counts FILE...] [--write PAGE] [--figures FILE];
gpu_model.py BUILD --check: layers of a tiny model add up;
gpu_model.py BUILD --policies PAGE: steps of 8b on an RTX 4090 under policies, from the page's steps without one;
gpu_model.py BUILD --layer FILE...: what a layer adds under a policy, out of counts of two layers (layers=1,1 policy=NAME:SHARE)

tests/bench/gpu_model.cpp counts what the library's launches do (bytes, sectors, executions by line of the source). ptxas and nvdisasm say
what the compiled kernels take (registers, shared memory, machine instructions by line). A launch takes the largest of these times, and a
node's:

  memory    different sectors of the launch over the card's memory rate, of which READ_SHARE is reached
  issue     issue slots over 4 a cycle of an SM. Slots: for each line of the source, executions of its PTX instructions times its number of
            machine instructions over its number of PTX instructions. Machine instructions of lines without PTX count at the kernel's
            average
  tensor    products of mma over the SM's rate; whole numbers or halves with float sums
  link      sectors of host memory over PCIe
  shared    passes over the shared memory's banks, 1 a cycle: of 16 bytes a lane a warp takes four
  cache     different sectors of each block over what the second-level cache serves a cycle of an SM

Few blocks: issue, tensor, shared and cache count the SMs that the busiest wave leaves idle. What is left out: latencies within a block
(kernels of few blocks take longer than these bounds), clocks below boost.
"""
import argparse
import collections
import json
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# Sources: NVIDIA's architecture white papers (GA102, Ada and Hopper GPU architecture, RTX Blackwell), tables of full specifications, and
# the data sheets of H100 and H200 (SXM); boost clocks. An H100's units for floats reach their 66.9 TFLOPS at 1.98 GHz.
#   link      0.82 of PCIe x16's raw rate
#   threads, blocks, shared   of an SM (shared: bytes): CUDA programming guide, compute capabilities
#   whole, half   products of mma a cycle of an SM, of int8 and of halves with float sums: these pages' TOPS over SMs and clock. Hopper's
#             pages speak of wgmma; mma.sync, which these kernels have, reaches 62.9% of it on average (Luo and others, Dissecting the
#             NVIDIA Hopper Architecture, arXiv 2501.12084, section 6.2).
#   served    bytes a cycle that the second-level cache gives an SM. Hopper: 6.65 TB/s, measured by XLA's authors within one half of the
#             cache (their GpuDotFusionCostModel). The others: assumed, 5.2 TB/s on a 4090.
# Counts depend on architecture, SMs and cache alone, so an H200, which has an H100's SMs, shares them. Its cache is 60 MB; no kernel asks.
Card = collections.namedtuple("Card", "name architecture sms clock memory cache link threads blocks shared holds whole half served")
CARDS = [
    Card("RTX 3060", 86, 28, 1.777e9, 360e9, 3 << 20, 26e9, 1536, 16, 100 << 10, 12e9, 1024, 256, 16),
    Card("RTX 4090", 89, 128, 2.520e9, 1008e9, 72 << 20, 26e9, 1536, 24, 100 << 10, 24e9, 1024, 256, 16),
    Card("RTX 5090", 120, 170, 2.407e9, 1792e9, 96 << 20, 52e9, 1536, 24, 100 << 10, 32e9, 1024, 256, 16),
    Card("H100", 90, 132, 1.980e9, 3350e9, 50 << 20, 52e9, 2048, 32, 228 << 10, 80e9, .629 * 3786, .629 * 1893, 25),
    Card("H200", 90, 132, 1.980e9, 4800e9, 50 << 20, 52e9, 2048, 32, 228 << 10, 141e9, .629 * 3786, .629 * 1893, 25),
]
# Assumptions that `make gpu-bench` measures first (its section limits).
READ_SHARE = 0.92
NODE_SECONDS = 1.7e-6
# A model's layers of each kind (gpu_model.cpp: Model). Kind 1 of Q4_K_M: the first and last eighth of the layers, and each third between.
LAYERS = {"8b": (16, 16), "8b-q8_0": (16, 16), "1b": (8, 8), "qwen2.5-0.5b": (12, 12), "smollm2-135m": (15, 15), "tiny": (2, 3)}
# Budgets of resident KV: steps without selection and refills, whose times come on top under other policies.
POLICIES = ["streaming:0.25", "streaming:0.125"]
# Steps under policies (policy_table). `moved`: bytes of refills a token over the resident bytes. Of quest, freekv, heterocache and codes those of
# Qwen2.5-Coder-0.5B (gpu-predictions.md: refills); of synckv and shadowkv those of SmolLM2-135M at 50 and 20% of 1,024 tokens of text, the
# larger of the two (real-models.md). Each is moved per token, less what snapkv moves there, which settles alone. `searched`: bytes that find
# pages over the bytes of all KV. `keys`: what a head selects among, over its tokens. `serial`: seconds of the kernels of one block per head in a
# layer, at 1,024 keys and for each further 1,024 (cuda/kernels/README.md: a selection of 32K keys takes 100 us, a plan of 256 pages 5 us).
# `nodes`: launches and copies of a layer beside the step's graph, on the main stream. `within`: the share of refills that the layer waits for.
# `every`: steps between two refills.
Policy = collections.namedtuple("Policy", "name share moved searched keys serial nodes within every")
REFILLING = [
    Policy("auto", .20, 0, 0, 0, (0, 0), 0, 0, 1),
    Policy("auto by codes", .20, .135, 17 / 256, 1, (8e-6, 3e-6), 8, 1, 1),
    Policy("heterocache", .25, 0, 0, 0, (0, 0), 0, 0, 5),
    Policy("synckv", .25, .012, 0, 0, (0, 0), 1, 0, 5),
    Policy("freekv", .125, .131, 1 / 32, 1 / 32, (8e-6, 3e-6), 11, .056, 1),
    Policy("quest", .125, .144, 1 / 16, 1 / 16, (8e-6, 3e-6), 9, 1, 1),
    Policy("shadowkv", .0625, .033, 1 / 16, 1 / 8, (8e-6, 3e-6), 10, 1, 1),
]
KV_OF_8B = 32 * 8 * 2 * 128 * 2   # bytes of a token
CLASSES = "integer single twice half convert move memory control exchange product".split()
COUNTS = ("barriers read_bytes read_sectors written_bytes written_sectors link_bytes shared_requests shared_passes bank_conflicts products "
          "block_sectors own_sectors").split() + CLASSES


def key_of(card):
    """What counts depend on."""
    return f"{card.architecture}:{card.sms}:{card.cache}"


def find_tool(name, build):
    """nvdisasm may lie on the path, beside nvcc, or in the build's tools."""
    for folder in os.environ["PATH"].split(":") + ["/usr/local/cuda/bin", os.path.join(build, "tools/nvidia/cu13/bin")]:
        if os.access(os.path.join(folder, name), os.X_OK):
            return os.path.join(folder, name)
    return None


def sass(build, module, architecture):
    """{kernel: (registers, Counter of machine instructions by (file, line))} of one file of kernels."""
    folder = os.path.join(build, "sass")
    os.makedirs(folder, exist_ok=True)
    ptx = os.path.join(build, "ptx", module)
    stem = os.path.join(folder, f"{module[:-4]}.sm_{architecture}")
    if not os.path.exists(stem + ".sass") or os.path.getmtime(stem + ".sass") < os.path.getmtime(ptx):
        log = subprocess.run([find_tool("ptxas", build), f"-arch=sm_{architecture}", "-O3", "-lineinfo", "-v", "-o", stem + ".cubin", ptx],
                             capture_output=True, text=True, check=True).stderr
        with open(stem + ".log", "w") as out:
            out.write(log)
        with open(stem + ".sass", "w") as out:
            subprocess.run([find_tool("nvdisasm", build), "-g", "-c", stem + ".cubin"], stdout=out, check=True)
    registers, kernel = {}, None
    for line in open(stem + ".log"):
        if match := re.search(r"Compiling entry function '(\S+)'", line):
            kernel = match.group(1)
        elif match := re.search(r"Used (\d+) registers", line):
            registers[kernel] = int(match.group(1))
    found, kernel, place = {}, None, None
    for line in open(stem + ".sass"):
        if line.startswith("\t.section\t"):
            match = re.match(r"\t\.section\t\.text\.(\w+)", line)
            kernel, place = (match.group(1) if match else None), None
            if kernel:
                found[kernel] = collections.Counter()
        elif re.match(r"\s*\.weak\s+\$__internal", line):
            kernel = None   # behind a kernel stand functions for what is rare: quotients of subnormal numbers
        elif kernel and (match := re.match(r'\s*//## File "([^"]*)", line (\d+)', line)):
            place = (os.path.basename(match.group(1)), int(match.group(2)))
        elif kernel and re.match(r"\s*/\*[0-9a-f]{4,}\*/", line) and not re.search(r"\*/\s+NOP\s*;", line):
            found[kernel][place] += 1
    return {kernel: (registers[kernel], lines) for kernel, lines in found.items()}


def issue_slots(launch, kernel, machine):
    """Machine instructions that warps issue, out of executions by line."""
    files = kernel["files"]
    standing = collections.Counter()
    for file, line, n in kernel["lines"]:
        standing[os.path.basename(files[str(file)]), line] += n
    executed = collections.Counter()
    for file, line, n in launch["lines"]:
        executed[os.path.basename(files[str(file)]), line] += n
    slots = sum(n * machine[place] / standing[place] for place, n in executed.items())
    elsewhere = sum(n for place, n in machine.items() if place not in standing)
    return slots + elsewhere * sum(executed.values()) / max(1, sum(standing.values()))


def total_of(runs, step, layers):
    """The launches of a whole model, by kernel and geometry: sums and differences of the runs with one layer of each kind, and one more."""
    total = collections.defaultdict(lambda: collections.Counter())
    lines = collections.defaultdict(lambda: collections.Counter())
    other = collections.Counter()
    for run, times in (((1, 1), 3 - layers[0] - layers[1]), ((2, 1), layers[0] - 1), ((1, 2), layers[1] - 1)):
        found = next(s for s in runs[run]["steps"] if s["name"] == step)
        for key in ("waits", "graphs", "to_host", "to_device"):
            other[key] += times * found[key]
        for launch in found["launches"]:
            key = launch["kernel"], tuple(launch["grid"]), launch["threads"], launch["shared"]
            for name in COUNTS + ["n"]:
                total[key][name] += times * launch[name]
            for file, line, n in launch["lines"]:
                lines[key][file, line] += times * n
    out = []
    for key, counts in total.items():
        if counts["n"] > 0:
            executions = [[file, line, n] for (file, line), n in lines[key].items()]
            out.append(dict(counts, kernel=key[0], grid=key[1], threads=key[2], shared=key[3], lines=executions))
    return out, other


def short(name):
    """matmul_decode<q4_k, 1>: a kernel's name for people."""
    types = {0: "f32", 1: "f16", 2: "q4_0", 3: "q4_1", 6: "q5_0", 8: "q8_0", 12: "q4_k", 14: "q6_k", 30: "bf16"}
    name = re.sub(r"^void ", "", name).split("(orrery::cuda::Const")[0]
    name = re.sub(r"\(orrery::TensorType\)(\d+)", lambda m: types.get(int(m.group(1)), m.group(1)), name)
    name = re.sub(r"orrery::(cuda::)?([a-z_]+_cu::)?", "", name)
    head, _, rest = name.partition("<")
    arguments = re.sub(r"\((?:KvType|int|bool)\)", "", rest.rsplit(">(", 1)[0].rstrip(">")) if rest else ""
    arguments = re.sub(r"(?:BlockUnit|FloatUnit|PairUnit)<(\w+)>?", r"\1", arguments)
    return head.split("(")[0].replace("_kernel", "") + (f"<{arguments}>" if arguments else "")


def time_of(launch, kernel, card, code):
    """(seconds of one kind of launch in all, the bound, details)"""
    registers, machine = code[launch["kernel"]]
    blocks = launch["grid"][0] * launch["grid"][1] * launch["grid"][2]
    warps = (launch["threads"] + 31) // 32
    registers_of_warp = (registers * 32 + 255) // 256 * 256
    resident = min(card.blocks, card.threads // (32 * warps), 65536 // (registers_of_warp * warps),
                   card.shared // (launch["shared"] + 1024))
    waves = -(-blocks // card.sms)
    busy = blocks / (waves * card.sms) if blocks < 4 * card.sms else 1.0   # of the SMs; many blocks even out
    cycles = card.sms * busy * card.clock
    slots = issue_slots(launch, kernel, machine)
    whole = re.search(r"matmul_(gated_)?blocks", kernel["name"])
    bounds = {
        "memory": 32 * launch["own_sectors"] / (card.memory * READ_SHARE),
        "issue": slots / (4 * cycles),
        "tensor": launch["products"] / ((card.whole if whole else card.half) * cycles),
        "cache": 32 * launch["block_sectors"] / (card.served * cycles),
        "shared": launch["shared_passes"] / cycles,
        "link": launch["link_bytes"] / card.link,
        "node": launch["n"] * NODE_SECONDS,
    }
    bound = max(bounds, key=bounds.get)
    # A node's start and end overlap nothing.
    seconds = max(v for k, v in bounds.items() if k != "node") + bounds["node"]
    return seconds, bound, dict(bounds, slots=slots, registers=registers, resident=min(resident, waves), warps=min(resident, waves) * warps)


def check(build):
    """Steps of a tiny model of 2 and 3 layers of its kinds, counted, and added up of smaller models."""
    path = os.path.join(build, "counts-check.json")
    subprocess.run([os.path.join(build, "tests/ptx/gpu_model"), "tiny", path, "layers=1,1;2,1;1,2;2,3", "contexts=0,200", "prefills=0",
                    "rows=64"], check=True)
    runs = {tuple(run["layers"]): run for run in json.load(open(path))["runs"]}
    bad = 0
    for step in runs[2, 3]["steps"]:
        counted = {(x["kernel"], tuple(x["grid"]), x["threads"], x["shared"]): x for x in step["launches"]}
        launches, other = total_of(runs, step["name"], (2, 3))
        bad += len(launches) != len(counted) or other["waits"] != step["waits"]
        for launch in launches:
            found = counted[launch["kernel"], launch["grid"], launch["threads"], launch["shared"]]
            # Which sectors neighbours share depends on where buffers begin.
            off = [n for n in COUNTS + ["n"] if abs(launch[n] - found[n]) > (found[n] // 50 + 8 if n.endswith("sectors") else 0)]
            bad += len(off) > 0
            for name in off:
                print(f"{step['name']}, {launch['kernel']}: {name} is {launch[name]} by addition, {found[name]} counted")
    print("a model's layers add up" if bad == 0 else f"{bad} launches do not add up")
    return bad


def figure(x, digits=3):
    return f"{x:,.{digits}g}" if x < 1000 else f"{x:,.0f}"


def predict(counts, build, cards):
    """Yields (model, card, step, seconds, rows, other) for all that a file of counts holds of these cards."""
    by_key = collections.defaultdict(dict)
    for run in counts["runs"]:
        by_key[run["card"]][tuple(run["layers"])] = run
    for card, runs in ((card, runs) for key, runs in by_key.items() for card in cards if key_of(card) == key):
        code = {}
        for kernel in counts["kernels"].values():
            if kernel["module"] not in code:
                code[kernel["module"]] = sass(build, kernel["module"], card.architecture)
        for step in (s["name"] for s in runs[1, 1]["steps"]):
            launches, other = total_of(runs, step, LAYERS[counts["model"]])
            rows = []
            for launch in launches:
                kernel = counts["kernels"][launch["kernel"]]
                seconds, bound, details = time_of(launch, kernel, card, code[kernel["module"]])
                rows.append((seconds, bound, launch, details, short(kernel["name"])))
            yield counts["model"], card, step, sum(r[0] for r in rows), sorted(rows, key=lambda r: -r[0]), other


def tables(found):
    lines = ["| model | card | step | ms | rows/s | memory, GB | nodes | waits | graphs made | bound by |", "| --- |" + " --- |" * 9]
    for model, card, step, seconds, rows, other in found:
        share = collections.Counter()
        for row in rows:
            share[row[1]] += row[0] / seconds
        n_rows = int(step.split()[1]) if step.startswith("prefill") else 1
        bound = ", ".join(f"{k} {100 * v:.0f}%" for k, v in share.most_common(3) if v >= 0.05)
        memory = sum(32 * r[2]["own_sectors"] for r in rows) * 1e-9
        nodes = sum(r[2]["n"] for r in rows)
        if step.startswith("decode") and memory * 1e9 > card.holds - 1e9:
            bound += "; does not fit"
        lines.append(f"| {model} | {card.name} | {step} | {1e3 * seconds:.2f} | {n_rows / seconds:,.0f} | {memory:.2f} | {nodes} | "
                     f"{other['waits']} | {other['graphs']} | {bound} |")
    for model, card, step, seconds, rows, other in found:
        if model != "8b" and any(f[0] == "8b" for f in found):
            continue   # the smaller models' kernels are the same ones
        lines += ["", f"### {model}, {card.name}, {step}", "",
                  "| kernel | launches | blocks | us each | bound | memory, MB | block sectors, MB | slots, M | slots per PTX | "
                  "tensor, us | shared, us | registers | warps on an SM |", "| --- |" + " --- |" * 12]
        for taken, bound, launch, details, name in rows[:14]:
            n = launch["n"]
            executed = sum(launch[c] for c in CLASSES)
            each = [figure(x / n) for x in (32e-6 * launch["own_sectors"], 32e-6 * launch["block_sectors"], 1e-6 * details["slots"])]
            blocks = launch["grid"][0] * launch["grid"][1] * launch["grid"][2]
            lines.append(f"| `{name}` | {n} | {blocks} | {figure(1e6 * taken / n)} | {bound} | {' | '.join(each)} | "
                         f"{details['slots'] / max(1, executed):.2f} | {figure(1e6 * details['tensor'] / n)} | "
                         f"{figure(1e6 * details['shared'] / n)} | {details['registers']} | {details['warps']} |")
    return lines


def write_figures(path, found):
    """Lines CARD<TAB>KEY<TAB>milliseconds, for programs on a card. CARD is part of the driver's name of it. The file's other lines stay."""
    figures = {}
    if os.path.exists(path):
        for line in open(path):
            if not line.startswith("#"):
                card, key, milliseconds = line.rstrip("\n").split("\t")
                figures[card, key] = milliseconds
    for model, card, step, seconds, _, _ in found:
        figures[card.name, f"{model} {step}".replace(" behind 0", "")] = f"{1e3 * seconds:.3f}"
    order = [card.name for card in CARDS]
    with open(path, "w") as out:
        out.write("# Predicted milliseconds (gpu-predictions.md). CARD is part of the driver's name of a card: CARD<TAB>KEY<TAB>milliseconds\n")
        for (card, key), milliseconds in sorted(figures.items(), key=lambda x: (order.index(x[0][0]), x[0][1])):
            out.write(f"{card}\t{key}\t{milliseconds}\n")


def policy_table(page):
    """Steps of 8b on a 4090 under policies: the page's step behind no tokens, what attention reads, what selection takes, and the link."""
    card = next(c for c in CARDS if c.name == "RTX 4090")
    full = {int(m.group(1)): 1e-3 * float(m.group(2))
            for m in re.finditer(r"^\| 8b \| RTX 4090 \| decode (\d+) \| ([\d.]+) \|", open(page).read(), re.M)}
    rate = card.memory * READ_SHARE
    lines = ["| tokens | policy | resident, GB | attention, ms | selection, ms | link, ms | exposed, ms | step, ms | full, ms | of full | "
             "exposed | bound by |", "| --- |" + " --- |" * 11]
    for tokens in sorted(full):
        if tokens == 0:
            continue
        for p in REFILLING:
            kv = tokens * KV_OF_8B
            resident = kv * p.share
            attention = (resident - min(kv * p.searched, resident / 2)) / rate
            first, more = p.serial
            serial = (first + more * max(0, tokens * p.keys / 1024 - 1)) if p.keys else 0
            selection = 32 * (p.nodes * NODE_SECONDS + serial) + kv * p.searched / rate
            computed = full[0] + attention + selection
            link = resident * p.moved * p.every / card.link   # of a step with refills
            # Refills for the next step run beside the layers; the first or the last layer's have nothing beside them.
            beside = link * (1 - p.within)
            exposed = (link * p.within + max(beside / 32, beside - computed * 31 / 32)) / p.every
            step = computed + exposed
            parts = {"weights": full[0], "attention": attention, "selection": selection, "link": exposed}
            bound = ", ".join(f"{k} {100 * v / step:.0f}%" for k, v in sorted(parts.items(), key=lambda x: -x[1]) if v >= .05 * step)
            beyond = " (does not fit)" if 4.9e9 + kv > card.holds - 1e9 else ""
            lines.append(f"| {tokens:,} | {p.name}, {100 * p.share:g}% | {1e-9 * resident:.2f} | {1e3 * attention:.2f} | {1e3 * selection:.2f} | "
                         f"{1e3 * link / p.every:.2f} | {1e3 * exposed:.2f} | {1e3 * step:.2f} | {1e3 * full[tokens]:.2f}{beyond} | "
                         f"{100 * step / full[tokens]:.0f}% | {100 * exposed / step:.0f}% | {bound} |")
    return lines


def layer_table(files, build):
    """The launches of attention, and those that a policy adds, of one layer."""
    own = ("matmul", "rms_norm", "rotate", "quantize", "shortlist", "embed", "prepare_rope", "add_", "swiglu")
    lines = ["| step | kernel | launches | blocks | us each | bound | memory, MB |", "| --- |" + " --- |" * 6]
    for counts in (json.load(open(file)) for file in files):
        for run in counts["runs"]:
            card = next(c for c in CARDS if key_of(c) == run["card"])
            code = {}
            for step in run["steps"]:
                total = 0
                for launch in step["launches"]:
                    kernel = counts["kernels"][launch["kernel"]]
                    name = short(kernel["name"])
                    if name.startswith(own):
                        continue
                    if kernel["module"] not in code:
                        code[kernel["module"]] = sass(build, kernel["module"], card.architecture)
                    seconds, bound, _ = time_of(launch, kernel, card, code[kernel["module"]])
                    blocks = launch["grid"][0] * launch["grid"][1] * launch["grid"][2]
                    n, n_layers = launch["n"], sum(run["layers"])
                    total += 0 if name.startswith(("attend", "merge")) else seconds / n_layers
                    lines.append(f"| {step['name']} | `{name}` | {n / n_layers:g} | {blocks} | {figure(1e6 * seconds / n)} | {bound} | "
                                 f"{figure(32e-6 * launch['own_sectors'] / n)} |")
                lines.append(f"| {step['name']} | without attention | | | {figure(1e6 * total)} | | |")
    return lines


def main():
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("build")
    options.add_argument("--models", default="8b,1b,qwen2.5-0.5b,smollm2-135m")
    options.add_argument("--cards", default=",".join(card.name for card in CARDS))
    options.add_argument("--counts", nargs="*", help="files that gpu_model has written, in place of runs of it")
    options.add_argument("--policies", metavar="PAGE", help="prints steps under policies; nothing is counted")
    options.add_argument("--layer", nargs="+", metavar="FILE")
    options.add_argument("--check", action="store_true")
    options.add_argument("--write", help="the page's tables go here, behind its line <!-- tables -->")
    options.add_argument("--figures", metavar="FILE", help="the steps' times go here, for programs")
    options = options.parse_args()
    if options.layer:
        return print("\n".join(layer_table(options.layer, options.build)))
    if options.policies:
        return print("\n".join(policy_table(options.policies)))
    if options.check:
        sys.exit(check(options.build) != 0)
    if not find_tool("nvdisasm", options.build) or not find_tool("ptxas", options.build):
        sys.exit("gpu_model.py needs ptxas and nvdisasm of the CUDA toolkit")
    names = options.cards.split(",")
    if unknown := set(names) - {card.name for card in CARDS}:
        sys.exit(f"gpu_model.py knows no card {', '.join(sorted(unknown))}")
    cards = [card for card in CARDS if card.name in names]
    files = options.counts
    if not files:
        files = []
        keys = ";".join(dict.fromkeys(key_of(card) for card in cards))
        for model in options.models.split(","):
            long = "32768,131072" if model in ("8b", "1b") else "8192"
            steps = [["contexts=0," + long, "prefills=0"]]
            if model == "8b":
                steps += [["contexts=" + long, "policy=" + policy] for policy in POLICIES]
            for i, step in enumerate(steps):
                files.append(os.path.join(options.build, f"counts-{model}-{i}.json"))
                subprocess.run([os.path.join(options.build, "tests/ptx/gpu_model"), model, files[-1], "cards=" + keys] + step, check=True)
    found = [x for file in files for x in predict(json.load(open(file)), options.build, cards)]
    lines = tables(found)
    print("\n".join(lines))
    if options.figures:
        write_figures(options.figures, found)
    if options.write:
        text = open(options.write).read().split("<!-- tables -->")[0]
        with open(options.write, "w") as out:
            out.write(text + "<!-- tables -->\n\n" + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
