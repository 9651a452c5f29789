// What must change in a session's resident KV, and when: tokens that are fetched from the reservoir into slots of
// the head store, while the session decodes.
//
// A refresh is asked for at one step and visible at a later one that the caller fixes, never "when it happened to
// arrive": until then the old tokens are attended to; then apply() waits for what is late (a stall, counted) and
// writes the slots.  So the store, and every token after it, are the same whatever the timing.  A step's layers can wait each
// for its own: what the later ones are to have crosses the link while the first ones are computed.
//
// The data's way: add() takes the list; its tokens go over the I/O thread, in chunks of at most half the staging
// ring, as room appears; apply() writes what is in the ring to the slots, in the order in which refreshes become
// visible, layer by layer, and lets the next chunks in.  Link and ring carry the reservoir's own bytes; where the store's KV type is
// another, apply() converts.  Without an I/O thread there is no ring either: the reservoir is memory that the backend reads where it
// lies, and apply() moves everything that has become visible at once, on all of the backend's threads.
// Nothing allocates after make(), except an error's text.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/backend/backend.h"
#include "runtime/base/cancel.h"
#include "runtime/base/span.h"
#include "runtime/base/status.h"
#include "runtime/kv/memory/arena.h"
#include "runtime/kv/resident/head_store.h"
#include "runtime/kv/transfers/io_thread.h"
#include "runtime/kv/resident/low_rank.h"
#include "runtime/kv/memory/page_table.h"

namespace orrery::kv {

// One thread at a time; add() and apply() take the backend, and so the turn on it. The reservoir's pages keep what they hold
// while tokens of them are under way: recall() before one of them may be given up (a shared page before it is
// written, say), drop() before positions go.
class Refills {
 public:
  struct Pending {
    uint32_t head = 0;
    uint64_t visible_at = 0;       // step
    size_t first = 0, count = 0;   // its replacements, in what()
    const PageTable* reservoir = nullptr;
    size_t n_started = 0;          // of count: given to the I/O thread
    size_t n_placed = 0;           // of count: in their slots
    uint64_t n_tokens = 0, end_slot = 0;   // all of them, and behind the last slot
  };
  // Of what was written to slots; bytes as they came over the link.
  struct Stats {
    uint64_t tokens = 0, bytes = 0, requests = 0;
    uint64_t transfer_us = 0;      // on the link; or that apply() took to move it
    uint64_t stall_us = 0;         // that apply() waited
    double hidden() const;         // 1 - stall / transfer; 1 where nothing was transferred
  };

  // For at most max_pending replacements at once (a store's n_slots() is always enough), in the reservoir's format,
  // through a ring of staging_tokens (at least 2, and twice the longest replacement) taken from the arena. I/O thread (null: the
  // reservoir is the device's memory, and staging_tokens are 0) and arena outlive it.
  // Where low_rank is given, V alone is fetched, and K rebuilt by it, which outlives it too; then only tokens that have rows.
  static Result<std::unique_ptr<Refills>> make(IoThread* io, Backend* backend, Arena* arena, const KvFormat& format,
                                               uint64_t max_pending, uint64_t staging_tokens, LowRank* low_rank = nullptr);
  static uint64_t staging_bytes(const KvFormat& format, uint64_t staging_tokens, bool values_alone = false);
  static Region layout(const KvFormat& format, uint64_t max_pending, uint64_t staging_tokens, bool values_alone);
  ~Refills() { drop(); }
  Refills(const Refills&) = delete;
  Refills& operator=(const Refills&) = delete;

  // From step `visible_at` on, the head holds these tokens of the reservoir, in these slots (misses only: everything
  // listed is fetched). Steps are the caller's count. The table outlives the refresh. invalid_argument: a head that
  // does not exist or has a refresh pending, a position that the table does not cover, a run that leaves
  // its page or is longer than half the ring, more than max_pending.
  Status add(Backend* backend, const PageTable& reservoir, uint32_t head, Span<const Replacement> what, uint64_t visible_at);

  // Everything visible at or before `step`, of layers up to last_layer, stands in the store when this returns; called at every step, it
  // also starts what found no room before. Without an I/O thread later layers' part moves as well. After an error (the transfer's, or Code::io where it never ends;
  // Code::cancelled where somebody cancels the wait; invalid_argument for a slot that the head does not have) nothing is pending, and slots
  // not yet written hold what they held.
  Status apply(Backend* backend, HeadStore* store, uint64_t step, uint32_t last_layer = UINT32_MAX, const Cancel& cancel = {});
  // Whether apply(step) would wait for a transfer, as far as can be told now.
  bool late(uint64_t step) const;

  // Nothing is under way when this returns; everything stays pending, and starts again at the next add() or apply().
  void recall() { recall_from(0); }
  // Forgets everything pending; nothing is under way when this returns. At any moment, also with requests that never
  // end.
  void drop();

  // In the order in which they become visible, so that a fork can ask for the same.
  Span<const Pending> pending() const { return pending_; }
  Span<const Replacement> what(const Pending& pending) const { return {what_.data() + pending.first, pending.count}; }
  Stats stats() const;
  uint64_t used_bytes() const { return 0; }   // not KV, nor its summary
  void truncate(uint32_t) { drop(); }         // positions go
  // Adds what is pending in `other`, from a reservoir that shares its pages.
  Status copy_from(Backend* backend, const Refills& other, const PageTable& reservoir);

 private:
  // A part of a refresh that is in the ring, or on its way there.
  struct Chunk {
    uint64_t at = 0, n = 0;        // tokens of the ring
    size_t n_what = 0;             // replacements
    IoRequest request;
  };
  Refills(IoThread* io, const KvFormat& format, ArenaRegion staging, uint64_t max_pending,
          uint64_t staging_tokens, LowRank* low_rank);
  const Chunk& chunk(size_t i) const { return chunks_[(first_chunk_ + i) % chunks_.size()]; }
  Chunk& chunk(size_t i) { return chunks_[(first_chunk_ + i) % chunks_.size()]; }
  bool find_room(uint64_t n, uint64_t* at);
  Status start(Backend* backend);
  void recall_from(size_t refresh);
  void place(Backend* backend, HeadStore* store, uint32_t head, Span<const Replacement> what, Ptr<const std::byte> from);
  Status place_next(Backend* backend, HeadStore* store, Pending* refresh, const Cancel& cancel);
  Status place_due(Backend* backend, HeadStore* store, size_t n_due, const Cancel& cancel);
  void move_due(Backend* backend, HeadStore* store, size_t n_due);
  void rebuild_due(Backend* backend, HeadStore* store, const Pending& refresh);
  void rebuild(Backend* backend, const HeadStore& store, uint32_t head, RebuiltRun run);
  void rebuild_noted(Backend* backend);

  IoThread* io_;                         // or null
  KvFormat format_;
  LowRank* low_rank_;                    // or null
  uint64_t fetched_bytes_;               // of a token
  ArenaRegion staging_;
  uint64_t max_pending_, staging_tokens_;
  // Both in the order of visible_at, then of layers, then of add(): the first refreshes are in the ring, the next wait for room.
  std::vector<Pending> pending_;         // (at most one per head)
  std::vector<Replacement> what_;        // (at most max_pending)
  std::vector<uint8_t> has_pending_;     // (n_heads)
  // The ring: chunks in the order of pending_, each contiguous, behind the one before or from the beginning.
  std::vector<Chunk> chunks_;            // (n_chunks_ of chunks_.size()), from first_chunk_
  size_t first_chunk_ = 0, n_chunks_ = 0;
  std::vector<HostPiece> pieces_;        // (staging_tokens): each chunk's, at its place
  std::vector<HeadStore::Refresh> refreshes_;   // that are due, where they come from the reservoir itself
  std::vector<RebuiltRun> runs_;         // where K is rebuilt: of one layer, of as many heads as come together; room for a chunk's
  uint32_t runs_layer_ = 0;
  KvType runs_type_ = KvType::f32;       // of the slots
  bool placing_ = false;                 // copies out of the ring may be under way
  uint64_t tokens_ = 0, requests_ = 0, transfer_ns_ = 0, stall_ns_ = 0;
};

}  // namespace orrery::kv
