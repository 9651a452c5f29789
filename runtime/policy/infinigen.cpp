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

#include "runtime/policy/tokens.h"

namespace orrery::policy {

namespace {

class InfiniGen final : public TokenPolicy {
 public:
  InfiniGen(const Shape& shape, const Budget& budget, const PageSettings& settings, double alpha, double most)
      : TokenPolicy("infinigen", shape, budget, settings, PageDigest::skewed), alpha_(static_cast<float>(alpha)), most_(most) {}

  uint32_t queries_wanted() const override { return kMostWindow; }
  bool asks_ahead() const override { return true; }
  uint64_t score_bytes(uint32_t group) const override { return (uint64_t{n_kv_heads_} * (group + 1) + 1) * n_context_ * sizeof(float); }

  Status settle(Heads* heads, uint32_t n_tokens, Span<uint32_t> capacity) override {
    ORRERY_TRY(settle_by(heads, {GroupReduce::mean, Pooling::none, 1, true, true}, n_tokens, capacity));
    if (!paged_) return ok_status();
    rows_.resize(size_t{n_kv_heads_} * heads->group() * n_context_);
    best_.reserve(n_context_);
    free_.reserve(n_between_);
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
    // Each query head's products become distances from its best one.
    uint64_t n_near = 0;
    const size_t n_rows = (end - begin) * group;
    for (size_t r = 0; r < n_rows; ++r) {
      float* row = &rows_[r * n];
      const float best = *std::max_element(row, row + n);
      for (uint32_t i = 0; i < n; ++i) row[i] -= best;
      n_near += static_cast<uint64_t>(std::count_if(row, row + n, [this](float x) { return x > -alpha_; }));
    }
    const auto most = static_cast<uint64_t>(most_ * position + 1e-9);
    const auto n_wanted = static_cast<uint32_t>(std::min({n_near / n_rows, std::max<uint64_t>(most, 1), uint64_t{n_between_}}));
    for (size_t i = begin; i < end; ++i) {
      float* rows = &rows_[(i - begin) * group * n];
      ORRERY_TRY(group_reduce({rows, size_t{group} * n}, group, GroupReduce::max, {rows, n}));
      ORRERY_TRY(fetch(heads, heads_[i], {rows, n}, n_wanted, step));
    }
    return ok_status();
  }

  std::unique_ptr<Policy> clone() const override { return clone_of(*this); }

 private:
  // The head comes to hold the best n of its candidates, which have these scores.
  Status fetch(Heads* heads, uint32_t head, Span<const float> scores, uint32_t n, uint64_t visible_at) {
    const Span<const uint32_t> held = heads->positions(head).subspan(n_first_, n_between_);
    top_k(scores, n, &best_);
    for (uint32_t& token : best_) marks_[token += n_first_] = 1;
    free_.clear();
    for (uint32_t slot = 0; slot < n_between_; ++slot) {
      if (!marks_[held[slot]]) free_.push_back(slot);
      marks_[held[slot]] = 0;
    }
    misses_.clear();
    for (const uint32_t token : best_)
      if (marks_[token]) misses_.push_back({0, token});
    // Of equal scores the later token goes.
    std::partial_sort(free_.begin(), free_.begin() + static_cast<ptrdiff_t>(misses_.size()), free_.end(), [&](uint32_t a, uint32_t b) {
      const float x = scores[held[a] - n_first_], y = scores[held[b] - n_first_];
      return x != y ? x < y : held[a] > held[b];
    });
    for (size_t i = 0; i < misses_.size(); ++i) misses_[i].slot = n_first_ + free_[i], marks_[misses_[i].token] = 0;
    report_.wanted_tokens += n;
    report_.missed_tokens += misses_.size();
    return misses_.empty() ? ok_status() : heads->refill(head, misses_, visible_at);
  }

  const float alpha_;
  const double most_;                    // of all tokens, that a step asks for
  // Since settling.
  std::vector<float> rows_;              // (n_kv_heads, group, candidates) of a layer
  Roomy<uint32_t> best_, free_;          // (candidates), (n_between_)
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
