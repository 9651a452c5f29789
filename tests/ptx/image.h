// What the library's archive of kernels holds: the PTX of an image, and readable symbols.
#pragma once

#include <cxxabi.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

#include "cuda/device/archive.h"

namespace orrery::ptx {

// A C++ symbol as c++filt writes it; the symbol itself if it is none.
inline std::string demangled(const std::string& symbol) {
  int status = 0;
  char* text = abi::__cxa_demangle(symbol.c_str(), nullptr, nullptr, &status);
  const std::string out = status == 0 && text ? text : symbol;
  std::free(text);
  return out;
}

// The PTX in an image of the archive: fatbinary's format. A header (magic, version, its own bytes, the bytes of all parts behind it), then
// parts, each with a header (kind, version, its own bytes, the bytes of its content). Empty: no image.
inline std::string ptx_of(const cuda::Image& image) {
  const auto* data = static_cast<const std::byte*>(image.data);
  const auto number = [&](size_t at, size_t bytes) {
    uint64_t x = 0;
    if (at + bytes <= image.bytes) std::memcpy(&x, data + at, bytes);
    return x;
  };
  if (number(0, 4) != 0xBA55ED50) return {};
  for (size_t at = number(6, 2); at + 16 <= image.bytes;) {
    const size_t header = number(at + 4, 4), bytes = number(at + 8, 8);
    if (header == 0 || at + header + bytes > image.bytes) return {};
    if (number(at, 2) == 1) {
      const std::string text(reinterpret_cast<const char*>(data + at + header), bytes);
      return text.substr(0, text.find('\0'));
    }
    at += header + bytes;
  }
  return {};
}

}  // namespace orrery::ptx
