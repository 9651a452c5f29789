#include "runtime/engine/shared/language_model.h"

#include <algorithm>

#include "runtime/engine/resident/resident.h"
#include "runtime/engine/session/session.h"
#include "runtime/kv/resident/digests.h"
#include "runtime/kv/resident/compensation_tokens.h"
#include "runtime/text/unicode/utf8.h"

namespace orrery::engine {

namespace {

constexpr uint32_t kDefaultChunk = 256, kMaxChunk = 4096, kMaxContext = 1u << 27;
constexpr uint64_t kStagingBytes = uint64_t{32} << 20;   // two halves: 0.6 ms of PCIe 4.0 each, beside which an operation more is little

// What a workspace that is there (zeros: none) must become for one more session.
StepLimits limits_with(const model::Hyperparameters& h, const Device& device, const StepLimits& held, const SessionOptions& options,
                       uint32_t n_context) {
  const int32_t context = static_cast<int32_t>(n_context);
  StepLimits limits = model::step_limits(h, std::max(static_cast<int32_t>(options.chunk()), held.max_rows),
                                         std::max(context, held.max_context));
  limits.max_top_keys = std::max(held.max_top_keys, policy::policy_needs(options.policy, options.policy_options).kept_queries > 0 ? context : 0);
  limits.staging_bytes = std::max(held.staging_bytes, options.compressed() && !device.info().unified_memory ? kStagingBytes : 0);
  return limits;
}

// Whether a workspace of the same model serves as it is.
bool same(const StepLimits& a, const StepLimits& b) {
  return a.max_rows == b.max_rows && a.max_context == b.max_context && a.max_top_keys == b.max_top_keys && a.staging_bytes == b.staging_bytes;
}

// What a plan is computed from, with the functions of the context that kv::PlanInput asks for.
struct Planner {
  const model::Hyperparameters& hyper;
  const Device& device;
  const SessionOptions& options;
  bool moves_directly;    // engine::moves_directly()
  StepLimits held = {};   // of the workspace that is there already; zeros where there is none
  uint32_t spare_pages = 0;

  static uint64_t workspace_bytes(const void* self, uint32_t n_context) {
    const Planner& p = *static_cast<const Planner*>(self);
    const StepLimits limits = limits_with(p.hyper, p.device, p.held, p.options, n_context);
    return same(limits, p.held) ? 0 : model::carve_workspace(p.hyper, p.device, limits, {}).bytes;
  }
  static uint64_t host_bytes(const void* self, uint32_t n_context) {
    const Planner& p = *static_cast<const Planner*>(self);
    return session_host_bytes(p.hyper, p.device, p.options, n_context, p.moves_directly);
  }

  static kv::ResidentBytes resident_bytes(const void* self, uint32_t n_context) {
    const Planner& p = *static_cast<const Planner*>(self);
    const Resident::Bytes bytes = Resident::device_bytes(p.hyper, p.device, p.options, n_context, p.moves_directly);
    return {bytes.full_kv, bytes.compressed_kv, bytes.digests, bytes.staging + bytes.queries};
  }

  // KV bytes that hold a policy's full heads up to some context do not hold them beyond. Where not even a token would
  // do, `most`, so that what is wrong is said when the policy is made.
  uint32_t accepted_context(uint32_t most) const {
    if (options.kv_budget_bytes == 0 || make_policy(hyper, options, most).ok()) return most;
    uint32_t low = 0, high = most;
    while (low + 1 < high) {
      const uint32_t middle = low + (high - low) / 2;
      (make_policy(hyper, options, middle).ok() ? low : high) = middle;
    }
    return low > 0 ? low : most;
  }

  kv::Plan plan(uint64_t weights_bytes, uint64_t mapped_bytes, uint64_t budget) const {
    kv::PlanInput input;
    input.weights_bytes = weights_bytes;
    input.weights_mapped_bytes = mapped_bytes;
    input.kv = kv_format(hyper, options.kv_type);
    input.spare_pages = spare_pages;
    input.max_context = accepted_context(options.n_context ? kMaxContext : static_cast<uint32_t>(hyper.trained_context));
    input.budget_bytes = budget;
    input.workspace_bytes = &Planner::workspace_bytes;
    input.host_bytes = &Planner::host_bytes;
    input.compressed = options.compressed();
    input.resident_bytes = &Planner::resident_bytes;
    input.self = this;
    kv::Plan plan = kv::make_plan(input, options.n_context);
    plan.device_type = options.resident_type(hyper);
    plan.trained_context = static_cast<uint32_t>(hyper.trained_context);
    return plan;
  }
};

// An automatic session is full, where that fits; else auto with the largest part of the KV that does, a tenth at least: less than that
// keeps too little to be taken unasked.
kv::Plan decide(const Planner& planner, SessionOptions* options, uint64_t weights_bytes, uint64_t mapped_bytes, uint64_t budget) {
  constexpr int kLeast = 100, kMost = 999;   // thousandths
  const kv::Plan full = planner.plan(weights_bytes, mapped_bytes, budget);
  if (!options->automatic) return full;
  if (options->n_context == 0 || full.fits) {
    options->automatic = false;
    return full;
  }
  SessionOptions part = *options;
  part.policy = "auto";
  const Planner planner_of_part{planner.hyper, planner.device, part, planner.moves_directly, planner.held, 0};
  const auto plan_of = [&](int thousandths) {
    part.kv_share = thousandths / 1000.;
    return planner_of_part.plan(weights_bytes, mapped_bytes, budget);
  };
  int low = kLeast - 1, high = kMost + 1;
  while (low + 1 < high) {
    const int middle = low + (high - low) / 2;
    (plan_of(middle).fits ? low : high) = middle;
  }
  if (low < kLeast) return full;
  const kv::Plan plan = plan_of(low);
  if (!make_policy(planner.hyper, part, plan.n_context).ok()) return full;
  options->automatic = false;
  options->policy = part.policy;
  options->kv_share = part.kv_share;
  return plan;
}

// Whether heads are cut into the type's blocks without remainder.
bool has_blocks(const model::Hyperparameters& h, KvType type) {
  return static_cast<uint32_t>(h.head_dim) % type_traits(kv_tensor_type(type))->block_elements == 0;
}

Status check_profile_shape(const model::Hyperparameters& h, const policy::HeadProfile& profile) {
  bool fits = profile.layers.size() == static_cast<size_t>(h.n_layers);
  for (const policy::ProfileLayer& layer : profile.layers)
    fits = fits && layer.n_kv_heads() == static_cast<uint32_t>(h.n_kv_heads);
  if (fits) return ok_status();
  return error(Code::invalid_argument, "the head profile is for %zu layers with %u KV heads, the model has %d with %d",
               profile.layers.size(), profile.layers.empty() ? 0 : profile.layers[0].n_kv_heads(), h.n_layers,
               h.n_kv_heads);
}

}  // namespace

uint32_t SessionOptions::chunk() const { return chunk_tokens ? chunk_tokens : kDefaultChunk; }

KvType SessionOptions::resident_type(const model::Hyperparameters& h) const {
  if (device_kv_type) return *device_kv_type;
  const std::optional<KvType> own = policy::policy_needs(policy, policy_options).device_type;
  return own && finer(kv_type, *own) && has_blocks(h, *own) ? *own : kv_type;
}

Status SessionOptions::validate(const model::Hyperparameters& h) const {
  if (n_context > kMaxContext)
    return error(Code::invalid_argument, "n_context is %u, expected at most %u", n_context, kMaxContext);
  if (chunk_tokens > kMaxChunk)
    return error(Code::invalid_argument, "chunk_tokens is %u, expected at most %u", chunk_tokens, kMaxChunk);
  const KvType resident = resident_type(h);
  if (!has_blocks(h, kv_type) || !has_blocks(h, resident))
    return error(Code::unsupported, "a quantized KV cache needs a head dimension that is a multiple of 32; this model has %d",
                 h.head_dim);
  const char* type_name = type_traits(kv_tensor_type(kv_type))->name;
  const char* device_name = type_traits(kv_tensor_type(resident))->name;
  if (finer(resident, kv_type))
    return error(Code::invalid_argument,
                 "the device's KV type %s is finer than %s, of which its values would be made: expected the same or coarser",
                 device_name, type_name);
  if (!compressed() && !automatic && resident != kv_type)
    return error(Code::invalid_argument,
                 "policy full keeps its only copy of the KV on the device: the device's KV type is %s, expected %s",
                 device_name, type_name);
  if (!(kv_share > 0.0 && kv_share <= 1.0))
    return error(Code::invalid_argument, "the KV budget is a share of %g, expected more than 0, at most 1", kv_share);
  if (!compressed() && (kv_share != 1.0 || kv_budget_bytes != 0))
    return error(Code::invalid_argument, "policy full keeps all of the KV: a KV budget needs another policy");
  if (!compressed() && !policy_options.empty())
    return error(Code::invalid_argument, "policy full has no options; '%.40s' was given",
                 policy_options[0].first.c_str());
  if (head_profile) ORRERY_TRY(check_profile_shape(h, *head_profile));
  return ok_status();
}

namespace {

policy::Shape policy_shape(const model::Hyperparameters& h, KvType device, uint32_t n_context) {
  policy::Shape shape;
  shape.n_layers = static_cast<uint32_t>(h.n_layers);
  shape.n_kv_heads = static_cast<uint32_t>(h.n_kv_heads);
  shape.n_context = n_context;
  shape.window = h.window;
  shape.slot_bytes = kv_format(h, device).token_bytes();
  shape.digest_bytes = kv::Digests::digest_bytes(h.head_dim);
  shape.head_dim = static_cast<uint32_t>(h.head_dim);
  shape.compensation_token_bytes = kv::CompensationTokens::bytes_of(1, h.head_dim);
  return shape;
}

// Slots of layers with a sliding window, which keep it whole under every policy.
uint64_t window_slots(const model::Hyperparameters& h, uint32_t n_context) {
  uint64_t slots = 0;
  for (const int32_t window : h.window) slots += std::min(static_cast<uint64_t>(window), uint64_t{n_context});
  return slots * static_cast<uint64_t>(h.n_kv_heads);
}

policy::KvShare share_of(const model::Hyperparameters& h, const SessionOptions& options) {
  return {options.kv_share, kv_format(h, options.kv_type).token_bytes(), kv_format(h, options.resident_type(h)).token_bytes()};
}

}  // namespace

Result<std::unique_ptr<policy::Policy>> make_policy(const model::Hyperparameters& h, const SessionOptions& options,
                                                    uint32_t n_context) {
  policy::Budget budget;
  const KvType device = options.resident_type(h);
  if (options.kv_budget_bytes)
    budget.slot_bytes = kv_format(h, device).token_bytes();
  else
    budget.share = share_of(h, options);
  budget.max_slots = resident_slots(h, options, n_context);
  // A share always holds the windows; a budget in bytes may not.
  if (const uint64_t windows = window_slots(h, n_context); windows > budget.max_slots)
    return error(Code::invalid_argument,
                 "policy %.40s: layers with a sliding window keep all of it, which a KV budget of %llu bytes does not hold at a context "
                 "of %u; it must be at least %llu bytes",
                 options.policy.c_str(), static_cast<unsigned long long>(options.kv_budget_bytes), n_context,
                 static_cast<unsigned long long>(align_up(windows * budget.slot_bytes, kv::kArenaAlignment)));
  if (options.head_profile) ORRERY_TRY(check_profile_shape(h, *options.head_profile));
  return policy::make_policy(options.policy, policy_shape(h, device, n_context), budget, options.policy_options,
                             options.head_profile);
}

uint64_t resident_slots(const model::Hyperparameters& h, const SessionOptions& options, uint32_t n_context) {
  const KvType device = options.resident_type(h);
  const policy::Shape shape = policy_shape(h, device, n_context);
  const uint64_t all = policy::slots_for_share(shape, 1.0);
  if (options.kv_budget_bytes == 0) return policy::slots_for_share(shape, share_of(h, options));
  // Of the arena's units: the last, broken one would be more than was asked for.
  const uint64_t bytes = options.kv_budget_bytes / kv::kArenaAlignment * kv::kArenaAlignment;
  return std::min(all, bytes / kv_format(h, device).token_bytes());
}

KvFormat kv_format(const model::Hyperparameters& h, KvType type) {
  KvFormat format;
  format.type = type;
  format.n_layers = h.n_layers;
  format.n_kv_heads = h.n_kv_heads;
  format.head_dim = h.head_dim;
  return format;
}

Result<gguf::File> ModelSource::open(const gguf::OpenOptions& options) const {
  if (from_memory) return gguf::File::open_memory(memory, "memory", options);
  if (descriptor >= 0) return gguf::File::open_descriptor(descriptor, options);
  return gguf::File::open(path, options);
}

Result<std::shared_ptr<LanguageModel>> LanguageModel::open(std::shared_ptr<Runtime> runtime, const ModelSource& source,
                                                           const ModelOptions& options) {
  gguf::OpenOptions open;
  open.load = options.load;
  open.progress = options.weights.progress;
  // A model that the header rules out is refused before its data is read.
  std::shared_ptr<const Vocabulary> vocabulary;
  open.accept = [&](const gguf::File& header) -> Status {
    ORRERY_ASSIGN(const model::Hyperparameters hyper, model::read_hyperparameters(header, options.weights.rope));
    ORRERY_TRY(model::check_tensors(header, hyper));
    ORRERY_ASSIGN(vocabulary, Vocabulary::from_gguf(header));
    return ok_status();
  };
  ORRERY_ASSIGN(gguf::File file, source.open(open));
  const std::string path = file.path();
  model::LoadOptions load = options.weights;
  // What has been read needs no second count: placing it only asks whether to go on.
  if (load.progress && options.load == gguf::Load::read)
    load.progress = [ask = options.weights.progress](uint64_t, uint64_t total) { return ask(total, total); };
  ORRERY_ASSIGN(auto weights, model::load_model(std::move(file), &runtime->turns(), &runtime->arena(), load));
  std::string name;   // for people: whole UTF-8, whatever the file has
  text::utf8_append_valid(weights->hyper.name, &name);
  weights->hyper.name = std::move(name);
  runtime->log(LogLevel::info, "%s: %s, %llu parameters in %s, %llu bytes of weights %s, trained for %d tokens", path.c_str(),
               weights->hyper.architecture->name, static_cast<unsigned long long>(weights->n_parameters),
               type_traits(weights->main_type)->name, static_cast<unsigned long long>(weights->weights_bytes),
               options.load == gguf::Load::map ? "mapped" : "read", weights->hyper.trained_context);
  return std::shared_ptr<LanguageModel>(
      new LanguageModel(std::move(runtime), std::move(weights), std::move(vocabulary)));
}

kv::Plan LanguageModel::plan_session(SessionOptions* options) const {
  // The workspace that is there already serves as far as it goes; beyond that a whole new one is taken beside it.
  const std::lock_guard<std::mutex> lock(mutex_);
  const std::shared_ptr<kv::PagePool>& pool = pools_[static_cast<size_t>(options->kv_type)];
  const uint32_t spare_pages = pool && !options->compressed() ? pool->spare() : 0;
  const SessionOptions given = *options;
  const Planner planner{hyper(), runtime_->device(), given, runtime_->moves_directly(), limits_, spare_pages};
  return decide(planner, options, 0, 0, runtime_->arena().largest_free());
}

Result<std::shared_ptr<kv::PagePool>> LanguageModel::page_pool(KvType type, bool in_reservoir) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::shared_ptr<kv::PagePool>& pool = pools_[static_cast<size_t>(type) + (in_reservoir ? 4 : 0)];
  kv::Arena& arena = in_reservoir ? runtime_->reservoir() : runtime_->arena();
  if (!pool) pool = std::make_shared<kv::PagePool>(&arena, kv_format(hyper(), type));
  return pool;
}

Status LanguageModel::ensure_workspace(uint32_t n_context, const SessionOptions& options) {
  const Device& device = runtime_->device();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (workspace_bytes() > 0 && same(limits_with(hyper(), device, limits_, options, n_context), limits_)) return ok_status();
  }
  const Turn turn = runtime_->take_turn();
  const StepLimits wanted = limits_with(hyper(), device, limits_, options, n_context);
  if (workspace_.bytes > 0 && same(wanted, limits_)) return ok_status();
  const uint64_t bytes = model::carve_workspace(hyper(), device, wanted, {}).bytes;
  // The new one is taken before the old one goes: if it does not fit, the open sessions keep theirs.
  ORRERY_ASSIGN(kv::ArenaRegion region, kv::ArenaRegion::take(&runtime_->arena(), bytes, "the workspace"));
  ORRERY_TRY(waiting_rows_.fetch_all(&turn.backend()));
  workspace_region_ = std::move(region);
  const model::Workspace grown = model::carve_workspace(hyper(), device, wanted, workspace_region_.data());
  workspace_ = grown;   // by a copy, which the thread sanitizer sees
  workspace_bytes_ = workspace_.bytes;
  waiting_rows_.use(workspace_);
  const std::lock_guard<std::mutex> lock(mutex_);
  limits_ = wanted;
  return ok_status();
}

Result<kv::Plan> plan_file(const std::string& path, const RuntimeOptions& runtime, const ModelOptions& model,
                           SessionOptions session) {
  gguf::OpenOptions open;
  open.header_only = true;
  ORRERY_ASSIGN(const gguf::File file, gguf::File::open(path, open));
  ORRERY_ASSIGN(const model::Hyperparameters hyper, model::read_hyperparameters(file, model.weights.rope));
  ORRERY_TRY(session.validate(hyper));
  ORRERY_ASSIGN(const auto backend, make_backend(runtime));
  const uint64_t budget = budget_bytes(runtime, *backend) / kv::kArenaAlignment * kv::kArenaAlignment;
  ORRERY_ASSIGN(const model::Placement weights, model::place_weights(file, hyper, *backend, budget));
  uint64_t mapped = 0;
  for (const gguf::Tensor& t : file.tensors())
    if (!weights.repacks ||
        backend->weight_bytes(t.type, static_cast<int64_t>(t.dims[1]), static_cast<int64_t>(t.dims[0])) == 0)
      mapped += t.bytes;
  const SessionOptions given = session;
  const Planner planner{hyper, *backend, given, moves_directly(runtime, *backend)};
  const kv::Plan plan = decide(planner, &session, weights.arena_bytes, mapped, budget);
  ORRERY_TRY(session.validate(hyper));
  if (session.compressed()) {   // what opening would refuse, the plan refuses
    ORRERY_ASSIGN(const auto policy, make_policy(hyper, session, plan.n_context));
    (void)policy;
  }
  return plan;
}

}  // namespace orrery::engine
