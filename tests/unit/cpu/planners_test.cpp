// Planners by value: which items an operation is cut into, for which shapes and threads. No kernel runs.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <ostream>
#include <tuple>
#include <vector>

#include "runtime/cpu/formats/bands.h"
#include "runtime/cpu/kernels/kernels.h"
#include "runtime/cpu/planners/attend.h"
#include "runtime/cpu/planners/experts.h"
#include "runtime/cpu/planners/matmul.h"
#include "tests/support/random_blocks.h"

namespace orrery::cpu::planners_test {
namespace {

using testing::Random;

// ---- Products ----

using Flat = std::tuple<size_t, int64_t, int64_t, int64_t, int64_t>;  // of a MatmulItem
std::vector<Flat> items_of(const MatmulPlan& plan) {
  std::vector<Flat> items;
  for (int64_t i = 0; i < plan.n_items(); ++i) {
    const MatmulItem item = plan.item(i);
    items.emplace_back(item.product, item.first_out, item.last_out, item.first_row, item.last_row);
  }
  return items;
}
constexpr int64_t kTileOut = 128, kTileRows = 512;

TEST(CpuPlanners, DecodeCutsWeightsInStretches) {
  // Eight stretches for each thread, of at least 16 KB: 2,048 rows of 1 KB are 32 stretches of 64 KB for four threads.
  const ProductShape p = {2048, 1024, false, true};
  const std::vector<Flat> items = items_of(MatmulPlan({&p, 1}, 3, kTileOut, kTileRows, 4));
  ASSERT_EQ(items.size(), 32u);
  for (int64_t i = 0; i < 32; ++i) EXPECT_EQ(items[static_cast<size_t>(i)], Flat(0, 64 * i, 64 * (i + 1), 0, 3));
  // For 64 threads a stretch would have 4 KB: it has 16.
  EXPECT_EQ(items_of(MatmulPlan({&p, 1}, 1, kTileOut, kTileRows, 64)).size(), 128u);
  // For one thread it would have 512 KB of a matrix of 4 MB: it has 256.
  const ProductShape large = {4096, 1024, false, true};
  EXPECT_EQ(items_of(MatmulPlan({&large, 1}, 1, kTileOut, kTileRows, 1)).size(), 16u);
  // A stretch of 62,500 bytes has 32 rows of 2,000 bytes; one of 50,000 bytes has 25 rows. Bands of eight rows are not cut.
  const ProductShape bands = {1000, 2000, true, true}, rows = {1000, 2000, false, true};
  EXPECT_EQ(std::get<2>(items_of(MatmulPlan({&rows, 1}, 1, kTileOut, kTileRows, 4))[0]), 32);
  EXPECT_EQ(std::get<2>(items_of(MatmulPlan({&rows, 1}, 1, kTileOut, kTileRows, 5))[0]), 25);
  EXPECT_EQ(std::get<2>(items_of(MatmulPlan({&bands, 1}, 1, kTileOut, kTileRows, 5))[0]), 32);
}

TEST(CpuPlanners, PrefillCutsTiles) {
  const ProductShape p = {1024, 512, true, false};
  // Enough for one thread: eight tiles of outputs, and the two tiles of rows of each one after another.
  const std::vector<Flat> items = items_of(MatmulPlan({&p, 1}, 600, kTileOut, kTileRows, 1));
  ASSERT_EQ(items.size(), 16u);
  EXPECT_EQ(items[0], Flat(0, 0, 128, 0, 512));
  EXPECT_EQ(items[1], Flat(0, 0, 128, 512, 600));
  EXPECT_EQ(items[15], Flat(0, 896, 1024, 512, 600));
  // Too few for four threads: tiles of 64 outputs are 32, as wanted.
  EXPECT_EQ(items_of(MatmulPlan({&p, 1}, 600, kTileOut, kTileRows, 4)).size(), 32u);
  // For eight: tiles of 256 rows, too, 48; and outputs down to 32, which are 96 of 64 wanted.
  const std::vector<Flat> of_eight = items_of(MatmulPlan({&p, 1}, 600, kTileOut, kTileRows, 8));
  ASSERT_EQ(of_eight.size(), 96u);
  EXPECT_EQ(of_eight[2], Flat(0, 0, 32, 512, 600));
  // However many threads, tiles become no smaller.
  EXPECT_EQ(items_of(MatmulPlan({&p, 1}, 600, kTileOut, kTileRows, 100)).size(), 96u);
}

TEST(CpuPlanners, ProductsFollowEachOther) {
  const ProductShape p[] = {{256, 4096, false, true}, {128, 512, false, false}, {64, 4096, false, true}};
  const std::vector<Flat> items = items_of(MatmulPlan({p, 3}, 4, kTileOut, kTileRows, 1));
  std::vector<size_t> products;
  for (const Flat& item : items)
    if (products.empty() || products.back() != std::get<0>(item)) products.push_back(std::get<0>(item));
  EXPECT_EQ(products, (std::vector<size_t>{0, 1, 2}));
}

TEST(CpuPlanners, EachOutputOfEachRowIsComputedOnce) {
  Random random(1);
  for (int i = 0; i < 300; ++i) {
    SCOPED_TRACE(i);
    std::vector<ProductShape> products(1 + random.below(MatmulPlan::kMostProducts));
    for (ProductShape& p : products) {
      p.in_bands = random.below(2) != 0, p.decodes = random.below(2) != 0;
      p.n_out = static_cast<int64_t>(1 + random.below(40)) * (p.in_bands ? kBandRows : 3);
      p.row_bytes = static_cast<int64_t>(18 + random.below(9000));
    }
    const auto n_rows = static_cast<int64_t>(1 + random.below(700));
    const MatmulPlan plan(products, n_rows, kTileOut >> random.below(3), kTileRows >> random.below(3),
                          static_cast<int32_t>(1 + random.below(64)));
    // Items are rectangles. They tile each product if their areas add up to its area, and no two items begin at one place within it.
    std::vector<int64_t> area(products.size());
    std::map<std::tuple<size_t, int64_t, int64_t>, int> begins;
    for (const auto& [product, first_out, last_out, first_row, last_row] : items_of(plan)) {
      const ProductShape& p = products[product];
      ASSERT_TRUE(0 <= first_out && first_out < last_out && last_out <= p.n_out && 0 <= first_row && first_row < last_row &&
                  last_row <= n_rows);
      ASSERT_TRUE(!p.in_bands || (first_out % kBandRows == 0 && last_out % kBandRows == 0));
      ASSERT_TRUE(!p.decodes || (first_row == 0 && last_row == n_rows)) << "decode reads weights once";
      area[product] += (last_out - first_out) * (last_row - first_row);
      ASSERT_EQ((++begins[{product, first_out, first_row}]), 1);
    }
    for (size_t p = 0; p < products.size(); ++p) ASSERT_EQ(area[p], products[p].n_out * n_rows);
  }
}

// ---- Products of experts ----

std::vector<ExpertGroup> groups_of(const std::vector<int32_t>& n_rows) {
  std::vector<ExpertGroup> groups;
  int32_t slot = 0;
  for (const int32_t n : n_rows) {
    groups.push_back({static_cast<int32_t>(3 * groups.size()), slot, n, slot, 0});
    slot += n;
  }
  return groups;
}

TEST(CpuPlanners, ExpertsOfATokenAreCutInStretchesOfAll) {
  // Eight experts with two matrices of 256 rows of 1 KB: 4 MB, of which four threads want 32 stretches of 128 KB.
  const ExpertShape p[] = {{256, 1024, true, false, true}, {256, 1024, true, false, true}};
  std::vector<ExpertGroup> groups = groups_of({1, 1, 1, 1, 1, 1, 1, 1});
  const ExpertsPlan plan({p, 2}, {groups.data(), groups.size()}, kTileOut, kTileRows, 4);
  EXPECT_EQ(plan.bytes(), 4 << 20);
  ASSERT_EQ(plan.n_items(), 32);
  for (int64_t i = 0; i < 32; ++i) {
    const ExpertItem item = plan.item(i);
    EXPECT_EQ(item.group, static_cast<size_t>(i / 4));
    EXPECT_TRUE(item.decodes);
    EXPECT_EQ(item.part.product, static_cast<size_t>(i / 2 % 2));
    EXPECT_EQ(item.part.first_out, 128 * (i % 2));
    EXPECT_EQ(item.part.last_out, 128 * (i % 2 + 1));
    EXPECT_EQ(groups[static_cast<size_t>(i / 4)].first_item, i / 4 * 4);
  }
}

TEST(CpuPlanners, ShortGroupsOfExpertsTakeTheDecodesKernel) {
  const ExpertShape p = {512, 1024, true, true, false};
  constexpr int32_t kShort = kShortPrompt;
  std::vector<ExpertGroup> groups = groups_of({kShort, kShort + 1});
  const ExpertsPlan plan({&p, 1}, {groups.data(), groups.size()}, kTileOut, kTileRows, 1);
  for (int64_t i = 0; i < plan.n_items(); ++i) EXPECT_EQ(plan.item(i).decodes, plan.item(i).group == 0) << i;
}

TEST(CpuPlanners, EachOutputOfEachSlotIsComputedOnce) {
  Random random(7);
  for (int round = 0; round < 200; ++round) {
    std::vector<int32_t> n_rows;
    for (uint64_t g = 1 + random.below(9); g-- > 0;) n_rows.push_back(1 + static_cast<int32_t>(random.below(round % 2 ? 700 : 20)));
    std::vector<ExpertShape> products;
    for (uint64_t n = 1 + random.below(ExpertsPlan::kMostProducts); n-- > 0;) {
      const bool in_bands = random.below(2) != 0;
      products.push_back({8 * (1 + static_cast<int64_t>(random.below(90))), 16 * (1 + static_cast<int64_t>(random.below(200))), in_bands,
                          random.below(2) != 0, round % 3 == 0});
    }
    std::vector<ExpertGroup> groups = groups_of(n_rows);
    const ExpertsPlan plan({products.data(), products.size()}, {groups.data(), groups.size()}, kTileOut, kTileRows,
                           1 + static_cast<int32_t>(random.below(17)));
    std::map<std::pair<size_t, size_t>, std::vector<int>> times;
    for (size_t g = 0; g < groups.size(); ++g)
      for (size_t p = 0; p < products.size(); ++p)
        times[{g, p}].resize(static_cast<size_t>(products[p].n_out) * static_cast<size_t>(n_rows[g]));
    for (int64_t i = 0; i < plan.n_items(); ++i) {
      const ExpertItem item = plan.item(i);
      const MatmulItem& part = item.part;
      EXPECT_TRUE(!item.decodes || !products[part.product].in_bands || part.first_out % kBandRows == 0);
      std::vector<int>& counts = times[{item.group, part.product}];
      for (int64_t o = part.first_out; o < part.last_out; ++o)
        for (int64_t r = part.first_row; r < part.last_row; ++r) ++counts[static_cast<size_t>(o * n_rows[item.group] + r)];
    }
    for (const auto& entry : times)
      EXPECT_TRUE(std::all_of(entry.second.begin(), entry.second.end(), [](int n) { return n == 1; })) << round;
  }
}

// ---- Attention of generated tokens ----

// Steps of one row each, or one step of several rows, and the slots of their heads under a policy.
struct Steps {
  std::vector<std::vector<Row>> rows;
  std::vector<std::vector<HeadView>> heads;
  std::vector<Step> steps;

  void add(std::vector<Row> its, std::vector<HeadView> views, int32_t n_kv) {
    rows.push_back(std::move(its)), heads.push_back(std::move(views));
    Step step;
    step.phase = Phase::decode;
    step.kv = {KvType::f16, 2, n_kv, 64};
    steps.push_back(step);
  }
  StepRows of() {
    int64_t n = 0;
    for (size_t i = 0; i < steps.size(); ++i) steps[i].rows = rows[i], steps[i].heads = heads[i], n += static_cast<int64_t>(rows[i].size());
    return {steps, n};
  }
};

struct Item {
  int64_t row;
  int32_t head, n_heads;
  int64_t split, first_key, last_key;
  bool is_mean;
  bool operator==(const Item& b) const {
    return row == b.row && head == b.head && n_heads == b.n_heads && split == b.split && first_key == b.first_key &&
           last_key == b.last_key && is_mean == b.is_mean;
  }
};
void PrintTo(const Item& i, std::ostream* out) {
  *out << "row " << i.row << ", heads " << i.head << " + " << i.n_heads << ", split " << i.split << ", keys " << i.first_key << " to "
       << i.last_key << (i.is_mean ? ", mean" : "");
}
std::vector<Item> items_of(const DecodePlan& plan) {
  std::vector<Item> items;
  for (int64_t i = 0; i < plan.n_items(); ++i)
    if (const DecodeItem item = plan.item(i); item.first_key < item.last_key)
      items.push_back({item.row, item.head, item.n_heads, item.split, item.first_key, item.last_key, item.is_mean});
  return items;
}

TEST(CpuPlanners, KeysAreCutAtFixedPositions) {
  Steps one;
  one.add({{0, 999, 0}}, {}, 4);
  // Two splits and four items for a thread: two KV heads each.
  const DecodePlan plan(one.of(), {0, 0}, 4, 0, true, {0, 1}, 1);
  EXPECT_EQ(items_of(plan),
            (std::vector<Item>{
                {0, 0, 2, 0, 0, 512, false}, {0, 0, 2, 1, 512, 1000, false}, {0, 2, 2, 0, 0, 512, false}, {0, 2, 2, 1, 512, 1000, false}}));
  EXPECT_EQ(plan.most_splits(), 2);
  // Two threads want eight items: one head each. The splits stay.
  EXPECT_EQ(items_of(DecodePlan(one.of(), {0, 0}, 4, 0, true, {0, 1}, 2)).size(), 8u);
  // A window begins in the middle of a split, whose number counts from there.
  EXPECT_EQ(
      items_of(DecodePlan(one.of(), {0, 0}, 2, 600, true, {0, 1}, 1)),
      (std::vector<Item>{
          {0, 0, 1, 0, 400, 512, false}, {0, 0, 1, 1, 512, 1000, false}, {0, 1, 1, 0, 400, 512, false}, {0, 1, 1, 1, 512, 1000, false}}));
  EXPECT_EQ(items_of(DecodePlan(one.of(), {0, 0}, 2, 400, true, {0, 1}, 1)),
            (std::vector<Item>{{0, 0, 1, 0, 600, 1000, false}, {0, 1, 1, 0, 600, 1000, false}}));
}

TEST(CpuPlanners, RowsOfOneSequenceMeetTheSameKeysOneAfterAnother) {
  Steps one;
  one.add({{0, 510, 0}, {0, 511, 0}, {0, 512, 0}}, {}, 1);
  const std::vector<Item> items = items_of(DecodePlan(one.of(), {0, 0}, 1, 0, true, {0, 3}, 1));
  EXPECT_EQ(items,
            (std::vector<Item>{
                {0, 0, 1, 0, 0, 511, false}, {1, 0, 1, 0, 0, 512, false}, {2, 0, 1, 0, 0, 512, false}, {2, 0, 1, 1, 512, 513, false}}));
  // A wave has some of the rows, and names them by their numbers in the step.
  EXPECT_EQ(items_of(DecodePlan(one.of(), {0, 0}, 1, 0, true, {2, 1}, 1)),
            (std::vector<Item>{{2, 0, 1, 0, 0, 512, false}, {2, 0, 1, 1, 512, 513, false}}));
}

TEST(CpuPlanners, SlotsAndCompensationTokens) {
  std::vector<HeadView> views(4);  // two layers of two heads
  views[2].n_keys = 700, views[3].n_keys = 100, views[3].compensation_weight = 2.5f;
  Steps one;
  one.add({{0, 5000, 0}}, views, 2);
  // Heads with slots of their own lie apart. A window says nothing of slots. The compensation token is the last split.
  EXPECT_EQ(items_of(DecodePlan(one.of(), {1, 0}, 2, 64, true, {0, 1}, 1)),
            (std::vector<Item>{
                {0, 0, 1, 0, 0, 512, false}, {0, 0, 1, 1, 512, 700, false}, {0, 1, 1, 0, 0, 100, false}, {0, 1, 1, 1, 0, 1, true}}));
  // Policies know group 0 alone.
  EXPECT_EQ(items_of(DecodePlan(one.of(), {1, 1}, 2, 64, true, {0, 1}, 1)),
            (std::vector<Item>{{0, 0, 1, 0, 4937, 5001, false}, {0, 1, 1, 0, 4937, 5001, false}}));
}

// Rows of several steps have different lengths: each key of each row and head is met once, whatever the number of threads.
TEST(CpuPlanners, EachKeyIsMetOnce) {
  Random random(2);
  for (int i = 0; i < 300; ++i) {
    SCOPED_TRACE(i);
    const auto n_kv = static_cast<int32_t>(1 + random.below(9)), window = static_cast<int32_t>(random.below(2) ? 0 : 1 + random.below(900));
    const bool several = random.below(2) != 0;
    Steps steps;
    const auto n = static_cast<int32_t>(1 + random.below(several ? kMostTogether : 8));
    const auto position = static_cast<int32_t>(random.below(3000));
    std::vector<Row> rows;
    for (int32_t r = 0; r < n; ++r) {
      const Row row = {0, several ? static_cast<int32_t>(random.below(3000)) : position + r, 0};
      std::vector<HeadView> views;
      if (several && random.below(2))
        for (int32_t h = 0; h < 2 * n_kv; ++h) {
          views.emplace_back();
          views.back().n_keys = static_cast<int32_t>(1 + random.below(1500)),
          views.back().compensation_weight = random.below(2) ? 0.0f : 3.0f;
        }
      if (several) steps.add({row}, views, n_kv);
      rows.push_back(row);
    }
    if (!several) steps.add(rows, {}, n_kv);
    const StepRows of = steps.of();
    ASSERT_EQ(of.n, n);
    const KvLayer layer = {1, 0};
    const auto most = static_cast<int64_t>(1 + random.below(static_cast<uint64_t>(n)));
    std::map<std::tuple<int64_t, int32_t>, int64_t> met, means;  // keys of a row and KV head
    for (int64_t first = 0; first < n; first += most) {
      const Wave wave = {first, std::min<int64_t>(most, n - first)};
      const DecodePlan plan(of, layer, n_kv, window, !several, wave, static_cast<int32_t>(1 + random.below(16)));
      std::map<std::tuple<int64_t, int32_t, int64_t>, int> places;  // of partial results
      for (const Item& item : items_of(plan)) {
        ASSERT_TRUE(item.row >= first && item.row < first + wave.n_rows && item.split < plan.most_splits());
        for (int32_t h = item.head; h < item.head + item.n_heads; ++h) {
          (item.is_mean ? means : met)[{item.row, h}] += item.last_key - item.first_key;
          ASSERT_EQ((++places[{item.row, h, item.split}]), 1);
          ASSERT_TRUE(item.is_mean || item.first_key / kSplitTokens == (item.last_key - 1) / kSplitTokens);
        }
      }
    }
    for (int64_t row = 0; row < n; ++row)
      for (int32_t h = 0; h < n_kv; ++h) {
        const HeadView* view = of.head_view(row, layer, h);
        const int64_t visible = of.row(row).position + int64_t{1};
        ASSERT_EQ((met[{row, h}]), view ? view->n_keys : window > 0 ? std::min<int64_t>(window, visible) : visible);
        ASSERT_EQ((means[{row, h}]), view && view->compensation_weight > 0.0f ? 1 : 0);
      }
  }
}

// ---- Attention of prompts ----

TEST(CpuPlanners, BlocksOfLateRowsComeFirst) {
  const RowRun run = {0, 100};
  // Eight heads on two KV heads, 128 queries of a task: 32 rows of four heads. One thread wants four items.
  const PrefillPlan plan({&run, 1}, 2, 4, 128, 1);
  std::vector<std::vector<int32_t>> items;
  for (int64_t i = 0; i < plan.n_items(); ++i) {
    const PrefillItem item = plan.item(i);
    items.push_back({static_cast<int32_t>(item.row), item.n_rows, item.kv_head, item.first_head, item.n_heads});
  }
  EXPECT_EQ(items, (std::vector<std::vector<int32_t>>{{96, 4, 0, 0, 4},
                                                      {96, 4, 1, 4, 4},
                                                      {64, 32, 0, 0, 4},
                                                      {64, 32, 1, 4, 4},
                                                      {32, 32, 0, 0, 4},
                                                      {32, 32, 1, 4, 4},
                                                      {0, 32, 0, 0, 4},
                                                      {0, 32, 1, 4, 4}}));
  // Three threads want twelve: blocks of 16 rows. Blocks have at least kQueryTile queries, however many threads there are.
  EXPECT_EQ(PrefillPlan({&run, 1}, 2, 4, 128, 3).n_items(), 14);
  EXPECT_EQ(PrefillPlan({&run, 1}, 2, 4, 128, 100).n_items(), 14);
  static_assert(kQueryTile == 64);
}

TEST(CpuPlanners, EachRowOfEachHeadIsComputedOnce) {
  Random random(3);
  for (int i = 0; i < 300; ++i) {
    SCOPED_TRACE(i);
    std::vector<RowRun> runs(1 + random.below(4));
    int32_t n_rows = 0;
    for (RowRun& run : runs) run = {n_rows, static_cast<int32_t>(1 + random.below(90))}, n_rows += run.n_rows;
    const auto n_kv = static_cast<int32_t>(1 + random.below(4)), group = static_cast<int32_t>(1 + random.below(150));
    const int32_t queries = kQueryTile << random.below(3);
    const PrefillPlan plan(runs, n_kv, group, queries, static_cast<int32_t>(1 + random.below(32)));
    std::vector<int> met(static_cast<size_t>(n_rows * n_kv * group));
    for (int64_t item = 0; item < plan.n_items(); ++item) {
      const PrefillItem at = plan.item(item);
      ASSERT_TRUE(at.n_rows > 0 && at.n_heads > 0 && at.n_rows * at.n_heads <= queries);
      ASSERT_EQ(at.first_head / group, at.kv_head);
      ASSERT_EQ((at.first_head + at.n_heads - 1) / group, at.kv_head);
      const auto in_run = [&](int64_t row) {
        return std::find_if(runs.begin(), runs.end(), [&](const RowRun& r) { return row < r.first_row + r.n_rows; });
      };
      ASSERT_EQ(in_run(at.row), in_run(at.row + at.n_rows - 1)) << "an item's rows are of one run";
      for (int64_t row = at.row; row < at.row + at.n_rows; ++row)
        for (int32_t h = at.first_head; h < at.first_head + at.n_heads; ++h) ++met[static_cast<size_t>(row * n_kv * group + h)];
    }
    ASSERT_TRUE(std::all_of(met.begin(), met.end(), [](int n) { return n == 1; }));
  }
}

}  // namespace
}  // namespace orrery::cpu::planners_test
