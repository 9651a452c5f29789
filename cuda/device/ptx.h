// PTX instructions for which CUDA C++ has no function: one function for each. Three compilers read kernels: nvcc makes the archive of them;
// the emulated build runs them, and computes each instruction by its definition (tests/emulation/cuda/ptx_reference.h); and the library's
// own compiler takes from them only their names and parameters (device/words.h).
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#elif defined(ORRERY_EMULATED_KERNELS)
#include "emulated_half.h"
#include "ptx_reference.h"
#else
#include "cuda/device/words.h"
#endif

namespace orrery::cuda {

#if defined(__CUDACC__)

__device__ __forceinline__ uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

// c (16, 8) += a (16, 16) b (16, 8): a and b are halves or bfloat16, sums are floats. Fragments have the layout of mma.sync.
__device__ __forceinline__ void mma_f16(float* c, const uint32_t* a, const uint32_t* b) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ __forceinline__ void mma_bf16(float* c, const uint32_t* a, const uint32_t* b) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
// d (16, 8) = a (16, 32) b (32, 8) + c of int8. d and c may be the same registers, or c the registers of a constant.
__device__ __forceinline__ void mma_s8(int32_t* d, const uint32_t* a, const uint32_t* b, const int32_t* c) {
  asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};\n"
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]));
}
// d (16, 8) = a (16, 16) b (16, 8) + c of int8. The fragments of a and b are half as long as mma_s8's.
__device__ __forceinline__ void mma_s8_k16(int32_t* d, const uint32_t* a, uint32_t b, const int32_t* c) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%8,%9,%10};\n"
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(b), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]));
}
// c + the dot product of four unsigned bytes and four signed ones.
__device__ __forceinline__ int dot_unsigned(uint32_t a, uint32_t b, int c) {
  int d;
  asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}
// Each nibble of the selector's low half names a byte of b:a, from 0 to 7; with its high bit, eight times that byte's sign.
__device__ __forceinline__ uint32_t permute_bytes(uint32_t a, uint32_t b, uint32_t selector) {
  uint32_t d;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(selector));
  return d;
}
// Load four (or two) matrices of 8 rows of 16 bytes from shared memory. Lane 8 m + r passes the address of row r of matrix m.
__device__ __forceinline__ void load_matrices_4(uint32_t* out, const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(shared_address(row)));
}
__device__ __forceinline__ void load_matrices_4_transposed(uint32_t* out, const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(shared_address(row)));
}
// Copies `bytes` bytes, 0 to 16, from global to shared memory, past the registers, and writes zeros behind them, up to 16.
// copy_async_commit() closes a group of copies. copy_async_wait() returns when at most kUnderWay groups are still under way.
__device__ __forceinline__ void copy_async_16(void* to, const void* from, int bytes = 16) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(shared_address(to)), "l"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void copy_async_commit() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }
template <int kUnderWay>
__device__ __forceinline__ void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kUnderWay) : "memory");
}
// Load data that is read once: it is not kept in the first-level cache.
__device__ __forceinline__ uint4 load_once(const void* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];\n" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v;
}
__device__ __forceinline__ uint2 load_once_8(const void* p) {
  uint2 v;
  asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0,%1}, [%2];\n" : "=r"(v.x), "=r"(v.y) : "l"(p));
  return v;
}
// The pointer, which points to global memory (of the device, or of the host): an address out of a list, of which the compiler does not
// know that. Loads and stores become those of global memory.
template <class T>
__device__ __forceinline__ T* in_global(T* p) {
  __builtin_assume(__isGlobal(p));
  return p;
}
__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// Of a launch that may start early (launch.h): lets the next kernel of the stream start; waits until the kernels before this one have ended
// and their memory is there. Loads of what they write come behind the wait, and are plain ones: a load that need not be coherent
// (ld.global.nc) might find an older line. GPUs before sm_90 start no kernel early.
__device__ __forceinline__ void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;\n");
#endif
}
__device__ __forceinline__ void wait_for_earlier_kernels() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;\n" ::: "memory");
#endif
}
// A load, behind the wait, of what an earlier kernel wrote.
template <class T>
__device__ __forceinline__ T load_result(const T* p) {
#if __CUDA_ARCH__ >= 900
  return *p;
#else
  return __ldg(p);
#endif
}
__device__ __forceinline__ unsigned warp_total(unsigned x) { return __reduce_add_sync(0xFFFFFFFFu, x); }
__device__ __forceinline__ unsigned warp_largest(unsigned x) { return __reduce_max_sync(0xFFFFFFFFu, x); }
template <class T>
__device__ __forceinline__ T* dynamic_shared() {
  extern __shared__ uint4 orrery_dynamic_shared[];
  return reinterpret_cast<T*>(orrery_dynamic_shared);
}

#elif defined(ORRERY_EMULATED_KERNELS)

inline void mma_f16(float* c, const uint32_t* a, const uint32_t* b) { emulated::mma_f16(c, a, b); }
inline void mma_bf16(float* c, const uint32_t* a, const uint32_t* b) { emulated::mma_bf16(c, a, b); }
inline void mma_s8(int32_t* d, const uint32_t* a, const uint32_t* b, const int32_t* c) { emulated::mma_s8(d, a, b, c); }
inline void mma_s8_k16(int32_t* d, const uint32_t* a, uint32_t b, const int32_t* c) { emulated::mma_s8_k16(d, a, b, c); }
inline int dot_unsigned(uint32_t a, uint32_t b, int c) { return emulated::dot_unsigned(a, b, c); }
inline uint32_t permute_bytes(uint32_t a, uint32_t b, uint32_t selector) { return __byte_perm(a, b, selector); }
inline void load_matrices_4(uint32_t* out, const void* row) { emulated::load_matrices<4>(out, row, false); }
inline void load_matrices_4_transposed(uint32_t* out, const void* row) { emulated::load_matrices<4>(out, row, true); }
inline void copy_async_16(void* to, const void* from, int bytes = 16) {
  emulated::aligned_16(from), emulated::aligned_16(to);
  if (bytes) std::memcpy(to, from, static_cast<size_t>(bytes));
  std::memset(static_cast<std::byte*>(to) + bytes, 0, static_cast<size_t>(16 - bytes));
}
inline void copy_async_commit() {}
template <int kUnderWay>
void copy_async_wait() {}
inline uint4 load_once(const void* p) {
  uint4 v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
inline uint2 load_once_8(const void* p) {
  uint2 v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
template <class T>
T* in_global(T* p) {
  return p;
}
inline float exp2_approx(float x) { return std::exp2(x); }
inline void let_next_kernel_start() {}
inline void wait_for_earlier_kernels() { emulated::wait_for_earlier_kernels(); }
template <class T>
T load_result(const T* p) {
  return *p;
}
inline unsigned warp_total(unsigned x) {
  return emulated::butterfly(x, [](unsigned a, unsigned b) { return a + b; });
}
inline unsigned warp_largest(unsigned x) {
  return emulated::butterfly(x, [](unsigned a, unsigned b) { return a < b ? b : a; });
}
template <class T>
T* dynamic_shared() {
  return reinterpret_cast<T*>(emulated::dynamic_shared());
}

#else

void mma_f16(float* c, const uint32_t* a, const uint32_t* b);
void mma_bf16(float* c, const uint32_t* a, const uint32_t* b);
void mma_s8(int32_t* d, const uint32_t* a, const uint32_t* b, const int32_t* c);
void mma_s8_k16(int32_t* d, const uint32_t* a, uint32_t b, const int32_t* c);
int dot_unsigned(uint32_t a, uint32_t b, int c);
uint32_t permute_bytes(uint32_t a, uint32_t b, uint32_t selector);
void load_matrices_4(uint32_t* out, const void* row);
void load_matrices_4_transposed(uint32_t* out, const void* row);
void copy_async_16(void* to, const void* from, int bytes = 16);
void copy_async_commit();
template <int kUnderWay>
void copy_async_wait();
uint4 load_once(const void* p);
uint2 load_once_8(const void* p);
template <class T>
T* in_global(T* p);
float exp2_approx(float x);
void let_next_kernel_start();
void wait_for_earlier_kernels();
template <class T>
T load_result(const T* p);
unsigned warp_total(unsigned x);
unsigned warp_largest(unsigned x);
template <class T>
T* dynamic_shared();

#endif

// The first words of a kernel that starts early and has nothing to do before the kernels ahead of it end.
__device__ __forceinline__ void start_early() {
  let_next_kernel_start();
  wait_for_earlier_kernels();
}

// The sum and the maximum over the lanes of a warp. Every lane gets the same bits, because pairs are added in a fixed order. In emulation
// one exchange does what five do here.
#ifdef ORRERY_EMULATED_KERNELS
inline float warp_sum(float x) {
  return emulated::butterfly(x, [](float a, float b) { return a + b; });
}
inline float warp_max(float x) {
  return emulated::butterfly(x, [](float a, float b) { return fmaxf(a, b); });
}
#else
__device__ __forceinline__ float warp_sum(float x) {
  for (int i = 16; i > 0; i /= 2) x += __shfl_xor_sync(0xFFFFFFFFu, x, i);
  return x;
}
__device__ __forceinline__ float warp_max(float x) {
  for (int i = 16; i > 0; i /= 2) x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, i));
  return x;
}
#endif

}  // namespace orrery::cuda
