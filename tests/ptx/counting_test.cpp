// The device that counts without running every block: its sums equal the sums of all blocks. Grids are longer than what the rule looks at.
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/gpu/on_cuda.h"
#include "tests/ptx/counting.h"

namespace orrery::ptx {
namespace {

using testing::unwrap;

// In place of the device that checks everything, which the program has otherwise.
class Counted {
 public:
  Counted() : before_(emulated::device) { emulated::device = &device; }
  ~Counted() { emulated::device = before_; }
  CountingDevice device;

 private:
  emulated::Device* before_;
};

struct Step {
  std::vector<LaunchGroup> prefill, decode;
};
enum class Blocks { all, some, alike };  // alike: also, launches that differ in addresses alone are counted once
Step steps(const std::string& model, int32_t rows, Blocks blocks) {
  Counted counted;
  counted.device.samples = blocks != Blocks::all;
  Step out;
  {
    const auto opened = testing::open_spec(model, testing::on_cuda());
    engine::SessionOptions options;
    options.n_context = 1024;
    options.chunk_tokens = 512;
    const auto session = unwrap(engine::Session::open(opened, options));
    counted.device.take_groups();
    if (blocks == Blocks::alike) counted.device.set_scope("prefill");
    const std::vector<int32_t> prompt(static_cast<size_t>(rows), 3);
    unwrap(session->sequence().prefill_chunk(prompt, nullptr, true, nullptr));
    out.prefill = counted.device.take_groups();
    if (blocks == Blocks::alike) counted.device.set_scope("decode");
    testing::feed(session.get(), 3);
    out.decode = counted.device.take_groups();
  }
  EXPECT_EQ(counted.device.failure(), "");
  return out;
}

void expect_equal(const std::vector<LaunchGroup>& all, const std::vector<LaunchGroup>& some, int64_t* left_out) {
  ASSERT_EQ(all.size(), some.size());
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i].launches, some[i].launches);
    EXPECT_FALSE(some[i].estimated) << all[i].name;
    *left_out += all[i].blocks_run - some[i].blocks_run;
    // Angles decide how RoPE's sines are computed, and where a page ends how many sectors neighbours share: each within 1%. prepare_rope
    // reads a row of the step, which shares a sector with the next row's in some blocks and not in others: both add up.
    const bool angles = all[i].name.find("prepare_rope") != std::string::npos;
    for (size_t k = 0; k < all[i].counts.values.size(); ++k) {
      const int64_t expected = all[i].counts.values[k], found = some[i].counts.values[k];
      const int64_t n_near = (k == Counts::block_sectors || k == Counts::own_sectors) + angles;
      EXPECT_LE(std::abs(found - expected), n_near > 0 ? n_near * expected / 100 + 8 : 0)
          << all[i].name << ", count " << k << ": " << found << " for " << expected << ", grid " << all[i].grid.x << " x " << all[i].grid.y;
    }
  }
}

TEST(GpuCounting, SomeBlocksSumToAll) {
  const Step all = steps("qwen3", 203, Blocks::all);
  for (const Blocks blocks : {Blocks::some, Blocks::alike}) {
    const Step some = steps("qwen3", 203, blocks);
    int64_t left_out = 0;
    expect_equal(all.prefill, some.prefill, &left_out);
    expect_equal(all.decode, some.decode, &left_out);
    EXPECT_GT(left_out, 1000);
  }
}

}  // namespace
}  // namespace orrery::ptx
