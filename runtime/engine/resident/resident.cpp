#include "runtime/engine/resident/resident.h"

#include <algorithm>
#include <cmath>

#include "runtime/base/checked.h"
#include "runtime/base/clock.h"

namespace orrery::engine {

namespace {

KeyScoring key_scoring(const policy::ScoreRule& rule) {
  KeyScoring scoring;
  scoring.max_of_group = rule.reduce == policy::GroupReduce::max;
  scoring.pooling = rule.pooling == policy::Pooling::avg   ? KeyScoring::Pooling::avg
                    : rule.pooling == policy::Pooling::max ? KeyScoring::Pooling::max
                                                           : KeyScoring::Pooling::none;
  scoring.pool_width = static_cast<int32_t>(rule.pool_width);
  return scoring;
}

}  // namespace

uint64_t Resident::bytes() const {
  return store_->bytes() + (digests_ ? digests_->bytes() : 0) + (low_rank_ ? low_rank_->bytes() : 0) + (compensation_tokens_ ? compensation_tokens_->bytes() : 0);
}

uint64_t Resident::used_bytes() const {
  uint64_t slots = 0;
  for (uint32_t head = 0; settled_ && head < store_->n_heads(); ++head) slots += store_->length(head);
  return slots * format_.token_bytes() + (digests_ ? digests_->used_bytes() : 0) + (low_rank_ ? low_rank_->used_bytes() : 0) +
         (compensation_tokens_ && settled_ ? compensation_tokens_->used_bytes() : 0);
}

kv::Refills::Stats Resident::refill_stats() const { return refills_ ? refills_->stats() : kv::Refills::Stats(); }

void Resident::invalidate() {
  settled_ = false;
  scored_position_ = kNone;
  if (refills_) refills_->drop();
}

void Resident::before_write(uint32_t from) {
  if (refills_ && pages_->shared(from)) refills_->recall();
}

void Resident::truncate(uint32_t n_tokens) {
  invalidate();
  n_unchanged_ = std::min(n_unchanged_, n_tokens);
  if (digests_) digests_->truncate(n_tokens);
  if (sums_) sums_->truncate(n_tokens);
  for (uint32_t& p : ring_positions_)
    if (p != kNone && p >= n_tokens) p = kNone;
}

void Resident::forget_queries(uint32_t from, uint32_t to) {
  const uint32_t n_rows = static_cast<uint32_t>(ring_positions_.size());
  for (uint32_t p = to - std::min(to - from, n_rows); p < to; ++p) ring_positions_[p % n_rows] = kNone;
}

void Resident::note_queries(uint32_t from, uint32_t to) {
  if (sums_ && sums_->under_way()) sums_->finish();
  const uint32_t n_rows = static_cast<uint32_t>(ring_positions_.size());
  if (n_rows == 0) return;
  for (uint32_t p = to - std::min(to - from, n_rows); p < to; ++p) ring_positions_[p % n_rows] = p;
}

uint32_t Resident::known_queries(uint32_t n_tokens) const {
  const uint32_t n_rows = static_cast<uint32_t>(ring_positions_.size());
  uint32_t n = 0;
  while (n < n_rows && n < n_tokens && ring_positions_[(n_tokens - 1 - n) % n_rows] == n_tokens - 1 - n) ++n;
  return n;
}

Resident::Positions Resident::missing_queries(uint32_t n_tokens) const {
  if (settled_) return {};   // those of the steps since are known
  const uint32_t wanted = std::min(policy_->queries_wanted(), n_tokens), known = known_queries(n_tokens);
  if (sums_ && sums_->n_rows() < n_tokens) return {sums_->n_rows(), n_tokens};
  return known >= wanted ? Positions{} : Positions{n_tokens - wanted, n_tokens - known};
}

// While settling the keys are the reservoir's; afterwards those of heads that hold all of them, slot by position.
template <class Query>
void Resident::set_keys(const Query& query, KeysJob* job) const {
  const uint32_t n_kv_heads = static_cast<uint32_t>(model_->hyper().n_kv_heads);
  job->layer = static_cast<int32_t>(query.head / n_kv_heads);
  job->kv_head = static_cast<int32_t>(query.head % n_kv_heads);
  if (settling_) {
    job->tiles = pages_->view().pages;
    job->offset = pages_->format().head_offset(query.head);
  } else {
    job->tiles = store_->tiles(query.head);
    if (query.n_positions == 1 && query.first_position == scored_position_) job->exported = views_[query.head].exported;
  }
  if (q_) job->layer = 0;   // of the queries
  job->n_keys = static_cast<int32_t>(query.n_keys);
  job->first_position = static_cast<int32_t>(query.first_position);
  job->n_positions = static_cast<int32_t>(query.n_positions);
}

KeysShape Resident::keys_shape() const {
  const model::Hyperparameters& h = model_->hyper();
  KeysShape shape;
  shape.kv = settling_ ? pages_->format() : format_;
  shape.n_heads = h.n_heads;
  shape.scale = 1.0f / std::sqrt(static_cast<float>(h.head_dim));
  shape.queries = q_ ? QueryRing{{q_.address}, 1} : ring_;   // one layer's, in place of the ring
  return shape;
}

// Weights that attention has left are no keys.
template <class Job>
void Resident::count_searched(const std::vector<Job>& jobs, uint64_t key_bytes) {
  for (const Job& job : jobs)
    if (!settling_ && !job.exported.data) searched_ += static_cast<uint64_t>(job.n_keys) * key_bytes;
}

Status Resident::top_keys(Span<const policy::KeyQuery> queries, const policy::ScoreRule& rule) {
  ORRERY_TRY(go_on());
  jobs_.clear();
  for (const policy::KeyQuery& query : queries) {
    TopKeysJob job;
    set_keys(query, &job);
    job.k = static_cast<int32_t>(query.k);
    job.by_score = query.by_score;
    job.out = query.out;
    job.among = query.among;
    job.n_common = query.n_common;
    jobs_.push_back(job);
  }
  TopKeysShape shape;
  static_cast<KeysShape&>(shape) = keys_shape();
  shape.scoring = key_scoring(rule);
  count_searched(jobs_, shape.kv.vector_bytes());
  Backend& backend = *backend_;
  backend.keys()->top_keys(jobs_, shape);
  return backend.synchronize();
}

Status Resident::key_weights(Span<const policy::WeightsQuery> queries) {
  ORRERY_TRY(go_on());
  weights_jobs_.clear();
  for (const policy::WeightsQuery& query : queries) {
    KeyWeightsJob job;
    set_keys(query, &job);
    job.mean = query.mean;
    job.out = query.out;
    weights_jobs_.push_back(job);
  }
  const KeysShape shape = keys_shape();
  count_searched(weights_jobs_, shape.kv.vector_bytes());
  Backend& backend = *backend_;
  backend.keys()->key_weights(weights_jobs_, shape);
  return backend.synchronize();
}

Status Resident::key_moments(Span<const policy::MomentsQuery> queries, std::vector<float>* rows) {
  ORRERY_TRY(go_on());
  Backend& backend = *backend_;
  if (!backend.info().makes_moments) return Heads::key_moments(queries, rows);
  moments_jobs_.clear();
  for (const policy::MomentsQuery& query : queries) {
    KeyMomentsJob job;
    set_keys(query, &job);
    job.n_measured = static_cast<int32_t>(query.n_scored);
    job.gamma = query.gamma;
    job.out = query.out;
    job.entropy = &query.dispersion->entropy;
    job.variance = &query.dispersion->variance;
    moments_jobs_.push_back(job);
  }
  const KeysShape shape = keys_shape();
  count_searched(moments_jobs_, shape.kv.vector_bytes());
  backend.keys()->key_moments(moments_jobs_, shape);
  return backend.synchronize();
}

template <class Job>
void Resident::set_pages(uint32_t head, uint32_t position, uint32_t first_page, uint32_t n_pages, Job* job) const {
  const auto n_kv_heads = static_cast<uint32_t>(model_->hyper().n_kv_heads);
  job->layer = q_ || projected_.bytes() > 0 ? 0 : static_cast<int32_t>(head / n_kv_heads);
  job->kv_head = static_cast<int32_t>(head % n_kv_heads);
  job->tiles = digests_ ? digests_->tiles(head) : low_rank_->tiles(head);
  job->offset = first_page * (digests_ ? digests_->digest_bytes() : 2 * low_rank_->rank());   // they lie one behind the other
  job->n_keys = static_cast<int32_t>(n_pages);
  job->first_position = static_cast<int32_t>(position);
  job->n_positions = 1;
}

// `head`: of the layer that is asked about, where queries are projected.
void Resident::set_pages(uint32_t head, uint32_t position, KeysShape* shape) {
  shape->bounds = digests_ && digests_->kind() != DigestKind::mean;
  shape->keys_alone = !shape->bounds;
  if (digests_) {
    shape->kv = digests_->format();
    return;
  }
  const model::Hyperparameters& h = model_->hyper();
  const uint32_t layer = head / static_cast<uint32_t>(h.n_kv_heads), n_rows = static_cast<uint32_t>(ring_.n_rows);
  const Ptr<const float> q = q_ ? q_ : Ptr<const float>(ring_.data + uint64_t{layer * n_rows + position % n_rows} * static_cast<uint64_t>(h.q_dim()));
  const Ptr<float> projected{projected_.data().address};
  low_rank_->project(backend_, layer, h.n_heads, q, projected);
  shape->kv.type = KvType::f16;
  shape->kv.head_dim = static_cast<int32_t>(low_rank_->rank());
  shape->queries = {projected, 1};
}

Status Resident::top_pages(Span<const policy::PageQuery> queries, const policy::ScoreRule& rule) {
  const auto layer_of = [&](size_t i) { return queries[i].head / static_cast<uint32_t>(model_->hyper().n_kv_heads); };
  for (size_t begin = 0, end = 0; begin < queries.size(); begin = end) {   // projected queries are of one layer
    while (end < queries.size() && (digests_ || layer_of(end) == layer_of(begin))) ++end;
    ORRERY_TRY(find_pages(queries.subspan(begin, end - begin), rule));
  }
  return ok_status();
}

Status Resident::find_pages(Span<const policy::PageQuery> queries, const policy::ScoreRule& rule) {
  ORRERY_TRY(go_on());
  jobs_.clear();
  for (const policy::PageQuery& query : queries) {
    TopKeysJob job;
    set_pages(query.head, query.position, query.first_page, query.n_pages, &job);
    job.k = static_cast<int32_t>(query.k);
    job.out = query.out;
    jobs_.push_back(job);
  }
  TopKeysShape shape;
  static_cast<KeysShape&>(shape) = keys_shape();
  set_pages(queries[0].head, queries[0].position, &shape);
  if (!rule.scaled) shape.scale = 1.0f;
  shape.scoring = key_scoring(rule);
  count_searched(jobs_, shape.bounds ? shape.kv.token_bytes() : shape.kv.vector_bytes());
  Backend& backend = *backend_;
  backend.keys()->top_keys(jobs_, shape);
  ORRERY_TRY(backend.synchronize());
  for (const policy::PageQuery& query : queries)
    for (uint32_t i = 0; i < query.k; ++i) query.out[i] += query.first_page;
  return ok_status();
}

Status Resident::scores(Span<const policy::ScoresQuery> queries) {
  if (queries.empty()) return ok_status();
  weights_jobs_.clear();
  for (const policy::ScoresQuery& query : queries) {
    KeyWeightsJob job;
    if (query.pages)
      set_pages(query.head, query.position, query.first, query.n, &job);
    else
      set_keys(policy::WeightsQuery{query.head, query.position, 1, query.n, false, nullptr}, &job);
    job.exported = {};
    job.out = query.out;
    weights_jobs_.push_back(job);
  }
  KeysShape shape = keys_shape();
  shape.products = true;
  if (queries[0].pages) set_pages(queries[0].head, queries[0].position, &shape);
  if (!queries[0].scaled) shape.scale = 1.0f;
  count_searched(weights_jobs_, shape.bounds ? shape.kv.token_bytes() : shape.kv.vector_bytes());
  Backend& backend = *backend_;
  backend.keys()->key_weights(weights_jobs_, shape);
  return backend.synchronize();
}

Status Resident::query_similarity(Span<float> out) {
  const model::Hyperparameters& h = model_->hyper();
  const size_t width = static_cast<size_t>(h.q_dim()), dim = static_cast<size_t>(h.head_dim), n_group = group();
  const uint64_t row = static_cast<uint64_t>(layer_) * static_cast<uint64_t>(ring_.n_rows) +
                       (n_tokens_ - 1) % static_cast<uint32_t>(ring_.n_rows);
  Backend& backend = *backend_;
  const Download both[] = {{q_now_.data(), {q_.address}, width * sizeof(float)},
                           {q_before_.data(), {(ring_.data + row * width).address}, width * sizeof(float)}};
  backend.download_all({both, 2});
  ORRERY_TRY(backend.synchronize());
  for (size_t head = 0; head < out.size(); ++head) {
    double sum = 0;
    for (size_t g = 0; g < n_group; ++g) {
      const float *a = q_now_.data() + (head * n_group + g) * dim, *b = q_before_.data() + (head * n_group + g) * dim;
      double ab = 0, aa = 0, bb = 0;
      for (size_t i = 0; i < dim; ++i) {
        const double x = a[i], y = b[i];
        ab += x * y, aa += x * x, bb += y * y;
      }
      sum += aa > 0 && bb > 0 ? ab / std::sqrt(aa * bb) : 0;
    }
    out[head] = static_cast<float>(sum / static_cast<double>(n_group));
  }
  return ok_status();
}

Status Resident::ask(int32_t layer, Ptr<const float> q) {
  layer_ = layer, q_ = q;
  Status status = policy_->before_attend(this, static_cast<uint32_t>(layer), step_ + 1, n_tokens_);
  q_ = {};
  return status;
}

Status Resident::before_layer(int32_t layer, Ptr<const float> next_q) {
  // Of the next layer only what was asked for behind the step before: it is asked anew, then.
  if (refills_) ORRERY_TRY(refills_->apply(backend_, store_.get(), step_ + 1, static_cast<uint32_t>(layer + 1), cancel_));
  if (!next_q) return ok_status();
  ORRERY_TRY(backend_->synchronize());   // the queries stand there
  return ask(layer + 1, next_q);
}

Status Resident::before_attend(int32_t layer, Ptr<const float> q, int64_t q_stride) {
  Backend& backend = *backend_;
  ORRERY_TRY(backend.synchronize());   // the queries stand there; and a device has not waited for what follows
  if (sums_ && sums_->under_way()) return sums_->add_layer(&backend, *pages_, layer, q, q_stride);
  const auto place = [&] { return refills_ ? refills_->apply(backend_, store_.get(), step_ + 1, static_cast<uint32_t>(layer), cancel_) : ok_status(); };
  if (waiting_) ORRERY_TRY(place());
  if (!policy_->asks_before_attend()) return ok_status();
  ORRERY_TRY(ask(layer, q));
  return place();
}

void Resident::move_last(uint32_t head, uint32_t n, uint32_t slot) { store_->move_last(backend_, head, n, slot); }

uint32_t Resident::group() const {
  return static_cast<uint32_t>(model_->hyper().n_heads / model_->hyper().n_kv_heads);
}

Status Resident::top_page_keys(Span<const policy::KeyQuery> queries, const policy::ScoreRule& rule,
                               uint32_t n_tokens) {
  const uint32_t known = known_queries(n_tokens);
  for (const policy::KeyQuery& query : queries)
    if (query.first_position + query.n_positions > n_tokens || query.first_position < n_tokens - known)
      return error(Code::invalid_argument, "queries of positions %u to %u: those of the last %u of %u tokens are known",
                   query.first_position, query.first_position + query.n_positions, known, n_tokens);
  settling_ = true;
  Status status = top_keys(queries, rule);
  settling_ = false;
  return status;
}

Status Resident::refill(uint32_t head, Span<const policy::Replacement> what, uint64_t visible_at) {
  return refills_->add(backend_, *pages_, head, what, visible_at);
}

void Resident::hide_page(uint32_t head, uint32_t page, bool hidden) {
  digests_->hide(backend_, *pages_, head, page, hidden);
}

Status Resident::make_low_rank(uint32_t n_tokens, bool with_basis) {
  ORRERY_TRY(go_on());
  Backend& backend = *backend_;
  if (!with_basis) {
    low_rank_->extend(&backend, *pages_, n_tokens);
    return ok_status();
  }
  const model::Hyperparameters& h = model_->hyper();
  const auto n_rows = static_cast<uint32_t>(ring_.n_rows);
  const auto width = static_cast<uint64_t>(h.q_dim());
  kv::LastQueries queries;
  if (low_rank_->skewed()) {
    queries.n_heads = h.n_heads, queries.n_positions = std::min(known_queries(n_tokens), policy_->queries_wanted());
    queries.rows.resize(static_cast<uint64_t>(h.n_layers) * queries.n_positions * width);
    std::vector<Download> rows(static_cast<uint64_t>(h.n_layers) * queries.n_positions);
    for (uint64_t row = 0; row < rows.size(); ++row) {
      const uint64_t layer = row / queries.n_positions, position = n_tokens - 1 - row % queries.n_positions;
      rows[row] = {&queries.rows[row * width], {(ring_.data + (layer * n_rows + position % n_rows) * width).address}, width * sizeof(float)};
    }
    backend.download_all(rows);
    ORRERY_TRY(backend.synchronize());
  }
  return low_rank_->settle(&backend, *pages_, n_tokens, queries);
}

// The head's first slots, which hold selected_'s tokens as they are, get K as it would be rebuilt later: with those of its layer.
void Resident::note_rebuilt(uint32_t head, uint32_t n_slots) {
  const auto kv_head = static_cast<int32_t>(head % static_cast<uint32_t>(model_->hyper().n_kv_heads));
  for (uint32_t slot = 0; slot < n_slots;) {
    uint32_t n = 1;
    while (slot + n < n_slots && selected_[slot + n] == selected_[slot] + n) ++n;
    runs_.push_back({static_cast<int32_t>(selected_[slot]), static_cast<int32_t>(n), store_->take_slots(head, {slot, selected_[slot], n}), {}, kv_head});
    slot += n;
  }
}

void Resident::rebuild_noted(uint32_t layer) {
  if (!runs_.empty()) low_rank_->rebuild(backend_, layer, format_.type, runs_);
  runs_.clear();
}

// What selected_, which ascends, leaves out is in the head's mean.
void Resident::compensate(uint32_t head, uint32_t n_tokens) {
  Backend& backend = *backend_;
  compensation_tokens_->want(head);
  if (const policy::CompensationShares shares = policy_->compensation_shares(head); !shares.of_tokens.empty())
    return compensation_tokens_->share(*pages_, head, shares.of_tokens, shares.weight);
  uint32_t next = 0;
  for (const uint32_t p : selected_) compensation_tokens_->add(&backend, *pages_, head, next, p), next = p + 1;
  compensation_tokens_->add(&backend, *pages_, head, next, n_tokens);
}

Status Resident::settle(uint32_t n_tokens) {
  const uint64_t start = now_us();
  invalidate();
  n_tokens_ = n_tokens;
  if (digests_ && digests_->kind() == DigestKind::mean) digests_->truncate(0);   // some are hidden
  if (digests_) digests_->extend(backend_, *pages_, n_tokens);
  settling_ = true;
  Status status = settle_heads(n_tokens);
  settling_ = false;
  ORRERY_TRY(std::move(status));
  settled_ = true;
  n_unchanged_ = n_tokens;
  settle_us_ += now_us() - start;
  return ok_status();
}

// What each head holds: chosen by the policy, and filled in from the pages.
Status Resident::settle_heads(uint32_t n_tokens) {
  runs_.clear();   // where it was cancelled before, some are noted
  ORRERY_TRY(policy_->settle(this, n_tokens, capacity_));
  store_->lay_out(capacity_);
  if (compensation_tokens_) compensation_tokens_->clear();
  const auto n_kv_heads = static_cast<uint32_t>(model_->hyper().n_kv_heads);
  for (uint32_t head = 0; head < store_->n_heads(); ++head) {
    ORRERY_TRY(go_on());
    policy_->select(head, n_tokens, capacity_[head], &selected_);
    // A head with room for the whole context has each token in its own slot for good: what was there before the prompt is there.
    const size_t n_held = capacity_[head] == n_context_ && !low_rank_ ? n_unchanged_ : 0;
    settled_bytes_ += store_->fill(backend_, *pages_, head, selected_, n_held) * pages_->format().token_bytes();
    if (low_rank_) note_rebuilt(head, policy_->rebuilt_slots(head));
    if ((head + 1) % n_kv_heads == 0) rebuild_noted(head / n_kv_heads);
    if (compensation_tokens_ && policy_->has_compensation_token(head)) compensate(head, n_tokens);
  }
  if (compensation_tokens_) compensation_tokens_->finish(backend_, *pages_);
  return ok_status();
}

Status Resident::prepare(uint32_t n_tokens) {
  n_tokens_ = n_tokens;
  if (!settled_) ORRERY_TRY(settle(n_tokens));
  for (uint32_t head = 0; head < store_->n_heads();) {
    const uint32_t slot = policy_->slot_for(head, store_->length(head), store_->capacity(head));
    if (slot == policy::kSettleAgain) {   // a full tail: everything is chosen anew, with room for more
      ORRERY_TRY(settle(n_tokens));
      head = 0;
      continue;
    }
    slots_[head] = slot;
    views_[head] = store_->view_with_append(head, slot);
    ++head;
  }
  if (compensation_tokens_) add_replaced();
  watch();
  waiting_ = refills_ && refills_->late(step_ + 1);
  Status status = refills_ && !waiting_ ? refills_->apply(backend_, store_.get(), step_ + 1, UINT32_MAX, cancel_) : ok_status();
  if (!status.ok()) settled_ = false;
  return status;
}

// Tokens whose slots the step's own takes go into their heads' means, which the step attends to.
void Resident::add_replaced() {
  Backend& backend = *backend_;
  for (uint32_t head = 0; head < store_->n_heads(); ++head) {
    if (!compensation_tokens_->wanted(head)) continue;
    if (slots_[head] < store_->length(head)) {
      const uint32_t position = store_->positions(head)[slots_[head]];
      compensation_tokens_->add(&backend, *pages_, head, position, position + 1);
    }
    views_[head].mean = compensation_tokens_->mean(head);
    views_[head].compensation_weight = compensation_tokens_->weight(head);
  }
  compensation_tokens_->finish(&backend, *pages_);
}

// The step leaves the weights of heads whose best keys will be asked for.
void Resident::watch() {
  scored_position_ = kNone;
  if (exported_region_.bytes() == 0) return;
  policy_->scored_heads(&scored_heads_);
  const uint64_t block = left_bytes_;
  for (size_t i = 0; i < scored_heads_.size() && i < policy_->max_scored_heads(); ++i)
    views_[scored_heads_[i]].exported = {{exported_region_.data().address + i * block}, exported_stride_};
}

// What the step's query has attended to, slot by slot, to the sums of the tokens that the slots hold.
Status Resident::add_weights(uint32_t position) {
  const auto n_kv_heads = static_cast<uint32_t>(model_->hyper().n_kv_heads);
  const auto windowed = [&](uint32_t head) { return model_->hyper().window[head / n_kv_heads] > 0; };
  weights_jobs_.clear();
  float* out = weights_.data();
  for (uint32_t head = 0; head < store_->n_heads(); ++head) {
    if (windowed(head)) continue;
    KeyWeightsJob job;
    set_keys(policy::WeightsQuery{head, position, 1, store_->length(head), true, out}, &job);
    job.mean = true;
    job.out = out;
    weights_jobs_.push_back(job);
    out += store_->length(head);
  }
  Backend& backend = *backend_;
  backend.keys()->key_weights(weights_jobs_, keys_shape());
  ORRERY_TRY(backend.synchronize());
  const float* weight = weights_.data();
  for (uint32_t head = 0; head < store_->n_heads(); ++head) {
    if (windowed(head)) continue;
    const Span<float> sums = sums_->of(head);
    for (const uint32_t p : store_->positions(head)) sums[p] += *weight++;
  }
  sums_->add_row();
  return ok_status();
}

Status Resident::commit(uint32_t position) {
  ++step_;
  scored_position_ = position;
  for (uint32_t head = 0; head < store_->n_heads(); ++head) {
    store_->commit(head, slots_[head], position);
    kv_read_ += store_->length(head) * format_.token_bytes();
  }
  n_unchanged_ = position + 1;
  note_queries(position, position + 1);
  if (digests_) digests_->extend(backend_, *pages_, position + 1);
  Status status = step_fault_ ? step_fault_(step_) : ok_status();
  if (status.ok() && sums_) status = add_weights(position);
  if (status.ok()) status = policy_->after_step(this, step_, position);
  scored_position_ = kNone;
  if (!status.ok()) invalidate();
  return status;
}

Status Resident::copy_from(const Resident& other) {
  Backend& backend = *backend_;
  policy_ = other.policy_->clone();
  ring_positions_ = other.ring_positions_;
  if (sums_) sums_->copy_from(*other.sums_);
  if (ring_.n_rows > 0) backend.copy(ring_region_.data(), other.ring_region_.data(), ring_region_.bytes());
  if (!other.settled_) return ok_status();
  step_ = other.step_;
  n_unchanged_ = other.n_unchanged_;
  store_->copy_from(&backend, *other.store_);
  if (digests_) digests_->copy_from(&backend, *other.digests_);
  if (low_rank_) low_rank_->copy_from(&backend, *other.low_rank_);
  if (compensation_tokens_) compensation_tokens_->copy_from(&backend, *other.compensation_tokens_);
  if (refills_)
    for (const kv::Refills::Pending& pending : other.refills_->pending())
      ORRERY_TRY(refills_->add(backend_, *pages_, pending.head, other.refills_->what(pending), pending.visible_at));
  settled_ = true;
  return ok_status();
}

}  // namespace orrery::engine
