"""What a kernel's main loop takes on an SM, by its machine code: nvdisasm's listing with encodings (sass() of gpu_model.py).

Instructions of Volta and later carry what their warp waits for: cycles until its next instruction, and six counters for results whose time is
not fixed. So an SM can be played: four schedulers, each with its warps, issue one instruction a cycle of a warp that waits for nothing and
whose pipe is free.

  tensor   products over the card's rate                       fma      one instruction a cycle; IMAD every other
  alu      whole numbers and logic: every other cycle, or each  xu       MUFU and conversions: every eighth
  lsu      of the SM: passes of 128 bytes over the shared memory, of a load's width
  loads    arrive Card.near cycles later (second-level cache), or after 29 (shared memory)

The loop with most products is played, with loops in it as often as the counts say. A branch forward within it is taken if what it skips runs
seldom. What is left out: conflicts of register banks, and of shared memory beyond a load's width; other blocks' loads.
"""
import collections
import re
import statistics

SHARED_CYCLES = 29
BARRIER_CYCLES = 20
QUEUE_CYCLES = 40          # of loads and stores, that wait for lsu: more, and none is issued
Instruction = collections.namedtuple("Instruction", "text name stall sets reads waits place target")


def parse(path):
    """{kernel: [Instruction]} of a listing with lines (-g) and encodings (-hex)."""
    kernels, code, place, labels, rest = {}, None, None, {}, False
    for line in open(path):
        if line.startswith("\t.section\t"):
            match = re.match(r"\t\.section\t\.text\.(\w+)", line)
            code, place, rest = ([] if match else None), None, False
            if match:
                kernels[match.group(1)], labels = code, {}
            continue
        if code is None or rest:
            continue
        if match := re.match(r'\s*//## File "([^"]*)", line (\d+)', line):
            place = (match.group(1).rsplit("/", 1)[-1], int(match.group(2)))
        elif match := re.match(r"\.(L_x_\d+):", line):
            labels[match.group(1)] = len(code)
            code.append(match.group(1))
        elif re.match(r"\s*\.weak\s+\$__internal", line):
            rest = True
        elif match := re.match(r"\s*/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;\s*/\* 0x[0-9a-f]{16} \*/", line):
            code.append([match.group(1), place])
        elif (match := re.match(r"\s*/\* 0x([0-9a-f]{16}) \*/", line)) and code and isinstance(code[-1], list) and len(code[-1]) == 2:
            code[-1].append(int(match.group(1), 16))
    return {kernel: finish(code) for kernel, code in kernels.items()}


def finish(code):
    at, n = {}, 0
    for x in code:
        if isinstance(x, str):
            at[x] = n
        else:
            n += 1
    out = []
    for text, place, high in (x for x in code if not isinstance(x, str)):
        control = high >> 41
        bare = re.sub(r"^@!?U?P\w+ ", "", text)
        match = re.search(r"\bBRA\b.*\.(L_x_\d+)", text)
        out.append(Instruction(text, bare.split(" ")[0], max(1, control & 15), control >> 5 & 7, control >> 8 & 7, control >> 11 & 63, place,
                               at.get(match.group(1)) if match else None))
    return out


def is_product(i):
    return re.match(r"[IH]MMA|QMMA", i.name) is not None


def main_loop(code):
    """(first, last) of the innermost loop that has most products, with loops around it that have no more than it; None without products."""
    loops = [(i.target, k) for k, i in enumerate(code) if i.target is not None and i.target <= k]
    best = None
    for first, last in sorted(loops, key=lambda x: x[1] - x[0]):
        n = sum(is_product(i) for i in code[first:last + 1])
        # A loop around the main one loads what it multiplies.
        loads = any(i.name.startswith(("LDGSTS", "LDG")) for i in code[first:last + 1])
        if n and (best is None or n > best[0] or (n == best[0] and loads and not best[3])):
            best = (n, first, last, loads)
    return best and best[1:3]


def pipe_of(i, card):
    """(pipe, cycles of it)"""
    name = i.name
    if name.startswith("IMMA"):
        return "tensor", 128 * int(name.split(".")[1][-2:]) / (card.whole / 4)
    if name.startswith("HMMA"):
        return "tensor", 128 * int(name.split(".")[1][-2:]) / (card.half / 4)
    if name.startswith(("LDS", "LDSM", "STS", "LDG", "STG", "SHFL", "ATOM", "RED", "LDGSTS", "LDL", "STL")):
        if name.startswith("LDSM"):
            return "lsu", int(i.name[-1]) if i.name[-1].isdigit() else 1
        return "lsu", 4 if ".128" in name else 2 if ".64" in name else 1
    if name.startswith(("MUFU", "I2F", "F2I", "F2F", "POPC", "FLO")):
        return "xu", 8
    if name.startswith(("FFMA", "FMUL", "FADD", "HFMA2", "HADD2", "HMUL2")):
        return "fma", 1
    if name.startswith("IMAD"):
        return "fma", 2
    if name.startswith(("BRA", "BAR", "U", "S2", "R2", "NOP", "DEPBAR", "LDGDEPBAR", "WARPSYNC", "BSSY", "BSYNC", "EXIT", "CS2R", "LDC", "ERRBAR", "CCTL")):
        return None, 1
    return "alu", card.alu


def body(code, first, last, rate):
    """The loop's instructions in their order, and where its inner loops go back to: [(index, target index or None)]."""
    out, k = [], first
    inner = [range(i.target, k + 1) for k, i in enumerate(code[first:last], first) if i.target is not None and first <= i.target <= k]
    outer = [rate(i) for k, i in enumerate(code[first:last + 1], first) if not any(k in x for x in inner)]
    base = statistics.median(outer)
    while k <= last:
        i = code[k]
        if i.target is not None and i.target > k and i.target <= last + 1:
            skipped = code[k + 1:i.target]
            seldom = skipped and statistics.mean(rate(x) for x in skipped) < 0.3 * base   # code in front of the loop may share lines with it
            if seldom or i.name == i.text.split(" ")[0]:   # an unconditional branch
                out.append((k, None))
                k = i.target
                continue
        out.append((k, i.target if i.target is not None and first <= i.target <= k else None))
        k += 1
    return out


def cycles_of_turn(code, loop, trips, rate, warps, card, turns=10, settled=4):
    """Cycles that one turn of the loop takes when `warps` warps of an SM are in it."""
    steps = body(code, *loop, rate)
    index = {k: n for n, (k, _) in enumerate(steps)}
    pipes = [pipe_of(code[k], card) for k, _ in steps]

    class Warp:
        def __init__(self, number):
            self.at, self.next, self.turn, self.number = 0, 0, 0, number
            self.counters = [[] for _ in range(8)]   # when what each counts is there
            self.left = {}                            # of an inner loop: times to go back
            self.copies, self.parked, self.done = 0, False, False

    everyone = [Warp(n) for n in range(warps)]
    schedulers = [everyone[s::4] for s in range(4)]
    free = [collections.Counter() for _ in range(4)]
    lsu, now, begun = 0, 0, {}
    limit = 4_000_000
    while not all(w.done for w in everyone) and now < limit:
        for s, mine in enumerate(schedulers):
            for w in mine:
                if w.done or w.parked or w.next > now:
                    continue
                k, back = steps[w.at]
                i = code[k]
                late = 0
                for c in range(6):
                    if i.waits >> c & 1:
                        late = max(late, max(w.counters[c], default=0))
                if i.name.startswith("DEPBAR") and (match := re.search(r"SB(\d), 0x([0-9a-f]+)", i.text)):
                    under_way = sorted(w.counters[int(match.group(1))])
                    allowed = int(match.group(2), 16)
                    if len(under_way) > allowed:
                        late = max(late, under_way[len(under_way) - 1 - allowed])
                if late > now:
                    w.next = max(w.next, late)
                    continue
                pipe, takes = pipes[w.at]
                if pipe == "lsu":
                    if lsu - now > QUEUE_CYCLES:
                        continue
                elif pipe and free[s][pipe] > now:
                    continue
                # It is issued.
                there = now
                if pipe == "lsu":
                    lsu = max(lsu, now) + takes
                    from_afar = i.name.startswith(("LDG", "ATOMG"))
                    there = lsu + (card.near if from_afar else SHARED_CYCLES)
                    if i.name.startswith("LDGSTS"):
                        w.copies = max(w.copies, there)
                elif pipe:
                    free[s][pipe] = max(free[s][pipe], now) + takes
                    if pipe == "xu":
                        there = now + takes + 16
                if i.name.startswith("LDGDEPBAR"):
                    there = w.copies
                if i.sets != 7:
                    w.counters[i.sets] = [t for t in w.counters[i.sets] if t > now] + [there]
                if i.reads != 7:
                    w.counters[i.reads] = [t for t in w.counters[i.reads] if t > now] + [lsu if pipe == "lsu" else now]
                w.next = now + i.stall
                last = w.at == len(steps) - 1
                if back is not None and not last:
                    left = w.left.get(w.at, trips - 1)
                    w.left[w.at] = left - 1 if left else trips - 1
                    w.at = index[back] if left and back in index else w.at + 1
                elif last:
                    w.at, w.turn = 0, w.turn + 1
                    begun.setdefault(w.turn, now)
                    w.done = w.turn == turns
                else:
                    w.at += 1
                if i.name.startswith("BAR"):
                    w.parked = True
                break
        waiting = [w for w in everyone if w.parked]
        if waiting and all(w.parked or w.done for w in everyone):
            for w in waiting:
                w.parked, w.next = False, max(w.next, now + BARRIER_CYCLES)
        # Nothing happens before the earliest of these.
        times = [w.next for w in everyone if not w.done and not w.parked]
        now = max(now + 1, min(times)) if times else now + 1
    return (begun[turns] - begun[settled]) / (turns - settled) if now < limit else None
