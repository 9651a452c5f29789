#include "runtime/policy/published/engines/representatives.h"

#include <algorithm>

#include "runtime/policy/engines/tailed.h"
#include "runtime/policy/heads/clusters.h"
#include "runtime/policy/select/top_k.h"

namespace orrery::policy {

namespace {

class RepresentativePolicy final : public TailedPolicy {
 public:
  RepresentativePolicy(const Shape& shape, const Budget& budget, const RepresentativeSettings& settings, const Calibration& calibration,
                       SharedProfile profile)
      : TailedPolicy(shape, budget, {settings.tail}, calibration, std::move(profile)), settings_(settings),
        heads_(size_t{shape.n_layers} * shape.n_kv_heads) {
    if (profile_) use_profile();
    if (profile_ || settings_.representatives > 0 || n_kv_heads_ == 0) return;
    settings_.representatives = n_kv_heads_ >= 8 ? 2 : 1;
    if (!budget_.fits(n_full_heads())) settings_.representatives = 1;
  }

  Status check(const Budget& budget) const {
    if (settings_.representatives > n_kv_heads_ && !profile_)
      return option_error(Code::invalid_argument, "policy_options", "policy synckv: %u representatives among %u heads of a layer",
                          settings_.representatives, n_kv_heads_);
    return check_room(budget, "represent the others and keep their whole KV");
  }

  const char* name() const override { return "synckv"; }
  uint32_t n_full_heads() const override {
    return profile_ ? n_representatives_ : rings_.n_other_heads() / n_kv_heads_ * settings_.representatives;
  }

  uint32_t queries_wanted() const override { return std::max(TailedPolicy::queries_wanted(), settings_.window); }

  // All dynamic tokens at a budget of half, with 2 representatives of 8 heads. No other budget missed more.
  double refill_share() const override {
    if (!settings_.refresh) return 0;
    return settings_.visible > 1 ? std::max((1 - settings_.rho) / 2, kNextStepShare) : kNextStepShare;
  }

  Status settle(Heads* heads, uint32_t n_tokens, Span<uint32_t> capacity) override;
  void select(uint32_t head, uint32_t n_tokens, uint32_t, std::vector<uint32_t>* out) override {
    if (rings_.has(head)) return rings_.select(head, n_tokens, out);
    out->clear();
    const Head& h = heads_[head];
    if (h.representative == head || h.k == n_tokens) return select_all(n_tokens, out);
    const auto set = sets_.begin() + static_cast<ptrdiff_t>(h.set);
    out->insert(out->end(), set, set + h.k);
  }
  uint32_t max_scored_heads() const override { return settings_.refresh ? n_full_heads() : 0; }
  void scored_heads(std::vector<uint32_t>* heads) const override;
  Status after_step(Heads* heads, uint64_t step, uint32_t position) override;
  uint64_t host_bytes(const HostShape& host) const override {
    const uint64_t n = n_context_;
    return tailed_bytes() + bytes_of<Head>(heads_.size()) + bytes_of<uint32_t>(2 * n_full_heads() * budget_.head_max()) +
           (settings_.window == 1 ? 0 : last_queries_bytes(settings_.window, host.group) + bytes_of<float>(n) + bytes_of<uint32_t>(n));
  }
  Status state(StateBytes* s, const SavedMoment& at) override;
  std::unique_ptr<Policy> clone() const override { return clone_of(*this); }

 private:
  struct Head {
    uint32_t representative = 0;   // of its cluster, as a head of the model; the head itself: it is one
    uint32_t k = 0, n_static = 0;  // prompt tokens that the cluster's other heads hold; the static ones of these
    size_t set = 0;                // index of its cluster's tokens in sets_: static, then dynamic
  };
  // Whether the head selects at an anticipation: representatives with dynamic tokens.
  bool anticipates(uint32_t head) const {
    const Head& h = heads_[head];
    return !rings_.has(head) && h.representative == head && h.k != n_tokens_ && h.n_static != h.k;
  }
  void use_profile();
  void assign(uint32_t layer, const LayerClusters& clusters);
  Status find_clusters(Heads* heads, uint32_t n_tokens);
  // queries_'s best tokens, by the mean weights of the last `window` queries.
  Status select_by_window(Heads* heads, uint32_t n_tokens);

  RepresentativeSettings settings_;
  std::vector<Head> heads_;
  uint32_t n_representatives_ = 0;

  // Since settle():
  std::vector<uint32_t> sets_;  // each cluster's tokens: static, then dynamic, in score order
  std::vector<uint32_t> best_;  // laid out as sets_: a representative's best k at an anticipation, in score order
  std::vector<float> scores_;   // of select_by_window()
  Tokens ordered_;
};

void RepresentativePolicy::use_profile() {
  n_representatives_ = 0;
  for (uint32_t l = 0; l < n_layers_; ++l)
    if (window_[l] == 0) assign(l, profile_->layers[l].clusters);
}

void RepresentativePolicy::assign(uint32_t layer, const LayerClusters& clusters) {
  for (uint32_t h = 0; h < n_kv_heads_; ++h)
    heads_[size_t{layer} * n_kv_heads_ + h].representative = layer * n_kv_heads_ + clusters.representatives[clusters.cluster_of[h]];
  n_representatives_ += clusters.n_representatives();
}

Status RepresentativePolicy::find_clusters(Heads* heads, uint32_t n_tokens) {
  ORRERY_ASSIGN(const Calibrated found, calibrate(heads, rings_, shape(), n_tokens, calibration_));
  n_representatives_ = 0;
  size_t at = 0;
  for (uint32_t l = 0; l < n_layers_; ++l) {
    if (window_[l] > 0) continue;
    ORRERY_ASSIGN(const std::vector<double> similarity, found.layers[at++].mean_similarity());
    ORRERY_ASSIGN(const LayerClusters clusters, cluster_heads(similarity, n_kv_heads_, settings_.representatives));
    assign(l, clusters);
  }
  return ok_status();
}

Status RepresentativePolicy::settle(Heads* heads, uint32_t n_tokens, Span<uint32_t> capacity) {
  begin_settling(n_tokens, capacity);
  if (rings_.n_other_heads() == 0) return ok_status();
  if (!profile_) ORRERY_TRY(find_clusters(heads, n_tokens));

  // Each layer gets the same slots. An empty cluster leaves its representative's slots to the layer's other heads.
  const uint32_t n_windowless = rings_.n_other_heads() / n_kv_heads_;
  const TailedBudget::Division division = budget_.divide(n_tokens, n_full_heads());
  const uint64_t horizon = uint64_t{n_tokens} + division.tail, n_full = n_full_heads();
  const uint64_t all = n_full * horizon + (rings_.n_other_heads() - n_full) * division.tail + division.selected;
  size_t room = 0;
  for (uint32_t l = 0; l < n_layers_; ++l) {
    if (window_[l] > 0) continue;
    const uint32_t first = l * n_kv_heads_;
    uint64_t n_own = 0;
    for (uint32_t head = first; head < first + n_kv_heads_; ++head) n_own += heads_[head].representative == head;
    const uint64_t others = n_kv_heads_ - n_own, taken = n_own * horizon + others * division.tail;
    const uint64_t slots = all / n_windowless;
    uint32_t k = n_tokens;
    if (others > 0) {
      if (slots < taken + others) return error(Code::internal, "layer %u has no room for its heads at %u tokens", l, n_tokens);
      k = static_cast<uint32_t>(std::min<uint64_t>((slots - taken) / others, n_tokens));
    }
    const auto n_dynamic = static_cast<uint32_t>((1 - settings_.rho) * k + 1e-9);
    for (uint32_t head = first; head < first + n_kv_heads_; ++head) {
      Head& h = heads_[head];
      h.k = k;
      h.n_static = k - n_dynamic;
      const bool represents = h.representative == head;
      capacity[head] = (represents ? n_tokens : k) + division.tail;
      if (!represents) continue;
      h.set = room;
      room += k;
      if (k < n_tokens) queries_.push_back({head, n_tokens - 1, 1, n_tokens, k, true, nullptr});
    }
  }
  resize_discarding(&sets_, room);
  resize_discarding(&best_, room);
  for (Head& h : heads_) h.set = heads_[h.representative].set;
  for (KeyQuery& query : queries_) query.out = &sets_[heads_[query.head].set];
  ORRERY_TRY(settings_.window == 1 ? heads->top_keys(queries_, calibration_.rule) : select_by_window(heads, n_tokens));
  end_settling(n_tokens);
  return ok_status();
}

Status RepresentativePolicy::state(StateBytes* s, const SavedMoment& at) {
  ORRERY_TRY(tailed_state(s, at));
  const auto n_heads = static_cast<uint32_t>(heads_.size());
  size_t room = 0;
  for (uint32_t head = 0; head < n_heads; ++head) {
    if (rings_.has(head)) continue;
    Head& h = heads_[head];
    ORRERY_TRY(s->number(&h.representative, n_heads, "a head's representative is none"));
    ORRERY_TRY(s->number(&h.k, uint64_t{n_tokens_} + 1, "a head holds more tokens than were settled"));
    ORRERY_TRY(s->number(&h.n_static, uint64_t{h.k} + 1, "a head has more static tokens than tokens"));
    if (h.representative == head) h.set = room, room += h.k;
  }
  for (uint32_t head = 0; s->reads() && head < n_heads; ++head) {
    if (rings_.has(head)) continue;
    Head& h = heads_[head];
    const Head& of = heads_[h.representative];
    ORRERY_TRY(s->check(h.representative / n_kv_heads_ == head / n_kv_heads_ && of.representative == h.representative && of.k == h.k &&
                            of.n_static == h.n_static,
                        "a head's representative is none"));
    h.set = of.set;
    const bool represents = h.representative == head;
    ORRERY_TRY(s->check(represents ? at.slots->holds(head, 0, n_tokens_, 0, at.n_tokens) : at.slots->holds(head, 0, h.k, 0, n_tokens_),
                        "a head lacks tokens"));
  }
  for (const kv::SavedRefill& refill : at.refills)
    for (const kv::Replacement& r : refill.what)
      ORRERY_TRY(s->check(r.count <= n_tokens_ && r.position <= n_tokens_ - r.count, "a refill of tokens behind the settled ones"));
  ORRERY_TRY(s->numbers(&sets_, room, n_tokens_, "a cluster's token was not settled"));
  if (!s->reads()) return ok_status();
  resize_discarding(&best_, room);
  queries_.reserve(n_heads);
  end_settling(n_tokens_);
  return ok_status();
}

Status RepresentativePolicy::select_by_window(Heads* heads, uint32_t n_tokens) {
  resize_discarding(&scores_, n_tokens);
  ordered_.reserve(n_tokens);
  for (const KeyQuery& query : queries_) {
    ORRERY_TRY(score_by_last(heads, query.head, settings_.window, n_tokens, scores_));
    top_k(scores_, query.k, &ordered_);
    std::copy(ordered_.begin(), ordered_.end(), query.out);
  }
  return ok_status();
}

void RepresentativePolicy::scored_heads(std::vector<uint32_t>* heads) const {
  heads->clear();
  if (!settings_.refresh || !is_anticipation(n_steps_ + 1, settings_.steps)) return;
  for (uint32_t head = 0; head < heads_.size(); ++head)
    if (anticipates(head)) heads->push_back(head);
}

Status RepresentativePolicy::after_step(Heads* heads, uint64_t step, uint32_t position) {
  if (!is_anticipation(++n_steps_, settings_.steps) || !settings_.refresh) return ok_status();
  queries_.clear();
  for (uint32_t head = 0; head < heads_.size(); ++head)
    if (anticipates(head)) queries_.push_back({head, position, 1, n_tokens_, heads_[head].k, true, &best_[heads_[head].set]});
  ORRERY_TRY(heads->top_keys(queries_, calibration_.rule));
  for (const KeyQuery& query : queries_) {
    // Of the best k tokens at least k - n_static are not static.
    const Head& h = heads_[query.head];
    uint32_t* set = &sets_[h.set];
    uint32_t* dynamic = set + h.n_static;
    for (uint32_t i = 0; i < h.n_static; ++i) marks_[set[i]] = 1;
    uint32_t n = 0;
    for (uint32_t i = 0; i < h.k && n < h.k - h.n_static; ++i)
      if (!marks_[query.out[i]]) dynamic[n++] = query.out[i];
    for (uint32_t i = 0; i < h.n_static; ++i) marks_[set[i]] = 0;
    const uint32_t first = query.head / n_kv_heads_ * n_kv_heads_;
    for (uint32_t head = first; head < first + n_kv_heads_; ++head) {
      if (head == query.head || heads_[head].representative != query.head) continue;
      ORRERY_TRY(refill(heads, head, h.n_static, {dynamic, n}, step + settings_.visible));
    }
  }
  return ok_status();
}

}  // namespace

Result<std::unique_ptr<Policy>> make_representatives(const RepresentativeSettings& settings, const Calibration& calibration,
                                                     const Shape& shape, const Budget& budget, const SharedProfile& profile) {
  auto policy = std::make_unique<RepresentativePolicy>(shape, budget, settings, calibration, profile);
  ORRERY_TRY(policy->check(budget));
  return std::unique_ptr<Policy>(std::move(policy));
}

}  // namespace orrery::policy
