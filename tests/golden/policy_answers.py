"""The demo model's answers under KV policies, in NumPy float32: what an engine's accuracy is compared with.

    python3 policy_answers.py MODEL.gguf SAMPLES.jsonl --run full --run hetero,0.5,tau_sim=.5,tau_stable=.4 --run sync,0.5

SAMPLES.jsonl is what `orrery eval --write-samples` writes: {"system" ("" or none: no such message), "context", "questions":
[{"question", "answers" or "answer"}]} per line. A sample is one conversation: the first question stands behind the context and a
blank line, each next one is a turn of its own, and what was answered stays; with --single each question stands alone behind the
context. A turn is prefilled exactly, over every key there is; then the policy settles and the answer is generated greedily with
the tokens that each head keeps, and those generated since. An answer is right when its words are those of a right one, case
and punctuation aside. "kept" is the share of full attention's right answers (same sample, same turn) that a policy has right too.

--run NAME[,BUDGET[,option=value]..]: full, streaming, hetero, sync, snapkv, pyramidkv, adakv, adapyramid, cake; options are the keyword arguments of policy_reference.py's
classes (tail=0 is the papers' accounting, frozen=1 never refreshes, share=.2 allows that share of full heads).
Needs numpy, gguf, tokenizers, jinja2. One core is enough: OMP_NUM_THREADS=1.
"""

import argparse
import json
import os
import re
import string
import time
from fractions import Fraction as F

import jinja2
import numpy as np

import oracle
from make_demo_golden import read_model, tokenizer_of
from policy_reference import BudgetTooSmall, Full, HeteroCache, MOST_QUERIES, Streaming, SyncKv, Window, WINDOW_METHODS

CHUNK = 256


class Demo(oracle.Model):
    """The oracle's llama in float32 with flat caches: keys and values (layers, kv heads, tokens, head_dim)."""

    def __init__(self, keys, tensors, n_ctx):
        super().__init__(keys, tensors, n_ctx)
        assert self.arch == "llama" and len(set(self.n_heads)) == len(set(self.n_kv_heads)) == 1
        self.w = {name: t.astype(np.float32) for name, t in self.w.items()}
        self.root_dim = np.sqrt(self.head_dim)
        self.heads, self.group = self.n_kv_heads[0], self.n_heads[0] // self.n_kv_heads[0]
        angle = np.arange(n_ctx)[:, None] * self.inv_freq
        self.cos, self.sin = (self.rope_magnitude * f(angle).astype(np.float32) for f in (np.cos, np.sin))
        shape = self.n_layers, self.heads, n_ctx, self.head_dim
        self.k, self.v = np.empty(shape, np.float32), np.empty(shape, np.float32)
        self.n = 0
        # The newest queries, at position mod their number.
        self.ring = np.empty((self.n_layers, MOST_QUERIES, self.heads, self.group, self.head_dim), np.float32)

    def rotated(self, x, at):
        """x (tokens, heads, head_dim) at positions at.."""
        assert self.neighbours and self.n_rot == self.head_dim
        cos, sin = self.cos[at:at + len(x), None], self.sin[at:at + len(x), None]
        a, b = x[..., 0::2], x[..., 1::2]
        return np.stack([a * cos - b * sin, b * cos + a * sin], axis=-1).reshape(x.shape)

    def feed(self, tokens, policy=None):
        """Logits of the last of `tokens`; with a policy, heads see what it keeps (one token at a time)."""
        at, m, hd = self.n, len(tokens), self.head_dim
        end = at + m
        assert policy is None or m == 1
        x = self.w["token_embd.weight"][tokens]
        for il in range(self.n_layers):
            p = f"blk.{il}.attn_"
            y = self.norm(x, p + "norm")
            q, k, v = (self.linear(y, p + s).reshape(m, -1, hd) for s in "qkv")
            q = self.rotated(q, at).reshape(m, self.heads, self.group, hd)
            self.k[il, :, at:end] = self.rotated(k, at).transpose(1, 0, 2)
            self.v[il, :, at:end] = v.transpose(1, 0, 2)
            last = q[-MOST_QUERIES:]
            self.ring[il, np.arange(end - len(last), end) % MOST_QUERIES] = last
            rows = q.transpose(1, 2, 0, 3).reshape(self.heads, self.group * m, hd)
            s = rows @ self.k[il, :, :end].transpose(0, 2, 1) / np.float32(np.sqrt(hd))   # (heads, group * m, keys)
            if m > 1:
                s.reshape(self.heads, self.group, m, end)[..., at:] += np.triu(np.full((m, m), -np.inf, np.float32), 1)
            seen = policy.visible(il, end) if policy else None
            if seen is not None:
                s = np.where(seen[:, None, :], s, np.float32(-np.inf))
            s -= s.max(axis=-1, keepdims=True)
            np.exp(s, out=s)
            s /= s.sum(axis=-1, keepdims=True)
            o = (s @ self.v[il, :, :end]).reshape(self.heads, self.group, m, hd).transpose(2, 0, 1, 3).reshape(m, -1)
            x = x + self.linear(o, p + "output")
            x = x + self.mlp(il, self.norm(x, f"blk.{il}.ffn_norm"))
        self.n = end
        return self.norm(x[-1], "output_norm") @ self.w.get("output.weight", self.w["token_embd.weight"]).T

    def prefill(self, tokens):
        for i in range(0, len(tokens), CHUNK):
            logits = self.feed(tokens[i:i + CHUNK])
        return logits

    def logits(self, layer, positions, n_keys):
        """What policy_reference.py asks of attention."""
        assert min(positions) >= self.n - MOST_QUERIES and max(positions) < self.n
        q = self.ring[layer, np.array(positions) % MOST_QUERIES].transpose(1, 0, 2, 3)
        s = q.reshape(self.heads, -1, self.head_dim) @ self.k[layer, :, :n_keys].transpose(0, 2, 1)
        s = (s / np.float32(np.sqrt(self.head_dim))).reshape(self.heads, len(positions), self.group, n_keys).transpose(1, 0, 2, 3)
        unseen = np.arange(n_keys) > np.array(positions)[:, None]
        return np.where(unseen[:, None, None], np.float32(-np.inf), s)

    def snapshot(self):
        return self.n, self.k[:, :, :self.n].copy(), self.v[:, :, :self.n].copy(), self.ring.copy()

    def restore(self, state):
        self.n = state[0]
        self.k[:, :, :self.n], self.v[:, :, :self.n] = state[1:3]
        self.ring[:] = state[3]


def answer(model, policy, logits, eos, most):
    """Generated ids, without the end; the model has been fed all but a last one that ended nothing."""
    ids, generated = [], 0
    policy.settle(model, model.n)
    while True:
        token = int(np.argmax(logits))
        if token == eos:
            return ids
        ids.append(token)
        if len(ids) == most:
            return ids
        if policy.tail and generated == policy.tail:   # no slot for the next token: settle over everything
            policy.settle(model, model.n)
            generated = 0
        logits = model.feed([token], policy)
        generated += 1
        policy.after_step(model, model.n - 1)


def make_policy(text, model):
    name, *rest = text.split(",")
    shape, options = (model.n_layers, model.heads), {}
    if name == "full":
        return Full(shape)
    budget, *rest = rest
    for part in rest:
        key, value = part.split("=")
        if key == "frozen":
            options["refresh"] = not int(value)
        elif key == "share":
            options["max_full"] = int(F(value) * model.n_layers * model.heads)
        elif key in ("tail", "block", "stride", "sinks", "n_representatives"):
            options[key] = int(value)
        else:
            options[key] = value
    if name in WINDOW_METHODS:
        return Window(shape, budget, **{**WINDOW_METHODS[name], **options})
    return {"streaming": Streaming, "hetero": HeteroCache, "sync": SyncKv}[name](shape, budget, **options)


class Conversation:
    def __init__(self, tok, keys, sample):
        self.tok = tok
        self.eos = keys["tokenizer.ggml.eos_token_id"]
        self.template = jinja2.Environment(trim_blocks=True, lstrip_blocks=True).from_string(keys["tokenizer.chat_template"])
        self.sample = sample

    def render(self, messages):
        text = self.template.render(messages=messages, add_generation_prompt=True)
        return self.tok.encode(text, add_special_tokens=False).ids

    def opening(self, i=0):
        """The context with question i behind it."""
        system = self.sample.get("system")
        user = {"role": "user", "content": self.sample["context"] + "\n\n" + self.sample["questions"][i]["question"]}
        return self.render([{"role": "system", "content": system}, user] if system else [user])

    def turn(self, i):
        """What stands between an answer's last token and the next answer, beginning with its end token."""
        closing = self.tok.encode("<|im_end|>\n", add_special_tokens=False).ids
        return closing + self.render([{"role": "user", "content": self.sample["questions"][i]["question"]}])


def words(text):
    return re.sub(f"[{re.escape(string.punctuation)}]", " ", text.lower()).split()


def common_prefix(a, b):
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


def converse(model, talk, policy, state, single, most):
    """[(text, right or None where the budget was refused)] of every question; `state` is the model behind the context."""
    told, pending = [], []
    for i, qa in enumerate(talk.sample["questions"]):
        if i == 0 or single:
            model.restore(state)
            logits = model.prefill(talk.opening(i)[state[0]:])
        else:
            logits = model.prefill(pending + talk.turn(i))
        try:
            ids = answer(model, policy, logits, talk.eos, most)
        except BudgetTooSmall as e:
            told.append((str(e), None))
            pending = []
            continue
        pending = ids[-1:] if len(ids) == most else []
        text = talk.tok.decode(ids)
        told.append((text, words(text) in [words(a) for a in qa.get("answers", [qa.get("answer", "")])]))
    return told


def main():
    args = argparse.ArgumentParser()
    args.add_argument("model")
    args.add_argument("samples")
    args.add_argument("--run", action="append", required=True)
    args.add_argument("--limit", type=int, default=10**9, help="samples")
    args.add_argument("--single", action="store_true", help="each question alone behind the context")
    args.add_argument("--max-tokens", type=int, default=128)
    args.add_argument("--json", help="answers, one line per conversation and run")
    args = args.parse_args()
    with open(args.samples) as f:
        samples = [json.loads(line) for line in f if line.strip()][:args.limit]
    keys, tensors = read_model(args.model)
    model = Demo(keys, tensors, keys["llama.context_length"])
    tok = tokenizer_of(keys)
    runs = ["full"] + [r for r in args.run if r != "full"]
    right, kept, refused, seconds = ({r: 0 for r in runs} for _ in range(4))
    n_answers, out = 0, open(args.json, "w") if args.json else None
    for at, sample in enumerate(samples):
        assert sample.get("metric", "exact") == "exact" and not sample.get("question_inside"), "not one of our own tasks"
        talk, model.n = Conversation(tok, keys, sample), 0
        prompts = [talk.opening(i) for i in range(len(sample["questions"]))]
        shared = min(min(common_prefix(prompts[0], p), len(p) - 1) for p in prompts)
        model.prefill(prompts[0][:shared])
        state = model.snapshot()
        n_answers += len(sample["questions"])
        for run in runs:
            start = time.perf_counter()
            told = converse(model, talk, make_policy(run, model), state, args.single, args.max_tokens)
            seconds[run] += time.perf_counter() - start
            if run == "full":
                by_full = told
            right[run] += sum(r is True for _, r in told)
            refused[run] += sum(r is None for _, r in told)
            kept[run] += sum(r is True and f is True for (_, r), (_, f) in zip(told, by_full))
            if out:
                out.write(json.dumps({"sample": at, "task": sample.get("task"), "length": state[0], "run": run, "answers": told}) + "\n")
                out.flush()
        if (at + 1) % 5 == 0 or at + 1 == len(samples):
            print(f"{at + 1} of {len(samples)} conversations, {n_answers} answers", flush=True)
    print(f"{os.path.basename(args.model)}, {args.samples}: {n_answers} answers")
    for run in runs:
        print(f"{run:60} right {right[run]:4}, kept {kept[run]:4} of {right['full']:4} = {kept[run] / max(1, right['full']):.3f}"
              f", refused {refused[run]:3}, {seconds[run]:.0f} s")


if __name__ == "__main__":
    main()
