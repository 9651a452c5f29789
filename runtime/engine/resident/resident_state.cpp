// Saving and taking the state of a resident part (Resident::save). StateBytes has the rules.
#include <utility>

#include "runtime/engine/resident/resident.h"

namespace orrery::engine {

namespace {

constexpr uint32_t kVersion = 1;
constexpr uint64_t kMostStepsAhead = 1 << 20;  // of a refill

}  // namespace

// policy: in the state, or the one that takes it.
Status Resident::state(StateBytes* s, uint32_t n_tokens, policy::Policy* policy) {
  Backend* const backend = now_.backend;
  ORRERY_TRY(s->known(kVersion, "was written by another version"));
  bool settled = settled_;
  Parted parts = settling_;
  uint64_t step = step_;
  uint32_t n_unchanged = n_unchanged_;
  ORRERY_TRY(s->flag(&settled, "whether the session has settled is neither yes nor no"));
  ORRERY_TRY(s->number(&parts.n_steps, settled ? 1 : policy::kMostSettleSteps + 1, "a settlement has too many parts"));
  ORRERY_TRY(s->number(&parts.n_tokens, uint64_t{n_tokens} + 1, "more tokens are settled than the session has"));
  ORRERY_TRY(s->number(&parts.step, uint64_t{parts.n_steps} + 1, "a part of a settlement is none"));
  ORRERY_TRY(s->number(&step, UINT64_MAX / 2, "the session has made too many steps"));
  ORRERY_TRY(s->number(&n_unchanged, uint64_t{n_tokens} + 1, "more tokens are unchanged than the session has"));
  const bool settling = parts.n_steps > 0;
  if (settling) {
    ORRERY_TRY(s->check(attends_pages_ && policy->settle_steps(parts.n_tokens) == parts.n_steps && parts.step > 0 &&
                            parts.step < parts.n_steps && n_tokens - parts.n_tokens == parts.step,
                        "the steps of a settlement do not add up"));
  }
  if (parts_.queries) ORRERY_TRY(parts_.queries->state(backend, s, n_tokens));
  if (parts_.sums) ORRERY_TRY(parts_.sums->state(s, n_tokens));
  if (!settled && !settling) {
    if (s->takes()) step_ = step, n_unchanged_ = 0;
    return ok_status();
  }

  // Before the last part of scoring the slots are still those of an earlier settlement.
  const bool laid_out = settled || parts.step >= parts.n_scoring();
  kv::SlotTable table;
  if (!s->reads() && laid_out) ORRERY_TRY(answers_.read_held(&table));
  const auto n_layers = static_cast<uint32_t>(description_.kv().n_layers()),
             n_kv_heads = static_cast<uint32_t>(description_.kv().n_kv_heads);
  const uint32_t n_filled = (settled ? n_layers : parts.filled(parts.step, n_layers)) * n_kv_heads;  // heads
  if (laid_out) {
    ORRERY_TRY(parts_.slots->state(backend, s, n_tokens, &table));
    for (uint32_t head = n_filled; head < parts_.slots->n_heads(); ++head)
      ORRERY_TRY(s->check(table.length[head] == 0, "a head holds tokens before it is filled"));
    for (uint32_t head = 0; settling && head < n_filled; ++head)
      ORRERY_TRY(s->check(table.length[head] + parts.n_steps <= table.capacity[head], "a head has no room for its steps"));
    if (parts_.compensation_tokens) ORRERY_TRY(parts_.compensation_tokens->state(backend, s, n_tokens, n_filled));
  } else {
    table.capacity.assign(parts_.slots->n_heads(), 0), table.length = table.capacity, table.first.assign(parts_.slots->n_heads(), 0);
  }
  std::vector<kv::SavedRefill> refills;
  if (parts_.digests) ORRERY_TRY(parts_.digests->state(backend, s, settled ? n_tokens : parts.n_tokens));
  if (parts_.low_rank) ORRERY_TRY(parts_.low_rank->state(backend, s, n_tokens));
  if (parts_.codes) ORRERY_TRY(parts_.codes->state(backend, s, n_tokens));
  if (parts_.refills) ORRERY_TRY(parts_.refills->state(backend, s, n_tokens, table, s->takes() ? pages_ : nullptr, &refills));
  for (const kv::SavedRefill& refill : refills)
    ORRERY_TRY(s->check(refill.visible_at <= step + kMostStepsAhead, "a refill is visible too late"));

  policy::SavedMoment at;
  at.n_tokens = n_tokens, at.group = answers_.group();
  using Phase = policy::SavedMoment::Phase;
  at.phase = settled ? Phase::settled : laid_out ? Phase::filling : Phase::scoring;
  at.n_settling = parts.n_tokens, at.n_steps = parts.n_steps;
  at.slots = &table, at.refills = refills;
  if (!s->takes()) return policy->state(s, at);  // else it is in the state already

  step_ = step, settled_ = settled, settling_ = parts;
  n_unchanged_ = laid_out ? std::min(n_unchanged, n_tokens) : 0;
  n_held_ = n_tokens;
  capacity_ = table.capacity;
  return ok_status();
}

Status Resident::save(uint32_t n_tokens, std::vector<std::byte>* out) {
  StateBytes s(out);
  return state(&s, n_tokens, policy_.get());
}

Result<std::unique_ptr<policy::Policy>> Resident::check(Span<const std::byte> bytes, uint32_t n_tokens) {
  std::unique_ptr<policy::Policy> policy = policy_->clone();
  StateBytes s(bytes, StateBytes::Use::checks);
  ORRERY_TRY(state(&s, n_tokens, policy.get()));
  ORRERY_TRY(s.check(s.left() == 0, "the state goes on behind its end"));
  return policy;
}

Status Resident::take(Span<const std::byte> bytes, uint32_t n_tokens, std::unique_ptr<policy::Policy> checked) {
  invalidate();
  parts_.truncate(0);
  policy_ = std::move(checked);
  StateBytes s(bytes, StateBytes::Use::takes);
  Status status = state(&s, n_tokens, policy_.get());
  if (status.ok()) status = now_.backend->synchronize();
  if (!status.ok()) invalidate(), parts_.truncate(0);
  return status;
}

}  // namespace orrery::engine
