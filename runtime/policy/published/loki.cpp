// Loki (Singhania et al., NeurIPS 2024, arXiv:2406.02542): keys lie near a low-dimensional space. A query finds its tokens by the first
// dimensions of keys that are rotated to their principal components.
//   score     the query's products with the first `rank` coefficients of the rotated keys, divided by sqrt(head_dim); softmax over the
//             candidates, mean (or maximum) over the group
//   allocate  evenly
//   select    the last tokens, the best of the others; the reservoir keeps all tokens
//   refresh   every step, by its own query, before each layer attends; misses are fetched whole and exact
// Paper, code and this build: the page below. Base: engines/tokens.
#include "runtime/policy/engines/tokens.h"
#include "runtime/policy/table.h"

namespace orrery::policy {

namespace loki_method {

constexpr PagedSettings kDefaults = {1, 0, 32, 0};
constexpr double kRankPart = .25;  // of head_dim
constexpr OptionRow kOptions[] = {
    {"rank", "(a quarter of a key, or less)",
     "coefficients of a rotated key that find it, a multiple of 4; less where the budget is small. All of its dimensions: exact"},
    {"reduce", "mean", "of a group's softmaxes, or max"},
    with(kSinksRow, "0"),
    kTokenWindowRow,
    with(kFirstLayersRow, "0"),
};
constexpr char kPage[] =
    "A head's keys differ along few directions. Rotated so that these directions come first, a quarter of a key tells nearly as\n"
    "much as the whole key. That quarter of every token stays on the device; every step finds its tokens by it, and attends to\n"
    "them exactly.\n"
    "- Directions are the principal components of keys after RoPE (the code can also take keys before it). The mean is\n"
    "  subtracted to find the directions, not when keys are rotated, as in the code: it adds the same to all products of a\n"
    "  query.\n"
    "- The code finds the directions on another text, once for a model. Here they are those of the keys present when the\n"
    "  session settles, a basis for each KV head. Generated tokens are rotated by the same basis.\n"
    "- In the code each query head selects for itself, on repeated KV. Here the mean of its group's softmaxes selects for the\n"
    "  KV head.\n"
    "- The code keeps all KV on the device and reads less of it, for the prompt too. Here the prompt is exact, and unselected\n"
    "  tokens stay in host memory. The budget counts the coefficients, rank / (2 head_dim) of full KV in F16, and the bases.\n"
    "- The last tokens stay whatever their scores, as the newest must. Nothing is settled again, however long the answer gets.\n"
    "- A full rank is exact top-k: keys are rotated, and nothing is left out.\n";

class Loki final : public TokenPolicy {
 public:
  Loki(const Shape& shape, const Budget& budget, const PagedSettings& settings, GroupReduce reduce)
      : TokenPolicy("loki", shape, budget, settings, PageDigest::low_rank), rule_{reduce, Pooling::none, 1, true, true} {}

  Status settle(Heads* heads, uint32_t n_tokens, Span<uint32_t> capacity) override {
    return settle_tokens(heads, rule_, n_tokens, capacity);
  }

  Status before_attend(Heads* heads, uint32_t layer, uint64_t step, uint32_t position) override {
    return fetch_best(heads, rule_, layer, step, position);
  }

  uint64_t host_bytes(const HostShape&) const override { return tokens_bytes(); }

  std::unique_ptr<Policy> clone() const override { return clone_of(*this); }

 private:
  const ScoreRule rule_;
};

MadePolicy make(const Shape& shape, const Budget& budget, const Options& options, const SharedProfile&) {
  PagedSettings s = kDefaults;
  OptionReader reader("loki", options);
  static constexpr const char* kReduce[] = {"mean", "max"};
  uint32_t reduce = 0;
  ORRERY_TRY(reader.count("rank", 0, 1u << 20, &s.rank));
  ORRERY_TRY(reader.choice("reduce", kReduce, &reduce));
  ORRERY_TRY(s.read_kept(&reader));
  ORRERY_TRY(reader.finish());
  s.rank = rank_of(s.rank, kRankPart, shape, budget);
  auto policy = std::make_unique<Loki>(shape, budget, s, reduce == 1 ? GroupReduce::max : GroupReduce::mean);
  ORRERY_TRY(policy->check());
  return std::unique_ptr<Policy>(std::move(policy));
}

}  // namespace loki_method

constexpr Method kLoki = {{"loki", "Loki", "arXiv:2406.02542",
                           /* score    */ "products with the first dimensions of rotated keys, softmax, mean of the group",
                           /* allocate */ "evenly",
                           /* keep     */ "the last tokens, the best of the others",
                           /* refresh  */ "every step, by its own query, before it attends",
                           /* device   */ "the first dimensions of all rotated keys, a basis for each head, the last query, a staging ring",
                           /* link     */ kSelectionAndWaitOnLink, all(loki_method::kOptions), loki_method::kPage},
                          {1},
                          loki_method::make};

}  // namespace orrery::policy
