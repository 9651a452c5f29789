"""Makes policy_steps.json: what heads attend to, step by step, of a text that the demo model has read, by policy_steps_reference.py.

`prompt`, `fed`: token ids; what is fed is what full attention answers, and goes on. `runs`: a policy's options by their names in the
library; `slots` that each head has, which is the plan's business (policy_steps_slots.json, from the library: where there are other runs, `--ask`
writes them alone, and the test says what it finds); `steps`: for each head what it attends to in that step, three tokens a character of base64's alphabet,
two bits each from the lowest: 0 out, 1 in, 2 maybe; nothing where it is everything; `means`: what each has let go as one token, its weight
and the norms of its K and V, where there is such a token. "maybe" are tokens about which runs with a
little noise on every score disagree: what rounding could decide. It is added to logits: .01 where digests are halves, .003 where
low-rank keys are, else .0001.

Needs numpy, gguf, tokenizers, jinja2.  Usage: python3 make_policy_steps_goldens.py
"""

import json
import pathlib
import sys
from fractions import Fraction as F

import numpy as np

import policy_reference as reference
from make_demo_golden import read_model, tokenizer_of
from policy_steps_reference import Adapter, Disturbed, H2O, InfiniGen, Loki, Noise, OmniKv, Pages, Raas, Razor, Shadow, Walk

HERE = pathlib.Path(__file__)
MODEL = HERE.parents[2] / "samples/models/demo-q8_0.gguf"
TEXT = HERE.parents[2] / "samples/models/demo-document.txt"
CONTEXT, SHOWN, N_FED, VARIANTS = 1024, (1, 2, 9, 20), 20, 25
DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
PAGES, ROWS, FLOATS = .01, .003, .0001
MOST_MAYBE = .05   # of all tokens; the test holds it too


def adapted(make):
    def made(model, slots, noise, **options):
        chooser = Disturbed(ties=options.pop("ties", False))
        chooser.noise = noise
        inner = make(model, **options)
        inner.choose = chooser
        return Adapter(inner)
    return made


def hetero(model, share, full_share, **options):
    n_heads = model.n_layers * model.heads
    return reference.HeteroCache((model.n_layers, model.heads), share, max_full=int(F(full_share) * n_heads), most_slots=int(F(share) * n_heads * CONTEXT),
                                 context=CONTEXT, **options)


def sync(model, share, **options):
    return reference.SyncKv((model.n_layers, model.heads), share, most_slots=int(F(share) * model.n_layers * model.heads * CONTEXT), context=CONTEXT, **options)


def window(model, share, **options):
    return reference.Window((model.n_layers, model.heads), share, most_slots=int(F(share) * model.n_layers * model.heads * CONTEXT), context=CONTEXT, **options)


def run(policy, share, noise, make, given, **options):
    return {"policy": policy, "share": share, "noise": noise, "make": make, "options": options, "given": given}


AUTO = {"score": "variance", "pool": "max", "width": 15, "layers": "adaptive", "heads": "adaptive", "safeguard": "protect", "tau_1": 2,
        "tau_2": 2, "tail": 32, "compensation": 1, "mean_slots": 1}
RUNS = [
    run("quest", "0.4", PAGES, Pages, {"page": 8, "sinks": 0, "window": 32, "first_layers": 0}, page="8", first_layers="0"),
    run("quest", "0.5", PAGES, Pages, {"page": 16, "sinks": 16, "window": 48, "first_layers": 1, "tau": .9}, page="16", sinks="16", window="48",
        first_layers="1", tau="0.9"),
    run("freekv", "0.4", PAGES, Pages, {"page": 8, "sinks": 512, "window": 512, "first_layers": 1, "tau": .8}, page="8", first_layers="1"),
    run("freekv", "0.5", PAGES, Pages, {"page": 8, "sinks": 8, "window": 24, "first_layers": 0, "tau": 0, "deviation": True, "raw": True}, page="8", sinks="8",
        window="24", first_layers="0", tau="0", digest="deviation", score="raw"),
    run("arkvale", "0.4", PAGES, Pages, {"page": 8, "sinks": 64, "window": 64, "first_layers": 0, "deviation": True, "raw": True, "layer": True, "asked": .5},
        page="8", first_layers="0"),
    run("raas", "0.4", PAGES, Raas, {"page": 8, "sinks": 512, "window": 512, "first_layers": 0}, page="8", first_layers="0"),
    run("raas", "0.5", PAGES, Raas, {"page": 8, "sinks": 16, "window": 32, "first_layers": 0, "top": .5}, page="8", sinks="16", window="32", first_layers="0",
        stamp="top"),
    run("loki", "0.4", ROWS, Loki, {"rank": 8}, rank="8"),
    run("loki", "0.3", ROWS, Loki, {"rank": 4, "sinks": 6, "window": 16, "reduce": "max"}, rank="4", sinks="6", window="16", reduce="max"),
    run("infinigen", "0.5", ROWS, InfiniGen, {"rank": 8, "first_layers": 1}, first_layers="1"),
    run("omnikv", "0.7", FLOATS, OmniKv, {"filters": [0]}, filters="0", tail="32"),
    run("h2o", "0.4", FLOATS, H2O, {}),
    run("razorattention", "0.4", FLOATS, Razor, {"n_full": 8, "tail": 24}, full_share="0.25", tail="24"),
    run("shadowkv", "0.5", ROWS, Shadow, {"chunk": 8, "rank": 24, "outliers": 48, "local": 32, "tail": 32}, rank="24", tail="32"),
    run("shadowkv+", "0.5", ROWS, Shadow, {"chunk": 4, "rank": 16, "outliers": 3, "local": 16, "plus": True}, chunk="4", rank="16", outliers="3", local="16"),
    run("heterocache", "0.5", FLOATS, adapted(hetero), {"share": "0.5", "full_share": "0.25", "tau_sim": "0.35", "tau_stable": "0.3", "tau_drift": "0.9", "tail": 32},
        full_share="0.25", tau_sim="0.35", tau_stable="0.3", tau_drift="0.9", tail="32"),
    run("synckv", "0.5", FLOATS / 10, adapted(sync), {"share": "0.5", "n_representatives": 1, "tail": 32}, representatives="1", tail="32"),
    run("auto", "0.3", FLOATS, adapted(window), {"share": "0.3", "ties": True, **AUTO}, tail="32", steps="0"),
    run("adakv", "0.4", FLOATS, adapted(window), {"share": "0.4", "ties": True, "score": "each", "pool": "max", "width": 7, "heads": "adaptive", "tail": 32},
        score="each", tail="32"),
]


def encoded(certain, possible):
    if certain.all():
        return ""
    states = np.where(certain, 1, np.where(possible, 2, 0))
    states = np.append(states, np.zeros(-len(states) % 3, int)).reshape(-1, 3)
    return "".join(DIGITS[a + 4 * b + 16 * c] for a, b, c in states)


def means_of(model, policy):
    """Of each head what it has let go as one token: its weight, its norms of K and of V; nothing where no head has any."""
    rows = []
    for il in range(model.n_layers):
        found = policy.means(model, il, model.n)
        if found is None:
            return []
        k, v, weights = found
        rows += [[float(f"{x:.6g}") for x in (w, np.linalg.norm(a), np.linalg.norm(b))] if w > 0 else [0, 0, 0] for a, b, w in zip(k, v, weights)]
    return rows


def main():
    keys, tensors = read_model(MODEL)
    model, tok = Walk(keys, tensors, CONTEXT), tokenizer_of(keys)
    text = TEXT.read_text()[:2600] + "\n\nWhere does Silas keep the key?"
    prompt = tok.encode("<|im_start|>user\n" + text + "<|im_end|>\n<|im_start|>assistant\n", add_special_tokens=False).ids
    fed, logits = [], model.start(prompt)
    state = model.snapshot()
    while len(fed) < N_FED:
        fed.append(int(np.argmax(logits)))
        logits = model.feed(fed[-1:])
    golden = {"n_context": CONTEXT, "prompt": prompt, "fed": fed, "runs": []}
    path = HERE.with_name("policy_steps.json")
    asking = "--ask" in sys.argv
    slots = json.loads(HERE.with_name("policy_steps_slots.json").read_text()) if not asking else None
    for i, r in enumerate(RUNS):
        done = {"policy": r["policy"], "share": float(r["share"]), "options": r["options"], "slots": slots[i] if slots else [], "steps": []}
        golden["runs"].append(done)
        if asking:
            continue
        certain, possible, means = {}, {}, {}
        for seed in range(VARIANTS):
            model.restore(state)
            given = dict(r["given"])
            if r["policy"] == "omnikv":
                given["k"] = min(slots[i]) - 32
            policy = r["make"](model, slots[i], Noise(seed, r["noise"]), **given)
            policy.settle(model, model.n)
            for step, token in enumerate(fed, 1):
                rows = np.concatenate(model.step(token, policy))
                if step in SHOWN:
                    certain[step] = certain.get(step, True) & rows
                    possible[step] = possible.get(step, False) | rows
                    if seed == 0:
                        means[step] = means_of(model, policy)
        maybe = sum((possible[s] & ~certain[s]).sum() for s in SHOWN) / sum(certain[s].size for s in SHOWN)
        assert maybe < MOST_MAYBE, (r["policy"], maybe)
        done["steps"] = [{"step": s, "heads": [encoded(c, p) for c, p in zip(certain[s], possible[s])], "means": means[s]} for s in SHOWN]
        print(r["policy"], r["options"], f"in {sum(certain[s].sum() for s in SHOWN) / sum(certain[s].size for s in SHOWN):.3f}, maybe {maybe:.4f}", flush=True)
    path.write_text(json.dumps(golden, separators=(",", ":")) + "\n")
    print(len(prompt), "tokens,", path.name, path.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
