// What the CPU backend's tests share: memory whose end is the end of the world, and a backend with its
// scratch in it.
//
// Buffers end where an inaccessible page begins, so that reading or writing one byte too many kills the test;
// what lies before them is checked for stray writes.  Outputs start as NaN: what an operation forgets is
// seen.
#pragma once

#include <gtest/gtest.h>
#ifdef _WIN32
#ifndef NOMINMAX
#define NOMINMAX
#endif
#include <windows.h>
#else
#include <sys/mman.h>
#endif

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "runtime/backend/backend.h"
#include "runtime/cpu/cpu_backend.h"
#include "runtime/os/os.h"
#include "tests/support/random_blocks.h"

namespace orrery::testing {

constexpr size_t kFront = 64;

template <class T>
class Guarded {
 public:
  explicit Guarded(size_t n) : n_(n) {
    const size_t page = os::page_bytes();
    const size_t bytes = (n * sizeof(T) + kFront + page - 1) / page * page;
    mapped_ = bytes + page;
#ifdef _WIN32
    base_ = static_cast<std::byte*>(VirtualAlloc(nullptr, mapped_, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE));
    if (!base_) throw std::bad_alloc();
    DWORD before;
    VirtualProtect(base_ + bytes, page, PAGE_NOACCESS, &before);
#else
    base_ = static_cast<std::byte*>(mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0));
    if (base_ == MAP_FAILED) throw std::bad_alloc();
    mprotect(base_ + bytes, page, PROT_NONE);
#endif
    data_ = reinterpret_cast<T*>(base_ + bytes - n * sizeof(T));
    std::memset(base_, 0xFF, bytes);  // as floats: NaN
  }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;
  ~Guarded() {
    for (size_t i = 1; i <= kFront; ++i)
      EXPECT_EQ(reinterpret_cast<std::byte*>(data_)[-static_cast<ptrdiff_t>(i)], std::byte{0xFF}) << "written before";
#ifdef _WIN32
    VirtualFree(base_, 0, MEM_RELEASE);
#else
    munmap(base_, mapped_);
#endif
  }

  T* data() const { return data_; }
  size_t size() const { return n_; }
  T& operator[](size_t i) const { return data_[i]; }
  Ptr<T> ptr() const { return {reinterpret_cast<uintptr_t>(data_)}; }
  Ptr<const T> cptr() const { return {reinterpret_cast<uintptr_t>(data_)}; }

 private:
  size_t n_, mapped_;
  std::byte* base_;
  T* data_;
};

inline void fill_normal(const Guarded<float>& x, uint64_t seed, float scale = 1.0f) {
  Random random(seed);
  for (size_t i = 0; i < x.size(); ++i) x[i] = scale * random.normal();
}

// A backend on one path, with scratch for `limits` and a step under way.
class Rig {
 public:
  Rig(const std::string& path, int32_t n_threads, const StepLimits& limits) {
    auto made = cpu::make_backend({n_threads, path});
    if (!made.ok()) throw std::runtime_error(made.status().message());
    backend_ = std::move(made).value();
    scratch_ = std::make_unique<Guarded<std::byte>>(backend_->scratch_bytes(limits));
    EXPECT_TRUE(backend_->set_scratch(scratch_->ptr(), limits).ok());
  }
  Backend* operator->() const { return backend_.get(); }

  // A matrix where the backend wants it: in the arena, which holds the last one alone, or where it lies.
  Weight place(const Weight& w) {
    const uint64_t bytes = backend_->weight_bytes(w.type, w.n_rows, w.n_cols);
    Weight placed;
    Status status = backend_->reserve_arena(bytes);
    if (status.ok())
      status = backend_->place_weight(w.type, w.n_rows, w.n_cols, reinterpret_cast<const std::byte*>(w.data.address),
                                      bytes ? backend_->arena() : Ptr<std::byte>{}, &placed);
    if (!status.ok()) throw std::runtime_error(status.message());
    return placed;
  }

  // A step of `n` rows of one sequence from `position` on, without KV.
  void begin(Phase phase, int32_t n, int32_t position = 0) {
    rows_.clear();
    for (int32_t i = 0; i < n; ++i) rows_.push_back({i, position + i, 0});
    backend_->begin_step({phase, rows_, {}, {}});
  }
  void end() { backend_->end_step(); }

 private:
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Guarded<std::byte>> scratch_;
  std::vector<Row> rows_;
};

inline std::vector<std::string> paths() {
  std::vector<std::string> names;
  for (const char* name : cpu::available_paths()) names.push_back(name);
  return names;
}

inline uint32_t bits_of(float f) {
  uint32_t bits;
  std::memcpy(&bits, &f, sizeof bits);
  return bits;
}
inline bool same_bits(const float* a, const float* b, size_t n) { return std::memcmp(a, b, n * sizeof(float)) == 0; }

// Test programs name their parameter by path.
struct PathName {
  template <class T>
  std::string operator()(const ::testing::TestParamInfo<T>& info) const {
    return info.param;
  }
};

}  // namespace orrery::testing
