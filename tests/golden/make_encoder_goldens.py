"""Makes encoders/NAME.json (spec, texts as tokens) and encoders/NAME.golden (expected rows, scores) of small random encoders, by
oracle_encoder.py:

    python3 make_encoder_goldens.py [NAME...]

Needs numpy.
"""

import os
import sys

import numpy as np

import golden_file
import spec_weights
from make_model_goldens import to_json
from model_cases import Builder
from oracle import Model
from oracle_encoder import Encoder

HERE = os.path.dirname(os.path.abspath(__file__))


def tensor(name, shape, scale, offset=0.0):
    return {"name": name, "shape": shape, "scale": round(scale, 6), "offset": offset}


def bert(name, note, *, seed, dim, layers, heads, ff, vocab, context, types=2, pooling=1, head=None):
    keys = [["general.architecture", "string", "bert"], ["general.name", "string", "random " + name], ["bert.context_length", "u32", context],
            ["bert.embedding_length", "u32", dim], ["bert.block_count", "u32", layers], ["bert.feed_forward_length", "u32", ff],
            ["bert.attention.head_count", "u32", heads], ["bert.attention.layer_norm_epsilon", "f32", 1e-3],
            ["bert.attention.causal", "bool", False], ["bert.pooling_type", "u32", pooling]]
    tensors = [tensor("token_embd.weight", [dim, vocab], 1.0), tensor("position_embd.weight", [dim, context], 0.7)]
    if types:
        tensors.append(tensor("token_types.weight", [dim, types], 0.8))

    def norm(of):
        tensors.extend([tensor(of + ".weight", [dim], 0.5, 1.0), tensor(of + ".bias", [dim], 0.4)])

    def matrix(of, n_in, n_out, gain=1.0):
        tensors.extend([tensor(of + ".weight", [n_in, n_out], gain * (3 / n_in) ** 0.5), tensor(of + ".bias", [n_out], 0.3)])

    norm("token_embd_norm")
    for i in range(layers):
        prefix = "blk.%d." % i
        for part in ("attn_q", "attn_k"):
            matrix(prefix + part, dim, dim, 1.5)
        matrix(prefix + "attn_v", dim, dim)
        matrix(prefix + "attn_output", dim, dim)
        norm(prefix + "attn_output_norm")
        matrix(prefix + "ffn_up", dim, ff)
        matrix(prefix + "ffn_down", ff, dim)
        norm(prefix + "layer_output_norm")
    if head:
        if head == "dense":
            matrix("cls", dim, dim)
        matrix("cls.output" if head == "dense" else "cls", dim, 1)
    return {"name": name, "note": note, "seed": seed, "keys": keys, "vocab": {"size": vocab}, "tensors": tensors}


def nomic(name, note, *, seed, dim, layers, heads, ff, vocab, context):
    keys = [["general.architecture", "string", "nomic-bert"], ["general.name", "string", "random " + name], ["nomic-bert.context_length", "u32", context],
            ["nomic-bert.embedding_length", "u32", dim], ["nomic-bert.block_count", "u32", layers], ["nomic-bert.feed_forward_length", "u32", ff],
            ["nomic-bert.attention.head_count", "u32", heads], ["nomic-bert.attention.layer_norm_epsilon", "f32", 1e-3],
            ["nomic-bert.attention.causal", "bool", False], ["nomic-bert.pooling_type", "u32", 1], ["nomic-bert.rope.freq_base", "f32", 1000.0]]
    tensors = [tensor("token_embd.weight", [dim, vocab], 1.0), tensor("token_types.weight", [dim, 2], 0.8)]

    def norm(of):
        tensors.extend([tensor(of + ".weight", [dim], 0.5, 1.0), tensor(of + ".bias", [dim], 0.4)])

    def matrix(of, n_in, n_out, gain=1.0):
        tensors.append(tensor(of + ".weight", [n_in, n_out], gain * (3 / n_in) ** 0.5))

    norm("token_embd_norm")
    for i in range(layers):
        prefix = "blk.%d." % i
        matrix(prefix + "attn_qkv", dim, 3 * dim, 1.4)
        matrix(prefix + "attn_output", dim, dim)
        norm(prefix + "attn_output_norm")
        for part in ("ffn_gate", "ffn_up"):
            matrix(prefix + part, dim, ff)
        matrix(prefix + "ffn_down", ff, dim, 1.5)
        norm(prefix + "layer_output_norm")
    return {"name": name, "note": note, "seed": seed, "keys": keys, "vocab": {"size": vocab}, "tensors": tensors}


def gemma(name, note, *, seed, window, dense=0):
    b = Builder(name, note, "gemma-embedding", dim=64, layers=7, heads=4, kv=1, head_dim=32, ff=96, vocab=128, tied=True, embed_scale=0.2,
                rope_base=1000000.0, eps=1e-6, context=160)
    b.key("attention.sliding_window", "u32", window).key("attention.causal", "bool", False).key("pooling_type", "u32", 1)
    spec = b.build(qk_norm=True, post_norms=True)
    spec = spec.spec if isinstance(spec, Builder) else spec
    del spec["contexts"]
    if dense:
        for key, size in ("dense_2_feat_in", 64), ("dense_2_feat_out", dense), ("dense_3_feat_in", dense), ("dense_3_feat_out", 64):
            spec["keys"].append(["gemma-embedding." + key, "u32", size])
        spec["tensors"] += [tensor("dense_2.weight", [64, dense], 0.2), tensor("dense_3.weight", [dense, 64], 0.2)]
    return dict(spec, seed=seed)


CASES = [
    nomic("nomic-bert", "Fused QKV without biases, RoPE, a gated FFN, token types.", seed=9, dim=48, layers=3, heads=3, ff=80, vocab=100, context=160),
    gemma("gemma-embedding", "Gemma 3 whose rows see both sides, in a window in five of six layers.", seed=10, window=12),
    gemma("gemma-embedding-odd", "A window of an odd number of tokens.", seed=11, window=9),
    gemma("gemma-embedding-dense", "The pooled row goes through two products.", seed=12, window=12, dense=76),
    bert("bert", "Every trait of BERT: positions, token types, biases, norms after the additions.", seed=5, dim=48, layers=3, heads=3, ff=80, vocab=100,
         context=160),
    bert("bert-plain", "Without token types; heads of 32; pooled by the first row.", seed=6, dim=64, layers=2, heads=2, ff=96, vocab=64, context=96,
         types=0, pooling=2),
    bert("bert-rank", "A reranker with a dense part.", seed=7, dim=64, layers=2, heads=4, ff=96, vocab=64, context=96, pooling=4, head="dense"),
    bert("bert-rank-short", "A reranker whose head is one product.", seed=8, dim=64, layers=1, heads=4, ff=96, vocab=64, context=96, pooling=4,
         head="short"),
]


def main():
    for spec in CASES:
        if sys.argv[1:] and spec["name"] not in sys.argv[1:]:
            continue
        keys = {k: v for k, _, v in spec["keys"]}
        tensors = spec_weights.all_tensors(spec)
        arch = keys["general.architecture"]
        context = keys[arch + ".context_length"]

        def rows_of(tokens, second):
            if arch != "gemma-embedding":
                return Encoder(keys, tensors).rows(tokens, second)
            model = Model(keys, tensors, context)
            model.forward(tokens)
            return model.hidden
        arrays, texts = {}, []
        for i, (n, second) in enumerate([(1, 1), (2, 1), (17, 17), (64, 20), (65, 65), (context, context // 2)]):
            draw = spec_weights.random_u64(spec["seed"], "text %d" % i, n) >> np.uint64(40)
            tokens = [int(d) % spec["vocab"]["size"] for d in draw]
            texts.append({"tokens": tokens, "second": second})
            arrays["rows.%d" % i] = rows_of(tokens, second)
        if "dense_2.weight" in tensors:
            pooled = np.array([arrays["rows.%d" % i].mean(axis=0) for i in range(len(texts))])
            arrays["dense"] = pooled @ tensors["dense_2.weight"].T @ tensors["dense_3.weight"].T
        if keys[arch + ".pooling_type"] == 4:
            arrays["scores"] = np.array([Encoder(keys, tensors).score(t["tokens"], t["second"]) for t in texts])
        spec["texts"] = texts
        spec["weights_hash"] = spec_weights.weights_hash(tensors)
        path = os.path.join(HERE, "encoders", spec["name"])
        golden_file.write(path + ".golden", arrays)
        with open(path + ".json", "w") as f:
            f.write(to_json(spec))
        print(spec["name"], {k: v.shape for k, v in arrays.items()})


if __name__ == "__main__":
    main()
