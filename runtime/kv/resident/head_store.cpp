#include "runtime/kv/resident/head_store.h"

#include <algorithm>
#include <numeric>

#include "runtime/base/checked.h"
#include "runtime/kv/memory/device_pieces.h"

namespace orrery::kv {

namespace {
constexpr uint64_t kTile = static_cast<uint64_t>(kPageTokens);
constexpr size_t kWorthThreads = 2048;  // moves: listing fewer takes less time than calling other threads
}  // namespace

uint64_t HeadStore::region_bytes(const KvFormat& format, uint64_t n_slots) {
  return align_up(n_slots * format.token_bytes(), kArenaAlignment);
}

// The last tile of a head may be partly filled.
uint64_t HeadStore::most_tiles(const KvFormat& format, uint64_t n_slots) {
  return n_slots / kTile + static_cast<uint64_t>(format.n_layers) * static_cast<uint64_t>(format.n_kv_heads);
}

Region HeadStore::layout(const KvFormat& format, uint64_t n_slots, bool in_place, bool keeps_tiles) {
  const uint64_t n_heads = static_cast<uint64_t>(format.n_layers) * static_cast<uint64_t>(format.n_kv_heads);
  const uint64_t tables = n_heads * sizeof(Head) + n_slots * sizeof(uint32_t);
  const uint64_t of_tiles = most_tiles(format, n_slots) * sizeof(uint64_t);
  const uint64_t of_moves = of_tiles + kMostMoves * sizeof(KvMove) + (kMostMoves / kPart + n_heads) * sizeof(Part);
  if (in_place) return {"positions of attended tokens", Holds::kv, 0, 0, tables, 0};
  const uint64_t there = keeps_tiles ? align_up(of_tiles, kArenaAlignment) : 0;
  return {"resident KV", Holds::kv, region_bytes(format, n_slots) + there, 0, tables + of_moves, 0};
}

HeadStore::HeadStore(const KvFormat& format, ArenaRegion region, uint64_t n_slots, bool in_place, bool keeps_tiles)
    : format_(format), in_place_(in_place), keeps_tiles_(keeps_tiles && !in_place), region_(std::move(region)) {
  const size_t n_heads = static_cast<size_t>(format.n_layers) * static_cast<size_t>(format.n_kv_heads);
  heads_.resize(n_heads);
  positions_.resize(n_slots);
  if (in_place) return;
  tiles_.reserve(most_tiles(format, n_slots));
  moves_.resize(kMostMoves);
  parts_.reserve(kMostMoves / kPart + n_heads);
}

Result<std::unique_ptr<HeadStore>> HeadStore::make(Arena* arena, const KvFormat& format, uint64_t n_slots, bool in_place,
                                                   bool keeps_tiles) {
  ORRERY_ASSIGN(ArenaRegion region, ArenaRegion::take(arena, layout(format, n_slots, in_place, keeps_tiles)));
  return std::unique_ptr<HeadStore>(new HeadStore(format, std::move(region), n_slots, in_place, keeps_tiles));
}

uint64_t HeadStore::used_bytes() const {
  if (in_place_) return 0;
  uint64_t slots = 0;
  for (const Head& head : heads_) slots += head.length;
  return slots * format_.token_bytes();
}

void HeadStore::lay_out(Span<const uint32_t> capacities) {
  tiles_.clear();
  uint64_t first = 0;
  for (size_t i = 0; i < heads_.size(); ++i) {
    Head& head = heads_[i];
    const bool stays = head.first == first && head.capacity == capacities[i];
    head = {first, capacities[i], 0, tiles_.size(), stays ? head.length : 0};
    for (uint64_t slot = 0; !in_place_ && slot < head.capacity; slot += kTile) tiles_.push_back(slot_address(head, slot));
    first += head.capacity;
  }
}

void HeadStore::move(Backend* backend, const KvMove& one, KvType from_type) {
  moves_[n_moves_++] = one;
  if (n_moves_ == kMostMoves) finish_moves(backend, from_type);
}
void HeadStore::finish_moves(Backend* backend, KvType from_type) {
  backend->kv_moves()->move_kv({moves_.data(), n_moves_}, format_.type, from_type, format_.token_values());
  n_moves_ = 0;
}
uint64_t HeadStore::finish_moves_ahead(Backend* backend, KvType from_type) {
  const Span<const KvMove> moves{moves_.data(), n_moves_};
  n_moves_ = 0;
  return backend->kv_moves()->move_kv_ahead(moves, format_.type, from_type, format_.token_values());
}

void HeadStore::hold(uint32_t index, uint32_t n_first, Span<const uint32_t> found, uint32_t n_last, uint32_t end) {
  Head& head = heads_[index];
  uint32_t* to = positions_.data() + head.first;
  std::iota(to, to + n_first, 0u);
  to = std::copy(found.begin(), found.end(), to + n_first);
  std::iota(to, to + n_last, end - n_last);
  head.length = n_first + static_cast<uint32_t>(found.size()) + n_last;
}

size_t HeadStore::fill(Backend* backend, const PageTable& reservoir, uint32_t index, Span<const uint32_t> positions, size_t n_held) {
  Head& head = heads_[index];
  if (in_place_) {
    head.length = static_cast<uint32_t>(positions.size());
    std::copy(positions.begin(), positions.end(), positions_.begin() + static_cast<ptrdiff_t>(head.first));
    return 0;
  }
  if (keeps_tiles_) {
    const size_t n_tiles = div_up(uint64_t{head.capacity}, kTile);
    backend->upload({tiles_there(head).address}, tiles(index), n_tiles * sizeof(uint64_t));
  }
  const KvType from_type = reservoir.format().type;
  const PageTable::HeadTokens tokens = reservoir.tokens_of(index);
  const auto before = positions_.begin() + static_cast<ptrdiff_t>(head.first);
  n_held = std::min({n_held, positions.size(), size_t{head.n_before}});
  n_held = static_cast<size_t>(std::mismatch(before, before + static_cast<ptrdiff_t>(n_held), positions.begin()).first - before);
  for (size_t i = n_held; i < positions.size();) {
    // Neighbours of one page are one move.
    const uint32_t p = positions[i];
    size_t n = 1;
    while (i + n < positions.size() && positions[i + n] == p + n && (p + n) % kTile != 0) ++n;
    move(backend, {slot_address(head, i), tokens.address(p), static_cast<uint32_t>(n)}, from_type);
    i += n;
  }
  finish_moves(backend, from_type);
  std::copy(positions.begin(), positions.end(), before);
  head.length = static_cast<uint32_t>(positions.size());
  return positions.size() - n_held;
}

HeadView HeadStore::view_with_append(uint32_t index, uint32_t slot) const {
  const Head& head = heads_[index];
  HeadView view;
  view.n_keys = static_cast<int32_t>(std::max(head.length, slot + 1));
  if (in_place_) view.positions = positions_.data() + head.first, view.own_slot = static_cast<int32_t>(slot);
  else view.tiles = tiles_.data() + head.first_tile, view.tiles_there = tiles_there(head), view.append_at = slot_address(head, slot);
  return view;
}

void HeadStore::commit(uint32_t index, uint32_t slot, uint32_t position) {
  Head& head = heads_[index];
  positions_[head.first + slot] = position;
  head.length = std::max(head.length, slot + 1);
}

uint32_t HeadStore::room() const {
  uint32_t least = UINT32_MAX;
  for (const Head& head : heads_) least = std::min(least, head.capacity - head.length);
  return least;
}

void HeadStore::append(Backend* backend, const PageTable& reservoir, uint32_t position) {
  const KvType from_type = reservoir.format().type;
  for (uint32_t index = 0; index < n_heads(); ++index) {
    const uint32_t slot = heads_[index].length;
    if (!in_place_) move(backend, {slot_address(heads_[index], slot), reservoir.tokens_of(index).address(position), 1}, from_type);
    commit(index, slot, position);
  }
  if (!in_place_) finish_moves(backend, from_type);
}

void HeadStore::drop_last(uint32_t n) {
  for (Head& head : heads_) head.length -= std::min(head.length, n);
}

void HeadStore::replace(Backend* backend, uint32_t index, Span<const Replacement> what, Ptr<const std::byte> from, KvType from_type) {
  const uint64_t token_bytes = KvFormat{from_type, 1, 1, format_.head_dim}.token_bytes();
  for (const Replacement& r : what) {
    move(backend, {take_slots(index, r).address, from.address, r.count}, from_type);
    from = from + r.count * token_bytes;
  }
  finish_moves(backend, from_type);
}

// Writes the part's moves to moves_, and its positions.
void HeadStore::make_moves(const Part& part) {
  const Head& head = heads_[part.refresh->head];
  const PageTable::HeadTokens tokens = part.refresh->reservoir->tokens_of(part.refresh->head);
  const uint64_t slots = slot_address(head, 0), token_bytes = format_.token_bytes();
  for (size_t i = 0; i < part.count; ++i) {
    const Replacement& r = part.refresh->what[part.first + i];
    uint32_t* positions = &positions_[head.first + r.slot];
    for (uint32_t t = 0; t < r.count; ++t) positions[t] = r.position + t;
    moves_[part.at + i] = {slots + r.slot * token_bytes, tokens.address(r.position), r.count};
  }
}

uint64_t HeadStore::replace(Backend* backend, Span<const Refresh> refreshes, bool ahead) {
  uint64_t call = 0;
  for (size_t refresh = 0, first = 0; refresh < refreshes.size();) {
    parts_.clear();
    size_t n = 0;
    while (refresh < refreshes.size() && n < kMostMoves) {
      const size_t left = refreshes[refresh].what.size() - first, count = std::min({left, kPart, kMostMoves - n});
      if (count > 0) parts_.push_back({&refreshes[refresh], first, count, n});
      n += count, first += count;
      if (count == left) ++refresh, first = 0;
    }
    n_moves_ = n;
    const auto make = [](const void* store, int64_t i) {
      auto* self = static_cast<HeadStore*>(const_cast<void*>(store));
      self->make_moves(self->parts_[static_cast<size_t>(i)]);
    };
    const auto n_parts = static_cast<int64_t>(parts_.size());
    if (n >= kWorthThreads) backend->for_each(n_parts, make, this);  // listing tens of thousands takes as long as moving them
    else
      for (int64_t i = 0; i < n_parts; ++i) make(this, i);
    if (n == 0) continue;
    const KvType from_type = refreshes[0].reservoir->format().type;
    if (ahead) call = finish_moves_ahead(backend, from_type);
    else finish_moves(backend, from_type);
  }
  return call;
}

Ptr<std::byte> HeadStore::take_slots(uint32_t index, const Replacement& what) {
  const Head& head = heads_[index];
  for (uint32_t i = 0; i < what.count; ++i) positions_[head.first + what.slot + i] = what.position + i;
  return {slot_address(head, what.slot)};
}

void HeadStore::forget_positions(uint32_t index, uint32_t slot, uint32_t n) {
  const auto first = positions_.begin() + static_cast<ptrdiff_t>(heads_[index].first + slot);
  std::fill(first, first + n, kNoPosition);
}

void HeadStore::move_last(Backend* backend, uint32_t index, uint32_t n, uint32_t slot) {
  Head& head = heads_[index];
  head.length -= n;
  backend->copy({slot_address(head, slot)}, {slot_address(head, head.length)}, n * format_.token_bytes());
  const auto last = positions_.begin() + static_cast<ptrdiff_t>(head.first + head.length);
  std::copy(last, last + n, positions_.begin() + static_cast<ptrdiff_t>(head.first + slot));
}

void HeadStore::copy_from(Backend* backend, const HeadStore& other) {
  heads_ = other.heads_;
  std::copy(other.positions_.begin(), other.positions_.end(), positions_.begin());
  if (in_place_) return;
  tiles_.clear();
  for (const Head& head : heads_)
    for (uint64_t slot = 0; slot < head.capacity; slot += kTile) tiles_.push_back(slot_address(head, slot));
  backend->copy(region_.data(), other.region_.data(), other.positions_.size() * format_.token_bytes());
  if (keeps_tiles_) backend->upload({tiles_there({}).address}, tiles_.data(), tiles_.size() * sizeof(uint64_t));
}

SlotTable HeadStore::table() const {
  SlotTable table;
  for (uint32_t head = 0; head < n_heads(); ++head) {
    table.capacity.push_back(capacity(head)), table.length.push_back(length(head));
    table.first.push_back(table.positions.size());
    table.positions.insert(table.positions.end(), positions(head).begin(), positions(head).end());
  }
  return table;
}

Status HeadStore::state(Backend* backend, StateBytes* s, uint32_t n_tokens, SlotTable* table) {
  SlotTable& t = *table;
  ORRERY_TRY(s->numbers(&t.capacity, n_heads(), n_slots() + 1, "a head has more slots than the session"));
  ORRERY_TRY(s->numbers(&t.length, n_heads(), n_slots() + 1, "a head holds more tokens than the session has slots"));
  uint64_t n_all = 0, n_held = 0;
  t.first.resize(n_heads());
  for (uint32_t head = 0; head < n_heads(); ++head) {
    ORRERY_TRY(s->check(t.length[head] <= t.capacity[head], "a head holds more tokens than it has slots"));
    t.first[head] = n_held;
    n_all += t.capacity[head], n_held += t.length[head];
  }
  ORRERY_TRY(s->check(n_all <= n_slots(), "the heads have more slots than the session"));
  ORRERY_TRY(s->numbers(&t.positions, n_held, n_tokens, "a slot holds a token that the session has not"));
  if (s->takes()) {
    lay_out(t.capacity);
    for (uint32_t i = 0; i < n_heads(); ++i) {
      Head& head = heads_[i];
      head.length = t.length[i];
      std::copy(t.of(i).begin(), t.of(i).end(), positions_.begin() + static_cast<ptrdiff_t>(head.first));
    }
    if (keeps_tiles_ && !tiles_.empty()) backend->upload({tiles_there({}).address}, tiles_.data(), tiles_.size() * sizeof(uint64_t));
  }
  if (in_place_) return ok_status();
  DevicePieces pieces;
  uint64_t first = 0;
  for (uint32_t head = 0; head < n_heads(); first += t.capacity[head++])
    pieces.add({region_.data().address + first * format_.token_bytes()}, t.length[head] * format_.token_bytes());
  return pieces.state(backend, s);
}

}  // namespace orrery::kv
