"""The layers of Gemma 4, a part of oracle.Model: each equation a method, so that mutants_gemma4.py can get one wrong at a time."""

import math

import numpy as np


def gelu(x):
    return x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


class Gemma4Layers:
    def kind_dim(self, il):
        """Layers with a window have heads of their own size."""
        return self.key("attention.key_length_swa") if self.windows[il] else self.head_dim

    def first_shared(self):
        return self.n_layers - self.key("attention.shared_kv_layers", 0)

    def source_of(self, il):
        """The layer whose keys and values a layer reads."""
        if il < self.first_shared():
            return il
        return max(j for j in range(self.first_shared()) if bool(self.windows[j]) == bool(self.windows[il]))

    def values_of(self, p, h, raw_keys, keys):
        """Before their norm. A layer without a matrix for values takes what the keys' one gives."""
        return self.linear(h, p + "attn_v").reshape(raw_keys.shape) if p + "attn_v.weight" in self.w else raw_keys

    def value_norm(self, values):
        return self.norm(values, None)

    def attention_scale(self, il):
        return self.key("attention.scale", 0.0) or 1.0

    def new_kv(self, il, h, positions):
        p = f"blk.{il}."
        raw = self.linear(h, p + "attn_k").reshape(len(h), self.n_kv_heads[il], self.kind_dim(il))
        keys = self.rope(il, self.norm(raw, p + "attn_k_norm"), positions)
        return keys, self.value_norm(self.values_of(p, h, raw, keys))

    def gemma4_attention(self, il, h, positions):
        p, n, nh, hd = f"blk.{il}.", len(h), self.n_heads[il], self.kind_dim(il)
        q = self.rope(il, self.norm(self.linear(h, p + "attn_q").reshape(n, nh, hd), p + "attn_q_norm"), positions)
        if il < self.first_shared():
            k, v = self.new_kv(il, h, positions)
            if self.cache[il] is not None:
                k, v = np.concatenate([self.cache[il][0], k]), np.concatenate([self.cache[il][1], v])
            self.cache[il] = (k, v)
        k, v = self.cache[self.source_of(il)]
        distance = positions[:, None] - np.arange(len(k))[None, :]
        hidden = (distance < 0) | (distance >= (self.windows[il] or math.inf))
        out = np.empty((n, nh, hd))
        for head in range(nh):
            of = head // (nh // k.shape[1])
            s = q[:, head] @ k[:, of].T * self.attention_scale(il)
            s[hidden] = -np.inf
            s = np.exp(s - s.max(axis=-1, keepdims=True))
            out[:, head] = s / s.sum(axis=-1, keepdims=True) @ v[:, of]
        return self.linear(out.reshape(n, nh * hd), p + "attn_output")

    def dense(self, p, h):
        return self.linear(gelu(self.linear(h, p + "ffn_gate")) * self.linear(h, p + "ffn_up"), p + "ffn_down")

    def router_input(self, p, x):
        """Of the residual stream, not of what the experts read."""
        return self.norm(x, None) * self.w[p + "ffn_gate_inp.scale"] / math.sqrt(self.n_embd)

    def shares_of(self, share):
        return share / share.sum()

    def expert_scale(self, p, expert):
        return self.w[p + "ffn_down_exps.scale"][expert]

    def expert_activation(self, gate, up):
        return gelu(gate) * up

    def chosen_experts(self, p, x):
        k, h = self.key("expert_used_count"), self.norm(x, p + "pre_ffw_norm_2")
        logits = self.router_input(p, x) @ self.w[p + "ffn_gate_inp.weight"].T
        out = np.zeros_like(x)
        for t in range(len(x)):
            order = np.argsort(-logits[t], kind="stable")   # of equal ones, the lower index first
            self.router_gap = min(self.router_gap, float(logits[t, order[k - 1]] - logits[t, order[k]]))
            share = np.exp(logits[t] - logits[t].max())
            share /= share.sum()
            for e, weight in zip(order[:k], self.shares_of(share[order[:k]])):
                if p + "ffn_gate_up_exps.weight" in self.w:
                    gate, up = np.split(self.w[p + "ffn_gate_up_exps.weight"][e] @ h[t], 2)
                else:
                    gate, up = (self.w[p + f"ffn_{s}_exps.weight"][e] @ h[t] for s in ("gate", "up"))
                out[t] += weight * self.expert_scale(p, e) * (self.w[p + "ffn_down_exps.weight"][e] @ self.expert_activation(gate, up))
        return out

    def gemma4_ffn(self, p, x):
        y = self.dense(p, self.norm(x, p + "ffn_norm"))
        if p + "ffn_gate_inp.weight" in self.w:
            y = self.norm(y, p + "post_ffw_norm_1") + self.norm(self.chosen_experts(p, x), p + "post_ffw_norm_2")
        return self.norm(y, p + "post_ffw_norm")

    def per_layer_inputs(self, tokens, x):
        """(tokens, layers, width), or None: each layer's own embedding of the tokens."""
        n = self.key("embedding_length_per_layer_input")
        if not n:
            return None
        shape = (len(tokens), self.n_layers, n)
        rows = self.w["per_layer_token_embd.weight"][np.asarray(tokens)].reshape(shape) * math.sqrt(n)
        context = self.linear(x, "per_layer_model_proj") / math.sqrt(self.n_embd)
        return (rows + self.norm(context.reshape(shape), "per_layer_proj_norm")) / math.sqrt(2)

    def own_embedding(self, p, x, inputs):
        return self.norm(self.linear(gelu(self.linear(x, p + "inp_gate")) * inputs, p + "proj"), p + "post_norm")

    def output_scale(self, p):
        return float(self.w.get(p + "layer_output_scale.weight", np.ones(1)).reshape(-1)[0])

    def gemma4_layers(self, tokens, x, positions):
        inputs = self.per_layer_inputs(tokens, x)
        for il in range(self.n_layers):
            p = f"blk.{il}."
            x = x + self.norm(self.gemma4_attention(il, self.norm(x, p + "attn_norm"), positions), p + "post_attention_norm")
            x = x + self.gemma4_ffn(p, x)
            if inputs is not None:
                x = x + self.own_embedding(p, x, inputs[:, il])
            x = x * self.output_scale(p)
        return x
