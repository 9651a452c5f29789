#!/usr/bin/env python3
"""Predicts what the CUDA backend's steps take on a card.

gpu_model.py BUILD [--models 8b,1b] [--cards "H100,RTX 4090"] [--counts FILE...] [--write PAGE] [--figures FILE];
gpu_model.py BUILD --check: layers of a tiny model add up;
gpu_model.py BUILD --counts FILE... --policies: steps of 8b under policies, from counts of its steps without one and an H100's steps under them;
gpu_model.py BUILD --layer FILE...: what a layer adds under a policy, out of counts of two layers (layers=1,1 policy=NAME:SHARE)

tests/bench/gpu_model.cpp counts what the library's launches do (bytes, sectors, executions by line of the source, the longest chain of
dependent instructions). ptxas and nvdisasm say what the compiled kernels take (registers, shared memory, machine instructions by line).
gpu_cards.py has the cards' constants. A launch takes a node's time and the largest of these:

  memory    different sectors of the launch over the card's memory rate, of which read_share is reached
  issue     issue slots over 4 a cycle of an SM. Slots: for each line of the source, executions of its PTX instructions times its number of
            machine instructions over its number of PTX instructions. Machine instructions of lines without PTX count at the kernel's
            average. alu: the same of instructions on whole numbers, over their pipe's rate
  tensor    products of mma over the SM's rate; whole numbers or halves with float sums
  link      sectors of host memory over PCIe
  shared    passes over the shared memory's banks, 1 a cycle: of 16 bytes a lane a warp takes four
  cache     different sectors of each block over what the second-level cache serves a cycle of an SM
  loop      turns of the main loop, where it multiplies on tensor cores, times what gpu_loops.py finds a turn to take with the warps that
            fit on an SM; and the other instructions' slots
  latency   the longest block's chain (tests/ptx/executor/path.h), once for each round of blocks that an SM has, and memory, cache or link
            besides: on an H100 their sum comes within 5% of decode steps, and the larger alone 20% below. Loads of what the launch streams
            come from memory, others from the second-level cache

Few blocks: issue, alu, tensor, shared and cache count the SMs that the busiest wave leaves idle. A step is its launches one after another,
what a graph's launch and the wait take, and the host's work. What is left out: clocks below boost, conflicts in the caches, other users of
the card.
"""
import argparse
import collections
import json
import os
import re
import subprocess
import sys

import gpu_loops
from gpu_cards import CARDS, take_measured

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# A model's layers of each kind (gpu_model.cpp: Model). Kind 1 of Q4_K_M: the first and last eighth of the layers, and each third between.
LAYERS = {"8b": (16, 16), "8b-q8_0": (16, 16), "1b": (8, 8), "qwen2.5-0.5b": (12, 12), "smollm2-135m": (15, 15), "tiny": (2, 3)}
# Budgets of resident KV: steps without selection and refills, whose times come on top under other policies.
POLICIES = ["streaming:0.25", "streaming:0.125"]
# Steps under policies (policy_table). `moved`: bytes of refills a token over the resident bytes. Of quest, freekv, heterocache and codes those of
# Qwen2.5-Coder-0.5B (gpu-predictions.md: refills); of synckv and shadowkv those of SmolLM2-135M at 50 and 20% of 1,024 tokens of text, the
# larger of the two (real-models.md). Each is moved per token, less what snapkv moves there, which settles alone. `piece`: bytes of host memory
# that lie together. `within`: the share of refills that the layer waits for; of random numbers all of them. `every`: steps between two refills.
Policy = collections.namedtuple("Policy", "moved piece within every")
REFILLING = {
    "auto": Policy(0, 4096, 0, 1),
    "auto:by=codes": Policy(.135, 512, 1, 1),
    "heterocache": Policy(0, 4096, 0, 5),
    "synckv:budget=0.3": Policy(.012, 4096, 0, 5),
    "freekv": Policy(.131, 8192, .056, 1),
    "quest": Policy(.144, 4096, 1, 1),
    "shadowkv": Policy(.033, 4096, 1, 1),
    "streaming": Policy(0, 4096, 0, 1),
}
# Host's work of a step beside the launches, measured (gpu-predictions.md).
HOST_SECONDS, HOST_OF_LAYER = 10e-6, 2.6e-6
KV_OF_8B = 32 * 8 * 2 * 128 * 2   # bytes of a token
CLASSES = "integer single twice half convert move memory control exchange product".split()
OTHERS = "waits graphs to_host to_device copies all_launches".split()
COUNTS = ("barriers read_bytes read_sectors written_bytes written_sectors link_bytes shared_requests shared_passes bank_conflicts products "
          "block_sectors own_sectors").split() + CLASSES


def find_tool(name, build):
    """nvdisasm may lie on the path, beside nvcc, or in the build's tools."""
    for folder in os.environ["PATH"].split(":") + ["/usr/local/cuda/bin", os.path.join(build, "tools/nvidia/cu13/bin")]:
        if os.access(os.path.join(folder, name), os.X_OK):
            return os.path.join(folder, name)
    return None


def ptx_of(build, module, architecture):
    """The PTX that machine code of the architecture is made of (cuda/archive.cmake): from sm_90 on another than the one that is counted."""
    counted = os.path.join(build, "ptx", module)
    if architecture < 90:
        return counted
    later = counted[:-4] + ".90.ptx"
    if not os.path.exists(later) or os.path.getmtime(later) < os.path.getmtime(counted):
        subprocess.run([find_tool("nvcc", build), "-std=c++17", "-O3", "-ptx", "-arch=compute_90", "-lineinfo", "-diag-suppress=554", "-I" + ROOT,
                        "-I" + os.path.join(ROOT, "include"), "-o", later, os.path.join(ROOT, "cuda/kernels", module[:-4] + ".cu")], check=True)
    return later


def sass(build, module, architecture):
    """(registers by kernel, gpu_loops.parse() of the listing) of one file of kernels."""
    folder = os.path.join(build, "sass")
    os.makedirs(folder, exist_ok=True)
    ptx = ptx_of(build, module, architecture)
    stem = os.path.join(folder, f"{module[:-4]}.sm_{architecture}")
    listing = stem + ".hex.sass"
    if not os.path.exists(listing) or os.path.getmtime(listing) < os.path.getmtime(ptx):
        log = subprocess.run([find_tool("ptxas", build), f"-arch=sm_{architecture}", "-O3", "-lineinfo", "-v", "-o", stem + ".cubin", ptx],
                             capture_output=True, text=True, check=True).stderr
        with open(stem + ".log", "w") as out:
            out.write(log)
        with open(listing, "w") as out:
            subprocess.run([find_tool("nvdisasm", build), "-g", "-hex", "-c", stem + ".cubin"], stdout=out, check=True)
    registers, kernel = {}, None
    for line in open(stem + ".log"):
        if match := re.search(r"Compiling entry function '(\S+)'", line):
            kernel = match.group(1)
        elif match := re.search(r"Used (\d+) registers", line):
            registers[kernel] = int(match.group(1))
    return registers, gpu_loops.parse(listing)


class Code:
    """A kernel as it runs on a card: its registers, its machine instructions, and those of each line of the source."""

    def __init__(self, registers, code, card):
        self.registers, self.code, self.card = registers, code, card
        self.slots, self.alu = collections.Counter(), collections.Counter()
        for i in code:
            if i.name == "NOP":
                continue
            self.slots[i.place] += 1
            pipe, cycles = gpu_loops.pipe_of(i, card)
            if pipe == "alu":
                self.alu[i.place] += cycles
        # Kernels that wait for those ahead of them themselves (griddepcontrol.wait) begin before these end.
        self.early = any(i.name.startswith("ACQBULK") for i in code)
        self.turns = {}   # what turns of the main loop take, by warps on an SM

    def executed(self, launch, kernel, machine):
        """Of a launch: machine instructions (slots) or their cycles (alu) that warps issue, out of executions by line."""
        executed, standing = by_place(launch["lines"], kernel), by_place(kernel["lines"], kernel)
        known = sum(n * machine[place] / standing[place] for place, n in executed.items())
        elsewhere = sum(n for place, n in machine.items() if place not in standing)
        return known + elsewhere * sum(executed.values()) / max(1, sum(standing.values()))

    def loop(self, launch, kernel, warps):
        """(turns of the main loop that a warp makes, cycles of one with so many warps on an SM, slots of a turn); None without such a loop."""
        found = gpu_loops.main_loop(self.code)
        if not found or launch["product"] == 0:
            return None
        first, last = found
        executed, standing = by_place(launch["lines"], kernel), by_place(kernel["lines"], kernel)

        def rate(i):
            return executed[i.place] / standing[i.place] if standing[i.place] else 0

        inside = self.code[first:last + 1]
        products = sum(gpu_loops.is_product(i) for i in inside)
        inner = [(i.target, k) for k, i in enumerate(self.code[first:last], first) if i.target is not None and first <= i.target <= k]
        inner = [x for x in inner if any(gpu_loops.is_product(i) for i in self.code[x[0]:x[1] + 1])]
        all_warps = launch["n"] * blocks_of(launch) * ((launch["threads"] + 31) // 32)
        # How often the loop's own copies are ordered says how often it turns; its products say how often an inner loop does.
        ordered = [i for i in inside if i.name.startswith("LDGDEPBAR")]
        turns = executed[ordered[0].place] / len(ordered) if ordered else launch["product"] / products
        trips = max(1, round(launch["product"] / turns / products)) if inner else 1
        turns = launch["product"] / (products * trips)
        if warps not in self.turns:
            self.turns[warps] = gpu_loops.cycles_of_turn(self.code, found, trips, rate, warps, self.card)
        steps = [k for k, _ in gpu_loops.body(self.code, *found, rate)]
        slots = len(steps) + (trips - 1) * sum(any(a <= k <= b for a, b in inner) for k in steps)
        return turns / all_warps, self.turns[warps], slots


def by_place(lines, kernel):
    counts = collections.Counter()
    for file, line, n in lines:
        counts[os.path.basename(kernel["files"][str(file)]), line] += n
    return counts


def blocks_of(launch):
    return launch["grid"][0] * launch["grid"][1] * launch["grid"][2]


def total_of(runs, step, layers):
    """The launches of a whole model, by kernel and geometry: sums and differences of the runs with one layer of each kind, and one more."""
    total = collections.defaultdict(lambda: collections.Counter())
    lines = collections.defaultdict(lambda: collections.Counter())
    other = collections.Counter()
    for run, times in (((1, 1), 3 - layers[0] - layers[1]), ((2, 1), layers[0] - 1), ((1, 2), layers[1] - 1)):
        found = next(s for s in runs[run]["steps"] if s["name"] == step)
        for key in OTHERS:
            other[key] += times * found[key]
        for launch in found["launches"]:
            key = launch["kernel"], tuple(launch["grid"]), launch["threads"], launch["shared"]
            for name in COUNTS + ["n", "path", "rounds"]:
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


def time_of(launch, kernel, card, code, near):
    """(seconds of one kind of launch in all, the bound, details); near: cycles of a load that the launch's chain was counted with"""
    n, blocks, warps = launch["n"], blocks_of(launch), (launch["threads"] + 31) // 32
    registers_of_warp = (code.registers * 32 + 255) // 256 * 256
    resident = min(card.blocks, card.threads // (32 * warps), 65536 // (registers_of_warp * warps), card.shared // (launch["shared"] + 1024))
    waves = -(-blocks // card.sms)
    rounds = -(-blocks // (card.sms * resident))   # of blocks, on the busiest SM
    busy = blocks / (waves * card.sms) if blocks < 4 * card.sms else 1.0   # of the SMs; many blocks even out
    cycles = card.sms * busy * card.clock
    slots = code.executed(launch, kernel, code.slots)
    whole = re.search(r"matmul_(gated_)?blocks", kernel["name"])
    streams = 32 * launch["own_sectors"] / n > 1e6
    bounds = {
        "memory": 32 * launch["own_sectors"] / (card.memory * card.read_share),
        "issue": slots / (4 * cycles),
        "alu": code.executed(launch, kernel, code.alu) / (4 * cycles),
        "tensor": launch["products"] / ((card.whole if whole else card.half) * cycles),
        "cache": 32 * launch["block_sectors"] / (card.served * cycles),
        "shared": launch["shared_passes"] / cycles,
        "link": launch["link_bytes"] / card.link,
    }
    chain = launch["path"] + launch["rounds"] * ((card.far if streams else card.near) - near)
    served = max(bounds["memory"], bounds["cache"], bounds["link"])
    if blocks >= card.sms and (found := code.loop(launch, kernel, min(resident, waves) * warps)):
        turns, turn, slots_of_turn = found
        # Whole rounds, and a last one with fewer blocks on an SM.
        full, rest = divmod(waves, resident)
        last = code.loop(launch, kernel, rest * warps)[1] if rest else 0
        outside = max(0, slots - turns * slots_of_turn * n * blocks * warps)
        bounds["loop"] = n * turns * (full * turn + last) / card.clock + outside / (4 * cycles)
    latency = rounds * chain / card.clock
    if served > bounds.get("loop", 0):
        bounds["latency"] = latency + served
    bound = max(bounds, key=bounds.get)
    node = n * (card.early if code.early else card.node)
    seconds = bounds[bound] + node
    if bound == "latency":   # which part of it is the larger
        bound = "latency" if latency >= served else next(x for x in ("memory", "cache", "link") if bounds[x] == served)
    return seconds, bound if seconds > 2 * node else "node", dict(bounds, slots=slots, registers=code.registers, resident=min(resident, waves),
                                                                    warps=min(resident, waves) * warps, chain=chain / n)


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


class Listings:
    """The kernels of a build as cards run them."""

    def __init__(self, build):
        self.build, self.modules, self.kernels = build, {}, {}

    def code(self, symbol, kernel, card):
        of = kernel["module"], card.architecture
        if of not in self.modules:
            self.modules[of] = sass(self.build, *of)
        if (symbol, card.name) not in self.kernels:
            registers, listing = self.modules[of]
            self.kernels[symbol, card.name] = Code(registers[symbol], listing[symbol], card)
        return self.kernels[symbol, card.name]


def predict(counts, listings, cards):
    """Yields (model, card, step, seconds, rows, other) for all that a file of counts holds of these cards."""
    by_key = collections.defaultdict(dict)
    for run in counts["runs"]:
        by_key[run["card"]][tuple(run["layers"])] = run
    for card, key, runs in ((card, key, runs) for key, runs in by_key.items() for card in cards if same_counts(card, key)):
        for step in (s["name"] for s in runs[1, 1]["steps"]):
            launches, other = total_of(runs, step, LAYERS[counts["model"]])
            rows = []
            for launch in launches:
                kernel = counts["kernels"][launch["kernel"]]
                seconds, bound, details = time_of(launch, kernel, card, listings.code(launch["kernel"], kernel, card), int(key.split(":")[3]))
                rows.append((seconds, bound, launch, details, short(kernel["name"])))
            other["device"] = sum(r[0] for r in rows)
            other["host"] = HOST_SECONDS + HOST_OF_LAYER * sum(LAYERS[counts["model"]])
            yield (counts["model"], card, step, other["device"] + other["host"] + card.graph + card.wait,
                   sorted(rows, key=lambda r: -r[0]), other)


def same_counts(card, key):
    return card.key().split(":")[:3] == key.split(":")[:3]


def tables(found):
    lines = ["| model | card | step | ms | rows/s | device, ms | host, ms | memory, GB | nodes | waits | graphs made | bound by |", "| --- |" + " --- |" * 11]
    for model, card, step, seconds, rows, other in found:
        share = collections.Counter()
        for row in rows:
            share[row[1]] += row[0] / seconds
        n_rows = int(step.split()[1]) if step.startswith("prefill") else 1
        bound = ", ".join(f"{k} {100 * v:.0f}%" for k, v in share.most_common(4) if v >= 0.05)
        memory = sum(32 * r[2]["own_sectors"] for r in rows) * 1e-9
        nodes = sum(r[2]["n"] for r in rows)
        if step.startswith("decode") and memory * 1e9 > card.holds - 1e9:
            bound += "; does not fit"
        lines.append(f"| {model} | {card.name} | {step} | {1e3 * seconds:.2f} | {n_rows / seconds:,.0f} | {1e3 * other['device']:.2f} | "
                     f"{1e3 * (seconds - other['device']):.2f} | {memory:.2f} | {nodes} | {other['waits']} | {other['graphs']} | {bound} |")
    for model, card, step, seconds, rows, other in found:
        if model != "8b" and any(f[0] == "8b" for f in found):
            continue   # the smaller models' kernels are the same ones
        lines += ["", f"### {model}, {card.name}, {step}", "",
                  "| kernel | launches | blocks | us each | bound | memory, MB | block sectors, MB | slots, M | tensor, us | shared, us | loop, us | "
                  "chain, cycles | latency, us | registers | warps on an SM |", "| --- |" + " --- |" * 14]
        for taken, bound, launch, details, name in rows[:14]:
            n = launch["n"]
            each = [figure(x / n) for x in (32e-6 * launch["own_sectors"], 32e-6 * launch["block_sectors"], 1e-6 * details["slots"])]
            times = [figure(1e6 * details[x] / n) if x in details else "" for x in ("tensor", "shared", "loop", "latency")]
            lines.append(f"| `{name}` | {n} | {blocks_of(launch)} | {figure(1e6 * taken / n)} | {bound} | {' | '.join(each)} | {' | '.join(times[:3])} | "
                         f"{details['chain']:,.0f} | {times[3]} | {details['registers']} | {details['warps']} |")
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


def steps_on_h100(page):
    """{(tokens, policy): columns} of the page's table of steps under policies: ms, KV, attended, searched and fetched MB, the host's ms, waits."""
    found, inside = {}, False
    for line in open(page):
        inside = line.startswith("## Steps under policies") or inside and not line.startswith("##")
        words = line.split()
        if inside and len(words) == 12 and words[0].isdigit():
            names = "ms rate kv attended searched fetched host waits nodes".split()
            found[int(words[0]), words[1]] = dict(zip(names, map(float, words[2:11])))
    return found


def policy_table(files, listings, cards, page):
    """(lines, figures) of steps of 8b under policies. A step is the one behind no tokens, what attention and selection read, refills over the link,
    and the rest: what a layer took on the H100 beside all of these. The rest is launches, small kernels and waits of one queue for another, so that
    every card is given the H100's.
    files: counts of steps without a policy; page: the H100's measurements"""
    by_card = {card.name: {step: seconds for counts in map(json.load, map(open, files)) for _, of, step, seconds, _, _ in predict(counts, listings, [card])}
               for card in CARDS}
    measured, n_layers = steps_on_h100(page), sum(LAYERS["8b"])
    h100 = next(card for card in CARDS if card.name == "H100")

    def rate(seconds, tokens):
        """Bytes of KV that attention reads a second, out of steps behind some and behind no tokens."""
        return tokens * KV_OF_8B / (seconds[tokens] - seconds[0])

    full = {tokens: 1e-3 * m["ms"] for (tokens, policy), m in measured.items() if policy == "full"}
    full[0] = 1e-3 * measured_step(page, 8)
    rest = {}
    for (tokens, policy), m in measured.items():
        if policy in REFILLING:
            known = full[0] + 1e6 * m["attended"] / rate(full, tokens) + 1e6 * m["searched"] / (h100.memory * h100.read_share)
            rest[tokens, policy] = max(0, 1e-3 * m["ms"] - known - 1e6 * m["fetched"] / h100.gather(REFILLING[policy].piece)) / n_layers
    longer = rest[131072, "quest"] / rest[32768, "quest"]
    lines = ["An H100's steps, whose KV is random numbers: what is known of them, and the rest.", "",
             "| tokens | policy | measured, ms | fetched, MB | link, ms | rest of a layer, us | host of a layer, us |", "| --- |" + " --- |" * 6]
    for (tokens, policy), took in rest.items():
        m = measured[tokens, policy]
        lines.append(f"| {tokens:,} | {policy} | {m['ms']:.2f} | {m['fetched']:,.0f} | {1e9 * m['fetched'] / h100.gather(REFILLING[policy].piece):.2f} | "
                     f"{1e6 * took:.0f} | {1e3 * m['host'] / n_layers:.0f} |")
    lines += ["", "Text on all cards.", "", "| card | tokens | policy | resident, GB | attention, ms | link, ms | exposed, ms | rest, ms | step, ms | full, ms | of full | "
              "bound by |", "| --- |" + " --- |" * 11]
    found = []
    for card in cards:
        seconds = {int(step.split()[1]): s for step, s in by_card[card.name].items() if re.fullmatch(r"decode \d+", step)}
        for tokens in sorted(seconds)[1:]:
            for policy, p in REFILLING.items():
                m, scale, times = measured.get((tokens, policy)), 1, 1
                if not m:   # the H100 had no time for it
                    m, scale, times = measured[32768, policy], tokens / 32768, longer
                resident = 1e6 * scale * m["kv"]
                attention = 1e6 * scale * m["attended"] / rate(seconds, tokens) + 1e6 * scale * m["searched"] / (card.memory * card.read_share)
                others = n_layers * times * rest[(tokens, policy) if times == 1 else (32768, policy)]
                computed = seconds[0] + attention + others
                link = resident * p.moved * p.every / card.gather(p.piece)   # of a step with refills
                # Refills for the next step run beside the layers; the first or the last layer's have nothing beside them.
                beside = link * (1 - p.within)
                exposed = (link * p.within + max(beside / n_layers, beside - computed * (n_layers - 1) / n_layers)) / p.every
                step = computed + exposed
                parts = {"weights": seconds[0], "attention": attention, "rest": others, "link": exposed}
                bound = ", ".join(f"{k} {100 * v / step:.0f}%" for k, v in sorted(parts.items(), key=lambda x: -x[1]) if v >= .05 * step)
                beyond = " (does not fit)" if 4.9e9 + tokens * KV_OF_8B > card.holds - 1e9 else ""
                lines.append(f"| {card.name} | {tokens:,} | {policy} | {1e-9 * resident:.2f} | {1e3 * attention:.2f} | {1e3 * link / p.every:.2f} | "
                             f"{1e3 * exposed:.2f} | {1e3 * others:.2f} | {1e3 * step:.2f} | {1e3 * seconds[tokens]:.2f}{beyond} | "
                             f"{100 * step / seconds[tokens]:.0f}% | {bound} |")
                found.append(("8b", card, f"decode {tokens}, {policy}", step, [], {}))
    return lines, found


def measured_step(page, context):
    """Milliseconds of a decode step of 8B Q4_K_M on the page."""
    return float(re.search(rf"^\| Q4_K_M \| {context} \| ([\d.]+) \|", open(page).read(), re.M).group(1))


def layer_table(files, listings):
    """The launches of attention, and those that a policy adds, of one layer."""
    own = ("matmul", "rms_norm", "rotate", "quantize", "shortlist", "embed", "prepare_rope", "add_", "swiglu")
    lines = ["| step | kernel | launches | blocks | us each | bound | memory, MB |", "| --- |" + " --- |" * 6]
    for counts in (json.load(open(file)) for file in files):
        for run in counts["runs"]:
            card = next(c for c in CARDS if same_counts(c, run["card"]))
            near = int(run["card"].split(":")[3])
            for step in run["steps"]:
                total = 0
                for launch in step["launches"]:
                    kernel = counts["kernels"][launch["kernel"]]
                    name = short(kernel["name"])
                    if name.startswith(own):
                        continue
                    seconds, bound, _ = time_of(launch, kernel, card, listings.code(launch["kernel"], kernel, card), near)
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
    options.add_argument("--policies", action="store_true", help="prints steps of 8b under policies; --counts: its steps without one")
    options.add_argument("--layer", nargs="+", metavar="FILE")
    options.add_argument("--check", action="store_true")
    options.add_argument("--write", help="the page's tables go here, behind its line <!-- tables -->")
    options.add_argument("--figures", metavar="FILE", help="the steps' times go here, for programs")
    options = options.parse_args()
    take_measured(os.path.join(ROOT, "tests/bench/results/gpu-measured.tsv"))
    if options.layer:
        return print("\n".join(layer_table(options.layer, Listings(options.build))))
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
        keys = ";".join(dict.fromkeys(card.key() for card in cards))
        for model in options.models.split(","):
            long = "32768,131072" if model in ("8b", "1b") else "8192"
            steps = [["contexts=0," + long, "prefills=0"]]
            if model == "8b":
                steps += [["contexts=" + long, "policy=" + policy] for policy in POLICIES]
            for i, step in enumerate(steps):
                files.append(os.path.join(options.build, f"counts-{model}-{i}.json"))
                subprocess.run([os.path.join(options.build, "tests/ptx/gpu_model"), model, files[-1], "cards=" + keys] + step, check=True)
    listings = Listings(options.build)
    if options.policies:
        lines, found = policy_table(files, listings, cards, os.path.join(ROOT, "tests/bench/results/gpu-h100.md"))
        if options.figures:
            write_figures(options.figures, found)
        return print("\n".join(lines))
    found = [x for file in files for x in predict(json.load(open(file)), listings, cards)]
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
