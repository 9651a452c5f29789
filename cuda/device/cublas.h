// cuBLAS for a prompt's products. It is opened at run time if the machine has it, and never linked. Without cuBLAS our own kernels compute
// every product.
//
// The order of cuBLAS' sums is its own, and may change with the number of rows. The same product gives the same bits each time (one stream,
// one workspace). cuBLAS takes its workspace from the caller. Device memory for its code and its handle is taken when it starts.
#pragma once

#include <cstdint>
#include <memory>

#include "cuda/device/queue.h"
#include "runtime/base/tensor_type.h"

namespace orrery::cuda {

// out (n_rows, n_out) = x (n_rows, n_in) w^T, with w (n_out, n_in). x and w are both F16 or both BF16; sums and `out` are floats. Strides
// count values from row to row.
struct HalfProduct {
  TensorType type;
  const std::byte *x, *w;
  float* out;
  int64_t x_stride, w_stride, out_stride;
  int32_t n_rows, n_out, n_in;
  bool accumulate;  // out += instead of out =
};

class Cublas {
 public:
  // The workspace that NVIDIA advises for this architecture.
  static constexpr uint64_t workspace_bytes(int32_t architecture) {
    return architecture >= 120 ? uint64_t{12} << 20 : architecture >= 90 ? uint64_t{32} << 20 : uint64_t{4} << 20;
  }

  // Device memory that cuBLAS takes beside its workspace: for its handle, and for the kernels that it loads with the first product of a
  // shape. An estimate.
  static constexpr uint64_t kDriverBytes = uint64_t{128} << 20;

  // Null without a libcublas of CUDA 13 or 12.
  static std::unique_ptr<Cublas> open();
  Cublas(const Cublas&) = delete;
  Cublas& operator=(const Cublas&) = delete;
  ~Cublas();

  // Makes the handle, for work in this queue, in the GPU's context: the calling thread has an OnDevice, as it has when the handle is
  // destroyed. A call that fails gives false, and so does each later call.
  bool start(Queue& queue);
  // Gives cuBLAS its workspace: workspace_bytes() of device memory, 256-byte aligned.
  void set_workspace(Queue& queue, std::byte* at, uint64_t bytes);
  // Call start() first.
  void multiply(Queue& queue, const HalfProduct& product);

 private:
  using Handle = void*;
  struct Functions {
    int (*create)(Handle*);
    int (*destroy)(Handle);
    int (*set_stream)(Handle, Stream);
    int (*set_workspace)(Handle, void*, size_t);
    int (*gemm)(Handle, int, int, int, int, int, const void*, const void*, int, int, const void*, int, int, const void*, void*, int, int,
                int, int);
  };
  explicit Cublas(const Functions& functions) : call_(functions) {}

  Functions call_;
  Handle handle_ = nullptr;
  bool failed_ = false;
  std::byte* workspace_ = nullptr;
};

}  // namespace orrery::cuda
