// SyncKV (paper: SyncKV, section 4 and appendix B): heads of a layer that look at the same tokens share one selection.
//   score     the last query of a cluster's representative: softmax, maximum over the group, no pooling
//   allocate  representatives hold everything; the others of a layer k tokens each
//   keep      the best k prompt tokens: ceil(rho k) static for good, the rest dynamic; and every generated one
//   refresh   every m = 5 steps the representative's query anticipates: the best dynamic tokens that are not static
// Clusters come from a head profile; without one the session clusters its heads with the prompt's last queries.
//
// Where the paper contradicts itself or is silent:
//   - Each cluster has its own set (eq. 7 and the text; algorithm 1, line 23 takes the union of all).
//   - The best dynamic tokens are taken from those that are not static, so none is held twice.
//   - k comes from the share of memory, layer by layer: k / L = (share H - N_r) / (H - N_r). N_r is `representatives`
//     where given, and a share that does not hold it an error; else 2 of 8 heads and more, 1 of fewer, or 1 where the
//     share holds no 2.
//   - Candidates are prompt tokens, the softmax runs over these; generated tokens go to every head, and count: the tail
//     that they go to is inside the budget, and a full one settles everything anew.
// An anticipation in step t_A serves the steps t_A + visible to t_A + visible + m - 1; the paper's `visible` is 1. A later
// one takes a staging ring for all that is asked for at once.
#include <algorithm>

#include "runtime/policy/engines/tailed.h"
#include "runtime/policy/heads/clusters.h"
#include "runtime/policy/methods/methods.h"
#include "runtime/policy/options.h"
#include "runtime/policy/refresh/anticipation.h"

namespace orrery::policy {

namespace {

constexpr uint32_t kMostSteps = 1024;

struct Settings {
  uint32_t representatives = 0;   // of a layer; 0: as it fits
  double rho = .5;
  uint32_t m = 5, visible = 1, tail = 0;
  bool refresh = true;
};

class SyncKv final : public TailedPolicy {
 public:
  SyncKv(const Shape& shape, const Budget& budget, const Settings& settings, const Calibration& calibration,
         SharedProfile profile)
      : TailedPolicy(shape, budget, {settings.tail}, calibration, std::move(profile)),
        settings_(settings),
        heads_(size_t{shape.n_layers} * shape.n_kv_heads) {
    if (profile_) use_profile();
    if (profile_ || settings_.representatives > 0 || n_kv_heads_ == 0) return;
    settings_.representatives = n_kv_heads_ >= 8 ? 2 : 1;
    if (!budget_.fits(n_full_heads())) settings_.representatives = 1;
  }

  Status check(const Budget& budget) const {
    if (settings_.representatives > n_kv_heads_ && !profile_)
      return error(Code::invalid_argument, "policy synckv: %u representatives among %u heads of a layer",
                   settings_.representatives, n_kv_heads_);
    return check_room(budget, "represent the others and keep their whole KV");
  }

  const char* name() const override { return "synckv"; }
  uint32_t n_full_heads() const override {
    return profile_ ? n_representatives_ : rings_.n_other_heads() / n_kv_heads_ * settings_.representatives;
  }

  // All dynamic tokens of half a budget, with 2 representatives of 8; more were never missed at other budgets.
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
  uint64_t host_bytes(const HostShape&) const override {
    return tailed_bytes() + bytes_of<Head>(heads_.size()) + bytes_of<uint32_t>(2 * n_full_heads() * budget_.most_of_head());
  }
  std::unique_ptr<Policy> clone() const override { return clone_of(*this); }

 private:
  struct Head {
    uint32_t representative = 0;   // of its cluster, as a head of the whole model; its own: it is one
    uint32_t k = 0, n_static = 0;  // tokens of the prompt that it holds, of which static
    size_t set = 0;                // of a representative's static and dynamic tokens in sets_, its cluster's
  };
  // Whether a head is asked at an anticipation: representatives of which a part is dynamic.
  bool asked(uint32_t head) const {
    const Head& h = heads_[head];
    return !rings_.has(head) && h.representative == head && h.k != n_tokens_ && h.n_static != h.k;
  }
  void use_profile();
  void assign(uint32_t layer, const LayerClusters& clusters);
  Status find_clusters(Heads* heads, uint32_t n_tokens);

  Settings settings_;
  std::vector<Head> heads_;
  uint32_t n_representatives_ = 0;

  // Since settling.
  std::vector<uint32_t> sets_;       // each cluster's: static, then dynamic, as they were chosen
  std::vector<uint32_t> best_;       // of an anticipation, beside sets_: the representative's best k, in score order
};

void SyncKv::use_profile() {
  n_representatives_ = 0;
  for (uint32_t l = 0; l < n_layers_; ++l)
    if (window_[l] == 0) assign(l, profile_->layers[l].clusters);
}

void SyncKv::assign(uint32_t layer, const LayerClusters& clusters) {
  for (uint32_t h = 0; h < n_kv_heads_; ++h)
    heads_[size_t{layer} * n_kv_heads_ + h].representative =
        layer * n_kv_heads_ + clusters.representatives[clusters.cluster_of[h]];
  n_representatives_ += clusters.n_representatives();
}

Status SyncKv::find_clusters(Heads* heads, uint32_t n_tokens) {
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

Status SyncKv::settle(Heads* heads, uint32_t n_tokens, Span<uint32_t> capacity) {
  begin_settling(n_tokens, capacity);
  if (rings_.n_other_heads() == 0) return ok_status();
  if (!profile_) ORRERY_TRY(find_clusters(heads, n_tokens));

  // Every layer its share: an empty cluster leaves its representative's slots to the layer's other heads.
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
      if (slots < taken + others)
        return error(Code::internal, "layer %u has no room for its heads at %u tokens", l, n_tokens);
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
  renew(&sets_, room);
  renew(&best_, room);
  for (Head& h : heads_) h.set = heads_[h.representative].set;
  for (KeyQuery& query : queries_) query.out = &sets_[heads_[query.head].set];
  ORRERY_TRY(heads->top_keys(queries_, calibration_.rule));
  end_settling(n_tokens);
  return ok_status();
}

void SyncKv::scored_heads(std::vector<uint32_t>* heads) const {
  heads->clear();
  if (!settings_.refresh || !is_anticipation(n_steps_ + 1, settings_.m)) return;
  for (uint32_t head = 0; head < heads_.size(); ++head)
    if (asked(head)) heads->push_back(head);
}

Status SyncKv::after_step(Heads* heads, uint64_t step, uint32_t position) {
  if (!is_anticipation(++n_steps_, settings_.m) || !settings_.refresh) return ok_status();
  queries_.clear();
  for (uint32_t head = 0; head < heads_.size(); ++head)
    if (asked(head)) queries_.push_back({head, position, 1, n_tokens_, heads_[head].k, true, &best_[heads_[head].set]});
  ORRERY_TRY(heads->top_keys(queries_, calibration_.rule));
  for (const KeyQuery& query : queries_) {
    // Of the best k, static tokens included, at least n_dynamic are not static.
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

Result<std::unique_ptr<Policy>> make_synckv(const Shape& shape, const Budget& budget, const Options& options,
                                            const SharedProfile& profile) {
  Settings s;
  Calibration calibration;
  calibration.rule = {GroupReduce::max, Pooling::none, 1, true};
  OptionReader reader("synckv", options);
  ORRERY_TRY(reader.count("representatives", 1, kMaxKvHeads, &s.representatives));
  ORRERY_TRY(reader.fraction("rho", &s.rho));
  ORRERY_TRY(reader.count("steps", 1, kMostSteps, &s.m));
  ORRERY_TRY(reader.count("visible", 1, s.m, &s.visible));
  ORRERY_TRY(reader.flag("refresh", &s.refresh));
  ORRERY_TRY(reader.count("tail", 0, 1u << 20, &s.tail));
  ORRERY_TRY(reader.count("calibration", 1, 64, &calibration.n_queries));
  ORRERY_TRY(reader.count("top_k", 1, 1u << 20, &calibration.top_k));
  ORRERY_TRY(reader.finish());
  if (profile) {
    if (reader.given("representatives"))
      return error(Code::invalid_argument, "policy synckv: representatives come from the head profile");
    for (size_t l = 0; l < profile->layers.size(); ++l)
      if (profile->layers[l].clusters.representatives.empty())
        return error(Code::invalid_argument, "policy synckv: the head profile has no clusters for layer %zu", l);
  }
  auto policy = std::make_unique<SyncKv>(shape, budget, s, calibration, profile);
  ORRERY_TRY(policy->check(budget));
  return std::unique_ptr<Policy>(std::move(policy));
}

}  // namespace orrery::policy
