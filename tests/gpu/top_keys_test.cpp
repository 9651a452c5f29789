// Tests the best keys by the last queries, and their weights and moments (cuda/kernels/top_keys.cu), and digests, against the CPU backend's
// plain kernels.
#include "tests/gpu/kv_pages.h"
#ifdef ORRERY_EMULATED
#include "tests/emulation/cuda/device.h"
#endif

namespace orrery::top_keys_test {
namespace {

using namespace testing;
using Pooling = KeyScoring::Pooling;

constexpr int32_t kKvHeads = 2, kGroup = 3, kLayers = 2, kRing = 12;

struct Job {
  int32_t layer, head, n_keys, first, n, k;
  bool by_score;
};

template <typename Asked>
void set_keys(const Job& j, const KvFormat& kv, const uint64_t* tiles, Asked* job) {
  job->layer = j.layer, job->kv_head = j.head, job->tiles = tiles;
  job->offset = kv.head_offset(j.layer, j.head);
  job->n_keys = j.n_keys, job->first_position = j.first, job->n_positions = j.n;
}

void set_shape(const KvFormat& kv, const Buffer<float>& ring, KeysShape* shape) {
  shape->kv = kv;
  shape->n_heads = kKvHeads * kGroup;
  shape->scale = 1.0f / std::sqrt(static_cast<float>(kv.head_dim));
  shape->queries = {ring.ptr(), kRing};
}

// The keys that each job found. With `among`: the number of found keys that are in it.
std::vector<std::vector<uint32_t>> found(Machine* m, KvType type, int32_t dim, const std::vector<Job>& jobs, const KeyScoring& scoring,
                                         bool equal_keys = false, const std::vector<std::vector<uint32_t>>* among = nullptr,
                                         int32_t most_keys = 1200) {
  const KvFormat kv = kv_format(type, kLayers, kKvHeads, dim);
  const Pages pages(m, kv, most_keys, 11);
  const Pages one(m, kv, kPageTokens, 12);
  const std::vector<uint64_t> same(static_cast<size_t>(most_keys / kPageTokens + 2), one.addresses()[0]);
  Buffer<float> ring(m, normal_values(static_cast<size_t>(kLayers * kRing * kKvHeads * kGroup * dim), 13));
  std::vector<std::vector<uint32_t>> out;
  std::vector<TopKeysJob> asked;
  for (const Job& j : jobs) {
    out.emplace_back(among ? 2 : static_cast<size_t>(j.n * j.k) + 1, 12345u);
    TopKeysJob job;
    set_keys(j, kv, equal_keys ? same.data() : pages.addresses(), &job);
    job.k = j.k, job.by_score = j.by_score;
    asked.push_back(job);
  }
  for (size_t i = 0; i < jobs.size(); ++i) {
    if (among) asked[i].among = (*among)[i], asked[i].n_common = out[i].data();
    else asked[i].out = out[i].data();
  }
  TopKeysShape shape;
  set_shape(kv, ring, &shape);
  shape.scoring = scoring;
  (*m)->keys()->top_keys(asked, shape);
  EXPECT_TRUE((*m)->synchronize().ok());
  for (std::vector<uint32_t>& o : out) {
    EXPECT_EQ(o.back(), 12345u) << "written behind";
    o.pop_back();
  }
  return out;
}

StepLimits limits(int32_t dim, int32_t most_keys = 1200) {
  StepLimits l;
  l.max_rows = 1;
  l.max_context = most_keys + 80;
  l.n_heads = kKvHeads * kGroup, l.n_kv_heads = kKvHeads, l.head_dim = dim;
  l.max_in = 256;
  l.max_top_keys = most_keys;
  return l;
}

void expect_as_plain(KvType type, int32_t dim, const std::vector<Job>& jobs, const KeyScoring& scoring, bool equal_keys = false,
                     int32_t most_keys = 1200) {
  SCOPED_TRACE(std::string(kv_type_name(type)) + " of " + std::to_string(dim));
  const auto [expected, got] =
      on_both(limits(dim, most_keys), [&](Machine* m) { return found(m, type, dim, jobs, scoring, equal_keys, nullptr, most_keys); });
  for (size_t i = 0; i < jobs.size(); ++i) EXPECT_EQ(got[i], expected[i]) << "job " << i;
}

const std::vector<Job> kJobs = {{0, 1, 300, 5, 2, 40, false},
                                {1, 0, 65, 11, 3, 65, true},
                                {1, 1, 64, 20, 1, 1, true},
                                {0, 0, 1, 3, 1, 1, false},
                                {1, 1, 1200, 6, 1, 100, true}};

TEST(GpuTopKeys, EveryTypeAndHeadSize) {
  for (const KvType type : kKvTypes)
    for (const int32_t dim : {32, 80, 256, 512})
      if (stores(type, dim)) expect_as_plain(type, dim, {{1, 1, 200, 8, 1, 20, true}, {0, 0, 70, 9, 1, 11, false}}, {});
}

TEST(GpuTopKeys, SeveralJobs) { expect_as_plain(KvType::f16, 64, kJobs, {}); }

TEST(GpuTopKeys, MoreQueriesThanABatch) {
  expect_as_plain(KvType::q8_0, 32, {{0, 0, 100, 0, 3, 7, false}, {1, 1, 130, 0, 12, 9, true}}, {});
}

// All heads of a step are one launch where their keys are few, and as few launches as the scratch memory allows where they are many.
TEST(GpuTopKeys, ManyHeadsAreFewLaunches) {
  for (const auto& [n_keys, n_launches] : {std::pair{130, 1}, std::pair{1190, 3}}) {
    std::vector<Job> jobs;
    for (int32_t i = 0; i < 24; ++i) jobs.push_back({i % kLayers, i / 2 % kKvHeads, n_keys - i, i % kRing, 1, 5 + i, i % 3 == 0});
#ifdef ORRERY_EMULATED
    const uint64_t before = emulated::launches_of("select_keys_kernel");
#endif
    expect_as_plain(KvType::f16, 32, jobs, {});
#ifdef ORRERY_EMULATED
    EXPECT_EQ(emulated::launches_of("select_keys_kernel") - before, static_cast<uint64_t>(n_launches));
#else
    (void)n_launches;
#endif
  }
}

TEST(GpuTopKeys, EveryScoring) {
  for (const bool max_of_group : {false, true})
    for (const Pooling pooling : {Pooling::avg, Pooling::max})
      for (const int32_t width : {1, 5, 63}) {
        SCOPED_TRACE(width);
        // Pooled maxima of neighbours are equal, so rounding would decide the order by score. Ascending order does not depend on rounding.
        expect_as_plain(KvType::f16, 32, {{0, 1, 250, 4, 2, 30, false}}, {max_of_group, pooling, width});
      }
}

// Of keys with equal scores, the lower ones are chosen, in any tiles.
TEST(GpuTopKeys, TiesGoToTheLowerKeys) {
  const std::vector<Job> jobs = {{0, 0, 1200, 2, 1, 30, true}, {0, 0, 1200, 2, 1, 30, false}};
  expect_as_plain(KvType::f16, 64, jobs, {}, true);
  Machine m(true, limits(64));
  const std::vector<uint32_t> keys = found(&m, KvType::f16, 64, jobs, {}, true)[0];
  for (size_t i = 0; i + 1 < 18; ++i) EXPECT_EQ(keys[i + 1], keys[i] + kPageTokens);  // 19 tiles of the same keys
}

// Many thread blocks select among more than 4096 keys, for all queries of a launch: also among few keys, and none.
constexpr int32_t kManyKeys = 6200;
const std::vector<Job> kManyJobs = {{0, 1, kManyKeys, 5, 2, 2500, false}, {1, 0, 4097, 3, 1, 4097, false},
                                    {1, 1, 65, 20, 1, 65, false},         {0, 0, 1, 3, 1, 1, false},
                                    {1, 1, 6144, 6, 1, 1, true},          {0, 0, 6145, 7, 1, 300, true}};

TEST(GpuTopKeys, ByManyBlocks) {
#ifdef ORRERY_EMULATED
  const uint64_t before = emulated::launches_of("write_taken_kernel");
#endif
  for (const bool equal_keys : {false, true}) expect_as_plain(KvType::f16, 32, kManyJobs, {}, equal_keys, kManyKeys);
  for (const Job& job : kManyJobs)
    if (!job.by_score) expect_as_plain(KvType::f16, 32, {job}, {}, false, kManyKeys);
#ifdef ORRERY_EMULATED
  EXPECT_GT(emulated::launches_of("write_taken_kernel"), before);
#endif
}

TEST(GpuTopKeys, CountsWhatIsCommonByManyBlocks) {
  const std::vector<Job> jobs = {{0, 0, kManyKeys, 2, 1, 1300, false}, {1, 1, 70, 3, 1, 70, false}, {0, 1, 5000, 4, 1, 0, false}};
  Machine m(true, limits(32, kManyKeys));
  const auto best = found(&m, KvType::f16, 32, jobs, {}, false, nullptr, kManyKeys);
  std::vector<std::vector<uint32_t>> among(jobs.size());
  for (size_t j = 0; j < jobs.size(); ++j)
    for (uint32_t key = 0; key < static_cast<uint32_t>(jobs[j].n_keys); key += 3) among[j].push_back(key);
  const auto counts = found(&m, KvType::f16, 32, jobs, {}, false, &among, kManyKeys);
  for (size_t j = 0; j < jobs.size(); ++j) {
    std::vector<uint32_t> common;
    std::set_intersection(best[j].begin(), best[j].end(), among[j].begin(), among[j].end(), std::back_inserter(common));
    EXPECT_EQ(counts[j][0], common.size()) << "job " << j;
  }
}

// ---- digest ----

// Digests of two heads, by three jobs, and the best of them.
std::pair<std::vector<std::byte>, std::vector<uint32_t>> digested(Machine* m, KvType type, int32_t dim, int32_t page_tokens,
                                                                  DigestKind kind, std::vector<float>* cosines) {
  const KvFormat kv = kv_format(type, kLayers, kKvHeads, dim), one = kv_format(KvType::f16, 1, 1, dim);
  const Pages pages(m, kv, 1200, 11), first(m, one, 1200 / page_tokens, 14), second(m, one, 1200 / page_tokens, 15);
  Buffer<float> ring(m, normal_values(static_cast<size_t>(kLayers * kRing * kKvHeads * kGroup * dim), 13));
  const int32_t n = 1200 / page_tokens;
  cosines->assign(static_cast<size_t>(n), 0.0f);
  const auto at = [&](int32_t layer, int32_t head) { return kv.head_offset(layer, head); };
  (*m)->summaries()->digest(
      std::vector<DigestJob>{{pages.addresses(), at(1, 0), 0, n / 4, first.addresses(), cosines->data()},
                             {pages.addresses(), at(0, 1), 0, n, second.addresses()},
                             {pages.addresses(), at(1, 0), n / 4, n - n / 4, first.addresses(), cosines->data() + n / 4}},
      {kv, page_tokens, kind});
  const std::vector<float> at_once = *cosines;
  std::vector<uint32_t> best(static_cast<size_t>(2 * (n / 3)));
  TopKeysJob job;
  set_keys({1, 0, n, 4, 2, n / 3, false}, kv, first.addresses(), &job);
  job.offset = 0, job.k = n / 3, job.out = best.data();
  TopKeysShape shape;
  set_shape(kv_format(KvType::f16, kLayers, kKvHeads, dim), ring, &shape);
  shape.bounds = kind != DigestKind::mean, shape.keys_alone = !shape.bounds;
  (*m)->keys()->top_keys({&job, 1}, shape);
  EXPECT_TRUE((*m)->synchronize().ok());
  EXPECT_EQ(*cosines, at_once) << "cosines that come after digest() has returned";
  std::vector<std::byte> bytes = first.bytes();
  for (const std::byte b : second.bytes()) bytes.push_back(b);
  return {bytes, best};
}

// Each type, head size and kind meets pages of both sizes.
TEST(GpuTopKeys, DigestsAndTheBestOfThem) {
  int32_t n = 0;
  for (const KvType type : kKvTypes)
    for (const int32_t dim : {32, 80, 256, 512})
      for (const DigestKind kind : {DigestKind::range, DigestKind::deviation, DigestKind::mean}) {
        const int32_t page_tokens = n++ % 2 == 0 ? 8 : 64;
        if (!stores(type, dim)) continue;
        SCOPED_TRACE(std::string(kv_type_name(type)) + " of " + std::to_string(dim) + ", pages of " + std::to_string(page_tokens));
        std::vector<float> cosines[2];
        const auto [expected, got] =
            on_both(limits(dim), [&](Machine* m) { return digested(m, type, dim, page_tokens, kind, &cosines[m->cuda()]); });
        expect_near(cosines[1], cosines[0], 1e-5);
        EXPECT_EQ(got.first, expected.first);
        EXPECT_EQ(got.second, expected.second);
      }
}

// The number of given keys among the best, for a job alone and beside other jobs; also with equal scores.
TEST(GpuTopKeys, CountsWhatIsCommon) {
  for (const bool equal_keys : {false, true}) {
    const std::vector<Job> jobs = {
        {0, 0, 1200, 2, 1, 300, false}, {1, 1, 70, 3, 1, 70, false}, {0, 1, 64, 4, 1, 0, false}, {1, 0, 900, 5, 1, 1, false}};
    Machine m(true, limits(64));
    const auto best = found(&m, KvType::f16, 64, jobs, {}, equal_keys);
    std::vector<std::vector<uint32_t>> among(jobs.size());
    for (size_t j = 0; j < jobs.size(); ++j)
      for (uint32_t key = 0; key < static_cast<uint32_t>(jobs[j].n_keys); ++key)
        if (key % 3 < 1 + j % 2) among[j].push_back(key);
    const auto counts = found(&m, KvType::f16, 64, jobs, {}, equal_keys, &among);
    for (size_t j = 0; j < jobs.size(); ++j) {
      std::vector<uint32_t> common;
      std::set_intersection(best[j].begin(), best[j].end(), among[j].begin(), among[j].end(), std::back_inserter(common));
      EXPECT_EQ(counts[j][0], common.size()) << "job " << j << ", equal keys " << equal_keys;
    }
  }
}

// ---- key_weights ----

const std::vector<Job> kWeightsJobs = {{0, 1, 300, 292, 8, 0, false}, {1, 0, 65, 62, 3, 0, false},      {1, 1, 64, 63, 1, 0, false},
                                       {0, 0, 1, 0, 1, 0, false},     {1, 1, 1200, 1188, 12, 0, false}, {0, 0, 70, 100, 12, 0, false}};

// For each job: the rows of weights, their mean, their sum added to `out`, or the products; also with strided queries.
enum class Of { rows, mean, sum, products };
std::vector<std::vector<float>> weights(Machine* m, KvType type, int32_t dim, Of of, const std::vector<Job>& jobs = kWeightsJobs,
                                        float times_scale = 1.0f) {
  const bool mean = of == Of::mean || of == Of::sum;
  const int32_t gap = of == Of::sum ? 20 : 0;
  const KvFormat kv = kv_format(type, kLayers, kKvHeads, dim);
  const Pages pages(m, kv, std::max(jobs[0].n_keys, 1200), 11);
  Buffer<float> ring(m, normal_values(static_cast<size_t>(kLayers * kRing * (kKvHeads * kGroup * dim + gap)), 13));
  std::vector<std::vector<float>> out;
  std::vector<KeyWeightsJob> asked;
  for (const Job& j : jobs) {
    KeyWeightsJob job;
    set_keys(j, kv, pages.addresses(), &job);
    job.mean = mean, job.add = of == Of::sum;
    out.emplace_back(static_cast<size_t>(j.n_keys * (mean ? 1 : j.n * kGroup)) + 1, job.add ? 1.5f : 12345.0f);
    out.back().back() = 12345.0f;
    asked.push_back(job);
  }
  for (size_t i = 0; i < asked.size(); ++i) asked[i].out = out[i].data();
  KeysShape shape;
  set_shape(kv, ring, &shape);
  shape.scale *= times_scale;
  shape.products = of == Of::products;
  if (of == Of::sum) shape.queries.stride = kKvHeads * kGroup * dim + gap, shape.queries.first = -5;
  (*m)->keys()->key_weights(asked, shape);
  EXPECT_TRUE((*m)->synchronize().ok());
  for (std::vector<float>& o : out) {
    EXPECT_EQ(o.back(), 12345.0f) << "written behind";
    o.pop_back();
  }
  return out;
}

// All of F16; each other type meets each head size and each result once.
TEST(GpuTopKeys, WeightsAndTheirMeans) {
  int32_t n = 0;
  for (const KvType type : {KvType::f16, KvType::q8_0, KvType::k8v4})
    for (const int32_t dim : {32, 128, 512})
      for (const Of of : {Of::rows, Of::mean, Of::sum}) {
        const int32_t i_type = n / 9, i_dim = n / 3 % 3, i_of = n % 3;
        ++n;
        if (i_type > 0 && i_of != (i_dim + i_type) % 3) continue;
        SCOPED_TRACE(std::string(kv_type_name(type)) + " of " + std::to_string(dim) +
                     (of == Of::rows   ? ", rows"
                      : of == Of::mean ? ", means"
                                       : ", sums"));
        const auto [expected, got] = on_both(limits(dim), [&](Machine* m) { return weights(m, type, dim, of); });
        for (size_t j = 0; j < expected.size(); ++j)
          for (size_t i = 0; i < expected[j].size(); ++i)  // keys behind the position are 0 in both
            ASSERT_NEAR(got[j][i], expected[j][i], 1e-4 * static_cast<double>(expected[j][i])) << "job " << j << " at " << i;
      }
}

// A tile's weights are relative to its largest product, whichever lane has that: otherwise they overflow.
TEST(GpuTopKeys, SteepWeights) {
  const std::vector<Job> jobs = {{0, 1, 300, 292, 8, 0, false}};
  const auto [expected, got] = on_both(limits(32), [&](Machine* m) { return weights(m, KvType::f16, 32, Of::rows, jobs, 200.0f); });
  for (size_t i = 0; i < expected[0].size(); ++i) ASSERT_NEAR(got[0][i], expected[0][i], 1e-3) << "at " << i;
}

// More tiles than half of a thread block has threads.
TEST(GpuTopKeys, WeightsOfManyTiles) {
  constexpr int32_t kKeys = 129 * kPageTokens + 1;
  StepLimits of = limits(32);
  of.max_context = 130 * kPageTokens, of.max_top_keys = kKeys;
  const std::vector<Job> jobs = {{0, 1, kKeys, kKeys - 1, 1, 0, false}};
  const auto [expected, got] = on_both(of, [&](Machine* m) { return weights(m, KvType::f16, 32, Of::rows, jobs); });
  for (size_t i = 0; i < expected[0].size(); ++i)
    ASSERT_NEAR(got[0][i], expected[0][i], 1e-4 * static_cast<double>(expected[0][i])) << "at " << i;
}

TEST(GpuTopKeys, ProductsInPlaceOfWeights) {
  for (const KvType type : kKvTypes) {
    const auto [expected, got] = on_both(limits(64), [&](Machine* m) { return weights(m, type, 64, Of::products); });
    for (size_t j = 0; j < expected.size(); ++j)
      for (size_t i = 0; i < expected[j].size(); ++i) ASSERT_NEAR(got[j][i], expected[j][i], 1e-5) << "job " << j << " at " << i;
  }
}

// ---- key_moments ----

// Windows of more than a batch, of a few positions, and of one; keys within a tile, and up to its end.
constexpr Job kMomentsJobs[] = {{1, 1, 1200, 1188, 12, 1188, false}, {0, 1, 300, 292, 8, 292, false},  {1, 0, 65, 64, 1, 64, false},
                                {0, 0, 3, 1, 2, 1, false},           {0, 0, 128, 116, 12, 128, false}, {1, 1, 257, 246, 11, 257, false}};

struct Moments {
  std::vector<std::vector<float>> scores;  // (kGroup, n_measured)
  std::vector<double> entropies, variances;
};
Moments moments(Machine* m, KvType type, int32_t dim, double gamma) {
  const KvFormat kv = kv_format(type, kLayers, kKvHeads, dim);
  const Pages pages(m, kv, 1200, 11);
  Buffer<float> ring(m, normal_values(static_cast<size_t>(kLayers * kRing * kKvHeads * kGroup * dim), 13));
  const size_t n_jobs = std::size(kMomentsJobs);
  Moments out;
  out.entropies.assign(n_jobs, 7), out.variances.assign(n_jobs, 7);
  std::vector<KeyMomentsJob> asked(n_jobs);
  for (size_t i = 0; i < n_jobs; ++i) {
    const Job& j = kMomentsJobs[i];
    set_keys(j, kv, pages.addresses(), &asked[i]);
    asked[i].n_measured = j.k, asked[i].gamma = gamma;
    asked[i].entropy = &out.entropies[i], asked[i].variance = &out.variances[i];
    out.scores.emplace_back(static_cast<size_t>(kGroup * j.k) + 1, 12345.0f);
  }
  for (size_t i = 0; i < n_jobs; ++i) asked[i].out = out.scores[i].data();
  KeysShape shape;
  set_shape(kv, ring, &shape);
  EXPECT_TRUE((*m)->info().makes_moments);
  (*m)->keys()->key_moments(asked, shape);
  EXPECT_TRUE((*m)->synchronize().ok());
  for (std::vector<float>& scores : out.scores) {
    EXPECT_EQ(scores.back(), 12345.0f) << "written behind";
    scores.pop_back();
  }
  return out;
}

TEST(GpuTopKeys, MomentsOverAWindow) {
  for (const KvType type : {KvType::f16, KvType::q8_0, KvType::k8v4})
    for (const int32_t dim : {32, 128})
      for (const double gamma : {0.0, 200.0}) {
        if (type != KvType::f16 && (gamma > 0) != ((type == KvType::q8_0) == (dim == 32))) continue;
        SCOPED_TRACE(std::string(kv_type_name(type)) + " of " + std::to_string(dim) + ", gamma " + std::to_string(gamma));
        const auto [expected, got] = on_both(limits(dim), [&](Machine* m) { return moments(m, type, dim, gamma); });
        for (size_t j = 0; j < expected.scores.size(); ++j) {
          for (size_t i = 0; i < expected.scores[j].size(); ++i)
            ASSERT_NEAR(got.scores[j][i], expected.scores[j][i], 1e-4 * static_cast<double>(expected.scores[j][i]))
                << "job " << j << " at " << i;
          EXPECT_NEAR(got.entropies[j], expected.entropies[j], 1e-5 * expected.entropies[j] + 1e-6) << "job " << j;
          EXPECT_NEAR(got.variances[j], expected.variances[j], 1e-4 * expected.variances[j]) << "job " << j;
        }
      }
}

#ifdef ORRERY_EMULATED
TEST(GpuTopKeys, MomentsOfThreadsInAnyOrder) {
  Machine m(true, limits(64));
  const Moments forwards = moments(&m, KvType::f16, 64, 3);
  emulated::set_reversed(true);
  const Moments backwards = moments(&m, KvType::f16, 64, 3);
  emulated::set_reversed(false);
  EXPECT_EQ(forwards.scores, backwards.scores);
  EXPECT_EQ(forwards.entropies, backwards.entropies);
}

TEST(GpuTopKeys, ThreadsRunInAnyOrder) {
  Machine m(true, limits(64));
  const auto forwards = found(&m, KvType::f16, 64, kJobs, {});
  emulated::set_reversed(true);
  const auto backwards = found(&m, KvType::f16, 64, kJobs, {});
  emulated::set_reversed(false);
  EXPECT_EQ(forwards, backwards);
}

TEST(GpuTopKeys, ManyBlocksInAnyOrder) {
  Machine m(true, limits(32, kManyKeys));
  const auto forwards = found(&m, KvType::f16, 32, kManyJobs, {}, true, nullptr, kManyKeys);
  emulated::set_reversed(true);
  const auto backwards = found(&m, KvType::f16, 32, kManyJobs, {}, true, nullptr, kManyKeys);
  emulated::set_reversed(false);
  EXPECT_EQ(forwards, backwards);
}

TEST(GpuTopKeys, WeightsOfThreadsInAnyOrder) {
  Machine m(true, limits(64));
  const auto forwards = weights(&m, KvType::f16, 64, Of::mean);
  emulated::set_reversed(true);
  const auto backwards = weights(&m, KvType::f16, 64, Of::mean);
  emulated::set_reversed(false);
  EXPECT_EQ(forwards, backwards);
}
#endif

}  // namespace
}  // namespace orrery::top_keys_test
