// HeteroCache (papers: HeteroCache, sections 3 and 4, algorithm 1): heads are not alike.
//   score     the last query: softmax, average pooling over 5 keys, mean over the group
//   allocate  volatile and pivot heads hold everything; anchors and satellites share the rest by 1 / stability (eq. 8)
//   keep      the best prompt tokens, and every generated one; all of it stays in the reservoir
//   refresh   pivots watch: every W = 5 steps, if the median overlap of their last W queries' best keys with K_base is
//             below tau_drift, K_base moves on and the pivot's satellites get its best tokens, in score order. Anchors
//             never change
// Roles come from a head profile; without one the session calibrates itself with the prompt's last queries.
//
// Where the paper and its code disagree:
//   - Budgets: eq. 8 (algorithm 1, line 14 lacks N_comp), with exact totals; what the cap at the prompt's length cuts
//     off is dealt to the other heads, where the code drops it. Stability is clamped at .05 from below.
//   - A budget that the full heads alone exceed is an error when the session opens; without a profile volatile heads
//     are demoted to anchors instead, most stable first (Report::n_demoted).
//   - Similarity: an edge where the median over steps of the pairwise overlap reaches tau_sim (paper: median of the
//     per-step maximum; code: at the prompt's last query). Clusters first, then stability splits what is left.
//   - Group reduction is one parameter, mean by default (code: mean in calibration, max at run time).
//   - Satellites get the first tokens in score order; the code sorts by position before it cuts.
//   - K_base is kept under its own head's number (the code reads it in another order than it writes).
//   - Blocks of W queries, not a sliding median.
//   - Generated tokens count: the tail that they go to is inside the budget, and a full one settles everything anew.
// A refill becomes visible `visible` steps after its check: 1 is the paper's next step, W hides the transfer behind a
// block of steps, and takes a staging ring for a block's refills. `stagger` spreads the pivots' checks over the block's steps.
//
// Compositions with other methods' parts:
//   - heads=adaptive (Ada-KV's): what compressed heads share goes where the best scores of all of them are, instead of by eq. 8.
//   - window=W (SnapKV's): the mean of the last W queries' weights chooses and counts, instead of the last query's.
//   - satellites=speculative (FreeKV's): every step fetches what the pivot's query of the step before looks at, and a satellite
//     whose own query has turned waits for what the pivot's looks at now. The pivot's keys are what digests are to FreeKV.
#include <algorithm>

#include "runtime/policy/allocate/over_heads.h"
#include "runtime/policy/engines/tailed.h"
#include "runtime/policy/methods/methods.h"
#include "runtime/policy/options.h"
#include "runtime/policy/score/pooling.h"
#include "runtime/policy/select/sets.h"

namespace orrery::policy {

namespace {

constexpr uint32_t kNotYet = UINT32_MAX;
constexpr uint32_t kMostBlock = 64;   // queries that the engine keeps for us
constexpr double kFullShare = .2;
// Measured on the demo model at 30 to 80% (tests/bench/RESULTS.md): the refills of a block are seldom more than .07 of
// the slots, .28 where every pivot triggers at once.
constexpr double kRefilledInABlock = 1. / 8;

struct Settings {
  Thresholds tau;
  double tau_drift = -1;        // below 0: tau_stable
  double full_share = -1;       // of all heads that may be full, without a profile; below 0: kFullShare, or less
  bool demote = true;           // surplus full heads: demote volatile ones, else search thresholds
  uint32_t block = 5, visible = 1, tail = 0;
  bool stagger = false, refresh = true;
  uint32_t window = 1;          // queries that choose when it settles
  bool adaptive = false;        // counts of compressed heads: by their scores, a part `floor` evenly; else eq. 8
  double floor = .2;
  bool speculative = false;     // satellites follow every step
  double tau_turn = .8;         // cosine of two of their queries below which they wait for the step's own; 0: never
};

class HeteroCache final : public TailedPolicy {
 public:
  HeteroCache(const Shape& shape, const Budget& budget, const Settings& settings, const Calibration& calibration,
              SharedProfile profile)
      : TailedPolicy(shape, budget, {settings.tail}, calibration, std::move(profile)),
        settings_(settings),
        heads_(size_t{shape.n_layers} * shape.n_kv_heads) {
    if (settings_.tau_drift < 0) settings_.tau_drift = profile_ ? profile_->tau_drift : settings_.tau.tau_stable;
    // Without a profile, unless so many are asked for, no more heads are full than half of the budget pays for.
    const double n = rings_.n_other_heads();
    double share = settings_.full_share;
    if (share < 0)
      share = std::min({kFullShare, budget.share.of_tokens() / 2, static_cast<double>(max_slots(budget)) / (n * n_context_) / 2});
    most_full_ = static_cast<uint32_t>(share * n + 1e-6);
    if (profile_) use_profile();
  }

  const char* name() const override { return "heterocache"; }
  uint32_t n_full_heads() const override { return profile_ ? n_full_ : most_full_; }

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
  // Pivots: as many as the profile has, or full heads at all.
  uint32_t max_scored_heads() const override { return !settings_.refresh ? 0 : profile_ ? report_.roles.pivot : most_full_; }
  void scored_heads(std::vector<uint32_t>* heads) const override;
  uint32_t queries_wanted() const override { return std::max(TailedPolicy::queries_wanted(), settings_.window); }
  bool asks_before_attend() const override { return settings_.speculative && settings_.refresh && settings_.tau_turn > 0 && !budget_.everything(); }
  Status before_attend(Heads* heads, uint32_t layer, uint64_t step, uint32_t position) override;
  uint64_t host_bytes(const HostShape& host) const override;
  Status after_step(Heads* heads, uint64_t step, uint32_t position) override;
  std::unique_ptr<Policy> clone() const override { return clone_of(*this); }

 private:
  struct Head {
    Role role = Role::anchor;
    bool full = false;
    uint32_t pivot = kNoHead;      // a satellite's, as a head of the whole model
    double weight = 1;             // eq. 8
    size_t first = 0;              // of a compressed head's tokens in selected_
    uint32_t n_selected = 0;
    size_t base = 0;               // of a pivot's K_base in base_
  };
  void use_profile();
  void assign(const std::vector<LayerRoles>& layers);
  Status find_roles(Heads* heads, uint32_t n_tokens);
  Status fit(std::vector<LayerRoles>* layers, const std::vector<LayerStatistics>& statistics);
  // Of the compressed heads, in order, the scores of the prompt's n_tokens keys by its last queries: (heads, n_tokens).
  Result<std::vector<float>> score(Heads* heads, uint32_t n_tokens) const;
  Result<std::vector<uint64_t>> lengths(Span<const float> scores, Span<const double> weights, uint32_t n_tokens) const;
  Status speculate(Heads* heads, uint64_t step, uint32_t position);
  // A pivot's satellites, those that `moves` says, hold its best tokens from step visible_at on, each as many as it has slots.
  template <class F>
  Status move_satellites(Heads* heads, uint32_t p, uint64_t visible_at, const F& moves);
  uint32_t most_of(uint32_t pivot) const;   // that one of its satellites holds
  size_t best_of(uint32_t p) const { return settings_.speculative ? size_t{p} * most_selected_ : 0; }
  // A pivot's queries since its last check. On which side of tau_drift the block's median lies a majority knows: what
  // comes behind it need not be looked at.
  struct Block {
    uint32_t n_looked = 0, n_below = 0;
  };
  uint32_t place(uint32_t pivot, uint64_t t) const;
  bool looks(uint32_t pivot, uint64_t t) const;
  Status look(Heads* heads, uint32_t position);
  bool drifted(uint32_t pivot);
  template <class F>
  void for_each_head(const F& f) {   // without window
    for (uint32_t head = 0; head < heads_.size(); ++head)
      if (!rings_.has(head)) f(head, heads_[head]);
  }

  Settings settings_;
  std::vector<Head> heads_;
  uint32_t most_full_ = 0, n_full_ = 0;

  // Since settling.
  uint32_t l_base_ = 0, most_selected_ = 0;
  std::vector<uint32_t> selected_;   // every compressed head's tokens
  std::vector<uint32_t> pivots_;     // heads
  std::vector<uint32_t> base_;       // (n_pivots, l_base)
  // Of the blocks' checks; pivots are indices of pivots_.
  std::vector<Block> blocks_;        // (n_pivots)
  std::vector<double> overlaps_;     // (n_pivots, W)
  std::vector<uint32_t> common_;     // (n_pivots) in this step
  Roomy<uint32_t> looking_;    // in this step
  std::vector<uint32_t> best_;       // (most_selected) of a pivot, in score order; speculative: of all of them, one behind the other
  // Where satellites wait for a step's own query.
  std::vector<float> similarity_;    // (n_kv_heads) of a layer's queries
  std::vector<float> rows_, scores_; // (group, n_tokens), (n_tokens) of a pivot
  ScoreScratch scratch_;
  Roomy<uint32_t> order_;
};

void HeteroCache::use_profile() {
  std::vector<LayerRoles> layers;
  for (uint32_t l = 0; l < n_layers_; ++l)
    if (window_[l] == 0) layers.push_back(profile_->layers[l].roles);
  // weights() lists the compressed heads of all layers: those of windowed layers are passed over.
  const std::vector<double> weights = profile_->weights();
  size_t at = 0;
  for (uint32_t l = 0; l < n_layers_; ++l)
    for (uint32_t h = 0; h < n_kv_heads_; ++h)
      if (!is_full(profile_->layers[l].roles.roles[h])) heads_[size_t{l} * n_kv_heads_ + h].weight = weights[at++];
  assign(layers);
}

// Roles of the layers without window, in order.
void HeteroCache::assign(const std::vector<LayerRoles>& layers) {
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

// At most most_full_ full heads.
Status HeteroCache::fit(std::vector<LayerRoles>* layers, const std::vector<LayerStatistics>& statistics) {
  if (count_roles(*layers).full() <= most_full_) return ok_status();
  std::vector<std::vector<double>> stability;
  for (const LayerStatistics& layer : statistics) stability.push_back(layer.stability);
  if (!settings_.demote || count_roles(*layers).pivot > most_full_) {
    Result<Thresholds> found = find_thresholds(statistics, most_full_, settings_.tau);
    if (found.ok()) {
      for (size_t i = 0; i < layers->size(); ++i) {
        ORRERY_ASSIGN((*layers)[i], classify(statistics[i], found.value()));
      }
      return ok_status();
    }
  }
  // More clusters than there may be full heads: those with the fewest satellites are given up, and their heads do not
  // move any more.
  while (count_roles(*layers).pivot > most_full_) {
    size_t layer = 0, fewest = SIZE_MAX;
    uint32_t pivot = 0;
    for (size_t i = 0; i < layers->size(); ++i)
      for (uint32_t h = 0; h < n_kv_heads_; ++h) {
        if ((*layers)[i].roles[h] != Role::pivot) continue;
        const size_t n = (*layers)[i].satellites_of(h).size();
        if (n < fewest) fewest = n, layer = i, pivot = h;
      }
    LayerRoles& roles = (*layers)[layer];
    for (const uint32_t satellite : roles.satellites_of(pivot))
      roles.roles[satellite] = Role::anchor, roles.pivot_of[satellite] = kNoHead;
    roles.roles[pivot] = Role::anchor;
  }
  ORRERY_ASSIGN(const auto demoted, demote_volatile(layers, stability, most_full_));
  report_.n_demoted = static_cast<uint32_t>(demoted.size());
  return ok_status();
}

Status HeteroCache::find_roles(Heads* heads, uint32_t n_tokens) {
  ORRERY_ASSIGN(const Calibrated found, calibrate(heads, rings_, shape(), n_tokens, calibration_));
  std::vector<LayerStatistics> statistics(found.layers.size());
  std::vector<LayerRoles> layers(found.layers.size());
  for (size_t i = 0; i < found.layers.size(); ++i) {
    ORRERY_ASSIGN(statistics[i].stability, found.layers[i].stability());
    ORRERY_ASSIGN(statistics[i].similarity, found.layers[i].similarity());
    ORRERY_ASSIGN(layers[i], classify(statistics[i], settings_.tau));
  }
  report_.n_demoted = 0;
  ORRERY_TRY(fit(&layers, statistics));
  assign(layers);
  size_t at = 0;
  for (uint32_t l = 0; l < n_layers_; ++l) {
    if (window_[l] > 0) continue;
    for (uint32_t h = 0; h < n_kv_heads_; ++h)
      heads_[size_t{l} * n_kv_heads_ + h].weight =
          stability_weight(statistics[at].stability[h], found.top_k);
    ++at;
  }
  return ok_status();
}

uint64_t HeteroCache::host_bytes(const HostShape& host) const {
  const uint64_t n = n_context_, n_compressed = rings_.n_other_heads() - (profile_ ? n_full_ : 0), n_pivots = n_full_heads();
  const uint64_t most_selected = settings_.adaptive || !profile_ ? n : budget_.most_of_head(), sets = n_compressed + n_pivots;
  uint64_t bytes = tailed_bytes() + bytes_of<Head>(heads_.size()) + bytes_of<uint32_t>(sets * budget_.most_of_head()) +
                   bytes_of<uint32_t>(most_selected * (settings_.speculative ? n_pivots : 1)) +
                   n_pivots * (sizeof(Block) + settings_.block * sizeof(double) + 3 * sizeof(uint32_t));
  if (asks_before_attend()) bytes += bytes_of<float>((uint64_t{host.group} * 3 + 2) * n);
  if (settings_.window == 1 && !settings_.adaptive) return bytes;
  // Scores of all keys, and what makes them, or counts the best of them.
  const uint64_t rows = calibration_.rule.reduce == GroupReduce::mean ? 1 : settings_.window * uint64_t{host.group};
  return bytes + bytes_of<float>(n_compressed * n) + std::max(bytes_of<float>((rows + 2) * n), bytes_of<float>(2 * n_compressed * n));
}

Status HeteroCache::settle(Heads* heads, uint32_t n_tokens, Span<uint32_t> capacity) {
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
  const bool last_alone = settings_.window == 1 && !settings_.adaptive;   // then the backend finds the best by itself
  std::vector<uint64_t> lengths;
  std::vector<float> scores;
  if (!weights.empty()) {
    l_base_ = static_cast<uint32_t>(division.selected / weights.size());
    if (l_base_ == 0)
      return error(Code::internal, "%zu compressed heads have no room at %u tokens", weights.size(), n_tokens);
    if (!last_alone) {
      ORRERY_ASSIGN(scores, score(heads, n_tokens));
    }
    ORRERY_ASSIGN(lengths, this->lengths(scores, weights, n_tokens));
  }

  // The last query chooses, or some of the last.
  const uint32_t last = n_tokens - 1;
  size_t room = 0, at = 0;
  most_selected_ = 0;
  for_each_head([&](uint32_t head, Head& h) {
    capacity[head] = n_tokens + division.tail;
    if (h.full) return;
    h.first = room;
    h.n_selected = static_cast<uint32_t>(lengths[at++]);
    room += h.n_selected;
    capacity[head] = h.n_selected + division.tail;
    if (h.role == Role::satellite) most_selected_ = std::max(most_selected_, h.n_selected);
    queries_.push_back({head, last, 1, n_tokens, h.n_selected, false, nullptr});
  });
  renew(&selected_, room);
  for (KeyQuery& query : queries_) query.out = &selected_[heads_[query.head].first];
  if (!last_alone) {
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
  renew(&base_, pivots_.size() * l_base_);
  for (const uint32_t head : pivots_)
    queries_.push_back({head, last, 1, n_tokens, l_base_, false, &base_[heads_[head].base]});
  ORRERY_TRY(heads->top_keys(queries_, calibration_.rule));

  queries_.reserve(pivots_.size());
  common_.resize(pivots_.size());
  renew(&best_, settings_.speculative ? most_selected_ * pivots_.size() : most_selected_);
  if (asks_before_attend()) {
    similarity_.resize(n_kv_heads_);
    for (std::vector<float>* rows : {&rows_, &scratch_.weights, &scratch_.pooled}) renew(rows, size_t{heads->group()} * n_tokens);
    renew(&scores_, n_tokens);
    order_.reserve(n_tokens);
  }
  overlaps_.resize(pivots_.size() * settings_.block);
  blocks_.assign(pivots_.size(), {});
  looking_.reserve(pivots_.size());
  end_settling(most_selected_);
  return ok_status();
}

Result<std::vector<float>> HeteroCache::score(Heads* heads, uint32_t n_tokens) const {
  const uint32_t group = heads->group(), w = std::min({settings_.window, heads->n_queries(), n_tokens});
  const ScoreRule& rule = calibration_.rule;
  const bool mean = rule.reduce == GroupReduce::mean;   // it and an average commute
  uint32_t n_compressed = 0;
  for (uint32_t head = 0; head < heads_.size(); ++head) n_compressed += !rings_.has(head) && !heads_[head].full;
  std::vector<float> scores, rows(size_t{n_tokens} * (mean ? 1 : w * group)), pooled(n_tokens), largest(n_tokens);
  scores.reserve(size_t{n_compressed} * n_tokens);
  for (uint32_t head = 0; head < heads_.size(); ++head) {
    if (rings_.has(head) || heads_[head].full) continue;
    const WeightsQuery query{head, n_tokens - w, w, n_tokens, mean, rows.data()};
    ORRERY_TRY(heads->key_weights({&query, 1}));
    const size_t at = scores.size();
    scores.resize(at + n_tokens);
    const Span<float> out = Span<float>(scores).subspan(at, n_tokens);
    if (mean) {
      ORRERY_TRY(pool1d(rows, rule.pooling, rule.pool_width, out));
      continue;
    }
    for (uint32_t r = 0; r < w; ++r) {   // the sum over the queries orders keys, and counts, like the mean
      std::fill(largest.begin(), largest.end(), 0.0f);
      for (uint32_t g = 0; g < group; ++g) {
        ORRERY_TRY(pool1d(Span<const float>(rows).subspan((size_t{r} * group + g) * n_tokens, n_tokens), rule.pooling, rule.pool_width, pooled));
        for (uint32_t key = 0; key < n_tokens; ++key) largest[key] = std::max(largest[key], pooled[key]);
      }
      for (uint32_t key = 0; key < n_tokens; ++key) out[key] += largest[key];
    }
  }
  return scores;
}

Result<std::vector<uint64_t>> HeteroCache::lengths(Span<const float> scores, Span<const double> weights, uint32_t n_tokens) const {
  const uint64_t total = uint64_t{l_base_} * weights.size();
  if (!settings_.adaptive) return apportion(weights, total, 1, n_tokens);
  ORRERY_ASSIGN(const std::vector<uint64_t> counts, count_best(scores, weights.size(), total, 1));
  ORRERY_ASSIGN(const Ratio floor, Ratio::from(settings_.floor));
  return with_floor(counts, floor);
}

// Which of its block's queries, 0 to W - 1, a pivot's is in step `t` since settling; kNotYet: before its first block.
uint32_t HeteroCache::place(uint32_t pivot, uint64_t t) const {
  const uint32_t offset = settings_.stagger ? pivot % settings_.block : 0;
  return t > offset ? static_cast<uint32_t>((t - offset - 1) % settings_.block) : kNotYet;
}

// Whether a pivot's query of step `t` is looked at: while its block's median is open.
bool HeteroCache::looks(uint32_t pivot, uint64_t t) const {
  if (place(pivot, t) == kNotYet || !settings_.refresh || settings_.speculative) return false;
  const Block& block = blocks_[pivot];
  return std::max(block.n_below, block.n_looked - block.n_below) <= settings_.block / 2;
}

void HeteroCache::scored_heads(std::vector<uint32_t>* heads) const {
  heads->clear();
  if (settings_.speculative && settings_.refresh) heads->assign(pivots_.begin(), pivots_.end());
  const uint64_t t = n_steps_ + 1;
  for (uint32_t p = 0; p < pivots_.size(); ++p) {
    const bool moves = blocks_[p].n_below > settings_.block / 2 && place(p, t) == settings_.block - 1;
    if (moves || looks(p, t)) heads->push_back(pivots_[p]);
  }
}

// How many of the best keys of the looking pivots' newest queries K_base has.
Status HeteroCache::look(Heads* heads, uint32_t position) {
  queries_.clear();
  for (const uint32_t p : looking_) {
    KeyQuery query{pivots_[p], position, 1, n_tokens_, l_base_};
    query.among = {&base_[heads_[pivots_[p]].base], l_base_};
    query.n_common = &common_[p];
    queries_.push_back(query);
  }
  if (!queries_.empty()) ORRERY_TRY(heads->top_keys(queries_, calibration_.rule));
  for (const uint32_t p : looking_) {
    Block& block = blocks_[p];
    const double overlap = static_cast<double>(common_[p]) / l_base_;
    overlaps_[size_t{p} * settings_.block + block.n_looked++] = overlap;
    block.n_below += !reaches(overlap, settings_.tau_drift);
  }
  return ok_status();
}

// Whether the median overlap of a pivot's block is below tau_drift.
bool HeteroCache::drifted(uint32_t pivot) {
  const uint32_t w = settings_.block, half = w / 2;
  const Block& block = blocks_[pivot];
  if (block.n_below > half || block.n_looked - block.n_below > half) return block.n_below > half;
  double* overlaps = &overlaps_[size_t{pivot} * w];   // W is even, and its halves disagree
  std::sort(overlaps, overlaps + w);
  return !reaches((overlaps[half - 1] + overlaps[half]) / 2, settings_.tau_drift);
}

uint32_t HeteroCache::most_of(uint32_t pivot) const {
  uint32_t most = 0;
  const uint32_t first = pivot / n_kv_heads_ * n_kv_heads_;
  for (uint32_t head = first; head < first + n_kv_heads_; ++head)
    if (heads_[head].pivot == pivot) most = std::max(most, heads_[head].n_selected);
  return most;
}

template <class F>
Status HeteroCache::move_satellites(Heads* heads, uint32_t p, uint64_t visible_at, const F& moves) {
  const uint32_t pivot = pivots_[p], first = pivot / n_kv_heads_ * n_kv_heads_;
  for (uint32_t head = first; head < first + n_kv_heads_; ++head)
    if (heads_[head].pivot == pivot && moves(head))
      ORRERY_TRY(refill(heads, head, 0, {&best_[best_of(p)], heads_[head].n_selected}, visible_at));
  return ok_status();
}

// Satellites whose query has turned get what their pivot looks at now, for this step.
Status HeteroCache::before_attend(Heads* heads, uint32_t layer, uint64_t step, uint32_t position) {
  const auto of_layer = [&](uint32_t p) { return pivots_[p] / n_kv_heads_ == layer; };
  bool any = false;
  for (uint32_t p = 0; p < pivots_.size(); ++p) any = any || of_layer(p);
  if (!any) return ok_status();
  ORRERY_TRY(heads->query_similarity(similarity_));
  const auto turned = [&](uint32_t head) { return static_cast<double>(similarity_[head % n_kv_heads_]) < settings_.tau_turn; };
  for (uint32_t p = 0; p < pivots_.size(); ++p) {
    if (!of_layer(p)) continue;
    uint32_t n_turned = 0;
    for (uint32_t head = layer * n_kv_heads_; head < (layer + 1) * n_kv_heads_; ++head) {
      if (heads_[head].pivot != pivots_[p]) continue;
      ++report_.n_checks;
      n_turned += turned(head);
    }
    report_.n_triggers += n_turned;
    if (n_turned == 0) continue;
    const ScoresQuery query{pivots_[p], position, 0, n_tokens_, false, calibration_.rule.scaled, rows_.data()};
    ORRERY_TRY(heads->scores({&query, 1}));
    ORRERY_TRY(head_scores(rows_, heads->group(), calibration_.rule, &scratch_, scores_));
    top_k(scores_, most_of(pivots_[p]), &order_);
    std::copy(order_.begin(), order_.end(), &best_[best_of(p)]);
    ORRERY_TRY(move_satellites(heads, p, step, turned));
  }
  return ok_status();
}

// For the next step, by this one's query.
Status HeteroCache::speculate(Heads* heads, uint64_t step, uint32_t position) {
  queries_.clear();
  for (uint32_t p = 0; p < pivots_.size(); ++p)
    queries_.push_back({pivots_[p], position, 1, n_tokens_, most_of(pivots_[p]), true, &best_[best_of(p)]});
  if (!queries_.empty()) ORRERY_TRY(heads->top_keys(queries_, calibration_.rule));
  for (uint32_t p = 0; p < pivots_.size(); ++p) ORRERY_TRY(move_satellites(heads, p, step + 1, [](uint32_t) { return true; }));
  return ok_status();
}

Status HeteroCache::after_step(Heads* heads, uint64_t step, uint32_t position) {
  const uint64_t t = ++n_steps_;
  if (settings_.speculative) return settings_.refresh ? speculate(heads, step, position) : ok_status();
  looking_.clear();
  for (uint32_t p = 0; p < pivots_.size(); ++p)
    if (looks(p, t)) looking_.push_back(p);
  ORRERY_TRY(look(heads, position));

  for (uint32_t p = 0; p < pivots_.size() && settings_.refresh; ++p) {
    if (place(p, t) != settings_.block - 1) continue;
    ++report_.n_checks;
    const bool moves = drifted(p);
    blocks_[p] = {};
    if (!moves) continue;
    ++report_.n_triggers;
    const uint32_t pivot = pivots_[p];
    const KeyQuery newest[] = {{pivot, position, 1, n_tokens_, l_base_, false, &base_[heads_[pivot].base]},
                               {pivot, position, 1, n_tokens_, most_of(pivot), true, &best_[best_of(p)]}};
    ORRERY_TRY(heads->top_keys({newest, 2}, calibration_.rule));
    ORRERY_TRY(move_satellites(heads, p, step + settings_.visible, [](uint32_t) { return true; }));
  }
  return ok_status();
}

}  // namespace

Result<std::unique_ptr<Policy>> make_heterocache(const Shape& shape, const Budget& budget, const Options& options,
                                                 const SharedProfile& profile) {
  Settings s;
  Calibration calibration;
  if (profile && profile->has_gates())
    return error(Code::invalid_argument, "policy heterocache: the head profile has DuoAttention's gates, and no clusters of heads");
  if (profile) s.tau = profile->thresholds;
  calibration.rule = {GroupReduce::mean, Pooling::avg, 5, true};
  OptionReader reader("heterocache", options);
  static constexpr const char* kReduce[] = {"mean", "max"};
  static constexpr const char* kSurplus[] = {"demote", "thresholds"};
  static constexpr const char* kHeads[] = {"stability", "adaptive"};
  static constexpr const char* kSatellites[] = {"triggered", "speculative"};
  uint32_t reduce = 0, surplus = 0, adaptive = 0, speculative = 0;
  ORRERY_TRY(reader.fraction("tau_sim", &s.tau.tau_sim));
  ORRERY_TRY(reader.fraction("tau_stable", &s.tau.tau_stable));
  ORRERY_TRY(reader.fraction("tau_drift", &s.tau_drift));
  ORRERY_TRY(reader.fraction("full_share", &s.full_share));
  ORRERY_TRY(reader.choice("surplus", {kSurplus, 2}, &surplus));
  ORRERY_TRY(reader.choice("reduce", {kReduce, 2}, &reduce));
  ORRERY_TRY(reader.count("block", 1, kMostBlock, &s.block));
  ORRERY_TRY(reader.count("visible", 1, s.block, &s.visible));
  ORRERY_TRY(reader.flag("stagger", &s.stagger));
  ORRERY_TRY(reader.flag("refresh", &s.refresh));
  ORRERY_TRY(reader.count("window", 1, kMostWindow, &s.window));
  ORRERY_TRY(reader.choice("heads", {kHeads, 2}, &adaptive));
  ORRERY_TRY(reader.fraction("floor", &s.floor));
  ORRERY_TRY(reader.choice("satellites", {kSatellites, 2}, &speculative));
  ORRERY_TRY(reader.fraction("tau", &s.tau_turn));
  ORRERY_TRY(reader.count("tail", 0, 1u << 20, &s.tail));
  ORRERY_TRY(reader.count("calibration", 1, kMostBlock, &calibration.n_queries));
  ORRERY_TRY(reader.count("top_k", 1, 1u << 20, &calibration.top_k));
  ORRERY_TRY(reader.count("pool", 1, 63, &calibration.rule.pool_width));
  ORRERY_TRY(reader.finish());
  if (calibration.rule.pool_width % 2 == 0)
    return error(Code::invalid_argument, "policy option heterocache.pool is %u, expected an odd number",
                 calibration.rule.pool_width);
  calibration.rule.reduce = reduce ? GroupReduce::max : GroupReduce::mean;
  s.demote = surplus == 0;
  s.adaptive = adaptive == 1;
  s.speculative = speculative == 1;
  auto policy = std::make_unique<HeteroCache>(shape, budget, s, calibration, profile);
  ORRERY_TRY(policy->check_room(budget, "keep their whole KV"));
  return std::unique_ptr<Policy>(std::move(policy));
}

}  // namespace orrery::policy
