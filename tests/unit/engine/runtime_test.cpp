// The backend that a runtime chooses, and the I/O thread, which it starts only when asked, over the link that the options name.
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <fstream>
#include <string>

#include "cuda/cuda_backend.h"
#include "tests/support/engine_fixture.h"

namespace orrery::runtime_test {
namespace {

using namespace orrery::testing;

// Threads of this process; 0 where the system does not say.
int n_threads() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.rfind("Threads:", 0) == 0) return std::stoi(line.substr(8));
  return 0;
}

TEST(EngineRuntime, TheIoThreadStartsWhenItIsNeeded) {
  const int before = n_threads();
  engine::RuntimeOptions options = runtime_options(1);
  options.link = {1'000'000, 10'000};
  const auto runtime = unwrap(engine::Runtime::create(options));
  EXPECT_EQ(n_threads(), before);
  kv::IoThread* io = unwrap(runtime->io());
  EXPECT_EQ(unwrap(runtime->io()), io);
  EXPECT_EQ(n_threads(), before > 0 ? before + 1 : 0);
  EXPECT_EQ(io->link().bytes_per_second, 1'000'000u);
  EXPECT_EQ(io->link().latency_us, 10'000u);

  // From host memory into the arena, in 10 ms and as many more as there are thousands of bytes.
  const kv::ArenaRegion region = unwrap(kv::ArenaRegion::take(&runtime->arena(), 20'000, "a test"));
  std::vector<std::byte> source(20'000);
  for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<std::byte>(i % 251);
  const HostPiece pieces[] = {{source.data() + 5'000, 15'000}, {source.data(), 5'000}};
  kv::IoRequest request;
  request.to = region.data();
  request.pieces = {pieces, 2};
  const auto begin = std::chrono::steady_clock::now();
  ASSERT_TRUE(io->submit(&request));
  unwrap(io->wait(&request).status);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(30));
  std::vector<std::byte> there(source.size());
  runtime->take_turn().backend().download(there.data(), region.data(), there.size());
  std::rotate(source.begin(), source.begin() + 5'000, source.end());
  EXPECT_EQ(there, source);
}

// In a build with the CUDA backend and in one without; the wording is that of people who look for what to install.
TEST(EngineRuntime, WithoutAGpuAutoIsTheProcessorAndCudaSaysWhatIsMissing) {
  if (!cuda::devices().devices.empty()) GTEST_SKIP() << "there is a GPU";
  engine::RuntimeOptions options = runtime_options(1);
  options.backend = "auto";
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  const auto runtime = unwrap(engine::Runtime::create(options));
  options.backend = "cuda";
  const auto refused = engine::Runtime::create(options);
  EXPECT_EQ(::testing::internal::GetCapturedStdout() + ::testing::internal::GetCapturedStderr(), "");
  EXPECT_STREQ(runtime->backend_info().name, "cpu");
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), Code::unsupported);
  const std::string said = refused.status().message();
  EXPECT_TRUE(said.find("this build of the library has no CUDA backend") != std::string::npos ||
              said.find("NVIDIA driver") != std::string::npos || said.find("no CUDA-capable device") != std::string::npos)
      << said;
}

}  // namespace
}  // namespace orrery::runtime_test
