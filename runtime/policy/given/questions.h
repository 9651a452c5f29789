// What a policy may ask of a session, between steps or within before_attend(): which keys or pages queries attend to most, how much, and
// changes of the tokens in a head's slots. The engine (resident.h) answers with the backend's operations; tests answer with made-up
// attention.
//
// A head is a number: layer * n_kv_heads + KV head.
#pragma once

#include <atomic>
#include <cstdint>
#include <new>
#include <vector>

#include "runtime/base/span.h"
#include "runtime/base/status.h"
#include "runtime/kv/resident/replacement.h"
#include "runtime/policy/score/moments.h"
#include "runtime/policy/score/score.h"

namespace orrery::policy {

using kv::Replacement;

// Which k of a head's keys at positions 0 .. n_keys - 1 do the queries of some positions attend to most?
struct KeyQuery {
  uint32_t head = 0;
  uint32_t first_position = 0, n_positions = 0;  // of the queries
  uint32_t n_keys = 0, k = 0;                    // k <= n_keys
  bool by_score = false;                         // out is in score order, best first; else ascending
  uint32_t* out = nullptr;                       // (n_positions, k)
  // Instead of `out`, for a single position: how many of the keys `among`, which ascend, are among the best k.
  Span<const uint32_t> among = {};
  uint32_t* n_common = nullptr;
};

// How much do the queries of some positions attend to a head's keys at positions 0 .. n_keys - 1? Softmax weights of every query head, over
// the keys that the query sees: up to its own position.
struct WeightsQuery {
  uint32_t head = 0;
  uint32_t first_position = 0, n_positions = 0;  // at least one
  uint32_t n_keys = 0;
  bool mean = false;     // out is the mean over all positions and query heads
  float* out = nullptr;  // (n_positions, query heads of the KV head, n_keys); mean: (n_keys)
};

// Moments of the softmax weights, for each query head: a key's mean over the positions plus gamma times the unbiased variance, which is 0
// for a single position. And the head's dispersion.
struct MomentsQuery {
  uint32_t head = 0;
  uint32_t first_position = 0, n_positions = 0;  // at least one
  uint32_t n_keys = 0;                           // keys of the softmax
  uint32_t n_scored = 0;                         // the first keys, that get scores
  double gamma = 0;
  float* out = nullptr;  // (query heads of the KV head, n_scored)
  Dispersion* dispersion = nullptr;
};

// The digest of a page's keys (KvSummaries::digest), by which queries find pages.
enum class PageDigest : uint8_t {
  range,      // the largest and the smallest value of each dimension
  deviation,  // the middle of the range and the mean deviation from it
  mean,       // the mean key
  // Pages are single tokens, in all heads of a layer: the key's low-rank coefficients, `rank` of them (Heads::make_low_rank) ...
  low_rank,  // ... along the directions in which the head's keys differ most
  skewed,    // ... along the last queries' directions with the largest products of queries and keys
  codes,     // pages are single tokens: `bits` bits for each dimension of the key (Heads::make_codes)
};
inline bool is_low_rank(PageDigest kind) { return kind == PageDigest::low_rank || kind == PageDigest::skewed; }

struct PageDigests {
  uint32_t page_tokens = 0;  // a divisor of the reservoir's page size; 0: no digests
  PageDigest kind = PageDigest::range;
  std::vector<uint32_t> heads;  // the heads that have digests, ascending
  uint32_t rank = 0;            // of the layers' low-rank keys, which find tokens or rebuild fetched keys; 0: no low-rank keys
  uint32_t bits = 0;            // of key codes
  bool values = false;          // heads with key codes have a mean value
  uint32_t value_bits = 0;      // of a dimension of a value's code; 0: no codes of values
};

// Which k of a head's pages, first_page .. first_page + n_pages - 1, may a position's query attend to most, by their digests?
struct PageQuery {
  uint32_t head = 0, position = 0;
  uint32_t first_page = 0, n_pages = 0, k = 0;  // k <= n_pages
  uint32_t* out = nullptr;                      // (k) pages, ascending
  Span<const uint32_t> excluded = {};           // of fetch_pages(): pages that are not selected, counted from first_page; k others remain
  uint32_t n_others = 0;           // of fetch_pages() with lowest_first, and fetch_near_best(): pages that the head holds beside the k
  Span<const uint32_t> held = {};  // of top_pages(), with codes: pages whose scores count `stay` times
  float stay = 1;
  // Of top_pages(), with codes: pages with a smaller weight than `least` are left out, and *n_found is the number that is left, at least 1.
  float least = 0;
  uint32_t* n_found = nullptr;
};

// How much does a position's query attend to a head's pages 0 .. n_pages - 1, by their codes? Softmax weights over these pages.
struct PageWeightsQuery {
  uint32_t head = 0, position = 0;
  uint32_t n_pages = 0;
  float* out = nullptr;  // (n_pages): the mean over the query heads of the KV head
};

// Where a head's pages lie: its slots from first_slot on hold the first n_first pages, k pages that a query has selected, and the n_last
// pages behind that query's candidates, in any order.
struct PagePlaces {
  uint32_t first_slot = 0, n_first = 0, n_last = 0;
  // All queries, of one layer and the same pages, have one set of scores: the mean of scores() over all their query heads.
  bool one_set = false;
  // With one_set: misses take the places of the unwanted pages by their scores, the lowest first; of equal scores the later page.
  bool lowest_first = false;
};

// The k best keys of `leader`, as KeyQuery, for a position's query of the leader. They are the tokens of `head`, a head of the same layer.
struct FollowerQuery {
  uint32_t head = 0, leader = 0, position = 0;
  uint32_t n_keys = 0, k = 0;  // k <= n_keys
};

// Products of a position's query heads with a head's keys first .. first + n - 1, divided by sqrt(head_dim) if scaled; or with the digests
// of its pages. NaN becomes -infinity.
struct ScoresQuery {
  uint32_t head = 0, position = 0;
  uint32_t first = 0, n = 0;  // keys: first is 0
  bool pages = false, scaled = true;
  float* out = nullptr;  // (query heads of the KV head, n)
};

// A session's heads, as its policy sees them.
class Heads {
 public:
  virtual ~Heads() = default;
  virtual uint32_t group() const = 0;  // query heads of a KV head
  // Positions whose queries are known, counting back from the last computed position: at least 1.
  virtual uint32_t n_queries() const = 0;
  // In settle(), or in its first part: whether the session continues the last settlement, because a tail is full. Then steps have generated
  // all later tokens, and no earlier token has changed.
  virtual bool settles_again() const = 0;

  // ---- Keys: in settle() of any head; later only of heads that hold all of the keys, in order. top_keys() and scores() also within
  // before_attend(), of one layer and by its queries of this step ----
  virtual Status top_keys(Span<const KeyQuery> queries, const ScoreRule& rule) = 0;  // rule.pool_first must be set
  virtual Status key_weights(Span<const WeightsQuery> queries) = 0;
  // By key_weights(), unless the backend computes moments itself. `rows` is working memory; the caller may keep it for the next call.
  virtual Status key_moments(Span<const MomentsQuery> queries, std::vector<float>* rows);
  // Of keys, or of pages as top_pages(). All queries of a call are of keys or of pages, scaled or not; of one layer where keys are
  // low-rank.
  virtual Status scores(Span<const ScoresQuery> queries) = 0;

  // ---- Pages: of heads with digests (Policy::digests), whole pages; tokens that have coefficients or codes where pages are tokens ----
  // The softmax runs over the pages of the query. Queries come layer by layer.
  virtual Status top_pages(Span<const PageQuery> queries, const ScoreRule& rule) = 0;
  // Of heads with key codes.
  virtual Status page_weights(Span<const PageWeightsQuery> queries) = 0;
  // Digests of kind mean: for each whole page the smallest cosine of a key with the mean key.
  virtual Span<const float> page_cosines(uint32_t head) const = 0;
  // Whether top_pages() passes over the page: its weight is 0, so it is selected only where too few other pages have a weight. settle()
  // begins with all pages visible.
  virtual void hide_page(uint32_t head, uint32_t page, bool hidden) = 0;
  // Whether fetch_pages() works.
  virtual bool fetches_pages() const { return false; }
  // Within before_attend(), for heads of its layer: top_pages(), and a refill of the misses in this step, by the device alone. `out` is not
  // written. positions() does not show the new pages. Misses, ascending, take the places of unwanted pages, ascending.
  virtual Status fetch_pages(Span<const PageQuery> queries, const ScoreRule& rule, const PagePlaces& places) {
    (void)queries, (void)rule, (void)places;
    return ok_status();
  }
  // Within before_attend(), for all heads of its layer: fetch_pages() for the heads whose query has changed, that is whose cosine with the
  // last step's query is less than tau (query_similarity()). The other heads hold the same query's pages from the next step on. next:
  // empty, unless the step completes a page. Then the queries of the next step, with one more page. They count where no query of the layer
  // has changed. In after_step() next_place() names the place that the completed page takes.
  virtual Status fetch_changed(Span<const PageQuery> queries, Span<const PageQuery> next, const ScoreRule& rule, const PagePlaces& places,
                               double tau) {
    (void)queries, (void)next, (void)rule, (void)places, (void)tau;
    return ok_status();
  }
  // Within before_attend(), a layer ahead, for all heads of that layer, whose pages are tokens: a refill in this step by the device alone,
  // in parallel with the layer before. A token's score is its smallest distance, over the head's query heads, from a query head's best
  // scores(). Each head wants as many of its best tokens as scores() lie less than alpha below their query head's best, in the mean over
  // the layer's query heads; at most k. Misses, ascending, take the places, ascending, of the unwanted tokens with the lowest scores; of
  // equal scores the later token leaves. The head holds n_others more tokens.
  virtual Status fetch_near_best(Span<const PageQuery> queries, const PagePlaces& places, float alpha) {
    (void)queries, (void)places, (void)alpha;
    return ok_status();
  }
  // Within before_attend(), for followers of its layer, leader by leader. A follower's first k slots hold tokens that a query of its leader
  // has selected. Where the follower's own query has changed (query_similarity() is less than tau), this step's tokens arrive within the
  // step. Other followers hold them from the next step on. Misses, ascending, take the places of unwanted tokens, ascending.
  virtual Status fetch_followers(Span<const FollowerQuery> queries, const ScoreRule& rule, double tau) {
    (void)queries, (void)rule, (void)tau;
    return ok_status();
  }
  // The tokens that heads have wanted in fetch_near_best() since the last call.
  virtual uint64_t take_wanted_tokens() { return 0; }
  // In how many steps since the last call fetch_changed() or fetch_followers() has found the head's query changed.
  virtual uint32_t take_changes(uint32_t head) {
    (void)head;
    return 0;
  }
  // In after_step(): the tokens that the device has fetched by itself since the last call.
  virtual uint64_t take_fetched_tokens() { return 0; }
  // In after_step(), of the step's fetch_changed(), or of fetch_pages() with lowest_first: the place of the unwanted page that the next
  // miss would replace. kNoPlace: none is left with a score below infinity.
  static constexpr uint32_t kNoPlace = UINT32_MAX;
  virtual uint32_t next_place(uint32_t head) const {
    (void)head;
    return kNoPlace;
  }
  // Makes low-rank keys of the first n_tokens. with_basis (in settle() only): with a new basis of these keys; else by the existing basis.
  virtual Status make_low_rank(uint32_t n_tokens, bool with_basis) = 0;
  // In settle(), behind make_codes(): the mean values of the heads with codes. shares (heads, n_tokens); a head's add up to 1.
  virtual Status set_mean_values(Span<const float> shares) = 0;
  // Makes key codes of the first n_tokens. In settle(): with a new mean key of each head. Else: of tokens that have none, by the same
  // means.
  virtual Status make_codes(uint32_t n_tokens) = 0;

  // ---- Attention so far (Policy::sums_attention; heads of layers without window) ----
  // (n_context) by position: the sum over all queries of the group's mean weight of the key. Prompt queries attend to everything; a
  // generated token's query to the resident tokens of its step. The step's weights are added before after_step().
  virtual Span<const float> attention_sums(uint32_t head) const = 0;

  // ---- Slots ----
  // The position that each slot of the head holds. Of slots that the device fills by itself (fetch_pages() and the calls below it): the one
  // that select(), refill() or move_last() has put there last. So a page that came in one of these ways is found while the head holds it.
  virtual Span<const uint32_t> positions(uint32_t head) const = 0;
  // Schedules a refill: from step `visible_at` on, the slots hold the given tokens; until then their old ones. List misses only: every
  // entry is fetched. A head has at most one pending refill.
  virtual Status refill(uint32_t head, Span<const Replacement> what, uint64_t visible_at) = 0;
  // Within before_attend(), with Policy::slots_in_place(), for heads with codes: the head's slots are the first n_first tokens, `found`,
  // and the n_last tokens before `end`. The step's token takes the slot behind them.
  virtual void hold(uint32_t head, uint32_t n_first, Span<const uint32_t> found, uint32_t n_last, uint32_t end) {
    (void)head, (void)n_first, (void)found, (void)n_last, (void)end;
  }
  // At once: the head's last n tokens move to the n slots from `slot` on, and the head is n shorter.
  virtual void move_last(uint32_t head, uint32_t n, uint32_t slot) = 0;
  // Within before_attend(): for each KV head the mean over the group of the cosine of this step's query and the last step's, (n_kv_heads).
  virtual Status query_similarity(Span<float> out) = 0;

  // fn(i) for each i < n, in any order, on all threads. fn writes only what belongs to i, and calls only positions() of this class.
  template <class F>
  void each(size_t n, const F& fn) {
    run(
        n, [](const void* f, int64_t i) { (*static_cast<const F*>(f))(static_cast<size_t>(i)); }, &fn);
  }
  // each() for a fn that returns a Status or may throw bad_alloc. Returns the error of the lowest i that has one.
  template <class F>
  Status try_each(size_t n, const F& fn) {
    std::vector<Status> status(n);
    std::atomic<bool> no_memory{false};
    each(n, [&](size_t i) {
      try {
        status[i] = fn(i);
      } catch (const std::bad_alloc&) {  // no one catches it on another thread
        no_memory = true;
      }
    });
    if (no_memory) throw std::bad_alloc();
    for (Status& s : status) ORRERY_TRY(std::move(s));
    return ok_status();
  }

 protected:
  virtual void run(size_t n, void (*call)(const void* fn, int64_t i), const void* fn) {
    for (size_t i = 0; i < n; ++i) call(fn, static_cast<int64_t>(i));
  }
};

}  // namespace orrery::policy
