#include "runtime/kv/transfers/refills.h"

#include <algorithm>
#include <utility>

#include "runtime/base/checked.h"
#include "runtime/base/clock.h"

namespace orrery::kv {

namespace {
constexpr uint64_t kPageSize = static_cast<uint64_t>(kPageTokens);
constexpr uint64_t kRunsAtOnce = 4096;  // least room for noted runs
uint64_t runs_at_once(uint64_t staging_tokens) { return std::max(staging_tokens / 2, kRunsAtOnce); }
// Most chunks in the ring: the last chunk of each refresh, and 4 others. A chunk that is not the last of its refresh fills more than a
// quarter of the ring, because a replacement has at most half of the ring.
uint64_t chunks_at_once(uint64_t n_heads) { return n_heads + 4; }
uint64_t heads_of(const KvFormat& format) { return static_cast<uint64_t>(format.n_layers) * static_cast<uint64_t>(format.n_kv_heads); }

// Sums and bounds of some replacements, in one pass without branches: a layer may have tens of thousands.
struct Extent {
  bool in_pages = true;  // each replacement has tokens, all of one page
  uint32_t longest = 0;
  uint64_t n_tokens = 0, end_slot = 0, end_position = 0;
};
Extent extent_of(Span<const Replacement> what) {
  constexpr auto kPage = static_cast<uint32_t>(kPageTokens);
  Extent e;
  for (const Replacement& r : what) {
    e.in_pages &= r.count - 1 < kPage - r.position % kPage;  // for a count of 0, count - 1 is the largest number
    e.longest = std::max(e.longest, r.count);
    e.n_tokens += r.count;
    e.end_slot = std::max(e.end_slot, uint64_t{r.slot} + r.count);
    e.end_position = std::max(e.end_position, uint64_t{r.position} + r.count);
  }
  return e;
}
}  // namespace

uint64_t Refills::staging_bytes(const KvFormat& format, uint64_t staging_tokens, bool values_alone) {
  return align_up(staging_tokens * (values_alone ? format.value_bytes() : format.token_bytes()), kArenaAlignment);
}

Region Refills::layout(const KvFormat& format, uint64_t max_pending, uint64_t staging_tokens, bool values_alone) {
  const uint64_t n_heads = heads_of(format), transfers = staging_tokens > 0 ? chunks_at_once(n_heads) * sizeof(Chunk) : 0;
  const uint64_t host = n_heads * (sizeof(Pending) + sizeof(HeadStore::Refresh) + sizeof(uint8_t)) +
                        static_cast<uint64_t>(format.n_layers) * sizeof(uint64_t) + max_pending * sizeof(Replacement) + transfers +
                        staging_tokens * sizeof(HostPiece) + (values_alone ? runs_at_once(staging_tokens) * sizeof(RebuiltRun) : 0);
  return {"staging ring", Holds::staging, staging_bytes(format, staging_tokens, values_alone), 0, host, 0};
}

Refills::Refills(IoThread* io, const KvFormat& format, ArenaRegion staging, uint64_t max_pending, uint64_t staging_tokens,
                 LowRank* low_rank, bool ahead)
    : io_(io), format_(format), low_rank_(low_rank), ahead_(ahead), fetched_bytes_(low_rank ? format.value_bytes() : format.token_bytes()),
      staging_(std::move(staging)), max_pending_(max_pending), staging_tokens_(staging_tokens) {
  const uint64_t n_heads = heads_of(format);
  pending_.reserve(n_heads);
  what_.reserve(max_pending);
  has_pending_.resize(n_heads);
  if (ahead) calls_.resize(static_cast<size_t>(format.n_layers));
  if (io) chunks_ = std::vector<Chunk>(chunks_at_once(n_heads));
  if (io) pieces_.resize(staging_tokens);
  if (!io && !low_rank) refreshes_.reserve(n_heads);
  if (low_rank) runs_.reserve(runs_at_once(staging_tokens));
}

Result<std::unique_ptr<Refills>> Refills::make(IoThread* io, Backend* backend, Arena* arena, const KvFormat& format, uint64_t max_pending,
                                               uint64_t staging_tokens, LowRank* low_rank, bool ahead) {
  if (io ? staging_tokens < 2 : staging_tokens > 0)
    return error(Code::invalid_argument, "a staging ring of %llu tokens, expected %s", static_cast<unsigned long long>(staging_tokens),
                 io ? "2 or more" : "none: nothing is transferred");
  ORRERY_ASSIGN(ArenaRegion staging, ArenaRegion::take(arena, layout(format, max_pending, staging_tokens, low_rank != nullptr)));
  if (io) backend->commit(staging.data(), staging.bytes());  // so that the first transfers do not wait for page faults
  return std::unique_ptr<Refills>(new Refills(io, format, std::move(staging), max_pending, staging_tokens, low_rank, ahead));
}

Refills::Stats Refills::stats() const { return {tokens_, tokens_ * fetched_bytes_, requests_, transfer_ns_ / 1000, stall_ns_ / 1000}; }

Status Refills::add(Backend* backend, const PageTable& reservoir, uint32_t head, Span<const Replacement> what, uint64_t visible_at) {
  if (head >= has_pending_.size()) return error(Code::invalid_argument, "a refresh of head %u of %zu", head, has_pending_.size());
  if (has_pending_[head]) return error(Code::invalid_argument, "a refresh of head %u, whose last one is not visible yet", head);
  if (what.size() > max_pending_ - what_.size())
    return error(Code::invalid_argument, "a refresh of head %u with %zu replacements: %zu of at most %llu are pending", head, what.size(),
                 what_.size(), static_cast<unsigned long long>(max_pending_));
  const uint64_t n_tokens = reservoir.n_pages() * kPageSize;
  const Extent extent = extent_of(what);
  const uint64_t most = io_ ? std::min(staging_tokens_ / 2, kPageSize) : kPageSize;
  const uint64_t end = low_rank_ ? std::min<uint64_t>(low_rank_->n_tokens(), n_tokens) : n_tokens;  // of the positions that can be fetched
  for (size_t i = 0; i < what.size() && !(extent.in_pages && extent.longest <= most && extent.end_position <= end); ++i) {
    const Replacement& r = what[i];
    if (r.position >= n_tokens)
      return error(Code::invalid_argument, "a refresh of head %u with position %u of %llu", head, r.position,
                   static_cast<unsigned long long>(n_tokens));
    if (r.count == 0 || r.count > kPageSize - r.position % kPageSize || (io_ && r.count > staging_tokens_ / 2))
      return error(Code::invalid_argument, "a refresh of head %u with %u tokens from position %u on: they are of one page, at most %llu",
                   head, r.count, r.position, static_cast<unsigned long long>(io_ ? staging_tokens_ / 2 : kPageSize));
    if (low_rank_ && r.position + uint64_t{r.count} > low_rank_->n_tokens())
      return error(Code::invalid_argument, "a refresh of head %u with position %u: %u have rows to be rebuilt from", head, r.position,
                   low_rank_->n_tokens());
  }
  if (what.empty()) return ok_status();

  const auto n_kv_heads = static_cast<uint32_t>(format_.n_kv_heads);
  const auto behind = std::find_if(pending_.begin(), pending_.end(), [&](const Pending& p) {
    return visible_at != p.visible_at ? visible_at < p.visible_at : head / n_kv_heads < p.head / n_kv_heads;
  });
  const size_t index = static_cast<size_t>(behind - pending_.begin());
  // A chunk of a later refresh must not lie before this one's chunks: it would hold the room that they need.
  recall_from(index);
  const size_t first = behind == pending_.end() ? what_.size() : behind->first;
  for (size_t i = index; i < pending_.size(); ++i) pending_[i].first += what.size();
  pending_.insert(behind, Pending{head, visible_at, first, what.size(), &reservoir, 0, 0, extent.n_tokens, extent.end_slot});
  what_.insert(what_.begin() + static_cast<ptrdiff_t>(first), what.begin(), what.end());
  has_pending_[head] = 1;
  return start(backend);
}

Status Refills::copy_from(Backend* backend, const Refills& other, const PageTable& reservoir) {
  for (const Pending& p : other.pending()) ORRERY_TRY(add(backend, reservoir, p.head, other.what(p), p.visible_at));
  return ok_status();
}

// Finds room for n tokens behind the last chunk, or at the ring's beginning.
bool Refills::find_room(uint64_t n, uint64_t* at) {
  *at = 0;
  if (n_chunks_ == 0) return true;
  const uint64_t begin = chunk(0).at, last = chunk(n_chunks_ - 1).at, end = last + chunk(n_chunks_ - 1).n;
  if (last >= begin && staging_tokens_ - end < n) return begin >= n;
  *at = end;
  return (last >= begin ? staging_tokens_ : begin) - end >= n;
}

// Gives chunks to the I/O thread while ring and queue have room.
Status Refills::start(Backend* backend) {
  if (!io_) return ok_status();
  for (Pending& p : pending_) {
    while (p.n_started < p.count) {
      const Span<const Replacement> left = what(p).subspan(p.n_started, p.count - p.n_started);
      uint64_t n = 0, at = 0;
      size_t n_what = 0;
      while (n_what < left.size() && n + left[n_what].count <= staging_tokens_ / 2) n += left[n_what++].count;
      if (n_chunks_ == chunks_.size() || !find_room(n, &at)) return ok_status();
      rebuild_noted(backend);
      if (placing_) ORRERY_TRY(backend->synchronize());  // the device must have read the ring before it is written again
      placing_ = false;
      Chunk& c = chunk(n_chunks_);
      c.at = at;
      c.n = n;
      c.n_what = n_what;

      const PageTable::HeadTokens tokens = p.reservoir->tokens_of(p.head);
      const uint64_t token = tokens.token_bytes;
      size_t n_pieces = 0;
      for (const Replacement& r : left.first(n_what)) {
        const auto* data = reinterpret_cast<const std::byte*>(static_cast<uintptr_t>(tokens.address(r.position)));
        if (low_rank_) {  // a token's V lies behind its K
          for (uint64_t i = 0; i < r.count; ++i) pieces_[at + n_pieces++] = {data + i * token + format_.key_bytes(), fetched_bytes_};
          continue;
        }
        HostPiece* last = n_pieces > 0 ? &pieces_[at + n_pieces - 1] : nullptr;
        if (last && last->data + last->bytes == data) {
          last->bytes += r.count * token;  // neighbours are one piece
        } else {
          pieces_[at + n_pieces++] = {data, r.count * token};
        }
      }
      c.request.to = staging_.data() + at * fetched_bytes_;
      c.request.pieces = {pieces_.data() + at, n_pieces};
      c.request.head = p.head;
      if (!io_->submit(&c.request)) return ok_status();
      ++n_chunks_;
      p.n_started += n_what;
    }
  }
  return ok_status();
}

// Takes the chunks of this and all later refreshes out of the ring. They are the ring's last chunks.
void Refills::recall_from(size_t refresh) {
  for (size_t i = pending_.size(); i-- > refresh;) {
    Pending& p = pending_[i];
    while (p.n_started > p.n_placed) {
      Chunk& c = chunk(--n_chunks_);
      io_->cancel(&c.request);
      p.n_started -= c.n_what;
    }
  }
}

void Refills::drop() {
  recall_from(0);
  pending_.clear();
  what_.clear();
  std::fill(has_pending_.begin(), has_pending_.end(), uint8_t{0});
}

void Refills::place(Backend* backend, HeadStore* store, uint32_t head, Span<const Replacement> what, Ptr<const std::byte> from) {
  if (!low_rank_) return store->replace(backend, head, what, from, format_.type);
  for (const Replacement& r : what) {
    rebuild(backend, *store, head, {static_cast<int32_t>(r.position), static_cast<int32_t>(r.count), store->take_slots(head, r), from});
    from = from + r.count * fetched_bytes_;
  }
}

// Notes a run, so that low_rank_ rebuilds the heads of a layer together: before the ring's room is used again, and before apply() returns.
void Refills::rebuild(Backend* backend, const HeadStore& store, uint32_t head, RebuiltRun run) {
  const auto n_kv_heads = static_cast<uint32_t>(format_.n_kv_heads);
  if (head / n_kv_heads != runs_layer_ || runs_.size() == runs_at_once(staging_tokens_)) rebuild_noted(backend);
  runs_layer_ = head / n_kv_heads, runs_type_ = store.type();
  run.kv_head = static_cast<int32_t>(head % n_kv_heads);
  runs_.push_back(run);
}

void Refills::rebuild_noted(Backend* backend) {
  if (!runs_.empty()) low_rank_->rebuild(backend, runs_layer_, runs_type_, runs_);
  runs_.clear();
}

// Writes the refresh's next chunk to its slots. It is the ring's first chunk.
Status Refills::place_next(Backend* backend, HeadStore* store, Pending* refresh, const Cancel& cancel) {
  while (n_chunks_ == 0) {  // other sessions' requests fill the queue
    IoThread::Waited room = io_->wait_for_room(cancel);
    stall_ns_ += room.stall_ns;
    ORRERY_TRY(std::move(room.status));
    ORRERY_TRY(start(backend));
  }
  Chunk& c = chunk(0);
  IoThread::Waited arrived = io_->wait(&c.request, cancel);
  stall_ns_ += arrived.stall_ns;
  ORRERY_TRY(std::move(arrived.status));
  place(backend, store, refresh->head, what(*refresh).subspan(refresh->n_placed, c.n_what), c.request.to);
  placing_ = true;
  refresh->n_placed += c.n_what;
  tokens_ += c.n;
  ++requests_;
  transfer_ns_ += c.request.link_ns();
  first_chunk_ = (first_chunk_ + 1) % chunks_.size();
  --n_chunks_;
  return start(backend);
}

// Without an I/O thread: the backend reads the reservoir. Layers from n_layers on are moved ahead, one at a time.
void Refills::move_due(Backend* backend, HeadStore* store, size_t n_due, uint64_t n_layers) {
  const uint64_t start = now_us();
  for (size_t i = 0; i < n_due; ++i) {
    const Pending& p = pending_[i];
    if (low_rank_) rebuild_due(backend, store, p);
    else refreshes_.push_back({p.head, what(p), p.reservoir});
    tokens_ += p.n_tokens;
    ++requests_;
    const bool last_of_layer = i + 1 == n_due || layer_of(pending_[i + 1]) != layer_of(p);
    if (ahead_ && last_of_layer && layer_of(p) >= n_layers) {
      if (const uint64_t call = store->replace(backend, refreshes_, true)) calls_[layer_of(p)] = call;
      refreshes_.clear();
    } else if (ahead_ && last_of_layer) {
      store->replace(backend, refreshes_);
      refreshes_.clear();
    }
  }
  rebuild_noted(backend);
  store->replace(backend, refreshes_);
  refreshes_.clear();
  const uint64_t ns = 1000 * (now_us() - start);
  transfer_ns_ += ns, stall_ns_ += ns;
}

// Rebuilds K, and reads V in the reservoir. gap: bytes between one V and the next.
void Refills::rebuild_due(Backend* backend, HeadStore* store, const Pending& refresh) {
  const PageTable::HeadTokens tokens = refresh.reservoir->tokens_of(refresh.head);
  const auto gap = static_cast<int32_t>(tokens.token_bytes - format_.value_bytes());
  for (const Replacement& r : what(refresh))
    rebuild(backend, *store, refresh.head,
            {static_cast<int32_t>(r.position),
             static_cast<int32_t>(r.count),
             store->take_slots(refresh.head, r),
             {tokens.address(r.position) + format_.key_bytes()},
             0,
             gap});
}

Status Refills::place_due(Backend* backend, HeadStore* store, size_t n_due, uint64_t n_layers, const Cancel& cancel) {
  for (size_t i = 0; i < n_due; ++i) {
    const Pending& p = pending_[i];
    if (p.head < store->n_heads() && p.end_slot <= store->length(p.head)) continue;
    for (const Replacement& r : what(p))
      if (p.head >= store->n_heads() || r.slot >= store->length(p.head) || r.count > store->length(p.head) - r.slot)
        return error(Code::invalid_argument, "a refresh of head %u with slot %u of %u", p.head, r.slot + r.count - 1,
                     p.head < store->n_heads() ? store->length(p.head) : 0);
  }
  if (!io_ && n_due > 0) move_due(backend, store, n_due, n_layers);
  if (!io_) return ok_status();
  Status status = start(backend);
  for (size_t i = 0; i < n_due && status.ok(); ++i)
    while (status.ok() && pending_[i].n_placed < pending_[i].count) status = place_next(backend, store, &pending_[i], cancel);
  rebuild_noted(backend);
  return status;
}

bool Refills::late(uint64_t step) const {
  if (!io_) return false;
  size_t n_what = 0, n_arrived = 0;
  for (const Pending& p : pending_) {
    if (p.visible_at > step) break;
    if (p.n_started < p.count) return true;
    n_what += p.count - p.n_placed;
  }
  for (size_t i = 0; n_arrived < n_what; n_arrived += chunk(i++).n_what)
    if (!io_->arrived(chunk(i).request)) return true;
  return false;
}

bool Refills::moving() const {
  return std::any_of(calls_.begin(), calls_.end(), [](uint64_t call) { return call > 0; });
}

// apply() to the first n_layers layers.
Status Refills::apply_below(Backend* backend, HeadStore* store, uint64_t step, uint64_t n_layers, const Cancel& cancel) {
  uint64_t call = 0;
  for (size_t layer = 0; layer < calls_.size() && layer < n_layers; ++layer) call = std::max(call, std::exchange(calls_[layer], 0));
  if (call > 0) backend->kv_moves()->join_moves(call);
  size_t n_due = 0, n_what = 0;
  for (size_t i = 0; i < pending_.size() && pending_[i].visible_at <= step; ++i)
    if (!io_ || layer_of(pending_[i]) < n_layers) n_due = i + 1;
  for (size_t i = 0; i < n_due; ++i) n_what += pending_[i].count;
  Status status = place_due(backend, store, n_due, n_layers, cancel);
  if (!status.ok()) {
    drop();
    return status;
  }
  for (size_t i = 0; i < n_due; ++i) has_pending_[pending_[i].head] = 0;
  pending_.erase(pending_.begin(), pending_.begin() + static_cast<ptrdiff_t>(n_due));
  what_.erase(what_.begin(), what_.begin() + static_cast<ptrdiff_t>(n_what));
  for (Pending& p : pending_) p.first -= n_what;
  return ok_status();
}

Status Refills::state(Backend* backend, StateBytes* s, uint32_t n_tokens, const SlotTable& slots, const PageTable* reservoir,
                      std::vector<SavedRefill>* list) {
  uint32_t n = static_cast<uint32_t>(pending_.size());
  ORRERY_TRY(s->number(&n, has_pending_.size() + 1, "more refills than heads"));
  uint64_t n_what = 0;
  list->clear();
  for (uint32_t i = 0; i < n; ++i) {
    SavedRefill refill;
    if (!s->reads()) {
      const Pending& p = pending_[i];
      refill = {p.head, p.visible_at, {what(p).begin(), what(p).end()}};
    }
    auto count = static_cast<uint32_t>(refill.what.size());
    ORRERY_TRY(s->number(&refill.head, has_pending_.size(), "a refill of a head that the model has not"));
    ORRERY_TRY(s->value(&refill.visible_at));
    ORRERY_TRY(s->number(&count, max_pending_ - n_what + 1, "more refills than slots"));
    n_what += count;
    for (const SavedRefill& other : *list) ORRERY_TRY(s->check(other.head != refill.head, "two refills of one head"));
    if (s->reads() && count > s->left() / sizeof(Replacement)) return s->wrong("the state ends too early");
    refill.what.resize(count);
    ORRERY_TRY(s->raw(refill.what.data(), count));
    for (const Replacement& r : refill.what) {
      const bool in_range = r.slot < slots.length[refill.head] && r.count <= slots.length[refill.head] - r.slot && r.position < n_tokens &&
                            r.count <= n_tokens - r.position;
      ORRERY_TRY(s->check(in_range, "a refill of tokens or slots that the session has not"));
    }
    if (s->takes()) ORRERY_TRY(add(backend, *reservoir, refill.head, refill.what, refill.visible_at));
    list->push_back(std::move(refill));
  }
  return ok_status();
}

}  // namespace orrery::kv
