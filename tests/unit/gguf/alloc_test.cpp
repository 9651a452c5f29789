// Out of memory while opening: every allocation in turn is made to fail.  The exception passes through, and
// what was allocated before it has been given back.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <new>
#include <string>
#include <vector>

#include "runtime/gguf/gguf.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/temp_dir.h"

namespace {
thread_local int64_t fail_after = -1;  // allocations until one fails; negative: none does
thread_local int64_t n_live = 0;       // allocations not yet given back
}  // namespace

// The whole test program's; malloc underneath, so that sanitizers still see each block.
void* operator new(std::size_t n) {
  if (fail_after >= 0 && fail_after-- == 0) throw std::bad_alloc();
  void* p = std::malloc(n > 0 ? n : 1);
  if (!p) throw std::bad_alloc();
  ++n_live;
  return p;
}
void operator delete(void* p) noexcept {
  if (p) --n_live;
  std::free(p);
}
void operator delete(void* p, std::size_t) noexcept { operator delete(p); }

namespace orrery::gguf {
namespace {

using testing::Bytes;
using testing::GgufBuilder;

// Runs `open` with its 1st, 2nd, ... allocation failing, until none is left to fail; gives how many there
// were.
int64_t fail_each_allocation(const std::function<void()>& open) {
  for (int64_t n = 0;; ++n) {
    const int64_t before = n_live;
    bool failed = false;
    fail_after = n;
    try {
      open();
    } catch (const std::bad_alloc&) {
      failed = true;
    }
    fail_after = -1;
    EXPECT_EQ(n_live, before) << "allocation " << n << " failed: something leaked";
    if (!failed || ::testing::Test::HasFailure()) return n;
  }
}

GgufBuilder part(uint16_t number) {
  GgufBuilder b;
  b.key("split.no", number).key("split.count", uint16_t{2}).key("split.tensors.count", int32_t{2});
  b.array("strings", std::vector<std::string>(100, "text"));
  return b.tensor("tensor " + std::to_string(number), TensorType::q8_0, {32, 2});
}

TEST(OutOfMemory, OpenGivesEverythingBack) {
  const testing::TempDir dir;
  const std::string path = dir.write("m-00001-of-00002.gguf", part(0).build());
  dir.write("m-00002-of-00002.gguf", part(1).build());
  for (const Load load : {Load::map, Load::read}) {
    const int64_t n = fail_each_allocation([&] { (void)File::open(path, {load, false}).ok(); });
    EXPECT_GT(n, 10);
    ASSERT_TRUE(File::open(path, {load, false}).ok());  // and all is well afterwards
  }
}

TEST(OutOfMemory, RefusalGivesEverythingBack) {
  Bytes bytes = GgufBuilder().array("strings", std::vector<std::string>(100, "text")).key("k", "value").build();
  bytes.pop_back();
  const std::string name = "a name too long for a string to hold in place";
  EXPECT_GT(fail_each_allocation([&] { (void)File::parse(bytes, name).ok(); }), 5);
}

}  // namespace
}  // namespace orrery::gguf
