// Weights on their way to the device. Threads repack a stretch of rows in one half of the pinned memory, while the device copies the half
// before. So the slowest of three sets the rate of a load: the file, the threads, the link.
#include "cuda/weights.h"

#include <algorithm>

#include "cuda/backend.h"
#include "cuda/device/formats.h"
#include "cuda/kernels/kernels.h"
#include "runtime/base/checked.h"
#include "runtime/os/os.h"

namespace orrery::cuda {

namespace {

constexpr uint64_t kItemBytes = uint64_t{64} << 10;  // of the file, at least, that a thread repacks at a time

struct RowLayout {
  TensorType type;
  int64_t n_cols;
  uint64_t from_bytes, to_bytes;  // of a row
};

Result<RowLayout> layout_of(TensorType type, int64_t n_rows, int64_t n_cols) {
  const TypeTraits* traits = type_traits(type);
  if (!traits || !supported(type))
    return error(Code::unsupported_quantization, "tensor type %u is not one that the CUDA backend reads", static_cast<unsigned>(type));
  if (n_rows <= 0 || n_cols <= 0 || n_cols % traits->block_elements != 0)
    return error(Code::bad_model, "a %s matrix of %lld x %lld: columns must be a positive multiple of %u", traits->name,
                 static_cast<long long>(n_rows), static_cast<long long>(n_cols), traits->block_elements);
  const RowLayout rows{type, n_cols, row_bytes(type, static_cast<uint64_t>(n_cols)), device_row_bytes(type, n_cols)};
  if (rows.to_bytes > kBounceBytes)
    return error(Code::unsupported, "a %s row of %lld columns is longer than the CUDA backend reads", traits->name,
                 static_cast<long long>(n_cols));
  return rows;
}

// Repacks n rows, on the pool's threads if there is one.
void repack_on_host(const RowLayout& rows, int64_t n, const std::byte* from, std::byte* to, ThreadPool* pool) {
  const auto repack = [&](int64_t first, int64_t end) {
    for (int64_t i = first; i < end; ++i)
      repack_row(rows.type, rows.n_cols, from + static_cast<uint64_t>(i) * rows.from_bytes, to + static_cast<uint64_t>(i) * rows.to_bytes);
  };
  const auto of_item = static_cast<int64_t>(div_up(kItemBytes, rows.from_bytes));
  if (!pool || n <= of_item) return repack(0, n);
  pool->run(div_up(n, of_item), [&](int64_t item, int32_t) { repack(item * of_item, std::min(n, (item + 1) * of_item)); });
}

// Keeps the uploads that several loads may share.
struct Kept final : Loading {
  explicit Kept(std::shared_ptr<WeightUploads> shared) : uploads(std::move(shared)) {}
  std::shared_ptr<WeightUploads> uploads;
};

}  // namespace

std::shared_ptr<WeightUploads> WeightUploads::make(const Gpu& gpu, int32_t n_threads, Priority priority) {
  auto made = std::make_shared<WeightUploads>();
  if (!made->halves_.allocate(gpu, kHalfBytes).ok()) return nullptr;
  const int32_t n_processors = os::available_processors();
  if (n_threads <= 0) n_threads = std::min(n_processors, kMostThreads);
  if (n_threads == 1) return made;
  auto pool = ThreadPool::make(n_threads, n_processors, priority);
  if (pool.ok()) made->pool_ = std::move(pool).value();
  return made;
}

std::unique_ptr<Loading> CudaBackend::begin_loading(uint64_t bytes, int32_t n_threads, Priority priority) {
  if (bytes <= kBounceBytes) return nullptr;  // the usual pinned memory takes it all
  std::shared_ptr<WeightUploads> uploads = weight_uploads_.lock();
  if (!uploads) uploads = WeightUploads::make(*gpu_, n_threads, priority);
  if (!uploads) return nullptr;
  weight_uploads_ = uploads;
  return std::make_unique<Kept>(std::move(uploads));
}

uint64_t CudaBackend::weight_bytes(TensorType type, int64_t n_rows, int64_t n_cols) const {
  if (!supported(type) || n_rows <= 0 || n_cols <= 0) return 0;
  return static_cast<uint64_t>(n_rows) * device_row_bytes(type, n_cols);
}

Status CudaBackend::place_weight(TensorType type, int64_t n_rows, int64_t n_cols, const std::byte* source, Ptr<std::byte> at,
                                 Weight* weight) {
  const OnDevice here(*gpu_, queue_);
  ORRERY_ASSIGN(const RowLayout rows, layout_of(type, n_rows, n_cols));
  // cuBLAS starts with the first matrix that it may multiply, while a model is loaded: an open session takes no more device memory.
  if (cublas_ && !context_.cublas && least_cublas_rows(tuning_, type) > 0 && cublas_->start(queue_)) context_.cublas = cublas_.get();
  *weight = {type, n_rows, n_cols, {at.address}};
  static_assert(kBounceBytes <= WeightUploads::kHalfBytes, "a row fits into either half");
  const std::shared_ptr<WeightUploads> uploads = weight_uploads_.lock();
  PinnedHalves& halves = uploads ? uploads->halves() : bounce_;
  ThreadPool* const pool = uploads ? uploads->pool() : nullptr;
  const auto fitting = static_cast<int64_t>((uploads ? WeightUploads::kHalfBytes : kBounceBytes) / rows.to_bytes);
  if (pool) pool->begin_burst();
  for (int64_t row = 0; row < n_rows && !queue_.failed(); row += fitting) {
    const int64_t n = std::min(fitting, n_rows - row);
    Pinned& half = halves.next(queue_);
    repack_on_host(rows, n, source + static_cast<uint64_t>(row) * rows.from_bytes, half.data(), pool);
    queue_.copy(device(at) + static_cast<uint64_t>(row) * rows.to_bytes, half.data(), static_cast<uint64_t>(n) * rows.to_bytes,
                "uploading weights");
    half.mark(queue_);
  }
  if (pool) pool->end_burst();
  return report();
}

void CudaBackend::repack_there(TensorType type, int64_t n_rows, int64_t n_cols, Ptr<const std::byte> from, Ptr<std::byte> to) {
  const OnDevice here(*gpu_, queue_);
  send();  // operations that read what lay there before
  repack_rows(queue_, type, n_rows, n_cols, device(from), device(to));
}

Status CudaBackend::repack_weight(TensorType type, int64_t n_rows, int64_t n_cols, const std::byte* source, std::byte* to) {
  ORRERY_ASSIGN(const RowLayout rows, layout_of(type, n_rows, n_cols));
  const std::shared_ptr<WeightUploads> uploads = weight_uploads_.lock();
  ThreadPool* const pool = uploads ? uploads->pool() : nullptr;
  if (pool) pool->begin_burst();
  repack_on_host(rows, n_rows, source, to, pool);
  if (pool) pool->end_burst();
  return ok_status();
}

}  // namespace orrery::cuda
