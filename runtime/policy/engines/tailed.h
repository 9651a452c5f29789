// Base of the policies whose compressed heads hold a selection of the prompt and a tail for generated tokens: windows, the budget, a head
// profile or the session's own calibration, refills of selections. A full tail settles again.
#pragma once

#include <algorithm>
#include <vector>

#include "runtime/base/reserved_vector.h"
#include "runtime/policy/allocate/tailed_budget.h"
#include "runtime/policy/heads/calibrate.h"
#include "runtime/policy/given/host_bytes.h"
#include "runtime/policy/policy.h"
#include "runtime/policy/refresh/misses.h"
#include "runtime/policy/select/rings.h"

namespace orrery::policy {

class TailedPolicy : public Policy {
 public:
  uint32_t queries_wanted() const override { return profile_ ? 1 : calibration_.n_queries; }
  uint32_t slot_for(uint32_t head, uint32_t length, uint32_t capacity) override {
    if (rings_.has(head)) return rings_.slot_for(head, length);
    return length < capacity ? length : kSettleAgain;
  }
  // Whether the budget holds the full heads and something of the others. `what` says in the error why they are full ("keep their whole
  // KV").
  Status check_room(const Budget& budget, const char* what) const;

 protected:
  TailedPolicy(const Shape& shape, const Budget& budget, Tail tail, const Calibration& calibration, SharedProfile profile,
               Ratio extra = {});
  // The state of this base. A policy that refills selections then calls end_settling().
  Status tailed_state(StateBytes* s, const SavedMoment& at);
  Shape shape() const { return {n_layers_, n_kv_heads_, n_context_, window_}; }
  // The budget's slots for layers without window.
  uint64_t max_slots(const Budget& budget) const { return budget.max_slots - std::min(budget.max_slots, rings_.slots()); }
  // Begins settle(): resets the state, and sets the capacity of windowed layers' heads; others get 0.
  void begin_settling(uint32_t n_tokens, Span<uint32_t> capacity);
  // Ends settle() of a policy that refills selections: `longest` is the longest one.
  void end_settling(size_t longest);
  // Host memory of this base, for a policy that refills selections and calibrates heads.
  uint64_t tailed_bytes() const;
  // out (n_tokens) = the head's scores by calibration_.rule, summed over the last n_queries queries: they order and count keys as the mean
  // of these scores does. Needs last_queries_bytes() of host memory.
  Status score_by_last(Heads* heads, uint32_t head, uint32_t n_queries, uint32_t n_tokens, Span<float> out);
  uint64_t last_queries_bytes(uint32_t n_queries, uint32_t group) const;
  static void select_all(uint32_t n_tokens, std::vector<uint32_t>* out) {
    for (uint32_t p = 0; p < n_tokens; ++p) out->push_back(p);
  }
  Status refill(Heads* heads, uint32_t head, uint32_t first_slot, Span<const uint32_t> wanted, uint64_t visible_at) {
    return refill_selection(heads, head, first_slot, wanted, visible_at, &marks_, &misses_, &report_);
  }

  const SharedProfile profile_;
  const Calibration calibration_;
  const uint32_t n_kv_heads_, n_layers_, n_context_;
  const std::vector<int32_t> window_;
  WindowRings rings_;
  const TailedBudget budget_;
  // Since settle():
  uint32_t n_tokens_ = 0;  // of the prompt
  uint64_t n_steps_ = 0;
  ReservedVector<KeyQuery> queries_;  // working memory
  std::vector<uint8_t> marks_;        // (n_tokens) 0 between uses
  ReservedVector<Replacement> misses_;

 private:
  std::vector<float> rows_of_queries_, pooled_, largest_;  // of score_by_last()
};

}  // namespace orrery::policy
