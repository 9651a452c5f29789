// Pages that come and go with the query: every head has room for so many pages of the text, and what stands there follows
// what the query looks for, by digests of all pages that stay on the device.
//   score     bounds of the last query's products with a page's keys; softmax over the candidates, mean over the group; or the
//             bounds' own mean (score=raw), of all query heads of the layer (set=layer)
//   allocate  evenly, or by what each head's last queries look at, of all heads together (heads=adaptive)
//   keep      first pages, the last ones with the one that is being written, and the best of those between; all of it stays
//             in the reservoir
//   refresh   every step, by its own query for the next one, or where the query has turned, for itself; misses alone are fetched, in
//             the place of what scores lowest where not all that is there is asked for anew (asked)
// As rows of one table of options:
//   freekv    FreeKV (arXiv:2505.13109): one step behind, and corrected; pages of 32
//   quest     Quest (arXiv:2406.10774): every step by its own query; pages of 16, no first ones
//   arkvale   ArkVale (NeurIPS 2024): every step by its own query, one set for the layer; half of what is there is asked for
//
// Where FreeKV's paper and code disagree:
//   - Digests are the paper's, largest and smallest key by dimension; the code's fast path has middle and mean deviation, and means of
//     bounds (digest=deviation, score=raw).
//   - Bounds are not divided by sqrt(head_dim), as in the code; the paper is silent.
//   - The page that leaves the window is a candidate one step before, so that it can stay where it is.
//   - The first step has a selection, too: the prompt's last query makes it. (The paper: by its own query, waiting for all.)
// Where Quest's do: it is published for heads without groups; a group's mean of softmaxes orders pages as one head's bounds do. It keeps
// all KV on the device; here what is not selected is fetched, within the step that wants it. The last whole page always stays beside
// the one that is being written.
// ArkVale's digest is no bound: the middle, and what keys are off it on average. Its attention takes in all that is there. A page that
// leaves the window has no score yet and stays for a step; of equal scores the later page goes.
// Ours, heads=adaptive: each of the last 16 queries has its best pages among those of all heads, by the softmax weights that fall on them; a head
// gets room in proportion to how many were its own, at least `floor` of the average. A head that looks at one place has no
// use for as many pages as one that looks everywhere: at small budgets this keeps more than anything else here.
// Ours: the budget counts digests, 1 / page of full KV in F16 (paged.h says how it shrinks what papers give in tokens).
#include <algorithm>
#include <cmath>
#include <numeric>

#include "runtime/policy/allocate/over_heads.h"
#include "runtime/policy/engines/paged.h"
#include "runtime/policy/methods/methods.h"
#include "runtime/policy/refresh/misses.h"

namespace orrery::policy {

namespace {

constexpr double kLeastWanted = 1e-3;   // pages of a head that no query looks at

struct Settings : PageSettings {
  bool refresh = true;
  double tau = 0;                      // cosine of two queries below which a step chooses by its own; 0: none does
  bool raw = false, layer = false;     // scores are means of bounds; a layer's heads have one set
  double asked = 1;                    // of the pages that a head holds: for so many it asks anew
  bool adaptive = false;               // heads have as many pages as their queries look at
  // The backend finds the best pages by itself; else it gives scores.
  double floor = .2;                   // of the average: at least so many
  bool by_scores() const { return raw || layer || asked < 1; }
};

class PagePolicy final : public PagedPolicy {
 public:
  PagePolicy(const char* name, const Shape& shape, const Budget& budget, const Settings& settings)
      : PagedPolicy(name, shape, budget, settings), options_(settings), most_pages_(n_context_ / settings_.page) {}

  double refill_share() const override { return heads_.empty() || !options_.refresh ? 0 : kNextStepShare; }
  uint64_t host_bytes(const HostShape& host) const override {
    const uint64_t n_heads = heads_.size();
    const uint64_t exchanged = (sizeof(uint8_t) + sizeof(uint32_t) + sizeof(Replacement)) * (most_pages_ + uint64_t{1});
    const uint64_t scored = options_.by_scores() ? bytes_of<float>((n_heads + uint64_t{n_kv_heads_} * host.group + 2) * most_pages_) : 0;
    return paged_bytes() + exchanged + scored + (options_.adaptive && n_heads > 0 ? adapting_bytes(host.group) : 0);
  }

  Status settle(Heads* heads, uint32_t n_tokens, Span<uint32_t> capacity) override {
    begin_settling(n_tokens, capacity);
    if (!paged_) return ok_status();
    if (options_.adaptive) ORRERY_TRY(adapt(heads, n_tokens, capacity));
    marks_.resize(most_pages_ + size_t{1});
    queries_.reserve(heads_.size());
    misses_.reserve(most_pages_);
    similarity_.resize(n_kv_heads_);
    uint32_t most = 0;
    for (size_t i = 0; i < heads_.size(); ++i) most = std::max(most, n_slots(i));
    free_.resize(most);
    corrected_.assign(n_layers_, 0);
    queries_.clear();
    if (options_.by_scores()) {
      scores_.assign(heads_.size() * most_pages_, INFINITY);
      bounds_.resize(size_t{n_kv_heads_} * heads->group() * most_pages_);
      unit_.resize(most_pages_);
      best_.reserve(most_pages_);
      bounds_queries_.reserve(n_kv_heads_);
    }
    settling_ = true;   // at first as many as there is room for
    for (size_t i = 0; i < heads_.size(); ++i) ask(i, n_tokens - 1, n_tokens);
    Status status = choose(heads);
    settling_ = false;
    return status;
  }

  uint32_t queries_wanted() const override { return options_.adaptive ? kPageQueries : 1; }

  bool asks_before_attend() const override { return options_.refresh && options_.tau > 0 && !heads_.empty(); }

  // A layer whose query has turned chooses at once, with this one; heads that it is so far off wait for their pages.
  Status before_attend(Heads* heads, uint32_t layer, uint64_t step, uint32_t position) override {
    const auto [begin, end] = heads_of(layer);
    if (!paged_ || begin == end) return ok_status();
    ORRERY_TRY(heads->query_similarity(similarity_));
    const auto turned = [this](size_t i) { return static_cast<double>(similarity_[heads_[i] % n_kv_heads_]) < options_.tau; };
    uint32_t n_turned = 0;
    for (size_t i = begin; i < end; ++i) n_turned += turned(i);
    report_.n_checks += end - begin;
    report_.n_triggers += n_turned;
    if (n_turned == 0) return ok_status();
    corrected_[layer] = 1;
    queries_.clear();
    for (size_t i = begin; i < end; ++i) ask(i, position, position);
    ORRERY_TRY(choose(heads));
    for (size_t i = begin; i < end; ++i)
      if (turned(i)) ORRERY_TRY(exchange(heads, i, position, false, step));
    return ok_status();
  }

  Status after_step(Heads* heads, uint64_t step, uint32_t position) override {
    if (!paged_) return ok_status();
    const uint32_t n_tokens = position + 1;
    queries_.clear();
    for (size_t i = 0; i < heads_.size() && options_.refresh; ++i)
      if (!corrected_[heads_[i] / n_kv_heads_]) ask(i, position, n_tokens);
    ORRERY_TRY(choose(heads));
    std::fill(corrected_.begin(), corrected_.end(), uint8_t{0});
    for (size_t i = 0; i < heads_.size(); ++i) ORRERY_TRY(exchange(heads, i, n_tokens, n_tokens % settings_.page == 0, step + 1));
    return ok_status();
  }

  std::unique_ptr<Policy> clone() const override { return clone_of(*this); }

 private:
  // Of n_tokens that are there, the best pages by the query of a position: into chosen().
  void ask(size_t i, uint32_t position, uint32_t n_tokens) {
    queries_.push_back({heads_[i], position, n_first_, n_candidates(n_tokens), n_best(i), chosen(i).data()});
  }
  // Of heads_[i], that it asks for.
  uint32_t n_best(size_t i) {
    if (settling_ || !options_.refresh || options_.asked >= 1) return static_cast<uint32_t>(chosen(i).size());
    const uint32_t n = n_slots(i);
    return std::clamp(static_cast<uint32_t>(options_.asked * n + 1e-9), n_first_ + n_last_ + 1, n) - n_first_ - n_last_;
  }

  // What adapt() gives back: weights of a head, what falls on the pages of all, and what counts the best of them.
  uint64_t adapting_bytes(uint32_t group) const {
    const uint64_t of_pages = heads_.size() * most_pages_;
    return bytes_of<float>(kPageQueries * (group * uint64_t{n_context_} + of_pages)) + bytes_of<float>(2 * of_pages);
  }
  // Allocate: each of the last queries' own best pages, of all heads together; heads get room in proportion.
  Status adapt(Heads* heads, uint32_t n_tokens, Span<uint32_t> capacity) {
    const uint32_t page = settings_.page, n = n_candidates(n_tokens), w = std::min(kPageQueries, heads->n_queries()), group = heads->group();
    const size_t n_heads = heads_.size();
    const uint64_t total = uint64_t{n_between_} * n_heads;
    std::vector<float> weights(size_t{w} * group * n_tokens), mass(w * n_heads * n);
    for (size_t i = 0; i < n_heads; ++i) {
      const WeightsQuery query{heads_[i], n_tokens - w, w, n_tokens, false, weights.data()};
      ORRERY_TRY(heads->key_weights({&query, 1}));
      for (uint32_t r = 0; r < w * group; ++r)
        for (uint32_t p = 0; p < n; ++p) {
          const float* of_page = &weights[size_t{r} * n_tokens + size_t{n_first_ + p} * page];
          mass[(r / group * n_heads + i) * n + p] += std::accumulate(of_page, of_page + page, 0.0f);
        }
    }
    std::vector<double> wanted(n_heads, kLeastWanted);
    for (uint32_t q = 0; q < w; ++q) {
      ORRERY_ASSIGN(const std::vector<uint64_t> counts, count_best(Span<const float>(mass).subspan(q * n_heads * n, n_heads * n), n_heads, total, 1));
      for (size_t i = 0; i < n_heads; ++i) wanted[i] += static_cast<double>(counts[i]);
    }
    const auto least = std::max<uint64_t>(static_cast<uint64_t>(options_.floor * n_between_), 1);
    ORRERY_ASSIGN(const std::vector<uint64_t> counts, apportion(wanted, total, least, n));
    spread(counts, capacity);
    return ok_status();
  }
  Status choose(Heads* heads) {
    if (queries_.empty()) return ok_status();
    if (!options_.by_scores()) return heads->top_pages(queries_, kSoftmaxMean);
    // A layer's heads are asked for together.
    for (size_t begin = 0, end = 0; begin < queries_.size(); begin = end) {
      const auto layer_of = [this](size_t i) { return queries_[i].head / n_kv_heads_; };
      while (end < queries_.size() && layer_of(end) == layer_of(begin)) ++end;
      ORRERY_TRY(choose_by_scores(heads, {&queries_[begin], end - begin}));
    }
    return ok_status();
  }
  Status choose_by_scores(Heads* heads, Span<const PageQuery> queries) {
    const uint32_t n = queries[0].n_pages, group = heads->group();
    bounds_queries_.clear();
    for (const PageQuery& query : queries)
      bounds_queries_.push_back({query.head, query.position, query.first_page, n, true, false, &bounds_[bounds_queries_.size() * group * n]});
    ORRERY_TRY(heads->scores(bounds_queries_));
    // Of a head, or of all together.
    const size_t n_together = options_.layer ? queries.size() : 1;
    const Span<float> scores = Span<float>(unit_).first(n);
    for (size_t i = 0; i < queries.size(); i += n_together) {
      const auto n_rows = static_cast<uint32_t>(n_together * group);
      const Span<float> rows{&bounds_[i * group * n], size_t{n_rows} * n};
      for (uint32_t r = 0; r < n_rows && !options_.raw; ++r) softmax(rows.subspan(size_t{r} * n, n), rows.subspan(size_t{r} * n, n));
      ORRERY_TRY(group_reduce(rows, n_rows, GroupReduce::mean, scores));
      for (size_t j = i; j < i + n_together; ++j) {
        top_k_ascending(scores, queries[j].k, &best_);
        for (uint32_t b = 0; b < queries[j].k; ++b) queries[j].out[b] = best_[b] + n_first_;
        const auto head = static_cast<size_t>(std::lower_bound(heads_.begin(), heads_.end(), queries[j].head) - heads_.begin());
        std::copy(scores.begin(), scores.end(), scores_.begin() + static_cast<ptrdiff_t>(head * most_pages_ + n_first_));
      }
    }
    return ok_status();
  }

  // A head that holds n_tokens in part comes to hold the first, the best and the last of their pages, by fetching what is missing.
  // `completed`: the last of them has been written just now, and goes where another was.
  Status exchange(Heads* heads, size_t i, uint32_t n_tokens, bool completed, uint64_t visible_at) {
    const uint32_t head = heads_[i], page = settings_.page, n_pages = n_tokens / page;
    const Span<const uint32_t> held = heads->positions(head);
    const Span<const uint32_t> best{chosen(i).data(), n_best(i)};
    const auto for_each_wanted = [&](const auto& f) {   // but for the page that moves
      for (uint32_t p = 0; p < n_first_; ++p) f(p);
      for (const uint32_t p : best) f(p);
      for (uint32_t p = n_pages - n_last_; p < n_pages - completed; ++p) f(p);
    };
    for_each_wanted([&](uint32_t p) { marks_[p] = 1; });
    uint32_t n_free = 0;
    for (uint32_t slot = 0; slot < n_slots(i); ++slot) {
      uint8_t& wanted = marks_[held[size_t{slot} * page] / page];
      if (!wanted) free_[n_free++] = slot;
      wanted = 0;
    }
    if (options_.asked < 1) {   // more than will be needed: the lowest first
      const float* scores = &scores_[i * most_pages_];
      std::sort(free_.begin(), free_.begin() + n_free, [&](uint32_t a, uint32_t b) {
        const uint32_t p = held[size_t{a} * page] / page, q = held[size_t{b} * page] / page;
        return scores[p] != scores[q] ? scores[p] < scores[q] : p > q;
      });
    }
    uint32_t next = completed ? 1 : 0;
    misses_.clear();
    for_each_wanted([&](uint32_t p) {
      if (marks_[p]) misses_.push_back({free_[next++] * page, p * page, page});
      marks_[p] = 0;
    });
    report_.wanted_tokens += best.size() * page;
    report_.missed_tokens += misses_.size() * page;
    if (completed) heads->move_last(head, page, free_[0] * page);
    return misses_.empty() ? ok_status() : heads->refill(head, misses_, visible_at);
  }

  static constexpr ScoreRule kSoftmaxMean = {GroupReduce::mean, Pooling::none, 1, true, false};
  const Settings options_;
  const uint32_t most_pages_;
  bool settling_ = false;
  // Since settling.
  Roomy<PageQuery> queries_;
  std::vector<uint8_t> marks_;           // (pages) 0 between uses
  std::vector<uint32_t> free_;           // (n_slots_)
  Roomy<Replacement> misses_;
  std::vector<float> similarity_;        // (n_kv_heads) of a layer's queries
  std::vector<uint8_t> corrected_;       // (n_layers) in this step
  // Where the backend gives scores.
  std::vector<float> scores_;            // (heads_, most_pages_) the last; infinity: has none yet
  std::vector<float> bounds_;            // (n_kv_heads, group, pages) of a layer
  std::vector<float> unit_;              // (pages) of a head, or a layer
  Roomy<ScoresQuery> bounds_queries_;
  Roomy<uint32_t> best_;
};

Settings method(uint32_t page, uint32_t sinks, uint32_t window, uint32_t first_layers, double tau) {
  Settings s;
  s.page = page, s.sinks = sinks, s.window = window, s.first_layers = first_layers, s.tau = tau;
  return s;
}
Settings method_of(const std::string& name) {
  if (name == "freekv") return method(0, 512, 512, 1, .8);
  if (name == "quest") return method(16, 0, 32, 2, 2);
  Settings arkvale = method(0, 64, 64, 2, 2);
  arkvale.deviation = arkvale.raw = arkvale.layer = true, arkvale.asked = .5;
  return arkvale;
}

}  // namespace

Result<std::unique_ptr<Policy>> make_pages(const char* name, const Shape& shape, const Budget& budget, const Options& options) {
  Settings s = method_of(name);
  OptionReader reader(name, options);
  static constexpr const char* kScores[] = {"softmax", "raw"};
  static constexpr const char* kSets[] = {"head", "layer"};
  static constexpr const char* kHeads[] = {"uniform", "adaptive"};
  uint32_t score = s.raw, set = s.layer, spread = s.adaptive;
  ORRERY_TRY(s.read(&reader));
  ORRERY_TRY(reader.flag("refresh", &s.refresh));
  ORRERY_TRY(reader.number("tau", 0, 2, &s.tau));
  ORRERY_TRY(reader.choice("score", {kScores, 2}, &score));
  ORRERY_TRY(reader.choice("set", {kSets, 2}, &set));
  ORRERY_TRY(reader.fraction("asked", &s.asked));
  ORRERY_TRY(reader.choice("heads", {kHeads, 2}, &spread));
  ORRERY_TRY(reader.fraction("floor", &s.floor));
  ORRERY_TRY(reader.finish());
  s.raw = score == 1, s.layer = set == 1, s.adaptive = spread == 1;
  auto policy = std::make_unique<PagePolicy>(name, shape, budget, s);
  ORRERY_TRY(policy->check());
  return std::unique_ptr<Policy>(std::move(policy));
}

}  // namespace orrery::policy
