// Selection on the device: a step's query finds the best keys of a KV head, and the device fetches the tokens that the head's slots lack.
// The device keeps the table of what the slots hold. Behind the step each job tells the host two numbers. The host reads a table where it
// needs it, and waits for nothing within the step.
#pragma once

#include <cstdint>

#include "runtime/backend/keys.h"
#include "runtime/backend/low_rank.h"

namespace orrery {

// What a job tells the host.
struct FetchTold {
  uint32_t n_missed = 0;  // pages that the slots lacked, also those that come for the next step
  uint32_t entry = 0;     // held[n_held()], if the call has this entry
};

// A KV head's slots hold pages of tokens, in any order. The head wants the first n_first pages, the k best of the job's keys (key i is the
// digest of page first_page + i), and the n_last pages behind the last key. These three ranges do not overlap. The slots hold as many
// pages, or n_others more. A wanted page that the slots hold stays where it is. The other wanted pages, ascending, take the slots of
// unwanted pages, ascending. With codes key i is the token at first_key + i, and `stay` counts for the pages that the slots hold.
struct FetchJob : TopKeysJob {  // of one position; without out, among, by_score, least and TopKeysJob::held
  int32_t first_page = 0, n_first = 0, n_last = 0;
  int32_t n_others = 0;                // only with FetchShape::lowest_first
  Span<const uint32_t> excluded = {};  // keys that are not among the best: at least k others remain
  Ptr<uint32_t> held;  // (n_held()) the page in each place, each page once; the job updates it. lowest_first: one more entry
  // Of fetch_changed() and the calls below it: (n_held()) working memory, until the next step. Behind fetch_changed() and fetch_followers()
  // it has the pages that the layer has attended to.
  Ptr<uint32_t> before;
  Ptr<FetchTold> told;   // on the device
  Ptr<std::byte> slots;  // the first place, page_tokens slots of FetchShape::slot_type
  uint64_t from = 0;     // of the head's first token in a page of the reservoir: KvFormat::head_offset()
  int32_t follower = 0;  // of fetch_followers(): the KV head that has `slots`; kv_head has the keys and the query
  int32_t n_wanted() const { return n_first + k + n_last; }
  int32_t n_held() const { return n_wanted() + n_others; }
};
struct FetchShape {
  KvFormat reservoir;
  KvType slot_type = KvType::f16;
  int32_t page_tokens = 1;  // a divisor of kPageTokens
  // All jobs have one set of scores: a key's score is the mean over the jobs and their query heads of KeysShape::products, in order. The
  // jobs have the same keys by number, and none is excluded. TopKeysShape::scoring is not read.
  bool one_set = false;
  // With one_set: misses take the places of the unwanted pages by their scores, the lowest first; of equal scores the later page. Unwanted
  // pages are pages of keys. held[n_held()] becomes the place that the next miss would take; kNoPlace if none is left with a score below
  // infinity.
  bool lowest_first = false;
  static constexpr uint32_t kNoPlace = UINT32_MAX;
  // If given, the low-rank keys of the jobs' layer: V alone is read, and K is rebuilt as LowRankOperations::rebuild_keys() does.
  const LowRankKeys* rebuilt = nullptr;
};

// A KV head's query has changed if its cosine with the last step's query, in the mean over the group, is less than tau. A cosine of zero
// vectors is 0. Sums are double: 32 of them, of every 32nd dimension each, are folded in halves.
struct QueryChange {
  Ptr<const float> before;  // (n_heads, head_dim) of the last step; KeysShape::queries has this step's
  double tau = 0;
  static constexpr uint32_t kChanged = 1u << 31;
};

class FetchOperations {
 public:
  // Within a decode step of one row, behind Backend::send(), for heads that this step has not attended to yet. The tokens come from the
  // pages of the step's sequence. Later operations of the step find them in the slots. Slots get the bits that KvMoves::move_kv() stores.
  // `told`: of the jobs of all calls in this step. It comes to the host with the step's results.
  virtual void fetch_best(Span<const FetchJob> jobs, const TopKeysShape& shape, const FetchShape& fetch, const Download& told) = 0;
  // fetch_best() for those jobs whose query has changed. The others get the pages that the same query selects in the next step: these
  // arrive in parallel with the layers behind, once the layer has attended, before synchronize() returns. held[n_held()] becomes
  // QueryChange::kChanged where the query has changed, else 0. jobs: all KV heads of a layer, each with `before`; n_others is 0.
  // next: empty, unless the step completes a page. Then the jobs of the next step: one more key, one page less behind the last key, and
  // one other page. They count where no query of the layer has changed; else the other heads select among the keys of `jobs`. The first
  // unwanted place stays as it is, for the completed page, and is added to held[n_held()].
  virtual void fetch_changed(Span<const FetchJob> jobs, Span<const FetchJob> next, const TopKeysShape& shape, const FetchShape& fetch,
                             const QueryChange& change, const Download& told) = 0;
  // fetch_changed() for heads that follow another head of their layer, leader by leader: a job's keys and query are the leader's, and its
  // slots the follower's. What counts as changed is the follower's own query. Each job has `before`; n_first, n_last and n_others are 0.
  virtual void fetch_followers(Span<const FetchJob> jobs, const TopKeysShape& shape, const FetchShape& fetch, const QueryChange& change,
                               const Download& told) = 0;
  // Keys near the best one. jobs: all KV heads of a layer, each with `before`, and n_others if the slots hold more than k keys. Pages are
  // keys. A key's score is its smallest distance, over the query heads, from a query head's best product. Each head wants as many of its best keys as
  // products lie less than alpha below their query head's best one, in the mean over the layer's query heads, at most k. held[n_held()]
  // becomes this number. Misses, ascending, take the places, ascending, of the unwanted keys with the lowest scores; of equal scores the
  // later key leaves. They arrive in parallel with the layers behind. Returns a number for KvMoves::join_moves(), before the layer attends.
  virtual uint64_t fetch_near_best(Span<const FetchJob> jobs, const TopKeysShape& shape, const FetchShape& fetch, float alpha,
                                   const Download& told) = 0;
  // Behind the step: returns when `told` has arrived. Zeros if the device is lost.
  virtual void download_told(const Download& told) = 0;

 protected:
  ~FetchOperations() = default;
};

}  // namespace orrery
