// What policies share whose compressed heads hold a selection of the prompt and a tail.
#pragma once

#include <algorithm>
#include <vector>

#include "runtime/base/roomy.h"
#include "runtime/policy/allocate/tailed_budget.h"
#include "runtime/policy/heads/calibrate.h"
#include "runtime/policy/host_bytes.h"
#include "runtime/policy/policy.h"
#include "runtime/policy/refresh/misses.h"
#include "runtime/policy/select/rings.h"

namespace orrery::policy {

// What policies share whose compressed heads hold a selection of the prompt and a tail: windows and the budget, a head
// profile or the calibration in its stead, refills of selections.
class TailedPolicy : public Policy {
 public:
  uint32_t queries_wanted() const override { return profile_ ? 1 : calibration_.n_queries; }
  uint32_t slot_for(uint32_t head, uint32_t length, uint32_t capacity) override {
    if (rings_.has(head)) return rings_.slot_for(head, length);
    return length < capacity ? length : kSettleAgain;
  }
  // Whether the budget holds the full heads, which `what` ("keep their whole KV"), and something of the others.
  Status check_room(const Budget& budget, const char* what) const;

 protected:
  TailedPolicy(const Shape& shape, const Budget& budget, Tail tail, const Calibration& calibration,
               SharedProfile profile, Ratio beside = {});
  Shape shape() const { return {n_layers_, n_kv_heads_, n_context_, window_}; }
  // Of layers without window.
  uint64_t max_slots(const Budget& budget) const { return budget.max_slots - std::min(budget.max_slots, rings_.slots()); }
  // The beginning of settle(): what stood there is forgotten, windows have their capacity.
  void begin_settling(uint32_t n_tokens, Span<uint32_t> capacity);
  // Host memory of what is here, where selections are refilled and heads calibrated.
  uint64_t tailed_bytes() const;
  // Where selections have been made: `most` is the longest that is refilled.
  void end_settling(size_t most);
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
  // Since settling.
  uint32_t n_tokens_ = 0;
  uint64_t n_steps_ = 0;
  // Of a look at the last queries.
  Roomy<KeyQuery> queries_;
  std::vector<uint8_t> marks_;         // (n_tokens), 0 between uses
  Roomy<Replacement> misses_;
};

}  // namespace orrery::policy
