// OmniKV (Hao et al., ICLR 2025): a few layers look for the tokens that the layers behind them attend to.
//   score     a filter layer's scaled products of this step's query with the prompt's keys, no softmax; the maximum over all its
//             query heads
//   allocate  dense layers everything: those up to the first filter, each filter, and the one behind it; the others evenly
//   keep      the best prompt tokens, one set for all heads of the layers up to the next filter; and every generated token
//   refresh   every step, by its own query: misses are fetched while the filter and the layer behind it are computed
//
// Where the paper leaves it to its user, and what is done here:
//   - Filters are 2, 8 and 18 of 32 layers: of a model of n layers those nearest to n / 32 of that, three layers apart at least. There
//     are as many as leave dense layers half of the budget at most (all three at .5 and more of 32 layers); where one is too many,
//     it is the first layer, and the one behind it is not dense (behind). Layers with a sliding window keep that, and are not counted.
//   - The paper's share of tokens, .067, is what the budget leaves.
//   - Generated tokens count; the tail that they go to is inside the budget, and a full one settles everything anew.
//   - The first set is there before the first step: the prompt's last query chooses it.
#include <algorithm>

#include "runtime/policy/engines/tailed.h"
#include "runtime/policy/methods/methods.h"
#include "runtime/policy/options.h"

namespace orrery::policy {

namespace {

struct Settings {
  std::vector<uint32_t> filters;   // ascending, among the layers without window; none: by the budget
  uint32_t tail = 0;
  bool refresh = true, behind = true, behind_given = false;   // the layer behind a filter is dense
};

class OmniKv final : public TailedPolicy {
 public:
  OmniKv(const Shape& shape, const Budget& budget, const Settings& settings)
      : TailedPolicy(shape, budget, {settings.tail}, {1, 1, {}}, nullptr), refresh_(settings.refresh), filter_of_(shape.n_layers, kDense) {
    for (uint32_t l = 0; l < n_layers_; ++l)
      if (window_[l] == 0) layers_.push_back(l);
    const uint64_t room = max_slots(budget) / (2 * uint64_t{n_context_} * std::max(n_kv_heads_, 1u));   // of layers
    filters_ = settings.filters.empty() ? default_filters(room) : settings.filters;
    const bool behind = settings.behind && (settings.behind_given || !settings.filters.empty() || n_dense_with(filters_) <= room);
    for (size_t i = 0; i < layers_.size(); ++i) {
      const auto next = std::upper_bound(filters_.begin(), filters_.end(), i);
      if (next != filters_.begin() && i > *(next - 1) + size_t{behind}) filter_of_[layers_[i]] = layers_[*(next - 1)];
    }
    for (const uint32_t l : layers_) n_dense_ += filter_of_[l] == kDense;
  }

  Status check(const Budget& budget) const {
    if (!filters_.empty() && filters_.back() >= layers_.size() && !layers_.empty())
      return error(Code::invalid_argument, "policy omnikv: filter %u is none of %zu layers without window", filters_.back(), layers_.size());
    return check_room(budget, "are of dense layers and keep their whole KV");
  }

  const char* name() const override { return "omnikv"; }
  uint32_t n_full_heads() const override { return n_dense_ * n_kv_heads_; }
  double refill_share() const override { return asks_before_attend() ? kNextStepShare : 0; }
  // Sets, and a layer's scores with the best of them.
  uint64_t host_bytes(const HostShape& host) const override {
    return tailed_bytes() + bytes_of<uint32_t>(n_layers_ * budget_.most_of_head()) + bytes_of<float>((uint64_t{n_kv_heads_} * host.group + 3) * n_context_);
  }

  Status settle(Heads* heads, uint32_t n_tokens, Span<uint32_t> capacity) override {
    begin_settling(n_tokens, capacity);
    const uint32_t n_sparse = rings_.n_other_heads() - n_full_heads();
    const TailedBudget::Division division = budget_.divide(n_tokens, n_full_heads());
    k_ = n_sparse == 0 ? n_tokens : static_cast<uint32_t>(std::min<uint64_t>(division.selected / n_sparse, n_tokens));
    for (uint32_t head = 0; head < capacity.size(); ++head)
      if (!rings_.has(head)) capacity[head] = (dense(head / n_kv_heads_) ? n_tokens : k_) + division.tail;
    if (k_ == n_tokens) return ok_status();
    renew(&sets_, size_t{n_layers_} * k_);
    renew(&rows_, size_t{n_kv_heads_} * heads->group() * n_tokens);
    scores_queries_.reserve(n_kv_heads_);
    scores_.resize(n_tokens);
    best_.reserve(n_tokens);
    held_.reserve(k_);
    for (uint32_t l = 0; l < n_layers_; ++l)
      if (finds(l)) ORRERY_TRY(find(heads, l, n_tokens - 1));
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

  bool asks_before_attend() const override { return refresh_ && n_dense_ < layers_.size() && !budget_.everything(); }

  Status before_attend(Heads* heads, uint32_t layer, uint64_t step, uint32_t position) override {
    if (k_ == n_tokens_ || !finds(layer)) return ok_status();
    ORRERY_TRY(find(heads, layer, position));
    held_.clear(), misses_.clear();
    for (uint32_t head = 0; head < filter_of_.size() * n_kv_heads_; ++head)
      if (filter_of_[head / n_kv_heads_] == layer) ORRERY_TRY(fetch(heads, head, set_of(layer), step));
    return ok_status();
  }

  std::unique_ptr<Policy> clone() const override { return clone_of(*this); }

 private:
  static constexpr uint32_t kDense = UINT32_MAX;
  bool dense(uint32_t layer) const { return filter_of_[layer] == kDense; }
  bool finds(uint32_t layer) const { return std::find(filter_of_.begin(), filter_of_.end(), layer) != filter_of_.end(); }
  Span<uint32_t> set_of(uint32_t filter) { return Span<uint32_t>(sets_).subspan(size_t{filter} * k_, k_); }

  // Where the last head held the same, slot by slot, what is missing is the same.
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

  // `room`: the most layers that may be dense.
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

  // The best k_ of the prompt's keys by a position's query: the filter's set, ascending.
  Status find(Heads* heads, uint32_t filter, uint32_t position) {
    scores_queries_.clear();
    for (uint32_t h = 0; h < n_kv_heads_; ++h)
      scores_queries_.push_back({filter * n_kv_heads_ + h, position, 0, n_tokens_, false, true, &rows_[size_t{h} * heads->group() * n_tokens_]});
    ORRERY_TRY(heads->scores(scores_queries_));
    ORRERY_TRY(group_reduce(rows_, n_kv_heads_ * heads->group(), GroupReduce::max, scores_));
    top_k_ascending(scores_, k_, &best_);
    std::copy(best_.begin(), best_.end(), set_of(filter).begin());
    return ok_status();
  }

  const bool refresh_;
  std::vector<uint32_t> layers_;       // without window
  std::vector<uint32_t> filters_;      // of layers_
  std::vector<uint32_t> filter_of_;    // (n_layers) whose set a layer attends to; kDense: to everything
  uint32_t n_dense_ = 0;               // of layers_
  // Since settling.
  uint32_t k_ = 0;                     // prompt tokens of a head that is not dense
  std::vector<uint32_t> sets_;         // (n_layers, k_) filters' alone
  std::vector<float> rows_, scores_;   // (n_kv_heads, group, n_tokens_) of a filter, (n_tokens_)
  Roomy<ScoresQuery> scores_queries_;
  Roomy<uint32_t> best_;
  Roomy<uint32_t> held_;               // (k_) of the head that misses_ are of; none: empty
};

}  // namespace

Result<std::unique_ptr<Policy>> make_omnikv(const Shape& shape, const Budget& budget, const Options& options, const SharedProfile&) {
  Settings s;
  OptionReader reader("omnikv", options);
  ORRERY_TRY(reader.ascending("filters", 4096, &s.filters));
  ORRERY_TRY(reader.flag("behind", &s.behind));
  ORRERY_TRY(reader.flag("refresh", &s.refresh));
  ORRERY_TRY(reader.count("tail", 0, 1u << 20, &s.tail));
  ORRERY_TRY(reader.finish());
  s.behind_given = reader.given("behind");
  auto policy = std::make_unique<OmniKv>(shape, budget, s);
  ORRERY_TRY(policy->check(budget));
  return std::unique_ptr<Policy>(std::move(policy));
}

}  // namespace orrery::policy
