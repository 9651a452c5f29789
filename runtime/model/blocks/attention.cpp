#include "runtime/model/blocks/attention.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace orrery::model::attention {

namespace {

constexpr uint64_t kMaxHeadDim = 512, kHeadDimStep = 8;

}  // namespace

Status read_equal_heads(Reading& in, const char* key, int32_t* out) {
  const std::vector<LayerShape>& layers = in.d.layers;
  const auto attends = [](const LayerShape& layer) { return layer.mixer == Mixer::attention; };
  std::vector<int32_t> values;
  ORRERY_TRY(in.keys.per_layer(key, layers.size(), std::all_of(layers.begin(), layers.end(), attends) ? 1 : 0, kMaxWidth, &values));
  const auto first = static_cast<size_t>(std::find_if(layers.begin(), layers.end(), attends) - layers.begin());
  for (size_t i = first; i < layers.size(); ++i)
    if (attends(layers[i]) && values[i] != values[first])
      return error(Code::unsupported_architecture, "%s: key '%s' differs between layers (%d and %d)", in.keys.file().path().c_str(),
                   in.keys.name(key).c_str(), values[first], values[i]);
  *out = values[first];
  return *out > 0 ? ok_status()
                  : error(Code::bad_model, "%s: key '%s' is 0 in layer %zu, which has attention", in.keys.file().path().c_str(),
                          in.keys.name(key).c_str(), first);
}

namespace {

Status check_head_sizes(Reading& in, const AttentionShape& a, int32_t value_dim) {
  const char* const path = in.keys.file().path().c_str();
  if (a.n_heads % a.n_kv_heads != 0)
    return error(Code::bad_model, "%s: %d query heads do not divide among %d KV heads", path, a.n_heads, a.n_kv_heads);
  if (value_dim != a.head_dim)
    return error(Code::unsupported_architecture, "%s: key heads of %d with value heads of %d", path, a.head_dim, value_dim);
  if (static_cast<uint64_t>(a.head_dim) > kMaxHeadDim || a.head_dim % static_cast<int32_t>(kHeadDimStep) != 0)
    return error(Code::unsupported_architecture, "%s: a head dimension of %d; at most %llu, a multiple of %llu, is run", path, a.head_dim,
                 static_cast<unsigned long long>(kMaxHeadDim), static_cast<unsigned long long>(kHeadDimStep));
  if (static_cast<int64_t>(a.n_heads) * a.head_dim > static_cast<int64_t>(kMaxWidth))
    return error(Code::bad_model, "%s: %d heads of %d are wider than any model we know", path, a.n_heads, a.head_dim);
  return ok_status();
}

// The number of rotated dimensions by this key, or all of a head.
Status read_rotated(Keys& keys, const char* key, int32_t fallback, int32_t head_dim, int32_t* n_rot) {
  ORRERY_TRY(keys.integer_or(key, static_cast<uint64_t>(fallback), 2, static_cast<uint64_t>(head_dim), n_rot));
  if (*n_rot % 2 == 0) return ok_status();
  return error(Code::bad_model, "%s: key '%s' is %d, expected an even number", keys.file().path().c_str(), keys.name(key).c_str(), *n_rot);
}

// Sets the heads of `a`, and the RoPE's n_rot.
Status read_heads(Reading& in, const Parts& parts, AttentionShape* a) {
  Keys& keys = in.keys;
  const gguf::File& file = keys.file();
  const int32_t n_embd = in.d.n_embd;
  ORRERY_TRY(read_equal_heads(in, "attention.head_count", &a->n_heads));
  a->n_kv_heads = a->n_heads;
  if (keys.has("attention.head_count_kv")) ORRERY_TRY(read_equal_heads(in, "attention.head_count_kv", &a->n_kv_heads));
  if (!keys.has("attention.key_length") && n_embd % a->n_heads != 0)
    return error(Code::bad_model, "%s: an embedding of %d does not divide among %d heads, and no '%s' is given", file.path().c_str(),
                 n_embd, a->n_heads, keys.name("attention.key_length").c_str());
  const uint64_t implied = static_cast<uint64_t>(n_embd / a->n_heads);
  int32_t value_dim = 0;
  ORRERY_TRY(keys.integer_or("attention.key_length", implied, 1, kMaxWidth, &a->head_dim));
  ORRERY_TRY(keys.integer_or("attention.value_length", static_cast<uint64_t>(a->head_dim), 1, kMaxWidth, &value_dim));
  ORRERY_TRY(check_head_sizes(in, *a, value_dim));
  ORRERY_TRY(keys.number_or("attention.scale", 0.0, 0.0, 1e3, &a->scale));
  if (a->scale == 0.0f) a->scale = 1.0f / std::sqrt(static_cast<float>(a->head_dim));

  int32_t& n_rot = in.d.ropes[0].n_rot;
  if (parts.rope_period == 1) {  // no layer has RoPE, whatever the key says
    (void)keys.find("rope.dimension_count");
    n_rot = a->head_dim;
    return ok_status();
  }
  return read_rotated(keys, "rope.dimension_count", a->head_dim, a->head_dim, &n_rot);
}

// Heads whose sizes differ between layers with a window and the others, and whose numbers may differ by layer. The layers' windows are
// known.
Status read_heads_by_kind(Reading& in, const Parts& parts) {
  Keys& keys = in.keys;
  std::vector<LayerShape>& layers = in.d.layers;
  std::vector<int32_t> n_heads, n_kv_heads;
  ORRERY_TRY(keys.per_layer("attention.head_count", layers.size(), 1, kMaxWidth, &n_heads));
  n_kv_heads = n_heads;
  if (keys.has("attention.head_count_kv")) ORRERY_TRY(keys.per_layer("attention.head_count_kv", layers.size(), 1, kMaxWidth, &n_kv_heads));
  float scale = 0.0f;
  ORRERY_TRY(keys.number_or("attention.scale", 0.0, 0.0, 1e3, &scale));
  if (scale == 0.0f) scale = parts.scale;
  for (const bool windowed : {false, true}) {
    int32_t head_dim = 0, value_dim = 0;
    ORRERY_TRY(keys.integer(windowed ? "attention.key_length_swa" : "attention.key_length", 1, kMaxWidth, &head_dim));
    ORRERY_TRY(keys.integer_or(windowed ? "attention.value_length_swa" : "attention.value_length", static_cast<uint64_t>(head_dim), 1,
                               kMaxWidth, &value_dim));
    if (!windowed) ORRERY_TRY(read_rotated(keys, "rope.dimension_count", head_dim, head_dim, &in.d.ropes[0].n_rot));
    for (size_t i = 0; i < layers.size(); ++i) {
      AttentionShape& a = layers[i].attention;
      if ((a.window > 0) != windowed) continue;
      a.n_heads = n_heads[i], a.n_kv_heads = n_kv_heads[i], a.head_dim = head_dim;
      a.scale = scale > 0.0f ? scale : 1.0f / std::sqrt(static_cast<float>(head_dim));
      ORRERY_TRY(check_head_sizes(in, a, value_dim));
    }
  }
  return ok_status();
}

// The last layers read the KV of the last layer of their kind, with a window or without, that has its own.
Status read_shared(Reading& in) {
  Keys& keys = in.keys;
  std::vector<LayerShape>& layers = in.d.layers;
  const char* const path = keys.file().path().c_str();
  int32_t n_shared = 0;
  ORRERY_TRY(keys.integer_or("attention.shared_kv_layers", 0, 0, layers.size() - 1, &n_shared));
  const size_t first = layers.size() - static_cast<size_t>(n_shared);
  for (size_t i = first; i < layers.size(); ++i) {
    AttentionShape& a = layers[i].attention;
    const bool windowed = a.window > 0;
    size_t n = first;
    while (n > 0 && (layers[n - 1].attention.window > 0) != windowed) --n;
    if (n == 0)
      return error(Code::bad_model,
                   "%s: key '%s' is %d, but none of the first %zu layers is one with%s a window, whose KV layer %zu could read", path,
                   keys.name("attention.shared_kv_layers").c_str(), n_shared, first, windowed ? "" : "out", i);
    const AttentionShape& of = layers[n - 1].attention;
    if (of.n_kv_heads != a.n_kv_heads || of.n_heads != a.n_heads)
      return error(Code::unsupported_architecture,
                   "%s: layer %zu has %d heads with %d KV heads, but reads the KV of layer %zu, which has %d with %d", path, i, a.n_heads,
                   a.n_kv_heads, n - 1, of.n_heads, of.n_kv_heads);
    a.kv_of = static_cast<int32_t>(n - 1);
  }
  return ok_status();
}

}  // namespace

// llama.cpp's converter writes no window for these families. Other
// converters do if the model has windows (Mistral 7B v0.1: 4,096 of 32,768 tokens), and attending to everything would
// then be a different model. A window as long as the trained context hides nothing.
Status refuse_windows(Reading& in) {
  Keys& keys = in.keys;
  (void)keys.find("attention.sliding_window_pattern");  // which layers have the window
  if (!keys.has("attention.sliding_window")) return ok_status();
  const std::string key = keys.name("attention.sliding_window");
  ORRERY_ASSIGN(const uint64_t window, keys.file().get_u64(key, 0));
  if (window == 0 || window >= static_cast<uint64_t>(in.d.trained_context)) return ok_status();
  return error(Code::unsupported_architecture,
               "%s: key '%s' is %llu, less than the context of %d tokens: architecture '%s' is run without windows",
               keys.file().path().c_str(), key.c_str(), static_cast<unsigned long long>(window), in.d.trained_context, in.d.family);
}

namespace {

Status read_windows(Reading& in, const Parts& parts) {
  Keys& keys = in.keys;
  int32_t window = 0, period = parts.window_period;
  ORRERY_TRY(keys.integer_or("attention.sliding_window", 0, 0, kMaxContext, &window));
  const gguf::Value* pattern = keys.find("attention.sliding_window_pattern");
  if (window == 0) return ok_status();
  std::vector<bool> flags;
  if (pattern && pattern->type() == gguf::ValueType::array)
    ORRERY_TRY(keys.flags("attention.sliding_window_pattern", in.d.layers.size(), &flags));
  else if (pattern) ORRERY_TRY(keys.integer("attention.sliding_window_pattern", 0, kMaxLayers, &period));
  for (size_t i = 0; i < in.d.layers.size(); ++i)
    if (flags.empty() ? period == 0 || (i + 1) % static_cast<size_t>(period) != 0 : flags[i]) in.d.layers[i].attention.window = window;
  return ok_status();
}

}  // namespace

Status read_rope(Reading& in, const Parts& parts) {
  Keys& keys = in.keys;
  const gguf::File& file = keys.file();
  const RopeOverride& given = in.rope;
  RopeParameters& rope = in.d.ropes[0];
  rope.interleaved = parts.rope_interleaved;
  rope.long_factors = parts.long_factors;
  rope.whole_pairs = parts.whole_pairs;
  ORRERY_TRY(keys.number_or("rope.freq_base", 10000.0, 1.0, 1e12, &rope.base));
  ORRERY_TRY(keys.number_or("rope.scaling.factor", 1.0, 1e-3, 1e6, &rope.factor));
  const bool old_factor = keys.has("rope.scale_linear");  // key of files from 2023
  if (old_factor && !keys.has("rope.scaling.factor")) ORRERY_TRY(keys.number_or("rope.scale_linear", 1.0, 1e-3, 1e6, &rope.factor));
  ORRERY_TRY(keys.number_or("rope.scaling.attn_factor", 1.0, 1e-3, 1e3, &rope.attention_factor));
  ORRERY_TRY(keys.number_or("rope.scaling.yarn_beta_fast", 32.0, 1e-3, 1e6, &rope.beta_fast));
  ORRERY_TRY(keys.number_or("rope.scaling.yarn_beta_slow", 1.0, 1e-3, 1e6, &rope.beta_slow));
  int32_t original = 0;
  ORRERY_TRY(keys.integer_or("rope.scaling.original_context_length", 0, 0, kMaxContext, &original));
  rope.original_context = static_cast<uint32_t>(original);

  // Llama 3's factors are a tensor, without a key. A scaling factor without a type means linear scaling.
  const bool factors = file.find_tensor("rope_freqs.weight") != nullptr;
  const std::string type_key = keys.name("rope.scaling.type");
  std::string_view type;
  ORRERY_TRY(keys.text_or("rope.scaling.type", "", &type));
  if (parts.long_factors && file.find_tensor("rope_factors_long.weight") != nullptr) {
    rope.scaling = RopeScaling::longrope;
  } else if (type == "yarn") {
    rope.scaling = RopeScaling::yarn;
  } else if (type == "linear" || (type.empty() && rope.factor != 1.0f && !factors)) {
    rope.scaling = RopeScaling::linear;
  } else if (factors && type != "longrope") {
    rope.scaling = RopeScaling::llama3;
  } else if (type == "longrope" && parts.long_factors) {
    return error(Code::bad_model, "%s: key '%s' is 'longrope', but tensor 'rope_factors_long.weight' is missing", file.path().c_str(),
                 type_key.c_str());
  } else if (!type.empty() && type != "none" && type != "llama3") {
    return error(Code::unsupported_architecture, "%s: key '%s' is '%.*s', expected none, linear, yarn or longrope", file.path().c_str(),
                 type_key.c_str(), static_cast<int>(std::min<size_t>(type.size(), 64)), type.data());
  }
  if (rope.scaling == RopeScaling::none || rope.scaling == RopeScaling::longrope) rope.factor = 1.0f;

  if (given.base > 0.0f) rope.base = given.base;
  if (given.original_context > 0) rope.original_context = given.original_context;
  if (given.set) {
    if (given.scaling == RopeScaling::longrope && rope.scaling != RopeScaling::longrope)
      return option_error(Code::unsupported, "rope_scaling", "%s: longrope scaling was asked for, but the file has no rope_factors tensors",
                          file.path().c_str());
    rope.scaling = given.scaling;
    rope.whole_pairs = true;  // as published
    rope.factor = given.scaling == RopeScaling::none || given.scaling == RopeScaling::longrope ? 1.0f : given.factor;
    if (!(rope.factor >= 1e-3f && rope.factor <= 1e6f))
      return option_error(Code::invalid_argument, "rope_scale", "a rope scaling factor of %g; expected 0.001 to 1000000",
                          static_cast<double>(rope.factor));
    if (given.scaling != RopeScaling::longrope) rope.attention_factor = 1.0f;
  }
  if (rope.original_context == 0) rope.original_context = static_cast<uint32_t>(in.d.trained_context);
  return ok_status();
}

namespace {

// The RoPE of layers with a window, if it is not that of the others.
Status read_window_rope(Reading& in, const Parts& parts) {
  Keys& keys = in.keys;
  RopeParameters rope;
  rope.interleaved = parts.rope_interleaved;
  rope.original_context = static_cast<uint32_t>(in.d.trained_context);
  const auto windowed =
      std::find_if(in.d.layers.begin(), in.d.layers.end(), [](const LayerShape& layer) { return layer.attention.window > 0; });
  const int32_t head_dim = (windowed == in.d.layers.end() ? in.d.layers[0] : *windowed).attention.head_dim;
  ORRERY_TRY(
      keys.number_or("rope.freq_base_swa", double{parts.window_base > 0 ? parts.window_base : in.d.rope().base}, 1.0, 1e12, &rope.base));
  ORRERY_TRY(read_rotated(keys, "rope.dimension_count_swa", parts.by_kind ? head_dim : in.d.rope().n_rot, head_dim, &rope.n_rot));
  for (LayerShape& layer : in.d.layers)
    if (layer.attention.window > 0) layer.attention.rope = layer.attention.query_rope = 1;
  if (windowed != in.d.layers.end()) in.d.ropes.push_back(rope);
  return ok_status();
}

// Queries' scores grow with the position (Ministral 3). It is the RoPE of queries that says so, and therefore turns all of a head.
Status read_temperature(Reading& in) {
  Keys& keys = in.keys;
  RopeParameters& rope = in.d.ropes[0];
  ORRERY_TRY(keys.number_or("rope.scaling.yarn_log_multiplier", 0.0, 0.0, 1e3, &rope.log_multiplier));
  float temperature = 0.0f;
  ORRERY_TRY(keys.number_or("attention.temperature_scale", 0.0, 0.0, 1e3, &temperature));
  if (temperature == 0.0f) return ok_status();
  if (rope.n_rot != in.d.layers[0].attention.head_dim)
    return error(Code::unsupported_architecture, "%s: key '%s' is %g with %d rotated dimensions of heads of %d; all are expected to be",
                 keys.file().path().c_str(), keys.name("attention.temperature_scale").c_str(), static_cast<double>(temperature), rope.n_rot,
                 in.d.layers[0].attention.head_dim);
  RopeParameters of_queries = rope;
  of_queries.temperature = temperature;
  in.d.ropes.push_back(of_queries);
  for (LayerShape& layer : in.d.layers) layer.attention.query_rope = 1;
  return ok_status();
}

}  // namespace

Status read_kv_heads(Reading& in, std::vector<int32_t>* n_kv_heads) {
  ORRERY_TRY(in.keys.per_layer("attention.head_count_kv", in.d.layers.size(), 0, kMaxWidth, n_kv_heads));
  if (std::any_of(n_kv_heads->begin(), n_kv_heads->end(), [](int32_t n) { return n > 0; })) return ok_status();
  return error(Code::unsupported_architecture, "%s: key '%s' is 0 in all %d layers; at least one with attention is expected",
               in.keys.file().path().c_str(), in.keys.name("attention.head_count_kv").c_str(), in.d.n_layers);
}

namespace {

// A window of n tokens lies around the row: n / 2 keys before it, and as many after it.
Status read_bidirectional(Reading& in) {
  constexpr int32_t kAll = 1 << 28;
  ORRERY_ASSIGN(const bool causal, in.keys.file().get_bool(in.keys.name("attention.causal"), false));
  (void)in.keys.find("attention.causal");
  if (causal)
    return error(Code::unsupported_architecture, "%s: key '%s' is true: architecture '%s' is an encoder, and is run with false",
                 in.keys.file().path().c_str(), in.keys.name("attention.causal").c_str(), in.d.family);
  in.d.encoder = true;
  for (LayerShape& layer : in.d.layers) {
    AttentionShape& a = layer.attention;
    a.ahead = a.window > 0 ? a.window / 2 : kAll;
    if (a.window > 0) a.window = a.window / 2 + 1;
  }
  return ok_status();
}

}  // namespace

Status read(Reading& in, const Parts& parts) {
  AttentionShape shape;
  shape.qk_norm = parts.qk_norm;
  shape.gated = parts.gated;
  shape.own_gate = parts.own_gate;
  shape.sinks = parts.sinks;
  shape.v_norm = parts.v_norm;
  shape.values_of_keys = parts.values_of_keys;
  if (!parts.by_kind) ORRERY_TRY(read_heads(in, parts, &shape));
  for (LayerShape& layer : in.d.layers) layer.attention = shape;
  ORRERY_TRY(parts.windows ? read_windows(in, parts) : refuse_windows(in));
  if (parts.by_kind) ORRERY_TRY(read_heads_by_kind(in, parts));
  if (parts.shares_kv) ORRERY_TRY(read_shared(in));
  ORRERY_TRY(read_rope(in, parts));
  if (parts.window_rope) ORRERY_TRY(read_window_rope(in, parts));
  if (parts.temperature) ORRERY_TRY(read_temperature(in));
  if (parts.bidirectional) ORRERY_TRY(read_bidirectional(in));
  for (size_t i = 0; i < in.d.layers.size(); ++i) {
    AttentionShape& a = in.d.layers[i].attention;
    const bool none =
        (parts.rope_in_windows && a.window == 0) || (parts.rope_period > 0 && (i + 1) % static_cast<size_t>(parts.rope_period) == 0);
    if (none) a.rope = a.query_rope = -1;
  }
  return ok_status();
}

Status find(Tensors* tensors, const Description& d, const AttentionShape& shape, const std::string& prefix, Weights* out) {
  const int64_t n = d.n_embd, q = shape.q_dim(), kv = shape.kv_dim(), asked = shape.gated ? 2 * q : q;
  if (!shape.gated && tensors->has(prefix + "attn_qkv.weight")) {
    ORRERY_TRY(tensors->matrix(prefix + "attn_qkv.weight", q + 2 * kv, n, true, &out->qkv));
    ORRERY_TRY(tensors->vector(prefix + "attn_qkv.bias", q + 2 * kv, false, &out->qkv_bias));
  } else {
    ORRERY_TRY(tensors->matrix(prefix + "attn_q.weight", asked, n, true, &out->q));
    ORRERY_TRY(tensors->vector(prefix + "attn_q.bias", asked, false, &out->q_bias));
    if (shape.kv_of < 0) {
      ORRERY_TRY(tensors->matrix(prefix + "attn_k.weight", kv, n, true, &out->k));
      ORRERY_TRY(tensors->matrix(prefix + "attn_v.weight", kv, n, !shape.values_of_keys, &out->v));
      ORRERY_TRY(tensors->vector(prefix + "attn_k.bias", kv, false, &out->k_bias));
      ORRERY_TRY(tensors->vector(prefix + "attn_v.bias", kv, false, &out->v_bias));
    } else {  // some files have what training left
      for (const char* name : {"attn_k.weight", "attn_v.weight"}) ORRERY_TRY(tensors->unused(prefix + name, kv, n));
      ORRERY_TRY(tensors->unused(prefix + "attn_k_norm.weight", 1, shape.head_dim));
    }
  }
  if (shape.qk_norm) {
    ORRERY_TRY(tensors->vector(prefix + "attn_q_norm.weight", shape.head_dim, true, &out->q_norm));
    if (shape.kv_of < 0) ORRERY_TRY(tensors->vector(prefix + "attn_k_norm.weight", shape.head_dim, true, &out->k_norm));
  }
  if (shape.own_gate) ORRERY_TRY(tensors->matrix(prefix + "attn_gate.weight", q, n, true, &out->gate));
  if (shape.sinks) ORRERY_TRY(tensors->vector(prefix + "attn_sinks.weight", shape.n_heads, true, &out->sinks));
  ORRERY_TRY(tensors->matrix(prefix + "attn_output.weight", n, q, true, &out->out));
  return tensors->vector(prefix + "attn_output.bias", n, false, &out->out_bias);
}

// Long and short factors must come together.
Status find_factors(Tensors* tensors, const Description& d, RopeFactors* out) {
  const int64_t n = d.rope().n_rot / 2;
  ORRERY_TRY(tensors->factors("rope_freqs.weight", n, false, &out->llama3));
  if (!d.rope().long_factors) return ok_status();
  const bool any = tensors->has("rope_factors_long.weight") || tensors->has("rope_factors_short.weight");
  ORRERY_TRY(tensors->factors("rope_factors_long.weight", n, any, &out->long_context));
  return tensors->factors("rope_factors_short.weight", n, any, &out->short_context);
}

namespace {

// One layer's rows of queries, keys and values in Workspace::qkv.
struct Rows {
  explicit Rows(const Pass& pass, const AttentionShape& shape)
      : stride(shape.q_dim() + 2 * int64_t{shape.kv_dim()}), q(pass.work.qkv), k(q + static_cast<uint64_t>(shape.q_dim())),
        v(k + static_cast<uint64_t>(shape.kv_dim())) {}
  int64_t stride;
  Ptr<float> q, k, v;
};

// Rotates `n_heads` vectors at x as the sessions want it. mean: where the layer's means begin in KvTransform::key_means; -1: K alone is
// centred.
void transform(const Pass& pass, const AttentionShape& shape, Ptr<float> x, int64_t stride, int32_t n_heads, int64_t mean) {
  std::array<HeadTransform, static_cast<size_t>(kMostTogether)> of_steps;
  for (size_t i = 0; i < pass.steps.size(); ++i) {
    const KvTransform& t = pass.steps[i].transform;
    of_steps[i] = {mean >= 0 && t.key_means ? t.key_means + static_cast<uint64_t>(mean) : Ptr<const float>(), t.rotated};
  }
  pass.backend.transform_rows(x, stride, n_heads, shape.head_dim, {of_steps.data(), pass.steps.size()});
}

// Where the mean keys of a layer begin in KvTransform::key_means.
int64_t first_mean(const Description& d, int32_t layer) {
  const KvLayer at = d.kv_layers[static_cast<size_t>(layer)];
  const KvGroup& group = d.groups[static_cast<size_t>(at.group)];
  return static_cast<int64_t>(group.first_key) + int64_t{at.layer} * group.kv_dim();
}

// Of a gated layer's rows, (n_rows, q_dim), behind queries and gates as they are projected together.
Ptr<float> gates_of(const Pass& pass, const AttentionShape& shape) {
  if (shape.own_gate) return pass.work.mixer;
  return pass.work.mixer + static_cast<uint64_t>(pass.n_rows) * static_cast<uint64_t>(2 * shape.q_dim());
}

// Projects Workspace::normed to queries, keys and values of a layer, as Step::transform wants them. `queries_alone`: only
// queries, if the layer has separate Q, K and V weights. A layer that reads another's KV has queries alone.
void project(Pass& pass, int32_t layer, const Weights& w, bool queries_alone) {
  const AttentionShape& shape = pass.d.layer(layer).attention;
  const Rows rows(pass, shape);
  Backend& b = pass.backend;
  if (w.qkv) {
    const Product p{&w.qkv, w.qkv_bias, rows.q, rows.stride, false};
    pass.project({&p, 1});
  } else {
    const Product p[] = {shape.gated ? Product{&w.q, w.q_bias, pass.work.mixer, 2 * int64_t{shape.q_dim()}, false}
                                     : Product{&w.q, w.q_bias, rows.q, rows.stride, false},
                         {&w.k, w.k_bias, rows.k, rows.stride, false},
                         {&w.v, w.v_bias, rows.v, rows.stride, false}};
    pass.project({p, queries_alone || !w.k ? size_t{1} : w.v ? size_t{3} : size_t{2}});
  }
  if (shape.own_gate && !queries_alone) {
    const Product p{&w.gate, {}, gates_of(pass, shape), shape.q_dim(), false};
    pass.project({&p, 1});
  }
  if (shape.gated) b.recurrent()->split_gates(pass.work.mixer, shape.n_heads, shape.head_dim, rows.q, rows.stride, gates_of(pass, shape));
  const auto normed_and_rotated = [&](Ptr<float> x, Ptr<const float> norm, int32_t n_heads, int32_t rope) {
    if (norm) b.rms_norm(x, rows.stride, norm, x, rows.stride, n_heads, shape.head_dim, pass.d.norm_eps);
    if (rope >= 0) b.rope(x, rows.stride, n_heads, shape.head_dim, rope);
  };
  const bool has_kv = shape.kv_of < 0 && !queries_alone;
  if (has_kv && shape.v_norm) {  // before the keys' norm, which changes what values may be made of
    const bool own = w.v || w.qkv;
    b.rms_norm(own ? rows.v : rows.k, rows.stride, {}, rows.v, rows.stride, shape.n_kv_heads, shape.head_dim, pass.d.norm_eps);
  }
  normed_and_rotated(rows.q, w.q_norm, shape.n_heads, shape.query_rope);
  if (pass.rotated) transform(pass, shape, rows.q, rows.stride, shape.n_heads, -1);
  if (!has_kv) return;
  normed_and_rotated(rows.k, w.k_norm, shape.n_kv_heads, shape.rope);
  if (pass.transformed) transform(pass, shape, rows.k, rows.stride, shape.n_kv_heads, first_mean(pass.d, layer));
  if (pass.rotated) transform(pass, shape, rows.v, rows.stride, shape.n_kv_heads, -1);
}

}  // namespace

bool run(Pass& pass, const Place& at) {
  const AttentionShape& shape = pass.d.layer(at.layer).attention;
  const Rows rows(pass, shape);
  HookCalls& hooks = pass.hooks;
  if (hooks.ahead && at.layer == 0) {
    project(pass, 0, *at.weights, true);
    if (!hooks.before_layer(-1, rows.q, rows.stride)) return false;
  }
  if (hooks.ahead) {
    if (at.next) project(pass, at.layer + 1, *at.next, true);
    if (!hooks.before_layer(at.layer, at.next ? rows.q : Ptr<float>(), rows.stride)) return false;
  }
  project(pass, at.layer, *at.weights, false);
  const KvLayer kv_layer = pass.d.kv_layers[static_cast<size_t>(at.layer)];
  if (shape.kv_of < 0) {
    pass.backend.append_kv(kv_layer, rows.k, rows.v, rows.stride);
    if (hooks.at_attention && !hooks.before_attend(kv_layer, rows.q, rows.stride)) return false;
  }

  AttendShape attend;
  attend.n_heads = shape.n_heads;
  attend.q_stride = rows.stride;
  attend.out_stride = shape.q_dim();
  attend.scale = shape.scale;
  attend.window = shape.window;
  attend.ahead = shape.ahead;
  attend.sinks = at.weights->sinks;
  pass.backend.attend(kv_layer, rows.q, pass.work.attn, attend);
  if (pass.rotated) transform(pass, shape, pass.work.attn, attend.out_stride, shape.n_heads, -1);
  if (shape.gated || shape.own_gate) pass.backend.recurrent()->apply_gates(pass.work.attn, gates_of(pass, shape), shape.q_dim());
  pass.add_branch(at.weights->out, at.weights->out_bias, at.post_norm, pass.work.attn, attend.out_stride);
  return true;
}

}  // namespace orrery::model::attention
