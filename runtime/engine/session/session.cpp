#include "runtime/engine/session/session.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "runtime/base/clock.h"
#include "runtime/engine/shared/row_shortlist.h"
#include "runtime/engine/session/plan.h"
#include "runtime/engine/session/session_step.h"

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

// The time of one row in one layer before any has been measured, in microseconds.
double expected_row_layer_us(const model::Model& model, const StepCost& cost) {
  return 2.0 * static_cast<double>(model.n_used_parameters) / model.description.n_layers / cost.operations_per_us;
}

}  // namespace

Session::Session(std::shared_ptr<LanguageModel> model, const SessionOptions& options, uint32_t n_context)
    : model_(std::move(model)), member_(&model_->runtime().turns()), options_(options), n_context_(n_context),
      ropes_(model_->description(), model_->weights().rope_factors, n_context), owner_(model_->runtime().new_id()),
      pace_(model_->description(), options.chunk_of(model_->description(), n_context), model_->runtime().prompt_part_us(),
            expected_row_layer_us(model_->weights(), model_->runtime().device().step_cost())) {
  const model::Description& h = model_->description();
  tokens_.reserve(size_t{n_context} + 1);
  made_.reserve(size_t{n_context} + 1);
  logits_.resize(static_cast<size_t>(h.n_vocab));
  embedding_.resize(static_cast<size_t>(h.n_embd));
  rows_.reserve(std::max<size_t>(options.chunk_of(h, n_context), model::kLogitRows));
  if (options.speculate != Speculate::off) guesses_ = std::make_unique<Guesses>(h, n_context);
  if (options.speculate == Speculate::mtp) hidden_ = std::make_unique<HiddenRows>(h, options.chunk());
  if (h.recurrent() || windows_bytes(h, options.kv_type) > 0) state_ = std::make_unique<CheckpointedState>(h, options.kv_type);
  Runtime& runtime = model_->runtime();
  LayoutInput input = {h, runtime.device(), options_, runtime.moves_directly()};
  input.host = HostWork::of(model_->weights());
  if (options_.draft_model) input.draft.description = &options_.draft_model->description();
  layout_ = session_layout(input, n_context);
}

Session::~Session() {
  if (!row_waits_.load(std::memory_order_acquire)) return;
  const Turn turn = model_->runtime().take_turn();
  model_->waiting_rows(turn).drop(&row_waits_);
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
  std::unique_ptr<Session> session(new Session(std::move(model), options, plan.n_context));
  if (options.compressed()) {  // the policy's errors come before memory is taken
    ORRERY_ASSIGN(const auto policy, make_policy(session->model_->description(), options, plan.n_context));
    ORRERY_TRY(options.check_drafts(*policy));
  }
  ORRERY_TRY(session->acquire());
  if (options.draft_model) ORRERY_TRY(session->open_draft());
  session->tell(plan, wanted);
  session->policy_ = plan.policy, session->kv_share_ = plan.kv_share;
  return session;
}

namespace {

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

}  // namespace

// Logs the length of the context and why, the policy, and the regions of the plan.
void Session::tell(const kv::Plan& plan, const SessionOptions& wanted) const {
  Runtime& runtime = model_->runtime();
  const model::Description& h = model_->description();
  const auto trained = static_cast<uint32_t>(h.trained_context);
  if (wanted.n_context == 0 && n_context_ < trained)
    runtime.log(LogLevel::warning, "the context has %u tokens, not the %u that the model was trained for: the %s has room for no more (%s)",
                n_context_, trained, plan.reservoir_bounds ? "reservoir" : "arena",
                plan.reservoir_bounds ? "reservoir_bytes" : "device_budget_bytes");
  if (n_context_ > model::reach_of_context(h))
    runtime.log(LogLevel::warning,
                "the context of %u tokens is longer than the %u that the model was trained for: behind them answers get worse "
                "(rope_scaling)",
                n_context_, model::reach_of_context(h));
  runtime.log(LogLevel::info, "session of %u tokens, policy %s (%s), KV in %s, on the device in %s", n_context_, options_.policy.c_str(),
              !wanted.automatic       ? "as asked for"
              : options_.compressed() ? "full KV does not fit the arena"
                                      : "full KV fits the arena",
              kv_type_name(options_.kv_type), kv_type_name(plan.device_type));
  log_regions(&runtime, "arena", plan.layout, &kv::Region::device_bytes);
  log_regions(&runtime, "reservoir", plan.layout, &kv::Region::reservoir_bytes);
  log_regions(&runtime, "other host memory, at most", plan.layout, &kv::Region::host_bytes);
}

Status Session::acquire() {
  SessionSlot slot;
  if (!options_.drafts && !options_.embeds) {
    ORRERY_ASSIGN(slot, SessionSlot::take(model_->runtime_ptr()));
  }
  const bool compressed = options_.compressed();
  auto pages = std::make_unique<kv::SequencePages>();
  decltype(reservations_) reservations;
  for (size_t g = 0; g < model_->description().groups.size(); ++g) {
    ORRERY_ASSIGN(std::shared_ptr<kv::PagePool> pool, model_->page_pool(options_.kv_type, compressed && g == 0, g));
    const model::Description& h = model_->description();
    const uint32_t n_pages = group_pages(h, options_, n_context_, g);
    ORRERY_ASSIGN(reservations[g], kv::PageReservation::make(pool, n_pages));
    const auto window = static_cast<uint32_t>(h.groups[g].window);
    pages->add(std::make_unique<kv::PageTable>(std::move(pool), kv::pages_to_reserve(n_context_), window, in_ring(h, g) ? n_pages : 0));
  }
  ORRERY_TRY(model_->ensure_workspace(n_context_, options_));
  const kv::Region means = key_means_layout(model_->description(), options_);
  kv::ArenaRegion means_region;
  if (!means.empty()) {
    ORRERY_ASSIGN(means_region, kv::ArenaRegion::take(&model_->runtime().arena(), means));
  }
  kv::ArenaRegion state_region, guesses_region;
  if (state_ && state_->float_bytes() > 0) {
    const model::Description& h = model_->description();
    ORRERY_ASSIGN(state_region, kv::ArenaRegion::take(&model_->runtime().arena(), CheckpointedState::layout(h, options_.kv_type)));
    if (guesses_) {
      ORRERY_ASSIGN(guesses_region, kv::ArenaRegion::take(&model_->runtime().arena(), CheckpointedState::guesses_layout(h)));
    }
  }
  if (compressed) {
    ORRERY_ASSIGN(resident_, Resident::make(model_.get(), options_, n_context_, &pages->group(0), ropes_.specs()));
  }
  pages_ = std::move(pages);
  slot_ = std::move(slot);
  reservations_ = std::move(reservations);
  means_region_ = std::move(means_region);
  if (state_) state_->place(std::move(state_region), std::move(guesses_region), pages_.get());
  if (form_.means) {
    const Turn turn = model_->runtime().take_turn();
    upload_means(&turn.backend());
  }
  return ok_status();
}

uint64_t Session::reservoir_bytes() const { return parked() ? 0 : layout_.reservoir_bytes(); }
uint64_t Session::kv_bytes() const {
  return parked() ? 0 : layout_.device_bytes(kv::Holds::kv) + layout_.device_bytes(kv::Holds::summaries);
}
uint64_t Session::kv_used_bytes() const {
  if (resident_) return resident_->used_bytes();
  return (pages_ ? pages_->used_bytes() : 0) + (draft_ ? draft_->kv_used_bytes() : 0);
}
uint64_t Session::kv_shared_bytes() const { return pages_ ? pages_->shared_bytes() : 0; }

// Tokens -------------------------------------------------------------------------------------------------

uint32_t Session::reuse_prefix(Span<const int32_t> wanted) {
  const size_t most = std::min(tokens_.size(), wanted.size());
  const auto end = std::mismatch(tokens_.begin(), tokens_.begin() + static_cast<ptrdiff_t>(most), wanted.begin()).first;
  truncate(static_cast<uint32_t>(end - tokens_.begin()));
  if (state_) {  // prompt tokens behind the nearest state are computed again with those that follow
    const auto at = state_->nearest(n_computed());
    const auto first = made_.begin() + at, last = made_.begin() + n_computed();
    if (std::all_of(first, last, [](uint8_t made) { return made == 0; })) truncate(at);
  }
  return n_computed();
}

Status Session::finish_pages(const Cancel& cancel) {
  Status status = std::exchange(late_, Status());
  if (!feed_) return status;
  status = feed_->wait(cancel);
  if (!status.ok() && status.code() == Code::cancelled && cancel.asked()) return status;
  feed_.reset();
  if (!status.ok()) truncate(0);
  return status;
}

Status Session::rewind(uint32_t n_tokens, const Cancel& cancel) {
  if (!feed_ || n_tokens > 0) ORRERY_TRY(finish_pages(cancel));
  if (n_tokens > n_computed())
    return error(Code::invalid_argument, "cannot rewind to %u tokens: the session holds %u", n_tokens, n_computed());
  ORRERY_TRY(resume());
  truncate(n_tokens);
  return ok_status();
}

void Session::truncate(uint32_t n_tokens) {
  if (n_tokens == 0) feed_.reset();
  if (feed_ && n_tokens < n_computed()) {
    late_ = finish_pages();
    n_tokens = std::min(n_tokens, static_cast<uint32_t>(tokens_.size()));
  }
  forget_guesses();
  drop_part();
  if (guesses_) guesses_->ngrams.truncate(tokens_, n_tokens);
  if (hidden_) hidden_->truncate(n_tokens);
  tokens_.resize(n_tokens);
  made_.resize(n_tokens);
  if (state_) state_->truncate(n_tokens);
  if (n_tokens < logits_at_) logits_at_ = 0;  // other tokens may follow up to the same length
  if (n_tokens < n_computed()) {
    selects_again_ = resident_ != nullptr && n_tokens > 0;
    n_computed_ = n_tokens;
    if (resident_) resident_->truncate(n_tokens);
    if (pages_) pages_->truncate(n_tokens);
  }
}

void Session::upload_means(Backend* backend) {
  backend->upload(means_region_.data(), form_.means->data(), form_.means->size() * sizeof(float));
}

Status Session::choose_form(const Turn& turn, const std::atomic<bool>* cancel) {
  const model::Description& h = model_->description();
  form_.rotated = options_.rotated(h);
  if (!options_.centred(h)) {
    form_.means = nullptr;
    return ok_status();
  }
  ORRERY_ASSIGN(auto means, mean_keys(model_.get(), turn, ropes_, pages_.get(), state_.get(), options_.chunk(), cancel));
  if (form_.means == means) return ok_status();
  form_.means = std::move(means);
  upload_means(&turn.backend());
  return ok_status();
}

Result<bool> Session::take_form(const Turn& turn, const StoredForm& loaded) {
  const model::Description& h = model_->description();
  const bool alike = loaded.rotated == options_.rotated(h) && static_cast<bool>(loaded.means) == options_.centred(h);
  const bool coarser_slots = options_.form_type(h) != options_.kv_type;
  if (alike || (options_.centred(h) && !coarser_slots)) {
    form_ = loaded;
    if (form_.means) upload_means(&turn.backend());
    return true;
  }
  ORRERY_TRY(model_->waiting_rows(turn).make_room(&turn.backend(), 0));  // the mean keys may be measured
  ORRERY_TRY(turn.backend().set_scratch(model_->workspace(turn).scratch, model_->limits(turn)));
  ORRERY_TRY(choose_form(turn, nullptr));
  return false;
}

// Steps --------------------------------------------------------------------------------------------------

Status Session::recover_queries(const Turn& turn, uint32_t n_tokens, const std::atomic<bool>* cancel) {
  const Resident::Positions missing = resident_->missing_queries(n_tokens);
  if (missing.end == 0) return ok_status();
  Backend& backend = turn.backend();
  // Recomputed prompt tokens have the same bits. Generated tokens have not, because they attended to the resident KV: so the pages are
  // saved, and a chunk ends with its first generated token. Then no token attends to KV that is about to be put back, in any chunk size.
  const uint32_t page_tokens = static_cast<uint32_t>(kPageTokens);
  const auto is_generated = [](uint8_t made) { return (made & kv::Made::kGenerated) != 0; };
  uint32_t begin = missing.first;
  // The state that must be an earlier one meanwhile. Rings that reach back are saved with the other pages.
  CheckpointedState* const moved = state_ && !state_->reaches(missing.first) ? state_.get() : nullptr;
  CheckpointedState::Bytes last_state;  // of n_tokens, where the session has it
  if (moved) {
    if (moved->position() == n_tokens) {
      ORRERY_ASSIGN(last_state, moved->read(&backend));
    }
    ORRERY_TRY(moved->restore(&backend, missing.first));
    begin = moved->position();
    stats_.recomputed_tokens += missing.end - begin;
  }
  const uint32_t n_pages = std::min(missing.end - begin, options_.chunk()) / page_tokens + 2;
  const uint64_t ring_page_bytes = moved ? 0 : pages_->ring_page_bytes();
  ORRERY_ASSIGN(const os::Region saved, os::Region::allocate(n_pages * (pages_->page_bytes() + ring_page_bytes)));
  kv::StepPages step_pages;
  Status status = ok_status();
  for (uint32_t from = begin; from < missing.end && status.ok();) {
    const bool wanted = from >= missing.first;
    const auto at = made_.begin() + from, most = at + std::min((wanted ? missing.end : missing.first) - from, options_.chunk());
    const auto generated = std::find_if(at, most, is_generated);
    const auto n = static_cast<uint32_t>((generated == most ? most : generated + 1) - at);
    const uint32_t first = from / page_tokens, end = (from + n - 1) / page_tokens + 1;  // pages
    status = pages_->make_writable(&backend, from, from + n);
    if (!status.ok()) break;
    std::byte* const saved_rings = saved.data() + n_pages * pages_->page_bytes();
    pages_->download(&backend, first, end, saved.data());
    if (ring_page_bytes > 0) pages_->download_rings(&backend, first, end, saved_rings);
    rows_.resize(n);
    for (uint32_t i = 0; i < n; ++i) rows_[i] = {tokens_[from + i], static_cast<int32_t>(from + i), 0};
    Step step;
    step.phase = Phase::prefill;
    step.rows = rows_;
    step_pages.give(*pages_, &step);
    if (wanted) step.queries = resident_->queries();
    step.transform = transform();
    if (moved) moved->begin_step(from);
    status = model::forward(&backend, model_->weights(), ropes_.specs(), model_->workspace(turn), step, cancel, {},
                            wanted ? resident_->hook(Phase::prefill, from, n) : nullptr, moved ? moved->step() : SequenceState(),
                            uses_of(options_.adapters));
    if (moved && status.ok()) moved->end_step(from + n);
    if (wanted) status.ok() ? resident_->note_queries(from, from + n) : resident_->forget_queries(from, from + n);
    pages_->upload(&backend, first, end, saved.data());
    if (ring_page_bytes > 0) pages_->upload_rings(&backend, first, end, saved_rings);
    from += n;
  }
  ORRERY_TRY(std::move(status));
  if (last_state) return moved->put_back(&backend, last_state, n_tokens);
  // A generated token's state is not that of its computation as a prompt token: catch_up() computes it.
  const auto first_made = made_.begin() + begin, end_made = made_.begin() + missing.end;
  if (moved && std::any_of(first_made, end_made, is_generated)) moved->forget();
  return ok_status();
}

Status Session::catch_up(const Turn& turn, uint32_t n_tokens, const std::atomic<bool>* cancel, bool whole) {
  Backend& backend = turn.backend();
  ORRERY_TRY(state_->restore(&backend, n_tokens));
  uint32_t from = state_->position();
  // Right guesses are replayed by the step that follows. Where the state itself is wanted, at the end or for a checkpoint on the way, that
  // step computes the last one of them again.
  const uint32_t reach = state_->reach(n_tokens), wanted = whole && reach > from ? reach : state_->due_before(reach);
  if (wanted == 0 && reach == n_tokens) return ok_status();
  from = wanted > 0 ? wanted - 1 : reach;
  stats_.recomputed_tokens += n_tokens - from;
  // Under a policy a generated token attended to the resident KV of its time. Now it attends to all KV, and its own KV stays what it was.
  os::Region saved;
  if (decodes_resident()) {
    ORRERY_ASSIGN(saved, os::Region::allocate(pages_->page_bytes()));
  }
  kv::StepPages step_pages;
  while (from < n_tokens) {
    // Each token by the phase that computed it first.
    const auto generated = [&](uint32_t at) { return (made_[at] & kv::Made::kGenerated) != 0; };
    const uint32_t end = state_->end_of_chunk(from, options_.chunk(), n_tokens);
    uint32_t n = 1;
    while (!generated(from) && from + n < end && !generated(from + n)) ++n;
    ORRERY_TRY(pages_->make_writable(&backend, from, from + n));
    rows_.resize(n);
    for (uint32_t i = 0; i < n; ++i) rows_[i] = {tokens_[from + i], static_cast<int32_t>(from + i), 0};
    Step step;
    step.phase = generated(from) ? Phase::decode : Phase::prefill;
    step.rows = rows_;
    step_pages.give(*pages_, &step);
    step.transform = transform();
    const bool keeps_kv = decodes_resident() && generated(from);
    const uint32_t page = from / static_cast<uint32_t>(kPageTokens);
    if (keeps_kv) pages_->download(&backend, page, page + 1, saved.data());
    state_->begin_step(from);
    Status status = model::forward(&backend, model_->weights(), ropes_.specs(), model_->workspace(turn), step, cancel, {}, nullptr,
                                   state_->step(), uses_of(options_.adapters));
    if (keeps_kv) pages_->upload(&backend, page, page + 1, saved.data());
    ORRERY_TRY(std::move(status));
    from += n;
    state_->end_step(from);
    if (state_->due()) ORRERY_TRY(state_->checkpoint(&backend));
  }
  return ok_status();
}

void Session::drop_part() {
  if (!pace_.under_way()) return;
  const uint32_t n = pace_.n_rows(), from = n_computed();
  pace_.drop();
  if (pages_) pages_->truncate(from);
  if (pages_ && state_) state_->undo_step(from);
  if (resident_) resident_->forget_queries(from, from + n), resident_->truncate(from);
}

uint32_t Session::next_chunk(size_t left, bool all_logits) {
  if (pace_.under_way()) return pace_.n_rows();
  if (model_->description().encoder) return static_cast<uint32_t>(left);
  auto most = static_cast<uint32_t>(std::min<size_t>(options_.chunk(), left));
  if (state_) most = state_->end_of_chunk(n_computed(), most, n_computed() + static_cast<uint32_t>(left)) - n_computed();
  if (!model_->runtime().device().info().keeps_bits_in_chunks) return most;
  const model::Description& h = model_->description();
  const double of_logits =
      static_cast<double>(h.n_vocab) * h.n_embd * h.n_layers / static_cast<double>(model_->weights().n_used_parameters);
  return pace_.rows(most, all_logits ? of_logits : 1);
}

Status Session::prefill_chunk(Span<const int32_t> tokens, const std::atomic<bool>* cancel, bool want_logits, float* logits,
                              Shortlist* shortlist) {
  for (;;) {
    auto complete = prefill_part(tokens, cancel, want_logits, logits, shortlist);
    if (complete.ok() && !*complete) continue;
    drop_part();  // of a failed chunk
    return complete.take_status();
  }
}

Result<bool> Session::prefill_part(Span<const int32_t> tokens, const std::atomic<bool>* cancel, bool want_logits, float* logits,
                                   Shortlist* shortlist) {
  ORRERY_TRY(finish_pages(cancel));
  const uint32_t from = n_computed(), n = static_cast<uint32_t>(tokens.size());
  const size_t n_vocab = logits_.size();
  if (hidden_ && !pace_.under_way()) ORRERY_TRY(feed_head(tokens[0], false, cancel));
  constexpr auto usual = SessionStep::Rows::usual;
  if (logits) {
    ORRERY_TRY(SessionStep(this, {tokens, Phase::prefill, cancel, static_cast<int32_t>(n), logits, nullptr, usual, 0, true}).run());
    if (pace_.under_way()) return false;
    std::copy_n(logits + (n - 1) * n_vocab, n_vocab, logits_.begin());
  } else {
    ORRERY_TRY(SessionStep(this, {tokens, Phase::prefill, cancel, want_logits ? 1 : 0, logits_.data(), shortlist, usual, 0, true}).run());
    if (pace_.under_way()) return false;
  }
  if (logits || want_logits) logits_at_ = from + n;
  if (guesses_) guesses_->ngrams.truncate(tokens_, from);
  tokens_.resize(from);
  made_.resize(from);
  add_prompt_tokens(tokens);
  return true;
}

void Session::add_prompt_tokens(Span<const int32_t> tokens) {
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  made_.resize(tokens_.size(), 0);
  stats_.prompt_tokens += tokens.size();
}

Result<bool> Session::embed_part(Span<const int32_t> tokens, const std::atomic<bool>* cancel, float* normed, uint32_t second_from) {
  SessionStep::Request request{tokens, Phase::prefill, cancel};
  request.in_parts = true, request.normed = normed, request.second_from = second_from;
  ORRERY_TRY(SessionStep(this, request).run());
  if (pace_.under_way()) return false;
  add_prompt_tokens(tokens);
  return true;
}

Status Session::prefill(Span<const int32_t> tokens, const std::atomic<bool>* cancel, float* logits) {
  if (tokens.size() > n_context_ - n_computed())
    return memory_error(Code::context_full, n_computed() + tokens.size(), n_context_,
                        "%u tokens and %zu more are longer than the session's context of %u", n_computed(), tokens.size(), n_context_);
  for (size_t done = 0; done < tokens.size();) {
    const size_t n = next_chunk(tokens.size() - done, logits != nullptr);
    const bool last = done + n == tokens.size();
    ORRERY_TRY(prefill_chunk(tokens.subspan(done, n), cancel, last, logits ? logits + done * logits_.size() : nullptr));
    done += n;
  }
  return ok_status();
}

Status Session::assume_prompt(Span<const int32_t> tokens, const FillPage& fill) {
  ORRERY_TRY(finish_pages());
  form_ = {};  // invented keys are what they are
  if (n_computed() > 0 || tokens.size() > n_context_)
    return error(Code::invalid_argument, "%zu tokens cannot be assumed: the session holds %u, of at most %u", tokens.size(), n_computed(),
                 n_context_);
  const uint32_t n = static_cast<uint32_t>(tokens.size());
  const Turn turn = model_->runtime().take_turn();
  Backend& backend = turn.backend();
  ORRERY_TRY(backend.set_scratch(model_->workspace(turn).scratch, model_->limits(turn)));
  ORRERY_TRY(choose_form(turn, nullptr));
  ORRERY_TRY(pages_->make_whole_groups_writable(&backend, 0, n));
  std::vector<std::byte> page(std::max(pages_->page_bytes(), pages_->windows_bytes()));
  for (uint32_t i = 0; i < pages_->n_pages(n); ++i) {
    fill(i, {page.data(), pages_->page_bytes()});
    pages_->upload(&backend, i, i + 1, page.data());
  }
  if (pages_->windows_bytes() > 0) {
    fill(0, {page.data(), pages_->windows_bytes()});
    ORRERY_TRY(pages_->upload_windows(&backend, n, page.data()));
  }
  if (guesses_) guesses_->ngrams.truncate(tokens_, 0);
  tokens_.assign(tokens.begin(), tokens.end());
  made_.assign(tokens.size(), kv::Made::kInvented);
  n_computed_ = n;
  if (state_) state_->assume(n);
  if (resident_) resident_->assume(n);
  return backend.synchronize();
}

GuessCosts Session::guess_costs() const {
  if (options_.guess_costs) return *options_.guess_costs;
  const StepCost step = model_->runtime().device().step_cost();
  const auto weights = static_cast<double>(model_->weights().weights_bytes);
  const auto kv = static_cast<double>(pages_->read_bytes(n_computed()));
  // A drafted token also takes a step of its own, over the resident KV or of the draft model.
  double draft = options_.speculate == Speculate::policy ? weights + static_cast<double>(kv_used_bytes()) : 0.0;
  if (draft_)  // a head reads the model's output, too
    draft = static_cast<double>(draft_->model_->weights().weights_bytes + (hidden_ ? draft_->model_->weights().output_bytes : 0)) +
            static_cast<double>(draft_->pages_->read_bytes(n_computed()));
  GuessCosts costs;
  for (size_t i = 0; i < costs.size(); ++i)
    costs[i] = (step.products[i] * weights + static_cast<double>(i + 1) * (step.attention * kv + draft)) / (weights + kv);
  return costs;
}

void Session::forget_guesses() {
  if (!guesses_ || guesses_->n_ahead() == 0) return;
  guesses_->forget();
  if (pages_) pages_->truncate(n_computed());
}

Status Session::complete_state(const std::atomic<bool>* cancel) {
  if (!state_ || state_->position() == n_computed() || state_->reach(n_computed()) != n_computed()) return ok_status();
  ORRERY_ASSIGN(const Turn turn, model_->runtime().take_turn(Cancel(cancel)));
  ORRERY_TRY(model_->waiting_rows(turn).make_room(&turn.backend(), 0));
  ORRERY_TRY(turn.backend().set_scratch(model_->workspace(turn).scratch, model_->limits(turn)));
  return catch_up(turn, n_computed(), cancel, true);
}

Status Session::decode(Shortlist* shortlist, const std::atomic<bool>* cancel, uint32_t most_guesses, Drafter* drafter) {
  ORRERY_TRY(finish_pages(cancel));
  const uint32_t from = n_computed();
  if (from >= tokens_.size()) return error(Code::internal, "no generated token waits to be computed behind %u", from);
  const int32_t token = tokens_[from];
  const bool ahead = guesses_ && guesses_->n_ahead() > 0, right = guesses_ && guesses_->take(token, logits_, embedding_);
  if (ahead && options_.speculate != Speculate::ngram) guesses_->judge_draft(right);
  if (guesses_ && options_.speculate == Speculate::ngram) guesses_->ngrams.read(tokens_, made_);
  if (right) {
    n_computed_ = from + 1;
    ++stats_.accepted_tokens;
  } else {
    ORRERY_TRY(decode_next(token, shortlist, cancel, tokens_.size() == from + 1 ? most_guesses : 0, drafter));
  }
  if (hidden_ && !hidden_->has(from)) hidden_->push(from, embedding_);  // of a step with guesses
  logits_at_ = from + 1;
  ++stats_.generated_tokens;
  return ok_status();
}

bool Session::decodes_together() const {
  if (guesses_ || feed_ || n_computed() + size_t{1} != tokens_.size()) return false;
  return SessionStep(const_cast<Session*>(this), {{&tokens_.back(), 1}, Phase::decode, nullptr, 1}).shares();
}

void Session::decode_together(Span<DecodeCall> calls) {
  std::array<std::optional<SessionStep>, static_cast<size_t>(kMostTogether)> steps;
  std::array<SessionStep*, static_cast<size_t>(kMostTogether)> all;
  for (size_t i = 0; i < calls.size(); ++i) {
    Session& s = *calls[i].session;
    const SessionStep::Request request{{&s.tokens_.back(), 1}, Phase::decode, calls[i].cancel, 1, s.logits_.data(), calls[i].shortlist};
    all[i] = &steps[i].emplace(&s, request);
  }
  SessionStep::run_together({all.data(), calls.size()});
  for (size_t i = 0; i < calls.size(); ++i) {
    Session& s = *calls[i].session;
    try {
      calls[i].status = steps[i]->take_status();
      if (calls[i].status.ok()) s.logits_at_ = s.n_computed(), ++s.stats_.generated_tokens;
    } catch (...) {
      calls[i].thrown = std::current_exception();
    }
  }
}

// A step of the token, and of its guesses if some pay.
Status Session::decode_next(int32_t token, Shortlist* shortlist, const std::atomic<bool>* cancel, uint32_t most_guesses, Drafter* drafter) {
  const uint32_t most =
      std::min({options_.speculate_tokens ? options_.speculate_tokens : kMostGuesses, most_guesses, n_context_ - n_computed() - 1});
  forget_guesses();
  size_t n = guesses_ && drafter && options_.speculate != Speculate::policy ? drafter->forced(guesses_->tokens() + 1, most) : 0;
  if (n > 0) {
    n = guesses_->n_that_pay(n, guess_costs());
  } else if (options_.speculate == Speculate::policy) {
    n = guesses_->draft_length(most, guess_costs(), resident_->can_draft(n_computed()));
    if (n > 0) {
      ORRERY_ASSIGN(n, draft(token, n, cancel, drafter));
    }
  } else if (options_.speculate == Speculate::mtp) {
    n = draft_->parked() ? 0 : guesses_->draft_length(most, guess_costs(), true);
    if (n > 0) {
      ORRERY_ASSIGN(n, draft_by_head(n, cancel, drafter));
    } else if (hidden_->full()) {
      ORRERY_TRY(feed_head(token, false, cancel));
    }
  } else if (options_.speculate == Speculate::draft) {
    // The draft model has no embedding of a padding row that only this model has.
    const auto n_known = static_cast<int32_t>(draft_->n_logits());
    const bool known = std::all_of(tokens_.begin(), tokens_.end(), [n_known](int32_t t) { return t < n_known; });
    n = draft_->parked() || !known ? 0 : guesses_->draft_length(most, guess_costs(), true);
    if (n > 0) {
      ORRERY_ASSIGN(n, draft_by_model(n, cancel, drafter));
    }
  } else if (guesses_) {
    const Span<const int32_t> guess = guesses_->ngrams.guess(tokens_, most, guess_costs());
    std::copy(guess.begin(), guess.end(), guesses_->tokens() + 1);
    n = drafter ? drafter->n_allowed(guess) : guess.size();
  }
  if (n == 0) return SessionStep(this, {{&token, 1}, Phase::decode, cancel, 1, logits_.data(), shortlist}).run();
  guesses_->tokens()[0] = token;
  const Span<const int32_t> tokens(guesses_->tokens(), 1 + n);
  const auto n_rows = static_cast<int32_t>(1 + n);
  ORRERY_TRY(SessionStep(this, {tokens, Phase::decode, cancel, n_rows, guesses_->logits(), nullptr, SessionStep::Rows::guesses}).run());
  guesses_->computed(n, logits_, embedding_);
  stats_.guessed_tokens += n;
  return ok_status();
}

Result<size_t> Session::draft(int32_t token, size_t n, const std::atomic<bool>* cancel, Drafter* drafter) {
  const uint32_t from = n_computed();
  const Span<const float> logits(guesses_->logits(), logits_.size());
  size_t n_drafted = 0;
  Status status = ok_status();
  for (; n_drafted < n; ++n_drafted) {
    if (n_drafted > 0 && !resident_->has_room()) break;  // settling in the middle of a draft would choose by its tokens
    const auto ahead = static_cast<uint32_t>(n_drafted);
    status = SessionStep(this, {{&token, 1}, Phase::decode, cancel, 1, guesses_->logits(), nullptr, SessionStep::Rows::draft, ahead}).run();
    if (!status.ok()) break;
    const auto likeliest = [&] { return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin()); };
    token = drafter ? drafter->draft(logits, tokens_) : likeliest();
    if (token < 0) break;
    guesses_->tokens()[1 + n_drafted] = token;
    push_generated(token);
  }
  tokens_.resize(from + 1);
  made_.resize(from + 1);
  resident_->end_draft();
  ORRERY_TRY(std::move(status));
  return n_drafted;
}

Status Session::refresh_logits(Shortlist* shortlist, const std::atomic<bool>* cancel) {
  if (has_logits() || n_computed() == 0) return ok_status();
  ORRERY_TRY(finish_pages(cancel));
  const uint32_t last = n_computed() - 1;
  const int32_t token = tokens_[last];
  const Phase phase = made_[last] & kv::Made::kGenerated ? Phase::decode : Phase::prefill;
  forget_guesses();
  n_computed_ = last;  // the last token's page stays: the step writes the same values again
  if (resident_) resident_->truncate(last);
  const Status status = SessionStep(this, {{&token, 1}, phase, cancel, 1, logits_.data(), shortlist}).run();
  if (!status.ok()) {
    truncate(last);
    return error(status.code(), "%s", status.message());
  }
  logits_at_ = last + 1;
  return ok_status();
}

Status Session::fetch_logits(const Cancel& cancel) {
  if (!row_waits_.load(std::memory_order_acquire)) return ok_status();
  ORRERY_ASSIGN(const Turn turn, model_->runtime().take_turn(cancel));
  return model_->waiting_rows(turn).fetch(&turn.backend(), &row_waits_);
}

Result<bool> Session::fetch_more(Shortlist* shortlist, const Cancel& cancel) {
  ORRERY_ASSIGN(const Turn turn, model_->runtime().take_turn(cancel));
  const Ptr<const float> logits = model_->waiting_rows(turn).logits(&row_waits_);
  if (!logits) return false;
  Backend& backend = turn.backend();
  const Ptr<std::byte> out = model_->workspace(turn).shortlist;
  const int64_t n_vocab = model_->description().n_vocab;
  const Span<float> block = shortlist->block();
  switch (shortlist->wanted()) {
    case Shortlist::Stage::block:
      backend.download(block.data(), {(logits + shortlist->first_of_block()).address}, block.size() * sizeof(float));
      break;
    case Shortlist::Stage::bands:
      backend.shortlists()->shortlist_bands(logits, n_vocab, shortlist->tail(), out, shortlist->bands().data());
      break;
    default:
      backend.shortlists()->shortlist_entries(logits, n_vocab, shortlist->tail(), shortlist->band(), shortlist->other_band(), out,
                                              shortlist->tail_entries());
  }
  ORRERY_TRY(backend.synchronize());
  shortlist->more_arrived();
  return true;
}

Status Session::top_keys(Span<const policy::KeyQuery> queries, const policy::ScoreRule& rule) {
  ORRERY_TRY(finish_pages());
  if (!resident_) return error(Code::invalid_argument, "policy %s keeps no queries", options_.policy.c_str());
  const Turn turn = model_->runtime().take_turn();
  const Resident::Use use(resident_.get(), turn);
  ORRERY_TRY(turn.backend().set_scratch(model_->workspace(turn).scratch, model_->limits(turn)));
  return resident_->top_page_keys(queries, rule, n_computed());
}

Status Session::key_weights(Span<const policy::WeightsQuery> queries) {
  ORRERY_TRY(finish_pages());
  if (!resident_) return error(Code::invalid_argument, "policy %s keeps no queries", options_.policy.c_str());
  const Turn turn = model_->runtime().take_turn();
  const Resident::Use use(resident_.get(), turn);
  ORRERY_TRY(turn.backend().set_scratch(model_->workspace(turn).scratch, model_->limits(turn)));
  return resident_->page_key_weights(queries, n_computed());
}

// Fork and park ------------------------------------------------------------------------------------------

Result<std::unique_ptr<Session>> Session::fork(const Cancel& cancel) {
  ORRERY_TRY(finish_pages(cancel));
  ORRERY_TRY(resume());
  forget_guesses();
  ORRERY_TRY(fetch_logits());
  ORRERY_TRY(complete_state(nullptr));
  if (state_ && state_->changed_in_place()) {
    const Turn turn = model_->runtime().take_turn();
    ORRERY_TRY(state_->checkpoint(&turn.backend()));
  }
  std::unique_ptr<Session> child(new Session(model_, options_, n_context_));
  child->tokens_.assign(tokens_.begin(), tokens_.end());
  child->made_.assign(made_.begin(), made_.end());
  child->logits_ = logits_;
  child->embedding_ = embedding_;
  child->logits_at_ = logits_at_;
  child->conversation_ = conversation_;
  child->form_ = form_;
  child->owner_ = owner_;
  child->policy_ = policy_, child->kv_share_ = kv_share_, child->selects_again_ = selects_again_;
  Status room = child->acquire();
  if (room.ok()) {
    child->pages_->share(*pages_);
    if (state_) {
      const Turn turn = model_->runtime().take_turn();
      child->state_->copy_from(&turn.backend(), *state_);
      ORRERY_TRY(turn.backend().synchronize());
    }
    if (resident_) {
      const Turn turn = model_->runtime().take_turn();
      const Resident::Use use(child->resident_.get(), turn);
      ORRERY_TRY(child->resident_->copy_from(*resident_));
    }
  } else if (room.code() == Code::out_of_device_memory) {
    ORRERY_TRY(child->park_copy_of(*this));
    if (state_) {
      const Turn turn = model_->runtime().take_turn();
      ORRERY_TRY(state_->checkpoint(&turn.backend()));
      child->state_->share_checkpoints(*state_);
    }
  } else {
    return room;
  }
  child->n_computed_ = n_computed();
  if (draft_) {
    ORRERY_ASSIGN(child->draft_, draft_->fork());
  }
  if (hidden_) child->hidden_->copy_from(*hidden_), child->head_base_ = head_base_;
  return child;
}

Status Session::save_resident(std::vector<std::byte>* out) const {
  if (!decodes_resident() || n_computed() == 0) return ok_status();
  const Turn turn = model_->runtime().take_turn();
  const Resident::Use use(resident_.get(), turn);
  return resident_->save(n_computed(), out);
}

Status Session::take_resident(Span<const std::byte> state, uint32_t n_tokens, std::unique_ptr<policy::Policy> checked) {
  const Turn turn = model_->runtime().take_turn();
  const Resident::Use use(resident_.get(), turn);
  return resident_->take(state, n_tokens, std::move(checked));
}

Status Session::park_copy_of(const Session& other) {
  ORRERY_TRY(other.save_resident(&parked_state_));
  const uint64_t page_bytes = other.pages_->page_bytes();
  const uint32_t n_pages = other.pages_->n_pages(other.n_computed());
  ORRERY_ASSIGN(parked_pages_, os::Region::allocate(n_pages * page_bytes));
  const Turn turn = model_->runtime().take_turn();
  other.pages_->download(&turn.backend(), 0, n_pages, parked_pages_.data());
  stats_.device_to_host_bytes += n_pages * page_bytes;
  return turn.backend().synchronize();
}

Status Session::set_adapters(Adapters adapters) {
  ORRERY_TRY(check_adapters_of(adapters, *model_));
  if (adapters) ORRERY_TRY(model_->runtime().device().check_adapters());
  if (hash_of(adapters) != hash_of(options_.adapters)) {
    ORRERY_TRY(resume());
    truncate(0);
  }
  options_.adapters = std::move(adapters);
  return ok_status();
}

Status Session::resume() {
  if (draft_) ORRERY_TRY(draft_->resume());
  if (!parked()) return ok_status();
  ORRERY_TRY(acquire());
  Status filled = [&]() -> Status {
    const Turn turn = model_->runtime().take_turn();
    Backend& backend = turn.backend();
    const uint32_t n_pages = pages_->n_pages(n_computed());
    ORRERY_TRY(pages_->make_whole_groups_writable(&backend, 0, n_computed()));
    pages_->upload(&backend, 0, n_pages, parked_pages_.data());
    stats_.host_to_device_bytes += n_pages * pages_->page_bytes();
    return backend.synchronize();
  }();
  if (filled.ok() && !parked_state_.empty()) {
    filled = [&]() -> Status {
      ORRERY_ASSIGN(auto checked, resident_->check(parked_state_, n_computed()));
      return take_resident(parked_state_, n_computed(), std::move(checked));
    }();
  }
  if (!filled.ok()) {  // the KV is in parked_pages_ alone: parked as before
    resident_.reset(), pages_.reset();
    if (state_) state_->place({}, {}, nullptr);
    means_region_ = {}, reservations_ = {}, slot_ = {};
    return Status(filled.detail());
  }
  if (parked_state_.empty()) selects_again_ = resident_ != nullptr;
  parked_pages_ = os::Region();
  parked_state_ = std::vector<std::byte>();
  return ok_status();
}

}  // namespace orrery::engine
