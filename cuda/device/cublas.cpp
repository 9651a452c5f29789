// See cublas.h.
#include "cuda/device/cublas.h"

#include "cuda/device/library.h"

namespace orrery::cuda {

namespace {

// The values of cublas_api.h and library_types.h, the same in CUDA 12 and 13.
enum {
  kNotTransposed = 0,
  kTransposed = 1,
  kFloat = 0,
  kHalf = 2,
  kBfloat = 14,
  kComputeFloat = 68,
  kDefaultAlgorithm = -1,
  kNoMemory = 3
};

bool check(Queue& queue, int status, const char* what) {
  return queue.check(status == 0 ? DriverError::none : status == kNoMemory ? DriverError::out_of_memory : DriverError::unknown, what);
}

}  // namespace

std::unique_ptr<Cublas> Cublas::open() {
#ifdef _WIN32
  const Library library({"cublas64_13.dll", "cublas64_12.dll"});
#else
  const Library library({"libcublas.so.13", "libcublas.so.12"});
#endif
  Functions f = {};
  const bool found = library.find(&f.create, "cublasCreate_v2") && library.find(&f.destroy, "cublasDestroy_v2") &&
                     library.find(&f.set_stream, "cublasSetStream_v2") && library.find(&f.set_workspace, "cublasSetWorkspace_v2") &&
                     library.find(&f.gemm, "cublasGemmEx");
  return found ? std::unique_ptr<Cublas>(new Cublas(f)) : nullptr;
}

Cublas::~Cublas() {
  if (handle_) call_.destroy(handle_);
}

bool Cublas::start(Queue& queue) {
  if (handle_ || failed_) return !failed_;
  failed_ = call_.create(&handle_) != 0;
  if (failed_) {
    handle_ = nullptr;
    return false;
  }
  failed_ = call_.set_stream(handle_, queue.stream()) != 0;
  return !failed_;
}

void Cublas::set_workspace(Queue& queue, std::byte* at, uint64_t bytes) {
  if (at == workspace_ || queue.failed()) return;
  if (check(queue, call_.set_workspace(handle_, at, bytes), "giving cuBLAS its workspace")) workspace_ = at;
}

// cuBLAS stores matrices column by column, so it computes out^T (n_out, n_rows) = w x^T. A row of w is a column there: w is transposed.
void Cublas::multiply(Queue& queue, const HalfProduct& p) {
  if (queue.failed()) return;
  const float one = 1.0f, kept = p.accumulate ? 1.0f : 0.0f;
  const int type = p.type == TensorType::f16 ? kHalf : kBfloat;
  check(
      queue,
      call_.gemm(handle_, kTransposed, kNotTransposed, p.n_out, p.n_rows, p.n_in, &one, p.w, type, static_cast<int>(p.w_stride), p.x, type,
                 static_cast<int>(p.x_stride), &kept, p.out, kFloat, static_cast<int>(p.out_stride), kComputeFloat, kDefaultAlgorithm),
      "multiplying in cuBLAS");
}

}  // namespace orrery::cuda
