// The functions of the CUDA runtime for the emulated build: memory with guard pages, streams, events, graphs, and faults on demand.
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "cuda_runtime.h"

namespace orrery::emulated {

std::function<cudaError_t()> fault;
int driver_version = 12040;
int architecture = 86, n_devices = 1;
std::atomic<uint64_t> n_launches{0};
Device* device = nullptr;

struct Graph {
  std::vector<std::function<void()>> nodes;
};
struct Stream {
  int device = 0;
  std::unique_ptr<Graph> capture;
  std::atomic<bool> captures{false}, spoilt{false};   // spoilt: a thread waited for the stream during the capture
  std::deque<std::function<void()>> work;   // not done yet; empty without a schedule
  uint64_t n_done = 0;
  uint64_t n_given() const { return n_done + work.size(); }
};

namespace {

thread_local int current_device = 0;
std::recursive_mutex schedule_mutex;   // guards the variables below, and delayed work
std::atomic<uint64_t> schedule{0};
std::vector<Stream*> streams;

void do_until(Stream* stream, uint64_t n) {
  while (stream && stream->n_done < n && !stream->work.empty()) {
    const std::function<void()> next = std::move(stream->work.front());
    stream->work.pop_front();
    next();
    ++stream->n_done;
  }
}
void do_all(Stream* stream) {
  const std::lock_guard<std::recursive_mutex> lock(schedule_mutex);
  if (stream) do_until(stream, stream->n_given());
}
void do_everything() {
  const std::lock_guard<std::recursive_mutex> lock(schedule_mutex);
  for (Stream* stream : streams) do_all(stream);
}
// Runs some of the streams' work, as the schedule says.
void do_some() {
  const auto random = [] {
    schedule = schedule * 6364136223846793005u + 1442695040888963407u;
    return static_cast<size_t>(schedule >> 33);
  };
  while (random() % 3 > 0) {
    Stream* stream = streams[random() % streams.size()];
    do_until(stream, stream->n_done + 1);
  }
}

}  // namespace

void enqueue(Stream* stream, std::function<void()> work) {
  if (stream && stream->capture) return stream->capture->nodes.push_back(std::move(work));
  if (!stream || schedule == 0) return work();
  const std::lock_guard<std::recursive_mutex> lock(schedule_mutex);
  stream->work.push_back(std::move(work));
  do_some();
}

cudaError_t check_device(const Stream* stream) {
  return !stream || stream->device == current_device ? cudaSuccess : cudaErrorInvalidResourceHandle;
}

void set_schedule(uint64_t seed) {
  do_everything();
  schedule = seed;
}

namespace {

constexpr size_t kPage = 4096;
std::atomic<size_t> n_graphs_made{0}, n_alive{0};
std::atomic<uint64_t> n_bytes_to_host{0}, n_bytes_to_device{0}, n_waited{0};
struct Allocation {
  void* base;       // of the mapping
  size_t mapped;
  bool host;
};
std::mutex allocations_mutex;
std::map<const void*, Allocation> allocations;   // by the address that the caller got

cudaError_t faulty() { return fault ? fault() : cudaSuccess; }

cudaError_t allocate(void** at, size_t bytes, bool host) {
  if (const cudaError_t e = faulty()) return e;
  const size_t padded = (bytes + kPage - 1) / kPage * kPage, mapped = padded + kPage;
  void* base = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return cudaErrorMemoryAllocation;
  char* end = static_cast<char*>(base) + padded;
  mprotect(end, kPage, PROT_NONE);
  // The block ends at the inaccessible page, as nearly as 256-byte alignment allows. A large arena is not touched before its use.
  if (bytes <= size_t{1} << 20) std::memset(base, 0xFF, padded);
  *at = end - (bytes + 255) / 256 * 256;
  const std::lock_guard<std::mutex> lock(allocations_mutex);
  allocations[*at] = {base, mapped, host};
  if (device) device->allocated(*at, bytes, host);
  return cudaSuccess;
}

cudaError_t release(void* at) {
  if (at == nullptr) return cudaSuccess;
  do_everything();
  const std::lock_guard<std::mutex> lock(allocations_mutex);
  const auto found = allocations.find(at);
  if (found == allocations.end()) return cudaErrorInvalidValue;
  if (device) device->released(at);
  munmap(found->second.base, found->second.mapped);
  allocations.erase(found);
  return cudaSuccess;
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

bool capturing() {
  const std::lock_guard<std::recursive_mutex> lock(schedule_mutex);
  return std::any_of(streams.begin(), streams.end(), [](const Stream* s) { return s->captures.load(); });
}
uint64_t bytes_to_host() { return n_bytes_to_host; }
uint64_t bytes_to_device() { return n_bytes_to_device; }
uint64_t n_waits() { return n_waited; }
size_t graphs_made() { return n_graphs_made; }
size_t n_live() {
  const std::lock_guard<std::mutex> lock(allocations_mutex);
  return allocations.size() + n_alive;
}

}  // namespace orrery::emulated

using namespace orrery::emulated;

cudaError_t cudaDriverGetVersion(int* version) {
  *version = driver_version;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = 12040;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  *count = n_devices;
  if (driver_version < 12000) return cudaErrorInsufficientDriver;
  return faulty();
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int index) {
  if (index < 0 || index >= n_devices) return cudaErrorInvalidValue;
  *p = {};
  std::snprintf(p->name, sizeof p->name, "emulated device");
  p->totalGlobalMem = size_t{8} << 30;
  p->sharedMemPerBlockOptin = 99 << 10;
  p->major = architecture / 10, p->minor = architecture % 10;
  p->multiProcessorCount = 4;
  p->l2CacheSize = 4 << 20;
  p->canMapHostMemory = 1;
  return faulty();
}
cudaError_t cudaSetDevice(int index) {
  if (index < 0 || index >= n_devices) return cudaErrorInvalidValue;
  if (const cudaError_t e = faulty()) return e;
  current_device = index;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* index) {
  *index = current_device;
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  *free_bytes = *total_bytes = size_t{8} << 30;
  return faulty();
}
cudaError_t cudaMalloc(void** at, size_t bytes) { return allocate(at, bytes, false); }
cudaError_t cudaFree(void* at) { return release(at); }
cudaError_t cudaHostAlloc(void** at, size_t bytes, unsigned) { return allocate(at, bytes, true); }
cudaError_t cudaFreeHost(void* at) { return release(at); }
cudaError_t cudaHostRegister(void* at, size_t bytes, unsigned) {
  if (const cudaError_t e = faulty()) return e;
  if (device) device->allocated(at, bytes, true);
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* at) {
  do_everything();
  if (device) device->released(at);
  return faulty();
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  if (const cudaError_t e = faulty()) return e;
  if (lies_in(to, true) && lies_in(from, false)) n_bytes_to_host += bytes;
  if (lies_in(to, false) && !lies_in(from, false)) n_bytes_to_device += bytes;
  enqueue(stream, [=] {
    std::memmove(to, from, bytes);
    if (device) device->copied(to, from, bytes);
  });
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* at, int value, size_t bytes, cudaStream_t stream) {
  if (const cudaError_t e = faulty()) return e;
  enqueue(stream, [=] {
    std::memset(at, value, bytes);
    if (device) device->written(at, bytes);
  });
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  if (const cudaError_t e = faulty()) return e;
  *stream = new Stream;
  (*stream)->device = current_device;
  ++n_alive;
  const std::lock_guard<std::recursive_mutex> lock(schedule_mutex);
  streams.push_back(*stream);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  do_everything();   // other streams may wait for it
  const std::lock_guard<std::recursive_mutex> lock(schedule_mutex);
  streams.erase(std::remove(streams.begin(), streams.end(), stream), streams.end());
  n_alive -= stream != nullptr;
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  ++n_waited;
  if (stream && stream->captures) {
    stream->spoilt = true;
    return cudaErrorStreamCaptureUnsupported;
  }
  do_all(stream);
  return faulty();
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (const cudaError_t e = faulty()) return e;
  const std::lock_guard<std::recursive_mutex> lock(schedule_mutex);
  enqueue(stream, [on = event->stream, behind = event->behind] { do_until(on, behind); });
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  if (const cudaError_t e = faulty()) return e;
  stream->capture = std::make_unique<Graph>();
  stream->captures = true;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  stream->captures = false;
  *graph = stream->capture.release();
  n_alive += *graph != nullptr;
  if (const cudaError_t e = faulty()) return e;
  if (stream->spoilt.exchange(false)) return cudaErrorStreamCaptureInvalidated;
  return *graph ? cudaSuccess : cudaErrorInvalidValue;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  if (const cudaError_t e = faulty()) return e;
  *exec = new Graph(*graph);
  ++n_alive;
  ++n_graphs_made;
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  if (const cudaError_t e = faulty()) return e;
  if (const cudaError_t e = check_device(stream)) return e;
  for (const auto& node : exec->nodes) enqueue(stream, node);
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  n_alive -= graph != nullptr;
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  n_alive -= exec != nullptr;
  delete exec;
  return cudaSuccess;
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, void*, size_t* n_nodes) {
  *n_nodes = graph->nodes.size();
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  if (const cudaError_t e = faulty()) return e;
  *event = new Event;
  (*event)->device = current_device;
  ++n_alive;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  n_alive -= event != nullptr;
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (const cudaError_t e = faulty()) return e;
  if (stream && event->device != stream->device) return cudaErrorInvalidResourceHandle;
  const std::lock_guard<std::recursive_mutex> lock(schedule_mutex);
  event->stream = stream, event->behind = stream ? stream->n_given() : 0;
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  ++n_waited;
  const std::lock_guard<std::recursive_mutex> lock(schedule_mutex);
  do_until(event->stream, event->behind);
  return faulty();
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorName(cudaError_t error) { return error == cudaSuccess ? "cudaSuccess" : "cudaErrorEmulated"; }
const char* cudaGetErrorString(cudaError_t error) { return error == cudaSuccess ? "no error" : "an injected fault"; }
