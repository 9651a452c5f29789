// cuBLAS, where the machine has it: opened when a GPU's prompts want it, never linked. Without it every product has a kernel of ours.
//
// Its sums are in an order of its own, which the number of rows may change; the same product again has the same bits (one stream, one
// workspace). What it takes of the device beside that workspace, its code and a little for the handle, is taken when it starts.
#pragma once

#include <cstdint>
#include <memory>

#include "cuda/device/queue.h"
#include "runtime/base/tensor_type.h"

namespace orrery::cuda {

// out (n_rows, n_out) = x (n_rows, n_in) w^T, w (n_out, n_in): of F16 both or of BF16 both, out and the sums of floats. Strides: values
// from row to row.
struct HalfProduct {
  TensorType type;
  const std::byte *x, *w;
  float* out;
  int64_t x_stride, w_stride, out_stride;
  int32_t n_rows, n_out, n_in;
  bool accumulate;   // out += instead of out =
};

class Cublas {
 public:
  // NVIDIA's advice for this architecture.
  static constexpr uint64_t workspace_bytes(int32_t architecture) {
    return architecture >= 120 ? uint64_t{12} << 20 : architecture >= 90 ? uint64_t{32} << 20 : uint64_t{4} << 20;
  }

  // Null where there is no libcublas of CUDA 13 or 12.
  static std::unique_ptr<Cublas> open();
  Cublas(const Cublas&) = delete;
  Cublas& operator=(const Cublas&) = delete;
  ~Cublas();

  // Makes the handle, for work in this stream; false where that fails, and then always.
  bool start(cudaStream_t stream);
  // Where its kernels keep what is between them: workspace_bytes(), 256-byte aligned.
  void set_workspace(Queue& queue, std::byte* at, uint64_t bytes);
  // Once started.
  void multiply(Queue& queue, const HalfProduct& product);

 private:
  using Handle = void*;
  struct Functions {
    int (*create)(Handle*);
    int (*destroy)(Handle);
    int (*set_stream)(Handle, cudaStream_t);
    int (*set_workspace)(Handle, void*, size_t);
    int (*gemm)(Handle, int, int, int, int, int, const void*, const void*, int, int, const void*, int, int, const void*, void*, int, int, int, int);
  };
  explicit Cublas(const Functions& functions) : call_(functions) {}

  Functions call_;
  Handle handle_ = nullptr;
  bool failed_ = false;
  std::byte* workspace_ = nullptr;
};

}  // namespace orrery::cuda
