// cuBLAS for the emulated build: the functions that cuda/device/cublas.cpp looks for, by the library's documentation. Any other use is
// refused, so that a call fails here if the library would refuse or misread it.
#include <atomic>
#include <cstring>

#include "dlfcn.h"
#include "runtime/base/half.h"
#include "tests/emulation/cuda/device.h"
#include "tests/emulation/cuda/memory.h"

namespace orrery::emulated {

bool has_cublas = true;

namespace {

struct Handle {
  cuda::Stream stream = nullptr;
  void* workspace = nullptr;
  size_t workspace_bytes = 0;
  int device = 0;
};

std::atomic<size_t> n_products{0};

enum { kSuccess = 0, kNotInitialized = 1, kNoMemory = 3, kInvalid = 7, kFailed = 13 };

int create(Handle** handle) {
  if (current_device() < 0) return kNotInitialized;  // the handle belongs to the thread's context
  if (faulty("cublasCreate_v2") != DriverError::none || refused_in_capture() != DriverError::none) return kNoMemory;
  if (!charge(current_device(), Taker::library, cublas_bytes)) return kNoMemory;
  *handle = new Handle;
  (*handle)->device = current_device();
  return kSuccess;
}
int destroy(Handle* handle) {
  discharge(handle->device, Taker::library, cublas_bytes);
  delete handle;
  return kSuccess;
}
int set_stream(Handle* handle, cuda::Stream stream) {
  if (faulty("cublasSetStream_v2") != DriverError::none) return kFailed;
  handle->stream = stream;
  handle->workspace = nullptr;  // as documented: setting a stream resets the workspace
  return kSuccess;
}
int set_workspace(Handle* handle, void* at, size_t bytes) {
  if (reinterpret_cast<uintptr_t>(at) % 256 != 0 || bytes == 0) return kInvalid;
  if (faulty("cublasSetWorkspace_v2") != DriverError::none) return kFailed;
  handle->workspace = at, handle->workspace_bytes = bytes;
  return kSuccess;
}

float value(const void* p, int type, int64_t i) {
  uint16_t bits;
  std::memcpy(&bits, static_cast<const char*>(p) + 2 * i, 2);
  if (type == 2) return half_to_float(bits);
  const unsigned wide = static_cast<unsigned>(bits) << 16;
  float x;
  std::memcpy(&x, &wide, 4);
  return x;
}

// C (m, n) = alpha A^T B + beta C, in columns; A (k, m), B (k, n).
int gemm(Handle* handle, int ta, int tb, int m, int n, int k, const void* alpha, const void* a, int a_type, int lda, const void* b,
         int b_type, int ldb, const void* beta, void* c, int c_type, int ldc, int compute, int algorithm) {
  if (ta != 1 || tb != 0 || a_type != b_type || (a_type != 2 && a_type != 14) || c_type != 0 || compute != 68 || algorithm != -1)
    return kInvalid;
  if (m < 0 || n < 0 || k < 0 || lda < k || ldb < k || ldc < m || !handle->workspace) return kInvalid;
  if (const DriverError e = faulty("cublasGemmEx"); e != DriverError::none) return e == DriverError::out_of_memory ? kNoMemory : kFailed;
  ++n_products;
  const float scale = *static_cast<const float*>(alpha), kept = *static_cast<const float*>(beta);
  enqueue(handle->stream, [=, workspace = handle->workspace, workspace_bytes = handle->workspace_bytes] {
    const AsDevice now(AsDevice::Work::kernel);
    std::memset(workspace, 0xA5, workspace_bytes);  // the product may use all of it
    if (device) device->written(workspace, workspace_bytes);
    for (int64_t j = 0; j < n; ++j)
      for (int64_t i = 0; i < m; ++i) {
        float sum = 0.0f;
        for (int64_t l = 0; l < k; ++l) sum += value(a, a_type, i * lda + l) * value(b, b_type, j * ldb + l);
        float* out = static_cast<float*>(c) + j * ldc + i;
        *out = kept == 0.0f ? scale * sum : scale * sum + kept * *out;  // C is not read where beta is 0
        if (device) device->written(out, sizeof *out);
      }
  });
  return kSuccess;
}

int cublas, driver;  // their addresses stand for the libraries

}  // namespace

size_t cublas_products() { return n_products; }

void* open_library(const char* name) {
  if (std::strcmp(name, "libcuda.so.1") == 0) return driver_version > 0 ? &driver : nullptr;
  return has_cublas && std::strcmp(name, "libcublas.so.12") == 0 ? &cublas : nullptr;
}

void* find_function(void* library, const char* name) {
  if (library == &driver) return driver_function(name);
  const auto is = [&](const char* other) { return std::strcmp(name, other) == 0; };
  if (is("cublasCreate_v2")) return reinterpret_cast<void*>(&create);
  if (is("cublasDestroy_v2")) return reinterpret_cast<void*>(&destroy);
  if (is("cublasSetStream_v2")) return reinterpret_cast<void*>(&set_stream);
  if (is("cublasSetWorkspace_v2")) return reinterpret_cast<void*>(&set_workspace);
  return is("cublasGemmEx") ? reinterpret_cast<void*>(&gemm) : nullptr;
}

}  // namespace orrery::emulated
