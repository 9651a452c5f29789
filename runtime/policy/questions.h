// What a policy may ask of a session's heads.
#pragma once

#include <atomic>
#include <cstdint>
#include <new>
#include <vector>

#include "runtime/base/span.h"
#include "runtime/base/status.h"
#include "runtime/kv/replacement.h"
#include "runtime/policy/score/moments.h"
#include "runtime/policy/score/score.h"

namespace orrery::policy {

using kv::Replacement;

// Asks which `k` of a head's keys at positions 0 .. n_keys-1 the queries of some positions attend to most.
struct KeyQuery {
  uint32_t head = 0;            // layer * n_kv_heads + KV head
  uint32_t first_position = 0, n_positions = 0;
  uint32_t n_keys = 0, k = 0;   // k <= n_keys
  bool by_score = false;        // in score order, else ascending
  uint32_t* out = nullptr;      // (n_positions, k)
  // In place of `out`, of a single position: how many of these keys, which ascend, are among the k.
  Span<const uint32_t> among = {};
  uint32_t* n_common = nullptr;
};

// Asks how much the queries of some positions attend to a head's keys at positions 0 .. n_keys-1: softmax weights of every query
// head over those of them that it sees, its own position's the last.
struct WeightsQuery {
  uint32_t head = 0;
  uint32_t first_position = 0, n_positions = 0;   // at least one
  uint32_t n_keys = 0;
  bool mean = false;            // of all positions and query heads
  float* out = nullptr;         // (n_positions, query heads of the KV head, n_keys); mean: (n_keys)
};

// Asks for what the rows of such weights come to, query head by query head: each key's mean over the positions plus gamma times the unbiased
// variance (of a single one: 0); and what they come to together.
struct MomentsQuery {
  uint32_t head = 0;
  uint32_t first_position = 0, n_positions = 0;   // at least one
  uint32_t n_keys = 0, n_scored = 0;            // of these the first so many
  double gamma = 0;
  float* out = nullptr;         // (query heads of the KV head, n_scored)
  Dispersion* dispersion = nullptr;
};

// Heads whose pages are to have digests (Backend::digest), and of how many tokens a page is.
enum class PageDigest : uint8_t {
  range, deviation, mean,   // largest and smallest value; the middle and the mean deviation; the mean
  low_rank,                 // of pages of one token, in layers that have them in all heads: what its key comes to along the directions in
                            // which its head's keys differ most, so many as `rank` (Heads::make_low_rank)
  skewed,                   // likewise, along those of the last queries' directions along which queries and keys come to most
};
inline bool is_low_rank(PageDigest kind) { return kind == PageDigest::low_rank || kind == PageDigest::skewed; }
struct PageDigests {
  uint32_t page_tokens = 0;     // a divisor of the reservoir's pages; 0: there are none
  PageDigest kind = PageDigest::range;
  std::vector<uint32_t> heads;  // ascending
  uint32_t rank = 0;            // of low-rank keys that their layers have, by which what is fetched is rebuilt, or found; 0: they have none
};

// Asks which `k` of a head's pages, first_page .. first_page + n_pages - 1, a position's query may attend to most, by their digests.
struct PageQuery {
  uint32_t head = 0, position = 0;
  uint32_t first_page = 0, n_pages = 0, k = 0;   // k <= n_pages
  uint32_t* out = nullptr;      // (k) pages, ascending
};

// Asks for the products of a position's query heads with a head's keys, first .. first + n - 1, over sqrt(head_dim) where they are
// scaled; or with what its digests make of its pages. What is no number is -infinity.
struct ScoresQuery {
  uint32_t head = 0, position = 0;
  uint32_t first = 0, n = 0;    // keys: first is 0
  bool pages = false, scaled = true;
  float* out = nullptr;         // (query heads of the KV head, n)
};

// The heads of a session, as its policy sees them between steps.
class Heads {
 public:
  virtual ~Heads() = default;
  // Positions, counting back from the last computed one, whose queries are known: at least 1.
  virtual uint32_t n_queries() const = 0;
  // After settle() only heads that hold all of the keys, in order, may be asked about. rule.pool_first is always so.
  virtual Status top_keys(Span<const KeyQuery> queries, const ScoreRule& rule) = 0;
  virtual Status key_weights(Span<const WeightsQuery> queries) = 0;
  // Of key_weights(), unless the backend has something quicker; `rows`: memory that it uses then, and may be kept for the next call.
  virtual Status key_moments(Span<const MomentsQuery> queries, std::vector<float>* rows);
  // Of heads that have digests (Policy::digests), pages that are whole, and have rows where these are low-rank keys. The softmax is over
  // those that are asked about. Layer by layer.
  virtual Status top_pages(Span<const PageQuery> queries, const ScoreRule& rule) = 0;
  // Keys under the condition of top_keys(), pages under that of top_pages(); of one kind, scaled or not, and of one layer, in one call.
  virtual Status scores(Span<const ScoresQuery> queries) = 0;
  // Of pages that have means: the least cosine of a page's keys with them, (whole pages).
  virtual Span<const float> page_cosines(uint32_t head) const = 0;
  // Whether a page is passed over by top_pages(): it weighs nothing, and only comes where too few others weigh anything.
  // Settling anew shows all pages.
  virtual void hide_page(uint32_t head, uint32_t page, bool hidden) = 0;
  // Low-rank keys of the first n_tokens: with a basis of their own (in settle()), or by the one that there is.
  virtual Status make_low_rank(uint32_t n_tokens, bool with_basis) = 0;
  // What the queries of all positions so far have attended to each of the head's keys, (n_context) by position: the mean of the group, summed.
  // A prompt's queries to everything, a generated token's to what was there, in its step; it has been added when after_step() is called.
  // Of policies that want them (Policy::sums_attention), and heads of layers without window.
  virtual Span<const float> attention_sums(uint32_t head) const = 0;
  virtual uint32_t group() const = 0;   // query heads of a KV head
  // The position that each slot of a head holds.
  virtual Span<const uint32_t> positions(uint32_t head) const = 0;
  // Slots of a head that are to hold other tokens from step `visible_at` on; until then they are as they were. One
  // at a time for each head.
  virtual Status refill(uint32_t head, Span<const Replacement> what, uint64_t visible_at) = 0;
  // Within before_attend(): how alike each KV head's queries of that step and of the one before are, the mean of the group's cosines,
  // (n_kv_heads).
  virtual Status query_similarity(Span<float> out) = 0;
  // At once: the head's last n tokens take the place of those from `slot` on, and the head is so much shorter.
  virtual void move_last(uint32_t head, uint32_t n, uint32_t slot) = 0;
  // fn(i) for each i < n, in any order, on whatever threads there are: it writes what is i's own, and calls nothing here but positions().
  template <class F>
  void each(size_t n, const F& fn) {
    run(n, [](const void* f, int64_t i) { (*static_cast<const F*>(f))(static_cast<size_t>(i)); }, &fn);
  }
  // The same of what may fail, or find no memory: the error of the first that has one.
  template <class F>
  Status try_each(size_t n, const F& fn) {
    std::vector<Status> status(n);
    std::atomic<bool> no_memory{false};
    each(n, [&](size_t i) {
      try {
        status[i] = fn(i);
      } catch (const std::bad_alloc&) {   // which nobody would catch on another thread
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
