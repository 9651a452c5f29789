// One GPU, opened: its primary context, which other CUDA code of the process shares; the kernels of the archive, loaded; and the first
// error that happened on it. Everything that this room sends to a device begins here.
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
  void keep();   // recover() does nothing from now on
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
  std::string name;             // "NVIDIA GeForce RTX 4090"
  int32_t architecture = 0;     // 89: compute capability 8.9
  int32_t n_sms = 0;            // streaming multiprocessors
  uint64_t shared_bytes = 0;    // shared memory that a thread block may ask for
  uint64_t cache_bytes = 0;     // second-level cache
  uint64_t memory_bytes = 0;
  bool registered_at_host_address = true;   // DeviceAttribute::registered_at_host_address
};
DriverError describe(const Driver& driver, int index, GpuProperties* properties);

class Gpu {
 public:
  // Retains the device's primary context and loads every kernel of the archive, so that no kernel is loaded or compiled while a stream is
  // captured. UNSUPPORTED, with the driver's reason, where a call fails.
  static Result<std::unique_ptr<Gpu>> open(const Driver& driver, int index);
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;
  ~Gpu();

  const Driver& driver() const { return driver_; }
  const GpuProperties& properties() const { return properties_; }
  Context context() const { return context_; }
  bool in_its_process() const { return os::process_id() == process_; }
  ErrorLatch& latch() { return latch_; }
  Status status() const { return latch_.status(driver_); }
  // Loads further images, of another archive.
  Status add_kernels(Span<const Image> images);
  // The kernel that has this name (launch.h: kernel_name); null if the archive has none. Any thread may ask.
  Function kernel(const char* name);

 private:
  explicit Gpu(const Driver& driver, int index) : driver_(driver), index_(index) {}

  Driver driver_;
  int index_, device_ = 0;   // the driver's handle
  const int64_t process_ = os::process_id();
  GpuProperties properties_;
  Context context_ = nullptr;
  ErrorLatch latch_;
  std::vector<Module> modules_;
  std::unordered_map<std::string, Function> kernels_;   // by readable_name() of the symbol
  std::mutex mutex_;
  std::unordered_map<const char*, Function> known_;     // by the address of the name
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
  explicit OnDevice(const Gpu& gpu)
      : driver_(gpu.driver()), error_(gpu.in_its_process() ? driver_.push_context(gpu.context()) : DriverError::after_fork) {}
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
