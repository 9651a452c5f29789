// Host memory that the device reaches: the reservoir where registered memory has the host's addresses, and where it has not (WSL2,
// Windows); regions that are shared in parts; and refusals. Emulated alone: the tests choose what the driver says and gives.
#ifdef ORRERY_EMULATED
#include <gtest/gtest.h>

#include "cuda/cuda_backend.h"
#include "runtime/kv/memory/arena.h"
#include "tests/emulation/cuda/device.h"
#include "tests/emulation/cuda/memory.h"
#include "tests/gpu/on_cuda.h"
#include "tests/support/policy_sessions.h"

namespace orrery::host_memory_test {
namespace {

using namespace testing;
using engine::Session;
using kv::Arena;
using kv::ArenaRegion;

constexpr uint64_t kPart = 1 << 20;

class GpuHostMemory : public ::testing::Test {
 protected:
  void TearDown() override {
    emulated::registered_elsewhere = false;
    emulated::pinned_most = SIZE_MAX;
  }
  // A reservoir of 64 parts.
  static std::unique_ptr<Arena> reservoir(Device* device, uint64_t bytes = 64 * kPart) {
    auto made = std::make_unique<Arena>(unwrap(os::Region::allocate(bytes)), false, device);
    made->share_in_parts_of(kPart);
    return made;
  }
};

// Kernels and copies find the KV in memory that the driver has allocated: every way that they read the reservoir, and a staged prompt.
// Nothing is registered: the emulated driver refuses that.
TEST_F(GpuHostMemory, PoliciesAnswerAlikeWhereRegisteredMemoryHasNoAddress) {
  for (const char* name : {"streaming", "quest", "synckv_every_step", "shadowkv", "keycodes", "freekv"}) {
    std::vector<float> expected;
    for (const bool at_host_address : {true, false}) {
      emulated::registered_elsewhere = !at_host_address;
      const size_t live = emulated::n_live(), pinned = emulated::pinned_bytes();
      {
        const auto model = open_spec("qwen3", on_cuda());
        EXPECT_EQ(model->runtime().device().shares_by_allocating(), !at_host_address);
        const auto session = unwrap(Session::open(model, with_mode(mode_of(name), 0.6, 256, KvType::f16, 70)));
        const std::vector<float> logits = answer(session.get(), random_tokens(*model, 150, 1), 3);
        const auto fork = unwrap(session->fork());  // shares pages, then copies them
        std::vector<float> more = logits;
        greedy(fork.get(), 2, &more);
        if (at_host_address) expected = more;
        else EXPECT_TRUE(same_bits(more, expected)) << name;
        EXPECT_GE(model->runtime().reservoir().pinned_bytes(), session->reservoir_bytes());
        EXPECT_EQ(model->runtime().pinned_bytes(), emulated::pinned_bytes() - pinned) << "what is reported, and what the driver counts";
      }
      EXPECT_EQ(emulated::n_live(), live);
      EXPECT_EQ(emulated::pinned_bytes(), pinned);
    }
  }
}

TEST_F(GpuHostMemory, RegionsAreSharedInParts) {
  const auto backend = unwrap(cuda::make_backend({}));
  const size_t before = emulated::pinned_bytes();
  const auto arena = reservoir(backend.get());
  {
    const ArenaRegion region = unwrap(ArenaRegion::take(arena.get(), 8 * kPart + 5, "a test"));
    EXPECT_GE(arena->pinned_bytes(), kPart) << "the first part, at once";
    unwrap(region.wait_shared(region.bytes()));
    EXPECT_EQ(arena->pinned_bytes(), region.bytes());
    EXPECT_EQ(emulated::pinned_bytes() - before, region.bytes());
    const ArenaRegion other = unwrap(ArenaRegion::take(arena.get(), 3 * kPart, "another"));
    unwrap(other.wait_shared(UINT64_MAX));
    EXPECT_EQ(emulated::pinned_bytes() - before, region.bytes() + other.bytes());
  }
  EXPECT_EQ(emulated::pinned_bytes(), before);
  EXPECT_EQ(arena->pinned_bytes(), 0u);
  EXPECT_EQ(arena->used(), 0u);
  for (uint64_t i = 0; i < 50; ++i) unwrap(ArenaRegion::take(arena.get(), (1 + i % 9) * kPart, "given back while its parts are shared"));
  EXPECT_EQ(emulated::pinned_bytes(), before);
}

// A part that the system refuses is an error of whoever needs it. Parts before it serve on, and the next call tries again.
TEST_F(GpuHostMemory, ARefusedPartIsTriedAgain) {
  const auto backend = unwrap(cuda::make_backend({}));
  const size_t before = emulated::pinned_bytes();
  const auto arena = reservoir(backend.get());
  emulated::pinned_most = before + 3 * kPart;
  {
    const ArenaRegion region = unwrap(ArenaRegion::take(arena.get(), 5 * kPart, "a test"));
    unwrap(region.wait_shared(3 * kPart));
    const Status refused = region.wait_shared(4 * kPart);
    EXPECT_EQ(refused.code(), Code::out_of_pinned_memory);
    EXPECT_EQ(refused.detail().bytes_requested, kPart);
    EXPECT_GT(refused.detail().bytes_available, 0u);
    unwrap(region.wait_shared(3 * kPart));
    emulated::pinned_most = SIZE_MAX;
    (void)region.wait_shared(5 * kPart);  // may still be told of the try before
    unwrap(region.wait_shared(5 * kPart));
    EXPECT_EQ(emulated::pinned_bytes() - before, 5 * kPart);
  }
  EXPECT_EQ(emulated::pinned_bytes(), before);
  // The first part: nothing has changed.
  for (const bool at_host_address : {true, false}) {
    emulated::pinned_most = SIZE_MAX, emulated::registered_elsewhere = !at_host_address;
    const auto other = unwrap(cuda::make_backend({}));
    const auto smaller = reservoir(other.get());
    const size_t now = emulated::pinned_bytes();
    emulated::pinned_most = now + kPart / 2;
    const auto taken = ArenaRegion::take(smaller.get(), 5 * kPart, "a test");
    EXPECT_EQ(taken.status().code(), Code::out_of_pinned_memory);
    EXPECT_EQ(taken.status().detail().bytes_requested, 5 * kPart);
    EXPECT_EQ(smaller->used(), 0u);
    EXPECT_EQ(smaller->largest_free(), smaller->bytes());
    EXPECT_EQ(emulated::pinned_bytes(), now);
  }
}

// A session whose reservoir is refused half-way says so, and goes on within the part that it has.
TEST_F(GpuHostMemory, ASessionGoesOnWithinThePartsThatItHas) {
  const auto model = open_spec("qwen3", on_cuda());
  model->runtime().reservoir().share_in_parts_of(os::page_bytes());
  const std::vector<int32_t> prompt = random_tokens(*model, 70, 1);
  const auto options = with_mode(mode_of("streaming"), 0.6, 512, KvType::f16, 64);  // two units of pages
  std::vector<float> expected;
  uint64_t half = 0;
  {
    const auto session = unwrap(Session::open(model, options));
    expected = answer(session.get(), prompt, 3);
    half = session->reservoir_bytes() / 2;
  }
  emulated::pinned_most = emulated::pinned_bytes() + half;
  const auto session = unwrap(Session::open(model, options));
  unwrap(session->prefill(prompt, nullptr, nullptr));
  const Status refused = session->prefill(random_tokens(*model, 300, 2), nullptr, nullptr);
  EXPECT_EQ(refused.code(), Code::out_of_pinned_memory) << refused.message();
  unwrap(session->rewind(static_cast<uint32_t>(prompt.size() - 1)));
  EXPECT_TRUE(same_bits(answer(session.get(), {prompt.back()}, 3), expected));
}

// Locked memory is asked for only where there is as much: systems kill processes for the rest.
TEST_F(GpuHostMemory, FreeMemoryIsAskedFirst) {
  const auto backend = unwrap(cuda::make_backend({}));
  const size_t before = emulated::pinned_bytes();
  const uint64_t available = os::memory_limits().available_bytes, wanted = (available / kPart + 4096) * kPart;
  for (Device* sharer : {static_cast<Device*>(backend.get()), static_cast<Device*>(nullptr)}) {
    Arena arena(unwrap(os::Region::allocate(wanted)), true, sharer);
    const Status refused = ArenaRegion::take(&arena, wanted, "a test").take_status();
    EXPECT_EQ(refused.code(), Code::out_of_pinned_memory);
    EXPECT_EQ(refused.detail().bytes_requested, wanted);
    EXPECT_LT(refused.detail().bytes_available, wanted);
    EXPECT_NE(std::string(refused.message()).find("are available (by "), std::string::npos) << refused.message();
    EXPECT_EQ(arena.used(), 0u);
  }
  EXPECT_EQ(emulated::pinned_bytes(), before);
}

}  // namespace
}  // namespace orrery::host_memory_test
#endif
