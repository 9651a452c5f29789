"""Does every trait of a case move its logits?  Undo one key or one kind of tensor at a time and say what changed least.

A golden that does not feel a trait cannot catch an engine that ignores it; make_model_goldens.py --check refuses such.
"""

import numpy as np

from oracle import Model

ENOUGH = 0.02  # ten times a generous comparison tolerance
# Keys that shape the graph (undoing them only breaks it), and keys that must change nothing (linear is the default type).
SHAPE = ("context_length", "embedding_length", "block_count", "feed_forward_length", "attention.head_count",
         "attention.head_count_kv", "attention.key_length", "attention.value_length", "original_context_length")
IGNORED = {("llama-window-key", "llama.attention.sliding_window"), ("llama-scaling-none", "llama.rope.scaling.factor"),
           ("llama-linear", "llama.rope.scaling.type"), ("phi4-mini", "phi3.rope.scaling.type"), ("gemma3", "gemma3.rope.scaling.type"),
           ("muse", "muse-glimmer.logit_scale")}   # the last: required


def mutations(spec, keys, tensors):
    arch = keys["general.architecture"]
    for key, value in keys.items():
        if not key.startswith(arch + ".") or key.endswith(SHAPE) or (spec["name"], key) in IGNORED:
            continue
        changed = {k: v for k, v in keys.items() if k != key}
        if key.endswith("rms_epsilon"):
            if value < 1e-3:
                continue  # too small to be felt; every architecture has a case with a large one
            changed[key] = 1e-6
        elif key.endswith("dimension_count"):
            if value == keys.get(arch + ".attention.key_length", keys[arch + ".embedding_length"] //
                                 keys[arch + ".attention.head_count"]) or "rope_factors_long.weight" in tensors:
                continue  # nothing to undo, or the factors' own length refuses it
        elif key.endswith("sliding_window") and (value == 0 or value > 64):
            continue
        yield "without " + key, changed, tensors
    kinds = {n.split(".", 2)[2] for n in tensors if n.startswith("blk.")} | {n for n in tensors if n[:3] != "blk"}
    for kind in sorted(kinds):
        if kind.endswith(".bias") or "norm" in kind or kind.startswith("rope_freqs"):
            neutral = 0.0 if kind.endswith(".bias") else 1.0
            hit = lambda n: n == kind or (n.startswith("blk.") and n.split(".", 2)[2] == kind)
            yield "plain " + kind, keys, {n: np.full_like(t, neutral) if hit(n) else t for n, t in tensors.items()}


def weakest(spec, tensors, full):
    """'trait difference' of the trait that moves the logits least."""
    keys = {k: v for k, _, v in spec["keys"]}
    found = []
    for run in spec["runs"]:
        tokens, expected = full[run["name"]]
        for what, k, t in mutations(spec, keys, tensors):
            got = Model(k, t, run["n_ctx"]).forward(tokens)
            found.append((float(np.abs(got - expected).max()), what))
        model = Model(keys, tensors, run["n_ctx"])
        model.neighbours = not model.neighbours
        found.append((float(np.abs(model.forward(tokens) - expected).max()), "other rotary layout"))
    if len(spec["runs"]) == 2:
        a, b = (full[r["name"]][1][:64] for r in spec["runs"])
        found.append((float(np.abs(a - b).max()), "context size"))
    difference, what = min(found)
    assert difference > ENOUGH, f"{spec['name']}: {what} changes logits by {difference} only"
    return f"weakest trait: {what} {difference:.2f}"
