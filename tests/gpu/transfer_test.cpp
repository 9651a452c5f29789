// Tests copies between host memory and the device, many stretches at once: exact bytes, and few waits.
#include <chrono>
#include <utility>

#include "runtime/engine/session/session_file.h"
#include "tests/gpu/device_fixture.h"
#include "tests/gpu/on_cuda.h"
#include "tests/support/policy_sessions.h"
#ifdef ORRERY_EMULATED
#include "tests/emulation/cuda/device.h"
#endif

namespace orrery::transfer_test {
namespace {

using namespace testing;

std::vector<std::byte> some_bytes(size_t n, uint64_t seed) {
  Random random(seed);
  std::vector<std::byte> bytes(n);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random.below(256));
  return bytes;
}

// Stretches of odd lengths, some empty, some longer than the pinned buffer, in another order on the device.
TEST(GpuTransfer, ManyStretches) {
  Machine m(true, product_limits(1, 64));
  constexpr size_t kBounce = size_t{4} << 20;
  for (const std::vector<size_t>& sizes :
       {std::vector<size_t>{}, {0}, {1}, {3, 0, 17}, {kBounce, 5}, {kBounce - 1, 1, 1}, {9, 2 * kBounce + 3, 0, 1000, kBounce, 7}}) {
    std::vector<size_t> at(sizes.size());
    size_t end = 0;
    for (size_t i = sizes.size(); i-- > 0;) at[i] = end, end += sizes[i] + i % 3;
    const std::vector<std::byte> bytes = some_bytes(end, sizes.size());
    Buffer<std::byte> there(&m, std::max<size_t>(end, 1));
    std::vector<std::byte> back(end, std::byte{0});
    std::vector<Upload> uploads;
    std::vector<Download> downloads;
    for (size_t i = 0; i < sizes.size(); ++i) {
      uploads.push_back({{there.address() + at[i]}, bytes.data() + at[i], sizes[i]});
      downloads.push_back({back.data() + at[i], {there.address() + at[i]}, sizes[i]});
    }
    m->upload_all(uploads);
    m->download_all(downloads);
    std::vector<std::byte> expected(std::max<size_t>(end, 1), std::byte{0xFF});  // the gaps stay unchanged
    for (size_t i = 0; i < sizes.size(); ++i) {
      EXPECT_EQ(std::memcmp(back.data() + at[i], bytes.data() + at[i], sizes[i]), 0) << i << " of " << sizes.size();
      std::copy_n(bytes.begin() + static_cast<ptrdiff_t>(at[i]), sizes[i], expected.begin() + static_cast<ptrdiff_t>(at[i]));
    }
    EXPECT_TRUE(there.get() == expected);
  }
}

// What measurements call the host's time is a step's time less the waits: each wait that asks the driver counts, once.
TEST(GpuTransfer, WaitsAreCounted) {
  Machine m(true, product_limits(1, 64));
  const Buffer<std::byte> there(&m, sizeof(uint32_t));
  ASSERT_TRUE(m->synchronize().ok());
  auto since = [&m, before = cuda::waits(m.backend())]() mutable {
    const cuda::Waits now = cuda::waits(m.backend()), then = std::exchange(before, now);
    return cuda::Waits{now.n - then.n, now.ns - then.ns};
  };
#ifdef ORRERY_EMULATED
  const uint64_t asked = emulated::n_waits(), waited = cuda::waits(m.backend()).n;
#endif
  EXPECT_EQ(since().n, 0u);
  uint32_t word = 0;
  const auto began = std::chrono::steady_clock::now();
  m->download(&word, {there.address()}, sizeof word);
  const auto took = std::chrono::nanoseconds(std::chrono::steady_clock::now() - began).count();
  const cuda::Waits one = since();
  EXPECT_EQ(one.n, 1u);
  EXPECT_GT(one.ns, 0u);
  EXPECT_LE(one.ns, static_cast<uint64_t>(took));
  ASSERT_TRUE(m->synchronize().ok());
  since();
  ASSERT_TRUE(m->synchronize().ok());  // nothing was sent: nobody is asked
  EXPECT_EQ(since().n, 0u);
#ifdef ORRERY_EMULATED
  EXPECT_EQ(cuda::waits(m.backend()).n - waited, emulated::n_waits() - asked);
#endif
}

#ifdef ORRERY_EMULATED
// A session's pages go to a file and come back with one wait for every few megabytes, for any number of pages and layers.
TEST(GpuTransfer, PagesGoTogether) {
  const auto model = open_spec("llama-plain", on_cuda());
  const auto one = open_session(model, 640, KvType::f16), other = open_session(model, 640, KvType::f16);
  unwrap(one->prefill(random_tokens(*model, 600, 1), nullptr, nullptr));  // ten pages of two layers
  std::vector<std::byte> file;
  auto waits = [before = uint64_t{0}]() mutable {
    const uint64_t now = emulated::n_waits(), since = now - before;
    before = now;
    return since;
  };
  waits();
  unwrap(engine::SessionFile::save(one.get(), [&](Span<const std::byte> bytes) {
    file.insert(file.end(), bytes.begin(), bytes.end());
    return ok_status();
  }));
  EXPECT_LE(waits(), 4u);
  unwrap(engine::SessionFile::load(other.get(), file, "a file"));
  EXPECT_LE(waits(), 4u);
  std::vector<std::byte> again;
  unwrap(engine::SessionFile::save(other.get(), [&](Span<const std::byte> bytes) {
    again.insert(again.end(), bytes.begin(), bytes.end());
    return ok_status();
  }));
  EXPECT_EQ(again, file);
}
#endif

}  // namespace
}  // namespace orrery::transfer_test
