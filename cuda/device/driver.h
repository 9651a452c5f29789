// NVIDIA's driver: the one table of its functions that this room calls, with their types. No header of the toolkit is needed, and nothing
// of CUDA is linked: the driver's library is opened at run time. A machine without it has no devices, and open() says why.
//
// Types and values are those of cuda.h, which keeps them from version to version. The opaque types have the names that cuda.h gives them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "runtime/base/status.h"

struct CUctx_st;
struct CUmod_st;
struct CUfunc_st;
struct CUstream_st;
struct CUevent_st;
struct CUgraph_st;
struct CUgraphExec_st;
struct CUgraphNode_st;

namespace orrery::cuda {

using Context = CUctx_st*;
using Module = CUmod_st*;
using Function = CUfunc_st*;
using Stream = CUstream_st*;
using Event = CUevent_st*;
using Graph = CUgraph_st*;
using GraphExec = CUgraphExec_st*;
using DeviceAddress = unsigned long long;  // unified addressing: of the host's memory, too

// Results that this room tells apart, makes itself, or that tests make; the driver has many more.
enum class DriverError : int {
  // Not of the driver.
  no_function = -3,  // the driver lacks a function that we call
  no_driver = -2,    // the machine has none
  after_fork = -1,   // the process is a child of the one that has opened the device
  none = 0,
  invalid_value = 1,
  out_of_memory = 2,
  not_initialized = 3,
  no_device = 100,
  invalid_image = 200,
  invalid_context = 201,
  unsupported_ptx_version = 222,
  invalid_handle = 400,
  not_found = 500,
  not_ready = 600,
  illegal_address = 700,
  launch_out_of_resources = 701,
  launch_failed = 719,
  not_permitted = 800,
  not_supported = 801,
  capture_unsupported = 900,
  capture_invalidated = 901,
  capture_last = 908,  // the numbers from capture_unsupported on are of calls that a capture forbids
  unknown = 999,
};
// Whether the context is of no use behind this error: all later calls fail, until every holder of the context has released it. The errors
// that leave it well are few and known: a call that has been refused, and has sent nothing.
bool loses_device(DriverError error);

enum class DeviceAttribute : int {
  n_sms = 16,        // streaming multiprocessors
  cache_bytes = 38,  // second-level cache
  major = 75,
  minor = 76,                       // compute capability
  registered_at_host_address = 91,  // 1: the device reaches registered memory by the host's addresses. 0 with WSL2, and Windows' WDDM
  shared_bytes = 97,                // shared memory that a thread block may ask for
};
enum class FunctionAttribute : int { n_registers = 4, ptx_version = 5, dynamic_shared_bytes = 8 };  // ptx_version: 90 of code for sm_90

// CUlaunchAttribute and CUlaunchConfig.
struct LaunchAttribute {
  static constexpr int kStartsEarly = 6;  // CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION: value 1
  int id, padding;
  int value[16];
};
struct LaunchConfig {
  unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
  Stream stream;
  LaunchAttribute* attributes;
  unsigned n_attributes;
};
static_assert(sizeof(LaunchAttribute) == 72 && sizeof(LaunchConfig) == 56, "as in cuda.h");

inline constexpr unsigned kStreamNonBlocking = 1, kEventBlockingSync = 1, kEventDisableTiming = 2;
inline constexpr unsigned kHostAllocDeviceMap = 2;
inline constexpr int kCaptureThreadLocal = 1;

// F(member, the driver's symbol, parameters...)
#define ORRERY_DRIVER_FUNCTIONS(F)                                                                                                    \
  F(init, cuInit, unsigned flags)                                                                                                     \
  F(get_version, cuDriverGetVersion, int* version)                                                                                    \
  F(get_error_name, cuGetErrorName, DriverError error, const char** name)                                                             \
  F(get_error_string, cuGetErrorString, DriverError error, const char** text)                                                         \
  F(get_device_count, cuDeviceGetCount, int* count)                                                                                   \
  F(get_device, cuDeviceGet, int* device, int index)                                                                                  \
  F(get_device_name, cuDeviceGetName, char* name, int bytes, int device)                                                              \
  F(get_device_attribute, cuDeviceGetAttribute, int* value, DeviceAttribute attribute, int device)                                    \
  F(get_device_memory, cuDeviceTotalMem_v2, size_t* bytes, int device)                                                                \
  F(retain_context, cuDevicePrimaryCtxRetain, Context* context, int device)                                                           \
  F(release_context, cuDevicePrimaryCtxRelease_v2, int device)                                                                        \
  F(push_context, cuCtxPushCurrent_v2, Context context)                                                                               \
  F(pop_context, cuCtxPopCurrent_v2, Context* context)                                                                                \
  F(load_module, cuModuleLoadData, Module* module, const void* image)                                                                 \
  F(unload_module, cuModuleUnload, Module module)                                                                                     \
  F(get_function, cuModuleGetFunction, Function* function, Module module, const char* name)                                           \
  F(get_function_attribute, cuFuncGetAttribute, int* value, FunctionAttribute attribute, Function function)                           \
  F(set_function_attribute, cuFuncSetAttribute, Function function, FunctionAttribute attribute, int value)                            \
  F(launch, cuLaunchKernel, Function function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y, \
    unsigned block_z, unsigned shared_bytes, Stream stream, void** parameters, void** extra)                                          \
  F(launch_with, cuLaunchKernelEx, const LaunchConfig* config, Function function, void** parameters, void** extra)                    \
  F(get_memory, cuMemGetInfo_v2, size_t* free_bytes, size_t* total_bytes)                                                             \
  F(allocate, cuMemAlloc_v2, DeviceAddress* at, size_t bytes)                                                                         \
  F(free, cuMemFree_v2, DeviceAddress at)                                                                                             \
  F(allocate_host, cuMemHostAlloc, void** at, size_t bytes, unsigned flags)                                                           \
  F(free_host, cuMemFreeHost, void* at)                                                                                               \
  F(get_device_address, cuMemHostGetDevicePointer_v2, DeviceAddress* at, void* host, unsigned flags)                                  \
  F(register_host, cuMemHostRegister_v2, void* at, size_t bytes, unsigned flags)                                                      \
  F(unregister_host, cuMemHostUnregister, void* at)                                                                                   \
  F(copy, cuMemcpyAsync, DeviceAddress to, DeviceAddress from, size_t bytes, Stream stream)                                           \
  F(fill, cuMemsetD8Async, DeviceAddress at, unsigned char value, size_t bytes, Stream stream)                                        \
  F(create_stream, cuStreamCreate, Stream* stream, unsigned flags)                                                                    \
  F(destroy_stream, cuStreamDestroy_v2, Stream stream)                                                                                \
  F(wait_for_stream, cuStreamSynchronize, Stream stream)                                                                              \
  F(order_stream, cuStreamWaitEvent, Stream stream, Event event, unsigned flags)                                                      \
  F(begin_capture, cuStreamBeginCapture_v2, Stream stream, int mode)                                                                  \
  F(end_capture, cuStreamEndCapture, Stream stream, Graph* graph)                                                                     \
  F(get_nodes, cuGraphGetNodes, Graph graph, CUgraphNode_st** nodes, size_t* n_nodes)                                                 \
  F(instantiate, cuGraphInstantiateWithFlags, GraphExec* exec, Graph graph, unsigned long long flags)                                 \
  F(launch_graph, cuGraphLaunch, GraphExec exec, Stream stream)                                                                       \
  F(destroy_graph, cuGraphDestroy, Graph graph)                                                                                       \
  F(destroy_exec, cuGraphExecDestroy, GraphExec exec)                                                                                 \
  F(create_event, cuEventCreate, Event* event, unsigned flags)                                                                        \
  F(destroy_event, cuEventDestroy_v2, Event event)                                                                                    \
  F(record_event, cuEventRecord, Event event, Stream stream)                                                                          \
  F(query_event, cuEventQuery, Event event)                                                                                           \
  F(wait_for_event, cuEventSynchronize, Event event)

// Functions that launch, copy or allocate work in the calling thread's current context (gpu.h: OnDevice).
struct Driver {
#define ORRERY_DRIVER_MEMBER(member, symbol, ...) DriverError (*member)(__VA_ARGS__) = nullptr;
  ORRERY_DRIVER_FUNCTIONS(ORRERY_DRIVER_MEMBER)
#undef ORRERY_DRIVER_MEMBER

  // The driver, initialized. UNSUPPORTED, with the reason in words: there is no driver; it lacks a function; it has no device that works;
  // or a parent process has started it. native_code is the driver's error. Whether a driver takes the kernels shows when they are loaded
  // (Gpu::open()): a fat binary has machine code for several GPUs, and newer drivers take what older toolkits made. made_by: the toolkit's
  // version (archive_version()), for messages.
  static Result<Driver> open(int made_by);
  int version() const;                        // of CUDA, that the driver is for: 12040 is 12.4; 0: it does not say
  std::string text(DriverError error) const;  // "an illegal memory access was encountered"
  std::string name(DriverError error) const;  // "CUDA_ERROR_ILLEGAL_ADDRESS"
};

std::string version_text(int version);  // "12.4" of 12040

inline DeviceAddress device_address(const void* p) { return reinterpret_cast<uintptr_t>(p); }

}  // namespace orrery::cuda
