// The arena, the way of bytes to and from it, and the steps. An operation is noted down (operations.h); a step's list is sent
// when its result is asked for or the step ends: as a graph when it decodes, in stretches when it prefills.
#include "cuda/cuda_backend.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <numeric>

#include "cuda/cublas.h"
#include "cuda/formats.h"
#include "cuda/kernels.h"
#include "cuda/operations.h"
#include "cuda/owners.h"
#include "cuda/queue.h"
#include "cuda/scratch.h"
#include "cuda/stretches.h"
#include "cuda/tuning.h"
#include "runtime/base/checked.h"

namespace orrery::cuda {

namespace {

constexpr uint64_t kBounceBytes = uint64_t{4} << 20;   // pinned; two of them take turns
constexpr size_t kPrefillStretch = 64;                 // operations that are sent together
constexpr size_t kMostOperations = 8192;
constexpr size_t kMostMeans = 4096;
constexpr int32_t kLeastArchitecture = 80;

template <class T>
T* device(Ptr<T> p) {
  return reinterpret_cast<T*>(static_cast<uintptr_t>(p.address));
}
template <class T>
uint64_t address(T* p) {
  return reinterpret_cast<uintptr_t>(p);
}

// Field by field: lists of operations are compared as bytes, and padding must stay zero.
void set_weight(Weight* to, const Weight& from) {
  to->type = from.type;
  to->n_rows = from.n_rows;
  to->n_cols = from.n_cols;
  to->data = from.data;
}
void set_format(KvFormat* to, const KvFormat& from) {
  to->type = from.type;
  to->n_layers = from.n_layers;
  to->n_kv_heads = from.n_kv_heads;
  to->head_dim = from.head_dim;
}

// Why no device can be used, by name: the runtime calls it an insufficient driver too where there is none at all.
Status no_device(cudaError_t e) {
  int driver = 0, runtime = 0;
  const bool known = cudaDriverGetVersion(&driver) == cudaSuccess && cudaRuntimeGetVersion(&runtime) == cudaSuccess;
  cudaGetLastError();
  Status s = known && driver == 0
                 ? error(Code::unsupported, "no CUDA device can be used: this machine has no NVIDIA driver (libcuda.so.1)")
             : known && driver / 1000 < runtime / 1000
                 ? error(Code::unsupported, "no CUDA device can be used: the NVIDIA driver is for CUDA %d.%d, this build needs one for %d.0 or newer",
                         driver / 1000, driver % 1000 / 10, runtime / 1000)
                 : error(Code::unsupported, "no CUDA device can be used: %s", cudaGetErrorString(e));
  s.detail().native_code = static_cast<int64_t>(e);
  return s;
}

class CudaBackend final : public Backend {
 public:
  static Result<std::unique_ptr<Backend>> make(const Options& options);
  ~CudaBackend() override;

  BackendInfo info() const override;

  Status reserve_arena(uint64_t bytes) override;
  Ptr<std::byte> arena() const override { return {address(arena_)}; }
  void upload(Ptr<std::byte> to, const void* from, uint64_t bytes) override;
  void download(void* to, Ptr<const std::byte> from, uint64_t bytes) override;
  void upload_all(Span<const Upload> uploads) override;
  void download_all(Span<const Download> downloads) override;
  void copy(Ptr<std::byte> to, Ptr<const std::byte> from, uint64_t bytes) override;
  void move_kv(Span<const KvMove> moves, KvType to_type, KvType from_type, uint64_t token_values) override;
  Status synchronize() override;
  Status copy_in(Ptr<std::byte> to, Span<const HostPiece> pieces) override;

  Status share_host(std::byte* at, uint64_t bytes) override;
  void unshare_host(std::byte* at) override;
  Status check_heads(int32_t head_dim) const override;

  uint64_t weight_bytes(TensorType type, int64_t n_rows, int64_t n_cols) const override;
  Status place_weight(TensorType type, int64_t n_rows, int64_t n_cols, const std::byte* source, Ptr<std::byte> at,
                      Weight* weight) override;

  uint64_t scratch_bytes(const StepLimits& limits) const override { return scratch_plan(limits).total; }
  void set_scratch(Ptr<std::byte> scratch, const StepLimits& limits) override;

  void begin_step(const Step& step) override;
  void end_step() override { send(); }

  void embed(const Weight& table, Ptr<float> out) override;
  void rms_norm(Ptr<const float> x, int64_t x_stride, Ptr<const float> weight, Ptr<float> out, int64_t out_stride,
                int32_t n_vectors, int64_t dim, float eps) override;
  void matmul(Span<const Product> products, Ptr<const float> x, int64_t x_stride, int32_t n_rows) override;
  void prepare_rope(const RopeSpec& spec) override;
  void rope(Ptr<float> x, int64_t stride, int32_t n_heads, int32_t head_dim) override;
  void append_kv(int32_t layer, Ptr<const float> k, Ptr<const float> v, int64_t stride) override;
  void attend(int32_t layer, Ptr<const float> q, Ptr<float> out, const AttendShape& shape) override;
  void digest(Span<const DigestJob> jobs, const DigestShape& shape) override;
  void add_to_means(Span<const MeanJob> jobs, const KvFormat& kv) override;
  void top_keys(Span<const TopKeysJob> jobs, const TopKeysShape& shape) override;
  void key_weights(Span<const KeyWeightsJob> jobs, const KeysShape& shape) override;
  void key_moments(Span<const KeyMomentsJob> jobs, const KeysShape& shape) override;
  void key_products(const LowRankKeys& keys, int32_t n_tokens, float* out, float* sums) override;
  void low_rank_rows(const LowRankKeys& keys, int32_t first, int32_t end) override;
  void low_rank_queries(const LowRankKeys& keys, uint64_t next_basis, int32_t n_heads, Ptr<const float> q, Ptr<float> out) override;
  void rebuild_keys(const LowRankKeys& keys, KvType slot_type, Span<const RebuiltRun> runs) override;
  void swiglu(Ptr<const float> gate, Ptr<const float> up, int64_t stride, Ptr<float> out, int64_t out_stride,
              int64_t n) override;
  void add(Ptr<float> x, Ptr<const float> y, int64_t n) override;
  uint64_t shortlist_bytes(int64_t n) const override { return cuda::shortlist_bytes(n); }
  void shortlist(Ptr<const float> logits, int64_t n, const ShortlistRequest& request, Ptr<std::byte> out) override;
  void shortlist_bands(Ptr<const float> logits, int64_t n, const ShortlistTail& tail, Ptr<std::byte> out, uint64_t* sums) override;
  void shortlist_entries(Ptr<const float> logits, int64_t n, const ShortlistTail& tail, int32_t band, int32_t other_band, Ptr<std::byte> out,
                         ShortlistTailEntries* entries) override;

  size_t graph_nodes() const { return graphs_.n_nodes(); }
  bool has_cublas() const { return cublas_ != nullptr; }

 private:
  CudaBackend() = default;
  ScratchPlan scratch_plan(const StepLimits& limits) const { return ScratchPlan(limits, shape_, cublas_ ? &tuning_ : nullptr); }
  int32_t n_rows() const { return static_cast<int32_t>(step_.rows.size()); }
  bool within(const Step& step) const;
  Operation& note(Operation::Kind kind, int32_t rows);
  void send();   // what has been noted
  // What a launch takes of them: as many as lie where entries of top_keys do.
  size_t most_means() const { return std::min(kMostMeans, static_cast<size_t>(TopKeysPlan::kBatch * plan_.top_keys_plan.entry_bytes / sizeof(MeanPart))); }
  LowRankWork low_rank_work(const LowRankKeys& keys);
  template <class Job, class Fill, class Use>
  void for_each_batch(Span<const Job> jobs, const KeysShape& shape, const Fill& fill, const Use& use);

  ErrorLatch latch_;
  DeviceShape shape_;
  Tuning tuning_ = kTuning[0];
  StreamOwner main_stream_, io_stream_;
  std::unique_ptr<Cublas> cublas_;   // null: none of tuning_'s rows may go there, or it is not there
  Queue queue_{nullptr, &latch_}, io_queue_{nullptr, &latch_};
  Pinned bounce_[2], io_bounce_[2], step_bounce_[2];
  uint64_t step_bounce_bytes_ = 0;
  int turn_ = 0, step_turn_ = 0;
  std::mutex io_mutex_;
  void* arena_ = nullptr;
  std::byte* scratch_ = nullptr;
  ScratchPlan plan_;
  Step step_;
  bool step_waits_ = false;   // it has not been sent yet
  uint64_t step_bytes_ = 0;   // of it in step_bounce_
  StepContext context_;
  int32_t n_rot_ = 0;
  bool interleaved_ = false;
  std::vector<Upload> uploads_;       // of a batch of jobs
  std::vector<Download> downloads_;   // likewise
  std::vector<double> totals_;        // of moments, (2, group)
  std::vector<MeanPart> mean_parts_;  // room for most_means()
  std::vector<Operation> operations_;
  Graphs graphs_;
};

Result<std::unique_ptr<Backend>> CudaBackend::make(const Options& options) {
  int n = 0;
  if (const cudaError_t e = cudaGetDeviceCount(&n); e != cudaSuccess) return no_device(e);
  if (options.device < 0 || options.device >= n)
    return error(Code::unsupported, "CUDA device %d: there are %d", options.device, n);
  cudaDeviceProp properties;
  if (const cudaError_t e = cudaGetDeviceProperties(&properties, options.device); e != cudaSuccess)
    return error(Code::unsupported, "CUDA device %d: %s", options.device, cudaGetErrorString(e));
  std::unique_ptr<CudaBackend> made(new CudaBackend);
  DeviceShape& shape = made->shape_;
  shape.n_processors = properties.multiProcessorCount;
  shape.architecture = 10 * properties.major + properties.minor;
  shape.shared_bytes = properties.sharedMemPerBlockOptin;
  shape.cache_bytes = static_cast<uint64_t>(properties.l2CacheSize);
  if (shape.architecture < kLeastArchitecture)
    return error(Code::unsupported, "CUDA device %d, %s, has compute capability %d.%d; the kernels need %d.%d", options.device,
                 properties.name, properties.major, properties.minor, kLeastArchitecture / 10, kLeastArchitecture % 10);
  if (const cudaError_t e = cudaSetDevice(options.device); e != cudaSuccess)
    return error(Code::unsupported, "CUDA device %d: %s", options.device, cudaGetErrorString(e));
  ORRERY_TRY(made->main_stream_.create());
  ORRERY_TRY(made->io_stream_.create());
  made->queue_ = Queue(made->main_stream_.get(), &made->latch_);
  made->io_queue_ = Queue(made->io_stream_.get(), &made->latch_);
  for (int i = 0; i < 2; ++i) {
    ORRERY_TRY(made->bounce_[i].allocate(kBounceBytes));
    ORRERY_TRY(made->io_bounce_[i].allocate(kBounceBytes));
  }
  made->operations_.reserve(kMostOperations);
  made->tuning_ = tuning_of(shape.architecture);
  if (options.products == Options::Products::cublas) made->tuning_.f16 = made->tuning_.bf16 = made->tuning_.blocks = 1;
  if (options.products != Options::Products::own) made->cublas_ = Cublas::open();
  return std::unique_ptr<Backend>(std::move(made));
}

CudaBackend::~CudaBackend() {
  cudaStreamSynchronize(main_stream_.get());
  graphs_.clear();
  if (arena_) cudaFree(arena_);
}

// What the device has free before the arena is taken.
BackendInfo CudaBackend::info() const {
  const auto path = [](int32_t architecture) {
    switch (architecture) {
      case 80: return "sm_80";
      case 86: return "sm_86";
      case 87: return "sm_87";
      case 89: return "sm_89";
      case 90: return "sm_90";
      case 100: return "sm_100";
      case 120: return "sm_120";
      default: return "sm_80, compiled when loaded";
    }
  };
  size_t free_bytes = 0, total_bytes = 0;
  if (cudaMemGetInfo(&free_bytes, &total_bytes) != cudaSuccess) cudaGetLastError();
  return {"cuda", path(shape_.architecture), 1, false, std::max<uint64_t>(free_bytes, 1), false, true};
}

Status CudaBackend::reserve_arena(uint64_t bytes) {
  if (const cudaError_t e = cudaMalloc(&arena_, bytes); e != cudaSuccess) {
    arena_ = nullptr;
    cudaGetLastError();
    size_t free_bytes = 0, total_bytes = 0;
    cudaMemGetInfo(&free_bytes, &total_bytes);
    return memory_error(Code::out_of_device_memory, bytes, free_bytes, "no %llu bytes of device memory: %llu of %llu are free (%s)",
                        static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(free_bytes),
                        static_cast<unsigned long long>(total_bytes), cudaGetErrorString(e));
  }
  return ok_status();
}

void CudaBackend::upload(Ptr<std::byte> to, const void* from, uint64_t bytes) {
  const Upload one{to, from, bytes};
  upload_all({&one, 1});
}

void CudaBackend::upload_all(Span<const Upload> uploads) {
  for (Cursor sent; sent.i < uploads.size() && !queue_.failed();) {
    const Pinned& bounce = bounce_[turn_ ^= 1];
    bounce.wait(queue_);
    for_each_stretch(uploads, kBounceBytes, &sent, [&](const Upload& u, uint64_t at, uint64_t in_bounce, uint64_t n) {
      std::memcpy(bounce.data() + in_bounce, static_cast<const std::byte*>(u.from) + at, n);
      queue_.check(cudaMemcpyAsync(device(u.to) + at, bounce.data() + in_bounce, n, cudaMemcpyDefault, queue_.stream()), "copying to the device");
    });
    bounce.mark(queue_);
  }
}

void CudaBackend::download(void* to, Ptr<const std::byte> from, uint64_t bytes) {
  const Download one{to, from, bytes};
  download_all({&one, 1});
}

// One half of the pinned memory is emptied while the other one's copies are under way.
void CudaBackend::download_all(Span<const Download> downloads) {
  send();
  Cursor sent, fetched;
  for (const Pinned* under_way = nullptr;;) {
    const Pinned* next = nullptr;
    if (sent.i < downloads.size()) {
      next = &bounce_[turn_ ^= 1];
      if (!queue_.failed()) next->wait(queue_);
      for_each_stretch(downloads, kBounceBytes, &sent, [&](const Download& d, uint64_t at, uint64_t in_bounce, uint64_t n) {
        if (!queue_.failed())
          queue_.check(cudaMemcpyAsync(next->data() + in_bounce, device(d.from) + at, n, cudaMemcpyDefault, queue_.stream()), "copying from the device");
      });
      if (!queue_.failed()) next->mark(queue_);
    }
    if (under_way) {
      if (!queue_.failed()) under_way->wait(queue_);
      for_each_stretch(downloads, kBounceBytes, &fetched, [&](const Download& d, uint64_t at, uint64_t in_bounce, uint64_t n) {
        std::byte* target = static_cast<std::byte*>(d.to) + at;
        if (queue_.failed())
          std::memset(target, 0, n);   // of a lost device nothing is read that nobody wrote
        else
          std::memcpy(target, under_way->data() + in_bounce, n);
      });
    }
    if (!next) return;
    under_way = next;
  }
}

void CudaBackend::copy(Ptr<std::byte> to, Ptr<const std::byte> from, uint64_t bytes) {
  if (bytes == 0 || queue_.failed()) return;
  queue_.check(cudaMemcpyAsync(device(to), device(from), bytes, cudaMemcpyDefault, queue_.stream()), "copying on the device");
}

void CudaBackend::move_kv(Span<const KvMove> moves, KvType to_type, KvType from_type, uint64_t token_values) {
  std::byte* list = scratch_ + plan_.moves;
  for (size_t at = 0; at < moves.size() && !queue_.failed(); at += kMostMoves) {
    const size_t n = std::min(kMostMoves, moves.size() - at);
    upload({address(list)}, moves.data() + at, n * sizeof(KvMove));
    cuda::move_kv(queue_, reinterpret_cast<const KvMove*>(list), static_cast<int32_t>(n), to_type, from_type, static_cast<int32_t>(token_values));
  }
}

Status CudaBackend::synchronize() {
  send();
  if (!queue_.failed()) queue_.check(cudaStreamSynchronize(queue_.stream()), "running kernels");
  return latch_.status();
}

// The caller's thread gathers into one half of the pinned memory while the other half's copy is under way.
Status CudaBackend::copy_in(Ptr<std::byte> to, Span<const HostPiece> pieces) {
  const std::lock_guard<std::mutex> lock(io_mutex_);
  int turn = 0;
  uint64_t filled = 0;
  const auto flush = [&] {
    if (filled == 0) return;
    io_queue_.check(cudaMemcpyAsync(device(to), io_bounce_[turn].data(), filled, cudaMemcpyDefault, io_queue_.stream()),
                    "moving KV to the device");
    io_bounce_[turn].mark(io_queue_);
    to = to + filled;
    filled = 0;
    io_bounce_[turn ^= 1].wait(io_queue_);
  };
  for (HostPiece piece : pieces)
    while (piece.bytes > 0 && !io_queue_.failed()) {
      const uint64_t n = std::min(piece.bytes, kBounceBytes - filled);
      std::memcpy(io_bounce_[turn].data() + filled, piece.data, n);
      filled += n, piece.data += n, piece.bytes -= n;
      if (filled == kBounceBytes) flush();
    }
  flush();
  if (!io_queue_.failed()) io_queue_.check(cudaStreamSynchronize(io_queue_.stream()), "moving KV to the device");
  return latch_.status();
}

// With unified addressing, which every 64-bit system has, the device reaches registered memory by the host's addresses.
Status CudaBackend::share_host(std::byte* at, uint64_t bytes) {
  const cudaError_t e = cudaHostRegister(at, bytes, cudaHostRegisterDefault);
  if (e == cudaSuccess) return ok_status();
  cudaGetLastError();
  Status s = memory_error(Code::out_of_pinned_memory, bytes, 0, "%llu bytes of host memory could not be shared with the CUDA device: %s",
                          static_cast<unsigned long long>(bytes), cudaGetErrorString(e));
  s.detail().native_code = static_cast<int64_t>(e);
  return s;
}

void CudaBackend::unshare_host(std::byte* at) {
  cudaStreamSynchronize(queue_.stream());
  if (cudaHostUnregister(at) != cudaSuccess) cudaGetLastError();
}

Status CudaBackend::check_heads(int32_t head_dim) const {
  if (attends(KvType::f16, head_dim)) return ok_status();
  return error(Code::unsupported, "the CUDA backend has no attention for heads of %d dimensions: 32, 64, 80, 96, 128 or 256", head_dim);
}

uint64_t CudaBackend::weight_bytes(TensorType type, int64_t n_rows, int64_t n_cols) const {
  if (!supported(type) || n_rows <= 0 || n_cols <= 0) return 0;
  return static_cast<uint64_t>(n_rows) * device_row_bytes(type, n_cols);
}

Status CudaBackend::place_weight(TensorType type, int64_t n_rows, int64_t n_cols, const std::byte* source, Ptr<std::byte> at,
                                 Weight* weight) {
  const TypeTraits* traits = type_traits(type);
  if (!traits || !supported(type))
    return error(Code::unsupported_quantization, "tensor type %u is not one that the CUDA backend reads", static_cast<unsigned>(type));
  if (n_rows <= 0 || n_cols <= 0 || n_cols % traits->block_elements != 0)
    return error(Code::bad_model, "a %s matrix of %lld x %lld: columns must be a positive multiple of %u", traits->name,
                 static_cast<long long>(n_rows), static_cast<long long>(n_cols), traits->block_elements);
  // With the first matrix that may go there, while a model is loaded: nothing is taken of the device once a session is open.
  if (cublas_ && !context_.cublas && least_cublas_rows(tuning_, type) > 0 && cublas_->start(queue_.stream()))
    context_.cublas = cublas_.get();
  *weight = {type, n_rows, n_cols, {at.address}};
  const uint64_t from_bytes = row_bytes(type, static_cast<uint64_t>(n_cols)), to_bytes = device_row_bytes(type, n_cols);
  if (to_bytes > kBounceBytes)
    return error(Code::unsupported, "a %s row of %lld columns is longer than the CUDA backend reads", traits->name,
                 static_cast<long long>(n_cols));
  const int64_t fitting = static_cast<int64_t>(kBounceBytes / to_bytes);
  for (int64_t row = 0; row < n_rows && !queue_.failed(); row += fitting) {
    const int64_t n = std::min(fitting, n_rows - row);
    const Pinned& bounce = bounce_[turn_ ^= 1];
    bounce.wait(queue_);
    for (int64_t i = 0; i < n; ++i)
      repack_row(type, n_cols, source + static_cast<uint64_t>(row + i) * from_bytes, bounce.data() + static_cast<uint64_t>(i) * to_bytes);
    queue_.check(cudaMemcpyAsync(device(at) + static_cast<uint64_t>(row) * to_bytes, bounce.data(), static_cast<uint64_t>(n) * to_bytes,
                                 cudaMemcpyDefault, queue_.stream()),
                 "uploading weights");
    bounce.mark(queue_);
  }
  return latch_.status();
}

void CudaBackend::set_scratch(Ptr<std::byte> scratch, const StepLimits& limits) {
  scratch_ = device(scratch);
  plan_ = scratch_plan(limits);
  StepContext context;
  context.device = shape_;
  context.step.rows = reinterpret_cast<const Row*>(scratch_ + plan_.rows);
  context.step.pages = reinterpret_cast<const uint64_t*>(scratch_ + plan_.pages);
  context.step.heads = reinterpret_cast<const DeviceHead*>(scratch_ + plan_.heads);
  context.step.inverse_frequency = reinterpret_cast<const float*>(scratch_ + plan_.frequencies);
  context.step.shortlist = reinterpret_cast<const DeviceShortlist*>(scratch_ + plan_.shortlist);
  context.step.rope = reinterpret_cast<float*>(scratch_ + plan_.rope);
  context.step.max_pages = plan_.max_pages;
  context.step.rope_floats = plan_.rope_floats;
  context.max_context = limits.max_context;
  context.quantized_at = scratch_ + plan_.quantized;
  context.attend_scratch = scratch_ + plan_.attend;
  context.cublas = context_.cublas;
  context.tuning = tuning_;
  context.cublas_plan = plan_.cublas_plan;
  context.cublas_scratch = scratch_ + plan_.cublas;
  context_ = context;
  const TopKeysPlan& keys = plan_.top_keys_plan;
  uploads_.reserve(2 * TopKeysPlan::kBatch + 1);
  downloads_.reserve(static_cast<size_t>(TopKeysPlan::kBatch * std::max(keys.group, 1) + 1));
  totals_.resize(static_cast<size_t>(2 * keys.group));
  mean_parts_.reserve(most_means());
  if (plan_.upload_bytes > step_bounce_bytes_) {   // the largest so far: once a model
    send();
    if (!queue_.failed()) queue_.check(cudaStreamSynchronize(queue_.stream()), "running kernels");
    for (Pinned& bounce : step_bounce_)
      if (!bounce.allocate(plan_.upload_bytes).ok()) latch_.set(cudaErrorMemoryAllocation, "taking pinned memory for a step");
    step_bounce_bytes_ = plan_.upload_bytes;
  }
}

// ---- a step

// Whether the scratch has room for what the step uploads: its StepLimits were true.
bool CudaBackend::within(const Step& step) const {
  uint64_t tiles = 0;
  for (const HeadView& head : step.heads) tiles += static_cast<uint64_t>(div_up(head.n_keys, kPageTokens));
  return step.rows.size() * sizeof(Row) <= plan_.pages - plan_.rows &&
         step.sequences.size() <= static_cast<size_t>(plan_.n_sequences) &&
         std::all_of(step.sequences.begin(), step.sequences.end(), [&](const KvView& s) { return s.n_pages <= plan_.max_pages; }) &&
         step.heads.size() * sizeof(DeviceHead) <= plan_.tiles - plan_.heads &&
         tiles * sizeof(uint64_t) <= plan_.upload_bytes - plan_.tiles;
}

void CudaBackend::begin_step(const Step& step) {
  step_ = step;
  context_.phase = step.phase;
  context_.query_ring = device(step.queries.data);
  context_.n_ring = step.queries.n_rows;
  if (queue_.failed() || !queue_.check(within(step) ? cudaSuccess : cudaErrorInvalidValue, "taking a step beyond its limits")) return;
  const Pinned& bounce = step_bounce_[step_turn_ ^= 1];
  bounce.wait(queue_);
  std::memcpy(bounce.data() + plan_.rows, step.rows.data(), step.rows.size() * sizeof(Row));
  for (size_t i = 0; i < step.sequences.size(); ++i)
    std::memcpy(bounce.data() + plan_.pages + i * static_cast<size_t>(plan_.max_pages) * sizeof(uint64_t), step.sequences[i].pages,
                static_cast<size_t>(step.sequences[i].n_pages) * sizeof(uint64_t));
  step_bytes_ = plan_.tiles;
  for (size_t i = 0; i < step.heads.size(); ++i) {   // tiles of all heads, one behind the other
    const HeadView& head = step.heads[i];
    const uint64_t bytes = static_cast<uint64_t>(div_up(head.n_keys, kPageTokens)) * sizeof(uint64_t);
    const DeviceHead there{reinterpret_cast<const uint64_t*>(scratch_ + step_bytes_), head.append_at, device(head.mean), head.n_keys, head.mean_weight};
    std::memcpy(bounce.data() + plan_.heads + i * sizeof there, &there, sizeof there);
    if (bytes > 0) std::memcpy(bounce.data() + step_bytes_, head.tiles, bytes);
    step_bytes_ += bytes;
  }
  step_waits_ = true;
}

Operation& CudaBackend::note(Operation::Kind kind, int32_t rows) {
  const size_t most = step_.phase == Phase::decode ? kMostOperations : kPrefillStretch;
  if (operations_.size() >= most) send();
  operations_.emplace_back(kind, rows);
  return operations_.back();
}

void CudaBackend::send() {
  if (step_waits_ && !queue_.failed()) {
    const Pinned& bounce = step_bounce_[step_turn_];
    queue_.check(cudaMemcpyAsync(scratch_, bounce.data(), step_bytes_, cudaMemcpyDefault, queue_.stream()),
                 "copying a step to the device");
    bounce.mark(queue_);
  }
  step_waits_ = false;
  if (step_.phase == Phase::decode)
    graphs_.run(queue_, context_, operations_);
  else
    run(queue_, context_, operations_);
  operations_.clear();
}

void CudaBackend::embed(const Weight& table, Ptr<float> out) {
  Operation& op = note(Operation::Kind::embed, n_rows());
  set_weight(&op.products.list[0].weight, table);
  op.out = {device(out), table.n_cols};
}

void CudaBackend::rms_norm(Ptr<const float> x, int64_t x_stride, Ptr<const float> weight, Ptr<float> out, int64_t out_stride,
                           int32_t n_vectors, int64_t dim, float eps) {
  Operation& op = note(Operation::Kind::rms_norm, n_rows());
  op.in = {device(x), x_stride};
  op.weight = device(weight);
  op.out = {device(out), out_stride};
  op.n_vectors = n_vectors;
  op.dim = dim;
  op.eps = eps;
}

void CudaBackend::matmul(Span<const Product> products, Ptr<const float> x, int64_t x_stride, int32_t rows) {
  if (products.empty() || rows <= 0) return;
  Operation& op = note(Operation::Kind::matmul, rows);
  op.in = {device(x), x_stride};
  op.products.n = static_cast<int32_t>(products.size());
  for (size_t i = 0; i < products.size(); ++i) {
    DeviceProduct& p = op.products.list[i];
    set_weight(&p.weight, *products[i].weight);
    p.bias = device(products[i].bias);
    p.out = device(products[i].out);
    p.out_stride = products[i].out_stride;
    p.accumulate = products[i].accumulate;
  }
}

void CudaBackend::prepare_rope(const RopeSpec& spec) {
  n_rot_ = std::min(spec.n_rot, plan_.rope_floats);
  interleaved_ = spec.interleaved;
  if (!queue_.failed())   // goes with the step's rows: behind begin_step() nothing has been sent yet
    std::memcpy(step_bounce_[step_turn_].data() + plan_.frequencies, spec.inverse_frequency,
                static_cast<size_t>(n_rot_ / 2) * sizeof(float));
  Operation& op = note(Operation::Kind::prepare_rope, n_rows());
  op.n_rot = n_rot_;
  op.eps = spec.magnitude;
}

void CudaBackend::rope(Ptr<float> x, int64_t stride, int32_t n_heads, int32_t head_dim) {
  Operation& op = note(Operation::Kind::rope, n_rows());
  op.out = {device(x), stride};
  op.n_vectors = n_heads;
  op.dim = head_dim;
  op.n_rot = n_rot_;
  op.flag = interleaved_;
}

void CudaBackend::append_kv(int32_t layer, Ptr<const float> k, Ptr<const float> v, int64_t stride) {
  Operation& op = note(Operation::Kind::append_kv, n_rows());
  op.in = {device(k), stride};
  op.in2 = {device(v), stride};
  op.attention.layer = layer;
  set_format(&op.attention.kv, step_.kv);
  op.flag = !step_.heads.empty();
  op.heads_type = step_.heads_kv.type;
}

void CudaBackend::attend(int32_t layer, Ptr<const float> q, Ptr<float> out, const AttendShape& shape) {
  Operation& op = note(Operation::Kind::attend, n_rows());
  op.in = {device(q), shape.q_stride};
  op.out = {device(out), shape.out_stride};
  op.attention.layer = layer;
  op.attention.n_heads = shape.n_heads;
  op.attention.scale = shape.scale;
  op.attention.window = shape.window;
  op.attention.resident = !step_.heads.empty();
  set_format(&op.attention.kv, op.attention.resident ? step_.heads_kv : step_.kv);
}

// In batches of queries, those of a job together if they fit: its keys are read once for all of them. Parts and tiles of a batch
// are on the device when use(parts, jobs, n_parts, n_entries, most_keys) is called. `fill` writes what else a part has, and both may add to
// what goes up before and down behind.
template <class Job, class Fill, class Use>
void CudaBackend::for_each_batch(Span<const Job> jobs, const KeysShape& shape, const Fill& fill, const Use& use) {
  const TopKeysPlan& plan = plan_.top_keys_plan;
  std::byte* scratch = scratch_ + plan_.top_keys;
  const Ptr<std::byte> at{address(scratch)};
  const int64_t group_floats = int64_t{plan.group} * shape.kv.head_dim;
  size_t next_job = 0;
  int32_t next_position = 0;
  while (next_job < jobs.size() && !queue_.failed()) {
    TopKeysPart parts[TopKeysPlan::kBatch] = {};
    const Job* owners[TopKeysPlan::kBatch];
    int32_t n_parts = 0, n_entries = 0, most_keys = 0;
    uploads_.clear(), downloads_.clear();
    while (next_job < jobs.size() && n_entries < TopKeysPlan::kBatch) {
      const Job& job = jobs[next_job];
      if (n_entries > 0 && next_position == 0 && job.n_positions > TopKeysPlan::kBatch - n_entries) break;
      const int32_t count = std::min(job.n_positions - next_position, TopKeysPlan::kBatch - n_entries);
      if (count > 0) {
        const uint64_t tiles = plan.tiles + static_cast<uint64_t>(n_parts * plan.tile_stride) * sizeof(uint64_t);
        const int64_t stride = shape.queries.stride > 0 ? shape.queries.stride : int64_t{shape.n_heads} * shape.kv.head_dim;
        const int64_t row = int64_t{job.layer} * shape.queries.n_rows * stride;
        TopKeysPart& part = parts[n_parts];
        part.tiles = reinterpret_cast<const uint64_t*>(scratch + tiles);
        part.offset = job.offset;
        part.queries = device(shape.queries.data) + row + job.kv_head * group_floats;
        part.n_keys = job.n_keys;
        part.first_position = job.first_position + next_position;
        part.n_positions = count;
        part.first_entry = n_entries;
        fill(job, next_position, &part);
        uploads_.push_back({at + tiles, job.tiles, static_cast<uint64_t>(div_up(job.n_keys, kPageTokens)) * sizeof(uint64_t)});
        owners[n_parts++] = &job;
        n_entries += count;
        most_keys = std::max(most_keys, job.n_keys);
      }
      next_position += std::max(count, 0);
      if (next_position >= job.n_positions) ++next_job, next_position = 0;
    }
    if (n_parts == 0) continue;
    uploads_.push_back({at, parts, static_cast<uint64_t>(n_parts) * sizeof(TopKeysPart)});
    upload_all(uploads_);
    use(parts, owners, n_parts, n_entries, most_keys);
    download_all(downloads_);
  }
}

// In batches: addresses of keys where top_keys has them, of digests among its results.
void CudaBackend::digest(Span<const DigestJob> jobs, const DigestShape& shape) {
  static_assert(sizeof(DigestPart) <= sizeof(TopKeysPart), "a batch of parts fits where those of top_keys lie");
  const TopKeysPlan& plan = plan_.top_keys_plan;
  std::byte* scratch = scratch_ + plan_.top_keys;
  const Ptr<std::byte> at{address(scratch)};
  const auto n_tiles = [](int32_t n, int32_t of) { return static_cast<uint64_t>(div_up(n, of)); };
  for (size_t next = 0; next < jobs.size() && !queue_.failed();) {
    DigestPart parts[TopKeysPlan::kBatch] = {};
    const DigestJob* owners[TopKeysPlan::kBatch];
    int32_t n_parts = 0, most_pages = 0;
    uploads_.clear(), downloads_.clear();
    for (; next < jobs.size() && n_parts < TopKeysPlan::kBatch; ++next) {
      const DigestJob& job = jobs[next];
      if (job.n_pages <= 0) continue;
      owners[n_parts] = &job;
      const int32_t end = job.first_page + job.n_pages;
      const uint64_t tiles = plan.tiles + static_cast<uint64_t>(n_parts * plan.tile_stride) * sizeof(uint64_t);
      const uint64_t digests = plan.out + static_cast<uint64_t>(n_parts * plan.stride) * sizeof(uint32_t);
      uploads_.push_back({at + tiles, job.tiles, n_tiles(end * shape.page_tokens, kPageTokens) * sizeof(uint64_t)});
      uploads_.push_back({at + digests, job.digests, n_tiles(end, kPageTokens) * sizeof(uint64_t)});
      const auto cosines = [&] { return scratch + plan.entries + static_cast<uint64_t>(n_parts) * plan.entry_bytes; };
      parts[n_parts] = {reinterpret_cast<const uint64_t*>(scratch + tiles), job.offset, reinterpret_cast<const uint64_t*>(scratch + digests),
                        job.first_page, job.n_pages, reinterpret_cast<float*>(cosines())};
      ++n_parts;
      most_pages = std::max(most_pages, job.n_pages);
    }
    if (n_parts == 0) return;
    uploads_.push_back({at, parts, static_cast<uint64_t>(n_parts) * sizeof(DigestPart)});
    upload_all(uploads_);
    cuda::digest(queue_, reinterpret_cast<const DigestPart*>(scratch), shape, n_parts, most_pages);
    for (int32_t i = 0; i < n_parts && shape.kind == DigestKind::mean; ++i)
      if (owners[i]->cosines)
        downloads_.push_back({owners[i]->cosines, {address(parts[i].cosines)}, static_cast<uint64_t>(parts[i].n_pages) * sizeof(float)});
    download_all(downloads_);
  }
}

// Parts lie where entries of top_keys do, as many as there are, so that a step's are one launch: tokens of one tile, as steps let them go,
// need no table. Of those that do, or have shares, which lie where results do, there are as many at once as there is room for.
void CudaBackend::add_to_means(Span<const MeanJob> jobs, const KvFormat& kv) {
  const TopKeysPlan& plan = plan_.top_keys_plan;
  std::byte *scratch = scratch_ + plan_.top_keys, *parts = scratch + plan.entries;
  for (size_t next = 0; next < jobs.size() && !queue_.failed();) {
    mean_parts_.clear(), uploads_.clear();
    int32_t n_roomy = 0;
    for (; next < jobs.size() && mean_parts_.size() < most_means(); ++next) {
      const MeanJob& job = jobs[next];
      if (job.end <= job.first) continue;
      const int32_t first_tile = job.first / kPageTokens, n_tiles = (job.end - 1) / kPageTokens - first_tile + 1;
      const bool roomy = n_tiles > 1 || job.shares;
      if (roomy && n_roomy == TopKeysPlan::kBatch) break;
      MeanPart part = {};
      part.offset = job.offset;
      part.first = job.first % kPageTokens, part.n = job.end - job.first;
      part.n_before = job.n_before, part.mean = device(job.mean);
      if (job.shares) {
        std::byte* shares = scratch + plan.out + static_cast<uint64_t>(n_roomy * plan.stride) * sizeof(float);
        part.shares = reinterpret_cast<const float*>(shares);
        uploads_.push_back({{address(shares)}, job.shares, static_cast<uint64_t>(part.n) * sizeof(float)});
      }
      if (n_tiles == 1) {
        part.offset += job.tiles[first_tile];
      } else {
        std::byte* tiles = scratch + plan.tiles + static_cast<uint64_t>(n_roomy * plan.tile_stride) * sizeof(uint64_t);
        part.tiles = reinterpret_cast<const uint64_t*>(tiles);
        uploads_.push_back({{address(tiles)}, job.tiles + first_tile, static_cast<uint64_t>(n_tiles) * sizeof(uint64_t)});
      }
      n_roomy += roomy;
      mean_parts_.push_back(part);
    }
    if (mean_parts_.empty()) return;
    uploads_.push_back({{address(parts)}, mean_parts_.data(), mean_parts_.size() * sizeof(MeanPart)});
    upload_all(uploads_);
    cuda::add_to_means(queue_, reinterpret_cast<const MeanPart*>(parts), kv, static_cast<int32_t>(mean_parts_.size()));
  }
}

void CudaBackend::top_keys(Span<const TopKeysJob> jobs, const TopKeysShape& shape) {
  const TopKeysPlan& plan = plan_.top_keys_plan;
  std::byte* scratch = scratch_ + plan_.top_keys;
  const auto fill = [&](const TopKeysJob& job, int32_t, TopKeysPart* part) {
    part->k = job.k, part->by_score = job.by_score;
    if (!job.n_common) return;
    std::byte* among = scratch + plan.entries + static_cast<uint64_t>(part->first_entry) * plan.entry_bytes + plan.pairs;
    uploads_.push_back({{address(among)}, job.among.data(), job.among.size() * sizeof(uint32_t)});
    part->among = reinterpret_cast<const uint32_t*>(among), part->n_among = static_cast<int32_t>(job.among.size());
    part->by_score = 0, *job.n_common = 0;
  };
  for_each_batch(jobs, shape, fill, [&](const TopKeysPart* parts, const TopKeysJob** owners, int32_t n_parts, int32_t n_entries, int32_t most_keys) {
    cuda::top_keys(queue_, plan, scratch, shape, n_parts, n_entries, most_keys);
    for (int32_t i = 0; i < n_parts; ++i) {
      const TopKeysPart& part = parts[i];
      const uint64_t k = static_cast<uint64_t>(part.k), first = static_cast<uint64_t>(part.first_position - owners[i]->first_position);
      if (k == 0) continue;
      const std::byte* found = scratch + plan.out + static_cast<uint64_t>(part.first_entry * plan.stride) * sizeof(uint32_t);
      if (part.among)
        downloads_.push_back({owners[i]->n_common, {address(found)}, sizeof(uint32_t)});
      else
        downloads_.push_back({owners[i]->out + first * k, {address(found)}, static_cast<uint64_t>(part.n_positions) * k * sizeof(uint32_t)});
    }
  });
}

void CudaBackend::key_weights(Span<const KeyWeightsJob> jobs, const KeysShape& shape) {
  const TopKeysPlan& plan = plan_.top_keys_plan;
  std::byte* scratch = scratch_ + plan_.top_keys;
  int32_t slot = 0;   // of the last part: a job that goes on in the next batch keeps it, the others take those behind it
  const auto fill = [&](const KeyWeightsJob& job, int32_t n_before, TopKeysPart* part) {
    if (n_before == 0) slot = (slot + 1) % TopKeysPlan::kBatch;
    part->mean = job.mean, part->add = job.add, part->slot = slot, part->n_before = n_before, part->n_all = job.n_positions;
    const uint64_t row = plan.out + static_cast<uint64_t>(slot * plan.stride) * sizeof(float);
    if (job.add && n_before == 0) uploads_.push_back({{address(scratch + row)}, job.out, static_cast<uint64_t>(job.n_keys) * sizeof(float)});
  };
  for_each_batch(jobs, shape, fill, [&](const TopKeysPart* parts, const KeyWeightsJob** owners, int32_t n_parts, int32_t n_entries, int32_t most_keys) {
    cuda::key_weights(queue_, plan, scratch, shape, n_parts, n_entries, most_keys);
    for (int32_t i = 0; i < n_parts; ++i) {
      const TopKeysPart& part = parts[i];
      const uint64_t bytes = static_cast<uint64_t>(part.n_keys) * sizeof(float);
      if (part.mean && part.n_before + part.n_positions == part.n_all)
        downloads_.push_back({owners[i]->out, {address(scratch + plan.out + static_cast<uint64_t>(part.slot * plan.stride) * sizeof(float))}, bytes});
      for (int32_t row = 0; !part.mean && row < part.n_positions * plan.group; ++row) {
        const uint64_t entry = plan.entries + static_cast<uint64_t>(part.first_entry + row / plan.group) * plan.entry_bytes;
        const uint64_t weights = entry + static_cast<uint64_t>(row % plan.group * plan.stride) * sizeof(float);
        downloads_.push_back({owners[i]->out + (int64_t{part.n_before} * plan.group + row) * part.n_keys, {address(scratch + weights)}, bytes});
      }
    }
  });
}

// A job at a time: its window takes several batches, between which sums stay in the scratch memory.
void CudaBackend::key_moments(Span<const KeyMomentsJob> jobs, const KeysShape& shape) {
  const TopKeysPlan& plan = plan_.top_keys_plan;
  std::byte* scratch = scratch_ + plan_.top_keys;
  for (const KeyMomentsJob& job : jobs) {
    const auto fill = [](const KeyMomentsJob& of, int32_t n_before, TopKeysPart* part) { part->n_before = n_before, part->n_all = of.n_positions; };
    for_each_batch(Span<const KeyMomentsJob>(&job, 1), shape, fill,
                   [&](const TopKeysPart* parts, const KeyMomentsJob**, int32_t, int32_t n_entries, int32_t n_keys) {
      cuda::key_moments(queue_, plan, scratch, shape, n_entries, n_keys, job.n_measured, static_cast<float>(job.gamma));
      if (parts->n_before + parts->n_positions < parts->n_all) return;
      const std::byte *scores = scratch + plan.moments_scores, *totals = scratch + plan.moments_totals;
      const uint64_t row_bytes = static_cast<uint64_t>(job.n_measured) * sizeof(float);
      for (int64_t g = 0; g < plan.group; ++g)
        downloads_.push_back({job.out + g * job.n_measured, {address(scores) + static_cast<uint64_t>(g * plan.stride) * sizeof(float)}, row_bytes});
      downloads_.push_back({totals_.data(), {address(totals)}, totals_.size() * sizeof(double)});
    });
    const auto sum = [&](int32_t from) { return std::accumulate(totals_.begin() + from, totals_.begin() + from + plan.group, 0.0); };
    *job.entropy = sum(0), *job.variance = sum(plan.group);
  }
}

// Keys of a batch lie at the start of `work`, products behind them, sums and frequencies at its end.
LowRankWork CudaBackend::low_rank_work(const LowRankKeys& keys) {
  LowRankWork w;
  const auto width = static_cast<uint64_t>(keys.padded_width());
  w.kv = keys.kv;
  w.offset = w.kv.head_offset(keys.layer, std::max(keys.kv_head, 0)), w.n_heads = keys.n_heads();
  w.rank = keys.rank, w.n_rot = keys.rope.n_rot;
  w.interleaved = keys.rope.interleaved, w.magnitude = keys.rope.magnitude;
  w.rows = device(keys.rows), w.basis = device(keys.basis);
  w.batch = reinterpret_cast<float*>(device(keys.work));
  w.products = w.batch + LowRankKeys::kBatch * width;
  const uint64_t frequencies = keys.work_bytes() - align_up(static_cast<uint64_t>(keys.kv.head_dim), 16) * sizeof(float);
  w.frequencies = reinterpret_cast<const float*>(device(keys.work) + frequencies);
  w.sums = reinterpret_cast<float*>(device(keys.work) + frequencies) - width;
  if (keys.rope.n_rot > 0) upload(keys.work + frequencies, keys.rope.inverse_frequency, static_cast<uint64_t>(keys.rope.n_rot / 2) * sizeof(float));
  return w;
}

void CudaBackend::key_products(const LowRankKeys& keys, int32_t n_tokens, float* out, float* sums) {
  LowRankWork w = low_rank_work(keys);
  if (!sums) w.sums = nullptr;
  const int64_t n = keys.width();   // whole vectors: heads that there is attention for are multiples of 16
  for (int32_t first = 0; first < n_tokens || first == 0; first += LowRankKeys::kBatch) {
    const int32_t count = std::min(LowRankKeys::kBatch, n_tokens - first);
    load_keys(queue_, w, keys.pages, first, count);
    add_products(queue_, w, count, first == 0);
  }
  download(out, {address(w.products)}, static_cast<uint64_t>(n * n) * sizeof(float));
  if (sums) download(sums, {address(w.sums)}, static_cast<uint64_t>(n) * sizeof(float));
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < i; ++j) out[i * n + j] = out[j * n + i];
}

void CudaBackend::low_rank_rows(const LowRankKeys& keys, int32_t first, int32_t end) {
  const LowRankWork w = low_rank_work(keys);
  for (; first < end; first += LowRankKeys::kBatch) {
    const int32_t count = std::min(LowRankKeys::kBatch, end - first);
    load_keys(queue_, w, keys.pages, first, count);
    project_keys(queue_, w, first, count);
  }
}

void CudaBackend::low_rank_queries(const LowRankKeys& keys, uint64_t next_basis, int32_t n_heads, Ptr<const float> q, Ptr<float> out) {
  project_queries(queue_, {device(keys.basis), next_basis, device(q), device(out), keys.rank, keys.kv.head_dim, n_heads, n_heads / keys.kv.n_kv_heads});
}

void CudaBackend::rebuild_keys(const LowRankKeys& keys, KvType slot_type, Span<const RebuiltRun> runs) {
  const LowRankWork w = low_rank_work(keys);
  const size_t most = LowRankKeys::kBatch * static_cast<size_t>(keys.padded_width()) * sizeof(float) / sizeof(RebuiltRun);
  for (size_t first = 0; first < runs.size(); first += most) {
    const Span<const RebuiltRun> some = runs.subspan(first, std::min(most, runs.size() - first));
    upload(keys.work, some.data(), some.size() * sizeof(RebuiltRun));
    int32_t longest = 0;
    for (const RebuiltRun& run : some) longest = std::max(longest, run.count);
    cuda::rebuild_keys(queue_, w, slot_type, static_cast<int32_t>(some.size()), longest);
  }
}

void CudaBackend::swiglu(Ptr<const float> gate, Ptr<const float> up, int64_t stride, Ptr<float> out, int64_t out_stride, int64_t n) {
  Operation& op = note(Operation::Kind::swiglu, n_rows());
  op.in = {device(gate), stride};
  op.in2 = {device(up), stride};
  op.out = {device(out), out_stride};
  op.dim = n;
}

void CudaBackend::add(Ptr<float> x, Ptr<const float> y, int64_t n) {
  Operation& op = note(Operation::Kind::add, n_rows());
  op.out = {device(x), n};
  op.in = {device(y), n};
  op.dim = n;
}

// What is asked goes with the step's rows, unless these have gone.
void CudaBackend::shortlist(Ptr<const float> logits, int64_t n, const ShortlistRequest& request, Ptr<std::byte> out) {
  DeviceShortlist asked = {};
  asked.n_best = request.n_best;
  asked.n_tokens = static_cast<int32_t>(request.tokens.size());
  asked.n_sums = request.n_sums;
  asked.inverse_temperature = request.inverse_temperature;
  std::copy(request.tokens.begin(), request.tokens.end(), asked.tokens);
  if (queue_.failed()) return;
  if (step_waits_)
    std::memcpy(step_bounce_[step_turn_].data() + plan_.shortlist, &asked, sizeof asked);
  else
    upload({address(scratch_ + plan_.shortlist)}, &asked, sizeof asked);
  Operation& op = note(Operation::Kind::shortlist, 1);
  op.in = {device(logits), n};
  op.out = {reinterpret_cast<float*>(device(out)), n};
  op.dim = n;
}

void CudaBackend::shortlist_bands(Ptr<const float> logits, int64_t n, const ShortlistTail& tail, Ptr<std::byte> out, uint64_t* sums) {
  cuda::shortlist_bands(queue_, device(logits), n, tail, device(out));
  download(sums, out, ShortlistTail::kBands * sizeof(uint64_t));
}

void CudaBackend::shortlist_entries(Ptr<const float> logits, int64_t n, const ShortlistTail& tail, int32_t band, int32_t other_band,
                                    Ptr<std::byte> out, ShortlistTailEntries* entries) {
  cuda::shortlist_entries(queue_, device(logits), n, tail, band, other_band, device(out));
  download(entries, out, sizeof *entries);
}

}  // namespace

std::vector<DeviceDescription> devices() {
  std::vector<DeviceDescription> found;
  int n = 0;
  if (cudaGetDeviceCount(&n) != cudaSuccess) {
    cudaGetLastError();
    return found;
  }
  for (int i = 0; i < n; ++i) {
    cudaDeviceProp properties;
    if (cudaGetDeviceProperties(&properties, i) != cudaSuccess) continue;
    const int32_t architecture = 10 * properties.major + properties.minor;
    if (architecture >= kLeastArchitecture) found.push_back({properties.name, architecture, properties.totalGlobalMem});
  }
  return found;
}

Result<std::unique_ptr<Backend>> make_backend(const Options& options) { return CudaBackend::make(options); }

size_t graph_nodes(const Backend& backend) { return static_cast<const CudaBackend&>(backend).graph_nodes(); }
bool has_cublas(const Backend& backend) { return static_cast<const CudaBackend&>(backend).has_cublas(); }

}  // namespace orrery::cuda
