// key_weights and key_moments, on every instruction set and of every KV type, against softmax rows in double precision.
#include <gtest/gtest.h>

#include "tests/unit/cpu/keys_fixture.h"

namespace orrery::key_weights_test {
namespace {

using namespace orrery::testing;

class CpuKeyWeights : public ::testing::TestWithParam<std::string> {};

// ---- KeyOperations::key_weights ----

// (n_positions, group, n_keys), the softmax over the keys that the position sees.
std::vector<double> weights_of(const KeyStore& store, int32_t group, const KeyWeightsJob& job) {
  std::vector<double> out;
  const std::vector<float> keys = store.keys_of(job.layer, job.kv_head, job.n_keys);
  for (int32_t i = 0; i < job.n_positions; ++i)
    for (int32_t g = 0; g < group; ++g) {
      const int32_t n = std::min(job.n_keys, job.first_position + i + 1);
      std::vector<double> row = store.row(job.layer, n, job.first_position + i, job.kv_head * group + g, keys);
      row.resize(static_cast<size_t>(job.n_keys));
      out.insert(out.end(), row.begin(), row.end());
    }
  return out;
}

std::vector<std::vector<float>> run_weights(Rig& rig, const KeyStore& store, std::vector<KeyWeightsJob> jobs, int32_t group,
                                            bool products = false) {
  std::vector<std::unique_ptr<Guarded<float>>> out;
  for (KeyWeightsJob& job : jobs) {
    out.push_back(std::make_unique<Guarded<float>>(static_cast<size_t>(job.n_keys * (job.mean ? 1 : job.n_positions * group))));
    job.out = out.back()->data();
  }
  KeysShape shape = store.shape({});
  shape.products = products;
  rig->keys()->key_weights(jobs, shape);
  EXPECT_TRUE(rig->synchronize().ok());
  std::vector<std::vector<float>> found;
  for (const auto& o : out) found.emplace_back(o->data(), o->data() + o->size());
  return found;
}

KeyWeightsJob weights_job(const KeyStore& store, int32_t layer, int32_t head, int32_t n_keys, int32_t first, int32_t n, bool mean) {
  KeyWeightsJob job;
  static_cast<KeysJob&>(job) = store.job(layer, head, n_keys, first, n, 0, false);
  job.mean = mean;
  return job;
}

// The window's queries see ever more keys: at a tile's edges, within a tile, across two; rows and means, batches of several jobs.
TEST_P(CpuKeyWeights, WeightsAreCausalSoftmax) {
  for (const KvType type : kKvTypes)
    for (const int32_t group : {1, 4, 8, 70}) {
      const KvFormat format{type, 2, group == 70 ? 1 : 2, group == 8 ? 512 : 64};
      const int32_t last = format.n_kv_heads - 1;
      const KeyStore store(format, format.n_kv_heads * group, 1300, 32, static_cast<uint64_t>(group));
      std::vector<KeyWeightsJob> jobs;
      for (const bool mean : {false, true}) {
        jobs.push_back(weights_job(store, 0, 0, 1, 0, 1, mean));
        jobs.push_back(weights_job(store, 1, last, 140, 108, 32, mean));
        jobs.push_back(weights_job(store, 0, last, 65, 63, 2, mean));
        jobs.push_back(weights_job(store, 1, 0, 64, 61, 3, mean));
        jobs.push_back(weights_job(store, 1, 0, 30, 300, 12, mean));  // all in sight of all
        if (group == 4) jobs.push_back(weights_job(store, 0, last, 1300, 1283, 17, mean));
      }
      Rig rig(GetParam(), 2, store.limits(1300));
      const auto found = run_weights(rig, store, jobs, group);
      for (size_t j = 0; j < jobs.size(); ++j) {
        std::vector<double> expected = weights_of(store, group, jobs[j]);
        const size_t n = static_cast<size_t>(jobs[j].n_keys), n_rows = expected.size() / n;
        if (jobs[j].mean) {
          for (size_t i = n; i < expected.size(); ++i) expected[i % n] += expected[i];
          expected.resize(n);
          for (double& x : expected) x /= static_cast<double>(n_rows);
        }
        ASSERT_EQ(found[j].size(), expected.size());
        for (size_t i = 0; i < expected.size(); ++i) {
          if (expected[i] == 0) ASSERT_EQ(found[j][i], 0.0f) << "job " << j << " at " << i << ": behind the position";
          else ASSERT_NEAR(found[j][i], expected[i], 2 * kClose * expected[i] + 1e-30) << "job " << j << " at " << i;
        }
      }
    }
}

// Products of every key, whether the position sees it or not, and no more: what stands behind them is guarded.
TEST_P(CpuKeyWeights, ProductsInPlaceOfWeights) {
  for (const KvType type : kKvTypes)
    for (const bool bounds : {false, true}) {
      if (bounds && key_type(type) != value_type(type)) continue;  // bounds are K and V alike
      const KvFormat format{type, 2, 2, type == KvType::f16 ? 72 : 64};
      KeyStore store(format, 6, 1300, 32, 3);
      store.bounds = bounds;
      std::vector<float> both(2 * static_cast<size_t>(format.head_dim));  // K, and V below it
      Random random(4);
      for (int32_t i = 0; bounds && i < 4 * 1300; ++i) {
        for (size_t d = 0; d < both.size(); ++d) both[d] = random.normal() + (d < both.size() / 2 ? 4.0f : -4.0f);
        store.put(i % 2, i / 2 % 2, i / 4, both);
      }
      std::vector<float> damaged = store.key(1, 1, 70);
      damaged[5] = NAN;
      if (!bounds && (type == KvType::f32 || type == KvType::f16)) store.put(1, 1, 70, damaged);
      Rig rig(GetParam(), 2, store.limits(1300));
      const std::vector<KeyWeightsJob> jobs = {weights_job(store, 0, 0, 1, 0, 1, false), weights_job(store, 1, 1, 131, 60, 3, false),
                                               weights_job(store, 0, 1, 1300, 5, 12, false)};
      const auto found = run_weights(rig, store, jobs, 3, true);
      for (size_t j = 0; j < jobs.size(); ++j) {
        const float* at = found[j].data();
        const std::vector<float> keys = store.keys_of(jobs[j].layer, jobs[j].kv_head, jobs[j].n_keys);
        for (int32_t i = 0; i < 3 * jobs[j].n_positions; ++i)
          for (const double x :
               store.products(jobs[j].layer, jobs[j].n_keys, jobs[j].first_position + i / 3, jobs[j].kv_head * 3 + i % 3, keys)) {
            if (std::isnan(x)) ASSERT_EQ(*at++, -INFINITY) << "job " << j;
            else ASSERT_NEAR(*at++, x, bounds ? 2e-4 : 2e-5) << "job " << j;
          }
      }
    }
}

TEST_P(CpuKeyWeights, ThreadsAndCompanyChangeNoWeights) {
  const KvFormat format{KvType::f16, 1, 2, 64};
  const KeyStore store(format, 6, 2100, 32, 5);
  const std::vector<KeyWeightsJob> jobs = {weights_job(store, 0, 1, 2100, 2068, 32, true), weights_job(store, 0, 0, 100, 90, 3, false),
                                           weights_job(store, 0, 0, 2100, 2080, 20, true), weights_job(store, 0, 1, 70, 65, 5, true)};
  std::vector<std::vector<float>> first;
  for (const int32_t n_threads : {1, 2, 3}) {
    Rig rig(GetParam(), n_threads, store.limits(2100));
    auto found = run_weights(rig, store, jobs, 3);
    if (first.empty()) first = found;
    for (size_t j = 0; j < jobs.size(); ++j) {
      ASSERT_EQ(std::memcmp(found[j].data(), first[j].data(), found[j].size() * sizeof(float)), 0) << n_threads << " threads, job " << j;
      const auto alone = run_weights(rig, store, {jobs[j]}, 3)[0];
      ASSERT_EQ(std::memcmp(alone.data(), first[j].data(), alone.size() * sizeof(float)), 0) << "job " << j << " alone";
    }
  }
}

// ---- KeyOperations::key_moments ----

struct Measured {
  std::vector<float> scores;  // (group, n_measured)
  double entropy = 0, variance = 0;
};
std::vector<Measured> run_moments(Rig& rig, const KeyStore& store, std::vector<KeyMomentsJob> jobs, int32_t group) {
  std::vector<Measured> found(jobs.size());
  std::vector<std::unique_ptr<Guarded<float>>> out;
  for (size_t j = 0; j < jobs.size(); ++j) {
    out.push_back(std::make_unique<Guarded<float>>(static_cast<size_t>(group * jobs[j].n_measured)));
    jobs[j].out = out.back()->data();
    jobs[j].entropy = &found[j].entropy, jobs[j].variance = &found[j].variance;
  }
  rig->keys()->key_moments(jobs, store.shape({}));
  EXPECT_TRUE(rig->synchronize().ok());
  for (size_t j = 0; j < jobs.size(); ++j) found[j].scores.assign(out[j]->data(), out[j]->data() + out[j]->size());
  return found;
}

KeyMomentsJob moments_job(const KeyStore& store, int32_t layer, int32_t head, int32_t n_keys, int32_t n_positions, int32_t n_measured,
                          double gamma) {
  KeyMomentsJob job;
  static_cast<KeysJob&>(job) = store.job(layer, head, n_keys, n_keys - n_positions, n_positions, 0, false);
  job.n_measured = n_measured;
  job.gamma = gamma;
  return job;
}

// Against the definitions: windows that end at a tile's edge and within one, are one query, or as many as fit; several of a group's heads
// at once, or each alone; more keys than one thread takes.
TEST_P(CpuKeyWeights, MomentsOverAWindow) {
  for (const KvType type : kKvTypes)
    for (const int32_t group : {1, 4, 70}) {
      const KvFormat format{type, 2, group == 70 ? 1 : 2, 64};
      const int32_t last = format.n_kv_heads - 1;
      const KeyStore store(format, format.n_kv_heads * group, 2500, 64, static_cast<uint64_t>(group));
      std::vector<KeyMomentsJob> jobs = {moments_job(store, 1, last, 140, 32, 108, 200), moments_job(store, 0, 0, 65, 1, 64, 200),
                                         moments_job(store, 1, 0, 128, 64, 64, 0), moments_job(store, 0, last, 3, 2, 1, 1)};
      if (group == 4)
        jobs.push_back(moments_job(store, 0, last, 2500, 32, 2468, 200)), jobs.push_back(moments_job(store, 1, 0, 1100, 20, 1100, 3));
      Rig rig(GetParam(), 2, store.limits(2500));
      ASSERT_TRUE(rig->info().makes_moments);
      const auto found = run_moments(rig, store, jobs, group);
      for (size_t j = 0; j < jobs.size(); ++j) {
        const KeyMomentsJob& job = jobs[j];
        KeyWeightsJob asked;
        static_cast<KeysJob&>(asked) = job;
        const std::vector<double> rows = weights_of(store, group, asked);
        double entropy = 0, variances = 0;
        for (int32_t g = 0; g < group; ++g)
          for (int32_t key = 0; key < job.n_measured; ++key) {
            double mean = 0, variance = 0;
            const auto at = [&](int32_t i) { return rows[static_cast<size_t>((i * group + g) * job.n_keys + key)]; };
            for (int32_t i = 0; i < job.n_positions; ++i) {
              mean += at(i) / job.n_positions;
              entropy -= at(i) > 0 ? at(i) * std::log(at(i)) : 0;
            }
            for (int32_t i = 0; i < job.n_positions; ++i) variance += (at(i) - mean) * (at(i) - mean) / std::max(job.n_positions - 1, 1);
            variances += variance;
            const double score = mean + job.gamma * variance;
            ASSERT_NEAR(found[j].scores[static_cast<size_t>(g * job.n_measured + key)], score, 4 * kClose * score)
                << "job " << j << ", " << g << ", " << key;
          }
        ASSERT_NEAR(found[j].entropy, entropy, kClose * entropy + 1e-6) << "job " << j;
        ASSERT_NEAR(found[j].variance, variances, 4 * kClose * variances) << "job " << j;
      }
    }
}

// A damaged key weighs nothing, and where all are there is nothing to measure.
TEST_P(CpuKeyWeights, MomentsOfDamagedKeys) {
  const KvFormat format{KvType::f32, 1, 1, 64};
  KeyStore store(format, 2, 200, 32, 5);
  std::vector<float> damaged = store.key(0, 0, 70);
  damaged[5] = NAN;
  store.put(0, 0, 70, damaged);
  Rig rig(GetParam(), 2, store.limits(200));
  const Measured one = run_moments(rig, store, {moments_job(store, 0, 0, 200, 16, 184, 200)}, 2)[0];
  EXPECT_EQ(one.scores[70], 0.0f);
  EXPECT_GT(one.scores[71], 0.0f);
  EXPECT_TRUE(one.entropy > 0 && one.variance > 0 && std::isfinite(one.entropy) && std::isfinite(one.variance));
  for (int32_t t = 0; t < 200; ++t) store.put(0, 0, t, damaged);
  const Measured none = run_moments(rig, store, {moments_job(store, 0, 0, 200, 16, 184, 200)}, 2)[0];
  EXPECT_EQ(none.scores, std::vector<float>(2 * 184));
  EXPECT_EQ(none.entropy, 0.0);
  EXPECT_EQ(none.variance, 0.0);
}

TEST_P(CpuKeyWeights, ThreadsAndCompanyChangeNoMoments) {
  const KvFormat format{KvType::f16, 1, 2, 64};
  const KeyStore store(format, 6, 2100, 32, 5);
  const std::vector<KeyMomentsJob> jobs = {moments_job(store, 0, 1, 2100, 32, 2068, 200), moments_job(store, 0, 0, 100, 3, 97, 200)};
  std::vector<Measured> first;
  for (const int32_t n_threads : {1, 2, 3}) {
    Rig rig(GetParam(), n_threads, store.limits(2100));
    auto found = run_moments(rig, store, jobs, 3);
    if (first.empty()) first = found;
    for (size_t j = 0; j < jobs.size(); ++j)
      for (const Measured& again : {found[j], run_moments(rig, store, {jobs[j]}, 3)[0]}) {
        ASSERT_EQ(again.scores, first[j].scores) << n_threads << " threads, job " << j;
        ASSERT_EQ(again.entropy, first[j].entropy);
        ASSERT_EQ(again.variance, first[j].variance);
      }
  }
}

INSTANTIATE_TEST_SUITE_P(Paths, CpuKeyWeights, ::testing::ValuesIn(paths()), PathName());

}  // namespace
}  // namespace orrery::key_weights_test
