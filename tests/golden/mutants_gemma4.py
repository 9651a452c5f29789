"""Mistakes that an implementation of Gemma 4 may make, and how far each moves the logits of the cases. A golden catches a mistake that moves them.

    python3 mutants_gemma4.py          # fails where a mistake stays below sensitivity.ENOUGH in all cases

Needs numpy. Each mutant overrides one equation of oracle_gemma4.py.
"""

import json
import math
import os

import numpy as np

import spec_weights
from oracle import Model
from oracle_gemma4 import Gemma4Layers as Right
from sensitivity import ENOUGH

HERE = os.path.dirname(os.path.abspath(__file__))
CASES = ("gemma4-alike", "gemma4-moe-alike", "gemma4", "gemma4-moe")


def last_layer_before(self, il):
    last = self.first_shared() - 1
    return last if il > last and self.kind_dim(last) == self.kind_dim(il) else Right.source_of(self, il)


def of_another_kind(self, il):
    others = [j for j in range(self.first_shared()) if bool(self.windows[j]) != bool(self.windows[il])]
    fits = il >= self.first_shared() and self.kind_dim(others[-1]) == self.kind_dim(il)
    return others[-1] if fits else Right.source_of(self, il)


def inputs_without(what):
    def inputs(self, tokens, x):
        n = self.key("embedding_length_per_layer_input")
        if not n:
            return None
        right = Right.per_layer_inputs(self, tokens, x)
        rows = self.w["per_layer_token_embd.weight"][np.asarray(tokens)].reshape(right.shape)
        if what == "scale of rows":
            return right + rows * (1 - math.sqrt(n)) / math.sqrt(2)
        if what == "rows":
            return right - rows * math.sqrt(n / 2)
        if what == "projection":
            return rows * math.sqrt(n / 2)
        return right * math.sqrt(2)
    return inputs


def post_norms_left_out(self, p, x):
    return self.norm(self.dense(p, self.norm(x, p + "ffn_norm")) + self.chosen_experts(p, x), p + "post_ffw_norm")


def wrong(rows):
    return {name: type("Mutant", (Model,), methods) for name, methods in rows.items()}


MUTANTS = wrong({
    "embedding not scaled": {"embedding_scale": lambda self: 1.0},
    "attention scaled by 1/sqrt(head_dim)": {"attention_scale": lambda self, il: 1 / math.sqrt(self.kind_dim(il))},
    "values not normed": {"value_norm": lambda self, v: v},
    "values of keys after norm and RoPE": {"values_of": lambda self, p, h, raw, k: Right.values_of(self, p, h, raw, k) if p + "attn_v.weight" in self.w else k},
    "shared layers read the last layer before them": {"source_of": last_layer_before},
    "shared layers read the other kind": {"source_of": of_another_kind},
    "factors of RoPE in layers with a window, too": {"window_frequencies": lambda self: (
        Model.window_frequencies(self)[0] / np.resize(self.w["rope_freqs.weight"], len(Model.window_frequencies(self)[0])), 1.0)},
    "no factors of RoPE": {"rope_frequencies": lambda self: (
        self.key("rope.freq_base") ** (-np.arange(self.n_rot // 2) * 2.0 / self.n_rot), 1.0)},
    "one base for all": {"window_frequencies": lambda self: (
        self.key("rope.freq_base") ** (np.log(Model.window_frequencies(self)[0]) / math.log(self.key("rope.freq_base_swa"))), 1.0)},
    "layer_output_scale left out": {"output_scale": lambda self, p: 1.0},
    "per-layer inputs without 1/sqrt(2)": {"per_layer_inputs": inputs_without("1/sqrt(2)")},
    "per-layer rows not scaled": {"per_layer_inputs": inputs_without("scale of rows")},
    "per-layer inputs without rows": {"per_layer_inputs": inputs_without("rows")},
    "per-layer inputs without the projection": {"per_layer_inputs": inputs_without("projection")},
    "per-layer inputs left out": {"own_embedding": lambda self, p, x, inputs: 0.0},
    "router on the experts' input": {"router_input": lambda self, p, x: self.norm(x, p + "pre_ffw_norm_2") * self.w[p + "ffn_gate_inp.scale"] / math.sqrt(self.n_embd)},
    "router's scale left out": {"router_input": lambda self, p, x: self.norm(x, None) / math.sqrt(self.n_embd)},
    "router not divided by sqrt(E)": {"router_input": lambda self, p, x: self.norm(x, None) * self.w[p + "ffn_gate_inp.scale"]},
    "weights not normalised": {"shares_of": lambda self, share: share},
    "scale of each expert left out": {"expert_scale": lambda self, p, e: 1.0},
    "experts of SwiGLU": {"expert_activation": lambda self, gate, up: gate / (1 + np.exp(-gate)) * up},
    "inner post norms left out": {"gemma4_ffn": lambda self, p, x: post_norms_left_out(self, p, x)
                                  if p + "ffn_gate_inp.weight" in self.w else Right.gemma4_ffn(self, p, x)},
})


def main():
    moved = {name: {} for name in MUTANTS}
    for case in CASES:
        with open(os.path.join(HERE, "models", case + ".json")) as f:
            spec = json.load(f)
        keys, tensors, run = {k: v for k, _, v in spec["keys"]}, spec_weights.all_tensors(spec), spec["runs"][0]
        tokens = run["prompt"] + run["answer"]
        right = Model(keys, tensors, run["n_ctx"]).forward(tokens)
        for name, mutant in MUTANTS.items():
            moved[name][case] = float(np.abs(mutant(keys, tensors, run["n_ctx"]).forward(tokens) - right).max())
    for name, by_case in moved.items():
        print(f"{name:48}" + "".join(f"{v:16.3f}" for v in by_case.values()))
    missed = [name for name, by_case in moved.items() if max(by_case.values()) < ENOUGH]
    assert not missed, f"no case catches: {', '.join(missed)}"


if __name__ == "__main__":
    main()
