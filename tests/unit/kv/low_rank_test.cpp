// The device bytes of low-rank keys, landmarks and slots.
#include "runtime/kv/resident/low_rank.h"

#include <gtest/gtest.h>

#include "runtime/kv/resident/digests.h"
#include "runtime/kv/resident/head_store.h"

namespace orrery::kv::low_rank_test {
namespace {

constexpr KvFormat kFormat{KvType::f16, 32, 8, 128};  // 1,024 dimensions a layer

TEST(LowRankKeys, TakeWhatThePaperSays) {
  LowRankSpec low_rank{160, {}};
  DigestSpec digests{8, DigestKind::mean, {}};
  for (uint32_t layer = 0; layer < 32; ++layer) low_rank.layers.push_back(layer);
  for (uint32_t head = 0; head < 256; ++head) digests.heads.push_back(head);
  const struct {
    uint32_t n_tokens;
    double share;
  } kCases[] = {{4096, .75}, {8192, .45}, {16384, .29}, {131072, .16}};
  for (const auto& c : kCases) {  // 256 chunks and 48 outliers of 8 tokens
    const double all = static_cast<double>(HeadStore::region_bytes(kFormat, uint64_t{256} * c.n_tokens));
    const uint64_t bytes = Digests::bytes_of(digests, 128, c.n_tokens) + LowRank::bytes_of(low_rank, kFormat, c.n_tokens) +
                           HeadStore::region_bytes(kFormat, uint64_t{256} * (256 + 48) * 8);
    EXPECT_NEAR(static_cast<double>(bytes) / all, c.share, .005) << c.n_tokens;
  }
  // What is left of it where texts are long.
  const uint32_t n = 1u << 20;
  EXPECT_NEAR(static_cast<double>(Digests::bytes_of(digests, 128, n) + LowRank::bytes_of(low_rank, kFormat, n)) /
                  static_cast<double>(HeadStore::region_bytes(kFormat, uint64_t{256} * n)),
              .141, .001);
}

TEST(LowRankKeys, NoRankTakesNothing) {
  EXPECT_EQ(LowRank::bytes_of({}, kFormat, 4096), 0u);
  EXPECT_TRUE(LowRank::layout({}, kFormat, 4096).empty());
  EXPECT_TRUE(LowRank::work_layout({}, kFormat, 4096).empty());
}

}  // namespace
}  // namespace orrery::kv::low_rank_test
