"""Encoders in float64: the hidden states of a text, by the published formulas. It shares no code with the engine.

tensors: GGUF's names, matrices (outputs, inputs). keys: GGUF's metadata.
"""

import math

import numpy as np


def layer_norm(x, weight, bias, eps):
    mean = x.mean(-1, keepdims=True)
    y = (x - mean) / np.sqrt(((x - mean) ** 2).mean(-1, keepdims=True) + eps) * weight
    return y if bias is None else y + bias


def gelu(x):
    return x / 2 * (1 + np.vectorize(math.erf, otypes=[float])(x / math.sqrt(2)))


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


class Encoder:
    def __init__(self, keys, tensors):
        self.arch = keys["general.architecture"]
        self.keys = {k[len(self.arch) + 1:]: v for k, v in keys.items() if k.startswith(self.arch + ".")}
        self.t = {name: np.asarray(values, dtype=np.float64) for name, values in tensors.items()}
        self.eps = self.keys["attention.layer_norm_epsilon"]
        self.nomic = self.arch == "nomic-bert"

    def norm(self, x, name):
        return layer_norm(x, self.t[name + ".weight"], self.t.get(name + ".bias"), self.eps)

    def product(self, x, name):
        y = x @ self.t[name + ".weight"].T
        return y + self.t[name + ".bias"] if name + ".bias" in self.t else y

    def inputs(self, tokens, second):
        positions, types = np.arange(len(tokens)), (np.arange(len(tokens)) >= second).astype(int)
        x = self.t["token_embd.weight"][tokens]
        if "position_embd.weight" in self.t:
            x = x + self.t["position_embd.weight"][positions]
        if "token_types.weight" in self.t:
            x = x + self.t["token_types.weight"][types]
        return self.norm(x, "token_embd_norm")

    def attention(self, x, prefix):
        n, heads = len(x), self.keys["attention.head_count"]
        if prefix + "attn_qkv.weight" in self.t:
            q, k, v = np.split(self.product(x, prefix + "attn_qkv"), 3, axis=-1)
        else:
            q, k, v = (self.product(x, prefix + name) for name in ("attn_q", "attn_k", "attn_v"))
        q, k, v = (part.reshape(n, heads, -1).transpose(1, 0, 2) for part in (q, k, v))
        if self.nomic:
            q, k = self.rope(q), self.rope(k)
        weights = softmax(q @ k.transpose(0, 2, 1) / math.sqrt(q.shape[-1]))
        return self.product((weights @ v).transpose(1, 0, 2).reshape(n, -1), prefix + "attn_output")

    def rope(self, x):
        """(heads, n, dim): dimension i turns with dimension i + dim / 2."""
        half = x.shape[-1] // 2
        angles = np.arange(x.shape[1])[:, None] * self.keys["rope.freq_base"] ** (-np.arange(half) / half)
        a, b = x[..., :half], x[..., half:]
        return np.concatenate([a * np.cos(angles) - b * np.sin(angles), b * np.cos(angles) + a * np.sin(angles)], axis=-1)

    def feed_forward(self, x, prefix):
        up = self.product(x, prefix + "ffn_up")
        if self.nomic:
            gate = self.product(x, prefix + "ffn_gate")
            return self.product(up * gate / (1 + np.exp(-gate)), prefix + "ffn_down")
        return self.product(gelu(up), prefix + "ffn_down")

    def rows(self, tokens, second=None):
        """(tokens, width): BERT's last hidden state."""
        x = self.inputs(np.asarray(tokens), len(tokens) if second is None else second)
        for i in range(self.keys["block_count"]):
            prefix = "blk.%d." % i
            x = self.norm(x + self.attention(x, prefix), prefix + "attn_output_norm")
            x = self.norm(x + self.feed_forward(x, prefix), prefix + "layer_output_norm")
        return x

    def score(self, tokens, second):
        """The log-odds of a pair, by the head on the first row: tanh(cls h + b), then the one label."""
        h = self.rows(tokens, second)[0]
        if "cls.output.weight" in self.t:
            h = np.tanh(self.product(h, "cls"))
            return float(self.product(h, "cls.output")[0])
        return float(self.product(h, "cls")[0])
