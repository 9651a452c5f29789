// CUDA C++'s words, declared, for the library's own compiler. It reads the files of kernels for the host code in them, which launches
// kernels by name: kernels are never instantiated nor compiled here. nvcc compiles them (device/archive.h), and their emulation has words
// of its own.
#pragma once

#include <math.h>

#include <cmath>
#include <cstddef>
#include <cstdint>

#define __global__ inline
#define __device__ inline
#define __host__
#define __forceinline__
#define __launch_bounds__(...)
#define __grid_constant__
#define __shared__ static
#define __align__(n) __attribute__((aligned(n)))

struct __align__(8) float2 {
  float x, y;
};
struct __align__(16) float4 {
  float x, y, z, w;
};
struct __align__(8) uint2 {
  unsigned x, y;
};
struct __align__(16) uint4 {
  unsigned x, y, z, w;
};
struct __half {
  uint16_t bits;
};
struct __align__(4) __half2 {
  __half x, y;
};
using half = __half;
float2 make_float2(float x, float y);
float4 make_float4(float x, float y, float z, float w);
uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w);

namespace orrery::cuda {
struct ThreadIndex {
  unsigned x, y, z;
};
}  // namespace orrery::cuda
extern const orrery::cuda::ThreadIndex threadIdx, blockIdx, blockDim, gridDim;

void __syncthreads();
void __syncwarp(unsigned mask = 0xFFFFFFFFu);
template <class T>
T __shfl_sync(unsigned mask, T value, int from, int width = 32);
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32);
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32);
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32);
unsigned __ballot_sync(unsigned mask, int predicate);
int __any_sync(unsigned mask, int predicate);
template <class T>
T __ldg(const T* at);
unsigned atomicAdd(unsigned* at, unsigned by);
unsigned long long atomicAdd(unsigned long long* at, unsigned long long by);
int atomicAdd(int* at, int by);

int __dp4a(int a, int b, int sum);
int __dp2a_lo(int a, int b, int sum);
unsigned __funnelshift_r(unsigned low, unsigned high, unsigned n);
unsigned __byte_perm(unsigned a, unsigned b, unsigned selector);
int __popc(unsigned x);
int __ffs(int x);
float __fmul_rn(float a, float b);
float __fadd_rn(float a, float b);
double __dmul_rn(double a, double b);
void sincos(double x, double* sine, double* cosine);
int __float2int_rn(float x);
float __int_as_float(int x);
int __float_as_int(float x);
unsigned __float_as_uint(float x);
float __uint_as_float(unsigned x);
float __half2float(__half x);
__half __float2half_rn(float x);
__half __float2half_ru(float x);
__half __float2half_rd(float x);
__half __ushort_as_half(unsigned short bits);
unsigned short __half_as_ushort(__half x);
__half2 __floats2half2_rn(float x, float y);
__half2 __hsub2(__half2 a, __half2 b);
__half2 __hmul2(__half2 a, __half2 b);

template <class T>
constexpr T min(T a, T b) {
  return b < a ? b : a;
}
template <class T>
constexpr T max(T a, T b) {
  return a < b ? b : a;
}
