// The driver's functions for the emulated build: contexts, kernels by name, memory with guard pages, streams, events, graphs, and faults on demand.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "cuda/device/gpu.h"
#include "tests/emulation/cuda/device.h"

using orrery::cuda::DriverError;

struct CUctx_st {
  int device = 0;
};
struct CUmod_st {
  bool fresh = true;   // no function has been asked for
};
struct CUgraph_st {
  std::vector<std::function<void()>> nodes;
};
struct CUgraphExec_st : CUgraph_st {};
struct CUstream_st {
  int device = 0;
  std::unique_ptr<CUgraph_st> capture;
  std::atomic<bool> captures{false}, spoilt{false};   // spoilt: a thread waited for the stream during the capture
  std::deque<std::function<void()>> work;   // not done yet; empty without a schedule
  uint64_t n_done = 0;
  uint64_t n_given() const { return n_done + work.size(); }
};
struct CUevent_st {
  CUstream_st* stream = nullptr;   // the event was recorded here, after this much work of the stream
  uint64_t behind = 0;
  int device = 0;                  // of the context that it was made in
};

namespace orrery::emulated {

std::function<DriverError()> fault;
std::atomic<const char*> failed_call{""};
int driver_version = kDriverVersion;
const char* missing_function = nullptr;
bool registered_at_host_address = true;
size_t most_pinned_bytes = SIZE_MAX, most_graph_nodes = SIZE_MAX;
int architecture = 86, n_devices = 1, n_sms = 4;
size_t cache_bytes = size_t{4} << 20, memory_bytes = size_t{8} << 30;
std::atomic<uint64_t> n_launches{0};
Device* device = nullptr;

namespace {

constexpr int kMostDevices = 4;
thread_local std::vector<CUctx_st*> contexts;   // the calling thread's stack
CUctx_st primary[kMostDevices] = {{0}, {1}, {2}, {3}};
std::atomic<int> n_retained[kMostDevices];

struct Registry {
  std::map<std::string, std::unique_ptr<CUfunc_st>> by_name;
  std::vector<cuda::Function> all;
};
Registry& registry() {
  static Registry r;
  return r;
}

std::recursive_mutex schedule_mutex;   // guards the variables below, and delayed work
std::atomic<uint64_t> schedule{0};
std::vector<CUstream_st*> streams;

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
// Runs some of the streams' work, as the schedule says.
void do_some() {
  const auto random = [] {
    schedule = schedule * 6364136223846793005u + 1442695040888963407u;
    return static_cast<size_t>(schedule >> 33);
  };
  while (random() % 3 > 0) {
    CUstream_st* stream = streams[random() % streams.size()];
    do_until(stream, stream->n_done + 1);
  }
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
}

namespace {

constexpr size_t kPage = 4096;
std::atomic<size_t> n_graphs_made{0}, n_alive{0}, n_graph_nodes{0};
std::atomic<uint64_t> n_bytes_to_host{0}, n_bytes_to_device{0}, n_waited{0};
struct Allocation {
  void* base;       // of the mapping
  size_t mapped;
  bool host;
};
std::mutex allocations_mutex;
std::map<const void*, Allocation> allocations;   // by the address that the caller got

DriverError faulty(const char* call) {
  const DriverError e = fault ? fault() : DriverError::none;
  if (e != DriverError::none) failed_call = call;
  return e;
}

DriverError take(void** at, size_t bytes, bool host) {
  const size_t padded = (bytes + kPage - 1) / kPage * kPage, mapped = padded + kPage;
  void* base = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return DriverError::out_of_memory;
  char* end = static_cast<char*>(base) + padded;
  mprotect(end, kPage, PROT_NONE);
  // The block ends at the inaccessible page, as nearly as 256-byte alignment allows. A large arena is not touched before its use.
  if (bytes <= size_t{1} << 20) std::memset(base, 0xFF, padded);
  *at = end - (bytes + 255) / 256 * 256;
  const std::lock_guard<std::mutex> lock(allocations_mutex);
  allocations[*at] = {base, mapped, host};
  if (device) device->allocated(*at, bytes, host);
  return DriverError::none;
}

DriverError give_back(void* at) {
  if (at == nullptr) return DriverError::none;
  do_everything();
  const std::lock_guard<std::mutex> lock(allocations_mutex);
  const auto found = allocations.find(at);
  if (found == allocations.end()) return DriverError::invalid_value;
  if (device) device->released(at);
  munmap(found->second.base, found->second.mapped);
  allocations.erase(found);
  return DriverError::none;
}

std::atomic<size_t> n_pinned{0};   // bytes
std::map<const void*, size_t> pinned;

// Counts pinned memory. False: there would be more than the system gives.
bool pin(size_t bytes) {
  if ((n_pinned += bytes) <= most_pinned_bytes) return true;
  n_pinned -= bytes;
  return false;
}
bool unpin(void* at) {
  const std::lock_guard<std::mutex> lock(allocations_mutex);
  const auto found = pinned.find(at);
  if (found == pinned.end()) return false;
  n_pinned -= found->second;
  pinned.erase(found);
  return true;
}

// Whether the address lies in an allocation of this kind.
bool lies_in(const void* at, bool host) {
  const std::lock_guard<std::mutex> lock(allocations_mutex);
  auto next = allocations.upper_bound(at);
  if (next == allocations.begin()) return false;
  const Allocation& found = (--next)->second;
  return found.host == host && at < static_cast<const char*>(found.base) + found.mapped;
}

}  // namespace

void* allocate(size_t bytes) {
  void* at = nullptr;
  return take(&at, bytes, false) == DriverError::none ? at : nullptr;
}
void release(void* at) { give_back(at); }
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
size_t pinned_bytes() { return n_pinned; }
size_t n_live() {
  const std::lock_guard<std::mutex> lock(allocations_mutex);
  return allocations.size() + n_alive;
}


// ---- the driver's functions, by the manual of the driver API

namespace {

using namespace orrery::cuda;

// The context that the thread works in; a stream or an event of another one is refused.
DriverError in_context(const CUstream_st* stream) {
  if (contexts.empty()) return DriverError::invalid_context;
  return stream && stream->device != current_device() ? DriverError::invalid_handle : DriverError::none;
}
#define ORRERY_FAULTY() \
  if (const DriverError fault_ = faulty(__func__); fault_ != DriverError::none) return fault_
#define ORRERY_IN_CONTEXT(stream) \
  if (const DriverError context_ = in_context(stream); context_ != DriverError::none) return context_
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
  return DriverError::none;   // cuInit() is what fails
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
    case DeviceAttribute::registered_at_host_address: *value = registered_at_host_address; break;
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
  *context = &primary[of];
  ++n_retained[of], ++n_alive;
  return DriverError::none;
}
DriverError cuDevicePrimaryCtxRelease_v2(int of) {
  if (n_retained[of] == 0) return DriverError::invalid_context;
  --n_retained[of], --n_alive;
  return DriverError::none;
}
// Only a thread without a context can be refused one.
DriverError cuCtxPushCurrent_v2(Context context) {
  if (contexts.empty()) ORRERY_FAULTY();
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
  // A toolkit's images are for drivers of its own major version, and newer ones.
  if (driver_version / 1000 < archive_version() / 1000) return DriverError::unsupported_ptx_version;
  if (device ? !device->load(image) : std::strcmp(static_cast<const char*>(image), "emulated") != 0) return DriverError::invalid_image;
  *module = new CUmod_st;
  ++n_alive;
  return DriverError::none;
}
DriverError cuModuleUnload(Module module) {
  do_everything();
  --n_alive;
  delete module;
  return DriverError::none;
}
DriverError cuModuleGetFunction(Function* function, Module module, const char* symbol) {
  if (std::exchange(module->fresh, false)) ORRERY_FAULTY();
  const std::string name = readable_name(symbol);
  *function = find_kernel(name);
  return *function && (!device || device->has(name)) ? DriverError::none : DriverError::not_found;
}
DriverError cuFuncGetAttribute(int* value, FunctionAttribute, Function) {
  *value = 32;
  return DriverError::none;
}
DriverError cuFuncSetAttribute(Function function, FunctionAttribute, int value) { return allow_shared(function, value); }
DriverError cuLaunchKernel(Function f, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z,
                           unsigned shared_bytes, Stream stream, void** parameters, void**) {
  ORRERY_FAULTY();
  ORRERY_IN_CONTEXT(stream);
  const dim3 grid(grid_x, grid_y, grid_z), block(block_x, block_y, block_z);
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
    const auto as_source = [&] { run_grid(grid, block, shared_bytes, f->body, at.data()); };
    if (device) device->run(*f, grid, block, shared_bytes, at.data(), as_source);
    else as_source();
  });
  return DriverError::none;
}
DriverError cuMemGetInfo_v2(size_t* free_bytes, size_t* total_bytes) {
  *free_bytes = *total_bytes = memory_bytes;
  return faulty(__func__);
}
DriverError cuMemAlloc_v2(DeviceAddress* at, size_t bytes) {
  ORRERY_FAULTY();
  ORRERY_IN_CONTEXT(nullptr);
  void* taken = nullptr;
  const DriverError e = take(&taken, bytes, false);
  *at = device_address(taken);
  return e;
}
DriverError cuMemFree_v2(DeviceAddress at) { return give_back(host_pointer(at)); }
DriverError cuMemHostAlloc(void** at, size_t bytes, unsigned) {
  ORRERY_FAULTY();
  ORRERY_IN_CONTEXT(nullptr);
  if (!pin(bytes)) return DriverError::out_of_memory;
  const DriverError e = take(at, bytes, true);
  const std::lock_guard<std::mutex> lock(allocations_mutex);
  if (e == DriverError::none)
    pinned[*at] = bytes;
  else
    n_pinned -= bytes;
  return e;
}
DriverError cuMemFreeHost(void* at) {
  unpin(at);
  return give_back(at);
}
DriverError cuMemHostGetDevicePointer_v2(DeviceAddress* on_device, void* at, unsigned) {
  *on_device = device_address(at);
  return lies_in(at, true) ? DriverError::none : DriverError::invalid_value;
}
DriverError cuMemHostRegister_v2(void* at, size_t bytes, unsigned) {
  ORRERY_FAULTY();
  ORRERY_IN_CONTEXT(nullptr);
  if (!registered_at_host_address) return DriverError::not_supported;   // no address that this table could give
  if (!pin(bytes)) return DriverError::out_of_memory;
  {
    const std::lock_guard<std::mutex> lock(allocations_mutex);
    pinned[at] = bytes;
  }
  if (device) device->allocated(at, bytes, true);
  return DriverError::none;
}
DriverError cuMemHostUnregister(void* at) {
  do_everything();
  if (!unpin(at)) return DriverError::invalid_value;
  if (device) device->released(at);
  return faulty(__func__);
}
DriverError cuMemcpyAsync(DeviceAddress to_address, DeviceAddress from_address, size_t bytes, Stream stream) {
  ORRERY_FAULTY();
  ORRERY_IN_CONTEXT(stream);
  void *to = host_pointer(to_address), *from = host_pointer(from_address);
  if (lies_in(to, true) && lies_in(from, false)) n_bytes_to_host += bytes;
  if (lies_in(to, false) && !lies_in(from, false)) n_bytes_to_device += bytes;
  enqueue(stream, [=] {
    std::memmove(to, from, bytes);
    if (device) device->copied(to, from, bytes);
  });
  return DriverError::none;
}
DriverError cuMemsetD8Async(DeviceAddress at, unsigned char value, size_t bytes, Stream stream) {
  ORRERY_FAULTY();
  ORRERY_IN_CONTEXT(stream);
  enqueue(stream, [=] {
    std::memset(host_pointer(at), value, bytes);
    if (device) device->written(host_pointer(at), bytes);
  });
  return DriverError::none;
}
DriverError cuStreamCreate(Stream* stream, unsigned) {
  ORRERY_FAULTY();
  ORRERY_IN_CONTEXT(nullptr);
  *stream = new CUstream_st;
  (*stream)->device = current_device();
  ++n_alive;
  const std::lock_guard<std::recursive_mutex> lock(schedule_mutex);
  streams.push_back(*stream);
  return DriverError::none;
}
DriverError cuStreamDestroy_v2(Stream stream) {
  do_everything();   // other streams may wait for it
  const std::lock_guard<std::recursive_mutex> lock(schedule_mutex);
  streams.erase(std::remove(streams.begin(), streams.end(), stream), streams.end());
  --n_alive;
  delete stream;
  return DriverError::none;
}
DriverError cuStreamSynchronize(Stream stream) {
  ++n_waited;
  if (stream->captures) {
    stream->spoilt = true;
    return DriverError::capture_unsupported;
  }
  do_all(stream);
  return faulty(__func__);
}
DriverError cuStreamWaitEvent(Stream stream, Event event, unsigned) {
  ORRERY_FAULTY();
  const std::lock_guard<std::recursive_mutex> lock(schedule_mutex);
  enqueue(stream, [on = event->stream, behind = event->behind] { do_until(on, behind); });
  return DriverError::none;
}
DriverError cuStreamBeginCapture_v2(Stream stream, int) {
  ORRERY_FAULTY();
  stream->capture = std::make_unique<CUgraph_st>();
  stream->captures = true;
  return DriverError::none;
}
DriverError cuStreamEndCapture(Stream stream, Graph* graph) {
  stream->captures = false;
  *graph = stream->capture.release();
  n_alive += *graph != nullptr;
  ORRERY_FAULTY();
  if (stream->spoilt.exchange(false)) return DriverError::capture_invalidated;
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
  n_graph_nodes += graph->nodes.size();
  *exec = new CUgraphExec_st{*graph};
  ++n_alive;
  ++n_graphs_made;
  return DriverError::none;
}
DriverError cuGraphLaunch(GraphExec exec, Stream stream) {
  ORRERY_FAULTY();
  ORRERY_IN_CONTEXT(stream);
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
  n_graph_nodes -= exec->nodes.size();
  delete exec;
  return DriverError::none;
}
DriverError cuEventCreate(Event* event, unsigned) {
  ORRERY_FAULTY();
  ORRERY_IN_CONTEXT(nullptr);
  *event = new CUevent_st;
  (*event)->device = current_device();
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
  if (event->device != stream->device) return DriverError::invalid_handle;
  const std::lock_guard<std::recursive_mutex> lock(schedule_mutex);
  event->stream = stream, event->behind = stream->n_given();
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
  do_until(event->stream, event->behind);
  return faulty(__func__);
}
#undef ORRERY_FAULTY
#undef ORRERY_IN_CONTEXT

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
