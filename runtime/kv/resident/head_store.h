// The resident KV of a compressed session: each KV head of each layer has its own number of slots on the device, and a position for each
// slot. Slots are in any order, because cached keys are already rotated by RoPE. So appending or replacing a token writes one slot. The
// reservoir's pages hold all KV, and the store is filled from them.
//
// The store may have a coarser KV type than the reservoir. The content of a slot depends on the reservoir's bytes alone. So a token is the
// same whether it was filled in, fetched later or appended by its own step.
//
// The memory is one region of the arena, taken when the session opens. lay_out() divides it among the heads, any number of times. Nothing
// here allocates after make().
//
// A store that keeps_tiles also has the heads' tiles in device memory (HeadView::tiles_there): they go there when heads are filled.
//
// A store in place has slots with positions and without memory: attention reads its tokens in the reservoir. Then the formats are equal.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/backend/backend.h"
#include "runtime/base/span.h"
#include "runtime/base/state_bytes.h"
#include "runtime/base/status.h"
#include "runtime/kv/memory/arena.h"
#include "runtime/kv/memory/page_table.h"
#include "runtime/kv/resident/replacement.h"
#include "runtime/kv/resident/slot_table.h"

namespace orrery::kv {

class HeadStore {
 public:
  // n_slots: of all heads together. A slot holds one token of one head, in `format`.
  static Result<std::unique_ptr<HeadStore>> make(Arena* arena, const KvFormat& format, uint64_t n_slots, bool in_place = false,
                                                 bool keeps_tiles = false);
  static Region layout(const KvFormat& format, uint64_t n_slots, bool in_place = false, bool keeps_tiles = false);
  static uint64_t region_bytes(const KvFormat& format, uint64_t n_slots);

  static constexpr size_t kMostMoves = 16384;  // moves that the backend gets at once: tokens, or runs of tokens

  uint32_t n_heads() const { return static_cast<uint32_t>(heads_.size()); }  // index of a head: layer * n_kv_heads + KV head
  uint64_t n_slots() const { return positions_.size(); }
  uint64_t used_bytes() const;

  // Divides the slots. capacities: (n_heads), their sum at most n_slots(). Every head is empty afterwards.
  void lay_out(Span<const uint32_t> capacities);
  uint32_t capacity(uint32_t head) const { return heads_[head].capacity; }
  uint32_t length(uint32_t head) const { return heads_[head].length; }
  // (length) the position of each slot.
  Span<const uint32_t> positions(uint32_t head) const { return {positions_.data() + heads_[head].first, heads_[head].length}; }

  // In place: the head's slots are the first n_first tokens, `found`, and the n_last tokens before `end`.
  void hold(uint32_t head, uint32_t n_first, Span<const uint32_t> found, uint32_t n_last, uint32_t end);

  // Addresses of the head's tiles, which lie side by side. A tile holds kPageTokens slots. Not in place.
  const uint64_t* tiles(uint32_t head) const { return tiles_.data() + heads_[head].first_tile; }
  uint64_t tile_bytes() const { return static_cast<uint64_t>(kPageTokens) * format_.token_bytes(); }

  // Fills slots 0 .. n-1 of the head with `positions` (n <= capacity) from the reservoir, whose type is not coarser. The other slots are
  // empty. Among the first n_held positions, a slot that held the same position at the same address before lay_out() is not copied: the
  // caller guarantees that these tokens have not changed in the reservoir. Returns the number of copied tokens: 0 in place.
  size_t fill(Backend* backend, const PageTable& reservoir, uint32_t head, Span<const uint32_t> positions, size_t n_held = 0);

  // The head with its next token in `slot`: length(), or an earlier slot whose token it replaces. Nothing changes until commit().
  HeadView view_with_append(uint32_t head, uint32_t slot) const;
  void commit(uint32_t head, uint32_t slot, uint32_t position);
  // The number of tokens that fit every head behind its last one.
  uint32_t room() const;
  // Appends the token at `position` to every head, from the reservoir. room() > 0.
  void append(Backend* backend, const PageTable& reservoir, uint32_t position);
  // Removes the last n tokens of every head, which were appended.
  void drop_last(uint32_t n);

  // Replaces the tokens of slots, all < length. The KV of the new tokens lies at `from` on the device in from_type, one token behind the
  // other.
  void replace(Backend* backend, uint32_t head, Span<const Replacement> what, Ptr<const std::byte> from, KvType from_type);
  // Replaces tokens of many heads, each head at most once, and reads them in the reservoir. The device must be able to read the reservoir.
  // ahead: by KvMoves::move_kv_ahead(). Returns the number of the last call; 0: no call.
  struct Refresh {
    uint32_t head;
    Span<const Replacement> what;
    const PageTable* reservoir;
  };
  uint64_t replace(Backend* backend, Span<const Refresh> refreshes, bool ahead = false);
  // Index of the head's first slot among all n_slots(). Valid until lay_out().
  uint64_t first_slot(uint32_t head) const { return heads_[head].first; }
  Ptr<std::byte> slot(uint32_t head, uint32_t at) const { return {slot_address(heads_[head], at)}; }
  // Gives the slots of `what` their new positions, and returns their address. The caller writes the KV.
  Ptr<std::byte> take_slots(uint32_t head, const Replacement& what);
  // Nobody knows which tokens the n slots from `slot` on hold: fill() copies all of theirs.
  static constexpr uint32_t kNoPosition = UINT32_MAX;
  void forget_positions(uint32_t head, uint32_t slot, uint32_t n);
  KvType type() const { return format_.type; }
  // Moves the head's last n tokens to the slots from `slot` on (slot + 2 n <= length), and makes the head n slots shorter.
  void move_last(Backend* backend, uint32_t head, uint32_t n, uint32_t slot);

  void truncate(uint32_t) {}  // nothing to do: the session settles, and so fills the store, before it uses it again
  // Copies the layout and content of `other`, which has the same format and size.
  void copy_from(Backend* backend, const HeadStore& other);
  // Layout and content. table: what the slots hold; written from there, or read into it. Positions are below n_tokens.
  Status state(Backend* backend, StateBytes* s, uint32_t n_tokens, SlotTable* table);
  SlotTable table() const;

 private:
  struct Head {
    uint64_t first = 0;  // index of its first slot in the region
    uint32_t capacity = 0, length = 0;
    size_t first_tile = 0;  // index in tiles_
    uint32_t n_before = 0;  // slots that still hold the tokens from before lay_out()
  };
  struct Part {  // some replacements of a refresh; one thread turns them into moves
    const Refresh* refresh;
    size_t first, count;  // in its replacements
    size_t at;            // index of their first move in moves_
  };
  static constexpr size_t kPart = 512;  // most replacements of a Part
  HeadStore(const KvFormat& format, ArenaRegion region, uint64_t n_slots, bool in_place, bool keeps_tiles);
  static uint64_t most_tiles(const KvFormat& format, uint64_t n_slots);
  Ptr<uint64_t> tiles_there(const Head& head) const {
    return {keeps_tiles_ ? region_.data().address + region_bytes(format_, n_slots()) + head.first_tile * sizeof(uint64_t) : 0};
  }
  void move(Backend* backend, const KvMove& one, KvType from_type);
  void make_moves(const Part& part);
  void finish_moves(Backend* backend, KvType from_type);
  uint64_t finish_moves_ahead(Backend* backend, KvType from_type);
  uint64_t slot_address(const Head& head, uint64_t slot) const {
    return region_.data().address + (head.first + slot) * format_.token_bytes();
  }

  KvFormat format_;
  const bool in_place_, keeps_tiles_;
  ArenaRegion region_;  // slots; behind them, if keeps_tiles_, the tiles
  std::vector<Head> heads_;
  std::vector<uint32_t> positions_;  // (n_slots) by the slot's index in the region
  std::vector<uint64_t> tiles_;      // the heads' tiles, head by head
  std::vector<KvMove> moves_;        // (kMostMoves): the first n_moves_ wait for finish_moves()
  size_t n_moves_ = 0;
  std::vector<Part> parts_;  // (at most kMostMoves / kPart + heads)
};

}  // namespace orrery::kv
