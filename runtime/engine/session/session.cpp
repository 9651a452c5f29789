#include "runtime/engine/session/session.h"

#include <algorithm>
#include <cstring>

#include "runtime/engine/session/plan.h"
#include "runtime/engine/shared/row_shortlist.h"

namespace orrery::engine {

kv::Layout Session::layout(const model::Description& h, const SessionOptions& options, uint32_t n_context) {
  const uint64_t vocab = static_cast<uint64_t>(h.n_vocab), embd = static_cast<uint64_t>(h.n_embd);
  kv::Layout layout;
  const auto add = [&](const char* name, uint64_t bytes) { layout.add({name, kv::Holds::tables, 0, 0, bytes, 0}); };
  // The session's, with how each was made; and a prompt's and its answer's, which a generation holds.
  add("tokens", (uint64_t{n_context} + 1) * (3 * sizeof(int32_t) + sizeof(uint8_t)));
  add("page table", h.groups.size() * kv::pages_to_reserve(n_context) * (sizeof(kv::Page) + sizeof(kv::Page*) + sizeof(uint64_t)));
  add("logits and embedding", (vocab + embd) * sizeof(float));
  add("sampler", vocab * (2 * sizeof(float) + sizeof(int32_t) + sizeof(double)) + Shortlist::kHostBytes + RowShortlist::host_bytes(vocab));
  layout.add(PromptPace::layout(h, options.chunk_of(h, n_context)));
  if (options.speculate != Speculate::off) layout.add(Guesses::layout(h, n_context));
  if (options.speculate == Speculate::mtp) layout.add(HiddenRows::layout(h, options.chunk()));
  return layout;
}

namespace {

// The error of a plan that does not fit: of the arena, or else of the reservoir.
Status does_not_fit(const kv::Plan& plan) {
  using ull = unsigned long long;
  if (plan.device_bytes <= plan.budget_bytes)
    return memory_error(
        Code::out_of_host_memory, plan.reservoir_bytes, plan.reservoir_budget_bytes,
        "under policy %s a session of %u tokens keeps all KV in host memory: %llu bytes, and the reservoir has %llu free: %llu "
        "short; the largest context that fits is %u tokens; a smaller n_context or a coarser kv_type takes less, a larger "
        "reservoir_bytes gives more",
        plan.policy, plan.n_context, static_cast<ull>(plan.reservoir_bytes), static_cast<ull>(plan.reservoir_budget_bytes),
        static_cast<ull>(plan.reservoir_bytes - plan.reservoir_budget_bytes), plan.largest_context);
  return memory_error(Code::out_of_device_memory, plan.device_bytes, plan.budget_bytes,
                      "a session of %u tokens needs %llu bytes of device memory (KV %llu, workspace %llu), "
                      "%llu are free: %llu short; the largest context that fits is %u tokens; a smaller n_context, a coarser "
                      "kv_type or a KV budget takes less, a larger device_budget_bytes gives more",
                      plan.n_context, static_cast<ull>(plan.device_bytes), static_cast<ull>(plan.full_kv_bytes + plan.compressed_kv_bytes),
                      static_cast<ull>(plan.workspace_bytes), static_cast<ull>(plan.budget_bytes),
                      static_cast<ull>(plan.device_bytes - std::min(plan.device_bytes, plan.budget_bytes)), plan.largest_context);
}

// Logs one kind of memory in one line: its bytes in all, and region by region.
void log_regions(Runtime* runtime, const char* where, const kv::Layout& layout, uint64_t kv::Region::*bytes) {
  std::string parts;
  uint64_t total = 0;
  for (const kv::Region& region : layout.regions()) {
    if (region.*bytes == 0) continue;
    total += region.*bytes;
    parts += (parts.empty() ? "" : ", ") + std::string(region.name) + " " + std::to_string(region.*bytes);
  }
  if (total > 0)
    runtime->log(LogLevel::info, "%s, for the session: %llu bytes: %s", where, static_cast<unsigned long long>(total), parts.c_str());
}

// A sequence, and the plan by which it was opened.
struct Opened {
  std::unique_ptr<Sequence> sequence;
  kv::Plan plan;
  SessionOptions wanted;
};

// Logs the length of the context and why, the policy, and the regions of the plan.
void tell(const Opened& opened) {
  const Sequence& sequence = *opened.sequence;
  const kv::Plan& plan = opened.plan;
  const SessionOptions& wanted = opened.wanted;
  Runtime& runtime = sequence.model().runtime();
  const model::Description& h = sequence.model().description();
  const SessionOptions& options = sequence.options();
  const uint32_t n_context = sequence.n_context();
  const auto trained = static_cast<uint32_t>(h.trained_context);
  if (wanted.n_context == 0 && n_context < trained)
    runtime.log(LogLevel::warning, "the context has %u tokens, not the %u that the model was trained for: the %s has room for no more (%s)",
                n_context, trained, plan.reservoir_bounds ? "reservoir" : "arena",
                plan.reservoir_bounds ? "reservoir_bytes" : "device_budget_bytes");
  if (n_context > model::reach_of_context(h))
    runtime.log(LogLevel::warning,
                "the context of %u tokens is longer than the %u that the model was trained for: behind them answers get worse "
                "(rope_scaling)",
                n_context, model::reach_of_context(h));
  runtime.log(LogLevel::info, "session of %u tokens, policy %s (%s), KV in %s, on the device in %s", n_context, options.policy.c_str(),
              !wanted.automatic      ? "as asked for"
              : options.compressed() ? "full KV does not fit the arena"
                                     : "full KV fits the arena",
              kv_type_name(options.kv_type), kv_type_name(plan.device_type));
  log_regions(&runtime, "arena", plan.layout, &kv::Region::device_bytes);
  log_regions(&runtime, "reservoir", plan.layout, &kv::Region::reservoir_bytes);
  log_regions(&runtime, "other host memory, at most", plan.layout, &kv::Region::host_bytes);
}

// Plans a sequence, decides automatic options, and takes the memory.
Result<Opened> open_sequence(const std::shared_ptr<LanguageModel>& model, SessionOptions options) {
  ORRERY_TRY(options.validate(model->description()));
  const bool given = options.compressed();
  const SessionOptions wanted = options;
  const kv::Plan plan = plan_session(*model, &options);
  ORRERY_TRY(options.validate(model->description()));  // now with a decided policy
  ORRERY_TRY(options.check_device(model->runtime().device(), model->description()));
  if (options.compressed() && !given)
    model->runtime().log(
        LogLevel::warning,
        "the full KV of %u tokens does not fit the device: policy %s keeps %.4g%% of its bytes there, in %s, and answers are "
        "approximations; a smaller n_context or a larger device_budget_bytes gives full attention, policy \"full\" refuses",
        plan.n_context, plan.policy, 100 * plan.kv_share, kv_type_name(plan.device_type));
  if (plan.largest_context == 0 || (options.n_context > 0 && !plan.fits)) ORRERY_TRY(does_not_fit(plan));
  if (options.compressed()) {  // the policy's errors come before memory is taken
    ORRERY_ASSIGN(const auto policy, make_policy(model->description(), options, plan.n_context));
    ORRERY_TRY(options.check_drafts(*policy));
  }
  ORRERY_ASSIGN(std::unique_ptr<Sequence> sequence, Sequence::open(model, options, plan.n_context));
  return Opened{std::move(sequence), plan, wanted};
}

// The regions of a session that is open.
kv::Layout regions_of(const Sequence& sequence) {
  const LanguageModel& model = sequence.model();
  LayoutInput input = {model.description(), model.runtime().device(), &sequence.options(), model.runtime().moves_directly()};
  input.host = HostWork::of(model.weights());
  if (const auto& draft = sequence.options().draft_model) input.draft.description = &draft->description();
  return session_layout(input, sequence.n_context());
}

}  // namespace

Result<std::unique_ptr<Session>> Session::open(std::shared_ptr<LanguageModel> model, SessionOptions options) {
  if (model->description().encoder && !options.embeds)
    return error(Code::unsupported,
                 "the model '%.64s' is an encoder (architecture '%.64s'): it generates no text, so no session opens on it; it is for "
                 "embeddings (orrery_embed)",
                 model->description().name.c_str(), model->description().family);
  ORRERY_TRY(options.validate(model->description()));
  ORRERY_TRY(check_adapters_of(options.adapters, *model));
  if (options.speculate == Speculate::draft) {
    ORRERY_TRY(options.check_device(model->runtime().device(), model->description()));
    if (options.draft_source)
      return option_error(Code::invalid_argument, "draft_source",
                          "a draft model is a source: a plan takes it, a session takes an open model (draft_model)");
    if (options.draft_model == model)
      return option_error(Code::invalid_argument, "draft_model", "the draft model is the session's own model; expected a smaller one");
    if (&options.draft_model->runtime() != &model->runtime())
      return option_error(Code::invalid_argument, "draft_model", "the draft model belongs to another runtime");
    ORRERY_TRY(check_draft(options.draft_model->description(), *options.draft_model->vocabulary(), *model->vocabulary()));
  }
  if (options.head_profile) {
    const model::Description& h = model->description();
    policy::Fingerprint fingerprint;
    std::memcpy(fingerprint.data(), model->weights().fingerprint, fingerprint.size());
    const std::vector<uint32_t> kv_heads(static_cast<size_t>(h.kv().n_layers()), static_cast<uint32_t>(h.kv().n_kv_heads));
    ORRERY_TRY(about_option("head_profile", check_profile_fits(*options.head_profile, fingerprint, kv_heads)));
  }
  if (options.speculate == Speculate::mtp) {  // its weights take their part of the arena before the session is planned
    ORRERY_TRY(options.check_device(model->runtime().device(), model->description()));
    ORRERY_ASSIGN(options.draft_model, LanguageModel::open_head(model));
  }
  ORRERY_ASSIGN(Opened opened, open_sequence(model, options));
  Opened draft;
  if (options.draft_model) {
    ORRERY_ASSIGN(draft, open_sequence(options.draft_model, opened.sequence->options().of_draft(opened.plan.n_context)));
    tell(draft);
  }
  tell(opened);
  kv::Layout regions = regions_of(*opened.sequence);
  auto decoder = std::make_unique<Decoder>(opened.sequence.get(), std::move(draft.sequence));
  return std::unique_ptr<Session>(
      new Session(std::move(opened.sequence), std::move(decoder), std::move(regions), opened.plan.policy, opened.plan.kv_share));
}

uint64_t Session::reservoir_bytes() const { return sequence_->parked() ? 0 : layout_.reservoir_bytes(); }
uint64_t Session::kv_bytes() const {
  return sequence_->parked() ? 0 : layout_.device_bytes(kv::Holds::kv) + layout_.device_bytes(kv::Holds::summaries);
}
uint64_t Session::kv_used_bytes() const {
  const Sequence* const draft = resident() ? nullptr : decoder_->draft();
  return sequence_->used_bytes() + (draft ? draft->used_bytes() : 0);
}

Status Session::rewind(uint32_t n_tokens, const Cancel& cancel) {
  if (n_tokens > 0 || sequence_->stage() != Sequence::Stage::arriving) ORRERY_TRY(sequence_->finish_pages(cancel));
  if (n_tokens > n_computed())
    return error(Code::invalid_argument, "cannot rewind to %u tokens: the session holds %u", n_tokens, n_computed());
  ORRERY_TRY(resume());
  sequence_->truncate(n_tokens);
  return ok_status();
}

Result<std::unique_ptr<Session>> Session::fork(const Cancel& cancel) {
  ORRERY_TRY(sequence_->finish_pages(cancel));
  ORRERY_TRY(resume());
  ORRERY_ASSIGN(std::unique_ptr<Sequence> sequence, sequence_->fork(cancel));
  ORRERY_ASSIGN(std::unique_ptr<Decoder> decoder, decoder_->fork(sequence.get()));
  kv::Layout regions = layout_;  // before the moves: a decoder goes before its sequence
  std::unique_ptr<Session> child(new Session(std::move(sequence), std::move(decoder), std::move(regions), policy_, kv_share_));
  child->conversation_ = conversation_;
  return child;
}

Status Session::resume() {
  if (Sequence* const draft = decoder_->draft()) ORRERY_TRY(draft->resume());
  return sequence_->resume();
}

Status Session::set_adapters(Adapters adapters) {
  ORRERY_TRY(check_adapters_of(adapters, model()));
  if (adapters) ORRERY_TRY(runtime().device().check_adapters());
  if (hash_of(adapters) != hash_of(options().adapters)) {
    ORRERY_TRY(resume());
    sequence_->truncate(0);
  }
  sequence_->set_adapters(std::move(adapters));
  return ok_status();
}

}  // namespace orrery::engine
