#include "runtime/engine/resident/answers.h"

#include <algorithm>
#include <cmath>

#include "runtime/base/checked.h"

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

// Bytes of one layer's projected queries, (n_heads, rank) floats, or of the weights of its evicted tokens, (n_heads), and with codes of
// values of their means, (n_heads, head_dim). 0: low-rank keys find no tokens, and codes do not compensate.
uint64_t projected_bytes(const ResidentShape& s) {
  const auto dim = static_cast<uint64_t>(s.description->kv().head_dim);
  const uint64_t width = s.low_rank.by_head ? s.low_rank.rank : s.codes.values ? 1 + (s.codes.value_bits > 0 ? dim : 0) : 0;
  return align_up(static_cast<uint64_t>(s.description->kv().n_heads) * width * sizeof(float), kv::kArenaAlignment);
}

// Entries of all tables of held pages. 0: the host selects.
uint32_t page_tokens(const ResidentShape& s) { return std::max(s.digests.page_tokens, 1u); }
uint64_t table_entries(const ResidentShape& s) { return s.fetches ? s.n_slots / page_tokens(s) + 1 : 0; }
uint64_t told_bytes(const ResidentShape& s) { return s.fetches ? align_up(s.n_heads() * sizeof(FetchTold), kv::kArenaAlignment) : 0; }
uint64_t table_bytes(const ResidentShape& s) { return align_up(table_entries(s) * sizeof(uint32_t), kv::kArenaAlignment); }
// Whether steps fetch for the next one: then each table has a working copy on the device.
bool fetches_ahead(const ResidentShape& s) { return s.fetches && !s.policy->refills_its_layer(); }

// The cosine of two vectors, 0 if one is zero. As QueryChange: a device finds the same bits.
double cosine(const float* a, const float* b, size_t n) {
  constexpr size_t kSums = 32;
  double ab[kSums] = {}, aa[kSums] = {}, bb[kSums] = {};
  for (size_t i = 0; i < n; ++i) {
    const double x = a[i], y = b[i];
    ab[i % kSums] += x * y, aa[i % kSums] += x * x, bb[i % kSums] += y * y;
  }
  for (size_t half = kSums / 2; half > 0; half /= 2)
    for (size_t i = 0; i < half; ++i) ab[i] += ab[i + half], aa[i] += aa[i + half], bb[i] += bb[i + half];
  return aa[0] > 0 && bb[0] > 0 ? ab[0] / std::sqrt(aa[0] * bb[0]) : 0;
}

}  // namespace

kv::Region Answers::layout(const ResidentShape& s) {
  const uint64_t q_dim = static_cast<uint64_t>(s.description->kv().q_dim()),
                 n_layers = static_cast<uint64_t>(s.description->kv().n_layers());
  uint64_t host = s.n_heads() * (sizeof(TopKeysJob) + sizeof(KeyWeightsJob) + sizeof(KeyMomentsJob));
  if (s.policy->asks_before_attend()) host += 2 * q_dim * sizeof(float);
  if (s.low_rank.skewed) host += n_layers * s.n_query_rows * q_dim * sizeof(float);  // while settling
  if (s.fetches)
    host += table_entries(s) * sizeof(uint32_t) +
            s.n_heads() * (sizeof(Table) + sizeof(FetchTold) + 2 * sizeof(uint32_t) + 2 * sizeof(FetchJob) + 2 * sizeof(Upload) +
                           sizeof(Fetched) + sizeof(std::pair<uint32_t, uint64_t>) + sizeof(Download));
  const uint64_t of_tables = (fetches_ahead(s) ? 2 : 1) * table_bytes(s);
  return {"answers to the policy", kv::Holds::staging, told_bytes(s) + projected_bytes(s) + of_tables, 0, host, 0};
}

Status Answers::make(const ResidentShape& s, kv::Arena* arena, Parts* parts, const kv::PageTable* pages, Span<const HeadView> views,
                     const Moment* now) {
  description_ = s.description;
  format_ = s.resident;
  queries_wanted_ = s.policy->queries_wanted();
  parts_ = parts, pages_ = pages, views_ = views, now_ = now;
  ORRERY_ASSIGN(region_, kv::ArenaRegion::take(arena, layout(s)));
  projected_bytes_ = projected_bytes(s), told_bytes_ = told_bytes(s);
  fetches_ = s.fetches;
  if (fetches_) {
    page_tokens_ = page_tokens(s);
    tables_.resize(table_entries(s));
    held_.resize(s.n_heads()), told_.resize(s.n_heads());
    next_places_.resize(s.n_heads(), kNoPlace);
    before_bytes_ = fetches_ahead(s) ? table_bytes(s) : 0;
    changes_.resize(s.n_heads());
    fetch_jobs_.reserve(s.n_heads()), next_jobs_.reserve(s.n_heads()), uploads_.reserve(2 * s.n_heads()), downloads_.reserve(s.n_heads());
    fetched_.reserve(s.n_heads()), ahead_.reserve(s.n_heads());
    calls_.reserve(static_cast<size_t>(s.description->kv().n_layers()));
  }
  if (s.policy->asks_before_attend()) {
    q_now_.resize(static_cast<size_t>(s.description->kv().q_dim()));
    q_before_.resize(static_cast<size_t>(s.description->kv().q_dim()));
  }
  jobs_.reserve(s.n_heads());
  weights_jobs_.reserve(s.n_heads());
  moments_jobs_.reserve(s.n_heads());
  return ok_status();
}

// While settling: keys of the reservoir. Later: keys of a head that holds the whole context, in slots by position.
template <class Query>
void Answers::set_keys(const Query& query, KeysJob* job) const {
  const uint32_t n_kv_heads = static_cast<uint32_t>(description_->kv().n_kv_heads);
  job->layer = static_cast<int32_t>(query.head / n_kv_heads);
  job->kv_head = static_cast<int32_t>(query.head % n_kv_heads);
  if (now_->settling) {
    job->tiles = pages_->view().pages;
    job->offset = pages_->format().head_offset(query.head);
  } else {
    job->tiles = parts_->slots->tiles(query.head), job->tile_bytes = parts_->slots->tile_bytes();
    if (query.n_positions == 1 && query.first_position == now_->scored_position) job->exported = views_[query.head].exported;
  }
  if (now_->q) job->layer = 0;  // the ring has one layer's queries
  job->n_keys = static_cast<int32_t>(query.n_keys);
  job->first_position = static_cast<int32_t>(query.first_position);
  job->n_positions = static_cast<int32_t>(query.n_positions);
}

KeysShape Answers::keys_shape() const {
  const model::Description& h = *description_;
  KeysShape shape;
  shape.kv = now_->settling ? pages_->format() : format_;
  shape.n_heads = h.kv().n_heads;
  shape.scale = h.kv().scale;
  shape.queries = now_->q ? QueryRing{{now_->q.address}, 1} : parts_->query_ring();  // a ring of one layer and one row
  return shape;
}

// Jobs on exported attention weights read no keys.
template <class Job>
void Answers::count_searched(const std::vector<Job>& jobs, uint64_t key_bytes) {
  for (const Job& job : jobs)
    if (!now_->settling && !job.exported.data) searched_ += static_cast<uint64_t>(job.n_keys) * key_bytes;
}

Status Answers::top_keys(Span<const policy::KeyQuery> queries, const policy::ScoreRule& rule) {
  ORRERY_TRY(now_->go_on());
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
  count_searched(jobs_, shape.kv.key_bytes());
  Backend& backend = *now_->backend;
  backend.keys()->top_keys(jobs_, shape);
  return backend.synchronize();
}

Status Answers::key_weights(Span<const policy::WeightsQuery> queries) {
  ORRERY_TRY(now_->go_on());
  weights_jobs_.clear();
  for (const policy::WeightsQuery& query : queries) {
    KeyWeightsJob job;
    set_keys(query, &job);
    job.mean = query.mean;
    job.out = query.out;
    weights_jobs_.push_back(job);
  }
  const KeysShape shape = keys_shape();
  count_searched(weights_jobs_, shape.kv.key_bytes());
  Backend& backend = *now_->backend;
  backend.keys()->key_weights(weights_jobs_, shape);
  return backend.synchronize();
}

Status Answers::key_moments(Span<const policy::MomentsQuery> queries, std::vector<float>* rows) {
  ORRERY_TRY(now_->go_on());
  Backend& backend = *now_->backend;
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
  count_searched(moments_jobs_, shape.kv.key_bytes());
  backend.keys()->key_moments(moments_jobs_, shape);
  return backend.synchronize();
}

template <class Job>
void Answers::set_pages(uint32_t head, uint32_t position, uint32_t first_page, uint32_t n_pages, Job* job) const {
  const auto n_kv_heads = static_cast<uint32_t>(description_->kv().n_kv_heads);
  job->layer = now_->q || (!parts_->codes && projected_bytes_ > 0) ? 0 : static_cast<int32_t>(head / n_kv_heads);
  job->kv_head = static_cast<int32_t>(head % n_kv_heads);
  job->first_position = static_cast<int32_t>(position);
  job->n_positions = 1;
  if (parts_->codes) {  // tiles are read whole
    job->tiles = parts_->codes->tiles(head), job->tile_bytes = parts_->codes->format().tile_bytes();
    job->turns = parts_->codes->turns(head);
    job->first_key = static_cast<int32_t>(first_page);
    job->n_keys = static_cast<int32_t>(first_page + n_pages);
    return;
  }
  job->tiles = parts_->digests ? parts_->digests->tiles(head) : parts_->low_rank->tiles(head);
  job->tile_bytes = uint64_t{kPageTokens} * (parts_->digests ? parts_->digests->digest_bytes() : 2 * parts_->low_rank->rank());
  job->offset = first_page * (parts_->digests ? parts_->digests->digest_bytes() : 2 * parts_->low_rank->rank());
  job->n_keys = static_cast<int32_t>(n_pages);
}

// head: any head of the layer, for low-rank keys.
void Answers::set_pages(uint32_t head, uint32_t position, KeysShape* shape) {
  if (parts_->codes) {
    shape->codes = parts_->codes->format();
    shape->turns = parts_->codes->turn_tables();
    shape->code_block = parts_->codes->block();
    return;
  }
  shape->bounds = parts_->digests && parts_->digests->kind() != DigestKind::mean;
  shape->keys_alone = !shape->bounds;
  if (parts_->digests) {
    shape->kv = parts_->digests->format();
    return;
  }
  const uint32_t layer = layer_of(head);
  const Ptr<const float> q = now_->q ? now_->q : parts_->queries->row(layer, position);
  parts_->low_rank->project(now_->backend, layer, description_->kv().n_heads, q, projected());
  shape->kv.type = KvType::f16;
  shape->kv.head_dim = static_cast<int32_t>(parts_->low_rank->rank());
  shape->queries = {projected(), 1};
}

Status Answers::top_pages(Span<const policy::PageQuery> queries, const policy::ScoreRule& rule) {
  for (size_t begin = 0, end = 0; begin < queries.size(); begin = end) {  // one layer at a time for projected queries
    while (end < queries.size() && (!parts_->low_rank || parts_->digests || layer_of(queries[end].head) == layer_of(queries[begin].head)))
      ++end;
    ORRERY_TRY(find_pages(queries.subspan(begin, end - begin), rule));
  }
  return ok_status();
}

// query: any of the layer.
TopKeysShape Answers::pages_shape(const policy::PageQuery& query, const policy::ScoreRule& rule) {
  TopKeysShape shape;
  static_cast<KeysShape&>(shape) = keys_shape();
  set_pages(query.head, query.position, &shape);
  if (!rule.scaled) shape.scale = 1.0f;
  shape.scoring = key_scoring(rule);
  return shape;
}

// Bytes of one page's digest, or of one token's.
uint64_t Answers::digest_bytes(const KeysShape& shape) {
  return shape.codes.bits > 0 ? shape.codes.tile_bytes() / kPageTokens : shape.bounds ? shape.kv.token_bytes() : shape.kv.key_bytes();
}

template <class Job>
void Answers::count_pages_searched(const std::vector<Job>& jobs, const KeysShape& shape) {
  count_searched(jobs, digest_bytes(shape));
}

void Answers::add_fetch_job(const policy::PageQuery& query, const policy::PagePlaces& places, std::vector<FetchJob>* jobs) const {
  FetchJob job;
  set_pages(query.head, query.position, query.first_page, query.n_pages, &job);
  job.k = static_cast<int32_t>(query.k);
  job.first_page = static_cast<int32_t>(query.first_page);
  job.n_first = static_cast<int32_t>(places.n_first), job.n_last = static_cast<int32_t>(places.n_last);
  job.excluded = query.excluded;
  job.stay = query.stay;
  job.log_evicted = logs_of_evicted(job.kv_head), job.value_evicted = values_of_evicted(job.kv_head);
  job.n_others = static_cast<int32_t>(query.n_others);
  set_places(query.head, places.first_slot, &job);
  jobs->push_back(job);
}

void Answers::set_places(uint32_t head, uint32_t first_slot, FetchJob* job) const {
  job->slots = parts_->slots->slot(head, first_slot);
  job->from = pages_->format().head_offset(head);
  job->held = table_there(table_of(head));
  job->before = Ptr<uint32_t>{job->held.address + before_bytes_};
  job->told = Ptr<FetchTold>{region_.data().address} + uint64_t{head};
}

// Sends the tables of fetched_'s last heads, those of fetch_jobs_, where the device's are not valid.
void Answers::upload_tables(const policy::PagePlaces& places) {
  uploads_.clear();
  for (size_t i = 0; i < fetch_jobs_.size(); ++i) {
    const Fetched& f = fetched_[fetched_.size() - fetch_jobs_.size() + i];
    if (held_[f.head].on_device) continue;
    const uint64_t at = table_of(f.head);
    const Span<const uint32_t> positions = parts_->slots->positions(f.head).subspan(places.first_slot, f.n_held * page_tokens_);
    for (uint32_t place = 0; place < f.n_held; ++place) tables_[at + place] = positions[size_t{place} * page_tokens_] / page_tokens_;
    uploads_.push_back({{fetch_jobs_[i].held.address}, &tables_[at], f.n_held * sizeof(uint32_t)});
    held_[f.head] = {f.first_slot, f.n_held, true, true};
  }
  if (!uploads_.empty()) now_->backend->upload_all(uploads_);
}

FetchShape Answers::fetch_shape(const policy::PagePlaces& places) const {
  FetchShape fetch;
  fetch.reservoir = pages_->format(), fetch.slot_type = format_.type, fetch.page_tokens = static_cast<int32_t>(page_tokens_);
  fetch.one_set = places.one_set, fetch.lowest_first = places.lowest_first;
  return fetch;
}

// fetch_jobs_, and their entries of fetched_.
void Answers::begin_fetches(Span<const policy::PageQuery> queries, const policy::PagePlaces& places, Entry entry) {
  fetch_jobs_.clear();
  for (const policy::PageQuery& query : queries) {
    add_fetch_job(query, places, &fetch_jobs_);
    fetched_.push_back({query.head, queries[0].head, places.first_slot, static_cast<uint32_t>(fetch_jobs_.back().n_held()), entry});
  }
}

Status Answers::fetch_pages(Span<const policy::PageQuery> queries, const policy::ScoreRule& rule, const policy::PagePlaces& places) {
  if (queries.empty()) return ok_status();
  const Entry entry = places.lowest_first ? Entry::next_place : Entry::none;
  begin_fetches(queries, places, entry);
  const TopKeysShape shape = pages_shape(queries[0], rule);
  count_pages_searched(fetch_jobs_, shape);
  upload_tables(places);
  FetchShape fetch = fetch_shape(places);
  LowRankKeys rebuilt;
  if (parts_->low_rank && !parts_->low_rank->by_head())
    rebuilt = parts_->low_rank->of_layer(layer_of(queries[0].head)), fetch.rebuilt = &rebuilt;
  now_->backend->fetches()->fetch_best(fetch_jobs_, shape, fetch, told());
  return ok_status();
}

Status Answers::fetch_changed(Span<const policy::PageQuery> queries, Span<const policy::PageQuery> next, const policy::ScoreRule& rule,
                              const policy::PagePlaces& places, double tau) {
  if (queries.empty()) return ok_status();
  begin_fetches(queries, places, Entry::changed);
  next_jobs_.clear();
  for (const policy::PageQuery& query : next) {
    add_fetch_job(query, places, &next_jobs_);
    --next_jobs_.back().n_last, next_jobs_.back().n_others = 1;
  }
  const TopKeysShape shape = pages_shape(queries[0], rule);
  for (size_t i = 0; i < queries.size(); ++i) {
    Fetched& f = fetched_[fetched_.size() - queries.size() + i];
    f.searched = static_cast<uint64_t>(fetch_jobs_[i].n_keys) * digest_bytes(shape);
    f.searched_ahead = next.empty() ? f.searched : static_cast<uint64_t>(next_jobs_[i].n_keys) * digest_bytes(shape);
  }
  upload_tables(places);
  now_->backend->fetches()->fetch_changed(fetch_jobs_, next_jobs_, shape, fetch_shape(places), query_change(tau), told());
  return ok_status();
}

QueryChange Answers::query_change(double tau) const {
  return {parts_->queries->row(static_cast<uint64_t>(now_->layer), now_->n_tokens - 1), tau};
}

Status Answers::fetch_followers(Span<const policy::FollowerQuery> queries, const policy::ScoreRule& rule, double tau) {
  if (queries.empty()) return ok_status();
  TopKeysShape shape;
  static_cast<KeysShape&>(shape) = keys_shape();
  shape.scoring = key_scoring(rule);
  fetch_jobs_.clear();
  for (const policy::FollowerQuery& query : queries) {
    FetchJob job;
    set_keys(policy::KeyQuery{query.leader, query.position, 1, query.n_keys}, &job);
    job.follower = static_cast<int32_t>(query.head % static_cast<uint32_t>(description_->kv().n_kv_heads));
    job.k = static_cast<int32_t>(query.k);
    set_places(query.head, 0, &job);
    const bool of_another = fetch_jobs_.empty() || fetch_jobs_.back().kv_head != job.kv_head;  // the followers share one search
    const uint64_t searched = of_another ? query.n_keys * shape.kv.key_bytes() : 0;
    fetched_.push_back({query.head, query.leader, 0, query.k, Entry::changed, searched, searched});
    fetch_jobs_.push_back(job);
  }
  upload_tables({});
  now_->backend->fetches()->fetch_followers(fetch_jobs_, shape, fetch_shape({}), query_change(tau), told());
  return ok_status();
}

Status Answers::fetch_near_best(Span<const policy::PageQuery> queries, const policy::PagePlaces& places, float alpha) {
  if (queries.empty()) return ok_status();
  begin_fetches(queries, places, Entry::n_wanted);
  const TopKeysShape shape = pages_shape(queries[0], {policy::GroupReduce::mean, policy::Pooling::none, 1, true, true});
  count_pages_searched(fetch_jobs_, shape);
  upload_tables(places);
  const uint64_t call = now_->backend->fetches()->fetch_near_best(fetch_jobs_, shape, fetch_shape(places), alpha, told());
  calls_.emplace_back(now_->layer, call);
  return ok_status();
}

void Answers::join_fetches(int32_t layer) {
  for (; !calls_.empty() && calls_.front().first <= layer; calls_.erase(calls_.begin()))
    now_->backend->kv_moves()->join_moves(calls_.front().second);
}

void Answers::count_fetched(uint64_t n_tokens) {
  if (n_tokens > 0) parts_->refills->count_fetched(n_tokens);
}

Status Answers::finish_fetches() {
  if (fetched_.empty()) return ok_status();
  Backend& backend = *now_->backend;
  backend.fetches()->download_told(told());
  ORRERY_TRY(backend.synchronize());
  const auto entry = [this](const Fetched& f) { return told_[f.head].entry; };
  const auto changed = [&](const Fetched& f) { return f.entry == Entry::changed && (entry(f) & QueryChange::kChanged) != 0; };
  for (auto begin = fetched_.begin(), end = begin; begin != fetched_.end(); begin = end) {  // heads that select together
    end = std::find_if(begin, fetched_.end(), [&](const Fetched& f) { return f.leader != begin->leader; });
    const bool selects_now = std::any_of(begin, end, changed);
    for (auto f = begin; f != end; ++f) {
      const uint64_t n_missed = uint64_t{told_[f->head].n_missed} * page_tokens_;
      if (n_missed > 0) held_[f->head].known = false;
      next_places_[f->head] = f->entry == Entry::next_place ? entry(*f)
                              : f->entry == Entry::changed  ? entry(*f) & ~QueryChange::kChanged
                                                            : kNoPlace;
      if (f->entry == Entry::n_wanted) wanted_tokens_ += entry(*f);
      (selects_now ? searched_ : ahead_searched_) += selects_now ? f->searched : f->searched_ahead;
      if (f->entry == Entry::changed && !changed(*f)) {
        ahead_tokens_ += n_missed;
        ahead_.emplace_back(f->head, n_missed);
        continue;
      }
      changes_[f->head] += changed(*f);
      fetched_tokens_ += n_missed;
      count_fetched(n_missed);
    }
  }
  fetched_.clear();
  return ok_status();
}

void Answers::begin_step() {
  for (const auto& [head, n_tokens] : ahead_) count_fetched(n_tokens);
  ahead_.clear();
}

// Whether the device's table is already that of the next step.
bool Answers::fetched_ahead(uint32_t head) const {
  return std::any_of(ahead_.begin(), ahead_.end(), [head](const auto& of) { return of.first == head; });
}

// Of heads whose next pages have come already: the pages of the last step. These heads stay unknown.
Status Answers::read_positions() {
  downloads_.clear();
  for (uint32_t head = 0; head < held_.size(); ++head) {
    if (held_[head].known) continue;
    const uint64_t at = table_of(head), before = fetched_ahead(head) ? before_bytes_ : 0;
    downloads_.push_back({&tables_[at], {table_there(at).address + before}, held_[head].n_held * sizeof(uint32_t)});
  }
  if (downloads_.empty()) return ok_status();
  Backend& backend = *now_->backend;
  backend.download_all(downloads_);
  ORRERY_TRY(backend.synchronize());
  for (uint32_t head = 0; head < held_.size(); ++head) {
    Table& table = held_[head];
    if (table.known) continue;
    const uint32_t* pages = &tables_[table_of(head)];
    for (uint32_t place = 0; place < table.n_held; ++place)
      parts_->slots->take_slots(head, {table.first_slot + place * page_tokens_, pages[place] * page_tokens_, page_tokens_});
    table.known = !fetched_ahead(head);
  }
  return ok_status();
}

Status Answers::read_held(kv::SlotTable* table) {
  ORRERY_TRY(read_positions());
  *table = parts_->slots->table();
  downloads_.clear();
  for (const auto& [head, n] : ahead_) {
    const uint64_t at = table_of(head);
    downloads_.push_back({&tables_[at], {table_there(at).address}, held_[head].n_held * sizeof(uint32_t)});
  }
  if (downloads_.empty()) return ok_status();
  Backend& backend = *now_->backend;
  backend.download_all(downloads_);
  ORRERY_TRY(backend.synchronize());
  for (const auto& [head, n] : ahead_)
    for (uint32_t place = 0; place < held_[head].n_held; ++place)
      for (uint32_t i = 0; i < page_tokens_; ++i)
        table->positions[table->first[head] + held_[head].first_slot + place * page_tokens_ + i] =
            tables_[table_of(head) + place] * page_tokens_ + i;
  return ok_status();
}

Status Answers::take_back_table(uint32_t head) {
  if (held_.empty() || !held_[head].on_device) return ok_status();
  if (!held_[head].known) ORRERY_TRY(read_positions());
  held_[head].on_device = false;
  return ok_status();
}

// A page moves, so its table follows.
void Answers::move_last(uint32_t head, uint32_t n, uint32_t slot) {
  Backend& backend = *now_->backend;
  parts_->slots->move_last(&backend, head, n, slot);
  if (held_.empty() || !held_[head].on_device || slot < held_[head].first_slot) return;
  const uint32_t first = (slot - held_[head].first_slot) / page_tokens_, end = std::min(first + n / page_tokens_, held_[head].n_held);
  if (first >= end) return;
  const uint64_t at = table_of(head) + first;
  for (uint32_t i = 0; i < end - first; ++i) tables_[at + i] = positions(head)[slot + i * page_tokens_] / page_tokens_;
  const uint64_t there = table_there(at).address, bytes = (end - first) * sizeof(uint32_t);
  uploads_.clear();
  uploads_.push_back({{there}, &tables_[at], bytes});
  if (before_bytes_ > 0) uploads_.push_back({{there + before_bytes_}, &tables_[at], bytes});
  backend.upload_all(uploads_);
}

void Answers::go_on_from(const Answers& other) {
  ahead_ = other.ahead_, held_ = other.held_;
  const uint64_t bytes = tables_.size() * sizeof(uint32_t);
  if (bytes == 0 || std::none_of(held_.begin(), held_.end(), [](const Table& t) { return t.on_device; })) return;
  Backend& backend = *now_->backend;
  backend.copy({table_there(0).address}, {other.table_there(0).address}, bytes);
  if (before_bytes_ > 0) backend.copy({table_there(0).address + before_bytes_}, {other.table_there(0).address + before_bytes_}, bytes);
}

// The slots are about to be filled again. What they hold is not read first.
void Answers::forget_fetches() {
  for (const Fetched& f : fetched_) held_[f.head].known = false;  // a step that has failed
  fetched_.clear(), ahead_.clear(), calls_.clear();
  ahead_tokens_ = ahead_searched_ = 0;
  for (uint32_t head = 0; head < held_.size(); ++head) {
    if (held_[head].on_device && !held_[head].known)
      parts_->slots->forget_positions(head, held_[head].first_slot, held_[head].n_held * page_tokens_);
    held_[head] = {};
  }
}

Status Answers::find_pages(Span<const policy::PageQuery> queries, const policy::ScoreRule& rule) {
  ORRERY_TRY(now_->go_on());
  jobs_.clear();
  for (const policy::PageQuery& query : queries) {
    TopKeysJob job;
    set_pages(query.head, query.position, query.first_page, query.n_pages, &job);
    job.k = static_cast<int32_t>(query.k);
    job.out = query.out;
    job.held = query.held, job.stay = query.stay;
    job.least = query.least, job.n_found = query.n_found;
    job.log_evicted = logs_of_evicted(job.kv_head), job.value_evicted = values_of_evicted(job.kv_head);
    jobs_.push_back(job);
  }
  const TopKeysShape shape = pages_shape(queries[0], rule);
  count_pages_searched(jobs_, shape);
  Backend& backend = *now_->backend;
  backend.keys()->top_keys(jobs_, shape);
  ORRERY_TRY(backend.synchronize());
  for (const policy::PageQuery& query : queries)
    for (uint32_t i = 0; i < (query.n_found ? *query.n_found : query.k); ++i) query.out[i] += query.first_page;
  return ok_status();
}

Status Answers::page_weights(Span<const policy::PageWeightsQuery> queries) {
  if (queries.empty()) return ok_status();
  ORRERY_TRY(now_->go_on());
  weights_jobs_.clear();
  for (const policy::PageWeightsQuery& query : queries) {
    KeyWeightsJob job;
    set_pages(query.head, query.position, 0, query.n_pages, &job);
    job.mean = true;
    job.out = query.out;
    weights_jobs_.push_back(job);
  }
  KeysShape shape = keys_shape();
  set_pages(queries[0].head, queries[0].position, &shape);
  count_pages_searched(weights_jobs_, shape);
  Backend& backend = *now_->backend;
  backend.keys()->key_weights(weights_jobs_, shape);
  return backend.synchronize();
}

Status Answers::scores(Span<const policy::ScoresQuery> queries) {
  if (queries.empty()) return ok_status();
  weights_jobs_.clear();
  for (const policy::ScoresQuery& query : queries) {
    KeyWeightsJob job;
    if (query.pages) set_pages(query.head, query.position, query.first, query.n, &job);
    else set_keys(policy::WeightsQuery{query.head, query.position, 1, query.n, false, nullptr}, &job);
    job.exported = {};
    job.out = query.out;
    weights_jobs_.push_back(job);
  }
  KeysShape shape = keys_shape();
  shape.products = true;
  if (queries[0].pages) set_pages(queries[0].head, queries[0].position, &shape);
  if (!queries[0].scaled) shape.scale = 1.0f;
  count_searched(weights_jobs_, shape.bounds ? shape.kv.token_bytes() : shape.kv.key_bytes());
  Backend& backend = *now_->backend;
  backend.keys()->key_weights(weights_jobs_, shape);
  return backend.synchronize();
}

Status Answers::query_similarity(Span<float> out) {
  const model::Description& h = *description_;
  const size_t width = static_cast<size_t>(h.kv().q_dim()), dim = static_cast<size_t>(h.kv().head_dim), n_group = group();
  const Ptr<const float> before = parts_->queries->row(static_cast<uint64_t>(now_->layer), now_->n_tokens - 1);
  Backend& backend = *now_->backend;
  const Download both[] = {{q_now_.data(), {now_->q.address}, width * sizeof(float)},
                           {q_before_.data(), {before.address}, width * sizeof(float)}};
  backend.download_all({both, 2});
  ORRERY_TRY(backend.synchronize());
  for (size_t head = 0; head < out.size(); ++head) {
    double sum = 0;
    for (size_t g = 0; g < n_group; ++g) {
      const size_t at = (head * n_group + g) * dim;
      sum += cosine(&q_now_[at], &q_before_[at], dim);
    }
    out[head] = static_cast<float>(sum / static_cast<double>(n_group));
  }
  return ok_status();
}

Status Answers::make_low_rank(uint32_t n_tokens, bool with_basis) {
  ORRERY_TRY(now_->go_on());
  Backend& backend = *now_->backend;
  if (!with_basis) {
    parts_->low_rank->extend(&backend, *pages_, n_tokens);
    return ok_status();
  }
  const model::Description& h = *description_;
  const auto width = static_cast<uint64_t>(h.kv().q_dim());
  kv::LastQueries queries;
  if (parts_->low_rank->skewed()) {
    queries.n_heads = h.kv().n_heads, queries.n_positions = std::min(known_queries(n_tokens), queries_wanted_);
    queries.rows.resize(static_cast<uint64_t>(h.kv().n_layers()) * queries.n_positions * width);
    std::vector<Download> rows(static_cast<uint64_t>(h.kv().n_layers()) * queries.n_positions);
    for (uint64_t row = 0; row < rows.size(); ++row) {
      const uint64_t layer = row / queries.n_positions, position = n_tokens - 1 - row % queries.n_positions;
      rows[row] = {&queries.rows[row * width], {parts_->queries->row(layer, position).address}, width * sizeof(float)};
    }
    backend.download_all(rows);
    ORRERY_TRY(backend.synchronize());
  }
  return parts_->low_rank->settle(&backend, *pages_, n_tokens, queries);
}

Status Answers::set_mean_values(Span<const float> shares) {
  ORRERY_TRY(now_->go_on());
  parts_->codes->set_values(now_->backend, *pages_, shares);
  return now_->backend->synchronize();
}

Status Answers::make_codes(uint32_t n_tokens) {
  ORRERY_TRY(now_->go_on());
  Backend& backend = *now_->backend;
  if (now_->settling) parts_->codes->settle(&backend, *pages_, n_tokens);
  else parts_->codes->extend(&backend, *pages_, n_tokens);
  return backend.synchronize();
}

Status Answers::sum_step(uint32_t position) {
  const auto windowed = [&](uint32_t head) { return description_->layers[layer_of(head)].attention.window > 0; };
  weights_jobs_.clear();
  float* out = parts_->sums->step_weights();
  for (uint32_t head = 0; head < parts_->slots->n_heads(); ++head) {
    if (windowed(head)) continue;
    KeyWeightsJob job;
    set_keys(policy::WeightsQuery{head, position, 1, parts_->slots->length(head), true, out}, &job);
    job.mean = true;
    job.out = out;
    weights_jobs_.push_back(job);
    out += parts_->slots->length(head);
  }
  Backend& backend = *now_->backend;
  backend.keys()->key_weights(weights_jobs_, keys_shape());
  ORRERY_TRY(backend.synchronize());
  const float* weight = parts_->sums->step_weights();
  for (uint32_t head = 0; head < parts_->slots->n_heads(); ++head) {
    if (windowed(head)) continue;
    const Span<float> sums = parts_->sums->of(head);
    for (const uint32_t p : parts_->slots->positions(head)) sums[p] += *weight++;
  }
  parts_->sums->add_row();
  return ok_status();
}

}  // namespace orrery::engine
