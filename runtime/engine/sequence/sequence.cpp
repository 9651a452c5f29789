#include "runtime/engine/sequence/sequence.h"

#include <algorithm>
#include <cstring>

#include "runtime/base/hash.h"
#include "runtime/engine/resident/resident_shape.h"
#include "runtime/engine/sequence/sequence_step.h"
#include "runtime/kv/memory/plan.h"

namespace orrery::engine {

namespace {

// The time of one row in one layer before any has been measured, in microseconds.
double expected_row_layer_us(const model::Model& model, const StepCost& cost) {
  return 2.0 * static_cast<double>(model.n_used_parameters) / model.description.n_layers / cost.operations_per_us;
}

}  // namespace

Sequence::Sequence(std::shared_ptr<LanguageModel> model, const SessionOptions& options, uint32_t n_context)
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
  if (options.speculate == Speculate::mtp) hidden_ = std::make_unique<HiddenRows>(h, options.chunk());
  if (h.recurrent() || windows_bytes(h, options.kv_type) > 0) state_ = std::make_unique<CheckpointedState>(h, options.kv_type);
}

Sequence::~Sequence() {
  if (!row_waits_.load(std::memory_order_acquire)) return;
  const Turn turn = model_->runtime().take_turn();
  model_->waiting_rows(turn).drop(&row_waits_);
}

Result<std::unique_ptr<Sequence>> Sequence::open(std::shared_ptr<LanguageModel> model, const SessionOptions& options, uint32_t n_context) {
  std::unique_ptr<Sequence> sequence(new Sequence(std::move(model), options, n_context));
  ORRERY_TRY(sequence->acquire());
  return sequence;
}

Status Sequence::acquire() {
  DevicePart device;
  const model::Description& h = model_->description();
  if (!options_.drafts && !options_.embeds) {
    ORRERY_ASSIGN(device.slot, SessionSlot::take(model_->runtime_ptr()));
  }
  const bool compressed = options_.compressed();
  device.pages = std::make_unique<kv::SequencePages>();
  for (size_t g = 0; g < h.groups.size(); ++g) {
    ORRERY_ASSIGN(std::shared_ptr<kv::PagePool> pool, model_->page_pool(options_.kv_type, compressed && g == 0, g));
    const uint32_t n_pages = group_pages(h, options_, n_context_, g);
    ORRERY_ASSIGN(device.reservations[g], kv::PageReservation::make(pool, n_pages));
    const auto window = static_cast<uint32_t>(h.groups[g].window);
    device.pages->add(
        std::make_unique<kv::PageTable>(std::move(pool), kv::pages_to_reserve(n_context_), window, in_ring(h, g) ? n_pages : 0));
  }
  ORRERY_TRY(model_->ensure_workspace(n_context_, options_));
  kv::Arena* const arena = &model_->runtime().arena();
  const kv::Region means = key_means_layout(h, options_);
  if (!means.empty()) {
    ORRERY_ASSIGN(device.means, kv::ArenaRegion::take(arena, means));
  }
  kv::ArenaRegion state_region, guesses_region;
  if (state_ && state_->float_bytes() > 0) {
    ORRERY_ASSIGN(state_region, kv::ArenaRegion::take(arena, CheckpointedState::layout(h, options_.kv_type)));
    if (options_.speculate != Speculate::off) {
      ORRERY_ASSIGN(guesses_region, kv::ArenaRegion::take(arena, CheckpointedState::guesses_layout(h)));
    }
  }
  if (compressed) {
    ORRERY_ASSIGN(device.resident, Resident::make(model_.get(), options_, n_context_, &device.pages->group(0), ropes_.specs()));
  }
  device_ = std::move(device);
  if (state_) state_->place(std::move(state_region), std::move(guesses_region), device_.pages.get());
  if (form_.means) {
    const Turn turn = model_->runtime().take_turn();
    upload_means(&turn.backend());
  }
  stage_ = Stage::ready;
  return ok_status();
}

uint64_t Sequence::used_bytes() const {
  if (parked()) return 0;
  return device_.resident ? device_.resident->used_bytes() : device_.pages->used_bytes();
}
uint64_t Sequence::shared_bytes() const { return parked() ? 0 : device_.pages->shared_bytes(); }

std::array<uint8_t, 16> Sequence::formats() const {
  Hash128 hash;
  const std::array<uint8_t, 16> rope = hash_ropes(ropes_);
  hash.update(rope.data(), rope.size());
  const uint32_t form[] = {static_cast<uint32_t>(options_.kv_type), form_.rotated};
  hash.update(form, sizeof form);
  if (form_.means) hash.update(form_.means->data(), form_.means->size() * sizeof(float));
  if (options_.adapters) hash.update(options_.adapters->hash().data(), options_.adapters->hash().size());
  std::array<uint8_t, 16> out;
  hash.digest(out.data());
  return out;
}

// Cutting ------------------------------------------------------------------------------------------------

uint32_t Sequence::reuse_prefix(Span<const int32_t> wanted) {
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

void Sequence::cut_tokens(uint32_t n_tokens) {
  if (follower_) follower_->before_cut(n_tokens);
  tokens_.resize(n_tokens);
  made_.resize(n_tokens);
}

void Sequence::truncate(uint32_t n_tokens) {
  if (stage_ == Stage::arriving) {
    if (n_tokens == 0) {
      feed_.reset();
      stage_ = Stage::ready;
    } else if (n_tokens < n_computed()) {
      finish_pages_later();
      n_tokens = std::min(n_tokens, static_cast<uint32_t>(tokens_.size()));
    }
  }
  drop_ahead();
  drop_part();
  cut_tokens(n_tokens);
  if (hidden_) hidden_->truncate(n_tokens);
  if (state_) state_->truncate(n_tokens);
  if (n_tokens < logits_at_) logits_at_ = 0;  // other tokens may follow up to the same length
  if (n_tokens < n_computed()) {
    selects_again_ = device_.resident != nullptr && n_tokens > 0;
    n_computed_ = n_tokens;
    if (device_.resident) device_.resident->truncate(n_tokens);
    if (device_.pages) device_.pages->truncate(n_tokens);
  }
}

void Sequence::drop_ahead() {
  if (stage_ != Stage::ahead) return;
  n_ahead_ = 0;
  device_.pages->truncate(n_computed());
  stage_ = Stage::ready;
}

void Sequence::drop_part() {
  if (stage_ != Stage::chunk) return;
  const uint32_t n = pace_.n_rows(), from = n_computed();
  pace_.drop();
  stage_ = Stage::ready;
  device_.pages->truncate(from);
  if (state_) state_->undo_step(from);
  if (device_.resident) device_.resident->forget_queries(from, from + n), device_.resident->truncate(from);
}

// Prompts ------------------------------------------------------------------------------------------------

uint32_t Sequence::next_chunk(size_t left, bool all_logits) {
  if (stage_ == Stage::chunk) return pace_.n_rows();
  const model::Description& h = model_->description();
  if (h.encoder) return static_cast<uint32_t>(left);
  auto most = static_cast<uint32_t>(std::min<size_t>(options_.chunk(), left));
  if (state_) most = state_->end_of_chunk(n_computed(), most, n_computed() + static_cast<uint32_t>(left)) - n_computed();
  if (!model_->runtime().device().info().keeps_bits_in_chunks) return most;
  const double of_logits =
      static_cast<double>(h.n_vocab) * h.n_embd * h.n_layers / static_cast<double>(model_->weights().n_used_parameters);
  return pace_.rows(most, all_logits ? of_logits : 1);
}

Status Sequence::prefill(Span<const int32_t> tokens, const std::atomic<bool>* cancel, float* logits) {
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

Status Sequence::prefill_chunk(Span<const int32_t> tokens, const std::atomic<bool>* cancel, bool want_logits, float* logits,
                               Shortlist* shortlist) {
  for (;;) {
    auto complete = prefill_part(tokens, cancel, want_logits, logits, shortlist);
    if (complete.ok() && !*complete) continue;
    drop_part();  // of a failed chunk
    return complete.take_status();
  }
}

Result<bool> Sequence::prefill_part(Span<const int32_t> tokens, const std::atomic<bool>* cancel, bool want_logits, float* logits,
                                    Shortlist* shortlist) {
  ORRERY_TRY(finish_pages(cancel));
  const uint32_t from = n_computed(), n = static_cast<uint32_t>(tokens.size());
  if (follower_ && stage_ != Stage::chunk) ORRERY_TRY(follower_->before_chunk(tokens[0], cancel));
  SequenceStep::Request request{tokens, Phase::prefill, cancel, logits ? static_cast<int32_t>(n) : want_logits ? 1 : 0};
  request.in_parts = true;
  if (logits) request.logits = logits;
  else request.shortlist = shortlist;
  ORRERY_TRY(SequenceStep(this, request).run());
  if (stage_ == Stage::chunk) return false;
  if (logits) {
    std::copy_n(logits + (n - 1) * logits_.size(), logits_.size(), logits_.begin());
    logits_at_ = from + n;
  }
  cut_tokens(from);
  add_prompt_tokens(tokens);
  return true;
}

void Sequence::add_prompt_tokens(Span<const int32_t> tokens) {
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  made_.resize(tokens_.size(), 0);
  stats_.prompt_tokens += tokens.size();
}

Result<bool> Sequence::embed_part(Span<const int32_t> tokens, const std::atomic<bool>* cancel, float* normed, uint32_t second_from) {
  SequenceStep::Request request{tokens, Phase::prefill, cancel};
  request.in_parts = true, request.normed = normed, request.second_from = second_from;
  ORRERY_TRY(SequenceStep(this, request).run());
  if (stage_ == Stage::chunk) return false;
  add_prompt_tokens(tokens);
  return true;
}

Status Sequence::assume_prompt(Span<const int32_t> tokens, const FillPage& fill) {
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
  kv::SequencePages& pages = *device_.pages;
  ORRERY_TRY(pages.make_whole_groups_writable(&backend, 0, n));
  std::vector<std::byte> page(std::max(pages.page_bytes(), pages.windows_bytes()));
  for (uint32_t i = 0; i < pages.n_pages(n); ++i) {
    fill(i, {page.data(), pages.page_bytes()});
    pages.upload(&backend, i, i + 1, page.data());
  }
  if (pages.windows_bytes() > 0) {
    fill(0, {page.data(), pages.windows_bytes()});
    ORRERY_TRY(pages.upload_windows(&backend, n, page.data()));
  }
  cut_tokens(0);
  tokens_.assign(tokens.begin(), tokens.end());
  made_.assign(tokens.size(), kv::Made::kInvented);
  n_computed_ = n;
  if (state_) state_->assume(n);
  if (device_.resident) device_.resident->assume(n);
  return backend.synchronize();
}

// Generated tokens ---------------------------------------------------------------------------------------

Status Sequence::decode(Shortlist* shortlist, const std::atomic<bool>* cancel) {
  ORRERY_TRY(finish_pages(cancel));
  const uint32_t from = n_computed();
  if (from >= tokens_.size()) return error(Code::internal, "no generated token waits to be computed behind %u", from);
  return SequenceStep(this, SequenceStep::of_next_token(*this, shortlist, cancel)).run();
}

Status Sequence::refresh_logits(Shortlist* shortlist, const std::atomic<bool>* cancel) {
  if (has_logits() || n_computed() == 0) return ok_status();
  ORRERY_TRY(finish_pages(cancel));
  const uint32_t last = n_computed() - 1;
  const int32_t token = tokens_[last];
  drop_ahead();
  n_computed_ = last;  // the last token's page stays: the step writes the same values again
  if (device_.resident) device_.resident->truncate(last);
  SequenceStep::Request request{{&token, 1}, made_[last] & kv::Made::kGenerated ? Phase::decode : Phase::prefill, cancel, 1};
  request.shortlist = shortlist;
  const Status status = SequenceStep(this, request).run();
  if (!status.ok()) {
    truncate(last);
    return error(status.code(), "%s", status.message());
  }
  return ok_status();
}

Status Sequence::decode_ahead(Span<const int32_t> tokens, const OutRows& rows, const std::atomic<bool>* cancel) {
  drop_ahead();
  SequenceStep::Request request{tokens, Phase::decode, cancel, static_cast<int32_t>(tokens.size()), rows.logits};
  request.rows = SequenceStep::Rows::guesses, request.embeddings = rows.embeddings;
  ORRERY_TRY(SequenceStep(this, request).run());
  ORRERY_TRY(enter(Stage::ahead));
  n_ahead_ = static_cast<uint32_t>(tokens.size() - 1);
  end_decode(rows.logits, rows.embeddings);
  stats_.guessed_tokens += n_ahead_;
  return ok_status();
}

void Sequence::take_ahead(const float* logits, const float* embedding) {
  n_computed_ = n_computed() + 1;
  if (--n_ahead_ == 0) stage_ = Stage::ready;
  end_decode(logits, embedding);
  ++stats_.accepted_tokens;
}

void Sequence::end_decode(const float* logits, const float* embedding) {
  std::copy_n(logits, logits_.size(), logits_.begin());
  std::copy_n(embedding, embedding_.size(), embedding_.begin());
  logits_at_ = n_computed();
  if (hidden_ && !hidden_->has(logits_at_ - 1)) hidden_->push(logits_at_ - 1, embedding_);
  ++stats_.generated_tokens;
}

Status Sequence::decode_draft(const OutRows& row, const std::atomic<bool>* cancel) {
  SequenceStep::Request request{{&tokens_.back(), 1}, Phase::decode, cancel, 1, row.logits};
  request.rows = SequenceStep::Rows::draft, request.embeddings = row.embeddings;
  request.ahead = static_cast<uint32_t>(tokens_.size()) - 1 - n_computed();
  drop_part();
  ORRERY_TRY(enter(Stage::draft));
  return SequenceStep(this, request).run();
}

void Sequence::end_draft() {
  if (stage_ != Stage::draft) return;
  tokens_.resize(n_computed() + 1);
  made_.resize(n_computed() + 1);
  device_.resident->end_draft();
  stage_ = Stage::ready;
}

Status Sequence::read_hidden(Span<const int32_t> tokens, const float* hidden, bool want_logits, const std::atomic<bool>* cancel) {
  SequenceStep::Request request{tokens, tokens.size() > 1 ? Phase::prefill : Phase::decode, cancel, want_logits ? 1 : 0};
  request.hidden = hidden;
  ORRERY_TRY(SequenceStep(this, request).run());
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  made_.resize(tokens_.size(), 0);
  return ok_status();
}

template <class F>
Status Sequence::ask_resident(const F& f) {
  ORRERY_TRY(finish_pages());
  if (!device_.resident) return error(Code::invalid_argument, "policy %s keeps no queries", options_.policy.c_str());
  const Turn turn = model_->runtime().take_turn();
  const Resident::Use use(device_.resident.get(), turn);
  ORRERY_TRY(turn.backend().set_scratch(model_->workspace(turn).scratch, model_->limits(turn)));
  return f(device_.resident.get());
}

Status Sequence::top_keys(Span<const policy::KeyQuery> queries, const policy::ScoreRule& rule) {
  return ask_resident([&](Resident* resident) { return resident->top_page_keys(queries, rule, n_computed()); });
}

Status Sequence::key_weights(Span<const policy::WeightsQuery> queries) {
  return ask_resident([&](Resident* resident) { return resident->page_key_weights(queries, n_computed()); });
}

// The last logits ----------------------------------------------------------------------------------------

Status Sequence::fetch_logits(const Cancel& cancel) {
  if (!row_waits_.load(std::memory_order_acquire)) return ok_status();
  ORRERY_ASSIGN(const Turn turn, model_->runtime().take_turn(cancel));
  return model_->waiting_rows(turn).fetch(&turn.backend(), &row_waits_);
}

Result<bool> Sequence::fetch_more(Shortlist* shortlist, const Cancel& cancel) {
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

void Sequence::set_logits(const std::byte* floats) {
  {
    const Turn turn = model_->runtime().take_turn();
    model_->waiting_rows(turn).drop(&row_waits_);
  }
  std::memcpy(logits_.data(), floats, logits_.size() * sizeof(float));
  std::memcpy(embedding_.data(), floats + logits_.size() * sizeof(float), embedding_.size() * sizeof(float));
  logits_at_ = n_computed();
}

// Fork and park ------------------------------------------------------------------------------------------

Result<std::unique_ptr<Sequence>> Sequence::fork(const Cancel& cancel) {
  ORRERY_TRY(finish_pages(cancel));
  ORRERY_TRY(resume());
  drop_ahead();
  ORRERY_TRY(fetch_logits());
  ORRERY_TRY(complete_state(nullptr));
  if (state_ && state_->changed_in_place()) {
    const Turn turn = model_->runtime().take_turn();
    ORRERY_TRY(state_->checkpoint(&turn.backend()));
  }
  std::unique_ptr<Sequence> child(new Sequence(model_, options_, n_context_));
  child->tokens_.assign(tokens_.begin(), tokens_.end());
  child->made_.assign(made_.begin(), made_.end());
  child->logits_ = logits_;
  child->embedding_ = embedding_;
  child->logits_at_ = logits_at_;
  child->form_ = form_;
  child->owner_ = owner_;
  child->selects_again_ = selects_again_;
  Status room = child->acquire();
  if (room.ok()) {
    child->device_.pages->share(*device_.pages);
    if (state_) {
      const Turn turn = model_->runtime().take_turn();
      child->state_->copy_from(&turn.backend(), *state_);
      ORRERY_TRY(turn.backend().synchronize());
    }
    if (Resident* const resident = child->device_.resident.get()) {
      const Turn turn = model_->runtime().take_turn();
      const Resident::Use use(resident, turn);
      ORRERY_TRY(resident->copy_from(*device_.resident));
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
  if (hidden_) child->hidden_->copy_from(*hidden_);
  return child;
}

Status Sequence::park_copy_of(const Sequence& other) {
  ORRERY_TRY(other.save_resident(&parked_.resident));
  const uint64_t page_bytes = other.pages().page_bytes();
  const uint32_t n_pages = other.pages().n_pages(other.n_computed());
  ORRERY_ASSIGN(parked_.pages, os::Region::allocate(n_pages * page_bytes));
  stats_.device_to_host_bytes += n_pages * page_bytes;
  return other.download_pages(0, n_pages, parked_.pages.data());
}

Status Sequence::resume() {
  if (!parked()) return ok_status();
  ORRERY_TRY(acquire());
  Status filled = [&]() -> Status {
    const Turn turn = model_->runtime().take_turn();
    Backend& backend = turn.backend();
    kv::SequencePages& pages = *device_.pages;
    const uint32_t n_pages = pages.n_pages(n_computed());
    ORRERY_TRY(pages.make_whole_groups_writable(&backend, 0, n_computed()));
    pages.upload(&backend, 0, n_pages, parked_.pages.data());
    stats_.host_to_device_bytes += n_pages * pages.page_bytes();
    return backend.synchronize();
  }();
  if (filled.ok() && !parked_.resident.empty()) {
    filled = [&]() -> Status {
      ORRERY_ASSIGN(auto checked, device_.resident->check(parked_.resident, n_computed()));
      return take_resident(parked_.resident, n_computed(), std::move(checked));
    }();
  }
  if (!filled.ok()) {  // the KV is in parked_.pages alone: parked as before
    if (state_) state_->place({}, {}, nullptr);
    const DevicePart gone = std::move(device_);  // the resident part before its pages
    stage_ = Stage::parked;
    return Status(filled.detail());
  }
  if (parked_.resident.empty()) selects_again_ = device_.resident != nullptr;
  parked_ = {};
  return ok_status();
}

}  // namespace orrery::engine
