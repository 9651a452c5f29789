"""Checks oracle_deepseek2.py against the published PyTorch classes (transformers) in float32, over prompt and answer of both cases.

    python3 hf_check_deepseek2.py          # torch 2.15, transformers 5.23

The classes make keys and values of all heads by one matrix, whose rows are the cases' two tensors. Their norms of the low-rank vectors have an epsilon
of their own, 1e-6 whatever the configuration says; llama.cpp's converter writes none, and engines take the file's. So do the classes here.
"""

import json
import os

import numpy as np
import torch
import transformers as tf

import spec_weights
from oracle import Model

HERE = os.path.dirname(os.path.abspath(__file__))
CLASSES = {"glm47": (tf.Glm4MoeLiteConfig, tf.Glm4MoeLiteForCausalLM), "deepseek2-lite": (tf.DeepseekV2Config, tf.DeepseekV2ForCausalLM)}
NAMES = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj", "attn_q_a": "self_attn.q_a_proj",
         "attn_q_a_norm": "self_attn.q_a_layernorm", "attn_q_b": "self_attn.q_b_proj", "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
         "attn_kv_a_norm": "self_attn.kv_a_layernorm", "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
         "ffn_down": "mlp.down_proj", "ffn_gate_inp": "mlp.gate", "ffn_gate_shexp": "mlp.shared_experts.gate_proj",
         "ffn_up_shexp": "mlp.shared_experts.up_proj", "ffn_down_shexp": "mlp.shared_experts.down_proj"}


def state_dict(t, n_layers):
    out = {"model.embed_tokens.weight": t["token_embd.weight"], "model.norm.weight": t["output_norm.weight"], "lm_head.weight": t["output.weight"]}
    for il in range(n_layers):
        b, p = f"blk.{il}.", f"model.layers.{il}."
        for part, name in NAMES.items():
            if b + part + ".weight" in t:
                out[p + name + ".weight"] = t[b + part + ".weight"]
        k_b, v_b = t[b + "attn_k_b.weight"], t[b + "attn_v_b.weight"]   # (heads, rank, nope), (heads, value, rank)
        out[p + "self_attn.kv_b_proj.weight"] = np.concatenate([k_b.transpose(0, 2, 1), v_b], axis=1).reshape(-1, k_b.shape[1])
        if b + "ffn_gate_inp.weight" in t:
            out[p + "mlp.experts.gate_up_proj"] = np.concatenate([t[b + "ffn_gate_exps.weight"], t[b + "ffn_up_exps.weight"]], axis=1)
            out[p + "mlp.experts.down_proj"] = t[b + "ffn_down_exps.weight"]
        if b + "exp_probs_b.bias" in t:
            out[p + "mlp.gate.e_score_correction_bias"] = t[b + "exp_probs_b.bias"]
    return {name: torch.from_numpy(np.ascontiguousarray(w)) for name, w in out.items()}


def compare(name):
    with open(os.path.join(HERE, "models", name + ".json")) as f:
        spec = json.load(f)
    keys, tensors = {k: v for k, _, v in spec["keys"]}, spec_weights.all_tensors(spec)
    key = lambda n, default=None: keys.get("deepseek2." + n, default)
    n_layers, n_dense, n_heads = key("block_count") - key("nextn_predict_layers", 0), key("leading_dense_block_count"), key("attention.head_count")
    rope = {"rope_type": "default", "rope_theta": key("rope.freq_base", 10000.0)}
    if key("rope.scaling.type") == "yarn":
        m = 10 * key("rope.scaling.yarn_log_multiplier")   # the published one
        rope.update(rope_type="yarn", factor=key("rope.scaling.factor"), original_max_position_embeddings=key("rope.scaling.original_context_length"), beta_fast=32,
                    beta_slow=1, mscale=m, mscale_all_dim=m)
    options = dict(vocab_size=spec["vocab"]["size"], hidden_size=key("embedding_length"), intermediate_size=key("feed_forward_length"),
                   moe_intermediate_size=key("expert_feed_forward_length"), num_hidden_layers=n_layers, n_shared_experts=key("expert_shared_count"),
                   n_routed_experts=key("expert_count"), num_experts_per_tok=key("expert_used_count"), q_lora_rank=key("attention.q_lora_rank"),
                   kv_lora_rank=key("attention.kv_lora_rank"), qk_nope_head_dim=key("attention.key_length_mla") - key("rope.dimension_count"),
                   qk_rope_head_dim=key("rope.dimension_count"), v_head_dim=key("attention.value_length_mla"), max_position_embeddings=key("context_length"),
                   rms_norm_eps=key("attention.layer_norm_rms_epsilon"), routed_scaling_factor=key("expert_weights_scale", 1.0),
                   norm_topk_prob=key("expert_weights_norm", False), rope_parameters=rope, attn_implementation="eager", tie_word_embeddings=False,
                   num_attention_heads=1, num_key_value_heads=1)   # set below: the configuration wants a divisor of the width
    if name == "glm47":
        options["mlp_layer_types"] = ["dense"] * n_dense + ["sparse"] * (n_layers - n_dense)
    else:
        options.update(first_k_dense_replace=n_dense, topk_method="greedy")
    config_class, model_class = CLASSES[name]
    config = config_class(**options)
    config.num_attention_heads = config.num_key_value_heads = n_heads
    model = model_class(config).eval().float()
    missing, unexpected = model.load_state_dict(state_dict(tensors, n_layers), strict=False)
    assert not missing and not unexpected, (name, missing, unexpected)
    for module in model.modules():
        if hasattr(module, "variance_epsilon"):
            module.variance_epsilon = key("attention.layer_norm_rms_epsilon")
    run = spec["runs"][0]
    tokens = run["prompt"] + run["answer"]
    with torch.no_grad():
        got = model(input_ids=torch.tensor([tokens])).logits[0].double().numpy()
    worst = float(np.abs(got - Model(keys, tensors, run["n_ctx"]).forward(tokens)).max())
    print(f"{name:20} {model_class.__name__} max difference {worst:.1e}")
    assert worst < 2e-3, f"{name}: {model_class.__name__} differs by {worst}"


if __name__ == "__main__":
    for case in CLASSES:
        compare(case)
