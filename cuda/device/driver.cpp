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

Result<Driver> Driver::open(int least_version) {
#ifdef _WIN32
  constexpr const char* kName = "nvcuda.dll";
  const Library library({kName});
#else
  constexpr const char* kName = "libcuda.so.1";
  const Library library({kName});
#endif
  if (!library.opened()) return unusable(DriverError::none, std::string("this machine has no NVIDIA driver (") + kName + ")");
  Driver d;
  const char* missing = nullptr;
#define ORRERY_DRIVER_FIND(member, symbol, ...) \
  if (!library.find(&d.member, #symbol) && !missing) missing = #symbol;
  ORRERY_DRIVER_FUNCTIONS(ORRERY_DRIVER_FIND)
#undef ORRERY_DRIVER_FIND
  int version = 0;
  if (d.get_version && d.get_version(&version) == DriverError::none && version > 0 && version / 1000 < least_version / 1000)
    return unusable(DriverError::none, "the NVIDIA driver is for CUDA " + std::to_string(version / 1000) + "." +
                                           std::to_string(version % 1000 / 10) + ", this build needs one for " +
                                           std::to_string(least_version / 1000) + ".0 or newer");
  if (missing) return unusable(DriverError::none, std::string("the NVIDIA driver (") + kName + ") has no " + missing);
  if (const DriverError e = d.init(0); e != DriverError::none) return unusable(e, d.text(e));
  return d;
}

std::string Driver::text(DriverError error) const {
  const char* found = nullptr;
  return get_error_string(error, &found) == DriverError::none && found ? found : "error " + std::to_string(static_cast<int>(error));
}
std::string Driver::name(DriverError error) const {
  const char* found = nullptr;
  return get_error_name(error, &found) == DriverError::none && found ? found : "CUDA error " + std::to_string(static_cast<int>(error));
}

}  // namespace orrery::cuda
