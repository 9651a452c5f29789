#include "runtime/engine/resident/resident.h"

#include <algorithm>

#include "runtime/base/checked.h"
#include "runtime/base/clock.h"

namespace orrery::engine {

kv::Region Resident::layout(const ResidentShape& s) {
  uint64_t host = s.n_heads() * (sizeof(HeadView) + 2 * sizeof(uint32_t)) + uint64_t{s.n_context} * sizeof(uint32_t);
  if (s.rebuilds()) {  // runs_: the chunks of a layer
    const uint64_t n_chunks = div_up(uint64_t{s.n_context}, uint64_t{s.digests.page_tokens});
    host += static_cast<uint64_t>(s.description->kv().n_kv_heads) * n_chunks * sizeof(RebuiltRun);
  }
  return {"tables of a step", kv::Holds::tables, 0, 0, host, 0};
}

Status Resident::check_operations(Backend* backend, const model::Description& h, const SessionOptions& options, uint32_t n_context) {
  ORRERY_ASSIGN(const ResidentShape shape, ResidentShape::make(h, backend->info(), options, n_context, false));
  return shape.check_operations(backend, options.policy.c_str());
}

Result<std::unique_ptr<Resident>> Resident::make(const LanguageModel* model, const SessionOptions& options, uint32_t n_context,
                                                 const kv::PageTable* pages, Span<const RopeSpec> ropes) {
  Runtime& runtime = model->runtime();
  ORRERY_ASSIGN(ResidentShape shape,
                ResidentShape::make(model->description(), runtime.device().info(), options, n_context, runtime.moves_directly()));
  {
    const Turn turn = runtime.take_turn();
    ORRERY_TRY(shape.check_operations(&turn.backend(), options.policy.c_str()));
  }
  std::unique_ptr<Resident> r(new Resident(shape, pages));
  r->kind_ = shape.kind(options);
  r->moves_directly_ = shape.moves_directly;
  r->fetches_ = shape.fetches;
  r->in_place_ = shape.in_place;
  r->attends_pages_ = shape.backend.attends_pages;
  ORRERY_ASSIGN(r->parts_, Parts::make(shape, &runtime, ropes));
  const size_t n_heads = r->parts_.slots->n_heads();
  r->capacity_.resize(n_heads);
  r->slots_.resize(n_heads);
  r->views_.resize(n_heads);
  r->selected_.reserve(n_context);
  ORRERY_TRY(r->answers_.make(shape, &runtime.arena(), &r->parts_, pages, r->views_, &r->now_));
  r->policy_ = std::move(shape.policy);
  return r;
}

kv::Refills::Stats Resident::refill_stats() const { return parts_.refills ? parts_.refills->stats() : kv::Refills::Stats(); }

Resident::Reads Resident::reads() const {
  const kv::LowRank* low_rank = parts_.low_rank.get();
  return {kv_read_, answers_.searched_bytes(), low_rank && !low_rank->by_head() ? refill_stats().tokens * 2 * low_rank->rank() : 0};
}

void Resident::invalidate() {
  settled_ = false;
  settling_ = {};
  draft_from_ = kNoDraft;
  now_.scored_position = Moment::kNone;
  if (parts_.refills) parts_.refills->drop();
  answers_.forget_fetches();
}

Status Resident::begin_draft(uint32_t n_tokens) {
  if (!can_draft(n_tokens)) invalidate();
  for (; settled_ && n_held_ < n_tokens; ++n_held_) parts_.slots->append(now_.backend, *pages_, n_held_);
  draft_from_ = n_tokens;
  return ok_status();
}

void Resident::end_draft() {
  if (draft_from_ == kNoDraft) return;
  if (settled_) parts_.slots->drop_last(n_held_ - draft_from_);
  n_held_ = n_unchanged_ = draft_from_;
  draft_from_ = kNoDraft;
}

void Resident::before_write(uint32_t from) {
  if (parts_.refills && pages_->shared(from)) parts_.refills->recall();
}

void Resident::truncate(uint32_t n_tokens) {
  invalidate();
  n_unchanged_ = std::min(n_unchanged_, n_tokens);
  parts_.truncate(n_tokens);
}

void Resident::forget_queries(uint32_t from, uint32_t to) {
  if (parts_.queries) parts_.queries->forget(from, to);
}

void Resident::note_queries(uint32_t from, uint32_t to) {
  if (parts_.sums && parts_.sums->under_way()) parts_.sums->finish();
  if (parts_.queries) parts_.queries->note(from, to);
}

Resident::Positions Resident::missing_queries(uint32_t n_tokens) const {
  if (settled_) return {};  // the steps after settling keep their queries
  const uint32_t wanted = std::min(policy_->queries_wanted(), n_tokens), known = answers_.known_queries(n_tokens);
  if (parts_.sums && parts_.sums->n_rows() < n_tokens) return {parts_.sums->n_rows(), n_tokens};
  return known >= wanted ? Positions{} : Positions{n_tokens - wanted, n_tokens - known};
}

Status Resident::ask(int32_t layer, Ptr<const float> q) {
  now_.layer = layer, now_.q = q;
  Status status = policy_->before_attend(&answers_, static_cast<uint32_t>(layer), step_ + 1, now_.n_tokens);
  now_.q = {};
  return status;
}

Status Resident::before_layer(int32_t layer, Ptr<const float> next_q) {
  // First the refills of the next layer that the policy asked for after the previous step. Then the policy is asked about that layer.
  if (parts_.refills) {
    const auto last_layer = static_cast<uint32_t>(layer + 1);
    ORRERY_TRY(parts_.refills->apply(now_.backend, parts_.slots.get(), step_ + 1, last_layer, now_.cancel));
  }
  if (next_q) {
    now_.backend->send();  // answers are computed behind next_q
    ORRERY_TRY(ask(layer + 1, next_q));
    if (parts_.refills && parts_.refills->moves_ahead())  // begins the moves
      ORRERY_TRY(parts_.refills->apply(now_.backend, parts_.slots.get(), step_ + 1, static_cast<uint32_t>(layer), now_.cancel));
  }
  answers_.join_fetches(layer);
  return ok_status();
}

Status Resident::before_attend(KvLayer at, Ptr<const float> q, int64_t q_stride) {
  const int32_t layer = at.layer;
  Backend& backend = *now_.backend;
  backend.send();  // answers and refills come behind q
  if (parts_.sums && parts_.sums->under_way()) return parts_.sums->add_layer(&backend, *pages_, layer, q, q_stride);
  const auto place = [&] {
    if (!parts_.refills) return ok_status();
    return parts_.refills->apply(now_.backend, parts_.slots.get(), step_ + 1, static_cast<uint32_t>(layer), now_.cancel);
  };
  if (waiting_) ORRERY_TRY(place());
  if (!policy_->asks_before_attend()) return ok_status();
  ORRERY_TRY(ask(layer, q));
  if (in_place_) follow_held(layer);
  return place();
}

// The policy has chosen other tokens for the layer's heads with codes, perhaps another number of them.
void Resident::follow_held(int32_t layer) {
  const auto n_kv_heads = static_cast<uint32_t>(description_.kv().n_kv_heads), first = static_cast<uint32_t>(layer) * n_kv_heads;
  for (uint32_t head = first; head < first + n_kv_heads; ++head) {
    if (!parts_.codes || !parts_.codes->has(head)) continue;
    slots_[head] = parts_.slots->length(head);
    views_[head].own_slot = static_cast<int32_t>(slots_[head]), views_[head].n_keys = views_[head].own_slot + 1;
  }
}

template <class Query>
Status Resident::check_known(Span<const Query> queries, uint32_t n_tokens) const {
  const uint32_t known = answers_.known_queries(n_tokens);
  for (const Query& query : queries)
    if (query.first_position + query.n_positions > n_tokens || query.first_position < n_tokens - known)
      return error(Code::invalid_argument, "queries of positions %u to %u: those of the last %u of %u tokens are known",
                   query.first_position, query.first_position + query.n_positions, known, n_tokens);
  return ok_status();
}

Status Resident::top_page_keys(Span<const policy::KeyQuery> queries, const policy::ScoreRule& rule, uint32_t n_tokens) {
  ORRERY_TRY(check_known(queries, n_tokens));
  now_.settling = true;
  Status status = answers_.top_keys(queries, rule);
  now_.settling = false;
  return status;
}

Status Resident::page_key_weights(Span<const policy::WeightsQuery> queries, uint32_t n_tokens) {
  ORRERY_TRY(check_known(queries, n_tokens));
  now_.settling = true;
  Status status = answers_.key_weights(queries);
  now_.settling = false;
  return status;
}

// Notes the head's first slots, which hold exact keys of selected_. Their K will be rebuilt with the layer's other heads, so that it equals
// the K of tokens fetched later.
void Resident::note_rebuilt(uint32_t head, uint32_t n_slots) {
  const auto kv_head = static_cast<int32_t>(head % static_cast<uint32_t>(description_.kv().n_kv_heads));
  for (uint32_t slot = 0; slot < n_slots;) {
    uint32_t n = 1;
    while (slot + n < n_slots && selected_[slot + n] == selected_[slot] + n) ++n;
    const Ptr<std::byte> to = parts_.slots->take_slots(head, {slot, selected_[slot], n});
    runs_.push_back({static_cast<int32_t>(selected_[slot]), static_cast<int32_t>(n), to, {}, kv_head});
    slot += n;
  }
}

void Resident::rebuild_noted(uint32_t layer) {
  if (!runs_.empty()) parts_.low_rank->rebuild(now_.backend, layer, format_.type, runs_);
  runs_.clear();
}

// Merges the tokens that selected_ (ascending) leaves out into the head's compensation token.
void Resident::compensate(uint32_t head, uint32_t n_tokens) {
  Backend& backend = *now_.backend;
  parts_.compensation_tokens->want(head);
  if (const policy::CompensationShares shares = policy_->compensation_shares(head); !shares.of_tokens.empty())
    return parts_.compensation_tokens->add_by_shares(*pages_, head, shares.of_tokens, shares.weight);
  uint32_t next = 0;
  for (const uint32_t p : selected_) parts_.compensation_tokens->add(&backend, *pages_, head, next, p), next = p + 1;
  parts_.compensation_tokens->add(&backend, *pages_, head, next, n_tokens);
}

Status Resident::settle(uint32_t n_tokens) {
  const uint64_t start = now_us();
  if (!settling()) {
    const uint32_t draft_from = draft_from_;
    now_.settles_again = settled_;
    invalidate();
    draft_from_ = draft_from;
    if (attends_pages_ && draft_from == kNoDraft) settling_ = {n_tokens, policy_->settle_steps(n_tokens), 0};
    if (parts_.digests && parts_.digests->kind() == DigestKind::mean) parts_.digests->truncate(0);  // hidden digests are made again
    if (parts_.digests) parts_.digests->extend(now_.backend, *pages_, n_tokens);
  }
  now_.settling = true;
  Status status = settling() ? settle_part() : settle_heads(n_tokens);
  now_.settling = now_.settles_again = false;
  settle_us_ += now_us() - start;
  if (!status.ok()) settling_ = {};
  if (!status.ok() || settling()) return status;
  settled_ = true;
  n_unchanged_ = n_held_ = n_tokens;
  return ok_status();
}

// The policy chooses the tokens of each head, and the pages fill its slots.
Status Resident::settle_heads(uint32_t n_tokens) {
  ORRERY_TRY(policy_->settle(&answers_, n_tokens, capacity_));
  lay_out();
  return fill_heads(n_tokens, 0, static_cast<uint32_t>(description_.kv().n_layers()));
}

// The same in parts.
Status Resident::settle_part() {
  const Parted& s = settling_;
  if (s.step < s.n_scoring()) ORRERY_TRY(policy_->settle_part(&answers_, s.n_tokens, s.step, s.n_scoring(), capacity_));
  if (s.step + 1 == s.n_scoring()) lay_out();
  const auto n_layers = static_cast<uint32_t>(description_.kv().n_layers());
  return fill_heads(s.n_tokens, s.filled(s.step, n_layers), s.filled(s.step + 1, n_layers));
}

void Resident::lay_out() {
  parts_.slots->lay_out(capacity_);
  if (parts_.compensation_tokens) parts_.compensation_tokens->clear();
}

Status Resident::fill_heads(uint32_t n_tokens, uint32_t first_layer, uint32_t end) {
  runs_.clear();  // a cancelled settling may have left noted runs
  const auto n_kv_heads = static_cast<uint32_t>(description_.kv().n_kv_heads);
  for (uint32_t head = first_layer * n_kv_heads; head < end * n_kv_heads; ++head) {
    ORRERY_TRY(now_.go_on());
    const uint32_t capacity = parts_.slots->capacity(head);
    policy_->select(head, n_tokens, capacity, &selected_);
    // A head with room for the whole context has each token in a slot of its own. Tokens from before the prompt are still in place.
    const size_t n_held = capacity == n_context_ && !parts_.low_rank ? n_unchanged_ : 0;
    settled_bytes_ += parts_.slots->fill(now_.backend, *pages_, head, selected_, n_held) * pages_->format().token_bytes();
    if (parts_.low_rank) note_rebuilt(head, policy_->rebuilt_slots(head));
    if ((head + 1) % n_kv_heads == 0) rebuild_noted(head / n_kv_heads);
    if (parts_.compensation_tokens && policy_->has_compensation_token(head)) compensate(head, n_tokens);
  }
  if (parts_.compensation_tokens) parts_.compensation_tokens->finish(now_.backend, *pages_);
  return ok_status();
}

Status Resident::prepare(uint32_t n_tokens, bool* must_settle) {
  now_.n_tokens = n_tokens;
  if (must_settle && !settled_) *must_settle = true;
  if (must_settle && *must_settle) return ok_status();
  waiting_ = false;
  if (!settled_) ORRERY_TRY(settle(n_tokens));
  if (settling()) return ok_status();
  for (uint32_t head = 0; head < parts_.slots->n_heads();) {
    const uint32_t slot = policy_->slot_for(head, parts_.slots->length(head), parts_.slots->capacity(head));
    if (slot == policy::kSettleAgain) {  // the tail is full: settling makes room
      if (must_settle) {
        *must_settle = true;
        return ok_status();
      }
      ORRERY_TRY(settle(n_tokens));
      if (settling()) return ok_status();
      head = 0;
      continue;
    }
    slots_[head] = slot;
    views_[head] = parts_.slots->view_with_append(head, slot);
    if (parts_.codes && policy_->compensates_by_codes(head))
      views_[head].compensation_token = parts_.codes->mean(head), views_[head].compensation_logs = answers_.evicted_logs(head),
      views_[head].compensation_values = answers_.evicted_values(head);
    ++head;
  }
  if (parts_.compensation_tokens) add_replaced();
  now_.scored_position = Moment::kNone;
  if (parts_.scored_heads) parts_.scored_heads->begin(*policy_, {views_.data(), views_.size()});
  Status status = ok_status();
  answers_.begin_step();
  if (parts_.refills && parts_.refills->moves_ahead()) status = parts_.refills->begin(now_.backend, parts_.slots.get(), step_ + 1);
  waiting_ = parts_.refills && (parts_.refills->moving() || parts_.refills->late(step_ + 1));
  // A device makes a graph of each part of a cut step. The second step is cut for this, although nothing is due.
  if (n_resident_steps_++ == 1) waiting_ |= parts_.refills && parts_.refills->moves_ahead();
  if (status.ok() && parts_.refills && !waiting_)
    status = parts_.refills->apply(now_.backend, parts_.slots.get(), step_ + 1, UINT32_MAX, now_.cancel);
  if (!status.ok()) settled_ = false;
  return status;
}

// Merges tokens whose slots the step's own token takes into the heads' compensation tokens. The step attends to these.
void Resident::add_replaced() {
  Backend& backend = *now_.backend;
  for (uint32_t head = 0; head < parts_.slots->n_heads(); ++head) {
    if (!parts_.compensation_tokens->wanted(head)) continue;
    if (slots_[head] < parts_.slots->length(head)) {
      const uint32_t position = parts_.slots->positions(head)[slots_[head]];
      parts_.compensation_tokens->add(&backend, *pages_, head, position, position + 1);
    }
    views_[head].compensation_token = parts_.compensation_tokens->token(head);
    views_[head].compensation_weight = parts_.compensation_tokens->weight(head);
  }
  parts_.compensation_tokens->finish(&backend, *pages_);
}

// Ends a step that has attended to the pages.
Status Resident::commit_to_pages(uint32_t position) {
  kv_read_ += uint64_t{parts_.slots->n_heads()} * (position + 1) * pages_->format().token_bytes();
  note_queries(position, position + 1);
  if (Status status = step_fault_ ? step_fault_(step_) : ok_status(); !status.ok()) {
    invalidate();
    return status;
  }
  if (++settling_.step < settling_.n_steps) return ok_status();
  for (uint32_t p = settling_.n_tokens; p <= position; ++p) parts_.slots->append(now_.backend, *pages_, p);
  settling_ = {};
  settled_ = true;
  n_unchanged_ = n_held_ = position + 1;
  return ok_status();
}

Status Resident::commit(uint32_t position) {
  ++step_;
  if (settling()) return commit_to_pages(position);
  Status status = answers_.finish_fetches();
  now_.scored_position = position;
  for (uint32_t head = 0; head < parts_.slots->n_heads(); ++head) {
    parts_.slots->commit(head, slots_[head], position);
    kv_read_ += parts_.slots->length(head) * format_.token_bytes();
  }
  n_unchanged_ = n_held_ = position + 1;
  note_queries(position, position + 1);
  if (parts_.digests) parts_.digests->extend(now_.backend, *pages_, position + 1);
  if (status.ok() && step_fault_) status = step_fault_(step_);
  if (status.ok() && parts_.sums) status = answers_.sum_step(position);
  if (status.ok()) status = policy_->after_step(&answers_, step_, position);
  now_.scored_position = Moment::kNone;
  if (!status.ok()) invalidate();
  return status;
}

Status Resident::copy_from(const Resident& other) {
  policy_ = other.policy_->clone();
  answers_.forget_fetches();
  const bool goes_on = other.settled_ || other.settling();
  ORRERY_TRY(parts_.copy_from(now_.backend, other.parts_, *pages_, goes_on));
  if (!goes_on) return ok_status();
  step_ = other.step_;
  answers_.go_on_from(other.answers_);
  n_unchanged_ = other.n_unchanged_;
  n_held_ = other.n_held_;
  settling_ = other.settling_;
  settled_ = other.settled_;
  return ok_status();
}

}  // namespace orrery::engine
