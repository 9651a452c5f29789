// OmniKV (Hao et al., ICLR 2025): layers near each other attend to the same tokens. A few filter layers find the tokens of the layers after
// them.
//   score     scaled products, without softmax, of this step's query with the prompt's keys in a filter layer; maximum over all its query heads
//   allocate  dense layers everything: the layers up to the first filter, each filter, and the layer after each filter; the others evenly
//   select    the best prompt tokens, one set for all heads of the layers up to the next filter; and every generated token
//   refresh   every step, by its own query; misses are fetched while the filter and the layer after it are computed
// Paper, code and this build: the page below. Base: engines/tailed.
#include <algorithm>

#include "runtime/policy/engines/tailed.h"
#include "runtime/policy/options.h"
#include "runtime/policy/rows.h"
#include "runtime/policy/select/top_k.h"
#include "runtime/policy/table.h"

namespace orrery::policy {

namespace omnikv_method {

struct OmniSettings {
  std::vector<uint32_t> filters;  // ascending, indices of the layers without window; empty: by the budget
  uint32_t tail = 0;
  bool refresh = true;
  bool next_dense = true, next_dense_given = false;  // the option `behind`: the layer after a filter is dense
};
constexpr OptionRow kOptions[] = {
    {"filters", "(2+8+18 of 32, as the budget has it)", "layers that find tokens, among those without window, joined by +"},
    {"behind", "(1, where the budget holds it)", "1: the layer after a filter keeps everything, while other layers' misses are fetched"},
    kRefreshRow,
    kTailRow,
};
constexpr char kPage[] =
    "Layers near each other attend to the same tokens. A few layers, the filters, hold everything. By their own query, in the\n"
    "same step, they find the tokens that all heads of the layers after them attend to, up to the next filter. The layer after\n"
    "a filter is whole too, so that misses are fetched meanwhile. Each later layer waits for its own misses.\n"
    "- Filters are 2, 8 and 18 of 32 layers, scaled to the model and at least three layers apart. There are fewer where dense\n"
    "  layers would take more than half of the budget (of 32 layers, all three fit at 50% and more). The last resort is the\n"
    "  first layer alone, with a compressed layer after it (behind=0). Layers with a sliding window keep it, and are not\n"
    "  counted.\n"
    "- Scores are scaled products, not a softmax. The maximum runs over all query heads of the filter.\n"
    "- Generated tokens are no candidates: they stay, and count. A full tail makes them candidates too.\n"
    "- The paper selects .067 of the tokens; here it is what the budget leaves.\n"
    "- The prompt's last query selects the first set, before the first step.\n";

class OmniKv final : public TailedPolicy {
 public:
  OmniKv(const Shape& shape, const Budget& budget, const OmniSettings& settings)
      : TailedPolicy(shape, budget, {settings.tail}, {1, 1, {}}, nullptr), refresh_(settings.refresh), filter_of_(shape.n_layers, kDense) {
    for (uint32_t l = 0; l < n_layers_; ++l)
      if (window_[l] == 0) layers_.push_back(l);
    const uint64_t room = max_slots(budget) / (2 * uint64_t{n_context_} * std::max(n_kv_heads_, 1u));  // layers
    filters_ = settings.filters.empty() ? default_filters(room) : settings.filters;
    const bool next_dense =
        settings.next_dense && (settings.next_dense_given || !settings.filters.empty() || n_dense_with(filters_) <= room);
    for (size_t i = 0; i < layers_.size(); ++i) {
      const auto next = std::upper_bound(filters_.begin(), filters_.end(), i);
      if (next != filters_.begin() && i > *(next - 1) + size_t{next_dense}) filter_of_[layers_[i]] = layers_[*(next - 1)];
    }
    for (const uint32_t l : layers_) n_dense_ += filter_of_[l] == kDense;
  }

  Status check(const Budget& budget) const {
    if (!filters_.empty() && filters_.back() >= layers_.size() && !layers_.empty())
      return option_error(Code::invalid_argument, "policy_options", "policy omnikv: filter %u is none of %zu layers without window",
                          filters_.back(), layers_.size());
    return check_room(budget, "are of dense layers and keep their whole KV");
  }

  const char* name() const override { return "omnikv"; }
  uint32_t n_full_heads() const override { return n_dense_ * n_kv_heads_; }
  double refill_share() const override { return asks_before_attend() ? kNextStepShare : 0; }
  // The filters' sets, and a layer's scores with the best of them.
  uint64_t host_bytes(const HostShape& host) const override {
    return tailed_bytes() + bytes_of<uint32_t>(n_layers_ * budget_.head_max()) +
           bytes_of<float>((uint64_t{n_kv_heads_} * host.group + 3) * n_context_);
  }

  Status settle(Heads* heads, uint32_t n_tokens, Span<uint32_t> capacity) override {
    begin_settling(n_tokens, capacity);
    const uint32_t n_sparse = rings_.n_other_heads() - n_full_heads();
    const TailedBudget::Division division = budget_.divide(n_tokens, n_full_heads());
    k_ = n_sparse == 0 ? n_tokens : static_cast<uint32_t>(std::min<uint64_t>(division.selected / n_sparse, n_tokens));
    for (uint32_t head = 0; head < capacity.size(); ++head)
      if (!rings_.has(head)) capacity[head] = (dense(head / n_kv_heads_) ? n_tokens : k_) + division.tail;
    if (k_ == n_tokens) return ok_status();
    make_room(heads->group());
    for (uint32_t l = 0; l < n_layers_; ++l)
      if (is_filter(l)) ORRERY_TRY(find_tokens(heads, l, n_tokens - 1));
    end_settling(k_);
    return ok_status();
  }

  // The filters' sets are found again by each step.
  Status state(StateBytes* s, const SavedMoment& at) override {
    ORRERY_TRY(tailed_state(s, at));
    ORRERY_TRY(s->number(&k_, uint64_t{n_tokens_} + 1, "heads hold more tokens than were settled"));
    if (!s->reads()) return ok_status();
    ORRERY_TRY(s->check(at.refills.empty(), "refills between two steps"));
    for (uint32_t head = 0; k_ != n_tokens_ && head < filter_of_.size() * n_kv_heads_; ++head) {
      if (rings_.has(head)) continue;
      const bool whole = dense(head / n_kv_heads_);
      ORRERY_TRY(s->check(whole ? at.slots->holds(head, 0, n_tokens_, 0, at.n_tokens) : at.slots->holds(head, 0, k_, 0, n_tokens_),
                          "a head lacks tokens"));
    }
    if (k_ == n_tokens_) return ok_status();
    make_room(at.group);
    std::fill(sets_.begin(), sets_.end(), 0u);
    end_settling(k_);
    return ok_status();
  }

  void select(uint32_t head, uint32_t n_tokens, uint32_t, std::vector<uint32_t>* out) override {
    if (rings_.has(head)) return rings_.select(head, n_tokens, out);
    out->clear();
    const uint32_t layer = head / n_kv_heads_;
    if (dense(layer) || k_ == n_tokens) return select_all(n_tokens, out);
    const Span<const uint32_t> set = set_of(filter_of_[layer]);
    out->insert(out->end(), set.begin(), set.end());
  }

  bool asks_before_attend() const override { return refresh_ && n_dense_ < layers_.size() && !budget_.holds_all(); }

  Status before_attend(Heads* heads, uint32_t layer, uint64_t step, uint32_t position) override {
    if (k_ == n_tokens_ || !is_filter(layer)) return ok_status();
    ORRERY_TRY(find_tokens(heads, layer, position));
    held_.clear(), misses_.clear();
    for (uint32_t head = 0; head < filter_of_.size() * n_kv_heads_; ++head)
      if (filter_of_[head / n_kv_heads_] == layer) ORRERY_TRY(fetch(heads, head, set_of(layer), step));
    return ok_status();
  }

  std::unique_ptr<Policy> clone() const override { return clone_of(*this); }

 private:
  static constexpr uint32_t kDense = UINT32_MAX;
  bool dense(uint32_t layer) const { return filter_of_[layer] == kDense; }
  bool is_filter(uint32_t layer) const { return std::find(filter_of_.begin(), filter_of_.end(), layer) != filter_of_.end(); }
  Span<uint32_t> set_of(uint32_t filter) { return Span<uint32_t>(sets_).subspan(size_t{filter} * k_, k_); }

  // For n_tokens_.
  void make_room(uint32_t group) {
    resize_discarding(&sets_, size_t{n_layers_} * k_);
    resize_discarding(&rows_, size_t{n_kv_heads_} * group * n_tokens_);
    scores_queries_.reserve(n_kv_heads_);
    scores_.resize(n_tokens_);
    best_.reserve(n_tokens_);
    held_.reserve(k_);
  }

  // Reuses the misses of the last head where it held the same tokens, slot by slot.
  Status fetch(Heads* heads, uint32_t head, Span<const uint32_t> set, uint64_t step) {
    const Span<const uint32_t> held = heads->positions(head).subspan(0, k_);
    if (!std::equal(held.begin(), held.end(), held_.begin(), held_.end())) {
      held_.assign(held.begin(), held.end());
      plan_misses(held, set, 0, &marks_, &misses_);
    }
    report_.wanted_tokens += k_;
    report_.missed_tokens += misses_.size();
    return misses_.empty() ? ok_status() : heads->refill(head, misses_, step);
  }

  // `room`: the number of layers that may be dense.
  std::vector<uint32_t> default_filters(uint64_t room) const {
    const size_t n = layers_.size();
    std::vector<uint32_t> filters;
    for (const size_t of_32 : {size_t{2}, size_t{8}, size_t{18}}) {
      const size_t at = std::max<size_t>((of_32 * n + 16) / 32, 1);
      if (at + 2 < n && (filters.empty() || at >= filters.back() + size_t{3})) filters.push_back(static_cast<uint32_t>(at));
    }
    while (filters.size() > 1 && n_dense_with(filters) > room) filters.pop_back();
    if (filters.empty() || n_dense_with(filters) > room) filters = {0};
    return filters;
  }
  static uint64_t n_dense_with(const std::vector<uint32_t>& filters) { return filters.front() + 2 * filters.size(); }

  // Writes the best k_ prompt tokens by the query at `position` to the filter's set, ascending.
  Status find_tokens(Heads* heads, uint32_t filter, uint32_t position) {
    scores_queries_.clear();
    for (uint32_t h = 0; h < n_kv_heads_; ++h)
      scores_queries_.push_back(
          {filter * n_kv_heads_ + h, position, 0, n_tokens_, false, true, &rows_[size_t{h} * heads->group() * n_tokens_]});
    ORRERY_TRY(heads->scores(scores_queries_));
    ORRERY_TRY(group_reduce(rows_, n_kv_heads_ * heads->group(), GroupReduce::max, scores_));
    top_k_ascending(scores_, k_, &best_);
    std::copy(best_.begin(), best_.end(), set_of(filter).begin());
    return ok_status();
  }

  const bool refresh_;
  std::vector<uint32_t> layers_;     // layers without window
  std::vector<uint32_t> filters_;    // indices of layers_
  std::vector<uint32_t> filter_of_;  // (n_layers) the filter layer whose set the layer attends to; kDense: it attends to everything
  uint32_t n_dense_ = 0;             // dense layers
  // Since settle():
  uint32_t k_ = 0;                    // prompt tokens of a head that is not dense
  std::vector<uint32_t> sets_;        // (n_layers, k_) filled for filters only
  std::vector<float> rows_, scores_;  // (n_kv_heads, group, n_tokens_) of a filter, (n_tokens_)
  ReservedVector<ScoresQuery> scores_queries_;
  ReservedVector<uint32_t> best_;
  ReservedVector<uint32_t> held_;  // (k_) tokens of the head that misses_ belong to; empty: no head
};

MadePolicy make(const Shape& shape, const Budget& budget, const Options& options, const SharedProfile&) {
  OmniSettings s;
  OptionReader reader("omnikv", options);
  ORRERY_TRY(reader.ascending("filters", 4096, &s.filters));
  ORRERY_TRY(reader.flag("behind", &s.next_dense));
  ORRERY_TRY(reader.flag("refresh", &s.refresh));
  ORRERY_TRY(reader.count("tail", 0, 1u << 20, &s.tail));
  ORRERY_TRY(reader.finish());
  s.next_dense_given = reader.given("behind");
  auto policy = std::make_unique<OmniKv>(shape, budget, s);
  ORRERY_TRY(policy->check(budget));
  return std::unique_ptr<Policy>(std::move(policy));
}

}  // namespace omnikv_method

constexpr Method kOmniKv = {{"omnikv", "OmniKV", "ICLR 2025",
                             /* score    */ "this step's query in a filter layer, maximum over all its query heads",
                             /* allocate */ "filter layers, the first layers and the layers after filters everything; the others evenly",
                             /* keep     */ "best tokens, one set up to the next filter; all generated tokens",
                             /* refresh  */ "every step, by its own query, before it attends",
                             /* device   */ "dense layers, the last query, a staging ring",
                             /* link     */ kSelectionAndMissesOnLink, all(omnikv_method::kOptions), omnikv_method::kPage},
                            {1},
                            omnikv_method::make};

}  // namespace orrery::policy
