// The part of the CUDA runtime that cuda/ uses, on the CPU. The emulated build finds this header before the toolkit's of the same name.
//
// Device memory is host memory. An inaccessible page follows each allocation. New memory is all ones (as floats: NaN). Streams run work at
// once. A stream that captures keeps launches and copies for the graph.
#pragma once

#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <tuple>
#include <utility>

#include "tests/emulation/cuda/threads.h"

#define __host__
#define __device__
#define __global__ static
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __shared__ static thread_local
#define __constant__ static const
#define __align__(n) __attribute__((aligned(n)))

// ---- vectors
#define ORRERY_VECTOR2(name, T, align) \
  struct __align__(align) name { T x, y; }; \
  inline name make_##name(T x, T y) { return {x, y}; }
#define ORRERY_VECTOR4(name, T, align) \
  struct __align__(align) name { T x, y, z, w; }; \
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
inline void __syncwarp(unsigned = 0xFFFFFFFFu) { orrery::emulated::exchange(nullptr, 0); }
inline void __threadfence() {}
inline void __threadfence_block() {}

namespace orrery::emulated {
template <class T>
T lane_value(T value, unsigned lane_to_read) {
  const std::byte* values = exchange(&value, sizeof(T));
  T out;
  std::memcpy(&out, values + lane_to_read % kWarp * kMostExchanged, sizeof(T));
  return out;
}
}  // namespace orrery::emulated

template <class T>
T __shfl_sync(unsigned, T value, int from, int width = 32) {
  const unsigned lane = orrery::emulated::lane(), w = static_cast<unsigned>(width);
  return orrery::emulated::lane_value(value, lane / w * w + static_cast<unsigned>(from) % w);
}
template <class T>
T __shfl_xor_sync(unsigned, T value, int mask, int = 32) {
  return orrery::emulated::lane_value(value, orrery::emulated::lane() ^ static_cast<unsigned>(mask));
}
template <class T>
T __shfl_down_sync(unsigned, T value, unsigned by, int width = 32) {
  const unsigned lane = orrery::emulated::lane(), w = static_cast<unsigned>(width);
  return orrery::emulated::lane_value(value, lane % w + by < w ? lane + by : lane);
}
template <class T>
T __shfl_up_sync(unsigned, T value, unsigned by, int width = 32) {
  const unsigned lane = orrery::emulated::lane(), w = static_cast<unsigned>(width);
  return orrery::emulated::lane_value(value, lane % w >= by ? lane - by : lane);
}
inline unsigned __ballot_sync(unsigned, int predicate) {
  const int mine = predicate != 0;
  const std::byte* values = orrery::emulated::exchange(&mine, sizeof mine);
  unsigned mask = 0;
  for (unsigned i = 0; i < orrery::emulated::kWarp; ++i) {
    int other;
    std::memcpy(&other, values + i * orrery::emulated::kMostExchanged, sizeof other);
    mask |= static_cast<unsigned>(other != 0) << i;
  }
  return mask;
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) == 0xFFFFFFFFu; }

// ---- arithmetic
inline int __dp4a(int a, int b, int c) {
  for (int i = 0; i < 4; ++i) c += static_cast<int8_t>(a >> 8 * i) * static_cast<int8_t>(b >> 8 * i);
  return c;
}
inline float __expf(float x) { return std::exp(x); }
inline float exp2f_approx(float x) { return std::exp2(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline int __float2int_rn(float x) { return static_cast<int>(std::nearbyint(x)); }
inline int __float_as_int(float x) { int i; std::memcpy(&i, &x, 4); return i; }
inline float __int_as_float(int i) { float x; std::memcpy(&x, &i, 4); return x; }
inline unsigned __float_as_uint(float x) { unsigned i; std::memcpy(&i, &x, 4); return i; }
inline float __uint_as_float(unsigned i) { float x; std::memcpy(&x, &i, 4); return x; }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)); }
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
inline unsigned __vsubss4(unsigned a, unsigned b) {   // four signed bytes, saturated
  unsigned out = 0;
  for (int i = 0; i < 4; ++i) {
    int d = static_cast<int8_t>(a >> 8 * i) - static_cast<int8_t>(b >> 8 * i);
    d = d < -128 ? -128 : d > 127 ? 127 : d;
    out |= (static_cast<unsigned>(d) & 0xFF) << 8 * i;
  }
  return out;
}
inline unsigned __vsub4(unsigned a, unsigned b) {
  unsigned out = 0;
  for (int i = 0; i < 4; ++i) out |= (((a >> 8 * i) - (b >> 8 * i)) & 0xFF) << 8 * i;
  return out;
}
template <class T>
T __ldg(const T* p) { return *p; }
template <class T>
T __ldcs(const T* p) { return *p; }
template <class T>
T __ldcg(const T* p) { return *p; }
template <class T>
void __stcs(T* p, T value) { *p = value; }
inline unsigned atomicAdd(unsigned* at, unsigned by) { const unsigned old = *at; *at += by; return old; }
inline unsigned long long atomicAdd(unsigned long long* at, unsigned long long by) { const unsigned long long old = *at; *at += by; return old; }
inline int atomicAdd(int* at, int by) { const int old = *at; *at += by; return old; }
inline unsigned atomicMax(unsigned* at, unsigned x) { const unsigned old = *at; if (x > old) *at = x; return old; }

template <class T>
constexpr T min(T a, T b) { return b < a ? b : a; }
template <class T>
constexpr T max(T a, T b) { return a < b ? b : a; }

// ---- the runtime
enum cudaError_t {
  cudaSuccess = 0, cudaErrorInvalidValue = 1, cudaErrorMemoryAllocation = 2, cudaErrorInvalidConfiguration = 9, cudaErrorInsufficientDriver = 35, cudaErrorNoDevice = 100,
  cudaErrorInvalidResourceHandle = 400, cudaErrorIllegalAddress = 700, cudaErrorStreamCaptureUnsupported = 900, cudaErrorStreamCaptureInvalidated = 901, cudaErrorUnknown = 999,
};
enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2, cudaMemcpyDeviceToDevice = 3, cudaMemcpyDefault = 4 };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
enum cudaStreamCaptureMode { cudaStreamCaptureModeGlobal = 0, cudaStreamCaptureModeThreadLocal = 1, cudaStreamCaptureModeRelaxed = 2 };
inline constexpr unsigned cudaStreamNonBlocking = 1, cudaEventDisableTiming = 2, cudaHostAllocDefault = 0, cudaHostRegisterDefault = 0,
                          cudaHostRegisterReadOnly = 8;

namespace orrery::emulated {
struct Graph;
struct Stream;
struct Event {
  Stream* stream = nullptr;   // the event was recorded here, after this much work of the stream
  uint64_t behind = 0;
  int device = 0;             // that was current when the event was made
};
// Launches in a stream: as a node of the graph that the stream captures, or by the schedule.
void enqueue(Stream* stream, std::function<void()> work);
// For tests. 0: streams run work at once. Else the seed of a schedule that runs some work sooner and some later, as events and waits allow.
// A missing wait then changes results.
void set_schedule(uint64_t seed);
extern std::function<cudaError_t()> fault;   // for tests: called before every call that can fail, and gives its error
extern int driver_version;                   // for tests; 0: the machine has no driver
extern int architecture;                     // for tests; 86 unless a test changes it
extern int n_devices;                        // for tests; 1 unless a test changes it
// The number of memory blocks, streams, events and graphs that the process has not released.
size_t n_live();
bool capturing();              // whether any stream captures
// Bytes that the process has copied so far: from cudaMalloc's memory to cudaHostAlloc's; and from any other memory to cudaMalloc's.
uint64_t bytes_to_host();
uint64_t bytes_to_device();
// The number of waits for a stream or an event, so far, in the whole process.
uint64_t n_waits();
extern std::atomic<uint64_t> n_launches;   // kernels that were launched so far, by any thread

// What runs the kernels in place of this program's own functions (tests/ptx), and sees all that happens to memory. Any thread calls these
// functions.
struct Argument {
  const void* at;
  size_t bytes;
};
class Device {
 public:
  virtual ~Device() = default;
  // The static shared memory of the kernel.
  virtual size_t shared_bytes(const void* kernel) = 0;
  // `as_source` runs the launch as this program's own function.
  virtual void run(const void* kernel, dim3 grid, dim3 block, size_t dynamic_shared_bytes, const Argument* arguments, size_t n,
                   const std::function<void()>& as_source) = 0;
  // host: the host may write the memory unseen.
  virtual void allocated(const void* at, size_t bytes, bool host) = 0;
  virtual void released(const void* at) = 0;
  virtual void copied(void* to, const void* from, size_t bytes) = 0;
  virtual void written(const void* at, size_t bytes) = 0;
};
extern Device* device;   // null: none
// Whether the device could launch this (limits.cpp).
cudaError_t check_launch(const void* kernel, dim3 grid, dim3 block, size_t dynamic_shared_bytes);
// Whether the calling thread may launch in the stream: its current device must be the stream's.
cudaError_t check_device(const Stream* stream);
cudaError_t allow_shared(const void* kernel, int bytes);
// The number of launches of kernels with the signature F, such as void(int, float).
template <class F>
std::atomic<uint64_t>& launches_of() {
  static std::atomic<uint64_t> n{0};
  return n;
}
}  // namespace orrery::emulated
using cudaStream_t = orrery::emulated::Stream*;
using cudaEvent_t = orrery::emulated::Event*;
using cudaGraph_t = orrery::emulated::Graph*;
using cudaGraphExec_t = orrery::emulated::Graph*;

struct cudaDeviceProp {
  char name[256];
  size_t totalGlobalMem, sharedMemPerBlockOptin;
  int major, minor, multiProcessorCount, l2CacheSize, canMapHostMemory;
};
struct cudaLaunchAttribute {};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
  unsigned numAttrs;
};

cudaError_t cudaDriverGetVersion(int* version);
cudaError_t cudaRuntimeGetVersion(int* version);
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes);
cudaError_t cudaMalloc(void** at, size_t bytes);
cudaError_t cudaFree(void* at);
cudaError_t cudaHostAlloc(void** at, size_t bytes, unsigned flags);
cudaError_t cudaFreeHost(void* at);
cudaError_t cudaHostRegister(void* at, size_t bytes, unsigned flags);
cudaError_t cudaHostUnregister(void* at);
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaMemsetAsync(void* at, int value, size_t bytes, cudaStream_t stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long flags);
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, void* nodes, size_t* n_nodes);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaGetLastError();
const char* cudaGetErrorName(cudaError_t error);
const char* cudaGetErrorString(cudaError_t error);
template <class F>
cudaError_t cudaFuncSetAttribute(F* kernel, cudaFuncAttribute, int value) {
  return orrery::emulated::allow_shared(reinterpret_cast<const void*>(kernel), value);
}

template <class... P, class... A>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(P...), A&&... args) {
  if (orrery::emulated::fault)
    if (const cudaError_t e = orrery::emulated::fault()) return e;
  struct Call {
    void (*kernel)(P...);
    std::tuple<P...> args;
  } call{kernel, std::tuple<P...>(std::forward<A>(args)...)};
  const cudaLaunchConfig_t c = *config;
  const void* function = reinterpret_cast<const void*>(kernel);
  if (const cudaError_t e = orrery::emulated::check_device(c.stream)) return e;
  if (const cudaError_t e = orrery::emulated::check_launch(function, c.gridDim, c.blockDim, c.dynamicSmemBytes)) return e;
  ++orrery::emulated::n_launches, ++orrery::emulated::launches_of<void(P...)>();
  orrery::emulated::enqueue(c.stream, [call, c, function]() mutable {
    const auto as_source = [&] {
      orrery::emulated::run_grid(c.gridDim, c.blockDim, c.dynamicSmemBytes,
                                 [](void* context) {
                                   Call& k = *static_cast<Call*>(context);
                                   std::apply(k.kernel, k.args);
                                 },
                                 &call);
    };
    orrery::emulated::Device* device = orrery::emulated::device;
    if (!device) return as_source();
    std::apply([&](auto&... values) {
      const orrery::emulated::Argument arguments[] = {{&values, sizeof values}...};
      device->run(function, c.gridDim, c.blockDim, c.dynamicSmemBytes, arguments, sizeof...(values), as_source);
    }, call.args);
  });
  return cudaSuccess;
}
