// Jobs between steps, over keys and their digests. The scratch memory limits the size of a batch (TopKeysPlan).
#include <algorithm>
#include <cstring>
#include <numeric>
#include <type_traits>

#include "cuda/backend.h"
#include "runtime/base/checked.h"

namespace orrery::cuda {

namespace {

// The number of keys that an entry of the job has room for.
int64_t most_entries(const KeysJob& job) { return job.n_keys; }
int64_t most_entries(const FetchJob& job) { return std::max(job.n_keys, job.n_held()); }

void add_evicted(const TopKeysJob& job, const KeysShape& shape, TopKeysPart* part, TopKeysBatch* batch) {
  part->log_evicted = device(job.log_evicted);
  if (shape.codes.value_bits == 0 || !job.log_evicted || !job.value_evicted) return;
  part->value_evicted = device(job.value_evicted);
  batch->values = true;
}

}  // namespace

// Runs jobs in batches of queries, as many as fit. A job's queries share a batch if they fit, so that its keys are read once for all of
// them.
//
// fill(job, the first query's index in the job, part) sets the part's other members; it may add to uploads_, and take the part's keys away
// (n_keys = 0). Then parts and tiles go to the
// device, and use(parts, owner of a part, n_parts, n_entries, most_keys) launches the kernels; it may add to downloads_. The host waits
// once for the results of all batches (collect()).
template <class Job, class Fill, class Use>
void CudaBackend::for_each_batch(Span<const Job> jobs, const KeysShape& shape, const Fill& fill, const Use& use) {
  int64_t most_of_all = 0, n_queries = 0;
  for (const Job& job : jobs) {
    if (job.n_positions <= 0) continue;
    most_of_all = std::max(most_of_all, most_entries(job));
    n_queries += job.n_positions;
  }
  batch_plan_ = plan_.top_keys_plan;
  if constexpr (!std::is_same_v<Job, KeyMomentsJob>)  // moments are floats within a batch: their bits follow its size
    batch_plan_ = plan_.top_keys_plan.fitted(most_of_all, n_queries);
  const TopKeysPlan& plan = batch_plan_;
  std::byte* scratch = scratch_ + plan_.top_keys;
  const Ptr<std::byte> at{address(scratch)};
  const int64_t group_floats = int64_t{plan.group} * shape.kv.head_dim;
  size_t next_job = 0;
  int32_t next_position = 0;
  while (next_job < jobs.size() && !queue_.failed()) {
    int32_t n_entries = 0, most_keys = 0;
    uint64_t tiles = plan.tiles;
    key_parts_.clear(), key_owners_.clear();
    uploads_.clear(), downloads_.clear();
    uploads_.push_back({});  // the parts; the tables of tiles lie side by side behind them
    while (next_job < jobs.size() && n_entries < plan.n_queries) {
      const Job& job = jobs[next_job];
      if (n_entries > 0 && next_position == 0 && job.n_positions > plan.n_queries - n_entries) break;
      const int32_t count = std::min(job.n_positions - next_position, plan.n_queries - n_entries);
      if (count > 0) {
        const int64_t stride = shape.queries.stride > 0 ? shape.queries.stride : int64_t{shape.n_heads} * shape.kv.head_dim;
        const int64_t row = int64_t{job.layer} * shape.queries.n_rows * stride;
        const uint64_t bytes = static_cast<uint64_t>(div_up(job.n_keys, kPageTokens)) * sizeof(uint64_t);
        key_parts_.push_back({});
        TopKeysPart& part = key_parts_.back();
        if (job.tile_bytes == 0) part.tiles = reinterpret_cast<const uint64_t*>(scratch + tiles);
        else if (job.n_keys > 0) part.first_tile = job.tiles[0], part.tile_bytes = job.tile_bytes;
        part.offset = job.offset;
        part.queries = device(shape.queries.data) + row + job.kv_head * group_floats;
        if (shape.codes.n_turns > 0) part.turns = device(job.turns);
        part.n_keys = job.n_keys;
        part.first_position = job.first_position + next_position;
        part.n_positions = count;
        part.first_entry = n_entries;
        fill(job, next_position, &part);
        if (part.n_keys > 0 && part.tiles) uploads_.push_back({at + tiles, job.tiles, bytes}), tiles += bytes;
        key_owners_.push_back(&job);
        n_entries += count;
        most_keys = std::max(most_keys, job.n_keys);
      }
      next_position += std::max(count, 0);
      if (next_position >= job.n_positions) ++next_job, next_position = 0;
    }
    if (key_parts_.empty()) continue;
    uploads_[0] = {at, key_parts_.data(), key_parts_.size() * sizeof(TopKeysPart)};
    upload_all(uploads_);
    const auto owner = [this](size_t i) { return static_cast<const Job*>(key_owners_[i]); };
    use(key_parts_.data(), owner, static_cast<int32_t>(key_parts_.size()), n_entries, most_keys);
    collect(downloads_);
  }
  finish_collecting();
}

// In batches, in the memory of top_keys: the keys' addresses among its tiles, the digests' addresses among its results, cosines among its
// entries.
void CudaBackend::digest(Span<const DigestJob> jobs, const DigestShape& shape) {
  const OnDevice here(*gpu_, queue_);
  static_assert(sizeof(DigestPart) <= sizeof(TopKeysPart), "a batch of parts fits where those of top_keys lie");
  const TopKeysPlan& plan = plan_.top_keys_plan;
  std::byte* scratch = scratch_ + plan_.top_keys;
  const Ptr<std::byte> at{address(scratch)};
  const auto n_tiles = [](int32_t n, int32_t of) { return static_cast<uint64_t>(div_up(n, of)); };
  for (size_t next = 0; next < jobs.size() && !queue_.failed();) {
    DigestPart parts[TopKeysPlan::kBatch] = {};
    const DigestJob* owners[TopKeysPlan::kBatch];
    int32_t n_parts = 0, most_pages = 0;
    uploads_.clear(), downloads_.clear();
    for (; next < jobs.size() && n_parts < TopKeysPlan::kBatch; ++next) {
      const DigestJob& job = jobs[next];
      if (job.n_pages <= 0) continue;
      owners[n_parts] = &job;
      const int32_t end = job.first_page + job.n_pages;
      const uint64_t tiles = plan.tiles + static_cast<uint64_t>(n_parts * plan.tile_stride) * sizeof(uint64_t);
      const uint64_t digests = plan.out + static_cast<uint64_t>(n_parts * plan.stride) * sizeof(uint32_t);
      uploads_.push_back({at + tiles, job.tiles, n_tiles(end * shape.page_tokens, kPageTokens) * sizeof(uint64_t)});
      uploads_.push_back({at + digests, job.digests, n_tiles(end, kPageTokens) * sizeof(uint64_t)});
      const auto cosines = [&] { return scratch + plan.entries + static_cast<uint64_t>(n_parts) * plan.entry_bytes; };
      parts[n_parts] = {reinterpret_cast<const uint64_t*>(scratch + tiles),
                        job.offset,
                        reinterpret_cast<const uint64_t*>(scratch + digests),
                        job.first_page,
                        job.n_pages,
                        reinterpret_cast<float*>(cosines())};
      ++n_parts;
      most_pages = std::max(most_pages, job.n_pages);
    }
    if (n_parts == 0) break;
    uploads_.push_back({at, parts, static_cast<uint64_t>(n_parts) * sizeof(DigestPart)});
    upload_all(uploads_);
    cuda::digest(queue_, reinterpret_cast<const DigestPart*>(scratch), shape, n_parts, most_pages);
    for (int32_t i = 0; i < n_parts && shape.kind == DigestKind::mean; ++i)
      if (owners[i]->cosines)
        downloads_.push_back({owners[i]->cosines, {address(parts[i].cosines)}, static_cast<uint64_t>(parts[i].n_pages) * sizeof(float)});
    if (!downloads_.empty()) collect(downloads_);
  }
  finish_collecting();
}

// Parts lie in the memory of top_keys' entries, up to most_compensation_parts() in a launch, so that a step's jobs are one launch. A job
// whose tokens lie in one tile, as a step's evicted tokens do, needs no table of tiles. A launch has at most kBatch jobs with a table, or
// with shares. Shares lie in the memory of top_keys' results.
void CudaBackend::add_to_compensation_tokens(Span<const CompensationJob> jobs, const KvFormat& kv) {
  const OnDevice here(*gpu_, queue_);
  const TopKeysPlan& plan = plan_.top_keys_plan;
  std::byte *scratch = scratch_ + plan_.top_keys, *parts = scratch + plan.entries;
  for (size_t next = 0; next < jobs.size() && !queue_.failed();) {
    compensation_parts_.clear(), uploads_.clear();
    int32_t n_places = 0;
    for (; next < jobs.size() && compensation_parts_.size() < most_compensation_parts(); ++next) {
      const CompensationJob& job = jobs[next];
      if (job.end <= job.first) continue;
      const int32_t first_tile = job.first / kPageTokens, n_tiles = (job.end - 1) / kPageTokens - first_tile + 1;
      const bool takes_place = n_tiles > 1 || job.shares;
      if (takes_place && n_places == TopKeysPlan::kBatch) break;
      CompensationPart part = {};
      part.offset = job.offset;
      part.first = job.first % kPageTokens, part.n = job.end - job.first;
      part.n_before = job.n_before, part.compensation_token = device(job.compensation_token);
      if (job.shares) {
        std::byte* shares = scratch + plan.out + static_cast<uint64_t>(n_places * plan.stride) * sizeof(float);
        part.shares = reinterpret_cast<const float*>(shares);
        uploads_.push_back({{address(shares)}, job.shares, static_cast<uint64_t>(part.n) * sizeof(float)});
      }
      if (n_tiles == 1) {
        part.offset += job.tiles[first_tile];
      } else {
        std::byte* tiles = scratch + plan.tiles + static_cast<uint64_t>(n_places * plan.tile_stride) * sizeof(uint64_t);
        part.tiles = reinterpret_cast<const uint64_t*>(tiles);
        uploads_.push_back({{address(tiles)}, job.tiles + first_tile, static_cast<uint64_t>(n_tiles) * sizeof(uint64_t)});
      }
      n_places += takes_place;
      compensation_parts_.push_back(part);
    }
    if (compensation_parts_.empty()) return;
    uploads_.push_back({{address(parts)}, compensation_parts_.data(), compensation_parts_.size() * sizeof(CompensationPart)});
    upload_all(uploads_);
    cuda::add_to_compensation_tokens(queue_, reinterpret_cast<const CompensationPart*>(parts), kv,
                                     static_cast<int32_t>(compensation_parts_.size()));
  }
}

void CudaBackend::top_keys(Span<const TopKeysJob> jobs, const TopKeysShape& shape) {
  const OnDevice here(*gpu_, queue_);
  const TopKeysPlan& plan = batch_plan_;
  std::byte* scratch = scratch_ + plan_.top_keys;
  int32_t n_out = 0;  // results of the batch
  TopKeysBatch batch;
  const auto fill = [&](const TopKeysJob& job, int32_t, TopKeysPart* part) {
    if (part->first_entry == 0) n_out = 0, batch = {};
    batch.ends |= job.n_common || (job.by_score && !job.n_found);
    part->k = job.k, part->by_score = job.by_score;
    part->first_out = n_out;
    n_out += part->n_positions * job.k;
    std::byte* among = scratch + plan.entries + static_cast<uint64_t>(part->first_entry) * plan.entry_bytes + plan.pairs;
    if (shape.codes.bits > 0) {
      part->first_key = job.first_key;
      part->n_held = static_cast<int32_t>(job.held.size()), part->stay = job.stay;
      std::byte* held = among + (job.n_common ? job.among.size() * sizeof(uint32_t) : 0);
      part->held = reinterpret_cast<const uint32_t*>(held);
      batch.most_held = std::max(batch.most_held, part->n_held);
      if (part->n_held > 0) uploads_.push_back({{address(held)}, job.held.data(), job.held.size() * sizeof(uint32_t)});
      add_evicted(job, shape, part, &batch);
    }
    part->finds_number = job.n_found && job.k > 0, part->least = job.least;
    if (job.n_found) *job.n_found = 0, part->by_score = 0;
    if (!job.n_common) return;
    uploads_.push_back({{address(among)}, job.among.data(), job.among.size() * sizeof(uint32_t)});
    part->among = reinterpret_cast<const uint32_t*>(among), part->n_among = static_cast<int32_t>(job.among.size());
    part->by_score = 0, *job.n_common = 0;
  };
  for_each_batch(
      jobs, shape, fill, [&](const TopKeysPart* parts, const auto& owner, int32_t n_parts, int32_t n_entries, int32_t most_keys) {
        cuda::top_keys(queue_, plan, scratch, shape, n_parts, n_entries, most_keys, batch);
        for (int32_t i = 0; i < n_parts; ++i) {
          const TopKeysPart& part = parts[i];
          const TopKeysJob& job = *owner(static_cast<size_t>(i));
          const uint64_t k = static_cast<uint64_t>(part.k), first = static_cast<uint64_t>(part.first_position - job.first_position);
          if (k == 0) continue;
          const std::byte* found = scratch + plan.out + static_cast<uint64_t>(part.first_out) * sizeof(uint32_t);
          if (part.among) downloads_.push_back({job.n_common, {address(found)}, sizeof(uint32_t)});
          else
            downloads_.push_back({job.out + first * k, {address(found)}, static_cast<uint64_t>(part.n_positions) * k * sizeof(uint32_t)});
          if (!part.finds_number) continue;
          const uint64_t pairs = plan.entries + static_cast<uint64_t>(part.first_entry) * plan.entry_bytes + plan.pairs;
          downloads_.push_back({job.n_found, {address(scratch + pairs)}, sizeof(uint32_t)});
        }
      });
}

// Adds the part of a job whose query has this entry. n_out: results of the batch so far.
void CudaBackend::add_fetch_part(const FetchJob& job, int32_t entry, int32_t n_out) {
  const TopKeysPlan& plan = batch_plan_;
  std::byte *scratch = scratch_ + plan_.top_keys, *at = scratch + plan.entries + static_cast<uint64_t>(entry) * plan.entry_bytes;
  FetchPart to = {};
  to.best = reinterpret_cast<uint32_t*>(scratch + plan.out) + n_out;
  to.held = device(job.held), to.before = device(job.before), to.told = device(job.told);
  to.misses = reinterpret_cast<FetchMiss*>(at);
  to.order = reinterpret_cast<unsigned long long*>(at + plan.pairs);
  to.slots = job.slots.address, to.from = job.from;
  to.kv_head = job.kv_head, to.n_excluded = static_cast<int32_t>(job.excluded.size());
  if (to.n_excluded > 0) to.excluded = reinterpret_cast<const uint32_t*>(at + plan.pairs);
  if (plan.selection > 0)
    to.selection = reinterpret_cast<uint32_t*>(at + plan.selection), to.flags = reinterpret_cast<uint8_t*>(at + plan.flags);
  to.n_held = job.n_held(), to.n_wanted = job.n_wanted(), to.n_keys = job.n_keys - job.first_key, to.k = job.k;
  to.first_page = job.first_page, to.n_first = job.n_first;
  fetch_parts_.push_back(to);
}

std::byte* CudaBackend::scores_of(int32_t entry) const {
  const TopKeysPlan& plan = batch_plan_;
  return scratch_ + plan_.top_keys + plan.entries + static_cast<uint64_t>(entry) * plan.entry_bytes + plan.pairs -
         static_cast<uint64_t>(plan.stride) * sizeof(uint32_t);
}

// The parts of a batch, for kernels.
const FetchPart* CudaBackend::upload_fetch_parts() {
  std::byte* list = scratch_ + plan_.moves;
  upload({address(list)}, fetch_parts_.data(), fetch_parts_.size() * sizeof(FetchPart));
  return reinterpret_cast<const FetchPart*>(list);
}

// Of the parts of a batch.
int32_t CudaBackend::most_held() const {
  int32_t most = 0;
  for (const FetchPart& part : fetch_parts_) most = std::max(most, part.n_held);
  return most;
}
int32_t CudaBackend::most_selected_keys() const {
  int32_t most = 0;
  for (const FetchPart& part : fetch_parts_) most = std::max(most, part.n_keys);
  return most;
}

void CudaBackend::fill_fetched(const FetchPart* parts, const FetchShape& fetch) {
  const auto n_parts = static_cast<int32_t>(fetch_parts_.size());
  int32_t most_held = 0;
  for (const FetchPart& part : fetch_parts_) most_held = std::max(most_held, part.n_wanted);
  if (fetch.rebuilt) rebuild_fetched(parts, fetch, n_parts, most_held);
  else fill_pages(queue_, parts, context_.step.pages, fetch, n_parts, most_held);
}

// A batch's FetchParts lie in the memory of a list of moves. A part's misses, and behind them its marks, lie in its query's entry, whose
// weights have been read.
void CudaBackend::fetch_by_head(Span<const FetchJob> jobs, const TopKeysShape& shape, const FetchShape& fetch, const uint32_t* changed,
                                Candidates candidates) {
  int32_t n_out = 0;  // of the batch
  TopKeysBatch batch;
  const auto fill = [&](const FetchJob& job, int32_t, TopKeysPart* part) {
    if (part->first_entry == 0) n_out = 0, batch = {}, fetch_parts_.clear();
    part->k = job.k, part->by_score = 0;
    part->first_out = n_out;
    if (shape.codes.bits > 0) {
      part->first_key = job.first_key;
      add_evicted(job, shape, part, &batch);
      part->held = device(job.held), part->stay = job.stay;
      part->n_held = job.stay != 1.0f ? job.n_held() : 0;
      batch.most_held = std::max(batch.most_held, part->n_held);
    }
    add_fetch_part(job, part->first_entry, n_out);
    if (job.excluded.size() > 0)
      uploads_.push_back(
          {{reinterpret_cast<uintptr_t>(fetch_parts_.back().excluded)}, job.excluded.data(), job.excluded.size() * sizeof(uint32_t)});
    batch.excludes |= job.excluded.size() > 0;
    n_out += job.k;
  };
  for_each_batch(jobs, shape, fill, [&](const TopKeysPart*, const auto&, int32_t n_parts, int32_t n_entries, int32_t most_keys) {
    const FetchPart* parts = upload_fetch_parts();
    batch.fetch = parts;
    cuda::top_keys(queue_, batch_plan_, scratch_ + plan_.top_keys, shape, n_parts, n_entries, most_keys, batch);
    if (changed) plan_changed(queue_, parts, changed, shape.n_heads / batch_plan_.group, candidates, n_parts);
    else plan_fetch(queue_, parts, n_parts, most_held(), batch_plan_.by_many_blocks(most_keys));
    if (candidates == Candidates::of_next_step) return;
    fill_fetched(parts, fetch);
    if (changed) ahead_parts_.insert(ahead_parts_.end(), fetch_parts_.begin(), fetch_parts_.end());
  });
}

// All batches add to one row of scores, in the memory of moments. Then the jobs select, in batches without keys.
void CudaBackend::fetch_by_one_set(Span<const FetchJob> jobs, const TopKeysShape& shape, const FetchShape& fetch) {
  KeysShape products = shape;
  products.products = true;
  auto* sums = reinterpret_cast<float*>(scratch_ + plan_.top_keys + plan_.top_keys_plan.moments);
  const auto n_all = static_cast<int32_t>(jobs.size());
  int32_t n_before = 0;
  for_each_batch(
      jobs, products, [](const FetchJob&, int32_t, TopKeysPart*) {},
      [&](const TopKeysPart*, const auto&, int32_t n_parts, int32_t n_entries, int32_t n_keys) {
        add_scores(queue_, batch_plan_, scratch_ + plan_.top_keys, products, n_parts, n_entries, n_keys, n_before, n_all, sums);
        n_before += n_entries;
      });
  const auto* order = reinterpret_cast<const uint32_t*>(sums);
  for (size_t next = 0; next < jobs.size() && !queue_.failed();) {
    int32_t n_out = 0;
    fetch_parts_.clear();
    for (; next < jobs.size() && static_cast<int32_t>(fetch_parts_.size()) < batch_plan_.n_queries; ++next) {
      add_fetch_part(jobs[next], static_cast<int32_t>(fetch_parts_.size()), n_out);
      n_out += jobs[next].k;
    }
    const FetchPart* parts = upload_fetch_parts();
    const auto n_parts = static_cast<int32_t>(fetch_parts_.size());
    select_by_order(queue_, batch_plan_, parts, order, n_parts, most_selected_keys());
    if (fetch.lowest_first) plan_replacing(queue_, parts, order, n_parts);
    else plan_fetch(queue_, parts, n_parts, most_held(), false);
    fill_fetched(parts, fetch);
  }
}

void CudaBackend::fetch_best(Span<const FetchJob> jobs, const TopKeysShape& shape, const FetchShape& fetch, const Download& told) {
  static_assert(sizeof(FetchMiss) + sizeof(uint32_t) <= 16, "an entry has 16 bytes for each of its keys, and 4 more");
  const OnDevice here(*gpu_, queue_);
  if (fetch.one_set) fetch_by_one_set(jobs, shape, fetch);
  else fetch_by_head(jobs, shape, fetch);
  note_told(told);
}

const uint32_t* CudaBackend::find_changes(const TopKeysShape& shape, const QueryChange& change) {
  const TopKeysPlan& plan = plan_.top_keys_plan;
  auto* changed = reinterpret_cast<uint32_t*>(scratch_ + plan_.top_keys + plan.moments);
  query_changes(queue_, device(shape.queries.data), device(change.before), shape.n_heads / plan.group, plan.group, shape.kv.head_dim,
                change.tau, changed);
  return changed;
}

void CudaBackend::fetch_changed(Span<const FetchJob> jobs, Span<const FetchJob> next, const TopKeysShape& shape, const FetchShape& fetch,
                                const QueryChange& change, const Download& told) {
  const OnDevice here(*gpu_, queue_);
  const uint32_t* changed = find_changes(shape, change);
  ahead_shape_ = fetch;
  fetch_by_head(jobs, shape, fetch, changed, next.empty() ? Candidates::of_both : Candidates::of_this_step);
  if (!next.empty()) fetch_by_head(next, shape, fetch, changed, Candidates::of_next_step);
  note_told(told);
}

// In batches of as many jobs as entries. A batch's first job of each leader has the leader's scores in its entry; these jobs stand first.
// All jobs select by these scores before a plan overwrites them.
void CudaBackend::fetch_followers(Span<const FetchJob> jobs, const TopKeysShape& shape, const FetchShape& fetch, const QueryChange& change,
                                  const Download& told) {
  const OnDevice here(*gpu_, queue_);
  const uint32_t* changed = find_changes(shape, change);
  ahead_shape_ = fetch;
  int64_t most = 0;
  for (const FetchJob& job : jobs) most = std::max(most, most_entries(job));
  const auto at_once = static_cast<size_t>(plan_.top_keys_plan.fitted(most, static_cast<int64_t>(jobs.size())).n_queries);
  for (size_t at = 0; at < jobs.size() && !queue_.failed(); at += at_once) {
    const Span<const FetchJob> batch = jobs.subspan(at, std::min(at_once, jobs.size() - at));
    const auto leads = [&](size_t i) { return i == 0 || batch[i].kv_head != batch[i - 1].kv_head; };
    follower_jobs_.clear();
    for (size_t i = 0; i < batch.size(); ++i)
      if (leads(i)) follower_jobs_.push_back(batch[i]);
    const auto n_leaders = static_cast<int32_t>(follower_jobs_.size());
    for (size_t i = 0; i < batch.size(); ++i)
      if (!leads(i)) follower_jobs_.push_back(batch[i]);
    int32_t n_out = 0;
    fetch_parts_.clear();
    const auto fill = [&](const FetchJob& job, int32_t, TopKeysPart* part) {
      if (part->first_entry >= n_leaders) part->n_keys = 0;
      add_fetch_part(job, part->first_entry, n_out);
      n_out += job.k;
      int32_t leader = 0;
      while (follower_jobs_[static_cast<size_t>(leader)].kv_head != job.kv_head) ++leader;
      fetch_parts_.back().order = reinterpret_cast<unsigned long long*>(scores_of(leader));
      fetch_parts_.back().kv_head = job.follower;
    };
    for_each_batch(Span<const FetchJob>(follower_jobs_), shape, fill,
                   [&](const TopKeysPart*, const auto&, int32_t n_parts, int32_t, int32_t most_keys) {
                     const FetchPart* parts = upload_fetch_parts();
                     key_scores(queue_, batch_plan_, scratch_ + plan_.top_keys, shape, n_leaders, n_leaders, most_keys);
                     select_by_order(queue_, batch_plan_, parts, nullptr, n_parts, most_selected_keys());
                     plan_changed(queue_, parts, changed, shape.n_heads / batch_plan_.group, Candidates::of_both, n_parts);
                     fill_fetched(parts, fetch);
                     ahead_parts_.insert(ahead_parts_.end(), fetch_parts_.begin(), fetch_parts_.end());
                   });
  }
  note_told(told);
}

// The counts of all heads lie in the memory of moments. A batch's misses lie in its entries behind the scores. Where there are several
// batches, a second pass makes the scores again, and selects.
uint64_t CudaBackend::fetch_near_best(Span<const FetchJob> jobs, const TopKeysShape& shape, const FetchShape& fetch, float alpha,
                                      const Download& told) {
  const OnDevice here(*gpu_, queue_);
  KeysShape products = shape;
  products.products = true;
  auto* counts = reinterpret_cast<uint32_t*>(scratch_ + plan_.top_keys + plan_.top_keys_plan.moments);
  const auto n_all = static_cast<int32_t>(jobs.size());
  int32_t n_out = 0, n_before = 0;
  bool counted = false;
  const auto fill = [&](const FetchJob& job, int32_t, TopKeysPart* part) {
    if (part->first_entry == 0) n_out = 0, fetch_parts_.clear();
    add_fetch_part(job, part->first_entry, n_out);
    FetchPart& to = fetch_parts_.back();
    to.order = reinterpret_cast<unsigned long long*>(to.misses);
    to.misses = reinterpret_cast<FetchMiss*>(scores_of(part->first_entry));
    n_out += job.k;
  };
  const auto use = [&](const TopKeysPart*, const auto&, int32_t n_parts, int32_t n_entries, int32_t most_keys) {
    near_best(queue_, batch_plan_, scratch_ + plan_.top_keys, products, n_parts, n_entries, most_keys, alpha, counts + n_before);
    n_before += n_entries;
    if (!counted && n_entries < n_all) return;
    const FetchPart* parts = upload_fetch_parts();
    select_near_best(queue_, batch_plan_, parts, counts, n_all, batch_plan_.group, n_parts, most_selected_keys());
    plan_lowest(queue_, parts, n_parts);
    ahead_parts_.insert(ahead_parts_.end(), fetch_parts_.begin(), fetch_parts_.end());
  };
  for_each_batch(jobs, products, fill, use);
  if (ahead_parts_.empty()) n_before = 0, counted = true, for_each_batch(jobs, products, fill, use);
  note_told(told);
  ahead_shape_ = fetch;
  fill_ahead();
  return n_ahead_;
}

void CudaBackend::fill_ahead() {
  if (ahead_parts_.empty() || queue_.failed()) return;
  before_ahead_.mark(queue_);
  before_ahead_.order(ahead_queue_);
  std::byte* list = scratch_ + plan_.moves_ahead;
  constexpr size_t kMost = kMovesBytes / sizeof(FetchPart);
  for (size_t at = 0; at < ahead_parts_.size(); at += kMost) {
    const size_t n = std::min(kMost, ahead_parts_.size() - at);
    int32_t most_held = 0;
    for (size_t i = at; i < at + n; ++i) most_held = std::max(most_held, ahead_parts_[i].n_held);
    upload_ahead(list, &ahead_parts_[at], n * sizeof(FetchPart));
    fill_changed(ahead_queue_, reinterpret_cast<const FetchPart*>(list), context_.step.pages, ahead_shape_, static_cast<int32_t>(n),
                 most_held);
  }
  ahead_parts_.clear();
  behind_ahead_[++n_ahead_ % kAheadEvents].mark(ahead_queue_);
}

void CudaBackend::send_told() {
  if (told_sent_ || told_.bytes == 0 || told_.bytes > kToldBytes || queue_.failed()) return;
  queue_.copy(told_results_.data(), device(told_.from), told_.bytes, "copying from the device");
  told_results_.mark(queue_);
  told_sent_ = true;
}

void CudaBackend::download_told(const Download& told) {
  const OnDevice here(*gpu_, queue_);
  const bool of_this_step = told.from.address == told_.from.address && told.bytes == told_.bytes;
  if (of_this_step) send_told();
  if (!of_this_step || !told_sent_ || queue_.failed()) return download(told.to, told.from, told.bytes);
  told_results_.wait(queue_);
  if (queue_.failed()) std::memset(told.to, 0, told.bytes);
  else std::memcpy(told.to, told_results_.data(), told.bytes);
}

void CudaBackend::key_weights(Span<const KeyWeightsJob> jobs, const KeysShape& shape) {
  const OnDevice here(*gpu_, queue_);
  const TopKeysPlan& plan = batch_plan_;
  std::byte* scratch = scratch_ + plan_.top_keys;
  int32_t slot = 0;  // of the last part; a job keeps its slot from batch to batch, and the next job takes the next slot
  const auto fill = [&](const KeyWeightsJob& job, int32_t n_before, TopKeysPart* part) {
    if (n_before == 0) slot = (slot + 1) % plan.n_queries;
    if (shape.codes.bits > 0) part->first_key = job.first_key;
    part->mean = job.mean, part->add = job.add, part->slot = slot, part->n_before = n_before, part->n_all = job.n_positions;
    const uint64_t row = plan.out + static_cast<uint64_t>(slot * plan.stride) * sizeof(float);
    if (job.add && n_before == 0)
      uploads_.push_back({{address(scratch + row)}, job.out, static_cast<uint64_t>(job.n_keys) * sizeof(float)});
  };
  for_each_batch(
      jobs, shape, fill, [&](const TopKeysPart* parts, const auto& owner, int32_t n_parts, int32_t n_entries, int32_t most_keys) {
        cuda::key_weights(queue_, plan, scratch, shape, n_parts, n_entries, most_keys);
        for (int32_t i = 0; i < n_parts; ++i) {
          const TopKeysPart& part = parts[i];
          const KeyWeightsJob& job = *owner(static_cast<size_t>(i));
          const uint64_t bytes = static_cast<uint64_t>(part.n_keys) * sizeof(float);
          if (part.mean && part.n_before + part.n_positions == part.n_all)
            downloads_.push_back(
                {job.out, {address(scratch + plan.out + static_cast<uint64_t>(part.slot * plan.stride) * sizeof(float))}, bytes});
          for (int32_t row = 0; !part.mean && row < part.n_positions * plan.group; ++row) {
            const uint64_t entry = plan.entries + static_cast<uint64_t>(part.first_entry + row / plan.group) * plan.entry_bytes;
            const uint64_t weights = entry + static_cast<uint64_t>(row % plan.group * plan.stride) * sizeof(float);
            downloads_.push_back(
                {job.out + (int64_t{part.n_before} * plan.group + row) * part.n_keys, {address(scratch + weights)}, bytes});
          }
        }
      });
}

// One job at a time. Its window takes several batches; the sums stay in the scratch memory between them.
void CudaBackend::key_moments(Span<const KeyMomentsJob> jobs, const KeysShape& shape) {
  const OnDevice here(*gpu_, queue_);
  const TopKeysPlan& plan = batch_plan_;
  std::byte* scratch = scratch_ + plan_.top_keys;
  for (const KeyMomentsJob& job : jobs) {
    const auto fill = [](const KeyMomentsJob& of, int32_t n_before, TopKeysPart* part) {
      part->n_before = n_before, part->n_all = of.n_positions;
    };
    for_each_batch(
        Span<const KeyMomentsJob>(&job, 1), shape, fill,
        [&](const TopKeysPart* parts, const auto&, int32_t, int32_t n_entries, int32_t n_keys) {
          cuda::key_moments(queue_, plan, scratch, shape, n_entries, n_keys, job.n_measured, static_cast<float>(job.gamma));
          if (parts->n_before + parts->n_positions < parts->n_all) return;
          const std::byte *scores = scratch + plan.moments_scores, *totals = scratch + plan.moments_totals;
          const uint64_t row_bytes = static_cast<uint64_t>(job.n_measured) * sizeof(float);
          for (int64_t g = 0; g < plan.group; ++g)
            downloads_.push_back(
                {job.out + g * job.n_measured, {address(scores) + static_cast<uint64_t>(g * plan.stride) * sizeof(float)}, row_bytes});
          downloads_.push_back({totals_.data(), {address(totals)}, totals_.size() * sizeof(double)});
        });
    const auto sum = [&](int32_t from) { return std::accumulate(totals_.begin() + from, totals_.begin() + from + plan.group, 0.0); };
    *job.entropy = sum(0), *job.variance = sum(plan.group);
  }
}

}  // namespace orrery::cuda
