// Refills: while a session decodes, tokens are fetched from the reservoir into slots of the head store.
//
// A refresh lists a head's replacements and the step from which they are visible. The caller fixes that step. Before it, attention uses the
// old tokens. At that step apply() waits for late transfers (a stall, which is counted) and writes the slots. So the store, and every later
// token, are the same for any timing. apply() can wait layer by layer: later layers' KV crosses the link while earlier layers are computed.
//
// add() takes the list. The I/O thread fetches its tokens in chunks of at most half the staging ring, as soon as the ring has room. apply()
// writes arrived chunks to the slots, in the order of visible_at and then of layers, and starts the next chunks. Link and ring carry the
// reservoir's bytes; apply() converts them if the store has another KV type.
//
// Without an I/O thread there is no ring: the backend reads the reservoir in place, and apply() moves all visible tokens at once, on all
// threads of the backend. Where moves run ahead, begin() starts them at the step's beginning, in parallel with the layers before, and
// apply() joins those of its layers. Nothing allocates after make(), except the text of an error.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/backend/backend.h"
#include "runtime/base/cancel.h"
#include "runtime/base/span.h"
#include "runtime/base/state_bytes.h"
#include "runtime/base/status.h"
#include "runtime/kv/memory/arena.h"
#include "runtime/kv/resident/head_store.h"
#include "runtime/kv/transfers/io_thread.h"
#include "runtime/kv/resident/low_rank.h"
#include "runtime/kv/memory/page_table.h"

namespace orrery::kv {

// One thread at a time. add() and apply() take the backend, so their caller has the turn on it. The reservoir's pages must not change while
// their tokens are under way: call recall() before a page may be given up (a shared page, before it is written), and drop() before
// positions are removed.
class Refills {
 public:
  struct Pending {
    uint32_t head = 0;
    uint64_t visible_at = 0;      // step
    size_t first = 0, count = 0;  // its replacements: what()
    const PageTable* reservoir = nullptr;
    size_t n_started = 0;   // replacements given to the I/O thread
    size_t n_placed = 0;    // replacements in their slots
    uint64_t n_tokens = 0;  // of all its replacements
    uint64_t end_slot = 0;  // one more than the largest slot
  };
  // Of refreshes whose tokens are in their slots. bytes: as they crossed the link.
  struct Stats {
    uint64_t tokens = 0, bytes = 0, requests = 0;
    uint64_t transfer_us = 0;  // time on the link; without an I/O thread, the time of apply()'s moves
    uint64_t stall_us = 0;     // time that apply() waited
  };

  // io              null: the backend reads the reservoir in place, and staging_tokens is 0
  // ahead           without io: moves run ahead of the layers that they are for
  // format          of the reservoir
  // max_pending     most replacements at once; a store's n_slots() is always enough
  // staging_tokens  of the ring, taken from the arena: at least 2, and twice the longest replacement
  // low_rank        if given, refills fetch V alone and low_rank rebuilds K. Then only tokens that have rows can be fetched
  // io, arena and low_rank outlive the object.
  static Result<std::unique_ptr<Refills>> make(IoThread* io, Backend* backend, Arena* arena, const KvFormat& format, uint64_t max_pending,
                                               uint64_t staging_tokens, LowRank* low_rank = nullptr, bool ahead = false);
  static uint64_t staging_bytes(const KvFormat& format, uint64_t staging_tokens, bool values_alone = false);
  static Region layout(const KvFormat& format, uint64_t max_pending, uint64_t staging_tokens, bool values_alone);
  ~Refills() { drop(); }
  Refills(const Refills&) = delete;
  Refills& operator=(const Refills&) = delete;

  // Schedules a refresh: from step visible_at on, the slots of `what` hold the KV of its positions. List misses only: every entry is
  // fetched. The caller counts steps. The table outlives the refresh.
  // invalid_argument: the head does not exist or has a pending refresh; the table does not cover a position; a replacement leaves its page
  // or is longer than half the ring; more than max_pending replacements.
  Status add(Backend* backend, const PageTable& reservoir, uint32_t head, Span<const Replacement> what, uint64_t visible_at);

  // Writes to the store all refreshes of layers up to last_layer that are visible at `step` or before. Without an I/O thread it writes
  // those of later layers as well. The session calls it at every step: it also starts transfers that found no room before. Errors: that of
  // the transfer; Code::io if the transfer never ends; Code::cancelled if the wait is cancelled; invalid_argument for a slot that the head
  // does not have. After an error nothing is pending, and slots not yet written keep their tokens.
  Status apply(Backend* backend, HeadStore* store, uint64_t step, uint32_t last_layer = UINT32_MAX, const Cancel& cancel = {}) {
    return apply_below(backend, store, step, uint64_t{last_layer} + 1, cancel);
  }
  bool moves_ahead() const { return ahead_; }
  // With moves_ahead(): begins the moves of all refreshes that are visible at `step`. apply() joins them, layer by layer.
  Status begin(Backend* backend, HeadStore* store, uint64_t step) { return apply_below(backend, store, step, 0, {}); }
  // Whether moves have begun that no apply() has joined.
  bool moving() const;
  // Whether apply(step) would wait for a transfer if it were called now.
  bool late(uint64_t step) const;

  // Counts tokens of one head that the device has fetched by itself (FetchOperations).
  void count_fetched(uint64_t n_tokens) { tokens_ += n_tokens, ++requests_; }

  // Stops all transfers before it returns. Refreshes stay pending; their transfers start again at the next add() or apply().
  void recall() { recall_from(0); }
  // Forgets all pending refreshes, and stops their transfers before it returns, even a transfer that never ends.
  void drop();

  // In the order of visible_at. A fork adds the same refreshes.
  Span<const Pending> pending() const { return pending_; }
  Span<const Replacement> what(const Pending& pending) const { return {what_.data() + pending.first, pending.count}; }
  Stats stats() const;
  uint64_t used_bytes() const { return 0; }  // not KV, nor its summary
  void truncate(uint32_t) { drop(); }        // a pending refresh may name a removed position
  // Adds the pending refreshes of `other`. `reservoir` shares the pages of its reservoir.
  Status copy_from(Backend* backend, const Refills& other, const PageTable& reservoir);
  // The pending refreshes, as `list` has them afterwards. Of these each has its positions below n_tokens, and its slots hold tokens.
  // reservoir: null while `s` is checked.
  Status state(Backend* backend, StateBytes* s, uint32_t n_tokens, const SlotTable& slots, const PageTable* reservoir,
               std::vector<SavedRefill>* list);

 private:
  // A part of a refresh that is in the ring or on its way there.
  struct Chunk {
    uint64_t at = 0, n = 0;  // its tokens in the ring
    size_t n_what = 0;       // its replacements
    IoRequest request;
  };
  Refills(IoThread* io, const KvFormat& format, ArenaRegion staging, uint64_t max_pending, uint64_t staging_tokens, LowRank* low_rank,
          bool ahead);
  const Chunk& chunk(size_t i) const { return chunks_[(first_chunk_ + i) % chunks_.size()]; }
  Chunk& chunk(size_t i) { return chunks_[(first_chunk_ + i) % chunks_.size()]; }
  bool find_room(uint64_t n, uint64_t* at);
  Status start(Backend* backend);
  void recall_from(size_t refresh);
  void place(Backend* backend, HeadStore* store, uint32_t head, Span<const Replacement> what, Ptr<const std::byte> from);
  Status place_next(Backend* backend, HeadStore* store, Pending* refresh, const Cancel& cancel);
  Status apply_below(Backend* backend, HeadStore* store, uint64_t step, uint64_t n_layers, const Cancel& cancel);
  uint64_t layer_of(const Pending& p) const { return p.head / static_cast<uint32_t>(format_.n_kv_heads); }
  Status place_due(Backend* backend, HeadStore* store, size_t n_due, uint64_t n_layers, const Cancel& cancel);
  void move_due(Backend* backend, HeadStore* store, size_t n_due, uint64_t n_layers);
  void rebuild_due(Backend* backend, HeadStore* store, const Pending& refresh);
  void rebuild(Backend* backend, const HeadStore& store, uint32_t head, RebuiltRun run);
  void rebuild_noted(Backend* backend);

  IoThread* io_;  // or null
  KvFormat format_;
  LowRank* low_rank_;  // or null
  bool ahead_;
  std::vector<uint64_t> calls_;  // (n_layers), of moves ahead: the layer's last call of move_kv_ahead() that is not joined; 0: none
  uint64_t fetched_bytes_;       // bytes of a token on the link
  ArenaRegion staging_;
  uint64_t max_pending_, staging_tokens_;
  // Both in the order of visible_at, then of layers, then of add(). The first refreshes are in the ring; the next ones wait for room.
  std::vector<Pending> pending_;      // (at most one per head)
  std::vector<Replacement> what_;     // (at most max_pending)
  std::vector<uint8_t> has_pending_;  // (n_heads)
  // The ring: chunks in the order of pending_. A chunk is contiguous; it lies behind the previous one or at the ring's beginning.
  std::vector<Chunk> chunks_;  // (n_chunks_ of chunks_.size()), from first_chunk_
  size_t first_chunk_ = 0, n_chunks_ = 0;
  std::vector<HostPiece> pieces_;              // (staging_tokens): a chunk's pieces begin at its first token's index
  std::vector<HeadStore::Refresh> refreshes_;  // without an I/O thread: the visible refreshes of an apply()
  std::vector<RebuiltRun> runs_;               // noted runs of one layer whose K low_rank_ rebuilds together
  uint32_t runs_layer_ = 0;
  KvType runs_type_ = KvType::f32;  // of the slots
  bool placing_ = false;            // whether the device may still read the ring
  uint64_t tokens_ = 0, requests_ = 0, transfer_ns_ = 0, stall_ns_ = 0;
};

}  // namespace orrery::kv
