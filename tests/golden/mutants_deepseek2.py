"""Mistakes that an implementation of DeepSeek-V2 and GLM-4.7-Flash may make, and how far each moves the logits of the cases. A golden catches a
mistake that moves them.

    python3 mutants_deepseek2.py       # fails where a mistake stays below sensitivity.ENOUGH in all cases

Needs numpy. Each mutant overrides one equation of oracle_deepseek2.py.
"""

import json
import math
import os

import numpy as np

import spec_weights
from oracle import Model
from oracle_deepseek2 import Deepseek2Layers as Right
from sensitivity import ENOUGH

HERE = os.path.dirname(os.path.abspath(__file__))
CASES = ("glm47", "deepseek2-lite")


def turned_first(self, il, q, positions):
    """RoPE at the start of each head, as other models have it."""
    return np.concatenate([self.turned(il, q[..., :self.n_rot], positions), q[..., self.n_rot:]], axis=-1)


def by_halves(self, il, x, positions):
    self.neighbours = False
    out = Model.rope(self, il, x, positions)
    self.neighbours = True
    return out


def norm_of_row(self, p, h):
    """The norm over the whole row, not over the latent vector alone."""
    c, k = Right.row_of(self, p, h)
    both = np.concatenate([c, k], axis=-1)
    scale = 1 / np.sqrt(np.mean(both * both, axis=-1, keepdims=True) + self.eps)
    return c, k * scale


def rope_before_latent(self, p, h):
    row = self.linear(h, p + "attn_kv_a_mqa")
    return row[:, self.n_rot:], row[:, :self.n_rot]


def chosen_alone(self, p, share, order):
    weights = share[order]
    weights = weights if self.key("expert_weights_norm", False) else weights / weights.sum()
    return weights * self.expert_scale_of_all()


def with_bias(self, p, share, order):
    biased = Right.choice_of(self, p, share)[order]
    if self.key("expert_weights_norm", False):
        biased = biased / biased.sum()
    return biased * self.expert_scale_of_all()


def other_gating(self, logits):
    if self.key("expert_gating_func", 1) != 2:
        return 1.0 / (1.0 + np.exp(-logits))
    share = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return share / share.sum(axis=-1, keepdims=True)


def gated_shared(self, p, x):
    return Right.shared_experts(self, p, x) / (1.0 + np.exp(-(x @ self.w[p + "ffn_gate_inp.weight"][:1].T)))


def one_shared(self, p, x):
    """Half of the shared experts' width, or none."""
    n = self.key("expert_feed_forward_length")
    if self.w[p + "ffn_up_shexp.weight"].shape[0] == n:
        return np.zeros_like(x)
    half = lambda name: self.w[p + name + ".weight"][:n]
    gate, up = x @ half("ffn_gate_shexp").T, x @ half("ffn_up_shexp").T
    return gate / (1.0 + np.exp(-gate)) * up @ self.w[p + "ffn_down_shexp.weight"][:, :n].T


MUTANTS = {name: type("Mutant", (Model,), overrides) for name, overrides in {
    "scores by 1/sqrt of the row": {"latent_scale": lambda self: self.yarn_magnitude() ** 2 / math.sqrt(self.head_dim)},
    "scores by 1/sqrt without RoPE's part": {"latent_scale": lambda self: self.yarn_magnitude() ** 2 / math.sqrt(self.query_dim() - self.n_rot)},
    "YaRN's magnitude once": {"latent_scale": lambda self: self.yarn_magnitude() / math.sqrt(self.query_dim())},
    "YaRN's magnitude left out": {"yarn_magnitude": lambda self: 1.0},
    "YaRN's multiplier as published": {"yarn_magnitude": lambda self: 1.0 + (Right.yarn_magnitude(self) - 1.0) * 0.1},
    "YaRN's magnitude in cos and sin, too": {"rotary_magnitude": lambda self: 1.0 + 0.1 * math.log(self.key("rope.scaling.factor", 1.0))},
    "queries not normed": {"query_norm": lambda self, low, p: low},
    "queries' norm without weights": {"query_norm": lambda self, low, p: self.norm(low, None)},
    "latent vector not normed": {"latent_norm": lambda self, c, p: c},
    "latent norm without weights": {"latent_norm": lambda self, c, p: self.norm(c, None)},
    "norm over the whole row": {"row_of": norm_of_row},
    "RoPE's part first in the row": {"row_of": rope_before_latent},
    "RoPE's part first in queries": {"turned_queries": turned_first},
    "queries not turned": {"turned_queries": lambda self, il, q, positions: q},
    "nothing turned": {"turned": lambda self, il, x, positions: x},
    "RoPE by halves": {"turned": by_halves},
    "k_b of another head": {"key_of": lambda self, p, c, head: Right.key_of(self, p, c, (head + 1) % self.n_heads[0])},
    "v_b of another head": {"value_of": lambda self, p, c, head: Right.value_of(self, p, c, (head + 1) % self.n_heads[0])},
    "k_b's matrices read the other way": {"key_of": lambda self, p, c, head: c @ self.w[p + "attn_k_b.weight"][head].reshape(-1, c.shape[1]).T},
    "values with one latent number too few": {"value_of": lambda self, p, c, head: np.where(np.arange(c.shape[1]) < c.shape[1] - 1, c, 0) @ self.w[p + "attn_v_b.weight"][head].T},
    "the other gating function": {"probabilities": other_gating},
    "experts chosen without their bias": {"choice_of": lambda self, p, share: share},
    "weights with the bias": {"weights_of": with_bias},
    "weights normalised where they are not, and not where they are": {"weights_of": chosen_alone},
    "scale of weights left out": {"expert_scale_of_all": lambda self: 1.0},
    "shared experts left out": {"shared_experts": lambda self, p, x: np.zeros_like(x)},
    "shared experts with a gate": {"shared_experts": gated_shared},
    "one shared expert of several": {"shared_experts": one_shared},
}.items()}


def main():
    moved = {name: {} for name in MUTANTS}
    for case in CASES:
        with open(os.path.join(HERE, "models", case + ".json")) as f:
            spec = json.load(f)
        keys, tensors, run = {k: v for k, _, v in spec["keys"]}, spec_weights.all_tensors(spec), spec["runs"][0]
        tokens = run["prompt"] + run["answer"]
        right = Model(keys, tensors, run["n_ctx"]).forward(tokens)
        for name, wrong in MUTANTS.items():
            moved[name][case] = float(np.abs(wrong(keys, tensors, run["n_ctx"]).forward(tokens) - right).max())
    for name, by_case in moved.items():
        print(f"{name:64}" + "".join(f"{v:16.3f}" for v in by_case.values()))
    missed = [name for name, by_case in moved.items() if max(by_case.values()) < ENOUGH]
    assert not missed, f"no case catches: {', '.join(missed)}"


if __name__ == "__main__":
    main()
