"""Makes demo_model.json: greedy answers of the bundled demo model by the oracle's own forward pass.

    python3 make_demo_golden.py SAMPLE.json TURN,TURN,... MODEL.gguf...

Needs numpy 2.4, gguf 0.19 (reading and dequantizing), tokenizers 0.23 (BPE), jinja2 3.1 (chat template).  SAMPLE.json is a
conversation in the demo model's language (samples/1000.json of what trained it): {system, document, turns}; each
TURN, from 0, is asked alone after the document.
Weights are dequantized, all arithmetic is float64: what full attention in exact arithmetic says.
"""

import json
import os
import sys

import gguf
import jinja2
import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from oracle import Model, greedy

HERE = os.path.dirname(os.path.abspath(__file__))
N_TOKENS = 48
QWEN2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
         r"|\s+(?!\S)|\s+")


def read_model(path):
    reader = gguf.GGUFReader(path)
    keys = {name: field.contents() for name, field in reader.fields.items()}
    return keys, {t.name: gguf.quants.dequantize(t.data, t.tensor_type) for t in reader.tensors}


def tokenizer_of(keys):
    assert keys["tokenizer.ggml.model"] == "gpt2" and keys["tokenizer.ggml.pre"] == "qwen2"
    tokens = keys["tokenizer.ggml.tokens"]
    merges = [tuple(m.split(" ")) for m in keys["tokenizer.ggml.merges"]]
    tok = tokenizers.Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, merges))
    tok.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(tokenizers.Regex(QWEN2), "isolated"),
         pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tok.decoder = decoders.ByteLevel()
    tok.add_special_tokens([t for t, kind in zip(tokens, keys["tokenizer.ggml.token_type"]) if kind == 3])
    return tok


def main():
    sample = json.load(open(sys.argv[1]))
    result = {"note": "greedy by float64 arithmetic on dequantized weights; a margin is top-1 minus top-2 of the logits "
                      "that a token was chosen from; answer_ids end before the end-of-generation token",
              "prompts": [], "models": {}}
    turns = [sample["turns"][int(t)] for t in sys.argv[2].split(",")]
    for path in sys.argv[3:]:
        keys, tensors = read_model(path)
        tok = tokenizer_of(keys)
        template = jinja2.Environment(trim_blocks=True, lstrip_blocks=True).from_string(keys["tokenizer.chat_template"])
        eos = keys["tokenizer.ggml.eos_token_id"]
        model = Model(keys, tensors, keys["llama.context_length"])
        runs = []
        for i, turn in enumerate(turns):
            text = template.render(add_generation_prompt=True, messages=[
                {"role": "system", "content": sample["system"]},
                {"role": "user", "content": sample["document"] + "\n\n" + turn["question"]}])
            ids = tok.encode(text, add_special_tokens=False).ids
            assert tok.decode(ids, skip_special_tokens=False) == text
            if len(result["prompts"]) == i:
                result["prompts"].append({"question": turn["question"], "expected": turn["answer"], "text": text,
                                          "ids": ids})
            assert result["prompts"][i]["ids"] == ids
            logits, chosen, _, margins = greedy(model, ids, N_TOKENS)
            end = chosen.index(eos) if eos in chosen else len(chosen)
            top = np.argsort(-logits[-1])[:8]
            runs.append({"ids": chosen, "margins": [round(m, 4) for m in margins], "answer_ids": chosen[:end],
                         "answer": tok.decode(chosen[:end]), "min_margin": round(min(margins[:end + 1]), 4),
                         "first_top8": [[int(t), round(float(logits[-1][t]), 5)] for t in top]})
            right = "right" if runs[-1]["answer"].strip() == turn["answer"].strip() else "WRONG"
            print(f"{os.path.basename(path)} {len(ids)} tokens, {right}: {turn['question']} -> {runs[-1]['answer']!r} "
                  f"margin {runs[-1]['min_margin']} (48 tokens: {min(margins):.4f})", flush=True)
        result["models"][os.path.basename(path)] = runs
    with open(os.path.join(HERE, "demo_model.json"), "w") as f:
        json.dump(result, f, indent=None, separators=(",", ":"))
        f.write("\n")


if __name__ == "__main__":
    main()
