// keycodes: our own. A query finds its tokens by 1, 2 or 4 bits for each dimension of all keys, which stay on the device.
//   score     the query's products with the decoded keys, divided by sqrt(head_dim); softmax over the candidates, maximum (or mean) over
//             the group
//   allocate  by the number of tokens that each head has among the best of all heads, for the last 16 queries; at least a floor
//   select    the first and the last tokens, the best of the others; the reservoir keeps all tokens
//   refresh   every step, by its own query, before each layer attends; misses are fetched whole and exact
// The codes: runtime/backend/key_codes.h. What was measured: tests/bench/results/real-models.md. Base: engines/tokens.
#include "runtime/policy/engines/tokens.h"
#include "runtime/policy/table.h"

namespace orrery::policy {

namespace {

constexpr PagedSettings kDefaults = {1, 4, 8, 0};
constexpr uint32_t kMostCodeBits = 1028;   // of a key: sums of its table entries have 16 bits
constexpr OptionRow kOptions[] = {
    {"bits", "(2, or 1 where the budget is small)", "of each dimension of a key's code: 1, 2 or 4"},
    {"reduce", "max", "of a group's softmaxes, or mean"},
    {"heads", "adaptive", "uniform: all heads hold as many tokens; adaptive: by what the last 16 queries attend to"},
    {"floor", ".2", "of adaptive heads: at least this part of the average"},
    with(kSinksRow, "4"),
    with(kTokenWindowRow, "8"),
    with(kFirstLayersRow, "0"),
};
constexpr char kPage[] =
    "Which tokens a query attends to is told by few bits of the keys. A code of 2 bits a dimension stays on the device for every\n"
    "token. Each step scores all tokens by their codes, with this step's query of this layer, and attends to the best tokens\n"
    "exactly. Tokens that were resident stay; the others are fetched within the step.\n"
    "- A code is made of the key after RoPE, less the mean of its head's keys, and rotated by the Hadamard transform. The mean\n"
    "  adds the same to all products of a query. Rotated dimensions are alike, so one codebook serves all: Lloyd and Max's\n"
    "  levels of a normal distribution. Each key has one factor in F16.\n"
    "- Means are taken from the keys present when the session settles. Generated tokens get codes by the same means when they\n"
    "  leave the window.\n"
    "- The budget counts the codes: (bits head_dim / 8 + 2) bytes a token and head. Of full KV in F16 that is 7.0% with 2 bits,\n"
    "  3.9% with 1 bit and 13.3% with 4 bits (heads of 64). The rest of the budget holds tokens.\n"
    "- Heads differ in how many tokens they attend to. For each of the last 16 queries the best tokens of all heads are counted,\n"
    "  and a head gets room in proportion to its count, at least a fifth of the average.\n"
    "- A head holds what the last step's query chose, so that a step fetches the difference: hits and misses are both counted.\n"
    "- KV on the device is Q8_0, unless device_kv_type says otherwise: where KV is kept in F16 the same bytes hold 1.88 times\n"
    "  the tokens.\n"
    "- The CPU backend has key codes. On a backend without them the policy is refused.\n";

class KeyCodesPolicy final : public TokenPolicy {
 public:
  KeyCodesPolicy(const Shape& shape, const Budget& budget, const PagedSettings& settings, GroupReduce reduce, double floor)
      : TokenPolicy("keycodes", shape, budget, settings, PageDigest::codes, floor),
        rule_{reduce, Pooling::none, 1, true, true},
        adaptive_(floor < 1) {}

  uint32_t queries_wanted() const override { return adaptive_ ? kPageQueries : 1; }

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

// 2 bits, or 1 where codes of 2 bits would take more than half of the budget, or a head is too wide for them.
uint32_t default_bits(const Shape& shape, const Budget& budget) {
  const WindowRings rings(shape);
  const KeyCodeFormat two = {2, static_cast<int32_t>(shape.head_dim)};
  const uint64_t slots = budget.max_slots - std::min(budget.max_slots, rings.slots());
  const bool too_large = 2 * rings.n_other_heads() * two.head_bytes(shape.n_context) > slots * shape.slot_bytes;
  return too_large || 2 * shape.head_dim > kMostCodeBits ? 1 : 2;
}

MadePolicy make(const Shape& shape, const Budget& budget, const Options& options, const SharedProfile&) {
  static constexpr const char* kBits[] = {"1", "2", "4"};
  static constexpr const char* kReduce[] = {"max", "mean"};
  PagedSettings s = kDefaults;
  OptionReader reader("keycodes", options);
  static constexpr const char* kHeads[] = {"uniform", "adaptive"};
  uint32_t bits = 0, reduce = 0, heads = 1;
  double floor = .2;
  ORRERY_TRY(reader.choice("bits", kBits, &bits));
  ORRERY_TRY(reader.choice("reduce", kReduce, &reduce));
  ORRERY_TRY(reader.choice("heads", kHeads, &heads));
  ORRERY_TRY(reader.fraction("floor", &floor));
  ORRERY_TRY(s.read_kept(&reader));
  s.code_bits = reader.given("bits") ? 1u << bits : default_bits(shape, budget);
  ORRERY_TRY(reader.finish());
  if (s.code_bits * shape.head_dim > kMostCodeBits)
    return error(Code::invalid_argument, "policy keycodes: codes of %u bits for %u dimensions of a head, expected at most %u bits together",
                 s.code_bits, shape.head_dim, kMostCodeBits);
  auto policy = std::make_unique<KeyCodesPolicy>(shape, budget, s, reduce == 1 ? GroupReduce::mean : GroupReduce::max,
                                                 heads == 1 ? floor : 1);
  ORRERY_TRY(policy->check());
  return std::unique_ptr<Policy>(std::move(policy));
}

}  // namespace

constexpr Method kKeyCodes = {{"keycodes", "Resident key codes", "",
                               /* score    */ "products with codes of all keys, softmax, maximum of the group",
                               /* allocate */ "by the best tokens of all heads, for the last 16 queries",
                               /* keep     */ "the first and the last tokens, the best of the others",
                               /* refresh  */ "every step, by its own query, before it attends",
                               /* device   */ "in Q8_0, where KV is kept in more; codes of all keys, a mean key a head, the last 16 "
                                              "positions' queries",
                               /* link     */ kSelectionAndWaitOnLink,
                               all(kOptions), kPage},
                              {kPageQueries, KvType::q8_0},
                              make};

}  // namespace orrery::policy
