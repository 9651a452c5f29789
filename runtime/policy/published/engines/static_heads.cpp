#include "runtime/policy/published/engines/static_heads.h"

#include <algorithm>

#include "runtime/policy/allocate/apportion.h"
#include "runtime/policy/engines/tailed.h"
#include "runtime/policy/options.h"
#include "runtime/policy/table.h"

namespace orrery::policy {

namespace {

constexpr uint32_t kStreamingTokens = 384;  // of a streaming head: the published 128 sinks and 256 recent tokens
constexpr double kStreamingShare = .25;     // of the budget, at most

class StaticHeads final : public TailedPolicy {
 public:
  StaticHeads(const char* name, const Shape& shape, const Budget& budget, const StaticHeadSettings& settings, SharedProfile profile)
      : TailedPolicy(shape, budget, {settings.tail}, {}, std::move(profile),
                     settings.compensation ? Ratio{shape.compensation_token_bytes, shape.slot_bytes} : Ratio{}),
        name_(name), settings_(settings), heads_(size_t{shape.n_layers} * shape.n_kv_heads) {
    const double n = rings_.n_other_heads(), all = n * n_context_;
    const double share = std::min(budget.share.of_tokens(), all > 0 ? static_cast<double>(max_slots(budget)) / all : 1.0);
    // Shares of the context: `streaming` of a streaming head; full + (1 - full) streaming = share.
    const double streaming =
        std::min(static_cast<double>(kStreamingTokens) / n_context_, kStreamingShare * share / (1 - (1 - kStreamingShare) * share + 1e-12));
    double full = settings_.full_share;
    if (full < 0 && share >= 1) full = 1;
    if (full < 0)
      full = settings_.max_full < 1 ? std::min(settings_.max_full, share / 2) : std::max(0.0, (share - streaming) / (1 - streaming));
    n_full_ = static_cast<uint32_t>(full * n + 1e-6);
    if (settings_.full_share < 0 && settings_.max_full == 1 && full < 1 && profile_ && profile_->has_gates())
      n_full_ = std::min(n_full_, n_above_quantile());
    // Fewer where the slots of the plan, or of the shortest contexts, do not hold them.
    while (settings_.full_share < 0 && n_full_ > 0 && !budget_.fits(n_full_)) --n_full_;
    choose_full(std::vector<double>(heads_.size()));
    if (profile_) rank_by_profile();
  }

  // Some heads retrieve and others stream, and nothing says which.
  bool lacks_profile() const { return !profile_ && settings_.rank == HeadRank::profile && n_full_ > 0 && n_full_ < rings_.n_other_heads(); }

  const char* name() const override { return name_; }
  uint32_t n_full_heads() const override { return n_full_; }
  uint32_t max_compensation_tokens() const override { return settings_.compensation ? rings_.n_other_heads() - n_full_ : 0; }
  bool has_compensation_token(uint32_t head) const override { return settings_.compensation && !rings_.has(head) && !heads_[head].full; }
  uint32_t queries_wanted() const override { return profile_ ? 0 : settings_.window; }

  Status settle(Heads* heads, uint32_t n_tokens, Span<uint32_t> capacity) override {
    begin_settling(n_tokens, capacity);
    const uint32_t n = rings_.n_other_heads(), n_streaming = n - n_full_;
    if (n == 0) return ok_status();
    const TailedBudget::Division division = budget_.divide(n_tokens, n_full_);
    if (n_streaming > 0 && division.selected == 0)
      return error(Code::internal, "%u streaming heads have no room at %u tokens", n_streaming, n_tokens);
    const uint32_t each = n_streaming > 0 ? static_cast<uint32_t>(division.selected / n_streaming) : 0;
    if (!profile_ && n_streaming > 0 && n_full_ > 0) ORRERY_TRY(rank_by_attention(heads, n_tokens, each));
    ORRERY_ASSIGN(const std::vector<uint64_t> shares,
                  apportion_evenly(std::max(n_streaming, 1u), n_streaming > 0 ? division.selected : 0, n_tokens));
    size_t at = 0;
    for (uint32_t head = 0; head < heads_.size(); ++head) {
      if (rings_.has(head)) continue;
      Head& h = heads_[head];
      h.next = 0;
      capacity[head] = division.tail + (h.full ? n_tokens : static_cast<uint32_t>(shares[at++]));
    }
    return ok_status();
  }

  void select(uint32_t head, uint32_t n_tokens, uint32_t capacity, std::vector<uint32_t>* out) override {
    if (rings_.has(head)) return rings_.select(head, n_tokens, out);
    const uint32_t s = sinks(capacity);
    sinks_and_recent(n_tokens, s, capacity - s, out);  // a full head: all tokens
  }

  uint32_t slot_for(uint32_t head, uint32_t length, uint32_t capacity) override {
    Head& h = heads_[head];
    if (rings_.has(head) || h.full || length < capacity) return TailedPolicy::slot_for(head, length, capacity);
    const uint32_t s = sinks(capacity), slot = s + h.next;  // the slots after the sinks are a ring, oldest first
    h.next = (h.next + 1) % (capacity - s);
    return slot;
  }

  uint64_t host_bytes(const HostShape&) const override {  // the weights of one head, where attention ranks heads
    return bytes_of<Head>(heads_.size()) + (profile_ || n_full_ == 0 ? 0 : bytes_of<float>(n_context_)) +
           heads_.size() * (2 * sizeof(double) + 2 * sizeof(uint32_t));
  }

  Status state(StateBytes* s, const SavedMoment& at) override {
    ORRERY_TRY(tailed_state(s, at));
    for (uint32_t head = 0; head < heads_.size(); ++head) {
      if (rings_.has(head)) continue;
      Head& h = heads_[head];
      const uint32_t n = at.slots->capacity[head];
      ORRERY_TRY(s->flag(&h.full, "whether a head retrieves is neither yes nor no"));
      ORRERY_TRY(s->check(n > 0, "a head has no slots"));
      ORRERY_TRY(s->number(&h.next, n - sinks(n), "the oldest slot of a ring is outside it"));
    }
    return ok_status();
  }

  std::unique_ptr<Policy> clone() const override { return clone_of(*this); }

 private:
  struct Head {
    bool full = false;
    uint32_t next = 0;  // of a streaming head: the ring's oldest slot
  };
  uint32_t sinks(uint32_t capacity) const { return std::min(settings_.sinks, capacity / 3); }

  // The n_full_ heads with the largest scores retrieve; tie: the lower head.
  void choose_full(const std::vector<double>& rank_scores) { choose_full(rank_scores, n_full_); }
  void choose_full(const std::vector<double>& rank_scores, uint32_t n_full) {
    std::vector<uint32_t> order;
    for (uint32_t head = 0; head < heads_.size(); ++head)
      if (!rings_.has(head)) order.push_back(head);
    std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return rank_scores[a] > rank_scores[b]; });
    for (size_t i = 0; i < order.size(); ++i) heads_[order[i]].full = i < n_full;
  }

  // Full heads of the profile in layers without window: those above the gates' quantile.
  uint32_t n_above_quantile() const {
    uint32_t n = 0;
    for (uint32_t head = 0; head < heads_.size(); ++head)
      n += !rings_.has(head) && is_full(profile_->layers[head / n_kv_heads_].roles.roles[head % n_kv_heads_]);
    return n;
  }

  // The heads with the largest induction scores, but for some with the largest echo scores among the others; or both together.
  void rank_by_retrieval() {
    const auto n_echo = static_cast<uint32_t>(settings_.echo_share * n_full_ + .5);
    std::vector<double> rank_scores(heads_.size());
    const auto layer = [&](uint32_t head) -> const ProfileLayer& { return profile_->layers[head / n_kv_heads_]; };
    for (uint32_t head = 0; head < heads_.size(); ++head) {
      const uint32_t h = head % n_kv_heads_;
      rank_scores[head] = layer(head).induction[h] + (settings_.echo_share > 0 ? 0 : layer(head).echo[h]);
    }
    choose_full(rank_scores, n_full_ - n_echo);
    if (n_echo == 0) return;
    for (uint32_t head = 0; head < heads_.size(); ++head) rank_scores[head] = heads_[head].full ? 2 : layer(head).echo[head % n_kv_heads_];
    choose_full(rank_scores);
  }

  // By gates; or by what heads retrieve; or full roles first, then by instability, or allocation.
  void rank_by_profile() {
    if (!profile_->has_gates() && profile_->has_retrieval()) return rank_by_retrieval();
    std::vector<double> rank_scores(heads_.size());
    for (uint32_t head = 0; head < heads_.size(); ++head) {
      const ProfileLayer& layer = profile_->layers[head / n_kv_heads_];
      const uint32_t h = head % n_kv_heads_;
      const double unstable = !layer.gates.empty()       ? layer.gates[h]
                              : !layer.stability.empty() ? 1 - layer.stability[h]
                                                         : layer.allocation[h];
      rank_scores[head] = unstable + (is_full(layer.roles.roles[h]) ? 1e6 : 0);  // larger than any allocation
    }
    choose_full(rank_scores);
  }

  // By the attention of the prompt's last queries to the tokens that a streaming head would not hold.
  Status rank_by_attention(Heads* heads, uint32_t n_tokens, uint32_t each) {
    const uint32_t n_queries = std::min({settings_.window, heads->n_queries(), n_tokens});
    const uint32_t s = sinks(each), recent = each - s;
    std::vector<double> rank_scores(heads_.size());
    std::vector<float> weights(n_tokens);
    for (uint32_t head = 0; head < heads_.size(); ++head) {
      if (rings_.has(head)) continue;
      const WeightsQuery query{head, n_tokens - n_queries, n_queries, n_tokens, true, weights.data()};
      ORRERY_TRY(heads->key_weights({&query, 1}));
      for (uint32_t p = s; p + recent < n_tokens; ++p) rank_scores[head] += static_cast<double>(weights[p]);
    }
    choose_full(rank_scores);
    return ok_status();
  }

  const char* const name_;
  const StaticHeadSettings settings_;
  uint32_t n_full_ = 0;
  std::vector<Head> heads_;
};

}  // namespace

Result<std::unique_ptr<Policy>> make_static_heads(const char* name, const StaticHeadSettings& defaults, const Shape& shape,
                                                  const Budget& budget, const Options& options, const SharedProfile& profile) {
  StaticHeadSettings s = defaults;
  OptionReader reader(name, options);
  ORRERY_TRY(reader.fraction("full_share", &s.full_share));
  ORRERY_TRY(reader.count("sinks", 0, 1u << 20, &s.sinks));
  ORRERY_TRY(reader.flag("compensation", &s.compensation));
  ORRERY_TRY(reader.choice("rank", {"profile", "attention"}, &s.rank));
  ORRERY_TRY(reader.count("window", 1, kMaxWindow, &s.window));
  ORRERY_TRY(reader.count("tail", 0, 1u << 20, &s.tail));
  ORRERY_TRY(reader.finish());
  auto policy = std::make_unique<StaticHeads>(name, shape, budget, s, profile);
  ORRERY_TRY(policy->check_room(budget, "retrieve and keep their whole KV"));
  if (policy->lacks_profile())
    return option_error(
        Code::invalid_argument, "head_profile",
        "policy %s: a head profile must say which heads retrieve: `orrery profile MODEL TEXT --out FILE`, or orrery_calibrate(), makes "
        "one, and --head-profile FILE, or head_profile of the session's options, gives it; option rank=attention ranks heads by the "
        "prompt instead, which loses much of a published model's answers",
        name);
  return std::unique_ptr<Policy>(std::move(policy));
}

}  // namespace orrery::policy
