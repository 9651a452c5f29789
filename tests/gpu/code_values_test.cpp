// Tests the means of evicted values by codes (cuda/kernels/key_codes.cu), and sessions whose heads go by codes: against the decoded codes in
// double precision.
#include <set>

#include "tests/gpu/key_codes.h"
#include "tests/support/policy_sessions.h"

namespace orrery::gpu_key_codes_test {
namespace {

struct ValueCase {
  Case c;
  int32_t n_tokens, group;
};
// Blocks of 64 dimensions, whole and cut; more query heads than a tile of rows has; one stretch of tiles, two (the last of 20 tiles), nine.
const ValueCase kValueCases[] = {{{2, 64, KvType::f16, true, 2, 8, 32}, 301, 3}, {{1, 64, KvType::q8_0, true, 1}, 301, 9},
                                 {{2, 96, KvType::f16, true, 2}, 130, 1},        {{2, 256, KvType::f16, true, 1}, 2301, 2},
                                 {{2, 512, KvType::f16, true, 2}, 200, 2},       {{4, 80, KvType::f32, true, 2, 8, 40}, 301, 3},
                                 {{1, 16, KvType::f32, false, 1}, 301, 4},       {{2, 128, KvType::k8v4, true, 2, 8, 64, true}, 2301, 4},
                                 {{2, 32, KvType::f16, true, 2, 8, 16}, 9400, 1}};

// For each query head the mean of the values of all keys but the best ones, by their codes and by the weights of the keys' codes.
TEST(GpuKeyCodes, MeansOfEvictedValuesAreThoseOfTheirCodes) {
  for (const ValueCase& v : kValueCases) {
    const Case& c = v.c;
    SCOPED_TRACE(::testing::PrintToString(c) + ", " + std::to_string(v.n_tokens) + " tokens");
    constexpr int32_t kFirst = 4;
    const int32_t n = v.n_tokens - 3, k = 16;
    Encoded e(c, v.n_tokens, v.group, 1.2f);
    const auto dim = static_cast<size_t>(c.dim);
    std::vector<uint32_t> out(static_cast<size_t>(k));
    Buffer<float> logs(&e.m, static_cast<size_t>(v.group)), values(&e.m, static_cast<size_t>(v.group) * dim);
    TopKeysJob job = e.job<TopKeysJob>(n, v.n_tokens);
    job.first_key = kFirst, job.k = k, job.out = out.data(), job.log_evicted = logs.ptr(), job.value_evicted = values.ptr();
    e.m->keys()->top_keys({&job, 1}, e.shape());
    ASSERT_TRUE(e.m->synchronize().ok());
    const std::set<uint32_t> best(out.begin(), out.end());
    const auto level = [&](int32_t key, size_t d) {
      const std::byte* tile = e.codes.tile(key);
      return static_cast<double>(half_to_float(value_factor_of(c.format(), tile, key))) *
             static_cast<double>(key_code_level(c.value_bits, value_code_of(c.format(), tile, key, static_cast<int32_t>(d))));
    };
    const auto most_level = static_cast<double>(key_code_level(c.value_bits, (1 << c.value_bits) - 1));
    std::vector<float> weights(static_cast<size_t>(v.group * n));  // as the device has them; another test compares them
    KeyWeightsJob weigh = e.job<KeyWeightsJob>(n, v.n_tokens);
    weigh.first_key = kFirst, weigh.out = weights.data();
    e.m->keys()->key_weights({&weigh, 1}, e.shape());
    for (int32_t g = 0; g < v.group; ++g) {
      ASSERT_TRUE(std::isfinite(logs.get()[static_cast<size_t>(g)])) << g;
      double total = 0, bound = 0;
      Doubles row(weights.begin() + g * n, weights.begin() + (g + 1) * n), expected(dim);
      for (const uint32_t key : best) row[key + kFirst] = 0;
      for (const double x : row) total += x;
      for (int32_t tile = 0; tile * kPageTokens < n; ++tile) {
        double most = 0, sum = 0;
        for (int32_t key = tile * kPageTokens; key < std::min(n, (tile + 1) * kPageTokens); ++key) {
          const double share = row[static_cast<size_t>(key)] / total;
          for (size_t d = 0; d < dim; ++d) expected[d] += share * level(key, d);
          const double weighed = share * static_cast<double>(half_to_float(value_factor_of(c.format(), e.codes.tile(key), key)));
          most = std::max(most, weighed), sum += weighed;
        }
        bound += most_level * kPageTokens * .51 * most / 32512 + sum * level_error(c.value_bits);  // half of a step of each weight
      }
      const std::vector<float> all = values.get();
      const Doubles got = rotated(Doubles(all.begin() + g * c.dim, all.begin() + (g + 1) * c.dim), c.block());
      EXPECT_LT(bound, 2e-3);
      for (size_t d = 0; d < dim; ++d) ASSERT_NEAR(got[d], expected[d], bound + 1e-5) << g << ", " << d;
    }
  }
}

// Where codes tell too little of a query, the mean is zeros.
TEST(GpuKeyCodes, NoMeanOfValuesWhereCodesTellTooLittle) {
  Encoded e({1, 32, KvType::f16, true, 2}, 300, 1);
  Buffer<float> log(&e.m, 1), values(&e.m, 32);
  std::vector<uint32_t> out(100);
  TopKeysJob job = e.job<TopKeysJob>(300, 300);
  job.k = 100, job.out = out.data(), job.log_evicted = log.ptr(), job.value_evicted = values.ptr();
  for (const float times : {1.0f, 40.0f, 4000.0f}) {
    TopKeysShape shape = e.shape();
    shape.scale *= times;
    e.m->keys()->top_keys({&job, 1}, shape);
    ASSERT_TRUE(e.m->synchronize().ok());
    EXPECT_EQ(std::isfinite(log.get()[0]), times == 1) << times;
    double size = 0;
    for (const float x : values.get()) size += std::fabs(static_cast<double>(x));
    EXPECT_TRUE(std::isfinite(size)) << times;
    EXPECT_EQ(size > 0, times == 1) << times;
  }
}

// Where a query's best keys have nearly all weights, the mean is finite: here one of two keys is left, in a tile of its own. Turns make
// products steep without making codes tell less.
TEST(GpuKeyCodes, MeansOfEvictedValuesWithNearlyNoWeight) {
  Encoded e({2, 64, KvType::f16, true, 2, 8, 32}, 65, 1);
  const std::vector<float> means = e.codes.mean.get();
  Buffer<float> log(&e.m, 1), values(&e.m, 64);
  uint32_t best = 0;
  size_t n_little = 0, n_others = 0;
  for (float times = 4; times < 800; times *= 1.1f) {
    std::vector<float> larger = means;
    for (size_t i = 0; i < 8; ++i)
      for (const size_t xy : {3u, 4u}) larger[64 + 5 * i + xy] *= times;
    e.codes.mean.set(larger);
    for (int32_t position = 65; position < 65 + kRing; ++position) {
      TopKeysJob job = e.job<TopKeysJob>(65, position);
      job.first_key = 63, job.k = 1, job.out = &best, job.log_evicted = log.ptr(), job.value_evicted = values.ptr();
      e.m->keys()->top_keys({&job, 1}, e.shape());
      ASSERT_TRUE(e.m->synchronize().ok());
      double size = 0;
      for (const float x : values.get()) size += std::fabs(static_cast<double>(x));
      EXPECT_TRUE(std::isfinite(size)) << times << ", " << position;
      n_others += size > 1;
      n_little += std::isfinite(log.get()[0]) && size == 0;
    }
  }
  EXPECT_GT(n_little, 0u) << "less weight than a mean is made of";
  EXPECT_GT(n_others, 10u);
}

// ---- sessions

// In each step a head holds the tokens that the step's query finds by codes, and the evicted tokens have their weight by codes. Queries,
// codes and weights come from the device.
TEST(GpuKeyCodeSessions, HoldWhatQueriesFind) {
  struct Mode {
    policy::Options options;
    uint32_t n_first, n_last;
    bool max;
    KvType kept, resident;
  };
  for (const Mode& mode :
       {Mode{{{"bits", "2"}, {"window", "4"}}, 4, 4, true, KvType::f16, KvType::q8_0},
        Mode{{{"bits", "1"}, {"reduce", "mean"}, {"sinks", "2"}, {"window", "3"}}, 2, 3, false, KvType::f16, KvType::f16},
        Mode{{{"bits", "4"}, {"heads", "uniform"}, {"sinks", "3"}, {"window", "3"}}, 3, 3, true, KvType::q8_0, KvType::k8v4},
        Mode{{{"values", "2"}, {"window", "4"}}, 4, 4, true, KvType::f16, KvType::f16},
        Mode{{{"values", "1"}, {"bits", "1"}, {"window", "4"}}, 4, 4, true, KvType::f16, KvType::q8_0}}) {
    const auto model = open_spec("qwen3", on_cuda());
    engine::SessionOptions options =
        with_mode({"", "keycodes", mode.options, true, true}, share_of_tokens(.6, mode.kept, mode.resident), 192, mode.kept);
    options.device_kv_type = mode.resident, options.policy_options.emplace_back("stay", "1");
    const auto session = unwrap(engine::Session::open(model, options));
    unwrap(session->prefill(random_tokens(*model, 130, 1), nullptr, nullptr));
    const engine::Resident& resident = *session->resident();
    const model::Description& h = model->description();
    const auto kv_heads = static_cast<uint32_t>(h.kv().n_kv_heads), group = static_cast<uint32_t>(h.kv().n_heads / h.kv().n_kv_heads);
    const auto dim = static_cast<size_t>(h.kv().head_dim);
    size_t n_weighed = 0, n_checked = 0, n_all = 0, n_values = 0;
    for (int32_t step = 0; step < 6; ++step) {
      feed(session.get(), 11 * step + 3);
      read_positions(session.get());
      const Turn turn = model->runtime().take_turn();
      const uint32_t n_tokens = session->n_computed(), end = n_tokens - mode.n_last;
      const kv::KeyCodes& codes = *resident.key_codes();
      const KeyTurnTables& tables = codes.turn_tables();
      TurnAngles angles{tables.n_pairs, {}, {}};
      const auto n_pairs = static_cast<size_t>(tables.n_pairs);
      angles.tiles.resize(2 * n_pairs * (n_tokens / kPageTokens + 1)), angles.within.resize(2 * n_pairs * kPageTokens);
      turn.backend().download(angles.tiles.data(), {tables.tiles.address}, angles.tiles.size() * sizeof(float));
      turn.backend().download(angles.within.data(), {tables.within.address}, angles.within.size() * sizeof(float));
      for (uint32_t head = 0; head < resident.store().n_heads(); ++head) {
        const Span<const uint32_t> held = resident.store().positions(head);
        const std::set<uint32_t> tokens(held.begin(), held.end());
        ASSERT_EQ(tokens.size(), held.size());
        for (uint32_t p = 0; p < n_tokens; ++p) ASSERT_TRUE(tokens.count(p) || (p >= mode.n_first && p < end)) << p << " of " << n_tokens;
        const size_t n_best = held.size() - mode.n_first - mode.n_last;
        if (n_best == end - mode.n_first) continue;
        std::vector<std::vector<std::byte>> tiles;
        for (uint32_t t = 0; t * kPageTokens < end; ++t) {
          tiles.emplace_back(codes.format().tile_bytes());
          turn.backend().download(tiles.back().data(), {codes.tiles(head)[t]}, tiles.back().size());
        }
        const QueryRing ring = resident.queries();
        const uint64_t row =
            uint64_t{head / kv_heads} * static_cast<uint64_t>(ring.n_rows) + (n_tokens - 1) % static_cast<uint32_t>(ring.n_rows);
        std::vector<float> queries(group * dim), logs(group);
        turn.backend().download(queries.data(), {ring.data.address + (row * kv_heads + head % kv_heads) * queries.size() * sizeof(float)},
                                queries.size() * sizeof(float));
        const HeadView& view = resident.views()[head];
        ASSERT_EQ(view.compensation_token.address, codes.mean(head).address);
        turn.backend().download(logs.data(), {view.compensation_logs.address}, logs.size() * sizeof(float));
        std::vector<Doubles> rows;
        double error = 0;
        std::vector<KeyTurn> turns(static_cast<size_t>(codes.format().n_turns));
        ASSERT_EQ(turns.size(), session->options().rotated(h) ? 0 : std::min<size_t>(kMostTurns, dim / 2));
        turn.backend().download(turns.data(), {codes.turns(head).address}, turns.size() * sizeof(KeyTurn));
        for (uint32_t g = 0; g < group; ++g) {
          const auto turned = [&](int32_t key, double* size) {
            double sum = 0;
            for (const KeyTurn& t : turns) sum += angles.product(t, &queries[g * dim], key, size);
            return sum;
          };
          const Doubles q =
              rotated(Doubles(queries.begin() + static_cast<ptrdiff_t>(g * dim), queries.begin() + static_cast<ptrdiff_t>((g + 1) * dim)),
                      codes.block());
          rows.push_back(products_of(
              codes.format(), q, 1 / std::sqrt(static_cast<double>(dim)), static_cast<int32_t>(mode.n_first), static_cast<int32_t>(end),
              [&](int32_t key) { return tiles[static_cast<size_t>(key / kPageTokens)].data(); }, turned, &error));
        }
        const Doubles scores = scores_of(rows, mode.max);
        const double last = largest_of(scores, n_best), next = largest_of(scores, n_best + 1), margin = std::exp(4 * error);
        for (uint32_t i = 0; i < scores.size(); ++i) {
          const bool is_best = scores[i] > next * margin, is_other = scores[i] * margin < last;
          n_checked += is_best || is_other, ++n_all;
          ASSERT_TRUE(!(is_best || is_other) || (tokens.count(i + mode.n_first) > 0) == is_best)
              << "head " << head << ", token " << i + mode.n_first;
        }
        for (uint32_t g = 0; head + kv_heads >= resident.store().n_heads() && g < group; ++g) {  // the other layers' are gone
          double evicted = 0;
          for (uint32_t i = 0; i < rows[g].size(); ++i) evicted += tokens.count(i + mode.n_first) ? 0 : std::exp(rows[g][i]);
          if (std::isinf(logs[g])) continue;  // a query of which codes tell too little
          EXPECT_NEAR(static_cast<double>(logs[g]) * std::log(2.0), std::log(evicted), error + 1e-5);
          ++n_weighed;
          ASSERT_EQ(static_cast<bool>(view.compensation_values), codes.format().value_bits > 0);
          if (!view.compensation_values) continue;
          std::vector<float> given(dim);
          turn.backend().download(given.data(), {view.compensation_values.address + g * dim * sizeof(float)}, dim * sizeof(float));
          const Doubles got = rotated(Doubles(given.begin(), given.end()), codes.block());
          Doubles expected(dim);
          for (uint32_t i = 0; i < rows[g].size(); ++i) {
            if (tokens.count(i + mode.n_first)) continue;
            const auto key = static_cast<int32_t>(i + mode.n_first);
            const std::byte* tile = tiles[static_cast<size_t>(key / kPageTokens)].data();
            const double weight =
                std::exp(rows[g][i]) / evicted * static_cast<double>(half_to_float(value_factor_of(codes.format(), tile, key)));
            for (size_t d = 0; d < dim; ++d)
              expected[d] += weight * static_cast<double>(key_code_level(
                                          codes.format().value_bits, value_code_of(codes.format(), tile, key, static_cast<int32_t>(d))));
          }
          for (size_t d = 0; d < dim; ++d) EXPECT_NEAR(got[d], expected[d], .01) << "head " << head << ", " << g << ", " << d;
          ++n_values;
        }
      }
    }
    EXPECT_GT(n_weighed, 4u);
    EXPECT_EQ(n_values > 0, session->resident()->key_codes()->format().value_bits > 0);
    EXPECT_GT(n_all, 1000u);
    EXPECT_GT(n_checked * 10, n_all * 9);
    EXPECT_GT(resident.refill_stats().tokens, 20u);
  }
}

}  // namespace
}  // namespace orrery::gpu_key_codes_test
