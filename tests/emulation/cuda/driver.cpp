// The driver's functions for the emulated build: contexts, kernels by name, streams, events, graphs, captures, and faults on demand.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "cuda/device/gpu.h"
#include "tests/emulation/cuda/device.h"
#include "tests/emulation/cuda/memory.h"

using orrery::cuda::DriverError;

struct CUctx_st {
  int device = 0;
};
struct CUmod_st {
  bool fresh = true;  // no function has been asked for
  int device = 0;
  std::vector<CUfunc_st*> functions;  // that have been asked for
};
struct CUgraph_st {
  std::vector<std::function<void()>> nodes;
};
struct CUgraphExec_st : CUgraph_st {
  int device = 0;
  size_t bytes = 0;  // of the device
};
// Streams and events belong to a context, which a device has for one life: from the first that retains it to the last that releases it.
struct CUstream_st {
  int device = 0;
  uint64_t life = 0;
  bool blocking = false;  // work in the legacy stream waits for it
  std::unique_ptr<CUgraph_st> capture;
  std::atomic<bool> captures{false}, spoilt{false};  // spoilt: something forbidden happened during the capture
  int capture_mode = 0;
  std::thread::id captor;  // the thread that began the capture
  uint64_t n_captures = 0;
  std::deque<std::function<void()>> work;  // not done yet; empty without a schedule
  uint64_t n_done = 0;
  unsigned pace = 0, pace_left = 0;  // of a schedule: how readily the stream runs, and for how many calls more
  uint64_t n_given() const { return n_done + work.size(); }
};
struct CUevent_st {
  CUstream_st* stream = nullptr;  // the event was recorded here, after this much work of the stream
  uint64_t behind = 0;
  uint64_t in_capture = 0;  // of the stream: the number of the capture that holds the record; 0: none
  int device = 0;           // of the context that it was made in
  uint64_t life = 0;
};

namespace orrery::emulated {

std::function<DriverError()> fault;
thread_local const char* asking = "";
std::atomic<const char*> failed_call{""};
int driver_version = kDriverVersion;
const char* missing_function = nullptr;
size_t most_graph_nodes = SIZE_MAX;
int architecture = 86, n_devices = 1, n_sms = 4;
size_t cache_bytes = size_t{4} << 20;
size_t context_bytes = size_t{192} << 20, module_bytes = size_t{2} << 20, graph_bytes = size_t{64} << 10, node_bytes = 512;
size_t cublas_bytes = size_t{32} << 20;
std::atomic<uint64_t> n_launches{0}, n_early_launches{0};
Device* device = nullptr;

namespace {

thread_local std::vector<CUctx_st*> contexts;  // the calling thread's stack
thread_local bool was_refused = false;         // by a fault, the context that the thread asked for last
CUctx_st primary[kMostDevices] = {{0}, {1}, {2}, {3}};
std::atomic<int> n_retained[kMostDevices];
std::atomic<uint64_t> lives[kMostDevices];  // of the context: the number of times that the last one has released it

struct Registry {
  std::map<std::string, std::unique_ptr<CUfunc_st>> by_name;
  std::vector<cuda::Function> all;
};
Registry& registry() {
  static Registry r;
  return r;
}

std::mutex loads_mutex;
std::map<const CUfunc_st*, int> n_loads;  // of each kernel: the loaded modules that it has been asked of

std::recursive_mutex schedule_mutex;  // guards the variables below, and delayed work
std::atomic<uint64_t> schedule{0};
std::vector<CUstream_st*> streams;
constexpr int kGlobal = 0, kRelaxed = 2;  // modes of captures, beside kCaptureThreadLocal
constexpr DriverError kCaptureIsolation{905}, kCaptureImplicit{906}, kCapturedEvent{907};

void do_until(CUstream_st* stream, uint64_t n) {
  while (stream && stream->n_done < n && !stream->work.empty()) {
    const std::function<void()> next = std::move(stream->work.front());
    stream->work.pop_front();
    next();
    ++stream->n_done;
  }
}
void do_all(CUstream_st* stream) {
  const std::lock_guard<std::recursive_mutex> lock(schedule_mutex);
  if (stream) do_until(stream, stream->n_given());
}
void do_everything() {
  const std::lock_guard<std::recursive_mutex> lock(schedule_mutex);
  for (CUstream_st* stream : streams) do_all(stream);
}
// Runs some of the streams' work, as the schedule says. Each stream has a pace, for up to 32 calls: at pace 0 it waits until an event or a
// wait needs its work, so that other streams get far ahead of it; at pace 4 it keeps up with the host.
void do_some() {
  const auto random = [](size_t below) {
    schedule = schedule * 6364136223846793005u + 1442695040888963407u;
    return static_cast<size_t>(schedule >> 33) % below;
  };
  for (size_t turn = 0, first = random(streams.size()); turn < streams.size(); ++turn) {
    CUstream_st* stream = streams[(first + turn) % streams.size()];
    if (stream->work.empty()) continue;
    if (stream->pace_left-- == 0) stream->pace = static_cast<unsigned>(random(5)), stream->pace_left = static_cast<unsigned>(random(32));
    if (random(4) < stream->pace) do_until(stream, stream->n_done + 1 + random(3));
  }
}

// By the manual: calls that may allocate or wait are forbidden to a thread that captures, and to all threads while one captures in the
// global mode. They fail, and so do the captures.
DriverError forbid() {
  const std::lock_guard<std::recursive_mutex> lock(schedule_mutex);
  bool found = false;
  for (CUstream_st* s : streams) {
    if (!s->captures || s->capture_mode == kRelaxed) continue;
    if (s->capture_mode == kGlobal || s->captor == std::this_thread::get_id()) s->spoilt = found = true;
  }
  return found ? DriverError::capture_unsupported : DriverError::none;
}
// So is the legacy stream, and also while any stream captures that waits for it.
DriverError forbid_legacy() {
  const std::lock_guard<std::recursive_mutex> lock(schedule_mutex);
  for (CUstream_st* s : streams)
    if (s->captures && s->blocking) {
      s->spoilt = true;
      return kCaptureImplicit;
    }
  return forbid();
}

}  // namespace

void enqueue(cuda::Stream stream, std::function<void()> work) {
  if (stream && stream->capture) return stream->capture->nodes.push_back(std::move(work));
  if (!stream || schedule == 0) return work();
  const std::lock_guard<std::recursive_mutex> lock(schedule_mutex);
  stream->work.push_back(std::move(work));
  if (schedule != kLatest) do_some();
}

void set_schedule(uint64_t seed) {
  do_everything();
  schedule = seed;
  const std::lock_guard<std::recursive_mutex> lock(schedule_mutex);
  for (CUstream_st* stream : streams) stream->pace_left = 0;
}

std::vector<uint64_t> schedules() {
  const auto number = [](const char* name, uint64_t otherwise) {
    const char* text = std::getenv(name);
    return text ? std::strtoull(text, nullptr, 0) : otherwise;
  };
  std::vector<uint64_t> all;
  const uint64_t first = std::max<uint64_t>(number("ORRERY_SCHEDULE_SEED", 1), 1);
  for (uint64_t i = 0, n = number("ORRERY_SCHEDULES", 4); i < n; ++i) all.push_back(first + i);
  all.push_back(kLatest);
  return all;
}

namespace {

std::atomic<size_t> n_graphs_made{0}, n_alive{0}, n_graph_nodes{0};
std::atomic<uint64_t> n_bytes_to_host{0}, n_bytes_to_device{0}, n_waited{0};
}  // namespace

DriverError faulty(const char* call) {
  asking = call;
  const DriverError e = fault ? fault() : DriverError::none;
  if (e != DriverError::none) failed_call = call;
  return e;
}
int n_modules_with(cuda::Function function) {
  const std::lock_guard<std::mutex> lock(loads_mutex);
  return n_loads[function];
}
DriverError refused_in_capture() { return forbid(); }

void release(void* at) {
  do_everything();
  give_back(at);
}
bool add_kernel(const char* tag, std::vector<size_t> sizes, void (*body)(void*)) {
  auto made = std::make_unique<CUfunc_st>();
  made->name = cuda::readable_name(tag), made->tag = tag, made->sizes = std::move(sizes), made->body = body;
  registry().all.push_back(made.get());
  return registry().by_name.emplace(made->name, std::move(made)).second;
}
cuda::Function find_kernel(const std::string& readable_name) {
  const auto found = registry().by_name.find(readable_name);
  return found == registry().by_name.end() ? nullptr : found->second.get();
}
const std::vector<cuda::Function>& kernels() { return registry().all; }
uint64_t launches_of(const std::string& kernel) {
  uint64_t n = 0;
  for (const cuda::Function f : registry().all)
    if (f->name.find("::" + kernel) != std::string::npos) n += f->n_launches;
  return n;
}
int current_device() { return contexts.empty() ? -1 : contexts.back()->device; }
bool capturing() {
  const std::lock_guard<std::recursive_mutex> lock(schedule_mutex);
  return std::any_of(streams.begin(), streams.end(), [](const CUstream_st* s) { return s->captures.load(); });
}
uint64_t bytes_to_host() { return n_bytes_to_host; }
uint64_t bytes_to_device() { return n_bytes_to_device; }
uint64_t n_waits() { return n_waited; }
size_t graphs_made() { return n_graphs_made; }
size_t n_live() { return n_allocations() + n_alive; }

// ---- the driver's functions, by the manual of the driver API

namespace {

using namespace orrery::cuda;

// The context that the thread works in; a stream or an event of another one is refused.
DriverError in_context(const CUstream_st* stream) {
  if (contexts.empty()) return DriverError::invalid_context;
  return stream && (stream->device != current_device() || stream->life != lives[stream->device]) ? DriverError::invalid_handle
                                                                                                 : DriverError::none;
}
#define ORRERY_FAULTY() \
  if (const DriverError fault_ = faulty(__func__); fault_ != DriverError::none) return fault_
#define ORRERY_IN_CONTEXT(stream) \
  if (const DriverError context_ = in_context(stream); context_ != DriverError::none) return context_
#define ORRERY_NOT_IN_CAPTURE() \
  if (const DriverError forbidden_ = forbid(); forbidden_ != DriverError::none) return forbidden_
// Of a call that gives memory back: that works without a context where a fault has refused it.
#define ORRERY_GIVES_BACK()                                                  \
  if (contexts.empty() && !was_refused) return DriverError::invalid_context; \
  ORRERY_NOT_IN_CAPTURE()
// Of a call that works in a stream: null is the legacy stream.
#define ORRERY_STREAM(stream) \
  ORRERY_IN_CONTEXT(stream);  \
  if (const DriverError legacy_ = stream ? DriverError::none : forbid_legacy(); legacy_ != DriverError::none) return legacy_
void* host_pointer(DeviceAddress at) { return reinterpret_cast<void*>(static_cast<uintptr_t>(at)); }

// A child of fork() finds what its parent has started, and cannot use it.
DriverError cuInit(unsigned) {
  static const pid_t started_by = getpid();
  return started_by == getpid() ? faulty(__func__) : DriverError::not_initialized;
}
DriverError cuDriverGetVersion(int* version) {
  *version = driver_version;
  return DriverError::none;
}
DriverError cuGetErrorName(DriverError error, const char** name) {
  *name = error == DriverError::none ? "CUDA_SUCCESS" : "CUDA_ERROR_EMULATED";
  return DriverError::none;
}
DriverError cuGetErrorString(DriverError error, const char** text) {
  *text = error == DriverError::none ? "no error" : "an injected fault";
  return DriverError::none;
}
DriverError cuDeviceGetCount(int* count) {
  *count = n_devices;
  return DriverError::none;  // cuInit() is what fails
}
DriverError cuDeviceGet(int* device_of, int index) {
  if (index < 0 || index >= n_devices) return DriverError::invalid_value;
  *device_of = index;
  return faulty(__func__);
}
DriverError cuDeviceGetName(char* name, int bytes, int) {
  std::snprintf(name, static_cast<size_t>(bytes), "emulated device");
  return DriverError::none;
}
DriverError cuDeviceGetAttribute(int* value, DeviceAttribute attribute, int) {
  switch (attribute) {
    case DeviceAttribute::n_sms: *value = n_sms; break;
    case DeviceAttribute::cache_bytes: *value = static_cast<int>(cache_bytes); break;
    case DeviceAttribute::major: *value = architecture / 10; break;
    case DeviceAttribute::minor: *value = architecture % 10; break;
    case DeviceAttribute::shared_bytes: *value = 99 << 10; break;
    case DeviceAttribute::registered_at_host_address: *value = !registered_elsewhere; break;
    default: return DriverError::invalid_value;
  }
  return DriverError::none;
}
DriverError cuDeviceTotalMem_v2(size_t* bytes, int) {
  *bytes = memory_bytes;
  return DriverError::none;
}
DriverError cuDevicePrimaryCtxRetain(Context* context, int of) {
  ORRERY_FAULTY();
  if (n_retained[of] == 0 && !charge(of, Taker::context, context_bytes)) return DriverError::out_of_memory;
  *context = &primary[of];
  ++n_retained[of], ++n_alive;
  return DriverError::none;
}
DriverError cuDevicePrimaryCtxRelease_v2(int of) {
  if (n_retained[of] == 0) return DriverError::invalid_context;
  --n_alive;
  if (--n_retained[of] > 0) return DriverError::none;
  ++lives[of];
  discharge(of, Taker::context, context_bytes);
  return DriverError::none;
}
// Only a thread without a context can be refused one.
DriverError cuCtxPushCurrent_v2(Context context) {
  if (contexts.empty()) {
    const DriverError e = faulty(__func__);
    was_refused = e != DriverError::none;
    if (was_refused) return e;
  }
  if (!context || n_retained[context->device] == 0) return DriverError::invalid_context;
  contexts.push_back(context);
  return DriverError::none;
}
DriverError cuCtxPopCurrent_v2(Context* context) {
  if (contexts.empty()) return DriverError::invalid_context;
  *context = contexts.back();
  contexts.pop_back();
  return DriverError::none;
}
DriverError cuModuleLoadData(Module* module, const void* image) {
  ORRERY_FAULTY();
  ORRERY_IN_CONTEXT(nullptr);
  ORRERY_NOT_IN_CAPTURE();
  // A toolkit's images are for drivers of its own major version, and newer ones.
  if (driver_version / 1000 < archive_version() / 1000) return DriverError::unsupported_ptx_version;
  if (device ? !device->load(image) : std::strcmp(static_cast<const char*>(image), "emulated") != 0) return DriverError::invalid_image;
  if (!charge(current_device(), Taker::module, module_bytes)) return DriverError::out_of_memory;
  *module = new CUmod_st;
  (*module)->device = current_device();
  ++n_alive;
  return DriverError::none;
}
DriverError cuModuleUnload(Module module) {
  ORRERY_NOT_IN_CAPTURE();
  do_everything();
  {
    const std::lock_guard<std::mutex> lock(loads_mutex);
    for (const CUfunc_st* function : module->functions) --n_loads[function];
  }
  discharge(module->device, Taker::module, module_bytes);
  --n_alive;
  delete module;
  return DriverError::none;
}
DriverError cuModuleGetFunction(Function* function, Module module, const char* symbol) {
  if (std::exchange(module->fresh, false)) ORRERY_FAULTY();
  ORRERY_NOT_IN_CAPTURE();  // the driver may load the kernel now
  const std::string name = readable_name(symbol);
  *function = find_kernel(name);
  if (!*function || (device && !device->has(name))) return DriverError::not_found;
  const std::lock_guard<std::mutex> lock(loads_mutex);
  ++n_loads[*function];
  module->functions.push_back(*function);
  return DriverError::none;
}
DriverError cuFuncGetAttribute(int* value, FunctionAttribute attribute, Function) {
  *value = attribute == FunctionAttribute::ptx_version ? architecture >= 90 ? 90 : 80 : 32;
  return DriverError::none;
}
DriverError cuFuncSetAttribute(Function function, FunctionAttribute, int value) { return allow_shared(function, value); }
// early: the kernel may start early, so each of its threads must wait. Here it starts when its turn comes.
DriverError launch_now(Function f, dim3 grid, dim3 block, unsigned shared_bytes, Stream stream, void** parameters, bool early) {
  if (const DriverError e = faulty("cuLaunchKernel"); e != DriverError::none) return e;
  ORRERY_STREAM(stream);
  if (n_modules_with(f) == 0 && (!device || device->has(f->name))) return DriverError::invalid_handle;  // they are gone
  if (const DriverError e = check_launch(*f, grid, block, shared_bytes); e != DriverError::none) return e;
  ++n_launches, ++f->n_launches;
  // The parameters are copied: the caller's end with the call.
  struct alignas(16) Slot {
    std::byte bytes[16];
  };
  auto slots = std::make_shared<std::vector<Slot>>();
  std::vector<size_t> first;
  for (size_t i = 0; i < f->sizes.size(); ++i) {
    first.push_back(slots->size());
    slots->resize(slots->size() + (f->sizes[i] + 15) / 16);
    std::memcpy(static_cast<void*>(slots->data() + first[i]), parameters[i], f->sizes[i]);
  }
  enqueue(stream, [=] {
    std::vector<void*> at(first.size());
    for (size_t i = 0; i < at.size(); ++i) at[i] = slots->data() + first[i];
    const auto as_source = [&] {
      const uint64_t before = n_waited_for_earlier;
      run_grid(grid, block, shared_bytes, f->body, at.data());
      const uint64_t threads = uint64_t{grid.x} * grid.y * grid.z * block.x * block.y * block.z;
      if (!early || n_waited_for_earlier - before >= threads) return;
      std::fprintf(stderr, "emulated device: %s starts early, and not each of its threads waits for earlier kernels\n", f->name.c_str());
      std::abort();
    };
    std::optional<AsDevice> now;
    if (!device || device->touches_memory()) now.emplace(AsDevice::Work::kernel);
    if (device) device->run(*f, grid, block, shared_bytes, at.data(), as_source);
    else as_source();
  });
  return DriverError::none;
}
DriverError cuLaunchKernel(Function f, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                           unsigned block_z, unsigned shared_bytes, Stream stream, void** parameters, void**) {
  return launch_now(f, dim3(grid_x, grid_y, grid_z), dim3(block_x, block_y, block_z), shared_bytes, stream, parameters, false);
}
DriverError cuLaunchKernelEx(const LaunchConfig* c, Function f, void** parameters, void**) {
  if (c->n_attributes != 1 || c->attributes->id != LaunchAttribute::kStartsEarly || c->attributes->value[0] != 1)
    return DriverError::invalid_value;
  if (!capturing()) return DriverError::invalid_value;  // the backend does so in graphs alone
  ++n_early_launches;
  return launch_now(f, dim3(c->grid_x, c->grid_y, c->grid_z), dim3(c->block_x, c->block_y, c->block_z), c->shared_bytes, c->stream,
                    parameters, true);
}
DriverError cuMemGetInfo_v2(size_t* free_bytes, size_t* total_bytes) {
  ORRERY_IN_CONTEXT(nullptr);
  *total_bytes = memory_bytes;
  *free_bytes = memory_bytes - std::min(device_bytes(current_device()).total(), memory_bytes);
  return faulty(__func__);
}
DriverError cuMemAlloc_v2(DeviceAddress* at, size_t bytes) {
  ORRERY_FAULTY();
  ORRERY_IN_CONTEXT(nullptr);
  ORRERY_NOT_IN_CAPTURE();
  void* taken = nullptr;
  const DriverError e = take(&taken, bytes, false);
  *at = device_address(taken);
  return e;
}
DriverError cuMemFree_v2(DeviceAddress at) {
  ORRERY_GIVES_BACK();
  do_everything();
  return give_back(host_pointer(at));
}
DriverError cuMemHostAlloc(void** at, size_t bytes, unsigned) {
  ORRERY_FAULTY();
  ORRERY_IN_CONTEXT(nullptr);
  ORRERY_NOT_IN_CAPTURE();
  return take(at, bytes, true);
}
DriverError cuMemFreeHost(void* at) {
  ORRERY_GIVES_BACK();
  do_everything();
  return give_back(at);
}
DriverError cuMemHostRegister_v2(void* at, size_t bytes, unsigned) {
  ORRERY_FAULTY();
  ORRERY_IN_CONTEXT(nullptr);
  ORRERY_NOT_IN_CAPTURE();
  return register_memory(at, bytes);
}
// Does not wait: the manual does not say that it does. Work that still needs the memory finds what is there then.
DriverError cuMemHostUnregister(void* at) {
  ORRERY_GIVES_BACK();
  if (const DriverError e = unregister_memory(at); e != DriverError::none) return e;
  return faulty(__func__);
}
DriverError cuMemHostGetDevicePointer_v2(DeviceAddress* at, void* host, unsigned) {
  ORRERY_FAULTY();
  ORRERY_IN_CONTEXT(nullptr);
  uint64_t there = 0;
  const DriverError e = device_address_of(host, &there);
  *at = there;
  return e;
}
DriverError cuMemcpyAsync(DeviceAddress to_address, DeviceAddress from_address, size_t bytes, Stream stream) {
  ORRERY_FAULTY();
  ORRERY_STREAM(stream);
  void *to = host_pointer(to_address), *from = host_pointer(from_address);
  if (lies_in(to, true) && lies_in(from, false)) n_bytes_to_host += bytes;
  if (lies_in(to, false) && !lies_in(from, false)) n_bytes_to_device += bytes;
  enqueue(stream, [=] {
    const AsDevice now(AsDevice::Work::copy);
    std::memmove(to, from, bytes);
    if (device) device->copied(const_cast<void*>(reported(to)), reported(from), bytes);
  });
  return DriverError::none;
}
DriverError cuMemsetD8Async(DeviceAddress at, unsigned char value, size_t bytes, Stream stream) {
  ORRERY_FAULTY();
  ORRERY_STREAM(stream);
  enqueue(stream, [=] {
    const AsDevice now(AsDevice::Work::copy);
    std::memset(host_pointer(at), value, bytes);
    if (device) device->written(reported(host_pointer(at)), bytes);
  });
  return DriverError::none;
}
DriverError cuStreamCreate(Stream* stream, unsigned flags) {
  ORRERY_FAULTY();
  ORRERY_IN_CONTEXT(nullptr);
  *stream = new CUstream_st;
  (*stream)->device = current_device(), (*stream)->life = lives[current_device()];
  (*stream)->blocking = (flags & kStreamNonBlocking) == 0;
  ++n_alive;
  const std::lock_guard<std::recursive_mutex> lock(schedule_mutex);
  streams.push_back(*stream);
  return DriverError::none;
}
DriverError cuStreamDestroy_v2(Stream stream) {
  do_everything();  // other streams may wait for it
  const std::lock_guard<std::recursive_mutex> lock(schedule_mutex);
  streams.erase(std::remove(streams.begin(), streams.end(), stream), streams.end());
  --n_alive;
  delete stream;
  return DriverError::none;
}
DriverError cuStreamSynchronize(Stream stream) {
  ORRERY_IN_CONTEXT(stream);
  ++n_waited;
  if (stream->captures) {
    stream->spoilt = true;
    return DriverError::capture_unsupported;
  }
  ORRERY_NOT_IN_CAPTURE();
  do_all(stream);
  return faulty(__func__);
}
// A capture that forks into another stream is refused: the library makes none.
DriverError cuStreamWaitEvent(Stream stream, Event event, unsigned) {
  ORRERY_FAULTY();
  ORRERY_STREAM(stream);
  const std::lock_guard<std::recursive_mutex> lock(schedule_mutex);
  const bool of_this_capture = stream->captures && event->stream == stream && event->in_capture == stream->n_captures;
  if ((stream->captures || event->in_capture) && !of_this_capture) {
    if (stream->captures) stream->spoilt = true;
    if (event->in_capture && event->stream->captures) event->stream->spoilt = true;
    return kCaptureIsolation;
  }
  if (!of_this_capture) enqueue(stream, [on = event->stream, behind = event->behind] { do_until(on, behind); });
  return DriverError::none;
}
DriverError cuStreamBeginCapture_v2(Stream stream, int mode) {
  ORRERY_FAULTY();
  ORRERY_IN_CONTEXT(stream);
  const std::lock_guard<std::recursive_mutex> lock(schedule_mutex);
  if (!stream || stream->captures) return DriverError::capture_unsupported;
  stream->capture = std::make_unique<CUgraph_st>();
  stream->capture_mode = mode, stream->captor = std::this_thread::get_id(), stream->spoilt = false;
  ++stream->n_captures;
  stream->captures = true;
  return DriverError::none;
}
DriverError cuStreamEndCapture(Stream stream, Graph* graph) {
  const std::lock_guard<std::recursive_mutex> lock(schedule_mutex);
  if (stream->captures && stream->capture_mode != kRelaxed && stream->captor != std::this_thread::get_id()) return DriverError{908};
  stream->captures = false;
  *graph = stream->capture.release();
  if (stream->spoilt.exchange(false)) {
    delete std::exchange(*graph, nullptr);
    return DriverError::capture_invalidated;
  }
  n_alive += *graph != nullptr;
  ORRERY_FAULTY();
  return *graph ? DriverError::none : DriverError::invalid_value;
}
DriverError cuGraphGetNodes(Graph graph, CUgraphNode_st**, size_t* n_nodes) {
  *n_nodes = graph->nodes.size();
  return DriverError::none;
}
DriverError cuGraphInstantiateWithFlags(GraphExec* exec, Graph graph, unsigned long long) {
  ORRERY_FAULTY();
  ORRERY_IN_CONTEXT(nullptr);
  if (n_graph_nodes + graph->nodes.size() > most_graph_nodes) return DriverError::out_of_memory;
  const size_t bytes = graph_bytes + graph->nodes.size() * node_bytes;
  if (!charge(current_device(), Taker::graph, bytes)) return DriverError::out_of_memory;
  n_graph_nodes += graph->nodes.size();
  *exec = new CUgraphExec_st{*graph, current_device(), bytes};
  ++n_alive;
  ++n_graphs_made;
  return DriverError::none;
}
DriverError cuGraphLaunch(GraphExec exec, Stream stream) {
  ORRERY_FAULTY();
  ORRERY_STREAM(stream);
  for (const auto& node : exec->nodes) enqueue(stream, node);
  return DriverError::none;
}
DriverError cuGraphDestroy(Graph graph) {
  --n_alive;
  delete graph;
  return DriverError::none;
}
DriverError cuGraphExecDestroy(GraphExec exec) {
  --n_alive;
  discharge(exec->device, Taker::graph, exec->bytes);
  n_graph_nodes -= exec->nodes.size();
  delete exec;
  return DriverError::none;
}
DriverError cuEventCreate(Event* event, unsigned) {
  ORRERY_FAULTY();
  ORRERY_IN_CONTEXT(nullptr);
  *event = new CUevent_st;
  (*event)->device = current_device(), (*event)->life = lives[current_device()];
  ++n_alive;
  return DriverError::none;
}
DriverError cuEventDestroy_v2(Event event) {
  --n_alive;
  delete event;
  return DriverError::none;
}
DriverError cuEventRecord(Event event, Stream stream) {
  ORRERY_FAULTY();
  ORRERY_STREAM(stream);
  if (event->device != current_device() || event->life != lives[event->device]) return DriverError::invalid_handle;
  const std::lock_guard<std::recursive_mutex> lock(schedule_mutex);
  event->stream = stream, event->behind = stream ? stream->n_given() : 0;
  event->in_capture = stream && stream->captures ? stream->n_captures : 0;
  return DriverError::none;
}
// Each wait ends with one of the two calls below: a query that finds the work done counts as a wait.
DriverError cuEventQuery(Event event) {
  {
    const std::lock_guard<std::recursive_mutex> lock(schedule_mutex);
    if (event->stream && event->stream->n_done < event->behind) return DriverError::not_ready;
  }
  ++n_waited;
  return faulty(__func__);
}
DriverError cuEventSynchronize(Event event) {
  ++n_waited;
  const std::lock_guard<std::recursive_mutex> lock(schedule_mutex);
  if (event->in_capture) {
    if (event->stream->captures) event->stream->spoilt = true;
    return kCapturedEvent;
  }
  ORRERY_NOT_IN_CAPTURE();
  do_until(event->stream, event->behind);
  return faulty(__func__);
}
#undef ORRERY_FAULTY
#undef ORRERY_IN_CONTEXT
#undef ORRERY_NOT_IN_CAPTURE
#undef ORRERY_GIVES_BACK
#undef ORRERY_STREAM

}  // namespace

// Each function has the type that the table asks for.
void* driver_function(const std::string& name) {
  if (missing_function && name == missing_function) return nullptr;
#define ORRERY_OFFER(member, symbol, ...) \
  if (name == #symbol) return reinterpret_cast<void*>(static_cast<DriverError (*)(__VA_ARGS__)>(symbol));
  ORRERY_DRIVER_FUNCTIONS(ORRERY_OFFER)
#undef ORRERY_OFFER
  return nullptr;
}

}  // namespace orrery::emulated
