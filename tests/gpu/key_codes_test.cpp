// Tests key codes (cuda/kernels/key_codes.cu). Means, turns, codes and factors have the bits of the CPU backend's plain kernels. Weights,
// best keys and weights of evicted keys by codes are compared with the decoded codes in double precision.
#include "tests/gpu/key_codes.h"

#include <numeric>
#include <set>

#ifdef ORRERY_EMULATED
#include "tests/emulation/cuda/device.h"
#endif

namespace orrery::gpu_key_codes_test {
namespace {

const Case kCases[] = {{2, 64, KvType::f16, true},    {1, 64, KvType::q8_0, true}, {4, 64, KvType::f16, true},
                       {2, 96, KvType::f16, true},    {1, 80, KvType::f32, true},  {2, 16, KvType::f32, false},
                       {4, 128, KvType::q4_0, false}, {2, 256, KvType::f16, true}, {1, 128, KvType::k8v4, true},
                       {4, 32, KvType::q8_0, true},   {2, 512, KvType::f16, true}, {1, 512, KvType::q8_0, true}};
// With turns and codes of values: all dimensions turn, or some; pairs side by side or apart; more turns than pairs.
const Case kTurnedCases[] = {{2, 64, KvType::f16, true, 2, 8, 32},        {1, 64, KvType::q8_0, true, 1, 8, 32, true},
                             {2, 96, KvType::f16, true, 2, 5, 24},        {4, 80, KvType::f32, true, 1, 8, 40, true},
                             {1, 16, KvType::f32, false, 2, 8, 3},        {2, 128, KvType::k8v4, true, 2, 8, 64},
                             {2, 256, KvType::f16, true, 1, 8, 64},       {1, 512, KvType::f16, true, 2, 8, 128, true},
                             {2, 32, KvType::q8_0, true, 0, 1, 16, true}, {4, 128, KvType::f16, true, 2, 0, 0}};
// ---- making codes

struct Made {
  std::vector<std::vector<int32_t>> numbers;
  std::vector<std::vector<float>> means;
};

// Three heads of two sequences whose pages lie in host memory. The calls cut tiles; the last ones encode tokens again, which have codes
// before and behind them in their tiles: once by another mean.
Made made(Machine* m, const Case& c) {
  const KvFormat kv = kv_format(c.type, kLayers, kKvHeads, c.dim);
  const HostPages pages(m, kv, kTokens, 7), others(m, kv, kTokens, 8);
  Codes first(m, c.format(), kTokens), second(m, c.format(), kTokens), third(m, c.format(), kTokens);
  const TurnTables turns(m, c.n_pairs, kTokens);
  const KeyCodesJob jobs[] = {first.job(pages.view().pages, kv.head_offset(1, 0)), second.job(pages.view().pages, kv.head_offset(0, 1)),
                              third.job(others.view().pages, kv.head_offset(1, 1))};
  const KeyCodesShape shape = codes_shape(kv, c, turns);
  KeyCodeOperations& codes = *(*m)->key_codes();
  codes.mean_keys({jobs, 3}, shape, 4, 200, 3);
  for (const auto& [from, to] : {std::pair(0, 3), std::pair(3, 40), std::pair(40, 64), std::pair(64, 229), std::pair(229, 230),
                                 std::pair(230, kTokens), std::pair(5, 5)})
    codes.encode_keys({jobs, 3}, shape, from, to);
  codes.mean_keys({jobs, 1}, shape, 0, 70, 1);
  codes.encode_keys({jobs, 1}, shape, 70, 100);
  codes.mean_keys({jobs + 1, 1}, shape, 130, 130, 1);  // of no token
  codes.encode_keys({jobs + 1, 1}, shape, 135, 140);
  Made out;
  for (Codes* of : {&first, &second, &third}) {
    of->fetch();
    out.numbers.push_back(of->numbers(0, kTokens));
    out.means.push_back(of->mean.get());
  }
  return out;
}

void expect_bits_of_the_cpu(const Case& c) {
  SCOPED_TRACE(::testing::PrintToString(c));
  const auto [expected, got] = on_both(limits(c.dim), [&](Machine* m) { return made(m, c); });
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(got.means[i], expected.means[i]) << i;
    EXPECT_EQ(got.numbers[i], expected.numbers[i]) << i;
  }
  EXPECT_EQ(got.means[1], std::vector<float>(c.format().mean_bytes() / sizeof(float), 0.0f));  // turns of zeros, too
  if (c.n_turns == 0) return;
  // A head's first turn is one.
  float x = 0;
  std::memcpy(&x, got.means[0].data() + c.dim + offsetof(KeyTurn, x) / sizeof(float), sizeof x);
  EXPECT_NE(x, 0.0f);
}

TEST(GpuKeyCodes, MeansAndCodesHaveTheBitsOfTheCpu) {
  for (const Case& c : kCases) expect_bits_of_the_cpu(c);
}
TEST(GpuKeyCodes, TurnsAndCodesOfValuesHaveTheBitsOfTheCpu) {
  for (const Case& c : kTurnedCases) expect_bits_of_the_cpu(c);
}

// Pairs that lose equally much: the lower ones become turns, whichever lanes have them.
TEST(GpuKeyCodes, TurnsOfEqualPairsAreTheLowerOnes) {
  const Case c{2, 96, KvType::f32, true, 0, 8, 40};
  const KvFormat kv = kv_format(c.type, 1, 1, c.dim);
  const auto [expected, got] = on_both(limits(c.dim), [&](Machine* m) {
    std::vector<float> values = normal_values(static_cast<size_t>(kPageTokens) * 192, 3);
    for (size_t t = 0; t < static_cast<size_t>(kPageTokens); ++t)
      for (size_t i = 0; i < 80; ++i) values[t * 192 + i] = values[t * 192 + (i < 40 ? 0 : 40)];
    Buffer<std::byte> page(m, stored_tokens(kv, values));
    const uint64_t address = page.address();
    Codes codes(m, c.format(), kPageTokens);
    const TurnTables turns(m, c.n_pairs, kPageTokens, true);
    const KeyCodesJob job = codes.job(&address, 0);
    (*m)->key_codes()->mean_keys({&job, 1}, codes_shape(kv, c, turns), 0, kPageTokens, 1);
    return codes.mean.get();
  });
  EXPECT_EQ(got, expected);
  for (int32_t i = 0; i < c.n_turns; ++i) {
    KeyTurn turn;
    std::memcpy(&turn, reinterpret_cast<const std::byte*>(got.data() + c.dim) + static_cast<size_t>(i) * sizeof turn, sizeof turn);
    EXPECT_EQ(turn.pair, i);
    EXPECT_NE(turn.x, 0.0f);
  }
}

// Codes of a generated token, at each place of a tile in turn.
TEST(GpuKeyCodes, TokenByToken) {
  const Case c{2, 32, KvType::f16, true, 1};
  const KvFormat kv = kv_format(c.type, 1, kKvHeads, c.dim);
  const auto [expected, got] = on_both(limits(c.dim), [&](Machine* m) {
    const Pages pages(m, kv, 130, 7);
    Codes codes(m, c.format(), 130);
    const KeyCodesJob job = codes.job(pages.addresses(), kv.head_offset(0, 1));
    const KeyCodesShape shape{kv, codes.format, c.block()};
    (*m)->key_codes()->mean_keys({&job, 1}, shape, 0, 20, 1);
    (*m)->key_codes()->encode_keys({&job, 1}, shape, 0, 20);
    for (int32_t t = 20; t < 130; ++t) (*m)->key_codes()->encode_keys({&job, 1}, shape, t, t + 1);
    codes.fetch();
    return codes.numbers(0, 130);
  });
  EXPECT_EQ(got, expected);
}

// Heads of one session are one launch each, however many they are.
TEST(GpuKeyCodes, ManyHeads) {
  const Case c{1, 32, KvType::f16, true};
  const KvFormat kv = kv_format(c.type, 7, kKvHeads, c.dim);
  const auto [expected, got] = on_both(limits(c.dim), [&](Machine* m) {
    const Pages pages(m, kv, 70, 7);
    std::vector<std::unique_ptr<Codes>> codes;
    std::vector<KeyCodesJob> jobs;
    for (uint32_t head = 0; head < 14; ++head) {
      codes.push_back(std::make_unique<Codes>(m, c.bits, c.dim, 70));
      jobs.push_back(codes.back()->job(pages.addresses(), kv.head_offset(head)));
    }
#ifdef ORRERY_EMULATED
    const uint64_t before = emulated::launches_of("encode_keys_kernel");
#endif
    (*m)->key_codes()->mean_keys(jobs, {kv, codes[0]->format, c.block()}, 0, 70, 1);
    (*m)->key_codes()->encode_keys(jobs, {kv, codes[0]->format, c.block()}, 0, 70);
#ifdef ORRERY_EMULATED
    EXPECT_EQ(emulated::launches_of("encode_keys_kernel") - before, m->cuda() ? 1u : 0u);
#endif
    std::vector<std::vector<int32_t>> all;
    for (const auto& of : codes) of->fetch(), all.push_back(of->numbers(0, 70));
    return all;
  });
  EXPECT_EQ(got, expected);
}

// Twelve jobs, more than a batch, with shares of different lengths; a share of 0 reads nothing, not even a token whose page has no values.
TEST(GpuKeyCodes, MeanValuesHaveTheBitsOfTheCpu) {
  for (const Case& c : {Case{2, 64, KvType::f16, true}, Case{2, 32, KvType::q8_0, true}, Case{2, 96, KvType::k8v4, true},
                        Case{2, 256, KvType::f32, true}}) {
    SCOPED_TRACE(::testing::PrintToString(c));
    const KvFormat kv = kv_format(c.type, kLayers, kKvHeads, c.dim);
    const auto [expected, got] = on_both(limits(c.dim), [&](Machine* m) {
      const HostPages pages(m, kv, kTokens, 9);
      Buffer<float> values(m, static_cast<size_t>(12 * c.dim));
      std::vector<std::vector<float>> shares;
      std::vector<MeanValueJob> jobs;
      for (size_t i = 0; i < 12; ++i) {
        shares.emplace_back(i == 3 ? 0 : static_cast<size_t>(kTokens) - 20 * i);
        for (size_t t = 0; t < shares.back().size(); ++t) shares.back()[t] = t % 3 == i % 3 ? 0.0f : static_cast<float>((t + i) % 7) / 1000;
      }
      for (uint32_t i = 0; i < 12; ++i) {
        MeanValueJob job;
        job.pages = pages.view().pages, job.offset = kv.head_offset(i % 4), job.value = values.ptr() + i * static_cast<uint64_t>(c.dim),
        job.shares = shares[i];
        jobs.push_back(job);
      }
      (*m)->key_codes()->mean_values(jobs, kv);
      return values.get();
    });
    EXPECT_EQ(got, expected);
  }
}

// A key with a NaN or an infinite value has a factor that is NaN. A key that equals the mean has the factor 0.
TEST(GpuKeyCodes, KeysThatAreNotFinite) {
  const KvFormat kv = kv_format(KvType::f32, 1, 1, 32);
  const auto [expected, got] = on_both(limits(32), [&](Machine* m) {
    std::vector<float> values = normal_values(kPageTokens * 64, 3);
    for (size_t i = 0; i < 32; ++i) values[9 * 64 + i] = 0;
    values[6 * 64 + 33] = NAN, values[42 * 64 + 63] = INFINITY;  // of V
    values[5 * 64 + 3] = NAN, values[40 * 64 + 31] = INFINITY, values[41 * 64] = -INFINITY;
    for (size_t i = 0; i < 32; ++i) values[50 * 64 + i] *= 1e7f;  // its factor is the largest half
    Buffer<std::byte> page(m, stored_tokens(kv, values));
    const uint64_t address = page.address();
    Codes codes(m, KeyCodeFormat{2, 32, false, 2}, kPageTokens);
    codes.mean.set(std::vector<float>(32, 0.0f));
    const KeyCodesJob job = codes.job(&address, 0);
    (*m)->key_codes()->encode_keys({&job, 1}, {kv, codes.format, 32}, 0, kPageTokens);
    codes.fetch();
    std::vector<int32_t> numbers, factors, of_values;
    for (int32_t t = 0; t < kPageTokens; ++t) {
      const std::vector<int32_t> one = codes.numbers(t, t + 1);
      factors.push_back(one[32]), of_values.push_back(one.back());
      if (t != 5 && t != 40 && t != 41) numbers.insert(numbers.end(), one.begin(), one.begin() + 33);
      if (t != 6 && t != 42) numbers.insert(numbers.end(), one.begin() + 33, one.end());
    }
    factors.insert(factors.end(), of_values.begin(), of_values.end());
    return std::make_pair(numbers, factors);
  });
  EXPECT_EQ(got, expected);
  for (const int32_t t : {6, 42}) EXPECT_EQ(got.second[static_cast<size_t>(kPageTokens + t)], 0) << t;
  for (const size_t t : {5u, 40u, 41u}) EXPECT_EQ(got.second[t], 0x7FFF) << t;
  EXPECT_EQ(got.second[9], 0);
  EXPECT_EQ(got.second[50], 0x7BFF);
}

// ---- weights and best keys by codes

std::vector<Case> all_cases() {
  std::vector<Case> all(std::begin(kCases), std::end(kCases));
  all.insert(all.end(), std::begin(kTurnedCases), std::end(kTurnedCases));
  return all;
}

// Twelve query heads: any dimension may be a query's largest.
TEST(GpuKeyCodes, WeightsAreThoseOfTheCodes) {
  for (const Case& c : all_cases()) {
    SCOPED_TRACE(::testing::PrintToString(c));
    const Encoded e(c, kTokens, kGroup, 1.7f, 4);  // turns so large that a half of 11 bits would show
    for (int32_t position = kTokens; position < kTokens + 4; ++position) {
      std::vector<float> got(kTokens - 7);
      KeyWeightsJob job = e.job<KeyWeightsJob>(kTokens - 7, position);
      job.mean = true, job.out = got.data();
      e.m->keys()->key_weights({&job, 1}, e.shape());
      ASSERT_TRUE(e.m->synchronize().ok());
      double error = 0;
      const Doubles expected = e.scores(position, 0, kTokens - 7, false, &error);
      ASSERT_LT(error, .02);
      for (size_t i = 0; i < expected.size(); ++i)
        ASSERT_NEAR(static_cast<double>(got[i]), expected[i], expected[i] * (std::exp(2 * error) - 1)) << i;
    }
  }
}

// A tile's weights are relative to its largest product, whichever key has that: otherwise they overflow.
TEST(GpuKeyCodes, SteepWeights) {
  constexpr double kSteep = 200;
  const Encoded e({1, 32, KvType::f16, true}, 300, 1);
  std::vector<float> got(300);
  KeyWeightsJob job = e.job<KeyWeightsJob>(300, 300);
  job.mean = true, job.out = got.data();
  TopKeysShape shape = e.shape();
  shape.scale *= static_cast<float>(kSteep);
  e.m->keys()->key_weights({&job, 1}, shape);
  ASSERT_TRUE(e.m->synchronize().ok());
  double error = 0, total = 0;
  Doubles row = e.products(300, 0, 0, 300, &error);
  const double largest = largest_of(row, 1);
  for (double& x : row) total += x = std::exp(kSteep * (x - largest));
  for (size_t i = 0; i < row.size(); ++i)
    ASSERT_NEAR(static_cast<double>(got[i]), row[i] / total, row[i] / total * (std::exp(2 * kSteep * error) - 1) + 1e-30) << i;
}

// More query heads than a tile of rows has: of a group, and of several positions. 1,100 keys are two thread blocks.
TEST(GpuKeyCodes, ManyRowsAndManyKeys) {
  for (const int32_t bits : {1, 2, 4}) {
    constexpr int32_t kKeys = 1100;
    const Encoded e({bits, 32, KvType::f16, true}, kKeys, 11);
    std::vector<uint32_t> out(3 * 30 + 1, 12345);
    TopKeysJob job = e.job<TopKeysJob>(kKeys, 4, 3);
    job.k = 30, job.out = out.data();
    e.m->keys()->top_keys({&job, 1}, e.shape());
    ASSERT_TRUE(e.m->synchronize().ok());
    EXPECT_EQ(out.back(), 12345u);
    for (int32_t p = 0; p < 3; ++p) {
      double error = 0;
      const Doubles scores = e.scores(4 + p, 0, kKeys, false, &error);
      Doubles order = scores;
      std::sort(order.begin(), order.end(), std::greater<>());
      const std::set<uint32_t> found(out.begin() + 30 * p, out.begin() + 30 * (p + 1));
      EXPECT_EQ(found.size(), 30u);
      for (const uint32_t key : found) EXPECT_GT(scores[key] * std::exp(4 * error), order[29]) << p;
    }
  }
}

// The k best of the candidates, and for each query head the weight of the others.
TEST(GpuKeyCodes, BestKeysAndTheWeightOfTheOthers) {
  for (const Case& c : all_cases())
    for (const bool max : {false, true}) {
      SCOPED_TRACE(::testing::PrintToString(c));
      const Encoded e(c, kTokens, kGroup, 1.2f);
      const int32_t first = max ? 5 : 70, n = kTokens - 2, k = 40;  // two codes at the end are no candidates
      std::vector<uint32_t> out(static_cast<size_t>(k) + 1, 12345);
      Buffer<float> logs(const_cast<Machine*>(&e.m), kGroup);
      TopKeysJob job = e.job<TopKeysJob>(n, kTokens);
      job.first_key = first, job.k = k, job.out = out.data(), job.log_evicted = logs.ptr();
      e.m->keys()->top_keys({&job, 1}, e.shape(max));
      ASSERT_TRUE(e.m->synchronize().ok());
      EXPECT_EQ(out.back(), 12345u);
      out.pop_back();
      EXPECT_TRUE(std::is_sorted(out.begin(), out.end()));
      const std::set<uint32_t> best(out.begin(), out.end());
      ASSERT_EQ(best.size(), static_cast<size_t>(k));
      ASSERT_LT(*best.rbegin(), static_cast<uint32_t>(n - first));
      double error = 0;
      const Doubles scores = e.scores(kTokens, first, n, max, &error);
      Doubles order = scores;
      std::sort(order.begin(), order.end(), std::greater<>());
      const double last = order[static_cast<size_t>(k - 1)], next = order[static_cast<size_t>(k)], margin = std::exp(4 * error);
      int32_t n_checked = 0;
      for (uint32_t i = 0; i < scores.size(); ++i) {
        const bool is_best = scores[i] > next * margin, is_other = scores[i] * margin < last;
        if (!is_best && !is_other) continue;
        EXPECT_EQ(best.count(i) > 0, is_best) << i;
        ++n_checked;
      }
      EXPECT_GT(n_checked, (n - first) / 2);
      for (int32_t g = 0; g < kGroup; ++g) {
        const Doubles row = e.products(kTokens, g, first, n, &error);
        double others = 0;
        for (uint32_t i = 0; i < row.size(); ++i) others += best.count(i) ? 0 : std::exp(row[i]);
        EXPECT_NEAR(std::log(2.0) * static_cast<double>(logs.get()[static_cast<size_t>(g)]), std::log(others), error + 1e-5) << g;
      }
    }
}

struct Asked {
  std::vector<uint32_t> best;
  uint32_t n_found = 0;
  float log = 0;
};
// The k best keys from `first` on, by the last position's query.
Asked ask(Encoded* e, int32_t first, int32_t n_keys, int32_t k, float times_scale = 1, float least = -1, Span<const uint32_t> held = {},
          float stay = 1) {
  Asked out;
  out.best.assign(static_cast<size_t>(k), 0);
  Buffer<float> logs(&e->m, static_cast<size_t>(e->group));
  TopKeysJob job = e->job<TopKeysJob>(n_keys, e->n_tokens);
  job.first_key = first, job.k = k, job.out = out.best.data(), job.log_evicted = logs.ptr(), job.held = held, job.stay = stay;
  if (least >= 0) job.least = least, job.n_found = &out.n_found;
  TopKeysShape shape = e->shape();
  shape.scale *= times_scale;
  e->m->keys()->top_keys({&job, 1}, shape);
  EXPECT_TRUE(e->m->synchronize().ok());
  if (least >= 0) out.best.resize(out.n_found);
  out.log = logs.get().back();
  return out;
}

// Earlier keys than the first candidate have no weight, even where they would have nearly all.
TEST(GpuKeyCodes, EarlierKeysHaveNoWeight) {
  Encoded e({2, 32, KvType::f16, true}, 200, 1);
  std::vector<float> all(200);
  KeyWeightsJob weights = e.job<KeyWeightsJob>(200, 200);
  weights.mean = true, weights.out = all.data();
  e.m->keys()->key_weights({&weights, 1}, e.shape());
  const uint32_t heaviest = static_cast<uint32_t>(std::max_element(all.begin(), all.end()) - all.begin());
  const auto first = static_cast<int32_t>(heaviest) + 1;
  ASSERT_LT(first, 190);
  double expected = 0, error = 0;
  const Doubles row = e.products(200, 0, first, 200, &error);
  const Asked got = ask(&e, first, 200, 1);
  for (size_t i = 0; i < row.size(); ++i) expected += i == got.best[0] ? 0 : std::exp(row[i]);
  EXPECT_NEAR(static_cast<double>(got.log) * std::log(2.0), std::log(expected), error + 1e-5);
  EXPECT_EQ(got.best[0], static_cast<uint32_t>(std::max_element(row.begin(), row.end()) - row.begin()));
}

TEST(GpuKeyCodes, NothingIsLeftWhereAllAreBest) {
  Encoded e({2, 32, KvType::f16, true}, 80, 1);
  for (const auto& [first, n, k, left] : {std::tuple(3, 80, 77, false), std::tuple(3, 80, 76, true), std::tuple(70, 80, 10, false),
                                          std::tuple(0, 80, 80, false), std::tuple(0, 64, 64, false)})
    EXPECT_EQ(std::isfinite(ask(&e, first, n, k).log), left) << first << ", " << k;
  for (int32_t first = 0; first < 75; first += 3)
    EXPECT_EQ(ask(&e, first, 80, 80 - first).log, -INFINITY) << first;  // whatever a tile's sum rounds to
}

// Of 340 tokens' six tiles, four tell the variance of a query's products: 0, 1, 3 and 5. Above kMostCodeVariance there is no weight.
TEST(GpuKeyCodes, WeighNothingWhereTheyTellTooLittle) {
  for (const int32_t n : {340, 100}) {
    const int32_t bits = n == 340 ? 2 : 1;
    Encoded e({bits, 32, KvType::f16, true}, n, 1);
    double squares = 0, n_keys = 0, of_query = 0;
    for (int32_t t = 7; t < n; ++t)
      if (t / kPageTokens != 2 && t / kPageTokens != 4) squares += e.codes.factor(t) * e.codes.factor(t), ++n_keys;
    for (const double x : e.query(n, 0)) of_query += x * x;
    const double at_scale_1 = squares / n_keys * of_query * (bits == 2 ? .11748 : .36338);
    for (const double variance : {1.998, 2.002})
      EXPECT_EQ(std::isfinite(ask(&e, 7, n, 20, static_cast<float>(std::sqrt(variance / at_scale_1) / e.scale())).log), variance < 2)
          << variance;
  }
}

// Scores of held keys count `stay` times, and the weights of the others stay as they are.
TEST(GpuKeyCodes, HeldKeysStayWhereTheirScoresAreNear) {
  constexpr int32_t kKeys = 300, kBest = 50, kFirst = 9;
  Encoded e({1, 32, KvType::f16, true}, kKeys, 1);
  double error = 0;
  const Doubles row = e.products(kKeys, 0, kFirst, kKeys, &error);
  std::vector<uint32_t> order(row.size()), held;
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return row[a] > row[b]; });
  for (uint32_t i = 0; i < 10; ++i) held.push_back(order[kBest + 5 * i] + kFirst);  // just behind the best, and further behind
  for (const double stay : {1.0, 1.25, 2.0, 64.0}) {
    Doubles weighed = row;
    for (const uint32_t key : held) weighed[key - kFirst] += std::log(stay);
    std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return weighed[a] > weighed[b]; });
    const Asked got = ask(&e, kFirst, kKeys, kBest, 1, -1, held, static_cast<float>(stay));
    const std::set<uint32_t> best(got.best.begin(), got.best.end());
    EXPECT_EQ(best.size(), static_cast<size_t>(kBest));
    double others = 0;
    for (uint32_t key = 0; key < row.size(); ++key) {
      others += best.count(key) ? 0 : std::exp(row[key]);
      const bool is_best = weighed[key] > weighed[order[kBest]] + 2 * error,
                 is_other = weighed[key] + 2 * error < weighed[order[kBest - 1]];
      if (is_best || is_other) {
        EXPECT_EQ(best.count(key) > 0, is_best) << key << ", stay " << stay;
      }
    }
    EXPECT_NEAR(static_cast<double>(got.log) * std::log(2.0), std::log(others), error + 1e-5) << stay;
  }
  // Also where the best keys are only counted.
  for (const float stay : {1.0f, 64.0f}) {
    uint32_t n_common = 0;
    std::vector<uint32_t> among = held;
    std::sort(among.begin(), among.end());
    TopKeysJob job = e.job<TopKeysJob>(kKeys, kKeys);
    job.k = kBest, job.among = among, job.n_common = &n_common, job.held = held, job.stay = stay;
    e.m->keys()->top_keys({&job, 1}, e.shape());
    EXPECT_EQ(n_common, stay == 1 ? 0u : 10u);
  }
}

// Keys with a smaller score than `least` are left out: at most k keys are found, and at least one.
TEST(GpuKeyCodes, ScoresBelowTheLeastAreLeftOut) {
  constexpr int32_t kKeys = 300, kFirst = 4;
  Encoded e({2, 32, KvType::f16, true}, kKeys, 1);
  double error = 0;
  const Doubles scores = e.scores(kKeys, kFirst, kKeys, false, &error);
  Doubles order = scores;
  std::sort(order.begin(), order.end(), std::greater<>());
  const auto between = [&](size_t i) { return static_cast<float>(std::sqrt(order[i - 1] * order[i])); };  // i keys reach it
  for (const auto& [least, n] :
       {std::pair(between(25), 25u), std::pair(between(1), 1u), std::pair(between(70), 50u), std::pair(1.0f, 1u), std::pair(0.0f, 50u)}) {
    const Asked got = ask(&e, kFirst, kKeys, 50, 1, least);
    ASSERT_EQ(got.n_found, n) << least;
    for (const uint32_t key : got.best) EXPECT_GT(scores[key] * std::exp(4 * error), order[n - 1]) << least;
    double others = 0, error_of_row = 0;
    const Doubles row = e.products(kKeys, 0, kFirst, kKeys, &error_of_row);
    for (uint32_t i = 0; i < row.size(); ++i) others += std::count(got.best.begin(), got.best.end(), i) ? 0 : std::exp(row[i]);
    EXPECT_NEAR(static_cast<double>(got.log) * std::log(2.0), std::log(others), error + 1e-5) << least;
  }
}

// A key that is not finite is found by no query, and a query that is not finite finds the first keys.
TEST(GpuKeyCodes, WhatIsNotFinite) {
  for (const int32_t bits : {1, 2, 4}) {
    Encoded e({bits, 32, KvType::f16, true}, 80, 1);
    std::vector<std::byte> bytes = e.codes.tiles.get();
    const uint16_t nan = 0x7E00;
    for (const size_t key : {20u, 21u}) std::memcpy(&bytes[e.codes.format.factors_offset() + 2 * key], &nan, 2);
    e.codes.tiles.set(bytes);
    const Asked got = ask(&e, 3, 80, 75);  // of 77
    std::vector<uint32_t> expected;
    for (uint32_t i = 0; i < 77; ++i)
      if (i != 17 && i != 18) expected.push_back(i);
    EXPECT_EQ(got.best, expected);
    EXPECT_EQ(ask(&e, 3, 80, 5, bits == 1 ? 2 : bits == 2 ? 4 : 14).log, -INFINITY) << "the other keys tell too little of this query";
    EXPECT_TRUE(std::isfinite(ask(&e, 3, 80, 5).log));
    for (const float x : {INFINITY, NAN}) {
      e.queries[static_cast<size_t>((kRing + 80 % kRing) * kKvHeads + 1) * 32 + 5] = x;
      e.ring.set(e.queries);
      const Asked other = ask(&e, 3, 80, 2);
      EXPECT_EQ(other.best, (std::vector<uint32_t>{0, 1}));
      EXPECT_EQ(other.log, -INFINITY);
    }
  }
}

#ifdef ORRERY_EMULATED
TEST(GpuKeyCodes, ThreadsRunInAnyOrder) {
  for (const Case& c : {kCases[0], kCases[2]}) {
    const auto all = [&] {
      Encoded e(c);
      const Asked asked = ask(&e, 5, kTokens, 40, 1, .002f);
      return std::make_tuple(e.codes.numbers(0, kTokens), asked.best, asked.log);
    };
    const auto forwards = all();
    emulated::set_reversed(true);
    const auto backwards = all();
    emulated::set_reversed(false);
    EXPECT_EQ(forwards, backwards);
  }
}
#endif

}  // namespace
}  // namespace orrery::gpu_key_codes_test
