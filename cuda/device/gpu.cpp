// See gpu.h.
#include "cuda/device/gpu.h"

#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>

#include "cuda/device/queue.h"

namespace orrery::cuda {

void ErrorLatch::set(DriverError error, const char* what) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (failed_.load(std::memory_order_relaxed) && (loses_device(error_) || !loses_device(error))) return;
  error_ = error;
  what_ = what;
  n_failures_.fetch_add(1, std::memory_order_release);
  failed_.store(true, std::memory_order_release);
}

void ErrorLatch::recover() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!kept_ && !loses_device(error_)) failed_.store(false, std::memory_order_release);
}

void ErrorLatch::keep() {
  const std::lock_guard<std::mutex> lock(mutex_);
  kept_ = kept_ || failed_.load(std::memory_order_relaxed);
}

Status ErrorLatch::status(const Driver& driver) const {
  if (!failed()) return ok_status();
  const std::lock_guard<std::mutex> lock(mutex_);
  return last(driver);
}

Status ErrorLatch::status_since(uint64_t n, const Driver& driver) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return n_failures_.load(std::memory_order_relaxed) == n ? ok_status() : last(driver);
}

Status ErrorLatch::last(const Driver& driver) const {
  const bool lost = loses_device(error_);
  const Code code = lost ? Code::device_lost : error_ == DriverError::out_of_memory ? Code::out_of_device_memory : Code::internal;
  Status s = error(code, "the CUDA device failed while %s: %s (%s)%s", what_, driver.text(error_).c_str(), driver.name(error_).c_str(),
                   lost && error_ != DriverError::after_fork
                       ? ". This runtime is lost: free its handles and create another one. The context is the process's, which other "
                         "libraries share (PyTorch): if it is broken, it stays so until each of them has released it, or the process ends"
                       : "");
  s.detail().native_code = static_cast<int64_t>(error_);
  return s;
}

DriverError describe(const Driver& driver, int index, GpuProperties* p) {
  int device = 0;
  char name[256] = "";
  int major = 0, minor = 0, shared = 0, cache = 0;
  size_t bytes = 0;
  DriverError e = driver.get_device(&device, index);
  if (e == DriverError::none) e = driver.get_device_name(name, sizeof name - 1, device);
  if (e == DriverError::none) e = driver.get_device_memory(&bytes, device);
  const auto ask = [&](DeviceAttribute attribute, int* value) {
    if (e == DriverError::none) e = driver.get_device_attribute(value, attribute, device);
  };
  ask(DeviceAttribute::major, &major);
  ask(DeviceAttribute::minor, &minor);
  ask(DeviceAttribute::n_sms, &p->n_sms);
  ask(DeviceAttribute::shared_bytes, &shared);
  ask(DeviceAttribute::cache_bytes, &cache);
  int at_host_address = 0;
  ask(DeviceAttribute::registered_at_host_address, &at_host_address);
  if (e != DriverError::none) return e;
  p->name = name;
  p->architecture = 10 * major + minor;
  p->shared_bytes = static_cast<uint64_t>(shared);
  p->cache_bytes = static_cast<uint64_t>(cache);
  p->memory_bytes = bytes;
  p->registered_at_host_address = at_host_address != 0;
  return e;
}

std::string readable_name(const char* symbol) {
  int status = 0;
  char* text = abi::__cxa_demangle(symbol, nullptr, nullptr, &status);
  std::string name = status == 0 && text ? text : symbol;
  std::free(text);
  // kernel_name(): "orrery::cuda::KernelTag<&(void orrery::cuda::rows_cu::add_kernel(float*))>", without brackets if it has no parameters.
  if (const size_t tag = name.find("KernelTag<&"); tag != std::string::npos) {
    name = name.substr(tag + 11, name.rfind('>') - tag - 11);
    if (!name.empty() && name.front() == '(') name = name.substr(1, name.size() - 2);
  }
  if (!name.empty() && name.back() == ')') {  // the parameters: back to the bracket that opens them
    size_t at = name.size();
    int depth = 0;
    do {
      --at;
      depth += name[at] == ')' ? 1 : name[at] == '(' ? -1 : 0;
    } while (at > 0 && depth > 0);
    name.resize(at);
  }
  return name.compare(0, 5, "void ") == 0 ? name.substr(5) : name;
}

namespace {

// The architecture of PTX that has griddepcontrol, and the driver that captures such launches.
constexpr int kStartsEarlyFrom = 90, kCapturesEarlyFrom = 12030;  // CUDA 12.3

std::mutex opened_mutex;
OpenedDevice* all_opened = nullptr;  // a list

}  // namespace

DriverError OpenedDevice::open(const Driver& driver, int index, OpenedDevice** opened, const char** what) {
  const std::lock_guard<std::mutex> lock(opened_mutex);
  for (OpenedDevice* known = all_opened; known; known = known->next_)
    if (known->index_ == index && known->in_its_process()) {
      ++known->n_users_;
      *opened = known;
      return DriverError::none;
    }
  std::unique_ptr<OpenedDevice> made(new OpenedDevice(driver, index));
  *what = nullptr;
  DriverError e = driver.get_device(&made->device_, index);
  if (e == DriverError::none) {
    e = driver.retain_context(&made->context_, made->device_);
    if (e != DriverError::none) made->context_ = nullptr;
  }
  if (e == DriverError::none) e = made->add_kernels(archive(), what);
  if (e != DriverError::none) return e;
  made->n_users_ = 1;
  made->next_ = all_opened;
  *opened = all_opened = made.release();
  return e;
}

void OpenedDevice::close(OpenedDevice* opened) {
  const std::lock_guard<std::mutex> lock(opened_mutex);
  if (--opened->n_users_ > 0) return;  // the others go on
  OpenedDevice** at = &all_opened;
  while (*at != opened) at = &(*at)->next_;
  *at = opened->next_;
  delete opened;
}

OpenedDevice::~OpenedDevice() {
  if (!context_ || !in_its_process()) return;
  {
    const OnDevice here(driver_, context_, true);
    for (Module module : modules_) driver_.unload_module(module);
  }
  driver_.release_context(device_);
}

// The driver loads lazily where it may: asking for a kernel's registers makes it load the kernel.
DriverError OpenedDevice::add_kernels(Span<const Image> images, const char** what) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const OnDevice here(driver_, context_, in_its_process());
  DriverError e = here.error();
  *what = "its context";
  const int driver_version = driver_.version();
  for (const Image& image : images) {
    if (e != DriverError::none) break;
    if (std::find(images_.begin(), images_.end(), image.data) != images_.end()) continue;
    *what = image.file;
    Module module = nullptr;
    e = driver_.load_module(&module, image.data);
    if (e != DriverError::none) break;
    modules_.push_back(module);
    for (const char* const* name = image.kernels; *name && e == DriverError::none; ++name) {
      Function function = nullptr;
      int n_registers = 0, ptx_version = 0;
      e = driver_.get_function(&function, module, *name);
      if (e == DriverError::none) e = driver_.get_function_attribute(&n_registers, FunctionAttribute::n_registers, function);
      if (e == DriverError::none) e = driver_.get_function_attribute(&ptx_version, FunctionAttribute::ptx_version, function);
      kernels_[readable_name(*name)] = {function, ptx_version >= kStartsEarlyFrom && driver_version >= kCapturesEarlyFrom};
    }
    if (e == DriverError::none) images_.push_back(image.data);
  }
  return e;
}

Kernel OpenedDevice::kernel(const std::string& name) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = kernels_.find(name);
  return found == kernels_.end() ? Kernel{} : found->second;
}

Result<std::unique_ptr<Gpu>> Gpu::open(const Driver& driver, int index) {
  std::unique_ptr<Gpu> made(new Gpu(driver, index));
  const char* what = nullptr;
  DriverError e = describe(driver, index, &made->properties_);
  if (e == DriverError::none) e = OpenedDevice::open(driver, index, &made->opened_, &what);
  if (e != DriverError::none) return made->refused(e, what);
  return made;
}

// `what`: the image that the driver does not take; null: it does not give the device.
Status Gpu::refused(DriverError e, const char* what) const {
  const std::string text = driver_.text(e);
  Status s =
      what ? error(e == DriverError::out_of_memory ? Code::out_of_device_memory : Code::unsupported,
                   "CUDA device %d, %s, does not take the kernels (%s): %s. Its driver is for CUDA %s, the kernels are compiled by CUDA %s",
                   index_, properties_.name.c_str(), what, text.c_str(), version_text(driver_.version()).c_str(),
                   version_text(archive_version()).c_str())
           : error(Code::unsupported, "CUDA device %d: %s", index_, text.c_str());
  s.detail().native_code = static_cast<int64_t>(e);
  return s;
}

Status Gpu::add_kernels(Span<const Image> images) {
  const char* what = nullptr;
  const DriverError e = opened_->add_kernels(images, &what);
  return e == DriverError::none ? ok_status() : refused(e, what);
}

Gpu::~Gpu() {
  if (opened_) OpenedDevice::close(opened_);
}

Kernel Gpu::kernel(const char* name) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto known = known_.find(name);
  if (known != known_.end()) return known->second;
  return known_[name] = opened_->kernel(readable_name(name));
}

OnDevice::OnDevice(const Gpu& gpu, Queue& queue) : OnDevice(gpu) {
  if (error_ != DriverError::none) queue.check(error_, "choosing the device");
}

}  // namespace orrery::cuda
