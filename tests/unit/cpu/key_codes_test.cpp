// Key codes on every instruction set, against their definition in double precision: means, codes and factors, and the best keys by them. By
// hand: one key's codes, and a table's sums.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <tuple>

#include "runtime/backend/hadamard.h"
#include "runtime/base/half.h"
#include "tests/support/rounded_products.h"
#include "tests/unit/cpu/keys_fixture.h"

namespace orrery::key_codes_test {
namespace {

using namespace orrery::testing;
using Doubles = std::vector<double>;

// One head's codes in guarded memory, filled with garbage, and its mean.
struct Codes {
  KeyCodeFormat format;
  Guarded<std::byte> tiles;
  Guarded<float> mean;
  std::vector<uint64_t> addresses;
  Codes(int32_t bits, int32_t dim, int32_t n_tokens)
      : format{bits, dim}, tiles(format.head_bytes(static_cast<uint64_t>(n_tokens)) - format.mean_bytes()), mean(static_cast<size_t>(dim)) {
    std::fill(tiles.data(), tiles.data() + tiles.size(), std::byte{0xA5});
    for (uint64_t at = 0; at < tiles.size(); at += format.tile_bytes()) addresses.push_back(tiles.ptr().address + at);
  }
  KeyCodesJob job(const KeyStore& store, const KvFormat& kv, int32_t head) const {
    return {store.pages(), kv.head_offset(0, head), mean.ptr(), tiles.ptr()};
  }
  const std::byte* tile(int32_t key) const { return tiles.data() + static_cast<uint64_t>(key / kPageTokens) * format.tile_bytes(); }
  int32_t code(int32_t key, int32_t dim) const {
    const int32_t of_group = 4 / format.bits, at = key % kPageTokens, half = kPageTokens / 2;
    const auto both = static_cast<int32_t>(tile(key)[static_cast<size_t>(dim / of_group * half + at % half)]);
    return (both >> (at < half ? 0 : 4) >> dim % of_group * format.bits) & ((1 << format.bits) - 1);
  }
  double factor(int32_t key) const {
    return static_cast<double>(half_to_float(reinterpret_cast<const uint16_t*>(tile(key) + format.factors_offset())[key % kPageTokens]));
  }
  // The key that the codes stand for, rotated and centred, in units of its factor.
  Doubles levels(int32_t key) const {
    Doubles out;
    for (int32_t i = 0; i < format.head_dim; ++i) out.push_back(static_cast<double>(key_code_level(format.bits, code(key, i))));
    return out;
  }
};

// T x for rows of Sylvester's matrix: entry (i, j) is -1 to the number of common bits.
Doubles rotated(const Doubles& x, int32_t block) {
  Doubles out(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const size_t first = i / static_cast<size_t>(block) * static_cast<size_t>(block);
    for (size_t j = 0; j < static_cast<size_t>(block); ++j)
      out[i] += x[first + j] * (__builtin_popcountll((i - first) & j) % 2 ? -1 : 1) / std::sqrt(static_cast<double>(block));
  }
  return out;
}

struct Case {
  int32_t bits, dim;
  KvType type;
  bool rotate;
};
const Case kCases[] = {{2, 64, KvType::f16, true},    {1, 64, KvType::q8_0, true}, {4, 64, KvType::f16, true},
                       {2, 96, KvType::f16, true},    {1, 18, KvType::f32, true},  {2, 33, KvType::f32, false},
                       {4, 128, KvType::q4_0, false}, {2, 256, KvType::f16, true}, {2, 64, KvType::k8v4, true},
                       {4, 32, KvType::k8v4, false},  {2, 512, KvType::f16, true}, {1, 512, KvType::q8_0, true}};
constexpr int32_t kTokens = 301, kKvHeads = 2;

class CpuKeyCodes : public ::testing::TestWithParam<std::string> {};

// Levels beyond rounding, a code is the nearest; its factor gives the least squared error. Any cut and any number of threads gives the same
// bytes, and tiles keep the codes of other keys.
TEST_P(CpuKeyCodes, AreTheNearestLevelsOfRotatedCentredKeys) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(std::to_string(c.bits) + " bits of " + std::to_string(c.dim));
    const KvFormat kv{c.type, 1, kKvHeads, c.dim};
    const KeyStore store(kv, 2 * kKvHeads, kTokens, 4, 7);
    const int32_t block = c.rotate ? hadamard_block(c.dim) : 1;
    const KeyCodesShape shape{kv, {c.bits, c.dim}, block};
    for (int32_t head = 0; head < kKvHeads; ++head) {
      const Codes codes(c.bits, c.dim, kTokens), other(c.bits, c.dim, kTokens);
      Rig rig(GetParam(), 3, store.limits(kTokens)), single(GetParam(), 1, store.limits(kTokens));
      const KeyCodesJob job = codes.job(store, kv, head), alone = other.job(store, kv, head);
      rig->key_codes()->mean_keys({&job, 1}, shape, 4, 200, 3);
      rig->key_codes()->encode_keys({&job, 1}, shape, 0, kTokens);
      single->key_codes()->mean_keys({&alone, 1}, shape, 4, 200, 3);
      for (const auto& [first, end] : {std::pair(0, 3), std::pair(3, 64), std::pair(64, 229), std::pair(229, kTokens)})
        single->key_codes()->encode_keys({&alone, 1}, shape, first, end);
      ASSERT_TRUE(std::equal(codes.mean.data(), codes.mean.data() + c.dim, other.mean.data()));
      ASSERT_TRUE(std::equal(codes.tiles.data(), codes.tiles.data() + codes.tiles.size(), other.tiles.data()));

      Doubles mean(static_cast<size_t>(c.dim));
      for (int32_t t = 4; t < 200; t += 3) {
        const std::vector<float> stored = store.key(0, head, t);
        for (size_t i = 0; i < mean.size(); ++i) mean[i] += static_cast<double>(stored[i]) / 66;
      }
      for (size_t i = 0; i < mean.size(); ++i) ASSERT_NEAR(mean[i], static_cast<double>(codes.mean[i]), 1e-6);
      for (int32_t t = 0; t < kTokens; ++t) {
        const std::vector<float> stored = store.key(0, head, t);
        Doubles key;
        for (size_t i = 0; i < mean.size(); ++i) key.push_back(static_cast<double>(stored[i]) - mean[i]);
        key = rotated(key, block);
        double squares = 0, with_levels = 0, of_levels = 0;
        for (const double x : key) squares += x * x;
        const double unit = std::sqrt(squares / c.dim);
        for (int32_t i = 0; i < c.dim; ++i) {
          const double x = key[static_cast<size_t>(i)], level = static_cast<double>(key_code_level(c.bits, codes.code(t, i)));
          for (int32_t j = 0; j < 1 << c.bits; ++j)
            ASSERT_LE(std::fabs(x - unit * level), std::fabs(x - unit * static_cast<double>(key_code_level(c.bits, j))) + 1e-5 * unit)
                << t << ", " << i;
          with_levels += x * level, of_levels += level * level;
        }
        ASSERT_NEAR(codes.factor(t), with_levels / of_levels, 6e-4 * unit) << t;
      }
    }
  }
}

// The k best of the candidates by products as tables round them, and for each query head the sum of the weights of the others. Floats may
// round a product to the next step: scores closer together than that may change places.
TEST_P(CpuKeyCodes, FindTheKeysThatTheyStandFor) {
  for (const Case& c : kCases)
    for (const bool max : {false, true}) {
      SCOPED_TRACE(std::to_string(c.bits) + " bits of " + std::to_string(c.dim));
      const KvFormat kv{c.type, 1, kKvHeads, c.dim};
      const int32_t group = 3, first = max ? 5 : 0, k = 40;
      const KeyStore store(kv, group * kKvHeads, kTokens, 4, 8);
      const int32_t block = c.rotate ? hadamard_block(c.dim) : 1;
      const KeyCodesShape shape{kv, {c.bits, c.dim}, block};
      Rig rig(GetParam(), 2, store.limits(kTokens));
      for (int32_t head = 0; head < kKvHeads; ++head) {
        const Codes codes(c.bits, c.dim, kTokens);
        const KeyCodesJob job = codes.job(store, kv, head);
        rig->key_codes()->mean_keys({&job, 1}, shape, 0, kTokens, 1);
        rig->key_codes()->encode_keys({&job, 1}, shape, 0, kTokens);
        TopKeysJob ask = store.job(0, head, kTokens - 2, 301, 1, k, false);  // two codes at the end are no candidates
        const Guarded<uint32_t> out(static_cast<size_t>(k));
        ask.tiles = codes.addresses.data(), ask.offset = 0, ask.first_key = first, ask.out = out.data();
        TopKeysShape asked = store.shape({max, KeyScoring::Pooling::none, 1});
        asked.codes = codes.format, asked.code_block = block;
        const Guarded<float> logs(static_cast<size_t>(group));
        ask.log_evicted = logs.ptr();
        rig->keys()->top_keys({&ask, 1}, asked);

        const int32_t n = kTokens - 2 - first;
        const std::set<uint32_t> best_keys(out.data(), out.data() + k);
        Doubles scores(static_cast<size_t>(n));
        double most_off = 0;
        for (int32_t g = 0; g < group; ++g) {
          const float* q = store.query(0, 301) + (head * group + g) * c.dim;
          const Doubles turned = rotated(Doubles(q, q + c.dim), block);
          const RoundedProducts products(turned, c.bits);
          const auto scale = static_cast<double>(store.scale());
          Doubles row;
          double total = 0;
          for (int32_t t = first; t < first + n; ++t) {
            row.push_back(scale * products(codes.levels(t), codes.factor(t)));
            most_off = std::max(most_off, scale * products.step() * codes.factor(t));
          }
          const double most = *std::max_element(row.begin(), row.end());
          double others = 0;
          for (uint32_t i = 0; i < row.size(); ++i) others += best_keys.count(i) ? 0 : std::exp(row[i]);
          const double log = std::log(2.0) * static_cast<double>(logs[static_cast<size_t>(g)]);
          EXPECT_NEAR(log, std::log(others), .005) << g;
          for (double& x : row) total += x = std::exp(x - most);
          for (size_t i = 0; i < row.size(); ++i)
            scores[i] = max ? std::max(scores[i], row[i] / total) : scores[i] + row[i] / total / group;
        }
        Doubles order = scores;
        std::sort(order.begin(), order.end(), std::greater<>());
        const double last = order[static_cast<size_t>(k - 1)], next = order[static_cast<size_t>(k)], margin = std::exp(most_off) - 1;
        ASSERT_LT(margin, .1);
        std::vector<bool> found(static_cast<size_t>(n));
        int32_t n_checked = 0;
        for (int32_t i = 0; i < k; ++i) {
          ASSERT_LT(out[static_cast<size_t>(i)], static_cast<uint32_t>(n));
          found[out[static_cast<size_t>(i)]] = true;
        }
        EXPECT_EQ(std::count(found.begin(), found.end(), true), k);
        for (size_t i = 0; i < scores.size(); ++i) {
          const bool best = scores[i] > next * (1 + 2 * margin), other = scores[i] * (1 + 2 * margin) < last;
          if (!best && !other) continue;
          EXPECT_EQ(found[i], best) << i;
          ++n_checked;
        }
        EXPECT_GT(n_checked, n / 2);
      }
    }
}

// Keys before the first candidate have no weight, even where the others underflow; a key that is not finite is found by no query.
TEST_P(CpuKeyCodes, OtherKeysAreNeverFound) {
  const KvFormat kv{KvType::f32, 1, 1, 16};
  KeyStore store(kv, 1, 80, 4, 9);
  store.put(0, 0, 20, std::vector<float>(16, NAN));
  store.put(0, 0, 21, std::vector<float>(16, INFINITY));
  const float* q = store.query(0, 80);
  std::vector<float> best(q, q + 16), worst;
  for (float& x : best) x *= 300, worst.push_back(-x);
  for (int32_t t = 0; t < 3; ++t) store.put(0, 0, t, best);
  for (int32_t t = 22; t < 80; ++t) store.put(0, 0, t, worst);
  const Codes codes(2, 16, 80);
  const KeyCodesShape shape{kv, codes.format, 16};
  Rig rig(GetParam(), 1, store.limits(80));
  const KeyCodesJob job = codes.job(store, kv, 0);
  std::fill(codes.mean.data(), codes.mean.data() + 16, 0.0f);
  rig->key_codes()->encode_keys({&job, 1}, shape, 0, 80);
  EXPECT_TRUE(std::isnan(codes.factor(20)) && std::isnan(codes.factor(21)));
  TopKeysJob ask = store.job(0, 0, 80, 80, 1, 17, false);
  const Guarded<uint32_t> out(17);
  ask.tiles = codes.addresses.data(), ask.offset = 0, ask.first_key = 3, ask.out = out.data();
  TopKeysShape asked = store.shape({});
  asked.codes = codes.format, asked.code_block = 16;
  rig->keys()->top_keys({&ask, 1}, asked);
  std::vector<uint32_t> expected(17);
  std::iota(expected.begin(), expected.end(), 0u);  // 3 to 19, counted from 3
  EXPECT_EQ(std::vector<uint32_t>(out.data(), out.data() + 17), expected);
}

// Codes of 2 bits of one head of 16 dimensions, with one query head.
struct Encoded {
  KvFormat kv{KvType::f32, 1, 1, 16};
  KeyStore store;
  Codes codes;
  KeyCodesShape shape{kv, {2, 16}, 16};
  Rig rig;
  int32_t n_tokens;
  Encoded(const std::string& path, int32_t n_threads, int32_t n, uint32_t seed)
      : store(kv, 1, n, 4, seed), codes(2, 16, n), rig(path, n_threads, store.limits(n)), n_tokens(n) {
    const KeyCodesJob job = codes.job(store, kv, 0);
    rig->key_codes()->mean_keys({&job, 1}, shape, 0, n, 1);
    rig->key_codes()->encode_keys({&job, 1}, shape, 0, n);
  }
  // The k best of the candidates from `first` on, by the last query. Returns log2 of the weight of the others.
  float ask(int32_t first, int32_t k, float scale, std::vector<uint32_t>* best = nullptr, Span<const uint32_t> held = {}, float stay = 1) {
    TopKeysJob job = store.job(0, 0, n_tokens, n_tokens, 1, k, false);
    const Guarded<uint32_t> out(static_cast<size_t>(k));
    const Guarded<float> log(1);
    job.tiles = codes.addresses.data(), job.offset = 0, job.first_key = first, job.out = out.data(), job.log_evicted = log.ptr();
    job.held = held, job.stay = stay;
    TopKeysShape asked = shape_of_queries();
    if (scale > 0) asked.scale = scale;
    rig->keys()->top_keys({&job, 1}, asked);
    if (best) best->assign(out.data(), out.data() + k);
    return log[0];
  }
  TopKeysShape shape_of_queries() const {
    TopKeysShape asked = store.shape({});
    asked.codes = codes.format, asked.code_block = 16;
    return asked;
  }
};

// All candidates are among the best: no weight is left.
TEST_P(CpuKeyCodes, NothingIsLeftWhereAllAreBest) {
  Encoded e(GetParam(), 1, 80, 12);
  for (const auto& [first, k, left] :
       {std::tuple(3, 77, false), std::tuple(3, 76, true), std::tuple(70, 10, false), std::tuple(0, 80, false)})
    EXPECT_EQ(std::isfinite(e.ask(first, k, 0)), left) << first << ", " << k;
}

// Of 340 tokens' six tiles, four tell the variance of a query's products: 0, 1, 3 and 5. Above kMostCodeVariance there is no weight.
TEST_P(CpuKeyCodes, WeighNothingWhereTheyTellTooLittle) {
  Encoded e(GetParam(), 1, 340, 13);
  double squares = 0, n = 0, of_query = 0;
  for (int32_t t = 7; t < 340; ++t)
    if (t / kPageTokens != 2 && t / kPageTokens != 4) squares += e.codes.factor(t) * e.codes.factor(t), ++n;
  for (int32_t i = 0; i < 16; ++i) of_query += std::pow(static_cast<double>(e.store.query(0, 340)[i]), 2);
  const double at_scale_1 = squares / n * of_query * .11748;
  for (const double variance : {1.998, 2.002})
    EXPECT_EQ(std::isfinite(e.ask(7, 20, static_cast<float>(std::sqrt(variance / at_scale_1)))), variance < 2);
}

// The means of key_weights(): each candidate's share by the decoded keys. The scores of held keys count `stay` times, and the weights of
// the others stay as they are.
TEST_P(CpuKeyCodes, HeldKeysStayWhereTheirScoresAreNear) {
  constexpr int32_t kKeys = 1300, kBest = 60;  // more than one item's codes
  Encoded e(GetParam(), 2, kKeys, 14);
  KeyWeightsJob job;
  static_cast<KeysJob&>(job) = e.store.job(0, 0, kKeys, kKeys, 1, 1, false);
  const Guarded<float> weights(kKeys);
  job.tiles = e.codes.addresses.data(), job.offset = 0, job.mean = true, job.out = weights.data();
  e.rig->keys()->key_weights({&job, 1}, e.shape_of_queries());
  const float* q = e.store.query(0, kKeys);
  const RoundedProducts products(rotated(Doubles(q, q + 16), 16), 2);
  Doubles expected;
  double sum = 0;
  for (int32_t t = 0; t < kKeys; ++t) {
    expected.push_back(std::exp(products(e.codes.levels(t), e.codes.factor(t)) * static_cast<double>(e.store.shape({}).scale)));
    sum += expected.back();
  }
  for (int32_t t = 0; t < kKeys; ++t)
    ASSERT_NEAR(static_cast<double>(weights[static_cast<size_t>(t)]), expected[static_cast<size_t>(t)] / sum,
                .001 * expected[static_cast<size_t>(t)] / sum)
        << t;

  std::vector<uint32_t> order(kKeys), best, held;
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return weights[a] > weights[b]; });
  for (uint32_t i = 0; i < 10; ++i) held.push_back(order[kBest + 5 * i]);  // just behind the best, and further behind
  for (const float stay : {1.0f, 1.25f, 2.0f, 64.0f}) {
    std::vector<std::pair<float, uint32_t>> scores;
    for (uint32_t t = 0; t < kKeys; ++t) scores.push_back({-weights[t] * (std::count(held.begin(), held.end(), t) > 0 ? stay : 1), t});
    std::sort(scores.begin(), scores.end());
    std::vector<uint32_t> wanted;
    for (int32_t i = 0; i < kBest; ++i) wanted.push_back(scores[static_cast<size_t>(i)].second);
    std::sort(wanted.begin(), wanted.end());
    const float log = e.ask(0, kBest, 0, &best, held, stay);
    EXPECT_EQ(best, wanted) << stay;
    double others = 0;
    for (uint32_t t = 0; t < kKeys; ++t) others += std::count(best.begin(), best.end(), t) > 0 ? 0 : static_cast<double>(weights[t]);
    EXPECT_NEAR(static_cast<double>(log), std::log2(others * sum), .001) << stay;
  }
}

// The mean value of some shares: V behind K, in pages; a share of 0 reads nothing.
TEST_P(CpuKeyCodes, MeanValuesAreSumsByShares) {
  for (const KvType type : {KvType::f16, KvType::q8_0, KvType::q4_0, KvType::k8v4}) {
    const KvFormat kv{type, 1, kKvHeads, 64};
    KeyStore store(kv, kKvHeads, kTokens, 4, 15);
    for (int32_t head = 0; head < kKvHeads; ++head)
      for (int32_t t = 0; t < kTokens; ++t) store.put_value(0, head, t, store.key(0, head, (t + 1) % kTokens));
    Rig rig(GetParam(), 2, store.limits(kTokens));
    std::vector<float> shares(kTokens);
    for (size_t t = 0; t < kTokens; ++t) shares[t] = t % 3 == 0 ? 0.0f : static_cast<float>(t % 7) / 1000;
    const Guarded<float> values(kKvHeads * 64);
    std::vector<MeanValueJob> jobs;
    for (int32_t head = 0; head < kKvHeads; ++head)
      jobs.push_back({store.pages(), kv.head_offset(0, head), values.ptr() + static_cast<uint64_t>(head) * 64, shares});
    rig->key_codes()->mean_values(jobs, kv);
    for (int32_t head = 0; head < kKvHeads; ++head) {
      Doubles expected(64);
      for (int32_t t = 0; t < kTokens; ++t)
        for (size_t i = 0; i < 64; ++i)
          expected[i] += static_cast<double>(shares[static_cast<size_t>(t)]) * static_cast<double>(store.value(0, head, t)[i]);
      for (size_t i = 0; i < 64; ++i) EXPECT_NEAR(static_cast<double>(values[static_cast<size_t>(head) * 64 + i]), expected[i], 1e-6);
    }
  }
}

// Codes and factors have the bits of the plain kernels.
TEST_P(CpuKeyCodes, HaveTheSameBitsOnEveryInstructionSet) {
  for (const Case& c : kCases) {
    const KvFormat kv{c.type, 1, 1, c.dim};
    const KeyStore store(kv, 1, kTokens, 4, 16);
    const KeyCodesShape shape{kv, {c.bits, c.dim}, c.rotate ? hadamard_block(c.dim) : 1};
    const Codes codes(c.bits, c.dim, kTokens), plain(c.bits, c.dim, kTokens);
    for (const auto& [path, to] :
         {std::pair<std::string, const Codes*>(GetParam(), &codes), std::pair<std::string, const Codes*>("plain", &plain)}) {
      Rig rig(path, 1, store.limits(kTokens));
      const KeyCodesJob job = to->job(store, kv, 0);
      rig->key_codes()->mean_keys({&job, 1}, shape, 0, kTokens, 1);
      rig->key_codes()->encode_keys({&job, 1}, shape, 0, kTokens);
    }
    EXPECT_TRUE(std::equal(codes.tiles.data(), codes.tiles.data() + codes.tiles.size(), plain.tiles.data()))
        << c.bits << " bits of " << c.dim;
  }
}

// An error of a code: of 1, 2 and 4 bits of a normal dimension, by numeric integration.
TEST(KeyCodeErrors, AreThoseOfANormalDistribution) {
  for (const int32_t bits : {1, 2, 4}) {
    double sum = 0;
    for (double x = -8; x < 8; x += 1e-3) {
      double least = INFINITY;
      for (int32_t i = 0; i < 1 << bits; ++i) least = std::min(least, std::fabs(x - static_cast<double>(key_code_level(bits, i))));
      sum += least * least * std::exp(-.5 * x * x) * 1e-3 / std::sqrt(2 * 3.14159265358979);
    }
    EXPECT_NEAR(sum, static_cast<double>(key_code_error(bits)), 1e-4) << bits;
  }
}

// The key (3, 1, -1, -3) * 2 with the mean 0 and no rotation: its root mean square is 4.47, and edges stand at 4.39 of it.
TEST_P(CpuKeyCodes, AreWorkedByHand) {
  const KvFormat kv{KvType::f32, 1, 1, 4};
  KeyStore store(kv, 1, 64, 1, 10);
  store.put(0, 0, 33, {6, 2, -2, -6});
  const Codes codes(2, 4, 64);
  const KeyCodesShape shape{kv, codes.format, 1};
  Rig rig(GetParam(), 1, store.limits(64));
  const KeyCodesJob job = codes.job(store, kv, 0);
  std::fill(codes.mean.data(), codes.mean.data() + 4, 0.0f);
  rig->key_codes()->encode_keys({&job, 1}, shape, 0, 64);
  // Levels 3, 2, 1, 0: groups 0b1011 and 0b0001, in the high half of byte 1.
  EXPECT_EQ(static_cast<int>(codes.tile(0)[1]) >> 4, 0b1011);
  EXPECT_EQ(static_cast<int>(codes.tile(0)[33]) >> 4, 0b0001);
  // (6 * 1.51042 + 2 * .45278) * 2 / (2 * (1.51042^2 + .45278^2)) = 9.96808 / 2.486378
  EXPECT_NEAR(codes.factor(33), 4.00908, 2e-3);
  EXPECT_EQ(codes.format.tile_bytes(), 2 * 32 + 128);
  EXPECT_EQ(codes.format.head_bytes(65), 2 * (2 * 32 + 128) + 16);
}

INSTANTIATE_TEST_SUITE_P(Paths, CpuKeyCodes, ::testing::ValuesIn(paths()), PathName());

}  // namespace
}  // namespace orrery::key_codes_test
