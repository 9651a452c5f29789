// What policies share whose heads hold single tokens that come and go with the query (loki.cpp, infinigen.cpp): pages of one token, by
// low-rank keys of all of them that stay on the device.
//
// A head's slots are the first tokens, the chosen ones in any order, and a ring of the last ones: what leaves it is a candidate from
// then on. Rows are made for as many tokens as there are whenever a token without one leaves the ring; nothing is chosen anew however
// long the answer gets.
#pragma once

#include <algorithm>

#include "runtime/policy/engines/paged.h"
#include "runtime/policy/refresh/misses.h"

namespace orrery::policy {

// Dimensions of a turned key that find it: as many as asked for, in fours, or a part of it by itself (0), less where rows would take
// more than half of the budget.
uint32_t rank_of(uint32_t asked, double part, const Shape& shape, const Budget& budget);

class TokenPolicy : public PagedPolicy {
 public:
  double refill_share() const override { return heads_.empty() ? 0 : kNextStepShare; }
  PageDigests digests() const override { return {1, kind_, heads_, heads_.empty() ? 0 : settings_.rank}; }
  uint32_t slot_for(uint32_t head, uint32_t length, uint32_t capacity) override;
  bool asks_before_attend() const override { return !heads_.empty(); }
  Status after_step(Heads* heads, uint64_t step, uint32_t position) override;

 protected:
  TokenPolicy(const char* name, const Shape& shape, const Budget& budget, const PageSettings& settings, PageDigest kind)
      : PagedPolicy(name, shape, budget, settings), kind_(kind) {}
  // Host memory of what is here, and in PagedPolicy.
  uint64_t tokens_bytes() const { return paged_bytes() + n_plans() * (sizeof(uint8_t) + sizeof(Replacement)) * (n_context_ + uint64_t{1}); }
  // settle(), with the best tokens by the prompt's last query.
  Status settle_by(Heads* heads, const ScoreRule& rule, uint32_t n_tokens, Span<uint32_t> capacity);
  // Of n_tokens that are there, the best ones of heads_[begin .. end) by the query of a position: into chosen().
  Status choose(Heads* heads, const ScoreRule& rule, size_t begin, size_t end, uint32_t position, uint32_t n_tokens);

  // What a layer's heads are to fetch, each for itself.
  struct Plan {
    std::vector<uint8_t> marks;          // (n_context_) 0 between uses
    Roomy<Replacement> misses;
  };
  // heads_[begin + i] gets what plans_[i] says, of n_wanted tokens each.
  Status refill(Heads* heads, size_t begin, size_t end, uint32_t n_wanted, uint64_t visible_at);
  std::vector<Plan> plans_;              // (n_kv_heads_)

 private:
  uint64_t n_plans() const { return heads_.empty() ? 0 : n_kv_heads_; }
  const PageDigest kind_;
  // Since settling.
  uint32_t n_steps_ = 0, n_rows_ = 0;    // tokens that have rows
  Roomy<PageQuery> queries_;
};

}  // namespace orrery::policy
