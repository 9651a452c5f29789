// H2O (arXiv:2306.14048): heavy hitters, the tokens that all queries together have attended to most, and the most recent ones.
//   score     the running sum of softmax weights over all queries so far, the mean of the group; not divided by how many queries have
//             seen the key, which favours early tokens
//   allocate  uniform
//   keep      `recent` of a head's slots the most recent tokens, the others the largest sums; the token of the least sum that is not
//             recent makes room for the newest
//   refresh   never; a later prompt chooses anew from all that the reservoir holds
//
// Where paper and code leave it open, and where this differs:
//   - The code keeps .1 of the prompt's length as heavy hitters and .1 as recent ones; here the budget says how many, half of them each.
//   - The code has a sum for each query head (its models have a KV head for each); here a KV head's sum is the mean of its group's.
//   - The code forgets the sum of what it evicts. Here sums are kept by position: tokens that were given up come back when a later
//     prompt's queries have attended to them enough. Generated tokens' queries add to what is resident, as there is nothing else for them.
//   - Sums are in floats, added in the order of positions: the code's halves stop growing.
//   - Keys keep the rotary position of the text (the code's streaming variant turns them by slot).
//   - Queries are not kept. Where sums are lost (a session that was loaded, rewound, or parked) the next generation computes all of its tokens
//     once more, as a prompt, for their queries; so a loaded answer's tokens count as if they had attended to everything.
#include <algorithm>
#include <cmath>

#include "runtime/policy/allocate/uniform.h"
#include "runtime/policy/host_bytes.h"
#include "runtime/policy/methods/methods.h"
#include "runtime/policy/options.h"
#include "runtime/policy/select/rings.h"

namespace orrery::policy {

namespace {

class H2O final : public Policy {
 public:
  H2O(const Shape& shape, const Budget& budget, double recent)
      : uniform_(shape, budget), rings_(shape), recent_(recent), n_context_(shape.n_context), heads_(size_t{shape.n_layers} * shape.n_kv_heads) {}

  // A heavy hitter and a recent token are the least.
  Status check() const {
    if (uniform_.enough(2)) return ok_status();
    return error(Code::invalid_argument, "policy h2o needs a KV budget of at least %llu slots (tokens of one head), 2 a head",
                 static_cast<unsigned long long>(uniform_.least_slots(2)));
  }

  const char* name() const override { return "h2o"; }
  bool sums_attention() const override { return !uniform_.everything(); }
  uint32_t max_scored_heads() const override { return sums_attention() ? rings_.n_other_heads() : 0; }
  uint32_t max_scored_keys(uint32_t) const override { return uniform_.most(); }
  void scored_heads(std::vector<uint32_t>* heads) const override {
    heads->clear();
    for (uint32_t head = 0; sums_attention() && head < heads_.size(); ++head)
      if (!rings_.has(head)) heads->push_back(head);
  }

  Status settle(Heads* heads, uint32_t n_tokens, Span<uint32_t> capacity) override {
    uniform_.allocate(n_tokens, capacity);
    rings_.settle();
    ++report_.n_settled;
    size_t n_selected = 0;
    for (uint32_t head = 0; head < heads_.size(); ++head) n_selected += rings_.has(head) ? 0 : std::min(capacity[head], n_tokens);
    renew(&selected_, n_selected);
    selected_.clear();
    Tokens best;
    best.reserve(n_tokens);
    for (uint32_t head = 0; head < heads_.size(); ++head) {
      if (rings_.has(head)) continue;
      Head& h = heads_[head];
      h = {selected_.size(), 0, std::clamp(static_cast<uint32_t>(recent_ * capacity[head] + .5), 1u, capacity[head]), 0};
      if (capacity[head] >= n_tokens && !sums_attention()) continue;   // nothing will make room
      h.n_selected = std::min(capacity[head], n_tokens);
      const uint32_t n_old = n_tokens - std::min(h.n_recent, n_tokens);
      const Span<const float> sums = heads->attention_sums(head);
      top_k(sums.first(n_old), h.n_selected - (n_tokens - n_old), &best);
      std::sort(best.begin(), best.end());
      for (uint32_t p = n_old; p < n_tokens; ++p) best.push_back(p);
      selected_.insert(selected_.end(), best.begin(), best.end());
      h.next = least(best, sums, n_tokens, h.n_recent);
    }
    return ok_status();
  }

  void select(uint32_t head, uint32_t n_tokens, uint32_t capacity, std::vector<uint32_t>* out) override {
    if (rings_.has(head)) return rings_.select(head, n_tokens, out);
    const Head& h = heads_[head];
    if (h.n_selected == 0) return sinks_and_recent(n_tokens, 0, capacity, out);   // all
    const auto first = selected_.begin() + static_cast<ptrdiff_t>(h.first);
    out->assign(first, first + h.n_selected);
  }

  uint32_t slot_for(uint32_t head, uint32_t length, uint32_t capacity) override {
    if (rings_.has(head)) return rings_.slot_for(head, length);
    return length < capacity ? length : heads_[head].next;
  }

  Status after_step(Heads* heads, uint64_t, uint32_t position) override {
    for (uint32_t head = 0; sums_attention() && head < heads_.size(); ++head)
      if (!rings_.has(head)) heads_[head].next = least(heads->positions(head), heads->attention_sums(head), position + 1, heads_[head].n_recent);
    return ok_status();
  }

  // What is selected, and the best of a head.
  uint64_t host_bytes(const HostShape&) const override {
    return bytes_of<Head>(heads_.size()) + bytes_of<uint32_t>(uint64_t{rings_.n_other_heads()} * uniform_.most() + n_context_);
  }

  std::unique_ptr<Policy> clone() const override { return clone_of(*this); }

 private:
  struct Head {
    size_t first = 0;          // of its tokens in selected_
    uint32_t n_selected = 0;   // 0: all, and they are not in there
    uint32_t n_recent = 0;
    uint32_t next = 0;         // the slot of the token that makes room, where all slots are taken
  };

  // The slot of the least sum, of the tokens that are not recent when the token at n_tokens has come; ties: of the later token.
  static uint32_t least(Span<const uint32_t> positions, Span<const float> sums, uint32_t n_tokens, uint32_t n_recent) {
    uint32_t slot = 0;
    float sum = INFINITY;
    uint32_t token = 0;
    for (uint32_t i = 0; i < positions.size(); ++i) {
      const uint32_t p = positions[i];
      if (n_tokens - p < n_recent) continue;
      if (sums[p] < sum || (sums[p] == sum && p > token)) slot = i, sum = sums[p], token = p;
    }
    return slot;
  }

  UniformAllocation uniform_;
  WindowRings rings_;
  double recent_;
  uint32_t n_context_;
  std::vector<Head> heads_;
  std::vector<uint32_t> selected_;   // since settling
};

}  // namespace

Result<std::unique_ptr<Policy>> make_h2o(const Shape& shape, const Budget& budget, const Options& options, const SharedProfile&) {
  double recent = .5;
  OptionReader reader("h2o", options);
  ORRERY_TRY(reader.fraction("recent", &recent));
  ORRERY_TRY(reader.finish());
  auto policy = std::make_unique<H2O>(shape, budget, recent);
  ORRERY_TRY(policy->check());
  return std::unique_ptr<Policy>(std::move(policy));
}

}  // namespace orrery::policy
