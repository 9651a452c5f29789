#include "runtime/model/hyperparameters.h"

#include <algorithm>
#include <cmath>

#include "runtime/model/keys.h"

namespace orrery::model {

namespace {

constexpr uint64_t kMaxLayers = 1024, kMaxWidth = 1 << 20, kMaxVocab = 1 << 24, kMaxContext = 1 << 27;
constexpr uint64_t kMaxHeadDim = 256, kHeadDimStep = 8;

// All layers must have the same heads, because the heads determine the layout of the KV cache.
Status same_in_all_layers(Keys& keys, const char* key, const std::vector<int32_t>& values,
                          int32_t* out) {
  for (const int32_t v : values)
    if (v != values[0])
      return error(Code::unsupported_architecture, "%s: key '%s' differs between layers (%d and %d)",
                   keys.file().path().c_str(), keys.name(key).c_str(), values[0], v);
  *out = values[0];
  return ok_status();
}

Status read_heads(Keys& keys, Hyperparameters* h) {
  const gguf::File& file = keys.file();
  const size_t n_layers = static_cast<size_t>(h->n_layers);
  std::vector<int32_t> heads;
  ORRERY_TRY(keys.per_layer("attention.head_count", n_layers, 1, kMaxWidth, &heads));
  ORRERY_TRY(same_in_all_layers(keys, "attention.head_count", heads, &h->n_heads));
  h->n_kv_heads = h->n_heads;
  if (keys.has("attention.head_count_kv")) {
    ORRERY_TRY(keys.per_layer("attention.head_count_kv", n_layers, 1, kMaxWidth, &heads));
    ORRERY_TRY(same_in_all_layers(keys, "attention.head_count_kv", heads, &h->n_kv_heads));
  }
  if (h->n_heads % h->n_kv_heads != 0)
    return error(Code::bad_model, "%s: %d query heads do not divide among %d KV heads", file.path().c_str(), h->n_heads,
                 h->n_kv_heads);

  if (!keys.has("attention.key_length") && h->n_embd % h->n_heads != 0)
    return error(Code::bad_model, "%s: an embedding of %d does not divide among %d heads, and no '%s' is given",
                 file.path().c_str(), h->n_embd, h->n_heads, keys.name("attention.key_length").c_str());
  const uint64_t implied = static_cast<uint64_t>(h->n_embd / h->n_heads);
  int32_t value_dim = 0;
  ORRERY_TRY(keys.integer_or("attention.key_length", implied, 1, kMaxWidth, &h->head_dim));
  ORRERY_TRY(keys.integer_or("attention.value_length", static_cast<uint64_t>(h->head_dim), 1, kMaxWidth, &value_dim));
  if (value_dim != h->head_dim)
    return error(Code::unsupported_architecture, "%s: key heads of %d with value heads of %d", file.path().c_str(),
                 h->head_dim, value_dim);
  if (static_cast<uint64_t>(h->head_dim) > kMaxHeadDim || h->head_dim % static_cast<int32_t>(kHeadDimStep) != 0)
    return error(Code::unsupported_architecture, "%s: a head dimension of %d; at most %llu, a multiple of %llu, is run",
                 file.path().c_str(), h->head_dim, static_cast<unsigned long long>(kMaxHeadDim),
                 static_cast<unsigned long long>(kHeadDimStep));
  if (static_cast<int64_t>(h->n_heads) * h->head_dim > static_cast<int64_t>(kMaxWidth))
    return error(Code::bad_model, "%s: %d heads of %d are wider than any model we know", file.path().c_str(),
                 h->n_heads, h->head_dim);

  ORRERY_TRY(keys.integer_or("rope.dimension_count", static_cast<uint64_t>(h->head_dim), 2,
                             static_cast<uint64_t>(h->head_dim), &h->n_rot));
  if (h->n_rot % 2 != 0)
    return error(Code::bad_model, "%s: key '%s' is %d, expected an even number", file.path().c_str(),
                 keys.name("rope.dimension_count").c_str(), h->n_rot);
  return ok_status();
}

// For an architecture without windows. llama.cpp's converter writes no window for these architectures. Other
// converters do if the model has windows (Mistral 7B v0.1: 4,096 of 32,768 tokens), and attending to everything would
// then be a different model. A window as long as the trained context hides nothing.
Status refuse_windows(Keys& keys, const Hyperparameters& h) {
  (void)keys.find("attention.sliding_window_pattern");   // which layers have the window
  if (!keys.has("attention.sliding_window")) return ok_status();
  const std::string key = keys.name("attention.sliding_window");
  ORRERY_ASSIGN(const uint64_t window, keys.file().get_u64(key, 0));
  if (window == 0 || window >= static_cast<uint64_t>(h.trained_context)) return ok_status();
  return error(Code::unsupported_architecture,
               "%s: key '%s' is %llu, less than the context of %d tokens: architecture '%s' is run without windows",
               keys.file().path().c_str(), key.c_str(), static_cast<unsigned long long>(window), h.trained_context,
               h.architecture->name);
}

Status read_windows(Keys& keys, Hyperparameters* h) {
  const size_t n_layers = static_cast<size_t>(h->n_layers);
  h->window.assign(n_layers, 0);
  if (!h->architecture->windows) return refuse_windows(keys, *h);
  int32_t window = 0, pattern = 0;
  ORRERY_TRY(keys.integer_or("attention.sliding_window", 0, 0, kMaxContext, &window));
  // A pattern of n: every nth layer attends to everything.
  const bool patterned = keys.has("attention.sliding_window_pattern");
  if (window == 0) return ok_status();
  if (patterned) ORRERY_TRY(keys.integer("attention.sliding_window_pattern", 0, kMaxLayers, &pattern));
  for (size_t i = 0; i < n_layers; ++i)
    if (pattern == 0 || (i + 1) % static_cast<size_t>(pattern) != 0) h->window[i] = window;
  return ok_status();
}

Status read_rope(Keys& keys, const RopeOverride& given, Hyperparameters* h) {
  const gguf::File& file = keys.file();
  RopeParameters& rope = h->rope;
  ORRERY_TRY(keys.number_or("rope.freq_base", 10000.0, 1.0, 1e12, &rope.base));
  ORRERY_TRY(keys.number_or("rope.scaling.factor", 1.0, 1e-3, 1e6, &rope.factor));
  const bool old_factor = keys.has("rope.scale_linear");   // key of files from 2023
  if (old_factor && !keys.has("rope.scaling.factor"))
    ORRERY_TRY(keys.number_or("rope.scale_linear", 1.0, 1e-3, 1e6, &rope.factor));
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
  if (h->architecture->longrope && file.find_tensor("rope_factors_long.weight") != nullptr) {
    rope.scaling = RopeScaling::longrope;
  } else if (type == "yarn") {
    rope.scaling = RopeScaling::yarn;
  } else if (type == "linear" || (type.empty() && rope.factor != 1.0f && !factors)) {
    rope.scaling = RopeScaling::linear;
  } else if (factors && type != "longrope") {
    rope.scaling = RopeScaling::llama3;
  } else if (type == "longrope" && h->architecture->longrope) {
    return error(Code::bad_model, "%s: key '%s' is 'longrope', but tensor 'rope_factors_long.weight' is missing",
                 file.path().c_str(), type_key.c_str());
  } else if (!type.empty() && type != "none" && type != "llama3") {
    return error(Code::unsupported_architecture, "%s: key '%s' is '%.*s', expected none, linear, yarn or longrope",
                 file.path().c_str(), type_key.c_str(), static_cast<int>(std::min<size_t>(type.size(), 64)),
                 type.data());
  }
  if (rope.scaling == RopeScaling::none || rope.scaling == RopeScaling::longrope) rope.factor = 1.0f;

  if (given.base > 0.0f) rope.base = given.base;
  if (given.original_context > 0) rope.original_context = given.original_context;
  if (given.set) {
    if (given.scaling == RopeScaling::longrope && rope.scaling != RopeScaling::longrope)
      return error(Code::unsupported, "%s: longrope scaling was asked for, but the file has no rope_factors tensors",
                   file.path().c_str());
    rope.scaling = given.scaling;
    rope.factor = given.scaling == RopeScaling::none || given.scaling == RopeScaling::longrope ? 1.0f : given.factor;
    if (!(rope.factor >= 1e-3f && rope.factor <= 1e6f))
      return error(Code::invalid_argument, "a rope scaling factor of %g; expected 0.001 to 1000000",
                   static_cast<double>(rope.factor));
    if (given.scaling != RopeScaling::longrope) rope.attention_factor = 1.0f;
  }
  if (rope.original_context == 0) rope.original_context = static_cast<uint32_t>(h->trained_context);
  return ok_status();
}

// The number of tokens comes from the embedding table, because the key may be absent or outdated.
Status read_vocabulary(const gguf::File& file, Hyperparameters* h) {
  const gguf::Tensor* table = file.find_tensor("token_embd.weight");
  if (table == nullptr || table->n_dims != 2)
    return error(Code::bad_model, "%s: no matrix 'token_embd.weight'", file.path().c_str());
  if (table->dims[1] > kMaxVocab)
    return error(Code::bad_model, "%s: tensor 'token_embd.weight' has %llu rows, expected at most %llu",
                 file.path().c_str(), static_cast<unsigned long long>(table->dims[1]),
                 static_cast<unsigned long long>(kMaxVocab));
  h->n_vocab = static_cast<int32_t>(table->dims[1]);
  return ok_status();
}

}  // namespace

int32_t Hyperparameters::max_ff() const { return *std::max_element(n_ff.begin(), n_ff.end()); }

Result<Hyperparameters> read_hyperparameters(const gguf::File& file, const RopeOverride& rope) {
  ORRERY_ASSIGN(const std::string_view architecture, file.required_string("general.architecture"));
  Hyperparameters h;
  h.architecture = find_architecture(architecture);
  if (h.architecture == nullptr) {
    std::string known;
    for (const Architecture& a : architectures()) known += std::string(known.empty() ? "" : ", ") + a.name;
    return error(Code::unsupported_architecture, "%s: architecture '%.*s' is not supported; these are: %s",
                 file.path().c_str(), static_cast<int>(std::min<size_t>(architecture.size(), 64)), architecture.data(),
                 known.c_str());
  }
  ORRERY_ASSIGN(const std::string_view name, file.get_string("general.name", ""));
  h.name = std::string(name);

  ORRERY_TRY(check_general_keys(file));

  Keys keys(file, h.architecture->name);
  ORRERY_TRY(keys.integer("block_count", 1, kMaxLayers, &h.n_layers));
  ORRERY_TRY(keys.integer("embedding_length", 1, kMaxWidth, &h.n_embd));
  ORRERY_TRY(keys.integer("context_length", 1, kMaxContext, &h.trained_context));
  ORRERY_TRY(keys.per_layer("feed_forward_length", static_cast<size_t>(h.n_layers), 1, kMaxWidth, &h.n_ff));
  if (!keys.has("attention.layer_norm_rms_epsilon"))   // no default suits every model
    return error(Code::bad_model, "%s: key '%s' is missing, expected a number", file.path().c_str(),
                 keys.name("attention.layer_norm_rms_epsilon").c_str());
  ORRERY_TRY(keys.number_or("attention.layer_norm_rms_epsilon", 0.0, 0.0, 1.0, &h.norm_eps));
  ORRERY_TRY(read_heads(keys, &h));
  ORRERY_TRY(read_windows(keys, &h));
  ORRERY_TRY(read_rope(keys, rope, &h));
  ORRERY_TRY(read_vocabulary(file, &h));
  ORRERY_TRY(keys.refuse_the_rest(h));
  return h;
}

uint32_t reach_of_context(const Hyperparameters& h) {
  const double trained = h.trained_context;
  if (h.rope.scaling == RopeScaling::none) return static_cast<uint32_t>(h.trained_context);
  const double original = h.rope.original_context > 0 ? h.rope.original_context : trained;
  const double reach = std::max(trained, original * static_cast<double>(h.rope.factor));
  return static_cast<uint32_t>(std::min(reach, 4294967295.0));
}

}  // namespace orrery::model
