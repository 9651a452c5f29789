// InfiniGen (Lee et al., OSDI 2024, arXiv:2406.19707), its prefetch: while a layer is computed, the tokens that the next layer will select
// are fetched.
//   score     queries that the next layer's weights make of this layer's attention input, nearly the next layer's own; their products with keys
//             along a fifth of the directions of the head's queries
//   allocate  the first two layers everything, where they are a tenth of the budget or less; the others evenly
//   select    the last tokens, others by score; the reservoir keeps all tokens
//   refresh   every step, one layer ahead: a head gets as many tokens as score less than alpha below the best, in the mean over the layer's query
//             heads, at most a fifth of all tokens. Misses replace the lowest scores
// Directions are those of the prompt's last queries: a head's right singular vectors; of these, the ones along which queries and keys have
// the largest products. Paper, code and this build: the page below. Base: engines/tokens.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "runtime/policy/engines/tokens.h"
#include "runtime/policy/select/top_k.h"
#include "runtime/policy/table.h"

namespace orrery::policy {

namespace infinigen_method {

constexpr PagedSettings kDefaults = {1, 0, 32, 2};
constexpr OptionRow kOptions[] = {
    {"ratio", ".2", "coefficients of a rotated key that find it, of all, rounded up to a multiple of 4; less where the budget is small"},
    {"alpha", "4", "a step asks for as many tokens as score less than this below the best"},
    {"most", ".2", "of all tokens: a step asks for at most this share in a head"},
    with(kSinksRow, "0"),
    kTokenWindowRow,
    kTwoFirstLayersRow,
};
constexpr char kPage[] =
    "A layer's attention input is nearly the next layer's. So, while a layer is computed, the next layer's weights make queries\n"
    "of its input. These queries find tokens by a few dimensions of their keys, and misses are fetched meanwhile. Keys are\n"
    "rotated so that few dimensions are enough: along the directions of the prompt's last queries.\n"
    "- The paper rotates weights, and needs a fifth of the query projection. After RoPE there is no such part: as in the code\n"
    "  for Llama the whole projection is computed, a step's second one, and the query is rotated after it.\n"
    "- Dimensions are those with the largest mean squares of queries (the last 64) and keys (all). The paper adds absolute\n"
    "  values over the prompt, and its singular vectors are of another text.\n"
    "- A step asks for as many tokens as score less than alpha below the best, in the mean over a layer's query heads. A query\n"
    "  head has its own tokens in the paper; here the group has, by the smallest distance below a query head's best score. The\n"
    "  paper's alpha is 4 for OPT and 5 for Llama.\n"
    "- Tokens that a step does not ask for stay until a better one needs their slot, and attention includes them.\n"
    "- Nothing is lost. The paper's pool in host memory evicts tokens when it is full.\n"
    "- The budget counts the coefficients and the whole layers. The first two layers are whole where they take at most a tenth\n"
    "  of it.\n";

class InfiniGen final : public TokenPolicy {
 public:
  InfiniGen(const Shape& shape, const Budget& budget, const PagedSettings& settings, double alpha, double max_share)
      : TokenPolicy("infinigen", shape, budget, settings, PageDigest::skewed), alpha_(static_cast<float>(alpha)), max_share_(max_share) {}

  uint32_t queries_wanted() const override { return kMaxWindow; }
  bool asks_a_layer_ahead() const override { return true; }
  bool fetches_pages() const override { return asks_before_attend(); }
  uint64_t host_bytes(const HostShape& host) const override {  // products; best tokens and free slots
    return tokens_bytes() + bytes_of<float>(uint64_t{n_kv_heads_} * (host.group + 2) * n_context_);
  }

  Status settle(Heads* heads, uint32_t n_tokens, Span<uint32_t> capacity) override {
    ORRERY_TRY(settle_tokens(heads, {GroupReduce::mean, Pooling::none, 1, true, true}, n_tokens, capacity));
    if (paged_) make_room(heads->group());
    return ok_status();
  }

  Status state(StateBytes* s, const SavedMoment& at) override {
    ORRERY_TRY(TokenPolicy::state(s, at));
    for (size_t i = 0; s->reads() && paged_ && i < heads_.size(); ++i)
      ORRERY_TRY(s->check(selected(i).size() == n_selected_pages_, "a head selects another number of tokens"));
    if (s->reads() && paged_) make_room(at.group);
    return ok_status();
  }

  // While the layer before is computed.
  Status before_attend(Heads* heads, uint32_t layer, uint64_t step, uint32_t position) override {
    const auto [begin, end] = heads_of(layer);
    if (!paged_ || begin == end) return ok_status();
    const auto share = static_cast<uint64_t>(max_share_ * position + 1e-9);
    const auto most = static_cast<uint32_t>(std::clamp<uint64_t>(share, 1, n_selected_pages_));
    if (heads->fetches_pages()) {
      ask(begin, end, position, position);
      for (PageQuery& query : queries_) query.n_others = query.k - most, query.k = most;
      return heads->fetch_near_best(queries_, {n_sink_pages_, 0, 0}, alpha_);
    }
    const uint32_t n = n_candidates(position), group = heads->group();
    scores_queries_.clear();
    for (size_t i = begin; i < end; ++i)
      scores_queries_.push_back({heads_[i], position, n_sink_pages_, n, true, true, &rows_[(i - begin) * group * n]});
    ORRERY_TRY(heads->scores(scores_queries_));
    // In place: the first row of each head becomes its tokens' largest distance from a query head's best product; distances are negative.
    const size_t n_heads = end - begin, first = begin;
    heads->each(n_heads, [&](size_t i) { n_within_alpha_[i] = max_distances(&rows_[i * group * n], group, n); });
    const uint64_t n_within =
        std::accumulate(n_within_alpha_.begin(), n_within_alpha_.begin() + static_cast<ptrdiff_t>(n_heads), uint64_t{0});
    const auto n_wanted = static_cast<uint32_t>(std::min(n_within / (n_heads * group), uint64_t{most}));
    heads->each(n_heads, [&](size_t i) {
      plan(heads->positions(heads_[first + i]).subspan(n_sink_pages_, n_selected_pages_), {&rows_[i * group * n], n}, n_wanted, i);
    });
    return refill(heads, begin, end, n_wanted, step);
  }

  std::unique_ptr<Policy> clone() const override { return clone_of(*this); }

 private:
  // The working memory of steps.
  void make_room(uint32_t group) {
    rows_.resize(size_t{n_kv_heads_} * group * n_context_);
    n_within_alpha_.resize(n_kv_heads_);
    best_.resize(n_kv_heads_), free_.resize(n_kv_heads_);
    for (ReservedVector<uint32_t>& best : best_) best.reserve(n_context_);
    for (ReservedVector<uint32_t>& free : free_) free.reserve(n_selected_pages_ + 1);
    scores_queries_.reserve(n_kv_heads_);
  }

  // rows (group, n) of products: the first row becomes the maximum over the group of the distances. Returns how many products lie less than
  // alpha below their row's best.
  uint64_t max_distances(float* rows, uint32_t group, uint32_t n) const {
    uint64_t n_within = 0;
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
      n_within += g == 0 ? distances<true>(row, rows, n, best) : distances<false>(row, rows, n, best);
    }
    return n_within;
  }

  // The distances of a row from its best, and their maximum with the rows before (kFirst: none). Returns how many lie less than alpha
  // below.
  template <bool kFirst>
  uint32_t distances(const float* row, float* largest, uint32_t n, float best) const {
    uint32_t within = 0;
    for (uint32_t i = 0; i < n; ++i) {
      const float x = row[i] - best;
      within += x > -alpha_;
      largest[i] = kFirst || largest[i] < x ? x : largest[i];
    }
    return within;
  }

  // Plans the misses of head i of the layer, which holds `held`, so that it holds the best n of its candidates by `scores`.
  void plan(Span<const uint32_t> held, Span<const float> scores, uint32_t n, size_t i) {
    std::vector<uint8_t>& marks = plans_[i].marks;
    ReservedVector<Replacement>& misses = plans_[i].misses;
    ReservedVector<uint32_t>&best = best_[i], &free = free_[i];
    top_k_ascending(scores, n, &best);
    for (uint32_t& token : best) marks[token += n_sink_pages_] = 1;
    // Without branches, which could not be predicted.
    free.resize(n_selected_pages_ + 1);
    size_t n_free = 0, n_missed = 0;
    for (uint32_t slot = 0; slot < n_selected_pages_; ++slot) {
      uint8_t& wanted = marks[held[slot]];
      free[n_free] = slot, n_free += !wanted;
      wanted = 0;
    }
    free.resize(n_free);
    misses.resize(best.size() + 1);
    for (const uint32_t token : best) misses[n_missed].position = token, n_missed += marks[token];
    misses.resize(n_missed);
    // The lowest scores are replaced; of equal scores the later token. Where all free slots are needed, no order is needed.
    if (misses.size() < free.size())
      std::nth_element(free.begin(), free.begin() + static_cast<ptrdiff_t>(misses.size()), free.end(), [&](uint32_t a, uint32_t b) {
        const uint32_t x = order_of(scores[held[a] - n_sink_pages_]), y = order_of(scores[held[b] - n_sink_pages_]);
        return x != y ? x < y : held[a] > held[b];
      });
    std::sort(free.begin(), free.begin() + static_cast<ptrdiff_t>(misses.size()));
    for (size_t m = 0; m < misses.size(); ++m) misses[m].slot = n_sink_pages_ + free[m], marks[misses[m].position] = 0;
  }

  const float alpha_;
  const double max_share_;  // of all tokens: a step asks for at most this share in a head
  // Since settle():
  std::vector<float> rows_;                            // (n_kv_heads, group, candidates) of a layer
  std::vector<uint64_t> n_within_alpha_;               // (n_kv_heads) products less than alpha below the best
  std::vector<ReservedVector<uint32_t>> best_, free_;  // (n_kv_heads, candidates), (n_kv_heads, n_selected_pages_)
  ReservedVector<ScoresQuery> scores_queries_;
};

MadePolicy make(const Shape& shape, const Budget& budget, const Options& options, const SharedProfile&) {
  PagedSettings s = kDefaults;
  double alpha = 4, max_share = .2, ratio = .2;
  OptionReader reader("infinigen", options);
  ORRERY_TRY(reader.fraction("ratio", &ratio));
  ORRERY_TRY(reader.number("alpha", 0, 1000, &alpha));
  ORRERY_TRY(reader.fraction("most", &max_share));
  ORRERY_TRY(s.read_kept(&reader));
  ORRERY_TRY(reader.finish());
  s.rank = rank_of(0, ratio, shape, budget);
  auto policy = std::make_unique<InfiniGen>(shape, budget, s, alpha, max_share);
  ORRERY_TRY(policy->check());
  return std::unique_ptr<Policy>(std::move(policy));
}

}  // namespace infinigen_method

constexpr Method kInfiniGen = {
    {"infinigen", "InfiniGen (prefetch)", "arXiv:2406.19707",
     /* score    */ "the next layer's queries, made of this layer's input; products with a fifth of rotated keys",
     /* allocate */ "the first layers everything; the others evenly",
     /* keep     */ "the last tokens, others by score",
     /* refresh  */ "every step, a layer ahead",
     /* device   */ "a fifth of the dimensions of all rotated keys, a basis for each head, the last 64 positions' queries, a staging ring",
     /* link     */ "the selection, when it is made; misses of every step, while the layer before is computed",
     all(infinigen_method::kOptions), infinigen_method::kPage},
    {kMaxWindow},
    infinigen_method::make};

}  // namespace orrery::policy
