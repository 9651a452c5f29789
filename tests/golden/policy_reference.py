"""HeteroCache, SyncKV, StreamingLLM, DuoAttention and the methods that choose by a window of queries (SnapKV, PyramidKV,
Ada-KV, CAKE) a second time, in NumPy, for goldens only: from the papers and their digest.

In: attention logits, from a function (make_policy_run_goldens.py's synthetic one) or from the demo model. Out: which tokens
every head keeps at which step. policy_answers.py asks the demo model with them. Budgets and overlaps are fractions, softmax
is float64; ties go to the lower index. Written for plainness: a set of tokens is a row of booleans.

A policy's life: settle(attention, n) when n tokens are there, then after_step(attention, position) behind every generated
token; visible(layer, n_now) says which tokens a head attends to. `attention.logits(layer, positions, n_keys)` are the scaled
products of the queries at `positions` with the first n_keys keys: (positions, n_kv_heads, group, n_keys), -inf behind the position. settled and checks
hold what was decided. A tail of `tail` slots for generated tokens is inside the budget, the same for every head; who calls
settles again when it is full.

Decided here where papers and digest leave room: overlaps of a calibration are those of steps 1.., step 0 being the prompt's own
set. Eq. 7 and 8 deal what the full heads and all tails leave of the budget (divide); K_base holds L_base tokens. Settling again
happens before the token that finds no slot is fed, over all tokens there; steps count from 1 again, baselines start anew. Thresholds
are searched from .05 to .95, tau_drift stays the preferred tau_stable; demotion begins with the roles of the preferred thresholds.
"""

from fractions import Fraction as F

import numpy as np

CALIBRATION_QUERIES = 16
MOST_QUERIES = 32   # that any method here looks back
MOST_CALIBRATION_KEYS = 1024
LEAST_STABILITY = F(1, 20)
POOL = 5


class BudgetTooSmall(Exception):
    pass


def tail_of(n_tokens):
    return min(max(n_tokens // 32, 16), 256)


LEAST_SLOTS = 64   # of a head, so that a short prompt leaves room for an answer


def divide(n_heads, n_full, n_tokens, share, tail, most_slots=None, context=None, beside=0):
    """(tail, slots for prompt tokens of all compressed heads): a share of n_tokens and a tail in every head.

    The plan, most_slots over all heads, has more than a small share of a short text: full heads and as much prompt as tail find
    room in it where they can. Where they cannot, the tail shrinks by halves until it takes no more than the prompt's part. Each
    compressed head has so many slots' worth `beside` its slots.
    """
    n_compressed = n_heads - n_full
    more = n_compressed * beside
    if context is not None:
        tail = min(tail, context - n_tokens)   # a session's end
    while True:
        length = n_tokens + tail
        slots = int(max(share * length * n_heads, min(length, LEAST_SLOTS) * n_heads + more))
        slots = max(slots, n_full * length + n_compressed * min(length, 2 * tail) + more)
        if most_slots is not None:
            slots = min(slots, most_slots)
        selected = min(slots - n_full * length - n_compressed * tail - more, n_compressed * n_tokens)
        if tail <= 1 or selected >= min(tail, n_tokens) * n_compressed:
            break
        tail = (tail + 1) // 2
    if selected < n_compressed:
        raise BudgetTooSmall(f"{n_full} of {n_heads} heads are full, {slots} slots for {length} tokens")
    return tail, selected


# ---- From logits to sets ----

class Chooser:
    """Top-k as booleans. Remembers the closest call: the least relative gap between the last score in and the first out."""

    def __init__(self, watch=False, ties=False):
        self.watch, self.least_gap = watch, np.inf
        self.ties = ties   # equal scores are no close call: neighbours under a maximum are equal wherever they are computed

    def disturbed(self, products):
        return products   # policy_steps_reference.py's adds noise

    def scores(self, logits, reduce, pool):
        """(.., group, keys) -> (.., keys): softmax, average pooling (zeros count in the divisor), group reduction."""
        x = logits.astype(np.float64)
        x = np.exp(x - x.max(axis=-1, keepdims=True))
        x /= x.sum(axis=-1, keepdims=True)
        if reduce == "mean":
            return self.pooled(x.mean(axis=-2), pool)   # mean and average commute
        assert reduce == "max", reduce
        return self.pooled(x, pool).max(axis=-2)

    @staticmethod
    def pooled(x, width):
        if width == 1:
            return x
        half, n = width // 2, x.shape[-1]
        padded = np.zeros(x.shape[:-1] + (n + 2 * half,))
        padded[..., half:half + n] = x
        return sum(padded[..., i:i + n] for i in range(width)) / width

    def top(self, scores, k):
        """(.., keys) booleans, k of them true in each row: highest score first, then lowest index."""
        n = scores.shape[-1]
        assert 0 <= k <= n
        if k in (0, n):
            return np.full(scores.shape, k == n)
        last = np.partition(scores, n - k, axis=-1)[..., n - k, None]
        above, level = scores > last, scores == last
        room = k - above.sum(axis=-1, keepdims=True)
        chosen = above | (level & (np.cumsum(level, axis=-1) <= room))
        if self.watch:
            first_out = np.where(chosen, -np.inf, scores).max(axis=-1, keepdims=True)
            gap = (last - first_out) / last
            self.least_gap = min(self.least_gap, float(np.where(self.ties & (gap == 0), np.inf, gap).min()))
        return chosen


def median(counts, k):
    """Per column of counts (steps, ..): the median over steps of count / k, exactly."""
    ordered = np.sort(counts, axis=0)
    n = len(ordered)
    twice = ordered[(n - 1) // 2] + ordered[n // 2]
    return np.vectorize(lambda c: F(int(c), 2 * k), otypes=[object])(twice)


class Calibration:
    """How heads overlap over the last queries of n tokens. Step 0 is the last one; steps 1.. go back from it."""

    def __init__(self, attention, n, reduce, pool, chooser):
        n_steps = min(CALIBRATION_QUERIES, n)
        assert n_steps >= 2, "nothing to calibrate on"
        candidates = n - n_steps + 1   # what the oldest of these queries could see
        self.k = min(MOST_CALIBRATION_KEYS, max(1, candidates // 4))
        self.with_first, self.pairs = [], []   # per layer (steps, heads), (steps, heads, heads): tokens in common
        for layer in range(attention.n_layers):
            logits = attention.logits(layer, [n - 1 - i for i in range(n_steps)], candidates)
            sets = chooser.top(chooser.scores(logits, reduce, pool), self.k)
            self.with_first.append((sets[1:] & sets[0]).sum(axis=-1))
            x = sets[1:].astype(np.float32)   # exact: sums below 2^24
            self.pairs.append(np.rint(x @ x.transpose(0, 2, 1)).astype(int))

    def stability(self):
        return [median(c, self.k) for c in self.with_first]

    def similarity(self):
        return [median(c, self.k) for c in self.pairs]

    def mean_similarity(self):
        return [[[F(int(x), self.k * len(c)) for x in row] for row in c.sum(axis=0)] for c in self.pairs]


# ---- HeteroCache ----

def classify(stable, similar, tau_sim, tau_stable):
    """One layer's (roles, pivot of each satellite): greedy star clusters first, stability splits what is left."""
    n = len(stable)
    edge = [[i != j and similar[i][j] >= tau_sim for j in range(n)] for i in range(n)]
    roles, pivot_of, free = [""] * n, [None] * n, set(range(n))
    while free:
        degree = {i: sum(edge[i][j] for j in free) for i in sorted(free)}
        pivot = max(degree, key=lambda i: degree[i])   # the first of the largest
        if degree[pivot] == 0:
            break
        roles[pivot] = "pivot"
        members = [j for j in free if edge[pivot][j]]
        for j in members:
            roles[j], pivot_of[j] = "satellite", pivot
        free -= {pivot, *members}
    for i in free:
        roles[i] = "anchor" if stable[i] >= tau_stable else "volatile"
    return roles, pivot_of


def is_full(role):
    return role in ("volatile", "pivot")


def all_roles(stability, similarity, tau_sim, tau_stable):
    layers = [classify(s, m, tau_sim, tau_stable) for s, m in zip(stability, similarity)]
    return [r for r, _ in layers], [p for _, p in layers]


def n_full_of(roles):
    return sum(is_full(r) for layer in roles for r in layer)


def roles_within(stability, similarity, tau_sim, tau_stable, max_full, surplus):
    """Roles with at most max_full full heads. Volatile heads become anchors, most stable first (surplus "demote"); where pivots
    alone are too many, or at once ("thresholds"), the nearest thresholds on a grid of .05 that do. Where none do, clusters are given
    up, those with the fewest satellites first."""
    roles, pivot_of = all_roles(stability, similarity, tau_sim, tau_stable)
    if max_full is None or n_full_of(roles) <= max_full:
        return roles, pivot_of
    cells = [(l, h) for l, layer in enumerate(roles) for h in range(len(layer))]
    if surplus == "thresholds" or sum(roles[l][h] == "pivot" for l, h in cells) > max_full:
        grid = [F(i, 20) for i in range(1, 20)]
        pairs = sorted((abs(a - tau_sim) + abs(b - tau_stable), abs(a - tau_sim), a, b) for a in grid for b in grid)
        for _, _, a, b in pairs:
            found, pivots = all_roles(stability, similarity, a, b)
            if n_full_of(found) <= max_full:
                return found, pivots
    pivots = sorted((pivot_of[l].count(h), l, h) for l, h in cells if roles[l][h] == "pivot")
    for _, l, h in pivots[:max(0, len(pivots) - max_full)]:
        for s in [h] + [s for s, p in enumerate(pivot_of[l]) if p == h]:
            roles[l][s], pivot_of[l][s] = "anchor", None
    volatile = sorted((-stability[l][h], l, h) for l, layer in enumerate(roles)
                      for h, role in enumerate(layer) if role == "volatile")
    for _, l, h in volatile[:max(0, n_full_of(roles) - max_full)]:
        roles[l][h] = "anchor"
    return roles, pivot_of


def share_out(total, weights, cap, chooser):
    """Whole numbers from 1 to cap that sum to `total` in proportion to weights: what bounds cut off or add is spread over the
    others, largest remainders."""
    assert len(weights) <= total <= cap * len(weights)
    def within(factor):
        return [min(max(factor * w, F(1)), F(cap)) for w in weights]
    # The shares are `within` of some factor. Their sum rises with it, in straight pieces between these factors.
    factor = max([c for c in (b / w for w in weights for b in (1, cap)) if sum(within(c)) <= total], default=F(0))
    exact = within(factor)
    rest = total - sum(exact)
    free = [i for i, w in enumerate(weights) if 1 <= factor * w < cap]
    for i in free:
        exact[i] += rest * weights[i] / sum(weights[j] for j in free)
    assert sum(exact) == total
    given = [int(x) for x in exact]
    by_remainder = sorted((i for i in range(len(weights)) if exact[i] > given[i]), key=lambda i: (given[i] - exact[i], i))
    left = total - sum(given)
    if chooser.watch and 0 < left < len(by_remainder):
        a, b = by_remainder[left - 1], by_remainder[left]
        if weights[a] != weights[b]:   # equal weights are a true tie: the lower index
            chooser.least_gap = min(chooser.least_gap, float((exact[a] - given[a]) - (exact[b] - given[b])))
    for i in by_remainder[:left]:
        given[i] += 1
    return given


class HeteroCache:
    def __init__(self, shape, budget, tau_sim="0.5", tau_stable="0.5", tau_drift=None, block=5, reduce="mean", tail=None,
                 max_full=None, surplus="demote", most_slots=None, context=None, refresh=True, watch=False):
        self.n_layers, self.n_heads = shape
        self.budget, self.tau_sim, self.tau_stable = F(budget), F(tau_sim), F(tau_stable)
        self.tau_drift = self.tau_stable if tau_drift is None else F(tau_drift)
        self.block, self.reduce, self.fixed_tail, self.max_full, self.refresh = block, reduce, tail, max_full, refresh
        self.surplus, self.most_slots, self.context, self.choose = surplus, most_slots, context, Chooser(watch)

    def settle(self, attention, n):
        self.n, self.t, self.checks = n, 0, []
        calibration = Calibration(attention, n, self.reduce, POOL, self.choose)
        stability, similarity = calibration.stability(), calibration.similarity()
        self.roles, self.pivot_of = roles_within(stability, similarity, self.tau_sim, self.tau_stable, self.max_full,
                                                 self.surplus)
        cells = [(l, h) for l in range(self.n_layers) for h in range(self.n_heads)]
        self.compressed = [(l, h) for l, h in cells if not is_full(self.roles[l][h])]
        n_full, n_compressed = len(cells) - len(self.compressed), len(self.compressed)
        if n_compressed:
            tail = tail_of(n) if self.fixed_tail is None else self.fixed_tail
            self.tail, selected = divide(len(cells), n_full, n, self.budget, tail, self.most_slots, self.context)
            self.base_length = selected // n_compressed   # eq. 7
            floor = max(F(1, calibration.k), LEAST_STABILITY)
            weights = [1 / (max(stability[l][h], floor) + F(1, 10**6)) for l, h in self.compressed]
            lengths = share_out(n_compressed * self.base_length, weights, n, self.choose)   # eq. 8
        elif self.budget < 1:
            raise BudgetTooSmall("every head is full")
        else:
            self.tail, self.base_length, lengths = 0, n, []
        self.length = dict(zip(self.compressed, lengths))
        self.keep, self.base = {}, {}
        for layer in range(self.n_layers):
            scores = self.choose.scores(attention.logits(layer, [n - 1], n), self.reduce, POOL)[0]
            for h in range(self.n_heads):
                if (layer, h) in self.length:
                    self.keep[layer, h] = self.choose.top(scores[h], self.length[layer, h])
                elif self.roles[layer][h] == "pivot":
                    self.base[layer, h] = self.choose.top(scores[h], self.base_length)
        self.stability, self.similarity, self.calibration_k = stability, similarity, calibration.k

    def after_step(self, attention, position):
        """Queries of the block end at `position`; what changes is seen from the next step on."""
        self.t += 1
        if self.t % self.block or not self.refresh:
            return
        for layer in sorted({l for l, _ in self.base}):
            positions = list(range(position - self.block + 1, position + 1))
            scores = self.choose.scores(attention.logits(layer, positions, self.n), self.reduce, POOL)
            for h in range(self.n_heads):
                if (layer, h) not in self.base:
                    continue
                sets = self.choose.top(scores[:, h], self.base_length)
                overlap = median((sets & self.base[layer, h]).sum(axis=-1), self.base_length).item()   # eq. 9
                check = {"step": self.t, "layer": layer, "pivot": h, "median": overlap, "triggered": overlap < self.tau_drift}
                if check["triggered"]:
                    self.base[layer, h] = sets[-1]
                    check["satellites"] = [s for s in range(self.n_heads) if self.pivot_of[layer][s] == h
                                           and self.roles[layer][s] == "satellite"]
                    for s in check["satellites"]:
                        self.keep[layer, s] = self.choose.top(scores[-1, h], self.length[layer, s])
                self.checks.append(check)

    def visible(self, layer, n_now):
        rows = np.ones((self.n_heads, n_now), bool)
        for h in range(self.n_heads):
            if (layer, h) in self.keep:
                rows[h, :self.n] = self.keep[layer, h]
        return rows


# ---- SyncKV ----

def k_means(rows, n_clusters, chooser):
    """(cluster of each row, the row nearest to each centre or None): farthest-point start, lowest index wins ties."""
    def distance(a, b):
        return sum((x - y) * (x - y) for x, y in zip(a, b))

    def first_least(values, indices):
        order = sorted(indices, key=lambda i: (values[i], i))
        if chooser.watch and len(order) > 1:
            chooser.least_gap = min(chooser.least_gap, float(values[order[1]] - values[order[0]]))
        return order[0] if order else None

    n = len(rows)
    centres = [rows[0]]
    while len(centres) < n_clusters:
        nearest = [-min(distance(row, c) for c in centres) for row in rows]
        centres.append(rows[first_least(nearest, range(n))])
    assigned = None
    for _ in range(100):
        found = [first_least([distance(row, c) for c in centres], range(n_clusters)) for row in rows]
        if found == assigned:
            break
        assigned = found
        for c in range(n_clusters):
            members = [rows[i] for i in range(n) if assigned[i] == c]
            if members:
                centres[c] = [sum(x) / len(members) for x in zip(*members)]
    return assigned, [first_least([distance(row, centres[c]) for row in rows], [i for i in range(n) if assigned[i] == c])
                      for c in range(n_clusters)]


class SyncKv:
    def __init__(self, shape, budget, n_representatives=2, static_share="0.5", stride=5, tail=None, most_slots=None, context=None,
                 refresh=True, watch=False):
        self.n_layers, self.n_heads = shape
        self.budget, self.n_representatives, self.static_share = F(budget), n_representatives, F(static_share)
        self.stride, self.fixed_tail, self.most_slots, self.refresh = stride, tail, most_slots, refresh
        self.context, self.choose = context, Chooser(watch)

    def settle(self, attention, n):
        self.n, self.t, self.checks = n, 0, []
        n_full, n_all = self.n_layers * self.n_representatives, self.n_layers * self.n_heads
        tail = tail_of(n) if self.fixed_tail is None else self.fixed_tail
        self.tail, selected = divide(n_all, n_full, n, self.budget, tail, self.most_slots, self.context)
        slots = (selected + n_full * n + n_all * self.tail) // self.n_layers   # of a layer
        self.k, self.k_dynamic = [], []
        self.similarity = similarity = Calibration(attention, n, "max", 1, self.choose).mean_similarity()
        self.clusters, self.heads, self.fixed, self.dynamic = [], [], {}, {}
        for layer in range(self.n_layers):
            largest = max(max(row) for row in similarity[layer])
            rows = [[largest - x for x in row] for row in similarity[layer]]
            clusters, heads = k_means(rows, self.n_representatives, self.choose)
            self.clusters.append(clusters)
            self.heads.append(heads)
            others = self.n_heads - sum(h is not None for h in heads)   # an empty cluster leaves its slots to them
            k = min((slots - (self.n_heads - others) * n - self.n_heads * self.tail) // others, n) if others else n
            self.k.append(k)
            self.k_dynamic.append(int((1 - self.static_share) * k))
            scores = self.choose.scores(attention.logits(layer, [n - 1], n), "max", 1)[0]
            for c, h in enumerate(heads):
                if h is not None:
                    self.fixed[layer, c] = self.choose.top(scores[h], k - self.k_dynamic[-1])
                    self.dynamic[layer, c] = self.choose.top(scores[h], k) & ~self.fixed[layer, c]

    def after_step(self, attention, position):
        self.t += 1
        if self.t % self.stride or not self.refresh:
            return
        for layer in range(self.n_layers):
            scores = self.choose.scores(attention.logits(layer, [position], self.n), "max", 1)[0]
            for c, h in enumerate(self.heads[layer]):
                if h is not None:   # static tokens are in already
                    rest = np.where(self.fixed[layer, c], -1.0, scores[h])
                    self.dynamic[layer, c] = self.choose.top(rest, self.k_dynamic[layer])
                    self.checks.append({"step": self.t, "layer": layer, "cluster": c})

    def visible(self, layer, n_now):
        rows = np.ones((self.n_heads, n_now), bool)
        for h in range(self.n_heads):
            c = self.clusters[layer][h]
            if h != self.heads[layer][c]:
                rows[h, :self.n] = self.fixed[layer, c] | self.dynamic[layer, c]
        return rows


# ---- Windows of queries ----

def largest_remainders(shares, total):
    """Fractions that add up to total, as whole numbers that do."""
    whole = [int(x) for x in shares]
    order = sorted(range(len(shares)), key=lambda i: (whole[i] - shares[i], i))
    for i in order[:total - sum(whole)]:
        whole[i] += 1
    return whole


def evenly(n, total):
    return [total // n + (i < total % n) for i in range(n)]


def pyramid(n_layers, n_heads, total, highest, n_tokens, beta):
    """PyramidKV's layers, in tokens of all their heads."""
    b = F(total, n_layers * n_heads)
    if n_layers == 1 or n_tokens < 2 * b:
        return evenly(n_layers, total)
    least = F(int(b / beta))
    most = 2 * b - least
    if most > highest:
        most, least = F(highest), 2 * b - highest
    return largest_remainders([n_heads * (most - (most - least) * F(i, n_layers - 1)) for i in range(n_layers)], total)


def by_preference(preference, total, highest):
    """CAKE's layers: shares beyond `highest` are dealt in equal parts."""
    if sum(preference) == 0:
        return evenly(len(preference), total)
    shares = [F(float(p)) * total / sum(F(float(q)) for q in preference) for p in preference]
    while any(s > highest for s in shares):
        beyond = sum(max(s - highest, 0) for s in shares)
        shares = [min(s, F(highest)) for s in shares]
        free = [i for i, s in enumerate(shares) if s < highest]
        if not free:
            break
        for i in free:
            shares[i] += beyond / len(free)
    return largest_remainders(shares, total)


class Window:
    """The last `window` queries choose once. score mean, variance, each; layers uniform, pyramid, preference, adaptive; heads uniform, adaptive.

    each: Ada-KV's algorithm 2, lines 3 and 4, of unscaled products: logits times attention.root_dim, which is sqrt(head_dim).
    compensation: what a head lets go is one token, mean_slots' worth: rest[layer, head] has its tokens' shares, by the last query's weights
    of them, the mean of its group, and as many tokens alike as it weighs: e^entropy, times compensation and the share of tokens kept.
    """

    def __init__(self, shape, budget, score="mean", pool="avg", width=5, layers="uniform", heads="uniform", window=32, safeguard="floor",
                 alpha="0.2", beta=20, tau_1=1, tau_2=1, gamma=200, first_layers=0, tail=None, most_slots=None, context=None, watch=False,
                 compensation=0, mean_slots=0):
        self.n_layers, self.n_heads = shape
        self.compensation, self.mean_slots = float(compensation), mean_slots if compensation else 0
        self.budget, self.score, self.pool, self.width, self.layers, self.heads = F(budget), score, pool, int(width), layers, heads
        self.window, self.safeguard, self.alpha, self.beta = int(window), safeguard, F(alpha), int(beta)
        self.tau_1, self.tau_2, self.gamma = float(tau_1), float(tau_2), float(gamma)
        self.first, self.fixed_tail, self.most_slots, self.context = int(first_layers), tail, most_slots, context
        self.choose, self.checks = Chooser(watch, ties=pool == "max"), []

    def pooled(self, x):
        half, n = self.width // 2, x.shape[-1]
        if self.pool == "none":
            return x
        fill = 0.0 if self.pool == "avg" else -np.inf
        padded = np.full(x.shape[:-1] + (n + 2 * half,), fill)
        padded[..., half:half + n] = x
        parts = np.array([padded[..., i:i + n] for i in range(self.width)])
        return parts.sum(axis=0) / self.width if self.pool == "avg" else parts.max(axis=0)

    def settle(self, attention, n):
        self.n, self.keep, self.rest = n, {}, {}
        compressed = range(self.first, self.n_layers)
        n_all, n_compressed = self.n_layers * self.n_heads, len(compressed) * self.n_heads
        tail = tail_of(n) if self.fixed_tail is None else int(self.fixed_tail)
        self.tail, selected = divide(n_all, n_all - n_compressed, n, self.budget, tail, self.most_slots, self.context, self.mean_slots)
        if selected == n_compressed * n:
            return
        w = min(self.window, n, max(selected // n_compressed // 2, 1))
        old = n - w
        scores, preference = [], []
        for layer in compressed:
            logits = attention.logits(layer, list(range(old, n)), n).astype(np.float64)   # (w, heads, group, n)
            x = np.exp(logits - logits.max(axis=-1, keepdims=True))
            x = (x / x.sum(axis=-1, keepdims=True))[..., :old]
            variance = x.var(axis=0, ddof=1) if w > 1 else np.zeros(x.shape[1:])
            preference.append(max(-(x * np.log(x + 1e-10)).sum(), 0) ** (1 / self.tau_1) * variance.sum() ** (1 / self.tau_2))
            if self.score == "each":   # a softmax over the keys before the window alone; each row pooled, then the mean
                s = self.choose.disturbed(logits[..., :old] * attention.root_dim)
                s = np.exp(s - s.max(axis=-1, keepdims=True))
                rows = self.pooled(s / s.sum(axis=-1, keepdims=True)).transpose(0, 2, 1, 3).reshape(-1, self.n_heads, old)
                total = np.zeros(rows.shape[1:], np.float32)   # in floats: neighbours under all the same maxima but vanishing ones are ties
                for row in rows:
                    total += row.astype(np.float32) * np.float32(1 / len(rows))
                scores.append(total)
            elif self.score == "variance":
                scores.append(self.pooled(x.mean(axis=0) + self.gamma * variance).mean(axis=1))
            else:
                scores.append(self.pooled(x.mean(axis=(0, 2))))
        total = selected - n_compressed * w
        if self.layers == "pyramid":
            of_layers = pyramid(len(compressed), self.n_heads, total, old, n, self.beta)
        elif self.layers == "preference":
            of_layers = by_preference(preference, total, self.n_heads * old)
        elif self.layers == "adaptive":
            weights = np.array(preference, np.float64)
            if weights.max() == 0:
                of_layers = evenly(len(compressed), total)
            else:   # in floats, as scores are multiplied there
                weighted = np.concatenate([s.ravel() * np.float32(w / weights.max()) for s, w in zip(scores, weights)])
                best = self.choose.top(weighted.reshape(1, -1), total).reshape(len(compressed), -1)
                of_layers = [int(c) for c in best.sum(axis=1)]
        else:
            of_layers = evenly(len(compressed), total)
        for layer, s, part in zip(compressed, scores, of_layers):
            counts = self.over_heads(s, part, w)
            for h in range(self.n_heads):
                kept = np.ones(n, bool)
                kept[:old] = self.choose.top(s[h], counts[h])
                self.keep[layer, h] = kept
        self.of_layers = of_layers
        if self.compensation:
            factor = self.compensation * sum(kept.sum() for kept in self.keep.values()) / (n_compressed * n)
            for layer in compressed:
                logits = attention.logits(layer, [n - 1], n)[0].astype(np.float64)   # (heads, group, n)
                x = np.exp(logits - logits.max(axis=-1, keepdims=True))
                weights = (x / x.sum(axis=-1, keepdims=True)).mean(axis=1)
                for h in range(self.n_heads):
                    gone = np.where(self.keep[layer, h], 0.0, weights[h])
                    if gone.sum() > 0:
                        p = gone / gone.sum()
                        entropy = -(p[p > 0] * np.log(p[p > 0])).sum()
                        self.rest[layer, h] = p, factor * np.exp(entropy)

    def over_heads(self, s, total, w):
        if self.heads == "uniform":
            return evenly(self.n_heads, total)
        own = 0
        if self.safeguard == "protect":
            own = max(int(self.alpha * (total // self.n_heads + w)) - w, 0)
        first = self.choose.top(s, own)
        rest = np.where(first, -1.0, s).reshape(1, -1)
        best = self.choose.top(rest, total - own * self.n_heads).reshape(s.shape) | first
        counts = [int(c) for c in best.sum(axis=1)]
        if self.safeguard == "protect":
            return counts
        return largest_remainders([(1 - self.alpha) * c + self.alpha * F(total, self.n_heads) for c in counts], total)

    def after_step(self, attention, position):
        pass

    def visible(self, layer, n_now):
        rows = np.ones((self.n_heads, n_now), bool)
        for h in range(self.n_heads):
            if (layer, h) in self.keep:
                rows[h, :self.n] = self.keep[layer, h]
        return rows


WINDOW_METHODS = {
    "snapkv": {},
    "pyramidkv": {"layers": "pyramid"},
    "adakv": {"pool": "max", "width": 7, "heads": "adaptive"},
    "adapyramid": {"pool": "max", "width": 7, "layers": "pyramid", "heads": "adaptive"},
    "cake": {"score": "variance", "layers": "preference"},
}


class DuoAttention:
    """n_full heads keep everything: those whose last queries look most at what a streaming head would not hold."""

    def __init__(self, shape, budget, n_full, sinks=128, window=32, tail=None, most_slots=None, context=None, watch=False):
        self.n_layers, self.n_heads = shape
        self.budget, self.n_full, self.most_sinks, self.window = F(budget), n_full, int(sinks), int(window)
        self.fixed_tail, self.most_slots, self.context = tail, most_slots, context
        self.choose, self.checks = Chooser(watch), []

    def settle(self, attention, n):
        cells = [(l, h) for l in range(self.n_layers) for h in range(self.n_heads)]
        n_streaming = len(cells) - self.n_full
        tail = tail_of(n) if self.fixed_tail is None else int(self.fixed_tail)
        self.tail, selected = divide(len(cells), self.n_full, n, self.budget, tail, self.most_slots, self.context)
        each = selected // n_streaming
        sinks = min(self.most_sinks, each // 3)
        w = min(self.window, n)
        worth = []
        for layer in range(self.n_layers):
            logits = attention.logits(layer, list(range(n - w, n)), n).astype(np.float64)
            x = np.exp(logits - logits.max(axis=-1, keepdims=True))
            x = (x / x.sum(axis=-1, keepdims=True)).mean(axis=(0, 2))
            worth += list(x[:, sinks:max(sinks, n - (each - sinks))].sum(axis=1))
        full = self.choose.top(np.array([worth]), self.n_full)[0]
        self.full = [cell for cell, f in zip(cells, full) if f]
        streaming = [cell for cell, f in zip(cells, full) if not f]
        self.capacity = {cell: c + self.tail for cell, c in zip(streaming, evenly(n_streaming, selected))}

    def after_step(self, attention, position):
        pass

    def visible(self, layer, n_now):
        rows, keys = np.ones((self.n_heads, n_now), bool), np.arange(n_now)
        for h in range(self.n_heads):
            if (layer, h) in self.capacity:
                capacity = self.capacity[layer, h]
                sinks = min(self.most_sinks, capacity // 3)
                rows[h] = (n_now <= capacity) | (keys < sinks) | (keys >= n_now - (capacity - sinks))
        return rows


# ---- Floor and ceiling ----

class Full:
    tail = 0

    def __init__(self, shape):
        self.shape = shape

    def settle(self, attention, n):
        pass

    def after_step(self, attention, position):
        pass

    def visible(self, layer, n_now):
        return None


class Streaming(Full):
    """The first `sinks` tokens and the newest, within the budget's share of the tokens present when settling."""

    def __init__(self, shape, budget, sinks=4):
        super().__init__(shape)
        self.budget, self.sinks = F(budget), sinks

    def settle(self, attention, n):
        self.capacity = int(self.budget * n) if self.budget < 1 else None
        if self.capacity is not None and self.capacity <= self.sinks:
            raise BudgetTooSmall(f"{self.capacity} tokens for {self.sinks} sinks and the newest")

    def visible(self, layer, n_now):
        keys = np.arange(n_now)
        if self.capacity is None or n_now <= self.capacity:
            return None
        row = (keys < self.sinks) | (keys >= n_now - (self.capacity - self.sinks))
        return np.broadcast_to(row, (self.shape[1], n_now))
