// Base of the policies whose heads hold single tokens that change with the query (Loki, InfiniGen, keycodes): pages of one token, found by
// the low-rank keys or key codes of all tokens, which stay on the device.
//
// A head's slots are its sinks, its selected tokens in any order, and a ring of the last tokens. A token that leaves the ring is a
// candidate from then on. When it has no digest yet, after_step() makes the digests of all tokens that lack them. Nothing is settled again,
// however long the answer gets. In place (Policy::slots_in_place()) slots are only positions, and each step's selected tokens take the
// places of the last step's, in order.
#pragma once

#include <algorithm>

#include "runtime/policy/engines/paged.h"
#include "runtime/policy/refresh/misses.h"

namespace orrery::policy {

// The rank of low-rank keys, a multiple of 4, at most head_dim: `asked`; or, if that is 0, `part` of head_dim, less where low-rank keys
// would take more than half of the budget.
uint32_t rank_of(uint32_t asked, double part, const Shape& shape, const Budget& budget);

class TokenPolicy : public PagedPolicy {
 public:
  double refill_share() const override { return heads_.empty() || settings_.in_place ? 0 : kNextStepShare; }
  PageDigests digests() const override {
    return {1, kind_, heads_, heads_.empty() ? 0 : settings_.rank, settings_.code_bits, settings_.compensation, settings_.value_bits};
  }
  bool compensates_by_codes(uint32_t head) const override {
    return settings_.compensation && paged_ && std::binary_search(heads_.begin(), heads_.end(), head);
  }
  uint32_t slot_for(uint32_t head, uint32_t length, uint32_t capacity) override;
  bool asks_before_attend() const override { return !heads_.empty(); }
  bool refills_its_layer() const override { return asks_before_attend() && !asks_a_layer_ahead(); }
  bool fetches_pages() const override { return refills_its_layer() && !settings_.in_place; }
  Status after_step(Heads* heads, uint64_t step, uint32_t position) override;
  Status state(StateBytes* s, const SavedMoment& at) override;

 protected:
  TokenPolicy(const char* name, const Shape& shape, const Budget& budget, const PagedSettings& settings, PageDigest kind)
      : PagedPolicy(name, shape, budget, settings), kind_(kind) {}
  // Host memory of this base and of PagedPolicy.
  uint64_t tokens_bytes() const { return paged_bytes() + n_plans() * (sizeof(uint8_t) + sizeof(Replacement)) * (n_context_ + uint64_t{1}); }
  // settle(): low-rank keys with a new basis, or codes with new means; divide(); and the best tokens by the prompt's last query.
  Status settle_tokens(Heads* heads, const ScoreRule& rule, uint32_t n_tokens, Span<uint32_t> capacity);
  // Changes the heads' room, once tokens can be found.
  virtual Status divide(Heads* heads, uint32_t n_tokens, Span<uint32_t> capacity) {
    (void)heads, (void)n_tokens, (void)capacity;
    return ok_status();
  }
  // Writes the best of n_tokens by the query at `position` to selected(), for heads_[begin .. end).
  Status select_best(Heads* heads, const ScoreRule& rule, size_t begin, size_t end, uint32_t position, uint32_t n_tokens);

  // before_attend(): heads of the layer hold the best tokens by this step's query; misses arrive before the layer attends.
  Status fetch_best(Heads* heads, const ScoreRule& rule, uint32_t layer, uint64_t step, uint32_t position);

  // The misses of one head of a layer.
  struct Plan {
    std::vector<uint8_t> marks;  // (n_context_) 0 between uses
    ReservedVector<Replacement> misses;
  };
  // Asks for the best of n_tokens by the query at `position`: queries_.
  void ask(size_t begin, size_t end, uint32_t position, uint32_t n_tokens);
  // Schedules plans_[i] for heads_[begin + i], each of n_wanted wanted tokens.
  Status refill(Heads* heads, size_t begin, size_t end, uint32_t n_wanted, uint64_t visible_at);
  std::vector<Plan> plans_;            // (n_kv_heads_)
  ReservedVector<PageQuery> queries_;  // since settle()
  std::vector<uint32_t> n_read_;       // (n_kv_heads_) in place: the found tokens of a layer's heads
  float stay_ = 1;                     // since settle(): how often the score of a resident token counts

 private:
  Status make_digests(Heads* heads, uint32_t n_tokens, bool with_basis) const {
    return kind_ == PageDigest::codes ? heads->make_codes(n_tokens) : heads->make_low_rank(n_tokens, with_basis);
  }
  void make_room();  // the working memory of this base
  uint64_t n_plans() const { return heads_.empty() || settings_.in_place ? 0 : n_kv_heads_; }
  const PageDigest kind_;
  // Since settle():
  uint32_t n_steps_ = 0;
  uint32_t n_found_ = 0;  // tokens that have low-rank keys or codes
};

}  // namespace orrery::policy
