// The parts of a compressed session: all that it keeps on the device, with its tables on the host. A part that the policy does not need is
// null. Every part has the same small interface:
//
//   layout(...)                      its Region: name, bytes on the device and on the host (kv/memory/layout.h)
//   make(arena, ...)                 takes that region
//   truncate(n_tokens)               tokens from n_tokens on are removed
//   copy_from(backend, other)        copies the content of `other`, which has the same shape
//   state(backend, bytes, ...)       writes its content to a saved session, checks it there, or takes it (base/state_bytes.h)
//   used_bytes()                     statistics: device bytes of KV and its summaries in use (the layout says how many are taken)
//
// A new part: a class with this interface, a member here, and a line each in each_member(), layout() and make(). ../README.md walks the
// way.
#pragma once

#include <cstdint>
#include <memory>

#include "runtime/base/status.h"
#include "runtime/engine/resident/attention_sums.h"
#include "runtime/engine/resident/recent_queries.h"
#include "runtime/engine/resident/resident_shape.h"
#include "runtime/engine/resident/scored_heads.h"
#include "runtime/engine/shared/runtime.h"
#include "runtime/kv/memory/page_table.h"
#include "runtime/kv/resident/compensation_tokens.h"
#include "runtime/kv/resident/digests.h"
#include "runtime/kv/resident/head_store.h"
#include "runtime/kv/resident/key_codes.h"
#include "runtime/kv/resident/low_rank.h"
#include "runtime/kv/transfers/refills.h"

namespace orrery::engine {

struct Parts {
  static kv::Layout layout(const ResidentShape& shape);
  // Takes the layout's regions of the arena, and a turn. ropes: of the session; their frequencies outlive the parts.
  static Result<Parts> make(const ResidentShape& shape, Runtime* runtime, Span<const RopeSpec> ropes);

  // Removes tokens from n_tokens on, and all pending refills.
  void truncate(uint32_t n_tokens);
  // Copies the content of `other`, whose session has just shared its pages with `reservoir`. settled: whether other's session has settled;
  // if not, only queries and attention sums are copied.
  Status copy_from(Backend* backend, const Parts& other, const kv::PageTable& reservoir, bool settled);
  uint64_t used_bytes(bool settled) const;

  QueryRing query_ring() const { return queries ? queries->ring() : QueryRing(); }

  std::unique_ptr<kv::HeadStore> slots;  // never null: the resident KV
  std::unique_ptr<kv::Digests> digests;
  std::unique_ptr<kv::LowRank> low_rank;
  std::unique_ptr<kv::KeyCodes> codes;
  std::unique_ptr<kv::CompensationTokens> compensation_tokens;
  std::unique_ptr<kv::Refills> refills;  // after the parts that it writes to: destroyed before them
  std::unique_ptr<RecentQueries> queries;
  std::unique_ptr<ScoredHeads> scored_heads;
  std::unique_ptr<AttentionSums> sums;

 private:
  // Calls f(pointer to member) for every part.
  template <class F>
  static void each_member(const F& f) {
    f(&Parts::slots), f(&Parts::digests), f(&Parts::low_rank), f(&Parts::codes), f(&Parts::compensation_tokens), f(&Parts::refills);
    f(&Parts::queries), f(&Parts::scored_heads), f(&Parts::sums);
  }
};

}  // namespace orrery::engine
