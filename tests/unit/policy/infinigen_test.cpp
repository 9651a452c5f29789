// InfiniGen's prefetch on made-up attention: how many tokens a step asks for, which tokens, and which tokens are replaced.
#include <gtest/gtest.h>

#include <numeric>

#include "tests/unit/policy/made_up.h"

namespace orrery::policy::infinigen_test {
namespace {

constexpr uint32_t kContext = 400, kKvHeads = 4, kLayers = 3, kPrompt = 250;
const int32_t kNoWindows[kLayers] = {0, 0, 0};
const Shape kShape{kLayers, kKvHeads, kContext, {kNoWindows, kLayers}, 256, 256, 64};

struct Case {
  Options options;
  float alpha;
  double most;
  uint32_t sinks, window, first_layers;
};
const Case kCases[] = {{{}, 4, .2, 0, 32, 0},
                       {{{"alpha", "1.5"}, {"sinks", "5"}}, 1.5f, .2, 5, 32, 0},
                       {{{"alpha", "1000"}, {"most", "0.1"}, {"window", "1"}}, 1000, .1, 0, 1, 0},
                       {{{"first_layers", "1"}, {"ratio", "0.1"}, {"alpha", "0"}}, 0, .2, 0, 32, 1}};

TEST(PolicyInfiniGen, EveryStepAsksForWhatScoresNearTheBest) {
  uint64_t n_new = 0, n_gone = 0, n_by_alpha = 0, n_at_most = 0;
  for (const Case& c : kCases)
    for (const double share : {.5, .8}) {
      FakeSession s(must(make_policy("infinigen", kShape, {share, slots_for_share(kShape, share)}, c.options)), kLayers * kKvHeads, kGroup,
                    kContext, restless);
      EXPECT_EQ(s.policy().n_full_heads(), c.first_layers * kKvHeads);
      s.settle(kPrompt);
      for (uint32_t t = 0; t < 70; ++t) {
        ASSERT_FALSE(s.prepare()) << "nothing is chosen again";
        const std::vector<Tokens> before = s.held();
        s.ask_layers(kLayers);
        const uint32_t position = s.n_tokens();
        for (uint32_t layer = c.first_layers; layer < kLayers; ++layer) {
          const uint32_t capacity = s.capacity(layer * kKvHeads), n_first = std::min(c.sinks, capacity / 4);
          const uint32_t n_ring = std::max(std::min(c.window, capacity / 4), 2u), n_between = capacity - n_first - n_ring,
                         n = position - n_first - (n_ring - 1);
          std::vector<std::vector<float>> scores;  // by head, of candidates: the smallest distance below a query head's best
          uint64_t n_near = 0;
          for (uint32_t head = layer * kKvHeads; head < (layer + 1) * kKvHeads; ++head) {
            const std::vector<float> logits = restless(head, position, position + 1);
            scores.emplace_back(n, -INFINITY);
            for (uint32_t q = 0; q < kGroup; ++q) {
              const float* row = logits.data() + q * (position + 1) + n_first;
              const float best = *std::max_element(row, row + n);
              for (uint32_t i = 0; i < n; ++i)
                n_near += row[i] - best > -c.alpha, scores.back()[i] = std::max(scores.back()[i], row[i] - best);
            }
          }
          const auto most = static_cast<uint64_t>(c.most * position + 1e-9);
          const auto n_wanted = static_cast<size_t>(std::min<uint64_t>({n_near / (kKvHeads * kGroup), most, n_between}));
          (n_wanted == most || n_wanted == n_between ? n_at_most : n_by_alpha) += 1;
          for (uint32_t h = 0; h < kKvHeads; ++h) {
            const Tokens &was = before[layer * kKvHeads + h], &is = s.held()[layer * kKvHeads + h];
            const auto between = [&](const Tokens& held) {
              return std::set<uint32_t>(held.begin() + n_first, held.begin() + n_first + n_between);
            };
            const std::set<uint32_t> old_set = between(was), new_set = between(is);
            const auto score = [&](uint32_t token) { return scores[h][token - n_first]; };
            std::vector<uint32_t> order(n);
            std::iota(order.begin(), order.end(), n_first);
            std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return score(a) > score(b); });
            const std::set<uint32_t> wanted(order.begin(), order.begin() + static_cast<ptrdiff_t>(n_wanted));
            for (const uint32_t token : wanted) ASSERT_EQ(new_set.count(token), 1u) << "layer " << layer << ", step " << t;
            for (const uint32_t token : new_set) {
              n_new += 1 - old_set.count(token);
              ASSERT_TRUE(old_set.count(token) || wanted.count(token)) << "fetched, though it was not asked for";
            }
            for (const uint32_t gone : old_set) {
              if (new_set.count(gone)) continue;
              ++n_gone;
              for (const uint32_t stays : old_set)
                ASSERT_TRUE(!new_set.count(stays) || wanted.count(stays) || score(stays) >= score(gone)) << "step " << t;
            }
          }
        }
        s.commit();
      }
    }
  EXPECT_EQ(n_new, n_gone);
  EXPECT_GT(n_new, 5000u);
  EXPECT_GT(n_by_alpha, 100u);
  EXPECT_GT(n_at_most, 100u);
}

// Ranks: the ratio of a key, a multiple of 4, less where low-rank keys would take more than half of the budget. First layers where there is
// room.
TEST(PolicyInfiniGen, RanksAndWholeLayersFollowTheBudget) {
  const auto made = [](double share, const Options& options, uint32_t n_layers) {
    static const int32_t kNone[64] = {};
    const Shape shape{n_layers, 2, 4096, {kNone, n_layers}, 512, 512, 128};
    return must(make_policy("infinigen", shape, {share, slots_for_share(shape, share)}, options));
  };
  EXPECT_EQ(made(.5, {}, 8)->digests().rank, 28u);  // a fifth of 128 is 25.6
  EXPECT_EQ(made(.5, {{"ratio", "0.25"}}, 8)->digests().rank, 32u);
  EXPECT_EQ(made(.5, {{"ratio", "1"}}, 8)->digests().rank, 60u);  // 62 would be half
  EXPECT_EQ(made(.5, {}, 8)->n_full_heads(), 0u);                 // two of eight layers are half of the budget
  EXPECT_EQ(made(.5, {}, 39)->n_full_heads(), 0u);                // more than a tenth
  EXPECT_EQ(made(.5, {}, 41)->n_full_heads(), 4u);
  EXPECT_EQ(made(.5, {{"first_layers", "1"}}, 8)->n_full_heads(), 2u);
}

}  // namespace
}  // namespace orrery::policy::infinigen_test
