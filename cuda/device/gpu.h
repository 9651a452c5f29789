// One GPU, opened: its primary context, which other CUDA code of the process shares; the kernels of the archive, loaded; and the first
// error that happened on it. Everything that this room sends to a device begins here. All Gpus of a process that have the same device share
// its context and one copy of the kernels (OpenedDevice); the error is each Gpu's own.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "cuda/device/archive.h"
#include "cuda/device/driver.h"
#include "runtime/base/status.h"
#include "runtime/os/os.h"

namespace orrery::cuda {

// The first error of a device, from any thread and any stream. An error that loses the device (loses_device()) stays. Others stay until
// they have been reported and recover() is called: then the device is used again.
class ErrorLatch {
 public:
  // `what` says what failed, and must outlive the latch. An error that loses the device takes the place of one that does not.
  void set(DriverError error, const char* what);
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  // Has the driver's error as native_code. A refused allocation is OUT_OF_DEVICE_MEMORY, another call that was refused INTERNAL, all else
  // DEVICE_LOST.
  Status status(const Driver& driver) const;
  void recover();
  void keep();  // recover() does nothing from now on
  // For a thread beside the one that recovers: the number of failures so far; and the last one's status, if there are more by now.
  uint64_t n_failures() const { return n_failures_.load(std::memory_order_acquire); }
  Status status_since(uint64_t n_failures, const Driver& driver) const;

 private:
  Status last(const Driver& driver) const;
  mutable std::mutex mutex_;
  std::atomic<bool> failed_{false};
  std::atomic<uint64_t> n_failures_{0};
  bool kept_ = false;
  DriverError error_ = DriverError::none;
  const char* what_ = "";
};

struct GpuProperties {
  std::string name;           // "NVIDIA GeForce RTX 4090"
  int32_t architecture = 0;   // 89: compute capability 8.9
  int32_t n_sms = 0;          // streaming multiprocessors
  uint64_t shared_bytes = 0;  // shared memory that a thread block may ask for
  uint64_t cache_bytes = 0;   // second-level cache
  uint64_t memory_bytes = 0;
  bool registered_at_host_address = true;  // DeviceAttribute::registered_at_host_address
};
DriverError describe(const Driver& driver, int index, GpuProperties* properties);

struct Kernel {
  Function function = nullptr;   // null: no image has it
  bool can_start_early = false;  // its machine code has the words for it (ptx.h: wait_for_earlier_kernels())
};

// A device whose context this process holds, with the kernels loaded into it. The first Gpu of a device makes it, the last one ends it.
// This is the only state that outlives a runtime: the table of opened devices, empty while no Gpu is open.
class OpenedDevice {
 public:
  // The device's entry of the table, made if it has none. The driver's error, and what it refused, where a call fails.
  static DriverError open(const Driver& driver, int index, OpenedDevice** opened, const char** what);
  static void close(OpenedDevice* opened);
  ~OpenedDevice();

  Context context() const { return context_; }
  bool in_its_process() const { return os::process_id() == process_; }
  // Loads further images. An image that is loaded already costs nothing.
  DriverError add_kernels(Span<const Image> images, const char** what);
  // `name`: readable_name() of the symbol.
  Kernel kernel(const std::string& name);

 private:
  OpenedDevice(const Driver& driver, int index) : driver_(driver), index_(index) {}

  Driver driver_;
  int index_, device_ = 0;  // the driver's handle
  const int64_t process_ = os::process_id();
  int n_users_ = 0;
  OpenedDevice* next_ = nullptr;
  Context context_ = nullptr;
  std::mutex mutex_;
  std::vector<Module> modules_;
  std::vector<const void*> images_;  // that are loaded
  std::unordered_map<std::string, Kernel> kernels_;
};

class Gpu {
 public:
  // Retains the device's primary context and loads every kernel of the archive, so that no kernel is loaded or compiled while a stream is
  // captured; where another Gpu of this process has the device, shares both. UNSUPPORTED, with the driver's reason, where a call fails.
  static Result<std::unique_ptr<Gpu>> open(const Driver& driver, int index);
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;
  ~Gpu();

  const Driver& driver() const { return driver_; }
  const GpuProperties& properties() const { return properties_; }
  Context context() const { return opened_->context(); }
  bool in_its_process() const { return opened_->in_its_process(); }
  ErrorLatch& latch() { return latch_; }
  Status status() const { return latch_.status(driver_); }
  // Loads further images, of another archive.
  Status add_kernels(Span<const Image> images);
  // The kernel that has this name (launch.h: kernel_name). Any thread may ask.
  Kernel kernel(const char* name);

 private:
  explicit Gpu(const Driver& driver, int index) : driver_(driver), index_(index) {}

  Status refused(DriverError e, const char* what) const;

  Driver driver_;
  int index_;
  GpuProperties properties_;
  OpenedDevice* opened_ = nullptr;
  ErrorLatch latch_;
  std::mutex mutex_;
  std::unordered_map<const char*, Kernel> known_;  // by the address of the name
};

// "orrery::cuda::rows_cu::rms_norm_kernel<true>": a function with its template arguments, without its parameters. `symbol` is the
// function's symbol, or kernel_name() of it. Compilers agree about this part of a name on every system: int64_t, a parameter, is long on
// Linux and long long on Windows.
std::string readable_name(const char* symbol);

class Queue;

// Makes a GPU's context the calling thread's current one, and puts back the thread's own. The driver takes launches and allocations only in
// a current context.
class OnDevice {
 public:
  OnDevice(const Driver& driver, Context context, bool in_its_process)
      : driver_(driver), error_(in_its_process ? driver_.push_context(context) : DriverError::after_fork) {}
  explicit OnDevice(const Gpu& gpu) : OnDevice(gpu.driver(), gpu.context(), gpu.in_its_process()) {}
  // A failure is the queue's: nothing is sent to another device.
  OnDevice(const Gpu& gpu, Queue& queue);
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  ~OnDevice() {
    Context popped = nullptr;
    if (error_ == DriverError::none) driver_.pop_context(&popped);
  }
  DriverError error() const { return error_; }
  // False in a child of fork(): nothing is given back there, because the driver's state is the parent's.
  bool in_its_process() const { return error_ != DriverError::after_fork; }

 private:
  const Driver& driver_;
  DriverError error_;
};

}  // namespace orrery::cuda
