// What a backend has before its first step: the device, its arena, and the layout of the scratch memory.
#include "cuda/cuda_backend.h"

#include <algorithm>

#include "cuda/backend.h"
#include "cuda/device/archive.h"
#include "cuda/device/cublas.h"
#include "runtime/base/checked.h"

namespace orrery::cuda {

namespace {

constexpr int32_t kLeastArchitecture = 80;

// Why the kernels do not run on a device; empty where they do.
std::string refusal(const GpuProperties& properties) {
  if (properties.architecture >= kLeastArchitecture) return {};
  return "has compute capability " + std::to_string(properties.architecture / 10) + "." + std::to_string(properties.architecture % 10) +
         "; the kernels need " + std::to_string(kLeastArchitecture / 10) + "." + std::to_string(kLeastArchitecture % 10);
}

Status unusable(int32_t device, const std::string& why, DriverError e) {
  Status s = error(Code::unsupported, "CUDA device %d: %s", device, why.c_str());
  s.detail().native_code = static_cast<int64_t>(e);
  return s;
}

}  // namespace

Result<std::unique_ptr<Backend>> CudaBackend::make(const Options& options) {
  ORRERY_ASSIGN(const Driver driver, Driver::open(archive_version()));
  int n = 0;
  if (const DriverError e = driver.get_device_count(&n); e != DriverError::none) return unusable(options.device, driver.text(e), e);
  if (options.device < 0 || options.device >= n) return error(Code::unsupported, "CUDA device %d: there are %d", options.device, n);
  GpuProperties properties;
  if (const DriverError e = describe(driver, options.device, &properties); e != DriverError::none)
    return unusable(options.device, driver.text(e), e);
  if (const std::string refused = refusal(properties); !refused.empty())
    return error(Code::unsupported, "CUDA device %d, %s: %s", options.device, properties.name.c_str(), refused.c_str());
  ORRERY_ASSIGN(std::unique_ptr<Gpu> gpu, Gpu::open(driver, options.device));
  std::unique_ptr<CudaBackend> made(new CudaBackend(std::move(gpu)));
  Gpu& opened = *made->gpu_;
  const OnDevice here(opened);
  DeviceShape& shape = made->shape_;
  shape.n_sms = properties.n_sms;
  shape.architecture = properties.architecture;
  shape.shared_bytes = properties.shared_bytes;
  shape.cache_bytes = properties.cache_bytes;
  ORRERY_TRY(made->main_stream_.create(opened));
  ORRERY_TRY(made->io_stream_.create(opened));
  made->queue_ = made->main_stream_.queue(&opened);
  made->io_queue_ = made->io_stream_.queue(&opened);
  ORRERY_TRY(made->bounce_.allocate(opened, kBounceBytes));
  ORRERY_TRY(made->io_bounce_.allocate(opened, kBounceBytes));
  ORRERY_TRY(made->results_.allocate(opened, kResultsBytes));
  ORRERY_TRY(made->told_results_.allocate(opened, kToldBytes));
  ORRERY_TRY(made->ahead_stream_.create(opened));
  made->ahead_queue_ = made->ahead_stream_.queue(&opened);
  ORRERY_TRY(made->ahead_bounce_.allocate(opened, kAheadBytes));
  made->pinned_bytes_ = 4 * kBounceBytes + kResultsBytes + kToldBytes + 2 * kAheadBytes;
  ORRERY_TRY(made->before_ahead_.create(opened));
  for (EventOwner& event : made->behind_ahead_) ORRERY_TRY(event.create(opened));
  ORRERY_TRY(made->staging_.create(opened));
  made->operations_.reserve(kMostOperations);
  made->tuning_ = tuning_of(shape.architecture);
  made->starts_early_ = options.early;
  if (options.products == Options::Products::cublas) made->tuning_.f16 = made->tuning_.bf16 = made->tuning_.blocks = 1;
  if (options.products != Options::Products::own) made->cublas_ = Cublas::open();
  return std::unique_ptr<Backend>(std::move(made));
}

CudaBackend::~CudaBackend() {
  leaving_.emplace(*gpu_, queue_);
  if (!leaving_->in_its_process()) {  // a child of fork(): the driver's state is its parent's
    (void)cublas_.release();
    return;
  }
  if (queue_.stream()) (void)synchronize();
  graphs_.clear();
  cublas_.reset();
  if (arena_) gpu_->driver().free(device_address(arena_));
}

// The figure is the device memory that is free now: ask before the arena is reserved.
BackendInfo CudaBackend::info() const {
  const auto instruction_set = [](int32_t architecture) {
    switch (architecture) {
      case 80: return "sm_80";
      case 86: return "sm_86";
      case 87: return "sm_87";
      case 89: return "sm_89";
      case 90: return "sm_90";
      case 100: return "sm_100";
      case 103: return "sm_103";
      case 120: return "sm_120";
      case 121: return "sm_121";
      default: return "sm_80, compiled when loaded";
    }
  };
  BackendInfo info;
  info.name = "cuda", info.instruction_set = instruction_set(shape_.architecture), info.n_threads = 1;
  info.makes_moments = info.has_key_codes = info.codes_values = info.fetches = info.moves_ahead = info.decodes_rows =
      info.decodes_together = true;
  info.keeps_tiles = info.has_link = true;
  info.useful_chunk = 2048;  // attention has blocks for all SMs, and what crosses the link for each chunk crosses it less often
  return info;
}

// Reading the weights hides the products of further rows, but not their logits' way to the host. Rows find the KV of the first one in the
// cache, and attention computes a quarter of the time that reading takes. (By the counts of cuda/kernels/README.md, not measured.)
StepCost CudaBackend::step_cost() const {
  StepCost cost;
  cost.operations_per_us = 1e7;
  cost.attention = 0.3;
  for (size_t i = 0; i < cost.products.size(); ++i) cost.products[i] = static_cast<double>(i + 1) * 0.05;
  return cost;
}

uint64_t CudaBackend::free_bytes() const {
  const OnDevice here(*gpu_);
  size_t free_bytes = 0, total_bytes = 0;
  if (gpu_->driver().get_memory(&free_bytes, &total_bytes) != DriverError::none) free_bytes = 0;
  return std::max<uint64_t>(free_bytes, 1);
}

Status CudaBackend::reserve_arena(uint64_t bytes) {
  const OnDevice here(*gpu_, queue_);
  DeviceAddress at = 0;
  if (const DriverError e = gpu_->driver().allocate(&at, bytes); e != DriverError::none) {
    size_t free_bytes = 0, total_bytes = 0;
    gpu_->driver().get_memory(&free_bytes, &total_bytes);
    return memory_error(Code::out_of_device_memory, bytes, free_bytes, "no %llu bytes of device memory: %llu of %llu are free (%s)",
                        static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(free_bytes),
                        static_cast<unsigned long long>(total_bytes), gpu_->driver().text(e).c_str());
  }
  arena_ = reinterpret_cast<void*>(static_cast<uintptr_t>(at));
  arena_bytes_ = bytes;
  return ok_status();
}

Status CudaBackend::check_heads(int32_t head_dim, KvType type, int32_t shared_values) const {
  if (attends(type, head_dim, shared_values)) return ok_status();
  if (shared_values > 0 && attends(KvType::f16, head_dim, shared_values))
    return error(Code::unsupported,
                 "the CUDA backend has no attention for rows of %d values that are keys and values at once with KV in %s; expected F16",
                 head_dim, kv_type_name(type));
  if (shared_values > 0)
    return error(Code::unsupported,
                 "the CUDA backend has no attention for rows of %d values of which the first %d are the value: 576 with 512", head_dim,
                 shared_values);
  if (attends(KvType::f16, head_dim, 0))
    return error(Code::unsupported,
                 "the CUDA backend has no attention for heads of %d dimensions with KV in %s; expected F16 or a coarser type", head_dim,
                 kv_type_name(type));
  return error(Code::unsupported, "the CUDA backend has no attention for heads of %d dimensions: 32, 64, 80, 96, 128, 256 or 512",
               head_dim);
}

Status CudaBackend::check_recurrent(const DeltaNetShape* shape) const {
  if (!shape || (shape->key_dim <= kMostKeyDim && shape->value_dim <= kMostValueDim)) return ok_status();
  return error(Code::unsupported, "the CUDA backend has recurrent layers with heads of at most %d by %d dimensions; these have %d by %d",
               kMostKeyDim, kMostValueDim, shape->key_dim, shape->value_dim);
}

Status CudaBackend::check_mamba2(const Mamba2Shape& shape) const {
  if (shape.state_dim <= kMostKeyDim && shape.head_dim <= kMostValueDim) return ok_status();
  return error(Code::unsupported, "the CUDA backend has Mamba2 layers with states of at most %d by %d for each head; these have %d by %d",
               kMostKeyDim, kMostValueDim, shape.state_dim, shape.head_dim);
}

Status CudaBackend::check_experts(const RouterShape& router) const {
  if (router.n_experts <= kMostExperts) return ok_status();
  return error(Code::unsupported, "the CUDA backend has at most %d experts in a layer; this one has %d", kMostExperts, router.n_experts);
}

Status CudaBackend::set_scratch(Ptr<std::byte> scratch, const StepLimits& limits) {
  const OnDevice here(*gpu_, queue_);
  const ScratchPlan plan = scratch_plan(limits);
  if (plan.upload_bytes > step_bounce_bytes_ && !queue_.failed()) {  // larger than any plan before: once for each model
    auto larger = std::make_unique<PinnedHalves>();
    ORRERY_TRY(larger->allocate(*gpu_, plan.upload_bytes));
    send();
    if (!queue_.failed()) queue_.wait("running kernels");
    step_bounce_ = std::move(larger);
    pinned_bytes_ += 2 * (plan.upload_bytes - step_bounce_bytes_);
    step_bounce_bytes_ = plan.upload_bytes;
  }
  scratch_ = device(scratch);
  plan_ = plan;
  StepContext context;
  context.device = shape_;
  context.step.rows = reinterpret_cast<const Row*>(scratch_ + plan_.rows);
  std::byte* const block = scratch_ + plan_.sequences;
  context.step.sequence = reinterpret_cast<const DeviceSequence*>(block);
  context.step.inverse_frequency = reinterpret_cast<const float*>(block + plan_.frequencies);
  context.step.heads = reinterpret_cast<const DeviceHead*>(block + plan_.heads);
  context.step.pages = reinterpret_cast<const uint64_t*>(block + plan_.pages);
  context.step.shortlist = reinterpret_cast<const DeviceShortlist*>(block + plan_.shortlist);
  context.step.rope = reinterpret_cast<float*>(scratch_ + plan_.rope);
  context.step.sequence_bytes = static_cast<int64_t>(plan_.sequence_bytes);
  context.step.rope_floats = plan_.rope_floats;
  context.max_context = limits.max_context;
  context.quantized_at = scratch_ + plan_.quantized;
  context.attend_scratch = scratch_ + plan_.attend;
  context.cublas = context_.cublas;
  context.tuning = tuning_;
  context.starts_early = starts_early_ ? 1 : 0;
  context.cublas_plan = plan_.cublas_plan;
  context.cublas_scratch = scratch_ + plan_.cublas;
  context_ = context;
  staging_.use(scratch_, plan_);
  const TopKeysPlan& keys = plan_.top_keys_plan;
  constexpr auto kMostQueries = static_cast<size_t>(TopKeysPlan::kMostQueries);
  const size_t n_results = kMostQueries * static_cast<size_t>(std::max(keys.group, 1)) + 1;
  key_parts_.reserve(kMostQueries), key_owners_.reserve(kMostQueries), fetch_parts_.reserve(kMostQueries);
  uploads_.reserve(2 * kMostQueries + 1);
  downloads_.reserve(n_results), collected_.reserve(n_results);
  totals_.resize(static_cast<size_t>(2 * keys.group));
  compensation_parts_.reserve(most_compensation_parts()), codes_parts_.reserve(most_codes_parts());
  return ok_status();
}

DevicesFound devices() {
  DevicesFound found;
  const Result<Driver> driver = Driver::open(archive_version());
  if (!driver.ok()) return {{}, use_after(driver.status()), driver.status().message()};
  int n = 0;
  if (const DriverError e = driver.value().get_device_count(&n); e != DriverError::none)
    return {{}, e == DriverError::no_device ? DeviceUse::none : DeviceUse::refused, "the driver counts no GPUs: " + driver.value().text(e)};
  if (n == 0) return {{}, DeviceUse::none, "the NVIDIA driver knows no GPU"};
  for (int i = 0; i < n; ++i) {
    GpuProperties properties;
    if (const DriverError e = describe(driver.value(), i, &properties); e != DriverError::none)
      found.devices.push_back({"", 0, 0, "the driver does not describe it: " + driver.value().text(e)});
    else found.devices.push_back({properties.name, properties.architecture, properties.memory_bytes, refusal(properties)});
  }
  return found;
}

DeviceUse use_after(const Status& failure) {
  const auto e = static_cast<DriverError>(failure.detail().native_code);
  switch (e) {
    case DriverError::no_driver: return DeviceUse::no_driver;
    case DriverError::no_function:
    case DriverError::invalid_image:
    case DriverError::unsupported_ptx_version: return DeviceUse::driver_too_old;
    case DriverError::no_device: return DeviceUse::none;
    default: return DeviceUse::refused;
  }
}

Result<std::unique_ptr<Backend>> make_backend(const Options& options) { return CudaBackend::make(options); }

size_t graph_nodes(const Backend& backend) { return static_cast<const CudaBackend&>(backend).graph_nodes(); }
bool has_cublas(const Backend& backend) { return static_cast<const CudaBackend&>(backend).has_cublas(); }
Waits waits(const Backend& backend) { return static_cast<const CudaBackend&>(backend).waits(); }

}  // namespace orrery::cuda
