// os.h for Windows: memory regions, threads, the machine. Files are in windows_files.cpp, text and errors in
// windows_text.cpp.
#include <algorithm>
#include <mutex>
#include <utility>

#include "runtime/base/checked.h"
#include "runtime/os/processors.h"
#include "runtime/os/windows_text.h"

namespace orrery::os {

// Region -------------------------------------------------------------------------------------------------

// The system charges the whole region against its commit limit (memory and page file), and takes a page on first touch.
Result<Region> Region::allocate(uint64_t bytes) {
  Region region;
  if (bytes == 0) return region;
  uint64_t rounded;
  if (!checked_align(bytes, page_bytes(), &rounded) || rounded > SIZE_MAX / 2) return too_large_region(bytes);
  void* p = ::VirtualAlloc(nullptr, rounded, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE);
  if (!p) return refused_memory(bytes, static_cast<int64_t>(::GetLastError()));
  region.data_ = static_cast<std::byte*>(p);
  region.size_ = rounded;
  return region;
}

Region::~Region() {
  if (data_) ::VirtualFree(data_, 0, MEM_RELEASE);
}

// The pages stay committed, so that a later touch cannot fail. MEM_RESET drops their content without a write to the
// page file, VirtualUnlock removes them from the working set.
void Region::discard(uint64_t offset, uint64_t bytes) const {
  if (offset >= size_) return;
  const uint64_t page = page_bytes(), from = align_up(offset, page);
  const uint64_t to = std::min(offset + bytes, size_) & ~(page - 1);
  if (from >= to) return;
  ::VirtualAlloc(data_ + from, to - from, MEM_RESET, PAGE_NOACCESS);
  ::VirtualUnlock(data_ + from, to - from);
}

// A process may lock as much as its least working set, less a few pages. The working set grows with what is locked.
Status Region::lock(uint64_t offset, uint64_t bytes) const {
  static std::mutex growing;  // two threads that read, then set, the size would lose one of the two
  if (::VirtualLock(data_ + offset, bytes)) return ok_status();
  DWORD number = ::GetLastError();
  SIZE_T least = 0, most = 0;
  {
    const std::lock_guard<std::mutex> lock(growing);
    if (::GetProcessWorkingSetSize(::GetCurrentProcess(), &least, &most) &&
        ::SetProcessWorkingSetSize(::GetCurrentProcess(), least + bytes, std::max<SIZE_T>(most, least + bytes + (1 << 20))) &&
        ::VirtualLock(data_ + offset, bytes))
      return ok_status();
    number = ::GetLastError();
  }
  Status s = memory_error(Code::out_of_pinned_memory, bytes, least,
                          "the system does not lock %llu bytes in memory: this process's least working set is %llu, of %llu "
                          "bytes that the machine has",
                          static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(least),
                          static_cast<unsigned long long>(physical_memory_bytes()));
  s.detail().native_code = static_cast<int64_t>(number);
  return s;
}

void Region::unlock(uint64_t offset, uint64_t bytes) const { ::VirtualUnlock(data_ + offset, bytes); }

// Threads ------------------------------------------------------------------------------------------------

// Windows has no signals that reach a thread.
SignalsBlocked::SignalsBlocked() { (void)before_, (void)changed_; }
SignalsBlocked::~SignalsBlocked() = default;

bool lower_priority() { return ::SetThreadPriority(::GetCurrentThread(), THREAD_PRIORITY_BELOW_NORMAL) != 0; }

// Machine ------------------------------------------------------------------------------------------------

std::tm local_time(std::time_t seconds) {
  std::tm time{};
  ::localtime_s(&time, &seconds);
  return time;
}

int64_t process_id() { return static_cast<int64_t>(::GetCurrentProcessId()); }

uint64_t page_bytes() {
  SYSTEM_INFO system;
  ::GetSystemInfo(&system);
  return system.dwPageSize;
}

namespace {
MEMORYSTATUSEX memory_status() {
  MEMORYSTATUSEX status = {};
  status.dwLength = sizeof status;
  if (!::GlobalMemoryStatusEx(&status)) status.ullTotalPhys = status.ullAvailPhys = status.ullAvailPageFile = uint64_t{1} << 32;
  return status;
}
}  // namespace

uint64_t physical_memory_bytes() { return memory_status().ullTotalPhys; }

// An affinity mask covers one group of 64 processors. A process that nobody has bound runs on all groups.
// Windows has no quotas of containers that a process can read, and hands out cores of two threads as two processors.
Processors processors(const std::string&, std::vector<int>) {
  Processors p;
  p.allowed = p.cores = available_processors();
  return p;
}

int available_processors() {
  DWORD_PTR own = 0, system = 0;
  if (::GetProcessAffinityMask(::GetCurrentProcess(), &own, &system) && own != 0 && own != system)
    return __builtin_popcountll(static_cast<unsigned long long>(own));
  const DWORD all = ::GetActiveProcessorCount(ALL_PROCESSOR_GROUPS);
  return all > 0 ? static_cast<int>(all) : 1;
}

// AMX is not used on Windows: the system has no permission to ask for that was seen to work.
bool request_tile_registers() { return false; }

// The machine's memory, the commit limit, and the limits of the job object that the process belongs to (a container's,
// too). `root` has no use here: the system reports by calls.
MemoryLimits memory_limits(const std::string&) {
  MemoryLimits limits;
  const auto see = [&](uint64_t total, uint64_t available, const char* what) {
    limits.total_bytes = std::min(limits.total_bytes, total);
    if (available >= limits.available_bytes) return;
    limits.available_bytes = available;
    limits.bound_by = what;
  };
  const MEMORYSTATUSEX machine = memory_status();
  see(machine.ullTotalPhys, machine.ullAvailPhys, "the machine's memory");
  see(machine.ullTotalPageFile, machine.ullAvailPageFile, "the commit limit");
  limits.memory_bytes = machine.ullTotalPhys;
  limits.reservable_bytes = machine.ullAvailPageFile;

  JOBOBJECT_EXTENDED_LIMIT_INFORMATION job = {};
  if (::QueryInformationJobObject(nullptr, JobObjectExtendedLimitInformation, &job, sizeof job, nullptr)) {
    const DWORD flags = job.BasicLimitInformation.LimitFlags;
    for (const auto& [flag, limit, used] :
         {std::tuple<DWORD, uint64_t, uint64_t>{JOB_OBJECT_LIMIT_PROCESS_MEMORY, job.ProcessMemoryLimit, job.PeakProcessMemoryUsed},
          std::tuple<DWORD, uint64_t, uint64_t>{JOB_OBJECT_LIMIT_JOB_MEMORY, job.JobMemoryLimit, job.PeakJobMemoryUsed}}) {
      if (!(flags & flag)) continue;
      const uint64_t left = limit > used ? limit - used : 0;
      see(limit, left, "the job object's memory limit");
      limits.memory_bytes = std::min(limits.memory_bytes, limit);
      limits.reservable_bytes = std::min(limits.reservable_bytes, left);
    }
  }
  return limits;
}

}  // namespace orrery::os
