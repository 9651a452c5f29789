"""An independent forward pass of the architectures in NumPy: float32 weights, float64 arithmetic.

In: GGUF keys (a dict), tensors (a dict of arrays in (rows, columns) order) and the context size that a session asks for.
Out: logits.  Written for plainness from the architectures' definitions; make_model_goldens.py checks it against the
models' published PyTorch classes.  float64 makes it the exact answer that every float32 engine should come near to.
"""

import math

import numpy as np

from oracle_deepseek2 import Deepseek2Layers
from oracle_gemma4 import Gemma4Layers, gelu

# Which rotary layout an architecture's files use: NORM turns neighbours (2i, 2i+1), NEOX turns halves (i, i + n_rot/2).
ROPE_NORM = {"llama", "chatglm", "glm4", "mistral3", "muse-glimmer", "smollm3", "deepseek2"}
ROPE_NEOX = {"qwen2", "qwen3", "qwen3moe", "qwen35", "qwen35moe", "qwen3next", "phi3", "gemma3", "gemma-embedding", "gemma4", "seed_oss", "gpt-oss", "lfm2", "lfm2moe", "nemotron_h_moe"}
HYBRID = {"qwen35", "qwen35moe", "qwen3next"}   # gated delta nets, and gated attention
PERIOD = {"gemma3": 6, "gemma-embedding": 6, "muse-glimmer": 4, "gpt-oss": 2}   # every nth layer has no window


def silu(x):
    return x / (1.0 + np.exp(-x))


class Model(Gemma4Layers, Deepseek2Layers):
    def __init__(self, keys: dict, tensors: dict, n_ctx: int):
        self.keys, self.n_ctx = keys, n_ctx
        self.w = {name: np.asarray(t, dtype=np.float64) for name, t in tensors.items()}
        self.arch = keys["general.architecture"]
        assert self.arch in ROPE_NORM | ROPE_NEOX, self.arch
        self.n_layers = self.key("block_count") - self.key("nextn_predict_layers", 0)
        self.n_embd = self.key("embedding_length")
        eps = self.key("attention.layer_norm_epsilon", 0.0) if self.arch == "nemotron_h_moe" else None
        self.eps = float(np.float32(self.key("attention.layer_norm_rms_epsilon", eps)))
        self.n_heads = self.per_layer("attention.head_count")
        self.n_kv_heads = self.per_layer("attention.head_count_kv", self.n_heads)
        self.head_dim = self.key("attention.key_length", self.n_embd // self.n_heads[0])
        assert self.arch == "deepseek2" or self.key("attention.value_length", self.head_dim) == self.head_dim
        self.n_rot = self.key("rope.dimension_count", self.head_dim)
        self.windows = [self.window_of(il) for il in range(self.n_layers)]
        full = self.rope_frequencies()
        windowed = self.window_frequencies() if self.arch in ("gemma3", "gemma-embedding", "gemma4", "muse-glimmer") else full
        self.ropes = [self.rope_of(il, full, windowed) for il in range(self.n_layers)]
        self.scale = self.key("attention.scale", 0.0) or 1 / math.sqrt(
            self.n_embd / self.n_heads[0] if self.arch == "gemma3" and self.n_layers == 62 else self.head_dim)
        self.neighbours = self.arch in ROPE_NORM
        self.reset()

    def key(self, name, default=None):
        value = self.keys.get(f"{self.arch}.{name}", default)
        assert value is not None, f"{self.arch}.{name} is missing"
        return value

    def per_layer(self, name, default=None):
        value = self.key(name, default)
        return list(value) if isinstance(value, (list, tuple, np.ndarray)) else [value] * self.n_layers

    def window_of(self, il):
        """Keys that a layer's queries see, themselves included; 0: all before them."""
        # The llama architecture's files may carry the key (early Mistral); its definition there is full attention.
        window = 0 if self.arch == "llama" else self.key("attention.sliding_window", 0)
        pattern = self.key("attention.sliding_window_pattern", PERIOD.get(self.arch, 0))
        if isinstance(pattern, (list, tuple, np.ndarray)):
            return window if pattern[il] else 0
        return window if pattern == 0 or il % pattern < pattern - 1 else 0

    def rope_of(self, il, full, windowed):
        """None: the layer's queries and keys have no position."""
        if self.arch == "nemotron_h_moe" or self.arch == "smollm3" and il % 4 == 3 or self.arch == "muse-glimmer" and not self.windows[il]:
            return None
        return windowed if self.windows[il] else full

    def window_frequencies(self):
        """Of layers with a window: a base of their own, no scaling."""
        base = self.key("rope.freq_base", 10000.0) if self.arch == "muse-glimmer" else 10000.0
        base = float(np.float32(self.key("rope.freq_base_swa", base)))
        n_rot = self.key("rope.dimension_count_swa", self.key("attention.key_length_swa")) if self.arch == "gemma4" else self.n_rot
        return base ** (-np.arange(n_rot // 2, dtype=np.float64) * 2.0 / n_rot), 1.0

    def rope_frequencies(self):
        """Radians per position for each pair, and what cos and sin are multiplied by."""
        half = self.n_rot // 2
        base = float(np.float32(self.key("rope.freq_base", 10000.0)))
        freq = base ** (-np.arange(half, dtype=np.float64) * 2.0 / self.n_rot)
        trained = self.key("rope.scaling.original_context_length", self.key("context_length"))
        if "rope_freqs.weight" in self.w:
            freq = freq / self.w["rope_freqs.weight"]
        elif "rope_factors_long.weight" in self.w:
            side = "long" if self.n_ctx > trained else "short"
            freq = freq / self.w[f"rope_factors_{side}.weight"]
        magnitude = float(np.float32(self.key("rope.scaling.attn_factor", 1.0)))
        kind = self.key("rope.scaling.type", "linear")
        factor = float(np.float32(self.key("rope.scaling.factor", 1.0)))
        if kind == "linear":
            freq = freq / factor
        elif kind == "yarn":
            # NTK by parts: pairs that turn more than beta_fast times in the trained context stay, those that turn less
            # than beta_slow times are interpolated, a ramp between.
            def pair_of(turns):
                return self.n_rot * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(base))

            floor, ceil = (float, float) if self.arch == "gpt-oss" else (math.floor, math.ceil)   # between pairs, or at whole ones
            low = max(0.0, floor(pair_of(self.key("rope.scaling.yarn_beta_fast", 32.0))))
            high = min(self.n_rot - 1.0, ceil(pair_of(self.key("rope.scaling.yarn_beta_slow", 1.0))))
            keep = 1.0 - np.clip((np.arange(half) - low) / max(0.001, high - low), 0.0, 1.0)
            freq = freq / factor * (1.0 - keep) + freq * keep
            grown = lambda x: 1.0 + 0.1 * x * math.log(factor)
            magnitude *= grown(1.0) / grown(float(np.float32(self.key("rope.scaling.yarn_log_multiplier", 0.0))))
        else:
            assert kind in ("none", "longrope"), kind
        return freq, self.rotary_magnitude() if self.arch == "deepseek2" else magnitude

    def rope(self, il, x, positions):
        """x (tokens, heads, head_dim), turned in its first dimensions, two for each frequency."""
        if self.ropes[il] is None:
            return x
        inv_freq, magnitude = self.ropes[il]
        angle = positions[:, None] * inv_freq[None, :]
        cos = np.cos(angle)[:, None, :] * magnitude
        sin = np.sin(angle)[:, None, :] * magnitude
        half = len(inv_freq)
        first = slice(0, 2 * half, 2) if self.neighbours else slice(0, half)
        second = slice(1, 2 * half, 2) if self.neighbours else slice(half, 2 * half)
        out = x.copy()
        out[..., first] = x[..., first] * cos - x[..., second] * sin
        out[..., second] = x[..., second] * cos + x[..., first] * sin
        return out

    def norm(self, x, name, eps=None):
        eps = self.eps if eps is None else eps
        return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * (self.w[name + ".weight"] if name else 1.0)

    def linear(self, x, name):
        y = x @ self.w[name + ".weight"].T
        bias = self.w.get(name + ".bias")
        return y if bias is None else y + bias

    def attention(self, il, x, positions):
        p, nh, nkv, hd, n = f"blk.{il}.", self.n_heads[il], self.n_kv_heads[il], self.head_dim, len(x)
        gate = None
        if p + "attn_qkv.weight" in self.w:
            q, k, v = np.split(self.linear(x, p + "attn_qkv"), [nh * hd, (nh + nkv) * hd], axis=-1)
        else:
            q, k, v = (self.linear(x, p + "attn_" + s) for s in "qkv")
        if self.arch in HYBRID:   # each head's query, then its gate
            q, gate = np.split(q.reshape(n, nh, 2 * hd), 2, axis=-1)
        q, k, v = q.reshape(n, nh, hd), k.reshape(n, nkv, hd), v.reshape(n, nkv, hd)
        if p + "attn_q_norm.weight" in self.w:
            q, k = self.norm(q, p + "attn_q_norm"), self.norm(k, p + "attn_k_norm")
        q, k = self.rope(il, q, positions), self.rope(il, k, positions)
        if p + "attn_gate.weight" in self.w:
            gate = self.linear(x, p + "attn_gate").reshape(n, nh, hd)
        if self.key("attention.temperature_scale", 0.0):
            turns = np.floor(positions / self.key("rope.scaling.original_context_length", self.key("context_length")))
            q = q * (1 + float(np.float32(self.key("attention.temperature_scale"))) * np.log(1 + turns))[:, None, None]
        if self.cache[il] is not None:
            k, v = np.concatenate([self.cache[il][0], k]), np.concatenate([self.cache[il][1], v])
        self.cache[il] = (k, v)
        distance = positions[:, None] - np.arange(len(k))[None, :]
        hidden = distance < 0
        if self.windows[il]:
            hidden |= distance >= self.windows[il]
        if self.arch == "gemma-embedding":   # rows see both sides: half of the window before them, and half after them
            hidden = np.abs(distance) > self.windows[il] // 2 if self.windows[il] else np.zeros_like(hidden)
        out = np.empty((n, nh, hd))
        for h in range(nh):
            g = h // (nh // nkv)
            s = q[:, h] @ k[:, g].T * self.scale
            s[hidden] = -np.inf
            sink = self.w[p + "attn_sinks.weight"][h] if self.arch == "gpt-oss" else -np.inf   # a logit without a value
            most = np.maximum(s.max(axis=-1, keepdims=True), sink)
            s = np.exp(s - most)
            out[:, h] = s / (s.sum(axis=-1, keepdims=True) + np.exp(sink - most)) @ v[:, g]
        if gate is not None:
            out = out / (1.0 + np.exp(-gate))
        return self.linear(out.reshape(n, nh * hd), p + "attn_output")

    def recurrent(self, il):
        """Whether a layer is a gated delta net (Qwen3.5): flags in the file, or all but every nth."""
        if self.arch not in HYBRID:
            return False
        flags = self.keys.get(self.arch + ".attention.recurrent_layers")
        return bool(flags[il]) if flags is not None else (il + 1) % self.key("full_attention_interval", 4) != 0

    def delta_net(self, il, x):
        """The recurrence, token by token. cache[il]: the last inputs of the convolution, and the state of each value head."""
        p, n, taps = f"blk.{il}.", len(x), self.key("ssm.conv_kernel")
        dk, n_key, n_value = self.key("ssm.state_size"), self.key("ssm.group_count"), self.key("ssm.time_step_rank")
        dv = self.key("ssm.inner_size") // n_value
        u, z = self.linear(x, p + "attn_qkv"), self.linear(x, p + "attn_gate").reshape(n, n_value, dv)
        before, state = self.cache[il] or (np.zeros((taps - 1, u.shape[1])), np.zeros((n_value, dk, dv)))
        u = np.concatenate([before, u])
        conv = self.w[p + "ssm_conv1d.weight"]   # (channels, taps)
        c = silu(sum(u[t:t + n] * conv[:, t] for t in range(taps)))
        q, k, v = np.split(c, [n_key * dk, 2 * n_key * dk], axis=-1)
        unit = lambda a: a / np.sqrt((a * a).sum(axis=-1, keepdims=True) + self.eps)
        q, k = unit(q.reshape(n, n_key, dk)) / math.sqrt(dk), unit(k.reshape(n, n_key, dk))
        v = v.reshape(n, n_value, dv)
        if p + "ssm_ba.weight" in self.w:   # by key head: its value heads' b, then their a
            b, a = (s.reshape(n, n_value) for s in np.split(self.linear(x, p + "ssm_ba").reshape(n, n_key, -1), 2, axis=-1))
        else:
            b, a = self.linear(x, p + "ssm_beta"), self.linear(x, p + "ssm_alpha")
        beta = 1.0 / (1.0 + np.exp(-b))
        step = np.logaddexp(0.0, a + self.w[p + "ssm_dt.bias"])
        decay = np.exp(self.w[p + "ssm_a"] * step)
        of = np.arange(n_value) // (n_value // n_key) if self.arch == "qwen3next" else np.arange(n_value) % n_key
        out, state = np.empty((n, n_value, dv)), state.copy()
        for t in range(n):
            state *= decay[t][:, None, None]
            lack = beta[t][:, None] * (v[t] - np.einsum("hij,hi->hj", state, k[t, of]))
            state += k[t, of][:, :, None] * lack[:, None, :]
            out[t] = np.einsum("hij,hi->hj", state, q[t, of])
        self.cache[il] = (u[n:], state)
        out = self.norm(out, p + "ssm_norm") * silu(z)
        return self.linear(out.reshape(n, n_value * dv), p + "ssm_out")

    def short_conv(self, il, x):
        """cache[il]: the last inputs of the convolution."""
        p, n, taps = f"blk.{il}.shortconv.", len(x), self.key("shortconv.l_cache")
        before, after, inner = np.split(self.linear(x, p + "in_proj"), 3, axis=-1)
        u = np.concatenate([np.zeros((taps - 1, self.n_embd)) if self.cache[il] is None else self.cache[il], before * inner])
        self.cache[il] = u[n:]
        conv = self.w[p + "conv.weight"]   # (channels, taps)
        return self.linear(after * sum(u[t:t + n] * conv[:, t] for t in range(taps)), p + "out_proj")

    def mamba2(self, il, x):
        """The recurrence, token by token. cache[il]: the last inputs of the convolution, and the state of each head."""
        p, n, taps = f"blk.{il}.", len(x), self.key("ssm.conv_kernel")
        inner, size, groups, heads = (self.key("ssm." + name) for name in ("inner_size", "state_size", "group_count", "time_step_rank"))
        z, u, t = np.split(self.linear(x, p + "ssm_in"), [inner, 2 * inner + 2 * groups * size], axis=-1)
        before, state = self.cache[il] or (np.zeros((taps - 1, u.shape[1])), np.zeros((heads, inner // heads, size)))
        u = np.concatenate([before, u])
        conv = self.w[p + "ssm_conv1d.weight"]   # (channels, taps)
        c = silu(sum(u[i:i + n] * conv[:, i] for i in range(taps)) + self.w[p + "ssm_conv1d.bias"])
        own, into, out_of = np.split(c, [inner, inner + groups * size], axis=-1)
        own = own.reshape(n, heads, -1)
        into, out_of = (a.reshape(n, groups, size).repeat(heads // groups, axis=1) for a in (into, out_of))
        step = np.logaddexp(0.0, t + self.w[p + "ssm_dt.bias"])
        decay, skip = self.w[p + "ssm_a"].reshape(-1), self.w[p + "ssm_d"].reshape(-1)
        y = np.empty((n, heads, inner // heads))
        for i in range(n):
            state = state * np.exp(step[i] * decay)[:, None, None] + (step[i][:, None] * own[i])[:, :, None] * into[i][:, None, :]
            y[i] = np.einsum("hds,hs->hd", state, out_of[i]) + skip[:, None] * own[i]
        self.cache[il] = (u[n:], state)
        y = (y.reshape(n, inner) * silu(z)).reshape(n, groups, inner // groups)
        return self.linear(self.norm(y, p + "ssm_norm").reshape(n, inner), p + "ssm_out")

    def sigmoid_experts(self, il, x):
        """Experts chosen by sigmoid + bias. Their weights are the sigmoids, which may be normalised and scaled."""
        b, k = f"blk.{il}.", self.key("expert_used_count")
        p = b + "ffn_"
        share = 1.0 / (1.0 + np.exp(-self.linear(x, p + "gate_inp")))
        scores = share + self.w[b + "exp_probs_b.bias"]
        normalised = self.key("expert_weights_norm", True)
        scale = float(np.float32(self.key("expert_weights_scale", 0.0))) or 1.0
        squared = lambda a: np.maximum(a, 0.0) ** 2
        out = np.zeros_like(x)
        for t in range(len(x)):
            order = np.argsort(-scores[t], kind="stable")
            self.router_gap = min(self.router_gap, float(scores[t, order[k - 1]] - scores[t, order[k]]))
            weights = share[t, order[:k]]
            for e, weight in zip(order[:k], weights / weights.sum() if normalised else weights):
                up = self.w[p + "up_exps.weight"][e] @ x[t]
                act = silu(self.w[p + "gate_exps.weight"][e] @ x[t]) * up if p + "gate_exps.weight" in self.w else squared(up)
                out[t] += weight * scale * (self.w[p + "down_exps.weight"][e] @ act)
        if p + "up_shexp.weight" in self.w:
            out += self.linear(squared(self.linear(x, p + "up_shexp")), p + "down_shexp")
        return out

    def mixer(self, il, x, positions):
        if f"blk.{il}.shortconv.conv.weight" in self.w:
            return self.short_conv(il, x)
        if f"blk.{il}.ssm_in.weight" in self.w:
            return self.mamba2(il, x)
        return self.delta_net(il, x) if self.recurrent(il) else self.attention(il, x, positions)

    def experts(self, il, x):
        """The sum of the chosen experts, each with its share of their softmax; and the expert that every token takes."""
        if f"blk.{il}.exp_probs_b.bias" in self.w:
            return self.sigmoid_experts(il, x)
        p, k = f"blk.{il}.ffn_", self.key("expert_used_count")
        logits = self.linear(x, p + "gate_inp")
        share = np.exp(logits - logits.max(axis=-1, keepdims=True))
        share /= share.sum(axis=-1, keepdims=True)
        out = np.zeros_like(x)
        for t in range(len(x)):
            order = np.argsort(-share[t], kind="stable")   # of equal ones, the lower index first
            self.router_gap = min(self.router_gap, float(logits[t, order[k - 1]] - logits[t, order[k]]))
            chosen = order[:k]
            for e, weight in zip(chosen, share[t, chosen] / share[t, chosen].sum()):   # of gpt-oss: the softmax of the chosen, which is the same
                if self.arch == "gpt-oss":
                    gate, up = (self.w[p + s + "_exps.weight"][e] @ x[t] + self.w[p + s + "_exps.bias"][e] for s in ("gate", "up"))
                    gate, up = np.minimum(gate, 7.0), np.clip(up, -7.0, 7.0)
                    act = gate / (1.0 + np.exp(-1.702 * gate)) * (up + 1.0)
                    out[t] += weight * (self.w[p + "down_exps.weight"][e] @ act + self.w[p + "down_exps.bias"][e])
                    continue
                if p + "gate_up_exps.weight" in self.w:
                    gate, up = np.split(self.w[p + "gate_up_exps.weight"][e] @ x[t], 2)
                else:
                    gate, up = (self.w[p + s + "_exps.weight"][e] @ x[t] for s in ("gate", "up"))
                out[t] += weight * (self.w[p + "down_exps.weight"][e] @ (silu(gate) * up))
        if p + "gate_shexp.weight" in self.w:
            own = self.linear(silu(self.linear(x, p + "gate_shexp")) * self.linear(x, p + "up_shexp"), p + "down_shexp")
            out += own / (1.0 + np.exp(-self.linear(x, p + "gate_inp_shexp")))
        return out

    def mlp(self, il, x):
        p = f"blk.{il}.ffn_"
        if p + "gate_inp.weight" in self.w:
            return self.experts(il, x)
        if p + "gate.weight" in self.w:
            gate, up = self.linear(x, p + "gate"), self.linear(x, p + "up")
        else:
            gate, up = np.split(self.linear(x, p + "up"), 2, axis=-1)  # fused: gate rows first
        return self.linear((gelu if self.arch in ("gemma3", "gemma-embedding") else silu)(gate) * up, p + "down")

    def reset(self):
        self.cache = [None] * self.n_layers
        self.router_gap = math.inf   # the least between the logits of the last chosen expert and the first other one
        self.n_past = 0

    def forward(self, tokens):
        """Logits (tokens, vocabulary) of `tokens` put after what the cache holds."""
        positions = self.n_past + np.arange(len(tokens))
        self.n_past += len(tokens)
        x = self.w["token_embd.weight"][np.asarray(tokens)]
        if self.arch in ("gemma3", "gemma-embedding", "gemma4"):
            x = x * self.embedding_scale()
        if self.arch == "gemma4":
            return self.logits(self.gemma4_layers(tokens, x, positions))
        if self.arch == "deepseek2":
            return self.logits(self.deepseek2_layers(x, positions))
        if self.arch == "muse-glimmer":
            x = self.norm(x, None)
        post_eps = 1e-8 if self.arch == "muse-glimmer" else None
        for il in range(self.n_layers):
            p = f"blk.{il}."
            h = self.norm(x, p + "attn_norm")
            if self.arch == "nemotron_h_moe":   # a layer is one block
                x = x + (self.experts(il, h) if p + "ffn_gate_inp.weight" in self.w else self.mixer(il, h, positions))
                continue
            a = self.mixer(il, h, positions)
            ffn_norm = "post_attention_norm" if self.arch in HYBRID | {"seed_oss", "gpt-oss"} else "ffn_norm"
            if ffn_norm == "ffn_norm" and p + "post_attention_norm.weight" in self.w:
                a = self.norm(a, p + "post_attention_norm", post_eps)
            x = x + a
            m = self.mlp(il, self.norm(x, p + ffn_norm))
            if p + "post_ffw_norm.weight" in self.w:
                m = self.norm(m, p + "post_ffw_norm", post_eps)
            x = x + m
        return self.logits(x)

    def embedding_scale(self):
        return math.sqrt(self.n_embd)

    def logits(self, x):
        x = self.hidden = self.norm(x, "token_embd_norm" if "token_embd_norm.weight" in self.w else "output_norm")
        logits = x @ self.w.get("output.weight", self.w["token_embd.weight"]).T
        if self.arch == "muse-glimmer":
            logits = logits * float(np.float32(self.key("logit_scale")))
        cap = self.key("final_logit_softcapping", 0.0) if self.arch in PERIOD or self.arch == "gemma4" else 0.0
        return cap * np.tanh(logits / cap) if cap else logits


class Head:
    """The block behind the last layer that guesses tokens (MTP): of the next token and the model's hidden state, the token behind the next one."""

    def __init__(self, keys: dict, tensors: dict, n_ctx: int):
        arch = keys["general.architecture"]
        self.model = Model({**keys, arch + ".nextn_predict_layers": 0}, tensors, n_ctx)   # with the block as its last layer
        self.il = self.model.n_layers - 1

    def truncate(self, n):
        cache = self.model.cache[self.il]
        if cache is not None:
            self.model.cache[self.il] = (cache[0][:n], cache[1][:n])

    def forward(self, tokens, hidden):
        """(logits, hidden states) of rows behind those that the cache holds."""
        m, p = self.model, f"blk.{self.il}."
        past = 0 if m.cache[self.il] is None else len(m.cache[self.il][0])
        e = m.norm(m.w["token_embd.weight"][np.asarray(tokens)], p + "nextn.enorm")
        x = m.linear(np.concatenate([e, m.norm(np.asarray(hidden), p + "nextn.hnorm")], axis=-1), p + "nextn.eh_proj")
        x = x + m.attention(self.il, m.norm(x, p + "attn_norm"), past + np.arange(len(tokens)))
        x = x + m.mlp(self.il, m.norm(x, p + "post_attention_norm"))
        x = m.norm(x, p + "nextn.shared_head_norm" if p + "nextn.shared_head_norm.weight" in m.w else "output_norm")
        return x @ m.w.get("output.weight", m.w["token_embd.weight"]).T, x


def drafted(model: Model, head: Head, prompt, n_tokens, n_drafts, stumbles=0):
    """A greedy answer of n_tokens whose steps have n_drafts guesses of the head. stumbles: every so many tokens, another one is chosen. (drafts of each
    step, those of them that were right, the least margin of a draft)."""
    def choose(row):
        best, at = int(np.argmax(row)), len(tokens) - len(prompt)
        return 3 + (best + 40) % 100 if stumbles and at % stumbles == stumbles - 1 else best

    model.reset()
    head.truncate(0)
    tokens, logits = list(prompt), model.forward(prompt)
    hidden = list(model.hidden)
    tokens.append(choose(logits[-1]))
    drafts, right, least, cells = [], [], math.inf, 0
    while len(tokens) < len(prompt) + n_tokens:
        n = len(tokens) - 1      # tokens that the model has computed
        head.truncate(cells)
        rows, state = head.forward(tokens[cells + 1:n + 1], hidden[cells:n])
        cells, guesses = n, []
        for _ in range(n_drafts):
            top = np.sort(rows[-1])[-2:]
            least = min(least, float(top[1] - top[0]))
            guesses.append(int(np.argmax(rows[-1])))
            rows, state = head.forward(guesses[-1:], state[-1:])
        drafts.append(guesses)
        right.append(0)
        for i in range(n_drafts + 1):       # the model computes the last token, and the drafts that it would have chosen
            chosen = choose(model.forward(tokens[-1:])[0])
            hidden.append(model.hidden[0])
            tokens.append(chosen)
            if i == n_drafts or chosen != guesses[i]:
                break
            right[-1] += 1
    return drafts, right, least


def greedy(model: Model, prompt, n_steps):
    """(logits of the prompt, answer ids, logits after each answer token, top-1 minus top-2 where each was chosen)."""
    model.reset()
    logits = model.forward(prompt)
    last, answer, steps, margins = logits[-1], [], [], []
    for _ in range(n_steps):
        top = np.sort(last)[-2:]
        margins.append(float(top[1] - top[0]))
        answer.append(int(np.argmax(last)))
        last = model.forward([answer[-1]])[0]
        steps.append(last)
    return logits, answer, np.array(steps), margins
