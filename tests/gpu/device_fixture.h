// Helpers for the tests of cuda/: a device, buffers on it, and the CPU backend's plain kernels, which are the oracle.
//
// The same tests run on a GPU and, compiled for the CPU, in emulation (ORRERY_EMULATED). In emulation an inaccessible page follows each
// buffer. On a GPU a buffer has margins, which are checked afterwards. Buffers are NaN until they are written. There a machine takes a
// backend that another machine has left (pool.h): tests open some 2,000 machines.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <vector>

#include "cuda/cuda_backend.h"
#include "tests/unit/cpu/fixture.h"
#ifdef ORRERY_EMULATED
#include "tests/emulation/cuda/device.h"
#include "tests/emulation/cuda/memory.h"
#else
#include "tests/gpu/pool.h"
#endif

namespace orrery::testing {

// One of the two backends, with scratch memory for `limits`, and memory for buffers.
class Machine {
 public:
  // Our own kernels compute products, unless a test asks for cuBLAS.
  Machine(bool cuda, const StepLimits& limits, orrery::cuda::Options::Products products = orrery::cuda::Options::Products::own)
      : cuda_(cuda) {
    constexpr uint64_t kMemory = uint64_t{256} << 20;
#ifndef ORRERY_EMULATED
    if (cuda) {
      pooled_ = pool().take(products, limits, kMemory);
      backend_ = pooled_.backend.get();
      next_ = backend_->arena().address, end_ = next_ + pooled_.arena_bytes;
      const Status placed = backend_->set_scratch(take(backend_->scratch_bytes(limits)), limits);
      if (!placed.ok()) throw std::runtime_error(placed.message());
      return;
    }
#endif
    auto made = cuda ? orrery::cuda::make_backend({0, products}) : cpu::make_backend({2, "plain"});
    if (!made.ok()) throw std::runtime_error(made.status().message());
    own_ = std::move(made).value();
    backend_ = own_.get();
    const uint64_t scratch = backend_->scratch_bytes(limits);
    const Status reserved = backend_->reserve_arena(scratch + kMemory);
    if (!reserved.ok()) throw std::runtime_error(reserved.message());
    next_ = backend_->arena().address;
    end_ = next_ + scratch + kMemory;
    if (const Status taken = backend_->set_scratch(take(scratch), limits); !taken.ok()) throw std::runtime_error(taken.message());
  }
#ifndef ORRERY_EMULATED
  ~Machine() {
    if (cuda_) pool().leave(std::move(pooled_));
  }
#endif
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;
  Backend* operator->() const { return backend_; }
  Backend& backend() const { return *backend_; }
  bool cuda() const { return cuda_; }

  Ptr<std::byte> take(uint64_t bytes) {
    const uint64_t at = (next_ + 255) / 256 * 256;
    next_ = at + bytes;
    if (next_ > end_) throw std::runtime_error("the tests' device memory is used up");
    return {at};
  }
  // A step of `n` rows of one sequence from `position` on; KV, if any, in `step`.
  void begin(Phase phase, int32_t n, int32_t position = 0, Step step = {}) {
    rows_.clear();
    for (int32_t i = 0; i < n; ++i) rows_.push_back({i, position + i, 0});
    step.phase = phase;
    step.rows = rows_;
    backend_->begin_step(step);
  }
  void end() {
    backend_->end_step();
    const Status s = backend_->synchronize();
    ASSERT_TRUE(s.ok()) << s.message();
  }

 private:
  bool cuda_;
#ifndef ORRERY_EMULATED
  Pool::Pooled pooled_;
#endif
  std::unique_ptr<Backend> own_;
  Backend* backend_ = nullptr;
  std::vector<Row> rows_;
  uint64_t next_ = 0, end_ = 0;
};

// Limits for tests of products alone, with at most `rows` rows.
inline StepLimits product_limits(int32_t rows, int64_t max_in) {
  StepLimits limits;
  limits.max_rows = rows;
  limits.max_context = 64;
  limits.n_heads = limits.n_kv_heads = 1, limits.head_dim = 32;
  limits.max_in = max_in;
  limits.max_head_state = 128 * 128;
  return limits;
}

// n values of T in a machine's memory.
template <class T>
class Buffer {
 public:
  Buffer(Machine* machine, size_t n) : machine_(*machine), n_(n) {
#ifdef ORRERY_EMULATED
    if (!emulated::device || !machine->cuda()) {  // the CPU backend's memory is the host's
      memory_ = std::make_unique<Guarded<T>>(n);
      at_ = {memory_->ptr().address};
      return;
    }
    // An allocation of its own: the device knows its bounds, and it is aligned as on a GPU.
    void* at = emulated::allocate(n * sizeof(T));
    if (!at) throw std::runtime_error("no memory for a buffer");
    const emulated::AsDevice now(emulated::AsDevice::Work::copy);
    std::memset(at, 0xFF, n * sizeof(T));
    at_ = {reinterpret_cast<uintptr_t>(at)};
#else
    at_ = machine->take(n * sizeof(T) + 2 * kMargin) + kMargin;
    const std::vector<std::byte> poison(n * sizeof(T) + 2 * kMargin, std::byte{0xFF});
    machine_->upload({at_.address - kMargin}, poison.data(), poison.size());
#endif
  }
  Buffer(Machine* machine, const std::vector<T>& values) : Buffer(machine, values.size()) { set(values); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
#ifdef ORRERY_EMULATED
  ~Buffer() {
    if (!memory_) emulated::release(reinterpret_cast<void*>(at_.address));
  }
#else
  ~Buffer() {
    std::vector<std::byte> all(n_ * sizeof(T) + 2 * kMargin);
    machine_->download(all.data(), Ptr<const std::byte>{at_.address - kMargin}, all.size());
    for (size_t i = 0; i < kMargin; ++i) {
      EXPECT_EQ(all[i], std::byte{0xFF}) << "written before";
      EXPECT_EQ(all[all.size() - 1 - i], std::byte{0xFF}) << "written behind";
    }
  }
#endif

  Ptr<T> ptr() const { return {at_.address}; }
  Ptr<const T> cptr() const { return {ptr().address}; }
  uint64_t address() const { return ptr().address; }
  void set(const std::vector<T>& values) {
    machine_->upload({ptr().address}, values.data(), values.size() * sizeof(T));
    EXPECT_TRUE(machine_->synchronize().ok());
  }
  std::vector<T> get() const {
    std::vector<T> out(n_);
    machine_->download(out.data(), Ptr<const std::byte>{ptr().address}, n_ * sizeof(T));
    return out;
  }

 private:
  Machine& machine_;
  size_t n_;
#ifdef ORRERY_EMULATED
  std::unique_ptr<Guarded<T>> memory_;
#else
  static constexpr size_t kMargin = 256;
#endif
  Ptr<std::byte> at_;
};

inline std::vector<float> normal_values(size_t n, uint64_t seed, float scale = 1.0f) {
  Random random(seed);
  std::vector<float> x(n);
  for (float& v : x) v = scale * random.normal();
  return x;
}

// Expects max |a - b| <= relative * max |b| + absolute. A NaN fails.
inline void expect_near(const std::vector<float>& a, const std::vector<float>& b, double relative, double absolute = 0) {
  ASSERT_EQ(a.size(), b.size());
  double most = 0, largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(std::isnan(a[i]), std::isnan(b[i])) << "at " << i << ": " << a[i] << ", expected " << b[i];
    if (std::isnan(b[i])) continue;
    most = std::max(most, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
    largest = std::max(largest, std::abs(static_cast<double>(b[i])));
  }
  EXPECT_LE(most, relative * largest + absolute) << "of at most " << largest;
}

// Runs `body` on the CPU backend's plain kernels and on the device. Returns both results.
template <class F>
auto on_both(const StepLimits& limits, const F& body) {
  Machine plain(false, limits), cuda(true, limits);
  return std::make_pair(body(&plain), body(&cuda));
}

}  // namespace orrery::testing
