"""Trains the block of models/qwen35-mtp.json that guesses tokens, and writes the model's spec and golden.

    python3 train_mtp_head.py

Needs numpy and torch. The model itself has random weights: the head learns which token it would choose behind the next one, of random tokens and of the
model's own samples. Three steps are trained one behind another, as a draft of three tokens computes them. Weights are rounded to bytes for the spec.
"""

import numpy as np
import torch
import torch.nn.functional as F

import make_model_goldens
import model_cases
import spec_weights
from oracle import Model

NAME, N_RANDOM, N_SAMPLED, N_TOKENS, N_UNROLLED, N_STEPS = "qwen35-mtp", 900, 90, 56, 3, 1300


def samples(keys, tensors, rng):
    """Tokens (sequences, tokens), the model's hidden states, and its choices behind each token."""
    vocab = tensors["token_embd.weight"].shape[0]
    all_tokens, all_hidden, all_chosen = [], [], []
    model = Model(keys, tensors, 512)
    for i in range(N_RANDOM + N_SAMPLED):
        model.reset()
        if i < N_RANDOM:
            tokens = [int(t) for t in rng.integers(3, vocab, N_TOKENS)]
            chosen = np.argmax(model.forward(tokens), axis=-1)
            all_tokens.append(tokens), all_hidden.append(model.hidden), all_chosen.append(chosen)
            continue
        temperature = (0.0, 0.5, 1.0)[i % 3]
        tokens = [int(t) for t in rng.integers(3, vocab, 8)]
        logits = model.forward(tokens)
        hidden, chosen = list(model.hidden), list(np.argmax(logits, axis=-1))
        while len(tokens) < N_TOKENS:
            row = logits[-1] + (rng.gumbel(size=vocab) * temperature if temperature else 0.0)
            tokens.append(int(np.argmax(row)) if rng.random() > 0.05 else int(rng.integers(3, vocab)))
            logits = model.forward(tokens[-1:])
            hidden.append(model.hidden[0])
            chosen.append(int(np.argmax(logits[0])))
        all_tokens.append(tokens), all_hidden.append(hidden), all_chosen.append(chosen)
    return torch.tensor(all_tokens), torch.tensor(np.array(all_hidden), dtype=torch.float32), torch.tensor(np.array(all_chosen))


class TorchHead:
    """oracle.Head over whole sequences."""

    def __init__(self, keys, tensors):
        k = lambda name: keys["qwen35." + name]
        self.il, self.eps = k("block_count") - 1, k("attention.layer_norm_rms_epsilon")
        self.n_heads, self.n_kv, self.dim, self.n_rot, self.base = (k("attention.head_count"), k("attention.head_count_kv"), k("attention.key_length"),
                                                                   k("rope.dimension_count"), k("rope.freq_base"))
        own = f"blk.{self.il}."
        self.w = {name: torch.tensor(np.array(t), dtype=torch.float32, requires_grad=name.startswith(own)) for name, t in tensors.items()}
        self.trained = {name: w for name, w in self.w.items() if w.requires_grad and w.dim() == 2}

    def norm(self, x, name):
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + self.eps) * self.w[f"blk.{self.il}.{name}.weight"]

    def linear(self, x, name):
        return x @ self.w[f"blk.{self.il}.{name}.weight"].T

    def rope(self, x):   # (sequences, tokens, heads, dim)
        half = self.n_rot // 2
        angle = torch.arange(x.shape[1])[:, None] * self.base ** (-torch.arange(half) * 2.0 / self.n_rot)
        cos, sin = torch.cos(angle)[None, :, None], torch.sin(angle)[None, :, None]
        a, b = x[..., :half], x[..., half:2 * half]
        return torch.cat([a * cos - b * sin, b * cos + a * sin, x[..., 2 * half:]], -1)

    def forward(self, tokens, hidden):
        e = self.norm(self.w["token_embd.weight"][tokens], "nextn.enorm")
        x = self.linear(torch.cat([e, self.norm(hidden, "nextn.hnorm")], -1), "nextn.eh_proj")
        h, (n, t) = self.norm(x, "attn_norm"), tokens.shape
        q, gate = self.linear(h, "attn_q").reshape(n, t, self.n_heads, 2 * self.dim).chunk(2, -1)
        k, v = (self.linear(h, "attn_" + s).reshape(n, t, self.n_kv, self.dim) for s in "kv")
        q, k = self.rope(self.norm(q, "attn_q_norm")), self.rope(self.norm(k, "attn_k_norm"))
        k, v = (a.repeat_interleave(self.n_heads // self.n_kv, 2) for a in (k, v))
        a = F.scaled_dot_product_attention(*(a.transpose(1, 2) for a in (q, k, v)), is_causal=True).transpose(1, 2)
        x = x + self.linear((a * torch.sigmoid(gate)).reshape(n, t, -1), "attn_output")
        h = self.norm(x, "post_attention_norm")
        x = x + self.linear(F.silu(self.linear(h, "ffn_gate")) * self.linear(h, "ffn_up"), "ffn_down")
        x = self.norm(x, "nextn.shared_head_norm")
        return x @ self.w["output.weight"].T, x


def train(head, tokens, hidden, chosen):
    torch.manual_seed(1)
    optimizer = torch.optim.AdamW(head.trained.values(), lr=4e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, N_STEPS)
    for step in range(N_STEPS):
        batch = torch.randint(len(tokens), (16,))
        t, own, y = tokens[batch], hidden[batch][:, :-1], chosen[batch]
        loss = 0.0
        for i in range(N_UNROLLED):   # row p of step i reads the token at p + i + 1
            logits, own = head.forward(t[:, i + 1:], own[:, :t.shape[1] - i - 1])
            loss = loss + F.cross_entropy(logits.flatten(0, 1), y[:, i + 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 200 == 0:
            print(f"step {step}: loss {loss.item() / N_UNROLLED:.3f}", flush=True)


def main():
    spec = next(s for s in model_cases.cases() if s["name"] == NAME)
    result = None
    while result is None:
        spec["seed"] += 1
        result = make_model_goldens.run_case(spec)
    keys = {k: v for k, _, v in spec["keys"]}
    tensors = spec_weights.all_tensors(spec)
    head = TorchHead(keys, tensors)
    train(head, *samples(keys, tensors, np.random.default_rng(spec["seed"])))
    for tensor in spec["tensors"]:
        if tensor["name"] in head.trained:
            w = head.trained[tensor["name"]].detach().numpy()
            scale = float(np.float32(np.abs(w).max() / 127))
            tensor.pop("offset", None)
            tensor.update(scale=scale, bytes=np.round(w / scale).astype(np.int8).tobytes().hex())
    runs, arrays, _ = result
    make_model_goldens.save(spec, runs, arrays)
    for run in spec["drafts"]:
        right, steps = sum(run["right"]), len(run["right"])
        print(f"seed {spec['seed']}, stumbles {run['stumbles']}: {right} of {3 * steps} drafts right, {1 + right / steps:.2f} tokens a step, "
              f"least margin {run['least_margin']:.3f}")


if __name__ == "__main__":
    main()
