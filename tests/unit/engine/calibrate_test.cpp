// Calibration against the test's own sets, which it asks of a session and counts with std::set; and sessions that use the profile.
#include "runtime/engine/session/calibrate.h"

#include <gtest/gtest.h>

#include <set>

#include "runtime/engine/session/retrieval.h"
#include "runtime/policy/heads/clusters.h"
#include "runtime/policy/select/sets.h"
#include "runtime/text/json/json.h"
#include "tests/support/engine_fixture.h"
#include "tests/support/random_blocks.h"
#include "tests/support/shared.h"

namespace orrery::calibrate_test {
namespace {

using namespace orrery::testing;
using engine::CalibrationOptions;
using engine::CalibrationResult;
using engine::Session;
using engine::SessionOptions;
using Texts = std::vector<std::vector<int32_t>>;

std::shared_ptr<engine::LanguageModel> open_demo(int32_t n_threads = 2) {
  return unwrap(engine::LanguageModel::open(unwrap(engine::Runtime::create(runtime_options(n_threads))),
                                            source_path("samples/models/demo-q8_0.gguf"), {}));
}

std::vector<int32_t> random_tokens(const engine::LanguageModel& model, size_t n, uint64_t seed) {
  Random random(seed);
  std::vector<int32_t> tokens(n);
  for (int32_t& t : tokens) t = static_cast<int32_t>(random.below(static_cast<uint64_t>(model.description().n_vocab)));
  return tokens;
}

CalibrationOptions quick(uint32_t n_steps = 7, uint32_t top_k = 20) {
  CalibrationOptions options;
  options.n_steps = n_steps;
  options.top_k = top_k;
  return options;
}

Result<CalibrationResult> try_calibrate(const std::shared_ptr<engine::LanguageModel>& model, const Texts& texts,
                                        const CalibrationOptions& options) {
  std::vector<Span<const int32_t>> spans(texts.begin(), texts.end());
  return engine::calibrate(model, spans, options);
}
CalibrationResult calibrate(const std::shared_ptr<engine::LanguageModel>& model, const Texts& texts, const CalibrationOptions& options) {
  return unwrap(try_calibrate(model, texts, options));
}

SessionOptions with_policy(const char* policy, double share, uint32_t n_context,
                           std::shared_ptr<const policy::HeadProfile> profile = nullptr) {
  SessionOptions o;
  o.n_context = n_context;
  o.policy = policy;
  o.kv_share = share;
  o.head_profile = std::move(profile);
  return o;
}

// ---- The oracle ----

using Sets = std::vector<std::set<uint32_t>>;  // (heads)

std::vector<Sets> sets_of_steps(const std::shared_ptr<engine::LanguageModel>& model, const std::vector<int32_t>& text, uint32_t n_steps,
                                uint32_t k, const policy::ScoreRule& rule) {
  const uint32_t n = static_cast<uint32_t>(text.size());
  const uint32_t n_heads = static_cast<uint32_t>(model->description().n_layers * model->description().kv().n_kv_heads);
  // Calibrates itself, and at a whole budget attends to everything, as the profile's session does.
  const auto session = unwrap(Session::open(model, with_policy("heterocache", 1.0, n + n_steps)));
  unwrap(session->prefill(text, nullptr, nullptr));
  std::vector<Sets> steps;
  for (uint32_t step = 0; step <= n_steps; ++step) {
    if (step > 0) greedy(session.get(), 1);
    Sets sets(n_heads);
    for (uint32_t head = 0; head < n_heads; ++head) {
      std::vector<uint32_t> best(k);
      const policy::KeyQuery query{head, n - 1 + step, 1, n, k, true, best.data()};
      unwrap(session->sequence().top_keys({&query, 1}, rule));
      sets[head] = {best.begin(), best.end()};
      EXPECT_EQ(sets[head].size(), k);
    }
    steps.push_back(std::move(sets));
  }
  return steps;
}

double overlap(const std::set<uint32_t>& a, const std::set<uint32_t>& b) {
  size_t n = 0;
  for (const uint32_t x : a) n += b.count(x);
  return static_cast<double>(n) / static_cast<double>(a.size());
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

class EngineCalibrate : public ::testing::TestWithParam<const char*> {};

TEST_P(EngineCalibrate, NumbersAreThoseOfTheSets) {
  const auto model = std::string(GetParam()) == "demo" ? open_demo() : open_spec(GetParam());
  const Texts texts = {random_tokens(*model, 90, 1), random_tokens(*model, 61, 2)};
  const uint32_t n_steps = 6;
  const CalibrationResult found = calibrate(model, texts, quick(n_steps, 20));
  EXPECT_EQ(found.steps.top_k, (std::vector<uint32_t>{20, 15}));  // a quarter of the second text
  EXPECT_EQ(found.profile.top_k, 15u);
  EXPECT_DOUBLE_EQ(found.steps.chance, (20.0 / 90 + 15.0 / 61) / 2);

  const size_t n_layers = static_cast<size_t>(model->description().n_layers);
  const size_t n_kv_heads = static_cast<size_t>(model->description().kv().n_kv_heads);
  std::vector<std::vector<Sets>> star, sync;  // [text][step][head]
  for (size_t i = 0; i < 2; ++i) {
    const uint32_t k = found.steps.top_k[i];
    star.push_back(sets_of_steps(model, texts[i], n_steps, k, {policy::GroupReduce::mean, policy::Pooling::avg, 5}));
    sync.push_back(sets_of_steps(model, texts[i], n_steps, k, {policy::GroupReduce::max, policy::Pooling::none, 1}));
  }
  const auto over_texts = [&](const auto& sets, size_t step_a, size_t a, size_t step_b, size_t b) {
    return (overlap(sets[0][step_a][a], sets[0][step_b][b]) + overlap(sets[1][step_a][a], sets[1][step_b][b])) / 2;
  };
  for (size_t l = 0; l < n_layers; ++l) {
    const policy::ProfileLayer& layer = found.profile.layers[l];
    for (size_t h = 0; h < n_kv_heads; ++h) {
      const size_t head = l * n_kv_heads + h;
      std::vector<double> series;
      for (size_t t = 1; t <= n_steps; ++t) series.push_back(over_texts(star, t, head, 0, head));
      for (size_t t = 0; t < n_steps; ++t)
        EXPECT_NEAR(found.steps.drift[head * n_steps + t], series[t], 1e-12) << "head " << head << ", step " << t + 1;
      EXPECT_NEAR(layer.stability[h], median(series), 1e-12) << head;
      for (size_t j = 0; j < n_kv_heads; ++j) {
        if (j == h) continue;
        std::vector<double> pair;
        double sum = 0;
        for (size_t t = 1; t <= n_steps; ++t) {
          pair.push_back(over_texts(star, t, head, t, l * n_kv_heads + j));
          sum += over_texts(sync, t, head, t, l * n_kv_heads + j);
        }
        EXPECT_NEAR(layer.similarity[h * n_kv_heads + j], median(pair), 1e-12) << head << " and " << j;
        EXPECT_NEAR(layer.mean_similarity[h * n_kv_heads + j], sum / n_steps, 1e-12) << head << " and " << j;
      }
    }
    for (size_t m = 0; m < n_layers; ++m) {
      double sum = 0;
      size_t n = 0;
      for (size_t i = 0; i < 2; ++i)
        for (size_t t = 0; t <= n_steps; ++t)
          for (const auto& [from, to] : {std::pair<size_t, size_t>{l, m}, {m, l}})
            for (size_t a = 0; a < n_kv_heads; ++a) {
              double best = -1;
              for (size_t b = 0; b < n_kv_heads; ++b)
                if (from != to || a != b)
                  best = std::max(best, overlap(star[i][t][from * n_kv_heads + a], star[i][t][to * n_kv_heads + b]));
              sum += best;
              ++n;
            }
      const double value = found.steps.layer_overlap[l * n_layers + m];
      if (l == m && n_kv_heads == 1) {
        EXPECT_TRUE(std::isnan(value));
      } else {
        EXPECT_NEAR(value, sum / static_cast<double>(n), 1e-12) << l << " and " << m;
      }
    }
    EXPECT_EQ(found.steps.windowed[l] != 0, model->description().layers[l].attention.window > 0);
    const policy::LayerRoles roles = unwrap(policy::classify({layer.stability, layer.similarity}, {.5, .5}));
    EXPECT_EQ(layer.roles.roles, roles.roles);
    const auto clusters = unwrap(policy::cluster_heads(layer.mean_similarity, static_cast<uint32_t>(n_kv_heads), n_kv_heads >= 8 ? 2 : 1));
    EXPECT_EQ(layer.clusters.cluster_of, clusters.cluster_of);
  }
  EXPECT_TRUE(std::equal(found.profile.model.begin(), found.profile.model.end(), model->weights().fingerprint));
}

INSTANTIATE_TEST_SUITE_P(Models, EngineCalibrate, ::testing::Values("demo", "qwen3", "phi3-window"), [](const auto& tested) {
  std::string name = tested.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

// ---- Heads that retrieve ----

// The scores of the profile, by their definition: token by token, of each query head the weights of the keys whose token is the
// query's, and of the keys behind these; means over all queries whose token has occurred, and the largest of a KV head's query heads.
TEST(EngineCalibrateDemo, RetrievalIsAttentionOnRepeatedTokens) {
  for (const char* name : {"demo", "qwen3"}) {
    const auto model = name == std::string("demo") ? open_demo() : open_spec(name);
    const auto& h = model->description();
    const engine::RepeatedTokens repeated = unwrap(engine::RepeatedTokens::make(*model));
    const std::vector<int32_t>& tokens = repeated.tokens;
    ASSERT_EQ(tokens.size(), repeated.first + 4 * repeated.n_distinct);
    const std::set<int32_t> distinct(tokens.begin() + repeated.first, tokens.end());
    EXPECT_EQ(distinct.size(), repeated.n_distinct);
    for (const int32_t id : distinct) EXPECT_FALSE(model->tokenizer().is_special(id)) << id;
    const auto n = static_cast<uint32_t>(tokens.size()), group = static_cast<uint32_t>(h.kv().n_heads / h.kv().n_kv_heads);
    const auto n_heads = static_cast<uint32_t>(h.n_layers * h.kv().n_kv_heads);
    const auto session = unwrap(Session::open(model, with_policy("heterocache", 1.0, n)));
    std::vector<double> induction(size_t{n_heads} * group), echo(induction.size());
    std::vector<float> weights(size_t{group} * n);
    double n_asked = 0;
    for (uint32_t t = 0; t < n; ++t) {
      unwrap(session->prefill({&tokens[t], 1}, nullptr, nullptr));
      std::vector<uint32_t> same;
      for (uint32_t e = repeated.first; e < t; ++e)
        if (tokens[e] == tokens[t]) same.push_back(e);
      if (t < repeated.first || same.empty()) continue;
      ++n_asked;
      for (uint32_t head = 0; head < n_heads; ++head) {
        const policy::WeightsQuery query{head, t, 1, t + 1, false, weights.data()};
        unwrap(session->sequence().key_weights({&query, 1}));
        for (uint32_t g = 0; g < group; ++g)
          for (const uint32_t e : same) {
            echo[head * group + g] += static_cast<double>(weights[g * (t + 1) + e]);
            induction[head * group + g] += static_cast<double>(weights[g * (t + 1) + e + 1]);
          }
      }
    }
    const CalibrationResult found = calibrate(model, {random_tokens(*model, 40, 9)}, quick());
    EXPECT_TRUE(found.profile.has_retrieval());
    for (uint32_t head = 0; head < n_heads; ++head) {
      const policy::ProfileLayer& layer = found.profile.layers[head / static_cast<uint32_t>(h.kv().n_kv_heads)];
      const auto largest = [&](const std::vector<double>& sums) {
        return *std::max_element(sums.begin() + head * group, sums.begin() + (head + 1) * group) / n_asked;
      };
      EXPECT_NEAR(layer.induction[head % static_cast<uint32_t>(h.kv().n_kv_heads)], largest(induction), 1e-6) << name << ", head " << head;
      EXPECT_NEAR(layer.echo[head % static_cast<uint32_t>(h.kv().n_kv_heads)], largest(echo), 1e-6) << name << ", head " << head;
    }
  }
}

// Sessions without a profile are refused before they take memory; with one, and where all heads are alike, they open.
TEST(EngineCalibrateDemo, StaticHeadsNeedAProfile) {
  const auto model = open_demo();
  const auto profile = std::make_shared<policy::HeadProfile>(calibrate(model, {random_tokens(*model, 64, 8)}, quick()).profile);
  const uint64_t used = model->runtime().arena().used();
  for (const char* policy : {"duoattention", "razorattention"}) {
    auto refused = Session::open(model, with_policy(policy, .5, 512));
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.status().code(), Code::invalid_argument);
    EXPECT_NE(std::string(refused.status().message()).find("head profile"), std::string::npos) << refused.status().message();
    EXPECT_EQ(model->runtime().arena().used(), used);
    EXPECT_TRUE(Session::open(model, with_policy(policy, 1.0, 512)).ok());
    EXPECT_TRUE(Session::open(model, with_policy(policy, .5, 512, profile)).ok());
  }
}

// ---- What calibration promises ----

TEST(EngineCalibrateDemo, ThreadsDoNotShow) {
  std::string profile, steps;
  for (const int32_t n_threads : {1, 2}) {
    const auto model = open_demo(n_threads);
    const CalibrationResult found = calibrate(model, {random_tokens(*model, 400, 3)}, quick(10, 64));
    const std::string p = unwrap(write_profile(found.profile)), s = unwrap(engine::write_steps(found.steps));
    if (profile.empty()) profile = p, steps = s;
    EXPECT_EQ(p, profile);
    EXPECT_EQ(s, steps);
  }
  const text::Value json = unwrap(text::parse_json(steps));
  EXPECT_EQ(json.find("n_steps")->as_int(), 10);
}

TEST(EngineCalibrateDemo, ThresholdsMeetAShare) {
  const auto model = open_demo();
  const Texts texts = {random_tokens(*model, 200, 4)};
  CalibrationOptions options = quick();
  options.thresholds = {.9, .95};
  const policy::RoleCounts before = calibrate(model, texts, options).profile.counts();
  options.full_share = .5;
  const policy::HeadProfile after = calibrate(model, texts, options).profile;
  EXPECT_GT(before.full(), before.all() / 2);
  EXPECT_LE(after.counts().full(), after.counts().all() / 2);
  EXPECT_EQ(after.tau_drift, after.thresholds.tau_stable);
  options.full_share = 1e-9;  // no thresholds leave none
  const auto refused = try_calibrate(model, texts, options);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(std::string(refused.status().message()).find("the fewest are"), std::string::npos);
}

TEST(EngineCalibrateDemo, RefusesWhatItCannotRead) {
  const auto model = open_demo();
  const auto code = [&](const Texts& texts, const CalibrationOptions& options) {
    return try_calibrate(model, texts, options).take_status().code();
  };
  const Texts good = {random_tokens(*model, 32, 5)};
  EXPECT_EQ(code({}, quick()), Code::invalid_argument);
  EXPECT_EQ(code({std::vector<int32_t>(15, 1)}, quick()), Code::invalid_argument);
  EXPECT_EQ(code({std::vector<int32_t>(16, -1)}, quick()), Code::invalid_argument);
  EXPECT_EQ(code(good, quick(0)), Code::invalid_argument);
  EXPECT_EQ(code(good, quick(5, 0)), Code::invalid_argument);
  CalibrationOptions options = quick();
  options.n_representatives = static_cast<uint32_t>(model->description().kv().n_kv_heads) + 1;
  EXPECT_EQ(code(good, options), Code::invalid_argument);
  options = quick();
  options.thresholds.tau_sim = 1.5;
  EXPECT_EQ(code(good, options), Code::invalid_argument);

  // Progress counts every token, and may end it anywhere; nothing stays behind.
  const uint64_t used = model->runtime().arena().used();
  const uint64_t n_repeated = unwrap(engine::RepeatedTokens::make(*model)).tokens.size();
  options = quick();
  uint64_t last = 0, calls = 0;
  options.progress = [&](uint64_t done, uint64_t total) {
    EXPECT_EQ(total, 32u + 7u + n_repeated);
    EXPECT_GE(done, last);
    last = done;
    ++calls;
    return true;
  };
  calibrate(model, good, options);
  EXPECT_EQ(last, 39u + n_repeated);
  for (uint64_t end = 1; end <= calls; ++end) {
    uint64_t at = 0;
    options.progress = [&](uint64_t, uint64_t) { return ++at < end; };
    EXPECT_EQ(code(good, options), Code::cancelled) << end;
  }
  EXPECT_LE(model->runtime().arena().used(), used + model->workspace_bytes());
}

// ---- Sessions that go by a profile ----

TEST(EngineCalibrateDemo, ASessionHasTheProfilesRoles) {
  const auto model = open_demo();
  CalibrationOptions options = quick(20, 128);
  options.full_share = .25;
  const auto text = random_tokens(*model, 600, 6);
  auto profile = std::make_shared<policy::HeadProfile>(calibrate(model, {text}, options).profile);
  const policy::RoleCounts counts = profile->counts();
  for (const char* name : {"heterocache", "synckv"}) {
    const auto session = unwrap(Session::open(model, with_policy(name, .6, 1024, profile)));
    unwrap(session->prefill(text, nullptr, nullptr));
    greedy(session.get(), 20);
    const policy::RoleCounts held = session->resident()->report().roles;
    if (std::string(name) == "synckv") continue;
    EXPECT_EQ(held.anchor, counts.anchor);
    EXPECT_EQ(held.volatile_heads, counts.volatile_heads);
    EXPECT_EQ(held.pivot, counts.pivot);
    EXPECT_EQ(held.satellite, counts.satellite);
    const uint32_t n_kv_heads = static_cast<uint32_t>(model->description().kv().n_kv_heads);
    for (uint32_t l = 0; l < profile->layers.size(); ++l)
      for (uint32_t h = 0; h < n_kv_heads; ++h)
        EXPECT_EQ(session->resident()->store().length(l * n_kv_heads + h) == 620, is_full(profile->layers[l].roles.roles[h]))
            << l << ", " << h;
  }
  // Another model's fingerprint is refused; none fits any model of the shape.
  profile->model[3] ^= 1;
  auto refused = Session::open(model, with_policy("heterocache", .6, 1024, profile));
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(std::string(refused.status().message()).find("fingerprint"), std::string::npos);
  profile->has_model = false;
  EXPECT_TRUE(Session::open(model, with_policy("heterocache", .6, 1024, profile)).ok());
  profile->layers.pop_back();
  for (const char* name : {"heterocache", "streaming", "full"})
    EXPECT_FALSE(Session::open(model, with_policy(name, 1.0, 1024, profile)).ok()) << name;
}

TEST(EngineCalibrateDemo, AWholeBudgetIsFullAttentionWhateverTheProfile) {
  const auto model = open_demo();
  const auto prompt = random_tokens(*model, 150, 7);
  const auto full = open_session(model, 256, KvType::f16);
  unwrap(full->prefill(prompt, nullptr, nullptr));
  std::vector<float> expected;
  greedy(full.get(), 60, &expected);
  CalibrationOptions options = quick();
  for (const double tau : {0.0, .3, 1.0}) {  // 1: every head is full, for want of companions and stability
    options.thresholds = {tau, tau};
    options.n_representatives = tau == 1.0 ? static_cast<uint32_t>(model->description().kv().n_kv_heads) : 0;
    const auto profile = std::make_shared<policy::HeadProfile>(calibrate(model, {prompt}, options).profile);
    for (const char* name : {"heterocache", "synckv"}) {
      const auto session = unwrap(Session::open(model, with_policy(name, 1.0, 256, profile)));
      unwrap(session->prefill(prompt, nullptr, nullptr));
      std::vector<float> found;
      greedy(session.get(), 60, &found);
      EXPECT_TRUE(same_bits(expected, found)) << name << " " << tau;
    }
  }
}

}  // namespace
}  // namespace orrery::calibrate_test
