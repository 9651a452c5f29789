"""Makes policy_runs.json: what every policy keeps while it answers, by policy_reference.py.

Where policies.json tests the parts one by one, this one follows whole runs as a session makes them: calibration on the
prompt's own last 16 queries, settling, 48 generated tokens, and settling again where the tail of a compressed head is full.

The attention is made up, the same to the last bit wherever it is computed. A logit is a whole number of 1/65536:

  mix(z):     z += 0x9E3779B97F4A7C15; z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9; z = (z ^ z >> 27) * 0x94D049BB133111EB;
              z ^ z >> 31, modulo 2^64
  hash(a, b, ..): h = 0, then h = mix(h ^ a), h = mix(h ^ b), ..
  s           = position of the query - (n_prompt - 16), at least 0
  phase(p)    = period ? (s + p * period / peaks) / period : 0, whole divisions: peaks move one after the other
  centre(p)   = hash(seed, 1, layer, topic, p, phase(p)) mod n_prompt
  peak        = largest over p of (5 + p mod 3) * 65536 - 40000 * |key - centre(p)|, at least 0
  sink        = 4 * 65536 for the first two keys, else 0
  own         = own[head] * (hash(seed, 2, layer, head, key) >> 48) >> 4
  noise       = noise[head] * (hash(seed, 3, layer, head, query head, position, key) >> 48) >> 4
  logit       = (peak + sink + own + noise) / 65536

`heads` gives (topic, own, noise) of every head, `periods` the period of every topic (0: it never moves), `worked` a few logits in
units. Seeds are searched until no choice is closer than 1e-6 (relative for scores, absolute for remainders and distances);
a tie of equal weights among remainders goes to the lower index.

Options of a run are the policies' own by their names in the library, besides `budget` (a share), `context` (the most tokens
of the session: 400 more than the run has, unless given) and `max_slots` (of all heads together: all, unless given). As in
the library at most full_share of the heads are full; where it is not given .2, and no more than half of the budget pays
for.

`settles` of a run: at = tokens there, sets as sorted positions, similarity of the pairs of heads (0, 1), (0, 2), .. per layer. HeteroCache: lengths and sets of the compressed heads in (layer,
head) order, base of the pivots; `checks` [step since settling, layer, pivot, overlap's median, {satellite: its new set}
if triggered]. SyncKV: fixed and dynamic per (layer, cluster), `checks` [step, layer, cluster, new dynamic set]. Steps count from 1. Windows of
queries (SnapKV, PyramidKV, Ada-KV, CAKE): sets as [layer, head, positions] of the heads that compress. DuoAttention: the full heads, and
[layer, head, capacity] of the others.

Needs numpy==2.4.6.  Usage: python3 make_policy_run_goldens.py
"""

import json
import pathlib
from fractions import Fraction as F

import numpy as np

from policy_reference import DuoAttention, HeteroCache, Streaming, SyncKv, Window, WINDOW_METHODS

CLOSE = 1e-6


class TooClose(Exception):
    pass


def mix(z):
    z = z + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def hash_of(*parts):
    """Of whole numbers, the last of which may be an array."""
    h = np.zeros(1, np.uint64)
    for part in parts:
        h = mix(h ^ np.asarray(part, np.uint64))
    return h


class Synthetic:
    def __init__(self, case):
        self.case, self.n_layers = case, case["n_layers"]
        self.rows = {}

    def units(self, layer, head, q, position, n_keys):
        case = self.case
        topic, own, noise = case["heads"][layer][head]
        period, peaks, seed = case["periods"][layer][topic], case["peaks"], case["seed"]
        s = max(position - (case["n_prompt"] - 16), 0)
        keys = np.arange(n_keys)
        peak = np.zeros(n_keys, np.int64)
        for p in range(peaks):
            phase = (s + p * period // peaks) // period if period else 0
            centre = int(hash_of(seed, 1, layer, topic, p, phase)[0]) % case["n_prompt"]
            peak = np.maximum(peak, (5 + p % 3) * 65536 - 40000 * np.abs(keys - centre))
        sink = np.where(keys < 2, 4 * 65536, 0)
        own = own * (hash_of(seed, 2, layer, head, keys) >> np.uint64(48)).astype(np.int64) >> 4
        noise = noise * (hash_of(seed, 3, layer, head, q, position, keys) >> np.uint64(48)).astype(np.int64) >> 4
        return peak + sink + own + noise

    def row(self, layer, position):
        """(heads, group, all keys), kept."""
        if (layer, position) not in self.rows:
            n_keys = self.case["n_prompt"] + self.case["n_decode"]
            self.rows[layer, position] = np.array([[self.units(layer, h, q, position, n_keys)
                                                    for q in range(self.case["group"])]
                                                   for h in range(self.case["n_kv_heads"])]) / 65536
        return self.rows[layer, position]

    def logits(self, layer, positions, n_keys):
        seen = np.arange(n_keys) <= np.array(positions)[:, None]
        return np.where(seen[:, None, None], np.array([self.row(layer, p)[..., :n_keys] for p in positions]), -np.inf)


def pairs_of(similarity):
    """Per layer the heads' pairs (0, 1), (0, 2), .. (1, 2), ..: the matrix above its diagonal."""
    return [[round(float(x), 9) for i, row in enumerate(layer) for x in row[i + 1:]] for layer in similarity]


def positions_of(row):
    return [int(i) for i in np.flatnonzero(row)]


# ---- What is written down of a policy ----

def hetero_settled(policy):
    return {"tail": policy.tail, "calibration_k": policy.calibration_k, "roles": policy.roles,
            "pivot_of": policy.pivot_of, "base_length": policy.base_length,
            "stability": [[round(float(x), 12) for x in layer] for layer in policy.stability],
            "similarity": pairs_of(policy.similarity),
            "lengths": [policy.length[c] for c in policy.compressed],
            "sets": [positions_of(policy.keep[c]) for c in policy.compressed],
            "base": [positions_of(policy.base[c]) for c in sorted(policy.base)], "checks": []}


def hetero_check(policy, check):
    row = [check["step"], check["layer"], check["pivot"], round(float(check["median"]), 12)]
    if check["triggered"]:
        row.append({str(s): positions_of(policy.keep[check["layer"], s]) for s in check["satellites"]})
    return row


def sync_settled(policy):
    cells = sorted(policy.fixed)
    return {"tail": policy.tail, "k": policy.k, "k_dynamic": policy.k_dynamic,
            "similarity": pairs_of(policy.similarity), "clusters": policy.clusters,
            "representatives": policy.heads, "cells": cells, "fixed": [positions_of(policy.fixed[c]) for c in cells],
            "dynamic": [positions_of(policy.dynamic[c]) for c in cells], "checks": []}


def sync_check(policy, check):
    cell = check["layer"], check["cluster"]
    return [check["step"], *cell, positions_of(policy.dynamic[cell])]


def window_settled(policy):
    return {"tail": policy.tail, "sets": [[l, h, positions_of(kept)] for (l, h), kept in sorted(policy.keep.items())], "checks": []}


def duo_settled(policy):
    return {"tail": policy.tail, "full": policy.full, "capacity": [[l, h, c] for (l, h), c in sorted(policy.capacity.items())], "checks": []}


# Options as the library names them, where the reference names them otherwise.
ARGUMENTS = {"rho": "static_share", "steps": "stride", "representatives": "n_representatives"}


def run(case, options):
    attention, options = Synthetic(case), dict(options)
    kind = options.pop("policy")
    shape = case["n_layers"], case["n_kv_heads"]
    n_prompt, n_decode = case["n_prompt"], case["n_decode"]
    if kind == "streaming":
        policy = Streaming(shape, **options)
        policy.settle(attention, n_prompt)
        shown = {n: policy.visible(0, n) for n in (n_prompt, n_prompt + 1, n_prompt + n_decode)}
        return {"capacity": policy.capacity, "visible": {str(n): positions_of(v[0]) for n, v in shown.items()}}
    n_heads, context = shape[0] * shape[1], int(options.pop("context", n_prompt + n_decode + 400))
    arguments = {ARGUMENTS.get(key, key): value for key, value in options.items()}
    for key in ("tail", "block", "stride", "n_representatives"):   # of the others the classes see to it
        if key in arguments:
            arguments[key] = int(arguments[key])
    most_slots = int(arguments.pop("max_slots", n_heads * context))
    if kind == "heterocache":
        share = min(F(arguments["budget"]), F(most_slots, n_heads * context))
        arguments["max_full"] = int(F(arguments.pop("full_share", min(F("0.2"), share / 2))) * n_heads)
    if kind in WINDOW_METHODS:
        make, arguments = Window, {**WINDOW_METHODS[kind], **arguments}
        settled, check_row = window_settled, None
    elif kind == "duoattention":
        make, settled, check_row = DuoAttention, duo_settled, None
        arguments["n_full"] = int(F(arguments.pop("full_share")) * n_heads)
    elif kind == "heterocache":
        make, settled, check_row = HeteroCache, hetero_settled, hetero_check
    else:
        make, settled, check_row = SyncKv, sync_settled, sync_check
    policy = make(shape, watch=True, most_slots=most_slots, context=context, **arguments)
    policy.settle(attention, n_prompt)
    settles, at, generated = [{"at": n_prompt, **settled(policy)}], n_prompt, 0
    for _ in range(n_decode):
        if policy.tail and generated == policy.tail:   # the next token has no slot
            policy.settle(attention, at)
            settles.append({"at": at, **settled(policy)})
            generated = 0
        at, generated = at + 1, generated + 1
        seen = len(policy.checks)
        policy.after_step(attention, at - 1)
        settles[-1]["checks"] += [check_row(policy, c) for c in policy.checks[seen:]]
    if policy.choose.least_gap < CLOSE:
        raise TooClose
    return {"least_gap": float(f"{policy.choose.least_gap:.2g}"), "settles": settles}


def hetero(budget, **options):
    return {"policy": "heterocache", "budget": budget, **options}


def sync(budget, **options):
    return {"policy": "synckv", "budget": budget, **options}


def one(policy, budget, **options):
    return {"policy": policy, "budget": budget, **options}


CASES = [
    {
        "name": "four layers of eight heads, the paper's thresholds", "seed": 1, "n_layers": 4, "n_kv_heads": 8, "group": 2,
        "n_prompt": 200, "n_decode": 48, "peaks": 6,
        "heads": [[[0, 8, 8], [0, 16, 12], [0, 12, 16], [1, 8, 8], [1, 12, 16], [1, 4, 20], [2, 90, 4], [3, 0, 99]],
                  [[0, 4, 8], [0, 8, 8], [0, 12, 8], [0, 16, 8], [0, 20, 8], [1, 90, 8], [1, 8, 8], [1, 12, 8]],
                  [[1, 80, 10], [0, 16, 20], [0, 4, 24], [0, 12, 16], [2, 70, 60], [2, 8, 8], [2, 12, 8], [2, 0, 12]],
                  [[0, 0, 4], [1, 4, 24], [0, 12, 16], [1, 20, 8], [0, 8, 8], [1, 0, 30], [1, 8, 12], [3, 0, 90]]],
        "periods": [[40, 16, 0, 3], [24, 0], [12, 0, 60], [30, 20, 0, 2]],
        "runs": [hetero("0.6", full_share="0.3"), hetero("0.6", full_share="0.3", tail="48"), hetero("0.5", full_share="0.25", reduce="max"),
                 hetero("0.6"), hetero("0.3", full_share="0.15", surplus="thresholds"), sync("0.5", representatives="2"),
                 {"policy": "streaming", "budget": "0.4"},
                 one("snapkv", "0.5"), one("snapkv", "0.4", pool="none", window="1"), one("pyramidkv", "0.4"), one("pyramidkv", "0.6", first_layers="1"),
                 one("adakv", "0.4"), one("adakv", "0.45", safeguard="protect", alpha="0.6", window="8"), one("adapyramid", "0.4", alpha="0"),
                 one("cake", "0.4"), one("cake", "0.7", tail="48", tau_1="0.5", tau_2="0.8", gamma="20"),
                 one("cake", "0.3", layers="adaptive", tau_1="2", tau_2="2", gamma="800"), one("adakv", "0.5", layers="adaptive", pool="avg"),
                 one("duoattention", "0.5", full_share="0.25"), one("duoattention", "0.4", full_share="0.125", sinks="6", window="8", tail="20")],
    },
    {
        "name": "one query head per KV head, lower thresholds, max at run time", "seed": 1000, "n_layers": 3, "n_kv_heads": 8,
        "group": 1, "n_prompt": 160, "n_decode": 48, "peaks": 5,
        "heads": [[[0, 16, 12], [0, 24, 16], [0, 8, 24], [0, 30, 12], [1, 16, 16], [1, 8, 24], [1, 20, 30], [2, 99, 9]],
                  [[0, 16, 30], [0, 24, 16], [1, 8, 24], [1, 30, 12], [0, 16, 16], [1, 8, 24], [2, 0, 240], [0, 0, 9]],
                  [[0, 16, 12], [1, 24, 16], [0, 8, 24], [0, 30, 12], [1, 16, 16], [0, 8, 24], [0, 20, 30], [1, 50, 9]]],
        "periods": [[20, 14, 0], [0, 18, 2], [25, 16]],
        "runs": [hetero("0.45", tau_sim="0.35", tau_stable="0.3", full_share="0.225", reduce="max", tail="30"),
                 hetero("0.5", tau_sim="0.35", tau_stable="0.3", tau_drift="0.6", block="4", full_share="0.25"),
                 hetero("1", tau_sim="0.35", tau_stable="0.3", full_share="0.05", max_slots="2300"),
                 hetero("1", tau_sim="0.35", tau_stable="0.3", max_slots="1100", context="209"),
                 sync("0.4", representatives="2", tail="48"), sync("1", representatives="2", max_slots="1340", context="210"),
                 sync("0.45", representatives="1", rho="0.3", steps="4"),
                 one("snapkv", "1", max_slots="1340", context="210"), one("adakv", "0.35", layers="preference", pool="avg", width="3"),
                 one("cake", "0.5", heads="adaptive", window="5", pool="max"), one("duoattention", "1", full_share="0.25", max_slots="2300", context="210")],
    },
    {
        "name": "a longer prompt, groups of three, a cap that binds", "seed": 3000, "n_layers": 2, "n_kv_heads": 8, "group": 3,
        "n_prompt": 400, "n_decode": 48, "peaks": 9,
        "heads": [[[0, 8, 8], [0, 16, 12], [0, 12, 16], [1, 8, 8], [1, 12, 16], [2, 90, 2], [2, 99, 0], [0, 20, 60]],
                  [[0, 8, 8], [0, 16, 12], [0, 12, 16], [0, 8, 8], [1, 99, 2], [1, 12, 16], [2, 99, 2], [2, 0, 240]]],
        "periods": [[14, 22, 0], [30, 10, 3]],
        "runs": [hetero("0.8", full_share="0.4"), hetero("0.45", full_share="0.225", tail="48"), sync("0.6", representatives="2"),
                 one("snapkv", "0.3", pool="max", width="7"), one("adapyramid", "0.25", tail="48"), one("pyramidkv", "0.85", beta="3"), one("cake", "0.3")],
    },
    {
        "name": "a short prompt, where heads get at least 64 slots", "seed": 4000, "n_layers": 2, "n_kv_heads": 8, "group": 2,
        "n_prompt": 66, "n_decode": 48, "peaks": 2,
        "heads": [[[0, 8, 8], [0, 16, 12], [0, 12, 16], [1, 8, 8], [1, 12, 16], [2, 90, 2], [2, 99, 0], [0, 20, 60]],
                  [[0, 8, 8], [0, 16, 12], [0, 12, 16], [0, 8, 8], [1, 99, 2], [1, 12, 16], [2, 99, 2], [2, 0, 240]]],
        "periods": [[14, 22, 0], [30, 10, 3]],
        "runs": [hetero("0.5", full_share="0.25"), hetero("0.25", full_share="0.125"), sync("0.3", representatives="1"),
                 one("snapkv", "0.25"), one("adakv", "0.25"), one("cake", "0.5")],
    },
]


def summary(done):
    if "settles" not in done:
        return f"capacity {done['capacity']}"
    first, checks = done["settles"][0], [c for s in done["settles"] for c in s["checks"]]
    if "sets" in first and "roles" not in first:
        return f"settled at {[s['at'] for s in done['settles']]}, least gap {done['least_gap']}, lengths {[len(s) for _, _, s in first['sets']]}"
    if "full" in first:
        return f"settled at {[s['at'] for s in done['settles']]}, least gap {done['least_gap']}, full {first['full']}"
    text = f"settled at {[s['at'] for s in done['settles']]}, least gap {done['least_gap']}, {len(checks)} checks"
    if "roles" in first:
        counts = {r: sum(row.count(r) for row in first["roles"]) for r in ("pivot", "satellite", "anchor", "volatile")}
        return f"{text}, {sum(len(c) == 5 for c in checks)} triggered, {counts}, base {first['base_length']}, lengths {first['lengths']}"
    return f"{text}, k {first['k']}, clusters {first['clusters']}, representatives {first['representatives']}"


def main():
    np.seterr(over="ignore")
    for case in CASES:
        while True:
            try:
                expected = [{"options": options, **run(case, options)} for options in case["runs"]]
                break
            except TooClose:
                case["seed"] += 1
        attention = Synthetic(case)
        at = [(0, 0, 0, case["n_prompt"] - 16, 0), (1, 3, case["group"] - 1, case["n_prompt"] - 1, 7),
              (1, 7, 0, case["n_prompt"] + 30, 90), (0, 4, 0, case["n_prompt"] + 47, case["n_prompt"] + 20)]
        case["worked"] = [[*where, int(attention.units(*where[:4], where[4] + 1)[-1])] for where in at]
        case["runs"] = expected
        print(case["name"], "seed", case["seed"])
        for done in expected:
            print("  ", done["options"], summary(done))
    path = pathlib.Path(__file__).with_name("policy_runs.json")
    path.write_text(json.dumps({"cases": CASES}, separators=(",", ":")) + "\n")
    print(path.name, path.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
