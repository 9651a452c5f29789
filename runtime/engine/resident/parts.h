// What a compressed session keeps on the device, and beside it: the parts. Each is there or null, as its policy needs. A part has the same
// small interface, whatever it holds:
//
//   layout(...)                      its Region: name, bytes on the device and on the host (kv/memory/layout.h)
//   make(arena, ...)                 takes that region
//   truncate(n_tokens)               tokens from n_tokens on are gone, or will be others
//   copy_from(backend, other)        holds what `other`, of the same shape, holds
//   used_bytes()                     statistics: device bytes of KV and its summaries in use (the layout says how many are taken)
//
// A method that needs a new part adds a class with these, a member here, and a line each in each_member(), layout() and make().
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
#include "runtime/kv/resident/low_rank.h"
#include "runtime/kv/transfers/refills.h"

namespace orrery::engine {

struct Parts {
  static kv::Layout layout(const ResidentShape& shape);
  // Takes the layout's regions of the arena, and turns. The frequencies of `rope` outlive the parts.
  static Result<Parts> make(const ResidentShape& shape, Runtime* runtime, const RopeSpec& rope);

  // Tokens from n_tokens on are gone. Pending refills are forgotten.
  void truncate(uint32_t n_tokens);
  // Holds what `other` holds, of a session that has just shared its pages with `reservoir`. settled: what `other` has chosen counts; else
  // only its queries do.
  Status copy_from(Backend* backend, const Parts& other, const kv::PageTable& reservoir, bool settled);
  uint64_t used_bytes(bool settled) const;

  QueryRing query_ring() const { return queries ? queries->ring() : QueryRing(); }

  std::unique_ptr<kv::HeadStore> slots;                             // never null: the resident KV
  std::unique_ptr<kv::Digests> digests;
  std::unique_ptr<kv::LowRank> low_rank;
  std::unique_ptr<kv::CompensationTokens> compensation_tokens;
  std::unique_ptr<kv::Refills> refills;                             // after what they write to: they go first
  std::unique_ptr<RecentQueries> queries;
  std::unique_ptr<ScoredHeads> scored_heads;
  std::unique_ptr<AttentionSums> sums;

 private:
  // f(pointer to member) for every part.
  template <class F>
  static void each_member(const F& f) {
    f(&Parts::slots), f(&Parts::digests), f(&Parts::low_rank), f(&Parts::compensation_tokens), f(&Parts::refills), f(&Parts::queries);
    f(&Parts::scored_heads), f(&Parts::sums);
  }
};

}  // namespace orrery::engine
