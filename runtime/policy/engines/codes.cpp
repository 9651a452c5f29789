#include "runtime/policy/engines/codes.h"

namespace orrery::policy {

namespace {

constexpr PagedSettings kDefaults = {1, 4, 8, 0};
constexpr uint32_t kMostCodeBits = 1028;   // of a key: sums of its table entries have 16 bits

class KeyCodesPolicy final : public TokenPolicy {
 public:
  KeyCodesPolicy(const char* name, const Shape& shape, const Budget& budget, const PagedSettings& settings, GroupReduce reduce, double floor)
      : TokenPolicy(name, shape, budget, settings, PageDigest::codes, floor),
        rule_{reduce, Pooling::none, 1, true, true},
        adaptive_(floor < 1) {}

  uint32_t queries_wanted() const override { return heads_.empty() ? 0 : adaptive_ || settings_.compensation ? kPageQueries : 1; }

  Status settle(Heads* heads, uint32_t n_tokens, Span<uint32_t> capacity) override {
    return settle_tokens(heads, rule_, n_tokens, capacity);
  }

  Status before_attend(Heads* heads, uint32_t layer, uint64_t step, uint32_t position) override {
    return fetch_best(heads, rule_, layer, step, position);
  }

  uint64_t host_bytes(const HostShape& host) const override {
    return tokens_bytes() + (adaptive_ && !heads_.empty() ? dividing_bytes(host.group) : 0);
  }

  std::unique_ptr<Policy> clone() const override { return clone_of(*this); }

 private:
  const ScoreRule rule_;
  const bool adaptive_;
};

// Whether codes have 2 bits by default: they take at most three quarters of the budget, and heads are not too wide for them. Else they have 1
// bit.
bool two_bits_fit(const Shape& shape, const Budget& budget, bool compensation) {
  const WindowRings rings(shape);
  const KeyCodeFormat two = {2, static_cast<int32_t>(shape.head_dim), compensation};
  const uint64_t slots = budget.max_slots - std::min(budget.max_slots, rings.slots());
  const bool too_large = 4 * rings.n_other_heads() * two.head_bytes(shape.n_context) > 3 * slots * shape.slot_bytes;
  return !too_large && 2 * shape.head_dim <= kMostCodeBits;
}

}  // namespace

MadePolicy make_codes(const char* name, const Shape& shape, const Budget& budget, const Options& options) {
  static constexpr const char* kBits[] = {"1", "2", "4"};
  static constexpr const char* kReduce[] = {"max", "mean"};
  PagedSettings s = kDefaults;
  OptionReader reader(name, options);
  static constexpr const char* kHeads[] = {"uniform", "adaptive"};
  uint32_t bits = 0, reduce = 0, heads = 1;
  double floor = .2;
  ORRERY_TRY(reader.choice("bits", kBits, &bits));
  ORRERY_TRY(reader.choice("reduce", kReduce, &reduce));
  ORRERY_TRY(reader.choice("heads", kHeads, &heads));
  ORRERY_TRY(reader.fraction("floor", &floor));
  s.compensation = true;
  ORRERY_TRY(reader.flag("compensation", &s.compensation));
  ORRERY_TRY(s.read_kept(&reader));
  s.code_bits = reader.given("bits") ? 1u << bits : two_bits_fit(shape, budget, s.compensation) ? 2 : 1;
  ORRERY_TRY(reader.finish());
  if (s.code_bits * shape.head_dim > kMostCodeBits)
    return error(Code::invalid_argument, "policy %s: codes of %u bits for %u dimensions of a head, expected at most %u bits together",
                 name, s.code_bits, shape.head_dim, kMostCodeBits);
  auto policy = std::make_unique<KeyCodesPolicy>(name, shape, budget, s, reduce == 1 ? GroupReduce::mean : GroupReduce::max,
                                                 heads == 1 ? floor : 1);
  ORRERY_TRY(policy->check());
  return std::unique_ptr<Policy>(std::move(policy));
}

}  // namespace orrery::policy
