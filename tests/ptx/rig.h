// Runs a kernel that a test writes as PTX, and says what the executor found wrong with it.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "tests/ptx/executor/execute.h"

namespace orrery::ptx {

// A kernel `k` with the parameters .u64 p0 and p1, which `%rd1` and `%rd2` hold, and these registers. `%r1` is the thread's index, `%r2`
// the block's, and `%rd3` is p0 + 4 * (the thread's index).
inline std::string kernel_text(const std::string& body, const std::string& declarations = "") {
  return R"(.version 8.0
.target sm_80
.address_size 64
.extern .shared .align 16 .b8 dynamic[];
.visible .entry k(.param .u64 p0, .param .u64 p1)
{
  .reg .pred %p<9>;
  .reg .b16 %rs<9>;
  .reg .b32 %r<40>;
  .reg .f32 %f<40>;
  .reg .b64 %rd<20>;
  .reg .f64 %fd<9>;
)" + declarations +
         R"(
  ld.param.u64 %rd1, [p0];
  ld.param.u64 %rd2, [p1];
  mov.u32 %r1, %tid.x;
  mov.u32 %r2, %ctaid.x;
  mul.wide.u32 %rd3, %r1, 4;
  add.s64 %rd3, %rd1, %rd3;
)" + body +
         "\n  ret;\n}\n";
}

struct Rig {
  Rig() : executor(settings()) {}
  Settings settings() {
    Settings s;
    s.report = [this](const Fault& fault) { faults.push_back(fault.message()); };
    return s;
  }
  // Runs the kernel with p0 and p1. Everything that is wrong is in `faults`, one line each.
  bool run(const std::string& text, const void* p0, const void* p1 = nullptr, Dim3 grid = {}, Dim3 block = {32, 1, 1},
           uint32_t shared = 0) {
    modules.push_back(std::make_unique<Module>("case.ptx", text));
    const Kernel& kernel = modules.back()->kernel("k");
    Launch launch;
    launch.grid = grid, launch.block = block, launch.dynamic_shared_bytes = shared;
    launch.parameters.resize(16);
    const uint64_t values[] = {reinterpret_cast<uint64_t>(p0), reinterpret_cast<uint64_t>(p1)};
    std::memcpy(launch.parameters.data(), values, 16);
    counters = {};
    return executor.run(kernel, launch, &counters);
  }
  template <class T>
  void share(const std::vector<T>& memory, bool tracked = false) {
    executor.memory().add(memory.data(), memory.size() * sizeof(T), tracked);
  }

  std::vector<std::string> faults;
  Executor executor;
  Counters counters;
  std::vector<std::unique_ptr<Module>> modules;
};

// n words from 0 on, 64-byte aligned.
template <class T>
struct Words {
  explicit Words(size_t n, T first = 0, T step = 1) : storage(n * sizeof(T) + 64), count(n) {
    at = reinterpret_cast<T*>((reinterpret_cast<uintptr_t>(storage.data()) + 63) / 64 * 64);
    for (size_t i = 0; i < n; ++i, first = static_cast<T>(first + step)) at[i] = first;
  }
  T& operator[](size_t i) { return at[i]; }
  std::vector<std::byte> storage;
  size_t count;
  T* at;
};

}  // namespace orrery::ptx
