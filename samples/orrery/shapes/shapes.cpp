#include "shapes/shapes.h"

#include <algorithm>
#include <functional>
#include <utility>

namespace orrery::tool {
namespace {

// One published model. Fields that a family does not have are 0.
struct Shape {
  const char* name;
  const char* family;
  uint32_t n_layers, n_embd, n_heads, n_kv_heads, head_dim, n_ff, n_vocab, n_context;
  bool tied = false;  // no output matrix
  uint32_t n_experts = 0, n_used = 0, expert_ff = 0, shared_ff = 0;
  uint32_t window = 0, period = 0;                // each period-th layer has no window
  uint32_t value_heads = 0;                       // of delta nets, of 128; beside 16 key heads
  uint32_t full_head_dim = 0, full_kv_heads = 0;  // of gemma4's layers without a window
  uint32_t n_shared_layers = 0, n_per_layer = 0;  // of gemma4's small models
  const char* pattern = nullptr;                  // of nemotron_h_moe: M, * and E
  float rope_base = 1e6f;
};

Shape with(Shape shape, const std::function<void(Shape*)>& more) {
  more(&shape);
  return shape;
}

std::vector<Shape> all_shapes() {
  const auto mixture = [](uint32_t n, uint32_t used, uint32_t ff, uint32_t shared) {
    return [=](Shape* s) { s->n_experts = n, s->n_used = used, s->expert_ff = ff, s->shared_ff = shared; };
  };
  const auto delta = [](Shape shape, uint32_t value_heads) {
    shape.value_heads = value_heads, shape.rope_base = 1e7f;
    return shape;
  };
  const auto windows = [](Shape shape, uint32_t window, uint32_t period) {
    shape.window = window, shape.period = period;
    return shape;
  };
  const auto gemma4 = [&](Shape shape, uint32_t window, uint32_t period, uint32_t full_kv_heads) {
    shape = windows(shape, window, period);
    shape.full_head_dim = 512, shape.full_kv_heads = full_kv_heads;
    return shape;
  };
  const auto small_gemma4 = [](Shape shape, uint32_t n_shared) {
    shape.n_shared_layers = n_shared, shape.n_per_layer = 256;
    return shape;
  };
  const auto llama = [](Shape shape) {
    shape.rope_base = 5e5f;
    return shape;
  };
  return {
      delta({"qwen3.8-27b", "qwen35", 64, 5120, 24, 4, 256, 17408, 248320, 262144}, 48),
      delta({"qwen3.5-9b", "qwen35", 32, 4096, 16, 4, 256, 12288, 248320, 262144}, 32),
      delta({"qwen3.5-0.8b", "qwen35", 24, 1024, 8, 2, 256, 3584, 248320, 262144, true}, 16),
      with(delta({"qwen3.6-35b-a3b", "qwen35moe", 40, 2048, 16, 2, 256, 0, 248320, 262144}, 32), mixture(256, 8, 512, 512)),
      with(delta({"qwen3-coder-next", "qwen3next", 48, 2048, 16, 2, 256, 5632, 151936, 262144}, 32), mixture(512, 10, 512, 512)),
      with({"qwen3-30b-a3b", "qwen3moe", 48, 2048, 32, 4, 128, 6144, 151936, 262144}, mixture(128, 8, 768, 0)),
      {"qwen3-8b", "qwen3", 36, 4096, 32, 8, 128, 12288, 151936, 40960},
      with(windows({"gpt-oss-20b", "gpt-oss", 24, 2880, 64, 8, 64, 2880, 201088, 131072}, 128, 2), mixture(32, 4, 2880, 0)),
      with(windows({"gpt-oss-120b", "gpt-oss", 36, 2880, 64, 8, 64, 2880, 201088, 131072}, 128, 2), mixture(128, 4, 2880, 0)),
      with(gemma4({"gemma-4-26b-a4b", "gemma4", 30, 2816, 16, 8, 256, 2112, 262144, 262144, true}, 1024, 6, 2), mixture(128, 8, 704, 0)),
      gemma4({"gemma-4-31b", "gemma4", 60, 5376, 32, 16, 256, 21504, 262144, 262144, true}, 1024, 6, 4),
      small_gemma4(gemma4({"gemma-4-e4b", "gemma4", 42, 2560, 8, 2, 256, 10240, 262144, 131072, true}, 512, 6, 2), 18),
      small_gemma4(gemma4({"gemma-4-e2b", "gemma4", 35, 1536, 8, 1, 256, 6144, 262144, 131072, true}, 512, 5, 1), 20),
      windows({"gemma-3-27b", "gemma3", 62, 5376, 32, 16, 128, 21504, 262144, 131072, true}, 1024, 6),
      windows({"gemma-3-12b", "gemma3", 48, 3840, 16, 8, 256, 15360, 262144, 131072, true}, 1024, 6),
      windows({"gemma-3-4b", "gemma3", 34, 2560, 8, 4, 256, 10240, 262144, 131072, true}, 1024, 6),
      windows({"muse-glimmer-30b", "muse-glimmer", 52, 6656, 32, 2, 128, 19968, 202048, 131072}, 2048, 4),
      with({"glm-4.7-flash", "deepseek2", 47, 2048, 20, 1, 576, 10240, 154880, 202752}, mixture(64, 4, 1536, 1536)),
      with({"nemotron-3-nano-30b", "nemotron_h_moe", 52, 2688, 32, 2, 128, 0, 131072, 262144},
           [&](Shape* s) {
             mixture(128, 6, 1856, 3712)(s);
             s->pattern = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME";
           }),
      {"ministral-3-8b", "mistral3", 34, 4096, 32, 8, 128, 14336, 131072, 262144},
      {"ministral-3-14b", "mistral3", 40, 5120, 32, 8, 128, 16384, 131072, 262144},
      llama({"llama-3.1-8b", "llama", 32, 4096, 32, 8, 128, 14336, 128256, 131072}),
      llama({"llama-3.3-70b", "llama", 80, 8192, 64, 8, 128, 28672, 128256, 131072}),
  };
}

// A type of weights: most matrices, those that llama.cpp gives more bits, and experts where they have a type of their own.
struct Mixture {
  const char* name;
  WeightType most, more;
};
constexpr Mixture kMixtures[] = {{"Q4_K_M", kQ4_K, kQ6_K}, {"Q5_K_M", kQ5_K, kQ6_K}, {"Q6_K", kQ6_K, kQ6_K},
                                 {"Q4_0", kQ4_0, kQ4_0},   {"Q8_0", kQ8_0, kQ8_0},   {"F16", kF16, kF16}};

// Writes the keys and tensors of one shape.
class Writer {
 public:
  Writer(const Shape& shape, const Mixture& types, GgufHeader* to)
      : s_(shape), types_(types), to_(*to), prefix_(std::string(shape.family) + ".") {}

  void write(bool vocabulary) {
    keys();
    if (vocabulary) add_vocabulary();
    matrix("token_embd", s_.n_vocab, s_.n_embd, types_.most);
    to_.tensor("output_norm.weight", {s_.n_embd}, kF32);
    if (!s_.tied) matrix("output", s_.n_vocab, s_.n_embd, types_.more);
    if (is("gemma4")) gemma4_tables();
    for (uint32_t i = 0; i < s_.n_layers; ++i) layer(i);
  }

 private:
  bool is(const char* family) const { return std::string_view(s_.family) == family; }
  bool full(uint32_t i) const { return s_.period == 0 || (i + 1) % s_.period == 0; }
  bool has_delta(uint32_t i) const { return s_.value_heads > 0 && (i + 1) % 4 != 0; }
  uint32_t head_dim(uint32_t i) const { return s_.full_head_dim > 0 && full(i) ? s_.full_head_dim : s_.head_dim; }
  uint32_t kv_heads(uint32_t i) const { return s_.full_kv_heads > 0 && full(i) ? s_.full_kv_heads : s_.n_kv_heads; }
  // Small models of gemma4 have wider FFNs in layers that share KV, where the width is that of E2B.
  uint32_t ff(uint32_t i) const {
    return s_.n_shared_layers > 0 && s_.n_embd == 1536 && i >= s_.n_layers - s_.n_shared_layers ? 2 * s_.n_ff : s_.n_ff;
  }

  template <class T>
  void key(const char* name, const T& value) {
    to_.key(prefix_ + name, value);
  }

  void keys() {
    to_.key("general.architecture", s_.family);
    to_.key("general.name", std::string(s_.name) + " (shape)");
    key("block_count", s_.n_layers);
    key("context_length", s_.n_context);
    key("embedding_length", s_.n_embd);
    key("vocab_size", s_.n_vocab);
    key("attention.head_count", s_.n_heads);
    key("attention.layer_norm_rms_epsilon", 1e-6f);
    key("attention.key_length", head_dim(s_.period > 0 ? s_.period - 1 : 0));
    key("attention.value_length", is("deepseek2") ? kKvRank : head_dim(s_.period > 0 ? s_.period - 1 : 0));
    key("rope.freq_base", is("gpt-oss") ? 150000.0f : s_.rope_base);
    if (s_.pattern) nemotron_keys();
    else if (s_.full_kv_heads > 0 && s_.full_kv_heads != s_.n_kv_heads)
      key("attention.head_count_kv", by_layer([this](uint32_t i) { return kv_heads(i); }));
    else key("attention.head_count_kv", s_.n_kv_heads);
    if (s_.n_ff > 0 && ff(s_.n_layers - 1) == s_.n_ff) key("feed_forward_length", s_.n_ff);
    if (s_.n_ff > 0 && ff(s_.n_layers - 1) != s_.n_ff) key("feed_forward_length", by_layer([this](uint32_t i) { return ff(i); }));
    if (s_.n_experts > 0) {
      key("expert_count", s_.n_experts);
      key("expert_used_count", s_.n_used);
      key("expert_feed_forward_length", s_.expert_ff);
    }
    if (s_.shared_ff > 0 && !is("deepseek2")) key("expert_shared_feed_forward_length", s_.shared_ff);
    if (s_.window > 0) key("attention.sliding_window", s_.window);
    if (s_.window > 0 && !is("gpt-oss")) {
      std::vector<bool> pattern(s_.n_layers);
      for (uint32_t i = 0; i < s_.n_layers; ++i) pattern[i] = !full(i);
      key("attention.sliding_window_pattern", pattern);
    }
    if (s_.value_heads > 0) {
      key("rope.dimension_count", uint32_t{64});
      if (!is("qwen3next")) key("rope.dimension_sections", std::vector<int32_t>{11, 11, 10, 0});
      key("full_attention_interval", uint32_t{4});
      ssm_keys(4, 128, 16, s_.value_heads, s_.value_heads * 128);
    }
    if (is("gpt-oss")) {
      key("rope.scaling.type", "yarn");
      key("rope.scaling.factor", 32.0f);
      key("rope.scaling.original_context_length", uint32_t{4096});
    }
    if (is("muse-glimmer")) key("logit_scale", 0.19612f), key("final_logit_softcapping", 20.0f);
    if (is("mistral3")) {
      key("rope.dimension_count", s_.head_dim);
      key("rope.scaling.type", "yarn");
      key("rope.scaling.factor", 16.0f);
      key("rope.scaling.original_context_length", uint32_t{16384});
      key("rope.scaling.yarn_beta_fast", 32.0f);
      key("rope.scaling.yarn_beta_slow", 1.0f);
      key("rope.scaling.yarn_log_multiplier", 1.0f);
      key("attention.temperature_scale", 0.1f);
    }
    if (is("gemma4")) gemma4_keys();
    if (is("deepseek2")) latent_keys();
  }

  std::vector<int32_t> by_layer(const std::function<uint32_t(uint32_t)>& of) const {
    std::vector<int32_t> values(s_.n_layers);
    for (uint32_t i = 0; i < s_.n_layers; ++i) values[i] = static_cast<int32_t>(of(i));
    return values;
  }
  void ssm_keys(uint32_t kernel, uint32_t state, uint32_t groups, uint32_t steps, uint32_t inner) {
    key("ssm.conv_kernel", kernel), key("ssm.state_size", state), key("ssm.group_count", groups);
    key("ssm.time_step_rank", steps), key("ssm.inner_size", inner);
  }
  void nemotron_keys() {
    key("attention.head_count_kv", by_layer([this](uint32_t i) { return s_.pattern[i] == '*' ? s_.n_kv_heads : 0; }));
    key("feed_forward_length", by_layer([this](uint32_t i) { return s_.pattern[i] == 'E' ? s_.expert_ff : 0; }));
    key("attention.layer_norm_epsilon", 1e-5f);
    key("expert_shared_count", uint32_t{1});
    key("expert_weights_norm", true), key("expert_weights_scale", 2.5f), key("expert_gating_func", uint32_t{2});
    ssm_keys(4, 128, 8, 64, 4096);
  }
  static constexpr uint32_t kQueryRank = 768, kKvRank = 512, kLatentHead = 256, kLatentRope = 64;  // of GLM-4.7-Flash
  void latent_keys() {
    key("attention.q_lora_rank", kQueryRank), key("attention.kv_lora_rank", kKvRank);
    key("attention.key_length_mla", kLatentHead), key("attention.value_length_mla", kLatentHead);
    key("rope.dimension_count", kLatentRope);
    key("leading_dense_block_count", uint32_t{1});
    key("expert_shared_count", uint32_t{1});
    key("expert_weights_norm", true), key("expert_weights_scale", 1.8f), key("expert_gating_func", uint32_t{2});
  }
  void gemma4_keys() {
    key("attention.key_length_swa", s_.head_dim), key("attention.value_length_swa", s_.head_dim);
    key("rope.dimension_count", s_.full_head_dim), key("rope.dimension_count_swa", s_.head_dim);
    key("rope.freq_base_swa", 1e4f);
    key("attention.shared_kv_layers", s_.n_shared_layers);
    key("embedding_length_per_layer_input", s_.n_per_layer);
    key("final_logit_softcapping", 30.0f);
  }
  void gemma4_tables() {
    to_.tensor("rope_freqs.weight", {s_.full_head_dim / 2}, kF32);
    if (s_.n_per_layer == 0) return;
    const uint64_t all = uint64_t{s_.n_per_layer} * s_.n_layers;
    matrix("per_layer_token_embd", s_.n_vocab, all, types_.more);
    matrix("per_layer_model_proj", all, s_.n_embd, kF16);
    to_.tensor("per_layer_proj_norm.weight", {s_.n_per_layer}, kF32);
  }

  void add_vocabulary() {
    std::vector<std::string> tokens = {"<unk>", "<s>", "</s>"};
    std::vector<int32_t> types = {2, 3, 3};
    for (uint32_t byte = 0; byte < 256; ++byte) {
      constexpr char kDigits[] = "0123456789ABCDEF";
      tokens.push_back(std::string("<0x") + kDigits[byte / 16] + kDigits[byte % 16] + ">");
      types.push_back(6);
    }
    while (tokens.size() < s_.n_vocab) tokens.push_back("\xe2\x96\x81t" + std::to_string(tokens.size())), types.push_back(1);
    std::vector<float> scores(tokens.size());
    for (size_t i = 259; i < scores.size(); ++i) scores[i] = -static_cast<float>(i);
    to_.key("tokenizer.ggml.model", "llama");
    to_.key("tokenizer.ggml.tokens", tokens);
    to_.key("tokenizer.ggml.scores", scores);
    to_.key("tokenizer.ggml.token_type", types);
    to_.key("tokenizer.ggml.bos_token_id", uint32_t{1});
    to_.key("tokenizer.ggml.eos_token_id", uint32_t{2});
    to_.key("tokenizer.ggml.unknown_token_id", uint32_t{0});
  }

  // `type`, or the type that llama.cpp takes where a row of `columns` weights is no whole number of blocks.
  static WeightType for_columns(const WeightType& type, uint64_t columns) {
    if (columns % type.block == 0) return type;
    return type.id == kQ4_K.id && columns % 32 == 0 ? kQ5_0 : columns % 32 == 0 ? kQ8_0 : kF16;
  }
  void matrix(const std::string& name, uint64_t rows, uint64_t columns, const WeightType& type) {
    to_.tensor(name + ".weight", {columns, rows}, for_columns(type, columns));
  }
  // Of the layer.
  void weight(const char* name, uint64_t rows, uint64_t columns) { matrix(block_ + name, rows, columns, types_.most); }
  void more(const char* name, uint64_t rows, uint64_t columns) {
    matrix(block_ + name, rows, columns, has_more_ ? types_.more : types_.most);
  }
  void experts(const char* name, uint64_t rows, uint64_t columns, const WeightType& type) {
    to_.tensor(block_ + name + ".weight", {columns, rows, s_.n_experts}, for_columns(type, columns));
  }
  void small(const char* name, const std::vector<uint64_t>& dims) { to_.tensor(block_ + name, dims, kF32); }
  void norm(const char* name, uint64_t n) { small((std::string(name) + ".weight").c_str(), {n}); }

  void layer(uint32_t i) {
    block_ = "blk." + std::to_string(i) + ".";
    const uint32_t eighth = s_.n_layers / 8;  // as llama.cpp chooses the layers of more bits
    has_more_ = i < eighth || i >= 7 * s_.n_layers / 8 || (i - eighth) % 3 == 2;
    norm("attn_norm", s_.n_embd);
    if (s_.pattern) return nemotron_layer(s_.pattern[i]);
    if (is("deepseek2")) latent_attention();
    else has_delta(i) ? delta_net() : attention(i);
    feed_forward(i);
  }

  void attention(uint32_t i) {
    const uint64_t d = head_dim(i), q = uint64_t{s_.n_heads} * d, kv = uint64_t{kv_heads(i)} * d;
    const bool shared = i >= s_.n_layers - s_.n_shared_layers;
    weight("attn_q", s_.value_heads > 0 ? 2 * q : q, s_.n_embd);  // with the gate
    if (!shared) weight("attn_k", kv, s_.n_embd);
    const bool values_of_keys = is("gemma4") && s_.n_per_layer == 0 && full(i);
    if (!shared && !values_of_keys) more("attn_v", kv, s_.n_embd);
    if (is("muse-glimmer")) weight("attn_gate", q, s_.n_embd);
    weight("attn_output", s_.n_embd, q);
    if (!is("gpt-oss") && !is("mistral3") && !is("llama")) {
      norm("attn_q_norm", d);
      if (!shared) norm("attn_k_norm", d);
    }
    if (is("gpt-oss")) {
      small("attn_q.bias", {q}), small("attn_k.bias", {kv}), small("attn_v.bias", {kv}), small("attn_output.bias", {s_.n_embd});
      small("attn_sinks.weight", {s_.n_heads});
    }
  }

  void latent_attention() {
    weight("attn_q_a", kQueryRank, s_.n_embd);
    norm("attn_q_a_norm", kQueryRank);
    weight("attn_q_b", uint64_t{s_.n_heads} * kLatentHead, kQueryRank);
    weight("attn_kv_a_mqa", s_.head_dim, s_.n_embd);
    norm("attn_kv_a_norm", kKvRank);
    const uint64_t without_rope = kLatentHead - kLatentRope;
    to_.tensor(block_ + "attn_k_b.weight", {without_rope, kKvRank, s_.n_heads}, for_columns(types_.most, without_rope));
    to_.tensor(block_ + "attn_v_b.weight", {kKvRank, kLatentHead, s_.n_heads}, types_.most);
    weight("attn_output", s_.n_embd, uint64_t{s_.n_heads} * kLatentHead);
  }

  void delta_net() {
    const uint64_t keys = 16 * 128, values = uint64_t{s_.value_heads} * 128, rows = 2 * keys + values;
    weight("attn_qkv", rows, s_.n_embd);
    weight("attn_gate", values, s_.n_embd);
    small("ssm_conv1d.weight", {4, rows});
    small("ssm_dt.bias", {s_.value_heads});
    small("ssm_a", {s_.value_heads});
    if (is("qwen3next")) {
      matrix(block_ + "ssm_ba", 2 * uint64_t{s_.value_heads}, s_.n_embd, kQ8_0);
    } else {
      matrix(block_ + "ssm_alpha", s_.value_heads, s_.n_embd, kQ8_0);
      matrix(block_ + "ssm_beta", s_.value_heads, s_.n_embd, kQ8_0);
    }
    norm("ssm_norm", 128);
    weight("ssm_out", s_.n_embd, values);
  }

  void feed_forward(uint32_t i) {
    const bool sandwich = is("gemma3") || is("gemma4") || is("muse-glimmer");
    const bool post = s_.value_heads > 0 || is("gpt-oss");  // the norm before the FFN has the other's name
    if (sandwich || post) norm("post_attention_norm", s_.n_embd);
    if (!post) norm("ffn_norm", s_.n_embd);
    const bool dense = is("deepseek2") && i == 0;
    if (s_.n_experts > 0 && !dense) mixture();
    if (s_.n_experts == 0 || is("gemma4") || dense) {
      const uint64_t width = ff(i);
      weight("ffn_gate", width, s_.n_embd);
      weight("ffn_up", width, s_.n_embd);
      more("ffn_down", s_.n_embd, width);
    }
    if (sandwich) norm("post_ffw_norm", s_.n_embd);
    if (!is("gemma4")) return;
    small("layer_output_scale.weight", {1});
    if (s_.n_per_layer > 0) {
      matrix(block_ + "inp_gate", s_.n_per_layer, s_.n_embd, kF16);
      matrix(block_ + "proj", s_.n_embd, s_.n_per_layer, kF16);
      norm("post_norm", s_.n_embd);
    }
  }

  void mixture() {
    const WeightType most = is("gpt-oss") ? kMxfp4 : types_.most, down = is("gpt-oss") ? kMxfp4 : has_more_ ? types_.more : types_.most;
    small("ffn_gate_inp.weight", {s_.n_embd, s_.n_experts});
    if (is("gemma4")) {
      small("ffn_gate_inp.scale", {s_.n_embd});
      for (const char* name : {"pre_ffw_norm_2", "post_ffw_norm_1", "post_ffw_norm_2"}) norm(name, s_.n_embd);
      experts("ffn_gate_up_exps", 2 * uint64_t{s_.expert_ff}, s_.n_embd, most);
      small("ffn_down_exps.scale", {s_.n_experts});
    } else {
      if (!s_.pattern) experts("ffn_gate_exps", s_.expert_ff, s_.n_embd, most);
      experts("ffn_up_exps", s_.expert_ff, s_.n_embd, most);
    }
    experts("ffn_down_exps", s_.n_embd, s_.expert_ff, down);
    if (is("gpt-oss")) {
      small("ffn_gate_inp.bias", {s_.n_experts});
      small("ffn_gate_exps.bias", {s_.expert_ff, s_.n_experts}), small("ffn_up_exps.bias", {s_.expert_ff, s_.n_experts});
      small("ffn_down_exps.bias", {s_.n_embd, s_.n_experts});
    }
    if (is("deepseek2")) small("exp_probs_b.bias", {s_.n_experts});
    if (s_.shared_ff == 0) return;
    if (s_.value_heads > 0) small("ffn_gate_inp_shexp.weight", {s_.n_embd});
    if (!s_.pattern) matrix(block_ + "ffn_gate_shexp", s_.shared_ff, s_.n_embd, types_.most);
    matrix(block_ + "ffn_up_shexp", s_.shared_ff, s_.n_embd, types_.most);
    matrix(block_ + "ffn_down_shexp", s_.n_embd, s_.shared_ff, types_.more);
  }

  void nemotron_layer(char kind) {
    if (kind == '*') {
      const uint64_t q = uint64_t{s_.n_heads} * s_.head_dim, kv = uint64_t{s_.n_kv_heads} * s_.head_dim;
      weight("attn_q", q, s_.n_embd), weight("attn_k", kv, s_.n_embd), more("attn_v", kv, s_.n_embd), weight("attn_output", s_.n_embd, q);
    } else if (kind == 'E') {
      small("exp_probs_b.bias", {s_.n_experts});
      mixture();
    } else {
      const uint64_t inner = 4096, groups = 8, state = 128, heads = 64, conv = inner + 2 * groups * state;
      weight("ssm_in", inner + conv + heads, s_.n_embd);
      small("ssm_conv1d.weight", {4, conv}), small("ssm_conv1d.bias", {conv});
      small("ssm_dt.bias", {heads}), small("ssm_a", {1, heads}), small("ssm_d", {1, heads});
      small("ssm_norm.weight", {inner / groups, groups});
      weight("ssm_out", s_.n_embd, inner);
    }
  }

  const Shape& s_;
  const Mixture& types_;
  GgufHeader& to_;
  const std::string prefix_;
  std::string block_;      // "blk.3."
  bool has_more_ = false;  // the layer's V and down have more bits
};

}  // namespace

std::vector<std::string> shape_names() {
  std::vector<std::string> names;
  for (const Shape& shape : all_shapes()) names.push_back(shape.name);
  return names;
}

std::vector<std::string> shape_types() {
  std::vector<std::string> names;
  for (const Mixture& mixture : kMixtures) names.push_back(mixture.name);
  return names;
}

std::optional<GgufHeader> shape_header(std::string_view shape, bool vocabulary) {
  const size_t colon = shape.find(':');
  const std::string_view name = shape.substr(0, colon), type = colon == std::string_view::npos ? "Q4_K_M" : shape.substr(colon + 1);
  const std::vector<Shape> shapes = all_shapes();
  const auto found = std::find_if(shapes.begin(), shapes.end(), [&](const Shape& s) { return name == s.name; });
  const auto* const types = std::find_if(std::begin(kMixtures), std::end(kMixtures), [&](const Mixture& m) { return type == m.name; });
  if (found == shapes.end() || types == std::end(kMixtures)) return std::nullopt;
  GgufHeader header;
  Writer(*found, *types, &header).write(vocabulary);
  return header;
}

}  // namespace orrery::tool
