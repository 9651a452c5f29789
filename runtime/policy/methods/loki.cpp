// Loki (Singhania et al., NeurIPS 2024, arXiv:2406.02542): tokens that come and go with every step's own query. What finds them are the
// first dimensions of their keys, turned so that a head's keys differ most along these.
//   score     the query's products with the first `rank` dimensions of turned keys, over sqrt(head_dim); softmax over the candidates,
//             mean over the group (or its maximum)
//   allocate  evenly
//   keep      the last tokens, and the best of the others; all of it stays in the reservoir
//   refresh   every step, before each layer attends: misses are fetched, whole and exact
//
// Where paper and code disagree, or leave it open, and what is done here:
//   - Directions are the principal components of keys behind RoPE (the code can have them before it, too), along which they differ most:
//     the mean is taken off to find them. Keys are turned with the mean, which changes all of a query's products by the same.
//   - The code finds them once for a model, on another text; here they are those of the keys that are there when all is chosen, one
//     basis for each KV head. Generated tokens are turned by it, too.
//   - Each query head chooses for itself on repeated KV in the code; here its group does. In the code the prompt's own attention chooses
//     as well; here it is exact.
//   - A full rank is exact top-k: keys are turned, and nothing is left out.
// It keeps all of the KV on the device and reads less of it. Here only the first dimensions stay there, in F16, and what is chosen comes
// over the link. Ours: the budget counts them, and the bases; the last tokens stay whatever they score, for the newest one has to.
#include "runtime/policy/engines/tokens.h"
#include "runtime/policy/methods/methods.h"

namespace orrery::policy {

namespace {

class Loki final : public TokenPolicy {
 public:
  Loki(const Shape& shape, const Budget& budget, const PageSettings& settings, GroupReduce reduce)
      : TokenPolicy("loki", shape, budget, settings, PageDigest::low_rank), rule_{reduce, Pooling::none, 1, true, true} {}

  Status settle(Heads* heads, uint32_t n_tokens, Span<uint32_t> capacity) override { return settle_by(heads, rule_, n_tokens, capacity); }

  Status before_attend(Heads* heads, uint32_t layer, uint64_t step, uint32_t position) override {
    const auto [begin, end] = heads_of(layer);
    if (!paged_ || begin == end) return ok_status();
    ORRERY_TRY(choose(heads, rule_, begin, end, position, position));
    heads->each(end - begin, [&, first = begin](size_t i) {
      const Span<const uint32_t> held = heads->positions(heads_[first + i]).subspan(n_first_, n_between_);
      plan_misses(held, chosen(first + i), n_first_, &plans_[i].marks, &plans_[i].misses);
    });
    return refill(heads, begin, end, n_between_, step);
  }

  uint64_t host_bytes(const HostShape&) const override { return tokens_bytes(); }

  std::unique_ptr<Policy> clone() const override { return clone_of(*this); }

 private:
  const ScoreRule rule_;
};

}  // namespace

Result<std::unique_ptr<Policy>> make_loki(const Shape& shape, const Budget& budget, const Options& options, const SharedProfile&) {
  PageSettings s;
  s.page = 1, s.sinks = 0, s.window = 32, s.first_layers = 0;
  OptionReader reader("loki", options);
  static constexpr const char* kReduce[] = {"mean", "max"};
  uint32_t reduce = 0;
  ORRERY_TRY(reader.count("rank", 0, 1u << 20, &s.rank));
  ORRERY_TRY(reader.choice("reduce", {kReduce, 2}, &reduce));
  ORRERY_TRY(s.read_kept(&reader));
  ORRERY_TRY(reader.finish());
  s.rank = rank_of(s.rank, .25, shape, budget);
  auto policy = std::make_unique<Loki>(shape, budget, s, reduce == 1 ? GroupReduce::max : GroupReduce::mean);
  ORRERY_TRY(policy->check());
  return std::unique_ptr<Policy>(std::move(policy));
}

}  // namespace orrery::policy
