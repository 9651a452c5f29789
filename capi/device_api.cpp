// Devices: the GPUs of this machine, and why no runtime can use some of them.
#include "capi/handles.h"

using namespace orrery;
using namespace orrery::capi;

extern "C" {

void orrery_device_info_init(orrery_device_info* info, size_t struct_size) { init_struct(info, struct_size); }

size_t orrery_devices(void) {
  size_t n = 0;
  guarded(nullptr, [&]() -> Status {
    n = engine::gpus().size();
    return ok_status();
  });
  return n;
}

orrery_status orrery_device_get_info(size_t index, orrery_device_info* info, orrery_error* error) {
  return guarded(error, [&]() -> Status {
    ORRERY_REQUIRE(info);
    const std::vector<DeviceDescription> devices = engine::gpus();
    if (index >= devices.size())
      return orrery::error(Code::invalid_argument, "index is %zu: this machine has %zu devices that this library can see", index,
                           devices.size());
    const DeviceDescription& device = devices[index];
    orrery_device_info out;
    orrery_device_info_init(&out, sizeof out);
    out.architecture = static_cast<uint32_t>(device.architecture);
    out.memory_bytes = device.memory_bytes;
    engine::copy_message(device.name, {out.name, sizeof out.name});
    engine::copy_message(device.refused, {out.refused, sizeof out.refused});
    return write_struct(out, info, "orrery_device_info");
  });
}

}  // extern "C"
