// InfiniGen (Lee et al., OSDI 2024, arXiv:2406.19707), its prefetch: while a layer is computed, what the next one will look for is fetched.
//   score     queries that the next layer's weights make of what this layer's attention takes in, nearly its own; their products with
//             keys in a few of the directions that the head's queries have (a fifth)
//   allocate  the first two layers everything; the others evenly
//   keep      the last tokens, and others by score; all of it stays in the reservoir
//   refresh   every step, a layer ahead: as many tokens a head as stand less than alpha below the best, in the mean over the layer's query
//             heads, and no more than a fifth of all; missing ones take the place of what scores lowest
// Directions are the prompt's: of its last queries, a head's right singular vectors; among these, where queries and keys come to most.
//
// Where paper and code disagree, or leave it open, and what is done here:
//   - The paper turns the weights, so that a fifth of the next layer's query projection is enough. Behind RoPE, where keys are cached,
//     there is no such part: as in the code for Llama the whole projection is computed, and the query is turned behind it.
//   - Sums of absolute values over the prompt choose the directions; here roots of mean squares, of the queries that are known (the last
//     64) and of all keys, which come of the same sums that any basis needs. The paper's singular vectors are of another text.
//   - A query head has its own tokens in the paper; here its group has: the best by the largest distance below a head's own best.
//   - Of its pool the paper gives up tokens in host memory when that is full. Here nothing is lost.
// Ours: attention takes in all that is there, what has not been asked for in this step, too; the budget counts the keys' directions and the
// whole layers, which are only whole by themselves where they take no more than half of it.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "runtime/policy/engines/tokens.h"
#include "runtime/policy/methods/methods.h"

namespace orrery::policy {

namespace {

class InfiniGen final : public TokenPolicy {
 public:
  InfiniGen(const Shape& shape, const Budget& budget, const PageSettings& settings, double alpha, double most)
      : TokenPolicy("infinigen", shape, budget, settings, PageDigest::skewed), alpha_(static_cast<float>(alpha)), most_(most) {}

  uint32_t queries_wanted() const override { return kMostWindow; }
  bool asks_a_layer_ahead() const override { return true; }
  uint64_t host_bytes(const HostShape& host) const override {   // products, and what is best and free
    return tokens_bytes() + bytes_of<float>(uint64_t{n_kv_heads_} * (host.group + 2) * n_context_);
  }

  Status settle(Heads* heads, uint32_t n_tokens, Span<uint32_t> capacity) override {
    ORRERY_TRY(settle_by(heads, {GroupReduce::mean, Pooling::none, 1, true, true}, n_tokens, capacity));
    if (!paged_) return ok_status();
    rows_.resize(size_t{n_kv_heads_} * heads->group() * n_context_);
    n_near_.resize(n_kv_heads_);
    best_.resize(n_kv_heads_), free_.resize(n_kv_heads_);
    for (Roomy<uint32_t>& best : best_) best.reserve(n_context_);
    for (Roomy<uint32_t>& free : free_) free.reserve(n_between_ + 1);
    scores_queries_.reserve(n_kv_heads_);
    return ok_status();
  }

  // Within the layer before.
  Status before_attend(Heads* heads, uint32_t layer, uint64_t step, uint32_t position) override {
    const auto [begin, end] = heads_of(layer);
    if (!paged_ || begin == end) return ok_status();
    const uint32_t n = n_candidates(position), group = heads->group();
    scores_queries_.clear();
    for (size_t i = begin; i < end; ++i)
      scores_queries_.push_back({heads_[i], position, n_first_, n, true, true, &rows_[(i - begin) * group * n]});
    ORRERY_TRY(heads->scores(scores_queries_));
    // Each query head's products become distances from its best one, and a head's its largest: in the first row.
    const size_t n_heads = end - begin, first = begin;
    heads->each(n_heads, [&](size_t i) { n_near_[i] = measure(&rows_[i * group * n], group, n); });
    const uint64_t n_near = std::accumulate(n_near_.begin(), n_near_.begin() + static_cast<ptrdiff_t>(n_heads), uint64_t{0});
    const auto most = static_cast<uint64_t>(most_ * position + 1e-9);
    const auto n_wanted = static_cast<uint32_t>(std::min({n_near / (n_heads * group), std::max<uint64_t>(most, 1), uint64_t{n_between_}}));
    heads->each(n_heads, [&](size_t i) {
      plan(heads->positions(heads_[first + i]).subspan(n_first_, n_between_), {&rows_[i * group * n], n}, n_wanted, i);
    });
    return refill(heads, begin, end, n_wanted, step);
  }

  std::unique_ptr<Policy> clone() const override { return clone_of(*this); }

 private:
  // Rows (group, n) of products: the first becomes each token's largest distance. Returns how many of all are less than alpha below.
  uint64_t measure(float* rows, uint32_t group, uint32_t n) const {
    uint64_t n_near = 0;
    for (uint32_t g = 0; g < group; ++g) {
      float* row = rows + size_t{g} * n;
      constexpr uint32_t kLanes = 16;
      float most[kLanes];
      std::fill(most, most + kLanes, -INFINITY);
      const uint32_t whole = n / kLanes * kLanes;
      for (uint32_t i = 0; i < whole; i += kLanes)
        for (uint32_t j = 0; j < kLanes; ++j) most[j] = row[i + j] > most[j] ? row[i + j] : most[j];
      float best = *std::max_element(most, most + kLanes);
      for (uint32_t i = whole; i < n; ++i) best = std::max(best, row[i]);
      n_near += g == 0 ? widen<true>(row, rows, n, best) : widen<false>(row, rows, n, best);
    }
    return n_near;
  }

  // A row's distances from its best: the largest so far, or the first. Returns how many are less than alpha below.
  template <bool kFirst>
  uint32_t widen(const float* row, float* largest, uint32_t n, float best) const {
    uint32_t near = 0;
    for (uint32_t i = 0; i < n; ++i) {
      const float x = row[i] - best;
      near += x > -alpha_;
      largest[i] = kFirst || largest[i] < x ? x : largest[i];
    }
    return near;
  }

  // What a head that holds these is to fetch, so that the best n of its candidates are there, which have these scores.
  void plan(Span<const uint32_t> held, Span<const float> scores, uint32_t n, size_t i) {
    std::vector<uint8_t>& marks = plans_[i].marks;
    Roomy<Replacement>& misses = plans_[i].misses;
    Roomy<uint32_t>&best = best_[i], &free = free_[i];
    top_k_ascending(scores, n, &best);
    for (uint32_t& token : best) marks[token += n_first_] = 1;
    // Without branches: which token is there is anybody's guess.
    free.resize(n_between_ + 1);
    size_t n_free = 0, n_missed = 0;
    for (uint32_t slot = 0; slot < n_between_; ++slot) {
      uint8_t& wanted = marks[held[slot]];
      free[n_free] = slot, n_free += !wanted;
      wanted = 0;
    }
    free.resize(n_free);
    misses.resize(best.size() + 1);
    for (const uint32_t token : best) misses[n_missed].position = token, n_missed += marks[token];
    misses.resize(n_missed);
    // What scores lowest goes, of equal scores the later token; where all must, nothing needs to be looked for.
    if (misses.size() < free.size())
      std::nth_element(free.begin(), free.begin() + static_cast<ptrdiff_t>(misses.size()), free.end(), [&](uint32_t a, uint32_t b) {
        const float x = scores[held[a] - n_first_], y = scores[held[b] - n_first_];
        return x != y ? x < y : held[a] > held[b];
      });
    std::sort(free.begin(), free.begin() + static_cast<ptrdiff_t>(misses.size()));
    for (size_t m = 0; m < misses.size(); ++m) misses[m].slot = n_first_ + free[m], marks[misses[m].position] = 0;
  }

  const float alpha_;
  const double most_;                    // of all tokens, that a step asks for
  // Since settling.
  std::vector<float> rows_;              // (n_kv_heads, group, candidates) of a layer
  std::vector<uint64_t> n_near_;         // (n_kv_heads)
  std::vector<Roomy<uint32_t>> best_, free_;   // (n_kv_heads, candidates), (n_kv_heads, n_between_)
  Roomy<ScoresQuery> scores_queries_;
};

}  // namespace

Result<std::unique_ptr<Policy>> make_infinigen(const Shape& shape, const Budget& budget, const Options& options, const SharedProfile&) {
  PageSettings s;
  s.page = 1, s.sinks = 0, s.window = 32, s.first_layers = 2;
  double alpha = 4, most = .2, ratio = .2;
  OptionReader reader("infinigen", options);
  ORRERY_TRY(reader.fraction("ratio", &ratio));
  ORRERY_TRY(reader.number("alpha", 0, 1000, &alpha));
  ORRERY_TRY(reader.fraction("most", &most));
  ORRERY_TRY(s.read_kept(&reader));
  ORRERY_TRY(reader.finish());
  s.rank = rank_of(0, ratio, shape, budget);
  auto policy = std::make_unique<InfiniGen>(shape, budget, s, alpha, most);
  ORRERY_TRY(policy->check());
  return std::unique_ptr<Policy>(std::move(policy));
}

}  // namespace orrery::policy
