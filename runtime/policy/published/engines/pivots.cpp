#include "runtime/policy/published/engines/pivots.h"

#include <algorithm>

#include "runtime/policy/allocate/over_heads.h"
#include "runtime/policy/engines/tailed.h"
#include "runtime/policy/select/sets.h"
#include "runtime/policy/select/top_k.h"

namespace orrery::policy {

namespace {

constexpr uint32_t kNotYet = UINT32_MAX;
constexpr double kFullShare = .2;
// Measured on the demo model at 30 to 80% (results in tests/bench): the refills of a block are seldom more than .07 of the slots, .28 where
// every pivot triggers at once.
constexpr double kRefilledInABlock = 1. / 8;

class PivotPolicy final : public TailedPolicy {
 public:
  PivotPolicy(const Shape& shape, const Budget& budget, const PivotSettings& settings, const Calibration& calibration,
              SharedProfile profile)
      : TailedPolicy(shape, budget, {settings.tail}, calibration, std::move(profile)), settings_(settings),
        heads_(size_t{shape.n_layers} * shape.n_kv_heads) {
    if (settings_.tau_drift < 0) settings_.tau_drift = profile_ ? profile_->tau_drift : settings_.tau.tau_stable;
    // Without a profile and without full_share, full heads take at most half of the budget.
    const double n = rings_.n_other_heads();
    double share = settings_.full_share;
    if (share < 0)
      share = std::min({kFullShare, budget.share.of_tokens() / 2, static_cast<double>(max_slots(budget)) / (n * n_context_) / 2});
    max_full_ = static_cast<uint32_t>(share * n + 1e-6);
    if (profile_) use_profile();
  }

  const char* name() const override { return "heterocache"; }
  uint32_t n_full_heads() const override { return profile_ ? n_full_ : max_full_; }

  double refill_share() const override {
    if (!settings_.refresh) return 0;
    return settings_.visible > 1 ? kRefilledInABlock : kNextStepShare;
  }

  Status settle(Heads* heads, uint32_t n_tokens, Span<uint32_t> capacity) override;
  void select(uint32_t head, uint32_t n_tokens, uint32_t, std::vector<uint32_t>* out) override {
    if (rings_.has(head)) return rings_.select(head, n_tokens, out);
    out->clear();
    const Head& h = heads_[head];
    if (h.full) return select_all(n_tokens, out);
    const auto first = selected_.begin() + static_cast<ptrdiff_t>(h.first);
    out->insert(out->end(), first, first + h.n_selected);
  }
  // Pivots: the profile's number, or at most all full heads.
  uint32_t max_scored_heads() const override { return !settings_.refresh ? 0 : profile_ ? report_.roles.pivot : max_full_; }
  void scored_heads(std::vector<uint32_t>* heads) const override;
  uint32_t queries_wanted() const override { return std::max(TailedPolicy::queries_wanted(), settings_.window); }
  bool asks_before_attend() const override {
    return settings_.speculative && settings_.refresh && settings_.tau_query > 0 && !budget_.holds_all();
  }
  bool fetches_pages() const override { return asks_before_attend(); }
  Status before_attend(Heads* heads, uint32_t layer, uint64_t step, uint32_t position) override;
  uint64_t host_bytes(const HostShape& host) const override;
  Status after_step(Heads* heads, uint64_t step, uint32_t position) override;
  Status state(StateBytes* s, const SavedMoment& at) override;
  std::unique_ptr<Policy> clone() const override { return clone_of(*this); }

 private:
  struct Head {
    Role role = Role::anchor;
    bool full = false;
    uint32_t pivot = kNoHead;  // a satellite's pivot, as a head of the model
    double weight = 1;         // eq. 8
    size_t first = 0;          // index of a compressed head's tokens in selected_
    uint32_t n_selected = 0;
    size_t base = 0;  // index of a pivot's K_base in base_
  };
  void use_profile();
  void make_room();  // the working memory of steps, for pivots_ and the selections
  void assign(const std::vector<LayerRoles>& layers);
  Status find_roles(Heads* heads, uint32_t n_tokens);
  Status fit_budget(std::vector<LayerRoles>* layers, const std::vector<LayerStatistics>& statistics);
  // Scores of the prompt's keys by its last queries: (compressed heads, n_tokens).
  Result<std::vector<float>> score(Heads* heads, uint32_t n_tokens);
  Result<std::vector<uint64_t>> lengths(Span<const float> scores, Span<const double> weights, uint32_t n_tokens) const;
  bool follows(uint32_t head, uint32_t p) const { return heads_[head].pivot == pivots_[p]; }
  Status speculate(Heads* heads, uint64_t step, uint32_t position);
  Status fetch_followers(Heads* heads, uint32_t layer, uint32_t position);
  Status end_fetched_step(Heads* heads);
  void note_changes(Heads* heads);
  // Schedules the refills of those satellites of a pivot that `refills` names: the pivot's best tokens, as many as each has slots.
  template <class F>
  Status refill_satellites(Heads* heads, uint32_t p, uint64_t visible_at, const F& refills);
  uint32_t most_satellite_tokens(uint32_t pivot) const;  // of its satellites' selections the largest
  // Speculative: asks for the pivot's best tokens by its query at `position`, in score order: into best_.
  void ask(uint32_t p, uint32_t position) {
    queries_.push_back({pivots_[p], position, 1, n_tokens_, most_satellite_tokens(pivots_[p]), true, &best_[best_of(p)]});
  }
  size_t best_of(uint32_t p) const { return settings_.speculative ? size_t{p} * max_selected_ : 0; }
  // A pivot's queries since its last check. Once a majority of the overlaps lies on one side of tau_drift, so does the block's median: the
  // remaining queries need not be measured.
  struct Block {
    uint32_t n_measured = 0, n_below = 0;
  };
  uint32_t place_in_block(uint32_t pivot, uint64_t t) const;
  bool measures(uint32_t pivot, uint64_t t) const;
  Status measure(Heads* heads, uint32_t position);
  bool drifted(uint32_t pivot);
  template <class F>
  void for_each_head(const F& f) {  // of layers without window
    for (uint32_t head = 0; head < heads_.size(); ++head)
      if (!rings_.has(head)) f(head, heads_[head]);
  }

  PivotSettings settings_;
  std::vector<Head> heads_;
  uint32_t max_full_ = 0, n_full_ = 0;

  // Since settle():
  uint32_t l_base_ = 0, max_selected_ = 0;
  std::vector<uint32_t> selected_;  // the compressed heads' tokens, head by head
  std::vector<uint32_t> pivots_;    // heads
  std::vector<uint32_t> base_;      // (n_pivots, l_base)
  // For checks; pivots are indices of pivots_:
  std::vector<Block> blocks_;           // (n_pivots)
  std::vector<double> overlaps_;        // (n_pivots, W)
  std::vector<uint32_t> common_;        // (n_pivots) tokens of K_base among this step's best
  ReservedVector<uint32_t> measuring_;  // pivots that this step measures
  std::vector<uint32_t> best_;  // (max_selected) best tokens of a pivot, in score order; speculative: of all pivots, one after another
  // Speculative:
  std::vector<float> similarity_;            // (n_kv_heads) of a layer's queries
  std::vector<uint8_t> corrected_;           // (n_pivots) 1: the step has found this pivot's best tokens already
  ReservedVector<uint32_t> wanted_;          // (max_selected)
  ReservedVector<FollowerQuery> followers_;  // (n_kv_heads)
};

void PivotPolicy::use_profile() {
  std::vector<LayerRoles> layers;
  for (uint32_t l = 0; l < n_layers_; ++l)
    if (window_[l] == 0) layers.push_back(profile_->layers[l].roles);
  // weights() lists the compressed heads of all layers, windowed ones included.
  const std::vector<double> weights = profile_->weights();
  size_t at = 0;
  for (uint32_t l = 0; l < n_layers_; ++l)
    for (uint32_t h = 0; h < n_kv_heads_; ++h)
      if (!is_full(profile_->layers[l].roles.roles[h])) heads_[size_t{l} * n_kv_heads_ + h].weight = weights[at++];
  assign(layers);
}

// Roles of the layers without window, in order.
void PivotPolicy::assign(const std::vector<LayerRoles>& layers) {
  n_full_ = 0;
  report_.roles = count_roles(layers);
  size_t at = 0;
  for (uint32_t l = 0; l < n_layers_; ++l) {
    if (window_[l] > 0) continue;
    const LayerRoles& layer = layers[at++];
    for (uint32_t h = 0; h < n_kv_heads_; ++h) {
      Head& head = heads_[size_t{l} * n_kv_heads_ + h];
      head.role = layer.roles[h];
      head.full = is_full(head.role);
      head.pivot = layer.pivot_of[h] == kNoHead ? kNoHead : l * n_kv_heads_ + layer.pivot_of[h];
      n_full_ += head.full;
    }
  }
}

// Reduces the full heads to max_full_: by demotion or by other thresholds, then by giving up pivots.
Status PivotPolicy::fit_budget(std::vector<LayerRoles>* layers, const std::vector<LayerStatistics>& statistics) {
  if (count_roles(*layers).full() <= max_full_) return ok_status();
  std::vector<std::vector<double>> stability;
  for (const LayerStatistics& layer : statistics) stability.push_back(layer.stability);
  if (!settings_.demote || count_roles(*layers).pivot > max_full_) {
    Result<Thresholds> found = find_thresholds(statistics, max_full_, settings_.tau);
    if (found.ok()) {
      for (size_t i = 0; i < layers->size(); ++i) {
        ORRERY_ASSIGN((*layers)[i], classify(statistics[i], found.value()));
      }
      return ok_status();
    }
  }
  // More pivots than max_full_: the clusters with the fewest satellites are given up, and their heads become anchors.
  while (count_roles(*layers).pivot > max_full_) {
    size_t layer = 0, fewest = SIZE_MAX;
    uint32_t pivot = 0;
    for (size_t i = 0; i < layers->size(); ++i)
      for (uint32_t h = 0; h < n_kv_heads_; ++h) {
        if ((*layers)[i].roles[h] != Role::pivot) continue;
        const size_t n = (*layers)[i].satellites_of(h).size();
        if (n < fewest) fewest = n, layer = i, pivot = h;
      }
    LayerRoles& roles = (*layers)[layer];
    for (const uint32_t satellite : roles.satellites_of(pivot)) roles.roles[satellite] = Role::anchor, roles.pivot_of[satellite] = kNoHead;
    roles.roles[pivot] = Role::anchor;
  }
  ORRERY_ASSIGN(const auto demoted, demote_volatile(layers, stability, max_full_));
  report_.n_demoted = static_cast<uint32_t>(demoted.size());
  return ok_status();
}

Status PivotPolicy::find_roles(Heads* heads, uint32_t n_tokens) {
  ORRERY_ASSIGN(const Calibrated found, calibrate(heads, rings_, shape(), n_tokens, calibration_));
  std::vector<LayerStatistics> statistics(found.layers.size());
  std::vector<LayerRoles> layers(found.layers.size());
  for (size_t i = 0; i < found.layers.size(); ++i) {
    ORRERY_ASSIGN(statistics[i].stability, found.layers[i].stability());
    ORRERY_ASSIGN(statistics[i].similarity, found.layers[i].similarity());
    ORRERY_ASSIGN(layers[i], classify(statistics[i], settings_.tau));
  }
  report_.n_demoted = 0;
  ORRERY_TRY(fit_budget(&layers, statistics));
  assign(layers);
  size_t at = 0;
  for (uint32_t l = 0; l < n_layers_; ++l) {
    if (window_[l] > 0) continue;
    for (uint32_t h = 0; h < n_kv_heads_; ++h)
      heads_[size_t{l} * n_kv_heads_ + h].weight = stability_weight(statistics[at].stability[h], found.top_k);
    ++at;
  }
  return ok_status();
}

uint64_t PivotPolicy::host_bytes(const HostShape& host) const {
  const uint64_t n = n_context_, n_compressed = rings_.n_other_heads() - (profile_ ? n_full_ : 0), n_pivots = n_full_heads();
  const uint64_t max_selected = settings_.adaptive || !profile_ ? n : budget_.head_max(), sets = n_compressed + n_pivots;
  uint64_t bytes = tailed_bytes() + bytes_of<Head>(heads_.size()) + bytes_of<uint32_t>(sets * budget_.head_max()) +
                   bytes_of<uint32_t>(max_selected * (settings_.speculative ? n_pivots : 1)) +
                   n_pivots * (sizeof(Block) + settings_.block * sizeof(double) + 3 * sizeof(uint32_t));
  if (settings_.speculative) bytes += bytes_of<uint32_t>(max_selected) + n_pivots * sizeof(uint8_t);
  if (asks_before_attend()) bytes += n_kv_heads_ * (sizeof(float) + sizeof(FollowerQuery));
  if (settings_.window == 1 && !settings_.adaptive) return bytes;
  // Scores of all keys, what computes them, and what counts the best ones.
  return bytes + bytes_of<float>(3 * n_compressed * n) + last_queries_bytes(settings_.window, host.group);
}

Status PivotPolicy::settle(Heads* heads, uint32_t n_tokens, Span<uint32_t> capacity) {
  note_changes(heads);  // of a step that has failed since
  begin_settling(n_tokens, capacity);
  selected_.clear();
  pivots_.clear();
  if (rings_.n_other_heads() == 0) return ok_status();
  if (!profile_) ORRERY_TRY(find_roles(heads, n_tokens));

  // Eq. 7 and 8.
  const TailedBudget::Division division = budget_.divide(n_tokens, n_full_);
  std::vector<double> weights;
  for_each_head([&](uint32_t, Head& h) {
    if (!h.full) weights.push_back(h.weight);
  });
  l_base_ = n_tokens;
  const bool backend_selects =
      settings_.window == 1 && !settings_.adaptive;  // else this class, by scores of several queries or for a count over heads
  std::vector<uint64_t> lengths;
  std::vector<float> scores;
  if (!weights.empty()) {
    l_base_ = static_cast<uint32_t>(division.selected / weights.size());
    if (l_base_ == 0) return error(Code::internal, "%zu compressed heads have no room at %u tokens", weights.size(), n_tokens);
    if (!backend_selects) {
      ORRERY_ASSIGN(scores, score(heads, n_tokens));
    }
    ORRERY_ASSIGN(lengths, this->lengths(scores, weights, n_tokens));
  }

  // The last query selects, or the last few queries.
  const uint32_t last = n_tokens - 1;
  size_t room = 0, at = 0;
  max_selected_ = 0;
  for_each_head([&](uint32_t head, Head& h) {
    capacity[head] = n_tokens + division.tail;
    if (h.full) return;
    h.first = room;
    h.n_selected = static_cast<uint32_t>(lengths[at++]);
    room += h.n_selected;
    capacity[head] = h.n_selected + division.tail;
    if (h.role == Role::satellite) max_selected_ = std::max(max_selected_, h.n_selected);
    queries_.push_back({head, last, 1, n_tokens, h.n_selected, false, nullptr});
  });
  resize_discarding(&selected_, room);
  for (KeyQuery& query : queries_) query.out = &selected_[heads_[query.head].first];
  if (!backend_selects) {
    Tokens best;
    for (size_t i = 0; i < queries_.size(); ++i) {
      top_k(Span<const float>(scores).subspan(i * n_tokens, n_tokens), queries_[i].k, &best);
      std::sort(best.begin(), best.end());
      std::copy(best.begin(), best.end(), queries_[i].out);
    }
    queries_.clear();
  }
  for_each_head([&](uint32_t head, Head& h) {
    if (h.role == Role::pivot) h.base = pivots_.size() * l_base_, pivots_.push_back(head);
  });
  resize_discarding(&base_, pivots_.size() * l_base_);
  for (const uint32_t head : pivots_) queries_.push_back({head, last, 1, n_tokens, l_base_, false, &base_[heads_[head].base]});
  ORRERY_TRY(heads->top_keys(queries_, calibration_.rule));

  make_room();
  return ok_status();
}

void PivotPolicy::make_room() {
  queries_.reserve(pivots_.size());
  common_.resize(pivots_.size());
  resize_discarding(&best_, settings_.speculative ? max_selected_ * pivots_.size() : max_selected_);
  if (settings_.speculative) wanted_.reserve(max_selected_), corrected_.assign(pivots_.size(), 0);
  if (asks_before_attend()) similarity_.resize(n_kv_heads_), followers_.reserve(n_kv_heads_);
  overlaps_.resize(pivots_.size() * settings_.block);
  blocks_.assign(pivots_.size(), {});
  measuring_.reserve(pivots_.size());
  end_settling(max_selected_);
}

// Selections are those of the slots. K_base and the blocks' overlaps decide the next refills.
Status PivotPolicy::state(StateBytes* s, const SavedMoment& at) {
  ORRERY_TRY(tailed_state(s, at));
  const kv::SlotTable& slots = *at.slots;
  ORRERY_TRY(s->number(&l_base_, uint64_t{n_tokens_} + 1, "a pivot has more tokens than were settled"));
  if (s->reads()) pivots_.clear(), max_selected_ = 0, report_.roles = {};
  for (uint32_t head = 0; head < heads_.size(); ++head) {
    if (rings_.has(head)) continue;
    Head& h = heads_[head];
    auto role = static_cast<uint8_t>(h.role);
    ORRERY_TRY(s->number(&role, 5, "a head's role is unknown"));
    ORRERY_TRY(s->check(role > 0, "a head's role is unknown"));
    const Role was = h.role;
    h.role = static_cast<Role>(role), h.full = is_full(h.role);
    ORRERY_TRY(s->check(!profile_ || h.role == was, "a head has another role than in the head profile"));
    ORRERY_TRY(s->value(&h.pivot));
    ORRERY_TRY(s->number(&h.n_selected, uint64_t{n_tokens_} + 1, "a head selects more tokens than were settled"));
    if (!s->reads()) continue;
    RoleCounts& n = report_.roles;
    ++(h.role == Role::anchor ? n.anchor : h.role == Role::pivot ? n.pivot : h.role == Role::satellite ? n.satellite : n.volatile_heads);
    if (h.role == Role::satellite) max_selected_ = std::max(max_selected_, h.n_selected);
    if (h.role == Role::pivot) h.base = pivots_.size() * l_base_, pivots_.push_back(head);
  }
  n_full_ = report_.roles.full();
  for (uint32_t head = 0; s->reads() && head < heads_.size(); ++head) {
    if (rings_.has(head)) continue;
    const Head& h = heads_[head];
    ORRERY_TRY(s->check(h.role != Role::pivot || (l_base_ > 0 && slots.holds(head, 0, n_tokens_, 0, at.n_tokens)), "a pivot lacks tokens"));
    const bool follows = h.pivot != kNoHead;
    ORRERY_TRY(s->check(follows == (h.role == Role::satellite), "a satellite has no pivot"));
    if (!follows) continue;
    ORRERY_TRY(s->check(h.pivot < heads_.size() && h.pivot / n_kv_heads_ == head / n_kv_heads_ && heads_[h.pivot].role == Role::pivot,
                        "a satellite's pivot is none"));
    ORRERY_TRY(s->check(slots.holds(head, 0, h.n_selected, 0, n_tokens_), "a satellite lacks tokens"));
  }
  for (const kv::SavedRefill& refill : at.refills)
    for (const kv::Replacement& r : refill.what)
      ORRERY_TRY(s->check(r.count <= n_tokens_ && r.position <= n_tokens_ - r.count, "a refill of tokens behind the settled ones"));
  ORRERY_TRY(s->numbers(&base_, pivots_.size() * l_base_, n_tokens_, "a pivot's token was not settled"));
  std::vector<Block> blocks = blocks_;
  std::vector<double> overlaps = overlaps_;
  if (s->reads()) make_room(), blocks = blocks_;
  for (uint32_t p = 0; p < pivots_.size(); ++p) {
    const uint32_t place = place_in_block(p, n_steps_), n_most = place == kNotYet || place + 1 == settings_.block ? 0 : place + 1;
    ORRERY_TRY(s->number(&blocks[p].n_measured, uint64_t{n_most} + 1, "more queries of a block than steps"));
    ORRERY_TRY(s->number(&blocks[p].n_below, uint64_t{blocks[p].n_measured} + 1, "more overlaps of a block than queries"));
  }
  ORRERY_TRY(s->values(&overlaps, pivots_.size() * settings_.block));
  ORRERY_TRY(
      s->check(std::all_of(overlaps.begin(), overlaps.end(), [](double x) { return x >= 0 && x <= 1; }), "an overlap is outside 0 to 1"));
  if (s->reads()) blocks_ = std::move(blocks), overlaps_ = std::move(overlaps);
  return ok_status();
}

Result<std::vector<float>> PivotPolicy::score(Heads* heads, uint32_t n_tokens) {
  size_t n_compressed = 0, at = 0;
  for_each_head([&](uint32_t, const Head& h) { n_compressed += !h.full; });
  std::vector<float> scores(n_compressed * n_tokens);
  for (uint32_t head = 0; head < heads_.size(); ++head) {
    if (rings_.has(head) || heads_[head].full) continue;
    ORRERY_TRY(score_by_last(heads, head, settings_.window, n_tokens, Span<float>(scores).subspan(at, n_tokens)));
    at += n_tokens;
  }
  return scores;
}

Result<std::vector<uint64_t>> PivotPolicy::lengths(Span<const float> scores, Span<const double> weights, uint32_t n_tokens) const {
  const uint64_t total = uint64_t{l_base_} * weights.size();
  if (!settings_.adaptive) return apportion(weights, total, 1, n_tokens);
  ORRERY_ASSIGN(const std::vector<uint64_t> counts, count_best(scores, weights.size(), total, 1));
  ORRERY_ASSIGN(const Ratio floor, Ratio::from(settings_.floor));
  return with_floor(counts, floor);
}

// The index, 0 to W - 1, of the query of step `t` (since settle()) in the pivot's block; kNotYet: before its first block.
uint32_t PivotPolicy::place_in_block(uint32_t pivot, uint64_t t) const {
  const uint32_t offset = settings_.stagger ? pivot % settings_.block : 0;
  return t > offset ? static_cast<uint32_t>((t - offset - 1) % settings_.block) : kNotYet;
}

// Whether the overlap of the pivot's query of step `t` is measured: while the side of its block's median is open.
bool PivotPolicy::measures(uint32_t pivot, uint64_t t) const {
  if (place_in_block(pivot, t) == kNotYet || !settings_.refresh || settings_.speculative) return false;
  const Block& block = blocks_[pivot];
  return std::max(block.n_below, block.n_measured - block.n_below) <= settings_.block / 2;
}

void PivotPolicy::scored_heads(std::vector<uint32_t>* heads) const {
  heads->clear();
  if (settings_.speculative && settings_.refresh) heads->assign(pivots_.begin(), pivots_.end());
  const uint64_t t = n_steps_ + 1;
  for (uint32_t p = 0; p < pivots_.size(); ++p) {
    const bool refills = blocks_[p].n_below > settings_.block / 2 && place_in_block(p, t) == settings_.block - 1;
    if (refills || measures(p, t)) heads->push_back(pivots_[p]);
  }
}

// Counts, for the pivots in measuring_, the best keys of the newest query that K_base holds.
Status PivotPolicy::measure(Heads* heads, uint32_t position) {
  queries_.clear();
  for (const uint32_t p : measuring_) {
    KeyQuery query{pivots_[p], position, 1, n_tokens_, l_base_};
    query.among = {&base_[heads_[pivots_[p]].base], l_base_};
    query.n_common = &common_[p];
    queries_.push_back(query);
  }
  if (!queries_.empty()) ORRERY_TRY(heads->top_keys(queries_, calibration_.rule));
  for (const uint32_t p : measuring_) {
    Block& block = blocks_[p];
    const double overlap = static_cast<double>(common_[p]) / l_base_;
    overlaps_[size_t{p} * settings_.block + block.n_measured++] = overlap;
    block.n_below += !reaches(overlap, settings_.tau_drift);
  }
  return ok_status();
}

// Whether the median overlap of a pivot's block is below tau_drift.
bool PivotPolicy::drifted(uint32_t pivot) {
  const uint32_t w = settings_.block, half = w / 2;
  const Block& block = blocks_[pivot];
  if (block.n_below > half || block.n_measured - block.n_below > half) return block.n_below > half;
  double* overlaps = &overlaps_[size_t{pivot} * w];  // W is even, and its halves lie on both sides
  std::sort(overlaps, overlaps + w);
  return !reaches((overlaps[half - 1] + overlaps[half]) / 2, settings_.tau_drift);
}

uint32_t PivotPolicy::most_satellite_tokens(uint32_t pivot) const {
  uint32_t most = 0;
  const uint32_t first = pivot / n_kv_heads_ * n_kv_heads_;
  for (uint32_t head = first; head < first + n_kv_heads_; ++head)
    if (heads_[head].pivot == pivot) most = std::max(most, heads_[head].n_selected);
  return most;
}

template <class F>
Status PivotPolicy::refill_satellites(Heads* heads, uint32_t p, uint64_t visible_at, const F& refills) {
  const uint32_t first = pivots_[p] / n_kv_heads_ * n_kv_heads_;
  for (uint32_t head = first; head < first + n_kv_heads_; ++head) {
    if (!follows(head, p) || !refills(head)) continue;
    Span<const uint32_t> wanted{&best_[best_of(p)], heads_[head].n_selected};
    if (settings_.speculative) {  // ascending, as Heads::fetch_followers()
      wanted_.assign(wanted.begin(), wanted.end());
      std::sort(wanted_.begin(), wanted_.end());
      wanted = wanted_;
    }
    ORRERY_TRY(refill(heads, head, 0, wanted, visible_at));
  }
  return ok_status();
}

// before_attend() and after_step() where the device finds the satellites whose query has changed.
Status PivotPolicy::fetch_followers(Heads* heads, uint32_t layer, uint32_t position) {
  followers_.clear();
  for (uint32_t p = 0; p < pivots_.size(); ++p)
    for (uint32_t head = layer * n_kv_heads_; head < (layer + 1) * n_kv_heads_; ++head)
      if (follows(head, p)) followers_.push_back({head, pivots_[p], position, n_tokens_, heads_[head].n_selected});
  report_.n_checks += followers_.size();
  return heads->fetch_followers(followers_, calibration_.rule, settings_.tau_query);
}
Status PivotPolicy::end_fetched_step(Heads* heads) {
  note_changes(heads);
  report_.missed_tokens += heads->take_fetched_tokens();
  for_each_head([&](uint32_t, const Head& h) {
    if (h.role == Role::satellite) report_.wanted_tokens += h.n_selected;
  });
  return ok_status();
}
void PivotPolicy::note_changes(Heads* heads) {
  if (!fetches_pages() || !heads->fetches_pages()) return;
  for_each_head([&](uint32_t head, const Head& h) {
    const uint64_t n = heads->take_changes(head);
    report_.n_triggers += n;
    report_.wanted_tokens += n * h.n_selected;
  });
}

// Correction: satellites whose query has changed get the best tokens of their pivot's query of this step, within this step.
Status PivotPolicy::before_attend(Heads* heads, uint32_t layer, uint64_t step, uint32_t position) {
  const auto of_layer = [&](uint32_t p) { return pivots_[p] / n_kv_heads_ == layer; };
  bool any = false;
  for (uint32_t p = 0; p < pivots_.size(); ++p) any = any || of_layer(p);
  if (!any) return ok_status();
  if (heads->fetches_pages()) return fetch_followers(heads, layer, position);
  ORRERY_TRY(heads->query_similarity(similarity_));
  const auto changed = [&](uint32_t head) { return static_cast<double>(similarity_[head % n_kv_heads_]) < settings_.tau_query; };
  queries_.clear();
  for (uint32_t p = 0; p < pivots_.size(); ++p) {
    if (!of_layer(p)) continue;
    uint32_t n_changed = 0;
    for (uint32_t head = layer * n_kv_heads_; head < (layer + 1) * n_kv_heads_; ++head) {
      if (!follows(head, p)) continue;
      ++report_.n_checks;
      n_changed += changed(head);
    }
    report_.n_triggers += n_changed;
    if (n_changed > 0) corrected_[p] = 1, ask(p, position);
  }
  if (queries_.empty()) return ok_status();
  ORRERY_TRY(heads->top_keys(queries_, calibration_.rule));
  for (uint32_t p = 0; p < pivots_.size(); ++p)
    if (of_layer(p) && corrected_[p]) ORRERY_TRY(refill_satellites(heads, p, step, changed));
  return ok_status();
}

// Refills all satellites for the next step, by the pivots' queries of this step.
Status PivotPolicy::speculate(Heads* heads, uint64_t step, uint32_t position) {
  queries_.clear();
  for (uint32_t p = 0; p < pivots_.size(); ++p)
    if (!corrected_[p]) ask(p, position);
  if (!queries_.empty()) ORRERY_TRY(heads->top_keys(queries_, calibration_.rule));
  std::fill(corrected_.begin(), corrected_.end(), uint8_t{0});
  for (uint32_t p = 0; p < pivots_.size(); ++p) ORRERY_TRY(refill_satellites(heads, p, step + 1, [](uint32_t) { return true; }));
  return ok_status();
}

Status PivotPolicy::after_step(Heads* heads, uint64_t step, uint32_t position) {
  const uint64_t t = ++n_steps_;
  if (fetches_pages() && heads->fetches_pages()) return end_fetched_step(heads);
  if (settings_.speculative) return settings_.refresh ? speculate(heads, step, position) : ok_status();
  measuring_.clear();
  for (uint32_t p = 0; p < pivots_.size(); ++p)
    if (measures(p, t)) measuring_.push_back(p);
  ORRERY_TRY(measure(heads, position));

  for (uint32_t p = 0; p < pivots_.size() && settings_.refresh; ++p) {
    if (place_in_block(p, t) != settings_.block - 1) continue;
    ++report_.n_checks;
    const bool refills = drifted(p);
    blocks_[p] = {};
    if (!refills) continue;
    ++report_.n_triggers;
    const uint32_t pivot = pivots_[p];
    const KeyQuery newest[] = {{pivot, position, 1, n_tokens_, l_base_, false, &base_[heads_[pivot].base]},
                               {pivot, position, 1, n_tokens_, most_satellite_tokens(pivot), true, &best_[best_of(p)]}};
    ORRERY_TRY(heads->top_keys({newest, 2}, calibration_.rule));
    ORRERY_TRY(refill_satellites(heads, p, step + settings_.visible, [](uint32_t) { return true; }));
  }
  return ok_status();
}

}  // namespace

Result<std::unique_ptr<Policy>> make_pivots(const PivotSettings& settings, const Calibration& calibration, const Shape& shape,
                                            const Budget& budget, const SharedProfile& profile) {
  auto policy = std::make_unique<PivotPolicy>(shape, budget, settings, calibration, profile);
  ORRERY_TRY(policy->check_room(budget, "keep their whole KV"));
  return std::unique_ptr<Policy>(std::move(policy));
}

}  // namespace orrery::policy
