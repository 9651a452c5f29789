// The interface of a KV policy. A policy decides how many slots each KV head gets on the device, which tokens fill them, and which slots
// change while tokens are generated. It holds decisions, never KV: the engine (resident.h) carries them out on a kv::HeadStore.
//
// The engine calls, in this order:
//   settle(), then select() for every head     when a prompt is complete, or the resident KV is invalid; in parts: settle_steps()
//   slot_for() for every head                  before each generated token; kSettleAgain: settle() again over all tokens
//   before_attend() for every layer            within the step, if asks_before_attend()
//   after_step()                               after the token is computed
// settle() may allocate host memory. The calls of a generated token allocate none.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/backend/backend.h"
#include "runtime/base/span.h"
#include "runtime/base/state_bytes.h"
#include "runtime/base/status.h"
#include "runtime/kv/resident/slot_table.h"
#include "runtime/policy/given/budget.h"
#include "runtime/policy/heads/profile.h"
#include "runtime/policy/given/questions.h"

namespace orrery::policy {

inline constexpr uint32_t kSettleAgain = UINT32_MAX;  // slot_for(): no slot is free
inline constexpr uint32_t kMostSettleSteps = 32;      // Policy::settle_steps()

// Sizes that a policy's host memory depends on, besides its Shape.
struct HostShape {
  uint32_t group = 1;          // query heads of a KV head
  uint32_t n_threads = 1;      // threads of Heads::each()
  bool makes_moments = false;  // Heads::key_moments() needs no rows of weights
};

// A KV type for budgets below a share of full KV's bytes in F16.
struct TypeBelow {
  double share;
  KvType type;
};

// What a policy needs of the engine, by its name and options alone.
struct Needs {
  uint32_t kept_queries = 0;  // the engine keeps the queries of this many last positions
  // KV type on the device when the caller names none. It applies where the reservoir's type is finer and head_dim is a multiple of its
  // block. None: the reservoir's type.
  std::optional<KvType> device_type = {};
  bool plain_keys = false;  // reads keys before RoPE out of the pages, or their angles: they are stored as they are (no KvTransform)
  // Types with 4 bits in place of device_type, the first one that counts, where heads have a multiple of 64 values: the Hadamard transform
  // then spreads a large value over two of Q4_0's blocks or more. With Shape::finds_by_codes the second list counts from codes_share of
  // F16's bytes on.
  Span<const TypeBelow> coarser = {}, coarser_by_codes = {};
  double codes_share = 1;
  static constexpr double kNever = 2;
  double in_place_share = kNever;  // budgets from this share of F16's bytes on read tokens in place, where Shape::in_place can be set
};

// A compensation token as a weighted mean of evicted tokens.
struct CompensationShares {
  Span<const float> of_tokens;  // (n_tokens) of settle(): a token's share of the mean, 0 for resident tokens. Valid until the next settle()
  float weight = 0.0f;          // the number of equal tokens that it weighs as; 0: the head has none
};

// A session when its policy's state is saved or read.
struct SavedMoment {
  uint32_t n_tokens = 0;
  uint32_t group = 1;  // query heads of a KV head
  // settled; or between the parts of settle(): before the last one, or behind it, when heads are being filled.
  enum class Phase : uint8_t { settled, scoring, filling } phase = Phase::settled;
  uint32_t n_settling = 0;  // while it settles: the tokens that settle() is about
  uint32_t n_steps = 0;     // and the steps whose tokens the heads take behind select()
  const kv::SlotTable* slots = nullptr;
  Span<const kv::SavedRefill> refills;
  bool settled() const { return phase == Phase::settled; }
};

// Counters for statistics.
struct Report {
  RoleCounts roles;        // zeros for policies without roles
  uint32_t n_demoted = 0;  // volatile heads that became anchors because of the budget
  uint64_t n_settled = 0;  // calls of settle()
  uint64_t n_checks = 0, n_triggers = 0;
  uint64_t wanted_tokens = 0, missed_tokens = 0;  // of refills: tokens that heads should hold, and those of them that were not resident
  // The report of a fork: the roles stay, the fork's own counts begin at 0.
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

  // ---- For the plan: known before a prompt, constant unless stated ----
  // Heads that hold the whole context on the device.
  virtual uint32_t n_full_heads() const { return 0; }
  // The staging ring's size, as a share of the policy's slots: tokens that are asked for and not visible yet. A policy that asks for more
  // gets them late, never wrong. 0: the policy asks for no refills.
  virtual double refill_share() const { return 0; }
  // The heads whose pages get digests, and the page size; top_pages() answers for these heads. The policy leaves room in the budget:
  // Shape::digest_bytes for each page of each of these heads.
  virtual PageDigests digests() const { return {}; }
  // Upper bound on the number of heads with a compensation token. The policy leaves room in the budget: Shape::compensation_token_bytes
  // each.
  virtual uint32_t max_compensation_tokens() const { return 0; }
  // Queries of the last positions that settle() reads, if the session has that many.
  virtual uint32_t queries_wanted() const { return 0; }
  // Bounds of scored_heads(): heads, and keys of each, for a context of n_context.
  virtual uint32_t max_scored_heads() const { return 0; }
  virtual uint32_t max_scored_keys(uint32_t n_context) const { return n_context; }
  virtual bool sums_attention() const { return false; }      // needs Heads::attention_sums()
  virtual bool asks_before_attend() const { return false; }  // needs before_attend()
  // before_attend() of a layer runs one layer early: when the layer before it is about to be computed, with queries that the layer makes of
  // that layer's attention input. The first layer runs with its own queries. A layer waits for its refills when it begins.
  virtual bool asks_a_layer_ahead() const { return false; }
  // Nearly all refills are asked for by before_attend(), and are of its own layer. No transfer of them could run in parallel with the step.
  virtual bool refills_its_layer() const { return false; }
  // before_attend() uses Heads::fetch_pages(), fetch_changed(), fetch_near_best() or fetch_followers(), where the device has them.
  virtual bool fetches_pages() const { return false; }
  // Not 0: the number of slots of all heads, which have positions and no memory. Attention reads their tokens in the reservoir, in its
  // type. The budget holds the policy's digests alone. It asks for no refills, but calls Heads::hold() within before_attend(). Only with
  // Shape::in_place.
  virtual uint64_t slots_in_place() const { return 0; }
  // Upper bound on the policy's host memory in bytes: its state between settlements, and the working memory of settle().
  virtual uint64_t host_bytes(const HostShape& host) const = 0;

  // ---- Settling ----
  // The session holds n_tokens, at positions 0 .. n_tokens - 1. Writes each head's slots to `capacity` (n_layers * n_kv_heads), at most
  // Budget::max_slots in total.
  virtual Status settle(Heads* heads, uint32_t n_tokens, Span<uint32_t> capacity) = 0;
  // The number of steps over which the engine spreads a settlement. These steps attend to the whole reservoir. The heads have room for
  // their tokens: select() and these tokens leave a free slot. 0: the engine settles at once. Depends on n_tokens alone. Not 0 only for
  // policies that only_appends(), and only if settle_part() works.
  virtual uint32_t settle_steps(uint32_t n_tokens) const {
    (void)n_tokens;
    return 0;
  }
  // Part `part` of n_parts of settle(), in this order. The last part writes `capacity`. Part 0 begins a settlement, also behind an error.
  virtual Status settle_part(Heads* heads, uint32_t n_tokens, uint32_t part, uint32_t n_parts, Span<uint32_t> capacity) {
    (void)part, (void)n_parts;
    return settle(heads, n_tokens, capacity);
  }
  // Positions of 0 .. n_tokens - 1 that stay in the head, at most `capacity`, in slot order; ascending where the head has a compensation
  // token. `out` has room for n_context.
  virtual void select(uint32_t head, uint32_t n_tokens, uint32_t capacity, std::vector<uint32_t>* out) = 0;
  // Valid after settle(). A compensation token stands for the head's evicted tokens: those that select() leaves out, and those that
  // slot_for() replaces.
  virtual bool has_compensation_token(uint32_t head) const {
    (void)head;
    return false;
  }
  // The evicted tokens' shares of the compensation token, valid after settle(). Empty: the plain mean, weighing as many tokens as were
  // evicted.
  virtual CompensationShares compensation_shares(uint32_t head) const {
    (void)head;
    return {};
  }
  // Valid after settle(). Each step gives the head a compensation token: its mean key and mean value (Heads::set_mean_value), with the
  // weight that this step's codes give to the candidates which top_pages() leaves out, for each query head.
  virtual bool compensates_by_codes(uint32_t head) const {
    (void)head;
    return false;
  }
  // The head's first slots that always hold rebuilt keys (PageDigests::rank), valid after settle(). Refills go to these slots only.
  virtual uint32_t rebuilt_slots(uint32_t head) const {
    (void)head;
    return 0;
  }

  // ---- Each generated token ----
  // Whether every generated token takes the slot behind its head's last one, and the policy asks nothing within or after a step. Then
  // tokens of a draft can be removed again.
  virtual bool only_appends() const { return false; }
  // The slot for the next token of head (layer * n_kv_heads + KV head), which holds `length` of `capacity` tokens.
  virtual uint32_t slot_for(uint32_t head, uint32_t length, uint32_t capacity) = 0;
  // The heads whose attention weights the coming step exports: heads that hold all of their keys and whose best keys after_step() asks for,
  // or heads whose attention is summed. A hint that saves reading the keys twice.
  virtual void scored_heads(std::vector<uint32_t>* heads) const { heads->clear(); }
  // Within step `step`, whose token stands at `position`: the layer's queries are known, and answer top_pages() and scores(). Refills
  // visible at this step are waited for by the layers that they are for.
  virtual Status before_attend(Heads* heads, uint32_t layer, uint64_t step, uint32_t position) {
    (void)heads, (void)layer, (void)step, (void)position;
    return ok_status();
  }
  // The token at `position` has been computed in step `step`, counted over the session's life.
  virtual Status after_step(Heads* heads, uint64_t step, uint32_t position) {
    (void)heads, (void)step, (void)position;
    return ok_status();
  }

  // What settlements and steps have left, between two steps: writes it to `s`, or reads it from there, into a policy of the same shape and
  // options. Reading checks all that later calls rely on, and makes the working memory that settle() makes. Behind an error the policy is
  // good for nothing but settle(). The report is not part of it.
  virtual Status state(StateBytes* s, const SavedMoment& at) = 0;

  Report report() const { return report_; }
  // A policy in the same state, for a fork; its report is of_fork(). The clone allocates nothing before it settles.
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

// Makes a policy by name. invalid_argument for unknown names and options, naming the nearest known one. profile: null for none.
Result<std::unique_ptr<Policy>> make_policy(const std::string& name, const Shape& shape, const Budget& budget, const Options& options,
                                            const SharedProfile& profile = nullptr);
// What the policy needs with these options; nothing for unknown names.
Needs policy_needs(const std::string& name, const Options& options);

// A policy as a row of the table that `orrery policies` prints, and its page.
struct OptionRow {
  const char *name, *value;  // value: the default; in parentheses where it depends on something
  const char* meaning;
};
struct PolicyRow {
  const char *name, *method, *paper;
  const char *score, *allocate, *keep, *refresh;
  const char *device, *link;  // what the policy costs there, besides the budget's slots
  Span<const OptionRow> options;
  const char* page;  // what the policy does; where paper and code disagree, and what is done here
};

struct Method;  // table.h

// The rows of all policies, "full" included, by name.
class PolicyRows {
 public:
  class Iterator {
   public:
    explicit Iterator(const Method* const* at) : at_(at) {}
    const PolicyRow& operator*() const;
    Iterator& operator++() { return ++at_, *this; }
    bool operator!=(const Iterator& o) const { return at_ != o.at_; }

   private:
    const Method* const* at_;
  };
  explicit PolicyRows(Span<const Method* const> methods) : methods_(methods) {}
  Iterator begin() const { return Iterator(methods_.begin()); }
  Iterator end() const { return Iterator(methods_.end()); }

 private:
  Span<const Method* const> methods_;
};
PolicyRows policy_rows();

}  // namespace orrery::policy
