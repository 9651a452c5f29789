#include "runtime/engine/shared/runtime.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <iterator>
#include <utility>

#include "runtime/backend/registry.h"
#include "runtime/os/os.h"
#include "runtime/text/unicode/utf8.h"

namespace orrery::engine {

void copy_message(std::string_view text, Span<char> out) noexcept {
  const char *at = text.data(), *const end = at + text.size();
  size_t used = 0;
  while (at < end) {
    const text::CodePoint c = text::utf8_decode(at, end);
    if (used + c.length >= out.size()) break;
    if (c.value == text::kInvalidCodePoint) out[used] = '?';
    else if (c.value < 0x20) out[used] = ' ';
    else std::copy_n(at, c.length, out.data() + used);
    used += c.length;
    at += c.length;
  }
  out[used] = '\0';
}

namespace {

// Of all backends with devices. Without any: the first reason.
DevicesFound find_devices() {
  DevicesFound all;
  for (const BackendEntry& entry : backends()) {
    if (!entry.devices) continue;
    DevicesFound found = entry.devices();
    if (found.devices.empty() && all.why.empty()) all.use = found.use, all.why = std::move(found.why);
    std::move(found.devices.begin(), found.devices.end(), std::back_inserter(all.devices));
  }
  return all;
}

}  // namespace

std::vector<DeviceDescription> gpus() { return find_devices().devices; }

namespace {

using ull = unsigned long long;  // for printf

// -1: none, and *gpu says why.
int32_t first_usable_gpu(GpuUse* gpu) {
  const DevicesFound found = find_devices();
  *gpu = {found.use, found.why};
  for (size_t i = 0; i < found.devices.size(); ++i) {
    if (found.devices[i].refused.empty()) return static_cast<int32_t>(i);
    if (i == 0) *gpu = {DeviceUse::refused, found.devices[i].name + ": " + found.devices[i].refused};
  }
  return -1;
}

void warn(const RuntimeOptions& options, const std::string& text) {
  char line[512];
  if (!options.log || options.log_level < LogLevel::warning) return;
  copy_message(text, {line, sizeof line});
  options.log(options.log_user, static_cast<int32_t>(LogLevel::warning), line);
}

// The status with a hint on what helps.
Status with_advice(Status status, const char* advice) {
  status.detail().message += advice;
  return status;
}

}  // namespace

Result<std::unique_ptr<Backend>> make_backend(const RuntimeOptions& options, GpuUse* gpu) {
  const bool automatic = options.backend == "auto", any_gpu = options.backend == "gpu";
  const Span<const BackendEntry> entries = backends();
  const auto is_named = [&](const BackendEntry& entry) { return options.backend == entry.name || (any_gpu && entry.devices); };
  if (!automatic && std::none_of(entries.begin(), entries.end(), is_named))
    return option_error(Code::invalid_argument, "backend", "backend is '%s', expected auto, cpu, gpu or cuda", options.backend.c_str());
  if (options.n_threads < 0 || options.n_threads > 1024)
    return option_error(Code::invalid_argument, "n_threads", "n_threads is %d, expected 0 to 1024", options.n_threads);
  BackendOptions wanted;
  wanted.n_threads = options.n_threads;
  wanted.priority = options.priority;
  wanted.instruction_set = options.cpu_path;
  wanted.trace = options.log && options.log_level >= LogLevel::trace;
  *gpu = {DeviceUse::not_wanted, "the options name the processor"};
  for (const BackendEntry& entry : entries) {
    if (!automatic && !is_named(entry)) continue;
    if (!entry.devices) return entry.make(wanted, &gpu->use);
    if (automatic && options.cpu_path != "auto") continue;  // an instruction set of the processor means the processor
    const int32_t device = options.device >= 0 ? options.device : first_usable_gpu(gpu);
    wanted.device = std::max(device, 0);  // without a device, the error says why
    if (automatic && device < 0) {
      if (gpu->use == DeviceUse::refused) warn(options, "the processor computes: " + gpu->why);
      continue;
    }
    auto made = entry.make(wanted, &gpu->use);
    if (made.ok()) *gpu = {};
    if (made.ok() || !automatic || options.device >= 0 || made.status().code() != Code::unsupported)
      return made;                       // whoever names a device wants it
    gpu->why = made.status().message();  // the driver does not take the kernels
    warn(options, "the processor computes: " + gpu->why);
  }
  return error(Code::unsupported, "this build has no backend that computes on the host");
}

Result<std::unique_ptr<Backend>> make_host_backend(const RuntimeOptions& options) {
  RuntimeOptions of_host = options;
  for (const BackendEntry& entry : backends())
    if (!entry.devices) of_host.backend = entry.name;
  if (options.n_host_threads > 0) of_host.n_threads = options.n_host_threads;
  GpuUse unused;
  return make_backend(of_host, &unused);
}

bool moves_directly(const RuntimeOptions& options) {
  return options.link.bytes_per_second == 0 && options.link.latency_us == 0 && !options.io_fault;
}

uint64_t budget_bytes(const RuntimeOptions& options, const Device& device) {
  if (options.device_budget_bytes) return options.device_budget_bytes;
  // Leaves what the driver may take by itself, and memory to other users of the GPU, such as the screen.
  const uint64_t left = kLeftToOthers + device.driver_bytes(), bytes = device.free_bytes();
  return bytes > 2 * left ? bytes - left : bytes ? bytes / 2 : os::default_reservation_bytes(os::memory_limits());
}

uint64_t reservoir_budget_bytes(const RuntimeOptions& options) {
  const uint64_t bytes = options.reservoir_bytes ? options.reservoir_bytes : os::default_reservation_bytes(os::memory_limits());
  return bytes / kv::kArenaAlignment * kv::kArenaAlignment;
}

Result<std::shared_ptr<Runtime>> Runtime::create(const RuntimeOptions& options) {
  if (options.device < -1) return option_error(Code::invalid_argument, "device", "device is %d, expected -1 or an index", options.device);
  if (options.max_sessions < 1 || options.max_sessions > 65536)
    return option_error(Code::invalid_argument, "max_sessions", "max_sessions is %u, expected 1 to 65536", options.max_sessions);
  std::shared_ptr<Runtime> runtime(new Runtime(options));
  ORRERY_ASSIGN(auto backend, make_backend(options, &runtime->gpu_use_));
  const BackendInfo info = backend->info();
  const uint64_t bytes = budget_bytes(options, *backend) / kv::kArenaAlignment * kv::kArenaAlignment;
  if (Status reserved = backend->reserve_arena(bytes); !reserved.ok())
    return with_advice(std::move(reserved), ", for the arena: a smaller device_budget_bytes helps");
  runtime->turns_ = std::make_unique<Turns>(std::move(backend), options.turn_clock);
  runtime->arena_ = std::make_unique<kv::Arena>(&runtime->device(), bytes);
  const os::MemoryLimits limits = os::memory_limits();
  auto reservoir = os::Region::allocate(reservoir_budget_bytes(options));
  if (!reservoir.ok())
    return with_advice(reservoir.take_status(), ", for the reservoir: a smaller reservoir_bytes helps, or a smaller device_budget_bytes");
  runtime->reservoir_ = std::make_unique<kv::Arena>(std::move(reservoir).value(), options.pinned_reservoir,
                                                    info.reads_host_memory ? nullptr : &runtime->device());
  auto of_prefixes = static_cast<uint64_t>(options.prefix_share * static_cast<double>(runtime->reservoir_->bytes()));
  constexpr uint64_t kMostUnasked = uint64_t{512} << 20;  // half of a machine's memory may be the reservoir if nobody has said its size
  if (options.reservoir_bytes == 0) of_prefixes = std::min(of_prefixes, kMostUnasked);
  runtime->prefixes_ = std::make_unique<kv::PrefixTree>(runtime->reservoir_.get(), of_prefixes);
  runtime->reservoir_->make_room_with([tree = runtime->prefixes_.get()] { return tree->evict_one(); });
  runtime->log(LogLevel::info, "backend %s, instruction set %s, %d threads%s", info.name, info.instruction_set, info.n_threads,
               info.computes_on_host && options.priority == Priority::low ? " of low priority" : "");
  if (info.computes_on_host) {
    runtime->log(LogLevel::info, "no GPU computes: %s", runtime->gpu_use_.why.c_str());
  } else {
    const std::vector<DeviceDescription> all = gpus();
    GpuUse used;
    const auto device = static_cast<size_t>(std::max(options.device >= 0 ? options.device : first_usable_gpu(&used), 0));
    if (device < all.size())
      runtime->log(LogLevel::info, "device %zu: %s, %llu bytes", device, all[device].name.c_str(),
                   static_cast<ull>(all[device].memory_bytes));
  }
  if (const uint64_t by_driver = runtime->device().driver_bytes())
    runtime->log(LogLevel::info, "beside the arena the driver takes device memory for graphs and cuBLAS, about %llu bytes at most",
                 static_cast<ull>(by_driver));
  const bool by_default = !options.device_budget_bytes || !options.reservoir_bytes;
  runtime->log(LogLevel::info, "arena of %llu bytes (device_budget_bytes%s), reservoir of %llu bytes, %s (reservoir_bytes%s)%s%s",
               static_cast<ull>(bytes), options.device_budget_bytes ? "" : ", by default", static_cast<ull>(runtime->reservoir_->bytes()),
               options.pinned_reservoir ? "pinned" : "pageable", options.reservoir_bytes ? "" : ", by default",
               by_default ? "; least is left by " : "", by_default ? limits.bound_by : "");
  return runtime;
}

Status Runtime::set_threads(int32_t n_threads, Priority priority) {
  const Turn turn = take_turn();
  const bool on_host = turn.backend().info().computes_on_host;
  Backend* host = nullptr;
  {
    const std::lock_guard<std::mutex> lock(io_mutex_);
    host = host_.get();
  }
  if (host) ORRERY_TRY(host->set_threads(n_threads, priority));
  if (on_host || !host) ORRERY_TRY(turn.backend().set_threads(n_threads, priority));
  log(LogLevel::info, "%d threads%s", backend_info().n_threads, priority == Priority::low ? " of low priority" : "");
  return ok_status();
}

Result<Backend*> Runtime::host_backend() {
  const std::lock_guard<std::mutex> lock(io_mutex_);
  if (!host_) {
    const AccountScope scope(account_);
    if (backend_info().computes_on_host && !host_sides_) {
      ORRERY_ASSIGN(host_sides_, TwoThreads::make());
    }
    ORRERY_ASSIGN(host_, make_host_backend(options_));
  }
  return host_.get();
}

Result<kv::IoThread*> Runtime::io() {
  std::lock_guard<std::mutex> lock(io_mutex_);
  if (!io_) {
    const AccountScope scope(account_);
    kv::IoThread::Options io;
    io.link = options_.link;
    io.fault = options_.io_fault;
    io.wait_limit_us = options_.io_wait_limit_us;
    ORRERY_ASSIGN(io_, kv::IoThread::make(&device(), std::move(io)));
  }
  return io_.get();
}

Status Runtime::take_session_slot() {
  uint32_t n = n_sessions_.load();
  do {
    if (n >= options_.max_sessions)
      return memory_error(Code::out_of_device_memory, n + uint64_t{1}, options_.max_sessions,
                          "all %u sessions that this runtime may hold at once (max_sessions) are open", options_.max_sessions);
  } while (!n_sessions_.compare_exchange_weak(n, n + 1));
  return ok_status();
}

void Runtime::log_trace() {
  if (!options_.log || options_.log_level < LogLevel::trace) return;
  const std::vector<std::string> lines = take_turn().backend().take_trace();
  for (const std::string& line : lines) log(LogLevel::trace, "trace %s", line.c_str());
}

void Runtime::log(LogLevel level, const char* fmt, ...) {
  if (!options_.log || level > options_.log_level) return;
  char text[512], line[512];
  va_list args;
  va_start(args, fmt);
  const int n = std::vsnprintf(text, sizeof text, fmt, args);
  va_end(args);
  if (n < 0) return;
  const std::string_view written(text, std::min<size_t>(static_cast<size_t>(n), sizeof text - 1));
  const bool cut = written.size() < static_cast<size_t>(n);
  copy_message(written.substr(0, written.size() - (cut ? text::utf8_incomplete_tail(written) : 0)), {line, sizeof line});
  options_.log(options_.log_user, static_cast<int32_t>(level), line);
}

}  // namespace orrery::engine
