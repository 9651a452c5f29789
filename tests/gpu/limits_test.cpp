// What a device refuses to launch, in emulation: so a kernel that no GPU of the list could run fails in every test. And how a launch finds
// its kernel in the archive.
#ifdef ORRERY_EMULATED
#include <gtest/gtest.h>

#include <set>

#include "cuda/device/archive.h"
#include "cuda/device/gpu.h"
#include "cuda/device/launch.h"
#include "tests/emulation/cuda/device.h"
#include "tests/support/engine_fixture.h"

namespace orrery::cuda::limits_test {
namespace {

int n_threads_run = 0;
void count_thread(void* parameters) { n_threads_run += **static_cast<int**>(parameters); }
const bool registered = emulated::add_kernel("count_threads", {sizeof(int)}, count_thread);

class GpuLimits : public ::testing::Test {
 protected:
  DriverError start(Dim3 grid, Dim3 block, size_t shared_bytes) {
    int by = 1;
    void* parameters[] = {&by};
    return driver_.launch(kernel_, grid.x, grid.y, grid.z, block.x, block.y, block.z, static_cast<unsigned>(shared_bytes), nullptr,
                          parameters, nullptr);
  }
  DriverError allow(int bytes) { return driver_.set_function_attribute(kernel_, FunctionAttribute::dynamic_shared_bytes, bytes); }

  const Driver driver_ = testing::unwrap(Driver::open(archive_version()));
  const std::unique_ptr<Gpu> gpu_ = testing::unwrap(Gpu::open(driver_, 0));
  const Function kernel_ = emulated::find_kernel("count_threads");
};

TEST_F(GpuLimits, LaunchesBeyondThemAreRefused) {
  ASSERT_TRUE(registered && kernel_);
  constexpr int kKiB = 1024;
  const int before = n_threads_run;
  const OnDevice here(*gpu_);
  EXPECT_EQ(start(Dim3(1, 65536, 1), Dim3(32), 0), DriverError::invalid_value);
  EXPECT_EQ(start(Dim3(1, 1, 65536), Dim3(32), 0), DriverError::invalid_value);
  EXPECT_EQ(start(Dim3(0, 1, 1), Dim3(32), 0), DriverError::invalid_value);
  EXPECT_EQ(start(Dim3(1), Dim3(1056), 0), DriverError::invalid_value);
  EXPECT_EQ(start(Dim3(1), Dim3(32), 48 * kKiB + 1), DriverError::invalid_value) << "without the attribute";
  EXPECT_EQ(allow(99 * kKiB + 1), DriverError::invalid_value);
  EXPECT_EQ(allow(60 * kKiB), DriverError::none);
  EXPECT_EQ(start(Dim3(1), Dim3(32), 60 * kKiB + 1), DriverError::invalid_value);
  EXPECT_EQ(n_threads_run, before);
  if (emulated::device) return;  // this function has no PTX
  EXPECT_EQ(start(Dim3(1, 2, 1), Dim3(64), 60 * kKiB), DriverError::none);
  EXPECT_EQ(n_threads_run, before + 128);
}

TEST_F(GpuLimits, AThreadNeedsAContext) {
  EXPECT_EQ(emulated::current_device(), -1);
  EXPECT_EQ(start(Dim3(1), Dim3(32), 0), DriverError::invalid_context);
  DeviceAddress at = 0;
  EXPECT_EQ(driver_.allocate(&at, 16), DriverError::invalid_context);
  {
    const OnDevice here(*gpu_);
    EXPECT_EQ(emulated::current_device(), 0);
  }
  EXPECT_EQ(emulated::current_device(), -1);
}

// Symbols of both forms, as GCC, Clang and nvcc write them; of a kernel with parameters of the host's long, and of a template.
TEST(GpuKernels, AreKnownByReadableNames) {
  const char* add = "orrery::cuda::rows_cu::add_kernel";
  EXPECT_EQ(readable_name("_ZN6orrery4cuda7rows_cu10add_kernelEPfPKfl"), add);
  EXPECT_EQ(readable_name("_ZN6orrery4cuda7rows_cu10add_kernelEPfPKfx"), add) << "where long has 32 bits";
  EXPECT_EQ(readable_name("N6orrery4cuda9KernelTagIXadL_ZNS0_7rows_cu10add_kernelEPfPKflEEEE"), add);
  const char* halves = "orrery::cuda::matmul_prefill_cu::matmul_halves_kernel<(orrery::TensorType)1>";
  EXPECT_EQ(readable_name("_ZN6orrery4cuda17matmul_prefill_cu20matmul_halves_kernelILNS_10TensorTypeE1EEEvNS1_11PrefillArgsE"), halves);
  EXPECT_EQ(readable_name(
                "N6orrery4cuda9KernelTagIXadL_ZNS0_17matmul_prefill_cu20matmul_halves_kernelILNS_10TensorTypeE1EEEvNS2_11PrefillArgsEEEEE"),
            halves);
}

void not_in_the_archive(int) {}

TEST(GpuKernels, AMissingOneIsTheQueuesFailure) {
  const std::unique_ptr<Gpu> gpu = testing::unwrap(Gpu::open(testing::unwrap(Driver::open(archive_version())), 0));
  Queue queue(gpu.get(), nullptr);
  int by = 1;
  void* parameters[] = {&by};
  launch_named(queue, {Dim3(1), Dim3(32)}, kernel_name<not_in_the_archive>(), parameters);
  EXPECT_EQ(gpu->status().code(), Code::internal) << "the device is well";
  EXPECT_EQ(gpu->status().detail().native_code, 500);
}

// What a driver's table has been asked for, by the functions that a test puts in place of its own.
Driver real;
int n_loaded = 0, n_retained = 0, n_released = 0;
DriverError load_counted(Module* module, const void* image) { return ++n_loaded, real.load_module(module, image); }
DriverError retain_counted(Context* context, int device) { return ++n_retained, real.retain_context(context, device); }
DriverError release_counted(int device) { return ++n_released, real.release_context(device); }
Driver counting_driver() {
  real = testing::unwrap(Driver::open(archive_version()));
  n_loaded = n_retained = n_released = 0;
  Driver counted = real;
  counted.load_module = load_counted, counted.retain_context = retain_counted, counted.release_context = release_counted;
  return counted;
}

// Two runtimes of a process have one context and one copy of the kernels, and errors of their own.
TEST(GpuKernels, OneCopyServesTheProcess) {
  const Driver driver = counting_driver();
  std::unique_ptr<Gpu> first = testing::unwrap(Gpu::open(driver, 0)), second = testing::unwrap(Gpu::open(driver, 0));
  const int images = static_cast<int>(archive().size());
  EXPECT_EQ(n_loaded, images);
  EXPECT_EQ(n_retained, 1);
  EXPECT_EQ(first->context(), second->context());
  EXPECT_TRUE(second->add_kernels(archive()).ok());
  EXPECT_EQ(n_loaded, images) << "an image that is loaded";
  first->latch().set(DriverError::illegal_address, "failing");
  EXPECT_FALSE(first->status().ok());
  EXPECT_TRUE(second->status().ok());
  first.reset();
  EXPECT_EQ(n_released, 0);
  const char* const name = archive()[0].kernels[0];
  EXPECT_NE(second->kernel(name).function, nullptr) << "after the Gpu that loaded it";
  second.reset();
  EXPECT_EQ(n_released, 1);
  second = testing::unwrap(Gpu::open(driver, 0));  // nothing is left of the first two
  EXPECT_EQ(n_loaded, 2 * images);
  EXPECT_EQ(n_retained, 2);
}

DriverError load_nothing(Module*, const void*) { return DriverError::out_of_memory; }
TEST(GpuKernels, AContextThatDoesNotTakeThemIsReleased) {
  Driver driver = counting_driver();
  driver.load_module = load_nothing;
  EXPECT_EQ(Gpu::open(driver, 0).status().code(), Code::out_of_device_memory);
  EXPECT_EQ(n_retained, 1);
  EXPECT_EQ(n_released, 1);
}

// Every kernel of the archive is there once, and each that the host launches is in the archive.
TEST(GpuKernels, TheArchiveHasThemAll) {
  std::set<std::string> names;
  for (const Image& image : archive())
    for (const char* const* symbol = image.kernels; *symbol; ++symbol) EXPECT_TRUE(names.insert(readable_name(*symbol)).second) << *symbol;
  EXPECT_GT(names.size(), 250u);
  for (const Function kernel : emulated::kernels())
    if (kernel->name.find("_kernel") != std::string::npos) {
      EXPECT_EQ(names.count(kernel->name), 1u) << kernel->name;
    }
}

}  // namespace
}  // namespace orrery::cuda::limits_test
#endif
