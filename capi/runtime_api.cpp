// Versions and runtimes.
#include "capi/handles.h"
#include "runtime/cpu/cpu_backend.h"

namespace orrery::capi {

namespace {

Result<Priority> priority(int32_t given) {
  switch (given) {
    case ORRERY_PRIORITY_NORMAL: return Priority::normal;
    case ORRERY_PRIORITY_LOW: return Priority::low;
    default: return option_error(Code::invalid_argument, "priority", "priority is %d, expected an ORRERY_PRIORITY_ value", given);
  }
}

}  // namespace

Result<engine::RuntimeOptions> runtime_options(const orrery_runtime_options* given) {
  orrery_runtime_options o;
  ORRERY_TRY(read_options(given, &orrery_runtime_options_init, "orrery_runtime_options", &o));
  if (o.log_level < 0 || o.log_level > ORRERY_LOG_TRACE)
    return option_error(Code::invalid_argument, "log_level", "log_level is %d, expected 0 to %d", o.log_level, ORRERY_LOG_TRACE);
  if (o.reservoir_mode > ORRERY_RESERVOIR_PINNED)
    return option_error(Code::invalid_argument, "reservoir_mode", "reservoir_mode is %u, expected 0 (pageable) or 1 (pinned)",
                        o.reservoir_mode);
  engine::RuntimeOptions out;
  out.n_threads = o.n_threads;
  ORRERY_ASSIGN(out.priority, priority(o.priority));
  out.device = o.device;
  if (o.backend) {
    ORRERY_TRY(about_option("backend", check_utf8(o.backend, "backend")));
    out.backend = o.backend;
  }
  if (o.cpu_path) {
    ORRERY_TRY(about_option("cpu_path", check_utf8(o.cpu_path, "cpu_path")));
    out.cpu_path = o.cpu_path;
  }
  out.device_budget_bytes = o.device_budget_bytes;
  out.max_sessions = o.max_sessions;
  out.reservoir_bytes = o.reservoir_bytes;
  out.pinned_reservoir = o.reservoir_mode == ORRERY_RESERVOIR_PINNED;
  out.link = {o.link_bytes_per_second, o.link_latency_us};
  out.log = o.log;
  out.log_user = o.log_user;
  out.log_level = static_cast<engine::LogLevel>(o.log_level);
  return out;
}

}  // namespace orrery::capi

using namespace orrery;
using namespace orrery::capi;

extern "C" {

uint32_t orrery_abi_version(void) { return ORRERY_ABI_VERSION; }

#define ORRERY_TEXT_(x) #x
#define ORRERY_TEXT(x) ORRERY_TEXT_(x)
const char* orrery_version(void) {
  return ORRERY_TEXT(ORRERY_VERSION_MAJOR) "." ORRERY_TEXT(ORRERY_VERSION_MINOR) "." ORRERY_TEXT(ORRERY_VERSION_PATCH);
}

const char* orrery_build_info(void) {
#if defined(__clang__)
#define ORRERY_COMPILER "Clang " __clang_version__
#elif defined(__GNUC__)
#define ORRERY_COMPILER "GCC " __VERSION__
#else
#define ORRERY_COMPILER "unknown compiler"
#endif
#if defined(ORRERY_WITH_CUDA)
#define ORRERY_GPU "; cuda"
#else
#define ORRERY_GPU ""
#endif
#if defined(ORRERY_WITH_MIMALLOC)
#define ORRERY_ALLOCATOR "; mimalloc"
#else
#define ORRERY_ALLOCATOR ""
#endif
  return ORRERY_COMPILER "; cpu: " ORRERY_CPU_NAMES ORRERY_GPU ORRERY_ALLOCATOR;
}

void orrery_runtime_options_init(orrery_runtime_options* options, size_t struct_size) {
  orrery_runtime_options defaults = {};
  defaults.log_level = ORRERY_LOG_WARNING;
  defaults.max_sessions = 16;
  defaults.device = -1;
  init_struct(options, struct_size, defaults);
}

orrery_status orrery_runtime_create(const orrery_runtime_options* options, orrery_runtime** runtime, orrery_error* error) {
  if (runtime) *runtime = nullptr;
  return guarded(error, [&]() -> Status {
    ORRERY_REQUIRE(runtime);
    ORRERY_ASSIGN(const engine::RuntimeOptions o, runtime_options(options));
    return make_handle(runtime, [&](orrery_runtime* handle) -> Status {
      ORRERY_ASSIGN(handle->runtime, engine::Runtime::create(o));
      return ok_status();
    });
  });
}

void orrery_runtime_free(orrery_runtime* runtime) {
  if (runtime) free_handle(runtime, *runtime->runtime);
}

orrery_status orrery_runtime_set_threads(orrery_runtime* runtime, int32_t n_threads, int32_t priority, orrery_error* error) {
  return guarded(error, [&]() -> Status {
    ORRERY_REQUIRE(runtime);
    ORRERY_TRY(check_process(*runtime->runtime));
    ORRERY_ASSIGN(const Priority wanted, capi::priority(priority));
    const AccountScope scope(runtime->account);
    return runtime->runtime->set_threads(n_threads, wanted);
  });
}

void orrery_runtime_info_init(orrery_runtime_info* info, size_t struct_size) { init_struct(info, struct_size); }

orrery_status orrery_runtime_get_info(const orrery_runtime* runtime, orrery_runtime_info* info, orrery_error* error) {
  return guarded(error, [&]() -> Status {
    ORRERY_REQUIRE(runtime);
    ORRERY_REQUIRE(info);
    ORRERY_TRY(check_process(*runtime->runtime));
    const BackendInfo backend = runtime->runtime->backend_info();
    orrery_runtime_info out;
    orrery_runtime_info_init(&out, sizeof out);
    out.n_threads = backend.n_threads;
    out.backend = backend.name;
    out.path = backend.instruction_set;
    out.arena_bytes = runtime->runtime->arena().bytes();
    out.arena_used_bytes = runtime->runtime->arena().used();
    const AccountUsage usage = runtime->account.usage();
    out.host_bytes = usage.bytes;
    out.host_peak_bytes = usage.peak_bytes;
    out.pinned_bytes = runtime->runtime->pinned_bytes();
    out.driver_bytes = runtime->runtime->driver_bytes();
    out.gpu_use = static_cast<uint32_t>(runtime->runtime->gpu_use().use);
    out.gpu_reason = runtime->runtime->gpu_use().why.c_str();
    return write_struct(out, info, "orrery_runtime_info");
  });
}

}  // extern "C"
