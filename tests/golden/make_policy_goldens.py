"""Makes policies.json: what HeteroCache and SyncKV choose on made-up attention, by an implementation of its own.

Attention logits are a function of (seed, text, layer, head, query head, step, key), integer hashes and exact sums, so
that tests/unit/policy/golden_test.cpp makes the same bits. Heads that share a topic look at the same keys; a topic's
keys change every `period` steps. Everything downstream is done here from the methods' descriptions: scores in float64,
overlaps, budgets and K-means in fractions. Seeds are searched until no choice is close (a gap of 2e-5 at every cut),
so that a float32 implementation has no excuse.

Needs numpy==2.4.6.  Usage: python3 make_policy_goldens.py
"""

import json
import pathlib
from fractions import Fraction as F
from statistics import median

import numpy as np

MASK = (1 << 64) - 1
GAP = 2e-5


class TooClose(Exception):
    pass


# ---- Made-up attention ----

def mix(z):
    z = z + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def uniform(*parts):
    """24 bits in [0, 1) of the parts; the last one may be an array."""
    h = np.zeros(1, np.uint64)
    for part in parts:
        h = mix(h ^ np.asarray(part, np.uint64))
    return (h >> np.uint64(40)).astype(np.float64) / (1 << 24)


def logits(case, text, layer, head, step):
    """(group, n_keys) float32."""
    topic, own, noise = case["heads"][layer][head]
    period = case["periods"][layer][topic]
    phase = step // period if period else 0
    keys = np.arange(case["n_keys"])
    shared = uniform(case["seed"], text, 1, layer, topic, phase, keys)
    private = uniform(case["seed"], text, 2, layer, head, keys)
    rows = [8 * shared + own / 16 * private + noise / 16 * uniform(case["seed"], text, 3, layer, head, q, step, keys)
            for q in range(case["group"])]
    return np.asarray(rows, np.float64).astype(np.float32)


# ---- Scores and sets ----

def softmax(rows):
    x = rows.astype(np.float64)
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def avg_pool(rows, width):
    half = width // 2
    padded = np.pad(rows, ((0, 0), (half, half)))
    return np.lib.stride_tricks.sliding_window_view(padded, width, axis=1).sum(axis=2) / width


def scores(case, text, layer, head, step, reduce, pool):
    rows = softmax(logits(case, text, layer, head, step))
    if pool > 1:
        rows = avg_pool(rows, pool)
    return rows.mean(axis=0) if reduce == "mean" else rows.max(axis=0)


def top(score, k, excluded=()):
    candidates = [i for i in range(len(score)) if i not in set(excluded)]
    order = sorted(candidates, key=lambda i: (-score[i], i))
    if 0 < k < len(order) and score[order[k - 1]] - score[order[k]] < GAP * score[order[k - 1]]:
        raise TooClose
    return order[:k]


def overlap(a, b):
    return F(len(set(a) & set(b)), len(a))


# ---- HeteroCache ----

def calibrate(case, reduce, pool, take):
    """Per layer: S of every head, pairwise similarity by `take` over steps."""
    out = []
    texts, steps, heads = case["texts"], case["steps"], range(case["n_heads"])
    for layer in range(case["n_layers"]):
        sets = [[[top(scores(case, text, layer, h, t, reduce, pool), case["top_k"]) for h in heads]
                 for t in range(steps + 1)] for text in range(texts)]
        def mean_over_texts(value):
            return [sum(value(sets[text], t) for text in range(texts)) / texts for t in range(1, steps + 1)]
        stable = [median(mean_over_texts(lambda s, t: overlap(s[t][h], s[0][h]))) for h in heads]
        similar = [[F(1) if i == j else take(mean_over_texts(lambda s, t: overlap(s[t][i], s[t][j]))) for j in heads]
                   for i in heads]
        out.append((stable, similar))
    return out


def classify(stable, similar, tau_sim, tau_stable):
    n = len(stable)
    open_heads, roles, pivot_of = set(range(n)), [None] * n, [None] * n
    while True:
        near = {i: [j for j in sorted(open_heads) if j != i and similar[i][j] >= tau_sim] for i in open_heads}
        pivot = min(open_heads, key=lambda i: (-len(near[i]), i), default=None)
        if pivot is None or not near[pivot]:
            break
        roles[pivot] = "pivot"
        for j in near[pivot]:
            roles[j], pivot_of[j] = "satellite", pivot
        open_heads -= {pivot, *near[pivot]}
    for i in open_heads:
        roles[i] = "anchor" if stable[i] >= tau_stable else "volatile"
    return roles, pivot_of


def deal(weights, total, cap):
    """Water-filling under a cap, then largest remainders."""
    n, capped = len(weights), set()
    while True:
        free = [i for i in range(n) if i not in capped]
        rest = total - cap * len(capped)
        share = {i: rest * weights[i] / sum(weights[j] for j in free) for i in free}
        over = {i for i in free if share[i] > cap}
        if not over:
            break
        capped |= over
    lengths = [cap if i in capped else int(share[i]) for i in range(n)]
    if min(lengths) < 1:
        raise TooClose
    order = sorted(free, key=lambda i: (lengths[i] - share[i], i))
    left = total - sum(lengths)
    if 0 < left < len(order):
        a, b = order[left - 1], order[left]
        gap = (share[a] - lengths[a]) - (share[b] - lengths[b])
        if gap < F(1, 10**6) and weights[a] != weights[b]:
            raise TooClose
    for i in order[:left]:
        lengths[i] += 1
    assert sum(lengths) == total
    return lengths


def hetero(case):
    run, text, n_keys = case["hetero"], case["texts"], case["n_keys"]
    tau_sim, tau_stable, tau_drift = (F(run[x]) for x in ("tau_sim", "tau_stable", "tau_drift"))
    calibration = calibrate(case, "mean", 5, median)
    roles = [classify(stable, similar, tau_sim, tau_stable) for stable, similar in calibration]
    cells = [(l, h) for l in range(case["n_layers"]) for h in range(case["n_heads"])]
    compressed = [(l, h) for l, h in cells if roles[l][0][h] in ("anchor", "satellite")]
    n, n_full = len(cells), len(cells) - len(compressed)
    l_base = int((F(run["rho"]) * n - n_full) * n_keys / (n - n_full))
    floor = max(F(1, case["top_k"]), F("0.05"))
    weights = [1 / (max(calibration[l][0][h], floor) + F("0.000001")) for l, h in compressed]
    lengths = deal(weights, len(compressed) * l_base, n_keys)
    length = dict(zip(compressed, lengths))

    def score(l, h, t):
        return scores(case, text, l, h, t, run["reduce"], 5)

    base = {(l, h): top(score(l, h, 0), l_base) for l, h in cells if roles[l][0][h] == "pivot"}
    prefill = [sorted(top(score(l, h, 0), length[l, h])) for l, h in compressed]
    expected = {
        "stability": [[float(x) for x in stable] for stable, _ in calibration],
        "similarity": [[float(x) for row in similar for x in row] for _, similar in calibration],
        "roles": [r for r, _ in roles], "pivot_of": [p for _, p in roles],
        "l_base": l_base, "lengths": lengths, "prefill": prefill,
        "base": [sorted(base[cell]) for cell in sorted(base)], "checks": [],
    }
    window = run["block_steps"]
    for t in range(window, case["decode_steps"] + 1, window):
        for l, h in sorted(base):
            sets = [top(score(l, h, s), l_base) for s in range(t - window + 1, t + 1)]
            middle = median(overlap(s, base[l, h]) for s in sets)
            check = {"step": t, "layer": l, "head": h, "median": float(middle), "triggered": middle < tau_drift}
            if check["triggered"]:
                base[l, h] = sets[-1]
                followers = [s for s in range(case["n_heads"]) if roles[l][1][s] == h]
                check["satellites"] = {str(s): sorted(top(score(l, h, t), length[l, s])) for s in followers}
            expected["checks"].append(check)
    return expected


# ---- SyncKV ----

def k_means(rows, n_clusters):
    n = len(rows)
    def far(a, b):
        return sum((x - y) ** 2 for x, y in zip(a, b))
    centres = [rows[0]]
    while len(centres) < n_clusters:
        centres.append(rows[max(range(n), key=lambda i: (min(far(rows[i], c) for c in centres), -i))])
    def assign():
        return [min(range(n_clusters), key=lambda c: (far(row, centres[c]), c)) for row in rows]
    cluster_of = assign()
    for _ in range(100):
        for c in range(n_clusters):
            members = [rows[i] for i in range(n) if cluster_of[i] == c]
            if members:
                centres[c] = [sum(column) / len(members) for column in zip(*members)]
        before, cluster_of = cluster_of, assign()
        if cluster_of == before:
            break
    heads = [min((i for i in range(n) if cluster_of[i] == c), key=lambda i: (far(rows[i], centres[c]), i), default=None)
             for c in range(n_clusters)]
    return cluster_of, heads


def sync(case):
    run, text, n_keys, n_heads = case["sync"], case["texts"], case["n_keys"], case["n_heads"]
    calibration = calibrate(case, "max", 0, lambda series: sum(series) / len(series))
    n_r, memory = run["n_representatives"], F(run["memory"])
    k = int((memory * n_heads - n_r) / (n_heads - n_r) * n_keys)
    k_dynamic = int((1 - F(run["static_share"])) * k)
    expected = {"k": k, "clusters": [], "representatives": [], "static": [], "dynamic": [], "similarity": []}
    for layer, (_, similar) in enumerate(calibration):
        largest = max(x for row in similar for x in row)
        cluster_of, heads = k_means([[largest - x for x in row] for row in similar], n_r)
        expected["similarity"].append([float(x) for row in similar for x in row])
        expected["clusters"].append(cluster_of)
        expected["representatives"].append(heads)
        for head in heads:
            if head is None:
                continue
            first = scores(case, text, layer, head, 0, "max", 0)
            static = top(first, k - k_dynamic)
            series = [sorted(set(top(first, k)) - set(static))]
            for t in range(run["stride"], case["decode_steps"] + 1, run["stride"]):
                series.append(sorted(top(scores(case, text, layer, head, t, "max", 0), k_dynamic, static)))
            expected["static"].append(sorted(static))
            expected["dynamic"].append(series)
    return expected


def random_clusters(i):
    """Similarities in sixteenths, so that equal distances abound and ties decide."""
    n = 3 + i % 8
    n_clusters = 1 + i % min(n, 4)
    similar = [[F(1)] * n for _ in range(n)]
    for a in range(n):
        for b in range(a + 1, n):
            similar[a][b] = similar[b][a] = F(int(uniform(77, i, a, b)[0] * 16), 16)
    cluster_of, heads = k_means([[1 - x for x in row] for row in similar], n_clusters)
    return {"n": n, "n_clusters": n_clusters, "cluster_of": cluster_of, "representatives": heads}


CASES = [
    {
        "name": "three layers, mean", "seed": 100, "n_layers": 3, "n_heads": 6, "group": 2, "n_keys": 120,
        "texts": 2, "steps": 9, "top_k": 24, "decode_steps": 40,
        # topic, private and noise in sixteenths
        "heads": [[[0, 8, 8], [0, 16, 12], [1, 0, 40], [2, 0, 8], [1, 24, 30], [0, 32, 8]],
                  [[0, 0, 0], [1, 0, 20], [0, 20, 10], [0, 40, 20], [2, 0, 16], [3, 0, 4]],
                  [[0, 8, 20], [0, 16, 30], [0, 24, 10], [1, 8, 20], [1, 16, 30], [2, 90, 0]]],
        "periods": [[13, 0, 2], [17, 3, 0, 1], [0, 12, 0]],
        "hetero": {"tau_sim": "0.5", "tau_stable": "0.5", "tau_drift": "0.5", "rho": "0.62", "reduce": "mean",
                   "block_steps": 5},
        "sync": {"n_representatives": 2, "memory": "0.5", "static_share": "0.5", "stride": 5},
    },
    {
        "name": "max at run time, even blocks, a tight budget, five query heads", "seed": 5000, "n_layers": 2,
        "n_heads": 8, "group": 5, "n_keys": 150, "texts": 1, "steps": 8, "top_k": 30, "decode_steps": 40,
        "heads": [[[0, 8, 8], [0, 16, 12], [1, 0, 40], [2, 0, 8], [1, 24, 30], [0, 32, 8], [3, 0, 60], [1, 8, 8]],
                  [[0, 4, 8], [0, 8, 8], [0, 12, 8], [0, 16, 8], [0, 20, 8], [0, 24, 8], [1, 8, 8], [2, 8, 90]]],
        "periods": [[11, 23, 3, 0], [9, 0, 0]],
        "hetero": {"tau_sim": "0.4", "tau_stable": "0.45", "tau_drift": "0.4", "rho": "0.42", "reduce": "max",
                   "block_steps": 4},
        "sync": {"n_representatives": 3, "memory": "0.557", "static_share": "0.5", "stride": 7},
    },
    {
        "name": "one query head, a budget that some heads cannot use", "seed": 9000, "n_layers": 2, "n_heads": 5,
        "group": 1, "n_keys": 90, "texts": 3, "steps": 6, "top_k": 20, "decode_steps": 20,
        "heads": [[[0, 8, 8], [0, 16, 60], [0, 0, 20], [0, 32, 8], [1, 0, 8]],
                  [[0, 4, 8], [0, 8, 90], [0, 50, 8], [0, 30, 30], [1, 0, 64]]],
        "periods": [[7, 0], [0, 0]],
        "hetero": {"tau_sim": "0.5", "tau_stable": "0.5", "tau_drift": "0.5", "rho": "0.85", "reduce": "mean",
                   "block_steps": 5},
        "sync": {"n_representatives": 1, "memory": "0.3", "static_share": "0.8", "stride": 1},
    },
]


def main():
    np.seterr(over="ignore")
    done = []
    for case in CASES:
        while True:
            try:
                expected = {"hetero": hetero(case), "sync": sync(case)}
                break
            except TooClose:
                case["seed"] += 1
        step = logits(case, case["texts"], 1, 2, 30)
        case["expected"] = {**expected, "logits": [float(x) for x in step[-1][:4]]}
        done.append(case)
        h = expected["hetero"]
        print(case["name"], "seed", case["seed"], "L_base", h["l_base"], "lengths", h["lengths"], "k", expected["sync"]["k"])
        print("  roles", h["roles"])
        print("  triggered", [(c["step"], c["layer"], c["head"]) for c in h["checks"] if c["triggered"]], "of",
              len(h["checks"]))
        print("  clusters", expected["sync"]["clusters"], expected["sync"]["representatives"])
    path = pathlib.Path(__file__).with_name("policies.json")
    path.write_text(json.dumps({"cases": done, "clusters": [random_clusters(i) for i in range(120)]}, separators=(",", ":")) + "\n")
    print(path.name, path.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
