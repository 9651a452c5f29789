// See driver.h.
#include "cuda/device/driver.h"

#include "cuda/device/library.h"

namespace orrery::cuda {

namespace {

Status unusable(DriverError e, const std::string& why) {
  Status s = error(Code::unsupported, "no CUDA device can be used: %s", why.c_str());
  s.detail().native_code = static_cast<int64_t>(e);
  return s;
}

}  // namespace

std::string version_text(int version) { return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10); }

bool loses_device(DriverError error) {
  switch (error) {
    case DriverError::none:
    case DriverError::invalid_value:
    case DriverError::out_of_memory:
    case DriverError::not_found:
    case DriverError::not_ready:
    case DriverError::launch_out_of_resources:
    case DriverError::not_permitted:
    case DriverError::not_supported: return false;
    default: return error < DriverError::capture_unsupported || error > DriverError::capture_last;
  }
}

Result<Driver> Driver::open(int made_by) {
#ifdef _WIN32
  constexpr const char* kName = "nvcuda.dll";
  const Library library({kName});
#else
  constexpr const char* kName = "libcuda.so.1";
  const Library library({kName});
#endif
  if (!library.opened()) return unusable(DriverError::no_driver, std::string("this machine has no NVIDIA driver (") + kName + ")");
  Driver d;
  const char* missing = nullptr;
#define ORRERY_DRIVER_FIND(member, symbol, ...) \
  if (!library.find(&d.member, #symbol) && !missing) missing = #symbol;
  ORRERY_DRIVER_FUNCTIONS(ORRERY_DRIVER_FIND)
#undef ORRERY_DRIVER_FIND
  if (missing)
    return unusable(DriverError::no_function, std::string("the NVIDIA driver (") + kName + ") has no " + missing + ": it is for CUDA " +
                                                  (d.get_version ? version_text(d.version()) : "before 2.2") +
                                                  ", this build is made by CUDA " + version_text(made_by));
  const DriverError e = d.init(0);
  // What a driver answers in a child of a process that has started it.
  if (e == DriverError::not_initialized)
    return unusable(e, d.text(e) +
                           "; a child of fork() cannot use CUDA if its parent has started it: start such a process by exec(), in Python "
                           "with the start method 'spawn'");
  if (e != DriverError::none) return unusable(e, d.text(e));
  return d;
}

int Driver::version() const {
  int version = 0;
  return get_version(&version) == DriverError::none ? version : 0;
}

std::string Driver::text(DriverError error) const {
  if (error == DriverError::after_fork) return "this process is a child of fork(), and the CUDA device is its parent's";
  const char* found = nullptr;
  return get_error_string(error, &found) == DriverError::none && found ? found : "error " + std::to_string(static_cast<int>(error));
}
std::string Driver::name(DriverError error) const {
  const char* found = nullptr;
  return get_error_name(error, &found) == DriverError::none && found ? found : "CUDA error " + std::to_string(static_cast<int>(error));
}

}  // namespace orrery::cuda
