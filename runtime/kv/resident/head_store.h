// What a compressed session keeps of its KV on the device: for every (layer, KV head) its own number of slots, and which
// position each slot holds.  Slots are in no order (keys are cached behind RoPE), so that taking a token in, or
// replacing one, writes one slot.  The reservoir's pages hold everything; the store is filled from them.
//
// The store may be of a coarser KV type than the reservoir. What a slot holds derives from the reservoir's bytes and from
// nothing else, so that a token is the same however it came: filled in, fetched later, or appended by its own step.
//
// The memory is one region of the arena, taken when the session opens; lay_out() divides it among the heads as often
// as the policy likes.  Nothing here allocates after make().
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/backend/backend.h"
#include "runtime/base/span.h"
#include "runtime/base/status.h"
#include "runtime/kv/memory/arena.h"
#include "runtime/kv/memory/page_table.h"
#include "runtime/kv/resident/replacement.h"

namespace orrery::kv {

class HeadStore {
 public:
  // Room for n_slots tokens of one head each, over all heads together, in `format`.
  static Result<std::unique_ptr<HeadStore>> make(Arena* arena, const KvFormat& format, uint64_t n_slots);
  static Region layout(const KvFormat& format, uint64_t n_slots);
  static uint64_t region_bytes(const KvFormat& format, uint64_t n_slots);

  static constexpr size_t kMostMoves = 16384;  // tokens, or runs of them, that go at once

  uint32_t n_heads() const { return static_cast<uint32_t>(heads_.size()); }   // layers x KV heads, layer by layer
  uint64_t n_slots() const { return positions_.size(); }
  uint64_t used_bytes() const;

  // Divides the slots: capacities (n_heads), their sum at most n_slots(). Every head is empty afterwards, until it is filled.
  void lay_out(Span<const uint32_t> capacities);
  uint32_t capacity(uint32_t head) const { return heads_[head].capacity; }
  uint32_t length(uint32_t head) const { return heads_[head].length; }
  // (length) position of each slot.
  Span<const uint32_t> positions(uint32_t head) const { return {positions_.data() + heads_[head].first, heads_[head].length}; }

  // Addresses of the head's tiles of kPageTokens slots.
  const uint64_t* tiles(uint32_t head) const { return tiles_.data() + heads_[head].first_tile; }

  // Slots 0 .. n-1 of the head become `positions` (n <= capacity), from the reservoir's pages, whose type is not coarser;
  // the rest is empty. Of the first n_held of them, what the head held in the same slots before lay_out(), at the same place, stays as it
  // is: the caller knows that the reservoir has these tokens as they were. Returns how many came from there.
  size_t fill(Backend* backend, const PageTable& reservoir, uint32_t head, Span<const uint32_t> positions, size_t n_held = 0);

  // The slot that the next token of the head goes to, as a view over everything resident with it. `slot` is length()
  // or an earlier one, whose token it replaces. Nothing changes until commit().
  HeadView view_with_append(uint32_t head, uint32_t slot) const;
  void commit(uint32_t head, uint32_t slot, uint32_t position);

  // Slots (all of them < length) get other tokens, whose KV, in the reservoir's type, lies at `from` on the device, one
  // behind the other.
  void replace(Backend* backend, uint32_t head, Span<const Replacement> what, Ptr<const std::byte> from, KvType from_type);
  // Likewise, but from where they lie in the reservoir, whose memory is the device's: tokens of many heads, each at most once, together.
  struct Refresh {
    uint32_t head;
    Span<const Replacement> what;
    const PageTable* reservoir;
  };
  void replace(Backend* backend, Span<const Refresh> refreshes);
  // Likewise, but the caller writes them: where.
  Ptr<std::byte> take_slots(uint32_t head, const Replacement& what);
  KvType type() const { return format_.type; }
  // The head's last n tokens replace those from `slot` on (slot + 2 n <= length), and the head is so much shorter.
  void move_last(Backend* backend, uint32_t head, uint32_t n, uint32_t slot);

  void truncate(uint32_t) {}   // what is resident counts no more until it is filled again
  // Takes over layout and content of `other`, of the same format and size.
  void copy_from(Backend* backend, const HeadStore& other);

 private:
  struct Head {
    uint64_t first = 0;        // of its slots, in the region
    uint32_t capacity = 0, length = 0;
    size_t first_tile = 0;     // in tiles_
    uint32_t n_before = 0;     // slots that hold what they held before lay_out()
  };
  struct Part {                        // of what becomes moves
    const Refresh* refresh;
    size_t first, count;               // of its replacements
    size_t at;                         // in moves_
  };
  static constexpr size_t kPart = 512;   // replacements, at most
  HeadStore(const KvFormat& format, ArenaRegion region, uint64_t n_slots);
  void move(Backend* backend, const KvMove& one, KvType from_type);
  void make_moves(const Part& part);
  void finish_moves(Backend* backend, KvType from_type);
  uint64_t slot_address(const Head& head, uint64_t slot) const {
    return region_.data().address + (head.first + slot) * format_.token_bytes();
  }

  KvFormat format_;
  ArenaRegion region_;
  std::vector<Head> heads_;
  std::vector<uint32_t> positions_;     // (n_slots) by slot of the region
  std::vector<uint64_t> tiles_;        // addresses of each head's tiles of kPageTokens slots
  std::vector<KvMove> moves_;          // (kMostMoves) the first n_moves_ not yet given to the backend
  size_t n_moves_ = 0;
  std::vector<Part> parts_;            // (at most kMostMoves / kPart + heads)
};

}  // namespace orrery::kv
