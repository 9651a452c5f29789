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
#include "tests/support/doubles.h"
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

Doubles rotated(const Doubles& x, int32_t block) {
  Doubles out(x.size());
  sylvester(x.data(), x.size(), static_cast<size_t>(block), out.data());
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

// The tables of turns of a RoPE with these frequencies, for n_tokens positions.
struct TurnTables {
  Doubles frequencies;
  Guarded<float> tiles, within;
  TurnTables(int32_t n_pairs, int32_t n_tokens)
      : tiles(static_cast<size_t>(2 * n_pairs * ((n_tokens + kPageTokens - 1) / kPageTokens))),
        within(static_cast<size_t>(2 * n_pairs * kPageTokens)) {
    for (int32_t i = 0; i < n_pairs; ++i) frequencies.push_back(std::pow(1e4, -static_cast<double>(i) / n_pairs));
    const size_t n = frequencies.size();
    for (size_t i = 0; i < tiles.size(); ++i) {
      const double angle = static_cast<double>(i / (2 * n) * kPageTokens) * frequencies[i / 2 % n];
      tiles[i] = static_cast<float>(i % 2 ? std::sin(angle) : std::cos(angle));
    }
    for (size_t i = 0; i < within.size(); ++i) {
      const double angle = static_cast<double>(i % kPageTokens) * frequencies[i / (2 * kPageTokens)];
      within[i] = static_cast<float>(i / kPageTokens % 2 ? std::sin(angle) : std::cos(angle));
    }
  }
  KeyTurnTables tables() const { return {tiles.ptr(), within.ptr(), static_cast<int32_t>(frequencies.size())}; }
  // Turns pair i of x at a position.
  void turn(size_t i, double position, bool interleaved, double* x) const {
    const size_t a = interleaved ? 2 * i : i, b = interleaved ? a + 1 : a + frequencies.size();
    const double c = std::cos(position * frequencies[i]), s = std::sin(position * frequencies[i]), first = x[a], second = x[b];
    x[a] = first * c - second * s, x[b] = first * s + second * c;
  }
};

struct TurnCase {
  int32_t dim, n_pairs;
  bool interleaved;
};
const TurnCase kTurnCases[] = {{64, 32, false}, {64, 32, true}, {96, 24, false}, {32, 3, true}};

// A head whose keys have a large mean ahead of RoPE in some pairs. Their turns are found; what is left for the codes is as small as if the keys
// had no such mean; a query's weights are those of the keys that codes and turns stand for; and on all instruction sets the codes have the same
// bits.
TEST_P(CpuKeyCodes, TakeTheMeanAsItStandsAtEachPosition) {
  for (const TurnCase& c : kTurnCases) {
    SCOPED_TRACE(std::to_string(c.dim) + (c.interleaved ? " interleaved" : ""));
    const KvFormat kv{KvType::f32, 1, 1, c.dim};
    KeyStore store(kv, 3, kTokens, 4, 21);
    const TurnTables tables(c.n_pairs, kTokens);
    const auto dim = static_cast<size_t>(c.dim), n_pairs = static_cast<size_t>(c.n_pairs);
    const size_t n_biased = std::min<size_t>(n_pairs, 5);
    for (int32_t t = 0; t < kTokens; ++t) {
      Doubles key(dim);
      for (size_t i = 0; i < n_biased; ++i) key[c.interleaved ? 2 * i : i] = 6 + static_cast<double>(i);
      for (size_t i = 0; i < n_pairs; ++i) tables.turn(i, t, c.interleaved, key.data());
      std::vector<float> with_noise = store.key(0, 0, t);
      for (size_t i = 0; i < dim; ++i) with_noise[i] += static_cast<float>(key[i]);
      store.put(0, 0, t, with_noise);
    }
    const int32_t block = hadamard_block(c.dim), n_turns = std::min(kMostTurns, c.n_pairs);
    KeyCodesShape shape{kv, {2, c.dim}, block};
    shape.codes.n_turns = n_turns, shape.turns = tables.tables(), shape.interleaved = c.interleaved;
    double errors[2] = {};  // of codes with turns, and without
    std::vector<std::byte> tiles_of_plain;
    for (const bool turns : {true, false})
      for (const std::string& path : {std::string("plain"), GetParam()}) {
        KeyCodesShape own = shape;
        if (!turns) own.codes.n_turns = 0;
        const Guarded<std::byte> tiles(own.codes.head_bytes(kTokens) - own.codes.mean_bytes()), means(own.codes.mean_bytes());
        std::vector<uint64_t> addresses;
        for (uint64_t at = 0; at < tiles.size(); at += own.codes.tile_bytes()) addresses.push_back(tiles.ptr().address + at);
        const KeyCodesJob job{store.pages(), kv.head_offset(0, 0), {means.ptr().address}, tiles.ptr()};
        Rig rig(path, 2, store.limits(kTokens));
        rig->key_codes()->mean_keys({&job, 1}, own, 0, kTokens, 1);
        rig->key_codes()->encode_keys({&job, 1}, own, 0, kTokens);
        const auto* mean = reinterpret_cast<const float*>(means.data());
        const auto* found = reinterpret_cast<const KeyTurn*>(means.data() + own.codes.turns_offset());
        if (path == "plain") tiles_of_plain.assign(tiles.data(), tiles.data() + tiles.size());
        else EXPECT_TRUE(std::equal(tiles_of_plain.begin(), tiles_of_plain.end(), tiles.data())) << turns;

        std::set<int32_t> pairs;
        for (int32_t i = 0; i < own.codes.n_turns; ++i) {
          const KeyTurn& turn = found[i];
          if (turn.x == 0 && turn.y == 0) continue;
          EXPECT_TRUE(pairs.insert(turn.pair).second);
          EXPECT_EQ(turn.first, c.interleaved ? 2 * turn.pair : turn.pair);
          EXPECT_EQ(turn.second, c.interleaved ? turn.first + 1 : turn.first + c.n_pairs);
          if (static_cast<size_t>(turn.pair) < n_biased) {
            EXPECT_NEAR(static_cast<double>(turn.x), 6.0 + turn.pair, .3);
            EXPECT_NEAR(static_cast<double>(turn.y), 0, .3);
          }
        }
        // The slowest of these pairs turns a little in 301 positions only where there are few.
        for (size_t i = 0; turns && i < n_biased; ++i) EXPECT_EQ(pairs.count(static_cast<int32_t>(i)), 1u) << i;

        std::vector<Doubles> levels, shifts;  // of each key: its codes, and what was taken from it
        Doubles factors;
        for (int32_t t = 0; t < kTokens; ++t) {
          const auto* tile = reinterpret_cast<const uint8_t*>(addresses[static_cast<size_t>(t / kPageTokens)]);
          const int32_t at = t % kPageTokens, half = kPageTokens / 2;
          const double factor = half_to_float(reinterpret_cast<const uint16_t*>(tile + own.codes.factors_offset())[at]);
          Doubles of_key, shift(mean, mean + dim);
          for (int32_t i = 0; i < c.dim; ++i)
            of_key.push_back(
                static_cast<double>(key_code_level(2, tile[i / 2 * half + at % half] >> ((at < half ? 0 : 4) + i % 2 * 2) & 3)));
          for (int32_t i = 0; i < own.codes.n_turns; ++i) {
            if (found[i].x == 0 && found[i].y == 0) continue;
            Doubles of_turn(dim);
            of_turn[static_cast<size_t>(found[i].first)] = static_cast<double>(found[i].x);
            of_turn[static_cast<size_t>(found[i].second)] = static_cast<double>(found[i].y);
            tables.turn(static_cast<size_t>(found[i].pair), t, c.interleaved, of_turn.data());
            for (size_t d = 0; d < dim; ++d) shift[d] += of_turn[d];
          }
          const std::vector<float> stored = store.key(0, 0, t);
          const Doubles back = rotated(of_key, block);
          for (size_t i = 0; i < dim; ++i)
            errors[!turns] += std::pow(factor * back[i] + shift[i] - static_cast<double>(stored[i]), 2) / kTokens / c.dim / 2;
          levels.push_back(of_key), shifts.push_back(shift), factors.push_back(factor);
        }

        KeyWeightsJob ask;
        static_cast<KeysJob&>(ask) = store.job(0, 0, kTokens, kTokens, 1, 1, false);
        const Guarded<float> weights(kTokens);
        ask.tiles = addresses.data(), ask.offset = 0, ask.mean = true, ask.out = weights.data();
        if (turns) ask.turns = {means.ptr().address + own.codes.turns_offset()};
        KeysShape asked = store.shape({});
        asked.codes = own.codes, asked.code_block = block, asked.turns = own.turns;
        rig->keys()->key_weights({&ask, 1}, asked);
        Doubles expected(kTokens);
        for (size_t g = 0; g < 3; ++g) {
          const float* q = store.query(0, kTokens) + g * dim;
          const RoundedProducts products(rotated(Doubles(q, q + dim), block), 2);
          Doubles row(kTokens);
          double total = 0;
          for (size_t t = 0; t < row.size(); ++t) {
            row[t] = products(levels[t], factors[t]);
            for (size_t i = 0; i < dim; ++i) row[t] += static_cast<double>(q[i]) * shifts[t][i];
            row[t] *= static_cast<double>(store.scale());
          }
          const double most = *std::max_element(row.begin(), row.end());
          for (double& x : row) total += x = std::exp(x - most);
          for (size_t t = 0; t < row.size(); ++t) expected[t] += row[t] / total / 3;
        }
        for (size_t t = 0; t < expected.size(); ++t)
          ASSERT_NEAR(static_cast<double>(weights[t]), expected[t], .004 * expected[t] + 1e-7) << t;
      }
    EXPECT_LT(errors[0], 1.3 * static_cast<double>(key_code_error(2)));
    EXPECT_GT(errors[1], 2 * errors[0]);
  }
}

struct ValueCase {
  int32_t value_bits, dim;
  KvType type;
  int32_t group, n_tokens;
};
const ValueCase kValueCases[] = {{2, 64, KvType::f16, 3, 301},   {1, 64, KvType::q8_0, 7, 301}, {2, 96, KvType::f16, 1, 130},
                                 {1, 128, KvType::f32, 5, 301},  {2, 512, KvType::f16, 2, 200}, {2, 64, KvType::f16, 4, 2301},
                                 {1, 64, KvType::k8v4, 2, 5000}, {2, 18, KvType::f32, 3, 70}};

// The means of the values that were not found, by their codes and this step's weights of the keys' codes. Codes of values are the nearest
// levels. Any number of threads gives the same bits.
TEST_P(CpuKeyCodes, MeansOfEvictedValuesAreThoseOfTheirCodes) {
  for (const ValueCase& c : kValueCases) {
    SCOPED_TRACE(std::to_string(c.value_bits) + " bits of " + std::to_string(c.dim) + ", " + std::to_string(c.n_tokens) + " tokens");
    const KvFormat kv{c.type, 1, 1, c.dim};
    KeyStore store(kv, c.group, c.n_tokens, 4, 22);
    const auto dim = static_cast<size_t>(c.dim), n = static_cast<size_t>(c.n_tokens), group = static_cast<size_t>(c.group);
    for (int32_t t = 0; t < c.n_tokens; ++t) {
      std::vector<float> value = store.key(0, 0, (t + 11) % c.n_tokens);
      for (float& x : value) x = 1.5f * x + .5f;
      store.put_value(0, 0, t, value);
    }
    const int32_t block = hadamard_block(c.dim), first = 4, k = 16;
    KeyCodesShape shape{kv, {2, c.dim}, block};
    shape.codes.value_bits = c.value_bits;
    const Guarded<std::byte> tiles(shape.codes.head_bytes(n) - shape.codes.mean_bytes());
    const Guarded<float> mean(dim), logs(group), values(group * dim), again(group * dim);
    std::fill(tiles.data(), tiles.data() + tiles.size(), std::byte{0x5A});
    std::vector<uint64_t> addresses;
    for (uint64_t at = 0; at < tiles.size(); at += shape.codes.tile_bytes()) addresses.push_back(tiles.ptr().address + at);
    const KeyCodesJob job{store.pages(), kv.head_offset(0, 0), mean.ptr(), tiles.ptr()};
    const Guarded<uint32_t> out(static_cast<size_t>(k));
    TopKeysJob ask = store.job(0, 0, c.n_tokens, c.n_tokens, 1, k, false);
    ask.tiles = addresses.data(), ask.offset = 0, ask.first_key = first, ask.out = out.data(), ask.log_evicted = logs.ptr();
    TopKeysShape asked = store.shape({});
    asked.codes = shape.codes, asked.code_block = block, asked.scale = .5f / std::sqrt(static_cast<float>(c.dim));
    for (const int32_t n_threads : {3, 1}) {
      Rig rig(GetParam(), n_threads, store.limits(c.n_tokens));
      rig->key_codes()->mean_keys({&job, 1}, shape, 0, c.n_tokens, 1);
      rig->key_codes()->encode_keys({&job, 1}, shape, 0, 70);
      rig->key_codes()->encode_keys({&job, 1}, shape, 70, c.n_tokens);
      ask.value_evicted = n_threads == 1 ? again.ptr() : values.ptr();
      rig->keys()->top_keys({&ask, 1}, asked);
    }
    EXPECT_TRUE(std::equal(values.data(), values.data() + values.size(), again.data()));

    const int32_t of_group = 4 / c.value_bits, half = kPageTokens / 2, mask = (1 << c.value_bits) - 1;
    std::vector<Doubles> coded;  // rotated
    Doubles factors;
    for (int32_t t = 0; t < c.n_tokens; ++t) {
      const auto* tile = reinterpret_cast<const uint8_t*>(addresses[static_cast<size_t>(t / kPageTokens)]);
      const int32_t at = t % kPageTokens;
      factors.push_back(
          static_cast<double>(half_to_float(reinterpret_cast<const uint16_t*>(tile + shape.codes.value_factors_offset())[at])));
      const std::vector<float> stored = store.value(0, 0, t);
      const Doubles value = rotated(Doubles(stored.begin(), stored.end()), block);
      double squares = 0;
      for (const double x : value) squares += x * x;
      const double unit = std::sqrt(squares / c.dim);
      Doubles of_token;
      for (int32_t d = 0; d < c.dim; ++d) {
        const int32_t in_block = d % kPageTokens, row = d / kPageTokens * shape.codes.n_value_groups() + at / of_group;
        const int32_t code = tile[shape.codes.keys_bytes() + static_cast<uint64_t>(row * half + in_block % half)] >>
                                 (at % of_group * c.value_bits + (in_block < half ? 0 : 4)) &
                             mask;
        const auto level = static_cast<double>(key_code_level(c.value_bits, code)), x = value[static_cast<size_t>(d)];
        for (int32_t j = 0; j <= mask; ++j)
          ASSERT_LE(std::fabs(x - unit * level), std::fabs(x - unit * static_cast<double>(key_code_level(c.value_bits, j))) + 1e-5 * unit);
        of_token.push_back(factors.back() * level);
      }
      coded.push_back(of_token);
    }
    const std::set<uint32_t> best(out.data(), out.data() + k);
    for (size_t g = 0; g < group; ++g) {
      const float* q = store.query(0, c.n_tokens) + g * dim;
      const RoundedProducts products(rotated(Doubles(q, q + dim), block), 2);
      Doubles weights(n), expected(dim);
      double total = 0;
      for (size_t t = static_cast<size_t>(first); t < n; ++t) {
        if (best.count(static_cast<uint32_t>(t) - static_cast<uint32_t>(first))) continue;
        const auto* tile = reinterpret_cast<const uint8_t*>(addresses[t / kPageTokens]);
        const int32_t at = static_cast<int32_t>(t % kPageTokens);
        Doubles levels;
        for (int32_t i = 0; i < c.dim; ++i)
          levels.push_back(static_cast<double>(key_code_level(2, tile[i / 2 * half + at % half] >> ((at < half ? 0 : 4) + i % 2 * 2) & 3)));
        const double factor = half_to_float(reinterpret_cast<const uint16_t*>(tile + shape.codes.factors_offset())[at]);
        total += weights[t] = std::exp(static_cast<double>(asked.scale) * products(levels, factor));
      }
      double bound = 0;  // half a step for each group of a tile
      for (size_t tile = 0; tile * kPageTokens < n; ++tile) {
        double widest = 0;
        for (size_t from = tile * kPageTokens; from < std::min(n, (tile + 1) * kPageTokens); from += static_cast<size_t>(of_group)) {
          double sum = 0;
          for (size_t t = from; t < std::min(n, from + static_cast<size_t>(of_group)); ++t) sum += weights[t] * factors[t];
          widest = std::max(widest, sum);
        }
        bound += .51 * shape.codes.n_value_groups() * widest * static_cast<double>(key_code_level(c.value_bits, mask)) / 127 / total;
      }
      for (size_t t = 0; t < n; ++t)
        for (size_t d = 0; d < dim; ++d) expected[d] += weights[t] / total * coded[t][d];
      Doubles given;
      for (size_t d = 0; d < dim; ++d) given.push_back(static_cast<double>(values[g * dim + d]));
      given = rotated(given, block);
      EXPECT_LT(bound, .06);
      for (size_t d = 0; d < dim; ++d) ASSERT_NEAR(given[d], expected[d], bound + .002) << g << ", " << d;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Paths, CpuKeyCodes, ::testing::ValuesIn(paths()), PathName());

}  // namespace
}  // namespace orrery::key_codes_test
