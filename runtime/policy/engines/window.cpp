#include "runtime/policy/engines/window.h"

#include <algorithm>
#include <numeric>

#include "runtime/policy/allocate/over_heads.h"
#include "runtime/policy/allocate/over_layers.h"
#include "runtime/policy/engines/tailed.h"
#include "runtime/policy/options.h"
#include "runtime/policy/score/moments.h"
#include "runtime/policy/score/pooling.h"
#include "runtime/policy/select/top_k.h"
#include "runtime/policy/table.h"

namespace orrery::policy {

namespace {

class WindowPolicy final : public TailedPolicy {
 public:
  WindowPolicy(const char* name, const Shape& shape, const Budget& budget, const WindowSettings& settings)
      : TailedPolicy(shape, budget, {settings.tail, settings.tail_part, settings.tail_least}, {}, nullptr,
                     settings.compensation > 0 ? Ratio{shape.compensation_token_bytes, shape.slot_bytes} : Ratio{}),
        name_(name), settings_(settings), heads_(size_t{shape.n_layers} * shape.n_kv_heads) {
    uint32_t n = 0;
    for (uint32_t l = 0; l < n_layers_; ++l)
      if (window_[l] == 0 && n++ >= settings_.first_layers) layers_.push_back(l);
    n_full_ = rings_.n_other_heads() - static_cast<uint32_t>(layers_.size()) * n_kv_heads_;
  }

  const char* name() const override { return name_; }
  uint32_t n_full_heads() const override { return n_full_; }
  uint32_t queries_wanted() const override { return budget_.holds_all() ? 0 : settings_.window; }
  uint32_t max_compensation_tokens() const override {
    return settings_.compensation > 0 ? static_cast<uint32_t>(layers_.size()) * n_kv_heads_ : 0;
  }
  bool only_appends() const override { return rings_.n_other_heads() == heads_.size(); }  // rings replace tokens
  bool has_compensation_token(uint32_t head) const override { return heads_[head].compensation_weight > 0; }
  CompensationShares compensation_shares(uint32_t head) const override {
    const Head& h = heads_[head];
    return {Span<const float>(shares_).subspan(h.shares, n_tokens_), h.compensation_weight};
  }

  Status settle(Heads* heads, uint32_t n_tokens, Span<uint32_t> capacity) override { return settle_part(heads, n_tokens, 0, 1, capacity); }

  // The window's queries stay in the ring of kMaxWindow queries during these steps.
  uint32_t settle_steps(uint32_t n_tokens) const override {
    if (settings_.steps == 0 || settings_.window + settings_.steps > kMaxWindow || !only_appends()) return 0;
    const TailedBudget::Division division = budget_.divide(n_tokens, n_full_);
    const bool evicts = division.selected < layers_.size() * n_kv_heads_ * n_tokens;
    return evicts && division.tail >= 2 * settings_.steps ? settings_.steps : 0;
  }

  // Parts score layers; the last one allocates and selects as well, which takes about as long as to score a seventh of the layers.
  Status settle_part(Heads* heads, uint32_t n_tokens, uint32_t part, uint32_t n_parts, Span<uint32_t> capacity) override {
    if (part == 0) begin_settling(n_tokens, capacity);
    if (rings_.n_other_heads() == 0) return ok_status();
    const TailedBudget::Division division = budget_.divide(n_tokens, n_full_);
    const uint64_t n_compressed = layers_.size() * n_kv_heads_;
    if (n_compressed > 0 && division.selected == 0)
      return error(Code::internal, "%llu compressed heads have no room at %u tokens", static_cast<unsigned long long>(n_compressed),
                   n_tokens);
    const bool evicts = division.selected < n_compressed * n_tokens;
    if (part == 0) {
      for (Head& h : heads_) h = {0, n_tokens, 0, 0.0f};
      selected_.clear();
      if (evicts) begin_scores(heads, n_tokens, division.selected);
    }
    const size_t n_layers = layers_.size();
    const auto end = [&](size_t i) { return i == n_parts ? n_layers : std::min(n_layers, n_layers * i * 8 / (n_parts * 7)); };
    if (evicts) ORRERY_TRY(score(heads, n_tokens, end(part), end(part + 1)));
    if (part + 1 < n_parts) return ok_status();
    if (evicts) ORRERY_TRY(select_prompt(heads, n_tokens, division.selected));
    past_.n_tokens = evicts ? n_tokens : 0;
    for (uint32_t head = 0; head < heads_.size(); ++head)
      if (!rings_.has(head)) capacity[head] = heads_[head].n_selected + division.tail;
    return ok_status();
  }

  void select(uint32_t head, uint32_t n_tokens, uint32_t, std::vector<uint32_t>* out) override {
    if (rings_.has(head)) return rings_.select(head, n_tokens, out);
    out->clear();
    const Head& h = heads_[head];
    if (h.n_selected == n_tokens) return select_all(n_tokens, out);
    const auto first = selected_.begin() + static_cast<ptrdiff_t>(h.first);
    out->insert(out->end(), first, first + h.n_selected);
  }

  // Kept from one settlement to the next: heads, selections, and scores, which make room for shares. Working memory: of the largest part of
  // settle().
  uint64_t host_bytes(const HostShape& host) const override {
    const uint64_t n = n_context_, n_layers = layers_.size(), n_heads = n_layers * n_kv_heads_, of_layer = n_kv_heads_ * n;
    const uint64_t kept = bytes_of<Head>(heads_.size()) + bytes_of<uint32_t>(n_heads * budget_.head_max()) +
                          bytes_of<float>(n_heads * n * (settings_.renew > 0 ? 2 : 1)) + bytes_of<double>(n_layers);
    uint64_t scoring = bytes_of<float>(of_layer * (settings_.score == WindowScore::each ? host.group + 1 : 1));
    if (scores_by_moments()) {
      const uint64_t at_once = std::min(host.n_threads, n_kv_heads_);  // heads that are pooled in parallel
      uint64_t moments = bytes_of<float>((n_kv_heads_ + (settings_.score == WindowScore::variance ? at_once : 0)) * host.group * n);
      if (!host.makes_moments) moments += (bytes_of<float>(settings_.window) + bytes_of<double>(2)) * host.group * n;
      scoring = std::max(scoring, moments);
    }
    const uint64_t counting =
        settings_.heads == HeadBudgets::uniform ? 0 : std::min<uint64_t>(host.n_threads, n_layers) * bytes_of<float>(2 * of_layer);
    const uint64_t layers = settings_.layers == LayerBudgets::adaptive ? BestOfLayers::host_bytes(n_layers) : 0;
    return kept + std::max({scoring, counting, layers, bytes_of<uint32_t>(host.n_threads * n)});
  }

  // Selections and shares count until the heads are filled; scores until they are allocated; past scores until the next settlement.
  Status state(StateBytes* s, const SavedMoment& at) override {
    ORRERY_TRY(tailed_state(s, at));
    const uint64_t n_compressed = layers_.size() * n_kv_heads_;
    const uint64_t end = uint64_t{n_context_} + 1;
    ORRERY_TRY(s->number(&past_.n_tokens, uint64_t{at.n_tokens} + 1, "past scores of more tokens than the session has"));
    ORRERY_TRY(s->number(&past_.n_old, uint64_t{at.n_tokens} + 1, "past scores of more tokens than the session has"));
    auto n_preferences = static_cast<uint32_t>(scores_.preference.size());
    ORRERY_TRY(s->number(&n_preferences, layers_.size() + 1, "more preferences than layers"));
    const bool counts = settings_.renew > 0 && past_.n_tokens > 0;
    ORRERY_TRY(s->check(n_preferences == (scores_by_moments() ? layers_.size() : 0) || (n_preferences == 0 && !counts),
                        "layers lack their preferences"));
    ORRERY_TRY(s->values(&scores_.preference, n_preferences));
    if (s->reads() && settings_.renew > 0) past_.values.resize(n_compressed * n_context_);
    for (uint64_t i = 0; i < n_compressed && settings_.renew > 0 && past_.n_old > 0; ++i)
      ORRERY_TRY(s->raw(&past_.values[i * n_context_], past_.n_old));
    if (at.settled()) return ok_status();
    bool evicts = at.phase == SavedMoment::Phase::scoring && !scores_.values.empty();
    ORRERY_TRY(s->flag(&evicts, "whether a settlement evicts is neither yes nor no"));
    if (at.phase == SavedMoment::Phase::scoring) {
      if (s->reads())
        for (Head& h : heads_) h = {0, n_tokens_, 0, 0.0f};
      const TailedBudget::Division division = budget_.divide(n_tokens_, n_full_);
      ORRERY_TRY(s->check(evicts == (division.selected < n_compressed * n_tokens_), "a settlement evicts other tokens"));
      if (!evicts) return ok_status();
      ORRERY_TRY(s->number(&scores_.n_old, n_tokens_, "scores of more tokens than are settled"));
      const uint32_t w = n_tokens_ - scores_.n_old;
      ORRERY_TRY(
          s->check(w <= at.n_settling && w <= settings_.window && uint64_t{w} * n_compressed <= division.selected, "a window is too long"));
      ORRERY_TRY(s->number(&scores_.n_queries, uint64_t{w} + 1, "more queries than the window has"));
      ORRERY_TRY(s->check(scores_.n_queries > 0, "a window without queries"));
      ORRERY_TRY(s->value(&scores_.share));
      return s->values(&scores_.values, n_compressed * scores_.n_old);
    }
    auto n_selected = static_cast<uint64_t>(selected_.size()), n_shares = static_cast<uint64_t>(shares_.size());
    ORRERY_TRY(s->number(&n_selected, n_compressed * end, "more selected tokens than the session has"));
    ORRERY_TRY(s->numbers(&selected_, n_selected, n_tokens_, "a selected token is not the session's"));
    if (settings_.compensation == 0) n_shares = 0;
    ORRERY_TRY(s->number(&n_shares, n_compressed * end, "more shares than tokens"));
    if (s->reads() || n_shares > 0) ORRERY_TRY(s->values(&shares_, n_shares));
    for (uint32_t head = 0; head < heads_.size(); ++head) {
      if (rings_.has(head)) continue;
      Head& h = heads_[head];
      auto first = static_cast<uint64_t>(h.first), shares = static_cast<uint64_t>(h.shares);
      ORRERY_TRY(s->number(&first, n_selected + 1, "a head's selection is outside the selected tokens"));
      ORRERY_TRY(s->number(&h.n_selected, uint64_t{n_tokens_} + 1, "a head selects more tokens than there are"));
      ORRERY_TRY(
          s->check(h.n_selected == n_tokens_ || h.n_selected <= n_selected - first, "a head's selection is outside the selected tokens"));
      ORRERY_TRY(s->check(uint64_t{h.n_selected} + at.n_steps <= at.slots->capacity[head], "a head selects more tokens than it has slots"));
      ORRERY_TRY(s->number(&shares, n_shares + 1, "a head's shares are outside the shares"));
      ORRERY_TRY(s->value(&h.compensation_weight));
      const bool compresses = std::binary_search(layers_.begin(), layers_.end(), head / n_kv_heads_);
      ORRERY_TRY(s->check(h.compensation_weight == 0 ||
                              (h.compensation_weight > 0 && compresses && max_compensation_tokens() > 0 && n_tokens_ <= n_shares - shares),
                          "a head's compensation token has no shares"));
      h.first = first, h.shares = shares;
    }
    return ok_status();
  }

  std::unique_ptr<Policy> clone() const override { return clone_of(*this); }

 private:
  struct Head {
    size_t first = 0;                  // index of its tokens in selected_
    uint32_t n_selected = 0;           // n_tokens: the head keeps the whole prompt, and has no tokens in selected_
    size_t shares = 0;                 // index of its shares in shares_
    float compensation_weight = 0.0f;  // in tokens; 0: no compensation token
  };
  // Scores of the keys before the window, of all compressed heads.
  struct Scores {
    uint32_t n_old = 0;              // keys before the window
    std::vector<float> values;       // (layers_, n_kv_heads, n_old)
    std::vector<double> preference;  // (layers_)
    uint32_t n_queries = 0;          // last positions whose queries score
    double share = 1;                // of these queries in the scores; the rest is the past scores
    Span<const float> of_layer(size_t i, uint32_t n_kv_heads) const {
      const size_t n = size_t{n_kv_heads} * n_old;
      return Span<const float>(values).subspan(i * n, n);
    }
  };

  // Scores of the last settlement, for the next full tail. Its preferences stay in Scores.
  struct Past {
    uint32_t n_tokens = 0, n_old = 0;  // of the session; keys with scores
    std::vector<float> values;         // (layers_, n_kv_heads, n_context)
  };

  bool scores_by_moments() const {
    return settings_.score == WindowScore::variance || settings_.layers == LayerBudgets::preference ||
           settings_.layers == LayerBudgets::adaptive;
  }

  // Allocate, select: `total` tokens for all compressed heads together.
  Status select_prompt(Heads* heads, uint32_t n_tokens, uint64_t total) {
    const uint64_t n_compressed = layers_.size() * n_kv_heads_;
    Scores& scores = scores_;
    const uint32_t w = n_tokens - scores.n_old;
    const uint64_t total_old = total - n_compressed * w;
    ORRERY_ASSIGN(const std::vector<uint64_t> budgets, layer_budgets(heads, scores, total_old, n_tokens));
    std::vector<std::vector<uint64_t>> counts(layers_.size());
    const auto allocate = [&](size_t i) {
      ORRERY_ASSIGN(counts[i], head_budgets(scores.of_layer(i, n_kv_heads_), budgets[i], w));
      return ok_status();
    };
    ORRERY_TRY(heads->try_each(layers_.size(), allocate));
    size_t first = 0;
    for (size_t i = 0; i < layers_.size(); ++i)
      for (uint32_t h = 0; h < n_kv_heads_; ++h) {
        Head& head = heads_[compressed_head(i * n_kv_heads_ + h)] = {first, static_cast<uint32_t>(counts[i][h]) + w, 0, 0.0f};
        first += head.n_selected;
      }
    resize_discarding(&selected_, first);
    const auto select_best = [&](size_t i) {
      const Head& head = heads_[compressed_head(i)];
      const Span<const float> own = Span<const float>(scores.values).subspan(i * scores.n_old, scores.n_old);
      Tokens best;
      top_k_ascending(own, head.n_selected - w, &best);
      const auto end = std::copy(best.begin(), best.end(), selected_.begin() + static_cast<ptrdiff_t>(head.first));
      std::iota(end, end + w, scores.n_old);
      return ok_status();
    };
    ORRERY_TRY(heads->try_each(n_compressed, select_best));
    shares_ = std::move(scores.values);
    scores.values.clear();
    if (settings_.compensation == 0) return ok_status();
    return weigh_compensation(heads, n_tokens);
  }

  // Shares of the evicted tokens: the last query's weights of them, the mean of the group. The compensation token weighs their perplexity
  // times the kept share of tokens (README.md, "Compensation tokens").
  Status weigh_compensation(Heads* heads, uint32_t n_tokens) {
    shares_.resize(layers_.size() * n_kv_heads_ * n_tokens);
    std::vector<WeightsQuery> queries(n_kv_heads_);
    for (size_t i = 0; i < layers_.size(); ++i) {
      for (uint32_t h = 0; h < n_kv_heads_; ++h)
        queries[h] = {layers_[i] * n_kv_heads_ + h, n_tokens - 1, 1, n_tokens, true, &shares_[(i * n_kv_heads_ + h) * n_tokens]};
      ORRERY_TRY(heads->key_weights(queries));
    }
    const double kept = static_cast<double>(selected_.size()) / static_cast<double>(shares_.size());
    heads->each(layers_.size() * n_kv_heads_, [&](size_t i) {
      Head& head = heads_[compressed_head(i)];
      if (head.n_selected == n_tokens) return;
      head.shares = i * n_tokens;
      const Span<float> shares = Span<float>(shares_).subspan(head.shares, n_tokens);
      for (uint32_t j = 0; j < head.n_selected; ++j) shares[selected_[head.first + j]] = 0.0f;
      head.compensation_weight = static_cast<float>(settings_.compensation * kept * normalize(shares));
    });
    return ok_status();
  }

  // The head number of the i-th compressed head.
  size_t compressed_head(size_t i) const { return size_t{layers_[i / n_kv_heads_]} * n_kv_heads_ + i % n_kv_heads_; }

  // The window takes at most half of what a head keeps on average. Scores lie in the memory of the last settlement's shares.
  void begin_scores(Heads* heads, uint32_t n_tokens, uint64_t total) {
    const uint64_t n_compressed = layers_.size() * n_kv_heads_;
    const auto half = static_cast<uint32_t>(std::max<uint64_t>(total / n_compressed / 2, 1));
    scores_.n_old = n_tokens - std::min({settings_.window, heads->n_queries(), half});
    if (scores_.values.empty()) scores_.values = std::move(shares_);  // else a settlement has ended before its last part
    resize_discarding(&scores_.values, n_compressed * n_tokens);
    scores_.values.resize(n_compressed * scores_.n_old);
    const uint32_t w = n_tokens - scores_.n_old, since = n_tokens - std::min(past_.n_tokens, n_tokens);
    scores_.n_queries = w, scores_.share = 1;
    if (settings_.renew > 0 && heads->settles_again() && past_.n_tokens > 0 && since > 0 && since <= w) {
      scores_.n_queries = since;
      scores_.share = std::min(settings_.renew * since / settings_.window, 1.0);
      return;
    }
    past_.n_old = 0;
    if (settings_.renew > 0) past_.values.resize(n_compressed * n_context_);
    scores_.preference.assign(scores_by_moments() ? layers_.size() : 0, 0.0);
  }

  // Scores layers_ [first, end) by the queries of the window.
  Status score(Heads* heads, uint32_t n_tokens, size_t first, size_t end) {
    const uint32_t w = scores_.n_queries;
    if (first == end) return ok_status();
    if (scores_by_moments()) ORRERY_TRY(score_moments(heads, n_tokens, w, first, end));
    if (settings_.score == WindowScore::each) ORRERY_TRY(score_each(heads, n_tokens, w, first, end));
    if (settings_.score == WindowScore::mean && !scores_by_moments()) ORRERY_TRY(score_means(heads, n_tokens, w, first, end));
    if (settings_.renew > 0) heads->each((end - first) * n_kv_heads_, [&](size_t i) { renew(first * n_kv_heads_ + i); });
    if (end == layers_.size()) past_.n_old = scores_.n_old;
    return ok_status();
  }

  // Mixes the i-th compressed head's scores with its past scores, and keeps the result. Keys without a past score keep their own.
  void renew(size_t i) {
    const uint32_t n_old = scores_.n_old, n_past = std::min(past_.n_old, n_old);
    const auto share = static_cast<float>(scores_.share);
    float *values = &scores_.values[i * n_old], *past = &past_.values[i * n_context_];
    for (uint32_t key = 0; key < n_past; ++key) values[key] = share * values[key] + (1 - share) * past[key];
    std::copy(values, values + n_old, past);
  }

  // By mean and variance of each query head's weights, pooled; and the layers' preferences.
  Status score_moments(Heads* heads, uint32_t n_tokens, uint32_t w, size_t first_layer, size_t end) {
    const uint32_t n_old = scores_.n_old;
    const uint32_t group = heads->group();
    const size_t of_head = size_t{group} * n_old;
    const double gamma = settings_.score == WindowScore::variance ? settings_.gamma : 0;
    std::vector<float> moments(n_kv_heads_ * of_head), rows;
    std::vector<MomentsQuery> queries(n_kv_heads_);
    std::vector<Dispersion> dispersions(n_kv_heads_);
    float* out = &scores_.values[first_layer * n_kv_heads_ * n_old];
    for (size_t i = first_layer; i < end; ++i) {
      const uint32_t layer = layers_[i];
      for (uint32_t h = 0; h < n_kv_heads_; ++h)
        queries[h] = {layer * n_kv_heads_ + h, n_tokens - w, w, n_tokens, n_old, gamma, &moments[h * of_head], &dispersions[h]};
      ORRERY_TRY(heads->key_moments(queries, &rows));
      const auto pool_head = [&](size_t h) {
        const Span<float> own(&moments[h * of_head], of_head), to(out + h * n_old, n_old);
        if (settings_.score == WindowScore::variance) return pool_then_mean(own, group, settings_.pooling, settings_.width, to);
        ORRERY_TRY(group_reduce(own, group, GroupReduce::mean, own.first(n_old)));
        return pool1d(own.first(n_old), settings_.pooling, settings_.width, to);
      };
      ORRERY_TRY(heads->try_each(n_kv_heads_, pool_head));
      Dispersion dispersion;
      for (const Dispersion& d : dispersions) dispersion.add(d);
      dispersion.entropy *= static_cast<double>(n_tokens - n_old) / w;  // a sum over queries
      double& preference = scores_.preference[i];
      preference += scores_.share * (dispersion.preference(settings_.tau_1, settings_.tau_2) - preference);
      out += size_t{n_kv_heads_} * n_old;
    }
    return ok_status();
  }

  // Ada-KV's algorithm 2, lines 3 and 4: for each query the softmax of its unscaled products with the keys before the window, pooled; then
  // the mean over queries and group.
  Status score_each(Heads* heads, uint32_t n_tokens, uint32_t w, size_t first_layer, size_t end) {
    const uint32_t n_old = scores_.n_old, group = heads->group();
    const size_t of_head = size_t{group} * n_old;
    std::vector<float> rows(n_kv_heads_ * of_head), pooled(size_t{n_kv_heads_} * n_old);
    std::vector<ScoresQuery> queries(n_kv_heads_);
    float* out = &scores_.values[first_layer * n_kv_heads_ * n_old];
    std::fill(out, out + (end - first_layer) * n_kv_heads_ * n_old, 0.0f);
    const auto each = 1 / static_cast<float>(w * group);
    for (size_t i = first_layer; i < end; ++i) {
      const uint32_t layer = layers_[i];
      for (uint32_t position = n_tokens - w; position < n_tokens; ++position) {
        for (uint32_t h = 0; h < n_kv_heads_; ++h)
          queries[h] = {layer * n_kv_heads_ + h, position, 0, n_old, false, false, &rows[h * of_head]};
        ORRERY_TRY(heads->scores(queries));
        const auto add = [&](size_t h) {
          const Span<float> own(&pooled[h * n_old], n_old);
          float* sums = out + h * n_old;
          for (uint32_t g = 0; g < group; ++g) {
            const Span<float> row(&rows[h * of_head + size_t{g} * n_old], n_old);
            softmax(row, row);
            ORRERY_TRY(pool1d(row, settings_.pooling, settings_.width, own));
            for (uint32_t key = 0; key < n_old; ++key) sums[key] += own[key] * each;
          }
          return ok_status();
        };
        ORRERY_TRY(heads->try_each(n_kv_heads_, add));
      }
      out += size_t{n_kv_heads_} * n_old;
    }
    return ok_status();
  }

  // By the mean weight over queries and group, pooled.
  Status score_means(Heads* heads, uint32_t n_tokens, uint32_t w, size_t first_layer, size_t end) {
    const uint32_t n_old = scores_.n_old;
    std::vector<float> rows(size_t{n_tokens} * n_kv_heads_);
    std::vector<WeightsQuery> queries(n_kv_heads_);
    float* out = &scores_.values[first_layer * n_kv_heads_ * n_old];
    for (size_t i = first_layer; i < end; ++i) {
      const uint32_t layer = layers_[i];
      for (uint32_t h = 0; h < n_kv_heads_; ++h)
        queries[h] = {layer * n_kv_heads_ + h, n_tokens - w, w, n_tokens, true, &rows[size_t{h} * n_tokens]};
      ORRERY_TRY(heads->key_weights(queries));
      const auto pool_head = [&](size_t h) {
        return pool1d({&rows[h * n_tokens], n_old}, settings_.pooling, settings_.width, {out + h * n_old, n_old});
      };
      ORRERY_TRY(heads->try_each(n_kv_heads_, pool_head));
      out += size_t{n_kv_heads_} * n_old;
    }
    return ok_status();
  }

  // Tokens before the window of each layer, (layers_).
  Result<std::vector<uint64_t>> layer_budgets(Heads* heads, const Scores& scores, uint64_t total, uint32_t n_tokens) const {
    switch (settings_.layers) {
      case LayerBudgets::pyramid: return pyramid(layers_.size(), n_kv_heads_, total, scores.n_old, n_tokens, settings_.beta);
      case LayerBudgets::preference: return by_preference(scores.preference, total, uint64_t{n_kv_heads_} * scores.n_old);
      case LayerBudgets::adaptive: {
        ORRERY_ASSIGN(BestOfLayers best, BestOfLayers::make(scores.values, scores.preference, total));
        for (uint32_t round = 0; round < BestOfLayers::kRounds; ++round, best.end_round())
          heads->each(layers_.size(), [&](size_t i) { best.count(i); });
        return best.counts();
      }
      case LayerBudgets::uniform: break;
    }
    return apportion_evenly(layers_.size(), total, uint64_t{n_kv_heads_} * scores.n_old);
  }

  // Tokens before the window of each head of a layer, (n_kv_heads).
  Result<std::vector<uint64_t>> head_budgets(Span<const float> layer, uint64_t total, uint32_t w) const {
    const uint64_t n_old = layer.size() / n_kv_heads_;
    if (settings_.heads == HeadBudgets::uniform) return apportion_evenly(n_kv_heads_, total, n_old);
    uint64_t n_protected = 0;
    if (settings_.safeguard == Safeguard::protect) {
      const auto n = static_cast<double>(total / n_kv_heads_ + w);
      n_protected = static_cast<uint64_t>(std::max(settings_.alpha * n + 1e-9 - w, 0.0));
    }
    ORRERY_ASSIGN(std::vector<uint64_t> counts, count_best(layer, n_kv_heads_, total, n_protected));
    if (settings_.safeguard == Safeguard::protect) return counts;
    ORRERY_ASSIGN(const Ratio alpha, Ratio::from(settings_.alpha));
    return with_floor(counts, alpha);
  }

  const char* const name_;
  const WindowSettings settings_;
  std::vector<uint32_t> layers_;  // compressed layers
  uint32_t n_full_ = 0;
  std::vector<Head> heads_;
  // Since settle():
  std::vector<uint32_t> selected_;  // the compressed heads' tokens, head by head, ascending
  std::vector<float> shares_;       // (compressed heads, n_tokens) of the evicted tokens, where there is compensation
  Past past_;
  Scores scores_;  // between the parts of settle(); then their memory is shares_'s
};

}  // namespace

Result<std::unique_ptr<Policy>> make_window(const char* name, const WindowSettings& defaults, const Shape& shape, const Budget& budget,
                                            const Options& options) {
  WindowSettings s = defaults;
  OptionReader reader(name, options);
  ORRERY_TRY(reader.count("window", 1, kMaxWindow, &s.window));
  ORRERY_TRY(reader.choice("score", kWindowScores, &s.score));
  ORRERY_TRY(reader.choice("pool", kPoolings, &s.pooling));
  ORRERY_TRY(reader.odd("width", kMaxPool, &s.width));
  ORRERY_TRY(reader.choice("layers", kLayerBudgets, &s.layers));
  ORRERY_TRY(reader.choice("heads", kHeadBudgets, &s.heads));
  ORRERY_TRY(reader.choice("safeguard", kSafeguards, &s.safeguard));
  ORRERY_TRY(reader.fraction("alpha", &s.alpha));
  ORRERY_TRY(reader.count("beta", 1, 1u << 20, &s.beta));
  ORRERY_TRY(reader.number("tau_1", .1, 10, &s.tau_1));
  ORRERY_TRY(reader.number("tau_2", .1, 10, &s.tau_2));
  ORRERY_TRY(reader.number("gamma", 0, 1e6, &s.gamma));
  ORRERY_TRY(reader.count("first_layers", 0, 4096, &s.first_layers));
  ORRERY_TRY(reader.count("tail", 0, 1u << 20, &s.tail));
  ORRERY_TRY(reader.fraction("compensation", &s.compensation));
  ORRERY_TRY(reader.count("steps", 0, kMostSettleSteps, &s.steps));
  ORRERY_TRY(reader.number("renew", 0, 64, &s.renew));
  ORRERY_TRY(reader.finish());
  if (budget.share.of_tokens() >= 1 && budget.max_slots >= slots_for_share(shape, 1)) s.compensation = 0;  // nothing is evicted
  auto policy = std::make_unique<WindowPolicy>(name, shape, budget, s);
  ORRERY_TRY(policy->check_room(budget, "keep their whole KV"));
  return std::unique_ptr<Policy>(std::move(policy));
}

}  // namespace orrery::policy
