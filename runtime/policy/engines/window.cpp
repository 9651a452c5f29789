// Methods that choose once, by a window of queries, and evict the rest: SnapKV (arXiv:2404.14469), PyramidKV (arXiv:2406.02069),
// Ada-KV (arXiv:2407.11550) and CAKE (arXiv:2503.12491), and auto, which is composed of them.  They differ in four places, which are options
// of all of them; a method's name stands for its own choices (kMethods), and any of them can be had with any other:
//   score     the last `window` queries' softmax over all that each sees; the mean over them, and the group (mean), or CAKE's mean +
//             gamma variance (variance), smoothed over neighbouring keys (pool, width); or each query's own softmax, as in Ada-KV's
//             algorithm 2 (each)
//   allocate  over layers evenly (uniform), on a falling line (pyramid), by entropy and variance (preference), by the best scores of
//             all of them, weighted by preference (adaptive); over a layer's heads evenly (uniform), or by the best scores of all of
//             them, with a safeguard (adaptive)
//   keep      each head its best tokens before the window, the window, and every generated token
//   refresh   never; a full tail, and every later prompt, chooses anew from all that the reservoir holds
//   rest      what a head lets go is lost (compensation=0), or stays as one token
//
// Where the papers and their codes disagree or are silent:
//   - One choice for each KV head, by its group's mean (SnapKV's code chooses for each query head, on repeated KV).
//   - Scores are the codes': scaled products, the softmax runs over the window's keys as well, whose columns are then dropped; pooling
//     behind the means. score=each is Ada-KV's algorithm 2: unscaled products, a softmax over the keys before the window alone, each row
//     pooled by itself, then the mean; a maximum and a mean do not commute, so that other tokens are the best.
//   - Layers that compete are ours: Ada-KV deals a layer's part over its heads only, CAKE between layers by preference alone.
//   - Totals are exact, by largest remainder: PyramidKV's whole steps and Ada-KV's rounding are not.
//   - alpha is the floor of a head's share (floor: Ada-KV's code; algorithm 2, line 8 has it reversed), .2 as in the paper. The
//     other safeguard is kvpress's (protect): the best int(alpha n) of each head come first, n and these counting the window, and
//     so alpha n <= window protects nothing else.
//   - `cap`, what a head keeps on average, counts the window; a window takes no more than half of it, and no more than the prompt.
//   - first_layers exempts so many from it all, as FreeKV's comparisons do for every method with 1; their KV counts.
//   - Generated tokens count: the tail that they go to is inside the budget. So does a head's token for the rest.
//
// auto is CAKE's scores with Ada-KV's selection over heads, and four things of ours. Layers compete like heads (layers=adaptive): the best
// scores of all, each times the root of its layer's preference, say how many tokens are the layer's. CAKE deals to layers in proportion to
// preference: from a third of the KV on a layer that wants much has all of its tokens, which are hardly looked at where they end, while the others
// lack what they look at. The question whether a list goes on is answered by many keys, each looked at a little, in all layers: it was
// answered worse at 30 and 40% than at 20. A wide maximum (15 keys): a token that is looked at stays with the sentence around it, which the answer
// reads next, token by token; with 5 or 7 the middle of a passage is kept and its end is lost. And a short tail (a sixteenth of what a head
// may hold): at 10% one of n / 32 takes a third of a text of 1,024 tokens, and when it is full everything is chosen anew by the answer's
// own last queries, so that what it has come to need comes back.
//
// And compensation. RazorAttention's token is the plain mean of what a head has let go, and weighs as many tokens as that is: right where
// they are alike. Here tokens have shares of it, p, the last query's softmax weights of those that are let go (the mean of the group's), and
// it weighs e^H(p), as many alike as p is spread out over. For a query q with products s with the tokens, log sum e^s >= p.s + H(p) (Gibbs),
// and p.s is q's product with the token: it never weighs more than the tokens would, and as much for the query that made p, whose output
// it completes. (Of one query head; a group's mean p is near that.) A later query that looks for one of these tokens gets all of them
// instead, and the more a head holds the seldomer it looks: times the share of tokens that heads keep it was best or near it at every
// budget, among constants from .15 to .5, each head's own share, and its share of the weight.
#include <algorithm>
#include <numeric>

#include "runtime/policy/allocate/over_heads.h"
#include "runtime/policy/allocate/over_layers.h"
#include "runtime/policy/engines/tailed.h"
#include "runtime/policy/methods/methods.h"
#include "runtime/policy/options.h"
#include "runtime/policy/score/moments.h"
#include "runtime/policy/score/pooling.h"

namespace orrery::policy {

namespace {

enum class Score : uint32_t { mean, variance, each };
enum class Layers : uint32_t { uniform, pyramid, preference, adaptive };
enum class HeadsOf : uint32_t { uniform, adaptive };
enum class Safeguard : uint32_t { floor, protect };

struct Settings {
  Score score = Score::mean;
  Pooling pooling = Pooling::avg;
  uint32_t width = 5;
  Layers layers = Layers::uniform;
  HeadsOf heads = HeadsOf::uniform;
  uint32_t window = 32;
  Safeguard safeguard = Safeguard::floor;
  double alpha = .2;                            // adaptive heads
  uint32_t beta = 20;                           // pyramid: the last layer's part of the mean
  double tau_1 = 1, tau_2 = 1, gamma = 200;     // CAKE; layers that compete
  uint32_t first_layers = 0;                    // that keep everything
  uint32_t tail = 0, tail_part = 0;             // Tail
  double compensation = 0;                      // of what a head lets go
};

struct Method {
  const char* name;
  Settings settings;
};
constexpr Method kMethods[] = {
    {"snapkv", {Score::mean, Pooling::avg, 5, Layers::uniform, HeadsOf::uniform}},
    {"pyramidkv", {Score::mean, Pooling::avg, 5, Layers::pyramid, HeadsOf::uniform}},
    {"adakv", {Score::mean, Pooling::max, 7, Layers::uniform, HeadsOf::adaptive}},
    {"adapyramid", {Score::mean, Pooling::max, 7, Layers::pyramid, HeadsOf::adaptive}},
    {"cake", {Score::variance, Pooling::avg, 5, Layers::preference, HeadsOf::uniform}},
    {"auto", {Score::variance, Pooling::max, 15, Layers::adaptive, HeadsOf::adaptive, 32, Safeguard::protect, .2, 20, 2, 2, 200, 0, 0, 16, 1}},
};

class WindowPolicy final : public TailedPolicy {
 public:
  WindowPolicy(const char* name, const Shape& shape, const Budget& budget, const Settings& settings)
      : TailedPolicy(shape, budget, {settings.tail, settings.tail_part}, {}, nullptr,
                     settings.compensation > 0 ? Ratio{shape.compensation_token_bytes, shape.slot_bytes} : Ratio{}),
        name_(name),
        settings_(settings),
        heads_(size_t{shape.n_layers} * shape.n_kv_heads) {
    uint32_t n = 0;
    for (uint32_t l = 0; l < n_layers_; ++l)
      if (window_[l] == 0 && n++ >= settings_.first_layers) layers_.push_back(l);
    n_full_ = rings_.n_other_heads() - static_cast<uint32_t>(layers_.size()) * n_kv_heads_;
  }

  const char* name() const override { return name_; }
  uint32_t n_full_heads() const override { return n_full_; }
  uint32_t queries_wanted() const override { return budget_.everything() ? 0 : settings_.window; }
  uint32_t max_compensation_tokens() const override {
    return settings_.compensation > 0 ? static_cast<uint32_t>(layers_.size()) * n_kv_heads_ : 0;
  }
  bool has_compensation_token(uint32_t head) const override { return heads_[head].rest_weight > 0; }
  CompensationShares compensation_shares(uint32_t head) const override {
    const Head& h = heads_[head];
    return {Span<const float>(rest_).subspan(h.rest, n_tokens_), h.rest_weight};
  }

  Status settle(Heads* heads, uint32_t n_tokens, Span<uint32_t> capacity) override {
    begin_settling(n_tokens, capacity);
    if (rings_.n_other_heads() == 0) return ok_status();
    const TailedBudget::Division division = budget_.divide(n_tokens, n_full_);
    const uint64_t n_compressed = layers_.size() * n_kv_heads_;
    if (n_compressed > 0 && division.selected == 0)
      return error(Code::internal, "%llu compressed heads have no room at %u tokens",
                   static_cast<unsigned long long>(n_compressed), n_tokens);
    for (Head& h : heads_) h = {0, n_tokens, 0, 0.0f};
    selected_.clear();
    if (division.selected < n_compressed * n_tokens) ORRERY_TRY(choose(heads, n_tokens, division.selected));
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

  // Scores, or shares, and what is selected; and what scoring, counting or choosing takes beside them.
  uint64_t host_bytes(const HostShape& host) const override {
    const uint64_t n = n_context_, n_layers = layers_.size(), n_heads = n_layers * n_kv_heads_, of_layer = n_kv_heads_ * n;
    const uint64_t kept = bytes_of<Head>(heads_.size()) + bytes_of<uint32_t>(n_heads * budget_.most_of_head()) + bytes_of<float>(n_heads * n);
    uint64_t scoring = bytes_of<float>(of_layer * (settings_.score == Score::each ? host.group + 1 : 1));
    if (by_moments()) {
      const uint64_t at_once = std::min(host.n_threads, n_kv_heads_);   // heads that are smoothed
      uint64_t moments = bytes_of<float>((n_kv_heads_ + (settings_.score == Score::variance ? at_once : 0)) * host.group * n);
      if (!host.makes_moments) moments += (bytes_of<float>(settings_.window) + bytes_of<double>(2)) * host.group * n;
      scoring = std::max(scoring, moments);
    }
    const uint64_t counting = settings_.heads == HeadsOf::uniform ? 0 : std::min<uint64_t>(host.n_threads, n_layers) * bytes_of<float>(2 * of_layer);
    const uint64_t layers = settings_.layers == Layers::adaptive ? BestOfLayers::host_bytes(n_layers) : 0;
    return kept + std::max({scoring, counting, layers, bytes_of<uint32_t>(host.n_threads * n)});
  }

  std::unique_ptr<Policy> clone() const override { return clone_of(*this); }

 private:
  struct Head {
    size_t first = 0;          // of its tokens in selected_
    uint32_t n_selected = 0;   // the whole prompt: none are in there
    size_t rest = 0;           // of its shares in rest_
    float rest_weight = 0.0f;  // of what it lets go, in tokens; 0: it keeps everything, or there is no compensation
  };
  // Of all compressed heads: (layers_, n_kv_heads, n_old) scores of the keys before the window.
  struct Scores {
    uint32_t n_old = 0;
    std::vector<float> values;
    std::vector<double> preference;   // (layers_)
    Span<const float> of_layer(size_t i, uint32_t n_kv_heads) const {
      const size_t n = size_t{n_kv_heads} * n_old;
      return Span<const float>(values).subspan(i * n, n);
    }
  };

  bool by_moments() const {
    return settings_.score == Score::variance || settings_.layers == Layers::preference || settings_.layers == Layers::adaptive;
  }

  // Score, allocate, keep: `total` tokens of the compressed heads together.
  Status choose(Heads* heads, uint32_t n_tokens, uint64_t total) {
    const uint64_t n_compressed = layers_.size() * n_kv_heads_;
    const auto half = static_cast<uint32_t>(std::max<uint64_t>(total / n_compressed / 2, 1));
    const uint32_t w = std::min({settings_.window, heads->n_queries(), half});
    ORRERY_ASSIGN(Scores scores, score(heads, n_tokens, w));
    const uint64_t total_old = total - n_compressed * w;
    ORRERY_ASSIGN(const std::vector<uint64_t> of_layers, over_layers(heads, scores, total_old, n_tokens));
    std::vector<std::vector<uint64_t>> counts(layers_.size());
    const auto allocate = [&](size_t i) {
      ORRERY_ASSIGN(counts[i], over_heads(scores.of_layer(i, n_kv_heads_), of_layers[i], w));
      return ok_status();
    };
    ORRERY_TRY(heads->try_each(layers_.size(), allocate));
    size_t first = 0;
    for (size_t i = 0; i < layers_.size(); ++i)
      for (uint32_t h = 0; h < n_kv_heads_; ++h) {
        Head& head = heads_[head_of(i * n_kv_heads_ + h)] = {first, static_cast<uint32_t>(counts[i][h]) + w, 0, 0.0f};
        first += head.n_selected;
      }
    renew(&selected_, first);
    const auto select_best = [&](size_t i) {
      const Head& head = heads_[head_of(i)];
      const Span<const float> own = Span<const float>(scores.values).subspan(i * scores.n_old, scores.n_old);
      Tokens best;
      top_k_ascending(own, head.n_selected - w, &best);
      const auto end = std::copy(best.begin(), best.end(), selected_.begin() + static_cast<ptrdiff_t>(head.first));
      std::iota(end, end + w, scores.n_old);
      return ok_status();
    };
    ORRERY_TRY(heads->try_each(n_compressed, select_best));
    if (settings_.compensation == 0) return ok_status();
    rest_ = std::move(scores.values);
    return weigh_rest(heads, n_tokens);
  }

  // What each head lets go, by the last position's weights of it; and what it weighs.
  Status weigh_rest(Heads* heads, uint32_t n_tokens) {
    rest_.resize(layers_.size() * n_kv_heads_ * n_tokens);
    std::vector<WeightsQuery> queries(n_kv_heads_);
    for (size_t i = 0; i < layers_.size(); ++i) {
      for (uint32_t h = 0; h < n_kv_heads_; ++h)
        queries[h] = {layers_[i] * n_kv_heads_ + h, n_tokens - 1, 1, n_tokens, true, &rest_[(i * n_kv_heads_ + h) * n_tokens]};
      ORRERY_TRY(heads->key_weights(queries));
    }
    const double kept = static_cast<double>(selected_.size()) / static_cast<double>(rest_.size());
    heads->each(layers_.size() * n_kv_heads_, [&](size_t i) {
      Head& head = heads_[head_of(i)];
      if (head.n_selected == n_tokens) return;
      head.rest = i * n_tokens;
      const Span<float> rest = Span<float>(rest_).subspan(head.rest, n_tokens);
      for (uint32_t j = 0; j < head.n_selected; ++j) rest[selected_[head.first + j]] = 0.0f;
      head.rest_weight = static_cast<float>(settings_.compensation * kept * to_shares(rest));
    });
    return ok_status();
  }

  // The i-th of the compressed heads.
  size_t head_of(size_t i) const { return size_t{layers_[i / n_kv_heads_]} * n_kv_heads_ + i % n_kv_heads_; }

  // By the last w queries.
  Result<Scores> score(Heads* heads, uint32_t n_tokens, uint32_t w) {
    Scores scores;
    const uint32_t n_old = scores.n_old = n_tokens - w;
    renew(&rest_, layers_.size() * n_kv_heads_ * n_tokens);   // where scores are, shares will be
    scores.values = std::move(rest_);
    scores.values.resize(layers_.size() * n_kv_heads_ * n_old);
    if (by_moments()) ORRERY_TRY(score_moments(heads, n_tokens, w, &scores));
    if (settings_.score == Score::each) ORRERY_TRY(score_each(heads, w, &scores));
    if (settings_.score == Score::mean && !by_moments()) ORRERY_TRY(score_means(heads, n_tokens, w, &scores));
    return scores;
  }

  // Layer by layer: what each query head makes of the keys, and that of a group together.
  Status score_moments(Heads* heads, uint32_t n_tokens, uint32_t w, Scores* scores) const {
    const uint32_t n_old = scores->n_old;
    const uint32_t group = heads->group();
    const size_t of_head = size_t{group} * n_old;
    const double gamma = settings_.score == Score::variance ? settings_.gamma : 0;
    std::vector<float> moments(n_kv_heads_ * of_head), rows;
    std::vector<MomentsQuery> queries(n_kv_heads_);
    std::vector<Dispersion> dispersions(n_kv_heads_);
    float* out = scores->values.data();
    for (const uint32_t layer : layers_) {
      for (uint32_t h = 0; h < n_kv_heads_; ++h)
        queries[h] = {layer * n_kv_heads_ + h, n_old, w, n_tokens, n_old, gamma, &moments[h * of_head], &dispersions[h]};
      ORRERY_TRY(heads->key_moments(queries, &rows));
      const auto smooth = [&](size_t h) {
        const Span<float> own(&moments[h * of_head], of_head), to(out + h * n_old, n_old);
        if (settings_.score == Score::variance) return steady_scores(own, group, settings_.pooling, settings_.width, to);
        ORRERY_TRY(group_reduce(own, group, GroupReduce::mean, own.first(n_old)));
        return pool1d(own.first(n_old), settings_.pooling, settings_.width, to);
      };
      ORRERY_TRY(heads->try_each(n_kv_heads_, smooth));
      Dispersion dispersion;
      for (const Dispersion& d : dispersions) dispersion.add(d);
      scores->preference.push_back(dispersion.preference(settings_.tau_1, settings_.tau_2));
      out += size_t{n_kv_heads_} * n_old;
    }
    return ok_status();
  }

  // Each query of each head by itself, by unscaled products with the keys before the window (Ada-KV's algorithm 2, lines 3 and 4).
  Status score_each(Heads* heads, uint32_t w, Scores* scores) const {
    const uint32_t n_old = scores->n_old, group = heads->group();
    const size_t of_head = size_t{group} * n_old;
    std::vector<float> rows(n_kv_heads_ * of_head), pooled(size_t{n_kv_heads_} * n_old);
    std::vector<ScoresQuery> queries(n_kv_heads_);
    float* out = scores->values.data();
    std::fill(scores->values.begin(), scores->values.end(), 0.0f);
    const auto each = 1 / static_cast<float>(w * group);
    for (const uint32_t layer : layers_) {
      for (uint32_t position = n_old; position < n_old + w; ++position) {
        for (uint32_t h = 0; h < n_kv_heads_; ++h) queries[h] = {layer * n_kv_heads_ + h, position, 0, n_old, false, false, &rows[h * of_head]};
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

  // By the means over all rows of a head.
  Status score_means(Heads* heads, uint32_t n_tokens, uint32_t w, Scores* scores) const {
    const uint32_t n_old = scores->n_old;
    std::vector<float> rows(size_t{n_tokens} * n_kv_heads_);
    std::vector<WeightsQuery> queries(n_kv_heads_);
    float* out = scores->values.data();
    for (const uint32_t layer : layers_) {
      for (uint32_t h = 0; h < n_kv_heads_; ++h)
        queries[h] = {layer * n_kv_heads_ + h, n_old, w, n_tokens, true, &rows[size_t{h} * n_tokens]};
      ORRERY_TRY(heads->key_weights(queries));
      const auto smooth = [&](size_t h) {
        return pool1d({&rows[h * n_tokens], n_old}, settings_.pooling, settings_.width, {out + h * n_old, n_old});
      };
      ORRERY_TRY(heads->try_each(n_kv_heads_, smooth));
      out += size_t{n_kv_heads_} * n_old;
    }
    return ok_status();
  }

  // (layers_)
  Result<std::vector<uint64_t>> over_layers(Heads* heads, const Scores& scores, uint64_t total, uint32_t n_tokens) const {
    switch (settings_.layers) {
      case Layers::pyramid: return pyramid(layers_.size(), n_kv_heads_, total, scores.n_old, n_tokens, settings_.beta);
      case Layers::preference: return by_preference(scores.preference, total, uint64_t{n_kv_heads_} * scores.n_old);
      case Layers::adaptive: {
        ORRERY_ASSIGN(BestOfLayers best, BestOfLayers::make(scores.values, scores.preference, total));
        for (uint32_t round = 0; round < BestOfLayers::kRounds; ++round, best.end_round())
          heads->each(layers_.size(), [&](size_t i) { best.count(i); });
        return best.counts();
      }
      case Layers::uniform: break;
    }
    return apportion_evenly(layers_.size(), total, uint64_t{n_kv_heads_} * scores.n_old);
  }

  // (n_kv_heads)
  Result<std::vector<uint64_t>> over_heads(Span<const float> layer, uint64_t total, uint32_t w) const {
    const uint64_t n_old = layer.size() / n_kv_heads_;
    if (settings_.heads == HeadsOf::uniform) return apportion_evenly(n_kv_heads_, total, n_old);
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
  const Settings settings_;
  std::vector<uint32_t> layers_;     // that compress
  uint32_t n_full_ = 0;
  std::vector<Head> heads_;
  std::vector<uint32_t> selected_;   // since settling: every compressed head's tokens, ascending
  std::vector<float> rest_;          // likewise, where it is compensated: the shares of those that it lets go, (compressed heads, n_tokens)
};

template <class T, class Choice>
Status read_choice(OptionReader* reader, const char* name, const T& choices, Choice* value) {
  auto index = static_cast<uint32_t>(*value);
  ORRERY_TRY(reader->choice(name, choices, &index));
  *value = static_cast<Choice>(index);
  return ok_status();
}

}  // namespace

Result<std::unique_ptr<Policy>> make_window(const char* name, const Shape& shape, const Budget& budget, const Options& options) {
  const Method* method = kMethods;
  while (std::string(method->name) != name) ++method;
  Settings s = method->settings;
  OptionReader reader(name, options);
  static constexpr const char* kScore[] = {"mean", "variance", "each"};
  static constexpr const char* kPool[] = {"none", "avg", "max"};
  static constexpr const char* kLayers[] = {"uniform", "pyramid", "preference", "adaptive"};
  static constexpr const char* kHeads[] = {"uniform", "adaptive"};
  static constexpr const char* kSafeguard[] = {"floor", "protect"};
  const auto choices = [](const auto& names) { return Span<const char* const>(names, std::size(names)); };
  ORRERY_TRY(reader.count("window", 1, kMostWindow, &s.window));
  ORRERY_TRY(read_choice(&reader, "score", choices(kScore), &s.score));
  ORRERY_TRY(read_choice(&reader, "pool", choices(kPool), &s.pooling));
  ORRERY_TRY(reader.count("width", 1, 63, &s.width));
  ORRERY_TRY(read_choice(&reader, "layers", choices(kLayers), &s.layers));
  ORRERY_TRY(read_choice(&reader, "heads", choices(kHeads), &s.heads));
  ORRERY_TRY(read_choice(&reader, "safeguard", choices(kSafeguard), &s.safeguard));
  ORRERY_TRY(reader.fraction("alpha", &s.alpha));
  ORRERY_TRY(reader.count("beta", 1, 1u << 20, &s.beta));
  ORRERY_TRY(reader.number("tau_1", .1, 10, &s.tau_1));
  ORRERY_TRY(reader.number("tau_2", .1, 10, &s.tau_2));
  ORRERY_TRY(reader.number("gamma", 0, 1e6, &s.gamma));
  ORRERY_TRY(reader.count("first_layers", 0, 4096, &s.first_layers));
  ORRERY_TRY(reader.count("tail", 0, 1u << 20, &s.tail));
  ORRERY_TRY(reader.fraction("compensation", &s.compensation));
  ORRERY_TRY(reader.finish());
  if (budget.share.of_tokens() >= 1 && budget.max_slots >= slots_for_share(shape, 1)) s.compensation = 0;   // nothing is let go
  if (s.width % 2 == 0)
    return error(Code::invalid_argument, "policy option %s.width is %u, expected an odd number", name, s.width);
  auto policy = std::make_unique<WindowPolicy>(method->name, shape, budget, s);
  ORRERY_TRY(policy->check_room(budget, "keep their whole KV"));
  return std::unique_ptr<Policy>(std::move(policy));
}

}  // namespace orrery::policy
