"""Methods whose selections move with every step, in NumPy, from the papers: Quest, FreeKV, ArkVale, RaaS, Loki, InfiniGen, OmniKV, H2O,
RazorAttention, ShadowKV. For goldens only; policy_reference.py has the others, which `Adapter` runs here.

Walk is the demo model in float32 that attends to what a policy shows it. A policy's life: settle(model, n), then for every token
before(model, layer, q, at) when a layer's queries are known (ahead: of the next layer, from what this one takes in), visible(layer, end),
attended(layer, weights), after(model, at). How many slots a head has is the plan's business, and given (`slots`); what stands in them
is decided here. Halves are where the device has halves: digests (rounded outwards), low-rank keys and their bases.

`Noise` disturbs every score a little: what survives it does not depend on rounding.
"""

import numpy as np

from policy_answers import Demo
from policy_reference import Chooser, MOST_QUERIES


def half(x):
    return np.asarray(x, np.float64).astype(np.float16).astype(np.float64)


def half_above(x):
    y = np.asarray(x, np.float64).astype(np.float16)
    return np.where(y.astype(np.float64) >= x, y, np.nextafter(y, np.float16(np.inf))).astype(np.float64)


def softmax(x):
    x = np.exp(x - x.max(axis=-1, keepdims=True))
    return x / x.sum(axis=-1, keepdims=True)


class Noise:
    def __init__(self, seed, size):
        self.rng, self.size = np.random.default_rng(seed) if seed else None, size

    def __call__(self, x):
        return x if self.rng is None else x + self.size * self.rng.standard_normal(x.shape)


def best(scores, k):
    """The k best, ascending; ties: the first."""
    return np.sort(np.argsort(-scores, kind="stable")[:k])


class Walk(Demo):
    RING = 64

    def start(self, tokens):
        """Reads a prompt, exactly; sums[layer] (heads, keys): what all its queries attend to each key."""
        self.sums = np.zeros((self.n_layers, self.heads, self.k.shape[2]), np.float32)
        self.queries = np.empty((self.n_layers, len(tokens), self.heads, self.group, self.head_dim), np.float32)
        self.n = 0
        self.ring = np.empty((self.n_layers, MOST_QUERIES, self.heads, self.group, self.head_dim), np.float32)
        x = self.w["token_embd.weight"][tokens]
        m = len(tokens)
        for il in range(self.n_layers):
            y = self.norm(x, f"blk.{il}.attn_norm")
            q, k, v = self.project(il, y, 0)
            self.k[il, :, :m], self.v[il, :, :m] = k.transpose(1, 0, 2), v.transpose(1, 0, 2)
            self.queries[il] = q
            s = np.einsum("thgd,hkd->hgtk", q, self.k[il, :, :m]) / np.float32(np.sqrt(self.head_dim))
            s = softmax(np.where(np.tril(np.ones((m, m), bool)), s, -np.inf))
            self.sums[il, :, :m] = s.mean(axis=1).sum(axis=1)
            o = np.einsum("hgtk,hkd->thgd", s, self.v[il, :, :m]).reshape(m, -1).astype(np.float32)
            x = self.finish(il, x, o)
        self.ring[:, np.arange(m - MOST_QUERIES, m) % MOST_QUERIES] = self.queries[:, -MOST_QUERIES:]
        self.n = m
        return self.head(x[-1])

    def project(self, il, y, at, only_q=False):
        p = f"blk.{il}.attn_"
        q = self.rotated(self.linear(y, p + "q").reshape(len(y), -1, self.head_dim), at).reshape(len(y), self.heads, self.group, self.head_dim)
        if only_q:
            return q
        k, v = (self.linear(y, p + s).reshape(len(y), -1, self.head_dim) for s in "kv")
        return q, self.rotated(k, at), v

    def finish(self, il, x, o):
        x = x + self.linear(o, f"blk.{il}.attn_output")
        return x + self.mlp(il, self.norm(x, f"blk.{il}.ffn_norm"))

    def head(self, x):
        return self.norm(x, "output_norm") @ self.w.get("output.weight", self.w["token_embd.weight"]).T

    def step(self, token, policy):
        at, end = self.n, self.n + 1
        x = self.w["token_embd.weight"][[token]]
        seen = []
        for il in range(self.n_layers):
            y = self.norm(x, f"blk.{il}.attn_norm")
            q, k, v = self.project(il, y, at)
            if policy.ahead:
                if il == 0:
                    policy.before(self, 0, q[0], at)
                if il + 1 < self.n_layers:
                    policy.before(self, il + 1, self.project(il + 1, y, at, only_q=True)[0], at)
            self.k[il, :, at], self.v[il, :, at] = k[0], v[0]
            self.ring[il, at % MOST_QUERIES] = q[0]
            self.n = at   # `at` is not there yet, for whoever asks
            if not policy.ahead:
                policy.before(self, il, q[0], at)
            visible = policy.visible(il, end)
            seen.append(visible)
            s = np.einsum("hgd,hkd->hgk", q[0], policy.keys(self, il, end)) / np.sqrt(self.head_dim)
            s = np.where(visible[:, None], s, -np.inf)
            values = self.v[il, :, :end]
            means = policy.means(self, il, end)
            if means is not None:   # (mean K, mean V, how many) of each head's others, one token that weighs as much as so many
                k_mean, v_mean, n = means
                with np.errstate(divide="ignore"):
                    more = np.einsum("hgd,hd->hg", q[0], k_mean) / np.sqrt(self.head_dim) + np.log(n)[:, None]
                s, values = np.concatenate([s, more[..., None]], axis=-1), np.concatenate([values, v_mean[:, None]], axis=1)
            w = softmax(s)
            policy.attended(self, il, w[..., :end])
            o = np.einsum("hgk,hkd->hgd", w, values).reshape(1, -1).astype(np.float32)
            x = self.finish(il, x, o)
        self.n = end
        policy.after(self, at)
        return seen


class Policy:
    ahead = False

    def __init__(self, model, slots, noise, **options):
        self.slots = np.array(slots).reshape(model.n_layers, model.heads)
        self.noise, self.options = noise, options
        self.configure(model, **options)

    def before(self, model, il, q, at):
        pass

    def attended(self, model, il, weights):
        pass

    def after(self, model, at):
        pass

    def keys(self, model, il, end):
        return model.k[il, :, :end]

    def means(self, model, il, end):
        return None


class Adapter(Policy):
    """A policy of policy_reference.py, already made."""

    def __init__(self, inner):
        self.inner = inner

    def settle(self, model, n):
        self.inner.settle(model, n)

    def visible(self, il, end):
        rows = self.inner.visible(il, end)
        return rows.astype(bool)

    def after(self, model, at):
        self.inner.after_step(model, at)

    def means(self, model, il, end):
        rest = getattr(self.inner, "rest", {})
        if not rest:
            return None
        shares, weights = np.zeros((model.heads, end)), np.zeros(model.heads)
        for h in range(model.heads):
            if (il, h) in rest:
                p, weights[h] = rest[il, h]
                shares[h, :len(p)] = p
        return np.einsum("hk,hkd->hd", shares, model.k[il, :, :end]), np.einsum("hk,hkd->hd", shares, model.v[il, :, :end]), weights


class Disturbed(Chooser):
    """policy_reference.py's, with noise on its scores."""
    noise = None

    def disturbed(self, products):
        return self.noise(products)

    def scores(self, logits, reduce, pool):
        return super().scores(self.noise(logits.astype(np.float64)), reduce, pool)


class Pages(Policy):
    """first, chosen and last whole pages, and the one that is being written."""

    def configure(self, model, page, sinks, window, first_layers, deviation=False, tau=2.0, raw=False, layer=False, asked=1.0):
        self.page, self.first_layers, self.deviation, self.tau, self.raw, self.layer, self.asked = page, first_layers, deviation, tau, raw, layer, asked
        slots = int(self.slots[-1, 0])
        self.n_slots = slots // page - 1
        self.n_first = max(min(sinks, slots // 4) // page, 1 if sinks > 0 and self.n_slots > 2 else 0)
        self.n_last = max(min(window, slots // 4) // page, 2) - 1
        self.n_between = self.n_slots - self.n_first - self.n_last

    def bounds(self, model, il, q, first, n):
        """(heads, group, n) of pages first .. first + n - 1."""
        k = model.k[il, :, first * self.page:(first + n) * self.page].astype(np.float64).reshape(model.heads, n, self.page, -1)
        low, high = k.min(axis=2), k.max(axis=2)
        if self.deviation:
            middle = (low + high) / 2
            off = np.abs(k - middle[:, :, None]).mean(axis=2)
            low, high = middle - off, middle + off
        low, high = -half_above(-low), half_above(high)
        q = q.astype(np.float64)[:, :, None]
        return self.noise(np.maximum(q * low[:, None], q * high[:, None]).sum(axis=-1))

    def scores(self, model, il, q, n_tokens):
        """(heads, candidates)"""
        b = self.bounds(model, il, q, self.n_first, n_tokens // self.page - self.n_first - self.n_last)
        if not self.raw:
            b = softmax(b)
        return np.broadcast_to(b.mean(axis=(0, 1)), (model.heads, b.shape[-1])) if self.layer else b.mean(axis=1)

    def paged_layers(self, model):
        return range(self.first_layers, model.n_layers)

    def last_query(self, model, il):
        return model.ring[il, (model.n - 1) % MOST_QUERIES]

    def settle(self, model, n):
        self.held, self.chosen, self.known = {}, {}, {}
        self.turned = {}
        for il in self.paged_layers(model):
            scores = self.scores(model, il, self.last_query(model, il), n)
            for h in range(model.heads):
                self.note(il, h, scores[h])
                self.chosen[il, h] = best(scores[h], self.n_between) + self.n_first
                self.held[il, h] = self.whole(self.chosen[il, h], n)

    def note(self, il, h, scores):
        self.known.setdefault((il, h), {}).update(enumerate(scores, self.n_first))

    def whole(self, chosen, n_tokens):
        n_pages = n_tokens // self.page
        return set(range(self.n_first)) | set(int(c) for c in chosen) | set(range(n_pages - self.n_last, n_pages))

    def n_best(self):
        if self.asked >= 1:
            return self.n_between
        return min(max(int(self.asked * self.n_slots + 1e-9), self.n_first + self.n_last + 1), self.n_slots) - self.n_first - self.n_last

    def choose(self, model, il, q, n_tokens):
        scores = self.scores(model, il, q, n_tokens)
        for h in range(model.heads):
            self.note(il, h, scores[h])
            self.chosen[il, h] = best(scores[h], self.n_best()) + self.n_first

    def exchange(self, il, h, n_tokens, completed):
        wanted, held = self.whole(self.chosen[il, h], n_tokens), self.held[il, h]
        known = self.known[il, h]
        free = sorted(held - wanted, key=lambda p: (known.get(p, np.inf), -p))
        missing = wanted - held   # the page that has been completed among them: it is there, and takes a place
        self.held[il, h] = (held | wanted) - set(free[:len(missing)])

    def before(self, model, il, q, at):
        if il < self.first_layers or self.tau <= 0:
            return
        old = model.ring[il, (at - 1) % MOST_QUERIES]
        norm = np.linalg.norm
        cosine = ((q * old).sum(-1) / (norm(q, axis=-1) * norm(old, axis=-1))).mean(axis=1)
        turned = self.noise(cosine) < self.tau
        self.turned[il] = turned.any()
        if self.turned[il]:
            self.choose(model, il, q, at)
            for h in np.flatnonzero(turned):
                self.exchange(il, int(h), at, False)

    def after(self, model, at):
        for il in self.paged_layers(model):
            if not self.turned.get(il):
                self.choose(model, il, model.ring[il, at % MOST_QUERIES], at + 1)
            for h in range(model.heads):
                self.exchange(il, h, at + 1, (at + 1) % self.page == 0)

    def visible(self, il, end):
        rows = np.ones((self.slots.shape[1], end), bool)
        if il >= self.first_layers:
            written = (end - 1) // self.page * self.page   # by tokens before this one
            for h in range(len(rows)):
                rows[h, :written] = False
                for p in self.held[il, h]:
                    rows[h, p * self.page:(p + 1) * self.page] = True
        return rows


class Raas(Pages):
    def configure(self, model, threshold=1e-4, top=None, **options):
        super().configure(model, **options)
        self.threshold, self.top = threshold, top

    def look(self, model, il, q, n_pages):
        bounds = self.bounds(model, il, q, 0, n_pages)
        for h in range(model.heads):
            pages = sorted(self.held[il, h] & set(range(n_pages)))
            rows = bounds[h][:, pages]
            if self.top is None:
                looked = [p for p, w in zip(pages, softmax(rows).mean(axis=0)) if w > self.threshold]
            else:
                looked = [pages[i] for row in rows for i in best(row, int(self.top * self.n_slots + 1e-9))]
            for p in looked:
                self.stamps[il, h][p] = self.now

    def settle(self, model, n):
        super().settle(model, n)
        self.now, self.stamps = 1, {cell: {p: 0 for p in pages} for cell, pages in self.held.items()}
        for il in self.paged_layers(model):
            self.look(model, il, self.last_query(model, il), n // self.page)

    def before(self, model, il, q, at):
        pass

    def after(self, model, at):
        self.now += 1
        n_pages, completed = (at + 1) // self.page, (at + 1) % self.page == 0
        for il in self.paged_layers(model):
            self.look(model, il, model.ring[il, at % MOST_QUERIES], n_pages - completed)
            for h in range(model.heads):
                if completed:
                    stamps, held = self.stamps[il, h], self.held[il, h]
                    oldest = min((p for p in held if self.n_first <= p < n_pages - self.n_last), key=lambda p: (stamps[p], p))
                    held.remove(oldest)
                    held.add(n_pages - 1)
                    stamps[n_pages - 1] = self.now


class Tokens(Policy):
    """first, chosen and last tokens, by low-rank keys."""

    def configure(self, model, rank, sinks=0, window=32, first_layers=0, reduce="mean"):
        self.rank, self.first_layers, self.reduce = rank, first_layers, reduce
        slots = int(self.slots[-1, 0])
        n_slots = slots - 1
        self.n_first = max(min(sinks, slots // 4), 1 if sinks > 0 and n_slots > 2 else 0)
        self.n_last = max(min(window, slots // 4), 2) - 1
        self.n_between = n_slots - self.n_first - self.n_last

    def scores(self, model, il, q, n_tokens):
        """(heads, group, candidates), scaled."""
        out = []
        for h in range(model.heads):
            basis = self.basis[il, h]
            rows = half(model.k[il, h, self.n_first:n_tokens - self.n_last].astype(np.float64) @ basis.T)
            out.append(q[h].astype(np.float64) @ basis.T @ rows.T / np.sqrt(model.head_dim))
        return self.noise(np.array(out))

    def settle(self, model, n):
        self.basis, self.held = {}, {}
        for il in range(self.first_layers, model.n_layers):
            for h in range(model.heads):
                self.basis[il, h] = half(self.directions(model, il, h, n))
            for h, scores in enumerate(self.reduced(self.scores(model, il, model.ring[il, (n - 1) % MOST_QUERIES], n))):
                self.held[il, h] = set((best(scores, self.n_between) + self.n_first).tolist())

    def reduced(self, x):
        return softmax(x).mean(axis=1) if self.reduce == "mean" else softmax(x).max(axis=1)

    def visible(self, il, end):
        rows = np.ones((self.slots.shape[1], end), bool)
        if il >= self.first_layers:
            for h in range(len(rows)):
                rows[h, self.n_first:end - 1 - self.n_last] = False
                rows[h, sorted(self.held[il, h])] = True
        return rows


class Loki(Tokens):
    def directions(self, model, il, h, n):
        k = model.k[il, h, :n].astype(np.float64)
        k = k - k.mean(axis=0)
        return np.linalg.eigh(k.T @ k)[1][:, ::-1][:, :self.rank].T

    def before(self, model, il, q, at):
        for h, scores in enumerate(self.reduced(self.scores(model, il, q, at))):
            self.held[il, h] = set((best(scores, self.n_between) + self.n_first).tolist())


class InfiniGen(Tokens):
    ahead = True
    alpha, most = 4.0, .2

    def directions(self, model, il, h, n):
        q, k = model.queries[il, n - Walk.RING:n, h].reshape(-1, model.head_dim).astype(np.float64), model.k[il, h, :n].astype(np.float64)
        turned = np.linalg.eigh(q.T @ q)[1][:, ::-1]
        weight = np.sqrt(((q @ turned) ** 2).mean(axis=0)) + np.sqrt(((k @ turned) ** 2).mean(axis=0))
        return turned[:, best(weight, self.rank)].T

    def before(self, model, il, q, at):
        if il < self.first_layers:
            return
        x = self.scores(model, il, q, at)
        x = x - x.max(axis=-1, keepdims=True)
        n = min(int((x > -self.alpha).sum()) // (x.shape[0] * x.shape[1]), max(int(self.most * at + 1e-9), 1), self.n_between)
        for h, scores in enumerate(x.max(axis=1)):
            wanted, held = set((best(scores, n) + self.n_first).tolist()), self.held[il, h]
            free = sorted(held - wanted, key=lambda p: (scores[p - self.n_first], -p))
            self.held[il, h] = (held | wanted) - set(free[:len(wanted - held)])


class OmniKv(Policy):
    """`k` prompt tokens, which layers behind a filter and the layer after it hold."""

    def configure(self, model, filters, k):
        self.filters, self.k = filters, k
        self.of = {il: max((f for f in filters if f < il - 1), default=None) for il in range(model.n_layers)}
        for f in filters:
            self.of[f] = None
            if f + 1 in self.of:
                self.of[f + 1] = None

    def settle(self, model, n):
        self.n, self.sets = n, {}
        for f in self.filters:
            self.find(model, f, model.ring[f, (n - 1) % MOST_QUERIES])

    def find(self, model, f, q):
        s = self.noise(np.einsum("hgd,hkd->hgk", q.astype(np.float64), model.k[f, :, :self.n].astype(np.float64)) / np.sqrt(model.head_dim))
        self.sets[f] = best(s.max(axis=(0, 1)), self.k)

    def before(self, model, il, q, at):
        if il in self.filters:
            self.find(model, il, q)

    def visible(self, il, end):
        rows = np.ones((self.slots.shape[1], end), bool)
        if self.of[il] is not None:
            rows[:, :self.n] = False
            rows[:, self.sets[self.of[il]]] = True
        return rows


class H2O(Policy):
    def configure(self, model):
        pass

    def settle(self, model, n):
        self.sums = model.sums.copy()
        self.held, self.recent = {}, {}
        for il in range(model.n_layers):
            for h in range(model.heads):
                slots = int(self.slots[il, h])
                self.recent[il, h] = recent = min(max(int(.5 * slots + .5), 1), slots)
                sums = self.sums[il, h, :n - recent]
                sums = sums * (1 + self.noise(np.zeros_like(sums, dtype=np.float64)))
                self.held[il, h] = set(best(sums, slots - recent).tolist()) | set(range(n - recent, n))
        self.make_room(model, n)

    def make_room(self, model, n):
        """Before the token at n comes."""
        self.next = {}
        for (il, h), held in self.held.items():
            noisy = {p: self.sums[il, h, p] * (1 + self.noise(np.zeros(1))[0]) for p in held if n - p >= self.recent[il, h]}
            self.next[il, h] = min(noisy, key=lambda p: (noisy[p], -p))

    def before(self, model, il, q, at):
        for h in range(model.heads):
            self.held[il, h].remove(self.next[il, h])
            self.held[il, h].add(at)

    def visible(self, il, end):
        rows = np.zeros((self.slots.shape[1], end), bool)
        for h in range(len(rows)):
            rows[h, sorted(self.held[il, h])] = True
        return rows

    def attended(self, model, il, weights):
        self.sums[il, :, :weights.shape[-1]] += weights.mean(axis=1)

    def after(self, model, at):
        self.make_room(model, at + 1)


class Razor(Policy):
    def configure(self, model, n_full, tail, sinks=4, window=32):
        self.n_full, self.tail, self.most_sinks, self.window = n_full, tail, sinks, window

    def sinks(self, slots):
        return min(self.most_sinks, slots // 3)

    def settle(self, model, n):
        streaming = int(self.slots.min()) - self.tail
        worth = []
        sinks = self.sinks(streaming)
        for il in range(model.n_layers):
            s = softmax(self.noise(model.logits(il, list(range(n - self.window, n)), n).astype(np.float64))).mean(axis=(0, 2))
            worth += list(s[:, sinks:n - (streaming - sinks)].sum(axis=-1))
        full = set(best(np.array(worth), self.n_full).tolist())
        self.full = np.array([i in full for i in range(len(worth))]).reshape(self.slots.shape)

    def visible(self, il, end):
        rows, keys = np.ones((self.slots.shape[1], end), bool), np.arange(end)
        for h in range(len(rows)):
            if not self.full[il, h]:
                slots = int(self.slots[il, h])
                rows[h] = (end <= slots) | (keys < self.sinks(slots)) | (keys >= end - (slots - self.sinks(slots)))
        return rows

    def means(self, model, il, end):
        gone = ~self.visible(il, end)
        n = gone.sum(axis=1)
        mean = [np.array([x[il, h, :end][gone[h]].mean(axis=0) if n[h] else np.zeros(model.head_dim) for h in range(model.heads)]) for x in (model.k, model.v)]
        return mean[0], mean[1], n


class Shadow(Policy):
    def configure(self, model, chunk, rank, outliers, local, tail=0, plus=False):
        self.chunk, self.rank, self.local, self.tail, self.plus, self.most_outliers = chunk, rank, local, tail, plus, outliers

    def settle(self, model, n):
        slots = int(self.slots[-1, 0])
        tail = min(self.tail, slots // 4)
        n_whole = slots // self.chunk - 1 if self.plus else (slots - tail - n % self.chunk) // self.chunk
        self.n_last = min(max(self.local // self.chunk, 1), max(n_whole // 4, 1))
        self.n_outliers = min(self.most_outliers, n_whole // 6)
        self.n_best = n_whole - self.n_last - self.n_outliers
        self.n_candidates = n // self.chunk - self.n_last
        self.outliers, self.best, self.basis = {}, {}, {}
        for il in range(model.n_layers):
            flat = self.unrotated(model, il, n)
            self.basis[il] = half(np.linalg.eigh(flat.T @ flat)[1][:, ::-1][:, :self.rank].T)
            for h in range(model.heads):
                self.outliers[il, h] = set(best(-self.noise(self.cosines(model, il, h, self.n_candidates)), self.n_outliers).tolist())
            self.choose(model, il, model.ring[il, (n - 1) % MOST_QUERIES])

    def unrotated(self, model, il, n):
        """Keys before RoPE, all heads side by side: (n, heads * head_dim)."""
        k = model.k[il, :, :n].transpose(1, 0, 2).astype(np.float64)
        cos, sin = model.cos[:n, None], model.sin[:n, None]
        a, b = k[..., 0::2], k[..., 1::2]
        return np.stack([a * cos + b * sin, b * cos - a * sin], axis=-1).reshape(n, -1)

    def chunks(self, model, il, h, n):
        return model.k[il, h, :n * self.chunk].astype(np.float64).reshape(n, self.chunk, -1)

    def cosines(self, model, il, h, n):
        k = self.chunks(model, il, h, n)
        mean = k.mean(axis=1, keepdims=True)
        norm = np.linalg.norm
        return ((k * mean).sum(-1) / (norm(k, axis=-1) * norm(mean, axis=-1))).min(axis=1)

    def choose(self, model, il, q):
        for h in range(model.heads):
            landmarks = half(self.chunks(model, il, h, self.n_candidates).mean(axis=1))
            s = self.noise(q[h].astype(np.float64) @ landmarks.T / np.sqrt(model.head_dim))
            s[:, sorted(self.outliers[il, h])] = -np.inf
            self.best[il, h] = best(softmax(s).max(axis=0), self.n_best)

    def before(self, model, il, q, at):
        self.choose(model, il, q)

    def keys(self, model, il, end):
        k = model.k[il, :, :end].astype(np.float64)
        rebuilt = half(self.unrotated(model, il, end) @ self.basis[il].T) @ self.basis[il]
        rebuilt = model.rotated(rebuilt.reshape(end, model.heads, -1), 0).transpose(1, 0, 2)
        for h in range(model.heads):
            at = (self.best[il, h][:, None] * self.chunk + np.arange(self.chunk)).ravel()
            k[h, at] = rebuilt[h, at]
        return k

    def after(self, model, at):
        if not self.plus or (at + 1) % self.chunk:
            return
        for (il, h), outliers in self.outliers.items():
            cosines = self.noise(self.cosines(model, il, h, self.n_candidates + 1))
            if outliers:
                last = max(outliers, key=lambda c: (cosines[c], c))
                if (cosines[self.n_candidates], self.n_candidates) < (cosines[last], last):
                    outliers.remove(last)
                    outliers.add(self.n_candidates)
        self.n_candidates += 1

    def visible(self, il, end):
        rows = np.zeros((self.slots.shape[1], end), bool)
        for h in range(len(rows)):
            for c in list(self.best[il, h]) + list(self.outliers[il, h]):
                rows[h, c * self.chunk:(c + 1) * self.chunk] = True
        rows[:, self.n_candidates * self.chunk:] = True
        return rows
