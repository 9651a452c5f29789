// What a KV policy decides: how many tokens each head keeps on the device, which ones, and what goes where as the answer
// grows.  A policy holds decisions, never memory: the engine carries them out on a kv::HeadStore.
//
// Its life: when a prompt is complete (or the resident part has been invalidated), settle() and then select() for every
// head. For every generated token slot_for() of every head, the step, and after_step(). When slot_for() says
// kSettleAgain, settle() over everything, and on.  Settling may take host memory; what happens for every token does not.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/backend.h"
#include "runtime/base/span.h"
#include "runtime/base/status.h"
#include "runtime/policy/budget.h"
#include "runtime/policy/heads/profile.h"
#include "runtime/policy/questions.h"

namespace orrery::policy {

inline constexpr uint32_t kSettleAgain = UINT32_MAX;

// What the host memory of a policy depends on, beside its shape.
struct HostShape {
  uint32_t group = 1;           // query heads of a KV head
  uint32_t n_threads = 1;       // that Heads::each() works on
  bool makes_moments = false;   // Heads::key_moments() needs no rows of weights
};

// What a policy asks of the engine, whatever its options.
struct Needs {
  uint32_t kept_queries = 0;      // queries of so many last positions are kept
  // Of what stays on the device, where nobody says: this, if KV is kept in a finer one and heads can be cut into its blocks; none: as kept.
  std::optional<KvType> device_type = {};
};

// A mean by shares: what share of it each of the tokens is, and as how many tokens alike it weighs.
struct CompensationShares {
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
  // leaves free of slots: Shape::compensation_token_bytes each.
  virtual uint32_t max_compensation_tokens() const { return 0; }
  virtual bool has_compensation_token(uint32_t head) const {
    (void)head;
    return false;
  }
  // Of a head that has a mean, once it has settled: of which tokens, and how much it weighs. None: of all alike, as above.
  virtual CompensationShares compensation_shares(uint32_t head) const {
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
  // at most max_scored_heads() of them, of n_context keys at most, or so many.
  virtual void scored_heads(std::vector<uint32_t>* heads) const { heads->clear(); }
  virtual uint32_t max_scored_heads() const { return 0; }
  virtual uint32_t max_scored_keys(uint32_t n_context) const { return n_context; }
  // Whether Heads::attention_sums() are wanted.
  virtual bool sums_attention() const { return false; }
  // Whether before_attend() is to be called.
  virtual bool asks_before_attend() const { return false; }
  // Whether before_attend() of a layer is called when the layer before is about to be computed, with queries that the layer makes of what
  // that one's attention takes in; of the first one when it begins, with its own. What it asks for is waited for when its layer begins.
  virtual bool asks_a_layer_ahead() const { return false; }
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

// Options by name: ("sinks", "4").
using Options = std::vector<std::pair<std::string, std::string>>;

using SharedProfile = std::shared_ptr<const HeadProfile>;

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
