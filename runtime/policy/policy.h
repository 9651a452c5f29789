// What a KV policy decides: how many tokens each head keeps on the device, which ones, and what goes where as the answer
// grows.  A policy holds decisions, never memory: the engine carries them out on a kv::HeadStore.
//
// Its life: when a prompt is complete (or the resident part has been invalidated), settle() and then select() for every
// head. For every generated token slot_for() of every head, the step, and after_step(). When slot_for() says
// kSettleAgain, settle() over everything, and on.  Settling may take host memory; what happens for every token does not.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/backend.h"
#include "runtime/base/roomy.h"
#include "runtime/base/span.h"
#include "runtime/base/status.h"
#include "runtime/policy/drift.h"
#include "runtime/policy/profile.h"
#include "runtime/policy/score.h"
#include "runtime/policy/spread.h"

namespace orrery::policy {

// What a policy works on, fixed when the session opens.
struct Shape {
  uint32_t n_layers = 0, n_kv_heads = 0;
  uint32_t n_context = 0;
  Span<const int32_t> window;   // (n_layers) sliding window of the layer in tokens, 0: none
  uint64_t slot_bytes = 1, digest_bytes = 1;   // of a token of one head on the device, of a page's digest (a mean: half of it)
  uint32_t head_dim = 1;
  uint64_t mean_bytes = 1;      // of a head's mean of what it has let go (Policy::has_mean)
};

// A share of full KV's bytes, in which a token of one head takes kept_bytes, whatever it takes on the device: the same share is the
// same memory there for every type, and where slot_bytes are fewer it holds more of the tokens.
class Share {
 public:
  Share(double of_bytes = 1.0, uint64_t kept_bytes = 1, uint64_t slot_bytes = 1);   // of a number alone: tokens are as they are kept
  double of_bytes() const { return of_bytes_; }
  double of_tokens() const { return of_tokens_; }   // at most 1: there are no more
  // Of a head's n tokens. The share comes to whole tokens as they are kept, rounded up but for a rounding of the share itself (.55 as a
  // float is a little more, which must not cost a token); into their bytes fit so many whole ones of the device's.
  uint64_t tokens(uint32_t n) const;
  // The least share, in whole thousandths, that comes to so many of n: as it is printed it is enough.
  double least(uint64_t tokens, uint32_t n) const;

 private:
  double of_bytes_, of_tokens_;
  uint64_t kept_bytes_, slot_bytes_;
};

// How much may be resident, as a share of full KV or in slots (a slot: one token of one head, in the device's type).
struct Budget {
  Share share;                  // of the tokens present when settling, in each head of a layer without window
  uint64_t max_slots = 0;       // over all heads, whatever the share: what the plan has reserved
  uint64_t slot_bytes = 0;      // where it was given in bytes, for errors; 0: it is a share
};

inline constexpr uint32_t kSettleAgain = UINT32_MAX;

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
  uint32_t n_keys = 0, n_measured = 0;            // of these the first so many
  double gamma = 0;
  float* out = nullptr;         // (query heads of the KV head, n_measured)
  Dispersion* dispersion = nullptr;
};

// Heads whose pages are to have digests (KvSummaries::digest), and of how many tokens a page is.
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

// What the host memory of a policy depends on, beside its shape.
struct HostShape {
  uint32_t group = 1;           // query heads of a KV head
  uint32_t n_threads = 1;       // that Heads::each() works on
  bool makes_moments = false;   // Heads::key_moments() needs no rows of weights
};

// What a policy asks of the engine, whatever its options.
struct Needs {
  uint32_t query_rows = 0;      // queries of so many last positions are kept
  // Of what stays on the device, where nobody says: this, if KV is kept in a finer one and heads can be cut into its blocks; none: as kept.
  std::optional<KvType> device_type = {};
};

// A mean by shares: what share of it each of the tokens is, and as how many tokens alike it weighs.
struct MeanShares {
  Span<const float> of_tokens;  // (n_tokens) when it settled; 0: not in it. Valid until it settles again
  float weight = 0.0f;          // 0: there is none
};

// What has happened, for statistics.
struct Report {
  RoleCounts roles;             // zeros where a policy has none
  uint32_t n_demoted = 0;       // volatile heads that the budget made anchors
  uint64_t n_settled = 0;       // times
  uint64_t n_checks = 0, n_triggers = 0;
  uint64_t wanted_tokens = 0, missed_tokens = 0;   // of refills: tokens that heads should hold, and did not
  // What a fork begins with: it counts for itself.
  Report of_fork() const {
    Report fork;
    fork.roles = roles;
    fork.n_demoted = n_demoted;
    return fork;
  }
};

class Policy {
 public:
  virtual ~Policy() = default;
  virtual const char* name() const = 0;
  // Heads that the plan counts as full: they hold the whole context.
  virtual uint32_t n_full_heads() const { return 0; }
  // The share of its slots that it may have asked for and that are not visible yet: so many tokens the staging ring holds,
  // and all of them can be on their way at once. More come late, not wrong. 0: it asks for no refills.
  virtual double refill_share() const { return 0; }
  // Heads whose pages are to have digests, and how large pages are: what top_pages() may be asked. Memory of the device, which the
  // policy leaves free of slots: digest_bytes for each page of each of them.
  virtual PageDigests digests() const { return {}; }
  // So many heads at most, known once it has settled, have one more token beside their slots: the mean of all that they have let go,
  // those between what select() names, which then ascends, and those that slot_for() replaces. Memory of the device, which the policy
  // leaves free of slots: Shape::mean_bytes each.
  virtual uint32_t n_means() const { return 0; }
  virtual bool has_mean(uint32_t head) const {
    (void)head;
    return false;
  }
  // Of a head that has a mean, once it has settled: of which tokens, and how much it weighs. None: of all alike, as above.
  virtual MeanShares mean_shares(uint32_t head) const {
    (void)head;
    return {};
  }
  // Queries of the last positions that settle() asks for, if there are so many.
  virtual uint32_t queries_wanted() const { return 0; }
  // n_tokens are there, the last one at position n_tokens - 1: how many slots each head gets, (n_layers * n_kv_heads),
  // at most max_slots together.
  virtual Status settle(Heads* heads, uint32_t n_tokens, Span<uint32_t> capacity) = 0;
  // Which of positions 0 .. n_tokens-1 stay in the head, at most `capacity` of them, in slot order. `out` has room for
  // n_context.
  virtual void select(uint32_t head, uint32_t n_tokens, uint32_t capacity, std::vector<uint32_t>* out) = 0;
  // Since settling: so many of the head's first slots hold keys that were rebuilt (PageDigests::rank), whenever they came; refills go
  // to these alone.
  virtual uint32_t rebuilt_slots(uint32_t head) const {
    (void)head;
    return 0;
  }
  // The slot for the next token of head (layer * n_kv_heads + head), which holds `length` of `capacity` tokens.
  virtual uint32_t slot_for(uint32_t head, uint32_t length, uint32_t capacity) = 0;
  // Heads that hold all of their keys and whose best ones after_step() will ask for by the query of the step that is
  // about to be computed, or whose attention is summed: attention leaves its weights of them, and the keys need not be read again. A hint;
  // at most n_watched() of them, of n_context keys at most, or so many.
  virtual void watch(std::vector<uint32_t>* heads) const { heads->clear(); }
  virtual uint32_t n_watched() const { return 0; }
  virtual uint32_t watched_keys(uint32_t n_context) const { return n_context; }
  // Whether Heads::attention_sums() are wanted.
  virtual bool sums_attention() const { return false; }
  // Whether before_attend() is to be called.
  virtual bool asks_before_attend() const { return false; }
  // Whether before_attend() of a layer is called when the layer before is about to be computed, with queries that the layer makes of what
  // that one's attention takes in; of the first one when it begins, with its own. What it asks for is waited for when its layer begins.
  virtual bool asks_ahead() const { return false; }
  // Within step `step`, whose token stands at `position`: the layer's queries are known, and top_pages() and scores() may be asked by
  // them. Refills visible at this step are waited for by the layers that they are for; everything here is.
  virtual Status before_attend(Heads* heads, uint32_t layer, uint64_t step, uint32_t position) {
    (void)heads, (void)layer, (void)step, (void)position;
    return ok_status();
  }
  // A generated token has been computed in step `step` (counted over the session's life), at `position`.
  virtual Status after_step(Heads* heads, uint64_t step, uint32_t position) {
    (void)heads, (void)step, (void)position;
    return ok_status();
  }
  // Host memory that it takes at most, in bytes: what it keeps from one settling to the next, and what settling works with and gives back.
  virtual uint64_t host_bytes(const HostShape& host) const = 0;
  Report report() const { return report_; }
  // A policy in the same state, for a fork; its report is of_fork(). As the policy it was made of it allocates nothing until it settles.
  virtual std::unique_ptr<Policy> clone() const = 0;

 protected:
  template <class P>
  static std::unique_ptr<Policy> clone_of(const P& policy) {
    auto copy = std::make_unique<P>(policy);
    copy->report_ = policy.report_.of_fork();
    return copy;
  }
  Report report_;
};

// Slots that a head keeps at least, so that a short prompt under a small share still has room for an answer.
inline constexpr uint32_t kLeastSlots = 64;

// Options by name: ("sinks", "4").
using Options = std::vector<std::pair<std::string, std::string>>;

// Slots that `share` of a context of shape.n_context comes to, windowed layers at their window, other heads at kLeastSlots at least.
uint64_t slots_for_share(const Shape& shape, const Share& share);

// Unknown names and options are invalid_argument and name the nearest right one. profile: null for none.
Result<std::unique_ptr<Policy>> make_policy(const std::string& name, const Shape& shape, const Budget& budget,
                                            const Options& options,
                                            const std::shared_ptr<const HeadProfile>& profile = nullptr);
// Of a policy with that name and these options; nothing for names that there are not.
Needs policy_needs(const std::string& name, const Options& options);

// A policy as a row of the table that people read, and its page.
struct OptionRow {
  const char *name, *value;           // the default; what it depends on in words, in parentheses
  const char* meaning;
};
struct PolicyRow {
  const char *name, *method, *paper;
  const char *score, *allocate, *keep, *refresh;
  const char *device, *link;          // what it costs there, besides the budget's slots
  Span<const OptionRow> options;
  const char* page;                   // what it does, where paper and code disagree, and what is done here
};
// By name, "full" included.
Span<const PolicyRow> policy_rows();

}  // namespace orrery::policy
