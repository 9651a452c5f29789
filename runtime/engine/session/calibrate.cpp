#include "runtime/engine/session/calibrate.h"

#include <algorithm>
#include <bitset>
#include <cmath>
#include <cstring>
#include <limits>

#include "runtime/engine/session/retrieval.h"
#include "runtime/engine/session/session.h"
#include "runtime/policy/heads/clusters.h"
#include "runtime/text/json/json.h"

namespace orrery::engine {

namespace {

using policy::GroupReduce;
using policy::KeyQuery;
using policy::LayerOverlaps;
using policy::Pooling;
using policy::ScoreRule;
using policy::Tokens;

constexpr uint32_t kMostSteps = 1024, kMostTopK = 1u << 20;

// The score rules of the sets that roles come from, and of the sets that clusters come from.
constexpr ScoreRule kStarRule{GroupReduce::mean, Pooling::avg, 5, true};
constexpr ScoreRule kSyncRule{GroupReduce::max, Pooling::none, 1, true};

Status check_options(const CalibrationOptions& o, const model::Description& h) {
  const auto fraction = [](double x) { return x >= 0 && x <= 1; };
  if (o.n_steps < 1 || o.n_steps > kMostSteps)
    return option_error(Code::invalid_argument, "n_steps", "calibration over %u steps, expected 1 to %u", o.n_steps, kMostSteps);
  if (o.top_k < 1 || o.top_k > kMostTopK)
    return option_error(Code::invalid_argument, "top_k", "calibration with the best %u keys, expected 1 to %u", o.top_k, kMostTopK);
  if (o.n_representatives > static_cast<uint32_t>(h.kv().n_kv_heads))
    return option_error(Code::invalid_argument, "n_representatives", "%u representatives among %d heads of a layer", o.n_representatives,
                        h.kv().n_kv_heads);
  if (!fraction(o.thresholds.tau_sim) || !fraction(o.thresholds.tau_stable) || !(o.tau_drift <= 1))
    return option_error(Code::invalid_argument,
                        !fraction(o.thresholds.tau_sim)      ? "tau_sim"
                        : !fraction(o.thresholds.tau_stable) ? "tau_stable"
                                                             : "tau_drift",
                        "tau_sim %g, tau_stable %g, tau_drift %g: expected 0 to 1", o.thresholds.tau_sim, o.thresholds.tau_stable,
                        o.tau_drift);
  if (!fraction(o.full_share))
    return option_error(Code::invalid_argument, "full_share", "a share of %g of the heads may be full, expected 0 to 1", o.full_share);
  return ok_status();
}

Status check_texts(Span<const Span<const int32_t>> texts, int32_t n_vocab) {
  constexpr size_t kMostTokens = 1u << 26;
  if (texts.empty()) return error(Code::invalid_argument, "calibration needs a text");
  for (size_t i = 0; i < texts.size(); ++i) {
    if (texts[i].size() < kLeastCalibrationTokens || texts[i].size() > kMostTokens)
      return error(Code::invalid_argument, "text %zu has %zu tokens, calibration needs %u to %zu", i, texts[i].size(),
                   kLeastCalibrationTokens, kMostTokens);
    for (size_t t = 0; t < texts[i].size(); ++t)
      if (texts[i][t] < 0 || texts[i][t] >= n_vocab)
        return error(Code::invalid_argument, "text %zu: token %zu is %d, the vocabulary has %d", i, t, texts[i][t], n_vocab);
  }
  return ok_status();
}

// Options of a session with full attention that keeps its last queries: every head is full, and no head is scored.
SessionOptions full_session(const model::Description& h, const CalibrationOptions& options, uint32_t n_context) {
  const size_t n_heads = static_cast<size_t>(h.kv().n_kv_heads);
  policy::ProfileLayer layer;
  layer.roles.roles.assign(n_heads, policy::Role::volatile_head);
  layer.roles.pivot_of.assign(n_heads, policy::kNoHead);
  layer.stability.assign(n_heads, 0.0);
  auto profile = std::make_shared<policy::HeadProfile>();
  profile->top_k = 1;
  profile->layers.assign(static_cast<size_t>(h.kv().n_layers()), layer);
  SessionOptions o;
  o.n_context = n_context;
  o.policy = policy::kPolicyOfRoles;
  o.kv_type = options.kv_type;
  o.head_profile = std::move(profile);
  return o;
}

// The overlap of the layers' sets: CalibrationSteps::layer_overlap.
class LayerMatches {
 public:
  LayerMatches(uint32_t n_layers, uint32_t n_kv_heads)
      : n_layers_(n_layers), n_kv_heads_(n_kv_heads), sums_(size_t{n_layers} * n_layers, 0.0), best_(2 * size_t{n_kv_heads}) {}

  // sets: (n_layers * n_kv_heads, k) positions below n_keys, of one step.
  void add(const std::vector<uint32_t>& sets, uint32_t k, uint32_t n_keys) {
    const size_t n_words = (n_keys + 63) / 64, n_heads = size_t{n_layers_} * n_kv_heads_;
    bits_.assign(n_heads * n_words, 0);
    for (size_t h = 0; h < n_heads; ++h)
      for (uint32_t i = 0; i < k; ++i) {
        const uint32_t token = sets[h * k + i];
        bits_[h * n_words + token / 64] |= uint64_t{1} << (token % 64);
      }
    for (uint32_t a = 0; a < n_layers_; ++a)
      for (uint32_t b = a; b < n_layers_; ++b) {
        const double sum = static_cast<double>(match(a, b, n_words)) / (2.0 * n_kv_heads_ * k);
        sums_[size_t{a} * n_layers_ + b] += sum;
        if (a != b) sums_[size_t{b} * n_layers_ + a] += sum;
      }
    ++n_;
  }
  std::vector<double> means() const {
    std::vector<double> out = sums_;
    for (double& x : out) x /= static_cast<double>(n_);
    for (uint32_t l = 0; l < n_layers_ && n_kv_heads_ == 1; ++l) out[size_t{l} * n_layers_ + l] = std::numeric_limits<double>::quiet_NaN();
    return out;
  }

 private:
  // Tokens that the heads of both layers share with their best matches.
  uint64_t match(uint32_t a, uint32_t b, size_t n_words) {
    std::fill(best_.begin(), best_.end(), 0);
    for (uint32_t i = 0; i < n_kv_heads_; ++i)
      for (uint32_t j = 0; j < n_kv_heads_; ++j) {
        if (a == b && i == j) continue;
        const uint64_t* x = &bits_[(size_t{a} * n_kv_heads_ + i) * n_words];
        const uint64_t* y = &bits_[(size_t{b} * n_kv_heads_ + j) * n_words];
        uint64_t common = 0;
        for (size_t w = 0; w < n_words; ++w) common += std::bitset<64>(x[w] & y[w]).count();
        best_[i] = std::max(best_[i], common);
        best_[n_kv_heads_ + j] = std::max(best_[n_kv_heads_ + j], common);
      }
    uint64_t sum = 0;
    for (const uint64_t n : best_) sum += n;
    return sum;
  }

  uint32_t n_layers_, n_kv_heads_;
  std::vector<double> sums_;
  std::vector<uint64_t> best_, bits_;  // (2, n_kv_heads); (heads, words)
  uint64_t n_ = 0;
};

// The sets of all heads under one score rule, and the sums over them.
struct Sets {
  ScoreRule rule;
  std::vector<uint32_t> best;           // (heads, k) of the current step
  std::vector<LayerOverlaps> overlaps;  // (n_layers)

  Status take(Session* session, uint32_t n_kv_heads, uint32_t step, uint32_t n_keys, uint32_t k) {
    const size_t n_heads = overlaps.size() * n_kv_heads;
    best.resize(n_heads * k);
    std::vector<KeyQuery> queries(n_heads);
    for (size_t h = 0; h < n_heads; ++h) queries[h] = {static_cast<uint32_t>(h), n_keys - 1 + step, 1, n_keys, k, false, &best[h * k]};
    ORRERY_TRY(session->sequence().top_keys(queries, rule));
    std::vector<Tokens> sets(n_kv_heads);
    for (size_t l = 0; l < overlaps.size(); ++l) {
      for (size_t h = 0; h < n_kv_heads; ++h) {
        const auto begin = best.begin() + static_cast<ptrdiff_t>((l * n_kv_heads + h) * k);
        sets[h].assign(begin, begin + k);
      }
      ORRERY_TRY(overlaps[l].add(step, sets));
    }
    return ok_status();
  }
};

class Calibrator {
 public:
  static Result<CalibrationResult> run(const std::shared_ptr<LanguageModel>& model, Span<const Span<const int32_t>> texts,
                                       const CalibrationOptions& options) {
    const model::Description& h = model->description();
    ORRERY_TRY(check_options(options, h));
    ORRERY_TRY(check_texts(texts, h.n_vocab));
    Calibrator c(*model, options);
    size_t longest = 0;
    for (const auto& text : texts) {
      longest = std::max(longest, text.size());
      c.total_ += text.size() + options.n_steps;
    }
    ORRERY_ASSIGN(const RepeatedTokens repeated, RepeatedTokens::make(*model));
    c.total_ += repeated.tokens.size();
    const auto n_context = static_cast<uint32_t>(std::max(longest + options.n_steps, repeated.tokens.size()));
    ORRERY_ASSIGN(const auto session, Session::open(model, full_session(h, options, n_context)));
    for (Sets* sets : {&c.star_, &c.sync_})
      for (uint32_t l = 0; l < c.n_layers_; ++l) {
        ORRERY_ASSIGN(LayerOverlaps overlaps, LayerOverlaps::make(c.n_kv_heads_, options.n_steps));
        sets->overlaps.push_back(std::move(overlaps));
      }
    for (const auto& text : texts) ORRERY_TRY(c.read(session.get(), text));
    ORRERY_ASSIGN(c.retrieval_, measure_retrieval(session.get(), repeated, [&c](uint64_t n) { return c.advance(n); }));
    return c.finish();
  }

 private:
  Calibrator(const LanguageModel& model, const CalibrationOptions& options)
      : model_(model), options_(options), n_layers_(static_cast<uint32_t>(model.description().kv().n_layers())),
        n_kv_heads_(static_cast<uint32_t>(model.description().kv().n_kv_heads)), matches_(n_layers_, n_kv_heads_) {}

  Status advance(uint64_t n) {
    done_ += n;
    if (options_.progress && !options_.progress(done_, total_)) return error(Code::cancelled, "calibration was cancelled");
    return ok_status();
  }

  Status read(Session* session, Span<const int32_t> text) {
    const auto n = static_cast<uint32_t>(text.size());
    const uint32_t k = std::min(options_.top_k, n / 4);
    steps_.text_tokens.push_back(n);
    steps_.top_k.push_back(k);
    steps_.chance += static_cast<double>(k) / n;
    ORRERY_TRY(session->rewind(0));
    ORRERY_TRY(advance(0));
    for (uint32_t from = 0; from < n;) {
      const uint32_t m = std::min(session->options().chunk(), n - from);
      ORRERY_TRY(session->sequence().prefill_chunk(text.subspan(from, m), nullptr, from + m == n, nullptr));
      ORRERY_TRY(advance(m));
      from += m;
    }
    for (uint32_t step = 0; step <= options_.n_steps; ++step) {
      if (step > 0) {
        const Span<const float> logits = session->logits();
        // The first largest logit; a NaN is never larger.
        size_t best = 0;
        for (size_t i = 1; i < logits.size(); ++i)
          if (logits[i] > logits[best] || std::isnan(logits[best])) best = i;
        session->push_generated(static_cast<int32_t>(best));
        ORRERY_TRY(session->decode());
      }
      ORRERY_TRY(star_.take(session, n_kv_heads_, step, n, k));
      ORRERY_TRY(sync_.take(session, n_kv_heads_, step, n, k));
      matches_.add(star_.best, k, n);
      if (step > 0) ORRERY_TRY(advance(1));
    }
    return ok_status();
  }

  Result<CalibrationResult> finish() {
    const int32_t window = model_.description().kv().window;
    CalibrationResult result;
    policy::HeadProfile& profile = result.profile;
    profile.has_model = true;
    std::memcpy(profile.model.data(), model_.weights().fingerprint, profile.model.size());
    profile.note = options_.note;
    profile.top_k = *std::min_element(steps_.top_k.begin(), steps_.top_k.end());
    profile.thresholds = options_.thresholds;

    std::vector<policy::LayerStatistics> all(n_layers_);
    for (uint32_t l = 0; l < n_layers_; ++l) {
      ORRERY_ASSIGN(all[l].stability, star_.overlaps[l].stability());
      ORRERY_ASSIGN(all[l].similarity, star_.overlaps[l].similarity());
    }
    if (options_.full_share > 0) {
      const double most = options_.full_share * static_cast<double>(all.size() * n_kv_heads_);
      ORRERY_ASSIGN(profile.thresholds, find_thresholds(all, static_cast<uint32_t>(most + 1e-6), options_.thresholds));
    }
    profile.tau_drift = options_.tau_drift < 0 ? profile.thresholds.tau_stable : options_.tau_drift;
    const uint32_t n_clusters = options_.n_representatives > 0 ? options_.n_representatives : n_kv_heads_ >= 8 ? 2 : 1;
    for (uint32_t l = 0; l < n_layers_; ++l) {
      policy::ProfileLayer layer;
      ORRERY_ASSIGN(layer.roles, classify(all[l], profile.thresholds));
      layer.stability = std::move(all[l].stability);
      for (uint32_t h = 0; h < n_kv_heads_; ++h) {
        layer.induction.push_back(retrieval_.induction[size_t{l} * n_kv_heads_ + h]);
        layer.echo.push_back(retrieval_.echo[size_t{l} * n_kv_heads_ + h]);
      }
      layer.similarity = std::move(all[l].similarity);
      ORRERY_ASSIGN(layer.mean_similarity, sync_.overlaps[l].mean_similarity());
      ORRERY_ASSIGN(layer.clusters, policy::cluster_heads(layer.mean_similarity, n_kv_heads_, n_clusters));
      profile.layers.push_back(std::move(layer));
    }
    ORRERY_TRY(check_profile(profile));

    steps_.n_steps = options_.n_steps;
    steps_.n_layers = n_layers_;
    steps_.n_kv_heads = n_kv_heads_;
    steps_.chance /= static_cast<double>(steps_.text_tokens.size());
    for (uint32_t l = 0; l < n_layers_; ++l) {
      ORRERY_ASSIGN(const std::vector<double> series, star_.overlaps[l].with_prompt());
      for (uint32_t h = 0; h < n_kv_heads_; ++h)
        for (uint32_t t = 0; t < steps_.n_steps; ++t) steps_.drift.push_back(series[size_t{t} * n_kv_heads_ + h]);
      steps_.windowed.push_back(window > 0);
    }
    steps_.layer_overlap = matches_.means();
    result.steps = std::move(steps_);
    return result;
  }

  const LanguageModel& model_;
  const CalibrationOptions& options_;
  uint32_t n_layers_, n_kv_heads_;
  uint64_t done_ = 0, total_ = 0;
  Sets star_{kStarRule, {}, {}}, sync_{kSyncRule, {}, {}};
  LayerMatches matches_;
  RetrievalScores retrieval_;
  CalibrationSteps steps_;
};

text::Value numbers(const double* values, size_t n) {
  std::vector<text::Value> items;
  items.reserve(n);
  for (size_t i = 0; i < n; ++i) items.push_back(std::isnan(values[i]) ? text::Value::none() : text::Value::floating(values[i]));
  return text::Value::list(std::move(items));
}

text::Value counts(const std::vector<uint32_t>& values) {
  std::vector<text::Value> items;
  for (const uint32_t x : values) items.push_back(text::Value::integer(x));
  return text::Value::list(std::move(items));
}

}  // namespace

Result<CalibrationResult> calibrate(const std::shared_ptr<LanguageModel>& model, Span<const Span<const int32_t>> texts,
                                    const CalibrationOptions& options) {
  return Calibrator::run(model, texts, options);
}

Result<std::string> write_steps(const CalibrationSteps& steps) {
  std::vector<text::Value> drift, overlap, windowed;
  for (uint32_t l = 0; l < steps.n_layers; ++l) {
    std::vector<text::Value> heads;
    for (uint32_t h = 0; h < steps.n_kv_heads; ++h)
      heads.push_back(numbers(&steps.drift[(size_t{l} * steps.n_kv_heads + h) * steps.n_steps], steps.n_steps));
    drift.push_back(text::Value::list(std::move(heads)));
    overlap.push_back(numbers(&steps.layer_overlap[size_t{l} * steps.n_layers], steps.n_layers));
    if (steps.windowed[l]) windowed.push_back(text::Value::integer(l));
  }
  text::Map map;
  map.set("n_steps", text::Value::integer(steps.n_steps));
  map.set("text_tokens", counts(steps.text_tokens));
  map.set("top_k", counts(steps.top_k));
  map.set("chance", text::Value::floating(steps.chance));
  map.set("drift", text::Value::list(std::move(drift)));
  map.set("layer_overlap", text::Value::list(std::move(overlap)));
  map.set("windowed_layers", text::Value::list(std::move(windowed)));
  return text::dump_json(text::Value::map(std::move(map)));
}

}  // namespace orrery::engine
