// Attention summed over queries, on every instruction set. A prompt's weights are added in the order of positions, however the prompt is
// cut. A step's weights are the exported attention weights.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/bf16.h"
#include "tests/unit/cpu/tokens.h"

namespace orrery::attention_sums_test {
namespace {

using namespace orrery::testing;

constexpr int32_t kDim = 64, kGroup = 3, kWidth = 2 * kGroup * kDim;  // two KV heads

StepLimits limits() {
  StepLimits l;
  l.max_rows = 64, l.max_context = 1500;
  l.n_heads = 2 * kGroup, l.n_kv_heads = 2, l.head_dim = kDim;
  l.max_in = 64, l.n_layers = 1, l.max_top_keys = 1500;
  return l;
}

// The softmax of a query over a head's first n tokens, added to `sums` after division by the group.
void add_softmax(const HeadTokens& tokens, const float* q, int32_t n, float scale, double* sums) {
  std::vector<double> scores;
  double most = -INFINITY, sum = 0;
  for (int32_t t = 0; t < n; ++t) {
    const std::vector<float> k = tokens.token(t);
    double dot = 0;
    for (int32_t i = 0; i < kDim; ++i) dot += static_cast<double>(q[i]) * k[static_cast<size_t>(i)];
    scores.push_back(dot * static_cast<double>(scale));
    most = std::max(most, scores.back());
  }
  for (const double s : scores) sum += std::exp(s - most);
  for (int32_t t = 0; t < n; ++t) sums[t] += std::exp(scores[static_cast<size_t>(t)] - most) / sum / kGroup;
}

class CpuAttentionSums : public ::testing::TestWithParam<std::string> {};

// Rows of queries as a step has them, K and V behind each; over one stretch of keys and over two.
TEST_P(CpuAttentionSums, AreAddedInTheOrderOfPositions) {
  const float scale = .2f;
  const size_t stride = kWidth + 40;
  for (const KvType type : kKvTypes)
    for (const int32_t first : {0, 37, 1100}) {
      constexpr int32_t kRows = 33;
      const int32_t n_keys = (first + kRows + kPageTokens - 1) / kPageTokens * kPageTokens;
      Rig rig(GetParam(), 2, limits());
      const HeadTokens heads[] = {{type, kDim, n_keys, 5}, {type, kDim, n_keys, 6}};
      const Guarded<float> q((kRows - 1) * stride + kWidth);
      fill_normal(q, 7, 2.0f);
      std::vector<float> whole;
      for (const int32_t chunk : {kRows, 1, 7, 10, 16}) {
        Guarded<float> sums(2 * static_cast<size_t>(n_keys));
        for (size_t i = 0; i < sums.size(); ++i) sums[i] = static_cast<float>(i % 5) * .25f;
        for (int32_t row = 0; row < kRows; row += chunk) {
          const int32_t n = std::min(chunk, kRows - row);
          KeysShape shape;
          shape.kv = heads[0].format();
          shape.kv.n_kv_heads = 2;
          shape.n_heads = 2 * kGroup;
          shape.scale = scale;
          shape.queries = {q.ptr() + static_cast<uint64_t>(row) * stride, n, first + row, static_cast<int64_t>(stride)};
          std::vector<KeyWeightsJob> jobs(2);
          for (int32_t h = 0; h < 2; ++h) {
            KeyWeightsJob& job = jobs[static_cast<size_t>(h)];
            job.kv_head = h;
            job.tiles = heads[h].tiles();
            job.n_keys =
                (first + row + n + kPageTokens - 1) / kPageTokens * kPageTokens;  // else the last tile's weights are summed otherwise
            job.first_position = first + row, job.n_positions = n;
            job.mean = job.add = true;
            job.out = sums.data() + h * n_keys;
          }
          rig->keys()->key_weights(jobs, shape);
        }
        if (chunk != kRows) {
          EXPECT_TRUE(same_bits(sums.data(), whole.data(), whole.size())) << "type " << static_cast<int>(type) << ", chunks of " << chunk;
          continue;
        }
        whole.assign(sums.data(), sums.data() + sums.size());
        for (int32_t h = 0; h < 2; ++h) {
          std::vector<double> expected(static_cast<size_t>(n_keys));
          for (int32_t key = 0; key < n_keys; ++key) expected[static_cast<size_t>(key)] = (h * n_keys + key) % 5 * .25;
          for (int32_t row = 0; row < kRows; ++row)
            for (int32_t g = 0; g < kGroup; ++g)
              add_softmax(heads[h], q.data() + static_cast<size_t>(row) * stride + static_cast<size_t>((h * kGroup + g) * kDim),
                          first + row + 1, scale, expected.data());
          for (int32_t key = 0; key < n_keys; ++key)
            ASSERT_NEAR(sums[static_cast<size_t>(h * n_keys + key)], expected[static_cast<size_t>(key)], 1e-5)
                << "type " << static_cast<int>(type) << ", first " << first << ", head " << h << ", key " << key;
        }
      }
    }
}

// Of a generated token: of slots that attention has read, its own weights.
TEST_P(CpuAttentionSums, TakeWhatAttentionHasLeft) {
  const int32_t n_slots[] = {70, 1200};
  const int64_t tile_stride[] = {128, 1216};
  for (const KvType type : kKvTypes) {
    Rig rig(GetParam(), 2, limits());
    const HeadTokens heads[] = {{type, kDim, n_slots[0], 5}, {type, kDim, n_slots[1], 6}};
    const Guarded<float> q(kWidth), out(kWidth);
    fill_normal(q, 8, 2.0f);
    std::vector<std::vector<float>> room;  // 64-byte aligned within
    std::vector<HeadView> views;
    std::vector<KeyWeightsJob> jobs(2);
    std::vector<std::vector<float>> found;
    for (size_t h = 0; h < 2; ++h) {
      room.emplace_back(ExportedWeights::bytes(kGroup, tile_stride[h]) / sizeof(float) + 16);
      const auto at = (reinterpret_cast<uintptr_t>(room[h].data()) + 63) / 64 * 64;
      views.push_back({heads[h].tiles(), n_slots[h], 0, {{at}, tile_stride[h]}});
      found.emplace_back(static_cast<size_t>(n_slots[h]));
      jobs[h].kv_head = static_cast<int32_t>(h);
      jobs[h].tiles = heads[h].tiles();
      jobs[h].n_keys = n_slots[h];
      jobs[h].first_position = 2000, jobs[h].n_positions = 1;
      jobs[h].mean = true;
      jobs[h].exported = views[h].exported;
      jobs[h].out = found[h].data();
    }
    const uint64_t page = 0;
    const KvView view{&page, 1};
    const Row row{0, 2000, 0};
    Step step;
    step.phase = Phase::decode;
    step.rows = {&row, 1}, step.sequences = {&view, 1};
    step.kv = step.heads_kv = {type, 1, 2, kDim};
    step.heads = views;
    rig->begin_step(step);
    rig->attend(0, q.cptr(), out.ptr(), {2 * kGroup, kWidth, kWidth, .2f, 0});
    rig->end_step();
    KeysShape shape;
    shape.kv = step.kv;
    shape.n_heads = 2 * kGroup;
    shape.scale = .2f;
    shape.queries = {{1}, 1};  // nobody looks at it
    rig->keys()->key_weights(jobs, shape);
    for (size_t h = 0; h < 2; ++h) {
      std::vector<double> expected(found[h].size());
      for (size_t g = 0; g < kGroup; ++g) add_softmax(heads[h], q.data() + (h * kGroup + g) * kDim, n_slots[h], .2f, expected.data());
      double error = 0;  // of a score: a weight is off by e to the power of its own and the sum's
      for (int32_t t = 0; t < n_slots[h]; ++t)
        for (size_t g = 0; g < kGroup; ++g)
          error = std::max(error, word_error(GetParam(), type, q.data() + (h * kGroup + g) * kDim, heads[h].token(t).data(), kDim) * .2);
      for (size_t i = 0; i < expected.size(); ++i)
        ASSERT_NEAR(found[h][i], expected[i], 1e-6 + expected[i] * (std::exp(2 * error) - 1))
            << "type " << static_cast<int>(type) << ", head " << h << ", slot " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Paths, CpuAttentionSums, ::testing::ValuesIn(paths()), PathName());

}  // namespace
}  // namespace orrery::attention_sums_test
