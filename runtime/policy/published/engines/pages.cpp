#include "runtime/policy/published/engines/pages.h"

#include <algorithm>
#include <cmath>

#include "runtime/policy/refresh/misses.h"
#include "runtime/policy/select/top_k.h"
#include "runtime/policy/table.h"

namespace orrery::policy {

namespace {

class PagePolicy final : public PagedPolicy {
 public:
  PagePolicy(const char* name, const Shape& shape, const Budget& budget, const PagesSettings& settings)
      : PagedPolicy(name, shape, budget, settings), options_(settings), n_context_pages_(n_context_ / settings_.page) {}

  double refill_share() const override { return heads_.empty() || !options_.refresh ? 0 : kNextStepShare; }
  uint64_t host_bytes(const HostShape& host) const override {
    const uint64_t n_heads = heads_.size();
    const uint64_t exchanged = (sizeof(uint8_t) + sizeof(uint32_t) + sizeof(Replacement)) * (n_context_pages_ + uint64_t{1});
    const uint64_t scored =
        options_.selects_by_scores() ? bytes_of<float>((n_heads + uint64_t{n_kv_heads_} * host.group + 2) * n_context_pages_) : 0;
    return paged_bytes() + bytes_of<PageQuery>(n_kv_heads_) + exchanged + scored +
           (options_.adaptive && n_heads > 0 ? dividing_bytes(host.group) : 0);
  }

  Status settle(Heads* heads, uint32_t n_tokens, Span<uint32_t> capacity) override {
    note_changes(heads);  // of a step that has failed since
    begin_settling(n_tokens, capacity);
    if (!paged_) return ok_status();
    if (options_.adaptive) ORRERY_TRY(divide_by_attention(heads, n_tokens, options_.floor, capacity));
    make_room(heads->group());
    settling_ = true;  // the first selection fills all room
    for (size_t i = 0; i < heads_.size(); ++i) ask(i, n_tokens - 1, n_tokens);
    Status status = select_best(heads);
    settling_ = false;
    return status;
  }

  uint32_t queries_wanted() const override { return options_.adaptive ? kPageQueries : 1; }

  bool asks_before_attend() const override { return options_.refresh && options_.tau > 0 && !heads_.empty(); }
  bool refills_its_layer() const override { return asks_before_attend() && all_change(); }
  bool fetches_pages() const override {
    if (!all_change()) return asks_before_attend() && !options_.selects_by_scores();
    return refills_its_layer() && (!options_.selects_by_scores() || (options_.raw && options_.layer_set));
  }

  // FreeKV's correction: a layer whose query has changed selects again with this step's query. The heads whose query has changed wait for
  // their pages; the other heads get theirs in the next step.
  Status before_attend(Heads* heads, uint32_t layer, uint64_t step, uint32_t position) override {
    const auto [begin, end] = heads_of(layer);
    if (!paged_ || begin == end) return ok_status();
    if (!all_change() && fetches_pages() && heads->fetches_pages()) return fetch_changed(heads, begin, end, position);
    if (!all_change()) ORRERY_TRY(heads->query_similarity(similarity_));
    const auto changed = [this](size_t i) {
      return all_change() || static_cast<double>(similarity_[heads_[i] % n_kv_heads_]) < options_.tau;
    };
    uint32_t n_changed = 0;
    for (size_t i = begin; i < end; ++i) n_changed += changed(i);
    report_.n_checks += end - begin;
    report_.n_triggers += n_changed;
    if (n_changed == 0) return ok_status();
    corrected_[layer] = 1;
    queries_.clear();
    for (size_t i = begin; i < end; ++i) ask(i, position, position);
    if (fetches_pages() && heads->fetches_pages()) {
      for (const PageQuery& query : queries_) report_.wanted_tokens += uint64_t{query.k} * settings_.page;
      return heads->fetch_pages(queries_, kSoftmaxMean,
                                {0, n_sink_pages_, n_window_pages_, options_.selects_by_scores(), options_.asked < 1});
    }
    ORRERY_TRY(select_best(heads));
    for (size_t i = begin; i < end; ++i)
      if (changed(i)) ORRERY_TRY(refill_pages(heads, i, position, false, step));
    return ok_status();
  }

  Status after_step(Heads* heads, uint64_t step, uint32_t position) override {
    if (!paged_) return ok_status();
    if (fetches_pages() && heads->fetches_pages()) {
      if (!all_change()) return end_changed_step(heads, position + 1);
      return options_.asked < 1 ? end_fetched_step(heads, position + 1) : end_fetched_step_of_all(heads, position + 1);
    }
    const uint32_t n_tokens = position + 1;
    queries_.clear();
    for (size_t i = 0; i < heads_.size() && options_.refresh; ++i)
      if (!corrected_[heads_[i] / n_kv_heads_]) ask(i, position, n_tokens);
    ORRERY_TRY(select_best(heads));
    std::fill(corrected_.begin(), corrected_.end(), uint8_t{0});
    for (size_t i = 0; i < heads_.size(); ++i) ORRERY_TRY(refill_pages(heads, i, n_tokens, n_tokens % settings_.page == 0, step + 1));
    return ok_status();
  }

  Status state(StateBytes* s, const SavedMoment& at) override {
    ORRERY_TRY(paged_state(s, at, true));
    if (!paged_) return ok_status();
    if (s->reads()) make_room(at.group);
    const size_t n_whole = at.n_tokens / settings_.page;
    for (size_t i = 0; i < heads_.size() && options_.selects_by_scores(); ++i) ORRERY_TRY(s->raw(&scores_[i * n_context_pages_], n_whole));
    return ok_status();
  }

  std::unique_ptr<Policy> clone() const override { return clone_of(*this); }

 private:
  // The working memory of steps.
  void make_room(uint32_t group) {
    marks_.resize(n_context_pages_ + size_t{1});
    queries_.reserve(heads_.size()), next_queries_.reserve(n_kv_heads_);
    misses_.reserve(n_context_pages_);
    similarity_.resize(n_kv_heads_);
    uint32_t most = 0;
    for (size_t i = 0; i < heads_.size(); ++i) most = std::max(most, head_pages(i));
    free_.resize(most);
    corrected_.assign(n_layers_, 0);
    queries_.clear();
    if (!options_.selects_by_scores()) return;
    scores_.assign(heads_.size() * n_context_pages_, INFINITY);
    bounds_.resize(size_t{n_kv_heads_} * group * n_context_pages_);
    reduced_.resize(n_context_pages_);
    best_.reserve(n_context_pages_);
    bounds_queries_.reserve(n_kv_heads_);
  }

  // Asks for the best pages of n_tokens by the query at `position`: into selected(i).
  PageQuery query_of(size_t i, uint32_t position, uint32_t n_tokens) {
    PageQuery query = {heads_[i], position, n_sink_pages_, n_candidates(n_tokens), n_asked(i), selected(i).data()};
    query.n_others = static_cast<uint32_t>(selected(i).size()) - n_asked(i);
    return query;
  }
  void ask(size_t i, uint32_t position, uint32_t n_tokens) { queries_.push_back(query_of(i, position, n_tokens)); }
  // Selected pages of heads_[i] that a step asks for.
  uint32_t n_asked(size_t i) {
    if (settling_ || !options_.refresh || options_.asked >= 1) return static_cast<uint32_t>(selected(i).size());
    const uint32_t n = head_pages(i);
    return std::clamp(static_cast<uint32_t>(options_.asked * n + 1e-9), n_sink_pages_ + n_window_pages_ + 1, n) - n_sink_pages_ -
           n_window_pages_;
  }

  // before_attend() where the device finds the heads whose query has changed.
  Status fetch_changed(Heads* heads, size_t begin, size_t end, uint32_t position) {
    report_.n_checks += end - begin;
    queries_.clear(), next_queries_.clear();
    for (size_t i = begin; i < end; ++i) {
      ask(i, position, position);
      if ((position + 1) % settings_.page == 0) next_queries_.push_back(query_of(i, position, position + 1));
    }
    return heads->fetch_changed(queries_, next_queries_, kSoftmaxMean, {0, n_sink_pages_, n_window_pages_}, options_.tau);
  }
  // Its after_step().
  Status end_changed_step(Heads* heads, uint32_t n_tokens) {
    const uint32_t page = settings_.page;
    note_changes(heads);
    report_.missed_tokens += heads->take_fetched_tokens();
    for (size_t i = 0; i < heads_.size(); ++i) {
      report_.wanted_tokens += selected(i).size() * page;
      if (n_tokens % page == 0) heads->move_last(heads_[i], page, heads->next_place(heads_[i]) * page);
    }
    return ok_status();
  }
  void note_changes(Heads* heads) {
    for (size_t i = 0; i < heads_.size() && paged_ && !all_change() && fetches_pages() && heads->fetches_pages(); ++i) {
      const uint64_t n = heads->take_changes(heads_[i]);
      report_.n_triggers += n;
      report_.wanted_tokens += n * selected(i).size() * settings_.page;
    }
  }

  // after_step() where fetch_pages() has asked for a part of the pages: the heads hold what they want, and the device has named the page
  // that a completed page replaces.
  Status end_fetched_step(Heads* heads, uint32_t n_tokens) {
    const uint32_t page = settings_.page;
    report_.missed_tokens += heads->take_fetched_tokens();
    std::fill(corrected_.begin(), corrected_.end(), uint8_t{0});
    for (size_t i = 0; i < heads_.size(); ++i) {
      report_.wanted_tokens += uint64_t{n_asked(i)} * page;
      if (n_tokens % page != 0) continue;
      uint32_t place = heads->next_place(heads_[i]);
      if (place == Heads::kNoPlace) place = place_leaving(heads, i, n_tokens);  // it has no score yet
      heads->move_last(heads_[i], page, place * page);
    }
    return ok_status();
  }

  // after_step() where fetch_pages() has asked for all pages. Heads hold what they want, and a completed page replaces the one that leaves
  // the window.
  Status end_fetched_step_of_all(Heads* heads, uint32_t n_tokens) {
    const uint32_t page = settings_.page;
    report_.missed_tokens += heads->take_fetched_tokens();
    std::fill(corrected_.begin(), corrected_.end(), uint8_t{0});
    for (size_t i = 0; i < heads_.size(); ++i) {
      report_.wanted_tokens += uint64_t{n_asked(i)} * page;
      if (n_tokens % page == 0) heads->move_last(heads_[i], page, place_leaving(heads, i, n_tokens) * page);
    }
    return ok_status();
  }

  // The place of the page that leaves the window when n_tokens complete a page. It lies where it came to the head.
  uint32_t place_leaving(Heads* heads, size_t i, uint32_t n_tokens) {
    const Span<const uint32_t> held = heads->positions(heads_[i]);
    const uint32_t page = settings_.page, leaving = n_tokens / page - 1 - n_window_pages_;
    uint32_t place = 0;
    while (place + 1 < head_pages(i) && held[size_t{place} * page] / page != leaving) ++place;
    return place;
  }

  // Whether every query counts as changed: no cosine reaches this tau.
  bool all_change() const { return options_.tau >= 2; }

  Status select_best(Heads* heads) {
    if (queries_.empty()) return ok_status();
    if (!options_.selects_by_scores()) return heads->top_pages(queries_, kSoftmaxMean);
    // One question for all heads of a layer.
    for (size_t begin = 0, end = 0; begin < queries_.size(); begin = end) {
      const auto layer_of = [this](size_t i) { return queries_[i].head / n_kv_heads_; };
      while (end < queries_.size() && layer_of(end) == layer_of(begin)) ++end;
      ORRERY_TRY(select_by_scores(heads, {&queries_[begin], end - begin}));
    }
    return ok_status();
  }
  Status select_by_scores(Heads* heads, Span<const PageQuery> queries) {
    const uint32_t n = queries[0].n_pages, group = heads->group();
    bounds_queries_.clear();
    for (const PageQuery& query : queries)
      bounds_queries_.push_back(
          {query.head, query.position, query.first_page, n, true, false, &bounds_[bounds_queries_.size() * group * n]});
    ORRERY_TRY(heads->scores(bounds_queries_));
    // Reduces the rows of one head, or of all heads of the layer.
    const size_t n_shared = options_.layer_set ? queries.size() : 1;
    const Span<float> scores = Span<float>(reduced_).first(n);
    for (size_t i = 0; i < queries.size(); i += n_shared) {
      const auto n_rows = static_cast<uint32_t>(n_shared * group);
      const Span<float> rows{&bounds_[i * group * n], size_t{n_rows} * n};
      for (uint32_t r = 0; r < n_rows && !options_.raw; ++r) softmax(rows.subspan(size_t{r} * n, n), rows.subspan(size_t{r} * n, n));
      ORRERY_TRY(group_reduce(rows, n_rows, GroupReduce::mean, scores));
      for (size_t j = i; j < i + n_shared; ++j) {
        top_k_ascending(scores, queries[j].k, &best_);
        for (uint32_t b = 0; b < queries[j].k; ++b) queries[j].out[b] = best_[b] + n_sink_pages_;
        const auto head = static_cast<size_t>(std::lower_bound(heads_.begin(), heads_.end(), queries[j].head) - heads_.begin());
        std::copy(scores.begin(), scores.end(), scores_.begin() + static_cast<ptrdiff_t>(head * n_context_pages_ + n_sink_pages_));
      }
    }
    return ok_status();
  }

  // Schedules the misses of a head that should hold the sink, selected and window pages of n_tokens. `completed`: the page that was being
  // written is whole, and moves to the slots of an unwanted page.
  Status refill_pages(Heads* heads, size_t i, uint32_t n_tokens, bool completed, uint64_t visible_at) {
    const uint32_t head = heads_[i], page = settings_.page, n_pages = n_tokens / page;
    const Span<const uint32_t> held = heads->positions(head);
    const Span<const uint32_t> best{selected(i).data(), n_asked(i)};
    const auto for_each_wanted = [&](const auto& f) {  // except the page that moves
      for (uint32_t p = 0; p < n_sink_pages_; ++p) f(p);
      for (const uint32_t p : best) f(p);
      for (uint32_t p = n_pages - n_window_pages_; p < n_pages - completed; ++p) f(p);
    };
    for_each_wanted([&](uint32_t p) { marks_[p] = 1; });
    uint32_t n_free = 0;
    for (uint32_t slot = 0; slot < head_pages(i); ++slot) {
      uint8_t& wanted = marks_[held[size_t{slot} * page] / page];
      if (!wanted) free_[n_free++] = slot;
      wanted = 0;
    }
    if (options_.asked < 1) {  // more are free than needed: the lowest scores first
      const float* scores = &scores_[i * n_context_pages_];
      std::sort(free_.begin(), free_.begin() + n_free, [&](uint32_t a, uint32_t b) {
        const uint32_t p = held[size_t{a} * page] / page, q = held[size_t{b} * page] / page;
        const uint32_t x = order_of(scores[p]), y = order_of(scores[q]);
        return x != y ? x < y : p > q;
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
  const PagesSettings options_;
  const uint32_t n_context_pages_;
  bool settling_ = false;
  // Since settle():
  ReservedVector<PageQuery> queries_, next_queries_;
  std::vector<uint8_t> marks_;  // (pages) 1: wanted; 0 between uses
  std::vector<uint32_t> free_;  // (n_pages_) unwanted pages of a head, as indices of its pages
  ReservedVector<Replacement> misses_;
  std::vector<float> similarity_;   // (n_kv_heads) of a layer's queries
  std::vector<uint8_t> corrected_;  // (n_layers) 1: this step has selected already
  // Where this class selects by scores:
  std::vector<float> scores_;   // (heads_, n_context_pages_) last scores; infinity: none yet
  std::vector<float> bounds_;   // (n_kv_heads, group, pages) of a layer
  std::vector<float> reduced_;  // (pages) scores of a head, or a layer
  ReservedVector<ScoresQuery> bounds_queries_;
  ReservedVector<uint32_t> best_;
};

}  // namespace

Result<std::unique_ptr<Policy>> make_pages(const char* name, const PagesSettings& defaults, const Shape& shape, const Budget& budget,
                                           const Options& options) {
  static constexpr const char* kScores[] = {"softmax", "raw"};
  static constexpr const char* kSets[] = {"head", "layer"};
  static constexpr const char* kHeads[] = {"uniform", "adaptive"};
  PagesSettings s = defaults;
  OptionReader reader(name, options);
  uint32_t score = s.raw, set = s.layer_set, heads = s.adaptive;
  ORRERY_TRY(s.read(&reader));
  ORRERY_TRY(reader.flag("refresh", &s.refresh));
  ORRERY_TRY(reader.number("tau", 0, 2, &s.tau));
  ORRERY_TRY(reader.choice("score", kScores, &score));
  ORRERY_TRY(reader.choice("set", kSets, &set));
  ORRERY_TRY(reader.fraction("asked", &s.asked));
  ORRERY_TRY(reader.choice("heads", kHeads, &heads));
  ORRERY_TRY(reader.fraction("floor", &s.floor));
  ORRERY_TRY(reader.finish());
  s.raw = score == 1, s.layer_set = set == 1, s.adaptive = heads == 1;
  auto policy = std::make_unique<PagePolicy>(name, shape, budget, s);
  ORRERY_TRY(policy->check());
  return std::unique_ptr<Policy>(std::move(policy));
}

}  // namespace orrery::policy
