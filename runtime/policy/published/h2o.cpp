// H2O (Zhang et al., arXiv:2306.14048): heavy hitters, the tokens that all queries together have attended to most, and the most recent
// tokens.
//   score     the running sum of softmax weights over all queries so far, the mean of the group. Not divided by the number of queries that have
//             seen the key, which favours early tokens
//   allocate  evenly
//   select    `recent` of a head's slots hold the most recent tokens, the others the largest sums. The newest token replaces the smallest sum
//             that is not recent
//   refresh   never; a later prompt selects again from the reservoir
// Paper, code and this build: the page below.
#include <algorithm>
#include <cmath>

#include "runtime/policy/allocate/uniform.h"
#include "runtime/policy/given/host_bytes.h"
#include "runtime/policy/options.h"
#include "runtime/policy/rows.h"
#include "runtime/policy/select/rings.h"
#include "runtime/policy/table.h"

namespace orrery::policy {

namespace h2o_method {

constexpr OptionRow kOptions[] = {{"recent", ".5", "share of a head's slots that hold the most recent tokens"}};
constexpr char kPage[] =
    "Tokens that all queries together have attended to most, the heavy hitters, and the most recent tokens. Each step the\n"
    "newest token replaces the token that has been attended to least, outside the recent ones. Sums are not divided by the\n"
    "number of queries that have seen a key, as in paper and code: early tokens have the advantage.\n"
    "- A prompt's sums are made tile by tile while it is read, without a matrix of all weights. That takes about as long again\n"
    "  as its attention. Sums are floats in host memory, one for each token and head, added in the order of positions; the\n"
    "  code's halves stop growing.\n"
    "- The code keeps a tenth of the prompt as heavy hitters and a tenth as recent tokens; here each takes half of the budget.\n"
    "  The code sums for each query head, as its models have a KV head for each; here a KV head's sum is its group's mean.\n"
    "- The code forgets the sum of an evicted token. Here a later prompt's queries add to all sums, and may bring tokens back.\n"
    "  A generated token's query adds to the resident tokens.\n"
    "- Keys keep the rotary position of the text. The code's streaming variant rotates them by slot.\n"
    "- Queries are not kept, so sums cannot be taken back. After a rewind the next answer begins by computing all tokens once\n"
    "  more for their queries, as a prompt: earlier answers count as if they had attended to everything. So it does in a session\n"
    "  that was loaded under other options. Forks and saved sessions take the sums along.\n";

class H2O final : public Policy {
 public:
  H2O(const Shape& shape, const Budget& budget, double recent)
      : uniform_(shape, budget), rings_(shape), recent_(recent), n_context_(shape.n_context),
        heads_(size_t{shape.n_layers} * shape.n_kv_heads) {}

  // A head holds at least a heavy hitter and a recent token.
  Status check() const {
    if (uniform_.fits(2)) return ok_status();
    return error(Code::invalid_argument, "policy h2o needs a KV budget of at least %llu slots (tokens of one head), 2 a head",
                 static_cast<unsigned long long>(uniform_.total_slots(2)));
  }

  const char* name() const override { return "h2o"; }
  bool sums_attention() const override { return !uniform_.holds_all(); }
  uint32_t max_scored_heads() const override { return sums_attention() ? rings_.n_other_heads() : 0; }
  uint32_t max_scored_keys(uint32_t) const override { return uniform_.head_max(); }
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
    resize_discarding(&selected_, n_selected);
    selected_.clear();
    Tokens best;
    best.reserve(n_tokens);
    for (uint32_t head = 0; head < heads_.size(); ++head) {
      if (rings_.has(head)) continue;
      Head& h = heads_[head];
      h = {selected_.size(), 0, std::clamp(static_cast<uint32_t>(recent_ * capacity[head] + .5), 1u, capacity[head]), 0};
      if (capacity[head] >= n_tokens && !sums_attention()) continue;  // nothing is ever replaced
      h.n_selected = std::min(capacity[head], n_tokens);
      const uint32_t n_old = n_tokens - std::min(h.n_recent, n_tokens);
      const Span<const float> sums = heads->attention_sums(head);
      top_k(sums.first(n_old), h.n_selected - (n_tokens - n_old), &best);
      std::sort(best.begin(), best.end());
      for (uint32_t p = n_old; p < n_tokens; ++p) best.push_back(p);
      selected_.insert(selected_.end(), best.begin(), best.end());
      h.victim = least_slot(best, sums, n_tokens, h.n_recent);
    }
    return ok_status();
  }

  void select(uint32_t head, uint32_t n_tokens, uint32_t capacity, std::vector<uint32_t>* out) override {
    if (rings_.has(head)) return rings_.select(head, n_tokens, out);
    const Head& h = heads_[head];
    if (h.n_selected == 0) return sinks_and_recent(n_tokens, 0, capacity, out);  // all tokens
    const auto first = selected_.begin() + static_cast<ptrdiff_t>(h.first);
    out->assign(first, first + h.n_selected);
  }

  uint32_t slot_for(uint32_t head, uint32_t length, uint32_t capacity) override {
    if (rings_.has(head)) return rings_.slot_for(head, length);
    return length < capacity ? length : heads_[head].victim;
  }

  Status after_step(Heads* heads, uint64_t, uint32_t position) override {
    for (uint32_t head = 0; sums_attention() && head < heads_.size(); ++head)
      if (!rings_.has(head))
        heads_[head].victim = least_slot(heads->positions(head), heads->attention_sums(head), position + 1, heads_[head].n_recent);
    return ok_status();
  }

  // Selections, and the best tokens of one head.
  uint64_t host_bytes(const HostShape&) const override {
    return bytes_of<Head>(heads_.size()) + bytes_of<uint32_t>(uint64_t{rings_.n_other_heads()} * uniform_.head_max() + n_context_);
  }

  Status state(StateBytes* s, const SavedMoment& at) override {
    ORRERY_TRY(rings_.state(s, *at.slots));
    for (uint32_t head = 0; head < heads_.size(); ++head) {
      if (rings_.has(head)) continue;
      ORRERY_TRY(s->check(at.slots->capacity[head] > 0, "a head has no slots"));
      ORRERY_TRY(s->value(&heads_[head].n_recent));
      ORRERY_TRY(s->number(&heads_[head].victim, at.slots->capacity[head], "the slot that the next token takes is outside its head"));
    }
    return ok_status();
  }

  std::unique_ptr<Policy> clone() const override { return clone_of(*this); }

 private:
  struct Head {
    size_t first = 0;         // index of its tokens in selected_
    uint32_t n_selected = 0;  // 0: the head keeps all tokens, and has none in selected_
    uint32_t n_recent = 0;
    uint32_t victim = 0;  // the slot that the next token takes, where all slots are taken
  };

  // The slot of the smallest sum, among tokens that are not recent once the token at n_tokens has come; tie: of the later token.
  static uint32_t least_slot(Span<const uint32_t> positions, Span<const float> sums, uint32_t n_tokens, uint32_t n_recent) {
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
  std::vector<uint32_t> selected_;  // since settle()
};

MadePolicy make(const Shape& shape, const Budget& budget, const Options& options, const SharedProfile&) {
  double recent = .5;
  OptionReader reader("h2o", options);
  ORRERY_TRY(reader.fraction("recent", &recent));
  ORRERY_TRY(reader.finish());
  auto policy = std::make_unique<H2O>(shape, budget, recent);
  ORRERY_TRY(policy->check());
  return std::unique_ptr<Policy>(std::move(policy));
}

}  // namespace h2o_method

constexpr Method kH2O = {{"h2o", "H2O", "arXiv:2306.14048",
                          /* score    */ "the sum of all queries' weights so far, mean of the group",
                          /* allocate */ "evenly",
                          /* keep     */ "the largest sums, and the most recent tokens",
                          /* refresh  */ "every step the newest token replaces the smallest sum that is not recent",
                          /* device   */ "the last query; on the CPU a step's weights, a float a slot and query head",
                          /* link     */ kSelectionOnLink, all(h2o_method::kOptions), h2o_method::kPage},
                         {1},
                         h2o_method::make};

}  // namespace orrery::policy
