// Addresses in a backend's memory, and the lists of bytes that cross between the host and a device.
#pragma once

#include <cstddef>
#include <cstdint>

namespace orrery {

// An address in a backend's memory. Only the backend dereferences it.
template <class T>
struct Ptr {
  uint64_t address = 0;
  explicit operator bool() const { return address != 0; }
  Ptr operator+(uint64_t n) const { return {address + n * sizeof(T)}; }
  operator Ptr<const T>() const { return {address}; }  // NOLINT: as for pointers
};

// A stretch of host memory.
struct HostPiece {
  const std::byte* data = nullptr;
  uint64_t bytes = 0;
  bool shared = false;  // the device has been given all of it (Device::share_host)
};

// A stretch that moves from host memory to a backend's, and one that moves back.
struct Upload {
  Ptr<std::byte> to;
  const void* from = nullptr;
  uint64_t bytes = 0;
};
struct Download {
  void* to = nullptr;
  Ptr<const std::byte> from;
  uint64_t bytes = 0;
};

}  // namespace orrery
