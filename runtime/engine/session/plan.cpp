#include "runtime/engine/session/plan.h"

#include <algorithm>

#include "runtime/base/checked.h"
#include "runtime/engine/resident/resident_shape.h"
#include "runtime/engine/session/session.h"
#include "runtime/model/families/family.h"

namespace orrery::engine {

namespace {

// The regions of the draft model, or the model's head, and its session: their sums by kind.
kv::Layout draft_layout(const LayoutInput& in, uint32_t n_context) {
  const SessionOptions options = in.options->of_draft(n_context);
  const LayoutInput::Draft& draft = in.draft;
  const kv::Layout own =
      session_layout({*draft.description, in.device, &options, in.moves_directly, draft.shared, draft.weights}, n_context);
  kv::Region sums[] = {{"draft model's weights", kv::Holds::weights},
                       {"draft model's workspace", kv::Holds::workspace},
                       {"draft model's KV", kv::Holds::kv},
                       {"draft model's session", kv::Holds::tables}};
  for (const kv::Region& region : own.regions())
    for (kv::Region& sum : sums) {
      if (sum.holds != region.holds) continue;
      sum.device_bytes += region.device_bytes, sum.reservoir_bytes += region.reservoir_bytes, sum.host_bytes += region.host_bytes;
      sum.full_heads_bytes += region.full_heads_bytes;
    }
  kv::Layout layout;
  for (const kv::Region& sum : sums) layout.add(sum);
  return layout;
}

}  // namespace

HostWork HostWork::of(const model::Model& model) {
  if (model.host) return {&model.host->host(), true, 0};
  if (model.columns) return {&model.columns->host(), false, model.columns->layout().width()};
  return {};
}

uint64_t HostWork::bytes(const model::Description& d, const StepLimits& limits) const {
  if (!host) return 0;
  return experts ? model::HostExperts::work_bytes(*host, limits, model::host_work_shape(d))
                 : model::HostColumns::work_bytes(*host, limits, d.n_embd, columns);
}

kv::Layout session_layout(const LayoutInput& in, uint32_t n_context) {
  const model::Description& h = in.description;
  const SessionOptions& options = *in.options;
  const bool compressed = options.compressed();
  kv::Layout layout;
  const WeightsMemory& weights = in.weights;
  layout.add({"weights", kv::Holds::weights, align_up(weights.arena, kv::kArenaAlignment), 0, weights.mapped, 0});
  layout.add({"experts", kv::Holds::weights, weights.experts.arena_bytes, weights.experts.reservoir_bytes, 0, 0});
  layout.add({"columns", kv::Holds::weights, weights.columns.arena_bytes, weights.columns.reservoir_bytes, 0, 0});
  layout.add({"layers", kv::Holds::weights, weights.layers.arena_bytes, weights.layers.reservoir_bytes, 0, 0});
  layout.add({"adapters", kv::Holds::weights, in.adapters_bytes, 0, 0, 0});
  const StepLimits limits = workspace_limits(h, in.device, in.shared.limits, options, n_context);
  if (!same_workspace(limits, in.shared.limits)) {  // else the session uses the model's workspace
    layout.add({"workspace", kv::Holds::workspace, model::carve_workspace(h, in.device, limits, {}).bytes, in.host.bytes(h, limits), 0, 0});
  }
  for (size_t g = 0; g < h.groups.size(); ++g) {
    const uint32_t pages = group_pages(h, options, n_context, g);
    const bool in_reservoir = compressed && g == 0;  // layers with windows need their pages on the device
    const uint32_t spare = in_reservoir ? 0 : in.shared.spare_pages[g];
    layout.add(kv::PagePool::layout(kv_format(h, options.kv_type, g), pages - std::min(pages, spare), in_reservoir, in_ring(h, g)));
  }
  if (compressed) layout.add(resident_layout(h, in.device.info(), options, n_context, in.moves_directly));
  layout.add(key_means_layout(h, options));
  layout.add(CheckpointedState::layout(h, options.kv_type));
  if (options.speculate != Speculate::off) layout.add(CheckpointedState::guesses_layout(h));
  layout.add(Session::layout(h, options, n_context));
  if (in.draft.description) layout.add(draft_layout(in, n_context));
  return layout;
}

namespace {

// The largest context, at most `most`, at which a policy can be made of a KV budget in bytes: full heads of a longer context would need
// more. `most` if not even one token fits; the error then comes when the policy is made.
uint32_t accepted_context(const model::Description& description, const SessionOptions& options, uint32_t most) {
  if (options.kv_budget_bytes == 0 || make_policy(description, options, most).ok()) return most;
  uint32_t low = 0, high = most;
  while (low + 1 < high) {
    const uint32_t middle = low + (high - low) / 2;
    (make_policy(description, options, middle).ok() ? low : high) = middle;
  }
  return low > 0 ? low : most;
}

struct Budgets {
  uint64_t arena, reservoir;
};

// What the policy may keep, as a share of full KV's bytes in kv_type.
double share_of_full(const model::Description& h, const SessionOptions& options, uint32_t n_context) {
  if (!options.compressed()) return 1;
  if (options.kv_budget_bytes == 0) return options.kv_share;
  const double full = static_cast<double>(kv_format(h, options.kv_type).token_bytes()) *
                      static_cast<double>(h.kv().n_layers() * h.kv().n_kv_heads) * static_cast<double>(n_context);
  return std::min(1., static_cast<double>(options.kv_budget_bytes) / full);
}

kv::Plan plan_of(const LayoutInput& input, const Budgets& budget) {
  const SessionOptions& options = *input.options;
  kv::PlanInput in;
  const uint32_t most = options.n_context ? kMaxContext : static_cast<uint32_t>(input.description.trained_context);
  in.max_context = accepted_context(input.description, options, most);
  in.budget_bytes = budget.arena, in.reservoir_budget_bytes = budget.reservoir;
  in.layout = [](const void* self, uint32_t n_context) { return session_layout(*static_cast<const LayoutInput*>(self), n_context); };
  in.self = &input;
  kv::Plan plan = kv::make_plan(in, options.n_context);
  plan.device_type = options.resident_type(input.description);
  plan.trained_context = static_cast<uint32_t>(input.description.trained_context);
  for (const policy::PolicyRow& row : policy::policy_rows())
    if (options.policy == row.name) plan.policy = row.name;
  plan.kv_share = share_of_full(input.description, options, plan.n_context);
  return plan;
}

// An automatic session is full if full KV fits. Else it is auto with the largest share of the KV that fits, at least a tenth: a smaller
// share keeps too little to be chosen without asking. Where tokens are read in place, any share fits, and more than a quarter of them takes
// as long as all.
kv::Plan decide(const LayoutInput& input, SessionOptions* options, const Budgets& budget) {
  constexpr int kLeast = 100, kMost = 999, kMostInPlace = 250;  // thousandths
  const kv::Plan full = plan_of(input, budget);
  if (!options->automatic) return full;
  if (options->n_context == 0 || full.fits || !options->check_policy_fits(input.description).ok()) {
    options->automatic = false;
    return full;
  }
  SessionOptions part = *options;
  part.policy = "auto";
  const LayoutInput of_part = input.with(part);
  const auto plan_of_part = [&](int thousandths) {
    part.kv_share = thousandths / 1000.;
    return plan_of(of_part, budget);
  };
  part.kv_share = kMostInPlace / 1000.;
  int low = kLeast - 1, high = (part.in_place(input.description) ? kMostInPlace : kMost) + 1;
  while (low + 1 < high) {
    const int middle = low + (high - low) / 2;
    (plan_of_part(middle).fits ? low : high) = middle;
  }
  if (low < kLeast) return full;
  const kv::Plan plan = plan_of_part(low);
  if (!make_policy(input.description, part, plan.n_context).ok()) return full;
  options->automatic = false;
  options->policy = part.policy;
  options->kv_share = part.kv_share;
  return plan;
}

// Without a wish of the caller, prompts come in larger chunks where the device gains by them (BackendInfo::useful_chunk): the largest of
// these sizes that costs no context and no share of the KV; else SessionOptions::chunk().
kv::Plan decide_with_chunk(const LayoutInput& input, SessionOptions* options, const Budgets& budget) {
  const kv::Plan plan = decide(input, options, budget);
  const auto useful = static_cast<uint32_t>(input.device.info().useful_chunk);
  if (options->chunk_tokens > 0 || useful == 0) return plan;
  // Larger chunks would need larger rings.
  const uint32_t largest = windows_bytes(input.description, options->kv_type) > 0 ? std::min(kWindowSlack / 2, useful) : useful;
  for (const uint32_t chunk : {largest, largest / 2}) {
    if (chunk > plan.n_context) continue;
    SessionOptions larger = *options;
    larger.chunk_tokens = chunk;
    const kv::Plan of_larger = plan_of(input.with(larger), budget);
    if (!of_larger.fits || of_larger.n_context != plan.n_context) continue;
    options->chunk_tokens = chunk;
    return of_larger;
  }
  return plan;
}

}  // namespace

kv::Plan plan_session(const LanguageModel& model, SessionOptions* options) {
  // If the model's workspace is too small, a whole new one is taken before the old one is given back.
  Runtime& runtime = model.runtime();
  options->see_device(runtime.device().info(), runtime.moves_directly());
  const SessionOptions given = *options;
  LayoutInput input = {model.description(), runtime.device(), &given, runtime.moves_directly(), model.shared_with(given)};
  input.host = HostWork::of(model.weights());
  if (const LanguageModel* draft = given.draft_model.get()) input.draft = {&draft->description(), draft->shared_with(given.of_draft(0))};
  return decide_with_chunk(input, options, {runtime.arena().largest_free(), runtime.reservoir().largest_free()});
}

namespace {

Result<WeightsMemory> weights_of(const gguf::File& file, const model::Description& description, const Device& device, uint64_t budget,
                                 const model::WeightsPlace& place) {
  ORRERY_ASSIGN(const model::Placement weights, model::place_weights(file, description, device, budget, place));
  WeightsMemory bytes;
  bytes.arena = weights.arena_bytes, bytes.experts = weights.experts, bytes.layers = weights.layers;
  bytes.columns = {weights.columns.arena_bytes(), weights.columns.reservoir_bytes()};
  bytes.experts_on_host = static_cast<bool>(weights.host), bytes.columns_on_host = weights.columns.width();
  for (const gguf::Tensor& t : file.tensors())
    if (!weights.repacks || model::repacked_bytes(file, t, device, place) == 0) bytes.mapped += t.bytes;
  for (const gguf::Tensor* t : weights.in_units)  // copied all the same
    if (!weights.repacks || model::repacked_bytes(file, *t, device, place) == 0) bytes.mapped -= t->bytes;
  return bytes;
}

// The arena's bytes of the adapters. One that is in the list twice is open once; sources stand for an adapter each.
Result<uint64_t> bytes_of(const Adapters& adapters, const gguf::File& file, const model::Description& description) {
  uint64_t bytes = 0;
  std::vector<const LoadedAdapter*> open;
  gguf::OpenOptions header;
  header.header_only = true;
  for (const AdapterChoice& choice : adapters ? adapters->choices() : Span<const AdapterChoice>()) {
    if (!choice.adapter) {
      ORRERY_ASSIGN(const gguf::File its, choice.source->open(header));
      ORRERY_ASSIGN(const uint64_t its_bytes, model::adapter_bytes(its, file, description));
      bytes += its_bytes;
    } else if (std::find(open.begin(), open.end(), choice.adapter.get()) == open.end()) {
      open.push_back(choice.adapter.get());
      bytes += choice.adapter->bytes();
    }
  }
  return bytes;
}

}  // namespace

Status check_draft(const model::Description& draft, const Vocabulary& vocabulary, const Vocabulary& own) {
  if (draft.encoder)
    return option_error(Code::unsupported, "draft_model", "the draft model is an encoder (architecture '%.64s'), which generates no text",
                        draft.family);
  if (draft.recurrent())
    return option_error(Code::unsupported, "draft_model",
                        "the draft model has recurrent layers, which cannot take drafted tokens back; expected one without");
  return own.check_same_tokens(vocabulary);
}

Result<kv::Plan> plan_file(const ModelSource& source, const RuntimeOptions& runtime, const ModelOptions& model, SessionOptions session) {
  gguf::OpenOptions open;
  open.header_only = true;
  if (model.load == gguf::Load::map) ORRERY_TRY(gguf::File::check_mappable(source.offset));  // as opening refuses it
  ORRERY_ASSIGN(const gguf::File file, source.open(open));
  ORRERY_ASSIGN(const model::Description description, model::read_description(file, model.weights.rope, model.weights.families));
  ORRERY_TRY(session.validate(description));
  GpuUse gpu;
  ORRERY_ASSIGN(const auto backend, make_backend(runtime, &gpu));
  const uint64_t budget = budget_bytes(runtime, *backend) / kv::kArenaAlignment * kv::kArenaAlignment;
  ORRERY_ASSIGN(const model::WeightsPlace place, place_model(file, description, *backend, runtime, budget, model));
  std::unique_ptr<Backend> host;
  if (place.needs_host()) {
    ORRERY_ASSIGN(host, make_host_backend(runtime));
  }
  ORRERY_ASSIGN(const WeightsMemory weights, weights_of(file, description, *backend, budget, place));
  session.see_device(backend->info(), moves_directly(runtime));
  const SessionOptions given = session;
  LayoutInput input = {description, *backend, &given, moves_directly(runtime), {}, weights};
  if (weights.experts_on_host || weights.columns_on_host > 0) input.host = {host.get(), weights.experts_on_host, weights.columns_on_host};
  model::Description draft_description;
  if (given.speculate == Speculate::draft) {
    if (given.draft_source == nullptr)
      return option_error(Code::invalid_argument, "draft_model", "a plan takes a draft model as a source (draft_source), not an open one");
    ORRERY_TRY(gguf::File::check_mappable(given.draft_source->offset));
    ORRERY_ASSIGN(const gguf::File draft, given.draft_source->open(open));
    ORRERY_ASSIGN(draft_description, model::read_description(draft, {}));
    ORRERY_ASSIGN(const auto vocabulary, Vocabulary::from_gguf(file));
    ORRERY_ASSIGN(const auto of_draft, Vocabulary::from_gguf(draft));
    ORRERY_TRY(check_draft(draft_description, *of_draft, *vocabulary));
    // The model's weights take their part of the arena first.
    const uint64_t taken = weights.all_arena();
    ModelOptions of_draft_model;
    of_draft_model.host_computes = HostComputes::never;
    ORRERY_ASSIGN(const model::WeightsPlace draft_place, place_model(draft, draft_description, *backend, runtime, budget, of_draft_model));
    ORRERY_ASSIGN(const WeightsMemory draft_weights,
                  weights_of(draft, draft_description, *backend, budget - std::min(budget, taken), draft_place));
    input.draft = {&draft_description, {}, draft_weights};
  }
  if (given.speculate == Speculate::mtp) {
    draft_description = model::describe_head(description);
    ORRERY_ASSIGN(const model::Placement head, model::place_head(file, draft_description, *backend, budget));
    input.draft.description = &draft_description, input.draft.weights.arena = head.arena_bytes;
  }
  ORRERY_ASSIGN(input.adapters_bytes, bytes_of(given.adapters, file, description));
  const kv::Plan plan = decide_with_chunk(input, &session, {budget, reservoir_budget_bytes(runtime)});
  ORRERY_TRY(session.validate(description));
  ORRERY_TRY(session.check_device(*backend, description));
  if (session.compressed()) {  // the plan refuses everything that opening refuses
    ORRERY_ASSIGN(const auto policy, make_policy(description, session, plan.n_context));
    ORRERY_TRY(session.check_drafts(*policy));
  }
  return plan;
}

}  // namespace orrery::engine
