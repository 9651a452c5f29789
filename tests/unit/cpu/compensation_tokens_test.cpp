// Compensation tokens, on every instruction set: their values in double precision, and attention to a token with a weight, as to many equal
// tokens or to a part of one.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/support/bf16.h"
#include "tests/support/doubles.h"
#include "tests/unit/cpu/tokens.h"

namespace orrery::compensation_tokens_test {
namespace {

using namespace orrery::testing;

constexpr int32_t kDims[] = {32, 64, 80, 128, 512};

StepLimits limits(int32_t n_kv_heads, int32_t group, int32_t dim, int32_t max_context) {
  StepLimits l;
  l.max_rows = 1, l.max_context = max_context;
  l.n_heads = n_kv_heads * group, l.n_kv_heads = n_kv_heads, l.head_dim = dim;
  l.max_in = 64, l.n_layers = 1;
  return l;
}

class CpuCompensationTokens : public ::testing::TestWithParam<std::string> {};

TEST_P(CpuCompensationTokens, TakeInTokens) {
  for (const KvType type : kKvTypes)
    for (const int32_t dim : kDims) {
      if (!stores(type, dim)) continue;
      Rig rig(GetParam(), 2, limits(3, 1, dim, 256));
      const size_t n_values = 2 * static_cast<size_t>(dim);
      std::vector<std::unique_ptr<HeadTokens>> heads;
      std::vector<std::unique_ptr<Guarded<float>>> means;
      for (uint64_t h = 0; h < 3; ++h) {
        heads.push_back(std::make_unique<HeadTokens>(type, dim, 200, 10 + h));
        means.push_back(std::make_unique<Guarded<float>>(n_values));
      }
      // Head by head other tokens: over tiles, the last one too; in two goes; one alone behind them.
      const int32_t stretches[3][2][2] = {{{5, 190}, {190, 200}}, {{64, 128}, {0, 7}}, {{63, 64}, {199, 200}}};
      for (int go = 0; go < 2; ++go) {
        std::vector<CompensationJob> jobs;
        for (size_t h = 0; h < 3; ++h) {
          const auto& [first, second] = stretches[h];
          jobs.push_back({heads[h]->tiles(), 0, stretches[h][go][0], stretches[h][go][1], go == 0 ? 0 : first[1] - first[0],
                          means[h]->ptr(), nullptr});
          (void)second;
        }
        rig->summaries()->add_to_compensation_tokens(jobs, heads[0]->format());
        for (size_t h = 0; h < 3; ++h) {
          std::vector<double> sums(n_values);
          int32_t n = 0;
          for (int i = 0; i <= go; ++i)
            for (int32_t t = stretches[h][i][0]; t < stretches[h][i][1]; ++t, ++n) {
              const std::vector<float> x = heads[h]->token(t);
              for (size_t v = 0; v < n_values; ++v) sums[v] += static_cast<double>(x[v]);
            }
          for (size_t v = 0; v < n_values; ++v)
            ASSERT_NEAR((*means[h])[v], sums[v] / n, 2e-7)
                << "type " << static_cast<int>(type) << ", dim " << dim << ", head " << h << ", go " << go;
        }
      }
    }
}

// Each token by its share; what has none is not read. What stood there does not matter.
TEST_P(CpuCompensationTokens, TakeInTokensByShares) {
  for (const KvType type : kKvTypes)
    for (const int32_t dim : kDims) {
      if (!stores(type, dim)) continue;
      Rig rig(GetParam(), 2, limits(1, 1, dim, 256));
      const size_t n_values = 2 * static_cast<size_t>(dim);
      const HeadTokens tokens(type, dim, 200, 12);
      std::vector<uint64_t> tiles(tokens.tiles(), tokens.tiles() + 4);
      tiles[1] = 0;  // nothing of the second tile
      Guarded<float> mean(n_values), shares(190);
      for (int go = 0; go < 2; ++go) {
        fill_normal(shares, 5 + static_cast<uint64_t>(go), 1.0f);
        const int32_t first = 5;
        std::vector<double> sums(n_values);
        for (int32_t t = 0; t < 190; ++t) {
          float& share = shares[static_cast<size_t>(t)];
          share = (first + t) / kPageTokens == 1 || t % 7 == 3 ? 0.0f : std::fabs(share) / 100;
          if (share == 0.0f) continue;
          const std::vector<float> x = tokens.token(first + t);
          for (size_t v = 0; v < n_values; ++v) sums[v] += static_cast<double>(share) * static_cast<double>(x[v]);
        }
        fill_normal(mean, 9, 1.0f);
        const CompensationJob job{tiles.data(), 0, first, first + 190, 0, mean.ptr(), shares.data()};
        rig->summaries()->add_to_compensation_tokens({&job, 1}, tokens.format());
        for (size_t v = 0; v < n_values; ++v)
          ASSERT_NEAR(mean[v], sums[v], 1e-7 * (1 + std::fabs(sums[v])))
              << "type " << static_cast<int>(type) << ", dim " << dim << ", value " << v;
      }
    }
}

// The mean of tokens alike is the token, however many have come and in however many goes.
TEST_P(CpuCompensationTokens, OfTokensAlikeIsTheToken) {
  Rig rig(GetParam(), 1, limits(1, 1, 64, 64));
  const HeadTokens one(KvType::f16, 64, 1, 3);
  const std::vector<uint64_t> tiles(1000, one.tiles()[0]);
  Guarded<float> mean(128);
  int32_t n = 0;
  for (int32_t i = 0; i < 999; ++i, ++n) {
    const CompensationJob job{tiles.data(), 0, i * kPageTokens, i * kPageTokens + 1, n, mean.ptr(), nullptr};
    rig->summaries()->add_to_compensation_tokens({&job, 1}, one.format());
    const std::vector<float> token = one.token(0);
    ASSERT_EQ(std::memcmp(mean.data(), token.data(), token.size() * sizeof(float)), 0) << n;
  }
}

// Heads with and without a mean in one step, of slots that do and do not fill their splits. The last heads' weights are logarithms; two of
// these heads have a V for each query head.
TEST_P(CpuCompensationTokens, WeighAsManyTokensAlike) {
  constexpr int32_t kKvHeads = 7, kGroup = 3, kFirstOfLogs = 4;
  for (const KvType type : kKvTypes)
    for (const int32_t dim : kDims) {
      if (!stores(type, dim)) continue;
      const int32_t n_slots[kKvHeads] = {1, 300, 1024, 64, 300, 1, 64};
      const float weights[kKvHeads] = {.3f, 7, 100000, 0, 50, .3f, 0};
      Rig rig(GetParam(), 2, limits(kKvHeads, kGroup, dim, 1024));
      const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
      const size_t n_values = 2 * static_cast<size_t>(dim), width = static_cast<size_t>(kKvHeads * kGroup * dim);
      std::vector<std::unique_ptr<HeadTokens>> heads;
      std::vector<std::unique_ptr<Guarded<float>>> means;
      Guarded<float> logs(kKvHeads * kGroup), values(width);
      fill_normal(values, 40, .5f);
      const auto has_values = [](size_t h) { return h == kFirstOfLogs || h == kKvHeads - 1; };
      std::vector<HeadView> views;
      for (size_t h = 0; h < kKvHeads; ++h) {
        heads.push_back(std::make_unique<HeadTokens>(type, dim, n_slots[h], 20 + h));
        means.push_back(std::make_unique<Guarded<float>>(n_values));
        fill_normal(*means.back(), 30 + h, .5f);
        views.push_back({heads[h]->tiles(), n_slots[h], 0, {}, means[h]->cptr(), weights[h]});
        std::fill_n(logs.data() + h * kGroup, kGroup, std::log2(weights[h]));
        if (h >= kFirstOfLogs) views.back().compensation_weight = 0, views.back().compensation_logs = logs.cptr() + h * kGroup;
        if (has_values(h)) views.back().compensation_values = values.cptr() + h * kGroup * static_cast<uint64_t>(dim);
      }
      Guarded<float> q(width), out(width);
      fill_normal(q, 6, 1.5f);
      const uint64_t page = 0;
      const KvView view{&page, 1};
      const Row row{0, 2000, 0};
      Step step;
      step.phase = Phase::decode;
      step.rows = {&row, 1}, step.sequences = {&view, 1};
      step.kv = step.heads_kv = {type, 1, kKvHeads, dim};
      step.heads = views;
      rig->begin_step(step);
      rig->attend(0, q.cptr(), out.ptr(), {kKvHeads * kGroup, static_cast<int64_t>(width), static_cast<int64_t>(width), scale, 0});
      rig->end_step();
      for (int32_t head = 0; head < kKvHeads * kGroup; ++head) {
        const size_t h = static_cast<size_t>(head / kGroup);
        const float* query = q.data() + head * dim;
        std::vector<std::vector<float>> tokens;
        for (int32_t t = 0; t < n_slots[h]; ++t) tokens.push_back(heads[h]->token(t));
        tokens.emplace_back(means[h]->data(), means[h]->data() + n_values);
        if (has_values(h)) std::copy_n(values.data() + head * dim, dim, tokens.back().begin() + dim);
        const auto n_dims = static_cast<size_t>(dim);
        std::vector<double> scores, sums(n_dims), sizes(n_dims);  // sizes: sums of weights * |v|
        double l = 0, most = -INFINITY, error = 0;                // error: of a score
        for (const auto& x : tokens) {
          scores.push_back(dot(query, x.data(), n_dims) * static_cast<double>(scale));
          most = std::max(most, scores.back());
          error = std::max(error, word_error(GetParam(), type, query, x.data(), n_dims) * static_cast<double>(scale));
        }
        for (size_t t = 0; t < tokens.size(); ++t) {
          const double weight = std::exp(scores[t] - most) * (t + 1 < tokens.size() ? 1.0 : static_cast<double>(weights[h]));
          l += weight;
          add_times(weight, tokens[t].data() + n_dims, n_dims, sums.data());
          add_size_times(weight, tokens[t].data() + n_dims, n_dims, sizes.data());
        }
        for (size_t i = 0; i < sums.size(); ++i)  // weights are off by e to the power of twice an error
          ASSERT_NEAR(out[static_cast<size_t>(head * dim) + i], sums[i] / l, 1e-5 + (error > 0 ? std::expm1(2 * error) * sizes[i] / l : 0))
              << "type " << static_cast<int>(type) << ", dim " << dim << ", head " << head << ", value " << i;
      }
    }
}

INSTANTIATE_TEST_SUITE_P(Paths, CpuCompensationTokens, ::testing::ValuesIn(paths()), PathName());

}  // namespace
}  // namespace orrery::compensation_tokens_test
