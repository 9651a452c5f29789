// Sources and models: opening, describing.
#include "capi/handles.h"
#include "capi/inspect.h"
#include "runtime/engine/embed/embed.h"

namespace orrery::capi {

Result<engine::ModelOptions> model_options(const orrery_model_options* given) {
  orrery_model_options o;
  ORRERY_TRY(read_options(given, &orrery_model_options_init, "orrery_model_options", &o));
  if (o.load > ORRERY_LOAD_READ)
    return option_error(Code::invalid_argument, "load", "load is %u, expected ORRERY_LOAD_MAP or ORRERY_LOAD_READ", o.load);
  if (o.host_computes > 2)
    return option_error(Code::invalid_argument, "host_computes", "host_computes is %u, expected 0 to 2", o.host_computes);
  if (!(o.rope_base >= 0.0f && o.rope_base <= 1e12f))
    return option_error(Code::invalid_argument, "rope_base", "rope_base is %g, expected 0 to 1e12", static_cast<double>(o.rope_base));
  engine::ModelOptions out;
  out.load = o.load == ORRERY_LOAD_READ ? gguf::Load::read : gguf::Load::map;
  out.weights.full_fingerprint = o.full_fingerprint != 0;
  if (o.experts_on_device < -1)
    return option_error(Code::invalid_argument, "experts_on_device", "experts_on_device is %lld, expected -1 or a number of experts",
                        static_cast<long long>(o.experts_on_device));
  out.experts_on_device = o.experts_on_device;
  using engine::HostComputes;
  out.host_computes = o.host_computes == 0 ? HostComputes::automatic : o.host_computes == 1 ? HostComputes::always : HostComputes::never;
  if (o.layers_on_device < -1)
    return option_error(Code::invalid_argument, "layers_on_device", "layers_on_device is %lld, expected -1 or a number of layers",
                        static_cast<long long>(o.layers_on_device));
  out.layers_on_device = o.layers_on_device;
  if (o.columns_on_device < -1 || o.columns_on_device > 100)
    return option_error(Code::invalid_argument, "columns_on_device", "columns_on_device is %lld, expected -1 or 0 to 100 per cent",
                        static_cast<long long>(o.columns_on_device));
  out.columns_on_device = o.columns_on_device;
  out.sessions_bytes = o.sessions_bytes;
  if (o.progress)
    out.weights.progress = [fn = o.progress, user = o.progress_user](uint64_t done, uint64_t total) { return fn(user, done, total) == 0; };
  model::RopeOverride& rope = out.weights.rope;
  rope.set = o.rope_scaling != ORRERY_ROPE_FROM_FILE;
  rope.factor = o.rope_scale;
  rope.base = o.rope_base;
  rope.original_context = o.rope_original_context;
  switch (o.rope_scaling) {
    case ORRERY_ROPE_FROM_FILE:
    case ORRERY_ROPE_NONE: rope.scaling = model::RopeScaling::none; break;
    case ORRERY_ROPE_LINEAR: rope.scaling = model::RopeScaling::linear; break;
    case ORRERY_ROPE_YARN: rope.scaling = model::RopeScaling::yarn; break;
    case ORRERY_ROPE_LLAMA3: rope.scaling = model::RopeScaling::llama3; break;
    case ORRERY_ROPE_LONGROPE: rope.scaling = model::RopeScaling::longrope; break;
    default:
      return option_error(Code::invalid_argument, "rope_scaling", "rope_scaling is %u, expected an ORRERY_ROPE_ value", o.rope_scaling);
  }
  return out;
}

namespace {

orrery_layer_info described(const model::LayerShape& layer) {
  orrery_layer_info out;
  orrery_layer_info_init(&out, sizeof out);
  if (layer.mixer == model::Mixer::attention) {
    const model::AttentionShape& a = layer.attention;
    out.kind = layer.latent ? ORRERY_LAYER_LATENT : a.window > 0 ? ORRERY_LAYER_WINDOW : ORRERY_LAYER_ATTENTION;
    out.n_heads = static_cast<uint32_t>(a.n_heads);
    out.n_kv_heads = static_cast<uint32_t>(a.kv_of < 0 ? a.n_kv_heads : 0);
    out.head_dim = static_cast<uint32_t>(a.head_dim);
    out.value_dim = static_cast<uint32_t>(a.shared_values > 0 ? 0 : a.head_dim);
    out.window = static_cast<uint32_t>(a.window);
    out.kv_of = a.kv_of;
  } else {
    out.kind = layer.mixer == model::Mixer::none ? ORRERY_LAYER_NONE : ORRERY_LAYER_RECURRENT;
    out.state_bytes = layer.state_floats() * sizeof(float);
  }
  out.n_experts = static_cast<uint32_t>(layer.experts.router.n_experts);
  out.n_used_experts = static_cast<uint32_t>(layer.experts ? layer.experts.router.n_used : 0);
  return out;
}

}  // namespace
}  // namespace orrery::capi

using namespace orrery;
using namespace orrery::capi;

extern "C" {

void orrery_source_init(orrery_source* source, size_t struct_size) {
  orrery_source defaults = {};
  defaults.fd = -1;
  init_struct(source, struct_size, defaults);
}

void orrery_model_options_init(orrery_model_options* options, size_t struct_size) {
  orrery_model_options defaults = {};
  defaults.experts_on_device = defaults.layers_on_device = defaults.columns_on_device = -1;
  init_struct(options, struct_size, defaults);
}

orrery_status orrery_model_open(orrery_runtime* runtime, const orrery_source* source, const orrery_model_options* options,
                                orrery_model** model, orrery_error* error) {
  if (model) *model = nullptr;
  return guarded(error, [&]() -> Status {
    ORRERY_REQUIRE(runtime);
    ORRERY_ASSIGN(const engine::ModelSource from, model_source(source));
    ORRERY_REQUIRE(model);
    ORRERY_TRY(check_process(*runtime->runtime));
    ORRERY_ASSIGN(const engine::ModelOptions o, model_options(options));
    return make_handle(model, [&](orrery_model* handle) -> Status {
      ORRERY_ASSIGN(handle->model, engine::LanguageModel::open(runtime->runtime, from, o));
      return ok_status();
    });
  });
}

void orrery_model_free(orrery_model* model) {
  if (model) free_handle(model, model->model->runtime());
}

orrery_status orrery_adapter_open(orrery_model* model, const orrery_source* source, orrery_adapter** adapter, orrery_error* error) {
  if (adapter) *adapter = nullptr;
  return guarded(error, [&]() -> Status {
    ORRERY_REQUIRE(model);
    ORRERY_ASSIGN(const engine::ModelSource from, model_source(source));
    ORRERY_REQUIRE(adapter);
    ORRERY_TRY(check_process(model->model->runtime()));
    return make_handle(adapter, [&](orrery_adapter* handle) -> Status {
      ORRERY_ASSIGN(handle->adapter, engine::LoadedAdapter::open(model->model, from));
      return ok_status();
    });
  });
}

void orrery_adapter_free(orrery_adapter* adapter) {
  if (adapter) free_handle(adapter, adapter->adapter->model().runtime());
}

void orrery_model_info_init(orrery_model_info* info, size_t struct_size) { init_struct(info, struct_size); }

orrery_status orrery_model_get_info(const orrery_model* model, orrery_model_info* info, orrery_error* error) {
  return guarded(error, [&]() -> Status {
    ORRERY_REQUIRE(model);
    ORRERY_REQUIRE(info);
    ORRERY_TRY(check_process(model->model->runtime()));
    const model::Model& m = model->model->weights();
    const model::Description& h = m.description;
    orrery_model_info out;
    orrery_model_info_init(&out, sizeof out);
    out.n_layers = static_cast<uint32_t>(h.n_layers);
    out.n_heads = static_cast<uint32_t>(h.kv().n_heads);
    out.n_kv_heads = static_cast<uint32_t>(h.kv().n_kv_heads);
    out.head_dim = static_cast<uint32_t>(h.kv().head_dim);
    out.n_embd = static_cast<uint32_t>(h.n_embd);
    out.n_vocab = static_cast<uint32_t>(h.n_vocab);
    out.trained_context = static_cast<uint32_t>(h.trained_context);
    out.n_parameters = m.n_parameters;
    out.file_bytes = m.file->file_bytes();
    out.weights_bytes = m.weights_bytes;
    out.architecture = h.family;
    out.name = h.name.c_str();
    out.quantization = type_traits(m.main_type)->name;
    std::memcpy(out.fingerprint, m.fingerprint, sizeof out.fingerprint);
    const bool pools = h.pooling == model::Pooling::mean || h.pooling == model::Pooling::first || h.pooling == model::Pooling::last;
    out.purpose = (h.encoder ? 0u : ORRERY_PURPOSE_GENERATE) | (pools || (h.encoder && !h.score) ? ORRERY_PURPOSE_EMBED : 0u) |
                  (h.score ? ORRERY_PURPOSE_RANK : 0u);
    out.pooling = pooling_number(engine::default_pooling(h));
    const AccountUsage usage = model->account.usage();
    out.host_bytes = usage.bytes;
    out.host_peak_bytes = usage.peak_bytes;
    return write_struct(out, info, "orrery_model_info");
  });
}

void orrery_experts_info_init(orrery_experts_info* info, size_t struct_size) { init_struct(info, struct_size); }

orrery_status orrery_model_experts(const orrery_model* model, orrery_experts_info* info, orrery_error* error) {
  return guarded(error, [&]() -> Status {
    ORRERY_REQUIRE(model);
    ORRERY_REQUIRE(info);
    ORRERY_TRY(check_process(model->model->runtime()));
    orrery_experts_info out;
    orrery_experts_info_init(&out, sizeof out);
    if (const model::ExpertStore* store = model->model->weights().experts.get()) {
      const model::ExpertStore::Counts counts = store->counts();
      out.in_place = store->in_place();
      out.n_experts = store->units().n_units(), out.n_on_device = store->n_on_device();
      out.device_bytes = store->arena_bytes(), out.reservoir_bytes = store->reservoir_bytes();
      out.n_hits = counts.hits, out.n_late = counts.late, out.n_missed = counts.missed;
      out.n_expected = counts.expected, out.n_wasted = counts.wasted;
      out.link_bytes = counts.bytes, out.stall_us = counts.stall_us;
      out.prompt_link_bytes = counts.prompt_bytes, out.prompt_stall_us = counts.prompt_stall_us;
    }
    if (const model::HostExperts* experts = model->model->weights().host.get()) {
      const model::HostExperts::Layout& layout = experts->layout();
      const model::HostExperts::Counts counts = experts->counts();
      out.n_experts = layout.n_units, out.n_on_device = layout.n_on_device;
      out.device_bytes = layout.arena_bytes, out.reservoir_bytes = layout.reservoir_bytes;
      out.n_hits = counts.on_device, out.n_by_host = counts.by_host, out.host_us = counts.host_us;
      out.prompt_n_by_host = counts.prompt_by_host, out.prompt_host_us = counts.prompt_host_us;
      const model::WeightRing::Counts prompts = experts->prompts();
      out.prompt_link_bytes = prompts.bytes, out.prompt_stall_us = prompts.stall_us;
    }
    return write_struct(out, info, "orrery_experts_info");
  });
}

void orrery_streaming_info_init(orrery_streaming_info* info, size_t struct_size) { init_struct(info, struct_size); }

orrery_status orrery_model_streaming(const orrery_model* model, orrery_streaming_info* info, orrery_error* error) {
  return guarded(error, [&]() -> Status {
    ORRERY_REQUIRE(model);
    ORRERY_REQUIRE(info);
    ORRERY_TRY(check_process(model->model->runtime()));
    orrery_streaming_info out;
    orrery_streaming_info_init(&out, sizeof out);
    if (const model::LayerStore* store = model->model->weights().layers.get()) {
      const model::WeightRing::AllCounts counts = store->counts();
      out.in_place = store->in_place();
      out.n_layers = store->units().layers.size();
      out.device_bytes = store->arena_bytes(), out.reservoir_bytes = store->reservoir_bytes();
      out.n_steps_layers = counts.decode.asked, out.n_waited = counts.decode.waited;
      out.link_bytes = counts.decode.bytes, out.stall_us = counts.decode.stall_us;
      out.prompt_link_bytes = counts.prefill.bytes, out.prompt_stall_us = counts.prefill.stall_us;
    }
    if (const model::HostColumns* columns = model->model->weights().columns.get()) {
      const model::HostColumns::Counts counts = columns->counts();
      const model::WeightRing::Counts prompts = columns->prompts();
      out.device_bytes += columns->layout().arena_bytes(), out.reservoir_bytes += columns->layout().reservoir_bytes();
      out.prompt_link_bytes += prompts.bytes, out.prompt_stall_us += prompts.stall_us;
      out.n_divided = columns->layout().layers.size(), out.n_by_host = counts.layers, out.host_us = counts.host_us;
    }
    return write_struct(out, info, "orrery_streaming_info");
  });
}

void orrery_layer_info_init(orrery_layer_info* info, size_t struct_size) {
  orrery_layer_info defaults = {};
  defaults.kv_of = -1;
  init_struct(info, struct_size, defaults);
}

orrery_status orrery_model_layer_info(const orrery_model* model, uint32_t i, orrery_layer_info* info, orrery_error* error) {
  return guarded(error, [&]() -> Status {
    ORRERY_REQUIRE(model);
    ORRERY_REQUIRE(info);
    ORRERY_TRY(check_process(model->model->runtime()));
    const std::vector<model::LayerShape>& layers = model->model->description().layers;
    if (i >= layers.size()) return orrery::error(Code::invalid_argument, "i is %u, the model has %zu layers", i, layers.size());
    return write_struct(described(layers[i]), info, "orrery_layer_info");
  });
}

orrery_vocab* orrery_model_vocab(const orrery_model* model) {
  if (model == nullptr) return nullptr;
  const AccountScope scope(model->account);
  return new (std::nothrow) orrery_vocab{model->account, model->model->vocabulary()};
}

orrery_status orrery_inspect(const orrery_source* source, char* json, size_t capacity, size_t* json_bytes, orrery_error* error) {
  if (json_bytes) *json_bytes = 0;
  return guarded(error, [&]() -> Status {
    ORRERY_ASSIGN(const engine::ModelSource from, model_source(source));
    ORRERY_REQUIRE(json_bytes);
    ORRERY_ASSIGN(const std::string text, describe_file(from));
    return copy_out(text.data(), text.size(), json, capacity, json_bytes);
  });
}

}  // extern "C"
