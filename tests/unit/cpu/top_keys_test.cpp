// top_keys and the ring of queries, on every instruction set and of every KV type.
//
// The oracle scores the stored keys in double precision, row by row, pooling first. Scores are floats in the kernels, so a
// choice may differ where two scores agree to 1e-5; select_top itself is held to a sorted list, exactly.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "runtime/cpu/top_keys.h"
#include "tests/support/bf16.h"
#include "tests/unit/cpu/keys_fixture.h"

namespace orrery::top_keys_test {
namespace {

using namespace orrery::testing;
using Keys = std::vector<uint32_t>;

// ---- select_top ----

Keys sorted_out(const std::vector<float>& scores, size_t k, bool by_score) {
  const auto value = [&](uint32_t i) { return scores[i] > 0 ? scores[i] : 0.0f; };  // NaN and less count as 0
  Keys order(scores.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return value(a) > value(b); });
  order.resize(k);
  if (!by_score) std::sort(order.begin(), order.end());
  return order;
}

Keys selected(const std::vector<float>& scores, size_t k, bool by_score, const cpu::Kernels& kernels) {
  const Guarded<float> in(scores.size());
  std::copy(scores.begin(), scores.end(), in.data());
  const Guarded<uint32_t> candidates(scores.size());
  const Guarded<uint32_t> out(k);
  cpu::select_top(in.data(), static_cast<int64_t>(scores.size()), static_cast<int64_t>(k), by_score, candidates.data(), out.data(),
                  kernels);
  return Keys(out.data(), out.data() + k);
}

class CpuSelectTop : public ::testing::TestWithParam<std::string> {};

TEST_P(CpuSelectTop, IsTheHeadOfTheSortedList) {
  const cpu::Kernels& kernels = *cpu::find_kernels(GetParam()).value();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const char* kinds[] = {"spread", "ties", "zeros", "equal", "denormal", "anything", "one bin", "neighbours"};
  for (const int length : {1, 2, 15, 64, 1000, 3001, 12007}) {
    const size_t n = static_cast<size_t>(length);
    for (int kind = 0; kind < 8; ++kind) {
      Random random(static_cast<uint64_t>(kind) * 100 + n);
      std::vector<float> scores(n);
      for (float& x : scores) {
        const float u = random.uniform();
        switch (kind) {
          case 0: x = std::exp(-40 * u); break;
          case 1: x = static_cast<float>(random.below(5)) / 8; break;
          case 2: x = random.below(20) == 0 ? u : 0.0f; break;
          case 3: x = 0.25f; break;
          case 4: x = static_cast<float>(random.below(50)) * 1e-45f; break;
          case 5: {
            const float strange[] = {kNan, -u, -0.0f, 0.0f, INFINITY, -INFINITY, 1e-40f, u, 1.0f, -kNan, 3e38f};
            x = strange[random.below(11)];
            break;
          }
          case 6: x = 1 + u / 16; break;
          default: x = std::nextafter(0.5f, random.below(2) ? 1.0f : 0.0f);  // on both sides of a bin's edge
        }
      }
      std::vector<size_t> sizes = {0, 1, 2, n / 3, n / 2, n - 1};
      if (n <= 64) sizes.resize(n), std::iota(sizes.begin(), sizes.end(), size_t{0});  // every edge of a bin
      sizes.push_back(n);
      for (const size_t k : sizes)
        for (const bool by_score : {false, true}) {
          ASSERT_EQ(selected(scores, k, by_score, kernels), sorted_out(scores, k, by_score))
              << kinds[kind] << ", " << k << " of " << n << ", by score " << by_score;
        }
    }
  }
}

// Where keys stand in the list decides, also among equal ones.
TEST_P(CpuSelectTop, CountsWhatTheHeadOfTheListHasInCommon) {
  const cpu::Kernels& kernels = *cpu::find_kernels(GetParam()).value();
  for (const int length : {1, 2, 64, 1000, 12000})
    for (const uint32_t n_values : {2u, 7u, 100000u}) {
      const size_t n = static_cast<size_t>(length);
      Random random(n + n_values);
      std::vector<float> scores(n);
      for (float& x : scores) x = static_cast<float>(random.below(n_values)) / 8;
      for (const size_t k : {size_t{0}, size_t{1}, n / 3, n - 1, n}) {
        const Keys best = sorted_out(scores, k, false);
        for (const uint32_t share : {1u, 2u, 9u}) {  // of all keys one in so many
          Keys among;
          for (uint32_t i = 0; i < n; ++i)
            if (random.below(share) == 0) among.push_back(i);
          Keys common;
          std::set_intersection(best.begin(), best.end(), among.begin(), among.end(), std::back_inserter(common));
          const Guarded<uint32_t> candidates(n);
          ASSERT_EQ(cpu::count_top(scores.data(), static_cast<int64_t>(n), static_cast<int64_t>(k), among, candidates.data(), kernels),
                    common.size())
              << k << " of " << n << ", " << among.size() << " among";
        }
      }
    }
}

// The keys whose score reaches a bound: as many as there are, at most k, at least one.
TEST_P(CpuSelectTop, KeysThatReachABoundAreSelected) {
  const cpu::Kernels& kernels = *cpu::find_kernels(GetParam()).value();
  for (const int64_t n : {1, 7, 64, 1000, 20000}) {
    std::vector<float> scores(static_cast<size_t>(n));
    Random random(static_cast<uint64_t>(n));
    for (float& x : scores) x = std::fabs(random.normal());
    if (n > 10) scores[3] = std::numeric_limits<float>::quiet_NaN(), scores[5] = scores[6];
    for (const float least : {0.0f, .5f, 1.0f, scores[0], 3.0f, 100.0f})
      for (const int64_t k : {int64_t{1}, (n + 7) / 8, (n + 1) / 2, n}) {
        std::vector<uint32_t> wanted, by_score, out(static_cast<size_t>(k), 7777), candidates(static_cast<size_t>(n));
        for (int64_t i = 0; i < n; ++i) by_score.push_back(static_cast<uint32_t>(i));
        const auto value = [&](uint32_t i) { return std::isnan(scores[i]) ? 0.0f : scores[i]; };
        std::stable_sort(by_score.begin(), by_score.end(), [&](uint32_t a, uint32_t b) { return value(a) > value(b); });
        for (const uint32_t i : by_score)
          if (static_cast<int64_t>(wanted.size()) < k && (wanted.empty() || value(i) >= least)) wanted.push_back(i);
        std::sort(wanted.begin(), wanted.end());
        std::vector<float> moved = scores;
        const int64_t found = cpu::select_reaching(moved.data(), n, k, least, candidates.data(), out.data(), kernels);
        out.resize(static_cast<size_t>(found));
        ASSERT_EQ(out, wanted) << n << " scores, k " << k << ", at least " << least;
      }
  }
}

INSTANTIATE_TEST_SUITE_P(Paths, CpuSelectTop, ::testing::ValuesIn(paths()), PathName());

// ---- KeyOperations::top_keys ----

std::vector<Keys> run(Rig& rig, const KeyStore& store, std::vector<TopKeysJob> jobs, const KeyScoring& scoring) {
  std::vector<std::unique_ptr<Guarded<uint32_t>>> out;
  for (TopKeysJob& job : jobs) {
    out.push_back(std::make_unique<Guarded<uint32_t>>(static_cast<size_t>(job.n_positions * job.k)));
    job.out = out.back()->data();
  }
  rig->keys()->top_keys(jobs, store.shape(scoring));
  EXPECT_TRUE(rig->synchronize().ok());
  std::vector<Keys> found;
  for (const auto& o : out) found.emplace_back(o->data(), o->data() + o->size());
  return found;
}

// The k best up to scores that lie closer together than `close` of themselves.
void check(const uint32_t* found, const TopKeysJob& job, const std::vector<double>& scores, const std::string& what,
           double close = kClose) {
  const size_t k = static_cast<size_t>(job.k);
  std::vector<bool> in(scores.size());
  for (size_t i = 0; i < k; ++i) {
    ASSERT_LT(found[i], scores.size()) << what;
    ASSERT_FALSE(in[found[i]]) << what << ": twice " << found[i];
    in[found[i]] = true;
    if (i == 0) continue;
    if (job.by_score) ASSERT_GE(scores[found[i - 1]], scores[found[i]] * (1 - close)) << what << ": order at " << i;
    else ASSERT_LT(found[i - 1], found[i]) << what;
  }
  if (k == 0) return;
  std::vector<double> sorted = scores;
  std::nth_element(sorted.begin(), sorted.begin() + static_cast<ptrdiff_t>(k - 1), sorted.end(), std::greater<>());
  const double last = sorted[k - 1];
  for (size_t i = 0; i < scores.size(); ++i) {
    if (in[i]) ASSERT_GE(scores[i], last * (1 - close)) << what << ": key " << i << " is none of the best";
    else ASSERT_LE(scores[i], last * (1 + close)) << what << ": key " << i << " is missing";
  }
}

std::string describe(const KvFormat& f, int32_t group, const KeyScoring& s, const TopKeysJob& j) {
  return "type " + std::to_string(static_cast<int>(f.type)) + ", dim " + std::to_string(f.head_dim) + ", group " + std::to_string(group) +
         (s.max_of_group ? ", max" : ", mean") + " pooling " + std::to_string(static_cast<int>(s.pooling)) + " over " +
         std::to_string(s.pool_width) + ", " + std::to_string(j.k) + " of " + std::to_string(j.n_keys) + " keys";
}

// Runs jobs and checks every one of their sets.
void run_and_check(const std::string& path, const KvFormat& format, int32_t n_heads, const KeyStore& store,
                   const std::vector<TopKeysJob>& jobs, const KeyScoring& scoring) {
  int32_t most = 0;
  for (const TopKeysJob& job : jobs) most = std::max(most, job.n_keys);
  Rig rig(path, 2, store.limits(most));
  const std::vector<Keys> found = run(rig, store, jobs, scoring);
  for (size_t j = 0; j < jobs.size(); ++j)
    for (int32_t i = 0; i < jobs[j].n_positions; ++i) {
      check(found[j].data() + i * jobs[j].k, jobs[j], store.scores(jobs[j], jobs[j].first_position + i, scoring),
            describe(format, n_heads / format.n_kv_heads, scoring, jobs[j]));
      if (::testing::Test::HasFatalFailure()) return;
    }
}

std::vector<KeyScoring> scorings() {
  std::vector<KeyScoring> all;
  for (const bool max : {false, true}) {
    all.push_back({max, Pooling::none, 1});
    for (const int32_t width : {1, 5, 7})
      for (const Pooling pooling : {Pooling::avg, Pooling::max}) all.push_back({max, pooling, width});
  }
  return all;
}

class CpuTopKeys : public ::testing::TestWithParam<std::string> {};

TEST_P(CpuTopKeys, EveryTypeShapeAndGroup) {
  for (const KvType type : kKvTypes)
    for (const int32_t dim : {32, 64, 80, 128, 512}) {
      if (!stores(type, dim)) continue;
      for (const int32_t group : {1, 2, 4, 8, 16, 70}) {
        if (dim == 512 && group > 8) continue;
        const KvFormat format{type, 1, group == 70 ? 1 : 2, dim};
        const int32_t n_heads = format.n_kv_heads * group, n = group <= 4 ? 300 : 130, last = format.n_kv_heads - 1;
        const KeyStore store(format, n_heads, n, 6, static_cast<uint64_t>(dim + group));
        // Two positions on either side of the ring's seam.
        run_and_check(GetParam(), format, n_heads, store, {store.job(0, last, n, 5, 2, n / 4, false), store.job(0, 0, 65, 5, 1, 20, true)},
                      {(dim / 16 + group) % 2 == 1, group % 4 == 0 ? Pooling::avg : Pooling::none, 5});
        if (HasFatalFailure()) return;
      }
    }
}

TEST_P(CpuTopKeys, EveryScoringAndLength) {
  const KvFormat format{KvType::f16, 1, 1, 64};
  const KeyStore store(format, 2, 5000, 4, 11);
  for (const KeyScoring& scoring : scorings())
    for (const int32_t n : {1, 5, 63, 64, 65, 1000, 5000}) {
      if (n == 5000 && scoring.pool_width == 7) continue;
      run_and_check(GetParam(), format, 2, store,
                    {store.job(0, 0, n, 9, 1, (n + 2) / 3, false), store.job(0, 0, n, 10, 1, std::min(n, 64), true)}, scoring);
      if (HasFatalFailure()) return;
    }
}

// Positions around the ring, more queries than a batch, and none or all of the keys.
TEST_P(CpuTopKeys, ManyPositionsAndTheEndsOfK) {
  const KvFormat format{KvType::q8_0, 2, 2, 64};
  const KeyStore store(format, 8, 200, 16, 12);
  for (const int32_t first : {0, 15, 37})
    run_and_check(
        GetParam(), format, 8, store,
        {store.job(1, 1, 200, first, 16, 50, false), store.job(0, 0, 3, first, 1, 0, false), store.job(1, 0, 70, first + 3, 11, 70, true),
         store.job(0, 1, 70, first, 0, 7, true), store.job(0, 1, 130, first + 1, 2, 130, false)},
        {false, Pooling::avg, 5});
}

TEST_P(CpuTopKeys, ThreadsAndCompanyChangeNothing) {
  for (const KvType type : {KvType::f16, KvType::q4_0, KvType::k8v4}) {
    const KvFormat format{type, 3, 2, 64};
    const KeyStore store(format, 6, 2200, 8, 13);
    const std::vector<TopKeysJob> jobs = {store.job(0, 0, 2200, 3, 5, 700, true), store.job(1, 1, 1, 3, 5, 1, false),
                                          store.job(2, 0, 1025, 7, 3, 256, true), store.job(0, 1, 1024, 0, 8, 1000, false),
                                          store.job(2, 1, 63, 6, 1, 7, true),     store.job(1, 0, 2199, 10, 4, 1, false)};
    for (const KeyScoring& scoring : {KeyScoring{false, Pooling::avg, 5}, KeyScoring{true, Pooling::none, 1}}) {
      std::vector<Keys> first;
      for (const int32_t n_threads : {1, 2, 4}) {
        Rig rig(GetParam(), n_threads, store.limits(2200));
        const std::vector<Keys> together = run(rig, store, jobs, scoring);
        if (first.empty()) first = together;
        ASSERT_EQ(together, first) << n_threads << " threads";
        for (size_t j = 0; j < jobs.size(); ++j) {
          ASSERT_EQ(run(rig, store, {jobs[j]}, scoring)[0], first[j]) << "job " << j << " alone";
          // And each query alone, in scratch that is just large enough.
          Rig tight(GetParam(), n_threads, store.limits(jobs[j].n_keys));
          TopKeysJob one = jobs[j];
          one.first_position += one.n_positions - 1;
          one.n_positions = 1;
          ASSERT_EQ(run(tight, store, {one}, scoring)[0], Keys(first[j].end() - jobs[j].k, first[j].end())) << "job " << j;
        }
      }
    }
  }
}

// A decode step leaves the weights of the heads that ask for them, and nothing beside them; they do in place of the query.
TEST_P(CpuTopKeys, WeightsThatAttentionHasLeft) {
  for (const KvType type : kKvTypes)
    for (const auto& [dim, group] :
         std::vector<std::pair<int32_t, int32_t>>{{64, 1}, {64, 3}, {64, 4}, {64, 8}, {64, 18}, {512, 1}, {512, 2}, {512, 4}, {512, 8}})
      for (const int32_t n : {1, 64, 130, 700}) {
        if (dim == 512 && n != 130) continue;
        const KvFormat format{type, 1, 3, dim};
        const int32_t n_heads = 3 * group, tile_end = div_up(n, kPageTokens) * kPageTokens, stride = tile_end + kPageTokens;
        const int32_t n_tiles = stride / kPageTokens;  // one more than there are
        const KeyStore store(format, n_heads, n, 1, static_cast<uint64_t>(n + group));
        Rig rig(GetParam(), 2, {1, 1024, n_heads, 3, dim, 64, n});
        // Slots of a head lie in tiles of its own; the middle head's weights are not wanted.
        std::vector<std::vector<uint64_t>> tiles(3);
        std::vector<std::unique_ptr<Guarded<float>>> rows;
        std::vector<HeadView> views;
        for (uint32_t h = 0; h < 3; ++h) {
          for (int32_t i = 0; i < store.n_pages(); ++i) tiles[h].push_back(store.pages()[i] + h * format.head_bytes());
          rows.push_back(std::make_unique<Guarded<float>>(align_up(ExportedWeights::bytes(group, stride), 64) / sizeof(float)));
          views.push_back({tiles[h].data(), n, 0});
          if (h != 1) views[h].exported = {rows[h]->ptr(), stride};
        }
        const std::vector<float> untouched(rows[1]->data(), rows[1]->data() + rows[1]->size());
        Guarded<float> out(static_cast<size_t>(n_heads * dim));
        const Row row{0, n - 1, 0};
        const KvView view{store.pages(), store.n_pages()};
        Step step;
        step.phase = Phase::decode;
        step.rows = {&row, 1};
        step.sequences = {&view, 1};
        step.kv = step.heads_kv = format;
        step.heads = views;
        rig->begin_step(step);
        rig->attend(0, {reinterpret_cast<uintptr_t>(store.query(0, 0))}, out.ptr(),
                    {n_heads, n_heads * dim, n_heads * dim, store.scale(), 0});
        rig->end_step();
        EXPECT_EQ(std::memcmp(rows[1]->data(), untouched.data(), untouched.size() * sizeof(float)), 0);
        for (const int32_t h : {0, 2}) {
          double moved = 0;  // a score, as a number of e's powers
          const std::vector<float> keys = store.keys_of(0, h, n);
          for (int32_t g = 0; g < group; ++g) {
            const float* q = store.query(0, 0) + (h * group + g) * dim;
            const float* data = rows[static_cast<size_t>(h)]->data();
            const float* got = data + g * stride;
            const float* units = data + group * stride + g * n_tiles;
            const float* sums = units + group * n_tiles;
            for (int32_t t = 0; t < n; ++t) {
              const float* key = keys.data() + t * dim;
              double dot = 0;
              for (size_t i = 0; i < static_cast<size_t>(dim); ++i) dot += static_cast<double>(q[i]) * key[i];
              const float unit = units[t / kPageTokens];
              ASSERT_EQ(unit, std::nearbyint(unit));
              const double error = word_error(GetParam(), type, q, key, static_cast<size_t>(dim)) * store.scale();
              moved = std::max(moved, error);
              ASSERT_NEAR(std::log2(got[t]) + unit, dot * store.scale() * 1.4426950408889634, 1e-4 + error * 1.4426950408889634)
                  << "type " << static_cast<int>(type);
            }
            for (int32_t t = n; t < tile_end; ++t) ASSERT_EQ(got[t], 0.0f);
            for (int32_t tile = 0; tile < n_tiles - 1; ++tile) {
              const double sum = std::accumulate(got + tile * kPageTokens, got + (tile + 1) * kPageTokens, 0.0);
              ASSERT_NEAR(sums[tile], sum, 1e-5 * sum);
            }
            ASSERT_EQ(std::memcmp(units + n_tiles - 1, untouched.data(), sizeof(float)), 0);
            ASSERT_EQ(std::memcmp(sums + n_tiles - 1, untouched.data(), sizeof(float)), 0);
            // A tile's end is theirs, what is behind it is not.
            ASSERT_EQ(std::memcmp(got + tile_end, untouched.data(), kPageTokens * sizeof(float)), 0);
          }
          // Of the softmax of all keys, and of the first ones only.
          for (const int32_t n_keys : {n, n - n / 5}) {
            TopKeysJob job = store.job(0, h, n_keys, 12345, 1, (n_keys + 2) / 3, n % 4 == 0);  // of that position nothing is known
            job.exported = views[static_cast<size_t>(h)].exported;
            for (const KeyScoring& scoring : {KeyScoring{group == 3, Pooling::avg, 5}, KeyScoring{group == 8, Pooling::none, 1}}) {
              const Keys found = run(rig, store, {job}, scoring)[0];
              check(found.data(), job, store.scores(job, 0, scoring), describe(format, group, scoring, job),
                    kClose + 2 * std::expm1(2 * moved));
            }
          }
          if (HasFatalFailure()) return;
        }
      }
}

// ---- KvSummaries::digest, and top_keys over what it has written ----

// Digests of a head's whole pages, in a store of their own, by two jobs.
void write_digests(Rig& rig, const KvFormat& format, const KeyStore& keys, int32_t head, int32_t page_tokens, int32_t n_pages,
                   DigestKind kind, const KeyStore& digests, float* cosines = nullptr) {
  const TopKeysJob where = keys.job(0, head, 0, 0, 0, 0, false);
  for (const int32_t first : {0, n_pages / 3}) {
    const DigestJob job{
        where.tiles, where.offset, first, first == 0 ? n_pages / 3 : n_pages - first, digests.pages(), cosines ? cosines + first : nullptr};
    rig->summaries()->digest({&job, 1}, {format, page_tokens, kind});
  }
  EXPECT_TRUE(rig->synchronize().ok());
}

TEST_P(CpuTopKeys, DigestsAreWhatKeysLieBetween) {
  for (const KvType type : kKvTypes)
    for (const int32_t dim : {32, 80, 256, 512})
      for (const int32_t page_tokens : {4, 32, 64})
        for (const bool deviation : {false, true}) {
          if (!stores(type, dim)) continue;
          const KvFormat format{type, 1, 2, dim}, one{KvType::f16, 1, 1, dim};
          const int32_t n_pages = 350 / page_tokens;
          const KeyStore store(format, 2, 350, 1, static_cast<uint64_t>(dim));
          KeyStore digests(one, 1, n_pages, 1, 18);
          Rig rig(GetParam(), 2, store.limits(350));
          write_digests(rig, format, store, 1, page_tokens, n_pages, deviation ? DigestKind::deviation : DigestKind::range, digests);
          for (int32_t page = 0; page < n_pages; ++page) {
            const std::vector<float> high = digests.key(0, 0, page), low = digests.value(0, 0, page);
            std::vector<std::vector<float>> keys;
            for (int32_t t = 0; t < page_tokens; ++t) keys.push_back(store.key(0, 1, page * page_tokens + t));
            for (size_t i = 0; i < static_cast<size_t>(dim); ++i) {
              double least = INFINITY, most = -INFINITY, off = 0;
              for (const std::vector<float>& key : keys) least = std::min<double>(least, key[i]), most = std::max<double>(most, key[i]);
              const double middle = (least + most) / 2;
              for (const std::vector<float>& key : keys) off += std::fabs(key[i] - middle) / page_tokens;
              if (deviation) least = middle - off, most = middle + off;
              // Outwards, by less than a half's step; where the keys are halves, not at all.
              const double slack = deviation ? 1e-6 : 0, step = deviation || type != KvType::f16 ? 2e-3 : 0;
              ASSERT_GE(high[i], most - slack) << page << ", " << i;
              ASSERT_LE(high[i], most + step * std::fabs(most) + 1e-7 + slack);
              ASSERT_LE(low[i], least + slack) << page << ", " << i;
              ASSERT_GE(low[i], least - step * std::fabs(least) - 1e-7 - slack);
            }
          }
        }
}

TEST_P(CpuTopKeys, BestPagesByTheirBounds) {
  for (const int32_t dim : {32, 80, 128})
    for (const int32_t group : {1, 4, 9}) {
      const KvFormat format{KvType::f16, 1, 1, dim};
      const KeyStore store(format, group, 1200, 1, static_cast<uint64_t>(dim));
      KeyStore digests(format, group, 150, 6, 19);
      Rig rig(GetParam(), 2, store.limits(1200));
      write_digests(rig, format, store, 0, 8, 150, DigestKind::range, digests);
      digests.bounds = true;
      run_and_check(GetParam(), format, group, digests, {digests.job(0, 0, 150, 4, 3, 40, false), digests.job(0, 0, 65, 5, 1, 20, true)},
                    {group == 4, Pooling::none, 1});
      // No key's product is above its page's bound.
      for (int32_t t = 0; t < 1200; ++t)
        for (int32_t g = 0; g < group; ++g) {
          const float* q = digests.query(0, 2) + g * dim;
          const std::vector<float> key = store.key(0, 0, t), high = digests.key(0, 0, t / 8), low = digests.value(0, 0, t / 8);
          double product = 0, bound = 0;
          for (size_t i = 0; i < key.size(); ++i) {
            const double x = q[i];
            product += x * key[i], bound += std::max(x * high[i], x * low[i]);
          }
          ASSERT_LE(product, bound);
        }
      if (HasFatalFailure()) return;
    }
}

// Means stand one behind the other, without V: the store's first half of slots, looked at as keys alone.
float mean_at(const KeyStore& digests, int32_t dim, int32_t page, size_t i) {
  const auto* halves = reinterpret_cast<const uint16_t*>(digests.pages()[page / kPageTokens]) + page % kPageTokens * dim;
  float value;
  gguf::dequantize_row(TensorType::f16, reinterpret_cast<const std::byte*>(halves + i), &value, 1);
  return value;
}

TEST_P(CpuTopKeys, MeansAndHowNearKeysAreToThem) {
  for (const KvType type : kKvTypes)
    for (const int32_t dim : {16, 32, 80, 256, 512})
      for (const int32_t page_tokens : {4, 8, 64}) {
        if (!stores(type, dim)) continue;
        const KvFormat format{type, 1, 2, dim}, one{KvType::f16, 1, 1, dim};
        const int32_t n_pages = 350 / page_tokens;
        KeyStore store(format, 2, 350, 1, 17);
        // Keys that are 0, and such as cancel out.
        std::vector<float> key(static_cast<size_t>(dim));
        for (int32_t t = 0; t < page_tokens; ++t) store.put(0, 1, t, key);
        for (int32_t t = 0; t < page_tokens; ++t) key[0] = t % 2 == 0 ? 1 : -1, store.put(0, 1, page_tokens + t, key);
        KeyStore digests(one, 1, n_pages, 1, 18);
        Rig rig(GetParam(), 2, store.limits(350));
        std::vector<float> cosines(static_cast<size_t>(n_pages), 5.0f);
        write_digests(rig, format, store, 1, page_tokens, n_pages, DigestKind::mean, digests, cosines.data());
        for (int32_t page = 0; page < n_pages; ++page) {
          std::vector<double> mean(static_cast<size_t>(dim));
          for (int32_t t = 0; t < page_tokens; ++t) {
            const std::vector<float> k = store.key(0, 1, page * page_tokens + t);
            for (size_t i = 0; i < mean.size(); ++i) mean[i] += static_cast<double>(k[i]) / page_tokens;
          }
          double least = 1;
          for (int32_t t = 0; t < page_tokens; ++t) {
            const std::vector<float> k = store.key(0, 1, page * page_tokens + t);
            double product = 0, squares = 0, mean_squares = 0;
            for (size_t i = 0; i < mean.size(); ++i) {
              const double x = k[i];
              product += x * mean[i], squares += x * x, mean_squares += mean[i] * mean[i];
            }
            least = std::min(least, squares * mean_squares > 1e-20 ? product / std::sqrt(squares * mean_squares) : 0);
          }
          ASSERT_NEAR(cosines[static_cast<size_t>(page)], least, 1e-5) << page;
          for (size_t i = 0; i < mean.size(); ++i)
            ASSERT_NEAR(mean_at(digests, dim, page, i), mean[i], 6e-4 * std::fabs(mean[i]) + 1e-6) << page << ", " << i;
        }
        ASSERT_EQ(cosines[0], 0.0f);
        ASSERT_EQ(cosines[1], 0.0f);
      }
}

// The best of means, as an oracle finds them; those that are no number are found last of all.
TEST_P(CpuTopKeys, TheBestOfMeansPassOverWhatIsNoNumber) {
  for (const int32_t dim : {32, 80}) {
    constexpr int32_t kPages = 150, kHidden = 40;
    const KvFormat format{KvType::f16, 1, 1, dim};
    KeyStore store(format, 2, kPages * 8, 6, 20), digests(format, 2, kPages, 6, 21);
    Rig rig(GetParam(), 2, store.limits(kPages));
    write_digests(rig, format, store, 0, 8, kPages, DigestKind::mean, digests);
    std::vector<bool> hidden(kPages);
    for (int32_t i = 0; i < kHidden; ++i) {
      const int32_t page = i * 37 % kPages;  // each once
      hidden[static_cast<size_t>(page)] = true;
      std::fill_n(reinterpret_cast<uint16_t*>(digests.pages()[page / kPageTokens]) + page % kPageTokens * dim, dim, uint16_t{0x7E00});
    }
    for (const int32_t k : {1, 20, kPages - kHidden}) {
      TopKeysJob job = digests.job(0, 0, kPages, 4, 1, k, false);
      const Guarded<uint32_t> out(static_cast<size_t>(k));
      job.out = out.data();
      TopKeysShape shape = digests.shape({true, Pooling::none, 1});
      shape.keys_alone = true;
      rig->keys()->top_keys({&job, 1}, shape);
      // Softmaxes of two heads over what is not hidden, their maximum.
      std::vector<double> scores(kPages);
      for (int32_t g = 0; g < 2; ++g) {
        const float* q = digests.query(0, 4) + g * dim;
        std::vector<double> y(kPages);
        double sum = 0;
        for (int32_t p = 0; p < kPages; ++p) {
          for (size_t i = 0; i < static_cast<size_t>(dim); ++i)
            y[static_cast<size_t>(p)] += static_cast<double>(q[i] * digests.scale()) * static_cast<double>(mean_at(digests, dim, p, i));
          if (!hidden[static_cast<size_t>(p)]) sum += std::exp(y[static_cast<size_t>(p)]);
        }
        for (size_t p = 0; p < y.size(); ++p)
          if (!hidden[p]) scores[p] = std::max(scores[p], std::exp(y[p]) / sum);
      }
      std::vector<double> sorted = scores;
      std::sort(sorted.begin(), sorted.end(), std::greater<>());
      ASSERT_TRUE(std::is_sorted(out.data(), out.data() + k));
      for (int32_t i = 0; i < k; ++i) {
        ASSERT_FALSE(hidden[out.data()[i]]) << out.data()[i];
        ASSERT_GE(scores[out.data()[i]], sorted[static_cast<size_t>(k) - 1] * (1 - 1e-4));
      }
    }
  }
}

// How many of some keys are among the best, by themselves and beside other jobs.
TEST_P(CpuTopKeys, CountsWhatIsCommon) {
  const KvFormat format{KvType::f16, 2, 2, 64};
  const KeyStore store(format, 6, 1200, 8, 19);
  for (const KeyScoring& scoring : {KeyScoring{false, Pooling::avg, 5}, KeyScoring{true, Pooling::max, 7}}) {  // maxima tie
    std::vector<TopKeysJob> jobs = {store.job(0, 0, 1200, 3, 1, 300, false), store.job(1, 1, 70, 4, 1, 70, false),
                                    store.job(0, 1, 64, 5, 1, 0, false), store.job(1, 0, 1100, 6, 1, 1, false)};
    Rig rig(GetParam(), 2, store.limits(1200));
    const std::vector<Keys> best = run(rig, store, jobs, scoring);
    std::vector<Keys> among(jobs.size());
    std::vector<uint32_t> counts(jobs.size(), 12345);
    for (size_t j = 0; j < jobs.size(); ++j) {
      for (uint32_t key = 0; key < static_cast<uint32_t>(jobs[j].n_keys); ++key)
        if (key % 3 < 1 + j % 2) among[j].push_back(key);
      jobs[j].among = among[j], jobs[j].n_common = &counts[j];
    }
    rig->keys()->top_keys(jobs, store.shape(scoring));
    for (size_t j = 0; j < jobs.size(); ++j) {
      Keys common;
      std::set_intersection(best[j].begin(), best[j].end(), among[j].begin(), among[j].end(), std::back_inserter(common));
      EXPECT_EQ(counts[j], common.size()) << "job " << j;
    }
  }
}

// Equal keys have equal scores, wherever they lie: the lower one wins.
TEST_P(CpuTopKeys, TiesGoToTheLowerKey) {
  for (const KvType type : kKvTypes) {
    const KvFormat format{type, 1, 1, 64};
    KeyStore store(format, 3, 150, 2, 14);
    Rig rig(GetParam(), 2, store.limits(150));
    for (int32_t t = 0; t < 150; t += 2) store.put(0, 0, t + 1, store.key(0, 0, t));
    const Keys found = run(rig, store, {store.job(0, 0, 150, 0, 1, 149, true)}, {false, Pooling::none, 1})[0];
    for (size_t i = 0; i + 1 < found.size(); i += 2) {
      ASSERT_EQ(found[i] % 2, 0u) << i;
      ASSERT_EQ(found[i + 1], found[i] + 1) << i;
    }
    for (int32_t t = 0; t < 150; ++t) store.put(0, 0, t, std::vector<float>(64, 0.5f));
    Keys lowest(100);
    std::iota(lowest.begin(), lowest.end(), 0u);
    for (const bool by_score : {false, true})
      for (const bool max : {false, true})
        EXPECT_EQ(run(rig, store, {store.job(0, 0, 150, 0, 1, 100, by_score)}, {max, Pooling::none, 1})[0], lowest);
  }
}

// Also where the tiles' best keys differ by orders of magnitude.
TEST_P(CpuTopKeys, TiesInDifferentTiles) {
  const KvFormat format{KvType::f32, 1, 1, 64};
  KeyStore store(format, 3, 192, 2, 17);
  Rig rig(GetParam(), 2, store.limits(192));
  for (int32_t t = 0; t < 60; ++t)
    for (const int32_t tile : {1, 2}) store.put(0, 0, tile * 64 + t, store.key(0, 0, t));
  for (int32_t t = 60; t < 64; ++t)
    for (const int32_t tile : {0, 1, 2}) {
      std::vector<float> key = store.key(0, 0, t);
      for (float& x : key) x *= static_cast<float>(1 + 6 * tile);
      store.put(0, 0, tile * 64 + t, key);
    }
  for (const bool max : {false, true}) {
    const Keys found = run(rig, store, {store.job(0, 0, 192, 0, 1, 192, true)}, {max, Pooling::none, 1})[0];
    std::vector<size_t> rank(192);
    for (size_t i = 0; i < found.size(); ++i) rank[found[i]] = i;
    for (size_t t = 0; t < 60; ++t) {
      ASSERT_EQ(rank[t + 64], rank[t] + 1) << t;
      ASSERT_EQ(rank[t + 128], rank[t] + 2) << t;
    }
  }
}

TEST_P(CpuTopKeys, NanRanksLowest) {
  const KvFormat format{KvType::f32, 1, 1, 64};
  KeyStore store(format, 2, 100, 2, 15);
  Rig rig(GetParam(), 1, store.limits(100));
  std::vector<float> spoilt(64, 1.0f);
  spoilt[17] = std::numeric_limits<float>::quiet_NaN();
  for (const int32_t bad : {0, 64, 99}) {
    const std::vector<float> sound = store.key(0, 0, bad);
    store.put(0, 0, bad, spoilt);
    for (const bool max : {false, true}) {
      Keys found = run(rig, store, {store.job(0, 0, 100, 0, 1, 100, true)}, {max, Pooling::none, 1})[0];
      EXPECT_EQ(found.back(), static_cast<uint32_t>(bad));
      std::sort(found.begin(), found.end());
      for (uint32_t i = 0; i < 100; ++i) EXPECT_EQ(found[i], i);
    }
    store.put(0, 0, bad, sound);
  }
  // Of a NaN query nothing is known: the first keys, and no other query is touched.
  const Keys before = run(rig, store, {store.job(0, 0, 100, 1, 1, 10, true)}, {false, Pooling::avg, 5})[0];
  store.query(0, 0)[3] = store.query(0, 0)[70] = std::numeric_limits<float>::quiet_NaN();
  const Keys found = run(rig, store, {store.job(0, 0, 100, 0, 2, 10, true)}, {false, Pooling::avg, 5})[0];
  for (uint32_t i = 0; i < 10; ++i) EXPECT_EQ(found[i], i);
  EXPECT_EQ(Keys(found.begin() + 10, found.end()), before);
}

// ---- The ring ----

TEST_P(CpuTopKeys, AttendKeepsExactlyItsQueries) {
  const KvFormat format{KvType::f16, 2, 2, 32};
  const int32_t n_heads = 6, n_ring = 8, width = n_heads * 32, stride = width + 5, n = 40;
  Guarded<std::byte> page(format.page_span());
  std::memset(page.data(), 0, page.size());
  const uint64_t address = page.ptr().address;
  const KvView view{&address, 1};
  Rig rig(GetParam(), 2, {n, n, n_heads, 2, 32, 64, 0});
  const Guarded<float> ring(static_cast<size_t>(2 * n_ring * width));
  std::vector<float> wanted(ring.data(), ring.data() + ring.size());  // all NaN: nothing there
  const auto attend = [&](Phase phase, int32_t first, int32_t count, int32_t layer, uint64_t seed) {
    std::vector<Row> rows;
    for (int32_t i = 0; i < count; ++i) rows.push_back({0, first + i, 0});
    const Guarded<float> q(static_cast<size_t>((count - 1) * stride + width)), out(static_cast<size_t>(count * width));
    fill_normal(q, seed);
    rig->begin_step({phase, rows, {&view, 1}, format, {}, {}, {ring.ptr(), n_ring}});
    rig->attend(layer, q.cptr(), out.ptr(), {n_heads, stride, width, 0.2f, 0});
    rig->end_step();
    EXPECT_TRUE(rig->synchronize().ok());
    for (int32_t i = 0; i < count; ++i)
      std::memcpy(&wanted[static_cast<size_t>((layer * n_ring + (first + i) % n_ring) * width)], q.data() + i * stride,
                  static_cast<size_t>(width) * sizeof(float));
    EXPECT_TRUE(same_bits(ring.data(), wanted.data(), wanted.size())) << first << " + " << count;
  };
  attend(Phase::prefill, 0, 3, 1, 1);   // fewer rows than the ring has
  attend(Phase::prefill, 3, 20, 1, 2);  // more: the last eight stay
  attend(Phase::prefill, 0, 8, 0, 3);   // the other layer, exactly full
  for (int32_t p = 23; p < n; ++p) attend(Phase::decode, p, 1, p % 2, static_cast<uint64_t>(p));
  // Without a ring nothing is kept.
  const std::vector<Row> rows = {{0, 5, 0}};
  const Guarded<float> q(static_cast<size_t>(width)), out(static_cast<size_t>(width));
  fill_normal(q, 9);
  rig->begin_step({Phase::decode, rows, {&view, 1}, format});
  rig->attend(0, q.cptr(), out.ptr(), {n_heads, width, width, 0.2f, 0});
  rig->end_step();
  EXPECT_TRUE(same_bits(ring.data(), wanted.data(), wanted.size()));
}

INSTANTIATE_TEST_SUITE_P(Paths, CpuTopKeys, ::testing::ValuesIn(paths()), PathName());

}  // namespace
}  // namespace orrery::top_keys_test
