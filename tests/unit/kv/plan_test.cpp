// The plan as arithmetic: the context that fits a budget, to the page and to the byte.
#include <gtest/gtest.h>

#include "runtime/base/checked.h"
#include "runtime/kv/memory/arena.h"
#include "runtime/kv/memory/page_pool.h"
#include "runtime/kv/memory/plan.h"
#include "tests/support/random_blocks.h"

namespace orrery::kv::plan_test {
namespace {

using orrery::testing::Random;

// A workspace that grows by steps, as scratch for attention does.
struct Shape {
  uint64_t fixed = 0, step_tokens = 1, step_bytes = 0;
  uint64_t weights_bytes = 0, weights_mapped_bytes = 0;
  KvFormat kv = {};
  uint32_t spare_pages = 0;
};
uint64_t workspace(const Shape& s, uint32_t n) { return s.fixed + (n + s.step_tokens - 1) / s.step_tokens * s.step_bytes; }
uint64_t host(uint32_t n) { return 7 + uint64_t{n} * 5; }
Layout layout(const void* self, uint32_t n) {
  const Shape& s = *static_cast<const Shape*>(self);
  const uint32_t pages = pages_to_reserve(n);
  Layout layout;
  layout.add({"weights", Holds::weights, align_up(s.weights_bytes, kArenaAlignment), 0, s.weights_mapped_bytes, 0});
  layout.add({"workspace", Holds::workspace, workspace(s, n), 0, 0, 0});
  layout.add(PagePool::layout(s.kv, pages - std::min(pages, s.spare_pages), false));
  layout.add({"tables", Holds::tables, 0, 0, host(n), 0});
  return layout;
}

uint64_t expected_bytes(const Shape& in, uint32_t n) {
  const auto round = [](uint64_t x) { return (x + 255) / 256 * 256; };
  const uint64_t pages = (uint64_t{n} + 255) / 256 * 4;
  const uint64_t missing = pages > in.spare_pages ? pages - in.spare_pages : 0;
  return round(in.weights_bytes) + round(missing * in.kv.page_bytes()) + workspace(in, n);
}

TEST(KvPlan, TheLargestContextFitsAndOnePageMoreDoesNot) {
  Random random(5);
  for (int i = 0; i < 2000; ++i) {
    Shape shape{random.below(1 << 16), 1 + random.below(300), 256 * random.below(8)};
    PlanInput in;
    shape.weights_bytes = random.below(1 << 20);
    shape.weights_mapped_bytes = random.below(1 << 20);
    shape.kv = {static_cast<KvType>(random.below(4)), static_cast<int32_t>(1 + random.below(3)), static_cast<int32_t>(1 + random.below(3)),
                static_cast<int32_t>(32 * (1 + random.below(4)))};
    shape.spare_pages = static_cast<uint32_t>(random.below(3));
    in.max_context = static_cast<uint32_t>(1 + random.below(5000));
    in.budget_bytes = random.below(8 << 20);
    in.layout = layout;
    in.self = &shape;
    const Plan plan = make_plan(in, 0);
    ASSERT_LE(plan.largest_context, in.max_context);
    if (plan.largest_context > 0) {
      ASSERT_LE(expected_bytes(shape, plan.largest_context), in.budget_bytes);
    }
    if (plan.largest_context < in.max_context) {
      ASSERT_GT(expected_bytes(shape, plan.largest_context + 1), in.budget_bytes);
    }
    ASSERT_EQ(plan.n_context, std::max(plan.largest_context, 1u));
    ASSERT_EQ(plan.fits, plan.largest_context > 0);
    ASSERT_EQ(plan.host_bytes, host(plan.n_context));
    ASSERT_EQ(plan.weights_mapped_bytes, shape.weights_mapped_bytes);

    const uint32_t n = static_cast<uint32_t>(1 + random.below(6000));
    const Plan asked = make_plan(in, n);
    ASSERT_EQ(asked.n_context, n);
    ASSERT_EQ(asked.device_bytes, expected_bytes(shape, n));
    ASSERT_EQ(asked.device_bytes, asked.weights_bytes + asked.full_kv_bytes + asked.workspace_bytes);
    ASSERT_EQ(asked.fits, asked.device_bytes <= in.budget_bytes);
    ASSERT_EQ(asked.largest_context, plan.largest_context);

    in.budget_bytes = asked.device_bytes;  // exactly enough, and one byte less
    ASSERT_TRUE(make_plan(in, n).fits);
    --in.budget_bytes;
    ASSERT_FALSE(make_plan(in, n).fits);
  }
}

TEST(KvPlan, PagesForAContext) {
  EXPECT_EQ(pages_for(0), 0u);
  EXPECT_EQ(pages_for(1), 1u);
  EXPECT_EQ(pages_for(64), 1u);
  EXPECT_EQ(pages_for(65), 2u);
  EXPECT_EQ(pages_for(1u << 27), 1u << 21);
  EXPECT_EQ(pages_to_reserve(0), 0u);
  EXPECT_EQ(pages_to_reserve(1), 4u);
  EXPECT_EQ(pages_to_reserve(256), 4u);
  EXPECT_EQ(pages_to_reserve(257), 8u);
}

TEST(KvPlan, HugeModelsDoNotWrap) {
  Shape shape;
  PlanInput in;
  shape.kv = {KvType::f32, 1024, 4096, 256};  // 64 tokens * 2 KiB * 4M heads
  in.max_context = 1u << 27;
  in.budget_bytes = uint64_t{1} << 50;
  in.layout = layout;
  in.self = &shape;
  const Plan plan = make_plan(in, 1u << 27);
  EXPECT_EQ(plan.full_kv_bytes, uint64_t{1} << 60);
  EXPECT_FALSE(plan.fits);
  EXPECT_EQ(plan.largest_context, 1u << 17);
}

}  // namespace
}  // namespace orrery::kv::plan_test
