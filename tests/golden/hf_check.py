"""Checks the oracle against the models' published PyTorch classes (transformers), in float32, over prompt and answer.

The spec's GGUF tensors are turned back into the classes' layout: llama's Q and K rows un-permuted, ChatGLM's fused QKV
split.  What the classes cannot express (per-layer widths) is said so.
"""

import numpy as np
import torch
import transformers as tf

CLASSES = {"llama": (tf.LlamaConfig, tf.LlamaForCausalLM), "qwen2": (tf.Qwen2Config, tf.Qwen2ForCausalLM),
           "mistral": (tf.MistralConfig, tf.MistralForCausalLM),
           "qwen3": (tf.Qwen3Config, tf.Qwen3ForCausalLM), "phi3": (tf.Phi3Config, tf.Phi3ForCausalLM),
           "glm4": (tf.Glm4Config, tf.Glm4ForCausalLM), "chatglm": (tf.GlmConfig, tf.GlmForCausalLM)}


def unpermute(w, heads):
    """GGUF's neighbouring rotary pairs back to halves, per head, of a matrix's rows or a bias."""
    hd = w.shape[0] // heads
    return w.reshape(heads, hd // 2, 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def rope_parameters(k, tensors, run_name):
    theta = k.get("rope.freq_base", 10000.0)
    kind = k.get("rope.scaling.type")
    if "rope_freqs.weight" in tensors:
        import model_cases
        p = model_cases.LLAMA3
        return {"rope_type": "llama3", "rope_theta": theta, "factor": p["factor"],
                "low_freq_factor": p["low_freq_factor"], "high_freq_factor": p["high_freq_factor"],
                "original_max_position_embeddings": p["original"]}
    if "rope_factors_long.weight" in tensors:
        # The class changes to the long factors by sequence length, not by configured context: give it the ones wanted.
        f = [float(x) for x in tensors[f"rope_factors_{run_name}.weight"]]
        return {"rope_type": "longrope", "rope_theta": theta, "short_factor": f, "long_factor": f,
                "original_max_position_embeddings": k["rope.scaling.original_context_length"]}
    if kind == "linear":
        return {"rope_type": "linear", "rope_theta": theta, "factor": k["rope.scaling.factor"]}
    if kind == "yarn":
        p = {"rope_type": "yarn", "rope_theta": theta, "factor": k["rope.scaling.factor"],
             "original_max_position_embeddings": k.get("rope.scaling.original_context_length", k["context_length"]),
             "beta_fast": k.get("rope.scaling.yarn_beta_fast", 32.0),
             "beta_slow": k.get("rope.scaling.yarn_beta_slow", 1.0)}
        if "rope.scaling.attn_factor" in k:
            p["attention_factor"] = k["rope.scaling.attn_factor"] * (1 + 0.1 * np.log(k["rope.scaling.factor"]))
        return p
    return {"rope_type": "default", "rope_theta": theta}


def state_dict(arch, tensors, n_layers, heads, kv, hd):
    t, out = dict(tensors), {}
    out["model.embed_tokens.weight"] = t["token_embd.weight"]
    out["model.norm.weight"] = t["output_norm.weight"]
    out["lm_head.weight"] = t.get("output.weight", t["token_embd.weight"])
    names = {"attn_norm": "input_layernorm", "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj",
             "ffn_down": "mlp.down_proj", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
             "ffn_norm": "post_attention_layernorm", "post_attention_norm": "post_self_attn_layernorm",
             "post_ffw_norm": "post_mlp_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
             "attn_v": "self_attn.v_proj", "attn_qkv": "self_attn.qkv_proj",
             "ffn_up": "mlp.gate_up_proj" if arch in ("phi3", "glm4", "chatglm") else "mlp.up_proj"}
    for name, w in t.items():
        if not name.startswith("blk."):
            continue
        _, il, part, kind = name.split(".")
        p = f"model.layers.{il}."
        if arch == "llama" and part in ("attn_q", "attn_k"):
            w = unpermute(w, heads if part == "attn_q" else kv)
        if arch == "chatglm" and part == "attn_qkv":
            for s, piece in zip("qkv", np.split(w, [heads * hd, (heads + kv) * hd])):
                out[f"{p}self_attn.{s}_proj.{kind}"] = piece
            continue
        out[p + names[part] + "." + kind] = w
    return {k: torch.from_numpy(np.ascontiguousarray(v)) for k, v in out.items()}


def compare(spec, tensors, full):
    k = {key: v for key, _, v in spec["keys"]}
    arch = k["general.architecture"]
    k = {key[len(arch) + 1:]: v for key, v in k.items() if key.startswith(arch + ".")}
    scalar = lambda v: v[0] if isinstance(v, list) and len(set(v)) == 1 else v
    heads, ff = scalar(k["attention.head_count"]), scalar(k["feed_forward_length"])
    kv = scalar(k.get("attention.head_count_kv", heads))
    if isinstance(kv, list) or isinstance(ff, list):
        return "no published class has widths per layer"
    dim = k["embedding_length"]
    hd = k.get("attention.key_length", dim // heads)
    partial = k["rope.dimension_count"] / hd
    worst = 0.0
    for run, (tokens, expected) in full.items():
        rope = rope_parameters(k, tensors, run)
        if arch in ("phi3", "glm4", "chatglm"):
            rope["partial_rotary_factor"] = partial
        else:
            assert partial == 1.0
        options = dict(vocab_size=spec["vocab"]["size"], hidden_size=dim, intermediate_size=ff,
                       num_hidden_layers=k["block_count"], num_attention_heads=heads, num_key_value_heads=kv,
                       head_dim=hd, rms_norm_eps=k["attention.layer_norm_rms_epsilon"], rope_parameters=rope,
                       max_position_embeddings=k["context_length"],
                       tie_word_embeddings="output.weight" not in tensors, bos_token_id=1, eos_token_id=2,
                       pad_token_id=0, attn_implementation="eager", use_cache=False)
        if arch == "phi3":
            options["sliding_window"] = k.get("attention.sliding_window") or None
            options["original_max_position_embeddings"] = k.get("rope.scaling.original_context_length",
                                                                k["context_length"])
        if arch in ("llama", "qwen3", "glm4", "chatglm"):
            options["attention_bias"] = any(n.endswith((".attn_q.bias", ".attn_qkv.bias")) for n in tensors)
        family = "mistral" if spec["name"] in ("llama-nemo", "llama-window-key") else arch
        if family == "mistral":
            options["sliding_window"] = None
            del options["attention_bias"]
        config_class, model_class = CLASSES[family]
        model = model_class(config_class(**options)).eval().float()
        missing, unexpected = model.load_state_dict(state_dict(arch, tensors, k["block_count"], heads, kv, hd),
                                                    strict=False)
        assert not unexpected and not missing, (spec["name"], missing, unexpected)
        with torch.no_grad():
            got = model(input_ids=torch.tensor([tokens])).logits[0].double().numpy()
        worst = max(worst, float(np.abs(got - expected).max()))
    assert worst < 2e-3, f"{spec['name']}: {model_class.__name__} differs by {worst}"
    return f"{model_class.__name__} max difference {worst:.1e}"
