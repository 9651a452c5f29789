// The words of CUDA C++ that kernels use, on the CPU: a kernel is a function whose threads are coroutines (threads.h).
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "tests/emulation/cuda/threads.h"

#define __host__
#define __device__
#define __global__ inline  // its name is the same in every file
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __shared__ static thread_local
#define __constant__ static const
#define __align__(n) __attribute__((aligned(n)))

// ---- vectors
#define ORRERY_VECTOR2(name, T, align) \
  struct __align__(align) name {       \
    T x, y;                            \
  };                                   \
  inline name make_##name(T x, T y) { return {x, y}; }
#define ORRERY_VECTOR4(name, T, align) \
  struct __align__(align) name {       \
    T x, y, z, w;                      \
  };                                   \
  inline name make_##name(T x, T y, T z, T w) { return {x, y, z, w}; }
ORRERY_VECTOR2(float2, float, 8)
ORRERY_VECTOR4(float4, float, 16)
ORRERY_VECTOR2(int2, int, 8)
ORRERY_VECTOR4(int4, int, 16)
ORRERY_VECTOR2(uint2, unsigned, 8)
ORRERY_VECTOR4(uint4, unsigned, 16)
#undef ORRERY_VECTOR2
#undef ORRERY_VECTOR4

// ---- a warp and a block
inline void __syncthreads() { orrery::emulated::wait_for_block(); }
inline void __syncwarp(unsigned = 0xFFFFFFFFu) { orrery::emulated::exchange<0>(nullptr); }
inline void __threadfence() {}
inline void __threadfence_block() {}

namespace orrery::emulated {
template <class T>
__forceinline__ T lane_value(T value, unsigned lane_to_read) {
  const std::byte* values = exchange<sizeof(T)>(&value);
  T out;
  std::memcpy(&out, values + lane_to_read % kWarp * kMostExchanged, sizeof(T));
  return out;
}
}  // namespace orrery::emulated

template <class T>
__forceinline__ T __shfl_sync(unsigned, T value, int from, int width = 32) {
  const unsigned lane = orrery::emulated::lane(), w = static_cast<unsigned>(width);
  return orrery::emulated::lane_value(value, lane / w * w + static_cast<unsigned>(from) % w);
}
template <class T>
__forceinline__ T __shfl_xor_sync(unsigned, T value, int mask, int = 32) {
  return orrery::emulated::lane_value(value, orrery::emulated::lane() ^ static_cast<unsigned>(mask));
}
template <class T>
__forceinline__ T __shfl_down_sync(unsigned, T value, unsigned by, int width = 32) {
  const unsigned lane = orrery::emulated::lane(), w = static_cast<unsigned>(width);
  return orrery::emulated::lane_value(value, lane % w + by < w ? lane + by : lane);
}
template <class T>
__forceinline__ T __shfl_up_sync(unsigned, T value, unsigned by, int width = 32) {
  const unsigned lane = orrery::emulated::lane(), w = static_cast<unsigned>(width);
  return orrery::emulated::lane_value(value, lane % w >= by ? lane - by : lane);
}
inline unsigned __ballot_sync(unsigned, int predicate) {
  const unsigned mine = predicate != 0;
  const std::byte* mask_at = orrery::emulated::exchange<sizeof mine>(&mine, [](std::byte* values) {
    unsigned mask = 0, bit;
    for (unsigned i = 0; i < orrery::emulated::kWarp; ++i) {
      std::memcpy(&bit, values + i * orrery::emulated::kMostExchanged, sizeof bit);
      mask |= bit << i;
    }
    std::memcpy(values, &mask, sizeof mask);
  });
  unsigned mask;
  std::memcpy(&mask, mask_at, sizeof mask);
  return mask;
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) == 0xFFFFFFFFu; }

// ---- arithmetic
inline int __dp4a(int a, int b, int c) {
  for (int i = 0; i < 4; ++i) c += static_cast<int8_t>(a >> 8 * i) * static_cast<int8_t>(b >> 8 * i);
  return c;
}
inline int __dp2a_lo(int a, int b, int c) {
  for (int i = 0; i < 2; ++i) c += static_cast<int16_t>(a >> 16 * i) * static_cast<int8_t>(b >> 8 * i);
  return c;
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned n) {
  return static_cast<unsigned>((static_cast<unsigned long long>(high) << 32 | low) >> (n & 31));
}
inline float __expf(float x) { return std::exp(x); }
inline float exp2f_approx(float x) { return std::exp2(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline int __float2int_rn(float x) { return static_cast<int>(std::nearbyint(x)); }
inline int __float_as_int(float x) {
  int i;
  std::memcpy(&i, &x, 4);
  return i;
}
inline float __int_as_float(int i) {
  float x;
  std::memcpy(&x, &i, 4);
  return x;
}
inline unsigned __float_as_uint(float x) {
  unsigned i;
  std::memcpy(&i, &x, 4);
  return i;
}
inline float __uint_as_float(unsigned i) {
  float x;
  std::memcpy(&x, &i, 4);
  return x;
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  const uint64_t bytes = (uint64_t{b} << 32) | a;
  unsigned out = 0;
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned s = selector >> 4 * i & 0xF;
    unsigned byte = static_cast<unsigned>(bytes >> 8 * (s & 7) & 0xFF);
    if (s & 8) byte = byte & 0x80 ? 0xFF : 0;
    out |= byte << 8 * i;
  }
  return out;
}
template <class T>
T __ldg(const T* p) {
  return *p;
}
template <class T>
T __ldcs(const T* p) {
  return *p;
}
template <class T>
T __ldcg(const T* p) {
  return *p;
}
template <class T>
void __stcs(T* p, T value) {
  *p = value;
}
inline unsigned atomicAdd(unsigned* at, unsigned by) {
  const unsigned old = *at;
  *at += by;
  return old;
}
inline unsigned long long atomicAdd(unsigned long long* at, unsigned long long by) {
  const unsigned long long old = *at;
  *at += by;
  return old;
}
inline int atomicAdd(int* at, int by) {
  const int old = *at;
  *at += by;
  return old;
}
inline unsigned atomicMax(unsigned* at, unsigned x) {
  const unsigned old = *at;
  if (x > old) *at = x;
  return old;
}

template <class T>
constexpr T min(T a, T b) {
  return b < a ? b : a;
}
template <class T>
constexpr T max(T a, T b) {
  return a < b ? b : a;
}
