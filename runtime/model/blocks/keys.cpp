// The harmless keys, the values at which they are harmless, and the reasons. The list follows the keys that
// llama.cpp's converters, and its own model writer, put into files of the supported architectures.
#include "runtime/model/blocks/keys.h"

#include <cmath>

#include "runtime/model/description/description.h"

namespace orrery::model {

namespace {

// Keys that change nothing at any value.
constexpr const char* kHarmless[] = {
    "rope.scaling.finetuned",        // a fact of training, not of inference
    "attention.layer_norm_epsilon",  // for norms with a mean; every norm of these architectures is an RMS norm
    "attention.group_norm_epsilon",  // for group norms; these architectures have none
    "attention.group_norm_groups",
};

// Keys of the towers for images and sound, by the beginning of their names.
constexpr std::string_view kTowers[] = {"vision.", "audio.", "mm."};

// Keys that change nothing at a neutral value, or at a second value that means "not set". For an array, each element
// is checked.
struct Neutral {
  const char* key;
  double value, unset;
};
constexpr Neutral kNeutral[] = {
    // Factors.
    {"logit_scale", 1, 0},
    {"residual_scale", 1, 0},
    {"embedding_scale", 1, 0},
    {"attention.output_scale", 1, 0},
    {"attention.value_scale", 1, 0},
    {"rope.scaling.alpha", 1, 0},
    {"rope.scaling.yarn_attn_factor", 1, 1},
    {"rope.scaling.yarn_log_multiplier", 0, 0},
    // Parts that these architectures lack.
    {"attn_logit_softcapping", 0, 0},
    {"final_logit_softcapping", 0, 0},
    {"router_logit_softcapping", 0, 0},
    {"attention.clamp_kqv", 0, 0},
    {"attention.max_alibi_bias", 0, 0},
    {"attention.temperature_scale", 0, 0},
    {"attention.temperature_length", 0, 0},
    {"attention.q_lora_rank", 0, 0},
    {"attention.kv_lora_rank", 0, 0},
    {"attention.shared_kv_layers", 0, 0},
    {"attention.relative_buckets_count", 0, 0},
    {"rope.dimension_sections", 0, 0},
    {"swiglu_clamp_exp", 0, 0},
    {"swiglu_clamp_shexp", 0, 0},
    {"n_deepstack_layers", 0, 0},
    {"nextn_predict_layers", 0, 0},
    {"embedding_length_per_layer_input", 0, 0},
    {"token_shift_count", 0, 0},
    {"rescale_every_n_layers", 0, 0},
    // Experts: these architectures have none.
    {"expert_count", 0, 0},
    {"expert_used_count", 0, 0},
    {"expert_shared_count", 0, 0},
    {"expert_group_count", 0, 1},
    {"expert_group_used_count", 0, 1},
    {"expert_feed_forward_length", 0, 0},
    {"expert_shared_feed_forward_length", 0, 0},
    {"expert_chunk_feed_forward_length", 0, 0},
    {"expert_weights_scale", 0, 1},
    {"expert_weights_norm", 0, 0},
    {"expert_gating_func", 0, 0},
    {"leading_dense_block_count", 0, 0},
    {"moe_every_n_layers", 0, 0},
    {"interleave_moe_layer_step", 0, 0},
    // Flags.
    {"use_parallel_residual", 0, 0},
    {"swin_norm", 0, 0},
    {"attention.causal", 1, 1},
};

// Keys that repeat a fact from elsewhere. The repeated value must agree. Returns false for all other keys.
bool repeats(const gguf::File& file, std::string_view key, const Description& h, Neutral* out) {
  out->unset = 0;
  if (key == "vocab_size") {  // rows of the embedding (some may be spare), or tokens of the tokenizer
    const gguf::Value* tokens = file.find("tokenizer.ggml.tokens");
    out->value = h.n_vocab;
    out->unset = tokens ? static_cast<double>(tokens->size()) : out->value;
  } else if (key == "embedding_length_out") {
    out->value = h.n_embd;
  } else if (key == "attention.key_length_swa" || key == "attention.value_length_swa") {
    out->value = h.kv().head_dim;
  } else if (key == "rope.dimension_count_swa") {
    out->value = h.rope().n_rot;
  } else if (key == "rope.freq_base_swa") {
    out->value = double{h.rope().base};
  } else if (key == "rope.scaling.yarn_ext_factor") {  // below 0: not set; YaRN's blend is either whole or off
    out->value = h.rope().scaling == RopeScaling::yarn ? 1.0 : 0.0;
    out->unset = -1;
  } else {
    return false;
  }
  return true;
}

bool is_neutral(const gguf::Value& value, const Neutral& neutral) {
  if (value.type() == gguf::ValueType::array) {
    for (uint64_t i = 0; i < value.size(); ++i)
      if (value.at(i).type() == gguf::ValueType::array || !is_neutral(value.at(i), neutral)) return false;
    return true;
  }
  double x = 0;
  if (bool flag = false; value.type() == gguf::ValueType::boolean && value.as_bool(&flag)) {
    x = flag ? 1 : 0;
  } else if (!value.as_f64(&x)) {
    return false;
  }
  const auto close = [&](double y) { return std::fabs(x - y) <= 1e-6 * std::fabs(y); };
  return close(neutral.value) || close(neutral.unset);
}

std::string values_of(const Neutral& neutral) {
  return neutral.value == neutral.unset ? format("%.9g", neutral.value) : format("%.9g or %.9g", neutral.value, neutral.unset);
}

}  // namespace

const gguf::Value* Keys::find(const char* key) {
  understood_.emplace(key);
  return file_.find(name(key));
}

Status Keys::integer(const char* key, uint64_t least, uint64_t most, int32_t* out) {
  (void)find(key);
  ORRERY_ASSIGN(const uint64_t n, file_.required_u64(name(key)));
  return in_range(key, n, least, most, out);
}

Status Keys::integer_or(const char* key, uint64_t fallback, uint64_t least, uint64_t most, int32_t* out) {
  (void)find(key);
  ORRERY_ASSIGN(const uint64_t n, file_.get_u64(name(key), fallback));
  return in_range(key, n, least, most, out);
}

Status Keys::number_or(const char* key, double fallback, double least, double most, float* out) {
  (void)find(key);
  ORRERY_ASSIGN(const double x, file_.get_f64(name(key), fallback));
  if (!(x >= least && x <= most))
    return error(Code::bad_model, "%s: key '%s' is %g, expected a number from %g to %g", file_.path().c_str(), name(key).c_str(), x, least,
                 most);
  *out = static_cast<float>(x);
  return ok_status();
}

Status Keys::text_or(const char* key, std::string_view fallback, std::string_view* out) {
  (void)find(key);
  ORRERY_ASSIGN(*out, file_.get_string(name(key), fallback));
  return ok_status();
}

Status Keys::per_layer(const char* key, size_t n_layers, uint64_t least, uint64_t most, std::vector<int32_t>* out) {
  const gguf::Value* value = find(key);
  if (value == nullptr || value->type() != gguf::ValueType::array) {
    int32_t one = 0;
    ORRERY_TRY(integer(key, least, most, &one));
    out->assign(n_layers, one);
    return ok_status();
  }
  if (value->size() != n_layers)
    return error(Code::bad_model, "%s: key '%s' has %llu values, expected one for each of %zu layers", file_.path().c_str(),
                 name(key).c_str(), static_cast<unsigned long long>(value->size()), n_layers);
  out->resize(n_layers);
  for (size_t i = 0; i < n_layers; ++i) {
    uint64_t n = 0;
    if (!value->at(i).as_u64(&n))
      return error(Code::bad_model, "%s: key '%s' value %zu is not a whole number", file_.path().c_str(), name(key).c_str(), i);
    ORRERY_TRY(in_range(key, n, least, most, &(*out)[i]));
  }
  return ok_status();
}

Status Keys::flags(const char* key, size_t n_layers, std::vector<bool>* out) {
  const gguf::Value* value = find(key);
  if (value == nullptr || value->type() != gguf::ValueType::array || value->size() != n_layers)
    return error(Code::bad_model, "%s: key '%s' is not a list of one value for each of %zu layers", file_.path().c_str(), name(key).c_str(),
                 n_layers);
  for (size_t i = 0; i < n_layers; ++i) {
    bool flag = false;
    if (!value->at(i).as_bool(&flag))
      return error(Code::bad_model, "%s: key '%s' value %zu is not true or false", file_.path().c_str(), name(key).c_str(), i);
    out->push_back(flag);
  }
  return ok_status();
}

Status Keys::in_range(const char* key, uint64_t n, uint64_t least, uint64_t most, int32_t* out) const {
  if (n < least || n > most)
    return error(Code::bad_model, "%s: key '%s' is %llu, expected %llu to %llu", file_.path().c_str(), name(key).c_str(),
                 static_cast<unsigned long long>(n), static_cast<unsigned long long>(least), static_cast<unsigned long long>(most));
  *out = static_cast<int32_t>(n);
  return ok_status();
}

Status Keys::refuse_the_rest(const Description& h) const {
  for (uint64_t i = 0; i < file_.n_keys(); ++i) {
    const std::string_view full = file_.key(i);
    if (full.substr(0, prefix_.size()) != prefix_) continue;
    const std::string_view key = full.substr(prefix_.size());
    if (understood_.count(key) != 0) continue;
    bool harmless = false;
    for (const char* listed : kHarmless) harmless = harmless || key == listed;
    for (const std::string_view tower : kTowers) harmless = harmless || key.substr(0, tower.size()) == tower;
    // llama's Q and K are permuted as in Meta's files. Our rotary embedding expects this order.
    std::string_view layout;
    if (key == "tensor_data_layout" && h.rope().interleaved && file_.value(i).as_string(&layout))
      harmless = layout == "Meta AI original pth";
    if (harmless) continue;

    Neutral neutral = {"", 0, 0};
    bool known = repeats(file_, key, h, &neutral);
    for (const Neutral& listed : kNeutral)
      if (key == listed.key) neutral = listed, known = true;
    if (known && is_neutral(file_.value(i), neutral)) continue;
    return error(Code::unsupported_architecture, "%s: key '%s' is %s: architecture '%s' is not run with it%s", file_.path().c_str(),
                 gguf::printable(full).c_str(), describe(file_.value(i)).c_str(), h.family,
                 known ? (", expected " + values_of(neutral)).c_str() : "; what it means is not known here");
  }
  return ok_status();
}

Status check_general_keys(const gguf::File& file) {
  // An adapter, an image projector or an importance matrix names the architecture that it belongs to.
  ORRERY_ASSIGN(const std::string_view type, file.get_string("general.type", "model"));
  if (type != "model")
    return error(Code::unsupported_architecture, "%s: key 'general.type' is '%s', expected 'model'", file.path().c_str(),
                 gguf::printable(type).c_str());
  // Version 1 used the same type numbers for other blocks. Files without quantized tensors may say 0 or leave the key
  // out.
  ORRERY_ASSIGN(const uint64_t version, file.get_u64("general.quantization_version", 2));
  if (version != 2 && version != 0)
    return error(Code::unsupported_quantization, "%s: key 'general.quantization_version' is %llu, expected 2", file.path().c_str(),
                 static_cast<unsigned long long>(version));
  return ok_status();
}

}  // namespace orrery::model
