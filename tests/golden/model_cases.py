"""The small random models: one spec per architecture trait.  A spec is all that is needed to build the GGUF file.

spec = {name, note, seed, keys: [[key, type, value]...], vocab: {size}, tensors: [...], contexts: [[run, n_ctx]...]}.
Tensor layout and key names are GGUF's; rotary pairs are in file order (llama's Q and K rows already permuted).
"""

import json
import math
import os

import numpy as np

# gain: a matrix of fan-in n is uniform in +-gain * sqrt(3 / n), so its output has gain times its input's deviation.
GAIN = {"attn_q": 1.5, "attn_k": 1.5, "attn_qkv": 1.4, "ffn_down": 1.5, "ffn_down_exps": 2.5, "ffn_down_shexp": 1.5,
        "ffn_gate_inp": 2.0, "output": 2.5}


def trained(spec):
    """Takes the weights that a script has trained from the spec's file, and the seed of the others."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "models", spec["name"] + ".json")
    if os.path.exists(path):
        with open(path) as f:
            kept = json.load(f)
        spec["seed"] = kept["seed"] - 1     # the next one is tried first
        known = {t["name"]: t for t in kept["tensors"] if "bytes" in t}
        spec["tensors"][:] = [known.get(t["name"], t) for t in spec["tensors"]]
    return spec


class Builder:
    def __init__(self, name, note, arch, *, dim, layers, heads, kv=None, ff, vocab, head_dim=None, context=512,
                 eps=1e-5, rope_base=None, n_rot=None, tied=False, contexts=None, embed_scale=1.0):
        self.arch, self.dim, self.layers = arch, dim, layers
        self.heads, self.kv = self.spread(heads), self.spread(heads if kv is None else kv)
        self.ff = self.spread(ff)   # None: every layer has experts
        self.head_dim = head_dim or dim // self.heads[0]
        self.n_rot = n_rot or self.head_dim
        self.vocab, self.tied, self.embed_scale = vocab, tied, embed_scale
        self.keys, self.tensors = [], []
        self.spec = {"name": name, "note": note, "seed": 0, "keys": self.keys, "vocab": {"size": vocab},
                     "tensors": self.tensors, "contexts": contexts or [["main", context]]}
        self.keys.append(["general.architecture", "string", arch])
        self.keys.append(["general.name", "string", f"random {name}"])
        self.key("context_length", "u32", context)
        self.key("embedding_length", "u32", dim)
        self.key("block_count", "u32", layers)
        if ff is not None:
            self.key("feed_forward_length", "u32", ff)
        self.key("attention.head_count", "u32", heads)
        if kv is not None:
            self.key("attention.head_count_kv", "u32", kv)
        if head_dim is not None:
            self.key("attention.key_length", "u32", head_dim)
            self.key("attention.value_length", "u32", head_dim)
        self.key("attention.layer_norm_rms_epsilon", "f32", eps)
        self.key("rope.dimension_count", "u32", self.n_rot)
        if rope_base is not None:
            self.key("rope.freq_base", "f32", rope_base)

    def spread(self, value):
        return list(value) if isinstance(value, list) else [value] * self.layers

    def key(self, name, kind, value):
        self.keys.append([f"{self.arch}.{name}", kind + "[]" if isinstance(value, list) else kind, value])
        return self

    def matrix(self, name, n_in, n_out, gain=None):
        gain = gain or GAIN.get(name.split(".")[-1], 1.0)
        self.tensors.append({"name": name + ".weight", "shape": [n_in, n_out],
                             "scale": round(gain * math.sqrt(3 / n_in), 4), "offset": 0.0})

    def experts(self, p, n_experts, width, *, fused=False, shared=0):
        """The router, the experts' matrices, and those of the expert that every token takes."""
        d = self.dim
        stack = lambda name, n_in, n_out: (self.matrix(p + name, n_in, n_out), self.tensors[-1]["shape"].append(n_experts))
        self.matrix(p + "ffn_gate_inp", d, n_experts)
        for name in ("ffn_gate_up_exps",) if fused else ("ffn_gate_exps", "ffn_up_exps"):
            stack(name, d, 2 * width if fused else width)
        stack("ffn_down_exps", width, d)
        if shared:
            self.matrix(p + "ffn_gate_inp_shexp", d, 1)
            for name in ("ffn_gate_shexp", "ffn_up_shexp"):
                self.matrix(p + name, d, shared)
            self.matrix(p + "ffn_down_shexp", shared, d)

    def expert_biases(self, p, n_experts, width):
        self.vector(p + "ffn_gate_inp.bias", n_experts, 0.5, 0.0)
        for name, n in (("ffn_gate_exps", width), ("ffn_up_exps", width), ("ffn_down_exps", self.dim)):
            self.tensors.append({"name": p + name + ".bias", "shape": [n, n_experts], "scale": 0.75, "offset": 0.0})

    def expert_keys(self, n_experts, used, width=None, shared=None):
        self.key("expert_count", "u32", n_experts).key("expert_used_count", "u32", used)
        if width:
            self.key("expert_feed_forward_length", "u32", width)
        if shared:
            self.key("expert_shared_feed_forward_length", "u32", shared)

    def expert(self, *args):
        self.expert_keys(*args)
        return self

    def vector(self, name, n, scale, offset):
        self.tensors.append({"name": name, "shape": [n], "scale": scale, "offset": offset})

    def norm(self, name, n, offset=1.0):
        self.vector(name + ".weight", n, 0.25, offset)

    def linear(self, name, n_in, n_out, bias):
        self.matrix(name, n_in, n_out)
        if bias:
            self.vector(name + ".bias", n_out, 0.75, 0.0)

    def values(self, name, values):
        self.tensors.append({"name": name, "shape": [len(values)], "values": [float(np.float32(v)) for v in values]})
        return self

    def build(self, *, qkv_bias=False, out_bias=False, fused_qkv=False, fused_up=False, qk_norm=False, post_norms=False, gate=False,
              ffn_norm="ffn_norm", experts=None, sinks=False):
        """experts: (n_experts, width, fused), in place of the FFN; with sinks they have biases."""
        d, hd = self.dim, self.head_dim
        self.tensors.append({"name": "token_embd.weight", "shape": [d, self.vocab], "scale": self.embed_scale,
                             "offset": 0.0})
        for il in range(self.layers):
            p, q, kv, ff = f"blk.{il}.", self.heads[il] * hd, self.kv[il] * hd, self.ff[il]
            self.norm(p + "attn_norm", d)
            if fused_qkv:
                self.linear(p + "attn_qkv", d, q + 2 * kv, qkv_bias)
            else:
                for s, n_out in (("q", q), ("k", kv), ("v", kv)):
                    self.linear(p + "attn_" + s, d, n_out, qkv_bias)
            if qk_norm:
                self.norm(p + "attn_q_norm", hd, 1.5)
                self.norm(p + "attn_k_norm", hd, 1.5)
            if gate:
                self.matrix(p + "attn_gate", d, q)
            self.linear(p + "attn_output", q, d, out_bias)
            if sinks:
                self.vector(p + "attn_sinks.weight", self.heads[il], 1.5, 0.5)
            if post_norms:
                self.norm(p + "post_attention_norm", d)
            self.norm(p + ffn_norm, d)
            if experts:
                self.experts(p, experts[0], experts[1], fused=experts[2])
                if sinks:
                    self.expert_biases(p, experts[0], experts[1])
                continue
            if not fused_up:
                self.matrix(p + "ffn_gate", d, ff)
            self.matrix(p + "ffn_up", d, 2 * ff if fused_up else ff)
            self.matrix(p + "ffn_down", ff, d)
            if post_norms:
                self.norm(p + "post_ffw_norm", d)
        self.norm("output_norm", d)
        if not self.tied:
            self.matrix("output", d, self.vocab)
        return self.spec


    def build_qwen35(self, *, key_heads, value_heads, state, value_dim, taps=4, skipped=0, flags=None, experts=None, head=False):
        """Gated delta nets, and gated attention in every fourth layer, or where a flag is 0. Blocks behind the last layer are not of the model;
        head: they have all tensors of a head that guesses tokens. experts: (n_experts, width, shared width), in place of the FFN."""
        d, hd, nk, nv = self.dim, self.head_dim, key_heads, value_heads
        for name, value in (("conv_kernel", taps), ("state_size", state), ("group_count", nk), ("time_step_rank", nv),
                            ("inner_size", nv * value_dim)):
            self.key("ssm." + name, "u32", value)
        grouped = self.arch == "qwen3next"   # the value heads of a key head are neighbours
        if not grouped:
            self.key("rope.dimension_sections", "i32", [self.n_rot // 4, self.n_rot // 4, 0, 0])
        if flags is not None:
            self.key("attention.recurrent_layers", "bool", flags)
        if skipped:
            self.key("nextn_predict_layers", "u32", skipped)
        channels = 2 * nk * state + nv * value_dim
        self.tensors.append({"name": "token_embd.weight", "shape": [d, self.vocab], "scale": self.embed_scale, "offset": 0.0})
        for il in range(self.layers):
            p, ff = f"blk.{il}.", self.ff[il]
            self.norm(p + "attn_norm", d)
            if il < self.layers - skipped and (flags[il] if flags is not None else (il + 1) % 4 != 0):
                self.matrix(p + "attn_qkv", d, channels)
                self.matrix(p + "attn_gate", d, nv * value_dim)
                self.tensors.append({"name": p + "ssm_conv1d.weight", "shape": [taps, channels], "scale": 0.9, "offset": 0.1})
                self.vector(p + "ssm_dt.bias", nv, 1.0, -1.0)
                self.vector(p + "ssm_a", nv, 0.4, -0.5)
                for name, n in (("ssm_ba", 2 * nv),) if grouped else (("ssm_alpha", nv), ("ssm_beta", nv)):
                    self.matrix(p + name, d, n)
                self.norm(p + "ssm_norm", value_dim)
                self.matrix(p + "ssm_out", nv * value_dim, d, 1.5)
            else:
                q, kv = self.heads[il] * hd, self.kv[il] * hd
                self.matrix(p + "attn_q", d, 2 * q)
                self.matrix(p + "attn_k", d, kv)
                self.matrix(p + "attn_v", d, kv)
                self.norm(p + "attn_q_norm", hd, 1.5)
                self.norm(p + "attn_k_norm", hd, 1.5)
                self.matrix(p + "attn_output", q, d)
            self.norm(p + "post_attention_norm", d)
            if experts:
                self.experts(p, experts[0], experts[1], shared=experts[2])
            else:
                self.matrix(p + "ffn_gate", d, ff)
                self.matrix(p + "ffn_up", d, ff)
                self.matrix(p + "ffn_down", ff, d)
            if il >= self.layers - skipped:
                self.matrix(p + "nextn.eh_proj", 2 * d, d)
                for name in ("enorm", "hnorm", "shared_head_norm") if head else ():
                    self.norm(p + "nextn." + name, d)
        self.norm("output_norm", d)
        if not self.tied:
            self.matrix("output", d, self.vocab)
        return self.spec


    def kinds(self, is_attention):
        """Layers without attention have no KV heads."""
        self.keys[:] = [k for k in self.keys if not k[0].endswith(".head_count_kv")]
        self.key("attention.head_count_kv", "i32", [kv if own else 0 for kv, own in zip(self.kv, is_attention)])

    def attention(self, p, il, qk_norm=False):
        d, q, kv = self.dim, self.heads[il] * self.head_dim, self.kv[il] * self.head_dim
        for s, n_out in (("q", q), ("k", kv), ("v", kv)):
            self.matrix(p + "attn_" + s, d, n_out)
        if qk_norm:
            self.norm(p + "attn_q_norm", self.head_dim, 1.5)
            self.norm(p + "attn_k_norm", self.head_dim, 1.5)
        self.matrix(p + "attn_output", q, d)

    def build_lfm2(self, *, is_attention, taps=3, experts=None, dense=0):
        """Short convolutions, and attention where a flag is 1. experts: (n_experts, width), in place of the FFN behind the first `dense` layers."""
        d = self.dim
        self.kinds(is_attention)
        self.key("shortconv.l_cache", "u32", taps)
        self.tensors.append({"name": "token_embd.weight", "shape": [d, self.vocab], "scale": self.embed_scale, "offset": 0.0})
        for il in range(self.layers):
            p = f"blk.{il}."
            self.norm(p + "attn_norm", d)
            if is_attention[il]:
                self.attention(p, il, qk_norm=True)
            else:
                self.matrix(p + "shortconv.in_proj", d, 3 * d, 1.3)
                self.tensors.append({"name": p + "shortconv.conv.weight", "shape": [taps, d], "scale": 0.9, "offset": 0.1})
                self.matrix(p + "shortconv.out_proj", d, d, 1.3)
            self.norm(p + "ffn_norm", d)
            if experts and il >= dense:
                self.experts(p, *experts)
                self.vector(p + "exp_probs_b.bias", experts[0], 0.3, 0.0)
                continue
            self.matrix(p + "ffn_gate", d, self.ff[il])
            self.matrix(p + "ffn_up", d, self.ff[il])
            self.matrix(p + "ffn_down", self.ff[il], d)
        self.norm("token_embd_norm", d)
        if not self.tied:
            self.matrix("output", d, self.vocab)
        return self.spec

    def build_nemotron(self, kinds, *, heads, groups, state, head_dim, experts, shared, taps=4):
        """kinds: a letter for each layer: m(amba2), a(ttention), e(xperts). experts: (n_experts, width)."""
        d, inner, (n_experts, width) = self.dim, heads * head_dim, experts
        self.kinds([k == "a" for k in kinds])
        self.key("feed_forward_length", "i32", [width if k == "e" else 0 for k in kinds])
        for name, value in (("conv_kernel", taps), ("state_size", state), ("group_count", groups), ("time_step_rank", heads), ("inner_size", inner)):
            self.key("ssm." + name, "u32", value)
        channels = inner + 2 * groups * state
        self.tensors.append({"name": "token_embd.weight", "shape": [d, self.vocab], "scale": self.embed_scale, "offset": 0.0})
        for il, kind in enumerate(kinds):
            p = f"blk.{il}."
            self.norm(p + "attn_norm", d)
            if kind == "a":
                self.attention(p, il)
            elif kind == "m":
                self.matrix(p + "ssm_in", d, inner + channels + heads)
                self.tensors.append({"name": p + "ssm_conv1d.weight", "shape": [taps, channels], "scale": 0.9, "offset": 0.1})
                self.vector(p + "ssm_conv1d.bias", channels, 0.5, 0.0)
                self.vector(p + "ssm_dt.bias", heads, 1.0, -0.5)
                for name, scale, offset in (("ssm_a", 0.4, -0.5), ("ssm_d", 0.5, 1.0)):
                    self.tensors.append({"name": p + name, "shape": [1, heads], "scale": scale, "offset": offset})
                self.tensors.append({"name": p + "ssm_norm.weight", "shape": [inner // groups, groups], "scale": 0.25, "offset": 1.0})
                self.matrix(p + "ssm_out", inner, d, 1.5)
            else:
                stack = lambda name, n_in, n_out: (self.matrix(p + name, n_in, n_out), self.tensors[-1]["shape"].append(n_experts))
                self.matrix(p + "ffn_gate_inp", d, n_experts)
                self.vector(p + "exp_probs_b.bias", n_experts, 0.3, 0.0)
                stack("ffn_up_exps", d, width)
                stack("ffn_down_exps", width, d)
                self.matrix(p + "ffn_up_shexp", d, shared)
                self.matrix(p + "ffn_down_shexp", shared, d)
        self.norm("output_norm", d)
        if not self.tied:
            self.matrix("output", d, self.vocab)
        return self.spec


    def build_gemma4(self, *, windows, dim_swa, shared=0, per_layer=0, experts=None, fused=True, keys_as_values=(), scales=(), left_over=False, sharpness=0.6):
        """windows: a flag for each layer. dim_swa: of the heads of those. shared: the last layers without KV of their own. per_layer: the width of
        each layer's own embeddings. experts: (n_experts, width). keys_as_values: layers without attn_v. scales: layers with an output scale.
        left_over: shared layers have the keys and values that training left. sharpness: of attention, whose scale is 1: the norms of queries and keys."""
        d, first = self.dim, self.layers - shared
        self.key("attention.sliding_window_pattern", "bool", windows)
        self.key("attention.key_length_swa", "u32", dim_swa).key("attention.value_length_swa", "u32", dim_swa)
        self.key("rope.dimension_count_swa", "u32", dim_swa)
        self.key("embedding_length_per_layer_input", "u32", per_layer)
        if shared:
            self.key("attention.shared_kv_layers", "u32", shared)
        self.tensors.append({"name": "token_embd.weight", "shape": [d, self.vocab], "scale": self.embed_scale, "offset": 0.0})
        n_rotated = self.n_rot // 8   # of all pairs, a quarter
        self.values("rope_freqs.weight", [1.0] * n_rotated + [1e30] * (self.n_rot // 2 - n_rotated))
        if per_layer:
            width = per_layer * self.layers
            self.tensors.append({"name": "per_layer_token_embd.weight", "shape": [width, self.vocab], "scale": 1.0, "offset": 0.0})
            self.matrix("per_layer_model_proj", d, width)
            self.norm("per_layer_proj_norm", per_layer)
        for il in range(self.layers):
            p, hd, ff = f"blk.{il}.", dim_swa if windows[il] else self.head_dim, self.ff[il]
            q, kv = self.heads[il] * hd, self.kv[il] * hd
            self.norm(p + "attn_norm", d)
            self.matrix(p + "attn_q", d, q)
            self.norm(p + "attn_q_norm", hd, sharpness)
            if il < first or left_over:
                self.matrix(p + "attn_k", d, kv)
                if il not in keys_as_values:
                    self.matrix(p + "attn_v", d, kv)
                self.norm(p + "attn_k_norm", hd, sharpness)
            self.matrix(p + "attn_output", q, d)
            self.norm(p + "post_attention_norm", d)
            self.norm(p + "ffn_norm", d)
            for name in ("ffn_gate", "ffn_up"):
                self.matrix(p + name, d, ff)
            self.matrix(p + "ffn_down", ff, d)
            if experts:
                self.experts(p, *experts, fused=fused)
                self.vector(p + "ffn_gate_inp.scale", d, 4.0, 12.0)   # logits are divided by sqrt(d)
                self.vector(p + "ffn_down_exps.scale", experts[0], 0.75, 1.0)
                for name in ("pre_ffw_norm_2", "post_ffw_norm_1", "post_ffw_norm_2"):
                    self.norm(p + name, d)
            self.norm(p + "post_ffw_norm", d)
            if per_layer:
                self.matrix(p + "inp_gate", d, per_layer)
                self.matrix(p + "proj", per_layer, d)
                self.norm(p + "post_norm", d)
            if il in scales:
                self.vector(p + "layer_output_scale.weight", 1, 0.3, 0.7)
        self.norm("output_norm", d)
        if not self.tied:
            self.matrix("output", d, self.vocab)
        return self.spec


    def build_deepseek2(self, *, q_rank, rank, nope, value_dim, experts, dense=1, shared=1, bias=True, skipped=0):
        """Latent attention. q_rank 0: queries have one matrix. experts: (n_experts, width), behind the first `dense` layers; shared: how many experts
        every token takes. bias: experts are chosen with one. Blocks behind the last layer are not of the model."""
        d, nh, rope = self.dim, self.heads[0], self.n_rot
        self.key("attention.head_count_kv", "u32", 1)
        if q_rank:
            self.key("attention.q_lora_rank", "u32", q_rank)
        for name, value in (("attention.kv_lora_rank", rank), ("attention.key_length", rank + rope), ("attention.value_length", rank),
                            ("attention.key_length_mla", nope + rope), ("attention.value_length_mla", value_dim), ("leading_dense_block_count", dense),
                            ("expert_shared_count", shared)):
            self.key(name, "u32", value)
        if skipped:
            self.key("nextn_predict_layers", "u32", skipped)
        stack = lambda name, n_in, n_out, n, gain=None: (self.matrix(name, n_in, n_out, gain), self.tensors[-1]["shape"].append(n))
        self.tensors.append({"name": "token_embd.weight", "shape": [d, self.vocab], "scale": self.embed_scale, "offset": 0.0})
        for il in range(self.layers):
            p = f"blk.{il}."
            self.norm(p + "attn_norm", d)
            if q_rank:
                self.matrix(p + "attn_q_a", d, q_rank)
                self.norm(p + "attn_q_a_norm", q_rank, 1.5)
                self.matrix(p + "attn_q_b", q_rank, nh * (nope + rope), 1.5)
            else:
                self.matrix(p + "attn_q", d, nh * (nope + rope), 2.0)
            self.matrix(p + "attn_kv_a_mqa", d, rank + rope)
            self.norm(p + "attn_kv_a_norm", rank, 1.2)
            stack(p + "attn_k_b", nope, rank, nh)
            self.tensors[-1]["scale"] = round(math.sqrt(3 / rank), 4)   # keys come from `rank` values
            stack(p + "attn_v_b", rank, value_dim, nh)
            self.matrix(p + "attn_output", nh * value_dim, d, 1.5)
            self.norm(p + "ffn_norm", d)
            if il < dense:
                self.matrix(p + "ffn_gate", d, self.ff[il])
                self.matrix(p + "ffn_up", d, self.ff[il])
                self.matrix(p + "ffn_down", self.ff[il], d)
                continue
            self.experts(p, *experts)
            if bias:
                self.vector(p + "exp_probs_b.bias", experts[0], 0.3, 0.0)
            if shared:
                for name in ("ffn_gate_shexp", "ffn_up_shexp"):
                    self.matrix(p + name, d, shared * experts[1])
                self.matrix(p + "ffn_down_shexp", shared * experts[1], d)
            if il >= self.layers - skipped:
                self.matrix(p + "nextn.eh_proj", 2 * d, d)
        self.norm("output_norm", d)
        if not self.tied:
            self.matrix("output", d, self.vocab)
        return self.spec


def llama3_factors(n_rot, base, factor, low_freq_factor, high_freq_factor, original):
    """Llama 3.1's divisors: 1 for short wavelengths, `factor` for long ones, a smooth passage between."""
    out = []
    for i in range(n_rot // 2):
        wavelength = 2 * math.pi * base ** (2 * i / n_rot)
        smooth = (original / wavelength - low_freq_factor) / (high_freq_factor - low_freq_factor)
        smooth = min(1.0, max(0.0, smooth))
        out.append(1.0 / ((1.0 - smooth) / factor + smooth))
    return out


LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original": 96}


def longrope(b, original, context, long_start, long_step):
    half = b.n_rot // 2
    b.key("rope.scaling.original_context_length", "u32", original)
    factor = math.sqrt(1 + math.log(context / original) / math.log(original))
    b.key("rope.scaling.attn_factor", "f32", float(np.float32(factor)))
    b.values("rope_factors_long.weight", [long_start + long_step * i for i in range(half)])
    b.values("rope_factors_short.weight", [1.0 + 0.05 * i for i in range(half)])
    return b


def cases():
    out = []
    B = lambda *a, **k: Builder(*a, **k)
    out.append(B("llama-plain", "Llama 2: multi-head attention, no optional key", "llama",
                 dim=64, layers=2, heads=4, ff=96, vocab=128).build())

    def llama3(name, note, **k):
        b = B(name, note, "llama", rope_base=500000.0, **k)
        return b.values("rope_freqs.weight", llama3_factors(b.n_rot, 500000.0, **LLAMA3))

    out.append(llama3("llama3-factors", "Llama 3.1: GQA, rope_freqs.weight, base 500000",
                      dim=128, layers=2, heads=4, kv=2, ff=160, vocab=160).build())
    out.append(llama3("llama3-tied", "Llama 3.2: as 3.1 with tied embeddings, three layers, head_dim 16", dim=64,
                      layers=3, heads=4, kv=1, ff=96, vocab=128, tied=True, embed_scale=0.4).build())
    out.append(B("llama-nemo", "Mistral Nemo: head_dim is not dim / heads; base 1e6", "llama", dim=96, layers=2,
                 heads=4, kv=2, head_dim=32, ff=128, vocab=144, rope_base=1000000.0, eps=0.02).build())
    out.append(B("llama-hd40", "head_dim 40, MQA: one KV head", "llama", dim=160, layers=2, heads=4, kv=1, ff=96,
                 vocab=96).build())
    out.append(B("llama-linear", "linear position interpolation by 4", "llama", dim=64, layers=2, heads=4, kv=2, ff=96,
                 vocab=112).key("rope.scaling.type", "string", "linear").key("rope.scaling.factor", "f32", 4.0).build())
    out.append(B("llama-scaling-none", "rope.scaling.type none: the factor beside it means nothing", "llama", dim=64,
                 layers=2, heads=2, kv=2, ff=96, vocab=96).key("rope.scaling.type", "string", "none")
               .key("rope.scaling.factor", "f32", 4.0).build())

    def yarn(b, factor, original=None):
        b.key("rope.scaling.type", "string", "yarn").key("rope.scaling.factor", "f32", factor)
        return b.key("rope.scaling.original_context_length", "u32", original) if original else b

    out.append(yarn(B("llama-yarn", "YaRN with default betas, head_dim 64", "llama", dim=128, layers=2, heads=2, kv=1,
                      ff=128, vocab=128, context=4096), 8.0, 512).build())
    out.append(yarn(B("llama-yarn-attn", "YaRN with an attention factor on top of YaRN's own; trained context not named",
                      "llama", dim=64, layers=2, heads=2, kv=1, ff=96, vocab=128), 4.0)
               .key("rope.scaling.attn_factor", "f32", 0.75).build())
    out.append(yarn(B("llama-yarn-betas", "YaRN with its own betas", "llama", dim=128, layers=2, heads=2, kv=1, ff=96,
                      vocab=128, context=2048), 4.0, 512).key("rope.scaling.yarn_beta_fast", "f32", 12.0)
               .key("rope.scaling.yarn_beta_slow", "f32", 2.0).build())
    out.append(B("llama-window-key", "a window as long as the trained context changes nothing",
                 "llama", dim=64, layers=2, heads=4, kv=2, ff=96, vocab=112)
               .key("attention.sliding_window", "u32", 512).build())
    out.append(B("llama-bias", "attention biases on Q, K, V and the output projection", "llama", dim=64, layers=2,
                 heads=4, kv=2, ff=96, vocab=128).build(qkv_bias=True, out_bias=True))
    out.append(B("llama-arrays", "head_count_kv and feed_forward_length as arrays of equal values", "llama", dim=64,
                 layers=3, heads=4, kv=[2, 2, 2], ff=[96, 96, 96], vocab=96).build())
    out.append(B("llama-layers-differ", "KV heads and ffn width differ from layer to layer", "llama", dim=64, layers=3,
                 heads=4, kv=[4, 2, 1], ff=[96, 128, 64], vocab=96).build())
    out.append(B("llama-256", "all rows are multiples of 256: every block format can store it", "llama", dim=256,
                 layers=2, heads=8, kv=8, ff=256, vocab=96).build())

    out.append(B("qwen2", "QKV bias, head_dim 32, GQA 2", "qwen2", dim=128, layers=2, heads=4, kv=2, ff=128, vocab=128,
                 rope_base=1000000.0, eps=0.02).build(qkv_bias=True))
    out.append(B("qwen2-tied", "QKV bias, tied, GQA 7 as the 0.5B has", "qwen2", dim=112, layers=2, heads=7, kv=1,
                 head_dim=16, ff=96, vocab=128, tied=True, embed_scale=0.4, rope_base=1000000.0,
                 eps=1e-6).build(qkv_bias=True))
    out.append(yarn(B("qwen2-yarn", "QKV bias, YaRN as Qwen2.5 beyond its trained context", "qwen2", dim=64, layers=2,
                      heads=2, kv=1, ff=96, vocab=128, rope_base=1000000.0, eps=1e-6), 4.0, 128).build(qkv_bias=True))
    out.append(B("qwen3", "Q and K norms per head, head_dim explicit", "qwen3", dim=64, layers=2, heads=4, kv=2,
                 head_dim=32, ff=96, vocab=128, rope_base=1000000.0, eps=0.02).build(qk_norm=True))
    out.append(B("qwen3-tied", "tied, head_dim 64", "qwen3", dim=64, layers=3, heads=2, kv=1, head_dim=64, ff=96,
                 vocab=128, tied=True, embed_scale=0.4, rope_base=1000000.0, eps=1e-6).build(qk_norm=True))

    out.append(B("qwen35", "Qwen3.5: gated delta nets, gated attention with a partial RoPE, a block that is skipped", "qwen35", dim=64, layers=6,
                 heads=4, kv=2, head_dim=32, n_rot=8, ff=96, vocab=128, rope_base=10000000.0, eps=1e-6)
               .build_qwen35(key_heads=2, value_heads=4, state=16, value_dim=16, skipped=1))
    out.append(trained(B("qwen35-mtp", "Qwen3.5 with a trained block that guesses tokens (train_mtp_head.py)", "qwen35", dim=32, layers=5, heads=2, kv=1,
                         head_dim=32, n_rot=8, ff=48, vocab=128, embed_scale=24.0, rope_base=10000000.0, eps=1e-6)
                       .build_qwen35(key_heads=1, value_heads=2, state=16, value_dim=16, skipped=1, head=True)))
    out.append(B("qwen35-flags", "Qwen3.5: layers by flags, odd sizes of heads, two taps, tied", "qwen35", dim=64, layers=3, heads=2, kv=1,
                 head_dim=64, n_rot=16, ff=96, vocab=96, tied=True, embed_scale=0.4, rope_base=10000000.0, eps=1e-6)
               .build_qwen35(key_heads=3, value_heads=3, state=24, value_dim=20, taps=2, flags=[0, 1, 1]))

    norms = {"qk_norm": True, "post_norms": True}
    out.append(B("gemma3", "Gemma 3: windows and a second RoPE in five of six layers, positions scaled in the others", "gemma3", dim=64,
                 layers=7, heads=4, kv=1, head_dim=32, ff=96, vocab=128, embed_scale=0.2, rope_base=1000000.0, eps=1e-6,
                 context=4096).key("attention.sliding_window", "u32", 12).key("rope.scaling.type", "string", "linear")
               .key("rope.scaling.factor", "f32", 8.0).build(**norms))
    out.append(B("gemma3-flags", "Gemma 3: layers by flags, their own base and scale, soft-capped logits, MHA", "gemma3", dim=96, layers=3,
                 heads=3, kv=3, head_dim=64, ff=160, vocab=112, embed_scale=0.3, rope_base=500000.0, eps=0.02)
               .key("attention.sliding_window", "u32", 5).key("attention.sliding_window_pattern", "bool", [1, 0, 1])
               .key("rope.freq_base_swa", "f32", 700.0).key("attention.scale", "f32", 0.2)
               .key("final_logit_softcapping", "f32", 9.0).build(**norms))
    out.append(B("gemma3-whole", "Gemma 3: a window of 0 is none", "gemma3", dim=64, layers=2, heads=2, kv=1, head_dim=64, ff=64, vocab=96,
                 embed_scale=0.2, eps=1e-6).key("attention.sliding_window", "u32", 0).build(**norms))

    # Heads alike in all layers: one shape of KV.
    out.append(B("gemma4-alike", "Gemma 4: embeddings of each layer, layers that read the KV of others of their kind, two RoPEs, scaled layers", "gemma4",
                 dim=64, layers=7, heads=4, kv=2, head_dim=32, ff=[96] * 4 + [128] * 3, vocab=128, tied=True, embed_scale=0.4, rope_base=1000000.0, eps=0.02)
               .key("rope.freq_base_swa", "f32", 10000.0).key("attention.sliding_window", "u32", 12).key("final_logit_softcapping", "f32", 9.0)
               .build_gemma4(windows=[1, 1, 0, 1, 1, 0, 1], dim_swa=32, shared=3, per_layer=24, scales=(0, 2, 4, 5)))
    out.append(B("gemma4-moe-alike", "Gemma 4 26B-A4B: experts beside the feed-forward block, values made of keys", "gemma4", dim=64, layers=4, heads=4,
                 kv=2, head_dim=32, ff=96, vocab=128, tied=True, embed_scale=0.4, rope_base=1000000.0, eps=0.02)
               .key("rope.freq_base_swa", "f32", 700.0).key("attention.sliding_window", "u32", 20).expert(8, 3, 32)
               .build_gemma4(windows=[1, 0, 1, 0], dim_swa=32, experts=(8, 32), keys_as_values=(1, 3), scales=(0, 1, 2, 3)))
    # As they are published: heads of layers with a window are shorter.
    out.append(B("gemma4", "Gemma 4 E4B: as gemma4-alike with heads of two sizes; what training left of keys and values is not used", "gemma4", dim=64,
                 layers=6, heads=4, kv=2, head_dim=64, ff=96, vocab=128, tied=True, embed_scale=0.4, rope_base=1000000.0, eps=1e-6)
               .key("rope.freq_base_swa", "f32", 10000.0).key("attention.sliding_window", "u32", 12).key("final_logit_softcapping", "f32", 9.0)
               .build_gemma4(windows=[1, 0, 1, 0, 1, 0], dim_swa=32, shared=2, per_layer=32, scales=(0, 1, 2, 3, 4, 5), left_over=True, sharpness=0.4))
    out.append(B("gemma4-moe", "Gemma 4 26B-A4B: as gemma4-moe-alike with heads of two sizes, in two numbers; gate and up apart", "gemma4", dim=64, layers=4,
                 heads=4, kv=[2, 2, 2, 1], head_dim=64, ff=96, vocab=128, rope_base=1000000.0, eps=1e-6)
               .key("rope.freq_base_swa", "f32", 10000.0).key("attention.sliding_window", "u32", 20).expert(11, 4, 20)
               .build_gemma4(windows=[1, 1, 1, 0], dim_swa=32, experts=(11, 20), fused=False, keys_as_values=(3,), scales=(0, 1, 2, 3)))

    out.append(B("muse", "Muse Glimmer: RoPE in windows alone, gates, a normed embedding, scaled and capped logits", "muse-glimmer", dim=64,
                 layers=5, heads=4, kv=2, head_dim=32, ff=96, vocab=128, rope_base=500000.0, eps=0.02)
               .key("attention.sliding_window", "u32", 12).key("logit_scale", "f32", 0.7).key("final_logit_softcapping", "f32", 9.0)
               .build(gate=True, **norms))
    out.append(yarn(B("mistral3", "Ministral 3: YaRN without a magnitude, queries that grow with the position", "mistral3", dim=64, layers=2,
                      heads=4, kv=2, head_dim=32, ff=96, vocab=128, rope_base=1000000.0, context=2048), 16.0, 16)
               .key("rope.scaling.yarn_log_multiplier", "f32", 1.0).key("attention.temperature_scale", "f32", 0.5).build())
    out.append(B("smollm3", "SmolLM3: no RoPE in every fourth layer", "smollm3", dim=64, layers=5, heads=4, kv=1, ff=96, vocab=112,
                 rope_base=2000000.0, eps=1e-6).build())
    out.append(B("seed-oss", "Seed-OSS: QKV bias, the FFN's norm by another name", "seed_oss", dim=64, layers=2, heads=2, kv=1, head_dim=64,
                 ff=96, vocab=112, rope_base=10000000.0, eps=1e-6).build(qkv_bias=True, ffn_norm="post_attention_norm"))
    b = B("qwen3moe", "Qwen3 30B-A3B: a mixture of experts, three of eight; the dense width is unused", "qwen3moe", dim=64, layers=2, heads=4, kv=2,
          head_dim=32, ff=96, vocab=128, rope_base=1000000.0, eps=1e-6)
    b.expert_keys(8, 3, 32)
    out.append(b.build(qk_norm=True, experts=(8, 32, False)))
    b = B("qwen3moe-fused", "gate and up of an expert in one tensor, widths by the dense width, odd numbers", "qwen3moe", dim=64, layers=2, heads=4,
          kv=2, head_dim=32, ff=100, vocab=96, tied=True, embed_scale=0.4, rope_base=1000000.0, eps=1e-6)
    b.expert_keys(11, 5)
    out.append(b.build(qk_norm=True, experts=(11, 20, True)))
    b = yarn(B("gpt-oss", "gpt-oss: sinks, windows in every second layer, YaRN between pairs, biases, clamped experts", "gpt-oss", dim=64, layers=4,
               heads=4, kv=2, head_dim=32, ff=64, vocab=128, rope_base=150000.0, context=2048), 32.0, 64)
    b.key("attention.sliding_window", "u32", 12)
    b.expert_keys(8, 3, 48)
    out.append(b.build(qkv_bias=True, out_bias=True, ffn_norm="post_attention_norm", experts=(8, 48, False), sinks=True))
    hybrid = dict(dim=64, heads=4, kv=2, head_dim=32, n_rot=8, vocab=128, rope_base=10000000.0, eps=1e-6)
    b = B("qwen35moe", "Qwen3.5 35B-A3B: as qwen35 with experts, and one that every token takes; a block that is skipped", "qwen35moe", layers=5,
          ff=None, **hybrid)
    b.expert_keys(8, 3, 32, 48)
    out.append(b.build_qwen35(key_heads=2, value_heads=4, state=16, value_dim=16, skipped=1, experts=(8, 32, 48)))
    b = B("qwen3next", "Qwen3-Next: value heads by key head, their scalars in one matrix", "qwen3next", layers=4, ff=96, **hybrid)
    b.expert_keys(10, 4, 24, 40)
    out.append(b.build_qwen35(key_heads=2, value_heads=6, state=16, value_dim=20, experts=(10, 24, 40)))

    lfm2 = dict(dim=64, heads=4, kv=2, head_dim=32, vocab=128, rope_base=1000000.0, eps=1e-5)
    out.append(B("lfm2", "LFM2: short convolutions, attention where there are KV heads, the output's norm by another name", "lfm2", layers=5, ff=96,
                 tied=True, embed_scale=0.4, **lfm2).build_lfm2(is_attention=[0, 0, 1, 0, 1]))
    out.append(B("lfm2-taps", "LFM2: two taps, a window, an odd width", "lfm2", dim=72, layers=3, heads=2, kv=1, head_dim=32, ff=100, vocab=96, eps=0.02)
               .key("attention.sliding_window", "u32", 20).build_lfm2(is_attention=[0, 1, 0], taps=2))
    b = B("lfm2moe", "LFM2 8B-A1B: a dense layer, then experts by a sigmoid, chosen with a bias that weights lack", "lfm2moe", layers=4, ff=96, **lfm2)
    b.expert_keys(8, 3, 32)
    b.key("leading_dense_block_count", "u32", 1).key("expert_gating_func", "u32", 2).key("expert_weights_norm", "bool", True)
    out.append(b.build_lfm2(is_attention=[0, 1, 0, 0], experts=(8, 32), dense=1))

    nemotron = dict(dim=64, heads=4, kv=2, head_dim=32, vocab=128, ff=None)
    b = B("nemotron-h", "Nemotron 3 Nano: Mamba2, attention without RoPE, experts of squared ReLU, each a layer of its own", "nemotron_h_moe", layers=5,
          **nemotron)
    b.expert_keys(8, 3, 32, 48)
    b.key("expert_shared_count", "u32", 1).key("expert_weights_norm", "bool", True).key("expert_weights_scale", "f32", 2.5)
    b.key("expert_group_count", "u32", 1).key("expert_group_used_count", "u32", 1)
    out.append(b.build_nemotron("meame", heads=8, groups=2, state=16, head_dim=16, experts=(8, 32), shared=48))
    b = B("nemotron-h-odd", "Mamba2 with odd sizes, one group, three taps; weights of experts as they are; another key for eps", "nemotron_h_moe", layers=4,
          eps=0.02, **nemotron)
    b.keys[:] = [[k.replace("layer_norm_rms_epsilon", "layer_norm_epsilon"), kind, v] for k, kind, v in b.keys]
    b.expert_keys(11, 4, 20, 40)
    b.key("expert_weights_norm", "bool", False).key("expert_weights_scale", "f32", 0.8)
    out.append(b.build_nemotron("emam", heads=3, groups=1, state=24, head_dim=20, experts=(11, 20), shared=40, taps=3))

    b = B("glm47", "GLM-4.7-Flash: latent attention with low-rank queries, a dense layer, then experts of a sigmoid beside a shared one; a block that is "
          "skipped", "deepseek2", dim=64, layers=4, heads=5, ff=96, vocab=128, n_rot=16, rope_base=1000000.0)
    b.expert_keys(8, 3, 32)
    b.key("expert_gating_func", "u32", 2).key("expert_weights_norm", "bool", True).key("expert_weights_scale", "f32", 1.8)
    b.key("expert_group_count", "u32", 1).key("expert_group_used_count", "u32", 1)
    out.append(b.build_deepseek2(q_rank=24, rank=32, nope=20, value_dim=24, experts=(8, 32), skipped=1))
    b = yarn(B("deepseek2-lite", "DeepSeek-V2-Lite: queries of one matrix, YaRN in the scores alone, experts of a softmax, two shared ones; rows of whole "
               "blocks of 32", "deepseek2", dim=64, layers=3, heads=12, ff=100, vocab=96, n_rot=32, eps=0.02, context=2048), 16.0, 32)
    b.key("rope.scaling.yarn_log_multiplier", "f32", 0.0707)
    b.expert_keys(11, 4, 20)
    out.append(b.build_deepseek2(q_rank=0, rank=64, nope=32, value_dim=40, experts=(11, 20), shared=2, bias=False))

    fused = {"fused_qkv": True, "fused_up": True}
    out.append(B("phi3", "fused QKV and up, MHA, sliding_window 0", "phi3", dim=96, layers=2, heads=3, kv=3, ff=128,
                 vocab=128, eps=0.02).key("attention.sliding_window", "u32", 0).build(**fused))
    out.append(B("phi3-window", "Phi-3-mini-4k: a sliding window shorter than the prompt", "phi3", dim=64, layers=2,
                 heads=2, kv=2, ff=96, vocab=128).key("attention.sliding_window", "u32", 24).build(**fused))
    out.append(longrope(B("phi3-longrope", "Phi-3-mini-128k: short or long factors by the configured context", "phi3",
                          dim=64, layers=2, heads=2, kv=2, ff=96, vocab=128, context=2048,
                          contexts=[["short", 128], ["long", 512]]), 128, 2048, 1.5, 2.0)
               .key("attention.sliding_window", "u32", 4096).build(**fused))
    out.append(longrope(B("phi4-mini", "Phi-4-mini: partial rotary 0.75, GQA 3, tied, longrope, scaling type named",
                          "phi3", dim=192, layers=2, heads=6, kv=2, ff=96, vocab=128, n_rot=24, tied=True,
                          embed_scale=0.4, context=1024, contexts=[["short", 128], ["long", 256]]), 128, 1024, 1.2, 1.5)
               .key("rope.scaling.type", "string", "longrope").build(**fused))

    out.append(B("glm4", "GLM-4-0414: post norms, fused up, half rotary, QKV bias, 32 heads on 2", "glm4", dim=96,
                 layers=2, heads=32, kv=2, head_dim=16, n_rot=8, ff=96, vocab=128).build(
                     qkv_bias=True, fused_up=True, post_norms=True))
    out.append(B("glm4-nobias", "GLM-4-0414 without attention biases, head_dim 32", "glm4", dim=128, layers=2, heads=4,
                 kv=2, n_rot=16, ff=96, vocab=128, eps=0.02).build(fused_up=True, post_norms=True))
    out.append(B("chatglm", "GLM-4-9B-chat: fused QKV with bias, fused up, half rotary, groups of 16", "chatglm",
                 dim=512, layers=2, heads=32, kv=2, n_rot=8, ff=96, vocab=128, eps=0.02).build(qkv_bias=True, **fused))
    return out
