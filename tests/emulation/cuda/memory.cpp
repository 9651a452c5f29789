// See memory.h.
#include "tests/emulation/cuda/memory.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include "tests/emulation/cuda/device.h"

namespace orrery::emulated {

bool registered_elsewhere = false;
size_t memory_bytes = size_t{8} << 30, pinned_most = SIZE_MAX;

namespace {

constexpr size_t kPage = 4096;
constexpr DriverError kAlreadyRegistered{712}, kNotRegistered{713};

size_t pages(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

// The protection keys of memory that the host must not touch, and of registered memory at the host's address. A thread has the rights of
// the thread that made it, so the keys are made before any other thread: the host's threads may use the second one.
struct Keys {
  int device = -1, registered = -1;
  bool windows = false;  // are asked for: each of them closes
  Keys() {
#if defined(__GLIBC__)
    const char* wanted = std::getenv("ORRERY_EMULATED_HIDING");
    windows = wanted && std::strcmp(wanted, "windows") == 0;
    if (windows) return;
    device = pkey_alloc(0, PKEY_DISABLE_ACCESS);
    if (device >= 0) registered = pkey_alloc(0, 0);
    if (device >= 0 && registered < 0) pkey_free(device), device = -1;
#endif
  }
};
const Keys keys;

#if defined(__GLIBC__)
// What the system says of such a fault is a segmentation fault, like any other one.
void say_who(int, siginfo_t* info, void*) {
  constexpr char kText[] = "emulated device: the host touched device memory, or a kernel touched registered memory at the host's address\n";
  if (info->si_code == SEGV_PKUERR) (void)!write(STDERR_FILENO, kText, sizeof kText - 1);
  signal(SIGSEGV, SIG_DFL);  // the instruction runs again
}
void explain_faults() {
  struct sigaction now = {};
  if (sigaction(SIGSEGV, nullptr, &now) != 0 || now.sa_handler != SIG_DFL) return;
  struct sigaction ours = {};
  ours.sa_sigaction = say_who;
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigaction(SIGSEGV, &ours, nullptr);
}
void hide(void* at, size_t bytes, int key) { pkey_mprotect(at, bytes, PROT_READ | PROT_WRITE, key); }
void show(void* at, size_t bytes) { pkey_mprotect(at, bytes, PROT_READ | PROT_WRITE, 0); }
int rights(int key) { return pkey_get(key); }
void set_rights(int key, int to) { pkey_set(key, static_cast<unsigned>(to)); }
constexpr int kNoAccess = PKEY_DISABLE_ACCESS;
#else
void explain_faults() {}
void hide(void*, size_t, int) {}
void show(void*, size_t) {}
int rights(int) { return 0; }
void set_rights(int, int) {}
constexpr int kNoAccess = 0;
#endif

struct Allocation {
  void* base;  // of the mapping
  size_t mapped, bytes;
  bool pinned;
  int device;  // whose memory it is; -1: of a test
};
struct Registered {
  std::byte* base;  // of the host's pages
  size_t mapped, bytes;
  std::byte* there;  // where the device finds these pages; null: at the host's address
};
std::mutex memory_mutex;                        // guards what follows
std::map<const void*, Allocation> allocations;  // by the address that the caller got
std::map<const void*, Registered> registered;   // by the address that the caller gave
size_t n_windows = 0;                           // that are open now
// Where windows hide memory, closing one changes each page's entry, a fifth of all time. So each allocation is followed by kStrictWindows
// that close, and later one in kSampled does. `left_open`: the last one has not been closed.
constexpr size_t kStrictWindows = 200, kSampled = 16;
size_t n_since_taken = 0;
bool left_open = false;
size_t pinned_taken = 0;

DeviceBytes taken[kMostDevices];
size_t most_outside_taken = 0;

void protect_all(int protection) {
  for (const auto& [at, a] : allocations)
    if (!a.pinned) mprotect(a.base, a.mapped - kPage, protection);
  for (const auto& [at, r] : registered)
    if (r.there) mprotect(r.there, r.mapped, protection);
}
void hide_from_host(void* base, size_t bytes) {
  if (keys.device >= 0) return hide(base, bytes, keys.device);
  if (left_open) protect_all(PROT_NONE), left_open = false;
  if (n_windows == 0) mprotect(base, bytes, PROT_NONE);
  n_since_taken = 0;
}

size_t DeviceBytes::*part_of(Taker taker) {
  switch (taker) {
    case Taker::context: return &DeviceBytes::contexts;
    case Taker::module: return &DeviceBytes::modules;
    case Taker::graph: return &DeviceBytes::graphs;
    case Taker::library: break;
  }
  return &DeviceBytes::libraries;
}

}  // namespace

bool hides_by_keys() { return keys.device >= 0; }

AsDevice::AsDevice(Work work) {
  if (keys.device >= 0) {
    device_before_ = rights(keys.device), registered_before_ = rights(keys.registered);
    set_rights(keys.device, 0);
    set_rights(keys.registered, work == Work::kernel && registered_elsewhere ? kNoAccess : 0);
    return;
  }
  const std::lock_guard<std::mutex> lock(memory_mutex);
  if (n_windows++ == 0 && !left_open) protect_all(PROT_READ | PROT_WRITE);
}
AsDevice::~AsDevice() {
  if (keys.device >= 0) {
    set_rights(keys.device, device_before_);
    set_rights(keys.registered, registered_before_);
    return;
  }
  const std::lock_guard<std::mutex> lock(memory_mutex);
  if (--n_windows > 0) return;
  left_open = !keys.windows && ++n_since_taken > kStrictWindows && n_since_taken % kSampled != 0;
  if (!left_open) protect_all(PROT_NONE);
}

DriverError take(void** at, size_t bytes, bool pinned) {
  const int of = pinned ? -1 : current_device();
  {
    const std::lock_guard<std::mutex> lock(memory_mutex);
    if (pinned && bytes > pinned_most - std::min(pinned_taken, pinned_most)) return DriverError::out_of_memory;
    if (of >= 0 && bytes > memory_bytes - std::min(taken[of].total(), memory_bytes)) return DriverError::out_of_memory;
    if (pinned) pinned_taken += bytes;
    if (of >= 0) taken[of].allocated += bytes;
  }
  const size_t padded = pages(bytes), mapped = padded + kPage;
  void* base = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  const std::lock_guard<std::mutex> lock(memory_mutex);
  if (base == MAP_FAILED) {
    if (pinned) pinned_taken -= bytes;
    if (of >= 0) taken[of].allocated -= bytes;
    return DriverError::out_of_memory;
  }
  char* end = static_cast<char*>(base) + padded;
  mprotect(end, kPage, PROT_NONE);
  // The block ends at the inaccessible page, as nearly as 256-byte alignment allows. A large arena is not touched before its use.
  if (bytes <= size_t{1} << 20 || (!pinned && of < 0)) std::memset(base, 0xFF, padded);
  *at = end - (bytes + 255) / 256 * 256;
  if (!pinned) {
    explain_faults();
    hide_from_host(base, padded);
  }
  allocations[*at] = {base, mapped, bytes, pinned, of};
  if (device) device->allocated(*at, bytes, pinned);
  return DriverError::none;
}

DriverError give_back(void* at) {
  if (at == nullptr) return DriverError::none;
  const std::lock_guard<std::mutex> lock(memory_mutex);
  const auto found = allocations.find(at);
  if (found == allocations.end()) return DriverError::invalid_value;
  const Allocation& a = found->second;
  if (a.pinned) pinned_taken -= a.bytes;
  if (a.device >= 0) taken[a.device].allocated -= a.bytes;
  if (device) device->released(at);
  munmap(a.base, a.mapped);
  allocations.erase(found);
  return DriverError::none;
}

// With registered_elsewhere, the pages become those of a file without a name, which is mapped twice. Their content stays.
DriverError register_memory(void* at, size_t bytes) {
  const std::lock_guard<std::mutex> lock(memory_mutex);
  if (!at || bytes == 0) return DriverError::invalid_value;
  const uintptr_t first = reinterpret_cast<uintptr_t>(at) / kPage * kPage;
  const size_t mapped = pages(reinterpret_cast<uintptr_t>(at) + bytes - first);
  Registered r = {reinterpret_cast<std::byte*>(first), mapped, bytes, nullptr};
  for (const auto& [other, there] : registered)
    if (r.base < there.base + there.mapped && there.base < r.base + r.mapped) return kAlreadyRegistered;
  if (bytes > pinned_most - std::min(pinned_taken, pinned_most)) return DriverError::out_of_memory;
  if (registered_elsewhere) {
    const int file = memfd_create("registered memory", 0);
    if (file < 0 || ftruncate(file, static_cast<off_t>(mapped)) != 0) return DriverError::out_of_memory;
    void* there = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (there == MAP_FAILED) {
      close(file);
      return DriverError::out_of_memory;
    }
    std::memcpy(there, r.base, mapped);
    void* here = mmap(r.base, mapped, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0);
    close(file);
    if (here == MAP_FAILED) return DriverError::out_of_memory;
    r.there = static_cast<std::byte*>(there);
    hide_from_host(there, mapped);
    if (keys.registered >= 0) hide(r.base, mapped, keys.registered);
  }
  pinned_taken += bytes;
  registered[at] = r;
  if (device) device->allocated(r.there ? r.there + (static_cast<std::byte*>(at) - r.base) : at, bytes, true);
  return DriverError::none;
}

// The pages become the process's own again, with their content. Their owner may unmap them next.
DriverError unregister_memory(void* at) {
  const std::lock_guard<std::mutex> lock(memory_mutex);
  const auto found = registered.find(at);
  if (found == registered.end()) return kNotRegistered;
  const Registered r = found->second;
  if (device) device->released(r.there ? r.there + (static_cast<std::byte*>(at) - r.base) : at);
  if (r.there) {
    void* own = mmap(nullptr, r.mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (own == MAP_FAILED) return DriverError::out_of_memory;
    show(r.base, r.mapped);
    std::memcpy(own, r.base, r.mapped);
    mremap(own, r.mapped, r.mapped, MREMAP_MAYMOVE | MREMAP_FIXED, r.base);
    munmap(r.there, r.mapped);
  }
  pinned_taken -= r.bytes;
  registered.erase(found);
  return DriverError::none;
}

DriverError device_address_of(const void* host, uint64_t* there) {
  const std::lock_guard<std::mutex> lock(memory_mutex);
  const auto* at = static_cast<const std::byte*>(host);
  for (const auto& [first, r] : registered) {
    const auto* begin = static_cast<const std::byte*>(first);
    if (at < begin || at >= begin + r.bytes) continue;
    *there = reinterpret_cast<uintptr_t>(r.there ? r.there + (at - r.base) : at);
    return DriverError::none;
  }
  for (const auto& [first, a] : allocations)
    if (a.pinned && at >= first && at < static_cast<const std::byte*>(first) + a.bytes) {
      *there = reinterpret_cast<uintptr_t>(at);
      return DriverError::none;
    }
  return DriverError::invalid_value;
}

bool lies_in(const void* at, bool pinned) {
  const std::lock_guard<std::mutex> lock(memory_mutex);
  auto next = allocations.upper_bound(at);
  if (next == allocations.begin()) return false;
  const Allocation& found = (--next)->second;
  return found.pinned == pinned && at < static_cast<const char*>(found.base) + found.mapped;
}

const void* reported(const void* at) {
  if (!registered_elsewhere) return at;
  uint64_t there = 0;
  return device_address_of(at, &there) == DriverError::none ? reinterpret_cast<const void*>(static_cast<uintptr_t>(there)) : at;
}

size_t n_allocations() {
  const std::lock_guard<std::mutex> lock(memory_mutex);
  return allocations.size() + registered.size();
}

bool charge(int of, Taker taker, size_t bytes) {
  const std::lock_guard<std::mutex> lock(memory_mutex);
  if (bytes > memory_bytes - std::min(taken[of].total(), memory_bytes)) return false;
  taken[of].*part_of(taker) += bytes;
  most_outside_taken = std::max(most_outside_taken, taken[of].outside());
  return true;
}
void discharge(int of, Taker taker, size_t bytes) {
  const std::lock_guard<std::mutex> lock(memory_mutex);
  taken[of].*part_of(taker) -= bytes;
}
DeviceBytes device_bytes(int of) {
  const std::lock_guard<std::mutex> lock(memory_mutex);
  return taken[of];
}
size_t most_outside(bool anew) {
  const std::lock_guard<std::mutex> lock(memory_mutex);
  const size_t most = most_outside_taken;
  if (anew) {
    most_outside_taken = 0;
    for (const DeviceBytes& bytes : taken) most_outside_taken = std::max(most_outside_taken, bytes.outside());
  }
  return most;
}
size_t pinned_bytes() {
  const std::lock_guard<std::mutex> lock(memory_mutex);
  return pinned_taken;
}

void* allocate(size_t bytes) {
  void* at = nullptr;
  return take(&at, bytes, false) == DriverError::none ? at : nullptr;
}

}  // namespace orrery::emulated
