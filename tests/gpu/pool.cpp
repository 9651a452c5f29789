// See pool.h. Also says which GPU, driver and cuBLAS the tests meet.
#include "tests/gpu/pool.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <stdexcept>
#include <string>

#include "cuda/device/archive.h"
#include "cuda/device/cublas.h"
#include "cuda/device/gpu.h"

namespace orrery::testing {

namespace {

std::unique_ptr<cuda::Gpu> held;  // null: no device, and each test says so

class SharedDevice : public ::testing::Environment {
 public:
  void SetUp() override {
    Result<cuda::Driver> driver = cuda::Driver::open(cuda::archive_version());
    if (!driver.ok()) return say(driver.status().message());
    Result<std::unique_ptr<cuda::Gpu>> opened = cuda::Gpu::open(driver.value(), 0);
    if (!opened.ok()) return say(opened.status().message());
    held = std::move(opened).value();
    say((held->properties().name + (cuda::Cublas::open() ? ", with cuBLAS" : ", without cuBLAS")).c_str());
  }
  void TearDown() override {
    pool().clear();
    held.reset();
  }

 private:
  static void say(const char* what) {
    std::printf("Device: %s\n", what);
    std::fflush(stdout);
  }
};
const ::testing::Environment* const shared_device = ::testing::AddGlobalTestEnvironment(new SharedDevice);

}  // namespace

Pool& pool() {
  static Pool the;
  return the;
}

Pool::Pooled Pool::take(cuda::Options::Products products, const StepLimits& limits, uint64_t bytes) {
  (void)shared_device;
  Pooled found;
  for (auto p = idle_.begin(); p != idle_.end(); ++p)
    if (p->products == products && p->backend->scratch_bytes(limits) + bytes <= p->arena_bytes) {
      found = std::move(*p);
      idle_.erase(p);
      break;
    }
  if (!found.backend) {
    auto made = cuda::make_backend({0, products});
    if (!made.ok()) throw std::runtime_error(made.status().message());
    found.backend = std::move(made).value();
    found.products = products;
    found.arena_bytes = found.backend->scratch_bytes(limits) + bytes;
    const Status reserved = found.backend->reserve_arena(found.arena_bytes);
    if (!reserved.ok()) throw std::runtime_error(reserved.message());
  }
  const cuda::OnDevice here(*held);
  cuda::DriverError e = held->driver().fill(found.backend->arena().address, 0xFF, found.arena_bytes, nullptr);
  if (e == cuda::DriverError::none) e = held->driver().wait_for_stream(nullptr);
  if (e != cuda::DriverError::none) throw std::runtime_error("filling the arena: " + held->driver().text(e));
  return found;
}

void Pool::leave(Pooled used) {
  if (used.backend && used.backend->synchronize().ok()) idle_.push_back(std::move(used));
}

}  // namespace orrery::testing
