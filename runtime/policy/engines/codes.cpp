#include "runtime/policy/engines/codes.h"

#include "runtime/policy/allocate/over_heads.h"
#include "runtime/policy/select/top_k.h"

namespace orrery::policy {

namespace {

// In place: heads have room for a quarter of the tokens, or for the budget's share if that is more. Of these they read the tokens that
// weigh more than the mean; at larger budgets also tokens that weigh less, by the square of the share.
constexpr double kLeastShare = .25;
double skip_of(double share) { return std::min(1.0, kLeastShare * kLeastShare / (share * share)); }
constexpr PagedSettings kDefaults = [] {
  PagedSettings s = {1, 4, 8, 0};
  s.compensation = true;
  s.least_share = kLeastShare;
  return s;
}();
// A resident token's score counts kStay times where heads hold at least one of kFewStay tokens. Where they hold less, a query's best tokens
// are worth more than fetching them costs.
constexpr float kStay = 4;
constexpr uint32_t kFewStay = 8;
constexpr uint32_t kMostCodeBits = 1028;  // of a key: sums of its table entries have 16 bits

class KeyCodesPolicy final : public TokenPolicy {
 public:
  // floor: of adaptive heads; 1: all heads have equal room.
  KeyCodesPolicy(const char* name, const Shape& shape, const Budget& budget, const PagedSettings& settings, GroupReduce reduce,
                 double floor)
      : TokenPolicy(name, shape, budget, settings, PageDigest::codes), rule_{reduce, Pooling::none, 1, true, true}, floor_(floor) {}

  uint32_t queries_wanted() const override { return heads_.empty() ? 0 : weighs() ? kPageQueries : 1; }

  Status settle(Heads* heads, uint32_t n_tokens, Span<uint32_t> capacity) override {
    return settle_tokens(heads, rule_, n_tokens, capacity);
  }

  Status before_attend(Heads* heads, uint32_t layer, uint64_t step, uint32_t position) override {
    return fetch_best(heads, rule_, layer, step, position);
  }

  uint64_t host_bytes(const HostShape&) const override { return tokens_bytes() + (weighs() ? weighing_bytes() : 0); }

  std::unique_ptr<Policy> clone() const override { return clone_of(*this); }

 protected:
  Status divide(Heads* heads, uint32_t n_tokens, Span<uint32_t> capacity) override;

 private:
  bool weighs() const { return !heads_.empty() && (floor_ < 1 || settings_.compensation); }
  uint64_t weighing_bytes() const {
    return heads_.size() * (bytes_of<float>(2 * uint64_t{n_context_}) + bytes_of<PageWeightsQuery>(1) + bytes_of<uint32_t>(kScoreBins));
  }
  // Turns sums of weights (n_tokens) into a mean value's shares: of the candidates, without the n_best that weigh the most.
  void keep_evicted(Span<float> weights, size_t n_best) const;

  const ScoreRule rule_;
  const double floor_;
};

// For each of the last queries: counts whose the best tokens of all heads are, and adds up weights. Heads get room in proportion to their
// counts; the sums are the shares of the mean values.
Status KeyCodesPolicy::divide(Heads* heads, uint32_t n_tokens, Span<uint32_t> capacity) {
  const uint32_t n = n_candidates(n_tokens), w = std::min(kPageQueries, heads->n_queries()), first = n_sink_pages_;
  const size_t n_heads = heads_.size();
  stay_ = settings_.stay > 0 ? settings_.stay : uint64_t{kFewStay} * n_selected_pages_ >= n ? kStay : 1;
  if (!weighs()) return ok_status();
  std::vector<float> weights(n_heads * n_tokens), sums(n_heads * n_tokens);
  std::vector<uint32_t> bins(n_heads * kScoreBins);
  std::vector<PageWeightsQuery> queries(n_heads);
  std::vector<double> counts(n_heads, kLeastHeadCount);
  for (uint32_t position = n_tokens - w; position < n_tokens; ++position) {
    const uint32_t n_seen = position + 1;
    for (size_t i = 0; i < n_heads; ++i) queries[i] = {heads_[i], position, n_seen, &weights[i * n_tokens]};
    ORRERY_TRY(heads->page_weights(queries));
    std::fill(bins.begin(), bins.end(), 0u);
    heads->each(n_heads, [&](size_t i) {
      const float* row = &weights[i * n_tokens];
      uint32_t* of_head = &bins[i * kScoreBins];
      for (uint32_t p = first; p < first + n; ++p) ++of_head[score_bin(row[p])];  // behind n_seen: 0
      for (uint32_t p = 0; p < n_seen; ++p) sums[i * n_tokens + p] += row[p];
    });
    add_best_counts(bins, uint64_t{n_selected_pages_} * n_heads, counts);
  }
  if (floor_ < 1) ORRERY_TRY(divide_by_counts(counts, floor_, n, capacity));
  if (!settings_.compensation) return ok_status();
  ORRERY_TRY(heads->try_each(n_heads, [&](size_t i) {
    keep_evicted(Span<float>(sums).subspan(i * n_tokens, n_tokens), selected(i).size());
    return ok_status();
  }));
  return heads->set_mean_values(sums);
}

void KeyCodesPolicy::keep_evicted(Span<float> weights, size_t n_best) const {
  const uint32_t first = n_sink_pages_, n = n_candidates(static_cast<uint32_t>(weights.size()));
  std::fill(weights.begin(), weights.begin() + first, 0.0f);
  std::fill(weights.begin() + first + n, weights.end(), 0.0f);
  const Span<float> candidates = weights.subspan(first, n);
  Tokens best;
  top_k_ascending(candidates, n_best, &best);
  for (const uint32_t p : best) candidates[p] = 0;
  double sum = 0;
  for (const float x : candidates) sum += static_cast<double>(x);
  for (float& x : candidates)  // no weight is left: the plain mean
    x = sum > 0 ? static_cast<float>(static_cast<double>(x) / sum) : 1.0f / static_cast<float>(n);
}

}  // namespace

bool codes_fit(uint32_t bits, uint32_t value_bits, const Shape& shape, const Budget& budget, bool compensation, bool in_place) {
  const WindowRings rings(shape);
  const KeyCodeFormat codes = {static_cast<int32_t>(bits), static_cast<int32_t>(shape.head_dim), compensation,
                               static_cast<int32_t>(value_bits), static_cast<int32_t>(shape.code_turns)};
  const uint64_t slots = budget.max_slots - std::min(budget.max_slots, rings.slots()), quarters = in_place ? 4 : 3;
  return 4 * rings.n_other_heads() * codes.head_bytes(shape.n_context) <= quarters * slots * shape.slot_bytes &&
         bits * shape.head_dim <= kMostCodeBits;
}

MadePolicy make_codes(const char* name, const Shape& shape, const Budget& budget, const Options& options) {
  static constexpr const char* kBits[] = {"1", "2", "4"};
  static constexpr const char* kReduce[] = {"max", "mean"};
  PagedSettings s = kDefaults;
  OptionReader reader(name, options);
  static constexpr const char* kHeads[] = {"uniform", "adaptive"};
  uint32_t bits = 0, reduce = 0, heads = 1;
  double floor = .75;
  ORRERY_TRY(reader.choice("bits", kBits, &bits));
  ORRERY_TRY(reader.choice("reduce", kReduce, &reduce));
  ORRERY_TRY(reader.choice("heads", kHeads, &heads));
  ORRERY_TRY(reader.fraction("floor", &floor));
  ORRERY_TRY(reader.flag("compensation", &s.compensation));
  double stay = 0;
  ORRERY_TRY(reader.number("stay", 1, 64, &stay));
  s.stay = static_cast<float>(stay);
  bool copy = !shape.in_place || stay > 0;
  ORRERY_TRY(reader.flag("copy", &copy));
  s.in_place = !copy;
  static constexpr const char* kValues[] = {"0", "1", "2"};
  ORRERY_TRY(reader.choice("values", kValues, &s.value_bits));
  if (s.value_bits > 0 && !shape.codes_values)
    return error(Code::unsupported, "policy %s: this backend's key codes have no codes of values; expected values=0", name);
  if (s.value_bits > 0 && !s.compensation) return error(Code::invalid_argument, "policy %s: values needs compensation=1", name);
  if (s.value_bits > 0 && (s.in_place || reader.given("exact"))) s.exact = s.value_bits == 1 ? 128 : 64, s.window = 32;
  double exact = s.exact;
  ORRERY_TRY(reader.number("exact", 1, 65536, &exact));
  if (reader.given("exact") && s.value_bits == 0)
    return error(Code::invalid_argument, "policy %s: exact needs codes of values (values=1 or 2)", name);
  s.exact = static_cast<uint32_t>(exact);
  if (s.exact > 0) s.least_share = 1;  // however small the budget
  ORRERY_TRY(reader.fraction("least", &s.least_share));
  double skip = s.exact > 0 ? 0 : skip_of(budget.share.of_tokens());
  ORRERY_TRY(reader.number("skip", 0, 64, &skip));
  s.skip = static_cast<float>(skip);
  ORRERY_TRY(s.read_kept(&reader));
  s.code_bits = reader.given("bits") ? 1u << bits : codes_fit(2, s.value_bits, shape, budget, s.compensation, s.in_place) ? 2 : 1;
  ORRERY_TRY(reader.finish());
  if (s.in_place && stay > 0)
    return option_error(Code::invalid_argument, "policy_options", "policy %s: stay needs copy=1: read in place, no token is resident",
                        name);
  if (s.in_place && !shape.in_place)
    return option_error(
        Code::invalid_argument, "policy_options",
        "policy %s: copy=0 needs a device whose memory is the reservoir's, without a link, and KV of 16 bits or less in one type", name);
  for (const char* option : {"least", "skip"})
    if (copy && reader.given(option))
      return option_error(Code::invalid_argument, "policy_options", "policy %s: %s needs copy=0: the budget's slots hold the tokens", name,
                          option);
  if (s.code_bits * shape.head_dim > kMostCodeBits)
    return option_error(Code::invalid_argument, "policy_options",
                        "policy %s: codes of %u bits for %u dimensions of a head, expected at most %u bits together", name, s.code_bits,
                        shape.head_dim, kMostCodeBits);
  auto policy =
      std::make_unique<KeyCodesPolicy>(name, shape, budget, s, reduce == 1 ? GroupReduce::mean : GroupReduce::max, heads == 1 ? floor : 1);
  ORRERY_TRY(policy->check());
  return std::unique_ptr<Policy>(std::move(policy));
}

}  // namespace orrery::policy
