"""Makes policy_recorded.json: what each method that chooses once keeps of a text that the demo model reads, by policy_reference.py.

The model runs in NumPy (policy_answers.py). Its last queries' scaled products with every key, at the end of a conversation with a
question about the text, are rounded to whole 1/256 and written down; both sides choose by these numbers, so that only the choosing
is compared. `logits`: base64 of little-endian int16 (layers, positions, KV heads, group, keys), positions the last ones; keys behind
a position are 0 and nobody's business. `runs`: options by their names in the library, and what is kept: `tail`, `sets` as [layer,
head, positions] of the heads that do not keep everything. No choice is closer than 1e-6, relative; equal scores are ties.

Needs numpy, gguf, tokenizers, jinja2.  Usage: python3 make_policy_recorded_goldens.py
"""

import base64
import json
import pathlib

import numpy as np

from make_demo_golden import read_model, tokenizer_of
from make_policy_run_goldens import CLOSE, one, positions_of
from policy_answers import Demo
from policy_reference import DuoAttention, Window, WINDOW_METHODS
from fractions import Fraction as F

N_QUERIES, UNIT, ROOT_DIM = 8, 256, 181 / 32   # of the demo model's 32
HERE = pathlib.Path(__file__)
MODEL = HERE.parents[2] / "samples/models/demo-q8_0.gguf"
TEXT = HERE.parents[2] / "samples/models/demo-document.txt"

RUNS = [one(policy, budget, window="8") for policy in ("snapkv", "pyramidkv", "adakv", "adapyramid", "cake") for budget in ("0.8", "0.5", "0.3")]
RUNS += [one("adakv", "0.4", window="8", safeguard="protect", alpha="0.9"), one("cake", "0.5", window="8", tau_1="1.6", tau_2="0.4"),
         one("snapkv", "0.5", window="8", first_layers="1"), one("duoattention", "0.5", window="8", full_share="0.25"),
         one("duoattention", "0.8", window="8", full_share="0.6", sinks="4")]
RUNS += [one("adakv", "0.6", window="8", score="each"), one("adapyramid", "0.3", window="3", score="each"),
         one("snapkv", "0.5", window="8", score="each", pool="none"), one("cake", "0.4", window="5", score="each", pool="none")]


class Recorded:
    root_dim = ROOT_DIM

    def __init__(self, logits):
        self.values, self.n_layers, self.n = logits, logits.shape[0], logits.shape[-1]

    def logits(self, layer, positions, n_keys):
        first = self.n - self.values.shape[1]
        seen = np.arange(n_keys) <= np.array(positions)[:, None]
        rows = self.values[layer, np.array(positions) - first][..., :n_keys] / UNIT
        return np.where(seen[:, None, None], rows, -np.inf)


def main():
    keys, tensors = read_model(MODEL)
    model, tok = Demo(keys, tensors, 1024), tokenizer_of(keys)
    text = TEXT.read_text()[:520] + "\n\nWhere does Silas keep the key?"
    ids = tok.encode("<|im_start|>user\n" + text + "<|im_end|>\n<|im_start|>assistant\n", add_special_tokens=False).ids
    model.prefill(ids)
    positions = list(range(model.n - N_QUERIES, model.n))
    logits = np.array([model.logits(l, positions, model.n) for l in range(model.n_layers)])
    whole = np.where(np.isfinite(logits), np.rint(logits * UNIT), 0).astype(np.int64)
    assert np.abs(whole).max() < 1 << 15 and abs(ROOT_DIM ** 2 / model.head_dim - 1) < 1e-3
    attention, runs = Recorded(whole), []
    for options in RUNS:
        arguments = {k: v for k, v in options.items() if k not in ("policy", "budget")}
        shape, n_heads = (model.n_layers, model.heads), model.n_layers * model.heads
        context = model.n + 400
        if options["policy"] == "duoattention":
            arguments["n_full"] = int(F(arguments.pop("full_share")) * n_heads)
            policy = DuoAttention(shape, options["budget"], watch=True, most_slots=n_heads * context, context=context, **arguments)
        else:
            arguments = {**WINDOW_METHODS[options["policy"]], **arguments}
            policy = Window(shape, options["budget"], watch=True, most_slots=n_heads * context, context=context, **arguments)
        policy.settle(attention, model.n)
        assert policy.choose.least_gap > CLOSE, (options, policy.choose.least_gap)
        sets = [[l, h, positions_of(row)] for l in range(model.n_layers) for h, row in enumerate(policy.visible(l, model.n)) if not row.all()]
        runs.append({"options": options, "tail": policy.tail, "sets": sets})
        print(options, "least gap", policy.choose.least_gap, "lengths", [len(s) for _, _, s in sets])
    data = base64.b64encode(whole.astype("<i2").tobytes()).decode()
    golden = {"n_layers": model.n_layers, "n_kv_heads": model.heads, "group": model.group, "n_tokens": model.n, "n_queries": N_QUERIES,
              "unit": UNIT, "root_dim": ROOT_DIM, "logits": data, "runs": runs}
    path = HERE.with_name("policy_recorded.json")
    path.write_text(json.dumps(golden, separators=(",", ":")) + "\n")
    print(model.n, "tokens,", path.name, path.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
