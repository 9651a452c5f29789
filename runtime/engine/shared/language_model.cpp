#include "runtime/engine/shared/language_model.h"

#include <algorithm>

#include "runtime/model/families/family.h"
#include "runtime/model/store/division.h"
#include "runtime/text/unicode/utf8.h"

namespace orrery::engine {

namespace {

constexpr uint64_t kStagingBytes = uint64_t{32}
                                   << 20;  // two halves of 0.6 ms on PCIe 4.0 each, much longer than the launch of an operation

}  // namespace

StepLimits workspace_limits(const model::Description& h, const Device& device, const StepLimits& held, const SessionOptions& options,
                            uint32_t n_context) {
  const int32_t context = static_cast<int32_t>(n_context);
  const int32_t guessed = options.speculate == Speculate::off ? 0 : model::kLogitRows;
  const int32_t together = device.info().decodes_together ? kMostTogether : 0;
  // Mean keys are measured on a page of tokens, however short the context is.
  StepLimits limits =
      model::step_limits(h, std::max({static_cast<int32_t>(options.chunk_of(h, n_context)), guessed, together, held.max_rows}),
                         std::max({context, held.max_context, options.centred(h) ? kPageTokens : 0}));
  const bool keeps_queries = policy::policy_needs(options.policy, options.policy_options).kept_queries > 0;
  limits.max_top_keys = std::max(held.max_top_keys, keeps_queries ? context : 0);
  limits.staging_bytes = std::max(held.staging_bytes, options.compressed() && device.info().has_link ? kStagingBytes : 0);
  return limits;
}

bool same_workspace(const StepLimits& a, const StepLimits& b) {
  return a.max_rows == b.max_rows && a.max_context == b.max_context && a.max_top_keys == b.max_top_keys &&
         a.staging_bytes == b.staging_bytes;
}

namespace {

// Of the arena, for a session of all KV in F16.
uint64_t session_bytes(const model::Description& d, const Device& device, uint32_t context) {
  const uint32_t n_context = std::min(static_cast<uint32_t>(d.trained_context), context);
  const SessionOptions options;
  uint64_t bytes = model::carve_workspace(d, device, workspace_limits(d, device, {}, options, n_context), {}).bytes;
  for (size_t g = 0; g < d.groups.size(); ++g)
    bytes +=
        kv::PagePool::layout(kv_format(d, options.kv_type, g), group_pages(d, options, n_context, g), false, in_ring(d, g)).device_bytes;
  return bytes;
}

// Of the arena, which no session does without: the work memory of short chunks.
uint64_t least_bytes(const model::Description& d, const Device& device) {
  SessionOptions options;
  options.chunk_tokens = 1;
  return model::carve_workspace(d, device, workspace_limits(d, device, {}, options, kPageTokens), {}).bytes;
}

// Where experts lie, with all layers on the device. place: has in_place and experts_by_host; takes experts and embedding_away.
Status place_experts(const gguf::File& file, const model::Description& d, const Device& device, uint64_t arena_bytes,
                     const ModelOptions& options, model::WeightsPlace* place) {
  model::WeightsPlace away = *place;
  away.experts = 0;
  ORRERY_ASSIGN(const model::Placement none, model::place_weights(file, d, device, arena_bytes, away));
  if (!none.units) {
    if (options.experts_on_device >= 0)
      return option_error(Code::invalid_argument, "experts_on_device", "experts_on_device is %lld, but the model has no experts",
                          static_cast<long long>(options.experts_on_device));
    return ok_status();
  }
  const auto n_units = static_cast<int64_t>(none.units.n_units());
  const bool by_host = place->experts_by_host;
  int64_t n = options.experts_on_device;
  if (n < 0) {
    const uint64_t sessions = options.sessions_bytes ? options.sessions_bytes : session_bytes(d, device, kUsualContext);
    model::WeightsPlace all_there = *place;
    for (const bool embedding_away : {false, true}) {  // the embedding leaves before any expert does
      all_there.embedding_away = place->embedding_away = embedding_away;
      ORRERY_ASSIGN(const model::Placement all, model::place_weights(file, d, device, arena_bytes, all_there));
      n = model::divide_experts(
          {none.units, place->in_place, arena_bytes, none.arena_bytes, all.arena_bytes, sessions, by_host, none.experts.arena_bytes});
      if (n < 0) return ok_status();
    }
  }
  if (n >= n_units) return ok_status();
  const auto least = static_cast<int64_t>(none.units.least_slots());
  if (!place->in_place && !by_host && n < least)
    return option_error(Code::invalid_argument, "experts_on_device",
                        "experts_on_device is %lld: of %lld experts at least %lld are on the device, twice those of a layer",
                        static_cast<long long>(n), static_cast<long long>(n_units), static_cast<long long>(least));
  place->experts = n;
  return ok_status();
}

// Which columns of dense feed-forward blocks lie on the device, with all layers there. place: has in_place and experts; takes columns
// and embedding_away.
Status place_columns(const gguf::File& file, const model::Description& d, const Device& device, uint64_t arena_bytes,
                     const ModelOptions& options, model::WeightsPlace* place) {
  const bool dense = std::any_of(d.layers.begin(), d.layers.end(), [](const model::LayerShape& layer) {
    return layer.has_ffn() && !layer.experts && layer.feed_forward.gated;
  });
  const bool mixture = static_cast<bool>(d.experts());
  const bool always = options.host_computes == HostComputes::always;
  if (always && !mixture && (d.encoder || !dense))
    return option_error(Code::unsupported, "host_computes",
                        "host_computes is 1, but the model has neither experts nor gated feed-forward blocks of a generator");
  const int64_t percent = options.columns_on_device;
  if (percent >= 0 && (mixture || !always))
    return option_error(Code::invalid_argument, "columns_on_device",
                        mixture ? "columns_on_device is %lld, but the model is a mixture: expected -1, and experts_on_device"
                                : "columns_on_device is %lld, but host_computes is not 1: nobody is told to compute the others",
                        static_cast<long long>(percent));
  const bool automatic =
      options.host_computes == HostComputes::automatic && !device.info().reads_host_memory && options.layers_on_device < 0;
  if (mixture || place->in_place || (!always && !automatic) || d.encoder || !dense) return ok_status();
  constexpr int64_t kWhole = model::HostColumns::kWhole;
  int64_t n = percent < 0 ? kWhole : percent * kWhole / 100;
  if (percent < 0) {
    const uint64_t sessions = options.sessions_bytes ? options.sessions_bytes : session_bytes(d, device, kUsualContext);
    Status status;
    const uint64_t least = options.sessions_bytes ? options.sessions_bytes : least_bytes(d, device);
    const auto leaves = [&](const model::WeightsPlace& as, uint64_t sessions_bytes) {
      auto placement = model::place_weights(file, d, device, arena_bytes, as);
      if (!placement.ok()) status = placement.take_status();
      return placement.ok() && (!placement.value().repacks ||
                                (sessions_bytes <= arena_bytes && placement.value().all_arena_bytes() <= arena_bytes - sessions_bytes));
    };
    model::WeightsPlace as = *place;
    for (const bool embedding_away : {false, true}) {  // the embedding leaves before any column does
      as.embedding_away = embedding_away;
      if (leaves(as, automatic ? least : sessions)) {
        place->embedding_away = embedding_away;
        return status;
      }
      if (!status.ok()) return status;
    }
    n = model::divide_columns([&](int64_t share) {
      as.columns = share;
      return leaves(as, sessions);
    });
    if (!status.ok()) return status;
  }
  if (n < kWhole) place->columns = n;
  return ok_status();
}

}  // namespace

Result<model::WeightsPlace> place_model(const gguf::File& file, const model::Description& d, const Device& device,
                                        const RuntimeOptions& runtime, uint64_t arena_bytes, const ModelOptions& options) {
  model::WeightsPlace place;
  place.in_place = device.info().reads_host_memory && moves_directly(runtime);
  const bool automatic = options.host_computes == HostComputes::automatic && !device.info().reads_host_memory;
  place.experts_by_host = !place.in_place && (options.host_computes == HostComputes::always || automatic);
  ORRERY_TRY(place_experts(file, d, device, arena_bytes, options, &place));
  ORRERY_TRY(place_columns(file, d, device, arena_bytes, options, &place));
  place.layers = options.layers_on_device;
  if (place.layers > d.n_layers)
    return option_error(Code::invalid_argument, "layers_on_device", "layers_on_device is %lld, the model has %d layers",
                        static_cast<long long>(place.layers), d.n_layers);
  if (place.layers < 0 && !place.in_place) {
    const uint64_t least = options.sessions_bytes ? options.sessions_bytes : least_bytes(d, device);
    const auto fits = [&](const model::Placement& all) {
      return !all.repacks || (least <= arena_bytes && all.all_arena_bytes() <= arena_bytes - least);
    };
    ORRERY_ASSIGN(model::Placement all, model::place_weights(file, d, device, arena_bytes, place));
    if (!fits(all)) {  // the embedding leaves before any layer does
      place.embedding_away = true;
      ORRERY_ASSIGN(all, model::place_weights(file, d, device, arena_bytes, place));
    }
    if (!fits(all)) {
      const uint64_t sessions = options.sessions_bytes ? options.sessions_bytes : session_bytes(d, device, kShortContext);
      place.layers = model::divide_layers({all.layer_bytes, all.layer_arena_bytes, arena_bytes, all.all_arena_bytes(), sessions});
    }
  }
  if (place.layers == d.n_layers) place.layers = model::WeightsPlace::kAll;
  return place;
}

Result<gguf::File> ModelSource::open(const gguf::OpenOptions& options) const {
  if (from_memory) return gguf::File::open_memory(memory, "memory", options);
  if (descriptor >= 0) return gguf::File::open_descriptor(descriptor, options, offset, bytes);
  return gguf::File::open(path, options);
}

Result<std::shared_ptr<LanguageModel>> LanguageModel::open(std::shared_ptr<Runtime> runtime, const ModelSource& source,
                                                           const ModelOptions& options) {
  gguf::OpenOptions open;
  open.load = options.load;
  open.progress = options.weights.progress;
  // The header alone may refuse the model, before its data is read.
  std::shared_ptr<const Vocabulary> vocabulary;
  open.accept = [&](const gguf::File& header) -> Status {
    ORRERY_ASSIGN(const model::Description description, model::read_description(header, options.weights.rope, options.weights.families));
    ORRERY_TRY(model::check_tensors(header, description));
    ORRERY_ASSIGN(vocabulary, Vocabulary::from_gguf(header));
    return ok_status();
  };
  ORRERY_ASSIGN(gguf::File file, source.open(open));
  const std::string path = file.path();
  model::LoadOptions load = options.weights;
  load.n_threads = runtime->options().n_threads, load.priority = runtime->options().priority;
  // Bytes that have been read are not counted again: placing weights only asks whether to continue.
  if (load.progress && options.load == gguf::Load::read)
    load.progress = [ask = options.weights.progress](uint64_t, uint64_t total) { return ask(total, total); };
  ORRERY_ASSIGN(const model::Description description, model::read_description(file, load.rope, load.families));
  ORRERY_ASSIGN(load.place, place_model(file, description, runtime->device(), runtime->options(), runtime->arena().bytes(), options));
  if (load.place.needs_host()) {
    ORRERY_ASSIGN(load.host, runtime->host_backend());
  }
  load.sides = runtime->host_sides();
  load.reservoir = &runtime->reservoir();
  if (load.place.away() && !load.place.in_place) {
    ORRERY_ASSIGN(load.io, runtime->io());
  }
  ORRERY_ASSIGN(auto weights, model::load_model(std::move(file), &runtime->turns(), &runtime->arena(), load));
  std::string name;  // for messages: whole UTF-8
  text::utf8_append_valid(weights->description.name, &name);
  weights->description.name = std::move(name);
  runtime->log(LogLevel::info, "%s: %s, %llu parameters in %s, %llu bytes of weights %s, trained for %d tokens", path.c_str(),
               weights->description.family, static_cast<unsigned long long>(weights->n_parameters), type_traits(weights->main_type)->name,
               static_cast<unsigned long long>(weights->weights_bytes), options.load == gguf::Load::map ? "mapped" : "read",
               weights->description.trained_context);
  if (const model::ExpertStore* experts = weights->experts.get())
    runtime->log(LogLevel::info, "%s: %llu of %llu experts have room on the device (%llu bytes), %s (%llu bytes)", path.c_str(),
                 static_cast<unsigned long long>(experts->n_on_device()), static_cast<unsigned long long>(experts->units().n_units()),
                 static_cast<unsigned long long>(experts->arena_bytes()),
                 experts->in_place() ? "the others are used where they lie in host memory" : "all of them are in host memory",
                 static_cast<unsigned long long>(experts->reservoir_bytes()));
  if (const model::HostExperts* experts = weights->host.get())
    runtime->log(LogLevel::info, "%s: %llu of %llu experts are on the device (%llu bytes), the processor computes the others (%llu bytes)",
                 path.c_str(), static_cast<unsigned long long>(experts->layout().n_on_device),
                 static_cast<unsigned long long>(experts->layout().n_units), static_cast<unsigned long long>(experts->layout().arena_bytes),
                 static_cast<unsigned long long>(experts->layout().reservoir_bytes));
  if (const model::HostColumns* columns = weights->columns.get()) {
    const model::HostColumns::Layout::Layer& first = columns->layout().layers.front();
    runtime->log(
        LogLevel::info,
        "%s: %d of %d columns of feed-forward blocks are on the device (%llu bytes), the processor computes the others (%llu bytes)",
        path.c_str(), first.n_there, first.width, static_cast<unsigned long long>(columns->layout().arena_bytes()),
        static_cast<unsigned long long>(columns->layout().reservoir_bytes()));
  }
  if (const model::LayerStore* layers = weights->layers.get())
    runtime->log(LogLevel::info, "%s: the matrices of %zu of %d layers are in host memory (%llu bytes), %s", path.c_str(),
                 layers->units().layers.size(), weights->description.n_layers, static_cast<unsigned long long>(layers->reservoir_bytes()),
                 layers->in_place() ? "and used there" : "and cross the link in each step");
  return std::shared_ptr<LanguageModel>(new LanguageModel(std::move(runtime), std::move(weights), std::move(vocabulary)));
}

Result<std::shared_ptr<LanguageModel>> LanguageModel::open_head(const std::shared_ptr<LanguageModel>& of) {
  const std::lock_guard<std::mutex> lock(of->head_mutex_);
  std::shared_ptr<LanguageModel> head = of->head_.lock();
  if (head) return head;
  const AccountScope scope(of->account_);
  Runtime& runtime = *of->runtime_;
  model::LoadOptions load;
  load.n_threads = runtime.options().n_threads, load.priority = runtime.options().priority;
  ORRERY_ASSIGN(auto weights, model::load_head(*of->model_, &runtime.turns(), &runtime.arena(), load));
  head.reset(new LanguageModel(of->runtime_, std::move(weights), of->vocabulary_));
  head->head_of_ = of;
  of->head_ = head;
  return head;
}

LanguageModel::Shared LanguageModel::shared_with(const SessionOptions& options) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  Shared shared{limits_, {}};
  const Pools& pools = pools_[static_cast<size_t>(options.kv_type)];
  for (size_t g = 0; g < pools.size(); ++g) shared.spare_pages[g] = pools[g] ? pools[g]->spare() : 0;
  return shared;
}

Result<std::shared_ptr<kv::PagePool>> LanguageModel::page_pool(KvType type, bool in_reservoir, size_t group) {
  const AccountScope scope(account_);
  const std::lock_guard<std::mutex> lock(mutex_);
  std::shared_ptr<kv::PagePool>& pool = pools_[static_cast<size_t>(type) + (in_reservoir ? kKvTypeCount : 0)][group];
  kv::Arena& arena = in_reservoir ? runtime_->reservoir() : runtime_->arena();
  if (!pool) pool = std::make_shared<kv::PagePool>(&arena, kv_format(description(), type, group), in_ring(description(), group));
  return pool;
}

Status LanguageModel::ensure_workspace(uint32_t n_context, const SessionOptions& options) {
  const AccountScope scope(account_);
  const Device& device = runtime_->device();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (workspace_bytes() > 0 && same_workspace(workspace_limits(description(), device, limits_, options, n_context), limits_))
      return ok_status();
  }
  const Turn turn = runtime_->take_turn();
  const StepLimits wanted = workspace_limits(description(), device, limits_, options, n_context);
  if (workspace_.bytes > 0 && same_workspace(wanted, limits_)) return ok_status();
  const uint64_t bytes = model::carve_workspace(description(), device, wanted, {}).bytes;
  // Takes the new workspace before the old one is given back: if it does not fit, open sessions keep the old one.
  ORRERY_ASSIGN(kv::ArenaRegion region, kv::ArenaRegion::take(&runtime_->arena(), bytes, "the workspace"));
  ORRERY_TRY(waiting_rows_.fetch_all(&turn.backend()));
  const model::Workspace grown = model::carve_workspace(description(), device, wanted, region.data());
  if (model_->host) ORRERY_TRY(model_->host->reserve(&runtime_->reservoir(), wanted, model::host_work_shape(description())));
  if (model_->columns) ORRERY_TRY(model_->columns->reserve(&runtime_->reservoir(), wanted, description().n_embd));
  // Takes the pinned memory of these steps: now, so that no step of an open session is refused it.
  ORRERY_TRY(turn.backend().set_scratch(grown.scratch, wanted));
  workspace_region_ = std::move(region);
  workspace_ = grown;  // a copy, which the thread sanitizer can follow
  workspace_bytes_ = workspace_.bytes;
  waiting_rows_.use(workspace_);
  const std::lock_guard<std::mutex> lock(mutex_);
  limits_ = wanted;
  return ok_status();
}

}  // namespace orrery::engine
