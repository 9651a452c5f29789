// What a sequence computes a second time: tokens whose queries are lost, and tokens that its recurrent state lacks. Their KV stays what it
// is.
#include <algorithm>

#include "runtime/engine/sequence/sequence.h"

namespace orrery::engine {

namespace {

bool is_generated(uint8_t made) { return (made & kv::Made::kGenerated) != 0; }

}  // namespace

Status Sequence::compute_again(const Turn& turn, Phase phase, uint32_t from, uint32_t n, const std::atomic<bool>* cancel,
                               const QueryRing& queries, model::LayerHook* hook, CheckpointedState* state) {
  rows_.resize(n);
  for (uint32_t i = 0; i < n; ++i) rows_[i] = {tokens_[from + i], static_cast<int32_t>(from + i), 0};
  Step step;
  step.phase = phase;
  step.rows = rows_;
  kv::StepPages step_pages;
  step_pages.give(*device_.pages, &step);
  step.queries = queries;
  step.transform = transform();
  if (state) state->begin_step(from);
  return model::forward(&turn.backend(), model_->weights(), ropes_.specs(), model_->workspace(turn), step, cancel, {}, hook,
                        state ? state->step() : SequenceState(), uses_of(options_.adapters));
}

Status Sequence::recover_queries(const Turn& turn, uint32_t n_tokens, const std::atomic<bool>* cancel) {
  Resident& resident = *device_.resident;
  kv::SequencePages& pages = *device_.pages;
  const Resident::Positions missing = resident.missing_queries(n_tokens);
  if (missing.end == 0) return ok_status();
  Backend& backend = turn.backend();
  // Recomputed prompt tokens have the same bits. Generated tokens have not, because they attended to the resident KV: so the pages are
  // saved, and a chunk ends with its first generated token. Then no token attends to KV that is about to be put back, in any chunk size.
  uint32_t begin = missing.first;
  // The state that must be an earlier one meanwhile. Rings that reach back are saved with the other pages.
  CheckpointedState* const moved = state_ && !state_->reaches(missing.first) ? state_.get() : nullptr;
  CheckpointedState::Bytes last_state;  // of n_tokens, where the sequence has it
  if (moved) {
    if (moved->position() == n_tokens) {
      ORRERY_ASSIGN(last_state, moved->read(&backend));
    }
    ORRERY_TRY(moved->restore(&backend, missing.first));
    begin = moved->position();
    stats_.recomputed_tokens += missing.end - begin;
  }
  const uint32_t n_pages = std::min(missing.end - begin, options_.chunk()) / kTokensOfPage + 2;
  const uint64_t ring_page_bytes = moved ? 0 : pages.ring_page_bytes();
  ORRERY_ASSIGN(const os::Region saved, os::Region::allocate(n_pages * (pages.page_bytes() + ring_page_bytes)));
  std::byte* const saved_rings = saved.data() + n_pages * pages.page_bytes();
  Status status = ok_status();
  for (uint32_t from = begin; from < missing.end && status.ok();) {
    const bool wanted = from >= missing.first;
    const auto at = made_.begin() + from, most = at + std::min((wanted ? missing.end : missing.first) - from, options_.chunk());
    const auto generated = std::find_if(at, most, is_generated);
    const auto n = static_cast<uint32_t>((generated == most ? most : generated + 1) - at);
    const uint32_t first = from / kTokensOfPage, end = (from + n - 1) / kTokensOfPage + 1;  // pages
    status = pages.make_writable(&backend, from, from + n);
    if (!status.ok()) break;
    pages.download(&backend, first, end, saved.data());
    if (ring_page_bytes > 0) pages.download_rings(&backend, first, end, saved_rings);
    status = compute_again(turn, Phase::prefill, from, n, cancel, wanted ? resident.queries() : QueryRing(),
                           wanted ? resident.hook(Phase::prefill, from, n) : nullptr, moved);
    if (moved && status.ok()) moved->end_step(from + n);
    if (wanted) status.ok() ? resident.note_queries(from, from + n) : resident.forget_queries(from, from + n);
    pages.upload(&backend, first, end, saved.data());
    if (ring_page_bytes > 0) pages.upload_rings(&backend, first, end, saved_rings);
    from += n;
  }
  ORRERY_TRY(std::move(status));
  if (last_state) return moved->put_back(&backend, last_state, n_tokens);
  // A generated token's state is not that of its computation as a prompt token: catch_up() computes it.
  if (moved && std::any_of(made_.begin() + begin, made_.begin() + missing.end, is_generated)) moved->forget();
  return ok_status();
}

Status Sequence::catch_up(const Turn& turn, uint32_t n_tokens, const std::atomic<bool>* cancel, bool whole) {
  Backend& backend = turn.backend();
  kv::SequencePages& pages = *device_.pages;
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
    ORRERY_ASSIGN(saved, os::Region::allocate(pages.page_bytes()));
  }
  while (from < n_tokens) {
    // Each token by the phase that computed it first.
    const bool generated = is_generated(made_[from]);
    const uint32_t end = state_->end_of_chunk(from, options_.chunk(), n_tokens);
    uint32_t n = 1;
    while (!generated && from + n < end && !is_generated(made_[from + n])) ++n;
    ORRERY_TRY(pages.make_writable(&backend, from, from + n));
    const bool keeps_kv = generated && decodes_resident();
    const uint32_t page = from / kTokensOfPage;
    if (keeps_kv) pages.download(&backend, page, page + 1, saved.data());
    Status status = compute_again(turn, generated ? Phase::decode : Phase::prefill, from, n, cancel, {}, nullptr, state_.get());
    if (keeps_kv) pages.upload(&backend, page, page + 1, saved.data());
    ORRERY_TRY(std::move(status));
    from += n;
    state_->end_step(from);
    if (state_->due()) ORRERY_TRY(state_->checkpoint(&backend));
  }
  return ok_status();
}

Status Sequence::complete_state(const std::atomic<bool>* cancel) {
  if (!state_ || state_->position() == n_computed() || state_->reach(n_computed()) != n_computed()) return ok_status();
  ORRERY_ASSIGN(const Turn turn, model_->runtime().take_turn(Cancel(cancel)));
  ORRERY_TRY(prepare_backend(turn));
  return catch_up(turn, n_computed(), cancel, true);
}

}  // namespace orrery::engine
