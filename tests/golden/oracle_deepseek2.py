"""The layers of DeepSeek-V2 and GLM-4.7-Flash, a part of oracle.Model: each equation a method, so that mutants_deepseek2.py can get one wrong at a
time. Keys and values are made for each head out of the latent vector, as published; an engine may absorb the two matrices into queries and output."""

import math

import numpy as np


def silu(x):
    return x / (1.0 + np.exp(-x))


class Deepseek2Layers:
    def query_dim(self):
        return self.key("attention.key_length_mla")

    def queries(self, p, h):
        if p + "attn_q.weight" in self.w:
            q = self.linear(h, p + "attn_q")
        else:
            q = self.linear(self.query_norm(self.linear(h, p + "attn_q_a"), p), p + "attn_q_b")
        return q.reshape(len(h), self.n_heads[0], self.query_dim())

    def query_norm(self, low, p):
        return self.norm(low, p + "attn_q_a_norm")

    def latent_norm(self, c, p):
        return self.norm(c, p + "attn_kv_a_norm")

    def turned(self, il, x, positions):
        return self.rope(il, x, positions)

    def turned_queries(self, il, q, positions):
        """The last dimensions of each head."""
        nope = self.query_dim() - self.n_rot
        return np.concatenate([q[..., :nope], self.turned(il, q[..., nope:], positions)], axis=-1)

    def yarn_magnitude(self):
        """The file's multiplier is a tenth of the published one."""
        if self.key("rope.scaling.type", "linear") != "yarn":
            return 1.0
        return 1.0 + float(np.float32(self.key("rope.scaling.yarn_log_multiplier", 0.0))) * math.log(self.key("rope.scaling.factor"))

    def latent_scale(self):
        return self.yarn_magnitude() ** 2 / math.sqrt(self.query_dim())

    def rotary_magnitude(self):
        """Of cos and sin."""
        return 1.0

    def row_of(self, p, h):
        """(latent vector, key part of all heads), before the norm and the rotation."""
        rank = self.key("attention.kv_lora_rank")
        row = self.linear(h, p + "attn_kv_a_mqa")
        return row[:, :rank], row[:, rank:]

    def key_of(self, p, c, head):
        return c @ self.w[p + "attn_k_b.weight"][head]   # (rank, nope)

    def value_of(self, p, c, head):
        return c @ self.w[p + "attn_v_b.weight"][head].T   # (value, rank)

    def deepseek2_attention(self, il, h, positions):
        p, n, nh = f"blk.{il}.", len(h), self.n_heads[il]
        q = self.turned_queries(il, self.queries(p, h), positions)
        c, k = self.row_of(p, h)
        c, k = self.latent_norm(c, p), self.turned(il, k[:, None], positions)[:, 0]
        if self.cache[il] is not None:
            c, k = np.concatenate([self.cache[il][0], c]), np.concatenate([self.cache[il][1], k])
        self.cache[il] = (c, k)
        hidden = positions[:, None] < np.arange(len(c))[None, :]
        out = []
        for head in range(nh):
            s = q[:, head] @ np.concatenate([self.key_of(p, c, head), k], axis=-1).T * self.latent_scale()
            s[hidden] = -np.inf
            s = np.exp(s - s.max(axis=-1, keepdims=True))
            out.append(s / s.sum(axis=-1, keepdims=True) @ self.value_of(p, c, head))
        return self.linear(np.concatenate(out, axis=-1), p + "attn_output")

    def probabilities(self, logits):
        """Without the key: a softmax, but for early files of GLM-4.7-Flash, which no case is."""
        if self.key("expert_gating_func", 1) == 2:
            return 1.0 / (1.0 + np.exp(-logits))
        share = np.exp(logits - logits.max(axis=-1, keepdims=True))
        return share / share.sum(axis=-1, keepdims=True)

    def choice_of(self, p, share):
        """What experts are chosen by."""
        return share + self.w[p + "exp_probs_b.bias"] if p + "exp_probs_b.bias" in self.w else share

    def weights_of(self, p, share, order):
        weights = share[order]
        if self.key("expert_weights_norm", False):
            weights = weights / weights.sum()
        return weights * self.expert_scale_of_all()

    def expert_scale_of_all(self):
        return float(np.float32(self.key("expert_weights_scale", 0.0))) or 1.0

    def shared_experts(self, p, x):
        return self.linear(silu(self.linear(x, p + "ffn_gate_shexp")) * self.linear(x, p + "ffn_up_shexp"), p + "ffn_down_shexp")

    def deepseek2_ffn(self, il, x):
        p, k = f"blk.{il}.", self.key("expert_used_count")
        if il < self.key("leading_dense_block_count", 0):
            return self.linear(silu(self.linear(x, p + "ffn_gate")) * self.linear(x, p + "ffn_up"), p + "ffn_down")
        logits = self.linear(x, p + "ffn_gate_inp")
        share = self.probabilities(logits)
        scores = self.choice_of(p, share)
        apart = logits if scores is share else scores
        out = np.zeros_like(x)
        for t in range(len(x)):
            order = np.argsort(-scores[t], kind="stable")   # of equal ones, the lower index first
            self.router_gap = min(self.router_gap, float(apart[t, order[k - 1]] - apart[t, order[k]]))
            for e, weight in zip(order[:k], self.weights_of(p, share[t], order[:k])):
                gate, up = (self.w[p + f"ffn_{s}_exps.weight"][e] @ x[t] for s in ("gate", "up"))
                out[t] += weight * (self.w[p + "ffn_down_exps.weight"][e] @ (silu(gate) * up))
        return out + self.shared_experts(p, x) if p + "ffn_up_shexp.weight" in self.w else out

    def deepseek2_layers(self, x, positions):
        for il in range(self.n_layers):
            p = f"blk.{il}."
            x = x + self.deepseek2_attention(il, self.norm(x, p + "attn_norm"), positions)
            x = x + self.deepseek2_ffn(il, self.norm(x, p + "ffn_norm"))
        return x
